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
    /// The main request goes on as GET, whatever the client sent: `error_page` and `X-Accel-Redirect` lead to a page.
    pub became_get: Cell<bool>,
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
        self.became_get.set(false);
        self.ahead.set(0);
        self.subrequests.set(0);
        self.excess_told.set(false);
    }

    /// The same variables for a request that goes its own way.
    pub fn copy(&self) -> Shared {
        Shared {
            values: self.values.clone(),
            became_get: self.became_get.clone(),
            ..Shared::default()
        }
    }
}
