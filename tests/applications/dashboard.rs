//! The dashboard in Chromium, with a site under load: a server is drained by its button, and its
//! requests end; every width and colour scheme has all of the page on the screen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use support::Server;
use support::port::free_port;

use super::browser::Browser;

/// Servers of the large group.
const MANY: usize = 5000;

/// Milliseconds that the script of one look may take.
const REFRESH_MAX: f64 = 100.0;

/// Asks for pages without a pause until it is dropped.
struct Load {
    end: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Load {
    fn begin(port: u16) -> Load {
        let (end, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (until, count) = (Arc::clone(&end), Arc::clone(&answered));
        let thread = thread::spawn(move || {
            let mut connection = support::Connection::open(port).unwrap();
            while !until.load(Ordering::Relaxed) {
                let response = connection.get("/page").unwrap();
                assert_eq!(response.status, 200);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Load {
            end,
            answered,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// What stands in a cell of the row that begins with this text.
fn cell(browser: &mut Browser, row: &str, at: usize) -> String {
    let expression = format!(
        "[...document.querySelectorAll('tr')].find(row => row.firstChild.textContent == {row:?})?.children[{at}].textContent"
    );
    browser
        .evaluate(&expression)
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_server_is_drained_and_its_requests_end() {
    let [one, two, secure] = std::array::from_fn(|_| free_port());
    let file = |end: &str| format!("{}/tests/tls/ecdsa.{end}", env!("CARGO_MANIFEST_DIR"));
    let mut many = String::new();
    for number in 0..MANY {
        many.push_str(&format!(
            "server 127.1.{}.{}:1; ",
            number / 250,
            number % 250 + 1
        ));
    }
    let lines = format!(
        "server_name status.example;
location /api/ {{ api write=on; }}
location /status/ {{ dashboard; }}
location /page {{ status_zone pages; proxy_pass http://u; proxy_cache kept; proxy_cache_valid 1s; proxy_no_cache 1; }}
[http]
proxy_cache_path memory:kept keys_zone=kept:1m memory=4m;
limit_req_zone $server_port zone=rates:1m rate=1r/s;
upstream u {{ zone u 64k; server 127.0.0.1:{one}; server 127.0.0.1:{two}; }}
server {{ listen 127.0.0.1:{one}; return 200 one; }}
server {{ listen 127.0.0.1:{two}; return 200 two; }}
server {{ listen 127.0.0.1:{secure} ssl; ssl_certificate {}; ssl_certificate_key {}; }}",
        file("crt"),
        file("key")
    );
    let server = Server::start("", &lines);
    let load = Load::begin(server.port);
    let folder = server.prefix.join("browser");
    std::fs::create_dir_all(&folder).unwrap();
    let mut browser = Browser::start(&folder, "status.example", server.port);
    browser.open("http://status.example/status/");
    let drained = format!("127.0.0.1:{one}");
    browser.wait(&format!("document.body.textContent.includes({drained:?})"));
    browser.wait("document.body.textContent.includes('days left')");
    for size in [(360, 740), (800, 900), (1600, 1000)] {
        for scheme in ["light", "dark"] {
            browser.show_as(size, scheme);
            browser.wait("new Promise(done => setTimeout(() => done(true), 1500))");
            let is_wider = "document.documentElement.scrollWidth > innerWidth";
            assert_eq!(browser.evaluate(is_wider), false, "{size:?}");
            browser.screenshot(&format!("dashboard-{}-{scheme}", size.0));
        }
    }
    assert_eq!(cell(&mut browser, &drained, 1), "up");
    let button = format!("[aria-label='Drain {drained}']");
    browser.press(&button);
    browser.wait(&format!(
        "[...document.querySelectorAll('tr')].some(row => row.firstChild.textContent == {drained:?} && row.children[1].textContent == 'draining')"
    ));
    // Its requests end, while the other one's go on.
    browser.wait(&format!(
        "[...document.querySelectorAll('tr')].some(row => row.firstChild.textContent == {drained:?} && row.children[3].textContent == '0')"
    ));
    let before = cell(&mut browser, &drained, 4);
    let answered = load.answered.load(Ordering::Relaxed);
    browser.wait("new Promise(done => setTimeout(() => done(true), 2500))");
    assert_eq!(cell(&mut browser, &drained, 4), before, "no new request");
    assert!(load.answered.load(Ordering::Relaxed) > answered);
    assert!(
        browser
            .evaluate("document.getElementById('changes').textContent")
            .to_string()
            .contains("done")
    );
    browser.press("[aria-label='Purge kept']");
    server.wait_for_log("entries of cache \"kept\" are purged");
    drop(load);

    // Thousands of servers: a look's script is short. The least of some, since others use the
    // machine meanwhile.
    server.reload(&lines.replace("[http]", &format!("[http]\nupstream many {{ {many} }}")));
    browser.wait(&format!("document.querySelectorAll('tr').length > {MANY}"));
    let mut least = f64::MAX;
    // The first look makes the rows.
    for _ in 0..5 {
        browser.evaluate("window.seen = performance.getEntriesByName('refresh')[0]?.startTime");
        browser.wait("performance.getEntriesByName('refresh')[0]?.startTime > window.seen");
        let took = browser.evaluate("performance.getEntriesByName('refresh')[0].duration");
        least = least.min(took.as_f64().unwrap());
    }
    assert!(least < REFRESH_MAX, "{least} ms");
    eprintln!("a look at {MANY} servers: {least:.1} ms of script");
    let faults = browser.take_faults();
    assert!(faults.is_empty(), "{faults:?}");
}
