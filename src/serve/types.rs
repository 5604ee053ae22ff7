//! Media types by extension, as registered by IANA (RFC 9239 for JavaScript), and which of them are
//! text or worth compressing.

use std::fmt::Write;

/// The properties of a type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Text in UTF-8, sent with `charset=utf-8`.
    Text,
    /// Text whose format specifies its encoding, or a binary format that compresses well.
    Compressible,
    /// Already compressed, or not known to compress well.
    Opaque,
}

use Kind::{Compressible, Opaque, Text};

const TYPES: &[(&str, &str, Kind)] = &[
    ("text/html", "html htm shtml", Text),
    ("text/css", "css", Text),
    ("text/javascript", "js mjs", Text),
    ("text/plain", "txt text log conf ini rs go py sh toml", Text),
    ("text/markdown", "md markdown", Text),
    ("text/csv", "csv", Text),
    ("text/tab-separated-values", "tsv", Text),
    ("text/calendar", "ics", Text),
    ("text/vcard", "vcf vcard", Text),
    ("text/vtt", "vtt", Text),
    ("text/xml", "xml xsl xslt", Compressible),
    ("application/json", "json map", Compressible),
    ("application/ld+json", "jsonld", Compressible),
    ("application/geo+json", "geojson", Compressible),
    ("application/manifest+json", "webmanifest", Compressible),
    ("application/yaml", "yaml yml", Compressible),
    ("application/xhtml+xml", "xhtml", Compressible),
    ("application/atom+xml", "atom", Compressible),
    ("application/rss+xml", "rss", Compressible),
    ("application/wasm", "wasm", Compressible),
    ("application/sql", "sql", Compressible),
    ("application/rtf", "rtf", Compressible),
    ("application/pdf", "pdf", Opaque),
    ("application/epub+zip", "epub", Opaque),
    ("application/zip", "zip", Opaque),
    ("application/gzip", "gz tgz", Opaque),
    ("application/zstd", "zst", Opaque),
    ("application/x-bzip2", "bz2", Opaque),
    ("application/x-xz", "xz", Opaque),
    ("application/x-tar", "tar", Opaque),
    ("application/x-7z-compressed", "7z", Opaque),
    ("application/java-archive", "jar war ear", Opaque),
    ("application/msword", "doc", Opaque),
    ("application/vnd.ms-excel", "xls", Opaque),
    ("application/vnd.ms-powerpoint", "ppt", Opaque),
    (
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "docx",
        Opaque,
    ),
    (
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "xlsx",
        Opaque,
    ),
    (
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "pptx",
        Opaque,
    ),
    ("application/vnd.oasis.opendocument.text", "odt", Opaque),
    (
        "application/vnd.oasis.opendocument.spreadsheet",
        "ods",
        Opaque,
    ),
    (
        "application/vnd.oasis.opendocument.presentation",
        "odp",
        Opaque,
    ),
    ("application/vnd.android.package-archive", "apk", Opaque),
    ("application/vnd.debian.binary-package", "deb", Opaque),
    ("application/vnd.apple.mpegurl", "m3u8", Compressible),
    ("application/dash+xml", "mpd", Compressible),
    ("image/svg+xml", "svg", Compressible),
    ("image/vnd.microsoft.icon", "ico", Compressible),
    ("image/bmp", "bmp", Compressible),
    ("image/png", "png", Opaque),
    ("image/apng", "apng", Opaque),
    ("image/jpeg", "jpg jpeg", Opaque),
    ("image/gif", "gif", Opaque),
    ("image/webp", "webp", Opaque),
    ("image/avif", "avif", Opaque),
    ("image/heic", "heic", Opaque),
    ("image/jxl", "jxl", Opaque),
    ("image/tiff", "tif tiff", Opaque),
    ("font/ttf", "ttf", Compressible),
    ("font/otf", "otf", Compressible),
    ("font/collection", "ttc", Compressible),
    ("font/woff", "woff", Opaque),
    ("font/woff2", "woff2", Opaque),
    ("application/vnd.ms-fontobject", "eot", Compressible),
    ("audio/mpeg", "mp3", Opaque),
    ("audio/mp4", "m4a", Opaque),
    ("audio/aac", "aac", Opaque),
    ("audio/flac", "flac", Opaque),
    ("audio/ogg", "ogg oga opus", Opaque),
    ("audio/vnd.wave", "wav", Opaque),
    ("audio/webm", "weba", Opaque),
    ("audio/midi", "mid midi", Opaque),
    ("video/mp4", "mp4 m4v", Opaque),
    ("video/webm", "webm", Opaque),
    ("video/ogg", "ogv", Opaque),
    ("video/mpeg", "mpg mpeg", Opaque),
    ("video/mp2t", "ts", Opaque),
    ("video/quicktime", "mov", Opaque),
    ("video/matroska", "mkv", Opaque),
    ("model/gltf+json", "gltf", Compressible),
    ("model/gltf-binary", "glb", Opaque),
    ("model/obj", "obj", Compressible),
];

/// The `types` block.
pub(super) fn block() -> String {
    let mut text = String::from("    types {\n");
    for (name, extensions, _) in TYPES {
        let _ = writeln!(text, "        {name} {extensions};");
    }
    text.push_str("    }\n");
    text
}

/// The arguments of `charset_types`. `text/html` is always included.
pub(super) fn with_charset() -> String {
    names(|kind| kind == Text)
}

/// The arguments of `gzip_types` and similar directives. `text/html` is always included.
pub(super) fn worth_compressing() -> String {
    names(|kind| kind != Opaque)
}

fn names(wanted: impl Fn(Kind) -> bool) -> String {
    let wanted = TYPES
        .iter()
        .filter(|(name, _, kind)| wanted(*kind) && *name != "text/html");
    let names: Vec<&str> = wanted.map(|(name, ..)| *name).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_extension_has_one_type() {
        let mut seen = HashSet::new();
        for (_, extensions, _) in TYPES {
            for extension in extensions.split(' ') {
                assert!(seen.insert(extension), "{extension}");
            }
        }
    }

    /// The `mime.types` of the package.
    #[test]
    fn a_package_has_the_same_types() {
        let packaged = include_str!("../../packaging/mime.types");
        let of_package = packaged
            .lines()
            .filter_map(|line| line.trim().strip_suffix(';'));
        let ours = TYPES
            .iter()
            .map(|(name, extensions, _)| format!("{name} {extensions}"));
        assert!(of_package.eq(ours));
    }
}
