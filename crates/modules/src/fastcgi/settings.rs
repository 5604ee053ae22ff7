//! The directives `fastcgi_*`, and their values in a scope.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, count_of, joined, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::temporary_paths::{self, TemporaryPath};
use http::module::{Content, Recall, Shortcut, ShortcutDoc};
use http::request::Regex;
use proto::fastcgi::RequestWriter;

use super::SCHEMES;
use super::script_name::{self, Script};
use crate::applications::params::{self, ParamLine, Params};
use proxying::buffers;
use proxying::cache;
use proxying::destination::Destination;
use proxying::family::Family;
use proxying::settings::{self, PassSettings};

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

static PARAM: Setting<Vec<ParamLine>> = params::setting("fastcgi_");

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

/// The directives in common with the other proxying modules.
static FASTCGI: Family = Family::of_applications("fastcgi_");

/// The directives in common with the modules that buffer responses.
static BUFFERS: buffers::Family = buffers::Family::of("fastcgi_");

/// The directives in common with the modules whose responses may be cached.
static CACHE: cache::Family = cache::Family::of_applications("fastcgi_");

/// The directory of temporary files if no directive sets one.
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

/// The directives of these families, from which [`PassSettings`] are compiled.
const PASSING: settings::Declared = settings::Declared {
    family: &FASTCGI,
    buffers: &BUFFERS,
    cache: &CACHE,
    converts_head: false,
    temporary_path: &TEMPORARY_PATH,
    hidden: &HIDDEN,
    passes_authorization: |scope| params::passes_authorization(scope, &PARAM),
};

/// The directives of [`Settings`].
const ALL_OF_SETTINGS: &[&[&dyn Declared]] = &[
    &[&PARAM, &KEEP_CONN, &CATCH_STDERR],
    &FASTCGI.of_requests(),
    &BUFFERS.all(),
    &CACHE.of_scopes(),
];

/// All directives of the module.
const ALL: &[&[&dyn Declared]] = &[
    &[
        &FASTCGI_PASS,
        &CACHE.cache_path,
        &INDEX,
        &SPLIT_PATH_INFO,
        &FASTCGI.send_lowat,
    ],
    &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS),
];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] =
    &[ShortcutDoc::Same("it is about what applications are told")];

/// `fastcgi_*` of a scope, except for `fastcgi_pass`.
pub(super) struct Settings {
    /// The settings that all proxying modules have.
    pub(super) passing: Arc<PassSettings>,
    pub(super) params: Params,
    /// `fastcgi_keep_conn`.
    pub(super) keep_connection: bool,
    /// `fastcgi_catch_stderr`: texts that make a response invalid if the application writes them to
    /// standard error before the head.
    pub(super) catch_stderr: Vec<Box<[u8]>>,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        let caught = scope.written(&CATCH_STDERR)?.unwrap_or_default();
        Ok(Settings {
            passing: Arc::new(PassSettings::compile(compiler, scope, &PASSING)?),
            params: Params::compile::<RequestWriter<'_>>(compiler, scope, &PARAM)?,
            keep_connection: scope.get(&KEEP_CONN)?,
            catch_stderr: caught.into_iter().map(|word| word.bytes).collect(),
        })
    }
}

/// `fastcgi_pass` of a location or an `if`.
pub(super) struct FastcgiPass {
    pub(super) settings: Arc<Settings>,
    pub(super) destination: Destination,
    /// Identifies the scope. Different scopes do not share connections, unless the group allows it.
    pub(super) place: Bytes,
}

/// The content handler of a location in which `fastcgi_cache_purge` names a zone.
pub fn purge_content(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
) -> Result<Option<Content>, Fault> {
    CACHE.purge_content(compiler, scope)
}

/// The content handler of a scope with `fastcgi_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(word) = scope.own(&FASTCGI_PASS)? else {
        return Ok(None);
    };
    let settings: Arc<Settings> = compiler.feature(scope)?;
    compiler.require_directory(&settings.passing.buffers.limits.directory.path);
    let handler = Arc::new(FastcgiPass {
        settings,
        destination: Destination::compile(compiler, &word, &SCHEMES)?,
        place: scope.place(&["listen", "server_name"]).into(),
    });
    let recalls = handler.destination.is_fixed() && handler.settings.passing.may_recall();
    let recall = recalls.then(|| Arc::clone(&handler) as Arc<dyn Recall>);
    Ok(Some(Content {
        inherited_by_limit_except: true,
        adds_slash: true,
        recall,
        ..Content::shared(handler)
    }))
}

/// Checks the settings in every scope, though only `fastcgi_pass` uses them, and stores the
/// settings of the variables in the plan.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.feature::<Settings>()?;
    let script = plan.feature::<Script>()?;
    if !script.is_plain() {
        plan.keep(&script_name::OF_PLAN, &script);
        plan.shortcut(Shortcut::Same);
    }
    Some(())
}

/// Registers the directories of temporary files, which are checked in the whole configuration.
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
