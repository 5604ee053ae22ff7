//! Internal redirects, and the creation of subrequests.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use proto::method::Method;

use crate::config::location;
use crate::request::body::InFileOnly;
use crate::request::shared::MainRequestState;
use crate::request::state::{Activity, Nesting, UriState};
use crate::request::{Request, SUBREQUESTS_IN_ALL_MAX, SUBREQUESTS_MAX, Step};

impl Request {
    /// Counts one of the URI changes that a request may make. An error with status 500 if no change
    /// is left.
    pub fn count_change(&mut self) -> Result<(), u16> {
        if self.may_change() {
            return Ok(());
        }
        logs::error!(
            self,
            Error,
            "rewrite or internal redirection cycle while processing \"{}\"",
            String::from_utf8_lossy(&self.uri)
        );
        Err(500)
    }

    /// Counts a URI change. False if the request has used the last one.
    fn may_change(&mut self) -> bool {
        self.routing.uri_changes_left = self.routing.uri_changes_left.saturating_sub(1);
        self.routing.uri_changes_left > 0
    }

    /// Sets another URI and starts again at the server's rewrite phase (nginx's
    /// `ngx_http_internal_redirect`).
    pub fn redirect(&mut self, uri: Vec<u8>, args: Option<Vec<u8>>) -> Result<(), u16> {
        if !self.may_change() {
            logs::error!(
                self,
                Error,
                "rewrite or internal redirection cycle while internally redirecting to \"{}\"",
                String::from_utf8_lossy(&uri)
            );
            return Err(500);
        }
        self.activity = Activity::default();
        self.uri = uri;
        self.uri_state = UriState {
            args_written: args.is_some(),
            unchanged: false,
            escaped: self.uri_state.escaped,
            ..UriState::default()
        };
        self.args = args.unwrap_or_default();
        self.forget_pass();
        self.note_left_location();
        self.plan = Arc::clone(&self.server.plan);
        Ok(())
    }

    /// Changes the method to GET, as for every internal redirect to a page; HEAD stays HEAD.
    pub fn become_get(&mut self) {
        if self.method == Method::Head {
            return;
        }
        self.method = Method::Get;
        if self.is_main() {
            self.shared.is_now_get.set(true);
        }
    }

    /// Enters a named location with the current URI (nginx's `ngx_http_named_location`).
    pub fn enter_named(&mut self, name: &Bytes) -> Result<(), u16> {
        if !self.may_change() {
            logs::error!(
                self,
                Error,
                "rewrite or internal redirection cycle while redirect to named location \"{}\"",
                String::from_utf8_lossy(name)
            );
            return Err(500);
        }
        if self.uri.is_empty() {
            logs::error!(
                self,
                Error,
                "empty URI in redirect to named location \"{}\"",
                String::from_utf8_lossy(name)
            );
            return Err(500);
        }
        let Some(plan) = self.server.named.get(name).cloned() else {
            logs::error!(
                self,
                Error,
                "could not find named location \"{}\"",
                String::from_utf8_lossy(name)
            );
            return Err(500);
        };
        self.forget_pass();
        self.note_left_location();
        self.plan = Arc::clone(location::for_method(&plan, self.method));
        self.check_keepalive();
        Ok(())
    }

    /// Notes the `client_body_in_file_only` of the location that the request leaves. A setting of
    /// the server's own plan is not noted.
    pub fn note_left_location(&mut self) {
        let in_file_only = self.plan.body.in_file_only;
        if in_file_only != InFileOnly::Off && !Arc::ptr_eq(&self.plan, &self.server.plan) {
            self.body.note_left(in_file_only);
        }
    }

    /// Discards the state of the current pass before an internal redirect. As in nginx, the fields
    /// of an unfinished response stay: a Location or WWW-Authenticate that was set is still sent.
    fn forget_pass(&mut self) {
        self.response.header_only = false;
        self.body.give_up_rest();
        self.pass.end();
        self.routing.found = None;
        self.routing.internal = true;
    }

    /// Redirects the client from `/x` to the location `/x/`, whose requests are passed to an
    /// upstream.
    pub fn redirect_to_slash(&mut self, path: Bytes) -> Step {
        let mut location = Vec::with_capacity(path.len() + self.args.len() + 1);
        proto::uri::escape(&path, proto::uri::Escape::Uri, &mut location);
        if !self.args.is_empty() {
            location.push(b'?');
            location.extend_from_slice(&self.args);
        }
        self.response.location = Some(location.into());
        Step::Finish(301)
    }

    /// Makes a subrequest, which shares the variables of this request. Returns `None`, and logs a
    /// line, if subrequests nest too deeply or are too many.
    pub fn subrequest(
        &mut self,
        uri: Vec<u8>,
        args: Vec<u8>,
        head_only: bool,
    ) -> Option<Box<Request>> {
        if !self.may_nest(&uri) {
            return None;
        }
        let before = self.shared.subrequests.get();
        self.shared.subrequests.set(before.saturating_add(1));
        self.child(uri, args, head_only)
    }

    /// Makes a child request, without checking or counting it.
    fn child(&mut self, uri: Vec<u8>, args: Vec<u8>, head_only: bool) -> Option<Box<Request>> {
        let connection = Rc::clone(self.connection.shared()?);
        let mut child = Box::new(Request::new(&self.local, &connection, &self.server));
        child.client = Rc::clone(&self.client);
        child.method = Method::Get;
        child.uri = uri;
        child.args = args;
        child.uri_state.unchanged = false;
        child.routing.prepared = true;
        child.routing.internal = true;
        child.nesting = Nesting {
            depth: self.nesting.depth + 1,
            head_only,
            main_charset: if self.is_main() {
                self.response.charset.clone()
            } else {
                self.nesting.main_charset.clone()
            },
            ..Nesting::default()
        };
        child.arrival.started_wall = self.arrival.started_wall;
        child.arrival.number = self.arrival.number;
        child.arrival.realip_address = self.arrival.realip_address.clone();
        child.sent.bytes = self.sent.bytes;
        child.sent.body_bytes = self.sent.body_bytes;
        child.body = self.body.shared();
        child.earlier_error_log = Some(Arc::clone(self.error_log()));
        child.shared = Rc::clone(&self.shared);
        Some(child)
    }

    /// Makes a subrequest that runs in the background, with this request's method and variables,
    /// and with its body if the body has been read. The response is not sent to the client.
    pub fn background_subrequest(&mut self, uri: Vec<u8>, args: Vec<u8>) -> Option<Box<Request>> {
        let mut child = self.subrequest(uri, args, true)?;
        child.method = self.method;
        child.uri_state.args_written = self.uri_state.args_written;
        Some(child)
    }

    /// Starts the background subrequests. Called before this request waits for anything other than
    /// a file. As in nginx, where opening a file blocks the process, variables that background
    /// subrequests set do not affect the head of a response made from a file.
    pub fn start_background(&mut self) {
        if let Some(background) = &mut self.background {
            background.start();
        }
    }

    /// Whether a subrequest to this URI may be made. Logs the reason if not. Only the first refusal
    /// for a request is logged, since a page that includes itself several times causes many
    /// refusals.
    pub fn may_nest(&self, uri: &[u8]) -> bool {
        let too_deep = self.nesting.depth >= SUBREQUESTS_MAX;
        let too_many = self.shared.subrequests.get() >= SUBREQUESTS_IN_ALL_MAX;
        if (too_deep || too_many) && !self.shared.is_excess_logged.replace(true) {
            let uri = logs::Printable(uri);
            let doing = self.activity.sending;
            if too_deep {
                let text = "subrequests cycle while processing";
                logs::error!(self, Error, "{text} \"{uri}\"{doing}");
            } else {
                let text = "request reference counter overflow while processing";
                logs::error!(self, Crit, "{text} \"{uri}\"{doing}");
            }
        }
        if self.nesting.in_memory {
            logs::error!(
                self,
                Error,
                "nested in-memory subrequest \"{}\"{}",
                String::from_utf8_lossy(uri),
                self.activity.sending
            );
        }
        !too_deep && !too_many && !self.nesting.in_memory
    }

    /// Makes a subrequest for the next part of a response that is fetched in parts. The subrequest
    /// has this request's handler, method and URI, and the captures that the handler's settings may
    /// use.
    pub fn again(&mut self) -> Option<Box<Request>> {
        // The limit for subrequests does not apply, since the number of parts depends on the size
        // of the file, and parts run one after another.
        let mut child = self.child(self.uri.clone(), self.args.clone(), false)?;
        child.method = self.method;
        child.plan = Arc::clone(&self.plan);
        child.uri_state.valid_location = self.uri_state.valid_location;
        child.uri_state.unchanged = self.uri_state.unchanged;
        child.uri_state.args_written = self.uri_state.args_written;
        child.captures.clone_from(&self.captures);
        Some(child)
    }

    /// Like [`again`](Self::again), for a subrequest that outlives this request. The subrequest has
    /// a copy of the variables, and its response is sent to no client.
    pub fn detached(&mut self) -> Option<Box<Request>> {
        let mut child = self.again()?;
        child.nesting.head_only = true;
        child.shared = Rc::new(MainRequestState {
            values: self.shared.values.clone(),
            is_now_get: self.shared.is_now_get.clone(),
            ..MainRequestState::default()
        });
        Some(child)
    }

    /// Sets this request's counts to those of a subrequest that has ended.
    pub fn absorb(&mut self, child: &mut Request) {
        self.sent.bytes = child.sent.bytes;
        self.sent.body_bytes = child.sent.body_bytes;
    }
}
