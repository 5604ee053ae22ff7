//! The smallest program over this crate: answers every connection with one word of its
//! configuration, once the client has sent a byte. The tests of this crate run it.
//!
//! ```text
//! tidegate's process directives: daemon, master_process, pid, user, error_log, worker_rlimit_nofile
//! listen ADDRESS | unix:PATH;   answer WORD;   log FILE;
//! refuse TEXT;      # the worker refuses the bundle with this text; the master does not
//! pause PIPE;       # the worker reads this to its end while it prepares
//! ```

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use conf::{Diagnostic, Files, Loaded, Registry};
use process::confinement::Confinement;
use process::{
    Action, Application, Bundle, ErrorLog, ErrorLogDestination, Events, Identity, LogTarget,
    MasterSettings, NeedKind, NewProcessLine, OpenError, Options, RequiredDescriptor,
    RequiredResources, SignalName, WorkerProcess,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tidegate_process as process;

fn main() -> ExitCode {
    if process::is_worker() {
        return process::worker_main(application());
    }
    let mut options = Options {
        prefix: PathBuf::from("/"),
        conf_path: PathBuf::from("answer.conf"),
        error_log: ErrorLog::Stderr,
        globals: Vec::new(),
        action: Action::Start,
        quiet: false,
        privileged: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let mut value = || arguments.next().expect("a value after the flag");
        match flag.as_str() {
            "-c" => options.conf_path = value().into(),
            "-e" => options.error_log = ErrorLog::File(value().into()),
            "-t" => options.action = Action::Test { dump: false },
            "-s" => {
                options.action = Action::Signal(SignalName::parse(&value()).expect("a signal"));
            }
            _ => panic!("unknown flag {flag}"),
        }
    }
    process::run(options, application())
}

fn application() -> &'static dyn Application {
    Box::leak(Box::new(Answer {
        registry: table::registry(),
    }))
}

struct Answer {
    registry: Registry,
}

impl Application for Answer {
    fn banner(&self) -> String {
        "answer/1".to_owned()
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn examine(
        &self,
        loaded: &Loaded,
        _files: &dyn Files,
        options: &Options,
    ) -> Result<RequiredResources, Vec<Diagnostic>> {
        let lines = table::lines(loaded);
        let value = |name: &str| {
            lines
                .iter()
                .find(|line| line.name == name)
                .map(|l| &*l.value)
        };
        let is_on = |name: &str| value(name) != Some("off");
        let log = |path: &str| {
            let path = PathBuf::from(path);
            let open = move || {
                process::log::open_append(&path).map_err(|error| {
                    let call = format!("open() \"{}\" failed", path.display());
                    OpenError::Failed(process::log::failure(&call, &error))
                })
            };
            (
                NeedKind::Log {
                    can_be_reopened: true,
                },
                Box::new(open) as Box<dyn Fn() -> Result<OwnedFd, OpenError>>,
            )
        };
        let mut descriptors = Vec::new();
        for line in &lines {
            let (kind, open) = match line.name.as_str() {
                "listen" => listen(&line.value),
                "error_log" | "log" => log(&line.value),
                _ => continue,
            };
            descriptors.push(RequiredDescriptor {
                key: format!("{} {}", line.name, line.value),
                kind,
                open,
                probe: Box::new(|| Ok(())),
                kept: None,
            });
        }
        let default_log = match &options.error_log {
            ErrorLog::Stderr => None,
            ErrorLog::File(path) => Some(path.display().to_string()),
        };
        if let (None, Some(path)) = (value("error_log"), &default_log) {
            let (kind, open) = log(path);
            descriptors.push(RequiredDescriptor {
                key: format!("error_log {path}"),
                kind,
                open,
                probe: Box::new(|| Ok(())),
                kept: None,
            });
        }
        let error_log = value("error_log").map(str::to_owned).or(default_log);
        let fixed = ["user", "worker_rlimit_nofile"];
        let fixed = lines
            .iter()
            .filter(|line| fixed.contains(&line.name.as_str()));
        Ok(RequiredResources {
            devices: Vec::new(),
            directories: Vec::new(),
            master: MasterSettings {
                daemon: is_on("daemon"),
                master_process: is_on("master_process"),
                pid: value("pid").unwrap_or("/run/answer.pid").into(),
                identity: value("user")
                    .map(|user| Identity::resolve(user, Some("nogroup")).unwrap()),
                open_files_max: value("worker_rlimit_nofile").and_then(|text| text.parse().ok()),
                priority: 0,
                core_size_max: None,
                working_directory: None,
                environment: Vec::new(),
                error_logs: vec![LogTarget {
                    place: error_log.map_or(ErrorLogDestination::Stderr, |path| {
                        ErrorLogDestination::Descriptor(format!("error_log {path}"))
                    }),
                    level: process::Level::Debug,
                }],
                confinement: Confinement::default(),
            },
            descriptors,
            diagnostics: Vec::new(),
            new_process_lines: fixed
                .map(|line| NewProcessLine {
                    name: line.name.clone(),
                    text: line.value.clone(),
                    place: line.place.clone(),
                })
                .collect(),
        })
    }

    fn worker(&self, events: Events) -> Box<dyn WorkerProcess> {
        Box::new(Answering {
            registry: table::registry(),
            shared: Arc::default(),
            alive: Some(Arc::new(Alive(events.clone()))),
            events,
            acceptors: HashMap::new(),
            prepared: None,
        })
    }
}

/// How a listener is opened.
fn listen(address: &str) -> (NeedKind, Box<dyn Fn() -> Result<OwnedFd, OpenError>>) {
    let text = address.to_owned();
    let failed = move |error: std::io::Error| {
        let words = process::log::failure(&format!("bind() to {text} failed"), &error);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => OpenError::AddressInUse(words, None),
            _ => OpenError::Failed(words),
        }
    };
    match address.strip_prefix("unix:").map(PathBuf::from) {
        Some(path) => {
            let kind = NeedKind::Listener {
                socket_file: Some(path.clone()),
                group: address.to_owned(),
            };
            (
                kind,
                Box::new(move || UnixListener::bind(&path).map(Into::into).map_err(&failed)),
            )
        }
        None => {
            let address = address.to_owned();
            let kind = NeedKind::Listener {
                socket_file: None,
                group: address.clone(),
            };
            (
                kind,
                Box::new(move || TcpListener::bind(&address).map(Into::into).map_err(&failed)),
            )
        }
    }
}

/// What serves, one thread a listener and one a connection.
struct Answering {
    registry: Registry,
    shared: Arc<Mutex<Shared>>,
    /// Dropped to end; the last connection drops the last of it.
    alive: Option<Arc<Alive>>,
    events: Events,
    /// By key: dropping one ends its thread.
    acceptors: HashMap<String, Acceptor>,
    prepared: Option<(Arc<Generation>, HashMap<String, OwnedFd>)>,
}

#[derive(Default)]
struct Shared {
    generation: Option<Arc<Generation>>,
    log: Option<Arc<OwnedFd>>,
}

/// Says so when nobody needs it any more.
struct Alive(Events);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.drained();
    }
}

struct Generation {
    number: u64,
    answer: String,
    events: Events,
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.events.generation_finished(self.number);
    }
}

/// Wakes its thread when it is dropped.
struct Acceptor(Arc<OwnedFd>);

impl Drop for Acceptor {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl WorkerProcess for Answering {
    fn prepare(&mut self, bundle: Bundle) -> Result<(), String> {
        let Bundle {
            generation: number,
            options,
            files,
            descriptors,
        } = bundle;
        let loaded = conf::load(
            &options.conf_path,
            options.conf_prefix(),
            &options.globals,
            &self.registry,
            &files,
        );
        let lines = table::lines(&loaded);
        if let Some(line) = lines.iter().find(|line| line.name == "refuse") {
            return Err(line.value.clone());
        }
        if let Some(line) = lines.iter().find(|line| line.name == "pause") {
            std::fs::read(&line.value).map_err(|error| error.to_string())?;
        }
        let answer = lines
            .iter()
            .find(|line| line.name == "answer")
            .map(|l| l.value.clone());
        let answer = answer.unwrap_or_default();
        let events = self.events.clone();
        self.prepared = Some((
            Arc::new(Generation {
                number,
                answer,
                events,
            }),
            descriptors,
        ));
        Ok(())
    }

    fn uses_io_uring(&self) -> bool {
        false
    }

    fn commit(&mut self) {
        let Some((generation, descriptors)) = self.prepared.take() else {
            return;
        };
        self.acceptors
            .retain(|key, _| descriptors.contains_key(key));
        self.shared.lock().unwrap().generation = Some(generation);
        for (key, descriptor) in descriptors {
            if key.starts_with("log ") {
                self.shared.lock().unwrap().log = Some(Arc::new(descriptor));
            } else if key.starts_with("listen ") && !self.acceptors.contains_key(&key) {
                let alive = self.alive.clone().expect("not quitting");
                self.acceptors
                    .insert(key, accept(descriptor, Arc::clone(&self.shared), alive));
            }
        }
    }

    fn abandon(&mut self) {
        self.prepared = None;
    }

    fn reopened(&mut self, logs: HashMap<String, OwnedFd>) {
        for (key, descriptor) in logs {
            if key.starts_with("log ") {
                self.shared.lock().unwrap().log = Some(Arc::new(descriptor));
            }
        }
    }

    fn quit(&mut self) {
        self.acceptors.clear();
        self.alive = None;
    }

    fn terminate(&mut self) {}
}

/// Serves one listener until the returned handle is dropped.
fn accept(listener: OwnedFd, shared: Arc<Mutex<Shared>>, alive: Arc<Alive>) -> Acceptor {
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let handle = Acceptor(Arc::clone(&stop));
    rustix::io::ioctl_fionbio(&listener, true).unwrap();
    std::thread::spawn(move || {
        loop {
            let mut polled = [
                PollFd::new(&listener, PollFlags::IN),
                PollFd::new(&*stop, PollFlags::IN),
            ];
            poll(&mut polled, None).unwrap();
            if polled[1].revents().contains(PollFlags::IN) {
                return;
            }
            if let Ok(connection) = rustix::net::accept(listener.as_fd()) {
                let (shared, alive) = (Arc::clone(&shared), Arc::clone(&alive));
                std::thread::spawn(move || {
                    serve(connection.into(), &shared);
                    drop(alive);
                });
            }
        }
    });
    handle
}

/// One connection: its generation is the one in force when its first byte comes.
fn serve(mut connection: std::fs::File, shared: &Mutex<Shared>) {
    let mut byte = [0];
    while connection.read_exact(&mut byte).is_ok() {
        let (generation, log) = {
            let shared = shared.lock().unwrap();
            (shared.generation.clone(), shared.log.clone())
        };
        let Some(generation) = generation else { return };
        if byte == *b"w" {
            // Slow: the answer waits for another byte, in the same generation.
            let _ = connection.read_exact(&mut byte);
        }
        let _ = connection.write_all(format!("{}\n", generation.answer).as_bytes());
        if let Some(log) = log {
            let _ = rustix::io::write(&log, format!("answered {}\n", generation.answer).as_bytes());
        }
    }
}

/// The directives; and how they are read, in one place.
mod table {
    use conf::{Contexts, Declared, Inherit, Loaded, Registry, Setting, parse};

    /// Lines of one name; several are allowed of those that need no more than a listener.
    const fn setting(name: &'static str) -> Setting<()> {
        Setting::new(name, &["value"], parse::nothing)
            .contexts(Contexts::MAIN)
            .inherit(Inherit::List)
    }

    static DAEMON: Setting<()> = setting("daemon");
    static MASTER_PROCESS: Setting<()> = setting("master_process");
    static PID: Setting<()> = setting("pid");
    static USER: Setting<()> = setting("user");
    static ERROR_LOG: Setting<()> = setting("error_log");
    static WORKER_RLIMIT_NOFILE: Setting<()> = setting("worker_rlimit_nofile");
    static LISTEN: Setting<()> = setting("listen");
    static ANSWER: Setting<()> = setting("answer");
    static LOG: Setting<()> = setting("log");
    static REFUSE: Setting<()> = setting("refuse");
    static PAUSE: Setting<()> = setting("pause");

    static TABLE: &[&dyn Declared] = &[
        &DAEMON,
        &MASTER_PROCESS,
        &PID,
        &USER,
        &ERROR_LOG,
        &WORKER_RLIMIT_NOFILE,
        &LISTEN,
        &ANSWER,
        &LOG,
        &REFUSE,
        &PAUSE,
    ];

    pub(super) struct Line {
        pub(super) name: String,
        pub(super) value: String,
        pub(super) place: String,
    }

    pub(super) fn registry() -> Registry {
        Registry::new(&[TABLE])
    }

    /// Every line of the configuration.
    pub(super) fn lines(loaded: &Loaded) -> Vec<Line> {
        let lines = loaded.tree.root().lines().iter();
        lines
            .map(|line| Line {
                name: line.name.text().into_owned(),
                value: line.argument(0).text().into_owned(),
                place: line.position.to_string(),
            })
            .collect()
    }
}
