//! What `return` has sent once is sent again from memory: whatever a request asks, it is answered
//! as before.

use support::Server;

const LINES: &str = "\
server_name localhost;\n\
location = /204 { return 204; }\n\
location = /301 { return 301 http://other.example/; }\n\
location = /path { return 302 /elsewhere; }\n\
location /text { return 200 text; default_type text/plain; gzip on; gzip_types text/plain; gzip_min_length 1; }\n\
location = /404 { return 404; }\n\
location = /page { return 404; error_page 404 /text; }\n\
location = /field { add_header X-A b; return 200 text; }\n\
location = /variable { add_header X-A $arg_a; return 200 text; }\n\
location = /name { return 200 $arg_a; }\n\
location = /refresh { msie_refresh on; return 301 http://other.example/; }\n\
location = /denied { deny all; return 204; }\n\
location = /closes { keepalive_timeout 0; return 204; }\n\
location = /limited { limit_req zone=one burst=1000 nodelay; return 204; }\n\
location = /kept/ { internal; return 204; }\n\
[http]\nlimit_req_zone $host zone=one:32k rate=10000r/s;\n\
server { listen 127.0.0.1:PORT; server_name whole; return 301 http://other.example/; location / { return 204; } }\n\
server { listen 127.0.0.1:PORT; server_name scripted; set $a b; location / { return 204; } }\n";

const PATHS: [&str; 17] = [
    "/204",
    "/301",
    "/path",
    "/text",
    "/text.html",
    "/text/x.jpg",
    "/404",
    "/page",
    "/field",
    "/variable?a=1",
    "/variable?a=2",
    "/name?a=3",
    "/refresh",
    "/denied",
    "/closes",
    "/limited",
    "/kept/",
];

const FIELDS: [&str; 15] = [
    "",
    "Host: whole\r\n",
    "Host: scripted\r\n",
    "Accept-Encoding: gzip\r\n",
    "Accept-Encoding: br\r\n",
    "Range: bytes=0-1\r\n",
    "If-Match: *\r\n",
    "If-None-Match: *\r\n",
    "If-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
    "If-Unmodified-Since: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
    "Connection: close\r\n",
    "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)\r\n",
    "User-Agent: Mozilla/5.0 Chrome/126.0.0.0\r\n",
    "Content-Length: 0\r\n",
    "Expect: 100-continue\r\n",
];

/// The whole answer to a request on a connection of its own, without its date.
fn answer(server: &Server, line: &str, fields: &str) -> String {
    let host = if fields.starts_with("Host:") {
        ""
    } else {
        "Host: localhost\r\n"
    };
    // The second request ends the connection, so that its end is that of the answers.
    let last = "GET /204 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let requests = format!("{line}\r\n{host}{fields}\r\n{last}");
    server.lines_for(&requests).join("\n")
}

fn answers_from_memory_are_those_of_the_long_way(engine: &'static str) {
    let server = Server::start(engine, LINES);
    let mut requests = Vec::new();
    for path in PATHS {
        for method in ["GET", "HEAD", "POST"] {
            for version in ["HTTP/1.1", "HTTP/1.0"] {
                let line = format!("{method} {path} {version}");
                requests.extend(FIELDS.map(|fields| (line.clone(), fields)));
            }
        }
    }
    // First those that must not be kept for others, then plain ones, then all in another order.
    let ask = |(line, fields): &(String, &str)| answer(&server, line, fields);
    let first: Vec<String> = requests.iter().rev().map(ask).collect();
    let mut again = Vec::new();
    for request in &requests {
        ask(&(
            format!("GET {} HTTP/1.1", request.0.split(' ').nth(1).unwrap()),
            "",
        ));
        again.push(ask(request));
    }
    for ((request, first), again) in requests.iter().zip(first.iter().rev()).zip(&again) {
        assert_eq!(first, again, "{engine} {request:?}");
    }
}

support::test_on_each_engine!(answers_from_memory_are_those_of_the_long_way);
