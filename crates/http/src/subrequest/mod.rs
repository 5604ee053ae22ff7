//! Subrequests: within a response ([`included`]) and beside it ([`background`]).

pub mod background;
pub mod included;
pub mod running;
