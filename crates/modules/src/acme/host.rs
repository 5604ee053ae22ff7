//! The challenge replies of listeners, and the issued certificates: state of the whole process,
//! since challenge replies and certificates outlive a configuration.

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

/// Tokens of `http-01` challenges, each with the response to it. Usually empty, and never long.
static ANSWERS: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// Certificates for `tls-alpn-01` handshakes, by the SNI of the validator.
static HANDSHAKES: RwLock<Vec<(String, Arc<ServerTls>)>> = RwLock::new(Vec::new());

/// The slots of all certificates that were ordered since the process started, by `issuer/order`.
static HELD: Mutex<Option<Map<String, Arc<CertificateSlot>>>> = Mutex::new(None);

/// The slot of a certificate that ACME issues.
#[derive(Debug, Default)]
pub struct CertificateSlot {
    current: RwLock<Current>,
    slot: Arc<Slot>,
}

/// A certificate, and whether it was issued.
#[derive(Clone, Debug, Default)]
struct Current {
    certificate: Option<Arc<Certificate>>,
    /// Whether the certificate is a placeholder, used until a certificate is issued.
    is_placeholder: bool,
}

impl CertificateSlot {
    /// The slot for an order of an issuer. Later calls for the same order return the same slot, for
    /// the life of the process.
    pub fn of(issuer: &str, order: &str) -> Arc<CertificateSlot> {
        let mut all = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_with(Map::default);
        Arc::clone(all.entry(format!("{issuer}/{order}")).or_default())
    }

    /// The slot from which handshakes take the certificate.
    pub fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }

    /// The current certificate.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.current().certificate
    }

    /// The current certificate, unless it is a placeholder.
    pub fn issued(&self) -> Option<Arc<Certificate>> {
        let Current {
            certificate,
            is_placeholder,
        } = self.current();
        certificate.filter(|_| !is_placeholder)
    }

    /// Whether a certificate has been issued.
    pub fn is_issued(&self) -> bool {
        self.issued().is_some()
    }

    /// Makes an issued certificate the current one.
    pub fn install(&self, certificate: &Arc<Certificate>) {
        self.set(certificate, false);
    }

    /// Makes a placeholder the current certificate.
    pub fn stand_in(&self, certificate: &Arc<Certificate>) {
        self.set(certificate, true);
    }

    fn set(&self, certificate: &Arc<Certificate>, is_placeholder: bool) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Current {
            certificate: Some(Arc::clone(certificate)),
            is_placeholder,
        };
        self.slot.set(Some(Arc::clone(&certificate.key)));
    }

    fn current(&self) -> Current {
        let current = self.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The listeners of this process, for the thread of one issuer.
pub(super) struct Listeners {
    issuer: String,
    /// Whether progress is printed to standard error.
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
        // This thread has no event loop that flushes log lines.
        logs::flush_thread();
    }

    fn announce(&self, text: &str) {
        if self.announces {
            // Written in one call, since other processes write there too. If standard error is
            // closed, the text is lost.
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

/// The `http-01` response for a token.
pub(super) fn answer(token: &[u8]) -> Option<String> {
    let answers = ANSWERS.read().unwrap_or_else(PoisonError::into_inner);
    let found = answers.iter().find(|(known, _)| known.as_bytes() == token);
    found.map(|(_, answer)| answer.clone())
}

/// The TLS settings for a client that validates a `tls-alpn-01` challenge: it offers only that
/// protocol, and every listener responds (RFC 8737 section 3).
pub fn intercept(hello: &ClientHello) -> Option<Arc<ServerTls>> {
    let mut protocols = hello.protocols();
    let only = protocols.next()? == VALIDATION_PROTOCOL && protocols.next().is_none();
    only.then(|| handshake(hello.server_name()?)).flatten()
}

/// The TLS settings for a validator of this name; `None` if no challenge for the name is pending.
fn handshake(server_name: &[u8]) -> Option<Arc<ServerTls>> {
    let shown = HANDSHAKES.read().unwrap_or_else(PoisonError::into_inner);
    let found = shown
        .iter()
        .find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(server_name));
    found.map(|(_, tls)| Arc::clone(tls))
}

/// TLS settings that only serve the reply to a challenge.
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
        prefers_client_chacha20: false,
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
