//! What a request has in common with its subrequests.

use std::cell::{Cell, RefCell};

use crate::http::filters::ssi;
use crate::variables::Cached;

/// One for a main request and all subrequests that stand in its response.
#[derive(Default)]
pub struct Shared {
    /// Cached and assigned variables, by index.
    pub values: RefCell<Vec<Cached>>,
    /// What SSI commands have set.
    pub ssi: RefCell<ssi::Memory>,
    /// How many subrequests run [ahead](crate::http::ahead).
    pub ahead: Cell<usize>,
    /// How many subrequests there have been.
    pub subrequests: Cell<u32>,
    /// Whether the log has been told that one too many was asked for.
    pub excess_told: Cell<bool>,
}

impl Shared {
    /// Whether nothing has been cached, assigned or set.
    pub fn is_empty(&self) -> bool {
        self.values.borrow().is_empty() && self.ssi.borrow().is_empty()
    }

    /// Forgets everything, keeping the capacity.
    pub fn clear(&mut self) {
        self.values.get_mut().clear();
        self.ssi.get_mut().clear();
        self.ahead.set(0);
        self.subrequests.set(0);
        self.excess_told.set(false);
    }

    /// The same variables for a request that goes its own way.
    pub fn copy(&self) -> Shared {
        Shared {
            values: self.values.clone(),
            ..Shared::default()
        }
    }
}
