//! What lines of `sticky` say that name no protocol: `route` and `learn`.

use std::time::Duration;

use conf::{Fault, Setter, Word, parse};
use framework::zone::SIZE_MIN;
use variables::name::variable_name;

/// How long a session is remembered unless the line says otherwise.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What `learn` says.
#[derive(Debug)]
pub struct LearnLine {
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

/// What a protocol's sessions are learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedFrom {
    /// From answers: `create` names what holds a session in them.
    Answers,
    /// From connections to servers: a session is what is looked up, unless `create` names another.
    Connections,
}

/// The variables that `route` names.
///
/// # Errors
/// A word that is no variable.
pub fn route(words: &[Word]) -> Result<Vec<String>, Fault> {
    words.iter().map(variable_name).collect()
}

/// A word that no kind of `sticky` has.
pub fn unknown_parameter(word: &Word) -> Fault {
    Fault::at(word, format!("unknown parameter \"{}\"", word.text()))
}

/// Reads what stands behind `learn`.
///
/// # Errors
/// A word that is wrong, or one that is missing.
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
pub fn behind(word: &Word, value: &[u8]) -> Word {
    Word {
        bytes: value.into(),
        ..word.clone()
    }
}
