//! Requests that are passed on: connections, balancing, health, failures, buffering, tunnels, and
//! application protocols.

mod application_protocols;
mod bad_upstreams;
mod balancing;
mod both_ways;
mod failover;
mod health_checks;
mod proxy_buffering;
mod read_ahead;
mod sticky;
mod tunnel;
mod upstream_proxy_protocol;
mod upstream_sockets;
mod upstreams;
mod websocket;
