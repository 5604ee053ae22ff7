//! What a request has in common with its subrequests.

use std::cell::{Cell, RefCell};

use framework::slot::Slots;
use variables::Cached;

use crate::slots::OfMain;

/// The state that a main request shares with all its subrequests.
#[derive(Default)]
pub struct MainRequestState {
    /// Cached and assigned variables, by index.
    pub values: RefCell<Vec<Cached>>,
    /// The main request goes on as GET, whatever the client sent: `error_page` and
    /// `X-Accel-Redirect` lead to a page.
    pub became_get: Cell<bool>,
    /// How many subrequests run [ahead](crate::subrequest::included).
    pub ahead: Cell<usize>,
    /// How many subrequests there have been.
    pub subrequests: Cell<u32>,
    /// Whether the log has been told that one too many was asked for.
    pub excess_told: Cell<bool>,
    /// What modules keep until the main request ends.
    pub main: RefCell<Slots<OfMain>>,
}

impl MainRequestState {
    /// Whether nothing has been cached, assigned or set.
    pub fn is_empty(&self) -> bool {
        self.values.borrow().is_empty() && self.main.borrow().is_empty()
    }

    /// Forgets everything, keeping the capacity.
    pub fn clear(&mut self) {
        // Every member has its name here: one that is added does not build before it is forgotten,
        // too.
        let MainRequestState {
            values,
            became_get,
            ahead,
            subrequests,
            excess_told,
            main,
        } = self;
        values.get_mut().clear();
        main.get_mut().end();
        became_get.take();
        ahead.take();
        subrequests.take();
        excess_told.take();
    }
}
