//! A session as a caller of the loop over a group's peers ([`::upstream::try_peers()`]): its
//! attempts, its connections to peers, and the exchange with a peer.
//!
//! Over TCP, a peer has answered once it is connected. Over UDP, a peer is only known to receive
//! once it sends something, so the exchange there is the whole session.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::connecting::{self, ConnectOptions, Connected, not_connected};
use ::upstream::{
    AttemptError, AttemptFailure, AttemptStart, CONNECTING, Caller, Causes, ConnectionRoom, Peer,
    PeerProtocol, RetryPolicy, Socket,
};
use bytes::Bytes;
use engine::net::{Address, DatagramSocket};
use framework::workers::connect_datagrams;
use logs::{ErrorLog, Level, Subject, Subsystem};
use transport::Transport;
use transport::tls::upstream::settings::{NotSecured, ResolvedTls};

use super::attempts::Attempt;
use super::settings::Proxy;
use super::sticking::Sticking;
use super::{datagrams, introduction};
use crate::datagram_end::DatagramEnd;
use crate::datagrams::Listed;
use crate::proxy::securing;
use crate::session::{Session, Status};
use crate::subject::WithoutFields;
use crate::upstream::Group;

/// A session that tries peers.
pub(super) struct Asker<'a> {
    pub(super) session: &'a mut Session,
    /// The session's affinity from the group's `sticky`.
    pub(super) sticking: Option<Sticking>,
    /// The activity in log lines about a failed connection.
    connecting: &'static str,
}

impl Subject for Asker<'_> {
    fn admits(&self, level: Level) -> bool {
        self.session.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.session.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        Subject::is_debugged(self.session)
    }

    fn subsystem(&self) -> Subsystem {
        self.session.subsystem()
    }

    fn serial(&self) -> Option<u64> {
        self.session.serial()
    }

    fn doing(&self) -> &str {
        self.session.doing()
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.session.describe(out)
    }
}

impl<'a> Asker<'a> {
    /// A session without affinity.
    pub(super) fn of(session: &'a mut Session) -> Asker<'a> {
        Asker {
            session,
            sticking: None,
            connecting: CONNECTING,
        }
    }

    /// A session of a client of this group.
    pub(super) fn of_group(session: &'a mut Session, group: &Group) -> Asker<'a> {
        Asker {
            sticking: Sticking::begin(group, session),
            ..Asker::of(session)
        }
    }
}

impl Asker<'_> {
    /// Records the connection to the current peer.
    fn note_connected(
        &mut self,
        udp: &str,
        address: &Address,
        local: impl FnOnce() -> Option<Address>,
    ) {
        if let Some(attempt) = self.session.attempts.last_mut() {
            attempt.connect_time = Some(attempt.elapsed());
        }
        // The system is asked for the address only if the line is logged.
        if self.admits(Level::Info)
            && let Some(local) = local()
        {
            let text = format_args!("{udp}proxy {local} connected to {address}");
            logs::error!(&WithoutFields(self.session), Info, "{text}");
        }
        if let Some(sticking) = &mut self.sticking {
            sticking.connected(self.session);
        }
    }
}

impl Caller for Asker<'_> {
    /// Assigns further datagrams of the client to its session until dropped.
    type Client = Option<Listed>;

    /// As in nginx, a closed client is not detected while peers are tried.
    type Gone = Infallible;

    fn gone(_: &mut Option<Listed>) -> impl Future<Output = Infallible> {
        pending()
    }

    fn left(&mut self, _: &Option<Listed>, gone: Infallible, _: &'static str) -> Infallible {
        gone
    }

    fn wanted(&self) -> Option<Bytes> {
        self.sticking.as_ref()?.wanted(self.session)
    }

    fn chosen(&mut self, peer: &Peer) {
        if let Some(sticking) = &mut self.sticking {
            sticking.chosen(peer.id.clone());
        }
    }

    fn peer_failed(&mut self) {
        if let Some(sticking) = &mut self.sticking {
            sticking.has_failed();
        }
    }

    fn try_begins(&mut self, begun: AttemptStart<'_>) {
        note_end(self.session);
        self.session.attempts.push(Attempt::at(begun.name.clone()));
        if let Some(address) = begun.address {
            logs::error!(self.session, Debug, "proxy connect: {address}");
        }
    }

    fn turned_away(&mut self, group: &Bytes, _: u16, _: Option<Duration>) {
        self.session.attempts.push(Attempt::at(group.clone()));
        note_end(self.session);
    }

    fn connecting_timed_out(&self) {
        logs::error!(
            self,
            Error,
            "upstream timed out (110: Connection timed out) {}",
            self.connecting
        );
    }

    fn connecting(&self) -> &'static str {
        self.connecting
    }

    fn try_failed(&mut self, _: &AttemptFailure) {}
}

/// Connections to peers, for TCP.
pub(super) struct ByConnection<'a> {
    pub(super) settings: &'a Proxy,
    /// The socket options.
    pub(super) socket: Socket,
    /// The TLS settings, if TLS is used.
    pub(super) secured: Option<&'a ResolvedTls>,
    /// Whether the client's preread bytes are counted during the first attempt, as in nginx: if
    /// nginx has read from a client before, it reads on while it connects.
    pub(super) client_is_read: Cell<bool>,
}

impl PeerProtocol<Asker<'_>> for ByConnection<'_> {
    type Connection = Transport;

    type Answer = ();

    const READING: &'static str = CONNECTING;

    fn tries(&self) -> &RetryPolicy {
        &self.settings.tries
    }

    async fn connect(
        &self,
        asker: &mut Asker<'_>,
        client: &mut Option<Listed>,
        address: &Address,
        room: ConnectionRoom,
    ) -> Result<(Transport, bool), AttemptError<Infallible>> {
        asker.connecting = match address {
            Address::Inet(_) if self.client_is_read.take() => {
                asker.session.count_preread();
                PROXYING
            }
            _ => CONNECTING,
        };
        let tries = self.tries();
        let way = ConnectOptions {
            address,
            socket: &self.socket,
            deadline: engine::now() + tries.connect_timeout,
            tries,
            room,
        };
        let connected = connecting::connect(asker, client, &way, || None);
        let transport = match connected.await? {
            Connected::Anew(stream) => Transport::from(stream),
            Connected::Kept(connection) => connection.transport,
        };
        if asker.session.server.tcp_nodelay && matches!(address, Address::Inet(_)) {
            transport.set_nodelay(true);
        }
        introduction::push(asker.session, self.settings.proxy_protocol, &transport);
        let shaken =
            securing::do_handshake(asker.session, self.settings, &transport, self.secured).await;
        shaken.map_err(|not_secured| {
            let (cause, status) = match not_secured {
                NotSecured::TimedOut => (Causes::TIMEOUT, 504),
                NotSecured::Failed => (Causes::ERROR, 502),
            };
            AttemptError::Failed(AttemptFailure::new(cause, status, CONNECTING))
        })?;
        asker.note_connected("", address, || Some(transport.local()));
        Ok((transport, false))
    }

    async fn talk(
        &self,
        _: &mut Asker<'_>,
        _: &mut Option<Listed>,
        _: &mut Transport,
    ) -> Result<(), AttemptError<Infallible>> {
        Ok(())
    }

    fn can_be_repeated(&self) -> bool {
        true
    }
}

/// Connected UDP sockets for peers; connecting them sends nothing.
pub(super) struct ByDatagrams<'a> {
    pub(super) settings: &'a Proxy,
    /// The socket options.
    pub(super) socket: Socket,
    pub(super) client: &'a DatagramEnd,
    /// Whether a peer was selected, so that the client's datagrams are taken.
    pub(super) has_begun: Cell<bool>,
}

impl PeerProtocol<Asker<'_>> for ByDatagrams<'_> {
    type Connection = DatagramSocket;

    type Answer = Status;

    const READING: &'static str = CONNECTING;

    fn tries(&self) -> &RetryPolicy {
        &self.settings.tries
    }

    async fn connect(
        &self,
        asker: &mut Asker<'_>,
        _: &mut Option<Listed>,
        address: &Address,
        _: ConnectionRoom,
    ) -> Result<(DatagramSocket, bool), AttemptError<Infallible>> {
        let connected = connect_datagrams(address, &self.socket.options).await;
        let socket =
            connected.map_err(|error| not_connected(asker, address, &self.socket, error))?;
        asker.note_connected("udp ", address, || socket.local().ok());
        Ok((socket, false))
    }

    async fn talk(
        &self,
        asker: &mut Asker<'_>,
        listed: &mut Option<Listed>,
        upstream: &mut DatagramSocket,
    ) -> Result<Status, AttemptError<Infallible>> {
        self.has_begun.set(true);
        let session = &mut *asker.session;
        session.doing = " while proxying connection";
        let ByDatagrams {
            settings, client, ..
        } = self;
        let ended = datagrams::run(session, settings, client, upstream, listed).await;
        if ended.has_peer_failed {
            return Err(AttemptError::Failed(AttemptFailure {
                sent: true,
                ..AttemptFailure::new(Causes::ERROR, ended.status as u16, PROXYING)
            }));
        }
        Ok(ended.status)
    }

    /// The client's datagrams have been forwarded and are not kept.
    fn can_be_repeated(&self) -> bool {
        false
    }
}

/// The activity in log lines of a session whose client is read.
const PROXYING: &str = "while proxying connection";

/// Ends the current attempt, if there is one.
pub(super) fn note_end(session: &mut Session) {
    if let Some(attempt) = session.attempts.last_mut()
        && attempt.session_time.is_none()
    {
        attempt.session_time = Some(attempt.elapsed());
    }
}
