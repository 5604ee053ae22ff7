//! A panic that a module has for a request, and what it costs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conf::{Declared, Fault, ScopeRef};
use engine::EngineKind;
use framework::compile::{Compiler, Feature};
use framework::workers::{Settings, Workers};
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::module::{Entry, MaybeFuture, Module, PhaseHandler};
use http::request::{Request, Step};
use logs::Destination;
use transport::listen::ListenerId;

use super::features_and;
use crate::assemble::compile_with;

/// Panics on a request for `/planted-panic`.
struct Panics;

impl Feature for Panics {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[];

    fn compile(_: &Compiler<'_>, _: ScopeRef<'_>) -> Result<Panics, Fault> {
        Ok(Panics)
    }
}

impl Module for Panics {
    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.arrived(self);
    }
}

impl PhaseHandler for Panics {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        assert!(request.uri != b"/planted-panic", "planted");
        MaybeFuture::Now(Ok(Step::Next))
    }
}

const REQUEST: &str = "GET /fine HTTP/1.1\r\nHost: a\r\n\r\n";

/// One thread that serves this configuration, its address, and its error log.
fn serve(folder: &Path) -> (Workers, String, std::path::PathBuf) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = format!(
        "error_log error.log; events {{ }} http {{ access_log access.log; server {{ \
         listen {address}; location / {{ return 200 fine; }} }} }}"
    );
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("test.conf");
    std::fs::write(&file, text).unwrap();
    let registry = crate::protocols::registry(&[]);
    let loaded = conf::load(&file, folder, &[], registry, &conf::Disk);
    let environment = framework::compile::Environment {
        prefix: folder,
        conf_prefix: folder,
        files: &conf::Disk,
        privileged: false,
    };
    let modules = features_and(Entry::module::<Panics>());
    let compiled = compile_with(&[&modules], &loaded.tree, &environment, Destination::Stderr)
        .expect("compiles");
    for log in &compiled.logs {
        log.install(log.open().unwrap());
    }
    let settings = Settings {
        engine: EngineKind::Epoll,
        threads: 1,
        handlers: crate::protocols::handlers,
        report: &logs::ErrorLogReporter,
        connections: 64,
        multi_accept: false,
        affinity: Vec::new(),
    };
    let id: ListenerId = compiled.listening[0].id.clone();
    let sockets = vec![(id, vec![OwnedFd::from(listener).into()])];
    let workers = Workers::start(&settings, &Arc::new(compiled.generation), &sockets).unwrap();
    (workers, address, folder.join("error.log"))
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// Everything that comes until the connection ends.
fn read_all(mut stream: &TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ask(mut stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let length = stream.read(&mut buffer).unwrap();
    buffer[..length].ends_with(b"fine")
}

#[test]
fn a_panic_costs_one_exchange_and_is_logged_with_its_place() {
    let folder = std::env::temp_dir().join(format!("tidegate-panic-{}", std::process::id()));
    let (workers, address, error_log) = serve(&folder);
    let neighbour = connect(&address);
    assert!(ask(&neighbour));

    // The request before it on the same connection is answered; the one behind it is lost.
    let mut victim = connect(&address);
    let planted = "GET /planted-panic HTTP/1.1\r\nHost: a\r\n\r\n";
    let requests = [REQUEST, planted, REQUEST].concat();
    victim.write_all(requests.as_bytes()).unwrap();
    let answer = read_all(&victim);
    assert!(answer.ends_with("fine"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");

    assert!(ask(&neighbour), "its thread goes on");
    assert!(ask(&connect(&address)), "and accepts");
    assert_eq!(workers.counters().totals().panics, 1);
    drop(workers);
    let log = std::fs::read_to_string(error_log).unwrap();
    let line = log
        .lines()
        .find(|line| line.contains("planted"))
        .expect("logged");
    assert!(
        line.contains("[alert]") && line.contains("src/tests/panics.rs:"),
        "{line}"
    );
    assert!(
        line.contains("request: \"GET /planted-panic HTTP/1.1\""),
        "{line}"
    );
    let access = std::fs::read_to_string(folder.join("access.log")).unwrap();
    assert!(
        access.contains("\"GET /planted-panic HTTP/1.1\" 500 0"),
        "{access}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}
