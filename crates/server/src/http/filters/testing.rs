//! Features compiled from configuration text, and requests under them, for the tests of filters and
//! modules.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Level, Recording, Registry, Sealed};
use engine::net::{Address, Listener};
use engine::sim::{self, Faults};

use crate::compile::{Compiler, Environment, Feature};
use crate::counters::Counters;
use crate::http::connection::Connection;
use crate::http::output::Piece;
use crate::http::request::Request;
use crate::log::Destination;
use crate::table::TABLES;
use crate::workers::Worker;

/// The feature as the innermost of these blocks sees it, each the first of its name within the one before;
/// the first error as it is printed.
pub(crate) fn feature<F: Feature>(text: &str, blocks: &[&str]) -> Result<Arc<F>, String> {
    compiled(text, blocks).map(|(feature, _)| feature)
}

/// The same with the warnings that reading it gave.
pub(crate) fn compiled<F: Feature>(
    text: &str,
    blocks: &[&str],
) -> Result<(Arc<F>, Vec<String>), String> {
    let recording = Recording {
        files: vec![("/nginx.conf".into(), text.as_bytes().to_vec())],
        globs: Vec::new(),
    };
    let files = Sealed::new(recording);
    let registry = Registry::new(TABLES);
    let root = Path::new("/");
    let loaded = conf::load(Path::new("/nginx.conf"), root, &[], &registry, &files);
    let (errors, rest): (Vec<_>, Vec<_>) = loaded
        .diagnostics
        .iter()
        .partition(|found| found.level == Level::Emerg);
    if let Some(error) = errors.first() {
        return Err(error.message.clone());
    }
    let warnings = rest
        .iter()
        .filter(|found| found.level == Level::Warn)
        .map(|found| found.message.clone())
        .collect();
    let compiler = Compiler::new(&Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        default_error_log: Destination::Stderr,
        privileged: false,
    });
    let mut scope = loaded.tree.root();
    for name in blocks {
        scope = scope
            .children(name)
            .next()
            .ok_or_else(|| format!("no block {name}"))?;
    }
    let feature = compiler.feature(scope).map_err(|fault| fault.message)?;
    Ok((feature, warnings))
}

/// Runs `work` in simulated time with a request of this head, under the default server of a configuration
/// whose first listener is 10.0.0.1:80.
pub(crate) fn serve<T>(text: &str, head: &str, work: impl AsyncFnOnce(Request) -> T) -> T {
    let path = Path::new("/nginx.conf");
    let files = Sealed::new(Recording {
        files: vec![(path.into(), text.as_bytes().to_vec())],
        globs: Vec::new(),
    });
    let root = Path::new("/");
    let loaded = conf::load(path, root, &[], &Registry::new(TABLES), &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let environment = Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        default_error_log: Destination::Stderr,
        privileged: false,
    };
    let (generation, id) = match crate::compile(&loaded.tree, &environment) {
        Ok(mut compiled) => (compiled.generation, compiled.bindings.remove(0).id),
        Err(diagnostics) => panic!("{diagnostics:?}"),
    };
    let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
    runtime.block_on(async {
        let worker = Worker::start(Arc::new(generation), 1, Arc::new(Counters::default()));
        // The client's connection is there to be asked about; nothing passes over it.
        let address = Address::Inet("10.0.0.1:80".parse().unwrap());
        let listener = Listener::new(sim::listen(address.clone()).unwrap().0).unwrap();
        let _client = engine::net::connect(&address, None, None).await.unwrap();
        let stream = listener.accept().await.unwrap();
        let connection = Rc::new(Connection::new(stream, 1, id, Rc::clone(&worker)));
        let local = worker.current();
        let server = connection.with_servers(&local, |servers| Arc::clone(&servers.default));
        let mut request = Request::new(&local, &connection, &server.unwrap());
        let bytes = format!("{head}\r\nHost: site\r\n\r\n").into_bytes();
        let limits = request.server.core.head_limits();
        let client = request.client_mut();
        proto::h1::parse_head(&bytes, &limits, &mut client.head)
            .unwrap()
            .unwrap();
        client.bytes = bytes;
        request.begin().unwrap();
        work(request).await
    })
}

/// Calls `work` with a request under a server that says nothing.
pub(crate) fn with_request<T>(work: impl FnOnce(&mut Request) -> T) -> T {
    const TEXT: &str = "events { } error_log /dev/null; http { access_log off; \
        proxy_temp_path /tmp; client_body_temp_path /tmp; server { listen 10.0.0.1:80; } }";
    serve(TEXT, "GET / HTTP/1.1", async |mut request| {
        work(&mut request)
    })
}

/// What stands in the pieces that are bytes.
pub(crate) fn text_of(pieces: &[Piece]) -> String {
    let bytes = pieces.iter().flat_map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        _ => Vec::new(),
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
