//! One request, main or sub. Read [`phases`] first: it shows the phases from the head to the log
//! line.
//!
//! A [`Request`] is the client's request or a subrequest while it goes through the phases; the
//! [exchange](crate::exchange) is its connection to the client, whatever the protocol. Phases
//! examine the request and return a [`Step`].

pub mod access_phase;
pub mod activity;
pub mod body;
pub mod client_head;
pub mod context;
pub mod credentials;
pub mod head;
pub mod internal;
pub mod interrupt;
pub mod phases;
pub mod pool;
pub mod redirect;
pub mod replaced_fields;
pub mod secure;
pub mod shared;
pub mod state;
pub mod upstream_report;

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use framework::generation::GenerationView;
use framework::slot::Slots;
use proto::method::Method;
use variables::{Captures, Scratch};

use crate::config::plan::{Plan, Server};
use crate::connection::ConnectionHandle;
use crate::logging::zone_meter::RequestUnderWay;
use crate::module::Trace;
use crate::request::body::RequestBody;
use crate::request::client_head::ClientHead;
use crate::request::shared::MainRequestState;
use crate::request::state::{
    Activity, Arrival, Keepalive, Nesting, Pacing, Repeatable, ResponseProgress, RoutingState,
    UriState,
};
use crate::request::upstream_report::UpstreamReport;
use crate::response::Response;
use crate::response::source::Body;
use crate::slots::{PassLifetime, RequestLifetime};
use crate::subrequest::running::Background;
use crate::thread_state::HttpThreadState;

/// A value that may hold variables.
pub type Text = variables::Text<Request>;

/// A part of a [`Text`]: bytes as written, a variable, or a group of the regex evaluated last.
pub type Part = variables::TextPart<Request>;

/// A size for requests.
pub type Size = variables::size::Size<Request>;

/// A pattern whose named groups become variables of requests.
pub type Regex = variables::Regex<Request>;

/// How deep subrequests may nest (nginx's `NGX_HTTP_MAX_SUBREQUESTS`, and the one that it adds).
pub const SUBREQUESTS_MAX: u8 = 51;

/// Subrequests of one response at most, at any depth (nginx has a 16-bit reference count per
/// request and reserves 1,000 for other purposes).
pub const SUBREQUESTS_IN_ALL_MAX: u32 = u16::MAX as u32 - 1000;

/// The result of a phase.
#[derive(Debug)]
pub enum Step {
    /// Continue with the next phase.
    Next,
    /// Respond with the head in `request.response` and this body.
    Respond(Body),
    /// End with this status: `error_page` may take it, else a short page of ours is sent.
    /// 444 closes the connection without an answer.
    Finish(u16),
    /// End with a redirect to this `Location`, made by `return`. The received part of the request's
    /// body is discarded first.
    Return(u16, Bytes),
    /// Start again at the server's rewrite phase with this URI (already decoded); `None` for
    /// the arguments keeps none.
    Redirect {
        /// The path to go on with.
        uri: Vec<u8>,
        /// The arguments, without `?`; `Some` even if they are empty.
        args: Option<Vec<u8>>,
    },
    /// Continue in the rewrite phase of a named location.
    Named(Bytes),
    /// The URI was rewritten: find its location again.
    Relocate,
}

/// One request, main or sub, on its way through the phases.
///
/// A request is reused for the next one: buffers are cleared and keep their memory, everything else
/// is reset by `Default`. `reset` and the test of `pool` name every field, so that none is
/// forgotten.
pub struct Request {
    /// The generation that serves it, with this thread's caches.
    pub local: Rc<GenerationView>,
    /// The `http` block of that generation, for this thread.
    pub http: Rc<HttpThreadState>,
    /// The client's connection of the request.
    pub connection: ConnectionHandle,
    /// The virtual server of the request.
    pub server: Arc<Server>,
    /// The plan of the current scope: server, location, `if` or `limit_except`.
    pub plan: Arc<Plan>,
    /// The method in force (`error_page` turns it into GET).
    pub method: Method,

    // Buffers.
    /// Request line and fields as the client sent them.
    pub client: Rc<ClientHead>,
    /// Decoded and normalised path in force.
    pub uri: Vec<u8>,
    /// Arguments in force, without `?`.
    pub args: Vec<u8>,
    /// The response as it is being made.
    pub response: Response,
    /// Captures of the last regex match.
    pub captures: Captures,
    /// Variables and other state that it shares with its subrequests.
    pub shared: Rc<MainRequestState>,
    /// What modules keep until a redirect within the server, or the end.
    pub pass: Slots<PassLifetime>,
    /// What modules keep until it ends.
    pub own: Slots<RequestLifetime>,
    /// Buffers in which values of variables are made.
    pub scratch: Scratch,

    // What begins anew by `Default`.
    /// What is known of URI and arguments.
    pub uri_state: UriState,
    /// Its progress through the phases, redirects included.
    pub routing: RoutingState,
    /// Whether it is a main request or a subrequest, and what its response is for.
    pub nesting: Nesting,
    /// How and when the request came in.
    pub arrival: Arrival,
    /// Whether its connection outlives it.
    pub keepalive: Keepalive,
    /// What is being done, for log lines.
    pub activity: Activity,
    /// Counts the request as in progress in its `status_zone`, if it has one.
    pub counted: Option<RequestUnderWay>,
    /// What has been sent of the response.
    pub sent: ResponseProgress,
    /// How fast the response may leave.
    pub pacing: Pacing,
    /// The request's body, as far as it has been read.
    pub body: RequestBody,
    /// The report of the upstream that a handler has asked, for `$upstream_*` variables.
    pub upstream: Option<Rc<dyn UpstreamReport>>,
    /// Subrequests that run beside it (`mirror`); none for most.
    pub background: Option<Box<Background>>,
    /// An error log that takes precedence over that of the current plan: in a subrequest the main
    /// request's, and after an `internal` location has refused a request the previous one.
    pub earlier_error_log: Option<Arc<logs::ErrorLog>>,
    /// The actions of scripts, for `tidegate explain`.
    pub trail: Option<Vec<Trace>>,
    /// Whether a later request with the same head may be answered without parsing it.
    pub repeatable: Repeatable,
}
