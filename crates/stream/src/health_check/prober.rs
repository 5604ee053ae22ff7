//! Scheduling of health checks: one thread of the process runs the checks of the configuration in
//! force.
//!
//! A reload ends the thread before the next one starts. A running check is then abandoned: its
//! result would belong to the health of its own generation, which is no longer used.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ::upstream::{CONNECTING, Health, Peer};
use bytes::Bytes;
use engine::net::{Datagram, DatagramSocket};
use engine::select::{Either, either};
use framework::connection_handler::{Accepted, ListenerId};
use framework::generation::Generation;
use framework::panics::{self, Panicked};
use framework::service::{RunningService, Service};
use framework::workers::Worker;
use logs::{Errno, event};
use rules::service_thread;
use rules::upstream::health_check::{self, PeerCheck, watch};
use transport::Transport;

use super::answers::Verdict;
use super::matching::EXAMINED_MAX;
use super::{HealthCheck, ProbeProtocol};
use crate::datagram_end::send;
use crate::plan::{Content, StreamLocal};
use crate::proxy::probe::{NotConnected, ProbedPeer};
use crate::session::Session;
use crate::upstream::OfSessions;

/// The default datagram of UDP checks, the same as NGINX Plus's.
const DATAGRAM: Bytes = Bytes::from_static(b"nginx health check");

/// The step of a probe, as log lines name it.
type ProbeStep = &'static str;
const SENDING: ProbeStep = "while sending to upstream";
const READING: ProbeStep = "while reading from upstream";
const CHECKING: ProbeStep = "while checking the answer";

/// The checks of a configuration.
pub(super) struct HealthService(pub(super) Vec<Arc<HealthCheck>>);

impl Service for HealthService {
    fn key(&self) -> String {
        "health checks of stream".to_owned()
    }

    /// Starts a thread; the previous one ends.
    fn start(
        &self,
        generation: &Arc<Generation>,
        before: Option<RunningService>,
    ) -> Option<RunningService> {
        drop(before);
        let (generation, checks) = (Arc::clone(generation), self.0.clone());
        service_thread::start("stream health", "health checks of stream", || {
            run(generation, checks)
        })
    }
}

async fn run(generation: Arc<Generation>, checks: Vec<Arc<HealthCheck>>) {
    let worker = service_thread::worker(generation);
    let stream = StreamLocal::of(&worker.current());
    // A server with a check has a listening address.
    if let Some(binding) = stream.bindings.first() {
        for check in checks {
            engine::spawn(watch(Rc::new(ActiveCheck {
                check,
                worker: Rc::clone(&worker),
                listener: binding.id.clone(),
            })));
        }
    }
    pending().await
}

/// A running check.
struct ActiveCheck {
    check: Arc<HealthCheck>,
    worker: Rc<Worker>,
    listener: ListenerId,
}

impl health_check::Prober for ActiveCheck {
    type Upstreams = OfSessions;

    type Kept = ();

    fn check(&self) -> &PeerCheck<OfSessions> {
        &self.check.check
    }

    async fn probe(&self, peer: &Peer, health: &Health, (): &mut ()) {
        let mut session = match self.session(peer) {
            Ok(session) => session,
            // A local failure does not count against the peer.
            Err(error) => {
                let error = Errno(&error);
                return event!(Alert, "socket() failed {error} while checking health");
            }
        };
        match panics::catch(ask(&self.check, peer, &mut session)).await {
            Ok(Some(judged)) => self.check.check.note(&*session, peer, health, judged),
            Ok(None) => {}
            Err(Panicked { place, message }) => {
                logs::error!(
                    session,
                    Alert,
                    "panicked at {place}: {message}: the check is lost"
                );
            }
        }
    }
}

impl ActiveCheck {
    /// A session for the probe, with the settings of a client's session.
    fn session(&self, peer: &Peer) -> io::Result<Box<Session>> {
        let accepted = Accepted {
            worker: Rc::clone(&self.worker),
            stream: engine::net::unconnected()?,
            listener: self.listener.clone(),
            serial: 0,
            handed: None,
        };
        let about = self.check.check.about(peer);
        Ok(Session::without_client(accepted, about, &self.check.server))
    }
}

/// Probes the peer. Returns the last step if the peer is healthy, else the step that failed. `None`
/// if the result does not depend on the peer.
async fn ask(
    check: &HealthCheck,
    peer: &Peer,
    session: &mut Session,
) -> Option<Result<ProbeStep, ProbeStep>> {
    let Content::Proxy(settings) = &check.server.content else {
        return None; // only servers with `proxy_pass` have checks
    };
    let probed = ProbedPeer {
        settings,
        group: check.check.group.name(),
        name: peer.name.clone(),
        address: &check.check.address(peer),
    };
    let judged = match check.protocol {
        ProbeProtocol::Tcp => match probed.connect(session).await {
            Ok(transport) => ask_by_connection(check, session, &transport).await,
            Err(NotConnected::ByPeer(doing)) => Err(doing),
            Err(NotConnected::ByUs) => return None,
        },
        ProbeProtocol::Udp => match probed.connect_datagrams(session).await {
            Ok(socket) => ask_by_datagram(check, session, &socket).await,
            Err(NotConnected::ByPeer(doing)) => Err(doing),
            Err(NotConnected::ByUs) => return None,
        },
    };
    Some(judged)
}

/// Sends the configured data on a connection, and tests the response.
async fn ask_by_connection(
    check: &HealthCheck,
    session: &Session,
    transport: &Transport,
) -> Result<ProbeStep, ProbeStep> {
    let matching = &check.matching;
    if let Some(text) = &matching.send {
        transport.push(text.clone());
        transport.start_send();
    }
    if !matching.expects_an_answer() {
        return Ok(CONNECTING);
    }
    let deadline = engine::now() + check.timeout;
    let mut answer = Vec::new();
    loop {
        match transport.recv(Some(deadline)).await {
            Ok(bytes) if bytes.is_empty() => {
                logs::error!(session, Error, "upstream closed the connection {READING}");
                return Err(READING);
            }
            Ok(bytes) => {
                let room = EXAMINED_MAX - answer.len();
                answer.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Err(error) => return Err(not_read(session, &error)),
        }
        match matching.judge(session, &answer) {
            Verdict::Fits => {
                if let Some(text) = &matching.farewell {
                    transport.push(text.clone());
                    transport.start_send();
                }
                return Ok(CHECKING);
            }
            Verdict::DoesNotFit => return Err(CHECKING),
            Verdict::Undecided => {}
        }
    }
}

/// Sends a datagram, and tests the responses until one matches or time is over.
async fn ask_by_datagram(
    check: &HealthCheck,
    session: &Session,
    socket: &DatagramSocket,
) -> Result<ProbeStep, ProbeStep> {
    let matching = &check.matching;
    let text = matching.send.clone().unwrap_or(DATAGRAM);
    if let Err(error) = send(socket, Datagram::new(text)).await {
        let error = Errno(&error);
        logs::error!(session, Error, "sendmsg() failed {error} {SENDING}");
        return Err(SENDING);
    }
    let deadline = engine::now() + check.timeout;
    loop {
        let Some(received) = received_by(deadline, socket).await else {
            if !matching.expects_an_answer() {
                return Ok(READING);
            }
            return Err(not_read(session, &ErrorKind::TimedOut.into()));
        };
        match received {
            // A datagram that does not match may be for another probe: a later one may match.
            Ok(datagram) if matching.judge(session, &datagram.bytes) == Verdict::Fits => {
                return Ok(CHECKING);
            }
            Ok(_) => {}
            Err(error) => return Err(not_read(session, &error)),
        }
    }
}

/// The next datagram, or the network error for an earlier one; `None` if neither arrives in time.
async fn received_by(
    deadline: Instant,
    socket: &DatagramSocket,
) -> Option<io::Result<Datagram<engine::Buffer>>> {
    match either(socket.recv(), engine::sleep_until(deadline)).await {
        Either::First(received) => Some(received),
        Either::Second(()) => None,
    }
}

/// Logs an error of reading; returns the step that failed.
fn not_read(session: &Session, error: &io::Error) -> ProbeStep {
    if error.kind() == ErrorKind::TimedOut {
        let timed_out = logs::network::TIMED_OUT;
        logs::error!(session, Error, "upstream timed out {timed_out} {READING}");
    } else {
        logs::error!(session, Error, "recv() failed {} {READING}", Errno(error));
    }
    READING
}
