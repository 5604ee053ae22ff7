//! Automatic certificates: `acme_issuer` and `acme_certificate`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_acme_module.html>. The crate `acme` implements the
//! protocol, the renewals and the files; this module has the directives (`issuer`, and this file),
//! the replies to challenges, and the slots from which servers take their certificates (`host`).
//!
//! ```text
//! prepared: every order gets a certificate, out of the store or a stand-in ([`Service::prepare`])
//! committed: threads begin to renew ([`Service::start`]), and the threads of the previous
//!            generation are told to end
//! ```
//!
//! No server waits for an issuer: a handshake always has a certificate, and failed orders are tried
//! again.

mod host;
mod issuer;

use std::sync::Arc;

use ::acme::{Certificate, Identifier, Issuer, Order};
use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Diagnostic, Fault, ScopeId, ScopeRef, Setting, Word};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use framework::service::{RunningService, Service};
use framework::zone;
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::handshake::Handshake;
use http::module::{MaybeFuture, Permit, PhaseHandler, Shortcut, ShortcutDoc};
use http::request::{Request, Step};
use http::response::output::page;
use http::variables::BuiltinVariable;
use proto::method::Method;
use rules::server_name::SERVER_NAME;
use transport::tls::provider;
use transport::tls::settings::{IssuedCertificates, TlsSettings};

pub use self::host::{CertificateSlot, intercept};
pub(crate) use self::issuer::SYSTEM_AUTHORITIES;

/// The path prefix of `http-01` (RFC 8555 section 8.3).
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";

/// `acme_certificate issuer [identifier …] [key=alg[:size]]`
pub static ACME_CERTIFICATE: Setting<Vec<Word>> = Setting::new(
    "acme_certificate",
    &["issuer [identifier ...] [key=alg[:size]]"],
    |setter| Ok(setter.args().to_vec()),
)
.contexts(Contexts::SERVER)
.arity(Arity::at_least(1))
.manual(
    "Gets the server's certificate from this issuer and renews it in time: for the names and \
     addresses given, or for those of `server_name`. `.example.com` stands for `www.example.com` \
     and `example.com`. The key is of the kind `ecdsa:256`, or as `key` says: `ecdsa` with `256`, \
     `384` or `521`, `rsa` with `2048`, `3072` or `4096`. The server uses it by `ssl_certificate \
     $acme_certificate` and `ssl_certificate_key $acme_certificate_key`; until it has come, one \
     that vouches for itself stands in.",
);

static ACME_SHARED_ZONE: Setting<()> =
    Setting::new("acme_shared_zone", &["zone=name:size"], |setter| {
        let word = setter.word()?;
        if !word.bytes.starts_with(b"zone=") {
            return Err(Fault::at(
                word,
                "\"acme_shared_zone\" must have \"zone\" parameter",
            ));
        }
        zone::parse_declaration(word).map(drop)
    })
    .contexts(Contexts::HTTP)
    .default("zone=ngx_acme_shared:256k")
    .no_effect("the threads of one process share certificates without a zone")
    .manual("See nginx's manual.");

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&ACME_SHARED_ZONE, &ACME_CERTIFICATE];

/// The directives that give a server TLS settings of its own, in addition to those of TLS.
const OF_TLS: &[&dyn Declared] = &[&ACME_CERTIFICATE];

/// The directives of the block `acme_issuer`.
pub const ISSUER_DIRECTIVES: &[&dyn Declared] = issuer::DIRECTIVES;

/// The issuers of a configuration, with their orders.
#[derive(Default)]
pub struct Acme {
    issuers: Vec<Orders>,
    /// The certificate slots of servers with an order.
    servers: Map<ScopeId, Arc<CertificateSlot>>,
}

/// The orders of one issuer, which a thread renews.
#[derive(Clone)]
struct Orders {
    issuer: Issuer,
    orders: Vec<Order>,
}

impl Registry for Acme {}

impl Acme {
    /// The certificate slot of a server, if it has an order.
    pub fn of_server(&self, scope: ScopeId) -> Option<Arc<CertificateSlot>> {
        self.servers.get(&scope).cloned()
    }

    /// Whether there is no order.
    pub fn is_off(&self) -> bool {
        self.servers.is_empty()
    }

    /// The services that renew the certificates.
    fn services(&self) -> Vec<Arc<dyn Service>> {
        let ordered = self.issuers.iter().filter(|one| !one.orders.is_empty());
        ordered
            .map(|one| Arc::new(one.clone()) as Arc<dyn Service>)
            .collect()
    }
}

/// Adds the issuers and their orders to the generation.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let acme: Acme = compiler.registries.take();
    generation.services.extend(acme.services());
    generation.add(acme);
}

impl Service for Orders {
    fn key(&self) -> String {
        format!("acme_issuer {}", self.issuer.name)
    }

    /// Gives every order without a certificate one: the stored certificate, even if it has expired,
    /// or a self-signed placeholder.
    fn prepare(&self) {
        for order in &self.orders {
            let id = order.id(&self.issuer.directory);
            let held = CertificateSlot::of(&self.issuer.name, &id);
            if !held.is_issued() {
                ready(&self.issuer, order, &id, &held);
            }
        }
    }

    /// Starts a thread that tries its orders at once, as a reload should; the previous thread ends
    /// after its current step.
    fn start(&self, _: &Arc<Generation>, before: Option<RunningService>) -> Option<RunningService> {
        drop(before);
        match self.issuer.clone().start(self.orders.clone()) {
            Ok(thread) => Some(Box::new(thread)),
            Err(error) => {
                logs::event!(
                    Alert,
                    "no thread for acme issuer \"{}\" {}",
                    self.issuer.name,
                    logs::Errno(&error)
                );
                None
            }
        }
    }
}

/// Puts the stored certificate of an order into its slot, or a self-signed placeholder.
fn ready(issuer: &Issuer, order: &Order, id: &str, held: &CertificateSlot) {
    if let Some(stored) = issuer.stored(order) {
        if stored.validity.end < std::time::SystemTime::now() {
            logs::process_error(
                logs::Level::Warn,
                format_args!(
                    "certificate has expired and is served until a new one comes, \
                     acme issuer: \"{}\", order: \"{id}\"",
                    issuer.name
                ),
            );
        }
        return held.install(&Arc::new(stored));
    }
    if held.certificate().is_some() {
        return;
    }
    match Certificate::stand_in(&order.identifiers, provider()) {
        Ok(made) => held.stand_in(&Arc::new(made)),
        Err(error) => logs::process_error(
            logs::Level::Alert,
            format_args!(
                "no certificate could be made: {error}, acme issuer: \"{}\", order: \"{id}\"",
                issuer.name
            ),
        ),
    }
}

/// Compiles the issuers and orders of the `http` block. Servers find their slots by
/// [`Acme::of_server`].
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let mut acme = Acme::default();
    for block in http.children("acme_issuer") {
        let line = block.line().map(|line| line.position);
        match issuer::compile(compiler, block) {
            Ok(issuer)
                if acme
                    .issuers
                    .iter()
                    .any(|known| known.issuer.name == issuer.name) =>
            {
                let fault = Fault::new("\"acme_issuer\" directive is duplicate");
                compiler.report(fault.or_at(line.unwrap_or_default()));
            }
            Ok(issuer) => acme.issuers.push(Orders {
                issuer,
                orders: Vec::new(),
            }),
            Err(fault) => compiler.report(fault.or_at(line.unwrap_or_default())),
        }
    }
    for server in http.children("server") {
        let line = server
            .lines()
            .iter()
            .find(|line| line.is("acme_certificate"));
        if let Some(line) = line
            && let Err(fault) = acme.add(compiler, server)
        {
            compiler.report(fault.or_at(line.position));
        }
    }
    compiler.extend::<TlsSettings<Handshake>>(OF_TLS);
    let slots = acme.servers.iter().map(|(id, held)| (*id, held.slot()));
    *compiler.registry().borrow_mut() = IssuedCertificates {
        written: Some(("$acme_certificate", "$acme_certificate_key")),
        slots: slots.collect(),
    };
    *compiler.registry().borrow_mut() = acme;
}

impl Acme {
    /// Adds the order of a server.
    fn add(&mut self, compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<(), Fault> {
        let words = server.own(&ACME_CERTIFICATE)?.unwrap_or_default();
        let [name, rest @ ..] = words.as_slice() else {
            return Ok(()); // the arity has been checked
        };
        if name.bytes.is_empty() {
            return Err(Fault::at(
                name,
                "\"acme_certificate\" directive \"issuer\" is missing",
            ));
        }
        let mut order = written(rest)?;
        if order.identifiers.is_empty() {
            order.identifiers = of_server_name(compiler, server)?;
        }
        let issuer = name.text();
        let known = self
            .issuers
            .iter_mut()
            .find(|known| known.issuer.name == issuer);
        let Some(Orders { issuer, orders }) = known else {
            let fault = Fault::new(format!("issuer \"{issuer}\" is missing"));
            return Err(fault.of_missing(&issuer, &["acme_issuer"]));
        };
        warn_of_wildcards(compiler, issuer, &order, name);
        let id = order.id(&issuer.directory);
        self.servers
            .insert(server.id(), CertificateSlot::of(&issuer.name, &id));
        if !orders.contains(&order) {
            orders.push(order);
        }
        Ok(())
    }
}

/// Parses the order of an `acme_certificate` line.
fn written(words: &[Word]) -> Result<Order, Fault> {
    let mut order = Order::default();
    for word in words {
        if let Some(key) = word.bytes.strip_prefix(b"key=") {
            let kind = Word {
                bytes: key.into(),
                ..word.clone()
            };
            order.key = issuer::key_kind("acme_certificate", &kind)?.ok_or_else(|| {
                Fault::at(word, "\"acme_certificate\" directive invalid \"key\" value")
            })?;
        } else if word.bytes.is_empty() {
            let text = "\"acme_certificate\" directive invalid value";
            return Err(Fault::at(word, text));
        } else {
            let text = "acme_certificate: invalid server name";
            add_identifiers(&mut order.identifiers, word, text)?;
        }
    }
    Ok(order)
}

/// The names of `server_name` for which a certificate can be issued.
fn of_server_name(compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<Vec<Identifier>, Fault> {
    let mut identifiers = Vec::new();
    for word in server.get(&SERVER_NAME)? {
        if word.bytes.starts_with(b"~") {
            let text = format!(
                "\"acme_certificate\": unsupported regular expression in server_name: {}",
                word.text()
            );
            compiler.diagnose(Diagnostic::warn(text, Some(word.position)));
        } else if !word.bytes.is_empty() {
            let text = "\"acme_certificate\": invalid server name";
            add_identifiers(&mut identifiers, &word, text)?;
        }
    }
    if identifiers.is_empty() {
        let text = "\"acme_certificate\": no identifiers found in \"server_name\"";
        return Err(Fault::new(text));
    }
    Ok(identifiers)
}

fn add_identifiers(
    identifiers: &mut Vec<Identifier>,
    word: &Word,
    fault: &str,
) -> Result<(), Fault> {
    let found = Identifier::parse(&word.bytes);
    let found = found.map_err(|error| Fault::at(word, format!("{fault}: {error}")))?;
    for identifier in found {
        if !identifiers.contains(&identifier) {
            identifiers.push(identifier);
        }
    }
    Ok(())
}

/// Warns of a wildcard if the issuer does not use `dns-01`, the only challenge by which ACME
/// servers validate wildcards.
fn warn_of_wildcards(compiler: &Compiler<'_>, issuer: &Issuer, order: &Order, at: &Word) {
    let wildcard = |identifier: &&Identifier| matches!(identifier, Identifier::Dns(name) if name.starts_with("*."));
    let Some(wildcard) = order.identifiers.iter().find(wildcard) else {
        return;
    };
    if !matches!(issuer.challenge, ::acme::Challenge::Dns01(_)) {
        let text = format!("\"acme_certificate\": \"{wildcard}\" needs the challenge dns-01");
        compiler.diagnose(Diagnostic::warn(text, Some(at.position)));
    }
}

/// For the documentation: how [`register`] affects prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[ShortcutDoc::OfHead(
    "where the request asks for no token of a challenge",
)];

/// Lets every server respond to validators, if there is any order.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let is_off = plan.compiler.registry::<Acme>().borrow().is_off();
    if !is_off && plan.scope.context() == Contexts::SERVER {
        let validators = Arc::new(Validators);
        plan.arrived(&validators);
        plan.shortcut(Shortcut::OfHead(validators));
    }
    Some(())
}

/// Responds to HTTP validators.
struct Validators;

impl PhaseHandler for Validators {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(answer(request).unwrap_or(Step::Next)))
    }
}

impl Permit for Validators {
    fn permits(&self, request: &Request) -> bool {
        asked_token(request).is_none()
    }
}

/// The reply to a challenge, if the request asks for one. As in nginx, it takes precedence over the
/// configuration.
fn answer(request: &mut Request) -> Option<Step> {
    let token = asked_token(request)?;
    let answer = host::answer(token)?;
    let text = Bytes::from_static(b"text/plain");
    Some(page(request, 200, text, answer.into()))
}

/// The token of the challenge that a request asks for.
fn asked_token(request: &Request) -> Option<&[u8]> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return None;
    }
    request.uri.strip_prefix(WELL_KNOWN)
}

/// Appends the value of `$acme_certificate`; false if the variable has none.
pub fn certificate(request: &mut Request, out: &mut Vec<u8>) -> bool {
    variable(request, out, |certificate| &certificate.chain_pem)
}

/// Appends the value of `$acme_certificate_key`; false if the variable has none.
pub fn certificate_key(request: &mut Request, out: &mut Vec<u8>) -> bool {
    variable(request, out, |certificate| &certificate.key_pem)
}

/// The certificate or key in the form that `ssl_certificate` accepts in place of a file.
fn variable(request: &Request, out: &mut Vec<u8>, text: impl FnOnce(&Certificate) -> &str) -> bool {
    let acme = request.local.generation.part::<Acme>();
    let held = acme.and_then(|acme| acme.of_server(request.server.plan.scope));
    let Some(certificate) = held.and_then(|held| held.certificate()) else {
        return false;
    };
    out.extend_from_slice(b"data:");
    out.extend_from_slice(text(&certificate).as_bytes());
    true
}

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    match name {
        "acme_certificate" => Some(BuiltinVariable::once(certificate)),
        "acme_certificate_key" => Some(BuiltinVariable::once(certificate_key)),
        _ => None,
    }
}
