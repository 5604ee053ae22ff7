//! What listeners show to ACME servers, and the certificates that have come: known to the whole
//! process, because both outlive a configuration.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use acme::{Certificate, ChallengeReply, Host, Level};
use base::hash::Map;
use proto::tls::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use transport::tls::certificates::Slot;
use transport::tls::provider;
use transport::tls::server::ServerTls;

/// The protocol of validators (RFC 8737 section 4).
const VALIDATION_PROTOCOL: &[u8] = b"acme-tls/1";

/// Responses to `http-01` by token. Usually empty, and never long.
static ANSWERS: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// Certificates that answer `tls-alpn-01`, by the SNI of the validator.
static HANDSHAKES: RwLock<Vec<(String, Arc<ServerTls>)>> = RwLock::new(Vec::new());

/// Every certificate that was asked for since the start, by issuer and order.
static HELD: Mutex<Option<Map<String, Arc<CertificateSlot>>>> = Mutex::new(None);

/// The place of a certificate that comes by itself.
#[derive(Debug, Default)]
pub struct CertificateSlot {
    current: RwLock<Current>,
    slot: Arc<Slot>,
}

#[derive(Clone, Debug, Default)]
struct Current {
    certificate: Option<Arc<Certificate>>,
    /// Whether it only stands in for one that is still to come.
    stands_in: bool,
}

impl CertificateSlot {
    /// The place for an order of an issuer; the same one for as long as the process lives.
    pub fn of(issuer: &str, order: &str) -> Arc<CertificateSlot> {
        let mut all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_with(Map::default);
        Arc::clone(all.entry(format!("{issuer}/{order}")).or_default())
    }

    /// Where handshakes find it.
    pub fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }

    /// The certificate in force.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.current().certificate
    }

    /// The certificate in force, if it has been issued.
    pub fn issued(&self) -> Option<Arc<Certificate>> {
        let Current {
            certificate,
            stands_in,
        } = self.current();
        certificate.filter(|_| !stands_in)
    }

    /// Whether there is one that has been issued.
    pub fn is_issued(&self) -> bool {
        self.issued().is_some()
    }

    /// Puts one that has been issued into force.
    pub fn install(&self, certificate: &Arc<Certificate>) {
        self.set(certificate, false);
    }

    /// Puts one into force that stands in for another.
    pub fn stand_in(&self, certificate: &Arc<Certificate>) {
        self.set(certificate, true);
    }

    fn set(&self, certificate: &Arc<Certificate>, stands_in: bool) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Current {
            certificate: Some(Arc::clone(certificate)),
            stands_in,
        };
        self.slot.set(Some(Arc::clone(&certificate.key)));
    }

    fn current(&self) -> Current {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The listeners of this process, as one issuer's thread sees them.
pub(super) struct Listeners {
    issuer: String,
    /// Whether standard error tells how it goes.
    announces: bool,
}

impl Listeners {
    pub(super) fn new(issuer: &str, announces: bool) -> Listeners {
        Listeners {
            issuer: issuer.to_owned(),
            announces,
        }
    }
}

impl Host for Listeners {
    fn log(&self, level: Level, text: &str) {
        logs::process_error(level, format_args!("{text}"));
        // This thread has no loop at whose turns lines leave.
        logs::flush_thread();
    }

    fn announce(&self, text: &str) {
        if self.announces {
            // In one write, as other processes write there too. Nobody is left to tell where
            // standard error is closed.
            let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
        }
    }

    fn show(&self, shown: &ChallengeReply) {
        match shown {
            ChallengeReply::Http { token, answer } => {
                let mut answers = ANSWERS.write().unwrap_or_else(PoisonError::into_inner);
                answers.push((token.clone(), answer.clone()));
            }
            ChallengeReply::Tls { server_name, key } => match validation(key) {
                Ok(tls) => {
                    let mut shown = HANDSHAKES.write().unwrap_or_else(PoisonError::into_inner);
                    shown.push((server_name.clone(), Arc::new(tls)));
                }
                Err(error) => {
                    let issuer = &self.issuer;
                    let text = format!(
                        "tls-alpn-01 cannot be answered: {error}, acme issuer: \"{issuer}\""
                    );
                    self.log(Level::Error, &text);
                }
            },
        }
    }

    fn hide(&self, shown: &ChallengeReply) {
        match shown {
            ChallengeReply::Http { token, .. } => {
                let mut answers = ANSWERS.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(at) = answers.iter().position(|(known, _)| known == token) {
                    answers.swap_remove(at);
                }
            }
            ChallengeReply::Tls { server_name, .. } => {
                let mut shown = HANDSHAKES.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(at) = shown.iter().position(|(known, _)| known == server_name) {
                    shown.swap_remove(at);
                }
            }
        }
    }

    fn installed(&self, order: &str) -> Option<Arc<Certificate>> {
        CertificateSlot::of(&self.issuer, order).issued()
    }

    fn install(&self, order: &str, certificate: &Arc<Certificate>) {
        CertificateSlot::of(&self.issuer, order).install(certificate);
    }
}

/// What `http-01` answers for a token.
pub(super) fn answer(token: &[u8]) -> Option<String> {
    let answers = ANSWERS.read().unwrap_or_else(PoisonError::into_inner);
    let found = answers.iter().find(|(known, _)| known.as_bytes() == token);
    found.map(|(_, answer)| answer.clone())
}

/// What a client gets that validates a challenge of `tls-alpn-01`: it offers that protocol alone,
/// and every listener answers it (RFC 8737 section 3).
pub fn intercept(hello: &ClientHello) -> Option<Arc<ServerTls>> {
    let mut protocols = hello.protocols();
    let only = protocols.next()? == VALIDATION_PROTOCOL && protocols.next().is_none();
    only.then(|| handshake(hello.server_name()?)).flatten()
}

/// What a handshake with a validator that asks for this name is made with; `None` where no
/// validator is expected.
fn handshake(server_name: &[u8]) -> Option<Arc<ServerTls>> {
    let shown = HANDSHAKES.read().unwrap_or_else(PoisonError::into_inner);
    let found = shown
        .iter()
        .find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(server_name));
    found.map(|(_, tls)| Arc::clone(tls))
}

/// TLS that shows the answer to a challenge and has nothing to say.
fn validation(key: &Arc<CertifiedKey>) -> Result<ServerTls, rustls::Error> {
    let resolver = SingleCertAndKey::from(CertifiedKey::clone(key));
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![VALIDATION_PROTOCOL.to_vec()];
    Ok(ServerTls {
        with_http2: OnceLock::new(),
        config: Arc::new(config),
        clients: None,
        status: None,
        stapled: Box::default(),
        yields_to_chacha20: false,
        rejects: false,
        has_certificate: true,
        kernel_tls: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_until_it_is_taken_back() {
        let shown = |token: &str| ChallengeReply::Http {
            token: token.to_owned(),
            answer: format!("{token}.thumb"),
        };
        let listeners = Listeners::new("one", false);
        assert_eq!(answer(b"host-test-a"), None);
        listeners.show(&shown("host-test-a"));
        listeners.show(&shown("host-test-b"));
        assert_eq!(answer(b"host-test-a").as_deref(), Some("host-test-a.thumb"));
        listeners.hide(&shown("host-test-a"));
        assert_eq!(answer(b"host-test-a"), None);
        assert_eq!(answer(b"host-test-b").as_deref(), Some("host-test-b.thumb"));
        listeners.hide(&shown("host-test-b"));
    }

    #[test]
    fn a_place_outlives_who_asks_for_it() {
        let place = CertificateSlot::of("issuer", "host-test");
        assert!(place.certificate().is_none() && !place.is_issued());
        let names = [acme::Identifier::Dns("a.test".into())];
        let made = Certificate::stand_in(&names, provider());
        let made = Arc::new(made.expect("a certificate"));
        place.stand_in(&made);
        let again = CertificateSlot::of("issuer", "host-test");
        assert!(again.certificate().is_some() && !again.is_issued());
        again.install(&made);
        assert!(place.is_issued());
        assert!(
            CertificateSlot::of("other", "host-test")
                .certificate()
                .is_none()
        );
    }
}
