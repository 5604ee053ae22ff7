//! A session whose sending the kernel has taken over (`ssl_conf_command Options KTLS`).
//!
//! The kernel encrypts sent data, so that files are sent by sendfile(2) and never enter this
//! process. Received data is decrypted here, with rustls's algorithms; docs/decisions/engine.md
//! says why.
//!
//! rustls's connection ends with the hand-over; its remainder derives further keys
//! (`rustls::kernel`). This module counts the records per key, since rustls no longer sees the
//! records.
//!
//! Not here: when a session is handed over (`session.rs`), the kernel's calls
//! (`engine::kernel_tls`). RFC 8446 sections 4.6.3, 5 and 6; RFC 5246 section 6.

use std::collections::VecDeque;
use std::sync::OnceLock;

use bytes::Bytes;
use engine::Buffer;
use engine::kernel_tls::{Cipher, SealingKeys, Support, Version};
use engine::net::Segment;
use rustls::crypto::cipher::{InboundOpaqueMessage, InboundPlainMessage, MessageDecrypter};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, CipherSuite, ConnectionTrafficSecrets, ContentType, Error, InvalidMessage,
    PeerMisbehaved, ProtocolVersion, SupportedCipherSuite,
};

use crate::tls::agreed::HandshakeParameters;

/// Minimum size of a file, in bytes, for which a session is handed over. Below it, encryption in
/// this process is cheaper than giving the keys to the kernel.
pub const FILE_MIN: u64 = 64 * 1024;

/// Assumed minimum length of the records into which the kernel splits long segments, in bytes: half
/// of the maximum. Most records have the maximum length.
const RECORD_LEAST: u64 = 8 * 1024;

/// Maximum length of a record after its header, in bytes (RFC 5246 section 6.2.3).
const RECORD_MAX: usize = 16 * 1024 + 2048;

/// Length of a record header, in bytes: type, version, length.
const HEADER: usize = 5;

/// Limit of consecutive records without effect: empty ones, warnings, key updates.
const FRUITLESS_MAX: u8 = 32;

/// The alert for an orderly end: a warning, `close_notify`.
const CLOSE_NOTIFY: &[u8] = &[1, 0];

/// The `key_update` message, which does not request new keys from the client.
const KEY_UPDATE: &[u8] = &[24, 0, 0, 1, 0];

/// What the kernel supports, determined at the first call.
///
/// # Errors
/// Why the kernel supports nothing.
pub fn support() -> Result<&'static Support, &'static str> {
    static SUPPORT: OnceLock<Result<Support, String>> = OnceLock::new();
    let support = SUPPORT.get_or_init(engine::kernel_tls::probe);
    support.as_ref().map_err(String::as_str)
}

/// A TLS session for which the kernel encrypts sent data: see the module's description.
pub struct KernelSession {
    /// The remainder of rustls's connection, which derives new keys.
    keys: KernelConnection<ServerConnectionData>,
    agreed: HandshakeParameters<'static>,
    opener: Opener,
    /// Maximum number of records per key.
    limit: u64,
    /// Number of records that the current key may still encrypt.
    left: u64,
    /// Whether the sending key can be replaced.
    replaces_keys: bool,
}

/// The result of processing received bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes consumed.
    pub used: usize,
    /// Whether the client has sent `close_notify`.
    pub ended: bool,
}

impl KernelSession {
    /// Whether the kernel supports the negotiated parameters, and can either replace keys or send a
    /// file of `length` bytes with a single key.
    pub fn can_send(tls: &UnbufferedServerConnection, length: u64) -> bool {
        let (Ok(support), Some(suite)) = (support(), tls.negotiated_cipher_suite()) else {
            return false;
        };
        cipher(suite).is_some_and(|cipher| support.seals(version(suite), cipher))
            && (replaces_keys(suite) || records(length) <= limit(suite))
    }

    /// Takes over the session of a completed handshake. `push` must queue segments behind
    /// everything that rustls has encrypted.
    ///
    /// # Errors
    /// rustls's error. The session is lost then.
    pub fn take_over(
        tls: UnbufferedServerConnection,
        push: &mut dyn FnMut(Segment),
    ) -> Result<KernelSession, Error> {
        let agreed = HandshakeParameters::of(&tls).into_owned();
        let (secrets, keys) = tls.dangerous_into_kernel_connection()?;
        let suite = keys.negotiated_cipher_suite();
        let (sequence, sealing) = secrets.tx;
        push(Segment::Keys(
            sealing_keys(suite, &sealing, sequence)?.into(),
        ));
        let (next, opening) = secrets.rx;
        Ok(KernelSession {
            keys,
            agreed,
            opener: Opener::new(suite, opening, next)?,
            limit: limit(suite),
            left: limit(suite).saturating_sub(sequence),
            replaces_keys: replaces_keys(suite),
        })
    }

    /// The negotiated parameters.
    pub fn agreed(&self) -> &HandshakeParameters<'static> {
        &self.agreed
    }

    /// Pushes a segment for the kernel to encrypt, with new keys when the current one has reached
    /// its limit.
    ///
    /// # Errors
    /// `EncryptError` if the key has reached its limit and cannot be replaced.
    pub fn send(
        &mut self,
        mut segment: Segment,
        push: &mut dyn FnMut(Segment),
    ) -> Result<(), Error> {
        loop {
            let needed = records(segment.len());
            match &mut segment {
                Segment::File {
                    file,
                    offset,
                    length,
                } if needed > self.left => {
                    let part = self.left.saturating_sub(1).saturating_mul(RECORD_LEAST);
                    push(Segment::File {
                        file: file.clone(),
                        offset: *offset,
                        length: part,
                    });
                    *offset += part;
                    *length -= part;
                }
                // Segments in memory are far smaller than the limit of a new key.
                _ if needed > self.left && self.left < self.limit => {}
                _ => {
                    self.left = self.left.saturating_sub(needed);
                    push(segment);
                    return Ok(());
                }
            }
            self.renew_sealing(push)?;
        }
    }

    /// Sends `close_notify`.
    pub fn close(push: &mut dyn FnMut(Segment)) {
        push(record(ContentType::Alert, Bytes::from_static(CLOSE_NOTIFY)));
    }

    /// Sends the alert that tells the client why the session ends.
    pub fn send_alert(error: &Error, push: &mut dyn FnMut(Segment)) {
        let description = match error {
            Error::DecryptError => AlertDescription::BadRecordMac,
            Error::InvalidMessage(InvalidMessage::MessageTooLarge)
            | Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
            Error::InvalidMessage(_) => AlertDescription::DecodeError,
            Error::General(_) | Error::EncryptError => AlertDescription::InternalError,
            Error::AlertReceived(_) => return,
            _ => AlertDescription::UnexpectedMessage,
        };
        const FATAL: u8 = 2;
        let alert = vec![FATAL, description.into()];
        push(record(ContentType::Alert, alert.into()));
    }

    /// Decrypts the complete records at the front of `incoming`, in place. Replies are pushed.
    ///
    /// # Errors
    /// rustls's error for bytes that are not TLS or not allowed. Nothing more can be received then.
    pub fn receive(
        &mut self,
        incoming: &mut [u8],
        received: &mut VecDeque<Buffer>,
        push: &mut dyn FnMut(Segment),
    ) -> Result<Progress, Error> {
        let mut progress = Progress::default();
        while !progress.ended {
            let rest = incoming.get_mut(progress.used..).unwrap_or_default();
            let Some((length, message)) = self.opener.open(rest)? else {
                break;
            };
            progress.used += length;
            match self.opener.read(&message)? {
                Record::Data => received.push_back(Buffer::copy_of(message.payload)),
                Record::Nothing => {}
                Record::End => progress.ended = true,
                Record::NewKeys {
                    requests_key_update,
                } => {
                    let (next, secrets) = self.keys.update_rx_secret()?;
                    self.opener.renew(secrets, next)?;
                    if requests_key_update {
                        self.renew_sealing(push)?;
                    }
                }
            }
        }
        Ok(progress)
    }

    /// Sends `key_update`, and encrypts with new keys from then on.
    fn renew_sealing(&mut self, push: &mut dyn FnMut(Segment)) -> Result<(), Error> {
        if !self.replaces_keys {
            let text =
                "the kernel cannot replace the keys of a connection (Linux 6.14 can, with TLS 1.3)";
            return Err(Error::General(text.into()));
        }
        push(record(
            ContentType::Handshake,
            Bytes::from_static(KEY_UPDATE),
        ));
        let (sequence, secrets) = self.keys.update_tx_secret()?;
        let keys = sealing_keys(self.keys.negotiated_cipher_suite(), &secrets, sequence)?;
        push(Segment::Keys(keys.into()));
        self.left = self.limit;
        Ok(())
    }
}

/// Decrypts the records of one client.
struct Opener {
    suite: SupportedCipherSuite,
    decrypter: Box<dyn MessageDecrypter>,
    /// Sequence number of the next record.
    next: u64,
    /// Number of consecutive records without effect.
    empty_records: u8,
}

/// The meaning of a record.
#[derive(Debug, PartialEq, Eq)]
enum Record {
    /// Application data, for the receiver.
    Data,
    End,
    /// The client uses new keys from here on.
    NewKeys {
        /// Whether the client requests new keys from us, too.
        requests_key_update: bool,
    },
    Nothing,
}

impl Opener {
    fn new(
        suite: SupportedCipherSuite,
        secrets: ConnectionTrafficSecrets,
        next: u64,
    ) -> Result<Opener, Error> {
        Ok(Opener {
            suite,
            decrypter: decrypter(suite, secrets)?,
            next,
            empty_records: 0,
        })
    }

    /// Replaces the decryption keys.
    fn renew(&mut self, secrets: ConnectionTrafficSecrets, next: u64) -> Result<(), Error> {
        self.decrypter = decrypter(self.suite, secrets)?;
        self.next = next;
        Ok(())
    }

    /// Decrypts the record at the front, if it is complete; also returns the record's length.
    fn open<'a>(
        &mut self,
        bytes: &'a mut [u8],
    ) -> Result<Option<(usize, InboundPlainMessage<'a>)>, Error> {
        let Some((header, rest)) = bytes.split_first_chunk_mut::<HEADER>() else {
            return Ok(None);
        };
        let [content_type, major, minor, length @ ..] = *header;
        let length = usize::from(u16::from_be_bytes(length));
        if length > RECORD_MAX {
            return Err(InvalidMessage::MessageTooLarge.into());
        }
        let Some(payload) = rest.get_mut(..length) else {
            return Ok(None);
        };
        let content_type = ContentType::from(content_type);
        if self.is_tls13() && content_type != ContentType::ApplicationData {
            return Err(unexpected(content_type));
        }
        let version = ProtocolVersion::from(u16::from_be_bytes([major, minor]));
        let message = InboundOpaqueMessage::new(content_type, version, payload);
        let opened = self.decrypter.decrypt(message, self.next)?;
        self.next = self.next.checked_add(1).ok_or(Error::DecryptError)?;
        Ok(Some((HEADER + length, opened)))
    }

    /// Interprets a decrypted record.
    fn read(&mut self, message: &InboundPlainMessage<'_>) -> Result<Record, Error> {
        const USER_CANCELED: u8 = 90;
        const WARNING: u8 = 1;
        let is_tls13 = self.is_tls13();
        match (message.typ, message.payload) {
            (ContentType::ApplicationData, []) => {
                self.count_empty_record(PeerMisbehaved::TooManyEmptyFragments)
            }
            (ContentType::ApplicationData, _) => {
                self.empty_records = 0;
                Ok(Record::Data)
            }
            (ContentType::Alert, [_, 0]) => Ok(Record::End),
            (ContentType::Alert, [WARNING, kind]) if !is_tls13 || *kind == USER_CANCELED => {
                self.count_empty_record(PeerMisbehaved::TooManyWarningAlertsReceived)
            }
            (ContentType::Alert, [_, kind]) => Err(Error::AlertReceived((*kind).into())),
            (ContentType::Alert, _) => Err(InvalidMessage::TrailingData("Alert").into()),
            // `key_update` must be the last message of its record, so here it is the only one.
            (ContentType::Handshake, [24, 0, 0, 1, asks @ (0 | 1)]) if is_tls13 => {
                self.count_empty_record(PeerMisbehaved::TooManyKeyUpdateRequests)?;
                Ok(Record::NewKeys {
                    requests_key_update: *asks == 1,
                })
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    fn count_empty_record(&mut self, why: PeerMisbehaved) -> Result<Record, Error> {
        self.empty_records += 1;
        if self.empty_records > FRUITLESS_MAX {
            Err(why.into())
        } else {
            Ok(Record::Nothing)
        }
    }

    fn is_tls13(&self) -> bool {
        version(self.suite) == Version::Tls13
    }
}

fn unexpected(got_type: ContentType) -> Error {
    Error::InappropriateMessage {
        expect_types: vec![ContentType::ApplicationData],
        got_type,
    }
}

fn record(content_type: ContentType, bytes: Bytes) -> Segment {
    Segment::Record {
        content_type: content_type.into(),
        bytes,
    }
}

/// Maximum number of records into which the kernel splits this many bytes.
fn records(bytes: u64) -> u64 {
    1 + bytes / RECORD_LEAST
}

/// Maximum number of records per key.
fn limit(suite: SupportedCipherSuite) -> u64 {
    match suite {
        SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit,
        SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit,
    }
}

/// Whether the sending key of a connection can be replaced: not in TLS 1.2, and not by every
/// kernel.
fn replaces_keys(suite: SupportedCipherSuite) -> bool {
    version(suite) == Version::Tls13 && support().is_ok_and(Support::replaces_keys)
}

fn version(suite: SupportedCipherSuite) -> Version {
    match suite {
        SupportedCipherSuite::Tls12(_) => Version::Tls12,
        SupportedCipherSuite::Tls13(_) => Version::Tls13,
    }
}

/// The kernel's name for the algorithm of a suite.
fn cipher(suite: SupportedCipherSuite) -> Option<Cipher> {
    Some(match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Cipher::Aes128Gcm,
        CipherSuite::TLS13_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Cipher::Aes256Gcm,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Cipher::Chacha20Poly1305,
        _ => return None,
    })
}

/// Converts rustls's secrets to keys for the kernel, starting with record number `sequence`.
fn sealing_keys(
    suite: SupportedCipherSuite,
    secrets: &ConnectionTrafficSecrets,
    sequence: u64,
) -> Result<SealingKeys, Error> {
    let (cipher, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::Chacha20Poly1305, key, iv)
        }
        _ => return Err(Error::EncryptError),
    };
    let version = version(suite);
    let iv: &[u8; 12] = iv.as_ref().try_into().map_err(|_| Error::EncryptError)?;
    let iv = match (version, cipher) {
        (Version::Tls12, Cipher::Aes128Gcm | Cipher::Aes256Gcm) => &nonces_apart(iv),
        _ => iv,
    };
    SealingKeys::new(version, cipher, key.as_ref(), iv, sequence).ok_or(Error::EncryptError)
}

/// The kernel's first nonce for AES-GCM in TLS 1.2, where each record carries its nonce (RFC 5288
/// section 3). The kernel increments the nonce per record, whereas rustls has combined its start
/// value with the record number by exclusive or. If both used the same start value, some nonce
/// would occur twice, which reveals the key. All nonces of rustls share the first bit of its start
/// value, because no record number reaches that bit; the kernel uses the other half, from its
/// beginning.
fn nonces_apart(iv: &[u8; 12]) -> [u8; 12] {
    let [a, b, c, d, first, ..] = *iv;
    [a, b, c, d, !first & 0x80, 0, 0, 0, 0, 0, 0, 0]
}

/// The decrypter for records that were encrypted with these secrets.
fn decrypter(
    suite: SupportedCipherSuite,
    secrets: ConnectionTrafficSecrets,
) -> Result<Box<dyn MessageDecrypter>, Error> {
    let (key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        _ => return Err(Error::DecryptError),
    };
    Ok(match suite {
        SupportedCipherSuite::Tls13(suite) => suite.aead_alg.decrypter(key, iv),
        SupportedCipherSuite::Tls12(suite) => {
            let length = suite.aead_alg.key_block_shape().fixed_iv_len;
            let fixed = iv.as_ref().get(..length).ok_or(Error::DecryptError)?;
            suite.aead_alg.decrypter(key, fixed)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::CryptoProvider;
    use rustls::crypto::aws_lc_rs::cipher_suite::*;
    use rustls::pki_types::ServerName;
    use rustls::unbuffered::ConnectionState;
    use rustls::{ClientConfig, ClientConnection, ServerConfig};

    use super::*;
    use crate::tls::certificates::{Resolver, Slot, certified_key, chain as chain_of};
    use crate::tls::provider;
    use crate::tls::upstream::verify::Unverified;

    const SUITES: [SupportedCipherSuite; 6] = [
        TLS13_AES_128_GCM_SHA256,
        TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ];

    /// A client, and the session that the kernel has taken over after the handshake.
    fn pair(suite: SupportedCipherSuite) -> (ClientConnection, KernelSession) {
        let chain = include_bytes!("../../../../tests/tls/ecdsa.crt");
        let key = include_bytes!("../../../../tests/tls/ecdsa.key");
        let certified = certified_key::<&[u8]>(chain_of(chain).unwrap(), key, &[]).unwrap();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(provider()))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(
                [Arc::new(Slot::new(Some(certified)))].into(),
            )));
        server.enable_secret_extraction = true;
        let offered = CryptoProvider {
            cipher_suites: vec![suite],
            ..CryptoProvider::clone(provider())
        };
        let client = ClientConfig::builder_with_provider(Arc::new(offered))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified))
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = UnbufferedServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let answer = answer(&mut server, &mut sealed(&mut client));
            client.read_tls(&mut &answer[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        let mut pushed = Vec::new();
        let session = KernelSession::take_over(server, &mut |segment| pushed.push(segment));
        assert!(matches!(pushed[..], [Segment::Keys(_)]));
        (client, session.unwrap())
    }

    /// The server's reply to these bytes.
    fn answer(server: &mut UnbufferedServerConnection, mut incoming: &mut [u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        loop {
            let status = server.process_tls_records(incoming);
            let discard = status.discard;
            match status.state.unwrap() {
                ConnectionState::EncodeTlsData(mut encode) => {
                    let mut bytes = vec![0; 16 * 1024];
                    let length = encode.encode(&mut bytes).unwrap();
                    answer.extend_from_slice(&bytes[..length]);
                }
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                _ => return answer,
            }
            incoming = &mut incoming[discard..];
        }
    }

    /// The bytes that a client has to send.
    fn sealed(client: &mut ClientConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Receives bytes in chunks of this size: returns the payload, the segments sent in reply, and
    /// whether the client has ended.
    fn receive(
        session: &mut KernelSession,
        bytes: &[u8],
        part: usize,
    ) -> Result<(Vec<u8>, Vec<Segment>, bool), Error> {
        let (mut waiting, mut received, mut pushed) = (Vec::new(), VecDeque::new(), Vec::new());
        let mut ended = false;
        for part in bytes.chunks(part) {
            waiting.extend_from_slice(part);
            let push = &mut |segment| pushed.push(segment);
            let progress = session.receive(&mut waiting, &mut received, push)?;
            waiting.drain(..progress.used);
            ended = progress.ended;
        }
        assert!(waiting.is_empty());
        let payload: Vec<u8> = received.iter().flat_map(|one| one.to_vec()).collect();
        Ok((payload, pushed, ended))
    }

    #[test]
    fn records_of_clients_are_opened() {
        for suite in SUITES {
            let (mut client, mut session) = pair(suite);
            assert_eq!(session.agreed().suite, Some(suite));
            let text = b"0123456789abcdef".repeat(3000);
            std::io::Write::write_all(&mut client.writer(), &text[..20_000]).unwrap();
            for part in [1, 7000, usize::MAX] {
                std::io::Write::write_all(&mut client.writer(), &text[..30_000]).unwrap();
                let (payload, pushed, ended) =
                    receive(&mut session, &sealed(&mut client), part).unwrap();
                assert!(payload.ends_with(&text[..30_000]), "{suite:?}");
                assert!(pushed.is_empty() && !ended);
            }
            client.send_close_notify();
            let (payload, _, ended) = receive(&mut session, &sealed(&mut client), 100).unwrap();
            assert!(payload.is_empty() && ended);
        }
    }

    #[test]
    fn a_changed_record_ends_the_session() {
        for suite in SUITES {
            let (mut client, mut session) = pair(suite);
            std::io::Write::write_all(&mut client.writer(), b"hello").unwrap();
            let mut bytes = sealed(&mut client);
            *bytes.last_mut().unwrap() ^= 1;
            let error = receive(&mut session, &bytes, 1000).unwrap_err();
            assert_eq!(error, Error::DecryptError);
            let mut pushed = Vec::new();
            KernelSession::send_alert(&error, &mut |segment| pushed.push(segment));
            // Fatal, bad_record_mac.
            assert!(
                matches!(&pushed[..], [Segment::Record { content_type: 21, bytes }] if bytes[..] == [2, 20])
            );
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (_, mut session) = pair(TLS13_AES_128_GCM_SHA256);
        let too_long = [23, 3, 3, 0xff, 0xff];
        let error = receive(&mut session, &too_long, 5).unwrap_err();
        assert_eq!(error, InvalidMessage::MessageTooLarge.into());
        let in_the_clear = [21, 3, 3, 0, 2, 1, 0];
        let error = receive(&mut session, &in_the_clear, 7).unwrap_err();
        assert!(matches!(error, Error::InappropriateMessage { .. }));
    }

    /// The client requests new keys from us, too, which not every kernel supports.
    #[test]
    fn a_client_gets_new_keys() {
        for can in [true, false] {
            let (mut client, mut session) = pair(TLS13_CHACHA20_POLY1305_SHA256);
            session.replaces_keys = can;
            session.left = 1;
            client.refresh_traffic_keys().unwrap();
            std::io::Write::write_all(&mut client.writer(), b"under new keys").unwrap();
            let received = receive(&mut session, &sealed(&mut client), 20);
            if !can {
                assert!(matches!(received, Err(Error::General(_))));
                continue;
            }
            let (payload, pushed, _) = received.unwrap();
            assert_eq!(payload, b"under new keys");
            let [
                Segment::Record {
                    content_type: 22,
                    bytes,
                },
                Segment::Keys(_),
            ] = &pushed[..]
            else {
                panic!("{pushed:?}");
            };
            // RFC 8446 section 4.6.3: key_update, three bytes of length, update_not_requested.
            assert_eq!(bytes[..], [24, 0, 0, 1, 0]);
            assert_eq!(session.left, session.limit);
        }
    }

    #[test]
    fn messages_mean_what_their_version_says() {
        let old = TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
        let new = TLS13_AES_128_GCM_SHA256;
        let renegotiation = [1, 0, 0, 1, 0];
        let (alert, handshake) = (ContentType::Alert, ContentType::Handshake);
        let read = |suite, typ, payload: &[u8]| {
            let (_, mut session) = pair(suite);
            let message = InboundPlainMessage {
                typ,
                version: ProtocolVersion::TLSv1_2,
                payload,
            };
            session.opener.read(&message)
        };
        for suite in [old, new] {
            assert_eq!(read(suite, alert, &[1, 0]), Ok(Record::End));
            assert_eq!(read(suite, alert, &[1, 90]), Ok(Record::Nothing));
            assert!(matches!(
                read(suite, alert, &[2, 40]),
                Err(Error::AlertReceived(_))
            ));
            assert!(read(suite, alert, &[1]).is_err());
            assert!(read(suite, handshake, &renegotiation).is_err());
            assert!(read(suite, ContentType::ChangeCipherSpec, &[1]).is_err());
        }
        // In TLS 1.3, a warning other than those two is not one (RFC 8446 section 6).
        assert_eq!(read(old, alert, &[1, 100]), Ok(Record::Nothing));
        assert!(read(new, alert, &[1, 100]).is_err());
        let new_keys = |requests_key_update| {
            Ok(Record::NewKeys {
                requests_key_update,
            })
        };
        assert_eq!(read(new, handshake, &[24, 0, 0, 1, 0]), new_keys(false));
        assert_eq!(read(new, handshake, &[24, 0, 0, 1, 1]), new_keys(true));
        assert!(read(new, handshake, &[24, 0, 0, 1, 2]).is_err());
        assert!(read(new, handshake, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]).is_err());
        assert!(read(old, handshake, &[24, 0, 0, 1, 0]).is_err());
    }

    #[test]
    fn records_that_bring_nothing_are_counted() {
        let (_, mut session) = pair(TLS13_AES_128_GCM_SHA256);
        let mut read = |payload: &[u8]| {
            session.opener.read(&InboundPlainMessage {
                typ: ContentType::ApplicationData,
                version: ProtocolVersion::TLSv1_3,
                payload,
            })
        };
        for _ in 0..3 {
            for _ in 0..FRUITLESS_MAX {
                assert_eq!(read(b""), Ok(Record::Nothing));
            }
            assert_eq!(read(b"something"), Ok(Record::Data));
        }
        assert!((0..=FRUITLESS_MAX).any(|_| read(b"").is_err()));
    }

    /// A file longer than the limit of one key is split, with key updates in between if keys can be
    /// replaced.
    #[test]
    fn a_key_seals_only_so_much() {
        let file = engine::file::File::from(std::fs::File::open("/dev/null").unwrap());
        let whole = 100 * RECORD_LEAST;
        for can in [true, false] {
            let (_, mut session) = pair(TLS13_AES_256_GCM_SHA384);
            assert_eq!(session.limit, 1 << 24);
            (session.limit, session.left, session.replaces_keys) = (40, 10, can);
            let mut pushed = Vec::new();
            let segment = Segment::File {
                file: file.clone(),
                offset: 7,
                length: whole,
            };
            let sent = session.send(segment, &mut |segment| pushed.push(segment));
            let lengths: Vec<u64> = pushed.iter().map(Segment::len).collect();
            if !can {
                assert!(sent.is_err());
                assert_eq!(lengths, [9 * RECORD_LEAST]);
                continue;
            }
            assert!(sent.is_ok());
            let rest = whole - (9 + 39 + 39) * RECORD_LEAST;
            let full = 39 * RECORD_LEAST;
            assert_eq!(
                lengths,
                [9 * RECORD_LEAST, 5, 0, full, 5, 0, full, 5, 0, rest]
            );
            assert!(
                matches!(pushed.last(), Some(Segment::File { offset, .. }) if *offset == 7 + whole - rest)
            );
        }
    }

    /// rustls has combined its start value with the record numbers so far, which are small.
    #[test]
    fn no_nonce_comes_twice() {
        for first in [0x00, 0x7f, 0x80, 0xff] {
            let iv = [1, 2, 3, 4, first, 9, 9, 9, 9, 9, 9, 9];
            let apart = nonces_apart(&iv);
            assert_eq!(apart[..4], iv[..4]);
            assert_ne!(apart[4] & 0x80, first & 0x80);
            assert_eq!(u64::from_be_bytes(apart[4..].try_into().unwrap()) << 1, 0);
        }
    }
}
