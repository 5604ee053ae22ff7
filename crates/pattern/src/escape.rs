//! Parses escapes, inside and outside of classes: pcre2pattern(3), "Backslash".

use crate::ast::{Assertion, ByteSet};
use crate::beyond::IrregularFeature;
use crate::parser::Text;
use crate::pcre;

/// The meaning of an escape.
pub(crate) enum Escape {
    Byte(u8),
    /// One byte of a set.
    Set(ByteSet),
    Look(Assertion),
    ResetStart,
    /// A reference to the text of a group, with the group's number if it is given as one.
    BackReference(Option<u32>),
    Newline,
}

/// Parses an escape after its backslash. `groups` is the number of groups opened so far; `None`
/// within a class, where digits are never a back-reference and some letters have another meaning.
pub(crate) fn read(
    text: &mut Text<'_>,
    groups: Option<u32>,
    caseless: bool,
) -> Result<Escape, IrregularFeature> {
    let in_class = groups.is_none();
    let byte = text.next().ok_or(IrregularFeature::Refused)?;
    let escape = match byte {
        b'a' => Escape::Byte(0x07),
        b'e' => Escape::Byte(0x1b),
        b'f' => Escape::Byte(0x0c),
        b'n' => Escape::Byte(b'\n'),
        b'r' => Escape::Byte(b'\r'),
        b't' => Escape::Byte(b'\t'),
        b'c' => Escape::Byte(control(text)?),
        b'o' => Escape::Byte(octal_in_braces(text)?),
        b'x' => Escape::Byte(hexadecimal(text)?),
        b'0' => Escape::Byte(octal(0, text)?),
        b'1'..=b'9' => digits(byte, text, groups)?,
        b'b' if in_class => Escape::Byte(0x08),
        b'g' | b'k' if in_class => Escape::Byte(byte),
        b'd' | b'D' | b's' | b'S' | b'w' | b'W' | b'h' | b'H' | b'v' | b'V' => {
            Escape::Set(set(byte))
        }
        b'p' | b'P' => Escape::Set(property(byte, text, in_class, caseless)?),
        b'A' | b'B' | b'C' | b'G' | b'K' | b'N' | b'R' | b'X' | b'Z' | b'b' | b'g' | b'k'
        | b'z' => {
            if in_class {
                return Err(IrregularFeature::Refused);
            }
            outside_of_class(byte, text)?
        }
        _ if byte.is_ascii_alphanumeric() => return Err(IrregularFeature::Refused),
        _ => Escape::Byte(byte),
    };
    Ok(escape)
}

fn outside_of_class(letter: u8, text: &mut Text<'_>) -> Result<Escape, IrregularFeature> {
    Ok(match letter {
        b'A' | b'G' => Escape::Look(Assertion::Start),
        b'Z' => Escape::Look(Assertion::LastEnd),
        b'z' => Escape::Look(Assertion::End),
        b'b' => Escape::Look(Assertion::WordBoundary),
        b'B' => Escape::Look(Assertion::NotWordBoundary),
        b'C' => Escape::Set(ByteSet::ALL),
        b'N' => {
            // `\N{3}` is a repetition; with any other brace it is a named character, which PCRE2
            // does not support.
            let mut ahead = *text;
            if ahead.eat(b"{") && ahead.repeat()?.is_none() {
                return Err(IrregularFeature::Refused);
            }
            Escape::Set(ByteSet::one(b'\n').complement())
        }
        b'g' => {
            if matches!(text.peek(), Some(b'<' | b'\'')) {
                return Err(IrregularFeature::Recursion);
            }
            back_reference(text)?
        }
        b'k' => back_reference(text)?,
        b'K' => Escape::ResetStart,
        b'R' => Escape::Newline,
        _ => return Err(IrregularFeature::Unicode),
    })
}

/// The sets of `\d`, `\s`, `\w`, `\h`, `\v` and their complements in the C locale.
fn set(letter: u8) -> ByteSet {
    let set = match letter.to_ascii_lowercase() {
        b'd' => ByteSet::of(|byte| byte.is_ascii_digit()),
        b's' => ByteSet::of(is_space),
        b'w' => ByteSet::of(is_word),
        b'h' => ByteSet::of(|byte| matches!(byte, b'\t' | b' ' | 0xa0)),
        _ => ByteSet::of(|byte| matches!(byte, b'\n'..=b'\r' | 0x85)),
    };
    if letter.is_ascii_uppercase() {
        set.complement()
    } else {
        set
    }
}

/// White space of `\s` and `[:space:]`, including the vertical tab.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

/// Letters, digits and the underscore.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn control(text: &mut Text<'_>) -> Result<u8, IrregularFeature> {
    match text.next() {
        Some(byte @ 32..=126) => Ok(byte.to_ascii_uppercase() ^ 0x40),
        _ => Err(IrregularFeature::Refused),
    }
}

/// Parses an octal number or a back-reference: numbers up to 9, and up to the number of groups
/// opened so far, are back-references.
fn digits(first: u8, text: &mut Text<'_>, groups: Option<u32>) -> Result<Escape, IrregularFeature> {
    let value = u32::from(first - b'0');
    if let Some(groups) = groups {
        let mut ahead = *text;
        let mut number = value;
        while let Some(digit @ b'0'..=b'9') = ahead.peek() {
            number = number
                .saturating_mul(10)
                .saturating_add(u32::from(digit - b'0'));
            ahead.skip(1);
        }
        if number < 10 || first >= b'8' || number <= groups {
            *text = ahead;
            return Ok(Escape::BackReference(Some(number)));
        }
    }
    if first >= b'8' {
        return Ok(Escape::Byte(first));
    }
    octal(value, text).map(Escape::Byte)
}

/// Parses the number or the name in brackets after `\g` or `\k`.
fn back_reference(text: &mut Text<'_>) -> Result<Escape, IrregularFeature> {
    let end = match text.peek() {
        Some(b'{') => b'}',
        Some(b'<') => b'>',
        Some(b'\'') => b'\'',
        _ => {
            let is_relative = text.eat(b"-") || text.eat(b"+");
            let number = text.number().ok_or(IrregularFeature::BackReference)?;
            return Ok(Escape::BackReference((!is_relative).then_some(number)));
        }
    };
    text.skip(1);
    let mut inside = *text;
    while text.next().ok_or(IrregularFeature::BackReference)? != end {}
    let number = inside.number().filter(|_| inside.peek() == Some(end));
    Ok(Escape::BackReference(number))
}

/// Parses `\pL`, `\p{Lu}` or their complements. PCRE2 determines which bytes, as characters of
/// Latin-1, have the property.
fn property(
    letter: u8,
    text: &mut Text<'_>,
    in_class: bool,
    caseless: bool,
) -> Result<ByteSet, IrregularFeature> {
    let written = text.rest();
    let length = match text.next().ok_or(IrregularFeature::Refused)? {
        b'{' => {
            let end = written.iter().position(|byte| *byte == b'}');
            end.ok_or(IrregularFeature::Refused)? + 1
        }
        _ => 1,
    };
    text.skip(length - 1);
    let name = written.get(..length).unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| IrregularFeature::Refused)?;
    let mut pattern = format!("\\{}{name}", char::from(letter));
    if in_class {
        pattern = format!("[{pattern}]");
    }
    pcre::set(&pattern, caseless).ok_or(IrregularFeature::Refused)
}

/// Parses up to two more octal digits.
fn octal(first: u32, text: &mut Text<'_>) -> Result<u8, IrregularFeature> {
    let mut value = first;
    for _ in 0..2 {
        let Some(digit @ b'0'..=b'7') = text.peek() else {
            break;
        };
        value = value * 8 + u32::from(digit - b'0');
        text.skip(1);
    }
    u8::try_from(value).map_err(|_| IrregularFeature::Refused)
}

fn octal_in_braces(text: &mut Text<'_>) -> Result<u8, IrregularFeature> {
    if !text.eat(b"{") {
        return Err(IrregularFeature::Refused);
    }
    in_braces(text, 8)
}

/// Parses the number of `\x41`, `\x4` or `\x{41}`.
fn hexadecimal(text: &mut Text<'_>) -> Result<u8, IrregularFeature> {
    if text.eat(b"{") {
        return in_braces(text, 16);
    }
    let digit = |text: &mut Text<'_>| {
        let digit = char::from(text.peek()?).to_digit(16)?;
        text.skip(1);
        Some(digit)
    };
    let first = digit(text).ok_or(IrregularFeature::Refused)?;
    let value = digit(text).map_or(first, |second| first * 16 + second);
    u8::try_from(value).map_err(|_| IrregularFeature::Refused)
}

/// Parses digits with optional blanks up to a closing brace.
fn in_braces(text: &mut Text<'_>, radix: u32) -> Result<u8, IrregularFeature> {
    text.skip_blanks();
    let (mut value, mut count) = (0_u32, 0);
    while let Some(digit) = text
        .peek()
        .and_then(|byte| char::from(byte).to_digit(radix))
    {
        value = value.saturating_mul(radix).saturating_add(digit);
        count += 1;
        text.skip(1);
    }
    text.skip_blanks();
    if count == 0 || !text.eat(b"}") {
        return Err(IrregularFeature::Refused);
    }
    u8::try_from(value).map_err(|_| IrregularFeature::Refused)
}
