//! TLS with the clients that people have: curl, openssl s_client, Python's ssl module and Chromium,
//! on both engines. Whole handshakes and resumed ones (over a reload, by any thread), certificates
//! of clients, early data, the choice of a server, ALPN.
//!
//! `make test` installs the programs. Without Chromium its test says so and is skipped; any other
//! program that is missing fails the tests that need it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use support::engines::EPOLL;
use support::port::free_port;
use support::{PATIENCE, Server};

/// Threads: a session that one has begun goes on with any other.
const WORKERS: u32 = 4;

/// What the servers answer of what was agreed upon.
const SHOW: &str = "location / { default_type text/html; return 200 \"$ssl_protocol $ssl_session_reused [$ssl_early_data] $ssl_server_name $ssl_alpn_protocol $ssl_client_verify\\n\"; }";

/// A file of tests/tls.
fn file(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn certificate(name: &str) -> String {
    let (chain, key) = (file(&format!("{name}.crt")), file(&format!("{name}.key")));
    format!("ssl_certificate {chain};\nssl_certificate_key {key};\n")
}

/// A server on a port for TLS.
fn block(port: u16, lines: &str) -> String {
    let certificate = certificate("ecdsa");
    format!(
        "[http]\nserver {{ listen 127.0.0.1:{port} ssl; server_name localhost;\n{certificate}{lines}\n}}\n"
    )
}

fn start(engine: &str, lines: &str) -> (Server, u16) {
    let port = free_port();
    let server = Server::start_workers(WORKERS, engine, &block(port, lines));
    (server, port)
}

/// Runs a program to its end, and gives what it printed.
fn run(program: &str, package: &str, arguments: &[&str], input: &[u8]) -> (Output, String) {
    let mut child = spawn(program, package, arguments);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, printed)
}

fn spawn(program: &str, package: &str, arguments: &[&str]) -> Child {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    child.unwrap_or_else(|error| {
        panic!("{program}: {error}; the Debian package {package} has it (tests/install-packages)")
    })
}

fn curl(port: u16, more: &[&str]) -> Result<String, String> {
    let url = format!("https://localhost:{port}/");
    let authorities = file("ecdsa.crt");
    let mut arguments = vec!["-sS", "--cacert", &authorities, "--noproxy", "*"];
    arguments.extend_from_slice(more);
    arguments.push(&url);
    let (output, printed) = run("curl", "curl", &arguments, b"");
    if output.status.success() {
        Ok(printed)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn curl_speaks_both_versions(engine: &'static str) {
    let (server, port) = start(engine, &format!("{SHOW} location /up {{ return 200; }}"));
    for version in ["1.2", "1.3"] {
        let least = format!("--tlsv{version}");
        let shown = curl(port, &[&least, "--tls-max", version]).unwrap();
        assert_eq!(
            shown,
            format!("TLSv{version} . [] localhost http/1.1 NONE\n")
        );
    }
    // Two requests on one connection, then one on a connection that goes on with its session.
    let url = format!("https://localhost:{port}/");
    let shown = curl(port, &[&url, "-H", "Connection: close"]).unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines,
        [
            "TLSv1.3 . [] localhost http/1.1 NONE",
            "TLSv1.3 r [] localhost http/1.1 NONE"
        ]
    );
    // A body that is larger than what is in flight at any time.
    server.write("body", &vec![b'x'; 3_000_000]);
    let body = format!("@{}", server.prefix.join("www/body").display());
    let status = [
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--data-binary",
        &body,
    ];
    let status = curl(port, &[&status[..], &["--request-target", "/up"]].concat());
    assert_eq!(status.unwrap(), "413");
}

support::test_on_each_engine!(curl_speaks_both_versions);

#[test]
fn curl_gets_the_server_that_it_names() {
    let port = free_port();
    let (ecdsa, rsa) = (certificate("ecdsa"), certificate("rsa"));
    let blocks = format!(
        "[http]\nserver {{ listen 127.0.0.1:{port} ssl; server_name localhost; {ecdsa} {SHOW} }}\n\
         server {{ listen 127.0.0.1:{port} ssl; server_name second.test; {rsa} {SHOW} }}\n"
    );
    let _server = Server::start_workers(WORKERS, EPOLL, &blocks);
    let to = format!("::127.0.0.1:{port}");
    for (name, kind) in [
        ("localhost", "id-ecPublicKey"),
        ("second.test", "rsaEncryption"),
    ] {
        let url = format!("https://{name}/");
        let options = [
            "-sSkv",
            "-w",
            "%{certs}",
            "--connect-to",
            &to,
            "--noproxy",
            "*",
            &url,
        ];
        let (_, shown) = run("curl", "curl", &options, b"");
        assert!(shown.contains(&format!(" {name} http/1.1")), "{shown}");
        assert!(shown.contains(kind), "{name}: {shown}");
    }
}

fn curl_shows_certificates_of_clients(engine: &'static str) {
    let authorities = format!("ssl_client_certificate {};", file("ca.crt"));
    let [client, stranger] = ["client", "stranger"].map(file);
    let ask = |port, identity: Option<&str>| {
        let pair = identity.map(|name| (format!("{name}.crt"), format!("{name}.key")));
        match &pair {
            Some((chain, key)) => curl(port, &["--cert", chain, "--key", key]).unwrap(),
            None => curl(port, &[]).unwrap(),
        }
    };
    for (mode, known, unknown, none) in [
        (
            "on",
            "SUCCESS",
            "The SSL certificate error",
            "No required SSL certificate",
        ),
        ("optional", "SUCCESS", "The SSL certificate error", "NONE"),
        (
            "optional_no_ca",
            "SUCCESS",
            "FAILED:self-signed certificate",
            "NONE",
        ),
    ] {
        let (_server, port) = start(
            engine,
            &format!("{authorities} ssl_verify_client {mode}; {SHOW}"),
        );
        for (identity, expected) in [
            (Some(&*client), known),
            (Some(&*stranger), unknown),
            (None, none),
        ] {
            let shown = ask(port, identity);
            assert!(shown.contains(expected), "{mode} {identity:?}: {shown}");
        }
    }
}

support::test_on_each_engine!(curl_shows_certificates_of_clients);

/// What `openssl s_client` prints for one request.
fn s_client(port: u16, more: &[&str]) -> String {
    let address = format!("127.0.0.1:{port}");
    let authorities = file("ecdsa.crt");
    let arguments = [
        "s_client",
        "-connect",
        &address,
        "-servername",
        "localhost",
        "-ign_eof",
        "-CAfile",
        &authorities,
        "-verify_return_error",
        "-verify_hostname",
        "localhost",
    ];
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (_, printed) = run(
        "openssl",
        "openssl",
        &[&arguments[..], more].concat(),
        request,
    );
    printed
}

fn s_client_resumes(engine: &'static str) {
    for lines in [
        "",
        "ssl_session_tickets off; ssl_session_cache shared:clients:1m;",
        "ssl_session_cache shared:clients:1m;",
    ] {
        let (server, port) = start(engine, &format!("{lines} {SHOW}"));
        let session = server.prefix.join("session").display().to_string();
        for version in ["-tls1_2", "-tls1_3"] {
            let first = s_client(port, &[version, "-alpn", "http/1.1", "-sess_out", &session]);
            assert!(first.contains("\nNew, TLSv1"), "{lines} {version}: {first}");
            assert!(first.contains(" . [] localhost http/1.1 NONE\n"), "{first}");
            assert!(first.contains("ALPN protocol: http/1.1"), "{first}");
            let second = s_client(port, &[version, "-sess_in", &session]);
            assert!(
                second.contains("\nReused, TLSv1"),
                "{lines} {version}: {second}"
            );
            assert!(second.contains(" r [] localhost "), "{second}");
        }
    }
}

support::test_on_each_engine!(s_client_resumes);

/// What `openssl s_client` prints where it names this host in the handshake. Its request is
/// answered by the default server.
fn s_client_naming(port: u16, name: &str, more: &[&str]) -> String {
    let address = format!("127.0.0.1:{port}");
    let arguments = [
        "s_client",
        "-connect",
        &address,
        "-servername",
        name,
        "-ign_eof",
    ];
    let arguments = [&arguments[..], more].concat();
    run("openssl", "openssl", &arguments, b"GET / HTTP/1.0\r\n\r\n").1
}

/// The host in a handshake may be anything, as with nginx: what is no host gets the certificate of
/// the default server, and where the client goes on with a session, has a certificate or must try
/// again, both ends agree on what it said.
fn any_host_may_be_asked_for(engine: &'static str) {
    let long = "a".repeat(64) + ".second";
    let longest = "a".repeat(255);
    let names = [
        ("second", "second"),
        ("SECOND.", "second"),
        ("second:443", "second"),
        ("second:", "second"),
        ("x_y.second", "second"),
        ("-x-.second", "second"),
        ("*.second", "second"),
        ("a'b%41~.second", "second"),
        (&long, "second"),
        ("127.0.0.1", "second"),
        ("127.0.0.1:1", "second"),
        ("[::1]", "second"),
        ("[::1]:443", "second"),
        ("5.7", "second"),
        (".second", "second"),
        ("other", "first"),
        ("::1", "first"),
        ("second..", "first"),
        ("a..second", "first"),
        ("second:99999", "first"),
        ("second:4x", "first"),
        (" second", "first"),
        ("second ", "first"),
        ("bücher.second", "first"),
        ("a/b.second", "first"),
        ("a@second", "first"),
        (".", "first"),
        (&longest, "first"),
    ];
    let show = "location / { return 200 \"<$ssl_server_name> $ssl_session_reused $ssl_client_verify\\n\"; }";
    let port = free_port();
    let server = |key: &str, port: u16, lines: &str| {
        let certificate = certificate(key);
        format!("server {{ listen 127.0.0.1:{port} ssl; {certificate} {show} {lines} }}\n")
    };
    let other = free_port();
    let blocks = [
        "[http]\nssl_ecdh_curve secp384r1;\n",
        &server("ecdsa", port, "server_name first;"),
        &server(
            "rsa",
            port,
            "server_name second *.second 127.0.0.1 [::1] 5.7;",
        ),
        &server("ecdsa", other, "ssl_verify_client optional_no_ca;"),
    ];
    let server = Server::start_workers(WORKERS, engine, &blocks.concat());
    let (chain, key) = (file("client.crt"), file("client.key"));
    let session = server.prefix.join("session").display().to_string();
    for version in ["-tls1_2", "-tls1_3"] {
        // The engine makes no difference to what a name leads to, and each program that is
        // started costs time.
        let names = if engine == EPOLL { &names[..] } else { &[] };
        for &(name, expected) in names {
            // The first group is not the server's: in TLS 1.3 the client has to try again.
            let said = s_client_naming(port, name, &[version, "-groups", "X25519:P-384:P-256"]);
            let key = match expected {
                "first" => "Server public key is 256 bit",
                _ => "Server public key is 2048 bit",
            };
            let shown = said.contains(&format!("<{name}> . NONE\n"));
            assert!(
                shown && said.contains(key),
                "{engine} {version} {name}: {said}"
            );
        }
        for name in ["second:443", " second"] {
            let with_certificate = [version, "-cert", &chain, "-key", &key];
            let said = s_client_naming(other, name, &with_certificate);
            assert!(said.contains(&format!("<{name}> . FAILED")), "{said}");
            s_client_naming(other, name, &[version, "-sess_out", &session]);
            let said = s_client_naming(other, name, &[version, "-sess_in", &session]);
            assert!(said.contains(&format!("<{name}> r NONE")), "{said}");
        }
    }
}

support::test_on_each_engine!(any_host_may_be_asked_for);

/// `TRUSTED CERTIFICATE`: a certificate with what OpenSSL is to trust it for.
#[test]
fn certificates_say_what_they_are_trusted_for() {
    let folder = std::env::temp_dir().join(format!("tidegate-trusted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let make = |certificate: &str, name: String, options: &[&str]| {
        let (input, output) = (file(certificate), folder.join(name).display().to_string());
        let arguments = ["x509", "-trustout", "-in", &input, "-out", &output];
        run(
            "openssl",
            "openssl",
            &[&arguments[..], options].concat(),
            b"",
        );
        let written = std::fs::read_to_string(&output).unwrap();
        assert!(written.starts_with("-----BEGIN TRUSTED CERTIFICATE-----"));
        output
    };
    let chain = make("ecdsa.crt", "server.pem".into(), &["-setalias", "x"]);
    let cases: [(&[&str], bool); 6] = [
        (&[], true),
        (&["-setalias", "x"], true),
        (&["-addtrust", "clientAuth"], true),
        (&["-addtrust", "anyExtendedKeyUsage"], true),
        (&["-addtrust", "serverAuth"], false),
        (&["-addreject", "clientAuth"], false),
    ];
    let (mut blocks, mut expected) = (String::from("[http]\n"), Vec::new());
    for directive in ["ssl_client_certificate", "ssl_trusted_certificate"] {
        for (at, (options, trusted)) in cases.iter().enumerate() {
            let authority = make("ca.crt", format!("{directive}-{at}.pem"), options);
            let (port, key) = (free_port(), file("ecdsa.key"));
            blocks += &format!(
                "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {chain}; ssl_certificate_key {key}; \
                 ssl_verify_client optional; {directive} {authority}; {SHOW} }}\n"
            );
            expected.push((port, *trusted, format!("{directive} {options:?}")));
        }
    }
    let _server = Server::start(EPOLL, &blocks);
    let (client, key) = (file("client.crt"), file("client.key"));
    for (port, trusted, what) in expected {
        let shown = curl(port, &["--cert", &client, "--key", &key]).unwrap();
        assert_eq!(shown.contains(" SUCCESS\n"), trusted, "{what}: {shown}");
        assert_eq!(shown.contains("certificate error"), !trusted, "{what}");
    }
    let _ = std::fs::remove_dir_all(folder);
}

fn s_client_sends_early_data(engine: &'static str) {
    for (lines, accepted, shown) in [
        ("ssl_early_data on;", true, " r [1] "),
        ("ssl_early_data off;", false, " r [] "),
    ] {
        // s_client sends early data only where the session allows it, and the request by its
        // input too.
        let (server, port) = start(engine, &format!("{lines} {SHOW}"));
        let session = server.prefix.join("session").display().to_string();
        let early = server.prefix.join("early").display().to_string();
        std::fs::write(
            &early,
            "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        s_client(port, &["-tls1_3", "-sess_out", &session]);
        let options = if accepted {
            vec!["-tls1_3", "-sess_in", &session, "-early_data", &early]
        } else {
            vec!["-tls1_3", "-sess_in", &session]
        };
        let second = s_client(port, &options);
        let said = second.contains("Early data was accepted");
        assert_eq!(said, accepted, "{second}");
        assert!(second.contains(shown), "{second}");
        // A session is used once for early data: a second use must not be a replay.
        if accepted {
            let third = s_client(port, &options);
            assert!(!third.contains("Early data was accepted"), "{third}");
        }
    }
}

support::test_on_each_engine!(s_client_sends_early_data);

/// Python's client at work; see tests/tls/client.py.
struct Python {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Python {
    fn start(port: u16, options: &[&str]) -> Python {
        let (script, authorities) = (file("client.py"), file("ecdsa.crt"));
        let mut arguments = vec![&*script];
        let port = port.to_string();
        arguments.extend([&*port, &*authorities]);
        arguments.extend_from_slice(options);
        let mut child = spawn("python3", "python3", &arguments);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Python { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.recv_timeout(5 * PATIENCE).unwrap_or_else(|_| {
            let _ = self.child.kill();
            let mut said = String::new();
            if let Some(mut stderr) = self.child.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
            }
            panic!("no line of Python's client: {said}")
        })
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pythons_sessions_outlive_a_reload_and_go_on_with_every_thread(engine: &'static str) {
    const TIMES: usize = 20;
    let cache = "ssl_session_cache shared:kept:1m;";
    let no_tickets = "ssl_session_tickets off; ssl_session_cache shared:kept:1m;";
    for (lines, version, tickets) in [
        ("", "TLSv1.2", "on"),
        ("", "TLSv1.3", "on"),
        (cache, "TLSv1.2", "off"),
        (no_tickets, "TLSv1.3", "on"),
    ] {
        let configuration = |number: u32| format!("{lines} location / {{ return 200 {number}; }}");
        let (server, port) = start(engine, &configuration(1));
        let options = [
            format!("version={version}"),
            format!("tickets={tickets}"),
            format!("times={TIMES}"),
        ];
        let options = options.each_ref().map(|option| &**option);
        let mut python = Python::start(port, &options);
        assert_eq!(python.line(), format!("{version} new http/1.1 1"));
        server.reload(&block(port, &configuration(2)));
        let begin = Instant::now();
        while curl(port, &[]).unwrap() != "2" {
            assert!(begin.elapsed() < PATIENCE, "the reload");
        }
        python.go_on();
        for _ in 1..TIMES {
            let case = format!("{engine} {lines} {version}");
            assert_eq!(
                python.line(),
                format!("{version} resumed http/1.1 2"),
                "{case}"
            );
        }
    }
}

support::test_on_each_engine!(pythons_sessions_outlive_a_reload_and_go_on_with_every_thread);

fn python_shows_a_certificate_and_names_protocols(engine: &'static str) {
    let lines = format!(
        "ssl_client_certificate {}; ssl_verify_client on; {SHOW}",
        file("ca.crt")
    );
    let (_server, port) = start(engine, &lines);
    let identity = format!("identity={}", file("client"));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let chosen = format!("version={version}");
        let mut python = Python::start(port, &[&identity, "times=1", &chosen]);
        let expected = format!("{version} new http/1.1 {version} . [] localhost http/1.1 SUCCESS");
        assert_eq!(python.line(), expected);
    }
    let mut python = Python::start(port, &[&identity, "times=1", "offers=http/1.0"]);
    assert!(python.line().contains(" http/1.0 SUCCESS"));
}

support::test_on_each_engine!(python_shows_a_certificate_and_names_protocols);

fn chromium_shows_a_page_and_resumes(engine: &'static str) {
    let log = "access_log logs/chromium.log seen;";
    let page = "root www; keepalive_timeout 0; location = /seen { return 200 \"$ssl_protocol $ssl_curve $ssl_alpn_protocol\"; }";
    let port = free_port();
    let format = "log_format seen \"$uri $ssl_session_reused\";\n";
    let blocks = block(port, &format!("{log} {page}"));
    let blocks = blocks.replacen("[http]\n", &format!("[http]\n{format}"), 1);
    let server = Server::start_workers(WORKERS, engine, &blocks);
    // Requests that the page's end waits for, one after the other.
    let script = "function get(path) { const request = new XMLHttpRequest(); request.open('GET', path, false); \
                  request.send(); return request.responseText; } \
                  for (let number = 0; number < 8; number++) get('/' + number + '.txt'); \
                  document.body.textContent = 'loaded ' + get('/seen');";
    let html = format!("<!doctype html><html><body>loading<script>{script}</script></body></html>");
    server.write("index.html", html.as_bytes());
    for number in 0..8 {
        server.write(&format!("{number}.txt"), b"text");
    }
    let Some(shown) =
        support::chromium::show(&server, &format!("https://localhost:{port}/index.html"))
    else {
        return;
    };
    assert!(
        shown.contains("loaded TLSv1.3 X25519MLKEM768 http/1.1"),
        "{shown}"
    );
    let begin = Instant::now();
    let seen = loop {
        let seen = std::fs::read_to_string(server.prefix.join("logs/chromium.log")).unwrap();
        if seen.contains("/seen") || begin.elapsed() > PATIENCE {
            break seen;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(seen.lines().any(|line| line.ends_with(" r")), "{seen}");
}

support::test_on_each_engine!(chromium_shows_a_page_and_resumes);
