//! gRPC-Web (`grpc_web`): calls of browsers, which see no trailers, by HTTP/1 as well as HTTP/2.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>. Messages are framed as in gRPC; trailers follow them as one more frame, whose flags have
//! the highest bit. As text (`application/grpc-web-text`) all that is in base64, in pieces that may be padded each.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::exchange::Abort;
use http::log;
use http::output::{Body, Piece};
use http::request::Request;
use http::response::Field;
use http::source::{Break, Given, Source, Told};
use proto::base64::{self, Alphabet};
use proto::header::{Known, KnownSet};

use super::call;
use super::settings::Settings;
use crate::passing::http2::head::RequestHead;

/// The flag of the frame that holds trailers.
const TRAILERS: u8 = 0x80;

/// How a call came.
pub(super) struct Web {
    is_text: bool,
    /// What the messages are: `+proto`, or nothing.
    format: Bytes,
}

impl Web {
    /// That of a request, if it is one.
    pub(super) fn of(request: &Request) -> Option<Web> {
        let rest = call::media_type(request)?;
        let rest = rest.strip_prefix(b"-web")?;
        let (is_text, rest) = match rest.strip_prefix(b"-text") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
        let format = rest.get(..end).unwrap_or_default().trim_ascii();
        let is_format = format.is_empty() || format.first() == Some(&b'+');
        is_format.then(|| Web {
            is_text,
            format: Bytes::copy_from_slice(format),
        })
    }

    /// Whether messages come in base64.
    pub(super) fn is_text(&self) -> bool {
        self.is_text
    }

    /// Appends the client's fields as a server of gRPC expects them.
    pub(super) fn put_fields(
        &self,
        request: &Request,
        settings: &Settings,
        head: &mut RequestHead,
    ) {
        let media_type = [call::MEDIA_TYPE, &*self.format].concat();
        head.put(b"content-type", &media_type);
        for (known, name, value) in request.client.known_headers() {
            let is_ours = known == Known::ContentType
                || known == Known::Accept && value.starts_with(b"application/grpc-web");
            if !is_ours && !settings.replaced.contains(known, name) {
                head.put(name, value);
            }
        }
    }

    /// The media type of its answer.
    pub(super) fn media_type(&self) -> Bytes {
        let text: &[u8] = if self.is_text { b"-text" } else { b"" };
        [call::MEDIA_TYPE, b"-web", text, &*self.format]
            .concat()
            .into()
    }

    /// Makes the answer one of gRPC-Web. Where it `ends_with_head` that has the status, else trailers have it, whatever length is announced.
    pub(super) fn respond(self, request: &mut Request, body: Body, ends_with_head: bool) -> Body {
        let response = &mut request.response;
        response.content_type = self.media_type();
        response.content_type_parameters = Bytes::new();
        let Body::Source(source) = body else {
            return body;
        };
        if ends_with_head {
            return Body::Source(source);
        }
        response.content_length = None;
        Body::Source(Box::new(WebBody {
            source,
            is_text: self.is_text,
            has_ended: false,
        }))
    }
}

/// The body of a call that has come in base64, decoded; else the status to answer with.
pub(super) async fn decode_body(request: &mut Request) -> Result<Bytes, u16> {
    let text = match (request.body.in_memory(), request.body.file().cloned()) {
        (Some(parts), _) => parts.concat(),
        (None, Some(file)) => {
            let length = usize::try_from(request.body.received()).unwrap_or(usize::MAX);
            let mut text = Vec::new();
            while text.len() < length {
                match file.read_at(text.len() as u64, length - text.len()).await {
                    Ok(part) if !part.is_empty() => text.extend_from_slice(&part),
                    _ => return Err(500), // the file is the request's alone
                }
            }
            text
        }
        (None, None) => Vec::new(),
    };
    decode(&text).map(Bytes::from).ok_or_else(|| {
        log::error!(
            request,
            Info,
            "client sent a call of gRPC-Web that is not base64"
        );
        400
    })
}

/// Base64 in pieces, each of which may be padded.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len() / 4 * 3);
    let mut rest = text;
    while !rest.is_empty() {
        let padding = memchr::memchr(b'=', rest).unwrap_or(rest.len());
        // A piece ends with the four characters that its padding stands in.
        let end = padding.next_multiple_of(4).min(rest.len());
        let (piece, behind) = rest.split_at_checked(end)?;
        // Padding alone is no piece.
        if piece.is_empty()
            || !piece.len().is_multiple_of(4)
            || !base64::decode(piece, Alphabet::Standard, &mut decoded)
        {
            return None;
        }
        rest = behind;
    }
    Some(decoded)
}

/// The body of an answer, and its trailers as a frame behind it.
struct WebBody {
    source: Box<dyn Source>,
    is_text: bool,
    has_ended: bool,
}

impl std::fmt::Debug for WebBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebBody")
    }
}

impl WebBody {
    fn encoded(&self, bytes: Bytes) -> Bytes {
        match self.is_text {
            true => {
                let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
                base64::encode(&bytes, &mut text);
                text.into()
            }
            false => bytes,
        }
    }

    /// The frame of the trailers.
    fn trailer_frame(&mut self) -> Bytes {
        let mut lines = Vec::new();
        for Field { name, value } in self.source.trailers() {
            if KnownSet::OF_FRAMING.contains(Known::from_name(&name)) {
                continue;
            }
            lines.extend(name.iter().map(u8::to_ascii_lowercase));
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(&value);
            lines.extend_from_slice(b"\r\n");
        }
        let mut frame = vec![TRAILERS];
        frame.extend_from_slice(&(lines.len() as u32).to_be_bytes());
        frame.extend_from_slice(&lines);
        self.encoded(frame.into())
    }
}

impl Source for WebBody {
    fn next(&mut self) -> Given {
        if self.has_ended {
            return Given::End;
        }
        match self.source.next() {
            Given::Piece(Piece::Bytes(bytes)) => Given::Piece(Piece::Bytes(self.encoded(bytes))),
            Given::End => {
                self.has_ended = true;
                Given::Piece(Piece::Bytes(self.trailer_frame()))
            }
            given => given,
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.has_ended {
            true => Poll::Ready(()),
            false => self.source.poll_more(context),
        }
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<Told, Break>> {
        self.source.poll_ahead(context)
    }

    fn queued_max(&self) -> Option<usize> {
        self.source.queued_max()
    }

    fn is_whole(&self) -> bool {
        self.has_ended
    }

    fn outlives_client(&self) -> bool {
        self.source.outlives_client()
    }

    fn give_up(&mut self, left: &Abort) -> Told {
        self.source.give_up(left)
    }

    fn beginning(&self) -> &'static str {
        self.source.beginning()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_base64_may_be_padded() {
        assert_eq!(decode(b"").as_deref(), Some(&b""[..]));
        assert_eq!(decode(b"YQ==YmM=ZGVm").as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(decode(b"YQ==").as_deref(), Some(&b"a"[..]));
        for wrong in [&b"YQ"[..], b"YQ=", b"Y", b"====", b"YQ==YQ", b"a b="] {
            assert_eq!(decode(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
