//! Which responses memory may give where which modules have something to do.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use conf::{Declared, Fault, ScopeRef};
use engine::Buffer;
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::exchange::memory::Client;
use http::module::{Entry, MaybeFuture, Module, Permit, PhaseHandler, Shortcut, ShortcutDoc};
use http::part::Modules;
use http::request::phases::handle;
use http::request::{Request, Step};
use http::response::prebuilt::answering::respond;
use http::testing::{Folder, another, serve_by};

use super::{features, features_and};

/// Denies everything, and says nothing of shortcuts.
struct Deny;

impl Feature for Deny {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[];

    fn compile(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<Deny, Fault> {
        Ok(Deny)
    }
}

impl Module for Deny {
    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.preaccess(self);
    }
}

impl PhaseHandler for Deny {
    fn run<'a>(&'a self, _: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(Step::Finish(403)))
    }
}

/// Denies requests with arguments as soon as they have come, and says so of each.
struct DenyArguments;

impl Feature for DenyArguments {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[];

    fn compile(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<DenyArguments, Fault> {
        Ok(DenyArguments)
    }
}

impl Module for DenyArguments {
    const SHORTCUTS: &'static [ShortcutDoc] =
        &[ShortcutDoc::OfRequest("where it has no arguments")];

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.arrived(self);
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        Shortcut::OfRequest(self.clone())
    }
}

impl Permit for DenyArguments {
    fn permits(&self, request: &Request) -> bool {
        request.args.is_empty()
    }
}

impl PhaseHandler for DenyArguments {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(if self.permits(request) {
            Step::Next
        } else {
            Step::Finish(403)
        }))
    }
}

/// Asks for a small file, the slow way, until its response is worth keeping; then with the last
/// request's target from memory. The statuses of the former, and that of the latter where memory
/// has answered.
fn ask(features: Modules, lines: &str, target: &str) -> (Vec<u16>, Option<u16>) {
    let folder = Folder::with_files();
    let file = std::fs::File::create(folder.0.join("file")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1000))
        .unwrap();
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path {0};
         client_body_temp_path {0}; server {{ listen 10.0.0.1:80; root {0}; {lines} }} }}",
        folder.0.display()
    );
    let slow = "GET /file HTTP/1.1";
    serve_by(features, &text, slow, async |request| {
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let mut one = another(&request, slow);
            let (mut exchange, _) = Client::greedy().begin(1 << 20);
            handle(&mut one, &mut exchange).await.unwrap();
            statuses.push(one.response.status);
        }
        let mut last = another(&request, &format!("GET {target} HTTP/1.1"));
        let answered = respond(&mut last, &Buffer::empty()).is_some();
        (statuses, answered.then_some(last.response.status))
    })
}

#[test]
fn an_ordinary_static_site_is_answered_from_memory() {
    let lines = "location / { index index.html; expires 1h; add_header X-A b; gzip on; }
                 location /other { limit_conn_status 429; }";
    for lines in ["", lines] {
        let (slow, from_memory) = ask(features(), lines, "/file");
        assert_eq!(
            (&slow[..], from_memory),
            (&[200; 3][..], Some(200)),
            "{lines}"
        );
    }
}

#[test]
fn filters_say_whether_memory_may_answer() {
    for (lines, may_answer) in [
        ("charset utf-8; add_header A b always; expires 1h;", true),
        ("gunzip on; slice 1k; userid log;", true),
        ("gzip on; brotli on;", true),
        ("gzip on; gzip_vary on;", true),
        ("gzip on; gzip_types text/plain; gzip_vary on;", true),
        (
            "gzip on; gzip_types text/plain; gzip_min_length 0; gzip_vary on;",
            true,
        ),
        ("add_header A '$upstream_cache_status b';", true),
        ("add_header A $upstream_cache_status$uri;", false),
        ("charset $arg_charset;", false),
        ("add_header A $uri;", false),
        ("add_trailer A b;", false),
        ("userid on;", false),
        ("more_set_headers 'A: b';", false),
        ("add_after_body /other;", false),
        ("sub_filter a b;", false),
        ("ssi on;", false),
    ] {
        let (slow, from_memory) = ask(features(), lines, "/file");
        assert_eq!(slow, [200; 3], "{lines}");
        assert_eq!(from_memory, may_answer.then_some(200), "{lines}");
    }
}

#[test]
fn no_prebuilt_response_gets_past_a_module_that_says_nothing() {
    let modules = features_and(Entry::module::<Deny>());
    let (slow, from_memory) = ask(modules, "", "/file");
    assert_eq!((&slow[..], from_memory), (&[403; 3][..], None));
}

#[test]
fn a_module_permits_some_requests() {
    let modules = features_and(Entry::module::<DenyArguments>());
    let (slow, from_memory) = ask(modules, "", "/file");
    assert_eq!((&slow[..], from_memory), (&[200; 3][..], Some(200)));
    assert_eq!(ask(modules, "", "/file?a").1, None);
}

#[test]
fn where_a_request_must_be_looked_at_memory_does_not_answer() {
    for (zone, limit) in [
        ("limit_conn_zone $host zone=z:32k;", "limit_conn z 9;"),
        (
            "limit_req_zone $host zone=z:32k rate=99r/s;",
            "limit_req zone=z burst=9 nodelay;",
        ),
        ("", "set_real_ip_from 10.9.9.9;"),
        ("", "set $a b;"),
        ("", "more_set_input_headers X:y;"),
        ("", "try_files $uri =404;"),
        ("", "gzip_static on;"),
        ("", "disable_symlinks on;"),
    ] {
        let lines = format!("location / {{ {limit} }} }} {zone} server {{ listen 10.0.0.2:80;");
        let (slow, from_memory) = ask(features(), &lines, "/file");
        assert_eq!((&slow[..], from_memory), (&[200; 3][..], None), "{limit}");
    }
    // Its own status is that of the action.
    let with_action = "location / { post_action /none; }";
    assert_eq!(ask(features(), with_action, "/file").1, None);
}
