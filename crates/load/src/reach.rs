//! Checks before a run whether the servers are listening. Otherwise the run would only fail until
//! its end.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use engine::net::Address;

use crate::plan::Plan;

/// Connects to every server of a plan once.
///
/// # Errors
/// The first address to which connecting failed, and the reason.
pub fn reach(plan: &Plan) -> Result<(), String> {
    let mut tried: Vec<&Address> = Vec::new();
    for address in plan.servers.iter().map(|server| &server.address) {
        if tried.contains(&address) {
            continue;
        }
        tried.push(address);
        let connected = match address {
            Address::Inet(inet) => TcpStream::connect_timeout(inet, plan.timeout).map(drop),
            Address::Unix(path) => UnixStream::connect(path).map(drop),
        };
        connected.map_err(|error| format!("no connection to {address} can be made: {error}"))?;
    }
    Ok(())
}
