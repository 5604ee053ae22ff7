//! Tests of the features with a minimal context: a session of which only the client's address and
//! one text are known.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ::upstream::Timed;
use conf::{
    Contexts, Declared, Fault, Line, RecordedFiles, Recording, Registry, ScopeRef, Setting, parse,
};
use engine::net::{Address, TcpInfo};
use framework::compile::{Compiler, Environment, Feature};
use framework::connection_handler::ListenerId;
use logs::{ErrorLog, Level, LogTable, Process, Subject};
use transport::client::{Client, HasClient};
use transport::tls::session::Session as TlsSession;
use variables::{
    BuiltinVariable, Captures, Context, Find, Scope, Scratch, Source, Table, TableBuilder, Values,
    process,
};

use crate::access_log::{AccessLogs, Loggable};
use crate::limit_conn::{self, ConnectionCounting, ConnectionLimitState, LimitConn, LimitOutcome};
use crate::realip::{self, ByProxy, RealIp};
use crate::upstream::{LEAST_TIME, Servers, Upstreams};

pub(crate) struct Session {
    table: Rc<Variables>,
    said: &'static str,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
    client: Client,
    peer: Address,
    connection_peer: Address,
    places: RefCell<ConnectionLimitState<Session>>,
}

impl Session {
    /// The session of a client with this address, which has sent the text `said`.
    fn from(address: &str, said: &'static str, table: &Rc<Variables>) -> Session {
        let address = Address::Inet((address.parse::<std::net::IpAddr>().unwrap(), 9).into());
        let listener = ListenerId(Arc::new("listen 10.0.0.1:9".to_owned()));
        Session {
            table: Rc::clone(table),
            said,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
            client: Client::new(listener, 1),
            peer: address.clone(),
            connection_peer: address,
            places: RefCell::default(),
        }
    }
}

impl HasClient for Session {
    fn client(&self) -> &Client {
        &self.client
    }

    fn local(&self) -> &Address {
        &self.connection_peer
    }

    fn session(&self) -> Option<&TlsSession> {
        None
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }
}

impl ConnectionCounting<Session> for Session {
    fn outcome(session: &Session) -> Option<LimitOutcome> {
        session.places.borrow().outcome
    }

    fn note(session: &Session, change: impl FnOnce(&mut ConnectionLimitState<Session>)) {
        change(&mut session.places.borrow_mut());
    }
}

/// The `upstream` blocks of sessions.
pub(crate) struct OfSessions;

impl Upstreams for OfSessions {
    type Context = Session;

    type Sticky = ();

    const BLOCK: &'static str = "test";

    const SERVERS: Servers = Servers {
        default_port: None,
        are_named: false,
    };

    const KEEPS_CONNECTIONS: bool = false;

    fn least_time() -> &'static Setting<Timed> {
        &LEAST_TIME
    }

    fn sticky_line(_: ScopeRef<'_>) -> Option<&Line> {
        None
    }

    fn sticky(_: &Compiler<'_>, _: ScopeRef<'_>, _: &str) -> Result<Option<()>, Fault> {
        Ok(None)
    }
}

/// For `realip`, the text of a session is the client's address, if the connection's peer is
/// trusted.
impl ByProxy<Session> for Session {
    fn connection_peer(session: &Session) -> &Address {
        &session.connection_peer
    }

    fn field<'a>(session: &'a Session, name: &[u8]) -> Option<&'a [u8]> {
        (name == b"Said").then_some(session.said.as_bytes())
    }

    fn is_realip(session: &Session) -> bool {
        session.peer != session.connection_peer
    }

    fn tell(session: &mut Session, peer: Address) {
        session.peer = peer;
    }
}

pub(crate) struct Variables(Table<Session>);

impl Scope<Session> for Variables {
    fn variables(&self) -> &Table<Session> {
        &self.0
    }
}

impl Subject for Session {
    fn admits(&self, level: Level) -> bool {
        Process.admits(level)
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {}
}

impl Context for Session {
    type Scope = Variables;

    fn scope(&self) -> Rc<Variables> {
        Rc::clone(&self.table)
    }

    fn values(&self) -> &RefCell<Values> {
        &self.values
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn captures_mut(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn peer(&self) -> &Address {
        &self.peer
    }
}

impl Loggable for Session {
    const COMBINED: Option<&'static str> = Some("[$pid] \"$said\"");

    fn is_plain(name: &str) -> bool {
        name == "pid"
    }

    fn is_early(name: &str) -> bool {
        matches!(name, "pid" | "said")
    }

    fn root(&mut self) -> Option<PathBuf> {
        None
    }
}

/// The built-in variables: `$said`, and `$answer`, which is never found.
fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    Some(BuiltinVariable::of(match name {
        "said" => Source::Builtin(|session, out| {
            out.extend_from_slice(session.said.as_bytes());
            true
        }),
        "answer" => Source::Builtin(|_, _| false),
        _ => return None,
    }))
}

static SESSIONS: Setting<()> = Setting::new("sessions", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::HTTP)
    .manual("A block for sessions.");

const TABLES: &[&[&dyn Declared]] = &[
    &[&SESSIONS, &limit_conn::LIMIT_CONN_ZONE],
    AccessLogs::<Session>::DIRECTIVES,
    LimitConn::<Session>::DIRECTIVES,
    RealIp::DIRECTIVES,
];

/// Compiles these lines by `work`, with relative paths below `folder`. Returns the result, and the
/// variables to which it refers.
fn compiled<T>(
    folder: &Path,
    lines: &str,
    work: impl FnOnce(&Compiler<'_>, ScopeRef<'_>) -> T,
) -> (T, Rc<Variables>) {
    let path = Path::new("/sessions.conf");
    let files = RecordedFiles::new(Recording {
        files: vec![(path.into(), format!("sessions {{ {lines} }}").into_bytes())],
        ..Recording::default()
    });
    let root = Path::new("/");
    let loaded = conf::load(path, root, &[], &Registry::new(TABLES), &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let compiler = Compiler::new(&Environment {
        prefix: folder,
        conf_prefix: root,
        files: &files,
        privileged: false,
    });
    let builder = compiler.registry::<TableBuilder<Session>>();
    builder.borrow_mut().builtins = Arc::new([
        find as Find<Session>,
        process::find,
        limit_conn::find::<Session, Session>,
        realip::find::<Session, Session>,
        transport::client::find,
    ]);
    let scope = loaded.tree.root().children("sessions").next().unwrap();
    let made = work(&compiler, scope);
    let table = builder.take().finish().unwrap();
    let diagnostics = compiler.into_diagnostics();
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    (made, Rc::new(Variables(table)))
}

/// The content of `access.log` after sessions with the texts `said` under these lines, and the
/// value of [`AccessLogs::reads_response`](crate::access_log::AccessLogs::reads_response).
fn logged(name: &str, lines: &str, said: &[&'static str]) -> (String, bool) {
    let folder = std::env::temp_dir().join(format!("tidegate-rules-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (access_log, table) = compiled(&folder, lines, |compiler, scope| {
        let access_log = compiler.feature::<AccessLogs<Session>>(scope).unwrap();
        for log in compiler.registries.take::<LogTable>().into_files() {
            log.install(log.open().unwrap());
        }
        access_log
    });
    for said in said {
        access_log.write(&mut Session::from("10.0.0.2", said, &table));
    }
    logs::flush_all();
    let text = std::fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    std::fs::remove_dir_all(&folder).unwrap();
    (text, access_log.reads_response())
}

fn value(session: &mut Session, name: &str) -> Option<String> {
    let mut value = Vec::new();
    let found = session.append_variable_named(name, &mut value);
    found.then(|| String::from_utf8_lossy(&value).into_owned())
}

#[test]
fn sessions_are_counted_by_what_they_say() {
    let lines = "limit_conn_zone $said zone=said:32k; limit_conn said 1; limit_conn_status 429;";
    let (limit, table) = compiled(Path::new("/"), lines, |compiler, scope| {
        limit_conn::compile::<Session>(compiler, scope);
        compiler.feature::<LimitConn<Session>>(scope).unwrap()
    });
    let session = |said| Session::from("10.0.0.2", said, &table);
    let (mut one, mut same, mut other) = (session("a"), session("a"), session("b"));
    assert_eq!(value(&mut one, "limit_conn_status"), None);
    assert_eq!(limit.enter::<Session>(&mut one), Ok(()));
    assert_eq!(
        limit.enter::<Session>(&mut one),
        Ok(()),
        "it is counted once"
    );
    assert_eq!(limit.enter::<Session>(&mut same), Err(429));
    assert_eq!(limit.enter::<Session>(&mut other), Ok(()));
    assert_eq!(value(&mut one, "limit_conn_status").unwrap(), "PASSED");
    assert_eq!(value(&mut same, "limit_conn_status").unwrap(), "REJECTED");
    drop(one);
    assert_eq!(
        limit.enter::<Session>(&mut session("a")),
        Ok(()),
        "its place is free"
    );
}

#[test]
fn a_trusted_proxy_tells_where_a_session_comes_from() {
    let lines = "set_real_ip_from 10.0.0.0/8; real_ip_header Said;";
    let (real_ip, table) = compiled(Path::new("/"), lines, |compiler, scope| {
        compiler.feature::<RealIp>(scope).unwrap()
    });
    for (from, expected) in [("10.1.1.1", "192.0.2.9"), ("172.16.1.1", "172.16.1.1")] {
        let mut session = Session::from(from, "192.0.2.9", &table);
        real_ip.apply::<_, Session>(&mut session);
        assert_eq!(
            value(&mut session, "remote_addr").as_deref(),
            Some(expected)
        );
        assert_eq!(
            value(&mut session, "realip_remote_addr").as_deref(),
            Some(from)
        );
    }
}

#[test]
fn a_session_is_logged_in_a_format_of_its_own() {
    let lines = "log_format short '$said $answer'; access_log access.log short if=$said;";
    let (text, tells_of_answer) = logged("format", lines, &["hello", "", "a \"word\""]);
    assert_eq!(text, "hello -\na \\x22word\\x22 -\n");
    assert!(tells_of_answer);
}

#[test]
fn the_format_without_a_name_is_the_context_s_own() {
    let (text, tells_of_answer) = logged("combined", "access_log access.log;", &["hello"]);
    assert_eq!(text, format!("[{}] \"hello\"\n", std::process::id()));
    assert!(!tells_of_answer);
    assert_eq!(logged("off", "access_log off;", &["hello"]).0, "");
}
