//! What http keeps of one thread and one generation: the compiled `http` block and the thread's memory of responses.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use framework::generation::Local;
use framework::slot::{OfThread, Slot, ThreadGeneration};

use crate::hot::HotCache;
use crate::plan::Http;

/// The `http` block as one thread serves by it. Requests hold it by `Rc`: no counter that other threads touch is in their way.
pub struct HttpLocal {
    http: Arc<Http>,
    /// Whether the configuration names `$realpath_root`, whose value takes a look at the disk.
    pub prepares_root: bool,
    /// Complete responses kept in memory.
    pub hot: RefCell<HotCache>,
}

impl HttpLocal {
    /// That of a thread and generation.
    pub fn of(local: &Local) -> Rc<HttpLocal> {
        Rc::clone(&local.at(&HTTP).borrow().0)
    }
}

impl Deref for HttpLocal {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.http
    }
}

static HTTP: Slot<Room, ThreadGeneration> = Slot::new();

struct Room(Rc<HttpLocal>);

impl OfThread for Room {
    fn begin(local: &Local) -> Room {
        let http: Arc<Http> = local.generation.part().unwrap_or_default(); // no `http` block: no servers
        Room(Rc::new(HttpLocal {
            prepares_root: http.variables.find("realpath_root").is_some(),
            http,
            hot: RefCell::default(),
        }))
    }

    fn retire(&mut self) {
        self.0.hot.borrow_mut().clear();
    }
}
