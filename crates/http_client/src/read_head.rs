//! The head of an answer while it is being read, and as it is shared then.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use engine::Spares;
use proto::h1::response::ResponseHead;

/// How many heads' memory a thread keeps: of as many requests as end in one turn of a few
/// connections.
const SPARES_MAX: usize = 1024;

/// The memory of heads with more fields goes back to the allocator.
const SPARE_FIELDS_MAX: usize = 64;

thread_local! {
    static SPARES: Spares<Rc<ResponseHead>, SPARES_MAX> = const { Spares::new(|| SPARES.with(Spares::clear)) };
}

/// A head that is being read, or has been, and is shared then; its memory serves the next ones of
/// the thread.
#[derive(Clone)]
pub struct ReadHead(Rc<ResponseHead>);

impl Default for ReadHead {
    /// Nothing has been read of it.
    fn default() -> ReadHead {
        ReadHead(SPARES.with(Spares::take).unwrap_or_default())
    }
}

impl Drop for ReadHead {
    fn drop(&mut self) {
        let Some(head) = Rc::get_mut(&mut self.0) else {
            return; // others have it
        };
        if (1..=SPARE_FIELDS_MAX).contains(&head.room()) {
            head.clear();
            // A thread that ends keeps nothing.
            let _ = SPARES.try_with(|spares| spares.keep(Rc::clone(&self.0)));
        }
    }
}

impl Deref for ReadHead {
    type Target = ResponseHead;

    #[inline]
    fn deref(&self) -> &ResponseHead {
        &self.0
    }
}

/// While it is being read.
impl DerefMut for ReadHead {
    #[inline]
    fn deref_mut(&mut self) -> &mut ResponseHead {
        if Rc::get_mut(&mut self.0).is_none() {
            self.0 = Rc::default();
        }
        // invariant: made unique above
        Rc::get_mut(&mut self.0).expect("nobody else has a head that is being read")
    }
}
