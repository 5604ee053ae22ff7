//! TLS to upstreams of HTTP requests: evaluates [`transport::tls::upstream::settings`] for a
//! request, and converts handshake failures to errors of an attempt.

use std::time::Instant;

use conf::Contexts;
use http::request::Request;
use transport::Transport;
use transport::tls::upstream::settings::{self, NotSecured};

pub use transport::tls::upstream::settings::{Family, ResolvedTls};

use super::family::Causes;
use crate::failures::AttemptError;
use ::upstream::{AttemptFailure, CONNECTING};

/// The TLS settings of a scope.
pub type UpstreamTls = settings::UpstreamTls<Request>;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The activity of the TLS handshake, at the end of log lines.
pub(super) const SHAKING_HANDS: &str = "while SSL handshaking to upstream";

/// [`SHAKING_HANDS`] with a space in front.
const DOING: &str = " while SSL handshaking to upstream";

/// The ALPN name of HTTP/2 (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// The directives with this prefix followed by `ssl_`.
pub const fn family(prefix: &'static str) -> Family {
    Family::of(prefix, HSL)
}

/// Evaluates the server name and the certificate for a request to this host; the error is the
/// status of the response.
pub async fn prepare(
    tls: &UpstreamTls,
    request: &mut Request,
    host: &[u8],
) -> Result<ResolvedTls, u16> {
    let generation = request.local.generation.number;
    let prepared = tls.prepare(request, host, generation).await;
    prepared.map_err(|failed| {
        logs::error!(request, Error, "{failed} {CONNECTING}");
        500
    })
}

/// Performs the TLS handshake with a peer.
pub(super) async fn do_handshake(
    request: &Request,
    stream: &Transport,
    secured: &ResolvedTls,
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
