//! TLS for memcached clients: the settings of the command line (`-Z`), and the handshake.

use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use engine::Buffer;
use framework::counters::ThreadCounters;
use framework::generation::GenerationView;
use logs::{ErrorLog, Level, Subject};
use proto::tls::ClientHello;
use rustls::HandshakeKind;
use rustls::sign::CertifiedKey;
use store::Seconds;
use transport::Transport;
use transport::client::Client;
use transport::incoming::Incoming;
use transport::tls::certificates::Slot;
use transport::tls::dynamic::CertificateError;
use transport::tls::handshake::{self, HandshakeStart, ServerSelector};
use transport::tls::server::ServerTls;
use transport::tls::standalone::{self, StandaloneTls};
use transport::tls::verify::Mode;

use crate::cache::ThreadContext;
use crate::counts::Counter;

/// The options `-o ssl_…`.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// `ssl_chain_cert`: the file of the certificate with its chain.
    pub chain: PathBuf,
    /// `ssl_key`: the file of its key.
    pub key: PathBuf,
    /// `ssl_ca_cert`: the file of the authorities that client certificates are verified against.
    pub authorities: Option<PathBuf>,
    /// `ssl_verify_mode`: 0 to 3, as memcached numbers them.
    pub verify_mode: u8,
    /// `ssl_ciphers`: the cipher suites of TLS 1.2, in OpenSSL's notation.
    pub ciphers: Option<String>,
    /// `ssl_min_version`: 2 is TLS 1.2, 3 is TLS 1.3.
    pub min_version: u8,
    /// `ssl_session_cache`: whether clients may resume sessions.
    pub keeps_sessions: bool,
    /// `ssl_wbuf_size`, in bytes. Only reported in statistics: TLS records have their maximum
    /// length.
    pub write_buffer: usize,
}

/// The TLS settings of a server.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) server: Arc<ServerTls>,
    /// Whether client certificates are required or optional; `None` if none is requested.
    pub(crate) verifies: Option<Mode>,
    pub(crate) handshake_timeout: Duration,
}

impl ClientTls {
    /// Puts settings together; without `verifies` no client certificate is requested.
    #[must_use]
    pub fn new(
        server: Arc<ServerTls>,
        verifies: Option<Mode>,
        handshake_timeout: Duration,
    ) -> ClientTls {
        ClientTls {
            server,
            verifies,
            handshake_timeout,
        }
    }
}

/// TLS with a certificate and key that can be read again while the server runs.
pub struct TlsFiles {
    options: TlsOptions,
    slot: Arc<Slot>,
    /// For addresses without a prefix.
    usual: ClientTls,
    /// For addresses with the prefix `mtls:`.
    mutual: ClientTls,
    /// When the files were last read, by the cache's clock.
    read_at: AtomicU32,
}

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read or is not valid, by name.
    pub fn read(options: TlsOptions) -> Result<TlsFiles, String> {
        let slot = Arc::new(Slot::new(Some(certificate(&options)?)));
        let authorities = match &options.authorities {
            Some(path) => Some(content(path)?),
            None => None,
        };
        let server = |verifies: Option<Mode>| {
            let settings = StandaloneTls {
                ciphers: options.ciphers.clone(),
                with_tls12: options.min_version < 3,
                verifies,
                authorities: authorities.clone(),
                keeps_sessions: options.keeps_sessions,
            };
            let server = standalone::server(&settings, Arc::clone(&slot))?;
            Ok::<_, String>(ClientTls::new(
                Arc::new(server),
                verifies,
                HANDSHAKE_TIMEOUT,
            ))
        };
        Ok(TlsFiles {
            usual: server(match options.verify_mode {
                0 => None,
                1 | 3 => Some(Mode::Optional),
                _ => Some(Mode::Required),
            })?,
            mutual: server(Some(Mode::Required))?,
            slot,
            options,
            read_at: AtomicU32::new(0),
        })
    }

    /// The settings for a listening address; `is_mutual` if clients must show a certificate.
    #[must_use]
    pub fn of_address(&self, is_mutual: bool) -> ClientTls {
        if is_mutual {
            self.mutual.clone()
        } else {
            self.usual.clone()
        }
    }

    /// Whether clients may resume sessions.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.options.keeps_sessions
    }

    /// Reads certificate and key again, for all later handshakes.
    pub(crate) fn read_again(&self, now: Seconds) -> Result<(), String> {
        self.slot.set(Some(certificate(&self.options)?));
        self.read_at.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Seconds since certificate and key were last read.
    pub(crate) fn age(&self, now: Seconds) -> Seconds {
        now.saturating_sub(self.read_at.load(Ordering::Relaxed))
    }

    /// Reports the settings by memcached's names.
    pub(crate) fn tell(&self, mut tell: impl FnMut(&str, &str)) {
        let options = &self.options;
        let path = |path: &Path| path.display().to_string();
        let authorities = options.authorities.as_deref().map(path);
        tell("ssl_chain_cert", &path(&options.chain));
        tell("ssl_key", &path(&options.key));
        tell("ssl_verify_mode", &options.verify_mode.to_string());
        // OpenSSL's number for PEM.
        tell("ssl_keyformat", "1");
        tell("ssl_ciphers", options.ciphers.as_deref().unwrap_or("NULL"));
        tell("ssl_ca_cert", authorities.as_deref().unwrap_or("NULL"));
        tell("ssl_wbuf_size", &options.write_buffer.to_string());
        let keeps = if options.keeps_sessions { "yes" } else { "no" };
        tell("ssl_session_cache", keeps);
        tell("ssl_kernel_tls", "no");
        let version = match options.min_version {
            3 => "tlsv1.3",
            _ => "tlsv1.2",
        };
        tell("ssl_min_version", version);
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

fn content(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn certificate(options: &TlsOptions) -> Result<Arc<CertifiedKey>, String> {
    let (chain, key) = (content(&options.chain)?, content(&options.key)?);
    standalone::certificate(&chain, &key).map_err(|error| {
        let (chain, key) = (options.chain.display(), options.key.display());
        format!("the certificate of {chain} with the key of {key}: {error}")
    })
}

/// A client in its TLS handshake.
pub(crate) struct ShakingClient<'a> {
    pub(crate) client: &'a Client,
    pub(crate) transport: &'a Transport,
    pub(crate) tls: &'a ClientTls,
    pub(crate) counts: &'a ThreadCounters,
    pub(crate) generation: Rc<GenerationView>,
    pub(crate) error_log: Option<&'a Arc<ErrorLog>>,
}

impl ShakingClient<'_> {
    /// Performs the handshake. Returns whether the client is admitted.
    pub(crate) async fn do_handshake(&self, shared: &ThreadContext) -> bool {
        let HandshakeStart::Secure = handshake::accept(self, Buffer::empty()).await else {
            shared.counts.add(Counter::HandshakeErrors, 1);
            return false;
        };
        let Some(session) = self.transport.session() else {
            return false;
        };
        if let Some(wanted) = self.tls.verifies
            && let Err(refused) = session.verdict.get().admit(wanted)
        {
            logs::error!(self, Info, "{refused}");
            shared.counts.add(Counter::HandshakeErrors, 1);
            return false;
        }
        if session.with(|agreed| agreed.kind) != Some(HandshakeKind::Resumed) {
            shared.counts.add(Counter::TlsSessions, 1);
        }
        true
    }
}

impl Subject for ShakingClient<'_> {
    fn admits(&self, level: Level) -> bool {
        let log = self.error_log;
        log.is_some_and(|log| log.admits(level, self.subsystem()))
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        if let Some(log) = self.error_log {
            write(log);
        }
    }

    fn serial(&self) -> Option<u64> {
        Some(self.client.serial)
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let peer = self.client.peer(|| self.transport.peer());
        write!(out, ", client: {peer}, server: {}", self.client.listening())
    }
}

impl Incoming for ShakingClient<'_> {
    fn client(&self) -> &Client {
        self.client
    }

    fn transport(&self) -> &Transport {
        self.transport
    }

    fn counts(&self) -> &ThreadCounters {
        self.counts
    }

    fn generation(&self) -> Rc<GenerationView> {
        Rc::clone(&self.generation)
    }

    // Idle connections are not closed to make room for new ones, so the state is not recorded.
    fn set_idle(&self, _: bool) {}
}

impl ServerSelector for ShakingClient<'_> {
    type Incoming = Self;
    type Server = Arc<ServerTls>;

    const ONLY_TLS: bool = true;

    fn incoming(&self) -> &Self {
        self
    }

    fn default_server(&self, _: &GenerationView) -> Option<Arc<ServerTls>> {
        Some(Arc::clone(&self.tls.server))
    }

    fn server_named(&self, _: &GenerationView, _: &[u8]) -> Result<Option<Arc<ServerTls>>, String> {
        Ok(None)
    }

    fn tls(server: &Arc<ServerTls>) -> Option<&Arc<ServerTls>> {
        Some(server)
    }

    fn speaks_http2(&self, _: &GenerationView, _: &Arc<ServerTls>) -> bool {
        false
    }

    fn deadline(&self, _: &Arc<ServerTls>) -> Instant {
        engine::now() + self.tls.handshake_timeout
    }

    fn shows(&self, _: &GenerationView, _: &str) -> bool {
        false
    }

    async fn certificates(
        &self,
        _: &Rc<GenerationView>,
        _: &Arc<ServerTls>,
        _: &Arc<ServerTls>,
        _: &mut Option<Box<ClientHello>>,
    ) -> Result<Option<Vec<Arc<CertifiedKey>>>, CertificateError> {
        Ok(None)
    }

    fn agreed(&self) {}
}
