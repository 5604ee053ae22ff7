//! `tunnel_pass`: tunnels for clients that send CONNECT (RFC 9110, section 9.3.6).
//!
//! <https://nginx.org/en/docs/http/ngx_http_tunnel_module.html>. A server with this directive
//! accepts CONNECT over HTTP/1.1; all others reject it before any phase. The configuration must
//! restrict the targets: without an argument, a tunnel leads wherever the client asks. Peers are
//! tried as with `proxy_pass` (`proxying::peer_attempts`). Once a peer is connected, the client
//! gets status 200, and `proxying::tunnel` forwards bytes.

use std::sync::Arc;
use std::time::Duration;

use base::pieces::Pieces;
use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Template, TemplatePart, Word,
    parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::variables::Compiling as _;
use logs::Level;
use proto::method::Method;

use ::upstream::RetryPolicy;
use proxying::cache::CacheLookup;
use proxying::connect_target::ConnectTarget;
use proxying::connection::UpstreamConnection;
use proxying::destination::{Destination, PeerTarget, Scheme, Schemes};
use proxying::driver::{self, BodyReading, PeerOptions, Protocol, SentRequest};
use proxying::failures::{AttemptError, note};
use proxying::family::{Causes, Family, causes_of_connections};
use proxying::peer_attempts::Dialogue;
use proxying::tunnel::{self, TunnelLimits};
use proxying::upstream::Group;
use rules::upstream::socket::SocketSettings;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The key by which connections are reused. No other module has this key, and each tunnel has a
/// connection of its own, so no connection is reused.
const NEVER_SHARED: &[u8] = b"tunnel";

/// A tunnel has no protocol, and addresses have no scheme.
static SCHEMES: Schemes = Schemes {
    meant: Scheme::plain(""),
    written: &[],
};

static TUNNEL_PASS: Setting<Option<Word>> = Setting::new("tunnel_pass", &["[address]"], |setter| {
    Ok(setter.args().first().cloned())
})
.contexts(
    Contexts::SERVER
        .or(Contexts::LOCATION)
        .or(Contexts::LOCATION_IF),
)
.arity(Arity::between(0, 1))
.inherit(Inherit::Handler)
.manual("Answers CONNECT with a tunnel to a server: HOST:PORT, unix:PATH, the name of an upstream block, or a value with variables that comes to one of these. Without an argument it is the host and port that the client has asked for ($host:$request_port): every client that is let in then reaches what this machine reaches, so access rules, `map` or a fixed address should say what that may be. Other methods are answered with 405. CONNECT is let in by servers that hold this directive, over HTTP/1.1 alone, and refused with 405 by all others.");

static NEXT_UPSTREAM: Setting<Causes> = Setting::new(
    "tunnel_next_upstream",
    &["error | timeout | off ..."],
    causes_of_connections,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("error timeout")
.manual("When the next server of a group, or the next address of a name, is tried: always before the client has its answer.");

static SEND_TIMEOUT: Setting<Duration> = time("tunnel_send_timeout")
    .manual("How long the server may take nothing of what is for it; the tunnel ends then.");

static READ_TIMEOUT: Setting<Duration> = time("tunnel_read_timeout")
    .manual("How long there may be silence in both ways; the tunnel ends then.");

static BUFFER_SIZE: Setting<u64> = Setting::new("tunnel_buffer_size", &["size"], parse::size)
    .contexts(HSL)
    .default("4k")
    .manual("How many bytes may wait for either side before the other is not read on.");

const fn time(name: &'static str) -> Setting<Duration> {
    Setting::new(name, &["time"], parse::milliseconds)
        .contexts(HSL)
        .default("60s")
}

/// The directives in common with the other proxying modules.
static TUNNEL: Family = Family::of("tunnel_");

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &TUNNEL_PASS,
    &TUNNEL.bind,
    &TUNNEL.socket_keepalive,
    &TUNNEL.socket_rcvbuf,
    &TUNNEL.socket_sndbuf,
    &TUNNEL.connect_timeout,
    &SEND_TIMEOUT,
    &TUNNEL.send_lowat,
    &BUFFER_SIZE,
    &READ_TIMEOUT,
    &NEXT_UPSTREAM,
    &TUNNEL.next_upstream_tries,
    &TUNNEL.next_upstream_timeout,
];

/// `tunnel_*` of a scope, except `tunnel_pass` itself.
struct Settings {
    tries: RetryPolicy,
    read_timeout: Duration,
    buffer_size: usize,
    socket: SocketSettings<Request>,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &TUNNEL.bind,
        &TUNNEL.socket_keepalive,
        &TUNNEL.socket_rcvbuf,
        &TUNNEL.socket_sndbuf,
        &TUNNEL.connect_timeout,
        &SEND_TIMEOUT,
        &BUFFER_SIZE,
        &READ_TIMEOUT,
        &NEXT_UPSTREAM,
        &TUNNEL.next_upstream_tries,
        &TUNNEL.next_upstream_timeout,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Ok(Settings {
            tries: RetryPolicy {
                connect_timeout: scope.get(&TUNNEL.connect_timeout)?,
                send_timeout: scope.get(&SEND_TIMEOUT)?,
                ignore_client_abort: false,
                next_upstream: scope.get(&NEXT_UPSTREAM)?,
                next_upstream_tries: count(scope.get(&TUNNEL.next_upstream_tries)?),
                next_upstream_timeout: scope.get(&TUNNEL.next_upstream_timeout)?,
            },
            read_timeout: scope.get(&READ_TIMEOUT)?,
            buffer_size: count(scope.get(&BUFFER_SIZE)?),
            socket: SocketSettings::compile(compiler, scope, &TUNNEL.sockets())?,
        })
    }
}

/// `tunnel_pass` of a scope.
struct TunnelPass {
    settings: Arc<Settings>,
    destination: Destination,
}

/// The content handler of `tunnel_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(word) = scope.own(&TUNNEL_PASS)? else {
        return Ok(None);
    };
    let handler = TunnelPass {
        settings: compiler.feature(scope)?,
        destination: match word {
            Some(word) => Destination::compile(compiler, &word, &SCHEMES)?,
            None => Destination::of_text(compiler.text(&asked_for()), &SCHEMES),
        },
    };
    Ok(Some(Content {
        inherited_by_limit_except: true,
        answers_connect: true,
        ..Content::of(handler)
    }))
}

/// Checks the settings in every scope, though only `tunnel_pass` uses them.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>().map(drop)
}

/// The default target of a tunnel: `$host:$request_port`, which the client has asked for.
fn asked_for() -> Template {
    let variable = |name: &str| TemplatePart::Variable(name.into());
    Template {
        parts: vec![
            variable("host"),
            TemplatePart::Literal((*b":").into()),
            variable("request_port"),
        ],
    }
}

impl PhaseHandler for TunnelPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if request.method != Method::Connect {
            return MaybeFuture::Now(Ok(Step::Finish(405)));
        }
        request.start_background();
        MaybeFuture::wait(driver::pass_on(request, exchange, self))
    }
}

/// The protocol of a tunnel: an established connection to a peer is enough.
struct NoProtocol;

impl Dialogue for NoProtocol {
    type Answer = ();

    async fn talk(
        &self,
        request: &mut Request,
        _: &mut Exchange,
        _: &mut UpstreamConnection,
    ) -> Result<(), AttemptError> {
        note(request, |attempt, began| {
            attempt.header_time = began.elapsed()
        });
        Ok(())
    }

    fn status(&self, (): &()) -> Option<u16> {
        None
    }

    fn can_be_repeated(&self) -> bool {
        true
    }
}

impl Protocol for TunnelPass {
    type Target = PeerTarget;
    type Outgoing = ();
    type Dialogue<'a> = NoProtocol;
    type Answer = ();

    fn peer_options(&self) -> PeerOptions<'_> {
        PeerOptions {
            tries: self.settings.tries,
            socket: &self.settings.socket,
            tls: None,
            is_shared: false,
        }
    }

    fn find(&self, request: &mut Request) -> Result<PeerTarget, u16> {
        self.destination.find(request, Level::Info)
    }

    fn not_found(&self, _: &mut Request) {}

    /// CONNECT has no body; the bytes after the head are for the peer.
    fn reading(&self, _: &Request, _: &PeerTarget) -> BodyReading {
        BodyReading::Whole
    }

    async fn write(
        &self,
        _: &mut Request,
        _: &PeerTarget,
        _: Option<Pieces>,
        _: Option<&CacheLookup>,
    ) -> Result<(), u16> {
        Ok(())
    }

    fn terms(&self, _: &Group, _: &ConnectTarget) -> Bytes {
        Bytes::from_static(NEVER_SHARED)
    }

    fn dialogue<'a>(&'a self, _: &'a PeerTarget, (): &'a ()) -> NoProtocol {
        NoProtocol
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        exchange: &'a mut Exchange,
        _: &SentRequest<PeerTarget, ()>,
        peer: UpstreamConnection,
        (): (),
    ) -> MaybeFuture<'a> {
        request.response.status = 200;
        request.response.conditions_evaluated = true;
        let limits = TunnelLimits {
            read_timeout: self.settings.read_timeout,
            backlog_max: self.settings.buffer_size,
        };
        MaybeFuture::wait(tunnel::run(request, exchange, limits, peer, Bytes::new()))
    }
}
