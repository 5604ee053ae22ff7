//! Parses the commands of memcached's text protocol, for a server.
//!
//! A line is passed complete and without its line break. The caller reads the data block that
//! follows a storage command. It also reads the keys of `get`, `gets`, `gat` and `gats`, of which a
//! line may have any number, word by word: [`Lookup::begins`] recognises such a line before it is
//! complete.
//!
//! The reference for accepted lines and error messages is memcached 1.6.45. Tokens are separated by
//! spaces only, and numbers are decimal. Deliberate differences: a time after the key of `delete`,
//! other than 0, and flags of more than 32 bits are rejected.

use super::meta::{self, Meta};

/// Default maximum length of a key, in bytes.
pub const KEY_LENGTH_MAX: usize = 250;

/// Maximum length of a line other than `get` and the like, in bytes, with keys of up to
/// [`KEY_LENGTH_MAX`].
pub const LINE_LENGTH_MAX: usize = 2048;

/// Maximum length of a line other than `get` and the like, in bytes, with keys of up to `key_max`
/// bytes.
#[must_use]
pub fn line_length_max(key_max: usize) -> usize {
    LINE_LENGTH_MAX + key_max.saturating_sub(KEY_LENGTH_MAX)
}

/// Minimum length of a line with its line break, in bytes.
pub const LINE_LENGTH_MIN: usize = 4;

/// Maximum length of a value that a line may announce, in bytes (`INT_MAX` less the line break).
const VALUE_LENGTH_MAX: u32 = i32::MAX as u32 - 2;

/// memcached's error for an unknown command.
pub const ERROR: &str = "ERROR";

/// memcached's error for a missing argument, an invalid number, or a key that is too long.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// memcached's error for an invalid expiry.
pub const BAD_EXPIRY: &str = "CLIENT_ERROR invalid exptime argument";

/// memcached's error for a data block that is not followed by a line break.
pub const BAD_DATA: &str = "CLIENT_ERROR bad data chunk";

/// The error of memcached up to 1.6.30 for a time after the key of `delete`; later versions delete.
const DELETE_USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";

/// A parsed command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLine<'a> {
    /// The command with its arguments.
    pub command: Command<'a>,
    /// Whether the client wants no response.
    pub noreply: bool,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`: the keys follow.
    Lookup(Lookup),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`: the data block follows.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// `touch`: sets the expiry.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The new expiry; see [`Store::expires`].
        expires: i32,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// The number that is added or subtracted.
        delta: u64,
        /// Whether to decrement.
        is_decrement: bool,
    },
    /// `mg`, `ms`, `md`, `ma`, `me`
    Meta(Meta<'a>),
    /// `mn`, which does nothing.
    MetaNothing,
    /// `stats`, with its arguments.
    Stats(Words<'a>),
    /// `flush_all`, which removes all values.
    FlushAll {
        /// When to remove them; see [`Store::expires`].
        delay: i32,
    },
    /// `version`.
    Version,
    /// `verbosity`, which has no effect.
    Verbosity {
        /// The log level.
        level: u32,
    },
    /// `quit`, which closes the connection.
    Quit,
    /// `shutdown`, with its arguments.
    Shutdown(Words<'a>),
    /// `cache_memlimit`.
    MemoryLimit {
        /// The new limit, in megabytes.
        megabytes: u32,
    },
    /// `lru_crawler`, with its arguments.
    Crawler(Words<'a>),
    /// `watch`, with the kinds of events.
    Watch(Words<'a>),
    /// `delete_prefix`, an extension: deletes all keys with this prefix.
    DeletePrefix {
        /// The prefix, not empty.
        prefix: &'a [u8],
    },
    /// `delete_tag`, an extension: deletes all items that were stored with this tag.
    DeleteTag {
        /// A tag, as given to `ms` in `G(TAG,TAG)`.
        tag: &'a [u8],
    },
    /// `debugtime`, of memcached's debug builds: advances the clock.
    DebugTime {
        /// Number of seconds.
        seconds: i32,
    },
    /// `refresh_certs`: reloads the certificates.
    RefreshCertificates,
    /// `lru`, `slabs` and the like, which concern memcached's implementation, with all words of the
    /// line.
    Other(Words<'a>),
}

/// A retrieval command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// `gets`, `gats`: return the CAS.
    pub with_cas: bool,
    /// `gat`, `gats`: the new expiry of the values found; see [`Store::expires`].
    pub expires: Option<i32>,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The condition and manner of storing.
    pub mode: Mode,
    /// The key.
    pub key: &'a [u8],
    /// The client flags.
    pub flags: u32,
    /// The expiry: 0 for never, negative for immediately, up to 30 days as seconds from now, else
    /// as Unix time.
    pub expires: i32,
    /// Length of the data block, without its line break.
    pub length: u32,
    /// The CAS that the object must have; only for `cas`.
    pub compare: Option<u64>,
}

/// The condition and manner of storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Store in any case.
    Set,
    /// Store only if the key does not exist.
    Add,
    /// Store only if the key exists.
    Replace,
    /// Append to the existing value.
    Append,
    /// Prepend to the existing value.
    Prepend,
    /// Store only if the object has the given CAS.
    Cas,
}

/// A rejected line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The response, without its line break. `None` if the line is an HTTP request: the connection
    /// is closed.
    pub answer: Option<&'static str>,
    /// Bytes after the line that must be discarded: the data block with its line break.
    pub data: u64,
    /// Whether the client wants no response.
    pub noreply: bool,
}

impl CommandError {
    pub(super) fn with(answer: &'static str) -> CommandError {
        CommandError {
            answer: Some(answer),
            data: 0,
            noreply: false,
        }
    }
}

/// An iterator over words separated by spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// The words of a line.
    #[must_use]
    pub fn of(line: &'a [u8]) -> Words<'a> {
        Words(line)
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let begin = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = self.0.get(begin..)?;
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (word, rest) = rest.split_at_checked(end)?;
        self.0 = rest;
        Some(word)
    }
}

/// Whether a word is longer than `length_max`.
///
/// Examines only one byte in `length_max + 1`: a longer word contains at least one of those.
#[must_use]
pub fn has_longer_word(line: &[u8], length_max: usize) -> bool {
    let probes = (length_max..line.len()).step_by(length_max.saturating_add(1));
    for probe in probes {
        let (before, behind) = line.split_at_checked(probe).unwrap_or_default();
        let left = before.iter().rev().take_while(|byte| **byte != b' ');
        let right = behind.iter().take_while(|byte| **byte != b' ').count();
        if right > 0 && left.count() + right > length_max {
            return true;
        }
    }
    false
}

/// Parses a line as memcached does. `line` must not include bytes after the line's end.
///
/// # Errors
/// The response to send, and how many bytes to discard.
pub fn parse(line: &[u8]) -> Result<CommandLine<'_>, CommandError> {
    parse_with_keys(line, KEY_LENGTH_MAX)
}

/// Like [`parse`], with keys of up to `key_max` bytes.
///
/// # Errors
/// As for [`parse`].
pub fn parse_with_keys(line: &[u8], key_max: usize) -> Result<CommandLine<'_>, CommandError> {
    let mut words = Words(line);
    // As in memcached, a line that begins with a space has no command.
    let name = match line.first() {
        None | Some(b' ') => &[],
        Some(_) => words.next().unwrap_or_default(),
    };
    let command = match name {
        b"get" | b"gets" | b"gat" | b"gats" => lookup(name, words)?,
        b"set" => return store(Mode::Set, words, key_max),
        b"add" => return store(Mode::Add, words, key_max),
        b"replace" => return store(Mode::Replace, words, key_max),
        b"append" => return store(Mode::Append, words, key_max),
        b"prepend" => return store(Mode::Prepend, words, key_max),
        b"cas" => return store(Mode::Cas, words, key_max),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => Command::Meta(meta::parse(name, words, key_max)?),
        b"mn" => Command::MetaNothing,
        b"stats" => Command::Stats(words),
        b"version" => Command::Version,
        b"quit" => Command::Quit,
        b"watch" => Command::Watch(words),
        b"refresh_certs" => Command::RefreshCertificates,
        _ => return with_noreply(name, words, line, key_max),
    };
    Ok(CommandLine {
        command,
        noreply: false,
    })
}

fn lookup<'a>(name: &[u8], mut words: Words<'a>) -> Result<Command<'a>, CommandError> {
    let mut expires = None;
    if name.get(1) == Some(&b'a') {
        let word = words.next();
        if words.next().is_none() {
            return Err(CommandError::with(BAD_FORMAT));
        }
        let word = word.and_then(signed);
        expires = Some(word.ok_or(CommandError::with(BAD_EXPIRY))?);
    } else if words.next().is_none() {
        return Err(CommandError::with(BAD_FORMAT));
    }
    Ok(Command::Lookup(Lookup {
        with_cas: name.ends_with(b"s"),
        expires,
    }))
}

/// Parses commands whose last word may be `noreply`.
fn with_noreply<'a>(
    name: &[u8],
    words: Words<'a>,
    line: &'a [u8],
    key_max: usize,
) -> Result<CommandLine<'a>, CommandError> {
    let last = words.last();
    let noreply = last == Some(b"noreply");
    let refused = |answer| CommandError {
        noreply,
        ..CommandError::with(answer)
    };
    let count = words.count() - usize::from(noreply);
    let mut words = words;
    let mut key = || {
        let key = words.next().filter(|key| key.len() <= key_max);
        key.ok_or(refused(BAD_FORMAT))
    };
    let command = match name {
        b"delete" => {
            let key = key()?;
            // Old clients send a time of 0. Any other time is rejected, so that a client which
            // means a delayed deletion does not lose the object now.
            if count > 2 || count == 2 && words.next() != Some(b"0") {
                return Err(refused(DELETE_USAGE));
            }
            Command::Delete { key }
        }
        b"touch" => {
            let key = key()?;
            let Some(word) = words.next() else {
                return Err(refused(BAD_FORMAT));
            };
            let Some(expires) = signed(word) else {
                return Err(refused(BAD_EXPIRY));
            };
            Command::Touch { key, expires }
        }
        b"incr" | b"decr" => {
            let key = key()?;
            let Some(word) = words.next() else {
                return Err(refused(BAD_FORMAT));
            };
            let Some(delta) = number(word) else {
                return Err(refused("CLIENT_ERROR invalid numeric delta argument"));
            };
            Command::Arithmetic {
                key,
                delta,
                is_decrement: name == b"decr",
            }
        }
        b"flush_all" => match words.next().filter(|_| count > 0).map(signed) {
            None => Command::FlushAll { delay: 0 },
            Some(Some(delay)) => Command::FlushAll { delay },
            Some(None) => return Err(refused(BAD_EXPIRY)),
        },
        b"verbosity" => match words.next().and_then(number_32) {
            Some(level) => Command::Verbosity { level },
            None => return Err(refused(BAD_FORMAT)),
        },
        b"cache_memlimit" => match words.next().and_then(number_32) {
            Some(megabytes) => Command::MemoryLimit { megabytes },
            None => return Err(refused(ERROR)),
        },
        b"shutdown" => Command::Shutdown(words),
        b"lru_crawler" => Command::Crawler(words),
        b"delete_prefix" => match words.next().filter(|_| count == 1) {
            Some(prefix) if prefix.len() <= key_max => Command::DeletePrefix { prefix },
            _ => return Err(refused(BAD_FORMAT)),
        },
        b"delete_tag" => match words.next().filter(|_| count == 1) {
            Some(tag) if tag.len() <= KEY_LENGTH_MAX && !tag.contains(&b',') => {
                Command::DeleteTag { tag }
            }
            _ => return Err(refused(BAD_FORMAT)),
        },
        b"debugtime" => match words.next().and_then(signed) {
            Some(seconds) => Command::DebugTime { seconds },
            None => return Err(refused(ERROR)),
        },
        b"slabs" if words.next() == Some(b"automove") && words.next().is_none_or(not_number) => {
            return Err(refused(BAD_FORMAT));
        }
        b"lru" | b"slabs" | b"extstore" => Command::Other(Words(line)),
        _ if last.is_some_and(|word| word.starts_with(b"HTTP/")) => {
            return Err(CommandError {
                answer: None,
                data: 0,
                noreply: false,
            });
        }
        _ => return Err(refused(ERROR)),
    };
    Ok(CommandLine { command, noreply })
}

fn store(
    mode: Mode,
    mut words: Words<'_>,
    key_max: usize,
) -> Result<CommandLine<'_>, CommandError> {
    let noreply = words.last() == Some(b"noreply");
    let refused = CommandError {
        noreply,
        ..CommandError::with(BAD_FORMAT)
    };
    let mut next = || words.next().ok_or(refused);
    let (key, flags, expires, length) = (next()?, next()?, next()?, next()?);
    let length = number_32(length).filter(|length| *length <= VALUE_LENGTH_MAX);
    let length = length.ok_or(refused)?;
    // From here on, the length of the data block is known.
    let refused = CommandError {
        data: u64::from(length) + 2,
        ..refused
    };
    let mut compare = None;
    if mode == Mode::Cas {
        compare = Some(words.next().and_then(number).ok_or(refused)?);
    }
    if key.len() > key_max {
        return Err(refused);
    }
    let store = Store {
        mode,
        key,
        flags: number_32(flags).ok_or(refused)?,
        expires: signed(expires).ok_or(refused)?,
        length,
        compare,
    };
    Ok(CommandLine {
        command: Command::Store(store),
        noreply,
    })
}

/// Length of the data block with a client's credentials, from the line before it: `set KEY FLAGS
/// EXPTIME LENGTH`. `None` for any other line.
#[must_use]
pub fn auth_token_length(line: &[u8]) -> Option<u32> {
    let mut words = Words(line.strip_prefix(b"set")?);
    let _ = (words.next()?, words.next()?, words.next()?);
    number_32(words.next()?)
}

impl Lookup {
    /// Whether an incomplete line is a retrieval command, which may have any number of keys.
    /// Returns the command, and the number of bytes before the first key.
    #[must_use]
    pub fn begins(line: &[u8]) -> Option<(Lookup, usize)> {
        let mut words = Words(line);
        let name = words.next().filter(|_| !line.starts_with(b" "))?;
        let takes_expiry = match name {
            b"get" | b"gets" => false,
            b"gat" | b"gats" => true,
            _ => return None,
        };
        let mut expires = None;
        if takes_expiry {
            expires = Some(signed(words.next()?)?);
        }
        // The last word may be incomplete.
        let is_whole = !words.0.is_empty();
        let lookup = Lookup {
            with_cas: name.ends_with(b"s"),
            expires,
        };
        is_whole.then(|| (lookup, line.len() - words.0.len()))
    }
}

/// The next element in a list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextKey<'a> {
    /// A key, and the number of bytes consumed.
    Key(&'a [u8], usize),
    /// The end of the line, and the number of bytes consumed.
    End(usize),
    /// A key longer than allowed.
    TooLong,
    /// This many bytes can be discarded; the rest may be incomplete.
    More(usize),
}

impl NextKey<'_> {
    /// The next key in `bytes`, of up to `key_max` bytes.
    #[must_use]
    pub fn of(bytes: &[u8], key_max: usize) -> NextKey<'_> {
        let Some(begin) = bytes.iter().position(|byte| *byte != b' ') else {
            return NextKey::More(bytes.len());
        };
        let rest = bytes.get(begin..).unwrap_or_default();
        let end = memchr::memchr2(b' ', b'\n', rest);
        let word = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        let is_last = end.is_some_and(|end| rest.get(end) == Some(&b'\n'));
        let key = word
            .strip_suffix(b"\r")
            .filter(|_| is_last || end.is_none());
        let key = key.unwrap_or(word);
        if key.len() > key_max {
            return NextKey::TooLong;
        }
        match end {
            None => NextKey::More(begin),
            Some(end) if key.is_empty() => NextKey::End(begin + end + 1),
            // The line break remains, and is found by the next call.
            Some(_) => NextKey::Key(key, begin + key.len()),
        }
    }
}

fn not_number(word: &[u8]) -> bool {
    number_32(word).is_none()
}

/// Parses an unsigned number, digits only.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!word.is_empty()).then_some(value)
}

/// Parses an unsigned number of at most 32 bits.
#[must_use]
pub fn number_32(word: &[u8]) -> Option<u32> {
    number(word)?.try_into().ok()
}

pub(super) fn signed(word: &[u8]) -> Option<i32> {
    match word {
        [b'-', digits @ ..] => i32::try_from(-i64::from(number_32(digits)?)).ok(),
        digits => number(digits)?.try_into().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command<'_> {
        parse(line.as_bytes()).unwrap().command
    }

    fn refused(line: &str) -> (&str, u64) {
        let refused = parse(line.as_bytes()).unwrap_err();
        (refused.answer.unwrap(), refused.data)
    }

    #[test]
    fn a_longer_word_is_found_wherever_it_stands() {
        for length in 1..12 {
            for begin in 0..30 {
                let mut line = vec![b' '; begin];
                line.extend_from_slice(&b"k".repeat(length));
                for behind in ["", " ", " k kk k    k k", " kkkkk kkkkk kkkkk"] {
                    let line = [&line, behind.as_bytes()].concat();
                    assert_eq!(has_longer_word(&line, 5), length > 5, "{line:?}");
                }
            }
        }
        assert!(!has_longer_word(b"", 5));
        assert!(!has_longer_word(b"kkkkk kkkkk kkkkk kkkkk", 5));
    }

    #[test]
    fn storage_lines_say_what_follows_them() {
        let expected = Store {
            mode: Mode::Set,
            key: b"key",
            flags: 7,
            expires: -1,
            length: 10,
            compare: None,
        };
        assert_eq!(command("set key 7 -1 10"), Command::Store(expected));
        let line = parse(b"set  key 7  -1 10 noreply").unwrap();
        assert_eq!(
            (line.command, line.noreply),
            (Command::Store(expected), true)
        );
        let cas = Store {
            mode: Mode::Cas,
            compare: Some(u64::MAX),
            ..expected
        };
        let line = format!("cas key 7 -1 10 {}", u64::MAX);
        assert_eq!(command(&line), Command::Store(cas));
    }

    #[test]
    fn what_is_wrong_with_a_storage_line_decides_whether_its_data_is_read_away() {
        let long = "k".repeat(251);
        assert_eq!(refused("set key 7 0"), (BAD_FORMAT, 0));
        assert_eq!(refused("set key 0 0 -1"), (BAD_FORMAT, 0));
        assert_eq!(refused("set key 0 0 2147483647"), (BAD_FORMAT, 0));
        assert_eq!(refused("set key -1 0 3"), (BAD_FORMAT, 5));
        assert_eq!(refused("set key 4294967296 0 3"), (BAD_FORMAT, 5));
        assert_eq!(refused("set key 0 x 3"), (BAD_FORMAT, 5));
        assert_eq!(refused(&format!("set {long} 0 0 3")), (BAD_FORMAT, 5));
        assert_eq!(refused("cas key 0 0 3"), (BAD_FORMAT, 5));
        assert!(parse(b"set key x 0 3 noreply").unwrap_err().noreply);
    }

    #[test]
    fn other_lines_have_the_words_of_memcached() {
        for line in ["", "  ", " get a", "GET a", "nonsense", "nonsense noreply"] {
            assert_eq!(refused(line), (ERROR, 0), "{line}");
        }
        for line in [
            "get",
            "gets ",
            "gat 5",
            "delete",
            "touch a",
            "incr a",
            "verbosity",
        ] {
            assert_eq!(refused(line), (BAD_FORMAT, 0), "{line}");
        }
        assert_eq!(refused("delete a 5"), (DELETE_USAGE, 0));
        let key = b"a";
        assert_eq!(command("delete a 0"), Command::Delete { key });
        assert_eq!(refused("gat x a"), (BAD_EXPIRY, 0));
        assert_eq!(refused("touch a x"), (BAD_EXPIRY, 0));
        assert_eq!(refused("flush_all x"), (BAD_EXPIRY, 0));
        let delta = "CLIENT_ERROR invalid numeric delta argument";
        assert_eq!(refused("incr a -1"), (delta, 0));
        assert_eq!(refused("incr a 18446744073709551616"), (delta, 0));
        assert_eq!(parse(b"GET / HTTP/1.1").unwrap_err().answer, None);
    }

    #[test]
    fn noreply_is_the_last_word() {
        let line = parse(b"delete noreply").unwrap();
        let key = b"noreply";
        assert_eq!(line.command, Command::Delete { key });
        assert!(parse(b"flush_all noreply").unwrap().noreply);
        let line = parse(b"flush_all -5 noreply").unwrap();
        assert_eq!(line.command, Command::FlushAll { delay: -5 });
        assert!(line.noreply && !parse(b"flush_all 5").unwrap().noreply);
    }

    #[test]
    fn keys_come_one_after_the_other() {
        let mut rest: &[u8] = b" one  two three\r\nrest";
        let mut keys = Vec::new();
        loop {
            match NextKey::of(rest, KEY_LENGTH_MAX) {
                NextKey::Key(key, used) => {
                    keys.push(key);
                    rest = &rest[used..];
                }
                NextKey::End(used) => {
                    rest = &rest[used..];
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(keys, [b"one".as_slice(), b"two", b"three"]);
        assert_eq!(rest, b"rest");
        assert_eq!(NextKey::of(b"  on", KEY_LENGTH_MAX), NextKey::More(2));
        assert_eq!(NextKey::of(b"\r", KEY_LENGTH_MAX), NextKey::More(0));
        let long = [b'k'; 251];
        assert_eq!(NextKey::of(&long, KEY_LENGTH_MAX), NextKey::TooLong);
        assert_eq!(NextKey::of(&long[1..], KEY_LENGTH_MAX), NextKey::More(0));
        let whole = [&long[1..], b"\r\n"].concat();
        assert_eq!(
            NextKey::of(&whole, KEY_LENGTH_MAX),
            NextKey::Key(&long[1..], 250)
        );
    }

    #[test]
    fn a_lookup_is_known_before_its_line_ends() {
        let get = Lookup {
            with_cas: false,
            expires: None,
        };
        assert_eq!(Lookup::begins(b"get a b"), Some((get, 3)));
        let touching = Lookup {
            with_cas: true,
            expires: Some(60),
        };
        assert_eq!(Lookup::begins(b"gats 60 a b"), Some((touching, 7)));
        for line in ["get", "gat 6", "set a b", " get a", "gat x a"] {
            assert_eq!(Lookup::begins(line.as_bytes()), None, "{line}");
        }
    }
}
