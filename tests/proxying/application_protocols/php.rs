//! A real php-fpm, by the files that Debian's nginx brings.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::master::wait_for;
use support::{PATIENCE, Server};

use super::{ask, get, status};

/// A pool of php-fpm in a folder that ends with it.
struct Php {
    folder: PathBuf,
    process: Child,
}

impl Php {
    fn start(name: &str, children: u32) -> Php {
        Php::start_with(name, children, "")
    }

    /// One with these lines more.
    fn start_with(name: &str, children: u32, lines: &str) -> Php {
        let folder = support::temporary_path(&format!("php-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.display();
        let pool = format!(
            "[global]\nerror_log = {path}/fpm.log\ndaemonize = no\n[www]\nuser = root\ngroup = root\nlisten = {path}/fpm.sock\nlisten.mode = 0666\n\
             pm = static\npm.max_children = {children}\ncatch_workers_output = no\nphp_admin_value[error_log] =\n\
             php_admin_flag[log_errors] = on\nphp_admin_value[upload_tmp_dir] = {path}\n{lines}\n"
        );
        fs::write(folder.join("fpm.conf"), pool).unwrap();
        let process = Command::new(support::php::program())
            .args(["-R", "-F", "-y"])
            .arg(folder.join("fpm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let php = Php { folder, process };
        wait_for("php-fpm", || php.socket().exists());
        php
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("fpm.sock")
    }
}

impl Drop for Php {
    fn drop(&mut self) {
        support::signal(self.process.id(), "TERM");
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A site of PHP as Debian's files have it.
fn lines(php: &Php) -> String {
    let socket = php.socket();
    format!(
        "index index.php index.html; client_max_body_size 20m;
         location / {{ try_files $uri $uri/ /index.php?$args; }}
         location ~ \\.php(/|$) {{
             fastcgi_split_path_info ^(.+?\\.php)(/.*)$;
             try_files $fastcgi_script_name =404;
             set $path_info $fastcgi_path_info;
             fastcgi_param PATH_INFO $path_info;
             fastcgi_index index.php;
             include /etc/nginx/fastcgi.conf;
             fastcgi_pass unix:{};
         }}",
        socket.display()
    )
}

fn write_site(server: &Server) {
    let www = server.prefix.join("www");
    let write = |name: &str, text: &str| {
        let path: &Path = &www.join(name);
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    };
    write(
        "index.php",
        "<?php echo 'front ', $_SERVER['REQUEST_URI'], ' ', $_GET['a'] ?? '-';",
    );
    write(
        "info.php",
        "<?php echo $_SERVER['SCRIPT_NAME'], '|', $_SERVER['PATH_INFO'] ?? '', '|', $_SERVER['REQUEST_METHOD'], '|', $_SERVER['SERVER_PROTOCOL'];",
    );
    write(
        "post.php",
        "<?php http_response_code(201); header('X-Md5: ' . md5(file_get_contents('php://input'))); echo strlen(file_get_contents('php://input'));",
    );
    write(
        "upload.php",
        "<?php echo $_FILES['f']['name'], ' ', md5_file($_FILES['f']['tmp_name']);",
    );
    write(
        "large.php",
        "<?php for ($i = 0; $i < 200000; $i++) { echo $i, \"\\n\"; }",
    );
    write(
        "error.php",
        "<?php error_log('said by the script'); echo 'done';",
    );
    write(
        "killed.php",
        "<?php header('X-Begun: yes'); echo str_repeat('x', 9000); flush(); posix_kill(getmypid(), 9);",
    );
    write(
        "cookie.php",
        "<?php setcookie('a', '1'); setcookie('b', '2'); header('Location: /info.php', true, 303);",
    );
}

fn php_answers_by_debians_files(engine: &'static str) {
    let php = Php::start("site", 2);
    let server = Server::start(engine, &lines(&php));
    write_site(&server);
    let body = |answer: String| {
        answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap()
    };
    let plain = |path: &str| {
        let answer = ask(&server, &format!("GET {path} HTTP/1.0\r\nHost: a\r\n\r\n"));
        assert_eq!(status(&answer), 200, "{path}: {answer}");
        body(answer)
    };
    assert_eq!(plain("/some/page?a=7"), "front /some/page?a=7 7");
    assert_eq!(plain("/"), "front / -");
    assert_eq!(plain("/info.php/a/b?x"), "/info.php|/a/b|GET|HTTP/1.0");
    assert_eq!(status(&get(&server, "/missing.php")), 404);

    let sent = "0123456789".repeat(30_000);
    let answer = ask(
        &server,
        &format!(
            "POST /post.php HTTP/1.0\r\nHost: a\r\nContent-Length: {}\r\n\r\n{sent}",
            sent.len()
        ),
    );
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    // What `md5sum` says of the body.
    let hash = "\r\nX-Md5: b9c683230a9e20ee0a15acf7f070f508\r\n";
    assert!(
        answer.contains(hash) && answer.ends_with("\r\n\r\n300000"),
        "{answer}"
    );

    let part = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\n\r\nhello\r\n--b--\r\n";
    let answer = ask(
        &server,
        &format!(
            "POST /upload.php HTTP/1.0\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n{part}",
            part.len()
        ),
    );
    // The MD5 hash of `hello`.
    assert_eq!(body(answer), "a.txt 5d41402abc4b2a76b9719d911017c592");

    let large: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    assert!(plain("/large.php") == large);
    assert_eq!(plain("/error.php"), "done");
    server.wait_for_log("FastCGI sent in stderr: \"PHP message: said by the script\"");
    let answer = get(&server, "/cookie.php");
    assert_eq!(status(&answer), 303, "{answer}");
    assert_eq!(answer.matches("Set-Cookie: ").count(), 2, "{answer}");
}

support::test_on_each_engine!(php_answers_by_debians_files);

fn a_worker_that_is_killed_ends_its_answer_alone(engine: &'static str) {
    let php = Php::start("killed", 1);
    let server = Server::start(engine, &lines(&php));
    write_site(&server);
    let answer = get(&server, "/killed.php");
    assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    server.wait_for_log("readv() failed (104: Connection reset by peer) while reading upstream");
    // The next worker serves as before.
    assert!(get(&server, "/info.php").contains("/info.php|"));
    drop(php);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(status(&get(&server, "/info.php")), 502);
    server.wait_for_log("connect() to unix:");
}

support::test_on_each_engine!(a_worker_that_is_killed_ends_its_answer_alone);

/// Many more clients than php-fpm has workers and room for: nginx answers most of them with 502.
fn more_requests_than_php_has_room_for_are_all_answered(engine: &'static str) {
    const CLIENTS: usize = 60;
    for group in ["", "concurrency_limit 2;", "concurrency_limit adaptive;"] {
        let php = Php::start_with("full", 2, "listen.backlog = 2");
        let socket = php.socket();
        let lines = format!(
            "location ~ \\.php$ {{ include /etc/nginx/fastcgi.conf; fastcgi_pass php; }}
                 location = /static {{ return 200 quick; }}
[http]
upstream php {{ server unix:{}; {group} }}",
            socket.display()
        );
        let server = Server::start_workers(2, engine, &lines);
        let page = server.prefix.join("www/page.php");
        fs::write(&page, "<?php usleep(20000); echo 'done ', $_GET['n'];").unwrap();
        fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
        let clients: Vec<TcpStream> = (0..CLIENTS)
            .map(|number| {
                let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                let head = format!("GET /page.php?n={number} HTTP/1.0\r\nHost: a\r\n\r\n");
                client.write_all(head.as_bytes()).unwrap();
                client
            })
            .collect();
        assert_eq!(status(&get(&server, "/static")), 200);
        for (number, mut client) in clients.into_iter().enumerate() {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(status(&answer), 200, "{group} {answer}");
            assert!(answer.ends_with(&format!("done {number}")), "{answer}");
        }
        let log = server.error_log();
        assert!(
            !log.contains("[error]") && !log.contains("disabled"),
            "{log}"
        );
    }
}

support::test_on_each_engine!(more_requests_than_php_has_room_for_are_all_answered);
