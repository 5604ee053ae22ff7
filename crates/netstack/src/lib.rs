//! TCP/IP in user space, for engines that get frames instead of streams.
//!
//! It does no I/O and reads no clock: frames and the time go in ([`Stack::handle_frame`],
//! [`Stack::handle_timeout`]); frames ([`Stack::poll_frame`]), events ([`Stack::poll_event`]) and
//! the next deadline ([`Stack::next_deadline`]) come out. The order in which they are to be called
//! stands at [`Stack`]. A [`Device`] carries the frames: a card, or a wire of the simulation
//! ([`simulated`]).
//!
//! Read `stack.rs` first: the way of a frame. `wire/` has the formats, `tcp/` what a connection
//! does (its `state.rs` draws the states), `table.rs` all connections, `neighbours.rs` ARP's cache.
//!
//! Ethernet, ARP, IPv4, ICMP and TCP. Not here: IPv6, VLANs, UDP, path MTU discovery by probing
//! (RFC 4821), RACK (RFC 8985), CUBIC, pacing, fragments (they are passed on), urgent data as
//! anything but data (RFC 6093 advises against them).

#![forbid(unsafe_code)]

mod device;
mod neighbours;
pub mod simulated;
mod stack;
mod table;
pub mod tcp;
mod ways;
pub mod wire;

pub use device::{Device, FrameFate, FrameTaker};
pub use stack::{
    Addresses, CLIENT_PORTS, ConnectError, ConnectionId, Counts, Event, FRAME_MAX, ListenError,
    ListenerId, Neighbouring, Settings, Stack, Unlistened,
};
pub use ways::Route;
