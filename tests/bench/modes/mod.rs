//! The modes of `tidegate bench` beside the native one: each compared with the tool whose place it
//! takes, where that is installed.

mod bad_servers;
mod echo;
mod siege;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// An empty folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-bench-modes-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir(&folder.0).unwrap();
        folder
    }

    /// The path of a file in it.
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the program under another name.
fn called(name: &str, arguments: &[&str]) -> Output {
    let folder = Folder::new();
    let link = folder.path(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), &link).unwrap();
    Command::new(link).args(arguments).output().unwrap()
}

/// Runs the tool itself with a home of its own; `None` where it is not installed.
fn original(name: &str, arguments: &[&str], home: &Path) -> Option<Output> {
    let run = Command::new(name)
        .args(arguments)
        .env("HOME", home)
        .output();
    if run.is_err() {
        eprintln!("not compared: there is no {name}");
    }
    run.ok()
}

#[test]
fn each_tool_is_known_by_its_name() {
    let url = support::load::answering(support::load::GOOD);
    let native = support::load::report(&[&url, "-n", "2"]);
    assert_eq!(support::load::number(&native, "succeeded"), 2.0, "{native}");
    let folder = Folder::new();
    let file = folder.path("urls");
    std::fs::write(&file, &url).unwrap();
    for (name, arguments, expected) in [
        ("ab", &["-n", "2", &*url][..], "Complete requests:      2\n"),
        (
            "http_load",
            &["-parallel", "1", "-fetches", "2", &file],
            "2 fetches, 1 max parallel, 6 bytes, in ",
        ),
        (
            "siege",
            &["-j", "-c1", "-r2", &url],
            "\"transactions\":\t\t\t           2,\n",
        ),
    ] {
        let output = called(name, arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains(expected),
            "{name}: {text}"
        );
        let refused = called(name, &[arguments, &["http://8.8.8.8/"]].concat());
        assert!(!refused.status.success(), "{name}");
    }
}
