//! `sticky` for proxied requests: all requests of a session go to the same server of a group.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>. A server is identified by
//! the `route` parameter of its `server` line, else by the MD5 hash of its address. A request
//! brings that name itself, in a cookie that an earlier response set (`cookie`) or in any variable
//! (`route`), or it brings a session id and the zone holds the server's name (`learn`). The crate
//! `upstream` picks the peer of a name. `rules::upstream::sticky` reads the variables and keeps the
//! zone of sessions. This module sets the cookie, and decides when a session is learned.
//!
//! nginx evaluates the variables of `create`, and remembers the session, when the request has
//! ended. Tidegate evaluates them as soon as the response head has been parsed, and remembers the
//! session once the last byte of the response has been received.

mod cookie;
mod line;

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Setting};
use framework::compile::Compiler;
use http::request::Request;
use rules::upstream::sticky::{Affinity, SessionBinding};

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
    "All requests of a session go to the same server, as long as that server is available; else \
     the load balancing method chooses another. The line must stand behind the line that names the \
     method. With `cookie` the response sets a cookie of this name, whose value identifies the \
     server: the `route` parameter of its `server` line, else the MD5 hash of its address. \
     `expires` is how long a browser keeps the cookie, `max` until the end of 2037; without it, \
     until the browser is closed. `domain`, `path`, `httponly`, `secure` and `samesite` are \
     attributes of the cookie; `domain` and `samesite` may hold variables. With `route` the first \
     variable that is not empty is the name of the server. With `learn` the servers create \
     sessions: the first variable of `create` that is not empty is the session that a response \
     belongs to, the first of `lookup` the session of a request. All threads share the sessions of \
     the zone, of which a megabyte holds about 4,000, and reloads keep them. A session that is not \
     used for `timeout` (10m) is forgotten; where the zone is full, the least recently used one \
     is. With `header` a session is learned as soon as the response header has been received, else \
     once the whole response has been.",
);

/// How the requests of a session find their server again.
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

    /// Reads which server or session a request names.
    pub(super) fn begin(self: &Arc<Sticky>, request: &mut Request) -> StickyRequest {
        StickyRequest {
            id: self.affinity.id(request),
            sticky: Arc::clone(self),
            server: None,
            cookie: None,
        }
    }
}

/// The sticky session of one request: the server that the request names, and the one that it is
/// sent to.
#[derive(Debug)]
pub struct StickyRequest {
    sticky: Arc<Sticky>,
    /// The server name, or with `learn` the session id, that the request brings; else empty.
    id: Bytes,
    /// The name of the server that the request was last sent to, unless that attempt has failed.
    server: Option<Bytes>,
    /// The value of the `Set-Cookie` field, once it has been added to the response.
    cookie: Option<Bytes>,
}

impl StickyRequest {
    /// The name of the server that the request should go to. Looked up for each attempt, since
    /// other requests may have changed the session in the zone meanwhile.
    pub fn wanted(&self, request: &Request) -> Option<Bytes> {
        self.sticky.affinity.wanted(request, &self.id)
    }

    /// Notes that the request is sent to the server of this name. The response's cookie names this
    /// server; on a retry, the name replaces that of the server before.
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
            let previous = self.cookie.replace(value.clone());
            let previous_field = previous.and_then(|previous| {
                let mut fields = request.response.fields.iter_mut();
                fields.find(|field| field.value.as_ptr() == previous.as_ptr())
            });
            match previous_field {
                Some(field) => field.value = value,
                None => request.response.add("Set-Cookie", value),
            }
        }
        self.server = Some(server);
    }

    /// Notes that the last attempt has failed: the server gave no response, or one that
    /// `*_next_upstream` counts as a failure.
    pub fn has_failed(&mut self) {
        self.server = None;
    }

    /// Learns the session (`learn … header`): the head of the response that goes to the client has
    /// been received.
    pub(super) fn head_came(&self, request: &mut Request) {
        if self.sticky.affinity.learns_by_header()
            && let Some(lesson) = self.lesson(request)
        {
            lesson.learn();
        }
    }

    /// Learns the session on drop (`learn` without `header`): the caller holds the guard until the
    /// response has been received, or its upstream has broken it off.
    pub(super) fn at_end(&self, request: &mut Request) -> Option<LearnOnDrop> {
        if self.sticky.affinity.learns_by_header() {
            None
        } else {
            self.lesson(request).map(LearnOnDrop)
        }
    }

    fn lesson(&self, request: &mut Request) -> Option<SessionBinding> {
        let server = self.server.as_ref()?;
        self.sticky.affinity.lesson(request, &self.id, server)
    }
}

/// Learns a session when it is dropped.
pub struct LearnOnDrop(SessionBinding);

impl Drop for LearnOnDrop {
    fn drop(&mut self) {
        self.0.learn();
    }
}

impl std::fmt::Debug for LearnOnDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtEnd")
    }
}
