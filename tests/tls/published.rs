//! Configurations that people have on disk start as they are, and serve: certbot's on Debian's
//! nginx.conf, and those that Mozilla's generator writes, <https://ssl-config.mozilla.org>.
//!
//! The files lie in tests/tls/configurations as published. Only ports, and the folders that they
//! name, are changed on the way. What they ask for and is not there (DHE, CBC, TLS 1.0) is skipped,
//! and one warning of each directive names it.

use std::fs;
use std::net::{Ipv6Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use support::PATIENCE;
use support::port::free_port;
use support::tls::Client;

fn source(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// A folder with a configuration, and the ports in the places of 80 and 443.
struct Site {
    prefix: PathBuf,
    plain: u16,
    secure: u16,
}

impl Site {
    fn new(name: &str) -> Site {
        let name = format!("tidegate-configuration-{name}-{}", std::process::id());
        let prefix = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&prefix);
        for folder in [
            "log",
            "logs",
            "www",
            "live",
            "conf.d",
            "sites-enabled",
            "modules-enabled",
        ] {
            fs::create_dir_all(prefix.join(folder)).unwrap();
        }
        fs::write(prefix.join("www/index.html"), "a page\n").unwrap();
        fs::write(prefix.join("mime.types"), "types { text/html html; }\n").unwrap();
        for (to, from) in [
            ("live/fullchain.pem", "rsa.crt"),
            ("live/privkey.pem", "rsa.key"),
            ("live/chain.pem", "ca.crt"),
            ("ssl-dhparams.pem", "configurations/ssl-dhparams.pem"),
            (
                "options-ssl-nginx.conf",
                "configurations/options-ssl-nginx.conf",
            ),
        ] {
            fs::write(prefix.join(to), source(from)).unwrap();
        }
        Site {
            prefix,
            plain: free_port(),
            secure: free_port(),
        }
    }

    /// Puts a file of tests/tls/configurations into the folder, with our ports and folders.
    fn put(&self, name: &str, place: &str) {
        let mut text = source(&format!("configurations/{name}"));
        let at = self.prefix.display().to_string();
        let folders = [
            ("/etc/letsencrypt/live/example.test/", format!("{at}/live/")),
            ("/etc/letsencrypt/", format!("{at}/")),
            (
                "/path/to/signed_cert_plus_intermediates",
                format!("{at}/live/fullchain.pem"),
            ),
            ("/path/to/private_key", format!("{at}/live/privkey.pem")),
            ("/path/to/dhparam", format!("{at}/ssl-dhparams.pem")),
            (
                "/path/to/root_CA_cert_plus_intermediates",
                format!("{at}/live/chain.pem"),
            ),
            ("/etc/nginx/", format!("{at}/")),
            ("/run/nginx.pid", format!("{at}/nginx.pid")),
            ("/var/log/nginx/", format!("{at}/log/")),
            ("/var/www/html", format!("{at}/www")),
        ];
        for (from, to) in folders {
            text = text.replace(from, &to);
        }
        for (from, to) in [(80, self.plain), (443, self.secure)] {
            text = text.replace(&format!("listen {from} "), &format!("listen {to} "));
            text = text.replace(&format!("listen {from};"), &format!("listen {to};"));
            text = text.replace(&format!("[::]:{from}"), &format!("[::]:{to}"));
        }
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_err() {
            // Where the machine has no IPv6, nginx does not start with these lines either.
            let lines = text.lines().filter(|line| !line.contains("[::]"));
            text = lines.map(|line| format!("{line}\n")).collect();
        }
        fs::write(self.prefix.join(place), text).unwrap();
    }

    /// What every configuration needs, around a file that begins with `http` or lies within it.
    fn wrap(&self, name: &str) {
        let at = self.prefix.display();
        let include = if source(&format!("configurations/{name}")).contains("http {") {
            format!("include {at}/site.conf;")
        } else {
            format!("http {{ include {at}/site.conf; }}")
        };
        let text =
            format!("pid {at}/nginx.pid;\nerror_log {at}/log/error.log;\nevents {{}}\n{include}\n");
        fs::write(self.prefix.join("nginx.conf"), text).unwrap();
        self.put(name, "site.conf");
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("-p")
            .arg(&self.prefix)
            .args(["-c", "nginx.conf", "-e", "log/error.log"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// The warnings that `-t` prints, without the place in the file.
    fn warnings(&self) -> Vec<String> {
        let output = self.command(&["-t"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let warned = said.lines().filter(|line| line.contains("[warn]"));
        warned.map(str::to_owned).collect()
    }

    fn start(&self) -> Running {
        let output = fs::File::create(self.prefix.join("output")).unwrap();
        let child = self.command(&["-g", "daemon off;"]).stderr(output).spawn();
        let mut running = Running(child.unwrap());
        let begin = Instant::now();
        // `-t` has made the file, but empty.
        let written = || fs::read(self.prefix.join("nginx.pid")).is_ok_and(|pid| !pid.is_empty());
        while !written() {
            let said = fs::read_to_string(self.prefix.join("output")).unwrap_or_default();
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none() && begin.elapsed() < PATIENCE, "{said}");
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// The response for a path by this version of TLS, if there is one.
    fn get(&self, version: &'static SupportedProtocolVersion) -> Result<support::Response, String> {
        let client = Client::new()
            .name("example.test")
            .version(version)
            .protocol("http/1.1");
        client.connect(self.secure)?.get_from("example.test", "/")
    }

    /// The response to a request in the clear.
    fn redirected(&self) -> String {
        let mut connection = support::Connection::open(self.plain).unwrap();
        // The host in the request line goes before the one in the header.
        connection.send("http://example.test/path?q", "").unwrap();
        connection.receive(Duration::ZERO).unwrap().head
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// A server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        support::signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// The one warning that contains these words.
fn warning<'a>(warnings: &'a [String], words: &str) -> &'a str {
    let fitting: Vec<&String> = warnings
        .iter()
        .filter(|line| line.contains(words))
        .collect();
    assert_eq!(fitting.len(), 1, "one line with {words}: {warnings:#?}");
    fitting[0]
}

#[test]
fn certbot_on_debian() {
    let site = Site::new("certbot");
    site.put("debian-nginx.conf", "nginx.conf");
    site.put("certbot-site", "sites-enabled/example.test");
    let warnings = site.warnings();
    let ciphers = warning(&warnings, "\"ssl_ciphers\"");
    for name in ["DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES256-GCM-SHA384"] {
        assert!(ciphers.contains(name), "{ciphers}");
    }
    assert!(!ciphers.contains("ECDHE-"), "{ciphers}");
    let versions = warning(&warnings, "\"ssl_protocols\"");
    assert!(versions.contains("skipped: TLSv1, TLSv1.1"), "{versions}");

    let _running = site.start();
    for version in [&TLS12, &TLS13] {
        assert_eq!(site.get(version).unwrap().body, b"a page\n");
    }
    let head = site.redirected();
    assert!(
        head.contains("Location: https://example.test/path?q\r\n"),
        "{head}"
    );
}

/// Starts a configuration of Mozilla's and asks it by both versions of TLS.
fn mozilla(name: &str, version_12: bool, skipped: &[&str]) {
    let site = Site::new(name);
    site.wrap(&format!("mozilla-{name}.conf"));
    let warnings = site.warnings();
    match skipped {
        [] => assert!(!warnings.iter().any(|line| line.contains("ssl_ciphers"))),
        names => {
            let said = warning(&warnings, "\"ssl_ciphers\"");
            let named: Vec<&str> = said
                .split_once("skipped: ")
                .unwrap()
                .1
                .split(" in ")
                .collect();
            assert_eq!(named[0], names.join(", "));
        }
    }
    let _running = site.start();
    assert_eq!(
        site.get(&TLS12).is_ok(),
        version_12,
        "{:?}",
        site.get(&TLS12)
    );
    let response = site.get(&TLS13).unwrap();
    let header = "Strict-Transport-Security: max-age=63072000\r\n";
    assert!(response.head.contains(header), "{}", response.head);
    let head = site.redirected();
    assert!(
        head.contains("Location: https://example.test/path?q\r\n"),
        "{head}"
    );
}

const DHE: [&str; 3] = [
    "DHE-RSA-AES128-GCM-SHA256",
    "DHE-RSA-AES256-GCM-SHA384",
    "DHE-RSA-CHACHA20-POLY1305",
];

#[test]
fn mozillas_modern_configuration() {
    mozilla("modern", false, &[]);
}

#[test]
fn mozillas_intermediate_configuration() {
    mozilla("intermediate", true, &DHE);
    mozilla("intermediate-1.17", true, &DHE[..2]);
}

#[test]
fn mozillas_old_configuration() {
    let others = [
        "ECDHE-ECDSA-AES128-SHA256",
        "ECDHE-RSA-AES128-SHA256",
        "ECDHE-ECDSA-AES128-SHA",
        "ECDHE-RSA-AES128-SHA",
        "ECDHE-ECDSA-AES256-SHA384",
        "ECDHE-RSA-AES256-SHA384",
        "ECDHE-ECDSA-AES256-SHA",
        "ECDHE-RSA-AES256-SHA",
        "DHE-RSA-AES128-SHA256",
        "DHE-RSA-AES256-SHA256",
        "AES128-GCM-SHA256",
        "AES256-GCM-SHA384",
        "AES128-SHA256",
        "AES256-SHA256",
        "AES128-SHA",
        "AES256-SHA",
        "DES-CBC3-SHA",
    ];
    mozilla("old", true, &[&DHE[..], &others].concat());
}
