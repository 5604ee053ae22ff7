//! `proxy_cache_files`: what an upstream serves of a folder of this machine.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A folder with a file, and a server of it that says no more than when the file was changed.
struct Site(PathBuf);

impl Site {
    fn new() -> Site {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("tidegate-cached-files-{}-{number}", std::process::id());
        let site = Site(std::env::temp_dir().join(name));
        fs::create_dir_all(&site.0).unwrap();
        site
    }

    fn write(&self, name: &str, text: &str, seconds_ago: u64) {
        fs::write(self.0.join(name), text).unwrap();
        let file = fs::File::options().write(true).open(self.0.join(name));
        let time = std::time::SystemTime::now() - Duration::from_secs(seconds_ago);
        file.unwrap().set_modified(time).unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers with the file of a request's path, or 304 where that is still the same.
fn serve_file(root: &std::path::Path, head: &str) -> Vec<u8> {
    let path = head.split(' ').nth(1).unwrap().split('?').next().unwrap();
    let Ok(body) = fs::read(root.join(path.trim_start_matches('/'))) else {
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
    };
    let modified = fs::metadata(root.join(path.trim_start_matches('/'))).unwrap();
    let modified = modified
        .modified()
        .unwrap()
        .duration_since(std::time::UNIX_EPOCH);
    let mut date = [0; proto::date::HTTP_LENGTH];
    proto::date::format_http(modified.unwrap().as_secs() as i64, &mut date);
    let date = std::str::from_utf8(&date).unwrap();
    if head.contains(&format!("If-Modified-Since: {date}")) {
        return format!("HTTP/1.1 304 Not Modified\r\nLast-Modified: {date}\r\n\r\n").into_bytes();
    }
    ok(&format!("Last-Modified: {date}\r\n"), &body)
}

fn a_look_at_the_file_says_whether_an_answer_is_still_right(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let site = Site::new();
    let long = "x".repeat(200_000);
    site.write("a", "one", 100);
    site.write("long", &long, 100);
    site.write("often", "one", 100);
    site.write("off", "one", 100);
    let root = site.0.clone();
    let upstream = Upstream::start(move |head, _| serve_file(&root, head));
    let path = site.0.display();
    let lines = format!(
        "proxy_cache one; proxy_cache_revalidate on; proxy_cache_lock on;
         proxy_cache_microcache 1s; proxy_cache_files {path} recheck=1h;
         location / {{ proxy_pass http://UP; }}
         location /often {{ proxy_pass http://UP; proxy_cache_files {path} recheck=1s; }}
         location /off {{ proxy_pass http://UP; proxy_cache_files off; }}"
    );
    let server = start(engine, &lines, upstream.port);
    for path in ["/a", "/long", "/often", "/off"] {
        assert_eq!(get(&server, path).cache(), "MISS", "{path}");
        until(|| get(&server, path).cache() == "HIT");
    }
    thread::sleep(Duration::from_millis(2100));
    let before = upstream.requests();
    for _ in 0..3 {
        assert_eq!(get(&server, "/a").cache(), "HIT");
        assert_eq!(get(&server, "/long").body.len(), 200_000);
    }
    assert_eq!(upstream.requests(), before);
    // Where it is not on, or the time for that has come, the upstream is asked.
    assert_eq!(get(&server, "/off").cache(), "REVALIDATED");
    assert_eq!(get(&server, "/often").cache(), "REVALIDATED");
    assert_eq!(upstream.requests(), before + 2);
    // What has changed shows at once, however often, and be it of the same length and second.
    for (number, text) in ["two", "six", "ten", "fourteen"].iter().enumerate() {
        site.write("a", text, 90);
        let answer = get(&server, "/a");
        assert_eq!(
            String::from_utf8(answer.body).unwrap(),
            *text,
            "{engine} {number}"
        );
    }
    // What is no file is asked for, and one that has gone is gone.
    fs::remove_file(site.0.join("a")).unwrap();
    assert_eq!(get(&server, "/a").status(), "404");
    assert_eq!(get(&server, "/none").status(), "404");
}

support::test_on_each_engine!(a_look_at_the_file_says_whether_an_answer_is_still_right);
