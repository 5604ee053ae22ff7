//! TLS towards upstreams of HTTP: what a request needs of [`transport::tls::upstream::settings`],
//! and what comes of a peer that does not become secure.

use std::time::Instant;

use conf::Contexts;
use http::request::Request;
use transport::Transport;
use transport::tls::upstream::settings::{self, NotSecured};

pub use transport::tls::upstream::settings::{Family, Secured};

use super::family::Causes;
use crate::failures::AttemptError;
use ::upstream::{AttemptFailure, CONNECTING};

/// TLS towards upstreams as a scope wants it.
pub type UpstreamTls = settings::UpstreamTls<Request>;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The handshake, as the end of a log line names it.
pub(super) const SHAKING_HANDS: &str = "while SSL handshaking to upstream";

/// The end of such a line, with the space before it.
const DOING: &str = " while SSL handshaking to upstream";

/// HTTP/2 by its name (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// The directives that begin with this prefix and `ssl_`.
pub const fn family(prefix: &'static str) -> Family {
    Family::of(prefix, HSL)
}

/// Finds name and certificate for a request to this host, or the status to answer with.
pub async fn prepare(
    tls: &UpstreamTls,
    request: &mut Request,
    host: &[u8],
) -> Result<Secured, u16> {
    let generation = request.local.generation.number;
    let prepared = tls.prepare(request, host, generation).await;
    prepared.map_err(|failed| {
        logs::error!(request, Error, "{failed} {CONNECTING}");
        500
    })
}

/// Makes a connection to a peer secure.
pub(super) async fn shake_hands(
    request: &Request,
    stream: &Transport,
    secured: &Secured,
    deadline: Instant,
) -> Result<(), AttemptError> {
    stream.set_nodelay(request.plan.core.tcp_nodelay);
    let secure = settings::secure(stream, secured, deadline, request, DOING);
    let Err(not_secured) = secure.await else {
        return Ok(());
    };
    let (cause, status) = match not_secured {
        NotSecured::TimedOut => (Causes::TIMEOUT, 504),
        NotSecured::Failed => (Causes::ERROR, 502),
    };
    let failure = AttemptFailure::new(cause, status, SHAKING_HANDS);
    Err(AttemptError::Failed(failure))
}
