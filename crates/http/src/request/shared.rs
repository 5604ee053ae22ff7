//! The state that a request shares with its subrequests.

use std::cell::{Cell, RefCell};

use framework::slot::Slots;
use variables::Cached;

use crate::slots::MainRequestLifetime;

/// The state that a main request shares with all its subrequests.
#[derive(Default)]
pub struct MainRequestState {
    /// Cached and assigned variables, by index.
    pub values: RefCell<Vec<Cached>>,
    /// Whether the main request continues as GET, regardless of the client's method, since
    /// `error_page` or `X-Accel-Redirect` leads to a page.
    pub is_now_get: Cell<bool>,
    /// The number of subrequests that are running [ahead](crate::subrequest::included) of the
    /// including response.
    pub ahead: Cell<usize>,
    /// The number of subrequests that have been made so far.
    pub subrequests: Cell<u32>,
    /// Whether the log already has a line about a refused subrequest.
    pub is_excess_logged: Cell<bool>,
    /// State that modules keep until the main request ends.
    pub main: RefCell<Slots<MainRequestLifetime>>,
}

impl MainRequestState {
    /// Whether no variable is cached or assigned, and no module has set any state.
    pub fn is_empty(&self) -> bool {
        self.values.borrow().is_empty() && self.main.borrow().is_empty()
    }

    /// Clears everything and keeps the capacity.
    pub fn clear(&mut self) {
        // The pattern names every field, so that a new field does not compile before it is cleared
        // here.
        let MainRequestState {
            values,
            is_now_get,
            ahead,
            subrequests,
            is_excess_logged,
            main,
        } = self;
        values.get_mut().clear();
        main.get_mut().end();
        is_now_get.take();
        ahead.take();
        subrequests.take();
        is_excess_logged.take();
    }
}
