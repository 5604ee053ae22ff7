//! A program under test, started with a configuration in a lane's folder and stopped again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::world::NOBODY;

/// How long a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What both call themselves, so that lengths are equal: Tidegate is told to take nginx's name.
pub(crate) const NAME: &str = "nginx/1.31.5";

/// How long all threads of a program may take until they sleep.
const REST_PATIENCE: Duration = Duration::from_secs(3);
/// How soon it is looked again whether they do.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// How many requests are counted before the first one where a page shows their number.
const COUNTED: usize = 1000;
/// The field of the sentinel's answers that tells the connection's number.
const NUMBER_FIELD: &str = "Connection-Number";

/// A program that takes nginx's command line.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    /// The version of nginx; `None` of Tidegate.
    pub(crate) nginx: Option<String>,
    /// The engine that Tidegate is to use.
    engine: Option<&'static str>,
}

impl Program {
    /// The reference: `NGINX_BINARY`, or the nginx that is installed.
    pub(crate) fn reference() -> Result<Program, String> {
        let path = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
        let path = path.unwrap_or_else(|| PathBuf::from("/usr/sbin/nginx"));
        let text = version_text(&path)?;
        let version = text.split("nginx/").nth(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            String::from(&rest[..end.unwrap_or(rest.len())])
        });
        let nginx = Some(version.ok_or(format!("{} says no version", path.display()))?);
        Ok(Program {
            path,
            nginx,
            engine: None,
        })
    }

    /// Tidegate, once for each engine. Where `TIDEGATE_BINARY` is nginx itself, which checks this
    /// program, it is one more nginx.
    pub(crate) fn subjects() -> Result<Vec<Program>, String> {
        let path = std::env::var_os("TIDEGATE_BINARY").map(PathBuf::from);
        let path = path.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_tidegate")));
        if !version_text(&path)?.contains("tidegate") {
            let nginx = Some(String::from("as the subject"));
            return Ok(vec![Program {
                path,
                nginx,
                engine: None,
            }]);
        }
        let engines = support::engines::names().into_iter();
        Ok(engines
            .map(|engine| Program {
                path: path.clone(),
                nginx: None,
                engine: Some(engine),
            })
            .collect())
    }

    /// Its name in reports.
    pub(crate) fn name(&self) -> String {
        match (&self.nginx, self.engine) {
            (Some(version), _) => format!("nginx {version}"),
            (None, engine) => format!("tidegate with {}", engine.unwrap_or("its own engine")),
        }
    }

    /// The version of nginx in numbers; the newest of Tidegate.
    pub(crate) fn version(&self) -> [u32; 3] {
        let Some(version) = &self.nginx else {
            return [u32::MAX; 3];
        };
        let mut numbers = version
            .split('.')
            .map(|part| part.parse().unwrap_or(u32::MAX));
        [(); 3].map(|()| numbers.next().unwrap_or(u32::MAX))
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The engine that stands in `events`.
    pub(crate) fn engine(&self) -> Option<&'static str> {
        self.engine
    }

    /// What `-t` says of a text: whether it is taken, and its words.
    pub(crate) fn verdict(&self, prefix: &Path, text: &str) -> Result<(bool, String), String> {
        let file = prefix.join("conf/tested.conf");
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = self.command(prefix, "conf/tested.conf");
        let output = command.arg("-t").stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), words))
    }

    /// The program in a folder, as the servers' user.
    fn command(&self, prefix: &Path, file: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("-p").arg(format!("{}/", prefix.display()));
        command
            .args(["-c", file, "-e", "logs/error.log"])
            .env("TZ", "CET-1");
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// The text with what a run needs: in the foreground, in one process, with the sentinel's
    /// server, with a name of one length.
    pub(crate) fn dressed(&self, text: &str, sentinel: u16) -> String {
        let mut dressed = String::from(
            "daemon off;\nmaster_process off;\npid logs/run.pid;\nworker_processes 1;\n",
        );
        let at_http = |line: &str, name: &str| {
            line.strip_prefix("    ")
                .is_some_and(|rest| rest.starts_with(name))
        };
        let has = |name: &str| text.lines().any(|line| at_http(line, name));
        let has_tokens = has("server_tokens ");
        // What may keep the sentinel's own requests from being answered.
        let limits = if has("max_headers ") {
            "max_headers 1000; "
        } else {
            ""
        };
        for line in text.lines() {
            let own = [
                "daemon ",
                "master_process ",
                "pid ",
                "user ",
                "worker_processes ",
            ];
            if own.iter().any(|name| line.starts_with(name)) {
                continue;
            }
            let mut line = String::from(line);
            if self.nginx.is_none() && line.trim_start().starts_with("server_tokens ") {
                for (from, to) in [
                    (" on;", " nginx;"),
                    (" build;", " nginx;"),
                    (" off;", " nginx_off;"),
                ] {
                    line = line.replace(from, to);
                }
            }
            dressed.push_str(&line);
            dressed.push('\n');
            if line == "http {" {
                dressed.push_str(&self.of_http(sentinel, has_tokens, limits));
            }
        }
        dressed
    }

    fn of_http(&self, sentinel: u16, has_tokens: bool, limits: &str) -> String {
        let mut lines = format!(
            "    server {{ listen 127.0.0.1:{sentinel}; access_log off; keepalive_timeout 600s; keepalive_requests 1000000; \
             client_header_timeout 600s; {limits}add_header {NUMBER_FIELD} $connection; return 204; }}\n"
        );
        match &self.nginx {
            Some(_) => lines.push_str(
                "    fastcgi_temp_path temp/fastcgi; uwsgi_temp_path temp/uwsgi; scgi_temp_path temp/scgi;\n",
            ),
            None if has_tokens => {}
            None => lines.push_str("    server_tokens nginx;\n"),
        }
        lines
    }

    /// Starts it with a text that is dressed already, and waits until it answers.
    pub(crate) fn start(&self, prefix: &Path, text: &str, sentinel: u16) -> Result<Server, String> {
        let say = |error: std::io::Error| format!("{}: {error}", prefix.display());
        fs::write(prefix.join("conf/nginx.conf"), text).map_err(say)?;
        let output = prefix.join("output");
        let file = fs::File::create(&output).map_err(say)?;
        let mut command = self.command(prefix, "conf/nginx.conf");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(say)?;
        let mut server = Server {
            logs_at_once: self.nginx.is_some(),
            child,
            sentinel,
            line: None,
            numbers: BTreeSet::new(),
            output,
        };
        server.wait_until_up()?;
        if text.contains("stub_status") {
            // Its count of requests has four digits from here on, however often the sentinel is
            // asked.
            for _ in 0..COUNTED {
                server.pass_once();
            }
        }
        Ok(server)
    }
}

/// Whether this program is root's.
pub(crate) fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    let ask = || {
        let output = Command::new("id").arg("-u").output();
        output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
    };
    *ROOT.get_or_init(ask)
}

fn version_text(path: &Path) -> Result<String, String> {
    let output = Command::new(path).arg("-v").output();
    let output = output.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What a thread is at, as the kernel tells it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Thread {
    number: String,
    /// Whether it runs or waits, and for what.
    state: String,
    /// How often it has ceased to run: by itself, and because another one was to.
    switches: [String; 2],
}

impl Thread {
    /// From the lines of `/proc/PROCESS/task/THREAD/status` (proc_pid_status(5)).
    fn new(status: &str) -> Thread {
        let line = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name));
            String::from(found.unwrap_or_default().trim())
        };
        Thread {
            number: line("Pid:"),
            state: line("State:"),
            switches: [
                line("voluntary_ctxt_switches:"),
                line("nonvoluntary_ctxt_switches:"),
            ],
        }
    }
}

/// A running program.
pub(crate) struct Server {
    child: Child,
    /// Each line is in its log once the loop has gone round, so the process need not end in order.
    logs_at_once: bool,
    sentinel: u16,
    /// A connection to the sentinel's server, for questions whether the loop has gone round.
    line: Option<TcpStream>,
    /// The numbers of all connections to it.
    numbers: BTreeSet<u64>,
    output: PathBuf,
}

impl Server {
    fn wait_until_up(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended with {status}: {}", self.output()));
            }
            if self.pass_once() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(format!("it does not answer: {}", self.output()))
    }

    /// Returns when the server has handled what had come before: it has one loop, which has gone
    /// round twice then, and what that has handed to other threads, as looking for files, is done.
    pub(crate) fn pass(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            if !self.pass_once() && !self.pass_once() {
                return Err(format!("it does not answer any more: {}", self.output()));
            }
        }
        let start = Instant::now();
        while !self.is_at_rest() && start.elapsed() < REST_PATIENCE {
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Whether none of its threads has anything to do: all sleep, and none has run from the first
    /// look to the second.
    fn is_at_rest(&self) -> bool {
        let threads = self.threads();
        let asleep = |thread: &Thread| thread.state == "S (sleeping)";
        threads.iter().all(asleep) && self.threads() == threads
    }

    /// What its threads are at. What has just ended is none of them.
    fn threads(&self) -> Vec<Thread> {
        let folder = format!("/proc/{}/task", self.child.id());
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let told = entries.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
        told.map(|status| Thread::new(&status)).collect()
    }

    fn pass_once(&mut self) -> bool {
        let mut ask = || -> std::io::Result<()> {
            let mut line = match self.line.take() {
                Some(line) => line,
                None => {
                    let line = TcpStream::connect(("127.0.0.1", self.sentinel))?;
                    line.set_nodelay(true)?;
                    line.set_read_timeout(Some(PATIENCE))?;
                    line
                }
            };
            line.write_all(b"GET / HTTP/1.1\r\nHost: sentinel\r\n\r\n")?;
            let mut head = Vec::new();
            let mut buffer = [0; 4096];
            while !head.ends_with(b"\r\n\r\n") {
                match line.read(&mut buffer)? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    count => head.extend_from_slice(&buffer[..count]),
                }
            }
            let head = String::from_utf8_lossy(&head);
            let number = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                (name == NUMBER_FIELD)
                    .then(|| value.parse::<u64>().ok())
                    .flatten()
            });
            self.numbers.extend(number);
            self.line = Some(line);
            Ok(())
        };
        ask().is_ok()
    }

    /// Opens another connection to the sentinel's server and tells its number: connections that
    /// come later have higher ones. The one before has ended when this returns.
    pub(crate) fn begin(&mut self) -> Result<u64, String> {
        self.line = None;
        self.pass()?;
        let number = self.numbers.last().copied();
        number
            .ok_or_else(|| String::from("the sentinel's answer tells no number of its connection"))
    }

    /// The numbers of the connections that have asked whether the loop has gone round.
    pub(crate) fn own_numbers(&self) -> &BTreeSet<u64> {
        &self.numbers
    }

    /// What it has said on its standard error.
    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Ends it.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("it ended with {status}: {}", self.output()));
        }
        if self.logs_at_once {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let told = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        told.map_err(|error| format!("it cannot be told to end: {error}"))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(format!("it ended with {status}: {}", self.output()));
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(String::from("it does not end"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
