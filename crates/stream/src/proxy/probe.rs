//! A server is asked on our own account: connections and sockets as sessions would have them.

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

/// Why a server is not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotConnected {
    /// The server has failed at this.
    ByPeer(&'static str),
    /// Something of ours has failed, which tells nothing of the server.
    ByUs,
}

/// The server that is asked.
pub(crate) struct ProbedPeer<'a> {
    pub(crate) settings: &'a Proxy,
    /// The name of its group, which TLS takes for the host.
    pub(crate) group: &'a [u8],
    pub(crate) name: Bytes,
    pub(crate) address: &'a Address,
}

impl ProbedPeer<'_> {
    /// Connects as a session does, with TLS and the header of the PROXY protocol.
    ///
    /// # Errors
    /// There is no connection, which has been logged.
    pub(crate) async fn connect(&self, session: &mut Session) -> Result<Transport, NotConnected> {
        let settings = self.settings;
        let Ok(secured) = securing::prepare(session, settings, self.group).await else {
            return Err(NotConnected::ByUs);
        };
        let asking = ByConnection {
            settings,
            socket: settings.socket.evaluate(session),
            secured: secured.as_ref(),
        };
        session.attempts.push(Attempt::at(self.name.clone()));
        let (asker, room) = (&mut Asker::of(session), ConnectionRoom::default());
        match asking.connect(asker, &mut None, self.address, room).await {
            Ok((transport, _)) => Ok(transport),
            Err(error) => Err(failed(error)),
        }
    }

    /// A socket whose datagrams go to the server.
    ///
    /// # Errors
    /// There is none, which has been logged.
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

fn failed(error: AttemptError<std::convert::Infallible>) -> NotConnected {
    match error {
        AttemptError::Failed(_) => NotConnected::ByPeer(CONNECTING),
        AttemptError::Refused(_) => NotConnected::ByUs,
        AttemptError::Aborted(gone) => match gone {},
    }
}
