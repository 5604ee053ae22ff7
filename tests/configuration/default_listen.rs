//! A `server` without `listen`, where the program is started by root: it is at port 80, in the
//! worker process too, which compiles as another user.
//!
//! Port 80 of a network namespace of the test's own. That takes root; without it the test fails and
//! says so, unless TIDEGATE_TEST_WITHOUT_NAMESPACES is set.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::PATIENCE;

const CONFIGURATION: &str = "daemon off;\nuser nobody nogroup;\npid nginx.pid;\nerror_log error.log notice;\n\
    events { }\nhttp { access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
    server { location / { return 200 \"generation @\\n\"; } } }\n";

/// A server in a network namespace that ends with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        support::signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// What port 80 of the namespace answers, as soon as that is `expected`.
fn wait_for(server: &Server, expected: &str) {
    let begun = Instant::now();
    loop {
        let output = Command::new("nsenter")
            .args(["-t", &server.0.id().to_string(), "-n"])
            .args(["curl", "-sS", "-m", "5", "http://127.0.0.1:80/"])
            .output()
            .unwrap();
        if output.stdout == expected.as_bytes() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(begun.elapsed() < PATIENCE, "no {expected:?}: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The worker process; none for the moment between the end of one and the start of the next.
fn worker_of(server: &Server) -> Option<u32> {
    let output = Command::new("pgrep")
        .args(["-P", &server.0.id().to_string()])
        .output()
        .unwrap();
    let pids = String::from_utf8(output.stdout).unwrap();
    pids.split_whitespace()
        .next()
        .map(|pid| pid.parse().unwrap())
}

#[test]
fn a_server_without_listen_is_at_port_80_in_the_worker_too() {
    let allowed = Command::new("unshare")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        let is_known = std::env::var_os("TIDEGATE_TEST_WITHOUT_NAMESPACES").is_some();
        assert!(
            is_known,
            "no network namespace can be made here (root and unshare(1)); \
             TIDEGATE_TEST_WITHOUT_NAMESPACES=1 skips the test"
        );
        eprintln!("skipped: no network namespace can be made here");
        return;
    }
    let folder =
        std::env::temp_dir().join(format!("tidegate-default-listen-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let write = |generation: &str| {
        fs::write(
            folder.join("nginx.conf"),
            CONFIGURATION.replace('@', generation),
        )
        .unwrap();
    };
    write("1");
    let start = format!(
        "ip link set lo up && exec {} -p {}/ -c nginx.conf -e error.log",
        env!("CARGO_BIN_EXE_tidegate"),
        folder.display()
    );
    let child = Command::new("unshare")
        .args(["-n", "sh", "-c", &start])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server(child);
    wait_for(&server, "generation 1\n");
    write("2");
    support::signal(server.0.id(), "HUP");
    wait_for(&server, "generation 2\n");
    let killed = worker_of(&server).unwrap();
    support::signal(killed, "KILL");
    let begun = Instant::now();
    while worker_of(&server).is_none_or(|worker| worker == killed) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_for(&server, "generation 2\n");
    drop(server);
    let _ = fs::remove_dir_all(&folder);
}
