//! `stub_status`: basic metrics of connections and requests, in the format that monitoring tools
//! parse.
//!
//! <https://nginx.org/en/docs/http/ngx_http_stub_status_module.html>. The numbers are sums over all
//! threads ([`counters`](framework::counters)) since the worker process started, and continue over
//! reloads. Nothing is counted per server or location.

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use framework::compile::Compiler;
use framework::counters::Totals;
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::output::page;
use http::variables::{BuiltinVariable, Evaluate};
use proto::method::Method;
use variables::write::decimal;

/// `stub_status`; nginx before 1.7.5 required an argument, which it ignored.
pub static STUB_STATUS: Setting<()> = Setting::new("stub_status", &[""], parse::nothing)
    .contexts(Contexts::SERVER.or(Contexts::LOCATION))
    .arity(Arity::between(0, 1))
    .inherit(Inherit::Handler)
    .repeatable()
    .manual(
        "Answers with the number of open connections, of connections and requests since the \
         start, and of connections by what they do: `Reading` a request's head, `Writing` a \
         response or working on one, `Waiting` for a request. The numbers are those of the whole \
         worker process and of the variables `$connections_active`, `$connections_reading`, \
         `$connections_writing` and `$connections_waiting`.",
    );

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[&STUB_STATUS];

/// The content handler of `stub_status`.
pub fn content(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    Ok(Some(Content::of(StubStatus)))
}

struct StubStatus;

impl PhaseHandler for StubStatus {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(serve(request)))
    }
}

/// Responds with the page.
fn serve(request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Finish(405);
    }
    let text = text(&request.connection.worker.counters().totals());
    page(request, 200, Bytes::from_static(b"text/plain"), text.into())
}

/// The page, with nginx's spaces at the ends of lines. Every accepted connection is handled: a
/// connection for which there is no room is not accepted.
fn text(totals: &Totals) -> String {
    let Totals {
        accepted,
        active,
        requests,
        reading,
        waiting,
        ..
    } = totals;
    let writing = totals.writing();
    format!(
        "Active connections: {active} \n\
         server accepts handled requests\n \
         {accepted} {accepted} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
    )
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    let evaluate: Evaluate = match name {
        "connections_active" => |request, out| connections(request, |totals| totals.active, out),
        "connections_reading" => |request, out| connections(request, |totals| totals.reading, out),
        "connections_waiting" => |request, out| connections(request, |totals| totals.waiting, out),
        "connections_writing" => |request, out| connections(request, Totals::writing, out),
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// Appends a number of connections, summed over all threads.
fn connections(request: &Request, number: fn(&Totals) -> u64, out: &mut Vec<u8>) -> bool {
    decimal(number(&request.connection.worker.counters().totals()), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The response of nginx 1.31 to the first request after its start.
    #[test]
    fn the_page_is_that_of_nginx() {
        let totals = Totals {
            accepted: 1,
            active: 1,
            requests: 1,
            ..Totals::default()
        };
        assert_eq!(
            text(&totals),
            "Active connections: 1 \nserver accepts handled requests\n 1 1 1 \n\
             Reading: 0 Writing: 1 Waiting: 0 \n"
        );
    }
}
