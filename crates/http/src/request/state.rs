//! The state of a [`Request`](crate::request::Request) outside its buffers. Each struct is reset as
//! a whole by `Default` when a request is reused, so that no state leaks from one client's request
//! to another's.

use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::response::prebuilt::LastResponse;

/// Maximum number of URI changes and internal redirects of a request (nginx's
/// `NGX_HTTP_MAX_URI_CHANGES`).
pub const URI_CHANGES_MAX: u8 = 10;

/// The state of the current URI and arguments.
#[derive(Debug)]
pub struct UriState {
    /// Whether the URI that the client or a script has written contains `?`, even with empty
    /// arguments.
    pub args_written: bool,
    /// Whether `uri` is still the client's path, and can be passed on without escaping.
    pub unchanged: bool,
    /// Whether the client's target contained escapes or `+`, so that captures that are put into a
    /// URI are escaped.
    pub escaped: bool,
    /// Whether `uri` still begins with the prefix of its location. False after a `rewrite … break`.
    pub valid_location: bool,
    /// Whether the whole URI is appended to the `alias`, as `try_files` sets it in a regex location
    /// with `alias`.
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

/// The progress of a request through the phases, internal redirects included.
#[derive(Debug)]
pub struct RoutingState {
    /// Whether host, server and URI have been derived from the client's head.
    pub prepared: bool,
    /// Whether the lookup of the server has failed, since a regex hit a limit. Then no server may
    /// make a response.
    pub server_undecided: bool,
    /// Whether the request was redirected internally, so that it may enter `internal` locations.
    pub internal: bool,
    /// The number of URI changes that are left. The request is in a cycle if it uses the last one.
    pub uri_changes_left: u8,
    /// Whether an `error_page` has been followed and no other may follow.
    pub error_page_taken: bool,
    /// The status for which an error page is shown; 0 if no error page is shown.
    pub error_status: u16,
    /// The number of the location's plan, if the location was looked up before the phases. The
    /// first lookup of the phases uses it.
    pub found: Option<u32>,
    /// Whether the content handler has been asked for a response from memory, and has not run.
    pub recalled: bool,
    /// Whether a file has been found below the document root, so that the root is known to exist.
    /// Never set after a final `error_page`.
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

/// Whether a request is a main request or a subrequest, and the use of its response.
#[derive(Debug, Default)]
pub struct Nesting {
    /// The nesting depth of the subrequest; 0 for the client's request.
    pub depth: u8,
    /// Whether the response's body is not sent: in a subrequest of which only the head is needed
    /// (`auth_request`), or in a request that continues after its response (`post_action`).
    pub head_only: bool,
    /// Whether the response of a subrequest is collected in memory, so that it cannot include other
    /// subrequests.
    pub in_memory: bool,
    /// In a subrequest: the text that replaces its response if the response is empty or an error.
    pub stub: Option<Stub>,
    /// In a subrequest: the charset of the main response, to which the subrequest's response is
    /// converted.
    pub main_charset: Bytes,
}

/// The text that replaces an included response that is empty or an error.
#[derive(Clone, Debug)]
pub struct Stub {
    /// The text, as input of the subrequest's filters.
    pub text: Bytes,
    /// The media type of the including response.
    pub content_type: Bytes,
}

/// How and when a request was received. The default is the current time.
#[derive(Debug)]
pub struct Arrival {
    /// The time at which the request's first byte was received, by the coarse clock.
    pub started: Instant,
    /// The wall-clock time at which the request's first byte was received, since 1970.
    pub started_wall: Duration,
    /// The request's sequence number on its connection, from 1 (`$connection_requests`); 0 until
    /// the request has been counted.
    pub number: u64,
    /// Whether the request was received in one read with the previous one (`$pipe`).
    pub pipelined: bool,
    /// The client's address as a trusted proxy has sent it (`set_real_ip_from`).
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

/// Whether the connection is kept alive after a request.
#[derive(Debug, Default)]
pub struct Keepalive {
    /// Whether the connection is kept alive after the response. Before there is a response: whether
    /// the client permits keep-alive. See `refused` too.
    pub on: bool,
    /// Whether a location that the request has passed has disabled keep-alive. Later locations
    /// cannot undo this.
    pub refused: bool,
}

/// The current activity in nginx's words, for the end of log lines that do not name it themselves;
/// may be empty.
#[derive(Debug, Default)]
pub struct Activity {
    /// For example ` while reading response header from upstream`. Stays set until the next
    /// activity, or until an internal redirect begins.
    pub doing: &'static str,
    /// The activity for log lines of the response's filters, such as ` while sending response to
    /// client`.
    pub sending: &'static str,
}

/// The state and the counts of sending a response.
#[derive(Debug, Default)]
pub struct ResponseProgress {
    /// Whether a part of the body has been sent.
    pub begun: bool,
    /// Whether the body is sent in chunks.
    pub chunked: bool,
    /// Whether the whole response has been passed to the connection (`$request_completion`).
    pub complete: bool,
    /// The number of bytes of the response that were sent, including the head, for logs.
    pub bytes: u64,
    /// The number of bytes of the response's body that were sent.
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
    /// The rate that `set $limit_rate` or `X-Accel-Limit-Rate` has set in place of the directive
    /// `limit_rate`, in bytes per second; 0 for no limit.
    pub rate: Option<u64>,
    /// The number of bytes that are sent before the rate applies, if a handler overrides
    /// `limit_rate_after`.
    pub rate_after: Option<u64>,
}

/// Whether a later request with an equal head may be answered without parsing the head.
#[derive(Default)]
pub struct Repeatable {
    /// The servers of the address, set when a kept response has answered the request. For these
    /// servers an equal head, byte for byte, leads to the same server, location and path again (see
    /// `pool::repeated`). The pointer is compared and never dereferenced; the generation in `local`
    /// keeps the allocation alive.
    pub servers: Option<*const ()>,
    /// The response to this head, if it may be sent again.
    pub last: Option<LastResponse>,
}
