//! Support for tests of requests and modules: a request in simulated time under a configuration,
//! and features compiled from text.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conf::{Declared, Level, Loaded, RecordedFiles, Recording, Registry};
use engine::net::{Address, Listener};
use engine::sim::{self, Faults};
use framework::compile::{Compiler, Environment, Feature};
use framework::connection_handler::Accepted;
use framework::counters::Counters;
use framework::generation::Generation;
use framework::protocol_part::ProtocolPart;
use framework::workers::Worker;
use logs::{ErrorLog, ErrorLogReporter};
use transport::listen::ListenerId;
use transport::resolver::Resolving;
use transport::tls;
use transport::tls::settings::TlsSettings;
use variables::{map, process};

use crate::config::core::{Core, ServerCore};
use crate::config::types::Types;
use crate::config::{compile, core, ignored_directives};
use crate::connection::Connection;
use crate::connection_handler;
use crate::exchange::memory;
use crate::files::disable_symlinks::DisableSymlinks;
use crate::files::open_file_cache::settings::OpenFileCache;
use crate::handshake::{self, Handshake};
use crate::logging::access::AccessLogs;
use crate::module::Entry;
use crate::part::Modules;
use crate::request::Request;
use crate::request::body::BodySettings;
use crate::response::error_page::ErrorPages;
use crate::response::piece::Piece;
use crate::response::{not_modified, range};

/// The entries that requests need even without modules.
pub const NO_MODULES: Modules = Modules(&[
    Entry::of(&[
        ErrorLog::DIRECTIVES,
        compile::DIRECTIVES,
        crate::response::memory::DIRECTIVES,
        rules::server_name::DIRECTIVES,
        Core::DIRECTIVES,
        ServerCore::DIRECTIVES,
        BodySettings::DIRECTIVES,
        ErrorPages::DIRECTIVES,
        Types::DIRECTIVES,
        OpenFileCache::DIRECTIVES,
        Resolving::DIRECTIVES,
        ignored_directives::DIRECTIVES,
    ])
    .tasks(core::TASKS)
    .variables(&[
        crate::variables::core::find,
        process::find,
        transport::client::find,
        transport::proxy_protocol::find,
    ])
    .of_handshakes(&[handshake::find, process::find]),
    Entry::module::<DisableSymlinks>(),
    Entry::module::<AccessLogs>(),
    Entry::of(&[map::DIRECTIVES]).prepare(map::compile::<Request>),
    Entry::of(&[TlsSettings::<Handshake>::DIRECTIVES]).variables(&[tls::variables::find]),
    Entry::of(&[]).registers(range::register),
    Entry::of(&[]).registers(not_modified::register),
]);

/// The built-in entries followed by these modules.
pub fn with(modules: &[Entry]) -> Modules {
    let all = NO_MODULES.0.iter().chain(modules).copied();
    Modules(Box::leak(all.collect()))
}

/// A directory with two files, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Creates a directory with `file.txt` and `page.html`.
    pub fn with_files() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-handlers-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        std::fs::write(folder.0.join("file.txt"), "0123456789").unwrap();
        std::fs::write(folder.0.join("page.html"), b"caf\xe9").unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A request with this head on the connection of another request, as if it had been received by
/// HTTP/1.
pub fn another(request: &Request, head: &str) -> Request {
    let connection = Rc::clone(request.connection.shared().unwrap());
    let mut another = Request::new(&request.local, &connection, &request.server);
    let bytes = format!("{head}\r\nHost: site\r\n\r\n").into_bytes();
    let limits = another.server.core.head_limits();
    let (kept, parsed) = another.client_mut().h1_mut();
    let length = proto::h1::parse_head(&bytes, &limits, parsed).unwrap();
    assert_eq!(length, Some(bytes.len()));
    *kept = bytes;
    another.begin().unwrap();
    another
}

/// Gives the request a head with this request line and fields, like the protocol in memory.
fn begin(request: &mut Request, head: &str) {
    memory::take_head(request, head).unwrap();
    request.begin().unwrap();
}

/// A configuration with one server, whose block contains these lines.
pub fn site(lines: &str) -> String {
    format!(
        "error_log /dev/null; http {{ access_log off; client_body_temp_path /tmp; \
         server {{ listen 10.0.0.1:80; {lines} }} }}"
    )
}

/// Runs `work` in simulated time with a request that has this head. The request is assigned to the
/// default server of a configuration without modules whose first listener is 10.0.0.1:80.
pub fn serve<T>(text: &str, head: &str, work: impl AsyncFnOnce(Request) -> T) -> T {
    serve_by(NO_MODULES, text, head, work)
}

/// Like [`serve`], with these modules.
pub fn serve_by<T>(
    modules: Modules,
    text: &str,
    head: &str,
    work: impl AsyncFnOnce(Request) -> T,
) -> T {
    let (generation, id) = generation(modules, text);
    let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
    runtime.block_on(async {
        let counters = Arc::new(Counters::default());
        let handlers = vec![connection_handler::handler()];
        let worker = Worker::start(
            Arc::new(generation),
            512,
            counters,
            handlers,
            &ErrorLogReporter,
        );
        // The client's connection exists, but nothing is sent on it.
        let address = Address::Inet("10.0.0.1:80".parse().unwrap());
        let listener = Listener::new(sim::listen(address.clone()).unwrap().0).unwrap();
        let _client = engine::net::connect(&address, None, None).await.unwrap();
        let stream = listener.accept().await.unwrap();
        let connection = Rc::new(Connection::new(Accepted {
            worker: Rc::clone(&worker),
            stream,
            listener: id,
            serial: 1,
            handed: None,
        }));
        let local = worker.current();
        let server = connection.with_servers(&local, |servers| Arc::clone(&servers.default));
        let mut request = Request::new(&local, &connection, &server.unwrap());
        begin(&mut request, head);
        work(request).await
    })
}

/// Calls `work` with a request of a server without directives.
pub fn with_request<T>(work: impl FnOnce(&mut Request) -> T) -> T {
    serve(&site(""), "GET / HTTP/1.1", async |mut request| {
        work(&mut request)
    })
}

/// A file system with the single file `/nginx.conf`.
fn files(text: &str) -> RecordedFiles {
    RecordedFiles::new(Recording {
        files: vec![("/nginx.conf".into(), text.as_bytes().to_vec())],
        ..Recording::default()
    })
}

fn load(registry: Registry, files: &RecordedFiles) -> Loaded {
    let registry = Box::leak(Box::new(registry));
    conf::load(
        Path::new("/nginx.conf"),
        Path::new("/"),
        &[],
        registry,
        files,
    )
}

fn environment(files: &RecordedFiles) -> Environment<'_> {
    let root = Path::new("/");
    Environment {
        prefix: root,
        conf_prefix: root,
        files,
        privileged: false,
    }
}

/// Compiles a configuration with these modules; returns the generation and its first listener.
fn generation(modules: Modules, text: &str) -> (Generation, ListenerId) {
    let files = files(text);
    let tables = modules.0.iter().flat_map(|entry| entry.directives);
    let tables: Vec<_> = tables.copied().collect();
    let loaded = load(Registry::new(&tables), &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let compiler = Compiler::new(&environment(&files));
    modules.declare(&compiler);
    let http = modules.compile(&compiler, loaded.tree.root());
    assert!(!compiler.has_failed(), "{:?}", compiler.into_diagnostics());
    let unknown = modules.unknown_variables(&compiler);
    assert!(unknown.is_empty(), "{unknown:?}");
    let http = http.expect("what fails is reported");
    let mut generation = Generation::new(compiler.zones.take().finish());
    let mut listening = http.add_to(&compiler, &mut generation);
    (generation, listening.remove(0).id)
}

/// Compiles a feature in the innermost of these blocks, each of which is the first of its name
/// within the previous block. Returns the first error as printed.
pub fn feature<F: Feature>(text: &str, blocks: &[&str]) -> Result<Arc<F>, String> {
    compiled(text, blocks).map(|(feature, _)| feature)
}

/// Like [`feature`], with the warnings of the compilation.
pub fn compiled<F: Feature>(text: &str, blocks: &[&str]) -> Result<(Arc<F>, Vec<String>), String> {
    compiled_among(&[F::DIRECTIVES], text, blocks)
}

/// Like [`compiled`], for a text that also has directives of these tables.
pub fn compiled_among<F: Feature>(
    tables: &[&'static [&'static dyn Declared]],
    text: &str,
    blocks: &[&str],
) -> Result<(Arc<F>, Vec<String>), String> {
    let files = files(text);
    let own = NO_MODULES.0.iter().flat_map(|entry| entry.directives);
    let tables: Vec<_> = own.chain(tables).copied().collect();
    let loaded = load(Registry::new(&tables), &files);
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
    let compiler = Compiler::new(&environment(&files));
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

/// The bytes of the pieces as text.
pub fn text_of(pieces: &[Piece]) -> String {
    let bytes = pieces.iter().flat_map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        _ => Vec::new(),
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
