//! `sticky`: requests of one session go to one server of a group.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>. A server is known by a
//! name: what `route` says on its line, else the MD5 hash of its address. A request names the
//! server itself, by a cookie that it was given (`cookie`) or by any variable (`route`), or it has
//! a session that its server was learned for (`learn`). What becomes of a name is the business of
//! the crate `upstream`: here it is found, written into the cookie, and remembered.
//!
//! nginx remembers a session when all of the request has ended, and asks the variables of `create`
//! then. Here they are asked when the head of the answer has been taken in; the session is
//! remembered once the last byte of the answer has come.

mod cookie;
mod line;
mod sessions;

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Setting};
use framework::compile::Compiler;
use framework::zone::{Zone, ZoneError};
use http::request::Request;
use http::variables::{Compiling as _, Context as _, Variable};

use cookie::Cookie;
use line::{LearnLine, StickyLine};
use sessions::{Learned, Learning, Sessions};

pub(super) static STICKY: Setting<StickyLine> = Setting::new(
    "sticky",
    &[
        "cookie name [expires=time] [domain=domain] [httponly] [samesite=strict|lax|none|$variable] [secure] [path=path]",
        "route $variable ...",
        "learn create=$variable ... lookup=$variable ... zone=name:size [timeout=time] [header]",
    ],
    line::read,
)
.contexts(Contexts::UPSTREAM)
.arity(Arity::at_least(2))
.manual(
    "Requests of one session go to one server, as long as that may be asked; else the method chooses another. It stands \
     behind the line that names the method. With `cookie` the answer names the server in a cookie of this name: by what `route` says on \
     the line of `server`, else by the MD5 hash of its address. `expires` is how long a browser keeps the cookie, `max` until the \
     end of 2037; without it, until it is closed. `domain`, `path`, `httponly`, `secure` and `samesite` are attributes of the cookie; \
     `domain` and `samesite` may hold variables. With `route` the first variable that is not empty is the name of the server. \
     With `learn` the servers make sessions: the first variable of `create` that is not empty is the session that an answer belongs to, \
     the first of `lookup` that of a request. All threads know the sessions of the zone, a megabyte of which holds about 4,000, and \
     reloads keep them. One that is not used for `timeout` (10m) is forgotten, and where the zone is full, the one that was used \
     longest ago. With `header` a session is learned when the head of the answer has come, without it when all has.",
);

/// How the servers of sessions are found again.
#[derive(Debug)]
pub struct Sticky {
    /// What may name a server, or a session: the first that is not empty.
    lookup: Box<[Variable]>,
    cookie: Option<Cookie>,
    learn: Option<Learn>,
}

/// How sessions are learned.
#[derive(Debug)]
struct Learn {
    create: Box<[Variable]>,
    zone: Arc<Zone<Sessions>>,
    by_header: bool,
}

impl Sticky {
    /// Compiles a line of the `upstream` block of this name.
    pub(super) fn compile(
        compiler: &Compiler<'_>,
        written: StickyLine,
        host: &str,
    ) -> Result<Sticky, Fault> {
        let variables = |names: Vec<String>| -> Box<[Variable]> {
            names.iter().map(|name| compiler.variable(name)).collect()
        };
        Ok(match written {
            StickyLine::Cookie(line) => Sticky {
                lookup: variables(vec![format!(
                    "cookie_{}",
                    String::from_utf8_lossy(&line.name)
                )]),
                cookie: Some(Cookie::compile(compiler, line)),
                learn: None,
            },
            StickyLine::Route(names) => Sticky {
                lookup: variables(names),
                cookie: None,
                learn: None,
            },
            StickyLine::Learn(line) => Sticky {
                cookie: None,
                learn: Some(Learn {
                    zone: declare(compiler, &line, host)?,
                    create: variables(line.create),
                    by_header: line.by_header,
                }),
                lookup: variables(line.lookup),
            },
        })
    }

    /// Begins to find a request's server.
    pub(super) fn begin(self: &Arc<Sticky>, request: &mut Request) -> Sticking {
        Sticking {
            id: first_of(request, &self.lookup),
            sticky: Arc::clone(self),
            server: None,
            cookie: None,
        }
    }
}

fn declare(
    compiler: &Compiler<'_>,
    line: &LearnLine,
    host: &str,
) -> Result<Arc<Zone<Sessions>>, Fault> {
    let settings = Learning {
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

/// The first of these variables that is not empty; empty where all are.
fn first_of(request: &mut Request, variables: &[Variable]) -> Bytes {
    for (place, variable) in variables.iter().enumerate() {
        let value = request.variable(*variable).unwrap_or_default();
        if !value.is_empty() {
            let (shown, number) = (logs::Printable(&value), place + 1);
            logs::error!(
                request,
                Debug,
                "sticky: using \"{shown}\" found in variable #{number}"
            );
            return value;
        }
    }
    Bytes::new()
}

/// How one request finds its server.
#[derive(Debug)]
pub struct Sticking {
    sticky: Arc<Sticky>,
    /// The name of the server, or the session, that the request brings; empty where it brings none.
    id: Bytes,
    /// The name of the server that has been asked and has not failed.
    server: Option<Bytes>,
    /// The value of the cookie's field, once it stands in the response.
    cookie: Option<Bytes>,
}

impl Sticking {
    /// The name of the server that the request wants; looked up for each try, since others go on
    /// learning.
    pub fn wanted(&self, request: &Request) -> Option<Bytes> {
        if self.id.is_empty() {
            return None;
        }
        let Some(learn) = &self.sticky.learn else {
            return Some(self.id.clone());
        };
        let timeout = learn.zone.settings().timeout;
        let found = learn.zone.state().find(&self.id, engine::now(), timeout);
        let session = logs::Printable(&self.id);
        match &found {
            None => logs::error!(request, Debug, "sticky: session \"{session}\" not found"),
            Some(server) => {
                let server = logs::Printable(server);
                logs::error!(
                    request,
                    Debug,
                    "sticky: session \"{session}\", SID \"{server}\""
                );
            }
        }
        found
    }

    /// The server of this name is asked: the cookie names it, in the place of one that was asked
    /// before.
    pub fn asks(&mut self, request: &mut Request, server: Bytes) {
        if let Some(cookie) = &self.sticky.cookie {
            if !self.id.is_empty() && self.id != server {
                logs::error!(
                    request,
                    Debug,
                    "sticky: server with requested SID is unavailable"
                );
            }
            let value = cookie.value(request, &server);
            let shown = logs::Printable(&value);
            logs::error!(request, Debug, "sticky: set cookie: \"{shown}\"");
            let before = self.cookie.replace(value.clone());
            let of_before = before.and_then(|before| {
                let mut fields = request.response.fields.iter_mut();
                fields.find(|field| field.value.as_ptr() == before.as_ptr())
            });
            match of_before {
                Some(field) => field.value = value,
                None => request.response.add("Set-Cookie", value),
            }
        }
        self.server = Some(server);
    }

    /// The server that was asked last has not answered, or not well enough.
    pub fn has_failed(&mut self) {
        self.server = None;
    }

    /// The head of an answer has come that goes to the client.
    pub(super) fn head_came(&self, request: &mut Request) {
        if let Some(learn) = &self.sticky.learn
            && learn.by_header
            && let Some(lesson) = self.lesson(request, learn)
        {
            lesson.learn();
        }
    }

    /// What is learned when this is dropped, once the answer has come or will come no more.
    pub(super) fn at_end(&self, request: &mut Request) -> Option<AtEnd> {
        let learn = self.sticky.learn.as_ref()?;
        if learn.by_header {
            None
        } else {
            self.lesson(request, learn).map(AtEnd)
        }
    }

    fn lesson(&self, request: &mut Request, learn: &Learn) -> Option<Lesson> {
        let server = self.server.clone()?;
        let created = first_of(request, &learn.create);
        let create = !created.is_empty();
        let session = if create { created } else { self.id.clone() };
        (!session.is_empty()).then(|| Lesson {
            zone: Arc::clone(&learn.zone),
            session,
            server,
            create,
        })
    }
}

/// Which server has answered for which session.
struct Lesson {
    zone: Arc<Zone<Sessions>>,
    session: Bytes,
    server: Bytes,
    /// The session is remembered also where it is not known.
    create: bool,
}

impl Lesson {
    fn learn(&self) {
        let timeout = self.zone.settings().timeout;
        let (session, server) = (&self.session, &self.server);
        let learned = self
            .zone
            .state()
            .learn(session, server, self.create, engine::now(), timeout);
        let name = self.zone.name();
        let (session, server) = (logs::Printable(session), logs::Printable(server));
        match learned {
            Learned::Nothing | Learned::Known => {}
            Learned::Moved => logs::event!(
                Debug,
                "sticky: session \"{session}\" reused for SID \"{server}\""
            ),
            Learned::Created => logs::event!(
                Debug,
                "sticky: creating session \"{session}\", SID \"{server}\""
            ),
            Learned::InPlaceOfOldest | Learned::Full => logs::event!(
                Warn,
                "could not allocate node in sticky session zone \"{name}\", expiring least recently used session"
            ),
        }
        if learned == Learned::Full {
            logs::event!(
                Alert,
                "could not allocate node in sticky session zone \"{name}\""
            );
        }
    }
}

/// What is learned when this is dropped.
pub struct AtEnd(Lesson);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.learn();
    }
}

impl std::fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtEnd")
    }
}
