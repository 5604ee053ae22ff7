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
    /// What it said.
    pub message: String,
}

/// Lets panics that are caught say nothing on standard error: they are logged by whoever catches
/// them. All others are printed as before. Once is enough for the process.
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

/// Panics on a request for `/planted-panic`, for the test below.
#[cfg(test)]
pub(crate) fn plant(uri: &[u8]) {
    assert!(uri != b"/planted-panic", "planted");
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use engine::EngineKind;

    use crate::listen::ListenerId;
    use crate::log::Destination;
    use crate::workers::{Settings, Workers};

    const REQUEST: &str = "GET /fine HTTP/1.1\r\nHost: a\r\n\r\n";

    /// One thread that serves this configuration, its address, and its error log.
    fn serve(folder: &Path) -> (Workers, String, std::path::PathBuf) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let text = format!(
            "error_log error.log; events {{ }} http {{ access_log access.log; server {{ \
             listen {address}; location / {{ return 200 fine; }} }} }}"
        );
        std::fs::create_dir_all(folder).unwrap();
        let file = folder.join("test.conf");
        std::fs::write(&file, text).unwrap();
        let registry = crate::table::registry(&[]);
        let loaded = conf::load(&file, folder, &[], registry, &conf::Disk);
        let environment = framework::compile::Environment {
            prefix: folder,
            conf_prefix: folder,
            files: &conf::Disk,
            privileged: false,
        };
        let compiled =
            crate::compile(&loaded.tree, &environment, Destination::Stderr).expect("compiles");
        for log in &compiled.logs {
            log.install(log.open().unwrap());
        }
        let settings = Settings {
            engine: EngineKind::Epoll,
            threads: 1,
            door: crate::http::door::door,
            connections: 64,
            multi_accept: false,
            affinity: Vec::new(),
        };
        let id: ListenerId = compiled.bindings[0].id.clone();
        let sockets = vec![(id, vec![OwnedFd::from(listener).into()])];
        let workers = Workers::start(&settings, &Arc::new(compiled.generation), &sockets).unwrap();
        (workers, address, folder.join("error.log"))
    }

    fn connect(address: &str) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    /// Everything that comes until the connection ends.
    fn read_all(mut stream: &TcpStream) -> String {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn ask(mut stream: &TcpStream) -> bool {
        let mut buffer = [0; 4096];
        stream.write_all(REQUEST.as_bytes()).unwrap();
        let length = stream.read(&mut buffer).unwrap();
        buffer[..length].ends_with(b"fine")
    }

    #[test]
    fn a_panic_costs_one_exchange_and_is_logged_with_its_place() {
        let folder = std::env::temp_dir().join(format!("tidegate-panic-{}", std::process::id()));
        let (workers, address, error_log) = serve(&folder);
        let neighbour = connect(&address);
        assert!(ask(&neighbour));

        // The request before it on the same connection is answered; the one behind it is lost.
        let mut victim = connect(&address);
        let planted = "GET /planted-panic HTTP/1.1\r\nHost: a\r\n\r\n";
        let requests = [REQUEST, planted, REQUEST].concat();
        victim.write_all(requests.as_bytes()).unwrap();
        let answer = read_all(&victim);
        assert!(answer.ends_with("fine"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");

        assert!(ask(&neighbour), "its thread goes on");
        assert!(ask(&connect(&address)), "and accepts");
        assert_eq!(workers.counters().totals().panics, 1);
        drop(workers);
        let log = std::fs::read_to_string(error_log).unwrap();
        let line = log
            .lines()
            .find(|line| line.contains("planted"))
            .expect("logged");
        assert!(
            line.contains("[alert]") && line.contains("src/panics.rs:"),
            "{line}"
        );
        assert!(
            line.contains("request: \"GET /planted-panic HTTP/1.1\""),
            "{line}"
        );
        let access = std::fs::read_to_string(folder.join("access.log")).unwrap();
        assert!(
            access.contains("\"GET /planted-panic HTTP/1.1\" 500 0"),
            "{access}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
