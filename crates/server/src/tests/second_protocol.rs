//! A second protocol beside http, which is put together, served and left by a reload as http is,
//! with nothing changed for it: it says everything back.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, RecordedFiles, Recording, Registry, ScopeRef, Setting, parse};
use engine::net::{Address, ListenOptions, Stream, connect};
use engine::sim::{self, Faults};
use framework::compile::{Compiler, Environment, Feature};
use framework::connection_handler::{Accepted, ConnectionHandler, ListenerId, ServedConnection};
use framework::counters::Counters;
use framework::generation::{Generation, GenerationView};
use framework::protocol_part::{CompiledPart, Directives, ListenSocket, ProtocolPart};
use framework::workers::Worker;
use logs::{Destination, ErrorLogReporter};

use crate::assemble::compile_with;
use crate::features::FEATURES;

static ECHO: Setting<String> = Setting::new("echo_on", &["address"], parse::text)
    .contexts(Contexts::MAIN)
    .manual("An address where everything is said back.");

struct EchoPart;

/// What a generation has of it: the sockets of its addresses.
struct Echoes(Vec<ListenerId>);

struct Compiled(Vec<ListenSocket>);

impl ProtocolPart for EchoPart {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn directives(&self) -> Vec<Directives> {
        const TABLE: &[&dyn Declared] = &[&ECHO];
        vec![TABLE]
    }

    fn module_names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn has_variable(&self, _: &str) -> bool {
        false
    }

    fn declare(&self, _: &Compiler<'_>) {}

    fn compile(&self, _: &Compiler<'_>, root: ScopeRef<'_>) -> Option<Box<dyn CompiledPart>> {
        let written = root.written(&ECHO).ok()?;
        let listening = written.iter().map(|address| {
            let address = Address::Inet(address.parse().expect("an address"));
            ListenSocket {
                id: ListenerId(Arc::new(format!("echo {address}"))),
                options: ListenOptions::new(address),
            }
        });
        Some(Box::new(Compiled(listening.collect())))
    }

    fn unknown_variables(&self, _: &Compiler<'_>) -> Vec<Box<str>> {
        Vec::new()
    }

    fn handler(&self) -> Rc<dyn ConnectionHandler> {
        Rc::new(EchoHandler)
    }
}

impl CompiledPart for Compiled {
    fn add_to(self: Box<Self>, _: &Compiler<'_>, generation: &mut Generation) -> Vec<ListenSocket> {
        let ids = self.0.iter().map(|socket| socket.id.clone());
        generation.add(Echoes(ids.collect()));
        self.0
    }
}

struct EchoHandler;

struct Session(Accepted);

fn has(local: &GenerationView, listener: &ListenerId) -> bool {
    let echoes = local.generation.part::<Echoes>();
    echoes.is_some_and(|echoes| echoes.0.contains(listener))
}

impl ConnectionHandler for EchoHandler {
    fn connected(&self, accepted: Accepted) {
        let worker = Rc::clone(&accepted.worker);
        let session = Rc::new(Session(accepted));
        let registered = worker.register(&session);
        engine::spawn(async move {
            let stream = &session.0.stream;
            while let Ok(received) = stream.recv(None).await
                && !received.is_empty()
            {
                stream.push(Bytes::copy_from_slice(&received));
                stream.start_send();
            }
            drop(registered);
        });
    }

    fn has_listener(&self, local: &GenerationView, listener: &ListenerId) -> bool {
        has(local, listener)
    }

    fn rejection_message(&self) -> &'static [u8] {
        b""
    }

    fn forget(&self) {}
}

impl ServedConnection for Session {
    fn serial(&self) -> u64 {
        self.0.serial
    }

    fn has_listener_in(&self, next: &GenerationView) -> bool {
        has(next, &self.0.listener)
    }

    fn place(&self) -> Option<u32> {
        None
    }

    fn ends_when_idle(&self) -> bool {
        false
    }

    fn close_reading(&self) {
        self.0.stream.shutdown_read();
    }

    fn abort(&self) {
        self.0.stream.abort();
    }

    fn pin_generation(&self, _: &Rc<GenerationView>) {
        self.0.stream.abort();
    }
}

/// A configuration of http and the other protocol; its sockets in the order of the parts.
fn compiled(text: &str) -> (Arc<Generation>, Vec<ListenSocket>) {
    let files = RecordedFiles::new(Recording {
        files: vec![("/nginx.conf".into(), text.into())],
        ..Recording::default()
    });
    let parts: [&dyn ProtocolPart; 2] = [&FEATURES, &EchoPart];
    let mut tables: Vec<Directives> = parts.iter().flat_map(|part| part.directives()).collect();
    tables.push(crate::events::Events::DIRECTIVES);
    let root = Path::new("/");
    let loaded = conf::load(
        Path::new("/nginx.conf"),
        root,
        &[],
        &Registry::new(&tables),
        &files,
    );
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let environment = Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        privileged: true,
    };
    let compiled = compile_with(&parts, &loaded.tree, &environment, Destination::Stderr);
    let compiled = compiled.unwrap_or_else(|found| panic!("{found:?}"));
    (Arc::new(compiled.generation), compiled.listening)
}

/// What comes for these bytes, up to the last of `until`.
async fn ask(client: &Stream, bytes: &'static str, until: &str) -> String {
    client.push(Bytes::from_static(bytes.as_bytes()));
    client.start_send();
    let mut heard = String::new();
    while !heard.ends_with(until) {
        let received = client.recv(None).await.unwrap();
        assert!(!received.is_empty(), "closed behind {heard:?}");
        heard.push_str(std::str::from_utf8(&received).unwrap());
    }
    heard
}

#[test]
fn a_second_protocol_is_served_beside_http() {
    const HTTP: &str = "events { } http { access_log off;
        server { listen 10.0.0.1:80; location / { return 200 hello; } } }";
    const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
    runtime.block_on(async {
        let both: &'static str = Box::leak(format!("echo_on 10.0.0.1:7; {HTTP}").into());
        let (generation, listening) = compiled(both);
        let ids: Vec<String> = listening.iter().map(|one| one.id.0.to_string()).collect();
        assert_eq!(ids, ["listen 10.0.0.1:80", "echo 10.0.0.1:7"]);
        let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
        for one in &listening {
            let (socket, address) = sim::listen(one.options.address.clone()).unwrap();
            sockets.push((one.id.clone(), socket));
            addresses.push(address);
        }
        let share = |count: usize| {
            let shared = sockets.iter().take(count);
            let shared = shared.map(|(id, socket)| ((id.clone(), 0), socket.try_clone().unwrap()));
            shared.collect::<Vec<_>>()
        };
        let handlers = vec![FEATURES.handler(), EchoPart.handler()];
        let counters = Arc::new(Counters::default());
        let worker = Worker::start(generation, 8, counters, handlers, &ErrorLogReporter);
        worker.listen(share(2));
        let web = connect(&addresses[0], None, None).await.unwrap();
        let echo = connect(&addresses[1], None, None).await.unwrap();
        assert!(ask(&web, GET, "hello").await.starts_with("HTTP/1.1 200 OK"));
        assert_eq!(ask(&echo, GET, GET).await, GET);

        // A reload without its address: sessions end as their protocol has them, http goes on.
        let (without, listening) = compiled(HTTP);
        assert_eq!(listening.len(), 1);
        worker.swap(without, share(1));
        assert!(echo.recv(None).await.is_err());
        assert!(ask(&web, GET, "hello").await.starts_with("HTTP/1.1 200 OK"));
        worker.quit();
        drop(web);
        worker.end().await;
    });
}
