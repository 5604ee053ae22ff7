//! The TLS session of one connection: records in and out, with our buffers.
//!
//! rustls's interface without buffers of its own (`rustls::unbuffered`) is used: what was received
//! is opened where it lies, and looked at from there.

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

/// Bytes of a record's header.
const HEADER: usize = 5;

/// What a record adds to what it carries: header, nonce, type and tag, in bytes.
const RECORD_OVERHEAD: usize = HEADER + 8 + 1 + 16;

/// Bytes that one record carries at most (RFC 8446, section 5.1).
const RECORD_MAX: usize = 16 * 1024;

/// Memory that is taken at once for records to be sent.
const SCRATCH: usize = 64 * 1024;

/// Room for the alert that ends a connection.
const ALERT_MAX: usize = 64;

/// A session; see the module.
pub(crate) struct Session {
    tls: UnbufferedClientConnection,
    /// Received bytes that are no whole record yet.
    partial: Vec<u8>,
    /// What the server has said with the last message of its handshake, before anybody has asked.
    early: Vec<u8>,
    /// The server has said that nothing more follows.
    ended: bool,
}

/// How far received bytes have brought a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionProgress {
    Open,
    /// The server has said that nothing more follows.
    Ended,
}

impl Session {
    /// A session that begins.
    ///
    /// # Errors
    /// rustls's, for a configuration that cannot work.
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

    /// Whether the server has said that nothing more follows.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// What came with the handshake.
    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// Whether an earlier session went on with this one.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub(crate) fn mark(&self) -> Mark {
        agreed::mark(&self.tls)
    }

    /// What was agreed upon.
    pub(crate) fn agreed(&self) -> NegotiatedTls {
        NegotiatedTls::of(&self.tls)
    }

    /// Opens what was received and gives it to `take`, record by record. What has to be sent for it
    /// (alerts, new keys, the handshake's next messages) is pushed.
    ///
    /// # Errors
    /// When it is no TLS, or the server has said what is wrong.
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
            // Only the record that was begun is completed here; those behind it are opened where
            // they lie.
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

    /// Seals `bytes` and pushes the records.
    ///
    /// # Errors
    /// When the session cannot go on.
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
                // Memory whose records have all left is used again.
                scratch.reserve(SCRATCH);
            }
            scratch.resize(room, 0);
            let mut length = traffic.encrypt(piece, scratch);
            if let Err(EncryptError::InsufficientSize(needed)) = &length {
                // New keys go before it.
                scratch.resize(needed.required_size, 0);
                length = traffic.encrypt(piece, scratch);
            }
            let length = length.map_err(|_| Error::EncryptError)?;
            stream.push(scratch.split_to(length).freeze());
            scratch.clear();
        }
        Ok(())
    }

    /// The record that says that nothing more follows; `None` where it cannot be had, or the server
    /// was first.
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

    /// Goes on with what has been received and was no whole record before.
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

    /// Lets rustls go as far as it can with these received bytes. How many of them have been used
    /// up is returned.
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

    /// Pushes the alert that a failure has led to, if rustls has one.
    fn push_alert(&mut self, stream: &Stream) {
        // With nothing to say it would go on with the bytes that it has failed on, and panic as
        // they are not there.
        while self.tls.wants_write() {
            match self.tls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(encode)) => push_message(stream, encode),
                _ => break,
            }
        }
        stream.start_send();
    }
}

/// How many bytes complete the last record of `partial`, or its header.
fn missing(partial: &[u8]) -> usize {
    let mut rest = partial;
    loop {
        let Some(&[_, _, _, high, low]) = rest.first_chunk::<HEADER>() else {
            return HEADER - rest.len();
        };
        let length = HEADER + usize::from(u16::from_be_bytes([high, low]));
        match rest.get(length..) {
            // Whole records that wait for others, as the parts of a long message of the handshake
            // do.
            Some(behind) => rest = behind,
            None => return length - rest.len(),
        }
    }
}

/// Pushes a message that rustls has ready.
fn push_message(stream: &Stream, mut encode: EncodeTlsData<'_, ClientConnectionData>) {
    if let Err(EncodeError::InsufficientSize(needed)) = encode.encode(&mut []) {
        let mut message = vec![0; needed.required_size];
        if encode.encode(&mut message).is_ok() {
            stream.push(Bytes::from(message));
        }
    }
}

/// Why hands could not be shaken.
#[derive(Debug)]
pub struct HandshakeError {
    /// What it counts as.
    pub failure: RequestError,
    /// What rustls says of it, where it is the one who gave up.
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

/// Shakes hands on a connection that has just been made. The last message is pushed, and leaves
/// with the first request.
///
/// # Errors
/// See [`HandshakeError`].
pub(crate) async fn shake_hands(
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
            // In HTTP/2 the server need not wait for the client's preface.
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

/// Whether the server has said that it speaks nothing of what was offered.
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
