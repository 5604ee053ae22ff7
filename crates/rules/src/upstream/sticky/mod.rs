//! `sticky`: finds the server to which a request or session is bound. The part that all protocols
//! have in common.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>. A server's id is its
//! `route` parameter or, without it, the MD5 hash of its address. Variables of the request contain
//! the id of the server, or the id of a session for which a server was learned. The protocol
//! decides when a session is learned, and may offer other ways to bind a request to a server, such
//! as a cookie.

pub mod line;
mod sessions;

use std::sync::Arc;

use bytes::Bytes;
use conf::Fault;
use framework::compile::Compiler;
use framework::zone::{Zone, ZoneError};
use logs::Subject;
use variables::{Compiling as _, Context, Variable};

use line::LearnLine;
use sessions::{LearnOutcome, LearnSettings, Sessions};

/// The rule by which the server of a request is found.
pub struct Affinity<C: Context> {
    /// The variables that may contain the id of a server or of a session. The first that is not
    /// empty counts.
    lookup: Box<[Variable<C>]>,
    learn: Option<Learn<C>>,
}

/// The settings for learning sessions.
struct Learn<C: Context> {
    create: Box<[Variable<C>]>,
    zone: Arc<Zone<Sessions>>,
    by_header: bool,
}

// Implemented by hand, so that the context need not implement `Debug`.
impl<C: Context> std::fmt::Debug for Affinity<C> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let zone = self.learn.as_ref().map(|learn| learn.zone.name());
        out.debug_struct("Affinity")
            .field("zone", &zone)
            .finish_non_exhaustive()
    }
}

impl<C: Context> Affinity<C> {
    /// Finds the server whose id is in the first of these variables that is not empty.
    pub fn by_name(compiler: &Compiler<'_>, names: &[String]) -> Affinity<C> {
        Affinity {
            lookup: variables(compiler, names),
            learn: None,
        }
    }

    /// Finds the server that was learned for a session. `host` is the name of the `upstream` block.
    ///
    /// # Errors
    /// If the zone belongs to another block.
    pub fn learned(
        compiler: &Compiler<'_>,
        line: &LearnLine,
        host: &str,
    ) -> Result<Affinity<C>, Fault> {
        Ok(Affinity {
            learn: Some(Learn {
                zone: declare(compiler, line, host)?,
                create: variables(compiler, &line.create),
                by_header: line.by_header,
            }),
            lookup: variables(compiler, &line.lookup),
        })
    }

    /// The id of the server or session that a request names; empty if it names none.
    pub fn id(&self, context: &mut C) -> Bytes {
        first_of(context, &self.lookup)
    }

    /// The id of the server for the id that [`Affinity::id`] has returned; `None` if the session is
    /// unknown.
    pub fn wanted(&self, subject: &impl Subject, id: &Bytes) -> Option<Bytes> {
        if id.is_empty() {
            return None;
        }
        let Some(learn) = &self.learn else {
            return Some(id.clone());
        };
        let timeout = learn.zone.settings().timeout;
        let found = learn.zone.state().find(id, engine::now(), timeout);
        let session = logs::Printable(id);
        match &found {
            None => logs::error!(subject, Debug, "sticky: session \"{session}\" not found"),
            Some(server) => {
                let server = logs::Printable(server);
                logs::error!(
                    subject,
                    Debug,
                    "sticky: session \"{session}\", SID \"{server}\""
                );
            }
        }
        found
    }

    /// Whether sessions are learned from the head of a response.
    pub fn learns_by_header(&self) -> bool {
        self.learn.as_ref().is_some_and(|learn| learn.by_header)
    }

    /// The session that is to be bound to a server that has responded; `None` if sessions are not
    /// learned, or if neither request nor response contains a session.
    pub fn lesson(&self, context: &mut C, id: &Bytes, server: &Bytes) -> Option<SessionBinding> {
        let learn = self.learn.as_ref()?;
        let created = first_of(context, &learn.create);
        let create = !created.is_empty();
        let session = if create { created } else { id.clone() };
        (!session.is_empty()).then(|| SessionBinding {
            zone: Arc::clone(&learn.zone),
            session,
            server: server.clone(),
            create,
        })
    }
}

fn variables<C: Context>(compiler: &Compiler<'_>, names: &[String]) -> Box<[Variable<C>]> {
    names.iter().map(|name| compiler.variable(name)).collect()
}

fn declare(
    compiler: &Compiler<'_>,
    line: &LearnLine,
    host: &str,
) -> Result<Arc<Zone<Sessions>>, Fault> {
    let settings = LearnSettings {
        host: host.to_owned(),
        timeout: line.timeout,
    };
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<Sessions>(&line.zone, line.size, settings) {
        Ok(zone) => Ok(zone),
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
        Err(ZoneError::Declared(known)) => {
            let other = &known.settings().host;
            let text = format!(
                "sticky zone \"{}\" is already used in upstream \"{other}\"",
                line.zone
            );
            Err(Fault::new(text))
        }
    }
}

/// The value of the first of these variables that is not empty; empty if all are empty.
fn first_of<C: Context>(context: &mut C, variables: &[Variable<C>]) -> Bytes {
    for (place, variable) in variables.iter().enumerate() {
        let value = context.variable(*variable).unwrap_or_default();
        if !value.is_empty() {
            let (shown, number) = (logs::Printable(&value), place + 1);
            logs::error!(
                context,
                Debug,
                "sticky: using \"{shown}\" found in variable #{number}"
            );
            return value;
        }
    }
    Bytes::new()
}

/// A session, and the server to which it is to be bound.
pub struct SessionBinding {
    zone: Arc<Zone<Sessions>>,
    session: Bytes,
    server: Bytes,
    /// Whether the session is stored even if it is not known.
    create: bool,
}

impl SessionBinding {
    /// Binds the session to the server, if the session is known.
    pub fn renew(&self) {
        self.remember(false);
    }

    /// Binds the session to the server; a session that is not known is stored if the response has
    /// created it.
    pub fn learn(&self) {
        self.remember(self.create);
    }

    fn remember(&self, create: bool) {
        let timeout = self.zone.settings().timeout;
        let (session, server) = (&self.session, &self.server);
        let learned = self
            .zone
            .state()
            .learn(session, server, create, engine::now(), timeout);
        let name = self.zone.name();
        let (session, server) = (logs::Printable(session), logs::Printable(server));
        match learned {
            LearnOutcome::Nothing | LearnOutcome::Known => {}
            LearnOutcome::Moved => logs::event!(
                Debug,
                "sticky: session \"{session}\" reused for SID \"{server}\""
            ),
            LearnOutcome::Created => logs::event!(
                Debug,
                "sticky: creating session \"{session}\", SID \"{server}\""
            ),
            LearnOutcome::InPlaceOfOldest | LearnOutcome::Full => logs::event!(
                Warn,
                "could not allocate node in sticky session zone \"{name}\", expiring least recently used session"
            ),
        }
        if learned == LearnOutcome::Full {
            logs::event!(
                Alert,
                "could not allocate node in sticky session zone \"{name}\""
            );
        }
    }
}
