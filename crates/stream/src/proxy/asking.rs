//! A session in the loop over the peers of a group ([`::upstream::try_peers()`]): what it tells of
//! its tries, how it is connected to a peer, and what is done there.
//!
//! Over TCP a peer has answered once there is a connection to it. Over UDP there is no telling
//! whether a peer receives before it sends something: what is asked there is the whole session.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::connecting::{self, ConnectOptions, Connected, not_connected};
use ::upstream::{
    AttemptError, AttemptFailure, AttemptStart, CONNECTING, Caller, Causes, ConnectionRoom,
    PeerProtocol, RetryPolicy, Socket,
};
use bytes::Bytes;
use engine::net::{Address, DatagramSocket};
use framework::workers::connect_datagrams;
use logs::{ErrorLog, Level, Subject, Subsystem};
use transport::Transport;
use transport::tls::upstream::settings::{NotSecured, Secured};

use super::attempts::Attempt;
use super::settings::Proxy;
use super::{datagrams, introduction};
use crate::datagram_end::DatagramEnd;
use crate::datagrams::Listed;
use crate::proxy::securing;
use crate::session::{Session, Status};
use crate::subject::WithoutFields;

/// A session that asks.
pub(super) struct Asker<'a>(pub(super) &'a mut Session);

impl Subject for Asker<'_> {
    fn admits(&self, level: Level) -> bool {
        self.0.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.0.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        Subject::is_debugged(self.0)
    }

    fn subsystem(&self) -> Subsystem {
        self.0.subsystem()
    }

    fn serial(&self) -> Option<u64> {
        self.0.serial()
    }

    fn doing(&self) -> &str {
        self.0.doing()
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.0.describe(out)
    }
}

impl Asker<'_> {
    /// There is a connection to the peer that is tried.
    fn note_connected(&mut self, udp: &str, local: &Address, address: &Address) {
        if let Some(attempt) = self.0.attempts.last_mut() {
            attempt.connect_time = Some(attempt.elapsed());
        }
        logs::error!(
            &WithoutFields(self.0),
            Info,
            "{udp}proxy {local} connected to {address}"
        );
    }
}

impl Caller for Asker<'_> {
    /// Further datagrams of a client come to its session for as long as that is listed.
    type Client = Option<Listed>;

    /// As in nginx nobody looks whether a client goes while peers are tried.
    type Gone = Infallible;

    fn gone(_: &mut Option<Listed>) -> impl Future<Output = Infallible> {
        pending()
    }

    fn left(&mut self, _: &Option<Listed>, gone: Infallible, _: &'static str) -> Infallible {
        gone
    }

    fn try_begins(&mut self, begun: AttemptStart<'_>) {
        note_end(self.0);
        self.0.attempts.push(Attempt::at(begun.name.clone()));
    }

    fn turned_away(&mut self, group: &Bytes, _: u16, _: Option<Duration>) {
        self.0.attempts.push(Attempt::at(group.clone()));
        note_end(self.0);
    }

    fn connecting_timed_out(&self) {
        logs::error!(
            self,
            Error,
            "upstream timed out (110: Connection timed out) {CONNECTING}"
        );
    }

    fn try_failed(&mut self, _: &AttemptFailure) {}
}

/// Connections to peers, for bytes.
pub(super) struct ByConnection<'a> {
    pub(super) settings: &'a Proxy,
    /// What sockets are to be.
    pub(super) socket: Socket,
    /// What TLS is to be, where it is spoken.
    pub(super) secured: Option<&'a Secured>,
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
        if asker.0.server.tcp_nodelay && matches!(address, Address::Inet(_)) {
            transport.set_nodelay(true);
        }
        introduction::push(asker.0, self.settings.proxy_protocol, &transport);
        let shaken = securing::shake_hands(asker.0, self.settings, &transport, self.secured).await;
        shaken.map_err(|not_secured| {
            let (cause, status) = match not_secured {
                NotSecured::TimedOut => (Causes::TIMEOUT, 504),
                NotSecured::Failed => (Causes::ERROR, 502),
            };
            AttemptError::Failed(AttemptFailure::new(cause, status, CONNECTING))
        })?;
        asker.note_connected("", &transport.local(), address);
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

/// Sockets that are connected to peers, which are told nothing by that, for datagrams.
pub(super) struct ByDatagrams<'a> {
    pub(super) settings: &'a Proxy,
    /// What sockets are to be.
    pub(super) socket: Socket,
    pub(super) client: &'a DatagramEnd,
    /// Whether a peer has been found, so that the client's datagrams are taken.
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
        if let Ok(local) = socket.local() {
            asker.note_connected("udp ", &local, address);
        }
        Ok((socket, false))
    }

    async fn talk(
        &self,
        asker: &mut Asker<'_>,
        listed: &mut Option<Listed>,
        upstream: &mut DatagramSocket,
    ) -> Result<Status, AttemptError<Infallible>> {
        self.has_begun.set(true);
        let session = &mut *asker.0;
        session.doing = " while proxying connection";
        let ByDatagrams {
            settings, client, ..
        } = self;
        let ended = datagrams::run(session, settings, client, upstream, listed).await;
        if ended.has_peer_failed {
            return Err(AttemptError::Failed(AttemptFailure {
                sent: true,
                ..AttemptFailure::new(Causes::ERROR, ended.status as u16, DATAGRAMS)
            }));
        }
        Ok(ended.status)
    }

    /// What has come of the client has been passed on.
    fn can_be_repeated(&self) -> bool {
        false
    }
}

/// What is done with datagrams, as log lines say it.
const DATAGRAMS: &str = "while proxying connection";

/// The try under way, if there is one, is over.
pub(super) fn note_end(session: &mut Session) {
    if let Some(attempt) = session.attempts.last_mut()
        && attempt.session_time.is_none()
    {
        attempt.session_time = Some(attempt.elapsed());
    }
}
