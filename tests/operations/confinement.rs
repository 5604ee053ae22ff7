//! The worker process of a real server is confined: what the kernel says of it, what requests
//! cannot have it write, read and do, and what a reload that needs more comes to. What a process
//! can do at all that is confined in this way, system call by system call, is looked at in
//! `crates/process/tests/confinement.rs`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::master::Master;
use support::{Server, is_nginx};

/// A server with a folder for WebDAV, one for stored answers, and links from both to a folder
/// outside of them.
struct Site {
    server: Server,
    outside: PathBuf,
}

const LINES: &str = "location /dav/ { dav_methods PUT DELETE MKCOL COPY MOVE; root files; }
location /stored/ { proxy_pass http://127.0.0.1:PORT/answer?; proxy_store PREFIX/files$uri; }
location /answer { return 200 answer; }
location /link/ { }
location /cached/ { proxy_pass http://127.0.0.1:PORT/answer?; proxy_cache kept; proxy_cache_valid 1h;
    add_header X-Cache $upstream_cache_status; }
location /logged/ { access_log logs/by/$arg_name.log; return 204; }
location /linked/ { access_log logs/linked/$arg_name.log; return 204; }
location /open/ { open_file_cache max=10; }
";

impl Site {
    fn start(main: &str, events: &str) -> Option<Site> {
        if is_nginx() {
            return None;
        }
        // The folders that links lead to are made before the server starts.
        let outside = std::env::temp_dir().join(format!(
            "tidegate-outside-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let _ = fs::remove_dir_all(&outside);
        open_folder(&outside);
        fs::write(outside.join("file"), "outside").unwrap();
        let server = Server::start_workers(2, events, "");
        let prefix = server.prefix.clone();
        for folder in ["files", "files/dav", "files/stored", "logs/by"] {
            open_folder(&prefix.join(folder));
        }
        // A cache and a folder of logs that are links are the folders that these lead to.
        open_folder(&outside.join("cache"));
        open_folder(&outside.join("logs"));
        symlink(outside.join("logs"), prefix.join("logs/linked")).unwrap();
        symlink(outside.join("cache"), prefix.join("kept")).unwrap();
        symlink(&outside, prefix.join("files/dav/out")).unwrap();
        symlink(&outside, prefix.join("files/stored/out")).unwrap();
        symlink(&outside, prefix.join("www/link")).unwrap();
        server.write("page", b"page");
        let site = Site { server, outside };
        site.reload(main, "");
        let started = std::time::Instant::now();
        while site.status("GET", "/answer", "") != "200" {
            let waited = started.elapsed();
            assert!(waited < support::PATIENCE, "{}", site.server.error_log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Some(site)
    }

    fn reload(&self, main: &str, more: &str) {
        let port = self.server.port.to_string();
        let prefix = self.server.prefix.display().to_string();
        let lines = LINES.replace("PORT", &port).replace("PREFIX", &prefix);
        self.server.reload(&format!(
            "[main]\n{main}\n{lines}{more}\n[http]\nproxy_cache_path kept keys_zone=kept:1m;"
        ));
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.server.port)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
             {headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn status(&self, method: &str, path: &str, body: &str) -> String {
        let answer = self.ask(method, path, "", body);
        answer.split(' ').nth(1).unwrap_or("none").to_owned()
    }

    /// The worker that serves, once there is but one.
    fn worker(&self) -> u32 {
        let started = std::time::Instant::now();
        loop {
            if let [worker] = self.server.workers()[..] {
                return worker;
            }
            assert!(
                started.elapsed() < support::PATIENCE,
                "{}",
                self.server.error_log()
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.outside);
    }
}

fn open_folder(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A field of a `status` file in `/proc`.
fn field(status: &str, name: &str) -> String {
    let lines = status.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().unwrap_or_default().trim().to_owned()
}

fn every_thread_of_the_worker_is_confined_and_serves(events: &'static str) {
    let Some(site) = Site::start("", events) else {
        return;
    };
    site.server.wait_for_log(
        "worker process is confined (\"confine on\"): no new privileges; capabilities: none; ",
    );
    site.server.wait_for_log("reconfiguring");
    let worker = {
        // Folders for WebDAV are more than the first configuration had.
        site.server
            .wait_for_log("is confined from: starting a new worker process");
        site.worker()
    };
    let threads = fs::read_dir(format!("/proc/{worker}/task")).unwrap();
    let mut count = 0;
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let fields = [
            "NoNewPrivs",
            "CapEff",
            "CapPrm",
            "Seccomp",
            "Seccomp_filters",
        ];
        let found = fields.map(|name| field(&status, name));
        let none = "0000000000000000";
        assert_eq!(found, ["1", none, none, "2", "3"], "{status}");
        count += 1;
    }
    assert!(count >= 3, "two workers and the main thread: {count}");

    assert_eq!(site.status("PUT", "/dav/new", "text"), "201");
    let destination = "Destination: http://localhost/dav/moved\r\n";
    assert!(
        site.ask("MOVE", "/dav/new", destination, "")
            .starts_with("HTTP/1.1 204")
    );
    assert_eq!(site.status("MKCOL", "/dav/folder/", ""), "201");
    assert_eq!(site.status("DELETE", "/dav/moved", ""), "204");
    assert_eq!(site.status("GET", "/stored/one", ""), "200");
    assert_eq!(
        fs::read(site.server.prefix.join("files/stored/one")).unwrap(),
        b"answer"
    );
    assert!(
        site.ask("GET", "/cached/x", "", "")
            .contains("X-Cache: MISS")
    );
    assert!(
        site.ask("GET", "/cached/x", "", "")
            .contains("X-Cache: HIT")
    );
    assert_eq!(site.status("GET", "/logged/?name=x", ""), "204");
    site.server.wait_for_line("by/x.log", "/logged/");
    assert_eq!(site.status("GET", "/linked/?name=y", ""), "204");
    site.server.wait_for_line("linked/y.log", "/linked/");

    // A link that leads out is followed, and nothing is written there.
    // As nginx answers where the file system refuses.
    assert_eq!(site.status("PUT", "/dav/out/new", "text"), "500");
    assert_eq!(site.status("MKCOL", "/dav/out/folder/", ""), "403");
    assert_eq!(site.status("DELETE", "/dav/out/file", ""), "403");
    assert_eq!(site.status("GET", "/stored/out/two", ""), "200");
    site.server
        .wait_for_log("files/stored/out/two\" failed (13: Permission denied)");
    let left: Vec<_> = fs::read_dir(&site.outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
    // It may be read unless that is forbidden too.
    assert_eq!(site.status("GET", "/link/file", ""), "200");
}

support::test_on_each_engine!(every_thread_of_the_worker_is_confined_and_serves);

fn strictly_what_a_link_leads_to_is_not_read(events: &'static str) {
    let Some(site) = Site::start("confine strict;", events) else {
        return;
    };
    site.server
        .wait_for_log("worker process is confined (\"confine strict\")");
    site.worker();
    assert_eq!(site.status("GET", "/page", ""), "200");
    assert_eq!(site.status("GET", "/link/file", ""), "403");
    assert_eq!(site.status("GET", "/open/../link/file", ""), "403");
    assert_eq!(site.status("GET", "/missing", ""), "404");
    assert_eq!(site.status("PUT", "/dav/new", "text"), "201");
    assert!(
        site.ask("GET", "/cached/x", "", "")
            .contains("X-Cache: MISS")
    );
    assert!(
        site.ask("GET", "/cached/x", "", "")
            .contains("X-Cache: HIT")
    );
    site.server
        .wait_for_log("www/link/file\" failed (13: Permission denied)");
}

support::test_on_each_engine!(strictly_what_a_link_leads_to_is_not_read);

#[test]
fn without_confinement_the_worker_writes_by_a_link() {
    // So that nothing above fails for another reason.
    let Some(site) = Site::start("confine off;", "") else {
        return;
    };
    site.server
        .wait_for_log("worker process is not confined (\"confine off\")");
    let worker = site.worker();
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    assert_eq!(
        [field(&status, "NoNewPrivs"), field(&status, "Seccomp")],
        ["0", "0"]
    );
    assert_eq!(site.status("PUT", "/dav/out/new", "text"), "201");
    assert_eq!(fs::read(site.outside.join("new")).unwrap(), b"text");
}

#[test]
fn a_reload_starts_a_new_worker_process_only_where_it_needs_more() {
    let Some(site) = Site::start("", "") else {
        return;
    };
    site.server
        .wait_for_log("is confined from: starting a new worker process");
    let first = site.worker();
    // Less, and the same, need none.
    let generations = |site: &Site| {
        site.server
            .error_log()
            .matches("exited with code 0")
            .count()
    };
    let before = generations(&site);
    site.reload("", "location /more/ { return 204; }");
    let started = std::time::Instant::now();
    while generations(&site) == before && started.elapsed() < support::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(site.status("GET", "/more/", ""), "204");
    assert_eq!(site.worker(), first);
    // A folder beyond them does.
    let more = format!(
        "location /more/ {{ alias {}/; dav_methods PUT; }}",
        site.outside.display()
    );
    site.reload("", &more);
    site.server.wait_for_log(&format!(
        "wants to write \"{}/\", which the running worker process is confined from: starting a new worker process",
        site.outside.display()
    ));
    let started = std::time::Instant::now();
    while site.worker() == first && started.elapsed() < support::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(site.status("PUT", "/more/new", "text"), "201");
    assert_eq!(fs::read(site.outside.join("new")).unwrap(), b"text");
}

#[test]
fn a_folder_that_is_put_in_the_place_of_another_is_another() {
    let Some(site) = Site::start("confine strict;", "") else {
        return;
    };
    site.server.wait_for_log("(\"confine strict\")");
    let first = site.worker();
    let www = site.server.prefix.join("www");
    let new = site.server.prefix.join("www.new");
    fs::create_dir(&new).unwrap();
    fs::write(new.join("page"), "new page").unwrap();
    fs::rename(&www, site.server.prefix.join("www.old")).unwrap();
    fs::rename(&new, &www).unwrap();
    assert_eq!(site.status("GET", "/page", ""), "403");
    site.reload("confine strict;", "");
    site.server.wait_for_log("wants to read");
    let started = std::time::Instant::now();
    while site.worker() == first && started.elapsed() < support::PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(site.ask("GET", "/page", "", "").ends_with("new page"));
}

#[test]
fn a_test_of_the_configuration_says_what_is_not_confined() {
    if is_nginx() {
        return;
    }
    let master = Master::new();
    let folder = master.folder.clone();
    fs::create_dir_all(folder.join("www")).unwrap();
    symlink("/etc/hostname", folder.join("www/name")).unwrap();
    symlink("page", folder.join("www/within")).unwrap();
    fs::write(folder.join("www/page"), "page").unwrap();
    const ANY: &str =
        "location /any/ { root $arg_root; } location /dav/ { root $arg_root; dav_methods PUT; }";
    let test = |confine: &str, locations: &str| {
        master.configure(&format!(
            "{confine} events {{}} http {{ access_log off; client_body_temp_path @/body; server {{ listen unix:@/s; root @/www; \
             {locations} }} }}"
        ));
        let (code, said) = master.run(&["-t"]);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    let strict = test("confine strict;", ANY);
    assert!(
        strict.contains("nginx.conf:4 begins with a variable or is \"/\": \"confine strict\" lets the worker read anything"),
        "{strict}"
    );
    assert!(
        strict.contains("lets the worker write anything"),
        "{strict}"
    );
    // Where everything may be read, no link leads out.
    assert!(!strict.contains("symbolic link"), "{strict}");
    let strict = test("confine strict;", "");
    let link = format!(
        "symbolic link \"{}\" leads to \"/etc/hostname\"",
        folder.join("www/name").display()
    );
    assert_eq!(strict.matches("symbolic link").count(), 1, "{strict}");
    assert!(strict.contains(&link), "{strict}");
    let on = test("", ANY);
    assert!(
        on.contains("\"confine on\" lets the worker write anything"),
        "{on}"
    );
    assert!(
        !on.contains("lets the worker read") && !on.contains("symbolic link"),
        "{on}"
    );
    let off = test("confine off;", ANY);
    assert!(!off.contains("lets the worker"), "{off}");
}

#[test]
fn one_process_is_not_confined_and_says_so() {
    if is_nginx() {
        return;
    }
    let mut master = Master::new();
    master.configure(
        "master_process off; events {} http { access_log off; client_body_temp_path @/body; server { listen unix:@/s; } }",
    );
    master.start();
    let log = fs::read_to_string(master.folder.join("logs/error.log")).unwrap();
    assert!(
        log.contains(
            "the worker is not confined: \"master_process off\" gives it no process of its own"
        ),
        "{log}"
    );
    let status = fs::read_to_string(format!("/proc/{}/status", master.pid())).unwrap();
    assert_eq!(field(&status, "NoNewPrivs"), "0");
}

#[test]
fn programs_are_run_by_a_process_beside_the_worker() {
    if is_nginx() {
        return;
    }
    let mut master = Master::new();
    let configure = |master: &Master, more: &str| {
        master.configure(&format!(
            "events {{}} http {{ access_log off; client_body_temp_path @/body; \
             acme_issuer none {{ uri https://127.0.0.1:1/; state_path off; challenge dns-01 /bin/true one; }} {more} \
             server {{ listen unix:@/s; server_name a.example; acme_certificate none; }} }}"
        ));
    };
    configure(&master, "");
    master.start();
    let started = std::time::Instant::now();
    let beside = |worker: u32| {
        let children = support::children(worker).into_iter();
        let mut named = children.filter(|child| {
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            line.starts_with(b"tidegate: program runner")
        });
        named.next()
    };
    let (worker, runner) = loop {
        let workers = master.workers();
        if let [worker] = workers[..]
            && let Some(runner) = beside(worker)
        {
            break (worker, runner);
        }
        assert!(started.elapsed() < support::PATIENCE, "no runner");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let log = || fs::read_to_string(master.folder.join("logs/error.log")).unwrap();
    while !log().contains("using the \"") {
        assert!(started.elapsed() < support::PATIENCE, "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert_eq!(field(&status(worker), "Seccomp"), "2");
    assert_eq!(field(&status(runner), "Seccomp"), "0");
    assert_eq!(field(&status(runner), "Uid"), field(&status(worker), "Uid"));
    // Another program is more than the process beside the worker was told.
    configure(
        &master,
        "acme_issuer other { uri https://127.0.0.1:1/; state_path off; challenge dns-01 /bin/true two; }",
    );
    master.signal("HUP");
    while !log().contains(
        "the configuration runs \"/bin/true\", which the running worker process is confined from",
    ) {
        assert!(started.elapsed() < support::PATIENCE, "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // It ends with its worker.
    while Path::new(&format!("/proc/{runner}")).exists() {
        assert!(started.elapsed() < support::PATIENCE, "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
