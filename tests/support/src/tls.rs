//! A TLS client that trusts every server and tells what was agreed upon.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::CertificateCompressionAlgorithm;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, NamedGroup,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};

use crate::{PATIENCE, Response};

/// The first certificate of a PEM file.
pub fn certificate(path: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// Waits until something holds that needs no more than time.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a client offers.
pub struct Client {
    name: String,
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
    rsa_only: bool,
    protocols: Vec<Vec<u8>>,
    identity: Option<String>,
    made: Option<Arc<ClientConfig>>,
    stapled: Arc<AtomicUsize>,
    compression: Option<CertificateCompressionAlgorithm>,
    compressed: Arc<AtomicUsize>,
}

impl Default for Client {
    fn default() -> Client {
        Client {
            name: "localhost".to_string(),
            versions: rustls::ALL_VERSIONS.to_vec(),
            suites: aws_lc_rs::DEFAULT_CIPHER_SUITES.to_vec(),
            rsa_only: false,
            protocols: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            identity: None,
            made: None,
            stapled: Arc::default(),
            compression: None,
            compressed: Arc::default(),
        }
    }
}

impl Client {
    /// One that asks for localhost and speaks all that rustls speaks.
    pub fn new() -> Client {
        Client::default()
    }

    /// The host that it asks for.
    pub fn name(mut self, name: &str) -> Client {
        self.name = name.to_string();
        self
    }

    /// The one version that it speaks.
    pub fn version(mut self, version: &'static SupportedProtocolVersion) -> Client {
        self.versions = vec![version];
        self
    }

    /// The ciphers that it offers, best first.
    pub fn offering(mut self, suites: &[SupportedCipherSuite]) -> Client {
        self.suites = suites.to_vec();
        self
    }

    /// The one protocol that it offers by ALPN.
    pub fn protocol(mut self, protocol: &str) -> Client {
        self.protocols = vec![protocol.into()];
        self
    }

    /// It knows no ECDSA.
    pub fn rsa_only(mut self) -> Client {
        self.rsa_only = true;
        self
    }

    /// It has a certificate: NAME.crt and NAME.key.
    pub fn identity(mut self, path: &str) -> Client {
        self.identity = Some(path.to_string());
        self
    }

    /// It reads certificates that are compressed in this way.
    pub fn reading_compressed(mut self, way: CertificateCompressionAlgorithm) -> Client {
        self.compression = Some(way);
        self
    }

    /// How many compressed certificates it has read.
    pub fn compressed(&self) -> usize {
        self.compressed.load(Ordering::Relaxed)
    }

    /// From now on its connections share sessions.
    pub fn keeping_sessions(mut self) -> Client {
        let mut config = self.config();
        config.enable_early_data = true;
        self.made = Some(Arc::new(config));
        self
    }

    /// What rustls needs to know of it.
    pub fn config(&self) -> ClientConfig {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: self.suites.clone(),
            ..aws_lc_rs::default_provider()
        });
        let trust = Arc::new(TrustEverybody {
            provider: Arc::clone(&provider),
            rsa_only: self.rsa_only,
            stapled: Arc::clone(&self.stapled),
        });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(trust);
        let mut config = match &self.identity {
            Some(path) => {
                let key = PrivateKeyDer::from_pem_file(format!("{path}.key")).unwrap();
                let chain = CertificateDer::pem_file_iter(format!("{path}.crt")).unwrap();
                let chain = chain.map(Result::unwrap).collect();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        if let Some(algorithm) = self.compression {
            // rustls wants one that lives as long as the program.
            config.cert_decompressors = vec![Box::leak(Box::new(Inflate {
                algorithm,
                count: Arc::clone(&self.compressed),
            }))];
        }
        config.alpn_protocols = self.protocols.clone();
        config
    }

    /// How long the response about the certificate was that the server sent last, in bytes.
    pub fn stapled(&self) -> usize {
        self.stapled.load(Ordering::Relaxed)
    }

    /// A request with the first bytes of a connection, if the last one lets it; else after the
    /// handshake.
    pub fn get_early(&self, port: u16, path: &str) -> Result<Response, String> {
        let mut connection = self.open(port)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let early = connection.tls.early_data().map(|mut early| {
            early.write_all(request.as_bytes()).unwrap();
        });
        while connection.tls.is_handshaking() {
            connection.turn()?;
        }
        if early.is_none() {
            connection.send(request.as_bytes());
        }
        connection.receive()
    }

    /// What it says first.
    pub fn hello(&self) -> Vec<u8> {
        let name = ServerName::try_from(self.name.clone()).unwrap();
        let mut tls = ClientConnection::new(Arc::new(self.config()), name).unwrap();
        let mut hello = Vec::new();
        tls.write_tls(&mut hello).unwrap();
        hello
    }

    /// Shakes hands.
    pub fn connect(&self, port: u16) -> Result<Connection, String> {
        let mut connection = self.open(port)?;
        while connection.tls.is_handshaking() {
            connection.turn()?;
        }
        Ok(connection)
    }

    fn open(&self, port: u16) -> Result<Connection, String> {
        let config = self.made.clone().unwrap_or_else(|| Arc::new(self.config()));
        let name = ServerName::try_from(self.name.clone()).unwrap();
        let tls = ClientConnection::new(config, name).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Ok(Connection {
            tls,
            stream,
            unread: Vec::new(),
            record_rest: 0,
            header: Vec::new(),
            longest_record: 0,
            records: 0,
        })
    }
}

/// A connection whose handshake has ended.
pub struct Connection {
    tls: ClientConnection,
    stream: TcpStream,
    unread: Vec<u8>,
    /// Bytes of the current record that are still to come, and its header as far as it has come.
    record_rest: usize,
    header: Vec<u8>,
    longest_record: usize,
    records: usize,
}

impl Connection {
    /// What the server has shown.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.tls.peer_certificates().unwrap()[0]
            .clone()
            .into_owned()
    }

    /// The protocol that was agreed upon by ALPN.
    pub fn protocol(&self) -> Option<Vec<u8>> {
        self.tls.alpn_protocol().map(<[u8]>::to_vec)
    }

    /// The cipher suite.
    pub fn suite(&self) -> CipherSuite {
        self.tls.negotiated_cipher_suite().unwrap().suite()
    }

    /// How keys were exchanged.
    pub fn group(&self) -> NamedGroup {
        self.tls.negotiated_key_exchange_group().unwrap().name()
    }

    /// Whether it goes on with a session.
    pub fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// How many records have been received since the handshake.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The longest record received, with its header, in bytes.
    pub fn longest_record(&self) -> usize {
        self.longest_record
    }

    /// One request to localhost and its response.
    pub fn get(&mut self, path: &str) -> Result<Response, String> {
        self.get_from("localhost", path)
    }

    /// Sends a request, and does not wait for anything.
    pub fn ask(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    }

    /// One request to that host and its response.
    pub fn get_from(&mut self, host: &str, path: &str) -> Result<Response, String> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        self.receive()
    }

    /// One POST to localhost and its response.
    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<Response, String> {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        self.send(head.as_bytes());
        self.send(body);
        self.receive()
    }

    /// Sends these bytes, in one record if they fit.
    pub fn send(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
    }

    /// One response with a Content-Length.
    pub fn receive(&mut self) -> Result<Response, String> {
        let end = loop {
            let mut windows = self.unread.windows(4);
            if let Some(at) = windows.position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            self.turn()?;
        };
        let head: Vec<u8> = self.unread.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            self.turn()?;
        }
        Ok(Response {
            status: status.ok_or("no status")?,
            body: self.unread.drain(..length).collect(),
            head,
        })
    }

    /// Sends what is to be sent, and takes in what comes.
    fn turn(&mut self) -> Result<(), String> {
        while self.tls.wants_write() {
            self.tls
                .write_tls(&mut self.stream)
                .map_err(|error| error.to_string())?;
        }
        let mut buffer = [0; 16 * 1024];
        let count = match self.stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed the connection".to_string()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.measure(&buffer[..count]);
        let mut received = &buffer[..count];
        while !received.is_empty() {
            self.tls
                .read_tls(&mut received)
                .map_err(|error| error.to_string())?;
            self.tls
                .process_new_packets()
                .map_err(|error| format!("{error:?}"))?;
            // Its error only says that there is no more for now.
            let _ = self.tls.reader().read_to_end(&mut self.unread);
        }
        Ok(())
    }

    /// Follows the records in what has been received.
    fn measure(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.record_rest > 0 {
                self.record_rest -= 1;
                continue;
            }
            self.header.push(*byte);
            if let [_, _, _, high, low] = *self.header {
                self.record_rest = usize::from(u16::from_be_bytes([high, low]));
                if self.header[0] == 23 && !self.tls.is_handshaking() {
                    self.records += 1;
                    self.longest_record = self.longest_record.max(self.record_rest + 5);
                }
                self.header.clear();
            }
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            self.turn().map_err(io::Error::other)?;
        }
        let count = buffer.len().min(self.unread.len());
        buffer[..count].copy_from_slice(&self.unread[..count]);
        self.unread.drain(..count);
        Ok(count)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.tls.writer().write(bytes)?;
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.stream)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads certificates that are compressed by zlib, and counts them.
#[derive(Debug)]
struct Inflate {
    algorithm: CertificateCompressionAlgorithm,
    count: Arc<AtomicUsize>,
}

impl CertDecompressor for Inflate {
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut decoder = flate2::read::ZlibDecoder::new(input);
        decoder.read_exact(output).map_err(|_| DecompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.algorithm
    }
}

/// A client's trust in any certificate whose key is there.
pub fn trust_everybody(provider: &Arc<CryptoProvider>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(TrustEverybody {
        provider: Arc::clone(provider),
        rsa_only: false,
        stapled: Arc::default(),
    })
}

/// Takes any certificate, but checks that its key was there.
#[derive(Debug)]
struct TrustEverybody {
    provider: Arc<CryptoProvider>,
    rsa_only: bool,
    stapled: Arc<AtomicUsize>,
}

impl ServerCertVerifier for TrustEverybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        stapled: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.stapled.store(stapled.len(), Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let all = self
            .provider
            .signature_verification_algorithms
            .supported_schemes();
        let is_rsa = |scheme: &SignatureScheme| format!("{scheme:?}").starts_with("RSA");
        let wanted = |scheme: &SignatureScheme| !self.rsa_only || is_rsa(scheme);
        all.into_iter().filter(wanted).collect()
    }
}
