//! `flv`: Flash videos from a byte offset, for players that seek with `?start=`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_flv_module.html>. The response begins with the header
//! of a new file; the player must choose an offset at which a tag begins.

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use engine::file::{File, Metadata};
use framework::compile::Compiler;
use http::exchange::Exchange;
use http::files::etag_of;
use http::files::open_file_cache;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::body::reading;
use http::request::{Request, Step};
use http::response::piece::Piece;
use http::response::source::Body;
use proto::method::Method;
use proto::uri;

use crate::static_file::refused;

/// Declares the directive `flv`.
pub static FLV: Setting<()> = Setting::new("flv", &[""], parse::nothing)
    .contexts(Contexts::LOCATION)
    .arity(Arity::none())
    .inherit(Inherit::Handler)
    .repeatable()
    .manual("Serves Flash videos; with `?start=BYTE` from that byte on, behind a new file header.");

/// The directives of this file.
pub const DIRECTIVES: &[&dyn Declared] = &[&FLV];

/// Signature, version 1, flags for audio and video, header length, and the length of the previous
/// tag (0).
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

/// The content handler of `flv`.
pub fn content(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    Ok(Some(Content {
        falls_back_to_files: true,
        ..Content::of(Flv)
    }))
}

struct Flv;

impl PhaseHandler for Flv {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::wait(async move { Ok(serve(request, exchange).await) })
    }
}

/// Responds with the file of the URI, whole or from an offset.
async fn serve(request: &mut Request, exchange: &mut Exchange) -> Step {
    let (file, metadata) = match open(request, exchange).await {
        Ok(opened) => opened,
        Err(step) => return step,
    };
    let size = metadata.size;
    let start = uri::argument(&request.args, b"start")
        .and_then(|value| std::str::from_utf8(value).ok()?.parse::<u64>().ok())
        .filter(|start| *start < size)
        .unwrap_or(0);
    let mut pieces = Vec::with_capacity(2);
    let mut length = size - start;
    if start > 0 {
        length += HEADER.len() as u64;
        pieces.push(Piece::Bytes(Bytes::from_static(HEADER)));
    }
    if size > 0 {
        pieces.push(Piece::File {
            file,
            offset: start,
            length: size - start,
        });
    }
    begin(request, &metadata, length, " while sending flv to client");
    Step::Respond(Body::Pieces(pieces))
}

/// Opens the file for a GET or HEAD request as nginx's video modules do, after discarding the
/// received part of the body; else returns the next step.
pub(super) async fn open(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<(File, Metadata), Step> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Err(Step::Finish(405));
    }
    if request.uri.ends_with(b"/") {
        return Err(Step::Next);
    }
    reading::discard_received(request, exchange)
        .await
        .map_err(Step::Finish)?;
    let path = request.filename();
    let step = match open_file_cache::lookup(request, &path).resolve().await {
        Ok(looked) => match looked.file {
            Some(file) if looked.metadata.is_file() => {
                request.routing.root_tested = !request.routing.error_page_taken;
                return Ok((file, looked.metadata));
            }
            _ => Step::Next,
        },
        Err(error) => Step::Finish(refused(request, &path, &error)),
    };
    request.body.end_unread(); // as in nginx, the body is discarded first
    Err(step)
}

/// Starts a response of `length` bytes from a file; log lines contain `sending` from then on.
pub(super) fn begin(
    request: &mut Request,
    metadata: &Metadata,
    length: u64,
    sending: &'static str,
) {
    request.activity.sending = sending;
    // As in nginx, the ETag contains the length of the response, so that parts of a file are
    // distinguished.
    let sent = Metadata {
        size: length,
        ..*metadata
    };
    let etag = etag_of(&request.plan.core, &sent);
    request.set_content_type();
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(length);
    response.last_modified = Some(metadata.mtime);
    if let Some(etag) = etag {
        response.add(Bytes::from_static(b"ETag"), etag);
    }
    response.allow_ranges = true;
}
