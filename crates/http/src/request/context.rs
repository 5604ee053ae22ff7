//! A request as the context in which variables, texts and patterns are evaluated.

use std::cell::RefCell;
use std::rc::Rc;

use engine::net::{Address, TcpInfo};
use transport::client::{Client, HasClient};
use transport::tls::session::Session;
use variables::{Captures, Context, Scope, Scratch, Table, Values};

use crate::request::Request;
use crate::thread_state::HttpThreadState;

impl Scope<Request> for HttpThreadState {
    fn variables(&self) -> &Table<Request> {
        &self.variables
    }
}

impl HasClient for Request {
    fn client(&self) -> &Client {
        &self.connection.client
    }

    fn local(&self) -> &Address {
        self.connection.local()
    }

    fn session(&self) -> Option<&Session> {
        self.connection.stream.session()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.connection.stream.tcp_info()
    }
}

impl Context for Request {
    type Scope = HttpThreadState;

    fn scope(&self) -> Rc<HttpThreadState> {
        Rc::clone(&self.http)
    }

    fn values(&self) -> &RefCell<Values> {
        &self.shared.values
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn captures_mut(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn peer(&self) -> &Address {
        Request::peer(self)
    }

    /// The values of all `X-Forwarded-For` fields.
    fn forwarded(&self) -> Vec<&[u8]> {
        self.headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"X-Forwarded-For"))
            .map(|(_, value)| value)
            .collect()
    }

    fn uninitialized(&self, name: &str) {
        if self.plan.phases.warns_unset {
            logs::error!(self, Warn, "using uninitialized \"{}\" variable", name);
        }
    }
}
