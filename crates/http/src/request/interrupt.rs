//! What keeps a handler from a response of its own.

use crate::exchange::abort::Abort;
use crate::request::Step;

/// What keeps a handler from a response of its own; `?` makes one of a status and of an [`Abort`].
#[derive(Debug)]
pub enum Interrupt {
    /// This status is answered.
    Status(u16),
    /// Nothing can be answered.
    Abort(Abort),
}

impl Interrupt {
    /// What the handler has the phases do.
    ///
    /// # Errors
    /// Where nothing can be answered, and why.
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
