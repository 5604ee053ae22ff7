//! The line of `sticky`.

use bytes::Bytes;
use conf::{Fault, Setter, Template, Word, parse};
use rules::upstream::sticky::line::{self, LearnLine, LearnedFrom, behind, unknown_parameter};

/// A line of `sticky`.
#[derive(Debug)]
pub(in crate::upstream) enum StickyLine {
    Cookie(CookieLine),
    /// The variables from which the server of a request is read.
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

/// When a cookie expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Expires {
    /// After this many seconds.
    After(u64),
    /// At the latest time that all clients support.
    Max,
}

pub(super) fn read(setter: &Setter<'_>) -> Result<StickyLine, Fault> {
    let kind = setter.word()?;
    let rest = setter.args().get(1..).unwrap_or_default();
    match &*kind.bytes {
        b"cookie" => cookie(setter, rest).map(StickyLine::Cookie),
        b"route" => line::route(rest).map(StickyLine::Route),
        b"learn" => line::learn(setter, rest, LearnedFrom::Answers).map(StickyLine::Learn),
        _ => Err(unknown_parameter(kind)),
    }
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
