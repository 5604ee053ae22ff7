//! Sessions at a terminal, as the documentation shows them: commands behind `$ ` and what they
//! print.
//!
//! Each command is a shell of its own in a folder of the session's. One that ends with ` &` stays
//! until the session's end, and the next begins when it has printed what is shown. `…` stands for
//! any text within a line, and alone on a line for any number of lines. What a reader has and a
//! test has not is put in its place: the port 8081 (16081 where `tidegate try` has moved it),
//! `/srv` for the folder, and `/etc/nginx` for `etc/nginx` in it. A comment `<!-- setup … -->`
//! before the block makes what the reader has already; the servers that it starts end with the
//! session.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far `tidegate try` moves ports.
const TRY_OFFSET: u16 = 8000;

/// The blocks of one session.
pub(crate) struct Session {
    place: String,
    setup: String,
    /// Commands with what they print.
    steps: Vec<(String, String)>,
}

impl Session {
    /// `setup` makes what the reader is supposed to have.
    pub(crate) fn new(place: &str, setup: &str, text: &str) -> Session {
        let mut session = Session {
            place: place.to_owned(),
            setup: setup.to_owned(),
            steps: Vec::new(),
        };
        session.add(text);
        session
    }

    /// Appends the commands of a further block.
    pub(crate) fn add(&mut self, text: &str) {
        for line in text.lines() {
            match (line.strip_prefix("$ "), self.steps.last_mut()) {
                (Some(command), _) => self.steps.push((command.to_owned(), String::new())),
                (None, Some((_, output))) => {
                    output.push_str(line);
                    output.push('\n');
                }
                (None, None) => panic!("{}: no command above {line:?}", self.place),
            }
        }
    }

    /// Runs it with the programs of `programs` first in the PATH.
    ///
    /// # Panics
    ///
    /// Where a command prints something else.
    pub(crate) fn run(&self, programs: &Path) {
        let folder = Folder::new();
        let port = free_ports();
        let root = folder.0.display().to_string();
        let into = |text: &str| {
            text.replace("16081", &(port + TRY_OFFSET).to_string())
                .replace("8081", &port.to_string())
                .replace("/etc/nginx", &format!("{root}/etc/nginx"))
                .replace("/srv", &root)
        };
        let back = |text: &str| {
            let text = replace_number(text, port + TRY_OFFSET, "16081");
            replace_number(&text, port, "8081")
                .replace(&format!("{root}/etc/nginx"), "/etc/nginx")
                .replace(&root, "/srv")
        };
        let path = format!(
            "{}:{}",
            programs.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let output = folder.0.with_extension("output");
        let start = |command: &str, group: bool| {
            let file = File::create(&output).unwrap();
            let mut shell = Command::new("sh");
            if group {
                shell.process_group(0);
            }
            shell
                .args(["-c", command])
                .current_dir(&folder.0)
                .env("PATH", &path)
                .env("LANG", "C.UTF-8")
                .env("CURL_HOME", &folder.0)
                .stdin(Stdio::null())
                .stdout(file.try_clone().unwrap())
                .stderr(file)
                .spawn()
                .unwrap()
        };
        let printed = || back(&String::from_utf8_lossy(&fs::read(&output).unwrap()));

        // At a terminal curl shows no progress beside what it has received.
        fs::write(folder.0.join(".curlrc"), "silent\nshow-error\n").unwrap();
        let ports = |text: &str| text.replace("8081", &port.to_string());
        let setup = format!("set -eu\n{}", ports(&self.setup));
        let setup = Group(start(&setup, true));
        let made = setup.wait();
        assert!(made, "{}: setup: {}", self.place, printed());
        let mut running: Vec<Running> = Vec::new();
        for (command, expected) in &self.steps {
            let stays = command.strip_suffix(" &");
            let mut child = Running(start(
                &into(&match stays {
                    Some(command) => format!("exec {command}"),
                    None => command.clone(),
                }),
                false,
            ));
            let deadline = Instant::now() + PATIENCE;
            let is_done = |child: &mut Child| match stays {
                Some(_) => matches(expected, &printed()),
                None => child.try_wait().unwrap().is_some(),
            };
            while !is_done(&mut child.0) {
                assert!(
                    Instant::now() < deadline,
                    "{}: $ {command}\n{}",
                    self.place,
                    printed()
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            let printed = printed();
            assert!(
                matches(expected, &printed),
                "{}: $ {command}\nshown:\n{expected}\nprinted:\n{printed}",
                self.place
            );
            if stays.is_some() {
                running.push(child);
                // What it prints from now on goes into a file of its own.
                fs::remove_file(&output).unwrap();
            }
        }
        let _ = fs::remove_file(&output);
    }
}

/// A free port, of which the one that `tidegate try` makes of it is free too, and stays so: it is
/// not among those that the kernel gives to connections.
fn free_ports() -> u16 {
    let is_free =
        |port: u16| port < support::port::END && TcpListener::bind(("0.0.0.0", port)).is_ok();
    let mut ports = std::iter::repeat_with(support::port::free_port).take(usize::from(u16::MAX));
    ports
        .find(|port| is_free(port + TRY_OFFSET))
        .expect("two free ports")
}

/// Whether `printed` is what `shown` shows.
fn matches(shown: &str, printed: &str) -> bool {
    fn lines_match(shown: &[&str], printed: &[&str]) -> bool {
        match (shown.split_first(), printed.split_first()) {
            (None, None) => true,
            (Some((&"…", rest)), _) => {
                (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
            }
            (Some((first, rest)), Some((line, others))) => {
                line_matches(first, line) && lines_match(rest, others)
            }
            _ => false,
        }
    }
    fn line_matches(shown: &str, line: &str) -> bool {
        let Some((start, rest)) = shown.split_once('…') else {
            return shown.trim_end() == line.trim_end();
        };
        let Some(line) = line.strip_prefix(start) else {
            return false;
        };
        let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
        ends.any(|at| line_matches(rest, &line[at..]))
    }
    let shown: Vec<&str> = shown.lines().collect();
    let printed: Vec<&str> = printed.lines().collect();
    lines_match(&shown, &printed)
}

/// A process that ends with its session.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = Command::new("kill")
                .args(["-TERM", &self.0.id().to_string()])
                .status();
        }
        let _ = self.0.wait();
    }
}

/// The setup and all that it started.
struct Group(Child);

impl Group {
    /// Whether the setup itself ends well, and in time. What it started goes on.
    fn wait(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let stat = format!("/proc/{}/stat", self.0.id());
        // It is waited for at the end: until then its number, which is the group's, is not given
        // away again.
        let has_ended = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        while !has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        has_ended()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-TERM", "--", &format!("-{}", self.0.id())])
            .status();
        let _ = self.0.wait();
    }
}

/// The session's folder.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-session-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A session that failed may have left a server behind.
        for file in [
            "nginx.pid",
            "logs/nginx.pid",
            "site/nginx.pid",
            "site/logs/nginx.pid",
        ] {
            let pid = fs::read_to_string(self.0.join(file)).unwrap_or_default();
            if pid.trim().parse::<u32>().is_ok() {
                let _ = Command::new("kill").arg(pid.trim()).status();
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn dots_stand_for_any_text() {
    assert!(matches("a … c\n", "a b c\n"));
    assert!(!matches("a … c\n", "a b d\n"));
    assert!(matches("a\n…\nd\n", "a\nb\nc\nd\n"));
    assert!(matches("a\n…\n", "a\n"));
    assert!(!matches("a\n", "a\nb\n"));
    assert!(matches("", ""));
}

/// A text with this number replaced, where it is no part of a longer one.
fn replace_number(text: &str, number: u16, by: &str) -> String {
    let number = number.to_string();
    let is_digit = |end: Option<char>| end.is_some_and(|character| character.is_ascii_digit());
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(&number) {
        let (before, found) = rest.split_at(at);
        let (number, behind) = found.split_at(number.len());
        replaced.push_str(before);
        let is_part = is_digit(replaced.chars().next_back()) || is_digit(behind.chars().next());
        replaced.push_str(if is_part { number } else { by });
        rest = behind;
    }
    replaced + rest
}

#[test]
fn a_number_is_replaced_where_it_is_no_part_of_another() {
    let replaced = replace_number("20000: 200000, 120000 20000", 20000, "8081");
    assert_eq!(replaced, "8081: 200000, 120000 8081");
}
