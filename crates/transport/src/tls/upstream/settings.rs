//! The TLS settings of a scope for its upstreams: the directives `*_ssl_*`, which every module with
//! upstreams has under its own prefix (`proxy`, `grpc`), and their compiled form.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_ssl_certificate>. As with
//! nginx, the upstream's identity is verified only with `*_ssl_verify on`. Sessions are stored by
//! name.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, Word, parse,
};
use framework::compile::Compiler;
use logs::{Compiling as _, Level, Printable, Subject, write};
use rustls::client::{ResolvesClientCert, Resumption, danger::ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, SupportedCipherSuite, SupportedProtocolVersion};
use sha2::{Digest as _, Sha256};
use variables::{Compiling as _, Context, Text};

use crate::tls::chain::Trust;
use crate::tls::commands::{self, Commands};
use crate::tls::dynamic::{self, Cache, CacheSettings, CertificateError};
use crate::tls::key_log::KeyLog;
use crate::tls::pem::TrustedFor;
use crate::tls::settings::{SET_CIPHERS, check_passwords};
use crate::tls::suites::SelectedSuites;
use crate::tls::upstream::verify::{self, Trusted, Unverified};
use crate::tls::upstream::{HandshakeError, OwnCertificate, do_handshake};
use crate::tls::{files, pem, provider, settings, suites};
use crate::transport::Transport;

/// Maximum number of stored sessions per scope, for resumption.
const SESSIONS_MAX: usize = 256;

/// OpenSSL's default limit of intermediate certificates between a peer's certificate and a trusted
/// one, for settings without directives.
const DEPTH_MAX: usize = 100;

/// The directives of one module.
pub struct Family {
    session_reuse: Setting<bool>,
    protocols: Setting<Vec<&'static SupportedProtocolVersion>>,
    ciphers: Setting<SelectedSuites<SupportedCipherSuite>>,
    name: Setting<Template>,
    server_name: Setting<bool>,
    verify: Setting<bool>,
    verify_depth: Setting<u64>,
    trusted_certificate: Setting<Word>,
    crl: Setting<Word>,
    certificate: Setting<Word>,
    certificate_key: Setting<Word>,
    certificate_cache: Setting<Option<CacheSettings>>,
    password_file: Setting<Word>,
    conf_command: Setting<Commands>,
    key_log: Setting<PathBuf>,
}

impl Family {
    /// The directives whose names begin with `prefix` and `ssl_`, in these contexts.
    #[must_use]
    pub const fn of(prefix: &'static str, contexts: Contexts) -> Family {
        Family {
            session_reuse: flag(prefix, "ssl_session_reuse", "on", contexts)
                .manual("Resumes TLS sessions with upstreams."),
            protocols: Setting::family(
                prefix,
                "ssl_protocols",
                &["[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]"],
                settings::protocols,
            )
            .contexts(contexts)
            .arity(Arity::at_least(1))
            .inherit(Inherit::List)
            .default("TLSv1.2 TLSv1.3")
            .manual("The versions that upstreams are spoken to in. Those before TLSv1.2 do not exist here and are skipped with a warning."),
            ciphers: Setting::family(prefix, "ssl_ciphers", &["ciphers"], settings::ciphers)
                .contexts(contexts)
                .default("DEFAULT")
                .manual("Cipher suites of TLS 1.2 in OpenSSL's language; see `ssl_ciphers` for those that there are."),
            name: Setting::family(prefix, "ssl_name", &["name"], parse::template)
                .contexts(contexts)
                .manual("The name that the upstream's certificate must be for, and that is sent with `*_ssl_server_name`. Without it, the host of `*_pass`. A port behind it is left out."),
            server_name: flag(prefix, "ssl_server_name", "off", contexts)
                .manual("Sends the name to the upstream (SNI, RFC 6066), unless it is an address."),
            verify: flag(prefix, "ssl_verify", "off", contexts).manual(
                "Verifies the upstream's certificate: its chain to one of `*_ssl_trusted_certificate`, and its name.",
            ),
            verify_depth: Setting::family(prefix, "ssl_verify_depth", &["number"], parse::number)
                .contexts(contexts)
                .default("1")
                .manual("Most intermediate certificates between the upstream's own and a trusted one."),
            trusted_certificate: Setting::family(prefix, "ssl_trusted_certificate", &["file"], word)
                .contexts(contexts)
                .manual("A file with the certificates that are trusted to vouch for upstreams, in PEM."),
            crl: Setting::family(prefix, "ssl_crl", &["file"], word)
                .contexts(contexts)
                .manual("A file with revocation lists, in PEM. With it, each certificate of a chain needs the list of its issuer."),
            certificate: Setting::family(prefix, "ssl_certificate", &["file"], varying)
                .contexts(contexts)
                .manual("A file with the certificate that is shown to upstreams that ask for one, in PEM. With variables, it is read when it is needed. An empty value shows none."),
            certificate_key: Setting::family(prefix, "ssl_certificate_key", &["file"], varying)
                .contexts(contexts)
                .manual("A file with the private key of `*_ssl_certificate`, in PEM."),
            certificate_cache: Setting::family(
                prefix,
                "ssl_certificate_cache",
                &["off", "max=N [inactive=time] [valid=time]"],
                dynamic::cache_settings,
            )
            .contexts(contexts)
            .arity(Arity::between(1, 3))
            .default("off")
            .manual("Keeps certificates whose paths have variables: at most `max`, each until it has not been used for `inactive` (10s) or has been read `valid` (60s) ago."),
            password_file: Setting::family(prefix, "ssl_password_file", &["file"], word)
                .contexts(contexts)
                .manual("A file with the passwords of private keys, one a line; they are tried in turn."),
            conf_command: Setting::family(
                prefix,
                "ssl_conf_command",
                &["name value"],
                commands::quietly,
            )
            .contexts(contexts)
            .arity(Arity::exactly(2))
            .inherit(Inherit::List)
            .no_effect("these are commands for OpenSSL, which is not used")
            .manual("See nginx's manual."),
            key_log: Setting::family(prefix, "ssl_key_log", &["path"], parse::path)
                .contexts(contexts)
                .manual("A file that gets the secrets of connections to upstreams, for tools such as Wireshark. With it all of their traffic can be read; the file is created for its owner only."),
        }
    }

    /// Lists all directives of the family.
    pub const fn all(&'static self) -> [&'static dyn Declared; 15] {
        [
            &self.session_reuse,
            &self.protocols,
            &self.ciphers,
            &self.name,
            &self.server_name,
            &self.verify,
            &self.verify_depth,
            &self.trusted_certificate,
            &self.crl,
            &self.certificate,
            &self.certificate_key,
            &self.certificate_cache,
            &self.password_file,
            &self.conf_command,
            &self.key_log,
        ]
    }
}

const fn flag(
    prefix: &'static str,
    stem: &'static str,
    default: &'static str,
    contexts: Contexts,
) -> Setting<bool> {
    Setting::family(prefix, stem, &["on | off"], parse::flag)
        .contexts(contexts)
        .default(default)
}

fn word(setter: &Setter<'_>) -> Result<Word, Fault> {
    setter.word().cloned()
}

/// A path that may contain variables.
fn varying(setter: &Setter<'_>) -> Result<Word, Fault> {
    let word = setter.word()?;
    Template::parse(word).map(|_| word.clone())
}

/// The TLS settings of a scope for its upstreams.
pub struct UpstreamTls<C> {
    base: Base,
    /// The configuration with a certificate whose path has no variables, or without a certificate.
    config: Arc<ClientConfig>,
    /// The digest of `config`: requests may share a connection, even over generations, if the
    /// digests are equal.
    content: Content,
    /// The certificate, if its path contains variables that are evaluated per request.
    varying: Option<DynamicCertificate<C>>,
    name: Option<Text<C>>,
    server_name: bool,
    verify: bool,
}

/// A digest of a configuration and of the contents of its files.
type Content = [u8; 32];

/// A [`Content`] digest in computation.
#[derive(Default)]
struct Digest(Sha256);

impl Digest {
    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn add_all<T: AsRef<[u8]>>(&mut self, parts: &[T]) {
        self.0.update((parts.len() as u64).to_le_bytes());
        parts.iter().for_each(|part| self.add(part.as_ref()));
    }

    fn end(self) -> Content {
        self.0.finalize().into()
    }
}

/// The settings that all rustls configurations of a scope have in common: they differ only in the
/// certificate.
struct Base {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    verifier: Arc<dyn ServerCertVerifier>,
    resumption: Resumption,
    server_name: bool,
    key_log: Option<Arc<KeyLog>>,
    /// The protocols offered by ALPN (RFC 7301); no extension if empty.
    protocols: Vec<Vec<u8>>,
}

impl Base {
    fn config(&self, own: Option<OwnCertificate>) -> Result<Arc<ClientConfig>, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&self.verifier));
        let mut config = match own {
            Some(own) => {
                let own: Arc<dyn ResolvesClientCert> = Arc::new(own);
                builder.with_client_cert_resolver(own)
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = self.resumption.clone();
        config.enable_sni = self.server_name;
        config.alpn_protocols.clone_from(&self.protocols);
        if let Some(key_log) = &self.key_log {
            config.key_log = Arc::clone(key_log) as Arc<dyn rustls::KeyLog>;
        }
        Ok(Arc::new(config))
    }
}

impl Family {
    /// Makes the checks that nginx makes when it parses a directive, even if the directive is
    /// unused: reads the files of `*_ssl_password_file`, and refers to the variables of
    /// `*_ssl_certificate` and its variants, which must exist.
    pub fn check_unused<C: Context>(&self, compiler: &Compiler<'_>, root: ScopeRef<'_>) {
        check_passwords(compiler, root, &self.password_file);
        let varying: [&dyn Declared; 3] = [&self.certificate, &self.certificate_key, &self.name];
        for scope in root.tree().scopes() {
            for declared in varying {
                let lines = scope.own_lines(declared.spec()).into_iter();
                let texts = lines.filter_map(|line| Template::parse(line.argument(0)).ok());
                texts.for_each(|template| drop(compiler.text::<C>(&template)));
            }
        }
    }

    /// Compiles the settings of a scope for this module's upstreams. `protocols` are offered by
    /// ALPN.
    ///
    /// # Errors
    /// nginx's text.
    pub fn compile<C: Context>(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        protocols: Vec<Vec<u8>>,
    ) -> Result<UpstreamTls<C>, Fault> {
        let mut cipher_suites = suites::all_of_tls13();
        // Values are checked in nginx's order, because only the first error is reported.
        cipher_suites.extend(settings::remaining(scope, &self.ciphers, SET_CIPHERS)?);
        let (own, varying) = self.own_certificate(compiler, scope)?;
        let verify = scope.get(&self.verify)?;
        let server_name = scope.get(&self.server_name)?;
        let mut content = Digest::default();
        let verifier: Arc<dyn ServerCertVerifier> = if verify {
            Arc::new(self.trusted(compiler, scope, &mut content)?)
        } else {
            Arc::new(Unverified)
        };
        let commands = scope.written(&self.conf_command)?;
        commands.unwrap_or_default().accepted(compiler)?;
        let key_log = scope.written(&self.key_log)?;
        let versions = scope.get(&self.protocols)?;
        let reuse = scope.get(&self.session_reuse)?;
        content.add(
            format!("{verify} {server_name} {reuse} {key_log:?} {versions:?} {cipher_suites:?}")
                .as_bytes(),
        );
        if let Some(OwnCertificate(key)) = &own {
            content.add_all(&key.cert);
        }
        let base = Base {
            provider: Arc::new(CryptoProvider {
                cipher_suites,
                ..CryptoProvider::clone(provider())
            }),
            versions,
            verifier,
            resumption: if reuse {
                Resumption::in_memory_sessions(SESSIONS_MAX)
            } else {
                Resumption::disabled()
            },
            server_name,
            protocols,
            key_log: key_log.map(|path| Arc::new(KeyLog::new(compiler.log_file(&path)))),
        };
        let config = base
            .config(own)
            .map_err(|error| Fault::new(format!("SSL_CTX_new() failed (SSL: {error})")))?;
        let name = scope.written(&self.name)?;
        Ok(UpstreamTls {
            base,
            config,
            content: content.end(),
            varying,
            name: name.map(|name| compiler.text(&name)),
            server_name,
            verify,
        })
    }

    fn trusted(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        content: &mut Digest,
    ) -> Result<Trusted, Fault> {
        let Some(file) = scope
            .written(&self.trusted_certificate)?
            .filter(|file| !file.bytes.is_empty())
        else {
            let (certificate, verify) = (
                self.trusted_certificate.spec.name(),
                self.verify.spec.name(),
            );
            return Err(Fault::new(format!("no {certificate} for {verify}")));
        };
        let certificates = files::authorities(compiler, &file, |text| {
            pem::authorities(text, TrustedFor::Servers)
        })?;
        let lists = match scope
            .written(&self.crl)?
            .filter(|file| !file.bytes.is_empty())
        {
            Some(file) => files::revocation_lists(compiler, &file)?,
            None => Vec::new(),
        };
        let depth = usize::try_from(scope.get(&self.verify_depth)?).unwrap_or(usize::MAX);
        content.add_all(&certificates);
        content.add_all(&lists);
        content.add(&depth.to_le_bytes());
        let trust = Trust::new(&certificates, &lists, depth);
        trust.map(Trusted).map_err(|error| {
            let path = files::shown(compiler, &file);
            let text = format!("SSL_CTX_load_verify_locations(\"{path}\") failed (SSL: {error})");
            Fault::at(&file, text)
        })
    }

    /// The certificate that is presented to upstreams: loaded now, or when a request determines its
    /// path.
    fn own_certificate<C: Context>(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<(Option<OwnCertificate>, Option<DynamicCertificate<C>>), Fault> {
        let written = scope.written(&self.certificate)?;
        let Some(certificate) = written.filter(|word| !word.bytes.is_empty()) else {
            return Ok((None, None));
        };
        let Some(key) = scope.written(&self.certificate_key)? else {
            let (key, text) = (self.certificate_key.spec.name(), certificate.text());
            return Err(Fault::new(format!(
                "no \"{key}\" is defined for certificate \"{text}\""
            )));
        };
        let passwords = scope.written(&self.password_file)?;
        let texts = [&certificate, &key].map(Template::parse);
        let [certificate_text, key_text] = texts;
        let texts = [certificate_text?, key_text?].map(|template| compiler.text(&template));
        if texts.iter().all(|text| text.literal().is_some()) {
            let key = files::load(compiler, &certificate, &key, passwords.as_ref())?;
            return Ok((Some(OwnCertificate(key)), None));
        }
        for word in [&certificate, &key] {
            dynamic::will_be_read(compiler, word, self.certificate.spec.name())?;
        }
        let passwords = match &passwords {
            Some(file) => files::read_passwords(compiler, file)?,
            None => Vec::new(),
        };
        let [certificate, key] = texts;
        Ok((
            None,
            Some(DynamicCertificate {
                certificate,
                key,
                passwords: passwords.into(),
                folder: compiler.conf_prefix.clone(),
                cache: scope.get(&self.certificate_cache)?.map(Cache::new),
            }),
        ))
    }
}

/// A certificate whose path has variables.
struct DynamicCertificate<C> {
    certificate: Text<C>,
    key: Text<C>,
    passwords: Arc<[Bytes]>,
    /// Base of relative paths.
    folder: PathBuf,
    /// rustls configurations with loaded certificates.
    cache: Option<Cache<ClientConfig>>,
}

/// The TLS settings of one request or session.
pub struct ResolvedTls {
    config: Arc<ClientConfig>,
    /// The name for SNI and for session resumption.
    server_name: ServerName<'static>,
    /// The name that the certificate must match, if it is verified.
    verified_name: Option<Vec<u8>>,
    /// An address that the certificate may match instead of `verified_name`.
    verified_address: Option<IpAddr>,
    /// The settings other than names that must be equal for two requests to share a connection.
    agreed: SharingIdentity,
}

/// Identifies the settings, apart from names, that must be equal for two requests to share a
/// connection.
enum SharingIdentity {
    /// The digest of the configuration, whichever generation it belongs to.
    Content(Content),
    /// For a configuration that was made for a request: the number of the generation. The address
    /// of the configuration in memory, which is unique within the generation, counts, too.
    Place(u64),
}

impl ResolvedTls {
    /// Settings for a host without a family of directives: its certificate must match the host and
    /// be issued by one of these authorities. The host is sent as SNI unless it is an address; the
    /// protocols are offered by ALPN.
    ///
    /// # Errors
    /// If one of the authorities is not a certificate, or TLS is not available.
    pub fn verified(
        host: &[u8],
        authorities: &[CertificateDer<'static>],
        protocols: Vec<Vec<u8>>,
    ) -> Result<ResolvedTls, String> {
        let trust = Trust::new(authorities, &[], DEPTH_MAX).map_err(|error| error.to_string())?;
        let base = Base {
            provider: Arc::new(CryptoProvider::clone(provider())),
            versions: rustls::DEFAULT_VERSIONS.to_vec(),
            verifier: Arc::new(Trusted(trust)),
            resumption: Resumption::in_memory_sessions(SESSIONS_MAX),
            server_name: true,
            key_log: None,
            protocols,
        };
        let mut content = Digest::default();
        content.add_all(authorities);
        let mut name = host.to_vec();
        name.truncate(without_port(&name));
        Ok(ResolvedTls {
            config: base.config(None).map_err(|error| error.to_string())?,
            agreed: SharingIdentity::Content(content.end()),
            server_name: server_name(&name, true),
            verified_address: address_of(&name),
            verified_name: Some(name),
        })
    }

    /// A copy of these settings that offers these protocols by ALPN, in this generation.
    #[must_use]
    pub fn offering(self, protocols: Vec<Vec<u8>>, generation: u64) -> ResolvedTls {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols;
        ResolvedTls {
            config: Arc::new(config),
            agreed: SharingIdentity::Place(generation),
            ..self
        }
    }

    /// Whether the configuration was made for a request, with its own certificate or protocols.
    pub fn is_of_request(&self) -> bool {
        matches!(self.agreed, SharingIdentity::Place(_))
    }

    /// Appends a key for all settings and names that must be equal for two requests to share a
    /// connection.
    pub fn append_terms(&self, terms: &mut Vec<u8>) {
        match &self.agreed {
            SharingIdentity::Content(content) => terms.extend_from_slice(content),
            SharingIdentity::Place(generation) => {
                let config = Arc::as_ptr(&self.config).addr();
                terms.extend_from_slice(format!("{generation} {config:x}").as_bytes());
            }
        }
        terms.extend_from_slice(format!(" {:?} ", self.server_name).as_bytes());
        if let Some(name) = &self.verified_name {
            terms.push(b'=');
            terms.extend_from_slice(name);
        }
    }
}

impl<C: Context> UpstreamTls<C> {
    /// Determines the name and the certificate for a connection to this host. `generation`: the
    /// number of the request's generation.
    ///
    /// # Errors
    /// If a certificate cannot be loaded.
    pub async fn prepare(
        &self,
        context: &mut C,
        host: &[u8],
        generation: u64,
    ) -> Result<ResolvedTls, CertificateError> {
        let mut name = match &self.name {
            Some(text) => text.evaluate(context).to_vec(),
            None => host.to_vec(),
        };
        name.truncate(without_port(&name));
        let config = self.config(context).await?;
        let agreed = if Arc::ptr_eq(&config, &self.config) {
            SharingIdentity::Content(self.content)
        } else {
            SharingIdentity::Place(generation)
        };
        Ok(ResolvedTls {
            config,
            agreed,
            server_name: server_name(&name, self.server_name),
            verified_name: self.verify.then_some(name),
            verified_address: None,
        })
    }

    async fn config(&self, context: &mut C) -> Result<Arc<ClientConfig>, CertificateError> {
        let Some(varying) = &self.varying else {
            return Ok(Arc::clone(&self.config));
        };
        let certificate = varying.certificate.evaluate(context);
        if certificate.is_empty() {
            return Ok(Arc::clone(&self.config));
        }
        let paths = (certificate, varying.key.evaluate(context));
        if let Some(known) = varying.cache.as_ref().and_then(|cache| cache.find(&paths)) {
            return Ok(known);
        }
        let key = dynamic::read(&varying.folder, &paths, &varying.passwords).await?;
        let config = self.base.config(Some(OwnCertificate(key)))?;
        if let Some(cache) = &varying.cache {
            cache.insert(paths, &config);
        }
        Ok(config)
    }
}

/// Why TLS could not be established. The reason has been logged, unless it is a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSecured {
    /// The handshake timed out.
    TimedOut,
    /// The handshake failed, or the peer's certificate was rejected.
    Failed,
}

/// Performs the handshake with an upstream and verifies its name. Log messages end with `doing`,
/// which is empty if the subject adds the current action itself.
///
/// # Errors
/// The connection cannot be used any more.
pub async fn secure(
    transport: &Transport,
    secured: &ResolvedTls,
    deadline: Instant,
    subject: &dyn Subject,
    doing: &str,
) -> Result<(), NotSecured> {
    let name = secured.server_name.clone();
    match do_handshake(transport, &secured.config, name, deadline).await {
        Ok(()) if is_expected(transport, secured) => return Ok(()),
        Ok(()) => {
            let name = Printable(secured.verified_name.as_deref().unwrap_or_default());
            let text = format_args!("upstream SSL certificate does not match \"{name}\"{doing}");
            write(subject, Level::Error, text);
        }
        Err(HandshakeError::TimedOut) => return Err(NotSecured::TimedOut),
        Err(error) => match error.unverified() {
            Some(unverified) => {
                let text =
                    format_args!("upstream SSL certificate verify error: {unverified}{doing}");
                write(subject, Level::Error, text);
            }
            None => write(subject, Level::Error, format_args!("{error}{doing}")),
        },
    }
    Err(NotSecured::Failed)
}

/// Whether the peer's certificate matches the name, or names are not verified.
fn is_expected(transport: &Transport, secured: &ResolvedTls) -> bool {
    let Some(name) = &secured.verified_name else {
        return true;
    };
    let session = transport.client_session();
    let certificate = session.and_then(|session| session.certificate());
    certificate.is_some_and(|certificate| {
        let address = secured.verified_address;
        verify::matches_name(&certificate, name)
            || address.is_some_and(|address| verify::matches_address(&certificate, address))
    })
}

/// The host as an address, if it is one.
fn address_of(host: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(host).ok()?;
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(text).parse().ok()
}

/// Length of a name without a trailing port.
fn without_port(name: &[u8]) -> usize {
    let begin = match name.first() {
        Some(b'[') => memchr::memchr(b']', name).unwrap_or(0),
        _ => 0,
    };
    let rest = name.get(begin..).unwrap_or_default();
    memchr::memchr(b':', rest).map_or(name.len(), |colon| begin + colon)
}

/// A name in rustls's form. A name that is not valid for SNI is replaced by an address, because
/// rustls does not send addresses as SNI.
fn server_name(name: &[u8], is_sent: bool) -> ServerName<'static> {
    let nobody = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let text = std::str::from_utf8(name).unwrap_or_default();
    if is_sent && text.starts_with('[') {
        return nobody;
    }
    ServerName::try_from(text.to_owned()).unwrap_or(nobody)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in `ngx_http_upstream_ssl_name`.
    #[test]
    fn ports_are_left_out_of_names() {
        for (name, without) in [
            ("example.com", "example.com"),
            ("example.com:443", "example.com"),
            ("[::1]:443", "[::1]"),
            ("[::1]", "[::1]"),
            ("[::1", "["),
            ("", ""),
        ] {
            assert_eq!(&name[..without_port(name.as_bytes())], without);
        }
    }

    #[test]
    fn addresses_are_told_from_names() {
        let is_address = |host: &str| address_of(host.as_bytes()).is_some();
        assert!(is_address("127.0.0.1") && is_address("[::1]"));
        assert!(!is_address("example.com") && !is_address("[::1") && !is_address(""));
    }

    #[test]
    fn only_names_are_sent() {
        let is_name =
            |name: &str| matches!(server_name(name.as_bytes(), true), ServerName::DnsName(_));
        assert!(is_name("example.com") && is_name("a_b"));
        assert!(!is_name("127.0.0.1") && !is_name("[::1]") && !is_name("") && !is_name("a b"));
    }
}
