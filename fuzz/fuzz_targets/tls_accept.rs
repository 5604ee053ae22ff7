//! The way of a client to a port for TLS as a whole: the server's own code in the simulation, from
//! its first byte through our look at the ClientHello, rustls's handshake and the first request.
//! Whatever a client sends, in whatever pieces, nothing panics; the server answers in records, and
//! ends the connection.
//!
//! The first byte of an input says what the client is. One kind sends the rest of the input as it
//! is: seeds are what clients said (TLS 1.2 and 1.3, resumption, early data), each behind the byte
//! 0 and one for the pieces. The other kind speaks TLS by rustls, and the rest of the input changes
//! what it says: bytes on the wire, and messages before they are sealed, so that the second flight
//! and what follows it come with good keys and bad content.
#![no_main]

use std::cell::RefCell;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use framework::counters::Counters;
use bytes::Bytes;
use conf::{Recording, RecordedFiles};
use engine::net::{Address, Stream};
use engine::select::{Either, either};
use engine::sim::{self, Faults};
use libfuzzer_sys::fuzz_target;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::cipher::{
    AeadKey, Iv, KeyBlockShape, MessageDecrypter, MessageEncrypter, OutboundOpaqueMessage,
    OutboundPlainMessage, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    CipherSuiteCommon, ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, DigitallySignedStruct,
    Error, SignatureScheme, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use transport::listen::ListenerId;
use logs::Destination;
use server::features;
use framework::compile::Environment;
use framework::generation::Generation;
use server::compile;

const PORTS: [&str; 3] = ["10.0.0.1:443", "10.0.0.1:444", "10.0.0.1:445"];

const CONFIGURATION: &str = "error_log /dev/null info; events {} http { access_log off;
    ssl_certificate /ecdsa.crt; ssl_certificate_key /ecdsa.key; client_header_timeout 5s; keepalive_timeout 5s;
    log_format all '$ssl_protocol $ssl_cipher $ssl_curves $ssl_ciphers $ssl_server_name $ssl_client_s_dn $ssl_session_id';
    server { listen 10.0.0.1:443 ssl; server_name localhost *.example; access_log /dev/null all;
             location / { return 200 served; } }
    server { listen 10.0.0.1:444 ssl; ssl_certificate /rsa.crt; ssl_certificate_key /rsa.key; ssl_session_tickets off;
             ssl_session_cache shared:a:1m; ssl_verify_client optional; ssl_client_certificate /ca.crt;
             ssl_ecdh_curve secp384r1; location / { return 200 served; } }
    server { listen 10.0.0.1:445 ssl; ssl_early_data on; ssl_certificate_compression on;
             location / { return 200 served; } } }";

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// How long the server may take to come to an end: longer than its time limits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most connections of one input.
const CONNECTIONS_MAX: usize = 3;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../../tests/tls/", $name)).as_slice()
    };
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind & 1 {
        0 => run(|ports| send_raw(ports, usize::from(kind >> 1), rest)),
        _ => run(|ports| speak(ports, *kind >> 1, rest)),
    }
});

/// Runs a client beside the server, and waits for the server to have done with it.
fn run<F: Future<Output = ()>>(client: impl FnOnce(Vec<Address>) -> F) {
    let (generation, ids) = generation();
    let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default())
        .expect("one runtime at a time");
    runtime.block_on(async {
        let counters = Arc::new(Counters::default());
        let worker = server::doors::worker(Arc::clone(generation), 64, Arc::clone(&counters));
        let mut sockets = Vec::new();
        let mut addresses = Vec::new();
        for (id, port) in ids.iter().zip(PORTS) {
            let address = Address::Inet(port.parse().expect("an address"));
            let (socket, address) = sim::listen(address).expect("free");
            sockets.push(((id.clone(), 0), socket));
            addresses.push(address);
        }
        worker.listen(sockets);
        client(addresses).await;
        worker.quit();
        let ended = either(worker.end(), engine::sleep(PATIENCE)).await;
        assert!(matches!(ended, Either::First(_)), "a connection is left");
        assert_eq!(counters.totals().panics, 0);
    });
}

fn generation() -> &'static (Arc<Generation>, Vec<ListenerId>) {
    static GENERATION: OnceLock<(Arc<Generation>, Vec<ListenerId>)> = OnceLock::new();
    GENERATION.get_or_init(|| {
        let path = Path::new("/nginx.conf");
        let texts: [(&str, &[u8]); 6] = [
            ("/nginx.conf", CONFIGURATION.as_bytes()),
            ("/ecdsa.crt", file!("ecdsa.crt")),
            ("/ecdsa.key", file!("ecdsa.key")),
            ("/rsa.crt", file!("rsa.crt")),
            ("/rsa.key", file!("rsa.key")),
            ("/ca.crt", file!("ca.crt")),
        ];
        let files = RecordedFiles::new(Recording {
            files: texts
                .map(|(path, text)| (path.into(), text.to_vec()))
                .into(),
            ..Recording::default()
        });
        let root = Path::new("/");
        let loaded = conf::load(path, root, &[], features::registry(&[]), &files);
        assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
        let environment = Environment {
            prefix: root,
            conf_prefix: root,
            files: &files,
            privileged: false,
        };
        let compiled = compile(&loaded.tree, &environment, Destination::Stderr).expect("compiles");
        for log in &compiled.logs {
            log.install(log.open().expect("opens"));
        }
        let ids = compiled.bindings.iter().map(|binding| binding.id.clone());
        let mut ids: Vec<ListenerId> = ids.collect();
        ids.sort_by_key(|id| format!("{id:?}"));
        (Arc::new(compiled.generation), ids)
    })
}

async fn connect(address: &Address) -> Stream {
    let deadline = engine::now() + PATIENCE;
    engine::net::connect(address, None, Some(deadline))
        .await
        .expect("the server listens")
}

/// Sends these bytes in pieces of a size that the first of them says, and looks at the answer.
async fn send_raw(ports: Vec<Address>, port: usize, input: &[u8]) {
    let Some((size, bytes)) = input.split_first() else {
        return;
    };
    let stream = connect(&ports[port % ports.len()]).await;
    let pieces = match size {
        0 => bytes.chunks(usize::MAX),
        size => bytes.chunks(usize::from(*size) * usize::from(*size)),
    };
    for piece in pieces {
        stream.push(Bytes::copy_from_slice(piece));
        stream.start_send();
        engine::sleep(Duration::from_millis(1)).await;
    }
    stream.shutdown_write();
    let mut answer = Vec::new();
    while let Ok(bytes) = stream.recv(Some(engine::now() + PATIENCE)).await
        && !bytes.is_empty()
    {
        answer.extend_from_slice(&bytes);
    }
    if bytes.first().is_some_and(|first| *first == 22) {
        assert_records(&answer);
    }
}

/// Whether these are whole records of known types.
fn assert_records(mut rest: &[u8]) {
    while !rest.is_empty() {
        let header: &[u8; 5] = rest.first_chunk().expect("a whole header");
        assert!((20..=23).contains(&header[0]) && header[1] == 3, "{rest:?}");
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        rest = rest.get(5 + length..).expect("a whole record");
    }
}

/// What an input changes of what is said.
#[derive(Clone, Copy)]
struct Change {
    /// Whether a message is changed before it is sealed, and not its bytes on the wire.
    inside: bool,
    /// What is done.
    how: u8,
    /// Which message, or which piece on the wire.
    message: u8,
    at: usize,
    with: u8,
}

impl Change {
    fn apply(self, content: &mut Vec<u8>) {
        if content.is_empty() {
            return;
        }
        let at = self.at % content.len();
        match self.how % 5 {
            0 => content[at] ^= self.with,
            1 => content[at] = self.with,
            2 => content.truncate(at),
            3 => content.insert(at, self.with),
            _ => {
                let copy = content[at..].to_vec();
                content.extend(copy);
            }
        }
    }
}

thread_local! {
    /// Changes of the input that is being tried.
    static CHANGES: RefCell<Vec<Change>> = const { RefCell::new(Vec::new()) };
}

/// Applies to a message, or a piece on the wire, what is to be changed of it. Whether anything was.
fn change(inside: bool, message: u8, content: &mut Vec<u8>) {
    CHANGES.with_borrow(|changes| {
        for change in changes {
            if change.inside == inside && change.message == message {
                change.apply(content);
            }
        }
    });
}

/// Speaks TLS, changed as the input says. Without changes everything must go well.
async fn speak(ports: Vec<Address>, options: u8, input: &[u8]) {
    let changes: Vec<Change> = input
        .chunks_exact(5)
        .map(|bytes| Change {
            inside: bytes[0] & 1 == 1,
            how: bytes[0] >> 1,
            message: bytes[1],
            at: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            with: bytes[4],
        })
        .collect();
    let is_plain = changes.is_empty();
    CHANGES.set(Vec::new());
    let config = client(options);
    let port = &ports[usize::from(options >> 3) % ports.len()];
    for round in 0..CONNECTIONS_MAX {
        let is_last = round + 1 == CONNECTIONS_MAX;
        if is_last {
            CHANGES.set(changes.clone());
        }
        let served = talk(port, &config).await;
        assert!(served || (is_last && !is_plain), "a client is not served");
    }
    CHANGES.set(Vec::new());
}

/// One connection with one request; whether it was answered.
async fn talk(port: &Address, config: &Arc<ClientConfig>) -> bool {
    let name = ServerName::try_from("localhost").expect("a name");
    let Ok(mut tls) = ClientConnection::new(Arc::clone(config), name) else {
        return false;
    };
    let stream = Rc::new(connect(port).await);
    let mut pieces = 0;
    if let Some(mut early) = tls.early_data() {
        let _ = std::io::Write::write_all(&mut early, REQUEST);
    }
    let mut asked = tls.is_early_data_accepted();
    let mut answer = Vec::new();
    loop {
        if !tls.is_handshaking() && !asked {
            asked = true;
            if !tls.is_early_data_accepted() {
                let _ = std::io::Write::write_all(&mut tls.writer(), REQUEST);
            }
        }
        let mut records = Vec::new();
        while tls.wants_write() {
            if tls.write_tls(&mut records).is_err() {
                break;
            }
        }
        if !records.is_empty() {
            change(false, pieces, &mut records);
            pieces = pieces.saturating_add(1);
            stream.push(Bytes::from(records));
            stream.start_send();
        }
        let bytes = match stream.recv(Some(engine::now() + PATIENCE)).await {
            Ok(bytes) => bytes,
            // Early data is answered, and the connection closed, before the client has said all:
            // the rest of that may come back as a reset, which takes what the client has not read
            // yet with it.
            Err(_) => return tls.is_early_data_accepted(),
        };
        if bytes.is_empty() {
            // A certificate that is not yet valid, by the simulation's clock, gets an error page.
            return answer.starts_with(b"HTTP/1.1 ");
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            if !matches!(tls.read_tls(&mut rest), Ok(1..)) {
                break;
            }
            if tls.process_new_packets().is_err() {
                return false;
            }
            let _ = tls.reader().read_to_end(&mut answer);
        }
    }
}

/// A client's settings, made once so that its sessions go on.
fn client(options: u8) -> Arc<ClientConfig> {
    static CLIENTS: [OnceLock<Arc<ClientConfig>>; 8] = [const { OnceLock::new() }; 8];
    let options = options & 7;
    Arc::clone(CLIENTS[usize::from(options)].get_or_init(|| {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: suites(),
            ..aws_lc_rs::default_provider()
        });
        let versions = match options & 1 {
            0 => [&rustls::version::TLS13],
            _ => [&rustls::version::TLS12],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustEverybody(provider)));
        let mut config = match options & 2 {
            0 => builder.with_no_client_auth(),
            _ => {
                let chain = CertificateDer::pem_slice_iter(file!("client.crt"));
                let key = PrivateKeyDer::from_pem_slice(file!("client.key")).expect("a key");
                let chain = chain.map(|one| one.expect("a certificate")).collect();
                builder.with_client_auth_cert(chain, key).expect("fits")
            }
        };
        config.enable_early_data = true;
        if options & 4 != 0 {
            config.resumption = rustls::client::Resumption::disabled();
        }
        Arc::new(config)
    }))
}

/// All suites, with an encryption that changes what goes through it.
fn suites() -> Vec<SupportedCipherSuite> {
    let wrap = |suite: &SupportedCipherSuite| match *suite {
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: Box::leak(Box::new(Changing13(suite.aead_alg))),
                quic: None,
            })))
        }
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                kx: suite.kx,
                sign: suite.sign,
                prf_provider: suite.prf_provider,
                aead_alg: Box::leak(Box::new(Changing12(suite.aead_alg))),
            })))
        }
    };
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().map(wrap).collect()
}

fn common(suite: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: suite.suite,
        hash_provider: suite.hash_provider,
        confidentiality_limit: suite.confidentiality_limit,
    }
}

struct Changing13(&'static dyn Tls13AeadAlgorithm);
struct Changing12(&'static dyn Tls12AeadAlgorithm);

impl Tls13AeadAlgorithm for Changing13 {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Changer(self.0.encrypter(key, iv)))
    }
    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }
    fn key_len(&self) -> usize {
        self.0.key_len()
    }
    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }
}

impl Tls12AeadAlgorithm for Changing12 {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Changer(self.0.encrypter(key, iv, extra)))
    }
    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }
    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }
    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }
}

/// Changes messages before it seals them. The last byte of what may be changed is the message's
/// type.
struct Changer(Box<dyn MessageEncrypter>);

impl MessageEncrypter for Changer {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        number: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let mut content = message.payload.to_vec();
        content.push(u8::from(message.typ));
        change(true, number.min(255) as u8, &mut content);
        let kind = content.pop().unwrap_or_default();
        content.truncate(1 << 14);
        let changed = OutboundPlainMessage {
            typ: ContentType::from(kind),
            version: message.version,
            payload: content.as_slice().into(),
        };
        self.0.encrypt(changed, number)
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        self.0.encrypted_payload_len(length)
    }
}

/// Takes any certificate.
#[derive(Debug)]
struct TrustEverybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustEverybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
