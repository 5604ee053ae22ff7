//! Internal requests, which no client has sent, such as the requests of health checks.
//!
//! An internal request has a scope, so that texts and variables can be evaluated in it. Most
//! variables are empty, since there is no client. The request's lines in the error log name its
//! purpose in place of a client. Internal requests run on a service thread, which serves no
//! clients: [`InternalRequests`].

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use conf::ScopeId;
use engine::net::Address;
use framework::connection_handler::Accepted;
use framework::generation::Generation;
use framework::workers::Worker;
use rules::service_thread;
use transport::listen::ListenerId;

use crate::config::plan::{Plan, Server};
use crate::connection::Connection;
use crate::request::Request;
use crate::thread_state::HttpThreadState;

/// Makes internal requests on a service thread, for one generation.
pub struct InternalRequests {
    worker: Rc<Worker>,
}

/// The scope of an internal request: a server, and one of its plans.
#[derive(Clone)]
pub struct RequestScope {
    listener: ListenerId,
    server: Arc<Server>,
    plan: Arc<Plan>,
}

impl InternalRequests {
    /// Makes internal requests on the current thread, whose runtime must exist. Keeps the
    /// generation alive.
    pub fn new(generation: Arc<Generation>) -> InternalRequests {
        InternalRequests {
            worker: service_thread::worker(generation),
        }
    }

    /// The scope for internal requests in `scope` of `server`; `None` if the server has no
    /// listening address.
    pub fn place(&self, server: ScopeId, scope: ScopeId) -> Option<RequestScope> {
        let http = HttpThreadState::of(&self.worker.current());
        let plan = http.plans.iter().find(|plan| plan.scope == scope)?;
        let found = http.bindings.iter().find_map(|bound| {
            let specific = bound.specific.iter().map(|(_, servers)| servers);
            let all = std::iter::once(&bound.servers).chain(specific);
            let mut all = all.flat_map(|servers| servers.all());
            let server = all.find(|known| known.plan.scope == server)?;
            Some((bound.id.clone(), server))
        });
        let (listener, server) = found?;
        Some(RequestScope {
            listener,
            server,
            plan: Arc::clone(plan),
        })
    }

    /// Makes a request in this scope. Its log lines contain `about` in place of a client.
    ///
    /// # Errors
    /// If no file descriptor is left.
    pub fn request(&self, place: &RequestScope, about: &Arc<str>) -> io::Result<Box<Request>> {
        let accepted = Accepted {
            worker: Rc::clone(&self.worker),
            stream: engine::net::unconnected()?,
            listener: place.listener.clone(),
            serial: 0,
            handed: None,
        };
        let nowhere = || Address::Unix(Default::default());
        let connection = Connection::new(accepted).with_addresses(nowhere(), nowhere());
        connection.mark_internal(Arc::clone(about));
        let local = self.worker.current();
        let mut request = Box::new(Request::new(&local, &Rc::new(connection), &place.server));
        request.plan = Arc::clone(&place.plan);
        Ok(request)
    }
}
