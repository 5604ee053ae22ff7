//! `try_files`: the first file that exists is the one to serve.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#try_files>. It only chooses the
//! URI: serving the file is the content phase's business. Not inherited.

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, Word};
use framework::compile::Compiler;

use crate::http::core::Alias;
use crate::http::modules::open_file_cache;
use crate::http::request::{Request, Step};
use crate::log;
use crate::text::Text;
use crate::variables::Compiling as _;

/// `try_files file … uri`, `try_files file … =code`
pub static TRY_FILES: Setting<Parsed> = Setting::new(
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

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[&TRY_FILES];

/// The words of a `try_files`, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    candidates: Vec<(Template, bool)>,
    otherwise: ParsedOtherwise,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ParsedOtherwise {
    Code(u16),
    Uri(Template),
}

/// A compiled `try_files`.
#[derive(Debug)]
pub struct TryFiles {
    candidates: Box<[Candidate]>,
    otherwise: Otherwise,
}

/// One name to look for.
#[derive(Debug)]
struct Candidate {
    name: Text,
    /// It was written with a slash at its end.
    is_directory: bool,
}

/// What happens where nothing exists.
#[derive(Debug)]
enum Otherwise {
    /// This status.
    Code(u16),
    /// An internal redirect, or a named location where it begins with `@`.
    Uri(Text),
}

impl TryFiles {
    /// What a scope itself writes.
    pub fn of_scope(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<TryFiles>, Fault> {
        let Some(parsed) = scope.own(&TRY_FILES)? else {
            return Ok(None);
        };
        let candidates = parsed
            .candidates
            .iter()
            .map(|(name, is_directory)| Candidate {
                name: compiler.text(name),
                is_directory: *is_directory,
            });
        Ok(Some(TryFiles {
            candidates: candidates.collect(),
            otherwise: match &parsed.otherwise {
                ParsedOtherwise::Code(code) => Otherwise::Code(*code),
                ParsedOtherwise::Uri(uri) => Otherwise::Uri(compiler.text(uri)),
            },
        }))
    }
}

fn parsed(setter: &Setter<'_>) -> Result<Parsed, Fault> {
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
            ParsedOtherwise::Code(code)
        }
        None => ParsedOtherwise::Uri(Template::parse(last)?),
    };
    Ok(Parsed {
        candidates,
        otherwise,
    })
}

/// The phase before content: chooses the URI, if the scope has a `try_files`.
pub async fn precontent(request: &mut Request) -> Step {
    let Some(settings) = request.plan.try_files.clone() else {
        return Step::Next;
    };
    let alias = request.plan.core.root.alias;
    if !request.has_filename() {
        return Step::Finish(500);
    }
    let mut path = request.document_root();
    let root = path.len();
    for candidate in &settings.candidates {
        path.truncate(root);
        append_name(&candidate.name, alias, request, &mut path);
        match open_file_cache::test(request, &path).await {
            Ok(looked) if looked.metadata.is_dir() == candidate.is_directory => {
                let name = path.get(root..).unwrap_or_default();
                choose(request, alias, name, candidate.is_directory);
                return Step::Next;
            }
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.errno(),
                    libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG
                ) => {}
            Err(error) => log::error!(
                request,
                Crit,
                "{} \"{}\" failed {}",
                error.call,
                log::Printable(&path),
                log::Errno(&error.error)
            ),
        }
    }
    let uri = match &settings.otherwise {
        Otherwise::Code(code) => return Step::Finish(*code),
        Otherwise::Uri(uri) => uri,
    };
    let mut name = Vec::new();
    append_name(uri, alias, request, &mut name);
    redirect(name)
}

/// Appends a name as it stands below the root. Where an `alias` replaces a prefix and a name with
/// variables begins with that prefix, it is left out: `$uri` then means the file of the URI. (The
/// last parameter is treated alike. That is a fault of nginx's which configurations rely on.)
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

/// Makes a name that exists the URI.
fn choose(request: &mut Request, alias: Option<Alias>, name: &[u8], is_directory: bool) {
    match alias {
        None => request.uri.clear(),
        Some(Alias::Prefix(length)) => request.uri.truncate(length),
        Some(Alias::Whole) if is_directory => return,
        Some(Alias::Whole) => {
            request.uri.clear();
            request.uri_below_alias = true;
        }
    }
    request.uri.extend_from_slice(name);
}

/// The step that the last parameter asks for.
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
    // They are there even without a question mark, as in nginx.
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
