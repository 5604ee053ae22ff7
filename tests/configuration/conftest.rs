//! The configuration language on the real program: tests/conf/*.conftest.
//!
//! A file holds cases, each a configuration above a `----` line and what it amounts to below: every
//! message of `-t`, then answers to requests, which show what each scope has inherited.
//!
//! ```text
//! # a comment, before the first case
//! === title of a case
//! -g daemon off;                           directives of the command line, if any
//! events {}                                nginx.conf begins
//! http { include more/*.conf; }
//! +++ more/one.conf                        another file below the prefix
//! server { listen 127.0.0.1:PORT; }
//! ---- not nginx: why                      the remark only where nginx says something else
//! [warn] text of a message in nginx.conf:1
//! hint: what stands below the message
//! GET /path | Host: name -> 200 | X-Field: value | no X-Other | "body"
//! ```
//!
//! `PORT` and `PORT2` are ports of 127.0.0.1, `PREFIX` is the case's folder; before a file's name
//! it is left out of messages. Requests are sent as HTTP/1.0.
//!
//! Expected values are nginx's: with `CONFTEST_NGINX=FILE` in the environment the same cases are
//! put to that nginx. It stops at its first error, so the line of each error is emptied before the
//! next is asked for; it prints no notices and no hints.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How many cases run at the same time.
const PARALLEL: usize = 4;

/// How long a start or an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_case_holds() {
    let cases = cases();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut failed = failures(&cases, &Program::tidegate());
    if let Some(nginx) = std::env::var_os("CONFTEST_NGINX") {
        let theirs = |case: &&Case| case.not_nginx.is_none();
        let cases: Vec<Case> = cases.iter().filter(theirs).cloned().collect();
        failed.extend(failures(&cases, &Program::nginx(nginx.into())));
    }
    let count = failed.len();
    assert!(count == 0, "{count} failures\n\n{}", failed.join("\n\n"));
}

/// What is wrong with each case that does not hold.
fn failures(cases: &[Case], program: &Program) -> Vec<String> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(text) = run(case, program) {
                        let (place, title, name) = (&case.place, &case.title, program.name);
                        let text = format!("{place} ({title}), {name}: {text}");
                        found.lock().unwrap().push(text);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// One configuration and what is expected of it.
#[derive(Clone, Default)]
struct Case {
    title: String,
    place: String,
    globals: Vec<String>,
    /// Names and texts, `nginx.conf` first.
    files: Vec<(String, String)>,
    /// Why nginx is not asked.
    not_nginx: Option<String>,
    messages: Vec<String>,
    requests: Vec<String>,
}

/// Every case of every file.
fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conf");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| read(path)).collect()
}

fn read(path: &Path) -> Vec<Case> {
    let name = path.file_name().unwrap().to_string_lossy();
    let text = fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    let mut in_expectation = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("=== ") {
            in_expectation = false;
            cases.push(Case {
                title: title.to_owned(),
                place: format!("{name}:{}", index + 1),
                files: vec![("nginx.conf".to_owned(), String::new())],
                ..Case::default()
            });
            continue;
        }
        let Some(case) = cases.last_mut() else {
            assert!(line.is_empty() || line.starts_with('#'), "{name}: {line}");
            continue;
        };
        if in_expectation {
            match line {
                "" => {}
                _ if line.starts_with('[') || line.starts_with("hint: ") => {
                    case.messages.push(line.to_owned());
                }
                _ => case.requests.push(line.to_owned()),
            }
        } else if let Some(remark) = line.strip_prefix("----") {
            in_expectation = true;
            case.not_nginx = remark.strip_prefix(" not nginx: ").map(str::to_owned);
            assert!(remark.is_empty() || case.not_nginx.is_some(), "{line}");
        } else if let Some(name) = line.strip_prefix("+++ ") {
            case.files.push((name.to_owned(), String::new()));
        } else if let Some(directives) = line.strip_prefix("-g ") {
            case.globals.push(directives.to_owned());
        } else {
            let (_, text) = case.files.last_mut().unwrap();
            text.push_str(line);
            text.push('\n');
        }
    }
    cases
}

/// Who is asked.
struct Program {
    file: PathBuf,
    name: &'static str,
    /// Reports every error, with notices and hints.
    is_ours: bool,
}

impl Program {
    fn tidegate() -> Program {
        Program {
            file: env!("CARGO_BIN_EXE_tidegate").into(),
            name: "tidegate",
            is_ours: true,
        }
    }

    fn nginx(file: PathBuf) -> Program {
        Program {
            file,
            name: "nginx",
            is_ours: false,
        }
    }

    /// The messages of a case that this program prints.
    fn expected<'a>(&self, case: &'a Case) -> Vec<&'a str> {
        let mut expected: Vec<&str> = case.messages.iter().map(String::as_str).collect();
        if !self.is_ours {
            expected.retain(|line| !line.starts_with("hint: ") && !line.starts_with("[notice]"));
        }
        expected
    }
}

fn is_error(line: &str) -> bool {
    line.starts_with("[emerg]")
}

/// Puts one case to the program.
fn run(case: &Case, program: &Program) -> Result<(), String> {
    let prefix = Prefix::new(case);
    let (succeeded, messages) = if program.is_ours {
        prefix.test(case, program)
    } else {
        prefix.test_line_by_line(case, program, program.expected(case).len())
    };
    let expected = prefix.filled(&program.expected(case).join("\n"));
    let messages = if program.is_ours {
        messages
    } else {
        with_places(messages, &expected)
    };
    let messages = messages.join("\n");
    if messages != expected {
        return Err(format!("expected\n{expected}\nbut -t printed\n{messages}"));
    }
    if succeeded == case.messages.iter().any(|line| is_error(line)) {
        return Err(format!("-t succeeded: {succeeded}"));
    }
    if case.requests.is_empty() {
        return Ok(());
    }
    let _server = prefix.start(case, program)?;
    for line in &case.requests {
        let (request, answer) = line
            .split_once(" -> ")
            .ok_or(format!("no answer: {line}"))?;
        let response = prefix
            .ask(request)
            .ok_or(format!("no answer to {request}"))?;
        for part in split(answer) {
            if !response.has(&prefix.filled(part)) {
                return Err(format!("{line}\nwants {part} of\n{}", response.0));
            }
        }
    }
    Ok(())
}

/// nginx's messages, with the places that ours have and nginx's lack: what it finds after reading,
/// such as a zone that is missing, it cannot place.
fn with_places(messages: Vec<String>, expected: &str) -> Vec<String> {
    let placed = |message: String| {
        let start = format!("{message} in ");
        let same = expected.lines().find(|line| {
            let rest = line.strip_prefix(&start);
            rest.is_some_and(|place| !place.contains(' ') && place.contains(':'))
        });
        same.map_or(message, str::to_owned)
    };
    messages.into_iter().map(placed).collect()
}

fn split(line: &str) -> impl Iterator<Item = &str> {
    line.split(" | ").map(str::trim)
}

/// What came over the connection.
struct Response(String);

impl Response {
    /// Whether it has a status, a body in quotes, a field, or lacks a field (`no NAME`).
    fn has(&self, part: &str) -> bool {
        let (head, body) = self.0.split_once("\r\n\r\n").unwrap_or((&self.0, ""));
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default().split(' ').nth(1);
        let named = |line: &str, name: &str| {
            line.split_once(':')
                .is_some_and(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        if let Some(text) = part
            .strip_prefix('"')
            .and_then(|part| part.strip_suffix('"'))
        {
            body.trim_end() == text
        } else if let Some(name) = part.strip_prefix("no ") {
            !lines.any(|line| named(line, name))
        } else if part.contains(": ") {
            lines.any(|line| line == part)
        } else {
            status == Some(part)
        }
    }
}

/// A folder with the files of a case, and ports for it.
struct Prefix {
    folder: PathBuf,
    ports: [u16; 2],
}

impl Prefix {
    fn new(case: &Case) -> Prefix {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-conf-{}-{number}", std::process::id());
        let prefix = Prefix {
            folder: std::env::temp_dir().join(name),
            ports: [(); 2].map(|()| support::port::free_port()),
        };
        fs::create_dir_all(prefix.folder.join("logs")).unwrap();
        for (name, text) in &case.files {
            let path = prefix.folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, prefix.filled(text)).unwrap();
        }
        prefix
    }

    /// A text with this case's folder and ports.
    fn filled(&self, text: &str) -> String {
        text.replace("PORT2", &self.ports[1].to_string())
            .replace("PORT", &self.ports[0].to_string())
            .replace("PREFIX", self.folder.to_str().unwrap())
    }

    fn command(&self, case: &Case, program: &Program, more: &str) -> Command {
        let mut globals = format!("pid {}/nginx.pid; {more}", self.folder.display());
        case.globals.iter().for_each(|text| globals.push_str(text));
        let mut command = Command::new(&program.file);
        command.arg("-p").arg(&self.folder);
        command.args(["-c", "nginx.conf", "-e", "error.log", "-g", &globals]);
        command.stdin(Stdio::null());
        command
    }

    /// Whether `-t` succeeds, and its messages with their hints.
    fn test(&self, case: &Case, program: &Program) -> (bool, Vec<String>) {
        let output = self.command(case, program, "").arg("-t").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let own = format!("{}: [", program.name);
        let folder = format!("{}/", self.folder.display());
        let messages = text
            .lines()
            .filter_map(|line| match line.strip_prefix(&own) {
                Some(rest) => Some(format!("[{}", without_folder(rest, &folder))),
                None => line
                    .trim_start()
                    .starts_with("hint: ")
                    .then(|| without_folder(line.trim_start(), &folder)),
            });
        (output.status.success(), messages.collect())
    }

    /// Whether the first `-t` succeeds, and up to `count` messages: those of the first and of
    /// further ones, each with the line of the last error emptied.
    fn test_line_by_line(
        &self,
        case: &Case,
        program: &Program,
        count: usize,
    ) -> (bool, Vec<String>) {
        let (first, mut messages) = self.test(case, program);
        while messages.len() < count && messages.last().is_some_and(|last| self.empty_line(last)) {
            messages.extend(self.test(case, program).1);
        }
        for (name, text) in &case.files {
            fs::write(self.folder.join(name), self.filled(text)).unwrap();
        }
        (first, messages)
    }

    /// Empties the line that a message names at its end.
    fn empty_line(&self, message: &str) -> bool {
        let place = message
            .rsplit_once(" in ")
            .and_then(|(_, place)| place.split_once(':'));
        let Some((name, Ok::<usize, _>(number))) =
            place.map(|(name, number)| (name, number.parse()))
        else {
            return false;
        };
        let text = fs::read_to_string(self.folder.join(name)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        let emptied = lines.get_mut(number - 1);
        let emptied = emptied.is_some_and(|line| !std::mem::take(line).is_empty());
        fs::write(self.folder.join(name), lines.join("\n")).unwrap();
        emptied
    }

    /// Starts the program in the foreground.
    fn start(&self, case: &Case, program: &Program) -> Result<Server, String> {
        let mut command = self.command(case, program, "daemon off; master_process off; ");
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server(command.spawn().unwrap());
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            if start.elapsed() > PATIENCE {
                return Err("nobody listens".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Sends `METHOD TARGET | Field: value` and reads to the end.
    fn ask(&self, request: &str) -> Option<Response> {
        let request = self.filled(request);
        let mut parts = split(&request);
        let mut text = format!("{} HTTP/1.0\r\n", parts.next()?);
        parts.for_each(|field| text.extend([field, "\r\n"]));
        if !text.to_ascii_lowercase().contains("\r\nhost:") {
            text.push_str("Host: localhost\r\n");
        }
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[0])).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(format!("{text}\r\n").as_bytes()).ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        Some(Response(response))
    }
}

/// A message whose file names are relative: `in PREFIX/nginx.conf:1` is `in nginx.conf:1`.
fn without_folder(line: &str, folder: &str) -> String {
    line.replace(&format!(" in {folder}"), " in ")
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running program, ended with the case.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
