//! `tidegate serve DIR`: a site without any configuration.
//!
//! Nothing is served by other code than everywhere else: the arguments become the text of a
//! configuration ([`configuration`]), which takes the way of every configuration. Here are the
//! arguments, the addresses and what is printed.
//!
//! Deliberately not here: passing requests on (but to PHP), several sites, reload. Who wants those writes a
//! configuration; `--print-configuration` is the one to begin with.

mod addresses;
mod configuration;
mod password;
pub(crate) mod php;
mod secure;
mod types;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use process::{Action, ErrorLog, Identity, Options, identity};

use crate::application::{Texts, Tidegate};
use crate::private_folder::PrivateFolder;
pub(crate) use configuration::quoted;
use configuration::{AccessLog, Site};
use php::Php;
use php::locations::Treatment;
use secure::{Internal, Secure, Tls};

/// Serve a folder, without any configuration
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Where to listen: ADDRESS:PORT, a PORT of 127.0.0.1, or an ADDRESS with port 8080; port 0 is
    /// any free one. Without it 127.0.0.1:8080, or the next port that is free
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    listen: Vec<String>,
    /// The same as --listen PORT: a port of 127.0.0.1
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen")]
    port: Option<u16>,
    /// Serve this name to the world: over TLS on port 443, with a certificate from Let's Encrypt, whose
    /// terms of service you agree to by this; port 80 leads there. With --listen, over TLS just there
    #[arg(long, value_name = "NAME", conflicts_with = "tls")]
    domain: Vec<String>,
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
    /// List folders that have no index.html
    #[arg(long)]
    browse: bool,
    /// Answer unknown paths without an extension with /index.html, for applications of one page
    #[arg(long)]
    spa: bool,
    /// Let pages of any origin read the site
    #[arg(long)]
    cors: bool,
    /// Ask for a name and a password; USER alone takes the password from the environment variable
    /// TIDEGATE_PASSWORD
    #[arg(long, value_name = "USER:PASSWORD")]
    password: Option<String>,
    /// Ask for a name and a password of this file, which htpasswd makes
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// Serve names that begin with a dot, too (.git, .env)
    #[arg(long, conflicts_with = "php")]
    hidden: bool,
    /// Run PHP, with index.php as what answers unknown paths: by a php-fpm that listens where distributions
    /// have it or on 127.0.0.1:9000, else by a pool of its own; or by the php-fpm at HOST:PORT or unix:PATH,
    /// or by a pool of the program PATH
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    php: Option<String>,
    /// Send the source of PHP as files; without it and --php it is refused
    #[arg(long, conflicts_with = "php")]
    php_source: bool,
    /// Types by extension, in the format of nginx's mime.types, in addition to the built-in ones
    #[arg(long, value_name = "FILE")]
    types: Option<PathBuf>,
    /// Whom to serve as when started by root: without it who called sudo, else nobody
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Print the configuration that this amounts to, and serve nothing
    #[arg(long, conflicts_with = "password")]
    print_configuration: bool,
}

/// Serves until the process is told to end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match prepare(arguments) {
        Ok(Some(prepared)) => prepared.serve(),
        Ok(None) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

/// All that is known before anything is served.
struct Prepared {
    options: Options,
    text: String,
    /// Files of the configuration that are on no disk.
    texts: BTreeMap<PathBuf, Vec<u8>>,
    announcement: String,
    /// Ended when it is dropped, at the end.
    _pool: Option<php::Pool>,
    /// Removed when it is dropped, at the end.
    _folder: PrivateFolder,
}

/// Works out everything; nothing is left to do where the configuration was only to be printed.
fn prepare(arguments: Arguments) -> Result<Option<Prepared>, String> {
    let directory = folder(&arguments.directory)?;
    if arguments.spa && !directory.join("index.html").is_file() {
        let directory = directory.display();
        return Err(format!(
            "--spa answers with index.html, which {directory} does not have"
        ));
    }
    if arguments.spa && arguments.php.is_some() && directory.join("index.php").exists() {
        let directory = directory.display();
        return Err(format!(
            "--spa has index.html answer unknown paths, and --php has index.php do it; {directory} has both, so leave out --spa"
        ));
    }
    let (listen, plain) = listen(&arguments);
    let chosen = addresses::choose(&listen)?;
    let plain = match plain.is_empty() {
        true => Vec::new(),
        false => addresses::choose(&plain)?.addresses,
    };
    let user = worker_user(arguments.user.clone())?;
    let credentials = arguments.password.as_deref();
    let credentials = credentials.map(password::credentials).transpose()?;
    // Which may take seconds: before there is anything that a signal would leave behind.
    let wanted = arguments.php.as_deref();
    let php = wanted.map(|wanted| php::find(wanted, &directory, user.as_ref()));
    let php = php.transpose()?;
    let folder = match arguments.php {
        // Uploads go through it.
        Some(_) => PrivateFolder::roomy("serve"),
        None => PrivateFolder::temporary("serve"),
    };
    let folder = folder.map_err(|(path, error)| {
        process::log::failure(&format!("mkdir() \"{}\" failed", path.display()), &error)
    })?;
    let types = arguments.types.as_deref().map(readable).transpose()?;
    let users = match (credentials, arguments.password_file.as_deref()) {
        (Some(credentials), _) => {
            let reader = user.as_ref().map(|user| user.identity.user);
            Some(credentials.write(folder.path(), reader)?)
        }
        (None, Some(path)) if arguments.print_configuration => Some(readable(path)?),
        (None, Some(path)) => Some(password::link(&readable(path)?, folder.path())?),
        (None, None) => None,
    };
    let mut texts = BTreeMap::new();
    let mut notes = String::new();
    let secure = secure(
        &arguments,
        &chosen.addresses,
        folder.path(),
        &mut texts,
        &mut notes,
    )?;
    let pool = php.as_ref().map(|php| php.pool(folder.path()));
    let pool = pool.transpose()?.flatten();
    let site = Site {
        plain,
        secure: secure.clone(),
        listen: chosen.addresses.clone(),
        root: match arguments.print_configuration {
            true => configuration::quoted(&text(&directory)?),
            // Relative to the prefix, so that a name with `$` in it is no variable.
            false => ".".to_owned(),
        },
        folder: match arguments.print_configuration {
            true => None,
            false => Some(text(folder.path())?),
        },
        output: output(),
        types: types.as_deref().map(text).transpose()?,
        users: users.as_deref().map(text).transpose()?,
        user: user.as_ref().map(|user| user.line.clone()),
        access_log: access_log(),
        browse: arguments.browse,
        spa: arguments.spa,
        cors: arguments.cors,
        hidden: arguments.hidden,
        php: treatment(&arguments, php.as_ref(), folder.path()),
    };
    let text = site.configuration();
    if arguments.print_configuration {
        print!("{text}");
        return Ok(None);
    }
    let pool = pool.map(|pool| pool.start(user.as_ref())).transpose()?;
    let mut announcement = String::new();
    announcement.extend(chosen.note.map(|note| format!("{note}\n")));
    announcement.push_str(&notes);
    announcement.push_str(&about_php(&arguments, &directory, php));
    announcement.push_str(&open_to_all(&arguments, &chosen.addresses));
    announcement.push_str(&greeting(&directory, &chosen.addresses, secure.as_ref()));
    announcement.extend(user.and_then(|user| user.warning(&directory)));
    let options = Options {
        conf_path: folder.path().join("serve.conf"),
        prefix: directory,
        error_log: ErrorLog::Stderr,
        globals: Vec::new(),
        action: Action::Start,
        quiet: false,
        privileged: identity::is_superuser(),
    };
    Ok(Some(Prepared {
        options,
        text,
        texts,
        announcement,
        _pool: pool,
        _folder: folder,
    }))
}

impl Prepared {
    fn serve(self) -> ExitCode {
        let mut texts = self.texts;
        texts.insert(self.options.conf_path.clone(), self.text.into_bytes());
        let announcement = self.announcement;
        let tidegate = Tidegate {
            texts: Texts(texts),
            hosts: None,
            last_reading: conf::LastReading::new(),
            // On standard error: where the output is piped, it holds lines of the log alone.
            serving: Some(Box::new(move || {
                let _ = std::io::stderr().write_all(announcement.as_bytes());
            })),
        };
        // It lives as long as the process, which is what a leak is.
        process::run(self.options, Box::leak(Box::new(tidegate)))
    }
}

/// The folder to serve, absolute.
fn folder(path: &Path) -> Result<PathBuf, String> {
    let path = readable(path)?;
    if path.is_dir() {
        Ok(path)
    } else {
        Err(format!("{} is not a folder", path.display()))
    }
}

/// A path that exists, absolute.
fn readable(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be used", path.display()), &error)
    })
}

/// A path as it may stand in a configuration of ours.
fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// Lines for people on a terminal, JSON for programs.
fn access_log() -> AccessLog {
    if !std::io::stdout().is_terminal() {
        return AccessLog::Json;
    }
    // https://no-color.org: any value but the empty one.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    AccessLog::Terminal { colours: !plain }
}

/// Where lines go. Standard output cannot be opened where it is closed or a socket, as under
/// systemd; then it is standard error, which needs no opening.
fn output() -> &'static str {
    const STDOUT: &str = "/dev/stdout";
    let opened = std::fs::OpenOptions::new().append(true).open(STDOUT);
    opened.map_or("", |_| STDOUT)
}

/// Where to listen, and where only to lead from plain HTTP to TLS.
fn listen(arguments: &Arguments) -> (Vec<String>, Vec<String>) {
    let ports = |port: u16| vec![format!("0.0.0.0:{port}"), format!("[::]:{port}")];
    let is_asked_for = !arguments.listen.is_empty() || arguments.port.is_some();
    match !is_asked_for && !arguments.domain.is_empty() {
        true => (ports(443), ports(80)),
        false => {
            let port = arguments.port.map(|port| port.to_string());
            let listen = arguments.listen.iter().cloned().chain(port);
            (listen.collect(), Vec::new())
        }
    }
}

/// How the site is secured, if it is; files that this needs are added to the texts.
fn secure(
    arguments: &Arguments,
    addresses: &[SocketAddr],
    folder: &Path,
    texts: &mut BTreeMap<PathBuf, Vec<u8>>,
    notes: &mut String,
) -> Result<Option<Secure>, String> {
    if arguments.tls.is_none() && arguments.domain.is_empty() {
        return Ok(None);
    }
    let state = secure::state_folder(arguments.state.clone())?;
    if arguments.tls.is_none() {
        let authorities = arguments.acme_authorities.as_deref().map(readable);
        let authorities = authorities.transpose()?.as_deref().map(text).transpose()?;
        let directory = arguments.acme.clone();
        return Secure::domains(&arguments.domain, directory, authorities, &state).map(Some);
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

/// What becomes of PHP. A pool that is not started has no address yet; a configuration that is printed names Debian's.
fn treatment(arguments: &Arguments, php: Option<&Php>, folder: &Path) -> Treatment {
    const USUAL: &str = "unix:/run/php/php-fpm.sock";
    match php {
        Some(php) if arguments.print_configuration && php.is_own() => {
            let _ = writeln!(
                std::io::stderr(),
                "No php-fpm runs here that could be named; the configuration says {USUAL}."
            );
            Treatment::Run(USUAL.to_owned())
        }
        Some(php) => Treatment::Run(php.server(folder)),
        None if arguments.php_source => Treatment::Send,
        None => Treatment::Refuse,
    }
}

/// What to say of PHP: who runs it, or that nothing does.
fn about_php(arguments: &Arguments, directory: &Path, php: Option<Php>) -> String {
    let script = || php::first_script(directory).filter(|_| !arguments.php_source);
    match php {
        Some(php) => php.note + &php::warning(directory),
        None => script().map_or_else(String::new, |script| {
            format!("PHP is not run and its source not sent ({script}); --php runs it.\n")
        }),
    }
}

fn greeting(directory: &Path, addresses: &[SocketAddr], secure: Option<&Secure>) -> String {
    let mut text = format!("Serving {} at\n", directory.display());
    for url in urls(addresses, secure) {
        text.push_str(&format!("  {url}\n"));
    }
    text.push_str("Ctrl-C ends it.\n");
    text
}

/// What to say where every interface is open, which `:8080` does not look like. A site with a name
/// of its own is meant to be.
fn open_to_all(arguments: &Arguments, addresses: &[SocketAddr]) -> String {
    let open = addresses
        .iter()
        .find(|address| address.ip().is_unspecified());
    match open {
        Some(address) if arguments.domain.is_empty() => format!(
            "Every interface is open: all who reach this machine can read the folder. --port {} keeps it to this machine.\n",
            address.port()
        ),
        _ => String::new(),
    }
}

/// Under which URLs people reach the site.
fn urls(addresses: &[SocketAddr], secure: Option<&Secure>) -> Vec<String> {
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

/// Whom the worker process becomes.
struct User {
    /// The arguments of `user`.
    line: String,
    identity: Identity,
}

/// Whom to serve as; nobody else where this process is not root.
fn worker_user(wanted: Option<String>) -> Result<Option<User>, String> {
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
    /// What to say where the user may not enter the folder: every answer would be 403.
    fn warning(&self, directory: &Path) -> Option<String> {
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

    fn may_enter(&self, folder: &Path) -> bool {
        const EXECUTE: u32 = 0o111;
        self.may(folder, EXECUTE)
    }

    /// Whether the user may connect to a socket, as far as modes say.
    fn may_connect(&self, socket: &Path) -> bool {
        const WRITE: u32 = 0o222;
        let real = socket.canonicalize();
        let mut folders = real.iter().flat_map(|path| path.ancestors().skip(1));
        self.may(socket, WRITE) && folders.all(|folder| self.may_enter(folder))
    }

    /// Whether the mode of a file has one of the bits for the user.
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

    fn name(&self) -> &str {
        &self.identity.name
    }

    fn number(&self) -> u32 {
        self.identity.user
    }

    fn is_root(&self) -> bool {
        self.identity.user == 0
    }

    /// Lines of a pool of php-fpm: whom it runs as, and whose its socket is.
    fn pool_lines(&self) -> String {
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
        arguments: Arguments,
    }

    #[test]
    fn an_open_interface_is_said_to_be_open() {
        let said = |line: &[&str], address: &str| {
            let line = ["serve"].iter().chain(line);
            let arguments = Command::parse_from(line).arguments;
            open_to_all(&arguments, &[address.parse().unwrap()])
        };
        let text = said(&["--listen", ":8080"], "0.0.0.0:8080");
        assert!(text.starts_with("Every interface is open") && text.contains("--port 8080"));
        assert!(!said(&["--listen", "[::]:8080"], "[::]:8080").is_empty());
        assert_eq!(said(&["--port", "8080"], "127.0.0.1:8080"), "");
        assert_eq!(said(&["--domain", "a.test"], "0.0.0.0:443"), "");
    }
}
