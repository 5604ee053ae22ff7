//! `uwsgi_pass`: requests proxied to an application server that speaks uwsgi, such as uWSGI itself.
//!
//! <https://nginx.org/en/docs/http/ngx_http_uwsgi_module.html>. `proxying::cache` caches the
//! responses. `applications::unframed` runs the requests; this file has the directives, and the
//! packet at the start of a request. `proto::uwsgi` has the framing itself.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, count_of, joined, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::temporary_paths::{self, TemporaryPath};
use http::module::{Content, ShortcutDoc};
use http::request::Request;
use proto::uwsgi::RequestWriter;

use crate::applications::params::{self, ParamLine, Params};
use crate::applications::unframed::{self, Protocol};
use proxying::cache::CacheLookup;
use proxying::destination::{Scheme, Schemes};
use proxying::family::Family;
use proxying::settings::{self, PassSettings};
use proxying::ssl::{self, UpstreamTls};
use proxying::{buffers, cache};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The scheme of peers without TLS.
const PLAIN: Scheme = Scheme::plain("uwsgi://");

static SCHEMES: Schemes = Schemes {
    meant: PLAIN,
    written: &[
        PLAIN,
        Scheme {
            text: "suwsgi://",
            is_secure: true,
        },
    ],
};

static UWSGI_PASS: Setting<Word> =
    Setting::new("uwsgi_pass", &["[protocol://]address"], |setter| setter.word().cloned())
        .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF))
        .inherit(Inherit::Handler)
        .manual("Passes requests on to an application server by uwsgi: HOST:PORT, unix:PATH, or the name of an upstream block, with `uwsgi://` or, for TLS, `suwsgi://` before it. Variables may be used.");

static MODIFIER1: Setting<u8> = Setting::new("uwsgi_modifier1", &["number"], modifier)
    .contexts(HSL)
    .default("0")
    .manual("The first byte of each packet, from 0 to 255: what kind of request it is. 0 is for WSGI, 5 for PSGI, 9 for CGI.");

static MODIFIER2: Setting<u8> = Setting::new("uwsgi_modifier2", &["number"], modifier)
    .contexts(HSL)
    .default("0")
    .manual("The fourth byte of each packet, from 0 to 255, whose meaning depends on the first.");

static STRING: Setting<Bytes> = Setting::new("uwsgi_string", &["text"], parse::bytes)
    .contexts(HSL)
    .manual("Bytes that each packet has behind its parameters, as they are written here.");

static PARAM: Setting<Vec<ParamLine>> = params::setting("uwsgi_");

/// The directives in common with the other proxying modules.
static UWSGI: Family = Family::of_applications("uwsgi_");

/// The directives in common with the modules that buffer responses.
static BUFFERS: buffers::Family = buffers::Family::of("uwsgi_");

/// The directives in common with the modules whose responses may be cached.
static CACHE: cache::Family = cache::Family::of_applications("uwsgi_");

/// The TLS directives in common with the other proxying modules.
static TLS: ssl::Family = ssl::family("uwsgi_");

/// The directory of temporary files if no directive sets one.
static TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &BUFFERS.temp_path.spec,
    default: "uwsgi_temp",
    levels: &[1, 2],
};

/// The directives of these families, from which [`PassSettings`] are compiled.
const PASSING: settings::Declared = settings::Declared {
    family: &UWSGI,
    buffers: &BUFFERS,
    cache: &CACHE,
    converts_head: false,
    temporary_path: &TEMPORARY_PATH,
    // Unlike with FastCGI and SCGI, a response may have a status line, and `Status` is an ordinary
    // field.
    hidden: &[
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
    &[&MODIFIER1, &MODIFIER2, &STRING, &PARAM],
    &UWSGI.of_requests(),
    &BUFFERS.all(),
    &CACHE.of_scopes(),
];

/// All directives of this module, by group.
const ALL: &[&[&dyn Declared]] = &[
    &[&UWSGI_PASS, &CACHE.cache_path],
    &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS),
    &TLS.all(),
];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] =
    &[ShortcutDoc::Same("it is about what applications are told")];

/// `uwsgi_*` of a scope, except `uwsgi_pass` itself and TLS.
struct Settings {
    /// The settings that all proxying modules have.
    passing: Arc<PassSettings>,
    params: Params,
    modifier1: u8,
    modifier2: u8,
    /// `uwsgi_string`.
    string: Bytes,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        Ok(Settings {
            passing: Arc::new(PassSettings::compile(compiler, scope, &PASSING)?),
            params: Params::compile::<RequestWriter<'_>>(compiler, scope, &PARAM)?,
            modifier1: scope.get(&MODIFIER1)?,
            modifier2: scope.get(&MODIFIER2)?,
            string: scope.written(&STRING)?.unwrap_or_default(),
        })
    }
}

/// `uwsgi_ssl_*` of a scope.
struct Tls(Arc<UpstreamTls>);

impl Feature for Tls {
    const DIRECTIVES: &'static [&'static dyn Declared] = &TLS.all();

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Tls, Fault> {
        TLS.compile(compiler, scope, Vec::new())
            .map(|tls| Tls(Arc::new(tls)))
    }
}

impl Protocol for Settings {
    fn passing(&self) -> &Arc<PassSettings> {
        &self.passing
    }

    fn write(&self, request: &mut Request, lookup: Option<&CacheLookup>) -> Result<Bytes, u16> {
        let mut packet = Vec::with_capacity(2048);
        let mut writer = RequestWriter::new(&mut packet, self.modifier1, self.modifier2);
        let pass_headers = self.passing.pass_request_headers;
        self.params
            .write(request, pass_headers, lookup, &mut writer);
        writer.push_string(&self.string);
        match writer.finish() {
            Ok(()) => Ok(packet.into()),
            Err(too_long) => {
                logs::error!(request, Alert, "{too_long}");
                Err(500)
            }
        }
    }
}

/// The content handler of `uwsgi_cache_purge`.
pub fn purge_content(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
) -> Result<Option<Content>, Fault> {
    CACHE.purge_content(compiler, scope)
}

/// The content handler of `uwsgi_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(address) = scope.own(&UWSGI_PASS)? else {
        return Ok(None);
    };
    let settings: Arc<Settings> = compiler.feature(scope)?;
    let tls = || {
        let tls: Arc<Tls> = compiler.feature(scope)?;
        Ok(Arc::clone(&tls.0))
    };
    unframed::content(compiler, scope, &address, &SCHEMES, settings, Some(&tls)).map(Some)
}

/// Checks the settings in every scope, though only `uwsgi_pass` uses them.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>().map(drop)
}

/// Registers the directory of temporary files, and checks the whole configuration for TLS settings
/// that are not used.
pub fn survey(compiler: &Compiler<'_>, root: ScopeRef<'_>) {
    temporary_paths::add(compiler, &TEMPORARY_PATH);
    TLS.check_unused::<Request>(compiler, root);
}

fn modifier(setter: &Setter<'_>) -> Result<u8, Fault> {
    let number = parse::number(setter)?;
    u8::try_from(number).map_err(|_| Fault::new("value must be between 0 and 255"))
}
