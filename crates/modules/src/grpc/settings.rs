//! The directives of `grpc_*`, and their compiled settings.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, count_of, joined, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::module::{Content, Shortcut, ShortcutDoc};
use http::request::{Request, Size};
use proto::header::NameSet;

use super::SCHEMES;
use super::errors::Errors;
use ::upstream::RetryPolicy;
use proxying::buffers::Buffers;
use proxying::destination::Destination;
use proxying::family::Family;
use proxying::fields::{self, SetField};
use proxying::settings::PassSettings;
use proxying::ssl::{self, UpstreamTls};
use proxying::upstream::Group;
use rules::upstream::socket::SocketSettings;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static GRPC_PASS: Setting<Word> =
    Setting::new("grpc_pass", &["address"], |setter| setter.word().cloned())
        .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF))
        .inherit(Inherit::Handler)
        .manual("Passes calls on to a server of gRPC: HOST:PORT, unix:PATH, or the name of an upstream block, with `grpc://` or, for TLS, `grpcs://` before it. Variables may be used. Calls share connections, as streams: as many as the server takes at once, and only beyond that more connections are made.");

static SET_HEADER: Setting<Vec<(Word, Word)>> = fields::setting(
    "grpc_",
    "Sets a field of the call that the server gets; an empty value leaves the field out. Written on one level, it replaces those of the levels above.",
);

static ERRORS: Setting<bool> = Setting::new("grpc_errors", &["http | grpc"], |setter| {
    parse::enumeration(setter, &[("http", false), ("grpc", true)])
})
.contexts(HSL)
.default("http")
.manual("The status of HTTP of answers that the server of gRPC has not given, such as those for a server that is not there or for a limit: that of nginx, or 200, as servers of gRPC have it. Both have `grpc-status` and `grpc-message`, which some clients, such as Go's, look at only beside 200.");

static WEB: Setting<bool> = Setting::new("grpc_web", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual("Takes calls of gRPC-Web, which browsers make, by HTTP/1 as well as HTTP/2, and passes them on as calls of gRPC. What a browser may ask of another origin is for `add_header` to say.");

/// The directives in common with the other proxying modules.
static GRPC: Family = Family::of_calls("grpc_");

/// The TLS directives in common with the other proxying modules.
static TLS: ssl::Family = ssl::family("grpc_");

/// Fields that are hidden from clients unless `grpc_pass_header` names them.
const HIDDEN: [&str; 7] = [
    "date",
    "server",
    "x-accel-expires",
    "x-accel-redirect",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
];

/// The directives of [`Settings`].
const OF_SETTINGS: &[&dyn Declared] = &[
    &GRPC.bind,
    &GRPC.socket_keepalive,
    &GRPC.socket_rcvbuf,
    &GRPC.socket_sndbuf,
    &GRPC.connect_timeout,
    &GRPC.send_timeout,
    &GRPC.intercept_errors,
    &GRPC.buffer_size,
    &GRPC.read_timeout,
    &GRPC.next_upstream,
    &GRPC.next_upstream_tries,
    &GRPC.next_upstream_timeout,
    &SET_HEADER,
    &GRPC.pass_header,
    &GRPC.hide_header,
    &GRPC.ignore_headers,
    &ERRORS,
    &WEB,
];

/// All directives of this module, by group.
const ALL: &[&[&dyn Declared]] = &[&[&GRPC_PASS], OF_SETTINGS, &TLS.all()];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[ShortcutDoc::Never(
    "answers of ours to calls have a status of gRPC",
)];

/// `grpc_*` of a scope, except `grpc_pass` itself and TLS.
pub(super) struct Settings {
    /// The settings that all proxying modules have.
    pub(super) passing: Arc<PassSettings>,
    pub(super) set: Vec<SetField>,
    /// Fields of the client's call that are not forwarded: those that `grpc_set_header` sets, and
    /// the fields that concern only the client's connection.
    pub(super) replaced: NameSet,
    /// Whether Tidegate's own responses have HTTP status 200.
    pub(super) errors_as_grpc: bool,
    pub(super) web: bool,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] = OF_SETTINGS;

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        let names = |words: &[Word]| -> NameSet { words.iter().map(|word| &*word.bytes).collect() };
        let passed = names(&scope.written(&GRPC.pass_header)?.unwrap_or_default());
        let more = scope.written(&GRPC.hide_header)?.unwrap_or_default();
        let hidden = HIDDEN.iter().map(|name| name.as_bytes());
        let hidden = hidden.chain(more.iter().map(|word| &*word.bytes));
        let hidden = hidden.filter(|name| !passed.contains_name(name)).collect();
        let ignored = scope.written(&GRPC.ignore_headers)?.unwrap_or_default();
        // Responses are never buffered, whatever the server asks for.
        let ignored = ignored.iter().map(|word| &*word.bytes);
        let ignored = ignored.chain([&b"X-Accel-Buffering"[..]]).collect();
        let tries = RetryPolicy {
            connect_timeout: scope.get(&GRPC.connect_timeout)?,
            send_timeout: scope.get(&GRPC.send_timeout)?,
            ignore_client_abort: false,
            next_upstream: scope.get(&GRPC.next_upstream)?,
            next_upstream_tries: usize::try_from(scope.get(&GRPC.next_upstream_tries)?)
                .unwrap_or(usize::MAX),
            next_upstream_timeout: scope.get(&GRPC.next_upstream_timeout)?,
        };
        let passing = PassSettings {
            tries,
            read_timeout: scope.get(&GRPC.read_timeout)?,
            buffering: false,
            buffers: Buffers::none(),
            request_buffering: false,
            pass_request_headers: true,
            pass_request_body: true,
            intercept_errors: scope.get(&GRPC.intercept_errors)?,
            buffer_size: scope.get(&GRPC.buffer_size)? as usize,
            socket: SocketSettings::compile(compiler, scope, &GRPC.sockets())?,
            hidden,
            omits_server_and_date: false,
            ignored,
            force_ranges: false,
            pass_trailers: true,
            limit_rate: Size::Fixed(0),
            store: None,
            cache: None,
        };
        let lines = scope.written(&SET_HEADER)?.unwrap_or_default();
        let (set, replaced) = fields::compile(compiler, lines)?;
        Ok(Settings {
            passing: Arc::new(passing),
            set,
            replaced,
            errors_as_grpc: scope.get(&ERRORS)?,
            web: scope.get(&WEB)?,
        })
    }
}

/// `grpc_ssl_*` of a scope.
struct Tls(Arc<UpstreamTls>);

impl Feature for Tls {
    const DIRECTIVES: &'static [&'static dyn Declared] = &TLS.all();

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Tls, Fault> {
        let tls = TLS.compile(compiler, scope, vec![ssl::HTTP2.to_vec()])?;
        Ok(Tls(Arc::new(tls)))
    }
}

/// `grpc_pass` of a location or an `if`.
pub struct GrpcPass {
    pub(super) settings: Arc<Settings>,
    pub(super) destination: Destination,
    /// TLS, if the address may require it.
    pub(super) tls: Option<Arc<UpstreamTls>>,
    /// Identifies the scope. Different scopes do not share connections, unless the group allows it.
    pub(super) place: Bytes,
}

impl GrpcPass {
    /// The `grpc_pass` of exactly this scope; `None` if there is none.
    pub fn of_scope(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<GrpcPass>, Fault> {
        let Some(address) = scope.own(&GRPC_PASS)? else {
            return Ok(None);
        };
        let destination = Destination::compile(compiler, &address, &SCHEMES)?;
        let tls = if destination.may_be_secure() {
            let tls: Arc<Tls> = compiler.feature(scope)?;
            Some(Arc::clone(&tls.0))
        } else {
            None
        };
        Ok(Some(GrpcPass {
            settings: compiler.feature(scope)?,
            destination,
            tls,
            place: scope.place(&["listen", "server_name"]).into(),
        }))
    }

    /// The group to which all calls of this `grpc_pass` go; `None` if the group depends on the
    /// call.
    pub fn group(&self) -> Option<&Arc<Group>> {
        self.destination.group()
    }
}

/// The content handler of `grpc_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(handler) = GrpcPass::of_scope(compiler, scope)? else {
        return Ok(None);
    };
    Ok(Some(Content {
        inherited_by_limit_except: true,
        adds_slash: true,
        ..Content::of(handler)
    }))
}

/// Checks the settings in every scope, though only `grpc_pass` uses them. With `grpc_pass`,
/// Tidegate's own responses become gRPC responses.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let settings = plan.feature::<Settings>()?;
    // An `if` within its location handles calls, too.
    if plan
        .scope
        .written(&GRPC_PASS)
        .is_ok_and(|address| address.is_some())
    {
        plan.filter(&Arc::new(Errors {
            as_grpc: settings.errors_as_grpc,
        }));
        plan.shortcut(Shortcut::Never);
    }
    Some(())
}

/// Checks the whole configuration for TLS settings that are not used.
pub fn survey(compiler: &Compiler<'_>, root: ScopeRef<'_>) {
    TLS.check_unused::<Request>(compiler, root);
}
