//! `index`: which file stands for a directory.
//!
//! <https://nginx.org/en/docs/http/ngx_http_index_module.html>. A file that exists makes an
//! internal redirect to its URI, which may lead to another location; the directory itself is
//! asked for only where the first file is missing.

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template};
use framework::compile::{Compiler, Feature};
use proto::method::Method;

use crate::http::modules::open_file_cache::{self, LookupError};
use crate::http::request::{Request, Step};
use crate::log;
use crate::text::Text;
use crate::variables::Compiling as _;

/// `index file …`
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

/// Content of a URI that ends with a slash: redirects to the file that stands for it.
pub async fn serve(request: &mut Request) -> Step {
    if !request.uri.ends_with(b"/") {
        return Step::Next;
    }
    if !matches!(request.method, Method::Get | Method::Head | Method::Post) {
        return Step::Next;
    }
    let settings = request.plan.index.clone();
    let mut directory_seen = false;
    let mut name = Vec::new();
    for file in &settings.files {
        name.clear();
        file.append_to(request, &mut name);
        if name.first() == Some(&b'/') {
            return Step::Redirect {
                uri: name,
                args: request.arguments(),
            };
        }
        let mut path = request.filename();
        let directory = path.len();
        path.extend_from_slice(&name);
        let Err(error) = open_file_cache::test(request, &path).said().await else {
            let mut uri = request.uri.clone();
            uri.extend_from_slice(&name);
            return Step::Redirect {
                uri,
                args: request.arguments(),
            };
        };
        match error.errno() {
            libc::ELOOP | libc::EMLINK => return Step::Finish(403),
            libc::ENOTDIR | libc::ENAMETOOLONG | libc::EACCES => {
                return Step::Finish(refused(request, &path, &error));
            }
            _ => {}
        }
        if !directory_seen {
            if let Some(status) = check_directory(request, &path, directory).await {
                return Step::Finish(status);
            }
            directory_seen = true;
        }
        if error.errno() != libc::ENOENT {
            log::error!(
                request,
                Crit,
                "{} \"{}\" failed {}",
                error.call,
                log::Printable(&path),
                log::Errno(&error.error)
            );
            return Step::Finish(500);
        }
    }
    Step::Next
}

/// What is wrong with the directory itself, as a status; `None` where it is there. `file` is the
/// path that was looked for, its first `length` bytes are the directory. Lines in the log name the
/// file, as nginx's do.
async fn check_directory(request: &mut Request, file: &[u8], length: usize) -> Option<u16> {
    let directory = file.get(..length).unwrap_or(file);
    // The slash at the end goes, unless it is the root or an `alias` was written without one.
    let directory = match directory {
        [path @ .., b'/'] if !path.is_empty() => path,
        path => path,
    };
    let error = match open_file_cache::test(request, directory).said().await {
        Ok(looked) if looked.metadata.is_dir() => return None,
        Ok(_) => {
            log::error!(
                request,
                Alert,
                "\"{}\" is not a directory",
                log::Printable(file)
            );
            return Some(500);
        }
        Err(error) => error,
    };
    match error.errno() {
        // It could be searched, or the file would have given this error before.
        libc::EACCES => None,
        libc::ELOOP | libc::EMLINK => Some(403),
        libc::ENOENT => Some(refused(request, file, &error)),
        _ => {
            log::error!(
                request,
                Crit,
                "{} \"{}\" failed {}",
                error.call,
                log::Printable(directory),
                log::Errno(&error.error)
            );
            Some(500)
        }
    }
}

/// The status for a path that is not there or not for us.
fn refused(request: &Request, path: &[u8], error: &LookupError) -> u16 {
    let (path, reason) = (log::Printable(path), log::Errno(&error.error));
    if error.errno() == libc::EACCES {
        log::error!(request, Error, "\"{path}\" is forbidden {reason}");
        return 403;
    }
    if request.plan.core.log_not_found {
        log::error!(request, Error, "\"{path}\" is not found {reason}");
    }
    404
}
