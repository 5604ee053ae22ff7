//! A folder of PHP, served.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long anything may take that is not being timed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One test puts a socket where all servers look for one.
static USUAL_PLACES: RwLock<()> = RwLock::new(());

/// While this lives no test puts a socket where servers look for one.
pub(crate) fn undisturbed() -> RwLockReadGuard<'static, ()> {
    USUAL_PLACES.read().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives no other test has a server look.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    USUAL_PLACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// nobody's numbers on Debian.
pub(crate) const NOBODY: (u32, u32) = (65534, 65534);

/// A script that says what it was told, as whom it runs, and what it was sent.
const ECHO: &str = r#"<?php header('Content-Type: text/plain');
foreach (['SCRIPT_FILENAME', 'SCRIPT_NAME', 'PATH_INFO', 'DOCUMENT_ROOT', 'QUERY_STRING', 'REQUEST_URI', 'REQUEST_METHOD', 'PHP_SELF',
    'HTTPS', 'REMOTE_ADDR', 'SERVER_NAME', 'SERVER_PORT', 'REQUEST_SCHEME', 'REMOTE_USER', 'HTTP_PROXY', 'CONTENT_TYPE'] as $name)
    echo "$name=", $_SERVER[$name] ?? '(none)', "\n";
echo 'here=', __DIR__, "\nuser=", posix_geteuid(), "\nsecret=", getenv('TIDEGATE_PASSWORD') ?: '(none)', "\nprobe=", getenv('PROBE') ?: '(none)',
    "\nbody=", file_get_contents('php://input'), "\n";
"#;

/// What no answer may ever hold.
pub(crate) const SECRET: &str = "the-secret-of-the-source";

/// A folder in a folder of its own, which has room for what is not served.
pub(crate) struct Site {
    base: PathBuf,
    pub(crate) folder: PathBuf,
}

impl Site {
    /// An empty folder. What means something in a configuration, a shell or an ini file means
    /// nothing in its name.
    pub(crate) fn empty() -> Site {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base =
            std::env::temp_dir().join(format!("tidegate-php-{}-{number}", std::process::id()));
        let folder = base.join("a $uri 'b' \"{;c");
        fs::create_dir_all(&folder).unwrap();
        Site { base, folder }
    }

    /// One with a front controller.
    pub(crate) fn new() -> Site {
        let site = Site::empty();
        site.write("index.php", ECHO);
        site
    }

    /// Lets its owner alone into it. What has looked at it before may remember.
    pub(crate) fn close(&self) {
        fs::set_permissions(&self.base, fs::Permissions::from_mode(0o700)).unwrap();
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A path beside the folder.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// A program beside the folder.
    pub(crate) fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.beside(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// `tidegate serve` with arguments.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").arg(&self.folder).args(arguments);
        command
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("SUDO_USER");
        command.stdin(Stdio::null());
        command
    }

    /// Serves it until the value is dropped.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Running {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        Running::start(self.command(&arguments))
    }

    /// The same as a user without any rights.
    pub(crate) fn serve_as_nobody(&self, arguments: &[&str]) -> Running {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        let mut command = self.command(&arguments);
        as_nobody(&mut command);
        Running::start(command)
    }

    /// What a run that fails says, in full.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        failure(self.command(arguments).output().unwrap())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// What a run says that has failed.
pub(crate) fn failure(output: Output) -> String {
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{text}");
    text
}

/// Has a command run as nobody.
pub(crate) fn as_nobody(command: &mut Command) {
    assert!(
        is_root(),
        "these tests start servers as several users: they want root"
    );
    command.uid(NOBODY.0).gid(NOBODY.1).current_dir("/");
}

pub(crate) fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}

/// A site that is served.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) port: u16,
    /// What it has said up to "Ctrl-C ends it."
    pub(crate) printed: String,
    /// What it has said since.
    said: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut printed = String::new();
        while !printed.ends_with("Ctrl-C ends it.\n") {
            let count = lines.read_line(&mut printed).unwrap();
            assert!(count > 0, "no start: {printed}");
        }
        let port = printed
            .split("://127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split('/').next());
        let port = port.and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no address: {printed}"));
        let said = Arc::new(Mutex::new(String::new()));
        let shared = said.clone();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                shared
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Running {
            child,
            port,
            printed,
            said,
        }
    }

    /// Everything that it has said since it serves.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_line(&self, text: &str) {
        let begin = Instant::now();
        while !self.said().contains(text) {
            assert!(begin.elapsed() < PATIENCE, "no {text:?} in {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Head and body.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = match body.len() {
            0 => String::new(),
            length => format!("Content-Length: {length}\r\n"),
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: example.test:{}\r\nConnection: close\r\n{length}{headers}\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).unwrap();
        // Where the answer comes before the body has been sent, what is left of that is not wanted.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let body = answer[end + 4..].to_vec();
        if head.contains("\r\nTransfer-Encoding: chunked") {
            (head, unchunked(&body))
        } else {
            (head, body)
        }
    }

    /// The answer to a request of HTTP/1.0 without a host.
    pub(crate) fn ask_without_host(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Status and body of a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let (head, body) = self.ask("GET", path, "", b"");
        (status(&head), String::from_utf8_lossy(&body).into_owned())
    }

    /// The keeper of its pool, php-fpm's master and the children of that.
    pub(crate) fn php(&self) -> Pids {
        let children = support::children(self.child.id());
        let is_keeper = |pid: &u32| command_line(*pid).starts_with("tidegate: keeper of php-fpm ");
        let keeper = children.into_iter().find(is_keeper).expect("a keeper");
        let master = support::children(keeper)
            .into_iter()
            .next()
            .expect("php-fpm");
        Pids {
            keeper,
            master,
            children: support::children(master),
        }
    }

    /// Its private folders.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        leftovers(self.child.id())
    }

    /// Sends a signal, and waits for its end; the code.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        support::signal(self.child.id(), signal);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            support::signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
    }
}

/// The processes of a pool.
pub(crate) struct Pids {
    pub(crate) keeper: u32,
    pub(crate) master: u32,
    pub(crate) children: Vec<u32>,
}

impl Pids {
    pub(crate) fn wait_for_end(&self) {
        for pid in [self.keeper, self.master].iter().chain(&self.children) {
            let begin = Instant::now();
            while is_alive(*pid) {
                assert!(
                    begin.elapsed() < PATIENCE,
                    "{pid} lives: {}",
                    command_line(*pid)
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Whether all have ended already.
    pub(crate) fn have_ended(&self) -> bool {
        ![self.keeper, self.master]
            .iter()
            .chain(&self.children)
            .any(|pid| is_alive(*pid))
    }
}

/// Private folders of a process that are left.
pub(crate) fn leftovers(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(&format!("tidegate-serve-{pid}-"))
    };
    entries.map(|entry| entry.path()).filter(is_ours).collect()
}

/// Whether a process runs; one that nobody has waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

pub(crate) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

pub(crate) fn status(head: &str) -> u16 {
    head[9..12].parse().unwrap()
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// The line of a name in what the front controller says.
pub(crate) fn value<'a>(body: &'a str, name: &str) -> &'a str {
    let mut lines = body.lines().filter_map(|line| line.split_once('='));
    let line = lines.find(|(found, _)| *found == name);
    line.unwrap_or_else(|| panic!("no {name} in {body}")).1
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let begin = end + 2;
        whole.extend_from_slice(&body[begin..begin + size]);
        body = &body[begin + size + 2..];
    }
    whole
}

/// php-fpm of whatever version there is.
pub(crate) fn php_fpm() -> PathBuf {
    let names = fs::read_dir("/usr/sbin").unwrap().flatten();
    let paths = names.map(|entry| entry.path());
    let found = paths.filter(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("php-fpm")
    });
    found.min().expect("php-fpm, see tests/install-packages")
}

/// A pool that an administrator runs, until the value is dropped.
pub(crate) struct OtherPool(Child);

impl OtherPool {
    /// As nobody, with these lines in its configuration.
    pub(crate) fn start(site: &Site, name: &str, lines: &str) -> OtherPool {
        let path = site.beside(name);
        let text = format!(
            "[global]\nerror_log = /dev/null\ndaemonize = no\n[other]\nuser = nobody\ngroup = nogroup\npm = static\npm.max_children = 2\n\
             env[PROBE] = other\n{lines}\n"
        );
        fs::write(&path, text).unwrap();
        let mut command = Command::new(php_fpm());
        command.arg("-F").arg("-y").arg(&path);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        OtherPool(command.spawn().unwrap())
    }
}

impl Drop for OtherPool {
    fn drop(&mut self) {
        support::signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// Waits until a socket takes connections.
pub(crate) fn wait_for_socket(path: &Path) {
    support::master::wait_for("a socket", || {
        std::os::unix::net::UnixStream::connect(path).is_ok()
    });
}
