//! Which requests run what, and what scripts are told.

use std::fs;
use std::process::Command;

use super::site::{Site, header, status, undisturbed, value};

#[test]
fn scripts_are_told_what_they_need() {
    let _quiet = undisturbed();
    let site = Site::new();
    let running = site.serve(&["--php"]);
    let folder = site.folder.to_str().unwrap();
    let (code, body) = running.get("/some/page?a=1&b=%20");
    assert_eq!(code, 200);
    let index = format!("{folder}/index.php");
    let port = running.port.to_string();
    for (name, expected) in [
        ("SCRIPT_FILENAME", &*index),
        ("SCRIPT_NAME", "/index.php"),
        ("PATH_INFO", ""),
        ("PHP_SELF", "/index.php"),
        ("DOCUMENT_ROOT", folder),
        ("here", folder),
        ("QUERY_STRING", "a=1&b=%20"),
        ("REQUEST_URI", "/some/page?a=1&b=%20"),
        ("REQUEST_METHOD", "GET"),
        ("HTTPS", "(none)"),
        ("REQUEST_SCHEME", "http"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("SERVER_NAME", "example.test"),
        ("SERVER_PORT", &port),
    ] {
        assert_eq!(value(&body, name), expected, "{name}");
    }
    // Symfony's and DokuWiki's way.
    let (_, body) = running.get("/index.php/foo/b%20r?x");
    for (name, expected) in [
        ("SCRIPT_NAME", "/index.php"),
        ("PATH_INFO", "/foo/b r"),
        ("PHP_SELF", "/index.php/foo/b r"),
        ("REQUEST_URI", "/index.php/foo/b%20r?x"),
        ("QUERY_STRING", "x"),
    ] {
        assert_eq!(value(&body, name), expected, "{name}");
    }
    let (_, body) = running.ask(
        "POST",
        "/api/items",
        "Proxy: http://evil/\r\nContent-Type: text/x\r\n",
        b"k=v",
    );
    let body = String::from_utf8(body).unwrap();
    assert_eq!(value(&body, "body"), "k=v");
    assert_eq!(value(&body, "REQUEST_METHOD"), "POST");
    assert_eq!(value(&body, "CONTENT_TYPE"), "text/x");
    assert_eq!(value(&body, "HTTP_PROXY"), "(none)", "httpoxy");
    let (head, body) = running.ask("HEAD", "/some/page", "", b"");
    assert!(status(&head) == 200 && body.is_empty(), "{head}");
    assert_eq!(
        status(&running.ask("DELETE", "/api/items/1", "", b"").0),
        200
    );
    let body = running.ask_without_host("/page");
    assert_eq!(value(&body, "SERVER_NAME"), "localhost");
    let (head, _) = running.ask("GET", "/", "", b"");
    assert_eq!(
        header(&head, "Cache-Control"),
        None,
        "that is for scripts to say: {head}"
    );
}

#[test]
fn files_are_served_scripts_run_and_the_rest_is_the_front_controllers() {
    let _quiet = undisturbed();
    let site = Site::new();
    for (name, text) in [
        ("a.js", "let a;"),
        ("a-0a1b2c3d.js", "let b;"),
        (
            "sub/index.php",
            "<?php echo 'sub:', $_SERVER['SCRIPT_NAME'];",
        ),
        ("static/index.html", "<h1>static</h1>"),
        ("both/index.html", "html"),
        ("both/index.php", "<?php echo 'php';"),
        ("empty/x.txt", "x"),
        ("info.php", "<?php echo 'info:', $_SERVER['PATH_INFO'];"),
        ("x y\n.php", "<?php echo 'odd';"),
        (".well-known/file.txt", "known"),
        (".well-known/run.php", "<?php echo 'run';"),
    ] {
        site.write(name, text);
    }
    let running = site.serve(&["--php"]);
    for (path, expected) in [
        ("/a.js", "let a;"),
        ("/a-0a1b2c3d.js", "let b;"),
        ("/sub/", "sub:/sub/index.php"),
        ("/static/", "<h1>static</h1>"),
        ("/both/", "php"),
        ("/info.php", "info:"),
        ("/info.php/a/b", "info:/a/b"),
        ("/info.php/", "info:/"),
        ("/info.php/a.php/b", "info:/a.php/b"),
        ("/x%20y%0a.php", "odd"),
        ("/.well-known/file.txt", "known"),
        ("/.well-known/run.php", "run"),
    ] {
        assert_eq!(running.get(path), (200, expected.to_owned()), "{path}");
    }
    for path in [
        "/",
        "/no/such/page",
        "/no.js",
        "/no-0a1b2c3d.js",
        "/no.php",
        "/no.php/a",
        "/a.js/no.php",
        "/no.phtml",
        "/.well-known/webfinger",
        "/sub/no",
    ] {
        let (code, body) = running.get(path);
        assert_eq!(code, 200, "{path}");
        assert_eq!(value(&body, "SCRIPT_NAME"), "/index.php", "{path}");
        assert_eq!(value(&body, "REQUEST_URI"), path);
    }
    assert_eq!(running.get("/empty/").0, 403);
    let (head, _) = running.ask("GET", "/sub", "", b"");
    assert_eq!(
        (status(&head), header(&head, "Location")),
        (301, Some("/sub/"))
    );
    assert_eq!(status(&running.ask("POST", "/a.js", "", b"x").0), 405);
    assert_eq!(status(&running.ask("POST", "/sub/", "", b"x").0), 200);
    let (head, body) = running.ask("GET", "/a.js", "Range: bytes=4-4\r\n", b"");
    assert_eq!((status(&head), &*body), (206, &b"a"[..]));
    assert_eq!(header(&head, "Cache-Control"), Some("no-cache"));
}

/// Without index.php a folder is what its files are.
#[test]
fn without_a_front_controller_what_is_not_there_is_404() {
    let _quiet = undisturbed();
    let site = Site::empty();
    site.write("run.php", "<?php echo 'run';");
    site.write("x.jpg", "<?php echo 'in a picture';");
    let running = site.serve(&["--php"]);
    assert_eq!(running.get("/run.php"), (200, "run".to_owned()));
    for path in [
        "/no",
        "/no.php",
        "/index.php",
        "/index.php/a",
        "/x.jpg/y.php",
        "/x.jpg/.php",
        "/run.php%00",
    ] {
        let code = running.get(path).0;
        assert!(matches!(code, 404 | 400), "{path}: {code}");
    }
    assert_eq!(running.get("/").0, 403);
    // It counts as soon as it is there.
    site.write("index.php", "<?php echo 'front';");
    assert_eq!(running.get("/no"), (200, "front".to_owned()));
    fs::remove_dir_all(&site.folder).unwrap();
    let (code, _) = running.get("/run.php");
    assert!(matches!(code, 404 | 403), "{code}");
}

#[test]
fn rules_of_apache_that_would_close_something_are_warned_of() {
    let _quiet = undisturbed();
    let site = Site::new();
    site.write(".htaccess", "RewriteRule . /index.php [L]\n");
    assert!(!site.serve(&["--php"]).printed.contains("htaccess"));
    site.write("data/.htaccess", "order allow,deny\nDeny from all\n");
    let printed = site.serve(&["--php"]).printed.clone();
    let warning = "Warning: data/.htaccess closes something to clients, and is not read here";
    assert!(printed.contains(warning), "{printed}");
}

#[test]
fn uploads_and_long_answers_pass() {
    let _quiet = undisturbed();
    let site = Site::empty();
    site.write(
        "upload.php",
        "<?php $f = $_FILES['f'] ?? null; echo $f ? $f['error'] . ' ' . md5_file($f['tmp_name']) : 'none ' . strlen(file_get_contents('php://input'));",
    );
    site.write(
        "long.php",
        "<?php for ($i = 0; $i < 300000; $i++) echo \"$i\\n\";",
    );
    site.write("stderr.php", "<?php file_put_contents('php://stderr', str_repeat('x', 1 << 20) . \"\\n\"); error_log('said by the script'); echo 'done';");
    site.write("sleep.php", "<?php usleep(300000); echo 'slept';");
    let running = site.serve(&["--php"]);
    let form = |length: usize| {
        let mut body =
            b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\n\r\n"
                .to_vec();
        body.extend(std::iter::repeat_n(b'y', length));
        body.extend_from_slice(b"\r\n--b--\r\n");
        body
    };
    let kind = "Content-Type: multipart/form-data; boundary=b\r\n";
    // `head -c 1900000 /dev/zero | tr '\0' y | md5sum`, below what php.ini allows.
    let (_, body) = running.ask("POST", "/upload.php", kind, &form(1_900_000));
    let hash = Command::new("sh")
        .args(["-c", "head -c 1900000 /dev/zero | tr '\\0' y | md5sum"])
        .output()
        .unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    assert_eq!(
        String::from_utf8(body).unwrap(),
        format!("0 {}", &hash[..32])
    );
    // Beyond that it is PHP that refuses, and in its own way.
    let (head, body) = running.ask("POST", "/upload.php", kind, &form(20_000_000));
    assert_eq!(status(&head), 200);
    assert!(
        String::from_utf8_lossy(&body).starts_with("none "),
        "{}",
        String::from_utf8_lossy(&body)
    );
    let (_, body) = running.ask("PUT", "/upload.php", "", &vec![b'z'; 20_000_000]);
    assert_eq!(String::from_utf8_lossy(&body), "none 20000000");
    let head = format!("Content-Length: {}\r\n", 2_u64 << 30);
    assert_eq!(
        status(&running.ask("POST", "/upload.php", &head, b"").0),
        413
    );

    let long: String = (0..300_000).map(|number| format!("{number}\n")).collect();
    assert!(running.get("/long.php").1 == long);
    assert_eq!(running.get("/stderr.php"), (200, "done".to_owned()));
    running.wait_for_line("\nPHP message: said by the script\n");
    let printed = running.said().matches('x').count();
    assert!(printed >= 1 << 20, "{printed}");
    assert!(!running.said().contains("FastCGI sent in stderr"));
    // As many at once as a browser and its tabs ask for.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..30)
            .map(|_| scope.spawn(|| running.get("/sleep.php")))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), (200, "slept".to_owned()));
        }
    });
}

#[test]
fn options_go_together() {
    let _quiet = undisturbed();
    let site = Site::new();
    site.write("sub/a.txt", "a");
    let state = site.beside("state");
    let running = site.serve(&[
        "--php",
        "--browse",
        "--tls",
        "internal",
        "--state",
        state.to_str().unwrap(),
        "--password",
        "ann:secret",
    ]);
    let curl = |path: &str, user: &str| {
        let url = format!("https://localhost:{}{path}", running.port);
        let output = Command::new("curl")
            .args(["-sk", "-u", user, &url])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let body = curl("/page", "ann:secret");
    for (name, expected) in [
        ("HTTPS", "on"),
        ("REQUEST_SCHEME", "https"),
        ("REMOTE_USER", "ann"),
        ("SERVER_NAME", "localhost"),
        ("secret", "(none)"),
    ] {
        assert_eq!(value(&body, name), expected, "{name}");
    }
    assert!(curl("/page", "ann:wrong").contains("401 Authorization Required"));
    assert!(curl("/index.php/x", "ann:wrong").contains("401 Authorization Required"));
    assert!(curl("/sub/", "ann:secret").contains("a.txt"));
    drop(running);

    let running = site.serve(&["--php", "--cors"]);
    let (head, _) = running.ask("OPTIONS", "/api", "Origin: http://a\r\n", b"");
    assert_eq!(status(&head), 204);
    let methods = header(&head, "Access-Control-Allow-Methods").unwrap();
    assert!(
        methods.contains("POST") && methods.contains("DELETE"),
        "{methods}"
    );
    let (head, _) = running.ask("POST", "/api", "Origin: http://a\r\n", b"x");
    assert_eq!(header(&head, "Access-Control-Allow-Origin"), Some("*"));
    drop(running);

    site.write("index.html", "<h1>app</h1>");
    let folder = site.folder.display().to_string();
    assert_eq!(
        site.refused(&["--php", "--spa"]),
        format!(
            "tidegate: --spa has index.html answer unknown paths, and --php has index.php do it; {folder} has both, so leave out --spa\n"
        )
    );
    for option in ["--hidden", "--php-source"] {
        let said = site.refused(&["--php", option]);
        assert!(said.contains("cannot be used with"), "{said}");
    }
    fs::rename(site.folder.join("index.php"), site.folder.join("api.php")).unwrap();
    let running = site.serve(&["--php", "--spa"]);
    assert_eq!(running.get("/users/7").1, "<h1>app</h1>");
    assert_eq!(
        value(&running.get("/api.php/items").1, "PATH_INFO"),
        "/items"
    );
    assert_eq!(running.get("/no.php").0, 404);
    assert_eq!(running.get("/index.php").0, 404);
}
