//! The reasons for which a handler does not make a response of its own.

use crate::exchange::abort::Abort;
use crate::request::Step;

/// The reason for which a handler does not make a response of its own. `?` converts a status or an
/// [`Abort`].
#[derive(Debug)]
pub enum Interrupt {
    /// The response is the one for this status.
    Status(u16),
    /// No response is possible.
    Abort(Abort),
}

impl Interrupt {
    /// The step that the handler returns.
    ///
    /// # Errors
    /// If no response is possible, with the reason.
    pub fn into_step(self) -> Result<Step, Abort> {
        match self {
            Interrupt::Status(status) => Ok(Step::Finish(status)),
            Interrupt::Abort(abort) => Err(abort),
        }
    }
}

impl From<u16> for Interrupt {
    fn from(status: u16) -> Interrupt {
        Interrupt::Status(status)
    }
}

impl From<Abort> for Interrupt {
    fn from(abort: Abort) -> Interrupt {
        Interrupt::Abort(abort)
    }
}
