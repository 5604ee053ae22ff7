//! The requirements of a configuration on the machine.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use conf::{Disk, MissingHosts, Recorder, Tree};
use engine::EngineKind;
use engine::net::{Address, SocketKind};
use process::Options;

use crate::application::{compile, registry};
use crate::cli;

const BACKLOG_DEFAULT: u64 = 511;

/// The parts of a configuration that matter to the machine.
#[derive(Debug)]
pub(super) struct Setup {
    /// The path of the configuration file, or a text for reports if there is none.
    pub(super) named: String,
    pub(super) threads: usize,
    pub(super) connections: usize,
    pub(super) open_files_max: Option<u64>,
    pub(super) engine: Option<EngineKind>,
    pub(super) pid_file: Option<PathBuf>,
    /// The addresses to listen on.
    pub(super) listening: Vec<Listen>,
    /// Whether requests are passed on over TCP, so that connections to upstreams need ports.
    pub(super) passes_on: bool,
    /// Whether clients may use HTTP/2.
    pub(super) speaks_http2: bool,
}

/// An address and the settings of its socket.
#[derive(Clone, Debug)]
pub(super) struct Listen {
    pub(super) address: String,
    pub(super) port: Option<u16>,
    /// Whether the address is reachable from this machine only.
    pub(super) is_local: bool,
    pub(super) is_datagram: bool,
    pub(super) backlog: u64,
    pub(super) fastopen: bool,
}

/// The flags that locate the configuration.
#[derive(Debug, Default)]
pub(super) struct Flags {
    pub(super) conf: Option<OsString>,
    pub(super) prefix: Option<OsString>,
    pub(super) globals: Vec<OsString>,
}

impl Setup {
    /// Reads the configuration as `-t` does. The error contains the lines that `-t` prints.
    pub(super) fn read(flags: &Flags) -> Result<Setup, String> {
        let options = options(flags)?;
        if flags.conf.is_none() && !options.conf_path.exists() {
            return Ok(Setup::without_configuration());
        }
        // Host names that do not resolve on this machine are not treated as errors.
        let hosts = MissingHosts::new(Disk);
        let files = Recorder::new(&hosts);
        let mut loaded = conf::load(
            &options.conf_path,
            options.conf_prefix(),
            &options.globals,
            registry(),
            &files,
        );
        let compiled = if loaded.has_errors() {
            Err(Vec::new())
        } else {
            compile(&loaded, &files, &options)
        };
        let (main, compiled) = match compiled {
            Ok(compiled) => compiled,
            Err(diagnostics) => {
                let found = conf::arrange(&mut loaded, diagnostics);
                let lines = found.iter();
                let lines = lines.map(|found| process::log::explained(found, &loaded.sources));
                return Err(lines.collect());
            }
        };
        Ok(Setup {
            named: options.conf_path.display().to_string(),
            threads: main.threads,
            connections: compiled.events.connections,
            open_files_max: main.open_files_max,
            engine: compiled.events.engine,
            pid_file: Some(main.pid),
            listening: compiled
                .listening
                .iter()
                .map(|listening| Listen::new(&listening.options))
                .collect(),
            passes_on: passes_on(&loaded.tree),
            speaks_http2: has_line(&loaded.tree, |name, word| name == "http2" && word == "on"),
        })
    }

    /// The requirements of a server without a configuration: the defaults.
    fn without_configuration() -> Setup {
        Setup {
            named: "none, so the defaults".to_owned(),
            threads: 1,
            connections: 512,
            open_files_max: None,
            engine: None,
            pid_file: None,
            listening: vec![Listen {
                address: "0.0.0.0:80".to_owned(),
                port: Some(80),
                is_local: false,
                is_datagram: false,
                backlog: BACKLOG_DEFAULT,
                fastopen: false,
            }],
            passes_on: false,
            speaks_http2: false,
        }
    }

    /// The connection limit of all threads together.
    pub(super) fn connections_of_all(&self) -> u64 {
        (self.threads as u64).saturating_mul(self.connections as u64)
    }

    /// The socket with the longest accept queue.
    pub(super) fn longest_queue(&self) -> Option<&Listen> {
        let streams = self.listening.iter().filter(|listen| !listen.is_datagram);
        streams.max_by_key(|listen| listen.backlog)
    }

    /// Whether clients connect from other machines.
    pub(super) fn is_reached_from_outside(&self) -> bool {
        self.listening.iter().any(|listen| !listen.is_local)
    }
}

impl Listen {
    fn new(options: &engine::net::ListenOptions) -> Listen {
        let (port, is_local) = match &options.address {
            Address::Inet(address) => (Some(address.port()), is_loopback(address.ip())),
            Address::Unix(_) => (None, true),
        };
        Listen {
            address: options.address.to_string(),
            port,
            is_local,
            is_datagram: options.carries == SocketKind::Datagrams,
            backlog: u64::try_from(options.backlog).unwrap_or(u64::MAX),
            fastopen: options.fastopen.is_some(),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether requests are passed on by any means other than Unix sockets.
fn passes_on(tree: &Tree) -> bool {
    let is_unix = |word: &str| word.starts_with("unix:");
    let mut groups_without_ports: Vec<String> = Vec::new();
    for scope in tree.scopes() {
        let opened = scope.line().filter(|line| line.name.text() == "upstream");
        let Some(name) = opened.and_then(|line| line.args.first()) else {
            continue;
        };
        let mut servers = scope
            .lines()
            .iter()
            .filter(|line| line.name.text() == "server");
        if servers.all(|server| {
            server
                .args
                .first()
                .is_some_and(|word| is_unix(&word.text()))
        }) {
            groups_without_ports.push(name.text().into_owned());
        }
    }
    has_line(tree, |name, word| {
        let target = word.split_once("://").map_or(word, |(_, target)| target);
        let host = target.split(['/', ':']).next().unwrap_or_default();
        let has_no_ports = is_unix(target) || groups_without_ports.iter().any(|name| name == host);
        name.ends_with("_pass") && !has_no_ports
    })
}

/// Whether any line matches, by its name and first argument.
fn has_line(tree: &Tree, is_it: impl Fn(&str, &str) -> bool) -> bool {
    tree.scopes().any(|scope| {
        scope.lines().iter().any(|line| {
            let word = line.args.first().map(conf::Word::text);
            is_it(&line.name.text(), word.as_deref().unwrap_or_default())
        })
    })
}

/// The options that locate the configuration, by the rules of the server's own command line.
fn options(flags: &Flags) -> Result<Options, String> {
    let mut words = vec![OsString::from("-t")];
    let mut add = |flag: &str, value: &OsString| words.extend([flag.into(), value.clone()]);
    flags.conf.iter().for_each(|value| add("-c", value));
    flags.prefix.iter().for_each(|value| add("-p", value));
    flags.globals.iter().for_each(|value| add("-g", value));
    let options = cli::parse(words)?.options;
    options.ok_or_else(|| "the command line asks for nothing".to_owned())
}
