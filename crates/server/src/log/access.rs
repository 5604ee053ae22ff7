//! `access_log`: one line per request, in a format of one's own, to any number of files.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html#access_log>. Not here yet, and a
//! clear error where written: `gzip=`, `syslog:`, and variables in the path (so
//! `open_log_file_cache` would have nothing to do).

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conf::parse;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, Word};

use super::error::with_line;
use super::format::{Format, Formats, LOG_FORMAT};
use super::{Buffering, LogFile, unwritten};
use crate::compile::{Compiler, Feature};
use crate::http::request::Request;
use crate::text::Text;

/// The `access_log` directive.
pub static ACCESS_LOG: Setting<Vec<Directive>> = Setting::new(
    "access_log",
    &[
        "path [format [buffer=size] [flush=time] [if=condition]]",
        "off",
    ],
    directives,
)
.contexts(
    Contexts::HTTP
        .or(Contexts::SERVER)
        .or(Contexts::LOCATION)
        .or(Contexts::LOCATION_IF)
        .or(Contexts::LIMIT_EXCEPT),
)
.arity(Arity::at_least(1))
.default("logs/access.log combined")
.inherit(Inherit::List)
.manual(
    "Where requests are logged and in which `log_format`. Written several times in a scope, each \
     line names one more log; `off` among them turns all of them off. `buffer` holds lines back \
     until that many bytes are there or the time of `flush` is over, per worker thread. With `if`, \
     requests for which the condition is empty or `0` are left out.",
);

/// One line of `access_log`.
#[derive(Clone, Debug)]
pub enum Directive {
    /// Nothing is logged in this scope.
    Off,
    /// One log.
    Log {
        /// The file; `None` is standard error.
        path: Option<PathBuf>,
        /// The path as written, for messages and their position.
        word: Word,
        /// Name of the format; `combined` unless written.
        format: Option<Word>,
        /// `buffer=` and `flush=`.
        buffering: Option<Buffering>,
        /// `if=`.
        condition: Option<Template>,
    },
}

fn directives(setter: &Setter<'_>) -> Result<Vec<Directive>, Fault> {
    setter
        .lines()
        .iter()
        .map(|line| directive(&line.args))
        .collect()
}

fn directive(words: &[Word]) -> Result<Directive, Fault> {
    let [file, rest @ ..] = words else {
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
    if file.bytes.starts_with(b"syslog:") {
        let text = format!("logging to \"{}\" is not supported", file.text());
        return Err(Fault::at(file, text));
    }
    if file.bytes.contains(&b'$') {
        let text = format!(
            "variables in \"access_log\" path \"{}\" are not supported",
            file.text()
        );
        return Err(Fault::at(file, text));
    }
    let (format, parameters) = match rest {
        [] => (None, rest),
        [format, parameters @ ..] => (Some(format.clone()), parameters),
    };
    let parameters = Parameters::parse(parameters)?;
    if parameters.flush.is_some() && parameters.size.is_none() {
        let text = format!("no buffer is defined for access_log \"{}\"", file.text());
        return Err(Fault::at(file, text));
    }
    let Parameters {
        size,
        flush,
        condition,
    } = parameters;
    Ok(Directive::Log {
        path: (!file.bytes.is_empty()).then(|| file.path().to_owned()),
        word: file.clone(),
        format,
        buffering: size.map(|size| Buffering { size, flush }),
        condition,
    })
}

#[derive(Default)]
struct Parameters {
    size: Option<usize>,
    flush: Option<Duration>,
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
            } else if bytes == b"gzip" || bytes.starts_with(b"gzip=") {
                return Err(Fault::at(
                    word,
                    "compressed access logs (\"gzip\") are not supported",
                ));
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
struct AccessLog {
    file: Arc<LogFile>,
    format: Arc<Format>,
    condition: Option<Text>,
}

/// The access logs of a scope; none where they are off.
pub struct AccessLogs {
    logs: Box<[AccessLog]>,
}

impl Feature for AccessLogs {
    // `log_format` stands in `http` only, so it makes no difference to who owns the logs; it is
    // here because the table of all directives is made of these lists.
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&ACCESS_LOG, &LOG_FORMAT];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<AccessLogs, Fault> {
        let formats = compiler.feature::<Formats>(scope)?;
        let mut logs = Vec::new();
        for directive in scope.get(&ACCESS_LOG)? {
            let Directive::Log {
                path,
                word,
                format,
                buffering,
                condition,
            } = directive
            else {
                return Ok(AccessLogs {
                    logs: Box::default(),
                });
            };
            let name = format
                .as_ref()
                .map_or(&b"combined"[..], |format| &format.bytes);
            let format = formats.find(name).ok_or_else(|| {
                let text = format!("unknown log format \"{}\"", lossy(name));
                Fault::at(format.as_ref().unwrap_or(&word), text)
            })?;
            let file = match path {
                Some(path) => compiler.log_file(&path),
                None => compiler.logs.borrow_mut().stderr(),
            };
            if let Some(buffering) = buffering
                && !file.set_buffering(buffering)
            {
                let text = format!(
                    "access_log \"{}\" already defined with conflicting parameters",
                    word.text()
                );
                return Err(Fault::at(&word, text));
            }
            let condition = condition.map(|template| compiler.text(&template));
            logs.push(AccessLog {
                file,
                format,
                condition,
            });
        }
        Ok(AccessLogs { logs: logs.into() })
    }
}

/// The log phase of a main request: appends its line to every access log of the plan in force.
pub fn write_access(request: &mut Request) {
    if request.plan.access_log.logs.is_empty() {
        return;
    }
    let access_log = Arc::clone(&request.plan.access_log);
    with_line(|line| {
        for AccessLog {
            file,
            format,
            condition,
        } in &access_log.logs
        {
            line.clear();
            if let Some(condition) = condition {
                condition.append_to(request, line);
                if matches!(line.as_slice(), b"" | b"0") {
                    continue;
                }
                line.clear();
            }
            format.append(request, line);
            line.push(b'\n');
            unwritten::append(file, line, file.buffering());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Directive, String> {
        let words: Vec<Word> = line
            .split(' ')
            .map(|word| Word {
                bytes: word.as_bytes().into(),
                quoted: false,
                position: Default::default(),
            })
            .collect();
        directive(&words).map_err(|fault| fault.message)
    }

    #[test]
    fn lines_of_the_directive() {
        assert!(matches!(parsed("off"), Ok(Directive::Off)));
        let Ok(Directive::Log {
            path,
            format,
            buffering,
            condition,
            ..
        }) = parsed("a.log")
        else {
            panic!("a path alone is a log");
        };
        assert_eq!(path.as_deref(), Some(std::path::Path::new("a.log")));
        assert!(format.is_none() && buffering.is_none() && condition.is_none());

        let full = parsed("a.log main buffer=32k flush=5m if=$loggable");
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
                flush
            })
        );
        let variable = conf::Part::Variable("loggable".into());
        assert_eq!(condition.unwrap().parts, [variable]);
    }

    /// Texts of nginx 1.31; what it has and we have not is a clear error.
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
            (
                "a.log main gzip",
                "compressed access logs (\"gzip\") are not supported",
            ),
            (
                "syslog:server=x",
                "logging to \"syslog:server=x\" is not supported",
            ),
            (
                "$host.log",
                "variables in \"access_log\" path \"$host.log\" are not supported",
            ),
        ] {
            assert_eq!(parsed(line).map(drop), Err(text.to_owned()), "{line}");
        }
    }
}
