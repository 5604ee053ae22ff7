//! Subrequests: included in a response ([`included`]) and in the background ([`background`]).

pub mod background;
pub mod included;
pub mod running;
