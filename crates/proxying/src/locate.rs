//! The servers that may serve a request, resolved if necessary.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use engine::net::Address;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::request::Request;
use http::request::interrupt::Interrupt;

use crate::upstream::Group;

/// The servers that may serve a request.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// A group of the configuration.
    Group(Arc<Group>),
    /// A server at one of a name's addresses, which must be resolved.
    Name {
        /// The name to resolve.
        name: Bytes,
        /// The port of the server.
        port: u16,
    },
}

/// Resolves the name, if there is one, and returns the group of servers.
///
/// # Errors
/// 502 if the name cannot be resolved; an abort if the client has left.
pub async fn locate(
    request: &Request,
    exchange: &mut Exchange,
    upstream: &Upstream,
    ignore_client_abort: bool,
) -> Result<Arc<Group>, Interrupt> {
    let (name, port) = match upstream {
        Upstream::Group(group) => return Ok(Arc::clone(group)),
        Upstream::Name { name, port } => (name, *port),
    };
    let shown = logs::Printable(name);
    let resolving = &request.plan.resolving;
    if !resolving.is_possible() {
        logs::error!(request, Error, "no resolver defined to resolve {shown}");
        return Err(502.into());
    }
    let resolved = resolving.resolve(&request.local, name);
    let resolved = if ignore_client_abort {
        resolved.await
    } else {
        match either(resolved, exchange.client_gone()).await {
            Either::First(resolved) => resolved,
            Either::Second(abort) => return Err(abort.into()),
        }
    };
    match resolved {
        Ok(addresses) => {
            let addresses = addresses.into_iter();
            let addresses = addresses.map(|ip| Address::Inet(SocketAddr::new(ip, port)));
            Ok(Group::of_addresses(name.clone(), addresses))
        }
        Err(error) => {
            logs::error!(request, Error, "{shown} could not be resolved ({error})");
            Err(502.into())
        }
    }
}
