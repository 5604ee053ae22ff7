//! Static files, and `empty_gif`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_empty_gif_module.html>. `StaticFile` runs last among
//! the handlers that map URIs to files: precompressed files, indexes and listings come before it.
//! Conditional requests and ranges are handled by the core's header filters.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use engine::file;
use framework::compile::{Compiler, Feature};
use framework::display::for_people;
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::files::etag_of;
use http::files::open_file_cache::{self, LookupError, OpenFileInfo};
use http::module::{Content, ExplainedEffect, MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::activity::WHILE_SENDING;
use http::request::{Request, Step};
use http::response::BodyIdentity;
use http::response::output::page;
use http::response::prebuilt::offer;
use http::response::source::Body;
use proto::method::Method;
use proto::uri::{self, Escape};

/// Declares the directive `empty_gif`.
pub static EMPTY_GIF: Setting<()> = Setting::new("empty_gif", &[""], parse::nothing)
    .contexts(Contexts::LOCATION)
    .arity(Arity::none())
    .inherit(Inherit::Handler)
    .repeatable()
    .manual("Answers with a transparent GIF of a single pixel, from memory.");

/// The directives of this file that choose a handler and make no [`Feature`].
pub const HANDLERS: &[&dyn Declared] = &[&EMPTY_GIF];

/// Serves the file that the URI maps to.
pub struct StaticFile;

impl Feature for StaticFile {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[];

    fn compile(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<StaticFile, Fault> {
        Ok(StaticFile)
    }
}

impl Module for StaticFile {
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "it answers with files, and what it answers is what is kept",
    )];

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.file(self);
    }
}

impl PhaseHandler for StaticFile {
    /// Responds with the file of the URI.
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
            return MaybeFuture::Now(Ok(Step::Finish(405)));
        }
        if request.uri.ends_with(b"/") {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        let path = request.filename();
        open_file_cache::lookup(request, &path).then(|looked| answer(request, path, looked))
    }

    fn explain_effect<'a>(&'a self, request: &'a mut Request) -> MaybeFuture<'a, ExplainedEffect> {
        if request.uri.ends_with(b"/") {
            return MaybeFuture::Now(ExplainedEffect::Unknown);
        }
        let path = request.filename();
        let shown = for_people(&path);
        MaybeFuture::Now(match file::stat_now(&Request::path_of(&path)) {
            Ok(metadata) if metadata.is_dir() => ExplainedEffect::Answers {
                text: format!("{shown} is a directory: redirects to the path with a slash"),
                status: 301,
            },
            Ok(metadata) => ExplainedEffect::Answers {
                text: format!("the file {shown}, {} bytes", metadata.size),
                status: 200,
            },
            Err(error) => {
                let status = match error.kind() {
                    io::ErrorKind::PermissionDenied => 403,
                    _ => 404,
                };
                ExplainedEffect::Does {
                    part: "content",
                    text: format!("{shown}: {error}: status {status}"),
                    step: Step::Finish(status),
                }
            }
        })
    }
}

/// Responds according to what is at the path: a file, a directory, or nothing.
fn answer<'a>(
    request: &'a mut Request,
    path: Vec<u8>,
    looked: Result<OpenFileInfo, LookupError>,
) -> MaybeFuture<'a> {
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => {
            offer::offer_missing(request, &path, &error.error);
            return MaybeFuture::Now(Ok(Step::Finish(refused(request, &path, &error))));
        }
    };
    request.routing.root_tested = !request.routing.error_page_taken;
    if looked.metadata.is_dir() {
        request.response.location = Some(with_slash(request));
        return MaybeFuture::Now(Ok(Step::Finish(301)));
    }
    if !looked.metadata.is_file() {
        logs::error!(
            request,
            Crit,
            "\"{}\" is not a regular file",
            logs::Printable(&path)
        );
        return MaybeFuture::Now(Ok(Step::Finish(404)));
    }
    if request.method == Method::Post {
        return MaybeFuture::Now(Ok(Step::Finish(405)));
    }
    let step = respond(request, &looked);
    request.response.body_identity = BodyIdentity::of_file(&looked.metadata);
    match looked.file {
        Some(file) if offer::wants(request, &looked.metadata) => MaybeFuture::wait(async move {
            offer::offer(request, &path, &file, &looked.metadata).await;
            Ok(step)
        }),
        _ => MaybeFuture::Now(Ok(step)),
    }
}

/// The response with an open file; its content type follows from the URI. Also used for
/// precompressed files.
pub(super) fn respond(request: &mut Request, looked: &OpenFileInfo) -> Step {
    let OpenFileInfo {
        file: Some(file),
        metadata,
    } = looked
    else {
        return Step::Finish(500);
    };
    let etag = etag_of(&request.plan.core, metadata);
    request.activity.sending = WHILE_SENDING;
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(metadata.size);
    response.last_modified = Some(metadata.mtime);
    if response.content_type.is_empty() {
        response.content_type = request.plan.types.content_type(&request.uri).clone();
    }
    if let Some(etag) = etag {
        response.add(Bytes::from_static(b"ETag"), etag);
    }
    response.allow_ranges = true;
    if metadata.size == 0 {
        return Step::Respond(Body::Empty);
    }
    Step::Respond(Body::file(file.clone(), 0, metadata.size))
}

/// Logs a failed open as nginx does, and returns the status of the response.
pub(super) fn refused(request: &Request, path: &[u8], error: &LookupError) -> u16 {
    let (call, reason) = (error.call, logs::Errno(&error.error));
    let path = logs::Printable(path);
    match error.errno() {
        libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {
            if request.plan.core.log_not_found {
                logs::error!(request, Error, "{call} \"{path}\" failed {reason}");
            }
            404
        }
        libc::EACCES | libc::EMLINK | libc::ELOOP => {
            logs::error!(request, Error, "{call} \"{path}\" failed {reason}");
            403
        }
        _ => {
            logs::error!(request, Crit, "{call} \"{path}\" failed {reason}");
            500
        }
    }
}

/// The escaped URI with a final slash, and the arguments.
fn with_slash(request: &Request) -> Bytes {
    let mut location = Vec::with_capacity(request.uri.len() + request.args.len() + 2);
    uri::escape(&request.uri, Escape::Uri, &mut location);
    location.push(b'/');
    if !request.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&request.args);
    }
    location.into()
}

/// The smallest transparent GIF (GIF89a): a screen of one pixel, two colours, the second
/// transparent.
static GIF: [u8; 43] = *b"GIF89a\x01\0\x01\0\x80\x01\0\0\0\0\xff\xff\xff!\xf9\x04\x01\0\0\x01\0,\0\0\0\0\x01\0\x01\0\0\x02\x02L\x01\0;";

/// `Last-Modified` of the pixel, as in nginx: 28 September 1970, 06:00 UTC.
const GIF_LAST_MODIFIED: i64 = 23_349_600;

/// The content handler of `empty_gif`.
pub fn empty_gif(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    Ok(Some(Content::of(EmptyGif)))
}

struct EmptyGif;

impl PhaseHandler for EmptyGif {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(pixel(request)))
    }
}

fn pixel(request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Finish(405);
    }
    request.response.last_modified = Some(GIF_LAST_MODIFIED);
    page(
        request,
        200,
        Bytes::from_static(b"image/gif"),
        Bytes::from_static(&GIF),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gif_is_nginx_s() {
        assert_eq!(GIF.len(), 43);
        assert_eq!(&GIF[..6], b"GIF89a");
        assert_eq!(GIF.last(), Some(&b';'));
    }
}
