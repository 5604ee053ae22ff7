//! Precompressed files: `name.gz`, `name.br` or `name.zst` next to `name`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_gzip_static_module.html>,
//! <https://github.com/google/ngx_brotli>, <https://github.com/tokers/zstd-nginx-module>.
//! [`compress`](crate::filters::compress) determines which codings a client accepts; for gzip, by
//! the rules of `gzip_http_version`, `gzip_proxied` and `gzip_disable`.

use std::sync::Arc;

use conf::{Contexts, Declared, Fault, ScopeRef, Setter, Setting};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::files::open_file_cache::{self, LookupError, OpenFileInfo};
use http::module::{MaybeFuture, Module, PhaseHandler};
use http::request::{Request, Step};
use proto::method::Method;

use crate::filters::compress::{BY_PREFERENCE, Coding};
use crate::filters::gzip;
use crate::static_file;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `gzip_static on | off | always`
pub static GZIP_STATIC: Setting<Mode> = Setting::new("gzip_static", &["on | off | always"], mode)
    .contexts(HSL)
    .default("off")
    .manual(
        "Looks for a file with `.gz` appended to its name. `on`: for clients that accept gzip, by the rules \
         of `gzip_http_version`, `gzip_proxied` and `gzip_disable`. `always`: for every client.",
    );

/// `brotli_static on | off | always`
pub static BROTLI_STATIC: Setting<Mode> = Setting::new("brotli_static", &["on | off | always"], mode)
    .contexts(HSL)
    .default("off")
    .manual(
        "Looks for a file with `.br` appended to its name. `on`: for clients that accept br. `always`: for \
         every client. Where files of several codings are looked for, the client's quality values decide; \
         of equal ones br goes before zstd and gzip.",
    );

/// `zstd_static on | off | always`
pub static ZSTD_STATIC: Setting<Mode> = Setting::new("zstd_static", &["on | off | always"], mode)
    .contexts(HSL)
    .default("off")
    .manual(
        "Looks for a file with `.zst` appended to its name. `on`: for clients that accept zstd. `always`: \
         for every client.",
    );

/// The clients for which precompressed files are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Compressed files are served to no client.
    Off,
    /// Compressed files are served to clients that accept the coding.
    On,
    /// Compressed files are served to every client.
    Always,
}

fn mode(setter: &Setter<'_>) -> Result<Mode, Fault> {
    conf::parse::enumeration(
        setter,
        &[
            ("off", Mode::Off),
            ("on", Mode::On),
            ("always", Mode::Always),
        ],
    )
}

/// `gzip_static`, `brotli_static` and `zstd_static` in one scope.
#[derive(Clone, Copy, Debug)]
pub struct Precompressed {
    gzip: Mode,
    brotli: Mode,
    zstd: Mode,
}

impl Feature for Precompressed {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&GZIP_STATIC, &BROTLI_STATIC, &ZSTD_STATIC];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Precompressed {
            gzip: scope.get(&GZIP_STATIC)?,
            brotli: scope.get(&BROTLI_STATIC)?,
            zstd: scope.get(&ZSTD_STATIC)?,
        })
    }
}

impl Precompressed {
    fn mode(self, coding: Coding) -> Mode {
        match coding {
            Coding::Gzip => self.gzip,
            Coding::Brotli => self.brotli,
            Coding::Zstd => self.zstd,
        }
    }
}

impl Module for Precompressed {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Files, &["gzip_static"]).listed(4)];

    /// Whether no precompressed file is looked up.
    fn is_off(&self) -> bool {
        BY_PREFERENCE
            .iter()
            .all(|coding| self.mode(*coding) == Mode::Off)
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.file(self);
    }
}

impl PhaseHandler for Precompressed {
    /// Responds with a precompressed file of the URI, if there is one for this client.
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        if !matches!(request.method, Method::Get | Method::Head) || request.uri.ends_with(b"/") {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        let mut codings = BY_PREFERENCE.map(|coding| (coding.quality(request), coding));
        codings.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
        look_for(request, *self, codings, 0).then(|step| MaybeFuture::Now(Ok(step)))
    }
}

/// The codings with the client's quality value of each.
type Codings = [(u16, Coding); BY_PREFERENCE.len()];

/// Looks for files of the codings from index `first` on.
fn look_for<'a>(
    request: &'a mut Request,
    modes: Precompressed,
    codings: Codings,
    first: usize,
) -> MaybeFuture<'a, Step> {
    let Some(&(quality, coding)) = codings.get(first) else {
        return MaybeFuture::Now(Step::Next);
    };
    let mode = modes.mode(coding);
    let accepted = match mode {
        Mode::Off => false,
        Mode::On => quality > 0,
        Mode::Always => true,
    };
    // If the file exists, the response must vary even for a client that does not accept the coding,
    // since caches may store both forms of the response.
    if mode == Mode::Off || (!accepted && !gzip::varies(request)) {
        return look_for(request, modes, codings, first + 1);
    }
    let mut path = request.filename();
    path.extend_from_slice(match coding {
        Coding::Gzip => b".gz",
        Coding::Brotli => b".br",
        Coding::Zstd => b".zst",
    });
    open_file_cache::lookup(request, &path).then(move |looked| {
        match answer(request, &path, looked, (coding, mode, accepted)) {
            Step::Next => look_for(request, modes, codings, first + 1),
            step => MaybeFuture::Now(step),
        }
    })
}

/// Handles the result of looking up the path of a coding.
fn answer(
    request: &mut Request,
    path: &[u8],
    looked: Result<OpenFileInfo, LookupError>,
    (coding, mode, accepted): (Coding, Mode, bool),
) -> Step {
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => {
            let (call, text, reason) =
                (error.call, logs::Printable(path), logs::Errno(&error.error));
            match error.errno() {
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
                libc::EACCES | libc::EMLINK | libc::ELOOP => {
                    logs::error!(request, Error, "{call} \"{text}\" failed {reason}");
                }
                _ => logs::error!(request, Crit, "{call} \"{text}\" failed {reason}"),
            }
            return Step::Next;
        }
    };
    if mode == Mode::On {
        request.response.vary_accept_encoding = gzip::varies(request);
        if !accepted {
            return Step::Next;
        }
    }
    if looked.metadata.is_dir() {
        return Step::Next;
    }
    if !looked.metadata.is_file() {
        logs::error!(
            request,
            Crit,
            "\"{}\" is not a regular file",
            logs::Printable(path)
        );
        return Step::Finish(404);
    }
    request.routing.root_tested = !request.routing.error_page_taken;
    let step = static_file::respond(request, &looked);
    request.response.set_coding(coding.name());
    step
}
