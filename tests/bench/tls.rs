//! `tidegate bench https://…`: against our own server, servers that misbehave, and openssl's; and
//! what the modes of other tools make of it. Certificates and keys lie in tests/tls.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::Server;
use support::load::{bench, number, report};
use support::port::free_port;

/// A file of tests/tls.
fn file(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server of its own with this certificate.
fn block(listen: &str, certificate: &str, lines: &str) -> String {
    format!(
        "server {{ listen {listen} ssl; ssl_certificate {}; ssl_certificate_key {};\n{lines}\n\
         location / {{ return 200 \"$ssl_session_reused\\n\"; }} }}\n",
        file(&format!("{certificate}.crt")),
        file(&format!("{certificate}.key"))
    )
}

/// Starts Tidegate with one TLS port, and gives its URL.
fn start(certificate: &str, lines: &str) -> (Server, String) {
    let port = free_port();
    let block = block(&format!("127.0.0.1:{port}"), certificate, lines);
    let server = Server::start("", &format!("[http]\n{block}"));
    (server, format!("https://127.0.0.1:{port}/"))
}

/// A server that shakes hands in the way of tests, and then does `serve`.
fn secure(
    serve: impl Fn(StreamOwned<ServerConnection, TcpStream>) + Clone + Send + 'static,
) -> String {
    let certificate = CertificateDer::from_pem_file(file("ecdsa.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("ecdsa.key")).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let url = support::load::server(move |stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(tls, stream);
        if support::load::request(&mut stream) {
            serve(stream);
        }
    });
    url.replace("http://", "https://")
}

/// Checks that all of so many requests succeeded, with so many handshakes of each kind.
fn check(report: &str, requests: f64, full: f64, resumed: f64) {
    let known = [
        "succeeded",
        "failed",
        "full_handshakes",
        "resumed_handshakes",
    ];
    let found = known.map(|name| number(report, name));
    assert_eq!(found, [requests, 0.0, full, resumed], "{report}");
}

#[test]
fn every_kind_of_load_goes_over_tls() {
    let (_server, url) = start("ecdsa", "");
    let run = |options: &[&str]| report(&[&[&*url, "--insecure", "-c", "4"], options].concat());
    for engine in support::engines::names() {
        check(&run(&["-n", "100", "--engine", engine]), 100.0, 4.0, 0.0);
        let pipelined = run(&["-n", "400", "--pipeline", "8", "--engine", engine]);
        check(&pipelined, 400.0, 4.0, 0.0);
        let each = run(&["-n", "40", "--new-connections", "--engine", engine]);
        check(&each, 40.0, 40.0, 0.0);
    }
    check(&run(&["-n", "50", "--rate", "2000"]), 50.0, 4.0, 0.0);
    check(&run(&["-n", "20", "--think-time", "1ms"]), 20.0, 4.0, 0.0);
    check(
        &run(&["-n", "40", "-t", "2", "--source", "127.0.0.2-127.0.0.3"]),
        40.0,
        4.0,
        0.0,
    );
}

#[test]
fn sessions_go_on_where_they_are_asked_to() {
    // One connection at a time, so that each finds what the one before it has left.
    for version in ["1.2", "1.3"] {
        let (_server, url) = start("ecdsa", "");
        let options = [
            "--insecure",
            "-c",
            "1",
            "-n",
            "20",
            "--tls-version",
            version,
        ];
        let run = |more: &[&str]| report(&[&[&*url], &options[..], more].concat());
        check(&run(&["--new-connections"]), 20.0, 20.0, 0.0);
        let resumed = run(&["--new-connections", "--resume"]);
        check(&resumed, 20.0, 1.0, 19.0);
        assert!(resumed.contains("\"resume\":true"), "{resumed}");
        let named = format!("\"tls\":[\"TLSv{version}, ");
        assert!(resumed.contains(&named), "{resumed}");
    }
}

#[test]
fn conditions_name_what_was_agreed_upon() {
    let (_server, url) = start("rsa", "");
    let options = [
        "--insecure",
        "--tls-version",
        "1.2",
        "--ciphers",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "--curves",
        "P-256",
        "-n",
        "5",
    ];
    let output = bench(&[&[&*url], &options[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  TLSv1.2, ECDHE-RSA-AES128-GCM-SHA256, P-256, certificate of RSA 2048\n",
        "  TLS handshakes: 5 full, 0 resumed\n",
        "connect         TLS  first byte       total\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let csv = bench(&[&[&*url], &options[..], &["--csv"]].concat());
    let csv = String::from_utf8(csv.stdout).unwrap();
    let columns: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let of = |name: &str| columns[1][columns[0].iter().position(|known| *known == name).unwrap()];
    assert_eq!(["full_handshakes", "handshake_count"].map(of), ["5", "5"]);
    for (options, words) in [
        (
            &["--ciphers", "RC4-MD5"][..],
            "no cipher suite RC4-MD5 here",
        ),
        (&["--curves", "P-1"], "no group P-1 here"),
        (&["--cacert", "/nowhere"], "/nowhere: "),
        (&["--sni", "a b"], "a b: not a name"),
        (&["--key", "/nowhere"], "--cert"),
    ] {
        let output = bench(&[&[&*url, "-n", "1"], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(words),
            "{errors}"
        );
    }
}

#[test]
fn certificates_are_verified_unless_told_otherwise() {
    let (_server, url) = start("upstream/good.example", "");
    let authority = file("upstream/ca.crt");
    let run = |options: &[&str]| report(&[&[&*url, "-c", "1", "-n", "2"], options].concat());
    let known = ["--cacert", &authority, "--sni", "good.example"];
    check(&run(&known), 2.0, 1.0, 0.0);
    for options in [
        &["--cacert", &authority][..],
        &["--cacert", &authority, "--sni", "other.example"],
        &["--cacert", &file("ca.crt"), "--sni", "good.example"],
    ] {
        let refused = run(options);
        assert_eq!(number(&refused, "tls_untrusted"), 2.0, "{refused}");
    }
    let output = bench(&[&url, "-c", "1", "-n", "2", "--cacert", &authority]);
    let text = String::from_utf8(output.stdout).unwrap();
    let words =
        "the first TLS handshake that failed: certificate not trusted: invalid peer certificate";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_certificate_of_our_own() {
    let lines = format!(
        "ssl_verify_client on; ssl_client_certificate {};",
        file("ca.crt")
    );
    let (_server, url) = start("ecdsa", &lines);
    let (certificate, key) = (file("client.crt"), file("client.key"));
    let options = ["--insecure", "-c", "1", "-n", "3"];
    let without = report(&[&[&*url], &options[..]].concat());
    assert_eq!(number(&without, "status"), 3.0, "{without}");
    let own = ["--cert", &certificate, "--key", &key];
    let with = report(&[&[&*url], &options[..], &own].concat());
    assert_eq!(number(&with, "succeeded"), 3.0, "{with}");
}

#[test]
fn a_unix_socket() {
    let path = std::env::temp_dir().join(format!("tidegate-bench-tls-{}", std::process::id()));
    let listen = format!("unix:{}", path.display());
    let _server = Server::start("", &format!("[http]\n{}", block(&listen, "ecdsa", "")));
    let url = format!("https://{listen}:/");
    check(
        &report(&[&url, "--insecure", "-c", "2", "-n", "20"]),
        20.0,
        2.0,
        0.0,
    );
}

#[test]
fn bad_servers_are_counted_by_kind() {
    let closing = support::load::server(|mut stream| {
        support::load::request(&mut stream);
    });
    let plain = support::load::answering(support::load::GOOD);
    let alerting = support::load::server(|mut stream| {
        support::load::request(&mut stream);
        // handshake_failure, fatal
        let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 40]);
    });
    let silent = support::load::server(|mut stream| while support::load::request(&mut stream) {});
    let broken = secure(|mut stream| {
        let _ = stream.sock.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        support::load::request(&mut stream);
    });
    let until_close = b"HTTP/1.0 200 OK\r\n\r\nabc";
    let truncated = secure(move |mut stream| {
        let _ = stream.write_all(until_close).and_then(|()| stream.flush());
    });
    let in_body = secure(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc");
        stream.conn.send_close_notify();
        let _ = stream.flush();
    });
    let too_long = secure(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc");
        let _ = stream.flush();
        support::load::request(&mut stream);
    });
    for (url, name) in [
        (closing, "tls_closed"),
        (plain, "tls_handshake"),
        (alerting, "tls_handshake"),
        (silent, "tls_timeout"),
        (broken, "tls_broken"),
        (truncated, "closed_in_body"),
        (in_body, "closed_in_body"),
        (too_long, "wrong_length"),
    ] {
        let url = url.replace("http://", "https://");
        let timeout = if name == "tls_timeout" { "1s" } else { "60s" };
        let run = report(&[
            &url,
            "--insecure",
            "-c",
            "2",
            "-n",
            "4",
            "--timeout",
            timeout,
        ]);
        assert_eq!(number(&run, name), 4.0, "{name}: {run}");
    }
    let ended = secure(move |mut stream| {
        let _ = stream.write_all(until_close);
        stream.conn.send_close_notify();
        let _ = stream.flush();
    });
    let run = report(&[&ended, "--insecure", "-c", "2", "-n", "4"]);
    assert_eq!(number(&run, "succeeded"), 4.0, "{run}");
}

#[test]
fn runs_are_compared_swept_and_merged() {
    let (_server, url) = start("ecdsa", "");
    let options = ["--insecure", "--new-connections", "--resume"];
    let saved = std::env::temp_dir().join(format!("tidegate-bench-tls-{}.run", std::process::id()));
    let saved = saved.to_str().unwrap();
    let run = [&url, "-c", "1", "-n", "10", "--save", saved];
    report(&[&run[..], &options].concat());
    let merged = report(&["merge", saved, saved]);
    check(&merged, 20.0, 2.0, 18.0);
    assert!(merged.contains("certificate of ECDSA P-256"), "{merged}");
    std::fs::remove_file(saved).unwrap();

    let compare = [
        "compare", "--a", &url, "--b", &url, "-c", "1", "-n", "10", "--rounds", "2",
    ];
    let output = bench(&[&compare[..], &options].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "A: TLSv1.3, ",
        "B: TLSv1.3, ",
        "A: 2 TLS handshakes full, 18 resumed\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let sweep = [
        "sweep",
        &url,
        "--connections",
        "1,2",
        "-d",
        "200ms",
        "--pause",
        "10ms",
    ];
    let swept = report(&[&sweep[..], &options].concat());
    assert!(swept.contains("\"succeeded\":"), "{swept}");
}

/// The lines of ab's report that two runs have in common.
fn of_ab(text: &str) -> Vec<&str> {
    let known = [
        "Server Hostname",
        "SSL/TLS",
        "Server Temp",
        "TLS Server",
        "Document",
        "Complete",
        "Failed",
    ];
    let is_known = |line: &&str| known.iter().any(|known| line.starts_with(known));
    text.lines().filter(is_known).collect()
}

#[test]
fn the_modes_of_other_tools() {
    let (_server, url) = start("ecdsa", "");
    let named = url.replace("127.0.0.1", "localhost");
    for options in [
        &["-n", "10", "-c", "2", &*url][..],
        &[
            "-n",
            "10",
            "-k",
            "-f",
            "TLS1.2",
            "-Z",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            &url,
        ],
        &["-n", "3", "-f", "TLS1.3", &named],
        &["-n", "3", "-I", &named],
    ] {
        let output = bench(&[&["ab"], options].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\nSSL/TLS Protocol:       TLSv1."), "{text}");
        assert!(text.contains("\nFailed requests:        0\n"), "{text}");
        // ApacheBench of OpenSSL 3.5 and later agrees upon ML-KEM, which it has no name for.
        match Command::new("ab").args(options).output() {
            Ok(theirs) => {
                let theirs = String::from_utf8(theirs.stdout).unwrap();
                if !of_ab(&theirs)
                    .iter()
                    .any(|line| line.contains("Temp Key:        X25519"))
                {
                    continue;
                }
                let group = |line: &&str| !line.starts_with("Server Temp");
                let of = |text| of_ab(text).into_iter().filter(group).collect::<Vec<_>>();
                assert_eq!(of(&text), of(&theirs), "{options:?}");
            }
            Err(_) => eprintln!("not compared: there is no ab"),
        }
    }
    let plain = support::load::answering(support::load::GOOD).replace("http://", "https://");
    let output = bench(&["ab", "-n", "3", &plain]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("SSL handshake failed"),
        "{errors}"
    );

    let output = bench(&["siege", "-j", "-b", "-c", "2", "-r", "5", &url]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\"transactions\":\t\t\t          10,\n"),
        "{text}"
    );
    let output = bench(&["siege", "-g", &url]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("HTTP/1.1 200 OK"), "{text}");

    let urls = std::env::temp_dir().join(format!("tidegate-bench-tls-{}.urls", std::process::id()));
    std::fs::write(&urls, &url).unwrap();
    let output = bench(&[
        "http_load",
        "-parallel",
        "2",
        "-fetches",
        "10",
        urls.to_str().unwrap(),
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  code 200 -- 10\n"), "{text}");
    std::fs::remove_file(urls).unwrap();
}

#[test]
fn the_server_of_openssl() {
    let port = free_port();
    let (certificate, key) = (file("rsa.crt"), file("rsa.key"));
    let port_text = port.to_string();
    let server = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-www",
            "-accept",
            &port_text,
            "-cert",
            &certificate,
            "-key",
            &key,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut server) = server else {
        eprintln!("skipped: there is no openssl");
        return;
    };
    let begin = std::time::Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            begin.elapsed() < support::PATIENCE,
            "openssl does not start"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let url = format!("https://127.0.0.1:{port}/");
    let options = ["--insecure", "-c", "1", "-n", "5", "--new-connections"];
    let runs =
        [&[][..], &["--resume"]].map(|more| report(&[&[&*url], &options[..], more].concat()));
    server.kill().unwrap();
    server.wait().unwrap();
    check(&runs[0], 5.0, 5.0, 0.0);
    check(&runs[1], 5.0, 1.0, 4.0);
}
