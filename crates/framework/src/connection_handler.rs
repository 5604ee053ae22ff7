//! The interface between worker threads, which accept connections but know no protocol, and the
//! protocols, which serve them.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use engine::Buffer;
use engine::net::{Address, Datagram, DatagramSocket, SocketKind, Stream};

use crate::generation::GenerationView;
use crate::workers::Worker;

/// Takes the accepted connections and received datagrams of one protocol. Every thread has its own
/// handlers.
pub trait ConnectionHandler {
    /// Serves a connection: spawns a task, which keeps the guard of [`Worker::register`] until its
    /// end.
    fn connected(&self, accepted: Accepted);

    /// Takes a datagram that has arrived at a socket of the protocol and belongs to no
    /// [session](ConnectionHandler::datagram_sessions). Never called for a protocol that only
    /// listens for streams.
    fn received(&self, _: ReceivedDatagram) {}

    /// The datagram sessions of the protocol's clients; `None` if the protocol has no sessions.
    fn datagram_sessions(&self) -> Option<&dyn DatagramSessions> {
        None
    }

    /// Whether a generation has this listening socket, for this protocol.
    fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool;

    /// The bytes that a client gets before its connection is closed because the process has no file
    /// descriptor left.
    fn rejection_message(&self) -> &'static [u8];

    /// Drops everything that is cached for the next connection: another generation serves from now
    /// on, or the thread ends.
    fn forget(&self);
}

/// The datagram sessions of a protocol on one thread. A client's datagrams always go to the same
/// thread, and to the process in which its session has begun. A session must keep the value of
/// [`Worker::begin_datagram_session`], which counts it, until its end.
pub trait DatagramSessions {
    /// Passes a datagram to the session of its client.
    ///
    /// # Errors
    /// The datagram, if its client has no session.
    fn give(
        &self,
        listener: &ListenerId,
        datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>>;
}

/// Identifies a listening socket over all generations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub Arc<String>); // a single pointer, since every connection has one

impl ListenerId {
    /// Identifies the socket of an address. The protocol that serves the address is not part of the
    /// id: it may change with a reload, and the socket stays.
    #[must_use]
    pub fn of_address(address: &Address, carries: SocketKind) -> ListenerId {
        ListenerId(Arc::new(match carries {
            SocketKind::Streams => format!("{STREAMS}{address}"),
            SocketKind::Datagrams => format!("{DATAGRAMS}{address}"),
        }))
    }

    /// The address of the socket, as in nginx's log.
    #[must_use]
    pub fn address(&self) -> &str {
        let name = self.0.strip_prefix(DATAGRAMS);
        let name = name.or_else(|| self.0.strip_prefix(STREAMS));
        name.unwrap_or(&self.0)
    }
}

/// The prefix of the ids of datagram sockets.
const DATAGRAMS: &str = "listen udp ";

/// The prefix of the ids of stream sockets.
const STREAMS: &str = "listen ";

/// A received datagram, and the socket by which replies to its sender are sent.
pub struct ReceivedDatagram {
    /// The thread that has received the datagram.
    pub worker: Rc<Worker>,
    /// The socket, which all clients of the address share.
    pub socket: Rc<DatagramSocket>,
    /// The id of the socket.
    pub listener: ListenerId,
    /// The datagram itself, with its sender.
    pub datagram: Datagram<Buffer>,
}

/// A connection that has been accepted.
pub struct Accepted {
    /// The thread that serves the connection.
    pub worker: Rc<Worker>,
    /// The bytes of the accepted connection.
    pub stream: Stream,
    /// The listening socket of the connection.
    pub listener: ListenerId,
    /// The serial number of the connection, over all threads.
    pub serial: u64,
    /// If another connection handler has handed the connection over: what that handler knows of it.
    pub handed: Option<Box<HandoverInfo>>,
}

/// What the connection handler of another address knows of a connection that it hands over.
pub struct HandoverInfo {
    /// The client's address, as that connection handler has it.
    pub peer: Address,
    /// The address for which the connection is served now.
    pub local: Address,
    /// The layer above the stream, such as TLS, in a type that all protocols know.
    pub over: Option<Box<dyn Any>>,
    /// How often the connection has been handed over.
    pub times: u8,
    /// Guards of the previous connection handlers that must live as long as the connection, such as
    /// places under limits.
    pub held: Option<Box<dyn Any>>,
}

/// A connection that is being served, as its thread sees it.
pub trait ServedConnection {
    /// The serial number of the connection: see [`Accepted::serial`].
    fn serial(&self) -> u64;

    /// Whether a generation has the listening socket of the connection, for the same protocol. If
    /// it does not, the connection stays with the previous generation.
    fn has_listener_in(&self, next: &GenerationView) -> bool;

    /// The connection's place under `worker_connections` of its thread: see
    /// [`Registered::place`](crate::workers::Registered::place).
    fn place(&self) -> Option<u32>;

    /// Whether the connection may be closed at once while it is idle, when its thread ends. False
    /// for a client that has sent nothing yet, because its first request may be on its way.
    fn ends_when_idle(&self) -> bool;

    /// Announces to the client that the connection is to end, if the protocol can (GOAWAY), even
    /// while requests are in flight.
    fn announce_end(&self) {}

    /// Ends an idle connection: nothing more is read.
    fn close_reading(&self);

    /// Ends the connection at once.
    fn abort(&self);

    /// Keeps the connection with a generation, since the next generation does not have its
    /// listening socket.
    fn pin_generation(&self, local: &Rc<GenerationView>);
}

#[cfg(test)]
mod tests {
    use std::fmt::Arguments;
    use std::time::Duration;

    use base::level::Level;
    use bytes::Bytes;
    use engine::net::{BoundSocket, connect};
    use engine::sim::{self, Faults};

    use crate::counters::Counters;
    use crate::generation::Generation;
    use crate::report::ThreadReport;
    use crate::zone::Zones;

    use super::*;

    /// An echo protocol without requests: every reply begins with a word.
    struct Echo(&'static str);

    /// The word of every listener.
    struct Words(Vec<(ListenerId, &'static str)>);

    struct Session {
        accepted: Accepted,
        word: &'static str,
    }

    fn says(local: &GenerationView, listener: &ListenerId, word: &str) -> bool {
        let words = local.generation.part::<Words>().unwrap();
        words
            .0
            .iter()
            .any(|(id, said)| id == listener && *said == word)
    }

    impl ConnectionHandler for Echo {
        fn connected(&self, accepted: Accepted) {
            let worker = Rc::clone(&accepted.worker);
            let session = Rc::new(Session {
                accepted,
                word: self.0,
            });
            let registered = worker.register(&session);
            engine::spawn(async move {
                let stream = &session.accepted.stream;
                while let Ok(received) = stream.recv(None).await
                    && !received.is_empty()
                {
                    stream.push(Bytes::from_static(session.word.as_bytes()));
                    stream.push(Bytes::copy_from_slice(&received));
                    stream.start_send();
                }
                drop(registered);
            });
        }

        fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool {
            says(local, listener, self.0)
        }

        fn rejection_message(&self) -> &'static [u8] {
            b"busy\n"
        }

        fn forget(&self) {}
    }

    impl ServedConnection for Session {
        fn serial(&self) -> u64 {
            self.accepted.serial
        }

        fn has_listener_in(&self, next: &GenerationView) -> bool {
            says(next, &self.accepted.listener, self.word)
        }

        fn place(&self) -> Option<u32> {
            None
        }

        fn ends_when_idle(&self) -> bool {
            false
        }

        fn close_reading(&self) {
            self.accepted.stream.shutdown_read();
        }

        fn abort(&self) {
            self.accepted.stream.abort();
        }

        // This protocol ends a session whose word the new generation does not have. A protocol with
        // requests would continue with the old generation.
        fn pin_generation(&self, _: &Rc<GenerationView>) {
            self.accepted.stream.abort();
        }
    }

    #[derive(Debug)]
    struct Silent;

    impl ThreadReport for Silent {
        fn line(&self, _: Level, message: Arguments<'_>) {
            panic!("{message}");
        }

        fn thread_begins(&self) {}

        fn serves_by(&self, _: &Generation) {}

        fn thread_ends(&self) {}
    }

    fn listener(name: &str) -> ListenerId {
        ListenerId(Arc::new(name.to_owned()))
    }

    fn generation(words: &[(&str, &'static str)]) -> Arc<Generation> {
        let mut generation = Generation::new(Zones::default());
        let words = words.iter().map(|(name, word)| (listener(name), *word));
        generation.add(Words(words.collect()));
        Arc::new(generation)
    }

    fn listen(address: &str) -> (BoundSocket, Address) {
        sim::listen(Address::Inet(address.parse().unwrap())).unwrap()
    }

    async fn ask(client: &Stream) -> String {
        client.push(Bytes::from_static(b"?"));
        client.start_send();
        let mut heard = String::new();
        while !heard.ends_with('?') {
            let received = client.recv(None).await.unwrap();
            assert!(!received.is_empty(), "closed behind {heard:?}");
            heard.push_str(std::str::from_utf8(&received).unwrap());
        }
        heard
    }

    #[test]
    fn a_thread_accepts_for_protocols_that_it_does_not_know() {
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        runtime.block_on(async {
            let first = generation(&[("one", "hi"), ("two", "ho")]);
            let counters = Arc::new(Counters::default());
            let handlers: Vec<Rc<dyn ConnectionHandler>> =
                vec![Rc::new(Echo("hi")), Rc::new(Echo("ho"))];
            let worker = Worker::start(first, 8, Arc::clone(&counters), handlers, &Silent);
            let (one, first_address) = listen("10.0.0.1:7");
            let (two, second_address) = listen("10.0.0.1:8");
            let share = |one: &BoundSocket, two: &BoundSocket| {
                let one = ((listener("one"), 0), one.try_clone().unwrap());
                vec![one, ((listener("two"), 0), two.try_clone().unwrap())]
            };
            worker.listen(share(&one, &two));
            let greeted = connect(&first_address, None, None).await.unwrap();
            let other = connect(&second_address, None, None).await.unwrap();
            assert_eq!(ask(&greeted).await, "hi?");
            assert_eq!(ask(&other).await, "ho?");
            assert_eq!(counters.totals().active, 2);

            // An address gets another protocol and keeps its socket: connections that were accepted
            // for the old protocol stay with the old generation.
            worker.swap(
                generation(&[("one", "ho"), ("two", "ho")]),
                share(&one, &two),
            );
            let later = connect(&first_address, None, None).await.unwrap();
            assert_eq!(ask(&later).await, "ho?");
            assert_eq!(ask(&other).await, "ho?", "its address is as it was");
            assert!(
                greeted.recv(None).await.is_err(),
                "it has been told to stay behind"
            );

            drop((greeted, other, later));
            worker.quit();
            worker.end().await;
            assert_eq!(counters.totals().active, 0, "they have left the books");
        });
    }

    #[test]
    fn a_limit_is_for_connections_that_came_before_it() {
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        runtime.block_on(async {
            let counters = Arc::new(Counters::default());
            let no_words = generation(&[]);
            let worker = Worker::start(no_words, 8, Arc::clone(&counters), Vec::new(), &Silent);
            let before = counters.next_serial();
            assert!(!worker.is_ending(before));
            worker.limit_open(Duration::from_secs(1));
            // In the same turn of the loop, for which the clock stands still.
            let later = counters.next_serial();
            assert!(worker.is_ending(before) && !worker.is_ending(later));
            worker.quit();
            assert!(worker.is_ending(later));
            worker.end().await;
        });
    }
}
