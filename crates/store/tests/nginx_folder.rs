//! A cache's folder that passes from nginx to the store and back, with a real nginx: the one that
//! `NGINX_BINARY` names, or the system's.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_store::disk::{
    DiskStore, EntryId, Fault, Miss, NewHead, OpenEntry, Origin, Presence, Settings, Stage,
};

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

fn nginx() -> Option<PathBuf> {
    let named = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
    let binary = named.unwrap_or_else(|| "/usr/sbin/nginx".into());
    binary.exists().then_some(binary)
}

/// A folder that goes with the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let name = format!("tidegate-store-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for below in ["logs", "cache"] {
            fs::create_dir_all(path.join(below)).unwrap();
        }
        TestFolder(path)
    }

    fn error_log(&self) -> String {
        fs::read_to_string(self.0.join("logs/error.log")).unwrap_or_default()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// nginx with a cache in `cache`, in front of a server of each protocol.
struct Nginx {
    child: Child,
    socket: PathBuf,
}

impl Nginx {
    fn start(binary: &Path, folder: &TestFolder, upstreams: &Upstreams) -> Nginx {
        let Upstreams {
            http,
            fastcgi,
            scgi,
        } = upstreams;
        let socket = folder.0.join("socket");
        let _ = fs::remove_file(&socket);
        let at = socket.display();
        let configuration = format!(
            "daemon off; worker_processes 1; pid nginx.pid; error_log logs/error.log info;
            events {{ }}
            http {{
                access_log off;
                client_body_temp_path body_temp; proxy_temp_path proxy_temp;
                fastcgi_temp_path fastcgi_temp; uwsgi_temp_path uwsgi_temp;
                scgi_temp_path scgi_temp;
                proxy_cache_path cache/http levels=1:2 keys_zone=http:1m use_temp_path=off;
                fastcgi_cache_path cache/fastcgi levels=1:2 keys_zone=fastcgi:1m
                    use_temp_path=off;
                scgi_cache_path cache/scgi levels=1:2 keys_zone=scgi:1m use_temp_path=off;
                proxy_cache_key key:$uri; fastcgi_cache_key key:$uri; scgi_cache_key key:$uri;
                add_header X-Cache $upstream_cache_status;
                server {{
                    listen unix:{at};
                    location / {{
                        proxy_pass http://127.0.0.1:{http};
                        proxy_set_header Accept-Encoding $http_accept_encoding;
                        proxy_http_version 1.1; proxy_cache http; proxy_cache_valid 1h;
                    }}
                    location /fastcgi {{
                        fastcgi_pass 127.0.0.1:{fastcgi};
                        fastcgi_cache fastcgi; fastcgi_cache_valid 1h;
                        fastcgi_param REQUEST_METHOD $request_method;
                    }}
                    location /scgi {{
                        scgi_pass 127.0.0.1:{scgi};
                        scgi_cache scgi; scgi_cache_valid 1h;
                        scgi_param REQUEST_METHOD $request_method;
                    }}
                }}
            }}"
        );
        let path = folder.0.join("nginx.conf");
        fs::write(&path, configuration).unwrap();
        let child = Command::new(binary)
            .arg("-p")
            .arg(&folder.0)
            .arg("-c")
            .arg(path)
            .args(["-e", "logs/error.log"])
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Nginx { child, socket };
        let begin = Instant::now();
        while UnixStream::connect(&nginx.socket).is_err() {
            let has_ended = nginx.child.try_wait().unwrap().is_some();
            assert!(
                !has_ended && begin.elapsed() < PATIENCE,
                "{}",
                folder.error_log()
            );
            thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    /// Status of the cache and body of an answer.
    fn get(&self, path: &str, field: &str) -> (String, Vec<u8>) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: a\r\n{field}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let cache = head.lines().find_map(|line| line.strip_prefix("X-Cache: "));
        let cache = cache.unwrap_or_else(|| panic!("{head}"));
        (cache.to_owned(), answer[end + 4..].to_vec())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        // The master ends its workers.
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

/// Ports of servers that end with the test's process.
struct Upstreams {
    http: u16,
    fastcgi: u16,
    scgi: u16,
}

fn serve(answer: impl Fn(TcpStream) -> std::io::Result<()> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream);
        }
    });
    port
}

impl Upstreams {
    fn start() -> Upstreams {
        Upstreams {
            http: serve(http),
            fastcgi: serve(fastcgi),
            scgi: serve(scgi),
        }
    }
}

fn large() -> Vec<u8> {
    (0..300_000_u32).map(|at| (at / 7) as u8).collect()
}

fn http(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut encoding = String::from("identity");
    for line in lines {
        let line = line?;
        if let Some(value) = line.strip_prefix("Accept-Encoding: ") {
            value.clone_into(&mut encoding);
        }
        if line.is_empty() {
            break;
        }
    }
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\n";
    let answer = match &*path {
        "/chunked" => {
            format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        }
        "/vary" => {
            let length = encoding.len();
            format!("{head}Vary: Accept-Encoding\r\nContent-Length: {length}\r\n\r\n{encoding}")
        }
        "/large" => {
            write!(stream, "{head}Content-Length: 300000\r\n\r\n")?;
            return stream.write_all(&large());
        }
        _ => format!("{head}Content-Length: 5\r\n\r\nplain"),
    };
    stream.write_all(answer.as_bytes())
}

fn fastcgi(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let mut content = vec![0; length + usize::from(head[6])];
        stream.read_exact(&mut content)?;
        // The end of its standard input.
        if head[1] == 5 && length == 0 {
            break;
        }
    }
    let record = |kind: u8, padding: u8, content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        let head = [1, kind, 0, 1, high, low, padding, 0];
        [&head, content, &vec![0; padding.into()]].concat()
    };
    let answer = [
        record(6, 5, b"Content-Type: te"),
        record(7, 1, b"a warning"),
        record(6, 3, b"xt/plain\r\nX-From: fastcgi\r\n\r\nfastcgi "),
        record(6, 0, b"body"),
        record(3, 0, &[0; 8]),
    ];
    stream.write_all(&answer.concat())
}

fn scgi(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = vec![0; 4096];
    let _ = stream.read(&mut request)?;
    stream.write_all(b"Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nscgi body")
}

fn settings(folder: &TestFolder, zone: &str) -> Settings {
    Settings {
        path: folder.0.join("cache").join(zone),
        levels: "1:2".parse().unwrap(),
        index_size: 1 << 20,
        max_size: None,
        min_free: 0,
        inactive: 600_000,
    }
}

fn scanned(folder: &TestFolder, zone: &str) -> Arc<DiskStore> {
    let store = DiskStore::open(&settings(folder, zone)).unwrap();
    let mut scanner = store.scanner();
    while scanner.step(10, 0) {}
    store
}

fn open(store: &DiskStore, path: &str, id: Option<EntryId>) -> Result<(OpenEntry, Vec<u8>), Miss> {
    let key = format!("key:{path}");
    let id = id.unwrap_or_else(|| EntryId::of(&[key.as_bytes()]));
    assert_eq!(store.lookup(&id, 0).presence, Presence::Present, "{path}");
    let opened = store.open_entry(&id, key.as_bytes(), 0)?;
    let file = fs::File::from(opened.file.as_ref().unwrap().try_clone().unwrap());
    let mut body = vec![0; (opened.body.end - opened.body.start) as usize];
    file.read_exact_at(&mut body, opened.body.start).unwrap();
    Ok((opened, body))
}

#[test]
fn what_nginx_has_stored_is_read() {
    let Some(binary) = nginx() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let folder = TestFolder::new("read");
    let upstreams = Upstreams::start();
    let nginx = Nginx::start(&binary, &folder, &upstreams);
    let paths = ["/plain", "/chunked", "/large", "/fastcgi", "/scgi"];
    for path in paths {
        assert_eq!(nginx.get(path, "A: b").0, "MISS");
    }
    for encoding in ["gzip", "br"] {
        assert_eq!(
            nginx
                .get("/vary", &format!("Accept-Encoding: {encoding}"))
                .0,
            "MISS"
        );
    }
    let served: Vec<Vec<u8>> = paths.iter().map(|path| nginx.get(path, "A: b").1).collect();
    drop(nginx);

    let [http, fastcgi, scgi] = ["http", "fastcgi", "scgi"].map(|zone| scanned(&folder, zone));
    let store_of = |path: &str| match path {
        "/fastcgi" => &fastcgi,
        "/scgi" => &scgi,
        _ => &http,
    };
    assert_eq!(http.counts().entries, 5);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    for (path, served) in paths.iter().zip(served) {
        let (opened, body) = open(store_of(path), path, None).unwrap();
        assert!(body == served, "{path}");
        assert_eq!(opened.head.origin, Origin::Nginx);
        assert_eq!(opened.head.body_length, Some(body.len() as u64));
        let times = opened.head.times;
        assert!(
            (0..PATIENCE.as_millis() as i64).contains(&(now - times.received)),
            "{times:?}"
        );
        assert_eq!(times.valid_until / 1000 - times.received / 1000, 3600);
    }
    let text = |path: &str| {
        let text = open(store_of(path), path, None).unwrap().0.head.text;
        String::from_utf8(text.to_vec()).unwrap()
    };
    assert!(text("/plain").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(text("/plain").ends_with("Content-Length: 5\r\n\r\n"));
    assert!(text("/chunked").ends_with("Transfer-Encoding: chunked\r\n\r\n"));
    let fastcgi = "Content-Type: text/plain\r\nX-From: fastcgi\r\n\r\n";
    assert!(
        text("/fastcgi").starts_with(fastcgi),
        "{:?}",
        text("/fastcgi")
    );
    assert_eq!(
        text("/scgi"),
        "Status: 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    );

    // Its variants, under the MD5 of the main entry's and of what they differ by.
    let main = EntryId::of(&[b"key:/vary"]);
    let variant = |encoding: &str| {
        let field = format!("accept-encoding:{encoding}\r\n");
        EntryId::of(&[&main.0, field.as_bytes()])
    };
    let store = &*http;
    let (opened, body) = open(store, "/vary", None).unwrap();
    assert_eq!(opened.head.vary, "Accept-Encoding");
    let last = String::from_utf8(body).unwrap();
    assert_eq!(opened.head.variant, Some(variant(&last)));
    let other = if last == "br" { "gzip" } else { "br" };
    let (opened, body) = open(store, "/vary", Some(variant(other))).unwrap();
    assert_eq!(opened.head.variant, Some(variant(other)));
    assert_eq!(body, other.as_bytes());

    // Another key under this path.
    let id = EntryId::of(&[b"key:/plain"]);
    let other = store.open_entry(&id, b"key:/other", 0);
    assert!(matches!(other, Err(Miss::Wrong(Fault::Key))));
    assert_eq!(store.lookup(&id, 0).presence, Presence::Absent);
    assert_eq!(store.purge_group(b"key:/vary").entries, 2);
    assert_eq!(store.counts().entries, 2);
}

fn put(store: &Arc<DiskStore>, path: &str, body: &'static str) {
    let key = format!("key:{path}");
    let id = EntryId::of(&[key.as_bytes()]);
    let mut filler = store.filler(&id);
    let head = NewHead {
        key: key.into(),
        text: "HTTP/1.1 200 OK\r\n\r\n".into(),
        ..NewHead::default()
    };
    filler.begin(id, head).unwrap();
    filler.push(body.into());
    filler.finish(0).unwrap();
    let write = filler.next_write().unwrap();
    assert_eq!(filler.wrote(write.run()), Ok(Stage::Committed));
}

#[test]
fn nginx_takes_what_the_store_has_stored_as_missing_and_replaces_it() {
    let Some(binary) = nginx() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let folder = TestFolder::new("back");
    let upstreams = Upstreams::start();
    let zones = [
        ("http", "/plain"),
        ("fastcgi", "/fastcgi"),
        ("scgi", "/scgi"),
    ];
    for (zone, path) in zones {
        let store = scanned(&folder, zone);
        put(&store, path, "");
        store.save_index(true, 0).unwrap();
    }
    // nginx's worker is another user, if its master may choose.
    let all = Command::new("chmod")
        .arg("-R")
        .arg("a+rwX")
        .arg(&folder.0)
        .status();
    assert!(all.unwrap().success());

    let nginx = Nginx::start(&binary, &folder, &upstreams);
    for (_, path) in zones {
        let (cache, body) = nginx.get(path, "A: b");
        assert_eq!(cache, "MISS", "{path}");
        assert!(!body.is_empty(), "the upstream's");
        assert_eq!(nginx.get(path, "A: b"), ("HIT".into(), body), "{path}");
    }
    drop(nginx);
    let log = folder.error_log();
    assert_eq!(
        log.matches("version mismatch").count(),
        zones.len(),
        "{log}"
    );
    assert!(!log.contains("[crit]") && !log.contains("[alert]"), "{log}");

    // And forth again: the saved index does not know that its files are others.
    for (zone, path) in zones {
        let store = DiskStore::open(&settings(&folder, zone)).unwrap();
        let loaded = store.load_index(0).unwrap();
        assert_eq!((loaded.entries, loaded.is_orderly), (1, true));
        let (opened, _) = open(&store, path, None).unwrap();
        assert_eq!(opened.head.origin, Origin::Nginx);
        put(&store, path, "ours");
        assert_eq!(open(&store, path, None).unwrap().1, b"ours");
    }
}
