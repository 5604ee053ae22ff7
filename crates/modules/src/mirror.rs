//! `mirror`: copies of requests to another server, whose responses are discarded.
//!
//! <https://nginx.org/en/docs/http/ngx_http_mirror_module.html>. Each copy is a background
//! subrequest with the request's method, arguments and, unless `mirror_request_body` is off, its
//! body. The body is then read completely before the request itself continues.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::module::{MaybeFuture, Module, PhaseHandler};
use http::request::body::reading;
use http::request::{Request, Step};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `mirror uri | off`
pub static MIRROR: Setting<Box<[Bytes]>> = Setting::new("mirror", &["uri | off"], uris)
    .contexts(HSL)
    .inherit(Inherit::List)
    .default("off")
    .manual(
        "A URI that a copy of each request is sent to, by a subrequest whose answer is dropped. \
         Several lines make several copies.",
    );

/// `mirror_request_body on | off`
pub static MIRROR_REQUEST_BODY: Setting<bool> =
    Setting::new("mirror_request_body", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("on")
        .manual(
            "Gives the copies the request's body, which is read whole before the request goes on \
             and before copies are made: `proxy_request_buffering off` and its like have no \
             effect then.",
        );

fn uris(setter: &Setter<'_>) -> Result<Box<[Bytes]>, Fault> {
    let mut uris: Vec<Bytes> = Vec::new();
    let mut off = false;
    for line in setter.lines() {
        let duplicate = || Fault::at(&line.name, "\"mirror\" directive is duplicate");
        for word in &line.args {
            let is_off = &*word.bytes == b"off";
            if off || (is_off && !uris.is_empty()) {
                return Err(duplicate());
            }
            off = is_off;
            if !is_off {
                uris.push(Bytes::copy_from_slice(&word.bytes));
            }
        }
    }
    Ok(uris.into())
}

/// The settings of `mirror` and `mirror_request_body` in a scope.
#[derive(Debug)]
pub struct Mirror {
    /// The URI of each copy.
    uris: Box<[Bytes]>,
    request_body: bool,
}

impl Feature for Mirror {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&MIRROR, &MIRROR_REQUEST_BODY];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Mirror, Fault> {
        Ok(Mirror {
            uris: scope.get(&MIRROR)?,
            request_body: scope.get(&MIRROR_REQUEST_BODY)?,
        })
    }
}

impl Module for Mirror {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::BeforeContent, &["mirror"])];

    fn is_off(&self) -> bool {
        self.uris.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.precontent(self);
    }
}

impl PhaseHandler for Mirror {
    /// Creates the copies of a main request. They start once the request waits for an upstream
    /// server, or the response has a head.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if !request.is_main() {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        if !self.request_body {
            return MaybeFuture::Now(Ok(self.copy(request)));
        }
        MaybeFuture::wait(async move {
            match reading::read(request, exchange).await {
                Ok(()) => Ok(self.copy(request)),
                Err(interrupt) => interrupt.into_step(),
            }
        })
    }
}

impl Mirror {
    fn copy(&self, request: &mut Request) -> Step {
        for uri in &self.uris {
            let args = request.args.clone();
            let Some(child) = request.background_subrequest(uri.to_vec(), args) else {
                return Step::Finish(500);
            };
            request.background.get_or_insert_default().hold(child);
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use http::testing;

    use super::*;

    #[test]
    fn off_stands_alone() {
        for text in [
            "mirror /a; mirror off;",
            "mirror off; mirror /a;",
            "mirror off; mirror off;",
        ] {
            let text = format!("http {{ {text} }}");
            let fault = testing::compiled::<Mirror>(&text, &["http"]).unwrap_err();
            assert!(
                fault.contains("\"mirror\" directive is duplicate"),
                "{fault}"
            );
        }
        let text = "http { mirror /a; mirror /b; server { mirror off; } }";
        let (http, _) = testing::compiled::<Mirror>(text, &["http"]).unwrap();
        assert_eq!(&*http.uris, [Bytes::from("/a"), Bytes::from("/b")]);
        let (server, _) = testing::compiled::<Mirror>(text, &["http", "server"]).unwrap();
        assert!(server.is_off() && server.request_body);
    }
}
