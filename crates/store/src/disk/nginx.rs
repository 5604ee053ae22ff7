//! Reads nginx's cache files, version 5, as written on 64-bit little-endian machines. They are
//! never written.
//!
//! ```text
//!   0  version u64 (5) · valid until, s · updating, s · error, s · last modified · date, s (i64)
//!  48  CRC-32 of the key u32 · valid until, ms u16 · header_start u16 · body_start u16
//!  58  length of the etag u8 · etag (128) · length of vary u8 · vary (128) · variant (16)
//! 336  "\nKEY: " key "\n" · head as received · body to the end of the file
//! ```
//!
//! Files of other machines are recognised by the version and by `header_start`, which must be 343
//! plus the key's length. nginx stores neither lengths nor checksums of bodies.

use bytes::{Buf, Bytes, BytesMut};

use super::head::{EntryTimes, FIXED_LENGTH, Fault, Head, KEY_PREFIX, Origin, ParsedHead};
use super::id::EntryId;

const VERSION: u64 = 5;

/// The value of `header_start`, without the key's length.
const HEADER_START: usize = FIXED_LENGTH + KEY_PREFIX.len() + 1;

/// Maximum length of the stored `Vary`, in bytes.
const VARY_MAX: usize = 128;

const ETAG_MAX: usize = 128;

/// Whether the file starts with nginx's version.
pub(super) fn is_version(fixed: &[u8; FIXED_LENGTH]) -> bool {
    fixed.starts_with(&VERSION.to_le_bytes())
}

/// Length of the head, in bytes: the offset of the body.
pub(super) fn length(fixed: &[u8; FIXED_LENGTH]) -> Result<usize, Fault> {
    Fixed::decode(fixed).map(|decoded| decoded.body_start)
}

/// Length of the key, in bytes.
pub(super) fn key_length(fixed: &[u8; FIXED_LENGTH]) -> Option<usize> {
    let decoded = Fixed::decode(fixed).ok()?;
    decoded.header_start.checked_sub(HEADER_START)
}

struct Fixed {
    times: EntryTimes,
    key_checksum: u32,
    header_start: usize,
    body_start: usize,
    vary: Vec<u8>,
    variant: EntryId,
}

impl Fixed {
    fn decode(fixed: &[u8; FIXED_LENGTH]) -> Result<Fixed, Fault> {
        let mut rest = fixed
            .strip_prefix(&VERSION.to_le_bytes())
            .ok_or(Fault::Version)?;
        let valid_until = rest.get_i64_le();
        let (updating, error) = (rest.get_i64_le(), rest.get_i64_le());
        let (_last_modified, date) = (rest.get_i64_le(), rest.get_i64_le());
        let key_checksum = rest.get_u32_le();
        let valid_millis = rest.get_u16_le();
        let header_start = usize::from(rest.get_u16_le());
        let body_start = usize::from(rest.get_u16_le());
        let etag_length = usize::from(rest.get_u8());
        rest.advance(ETAG_MAX);
        let vary_length = usize::from(rest.get_u8());
        let (vary, rest) = rest.split_at(VARY_MAX);
        let variant = rest.first_chunk().ok_or(Fault::Short)?;
        if header_start < HEADER_START || body_start < header_start || etag_length > ETAG_MAX {
            return Err(Fault::Layout);
        }
        let seconds = |length: i64| u32::try_from(length.max(0)).unwrap_or(u32::MAX);
        let millis = i64::from(valid_millis);
        let times = EntryTimes {
            valid_until: valid_until.saturating_mul(1000).saturating_add(millis),
            received: date.saturating_mul(1000),
            updating: seconds(updating),
            error: seconds(error),
            ..EntryTimes::default()
        };
        Ok(Fixed {
            times,
            key_checksum,
            header_start,
            body_start,
            vary: vary.get(..vary_length).ok_or(Fault::Layout)?.to_vec(),
            variant: EntryId(*variant),
        })
    }
}

/// Parses a head; `bytes` must contain all of it.
pub(super) fn parse(bytes: &Bytes, key: &[u8], file_length: u64) -> Result<ParsedHead, Fault> {
    let fixed = bytes.first_chunk().ok_or(Fault::Short)?;
    let decoded = Fixed::decode(fixed)?;
    let is_of_key = decoded.header_start == HEADER_START + key.len()
        && decoded.key_checksum == crc32fast::hash(key);
    let key_at = FIXED_LENGTH + KEY_PREFIX.len()..decoded.header_start - 1;
    if !is_of_key || bytes.get(key_at.clone()) != Some(key) {
        return Err(Fault::Key);
    }
    let text_at = decoded.header_start..decoded.body_start;
    if bytes.len() < text_at.end {
        return Err(Fault::Short);
    }
    let body = decoded.body_start as u64..file_length;
    let body_length = body.end.checked_sub(body.start).ok_or(Fault::Short)?;
    let has_vary = !decoded.vary.is_empty();
    let head = Head {
        key: bytes.slice(key_at),
        group: Bytes::new(),
        tags: Bytes::new(),
        vary: decoded.vary.into(),
        variant: has_vary.then_some(decoded.variant),
        times: decoded.times,
        text: text(&bytes.slice(text_at))?,
        body_length: Some(body_length),
        origin: Origin::Nginx,
    };
    Ok(ParsedHead {
        head,
        body,
        body_checksum: None,
    })
}

/// The head of an HTTP/1 or CGI response; FastCGI framing is removed. Responses of HTTP/0.9 and
/// HTTP/2 are not supported.
fn text(stored: &Bytes) -> Result<Bytes, Fault> {
    match stored.first() {
        Some(&FASTCGI_VERSION) => fastcgi_text(stored).ok_or(Fault::Form),
        Some(byte) if byte.is_ascii_graphic() || matches!(byte, b'\r' | b'\n') => {
            Ok(stored.clone())
        }
        _ => Err(Fault::Form),
    }
}

const FASTCGI_VERSION: u8 = 1;
const FASTCGI_STDOUT: u8 = 6;
const FASTCGI_STDERR: u8 = 7;

/// Length of a FastCGI record's header, in bytes.
const RECORD_HEAD_LENGTH: usize = 8;

/// The output of the FastCGI program (`FCGI_STDOUT`). The last record may continue in the body.
fn fastcgi_text(stored: &Bytes) -> Option<Bytes> {
    let mut text = BytesMut::new();
    let mut rest = &stored[..];
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<RECORD_HEAD_LENGTH>()?;
        let [version, kind, _, _, high, low, padding, _] = *head;
        if version != FASTCGI_VERSION {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        let content = behind.get(..length).unwrap_or(behind);
        match kind {
            FASTCGI_STDOUT => text.extend_from_slice(content),
            FASTCGI_STDERR => {}
            _ => return None,
        }
        rest = behind
            .get(length + usize::from(padding)..)
            .unwrap_or_default();
    }
    (!text.is_empty()).then(|| text.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"http://127.0.0.1/";

    /// A file in the format of `ngx_http_file_cache_set_header`.
    fn file(text: &[u8], body: &[u8]) -> Vec<u8> {
        let header_start = (HEADER_START + KEY.len()) as u16;
        let body_start = header_start + text.len() as u16;
        let mut file = Vec::new();
        for number in [5, 1_700_000_000, 30, 60, -1, 1_600_000_000_i64] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        file.extend_from_slice(&crc32fast::hash(KEY).to_le_bytes());
        for number in [250, header_start, body_start] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        file.resize(FIXED_LENGTH, 0);
        [&file, KEY_PREFIX, KEY, b"\n", text, body].concat()
    }

    fn parsed(file: &[u8]) -> Result<ParsedHead, Fault> {
        parse(&Bytes::copy_from_slice(file), KEY, file.len() as u64)
    }

    #[test]
    fn times_and_head_are_read() {
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n";
        let parsed = parsed(&file(text, b"body")).unwrap();
        assert_eq!(parsed.head.text, text[..]);
        assert_eq!(parsed.head.body_length, Some(4));
        let times = EntryTimes {
            valid_until: 1_700_000_000_250,
            received: 1_600_000_000_000,
            updating: 30,
            error: 60,
            ..EntryTimes::default()
        };
        assert_eq!(parsed.head.times, times);
        assert_eq!(
            (parsed.head.variant, parsed.head.origin),
            (None, Origin::Nginx)
        );
    }

    #[test]
    fn text_comes_out_of_fastcgi_records() {
        let record = |kind: u8, length: u8, padding: u8, content: &[u8]| {
            let head = [1, kind, 0, 1, 0, length, padding, 0];
            [&head[..], content].concat()
        };
        let stored = [
            record(6, 5, 3, b"Statu\0\0\0"),
            record(7, 4, 0, b"Oops"),
            // A record that continues in the body.
            record(6, 200, 0, b"s: 200\r\n\r\n"),
        ]
        .concat();
        let head = parsed(&file(&stored, b"body")).unwrap().head;
        assert_eq!(head.text, b"Status: 200\r\n\r\n"[..]);
        let cut = record(6, 5, 3, b"")[..7].to_vec();
        assert_eq!(parsed(&file(&cut, b"")).unwrap_err(), Fault::Form);
    }

    #[test]
    fn other_forms_are_not_read() {
        let frames = [0, 0, 4, 1, 4, 0, 0, 0, 1, 0x88];
        assert_eq!(parsed(&file(&frames, b"")).unwrap_err(), Fault::Form);
        assert_eq!(parsed(&file(b"", b"0.9")).unwrap_err(), Fault::Form);
    }

    #[test]
    fn file_of_another_key_or_machine_is_not_read() {
        let good = file(b"HTTP/1.1 200 OK\r\n\r\n", b"");
        let with = |at: usize, byte: u8| {
            let mut file = good.clone();
            file[at] = byte;
            parsed(&file).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, 4), Fault::Version);
        assert_eq!(with(48, good[48] ^ 1), Fault::Key);
        assert_eq!(with(54, good[54] ^ 1), Fault::Key);
        assert_eq!(with(FIXED_LENGTH + 10, b'x'), Fault::Key);
        assert_eq!(with(187, 129), Fault::Layout);
        assert_eq!(with(57, 0), Fault::Layout);
        let short = &good[..good.len() - 1];
        assert_eq!(parsed(short).unwrap_err(), Fault::Short);
    }
}
