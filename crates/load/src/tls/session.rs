//! The TLS session of one connection: encrypts and decrypts records in our buffers.
//!
//! It uses rustls's unbuffered API (`rustls::unbuffered`): received records are decrypted in place,
//! and their contents are passed on without a copy.

use std::time::Instant;
use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use engine::Buffer;
use engine::net::Stream;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus,
};
use rustls::{AlertDescription, Error, HandshakeKind};

use super::Tls;
use super::agreed::{self, Mark, NegotiatedTls};
use crate::plan::ALPN_HTTP2;
use crate::tally::RequestError;

/// Length of a record's header, in bytes.
const HEADER: usize = 5;

/// Overhead of a record, in bytes: header, nonce, content type and tag.
const RECORD_OVERHEAD: usize = HEADER + 8 + 1 + 16;

/// Maximum length of a record's content, in bytes (RFC 8446, section 5.1).
const RECORD_MAX: usize = 16 * 1024;

/// Size of an allocation for encrypted records, in bytes.
const SCRATCH: usize = 64 * 1024;

/// Size of the buffer for the close_notify alert, in bytes.
const ALERT_MAX: usize = 64;

/// The TLS session of one connection.
pub(crate) struct Session {
    tls: UnbufferedClientConnection,
    /// Received bytes that are not a complete record yet.
    partial: Vec<u8>,
    /// Application data that arrived with the end of the handshake, before the first request.
    early: Vec<u8>,
    /// Whether the server has sent a close_notify.
    ended: bool,
}

/// The state of a session after received bytes have been processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionProgress {
    Open,
    /// The server has sent a close_notify.
    Ended,
}

impl Session {
    /// Starts a session.
    ///
    /// # Errors
    /// An error of rustls, if the configuration is not usable.
    fn new(tls: &Tls) -> Result<Session, Error> {
        let name = tls.name.clone();
        let connection = UnbufferedClientConnection::new(tls.config.clone(), name);
        Ok(Session {
            tls: connection?,
            partial: Vec::new(),
            early: Vec::new(),
            ended: false,
        })
    }

    /// Whether the server has sent a close_notify.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Application data that arrived with the end of the handshake.
    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// Whether the handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub(crate) fn mark(&self) -> Mark {
        agreed::mark(&self.tls)
    }

    /// The negotiated parameters.
    pub(crate) fn agreed(&self) -> NegotiatedTls {
        NegotiatedTls::of(&self.tls)
    }

    /// Decrypts received bytes and passes the contents to `take`, record by record. Replies
    /// (alerts, key updates, handshake messages) are queued on the stream.
    ///
    /// # Errors
    /// If the bytes are not valid TLS, or if the server sent an error alert.
    pub(crate) fn open(
        &mut self,
        stream: &Stream,
        mut buffer: Buffer,
        mut take: impl FnMut(&[u8]),
    ) -> Result<SessionProgress, Error> {
        while !buffer.is_empty() {
            if self.partial.is_empty() {
                let taken = self.advance(stream, &mut buffer, &mut take)?;
                buffer.advance(taken);
                self.partial.extend_from_slice(&buffer);
                break;
            }
            // Completes only the partial record here; the following records are decrypted in place.
            let missing = missing(&self.partial).min(buffer.len());
            self.partial
                .extend_from_slice(buffer.get(..missing).unwrap_or_default());
            buffer.advance(missing);
            self.advance_partial(stream, &mut take)?;
        }
        Ok(if self.ended {
            SessionProgress::Ended
        } else {
            SessionProgress::Open
        })
    }

    /// Encrypts `bytes` and queues the records on the stream.
    ///
    /// # Errors
    /// If the session has failed.
    pub(crate) fn seal(
        &mut self,
        stream: &Stream,
        scratch: &mut BytesMut,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.advance_partial(stream, &mut |_| {})?;
        for piece in bytes.chunks(RECORD_MAX) {
            let ConnectionState::WriteTraffic(mut traffic) =
                self.tls.process_tls_records(&mut self.partial).state?
            else {
                return Err(Error::HandshakeNotComplete);
            };
            let room = piece.len() + RECORD_OVERHEAD;
            if scratch.capacity() < room {
                // Reuses the memory if all its records have been sent.
                scratch.reserve(SCRATCH);
            }
            scratch.resize(room, 0);
            let mut length = traffic.encrypt(piece, scratch);
            if let Err(EncryptError::InsufficientSize(needed)) = &length {
                // A key update precedes the record.
                scratch.resize(needed.required_size, 0);
                length = traffic.encrypt(piece, scratch);
            }
            let length = length.map_err(|_| Error::EncryptError)?;
            stream.push(scratch.split_to(length).freeze());
            scratch.clear();
        }
        Ok(())
    }

    /// The close_notify record; `None` if the server has sent one before, or if the session has
    /// failed.
    pub(crate) fn closing(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let state = self.tls.process_tls_records(&mut self.partial).state;
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = state else {
            return None;
        };
        let mut alert = vec![0; ALERT_MAX];
        let length: Result<usize, EncryptError> = traffic.queue_close_notify(&mut alert);
        alert.truncate(length.ok()?);
        Some(alert.into())
    }

    /// Processes the bytes of partial records again, after more bytes have been added.
    fn advance_partial(
        &mut self,
        stream: &Stream,
        take: &mut impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut partial = std::mem::take(&mut self.partial);
        let taken = self.advance(stream, &mut partial, take)?;
        partial.drain(..taken.min(partial.len()));
        self.partial = partial;
        Ok(())
    }

    /// Lets rustls process the received bytes as far as possible. Returns the number of bytes used.
    fn advance(
        &mut self,
        stream: &Stream,
        incoming: &mut [u8],
        take: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Error> {
        let mut taken = 0;
        loop {
            let rest = incoming.get_mut(taken..).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } = self.tls.process_tls_records(rest);
            let mut blocked = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        take(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(encode)) => push_message(stream, encode),
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(_) => blocked = true,
                Err(error) => {
                    self.push_alert(stream);
                    return Err(error);
                }
            }
            taken += discard;
            if blocked {
                return Ok(taken);
            }
        }
    }

    /// Queues the alert for an error, if rustls has one.
    fn push_alert(&mut self, stream: &Stream) {
        // Without an alert to send, rustls would continue with the invalid bytes and panic, because
        // they are not passed again.
        while self.tls.wants_write() {
            match self.tls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(encode)) => push_message(stream, encode),
                _ => break,
            }
        }
        stream.start_send();
    }
}

/// Number of bytes that complete the last record of `partial`, or its header.
fn missing(partial: &[u8]) -> usize {
    let mut rest = partial;
    loop {
        let Some(&[_, _, _, high, low]) = rest.first_chunk::<HEADER>() else {
            return HEADER - rest.len();
        };
        let length = HEADER + usize::from(u16::from_be_bytes([high, low]));
        match rest.get(length..) {
            // Skips complete records that rustls keeps until more arrive, for instance the parts of
            // a long handshake message.
            Some(behind) => rest = behind,
            None => return length - rest.len(),
        }
    }
}

/// Queues a message that rustls has prepared.
fn push_message(stream: &Stream, mut encode: EncodeTlsData<'_, ClientConnectionData>) {
    if let Err(EncodeError::InsufficientSize(needed)) = encode.encode(&mut []) {
        let mut message = vec![0; needed.required_size];
        if encode.encode(&mut message).is_ok() {
            stream.push(Bytes::from(message));
        }
    }
}

/// Why a TLS handshake failed.
#[derive(Debug)]
pub struct HandshakeError {
    /// The cause under which the failure is counted.
    pub failure: RequestError,
    /// The error of rustls, if rustls reported the failure.
    pub error: Option<Error>,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{}: {error}", self.failure.words()),
            None => f.write_str(self.failure.words()),
        }
    }
}

impl From<RequestError> for HandshakeError {
    fn from(failure: RequestError) -> HandshakeError {
        HandshakeError {
            failure,
            error: None,
        }
    }
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> HandshakeError {
        HandshakeError {
            failure: match error {
                Error::InvalidCertificate(_) => RequestError::TlsUntrusted,
                _ => RequestError::TlsHandshake,
            },
            error: Some(error),
        }
    }
}

/// Performs the handshake on a new connection. The last message is queued and sent together with
/// the first request.
///
/// # Errors
/// See [`HandshakeError`].
pub(crate) async fn do_handshake(
    tls: &Tls,
    stream: &Stream,
    deadline: Instant,
) -> Result<Session, HandshakeError> {
    let mut session = Session::new(tls)?;
    session.advance_partial(stream, &mut |_| {})?;
    while session.tls.is_handshaking() {
        stream.start_send();
        let buffer = stream.recv_idle(Some(deadline)).await;
        let buffer = buffer.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => RequestError::TlsTimeout,
            _ => RequestError::TlsClosed,
        })?;
        if buffer.is_empty() {
            return Err(RequestError::TlsClosed.into());
        }
        let mut early = std::mem::take(&mut session.early);
        let opened = session.open(stream, buffer, |bytes| early.extend_from_slice(bytes));
        session.early = early;
        match opened {
            // An HTTP/2 server may send before it has received the client's preface.
            Ok(SessionProgress::Open) if tls.http2 || session.early.is_empty() => {}
            Ok(SessionProgress::Open) => return Err(RequestError::WrongLength.into()),
            Ok(SessionProgress::Ended) => return Err(RequestError::TlsClosed.into()),
            Err(error) if tls.http2 && is_of_alpn(&error) => {
                return Err(RequestError::NoHttp2.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    if tls.http2 && session.tls.alpn_protocol() != Some(ALPN_HTTP2) {
        Err(RequestError::NoHttp2.into())
    } else {
        Ok(session)
    }
}

/// Whether the server refused all offered ALPN protocols.
fn is_of_alpn(error: &Error) -> bool {
    matches!(
        error,
        Error::AlertReceived(AlertDescription::NoApplicationProtocol)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_that_was_begun_is_missing() {
        for (partial, expected) in [
            (&b""[..], 5),
            (b"\x17\x03\x03", 2),
            (b"\x17\x03\x03\x00\x04", 4),
            (b"\x17\x03\x03\x00\x04abc", 1),
            (b"\x16\x03\x03\x00\x01a", 5),
            (b"\x16\x03\x03\x00\x01a\x16\x03\x03\x01\x00b", 255),
        ] {
            assert_eq!(missing(partial), expected, "{partial:?}");
        }
    }
}
