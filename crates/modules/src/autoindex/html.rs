//! Directory listings as an HTML page with columns of names, times and sizes, equal to nginx's byte
//! for byte.

use std::io::Write;

use proto::date;
use proto::uri::{self, Escape};

use super::Entry;

/// The width of the column of names, in characters.
const NAME_WIDTH: usize = 50;

/// The form of a listing's columns.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Names are counted in UTF-8 characters, not in bytes.
    pub utf8: bool,
    /// The offset from UTC in which times are shown, in seconds.
    pub offset: i64,
    /// Sizes are in bytes, not rounded.
    pub exact_size: bool,
}

/// The page of a directory.
pub(super) fn render(uri: &[u8], entries: &[Entry], columns: Columns) -> Vec<u8> {
    let mut page = Vec::with_capacity(512 + entries.len() * 160);
    page.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    uri::write_html(uri, &mut page);
    page.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    uri::write_html(uri, &mut page);
    page.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        render_entry(entry, columns, &mut page);
    }
    page.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
    page
}

fn render_entry(entry: &Entry, columns: Columns, page: &mut Vec<u8>) {
    page.extend_from_slice(b"<a href=\"");
    uri::escape(&entry.name, Escape::Component, page);
    if entry.is_directory() {
        page.push(b'/');
    }
    page.extend_from_slice(b"\">");

    // A name that is not UTF-8 is counted in bytes.
    let text = if columns.utf8 {
        std::str::from_utf8(&entry.name).ok()
    } else {
        None
    };
    let mut width = text.map_or(entry.name.len(), |text| text.chars().count());
    if width > NAME_WIDTH {
        let shown = NAME_WIDTH - 3;
        let end = match text {
            Some(text) => text
                .char_indices()
                .nth(shown)
                .map_or(text.len(), |(at, _)| at),
            None => shown,
        };
        uri::write_html(entry.name.get(..end).unwrap_or_default(), page);
        page.extend_from_slice(b"..&gt;</a>");
    } else {
        uri::write_html(&entry.name, page);
        if entry.is_directory() && width < NAME_WIDTH {
            page.push(b'/');
            width += 1;
        }
        page.extend_from_slice(b"</a>");
        page.resize(page.len() + NAME_WIDTH - width, b' ');
    }

    let mut time = [0; date::HTTP_LENGTH];
    date::format_http(entry.modified.saturating_add(columns.offset), &mut time);
    // The parts of `Sun, 06 Nov 1994 08:49:37 GMT`.
    let [
        _,
        _,
        _,
        _,
        _,
        d1,
        d2,
        _,
        m1,
        m2,
        m3,
        _,
        y1,
        y2,
        y3,
        y4,
        _,
        h1,
        h2,
        _,
        n1,
        n2,
        ..,
    ] = time;
    page.extend_from_slice(&[
        b' ', d1, d2, b'-', m1, m2, m3, b'-', y1, y2, y3, y4, b' ', h1, h2, b':', n1, n2, b' ',
    ]);
    write_size(entry, columns.exact_size, page);
    page.extend_from_slice(b"\r\n");
}

fn write_size(entry: &Entry, exact: bool, page: &mut Vec<u8>) {
    const KILO: u64 = 1024;
    const MEGA: u64 = KILO * 1024;
    const GIGA: u64 = MEGA * 1024;
    let size = entry.size;
    let rounded = |unit: u64| size / unit + u64::from(size % unit >= unit / 2);
    // Writing to a vector does not fail.
    let _ = match (exact, entry.is_directory()) {
        (true, true) => write!(page, "{:>19}", '-'),
        (true, false) => write!(page, "{size:>19}"),
        (false, true) => write!(page, "{:>7}", '-'),
        (false, false) if size >= GIGA => write!(page, "{:>6}G", rounded(GIGA)),
        (false, false) if size >= MEGA => write!(page, "{:>6}M", rounded(MEGA)),
        (false, false) if size > 9999 => write!(page, "{:>6}K", rounded(KILO)),
        (false, false) => write!(page, "{size:>7}"),
    };
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn entry(name: &str, is_directory: bool, size: u64) -> Entry {
        Entry {
            name: name.as_bytes().to_vec(),
            kind: if is_directory {
                Kind::Directory
            } else {
                Kind::File
            },
            modified: 784_111_777,
            size,
        }
    }

    fn line(entry: &Entry, columns: Columns) -> String {
        let mut page = Vec::new();
        render_entry(entry, columns, &mut page);
        String::from_utf8(page).unwrap()
    }

    const PLAIN: Columns = Columns {
        utf8: false,
        offset: 0,
        exact_size: true,
    };

    #[test]
    fn the_frame_of_the_page() {
        let page = String::from_utf8(render(b"/<d>&/", &[], PLAIN)).unwrap();
        assert_eq!(
            page,
            "<html>\r\n<head><title>Index of /&lt;d&gt;&amp;/</title></head>\r\n<body>\r\n\
             <h1>Index of /&lt;d&gt;&amp;/</h1><hr><pre><a href=\"../\">../</a>\r\n\
             </pre><hr></body>\r\n</html>\r\n"
        );
    }

    #[test]
    fn columns() {
        assert_eq!(
            line(&entry("a b.txt", false, 12), PLAIN),
            format!(
                "<a href=\"a%20b.txt\">a b.txt</a>{}06-Nov-1994 08:49 {:>19}\r\n",
                " ".repeat(44),
                12
            )
        );
        assert_eq!(
            line(&entry("dir", true, 4096), PLAIN),
            format!(
                "<a href=\"dir/\">dir/</a>{}06-Nov-1994 08:49 {:>19}\r\n",
                " ".repeat(47),
                "-"
            )
        );
    }

    #[test]
    fn long_names_are_shortened() {
        let fits = "x".repeat(50);
        assert!(line(&entry(&fits, true, 0), PLAIN).contains(&format!(">{fits}</a> 06-Nov")));
        let long = "y".repeat(51);
        assert!(
            line(&entry(&long, true, 0), PLAIN)
                .contains(&format!("/\">{}..&gt;</a> 06-Nov", &long[..47]))
        );
    }

    #[test]
    fn characters_count_where_the_page_is_utf_8() {
        let name = "ф".repeat(50);
        let utf8 = Columns {
            utf8: true,
            ..PLAIN
        };
        assert!(line(&entry(&name, false, 0), utf8).contains(&format!(">{name}</a> 06-Nov")));
        assert!(
            line(&entry(&"ф".repeat(51), false, 0), utf8)
                .contains(&format!(">{}..&gt;</a>", "ф".repeat(47)))
        );
        assert!(
            line(&entry(&"ф".repeat(10), false, 0), utf8)
                .contains(&format!("</a>{}06-Nov", " ".repeat(41)))
        );
        assert!(
            line(&entry(&"ф".repeat(10), false, 0), PLAIN)
                .contains(&format!("</a>{}06-Nov", " ".repeat(31)))
        );
    }

    #[test]
    fn sizes_rounded_as_nginx_does() {
        let about = Columns {
            exact_size: false,
            ..PLAIN
        };
        for (size, expected) in [
            (0, "      0"),
            (9999, "   9999"),
            (10_000, "    10K"),
            (10_752, "    11K"),
            (1_048_575, "  1024K"),
            (1_048_576, "     1M"),
            (1_572_864, "     2M"),
            (1_073_741_823, "  1024M"),
            (1_073_741_824, "     1G"),
        ] {
            let text = line(&entry("a", false, size), about);
            assert!(text.ends_with(&format!("08:49 {expected}\r\n")), "{text}");
        }
        assert!(line(&entry("a", true, 0), about).ends_with("08:49       -\r\n"));
    }

    #[test]
    fn times_of_the_servers_zone() {
        let east = Columns {
            offset: 2 * 3600,
            ..PLAIN
        };
        assert!(line(&entry("a", false, 0), east).contains("06-Nov-1994 10:49"));
    }
}
