//! `ssl_conf_command`: commands of OpenSSL's configuration, as far as they mean something here.
//!
//! <https://docs.openssl.org/master/man3/SSL_CONF_cmd/>. A line inherits with all lines beside it; of several about the same
//! thing the last counts.

use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, Word};
use rustls::SupportedCipherSuite;

use crate::tls::settings::skip;
use crate::tls::suites;

/// What the commands of a scope come to.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `Ciphersuites`: the suites of TLS 1.3, best first.
    pub ciphersuites: Option<Vec<SupportedCipherSuite>>,
    /// `Options KTLS`: whether the kernel shall seal what is sent.
    pub kernel_tls: bool,
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

fn commands(setter: &Setter<'_>) -> Result<Commands, Fault> {
    let mut commands = Commands::default();
    for line in setter.lines() {
        let (name, value) = (line.argument(0), line.argument(1));
        if name.bytes.eq_ignore_ascii_case(b"Ciphersuites") {
            let chosen = suites::ciphers_of_tls13(&value.text());
            skip(setter, value, &chosen.found, &chosen.missing)?;
            commands.ciphersuites = Some(chosen.found);
        } else if name.bytes.eq_ignore_ascii_case(b"Options") {
            options(setter, value, &mut commands);
        } else {
            let text = name.text();
            setter.warn(
                name,
                format!("\"ssl_conf_command {text}\" has no effect here"),
            );
        }
    }
    Ok(commands)
}

/// Options between commas, each switched off by a hyphen before it.
fn options(setter: &Setter<'_>, value: &Word, commands: &mut Commands) {
    for option in value.text().split(',') {
        let (name, on) = match option.strip_prefix('-') {
            Some(name) => (name, false),
            None => (option.strip_prefix('+').unwrap_or(option), true),
        };
        if name.eq_ignore_ascii_case("KTLS") {
            commands.kernel_tls = on;
        } else {
            setter.warn(
                value,
                format!("\"ssl_conf_command Options {option}\" has no effect here"),
            );
        }
    }
}
