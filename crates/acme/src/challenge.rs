//! Challenges: how a server is shown that we speak for a name.
//!
//! `http-01` (RFC 8555 section 8.3) and `tls-alpn-01` (RFC 8737) are answered by listeners, which
//! are the [`Host`]'s; `dns-01` (RFC 8555 section 8.4) by a program that puts a record into the
//! zone.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::level::Level;
use instant_acme::{ChallengeType, KeyAuthorization};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use crate::certificate::{Certificate, Unusable, challenge_answer};
use crate::order::Identifier;

/// How long a program may take for one record, with the time until the zone's servers have it.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(600);

/// How often a running program is looked at.
const PROGRAM_LOOK: Duration = Duration::from_millis(20);

/// What answers challenges, and takes the certificates that come of it.
pub trait Host: Send + Sync + 'static {
    /// Writes a line to the error log.
    fn log(&self, level: Level, text: &str);

    /// Tells whoever watches the server how it goes, in a sentence.
    fn announce(&self, _text: &str) {}

    /// From now on answers this challenge.
    fn show(&self, shown: &ChallengeReply);

    /// Answers it no more.
    fn hide(&self, shown: &ChallengeReply);

    /// The certificate in force that was issued for this order.
    fn installed(&self, order: &str) -> Option<Arc<Certificate>>;

    /// From now on serves with this certificate; `order` is the [`crate::Order::id`] that it is
    /// for.
    fn install(&self, order: &str, certificate: &Arc<Certificate>);
}

/// What a listener answers to a validator.
#[derive(Clone, Debug)]
pub enum ChallengeReply {
    /// To a request for `/.well-known/acme-challenge/TOKEN`.
    Http {
        /// The last part of the path.
        token: String,
        /// The body with which a challenge is answered.
        answer: String,
    },
    /// To a handshake that offers `acme-tls/1` and nothing else.
    Tls {
        /// The name that the client asks for.
        server_name: String,
        /// The certificate that shows the answer.
        key: Arc<CertifiedKey>,
    },
}

/// The kind of challenge that an issuer is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A file under a well-known path of port 80.
    Http01,
    /// A handshake at port 443.
    TlsAlpn01,
    /// A record in the zone of the name.
    Dns01(DnsProgram),
}

/// A program that changes a zone. It is called `PROGRAM [ARGUMENT …] present|cleanup NAME. VALUE`,
/// where `NAME` is that of the TXT record. That is how lego calls programs (its provider `exec`),
/// so that those written for it work. It is not to end before the zone's servers answer with the
/// record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// What comes before `present`.
    pub arguments: Vec<OsString>,
}

impl Challenge {
    pub(crate) fn kind(&self) -> ChallengeType {
        match self {
            Challenge::Http01 => ChallengeType::Http01,
            Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Challenge::Dns01(_) => ChallengeType::Dns01,
        }
    }

    /// Its name in the registry of RFC 8555 section 9.7.8.
    pub fn name(&self) -> &'static str {
        match self {
            Challenge::Http01 => "http-01",
            Challenge::TlsAlpn01 => "tls-alpn-01",
            Challenge::Dns01(_) => "dns-01",
        }
    }
}

/// Why a challenge could not be answered.
#[derive(Debug)]
pub(crate) enum AnswerError {
    /// The certificate for `tls-alpn-01` could not be made.
    Certificate(Unusable),
    /// The program could not be started.
    Start(PathBuf, io::Error),
    /// It ended with another status than 0.
    Status(PathBuf, ExitStatus),
    /// It took longer than [`PROGRAM_TIME_MAX`] and was ended.
    TimedOut(PathBuf),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Certificate(error) => write!(out, "{error}"),
            AnswerError::Start(path, error) => {
                write!(out, "\"{}\" could not be started ({error})", path.display())
            }
            AnswerError::Status(path, status) => {
                write!(out, "\"{}\" ended with {status}", path.display())
            }
            AnswerError::TimedOut(path) => {
                write!(out, "\"{}\" did not end and was ended", path.display())
            }
        }
    }
}

impl std::error::Error for AnswerError {}

/// The answers of one order. They are taken back when it is dropped.
pub(crate) struct ChallengeResponses<'a> {
    host: &'a dyn Host,
    shown: Vec<ChallengeReply>,
    records: Vec<(&'a DnsProgram, String, String)>,
}

impl<'a> ChallengeResponses<'a> {
    pub(crate) fn new(host: &'a dyn Host) -> ChallengeResponses<'a> {
        ChallengeResponses {
            host,
            shown: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Answers the challenge for an identifier. `identifier` is without `*.`.
    pub(crate) fn add(
        &mut self,
        challenge: &'a Challenge,
        identifier: &Identifier,
        token: &str,
        authorization: &KeyAuthorization,
        provider: &CryptoProvider,
    ) -> Result<(), AnswerError> {
        let shown = match challenge {
            Challenge::Http01 => ChallengeReply::Http {
                token: token.to_owned(),
                answer: authorization.as_str().to_owned(),
            },
            Challenge::TlsAlpn01 => {
                let digest = authorization.digest();
                let key = challenge_answer(identifier, digest.as_ref(), provider);
                ChallengeReply::Tls {
                    server_name: asked_name(identifier),
                    key: key.map_err(AnswerError::Certificate)?,
                }
            }
            Challenge::Dns01(program) => {
                let (name, value) = (record_name(identifier), authorization.dns_value());
                // What has failed half-way is cleaned up too.
                let call = (program, name.clone(), value.clone());
                self.records.push(call);
                return program.run("present", &name, &value);
            }
        };
        self.host.show(&shown);
        self.shown.push(shown);
        Ok(())
    }
}

impl Drop for ChallengeResponses<'_> {
    fn drop(&mut self) {
        self.shown.iter().for_each(|shown| self.host.hide(shown));
        for (program, name, value) in &self.records {
            if let Err(error) = program.run("cleanup", name, value) {
                let text = format!("{error} while removing the record \"{name}\"");
                self.host.log(Level::Warn, &text);
            }
        }
    }
}

/// The name of the TXT record for a name, with the dot of the root.
fn record_name(identifier: &Identifier) -> String {
    format!("_acme-challenge.{identifier}.")
}

/// What a client of `tls-alpn-01` asks for: the name, and for an address the one under which it is
/// looked up backwards (RFC 8738 section 6).
fn asked_name(identifier: &Identifier) -> String {
    match identifier {
        Identifier::Dns(name) => name.clone(),
        Identifier::Ip(IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Identifier::Ip(IpAddr::V6(address)) => {
            let octets = address.octets();
            let nibbles = octets.iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let labels: String = nibbles.map(|nibble| format!("{nibble:x}.")).collect();
            format!("{labels}ip6.arpa")
        }
    }
}

/// Runs a program with further arguments for at most so long: its status, or `None` if it took
/// longer. `None` instead of a result where this process may start programs itself.
pub type RunProgram =
    fn(&DnsProgram, &[&OsStr], Duration) -> Option<io::Result<Option<ExitStatus>>>;

/// Who runs programs where this process may not.
static RUN_PROGRAM: OnceLock<RunProgram> = OnceLock::new();

/// Has programs run in another way, if that wants to: for a process that may start none. The first
/// such call counts.
pub fn run_programs_by(run: RunProgram) {
    let _ = RUN_PROGRAM.set(run);
}

impl DnsProgram {
    fn run(&self, action: &str, name: &str, value: &str) -> Result<(), AnswerError> {
        let elsewhere = RUN_PROGRAM.get().and_then(|run| {
            let arguments = [action, name, value].map(OsStr::new);
            run(self, &arguments, PROGRAM_TIME_MAX)
        });
        let ended = match elsewhere {
            Some(ended) => ended.map_err(|error| AnswerError::Start(self.path.clone(), error))?,
            None => self.run_here(action, name, value)?,
        };
        match ended {
            Some(status) if !status.success() => {
                Err(AnswerError::Status(self.path.clone(), status))
            }
            Some(_) => Ok(()),
            None => Err(AnswerError::TimedOut(self.path.clone())),
        }
    }

    /// The same by this process; `None` if it had to be ended.
    fn run_here(
        &self,
        action: &str,
        name: &str,
        value: &str,
    ) -> Result<Option<ExitStatus>, AnswerError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).args([action, name, value]);
        // What it says on standard error stands in the error log.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn();
        let child = child.map_err(|error| AnswerError::Start(self.path.clone(), error))?;
        Ok(wait(child))
    }
}

/// How a program has ended; `None` if it had to be ended. Where the master is this same process,
/// its own look for ended processes may have taken the status: that counts as success, and the
/// server will see whether the record is there.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let end = Instant::now() + PROGRAM_TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Err(_) => return Some(ExitStatus::default()),
            Ok(None) if Instant::now() < end => std::thread::sleep(PROGRAM_LOOK),
            Ok(None) => {
                // Either fails only where it has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifier(text: &str) -> Identifier {
        Identifier::parse(text.as_bytes()).unwrap().remove(0)
    }

    /// The examples of RFC 8555 section 8.4 and RFC 8738 section 7.
    #[test]
    fn names_that_validators_ask_for() {
        let name = record_name(&identifier("www.example.org"));
        assert_eq!(name, "_acme-challenge.www.example.org.");
        assert_eq!(asked_name(&identifier("a.test")), "a.test");
        assert_eq!(
            asked_name(&identifier("192.0.2.5")),
            "5.2.0.192.in-addr.arpa"
        );
        let name = asked_name(&identifier("2001:db8::1"));
        assert_eq!(
            name,
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
        );
    }

    fn program(script: &str) -> DnsProgram {
        DnsProgram {
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "hook".into()],
        }
    }

    #[test]
    fn a_program_is_told_what_to_do_and_says_whether_it_has() {
        let told = program(r#"test "$*" = "present _acme-challenge.a.test. value""#);
        told.run("present", "_acme-challenge.a.test.", "value")
            .unwrap();
        let failed = told.run("cleanup", "_acme-challenge.a.test.", "value");
        assert!(matches!(failed, Err(AnswerError::Status(..))), "{failed:?}");
        let missing = DnsProgram {
            path: "/nonexistent/program".into(),
            arguments: Vec::new(),
        };
        let failed = missing.run("present", "", "");
        assert!(matches!(failed, Err(AnswerError::Start(..))), "{failed:?}");
    }
}
