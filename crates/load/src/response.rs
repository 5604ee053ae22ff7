//! Reads the responses of a run: `proto` parses the head; the body is counted and verified against
//! the head.
//!
//! ```text
//! Head ─┬─▶ Length ──┬─▶ complete, Head again
//!  ▲    ├─▶ Chunked ─┤
//!  │1xx ├─▶ (none) ──┘
//!  └────┴─▶ UntilClose ─▶ complete at the end of input
//! ```
//!
//! Bodies are not kept, and a head that arrives in one piece needs no allocation. A head that is
//! identical to the previous one, as for the same page until `Date` changes, is not parsed again.

use proto::h1::chunked::Decoder;
use proto::h1::response::{BodyFraming, ResponseHead, parse};
use proto::header::KnownField;
use sha2::{Digest, Sha256};

use crate::plan::Expect;
use crate::tally::RequestError;

/// Maximum length of a response's head, in bytes; a longer head is an error.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Reads the responses of one connection in sequence.
pub(crate) struct Reader {
    expect: Expect,
    head: ResponseHead,
    /// The bytes that `head` was parsed from, if they arrived in one piece; empty if `head` is not
    /// valid.
    last: Vec<u8>,
    /// A head that arrives in several pieces.
    pieces: Vec<u8>,
    state: State,
    body: u64,
    digest: Option<Sha256>,
    /// The `Server` field of the last response, if it is recorded.
    server: Option<Vec<u8>>,
}

enum State {
    Head,
    Length(u64),
    Chunked(Decoder),
    UntilClose,
}

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompleteResponse {
    pub(crate) status: u16,
    /// Length of the body, in bytes, without chunked framing.
    pub(crate) body: u64,
    /// Whether no further response follows on this connection.
    pub(crate) closes: bool,
    /// The gRPC status, if the request was a gRPC call.
    pub(crate) grpc_status: Option<u16>,
    /// Why the response is not as expected, if it is not.
    pub(crate) failure: Option<RequestError>,
}

impl Reader {
    /// If `keeps_server` is set, [`server`](Self::server) returns the `Server` field.
    pub(crate) fn new(expect: Expect, keeps_server: bool) -> Reader {
        Reader {
            expect,
            head: ResponseHead::default(),
            last: Vec::new(),
            pieces: Vec::new(),
            state: State::Head,
            body: 0,
            digest: None,
            server: keeps_server.then(Vec::new),
        }
    }

    /// Prepares for the first response of another connection to the same server.
    pub(crate) fn restart(&mut self) {
        if self.last.is_empty() {
            self.head.clear();
        }
        self.pieces.clear();
        self.state = State::Head;
        self.body = 0;
    }

    /// Processes received bytes. Returns how many were used, and a response if it is complete. The
    /// rest belongs to the next response; without a complete response, all bytes are used.
    /// `is_head` says whether the method was HEAD.
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        is_head: bool,
    ) -> Result<(usize, Option<CompleteResponse>), RequestError> {
        let mut used = 0;
        while let Some(rest) = input.get(used..).filter(|rest| !rest.is_empty()) {
            let done = match &mut self.state {
                State::Head => {
                    let (length, complete) = self.read_head(rest, is_head)?;
                    used += length;
                    complete
                }
                State::Length(left) => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= length as u64;
                    let complete = *left == 0;
                    self.count(&rest[..length]);
                    used += length;
                    complete
                }
                State::Chunked(decoder) => {
                    let decoded = decoder
                        .decode(rest)
                        .map_err(|_| RequestError::GarbageBody)?;
                    used += decoded.consumed;
                    self.count(&rest[decoded.data]);
                    decoded.done
                }
                State::UntilClose => {
                    self.count(rest);
                    used = input.len();
                    false
                }
            };
            if done {
                return Ok((used, Some(self.complete())));
            }
        }
        Ok((used, None))
    }

    /// Handles the end of input while a response is awaited.
    pub(crate) fn end(&mut self) -> Result<CompleteResponse, RequestError> {
        match self.state {
            State::UntilClose => Ok(self.complete()),
            State::Head => Err(RequestError::ClosedEarly),
            State::Length(_) | State::Chunked(_) => Err(RequestError::ClosedInBody),
        }
    }

    /// The `Server` field of the last head.
    pub(crate) fn server(&self) -> &[u8] {
        self.server.as_deref().unwrap_or_default()
    }

    /// Reads a head. Returns the number of bytes used, and whether the response has no body and is
    /// thus complete.
    fn read_head(&mut self, input: &[u8], is_head: bool) -> Result<(usize, bool), RequestError> {
        let before = self.pieces.len();
        let length = match before {
            0 if self.repeats(input) => self.last.len(),
            _ => match self.parse_head(input)? {
                Some(length) => length,
                None => return Ok((input.len(), false)),
            },
        };
        let used = length.saturating_sub(before);
        match self.head.status() {
            // An interim response: the head of another response follows.
            100..=199 => return Ok((used, false)),
            200..=999 => {}
            _ => return Err(RequestError::GarbageHead),
        }
        self.digest = self.expect.sha256.map(|_| Sha256::new());
        self.body = 0;
        self.state = match self.head.body(is_head) {
            BodyFraming::None | BodyFraming::Length(0) => return Ok((used, true)),
            BodyFraming::Length(length) => State::Length(length),
            BodyFraming::Chunked => State::Chunked(Decoder::new()),
            BodyFraming::UntilClose => State::UntilClose,
        };
        Ok((used, false))
    }

    /// Whether `input` starts with a copy of the previous head.
    fn repeats(&self, input: &[u8]) -> bool {
        !self.last.is_empty() && input.starts_with(&self.last)
    }

    /// The length of the head that `input` completes. `None` if more bytes are needed; the received
    /// ones are kept.
    fn parse_head(&mut self, input: &[u8]) -> Result<Option<usize>, RequestError> {
        self.last.clear();
        let in_one_piece = self.pieces.is_empty();
        let parsed = if in_one_piece {
            parse(input, &mut self.head)
        } else {
            self.pieces.extend_from_slice(input);
            parse(&self.pieces, &mut self.head)
        };
        let Some(length) = parsed.map_err(|_| RequestError::GarbageHead)? else {
            if in_one_piece {
                self.pieces.extend_from_slice(input);
            }
            if self.pieces.len() > HEAD_BYTES_MAX {
                return Err(RequestError::HeadTooLarge);
            }
            return Ok(None);
        };
        if !self.head.is_http1() {
            return Err(RequestError::GarbageHead);
        }
        if let Some(server) = &mut self.server {
            let bytes = if in_one_piece { input } else { &self.pieces };
            server.clear();
            server.extend_from_slice(
                self.head
                    .value(KnownField::Server, bytes)
                    .unwrap_or_default(),
            );
        }
        if in_one_piece {
            self.last
                .extend_from_slice(input.get(..length).unwrap_or_default());
        }
        self.pieces.clear();
        Ok(Some(length))
    }

    fn count(&mut self, bytes: &[u8]) {
        self.body += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }

    fn complete(&mut self) -> CompleteResponse {
        let status = self.head.status();
        let digest = self.digest.take().map(|digest| digest.finalize().into());
        let failure = if !self.expect.takes(status) {
            Some(RequestError::Status)
        } else if digest != self.expect.sha256 {
            Some(RequestError::Digest)
        } else {
            None
        };
        let response = CompleteResponse {
            status,
            body: self.body,
            closes: self.head.closes() || matches!(self.state, State::UntilClose),
            grpc_status: None,
            failure,
        };
        self.state = State::Head;
        self.body = 0;
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the input in pieces of `piece` bytes. Returns statuses and lengths, and the error at
    /// the end.
    fn read(input: &[u8], piece: usize, expect: Expect) -> (Vec<(u16, u64)>, Option<RequestError>) {
        let mut reader = Reader::new(expect, false);
        let mut answers = Vec::new();
        let (mut open, mut failure) = (false, None);
        for mut bytes in input.chunks(piece) {
            while !bytes.is_empty() {
                match reader.advance(bytes, false) {
                    Ok((used, response)) => {
                        bytes = &bytes[used..];
                        open = response.is_none();
                        answers.extend(response.map(|response| (response.status, response.body)));
                        failure = failure.or(response.and_then(|response| response.failure));
                    }
                    Err(failure) => return (answers, Some(failure)),
                }
            }
        }
        match open.then(|| reader.end()) {
            Some(Ok(response)) => answers.push((response.status, response.body)),
            Some(Err(ended)) => failure = Some(ended),
            None => {}
        }
        (answers, failure)
    }

    #[test]
    fn responses_in_pieces_of_every_size() {
        for (input, answers, failure) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
                vec![(200, 3)],
                None,
            ),
            (
                "HTTP/1.1 204 No\r\n\r\nHTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                vec![(204, 0), (304, 0), (200, 0)],
                None,
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
                vec![(200, 5)],
                None,
            ),
            ("HTTP/1.0 200 OK\r\n\r\nabc", vec![(200, 3)], None),
            (
                "HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\na",
                vec![(404, 1)],
                Some(RequestError::Status),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
                vec![],
                Some(RequestError::ClosedInBody),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Le",
                vec![],
                Some(RequestError::ClosedEarly),
            ),
            ("hello", vec![], Some(RequestError::GarbageHead)),
            (
                "HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
                vec![],
                Some(RequestError::GarbageHead),
            ),
            (
                "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
                vec![],
                Some(RequestError::GarbageHead),
            ),
            (
                "HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n",
                vec![],
                Some(RequestError::GarbageHead),
            ),
            (
                "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
                vec![(200, 0)],
                None,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                vec![],
                Some(RequestError::GarbageHead),
            ),
            (
                "HTTP/1.1 000 OK\r\n\r\n",
                vec![],
                Some(RequestError::GarbageHead),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
                vec![],
                Some(RequestError::GarbageBody),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
                vec![(200, 1)],
                Some(RequestError::GarbageHead),
            ),
        ] {
            for piece in 1..=input.len() {
                let got = read(input.as_bytes(), piece, Expect::default());
                assert_eq!(got, (answers.clone(), failure), "{input:?} by {piece}");
            }
        }
    }

    #[test]
    fn a_head_that_repeats_says_the_same_and_one_that_does_not_is_read() {
        let mut reader = Reader::new(Expect::default(), true);
        let head = |status, length| {
            format!("HTTP/1.1 {status} OK\r\nServer: s{length}\r\nContent-Length: {length}\r\n\r\n")
        };
        let ok = head(200, 2);
        for (head, cut, status, length) in [
            (&ok, ok.len(), 200, 2),
            (&ok, ok.len(), 200, 2),
            (&ok, 20, 200, 2),
            (&ok, ok.len(), 200, 2),
            (&head(404, 3), 40, 404, 3),
            (&head(200, 3), 40, 200, 3),
        ] {
            let body = &"xyz"[..length as usize];
            let (first, second) = head.split_at(cut.min(head.len()));
            let mut response = None;
            for part in [first, second, body] {
                if !part.is_empty() {
                    response = reader.advance(part.as_bytes(), false).unwrap().1;
                }
            }
            let response = response.unwrap();
            assert_eq!((response.status, response.body), (status, length), "{head}");
            assert_eq!(reader.server(), format!("s{length}").as_bytes());
        }
        // An incomplete head of one connection does not affect the next connection.
        assert_eq!(
            reader.advance(b"HTTP/1.1 200 OK\r\nA", false),
            Ok((18, None))
        );
        reader.restart();
        let whole = ok.clone() + "ab";
        for _ in 0..2 {
            let (used, response) = reader.advance(whole.as_bytes(), false).unwrap();
            assert_eq!((used, response.unwrap().body), (whole.len(), 2));
            reader.restart();
        }
        // A repeated head may also be the response to a HEAD request.
        let (used, response) = reader.advance(ok.as_bytes(), true).unwrap();
        assert_eq!((used, response.unwrap().body), (ok.len(), 0));
    }

    #[test]
    fn an_endless_head_ends() {
        let mut reader = Reader::new(Expect::default(), false);
        assert_eq!(
            reader.advance(b"HTTP/1.1 200 OK\r\n", false),
            Ok((17, None))
        );
        for _ in 0..HEAD_BYTES_MAX / 8 {
            match reader.advance(b"X: yyyy\r\n", false) {
                Ok((used, None)) => assert_eq!(used, 9),
                ended => return assert_eq!(ended, Err(RequestError::HeadTooLarge)),
            }
        }
        panic!("it went on");
    }

    #[test]
    fn bodies_are_hashed_where_it_is_asked_for() {
        // FIPS 180-2, appendix B.1: the digest of "abc".
        let abc: [u8; 32] = Sha256::digest(b"abc").into();
        assert_eq!(abc[..4], [0xba, 0x78, 0x16, 0xbf]);
        let expect = Expect {
            sha256: Some(abc),
            ..Expect::default()
        };
        for (body, failure) in [("abc", None), ("abd", Some(RequestError::Digest))] {
            let input = format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{body}");
            assert_eq!(read(input.as_bytes(), 5, expect), (vec![(200, 3)], failure));
        }
    }
}
