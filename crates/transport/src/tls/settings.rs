//! The `ssl_*` directives, and the TLS settings of a server that they compile to.
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html>

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::hash::Map;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeId, ScopeRef, Setter, Setting, Template, Word,
    parse,
};
use framework::compile::{Compiler, Feature};
use framework::registry::Registry;
use framework::zone::ZoneError;
use logs::Compiling as _;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use sha2::{Digest, Sha256};
use variables::{Compiling as _, Text};

use crate::resolver::{RESOLVER, RESOLVER_TIMEOUT, Resolving};
use crate::tls::certificates::{Resolver, ShownCertificates, Slot};
use crate::tls::dynamic::{self, Cache, CacheSettings, Dynamic};
use crate::tls::key_log::KeyLog;
use crate::tls::ocsp::{self, StatusCheck};
use crate::tls::pem::TrustedFor;
use crate::tls::resumption::{
    self, BUILTIN_SESSIONS, Context, ServerSessions, SessionCache, TicketKey, Tickets,
};
use crate::tls::server::ServerTls;
use crate::tls::stapling::fetch::{BadUrl, Responder};
use crate::tls::stapling::{Stapling, Times, message};
use crate::tls::suites::SelectedSuites;
use crate::tls::verify::{AcceptAnyClientCertificate, ClientVerification, Mode};
use crate::tls::{commands, compression, files, kernel, lenient_sni, pem, provider, suites};

/// Maximum amount of early data, in bytes, as in nginx.
const EARLY_DATA_MAX: u32 = 16 * 1024;

/// Contexts of directives that only HTTP has.
const OF_HTTP: Contexts = Contexts::HTTP.or(Contexts::SERVER);

/// Contexts of directives for the servers of every protocol.
pub(crate) const OF_SERVERS: Contexts = OF_HTTP
    .or(Contexts::STREAM)
    .or(Contexts::STREAM_SERVER)
    .or(Contexts::MEMCACHED)
    .or(Contexts::MEMCACHED_SERVER);

static CERTIFICATE: Setting<Vec<Word>> = Setting::new("ssl_certificate", &["file"], words)
    .contexts(OF_SERVERS)
    .inherit(Inherit::List)
    .manual(
        "A file with the server's certificate and the intermediate ones after it, in PEM. Written \
         several times with keys of different kinds (RSA, ECDSA), each client gets one that it can \
         check. The file is read at start and reload.",
    );

static CERTIFICATE_KEY: Setting<Vec<Word>> = Setting::new("ssl_certificate_key", &["file"], words)
    .contexts(OF_SERVERS)
    .inherit(Inherit::List)
    .manual(
        "A file with the private key of the certificate in the same place among several, in PEM: PKCS #1, \
         SEC 1 or PKCS #8. One that is encrypted is opened by `ssl_password_file`.",
    );

static CERTIFICATE_CACHE: Setting<Option<CacheSettings>> = Setting::new(
    "ssl_certificate_cache",
    &["off", "max=N [inactive=time] [valid=time]"],
    dynamic::cache_settings,
)
.contexts(OF_SERVERS)
.arity(Arity::between(1, 3))
.default("off")
.manual(
    "Keeps certificates that are named with variables: so many, as long as they are used within `inactive` (10s), \
     and loads them again after `valid` (60s).",
);

static CERTIFICATE_COMPRESSION: Setting<bool> =
    Setting::new("ssl_certificate_compression", &["on | off"], parse::flag)
        .contexts(OF_SERVERS)
        .arity(Arity::flag())
        .default("off")
        .manual(
            "Sends certificates compressed by Brotli, zstd or zlib to clients of TLS 1.3 that can read it. A chain of \
             two or three then often fits into the first packets. Not together with `ssl_stapling`.",
        );

static KEY_LOG: Setting<PathBuf> = Setting::new("ssl_key_log", &["path"], parse::path)
    .contexts(OF_HTTP)
    .manual(
        "A file that gets the secrets of connections of clients, for tools such as Wireshark. With it all of their traffic \
         can be read; the file is created for its owner only.",
    );

/// Declares the directive `ssl_password_file`.
pub static PASSWORD_FILE: Setting<Word> = Setting::new("ssl_password_file", &["file"], word)
    .contexts(OF_SERVERS)
    .manual("A file with the passwords of private keys, one a line; they are tried in turn.");

static PROTOCOLS: Setting<Vec<&'static SupportedProtocolVersion>> = Setting::new(
    "ssl_protocols",
    &["[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]"],
    protocols,
)
.contexts(OF_SERVERS)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("TLSv1.2 TLSv1.3")
.manual(
    "The versions that clients may speak. Those before TLSv1.2 are broken and do not exist here: they are \
     skipped with a warning, and an error only where nothing else is named.",
);

static CIPHERS: Setting<SelectedSuites<SupportedCipherSuite>> = Setting::new("ssl_ciphers", &["ciphers"], ciphers)
    .contexts(OF_SERVERS)
    .default("HIGH:!aNULL:!MD5")
    .manual(
        "Cipher suites of TLS 1.2 in OpenSSL's language. There are six here: ECDHE with ECDSA or RSA, and \
         AES-128-GCM, AES-256-GCM or ChaCha20-Poly1305. Names of others are skipped with a warning.",
    );

static PREFER_SERVER_CIPHERS: Setting<bool> =
    Setting::new("ssl_prefer_server_ciphers", &["on | off"], parse::flag)
        .contexts(OF_SERVERS)
        .arity(Arity::flag())
        .manual(
            "Whose order of ciphers decides: that of `ssl_ciphers`, or the client's with `off`. Where nothing is said it is \
             that of `ssl_ciphers`, but clients that want ChaCha20 first get it: telephones without instructions for AES.",
        );

static ECDH_CURVE: Setting<SelectedSuites<&'static dyn SupportedKxGroup>> =
    Setting::new("ssl_ecdh_curve", &["curve"], curves)
        .contexts(OF_SERVERS)
        .default("auto")
        .manual(
            "Groups for the key exchange, separated by colons, the preferred first: X25519MLKEM768, X25519, \
             prime256v1, secp384r1. `auto` is these in this order. Others are skipped with a warning.",
        );

static BUFFER_SIZE: Setting<u64> = Setting::new("ssl_buffer_size", &["size"], parse::size)
    .contexts(OF_HTTP)
    .default("16k")
    .manual(
        "Most bytes of a response in one record. A client can use a record only when all of it has come, \
         so small ones show a page's beginning sooner, and large ones cost less.",
    );

static REJECT_HANDSHAKE: Setting<bool> =
    Setting::new("ssl_reject_handshake", &["on | off"], parse::flag)
        .contexts(OF_SERVERS)
        .arity(Arity::flag())
        .default("off")
        .manual(
            "Refuses every handshake with the server, so that unknown names get no certificate.",
        );

static VERIFY_CLIENT: Setting<Option<Mode>> = Setting::new(
    "ssl_verify_client",
    &["on | off | optional | optional_no_ca"],
    |setter| {
        let modes = [
            ("off", None),
            ("on", Some(Mode::Required)),
            ("optional", Some(Mode::Optional)),
            ("optional_no_ca", Some(Mode::OptionalNoCa)),
        ];
        parse::enumeration(setter, &modes)
    },
)
.contexts(OF_SERVERS)
.default("off")
.manual(
    "Asks clients for a certificate. With `on` requests without one that holds get an error page (496, 495), \
     with `optional` those with one that does not hold. `optional_no_ca` leaves it to others who has signed it. \
     In `stream` such sessions end.",
);

static VERIFY_DEPTH: Setting<u64> = Setting::new("ssl_verify_depth", &["number"], parse::number)
    .contexts(OF_SERVERS)
    .default("1")
    .manual("How many certificates may stand between a client's and one that is trusted.");

static CLIENT_CERTIFICATE: Setting<Word> = Setting::new("ssl_client_certificate", &["file"], word)
    .contexts(OF_SERVERS)
    .manual(
        "Certificates of authorities that sign those of clients, in PEM. Clients are told their names.",
    );

static TRUSTED_CERTIFICATE: Setting<Word> =
    Setting::new("ssl_trusted_certificate", &["file"], word)
        .contexts(OF_SERVERS)
        .manual("More such certificates, of which clients are told nothing.");

static CRL: Setting<Word> = Setting::new("ssl_crl", &["file"], word)
    .contexts(OF_SERVERS)
    .manual(
        "Lists of revoked certificates, in PEM: one of every authority that a client's certificate leads to.",
    );

static SESSION_CACHE: Setting<Caches> = Setting::new(
    "ssl_session_cache",
    &["off | none | [builtin[:size]] [shared:name:size]"],
    session_cache,
)
.contexts(OF_SERVERS)
.arity(Arity::between(1, 2))
.repeatable()
.default("none")
.manual(
    "Where sessions are kept so that clients can go on with them. `shared` is memory of this size in bytes that \
     all servers and threads which give the name share, and that outlives reloads; `builtin` is one of the \
     server's own for this many sessions, 20480 if not said. `off` and `none` keep none; tickets need none.",
);

static SESSION_TIMEOUT: Setting<Duration> =
    Setting::new("ssl_session_timeout", &["time"], parse::seconds)
        .contexts(OF_SERVERS)
        .default("5m")
        .manual("How long a client can go on with a session, in the cache or by a ticket.");

static SESSION_TICKETS: Setting<bool> =
    Setting::new("ssl_session_tickets", &["on | off"], parse::flag)
        .contexts(OF_SERVERS)
        .arity(Arity::flag())
        .default("on")
        .manual("Whether clients keep their sessions themselves, sealed.");

static SESSION_TICKET_KEY: Setting<Vec<Word>> =
    Setting::new("ssl_session_ticket_key", &["file"], words)
        .contexts(OF_SERVERS)
        .inherit(Inherit::List)
        .manual(
            "A file of 80 or 48 random bytes that seals tickets; written several times, the first seals and all \
             open. Without it keys are made, changed every day and kept over reloads.",
        );

static EARLY_DATA: Setting<bool> = Setting::new("ssl_early_data", &["on | off"], parse::flag)
    .contexts(OF_HTTP)
    .arity(Arity::flag())
    .default("off")
    .manual(
        "Takes requests that come with the first bytes of a resumed session (TLS 1.3). Who records them can send \
         them again, so pass `$ssl_early_data` on where that matters. Sessions are then kept in a cache and \
         not in tickets, so that each is used once.",
    );

static ALPN: Setting<Vec<Vec<u8>>> = Setting::new("ssl_alpn", &["protocol ..."], alpn)
    .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
    .arity(Arity::at_least(1))
    .manual(
        "Names of protocols that clients may speak (ALPN), the preferred first. A client that \
         offers others alone is refused. Without the directive whatever it offers is ignored.",
    );

static STAPLING: Setting<bool> = Setting::new("ssl_stapling", &["on | off"], parse::flag)
    .contexts(OF_SERVERS)
    .arity(Arity::flag())
    .default("off")
    .manual(
        "Sends with a certificate what its issuer says of it: the response of `ssl_stapling_file`, or one that is fetched \
         from the responder whom the certificate names (OCSP by http). The issuer's certificate must stand in the chain or \
         in `ssl_trusted_certificate`. The first handshake begins the inquiry and does not wait for it.",
    );

static STAPLING_FILE: Setting<Word> = Setting::new("ssl_stapling_file", &["file"], word)
    .contexts(OF_SERVERS)
    .manual(
        "A response about the server's certificate (OCSP), in DER, as `openssl ocsp` fetches it.",
    );

static STAPLING_RESPONDER: Setting<Word> =
    Setting::new("ssl_stapling_responder", &["url"], word)
        .contexts(OF_SERVERS)
        .manual(
            "Whom `ssl_stapling` asks in place of the responder that the certificate names: `http://host[:port]/path`. \
             The host is looked up by `resolver` where there is one, else by the system when the configuration is loaded.",
        );

static STAPLING_VERIFY: Setting<bool> =
    Setting::new("ssl_stapling_verify", &["on | off"], parse::flag)
        .contexts(OF_SERVERS)
        .arity(Arity::flag())
        .default("off")
        .manual(
            "Whether who signed a response that was fetched must be let to: the issuer, or whom it has made a responder, up to \
             a certificate of `ssl_trusted_certificate`.",
        );

static DHPARAM: Setting<Word> = Setting::new("ssl_dhparam", &["file"], word)
    .contexts(OF_SERVERS)
    .no_effect("there are no ciphers with DHE")
    .manual("Names a file with parameters for ciphers with DHE. It must be there and hold some.");

#[derive(Clone, Debug, Default)]
struct Caches {
    /// `builtin`: capacity in sessions.
    builtin: Option<u64>,
    /// `shared`: name and size.
    shared: Option<(String, u64)>,
}

/// The compiled `ssl_*` directives of a scope.
pub struct TlsSettings<C> {
    /// TLS settings of the server; `None` if it has neither a certificate nor
    /// `ssl_reject_handshake`.
    pub server: Option<Arc<ServerTls>>,
    /// Certificates whose paths contain variables, evaluated in this type of context; `None` if
    /// there are none.
    pub certificates: Option<Arc<Dynamic<C>>>,
    /// `ssl_verify_client`, which applies even if the server uses the certificate of the default
    /// server.
    pub verify_client: Option<Mode>,
    /// Warnings for every server with these settings.
    pub warnings: Box<[String]>,
}

/// Certificates that a module obtains (ACME). It fills in the fields before servers are compiled.
#[derive(Default)]
pub struct IssuedCertificates {
    /// The values of `ssl_certificate` and `ssl_certificate_key` that stand for such a certificate.
    pub written: Option<(&'static str, &'static str)>,
    /// The slots of the servers that have such a certificate, by scope.
    pub slots: Map<ScopeId, Arc<Slot>>,
}

impl Registry for IssuedCertificates {}

impl IssuedCertificates {
    /// Whether these values of `ssl_certificate` and its key stand for an issued certificate.
    fn is_meant(&self, certificate: &Word, key: &Word) -> bool {
        self.written.is_some_and(|(c, k)| {
            *certificate.bytes == *c.as_bytes() && *key.bytes == *k.as_bytes()
        })
    }

    /// The slot of the certificate that a server obtains; an empty slot if it obtains none.
    fn of(&self, server: ScopeRef<'_>) -> Arc<Slot> {
        self.slots.get(&server.id()).cloned().unwrap_or_default()
    }
}

/// The servers of a protocol, by the context in which certificate paths are evaluated.
pub trait TlsProtocol: variables::Context {
    /// The name of the protocol. Sessions with a server of one protocol are not resumed by a server
    /// of another.
    const NAME: &'static str;

    /// The protocols that clients may select by ALPN without `ssl_alpn`, in order of preference.
    const ALPN: &'static [&'static [u8]];
}

impl<C: TlsProtocol> Feature for TlsSettings<C> {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &CERTIFICATE,
        &CERTIFICATE_KEY,
        &CERTIFICATE_CACHE,
        &CERTIFICATE_COMPRESSION,
        &KEY_LOG,
        &PASSWORD_FILE,
        &PROTOCOLS,
        &CIPHERS,
        &PREFER_SERVER_CIPHERS,
        &ECDH_CURVE,
        &BUFFER_SIZE,
        &REJECT_HANDSHAKE,
        &VERIFY_CLIENT,
        &VERIFY_DEPTH,
        &CLIENT_CERTIFICATE,
        &TRUSTED_CERTIFICATE,
        &CRL,
        &SESSION_CACHE,
        &SESSION_TIMEOUT,
        &SESSION_TICKETS,
        &SESSION_TICKET_KEY,
        &EARLY_DATA,
        &ALPN,
        &STAPLING,
        &STAPLING_FILE,
        &STAPLING_RESPONDER,
        &STAPLING_VERIFY,
        &DHPARAM,
        &commands::CONF_COMMAND,
        &ocsp::OCSP,
        &ocsp::RESPONDER,
        &ocsp::CACHE,
        // OCSP requests of a server use its own resolver.
        &RESOLVER,
        &RESOLVER_TIMEOUT,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<TlsSettings<C>, Fault> {
        let certificates = scope.written(&CERTIFICATE)?.unwrap_or_default();
        let keys = scope.written(&CERTIFICATE_KEY)?.unwrap_or_default();
        let rejects = scope.get(&REJECT_HANDSHAKE)?;
        if let Some(last) = certificates.last()
            && keys.len() < certificates.len()
        {
            let text = last.text();
            return Err(Fault::new(format!(
                "no \"ssl_certificate_key\" is defined for certificate \"{text}\""
            )));
        }
        let verify_client = scope.get(&VERIFY_CLIENT)?;
        if certificates.is_empty() && !rejects {
            return Ok(TlsSettings {
                server: None,
                certificates: None,
                verify_client,
                warnings: Box::default(),
            });
        }
        // Values are checked in nginx's order, because only the first error is reported.
        let cipher_suites = remaining(scope, &CIPHERS, SET_CIPHERS)?;
        let mut context = Sha256::new_with_prefix(C::NAME);
        let dynamic = with_variables(compiler, scope, &certificates, &keys)?;
        let passwords = scope.written(&PASSWORD_FILE)?;
        let issued = compiler.registry::<IssuedCertificates>();
        let mut loaded = Vec::with_capacity(certificates.len());
        for (certificate, key) in certificates.iter().zip(&keys) {
            context.update(&certificate.bytes);
            if dynamic.is_some() {
                continue;
            }
            if issued.borrow().is_meant(certificate, key) {
                loaded.push((certificate, None));
                continue;
            }
            let certified = files::load(compiler, certificate, key, passwords.as_ref())?;
            context.update(certified.cert.first().map_or(&[][..], |first| first));
            loaded.push((certificate, Some(certified)));
        }
        let has_certificate = !certificates.is_empty();
        let clients = clients(compiler, scope)?.map(Arc::new);
        if let Some(clients) = &clients {
            clients.identify(&mut context);
        }
        let status = compiler.feature::<StatusCheck>(scope)?;
        let status = Some(status).filter(|status| status.is_on());
        if status.is_some() && verify_client == Some(Mode::OptionalNoCa) {
            return Err(Fault::new(
                "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
            ));
        }
        if let Some(word) = named(scope, &DHPARAM)? {
            files::check_dh_parameters(compiler, &word)?;
        }
        let kx_groups = remaining(scope, &ECDH_CURVE, "SSL_CTX_set1_curves_list")?;
        let ticket_keys = ticket_keys(compiler, scope)?;
        if scope.get(&STAPLING)? && scope.get(&CERTIFICATE_COMPRESSION)? {
            return Err(Fault::new(
                "\"ssl_stapling\" is incompatible with \"ssl_certificate_compression\"",
            ));
        }
        let mut warnings = Vec::new();
        let (slots, fetched) = slots(compiler, scope, loaded, &mut warnings)?;
        let commands = scope.written(&commands::CONF_COMMAND)?.unwrap_or_default();
        let commands = commands.accepted(compiler)?;
        let kernel_tls = commands.kernel_tls && kernel_can(compiler);
        let mut suites = commands.ciphersuites.unwrap_or_else(suites::all_of_tls13);
        suites.extend(cipher_suites);
        let mut config = config(scope, Resolver(slots), clients.as_ref(), suites, kx_groups)?;
        config.enable_secret_extraction = kernel_tls;
        config.alpn_protocols = match scope.written(&ALPN)? {
            Some(protocols) => protocols,
            None => C::ALPN.iter().map(|name| name.to_vec()).collect(),
        };
        if let Some(path) = scope.written(&KEY_LOG)? {
            config.key_log = Arc::new(KeyLog::new(compiler.log_file(&path)));
        }
        remember_sessions(compiler, scope, context, ticket_keys, &mut config)?;
        Ok(TlsSettings {
            server: Some(Arc::new(ServerTls {
                with_http2: OnceLock::new(),
                config: Arc::new(config),
                clients,
                status,
                stapled: fetched.into(),
                prefers_client_chacha20: scope.written(&PREFER_SERVER_CIPHERS)?.is_none(),
                rejects,
                has_certificate,
                kernel_tls,
            })),
            certificates: dynamic.map(Arc::new),
            verify_client,
            warnings: warnings.into(),
        })
    }
}

/// Reads every password file that a line of this directive names: nginx does so when it parses the
/// line, even if the line is unused.
pub fn check_passwords(compiler: &Compiler<'_>, root: ScopeRef<'_>, setting: &Setting<Word>) {
    let scopes = root.tree().scopes();
    for line in scopes.flat_map(|scope| scope.own_lines(&setting.spec)) {
        if let Err(fault) = files::read_passwords(compiler, line.argument(0)) {
            compiler.report(fault);
        }
    }
}

/// The slots of a server's certificates, and the stapling of those with fetched OCSP responses.
type Slots = (Vec<Arc<Slot>>, Vec<Arc<Stapling>>);

/// Puts certificates in slots, with their stapled OCSP responses.
fn slots(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    loaded: Vec<(&Word, Option<Arc<CertifiedKey>>)>,
    warnings: &mut Vec<String>,
) -> Result<Slots, Fault> {
    let file = named(scope, &STAPLING_FILE)?;
    let stapled = match file.filter(|_| scope.get(&STAPLING) == Ok(true)) {
        Some(word) => Some(files::stapled(compiler, &word)?),
        None => None,
    };
    let fetches = stapled.is_none() && scope.get(&STAPLING)?;
    let (mut slots, mut fetched) = (Vec::with_capacity(loaded.len()), Vec::new());
    for (certificate, certified) in loaded {
        let shown = compiler.registry::<ShownCertificates>();
        let Some(mut certified) = certified else {
            let slot = compiler.registry::<IssuedCertificates>().borrow().of(scope);
            shown
                .borrow_mut()
                .add(certificate.text().into_owned(), &slot);
            slots.push(slot);
            continue;
        };
        if stapled.is_some() {
            let mut with_response = CertifiedKey::clone(&certified);
            with_response.ocsp.clone_from(&stapled);
            certified = Arc::new(with_response);
        }
        let slot = Arc::new(Slot::new(Some(Arc::clone(&certified))));
        if fetches {
            let stapling = fetched_staple(compiler, scope, certificate, certified, &slot)?;
            match stapling {
                Ok(stapling) => fetched.push(Arc::new(stapling)),
                Err(why) => {
                    let name = files::shown(compiler, certificate);
                    let text = format!("\"ssl_stapling\" ignored, {why} certificate \"{name}\"");
                    warnings.push(text);
                }
            }
        }
        shown
            .borrow_mut()
            .add(files::shown(compiler, certificate), &slot);
        slots.push(slot);
    }
    Ok((slots, fetched))
}

/// The file that a directive names; `None` for an empty name.
fn named(scope: ScopeRef<'_>, setting: &Setting<Word>) -> Result<Option<Word>, Fault> {
    let word = scope.written(setting)?;
    Ok(word.filter(|word| !word.bytes.is_empty()))
}

/// The certificates of a server, if the path of any of them contains variables.
fn with_variables<C: 'static>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    certificates: &[Word],
    keys: &[Word],
) -> Result<Option<Dynamic<C>>, Fault> {
    let mut pairs = Vec::with_capacity(certificates.len());
    for word in certificates.iter().chain(keys) {
        dynamic::will_be_read(compiler, word, "ssl_certificate")?;
    }
    for (certificate, key) in certificates.iter().zip(keys) {
        let text = |word: &Word| Ok(compiler.text(&Template::parse(word)?));
        pairs.push((text(certificate)?, text(key)?));
    }
    let is_literal = |(certificate, key): &(Text<C>, Text<C>)| {
        certificate.literal().is_some() && key.literal().is_some()
    };
    let mut sources = pairs.iter().zip(certificates.iter().zip(keys));
    let issued = compiler.registry::<IssuedCertificates>();
    let issued = issued.borrow();
    if sources.all(|(pair, (c, k))| is_literal(pair) || issued.is_meant(c, k)) {
        return Ok(None);
    }
    let passwords = match scope.written(&PASSWORD_FILE)? {
        Some(file) => files::read_passwords(compiler, &file)?,
        None => Vec::new(),
    };
    Ok(Some(Dynamic {
        pairs,
        passwords: passwords.into(),
        prefix: compiler.conf_prefix.clone(),
        cache: scope.get(&CERTIFICATE_CACHE)?.map(Cache::new),
    }))
}

/// Whether the kernel supports TLS; warns if not.
fn kernel_can(compiler: &Compiler<'_>) -> bool {
    if let Err(reason) = kernel::support() {
        let text = format!("\"ssl_conf_command Options KTLS\" has no effect: {reason}");
        compiler.diagnose(conf::Diagnostic::warn(text, None));
        return false;
    }
    true
}

/// The rustls configuration of a server.
fn config(
    scope: ScopeRef<'_>,
    resolver: Resolver,
    clients: Option<&Arc<ClientVerification>>,
    cipher_suites: Vec<SupportedCipherSuite>,
    kx_groups: Vec<&'static dyn SupportedKxGroup>,
) -> Result<ServerConfig, Fault> {
    let provider = CryptoProvider {
        cipher_suites: cipher_suites
            .into_iter()
            .map(lenient_sni::restoring)
            .collect(),
        kx_groups,
        ..CryptoProvider::clone(provider())
    };
    let versions = scope.get(&PROTOCOLS)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions)
        .map_err(|error| Fault::new(format!("SSL_CTX_new() failed: {error}")))?;
    let builder = match clients {
        Some(clients) => builder
            .with_client_cert_verifier(Arc::new(AcceptAnyClientCertificate(Arc::clone(clients)))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.ignore_client_order = scope.written(&PREFER_SERVER_CIPHERS)?.unwrap_or(true);
    if scope.get(&CERTIFICATE_COMPRESSION)? {
        config.cert_compressors = compression::ALL.to_vec();
    }
    config.max_fragment_size = Some(fragment_size(scope.get(&BUFFER_SIZE)?));
    Ok(config)
}

/// Session resumption: `ssl_session_cache` and its family, `ssl_early_data`.
fn remember_sessions(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    context: Sha256,
    keys: Vec<TicketKey>,
    config: &mut ServerConfig,
) -> Result<(), Fault> {
    let timeout = scope.get(&SESSION_TIMEOUT)?;
    let early_data = scope.get(&EARLY_DATA)?;
    let digest = context.finalize();
    let context: Context = *digest.first_chunk().unwrap_or(&[0; 16]);
    let caches = scope.get(&SESSION_CACHE)?;
    let cache = match (&caches.shared, caches.builtin) {
        (Some((name, size)), _) => {
            let declared = compiler.zones.borrow_mut().declare(name, *size, ());
            match declared {
                Ok(zone) | Err(ZoneError::Declared(zone)) => resumption::Cache::Zone(zone),
                Err(ZoneError::Conflict(text)) => return Err(Fault::new(text)),
            }
        }
        (None, Some(sessions)) => {
            resumption::Cache::Own(Arc::new(SessionCache::for_sessions(sessions)))
        }
        (None, None) if early_data => {
            resumption::Cache::Own(Arc::new(SessionCache::for_sessions(BUILTIN_SESSIONS)))
        }
        (None, None) => resumption::Cache::None,
    };
    config.session_storage = Arc::new(ServerSessions {
        cache,
        context,
        timeout,
    });
    if early_data {
        config.max_early_data_size = EARLY_DATA_MAX;
        // As in nginx, responses are sent before the client has completed its part of the
        // handshake. Otherwise they would have to be buffered until then, and would be lost with
        // `Connection: close`.
        config.send_half_rtt_data = true;
    } else if scope.get(&SESSION_TICKETS)? {
        if keys.is_empty() {
            resumption::hand_on_keys(&mut compiler.zones.borrow_mut());
        }
        config.ticketer = Arc::new(Tickets {
            keys,
            context,
            timeout,
        });
    }
    Ok(())
}

/// The keys of `ssl_session_ticket_key`.
fn ticket_keys(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Vec<TicketKey>, Fault> {
    let mut keys = Vec::new();
    for word in scope.written(&SESSION_TICKET_KEY)?.unwrap_or_default() {
        let path = compiler.conf_prefix.join(word.path());
        let content = files::opened(compiler.files.read(&path)).map_err(|error| {
            let cause = logs::Errno(&error);
            let text = format!("open() \"{}\" failed {cause}", path.display());
            Fault::at(&word, text)
        })?;
        let wrong = || {
            let text = format!("\"{}\" must be 48 or 80 bytes", path.display());
            Fault::at(&word, text)
        };
        keys.push(TicketKey::from_file(&content).ok_or_else(wrong)?);
    }
    Ok(keys)
}

/// How client certificates are verified; `None` if clients are not asked for a certificate.
fn clients(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
) -> Result<Option<ClientVerification>, Fault> {
    let mode = scope.get(&VERIFY_CLIENT)?;
    let of_clients = named(scope, &CLIENT_CERTIFICATE)?;
    let trusted = named(scope, &TRUSTED_CERTIFICATE)?;
    let wants_authority = mode.is_some_and(|mode| mode != Mode::OptionalNoCa);
    if wants_authority && of_clients.is_none() && trusted.is_none() {
        return Err(Fault::new(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
        ));
    }
    let load = |word: Option<Word>| match word {
        Some(word) => files::authorities(compiler, &word, |file| {
            pem::authorities(file, TrustedFor::Clients)
        }),
        None => Ok(Vec::new()),
    };
    // As in nginx, `ssl_client_certificate` is read only if clients are asked for a certificate,
    // and `ssl_trusted_certificate` always.
    let told = load(of_clients.filter(|_| mode.is_some()))?;
    let others = load(trusted)?;
    let revoked = match named(scope, &CRL)? {
        Some(word) => files::revocation_lists(compiler, &word)?,
        None => Vec::new(),
    };
    let Some(mode) = mode else {
        return Ok(None);
    };
    let depth = usize::try_from(scope.get(&VERIFY_DEPTH)?).unwrap_or(usize::MAX);
    let clients = ClientVerification::new(mode, depth, told, others, &revoked);
    let clients = clients.map_err(|error| {
        Fault::new(format!(
            "SSL_CTX_load_verify_locations() failed (SSL: {error})"
        ))
    })?;
    Ok(Some(clients))
}

/// How the OCSP responses about a certificate are fetched; otherwise the reason, in nginx's words,
/// why no responder can be asked.
fn fetched_staple(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    certificate: &Word,
    certified: Arc<CertifiedKey>,
    slot: &Arc<Slot>,
) -> Result<Result<Stapling, String>, Fault> {
    let name = files::shown(compiler, certificate);
    let ignored = |why: &str| Ok(Err(why.to_owned()));
    let trusted = match named(scope, &TRUSTED_CERTIFICATE)? {
        Some(word) => files::authorities(compiler, &word, pem::certificates)?,
        None => Vec::new(),
    };
    let verifies = scope.get(&STAPLING_VERIFY)?;
    let subject = message::subject(&certified.cert, &trusted, verifies);
    let asked = subject.and_then(|subject| Some((subject.request()?, subject)));
    let Some((request, subject)) = asked else {
        return ignored("issuer certificate not found for");
    };
    let named = certified.cert.first().and_then(message::responder);
    let url = match scope.written(&STAPLING_RESPONDER)? {
        Some(word) => Some(word.text().into_owned()),
        None => named,
    };
    let Some(url) = url else {
        return ignored("no OCSP responder URL in the");
    };
    let resolving = compiler.feature::<Resolving>(scope)?;
    // Without a resolver, the host could not be resolved later.
    let looked_up_now = (!resolving.is_possible()).then_some(compiler.files);
    let responder = match Responder::new(&url, looked_up_now) {
        Ok(responder) => responder,
        Err(error) => {
            let why = match error {
                BadUrl::Prefix => "invalid URL prefix",
                BadUrl::Host(why) => why,
            };
            return ignored(&format!("{why} in OCSP responder \"{url}\" in the"));
        }
    };
    Ok(Ok(Stapling {
        subject,
        request,
        responder,
        resolving,
        name,
        slot: Arc::clone(slot),
        certified,
        times: Times::default(),
    }))
}

/// Maximum size of a record with its header, in bytes, within the limits of TLS.
fn fragment_size(buffer_size: u64) -> usize {
    const HEADER: usize = 5;
    usize::try_from(buffer_size)
        .unwrap_or(usize::MAX)
        .clamp(512, 16 * 1024)
        + HEADER
}

/// The first argument of every line.
fn words(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    let lines = setter.lines().iter();
    Ok(lines.map(|line| line.argument(0).clone()).collect())
}

fn word(setter: &Setter<'_>) -> Result<Word, Fault> {
    setter.word().cloned()
}

/// The protocol names of `ssl_alpn`.
fn alpn(setter: &Setter<'_>) -> Result<Vec<Vec<u8>>, Fault> {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    let name = |word: &Word| {
        let is_short = word.bytes.len() <= usize::from(u8::MAX);
        let name = is_short.then(|| word.bytes.to_vec());
        let fault = || {
            Fault::at(
                word,
                format!("\"{}\" directive protocol too long", setter.name()),
            )
        };
        name.ok_or_else(fault)
    };
    words.map(name).collect()
}

fn session_cache(setter: &Setter<'_>) -> Result<Caches, Fault> {
    let mut caches = Caches::default();
    let mut is_off = false;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let text = word.text();
        let invalid = || Fault::at(word, format!("invalid session cache \"{text}\""));
        match &*text {
            "off" | "none" => is_off = true,
            "builtin" => {
                caches.builtin = Some(BUILTIN_SESSIONS);
                is_off = false;
            }
            text => {
                if let Some(count) = text.strip_prefix("builtin:") {
                    caches.builtin = Some(count.parse().map_err(|_| invalid())?);
                    is_off = false;
                    continue;
                }
                let shared = text.strip_prefix("shared:").ok_or_else(invalid)?;
                let (name, size) = shared.split_once(':').ok_or_else(invalid)?;
                let size = parse::size_text(size).filter(|_| !name.is_empty());
                let size = size.ok_or_else(invalid)?;
                if size < framework::zone::SIZE_MIN {
                    let message = format!("session cache \"{text}\" is too small");
                    return Err(Fault::at(word, message));
                }
                caches.shared = Some((name.to_owned(), size));
            }
        }
    }
    // `off` and `none` override `shared`, before and after; a later `builtin` overrides them.
    Ok(if is_off { Caches::default() } else { caches })
}

/// The versions of `ssl_protocols` and its variants.
///
/// # Errors
/// For an unknown name, and if no version remains.
pub fn protocols(setter: &Setter<'_>) -> Result<Vec<&'static SupportedProtocolVersion>, Fault> {
    let mut versions = Vec::new();
    let mut missing: Vec<String> = Vec::new();
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let version = match &*word.bytes.to_ascii_lowercase() {
            b"tlsv1.2" => &TLS12,
            b"tlsv1.3" => &TLS13,
            b"sslv2" | b"sslv3" | b"tlsv1" | b"tlsv1.1" => {
                let text = word.text();
                if missing
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(&text))
                {
                    setter.warn(word, format!("duplicate value \"{text}\""));
                } else {
                    missing.push(text.into_owned());
                }
                continue;
            }
            _ => {
                let text = format!("invalid value \"{}\"", word.text());
                return Err(Fault::at(word, text));
            }
        };
        if versions.contains(&version) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        } else {
            versions.push(version);
        }
    }
    let chosen = SelectedSuites {
        found: versions,
        missing,
        refused: None,
    };
    let word = setter.word()?;
    if chosen.found.is_empty() {
        let text = no_supported_name(&setter.name(), &chosen.missing.join(", "));
        return Err(Fault::at(word, text));
    }
    warn_of_missing(setter, word, &chosen);
    Ok(chosen.found)
}

/// Parses a cipher list such as `ssl_ciphers`, with warnings about names that are not supported.
///
/// # Errors
/// If the list cannot be parsed.
pub fn ciphers(setter: &Setter<'_>) -> Result<SelectedSuites<SupportedCipherSuite>, Fault> {
    let word = setter.word()?;
    let chosen = suites::ciphers(&word.text());
    warn_of_missing(setter, word, &chosen);
    Ok(chosen)
}

fn curves(setter: &Setter<'_>) -> Result<SelectedSuites<&'static dyn SupportedKxGroup>, Fault> {
    let word = setter.word()?;
    let chosen = match &*word.bytes {
        b"auto" => suites::groups("DEFAULT"),
        _ => suites::groups(&word.text()),
    };
    warn_of_missing(setter, word, &chosen);
    Ok(chosen)
}

/// Warns about names in a list that Tidegate does not support, if any suites remain.
pub(crate) fn warn_of_missing<T>(setter: &Setter<'_>, word: &Word, chosen: &SelectedSuites<T>) {
    if !chosen.found.is_empty() && !chosen.missing.is_empty() && chosen.refused.is_none() {
        let (name, missing) = (setter.name(), chosen.missing.join(", "));
        let text = format!("\"{name}\": not supported here, skipped: {missing}");
        setter.warn(word, text);
    }
}

/// The OpenSSL function that nginx's errors about cipher lists name.
pub const SET_CIPHERS: &str = "SSL_CTX_set_cipher_list";

/// The supported part of a list, for a scope that uses the list. As in nginx, a list without a
/// supported name, and one that OpenSSL refuses, is an error only if the list is used. `call` is
/// the OpenSSL function for the error text.
///
/// # Errors
/// If no supported name remains, and if OpenSSL refuses the list.
pub fn remaining<T>(
    scope: ScopeRef<'_>,
    setting: &Setting<SelectedSuites<T>>,
    call: &str,
) -> Result<Vec<T>, Fault> {
    let chosen = scope.get(setting)?;
    if !chosen.found.is_empty() && chosen.refused.is_none() {
        return Ok(chosen.found);
    }
    let lines = scope.lines_in_force(&setting.spec);
    let word = lines.first().map(|(_, line)| line.argument(0));
    let message = match (&chosen.refused, word) {
        (Some(reason), Some(word)) => {
            let reason = match reason.as_str() {
                "" => String::new(),
                reason => format!(" (SSL: {reason})"),
            };
            format!("{call}(\"{}\") failed{reason}", word.text())
        }
        _ => no_supported_name(setting.spec.name(), &chosen.missing.join(", ")),
    };
    let fault = Fault::new(message);
    Err(match word {
        Some(word) => fault.or_at(word.position),
        None => fault,
    })
}

/// The error about a list without any supported name.
pub(crate) fn no_supported_name(name: &str, missing: &str) -> String {
    format!("nothing of what \"{name}\" names is supported: {missing}")
}
