//! `sticky`: requests of one session go to one server of a group.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>. A server is known by a
//! name: what `route` says on its line, else the MD5 hash of its address. A request names the
//! server itself, by a cookie that it was given (`cookie`) or by any variable (`route`), or it has
//! a session that its server was learned for (`learn`). What becomes of a name is the business of
//! the crate `upstream`; finding it, and remembering it, that of `rules`: here it is written into
//! the cookie, and learned from answers.
//!
//! nginx remembers a session when all of the request has ended, and asks the variables of `create`
//! then. Here they are asked when the head of the answer has been taken in; the session is
//! remembered once the last byte of the answer has come.

mod cookie;
mod line;

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Setting};
use framework::compile::Compiler;
use http::request::Request;
use rules::upstream::sticky::{Affinity, Lesson};

use cookie::Cookie;
use line::StickyLine;

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
    affinity: Affinity<Request>,
    cookie: Option<Cookie>,
}

impl Sticky {
    /// Compiles a line of the `upstream` block of this name.
    pub(super) fn compile(
        compiler: &Compiler<'_>,
        written: StickyLine,
        host: &str,
    ) -> Result<Sticky, Fault> {
        Ok(match written {
            StickyLine::Cookie(line) => {
                let name = format!("cookie_{}", String::from_utf8_lossy(&line.name));
                Sticky {
                    affinity: Affinity::by_name(compiler, &[name]),
                    cookie: Some(Cookie::compile(compiler, line)),
                }
            }
            StickyLine::Route(names) => Sticky {
                affinity: Affinity::by_name(compiler, &names),
                cookie: None,
            },
            StickyLine::Learn(line) => Sticky {
                affinity: Affinity::learned(compiler, &line, host)?,
                cookie: None,
            },
        })
    }

    /// Begins to find a request's server.
    pub(super) fn begin(self: &Arc<Sticky>, request: &mut Request) -> Sticking {
        Sticking {
            id: self.affinity.id(request),
            sticky: Arc::clone(self),
            server: None,
            cookie: None,
        }
    }
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
        self.sticky.affinity.wanted(request, &self.id)
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
        if self.sticky.affinity.learns_by_header()
            && let Some(lesson) = self.lesson(request)
        {
            lesson.learn();
        }
    }

    /// What is learned when this is dropped, once the answer has come or will come no more.
    pub(super) fn at_end(&self, request: &mut Request) -> Option<AtEnd> {
        if self.sticky.affinity.learns_by_header() {
            None
        } else {
            self.lesson(request).map(AtEnd)
        }
    }

    fn lesson(&self, request: &mut Request) -> Option<Lesson> {
        let server = self.server.as_ref()?;
        self.sticky.affinity.lesson(request, &self.id, server)
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
