//! What is behind a listening address, as the threads that accept see it: they know no protocol.

use std::rc::Rc;
use std::time::Instant;

use engine::net::Stream;
use framework::generation::Local;

use crate::listen::ListenerId;
use crate::workers::Worker;

/// Takes what has been accepted for one protocol. Each thread has its own.
pub trait Door {
    /// Serves a connection: spawns a task, which holds what [`Worker::register`] gives as long as it lives.
    fn connected(&self, accepted: Accepted);

    /// Whether a generation has this listening socket; connections by one that has gone stay with the generation before.
    fn knows(&self, local: &Local, listener: &ListenerId) -> bool;

    /// What a client is told for whom there is no descriptor.
    fn turned_away(&self) -> &'static [u8];

    /// Another generation serves from now on, or none: what is kept for the next connection goes.
    fn forget(&self);
}

/// A connection that has been accepted.
pub struct Accepted {
    /// The thread that serves it.
    pub worker: Rc<Worker>,
    /// Its bytes.
    pub stream: Stream,
    /// The socket that it came by.
    pub listener: ListenerId,
    /// Its number, over all threads.
    pub serial: u64,
}

/// A connection that is being served, as its thread sees it.
pub trait Tenant {
    /// When it was accepted.
    fn accepted(&self) -> Instant;

    /// The socket that it came by.
    fn listener(&self) -> &ListenerId;

    /// Its place among those of its thread.
    fn place(&self) -> Option<u32>;

    /// Whether anything has been asked for by it: one that has said nothing yet may still be about to.
    fn has_served(&self) -> bool;

    /// Ends it where it is idle: no more is read.
    fn close_reading(&self);

    /// Ends it at once.
    fn abort(&self);

    /// Lets it stay with a generation, since the next one does not know its listener.
    fn stay_with(&self, local: &Rc<Local>);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use engine::net::{Address, connect};
    use engine::sim::{self, Faults};
    use framework::counters::Counters;
    use framework::generation::Generation;
    use framework::zone::Zones;

    use super::*;

    /// Says everything back: a protocol without requests.
    struct Echo;

    struct Session {
        accepted: Accepted,
        since: Instant,
    }

    impl Door for Echo {
        fn connected(&self, accepted: Accepted) {
            let worker = Rc::clone(&accepted.worker);
            let session = Rc::new(Session {
                accepted,
                since: engine::now(),
            });
            let registered = worker.register(&session);
            engine::spawn(async move {
                let stream = &session.accepted.stream;
                while let Ok(received) = stream.recv(None).await
                    && !received.is_empty()
                {
                    stream.push(Bytes::copy_from_slice(&received));
                    stream.start_send();
                }
                drop(registered);
            });
        }

        fn knows(&self, _: &Local, _: &ListenerId) -> bool {
            true
        }

        fn turned_away(&self) -> &'static [u8] {
            b"busy\n"
        }

        fn forget(&self) {}
    }

    impl Tenant for Session {
        fn accepted(&self) -> Instant {
            self.since
        }

        fn listener(&self) -> &ListenerId {
            &self.accepted.listener
        }

        fn place(&self) -> Option<u32> {
            None
        }

        fn has_served(&self) -> bool {
            false
        }

        fn close_reading(&self) {
            self.accepted.stream.shutdown_read();
        }

        fn abort(&self) {
            self.accepted.stream.abort();
        }

        fn stay_with(&self, _: &Rc<Local>) {}
    }

    #[test]
    fn a_thread_accepts_for_a_protocol_that_it_does_not_know() {
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        runtime.block_on(async {
            let generation = Arc::new(Generation::new(Zones::default()));
            let counters = Arc::new(Counters::default());
            let worker = Worker::start(generation, 8, Arc::clone(&counters), Rc::new(Echo));
            let address = Address::Inet("10.0.0.1:7".parse().unwrap());
            let (socket, address) = sim::listen(address).unwrap();
            let id = ListenerId("listen 10.0.0.1:7".to_owned().into());
            worker.listen(vec![((id, 0), socket)]);
            let client = connect(&address, None, None).await.unwrap();
            client.push(Bytes::from_static(b"hello"));
            client.start_send();
            let mut heard = Vec::new();
            while heard.len() < 5 {
                heard.extend_from_slice(&client.recv(None).await.unwrap());
            }
            assert_eq!(heard, b"hello");
            assert_eq!(counters.totals().active, 1);
            drop(client);
            worker.quit();
            worker.end().await;
            assert_eq!(counters.totals().active, 0, "it has left the books");
        });
    }
}
