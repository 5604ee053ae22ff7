//! `tidegate serve DIR`: a site without any configuration.
//!
//! The arguments are turned into the text of a configuration ([`configuration`]), which is compiled
//! like any other; serving has no code of its own. This file has the arguments and the messages.
//!
//! Deliberately not here: several sites, reload. For those, write a configuration, starting from
//! the output of `--print-configuration`. `--proxy` belongs to [`accelerate`](crate::accelerate),
//! which puts a cache before a server.

pub(crate) mod addresses;
pub(crate) mod configuration;
mod password;
pub(crate) mod php;
pub(crate) mod place;
pub(crate) mod secure;
mod types;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use process::{Action, ErrorLog, Options, identity};

use crate::application::{OverlayFiles, Tidegate};
use crate::private_folder::PrivateFolder;
use configuration::{AccessLog, Site};
use php::Php;
use php::locations::PhpHandling;
pub(crate) use place::User;
use place::{Place, urls, worker_user};
use secure::Secure;
use words::{quoted, readable, text};

/// Serve a folder, without any configuration
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Pass requests on to this server instead of serving a folder: http://HOST:PORT, HOST:PORT, a
    /// PORT of this machine, https://HOST or unix:PATH
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = [
            "directory", "browse", "spa", "cors", "password", "password_file", "hidden", "php",
            "php_source", "types"
        ]
    )]
    proxy: Option<String>,
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
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        conflicts_with = "print_configuration"
    )]
    password: Option<String>,
    /// Ask for a name and a password of this file, which htpasswd makes
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// Serve names that begin with a dot, too (.git, .env)
    #[arg(long, conflicts_with = "php")]
    hidden: bool,
    /// Run PHP, with index.php as what answers unknown paths: by a php-fpm that listens where
    /// distributions have it or on 127.0.0.1:9000, else by a pool of its own; or by the php-fpm at
    /// HOST:PORT or unix:PATH, or by a pool of the program PATH
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    php: Option<String>,
    /// Send the source of PHP as files; without it and --php it is refused
    #[arg(long, conflicts_with = "php")]
    php_source: bool,
    /// Types by extension, in the format of nginx's mime.types, in addition to the built-in ones
    #[arg(long, value_name = "FILE")]
    types: Option<PathBuf>,
}

/// Serves until the process is told to end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let prepared = match &arguments.proxy {
        Some(url) => crate::accelerate::pass_on(&arguments.place, url),
        None => prepare(arguments),
    };
    match prepared {
        Ok(Some(prepared)) => prepared.serve(),
        Ok(None) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

/// Everything needed to start the server.
pub(crate) struct Prepared {
    pub(crate) options: Options,
    pub(crate) text: String,
    /// Files of the configuration that exist in memory only.
    pub(crate) texts: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) announcement: String,
    /// Stopped when dropped.
    pub(crate) pool: Option<php::Pool>,
    /// Removed when dropped.
    pub(crate) folder: PrivateFolder,
}

/// Prepares the server; `None` if the configuration was only to be printed.
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
    let (listen, plain) = arguments.place.listen();
    let chosen = addresses::choose(&listen)?;
    let plain = if plain.is_empty() {
        Vec::new()
    } else {
        addresses::choose(&plain)?.addresses
    };
    let user = worker_user(arguments.place.user.clone())?;
    let credentials = arguments.password.as_deref();
    let credentials = credentials.map(password::credentials).transpose()?;
    // This may take seconds, so it is done before anything is created that would remain if a signal
    // interrupts the process.
    let wanted = arguments.php.as_deref();
    let php = wanted.map(|wanted| php::find(wanted, &directory, user.as_ref()));
    let php = php.transpose()?;
    let folder = match arguments.php {
        // Uploads are stored there.
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
        (None, Some(path)) if arguments.place.print_configuration => Some(readable(path)?),
        (None, Some(path)) => Some(password::link(&readable(path)?, folder.path())?),
        (None, None) => None,
    };
    let mut texts = BTreeMap::new();
    let mut notes = String::new();
    let secure =
        arguments
            .place
            .secure(&chosen.addresses, folder.path(), &mut texts, &mut notes)?;
    let pool = php.as_ref().map(|php| php.pool(folder.path()));
    let pool = pool.transpose()?.flatten();
    let site = Site {
        plain,
        secure: secure.clone(),
        listen: chosen.addresses.clone(),
        root: if arguments.place.print_configuration {
            quoted(&text(&directory)?)
        } else {
            // Relative to the prefix, so that a `$` in the folder's name is not taken for a
            // variable.
            ".".to_owned()
        },
        folder: if arguments.place.print_configuration {
            None
        } else {
            Some(text(folder.path())?)
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
    if arguments.place.print_configuration {
        print!("{text}");
        return Ok(None);
    }
    let pool = pool.map(|pool| pool.start(user.as_ref())).transpose()?;
    let mut announcement = String::new();
    announcement.extend(chosen.note.map(|note| format!("{note}\n")));
    announcement.push_str(&notes);
    announcement.push_str(&about_php(&arguments, &directory, php));
    let open = arguments
        .place
        .exposure_warning(&chosen.addresses, "read the folder");
    announcement.push_str(&open);
    announcement.push_str(&greeting(&directory, &chosen.addresses, secure.as_ref()));
    announcement.extend(user.and_then(|user| user.warning(&directory)));
    let options = Options {
        conf_path: folder.path().join("serve.conf"),
        prefix: directory,
        ..in_foreground()
    };
    Ok(Some(Prepared {
        options,
        text,
        texts,
        announcement,
        pool,
        folder,
    }))
}

/// Options of a server that runs in the foreground, with errors on the terminal.
pub(crate) fn in_foreground() -> Options {
    Options {
        conf_path: PathBuf::new(),
        prefix: PathBuf::new(),
        error_log: ErrorLog::Stderr,
        globals: Vec::new(),
        action: Action::Start,
        quiet: false,
        privileged: identity::is_superuser(),
    }
}

impl Prepared {
    /// Serves until the process is told to end.
    pub(crate) fn serve(self) -> ExitCode {
        let Prepared {
            options,
            text,
            mut texts,
            announcement,
            pool: _pool,
            folder: _folder,
        } = self;
        texts.insert(options.conf_path.clone(), text.into_bytes());
        let tidegate = Tidegate {
            texts: OverlayFiles(texts),
            hosts: None,
            last_reading: conf::LastReading::new(),
            // On standard error, so that standard output, which may be piped, has log lines only.
            serving: Some(Box::new(move || {
                let _ = std::io::stderr().write_all(announcement.as_bytes());
            })),
        };
        // Leaked deliberately, because the value lives as long as the process.
        process::run(options, Box::leak(Box::new(tidegate)))
    }
}

/// The folder to serve, absolute.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, String> {
    let path = readable(path)?;
    if path.is_dir() {
        Ok(path)
    } else {
        Err(format!("{} is not a folder", path.display()))
    }
}

/// Text for a terminal, JSON for programs.
pub(crate) fn access_log() -> AccessLog {
    if !std::io::stdout().is_terminal() {
        return AccessLog::Json;
    }
    // https://no-color.org: any value but the empty one.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    AccessLog::Terminal { colours: !plain }
}

/// The destination of log lines. Standard output cannot be reopened if it is closed or a socket, as
/// under systemd; then standard error is used, which need not be opened.
pub(crate) fn output() -> &'static str {
    const STDOUT: &str = "/dev/stdout";
    let opened = std::fs::OpenOptions::new().append(true).open(STDOUT);
    opened.map_or("", |_| STDOUT)
}

/// How PHP is handled. A pool that has not been started has no address yet; a printed configuration
/// uses Debian's address instead.
fn treatment(arguments: &Arguments, php: Option<&Php>, folder: &Path) -> PhpHandling {
    const USUAL: &str = "unix:/run/php/php-fpm.sock";
    match php {
        Some(php) if arguments.place.print_configuration && php.is_own() => {
            let _ = writeln!(
                std::io::stderr(),
                "No php-fpm runs here that could be named; the configuration says {USUAL}."
            );
            PhpHandling::Run(USUAL.to_owned())
        }
        Some(php) => PhpHandling::Run(php.server(folder)),
        None if arguments.php_source => PhpHandling::Send,
        None => PhpHandling::Refuse,
    }
}

/// The message about PHP: the php-fpm that runs scripts, or a warning that scripts are not run.
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
