//! Log lines of the level `debug`: the steps of a request, in nginx's words if nginx has such a
//! line.
//!
//! <https://nginx.org/en/docs/debugging_log.html>. Lines about nginx's internals (pools, events,
//! buffers) are missing, since Tidegate has none of these. More debug lines are written by the code
//! that they describe: `grep 'Debug,'`.

use framework::address::append_address;
use logs::{Level, Printable, Subject as _, Subsystem, error, write};
use proto::header::KnownField;

use crate::connection::Connection;
use crate::request::Request;

/// Logs an accepted connection.
pub fn accepted(connection: &Connection) {
    if connection.admits(Level::Debug) {
        let mut address = Vec::new();
        append_address(connection.peer(), &mut address);
        let text = format_args!("accept: {}", Printable(&address));
        write(connection, Level::Debug, text);
    }
}

/// Logs a head that has been read.
pub fn head(request: &Request) {
    if !is_on(request) {
        return;
    }
    error!(
        request,
        Debug,
        "http request line: \"{}\"",
        Printable(request.request_line())
    );
    error!(request, Debug, "http uri: \"{}\"", Printable(&request.uri));
    error!(
        request,
        Debug,
        "http args: \"{}\"",
        Printable(&request.args)
    );
    for (name, value) in request.headers() {
        // Passwords must not be logged.
        let secret = [KnownField::Authorization, KnownField::ProxyAuthorization]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known.name().as_bytes()));
        let value = if secret { b"(not shown)" } else { value };
        let (name, value) = (Printable(name), Printable(value));
        error!(request, Debug, "http header: \"{name}: {value}\"");
    }
    error!(request, Debug, "http header done");
}

/// Logs the head of the response.
pub fn response(request: &Request) {
    if !is_on(request) {
        return;
    }
    let status = request.response.status;
    error!(request, Debug, "http response status: {status}");
    for field in &request.response.fields {
        let (name, value) = (Printable(&field.name), Printable(&field.value));
        error!(request, Debug, "http response header: \"{name}: {value}\"");
    }
}

fn is_on(request: &Request) -> bool {
    request.error_log().admits(Level::Debug, Subsystem::Http) || request.connection.is_debugged()
}
