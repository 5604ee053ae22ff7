//! Creates and resets requests, and evaluates the client's head: the host, the virtual server, the
//! URI and header fields.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::net::Address;
use framework::generation::GenerationView;
use framework::slot::Slots;
use proto::accept::Browser;
use proto::h1::Version;
use proto::header::KnownField;
use proto::method::Method;
use transport::client::HasClient as _;
use variables::Scratch;

use crate::config::core::Alias;
use crate::config::plan::Server;
use crate::connection::{Connection, ConnectionHandle};
use crate::h1;
use crate::request::Request;
use crate::request::activity::READING_HEADERS;
use crate::request::body::RequestBody;
use crate::request::client_head::ClientHead;
use crate::request::state::{
    Activity, Arrival, Keepalive, Nesting, Pacing, Repeatable, ResponseProgress, RoutingState,
    UriState,
};
use crate::response::Response;
use crate::thread_state::HttpThreadState;
use variables::regex::Captures;

/// Maximum number of bytes of the head's memory that a finished request keeps for the next head.
const HEAD_KEPT_MAX: usize = 4096;

/// A finished request that holds more bytes of memory than this, in addition to the head's bytes,
/// is not kept. Without the limit, each kept request could hold memory for the largest head that a
/// client may send.
const MEMORY_KEPT_MAX: usize = 16 * 1024;

/// The reason why a parsed head is refused: the text to log (nothing is logged if it is empty), and
/// the status of the response.
pub type RejectedHead = (Vec<u8>, u16);

impl Request {
    /// An empty request that is assigned to a server.
    pub fn new(
        local: &Rc<GenerationView>,
        connection: &Rc<Connection>,
        server: &Arc<Server>,
    ) -> Request {
        Request {
            local: Rc::clone(local),
            http: HttpThreadState::of(local),
            connection: ConnectionHandle::new(connection),
            server: Arc::clone(server),
            plan: Arc::clone(&server.plan),
            method: Method::Get,
            client: Rc::default(),
            uri: Vec::new(),
            args: Vec::new(),
            response: Response::default(),
            captures: Captures::default(),
            shared: Rc::default(),
            pass: Slots::default(),
            own: Slots::default(),
            scratch: Scratch::default(),
            uri_state: UriState::default(),
            routing: RoutingState::default(),
            nesting: Nesting::default(),
            arrival: Arrival::default(),
            keepalive: Keepalive::default(),
            activity: Activity::default(),
            counted: None,
            sent: ResponseProgress::default(),
            pacing: Pacing::default(),
            body: RequestBody::default(),
            upstream: None,
            background: None,
            earlier_error_log: None,
            trail: None,
            repeatable: Repeatable::default(),
        }
    }

    /// Prepares a kept request for the next head, without touching fields that are already reset.
    pub fn reset(
        &mut self,
        local: &Rc<GenerationView>,
        connection: &Rc<Connection>,
        server: &Arc<Server>,
    ) {
        if !Rc::ptr_eq(&self.local, local) {
            self.local = Rc::clone(local);
            self.http = HttpThreadState::of(local);
        }
        self.connection = ConnectionHandle::new(connection);
        self.choose_server(server);
        self.client_mut().clear();
        self.clear_shared();
        // The pattern names every field, so that a new field does not compile before it is reset
        // here.
        let Request {
            local: _,
            http: _,
            connection: _,
            server: _,
            plan: _,
            method,
            client: _,
            uri,
            args,
            response: _, // `release` has emptied it
            captures,
            shared: _,
            pass,
            own,
            scratch: _, // its buffers are empty
            uri_state,
            routing,
            nesting,
            arrival,
            keepalive,
            activity,
            counted,
            sent,
            pacing,
            body,
            upstream,
            background,
            earlier_error_log,
            trail,
            repeatable,
        } = self;
        *method = Method::Get;
        uri.clear();
        args.clear();
        captures.clear();
        pass.end();
        own.end();
        *uri_state = UriState::default();
        *routing = RoutingState::default();
        *nesting = Nesting::default();
        *arrival = Arrival::default();
        *keepalive = Keepalive::default();
        *activity = Activity::default();
        *counted = None;
        *sent = ResponseProgress::default();
        *pacing = Pacing::default();
        *body = RequestBody::default();
        *upstream = None;
        *background = None;
        *earlier_error_log = None;
        *trail = None;
        *repeatable = Repeatable::default();
    }

    /// The error log for the request's lines: the log of the current plan. For a subrequest, the
    /// log that the parent's plan had when the subrequest was created.
    pub fn error_log(&self) -> &Arc<logs::ErrorLog> {
        match &self.earlier_error_log {
            Some(log) => log,
            None => &self.plan.error_log,
        }
    }

    /// The client's address: that of the connection, unless a trusted proxy has sent another.
    pub fn peer(&self) -> &Address {
        match &self.arrival.realip_address {
            Some(told) => told,
            None => self.connection.peer(),
        }
    }

    /// Whether the received bytes begin with the head of this request, for the same generation and
    /// address, so that the parsed request is valid for these bytes too.
    pub fn is_repeated_by(
        &self,
        input: &[u8],
        local: &Rc<GenerationView>,
        connection: &Connection,
    ) -> bool {
        self.repeatable.servers.is_some()
            && Rc::ptr_eq(&self.local, local)
            && input.starts_with(&self.client.bytes)
            && self.repeatable.servers
                == connection.with_servers(local, |servers| std::ptr::from_ref(servers).cast())
    }

    /// Turns a finished request into the next request with an equal head on this connection.
    pub fn repeat(&mut self, connection: &Rc<Connection>) {
        self.connection = ConnectionHandle::new(connection);
        self.arrival = Arrival::default();
        self.count();
        self.sent = ResponseProgress::default();
    }

    /// Turns a finished request into the next request with an equal head, which was received in one
    /// read with it.
    pub fn count_again(&mut self) {
        self.arrival.number = 0;
        self.count();
        self.arrival.pipelined = true;
        self.clear_shared();
    }

    /// Clears the state that is shared with subrequests. A subrequest that is still being cancelled
    /// keeps the old state.
    fn clear_shared(&mut self) {
        match Rc::get_mut(&mut self.shared) {
            Some(shared) => shared.clear(),
            None => self.shared = Rc::default(),
        }
    }

    /// Releases everything that a finished request must not hold. False if the request cannot be
    /// reused.
    pub fn release(&mut self) -> bool {
        self.connection.release();
        self.shared.main.borrow_mut().end();
        self.pass.end();
        self.own.end();
        self.counted = None;
        self.response.clear();
        if let Some(asked) = self.upstream.take() {
            asked.recycle();
        }
        if self.body.is_kept() {
            self.body = RequestBody::default();
        }
        let is_repeatable = self.repeatable.servers.is_some();
        let Some(client) = Rc::get_mut(&mut self.client) else {
            return false;
        };
        if !is_repeatable && client.bytes.capacity() > HEAD_KEPT_MAX {
            client.bytes = Vec::new();
        }
        let head = client.memory() + client.bytes.capacity();
        self.clear_shared();
        head + self.uri.capacity() + self.args.capacity() <= MEMORY_KEPT_MAX
    }

    /// The client's head for writing, while it is being read and only the main request refers to
    /// it.
    pub fn client_mut(&mut self) -> &mut ClientHead {
        if Rc::get_mut(&mut self.client).is_none() {
            self.client = Rc::default();
        }
        // invariant: made unique above
        Rc::get_mut(&mut self.client).expect("the head is not shared yet")
    }

    /// Assigns the request to a server, and makes the server's plan the current one.
    pub fn choose_server(&mut self, server: &Arc<Server>) {
        if !Arc::ptr_eq(&self.server, server) {
            self.server = Arc::clone(server);
        }
        if !Arc::ptr_eq(&self.plan, &server.plan) {
            self.plan = Arc::clone(&server.plan);
        }
    }

    /// Counts the request among the requests of its connection, unless it has been counted.
    pub fn count(&mut self) {
        if self.arrival.number == 0 {
            self.arrival.number = self.connection.count_request();
        }
    }

    /// Counts the request and derives host, virtual server and URI from its parsed head, unless
    /// this has been done already.
    pub fn begin(&mut self) -> Result<(), RejectedHead> {
        if self.routing.prepared {
            return self.server_decided();
        }
        self.routing.prepared = true;
        self.count();
        self.take_target();
        self.choose_server_by_name();
        self.server_decided()
    }

    /// Counts a request whose head is refused or incomplete, and uses the parsed part of the head
    /// for error pages and logs.
    pub fn begin_refused(&mut self) {
        self.routing.prepared = true;
        self.count();
        self.method = self.client.method();
        if self.client.has_path() {
            self.take_target();
        }
        if self.client.server_name().is_some() {
            self.choose_server_by_name();
        }
    }

    /// Takes method, URI and arguments from the head.
    fn take_target(&mut self) {
        let client = Rc::clone(&self.client);
        self.method = client.method();
        self.uri.extend_from_slice(client.path());
        if let Some(args) = client.args() {
            self.args.extend_from_slice(args);
            self.uri_state.args_written = !client.target().ends_with(b"?");
        }
        self.uri_state.escaped = client.is_escaped();
        self.uri_state.unchanged = client.has_valid_target();
    }

    /// An error with status 500 if a `server_name` regex failed, which has been logged.
    fn server_decided(&self) -> Result<(), RejectedHead> {
        if self.routing.server_undecided {
            Err((Vec::new(), 500))
        } else {
            Ok(())
        }
    }

    /// Chooses the virtual server that the client's head names; without a name, the server whose
    /// name is empty. If a regex fails, the request stays with the default server of the address.
    pub fn choose_server_by_name(&mut self) {
        if let Some(named) = self.client.server_name() {
            let ClientHead { bytes, host, .. } = self.client_mut();
            host.extend_from_slice(named.name.of(bytes));
            if named.has_capitals {
                host.make_ascii_lowercase();
            }
        }
        let (local, connection) = (Rc::clone(&self.local), self.connection.clone());
        let chosen = connection.with_servers(&local, |servers| {
            if servers.is_single {
                return None;
            }
            let host = std::mem::take(&mut self.client_mut().host);
            let server = servers.server_for(&host, self);
            if let Err((regex, cause)) = &server {
                regex.alert(self, &host, *cause, self.reading());
                self.routing.server_undecided = true;
            }
            self.client_mut().host = host;
            server.ok()
        });
        if let Some(server) = chosen.flatten() {
            self.choose_server(&server);
        }
    }

    /// Assigns the request to the server that the client named by SNI, as if the head named no
    /// host.
    pub fn choose_negotiated_server(&mut self) {
        self.client_mut().host.clear();
        let session = self.session();
        let Some(name) = session.and_then(|session| session.server_name.clone()) else {
            return;
        };
        let (local, connection) = (Rc::clone(&self.local), self.connection.clone());
        let chosen =
            connection.with_servers(&local, |servers| servers.server_for(&name, self).ok());
        if let Some(server) = chosen.flatten() {
            self.choose_server(&server);
        }
    }

    /// The value of the first field with this known name.
    pub fn header(&self, known: KnownField) -> Option<&[u8]> {
        self.client.value(known)
    }

    /// The length of a body that was sent without an announced length, once the length counts: see
    /// [`RequestBody::counted`](crate::request::body::RequestBody::counted).
    pub fn counted_length(&self) -> Option<u64> {
        match self.client.h1() {
            Some(_) => self.body.counted(),
            None => self.body.counted_whole(),
        }
    }

    /// The client's browser, recognized by the field `User-Agent`.
    pub fn browser(&self) -> Browser {
        let mut browser = Browser::default();
        let agents = self.client.all(KnownField::UserAgent);
        agents.for_each(|agent| browser.add(agent));
        browser
    }

    /// Whether error pages for this client are padded (`msie_padding`).
    pub fn wants_padded_page(&self) -> bool {
        if !self.plan.core.msie_padding || self.version() < proto::h1::Version::Http10 {
            return false;
        }
        let browser = self.browser();
        browser.msie || browser.chrome
    }

    /// All fields as received: name and value.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.client.headers()
    }

    /// The value of the first field with this name, which must be in lower case.
    pub fn header_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.headers()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Whether the client speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.session().is_some()
    }

    /// `https` if the client speaks TLS, else `http`.
    pub fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }

    /// Updates `keepalive.refused` for the location that has just been found. As in nginx, the
    /// server's own settings do not count if the server's script makes the response, and a later
    /// location cannot undo the refusal of an earlier one.
    pub fn check_keepalive(&mut self) {
        if self.is_main() && !h1::exchange::location_keeps_alive(&self.connection, self) {
            self.keepalive.refused = true;
        }
    }

    /// The current arguments, for an internal redirect that keeps them.
    pub fn arguments(&self) -> Option<Vec<u8>> {
        let are_there = self.uri_state.args_written || !self.args.is_empty();
        are_there.then(|| self.args.clone())
    }

    /// Whether the response has been sent, and the request only continues for `post_action`.
    pub fn is_answered(&self) -> bool {
        self.is_main() && self.nesting.head_only
    }

    /// The protocol version for which responses are made: HTTP/0.9 for `post_action`, as in nginx,
    /// since it sends no response.
    pub fn version(&self) -> Version {
        if self.is_answered() {
            Version::Http09
        } else {
            self.client.version()
        }
    }

    /// Whether this is the client's request, as opposed to a subrequest.
    pub fn is_main(&self) -> bool {
        self.nesting.depth == 0
    }

    /// The error log's phrase for the evaluation of a complete head, as in nginx.
    pub fn reading(&self) -> &'static str {
        match self.client.version() {
            Version::Http09 => self.reading_line(),
            _ => READING_HEADERS,
        }
    }

    /// The error log's phrase for the wait for a request line, as in nginx.
    pub fn reading_line(&self) -> &'static str {
        if self.arrival.pipelined {
            " while reading client pipelined request line"
        } else {
            " while reading client request line"
        }
    }

    /// The request line as the client sent it, without its line end.
    pub fn request_line(&self) -> &[u8] {
        self.client.request_line()
    }

    /// The target as the client sent it (`$request_uri`).
    pub fn request_uri(&self) -> &[u8] {
        self.client.target()
    }

    /// The number of bytes received for the request, head and body (`$request_length`); 0 for a
    /// subrequest.
    pub fn length(&self) -> u64 {
        if !self.is_main() {
            return 0;
        }
        self.client.length() as u64 + self.body.received_framed()
    }

    /// Whether the current URI maps to a file. Logs an error if not: `alias` does not apply to a
    /// URI that a script has rewritten within its location.
    pub fn has_filename(&self) -> bool {
        if self.uri_state.valid_location || self.plan.core.root.alias.is_none() {
            return true;
        }
        logs::error!(
            self,
            Alert,
            "\"alias\" cannot be used in location \"{}\" where URI was rewritten",
            logs::Printable(&self.plan.name)
        );
        false
    }

    /// The file name that `root` or `alias` derives from the current URI. Only meaningful if
    /// [`has_filename`](Self::has_filename) is true.
    pub fn filename(&mut self) -> Vec<u8> {
        let core = Arc::clone(&self.plan.core);
        let mut path = Vec::with_capacity(self.uri.len() + 64);
        self.append_root(&core, &mut path);
        match core.root.alias {
            None => path.extend_from_slice(&self.uri),
            Some(Alias::Prefix(length)) => {
                path.extend_from_slice(self.uri.get(length..).unwrap_or_default());
            }
            Some(Alias::Whole) if self.uri_state.below_alias => path.extend_from_slice(&self.uri),
            Some(Alias::Whole) => {}
        }
        path
    }

    /// The absolute path of the request's document root: the directory of `root` or `alias`.
    pub fn document_root(&mut self) -> Vec<u8> {
        let core = Arc::clone(&self.plan.core);
        let mut path = Vec::new();
        self.append_root(&core, &mut path);
        path
    }

    /// Appends the document root to `out`.
    pub fn append_document_root(&mut self, out: &mut Vec<u8>) {
        let core = Arc::clone(&self.plan.core);
        if core.root.relative_at_run_time {
            out.append(&mut self.document_root())
        } else {
            core.root.path.append_to(self, out)
        }
    }

    fn append_root(&mut self, core: &crate::config::core::Core, path: &mut Vec<u8>) {
        core.root.path.append_to(self, path);
        if core.root.relative_at_run_time && path.first() != Some(&b'/') {
            let mut absolute = core.root.prefix.to_vec();
            absolute.append(path);
            *path = absolute;
        }
    }

    /// The bytes as a path for system calls.
    pub fn path_of(bytes: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
    }

    /// The file name extension of the URI: the part after the last dot of the last segment; empty
    /// if there is no dot.
    pub fn extension(&self) -> &[u8] {
        proto::uri::extension(&self.uri)
            .map(|span| span.of(&self.uri))
            .unwrap_or_default()
    }

    /// Sets Content-Type by the URI's extension, unless it has been set.
    pub fn set_content_type(&mut self) {
        if self.response.content_type.is_empty() {
            let plan = Arc::clone(&self.plan);
            self.response.content_type = plan.types.content_type(&self.uri).clone();
        }
    }

    /// The host for redirects: the server's name if `server_name_in_redirect` is on, else the host
    /// that the client named; empty if the client named no host.
    pub fn redirect_host(&self) -> Bytes {
        if self.plan.core.server_name_in_redirect {
            return self.server.name.clone();
        }
        Bytes::copy_from_slice(&self.client.host)
    }
}
