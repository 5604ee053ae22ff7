//! `autoindex_format page`, which `serve --browse` uses: a styled HTML listing with directories
//! first, short sizes and times, and a light or dark theme as the reader's system has it.
//!
//! The page has no script: the headings of columns are links that sort on the server (`?sort=size`,
//! `?sort=-size`). Names are escaped as text and as link targets, so that no file name can become a
//! tag or a URL with another scheme.

use std::cmp::Ordering;
use std::io::Write;

use proto::date;
use proto::uri::{self, Escape};

use super::Entry;

/// The order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    column: Column,
    descending: bool,
}

/// A column by which the listing can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    Modified,
    Size,
}

impl Column {
    /// The columns in the order of the page, each with its name in queries and its heading.
    const ALL: [(Column, &'static str, &'static str); 3] = [
        (Column::Name, "name", "Name"),
        (Column::Size, "size", "Size"),
        (Column::Modified, "time", "Modified"),
    ];
}

impl Sort {
    /// The order in a request's arguments: `sort=name`, `sort=-time`. Any other value means by
    /// name.
    pub(super) fn asked_for(args: &[u8]) -> Sort {
        let wanted = uri::argument(args, b"sort").unwrap_or_default();
        let (descending, wanted) = match wanted.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, wanted),
        };
        let known = Column::ALL
            .iter()
            .find(|(_, name, _)| name.as_bytes() == wanted);
        Sort {
            column: known.map_or(Column::Name, |(column, ..)| *column),
            descending: descending && known.is_some(),
        }
    }

    /// Directories come first in every order.
    fn compare(self, a: &Entry, b: &Entry) -> Ordering {
        let order = match self.column {
            Column::Name => by_name(a, b),
            Column::Modified => a.modified.cmp(&b.modified),
            // The size of a directory has no meaning.
            Column::Size if a.is_directory() => Ordering::Equal,
            Column::Size => a.size.cmp(&b.size),
        };
        let order = if self.descending {
            order.reverse()
        } else {
            order
        };
        b.is_directory()
            .cmp(&a.is_directory())
            .then(order)
            .then_with(|| by_name(a, b))
    }
}

/// Ignores the case of letters, which only decides between otherwise equal names.
fn by_name(a: &Entry, b: &Entry) -> Ordering {
    let lower_a = a.name.iter().map(u8::to_ascii_lowercase);
    let lower_b = b.name.iter().map(u8::to_ascii_lowercase);
    lower_a.cmp(lower_b).then_with(|| a.name.cmp(&b.name))
}

/// The styles of the page.
const STYLE: &str = include_str!("page.css");

/// The page of a directory; `offset` is added to times, in seconds.
pub(super) fn render(uri: &[u8], mut entries: Vec<Entry>, sort: Sort, offset: i64) -> Vec<u8> {
    entries.sort_by(|a, b| sort.compare(a, b));
    let mut page = Vec::with_capacity(4096 + entries.len() * 256);
    page.extend_from_slice(
        b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
          <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
          <meta name=\"color-scheme\" content=\"light dark\">\n<title>",
    );
    write_text(uri, &mut page);
    page.extend_from_slice(b"</title>\n<style>\n");
    page.extend_from_slice(STYLE.as_bytes());
    page.extend_from_slice(b"</style>\n</head>\n<body>\n<main>\n<h1>");
    write_breadcrumbs(uri, &mut page);
    page.extend_from_slice(b"</h1>\n");
    write_count(&entries, &mut page);
    page.extend_from_slice(b"<table>\n<thead><tr>");
    for (column, name, heading) in Column::ALL {
        write_heading(column, name, heading, sort, &mut page);
    }
    page.extend_from_slice(b"</tr></thead>\n<tbody>\n");
    if uri != b"/" {
        page.extend_from_slice(
            b"<tr><td class=\"name up\"><a href=\"../\">..</a></td><td></td><td></td></tr>\n",
        );
    }
    for entry in &entries {
        write_entry(entry, offset, &mut page);
    }
    page.extend_from_slice(b"</tbody>\n</table>\n</main>\n</body>\n</html>\n");
    page
}

/// The path as links to its directories; the links are relative, since another server may be in
/// front of this one.
fn write_breadcrumbs(uri: &[u8], page: &mut Vec<u8>) {
    let path = uri.strip_suffix(b"/").unwrap_or(uri);
    let folders: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    for (index, folder) in folders.iter().enumerate() {
        let levels = folders.len() - 1 - index;
        let is_root = index == 0;
        if levels == 0 {
            page.extend_from_slice(b"<span>");
        } else {
            page.extend_from_slice(b"<a href=\"");
            page.extend_from_slice("../".repeat(levels).as_bytes());
            page.extend_from_slice(b"\">");
        }
        if is_root {
            page.extend_from_slice(b"Index")
        } else {
            write_text(folder, page)
        }
        page.extend_from_slice(if levels == 0 { b"</span>" } else { b"</a>" });
        if levels > 0 {
            page.extend_from_slice(b"<i>/</i>");
        }
    }
}

/// Writes the number of entries, such as `3 folders, 1 file`.
fn write_count(entries: &[Entry], page: &mut Vec<u8>) {
    let folders = entries.iter().filter(|entry| entry.is_directory()).count();
    let files = entries.len() - folders;
    let some = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    let text = match (folders, files) {
        (0, 0) => "Nothing is in this folder".to_owned(),
        (folders, 0) => some(folders, "folder"),
        (0, files) => some(files, "file"),
        (folders, files) => format!("{}, {}", some(folders, "folder"), some(files, "file")),
    };
    // Writing to a vector does not fail.
    let _ = writeln!(page, "<p>{text}</p>");
}

fn write_heading(column: Column, name: &str, heading: &str, sort: Sort, page: &mut Vec<u8>) {
    let is_sorted = sort.column == column;
    let (state, mark) = match (is_sorted, sort.descending) {
        (false, _) => ("none", ""),
        (true, false) => ("ascending", " \u{2191}"),
        (true, true) => ("descending", " \u{2193}"),
    };
    let sign = if is_sorted && !sort.descending {
        "-"
    } else {
        ""
    };
    // Writing to a vector does not fail.
    let _ = write!(
        page,
        "<th class=\"{name}\" scope=\"col\" aria-sort=\"{state}\"><a href=\"?sort={sign}{name}\">{heading}{mark}</a></th>"
    );
}

fn write_entry(entry: &Entry, offset: i64, page: &mut Vec<u8>) {
    let class: &[u8] = if entry.is_directory() {
        b"folder"
    } else {
        b"file"
    };
    page.extend_from_slice(b"<tr><td class=\"name ");
    page.extend_from_slice(class);
    // Without `./` a name with a colon could be taken for a scheme.
    page.extend_from_slice(b"\"><a href=\"./");
    uri::escape(&entry.name, Escape::Component, page);
    let end: &[u8] = if entry.is_directory() { b"/" } else { b"" };
    page.extend_from_slice(end);
    page.extend_from_slice(b"\">");
    write_text(&entry.name, page);
    page.extend_from_slice(end);
    page.extend_from_slice(b"</a></td><td class=\"size\">");
    if !entry.is_directory() {
        write_size(entry.size, page);
    }
    page.extend_from_slice(b"</td><td class=\"time\">");
    write_time(entry.modified.saturating_add(offset), page);
    page.extend_from_slice(b"</td></tr>\n");
}

/// A name or path as text. Invalid UTF-8 is replaced, so that the page is valid.
fn write_text(text: &[u8], page: &mut Vec<u8>) {
    uri::write_html(String::from_utf8_lossy(text).as_bytes(), page);
}

/// Writes a size such as `1.4 MB`, in units of powers of 1024, with one decimal below ten.
fn write_size(size: u64, page: &mut Vec<u8>) {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if size < 1024 {
        // Writing to a vector does not fail.
        let _ = write!(page, "{size} B");
        return;
    }
    // In tenths, rounded; as integers, which are exact.
    let mut tenths = u128::from(size) * 10;
    let mut unit = 0;
    tenths = (tenths + 512) / 1024;
    while tenths >= 10_235 && unit + 1 < UNITS.len() {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    // Writing to a vector does not fail.
    let _ = if tenths < 100 {
        write!(page, "{}.{} {name}", tenths / 10, tenths % 10)
    } else {
        write!(page, "{} {name}", (tenths + 5) / 10)
    };
}

fn write_time(seconds: i64, page: &mut Vec<u8>) {
    let mut time = [0; date::HTTP_LENGTH];
    date::format_http(seconds, &mut time);
    // The parts of `Sun, 06 Nov 1994 08:49:37 GMT`, which is ASCII.
    let text = std::str::from_utf8(&time).unwrap_or_default();
    let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = MONTHS.iter().position(|month| *month == part(8..11));
    let month = month.map_or(0, |index| index + 1);
    let (year, day, clock) = (part(12..16), part(5..7), part(17..22));
    // Writing to a vector does not fail.
    let _ = write!(
        page,
        "<time datetime=\"{year}-{month:02}-{day}T{clock}\">{year}-{month:02}-{day} {clock}</time>"
    );
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn entry(name: &[u8], kind: Kind, size: u64, modified: i64) -> Entry {
        Entry {
            name: name.to_vec(),
            kind,
            modified,
            size,
        }
    }

    fn names(args: &[u8]) -> Vec<String> {
        let mut entries = [
            entry(b"b.txt", Kind::File, 10, 3),
            entry(b"A.txt", Kind::File, 30, 1),
            entry(b"zoo", Kind::Directory, 4096, 2),
            entry(b"c.txt", Kind::File, 20, 2),
            entry(b"art", Kind::Directory, 1, 9),
        ];
        let sort = Sort::asked_for(args);
        entries.sort_by(|a, b| sort.compare(a, b));
        let name = |entry: &Entry| String::from_utf8_lossy(&entry.name).into_owned();
        entries.iter().map(name).collect()
    }

    #[test]
    fn folders_come_first_in_every_order() {
        assert_eq!(names(b""), ["art", "zoo", "A.txt", "b.txt", "c.txt"]);
        assert_eq!(
            names(b"sort=-name"),
            ["zoo", "art", "c.txt", "b.txt", "A.txt"]
        );
        assert_eq!(
            names(b"sort=size"),
            ["art", "zoo", "b.txt", "c.txt", "A.txt"]
        );
        assert_eq!(
            names(b"x=1&sort=-size"),
            ["art", "zoo", "A.txt", "c.txt", "b.txt"]
        );
        assert_eq!(
            names(b"sort=time"),
            ["zoo", "art", "A.txt", "c.txt", "b.txt"]
        );
        assert_eq!(names(b"sort=-nonsense"), names(b""));
    }

    #[test]
    fn sizes_are_quickly_read() {
        let shown = |size| {
            let mut page = Vec::new();
            write_size(size, &mut page);
            String::from_utf8(page).unwrap()
        };
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.0 kB");
        assert_eq!(shown(1536), "1.5 kB");
        assert_eq!(shown(10 << 10), "10 kB");
        assert_eq!(shown((1 << 20) - 1), "1.0 MB");
        assert_eq!(shown(5 << 30), "5.0 GB");
        assert_eq!(shown(u64::MAX), "16 EB");
    }

    #[test]
    fn names_are_text_whatever_they_are() {
        let odd: [&[u8]; 6] = [
            b"<script>alert(1)</script>",
            b"\"onmouseover=\"alert(1)",
            b"javascript:alert(1)",
            b"a&b?c#d%e",
            b"\xff\xfe",
            b"  blanks ",
        ];
        let entries = odd.map(|name| entry(name, Kind::File, 1, 0)).into();
        let page = render(b"/<d>&/\xff/", entries, Sort::asked_for(b""), 0);
        let page = String::from_utf8(page).expect("the page is UTF-8");
        assert!(!page.contains("<script") && !page.contains("<d>"), "{page}");
        let links = page.split("href=\"").skip(1);
        for link in links.filter_map(|rest| rest.split('"').next()) {
            let is_relative = ["./", "../", "?sort="]
                .iter()
                .any(|start| link.starts_with(start));
            assert!(is_relative, "{link}");
            assert!(!link.contains(['<', '>', ' ', ':', '#']), "{link}");
        }
        assert!(page.contains("./a%26b%3Fc%23d%25e\""), "{page}");
        assert!(page.contains("./%FF%FE\""), "{page}");
    }

    #[test]
    fn the_way_up_is_relative() {
        let mut page = Vec::new();
        write_breadcrumbs(b"/a b/c/", &mut page);
        assert_eq!(
            String::from_utf8(page).unwrap(),
            "<a href=\"../../\">Index</a><i>/</i><a href=\"../\">a b</a><i>/</i><span>c</span>"
        );
        let page = render(b"/", Vec::new(), Sort::asked_for(b""), 0);
        let page = String::from_utf8(page).unwrap();
        assert!(!page.contains("../") && page.contains("Nothing is in this folder"));
    }
}
