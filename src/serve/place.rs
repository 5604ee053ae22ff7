//! The options that `serve` and `accelerate` share: where the server listens, how its connections
//! are secured, and as which user it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use process::{Identity, identity};

use super::addresses;
use super::secure::{self, Internal, Secure, Tls};
use super::words::{readable, text};

/// Where a server is reached, and as whom it serves.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Where to listen: ADDRESS:PORT, a PORT of 127.0.0.1, or an ADDRESS with port 8080; port 0 is
    /// any free one. Without it 127.0.0.1:8080, or the next port that is free
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    listen: Vec<String>,
    /// The same as --listen PORT: a port of 127.0.0.1
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen")]
    port: Option<u16>,
    /// Serve this name to the world: over TLS on port 443, with a certificate from Let's Encrypt,
    /// whose terms of service you agree to by this; port 80 leads there. With --listen, over TLS
    /// just there
    #[arg(long, value_name = "NAME", conflicts_with = "tls")]
    pub(crate) domain: Vec<String>,
    /// Another server of ACME than Let's Encrypt: the URL of its directory
    #[arg(long, value_name = "URL", requires = "domain")]
    acme: Option<String>,
    /// Authorities that this server is trusted by, in PEM
    #[arg(long, value_name = "FILE", requires = "acme")]
    acme_authorities: Option<PathBuf>,
    /// Serve over TLS with a certificate that an authority of this machine signs
    #[arg(long, value_enum, conflicts_with = "print_configuration")]
    tls: Option<Tls>,
    /// Where certificates and authorities are kept; without it /var/lib/tidegate for root, else
    /// tidegate in $XDG_STATE_HOME or ~/.local/state
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Whom to serve as when started by root: without it who called sudo, else nobody
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Print the configuration that this amounts to, and serve nothing
    #[arg(long)]
    pub(crate) print_configuration: bool,
}

impl Place {
    /// The addresses to serve at, and the addresses that only redirect from plain HTTP to TLS.
    pub(crate) fn listen(&self) -> (Vec<String>, Vec<String>) {
        let ports = |port: u16| vec![format!("0.0.0.0:{port}"), format!("[::]:{port}")];
        let is_asked_for = !self.listen.is_empty() || self.port.is_some();
        if !is_asked_for && !self.domain.is_empty() {
            (ports(443), ports(80))
        } else {
            let port = self.port.map(|port| port.to_string());
            let listen = self.listen.iter().cloned().chain(port);
            (listen.collect(), Vec::new())
        }
    }

    /// The security of the site's connections; `None` for plain HTTP. Files that are needed for it
    /// are added to the texts.
    pub(crate) fn secure(
        &self,
        addresses: &[SocketAddr],
        folder: &Path,
        texts: &mut BTreeMap<PathBuf, Vec<u8>>,
        notes: &mut String,
    ) -> Result<Option<Secure>, String> {
        if self.tls.is_none() && self.domain.is_empty() {
            return Ok(None);
        }
        let state = secure::state_folder(self.state.clone())?;
        if self.tls.is_none() {
            let authorities = self.acme_authorities.as_deref().map(readable);
            let authorities = authorities.transpose()?.as_deref().map(text).transpose()?;
            let directory = self.acme.clone();
            return Secure::domains(&self.domain, directory, authorities, &state).map(Some);
        }
        let Internal {
            certificate,
            key,
            note,
        } = secure::internal(&state, addresses)?;
        notes.push_str(&note);
        let (certificate_path, key_path) = (folder.join("site.crt"), folder.join("site.key"));
        let files = Secure::Files {
            certificate: text(&certificate_path)?,
            key: text(&key_path)?,
        };
        texts.insert(certificate_path, certificate.into_bytes());
        texts.insert(key_path, key.into_bytes());
        Ok(Some(files))
    }

    /// A warning if the server listens on every interface, which is not obvious from `:8080`. A
    /// site with a domain is meant to be public.
    pub(crate) fn exposure_warning(&self, addresses: &[SocketAddr], what: &str) -> String {
        let open = addresses
            .iter()
            .find(|address| address.ip().is_unspecified());
        match open {
            Some(address) if self.domain.is_empty() => format!(
                "Every interface is open: all who reach this machine can {what}. --port {} keeps it to this machine.\n",
                address.port()
            ),
            _ => String::new(),
        }
    }
}

/// The URLs at which the site is reached.
pub(crate) fn urls(addresses: &[SocketAddr], secure: Option<&Secure>) -> Vec<String> {
    match secure {
        Some(Secure::Domains { names, .. }) => {
            let port = match addresses.first().map(SocketAddr::port) {
                None | Some(443) => String::new(),
                Some(port) => format!(":{port}"),
            };
            let url = |name: &String| format!("https://{name}{port}/");
            names.iter().map(url).collect()
        }
        Some(Secure::Files { .. }) => {
            let urls = addresses::urls(addresses).into_iter();
            urls.map(|url| url.replacen("http://", "https://", 1))
                .collect()
        }
        None => addresses::urls(addresses),
    }
}

/// The user that the worker process runs as.
pub(crate) struct User {
    /// The arguments of `user`.
    pub(crate) line: String,
    pub(crate) identity: Identity,
}

/// The user to serve as; `None` if this process is not root.
pub(crate) fn worker_user(wanted: Option<String>) -> Result<Option<User>, String> {
    if !identity::is_superuser() {
        return match wanted {
            Some(_) => Err("--user is for root only".to_owned()),
            None => Ok(None),
        };
    }
    let resolve = |user: &str, group: Option<&str>| {
        let identity = Identity::resolve(user, group)?;
        let line = [user]
            .into_iter()
            .chain(group)
            .collect::<Vec<_>>()
            .join(" ");
        Ok::<_, identity::UnknownName>(User { line, identity })
    };
    if let Some(name) = wanted {
        return resolve(&name, None)
            .map(Some)
            .map_err(|error| error.to_string());
    }
    let caller = std::env::var("SUDO_USER")
        .ok()
        .and_then(|name| resolve(&name, None).ok());
    let user = match caller {
        Some(user) => user,
        None => resolve("nobody", Some("nogroup"))
            .or_else(|_| resolve("nobody", None))
            .map_err(|error| error.to_string())?,
    };
    Ok(Some(user))
}

impl User {
    /// A warning if the user may not enter the folder: every response would be 403.
    pub(super) fn warning(&self, directory: &Path) -> Option<String> {
        let closed = directory
            .ancestors()
            .find(|folder| !self.may_enter(folder))?;
        Some(format!(
            "Warning: user {} may not enter {}, so every answer will be 403; --user NAME serves \
             as somebody else.\n",
            self.identity.name,
            closed.display()
        ))
    }

    pub(crate) fn may_enter(&self, folder: &Path) -> bool {
        const EXECUTE: u32 = 0o111;
        self.may(folder, EXECUTE)
    }

    /// Whether the user may connect to a socket, judged by file modes.
    pub(crate) fn may_connect(&self, socket: &Path) -> bool {
        const WRITE: u32 = 0o222;
        let real = socket.canonicalize();
        let mut folders = real.iter().flat_map(|path| path.ancestors().skip(1));
        self.may(socket, WRITE) && folders.all(|folder| self.may_enter(folder))
    }

    /// Whether the mode of a file grants the user any of the bits.
    fn may(&self, path: &Path, bits: u32) -> bool {
        let Ok(metadata) = path.metadata() else {
            return true;
        };
        let Identity {
            user,
            group,
            ref groups,
            ..
        } = self.identity;
        let owner = metadata.gid();
        let whose = if user == 0 || metadata.uid() == user {
            0o700
        } else if owner == group || groups.contains(&owner) {
            0o070
        } else {
            0o007
        };
        user == 0 || metadata.mode() & bits & whose != 0
    }

    pub(crate) fn name(&self) -> &str {
        &self.identity.name
    }

    pub(crate) fn number(&self) -> u32 {
        self.identity.user
    }

    pub(crate) fn is_root(&self) -> bool {
        self.identity.user == 0
    }

    /// Lines of a php-fpm pool: the user of the pool and the owner of its socket.
    pub(crate) fn pool_lines(&self) -> String {
        let Identity {
            name, user, group, ..
        } = &self.identity;
        format!("user = {name}\ngroup = {group}\nlisten.owner = {user}\nlisten.group = {group}\n")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        place: Place,
    }

    #[test]
    fn an_open_interface_is_said_to_be_open() {
        let said = |line: &[&str], address: &str| {
            let line = ["serve"].iter().chain(line);
            let place = Command::parse_from(line).place;
            place.exposure_warning(&[address.parse().unwrap()], "read the folder")
        };
        let text = said(&["--listen", ":8080"], "0.0.0.0:8080");
        assert!(text.starts_with("Every interface is open") && text.contains("--port 8080"));
        assert!(!said(&["--listen", "[::]:8080"], "[::]:8080").is_empty());
        assert_eq!(said(&["--port", "8080"], "127.0.0.1:8080"), "");
        assert_eq!(said(&["--domain", "a.test"], "0.0.0.0:443"), "");
    }
}
