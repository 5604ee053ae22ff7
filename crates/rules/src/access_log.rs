//! `access_log`: writes a line for each request or session to any number of logs, each in its
//! configured format.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html#access_log>. `logs::unwritten` and
//! `logs::syslog` write the lines.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::parse;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template,
    TemplatePart, Word,
};
use framework::compile::{Compiler, Feature};
use framework::places::FileAccess;
use logs::by_path::{self, Limits};
use logs::syslog::{self, Syslog};
use logs::{
    Buffering, Compiling as _, LogFile, OPEN_LOG_FILE_CACHE, SubjectSnapshot, unwritten, with_line,
    write,
};
use variables::{Compiling as _, Context, Text};

use crate::format::{Format, Formats, LOG_FORMAT};

/// Size of the buffer for `gzip` without `buffer=`, in bytes.
const GZIP_BUFFER_SIZE: usize = 64 * 1024;

/// Level of `gzip` without a number: the fastest.
const GZIP_LEVEL: u32 = 1;

/// A request or session, which is logged when it has ended.
pub trait Loggable: Context {
    /// The text of the format `combined`; `None` if the protocol does not have the format. Without
    /// it, nothing is logged by default, and every `access_log` must name its format.
    const COMBINED: Option<&'static str>;

    /// Whether a variable is always set and safe to write unescaped in every escape mode.
    fn is_plain(name: &str) -> bool;

    /// Whether a variable can be evaluated before there is a response. False for variables that the
    /// configuration defines, since their values may depend on a response.
    fn is_early(name: &str) -> bool;

    /// The root directory, which nginx requires to exist before it creates a log with variables in
    /// its path; `None` if the directory is known to exist.
    fn root(&mut self) -> Option<PathBuf>;
}

/// Declares the directive `access_log`.
pub static ACCESS_LOG: Setting<Vec<Directive>> = Setting::new(
    "access_log",
    &[
        "path [format [buffer=size] [gzip[=level]] [flush=time] [if=condition]]",
        "off",
    ],
    directives,
)
.contexts(
    Contexts::HTTP
        .or(Contexts::SERVER)
        .or(Contexts::LOCATION)
        .or(Contexts::LOCATION_IF)
        .or(Contexts::LIMIT_EXCEPT)
        .or(Contexts::STREAM)
        .or(Contexts::STREAM_SERVER)
        .or(Contexts::MEMCACHED)
        .or(Contexts::MEMCACHED_SERVER),
)
.arity(Arity::at_least(1))
.default("logs/access.log combined")
.inherit(Inherit::List)
.manual(
    "Where requests and sessions are logged and in which `log_format`: a file, or `syslog:` with parameters as \
     `error_log` has them. Written several times in a scope, each \
     line names one more log; `off` among them turns all of them off. `buffer` holds lines back \
     until that many bytes are there or the time of `flush` is over, per worker thread; `gzip` compresses what leaves together. With variables in the path \
     the file is opened for each line, unless `open_log_file_cache` keeps it open. With `if`, \
     requests for which the condition is empty or `0` are left out. In `stream` and `memcached` the \
     format must be named, and nothing is logged that no line names; there a line is written for \
     each session, when its connection ends.",
);

/// One line of `access_log`.
#[derive(Clone, Debug)]
pub enum Directive {
    /// Nothing is logged in this scope.
    Off,
    /// A log.
    Log {
        /// The destination of the lines.
        place: LogDestination,
        /// The argument with the path, for error messages.
        word: Word,
        /// Name of the format; `None` for `combined`.
        format: Option<Word>,
        /// `buffer=`, `flush=` and `gzip=`.
        buffering: Option<Buffering>,
        /// The condition of `if=`: nothing is logged if its value is empty or `0`.
        condition: Option<Template>,
        /// The [`conf::Line::sequence`] of the line.
        order: u32,
    },
}

/// The destination of an access log, as configured.
#[derive(Clone, Debug)]
pub enum LogDestination {
    /// Lines go to standard error.
    Stderr,
    /// A file; a relative path is relative to the prefix.
    File(PathBuf),
    /// A path with variables.
    Path(Template),
    /// Lines go to a syslog server.
    Syslog(syslog::SyslogTarget),
}

fn directives(setter: &Setter<'_>) -> Result<Vec<Directive>, Fault> {
    let read = |line: &&Line| {
        let is_defined = |name: &Word| is_defined(setter.scope(), name, line.sequence());
        directive(line, is_defined)
    };
    setter.lines().iter().map(read).collect()
}

fn directive(line: &Line, is_defined: impl Fn(&Word) -> bool) -> Result<Directive, Fault> {
    let [file, rest @ ..] = line.args.as_slice() else {
        return Err(Fault::new(
            "invalid number of arguments in \"access_log\" directive",
        ));
    };
    if &*file.bytes == b"off" {
        return match rest {
            [] => Ok(Directive::Off),
            [other, ..] => Err(Fault::invalid_parameter(other)),
        };
    }
    let place = match &*file.bytes {
        b"" => LogDestination::Stderr,
        name if name.starts_with(b"syslog:") => {
            LogDestination::Syslog(syslog::SyslogTarget::parse(file)?)
        }
        path if path.contains(&b'$') => LogDestination::Path(Template::parse(file)?),
        _ => LogDestination::File(file.path().to_owned()),
    };
    let (format, parameters) = match rest {
        [] => (None, rest),
        [format, parameters @ ..] => (Some(format), parameters),
    };
    // nginx looks up the format before it parses the parameters after it.
    log(line, file, place, format, parameters).map_err(|fault| {
        let unknown = format.filter(|name| !is_defined(name));
        unknown.map_or(fault, unknown_format)
    })
}

/// Whether a format with this name is built in, or defined before the line with the sequence number
/// `order`.
fn is_defined(scope: ScopeRef<'_>, name: &Word, order: u32) -> bool {
    let has_name = |word: &Word| word.bytes.eq_ignore_ascii_case(&name.bytes);
    let scopes = std::iter::successors(Some(scope), |scope| scope.parent());
    let mut lines = scopes.flat_map(|scope| scope.own_lines(&LOG_FORMAT.spec));
    name.bytes.eq_ignore_ascii_case(b"combined")
        || lines.any(|line| line.sequence() < order && has_name(line.argument(0)))
}

fn unknown_format(name: &Word) -> Fault {
    let text = name.text();
    let fault = Fault::at(name, format!("unknown log format \"{text}\""));
    fault.while_reading().of_missing(&text, &["log_format"])
}

fn log(
    line: &Line,
    file: &Word,
    place: LogDestination,
    format: Option<&Word>,
    parameters: &[Word],
) -> Result<Directive, Fault> {
    let parameters = Parameters::parse(parameters)?;
    if parameters.flush.is_some() && parameters.size.is_none() {
        let text = format!("no buffer is defined for access_log \"{}\"", file.text());
        return Err(Fault::at(file, text));
    }
    let Parameters {
        size,
        flush,
        gzip,
        condition,
    } = parameters;
    if size.is_some() && matches!(place, LogDestination::Path(_)) {
        let text = "buffered logs cannot have variables in name";
        return Err(Fault::at(file, text));
    }
    if size.is_some() && matches!(place, LogDestination::Syslog(_)) {
        return Err(Fault::at(file, "logs to syslog cannot be buffered"));
    }
    Ok(Directive::Log {
        place,
        word: file.clone(),
        format: format.cloned(),
        buffering: size.map(|size| Buffering { size, flush, gzip }),
        condition,
        order: line.sequence(),
    })
}

#[derive(Default)]
struct Parameters {
    size: Option<usize>,
    flush: Option<Duration>,
    gzip: Option<u32>,
    condition: Option<Template>,
}

impl Parameters {
    fn parse(words: &[Word]) -> Result<Parameters, Fault> {
        let mut parameters = Parameters::default();
        for word in words {
            let bytes = &*word.bytes;
            if let Some(size) = bytes.strip_prefix(b"buffer=") {
                parameters.size = Some(buffer_size(word, size)?);
            } else if let Some(time) = bytes.strip_prefix(b"flush=") {
                parameters.flush = Some(flush_time(word, time)?);
            } else if bytes == b"gzip" {
                parameters.compress(GZIP_LEVEL);
            } else if let Some(level) = bytes.strip_prefix(b"gzip=") {
                parameters.compress(gzip_level(word, level)?);
            } else if let Some(condition) = bytes.strip_prefix(b"if=") {
                let condition = Word {
                    bytes: condition.into(),
                    ..word.clone()
                };
                parameters.condition = Some(Template::parse(&condition)?);
            } else {
                return Err(Fault::invalid_parameter(word));
            }
        }
        Ok(parameters)
    }

    /// Turns on compression. Compression needs a buffer, which gets its default size if `buffer=`
    /// has not set one.
    fn compress(&mut self, level: u32) {
        self.size.get_or_insert(GZIP_BUFFER_SIZE);
        self.gzip = Some(level);
    }
}

fn gzip_level(word: &Word, level: &[u8]) -> Result<u32, Fault> {
    parse::number_of(level)
        .and_then(|level| u32::try_from(level).ok())
        .filter(|level| (1..=9).contains(level))
        .ok_or_else(|| {
            Fault::at(
                word,
                format!("invalid compression level \"{}\"", lossy(level)),
            )
        })
}

fn buffer_size(word: &Word, size: &[u8]) -> Result<usize, Fault> {
    parse::size_of(size)
        .and_then(|size| usize::try_from(size).ok())
        .filter(|size| *size > 0)
        .ok_or_else(|| Fault::at(word, format!("invalid buffer size \"{}\"", lossy(size))))
}

fn flush_time(word: &Word, time: &[u8]) -> Result<Duration, Fault> {
    parse::time_milliseconds(time)
        .filter(|time| *time > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| Fault::at(word, format!("invalid flush time \"{}\"", lossy(time))))
}

fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// One access log of a scope.
struct AccessLog<C> {
    target: Target<C>,
    format: Arc<Format<C>>,
    condition: Option<Text<C>>,
}

/// The destination of an access log, opened.
enum Target<C> {
    File(Arc<LogFile>),
    Path {
        path: Text<C>,
        cache: Option<Arc<Limits>>,
    },
    Syslog(Arc<Syslog>),
}

/// The access logs of a scope; none if they are off.
pub struct AccessLogs<C> {
    logs: Box<[AccessLog<C>]>,
    /// Whether the value of any format, path or condition may depend on the head of the response.
    reads_response: bool,
}

impl<C: Loggable> AccessLogs<C> {
    /// Whether nothing is logged.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Writes the line of a request or session to every log.
    pub fn write(&self, context: &mut C) {
        with_line(|line| {
            for log in &self.logs {
                line.clear();
                if let Some(condition) = &log.condition {
                    condition.append_to(context, line);
                    if matches!(line.as_slice(), b"" | b"0") {
                        continue;
                    }
                    line.clear();
                }
                match &log.target {
                    Target::File(file) => {
                        log.format.append(context, line);
                        line.push(b'\n');
                        unwritten::append(file, line, file.buffering());
                    }
                    Target::Path { path, cache } => {
                        log.format.append(context, line);
                        line.push(b'\n');
                        append_by_path(context, path, cache.as_ref(), line);
                    }
                    Target::Syslog(syslog) => {
                        log.format.append(context, line);
                        syslog.send_access(line);
                    }
                }
            }
        });
    }

    /// Whether the response's head must be kept until the request is logged, because a format, path
    /// or condition contains a variable that may depend on it.
    pub fn reads_response(&self) -> bool {
        self.reads_response
    }
}

impl<C: Loggable> Feature for AccessLogs<C> {
    // `log_format` cannot differ between scopes, so it does not affect inheritance. It is listed
    // because the table of all directives is built from these lists.
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&ACCESS_LOG, &OPEN_LOG_FILE_CACHE, &LOG_FORMAT];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<AccessLogs<C>, Fault> {
        let formats = compiler.feature::<Formats<C>>(scope)?;
        let cache = scope.get(&OPEN_LOG_FILE_CACHE)?.map(Arc::new);
        let mut logs = Vec::new();
        let mut reads_response = false;
        let lines = match C::COMBINED {
            Some(_) => scope.get(&ACCESS_LOG)?,
            None => scope.written(&ACCESS_LOG)?.unwrap_or_default(),
        };
        for directive in lines {
            let Directive::Log {
                place,
                word,
                format,
                buffering,
                condition,
                order,
            } = directive
            else {
                return Ok(AccessLogs {
                    logs: Box::default(),
                    reads_response: false,
                });
            };
            if format.is_none() && C::COMBINED.is_none() {
                return Err(Fault::at(&word, "log format is not specified").while_reading());
            }
            let name = format
                .as_ref()
                .map_or(&b"combined"[..], |format| &format.bytes);
            let unknown = || {
                let text = format!("unknown log format \"{}\"", lossy(name));
                Fault::at(format.as_ref().unwrap_or(&word), text).while_reading()
            };
            let found = formats.find(name);
            let (format, defined) =
                found.ok_or_else(|| unknown().of_missing(&lossy(name), &["log_format"]))?;
            if defined > order {
                return Err(unknown().with_hint("its log_format must stand before it"));
            }
            let target = match place {
                LogDestination::Stderr => Target::File(compiler.standard_error()),
                LogDestination::File(path) => Target::File(compiler.log_file(&path)),
                LogDestination::Path(path) => {
                    reads_response |= names_of_response::<C>(&path);
                    let by = format!("\"access_log\" in {}", word.position);
                    compiler.will_open_below(FileAccess::Append, &path.parts, &by);
                    Target::Path {
                        path: absolute(compiler, path),
                        cache: cache.clone(),
                    }
                }
                LogDestination::Syslog(written) => {
                    Target::Syslog(Arc::new(written.open(compiler.files)?))
                }
            };
            if let (Target::File(file), Some(buffering)) = (&target, buffering)
                && !file.set_buffering(buffering)
            {
                let text = format!(
                    "access_log \"{}\" already defined with conflicting parameters",
                    word.text()
                );
                return Err(Fault::at(&word, text));
            }
            reads_response |= format.reads_response();
            reads_response |= condition.as_ref().is_some_and(names_of_response::<C>);
            let condition = condition.map(|template| compiler.text(&template));
            logs.push(AccessLog {
                target,
                format,
                condition,
            });
        }
        Ok(AccessLogs {
            logs: logs.into(),
            reads_response,
        })
    }
}

/// Whether a value contains a variable that may depend on the response.
fn names_of_response<C: Loggable>(template: &Template) -> bool {
    template.parts.iter().any(|part| match part {
        TemplatePart::Variable(name) => !C::is_early(name),
        TemplatePart::Literal(_) | TemplatePart::Capture(_) => false,
    })
}

/// Compiles a path with variables; a relative path gets the prefix.
fn absolute<C: Loggable>(compiler: &Compiler<'_>, mut path: Template) -> Text<C> {
    let begins_with_slash =
        matches!(path.parts.first(), Some(TemplatePart::Literal(bytes)) if bytes.starts_with(b"/"));
    if !begins_with_slash {
        let prefix = compiler.path(Path::new(""));
        let prefix = prefix.as_os_str().as_bytes().into();
        path.parts.insert(0, TemplatePart::Literal(prefix));
    }
    compiler.text(&path)
}

/// Appends a line to the file at `path`, whose variables are evaluated for this context.
fn append_by_path<C: Loggable>(
    context: &mut C,
    path: &Text<C>,
    cache: Option<&Arc<Limits>>,
    line: &[u8],
) {
    let root = context.root();
    let mut name = Vec::new();
    path.append_to(context, &mut name);
    let (root, path) = (root.as_deref(), Path::new(OsStr::from_bytes(&name)));
    if let Err(failure) = by_path::append(root, path, cache, line, || SubjectSnapshot::of(context))
    {
        let (level, text) = failure.shown(root, path);
        write(context, level, format_args!("{text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Directive, String> {
        let word = |text: &str| Word {
            bytes: text.as_bytes().into(),
            quoted: false,
            position: Default::default(),
        };
        let mut read = Line::default();
        read.args = line.split(' ').map(word).collect();
        directive(&read, |_| true).map_err(|fault| fault.message)
    }

    #[test]
    fn lines_of_the_directive() {
        assert!(matches!(parsed("off"), Ok(Directive::Off)));
        let Ok(Directive::Log {
            place: LogDestination::File(path),
            format,
            buffering,
            condition,
            ..
        }) = parsed("a.log")
        else {
            panic!("a path alone is a log");
        };
        assert_eq!(path, Path::new("a.log"));
        assert!(format.is_none() && buffering.is_none() && condition.is_none());

        let full = parsed("a.log main gzip=9 buffer=32k flush=5m if=$loggable");
        let Ok(Directive::Log {
            format,
            buffering,
            condition,
            ..
        }) = full
        else {
            panic!("every parameter at once is a log");
        };
        assert_eq!(&*format.unwrap().bytes, b"main");
        let flush = Some(Duration::from_secs(300));
        assert_eq!(
            buffering,
            Some(Buffering {
                size: 32 * 1024,
                flush,
                gzip: Some(9),
            })
        );
        let variable = TemplatePart::Variable("loggable".into());
        assert_eq!(condition.unwrap().parts, [variable]);

        let Ok(Directive::Log { buffering, .. }) = parsed("a.log main gzip") else {
            panic!("gzip alone is enough");
        };
        let (size, flush) = (GZIP_BUFFER_SIZE, None);
        let gzip = Some(GZIP_LEVEL);
        assert_eq!(buffering, Some(Buffering { size, flush, gzip }));
    }

    /// Texts of nginx 1.31. Features of nginx that are not supported are a clear error.
    #[test]
    fn faults_in_nginx_words() {
        for (line, text) in [
            ("off main", "invalid parameter \"main\""),
            ("a.log main foo", "invalid parameter \"foo\""),
            ("a.log main buffer=0", "invalid buffer size \"0\""),
            ("a.log main buffer=1x", "invalid buffer size \"1x\""),
            ("a.log main buffer=1k flush=0", "invalid flush time \"0\""),
            (
                "a.log main flush=1s",
                "no buffer is defined for access_log \"a.log\"",
            ),
            ("a.log main if=$", "invalid variable name"),
            ("a.log main gzip=10", "invalid compression level \"10\""),
            ("a.log main gzip=", "invalid compression level \"\""),
            (
                "syslog:server=127.0.0.1 main buffer=1k",
                "logs to syslog cannot be buffered",
            ),
            ("syslog:tag=x", "no syslog server specified"),
            (
                "$host.log main buffer=1k",
                "buffered logs cannot have variables in name",
            ),
            (
                "${host.log",
                "the closing bracket in \"host\" variable is missing",
            ),
        ] {
            assert_eq!(parsed(line).map(drop), Err(text.to_owned()), "{line}");
        }
    }
}
