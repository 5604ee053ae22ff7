//! Writes JSON (RFC 8259): escapes text for strings, and writes values with a [`Writer`]. This
//! module does not parse JSON.

use std::fmt::Display;

/// Whether a byte may need an escape. A byte beyond ASCII needs one only outside valid UTF-8, which
/// depends on its neighbours. Branchless, so that a loop over bytes is fast.
#[inline]
pub fn may_need_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\') | (byte >= 0x80)
}

/// Appends a byte, escaped where JSON requires an escape, in nginx's forms (`\u001B`, upper case).
fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        0..0x20 => escape_by_number(byte, out),
        _ => out.push(byte),
    }
}

fn escape_by_number(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: [u8; 16] = *b"0123456789ABCDEF";
    let digit = |number: u8| DIGITS[usize::from(number & 15)]; // invariant: there are sixteen
    out.extend_from_slice(b"\\u00");
    out.extend_from_slice(&[digit(byte >> 4), digit(byte)]);
}

/// Appends `text`, escaped for use inside a JSON string. JSON is UTF-8 (RFC 8259, section 8.1), so
/// bytes that are not valid UTF-8 are escaped by their number.
pub fn escape(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        let characters = chunk.valid().bytes();
        characters.for_each(|byte| escape_byte(byte, out));
        let others = chunk.invalid().iter();
        others.for_each(|byte| escape_by_number(*byte, out));
    }
}

/// Writes values one after another, with commas between them. The caller must write keys inside
/// objects only, and one value after each key.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Whether a value precedes the next one in the same object or array, so that a comma is
    /// needed.
    follows: bool,
}

impl Writer {
    /// Writes an object whose members `members` writes.
    pub fn object(&mut self, members: impl FnOnce(&mut Writer)) {
        self.block(b'{', b'}', members);
    }

    /// Writes an array whose items `items` writes.
    pub fn array(&mut self, items: impl FnOnce(&mut Writer)) {
        self.block(b'[', b']', items);
    }

    /// Writes the key of the member whose value is written next.
    pub fn key(&mut self, key: &str) -> &mut Writer {
        self.string(key);
        self.bytes.push(b':');
        self.follows = false;
        self
    }

    /// Writes a string, escaped and in quotes.
    pub fn string(&mut self, text: &str) {
        self.begin();
        self.bytes.push(b'"');
        escape(text.as_bytes(), &mut self.bytes);
        self.bytes.push(b'"');
    }

    /// Writes a finite number, as `Display` formats it.
    pub fn number(&mut self, number: impl Display) {
        self.begin();
        self.bytes.extend_from_slice(number.to_string().as_bytes());
    }

    /// Writes the word `true` or `false`.
    pub fn boolean(&mut self, value: bool) {
        self.number(value);
    }

    /// Writes the word `null` as a value.
    pub fn null(&mut self) {
        self.number("null");
    }

    /// The JSON text that has been written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn block(&mut self, open: u8, close: u8, inside: impl FnOnce(&mut Writer)) {
        self.begin();
        self.bytes.push(open);
        self.follows = false;
        inside(self);
        self.bytes.push(close);
        self.follows = true;
    }

    fn begin(&mut self) {
        if self.follows {
            self.bytes.push(b',');
        }
        self.follows = true;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_no_character_is_escaped() {
        let escaped = |text: &[u8]| {
            let mut out = Vec::new();
            super::escape(text, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            escaped("\u{e4}\u{20ac}\u{1f600}\"".as_bytes()),
            "\u{e4}\u{20ac}\u{1f600}\\\""
        );
        assert_eq!(
            escaped(b"\xff\xe4b\xc3\xa4\xe2\x82"),
            "\\u00FF\\u00E4b\u{e4}\\u00E2\\u0082"
        );
        assert_eq!(
            escaped(b"\xed\xa0\x80"),
            "\\u00ED\\u00A0\\u0080",
            "a surrogate"
        );
    }

    #[test]
    fn values_are_parted() {
        let mut json = super::Writer::default();
        json.object(|json| {
            json.key("a").number(1.5);
            json.key("b\"").array(|json| {
                json.string("x\n");
                json.object(|_| {});
                json.null();
            });
            json.key("c").boolean(true);
        });
        let text = String::from_utf8(json.into_bytes()).unwrap();
        assert_eq!(text, r#"{"a":1.5,"b\"":["x\n",{},null],"c":true}"#);
    }

    /// Expected text: the output of nginx's `ngx_escape_json`.
    #[test]
    fn escapes() {
        let mut out = Vec::new();
        super::escape(b"a\"\\/\n\r\t\x08\x0c\x00\x1b\x7f\xff", &mut out);
        assert_eq!(out, b"a\\\"\\\\/\\n\\r\\t\\b\\f\\u0000\\u001B\x7f\\u00FF");
    }
}
