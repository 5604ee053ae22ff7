//! ACME challenges: how we prove to the certificate authority that we control a name.
//!
//! The listeners of the [`Host`] answer `http-01` (RFC 8555 section 8.3) and `tls-alpn-01` (RFC
//! 8737). For `dns-01` (RFC 8555 section 8.4) an external program adds a TXT record to the DNS
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

use crate::certificate::{Certificate, CertificateError, challenge_answer};
use crate::order::Identifier;

/// How long a program may run for one record, which includes waiting until the zone's name servers
/// serve it.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(600);

/// How often a running program is polled for its exit.
const PROGRAM_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The server that ACME runs in: it answers challenges, and serves with the issued certificates.
pub trait Host: Send + Sync + 'static {
    /// Writes a line to the error log.
    fn log(&self, level: Level, text: &str);

    /// Reports progress to the operator, in a sentence. Does nothing by default.
    fn announce(&self, _text: &str) {}

    /// Answers this challenge from now on.
    fn show(&self, shown: &ChallengeReply);

    /// Stops answering this challenge.
    fn hide(&self, shown: &ChallengeReply);

    /// The certificate in force that was issued for this order.
    fn installed(&self, order: &str) -> Option<Arc<Certificate>>;

    /// Serves with this certificate from now on. `order` is the [`crate::Order::id`] that it was
    /// issued for.
    fn install(&self, order: &str, certificate: &Arc<Certificate>);
}

/// The reply of a listener to the authority's validator.
#[derive(Clone, Debug)]
pub enum ChallengeReply {
    /// To a request for `/.well-known/acme-challenge/TOKEN`.
    Http {
        /// The last part of the path.
        token: String,
        /// The key authorization, which is the body of the response.
        answer: String,
    },
    /// To a handshake that offers `acme-tls/1` and nothing else.
    Tls {
        /// The name that the client asks for.
        server_name: String,
        /// The self-signed certificate with the digest of the key authorization.
        key: Arc<CertifiedKey>,
    },
}

/// The type of challenge by which names are validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// The authority fetches a file under a well-known path from port 80.
    Http01,
    /// The authority makes a TLS handshake with port 443.
    TlsAlpn01,
    /// The authority looks up a TXT record in the DNS zone of the name.
    Dns01(DnsProgram),
}

/// A program that edits a DNS zone. We run it as `PROGRAM [ARGUMENT …] present|cleanup NAME.
/// VALUE`, where `NAME` is the name of the TXT record. The `exec` provider of lego has the same
/// interface, so programs written for lego work. The program must not exit before the zone's name
/// servers serve the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The arguments in front of `present` or `cleanup`.
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

    /// The name of the challenge type in the registry of RFC 8555 section 9.7.8.
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
    Certificate(CertificateError),
    /// The program could not be started.
    Start(PathBuf, io::Error),
    /// The program exited with another status than 0.
    Status(PathBuf, ExitStatus),
    /// The program ran longer than [`PROGRAM_TIME_MAX`] and was killed.
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

/// The challenge responses of one order. Dropping it withdraws them.
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

    /// Answers the challenge for an identifier, which comes without `*.`.
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
                    server_name: validation_sni(identifier),
                    key: key.map_err(AnswerError::Certificate)?,
                }
            }
            Challenge::Dns01(program) => {
                let (name, value) = (record_name(identifier), authorization.dns_value());
                // Recorded before the run, so that a half-finished `present` is cleaned up too.
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

/// The fully qualified name of an identifier's TXT record, with the trailing dot.
fn record_name(identifier: &Identifier) -> String {
    format!("_acme-challenge.{identifier}.")
}

/// The SNI of a `tls-alpn-01` validation: the name itself, or the reverse-DNS name of an address
/// (RFC 8738 section 6).
fn validation_sni(identifier: &Identifier) -> String {
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

/// Runs a program with further arguments, for this long at most. The inner `None` says that the
/// program timed out; the outer `None` that this process may start programs itself.
pub type RunProgram =
    fn(&DnsProgram, &[&OsStr], Duration) -> Option<io::Result<Option<ExitStatus>>>;

/// Starts programs on behalf of a process that may not itself.
static RUN_PROGRAM: OnceLock<RunProgram> = OnceLock::new();

/// Sets the function that starts programs, for a process that may not itself. Only the first call
/// has an effect.
pub fn run_programs_by(run: RunProgram) {
    let _ = RUN_PROGRAM.set(run);
}

impl DnsProgram {
    fn run(&self, action: &str, name: &str, value: &str) -> Result<(), AnswerError> {
        let elsewhere = RUN_PROGRAM.get().and_then(|run| {
            let arguments = [action, name, value].map(OsStr::new);
            run(self, &arguments, PROGRAM_TIME_MAX)
        });
        let outcome = match elsewhere {
            Some(outcome) => {
                outcome.map_err(|error| AnswerError::Start(self.path.clone(), error))?
            }
            None => self.run_here(action, name, value)?,
        };
        match outcome {
            Some(status) if !status.success() => {
                Err(AnswerError::Status(self.path.clone(), status))
            }
            Some(_) => Ok(()),
            None => Err(AnswerError::TimedOut(self.path.clone())),
        }
    }

    /// Starts the program from this process; `None` if it timed out and was killed.
    fn run_here(
        &self,
        action: &str,
        name: &str,
        value: &str,
    ) -> Result<Option<ExitStatus>, AnswerError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).args([action, name, value]);
        // Standard error is inherited: what the program prints there reaches the error log.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn();
        let child = child.map_err(|error| AnswerError::Start(self.path.clone(), error))?;
        Ok(wait(child))
    }
}

/// Waits for a program to exit; `None` if it timed out and was killed. If this process is the
/// master, its own reaping of child processes may have taken the status. A lost status counts as
/// success: the authority will find out whether the record is there.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let end = Instant::now() + PROGRAM_TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Err(_) => return Some(ExitStatus::default()),
            Ok(None) if Instant::now() < end => std::thread::sleep(PROGRAM_POLL_INTERVAL),
            Ok(None) => {
                // Both only fail if the program has exited meanwhile.
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
        assert_eq!(validation_sni(&identifier("a.test")), "a.test");
        assert_eq!(
            validation_sni(&identifier("192.0.2.5")),
            "5.2.0.192.in-addr.arpa"
        );
        let name = validation_sni(&identifier("2001:db8::1"));
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
    fn a_program_gets_the_action_and_its_status_counts() {
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
