//! TLS of a server without a configuration file: the memcached server with memcached's command-line
//! options.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

use crate::tls::certificates::{self, Resolver, Slot};
use crate::tls::pem;
use crate::tls::resumption::{Cache, ServerSessions, SessionCache, Tickets};
use crate::tls::server::ServerTls;
use crate::tls::verify::{AcceptAnyClientCertificate, ClientVerification, Mode};
use crate::tls::{lenient_sni, provider, suites};

/// Capacity of the session cache, in sessions.
const SESSIONS: u64 = 20_480;

/// How long a client can resume a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(300);

/// The context of these servers' sessions, which no other server has.
const CONTEXT: [u8; 16] = *b"standalone\0\0\0\0\0\0";

/// Maximum depth of client certificate chains.
const DEPTH: usize = 9;

/// The settings of a server's TLS.
#[derive(Clone, Debug, Default)]
pub struct StandaloneTls {
    /// Cipher suites of TLS 1.2 in OpenSSL's notation; `None` for all.
    pub ciphers: Option<String>,
    /// Whether clients may use TLS 1.2.
    pub with_tls12: bool,
    /// Whether client certificates are requested, and how strictly.
    pub verifies: Option<Mode>,
    /// The content of a file with the authorities of client certificates.
    pub authorities: Option<Vec<u8>>,
    /// Whether clients may resume their sessions.
    pub keeps_sessions: bool,
}

/// A certificate with its chain and its key, from PEM files.
///
/// # Errors
/// Why the files cannot be used.
pub fn certificate(chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, String> {
    let passwords: &[&[u8]] = &[];
    certificates::chain(chain)
        .and_then(|chain| certificates::certified_key(chain, key, passwords))
        .map_err(|error| error.to_string())
}

/// TLS settings with the certificate of this slot, which may be replaced while the server runs.
///
/// # Errors
/// A text that names the invalid setting.
pub fn server(settings: &StandaloneTls, slot: Arc<Slot>) -> Result<ServerTls, String> {
    let mut cipher_suites = suites::all_of_tls13();
    let chosen = suites::ciphers(settings.ciphers.as_deref().unwrap_or("HIGH:!aNULL:!MD5"));
    if chosen.found.is_empty() && settings.with_tls12 {
        return Err("nothing of what the list of ciphers names is supported".to_owned());
    }
    cipher_suites.extend(chosen.found);
    let provider = CryptoProvider {
        cipher_suites: cipher_suites
            .into_iter()
            .map(lenient_sni::restoring)
            .collect(),
        ..CryptoProvider::clone(provider())
    };
    let versions = if settings.with_tls12 {
        &[&TLS13, &TLS12][..]
    } else {
        &[&TLS13]
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let clients = clients(settings)?.map(Arc::new);
    let builder = match &clients {
        Some(clients) => builder
            .with_client_cert_verifier(Arc::new(AcceptAnyClientCertificate(Arc::clone(clients)))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Resolver(vec![slot])));
    config.ignore_client_order = true;
    if settings.keeps_sessions {
        config.session_storage = Arc::new(ServerSessions {
            cache: Cache::Own(Arc::new(SessionCache::for_sessions(SESSIONS))),
            context: CONTEXT,
            timeout: SESSION_TIMEOUT,
        });
        config.ticketer = Arc::new(Tickets {
            keys: Vec::new(),
            context: CONTEXT,
            timeout: SESSION_TIMEOUT,
        });
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(ServerTls {
        config: Arc::new(config),
        with_http2: OnceLock::new(),
        clients,
        status: None,
        stapled: Box::default(),
        prefers_client_chacha20: settings.ciphers.is_none(),
        rejects: false,
        has_certificate: true,
        kernel_tls: false,
    })
}

fn clients(settings: &StandaloneTls) -> Result<Option<ClientVerification>, String> {
    let Some(mode) = settings.verifies else {
        return Ok(None);
    };
    let told = match &settings.authorities {
        Some(file) => pem::certificates(file).map_err(|error| error.to_string())?,
        None => Vec::new(),
    };
    ClientVerification::new(mode, DEPTH, told, Vec::new(), &[])
        .map(Some)
        .map_err(|error| error.to_string())
}
