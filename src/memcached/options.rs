//! memcached's command line. Each option has memcached's meaning, is an error, or causes a notice
//! that says why it has no effect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineKind;
use memcached::tls::{TlsFiles, TlsOptions};
use memcached::{COMMANDS_IN_TURN, Protocol, Settings};
use proto::memcached::command::KEY_LENGTH_MAX;

/// Default of `-p`, as in memcached.
const PORT: i32 = 11211;

/// Minimum and maximum of `-I`, in bytes.
const ITEM_MIN: usize = 1024;
const ITEM_MAX: usize = 1024 * 1024 * 1024;

const THREADS_MAX: usize = 256;

/// Serve as memcached does, with memcached's options
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// TCP port to listen on; 0 is none, -1 any that is free
    #[arg(short, long, value_name = "NUM", allow_negative_numbers = true)]
    port: Option<i32>,
    /// UDP port to listen on; 0 is off, -1 any that is free. Without -p the TCP port is the same
    #[arg(
        short = 'U',
        long,
        value_name = "NUM",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    udp_port: i32,
    /// Unix socket to listen on, in place of the network
    #[arg(short = 's', long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Access mask of the Unix socket, in octal
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700")]
    unix_mask: String,
    /// Allow the command "shutdown"
    #[arg(short = 'A', long)]
    enable_shutdown: bool,
    /// Addresses to listen on, with or without ports, parted by commas; all of the machine without
    /// it
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Go to the background
    #[arg(short, long)]
    daemon: bool,
    /// Whom to run as: only for root, who must say it
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Memory for items, in megabytes
    #[arg(short, long, value_name = "NUM", default_value_t = 64)]
    memory_limit: usize,
    /// Refuse to store where memory is full, instead of evicting
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Connections at a time
    #[arg(short, long, value_name = "NUM", default_value_t = 1024)]
    conn_limit: usize,
    /// Say more about what happens; -vv yet more
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Write the process's number here
    #[arg(short = 'P', long, value_name = "FILE")]
    pidfile: Option<PathBuf>,
    #[arg(short, long, value_name = "NUM", default_value_t = 4)]
    threads: usize,
    /// Length of the queue of connections that wait to be accepted
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = 1024)]
    listen_backlog: i32,
    /// Protocol: ascii, binary, or auto, where the first byte of a connection says which
    #[arg(short = 'B', long, value_name = "NAME")]
    protocol: Option<String>,
    /// Largest item, with its head: 1k to 1024m
    #[arg(short = 'I', long, value_name = "NUM", default_value = "1m")]
    max_item_size: String,
    /// Refuse the command "flush_all"
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
    /// Refuse dumps of keys
    #[arg(short = 'X', long)]
    disable_dumping: bool,
    /// Refuse the command "watch"
    #[arg(short = 'W', long)]
    disable_watch: bool,
    /// Growth of slabs: there are none here
    #[arg(short = 'f', long, value_name = "NUM")]
    slab_growth_factor: Option<f64>,
    /// Smallest chunk of a slab: there are none here
    #[arg(short = 'n', long, value_name = "BYTES")]
    slab_min_size: Option<usize>,
    /// Commands of a connection before others have their turn
    #[arg(short = 'R', long, value_name = "NUM")]
    max_reqs_per_event: Option<u32>,
    /// No CAS: that of every item is 0
    #[arg(short = 'C', long)]
    disable_cas: bool,
    /// Large pages: the system gives them by itself
    #[arg(short = 'L', long)]
    enable_largepages: bool,
    /// Lock memory, so that none of it is swapped out
    #[arg(short = 'k', long)]
    lock_memory: bool,
    /// Let core files be as large as the system allows
    #[arg(short = 'r', long)]
    enable_coredumps: bool,
    /// Count by prefixes of keys, up to this character; "stats detail" tells them
    #[arg(short = 'D', value_name = "CHAR")]
    delimiter: Option<String>,
    /// Let in by SASL (PLAIN, in the binary protocol) who is in the file of -Y, or of the
    /// environment's MEMCACHED_SASL_PWDB
    #[arg(short = 'S', long)]
    enable_sasl: bool,
    /// Let in who is in this file, a line "user:password" each
    #[arg(short = 'Y', long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Keep the items here over a restart: SIGUSR1 writes them and ends the server
    #[arg(short = 'e', long, value_name = "FILE")]
    memory_file: Option<PathBuf>,
    /// Speak TLS, with -o ssl_chain_cert and ssl_key; an address with "notls:" before it does not,
    /// one with "mtls:" wants certificates of clients
    #[arg(short = 'Z', long)]
    enable_ssl: bool,
    /// Further options, parted by commas: engine=epoll|io_uring (how the kernel is asked),
    /// key_length_max=BYTES (250 to 65535), idle_timeout=SECONDS, watcher_logbuf_size=KILOBYTES,
    /// ssl_chain_cert=FILE, ssl_key=FILE, ssl_ca_cert=FILE, ssl_verify_mode=0..3, ssl_ciphers=LIST,
    /// ssl_min_version=2|3, ssl_session_cache; no_drop_privileges, so that the process keeps what
    /// it may do
    #[arg(short = 'o', long, value_name = "LIST")]
    extended: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListenAddress {
    Inet(SocketAddr, Security),
    Udp(SocketAddr),
    Path(PathBuf),
}

/// The security of a listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// Unencrypted: an address with `notls:`, or any without `-Z`.
    Plain,
    Tls,
    /// An address with `mtls:`: clients must present certificates.
    MutualTls,
}

/// The settings that follow from a command line.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) listening: Vec<ListenAddress>,
    pub(super) daemon: bool,
    pub(super) user: Option<String>,
    pub(super) pid_file: Option<PathBuf>,
    /// The file of users and passwords, if clients must authenticate.
    pub(super) users: Option<PathBuf>,
    /// The engine of `-o engine`, if it is given.
    pub(super) engine: Option<EngineKind>,
    /// `-k`: whether memory is locked.
    pub(super) locks_memory: bool,
    /// `-r`: whether a crash may write a core file of any size.
    pub(super) dumps_core: bool,
    /// Whether the process drops the privileges that serving does not need.
    pub(super) drops_privileges: bool,
    /// Notices to print before the server starts.
    pub(super) notices: Vec<String>,
}

/// Extended options that only concern memcached's implementation, also with `no_` before them.
const WITHOUT_MEANING: &[&str] = &[
    "hashpower",
    "no_hashexpand",
    "hash_algorithm",
    "tail_repair_time",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "read_buf_mem_limit",
    "resp_obj_mem_limit",
    "inline_ascii_resp",
    "worker_logbuf_size",
    "track_sizes",
    "relaxed_privileges",
];

impl Arguments {
    /// Checks the options. The error is the line to print.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        let mut notices = self.without_meaning();
        let extended = self.extended(&mut notices)?;
        let users = self.users()?;
        let limit = self
            .memory_limit
            .checked_mul(1 << 20)
            .filter(|limit| *limit > 0);
        let limit = limit.ok_or("-m: the memory limit must be a number of megabytes above 0")?;
        let item_max = size(&self.max_item_size).ok_or_else(|| {
            format!(
                "-I: \"{}\" is no size, such as 512k or 2m",
                self.max_item_size
            )
        })?;
        if !(ITEM_MIN..=ITEM_MAX).contains(&item_max) {
            return Err("-I: the item size must be between 1k and 1024m".to_owned());
        }
        if item_max > limit / 2 {
            return Err("cannot set item size limit higher than 1/2 of memory max".to_owned());
        }
        if self.conn_limit == 0 {
            return Err("maximum connections must be greater than 0".to_owned());
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(format!(
                "-t: the number of threads must be between 1 and {THREADS_MAX}"
            ));
        }
        let socket_mask = u32::from_str_radix(&self.unix_mask, 8)
            .map_err(|_| format!("-a: \"{}\" is no octal number", self.unix_mask))?;
        let listening = self.listening()?;
        let is_secret = |listening: &&ListenAddress| match listening {
            ListenAddress::Inet(_, security) => {
                users.is_some() || *security == Security::MutualTls || extended.wants_certificates()
            }
            ListenAddress::Udp(_) | ListenAddress::Path(_) => false,
        };
        if listening.is_empty() {
            notices.push("nothing is listened on: -p 0, and neither -U nor -s".to_owned());
        }
        let open = listening.iter().filter(|listening| !is_secret(listening));
        notices.extend(exposure_warning(open));
        if users.is_some() && self.udp_port != 0 {
            return Err(
                "-U: datagrams cannot say who has sent them, so not with -S or -Y".to_owned(),
            );
        }
        let tls = extended.tls(self.enable_ssl)?;
        let port = listening.iter().find_map(|listening| match listening {
            ListenAddress::Inet(address, _) => Some(address.port()),
            ListenAddress::Udp(_) | ListenAddress::Path(_) => None,
        });
        let interfaces = (!self.listen.is_empty()).then(|| self.listen.join(","));
        let written = self.protocol.as_deref();
        let protocol = match written.unwrap_or(self.protocol_of_users()) {
            "auto" if self.enable_sasl != self.auth_file.is_some() => {
                return Err(
                    "-B auto: clients of one of the protocols could not say who they are; \
                     -S and -Y together let them"
                        .to_owned(),
                );
            }
            "ascii" if self.enable_sasl => {
                return Err("-B ascii: SASL is of the binary protocol".to_owned());
            }
            "binary" if self.auth_file.is_some() && !self.enable_sasl => {
                return Err("-B binary: without -S it has no passwords".to_owned());
            }
            "auto" => Protocol::Auto,
            "ascii" => Protocol::Text,
            "binary" => Protocol::Binary,
            other => {
                return Err(format!(
                    "invalid value for binding protocol: {other} -- should be one of auto, \
                     binary, or ascii"
                ));
            }
        };
        let settings = Settings {
            protocol,
            limit,
            refuses_when_full: self.disable_evictions,
            item_max,
            key_max: extended.key_max,
            connections_max: Some(self.conn_limit),
            threads: self.threads,
            backlog: self.listen_backlog.max(1),
            allows_flush: !self.disable_flush_all,
            allows_dump: !self.disable_dumping,
            allows_watch: !self.disable_watch,
            with_cas: !self.disable_cas,
            auth_file: self.auth_file.clone(),
            with_sasl: self.enable_sasl,
            prefix_delimiter: self.delimiter()?,
            counts_prefixes: self.delimiter.is_some(),
            watcher_buffer: extended.watcher_buffer,
            commands_in_turn: self.max_reqs_per_event.unwrap_or(COMMANDS_IN_TURN).max(1),
            crawls: extended.crawls,
            tls,
            memory_file: self.memory_file.clone(),
            allows_shutdown: self.enable_shutdown,
            verbosity: u32::from(self.verbose),
            idle_timeout: extended.idle_timeout,
            port: port.unwrap_or(0),
            udp_port: u16::try_from(self.udp_port).unwrap_or(0),
            interfaces,
            socket_path: self
                .unix_socket
                .as_ref()
                .map(|path| path.display().to_string()),
            // As in memcached, the mask has the permissions to keep, not those to remove.
            socket_mask: 0o777 & !socket_mask,
        };
        Ok(Plan {
            settings,
            listening,
            daemon: self.daemon,
            user: self.user.clone(),
            pid_file: self.pidfile.clone(),
            users,
            engine: extended.engine,
            locks_memory: self.lock_memory,
            dumps_core: self.enable_coredumps,
            drops_privileges: extended.drops_privileges,
            notices,
        })
    }

    /// Notices about options without effect.
    fn without_meaning(&self) -> Vec<String> {
        let given = [
            (self.slab_growth_factor.is_some(), "-f: there are no slabs"),
            (self.slab_min_size.is_some(), "-n: there are no slabs"),
            (
                self.enable_largepages,
                "-L: the system gives large pages by itself",
            ),
        ];
        let given = given.iter().filter(|(is_given, _)| *is_given);
        given
            .map(|(_, why)| format!("{why}; the option has no effect"))
            .collect()
    }

    /// The file of users and passwords.
    fn users(&self) -> Result<Option<PathBuf>, String> {
        const OF_SASL: &str = "MEMCACHED_SASL_PWDB";
        if let Some(path) = &self.auth_file {
            return Ok(Some(path.clone()));
        }
        if !self.enable_sasl {
            return Ok(None);
        }
        let path = std::env::var_os(OF_SASL).filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| {
            format!("-S: no users: write -Y FILE, or name a file by the environment's {OF_SASL}")
        })?;
        Ok(Some(PathBuf::from(path)))
    }

    /// The default of `-B`: a protocol in which clients can authenticate.
    fn protocol_of_users(&self) -> &'static str {
        match (self.enable_sasl, self.auth_file.is_some()) {
            (true, false) => "binary",
            (false, true) => "ascii",
            _ => "auto",
        }
    }

    fn delimiter(&self) -> Result<u8, String> {
        match self.delimiter.as_deref().map(str::as_bytes) {
            None => Ok(b':'),
            Some([one]) => Ok(*one),
            Some(_) => Err("-D: a prefix ends with a single character".to_owned()),
        }
    }

    /// Parses the options of `-o`.
    fn extended(&self, notices: &mut Vec<String>) -> Result<Extended, String> {
        let mut extended = Extended::default();
        let words = self.extended.iter().flat_map(|list| list.split(','));
        for word in words.filter(|word| !word.is_empty()) {
            let (name, value) = word
                .split_once('=')
                .map_or((word, None), |(name, value)| (name, Some(value)));
            let plain = name.strip_prefix("no_").unwrap_or(name);
            let number = |unit: &str| {
                let value = value.ok_or(format!("missing numeric argument for {name}"))?;
                let number = value.parse::<u64>();
                number.map_err(|_| format!("-o {name}: \"{value}\" is no number of {unit}"))
            };
            let file = || {
                let value = value.filter(|value| !value.is_empty());
                let value = value.ok_or(format!("-o {name}: the name of a file is missing"))?;
                Ok::<_, String>(Some(PathBuf::from(value)))
            };
            match name {
                "idle_timeout" => {
                    let seconds = number("seconds")?;
                    extended.idle_timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                "watcher_logbuf_size" => {
                    let kilobytes = usize::try_from(number("kilobytes")?).unwrap_or(usize::MAX);
                    extended.watcher_buffer = kilobytes.saturating_mul(1024);
                }
                "ssl_chain_cert" => extended.chain = file()?,
                "ssl_key" => extended.key = file()?,
                "ssl_ca_cert" => extended.authorities = file()?,
                "ssl_verify_mode" => match number("kinds")? {
                    mode @ 0..=3 => extended.verify_mode = mode as u8,
                    _ => return Err("-o ssl_verify_mode: 0 to 3 are known".to_owned()),
                },
                "ssl_min_version" => match number("versions")? {
                    version @ (2 | 3) => extended.min_version = version as u8,
                    _ => {
                        return Err(
                            "-o ssl_min_version: 2 (TLS 1.2) and 3 (TLS 1.3) are here".to_owned()
                        );
                    }
                },
                "ssl_ciphers" => extended.ciphers = value.map(str::to_owned),
                "ssl_session_cache" => extended.keeps_sessions = true,
                "ssl_wbuf_size" => {
                    let kilobytes = usize::try_from(number("kilobytes")?).unwrap_or(usize::MAX);
                    extended.write_buffer = kilobytes.saturating_mul(1024);
                    notices.push(
                        "-o ssl_wbuf_size: records are as long as they may be; \
                         the option has no effect"
                            .to_owned(),
                    );
                }
                "key_length_max" => {
                    extended.key_max = match number("bytes")? {
                        length @ 250..=65535 => usize::try_from(length).unwrap_or(KEY_LENGTH_MAX),
                        _ => return Err("-o key_length_max: 250 to 65535 bytes".to_owned()),
                    }
                }
                "engine" => {
                    extended.engine = Some(match value {
                        Some("epoll") => EngineKind::Epoll,
                        Some("io_uring") => EngineKind::Uring,
                        _ => return Err("-o engine: epoll or io_uring is expected".to_owned()),
                    });
                }
                "maxconns_fast" => {}
                "drop_privileges" => extended.drops_privileges = true,
                "no_drop_privileges" => extended.drops_privileges = false,
                "lru_crawler" | "modern" => extended.crawls = true,
                "no_lru_crawler" | "no_modern" => {
                    extended.crawls = false;
                    notices.push(format!(
                        "-o {name}: expired items go by themselves all the same"
                    ));
                }
                _ if WITHOUT_MEANING.contains(&plain) => {
                    notices.push(format!(
                        "-o {name}: this is about what only memcached has; the option has no effect"
                    ));
                }
                _ => return Err(format!("-o {name}: illegal suboption, or not here yet")),
            }
        }
        Ok(extended)
    }

    /// The addresses of `-p`, `-U`, `-l` and `-s`.
    fn listening(&self) -> Result<Vec<ListenAddress>, String> {
        if let Some(path) = &self.unix_socket {
            return Ok(vec![ListenAddress::Path(path.clone())]);
        }
        let without = match self.udp_port {
            0 => PORT,
            udp => udp,
        };
        let port = port_number("-p", self.port.unwrap_or(without))?;
        let udp_port = port_number("-U", self.udp_port)?;
        let mut listening = Vec::new();
        if let Some(port) = port {
            let addresses = self.addresses(port)?.into_iter();
            listening.extend(addresses.map(|(address, security)| {
                let security = if self.enable_ssl {
                    security
                } else {
                    Security::Plain
                };
                ListenAddress::Inet(address, security)
            }));
        }
        if let Some(port) = udp_port {
            let addresses = self.addresses(port)?.into_iter();
            listening.extend(addresses.map(|(address, _)| ListenAddress::Udp(address)));
        }
        listening.dedup();
        Ok(listening)
    }

    /// The addresses of `-l`; addresses without a port get this one.
    fn addresses(&self, port: u16) -> Result<Vec<(SocketAddr, Security)>, String> {
        if self.listen.is_empty() {
            let any = [
                IpAddr::from(Ipv4Addr::UNSPECIFIED),
                IpAddr::from(Ipv6Addr::UNSPECIFIED),
            ];
            // With port 0, the two sockets would get different ports.
            let count = if port == 0 { 1 } else { any.len() };
            let any = any.into_iter().take(count);
            let any = any.map(|ip| (SocketAddr::new(ip, port), Security::Tls));
            return Ok(any.collect());
        }
        let mut addresses = Vec::new();
        let words = self.listen.iter().flat_map(|list| list.split(','));
        for word in words.filter(|word| !word.is_empty()) {
            let (word, security) = if let Some(word) = word.strip_prefix("notls:") {
                (word, Security::Plain)
            } else if let Some(word) = word.strip_prefix("mtls:") {
                if !self.enable_ssl {
                    return Err(format!("-l mtls:{word}: without -Z there is no TLS"));
                }
                (word, Security::MutualTls)
            } else {
                (word, Security::Tls)
            };
            let found = resolve(word, port)?.into_iter();
            addresses.extend(found.map(|address| (address, security)));
        }
        Ok(addresses)
    }
}

/// The port for an option's number: `None` for 0, and port 0 (any free one) for -1.
fn port_number(option: &str, number: i32) -> Result<Option<u16>, String> {
    match number {
        0 => Ok(None),
        -1 => Ok(Some(0)),
        port => match u16::try_from(port) {
            Ok(port) => Ok(Some(port)),
            Err(_) => Err(format!("{option}: {port} is no port")),
        },
    }
}

/// The options of `-o`.
#[derive(Debug)]
struct Extended {
    idle_timeout: Option<Duration>,
    watcher_buffer: usize,
    key_max: usize,
    engine: Option<EngineKind>,
    crawls: bool,
    chain: Option<PathBuf>,
    key: Option<PathBuf>,
    authorities: Option<PathBuf>,
    verify_mode: u8,
    min_version: u8,
    ciphers: Option<String>,
    keeps_sessions: bool,
    write_buffer: usize,
    /// See [`Plan::drops_privileges`].
    drops_privileges: bool,
}

impl Default for Extended {
    fn default() -> Extended {
        Extended {
            idle_timeout: None,
            watcher_buffer: 256 * 1024,
            key_max: KEY_LENGTH_MAX,
            engine: None,
            crawls: true,
            chain: None,
            key: None,
            authorities: None,
            verify_mode: 0,
            min_version: 2,
            ciphers: None,
            keeps_sessions: false,
            write_buffer: 16 * 1024,
            drops_privileges: true,
        }
    }
}

impl Extended {
    fn wants_certificates(&self) -> bool {
        self.verify_mode == 2
    }

    /// Reads the files of TLS, if `-Z` is given.
    fn tls(&self, is_on: bool) -> Result<Option<Arc<TlsFiles>>, String> {
        if !is_on {
            return Ok(None);
        }
        let (Some(chain), Some(key)) = (&self.chain, &self.key) else {
            return Err(
                "-Z: TLS needs a certificate and its key: -o ssl_chain_cert=FILE,ssl_key=FILE"
                    .to_owned(),
            );
        };
        let options = TlsOptions {
            chain: chain.clone(),
            key: key.clone(),
            authorities: self.authorities.clone(),
            verify_mode: self.verify_mode,
            ciphers: self.ciphers.clone(),
            min_version: self.min_version,
            keeps_sessions: self.keeps_sessions,
            write_buffer: self.write_buffer,
        };
        let files = TlsFiles::read(options).map_err(|error| format!("-Z: {error}"))?;
        Ok(Some(Arc::new(files)))
    }
}

/// The addresses of `HOST`, `HOST:PORT` or `[HOST]:PORT`.
fn resolve(word: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let bare = word.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found = match word.rsplit_once(':') {
        Some(_) => word.to_socket_addrs(),
        None => (word, port).to_socket_addrs(),
    };
    found
        .map(Iterator::collect)
        .map_err(|error| format!("-l: {word} cannot be found: {error}"))
}

/// A warning if the cache is reachable from other machines, since its clients are not
/// authenticated.
fn exposure_warning<'a>(mut listening: impl Iterator<Item = &'a ListenAddress>) -> Option<String> {
    let open = listening.find_map(|listening| match listening {
        ListenAddress::Inet(address, _) | ListenAddress::Udp(address) => {
            Some(address).filter(|address| !address.ip().is_loopback())
        }
        ListenAddress::Path(_) => None,
    })?;
    Some(format!(
        "warning: every client that reaches {open} can read and change everything; -l 127.0.0.1 keeps it to this machine"
    ))
}

/// Parses a size with `k`, `m` or `g` at its end, to bytes.
fn size(text: &str) -> Option<usize> {
    let unit = match text.bytes().last()? {
        b'k' | b'K' => 1 << 10,
        b'm' | b'M' => 1 << 20,
        b'g' | b'G' => 1 << 30,
        _ => return text.parse().ok(),
    };
    let number: usize = text.get(..text.len() - 1)?.parse().ok()?;
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Called {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = ["memcached"].into_iter().chain(line.split_whitespace());
        Called::parse_from(words).arguments.plan()
    }

    #[test]
    fn the_line_of_debians_file_is_understood() {
        let plan = plan("-m 64 -p 11211 -u memcache -l 127.0.0.1 -l ::1 -P /run/x.pid").unwrap();
        assert_eq!(plan.settings.limit, 64 << 20);
        let expected = ["127.0.0.1:11211", "[::1]:11211"];
        let expected =
            expected.map(|address| ListenAddress::Inet(address.parse().unwrap(), Security::Plain));
        assert_eq!(plan.listening, expected);
        assert_eq!(plan.user.as_deref(), Some("memcache"));
        assert!(plan.notices.is_empty(), "{:?}", plan.notices);
    }

    #[test]
    fn options_are_written_as_for_memcached() {
        let plan = plan("-vvd -m100 -c5 -t2 -I2m -M -F -X -A -b 7 -s /tmp/s -a 0770").unwrap();
        let settings = &plan.settings;
        assert_eq!((settings.limit, settings.item_max), (100 << 20, 2 << 20));
        assert_eq!((settings.connections_max, settings.threads), (Some(5), 2));
        assert!(plan.daemon && settings.verbosity == 2 && settings.refuses_when_full);
        assert!(!settings.allows_flush && !settings.allows_dump && settings.allows_shutdown);
        assert_eq!(plan.listening, [ListenAddress::Path("/tmp/s".into())]);
        assert_eq!(settings.socket_mask, 0o007);
        assert!(plan.engine.is_none() && !plan.locks_memory && !plan.dumps_core);
        let plan =
            super::tests::plan("-l ::1 -k -r -o engine=io_uring,key_length_max=1000").unwrap();
        assert!(plan.locks_memory && plan.dumps_core && plan.settings.key_max == 1000);
        assert_eq!(plan.engine, Some(EngineKind::Uring));
    }

    #[test]
    fn what_is_not_here_is_refused_and_what_means_nothing_is_told() {
        for line in [
            "-S",
            "-Y f -U 5",
            "-Y f -B binary",
            "-Y f -B auto",
            "-S -Y f -B ascii",
            "-Z",
            "-Z -o ssl_chain_cert=/nonexistent,ssl_key=/nonexistent",
            "-l mtls:127.0.0.1",
            "-D ab",
            "-U 70000",
            "-o ssl_min_version=1",
            "-o watcher_logbuf_size=x",
            "-B http",
            "-o key_length_max=70000",
            "-o key_length_max=100",
            "-o engine=kqueue",
            "-o engine",
            "-o ext_path=x",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
        let told =
            plan("-l 127.0.0.1 -f 1.25 -o slab_reassign,no_lru_crawler,maxconns_fast").unwrap();
        assert!(!told.settings.crawls);
        assert_eq!(told.notices.len(), 3, "{:?}", told.notices);
        assert_eq!(plan("").unwrap().settings.protocol, Protocol::Auto);
        let protocol = plan("-B binary").unwrap().settings.protocol;
        assert_eq!(protocol, Protocol::Binary);
        let drops = |line| plan(line).unwrap().drops_privileges;
        assert!(drops("") && drops("-o drop_privileges") && !drops("-o no_drop_privileges"));
        let timeout = plan("-o idle_timeout=5").unwrap().settings.idle_timeout;
        assert_eq!(timeout, Some(Duration::from_secs(5)));
    }

    #[test]
    fn datagrams_have_a_port_where_one_is_written() {
        let listening = |line| plan(line).unwrap().listening;
        let (tcp, udp) = (
            |address: &str| ListenAddress::Inet(address.parse().unwrap(), Security::Plain),
            |address: &str| ListenAddress::Udp(address.parse().unwrap()),
        );
        assert_eq!(listening("-l 127.0.0.1"), [tcp("127.0.0.1:11211")]);
        let both = [tcp("127.0.0.1:5"), udp("127.0.0.1:6")];
        assert_eq!(listening("-l 127.0.0.1 -p 5 -U 6"), both);
        let same = [tcp("127.0.0.1:6"), udp("127.0.0.1:6")];
        assert_eq!(listening("-l 127.0.0.1 -U 6"), same);
        assert_eq!(listening("-l 127.0.0.1 -p 0 -U 6"), [udp("127.0.0.1:6")]);
        let free = listening("-l 127.0.0.1 -U -1");
        assert_eq!(free, [tcp("127.0.0.1:0"), udp("127.0.0.1:0")]);
        assert!(plan("-U 6").unwrap().notices[0].starts_with("warning: "));
    }

    #[test]
    fn who_must_say_who_he_is_speaks_a_protocol_for_that() {
        let protocol = |line| plan(line).unwrap().settings.protocol;
        assert_eq!(protocol("-Y f"), Protocol::Text);
        assert_eq!(protocol("-Y f -S"), Protocol::Auto);
        assert_eq!(protocol("-Y f -S -B binary"), Protocol::Binary);
        let plan = plan("-Y f -W -C -D . -R 0 -e m -o watcher_logbuf_size=8").unwrap();
        let settings = &plan.settings;
        assert!(!settings.allows_watch && !settings.with_cas && settings.counts_prefixes);
        assert_eq!(
            (settings.prefix_delimiter, settings.commands_in_turn),
            (b'.', 1)
        );
        assert_eq!(settings.watcher_buffer, 8192);
        assert_eq!(
            settings.memory_file.as_deref(),
            Some(std::path::Path::new("m"))
        );
        assert_eq!(plan.users.as_deref(), Some(std::path::Path::new("f")));
        // Other machines can reach the port, but clients must authenticate.
        assert!(plan.notices.is_empty(), "{:?}", plan.notices);
    }

    #[test]
    fn an_address_that_others_reach_is_told() {
        assert!(plan("-p 1").unwrap().notices[0].starts_with("warning: "));
        assert!(plan("-l 127.0.0.1:5").unwrap().notices.is_empty());
        let listening = plan("-l 127.0.0.1:5,[::1]:6").unwrap().listening;
        assert_eq!(
            listening[1],
            ListenAddress::Inet("[::1]:6".parse().unwrap(), Security::Plain)
        );
        let nothing = plan("-p 0").unwrap();
        assert!(nothing.listening.is_empty() && nothing.notices[0].starts_with("nothing is "));
        assert!(plan("-m 1").is_err() && plan("-I 1g").is_err());
    }
}
