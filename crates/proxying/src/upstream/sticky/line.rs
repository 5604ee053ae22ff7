//! A line of `sticky`, as it is written.

use std::time::Duration;

use bytes::Bytes;
use conf::{Fault, Setter, Template, Word, parse};
use framework::zone::SIZE_MIN;
use variables::name::variable_name;

/// How long a session is remembered unless the line says otherwise.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A line of `sticky`.
#[derive(Debug)]
pub(in crate::upstream) enum StickyLine {
    Cookie(CookieLine),
    /// The variables that may name a server.
    Route(Vec<String>),
    Learn(LearnLine),
}

#[derive(Debug, Default)]
pub(in crate::upstream) struct CookieLine {
    pub(super) name: Bytes,
    pub(super) domain: Option<Template>,
    pub(super) path: Option<Bytes>,
    pub(super) expires: Option<Expires>,
    pub(super) http_only: bool,
    pub(super) secure: bool,
    pub(super) same_site: Option<Template>,
}

/// When a cookie ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Expires {
    /// After so many seconds.
    After(u64),
    /// As late as every client understands.
    Max,
}

#[derive(Debug)]
pub(in crate::upstream) struct LearnLine {
    /// The variables that may hold the session of an answer.
    pub(super) create: Vec<String>,
    /// The variables that may hold the session of a request.
    pub(super) lookup: Vec<String>,
    pub(super) zone: String,
    pub(super) size: u64,
    pub(super) timeout: Duration,
    /// Sessions are learned when the head of the answer has come, and not when all of it has.
    pub(super) by_header: bool,
}

pub(super) fn read(setter: &Setter<'_>) -> Result<StickyLine, Fault> {
    let kind = setter.word()?;
    let rest = setter.args().get(1..).unwrap_or_default();
    match &*kind.bytes {
        b"cookie" => cookie(setter, rest).map(StickyLine::Cookie),
        b"route" => {
            let names = rest.iter().map(variable_name);
            names.collect::<Result<_, _>>().map(StickyLine::Route)
        }
        b"learn" => learn(setter, rest).map(StickyLine::Learn),
        _ => Err(unknown_parameter(kind)),
    }
}

fn unknown_parameter(word: &Word) -> Fault {
    Fault::at(word, format!("unknown parameter \"{}\"", word.text()))
}

fn cookie(setter: &Setter<'_>, words: &[Word]) -> Result<CookieLine, Fault> {
    let Some((name, parameters)) = words.split_first() else {
        return Err(Fault::new(
            "invalid number of arguments in \"sticky\" directive",
        ));
    };
    if name.bytes.is_empty() {
        return Err(setter.fault(name, "empty cookie name"));
    }
    let mut line = CookieLine {
        name: Bytes::copy_from_slice(&name.bytes),
        ..CookieLine::default()
    };
    for word in parameters {
        let parameter = &*word.bytes;
        let once = |name: &str, is_first: bool| {
            if is_first {
                Ok(())
            } else {
                Err(setter.fault(word, &format!("parameter \"{name}\" is duplicate")))
            }
        };
        let value_of = |name: &str, value: &[u8]| {
            if value.is_empty() {
                Err(setter.fault(word, &format!("no value for \"{name}\"")))
            } else {
                Ok(behind(word, value))
            }
        };
        if let Some(value) = parameter.strip_prefix(b"domain=") {
            once("domain", line.domain.is_none())?;
            line.domain = Some(Template::parse(&value_of("domain", value)?)?);
        } else if let Some(value) = parameter.strip_prefix(b"path=") {
            once("path", line.path.is_none())?;
            let value = value_of("path", value)?;
            line.path = Some(Bytes::copy_from_slice(&value.bytes));
        } else if let Some(value) = parameter.strip_prefix(b"expires=") {
            once("expires", line.expires.is_none())?;
            let invalid = || setter.fault(word, "invalid \"expires\" parameter value");
            line.expires = Some(match value {
                b"max" => Expires::Max,
                time => Expires::After(parse::time_seconds(time).ok_or_else(invalid)?),
            });
        } else if parameter == b"httponly" {
            once("httponly", !line.http_only)?;
            line.http_only = true;
        } else if parameter == b"secure" {
            once("secure", !line.secure)?;
            line.secure = true;
        } else if let Some(value) = parameter.strip_prefix(b"samesite=") {
            once("samesite", line.same_site.is_none())?;
            let template = Template::parse(&behind(word, value))?;
            let is_wrong = |value: &[u8]| !super::cookie::is_same_site(value);
            if value.is_empty() || template.as_literal().is_some_and(is_wrong) {
                return Err(setter.fault(word, "invalid \"samesite\" parameter value"));
            }
            line.same_site = Some(template);
        } else {
            return Err(unknown_parameter(word));
        }
    }
    Ok(line)
}

fn learn(setter: &Setter<'_>, words: &[Word]) -> Result<LearnLine, Fault> {
    let (mut create, mut lookup) = (Vec::new(), Vec::new());
    let (mut zone, mut timeout, mut by_header) = (None, None, false);
    for word in words {
        let parameter = &*word.bytes;
        if let Some(value) = parameter.strip_prefix(b"zone=") {
            if zone.is_some() {
                return Err(setter.fault(word, "duplicate zone"));
            }
            zone = Some(zone_of(value).map_err(|reason| setter.fault(word, reason))?);
        } else if let Some(time) = parameter.strip_prefix(b"timeout=") {
            if timeout.is_some() {
                return Err(setter.fault(word, "duplicate timeout"));
            }
            let millis = parse::time_milliseconds(time).filter(|millis| *millis > 0);
            let invalid = || setter.fault(word, "invalid timeout");
            timeout = Some(Duration::from_millis(millis.ok_or_else(invalid)?));
        } else if let Some(value) = parameter.strip_prefix(b"create=") {
            create.push(variable_in(setter, word, "create", value)?);
        } else if let Some(value) = parameter.strip_prefix(b"lookup=") {
            lookup.push(variable_in(setter, word, "lookup", value)?);
        } else if parameter == b"header" {
            by_header = true;
        } else {
            return Err(unknown_parameter(word));
        }
    }
    let missing = |name: &str| {
        let reason = format!("\"{name}\" parameter is not specified");
        Fault::new(format!("\"{}\" directive {reason}", setter.name()))
    };
    if lookup.is_empty() {
        return Err(missing("lookup"));
    }
    if create.is_empty() {
        return Err(missing("create"));
    }
    let (zone, size) = zone.ok_or_else(|| missing("zone"))?;
    Ok(LearnLine {
        create,
        lookup,
        zone,
        size,
        timeout: timeout.unwrap_or(TIMEOUT),
        by_header,
    })
}

fn zone_of(value: &[u8]) -> Result<(String, u64), &'static str> {
    let colon = memchr::memchr(b':', value).ok_or("zone size is not specified")?;
    let (name, size) = value.split_at(colon);
    if name.is_empty() {
        return Err("zone name is not specified");
    }
    let size = parse::size_of(size.get(1..).unwrap_or_default()).ok_or("invalid zone size")?;
    if size < SIZE_MIN {
        Err("zone is too small")
    } else {
        Ok((String::from_utf8_lossy(name).into_owned(), size))
    }
}

/// The variable that a parameter names.
fn variable_in(
    setter: &Setter<'_>,
    word: &Word,
    parameter: &str,
    value: &[u8],
) -> Result<String, Fault> {
    match value.first() {
        Some(b'$') => variable_name(&behind(word, value)),
        _ => {
            let reason = format!("missing variable in the \"{parameter}\" parameter");
            Err(setter.fault(word, &reason))
        }
    }
}

/// What of a word stands behind its `=`.
fn behind(word: &Word, value: &[u8]) -> Word {
    Word {
        bytes: value.into(),
        ..word.clone()
    }
}
