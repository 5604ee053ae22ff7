//! `try_files`: serves the first file that exists.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#try_files>. This module only chooses
//! the URI; the content phase serves the file. Not inherited.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, Word};
use framework::compile::{Compiler, Feature};
use framework::display::for_people;
use http::config::core::Alias;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::files::open_file_cache::{self, LookupError, OpenFileInfo};
use http::module::{ExplainedEffect, MaybeFuture, Module, PhaseHandler};
use http::request::{Request, Step, Text};
use http::variables::Compiling as _;

/// `try_files file … uri`, `try_files file … =code`
pub static TRY_FILES: Setting<TryFilesLine> = Setting::new(
    "try_files",
    &["file ... uri", "file ... =code"],
    parsed,
)
.contexts(Contexts::SERVER.or(Contexts::LOCATION))
.arity(Arity::at_least(2))
.inherit(Inherit::Never)
.manual(
    "Looks for files in order, below `root` or `alias`, and serves the first that exists; a \
         name that ends with a slash stands for a directory. Where none exists, the last \
         parameter is the URI of an internal redirect, a named location, or a status code.",
);

/// The parsed words of a `try_files`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TryFilesLine {
    /// The files to look for, each with whether its name ends with a slash, so that only a
    /// directory matches.
    candidates: Vec<(Template, bool)>,
    /// What is done if no candidate exists: the last word.
    otherwise: ParsedFallback,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ParsedFallback {
    Code(u16),
    Uri(Template),
}

/// The `try_files` of a scope, which is not inherited.
#[derive(Debug)]
pub struct TryFiles {
    candidates: Box<[Candidate]>,
    /// What is done if no candidate exists.
    otherwise: Fallback,
}

/// A file or directory to look for.
#[derive(Debug)]
struct Candidate {
    name: Text,
    /// Whether the name ends with a slash, so that only a directory matches.
    is_directory: bool,
}

/// The fallback if nothing exists.
#[derive(Debug)]
enum Fallback {
    Code(u16),
    /// An internal redirect, or a named location if the text begins with `@`.
    Uri(Text),
}

impl Feature for TryFiles {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&TRY_FILES];

    /// A scope without `try_files` does not inherit the enclosing scope's.
    fn owner(scope: ScopeRef<'_>) -> ScopeRef<'_> {
        if scope.writes(Self::DIRECTIVES) {
            scope
        } else {
            scope.tree().root()
        }
    }

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<TryFiles, Fault> {
        let Some(parsed) = scope.own(&TRY_FILES)? else {
            return Ok(TryFiles {
                candidates: Box::default(),
                otherwise: Fallback::Code(404),
            });
        };
        let candidates = parsed
            .candidates
            .iter()
            .map(|(name, is_directory)| Candidate {
                name: compiler.text(name),
                is_directory: *is_directory,
            });
        Ok(TryFiles {
            candidates: candidates.collect(),
            otherwise: match &parsed.otherwise {
                ParsedFallback::Code(code) => Fallback::Code(*code),
                ParsedFallback::Uri(uri) => Fallback::Uri(compiler.text(uri)),
            },
        })
    }
}

impl Module for TryFiles {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::BeforeContent, &["try_files"]).listed(1)];

    fn is_off(&self) -> bool {
        self.candidates.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.precontent(self);
    }
}

fn parsed(setter: &Setter<'_>) -> Result<TryFilesLine, Fault> {
    let (last, names) = (setter.word()?, setter.args());
    let (last, names) = names.split_last().unwrap_or((last, &[]));
    let mut candidates = Vec::with_capacity(names.len());
    for word in names {
        let (name, is_directory) = match word.bytes.strip_suffix(b"/") {
            Some(name) => (name, true),
            None => (&*word.bytes, false),
        };
        let template = Template::parse(&Word {
            bytes: name.into(),
            ..word.clone()
        })?;
        candidates.push((template, is_directory));
    }
    let otherwise = match last.bytes.strip_prefix(b"=") {
        Some(_) => {
            let code = last.text().get(1..).and_then(|digits| digits.parse().ok());
            let code = code
                .filter(|code: &u16| *code <= 999)
                .ok_or_else(|| Fault::at(last, format!("invalid code \"{}\"", last.text())))?;
            ParsedFallback::Code(code)
        }
        None => ParsedFallback::Uri(Template::parse(last)?),
    };
    Ok(TryFilesLine {
        candidates,
        otherwise,
    })
}

impl PhaseHandler for TryFiles {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        self.begin(request).then(|step| MaybeFuture::Now(Ok(step)))
    }

    fn explain_effect<'a>(&'a self, request: &'a mut Request) -> MaybeFuture<'a, ExplainedEffect> {
        MaybeFuture::wait(async move {
            let (step, looked_for) = self.look(request).await;
            let none = format!("there is no {}", looked_for.join(", no "));
            let text = match &step {
                Step::Next => match looked_for.split_last() {
                    Some((path, [])) => format!("{path} is there"),
                    Some((path, before)) => {
                        format!("there is no {}; {path} is there", before.join(", no "))
                    }
                    None => "done".to_owned(),
                },
                Step::Redirect { uri, .. } => format!("{none}: to {}", for_people(uri)),
                Step::Named(name) => format!("{none}: to {}", for_people(name)),
                Step::Finish(status) => format!("{none}: status {status}"),
                _ => "done".to_owned(),
            };
            ExplainedEffect::Does {
                part: "try_files",
                text,
                step,
            }
        })
    }
}

impl TryFiles {
    /// Looks for the candidates in order, below the root of the URI.
    fn begin<'a>(&'a self, request: &'a mut Request) -> MaybeFuture<'a, Step> {
        if !request.has_filename() {
            return MaybeFuture::Now(Step::Finish(500));
        }
        let path = request.document_root();
        let root = path.len();
        self.go_on(request, path, root, &self.candidates)
    }

    /// Runs the lookup, and also returns the paths that it has looked up.
    async fn look(&self, request: &mut Request) -> (Step, Vec<String>) {
        let mut looked_for = Vec::new();
        if !request.has_filename() {
            return (Step::Finish(500), looked_for);
        }
        let alias = request.plan.core.root.alias;
        let mut path = request.document_root();
        let root = path.len();
        for candidate in &self.candidates {
            path.truncate(root);
            append_name(&candidate.name, alias, request, &mut path);
            let slash = if candidate.is_directory { "/" } else { "" };
            looked_for.push(format!("{}{slash}", for_people(&path)));
            let looked = open_file_cache::test(request, &path).resolve().await;
            if is_there(request, &path, candidate, looked) {
                let name = path.get(root..).unwrap_or_default();
                choose(request, alias, name, candidate.is_directory);
                return (Step::Next, looked_for);
            }
        }
        (self.otherwise(request, alias), looked_for)
    }

    /// Looks for the rest of the candidates. `path` begins with the root, which is `root` bytes
    /// long.
    fn go_on<'a>(
        &'a self,
        request: &'a mut Request,
        mut path: Vec<u8>,
        root: usize,
        candidates: &'a [Candidate],
    ) -> MaybeFuture<'a, Step> {
        let alias = request.plan.core.root.alias;
        let Some((candidate, rest)) = candidates.split_first() else {
            return MaybeFuture::Now(self.otherwise(request, alias));
        };
        path.truncate(root);
        append_name(&candidate.name, alias, request, &mut path);
        open_file_cache::test(request, &path).then(move |looked| {
            if is_there(request, &path, candidate, looked) {
                let name = path.get(root..).unwrap_or_default();
                choose(request, alias, name, candidate.is_directory);
                return MaybeFuture::Now(Step::Next);
            }
            self.go_on(request, path, root, rest)
        })
    }

    /// The fallback if nothing exists.
    fn otherwise(&self, request: &mut Request, alias: Option<Alias>) -> Step {
        let uri = match &self.otherwise {
            Fallback::Code(code) => return Step::Finish(*code),
            Fallback::Uri(uri) => uri,
        };
        let mut name = Vec::new();
        append_name(uri, alias, request, &mut name);
        redirect(name)
    }
}

/// Whether the result of a lookup is of the kind that a candidate requires.
fn is_there(
    request: &Request,
    path: &[u8],
    candidate: &Candidate,
    looked: Result<OpenFileInfo, LookupError>,
) -> bool {
    match looked {
        Ok(looked) => return looked.metadata.is_dir() == candidate.is_directory,
        Err(error)
            if matches!(
                error.errno(),
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG
            ) => {}
        Err(error) => logs::error!(
            request,
            Crit,
            "{} \"{}\" failed {}",
            error.call,
            logs::Printable(path),
            logs::Errno(&error.error)
        ),
    }
    false
}

/// Appends a candidate's name to the root. If an `alias` replaces a prefix and a name with
/// variables begins with that prefix, the prefix is omitted: `$uri` then means the file of the URI.
/// (The fallback's name is treated in the same way: a bug of nginx on which configurations rely.)
fn append_name(name: &Text, alias: Option<Alias>, request: &mut Request, out: &mut Vec<u8>) {
    let start = out.len();
    name.append_to(request, out);
    let (Some(Alias::Prefix(length)), None) = (alias, name.literal()) else {
        return;
    };
    let prefix = request.uri.get(..length);
    if prefix.is_some_and(|prefix| {
        out.get(start..)
            .is_some_and(|name| name.starts_with(prefix))
    }) {
        out.drain(start..start + length);
    }
}

/// Makes an existing name the URI.
fn choose(request: &mut Request, alias: Option<Alias>, name: &[u8], is_directory: bool) {
    match alias {
        None => request.uri.clear(),
        Some(Alias::Prefix(length)) => request.uri.truncate(length),
        Some(Alias::Whole) if is_directory => return,
        Some(Alias::Whole) => {
            request.uri.clear();
            request.uri_state.below_alias = true;
        }
    }
    request.uri.extend_from_slice(name);
}

/// The step of the fallback.
fn redirect(mut uri: Vec<u8>) -> Step {
    if uri.first() == Some(&b'@') {
        return Step::Named(Bytes::from(uri));
    }
    let args = match memchr::memchr(b'?', &uri) {
        Some(mark) => {
            let args = uri.get(mark + 1..).unwrap_or_default().to_vec();
            uri.truncate(mark);
            args
        }
        None => Vec::new(),
    };
    // The arguments are set even without a question mark, as in nginx.
    Step::Redirect {
        uri,
        args: Some(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parameter_is_a_uri_or_a_name() {
        let step = redirect(b"/index.php?q=1?2".to_vec());
        assert!(
            matches!(step, Step::Redirect { uri, args } if uri == b"/index.php" && args.as_deref() == Some(b"q=1?2"))
        );
        let step = redirect(b"/x".to_vec());
        assert!(
            matches!(step, Step::Redirect { uri, args: Some(args) } if uri == b"/x" && args.is_empty())
        );
        assert!(matches!(redirect(b"@php?x".to_vec()), Step::Named(name) if name == "@php?x"));
    }
}
