//! The site that simulated clients ask, and what it answers to the byte.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use crate::random::Random;

/// Where the site is reached.
pub(crate) const ADDRESS: &str = "10.0.0.1:80";

/// Where the server behind it is reached.
pub(crate) const BEHIND: &str = "10.0.0.9:8080";

/// Where a server behind it is reached that answers with what it is sent.
pub(crate) const ECHO: &str = "10.0.0.9:8081";

/// Stands in expected responses where the time of sending will be.
pub(crate) const DATE: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

/// How many streams a client may have at once.
pub(crate) const STREAMS_MAX: usize = 16;

/// Modification time of every file: 0x65920080 seconds, in `ETag` and `Last-Modified`.
const MODIFIED: Duration = Duration::from_secs(0x6592_0080);
const LAST_MODIFIED: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

const SMALL: &str = "a small file\n";
const LARGE_SIZE: usize = 150_000;

/// A temporary folder with the site's files, removed in the end.
pub(crate) struct Site {
    pub(crate) folder: PathBuf,
    /// Lines that stand in the block `http` beside those that are there always.
    pub(crate) lines: RefCell<String>,
}

impl Site {
    pub(crate) fn new() -> Site {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-simulation-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        let site = Site {
            folder,
            lines: RefCell::default(),
        };
        site.write("small.txt", SMALL.as_bytes());
        site.write("large.txt", &large());
        site.write("page.html", b"<p>page</p>\n");
        site.write("slow/file.txt", &[b'x'; 9000]);
        site
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.folder.join("www").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + MODIFIED).unwrap();
    }

    pub(crate) fn access_log(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// The last lines of the error log.
    pub(crate) fn last_errors(&self) -> String {
        logs::flush_all();
        let text = fs::read_to_string(self.folder.join("error.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// The configuration; `/which` answers `which`, so that generations can be told apart.
    pub(crate) fn configuration(&self, which: &str) -> String {
        let folder = Path::display(&self.folder);
        let lines = self.lines.borrow();
        format!(
            r#"
            error_log {folder}/error.log info;
            events {{ }}
            http {{
                log_format short '$status $request_method $request_uri';
                access_log {folder}/access.log short;
                server_tokens off;
                types {{ text/plain txt; text/html html; }}
                client_body_temp_path {folder};
                proxy_temp_path {folder};
                limit_req_zone $server_name zone=limited:1m rate=1r/s;
                server {{
                    listen {ADDRESS};
                    http2 on;
                    http2_max_concurrent_streams {STREAMS_MAX};
                    root {folder}/www;
                    location = /which {{ return 200 {which}; }}
                    location = /upload {{ return 200 taken; }}
                    location /old/ {{ return 301 /new/; }}
                    location /slow/ {{ limit_rate 1000; }}
                    location /chunks/ {{ alias {folder}/www/; sendfile on; sendfile_max_chunk 1k; }}
                    location /whole/ {{ alias {folder}/www/; sendfile on; sendfile_max_chunk 0; }}
                    location = /page.html {{ add_before_body /small.txt; }}
                    location = /guarded {{ auth_request /refuse; }}
                    location = /refuse {{ return 401; }}
                    location = /behind {{ proxy_pass http://{BEHIND}; }}
                    location = /echo {{ proxy_pass http://{ECHO}; }}
                    location = /stream {{ proxy_pass http://{ECHO}; proxy_request_buffering off; proxy_http_version 1.1; }}
                    location = /after {{ return 200 after; post_action /behind; }}
                    location = /mirrored.txt {{ alias {folder}/www/small.txt; mirror /behind; }}
                    location = /limited {{ limit_req zone=limited burst=5; }}
                }}
                {lines}
            }}"#
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn large() -> Vec<u8> {
    (0..LARGE_SIZE).map(|at| b'a' + (at % 23) as u8).collect()
}

/// A request and the answer that it must get.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
    /// Its line in the access log.
    pub(crate) logged: String,
    /// Whether the server ends the connection after it.
    pub(crate) closes: bool,
}

/// A GET with these fields, and the answer's head after `Date`, its last line's end included, and
/// body.
fn get(uri: &str, fields: &str, status: &str, head: &str, body: &[u8]) -> Asked {
    let request = format!("GET {uri} HTTP/1.1\r\nHost: site\r\n{fields}\r\n");
    asked(request.into_bytes(), status, head, body)
}

fn asked(request: Vec<u8>, status: &str, head: &str, body: &[u8]) -> Asked {
    let mut response =
        format!("HTTP/1.1 {status}\r\nServer: tidegate\r\nDate: {DATE}\r\n{head}\r\n").into_bytes();
    response.extend_from_slice(body);
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split(' ');
    let (method, uri) = (words.next().unwrap(), words.next().unwrap());
    Asked {
        logged: format!("{} {method} {uri}", &status[..3]),
        closes: head.contains("Connection: close"),
        request,
        response,
    }
}

/// The head of a whole text of `length` bytes.
fn text(length: usize, kind: &str) -> String {
    format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nConnection: keep-alive\r\n")
}

fn file_head(content: &str, size: usize, extra: &str) -> String {
    format!(
        "{content}Last-Modified: {LAST_MODIFIED}\r\nConnection: keep-alive\r\nETag: \"65920080-{size:x}\"\r\n{extra}"
    )
}

/// A file, whole.
fn file(uri: &str, fields: &str, content: &[u8]) -> Asked {
    let size = content.len();
    let kind = format!("Content-Type: text/plain\r\nContent-Length: {size}\r\n");
    let head = file_head(&kind, size, "Accept-Ranges: bytes\r\n");
    get(uri, fields, "200 OK", &head, content)
}

/// A page of the server's own for a status.
fn status_page(uri: &str, status: &str, head: &str) -> Asked {
    let body = format!(
        "<html>\r\n<head><title>{status}</title></head>\r\n<body>\r\n<center><h1>{status}</h1></center>\r\n\
         <hr><center>tidegate</center>\r\n</body>\r\n</html>\r\n"
    );
    let mut fields = format!(
        "Content-Type: text/html\r\nContent-Length: {}\r\n",
        body.len()
    );
    fields.push_str(head);
    // nginx words this one in its own way on the page.
    let status = status.replace("Authorization Required", "Unauthorized");
    get(uri, "", &status, &fields, body.as_bytes())
}

/// What `/which` answers.
pub(crate) fn which(answer: &str) -> Asked {
    let head = text(answer.len(), "text/plain");
    get("/which", "", "200 OK", &head, answer.as_bytes())
}

/// What the server behind the site is asked, through it.
pub(crate) fn behind() -> Asked {
    get("/behind", "", "200 OK", &text(6, "text/plain"), b"behind")
}

/// What is answered before the server behind the site is told of it.
pub(crate) fn after() -> Asked {
    get("/after", "", "200 OK", &text(5, "text/plain"), b"after")
}

/// A file of whose request the server behind the site gets a copy.
pub(crate) fn mirrored() -> Asked {
    file("/mirrored.txt", "", SMALL.as_bytes())
}

/// A file that is sent at 1,000 bytes a second.
pub(crate) fn slow() -> Asked {
    file("/slow/file.txt", "", &[b'x'; 9000])
}

/// The large file, at this URI.
pub(crate) fn large_at(uri: &str) -> Asked {
    file(uri, "", &large())
}

/// A small file.
pub(crate) fn small() -> Asked {
    file("/small.txt", "", SMALL.as_bytes())
}

/// A file that the client has.
pub(crate) fn conditional(fields: &str) -> Asked {
    let head = file_head("", SMALL.len(), "");
    get("/small.txt", fields, "304 Not Modified", &head, b"")
}

fn range() -> Asked {
    let content = "Content-Type: text/plain\r\nContent-Length: 5\r\n";
    let head = file_head(content, SMALL.len(), "Content-Range: bytes 2-6/13\r\n");
    let fields = "Range: bytes=2-6\r\n";
    get("/small.txt", fields, "206 Partial Content", &head, b"small")
}

fn upload(random: &mut Random) -> Asked {
    let mut request = b"POST /upload HTTP/1.1\r\nHost: site\r\n".to_vec();
    let body: Vec<u8> = vec![b'u'; random.below(40_000)];
    if random.chance(500) {
        request.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for part in body.chunks(1 + random.below(10_000)) {
            request.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
    } else {
        request.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(&body);
    }
    asked(request, "200 OK", &text(5, "text/plain"), b"taken")
}

/// An upload that comes back, through a file or as it comes.
pub(crate) fn echo(size: usize, random: &mut Random) -> Asked {
    let uri = ["/echo", "/stream"][random.below(2)];
    let first = random.below(26);
    let body: Vec<u8> = (first..first + size)
        .map(|at| b'A' + (at % 26) as u8)
        .collect();
    let head = format!("POST {uri} HTTP/1.1\r\nHost: site\r\nContent-Length: {size}\r\n\r\n");
    let request = [head.as_bytes(), &body].concat();
    asked(request, "200 OK", &text(size, "text/plain"), &body)
}

/// A request that leaves the connection as it is.
pub(crate) fn any(random: &mut Random) -> Asked {
    let small = SMALL.as_bytes();
    match random.below(12) {
        0 | 1 => file("/small.txt", "", small),
        2 => file("/large.txt", "", &large()),
        3 => {
            let mut head = file("/small.txt", "", b"");
            head = Asked {
                request: b"HEAD /small.txt HTTP/1.1\r\nHost: site\r\n\r\n".to_vec(),
                logged: "200 HEAD /small.txt".into(),
                response: file("/small.txt", "", small).response,
                ..head
            };
            head.response.truncate(head.response.len() - small.len());
            head
        }
        4 => which("one"),
        5 => status_page("/none", "404 Not Found", "Connection: keep-alive\r\n"),
        6 => status_page(
            "/old/",
            "301 Moved Permanently",
            "Location: http://site/new/\r\nConnection: keep-alive\r\n",
        ),
        7 => upload(random),
        8 => {
            if random.chance(500) {
                conditional("If-None-Match: \"65920080-d\"\r\n")
            } else {
                conditional(&format!("If-Modified-Since: {LAST_MODIFIED}\r\n"))
            }
        }
        9 => range(),
        10 => get(
            "/page.html",
            "",
            "200 OK",
            &format!(
                "Content-Type: text/html\r\nLast-Modified: {LAST_MODIFIED}\r\n\
                 Transfer-Encoding: chunked\r\nConnection: keep-alive\r\nETag: W/\"65920080-c\"\r\n"
            ),
            b"d\r\na small file\n\r\nc\r\n<p>page</p>\n\r\n0\r\n\r\n",
        ),
        _ if random.chance(500) => behind(),
        _ => status_page(
            "/guarded",
            "401 Authorization Required",
            "Connection: keep-alive\r\n",
        ),
    }
}

/// A request after which the server ends the connection.
pub(crate) fn last(random: &mut Random) -> Asked {
    let close = "Content-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n";
    match random.below(3) {
        0 => get("/which", "Connection: close\r\n", "200 OK", close, b"one"),
        1 => asked(
            b"GET /which HTTP/1.0\r\n\r\n".to_vec(),
            "200 OK",
            close,
            b"one",
        ),
        _ => {
            let mut bad = status_page("/", "400 Bad Request", "Connection: close\r\n");
            // Without Host, which is known only at the end: nothing is on its way that could reset
            // the answer.
            bad.request = b"GET / HTTP/1.1\r\n\r\n".to_vec();
            bad
        }
    }
}
