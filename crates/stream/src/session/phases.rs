//! The processing of a session: read [`serve`] first.
//!
//! nginx's phases: post-accept and preaccess (`set_real_ip_from`, `set`, `limit_conn`), access,
//! ssl, preread, content, log.

use std::rc::Rc;
use std::sync::Arc;

use engine::Buffer;
use engine::net::Address;
use framework::workers::Registered;
use logs::Printable;
use transport::Transport;

use crate::connection::{ClientEnd, Connection};
use crate::datagrams::Listed;
use crate::handover::{self, Handover};
use crate::plan::{Content, StreamLocal};
use crate::proxy_protocol::{self, SessionRealIp};
use crate::session::{Session, Status};
use crate::subject::WithoutFields;
use crate::{proxy, returned, tls};

/// Serves a connection from accept to close. The thread counts the connection while it is
/// `registered`, and further datagrams of its client belong to it while it is `listed`.
pub(crate) async fn serve(
    connection: Rc<Connection>,
    registered: Registered,
    mut listed: Option<Listed>,
) {
    let local = connection.generation();
    let stream = StreamLocal::of(&local);
    if let Some(binding) = stream.binding(&connection.client.listener) {
        let servers = binding.servers_for(|| connection.local().clone());
        let mut session = Box::new(Session::new(connection, local, Rc::clone(&stream), servers));
        match run(&mut session, &mut listed).await {
            Ok(SessionOutcome::Passed(passage)) => pass(session, passage),
            Ok(SessionOutcome::Ended(status)) | Err(status) => end(&mut session, status),
        }
    }
    drop(registered);
    // Now a new session of the same client may start, even if its first datagram has already been
    // received.
    drop(listed);
}

/// The outcome of a session.
enum SessionOutcome {
    Ended(Status),
    /// The session's connection is handed over to another connection handler.
    Passed(Handover),
}

/// Logs a session that has ended, and closes its client's end.
fn end(session: &mut Session, status: Status) {
    session.status = status;
    logs::error!(session, Debug, "finalize stream session: {}", status as u16);
    log(session);
    if let Some(metered) = session.metered.take() {
        metered.end(status as u16, session.received.get(), session.sent.get());
    }
    if let Some(transport) = session.connection.transport() {
        transport.announce_end();
    }
}

/// Hands a session's connection over to another connection handler, which logs it.
fn pass(session: Box<Session>, passage: Handover) {
    let peer = session.peer().clone();
    let connection = Rc::clone(&session.connection);
    let places = session.into_places();
    if let Ok(connection) = Rc::try_unwrap(connection) {
        handover::hand_over(connection, peer, places, passage);
    }
}

/// Runs the phases; the error is the status of a session that has ended early.
async fn run(session: &mut Session, listed: &mut Option<Listed>) -> Result<SessionOutcome, Status> {
    session.greet();
    session.be_metered();
    let mut received = Buffer::empty();
    if session.servers.protocols.proxy_protocol {
        received = proxy_protocol::read(session).await?;
    }
    session.count_first();
    if let Err(status) = check(session) {
        session.take_first();
        return Err(status);
    }
    let is_secure = session
        .connection
        .transport()
        .is_some_and(Transport::is_secure);
    // Another connection handler may have completed the handshake before it handed the connection
    // over.
    if session.servers.protocols.ssl && !is_secure {
        tls::accept(session, std::mem::take(&mut received)).await?;
    }
    let server = Arc::clone(&session.server);
    if server.preread.is_off() {
        session.preread.set(received.into_bytes());
    } else {
        server.preread.look(session, received).await?;
    }
    let server = Arc::clone(&session.server);
    let status = match &server.content {
        Content::Return(text) => returned::serve(session, text).await,
        Content::Proxy(settings) => proxy::serve(session, settings, listed).await,
        Content::Pass(pass) => return handover::find(session, pass).map(SessionOutcome::Passed),
        Content::Nothing => Status::InternalServerError,
    };
    Ok(SessionOutcome::Ended(status))
}

/// Checks whether the session may continue, before the client's first bytes are read.
///
/// # Errors
/// The final status of the session if it may not.
fn check(session: &mut Session) -> Result<(), Status> {
    let server = Arc::clone(&session.server);
    if !server.real_ip.is_off() && session.connection.client.proxy_header().is_some() {
        server.real_ip.apply::<Session, SessionRealIp>(session);
    }
    server.assignments.apply(session);
    if server.limit_conn.enter::<Session>(session).is_err() {
        return Err(Status::ServiceUnavailable);
    }
    if server.access.denies(session.peer()) == Some(true) {
        logs::error!(session, Error, "access forbidden by rule");
        return Err(Status::Forbidden);
    }
    Ok(())
}

/// Writes the session's line to each access log.
fn log(session: &mut Session) {
    session.doing = " while logging session";
    let server = Arc::clone(&session.server);
    server.access_logs.write(session);
}

impl Session {
    /// Logs the client, and sets the options of its socket.
    fn greet(&self) {
        // Most sockets inherit the option from the listening socket, which needs no call.
        if matches!(self.connection.peer(), Address::Inet(_))
            && let Some(transport) = self.connection.transport()
        {
            transport.set_nodelay(self.server.tcp_nodelay);
        }
        let udp = match self.connection.end {
            ClientEnd::Stream(_) => "",
            ClientEnd::Datagrams(_) => "udp ",
        };
        logs::error!(
            &WithoutFields(self),
            Info,
            "{udp}client {} connected to {}",
            Printable(self.connection.peer().to_string().as_bytes()),
            self.connection.client.listening()
        );
    }
}
