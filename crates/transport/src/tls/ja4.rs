//! `$ssl_ja4`: a fingerprint of the ClientHello, which depends on the client's software and not on
//! its user.
//!
//! <https://github.com/FoxIO-LLC/ja4/blob/main/technical_details/JA4.md>

use proto::tls::{ClientHello, is_grease};
use sha2::{Digest, Sha256};

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// Length of the shown part of a digest, in bytes.
const SHOWN: usize = 6;

/// Appends the fingerprint: `t13d1516h2_8daaf6152771_e5627efa2ab1`.
pub(super) fn append(hello: &ClientHello, out: &mut Vec<u8>) {
    let real = |number: &u16| !is_grease(*number);
    let mut ciphers: Vec<u16> = hello.ciphers().filter(real).collect();
    let mut extensions: Vec<u16> = hello.extension_types().filter(real).collect();
    let version = hello.versions().filter(real).max().unwrap_or(hello.version);
    let version = match version {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0x0300 => "s3",
        _ => "00",
    };
    let named = if extensions.contains(&SERVER_NAME) {
        'd'
    } else {
        'i'
    };
    let (first, last) = ends(hello.protocols().next().unwrap_or_default());
    let head = format!(
        "t{version}{named}{:02}{:02}{first}{last}_",
        ciphers.len().min(99),
        extensions.len().min(99)
    );
    out.extend_from_slice(head.as_bytes());
    ciphers.sort_unstable();
    append_digest(&list(&ciphers), out);
    out.push(b'_');
    extensions.retain(|kind| !matches!(*kind, SERVER_NAME | ALPN));
    extensions.sort_unstable();
    let algorithms: Vec<u16> = hello.signature_algorithms().filter(real).collect();
    let mut text = list(&extensions);
    if !algorithms.is_empty() {
        text.push('_');
        text.push_str(&list(&algorithms));
    }
    append_digest(&text, out);
}

/// The first and last character of a protocol name or, if either is not alphanumeric, of its
/// hexadecimal form.
fn ends(protocol: &[u8]) -> (char, char) {
    let (Some(first), Some(last)) = (protocol.first(), protocol.last()) else {
        return ('0', '0');
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return (char::from(*first), char::from(*last));
    }
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    (digit(first >> 4), digit(last & 0x0f))
}

fn list(numbers: &[u16]) -> String {
    let texts: Vec<String> = numbers
        .iter()
        .map(|number| format!("{number:04x}"))
        .collect();
    texts.join(",")
}

fn append_digest(text: &str, out: &mut Vec<u8>) {
    let digest = if text.is_empty() {
        [0; SHOWN].to_vec()
    } else {
        Sha256::digest(text).to_vec()
    };
    for byte in digest.iter().take(SHOWN) {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn parts_of_the_specifications_example() {
        let mut text = Vec::new();
        append_digest(
            "002f,0035,009c,009d,1301,1302,1303,c013,c014,c02b,c02c,c02f,c030,cca8,cca9",
            &mut text,
        );
        assert_eq!(text, b"8daaf6152771");
        text.clear();
        append_digest(
            "0005,000a,000b,000d,0012,0015,0017,001b,0023,002b,002d,0033,4469,ff01_0403,0804,0401,0503,0805,0501,0806,0601",
            &mut text,
        );
        assert_eq!(text, b"e5627efa2ab1");
        assert_eq!(ends(b"h2"), ('h', '2'));
        assert_eq!(ends(b"http/1.1"), ('h', '1'));
        assert_eq!(ends(b""), ('0', '0'));
        assert_eq!(ends(&[0xab, 0xcd]), ('a', 'd'));
    }
}
