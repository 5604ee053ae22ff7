//! The common part of `sticky` for all protocols: the server of a request or session.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>. The name of a server is
//! its `route` parameter, else the MD5 hash of its address. Variables hold the name of the server,
//! or a session for which a server was learned. The protocol decides when a session is learned, and
//! may offer other ways to name a server (a cookie).

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

/// How the server of a session is found.
pub struct Affinity<C: Context> {
    /// The variables that may hold a server's name or a session: the first that is not empty
    /// counts.
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
    /// Servers whose name is in the first of these variables that is not empty.
    pub fn by_name(compiler: &Compiler<'_>, names: &[String]) -> Affinity<C> {
        Affinity {
            lookup: variables(compiler, names),
            learn: None,
        }
    }

    /// Servers of learned sessions, for the `upstream` block of this name.
    ///
    /// # Errors
    /// The zone belongs to another block.
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

    /// The server's name or the session of a context; empty if it has none.
    pub fn id(&self, context: &mut C) -> Bytes {
        first_of(context, &self.lookup)
    }

    /// The name of the server for an id.
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

    /// The session to be learned for a server that has responded; `None` if sessions are not
    /// learned, or the response belongs to none.
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

/// The first of these variables that is not empty; empty if all are.
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

/// A session and the server that has responded for it.
pub struct SessionBinding {
    zone: Arc<Zone<Sessions>>,
    session: Bytes,
    server: Bytes,
    /// The session is stored even if it is not known.
    create: bool,
}

impl SessionBinding {
    /// Binds the session to the server, if it is known.
    pub fn renew(&self) {
        self.remember(false);
    }

    /// Binds the session to the server.
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
