//! Python's grpcio as a server and as a client.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use support::port::free_port;

/// Debian's, which has the packages of Debian.
const PYTHON: &str = "/usr/bin/python3";

/// A file of the tests.
pub(crate) fn file(name: &str) -> String {
    format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server as a process of its own, which ends with this.
pub(crate) struct Python {
    pub(crate) port: u16,
    arguments: Vec<String>,
    child: Child,
}

impl Python {
    /// In the clear; it takes so many calls at once on a connection, 0 being no limit.
    pub(crate) fn start(name: &str, streams: u32) -> Python {
        Python::start_with(name, streams, Vec::new())
    }

    /// Over TLS, as good.example.
    pub(crate) fn start_secure(name: &str, streams: u32) -> Python {
        let files = ["key", "crt"].map(|kind| file(&format!("tls/upstream/good.example.{kind}")));
        Python::start_with(name, streams, files.into())
    }

    /// At an address that is none of 127.0.0.1.
    pub(crate) fn start_at(address: &str, name: &str) -> Python {
        let arguments = [address, name, "0"].map(str::to_owned);
        Python::begin(0, arguments.into())
    }

    fn start_with(name: &str, streams: u32, tls: Vec<String>) -> Python {
        let port = free_port();
        let mut arguments = vec![port.to_string(), name.to_owned(), streams.to_string()];
        arguments.extend(tls);
        Python::begin(port, arguments)
    }

    fn begin(port: u16, arguments: Vec<String>) -> Python {
        let child = spawn(&arguments);
        Python {
            port,
            arguments,
            child,
        }
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
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
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server and waits until it serves.
fn spawn(arguments: &[String]) -> Child {
    let mut command = Command::new(PYTHON);
    command.arg(file("http2/grpc/server.py")).args(arguments);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(
        line.trim(),
        arguments[0],
        "the server does not start; the Debian package python3-grpcio has what it needs (tests/install-packages)"
    );
    child
}

/// A client that runs through a scenario of `client.py`.
pub(crate) fn client(port: u16, scenario: &str, authorities: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    // Whatever it waits for, the test shall end.
    command.args(["300", PYTHON, &file("http2/grpc/client.py")]);
    command
        .arg(format!("127.0.0.1:{port}"))
        .args([scenario, authorities])
        .args(arguments);
    command
}

/// Runs it to its end: what it prints; or what it says is wrong.
pub(crate) fn run_client(
    port: u16,
    scenario: &str,
    authorities: &str,
    arguments: &[&str],
) -> Result<String, String> {
    let output = client(port, scenario, authorities, arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(printed)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
