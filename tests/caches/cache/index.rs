//! The saved index of a folder over the ends of processes: it is whole after an orderly one, with
//! any number of entries, and what cannot be saved does not keep the process from ending.

use std::process::Command;

use support::master::Master;

use super::*;

/// Pages that are asked for.
const PAGES: usize = 20;

/// Bytes before the first chunk of an index, and where they say that it is of an orderly end.
const HEADER: usize = 28;
const ORDERLY_AT: usize = 20;

/// Bytes of a record without names.
const RECORD: usize = 32;

/// A server with a cache, and the upstream behind it.
struct Cached {
    master: Master,
    upstream: Upstream,
    port: u16,
    events: String,
    /// What else the line of the folder says.
    loader: &'static str,
}

impl Cached {
    /// One that runs and has fetched all pages.
    fn start(events: &str) -> Cached {
        let mut cached = Cached {
            master: Master::new(),
            upstream: Upstream::start(|head, _| ok("", head.split(' ').nth(1).unwrap().as_bytes())),
            port: support::port::free_port(),
            events: events.to_owned(),
            loader: "",
        };
        cached.configure();
        cached.master.start();
        for page in 0..PAGES {
            until(|| cached.ask(page).cache() == "HIT");
        }
        cached
    }

    fn configure(&self) {
        let user = if support::site::is_root() {
            "user nobody nogroup;"
        } else {
            ""
        };
        self.master.configure(&format!(
            "{user} events {{ {} }}
             http {{ access_log off;
                 proxy_cache_path @/cache levels=1:2 keys_zone=one:64m inactive=1h {};
                 add_header X-Cache $upstream_cache_status;
                 server {{ listen 127.0.0.1:{};
                     location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                         proxy_cache_valid 1h; }} }} }}",
            self.events, self.loader, self.port, self.upstream.port
        ));
    }

    fn ask(&self, page: usize) -> Answer {
        let request = format!("GET /{page} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = ask_at(self.port, &request);
        assert_eq!(answer.body, format!("/{page}").as_bytes());
        answer
    }

    /// Ends in this way.
    fn end(&mut self, signal: &str) {
        self.master.signal(signal);
        assert!(self.master.wait().success());
    }

    /// Asks for all pages, which the cache has.
    fn hit_all(&self) {
        let before = self.upstream.requests();
        for page in 0..PAGES {
            assert_eq!(self.ask(page).cache(), "HIT", "page {page}");
        }
        assert_eq!(self.upstream.requests(), before);
    }

    fn index(&self) -> PathBuf {
        self.master.folder.join("cache/temp/index")
    }

    /// Adds so many entries to the index that lies there, whose files are not there.
    fn add_entries(&self, count: usize) {
        let index = fs::read(self.index()).unwrap();
        let mut records = Vec::with_capacity(count * RECORD);
        for number in 0..count {
            // Anything that spreads: ids are checksums.
            let id = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            records.extend(id.to_be_bytes());
            records.extend(1_u32.to_le_bytes());
            records.extend(1_u16.to_le_bytes());
            records.extend([0; 10]);
        }
        let length = u32::try_from(records.len()).unwrap().to_le_bytes();
        let sum = crc32(&records).to_le_bytes();
        let (header, chunks) = index.split_at(HEADER);
        let parts: [&[u8]; 5] = [header, &length, &sum, &records, chunks];
        fs::write(self.index(), parts.concat()).unwrap();
    }

    /// Whether the index is of an orderly end; no other is being written.
    fn is_orderly(&self) -> bool {
        let index = fs::read(self.index()).unwrap();
        let log = self.master.read("logs/error.log");
        let is_left = self.index().with_extension("new").exists();
        assert!(!is_left && !log.contains("[error]"), "{log}");
        index[ORDERLY_AT] == 1
    }

    /// Waits until as many processes as that have said that they read all entries from the index.
    fn wait_for_read(&self, entries: usize, times: usize) {
        let line = format!("read: {entries} entries");
        let count = || {
            let log = self.master.read("logs/error.log");
            log.lines().filter(|text| text.contains(&line)).count()
        };
        until(|| count() >= times);
        assert_eq!(count(), times);
    }

    /// Has the next saving of the index wait for a reader, for ever.
    fn block_saving(&self) -> PathBuf {
        let path = self.index().with_extension("new");
        let made = Command::new("mkfifo")
            .args(["-m", "666"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        path
    }
}

/// By ISO 3309, as gzip has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

/// With many entries saving takes longer than everything else that a process does at its end.
#[test]
fn the_index_is_whole_after_an_orderly_end() {
    if is_nginx() {
        return;
    }
    for (signal, count, engine) in [
        ("QUIT", 2_000, "use epoll;"),
        ("TERM", 2_000, "use epoll;"),
        ("INT", 2_000, ""),
        ("QUIT", 250_000, ""),
    ] {
        let mut cached = Cached::start(engine);
        cached.end(signal);
        assert!(cached.is_orderly(), "{signal}");
        let length = fs::metadata(cached.index()).unwrap().len();
        cached.add_entries(count);
        // They are known from the index alone: what looks for their files comes too late.
        cached.loader = "loader_files=1 loader_sleep=600s";
        cached.configure();
        for times in 1..=2 {
            cached.master.start();
            cached.wait_for_read(count + PAGES, times);
            cached.hit_all();
            assert!(!cached.is_orderly(), "it may be killed");
            cached.end(signal);
            assert!(cached.is_orderly(), "{signal} {count}");
            let grown = fs::metadata(cached.index()).unwrap().len() - length;
            assert!(grown >= (count * RECORD) as u64, "{signal} {count}");
        }
        let log = cached.master.read("logs/error.log");
        assert!(!log.contains("may hold others"), "{log}");
    }
}

/// A disk that does not answer: QUIT waits for it, a TERM after that does not, nor does one alone;
/// and the index of before stays.
#[test]
fn what_cannot_be_saved_does_not_hold_up_the_end() {
    if is_nginx() {
        return;
    }
    const GIVEN_UP: &str = "does not wait any longer for the index of a cache";
    for has_quit in [true, false] {
        let mut cached = Cached::start("");
        cached.end("QUIT");
        cached.master.start();
        cached.wait_for_read(PAGES, 1);
        let before = fs::read(cached.index()).unwrap();
        let new = cached.block_saving();
        if has_quit {
            cached.master.signal("QUIT");
            thread::sleep(Duration::from_millis(1500));
            assert!(cached.master.ended().is_none(), "QUIT waits");
        }
        let begun = Instant::now();
        cached.master.signal("TERM");
        cached.master.wait();
        assert!(begun.elapsed() < Duration::from_secs(5));
        let log = cached.master.read("logs/error.log");
        assert!(log.contains(GIVEN_UP), "has_quit={has_quit}: {log}");
        assert_eq!(fs::read(cached.index()).unwrap(), before);
        fs::remove_file(new).unwrap();
        fs::remove_file(cached.master.folder.join("logs/error.log")).unwrap();
        cached.master.start();
        cached.wait_for_read(PAGES, 1);
        cached.hit_all();
        cached.end("QUIT");
        // Whether the folder had been looked through by then is not said.
        cached.is_orderly();
    }
}

/// A process that was killed while it saved leaves the index of before, and the next one saves over
/// what it left.
#[test]
fn an_index_that_was_cut_off_is_not_read() {
    if is_nginx() {
        return;
    }
    let mut cached = Cached::start("");
    cached.end("TERM");
    let whole = fs::read(cached.index()).unwrap();
    let mut cut = whole.repeat(1000);
    cut.truncate(whole.len() * 999 + HEADER + 100);
    let new = cached.index().with_extension("new");
    fs::write(&new, cut).unwrap();
    if support::site::is_root() {
        let user = Command::new("chown").arg("nobody").arg(&new).status();
        assert!(user.unwrap().success());
    }
    cached.master.start();
    cached.wait_for_read(PAGES, 1);
    cached.hit_all();
    cached.end("QUIT");
    assert!(cached.is_orderly());
    // How many chunks there are is each process' own.
    let length = fs::metadata(cached.index()).unwrap().len();
    assert!(length < 2 * whole.len() as u64, "{length}");
}

/// The process that a reload replaces gives index and folder to the one that takes its place.
#[test]
fn a_new_process_reads_what_the_one_before_saved() {
    if is_nginx() {
        return;
    }
    let mut cached = Cached::start("worker_connections 300;");
    let workers = cached.master.workers();
    cached.events = "worker_connections 400;".to_owned();
    cached.configure();
    cached.master.signal("HUP");
    cached.master.wait_for_other_workers(&workers);
    cached.wait_for_read(PAGES, 1);
    cached.hit_all();
    cached.end("QUIT");
    assert!(cached.is_orderly());
    // A reload that the process follows leaves the folder with it.
    cached.master.start();
    cached.wait_for_read(PAGES, 2);
    cached.master.signal("HUP");
    cached
        .master
        .wait_for_text("logs/error.log", "reconfiguring");
    cached.hit_all();
    cached.end("TERM");
    assert!(cached.is_orderly());
    cached.master.start();
    cached.hit_all();
}
