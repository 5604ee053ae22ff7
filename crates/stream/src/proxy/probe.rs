//! Connections of health checks, made with the settings of a server's sessions.

use std::cell::Cell;

use ::upstream::connecting::not_connected;
use ::upstream::{AttemptError, CONNECTING, ConnectionRoom, PeerProtocol as _};
use bytes::Bytes;
use engine::net::{Address, DatagramSocket};
use framework::workers::connect_datagrams;
use transport::Transport;

use super::asking::{Asker, ByConnection};
use super::attempts::Attempt;
use super::securing;
use super::settings::Proxy;
use crate::session::Session;

/// Why a connection to a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotConnected {
    /// The server has failed in this step.
    ByPeer(&'static str),
    /// A local failure, which does not count against the server.
    ByUs,
}

/// The server to probe.
pub(crate) struct ProbedPeer<'a> {
    pub(crate) settings: &'a Proxy,
    /// The name of its group, which TLS uses as the host.
    pub(crate) group: &'a [u8],
    pub(crate) name: Bytes,
    pub(crate) address: &'a Address,
}

impl ProbedPeer<'_> {
    /// Connects as a session does, with TLS and the header of the PROXY protocol.
    ///
    /// # Errors
    /// If there is no connection, which has been logged.
    pub(crate) async fn connect(&self, session: &mut Session) -> Result<Transport, NotConnected> {
        let settings = self.settings;
        let Ok(secured) = securing::prepare(session, settings, self.group).await else {
            return Err(NotConnected::ByUs);
        };
        let asking = ByConnection {
            settings,
            socket: settings.socket.evaluate(session),
            secured: secured.as_ref(),
            client_is_read: Cell::new(false),
        };
        session.attempts.push(Attempt::at(self.name.clone()));
        let (asker, room) = (&mut Asker::of(session), ConnectionRoom::default());
        match asking.connect(asker, &mut None, self.address, room).await {
            Ok((transport, _)) => Ok(transport),
            Err(error) => Err(failed(error)),
        }
    }

    /// A socket that is connected to the server, for datagrams.
    ///
    /// # Errors
    /// If there is no socket, which has been logged.
    pub(crate) async fn connect_datagrams(
        &self,
        session: &mut Session,
    ) -> Result<DatagramSocket, NotConnected> {
        let socket = self.settings.socket.evaluate(session);
        session.attempts.push(Attempt::at(self.name.clone()));
        let connected = connect_datagrams(self.address, &socket.options).await;
        connected.map_err(|error| {
            failed(not_connected(
                &Asker::of(session),
                self.address,
                &socket,
                error,
            ))
        })
    }
}

/// Whether a failed attempt counts against the server.
fn failed(error: AttemptError<std::convert::Infallible>) -> NotConnected {
    match error {
        AttemptError::Failed(_) => NotConnected::ByPeer(CONNECTING),
        AttemptError::Refused(_) => NotConnected::ByUs,
        AttemptError::Aborted(gone) => match gone {},
    }
}
