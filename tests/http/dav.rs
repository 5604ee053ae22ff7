//! WebDAV from outside: what litmus, the protocol's test suite, and cadaver, a client, say.
//! Packages of that name; without them only the methods are looked at.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use support::{Server, is_nginx};

const LINES: &str = "location /dav/ {
    client_max_body_size 1m;
    dav_methods PUT DELETE MKCOL COPY MOVE;
    dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK;
    dav_ext_lock zone=locks;
    dav_access user:rw group:r all:r;
}
location /plain/ { dav_methods PUT; dav_ext_methods PROPFIND OPTIONS; dav_ext_lock off; }
location /off/ { dav_ext_methods off; }
location /aliased/ { alias www/dav/; dav_methods COPY; }
}
dav_ext_lock_zone zone=locks:1m timeout=120s;
dav_ext_lock_zone zone=short:1m;
map $uri $unused {";

fn start() -> Option<Server> {
    if is_nginx() {
        return None;
    }
    let server = Server::start("", LINES);
    for folder in ["dav", "plain", "off"] {
        let path = server.prefix.join("www").join(folder);
        std::fs::create_dir_all(&path).unwrap();
        let _ = Command::new("chmod").arg("777").arg(&path).status();
    }
    Some(server)
}

/// One request and all of its answer.
fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn methods_are_answered_where_they_are_allowed() {
    let Some(server) = start() else { return };
    let options = ask(&server, "OPTIONS", "/dav/", "", "");
    assert!(options.contains("DAV: 1, 2\r\n"), "{options}");
    assert!(
        options.contains(
            "Allow: GET,HEAD,OPTIONS,PUT,DELETE,MKCOL,COPY,MOVE,PROPFIND,LOCK,UNLOCK\r\n"
        ),
        "{options}"
    );
    let options = ask(&server, "OPTIONS", "/plain/", "", "");
    assert!(options.contains("DAV: 1\r\n"), "{options}");
    assert!(ask(&server, "PROPFIND", "/off/", "", "").starts_with("HTTP/1.1 405"));
    assert!(ask(&server, "LOCK", "/plain/x", "", "").starts_with("HTTP/1.1 405"));
    server.write("plain/a&b.txt", b"text");
    let listed = ask(&server, "PROPFIND", "/plain/", "Depth: 1\r\n", "");
    assert!(listed.starts_with("HTTP/1.1 207"), "{listed}");
    assert!(
        listed.contains("<D:href>/plain/a&amp;b.txt</D:href>"),
        "{listed}"
    );
    assert!(listed.contains("<D:getcontentlength>4</D:getcontentlength>"));
    let itself = ask(&server, "PROPFIND", "/plain/", "Depth: 0\r\n", "");
    assert_eq!(itself.matches("<D:response>").count(), 1, "{itself}");
    assert!(ask(&server, "PROPFIND", "/plain/none", "", "").starts_with("HTTP/1.1 404"));
    assert!(ask(&server, "PROPFIND", "/plain/", "", "<x").starts_with("HTTP/1.1 400"));
    let large = format!("<x>{}</x>", "a".repeat(100_000));
    assert!(ask(&server, "PROPFIND", "/plain/", "", &large).starts_with("HTTP/1.1 413"));
}

#[test]
fn a_locked_file_is_changed_by_its_owner_only() {
    let Some(server) = start() else { return };
    let info = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope>\
                <locktype><write/></locktype><owner>ann</owner></lockinfo>";
    let locked = ask(&server, "LOCK", "/dav/new.txt", "", info);
    assert!(locked.starts_with("HTTP/1.1 201"), "{locked}");
    assert!(
        locked.contains("<D:timeout>Second-120</D:timeout>"),
        "{locked}"
    );
    let token = locked
        .lines()
        .find_map(|line| line.strip_prefix("Lock-Token: "));
    let token = token.unwrap();
    let put = |headers: &str| ask(&server, "PUT", "/dav/new.txt", headers, "text");
    assert!(put("").starts_with("HTTP/1.1 423"));
    assert!(put("If: (<urn:uuid:other>)\r\n").starts_with("HTTP/1.1 412"));
    assert!(put(&format!("If: ({token})\r\n")).starts_with("HTTP/1.1 204"));
    assert!(ask(&server, "DELETE", "/dav/new.txt", "", "").starts_with("HTTP/1.1 423"));
    assert!(ask(&server, "LOCK", "/dav/new.txt", "", info).starts_with("HTTP/1.1 423"));
    let seen = ask(&server, "PROPFIND", "/dav/new.txt", "Depth: 0\r\n", "");
    assert!(seen.contains("<D:owner>ann</D:owner>"), "{seen}");
    let unlock = format!("Lock-Token: {token}\r\n");
    assert!(ask(&server, "UNLOCK", "/dav/new.txt", &unlock, "").starts_with("HTTP/1.1 204"));
    assert!(put("").starts_with("HTTP/1.1 204"));
}

/// The token of the lock that a LOCK has made.
fn token_of(locked: &str) -> &str {
    assert!(locked.starts_with("HTTP/1.1 20"), "{locked}");
    let token = locked
        .lines()
        .find_map(|line| line.strip_prefix("Lock-Token: "));
    token.unwrap()
}

const LOCK_INFO: &str = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope>\
                         <locktype><write/></locktype></lockinfo>";

/// RFC 4918, sections 7.3 and 7.4: a locked folder gets no member without its token, not even by
/// LOCK.
#[test]
fn a_locked_folder_gets_members_by_its_owner_only() {
    let Some(server) = start() else { return };
    assert!(ask(&server, "MKCOL", "/dav/folder/", "", "").starts_with("HTTP/1.1 201"));
    let locked = ask(&server, "LOCK", "/dav/folder/", "Depth: 0\r\n", LOCK_INFO);
    let lock = |headers: &str| ask(&server, "LOCK", "/dav/folder/new.txt", headers, LOCK_INFO);
    assert!(lock("").starts_with("HTTP/1.1 423"));
    let put = ask(&server, "PUT", "/dav/folder/new.txt", "", "text");
    assert!(put.starts_with("HTTP/1.1 423"), "{put}");
    let token = token_of(&locked);
    let known = format!("If: </dav/folder/> ({token})\r\n");
    assert!(lock(&known).starts_with("HTTP/1.1 201"));
}

/// RFC 4918, section 10.4: a list after a URI is about what that URI names.
#[test]
fn lists_of_if_are_about_the_resource_that_they_name() {
    let Some(server) = start() else { return };
    let locked = ask(&server, "LOCK", "/dav/locked.txt", "", LOCK_INFO);
    let token = token_of(&locked);
    let put = |condition: &str| {
        let headers = format!("If: {condition}\r\n");
        let answer = ask(&server, "PUT", "/dav/other.txt", &headers, "text");
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(put(&format!("({token})")), "412");
    assert_eq!(put("</dav/locked.txt> (<urn:uuid:other>)"), "412");
    assert_eq!(put("</dav/locked.txt> ([\"none\"])"), "412");
    let host = format!("http://localhost/dav/locked.txt> ({token})");
    assert_eq!(put(&format!("<{host}")), "201");
    assert_eq!(put(&format!("</dav/locked.txt> ({token})")), "204");
    assert_eq!(put("<http://elsewhere/x> (<urn:uuid:other>)"), "412");
    assert_eq!(put("<http://elsewhere/x> (Not <urn:uuid:other>)"), "204");
}

/// What a request needs to know is asked for when the change is made, not when its head was read.
#[test]
fn a_lock_that_comes_before_the_body_holds() {
    let Some(server) = start() else { return };
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let head = "PUT /dav/slow.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap(); // The body is waited for: the head has passed.
    let locked = ask(&server, "LOCK", "/dav/slow.txt", "", LOCK_INFO);
    token_of(&locked);
    stream.write_all(b"text").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 423"), "{answer}");
    let seen = ask(&server, "GET", "/dav/slow.txt", "", "");
    assert!(seen.ends_with("\r\n\r\n"), "{seen}");
}

#[test]
fn a_small_propfind_gets_no_huge_answer() {
    let Some(server) = start() else { return };
    for number in 0..200 {
        server.write(&format!("plain/{number}"), b"");
    }
    let listed = |names: &str| {
        let body = format!(
            "<propfind xmlns=\"DAV:\" xmlns:a=\"urn:{}\"><prop>{names}</prop></propfind>",
            "x".repeat(900)
        );
        ask(&server, "PROPFIND", "/plain/", "Depth: 1\r\n", &body)
    };
    // The namespace stands once in the answer, whatever it has of it.
    let answer = listed("<a:b/><a:b/><a:c/><d xmlns=\"\"/><nothing/>");
    assert!(answer.starts_with("HTTP/1.1 207"), "{answer}");
    assert_eq!(answer.matches("xmlns:n0=\"urn:xxx").count(), 1, "{answer}");
    assert_eq!(answer.matches("urn:xxx").count(), 1, "{answer}");
    for tag in ["<n0:b/>", "<n0:c/>", "<d/>", "<D:nothing/>"] {
        assert_eq!(answer.matches(tag).count(), 201, "{tag}: {answer}");
    }
    let long = "y".repeat(200);
    let names = (0..256).map(|number| format!("<a:{long}{number}/>"));
    let answer = listed(&names.collect::<String>());
    assert!(answer.starts_with("HTTP/1.1 507"), "{}", answer.len());
}

#[test]
fn litmus_and_cadaver_are_content() {
    let Some(server) = start() else { return };
    let url = format!("http://127.0.0.1:{}/dav/", server.port);
    let mut said = String::new();
    // What copymove finds wrong is nginx's way: what is there is not replaced by what is no
    // collection. Each set begins by deleting and making the same collection, and has a server of
    // its own for that: `http` ends with a PUT into it whose answer it does not wait for, so that
    // the next set's DELETE may find it full.
    for set in ["basic", "http", "locks"] {
        let Some(own) = start() else { return };
        let run = Command::new("litmus")
            .env("TESTS", set)
            .current_dir(&own.prefix)
            .args(["-k", &format!("http://127.0.0.1:{}/dav/", own.port)])
            .output();
        let Ok(output) = run else {
            eprintln!("skipped: no litmus here (package litmus)");
            return;
        };
        said.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    // Properties cannot be set, and locks are exclusive.
    let lacking = |line: &str| line.contains("owner_modify") || line.contains("lock_shared");
    let mut failed = said.lines().filter(|line| line.contains("FAIL"));
    let ran = said.matches("tests run").count() == 3;
    assert!(ran && failed.all(lacking), "{said}");
    let Ok(mut cadaver) = Command::new("cadaver")
        .arg(&url)
        .current_dir(&server.prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        eprintln!("skipped: no cadaver here (package cadaver)");
        return;
    };
    let commands =
        b"mkcol box\ncd box\nput nginx.conf\nlock nginx.conf\nls\nunlock nginx.conf\nquit\n";
    cadaver.stdin.take().unwrap().write_all(commands).unwrap();
    let output = cadaver.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        server.prefix.join("www/dav/box/nginx.conf").exists(),
        "{said}"
    );
    assert!(!said.contains("failed"), "{said}");
}

/// A path may be written in several ways: all of them are the locked one, and none leads out.
#[test]
fn a_destination_has_one_form() {
    let Some(server) = start() else { return };
    let info = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope>\
                <locktype><write/></locktype></lockinfo>";
    let status = |method: &str, path: &str, to: &str, body: &str| {
        let answer = ask(
            &server,
            method,
            path,
            &format!("Destination: {to}\r\n"),
            body,
        );
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(status("PUT", "/dav/f", "/", "f"), "201");
    assert_eq!(status("LOCK", "/dav/locked", "/", info), "201");
    for to in [
        "/dav/locked",
        "/dav//locked",
        "/dav/./locked",
        "//dav/%2e/locked",
    ] {
        assert_eq!(status("COPY", "/dav/f", to, ""), "423", "{to}");
    }
    assert_eq!(status("MKCOL", "/dav/tree/", "/", ""), "201");
    assert_eq!(status("PUT", "/dav/tree/f", "/", "f"), "201");
    for method in ["COPY", "MOVE"] {
        assert_eq!(status(method, "/dav/tree/", "/dav/./tree/in/", ""), "403");
    }
    assert!(server.prefix.join("www/dav/tree/f").exists());
    // As many bytes as the location's name has, and then out of the folder.
    assert_eq!(status("COPY", "/aliased/f", "/aliased-../out", ""), "400");
    assert_eq!(status("COPY", "/aliased/f", "/aliased/../out", ""), "400");
    assert!(!server.prefix.join("www/out").exists());
    // In another location, whose name is as long: nothing may land in the folder of this one.
    for to in ["/another/out", "/dav/out/of/it", "/aliasedX"] {
        assert_eq!(status("COPY", "/aliased/f", to, ""), "400", "{to}");
    }
    assert!(!server.prefix.join("www/dav/out").exists());
    assert_eq!(status("COPY", "/aliased/f", "/aliased/g", ""), "204");
}
