//! TLS for connections to upstream servers.

use logs::network::TIMED_OUT;
use transport::Transport;
use transport::tls::upstream::settings::{NotSecured, ResolvedTls, secure};

use super::settings::Proxy;
use crate::proxy::tls::{ProxyTls, names};
use crate::session::{Session, Status};

/// The server name and the certificate for a session to this host, if TLS is used.
///
/// # Errors
/// The final status of the session if the certificate cannot be loaded.
pub(super) async fn prepare(
    session: &mut Session,
    settings: &Proxy,
    host: &[u8],
) -> Result<Option<ResolvedTls>, Status> {
    let Some(ProxyTls { tls, protocols }) = &settings.tls else {
        return Ok(None);
    };
    let generation = session.generation.generation.number;
    let secured = match tls.prepare(session, host, generation).await {
        Ok(secured) => secured,
        Err(failed) => {
            logs::error!(session, Error, "{failed}");
            return Err(Status::InternalServerError);
        }
    };
    if protocols.is_empty() {
        return Ok(Some(secured));
    }
    let offered = protocols.iter().map(|text| text.evaluate(session));
    let offered = names(offered.collect());
    Ok(Some(secured.offering(offered, generation)))
}

/// Performs the TLS handshake with a peer, if TLS is used.
///
/// # Errors
/// Errors have been logged, and count against the peer.
pub(super) async fn do_handshake(
    session: &mut Session,
    settings: &Proxy,
    transport: &Transport,
    secured: Option<&ResolvedTls>,
) -> Result<(), NotSecured> {
    let Some(secured) = secured else {
        return Ok(());
    };
    session.doing = " while SSL handshaking to upstream";
    let deadline = engine::now() + settings.tries.connect_timeout;
    let shaken = secure(transport, secured, deadline, session, "").await;
    if shaken == Err(NotSecured::TimedOut) {
        logs::error!(session, Error, "upstream timed out {TIMED_OUT}");
    }
    session.doing = " while connecting to upstream";
    shaken
}
