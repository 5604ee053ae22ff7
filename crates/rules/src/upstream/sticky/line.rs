//! The parameters of `sticky` that are common to all protocols: `route` and `learn`.

use std::time::Duration;

use conf::{Fault, Setter, Word, parse};
use framework::zone::SIZE_MIN;
use variables::name::variable_name;

/// The timeout of a session without `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The parameters of `learn`.
#[derive(Debug)]
pub struct LearnLine {
    /// The variables that may hold the session of a response.
    pub(super) create: Vec<String>,
    /// The variables that may hold the session of a request.
    pub(super) lookup: Vec<String>,
    pub(super) zone: String,
    pub(super) size: u64,
    pub(super) timeout: Duration,
    /// Whether sessions are learned when the head of the response comes, instead of at its end.
    pub(super) by_header: bool,
}

/// The event at which a protocol learns sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedFrom {
    /// Responses: the variables of `create` contain the session of a response.
    Answers,
    /// Connections to servers: without `create`, the variables of `lookup` contain the session.
    Connections,
}

/// The names of the variables in the arguments of `route`.
///
/// # Errors
/// A word that is not a variable.
pub fn route(words: &[Word]) -> Result<Vec<String>, Fault> {
    words.iter().map(variable_name).collect()
}

/// The error for an unknown parameter of `sticky`.
pub fn unknown_parameter(word: &Word) -> Fault {
    Fault::at(word, format!("unknown parameter \"{}\"", word.text()))
}

/// Parses the parameters of `learn`.
///
/// # Errors
/// An invalid or a missing parameter.
pub fn learn(
    setter: &Setter<'_>,
    words: &[Word],
    learned_from: LearnedFrom,
) -> Result<LearnLine, Fault> {
    let from_answers = learned_from == LearnedFrom::Answers;
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
        } else if parameter == b"header" && from_answers {
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
    if create.is_empty() && from_answers {
        return Err(missing("create"));
    }
    let (zone, size) = zone.ok_or_else(|| missing("zone"))?;
    if create.is_empty() {
        create.clone_from(&lookup);
    }
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

/// The variable in the value of a parameter.
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

/// A word with the position of `word` and the text `value`, which is the part of `word` after its
/// `=`.
pub fn behind(word: &Word, value: &[u8]) -> Word {
    Word {
        bytes: value.into(),
        ..word.clone()
    }
}
