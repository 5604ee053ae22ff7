//! A service manager as systemd is one: the test has its socket, and hears who says what; sockets
//! that systemd's own tool has opened are served by.

use std::fs;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::{Child, Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use support::PATIENCE;
use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::small;

/// What a manager hears.
struct Manager(UnixDatagram);

impl Manager {
    fn at(address: &SocketAddr) -> Manager {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        sockopt::set_socket_passcred(&socket, true).unwrap();
        Manager(socket)
    }

    /// The next message, and the process that has sent it.
    fn hear(&self) -> (String, u32) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.0, &mut parts, &mut control, RecvFlags::empty());
        let length = received.expect("a message").bytes;
        let sender = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
            _ => None,
        });
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        (text, sender.unwrap().as_raw_pid().try_into().unwrap())
    }

    /// That nothing has come which was not heard.
    fn hears_nothing_more(&self) {
        self.0.set_nonblocking(true).unwrap();
        assert!(self.0.recv(&mut [0; 64]).is_err());
        self.0.set_nonblocking(false).unwrap();
    }
}

/// A server that a manager has started in the foreground, and its folder.
struct Service {
    site: Master,
    child: Child,
    port: u16,
}

impl Service {
    /// One that gets these variables too; `$$` in them is its number.
    fn start(notify_socket: &str, variables: &str) -> Service {
        let port = free_port();
        let site = Master::new();
        fs::create_dir(site.folder.join("www")).unwrap();
        fs::write(site.folder.join("www/small"), "small").unwrap();
        site.configure(&format!(
            "events {{}} http {{ access_log off; server {{ listen 127.0.0.1:{port}; root @/www; }} }}"
        ));
        let program = env!("CARGO_BIN_EXE_tidegate");
        let at = site.folder.display();
        let command = format!("{variables} exec {program} -c {at}/nginx.conf -e stderr");
        let child = Command::new("sh")
            .args(["-c", &command])
            .env("NOTIFY_SOCKET", notify_socket)
            .stdin(Stdio::null())
            .stderr(fs::File::create(site.folder.join("output")).unwrap())
            .spawn()
            .unwrap();
        Service { site, child, port }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn named(&self) -> Option<u32> {
        self.site.read("logs/nginx.pid").trim().parse().ok()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pid) = self.named() {
            support::signal(pid, "TERM");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn manager(name: &str) -> (Manager, String) {
    let path = std::env::temp_dir().join(format!("tidegate-notify-{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let manager = Manager::at(&SocketAddr::from_pathname(&path).unwrap());
    (manager, path.display().to_string())
}

#[test]
fn a_service_says_how_it_does() {
    let (manager, socket) = manager("life");
    let service = Service::start(&socket, "");
    let pid = service.pid();
    assert_eq!(manager.hear(), ("READY=1".to_owned(), pid));
    small(service.port, "ready");
    let text = service.site.read("nginx.conf");
    for text in [text.clone(), text.replace("root ", "no_such_directive ")] {
        fs::write(service.site.folder.join("nginx.conf"), text).unwrap();
        support::signal(pid, "HUP");
        let (text, sender) = manager.hear();
        let time = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0 && sender == pid);
        assert_eq!(manager.hear(), ("READY=1".to_owned(), pid));
        small(service.port, "reloaded");
    }
    support::signal(pid, "QUIT");
    assert_eq!(manager.hear(), ("STOPPING=1".to_owned(), pid));
    wait_for("end", || service.named().is_none());
    manager.hears_nothing_more();
    fs::remove_file(socket).unwrap();
}

/// The main process of the service is the older one until it ends, so a manager that listens to
/// the main process alone hears all that it needs.
#[test]
fn a_newer_program_becomes_the_service() {
    let name = format!("tidegate-notify-{}", std::process::id());
    let manager = Manager::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let mut service = Service::start(&format!("@{name}"), "");
    let older = service.pid();
    assert_eq!(manager.hear(), ("READY=1".to_owned(), older));
    let upgrade = || {
        support::signal(older, "USR2");
        let (text, newer) = manager.hear();
        assert!(text == "READY=1" && newer != older, "{text} of {newer}");
        assert_eq!(service.named(), Some(newer));
        newer
    };
    // The way back: the service has not ended with the newer one.
    let newer = upgrade();
    support::signal(newer, "QUIT");
    wait_for("pid file that is back", || service.named() == Some(older));
    manager.hears_nothing_more();
    let newer = upgrade();
    support::signal(older, "QUIT");
    assert_eq!(manager.hear(), (format!("MAINPID={newer}"), older));
    assert!(service.child.wait().unwrap().success());
    small(service.port, "of-the-newer");
    support::signal(newer, "TERM");
    assert_eq!(manager.hear(), ("STOPPING=1".to_owned(), newer));
    wait_for("end", || service.named().is_none());
    manager.hears_nothing_more();
}

#[test]
fn a_watchdog_is_fed() {
    let (manager, socket) = manager("watchdog");
    let service = Service::start(&socket, "WATCHDOG_USEC=100000 WATCHDOG_PID=$$");
    let pid = service.pid();
    let mut fed = 0;
    while fed < 5 {
        let (text, sender) = manager.hear();
        assert!(["READY=1", "WATCHDOG=1"].contains(&text.as_str()) && sender == pid);
        fed += u32::from(text == "WATCHDOG=1");
    }
    drop(service);
    // It is another process's.
    let (manager, other) = self::manager("other-watchdog");
    let service = Service::start(&other, "WATCHDOG_USEC=1000 WATCHDOG_PID=1");
    assert_eq!(manager.hear().0, "READY=1");
    support::signal(service.pid(), "QUIT");
    assert_eq!(manager.hear().0, "STOPPING=1");
    for path in [socket, other] {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_socket_that_is_not_there_stops_nothing() {
    let service = Service::start("/no/such/socket", "");
    wait_for("server", || {
        TcpStream::connect(("127.0.0.1", service.port)).is_ok()
    });
    let expected = "connect() to NOTIFY_SOCKET \"/no/such/socket\" failed (2: No such file";
    service.site.wait_for_text("logs/error.log", expected);
    small(service.port, "all-the-same");
}

/// Sockets of systemd's: they are served by, also by the next program, and stay systemd's.
#[test]
fn sockets_of_the_manager_are_served_by() {
    if Command::new("systemd-socket-activate")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: no systemd-socket-activate here");
        return;
    }
    let port = free_port();
    let site = Master::new();
    fs::create_dir(site.folder.join("www")).unwrap();
    fs::write(site.folder.join("www/small"), "small").unwrap();
    let socket = site.folder.join("socket");
    site.configure(&format!(
        "events {{}} http {{ access_log off; \
         server {{ listen 127.0.0.1:{port}; listen unix:@/socket; root @/www; }} }}"
    ));
    // In the background, so that it may be followed.
    let text = site.read("nginx.conf").replace("daemon off;", "");
    fs::write(site.folder.join("nginx.conf"), text).unwrap();
    let mut activated = Command::new("systemd-socket-activate")
        .args(["-l", &format!("127.0.0.1:{port}"), "-l"])
        .arg(&socket)
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .arg("-c")
        .arg(site.folder.join("nginx.conf"))
        .args(["-e", "stderr"])
        .stdin(Stdio::null())
        .stderr(fs::File::create(site.folder.join("output")).unwrap())
        .spawn()
        .unwrap();
    let named = || site.read("logs/nginx.pid").trim().parse::<u32>().ok();
    let ask_by_file = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("small"), "{answer}");
    };
    wait_for("socket", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // This very connection has had the server started.
    small(port, "first");
    ask_by_file();
    assert!(activated.wait().unwrap().success());
    wait_for("pid file", || named().is_some());
    let older = named().unwrap();
    support::signal(older, "USR2");
    wait_for("newer one", || named().is_some_and(|pid| pid != older));
    let newer = named().unwrap();
    support::signal(older, "QUIT");
    wait_for("end of the older one", || {
        !site.folder.join("logs/nginx.pid.oldbin").exists()
    });
    small(port, "of-the-newer");
    ask_by_file();
    support::signal(newer, "QUIT");
    wait_for("end", || named().is_none());
    assert!(socket.exists(), "it is systemd's");
    let log = site.read("logs/error.log");
    assert!(
        !log.contains("[emerg]") && !log.contains("[alert]"),
        "{log}"
    );
}

/// The unit of the package, whose commands are run as systemd would run them.
#[test]
fn the_unit_of_the_package() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/tidegate.service");
    let unit = fs::read_to_string(unit).unwrap();
    let (manager, socket) = manager("unit");
    let port = free_port();
    let site = Master::new();
    fs::create_dir(site.folder.join("www")).unwrap();
    fs::write(site.folder.join("www/small"), "small").unwrap();
    site.configure(&format!(
        "events {{}} http {{ access_log off; server {{ listen 127.0.0.1:{port}; root @/www; }} }}"
    ));
    let text = site.read("nginx.conf").replace("daemon off;", "");
    fs::write(site.folder.join("nginx.conf"), text).unwrap();
    let setting = |name: &str| {
        let mut lines = unit
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.next().unwrap_or_else(|| panic!("{name}")).to_owned()
    };
    let at = site.folder.display();
    let program = format!(
        "{} -c {at}/nginx.conf -e stderr",
        env!("CARGO_BIN_EXE_tidegate")
    );
    let command = |name: &str| {
        let line = setting(name);
        let arguments = line.strip_prefix("/usr/sbin/tidegate").unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec {program}{arguments}")])
            .stdin(Stdio::null());
        command
    };
    assert!(command("ExecStartPre").status().unwrap().success());
    let mut service = command("ExecStart")
        .env("NOTIFY_SOCKET", &socket)
        .spawn()
        .unwrap();
    assert_eq!(setting("Type"), "notify");
    assert_eq!(manager.hear(), ("READY=1".to_owned(), service.id()));
    small(port, "started");
    assert!(command("ExecReload").status().unwrap().success());
    assert!(manager.hear().0.starts_with("RELOADING=1\n"));
    assert_eq!(manager.hear().0, "READY=1");
    assert_eq!(
        (setting("KillMode"), setting("KillSignal")),
        ("mixed".into(), "SIGQUIT".into())
    );
    support::signal(service.id(), "QUIT");
    assert_eq!(manager.hear().0, "STOPPING=1");
    assert!(service.wait().unwrap().success());
    fs::remove_file(socket).unwrap();

    // What systemd itself thinks of it.
    let copy = site.folder.join("tidegate.service");
    fs::write(
        &copy,
        unit.replace("/usr/sbin/tidegate", env!("CARGO_BIN_EXE_tidegate")),
    )
    .unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&copy)
        .output();
    match verified {
        Ok(output) => assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        ),
        Err(_) => eprintln!("no systemd-analyze here"),
    }
}
