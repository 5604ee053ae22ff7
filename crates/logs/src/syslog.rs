//! `syslog:server=…`: logs that go to a syslog server.
//!
//! <https://nginx.org/en/docs/syslog.html>. Each line is one message and is sent at once; a message
//! that does not fit the socket, or that the server does not accept, is lost. `base::syslog`
//! formats and sends messages.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::syslog::{Channel, Destination, Server};
use conf::{Fault, Files, Word};
use engine::net::Address;
use framework::address;
use framework::display::Errno;
use framework::host::hostname;

use super::{Level, process_error, time};

/// The default port of a server.
const DEFAULT_PORT: u16 = 514;

/// Maximum length of a tag (RFC 3164, section 4.1.3).
const TAG_MAX: usize = 32;

/// Minimum interval between reports about failures of one server, as for files.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// nginx's names; a facility's number is its index.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
const LOCAL7: u8 = 23;

/// The parameters after `syslog:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogTarget {
    server: Word,
    facility: u8,
    severity: Level,
    tag: String,
    nohostname: bool,
}

impl SyslogTarget {
    /// Parses the parameters. Errors are nginx's.
    pub fn parse(word: &Word) -> Result<SyslogTarget, Fault> {
        let fault = |text: String| Fault::at(word, text);
        let text = word.text();
        let parameters = text.strip_prefix("syslog:").unwrap_or(&text);
        let (mut server, mut facility, mut severity, mut tag) = (None, None, None, None);
        let mut nohostname = false;
        for parameter in parameters.split(',') {
            let duplicate = |name: &str| fault(format!("duplicate syslog \"{name}\""));
            if let Some(address) = parameter.strip_prefix("server=") {
                let address = Word {
                    bytes: address.as_bytes().into(),
                    ..word.clone()
                };
                if server.replace(address).is_some() {
                    return Err(duplicate("server"));
                }
            } else if let Some(name) = parameter.strip_prefix("facility=") {
                let known = FACILITIES.iter().position(|known| *known == name);
                let number = known.and_then(|number| u8::try_from(number).ok());
                let unknown = || fault(format!("unknown syslog facility \"{name}\""));
                if facility.replace(number.ok_or_else(unknown)?).is_some() {
                    return Err(duplicate("facility"));
                }
            } else if let Some(name) = parameter.strip_prefix("severity=") {
                let known = Level::ALL.into_iter().find(|level| level.name() == name);
                let unknown = || fault(format!("unknown syslog severity \"{name}\""));
                if severity.replace(known.ok_or_else(unknown)?).is_some() {
                    return Err(duplicate("severity"));
                }
            } else if let Some(name) = parameter.strip_prefix("tag=") {
                if tag.replace(check_tag(word, name)?).is_some() {
                    return Err(duplicate("tag"));
                }
            } else if parameter == "nohostname" {
                nohostname = true;
            } else {
                return Err(fault(format!("unknown syslog parameter \"{parameter}\"")));
            }
        }
        Ok(SyslogTarget {
            server: server.ok_or_else(|| fault("no syslog server specified".to_owned()))?,
            facility: facility.unwrap_or(LOCAL7),
            severity: severity.unwrap_or(Level::Info),
            tag: tag.unwrap_or_else(|| "nginx".to_owned()),
            nohostname,
        })
    }

    /// Resolves the server's name. The first message opens the socket.
    pub fn open(&self, files: &dyn Files) -> Result<Syslog, Fault> {
        let fault = |text: &str| {
            let text = format!("{text} in syslog server \"{}\"", self.server.text());
            Fault::at(&self.server, text)
        };
        let written = address::parse(&self.server.bytes).map_err(fault)?;
        let found = written.resolve(files, DEFAULT_PORT).unwrap_or_default();
        let server = match found.into_iter().next() {
            Some(Address::Inet(address)) => Server::Inet(SocketAddr::new(
                address.ip(),
                written.port.unwrap_or(DEFAULT_PORT),
            )),
            Some(Address::Unix(path)) => Server::Unix(path),
            None => return Err(fault("host not found")),
        };
        let destination = Destination {
            server,
            facility: self.facility,
            tag: self.tag.clone(),
            hostname: (!self.nohostname).then(|| hostname().to_owned()),
        };
        Ok(Syslog {
            channel: Channel::new(destination),
            severity: self.severity,
            reported: Mutex::new(None),
        })
    }
}

fn check_tag(word: &Word, tag: &str) -> Result<String, Fault> {
    if tag.len() > TAG_MAX {
        return Err(Fault::at(word, "syslog tag length exceeds 32"));
    }
    // nginx accepts every byte between the digits and the letters, too.
    let allowed = |byte: u8| matches!(byte.to_ascii_lowercase(), b'0'..=b'9' | b'_' | b'a'..=b'z');
    if !tag.bytes().all(allowed) {
        let text = "syslog \"tag\" only allows alphanumeric characters and underscore";
        return Err(Fault::at(word, text));
    }
    Ok(tag.to_owned())
}

/// The syslog server of one line of a directive.
#[derive(Debug)]
pub struct Syslog {
    channel: Channel,
    /// The severity of access log lines; error log lines have their own.
    severity: Level,
    /// When a failure was last reported.
    reported: Mutex<Option<Instant>>,
}

thread_local! {
    /// Whether this thread is reporting a failure: the report itself may fail in the same way.
    static REPORTING: Cell<bool> = const { Cell::new(false) };
}

impl Syslog {
    /// The syslog server that messages go to.
    pub fn destination(&self) -> &Destination {
        &self.channel.destination
    }

    /// Sends a line of an access log, without its end.
    pub fn send_access(&self, line: &[u8]) {
        self.send(self.severity, line);
    }

    /// Sends a line of an error log, without its end.
    pub fn send_error(&self, level: Level, line: &[u8]) {
        self.send(level, line.strip_suffix(b"\n").unwrap_or(line));
    }

    fn send(&self, severity: Level, line: &[u8]) {
        let time = time::with_now(|now| now.syslog);
        match self.channel.send(severity as u8 - 1, &time, line) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => self.report(&error),
        }
    }

    /// Reports a failure to the main log, at most once per [`REPORT_INTERVAL`].
    fn report(&self, error: &std::io::Error) {
        if REPORTING.get() || !self.is_report_due() {
            return;
        }
        REPORTING.set(true);
        let (error, server) = (Errno(error), &self.destination().server);
        process_error(
            Level::Error,
            format_args!("send() failed {error} while logging to syslog, server: {server}"),
        );
        REPORTING.set(false);
    }

    fn is_report_due(&self) -> bool {
        let now = engine::now();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let due = reported.is_none_or(|last| now.duration_since(last) >= REPORT_INTERVAL);
        if due {
            *reported = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<SyslogTarget, String> {
        let word = Word {
            bytes: text.as_bytes().into(),
            quoted: false,
            position: Default::default(),
        };
        SyslogTarget::parse(&word).map_err(|fault| fault.message)
    }

    #[test]
    fn parameters_and_their_defaults() {
        let plain = parsed("syslog:server=127.0.0.1").unwrap();
        assert_eq!((plain.facility, plain.severity), (23, Level::Info));
        assert_eq!((plain.tag.as_str(), plain.nohostname), ("nginx", false));
        let syslog = plain.open(&conf::Disk).unwrap();
        assert_eq!(syslog.destination().server.to_string(), "127.0.0.1:514");

        let full = "syslog:tag=A_1,nohostname,severity=alert,server=unix:/log,facility=user";
        let full = parsed(full).unwrap();
        assert_eq!((full.facility, full.severity), (1, Level::Alert));
        assert_eq!((full.tag.as_str(), full.nohostname), ("A_1", true));
        let syslog = full.open(&conf::Disk).unwrap();
        assert_eq!(syslog.destination().server.to_string(), "unix:/log");
        assert_eq!(syslog.destination().hostname, None);
    }

    /// Texts from nginx 1.31.
    #[test]
    fn faults_in_nginx_words() {
        for (text, fault) in [
            ("tag=x", "no syslog server specified"),
            ("server=a,server=b", "duplicate syslog \"server\""),
            (
                "facility=user,facility=user",
                "duplicate syslog \"facility\"",
            ),
            ("facility=nobody", "unknown syslog facility \"nobody\""),
            ("severity=err", "unknown syslog severity \"err\""),
            (
                "tag=a-b",
                "syslog \"tag\" only allows alphanumeric characters and underscore",
            ),
            (
                "tag=a23456789012345678901234567890123",
                "syslog tag length exceeds 32",
            ),
            ("server=a,", "unknown syslog parameter \"\""),
            ("host=a", "unknown syslog parameter \"host=a\""),
        ] {
            let text = format!("syslog:{text}");
            assert_eq!(parsed(&text).map(drop), Err(fault.to_owned()), "{text}");
        }
        let fault = parsed("syslog:server=a:x")
            .unwrap()
            .open(&conf::Disk)
            .unwrap_err();
        assert_eq!(fault.message, "invalid port in syslog server \"a:x\"");
    }
}
