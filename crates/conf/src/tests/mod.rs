//! Tests of the whole crate, with a small table of directives.
//!
//! Error texts are those of nginx 1.31 for the same file, unless a comment says otherwise.

mod lexer;
mod load;
mod manual;
mod scope;
mod values;

use std::path::Path;
use std::time::Duration;

use crate::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, Loaded, RecordedFiles, Recording,
    Registry, Setter, Setting, Template, parse,
};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const PROGRAM: Contexts = Contexts::SERVER
    .or(Contexts::LOCATION)
    .or(Contexts::SERVER_IF)
    .or(Contexts::LOCATION_IF);

type Words = Vec<Vec<String>>;

/// The words of every line, the name first.
fn words(setter: &Setter<'_>) -> Result<Words, Fault> {
    let of_line = |line: &&crate::Line| {
        let words = std::iter::once(&line.name).chain(&line.args);
        words.map(|word| word.text().into_owned()).collect()
    };
    Ok(setter.lines().iter().map(of_line).collect())
}

fn rule(setter: &Setter<'_>) -> Result<(), Fault> {
    for line in setter.lines() {
        let word = line.argument(0);
        if word.bytes.starts_with(b"!") {
            return Err(Fault::at(
                word,
                format!("invalid parameter \"{}\"", word.text()),
            ));
        }
        if word.bytes.starts_with(b"?") {
            setter.warn(word, format!("doubtful \"{}\"", word.text()));
        }
    }
    Ok(())
}

macro_rules! block {
    ($static:ident, $name:literal, $contexts:expr, $arity:expr, $inherit:expr, $opens:expr) => {
        static $static: Setting<()> = Setting::new($name, &["{ ... }"], parse::nothing)
            .contexts($contexts)
            .arity($arity)
            .block()
            .opens($opens)
            .inherit($inherit);
    };
}

block!(
    EVENTS,
    "events",
    Contexts::MAIN,
    Arity::none(),
    Inherit::Never,
    Contexts::EVENTS
);
block!(
    HTTP,
    "http",
    Contexts::MAIN,
    Arity::none(),
    Inherit::Never,
    Contexts::HTTP
);
block!(
    SERVER,
    "server",
    Contexts::HTTP,
    Arity::none(),
    Inherit::Block,
    Contexts::SERVER
);
block!(
    LOCATION,
    "location",
    Contexts::SERVER.or(Contexts::LOCATION),
    Arity::between(1, 2),
    Inherit::Block,
    Contexts::LOCATION
);
block!(
    LIMIT_EXCEPT,
    "limit_except",
    Contexts::LOCATION,
    Arity::at_least(1),
    Inherit::Block,
    Contexts::LIMIT_EXCEPT
);
block!(
    UPSTREAM,
    "upstream",
    Contexts::HTTP,
    Arity::exactly(1),
    Inherit::Block,
    Contexts::UPSTREAM
);

/// The `server` directive of an upstream, with the same name as the block in another context.
static UPSTREAM_SERVER: Setting<Words> = Setting::new("server", &["address"], words)
    .contexts(Contexts::UPSTREAM)
    .arity(Arity::at_least(1))
    .inherit(Inherit::List);

static TYPES: Setting<()> = Setting::new("types", &["{ ... }"], parse::nothing)
    .contexts(HSL)
    .free_block();
static MAP: Setting<()> = Setting::new("map", &["string $variable { ... }"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(Arity::exactly(2))
    .free_block();

static USER: Setting<Words> = Setting::new("user", &["user [group]"], words)
    .contexts(Contexts::MAIN)
    .arity(Arity::between(1, 2))
    .inherit(Inherit::List);
static DAEMON: Setting<bool> = Setting::new("daemon", &["on | off"], parse::flag)
    .contexts(Contexts::MAIN)
    .default("on");
static MULTI_ACCEPT: Setting<bool> = Setting::new("multi_accept", &["on | off"], parse::flag)
    .contexts(Contexts::EVENTS)
    .default("off");
static WORKER_CONNECTIONS: Setting<u64> =
    Setting::new("worker_connections", &["number"], parse::number)
        .contexts(Contexts::EVENTS)
        .default("512");
static LISTEN: Setting<Words> = Setting::new("listen", &["address"], words)
    .contexts(Contexts::SERVER)
    .arity(Arity::at_least(1))
    .inherit(Inherit::List);
static ROOT: Setting<String> = Setting::new("root", &["path"], parse::text)
    .also(&["alias"])
    .contexts(HSL.or(Contexts::LOCATION_IF))
    .name_contexts("alias", Contexts::LOCATION)
    .default("html");
static SENDFILE: Setting<bool> = Setting::new("sendfile", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off");
static BODY_SIZE: Setting<u64> = Setting::new("client_max_body_size", &["size"], parse::offset)
    .contexts(HSL)
    .default("1m");
static BUSY_SIZE: Setting<u64> = Setting::new("busy_size", &["size"], parse::size)
    .contexts(HSL)
    .default_with(|scope| scope.get(&BODY_SIZE).map(|size| size * 2));
static KEEPALIVE: Setting<Duration> =
    Setting::new("keepalive_timeout", &["time"], parse::milliseconds)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .default("75s");
static IF_MODIFIED: Setting<u8> = Setting::new("if_modified_since", &["off | exact"], |setter| {
    parse::enumeration(setter, &[("off", 0), ("exact", 1)])
})
.contexts(HSL)
.default("exact");
static LINGERING: Setting<u8> = Setting::new("lingering_close", &["off | on"], |setter| {
    parse::enumeration(setter, &[("off", 0), ("on", 1)])
})
.contexts(HSL)
.default("on");
static ADD_HEADER: Setting<Words> = Setting::new("add_header", &["name value"], words)
    .contexts(HSL.or(Contexts::LOCATION_IF))
    .arity(Arity::exactly(2))
    .inherit(Inherit::List);
static ALLOW: Setting<Words> = Setting::new("allow", &["address | all"], words)
    .also(&["deny"])
    .contexts(HSL.or(Contexts::LIMIT_EXCEPT))
    .inherit(Inherit::List);
static SET_HEADER: Setting<Words> = Setting::new("proxy_set_header", &["field value"], words)
    .contexts(HSL)
    .arity(Arity::exactly(2))
    .inherit(Inherit::Keyed)
    .default("Host $proxy_host; Connection close");
static TRACE: Setting<Words> = Setting::new("trace", &["word"], words)
    .contexts(HSL)
    .inherit(Inherit::Append);
static PASS: Setting<String> = Setting::new("proxy_pass", &["URL"], parse::text)
    .contexts(
        Contexts::LOCATION
            .or(Contexts::LOCATION_IF)
            .or(Contexts::LIMIT_EXCEPT),
    )
    .inherit(Inherit::Handler);
static TRY_FILES: Setting<Words> = Setting::new("try_files", &["file ... uri"], words)
    .contexts(Contexts::SERVER.or(Contexts::LOCATION))
    .arity(Arity::at_least(2))
    .inherit(Inherit::Never);
static PROGRAM_LINES: Setting<Words> =
    Setting::new("set", &["set $name value", "if (condition)"], words)
        .also(&["if", "break"])
        .contexts(PROGRAM)
        .arity(Arity::exactly(2))
        .name_contexts("if", Contexts::SERVER.or(Contexts::LOCATION))
        .name_arity("if", Arity::at_least(1).block())
        .opens_by_place(&[
            (Contexts::SERVER, Contexts::SERVER_IF),
            (Contexts::LOCATION, Contexts::LOCATION_IF),
        ])
        .name_arity("break", Arity::none())
        .inherit(Inherit::Program);
static RULE: Setting<()> = Setting::new("rule", &["word"], rule)
    .contexts(HSL)
    .inherit(Inherit::List);
static PCRE_JIT: Setting<bool> = Setting::new("pcre_jit", &["on | off"], parse::flag)
    .contexts(Contexts::MAIN)
    .default("off")
    .no_effect("there is none");
static INDEX: Setting<Template> = Setting::new("index_text", &["text"], parse::template)
    .contexts(HSL)
    .default("");

const TABLE: &[&dyn Declared] = &[
    &EVENTS,
    &HTTP,
    &SERVER,
    &LOCATION,
    &LIMIT_EXCEPT,
    &UPSTREAM,
    &UPSTREAM_SERVER,
    &TYPES,
    &MAP,
    &USER,
    &DAEMON,
    &MULTI_ACCEPT,
    &WORKER_CONNECTIONS,
    &LISTEN,
    &ROOT,
    &SENDFILE,
    &BODY_SIZE,
    &BUSY_SIZE,
    &KEEPALIVE,
    &IF_MODIFIED,
    &LINGERING,
    &ADD_HEADER,
    &ALLOW,
    &SET_HEADER,
    &TRACE,
    &PASS,
    &TRY_FILES,
    &PROGRAM_LINES,
    &RULE,
    &PCRE_JIT,
    &INDEX,
];

fn registry() -> Registry {
    Registry::new(&[TABLE]).with_modules(&["ngx_http_geoip_module"])
}

/// Loads `/conf/nginx.conf` from these files in `/conf`.
fn load_files(files: &[(&str, &[u8])], globals: &[&str]) -> Loaded {
    let recording = Recording {
        files: files
            .iter()
            .map(|(name, text)| (Path::new("/conf").join(name), text.to_vec()))
            .collect(),
        globs: vec![
            (
                "/conf/all/*.conf".into(),
                vec!["/conf/a.conf".into(), "/conf/b.conf".into()],
            ),
            ("/conf/none/*".into(), Vec::new()),
        ],
        hosts: Vec::new(),
    };
    let globals: Vec<Vec<u8>> = globals
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect();
    let main = Path::new("/conf/nginx.conf");
    crate::load(
        main,
        Path::new("/conf/"),
        &globals,
        &registry(),
        &RecordedFiles::new(recording),
    )
}

fn load(text: impl AsRef<[u8]>) -> Loaded {
    load_files(&[("nginx.conf", text.as_ref())], &[])
}

/// The lines that a log would contain.
fn messages(loaded: &Loaded) -> Vec<String> {
    loaded
        .diagnostics
        .iter()
        .map(Diagnostic::to_string)
        .collect()
}
