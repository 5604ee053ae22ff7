//! What a request's connection must be before anything looks at the request: 497 where it is in the
//! clear and should not be, 495 and 496 where the client's certificate is not what the server
//! wants. That the request is for the server that the handshake was with is seen while its head is
//! read.
//!
//! A connection outlives reloads. What was found of its client's certificate does not: the
//! authority may have revoked it meanwhile, or may not be trusted any more. nginx ends kept
//! connections with their worker process instead.

use std::sync::Arc;

use transport::client::OfClient as _;
use transport::tls::server::ServerTls;
use transport::tls::verify::ClientCertificateError;

use crate::config::plan::Server;
use crate::connection::Connection;
use crate::request::{Request, Step};

/// Whether requests to a server must be looked at here.
pub fn must_check(connection: &Connection, server: &Server) -> bool {
    connection.plain_on_secure_port.get()
        || (connection.stream.is_secure() && server.verify_client.is_some())
}

/// The settings by which the client's certificate is to be looked at once more: those that a reload
/// has brought since it was. Also where the request's server asks for none, since
/// `$ssl_client_verify` tells of it.
pub fn newer_settings(request: &Request) -> Option<Arc<ServerTls>> {
    let session = request.session()?;
    let newer = |settings: &Arc<ServerTls>| {
        let must_look = session.must_look_by(settings);
        must_look.then(|| Arc::clone(settings))
    };
    let (connection, local) = (&request.connection, &request.local);
    let own = connection.with_first_server(local, |first| first.tls.as_ref().map(newer))?;
    match own {
        Some(newer) => newer,
        // As in a handshake.
        None => connection.with_servers(local, |servers| {
            servers.default.tls.as_ref().and_then(newer)
        })?,
    }
}

/// Looks at the client's certificate by these settings.
pub async fn recheck_client_certificate(request: &Request, settings: &Arc<ServerTls>) {
    if let Some(session) = request.session() {
        let local = &request.local;
        session
            .recheck_client_certificate(settings, request, local)
            .await;
    }
}

/// How the request ends, where its connection is not what its server wants. Its head counts as
/// being read until then, and where it ends so while its page is made.
pub fn check(request: &mut Request) -> Option<Step> {
    request.activity.doing = request.reading();
    let step = judge(request);
    match step {
        None => request.activity.doing = "",
        Some(_) => send_away(request),
    }
    step
}

/// Has a client of HTTP/2 shake hands anew that is refused for what a reload has brought: with
/// another certificate, or a while later, it may be let in. The connection of one of HTTP/1 ends
/// with the response.
fn send_away(request: &Request) {
    let session = request.session();
    if session.is_some_and(|session| session.is_judged_anew())
        && let Some(shared) = request.connection.http2()
    {
        shared.go_away();
    }
}

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
