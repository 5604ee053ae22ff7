//! What is wrong with entries, answers, keys and processes: clients get what the upstream has,
//! whole, or see that it is not.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use support::master::Master;

use super::*;

const LENGTH: usize = 60_000;

/// Entries that were changed while a server uses them, and before its start.
fn entries_that_are_damaged_are_fetched_anew(engine: &'static str) {
    if is_nginx() {
        return;
    }
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 7] = [
        ("cut off in the head", |path, _| cut(path, 300)),
        ("cut off in the body", |path, _| cut(path, 20_000)),
        ("empty", |path, _| cut(path, 0)),
        ("flipped in the head", |path, _| flip(path, 40)),
        ("flipped in the text", |path, _| flip(path, 360)),
        ("of another version", |path, _| flip(path, 8)),
        ("of another key", |path, other| {
            fs::copy(other, path).unwrap();
        }),
    ];
    // Bodies are compared once in a process.
    let before: (&str, Change) = ("flipped in the body", |path, _| flip(path, 30_000));
    let upstream = Upstream::start(|head, _| {
        let name = head.split(' ').nth(1).unwrap().as_bytes();
        ok("", &[name, &pattern(LENGTH)].concat())
    });
    let port = support::port::free_port();
    let mut master = Master::new();
    let user = if support::site::is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    master.configure(&format!(
        "{user} events {{ {engine} }}
         http {{ access_log off;
             proxy_cache_path @/cache keys_zone=one:1m;
             add_header X-Cache $upstream_cache_status;
             server {{ listen 127.0.0.1:{port};
                 location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                     proxy_cache_key $uri; proxy_cache_valid 1h; }} }} }}",
        upstream.port
    ));
    let ask = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = ask_at(port, &request);
        let expected = [path.as_bytes(), &pattern(LENGTH)].concat();
        assert_eq!(checksum(&answer.body), checksum(&expected), "{path}");
        answer.cache().to_owned()
    };
    let cache = master.folder.join("cache");
    // Where the entries of two keys lie.
    let file_of = |key: &str| {
        let line = format!("\nKEY: {key}\n");
        let holds = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes[336..].starts_with(line.as_bytes())
        };
        entries(&cache).into_iter().find(holds).unwrap()
    };
    master.start();
    for path in ["/a", "/b"] {
        until(|| ask(path) == "HIT");
    }
    let (a, b) = (file_of("/a"), file_of("/b"));
    for (name, change) in changes {
        change(&a, &b);
        assert_eq!(ask("/a"), "MISS", "{name}, in service");
        // A hit may come from the fill, before the entry has its name.
        until(|| ask("/a") == "HIT" && a.exists());
    }
    for (name, change) in changes.into_iter().chain([before]) {
        master.signal("QUIT");
        master.wait();
        change(&a, &b);
        master.start();
        assert_eq!(ask("/a"), "MISS", "{name}, before the start");
        until(|| ask("/a") == "HIT" && a.exists());
        assert_eq!(ask("/b"), "HIT", "{name}");
    }
    let log = master.read("logs/error.log");
    for fault in [
        "is too small",
        "has a body of another length",
        "has a damaged head",
        "version mismatch",
        "has md5 collision",
        "has a damaged body",
    ] {
        assert!(log.contains(fault), "{fault}: {log}");
    }
}

support::test_on_each_engine!(entries_that_are_damaged_are_fetched_anew);

fn cut(path: &Path, length: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// A body above 1 MB is given before it has been compared, and what is wrong with it goes then.
#[test]
fn a_large_body_is_compared_beside_service() {
    if is_nginx() {
        return;
    }
    const LARGE: usize = 3_000_000;
    let upstream = Upstream::start(|_, _| ok("", &pattern(LARGE)));
    let port = support::port::free_port();
    let mut master = Master::new();
    let user = if support::site::is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    master.configure(&format!(
        "{user} events {{ }}
         http {{ access_log off;
             proxy_cache_path @/cache keys_zone=one:1m;
             add_header X-Cache $upstream_cache_status;
             server {{ listen 127.0.0.1:{port};
                 location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                     proxy_cache_key $uri; proxy_cache_valid 1h; }} }} }}",
        upstream.port
    ));
    let ask = || {
        let request = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        ask_at(port, request)
    };
    master.start();
    until(|| ask().cache() == "HIT");
    master.signal("QUIT");
    master.wait();
    let file = entries(&master.folder.join("cache")).remove(0);
    flip(&file, 2_000_000);
    master.start();
    assert_eq!(ask().cache(), "HIT");
    master.wait_for_text("logs/error.log", "body of cache entry: has a damaged body");
    until(|| ask().cache() == "HIT" && checksum(&ask().body) == checksum(&pattern(LARGE)));
    assert_eq!(upstream.requests(), 2);
}

/// An upstream that dies within an answer: the client sees that it is not whole, and nothing is
/// kept, with ranges of the upstream's and without.
fn an_answer_that_breaks_off_is_not_kept(engine: &'static str) {
    for has_ranges in [false, true] {
        let answer = move |head: &str, number: usize, stream: &mut TcpStream| {
            let ranges = if has_ranges {
                "Accept-Ranges: bytes\r\nETag: \"a\"\r\n"
            } else {
                ""
            };
            let whole = ok(ranges, &pattern(LENGTH));
            let end = match number {
                0 => whole.len() / 2,
                1 => whole.len() - 1,
                _ => whole.len(),
            };
            assert!(!head.contains("\r\nRange:"));
            let _ = stream.write_all(&whole[..end]);
        };
        let upstream = Upstream::writing(answer);
        let server = start(
            engine,
            "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
            upstream.port,
        );
        for round in 0..2 {
            let answer = get(&server, "/a");
            assert!(answer.body.len() < LENGTH, "{round}");
            assert_eq!(answer.body, pattern(LENGTH)[..answer.body.len()]);
        }
        until(|| get(&server, "/a").cache() == "HIT");
        assert_eq!(
            checksum(&get(&server, "/a").body),
            checksum(&pattern(LENGTH))
        );
        let answer = get_with(&server, "/a", "Range: bytes=50000-50099\r\n");
        let expected = if has_ranges {
            pattern(LENGTH)[50_000..50_100].to_vec()
        } else {
            pattern(LENGTH)
        };
        assert_eq!(checksum(&answer.body), checksum(&expected));
        assert_eq!(upstream.requests(), 3);
    }
}

support::test_on_each_engine!(an_answer_that_breaks_off_is_not_kept);

/// Keys of 8 KB, and such that differ in their last byte alone.
fn long_keys_are_told_apart(engine: &'static str) {
    with_server(
        engine,
        "large_client_header_buffers 4 32k; proxy_buffer_size 16k; proxy_buffers 8 16k;
         location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |head, _| ok("", head.split(' ').nth(1).unwrap().as_bytes()),
        |server, upstream| {
            let paths = [1000, 8191, 8192, 8193, 9000].map(|length| {
                let path = format!("/?{}", "k".repeat(length - 3));
                [format!("{path}a"), format!("{path}b")]
            });
            let paths = paths.concat();
            for path in &paths {
                let caches = [get(server, path), get(server, path)].map(|answer| {
                    assert_eq!(checksum(&answer.body), checksum(path.as_bytes()));
                    answer.cache().to_owned()
                });
                assert_eq!(caches, ["MISS", "HIT"], "{}", path.len());
            }
            assert_eq!(upstream.requests(), paths.len());
            for path in &paths {
                let answer = get(server, path);
                assert_eq!(checksum(&answer.body), checksum(path.as_bytes()));
                assert_eq!(answer.cache(), "HIT");
            }
        },
    );
}

support::test_on_each_engine!(long_keys_are_told_apart);

/// Every answer of `Vary` goes to those alone who have asked so.
fn a_thousand_variants_are_told_apart(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |head, _| {
            let value = |name: &str| {
                let mut lines = head.lines();
                lines
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                    .unwrap_or("")
                    .to_owned()
            };
            let body = format!("{} {}", value("X-One"), value("X-Two"));
            let vary = match head.split(' ').nth(1).unwrap() {
                "/one" => "Vary: X-One\r\n",
                "/two" => "Vary: X-One\r\nVary: X-Two\r\n",
                "/star" => "Vary: X-One\r\nVary: *\r\n",
                _ => "Vary: *\r\n",
            };
            ok(vary, body.as_bytes())
        },
        |server, upstream| {
            let ask = |path: &str, one: usize, two: usize| {
                let fields = format!("X-One: {one}\r\nX-Two: {two}\r\n");
                let answer = get_with(server, path, &fields);
                let body = format!("{one} {two}");
                let is_right = checksum(&answer.body) == checksum(body.as_bytes());
                (answer.cache().to_owned(), is_right)
            };
            for cache in ["MISS", "HIT"] {
                for number in 0..1000 {
                    assert_eq!(ask("/one", number, 7), (cache.to_owned(), true), "{number}");
                }
            }
            assert_eq!(upstream.requests(), 1000);
            for (one, two) in [(1, 1), (1, 2), (2, 1)] {
                assert_eq!(ask("/two", one, two), ("MISS".to_owned(), true));
            }
            for (one, two) in [(1, 1), (1, 2), (2, 1)] {
                assert_eq!(ask("/two", one, two), ("HIT".to_owned(), true));
            }
            for path in ["/star", "/none"] {
                for number in 0..3 {
                    assert_eq!(ask(path, 1, number), ("MISS".to_owned(), true), "{path}");
                }
            }
        },
    );
}

support::test_on_each_engine!(a_thousand_variants_are_told_apart);

/// POST is answered from the cache where a line says so, and its body reaches the upstream.
fn a_post_is_kept_where_that_is_asked_for(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_methods POST; proxy_cache_key $uri$request_method$http_x_key; }",
        |head, _| {
            assert!(
                !head.starts_with("POST") || head.contains("Content-Length: 4"),
                "{head}"
            );
            ok("", &pattern(LENGTH))
        },
        |server, upstream| {
            let post = |key: &str| {
                let request = format!(
                    "POST /a HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\nContent-Length: 4\r\n\
                     Connection: close\r\n\r\nbody"
                );
                let answer = ask(server, &request);
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
                answer.cache().to_owned()
            };
            assert_eq!(
                ["1", "1", "2", "1"].map(post),
                ["MISS", "HIT", "MISS", "HIT"]
            );
            assert_eq!(get(server, "/a").cache(), "MISS");
            assert_eq!(upstream.requests(), 3);
        },
    );
}

support::test_on_each_engine!(a_post_is_kept_where_that_is_asked_for);

/// Processes are killed while entries are stored, read and evicted: what is given is whole and
/// right, and in the end the folder has no file that is no entry.
fn killed_processes_leave_no_wrong_answers(engine: &'static str) {
    if is_nginx() {
        return;
    }
    const PATHS: usize = 60;
    let body = |path: usize| {
        let mut body = pattern(path * path * 120);
        body.extend_from_slice(path.to_string().as_bytes());
        body
    };
    let upstream = Upstream::start(move |head, _| {
        let path = head.split(' ').nth(1).unwrap()[1..].parse().unwrap();
        ok("Cache-Control: max-age=100\r\n", &body(path))
    });
    let port = support::port::free_port();
    let mut master = Master::new();
    let user = if support::site::is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    master.configure(&format!(
        "{user} events {{ {engine} }}
         http {{ access_log off;
             proxy_cache_path @/cache levels=1 keys_zone=one:1m max_size=4m;
             server {{ listen 127.0.0.1:{port};
                 location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one;
                     proxy_cache_key $uri; }} }} }}",
        upstream.port
    ));
    master.start();
    let is_over = Arc::new(AtomicBool::new(false));
    let right = Arc::<AtomicUsize>::default();
    let clients: Vec<_> = (0..6)
        .map(|client| {
            let (is_over, right) = (Arc::clone(&is_over), Arc::clone(&right));
            thread::spawn(move || {
                let mut path = client * 17;
                while !is_over.load(Ordering::SeqCst) {
                    path = (path * 5 + 7 + client) % PATHS;
                    if let Some(answer) = try_ask(port, path) {
                        assert_eq!(checksum(&answer), checksum(&body(path)), "{path}");
                        right.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for _ in 0..6 {
        let goal = right.load(Ordering::SeqCst) + 150;
        until(|| right.load(Ordering::SeqCst) >= goal);
        let workers = master.workers();
        for worker in &workers {
            support::signal(*worker, "KILL");
        }
        master.wait_for_other_workers(&workers);
    }
    let goal = right.load(Ordering::SeqCst) + 150;
    until(|| right.load(Ordering::SeqCst) >= goal);
    is_over.store(true, Ordering::SeqCst);
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
    let cache = master.folder.join("cache");
    let temporaries = || {
        let files = entries(&cache);
        let is_one = |path: &&PathBuf| path.file_name().unwrap().len() > 32;
        files.iter().filter(is_one).count()
    };
    until(|| temporaries() == 0);
    until(|| {
        let files = entries(&cache);
        let sizes = files.iter().filter_map(|path| fs::metadata(path).ok());
        sizes
            .map(|file| file.len().next_multiple_of(4096))
            .sum::<u64>()
            <= 4 << 20
    });
}

support::test_on_each_engine!(killed_processes_leave_no_wrong_answers);

/// The body of an answer that has come whole.
fn try_ask(port: u16, path: usize) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))?;
    let body = bytes.split_off(end + 4);
    (body.len() == length.parse::<usize>().unwrap()).then_some(body)
}
