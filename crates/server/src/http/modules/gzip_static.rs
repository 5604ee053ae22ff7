//! Precompressed files: `name.gz` beside `name`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_gzip_static_module.html>. Whether a client takes gzip is
//! decided by the rules of `gzip_http_version`, `gzip_proxied` and `gzip_disable`, which live with the
//! [gzip filter](crate::http::filters::gzip).

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setter, Setting};
use proto::method::Method;

use crate::compile::{Compiler, Feature};
use crate::http::filters::gzip;
use crate::http::modules::{open_file_cache, static_file};
use crate::http::request::{Request, Step};
use crate::log;

/// `gzip_static on | off | always`
pub static GZIP_STATIC: Setting<GzipStatic> = Setting::new("gzip_static", &["on | off | always"], mode)
    .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
    .default("off")
    .manual(
        "Looks for a file with `.gz` appended to its name. `on`: for clients that accept gzip, by the rules \
         of `gzip_http_version`, `gzip_proxied` and `gzip_disable`. `always`: for every client.",
    );

/// `gzip_static`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GzipStatic {
    /// Not looked for.
    Off,
    /// For clients that accept gzip.
    On,
    /// For every client.
    Always,
}

impl GzipStatic {
    /// Whether precompressed files are not looked for.
    pub fn is_off(self) -> bool {
        self == GzipStatic::Off
    }
}

impl Feature for GzipStatic {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&GZIP_STATIC];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        scope.get(&GZIP_STATIC)
    }
}

fn mode(setter: &Setter<'_>) -> Result<GzipStatic, Fault> {
    conf::parse::enumeration(
        setter,
        &[
            ("off", GzipStatic::Off),
            ("on", GzipStatic::On),
            ("always", GzipStatic::Always),
        ],
    )
}

/// Answers with the precompressed file of the URI, if there is one for this client.
pub async fn serve(request: &mut Request) -> Step {
    let mode = *request.plan.gzip_static;
    if mode.is_off()
        || !matches!(request.method, Method::Get | Method::Head)
        || request.uri.ends_with(b"/")
    {
        return Step::Next;
    }
    let accepted = mode == GzipStatic::Always || gzip::is_acceptable(request);
    // A client that does not get the file must still be told that it exists: caches keep both.
    if !accepted && !request.plan.gzip.vary {
        return Step::Next;
    }
    let mut path = request.filename();
    path.extend_from_slice(b".gz");
    let looked = match open_file_cache::lookup(request, &path).await {
        Ok(looked) => looked,
        Err(error) => {
            let (call, text, reason) =
                (error.call, log::Printable(&path), log::Errno(&error.error));
            match error.errno() {
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
                libc::EACCES | libc::EMLINK | libc::ELOOP => {
                    log::error!(request, Error, "{call} \"{text}\" failed {reason}");
                }
                _ => log::error!(request, Crit, "{call} \"{text}\" failed {reason}"),
            }
            return Step::Next;
        }
    };
    if mode == GzipStatic::On {
        request.response.vary_accept_encoding = request.plan.gzip.vary;
        if !accepted {
            return Step::Next;
        }
    }
    if looked.metadata.is_dir() {
        return Step::Next;
    }
    if !looked.metadata.is_file() {
        log::error!(
            request,
            Crit,
            "\"{}\" is not a regular file",
            log::Printable(&path)
        );
        return Step::Finish(404);
    }
    let step = static_file::respond(request, &looked);
    request.response.add(
        Bytes::from_static(b"Content-Encoding"),
        Bytes::from_static(b"gzip"),
    );
    step
}
