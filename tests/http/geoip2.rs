//! `geoip2` on the real program, by the documentation of the third-party module that the directives
//! come from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::mmdb::Value::{self, Boolean, Double, List, Map, Text, Unsigned};
use support::mmdb::database;
use support::{PATIENCE, Server};

fn country(code: &'static str, name: &'static str) -> Value {
    Map(vec![(
        "country",
        Map(vec![
            ("iso_code", Text(code)),
            ("names", Map(vec![("en", Text(name))])),
        ]),
    )])
}

fn networks() -> Vec<(&'static str, u8, Value)> {
    let place = Map(vec![
        ("country", Map(vec![("iso_code", Text("DE"))])),
        (
            "subdivisions",
            List(vec![
                Map(vec![("iso_code", Text("BY"))]),
                Map(vec![("iso_code", Text("M"))]),
            ]),
        ),
        (
            "location",
            Map(vec![("latitude", Double(48.137)), ("radius", Unsigned(5))]),
        ),
        ("is_satellite", Boolean(true)),
    ]);
    vec![
        ("127.0.0.0", 8, country("LO", "Loopback")),
        ("10.1.0.0", 16, place),
        ("192.0.2.0", 24, country("US", "United States")),
        ("2001:db8::", 32, country("JP", "Japan")),
    ]
}

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let name = format!("tidegate-{}-{name}", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        file.replace(bytes);
        file
    }

    /// Puts another file in its place, as updates do.
    fn replace(&self, bytes: &[u8]) {
        let new = self.0.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(&new, &self.0).unwrap();
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A server that answers `/` with this text; `rows` stand in the block, `http` behind it.
fn start(file: &File, rows: &str, http: &str, text: &str) -> Server {
    let path = file.path().display();
    let lines = format!(
        "location / {{ return 200 \"{text}\"; }}\n\
         [http]\ngeoip2 {path} {{ {rows} }}\n{http}\n"
    );
    Server::start("", &lines)
}

fn body(server: &Server, target: &str, fields: &str) -> String {
    let mut connection = server.connect();
    connection.send(target, fields).unwrap();
    let response = connection.receive(Duration::ZERO).unwrap();
    String::from_utf8(response.body).unwrap()
}

#[test]
fn values_of_every_kind_are_text() {
    let file = File::new("kinds.mmdb", &database(1_700_000_000, &networks()));
    let rows = "$code default=XX source=$arg_ip country iso_code; \
                $name source=$arg_ip country names en; \
                $first source=$arg_ip subdivisions 0 iso_code; \
                $last source=$arg_ip subdivisions -1 iso_code; \
                $latitude source=$arg_ip location latitude; \
                $radius source=$arg_ip location radius; \
                $satellite source=$arg_ip is_satellite; \
                $whole source=$arg_ip country; \
                $client country iso_code; \
                $built metadata build_epoch; $kind metadata database_type;";
    let text = "$code|$name|$first|$last|$latitude|$radius|$satellite|$whole|$client|$built|$kind";
    let server = start(&file, rows, "", text);
    for (ip, expected) in [
        ("192.0.2.7", "US|United States||||||"),
        ("10.1.2.3", "DE||BY|M|48.13700|5|1|"),
        ("2001:db8:1::1", "JP|Japan||||||"),
        ("::ffff:192.0.2.7", "US|United States||||||"),
        ("203.0.113.1", "XX|||||||"),
        ("nonsense", "XX|||||||"),
    ] {
        let expected = format!("{expected}|LO|1700000000|Test");
        assert_eq!(body(&server, &format!("/?ip={ip}"), ""), expected, "{ip}");
    }
}

#[test]
fn proxies_are_believed_where_they_are_trusted() {
    let file = File::new("proxies.mmdb", &database(1, &networks()));
    let rows = "$code default=XX country iso_code;";
    let chain = "X-Forwarded-For: 2001:db8::1, 192.0.2.1, 10.1.0.1\r\n";
    let code = |http: &str| body(&start(&file, rows, http, "$code"), "/", chain);
    assert_eq!(code(""), "LO");
    assert_eq!(code("geoip2_proxy 10.0.0.0/8;"), "LO");
    assert_eq!(code("geoip2_proxy 127.0.0.0/8;"), "DE");
    let both = "geoip2_proxy 127.0.0.1; geoip2_proxy 10.0.0.0/8; geoip2_proxy_recursive";
    assert_eq!(code(&format!("{both} off;")), "DE");
    assert_eq!(code(&format!("{both} on;")), "US");
}

#[test]
fn a_changed_file_is_read_again() {
    let file = File::new("reload.mmdb", &database(1, &networks()));
    let rows = "auto_reload 1s; $code country iso_code; $built metadata build_epoch;";
    let server = start(&file, rows, "", "$code $built");
    assert_eq!(body(&server, "/", ""), "LO 1");
    std::thread::sleep(Duration::from_millis(1100)); // another time stamp
    file.replace(b"no database at all");
    let start = Instant::now();
    while !server.error_log().contains("failed to reload") {
        assert_eq!(body(&server, "/", ""), "LO 1");
        assert!(start.elapsed() < PATIENCE, "{}", server.error_log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let loopback = country("NL", "Not the loopback");
    file.replace(&database(2, &[("127.0.0.0", 8, loopback)]));
    while body(&server, "/", "") != "NL 2" {
        assert!(start.elapsed() < PATIENCE * 2, "{}", server.error_log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
