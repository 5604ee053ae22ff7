//! What a request has in common with its subrequests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::http::filters::ssi;
use crate::http::modules::{limit_conn, limit_req};
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
    /// `$limit_req_status`, once a limit has been asked: for the request or for any of its subrequests.
    limit_req: Cell<Option<limit_req::Outcome>>,
    /// `$limit_conn_status` in the same way.
    limit_conn: Cell<Option<limit_conn::Outcome>>,
    /// What the main request has, where this is that of a subrequest beside it.
    main: Option<Rc<Shared>>,
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
        self.limit_req.set(None);
        self.limit_conn.set(None);
    }

    /// The same variables for a request that goes its own way.
    pub fn copy(shared: &Rc<Shared>) -> Shared {
        Shared {
            values: shared.values.clone(),
            became_get: shared.became_get.clone(),
            main: Some(Rc::clone(shared)),
            ..Shared::default()
        }
    }

    /// What `limit_req` has said: a request is limited once, whatever its parts.
    pub fn limit_req(&self) -> &Cell<Option<limit_req::Outcome>> {
        &self.of_main().limit_req
    }

    /// What `limit_conn` has said, once for all parts as well.
    pub fn limit_conn(&self) -> &Cell<Option<limit_conn::Outcome>> {
        &self.of_main().limit_conn
    }

    fn of_main(&self) -> &Shared {
        self.main.as_deref().unwrap_or(self)
    }
}
