//! Requests to the live API: HTTP/1.0, one connection per request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::Value;

use super::endpoint::{ApiLocation, Target};

/// Time limit for connecting, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of a response, in bytes: enough for some hundred thousand servers.
const ANSWER_MAX: u64 = 64 << 20;

/// The requested version of the API.
const VERSION: u32 = 9;

/// The API's value for a path; null if the server has nothing under that path.
///
/// # Errors
/// A sentence that says why there is no response.
pub(super) fn get(endpoint: &ApiLocation, path: &str) -> Result<Value, String> {
    let place = match &endpoint.target {
        Target::Tcp(address) => address.to_string(),
        Target::Unix(path) => format!("unix:{}", path.display()),
    };
    let target = format!("{}/{VERSION}/{path}", endpoint.path);
    let mut request = format!("GET {target} HTTP/1.0\r\nHost: {}\r\n", endpoint.host);
    if let Some(credentials) = &endpoint.credentials {
        let encoded = BASE64.encode(credentials);
        request.push_str(&format!("Authorization: Basic {encoded}\r\n"));
    }
    request.push_str("\r\n");
    let answer = match &endpoint.target {
        Target::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT);
            stream.and_then(|stream| {
                stream.set_read_timeout(Some(TIMEOUT))?;
                exchange(stream, &request)
            })
        }
        Target::Unix(path) => UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            exchange(stream, &request)
        }),
    };
    let answer = answer.map_err(|error| format!("{place}: {error}"))?;
    let wrong = |why: &str| format!("{place}{target}: {why}");
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| wrong("the answer is not HTTP"))?;
    let status_line = head.lines().next().unwrap_or_default();
    match status_line.split(' ').nth(1) {
        Some("200") => {}
        // A path is missing if the configuration has no such blocks. If `nginx` is missing, there
        // is no API.
        Some("404") if path != "nginx" => return Ok(Value::Null),
        Some("404") => return Err(wrong("there is no API (404)")),
        Some("401" | "403") => return Err(wrong("the server refuses to show it")),
        _ => return Err(wrong(&format!("the server says \"{status_line}\""))),
    }
    serde_json::from_str(body).map_err(|error| wrong(&format!("the answer is no JSON: {error}")))
}

/// Sends a request, and reads the response up to the end of the connection.
fn exchange(mut stream: impl Read + Write, request: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}
