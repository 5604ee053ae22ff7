//! Whom the variables of this protocol are about: nobody. It has none, but the machinery of TLS
//! evaluates texts for some context.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Address;
use logs::{ErrorLog, Level, Subject};
use transport::tls::settings::OfProtocol;
use variables::{Captures, Context, Scope, Scratch, Table, Values};

/// A context that there never is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nobody {}

impl Subject for Nobody {
    fn admits(&self, _: Level) -> bool {
        match *self {}
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {
        match *self {}
    }
}

impl Scope<Nobody> for Nobody {
    fn variables(&self) -> &Table<Nobody> {
        match *self {}
    }
}

impl Context for Nobody {
    type Scope = Nobody;

    fn scope(&self) -> Rc<Nobody> {
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

impl OfProtocol for Nobody {
    const NAME: &'static str = "MEMCACHED";

    // What clients offer is ignored, as memcached does it.
    const ALPN: &'static [&'static [u8]] = &[];
}
