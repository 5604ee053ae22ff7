//! `tidegate accelerate URL`: a cache in front of any server, which need not be changed; and
//! `tidegate serve --proxy URL`, the same without a cache. Described in docs/accelerate.md.
//!
//! As with `serve`, the arguments become the text of a configuration ([`configuration`]), which is
//! compiled like any other.

mod configuration;
mod memory;
mod origin;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use process::Options;

use crate::private_folder::PrivateFolder;
use crate::serve::place::{self, Place};
use crate::serve::words::text;
use crate::serve::{self, Prepared, addresses};
use configuration::{Cache, Front};
use origin::{ExposedPages, Origin};

/// The files in which systems keep trusted authorities.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora and its family
    "/etc/ssl/ca-bundle.pem",             // SUSE
    "/etc/ssl/cert.pem",
];

/// Put a cache in front of a server, with nothing to change there
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server behind: http://HOST:PORT, HOST:PORT, a PORT of this machine, https://HOST or
    /// unix:PATH
    url: String,
    #[command(flatten)]
    place: Place,
    /// How much memory answers may take, as in 512m or 2g; without it a quarter of what this
    /// machine, or its container, has, from 16m to 4g
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// How long answers are kept that say nothing of it, as in 5m; without it those that can be
    /// checked, for a second
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Keep answers that say nothing of it for a share of the time since they were changed, as in
    /// 10%, for a day at most
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "10%")]
    heuristic: Option<String>,
    /// A cookie that says nothing of who asks, as those of statistics: requests with it share
    /// answers. NAME* is all that begin so; may be repeated
    #[arg(long, value_name = "NAME")]
    ignore_cookie: Vec<String>,
    /// The folder of this machine that the server behind serves: a look at the file says whether an
    /// answer is still right, and one that has changed shows at once
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// After how long the server behind is asked all the same, whose rules may have changed
    #[arg(long, value_name = "TIME", requires = "files", default_value = "10s")]
    files_recheck: String,
    /// The socket to purge by; without it one in a folder of this run, which is printed
    #[arg(long, value_name = "PATH")]
    purge_socket: Option<PathBuf>,
    /// Networks that may purge over TCP, as in 10.0.0.0/8; may be repeated
    #[arg(long, value_name = "NETWORK")]
    purge_from: Vec<String>,
    /// Tell the server behind who the client is by a header of the PROXY protocol, v2 without
    /// VERSION; it must be set up for that
    #[arg(
        long,
        value_name = "VERSION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "v2",
        value_parser = ["v1", "v2"]
    )]
    proxy_protocol: Option<String>,
}

/// Serves until the process is told to end.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match accelerate(arguments) {
        Ok(Some(prepared)) => prepared.serve(),
        Ok(None) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

/// The options of a proxy, in addition to those of [`Place`].
#[derive(Default)]
struct AcceleratorOptions {
    /// The cache; `None` for `serve --proxy`.
    cache: Option<Cache>,
    proxy_protocol: Option<&'static str>,
    purge_socket: Option<PathBuf>,
}

/// Checks the options of `accelerate` and prepares the server.
fn accelerate(arguments: &Arguments) -> Result<Option<Prepared>, String> {
    let asked = arguments.memory.as_deref().map(memory::asked).transpose()?;
    let ttl = arguments.ttl.as_ref();
    if let Some(ttl) = ttl {
        check_time("--ttl", ttl)?;
    }
    if let Some(heuristic) = &arguments.heuristic {
        let percent = heuristic
            .strip_suffix('%')
            .and_then(|it| it.parse::<u32>().ok());
        if !percent.is_some_and(|percent| (1..=100).contains(&percent)) {
            return Err(format!(
                "--heuristic={heuristic}: a share is as in 10%, up to 100%"
            ));
        }
    }
    check_time("--files-recheck", &arguments.files_recheck)?;
    let files = arguments.files.as_deref().map(serve::folder).transpose()?;
    let files = files.as_deref().map(text).transpose()?;
    for name in &arguments.ignore_cookie {
        let name = name.strip_suffix('*').unwrap_or(name);
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"=;,\"*\\$".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err(format!(
                "--ignore-cookie {name}: this is no name of a cookie"
            ));
        }
    }
    for network in &arguments.purge_from {
        if !is_network(network) {
            return Err(format!(
                "--purge-from {network}: a network is an address, or as in 10.0.0.0/8"
            ));
        }
    }
    let cache = Cache {
        size: asked.unwrap_or_else(memory::default),
        ttl: ttl.cloned(),
        heuristic: arguments.heuristic.clone(),
        ignored_cookies: arguments.ignore_cookie.clone(),
        purge_socket: None,
        purge_from: arguments.purge_from.clone(),
        files: files.map(|folder| (folder, arguments.files_recheck.clone())),
    };
    let proxy_protocol = arguments.proxy_protocol.as_deref();
    let wanted = AcceleratorOptions {
        cache: Some(cache),
        proxy_protocol: proxy_protocol.map(|version| if version == "v1" { "v1" } else { "v2" }),
        purge_socket: arguments.purge_socket.clone(),
    };
    prepare(&arguments.place, &arguments.url, wanted)
}

/// Checks that the argument of an option is a time of at least one second, in the notation of
/// configurations.
fn check_time(option: &str, text: &str) -> Result<(), String> {
    match conf::parse::time_seconds(text.as_bytes()) {
        Some(1..) => Ok(()),
        _ => Err(format!(
            "{option} {text}: a time is a number with s, m, h or d behind it, as in 5m"
        )),
    }
}

/// Prepares the server of `serve --proxy`.
pub(crate) fn pass_on(place: &Place, url: &str) -> Result<Option<Prepared>, String> {
    prepare(place, url, AcceleratorOptions::default())
}

/// Prepares the server; `None` if the configuration was only to be printed.
fn prepare(
    place: &Place,
    url: &str,
    mut wanted: AcceleratorOptions,
) -> Result<Option<Prepared>, String> {
    let origin = Origin::parse(url)?;
    let (listen, plain) = place.listen();
    let chosen = addresses::choose(&listen)?;
    let plain = if plain.is_empty() {
        Vec::new()
    } else {
        addresses::choose(&plain)?.addresses
    };
    if origin.is_one_of(&chosen.addresses) || origin.is_one_of(&plain) {
        return Err(format!(
            "{origin} is where this would listen: it would ask itself"
        ));
    }
    let authorities = authorities(&origin)?;
    let user = place::worker_user(place.user.clone())?;
    let folder = PrivateFolder::roomy("accelerate").map_err(|(path, error)| {
        process::log::failure(&format!("mkdir() \"{}\" failed", path.display()), &error)
    })?;
    let mut texts = BTreeMap::new();
    let mut announcement = String::new();
    announcement.extend(chosen.note.map(|note| format!("{note}\n")));
    let secure = place.secure(
        &chosen.addresses,
        folder.path(),
        &mut texts,
        &mut announcement,
    )?;
    let is_cached = wanted.cache.is_some();
    let refused = refused(&origin, wanted.proxy_protocol, is_cached, &mut announcement);
    if let Some(cache) = &mut wanted.cache {
        let socket = match wanted.purge_socket {
            Some(path) => Some(absolute(&path)?),
            None if place.print_configuration => None,
            None => Some(own_folder(&folder)?.join("socket")),
        };
        cache.purge_socket = socket.as_deref().map(text).transpose()?;
    }
    let open = place.exposure_warning(&chosen.addresses, "ask the server behind");
    announcement.push_str(&open);
    let verb = if is_cached {
        "Accelerating"
    } else {
        "Passing requests on to"
    };
    announcement.push_str(&format!("{verb} {origin} at\n"));
    for url in place::urls(&chosen.addresses, secure.as_ref()) {
        announcement.push_str(&format!("  {url}\n"));
    }
    announcement.push_str(&about_cache(wanted.cache.as_ref()));
    announcement.push_str("Ctrl-C ends it.\n");
    let front = Front {
        origin,
        authorities,
        listen: chosen.addresses,
        plain,
        secure,
        folder: if place.print_configuration {
            None
        } else {
            Some(text(folder.path())?)
        },
        output: serve::output(),
        access_log: serve::access_log(),
        user: user.map(|user| user.line),
        proxy_protocol: wanted.proxy_protocol,
        refused,
        cache: wanted.cache,
    };
    let text = front.configuration();
    if place.print_configuration {
        print!("{text}");
        return Ok(None);
    }
    Ok(Some(Prepared {
        options: Options {
            conf_path: folder.path().join("accelerate.conf"),
            prefix: folder.path().to_owned(),
            ..serve::in_foreground()
        },
        text,
        texts,
        announcement,
        pool: None,
        folder,
    }))
}

/// The message about the cache.
fn about_cache(cache: Option<&Cache>) -> String {
    let Some(cache) = cache else {
        return String::new();
    };
    let mut text = format!(
        "Up to {} of answers are kept in memory.\n",
        memory::shown(cache.size)
    );
    if let Some(socket) = &cache.purge_socket {
        text.push_str(&format!(
            "To have one go: curl -X PURGE --unix-socket {socket} http://HOST/PATH\n"
        ));
    }
    text
}

/// The pages of the origin that clients are refused, because the origin shows them to this machine.
fn refused(
    origin: &Origin,
    proxy_protocol: Option<&str>,
    is_cached: bool,
    notes: &mut String,
) -> Vec<&'static str> {
    // The PROXY protocol tells the origin who the client is.
    if proxy_protocol.is_some() {
        return Vec::new();
    }
    match origin.shown() {
        ExposedPages::Pages(pages) => {
            for page in &pages {
                notes.push_str(&format!(
                    "Warning: the server behind shows {page} to this machine, from which all requests come to it now; it is \
                     refused here.\n"
                ));
            }
            pages
        }
        // If the pages are not known, all are refused, which costs nothing if they do not exist.
        ExposedPages::Unknown(reason) => {
            let command = if is_cached {
                "accelerate"
            } else {
                "serve --proxy"
            };
            notes.push_str(&format!(
                "Warning: {origin} could not be asked what it shows to this machine alone ({reason}); /server-status and \
                 /server-info are refused until tidegate {command} is started again.\n"
            ));
            origin::PAGES.to_vec()
        }
    }
}

/// The authorities by which the origin is verified, if the origin uses TLS.
fn authorities(origin: &Origin) -> Result<Option<String>, String> {
    if !origin.is_secure {
        return Ok(None);
    }
    let known = AUTHORITIES.iter().find(|path| Path::new(path).is_file());
    let path = known.ok_or_else(|| {
        format!(
            "{origin} cannot be trusted: this system has no list of authorities (ca-certificates)"
        )
    })?;
    Ok(Some((*path).to_owned()))
}

/// Creates a folder in the private folder that only this user can enter, for the socket, which any
/// user may connect to.
fn own_folder(folder: &PrivateFolder) -> Result<PathBuf, String> {
    use std::os::unix::fs::DirBuilderExt;
    let path = folder.path().join("purge");
    let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
    made.map_err(|error| {
        process::log::failure(&format!("mkdir() \"{}\" failed", path.display()), &error)
    })?;
    Ok(path)
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be used", path.display()), &error)
    })
}

/// Whether the text is an IP address, possibly with a prefix length.
fn is_network(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    let bits = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_told_from_other_words() {
        for text in ["10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"] {
            assert!(is_network(text), "{text}");
        }
        for text in [
            "all",
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "a; b",
            "::/129",
            "10.0.0.0/",
        ] {
            assert!(!is_network(text), "{text}");
        }
    }
}
