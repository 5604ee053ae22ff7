//! The documentation is tried out: README.md, ARCHITECTURE.md and docs/.
//!
//! A block marked `nginx` is put to `tidegate -t`, whole or, as `nginx http` and `nginx server`, in
//! the blocks around it. A block marked `sh run` runs in an empty folder with the program in its
//! PATH and must end with code 0. A block marked `console` shows commands, each behind `$ `, with
//! what they print: sessions.rs runs them. Links within the repository must lead somewhere. The
//! pages of docs/directives are generated and left out; their examples are those of
//! examples/directives, which are put to `tidegate -t` as well, and must bring no warning.

mod sessions;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The port that the documents use; here a free one stands for it.
const PORT: &str = "8081";

/// A fenced block.
struct Block {
    /// File and line.
    place: String,
    /// What follows the three backquotes.
    kind: String,
    text: String,
    /// The comment right before it: `<!-- setup`, lines of a shell, `-->`.
    before: String,
}

#[test]
fn configurations_are_accepted() {
    let blocks = blocks(|kind| kind.starts_with("nginx"));
    assert!(blocks.len() >= 4);
    for block in blocks {
        let text = match &*block.kind {
            "nginx" => block.text,
            "nginx http" => format!("events {{}} http {{\n{}}}\n", block.text),
            "nginx server" => format!("events {{}} http {{ server {{\n{}}} }}\n", block.text),
            other => panic!("{}: unknown kind of block: {other}", block.place),
        };
        let folder = Folder::new();
        fs::create_dir(folder.0.join("logs")).unwrap();
        // The folder that a page tells its reader to make.
        let text = text.replace("/var/lib/tidegate", &folder.0.display().to_string());
        add_included(&folder, &text);
        let free = support::port::free_port().to_string();
        let text = text.replace(PORT, &free);
        let text = text.replace("listen 80;", &format!("listen {free};"));
        assert_success(&block.place, &check(&folder, &text));
    }
}

/// Has the program check a configuration in a folder.
fn check(folder: &Folder, text: &str) -> Output {
    fs::write(folder.0.join("nginx.conf"), text).unwrap();
    // The default's folder may not be there, or not be for this user.
    let pid = if text.contains("pid ") {
        ""
    } else {
        "pid nginx.pid;"
    };
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("-p")
        .arg(&folder.0)
        .args(["-c", "nginx.conf", "-e", "error.log", "-g", pid, "-t"])
        .output()
        .unwrap()
}

#[test]
fn examples_of_directives_are_accepted() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/directives");
    let mut count = 0;
    for entry in fs::read_dir(all).unwrap() {
        let file = entry.unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("#: "), "{}", file.display());
        for example in format!("\n{text}").split("\n#: ").skip(1) {
            let (title, example) = example.split_once('\n').unwrap();
            let place = format!("{}: {title}", file.display());
            let folder = Folder::new();
            fs::create_dir(folder.0.join("logs")).unwrap();
            add_included(&folder, example);
            let example = example.replace("/var/lib/tidegate", &folder.0.display().to_string());
            let events = if example.contains("events {") {
                ""
            } else {
                "events {}\n"
            };
            let output = check(&folder, &format!("{events}{}", with_free_ports(&example)));
            assert_success(&place, &output);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!errors.contains("[warn]"), "{place}\n{errors}");
            count += 1;
        }
    }
    assert!(count >= 50, "{count}");
}

/// The configuration with a free port for each that it listens on.
fn with_free_ports(text: &str) -> String {
    let mut ports = BTreeMap::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        let address = line.trim_start().strip_prefix("listen ").unwrap_or("");
        let address = address.split([' ', ';']).next().unwrap_or("");
        let port = address.rsplit(':').next().unwrap_or("");
        let free = ports.entry(port.to_owned());
        lines.push(if port.is_empty() {
            line.to_owned()
        } else {
            let free = *free.or_insert_with(support::port::free_port);
            line.replacen(port, &free.to_string(), 1)
        });
    }
    lines.join("\n")
}

/// Puts the files that a configuration names beside it: of parameters as Debian's nginx brings
/// them, certificates, and users with their passwords.
fn add_included(folder: &Folder, text: &str) {
    let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    if text.contains("_file users;") {
        fs::write(folder.0.join("users"), "anna:secret\n").unwrap();
    }
    for (name, from) in [
        ("site.crt", "rsa.crt"),
        ("site.key", "rsa.key"),
        ("clients.crt", "ca.crt"),
    ] {
        if text.contains(&format!(" {name};")) {
            fs::copy(certificates.join(from), folder.0.join(name)).unwrap();
        }
    }
    for name in ["fastcgi_params", "uwsgi_params", "scgi_params"] {
        let from = Path::new("/etc/nginx").join(name);
        if text.contains(&format!("include {name};")) {
            fs::copy(&from, folder.0.join(name)).unwrap_or_else(|error| {
                panic!("{from:?}: {error}; the Debian package nginx-common has it")
            });
        }
    }
}

#[test]
fn commands_run() {
    let blocks = blocks(|kind| kind == "sh run");
    assert!(blocks.len() >= 2);
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    for block in blocks {
        let needs_curl = block.text.contains("curl ");
        if needs_curl && Command::new("curl").arg("--version").output().is_err() {
            eprintln!("{}: skipped, there is no curl", block.place);
            continue;
        }
        let folder = Folder::new();
        let text = &block.text;
        let text = text.replace(PORT, &support::port::free_port().to_string());
        let printed = Folder::new();
        let file = |name| fs::File::create(printed.0.join(name)).unwrap();
        let mut shell = Command::new("sh")
            .args(["-eu", "-c", &text])
            .current_dir(&folder.0)
            .env("PATH", &path)
            .process_group(0)
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        let status = shell.wait().unwrap();
        // An example that failed has left its servers running.
        let _ = Command::new("kill")
            .args(["-KILL", "--", &format!("-{}", shell.id())])
            .output();
        let read = |name| fs::read(printed.0.join(name)).unwrap();
        let output = Output {
            status,
            stdout: read("stdout"),
            stderr: read("stderr"),
        };
        assert_success(&block.place, &output);
    }
}

#[test]
fn sessions_print_what_they_show() {
    let blocks = blocks(|kind| kind.starts_with("console"));
    assert!(blocks.len() >= 3);
    let mut sessions: Vec<sessions::Session> = Vec::new();
    for block in &blocks {
        if block.kind == "console continued" {
            let session = sessions.last_mut().expect("a session to continue");
            session.add(&block.text);
        } else {
            sessions.push(sessions::Session::new(
                &block.place,
                &block.before,
                &block.text,
            ));
        }
    }
    let folder = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    for session in &sessions {
        session.run(folder);
    }
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if target.contains("://") || target.starts_with('#') {
                continue;
            }
            let file = target.split('#').next().unwrap_or_default();
            if !page.parent().unwrap().join(file).exists() {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_eq!(dead, [""; 0]);
}

fn assert_success(place: &str, output: &Output) {
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{place}\n{out}{errors}");
}

/// Every document that is written by hand.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        root.to_owned(),
        root.join("docs"),
        root.join("docs/decisions"),
    ];
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut pages: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    pages
}

/// The blocks whose kind is wanted.
fn blocks(wanted: impl Fn(&str) -> bool) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for page in pages() {
        let mut inside = None;
        let mut before = String::new();
        let mut in_setup = false;
        for (index, line) in fs::read_to_string(&page).unwrap().lines().enumerate() {
            match (line.strip_prefix("```"), &mut inside) {
                (None, None) if line == "<!-- setup" => {
                    in_setup = true;
                    before.clear();
                }
                (None, None) if line == "-->" => in_setup = false,
                (None, None) if in_setup => {
                    before.push_str(line);
                    before.push('\n');
                }
                (Some(kind), None) => {
                    inside = Some(Block {
                        place: format!("{}:{}", page.display(), index + 1),
                        kind: kind.to_owned(),
                        text: String::new(),
                        before: std::mem::take(&mut before),
                    });
                }
                (Some(_), Some(_)) => blocks.extend(inside.take()),
                (None, Some(block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
    }
    blocks.retain(|block| wanted(&block.kind));
    blocks
}

/// An empty folder.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-docs-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
