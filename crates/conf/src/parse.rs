//! Parse functions that many directives share: flags, numbers, sizes, times, texts.
//!
//! Most parse the first argument of a [`Setter`]; the functions named `…_word` parse a given word.
//! Units and messages are nginx's.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::diagnostic::Fault;
use crate::line::Word;
use crate::setting::Setter;
use crate::template::Template;

/// The largest number that nginx accepts: that of a signed 64-bit integer.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// `on` or `off`, in any case.
///
/// # Errors
/// `invalid value "x" in "y" directive, it must be "on" or "off"`
pub fn flag(setter: &Setter<'_>) -> Result<bool, Fault> {
    let word = setter.word()?;
    match &*word.bytes.to_ascii_lowercase() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(Fault::at(
            word,
            format!(
                "invalid value \"{}\" in \"{}\" directive, it must be \"on\" or \"off\"",
                word.text(),
                setter.name()
            ),
        )),
    }
}

/// One of several words, in any case.
///
/// # Errors
/// `invalid value "x"`
pub fn enumeration<T: Clone>(setter: &Setter<'_>, values: &[(&str, T)]) -> Result<T, Fault> {
    let word = setter.word()?;
    let named = |(name, _): &&(&str, T)| name.as_bytes().eq_ignore_ascii_case(&word.bytes);
    match values.iter().find(named) {
        Some((_, value)) => Ok(value.clone()),
        None => {
            let names: Vec<String> = values
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect();
            let hint = format!("it may be {}", names.join(", "));
            Err(Fault::invalid_value(word).with_hint(hint))
        }
    }
}

/// A size in memory, in bytes: a number, with `k` or `m` in either case for the powers of 1024.
///
/// # Errors
/// `"x" directive invalid value`
pub fn size(setter: &Setter<'_>) -> Result<u64, Fault> {
    size_word(setter.word()?, setter)
}

/// [`size`] of one word.
///
/// # Errors
/// As [`size`].
pub fn size_word(word: &Word, setter: &Setter<'_>) -> Result<u64, Fault> {
    size_of(&word.bytes).ok_or_else(|| invalid(word, setter, "value"))
}

/// A size of a file or body, in bytes: in the syntax of [`size`], with the additional suffix `g`.
///
/// # Errors
/// `"x" directive invalid value`
pub fn offset(setter: &Setter<'_>) -> Result<u64, Fault> {
    offset_word(setter.word()?, setter)
}

/// [`offset`] of one word.
///
/// # Errors
/// As [`offset`].
pub fn offset_word(word: &Word, setter: &Setter<'_>) -> Result<u64, Fault> {
    offset_of(&word.bytes).ok_or_else(|| invalid(word, setter, "value"))
}

/// A time with a resolution of one millisecond: `ms`, `s`, `m`, `h`, `d`, `w`, combined in falling
/// order; a bare number is seconds.
///
/// # Errors
/// `"x" directive invalid value`
pub fn milliseconds(setter: &Setter<'_>) -> Result<Duration, Fault> {
    milliseconds_word(setter.word()?, setter)
}

/// [`milliseconds`] of one word.
///
/// # Errors
/// As [`milliseconds`].
pub fn milliseconds_word(word: &Word, setter: &Setter<'_>) -> Result<Duration, Fault> {
    let time = time_milliseconds(&word.bytes).ok_or_else(|| invalid(word, setter, "value"))?;
    Ok(Duration::from_millis(time))
}

/// A time in whole seconds: `s`, `m`, `h`, `d`, `w`, `M` (30 days), `y` (365 days), combined in
/// falling order.
///
/// # Errors
/// `"x" directive invalid value`
pub fn seconds(setter: &Setter<'_>) -> Result<Duration, Fault> {
    seconds_word(setter.word()?, setter)
}

/// [`seconds`] of one word.
///
/// # Errors
/// As [`seconds`].
pub fn seconds_word(word: &Word, setter: &Setter<'_>) -> Result<Duration, Fault> {
    let time = time_seconds(&word.bytes).ok_or_else(|| invalid(word, setter, "value"))?;
    Ok(Duration::from_secs(time))
}

/// A whole number without a sign, up to 2^63-1.
///
/// # Errors
/// `"x" directive invalid number`
pub fn number(setter: &Setter<'_>) -> Result<u64, Fault> {
    number_word(setter.word()?, setter)
}

/// [`number`] of one word.
///
/// # Errors
/// As [`number`].
pub fn number_word(word: &Word, setter: &Setter<'_>) -> Result<u64, Fault> {
    number_of(&word.bytes).ok_or_else(|| invalid(word, setter, "number"))
}

/// A number of buffers and the size of each, in bytes, neither of them 0: the two arguments of the
/// first line.
///
/// # Errors
/// `"x" directive invalid value`
pub fn buffers(setter: &Setter<'_>) -> Result<(u64, u64), Fault> {
    let line = setter.first();
    let (number, size) = (line.argument(0), line.argument(1));
    match (number_of(&number.bytes), size_of(&size.bytes)) {
        (Some(number @ 1..), Some(size @ 1..)) => Ok((number, size)),
        (Some(1..), _) => Err(invalid(size, setter, "value")),
        _ => Err(invalid(number, setter, "value")),
    }
}

/// The argument as text; invalid UTF-8 is replaced.
///
/// # Errors
/// None where the arity was checked.
pub fn text(setter: &Setter<'_>) -> Result<String, Fault> {
    setter.word().map(|word| word.text().into_owned())
}

/// The argument's bytes.
///
/// # Errors
/// None where the arity was checked.
pub fn bytes(setter: &Setter<'_>) -> Result<Bytes, Fault> {
    setter
        .word()
        .map(|word| Bytes::copy_from_slice(&word.bytes))
}

/// The argument as a path.
///
/// # Errors
/// None where the arity was checked.
pub fn path(setter: &Setter<'_>) -> Result<PathBuf, Fault> {
    setter.word().map(|word| word.path().to_owned())
}

/// Maximum number of characters of a file name that the levels of [`path_with_levels`] may use
/// together.
const LEVELS_MAX: u64 = 10;

/// A directory for files with generated names, and the lengths of the names of its subdirectories,
/// one argument for each level. The lengths are checked and discarded.
///
/// # Errors
/// `"x" directive invalid value`
pub fn path_with_levels(setter: &Setter<'_>) -> Result<PathBuf, Fault> {
    let words = setter.args().get(1..).unwrap_or_default();
    levels(words).map_err(|level| invalid(level, setter, "value"))?;
    path(setter)
}

/// The lengths of the names of the subdirectories, one for each level, in characters.
///
/// # Errors
/// The first word that is not a valid level, or that exceeds the limit.
pub fn levels(words: &[Word]) -> Result<Vec<u64>, &Word> {
    let mut total = 0_u64;
    let mut lengths = Vec::with_capacity(words.len());
    for word in words {
        let length = number_of(&word.bytes).filter(|length| *length > 0);
        let length = length.ok_or(word)?;
        total = total.saturating_add(length);
        if total > LEVELS_MAX {
            return Err(word);
        }
        lengths.push(length);
    }
    Ok(lengths)
}

/// Permissions of files: `user:`, `group:` or `all:` with `r` or `rw`, in any number. Without
/// `user:` the user may read and write.
///
/// # Errors
/// `invalid value "x"`.
pub fn access(setter: &Setter<'_>) -> Result<u32, Fault> {
    let mut access = 0;
    let mut user = 0o600;
    for word in setter.args() {
        let bytes: &[u8] = &word.bytes;
        let (shift, rights) = if let Some(rights) = bytes.strip_prefix(b"user:") {
            user = 0;
            (6, rights)
        } else if let Some(rights) = bytes.strip_prefix(b"group:") {
            (3, rights)
        } else if let Some(rights) = bytes.strip_prefix(b"all:") {
            (0, rights)
        } else {
            return Err(Fault::invalid_value(word));
        };
        let rights = match rights {
            b"rw" => 6,
            b"r" => 4,
            _ => return Err(Fault::invalid_value(word)),
        };
        access |= rights << shift;
    }
    Ok(access | user)
}

/// A value with variables.
///
/// # Errors
/// As [`Template::parse`].
pub fn template(setter: &Setter<'_>) -> Result<Template, Fault> {
    Template::parse(setter.word()?)
}

/// The parse function of directives without a value, and of blocks.
///
/// # Errors
/// None.
pub fn nothing(_: &Setter<'_>) -> Result<(), Fault> {
    Ok(())
}

/// A size in the syntax of [`size`].
#[must_use]
pub fn size_text(text: &str) -> Option<u64> {
    size_of(text.as_bytes())
}

/// A time in seconds in the syntax of [`seconds`].
#[must_use]
pub fn seconds_text(text: &str) -> Option<u64> {
    time_seconds(text.as_bytes())
}

/// A time in seconds in the syntax of [`seconds`].
#[must_use]
pub fn time_seconds(text: &[u8]) -> Option<u64> {
    time(text, SECONDS)
}

/// A time in milliseconds in the syntax of [`milliseconds`].
#[must_use]
pub fn time_milliseconds(text: &[u8]) -> Option<u64> {
    time(text, MILLISECONDS)
}

/// A size in the syntax of [`size`].
#[must_use]
pub fn size_of(text: &[u8]) -> Option<u64> {
    let (digits, shift) = match text {
        [digits @ .., b'k' | b'K'] => (digits, 10),
        [digits @ .., b'm' | b'M'] => (digits, 20),
        digits => (digits, 0),
    };
    scaled(digits, shift)
}

/// A size in the syntax of [`offset`].
#[must_use]
pub fn offset_of(text: &[u8]) -> Option<u64> {
    match text {
        [digits @ .., b'g' | b'G'] => scaled(digits, 30),
        text => size_of(text),
    }
}

fn scaled(digits: &[u8], shift: u32) -> Option<u64> {
    number_of(digits)
        .filter(|number| *number <= NUMBER_MAX >> shift)
        .map(|number| number << shift)
}

/// A number in the syntax of [`number`].
#[must_use]
pub fn number_of(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number
            .checked_mul(10)?
            .checked_add(digit)
            .filter(|number| *number <= NUMBER_MAX)
    })
}

/// Units of time with their lengths in the unit of the result. A unit may only follow longer units.
type Units = &'static [(&'static [u8], u64)];

const SECONDS: Units = &[
    (b"y", 365 * 24 * 60 * 60),
    (b"M", 30 * 24 * 60 * 60),
    (b"w", 7 * 24 * 60 * 60),
    (b"d", 24 * 60 * 60),
    (b"h", 60 * 60),
    (b"m", 60),
    (b"s", 1),
];

const MILLISECONDS: Units = &[
    (b"w", 7 * 24 * 60 * 60 * 1000),
    (b"d", 24 * 60 * 60 * 1000),
    (b"h", 60 * 60 * 1000),
    (b"m", 60 * 1000),
    (b"s", 1000),
    (b"ms", 1),
];

/// Adds up a time such as `1h 30m`. A number without a unit is seconds and comes last.
fn time(text: &[u8], units: Units) -> Option<u64> {
    let seconds = units
        .iter()
        .find(|(name, _)| name == b"s")
        .map_or(1, |(_, scale)| *scale);
    let mut units_left = units;
    let mut rest = text;
    let mut total = 0_u64;
    let mut valid = false;
    while !rest.is_empty() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest.split_at(digits);
        // As in nginx, a unit without a number counts as zero, if a number came before.
        let value = if number.is_empty() {
            0
        } else {
            number_of(number)?
        };
        valid |= !number.is_empty();
        let letters = unit_length(after);
        let (unit, after) = after.split_at(letters);
        let scale = match unit {
            b"" => {
                units_left = &[];
                seconds
            }
            // As in nginx, a space stands for seconds, and only a number without a unit may follow.
            b" " if units_left.iter().any(|(name, _)| *name == b"s") => {
                units_left = units_left.get(units_left.len()..)?;
                seconds
            }
            unit => {
                let at = units_left.iter().position(|(name, _)| *name == unit)?;
                let (_, scale) = units_left.get(at)?;
                units_left = units_left.get(at + 1..)?;
                *scale
            }
        };
        total = value
            .checked_mul(scale)
            .and_then(|value| total.checked_add(value))
            .filter(|total| *total <= NUMBER_MAX)?;
        let blanks = after.iter().take_while(|byte| **byte == b' ').count();
        rest = after.get(blanks..)?;
    }
    valid.then_some(total)
}

/// Length of the unit at the beginning of a text, in bytes.
fn unit_length(text: &[u8]) -> usize {
    match text {
        [] => 0,
        [b'm', b's', ..] => 2,
        _ => 1,
    }
}

fn invalid(word: &Word, setter: &Setter<'_>, what: &str) -> Fault {
    setter.fault(word, &format!("invalid {what}"))
}
