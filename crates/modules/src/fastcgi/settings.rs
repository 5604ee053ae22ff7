//! The directives of `fastcgi_*` and what they amount to in a location.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Part, ScopeRef, Setter, Setting, Template, Word,
    parse,
};
use framework::compile::{Compiler, Feature};
use http::module::{Content, Shortcut, Told};
use http::plan_builder::PlanBuilder;
use http::regex::Regex;
use http::temporary_paths::{self, TemporaryPath};
use http::variables::Compiling as _;

use super::params::{Param, Params};
use super::script_name::{self, Script};
use crate::proxy::buffers;
use crate::proxy::destination::Destination;
use crate::proxy::family::Family;
use crate::proxy::passing::{self, Passing};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static FASTCGI_PASS: Setting<Word> =
    Setting::new("fastcgi_pass", &["address"], |setter| setter.word().cloned())
        .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF))
        .inherit(Inherit::Handler)
        .manual("Passes requests on to a FastCGI application, such as php-fpm: HOST:PORT, unix:PATH, or the name of an upstream block. Variables may be used.");

static INDEX: Setting<Bytes> = Setting::new("fastcgi_index", &["name"], |setter| {
    Ok(Bytes::copy_from_slice(&setter.word()?.bytes))
})
.contexts(HSL)
.manual("What $fastcgi_script_name has behind a URI that ends with a slash.");

static SPLIT_PATH_INFO: Setting<Word> =
    Setting::new("fastcgi_split_path_info", &["regex"], |setter| setter.word().cloned())
        .contexts(HSL)
        .manual("Takes the URI apart: the first group of the regular expression is $fastcgi_script_name, the second $fastcgi_path_info. A URI that does not match is a script's name as a whole.");

static PARAM: Setting<Vec<(Word, Word, bool)>> =
    Setting::new("fastcgi_param", &["parameter value [if_not_empty]"], params)
        .contexts(HSL)
        .arity(Arity::between(2, 3))
        .inherit(Inherit::List)
        .manual("A parameter that the application gets. With `if_not_empty` it is left out where its value is empty. One named HTTP_… replaces the field of the request that it would stand for; with the value \"\" neither is sent. Lines of one level replace those of the levels above.");

static KEEP_CONN: Setting<bool> = Setting::new("fastcgi_keep_conn", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual("Asks the application to leave the connection open behind the answer, so that the upstream's `keepalive` has connections to keep.");

static CATCH_STDERR: Setting<Vec<Word>> =
    Setting::new("fastcgi_catch_stderr", &["string"], |setter| {
        let lines = setter.lines().iter();
        Ok(lines.flat_map(|line| line.args.iter().cloned()).collect())
    })
    .contexts(HSL)
    .inherit(Inherit::List)
    .manual("An answer before whose head the application reports an error that contains the string is taken for none (invalid_header).");

/// What it shares with the other modules that pass requests on.
static FASTCGI: Family = Family::of_applications("fastcgi_");

/// What it shares with those that buffer answers.
static BUFFERS: buffers::Family = buffers::Family::of("fastcgi_");

/// Where temporary files go that no line gives a directory.
static TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &BUFFERS.temp_path.spec,
    default: "fastcgi_temp",
    levels: &[1, 2],
};

/// Fields that never reach the client unless `fastcgi_pass_header` names them.
const HIDDEN: [&str; 6] = [
    "status",
    "x-accel-expires",
    "x-accel-redirect",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
];

/// What both families say of passing requests on.
const PASSING: passing::Declared = passing::Declared {
    family: &FASTCGI,
    buffers: &BUFFERS,
    temporary_path: &TEMPORARY_PATH,
    hidden: &HIDDEN,
};

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &FASTCGI_PASS,
    &INDEX,
    &SPLIT_PATH_INFO,
    &PARAM,
    &KEEP_CONN,
    &CATCH_STDERR,
    &FASTCGI.hide_header,
    &FASTCGI.pass_header,
    &FASTCGI.ignore_headers,
    &FASTCGI.bind,
    &FASTCGI.connect_timeout,
    &FASTCGI.send_timeout,
    &FASTCGI.read_timeout,
    &FASTCGI.buffering,
    &FASTCGI.request_buffering,
    &FASTCGI.pass_request_headers,
    &FASTCGI.pass_request_body,
    &FASTCGI.intercept_errors,
    &FASTCGI.ignore_client_abort,
    &FASTCGI.next_upstream,
    &FASTCGI.next_upstream_tries,
    &FASTCGI.next_upstream_timeout,
    &FASTCGI.buffer_size,
    &FASTCGI.force_ranges,
    &FASTCGI.limit_rate,
    &FASTCGI.socket_keepalive,
    &FASTCGI.socket_rcvbuf,
    &FASTCGI.socket_sndbuf,
    &FASTCGI.send_lowat,
    &FASTCGI.store,
    &FASTCGI.store_access,
];

/// Those about buffers.
pub const BUFFER_DIRECTIVES: [&dyn Declared; 5] = BUFFERS.all();

/// What is said of prebuilt responses.
pub const SHORTCUTS: &[Told] = &[Told::Same("it is about what applications are told")];

/// `fastcgi_*` of a scope, but for `fastcgi_pass` itself.
pub(super) struct Settings {
    /// What other modules say, too.
    pub(super) passing: Arc<Passing>,
    pub(super) params: Params,
    pub(super) keep_connection: bool,
    pub(super) catch_stderr: Vec<Box<[u8]>>,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &PARAM,
        &KEEP_CONN,
        &CATCH_STDERR,
        &FASTCGI.hide_header,
        &FASTCGI.pass_header,
        &FASTCGI.ignore_headers,
        &FASTCGI.bind,
        &FASTCGI.connect_timeout,
        &FASTCGI.send_timeout,
        &FASTCGI.read_timeout,
        &FASTCGI.buffering,
        &FASTCGI.request_buffering,
        &FASTCGI.pass_request_headers,
        &FASTCGI.pass_request_body,
        &FASTCGI.intercept_errors,
        &FASTCGI.ignore_client_abort,
        &FASTCGI.next_upstream,
        &FASTCGI.next_upstream_tries,
        &FASTCGI.next_upstream_timeout,
        &FASTCGI.buffer_size,
        &BUFFERS.buffers,
        &BUFFERS.busy_buffers_size,
        &BUFFERS.temp_file_write_size,
        &BUFFERS.max_temp_file_size,
        &FASTCGI.force_ranges,
        &FASTCGI.limit_rate,
        &FASTCGI.socket_keepalive,
        &FASTCGI.socket_rcvbuf,
        &FASTCGI.socket_sndbuf,
        &FASTCGI.store,
        &FASTCGI.store_access,
        &BUFFERS.temp_path,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        let mut params = Vec::new();
        for (name, value, if_not_empty) in scope.written(&PARAM)?.unwrap_or_default() {
            params.push(Param {
                name: Bytes::copy_from_slice(&name.bytes),
                value: compiler.text(&Template::parse(&value)?),
                if_not_empty,
            });
        }
        let is_host = |param: &Param| param.name.eq_ignore_ascii_case(HOST.as_bytes());
        if !params.iter().any(is_host) {
            params.push(Param {
                name: Bytes::from_static(HOST.as_bytes()),
                value: compiler.text(&host_asked_for()),
                if_not_empty: true,
            });
        }
        let caught = scope.written(&CATCH_STDERR)?.unwrap_or_default();
        Ok(Settings {
            passing: Arc::new(Passing::compile(compiler, scope, &PASSING)?),
            params: Params::new(params),
            keep_connection: scope.get(&KEEP_CONN)?,
            catch_stderr: caught.into_iter().map(|word| word.bytes).collect(),
        })
    }
}

/// The parameter that each application gets, whether a line names it or not.
const HOST: &str = "HTTP_HOST";

/// Its value where none does.
fn host_asked_for() -> Template {
    let variables = ["host", "is_request_port", "request_port"];
    Template {
        parts: variables.map(|name| Part::Variable(name.into())).into(),
    }
}

/// `fastcgi_pass` of a location or an `if`.
pub(super) struct FastcgiPass {
    pub(super) settings: Arc<Settings>,
    pub(super) destination: Destination,
    /// Which scope it is of: another has connections of its own, unless the group says otherwise.
    pub(super) place: Bytes,
}

/// What answers where `fastcgi_pass` stands.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(word) = scope.own(&FASTCGI_PASS)? else {
        return Ok(None);
    };
    let settings: Arc<Settings> = compiler.feature(scope)?;
    compiler.directory(&settings.passing.buffers.limits.directory.path);
    let handler = FastcgiPass {
        settings,
        destination: Destination::compile(compiler, &word)?,
        place: scope.place(&["listen", "server_name"]).into(),
    };
    Ok(Some(Content {
        stays_in_limit_except: true,
        adds_slash: true,
        ..Content::of(handler)
    }))
}

/// Settings are checked wherever they stand, though only `fastcgi_pass` uses them; the variables need what says what they are.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>()?;
    let script = plan.feature::<Script>()?;
    if !script.is_plain() {
        plan.keep(&script_name::OF_PLAN, &script);
        plan.shortcut(Shortcut::Same);
    }
    Some(())
}

/// Looks after what stands in the whole configuration.
pub fn survey(compiler: &Compiler<'_>, _: ScopeRef<'_>) {
    temporary_paths::add(compiler, &TEMPORARY_PATH);
}

impl Feature for Script {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&INDEX, &SPLIT_PATH_INFO];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Script, Fault> {
        let split = match scope.written(&SPLIT_PATH_INFO)? {
            None => None,
            Some(word) => {
                let pattern = Regex::new(compiler, &word.bytes, false)?;
                if pattern.groups() != 3 {
                    let text = format!("pattern \"{}\" must have 2 captures", word.text());
                    return Err(Fault::at(&word, text).while_reading());
                }
                Some(pattern)
            }
        };
        Ok(Script {
            index: scope.written(&INDEX)?.unwrap_or_default(),
            split,
        })
    }
}

fn params(setter: &Setter<'_>) -> Result<Vec<(Word, Word, bool)>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        let (name, value, if_not_empty) = match line.args.as_slice() {
            [name, value] => (name, value, false),
            [name, value, flag] if &*flag.bytes == b"if_not_empty" => (name, value, true),
            [_, _, flag] => return Err(Fault::invalid_parameter(flag)),
            _ => continue, // the arity has been checked
        };
        Template::parse(value)?;
        all.push((name.clone(), value.clone(), if_not_empty));
    }
    Ok(all)
}
