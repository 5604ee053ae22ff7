//! `ssl_conf_command`: commands of OpenSSL's configuration, as far as they apply to Tidegate.
//!
//! <https://docs.openssl.org/master/man3/SSL_CONF_cmd/>. A scope inherits the lines of its parent
//! only if it has no lines of its own. Of several lines about the same setting, the last counts. As
//! in nginx, a command that OpenSSL does not know, a value that it does not accept and a missing
//! file are errors where a server or a proxy uses the lines.

use conf::{Arity, Fault, Inherit, Setter, Setting, Word};
use framework::compile::Compiler;
use rustls::SupportedCipherSuite;

use crate::tls::settings::{OF_SERVERS, no_supported_name, warn_of_missing};
use crate::tls::suites;

mod values;

use values::{FileOpener, PROTOCOL_SWITCHES, PROTOCOLS, VERIFY_MODES, Value};

/// The combined commands of a scope.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `Ciphersuites`: the suites of TLS 1.3, in order of preference.
    pub ciphersuites: Option<Vec<SupportedCipherSuite>>,
    /// `Options KTLS`: whether the kernel encrypts sent data.
    pub kernel_tls: bool,
    /// Files and folders that must exist, in the order of the lines: the words of the command and
    /// of the path, and the type of the value.
    opened: Vec<(Word, Word, Value)>,
    /// The first refused line. It is reported only if the files of the previous lines can be
    /// opened.
    refused: Option<Fault>,
}

/// Declares the directive `ssl_conf_command` of a prefix.
pub static CONF_COMMAND: Setting<Commands> =
    Setting::new("ssl_conf_command", &["name value"], commands)
        .contexts(OF_SERVERS)
        .arity(Arity::exactly(2))
        .inherit(Inherit::List)
        .manual(
            "A command of OpenSSL's configuration. `Ciphersuites` names the suites of TLS 1.3, best first. `Options KTLS` has \
             the kernel encrypt files that go out by `sendfile`, from the first of 64 KiB or more on a connection, where it \
             can; `-KTLS` does not. Others are skipped with a warning.",
        );

/// The commands of OpenSSL 3, case-insensitive, and the types of their values.
const COMMANDS: &[(&str, Value)] = &[
    ("Certificate", Value::File(FileOpener::OfCertificate)),
    ("ChainCAFile", Value::File(FileOpener::OfAuthorities)),
    ("ChainCAPath", Value::LateFolder),
    ("ChainCAStore", Value::Store),
    ("CipherString", Value::Ciphers),
    ("Ciphersuites", Value::Suites),
    ("ClientCAFile", Value::File(FileOpener::Plain)),
    ("ClientCAPath", Value::Folder),
    ("ClientCAStore", Value::Store),
    ("ClientSignatureAlgorithms", Value::Signatures),
    ("Curves", Value::Groups { automatic: false }),
    ("DHParameters", Value::File(FileOpener::Plain)),
    ("ECDHParameters", Value::Groups { automatic: true }),
    ("Groups", Value::Groups { automatic: false }),
    ("MaxProtocol", Value::One(PROTOCOLS)),
    ("MinProtocol", Value::One(PROTOCOLS)),
    ("NumTickets", Value::Number(i64::MAX)),
    ("Options", Value::Switches(OPTIONS)),
    ("PrivateKey", Value::File(FileOpener::OfCertificate)),
    ("Protocol", Value::Switches(PROTOCOL_SWITCHES)),
    ("RecordPadding", Value::Number(PADDING_MAX)),
    ("RequestCAFile", Value::File(FileOpener::Plain)),
    ("RequestCAPath", Value::Folder),
    ("RequestCAStore", Value::Store),
    ("ServerInfoFile", Value::File(FileOpener::OfCertificate)),
    ("SignatureAlgorithms", Value::Signatures),
    ("VerifyCAFile", Value::File(FileOpener::OfAuthorities)),
    ("VerifyCAPath", Value::LateFolder),
    ("VerifyCAStore", Value::Store),
    ("VerifyMode", Value::Switches(VERIFY_MODES)),
];

/// The maximum record size, in bytes (RFC 8446, 5.1).
const PADDING_MAX: i64 = 1 << 14;

/// The values of `Options`.
const OPTIONS: &[&str] = &[
    "AllowNoDHEKEX",
    "AntiReplay",
    "Bugs",
    "CANames",
    "ClientRenegotiation",
    "Compression",
    "DHSingle",
    "ECDHSingle",
    "EmptyFragments",
    "EncryptThenMac",
    "ExtendedMasterSecret",
    "IgnoreUnexpectedEOF",
    "KTLS",
    "KTLSTxZerocopySendfile",
    "MiddleboxCompat",
    "NoRenegotiation",
    "NoResumptionOnRenegotiation",
    "PreferNoDHEKEX",
    "PrioritizeChaCha",
    "RxCertificateCompression",
    "ServerPreference",
    "SessionTicket",
    "StrictCertCheck",
    "TxCertificateCompression",
    "UnsafeLegacyRenegotiation",
    "UnsafeLegacyServerConnect",
];

/// Suites of TLS 1.3 that OpenSSL supports and Tidegate does not.
const OTHER_SUITES: &[&str] = &["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];

impl Commands {
    /// Completes the check of the commands in a scope that uses them.
    ///
    /// # Errors
    /// The first command that OpenSSL refuses, that leaves no suite, or whose file cannot be
    /// opened.
    pub fn accepted(self, compiler: &Compiler<'_>) -> Result<Commands, Fault> {
        for (name, value, kind) in &self.opened {
            values::check(compiler, name, value, *kind)?;
        }
        match self.refused {
            Some(fault) => Err(fault),
            None => Ok(self),
        }
    }

    /// Applies one command. Returns warnings about the parts that have no effect.
    fn take(&mut self, directive: &str, name: &Word, value: &Word) -> Result<Vec<String>, Fault> {
        let known = COMMANDS.iter().find(|(command, _)| is(name, command));
        let Some((_, kind)) = known else {
            return Err(refused_because(name, &value.text(), &unknown(name)));
        };
        if matches!(kind, Value::Suites) {
            self.ciphersuites(directive, name, value)?;
            return Ok(Vec::new());
        }
        if let Some(reason) = kind.refusal(value) {
            return Err(refused(name, &value.text(), &reason));
        }
        if is(name, "Options") {
            return Ok(self.options(directive, value));
        }
        // Files after the first refused line are not checked.
        if kind.is_opened() && self.refused.is_none() {
            self.opened.push((name.clone(), value.clone(), *kind));
        }
        let text = name.text();
        Ok(vec![format!("\"{directive} {text}\" has no effect here")])
    }

    fn ciphersuites(&mut self, directive: &str, name: &Word, value: &Word) -> Result<(), Fault> {
        let chosen = suites::ciphers_of_tls13(&value.text());
        if chosen.found.is_empty() && !chosen.missing.is_empty() {
            let is_other = |name: &String| OTHER_SUITES.contains(&name.as_str());
            return Err(if chosen.missing.iter().any(is_other) {
                Fault::at(
                    value,
                    no_supported_name(directive, &chosen.missing.join(", ")),
                )
            } else {
                let reason = "error:0A0000B9:SSL routines::no cipher match";
                refused(name, &value.text(), reason)
            });
        }
        self.ciphersuites = Some(chosen.found);
        Ok(())
    }

    /// Applies options that OpenSSL knows. Returns warnings about the options that have no effect.
    fn options(&mut self, directive: &str, value: &Word) -> Vec<String> {
        let mut without_effect = Vec::new();
        for (name, on) in values::switches(&value.text()) {
            if name.eq_ignore_ascii_case("KTLS") {
                self.kernel_tls = on;
            } else {
                let sign = if on { "" } else { "-" };
                let text = format!("\"{directive} Options {sign}{name}\" has no effect here");
                without_effect.push(text);
            }
        }
        without_effect
    }
}

/// Whether a word equals this text, ignoring case.
fn is(word: &Word, text: &str) -> bool {
    word.bytes.eq_ignore_ascii_case(text.as_bytes())
}

fn unknown(name: &Word) -> String {
    let name = name.text();
    format!("error:0A000182:SSL routines::unknown cmd name:cmd={name}")
}

/// nginx's error about a bad value, preceded by OpenSSL's specific reason.
fn refused(name: &Word, value: &str, before: &str) -> Fault {
    let text = name.text();
    let reason =
        format!("{before} error:0A000180:SSL routines::bad value:cmd={text}, value={value}");
    refused_because(name, value, reason.trim_start())
}

/// nginx's error, with OpenSSL's reason.
fn refused_because(name: &Word, value: &str, reason: &str) -> Fault {
    let shown = name.text();
    let text = format!("SSL_CONF_cmd(\"{shown}\", \"{value}\") failed (SSL: {reason})");
    Fault::at(name, text)
}

/// The commands of a scope's lines, without warnings about commands that have no effect.
pub fn quietly(setter: &Setter<'_>) -> Result<Commands, Fault> {
    collect(setter, |_, _| ())
}

fn commands(setter: &Setter<'_>) -> Result<Commands, Fault> {
    for line in setter.lines() {
        let value = line.argument(1);
        if is(line.argument(0), "Ciphersuites") {
            warn_of_missing(setter, value, &suites::ciphers_of_tls13(&value.text()));
        }
    }
    collect(setter, |word, text| setter.warn(word, text))
}

fn collect(setter: &Setter<'_>, warn: impl Fn(&Word, String)) -> Result<Commands, Fault> {
    let mut commands = Commands::default();
    for line in setter.lines() {
        let (name, value) = (line.argument(0), line.argument(1));
        match commands.take(&setter.name(), name, value) {
            Ok(without_effect) => without_effect.into_iter().for_each(|text| warn(name, text)),
            Err(fault) => {
                commands.refused.get_or_insert(fault);
            }
        }
    }
    Ok(commands)
}
