//! Parses the commands of memcached's meta protocol: `mg`, `ms`, `md`, `ma`, `me`, a key, and flags
//! of one letter each, some with a token.
//!
//! The reference is memcached 1.6.45. The server implements the effect of the flags, and returns
//! flags in a response in the order of the request ([`Meta::flags`]).
//!
//! `G(TAG,TAG)` of `ms` is an extension: memcached has no flag `G`. The parentheses distinguish it
//! from a flag `G` that memcached may introduce.

use super::command::{
    BAD_FORMAT, CommandError, KEY_LENGTH_MAX, Mode, Words, number, number_32, signed,
};

/// Limit of words in a line.
const WORDS_MAX: usize = 20;

/// Maximum length of an opaque token, including its letter, in bytes.
const OPAQUE_LENGTH_MAX: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// A command of the meta protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The kind of the command.
    pub verb: Verb,
    /// The key as sent, in base64 if [`Options::is_binary`] is set.
    pub key: &'a [u8],
    /// The flags that affect the execution.
    pub options: Options,
    /// All flags as sent.
    pub flags: Words<'a>,
}

/// The kinds of commands of the meta protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `mg`: gets a value.
    Get,
    /// `ms`: stores a value.
    Set {
        /// Length of the data block that follows, without its line break.
        length: u32,
        /// The condition and manner of storing.
        mode: Mode,
    },
    /// `md`: deletes an object.
    Delete,
    /// `ma`: increments or decrements a counter.
    Arithmetic {
        /// Whether to decrement.
        is_decrement: bool,
    },
    /// `me`: returns an object's metadata.
    Debug,
}

/// The flags that affect the execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `b`: the key is encoded in base64.
    pub is_binary: bool,
    /// `v`: return the value.
    pub value: bool,
    /// `u`: do not update the last use of the object.
    pub no_update: bool,
    /// `q`: omit the usual response.
    pub is_quiet: bool,
    /// `x`: remove the value, but keep the object.
    pub removes_value: bool,
    /// `I`: mark the object as stale, or allow writing over a stale one.
    pub is_stale: bool,
    /// `N`: create a missing object, with this expiry.
    pub vivify: Option<i32>,
    /// `T`: set the expiry.
    pub expires: Option<i32>,
    /// `R`: if the remaining lifetime is less, the client is told to recache the object.
    pub recache: Option<i32>,
    /// `F`: the client flags.
    pub flags: u32,
    /// `C`: the CAS that the object must have.
    pub compare: Option<u64>,
    /// `E`: the object's new CAS.
    pub cas: Option<u64>,
    /// `J`: the initial value of a counter.
    pub initial: u64,
    /// `D`: the delta of a counter.
    pub delta: Option<u64>,
    /// `G`: store the object with tags, by which it can be deleted ([`Meta::tags`]).
    pub has_tags: bool,
}

impl<'a> Meta<'a> {
    /// The tags of the object to store, separated by commas.
    #[must_use]
    pub fn tags(&self) -> Option<&'a [u8]> {
        let mut flags = self.flags;
        flags.find_map(|flag| tags_of(flag.strip_prefix(b"G")?))
    }
}

/// The tags in a token: in parentheses, none of them empty or longer than [`KEY_LENGTH_MAX`].
fn tags_of(token: &[u8]) -> Option<&[u8]> {
    let tags = token.strip_prefix(b"(")?.strip_suffix(b")")?;
    let mut each = tags.split(|byte| *byte == b',');
    let fits = |tag: &[u8]| (1..=KEY_LENGTH_MAX).contains(&tag.len());
    each.all(fits).then_some(tags)
}

/// Parses the words after the command's name.
pub(super) fn parse<'a>(
    name: &[u8],
    mut words: Words<'a>,
    key_max: usize,
) -> Result<Meta<'a>, CommandError> {
    let Some(key) = words.next() else {
        return Err(CommandError::with(BAD_FORMAT));
    };
    let mut length = 0;
    let mut refused = CommandError::with(BAD_FORMAT);
    let skipped = usize::from(name == b"ms");
    if !words.skip(skipped).all(begins_a_flag) {
        return Err(refused);
    }
    if name == b"ms" {
        const LENGTH_MAX: u32 = i32::MAX as u32 - 2;
        let word = words.next().and_then(number_32);
        length = word.filter(|length| *length <= LENGTH_MAX).ok_or(refused)?;
        refused.data = u64::from(length) + 2;
    }
    if key.len() > key_max {
        return Err(refused);
    }
    let because = |answer| CommandError {
        answer: Some(answer),
        ..refused
    };
    let mut options = Options::default();
    let mut mode = None;
    if name != b"me" {
        mode = options.read(words).map_err(|answer| match name {
            b"ma" => because("CLIENT_ERROR invalid or duplicate flag"),
            _ => because(answer),
        })?;
    } else if words.any(|word| word == b"b") {
        options.is_binary = true;
    }
    let verb = match name {
        _ if options.has_tags && name != b"ms" => {
            return Err(because("CLIENT_ERROR invalid flag"));
        }
        b"ms" => Verb::Set {
            length,
            mode: match store_mode(mode, &options) {
                Some(Mode::Append | Mode::Prepend) if options.has_tags => {
                    return Err(because("CLIENT_ERROR tags are of a whole value"));
                }
                Some(mode) => mode,
                None => return Err(because("CLIENT_ERROR invalid mode for ms M token")),
            },
        },
        b"mg" => Verb::Get,
        b"md" => Verb::Delete,
        b"ma" => Verb::Arithmetic {
            is_decrement: match mode {
                None | Some(b'I' | b'+') => false,
                Some(b'D' | b'-') => true,
                _ => return Err(because("CLIENT_ERROR invalid mode for ma M token")),
            },
        },
        _ => Verb::Debug,
    };
    Ok(Meta {
        verb,
        key,
        options,
        flags: words,
    })
}

/// Whether a word begins like a flag, even an unknown one.
fn begins_a_flag(word: &[u8]) -> bool {
    matches!(word.first(), Some(b'A'..=b'z' | b'0'..=b'9'))
}

fn store_mode(mode: Option<u8>, options: &Options) -> Option<Mode> {
    let has_cas = options.compare.is_some();
    Some(match mode {
        None | Some(b'S' | b'R') if has_cas => Mode::Cas,
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return None,
    })
}

impl Options {
    /// Parses the flags. Returns the token of `M`, whose meaning depends on the command. The error
    /// is the response to send.
    fn read(&mut self, flags: Words<'_>) -> Result<Option<u8>, &'static str> {
        let (mut mode, mut seen) = (None, 0_u128);
        let mut fault = None;
        if flags.count() >= WORDS_MAX - 1 {
            return Err("CLIENT_ERROR options flags are too long");
        }
        for flag in flags {
            let (letter, token) = flag.split_first().unwrap_or((&0, &[]));
            if *letter >= 127 || seen >> letter & 1 != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << letter;
            let result = match letter {
                b'M' => {
                    mode = Some(token.first().copied().unwrap_or(0));
                    Ok(())
                }
                b'O' if flag.len() > OPAQUE_LENGTH_MAX => Err("CLIENT_ERROR opaque token too long"),
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => Ok(()),
                b'b' | b'v' | b'u' | b'q' | b'x' | b'I' => {
                    self.switch(*letter);
                    Ok(())
                }
                _ => self.token(*letter, token)?,
            };
            // The last fault is reported, but a fault that ends the parsing has precedence.
            fault = result.err().or(fault);
        }
        fault.map_or(Ok(mode), Err)
    }

    fn switch(&mut self, letter: u8) {
        let option = match letter {
            b'b' => &mut self.is_binary,
            b'v' => &mut self.value,
            b'u' => &mut self.no_update,
            b'q' => &mut self.is_quiet,
            b'x' => &mut self.removes_value,
            _ => &mut self.is_stale,
        };
        *option = true;
    }

    /// Parses the token of a flag. The outer error is for an unknown flag.
    fn token(
        &mut self,
        letter: u8,
        token: &[u8],
    ) -> Result<Result<(), &'static str>, &'static str> {
        fn keep<T, U: From<T>>(
            to: &mut U,
            read: Option<T>,
            fault: &'static str,
        ) -> Result<(), &'static str> {
            *to = read.ok_or(fault)?.into();
            Ok(())
        }
        Ok(match letter {
            b'N' => keep(&mut self.vivify, signed(token), BAD_TOKEN),
            b'T' => keep(&mut self.expires, signed(token), BAD_TOKEN),
            b'R' => keep(&mut self.recache, signed(token), BAD_TOKEN),
            b'C' => keep(&mut self.compare, number(token), BAD_TOKEN),
            b'E' => keep(&mut self.cas, number(token), BAD_TOKEN),
            b'F' => keep(&mut self.flags, number_32(token), BAD_FORMAT),
            b'J' => keep(
                &mut self.initial,
                number(token),
                "CLIENT_ERROR invalid numeric initial value",
            ),
            b'D' => keep(
                &mut self.delta,
                number(token),
                "CLIENT_ERROR invalid numeric delta value",
            ),
            b'G' if token.starts_with(b"(") => {
                self.has_tags = true;
                tags_of(token).map(drop).ok_or(BAD_TOKEN)
            }
            _ => return Err("CLIENT_ERROR invalid flag"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Command, parse};
    use super::*;

    fn meta(line: &str) -> Meta<'_> {
        match parse(line.as_bytes()) {
            Ok(line) => match line.command {
                Command::Meta(meta) => meta,
                other => panic!("{other:?}"),
            },
            Err(refused) => panic!("{line}: {refused:?}"),
        }
    }

    fn refused(line: &str) -> (&str, u64) {
        let refused = parse(line.as_bytes()).unwrap_err();
        (refused.answer.unwrap(), refused.data)
    }

    #[test]
    fn flags_are_read_whatever_their_order() {
        let read = meta("mg key v q T-1 N30 R5 Oabc C17");
        assert_eq!((read.verb, read.key), (Verb::Get, b"key".as_slice()));
        let expected = Options {
            value: true,
            is_quiet: true,
            expires: Some(-1),
            vivify: Some(30),
            recache: Some(5),
            compare: Some(17),
            ..Options::default()
        };
        assert_eq!(read.options, expected);
        assert_eq!(read.flags.count(), 7);
    }

    #[test]
    fn modes_are_of_the_command() {
        let mode = |line| match meta(line).verb {
            Verb::Set { mode, length } => (mode, length),
            other => panic!("{other:?}"),
        };
        assert_eq!(mode("ms key 5"), (Mode::Set, 5));
        assert_eq!(mode("ms key 5 ME"), (Mode::Add, 5));
        assert_eq!(mode("ms key 5 MAppend"), (Mode::Append, 5));
        assert_eq!(mode("ms key 5 MS C3"), (Mode::Cas, 5));
        assert_eq!(mode("ms key 5 MP C3"), (Mode::Prepend, 5));
        let down = |line| meta(line).verb == Verb::Arithmetic { is_decrement: true };
        assert!(down("ma key MD") && down("ma key M-") && !down("ma key"));
        let words = "CLIENT_ERROR invalid mode for ms M token";
        assert_eq!(refused("ms key 5 MX"), (words, 7));
        assert_eq!(
            refused("ma key MX"),
            ("CLIENT_ERROR invalid mode for ma M token", 0)
        );
    }

    /// memcached has no flag `G`; without parentheses it is an invalid flag, as there.
    #[test]
    fn tags_stand_in_parentheses() {
        assert_eq!(meta("ms key 5 T0 G(a,b) c").tags(), Some(&b"a,b"[..]));
        assert_eq!(meta("ms key 5 G(a(b)) c").tags(), Some(&b"a(b)"[..]));
        assert_eq!(meta("ms key 5 c").tags(), None);
        let long = format!("ms key 5 G({})", "t".repeat(KEY_LENGTH_MAX + 1));
        for line in [
            "ms key 5 G()",
            "ms key 5 G(a,)",
            "ms key 5 G(a",
            "ms key 5 G(,a)",
            &long,
        ] {
            assert_eq!(refused(line), (BAD_TOKEN, 7), "{line}");
        }
        for (line, data) in [("ms key 5 G", 7), ("ms key 5 Ga", 7), ("mg key G(a)", 0)] {
            assert_eq!(refused(line), ("CLIENT_ERROR invalid flag", data), "{line}");
        }
        let twice = "CLIENT_ERROR duplicate flag";
        assert_eq!(refused("ms key 5 G(a) G(b)"), (twice, 7));
        let append = "CLIENT_ERROR tags are of a whole value";
        assert_eq!(refused("ms key 5 MA G(a)"), (append, 7));
    }

    #[test]
    fn faults_have_the_words_of_memcached() {
        assert_eq!(refused("mg"), (BAD_FORMAT, 0));
        assert_eq!(refused("ms key"), (BAD_FORMAT, 0));
        assert_eq!(refused("ms key x"), (BAD_FORMAT, 0));
        assert_eq!(refused("mg key v v"), ("CLIENT_ERROR duplicate flag", 0));
        assert_eq!(
            refused("ma key v v"),
            ("CLIENT_ERROR invalid or duplicate flag", 0)
        );
        assert_eq!(refused("mg key !"), (BAD_FORMAT, 0));
        assert_eq!(refused("mg key Z"), ("CLIENT_ERROR invalid flag", 0));
        assert_eq!(refused("mg key Tx"), (BAD_TOKEN, 0));
        assert_eq!(refused("ms key 3 Tx"), (BAD_TOKEN, 5));
        let long = format!("mg {}", "k".repeat(251));
        assert_eq!(refused(&long), (BAD_FORMAT, 0));
        let opaque = format!("mg key O{}", "o".repeat(32));
        assert_eq!(refused(&opaque), ("CLIENT_ERROR opaque token too long", 0));
        assert!(parse(&opaque.as_bytes()[..opaque.len() - 1]).is_ok());
    }
}
