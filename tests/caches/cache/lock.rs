//! `*_cache_lock`: one fetches, the others get its answer as it comes.

use std::sync::{Condvar, MutexGuard};

use super::*;

const LENGTH: usize = 600_000;
const FIRST: usize = 200_000;

/// Something that threads wait for.
#[derive(Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    pub(crate) fn pass(&self) {
        let closed = |is_open: &mut bool| !*is_open;
        let waited = self
            .1
            .wait_timeout_while(self.0.lock().unwrap(), PATIENCE, closed);
        let (is_open, _): (MutexGuard<'_, bool>, _) = waited.unwrap();
        assert!(*is_open, "the gate stays closed");
    }
}

/// A request that is sent, with its connection.
pub(crate) fn send(port: u16, path: &str, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// What answers it.
pub(crate) fn receive(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

/// How often each status of the cache comes.
fn count(answers: &[Answer], cache: &str) -> usize {
    let of_it = answers.iter().filter(|answer| answer.cache() == cache);
    of_it.count()
}

/// All have the first bytes before the last ones have left the upstream.
fn many_read_along_while_one_fetches(engine: &'static str) {
    const CLIENTS: usize = 20;
    if is_nginx() {
        return; // there they wait for the end
    }
    for framing in ["Content-Length: 600000\r\n", ""] {
        let gate = Arc::<Gate>::default();
        let rest = Arc::clone(&gate);
        let upstream = Upstream::writing(move |_, _, stream| {
            let body = pattern(LENGTH);
            let head = format!("HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\n{framing}\r\n");
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&body[..FIRST]);
            rest.pass();
            let _ = stream.write_all(&body[FIRST..]);
        });
        let server = start(
            engine,
            "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
                 proxy_cache_lock on; }",
            upstream.port,
        );
        let port = server.port;
        let begun = AtomicUsize::new(0);
        let answers: Vec<Answer> = thread::scope(|scope| {
            let client = || {
                let mut stream = send(port, "/", "");
                let mut bytes = vec![0; FIRST];
                stream.read_exact(&mut bytes).unwrap();
                begun.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read_to_end(&mut bytes);
                parse(&bytes)
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            until(|| begun.load(Ordering::SeqCst) == CLIENTS);
            // Others ask for a part of it, or only for the head.
            let range = send(port, "/", "Range: bytes=100-199\r\n");
            let request = "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let head = ask(&server, request);
            assert_eq!((head.status(), head.cache()), ("200", "HIT"));
            gate.open();
            let range = receive(range);
            if framing.is_empty() {
                assert_eq!((range.status(), range.cache()), ("200", "HIT"));
            } else {
                assert_eq!((range.status(), range.cache()), ("206", "HIT"));
                assert_eq!(checksum(&range.body), checksum(&pattern(LENGTH)[100..200]));
            }
            let answers = clients.into_iter().map(|client| client.join().unwrap());
            answers.collect()
        });
        for answer in &answers {
            assert_eq!(answer.status(), "200");
            assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
        }
        assert_eq!(count(&answers, "MISS"), 1);
        assert_eq!(count(&answers, "HIT"), CLIENTS - 1);
        assert_eq!(upstream.requests(), 1);
        until(|| get(&server, "/").cache() == "HIT");
        assert_eq!(upstream.requests(), 1);
    }
}

support::test_on_each_engine!(many_read_along_while_one_fetches);

/// Without the lock all ask; with it nobody does who comes later.
fn the_lock_is_off_unless_it_is_written(engine: &'static str) {
    const CLIENTS: usize = 5;
    for family in FAMILIES {
        let met = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&met);
        let lines = "X_cache_valid 1h;
            location / { X_pass APP; }
            location /locked { X_pass APP; X_cache_lock on; }
            location /off { X_pass APP; X_cache_lock off; }";
        let (server, _) = start_family(engine, family, lines, move |path, _| {
            // Of what is not locked all come before any is answered.
            counted.fetch_add(1, Ordering::SeqCst);
            if !path.starts_with("/locked") {
                until(|| counted.load(Ordering::SeqCst) >= CLIENTS);
            }
            (String::new(), pattern(LENGTH))
        });
        for (path, fetches) in [("/a", CLIENTS), ("/off", CLIENTS), ("/locked", 1)] {
            met.store(0, Ordering::SeqCst);
            let sent: Vec<_> = (0..CLIENTS).map(|_| send(server.port, path, "")).collect();
            let answers: Vec<_> = sent.into_iter().map(receive).collect();
            for answer in &answers {
                assert_eq!(answer.status(), "200", "{path}");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)), "{path}");
            }
            assert_eq!(count(&answers, "MISS"), fetches, "{path} {family:?}");
            assert_eq!(met.load(Ordering::SeqCst), fetches, "{path} {family:?}");
        }
    }
}

support::test_on_each_engine!(the_lock_is_off_unless_it_is_written);

/// What is not to be stored is not fetched by one after another.
fn nobody_waits_for_what_is_not_kept(engine: &'static str) {
    const CLIENTS: usize = 30;
    if is_nginx() {
        return; // there they ask one after another, twice a second
    }
    for (path, fields) in [
        ("/", "Set-Cookie: a=b\r\n"),
        ("/private", "Cache-Control: private\r\n"),
        ("/unbuffered", "X-Accel-Buffering: no\r\n"),
        ("/never", ""),
        ("/no", ""),
        ("/cookie", "Set-Cookie: a=b\r\n"),
    ] {
        let seen = Arc::<AtomicUsize>::default();
        let gate = Arc::<Gate>::default();
        let (counted, first) = (Arc::clone(&seen), Arc::clone(&gate));
        let upstream = Upstream::start(move |head, number| {
            counted.fetch_add(1, Ordering::SeqCst);
            match number {
                0 => first.pass(),
                // One more is alone where it was for a client that nothing is kept for.
                1 if path == "/no" => {}
                _ => until(|| counted.load(Ordering::SeqCst) >= CLIENTS),
            }
            assert!(head.starts_with("GET "));
            ok(fields, format!("{number}").as_bytes())
        });
        let server = start(
            engine,
            "proxy_cache one; proxy_cache_lock on; proxy_cache_lock_timeout 60s;
             proxy_cache_lock_age 60s; proxy_cache_key $uri;
             location / { proxy_pass http://UP; proxy_cache_valid 1h; }
             location /never { proxy_pass http://UP; }
             location /status { stub_status; }
             location /no { proxy_pass http://UP; proxy_cache_valid 1h;
                 proxy_no_cache $http_x_no; }
             location /cookie { proxy_pass http://UP; proxy_cache_valid 1h;
                 proxy_ignore_headers Set-Cookie; }",
            upstream.port,
        );
        let sent: Vec<_> = (0..CLIENTS)
            .map(|_| send(server.port, path, "X-No: 1\r\n"))
            .collect();
        // Those that have been read are being written, and the question for that as well.
        let all = format!("Writing: {} ", CLIENTS + 1);
        until(|| String::from_utf8_lossy(&get(&server, "/status").body).contains(&all));
        gate.open();
        let answers: Vec<_> = sent.into_iter().map(receive).collect();
        let mut bodies: Vec<_> = answers.iter().map(|answer| answer.body.clone()).collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!(bodies.len(), CLIENTS, "{path}");
        assert_eq!(count(&answers, "MISS"), CLIENTS, "{path}");
    }
}

support::test_on_each_engine!(nobody_waits_for_what_is_not_kept);

/// A client that leaves stops no fetch that others wait for; a claim whose holder fails is free at
/// once.
fn a_lock_outlives_a_client_and_dies_with_its_holder(engine: &'static str) {
    let gates = [(); 2].map(|()| Arc::<Gate>::default());
    let closed = gates.clone();
    let upstream = Upstream::start(move |_, number| {
        match number {
            0 => closed[0].pass(),
            1 => {
                closed[1].pass();
                return Vec::new();
            }
            _ => {}
        }
        ok("", &pattern(LENGTH))
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s; }",
        upstream.port,
    );
    let holder = send(server.port, "/left", "");
    upstream.wait_for(1);
    let waiter = send(server.port, "/left", "");
    drop(holder);
    gates[0].open();
    let answer = receive(waiter);
    assert_eq!((answer.status(), answer.cache()), ("200", "HIT"));
    assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
    assert_eq!(upstream.requests(), 1);

    let holder = send(server.port, "/closed", "");
    upstream.wait_for(2);
    let waiters = [
        send(server.port, "/closed", ""),
        send(server.port, "/closed", ""),
    ];
    gates[1].open();
    assert_eq!(receive(holder).status(), "502");
    let answers = waiters.map(receive);
    assert_eq!(count(&answers, "MISS") + count(&answers, "HIT"), 2);
    for answer in answers {
        assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
    }
    assert_eq!(upstream.requests(), 3);
}

support::test_on_each_engine!(a_lock_outlives_a_client_and_dies_with_its_holder);

/// The times are over: one more asks after the age, everybody after the timeout, and only the
/// answer of the first is kept then.
fn waiting_has_an_end(engine: &'static str) {
    const LINES: &str = "X_cache_lock on; X_cache_valid 1h;
        location /timeout { X_pass APP; X_cache_lock_timeout 100ms; X_cache_lock_age 60s; }
        location /none { X_pass APP; X_cache_lock_timeout 0; }
        location /age { X_pass APP; X_cache_lock_timeout 60s; X_cache_lock_age 100ms; }";
    for family in FAMILIES {
        for path in ["/timeout", "/none", "/age"] {
            let gate = Arc::<Gate>::default();
            let first = Arc::clone(&gate);
            let answer = move |_: &str, number: usize| {
                if number == 0 {
                    first.pass();
                }
                (String::new(), format!("{number}").into_bytes())
            };
            let (server, requests) = start_family(engine, family, LINES, answer);
            let asked = || requests.load(Ordering::SeqCst);
            let holder = send(server.port, path, "");
            until(|| asked() == 1);
            let answer = receive(send(server.port, path, ""));
            assert_eq!((answer.cache(), &answer.body[..]), ("MISS", &b"1"[..]));
            if path == "/age" {
                until(|| get(&server, path).cache() == "HIT");
                assert_eq!(get(&server, path).body, b"1");
            }
            gate.open();
            let answer = receive(holder);
            assert_eq!((answer.cache(), &answer.body[..]), ("MISS", &b"0"[..]));
            // The first answer is kept in any case, and last.
            until(|| get(&server, path).body == b"0");
            assert_eq!(get(&server, path).cache(), "HIT");
            assert_eq!(asked(), 2, "{path} {family:?}");
        }
    }
}

support::test_on_each_engine!(waiting_has_an_end);

/// Each variant is fetched once, and no one gets that of another.
fn who_waits_for_another_variant_asks_for_its_own(engine: &'static str) {
    const CLIENTS: usize = 6;
    if is_nginx() {
        return; // there a variant that was not there is fetched several times
    }
    let gate = Arc::<Gate>::default();
    let first = Arc::clone(&gate);
    let upstream = Upstream::start(move |head, number| {
        if number == 0 {
            first.pass();
        }
        let mut lines = head.lines();
        let line = lines.rfind(|line| line.starts_with("X-Which"));
        let which: usize = line.unwrap()[9..].parse().unwrap();
        ok("Vary: X-Which\r\n", &pattern(LENGTH + which))
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s; }",
        upstream.port,
    );
    let ask_for = |which: usize| send(server.port, "/", &format!("X-Which: {which}\r\n"));
    let mut sent = vec![(0, ask_for(0))];
    upstream.wait_for(1);
    sent.extend((1..CLIENTS).map(|number| (number % 3, ask_for(number % 3))));
    gate.open();
    for (which, stream) in sent {
        let answer = receive(stream);
        assert_eq!(answer.status(), "200", "{which}");
        assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH + which)));
    }
    assert_eq!(upstream.requests(), 3);
}

support::test_on_each_engine!(who_waits_for_another_variant_asks_for_its_own);

/// What breaks off is broken off for all, and nothing of it is kept.
fn a_fill_that_breaks_off_breaks_off_for_all(engine: &'static str) {
    if is_nginx() {
        return; // there nobody has had anything of it
    }
    let gate = Arc::<Gate>::default();
    let end = Arc::clone(&gate);
    let upstream = Upstream::writing(move |_, number, stream| {
        let answer = ok("", &pattern(LENGTH));
        if number > 0 {
            let _ = stream.write_all(&answer);
            return;
        }
        let _ = stream.write_all(&answer[..FIRST]);
        end.pass();
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_lock on; }",
        upstream.port,
    );
    let mut sent = [send(server.port, "/", ""), send(server.port, "/", "")];
    let mut bytes = [[0; 1000]; 2];
    for (stream, bytes) in sent.iter_mut().zip(&mut bytes) {
        stream.read_exact(bytes).unwrap();
    }
    gate.open();
    for (mut stream, bytes) in sent.into_iter().zip(bytes) {
        let mut bytes = bytes.to_vec();
        let _ = stream.read_to_end(&mut bytes);
        let answer = parse(&bytes);
        let length = answer.body.len();
        assert!(length < LENGTH);
        assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)[..length]));
    }
    let answer = get(&server, "/");
    assert_eq!(answer.cache(), "MISS");
    assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
}

support::test_on_each_engine!(a_fill_that_breaks_off_breaks_off_for_all);
