//! `otel_*` with a collector that others have made: Python's grpcio with the messages that
//! OpenTelemetry has on PyPI (opentelemetry-proto), on both engines.
//!
//! What is expected of spans and of what upstreams are told is what the tests of nginx's module
//! expect (github.com/nginxinc/nginx-otel, tests/test_otel.py). `collectors.rs` is about collectors
//! that are slow, down or refuse, and about what becomes of spans that are under way.

mod collectors;
mod process;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::Server;

use process::Collector;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b9c7c989f97918e1";
const STATE: &str = "congo=ucfJifl5GOE,rojo=00f067aa0ba902b7";

/// What clients in the midst of a trace send.
fn of_trace() -> String {
    format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\nTracestate: {STATE}\r\n")
}

/// A server that sends its spans at once.
fn server(engine: &str, collector: &Collector, lines: &str) -> Server {
    let port = collector.port;
    Server::start(
        engine,
        &format!(
            "{lines}
             [http]
             upstream itself {{ server 127.0.0.1:PORT; }}
             otel_exporter {{ endpoint 127.0.0.1:{port}; interval 10ms; }}
             otel_trace on;"
        ),
    )
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    &span["attributes"][name]
}

/// The answer's field.
fn field(answer: &support::Response, name: &str) -> Option<String> {
    let begin = format!("{}: ", name.to_ascii_lowercase());
    let lines = answer.head.lines();
    let mut lines = lines.filter(|line| line.to_ascii_lowercase().starts_with(&begin));
    lines.next().map(|line| line[begin.len()..].to_owned())
}

fn a_span_says_what_nginx_says(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let server = server(
        engine,
        &collector,
        "server_name localhost;
         location /ok { return 200 OK; }
         location /err { return 500 ERR; }
         location = /file { }
         location ~ /re[g] { return 200; }
         location /moved { error_page 404 = /file; return 404; }",
    );
    server.write("file", b"12345");
    for (path, status, name, length, route) in [
        ("/ok", 200, "/ok", 2, "/ok"),
        ("/err", 500, "/err", 3, "/err"),
        ("/file", 200, "/file", 5, "/file"),
        ("/file?a=%20b", 200, "/file", 5, "/file"),
        ("/reg", 200, "/re[g]", 0, "/re[g]"),
        ("/moved", 200, "/file", 5, "/file"),
    ] {
        let mut connection = server.connect();
        connection.send(path, "User-Agent: tester\r\n").unwrap();
        let answer = connection.receive(Duration::ZERO).unwrap();
        assert_eq!(answer.status, status, "{path}");
        let batch = collector.next();
        assert_eq!(batch["resource"]["service.name"], "unknown_service:nginx");
        assert_eq!(batch["scope"], "tidegate");
        assert_eq!(batch["spans"].as_array().unwrap().len(), 1);
        let span = &batch["spans"][0];
        let is_error = status >= 500;
        assert_eq!(
            (&span["name"], &span["error"]),
            (&name.into(), &is_error.into())
        );
        assert_eq!((&span["kind"], &span["parent_id"]), (&2.into(), &"".into()));
        assert_eq!(span["trace_id"].as_str().unwrap().len(), 32);
        let (start, end) = (&span["start"], &span["end"]);
        let took = end.as_u64().unwrap() - start.as_u64().unwrap();
        assert!(took < 10_000_000_000, "{took}");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        assert!(now - start.as_u64().unwrap() < 60_000_000_000);
        for (name, expected) in [
            ("http.method", Value::from("GET")),
            ("http.target", path.into()),
            ("http.route", route.into()),
            ("http.scheme", "http".into()),
            ("http.flavor", "1.1".into()),
            ("http.user_agent", "tester".into()),
            ("http.request_content_length", 0.into()),
            ("http.response_content_length", length.into()),
            ("http.status_code", status.into()),
            ("net.host.name", "localhost".into()),
            ("net.host.port", server.port.into()),
            ("net.sock.peer.addr", "127.0.0.1".into()),
        ] {
            assert_eq!(attribute(span, name), &expected, "{path} {name}");
        }
        let port = attribute(span, "net.sock.peer.port").as_u64().unwrap();
        assert!((1024..65536).contains(&port));
    }
}

support::test_on_each_engine!(a_span_says_what_nginx_says);

fn spans_are_called_and_described_as_the_configuration_says(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let port = collector.port;
    let server = Server::start(
        engine,
        &format!(
            "otel_trace on; otel_span_attr outer 1;
             location /plain {{ return 200 OK; }}
             location /named {{
                 otel_span_name \"$request_method custom\";
                 otel_span_attr http.request.completion $request_completion;
                 otel_span_attr http.response.header.content.type $sent_http_content_type;
                 otel_span_attr http.request $request;
                 return 200 OK;
             }}
             [http]
             otel_service_name test_service;
             otel_resource_attr my.name \"my name\";
             otel_resource_attr my.name \"my other\";
             otel_resource_attr service.name x;
             otel_exporter {{ endpoint http://127.0.0.1:{port}; interval 10ms;
                 header X-API-TOKEN api.value; header authorization \"Basic value\"; }}"
        ),
    );
    server.connect().get("/plain").unwrap();
    let batch = collector.next();
    assert_eq!(batch["resource"]["service.name"], "test_service");
    assert_eq!(batch["resource"]["my.name"], "my other");
    assert_eq!(batch["fields"]["x-api-token"], "api.value");
    assert_eq!(batch["fields"]["authorization"], "Basic value");
    let span = &batch["spans"][0];
    assert_eq!(
        (&span["name"], attribute(span, "outer")),
        (&"/plain".into(), &"1".into())
    );
    server.connect().get("/named").unwrap();
    let span = &collector.next()["spans"][0];
    assert_eq!(span["name"], "GET custom");
    assert_eq!(attribute(span, "outer"), &Value::Null);
    assert_eq!(attribute(span, "http.request.completion"), "OK");
    let list = attribute(span, "http.response.header.content.type");
    assert_eq!(list, &Value::from(vec!["text/plain"]));
    assert_eq!(attribute(span, "http.request"), "GET /named HTTP/1.1");
}

support::test_on_each_engine!(spans_are_called_and_described_as_the_configuration_says);

fn the_context_of_clients_is_taken_and_passed_on(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let server = server(
        engine,
        &collector,
        "location /ignore { proxy_pass http://itself/told; }
         location /extract { otel_trace_context extract; proxy_pass http://itself/told; }
         location /inject { otel_trace_context inject; proxy_pass http://itself/told; }
         location /propagate { otel_trace_context propagate; proxy_pass http://itself/told; }
         location /told {
             otel_trace off;
             add_header X-Parent $http_traceparent;
             add_header X-State $http_tracestate;
             return 200;
         }
         location /vars {
             otel_trace_context extract;
             add_header X-Trace $otel_trace_id;
             add_header X-Span $otel_span_id;
             add_header X-Parent $otel_parent_id;
             add_header X-Sampled $otel_parent_sampled;
             return 200;
         }",
    );
    for fields in [String::new(), of_trace()] {
        let is_of_trace = !fields.is_empty();
        for path in ["/ignore", "/extract", "/inject", "/propagate"] {
            let mut connection = server.connect();
            connection.send(path, &fields).unwrap();
            let answer = connection.receive(Duration::ZERO).unwrap();
            let span = collector.next()["spans"][0].clone();
            let text = |name: &str| span[name].as_str().unwrap().to_owned();
            let takes = matches!(path, "/extract" | "/propagate") && is_of_trace;
            assert_eq!(text("trace_id") == TRACE, takes, "{path}");
            assert_eq!(text("parent_id") == PARENT, takes, "{path}");
            assert_eq!(text("state"), if takes { STATE } else { "" });
            let came = is_of_trace.then(|| format!("00-{TRACE}-{PARENT}-01"));
            let came_state = is_of_trace.then(|| STATE.to_owned());
            let (parent, state) = match path {
                "/inject" | "/propagate" => {
                    let own = format!("00-{}-{}-01", text("trace_id"), text("span_id"));
                    (Some(own), takes.then(|| STATE.to_owned()))
                }
                _ => (came, came_state),
            };
            assert_eq!(field(&answer, "X-Parent"), parent, "{path}");
            assert_eq!(field(&answer, "X-State"), state, "{path}");
        }
        let mut connection = server.connect();
        connection.send("/vars", &fields).unwrap();
        let answer = connection.receive(Duration::ZERO).unwrap();
        let span = collector.next()["spans"][0].clone();
        let told = |name: &str| field(&answer, name).unwrap_or_default();
        assert_eq!(told("X-Trace"), span["trace_id"].as_str().unwrap());
        assert_eq!(told("X-Span"), span["span_id"].as_str().unwrap());
        assert_eq!(told("X-Parent"), span["parent_id"].as_str().unwrap());
        assert_eq!(told("X-Sampled"), if is_of_trace { "1" } else { "0" });
    }
}

support::test_on_each_engine!(the_context_of_clients_is_taken_and_passed_on);

/// Which requests are traced, and how many spans they are.
fn what_is_traced_is_decided_once(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let port = collector.port;
    let server = Server::start(
        engine,
        &format!(
            "location /off {{ return 200; }}
             location /on {{ otel_trace 1; return 200; }}
             location /asked {{ otel_trace $arg_trace; return 200; }}
             location /sampled {{ otel_trace_context extract; otel_trace $otel_parent_sampled; return 200; }}
             location /to_on {{ error_page 404 /on; }}
             location /to_off {{ otel_trace on; error_page 404 =200 /off; }}
             location /rewritten {{ rewrite ^ /off last; otel_trace on; }}
             location /parts {{
                 otel_trace on; ssi on; ssi_types *; auth_request /off; log_subrequest on; mirror /on;
                 default_type text/html;
             }}
             if ($uri = /server) {{ rewrite ^ /on; }}
             location /switched {{
                 otel_trace on; otel_span_name outer;
                 if ($arg_x) {{ return 204; }}
                 return 200;
             }}
             [http]
             otel_exporter {{ endpoint 127.0.0.1:{port}; interval 10ms; }}"
        ),
    );
    server.write(
        "parts",
        b"<!--# include virtual=\"/on\" --><!--# include virtual=\"/off\" -->",
    );
    let sampled = of_trace();
    let unsampled = sampled.replace("-01\r\n", "-00\r\n");
    for (path, fields, name) in [
        ("/off", "", None),
        ("/on", "", Some("/on")),
        ("/asked", "", None),
        ("/asked?trace=on", "", Some("/asked")),
        ("/asked?trace=yes", "", None),
        ("/sampled", &*sampled, Some("/sampled")),
        ("/sampled", &unsampled, None),
        // A location decides where the request has come to it first.
        ("/to_on", "", None),
        ("/to_off", "", Some("/off")),
        ("/rewritten", "", Some("/off")),
        ("/server", "", Some("/on")),
        ("/switched?x=1", "", Some("outer")),
        // Of many subrequests, one of which is logged by itself.
        ("/parts", "", Some("/parts")),
    ] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        server.lines_for(&head);
        // What is not traced is followed by what is, and no span has come before.
        server.connect().get("/on?mark").unwrap();
        let mut names = Vec::new();
        let begin = Instant::now();
        while names.last() != Some(&"/on?mark".to_owned()) {
            assert!(begin.elapsed() < support::PATIENCE);
            for span in collector.next()["spans"].as_array().unwrap() {
                let target = attribute(span, "http.target").as_str().unwrap();
                names.push(match target {
                    "/on?mark" => target.to_owned(),
                    _ => span["name"].as_str().unwrap().to_owned(),
                });
            }
        }
        names.pop();
        assert_eq!(names, Vec::from_iter(name.map(str::to_owned)), "{path}");
    }
}

support::test_on_each_engine!(what_is_traced_is_decided_once);

/// A client of HTTP/2, an upstream of gRPC's protocol: the fields are set where lines are none.
fn streams_are_traced(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let server = server(
        engine,
        &collector,
        "http2 on;
         location /passed { otel_trace_context propagate; proxy_http_version 2; proxy_pass http://itself/told; }
         location /told { otel_trace off; return 200 \"$http_traceparent $http_tracestate $http_x_own\"; }",
    );
    let mut client = support::http2::Client::connect(server.port);
    let parent = format!("00-{TRACE}-{PARENT}-00");
    let fields = [
        ("traceparent", &*parent),
        ("tracestate", "a=b"),
        ("x-own", "kept"),
        ("tracestate", "c=d"),
    ];
    let stream = client.request("/passed", &fields);
    let answer = client.response(stream);
    let span = collector.next()["spans"][0].clone();
    assert_eq!(span["trace_id"], TRACE);
    assert_eq!(span["state"], "a=b,c=d");
    assert_eq!(attribute(&span, "http.flavor"), "2.0");
    let told = format!(
        "00-{TRACE}-{}-01 a=b,c=d kept",
        span["span_id"].as_str().unwrap()
    );
    assert_eq!(answer.text(), told);
}

support::test_on_each_engine!(streams_are_traced);
