//! What a request's connection must be before anything looks at the request: 497 where it is in the
//! clear and should not be, 495 and 496 where the client's certificate is not what the server
//! wants. That the request is for the server that the handshake was with is seen while its head is read.

use transport::client::OfClient as _;
use transport::tls::verify::{Mode, Verdict};

use crate::connection::Connection;
use crate::plan::Server;
use crate::request::{Request, Step};

/// Whether requests to a server must be looked at here.
pub fn must_check(connection: &Connection, server: &Server) -> bool {
    connection.plain_on_secure_port.get()
        || (connection.stream.is_secure() && server.verify_client.is_some())
}

/// How the request ends, where its connection is not what its server wants. Its head counts as being read until then, and
/// where it ends so while its page is made.
pub fn check(request: &mut Request) -> Option<Step> {
    request.activity.doing = request.reading();
    let step = judge(request);
    if step.is_none() {
        request.activity.doing = "";
    }
    step
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
    match session.verdict.get() {
        Verdict::Good => None,
        Verdict::Bad(reason) if wanted == Mode::OptionalNoCa && reason.is_unknown_issuer() => None,
        Verdict::Bad(reason) => {
            logs::error!(
                request,
                Info,
                "client SSL certificate verify error: {reason}"
            );
            Some(Step::Finish(495))
        }
        Verdict::Revoked(text) => {
            logs::error!(request, Info, "client SSL certificate verify error: {text}");
            Some(Step::Finish(495))
        }
        Verdict::Missing if wanted == Mode::Required => {
            logs::error!(request, Info, "client sent no required SSL certificate");
            Some(Step::Finish(496))
        }
        Verdict::Missing => None,
    }
}
