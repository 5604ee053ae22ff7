//! Functions that append values of variables, such as numbers, times and header fields. Like
//! [`Evaluate`](crate::Evaluate), they return whether the variable is found; most always return
//! true.

use std::time::Duration;

use engine::net::Address;

/// Appends a text. Returns true.
pub fn text(text: &str, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(text.as_bytes());
    true
}

/// Appends a number. Returns true.
pub fn decimal(mut number: u64, out: &mut Vec<u8>) -> bool {
    let mut digits = [0_u8; 20]; // u64::MAX has 20
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or_default());
    true
}

/// Appends a number, with leading zeros to at least three digits. Returns true.
pub fn three_digits(number: u64, out: &mut Vec<u8>) -> bool {
    if number < 100 {
        out.push(b'0');
    }
    if number < 10 {
        out.push(b'0');
    }
    decimal(number, out)
}

/// Appends a time in seconds with three decimals, such as `0.003`. Returns true.
pub fn seconds(time: Duration, out: &mut Vec<u8>) -> bool {
    decimal(time.as_secs(), out);
    out.push(b'.');
    three_digits(time.subsec_millis().into(), out)
}

/// Appends the port of an address; nothing for a Unix socket or port 0. Returns true.
pub fn append_port(address: &Address, out: &mut Vec<u8>) -> bool {
    match address.port() {
        Some(port) if port > 0 => decimal(port.into(), out),
        _ => true,
    }
}

/// Appends the values of all header fields with this name, joined by `separator` and a space.
/// Returns false if there is no such field. `name` is the end of a variable's name such as
/// `http_user_agent`: lower case, with `_` for `-`.
pub fn joined<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &[u8],
    separator: u8,
    out: &mut Vec<u8>,
) -> bool {
    let mut found = false;
    for (_, value) in fields.filter(|(field, _)| is_named(field, name)) {
        if found {
            out.extend_from_slice(&[separator, b' ']);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

/// Whether the name of a header field is equal to `name`, the end of a variable's name in lower
/// case with `_` for `-`.
pub fn is_named(field: &[u8], name: &[u8]) -> bool {
    field.len() == name.len()
        && field.iter().zip(name).all(|(byte, wanted)| match byte {
            b'-' => *wanted == b'_',
            byte => byte.to_ascii_lowercase() == *wanted,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let shown = |write: &dyn Fn(&mut Vec<u8>) -> bool| {
            let mut out = Vec::new();
            assert!(write(&mut out));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(&|out| decimal(0, out)), "0");
        assert_eq!(shown(&|out| decimal(1_234_567, out)), "1234567");
        assert_eq!(shown(&|out| decimal(u64::MAX, out)), "18446744073709551615");
        assert_eq!(shown(&|out| three_digits(9, out)), "009");
        assert_eq!(shown(&|out| three_digits(99, out)), "099");
        assert_eq!(shown(&|out| three_digits(404, out)), "404");
        assert_eq!(
            shown(&|out| seconds(Duration::from_micros(12_034_999), out)),
            "12.034"
        );
        assert_eq!(shown(&|out| seconds(Duration::ZERO, out)), "0.000");
    }

    #[test]
    fn repeated_fields_are_joined() {
        let fields: [(&[u8], &[u8]); 4] = [
            (b"X-Tag", b"a"),
            (b"Other", b"x"),
            (b"x-tag", b""),
            (b"X_TAG", b"c"),
        ];
        let mut out = Vec::new();
        assert!(joined(fields.into_iter(), b"x_tag", b',', &mut out));
        assert_eq!(out, b"a, , c");
        assert!(!joined(fields.into_iter(), b"x_ta", b',', &mut out));
    }
}
