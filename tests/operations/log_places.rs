//! Logs that are no files: syslog servers and memory.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use support::{PATIENCE, Server};

/// What a server of datagrams has got next.
fn next(socket: &UdpSocket) -> String {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("a message");
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

/// Takes `<PRI>` and the date off a message.
fn without_date(message: &str) -> (String, String) {
    let (priority, rest) = message.split_once('>').unwrap();
    (format!("{priority}>"), rest[16..].to_owned())
}

#[test]
fn lines_go_to_syslog_servers() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = udp.local_addr().unwrap().port();
    let folder = std::env::temp_dir().join(format!("tidegate-syslog-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("log");
    let _ = std::fs::remove_file(&path);
    let unix = UnixDatagram::bind(&path).unwrap();
    unix.set_read_timeout(Some(PATIENCE)).unwrap();
    // The workers may be another user.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let server = Server::start(
        "",
        &format!(
            "location /a {{ access_log syslog:server=127.0.0.1:{port},nohostname; return 200 yes; }}
             location /as {{
                 access_log syslog:server=127.0.0.1:{port},nohostname,severity=alert,facility=user;
                 return 200 yes;
             }}
             location /e {{ error_log syslog:server=127.0.0.1:{port},tag=mine,nohostname; }}
             location /host {{ error_log syslog:server=127.0.0.1:{port}; }}
             location /unix {{ error_log syslog:server=unix:{},nohostname; }}",
            path.display()
        ),
    );
    let mut client = server.connect();
    assert_eq!(client.get("/a").unwrap().status, 200);
    let (priority, text) = without_date(&next(&udp));
    assert_eq!(priority, "<190>");
    assert!(text.starts_with("nginx: 127.0.0.1 - - ["), "{text}");
    assert!(!text.contains('\n'), "{text}");
    assert_eq!(client.get("/as").unwrap().status, 200);
    assert_eq!(without_date(&next(&udp)).0, "<9>");

    assert_eq!(client.get("/e").unwrap().status, 404);
    let (priority, text) = without_date(&next(&udp));
    assert_eq!(priority, "<187>");
    assert!(text.starts_with("mine: 20"), "{text}");
    assert!(text.contains(" [error] ") && text.contains(", client: 127.0.0.1"));
    assert!(text.ends_with('"'), "{text}");

    assert_eq!(client.get("/host").unwrap().status, 404);
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let expected = format!("{} nginx: ", hostname.trim().to_ascii_lowercase());
    let (_, text) = without_date(&next(&udp));
    assert!(text.starts_with(&expected), "{text}");

    assert_eq!(client.get("/unix").unwrap().status, 404);
    let mut buffer = [0; 4096];
    let length = unix.recv(&mut buffer).unwrap();
    assert!(buffer[..length].starts_with(b"<187>"));
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn lines_stay_in_memory_and_can_be_read() {
    if support::is_nginx() {
        return; // it needs a debugger for that
    }
    let lines = "location /memory { error_log memory:4k; }";
    let server = Server::start("", lines);
    assert_eq!(server.connect().get("/memory").unwrap().status, 404);
    let worker = server.workers()[0];
    let descriptors = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
    let is_log = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("memory-log"))
    };
    let mut paths = descriptors.flatten().map(|entry| entry.path());
    let path = paths.find(is_log).expect("a descriptor of the log");
    let read = || String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    let content = when_it_has(&read, "/memory\" failed (2: No such file or directory)");
    assert_eq!(content.len(), 4096);
    assert!(content.starts_with("MEMLOG 4096 "), "{content}");
    assert!(content.contains("/memory\" failed (2: No such file or directory)"));
}

/// A log once it has this text: a response may be there before its lines are.
fn when_it_has(read: &dyn Fn() -> String, text: &str) -> String {
    let began = std::time::Instant::now();
    loop {
        let log = read();
        if log.contains(text) || began.elapsed() > PATIENCE {
            return log;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The level `debug` by `error_log`, and by `debug_connection` whatever the level.
#[test]
fn debug_lines_by_level_and_by_client() {
    if support::is_nginx() {
        return; // only where it is built for it
    }
    let lines = "location /debug { error_log logs/debug.log debug; }
                 location /plain { error_log logs/plain.log alert; }";
    let server = Server::start("", lines);
    let read = |server: &Server, name: &str| {
        std::fs::read_to_string(server.prefix.join("logs").join(name)).unwrap_or_default()
    };
    for path in ["/debug", "/plain"] {
        server.connect().get(path).unwrap();
    }
    let debug = when_it_has(&|| read(&server, "debug.log"), "http response status: 404");
    assert!(debug.contains("[debug]") && debug.contains("using configuration \"/debug\""));
    assert!(!debug.contains("http response status: 200"), "{debug}");
    assert_eq!(read(&server, "plain.log"), "");

    let server = Server::start("debug_connection 127.0.0.0/8;", lines);
    server.connect().get("/plain").unwrap();
    let plain = when_it_has(&|| read(&server, "plain.log"), "http response status: 404");
    assert!(plain.contains("[debug]") && plain.contains("http response status: 404"));
    assert!(plain.contains("[error]"), "{plain}");

    let server = Server::start("debug_connection 10.0.0.0/8;", lines);
    server.connect().get("/plain").unwrap();
    assert_eq!(read(&server, "plain.log"), "");
}
