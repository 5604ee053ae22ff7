//! `tidegate memcached`: a memcached server with memcached's command line. The protocol and the
//! cache are in the crate `memcached`. Described in docs/memcached.md.
//!
//! Like memcached, the server is one process: no master, no configuration, no reload.

mod options;

use std::ffi::{OsStr, OsString};
use std::fmt::Arguments as FormatArguments;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use engine::net::{Address, BoundSocket, ListenOptions, SocketKind};
use framework::connection_handler::{ConnectionHandler, ListenerId};
use framework::generation::Generation;
use framework::report::ThreadReport;
use framework::workers::{self, Sockets, Workers};
use framework::zone::Zones;
use memcached::connection_handler::{CacheOf, MemcachedPart, Server, handler};
use memcached::{Cache, Settings, ShutdownPolicy, UserPasswords, saved};
use process::confinement::{Confinement, Level, PathAccess, PathRule};
use process::identity::{self, Identity};
use process::single::{self, ExitRequests, WrittenPidFile};

pub(crate) use options::Arguments;
use options::{ListenAddress, Plan, Security};

/// Interval at which the main thread removes expired items.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Number of descriptors that are not connections.
const OTHER_FILES: u64 = 64;

/// Runs the server if the program was called `memcached`.
pub(crate) fn as_memcached(program: &OsStr, arguments: &[OsString]) -> Option<ExitCode> {
    #[derive(Parser)]
    #[command(name = "memcached", version)]
    struct Called {
        #[command(flatten)]
        arguments: Arguments,
    }
    (Path::new(program).file_name()? == "memcached").then(|| {
        let program = std::iter::once(OsString::from("memcached"));
        let line = program.chain(arguments.iter().cloned());
        run(&Called::parse_from(line).arguments)
    })
}

/// Serves until the process is told to end.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match arguments.plan().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

/// Prints a line on standard error.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}: {text}", process::PROGRAM);
}

/// Runs the server of a plan until a signal ends it.
fn serve(plan: Plan) -> Result<(), String> {
    plan.notices.iter().for_each(|notice| say(notice));
    let identity = identity_of(&plan)?;
    let files = connections_max(&plan.settings) as u64 + OTHER_FILES;
    let allowed = single::raise_open_files(None)
        .map_err(|text| say(&text))
        .is_ok();
    if allowed && !has_files(files) && identity::is_superuser() {
        single::raise_open_files(Some(files))?;
    }
    let mut listeners = Vec::new();
    for listening in &plan.listening {
        listeners.push(listen(listening, &plan)?);
    }
    write_ports(&listeners)?;
    if plan.daemon {
        single::to_background()?;
    }
    let named = plan
        .pid_file
        .as_deref()
        .map(WrittenPidFile::create)
        .transpose()?;
    if plan.locks_memory {
        // As in memcached, the server starts even if memory cannot be locked.
        single::lock_memory()
            .unwrap_or_else(|text| say(&format!("-k: memory is not locked: {text}")));
    }
    if plan.dumps_core {
        single::allow_core_files()?;
    }
    let confined = single::confine_process(identity.as_ref(), &confinement(&plan))?;
    if confined.lacks_anything() {
        say(&confined.to_string());
    }
    if plan.dumps_core {
        single::keep_dumpable().unwrap_or_else(|text| say(&format!("-r: {text}")));
    }
    let endings = ExitRequests::take().map_err(|error| format!("signals: {error}"))?;
    let ender = endings.ender();
    let end = move |ending| {
        ender.end(match ending {
            ShutdownPolicy::Now => single::ProcessEnd::Now,
            ShutdownPolicy::Graceful => single::ProcessEnd::Graceful,
        });
    };
    let cache = Arc::new(Cache::new(
        plan.settings.clone(),
        Instant::now(),
        Box::new(end),
    ));
    if let Some(path) = &plan.users {
        cache.set_credentials(read_users(path)?);
    }
    let memory_file = plan.settings.memory_file.as_deref();
    let saved = match memory_file {
        Some(path) => open_saved(&cache, path)?,
        None => None,
    };
    let workers = start(&plan, &cache, listeners)?;
    confined.close_rings(workers.engine() == engine::EngineKind::Uring)?;
    let restoring = match saved {
        Some(saved) => Some(restore(saved, &cache)?),
        None => None,
    };
    let ending = loop {
        match endings.wait(SWEEP_INTERVAL) {
            Some(single::SignalMeaning::End(ending)) => break ending,
            // Clients that are already authenticated stay so.
            Some(single::SignalMeaning::ReadAgain) => {
                if let Some(path) = &plan.users {
                    match read_users(path) {
                        Ok(users) => cache.set_credentials(users),
                        Err(text) => say(&format!("{text}; the users before stay")),
                    }
                }
            }
            None => {
                while cache.sweep(Instant::now()) {}
                if cache.is_trim_due() {
                    engine::trim_now();
                }
            }
        }
    };
    match ending {
        single::ProcessEnd::Now => workers.terminate(),
        single::ProcessEnd::Graceful => workers.quit(None),
    }
    workers.wait();
    if let (single::ProcessEnd::Graceful, Some(path)) = (ending, memory_file) {
        if let Some(restoring) = restoring {
            let _ = restoring.join(); // items that are not restored yet would be lost
        }
        let saved = saved::save(&cache, path, Instant::now());
        let count =
            saved.map_err(|error| format!("{} was not written: {error}", path.display()))?;
        say(&format!("{count} items are in {}", path.display()));
    }
    for listening in &plan.listening {
        if let ListenAddress::Path(path) = listening {
            let _ = std::fs::remove_file(path);
        }
    }
    drop(named);
    Ok(())
}

/// Reads the users and passwords of a file.
fn read_users(path: &Path) -> Result<UserPasswords, String> {
    let name = path.display();
    let text = std::fs::read(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
    UserPasswords::parse(&text).map_err(|line| match line {
        0 => format!("{name} names no user; a line is user:password"),
        line => format!("line {line} of {name} is not user:password, or longer than 256 bytes"),
    })
}

/// Opens the saved items of an earlier run.
fn open_saved(cache: &Cache, path: &Path) -> Result<Option<saved::SavedItems>, String> {
    let mut of_memcached = path.as_os_str().to_owned();
    of_memcached.push(".meta");
    let of_memcached = PathBuf::from(of_memcached);
    if of_memcached.exists() {
        return Err(format!(
            "{} is of memcached, whose items cannot be read here; remove both files to begin empty",
            of_memcached.display()
        ));
    }
    saved::open(cache, path)
}

/// Restores the items of an earlier run, while clients are served.
fn restore(
    saved: saved::SavedItems,
    cache: &Arc<Cache>,
) -> Result<std::thread::JoinHandle<()>, String> {
    let tell = |counts: saved::RestoredCounts| {
        let (restored, left_out) = (counts.restored, counts.left_out);
        let rest = if counts.is_damaged {
            ", and the file is damaged behind them"
        } else {
            ""
        };
        say(&format!(
            "{restored} items are there again, {left_out} were left out{rest}"
        ));
    };
    saved::restore_beside(saved, cache, tell)
        .map_err(|error| process::log::failure("a thread could not be started", &error))
}

/// The argument of `-c`, which has a default.
fn connections_max(settings: &Settings) -> usize {
    settings.connections_max.unwrap_or_default()
}

/// The permissions of the process while it serves: it may write the file of `-e`, and remove only
/// files that it has created, the pid file and the sockets.
fn confinement(plan: &Plan) -> Confinement {
    let sockets = plan
        .listening
        .iter()
        .filter_map(|listening| match listening {
            ListenAddress::Path(path) => Some(path),
            ListenAddress::Inet(..) | ListenAddress::Udp(_) => None,
        });
    let made = plan.pid_file.iter().chain(sockets);
    let folder = |file: &PathBuf, access| {
        let file = std::path::absolute(file).ok()?;
        Some(PathRule {
            path: file.parent()?.to_owned(),
            access,
            line: file.display().to_string(),
        })
    };
    let removed = made.filter_map(|file| folder(file, PathAccess::Remove));
    let memory_file = plan.settings.memory_file.iter();
    let written = memory_file.filter_map(|file| folder(file, PathAccess::Write));
    Confinement {
        level: if plan.drops_privileges {
            Level::On
        } else {
            Level::Off
        },
        places: removed.chain(written).collect(),
        may_use_rings: true,
        ..Confinement::default()
    }
}

/// The user to run as. As in memcached, root must name one.
fn identity_of(plan: &Plan) -> Result<Option<Identity>, String> {
    match &plan.user {
        _ if !identity::is_superuser() => Ok(None),
        None => Err("can't run as root without the -u switch".to_owned()),
        Some(name) => Identity::of_user(name)
            .map(Some)
            .map_err(|_| format!("can't find the user {name} to switch to")),
    }
}

/// Whether the limit of descriptors is at least `wanted`.
fn has_files(wanted: u64) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.is_none_or(|current| current >= wanted)
}

/// A listening socket: its address, its kind, the socket and its security.
type Bound = (Address, SocketKind, BoundSocket, Security);

fn listen(listening: &ListenAddress, plan: &Plan) -> Result<Bound, String> {
    let (address, carries, security) = match listening {
        ListenAddress::Inet(address, security) => {
            (Address::Inet(*address), SocketKind::Streams, *security)
        }
        ListenAddress::Udp(address) => (
            Address::Inet(*address),
            SocketKind::Datagrams,
            Security::Plain,
        ),
        ListenAddress::Path(path) => {
            remove_old_socket(path);
            (
                Address::Unix(path.clone()),
                SocketKind::Streams,
                Security::Plain,
            )
        }
    };
    let options = ListenOptions {
        carries,
        backlog: plan.settings.backlog,
        nodelay: true,
        ..ListenOptions::new(address.clone())
    };
    let socket = engine::net::listen(&options)
        .map_err(|failed| format!("failed to listen on {address}: {failed}"))?;
    if let ListenAddress::Path(path) = listening {
        let mode = 0o777 & !plan.settings.socket_mask;
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions)
            .map_err(|error| format!("chmod() of {} failed: {error}", path.display()))?;
    }
    let address = match rustix::net::getsockname(&socket).map(SocketAddr::try_from) {
        Ok(Ok(address)) => Address::Inet(address),
        _ => address,
    };
    Ok((address, carries, BoundSocket::from(socket), security))
}

/// Removes a socket that an earlier run has left at this path.
fn remove_old_socket(path: &Path) {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket {
        let _ = std::fs::remove_file(path);
    }
}

/// Writes the ports to the file that an environment variable names, for programs that have
/// requested any free port.
fn write_ports(listeners: &[Bound]) -> Result<(), String> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else {
        return Ok(());
    };
    let mut text = String::new();
    for (address, carries, _, _) in listeners {
        if let Address::Inet(address) = address {
            let protocol = match carries {
                SocketKind::Streams => "TCP",
                SocketKind::Datagrams => "UDP",
            };
            let family = if address.is_ipv4() { "INET" } else { "INET6" };
            text.push_str(&format!("{protocol} {family}: {}\n", address.port()));
        }
    }
    let path = PathBuf::from(path);
    let mut unfinished = path.clone().into_os_string();
    unfinished.push(".lck");
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

fn start(plan: &Plan, cache: &Arc<Cache>, listeners: Vec<Bound>) -> Result<Workers, String> {
    let settings = &plan.settings;
    let mut generation = Generation::new(Zones::default());
    let server = |(address, carries, _, security): &Bound| {
        cache.listen(address.clone(), *carries == SocketKind::Datagrams);
        let tls = settings.tls.as_ref();
        let tls = match security {
            Security::Plain => None,
            security => tls.map(|tls| tls.of_address(*security == Security::MutualTls)),
        };
        let id = ListenerId::of_address(address, *carries);
        Server::new(id, CacheOf::Process(Arc::clone(cache)), tls)
    };
    let servers = listeners.iter().map(server).collect();
    generation.add(MemcachedPart::of_servers(servers));
    let sockets: Sockets = listeners
        .into_iter()
        .map(|(address, carries, socket, _)| {
            let id = ListenerId::of_address(&address, carries);
            (id, vec![socket])
        })
        .collect();
    let (engine, why) = engine::choose(plan.engine);
    if plan.engine.is_some_and(|wanted| wanted != engine) {
        say(&why);
    }
    let settings = workers::Settings {
        engine,
        threads: settings.threads,
        handlers,
        report: &ToStandardError,
        // The connection handler limits the connections of all threads together.
        connections: connections_max(settings).saturating_add(1),
        multi_accept: false,
        affinity: Vec::new(),
    };
    Workers::start(&settings, &Arc::new(generation), &sockets)
        .map_err(|error| process::log::failure("worker threads could not be started", &error))
}

fn handlers() -> Vec<std::rc::Rc<dyn ConnectionHandler>> {
    vec![handler()]
}

/// Writes the threads' own log lines to standard error.
#[derive(Debug)]
struct ToStandardError;

impl ThreadReport for ToStandardError {
    fn line(&self, _: base::level::Level, message: FormatArguments<'_>) {
        say(&message.to_string());
    }

    fn thread_begins(&self) {}

    fn serves_by(&self, _: &Generation) {}

    fn thread_ends(&self) {}
}
