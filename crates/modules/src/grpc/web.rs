//! gRPC-Web (`grpc_web`): calls from browsers, which cannot read trailers, over HTTP/1 or HTTP/2.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>. Messages are framed as in gRPC.
//! Trailers follow them in a frame whose flags have the highest bit set. In the text variant
//! (`application/grpc-web-text`) everything is Base64, in segments that may each be padded.

use std::task::{Context, Poll};

use base::pieces::Pieces;
use bytes::Bytes;
use http::exchange::abort::Abort;
use http::request::Request;
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::Body;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use proto::base64::{self, Decoder, NotBase64};
use proto::header::{KnownField, KnownSet};

use super::call;
use super::settings::Settings;
use proxying::http2::head::RequestHead;
use proxying::http2::upload::{RequestBody, decode_part};
use proxying::stopped::NOT_BASE64;

/// The flag of the frame that holds trailers.
const TRAILERS: u8 = 0x80;

/// The gRPC-Web variant of a call.
pub(super) struct Web {
    is_text: bool,
    /// The message format: `+proto`, or empty.
    format: Bytes,
}

impl Web {
    /// The gRPC-Web variant of a request, if it is a gRPC-Web request.
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

    /// Whether messages are Base64.
    pub(super) fn is_text(&self) -> bool {
        self.is_text
    }

    /// Appends the client's fields in the form that a gRPC server expects.
    pub(super) fn put_fields(
        &self,
        request: &Request,
        settings: &Settings,
        head: &mut RequestHead,
    ) {
        let media_type = [call::MEDIA_TYPE, &*self.format].concat();
        head.put(b"content-type", &media_type);
        for (known, name, value) in request.client.known_headers() {
            let is_ours = known == KnownField::ContentType
                || known == KnownField::Accept && value.starts_with(b"application/grpc-web");
            if !is_ours && !settings.replaced.contains(known, name) {
                head.put(name, value);
            }
        }
    }

    /// The media type of the response.
    pub(super) fn media_type(&self) -> Bytes {
        let text: &[u8] = if self.is_text { b"-text" } else { b"" };
        [call::MEDIA_TYPE, b"-web", text, &*self.format]
            .concat()
            .into()
    }

    /// Converts the response to gRPC-Web. If the response ends with its head (`ends_with_head`),
    /// the head contains the status. Otherwise the trailer frame contains the status, whatever
    /// length was announced.
    pub(super) fn respond(&self, request: &mut Request, body: Body, ends_with_head: bool) -> Body {
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

/// Approximate number of Base64 bytes that are decoded without yielding to the event loop.
const DECODED_AT_ONCE: usize = 256 * 1024;

/// Decodes the Base64 body of a call. `begun` are the pieces of a streamed body that have been
/// received; `None` if the body is complete. The rest of a streamed body, and a body in a file, are
/// decoded as they are read. An error is the status of the response.
pub(super) async fn decode_body(
    request: &Request,
    begun: Option<Pieces>,
) -> Result<RequestBody, u16> {
    let mut decoder = Decoder::default();
    let mut decoded = Pieces::new();
    let decoding = match (&begun, request.body.in_memory()) {
        (Some(parts), _) => decode_parts(parts, &mut decoder, &mut decoded).await,
        (None, Some(parts)) => {
            let decoding = decode_parts(parts, &mut decoder, &mut decoded).await;
            decoding.and_then(|()| decoder.finish())
        }
        (None, None) => Ok(()),
    };
    if decoding.is_err() {
        logs::error!(request, Info, "{NOT_BASE64}");
        return Err(400);
    }
    Ok(match begun {
        Some(_) => RequestBody::begun_in_base64(decoded, decoder),
        None if request.body.file().is_some() => RequestBody::InBase64,
        None => RequestBody::Text(decoded.concat().into()),
    })
}

async fn decode_parts(
    parts: &[Bytes],
    decoder: &mut Decoder,
    decoded: &mut Pieces,
) -> Result<(), NotBase64> {
    let mut at_once = 0;
    for part in parts {
        decoded.push(decode_part(decoder, part)?);
        at_once += part.len();
        if at_once >= DECODED_AT_ONCE {
            engine::yield_now().await;
            at_once = 0;
        }
    }
    Ok(())
}

/// A response body followed by its trailers in a frame.
struct WebBody {
    source: Box<dyn Source>,
    /// Whether the body is sent in Base64.
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
        if self.is_text {
            let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
            base64::encode(&bytes, &mut text);
            text.into()
        } else {
            bytes
        }
    }

    /// The trailer frame.
    fn trailer_frame(&mut self) -> Bytes {
        let mut lines = Vec::new();
        for Field { name, value } in self.source.trailers() {
            if KnownSet::OF_FRAMING.contains(KnownField::from_name(&name)) {
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
    fn next(&mut self) -> SourceEvent {
        if self.has_ended {
            return SourceEvent::End;
        }
        match self.source.next() {
            SourceEvent::Piece(Piece::Bytes(bytes)) => {
                SourceEvent::Piece(Piece::Bytes(self.encoded(bytes)))
            }
            SourceEvent::End => {
                self.has_ended = true;
                SourceEvent::Piece(Piece::Bytes(self.trailer_frame()))
            }
            given => given,
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_ended {
            Poll::Ready(())
        } else {
            self.source.poll_more(context)
        }
    }

    fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        self.source.poll_prefetch(context)
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

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        self.source.give_up(left)
    }

    fn beginning(&self) -> &'static str {
        self.source.beginning()
    }
}
