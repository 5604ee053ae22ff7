//! `scgi_pass`: requests proxied to an application that speaks SCGI.
//!
//! <https://nginx.org/en/docs/http/ngx_http_scgi_module.html>. `proxying::cache` caches the
//! responses. `applications::unframed` runs the requests; this file has the directives, and the
//! netstring at the start of a request. `proto::scgi` has the framing itself.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, count_of, joined};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::temporary_paths::{self, TemporaryPath};
use http::module::{Content, ShortcutDoc};
use http::request::Request;
use proto::scgi::RequestWriter;

use crate::applications::params::{self, ParamLine, Params};
use crate::applications::unframed::{self, Protocol};
use proxying::cache::CacheLookup;
use proxying::destination::{Scheme, Schemes};
use proxying::family::Family;
use proxying::settings::{self, PassSettings};
use proxying::{buffers, cache};

/// Addresses of `scgi_pass` are written without a scheme, and there is no SCGI over TLS: `scgi://`
/// only appears in log lines.
static SCHEMES: Schemes = Schemes {
    meant: Scheme::plain("scgi://"),
    written: &[],
};

static SCGI_PASS: Setting<Word> =
    Setting::new("scgi_pass", &["address"], |setter| setter.word().cloned())
        .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF))
        .inherit(Inherit::Handler)
        .manual("Passes requests on to an application by SCGI: HOST:PORT, unix:PATH, or the name of an upstream block. Variables may be used. The application is told CONTENT_LENGTH first, as the protocol asks for it; SCGI itself, which it also asks for, is a matter of `scgi_param`, and stands in the file scgi_params.");

static PARAM: Setting<Vec<ParamLine>> = params::setting("scgi_");

/// The directives in common with the other proxying modules.
static SCGI: Family = Family::of_applications("scgi_");

/// The directives in common with the modules that buffer responses.
static BUFFERS: buffers::Family = buffers::Family::of("scgi_");

/// The directives in common with the modules whose responses may be cached.
static CACHE: cache::Family = cache::Family::of_applications("scgi_");

/// The directory of temporary files if no directive sets one.
static TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &BUFFERS.temp_path.spec,
    default: "scgi_temp",
    levels: &[1, 2],
};

/// The directives from which [`PassSettings`] are compiled, and the properties in which SCGI
/// differs from other protocols.
const PASSING: settings::Declared = settings::Declared {
    family: &SCGI,
    buffers: &BUFFERS,
    cache: &CACHE,
    converts_head: false,
    temporary_path: &TEMPORARY_PATH,
    hidden: &[
        "status",
        "x-accel-expires",
        "x-accel-redirect",
        "x-accel-limit-rate",
        "x-accel-buffering",
        "x-accel-charset",
    ],
    passes_authorization: |scope| params::passes_authorization(scope, &PARAM),
};

/// The directives of [`Settings`], by group.
const ALL_OF_SETTINGS: &[&[&dyn Declared]] = &[
    &[&PARAM],
    &SCGI.of_requests(),
    &BUFFERS.all(),
    &CACHE.of_scopes(),
];

/// All directives of this module, by group.
const ALL: &[&[&dyn Declared]] = &[
    &[&SCGI_PASS, &CACHE.cache_path],
    &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS),
];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] =
    &[ShortcutDoc::Same("it is about what applications are told")];

/// `scgi_*` of a scope, except `scgi_pass` itself.
struct Settings {
    /// The settings that all proxying modules have.
    passing: Arc<PassSettings>,
    params: Params,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        Ok(Settings {
            passing: Arc::new(PassSettings::compile(compiler, scope, &PASSING)?),
            params: Params::compile::<RequestWriter<'_>>(compiler, scope, &PARAM)?,
        })
    }
}

impl Protocol for Settings {
    fn passing(&self) -> &Arc<PassSettings> {
        &self.passing
    }

    fn write(&self, request: &mut Request, lookup: Option<&CacheLookup>) -> Result<Bytes, u16> {
        let mut head = Vec::with_capacity(2048);
        let length = request.body.length().unwrap_or(request.body.announced());
        let mut writer = RequestWriter::new(&mut head, length);
        let pass_headers = self.passing.pass_request_headers;
        self.params
            .write(request, pass_headers, lookup, &mut writer);
        match writer.finish() {
            Ok(()) => Ok(head.into()),
            Err(zero) => {
                logs::error!(request, Alert, "{zero}");
                Err(500)
            }
        }
    }
}

/// The content handler of `scgi_cache_purge`.
pub fn purge_content(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
) -> Result<Option<Content>, Fault> {
    CACHE.purge_content(compiler, scope)
}

/// The content handler of `scgi_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(address) = scope.own(&SCGI_PASS)? else {
        return Ok(None);
    };
    let settings: Arc<Settings> = compiler.feature(scope)?;
    unframed::content(compiler, scope, &address, &SCHEMES, settings, None).map(Some)
}

/// Checks the settings in every scope, though only `scgi_pass` uses them.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>().map(drop)
}

/// Registers the directory of temporary files.
pub fn survey(compiler: &Compiler<'_>, _: ScopeRef<'_>) {
    temporary_paths::add(compiler, &TEMPORARY_PATH);
}
