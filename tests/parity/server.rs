//! One server under test: its folder, its ports, its configuration, its process.
//!
//! nginx and Tidegate get the same configuration. The only lines that are not in the case file are
//! those that any server needs to run beside others (pid, logs, temporary folders), and for nginx
//! the temporary folders of modules that Tidegate does not have yet.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::backend;
use crate::bypass;
use crate::case::{CaseFile, EntryKind, Step};
use crate::client;
use crate::nameserver;

/// Modification time of every fixture: Thu, 04 Mar 2021 05:06:07 GMT.
pub(crate) const FIXTURE_TIME: u64 = 1_614_834_367;
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// How the message begins about a server whose log holds what no server may write.
pub(crate) const ALARMS: &str = "the server's log holds:";

/// What a case is sent by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A program that takes nginx's command line.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) is_nginx: bool,
    /// What it calls itself: `1.31.0` of nginx, Tidegate's own version of Tidegate.
    pub(crate) version: String,
    /// A line for the events block: the engine to use.
    pub(crate) engine: Option<String>,
}

impl Program {
    /// Asks the program for its version.
    pub(crate) fn new(path: PathBuf) -> Result<Program, String> {
        let output = Command::new(&path)
            .arg("-v")
            .output()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        let version_of = |name: &str| {
            let rest = text.split(&format!("{name}/")).nth(1)?;
            Some(
                rest.split(|c: char| !c.is_ascii_digit() && c != '.')
                    .next()?
                    .to_string(),
            )
        };
        let own = version_of("tidegate");
        let is_nginx = own.is_none();
        let version = own
            .or_else(|| version_of("nginx"))
            .ok_or(format!("{} -v says no version: {text}", path.display()))?;
        Ok(Program {
            path,
            is_nginx,
            version,
            engine: None,
        })
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) prefix: PathBuf,
    /// Port numbers by placeholder.
    pub(crate) ports: BTreeMap<&'static str, u16>,
    pub(crate) version: String,
    /// Whether the error log takes lines of the level `info`.
    pub(crate) logs_notes: bool,
    /// Clients reach it past the kernel.
    passes_kernel_by: bool,
    /// Whether cases are of its `stream` block.
    pub(crate) is_of_stream: bool,
    child: Child,
    /// How far each log has been read.
    read: BTreeMap<String, usize>,
}

impl Server {
    /// Makes the folder, starts the program and waits until it answers.
    pub(crate) fn start(
        program: &Program,
        file: &CaseFile,
        protocol: Protocol,
        prefix: &Path,
    ) -> Result<Server, String> {
        let _ = fs::remove_dir_all(prefix);
        lay_out(file, prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
        let mut ports: BTreeMap<&'static str, u16> = ["PORT", "PORT2", "PORT3", "SENTINEL", "DEAD"]
            .into_iter()
            .map(|name| (name, free_port().0))
            .collect();
        let (backend_port, listener) = free_port();
        ports.insert("BACKEND", backend_port);
        let scripts = file.backend.iter().map(|(path, steps)| {
            (
                path.clone(),
                steps
                    .iter()
                    .map(|step| filled(step, prefix, &ports))
                    .collect(),
            )
        });
        backend::start(listener, scripts.collect());
        if !file.stream.is_empty() {
            ports.extend(STREAM_PORTS.map(|name| (name, free_port().0)));
        }
        if file.uses("@DNS@") {
            let port = nameserver::start().map_err(|error| format!("a name server: {error}"))?;
            ports.insert("DNS", port);
        }
        if file.uses("@FULL@") {
            let (port, listener) = free_port();
            ports.insert("FULL", port);
            backend::fill_queue(listener).map_err(|error| format!("filling a queue: {error}"))?;
        }

        let conf = prefix.join("nginx.conf");
        fs::write(
            &conf,
            fill(&configuration(program, file, protocol), prefix, &ports),
        )
        .map_err(|error| format!("{}: {error}", conf.display()))?;
        let output = fs::File::create(prefix.join("output")).map_err(|error| error.to_string())?;
        let child = Command::new(&program.path)
            .arg("-p")
            .arg(format!("{}/", prefix.display()))
            .arg("-c")
            .arg(&conf)
            .args(["-e", "logs/error.log"])
            .env("TZ", "CET-1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.path.display()))?;
        let mut server = Server {
            prefix: prefix.to_path_buf(),
            ports,
            version: program.version.clone(),
            logs_notes: logs_notes(file),
            passes_kernel_by: program.engine.as_deref() == Some(bypass::ENGINE),
            is_of_stream: !file.stream.is_empty(),
            child,
            read: BTreeMap::new(),
        };
        server.wait_until_up()?;
        // What the master says about the start comes before or after the first answer.
        std::thread::sleep(Duration::from_millis(50));
        server.new_log_lines();
        Ok(server)
    }

    /// Fills in the placeholders.
    pub(crate) fn fill(&self, text: &str) -> String {
        fill(text, &self.prefix, &self.ports)
    }

    pub(crate) fn address(&self, on: Option<&str>) -> String {
        let address = self.fill(on.unwrap_or("127.0.0.1:@PORT@"));
        if address.contains(':') {
            address
        } else {
            format!("127.0.0.1:{address}")
        }
    }

    /// A request to a server of its own that logs nothing. The worker has one loop: once this is
    /// answered, it has done with what came before.
    pub(crate) fn pass_the_loop(&self) -> Result<(), String> {
        match client::status_of(&self.address(Some("@SENTINEL@")), "/")? {
            204 => Ok(()),
            status => Err(format!(
                "the server does not answer any more (status {status}): {}",
                self.output()
            )),
        }
    }

    /// The number of the youngest connection. The next one gets the number after it.
    pub(crate) fn connection_number(&self) -> Result<u64, String> {
        let seen = client::ask(&self.address(Some("@SENTINEL@")), "/connection")?;
        let body = seen.responses.last().map(|last| last.body.as_slice());
        std::str::from_utf8(body.unwrap_or_default())
            .ok()
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("the server gives no number: {}", self.output()))
    }

    /// What has been appended to each file of the log folder since the last call.
    pub(crate) fn new_log_lines(&mut self) -> Vec<(String, String)> {
        let mut logs: Vec<String> = fs::read_dir(self.prefix.join("logs"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".log"))
            .collect();
        logs.sort();
        let mut lines = Vec::new();
        for name in logs {
            let bytes = fs::read(self.prefix.join("logs").join(&name)).unwrap_or_default();
            let from = self.read.entry(name.clone()).or_default();
            // A line that is being written is left for the next time.
            let whole = bytes
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1)
                .max(*from);
            for line in bytes
                .get(*from..whole)
                .unwrap_or_default()
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                lines.push((name.clone(), printable(line)));
            }
            *from = whole;
        }
        lines
    }

    /// Ends the server. Returns log lines that no server may write: alerts and panics.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.said();
        // nginx itself raises one alert for each connection that is open when it is told to end at
        // once; cases whose patterns cannot be decided, or that rewrite below an `alias`, mean to
        // raise theirs, and compare them.
        log.lines()
            .filter(|line| {
                let expected = [
                    "open socket #",
                    "pcre2_match() failed",
                    "\"alias\" cannot be used",
                ];
                (line.contains("[alert]") && !expected.iter().any(|text| line.contains(text)))
                    || line.contains("panicked")
            })
            .map(str::to_string)
            .collect()
    }

    /// What the first error log has, and what was printed.
    fn said(&self) -> String {
        let log = fs::read(self.prefix.join("logs/error.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned() + &self.output()
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.prefix.join("output")).unwrap_or_default())
            .into_owned()
    }

    fn wait_until_up(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let passes_by = self.passes_kernel_by;
        let sentinel = self.address(Some("@SENTINEL@"));
        while start.elapsed() < START_TIME_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server ended with {status}: {}", self.output()));
            }
            let is_taken = !passes_by || self.said().contains(bypass::IS_TAKEN);
            if is_taken && let Ok(204) = client::status_of(&sentinel, "/") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        Err(format!("the server does not answer: {}", self.output()))
    }
}

fn fill(text: &str, prefix: &Path, ports: &BTreeMap<&'static str, u16>) -> String {
    let mut text = text
        .replace("@ROOT@", &prefix.join("www").to_string_lossy())
        .replace("@PREFIX@", &prefix.to_string_lossy());
    for (name, port) in ports {
        text = text.replace(&format!("@{name}@"), &port.to_string());
    }
    text
}

/// The placeholders of a file with `[stream]`, each a port.
const STREAM_PORTS: [&str; 60] = [
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S13", "S14", "S15",
    "S16", "S17", "S18", "S19", "S20", "S21", "S22", "S23", "S24", "S25", "S26", "S27", "S28",
    "S29", "S30", "S31", "S32", "S33", "S34", "S35", "S36", "S37", "S38", "S39", "S40", "S41",
    "S42", "S43", "S44", "S45", "S46", "S47", "S48", "S49", "S50", "S51", "S52", "S53", "S54",
    "S55", "S56", "S57", "S58", "S59", "S60",
];

/// A port that nobody uses, below the range from which the kernel takes ports for clients. The
/// numbers all have five digits, so that lengths do not depend on them.
fn free_port() -> (u16, TcpListener) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let _ = NEXT.compare_exchange(
        0,
        20_000 + (std::process::id() % 1000) as u16 * 10,
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if port > 32_000 {
            NEXT.store(20_000, Ordering::Relaxed);
        }
        // Wildcard and loopback both: cases listen on either.
        if TcpListener::bind(("0.0.0.0", port)).is_ok()
            && let Ok(listener) = TcpListener::bind(("127.0.0.1", port))
        {
            return (port, listener);
        }
    }
}

/// The step with the placeholders in what it sends filled in.
pub(crate) fn filled(step: &Step, prefix: &Path, ports: &BTreeMap<&'static str, u16>) -> Step {
    match step {
        Step::Send(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Step::Send(fill(text, prefix, ports).into_bytes()),
            Err(_) => step.clone(),
        },
        Step::Fields(fields) => {
            let filled = |bytes: &[u8]| match std::str::from_utf8(bytes) {
                Ok(text) => fill(text, prefix, ports).into_bytes(),
                Err(_) => bytes.to_vec(),
            };
            let fields = fields.iter();
            Step::Fields(
                fields
                    .map(|(name, value)| (name.clone(), filled(value)))
                    .collect(),
            )
        }
        _ => step.clone(),
    }
}

fn logs_notes(file: &CaseFile) -> bool {
    file.main
        .lines()
        .filter(|line| line.starts_with("error_log"))
        .all(|line| line.ends_with("info;"))
}

fn configuration(program: &Program, file: &CaseFile, protocol: Protocol) -> String {
    let has = |text: &str, directive: &str| text.lines().any(|line| line.starts_with(directive));
    let root = is_root();
    let mut conf = String::from("daemon off;\nworker_processes 1;\npid logs/nginx.pid;\n");
    if root && !has(&file.main, "user") {
        conf.push_str("user nobody nogroup;\n");
    }
    if !has(&file.main, "error_log") {
        conf.push_str("error_log logs/error.log info;\n");
    }
    conf.push_str(&file.main);
    conf.push_str("events {\n");
    if !has(&file.events, "worker_connections") {
        conf.push_str("worker_connections 512;\n");
    }
    if let Some(engine) = &program.engine {
        conf.push_str(&format!("use {engine};\n"));
    }
    conf.push_str(&file.events);
    conf.push_str("}\nhttp {\nlog_format parity '$remote_addr \"$request\" $status bytes=$body_bytes_sent';\n");
    if protocol == Protocol::Http2 {
        conf.push_str("http2 on;\n");
    }
    if !has(&file.http, "access_log") {
        conf.push_str("access_log logs/access.log parity;\n");
    }
    conf.push_str("client_body_temp_path temp/body;\nproxy_temp_path temp/proxy;\n");
    if program.is_nginx {
        conf.push_str("fastcgi_temp_path temp/fastcgi;\nuwsgi_temp_path temp/uwsgi;\nscgi_temp_path temp/scgi;\n");
    }
    conf.push_str(
        "server { listen 127.0.0.1:@SENTINEL@; access_log off;\n\
         location / { return 204; } location = /connection { return 200 $connection; } }\n",
    );
    conf.push_str(&file.http);
    conf.push_str("}\n");
    if !file.stream.is_empty() {
        conf.push_str("stream {\n");
        conf.push_str(&file.stream);
        conf.push_str("}\n");
    }
    conf
}

/// The line with everything that is no printable ASCII as `\xHH`.
fn printable(line: &[u8]) -> String {
    let mut text = String::new();
    for byte in line {
        if byte.is_ascii_graphic() || *byte == b' ' {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Makes the folders and the fixture.
fn lay_out(file: &CaseFile, prefix: &Path) -> std::io::Result<()> {
    let root = prefix.join("www");
    for folder in ["logs", "temp", "www"] {
        fs::create_dir_all(prefix.join(folder))?;
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(FIXTURE_TIME);
    for entry in &file.fixture {
        let path = root.join(entry.path.trim_start_matches('/'));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match &entry.kind {
            EntryKind::Folder => fs::create_dir_all(&path)?,
            EntryKind::Link(target) => symlink(target, &path)?,
            EntryKind::File(bytes) => fs::write(&path, bytes)?,
            EntryKind::Zeros(length) => fs::File::create(&path)?.set_len(*length)?,
            EntryKind::Gzip(bytes) => {
                // No compression: the same bytes whatever the library.
                let mut encoder = flate2::write::GzEncoder::new(
                    fs::File::create(&path)?,
                    flate2::Compression::none(),
                );
                encoder.write_all(bytes)?;
                encoder.finish()?;
            }
        }
        if let Some(mode) = entry.mode {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    set_times(&root, time)?;
    // Workers of another user write logs whose names hold variables.
    fs::set_permissions(prefix.join("logs"), fs::Permissions::from_mode(0o777))
}

/// Sets every modification time below `path`, folders last: autoindex shows theirs too.
fn set_times(path: &Path, time: SystemTime) -> std::io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        let seconds = format!("@{FIXTURE_TIME}");
        Command::new("touch")
            .args(["-h", "-d", &seconds])
            .arg(path)
            .status()?;
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            set_times(&entry?.path(), time)?;
        }
    }
    match fs::File::open(path) {
        Ok(file) => file.set_modified(time),
        // An unreadable file of the fixture; nobody sees its time.
        Err(_) => Ok(()),
    }
}
