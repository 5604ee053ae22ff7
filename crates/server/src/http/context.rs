//! A request as a context of variables, texts and patterns.

use std::cell::RefCell;
use std::rc::Rc;

use engine::net::Address;
use variables::{Captures, Context, Scope, Scratch, Table, Values};

use crate::http::local::HttpLocal;
use crate::http::modules::rewrite;
use crate::http::request::Request;

impl Scope<Request> for HttpLocal {
    fn variables(&self) -> &Table<Request> {
        &self.variables
    }
}

impl Context for Request {
    type Scope = HttpLocal;

    fn scope(&self) -> Rc<HttpLocal> {
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
        &mut self.script.scratch
    }

    fn peer(&self) -> &Address {
        Request::peer(self)
    }

    /// The lines of `X-Forwarded-For`.
    fn forwarded(&self) -> Vec<&[u8]> {
        self.headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"X-Forwarded-For"))
            .map(|(_, value)| value)
            .collect()
    }

    fn uninitialized(&self, name: &str) {
        rewrite::uninitialized(self, name);
    }
}
