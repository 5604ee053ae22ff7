//! Directory listings in formats for programs: JSON, JSONP, XML. As in nginx, XML assumes that
//! names are UTF-8.

use std::io::Write;

use base::json;
use jiff::Timestamp;
use proto::date;
use proto::uri;

use super::{Entry, Kind};

/// Writes the entries as an array of objects, which is the argument of `callback` if there is one.
pub(super) fn json(entries: &[Entry], callback: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + entries.len() * 128);
    if let Some(callback) = callback {
        out.extend_from_slice(b"/* callback */\r\n");
        out.extend_from_slice(callback);
        out.push(b'(');
    }
    out.push(b'[');
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"\r\n{ \"name\":\"");
        json::escape(&entry.name, &mut out);
        out.extend_from_slice(b"\", \"type\":\"");
        out.extend_from_slice(kind(entry));
        out.extend_from_slice(b"\", \"mtime\":\"");
        let mut time = [0; date::HTTP_LENGTH];
        date::format_http(entry.modified, &mut time);
        out.extend_from_slice(&time);
        out.push(b'"');
        if entry.kind == Kind::File {
            // Writing to a vector does not fail.
            let _ = write!(out, ", \"size\":{}", entry.size);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
    if callback.is_some() {
        out.extend_from_slice(b");");
    }
    out
}

/// Writes the entries as a list with an element for each.
pub(super) fn xml(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + entries.len() * 128);
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for entry in entries {
        out.push(b'<');
        out.extend_from_slice(kind(entry));
        let modified = Timestamp::from_second(entry.modified).unwrap_or_default();
        // Writing to a vector does not fail.
        let _ = write!(out, " mtime=\"{modified}\"");
        if entry.kind == Kind::File {
            let _ = write!(out, " size=\"{}\"", entry.size);
        }
        out.push(b'>');
        uri::write_html(&entry.name, &mut out);
        out.extend_from_slice(b"</");
        out.extend_from_slice(kind(entry));
        out.extend_from_slice(b">\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
    out
}

fn kind(entry: &Entry) -> &'static [u8] {
    match entry.kind {
        Kind::Directory => b"directory",
        Kind::File => b"file",
        Kind::Other => b"other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |name: &str, kind| Entry {
            name: name.into(),
            kind,
            modified: 784_111_777,
            size: 12,
        };
        vec![
            entry("d<", Kind::Directory),
            entry("f\"\n", Kind::File),
            entry("s", Kind::Other),
        ]
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    /// As nginx 1.31 lists such a directory.
    #[test]
    fn listings() {
        let time = "Sun, 06 Nov 1994 08:49:37 GMT";
        let list = format!(
            "[\r\n{{ \"name\":\"d<\", \"type\":\"directory\", \"mtime\":\"{time}\" }},\
             \r\n{{ \"name\":\"f\\\"\\n\", \"type\":\"file\", \"mtime\":\"{time}\", \"size\":12 }},\
             \r\n{{ \"name\":\"s\", \"type\":\"other\", \"mtime\":\"{time}\" }}\r\n]"
        );
        assert_eq!(text(json(&entries(), None)), list);
        let call = format!("/* callback */\r\na.b({list});");
        assert_eq!(text(json(&entries(), Some(b"a.b"))), call);
        let time = "1994-11-06T08:49:37Z";
        let list = format!(
            "<?xml version=\"1.0\"?>\r\n<list>\r\n\
             <directory mtime=\"{time}\">d&lt;</directory>\r\n\
             <file mtime=\"{time}\" size=\"12\">f&quot;\n</file>\r\n\
             <other mtime=\"{time}\">s</other>\r\n</list>\r\n"
        );
        assert_eq!(text(xml(&entries())), list);
    }

    #[test]
    fn nothing_to_list() {
        assert_eq!(text(json(&[], None)), "[\r\n]");
        assert_eq!(
            text(xml(&[])),
            "<?xml version=\"1.0\"?>\r\n<list>\r\n</list>\r\n"
        );
    }
}
