//! The head of a response, while it is being read and when it is shared afterwards.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use engine::Spares;
use proto::h1::response::ResponseHead;

/// Maximum number of heads whose memory a thread keeps: about as many as end in one turn of the
/// event loop with a few connections.
const SPARES_MAX: usize = 1024;

/// Maximum number of fields in the memory of a head that is kept for reuse.
const SPARE_FIELDS_MAX: usize = 64;

thread_local! {
    static SPARES: Spares<Rc<ResponseHead>, SPARES_MAX> = const { Spares::new(|| SPARES.with(Spares::clear)) };
}

/// A head that is being read, or has been read and may be shared. Its memory is reused by later
/// heads of the thread.
#[derive(Clone)]
pub struct ReadHead(Rc<ResponseHead>);

impl Default for ReadHead {
    /// An empty head.
    fn default() -> ReadHead {
        ReadHead(SPARES.with(Spares::take).unwrap_or_default())
    }
}

impl Drop for ReadHead {
    fn drop(&mut self) {
        let Some(head) = Rc::get_mut(&mut self.0) else {
            return; // the head is still shared
        };
        if (1..=SPARE_FIELDS_MAX).contains(&head.room()) {
            head.clear();
            // A thread that is ending keeps nothing.
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

/// May only be used while the head is being read, and not shared.
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
