//! TLS connections to servers: turns the options of a run's command line into a configuration of
//! rustls.
//!
//! RFC 8446, 5246. `session.rs` handles the records of a connection, `sessions.rs` stores sessions
//! for resumption, `trust.rs` verifies servers, and [`NegotiatedTls`] is the result of a handshake.
//! Not here: early data, revocation.

mod agreed;
mod session;
mod sessions;
mod trust;

use std::cell::OnceCell;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, NamedGroup, StreamOwned, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use crate::plan::ALPN_HTTP2;
use crate::target::Target;

pub(crate) use agreed::Mark;
pub use agreed::NegotiatedTls;
pub use session::HandshakeError;
pub(crate) use session::{Session, SessionProgress, do_handshake};
use sessions::Sessions;

/// The ALPN name of HTTP/1.1. Only the protocol of the run is offered.
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The TLS options. By default, servers are verified against the system's certificate authorities,
/// and rustls's default parameters are offered.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether to accept any certificate, and to skip the verification of its signatures, which
    /// saves the load tester time.
    pub insecure: bool,
    /// A PEM file of certificate authorities, instead of the system's.
    pub authorities: Option<PathBuf>,
    /// A PEM file of the client certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// A PEM file of the client certificate's key. `None` if it is in the same file.
    pub key: Option<PathBuf>,
    /// The only protocol version to offer; `None` offers both.
    pub version: Option<Version>,
    /// The cipher suites, in order of preference, by OpenSSL's or the RFCs' names; empty for
    /// rustls's defaults.
    pub ciphers: Vec<String>,
    /// The key exchange groups, in order of preference; empty for rustls's defaults.
    pub groups: Vec<String>,
    /// The server name for SNI and for the verification of certificates, instead of the URL's host.
    pub name: Option<String>,
    /// Whether to omit SNI, so that a server with several certificates uses its default one.
    pub without_name: bool,
    /// Whether later connections resume sessions. Otherwise every handshake is a full one.
    pub resume: bool,
    /// Whether to negotiate HTTP/2.
    pub http2: bool,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2, defined by RFC 5246.
    Tls12,
    /// TLS 1.3, defined by RFC 8446.
    Tls13,
}

/// Why the TLS options cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be read or has unexpected contents.
    File(PathBuf, String),
    /// None of the usual files of certificate authorities exists.
    NoAuthorities,
    /// The cipher suite is not supported.
    Cipher(String),
    /// The key exchange group is not supported.
    Group(String),
    /// The text is neither a host name nor an address.
    Name(String),
    /// The options are not compatible with each other.
    Choice(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::File(path, fault) => write!(f, "{}: {fault}", path.display()),
            TlsError::NoAuthorities => f.write_str(
                "no file of certificate authorities is known on this system: name one with --cacert, or take any \
                 certificate with --insecure",
            ),
            TlsError::Cipher(name) => write!(
                f,
                "there is no cipher suite {name} here; there are {}",
                names(aws_lc_rs::ALL_CIPHER_SUITES.iter().map(agreed::cipher))
            ),
            TlsError::Group(name) => write!(
                f,
                "there is no group {name} here; there are {}",
                names(aws_lc_rs::ALL_KX_GROUPS.iter().map(|group| agreed::group(group.name())))
            ),
            TlsError::Name(name) => write!(f, "{name}: not a name that a certificate can have"),
            TlsError::Choice(error) => write!(f, "TLS as it was chosen is impossible: {error}"),
        }
    }
}

fn names(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The TLS settings for one server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    resume: bool,
    http2: bool,
}

/// Equal if they have the same name and were made by the same maker.
impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Tls {
    /// Whether connections resume the sessions of earlier ones.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resume
    }

    /// A TLS connection over a blocking stream, for a single request.
    ///
    /// # Errors
    /// An error of rustls, if the configuration is not usable.
    pub fn over<S: Read + Write>(
        &self,
        stream: S,
    ) -> Result<impl Read + Write + use<S>, rustls::Error> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        Ok(StreamOwned::new(tls, stream))
    }

    /// A copy of these settings with a session cache of its own, for one thread and one server.
    pub(crate) fn with_own_sessions(&self) -> Tls {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::store(Arc::new(Sessions::new(self.resume)));
        Tls {
            config: Arc::new(config),
            ..self.clone()
        }
    }
}

/// Creates the [`Tls`] settings of servers. Files are read when the first one is created.
#[derive(Debug)]
pub struct TlsFactory {
    settings: Settings,
    made: OnceCell<Arc<ClientConfig>>,
}

impl TlsFactory {
    /// Creates a maker with these options.
    #[must_use]
    pub fn new(settings: Settings) -> TlsFactory {
        TlsFactory {
            settings,
            made: OnceCell::new(),
        }
    }

    /// The TLS settings for a target; `None` if its scheme is not `https`.
    ///
    /// # Errors
    /// One variant of [`TlsError`] for each cause.
    pub fn tls(&self, target: &Target) -> Result<Option<Tls>, TlsError> {
        if !target.secure {
            return Ok(None);
        }
        let name = match &self.settings.name {
            Some(name) => name,
            // A Unix socket has no host.
            None if target.host.is_empty() => &target.authority,
            None => &target.host,
        };
        let name = ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name.clone()))?;
        let config = match self.made.get() {
            Some(config) => config,
            None => {
                let config = Arc::new(config(&self.settings)?);
                self.made.get_or_init(|| config)
            }
        };
        Ok(Some(Tls {
            config: Arc::clone(config),
            name,
            resume: self.settings.resume,
            http2: self.settings.http2,
        }))
    }
}

/// Converts the options to a configuration of rustls.
fn config(settings: &Settings) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: chosen_ciphers(&settings.ciphers)?,
        kx_groups: chosen_groups(&settings.groups)?,
        ..aws_lc_rs::default_provider()
    });
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions(settings.version))
        .map_err(TlsError::Choice)?;
    let builder = if settings.insecure {
        let anybody = Arc::new(trust::AcceptAnyServer::new(&provider));
        builder
            .dangerous()
            .with_custom_certificate_verifier(anybody)
    } else {
        builder.with_root_certificates(trust::authorities(settings.authorities.as_deref())?)
    };
    let mut config = match &settings.certificate {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let key = settings.key.as_deref().unwrap_or(path);
            builder
                .with_client_auth_cert(certificates(path)?, private_key(key)?)
                .map_err(TlsError::Choice)?
        }
    };
    config.enable_sni = !settings.without_name;
    config.alpn_protocols = vec![if settings.http2 {
        ALPN_HTTP2.to_vec()
    } else {
        ALPN_HTTP1.to_vec()
    }];
    Ok(config)
}

fn versions(version: Option<Version>) -> &'static [&'static SupportedProtocolVersion] {
    static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
    static TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
    match version {
        None => rustls::ALL_VERSIONS,
        Some(Version::Tls12) => &TLS12,
        Some(Version::Tls13) => &TLS13,
    }
}

fn chosen_ciphers(names: &[String]) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    if names.is_empty() {
        return Ok(aws_lc_rs::DEFAULT_CIPHER_SUITES.to_vec());
    }
    let find = |name: &String| {
        let mut all = aws_lc_rs::ALL_CIPHER_SUITES.iter();
        let found = all.find(|suite| {
            agreed::cipher(suite).eq_ignore_ascii_case(name)
                || format!("{:?}", suite.suite()).eq_ignore_ascii_case(name)
        });
        found.copied().ok_or_else(|| TlsError::Cipher(name.clone()))
    };
    names.iter().map(find).collect()
}

fn chosen_groups(names: &[String]) -> Result<Vec<&'static dyn SupportedKxGroup>, TlsError> {
    if names.is_empty() {
        return Ok(aws_lc_rs::DEFAULT_KX_GROUPS.to_vec());
    }
    let find = |name: &String| {
        let known = match &*name.to_ascii_lowercase() {
            "p-256" | "prime256v1" | "secp256r1" => NamedGroup::secp256r1,
            "p-384" | "secp384r1" => NamedGroup::secp384r1,
            "x25519" => NamedGroup::X25519,
            "x25519mlkem768" => NamedGroup::X25519MLKEM768,
            "secp256r1mlkem768" => NamedGroup::secp256r1MLKEM768,
            "mlkem768" => NamedGroup::MLKEM768,
            _ => return Err(TlsError::Group(name.clone())),
        };
        let mut all = aws_lc_rs::ALL_KX_GROUPS.iter().copied();
        all.find(|group| group.name() == known)
            .ok_or_else(|| TlsError::Group(name.clone()))
    };
    names.iter().map(find).collect()
}

/// Reads the certificates of a PEM file; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let fault = |text: String| TlsError::File(path.to_owned(), text);
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| fault(error.to_string()))?
        .collect();
    match found {
        Err(error) => Err(fault(error.to_string())),
        Ok(found) if found.is_empty() => Err(fault("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error| TlsError::File(path.to_owned(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn ciphers_have_the_names_of_openssl_and_of_the_rfcs() {
        let suites = chosen_ciphers(&words(&[
            "TLS_AES_128_GCM_SHA256",
            "ecdhe-rsa-aes256-gcm-sha384",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ]))
        .unwrap();
        let found: Vec<String> = suites.iter().map(agreed::cipher).collect();
        // The names are those of `openssl ciphers -stdname`.
        let expected = [
            "TLS_AES_128_GCM_SHA256",
            "ECDHE-RSA-AES256-GCM-SHA384",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ];
        assert_eq!(found, expected);
        let error = chosen_ciphers(&words(&["RC4"])).unwrap_err();
        assert!(error.to_string().contains("there is no cipher suite RC4"));
    }

    #[test]
    fn groups_have_the_names_of_openssl() {
        let groups = chosen_groups(&words(&["P-256", "x25519", "X25519MLKEM768"])).unwrap();
        let names: Vec<NamedGroup> = groups.iter().map(|group| group.name()).collect();
        let expected = [
            NamedGroup::secp256r1,
            NamedGroup::X25519,
            NamedGroup::X25519MLKEM768,
        ];
        assert_eq!(names, expected);
        assert!(matches!(
            chosen_groups(&words(&["P-1"])),
            Err(TlsError::Group(_))
        ));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let settings = Settings {
            insecure: true,
            version: Some(Version::Tls13),
            ciphers: words(&["ECDHE-RSA-AES256-GCM-SHA384"]),
            ..Settings::default()
        };
        let target = |url| Target::parse(url, &[]).unwrap();
        let secure = target("https://127.0.0.1/");
        let made = TlsFactory::new(settings).tls(&secure);
        assert!(matches!(made, Err(TlsError::Choice(_))));
        let maker = TlsFactory::new(Settings {
            insecure: true,
            ..Settings::default()
        });
        assert!(matches!(maker.tls(&target("http://127.0.0.1/")), Ok(None)));
        let tls = maker.tls(&secure).unwrap();
        assert!(tls.is_some() && tls == maker.tls(&secure).unwrap());
        assert!(maker.tls(&target("https://unix:/a:/")).unwrap() != tls);
        let bad = TlsFactory::new(Settings {
            name: Some("a b".to_owned()),
            ..Settings::default()
        });
        assert!(matches!(bad.tls(&secure), Err(TlsError::Name(_))));
    }
}
