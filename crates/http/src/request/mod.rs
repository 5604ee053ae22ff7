//! One request, main or sub. The page to read first is [`phases`]: its way, from its first byte to
//! its log line.
//!
//! A [`Request`] is the client's request or a subrequest while it goes through the phases; the
//! [exchange](crate::exchange) is its connection to the client, whatever the protocol. Phases look
//! at the request and answer with a [`Step`].

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
pub mod secure;
pub mod shared;
pub mod state;
pub mod upstream_report;

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use framework::counters::Counted;
use framework::generation::GenerationView;
use framework::slot::Slots;
use proto::method::Method;
use variables::{Captures, Scratch};

use crate::config::plan::{Plan, Server};
use crate::connection::ConnectionHandle;
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
use crate::slots::{OfPass, OfRequest};
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

/// How many subrequests may stand in one response, however deep (nginx counts what refers to a
/// request in 16 bits and keeps 1,000 for other purposes).
pub const SUBREQUESTS_IN_ALL_MAX: u32 = u16::MAX as u32 - 1000;

/// What a phase answers.
#[derive(Debug)]
pub enum Step {
    /// This phase has nothing to say; the next one follows.
    Next,
    /// The response's head is in `request.response`, its body is this.
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
        /// The arguments, without `?`; empty ones are there, too.
        args: Option<Vec<u8>>,
    },
    /// Go on in a named location's rewrite phase.
    Named(Bytes),
    /// The URI was rewritten: find its location again.
    Relocate,
}

/// One request, main or sub, on its way through the phases.
///
/// It is used again for the next request: what is a buffer is emptied then and keeps its memory,
/// all else begins anew by `Default`. `reset` and the test of `pool` name every member.
pub struct Request {
    /// The generation that serves it, with this thread's caches.
    pub local: Rc<GenerationView>,
    /// What http keeps of it.
    pub http: Rc<HttpThreadState>,
    /// The client's connection of the request.
    pub connection: ConnectionHandle,
    /// The virtual server of the request.
    pub server: Arc<Server>,
    /// The scope that is in force now: server, location, `if` or `limit_except`.
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
    /// Groups of the regex evaluated last.
    pub captures: Captures,
    /// Variables, and what else subrequests have in common with it.
    pub shared: Rc<MainRequestState>,
    /// What modules keep until a redirect within the server, or the end.
    pub pass: Slots<OfPass>,
    /// What they keep of it until it ends.
    pub own: Slots<OfRequest>,
    /// Buffers in which values of variables are made.
    pub scratch: Scratch,

    // What begins anew by `Default`.
    /// What is known of URI and arguments.
    pub uri_state: UriState,
    /// How far it has come through the server, and by which detours.
    pub course: RoutingState,
    /// Whether it is the client's or stands within another, and what its response is for.
    pub nesting: Nesting,
    /// How and when the request came in.
    pub arrival: Arrival,
    /// Whether its connection outlives it.
    pub keepalive: Keepalive,
    /// What is being done, for log lines.
    pub activity: Activity,
    /// What counts it among those that have not ended, if anything does.
    pub counted: Option<Counted>,
    /// What has been sent of the response.
    pub sent: ResponseProgress,
    /// How fast the response may leave.
    pub pacing: Pacing,
    /// The request's body, as far as it has been read.
    pub body: RequestBody,
    /// What a handler has asked of an upstream; its variables know more of it.
    pub upstream: Option<Rc<dyn UpstreamReport>>,
    /// Subrequests that run beside it (`mirror`); none for most.
    pub background: Option<Box<Background>>,
    /// The error log that goes before that of the plan in force: in a subrequest the main one's,
    /// where an `internal` location has refused a request the one that it had before.
    pub earlier_error_log: Option<Arc<logs::ErrorLog>>,
    /// What scripts have done, where `explain` wants to know.
    pub trail: Option<Vec<Trace>>,
    /// Whether its head may be answered again without being looked at.
    pub repeatable: Repeatable,
}
