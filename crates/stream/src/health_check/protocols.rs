//! `health_check type=…`: probes with the handshakes of well-known protocols.
//!
//! MySQL: Protocol::HandshakeV10 and ERR_Packet of its client/server protocol. PostgreSQL: chapter
//! "Frontend/Backend Protocol" of its manual, SQLSTATE in appendix A. Redis: RESP. SMTP: RFC 5321
//! section 4.3.1. Probes do not log in: a server that rejects the user is healthy.

use bytes::Bytes;

use super::answers::{Verdict, begins};

/// A protocol that probes support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckedProtocol {
    Mysql,
    Postgres,
    Redis,
    Smtp,
}

impl CheckedProtocol {
    /// The protocol with this name in `type=`.
    pub(super) fn named(name: &[u8]) -> Option<CheckedProtocol> {
        Some(match name {
            b"mysql" => CheckedProtocol::Mysql,
            b"postgres" => CheckedProtocol::Postgres,
            b"redis" => CheckedProtocol::Redis,
            b"smtp" => CheckedProtocol::Smtp,
            _ => return None,
        })
    }

    /// The first message to a server; `None` if the server speaks first.
    pub(super) fn greeting(self, user: &[u8]) -> Option<Bytes> {
        match self {
            CheckedProtocol::Mysql | CheckedProtocol::Smtp => None,
            CheckedProtocol::Redis => Some(Bytes::from_static(b"PING\r\n")),
            CheckedProtocol::Postgres => Some(startup(user)),
        }
    }

    /// The last message to a server that has passed, so that the connection ends as a client's
    /// does.
    pub(super) fn farewell(self) -> Option<Bytes> {
        match self {
            // MySQL does not count a connection that ends within the handshake as an error of the
            // host.
            CheckedProtocol::Mysql => None,
            CheckedProtocol::Postgres => Some(Bytes::from_static(b"X\0\0\0\x04")),
            CheckedProtocol::Redis | CheckedProtocol::Smtp => Some(Bytes::from_static(b"QUIT\r\n")),
        }
    }

    /// The result for the received part of a response.
    pub(super) fn judge(self, answer: &[u8]) -> Verdict {
        match self {
            CheckedProtocol::Mysql => mysql(answer),
            CheckedProtocol::Postgres => postgres(answer),
            CheckedProtocol::Redis => begins(answer, &[b"+PONG\r\n", b"-NOAUTH "]),
            CheckedProtocol::Smtp => begins(answer, &[b"220 ", b"220-"]),
        }
    }
}

/// A StartupMessage of version 3.0 for a user.
fn startup(user: &[u8]) -> Bytes {
    let mut message = vec![0, 0, 0, 0, 0, 3, 0, 0];
    message.extend_from_slice(b"user\0");
    message.extend_from_slice(user);
    message.extend_from_slice(b"\0\0");
    let length = (message.len() as u32).to_be_bytes();
    message[..4].copy_from_slice(&length);
    message.into()
}

/// A server that asks for a password, or does not know the user or the database, is healthy. A
/// server that is starting up, shutting down or has no room for clients is not.
fn postgres(answer: &[u8]) -> Verdict {
    match answer.split_first() {
        None => Verdict::Undecided,
        Some((b'R', _)) => Verdict::Fits,
        Some((b'E', rest)) => {
            let Some((length, fields)) = rest.split_first_chunk::<4>() else {
                return Verdict::Undecided;
            };
            let length = u32::from_be_bytes(*length) as usize;
            match fields.get(..length.saturating_sub(4)) {
                None => Verdict::Undecided,
                Some(fields) => {
                    let state = fields.split(|byte| *byte == 0).find_map(|field| {
                        field.strip_prefix(b"C") // the SQLSTATE field
                    });
                    // Class 28 is an invalid authorization, 3D an unknown database.
                    let is_refused =
                        |state: &[u8]| state.starts_with(b"28") || state.starts_with(b"3D");
                    if state.is_some_and(is_refused) {
                        Verdict::Fits
                    } else {
                        Verdict::DoesNotFit
                    }
                }
            }
        }
        Some(_) => Verdict::DoesNotFit,
    }
}

/// A healthy server starts a handshake of version 10; others send an error.
fn mysql(answer: &[u8]) -> Verdict {
    match answer {
        [_, _, _, 0, 10, ..] => Verdict::Fits,
        [] | [_] | [_, _] | [_, _, _] | [_, _, _, 0] => Verdict::Undecided,
        _ => Verdict::DoesNotFit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged_at_every_length() {
        use Verdict::{DoesNotFit, Fits};
        let error = |state: &str| {
            let fields = format!("SFATAL\0C{state}\0Mno\0\0");
            let length = (fields.len() as u32 + 4).to_be_bytes();
            [b"E", &length[..], fields.as_bytes()].concat()
        };
        let whole = [
            (CheckedProtocol::Redis, b"+PONG\r\n".to_vec(), Fits),
            (CheckedProtocol::Redis, b"-NOAUTH ".to_vec(), Fits),
            (CheckedProtocol::Redis, b"-L".to_vec(), DoesNotFit),
            (CheckedProtocol::Smtp, b"220 ".to_vec(), Fits),
            (CheckedProtocol::Smtp, b"220-".to_vec(), Fits),
            (CheckedProtocol::Smtp, b"5".to_vec(), DoesNotFit),
            (CheckedProtocol::Mysql, b"\x4a\0\0\0\x0a".to_vec(), Fits),
            (
                CheckedProtocol::Mysql,
                b"\x4a\0\0\0\xff".to_vec(),
                DoesNotFit,
            ),
            (CheckedProtocol::Postgres, b"R".to_vec(), Fits),
            (CheckedProtocol::Postgres, error("28000"), Fits),
            (CheckedProtocol::Postgres, error("3D000"), Fits),
            (CheckedProtocol::Postgres, error("57P03"), DoesNotFit),
            (CheckedProtocol::Postgres, b"H".to_vec(), DoesNotFit),
        ];
        for (protocol, answer, verdict) in whole {
            assert_eq!(protocol.judge(&answer), verdict, "{answer:?}");
            for end in 0..answer.len() {
                let judged = protocol.judge(&answer[..end]);
                assert_eq!(judged, Verdict::Undecided, "{answer:?} to {end}");
            }
        }
    }

    #[test]
    fn a_startup_message_tells_its_length() {
        let message = CheckedProtocol::Postgres.greeting(b"me").unwrap();
        assert_eq!(message[..], *b"\0\0\0\x11\0\x03\0\0user\0me\0\0");
    }
}
