//! `ssl_conf_command`: commands of OpenSSL's configuration, as far as they mean something here.
//!
//! <https://docs.openssl.org/master/man3/SSL_CONF_cmd/>. A line inherits with all lines beside it; of several about the same
//! thing the last counts. What OpenSSL does not know is refused as nginx does, where a server or a proxy uses the lines; of
//! the values those of `Ciphersuites`, `CipherString`, `Groups`, `Options` and the choices below are judged, the others are
//! OpenSSL's affair.

use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, Word};
use rustls::SupportedCipherSuite;

use crate::tls::settings::{nothing_of, warn_of_missing};
use crate::tls::suites;

/// What the commands of a scope come to.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `Ciphersuites`: the suites of TLS 1.3, best first.
    pub ciphersuites: Option<Vec<SupportedCipherSuite>>,
    /// `Options KTLS`: whether the kernel shall seal what is sent.
    pub kernel_tls: bool,
    /// The first that is refused.
    refused: Option<Fault>,
}

/// The directive.
pub static CONF_COMMAND: Setting<Commands> =
    Setting::new("ssl_conf_command", &["name value"], commands)
        .contexts(Contexts::HTTP.or(Contexts::SERVER))
        .arity(Arity::exactly(2))
        .inherit(Inherit::List)
        .manual(
            "A command of OpenSSL's configuration. `Ciphersuites` names the suites of TLS 1.3, best first. `Options KTLS` has \
             the kernel encrypt files that go out by `sendfile`, from the first of 64 KiB or more on a connection, where it \
             can; `-KTLS` does not. Others are skipped with a warning.",
        );

/// The commands that OpenSSL 3 has, and of some the values that they may have. Both in any case.
const COMMANDS: &[(&str, &[&str])] = &[
    ("Certificate", &[]),
    ("ChainCAFile", &[]),
    ("ChainCAPath", &[]),
    ("ChainCAStore", &[]),
    ("CipherString", &[]),
    ("Ciphersuites", &[]),
    ("ClientCAFile", &[]),
    ("ClientCAPath", &[]),
    ("ClientSignatureAlgorithms", &[]),
    ("Curves", &[]),
    ("DHParameters", &[]),
    ("ECDHParameters", &[]),
    ("Groups", &[]),
    ("MaxProtocol", PROTOCOLS),
    ("MinProtocol", PROTOCOLS),
    ("NumTickets", &[]),
    ("Options", &[]),
    ("PrivateKey", &[]),
    ("Protocol", &[]),
    ("RecordPadding", &[]),
    ("RequestCAFile", &[]),
    ("RequestCAPath", &[]),
    ("RequestCAStore", &[]),
    ("ServerInfoFile", &[]),
    ("SignatureAlgorithms", &[]),
    ("VerifyCAFile", &[]),
    ("VerifyCAPath", &[]),
    ("VerifyCAStore", &[]),
    ("VerifyMode", &[]),
];

/// Versions of the protocols.
const PROTOCOLS: &[&str] = &[
    "None", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", "DTLSv1", "DTLSv1.2",
];

/// What `Options` may name.
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

/// Suites of TLS 1.3 that OpenSSL has and that are not here.
const OTHER_SUITES: &[&str] = &["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];

impl Commands {
    /// The same, where it is used.
    ///
    /// # Errors
    /// The first command that OpenSSL refuses, or that leaves nothing.
    pub fn accepted(self) -> Result<Commands, Fault> {
        match self.refused {
            Some(fault) => Err(fault),
            None => Ok(self),
        }
    }

    /// Takes a command of a line, and says what of it has no effect.
    fn take(&mut self, directive: &str, name: &Word, value: &Word) -> Result<Vec<String>, Fault> {
        let known = COMMANDS.iter().find(|(command, _)| is(name, command));
        let Some((_, values)) = known else {
            return Err(refused(name, value, &unknown(name)));
        };
        if is(name, "Ciphersuites") {
            self.ciphersuites(directive, name, value)?;
            return Ok(Vec::new());
        }
        if let Some(reason) = refusal(name, value) {
            let reason = format!("{reason} {}", bad_value(name, value));
            return Err(refused(name, value, reason.trim_start()));
        }
        if is(name, "Options") {
            return self.options(directive, name, value);
        }
        if !values.is_empty() && !values.iter().any(|known| is(value, known)) {
            return Err(refused(name, value, &bad_value(name, value)));
        }
        let text = name.text();
        Ok(vec![format!("\"{directive} {text}\" has no effect here")])
    }

    fn ciphersuites(&mut self, directive: &str, name: &Word, value: &Word) -> Result<(), Fault> {
        let chosen = suites::ciphers_of_tls13(&value.text());
        if chosen.found.is_empty() && !chosen.missing.is_empty() {
            let is_other = |name: &String| OTHER_SUITES.contains(&name.as_str());
            return Err(match chosen.missing.iter().any(is_other) {
                true => Fault::at(value, nothing_of(directive, &chosen.missing.join(", "))),
                false => {
                    let no_match = "error:0A0000B9:SSL routines::no cipher match";
                    let reason = format!("{no_match} {}", bad_value(name, value));
                    refused(name, value, &reason)
                }
            });
        }
        self.ciphersuites = Some(chosen.found);
        Ok(())
    }

    /// Options between commas, each switched off by a hyphen before it.
    fn options(
        &mut self,
        directive: &str,
        name: &Word,
        value: &Word,
    ) -> Result<Vec<String>, Fault> {
        let mut without_effect = Vec::new();
        for option in value.text().split(',').map(str::trim) {
            let (bare, on) = match option.strip_prefix('-') {
                Some(bare) => (bare, false),
                None => (option.strip_prefix('+').unwrap_or(option), true),
            };
            if bare.eq_ignore_ascii_case("KTLS") {
                self.kernel_tls = on;
            } else if OPTIONS.iter().any(|known| known.eq_ignore_ascii_case(bare)) {
                let text = format!("\"{directive} Options {option}\" has no effect here");
                without_effect.push(text);
            } else {
                return Err(refused(name, value, &bad_value(name, value)));
            }
        }
        Ok(without_effect)
    }
}

/// Why OpenSSL refuses a list of groups or of ciphers.
fn refusal(name: &Word, value: &Word) -> Option<String> {
    let has_groups = ["Groups", "Curves", "ECDHParameters"];
    if is(name, "CipherString") {
        return suites::ciphers(&value.text()).refused;
    }
    if !has_groups.iter().any(|known| is(name, known)) {
        return None;
    }
    let is_automatic = is(value, "automatic") || is(value, "+automatic");
    if is(name, "ECDHParameters") && is_automatic {
        return None;
    }
    suites::groups(&value.text()).refused
}

/// Whether a word is this one, in any case.
fn is(word: &Word, text: &str) -> bool {
    word.bytes.eq_ignore_ascii_case(text.as_bytes())
}

fn unknown(name: &Word) -> String {
    let name = name.text();
    format!("error:0A000182:SSL routines::unknown cmd name:cmd={name}")
}

fn bad_value(name: &Word, value: &Word) -> String {
    let (name, value) = (name.text(), value.text());
    format!("error:0A000180:SSL routines::bad value:cmd={name}, value={value}")
}

/// nginx's error, with OpenSSL's reason.
fn refused(name: &Word, value: &Word, reason: &str) -> Fault {
    let (shown, shown_value) = (name.text(), value.text());
    let text = format!("SSL_CONF_cmd(\"{shown}\", \"{shown_value}\") failed (SSL: {reason})");
    Fault::at(name, text)
}

/// The commands of a scope's lines, without a warning of what has no effect.
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
