//! The implementation of the process crate's interfaces, composed from `process` and `server`: it
//! examines configurations, and runs the server.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use conf::{
    Declared, Diagnostic, Disk, Files, LastReading, Line, Loaded, MissingHosts, Registry, Reload,
    ScopeRef, Tree, Uncached,
};
use engine::net::{Address, BoundSocket, CallError, ListenOptions, SocketKind};
use framework::compile::Environment;
use framework::generation::Generation;
use framework::handover::Unfit;
use framework::places;
use framework::protocol_part::ListenSocket;
use framework::service::Services;
use framework::workers::{Settings, Share, Sockets, Workers};
use framework::zone::RestoredZones;
use logs::OpenLogs;
use logs::{Destination, LogFile, Sink};
use process::confinement::{Confinement, PathAccess, PathRule};
use process::programs::{Ended, Program};
use process::{
    Application, Bundle, DescriptorUpdate, ErrorLog, ErrorLogDestination, Events, LogTarget,
    MasterSettings, NeedKind, NewProcessLine, OpenError, Options, RequiredDescriptor,
    RequiredResources, WorkerProcess,
};
use server::Compiled;
use transport::listen::ListenerId;

use crate::cli::NGINX_VERSION;
use crate::main_level::{self, MainLevel, binds_to_foreign_addresses};
use crate::xdp;

/// Every directive that this program knows.
pub(crate) fn registry() -> &'static Registry {
    static OTHERS: &[&[&dyn Declared]] = &[main_level::TABLE];
    server::protocols::registry(OTHERS)
}

/// Tidegate as a program of the process crate.
pub(crate) struct Tidegate {
    /// Contents that replace files on the disk.
    pub(crate) texts: OverlayFiles,
    /// The resolver of host names, if some may remain unresolved.
    pub(crate) hosts: Option<Arc<MissingHosts<Disk>>>,
    /// Called when the first worker starts to serve.
    pub(crate) serving: Option<Box<dyn Fn() + Send + Sync>>,
    /// Files that a reload need not read again.
    pub(crate) last_reading: LastReading,
}

impl Tidegate {
    /// A server that reads its files from the disk.
    pub(crate) const fn new() -> Tidegate {
        Tidegate {
            texts: OverlayFiles(BTreeMap::new()),
            hosts: None,
            serving: None,
            last_reading: LastReading::new(),
        }
    }
}

/// The files on the disk, some of them replaced by contents in memory: configurations that a
/// subcommand generates or changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverlayFiles(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl Files for OverlayFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.0.get(path) {
            Some(text) => Ok(text.clone()),
            None => Disk.read(path),
        }
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Disk.glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        Disk.addresses(host)
    }
}

/// Like [`OverlayFiles`], but unchanged files come from the last reading, and `hosts` may resolve
/// the names of missing hosts.
struct KnownTexts<'a> {
    texts: &'a OverlayFiles,
    hosts: Option<&'a MissingHosts<Disk>>,
    last_reading: &'a LastReading,
}

impl Files for KnownTexts<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.texts.read(path)
    }

    fn read_unchanged(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.texts.0.get(path) {
            Some(text) => Ok(text.clone()),
            None => self.last_reading.read(path),
        }
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.texts.glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        match self.hosts {
            Some(hosts) => hosts.addresses(host),
            None => self.texts.addresses(host),
        }
    }
}

impl Application for Tidegate {
    fn banner(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!("tidegate/{version}, compatible with nginx/{NGINX_VERSION}")
    }

    fn registry(&self) -> &Registry {
        registry()
    }

    fn files(&self) -> Box<dyn Files + '_> {
        self.last_reading.begin();
        Box::new(KnownTexts {
            texts: &self.texts,
            hosts: self.hosts.as_deref(),
            last_reading: &self.last_reading,
        })
    }

    fn inherited(&self, socket: &OwnedFd) -> Option<(String, Option<PathBuf>)> {
        let (address, carries) = engine::net::bound_address(socket).ok()?;
        let file = address.socket_file().map(Path::to_owned);
        let listener = ListenerId::of_address(&address, carries);
        Some((listener.0.to_string(), file))
    }

    fn serving(&self) {
        if let Some(serving) = &self.serving {
            serving();
        }
    }

    fn examine(
        &self,
        loaded: &Loaded,
        files: &dyn Files,
        options: &Options,
    ) -> Result<RequiredResources, Vec<Diagnostic>> {
        let (main, compiled) = compile(loaded, files, options)?;
        let Compiled {
            listening,
            events,
            error_log,
            logs,
            directories,
            places,
            programs,
            mut diagnostics,
            ..
        } = compiled;
        let confinement = confinement(&main, &events, places, programs, &loaded.tree);
        diagnostics.extend(
            confinement
                .notes()
                .map(|text| Diagnostic::new(conf::Level::Notice, text, None)),
        );
        let devices = xdp::devices(&events, &listening, main.threads);
        let listeners = listening
            .iter()
            .flat_map(|socket| listeners(socket, main.threads));
        let descriptors = listeners.chain(logs.into_iter().map(log)).collect();
        let error_logs = error_log.targets().filter_map(|(sink, level)| {
            let place = log_place(sink)?;
            Some(LogTarget { place, level })
        });
        Ok(RequiredResources {
            master: MasterSettings {
                daemon: main.daemon,
                master_process: main.master_process,
                pid: main.pid,
                identity: main.identity,
                open_files_max: main.open_files_max,
                priority: main.priority,
                core_size_max: main.core_size_max,
                working_directory: main.working_directory,
                environment: main.environment,
                error_logs: error_logs.collect(),
                confinement,
            },
            descriptors,
            devices,
            directories,
            diagnostics,
            new_process_lines: new_process_lines(&loaded.tree),
        })
    }

    fn worker(&self, events: Events) -> Box<dyn WorkerProcess> {
        acme::run_programs_by(run_program);
        Box::new(Server {
            events,
            prepared: None,
            serving: None,
            replaced: Vec::new(),
            services: Services::default(),
            state_before: None,
            predecessors: Vec::new(),
        })
    }
}

/// Compiles a configuration, in the master and in a worker. The error lists all errors of the
/// configuration.
pub(crate) fn compile(
    loaded: &Loaded,
    files: &dyn Files,
    options: &Options,
) -> Result<(MainLevel, Compiled), Vec<Diagnostic>> {
    let mut diagnostics = Vec::new();
    if !loaded.has_errors() && loaded.tree.root().children("events").next().is_none() {
        let text = "no \"events\" section in configuration";
        diagnostics.push(Diagnostic::new(conf::Level::Emerg, text, None));
    }
    let main = MainLevel::compile(loaded.tree.root(), &options.prefix, &mut diagnostics);
    let anew = Uncached(files);
    let inherits = main.as_ref().is_ok_and(|main| main.inherits_objects);
    let environment = environment(if inherits { files } else { &anew }, options);
    let compiled = server::compile(&loaded.tree, &environment, default_error_log(options));
    match (main, compiled) {
        (Ok(main), Ok(mut compiled)) => {
            diagnostics.extend(too_many_connections(&main, &compiled.events));
            diagnostics.extend(xdp::warnings(&compiled.events, &compiled.listening));
            compiled.diagnostics.append(&mut diagnostics);
            Ok((main, compiled))
        }
        (main, compiled) => {
            diagnostics.extend(main.err().map(Diagnostic::from));
            diagnostics.extend(compiled.err().into_iter().flatten());
            Err(diagnostics)
        }
    }
}

/// nginx's warning that the limit of descriptors is below `worker_connections`. All threads share
/// the descriptors of the process.
fn too_many_connections(main: &MainLevel, events: &server::events::Events) -> Option<Diagnostic> {
    let limit = main
        .open_files_max
        .or_else(process::identity::open_files_max)?;
    let of_thread = events.connections as u64;
    let all = of_thread.saturating_mul(main.threads as u64);
    if all <= limit {
        return None;
    }
    let text = format!("{all} worker_connections exceed open file resource limit: {limit}");
    let warning = Diagnostic::warn(text, None);
    Some(if main.threads == 1 {
        warning
    } else {
        warning.with_hint(format!("{of_thread} of each of {} threads", main.threads))
    })
}

/// The environment in which the server's part of a configuration is compiled.
pub(crate) fn environment<'a>(files: &'a dyn Files, options: &'a Options) -> Environment<'a> {
    Environment {
        prefix: &options.prefix,
        conf_prefix: options.conf_prefix(),
        files,
        privileged: options.privileged,
    }
}

/// The destination of errors if the configuration has no `error_log`.
pub(crate) fn default_error_log(options: &Options) -> Destination {
    match &options.error_log {
        ErrorLog::Stderr => Destination::Stderr,
        // The path already contains the prefix, which the server prepends to every path.
        ErrorLog::File(path) => {
            let below = path.strip_prefix(&options.prefix).unwrap_or(path);
            Destination::File(below.to_owned())
        }
    }
}

/// The sockets of a listener: one per thread with `reuseport`, and always for datagrams, so that
/// all datagrams of a client go to the thread that holds its session. Even the socket of a single
/// thread is bound with SO_REUSEPORT, so that sockets for further threads can be bound later
/// without receiving datagrams before their threads exist.
fn listeners(socket: &ListenSocket, threads: usize) -> impl Iterator<Item = RequiredDescriptor> {
    let is_datagrams = socket.options.carries == SocketKind::Datagrams;
    let is_inet = matches!(socket.options.address, Address::Inet(_));
    let is_spread = is_datagrams && is_inet && !socket.options.reuseport;
    let options = ListenOptions {
        reuseport: socket.options.reuseport || is_spread,
        ..socket.options.clone()
    };
    let count = if options.reuseport { threads } else { 1 };
    (0..count).map(move |number| {
        let options = options.clone();
        let socket_file = options.address.socket_file().map(Path::to_owned);
        let kept = kept(options.clone());
        let probed = options.clone();
        let probe = move || could_listen(&probed);
        let open = move || {
            // Without `reuseport` in the configuration, do not share the address with another
            // program.
            if is_spread && number == 0 {
                could_listen(&options)?;
            }
            listen(&options)
        };
        let kind = NeedKind::Listener {
            socket_file,
            group: socket.id.0.to_string(),
        };
        RequiredDescriptor {
            key: socket_key(&socket.id, number),
            kind,
            open: Box::new(open),
            probe: Box::new(probe),
            kept: Some(kept),
        }
    })
}

fn listen(options: &ListenOptions) -> Result<OwnedFd, OpenError> {
    engine::net::listen(options).map_err(|failed| {
        let text = not_listening(failed.call, &options.address, &failed.error);
        let address = match options.address {
            Address::Inet(address) => Some(address),
            Address::Unix(_) => None,
        };
        match failed.error.kind() {
            io::ErrorKind::AddrInUse => OpenError::AddressInUse(text, address),
            io::ErrorKind::PermissionDenied if address.is_some() => {
                OpenError::PortNotPermitted(text)
            }
            _ => OpenError::Failed(text),
        }
    })
}

/// Checks whether an address can be listened on. The address is bound for a moment, but never
/// shared with the server that already has it: the kernel would give this process connections of
/// that server. No file of a Unix socket is created.
fn could_listen(options: &ListenOptions) -> Result<(), OpenError> {
    match options.address.socket_file() {
        Some(path) => process::probe::socket(path)
            .map_err(|error| OpenError::Failed(not_listening("bind()", &options.address, &error))),
        None => {
            let alone = ListenOptions {
                reuseport: false,
                ..options.clone()
            };
            listen(&alone).map(drop)
        }
    }
}

fn not_listening(call: &str, address: &Address, error: &io::Error) -> String {
    process::log::failure(&format!("{call} to {address} failed"), error)
}

/// The update of a socket that a reload keeps: the options of its `listen` may have changed.
fn kept(options: ListenOptions) -> DescriptorUpdate {
    fn ignored(options: &ListenOptions, failed: CallError) -> String {
        let call = format!("{} {} failed, ignored", failed.call, options.address);
        process::log::failure(&call, &failed.error)
    }
    let (first, then) = (options.clone(), options);
    let before = move |socket: &OwnedFd| {
        // Further threads are about to bind sockets to the same address.
        let shared = if first.reuseport {
            engine::net::share(socket)
        } else {
            Ok(())
        };
        shared
            .err()
            .map(|failed| ignored(&first, failed))
            .into_iter()
            .collect()
    };
    let after = move |socket: &OwnedFd| {
        let failures = engine::net::adjust(socket, &then);
        failures
            .into_iter()
            .map(|failed| ignored(&then, failed))
            .collect()
    };
    DescriptorUpdate {
        before: Box::new(before),
        after: Box::new(after),
    }
}

/// The key that identifies one socket of a listener over reloads.
fn socket_key(listener: &ListenerId, number: usize) -> String {
    process::listener_key(&listener.0, number)
}

/// The destination of the master's log lines. A log in memory belongs to the worker process alone.
fn log_place(sink: &Sink) -> Option<ErrorLogDestination> {
    match sink {
        Sink::File(file) if file.can_be_reopened() => {
            Some(ErrorLogDestination::Descriptor(file.key()))
        }
        Sink::File(_) => Some(ErrorLogDestination::Stderr),
        Sink::Syslog(syslog) => Some(ErrorLogDestination::Syslog(syslog.destination().clone())),
        Sink::Memory(_) => None,
    }
}

fn log(file: Arc<LogFile>) -> RequiredDescriptor {
    let kind = NeedKind::Log {
        can_be_reopened: file.can_be_reopened(),
    };
    let key = file.key();
    let failed = |file: &LogFile, error: &io::Error| {
        let call = format!("open() \"{}\" failed", file.name());
        OpenError::Failed(process::log::failure(&call, error))
    };
    let probed = Arc::clone(&file);
    let probe = move || {
        if probed.can_be_reopened() {
            process::probe::log(probed.path()).map_err(|error| failed(&probed, &error))
        } else {
            Ok(())
        }
    };
    let open = move || file.open().map_err(|error| failed(&file, &error));
    RequiredDescriptor {
        key,
        kind,
        open: Box::new(open),
        probe: Box::new(probe),
        kept: None,
    }
}

/// Has the program runner of a confined worker run an issuer's program. `None` if this process has
/// no runner, and may start the program itself.
fn run_program(
    program: &acme::DnsProgram,
    arguments: &[&OsStr],
    at_most: Duration,
) -> Option<io::Result<Option<ExitStatus>>> {
    let program = Program {
        path: program.path.clone(),
        arguments: program.arguments.clone(),
    };
    let ended = process::programs::run(&program, arguments, at_most)?;
    Some(ended.map(|ended| match ended {
        Ended::With(status) => Some(status),
        Ended::TimedOut => None,
    }))
}

/// The permissions of a configuration's worker process.
fn confinement(
    main: &MainLevel,
    events: &server::events::Events,
    places: Vec<places::FilePlace>,
    programs: Vec<places::Program>,
    tree: &Tree,
) -> Confinement {
    let place = |place: places::FilePlace| PathRule {
        path: place.path,
        access: match place.access {
            places::FileAccess::Read => PathAccess::Read,
            places::FileAccess::Append => PathAccess::Append,
            places::FileAccess::Write => PathAccess::Write,
        },
        line: place.line,
    };
    let program = |program: places::Program| Program {
        path: program.path,
        arguments: program.arguments,
    };
    let mut places: Vec<PathRule> = places.into_iter().map(place).collect();
    if main.core_size_max.is_some_and(|bytes| bytes > 0) {
        let folder = main.working_directory.as_deref();
        places.extend(PathRule::of_core_files(folder, "\"worker_rlimit_core\""));
    }
    let mut lines = tree.scopes().flat_map(ScopeRef::lines);
    Confinement {
        level: main.confine,
        places,
        keeps_raw_network: lines.any(binds_to_foreign_addresses),
        may_use_rings: !matches!(
            events.engine,
            Some(engine::EngineKind::Epoll | engine::EngineKind::Xdp)
        ),
        programs: programs.into_iter().map(program).collect(),
    }
}

/// The lines of the main level and of its `events` block whose changes a running worker process
/// cannot apply, and the first line that needs a capability, which the worker process has dropped.
fn new_process_lines(tree: &Tree) -> Vec<NewProcessLine> {
    fn new_process_line(line: &Line) -> NewProcessLine {
        NewProcessLine {
            name: line.name.text().into_owned(),
            text: text(line),
            place: line.position.to_string(),
        }
    }
    fn collect(scope: ScopeRef<'_>, lines: &mut Vec<NewProcessLine>) {
        for line in scope.lines() {
            let name = line.name.text();
            if registry()
                .find(&name)
                .any(|spec| spec.reload == Reload::NewProcess)
            {
                lines.push(new_process_line(line));
            }
        }
    }
    let mut lines = Vec::new();
    let mut all = tree.scopes().flat_map(ScopeRef::lines);
    let first = all.find(|line| binds_to_foreign_addresses(line));
    lines.extend(first.map(|line| NewProcessLine {
        text: String::new(), // any will do
        ..new_process_line(line)
    }));
    collect(tree.root(), &mut lines);
    tree.root()
        .children("events")
        .for_each(|events| collect(events, &mut lines));
    lines
}

/// The arguments of a line as one text, for comparison.
fn text(line: &Line) -> String {
    let words: Vec<_> = line.args.iter().map(|word| word.text()).collect();
    words.join("\0")
}

/// Time limit for saving the state of services after a fast shutdown: the master kills the process
/// after a second.
const TERMINATE_WAIT: Duration = Duration::from_millis(500);

/// The worker: its threads, and the configuration that they serve.
struct Server {
    events: Events,
    prepared: Option<Prepared>,
    serving: Option<Serving>,
    /// Earlier generations that may still have requests.
    replaced: Vec<Weak<Generation>>,
    /// The services that run in addition to the threads.
    services: Services,
    /// The state of the previous worker's zones, until the first configuration restores it.
    state_before: Option<Vec<u8>>,
    /// Connections to the workers that this worker replaces when it starts to serve.
    predecessors: Vec<OwnedFd>,
}

/// A configuration that is prepared but not yet committed.
struct Prepared {
    generation: Arc<Generation>,
    /// Set by the commit. The end of a generation that was never committed is not reported to the
    /// master.
    committed: Arc<AtomicBool>,
    shares: Vec<Share>,
    shutdown_timeout: Option<Duration>,
    /// The threads that will serve this generation. Threads that have just been started do not
    /// listen yet.
    workers: Arc<Workers>,
}
/// The configuration that the threads serve.
struct Serving {
    generation: Arc<Generation>,
    workers: Arc<Workers>,
    shutdown_timeout: Option<Duration>,
}

impl WorkerProcess for Server {
    fn prepare(&mut self, bundle: Bundle) -> Result<(), String> {
        let Bundle {
            generation: number,
            options,
            files,
            mut descriptors,
        } = bundle;
        let loaded = conf::load(
            &options.conf_path,
            options.conf_prefix(),
            &options.globals,
            registry(),
            &files,
        );
        refuse_errors(&loaded.diagnostics)?;
        let (main, compiled) =
            compile(&loaded, &files, &options).map_err(|diagnostics| lines(&diagnostics))?;
        let Compiled {
            mut generation,
            events,
            listening,
            logs,
            ..
        } = compiled;
        for file in logs {
            let descriptor = descriptors.remove(&file.key());
            file.install(descriptor.ok_or_else(|| missing(&file.key()))?);
        }
        let sockets = listening
            .iter()
            .map(|socket| sockets(socket, &mut descriptors));
        let sockets = sockets.collect::<Result<Sockets, String>>()?;
        if let Some(serving) = &self.serving {
            generation.zones.adopt(&serving.generation.zones)?;
        }
        let state_before = self.state_before.take();
        let restored = state_before.map(|state| generation.zones.restore(&state));
        for service in &generation.services {
            service.prepare();
        }
        let committed = Arc::new(AtomicBool::new(false));
        let (ended, served) = (self.events.clone(), Arc::clone(&committed));
        generation.on_end(move || {
            // A generation that was never committed does not report its end.
            if served.load(Ordering::Acquire) {
                ended.generation_finished(number);
            }
        });
        let generation = Arc::new(generation);
        let workers = match &self.serving {
            Some(serving) => Arc::clone(&serving.workers),
            None => Arc::new(start_threads(&main, &events, &generation)?),
        };
        // Logged only here, since no log was open before.
        restored.into_iter().for_each(log_restored);
        let shares = workers.shares(&sockets).map_err(|error| {
            process::log::failure("listening sockets could not be shared", &error)
        })?;
        let shutdown_timeout = main.shutdown_timeout;
        self.prepared = Some(Prepared {
            generation,
            committed,
            shares,
            shutdown_timeout,
            workers,
        });
        Ok(())
    }

    fn uses_io_uring(&self) -> bool {
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.workers);
        let workers = prepared.or(self.serving.as_ref().map(|serving| &serving.workers));
        workers.is_some_and(|workers| workers.engine() == engine::EngineKind::Uring)
    }

    fn commit(&mut self) {
        let Some(prepared) = self.prepared.take() else {
            return;
        };
        let Prepared {
            generation,
            committed,
            shares,
            shutdown_timeout,
            workers,
        } = prepared;
        committed.store(true, Ordering::Release);
        framework::reloads::note_success();
        logs::set_main_of(&generation);
        // As in nginx, connections accepted before a reload have the same time limit as after an
        // order to quit, by the configuration that they were accepted under.
        let serving = self.serving.as_ref();
        let limit = serving.and_then(|serving| serving.shutdown_timeout);
        if self.serving.is_none() {
            workers.succeed(std::mem::take(&mut self.predecessors));
        }
        workers.swap(&generation, shares, limit);
        self.services.reconcile(&generation);
        let serving = Serving {
            generation,
            workers,
            shutdown_timeout,
        };
        self.replaced.retain(|one| one.strong_count() > 0);
        if let Some(old) = self.serving.replace(serving) {
            self.replaced.push(Arc::downgrade(&old.generation));
        }
    }

    fn abandon(&mut self) {
        self.prepared = None;
    }

    fn reload_failed(&mut self) {
        framework::reloads::note_failure();
    }

    fn reopened(&mut self, logs: HashMap<String, OwnedFd>) {
        let serving = self.serving.iter();
        let serving = serving.map(|serving| Arc::clone(&serving.generation));
        let replaced = self.replaced.iter().filter_map(Weak::upgrade);
        for generation in serving.chain(replaced) {
            let open = generation.part::<OpenLogs>();
            for file in open.iter().flat_map(|open| &open.0) {
                // Generations that write to the same file each have a descriptor of their own.
                let descriptor = logs.get(&file.key()).map(OwnedFd::try_clone);
                if let Some(Ok(descriptor)) = descriptor {
                    file.install(descriptor);
                }
            }
        }
    }

    fn devices(&mut self, devices: HashMap<String, OwnedFd>) -> Result<(), String> {
        let Some(serving) = &self.serving else {
            return Ok(());
        };
        xdp::attach(&serving.workers, devices)
    }

    fn save(&mut self) -> Vec<u8> {
        let serving = self.serving.as_ref();
        serving.map_or_else(Vec::new, |serving| serving.generation.zones.save())
    }

    fn go_on(&mut self, state: Vec<u8>) {
        self.state_before = Some(state);
    }

    fn succeed(&mut self, channels: Vec<OwnedFd>) {
        self.predecessors = channels;
    }

    fn prepare_succession(&mut self, channel: OwnedFd) {
        if let Some(serving) = &self.serving {
            serving.workers.prepare_succession(channel);
        }
    }

    fn quit(&mut self) {
        self.stop(Workers::quit);
    }

    fn drain(&mut self) {
        self.stop(Workers::drain);
    }

    fn terminate(&mut self) {
        let Some(serving) = &self.serving else { return };
        self.services.stop();
        engine::shorten_background_deadlines(TERMINATE_WAIT);
        serving.workers.terminate();
        serving.workers.wait();
    }
}

impl Server {
    /// Stops the threads. `how` decides whether requests in progress are completed.
    fn stop(&mut self, how: fn(&Workers, Option<Duration>)) {
        let Some(serving) = &self.serving else {
            return self.events.drained();
        };
        self.services.stop();
        let workers = Arc::clone(&serving.workers);
        how(&workers, serving.shutdown_timeout);
        let events = self.events.clone();
        let body = move || {
            workers.wait();
            events.drained();
        };
        // If no thread can be started, the end is not reported; the master can still kill the
        // process.
        let _ = std::thread::Builder::new()
            .name("end".to_owned())
            .spawn(body);
    }
}

/// Logs which zones were restored.
fn log_restored(restored: Result<RestoredZones, Unfit>) {
    use logs::{Level, process_error};
    match restored {
        Ok(RestoredZones { count, empty }) => {
            for (name, why) in empty {
                let text = format_args!("zone \"{name}\" begins empty: {why}");
                process_error(Level::Notice, text);
            }
            let text = format_args!("{count} zones go on with the state of the worker before");
            process_error(Level::Notice, text);
        }
        Err(why) => {
            let text = format_args!("zones begin empty, their state was not understood: {why}");
            process_error(Level::Warn, text);
        }
    }
}

/// Starts the threads of this process. The threads listen once the generation is committed.
fn start_threads(
    main: &MainLevel,
    events: &server::events::Events,
    generation: &Arc<Generation>,
) -> Result<Workers, String> {
    logs::set_main_of(generation);
    let (engine, reason) = engine::choose(events.engine);
    let text = format_args!("using the \"{engine}\" event method: {reason}");
    logs::process_error(logs::Level::Notice, text);
    let settings = Settings {
        engine,
        threads: main.threads,
        handlers: server::protocols::handlers,
        report: &logs::ErrorLogReporter,
        connections: events.connections,
        multi_accept: events.multi_accept,
        affinity: main.affinity.clone(),
    };
    Workers::start(&settings, generation, &Sockets::new())
        .map_err(|error| process::log::failure("worker threads could not be started", &error))
}

/// The sockets of a listener, taken from the bundle's descriptors. There may be more sockets than
/// threads after a reload has reduced the number of threads.
fn sockets(
    socket: &ListenSocket,
    descriptors: &mut HashMap<String, OwnedFd>,
) -> Result<(ListenerId, Vec<BoundSocket>), String> {
    let keys = (0..).map(|number| socket_key(&socket.id, number));
    let found = keys.map_while(|key| descriptors.remove(&key));
    let found: Vec<_> = found.map(BoundSocket::from).collect();
    if found.is_empty() {
        return Err(missing(&socket.id.0));
    }
    Ok((socket.id.clone(), found))
}

fn missing(key: &str) -> String {
    format!("the bundle has no descriptor for \"{key}\"")
}

fn refuse_errors(diagnostics: &[Diagnostic]) -> Result<(), String> {
    let is_error = |diagnostic: &&Diagnostic| diagnostic.level == conf::Level::Emerg;
    let errors: Vec<Diagnostic> = diagnostics.iter().filter(is_error).cloned().collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(lines(&errors))
    }
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    let lines: Vec<String> = diagnostics.iter().map(Diagnostic::to_string).collect();
    lines.join("\n")
}
