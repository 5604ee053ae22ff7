//! How untrusted bytes and system errors are displayed in error logs and to people.

use std::fmt::{self, Display, Formatter, Write};
use std::io;
use std::sync::OnceLock;

/// Converts bytes to text for people. Control characters are escaped, since they could steer a
/// terminal: a URL may have been decoded to them.
pub fn for_people(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        if character.is_control() {
            shown.extend(character.escape_default())
        } else {
            shown.push(character)
        }
    }
    shown
}

/// Displays bytes that a peer or a file chose. Control characters and invalid UTF-8 are shown as
/// `\xHH`, so that no client can forge a log line (nginx writes them raw).
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a [u8]);

impl Display for Printable<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        // The common case needs no escape. The fold has no early exit, so that the compiler
        // vectorizes it.
        let escapes = |found, byte: &u8| found | byte.is_ascii_control();
        if let Ok(text) = std::str::from_utf8(self.0)
            && !self.0.iter().fold(false, escapes)
        {
            return out.write_str(text);
        }
        for chunk in self.0.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some(at) = rest.find(|c: char| c.is_ascii_control()) {
                let (plain, control) = rest.split_at(at);
                out.write_str(plain)?;
                write!(
                    out,
                    "\\x{:02x}",
                    control.as_bytes().first().copied().unwrap_or_default()
                )?;
                rest = control.get(1..).unwrap_or_default();
            }
            out.write_str(rest)?;
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A system error as nginx shows it: `(2: No such file or directory)`.
#[derive(Clone, Copy, Debug)]
pub struct Errno<'a>(pub &'a io::Error);

impl Display for Errno<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Some(number) = self.0.raw_os_error() else {
            return write!(out, "({})", self.0);
        };
        out.write_str("(")?;
        Display::fmt(&number, out)?;
        out.write_str(": ")?;
        out.write_str(error_text(number))?;
        out.write_str(")")
    }
}

/// The system's text for an error number. Cached, since a busy site logs the same few errors.
pub fn error_text(number: i32) -> &'static str {
    /// Linux's error numbers are below this.
    const NUMBERS: usize = 256;
    static TEXTS: [OnceLock<Box<str>>; NUMBERS] = [const { OnceLock::new() }; NUMBERS];
    let text = || {
        let text = io::Error::from_raw_os_error(number).to_string();
        let suffix = format!(" (os error {number})");
        text.strip_suffix(&suffix).unwrap_or(&text).into()
    };
    let slot = usize::try_from(number)
        .ok()
        .and_then(|number| TEXTS.get(number));
    slot.map_or("unknown error", |slot| slot.get_or_init(text))
}

/// Appends formatted text to a byte vector up to a maximum length; the excess is cut off.
pub struct Bounded<'a> {
    out: &'a mut Vec<u8>,
    length_max: usize,
}

impl<'a> Bounded<'a> {
    /// Limits the total length of `out` to `length_max` bytes.
    pub fn new(out: &'a mut Vec<u8>, length_max: usize) -> Bounded<'a> {
        Bounded { out, length_max }
    }

    /// All bytes of the vector, including those from before.
    pub fn written(&self) -> &[u8] {
        self.out
    }

    /// Truncates the vector to a total length of `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.out.truncate(length);
    }
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.length_max.saturating_sub(self.out.len());
        let text = text.as_bytes();
        self.out.extend_from_slice(text.get(..room).unwrap_or(text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_cannot_forge_lines() {
        let shown = |bytes: &[u8]| Printable(bytes).to_string();
        assert_eq!(shown(b"GET /a b\\c\"d HTTP/1.1"), "GET /a b\\c\"d HTTP/1.1");
        assert_eq!(shown("grüße €".as_bytes()), "grüße €");
        assert_eq!(
            shown(b"a\r\n2026/11/21 [error]\x7f"),
            "a\\x0d\\x0a2026/11/21 [error]\\x7f"
        );
        assert_eq!(shown(b"/\xff\xc3(\xe2\x82"), "/\\xff\\xc3(\\xe2\\x82");
        assert_eq!(shown(b""), "");
    }

    #[test]
    fn system_errors_as_nginx_prints_them() {
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(
            Errno(&missing).to_string(),
            "(2: No such file or directory)"
        );
        let ours = io::Error::new(io::ErrorKind::TimedOut, "too slow");
        assert_eq!(Errno(&ours).to_string(), "(too slow)");
    }

    #[test]
    fn a_bounded_line_ends_at_its_limit() {
        let mut out = b"12".to_vec();
        write!(Bounded::new(&mut out, 5), "{}{}", 34, 5678).unwrap();
        assert_eq!(out, b"12345");
    }
}
