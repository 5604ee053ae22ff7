//! The directives of `memcached_*`, and their compiled settings.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Template, TemplatePart, Word,
    count_of, joined, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::module::{Content, ShortcutDoc};
use http::request::{Size, Text};
use http::variables::Compiling as _;
use proto::header::NameSet;

use ::upstream::RetryPolicy;
use proxying::buffers::Buffers;
use proxying::destination::{Destination, Scheme, Schemes};
use proxying::family::{Causes, Family, causes_of_values};
use proxying::settings::PassSettings;
use rules::upstream::socket::SocketSettings;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Only the text protocol is supported, and the address has no scheme.
static SCHEMES: Schemes = Schemes {
    meant: Scheme::plain("memcached://"),
    written: &[],
};

static MEMCACHED_PASS: Setting<Word> =
    Setting::new("memcached_pass", &["address"], |setter| setter.word().cloned())
        .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF))
        .inherit(Inherit::Handler)
        .manual("Answers GET and HEAD with the value that a memcached server has under the key `$memcached_key`, which `set` says: HOST:PORT, unix:PATH, or the name of an upstream block, without variables. Where it has none the answer is 404, which `error_page` may pass on to what can make it. The media type is that of the URI's extension.");

static NEXT_UPSTREAM: Setting<Causes> = Setting::new(
    "memcached_next_upstream",
    &["error | timeout | invalid_response | not_found | off ..."],
    causes_of_values,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("error timeout")
.manual("When the next server of a group is asked.");

static GZIP_FLAG: Setting<u64> = Setting::new("memcached_gzip_flag", &["flag"], parse::number)
    .contexts(HSL)
    .default("0")
    .manual("A value whose flags have one of these bits is sent with `Content-Encoding: gzip`, as it was stored compressed. With 0 flags are not looked at.");

/// The directives in common with the other proxying modules.
static MEMCACHED: Family = Family::of("memcached_");

/// The directives of [`Settings`].
const OF_SETTINGS: &[&dyn Declared] = &[
    &MEMCACHED.bind,
    &MEMCACHED.socket_keepalive,
    &MEMCACHED.connect_timeout,
    &MEMCACHED.send_timeout,
    &MEMCACHED.buffer_size,
    &MEMCACHED.read_timeout,
    &NEXT_UPSTREAM,
    &MEMCACHED.next_upstream_tries,
    &MEMCACHED.next_upstream_timeout,
    &GZIP_FLAG,
];

/// All directives of this module, by group.
const ALL: &[&[&dyn Declared]] = &[&[&MEMCACHED_PASS], OF_SETTINGS];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[ShortcutDoc::Same("it is about how servers are asked")];

/// `memcached_*` of a scope, except `memcached_pass` itself.
pub(super) struct Settings {
    /// The settings that all proxying modules have.
    pub(super) passing: Arc<PassSettings>,
    pub(super) gzip_flag: u64,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] = OF_SETTINGS;

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        let tries = RetryPolicy {
            connect_timeout: scope.get(&MEMCACHED.connect_timeout)?,
            send_timeout: scope.get(&MEMCACHED.send_timeout)?,
            ignore_client_abort: false,
            next_upstream: scope.get(&NEXT_UPSTREAM)?,
            next_upstream_tries: usize::try_from(scope.get(&MEMCACHED.next_upstream_tries)?)
                .unwrap_or(usize::MAX),
            next_upstream_timeout: scope.get(&MEMCACHED.next_upstream_timeout)?,
        };
        let passing = PassSettings {
            tries,
            read_timeout: scope.get(&MEMCACHED.read_timeout)?,
            buffering: false,
            buffers: Buffers::none(),
            request_buffering: false,
            pass_request_headers: false,
            pass_request_body: false,
            intercept_errors: true,
            buffer_size: scope.get(&MEMCACHED.buffer_size)? as usize,
            socket: SocketSettings::compile(compiler, scope, &MEMCACHED.sockets())?,
            hidden: NameSet::default(),
            omits_server_and_date: false,
            ignored: NameSet::default(),
            force_ranges: true,
            pass_trailers: false,
            limit_rate: Size::Fixed(0),
            store: None,
            cache: None,
        };
        Ok(Settings {
            passing: Arc::new(passing),
            gzip_flag: scope.get(&GZIP_FLAG)?,
        })
    }
}

/// `memcached_pass` of a location or an `if`.
pub(super) struct MemcachedPass {
    pub(super) settings: Arc<Settings>,
    pub(super) destination: Destination,
    /// The key to request.
    pub(super) key: Text,
    /// Identifies the scope. Different scopes do not share connections, unless the group allows it.
    pub(super) place: Bytes,
}

/// The content handler of `memcached_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(address) = scope.own(&MEMCACHED_PASS)? else {
        return Ok(None);
    };
    let key = Template {
        parts: vec![TemplatePart::Variable("memcached_key".into())],
    };
    let handler = MemcachedPass {
        settings: compiler.feature(scope)?,
        destination: Destination::fixed(compiler, &address, &SCHEMES)?,
        key: compiler.text(&key),
        place: scope.place(&["listen", "server_name"]).into(),
    };
    Ok(Some(Content {
        inherited_by_limit_except: true,
        adds_slash: true,
        ..Content::of(handler)
    }))
}

/// Checks the settings in every scope, though only `memcached_pass` uses them.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>().map(drop)
}
