//! One server under test: its folder, its port, its process.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::port::free_port;

use crate::client::{Client, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

/// Runs a test once for each engine, at the same time.
pub(crate) fn on_each_engine(test: impl Fn(&str) + Sync) {
    let engines = support::engines::names();
    std::thread::scope(|scope| {
        let run = |engine: &str| {
            println!("on {engine}");
            test(engine);
        };
        let tests: Vec<_> = engines
            .into_iter()
            .map(|engine| scope.spawn(move || run(engine)))
            .collect();
        tests
            .into_iter()
            .for_each(|test| test.join().expect("holds on this engine"));
    });
}

/// What a server is started with. In all texts `@PORT@`, `@PORT2@`, `@ROOT@` and `@FOLDER@` stand
/// for its ports, its documents and its folder.
#[derive(Clone)]
pub(crate) struct Setup {
    program: PathBuf,
    engine: String,
    main: String,
    events: String,
    http: String,
    /// Arguments of `ulimit`.
    limits: Vec<String>,
}

impl Setup {
    /// `http` is the inside of the http block.
    pub(crate) fn new(engine: &str, http: &str) -> Setup {
        Setup {
            program: PROGRAM.into(),
            engine: engine.to_owned(),
            main: String::new(),
            events: String::new(),
            http: http.to_owned(),
            limits: Vec::new(),
        }
    }

    /// More lines of the main level.
    pub(crate) fn main(mut self, lines: &str) -> Setup {
        self.main.push_str(lines);
        self
    }

    /// Another program than ours, which reads the same configuration.
    pub(crate) fn program(mut self, path: &Path) -> Setup {
        self.program = path.to_owned();
        self
    }

    /// More lines of the events block.
    pub(crate) fn events(mut self, lines: &str) -> Setup {
        self.events.push_str(lines);
        self
    }

    /// Limits the open files of its processes.
    pub(crate) fn open_files(mut self, limit: u32) -> Setup {
        self.limits.push(format!("-n {limit}"));
        self
    }

    /// Limits the memory of each of its processes, in megabytes of addresses.
    pub(crate) fn memory(mut self, limit: u32) -> Setup {
        self.limits.push(format!("-v {}", limit * 1024));
        self
    }

    /// Starts the server and waits until it accepts.
    pub(crate) fn start(self) -> Server {
        let mut server = Server::lay_out(self);
        server.launch();
        server
    }
}

/// A server, stopped when it is dropped.
pub(crate) struct Server {
    setup: Setup,
    pub(crate) folder: PathBuf,
    pub(crate) port: u16,
    pub(crate) port2: u16,
    process: Option<Child>,
}

impl Server {
    /// Makes folder and configuration; nothing runs yet.
    pub(crate) fn lay_out(setup: Setup) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-robustness-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for inner in ["www", "logs", "temp"] {
            fs::create_dir_all(folder.join(inner)).unwrap();
        }
        // Its worker may be another user.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let server = Server {
            port: free_port(),
            port2: free_port(),
            process: None,
            folder,
            setup,
        };
        server.write_configuration();
        server.file("a.txt", b"0123456789");
        server
    }

    /// Starts the process and waits until it accepts.
    pub(crate) fn launch(&mut self) {
        let output = fs::File::create(self.folder.join("output")).unwrap();
        let limits = self.setup.limits.iter();
        let limits = limits.map(|limit| format!("ulimit {limit}; "));
        let script = format!("{}exec \"$0\" \"$@\"", limits.collect::<String>());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&self.setup.program);
        command.args(self.arguments());
        command.stdin(Stdio::null()).stderr(output);
        self.process = Some(command.spawn().expect("starts"));
        wait_until("the server accepts", || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {}", self.everything_said());
            // The pid file is written last; signals need it.
            self.folder.join("logs/pid").exists()
                && TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    fn arguments(&self) -> Vec<String> {
        let folder = self.folder.to_string_lossy();
        ["-p", &format!("{folder}/"), "-c", "server.conf"]
            .map(String::from)
            .to_vec()
    }

    /// A connection to it.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.port)
    }

    /// Puts a file among the documents, with a time that is long ago: such may be kept in memory.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.join("www").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(bytes).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        file.set_modified(long_ago).unwrap();
        path
    }

    /// Changes the inside of the http block; [`Server::reload`] makes it so.
    pub(crate) fn configure(&mut self, http: &str) {
        self.setup.http = http.to_owned();
        self.write_configuration();
    }

    /// Changes the further lines of the main level, with the next [`Server::configure`].
    pub(crate) fn set_main(&mut self, lines: &str) {
        self.setup.main = lines.to_owned();
    }

    fn write_configuration(&self) {
        let Setup {
            engine,
            main,
            events,
            http,
            ..
        } = &self.setup;
        let user = if is_root() {
            "user nobody nogroup;"
        } else {
            ""
        };
        let default = |text: &str, name: &str, line: &'static str| {
            if text.contains(name) { "" } else { line }
        };
        let error_log = default(main, "error_log", "error_log logs/error.log info;");
        let threads = default(main, "worker_processes", "worker_processes 2;");
        let access_log = default(http, "access_log", "access_log logs/access.log;");
        let connections = default(events, "worker_connections", "worker_connections 512;");
        let text = format!(
            "daemon off; pid logs/pid; {user} {error_log} {threads} {main}\n\
             events {{ use {engine}; {connections} {events} }}\n\
             http {{ {access_log} client_body_temp_path temp/body; proxy_temp_path temp/proxy;\n\
             {http}\n}}\n"
        );
        let folder = self.folder.to_string_lossy();
        let text = text
            .replace("@PORT@", &self.port.to_string())
            .replace("@PORT2@", &self.port2.to_string())
            .replace("@ROOT@", &format!("{folder}/www"))
            .replace("@FOLDER@", &folder);
        fs::write(self.folder.join("server.conf"), text).unwrap();
    }

    /// `-s reload`, which answers when the worker serves by the new configuration. Whether it does.
    pub(crate) fn reload(&self) -> bool {
        let mut command = Command::new(&self.setup.program);
        command.args(self.arguments()).args(["-s", "reload"]);
        let output = command.output().expect("runs");
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    }

    /// The process number of the master.
    pub(crate) fn master(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// The process number of the worker; there is one unless it has just ended.
    pub(crate) fn worker(&self) -> Option<u32> {
        let master = self.master();
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Memory that its worker process occupies, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let worker = self.worker().expect("a worker process");
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Sends a signal to the master.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.master(), name);
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let process = self.process.as_mut()?;
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = process.try_wait().unwrap() {
                self.process = None;
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub(crate) fn error_log(&self) -> String {
        read(&self.folder.join("logs/error.log"))
    }

    pub(crate) fn access_log(&self) -> String {
        read(&self.folder.join("logs/access.log"))
    }

    fn everything_said(&self) -> String {
        read(&self.folder.join("output")) + &self.error_log()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.signal("TERM");
            if self.wait(Duration::from_secs(60)).is_none() {
                let worker = self.worker();
                self.signal("KILL");
                worker.into_iter().for_each(|worker| signal(worker, "KILL"));
                self.wait(Duration::from_secs(60));
                if !std::thread::panicking() {
                    panic!("the server did not end when it was told to");
                }
            }
        }
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.everything_said());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(process: u32, name: &str) {
    let number = process.to_string();
    let sent = Command::new("kill").args(["-s", name, &number]).status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "kill -s {name} {number}"
    );
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Whether the tests run as root: their servers' workers are `nobody` then.
pub(crate) fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id runs");
    output.stdout.trim_ascii() == b"0"
}
