//! Parses `[...]`: pcre2pattern(3), "Square brackets and character classes" and "POSIX character
//! classes".

use crate::ast::ByteSet;
use crate::beyond::IrregularFeature;
use crate::escape::{self, Escape, is_space, is_word};
use crate::parser::{Options, Text};

/// The meaning of a hyphen at the current position of a class.
#[derive(Clone, Copy)]
enum Hyphen {
    /// A literal hyphen: at the start, and after a range.
    Literal,
    /// The hyphen of a range that begins with this byte.
    Range(u8),
    /// An error unless the class ends after the hyphen: after `\d` or `[:digit:]`.
    Forbidden,
    /// A range began with this byte, and its hyphen has been parsed.
    Begun(u8),
    /// A hyphen after `\d` has been parsed.
    ForbiddenBegun,
}

/// Parses a class after its opening bracket.
pub(crate) fn parse(text: &mut Text<'_>, options: Options) -> Result<ByteSet, IrregularFeature> {
    if text.rest().starts_with(b"[:<:]]") || text.rest().starts_with(b"[:>:]]") {
        return Err(IrregularFeature::LookAround);
    }
    if matches!(text.peek(), Some(b':' | b'.' | b'=')) && posix_name(text.rest()).is_some() {
        return Err(IrregularFeature::Refused);
    }
    let mut class = Class {
        caseless: options.has(Options::CASELESS),
        set: ByteSet::NONE,
        hyphen: Hyphen::Literal,
    };
    let skips_blanks = options.has(Options::EXTENDED_MORE);
    let negated = begin(text, skips_blanks);
    if text.eat(b"]") {
        class.byte(b']')?;
    }
    let mut quoted = false;
    loop {
        if quoted {
            if text.eat(b"\\E") {
                quoted = false;
            } else {
                class.byte(text.next().ok_or(IrregularFeature::Refused)?)?;
            }
            continue;
        }
        match text.next().ok_or(IrregularFeature::Refused)? {
            b' ' | b'\t' if skips_blanks => {}
            b'[' => match posix_name(text.rest()) {
                Some(_) if text.peek() != Some(b':') => return Err(IrregularFeature::Refused),
                Some(name) => {
                    class.set(posix(name, class.caseless)?)?;
                    text.skip(name.len() + 3);
                }
                None => class.byte(b'[')?,
            },
            b']' => break,
            b'\\' if text.eat(b"Q") => quoted = true,
            b'\\' if text.eat(b"E") => {}
            b'\\' => match escape::read(text, None, class.caseless)? {
                Escape::Byte(byte) => class.byte(byte)?,
                Escape::Set(set) => class.set(set)?,
                _ => return Err(IrregularFeature::Refused),
            },
            b'-' => class.hyphen()?,
            byte => class.byte(byte)?,
        }
    }
    let set = class.finish();
    Ok(if negated { set.complement() } else { set })
}

/// Parses up to the first member of the class; returns whether the class is negated.
fn begin(text: &mut Text<'_>, skips_blanks: bool) -> bool {
    let mut negated = false;
    loop {
        if text.eat(b"\\E") || text.eat(b"\\Q\\E") {
        } else if skips_blanks && matches!(text.peek(), Some(b' ' | b'\t')) {
            text.skip_blanks();
        } else if !negated && text.eat(b"^") {
            negated = true;
        } else {
            return negated;
        }
    }
}

/// A class that is being parsed.
struct Class {
    caseless: bool,
    set: ByteSet,
    hyphen: Hyphen,
}

impl Class {
    fn insert(&mut self, first: u8, last: u8) {
        let set = ByteSet::of(|byte| (first..=last).contains(&byte));
        self.set
            .add(if self.caseless { set.caseless() } else { set });
    }

    /// Adds a byte, or ends a range with it.
    fn byte(&mut self, byte: u8) -> Result<(), IrregularFeature> {
        self.hyphen = match self.hyphen {
            Hyphen::Begun(first) if first > byte => return Err(IrregularFeature::Refused),
            Hyphen::ForbiddenBegun => return Err(IrregularFeature::Refused),
            Hyphen::Begun(first) => {
                self.insert(first, byte);
                Hyphen::Literal
            }
            Hyphen::Literal | Hyphen::Range(_) | Hyphen::Forbidden => {
                self.insert(byte, byte);
                Hyphen::Range(byte)
            }
        };
        Ok(())
    }

    /// Parses an unescaped hyphen.
    fn hyphen(&mut self) -> Result<(), IrregularFeature> {
        match self.hyphen {
            Hyphen::Range(first) => self.hyphen = Hyphen::Begun(first),
            Hyphen::Forbidden => {
                self.insert(b'-', b'-');
                self.hyphen = Hyphen::ForbiddenBegun;
            }
            _ => self.byte(b'-')?,
        }
        Ok(())
    }

    /// Adds the set of an escape or of a POSIX class.
    fn set(&mut self, set: ByteSet) -> Result<(), IrregularFeature> {
        if matches!(self.hyphen, Hyphen::Begun(_) | Hyphen::ForbiddenBegun) {
            return Err(IrregularFeature::Refused);
        }
        self.set.add(set);
        self.hyphen = Hyphen::Forbidden;
        Ok(())
    }

    fn finish(mut self) -> ByteSet {
        if let Hyphen::Begun(_) = self.hyphen {
            self.insert(b'-', b'-');
        }
        self.set
    }
}

/// The name between `[:` and `:]`, `[.` and `.]` or `[=` and `=]`; `rest` follows the first
/// bracket. `None` if there is no such name, in which case the bracket is a literal.
fn posix_name(rest: &[u8]) -> Option<&[u8]> {
    let (&kind, behind) = rest.split_first()?;
    if !matches!(kind, b':' | b'.' | b'=') {
        return None;
    }
    let mut at = 0;
    while let &[first, second, ..] = behind.get(at..)? {
        if first == b'\\' && matches!(second, b']' | b'\\') {
            at += 1;
        } else if (first == b'[' && second == kind) || first == b']' {
            return None;
        } else if first == kind && second == b']' {
            return behind.get(..at);
        }
        at += 1;
    }
    None
}

/// The set of a POSIX class such as `alpha` or `^alpha`.
fn posix(name: &[u8], caseless: bool) -> Result<ByteSet, IrregularFeature> {
    let (name, negated) = match name.strip_prefix(b"^") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let set = match name {
        b"lower" | b"upper" if caseless => ByteSet::of(|byte| byte.is_ascii_alphabetic()),
        b"alpha" => ByteSet::of(|byte| byte.is_ascii_alphabetic()),
        b"lower" => ByteSet::of(|byte| byte.is_ascii_lowercase()),
        b"upper" => ByteSet::of(|byte| byte.is_ascii_uppercase()),
        b"alnum" => ByteSet::of(|byte| byte.is_ascii_alphanumeric()),
        b"ascii" => ByteSet::of(|byte| byte.is_ascii()),
        b"blank" => ByteSet::of(|byte| matches!(byte, b' ' | b'\t')),
        b"cntrl" => ByteSet::of(|byte| byte.is_ascii_control()),
        b"digit" => ByteSet::of(|byte| byte.is_ascii_digit()),
        b"graph" => ByteSet::of(|byte| byte.is_ascii_graphic()),
        b"print" => ByteSet::of(|byte| byte == b' ' || byte.is_ascii_graphic()),
        b"punct" => ByteSet::of(|byte| byte.is_ascii_punctuation()),
        b"space" => ByteSet::of(is_space),
        b"word" => ByteSet::of(is_word),
        b"xdigit" => ByteSet::of(|byte| byte.is_ascii_hexdigit()),
        _ => return Err(IrregularFeature::Refused),
    };
    Ok(if negated { set.complement() } else { set })
}
