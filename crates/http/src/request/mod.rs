//! A main request or a subrequest. Read [`phases`] first: it shows the phases from the head to the
//! log line.
//!
//! A [`Request`] is the client's request or a subrequest on its way through the phases. The
//! [exchange](crate::exchange) is its connection to the client, over any protocol. Phases examine
//! the request and return a [`Step`].

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

/// A value in the configuration that may contain variables.
pub type Text = variables::Text<Request>;

/// A part of a [`Text`]: literal bytes, a variable, or a group of the regex that was evaluated
/// last.
pub type Part = variables::TextPart<Request>;

/// A size in the configuration that may contain variables.
pub type Size = variables::size::Size<Request>;

/// A pattern whose named groups become variables of requests.
pub type Regex = variables::Regex<Request>;

/// Maximum depth of nested subrequests (nginx's `NGX_HTTP_MAX_SUBREQUESTS`, plus 1 as in nginx's
/// check).
pub const SUBREQUESTS_MAX: u8 = 51;

/// Maximum number of subrequests of one response, at any depth (nginx has a 16-bit reference count
/// per request, and reserves 1,000 for other purposes).
pub const SUBREQUESTS_IN_ALL_MAX: u32 = u16::MAX as u32 - 1000;

/// The result of a phase.
#[derive(Debug)]
pub enum Step {
    /// Continue with the next phase.
    Next,
    /// Respond with the head in `request.response` and this body.
    Respond(Body),
    /// End with this status: by the page of `error_page` if there is one, else by a short built-in
    /// page. 444 closes the connection without a response.
    Finish(u16),
    /// End with a redirect to this `Location`, made by `return`. The received part of the request's
    /// body is discarded first.
    Return(u16, Bytes),
    /// Start again at the server's rewrite phase with this URI, which is already decoded.
    Redirect {
        /// The new path.
        uri: Vec<u8>,
        /// The new arguments, without `?`; `None` if the URI has no `?`.
        args: Option<Vec<u8>>,
    },
    /// Continue in the rewrite phase of a named location.
    Named(Bytes),
    /// The URI was rewritten: find its location again.
    Relocate,
}

/// A main request or a subrequest on its way through the phases.
///
/// A request is reused for the next request: buffers are cleared and keep their memory, and
/// everything else is reset by `Default`. `reset` and the test of `pool` name every field, so that
/// no field is forgotten.
pub struct Request {
    /// The generation that serves the request, with this thread's caches.
    pub local: Rc<GenerationView>,
    /// The `http` block of the generation, for this thread.
    pub http: Rc<HttpThreadState>,
    /// The client's connection.
    pub connection: ConnectionHandle,
    /// The virtual server of the request.
    pub server: Arc<Server>,
    /// The plan of the current scope: server, location, `if` or `limit_except`.
    pub plan: Arc<Plan>,
    /// The current method. `error_page` changes it to GET.
    pub method: Method,

    // Buffers.
    /// The request line and the fields as the client sent them.
    pub client: Rc<ClientHead>,
    /// The current path, decoded and normalised.
    pub uri: Vec<u8>,
    /// The current arguments, without `?`.
    pub args: Vec<u8>,
    /// The response that is being made.
    pub response: Response,
    /// Captures of the last regex match.
    pub captures: Captures,
    /// The variables and other state that the request shares with its subrequests.
    pub shared: Rc<MainRequestState>,
    /// State that modules keep until an internal redirect, or until the request ends.
    pub pass: Slots<PassLifetime>,
    /// State that modules keep until the request ends.
    pub own: Slots<RequestLifetime>,
    /// Buffers in which values of variables are built.
    pub scratch: Scratch,

    // State that `Default` resets.
    /// The state of the current URI and arguments.
    pub uri_state: UriState,
    /// The progress of the request through the phases, internal redirects included.
    pub routing: RoutingState,
    /// Whether this is a main request or a subrequest, and the use of its response.
    pub nesting: Nesting,
    /// How and when the request was received.
    pub arrival: Arrival,
    /// Whether the connection is kept alive after the request.
    pub keepalive: Keepalive,
    /// The current activity, for log lines.
    pub activity: Activity,
    /// Counts the request as in progress in its `status_zone`, if it has one.
    pub counted: Option<RequestUnderWay>,
    /// The state and the counts of sending the response.
    pub sent: ResponseProgress,
    /// Overrides of the limits for the response's rate.
    pub pacing: Pacing,
    /// The state of the request's body.
    pub body: RequestBody,
    /// The report of the upstream that a handler has asked, for `$upstream_*` variables.
    pub upstream: Option<Rc<dyn UpstreamReport>>,
    /// Subrequests that run in the background (`mirror`); most requests have none.
    pub background: Option<Box<Background>>,
    /// An error log that takes precedence over the log of the current plan: in a subrequest, the
    /// log of the request that has created it; after an `internal` location has refused a request,
    /// the previous plan's log.
    pub earlier_error_log: Option<Arc<logs::ErrorLog>>,
    /// The actions of scripts, for `tidegate explain`.
    pub trail: Option<Vec<Trace>>,
    /// Whether a later request with an equal head may be answered without parsing the head.
    pub repeatable: Repeatable,
}
