//! Catches panics, so that a bug which a request triggers ends only that exchange.
//!
//! [`catch`] stops a panic in a request's future; the error log then names the panic's place and
//! the request. Data that was sent before the panic still reaches the client. A panic of another
//! task ends that task, and a panic of the thread itself ends the process ([`AbortOnPanic`]), which
//! the master restarts: a server without one of its threads would refuse a share of the clients for
//! ever.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

thread_local! {
    /// Whether a panic now would be caught by [`catch`].
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// The place of the last panic that was caught.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Debug)]
pub struct Panicked {
    /// File and line of the panic; "an unknown place" if a job of the thread pool panicked.
    pub place: String,
    /// The text that the panic carried.
    pub message: String,
}

/// Makes caught panics print nothing to standard error, since the catcher logs them. Other panics
/// are printed as before. Later calls have no effect.
pub fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            if CAUGHT.get() {
                PLACE.set(panic.location().map(ToString::to_string));
            } else {
                print(panic);
            }
        }));
    });
}

/// Runs a future to its completion or its panic. After a panic the future is only dropped.
pub async fn catch<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(|context| {
        CAUGHT.set(true);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        CAUGHT.set(false);
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => Poll::Ready(Err(Panicked {
                place: PLACE.take().unwrap_or_else(|| "an unknown place".into()),
                message: message(&*payload),
            })),
        }
    })
    .await
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("no message").to_owned()
}

/// Aborts the process if it is dropped during a panic.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
