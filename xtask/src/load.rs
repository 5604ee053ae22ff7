//! A client that keeps a rate: for the second regime of benches/compare, which `wrk` cannot do.
//!
//! Every connection is a thread that sends at fixed points in time, spread evenly, and waits for the
//! whole answer. Times count from the moment a request was due, not from when it was sent, so a server
//! that stalls is not flattered. Made for tens of thousands of requests a second at most; it measures
//! nothing about a server that is saturated.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: xtask load --address HOST:PORT --path PATH --rate N [--connections N] [--seconds N] [--header LINE]…";

/// Longest answer head that is expected.
const HEAD_MAX: usize = 64 * 1024;

struct Options {
    address: String,
    request: Vec<u8>,
    rate: f64,
    connections: usize,
    seconds: f64,
}

/// Runs the command line `load …`; prints one line of JSON.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let options = parse(arguments)?;
    let interval = Duration::from_secs_f64(options.connections as f64 / options.rate);
    let begin = Instant::now() + Duration::from_millis(50);
    let end = begin + Duration::from_secs_f64(options.seconds);
    let results: Vec<Result<Vec<u32>, String>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.connections)
            .map(|index| {
                let first = begin + interval.mul_f64(index as f64 / options.connections as f64);
                let options = &options;
                scope.spawn(move || client(options, first, interval, end))
            })
            .collect();
        clients
            .into_iter()
            .map(|client| {
                client
                    .join()
                    .unwrap_or_else(|_| Err("a client panicked".to_string()))
            })
            .collect()
    });
    let mut micros = Vec::new();
    let mut failed = 0;
    for result in results {
        match result {
            Ok(times) => micros.extend(times),
            Err(message) => {
                eprintln!("{message}");
                failed += 1;
            }
        }
    }
    micros.sort_unstable();
    let quantile = |q: f64| {
        micros
            .get(((micros.len() as f64 - 1.0) * q) as usize)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{{\"requests\": {}, \"seconds\": {:.3}, \"failed_connections\": {failed}, \"p50_us\": {}, \"p99_us\": {}, \"max_us\": {}}}",
        micros.len(),
        begin.elapsed().as_secs_f64(),
        quantile(0.5),
        quantile(0.99),
        quantile(1.0)
    );
    if failed > 0 {
        Err(format!("{failed} connections failed"))
    } else {
        Ok(())
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let (mut address, mut path, mut rate, mut connections, mut seconds, mut headers) =
        (String::new(), "/".to_string(), 0.0, 64, 3.0, String::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest.next().ok_or(USAGE)?;
        match argument.as_str() {
            "--address" => address = value.clone(),
            "--path" => path = value.clone(),
            "--rate" => rate = value.parse().map_err(|_| USAGE)?,
            "--connections" => connections = value.parse().map_err(|_| USAGE)?,
            "--seconds" => seconds = value.parse().map_err(|_| USAGE)?,
            "--header" => headers.push_str(&format!("{value}\r\n")),
            _ => return Err(USAGE.to_string()),
        }
    }
    if address.is_empty() || rate <= 0.0 || connections == 0 {
        return Err(USAGE.to_string());
    }
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n").into_bytes();
    Ok(Options {
        address,
        request,
        rate,
        connections,
        seconds,
    })
}

/// One connection's work: microseconds from due to done of every request.
fn client(
    options: &Options,
    first: Instant,
    interval: Duration,
    end: Instant,
) -> Result<Vec<u32>, String> {
    let mut stream =
        TcpStream::connect(&options.address).map_err(|error| format!("connect: {error}"))?;
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let mut buffer = vec![0; HEAD_MAX];
    let mut times = Vec::new();
    let mut due = first;
    while due < end {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        stream
            .write_all(&options.request)
            .map_err(|error| format!("send: {error}"))?;
        answer(&mut stream, &mut buffer)?;
        times.push(u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX));
        due += interval;
    }
    Ok(times)
}

/// Reads one answer with a Content-Length (or none, for statuses without a body).
fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), String> {
    let mut filled = 0;
    let (head, length) = loop {
        let count = stream
            .read(&mut buffer[filled..])
            .map_err(|error| format!("receive: {error}"))?;
        if count == 0 {
            return Err("the server closed the connection".to_string());
        }
        filled += count;
        if let Some(end) = buffer[..filled]
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
        {
            break (end + 4, content_length(&buffer[..end]));
        }
    };
    let mut missing = (head + length).saturating_sub(filled);
    while missing > 0 {
        let room = missing.min(buffer.len());
        let count = stream
            .read(&mut buffer[..room])
            .map_err(|error| format!("receive: {error}"))?;
        if count == 0 {
            return Err("the body is short".to_string());
        }
        missing -= count;
    }
    Ok(())
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0)
}
