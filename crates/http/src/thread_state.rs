//! The state of HTTP for one thread and one generation: the compiled `http` block, and the thread's
//! prebuilt responses.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use framework::generation::GenerationView;
use framework::slot::{Slot, ThreadGeneration, ThreadState};

use crate::config::plan::Http;
use crate::logging::zone_meter::ZoneTable;
use crate::response::prebuilt::PrebuiltCache;

/// The `http` block for one thread. Requests hold it by `Rc`, so that they touch no reference count
/// that other threads use.
pub struct HttpThreadState {
    http: Arc<Http>,
    /// Whether the configuration uses `$realpath_root`, whose evaluation needs the disk.
    pub uses_realpath_root: bool,
    /// The thread's meters of `status_zone`, by zone.
    pub(crate) zones: ZoneTable,
    /// The complete responses that the thread keeps in memory.
    pub prebuilt: RefCell<PrebuiltCache>,
}

impl HttpThreadState {
    /// The state of this thread for a generation.
    pub fn of(local: &GenerationView) -> Rc<HttpThreadState> {
        Rc::clone(&local.at(&HTTP).borrow().0)
    }
}

impl Deref for HttpThreadState {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.http
    }
}

static HTTP: Slot<HttpSlot, ThreadGeneration> = Slot::new();

struct HttpSlot(Rc<HttpThreadState>);

impl ThreadState for HttpSlot {
    fn begin(local: &GenerationView) -> HttpSlot {
        // no `http` block: no servers
        let http: Arc<Http> = local.generation.part().unwrap_or_default();
        HttpSlot(Rc::new(HttpThreadState {
            uses_realpath_root: http.variables.find("realpath_root").is_some(),
            http,
            zones: ZoneTable::new(),
            prebuilt: RefCell::default(),
        }))
    }

    fn retire(&mut self) {
        self.0.prebuilt.borrow_mut().retire();
    }
}
