//! TLS for `serve`: with a certificate signed by an authority of this machine (`--tls internal`),
//! or by one that every browser trusts (`--domain`).
//!
//! Both are expressed as directives and files of an ordinary configuration.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use acme::{Authority, Identifier, StateFolder};

use super::addresses;
use super::words::{quoted, text};

/// The ACME directory of Let's Encrypt.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The values of `--tls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tls {
    /// An authority of this machine signs a certificate for localhost and the addresses.
    Internal,
}

/// The security of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secure {
    /// TLS with a certificate and its key in these files.
    Files { certificate: String, key: String },
    /// TLS with automatically obtained certificates for these names.
    Domains {
        names: Vec<String>,
        directory: String,
        /// Authorities that the ACME server's certificate is verified with.
        authorities: Option<String>,
        state: String,
    },
}

/// A locally signed certificate for this machine.
pub(crate) struct Internal {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// Instructions for trusting the authority.
    pub(crate) note: String,
}

impl Secure {
    /// Certificates for domains; each must be a valid name.
    pub(crate) fn domains(
        names: &[String],
        directory: Option<String>,
        authorities: Option<String>,
        state: &Path,
    ) -> Result<Secure, String> {
        for name in names {
            let parsed = Identifier::parse(name.as_bytes());
            parsed.map_err(|error| format!("--domain {name}: {error}"))?;
        }
        Ok(Secure::Domains {
            names: names.to_vec(),
            directory: directory.unwrap_or_else(|| LETS_ENCRYPT.to_owned()),
            authorities,
            state: text(&state.join("acme"))?,
        })
    }

    /// Lines of the `http` block.
    pub(crate) fn http_lines(&self) -> String {
        let Secure::Domains {
            directory,
            authorities,
            state,
            ..
        } = self
        else {
            return String::new();
        };
        let authorities = authorities
            .as_ref()
            .map(|path| format!("        ssl_trusted_certificate {};\n", quoted(path)));
        format!(
            "    acme_issuer serve {{\n        uri {};\n{}        challenge tls-alpn-01;\n        \
             state_path {};\n        accept_terms_of_service;\n        announce on;\n    }}\n",
            quoted(directory),
            authorities.unwrap_or_default(),
            quoted(state),
        )
    }

    /// Lines of the `server` block.
    pub(crate) fn server_lines(&self) -> Vec<String> {
        match self {
            Secure::Files { certificate, key } => vec![
                format!("ssl_certificate {};", quoted(certificate)),
                format!("ssl_certificate_key {};", quoted(key)),
            ],
            Secure::Domains { names, .. } => vec![
                format!("server_name {};", names.join(" ")),
                "acme_certificate serve;".to_owned(),
                "ssl_certificate $acme_certificate;".to_owned(),
                "ssl_certificate_key $acme_certificate_key;".to_owned(),
            ],
        }
    }
}

/// Creates a certificate for localhost and these addresses, signed by the authority in the state
/// folder.
pub(crate) fn internal(
    state: &Path,
    listening: &[std::net::SocketAddr],
) -> Result<Internal, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!(
            "the authority in {} cannot be used: {error}",
            state.display()
        )
    };
    let provider = transport::tls::provider();
    let authority =
        Authority::open(&StateFolder::new(state), provider).map_err(|error| failed(&error))?;
    let mut identifiers: Vec<Identifier> = ["localhost", "127.0.0.1", "::1"]
        .iter()
        .filter_map(|name| Identifier::parse(name.as_bytes()).ok())
        .flatten()
        .collect();
    for address in listening
        .iter()
        .filter(|address| !address.ip().is_unspecified())
    {
        let identifier = Identifier::Ip(address.ip());
        if !identifiers.contains(&identifier) {
            identifiers.push(identifier);
        }
    }
    let (certificate, key) = authority
        .sign(&identifiers)
        .map_err(|error| failed(&error))?;
    let path = state.join(acme::AUTHORITY_CERTIFICATE);
    // The certificate is no secret, and a user who runs this with sudo must be able to import it
    // into a browser without root's permissions.
    std::fs::set_permissions(&path, Permissions::from_mode(0o644))
        .map_err(|error| failed(&error))?;
    let verb = if authority.is_new { "made" } else { "found" };
    let url = addresses::urls(listening).into_iter().next();
    let url = url.map(|url| url.replacen("http://", "https://", 1));
    Ok(Internal {
        certificate,
        key,
        note: trust_note(
            verb,
            &shell_word(&path.to_string_lossy()),
            &url.unwrap_or_default(),
        ),
    })
}

/// Instructions for making programs trust the authority whose certificate is in this file.
fn trust_note(verb: &str, file: &str, url: &str) -> String {
    /// Folders in which systems keep additional authorities, and the command that imports them.
    const STORES: [(&str, &str); 2] = [
        (
            "/usr/local/share/ca-certificates",
            "update-ca-certificates", // Debian, Ubuntu, Alpine
        ),
        ("/etc/pki/ca-trust/source/anchors", "update-ca-trust"), // Fedora and its family, SUSE
    ];
    let mut stores = STORES
        .iter()
        .filter(|(folder, _)| Path::new(folder).is_dir());
    let system = match stores.next() {
        Some((folder, command)) => {
            format!("sudo cp {file} {folder}/tidegate.crt && sudo {command}")
        }
        None => format!("sudo trust anchor {file}"),
    };
    format!(
        "The authority of this machine was {verb}. What is to trust it needs its certificate:\n  \
         curl          curl --cacert {file} {url}\n  \
         this system   {system}\n  \
         Chromium      certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n tidegate -i {file}\n  \
         Firefox       Settings, Privacy & Security, View Certificates, Authorities, Import: {file}\n"
    )
}

/// A path quoted for a shell.
fn shell_word(path: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@%".contains(letter);
    if path.chars().all(plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

/// The folder of authorities, accounts and certificates: `--state`, or the system's default
/// location.
pub(crate) fn state_folder(wanted: Option<PathBuf>) -> Result<PathBuf, String> {
    let folder = wanted.or_else(|| {
        if process::identity::is_superuser() {
            return Some(PathBuf::from("/var/lib/tidegate"));
        }
        let own = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let own = own.filter(|path| path.is_absolute());
        let own =
            own.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")));
        own.map(|path| path.join("tidegate"))
    });
    let folder =
        folder.ok_or("there is no HOME to keep certificates in, name a folder by --state")?;
    std::fs::create_dir_all(&folder).map_err(|error| {
        process::log::failure(&format!("mkdir() \"{}\" failed", folder.display()), &error)
    })?;
    folder.canonicalize().map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be used", folder.display()), &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_a_shell() {
        assert_eq!(
            shell_word("/var/lib/tidegate/a.crt"),
            "/var/lib/tidegate/a.crt"
        );
        assert_eq!(shell_word("/a b/it's"), r"'/a b/it'\''s'");
    }
}
