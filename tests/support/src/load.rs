//! For tests of `tidegate bench`: servers that are made in the test, and the program that is run against them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that any run here may take, however busy the machine.
pub const RUN_MAX: Duration = Duration::from_secs(120);

/// A good answer with a body of three bytes.
pub const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";

/// A server that does `serve` with every connection, on a thread of its own; it ends with the test.
pub fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    format!("http://{address}/")
}

/// Answers every request with `answer`, and leaves the connection open.
pub fn answering(answer: &'static [u8]) -> String {
    server(move |mut stream| while request(&mut stream) && stream.write_all(answer).is_ok() {})
}

/// Reads something; false at the end.
pub fn request(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0; 4096]), Ok(1..))
}

/// Runs `tidegate bench` to its end, which must come in time.
pub fn bench(arguments: &[&str]) -> Output {
    let begin = Instant::now();
    let output = Command::new(crate::built())
        .arg("bench")
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        begin.elapsed() < RUN_MAX,
        "{arguments:?} took {:?}",
        begin.elapsed()
    );
    output
}

/// The JSON report of a run with these arguments.
pub fn report(arguments: &[&str]) -> String {
    let output = bench(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.stdout.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The number behind a name of the report.
pub fn number(report: &str, name: &str) -> f64 {
    let (_, rest) = report
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("no {name} in {report}"));
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}
