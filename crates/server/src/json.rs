//! Text inside the strings of JSON (RFC 8259, section 7). No more of JSON is needed here.

/// Whether a byte cannot stand as it is. Without branches, so that a loop over bytes is fast.
#[inline]
pub fn needs_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Appends a byte, escaped if it must be, with the letters and digits that nginx uses.
pub fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        0..0x20 => {
            let low = match byte & 15 {
                low @ 0..10 => b'0' + low,
                low => b'A' + low - 10,
            };
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[b'0' + (byte >> 4), low]);
        }
        _ => out.push(byte),
    }
}

/// Appends a text.
pub fn escape(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        escape_byte(*byte, out);
    }
}

#[cfg(test)]
mod tests {
    /// By `ngx_escape_json`.
    #[test]
    fn escapes() {
        let mut out = Vec::new();
        super::escape(b"a\"\\/\n\r\t\x08\x0c\x00\x1b\x7f\xff", &mut out);
        assert_eq!(out, b"a\\\"\\\\/\\n\\r\\t\\b\\f\\u0000\\u001B\x7f\xff");
    }
}
