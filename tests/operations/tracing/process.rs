//! The collector as a process of its own.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::port::free_port;

/// Debian's, which has the packages of Debian.
const PYTHON: &str = "/usr/bin/python3";

/// Where tests/install-packages puts opentelemetry-proto.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/opentelemetry");

/// A collector, which ends with this.
pub(crate) struct Collector {
    pub(crate) port: u16,
    arguments: Vec<String>,
    file: PathBuf,
    child: Child,
    /// How many batches have been looked at.
    seen: Cell<usize>,
}

impl Collector {
    /// One that does so with what comes. `None` where the machine lacks what it needs, which is
    /// said.
    pub(crate) fn start(behaviour: &str) -> Option<Collector> {
        Collector::start_with(behaviour, &[])
    }

    /// The same over TLS, with this key and certificate.
    pub(crate) fn start_with(behaviour: &str, tls: &[String]) -> Option<Collector> {
        if !PathBuf::from(PACKAGES).join("opentelemetry").is_dir() {
            eprintln!("skipped: no opentelemetry-proto, tests/install-packages installs it");
            return None;
        }
        let port = free_port();
        let name = format!("tidegate-collector-{}-{port}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&file);
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/operations/tracing/collector.py"
        );
        let mut arguments = vec![script.to_owned(), PACKAGES.to_owned(), port.to_string()];
        arguments.extend([file.display().to_string(), behaviour.to_owned()]);
        arguments.extend_from_slice(tls);
        let child = spawn(&arguments);
        Some(Collector {
            port,
            arguments,
            file,
            child,
            seen: Cell::new(0),
        })
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it once more at the same port.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.arguments);
    }

    /// All batches that have come.
    pub(crate) fn batches(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let lines = text.split_inclusive('\n');
        let whole = lines.filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The next batch that has not been looked at.
    pub(crate) fn next(&self) -> Value {
        let begin = Instant::now();
        loop {
            if let Some(batch) = self.batches().into_iter().nth(self.seen.get()) {
                self.seen.set(self.seen.get() + 1);
                return batch;
            }
            assert!(begin.elapsed() < support::PATIENCE, "no batch has come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many spans have come, and says how many have in the end.
    pub(crate) fn wait_for_spans(&self, count: usize) -> usize {
        let begin = Instant::now();
        loop {
            let batches = self.batches();
            let spans = batches
                .iter()
                .map(|batch| batch["spans"].as_array().unwrap().len());
            let spans = spans.sum();
            if spans >= count || begin.elapsed() > support::PATIENCE {
                return spans;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

fn spawn(arguments: &[String]) -> Child {
    let mut command = Command::new(PYTHON);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), arguments[2], "the collector does not start");
    child
}
