//! OCSP checks of client certificates: `ssl_ocsp` and its family.
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html#ssl_ocsp>, RFC 6960. After the
//! handshake, if the chain is valid, each certificate to be checked is looked up in the cache; if
//! the cache has no entry, its responder is asked. Requests, responses and their exchange are
//! shared with stapling. Only the status "good" is cached: the status of a revoked certificate is
//! requested again in every handshake.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conf::{Declared, Fault, Files, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::{Compiler, Feature};
use framework::generation::GenerationView;
use framework::zone::{State, Zone, ZoneError, ZoneFactSink};
use logs::Subject;
use rustls::pki_types::CertificateDer;

use crate::resolver::{RESOLVER, RESOLVER_TIMEOUT, Resolving};
use crate::tls::messages;
use crate::tls::resumption::SessionCache;
use crate::tls::settings::OF_SERVERS;
use crate::tls::stapling::fetch::{BadUrl, FetchError, Responder};
use crate::tls::stapling::message::{self, Rejected};

/// A directive; see its manual.
pub static OCSP: Setting<Option<Which>> = Setting::new("ssl_ocsp", &["on | off | leaf"], |setter| {
    let which = [
        ("off", None),
        ("on", Some(Which::All)),
        ("leaf", Some(Which::First)),
    ];
    parse::enumeration(setter, &which)
})
.contexts(OF_SERVERS)
.default("off")
.manual(
    "Asks whether the certificates of clients have been revoked: those of their chain, or with `leaf` their own \
     alone. Where no responder answers, the certificate does not hold. Needs `ssl_verify_client on` or `optional`, and \
     a `resolver` where responders have names.",
);

/// A directive; see its manual.
pub static RESPONDER: Setting<Word> = Setting::new("ssl_ocsp_responder", &["url"], |setter| {
    setter.word().cloned()
})
.contexts(OF_SERVERS)
.manual("Who is asked about certificates, in the place of whom they name themselves: `http://host[:port][/uri]`.");

/// A directive; see its manual.
pub static CACHE: Setting<Option<(String, u64)>> =
    Setting::new("ssl_ocsp_cache", &["off | shared:name:size"], cache)
        .contexts(OF_SERVERS)
        .default("off")
        .manual("Keeps what was answered until there is to be a newer answer, in memory of this name and size in bytes.");

fn cache(setter: &Setter<'_>) -> Result<Option<(String, u64)>, Fault> {
    let word = setter.word()?;
    let text = word.text();
    if text == "off" {
        return Ok(None);
    }
    let invalid = || Fault::at(word, format!("invalid OCSP cache \"{text}\""));
    let shared = text.strip_prefix("shared:").ok_or_else(invalid)?;
    let (name, size) = shared.split_once(':').ok_or_else(invalid)?;
    let size = parse::size_text(size).filter(|_| !name.is_empty());
    let size = size.ok_or_else(invalid)?;
    if size < framework::zone::SIZE_MIN {
        let message = format!("OCSP cache \"{text}\" is too small");
        return Err(Fault::at(word, message));
    }
    Ok(Some((name.to_owned(), size)))
}

/// Which certificates of a chain are checked. The trusted certificate is never checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every certificate of the chain (`on`).
    All,
    /// Only the client's own certificate (`leaf`).
    First,
}

/// The cache of OCSP results (`ssl_ocsp_cache`).
pub struct OcspResponses(SessionCache);

impl State for OcspResponses {
    const KIND: &'static str = "ssl_ocsp_cache";

    type Settings = ();

    fn new(size: u64) -> OcspResponses {
        OcspResponses(SessionCache::new(size))
    }

    fn describe(&self, (): &(), tell: &mut ZoneFactSink<'_>) {
        self.0.tell("answers", tell);
    }
}

/// A server's OCSP check of its clients' certificates.
pub struct StatusCheck {
    which: Option<Which>,
    responder: Option<Responder>,
    cache: Option<Arc<Zone<OcspResponses>>>,
    resolving: Arc<Resolving>,
}

impl Feature for StatusCheck {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&OCSP, &RESPONDER, &CACHE, &RESOLVER, &RESOLVER_TIMEOUT];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<StatusCheck, Fault> {
        let which = scope.get(&OCSP)?;
        // If no certificate is checked, the responder's URL is not validated.
        let responder = match scope.written(&RESPONDER)?.filter(|_| which.is_some()) {
            Some(word) => Some(configured_responder(&word, compiler.files)?),
            None => None,
        };
        let cache = match scope.get(&CACHE)? {
            Some((name, size)) => {
                let declared = compiler.zones.borrow_mut().declare(&name, size, ());
                match declared {
                    Ok(zone) | Err(ZoneError::Declared(zone)) => Some(zone),
                    Err(ZoneError::Conflict(text)) => return Err(Fault::new(text)),
                }
            }
            None => None,
        };
        Ok(StatusCheck {
            which,
            responder,
            cache,
            resolving: compiler.feature(scope)?,
        })
    }
}

/// The responder of `ssl_ocsp_responder`, whose name is resolved at once.
fn configured_responder(word: &Word, files: &dyn Files) -> Result<Responder, Fault> {
    let text = word.text();
    Responder::new(&text, Some(files)).map_err(|error| {
        let why = match error {
            BadUrl::Prefix => "invalid URL prefix",
            BadUrl::Host(why) => why,
        };
        Fault::at(word, format!("{why} in OCSP responder \"{text}\""))
    })
}

/// Why the status of a certificate is unknown.
enum Unknown {
    /// The certificate names no OCSP responder.
    NoResponder,
    /// The responder's URL is not usable.
    BadUrl,
    /// The responder sent no response.
    Failed(FetchError),
    /// The response is not acceptable.
    Rejected(Rejected),
}

impl fmt::Display for Unknown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::NoResponder => out.write_str("no OCSP responder URL in certificate"),
            Unknown::BadUrl => out.write_str("invalid OCSP responder URL in certificate"),
            Unknown::Failed(cause) => cause.fmt(out),
            Unknown::Rejected(cause) => cause.fmt(out),
        }
    }
}

impl StatusCheck {
    /// Whether any certificate is checked.
    pub fn is_on(&self) -> bool {
        self.which.is_some()
    }

    /// Checks the certificates of a client's valid chain.
    ///
    /// # Errors
    /// The problem with one of the certificates, in nginx's words.
    pub async fn check(
        &self,
        client: &dyn Subject,
        local: &GenerationView,
        path: &[CertificateDer<'static>],
    ) -> Result<(), &'static str> {
        let count = match self.which {
            None => 0,
            Some(Which::First) => 1,
            Some(Which::All) => path.len(),
        };
        for pair in path.windows(2).take(count) {
            match self.inquire(local, pair).await {
                Ok(()) => {}
                Err(Unknown::Rejected(Rejected::Status("revoked"))) => {
                    return Err("certificate revoked");
                }
                Err(Unknown::Rejected(Rejected::Status(_))) => {
                    return Err("certificate status unknown");
                }
                Err(cause) => {
                    messages::status_unknown(client, &cause);
                    return Err("certificate status request failed");
                }
            }
        }
        Ok(())
    }

    /// Determines, from the cache or the responder, the status of the first of two certificates.
    /// The second is its issuer.
    async fn inquire(
        &self,
        local: &GenerationView,
        pair: &[CertificateDer<'static>],
    ) -> Result<(), Unknown> {
        let issuer = pair.get(1..).unwrap_or_default();
        let subject = message::subject(pair, issuer, true);
        let malformed = Unknown::Rejected(Rejected::Malformed);
        let question = subject.as_ref().and_then(|one| Some((one, one.request()?)));
        let (subject, request) = question.ok_or(malformed)?;
        let kept = self.cache.as_ref().map(|zone| &zone.state().0);
        if kept.is_some_and(|kept| kept.get(&request).is_some()) {
            return Ok(());
        }
        let named = match (&self.responder, pair.first()) {
            (None, Some(first)) => Some(self.named_responder(first)?),
            _ => None,
        };
        let responder = self.responder.as_ref().or(named.as_ref());
        let responder = responder.ok_or(Unknown::NoResponder)?;
        let answer = responder.ask(&request, &self.resolving, local).await;
        let answer = answer.map_err(Unknown::Failed)?;
        let now = engine::wall().as_secs();
        let until = subject.check(&answer, now).map_err(Unknown::Rejected)?;
        if let (Some(kept), Some(until)) = (kept, until) {
            let time = Duration::from_secs(until.saturating_sub(now));
            kept.put(request, Vec::new(), time);
        }
        Ok(())
    }
    /// The OCSP responder that a certificate names. Only `resolver` resolves its host, since the
    /// system's resolver would block the thread.
    fn named_responder(&self, certificate: &CertificateDer<'_>) -> Result<Responder, Unknown> {
        let url = message::responder(certificate).ok_or(Unknown::NoResponder)?;
        let responder = Responder::new(&url, None).map_err(|_| Unknown::BadUrl)?;
        if responder.is_name() && !self.resolving.is_possible() {
            Err(Unknown::Failed(FetchError::NoAddress))
        } else {
            Ok(responder)
        }
    }
}
