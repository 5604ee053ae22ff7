//! In front of servers that people run, with nothing changed there.

use super::*;

/// What a site has: a file that has not changed for an hour.
fn site() -> PathBuf {
    let root = folder();
    fs::write(root.join("page.html"), "<h1>a page</h1>\n").unwrap();
    let file = fs::File::options().write(true).open(root.join("page.html"));
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    file.unwrap().set_modified(old).unwrap();
    root
}

/// A process that ends with the value, and a folder that goes with it.
struct Behind(Child, PathBuf);

impl Drop for Behind {
    fn drop(&mut self) {
        signal(self.0.id(), "TERM");
        let _ = self.0.wait();
        let _ = fs::remove_dir_all(&self.1);
    }
}

/// Debian's Apache with its own modules, where there is one.
fn apache(port: u16, more: &str) -> Option<Behind> {
    if !std::path::Path::new("/usr/sbin/apache2").exists() {
        eprintln!("skipped: apache2 is missing (apt-get install apache2)");
        return None;
    }
    let root = site();
    let modules = [
        "mpm_event",
        "authz_core",
        "authz_host",
        "dir",
        "mime",
        "status",
        "remoteip",
    ];
    let modules = modules
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let path = root.display();
    let configuration = format!(
        "{}ServerRoot {path}\nPidFile {path}/pid\nErrorLog {path}/error.log\nListen 127.0.0.1:{port}\n\
         CustomLog {path}/access.log \"%a %U\"\nUser nobody\nGroup nogroup\n\
         ServerName localhost\nDocumentRoot {path}\nTypesConfig /etc/mime.types\n\
         <Directory />\nRequire all granted\n</Directory>\n\
         <Location /server-status>\nSetHandler server-status\nRequire local\n</Location>\n{more}",
        modules.concat()
    );
    fs::write(root.join("apache.conf"), configuration).unwrap();
    let child = Command::new("/usr/sbin/apache2")
        .args(["-DFOREGROUND", "-f"])
        .arg(root.join("apache.conf"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let behind = Behind(child, root);
    until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    Some(behind)
}

#[test]
fn apache_gets_faster_and_nothing_else() {
    let port = port::free_port();
    let Some(_behind) = apache(port, "") else {
        return;
    };
    let accelerator = Accelerator::start(port, &[]);
    let direct = ask_at(
        port,
        b"GET /page.html HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n",
    );
    for _ in 0..5 {
        let answer = accelerator.get("/page.html");
        assert_eq!((answer.status(), answer.text()), ("200", direct.text()));
        for name in [
            "Server",
            "ETag",
            "Last-Modified",
            "Content-Type",
            "Accept-Ranges",
        ] {
            assert_eq!(answer.field(name), direct.field(name), "{name}");
        }
    }
    until(|| accelerator.caches("/page.html").len() == 5);
    let caches = accelerator.caches("/page.html");
    assert_eq!(caches[0], "MISS");
    assert!(caches.contains(&"HIT".to_owned()), "{caches:?}");
    // It asks Apache again, which says that nothing has changed.
    until(|| {
        accelerator.get("/page.html");
        let caches = accelerator.caches("/page.html");
        caches.iter().any(|cache| cache == "REVALIDATED")
    });
    // Whom Apache takes for its own machine is everybody now.
    assert_eq!(accelerator.get("/page.html/").status(), "404");
    let status = |port| {
        ask_at(
            port,
            b"GET /server-status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
    };
    assert_eq!(status(port).status(), "200");
    assert!(
        accelerator
            .said
            .contains("shows /server-status to this machine"),
        "{}",
        accelerator.said
    );
    for path in [
        "/server-status",
        "/server-status/",
        "/server-status?auto",
        "//server-status",
        "/%73erver-status",
        "/a/../server-status",
        "/./server-status/x",
        "/server%2Dstatus",
        "/server-status%2f",
        "/a/..//server-status",
    ] {
        let answer = accelerator.get(path);
        assert!(!answer.text().contains("Apache Status"), "{path}");
        assert_eq!(answer.status(), "403", "{path}");
    }
    assert_eq!(accelerator.get("/server-statuses").status(), "404");
}

/// Apache that learns who the client is, by either way, needs no help.
#[test]
fn apache_knows_who_asks() {
    for (more, option) in [
        (
            "RemoteIPHeader X-Forwarded-For\nRemoteIPInternalProxy 127.0.0.1\n",
            None,
        ),
        ("RemoteIPProxyProtocol On\n", Some("--proxy-protocol")),
    ] {
        let port = port::free_port();
        let Some(behind) = apache(port, more) else {
            return;
        };
        let options: Vec<&str> = option.into_iter().collect();
        let client = port::free_port();
        let mut command = tidegate();
        command.args(["accelerate", &port.to_string()]);
        command
            .args(["--listen", &format!("127.0.0.3:{client}")])
            .args(&options);
        let accelerator = Accelerator::run(command, client);
        assert!(
            !accelerator.said.contains("Warning"),
            "{}",
            accelerator.said
        );
        let socket = std::net::SocketAddr::from(([127, 0, 0, 3], client));
        let mut stream = TcpStream::connect(socket).unwrap();
        stream
            .write_all(b"GET /page.html HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(parse(&bytes).status(), "200");
        let told = stream.local_addr().unwrap().ip();
        // What the client has said of itself is not believed.
        let log = fs::read_to_string(behind.1.join("access.log")).unwrap();
        assert!(
            log.lines().any(|line| line == format!("{told} /page.html")),
            "{log}"
        );
        assert!(!log.contains("192.0.2.7"), "{log}");
    }
}

#[test]
fn python_is_asked_once_for_many() {
    let port = port::free_port();
    let root = site();
    let child = Command::new("python3")
        .args([
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            &port.to_string(),
        ])
        .current_dir(&root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(root.join("asked.log")).unwrap())
        .spawn()
        .unwrap();
    let behind = Behind(child, root);
    until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    let accelerator = Accelerator::start(port, &["--ttl", "1h"]);
    for _ in 0..20 {
        let answer = accelerator.get("/page.html");
        assert_eq!(
            (answer.status(), answer.text()),
            ("200", "<h1>a page</h1>\n".to_owned())
        );
    }
    let asked = fs::read_to_string(behind.1.join("asked.log")).unwrap();
    assert_eq!(asked.matches("/page.html").count(), 1, "{asked}");
}

#[test]
fn serve_passes_on_with_nothing_between() {
    let origin = Origin::start(|request, number| {
        let line = request.lines().next().unwrap();
        ok(
            "Cache-Control: max-age=60\r\n",
            format!("{number} {line}").as_bytes(),
        )
    });
    let port = port::free_port();
    let mut command = tidegate();
    command.args([
        "serve",
        "--proxy",
        &format!("http://127.0.0.1:{}", origin.port),
    ]);
    command.args(["--port", &port.to_string()]);
    let proxy = Accelerator::run(command, port);
    assert!(
        proxy
            .said
            .starts_with("Passing requests on to http://127.0.0.1:"),
        "{}",
        proxy.said
    );
    for number in 0..2 {
        let answer = proxy.get("/a%20b?c=d");
        assert_eq!(answer.text(), format!("{number} GET /a%20b?c=d HTTP/1.1"));
    }
    let seen = origin.last();
    assert!(seen.contains("\r\nHost: a.test\r\n"), "{seen}");
    assert!(
        seen.contains("\r\nX-Forwarded-For: 127.0.0.1\r\n"),
        "{seen}"
    );
    assert!(seen.contains("\r\nX-Forwarded-Proto: http\r\n"), "{seen}");
}

#[test]
fn what_cannot_work_is_said() {
    let port = port::free_port().to_string();
    let refused = |arguments: &[&str]| {
        let output = tidegate().args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, said) in [
        (
            vec!["accelerate", "ftp://a"],
            "\"ftp://a\": the server behind is asked by http:// or https://",
        ),
        (vec!["accelerate", "http://a/b"], "a path is not taken"),
        (
            vec!["accelerate", &port, "--port", &port],
            "it would ask itself",
        ),
        (
            vec!["accelerate", &port, "--memory", "1k"],
            "a cache takes 1m at least",
        ),
        (
            vec!["accelerate", &port, "--ttl", "soon"],
            "--ttl soon: a time is a number",
        ),
        (
            vec!["accelerate", &port, "--ignore-cookie", "a;b"],
            "this is no name of a cookie",
        ),
        (
            vec!["accelerate", &port, "--purge-from", "all"],
            "--purge-from all: a network is",
        ),
        (vec!["serve", ".", "--proxy", &port], "cannot be used with"),
        (
            vec!["serve", "--spa", "--proxy", &port],
            "cannot be used with",
        ),
    ] {
        let error = refused(&arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}
