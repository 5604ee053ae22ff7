//! Tests with a minimal context: a session of which only the client's address and one text are
//! known. They also show that texts, regexes, `map`, `geo` and `split_clients` do not depend on
//! requests.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use conf::{
    Contexts, Declared, Inherit, Level, RecordedFiles, Recording, Registry, ScopeRef, Setting,
    Template, Word, parse,
};
use engine::net::Address;
use framework::compile::{Compiler, Environment};
use logs::{ErrorLog, Process, Subject};

use crate::{
    BuiltinVariable, Captures, Compiling as _, Context, Scope, Scratch, Source, Table,
    TableBuilder, Text, Values, blocks, geo, map, num_map, process, split_clients,
};

/// A session: the client's address, and the text that the client has sent.
pub(crate) struct Session {
    configuration: Rc<Configuration>,
    peer: Address,
    said: &'static str,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
    /// How often `$said` was evaluated.
    asked: u32,
}

pub(crate) struct Configuration {
    table: Table<Session>,
    text: Text<Session>,
}

impl Scope<Session> for Configuration {
    fn variables(&self) -> &Table<Session> {
        &self.table
    }
}

impl Subject for Session {
    fn admits(&self, level: logs::Level) -> bool {
        Process.admits(level)
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {}

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(self.said)
    }
}

impl Context for Session {
    type Scope = Configuration;

    fn scope(&self) -> Rc<Configuration> {
        Rc::clone(&self.configuration)
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

/// The built-in variables: `$said` is evaluated on every use, `$first` once, and `$note_NAME` is a
/// family.
fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    fn said(session: &mut Session, out: &mut Vec<u8>) -> bool {
        session.asked += 1;
        out.extend_from_slice(session.said.as_bytes());
        true
    }
    fn note(_: &mut Session, name: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(name);
        name != b"none"
    }
    let source = match name {
        "said" => Source::Builtin(said),
        "first" => Source::Once(said),
        name => Source::Family(note, name.strip_prefix("note_")?.as_bytes().into()),
    };
    let assignable = !matches!(name, "said");
    Some(BuiltinVariable { source, assignable })
}

static SESSIONS: Setting<()> = Setting::new("sessions", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::HTTP)
    .inherit(Inherit::Never)
    .manual("A block for sessions.");

const DIRECTIVES: &[&dyn Declared] = &[&SESSIONS];

fn word(text: &str) -> Word {
    Word {
        bytes: text.as_bytes().into(),
        ..Word::default()
    }
}

/// Compiles the blocks and the text, and returns a session that can evaluate the text, or the first
/// error.
fn session(blocks: &str, text: &str) -> Result<Session, String> {
    compiled(blocks, text, |compiler, scope| {
        map::compile::<Session>(compiler, scope);
        num_map::compile::<Session>(compiler, scope);
        geo::compile::<Session>(compiler, scope);
        split_clients::compile::<Session>(compiler, scope);
    })
}

/// Like [`session`], but the blocks are compiled by `compile`, after the text.
fn compiled(
    blocks: &str,
    text: &str,
    compile: impl Fn(&Compiler<'_>, ScopeRef<'_>),
) -> Result<Session, String> {
    let path = Path::new("/sessions.conf");
    let files = RecordedFiles::new(Recording {
        files: vec![(path.into(), format!("sessions {{ {blocks} }}").into_bytes())],
        ..Recording::default()
    });
    let tables = [
        DIRECTIVES,
        map::DIRECTIVES,
        num_map::DIRECTIVES,
        geo::DIRECTIVES,
        split_clients::DIRECTIVES,
    ];
    let registry = Registry::new(&tables);
    let root = Path::new("/");
    let loaded = conf::load(path, root, &[], &registry, &files);
    let mut diagnostics = loaded.diagnostics;
    let compiler = Compiler::new(&Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        privileged: false,
    });
    let variables = compiler.registry::<TableBuilder<Session>>();
    variables.borrow_mut().builtins = Arc::new([find as crate::Find<_>, process::find]);
    let text = compiler.text(&Template::parse(&word(text)).map_err(|fault| fault.message)?);
    for scope in loaded.tree.root().children("sessions") {
        compile(&compiler, scope);
    }
    let table = variables.take().finish();
    diagnostics.extend(compiler.into_diagnostics());
    if let Some(error) = diagnostics.iter().find(|found| found.level == Level::Emerg) {
        return Err(error.message.clone());
    }
    Ok(Session {
        configuration: Rc::new(Configuration {
            table: table.map_err(|names| format!("unknown {names:?}"))?,
            text,
        }),
        peer: Address::Inet("192.0.2.7:5000".parse().map_err(|_| "an address")?),
        said: "Hello",
        values: RefCell::default(),
        captures: Captures::default(),
        scratch: Scratch::default(),
        asked: 0,
    })
}

/// The value of the session's text.
fn value(session: &mut Session) -> String {
    let configuration = Rc::clone(&session.configuration);
    String::from_utf8_lossy(&configuration.text.evaluate(session)).into_owned()
}

#[test]
fn texts_and_variables() {
    let mut one = session("", "$said, $SAID; $first $first; $note_x$note_none.").unwrap();
    assert_eq!(value(&mut one), "Hello, Hello; Hello Hello; xnone.");
    assert_eq!(one.asked, 3, "what is remembered is asked for once");
    let error = session("", "$nothing").err();
    assert_eq!(error.as_deref(), Some("unknown [\"nothing\"]"));
}

#[test]
fn a_map_with_captures() {
    let blocks = "map $said $kind { hello plain; ~^(?<letter>h)e pattern; default other; } \
                  map $said $shown { ~*^(.)(?<rest>.*)$ $2-$1-$rest; volatile; }";
    let mut one = session(blocks, "$kind $shown $rest").unwrap();
    assert_eq!(value(&mut one), "plain ello-H-ello ello");
    one.said = "other";
    assert_eq!(
        value(&mut one),
        "plain ther-o-ther ther",
        "one is remembered, the other is volatile"
    );
    let error = session("map $said $said { a b; }", "").err();
    assert_eq!(error.as_deref(), Some("the duplicate \"said\" variable"));
}

/// With nginx's results: in a cycle of variables, the hundredth nested variable is not found.
#[test]
fn variables_that_need_themselves() {
    let text = |left, right| format!("{}{}", "<".repeat(left), ">".repeat(right));
    for (blocks, expected) in [
        (
            "map $said $one { default $two; } map $said $two { default $one; }",
            String::new(),
        ),
        ("map $one $one { default x; }", "x".into()),
        (
            "map $two $one { default <$two>; volatile; } map $said $two { default $one; }",
            text(50, 50),
        ),
        ("map $said $one { default <$one; }", text(100, 0)),
    ] {
        let mut one = session(blocks, "$one").unwrap();
        assert_eq!(value(&mut one), expected, "{blocks}");
        assert_eq!(value(&mut one), expected, "{blocks}, once more");
    }
}

/// nginx never finishes the evaluation of such a value.
#[test]
fn a_value_that_doubles_in_a_circle_comes_to_an_end() {
    let blocks = "map $two $one { volatile; default \"<$two$two>\"; } \
                  map $one $two { volatile; default \"[$one$one]\"; }";
    let mut one = session(blocks, "$one").unwrap();
    let value = value(&mut one);
    assert!(value.starts_with('<') && value.ends_with('>'), "{value}");
    assert!(value.len() < 100_000, "{}", value.len());
}

#[test]
fn a_map_of_numbers() {
    let blocks = "map $said $number { default 8085; Hello 80; } \
                  num_map $number $kind { default none; <=1023 low; 80 web; 8080-8090 $said; } \
                  num_map $said $other { default \"no number\"; >=0 some; }";
    let mut one = session(blocks, "$kind $other").unwrap();
    assert_eq!(value(&mut one), "low no number");
    let mut other = session(blocks, "$kind").unwrap();
    other.said = "that";
    assert_eq!(value(&mut other), "that");
    let error = |rows: &str| session(&format!("num_map $said $kind {{ {rows} }}"), "").err();
    assert_eq!(
        error("5-x a;").as_deref(),
        Some(
            "\"5-x\" is neither a number nor a range such as \"8080-8090\", \"<1024\" or \
             \">=1024\""
        )
    );
    assert_eq!(
        error("default a; default b;").as_deref(),
        Some("duplicate default num_map parameter")
    );
    assert_eq!(
        error("5 a b;").as_deref(),
        Some("invalid number of the num_map parameters")
    );
}

#[test]
fn geo_by_the_peer_and_by_a_variable() {
    let blocks = "geo $place { 192.0.2.0/24 near; default far; } \
                  map a $address { default 10.1.2.3; } geo $address $inner { 10.0.0.0/8 yes; }";
    let mut one = session(blocks, "$place $inner").unwrap();
    assert_eq!(value(&mut one), "near yes");
    let mut other = session(blocks, "$place").unwrap();
    other.peer = Address::Inet("198.51.100.1:1".parse().unwrap());
    assert_eq!(value(&mut other), "far");
}

#[test]
fn clients_are_split() {
    let mut one = session("split_clients $said $half { 50% a; * b; }", "$half").unwrap();
    let first = value(&mut one);
    let mut seen = vec![first.clone()];
    for said in ["x", "y", "z", "another", "one more"] {
        let mut other = session("split_clients $said $half { 50% a; * b; }", "$half").unwrap();
        other.said = said;
        seen.push(value(&mut other));
    }
    assert!(seen.iter().any(|half| half == "a") && seen.iter().any(|half| half == "b"));
    assert_eq!(value(&mut one), first, "and stay where they are");
}

#[test]
fn only_blocks_that_are_named_are_compiled() {
    let blocks = "map $half $kind { default $place; } geo $PLACE { default far; } \
                  split_clients $said $half { * all; } map $said $other { ~^(?<letter>.) $letter; }";
    let named = |text| compiled(blocks, text, blocks::compile_named::<Session>);
    let mut one = named("$kind $pid").unwrap();
    assert_eq!(value(&mut one), format!("far {}", std::process::id()));
    let table = &one.configuration.table;
    for (name, is_there) in [
        ("half", true),
        ("place", true),
        ("other", false),
        ("letter", false),
    ] {
        assert_eq!(table.find(name).is_some(), is_there, "{name}");
    }
    assert_eq!(named("literal").unwrap().configuration.table.len(), 0);
    let error = named("$letter").err();
    assert_eq!(error.as_deref(), Some("unknown [\"letter\"]"));
}
