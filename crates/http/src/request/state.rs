//! The state of a [`Request`](crate::request::Request) beside its buffers. Each struct is reset as
//! a whole by `Default` when a request is reused, so that no state leaks from one client's request
//! to another's.

use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::response::prebuilt::LastResponse;

/// How often a request may change its URI or be redirected within the server (nginx's
/// `NGX_HTTP_MAX_URI_CHANGES`).
pub const URI_CHANGES_MAX: u8 = 10;

/// The state of the current URI and arguments.
#[derive(Debug)]
pub struct UriState {
    /// Whether the URI has a `?`, even with empty arguments: the client or a script has written it.
    pub args_written: bool,
    /// Whether `uri` is still what the client sent and needs no escaping to be passed on.
    pub unchanged: bool,
    /// Whether the client's target held escapes or `+`: captures put into a URI are then
    /// escaped.
    pub escaped: bool,
    /// Whether `uri` still begins with the prefix of its location: a `rewrite … break` ends it.
    pub valid_location: bool,
    /// Set by `try_files` in a regex location with `alias`: the whole URI stands below it.
    pub below_alias: bool,
}

impl Default for UriState {
    fn default() -> UriState {
        UriState {
            args_written: false,
            unchanged: true,
            escaped: false,
            valid_location: true,
            below_alias: false,
        }
    }
}

/// The progress of a request through the phases, redirects included.
#[derive(Debug)]
pub struct RoutingState {
    /// Whether host, server and URI have been derived from the client's head.
    pub prepared: bool,
    /// The lookup of the server has failed, since a regex hit a limit: no server may make a
    /// response.
    pub server_undecided: bool,
    /// Whether the request was redirected internally, so that it may enter `internal` locations.
    pub internal: bool,
    /// How many URI changes are left. Reaching the last one means a cycle.
    pub uri_changes_left: u8,
    /// Whether an `error_page` has been taken and none may follow.
    pub error_page_taken: bool,
    /// The status for which an error page is shown; 0 if none is.
    pub error_status: u16,
    /// The number of its location's plan, if that was looked up before the phases; used by their
    /// first lookup.
    pub found: Option<u32>,
    /// The content handler has been asked for a response from memory, but has not run.
    pub recalled: bool,
    /// A file has been found below its document root, which therefore exists. Never set after a
    /// final `error_page`.
    pub root_tested: bool,
}

impl Default for RoutingState {
    fn default() -> RoutingState {
        RoutingState {
            prepared: false,
            server_undecided: false,
            internal: false,
            uri_changes_left: URI_CHANGES_MAX + 1,
            error_page_taken: false,
            error_status: 0,
            found: None,
            recalled: false,
            root_tested: false,
        }
    }
}

/// Whether a request is a main request or a subrequest, and what its response is for.
#[derive(Debug, Default)]
pub struct Nesting {
    /// How deep the subrequest is; 0 for the client's request.
    pub depth: u8,
    /// A subrequest whose response body is not wanted (`auth_request`), or a request that continues
    /// after its response (`post_action`).
    pub head_only: bool,
    /// A subrequest whose response is collected in memory, so it cannot include other subrequests.
    pub in_memory: bool,
    /// In a subrequest: the stub that replaces its response if that is empty or an error.
    pub stub: Option<Stub>,
    /// In a subrequest: the charset of the main response, to which its response is converted.
    pub main_charset: Bytes,
}

/// The replacement of an included response that is empty or an error.
#[derive(Clone, Debug)]
pub struct Stub {
    /// The text, as input of the subrequest's filters.
    pub text: Bytes,
    /// The media type of the response that includes it.
    pub content_type: Bytes,
}

/// How and when a request arrived. The default is now.
#[derive(Debug)]
pub struct Arrival {
    /// When the request's first byte was received (coarse clock).
    pub started: Instant,
    /// Wall-clock time of the request's first byte, since 1970.
    pub started_wall: Duration,
    /// The request's sequence number on its connection, from 1 (`$connection_requests`); 0 until
    /// the request has been counted.
    pub number: u64,
    /// The request was received in one read with the previous one (`$pipe`).
    pub pipelined: bool,
    /// The client's address from a trusted proxy (`set_real_ip_from`).
    pub realip_address: Option<Box<Address>>,
}

impl Default for Arrival {
    fn default() -> Arrival {
        Arrival {
            started: engine::now(),
            started_wall: engine::wall(),
            number: 0,
            pipelined: false,
            realip_address: None,
        }
    }
}

/// Whether the connection stays open after a request.
#[derive(Debug, Default)]
pub struct Keepalive {
    /// Whether the connection goes on after the response; before there is one, whether the client
    /// asks for it. See `refused`.
    pub on: bool,
    /// A location that the request has passed has disabled keep-alive, which later locations cannot
    /// undo.
    pub refused: bool,
}

/// The current activity, in nginx's words, which ends log lines that do not name it themselves; may
/// be empty.
#[derive(Debug, Default)]
pub struct Activity {
    /// For example ` while reading response header from upstream`. Stays until the next activity,
    /// or until a redirect within the server begins.
    pub doing: &'static str,
    /// The activity for log lines of the response's filters (` while sending response to client`).
    pub sending: &'static str,
}

/// What has been sent of a response.
#[derive(Debug, Default)]
pub struct ResponseProgress {
    /// Whether a part of the body has been sent.
    pub begun: bool,
    /// Whether the body is sent in chunks.
    pub chunked: bool,
    /// The whole response has been handed to the connection (`$request_completion`).
    pub complete: bool,
    /// Bytes of the response that were sent, head included, for logs.
    pub bytes: u64,
    /// Bytes of the response's body that were sent.
    pub body_bytes: u64,
}

impl ResponseProgress {
    /// Subtracts bytes that were queued and will never be sent.
    pub fn take_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.body_bytes = self.body_bytes.saturating_sub(bytes);
    }
}

/// Overrides of `limit_rate` and `limit_rate_after`.
#[derive(Debug, Default)]
pub struct Pacing {
    /// `set $limit_rate` and `X-Accel-Limit-Rate`: overrides the directive `limit_rate`. Bytes a
    /// second, 0 for no limit.
    pub rate: Option<u64>,
    /// Bytes that a handler sends before the rate applies: overrides `limit_rate_after`.
    pub rate_after: Option<u64>,
}

/// Whether a later request with the same head may be answered without parsing it.
#[derive(Default)]
pub struct Repeatable {
    /// Set when a kept response answered the request: the servers of the address, for which the
    /// same head, byte for byte, leads to the same server, location and path again (see
    /// `pool::repeated`). The pointer is compared and never dereferenced; the generation in `local`
    /// keeps the allocation alive.
    pub servers: Option<*const ()>,
    /// The response to that head, if it may be repeated.
    pub last: Option<LastResponse>,
}
