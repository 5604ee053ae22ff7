//! docs/internals/extending.md, done: a module of one file, `shout on`, and one line in the list.
//! It has a directive, a variable, a head filter whose body filter works on pieces, and keeps a
//! number for each request.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::exchange::abort::Abort;
use http::exchange::memory::Client;
use http::module::{Entry, Module, ShortcutDoc};
use http::request::Request;
use http::request::phases::handle;
use http::response::chain::{BodyFilter, Chain, FilterRejection, HeadFilter};
use http::response::piece::Piece;
use http::slots::RequestLifetime;
use http::testing::serve_by;
use http::variables::BuiltinVariable;

use super::features_and;

static SHOUT: Setting<bool> = Setting::new("shout", &["on | off"], parse::flag)
    .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
    .default("off")
    .manual("Responses are sent in capitals.");

#[derive(Debug)]
struct Shout {
    enabled: bool,
}

impl Feature for Shout {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&SHOUT];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Shout, Fault> {
        let enabled = scope.get(&SHOUT)?;
        Ok(Shout { enabled })
    }
}

impl Module for Shout {
    const SHORTCUTS: &'static [ShortcutDoc] =
        &[ShortcutDoc::Never("a kept response is not in capitals")];

    fn is_off(&self) -> bool {
        !self.enabled
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }
}

impl HeadFilter for Shout {
    fn applies_to(&self, request: &Request) -> bool {
        request.response.status == 200
    }

    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        request.response.add("X-Shout", "yes");
        chain.push(Capitals);
        Ok(())
    }
}

struct Capitals;

impl BodyFilter for Capitals {
    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        out.push(match piece {
            Piece::Bytes(bytes) => {
                request.own.enter(&LETTERS).0 += bytes.len();
                Piece::Bytes(Bytes::from(bytes.to_ascii_uppercase()))
            }
            other => other,
        });
        Ok(())
    }
}

/// How many letters a request has been given.
#[derive(Default)]
struct Letters(usize);

impl SlotValue for Letters {}

static LETTERS: Slot<Letters, RequestLifetime> = Slot::new();

fn find(name: &str) -> Option<BuiltinVariable> {
    (name == "shouted").then(|| {
        BuiltinVariable::computed(|request: &mut Request, out| {
            let letters = request.own.get(&LETTERS).map(|letters| letters.0);
            out.extend(letters.unwrap_or_default().to_string().into_bytes());
            true
        })
    })
}

/// The line of the list.
const ENTRY: Entry = Entry::module::<Shout>().variables(&[find]);

/// Body, the field of the head, and the trailer that another module makes of the variable.
fn answer(lines: &str) -> (String, bool, Option<Bytes>) {
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; \
         client_body_temp_path /tmp; server {{ listen 10.0.0.1:80; add_trailer X-Shouted $shouted; \
         {lines} }} }}"
    );
    let modules = features_and(ENTRY);
    serve_by(modules, &text, "GET / HTTP/1.1", async |mut request| {
        let client = Client::greedy();
        let (mut exchange, stream) = client.begin(1 << 20);
        handle(&mut request, &mut exchange).await.unwrap();
        let received = client.received(stream);
        let told = received.fields.iter().any(|(name, _)| name == "X-Shout");
        let trailer = received.trailers.first().map(|(_, value)| value.clone());
        (String::from_utf8(received.body).unwrap(), told, trailer)
    })
}

#[test]
fn a_module_of_one_file_serves() {
    let location = "location / { return 200 hello; }";
    let on = answer(&format!("shout on; {location}"));
    assert_eq!(on, ("HELLO".to_owned(), true, Some("5".into())));
    let off = answer(&format!("shout off; {location}"));
    assert_eq!(off, ("hello".to_owned(), false, Some("0".into())));
    // What is included is a response that passes it, too.
    let within = "default_type text/html; shout on; add_after_body /after; location = /after { return 200 after; } \
                  location / { return 200 hello; }";
    assert_eq!(answer(within).0, "HELLOAFTER");
}
