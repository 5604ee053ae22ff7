//! `proxy_pass_trailers`: the trailers of an upstream's chunked body.
//!
//! As in nginx, `proxy_buffer_size` limits the trailers. `proxy_set_header` must set `Connection:
//! te` and `TE: trailers`, which request trailers from an upstream.

use bytes::Bytes;
use engine::Buffer;
use http::response::Field;
use proto::h1::response::Trailers;

/// Reads and parses the trailers of a chunked body.
pub(super) struct TrailerReader {
    parser: Trailers,
    bytes: Vec<u8>,
    length_max: usize,
    /// Whether bytes of the trailers were received after the last chunk had been read.
    pub(super) was_received_later: bool,
}

impl TrailerReader {
    /// Reads trailers of at most `length_max` bytes.
    pub(super) fn new(length_max: usize) -> TrailerReader {
        TrailerReader {
            parser: Trailers::default(),
            bytes: Vec::new(),
            length_max,
            was_received_later: false,
        }
    }

    /// Reads received bytes up to the end of the trailers. Returns whether the trailers are
    /// complete; the error is the log text about invalid trailers.
    pub(super) fn read(&mut self, received: &mut Buffer) -> Result<bool, String> {
        let before = self.bytes.len();
        let room = self.length_max.saturating_sub(before);
        let taken = received.len().min(room);
        self.bytes
            .extend_from_slice(received.get(..taken).unwrap_or_default());
        match self.parser.parse(&self.bytes) {
            Ok(Some(end)) => {
                received.advance(end.saturating_sub(before));
                Ok(true)
            }
            Ok(None) if self.bytes.len() >= self.length_max => {
                Err("upstream sent too big trailers".to_owned())
            }
            Ok(None) => {
                received.advance(taken);
                Ok(false)
            }
            Err(line) => {
                let text = Trailers::log_text(line, &self.bytes);
                Err(logs::Printable(&text).to_string())
            }
        }
    }

    /// The trailers that have been read.
    pub(super) fn fields(&self) -> Vec<Field> {
        let fields = self.parser.fields().iter().map(|field| Field {
            name: Bytes::copy_from_slice(field.name(&self.bytes)),
            value: Bytes::copy_from_slice(field.value(&self.bytes)),
        });
        fields.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trailers and the length of the rest behind them, or the error.
    fn read(pieces: &[&str], length_max: usize) -> Result<(Vec<String>, usize), String> {
        let mut reader = TrailerReader::new(length_max);
        for (at, piece) in pieces.iter().enumerate() {
            let mut received = Buffer::copy_of(piece.as_bytes());
            if reader.read(&mut received)? {
                assert_eq!(at, pieces.len() - 1);
                let fields = reader.fields().into_iter().map(|field| {
                    format!(
                        "{}={}",
                        field.name.escape_ascii(),
                        field.value.escape_ascii()
                    )
                });
                return Ok((fields.collect(), received.len()));
            }
            assert!(received.is_empty());
        }
        Err("unfinished".to_owned())
    }

    #[test]
    fn trailers_come_in_any_pieces() {
        assert_eq!(read(&["\r\n"], 8), Ok((vec![], 0)));
        let both = vec!["A=b".to_owned(), "C=d".to_owned()];
        assert_eq!(read(&["A: b\r\nC: d\r\n\r\n"], 14), Ok((both.clone(), 0)));
        assert_eq!(
            read(&["A", ": b\r", "\nC: d\r\n\r", "\nmore"], 99),
            Ok((both, 4))
        );
        let too_big = Err("upstream sent too big trailers".to_owned());
        assert_eq!(read(&["A: b\r\nC: d\r\n\r\n"], 13), too_big);
        let invalid = read(&["A: b\r\nno field\r\n"], 99).unwrap_err();
        assert!(
            invalid.starts_with("upstream sent invalid trailer: "),
            "{invalid}"
        );
        assert_eq!(read(&["A: b\r\n"], 99), Err("unfinished".to_owned()));
    }
}
