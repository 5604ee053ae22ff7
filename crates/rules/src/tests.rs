//! A context that is no request: a session that says one thing. Its lines come by the same directives.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use conf::{Contexts, Declared, Recording, Registry, Sealed, Setting, parse};
use engine::net::Address;
use framework::compile::{Compiler, Environment, Feature};
use logs::{ErrorLog, Level, LogTable, Process, Subject};
use variables::{
    Captures, Context, Found, Scope, Scratch, Source, Table, TableBuilder, Values, process,
};

use crate::access_log::{AccessLogs, Logged};

struct Session {
    table: Rc<Variables>,
    said: &'static str,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
    peer: Address,
}

struct Variables(Table<Session>);

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

impl Logged for Session {
    const COMBINED: &'static str = "[$pid] \"$said\"";

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

/// `$said`, and `$answer`, which there never is.
fn find(name: &str) -> Option<Found<Session>> {
    Some(Found::of(match name {
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

const BLOCK: &[&dyn Declared] = &[&SESSIONS];

/// What sessions that say these things leave in `access.log` under these lines, and whether lines may tell of an answer.
fn logged(name: &str, lines: &str, said: &[&'static str]) -> (String, bool) {
    let folder = std::env::temp_dir().join(format!("tidegate-rules-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = Path::new("/sessions.conf");
    let files = Sealed::new(Recording {
        files: vec![(path.into(), format!("sessions {{ {lines} }}").into_bytes())],
        ..Recording::default()
    });
    let root = Path::new("/");
    let registry = Registry::new(&[BLOCK, AccessLogs::<Session>::DIRECTIVES]);
    let loaded = conf::load(path, root, &[], &registry, &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let compiler = Compiler::new(&Environment {
        prefix: &folder,
        conf_prefix: root,
        files: &files,
        privileged: false,
    });
    let builder = compiler.registry::<TableBuilder<Session>>();
    builder.borrow_mut().builtins = &[find, process::find];
    let scope = loaded.tree.root().children("sessions").next().unwrap();
    let access_log = compiler.feature::<AccessLogs<Session>>(scope).unwrap();
    for log in compiler.registries.take::<LogTable>().into_files() {
        log.install(log.open().unwrap());
    }
    let table = Rc::new(Variables(builder.take().finish().unwrap()));
    for said in said {
        access_log.write(&mut Session {
            table: Rc::clone(&table),
            said,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
            peer: Address::Unix("".into()),
        });
    }
    logs::flush_all();
    let text = std::fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    std::fs::remove_dir_all(&folder).unwrap();
    (text, access_log.reads_response())
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
