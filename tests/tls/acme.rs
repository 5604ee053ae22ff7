//! Certificates by themselves, against Pebble, the test server of Let's Encrypt: issued, renewed
//! and revoked through the challenges, on both engines; and issuers that do not do what they
//! should.
//!
//! `make test` installs Pebble; where it is missing, the tests that need it say so and are skipped.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::Server;
use support::port::free_port;

/// How long a certificate may take: several validations and looks at an order, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks until it is there.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A program of Pebble's; where it is missing, that is said.
fn tool(name: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::iter::once(own)
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no {name} here (tests/install-packages)");
    }
    found
}

/// A process that ends with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pebble, and the name server that tells it that every name is here.
struct Pebble {
    folder: PathBuf,
    directory: String,
    /// Where it validates `http-01`.
    http_port: u16,
    /// Where it validates `tls-alpn-01`.
    tls_port: u16,
    /// Where records are put into the name server.
    names: String,
    management: String,
    _processes: [Process; 2],
}

impl Pebble {
    /// One that issues certificates for so many seconds; `environment` changes its ways.
    fn start(validity: u32, environment: &[(&str, &str)]) -> Option<Pebble> {
        Pebble::with(validity, environment, "")
    }

    fn with(validity: u32, environment: &[(&str, &str)], more: &str) -> Option<Pebble> {
        let (pebble, challenges) = (tool("pebble")?, tool("pebble-challtestsrv")?);
        let [port, management, names, dns, http_port, tls_port] = [(); 6].map(|()| free_port());
        let folder =
            std::env::temp_dir().join(format!("tidegate-pebble-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_authority(&folder);
        let path = |name: &str| folder.join(name).display().to_string();
        let configuration = format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:{port}", "managementListenAddress": "127.0.0.1:{management}",
            "certificate": "{}", "privateKey": "{}", "httpPort": {http_port}, "tlsPort": {tls_port},
            "ocspResponderURL": "", "domainBlocklist": ["blocked.test"], {more}
            "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
            "profiles": {{"default": {{"description": "usual", "validityPeriod": {validity}}},
                          "brief": {{"description": "brief", "validityPeriod": 86400}}}}}}}}"#,
            path("server.pem"),
            path("server.key"),
        );
        fs::write(folder.join("pebble.json"), configuration).unwrap();
        let output = |name: &str| fs::File::create(folder.join(name)).unwrap();
        let names_process = Command::new(challenges)
            .args([
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
                "-doh",
                "",
                "-defaultIPv6",
                "",
            ])
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
            .args(["-management", &format!("127.0.0.1:{names}")])
            .stdout(output("names.log"))
            .stderr(output("names.err"))
            .spawn()
            .unwrap();
        let process = Command::new(pebble)
            .args(["-config", &path("pebble.json")])
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
            .env("PEBBLE_VA_NOSLEEP", "1")
            // Some nonces are refused, so that trying again is tried as well.
            .env("PEBBLE_WFE_NONCEREJECT", "5")
            .envs(environment.iter().copied())
            .stdout(output("pebble.log"))
            .stderr(output("pebble.err"))
            .spawn()
            .unwrap();
        let made = Pebble {
            directory: format!("https://127.0.0.1:{port}/dir"),
            http_port,
            tls_port,
            names: format!("127.0.0.1:{names}"),
            management: format!("127.0.0.1:{management}"),
            folder,
            _processes: [Process(process), Process(names_process)],
        };
        for port in [port, management, names] {
            wait_for("Pebble starts", || {
                TcpStream::connect(("127.0.0.1", port)).ok()
            });
        }
        Some(made)
    }

    /// An `acme_issuer` of this server.
    fn issuer(&self, lines: &str) -> String {
        format!(
            "acme_issuer pebble {{ uri {}; ssl_trusted_certificate {}; contact admin@example.test;\n\
             accept_terms_of_service; {lines} }}\n",
            self.directory,
            self.folder.join("authority.pem").display()
        )
    }

    /// A program for `dns-01` that puts records into the name server.
    fn program(&self) -> PathBuf {
        let path = self.folder.join("hook");
        let script = format!(
            "#!/bin/sh\n\
             [ \"$1\" = present ] && what=set-txt || what=clear-txt\n\
             echo \"$1 $2\" >>{log}\n\
             exec curl -sS -f -d \"{{\\\"host\\\":\\\"$2\\\",\\\"value\\\":\\\"$3\\\"}}\" http://{names}/$what\n",
            log = self.folder.join("hook.log").display(),
            names = self.names,
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// What the management interface says of a certificate.
    fn status_of(&self, certificate: &str) -> String {
        let serial = openssl(&["x509", "-noout", "-serial"], certificate);
        let serial = serial.trim().trim_start_matches("serial=").to_lowercase();
        let url = format!("https://{}/cert-status-by-serial/{serial}", self.management);
        let output = Command::new("curl").args(["-sSk", &url]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An authority, and the certificate that Pebble itself shows.
fn write_authority(folder: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = authority.self_signed(&key).unwrap();
    let authority = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
    let server = server.unwrap().signed_by(&key, &authority).unwrap();
    fs::write(folder.join("authority.pem"), root.pem()).unwrap();
    fs::write(folder.join("server.pem"), server.pem()).unwrap();
    fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
}

/// What openssl says about a text.
fn openssl(arguments: &[&str], text: &str) -> String {
    let mut child = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The certificates that a server has in its state folder, each file's text.
fn kept(server: &Server) -> Vec<String> {
    let folder = server.prefix.join("acme_pebble");
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "pem"));
    files
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

/// Waits for a certificate other than this one.
fn issued(server: &Server, other_than: &str) -> String {
    let start = Instant::now();
    wait_for("a certificate is issued", || {
        let found = kept(server).into_iter().find(|text| text != other_than);
        if found.is_none() && start.elapsed() > PATIENCE / 2 {
            panic!("no certificate: {}", server.error_log());
        }
        assert!(
            !server.error_log().contains("[alert]"),
            "{}",
            server.error_log()
        );
        found
    })
}

/// Waits for a line in the error log.
fn logged(server: &Server, text: &str) {
    let start = Instant::now();
    while !server.error_log().contains(text) {
        assert!(
            start.elapsed() < PATIENCE,
            "no \"{text}\" in {}",
            server.error_log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that orders a certificate, and listens where `http-01` is validated.
fn ordering(pebble: &Pebble, engine: &str, order: &str, issuer: &str) -> Server {
    let lines = format!(
        "listen 127.0.0.1:{};\nserver_name a.test b.test;\nacme_certificate {order};\n\
         [http]\n{}",
        pebble.http_port,
        pebble.issuer(issuer)
    );
    Server::start(engine, &lines)
}

/// Whether a certificate ends within two days.
fn brief(certificate: &str) -> bool {
    let mut child = Command::new("openssl")
        .args(["x509", "-noout", "-checkend", "172800"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(certificate.as_bytes()).unwrap();
    drop(input);
    !child.wait().unwrap().success()
}

/// The Subject Alternative Names of a certificate.
fn names(certificate: &str) -> String {
    let text = openssl(&["x509", "-noout", "-ext", "subjectAltName"], certificate);
    text.lines().last().unwrap_or_default().trim().to_owned()
}

fn http_01_issues_and_a_restart_goes_on_with_what_there_is(engine: &'static str) {
    let Some(pebble) = Pebble::start(7_776_000, &[]) else {
        return;
    };
    let server = ordering(&pebble, engine, "pebble", "");
    let certificate = issued(&server, "");
    assert_eq!(names(&certificate), "DNS:a.test, DNS:b.test");
    let key = openssl(&["pkey", "-noout", "-text"], &certificate);
    assert!(key.contains("prime256v1"), "{key}");

    // Files are for the workers' user alone, and no draft is left.
    let folder = server.prefix.join("acme_pebble");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for entry in fs::read_dir(&folder).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    logged(&server, "certificate issued, renewal scheduled at ");
    assert_eq!(
        server.error_log().matches("account \"").count(),
        0,
        "info is below notice"
    );

    // The answer to the challenge is gone.
    let response = server
        .connect()
        .get("/.well-known/acme-challenge/x")
        .unwrap();
    assert_eq!(response.status, 404);

    // A reload asks for nothing that is there.
    let log = server.error_log();
    let lines = format!(
        "listen 127.0.0.1:{};\nserver_name a.test b.test;\nacme_certificate pebble;\n\
         add_header X-New yes always;\n[http]\n{}",
        pebble.http_port,
        pebble.issuer("")
    );
    server.reload(&lines);
    wait_for("the reload", || {
        let response = server.connect().get("/").unwrap();
        response.head.contains("X-New").then_some(())
    });
    assert_eq!(kept(&server), [certificate]);
    let issued = |text: &str| text.matches("certificate issued").count();
    assert_eq!(issued(&server.error_log()), issued(&log));
}

support::test_on_each_engine!(http_01_issues_and_a_restart_goes_on_with_what_there_is);

fn dns_01_issues_by_a_program(engine: &'static str) {
    let Some(pebble) = Pebble::start(7_776_000, &[]) else {
        return;
    };
    let challenge = format!("challenge dns-01 {};", pebble.program().display());
    let order = "pebble *.example.test example.test key=rsa:2048";
    let server = ordering(&pebble, engine, order, &challenge);
    let certificate = issued(&server, "");
    let names = names(&certificate);
    assert!(
        names.contains("DNS:*.example.test") && names.contains("DNS:example.test"),
        "{names}"
    );
    let key = openssl(&["pkey", "-noout", "-text"], &certificate);
    assert!(key.contains("2048 bit"), "{key}");
    // Every record that was put there is taken away.
    let log = wait_for("records are taken away", || {
        let log = fs::read_to_string(pebble.folder.join("hook.log")).unwrap();
        (log.matches("cleanup ").count() == 2).then_some(log)
    });
    assert_eq!(
        log.matches("present _acme-challenge.example.test.\n")
            .count(),
        2,
        "{log}"
    );
}

support::test_on_each_engine!(dns_01_issues_by_a_program);

#[test]
fn certificates_are_renewed_and_a_revoked_one_is_replaced() {
    let Some(pebble) = Pebble::start(7_776_000, &[("PEBBLE_AUTHZREUSE", "0")]) else {
        return;
    };
    let server = ordering(&pebble, "", "pebble", "");
    let first = issued(&server, "");
    assert!(
        pebble.status_of(&first).contains("Valid"),
        "{}",
        pebble.status_of(&first)
    );
    revoke(&pebble, &server, &first);
    assert!(
        pebble.status_of(&first).contains("Revoked"),
        "{}",
        pebble.status_of(&first)
    );
    // The server says by its renewal information that it is to be renewed at once; a reload asks.
    server.signal("HUP");
    let second = issued(&server, &first);
    assert!(pebble.status_of(&second).contains("Valid"));

    // One that is short-lived is renewed while everything runs.
    let Some(hasty) = Pebble::start(10, &[("PEBBLE_AUTHZREUSE", "0")]) else {
        return;
    };
    let server = ordering(&hasty, "", "pebble", "profile default require;");
    let first = issued(&server, "");
    let second = issued(&server, &first);
    assert_ne!(issued(&server, &second), second);
}

/// Revokes a certificate as the account that has ordered it.
fn revoke(pebble: &Pebble, server: &Server, certificate: &str) {
    revoke_in(pebble, &server.prefix.join("acme_pebble"), certificate);
}

fn revoke_in(pebble: &Pebble, folder: &Path, certificate: &str) {
    let account = fs::read(folder.join("account.json")).unwrap();
    let authority = fs::read(pebble.folder.join("authority.pem")).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = acme::trust(&provider, Some(&authority)).unwrap();
    acme::revoke(&account, tls, certificate.as_bytes()).unwrap();
}

/// The certificate that a handshake for a name shows.
fn shown(port: u16, name: &str) -> String {
    let output = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &format!("127.0.0.1:{port}"),
            "-servername",
            name,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let begin = text
        .find("-----BEGIN CERTIFICATE-----")
        .unwrap_or_else(|| panic!("{text}"));
    const END: &str = "-----END CERTIFICATE-----\n";
    let end = text[begin..].find(END).unwrap() + END.len();
    text[begin..begin + end].to_owned()
}

/// A server with TLS on the port where `tls-alpn-01` is validated, whose state is in this folder.
fn secured(pebble: &Pebble, engine: &str, folder: &Path, issuer: &str) -> Server {
    let lines = format!(
        "listen 127.0.0.1:{} ssl;\nserver_name a.test;\nacme_certificate pebble;\n\
         ssl_certificate $acme_certificate;\nssl_certificate_key $acme_certificate_key;\n\
         [http]\n{}",
        pebble.tls_port,
        pebble.issuer(&format!(
            "challenge tls-alpn-01; state_path {}; {issuer}",
            folder.display()
        ))
    );
    Server::start(engine, &lines)
}

fn tls_alpn_01_issues_and_handshakes_take_what_comes(engine: &'static str) {
    let Some(pebble) = Pebble::start(7_776_000, &[("PEBBLE_AUTHZREUSE", "0")]) else {
        return;
    };
    let folder = pebble.folder.join("state");
    let server = secured(&pebble, engine, &folder, "");
    // Before there is one, another stands in; when it comes, handshakes show it without a
    // reload.
    let certificate = wait_for("a handshake shows what was issued", || {
        let shown = shown(pebble.tls_port, "a.test");
        let issuer = openssl(&["x509", "-noout", "-issuer"], &shown);
        if issuer.contains("Pebble") {
            Some(shown)
        } else {
            assert!(
                issuer.contains("tidegate temporary certificate"),
                "{issuer}"
            );
            None
        }
    });
    assert_eq!(names(&certificate), "DNS:a.test");
    // A revoked one is replaced as well.
    revoke_in(&pebble, &folder, &certificate);
    server.signal("HUP");
    wait_for("a handshake shows its successor", || {
        (shown(pebble.tls_port, "a.test") != certificate).then_some(())
    });
    drop(server);

    // An expired one is served, with a warning, until there is another.
    let entries = fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let path = entries
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "pem"));
    let expired = expired("a.test");
    fs::write(path.unwrap(), &expired).unwrap();
    let hanging = broken(std::mem::forget);
    let broken_issuer = format!(
        "listen 127.0.0.1:{} ssl;\nserver_name a.test;\nacme_certificate pebble;\n\
         ssl_certificate $acme_certificate;\nssl_certificate_key $acme_certificate_key;\n\
         [http]\nacme_issuer other {{ uri http://127.0.0.1:{hanging}/; }}\n{}",
        pebble.tls_port,
        pebble.issuer(&format!(
            "challenge http-01; state_path {};",
            folder.display()
        ))
    );
    // Nobody answers http-01, so that it stays.
    let server = Server::start(engine, &broken_issuer);
    logged(
        &server,
        "certificate has expired and is served until a new one comes",
    );
    let first = shown(pebble.tls_port, "a.test");
    assert!(expired.starts_with(&first), "{first}");
    drop(server);
    let server = secured(&pebble, engine, &folder, "");
    wait_for("a new one comes", || {
        let shown = shown(pebble.tls_port, "a.test");
        let issuer = openssl(&["x509", "-noout", "-issuer"], &shown);
        issuer.contains("Pebble").then_some(())
    });
    drop(server);
}

support::test_on_each_engine!(tls_alpn_01_issues_and_handshakes_take_what_comes);

/// A certificate that has expired, with its key.
fn expired(name: &str) -> String {
    let mut certificate = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    certificate.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let signed = certificate.self_signed(&key).unwrap();
    // As openssl writes it, with line feeds alone.
    format!("{}{}", signed.pem(), key.serialize_pem()).replace("\r\n", "\n")
}

/// A `tidegate serve` that is told to end with the value, and waited for: its port is free then.
struct Serving(Child, std::sync::mpsc::Receiver<String>);

impl Drop for Serving {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.0.wait();
    }
}

/// `tidegate serve`, and what it prints at its start.
fn serve(folder: &Path, arguments: &[&str]) -> (Serving, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let (tell, hear) = std::sync::mpsc::channel();
    let process = Serving(child, hear);
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(stderr)).map_while(Result::ok) {
            let _ = tell.send(line); // nobody listens any more once it has begun
        }
    });
    let mut printed = String::new();
    while !printed.contains("Ctrl-C ends it.") {
        process.hear(&mut printed);
    }
    (process, printed)
}

impl Serving {
    /// Waits for the next line on standard error.
    fn hear(&self, printed: &mut String) {
        let line = self.1.recv_timeout(PATIENCE);
        printed.push_str(&line.unwrap_or_else(|error| panic!("{error}: {printed}")));
        printed.push('\n');
    }
}

/// A site, and an empty folder for state.
fn site(name: &str) -> (PathBuf, PathBuf) {
    let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let (site, state) = (folder.join("site"), folder.join("state"));
    fs::create_dir_all(&site).unwrap();
    fs::create_dir_all(&state).unwrap();
    fs::write(site.join("index.html"), "hello").unwrap();
    (site, state)
}

#[test]
fn a_folder_is_served_to_the_world_under_a_name() {
    let Some(pebble) = Pebble::start(7_776_000, &[]) else {
        return;
    };
    let (site, state) = site("domain");
    let listen = format!("127.0.0.1:{}", pebble.tls_port);
    let authorities = pebble.folder.join("authority.pem").display().to_string();
    let state_text = state.display().to_string();
    let arguments = [
        "--domain",
        "a.test",
        "--listen",
        &listen,
        "--acme",
        &pebble.directory,
        "--acme-authorities",
        &authorities,
        "--state",
        &state_text,
    ];
    let long = "<p>a text that is worth compressing</p>\n".repeat(100);
    fs::write(site.join("long.html"), long).unwrap();
    let (process, mut printed) = serve(&site, &arguments);
    let url = format!("https://a.test:{}/", pebble.tls_port);
    assert!(printed.contains(&url), "{printed}");
    while !printed.contains("The certificate for a.test holds until ") {
        process.hear(&mut printed);
    }
    let getting = format!(
        "Getting a certificate for a.test from {}\n",
        pebble.directory
    );
    assert!(printed.contains(&getting), "{printed}");
    assert!(printed.contains(" GMT; it is renewed on "), "{printed}");
    wait_for("a certificate comes", || {
        let certificate = shown(pebble.tls_port, "a.test");
        let issuer = openssl(&["x509", "-noout", "-issuer"], &certificate);
        issuer.contains("Pebble").then_some(())
    });
    let resolve = format!("a.test:{}:127.0.0.1", pebble.tls_port);
    let output = Command::new("curl")
        .args(["-sSk", "--resolve", &resolve, &url])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"hello");
    for coding in ["br", "zstd", "gzip"] {
        let output = Command::new("curl")
            .args([
                "-sSk",
                "--http2",
                "--resolve",
                &resolve,
                "-o",
                "/dev/null",
                "-D",
                "-",
            ])
            .args(["-H", &format!("Accept-Encoding: {coding}")])
            .arg(format!("{url}long.html"))
            .output()
            .unwrap();
        let head = String::from_utf8(output.stdout).unwrap().to_lowercase();
        assert!(head.starts_with("http/2 200"), "{head}");
        assert!(
            head.contains(&format!("content-encoding: {coding}\r\n")),
            "{head}"
        );
    }
    fs::remove_dir_all(state.parent().unwrap()).unwrap();
}

#[test]
fn a_certificate_that_does_not_come_is_told() {
    let (site, state) = site("failed");
    let state_text = state.display().to_string();
    let directory = format!("http://127.0.0.1:{}/dir", free_port());
    let listen = format!("127.0.0.1:{}", free_port());
    let (process, mut printed) = serve(
        &site,
        &[
            "--domain",
            "a.test",
            "--listen",
            &listen,
            "--acme",
            &directory,
            "--state",
            &state_text,
        ],
    );
    while !printed.contains("The next try is in ") {
        process.hear(&mut printed);
    }
    let getting = format!("Getting a certificate for a.test from {directory}\n");
    assert!(printed.contains(&getting), "{printed}");
    assert!(
        printed.contains("\nNo certificate for a.test: "),
        "{printed}"
    );
    fs::remove_dir_all(state.parent().unwrap()).unwrap();
}

#[test]
fn a_folder_is_served_by_an_authority_of_this_machine() {
    let (site, state) = site("internal");
    let state_text = state.display().to_string();
    let authority = state.join("authority.crt").display().to_string();
    for found in ["made", "found"] {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let arguments = [
            "--tls",
            "internal",
            "--listen",
            &listen,
            "--state",
            &state_text,
        ];
        let (_process, printed) = serve(&site, &arguments);
        assert!(
            printed.contains(&format!("The authority of this machine was {found}.")),
            "{printed}"
        );
        // Its certificate can be read by people, who are told what to do with it; its key cannot.
        let mode =
            |name: &str| fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode("authority.crt"), mode("authority.pem")),
            (0o644, 0o600)
        );
        assert!(
            printed.contains(&format!(
                "certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n tidegate -i {authority}\n"
            )),
            "{printed}"
        );
        let line = printed.lines().find(|line| line.contains("curl --cacert"));
        let command = line.unwrap().trim().strip_prefix("curl ").unwrap();
        let output = Command::new("sh")
            .args(["-c", &format!("{command} -sS")])
            .output();
        assert_eq!(output.unwrap().stdout, b"hello", "{command}");
        // A file of earlier times may be closed.
        fs::set_permissions(&authority, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(
            printed.contains(&format!("https://127.0.0.1:{port}/")),
            "{printed}"
        );
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{port}/");
            let arguments = ["-sS", "--cacert", &authority, "--ipv4", &url];
            let output = Command::new("curl").args(arguments).output().unwrap();
            assert_eq!(output.stdout, b"hello", "{output:?}");
        }
    }
    fs::remove_dir_all(state.parent().unwrap()).unwrap();
}

#[test]
fn what_an_issuer_is_asked_for() {
    let Some(pebble) = Pebble::start(7_776_000, &[("PEBBLE_ALTERNATE_ROOTS", "1")]) else {
        return;
    };
    let root = |number: u8| {
        let url = format!("https://{}/roots/{number}", pebble.management);
        let output = Command::new("curl").args(["-sSk", &url]).output().unwrap();
        let root = String::from_utf8(output.stdout).unwrap();
        let subject = openssl(&["x509", "-noout", "-subject"], &root);
        subject.trim().rsplit("CN = ").next().unwrap().to_owned()
    };
    let wanted = root(1);
    assert_ne!(root(0), wanted);
    let lines = format!(
        "preferred_chain \"{wanted}\"; profile brief require; common_name_in_csr on; \
         contact mailto:second@example.test; state_path state;"
    );
    let server = ordering(&pebble, "", "pebble", &lines);
    let folder = server.prefix.join("state");
    let certificate = wait_for("a certificate is issued", || {
        let entries = fs::read_dir(&folder)
            .ok()?
            .flatten()
            .map(|entry| entry.path());
        let mut files = entries.filter(|path| path.extension().is_some_and(|e| e == "pem"));
        fs::read_to_string(files.next()?).ok()
    });
    // The second certificate of the chain is signed by the root that was asked for.
    let chain: Vec<&str> = certificate
        .split_inclusive("-----END CERTIFICATE-----\n")
        .collect();
    let issuer = openssl(&["x509", "-noout", "-issuer"], chain[1]);
    assert!(issuer.trim().ends_with(&wanted), "{issuer} is not {wanted}");
    assert!(brief(&certificate), "the profile is that of a day");
    let account = fs::read_to_string(folder.join("account.json")).unwrap();
    assert!(
        account.contains("mailto:admin@example.test")
            && account.contains("mailto:second@example.test")
    );
}

#[test]
fn accounts_may_have_a_key_and_belong_to_others() {
    let binding = r#""externalAccountBindingRequired": true,
        "externalAccountMACKeys": {"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"},"#;
    let Some(pebble) = Pebble::with(7_776_000, &[], binding) else {
        return;
    };
    let without = ordering(&pebble, "", "pebble", "");
    logged(&without, "while updating certificate, tried again in ");
    assert!(kept(&without).is_empty());
    drop(without);
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let line = format!("external_account_key kid-1 data:{key}; state_path off;");
    let bound = ordering(&pebble, "", "pebble", &line);
    logged(&bound, "certificate issued");
    assert!(kept(&bound).is_empty(), "nothing is on the disk");
    drop(bound);

    let Some(pebble) = Pebble::start(7_776_000, &[]) else {
        return;
    };
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let path = pebble.folder.join("account.key");
    fs::write(&path, key).unwrap();
    let line = format!("account_key {};", path.display());
    let own = ordering(&pebble, "", "pebble", &line);
    issued(&own, "");
    assert!(!own.prefix.join("acme_pebble/account.json").exists());
}

/// Servers of ACME that are none, each for one connection after the other.
fn broken(behave: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the process.
    std::thread::spawn(move || listener.incoming().flatten().for_each(behave));
    port
}

fn a_broken_issuer_stops_neither_the_server_nor_a_reload(engine: &'static str) {
    let hanging = broken(|stream| {
        // It lives on, and says nothing.
        std::mem::forget(stream);
    });
    let garbage = broken(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"\x00\x01 this is no HTTP\r\n\r\n");
    });
    let json = broken(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]");
    });
    let refusing = broken(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
    });
    let absent = free_port();
    let issuers: String = [hanging, garbage, json, refusing, absent]
        .iter()
        .enumerate()
        .map(|(number, port)| {
            format!(
                "acme_issuer i{number} {{ uri http://127.0.0.1:{port}/dir; }}\n\
                 server {{ listen 127.0.0.1:{}; server_name s{number}.test; acme_certificate i{number}; }}\n",
                free_port()
            )
        })
        .collect();
    let lines = |generation: u32| {
        format!("add_header X-Generation {generation} always;\n[http]\n{issuers}")
    };
    let server = Server::start(engine, &lines(1));
    for text in [
        "the server sent no valid HTTP response while updating certificate, tried again in ",
        "the server sent what is no message of ACME (",
        "connection failed (",
    ] {
        logged(&server, text);
    }
    server.reload(&lines(2));
    wait_for("the reload", || {
        let response = server.connect().get("/").unwrap();
        response.head.contains("X-Generation: 2").then_some(())
    });
    assert!(
        !server.error_log().contains("[alert]"),
        "{}",
        server.error_log()
    );
}

support::test_on_each_engine!(a_broken_issuer_stops_neither_the_server_nor_a_reload);

#[test]
fn a_server_that_is_not_trusted_gets_no_order() {
    let Some(pebble) = Pebble::start(7_776_000, &[]) else {
        return;
    };
    let issuer = |verify: &str| {
        format!(
            "server_name a.test;\nacme_certificate pebble;\nlisten 127.0.0.1:{};\n\
             [http]\nacme_issuer pebble {{ uri {}; accept_terms_of_service; announce on; {verify} }}\n",
            pebble.http_port, pebble.directory
        )
    };
    let server = Server::start("", &issuer("ssl_verify on;"));
    logged(&server, "TLS handshake failed (");
    assert!(kept(&server).is_empty());
    server.reload(&issuer("ssl_verify off;"));
    issued(&server, "");

    // Consent to terms is nobody's but the owner's.
    let lines = format!(
        "server_name a.test;\nacme_certificate other;\n[http]\n\
         acme_issuer other {{ uri {}; ssl_verify off; }}\n",
        pebble.directory
    );
    let server = Server::start("", &lines);
    logged(&server, "if you agree to the terms of service at ");
}
