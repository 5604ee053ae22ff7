//! What is passed on, and how: fields, uploads, event streams, upgrades.

use super::*;

/// The head of a request as the server behind has got it, in lower case.
fn told(origin: &Origin) -> String {
    origin.last().to_ascii_lowercase()
}

fn fields_that_lie_stay_here(engine: &'static str) {
    with_server(
        engine,
        &[],
        |_, _| ok("Cache-Control: no-store\r\n", b"x"),
        |accelerator, origin| {
            let lies = "X-Forwarded-Host: evil.test\r\nX-Original-URL: /admin\r\n\
                 X-Rewrite-URL: /admin\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n\
                 X-Forwarded-Proto: https\r\nX-Real-IP: 192.0.2.1\r\nProxy: http://evil.test\r\n\
                 X-Forwarded-Port: 1\r\nX-Host: evil.test\r\n";
            let overrides = "X-HTTP-Method-Override: DELETE\r\nX-Method-Override: DELETE\r\n\
                 X-HTTP-Method: DELETE\r\n";
            for method in ["GET", "HEAD"] {
                accelerator.ask(&format!(
                    "{method} /a HTTP/1.1\r\nHost: a.test\r\n{lies}{overrides}Connection: close\r\n\r\n"
                ));
                let told = told(origin);
                for word in ["evil", "admin", "192.0.2.1", "delete", "https"] {
                    assert!(!told.contains(word), "{word}: {told}");
                }
                assert!(
                    told.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"),
                    "{told}"
                );
                assert!(told.contains("\r\nx-forwarded-proto: http\r\n"), "{told}");
            }
            accelerator.ask(&format!(
                "POST /a HTTP/1.1\r\nHost: a.test\r\n{lies}{overrides}Content-Length: 1\r\n\
                 Connection: close\r\n\r\nx"
            ));
            let told = told(origin);
            assert_eq!(told.matches(": delete\r\n").count(), 3, "{told}");
            assert!(!told.contains("evil"), "{told}");
        },
    );
}

support::test_on_each_engine!(fields_that_lie_stay_here);

/// An upload reaches the server behind before it has ended, and an event reaches the client before
/// the next one.
fn uploads_and_events_pass_as_they_come(engine: &'static str) {
    let origin = Origin::writing(|_, _, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Cache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(b"9\r\ndata: 1\n\n\r\n").unwrap();
        // Until the client has what there is, nothing more comes.
        let mut byte = [0];
        let _ = stream.read(&mut byte);
        false
    });
    let accelerator = Accelerator::on(engine, origin.port, &[]);
    for path in ["/events", "/events"] {
        let mut stream = TcpStream::connect(("127.0.0.1", accelerator.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"data: 1\n\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            got.push(byte[0]);
        }
    }
    // No stream is kept, and none waits for another.
    assert_eq!(origin.requests(), 2);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let behind = listener.local_addr().unwrap().port();
    let accelerator = {
        let probes = listener.try_clone().unwrap();
        let answering = thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = probes.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n");
            }
        });
        let accelerator = Accelerator::on(engine, behind, &[]);
        answering.join().unwrap();
        accelerator
    };
    let mut client = TcpStream::connect(("127.0.0.1", accelerator.port)).unwrap();
    client
        .write_all(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nfirst")
        .unwrap();
    let (mut upload, _) = listener.accept().unwrap();
    upload.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nfirst") {
        let mut byte = [0];
        upload.read_exact(&mut byte).unwrap();
        got.push(byte[0]);
    }
}

support::test_on_each_engine!(uploads_and_events_pass_as_they_come);

fn sockets_pass_and_nothing_else_is_upgraded(engine: &'static str) {
    let origin = Origin::writing(|request, _, stream| {
        if !request
            .to_ascii_lowercase()
            .contains("\r\nupgrade: websocket")
        {
            stream
                .write_all(&ok("Cache-Control: max-age=60\r\n", b"plain"))
                .unwrap();
            return true;
        }
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                    Connection: Upgrade\r\n\r\nhello";
        stream.write_all(head.as_bytes()).unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).unwrap();
        stream.write_all(&echo).unwrap();
        false
    });
    let accelerator = Accelerator::on(engine, origin.port, &[]);
    assert_eq!(accelerator.get("/chat").text(), "plain");
    // What is in the cache for this path answers no upgrade.
    let mut stream = TcpStream::connect(("127.0.0.1", accelerator.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /chat HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nping")
        .unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    let text = String::from_utf8_lossy(&got);
    assert!(
        text.starts_with("HTTP/1.1 101 ") && text.ends_with("helloping"),
        "{text}"
    );
    // HTTP/2 in the clear would lead around the cache, and Java's clients ask for it each time.
    let h2c = "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let answer = accelerator.get_with("/chat", h2c);
    assert_eq!(
        (answer.status(), answer.text()),
        ("200", "plain".to_owned())
    );
    assert!(
        !origin
            .seen()
            .iter()
            .any(|it| it.to_ascii_lowercase().contains("h2c"))
    );
    assert_eq!(origin.requests(), 2);
}

support::test_on_each_engine!(sockets_pass_and_nothing_else_is_upgraded);

/// A range of what is in the cache comes from there, and one far into a file is fetched as it is.
fn a_range_far_into_a_file_is_fetched_alone(engine: &'static str) {
    with_server(
        engine,
        &[],
        |request, _| {
            if request
                .to_ascii_lowercase()
                .contains("\r\nrange: bytes=2000000-")
            {
                return b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2000000-2000004/3000000\r\n\
                    Cache-Control: max-age=60\r\nContent-Length: 5\r\n\r\n01234"
                    .to_vec();
            }
            ok(
                "Cache-Control: max-age=60\r\nAccept-Ranges: bytes\r\n",
                &[b'x'; 3000],
            )
        },
        |accelerator, origin| {
            let far = accelerator.get_with("/file", "Range: bytes=2000000-2000004\r\n");
            assert_eq!((far.status(), far.text()), ("206", "01234".to_owned()));
            // It is no answer to a request without a range.
            let whole = accelerator.get("/file");
            assert_eq!((whole.status(), whole.body.len()), ("200", 3000));
            let near = accelerator.get_with("/file", "Range: bytes=10-14\r\n");
            assert_eq!((near.status(), near.text()), ("206", "xxxxx".to_owned()));
            assert_eq!(origin.requests(), 2);
        },
    );
}

support::test_on_each_engine!(a_range_far_into_a_file_is_fetched_alone);
