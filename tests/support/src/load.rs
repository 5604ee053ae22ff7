//! For tests of `tidegate bench`: servers that are made in the test, and the program that is run
//! against them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, PREFACE};

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

/// A server of HTTP/2 in the clear: what `serve` makes for each connection is told of each frame,
/// adds to what is sent, and says whether it goes on. Behind the last answer it waits for the
/// client to close.
pub fn http2_server<F>(serve: impl Fn() -> F + Clone + Send + 'static) -> String
where
    F: FnMut(FrameHead, Vec<u8>, &mut Vec<u8>) -> bool,
{
    server(move |mut stream| {
        let mut serve = serve();
        let mut out = Vec::new();
        frame::put_settings(&mut out, &[]);
        if stream.write_all(&out).is_err() {
            return;
        }
        let mut preface = [0; PREFACE.len()];
        if stream.read_exact(&mut preface).is_err() || preface != *PREFACE {
            return;
        }
        while let Some((head, payload)) = next_frame(&mut stream) {
            out.clear();
            let goes_on = serve(head, payload, &mut out);
            if stream.write_all(&out).is_err() {
                return;
            }
            if !goes_on {
                let _ = stream.shutdown(Shutdown::Write);
                while let Ok(1..) = stream.read(&mut [0; 4096]) {}
                return;
            }
        }
    })
}

fn next_frame(stream: &mut TcpStream) -> Option<(FrameHead, Vec<u8>)> {
    let mut head = [0; HEAD_LENGTH];
    stream.read_exact(&mut head).ok()?;
    let head = FrameHead::read(&head);
    let mut payload = vec![0; head.length as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head, payload))
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
