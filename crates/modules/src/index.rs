//! `index`: the files that are served for a directory.
//!
//! <https://nginx.org/en/docs/http/ngx_http_index_module.html>. If a file exists, the request is
//! redirected internally to its URI, which may be in another location. The directory itself is
//! checked only if the first file is missing.

use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template};
use framework::compile::{Compiler, Feature};
use framework::display::for_people;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::files::open_file_cache::{self, LookupError, OpenFileInfo};
use http::module::{ExplainedEffect, MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::{Request, Step, Text};
use http::variables::Compiling as _;
use proto::method::Method;

/// Declares the directive `index file …`.
pub static INDEX: Setting<Vec<Template>> = Setting::new("index", &["file ..."], files)
    .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
    .arity(Arity::at_least(1))
    .inherit(Inherit::List)
    .default("index.html")
    .manual(
        "Files that stand for a directory, the first that exists counts. The last may be an \
         absolute URI, which is redirected to without a look at the disk.",
    );

/// The files of a scope, in order.
#[derive(Debug)]
pub struct Index {
    files: Box<[Text]>,
}

impl Feature for Index {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&INDEX];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Index, Fault> {
        let files = scope.get(&INDEX)?;
        Ok(Index {
            files: files.iter().map(|file| compiler.text(file)).collect(),
        })
    }
}

fn files(setter: &Setter<'_>) -> Result<Vec<Template>, Fault> {
    let mut files = Vec::new();
    for line in setter.lines() {
        for (place, word) in (1..).zip(&line.args) {
            if word.bytes.starts_with(b"/") && place != line.args.len() {
                setter.warn(
                    word,
                    "only the last index in \"index\" directive should be absolute",
                );
            }
            if word.bytes.is_empty() {
                return Err(Fault::at(
                    word,
                    "index \"\" in \"index\" directive is invalid",
                ));
            }
            files.push(Template::parse(word)?);
        }
    }
    Ok(files)
}

impl Module for Index {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Files, &["index"]).listed(1).by_default()];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "no response is kept of a URI that ends with a slash",
    )];

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.file(self);
    }
}

impl PhaseHandler for Index {
    /// Handles a URI that ends with a slash: redirects to the index file.
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        self.find(request).then(|step| MaybeFuture::Now(Ok(step)))
    }

    fn explain_effect<'a>(&'a self, request: &'a mut Request) -> MaybeFuture<'a, ExplainedEffect> {
        MaybeFuture::wait(async move {
            let step = self.find(request).resolve().await;
            let text = match &step {
                Step::Redirect { uri, .. } => format!("to {}", for_people(uri)),
                Step::Finish(status) => {
                    format!("{}: status {status}", for_people(&request.filename()))
                }
                _ => return ExplainedEffect::Unknown,
            };
            ExplainedEffect::Does {
                part: "index",
                text,
                step,
            }
        })
    }
}

impl Index {
    fn find<'a>(&'a self, request: &'a mut Request) -> MaybeFuture<'a, Step> {
        if !request.uri.ends_with(b"/")
            || !matches!(request.method, Method::Get | Method::Head | Method::Post)
        {
            return MaybeFuture::Now(Step::Next);
        }
        look_for(request, &self.files, false)
    }
}

/// Looks for the files in order. The directory itself is checked only once: `directory_seen` tells
/// that this has been done.
fn look_for<'a>(
    request: &'a mut Request,
    files: &'a [Text],
    directory_seen: bool,
) -> MaybeFuture<'a, Step> {
    let Some((file, rest)) = files.split_first() else {
        return MaybeFuture::Now(Step::Next);
    };
    let mut name = Vec::new();
    file.append_to(request, &mut name);
    if name.first() == Some(&b'/') {
        return MaybeFuture::Now(Step::Redirect {
            uri: name,
            args: request.arguments(),
        });
    }
    let mut path = request.filename();
    let directory = path.len();
    path.extend_from_slice(&name);
    open_file_cache::test(request, &path).then(move |looked| {
        let Err(error) = looked else {
            let mut uri = request.uri.clone();
            uri.extend_from_slice(&name);
            return MaybeFuture::Now(Step::Redirect {
                uri,
                args: request.arguments(),
            });
        };
        match error.errno() {
            libc::ELOOP | libc::EMLINK => return MaybeFuture::Now(Step::Finish(403)),
            libc::ENOTDIR | libc::ENAMETOOLONG | libc::EACCES => {
                return MaybeFuture::Now(Step::Finish(refused(request, &path, &error)));
            }
            _ => {}
        }
        if directory_seen {
            return go_on(request, &path, &error, rest);
        }
        let looking = open_file_cache::test(request, directory_of(&path, directory));
        looking.then(
            move |looked| match check_directory(request, &path, directory, looked) {
                Some(status) => MaybeFuture::Now(Step::Finish(status)),
                None => go_on(request, &path, &error, rest),
            },
        )
    })
}

/// Continues with the rest of the files if a file does not exist; any other error ends with status
/// 500.
fn go_on<'a>(
    request: &'a mut Request,
    path: &[u8],
    error: &LookupError,
    rest: &'a [Text],
) -> MaybeFuture<'a, Step> {
    if error.errno() != libc::ENOENT {
        logs::error!(
            request,
            Crit,
            "{} \"{}\" failed {}",
            error.call,
            logs::Printable(path),
            logs::Errno(&error.error)
        );
        return MaybeFuture::Now(Step::Finish(500));
    }
    look_for(request, rest, true)
}

/// The directory of a path: its first `length` bytes, without the final slash unless it is the root
/// or an `alias` was written without one.
fn directory_of(file: &[u8], length: usize) -> &[u8] {
    match file.get(..length).unwrap_or(file) {
        [path @ .., b'/'] if !path.is_empty() => path,
        path => path,
    }
}

/// Checks the directory. Returns the status of the response if the directory is unusable; `None` if
/// the next file may be looked for. `file` is the path that was looked for; its first `length`
/// bytes are the directory. Log lines name the file, as nginx's do.
fn check_directory(
    request: &Request,
    file: &[u8],
    length: usize,
    looked: Result<OpenFileInfo, LookupError>,
) -> Option<u16> {
    let directory = directory_of(file, length);
    let error = match looked {
        Ok(looked) if looked.metadata.is_dir() => return None,
        Ok(_) => {
            logs::error!(
                request,
                Alert,
                "\"{}\" is not a directory",
                logs::Printable(file)
            );
            return Some(500);
        }
        Err(error) => error,
    };
    match error.errno() {
        // The directory is searchable, or opening the file would have failed with this error
        // before.
        libc::EACCES => None,
        libc::ELOOP | libc::EMLINK => Some(403),
        libc::ENOENT => Some(refused(request, file, &error)),
        _ => {
            logs::error!(
                request,
                Crit,
                "{} \"{}\" failed {}",
                error.call,
                logs::Printable(directory),
                logs::Errno(&error.error)
            );
            Some(500)
        }
    }
}

/// The status for a path that does not exist or is not accessible.
fn refused(request: &Request, path: &[u8], error: &LookupError) -> u16 {
    let (path, reason) = (logs::Printable(path), logs::Errno(&error.error));
    if error.errno() == libc::EACCES {
        logs::error!(request, Error, "\"{path}\" is forbidden {reason}");
        return 403;
    }
    if request.plan.core.log_not_found {
        logs::error!(request, Error, "\"{path}\" is not found {reason}");
    }
    404
}
