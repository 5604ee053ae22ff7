//! Checks a request's connection before the first phase: 497 for plaintext on a TLS port; 495 and
//! 496 if the client's certificate does not meet the server's demands. Whether the request's host
//! matches the server of the TLS handshake is checked while the head is read.
//!
//! A connection survives reloads, but the result of the check of its client's certificate does not:
//! the authority may have revoked the certificate meanwhile, or may no longer be trusted. nginx
//! closes kept-alive connections with their worker process instead.

use std::sync::Arc;

use transport::client::HasClient as _;
use transport::tls::server::ServerTls;
use transport::tls::verify::ClientCertificateError;

use crate::config::plan::Server;
use crate::connection::Connection;
use crate::request::{Request, Step};

/// Whether requests to a server must be checked by [`check`].
pub fn must_check(connection: &Connection, server: &Server) -> bool {
    connection.plain_on_secure_port.get()
        || (connection.stream.is_secure() && server.verify_client.is_some())
}

/// The settings by which the client's certificate must be checked again, because a reload has
/// changed them since the last check. Also returned if the request's server asks for no
/// certificate, since `$ssl_client_verify` shows the result.
pub fn newer_settings(request: &Request) -> Option<Arc<ServerTls>> {
    let session = request.session()?;
    let newer = |settings: &Arc<ServerTls>| {
        let must_look = session.must_recheck_under(settings);
        must_look.then(|| Arc::clone(settings))
    };
    let (connection, local) = (&request.connection, &request.local);
    let own = connection.with_first_server(local, |first| first.tls.as_ref().map(newer))?;
    match own {
        Some(newer) => newer,
        // As in a handshake, the address's default server decides.
        None => connection.with_servers(local, |servers| {
            servers.default.tls.as_ref().and_then(newer)
        })?,
    }
}

/// Checks the client's certificate again, by these settings.
pub async fn recheck_client_certificate(request: &Request, settings: &Arc<ServerTls>) {
    if let Some(session) = request.session() {
        let local = &request.local;
        session
            .recheck_client_certificate(settings, request, local)
            .await;
    }
}

/// The response to a request whose connection does not meet its server's demands. In log lines, the
/// head is being read until the check is done, and while the error page is made.
pub fn check(request: &mut Request) -> Option<Step> {
    request.activity.doing = request.reading();
    let step = judge(request);
    match step {
        None => request.activity.doing = "",
        Some(_) => shut_down_http2(request),
    }
    step
}

/// Shuts down an HTTP/2 connection whose client is refused because of a reload: after a new
/// handshake, with another certificate or at a later time, the client may be admitted. An HTTP/1
/// connection closes after the response anyway.
fn shut_down_http2(request: &Request) {
    let session = request.session();
    if session.is_some_and(|session| session.was_rechecked())
        && let Some(shared) = request.connection.http2()
    {
        shared.send_goaway();
    }
}

/// The step with 495, 496 or 497 for a request that must be refused, after a log line.
fn judge(request: &Request) -> Option<Step> {
    if request.connection.plain_on_secure_port.get() {
        logs::error!(
            request,
            Info,
            "client sent plain HTTP request to HTTPS port"
        );
        return Some(Step::Finish(497));
    }
    let session = request.session()?;
    let wanted = request.server.verify_client?;
    let refused = session.verdict.get().admit(wanted).err()?;
    logs::error!(request, Info, "{refused}");
    Some(Step::Finish(match refused {
        ClientCertificateError::Bad(_) | ClientCertificateError::Revoked(_) => 495,
        ClientCertificateError::Missing => 496,
    }))
}
