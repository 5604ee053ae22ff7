//! The context in which TLS evaluates texts: memcached's protocol has no variables, but settings of
//! TLS are compiled for some context.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Address;
use logs::{ErrorLog, Level, Subject};
use transport::tls::settings::OfProtocol;
use variables::{Captures, Context, Scope, Scratch, Table, Values};

/// A context that there never is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WithoutVariables {}

impl Subject for WithoutVariables {
    fn admits(&self, _: Level) -> bool {
        match *self {}
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {
        match *self {}
    }
}

impl Scope<WithoutVariables> for WithoutVariables {
    fn variables(&self) -> &Table<WithoutVariables> {
        match *self {}
    }
}

impl Context for WithoutVariables {
    type Scope = WithoutVariables;

    fn scope(&self) -> Rc<WithoutVariables> {
        match *self {}
    }

    fn values(&self) -> &RefCell<Values> {
        match *self {}
    }

    fn captures(&self) -> &Captures {
        match *self {}
    }

    fn captures_mut(&mut self) -> &mut Captures {
        match *self {}
    }

    fn scratch(&mut self) -> &mut Scratch {
        match *self {}
    }

    fn peer(&self) -> &Address {
        match *self {}
    }
}

impl OfProtocol for WithoutVariables {
    const NAME: &'static str = "MEMCACHED";

    // What clients offer is ignored, as memcached does it.
    const ALPN: &'static [&'static [u8]] = &[];
}
