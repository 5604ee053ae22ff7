//! Panics: a bug met by one request costs that exchange and nothing else.
//!
//! [`catch`] stops a panic where it leaves the future of a request; its place goes to the error
//! log with the request. What was sent before on the connection still reaches the client. A panic
//! of a task outside any request ends that task, and one of the thread itself ends the process
//! ([`AbortOnPanic`]), which the master starts again: a server that has lost a thread would
//! refuse its share of the clients for ever.

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
    /// Where the last one of those was.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Debug)]
pub struct Panicked {
    /// File and line; unknown where a job of the thread pool panicked.
    pub place: String,
    /// The text that the panic carried.
    pub message: String,
}

/// Lets panics that are caught say nothing on standard error: what catches them
/// logs them. All others are printed as before. Once is enough for the process.
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

/// Drives a future to its end, or to its panic. After a panic the future is only dropped.
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

/// Ends the process if it is dropped by a panic.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
