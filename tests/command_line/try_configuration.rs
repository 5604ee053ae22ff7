//! `tidegate try`: a configuration beside the server that runs by it, which must not notice.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::port::free_ports;

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far ports move here: between two free ones, whatever they are.
struct Ports {
    old: u16,
    new: u16,
}

impl Ports {
    /// The next two ports move as well in some tests.
    fn free() -> Ports {
        loop {
            let (old, new) = (free_ports(3), free_ports(3));
            if new > old {
                return Ports { old, new };
            }
        }
    }

    fn offset(&self) -> String {
        (self.new - self.old).to_string()
    }
}

/// A folder with a configuration and a site, which ends with the value.
struct Folder(PathBuf);

impl Folder {
    /// `FOLDER` and `PORT` in the configuration stand for what they are.
    fn new(conf: &str, port: u16) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-trial-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(folder.0.join("www")).unwrap();
        fs::write(folder.0.join("www/index.html"), "the site").unwrap();
        let conf = conf.replace("FOLDER", folder.0.to_str().unwrap());
        fs::write(
            folder.0.join("nginx.conf"),
            conf.replace("PORT", &port.to_string()),
        )
        .unwrap();
        folder
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("try")
            .arg("-c")
            .arg(self.0.join("nginx.conf"))
            .args(arguments);
        command
    }

    /// A trial, once it runs.
    fn run(&self, arguments: &[&str]) -> Trial {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut printed = String::new();
        while !printed.ends_with("Ctrl-C ends it.\n") {
            let line = stderr
                .next()
                .unwrap_or_else(|| panic!("no start: {printed}"));
            printed.push_str(&line.unwrap());
            printed.push('\n');
        }
        Trial {
            child,
            printed,
            _stderr: stderr,
        }
    }

    /// Everything below it, by path.
    fn listing(&self) -> Vec<PathBuf> {
        fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                }
                found.push(path);
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &mut found);
        found.sort();
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Trial {
    child: Child,
    printed: String,
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Trial {
    /// Ctrl-C, and the exit code.
    fn interrupt(mut self) -> Option<i32> {
        signal(self.child.id(), "INT");
        self.child.wait().unwrap().code()
    }

    /// The folder that it says it writes to.
    fn folder(&self) -> PathBuf {
        let mark = "Logs and whatever else it writes: ";
        let line = self
            .printed
            .lines()
            .find_map(|line| line.strip_prefix(mark));
        PathBuf::from(line.unwrap())
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
    }
}

fn signal(pid: u32, name: &str) {
    let pid = pid.to_string();
    Command::new("kill")
        .args([&format!("-{name}"), &pid])
        .status()
        .unwrap();
}

/// The body of `/`.
fn get(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every path that a configuration can write to, and a port.
const EVERYTHING: &str = r#"
daemon on;
pid "FOLDER/run/live.pid";
lock_file FOLDER/run/lock;
working_directory FOLDER/nowhere;
error_log FOLDER/log/error.log info;
include FOLDER/more.conf;
events {}
http {
    access_log FOLDER/log/access.log;
    client_body_temp_path FOLDER/temp/body;
    proxy_temp_path 'FOLDER/temp/proxy';
    server {
        listen 127.0.0.1:PORT default_server; # listen 1;
        listen unix:FOLDER/run/socket;
        root FOLDER/www;
        error_log FOLDER/log/server.log;
        location /each { access_log FOLDER/log/$host.log; return 200 each; }
        location /put { client_body_in_file_only on; proxy_pass http://127.0.0.1:PORT/; }
    }
}
"#;

#[test]
fn everything_that_is_written_goes_elsewhere() {
    let ports = Ports::free();
    let folder = Folder::new(EVERYTHING, ports.old);
    fs::write(folder.0.join("more.conf"), "worker_processes 1;").unwrap();
    // The running server's: none of it may change.
    let live = TcpListener::bind(("127.0.0.1", ports.old)).unwrap();
    fs::create_dir(folder.0.join("run")).unwrap();
    fs::write(
        folder.0.join("run/live.pid"),
        format!("{}\n", std::process::id()),
    )
    .unwrap();
    let before = folder.listing();

    let trial = folder.run(&["--port-offset", &ports.offset()]);
    let old = format!("127.0.0.1:{}", ports.old);
    let line = |line: &&str| {
        line.contains(&old) && line.ends_with(&format!(" → http://127.0.0.1:{}/", ports.new))
    };
    assert!(
        trial.printed.lines().any(|text| line(&text)),
        "{}",
        trial.printed
    );
    let own = trial.folder();
    let socket = format!(
        "unix:{}/run/socket → unix:{}/socket-0",
        folder.0.display(),
        own.display()
    );
    assert!(trial.printed.contains(&socket), "{}", trial.printed);
    assert_eq!(get(ports.new).as_deref(), Some("the site"));
    let mut stream = TcpStream::connect(("127.0.0.1", ports.new)).unwrap();
    stream
        .write_all(b"GET /each HTTP/1.0\r\nHost: example.org\r\n\r\n")
        .unwrap();
    stream.read_to_string(&mut String::new()).unwrap();

    assert_eq!(folder.listing(), before);
    let inside = own.join(folder.0.strip_prefix("/").unwrap());
    let pid = fs::read_to_string(own.join("pid")).unwrap();
    assert_eq!(pid, format!("{}\n", trial.child.id()));
    let read = |name: &str| fs::read_to_string(inside.join(name)).unwrap();
    assert!(read("log/access.log").contains("GET / HTTP/1.0"));
    assert!(read("log/error.log").contains("start worker process"));
    // A log whose path holds variables is opened beside the loop.
    support::tls::until("the line of a log by host", || {
        fs::read_to_string(inside.join("log/example.org.log"))
            .is_ok_and(|lines| lines.contains("GET /each"))
    });
    assert!(inside.join("temp/body").is_dir());

    assert_eq!(trial.interrupt(), Some(0));
    assert!(!own.exists());
    assert_eq!(folder.listing(), before);
    drop(live);
}

/// LOCK makes an empty file where there is none.
#[test]
fn nothing_is_locked() {
    let ports = Ports::free();
    let conf = "events {} http { dav_ext_lock_zone zone=l:1m; server { listen 127.0.0.1:PORT; root FOLDER; \
                dav_ext_methods PROPFIND LOCK UNLOCK; dav_ext_lock zone=l; } }";
    let folder = Folder::new(conf, ports.old);
    let trial = folder.run(&["--port-offset", &ports.offset()]);
    let body = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>";
    let length = body.len();
    let mut stream = TcpStream::connect(("127.0.0.1", ports.new)).unwrap();
    let request = format!(
        "LOCK /new HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(!folder.0.join("new").exists());
    let expected = "dav_ext_methods is without LOCK";
    assert!(trial.printed.contains(expected), "{}", trial.printed);
}

#[test]
fn the_folder_may_be_named_and_stays() {
    let ports = Ports::free();
    let conf = "events {} http { access_log off; server { listen PORT; return 200 one; } }";
    let folder = Folder::new(conf, ports.old);
    let own = folder.0.join("trial");
    let path = own.to_str().unwrap();
    let trial = folder.run(&["--port-offset", &ports.offset(), "--folder", path]);
    assert_eq!(get(ports.new).as_deref(), Some("one"));
    assert_eq!(trial.interrupt(), Some(0));
    assert!(own.join("error.log").exists());
    let output = folder.command(&["--folder", path]).output().unwrap();
    let expected = format!("tidegate: mkdir() \"{path}\" failed (17: File exists)\n");
    assert_eq!(refusal(&output), expected);
}

#[test]
fn what_cannot_be_had_is_said_and_the_rest_runs() {
    let ports = Ports::free();
    let conf = "events {} http { server { listen 127.0.0.1:PORT; listen 127.0.0.2:PORT deferred; \
                root FOLDER/nothing; location / { return 200 one; } } }";
    let folder = Folder::new(conf, ports.old);
    let taken = TcpListener::bind(("127.0.0.2", ports.new)).unwrap();
    let trial = folder.run(&["--port-offset", &ports.offset()]);
    assert_eq!(get(ports.new).as_deref(), Some("one"));
    let Ports { old, new } = ports;
    let expected =
        format!("  127.0.0.2:{old} → 127.0.0.2:{new} cannot be had (98: Address already in use)\n");
    assert!(trial.printed.contains(&expected), "{}", trial.printed);
    let at = folder.0.display();
    let expected = format!(
        "  root cannot read \"{at}/nothing\" (2: No such file or directory) in {at}/nginx.conf:1\n"
    );
    assert!(trial.printed.contains(&expected), "{}", trial.printed);
    drop(taken);
}

/// A port that the offset would bring above 65535 gets another one, and no other port does.
#[test]
fn a_port_that_is_too_high_gets_a_free_one_alone() {
    let ports = Ports::free();
    let conf = "events {} http { server { listen 127.0.0.1:65534; return 200 high; } \
                server { listen 127.0.0.1:PORT; return 200 low; } }";
    let folder = Folder::new(conf, ports.old);
    let trial = folder.run(&["--port-offset", &ports.offset()]);
    assert_eq!(get(ports.new).as_deref(), Some("low"));
    let line = trial
        .printed
        .lines()
        .find(|line| line.contains("127.0.0.1:65534 "));
    let (_, url) = line.unwrap().split_once("http://127.0.0.1:").unwrap();
    let port: u16 = url.trim_end_matches('/').parse().unwrap();
    assert_eq!(get(port).as_deref(), Some("high"));
}

#[test]
fn what_is_not_there_yet_is_left_out_where_that_is_wanted() {
    let ports = Ports::free();
    let conf = "events {}\nunheard_of 'a;' b; # c;\nhttp {\n unheard_of {\n  x y; z { }\n }\n \
                server { listen 127.0.0.1:PORT;\n location / { image_filter test; \
                image_filter_buffer 1m; return 200 one; } } }";
    let folder = Folder::new(conf, ports.old);
    let text = refusal(&folder.command(&[]).output().unwrap());
    assert!(text.contains("unknown directive \"unheard_of\""), "{text}");
    let trial = folder.run(&["--port-offset", &ports.offset(), "--without-unsupported"]);
    assert_eq!(get(ports.new).as_deref(), Some("one"));
    let at = folder.0.display();
    for (directive, line) in [
        ("unknown directive \"unheard_of\"", 2),
        ("unknown directive \"unheard_of\"", 4),
        ("unsupported directive \"image_filter\"", 8),
        ("unsupported directive \"image_filter_buffer\"", 8),
    ] {
        let said = |text: &str| {
            text.trim().starts_with(directive)
                && text.ends_with(&format!("in {at}/nginx.conf:{line} was left out"))
        };
        assert!(
            trial.printed.lines().any(said),
            "{directive}: {}",
            trial.printed
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = Folder::new("events {} http { sever { } }", 1);
    let at = folder.0.display();
    let text = refusal(&folder.command(&[]).output().unwrap());
    let expected = format!("tidegate: [emerg] unknown directive \"sever\" in {at}/nginx.conf:1\n");
    assert!(
        text.starts_with(&expected) && text.contains("did you mean \"server\"?"),
        "{text}"
    );

    let ports = Ports::free();
    let conf = "events {} http { server { listen 127.0.0.1:PORT; } }";
    let folder = Folder::new(conf, ports.old);
    let _taken = TcpListener::bind(("127.0.0.1", ports.new)).unwrap();
    let output = folder
        .command(&["--port-offset", &ports.offset()])
        .output()
        .unwrap();
    assert!(refusal(&output).starts_with("tidegate: nothing is left to listen on:\n"));
}

#[test]
fn anybody_may_try() {
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: to be somebody else takes root and setpriv");
        return;
    }
    let ports = Ports::free();
    let conf = "user root; events {} http { include FOLDER/secret.conf; \
                server { listen 127.0.0.1:PORT; root FOLDER/www; } }";
    let folder = Folder::new(conf, ports.old);
    let secret = folder.0.join("secret.conf");
    fs::write(&secret, "nonsense").unwrap();
    assert!(
        Command::new("chmod")
            .arg("600")
            .arg(&secret)
            .status()
            .unwrap()
            .success()
    );
    // The program may lie where nobody else comes.
    let program = folder.0.join("tidegate");
    support::copy_program(env!("CARGO_BIN_EXE_tidegate"), &program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command
        .arg(&program)
        .arg("try")
        .arg("-c")
        .arg(folder.0.join("nginx.conf"));
    let mut child = command
        .args(["--port-offset", &ports.offset()])
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let printed: Vec<String> = lines
        .by_ref()
        .map(Result::unwrap)
        .take_while(|line| line != "Ctrl-C ends it.")
        .collect();
    let printed = printed.join("\n");
    let answer = get(ports.new);
    signal(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(answer.as_deref(), Some("the site"), "{printed}");
    let expected = format!(
        "  \"{}\" was left out (13: Permission denied)",
        secret.display()
    );
    assert!(printed.contains(&expected), "{printed}");
    assert!(printed.contains("makes sense only if the master process runs with super-user"));
}

/// A name that is known on the server's network alone keeps nothing from being tried but requests
/// for it.
#[test]
fn hosts_that_are_not_found_are_named_and_the_rest_runs() {
    let ports = Ports::free();
    let folder = Folder::new(
        "events {}\nhttp { server { listen 127.0.0.1:PORT; root FOLDER/www;
            location /app { proxy_pass http://app.invalid; } } }",
        ports.old,
    );
    let trial = folder.run(&["--port-offset", &ports.offset()]);
    let line = "tidegate: host not found: \"app.invalid\", requests for it fail\n";
    assert!(trial.printed.contains(line), "{}", trial.printed);
    assert_eq!(get(ports.new).as_deref(), Some("the site"));
}
