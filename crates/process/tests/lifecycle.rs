//! The life of a server from outside, with real processes: `examples/answer.rs` is the program.
//!
//! As root the worker becomes the user `nobody`; without root the same tests run as the user who
//! runs them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_process as process;

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server in a folder of its own.
struct Server {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Server {
    fn new() -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-process-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let port = support::port::free_port();
        Server {
            folder,
            port,
            child: None,
        }
    }

    /// A server that runs in the foreground, with these lines in its configuration.
    fn running(lines: &str) -> Server {
        let mut server = Server::new();
        server.configure(&format!("daemon off;\n{lines}"));
        server.start();
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the configuration; the port, the pid file and the logs are added.
    fn configure(&self, lines: &str) {
        let folder = self.folder.display();
        let port = self.port;
        let text = format!(
            "pid {folder}/pid;\nerror_log {folder}/error.log;\nlog {folder}/access.log;\n\
             listen 127.0.0.1:{port};\n{lines}\n"
        );
        // In one step: a reload may be reading it.
        fs::write(self.path("conf.new"), text).unwrap();
        fs::rename(self.path("conf.new"), self.path("conf")).unwrap();
    }

    fn command(&self) -> Command {
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        let mut command = Command::new(program.join("examples/answer"));
        command
            .arg("-c")
            .arg(self.path("conf"))
            .arg("-e")
            .arg(self.path("startup.log"));
        command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn start(&mut self) {
        self.child = Some(self.command().spawn().unwrap());
        wait_for("the pid file", || self.path("pid").exists());
    }

    /// Runs the program with further arguments to its end: exit code and what it printed.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command().args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    fn pid(&self) -> i32 {
        fs::read_to_string(self.path("pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// The worker processes that the log has seen start, in order.
    fn workers(&self) -> Vec<i32> {
        let log = self.log();
        let lines = log
            .lines()
            .filter_map(|line| line.split_once("start worker process "));
        lines.map(|(_, pid)| pid.parse().unwrap()).collect()
    }

    fn worker(&self) -> i32 {
        *self.workers().last().unwrap()
    }

    /// The whole lines of the log: the last may be on its way.
    fn log(&self) -> String {
        let mut log = fs::read_to_string(self.path("error.log")).unwrap_or_default();
        log.truncate(log.rfind('\n').map_or(0, |at| at + 1));
        log
    }

    fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text));
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// What a new connection is answered.
    fn ask(&self) -> String {
        ask(&mut self.connect())
    }

    /// Waits for the end of a server that was started in the foreground.
    fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let mut status = None;
        wait_for("the end of the master", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- error.log\n{}", self.log());
        }
        for worker in self.workers() {
            let program = fs::read_link(format!("/proc/{worker}/exe"));
            if program.is_ok_and(|path| path.ends_with("answer")) {
                // It may end by itself at this moment.
                let pid = worker.to_string();
                let _ = Command::new("kill").args(["-KILL", &pid]).output();
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn signal(pid: i32, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a byte and reads one line.
fn ask(stream: &mut (impl Read + Write)) -> String {
    stream.write_all(b"x").unwrap();
    read_line(stream)
}

fn read_line(stream: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && byte != *b"\n" {
        line.extend_from_slice(&byte);
    }
    String::from_utf8(line).unwrap()
}

/// Waits for a process that reads from a pipe. Its reading ends when this is dropped.
fn writer(pipe: &Path) -> fs::File {
    let mut options = fs::OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let mut writer = None;
    wait_for("a reader", || {
        writer = options.open(pipe).ok();
        writer.is_some()
    });
    writer.unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn it_starts_serves_and_quits() {
    let mut server = Server::running("answer one;");
    // The pid file is the started program's, and every socket listens when it appears.
    assert_eq!(server.pid(), server.child.as_ref().unwrap().id() as i32);
    assert_eq!(server.ask(), "one");
    let worker = server.worker();
    server.signal("QUIT");
    assert!(server.wait().success());
    assert!(!server.path("pid").exists());
    let log = server.log();
    for text in [
        "[notice] ".to_owned(),
        "answer/1\n".to_owned(),
        "signal 3 (SIGQUIT) received from ".to_owned(),
        ", shutting down\n".to_owned(),
        "gracefully shutting down\n".to_owned(),
        format!("worker process {worker} exited with code 0\n"),
    ] {
        assert!(log.contains(&text), "no {text:?}");
    }
    assert!(log.ends_with("exit\n"));
    assert!(!log.contains("[alert]"));
}

#[test]
fn the_worker_has_the_name_and_the_user_it_should_have() {
    let server = if is_root() {
        Server::running("answer one;\nuser nobody;\nworker_rlimit_nofile 333;")
    } else {
        Server::running("answer one;")
    };
    assert_eq!(server.ask(), "one");
    let proc =
        |name: &str| fs::read_to_string(format!("/proc/{}/{name}", server.worker())).unwrap();
    assert_eq!(proc("comm"), "tidegate\n");
    assert_eq!(proc("cmdline"), "tidegate: worker process\0");
    if is_root() {
        let status = proc("status");
        let nobody = process::Identity::resolve("nobody", Some("nogroup")).unwrap();
        let line = |name: &str, id: u32| format!("{name}:\t{id}\t{id}\t{id}\t{id}\n");
        assert!(status.contains(&line("Uid", nobody.user)), "{status}");
        assert!(status.contains(&line("Gid", nobody.group)), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        let limits = proc("limits");
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"))
            .unwrap();
        let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
        assert_eq!(numbers, ["333", "333"]);
    }
}

#[test]
fn quit_lets_requests_end_and_term_does_not() {
    let mut server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    server.signal("QUIT");
    server.wait_for_log("gracefully shutting down");
    wait_for("the closed listener", || {
        TcpStream::connect(("127.0.0.1", server.port)).is_err()
    });
    assert!(server.child.as_mut().unwrap().try_wait().unwrap().is_none());
    let refusal = "tidegate: [emerg] the server is about to end and does not reload\n";
    let reload = server.run(&["-s", "reload"]);
    assert_eq!(reload, (Some(1), refusal.to_owned()));
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "one");
    drop(slow);
    assert!(server.wait().success());

    let mut server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    server.signal("QUIT");
    server.wait_for_log("gracefully shutting down");
    server.signal("TERM");
    assert!(server.wait().success());
    assert_eq!(slow.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_reload_binds_at_once_and_keeps_the_process() {
    let server = Server::running("answer one;");
    let mut kept = server.connect();
    assert_eq!(ask(&mut kept), "one");
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));

    let second = SocketAddr::from(([127, 0, 0, 1], support::port::free_port()));
    server.configure(&format!("answer two;\nlisten {second};"));
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    assert_eq!(ask(&mut kept), "two");
    assert_eq!(server.ask(), "two");
    assert_eq!(ask(&mut TcpStream::connect(second).unwrap()), "two");
    // A request that began before ends as it began, and its generation with it.
    assert!(!server.log().contains("exited with code"));
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "one");
    drop(slow);
    let worker = server.worker();
    server.wait_for_log(&format!(
        "generation 1 of worker process {worker} exited with code 0"
    ));

    // A listener that is gone is closed.
    server.configure("answer three;");
    server.signal("HUP");
    wait_for("the reload", || server.ask() == "three");
    wait_for("the closed listener", || {
        TcpStream::connect(second).is_err()
    });
    assert_eq!(server.workers(), [worker]);
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    // The master cannot bind.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let socket = server.path("socket");
    server.configure(&format!(
        "answer two;\nlisten unix:{};\nlisten {address};",
        socket.display()
    ));
    let (code, text) = server.run(&["-s", "reload"]);
    let expected = format!("bind() to {address} failed (98: Address already in use)");
    assert_eq!(text, format!("tidegate: [emerg] {expected}\n"));
    assert_eq!(code, Some(1));
    // As nginx: five tries, as at the start.
    let log = server.log();
    assert_eq!(log.matches(&format!(": {expected}\n")).count(), 5, "{log}");
    assert!(log.contains("still could not bind()\n"), "{log}");
    assert!(!socket.exists(), "what was opened before is undone");
    assert_eq!(server.ask(), "one");

    // The worker refuses.
    server.configure("answer two;\nrefuse \"it would not work\";");
    let (code, text) = server.run(&["-s", "reload"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(1), "tidegate: [emerg] it would not work\n")
    );
    assert_eq!(server.ask(), "one");

    // The configuration is not there: nobody is signalled.
    fs::rename(server.path("conf"), server.path("away")).unwrap();
    let (code, text) = server.run(&["-s", "reload"]);
    assert_eq!(code, Some(1));
    assert!(text.starts_with("tidegate: [emerg] "), "{text}");
    server.signal("HUP");
    wait_for("three reloads", || {
        server.log().matches("reconfiguring\n").count() >= 6
    });
    assert_eq!(server.ask(), "one");

    server.configure("answer two;");
    assert_eq!(server.run(&["-s", "reload"]).0, Some(0));
    assert_eq!(server.ask(), "two");
    assert_eq!(server.workers().len(), 1);
}

#[test]
fn a_directive_of_the_process_starts_a_new_one() {
    let server = Server::running("answer one;\nworker_rlimit_nofile 400;");
    assert_eq!(server.ask(), "one");
    let first = server.worker();
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));

    server.configure("answer two;\nworker_rlimit_nofile 300;");
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    let log = server.log();
    assert!(
        log.contains("\"worker_rlimit_nofile\" in ") && log.contains(":6 has changed: "),
        "{log}"
    );
    assert_ne!(server.worker(), first);
    wait_for("the old listener to rest", || {
        server.log().contains("gracefully shutting down")
    });
    for _ in 0..20 {
        assert_eq!(server.ask(), "two");
    }
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "one");
    drop(slow);
    server.wait_for_log(&format!("worker process {first} exited with code 0"));

    // A new process that refuses leaves the old one alone.
    server.configure("answer three;\nworker_rlimit_nofile 200;\nrefuse \"not like this\";");
    let (code, text) = server.run(&["-s", "reload"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(1), "tidegate: [emerg] not like this\n")
    );
    assert_eq!(server.ask(), "two");
    assert_eq!(server.log().matches("exited with code 0").count(), 1);
}

#[test]
fn a_worker_that_crashes_is_back_at_once() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    // From the bundle: the configuration on disk does not matter.
    server.configure("answer two;");
    // Its first second is over, so that this is no death at the start.
    std::thread::sleep(Duration::from_millis(1_100));
    let first = server.worker();
    for _ in 0..2 {
        let worker = server.worker();
        signal(worker, "SEGV");
        wait_for("another worker", || server.worker() != worker);
        assert_eq!(server.ask(), "one");
        std::thread::sleep(Duration::from_millis(1_100));
    }
    let log = server.log();
    assert!(log.contains(&format!(
        "[alert] {0}#{0}: worker process {first} exited on signal 11",
        server.pid()
    )));
    assert_eq!(server.workers().len(), 3);
    assert!(!log.contains("next worker process starts in"), "{log}");
}

#[test]
fn a_worker_that_dies_again_and_again_is_started_ever_more_slowly() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    // On a slow machine one of them may live for longer than a second, and the pauses begin anew.
    wait_for("the fourth short life in a row", || {
        let worker = server.worker();
        signal(worker, "KILL");
        wait_for("another worker", || server.worker() != worker);
        server.log().contains("next worker process starts in 200ms")
    });
    assert_eq!(server.ask(), "one");
    let log = server.log();
    for pause in ["50ms", "100ms"] {
        assert!(
            log.contains(&format!("next worker process starts in {pause}")),
            "{pause}"
        );
    }
}

#[test]
fn a_worker_that_is_told_to_end_is_replaced() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    let worker = server.worker();
    signal(worker, "TERM");
    wait_for("another worker", || server.worker() != worker);
    assert_eq!(server.ask(), "one");
    assert!(
        server
            .log()
            .contains(&format!("worker process {worker} exited with code 0"))
    );
    assert!(!server.log().contains("[alert]"));
}

/// The worker that serves, with a request under way that ends when another byte comes.
fn kept_busy(server: &Server) -> (i32, TcpStream) {
    let mut slow = server.connect();
    assert_eq!(ask(&mut slow), "one");
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    (server.worker(), slow)
}

/// Ends that request, and waits for the end of its worker, which this line tells and has not told
/// yet.
fn let_go(server: &Server, mut slow: TcpStream, end: &str) {
    assert!(!server.log().contains(end));
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "one");
    drop(slow);
    server.wait_for_log(end);
}

#[test]
fn a_worker_that_is_told_to_quit_is_replaced_before_it_ends() {
    let server = Server::running("answer one;");
    let (first, slow) = kept_busy(&server);
    signal(first, "QUIT");
    wait_for("another worker", || server.worker() != first);
    assert_eq!(server.ask(), "one");
    server.configure("answer two;");
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    wait_for("the reload", || server.ask() == "two");
    let end = format!("worker process {first} exited with code 0");
    let_go(&server, slow, &end);
    assert_eq!(server.workers().len(), 2);
}

#[test]
fn a_worker_that_quits_while_it_prepares_lets_that_go() {
    let server = Server::running("answer one;");
    let (first, slow) = kept_busy(&server);
    let pipe = server.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let port = support::port::free_port();
    server.configure(&format!(
        "answer two;\nlisten 127.0.0.1:{port};\npause {};",
        pipe.display()
    ));
    server.signal("HUP");
    let prepares = writer(&pipe);
    signal(first, "QUIT");
    drop(prepares);
    wait_for("another worker", || server.worker() != first);
    drop(writer(&pipe));
    wait_for("the reload", || server.ask() == "two");
    let connect = || TcpStream::connect(("127.0.0.1", port));
    assert_eq!(ask(&mut connect().unwrap()), "two");
    // A listener that the first worker still held would accept.
    server.configure("answer three;");
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    wait_for("the listener's end", || connect().is_err());
    // Not that of the generation which it has let go.
    let end = format!(": worker process {first} exited with code 0");
    let_go(&server, slow, &end);
}

#[test]
fn usr1_opens_the_logs_again() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    for name in ["access.log", "error.log"] {
        fs::rename(server.path(name), server.path(&format!("{name}.1"))).unwrap();
    }
    // Without -s reopen, which would create the files itself.
    server.signal("USR1");
    // The master's and the worker's line: the first is already in the new file.
    wait_for("the new log", || {
        server.log().matches("reopening logs").count() >= 1
    });
    let access = server.path("access.log");
    wait_for("the new access log", || {
        server.ask();
        fs::read(&access).is_ok_and(|text| !text.is_empty())
    });
    let old = fs::read_to_string(server.path("access.log.1")).unwrap();
    assert!(old.starts_with("answered one\n"));
    // A restarted worker has the new files, too.
    let size = || fs::metadata(&access).unwrap().len();
    let before = size();
    signal(
        fs::read_to_string(server.path("error.log.1"))
            .ok()
            .and_then(|log| {
                let (_, pid) = log
                    .lines()
                    .find_map(|line| line.split_once("start worker process "))?;
                pid.parse().ok()
            })
            .unwrap(),
        "KILL",
    );
    server.wait_for_log("start worker process ");
    server.ask();
    wait_for("a line of the new worker", || size() > before);
}

#[test]
fn a_reload_opens_the_logs_again() {
    let server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    for name in ["access.log", "error.log"] {
        fs::rename(server.path(name), server.path(&format!("{name}.1"))).unwrap();
    }
    server.configure("answer two;");
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    assert_eq!(server.ask(), "two");
    for (name, line) in [("access.log.1", "one"), ("access.log", "two")] {
        let text = || fs::read_to_string(server.path(name)).unwrap_or_default();
        wait_for(name, || text() == format!("answered {line}\n"));
    }
    server.wait_for_log("generation 1 of ");
}

#[test]
fn a_worker_whose_master_is_gone_ends_gracefully() {
    let mut server = Server::running("answer one;");
    assert_eq!(server.ask(), "one");
    let worker = server.worker();
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    server.signal("KILL");
    server.wait();
    server.wait_for_log("the master process is gone");
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "one");
    drop(slow);
    wait_for("the end of the worker", || {
        // Whoever inherits it may be slow to bury it.
        fs::read_to_string(format!("/proc/{worker}/stat"))
            .map_or(true, |stat| stat.contains(") Z "))
    });
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
}

#[test]
fn a_daemon_leaves_the_terminal_and_takes_orders() {
    let mut server = Server::new();
    server.configure("answer one;");
    let (code, text) = server.run(&[]);
    assert_eq!((code, text.as_str()), (Some(0), ""));
    wait_for("the pid file", || server.path("pid").exists());
    assert_eq!(server.ask(), "one");
    let pid = server.pid();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(3)
        .unwrap();
    assert_eq!(session, pid.to_string());
    assert_eq!(server.run(&["-s", "reopen"]).0, Some(0));
    server.wait_for_log("reopening logs");
    assert_eq!(server.run(&["-s", "stop"]).0, Some(0));
    wait_for("the end", || !server.path("pid").exists());
    assert!(server.log().contains("signal 15 (SIGTERM) received from "));
    let (code, text) = server.run(&["-s", "stop"]);
    let file = server.path("pid");
    let expected = format!(
        "tidegate: [error] open() \"{}\" failed (2: No such file or directory)\n  hint: no server with \
         this configuration runs; without -s it is started\n",
        file.display()
    );
    assert_eq!((code, text), (Some(1), expected));
    let startup = fs::read_to_string(server.path("startup.log")).unwrap();
    assert!(startup.contains(": signal process started\n"));
    server.child = None;
}

#[test]
fn the_pid_file_of_another_program_is_respected() {
    let server = Server::new();
    server.configure("answer one;");
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(server.path("pid"), format!("{}\n", sleeper.id())).unwrap();
    let (code, text) = server.run(&[]);
    assert_eq!(code, Some(1));
    let expected = format!(
        "tidegate: [emerg] pid file \"{}\" names process {} (sleep), which is running\n",
        server.path("pid").display(),
        sleeper.id()
    );
    assert_eq!(text, expected);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(
        fs::read_to_string(server.path("pid")).unwrap(),
        format!("{}\n", sleeper.id())
    );
}

#[test]
fn an_address_in_use_refuses_the_start() {
    let server = Server::new();
    let _taken = TcpListener::bind(("127.0.0.1", server.port)).unwrap();
    server.configure("answer one;");
    let start = Instant::now();
    let (code, text) = server.run(&[]);
    assert_eq!(code, Some(1));
    // As nginx: five tries, half a second apart.
    assert!(start.elapsed() >= Duration::from_secs(2));
    let line = format!(
        "tidegate: [emerg] bind() to 127.0.0.1:{} failed (98: Address already in use)\n",
        server.port
    );
    assert_eq!(
        text,
        format!(
            "{}tidegate: [emerg] still could not bind()\n",
            line.repeat(5)
        )
    );
    assert!(!server.path("pid").exists());
    // A test does not mind: the address may be the running server's.
    let (code, text) = server.run(&["-t"]);
    let path = server.path("conf");
    let path = path.display();
    assert_eq!(
        text,
        format!(
            "tidegate: the configuration file {path} syntax is ok\n\
             tidegate: configuration file {path} test is successful\n"
        )
    );
    assert_eq!(code, Some(0));
}

#[test]
fn one_process_does_both_where_that_is_asked() {
    let mut server = Server::running("answer one;\nmaster_process off;");
    assert_eq!(server.ask(), "one");
    assert_eq!(server.workers(), [0_i32; 0]);
    server.configure("answer two;\nmaster_process off;");
    assert_eq!(server.run(&["-s", "reload"]), (Some(0), String::new()));
    assert_eq!(server.ask(), "two");
    server.wait_for_log("generation 1 of worker thread exited with code 0");
    let mut slow = server.connect();
    slow.write_all(b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    server.signal("QUIT");
    server.wait_for_log("gracefully shutting down");
    slow.write_all(b"x").unwrap();
    assert_eq!(read_line(&mut slow), "two");
    drop(slow);
    assert!(server.wait().success());

    let mut server = Server::running("answer one;\nmaster_process off;");
    assert_eq!(server.ask(), "one");
    server.signal("TERM");
    assert!(server.wait().success());
}

#[test]
fn signals_in_the_middle_of_a_reload_are_not_lost() {
    let mut server = Server::running("answer 0;");
    for round in 1..=30 {
        server.configure(&format!("answer {round};"));
        server.signal("HUP");
        server.signal("USR1");
        server.signal("HUP");
        if round % 5 == 0 {
            // It may have ended already, and the next one not have begun: then there is nobody to
            // tell.
            let worker = server.worker().to_string();
            let _ = Command::new("kill").args(["-TERM", &worker]).output();
        }
    }
    wait_for("the last configuration", || {
        // A connection to a worker that is told to end is lost.
        let mut stream = server.connect();
        stream.write_all(b"x").is_ok() && read_line(&mut stream) == "30"
    });
    server.signal("HUP");
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!server.log().contains("[alert]"), "{}", server.log());
}

#[test]
fn a_unix_socket_goes_with_its_listener() {
    let mut server = Server::new();
    let socket = server.path("socket");
    let lines = format!(
        "daemon off;\nanswer one;\nlisten unix:{};",
        socket.display()
    );
    server.configure(&lines);
    assert_eq!(server.run(&["-t"]).0, Some(0));
    assert!(!socket.exists());
    assert!(!server.path("pid").exists());
    server.start();
    assert_eq!(ask(&mut UnixStream::connect(&socket).unwrap()), "one");
    server.configure("daemon off;\nanswer two;");
    assert_eq!(server.run(&["-s", "reload"]).0, Some(0));
    assert!(!socket.exists());
    server.configure(&lines);
    assert_eq!(server.run(&["-s", "reload"]).0, Some(0));
    assert_eq!(ask(&mut UnixStream::connect(&socket).unwrap()), "one");
    server.signal("QUIT");
    assert!(server.wait().success());
    assert!(!socket.exists());
}

#[test]
fn a_first_worker_that_refuses_ends_the_start() {
    let mut server = Server::new();
    server.configure("daemon off;\nanswer one;\nrefuse \"it does not fit\";");
    server.child = Some(server.command().spawn().unwrap());
    assert_eq!(server.wait().code(), Some(1));
    assert!(server.log().contains("[emerg] ") && server.log().contains(": it does not fit\n"));
    assert!(!server.path("pid").exists());
}
