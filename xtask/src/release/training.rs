//! The training traffic for profile-guided optimization: requests for a website and for an API
//! behind the proxy, on both engines.
//!
//! It differs from that of the benches: pages, style sheets, scripts and images of usual sizes,
//! responses of an application, uploads, and responses with status 404 and 304. Requests have the
//! header fields of browsers, use HTTP/1 and HTTP/2, with and without TLS, over persistent and new
//! connections, and are logged in the format of Debian's nginx. There are also gRPC calls.

use std::fmt::Write as _;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a server to start and to exit.
const PATIENCE: Duration = Duration::from_secs(30);

/// The files of the site, with their sizes in bytes.
const FILES: [(&str, usize); 8] = [
    ("index.html", 6 * 1024),
    ("article.html", 34 * 1024),
    ("style.css", 18 * 1024),
    ("script.js", 90 * 1024),
    ("icon.png", 900),
    ("picture.png", 45 * 1024),
    ("video.bin", 1024 * 1024),
    ("404.html", 700),
];

/// The header fields of browsers; each request gets a random one of several values.
const FIELDS: [(&str, &str); 5] = [
    (
        "agents",
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\n\
         User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:145.0) Gecko/20100101 Firefox/145.0\n\
         User-Agent: Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148\n",
    ),
    (
        "accepts",
        "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\nAccept: image/avif,image/webp,image/*,*/*;q=0.8\n\
         Accept: */*\nAccept: application/json\n",
    ),
    (
        "codings",
        "Accept-Encoding: gzip, deflate, br, zstd\nAccept-Encoding: gzip, deflate\nAccept-Encoding: identity\n",
    ),
    (
        "languages",
        "Accept-Language: en-US,en;q=0.5\nAccept-Language: de,en;q=0.7\nAccept-Language: fr-CH, fr;q=0.9, en;q=0.8\n",
    ),
    (
        "cookies",
        "Cookie: session=5d2c7e1f; theme=dark\nCookie: consent=1; _id=GA1.2.771.1764\nCookie: a=1\n",
    ),
];

/// The ports of the servers.
struct Ports {
    clear: u16,
    secure: u16,
    application: u16,
}

/// Sends the traffic to `binary`, which writes its profile when it exits. Files are created in
/// `folder`. The larger loads have `requests` requests each.
///
/// # Errors
/// A message for the terminal.
pub fn run(root: &Path, binary: &Path, folder: &Path, requests: u32) -> Result<(), String> {
    let site = folder.join("site");
    let calls = site.join("calls.Site");
    for folder in [&calls, &folder.join("logs"), &folder.join("fields")] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    for (name, length) in FILES {
        write(&site.join(name), &content(name, length))?;
    }
    for (name, lines) in FIELDS {
        write(&folder.join("fields").join(name), lines.as_bytes())?;
    }
    write(&folder.join("upload"), &content("upload.html", 20 * 1024))?;
    let message = content("message", 800);
    write(&folder.join("message"), &message)?;
    let framed = [&[0, 0, 0, 3, 32][..], &message].concat();
    write(&calls.join("Find"), &framed)?;
    for engine in ["epoll", "io_uring"] {
        let ports = Ports {
            clear: free_port()?,
            secure: free_port()?,
            application: free_port()?,
        };
        let application =
            Server::start(binary, folder, "application", &application(engine, &ports))?;
        let server = Server::start(binary, folder, "server", &server(root, engine, &ports))?;
        let begun = application.is_ready(ports.application) && server.is_ready(ports.clear);
        if !begun && engine == "io_uring" {
            eprintln!(
                "release: io_uring does not work here: its part of the program stays as it is"
            );
            continue;
        }
        if !begun {
            return Err(format!(
                "no server has begun, see {}/logs",
                folder.display()
            ));
        }
        for load in loads(&ports, requests) {
            load.send(binary, folder, engine)?;
        }
        server.end()?;
        application.end()?;
    }
    Ok(())
}

/// Text that compresses like typical pages, or incompressible bytes.
fn content(name: &str, length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "harbour ",
        "tide ",
        "<p>",
        "</p>\n",
        "the ",
        "of ",
        "ship",
        "s ",
        "gate ",
        "water ",
        "in ",
        "and ",
        "class=\"wide\" ",
        "lantern ",
        "on ",
        "rope ",
    ];
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let is_text = name.ends_with("html") || name.ends_with("css") || name.ends_with("js");
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        if is_text {
            bytes.extend_from_slice(WORDS[random() as usize % WORDS.len()].as_bytes())
        } else {
            bytes.extend_from_slice(&random().to_le_bytes())
        }
    }
    bytes.truncate(length);
    bytes
}

/// The main context of both configurations. Each server is a single process, which writes its
/// profile when it exits.
fn main_context(engine: &str, name: &str) -> String {
    format!(
        "daemon off; master_process off; pid logs/{name}.pid; error_log logs/{name}-error.log;\n\
         events {{ use {engine}; worker_connections 2048; }}\n"
    )
}

/// The configuration of the application behind the proxy.
fn application(engine: &str, ports: &Ports) -> String {
    let mut text = main_context(engine, "application");
    let (list, port) = (
        "{\"name\":\"harbour\",\"depth\":12},".repeat(90),
        ports.application,
    );
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "http {{
    access_log off;
    default_type application/json;
    http2 on;
    server {{
        listen 127.0.0.1:{port};
        root site;
        add_header Cache-Control \"no-cache, private\";
        add_header X-Request-Id $request_id;
        location = /api/item {{ return 200 '{{\"name\":\"harbour\",\"depth\":12}}'; }}
        location = /api/list {{ add_header Set-Cookie \"seen=1; Path=/; HttpOnly\"; return 200 '{list}'; }}
        location = /api/moved {{ return 302 /api/item; }}
        location = /api/gone {{ return 404 '{{}}'; }}
        location = /api/upload {{ return 204; }}
        location /api/page {{ gzip on; gzip_types *; gzip_proxied any; rewrite ^ /article.html break; }}
        location /api/file {{ rewrite ^ /script.js break; }}
        location /calls. {{
            default_type application/grpc;
            error_page 405 =200 $uri;
            add_trailer grpc-status 0;
        }}
    }}
}}
"
    );
    text
}

/// The configuration of the server that the clients use.
fn server(root: &Path, engine: &str, ports: &Ports) -> String {
    let mut text = main_context(engine, "server");
    let certificates = root.join("tests/tls");
    let (certificates, clear, secure) = (certificates.display(), ports.clear, ports.secure);
    let application = ports.application;
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "http {{
    types {{ text/html html; text/css css; application/javascript js; image/png png; }}
    default_type application/octet-stream;
    access_log logs/access.log;
    sendfile on; tcp_nopush on; tcp_nodelay on;
    gzip on; gzip_types text/css application/javascript;
    keepalive_requests 100000;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    upstream application {{ server 127.0.0.1:{application}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{clear};
        listen 127.0.0.1:{secure} ssl;
        http2 on;
        ssl_certificate {certificates}/ecdsa.crt;
        ssl_certificate_key {certificates}/ecdsa.key;
        ssl_session_cache shared:sessions:1m;
        root site;
        index index.html;
        error_page 404 /404.html;
        client_max_body_size 10m;
        if_modified_since before;
        location / {{ try_files $uri $uri/ =404; }}
        location ~ \\.(css|js|png)$ {{ expires 1h; add_header Vary Accept-Encoding; }}
        location = /old {{ return 301 /index.html; }}
        location /api/ {{
            proxy_pass http://application;
            proxy_set_header Host $host;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Connection $connection_upgrade;
        }}
        location /kept/ {{ proxy_pass http://application/api/; proxy_set_header Host $host; }}
        location /shared/ {{ proxy_pass http://application/api/; proxy_http_version 2; proxy_set_header Host $host; }}
        location /calls. {{ grpc_pass application; }}
        location /apart/ {{ proxy_pass http://127.0.0.1:{application}/api/; proxy_buffering off; }}
    }}
}}
"
    );
    text
}

/// One run of `tidegate bench`.
struct Load {
    urls: Vec<String>,
    connections: u32,
    requests: u32,
    options: Vec<&'static str>,
}

/// The loads: what the clients request, and with which options.
fn loads(ports: &Ports, requests: u32) -> Vec<Load> {
    let clear = format!("http://127.0.0.1:{}", ports.clear);
    let secure = format!("https://127.0.0.1:{}", ports.secure);
    let files = [
        "/",
        "/article.html",
        "/style.css",
        "/script.js",
        "/icon.png",
        "/picture.png",
        "/old",
    ];
    let answers = [
        "/api/item",
        "/api/list",
        "/api/moved",
        "/api/page",
        "/kept/item",
        "/kept/list",
        "/kept/page",
        "/kept/file",
        "/apart/list",
        "/apart/file",
    ];
    let urls =
        |base: &str, paths: &[&str]| paths.iter().map(|path| format!("{base}{path}")).collect();
    let load = |urls, connections, requests, options: &[&'static str]| Load {
        urls,
        connections,
        requests,
        options: options.to_vec(),
    };
    let missing = ["/missing", "/api/gone"];
    const UNCHANGED: &str = "If-Modified-Since: Sat, 01 Jan 2050 00:00:00 GMT";
    let few = requests / 4;
    vec![
        load(urls(&clear, &files), 40, requests, &[]),
        load(urls(&clear, &answers), 40, requests, &[]),
        load(
            urls(&clear, &["/api/item", "/kept/list"]),
            200,
            requests,
            &[],
        ),
        load(
            urls(&clear, &["/", "/icon.png", "/kept/item"]),
            10,
            few,
            &["--new-connections"],
        ),
        load(
            urls(&clear, &["/style.css", "/picture.png"]),
            10,
            few,
            &["-H", UNCHANGED],
        ),
        load(
            urls(&clear, &["/script.js", "/video.bin"]),
            10,
            few,
            &["-H", "Range: bytes=1000-9999"],
        ),
        load(urls(&clear, &["/video.bin"]), 4, few / 4, &[]),
        load(
            urls(&clear, &["/api/upload", "/kept/upload"]),
            10,
            few,
            &["--body", "@upload"],
        ),
        load(
            urls(&clear, &["/shared/item", "/shared/list", "/shared/page"]),
            40,
            requests,
            &[],
        ),
        load(
            urls(&clear, &["/calls.Site/Find"]),
            10,
            requests,
            &["--grpc", "--streams", "20", "--body", "@message"],
        ),
        load(urls(&clear, &missing), 10, few, &["--expect-status", "404"]),
        load(
            urls(&clear, &files),
            10,
            few,
            &["--http2", "--streams", "10"],
        ),
        load(
            urls(&secure, &files),
            20,
            few,
            &["--insecure", "--http2", "--streams", "10"],
        ),
        load(
            urls(&secure, &answers),
            20,
            few,
            &["--insecure", "--http2", "--streams", "4"],
        ),
        load(urls(&secure, &files), 20, few, &["--insecure"]),
        load(urls(&secure, &answers), 20, few, &["--insecure"]),
        load(
            urls(&secure, &["/", "/kept/item"]),
            10,
            few / 4,
            &["--insecure", "--new-connections"],
        ),
        load(
            urls(&secure, &["/"]),
            10,
            few / 4,
            &["--insecure", "--new-connections", "--resume"],
        ),
    ]
}

impl Load {
    fn send(&self, binary: &Path, folder: &Path, engine: &str) -> Result<(), String> {
        let mut command = Command::new(binary);
        command
            .args(["bench", "--engine", engine, "--timeout", "30s"])
            .args([
                "-c",
                &self.connections.to_string(),
                "-n",
                &self.requests.to_string(),
            ])
            .args(&self.options)
            .args(
                FIELDS
                    .iter()
                    .flat_map(|(name, _)| ["--header-file".to_string(), format!("fields/{name}")]),
            )
            .args(&self.urls)
            .current_dir(folder)
            .stdout(Stdio::null());
        let status = command.status().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!(
                "a load has failed: {:?} {:?}",
                self.options, self.urls
            ))
        }
    }
}

/// A server of the instrumented build.
struct Server {
    process: Child,
}

impl Server {
    fn start(
        binary: &Path,
        folder: &Path,
        name: &str,
        configuration: &str,
    ) -> Result<Server, String> {
        let path = folder.join(format!("{name}.conf"));
        write(&path, configuration.as_bytes())?;
        let mut prefix = folder.as_os_str().to_owned();
        prefix.push("/");
        let process = Command::new(binary)
            .arg("-p")
            .arg(prefix)
            .arg("-c")
            .arg(&path)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        Ok(Server { process })
    }

    /// Waits until the server listens on this port; false if it does not within the time limit.
    fn is_ready(&self, port: u16) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    /// Shuts the server down gracefully, so that it writes its profile.
    fn end(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        let pid = pid.ok_or("a process without a number")?;
        kill_process(pid, Signal::QUIT).map_err(|error| error.to_string())?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Ok(Some(_)) = self.process.try_wait() {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err("a server does not end".to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address
        .map(|address| address.port())
        .map_err(|error| error.to_string())
}

fn write(path: &PathBuf, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}
