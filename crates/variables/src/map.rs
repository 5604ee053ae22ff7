//! `map`: a variable whose value depends on another value.
//!
//! <https://nginx.org/en/docs/http/ngx_http_map_module.html>. A text is searched in nginx's order:
//! among the exact keys; with `hostnames`, among the wildcards that begin with `*.` and then among
//! those that end with `.*`, where the longest match wins; among the regular expressions in file
//! order. Otherwise the default applies. Keys and wildcards are hashed, so that lookups in large
//! maps cost no more than in small ones. The directives for the sizes of nginx's hash tables have
//! no effect.

use std::borrow::Cow;
use std::sync::Arc;

use base::hash::{Map, Set};
use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Template, Word,
    parse,
};
use framework::compile::Compiler;
use framework::tables;

use crate::name::variable_name;
use crate::regex::Regexes;
use crate::{Compiling as _, Context, Regex, Source, Text, Value};

/// `map string $variable { … }`
pub static MAP: Setting<()> = Setting::new("map", &["string $variable { ... }"], parse::nothing)
    .contexts(Contexts::HTTP.or(Contexts::STREAM))
    .arity(Arity::exactly(2))
    .inherit(Inherit::Block)
    .free_block()
    .manual(
        "Makes a variable whose value depends on the string. Each row holds a key and a value; \
         keys are compared without regard to case, `~` begins a regular expression and `~*` one \
         that ignores case. `default`, `hostnames`, `include` and `volatile` have a meaning of \
         their own; a key of such a name is written with a backslash before it.",
    );

/// Declares the directive `map_hash_max_size size`.
pub static MAP_HASH_MAX_SIZE: Setting<u64> =
    Setting::new("map_hash_max_size", &["size"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .default("2048")
        .no_effect("hash tables of maps grow by themselves")
        .manual("The largest size of nginx's hash tables for maps.");

/// Declares the directive `map_hash_bucket_size size`.
pub static MAP_HASH_BUCKET_SIZE: Setting<u64> =
    Setting::new("map_hash_bucket_size", &["size"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .default("64")
        .no_effect("hash tables of maps have no buckets of a fixed size")
        .manual("The size of a bucket in nginx's hash tables for maps.");

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&MAP, &MAP_HASH_MAX_SIZE, &MAP_HASH_BUCKET_SIZE];

/// The directives for sizes of nginx's hash tables.
const HASH_SIZES: [&Setting<u64>; 2] = [&MAP_HASH_MAX_SIZE, &MAP_HASH_BUCKET_SIZE];

/// Compiles every `map` block of a scope for a kind of context, and defines its variable.
pub fn compile<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    compile_wanted::<C>(compiler, scope, &|_| true);
}

/// Like [`compile`], but only for blocks whose variable is `wanted`.
pub(crate) fn compile_wanted<C: Context>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    wanted: &dyn Fn(&str) -> bool,
) {
    let sizes = check_sizes(compiler, scope);
    for line in scope.lines().iter().filter(|line| line.is("map")) {
        if let Err(fault) = define::<C>(compiler, line, sizes.clone(), wanted) {
            compiler.report(fault.while_reading());
        }
    }
}

/// Checks the hash table sizes as nginx does. The first `map` block puts the sizes into force, so a
/// line with a size after it is reported as a duplicate. Returns the error that every block with
/// keys reports, such as for a size of 0.
fn check_sizes(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Result<(), Fault> {
    let first = |name: &str| http.lines().iter().position(|line| line.is(name));
    let Some(map) = first("map") else {
        return Ok(());
    };
    let mut are_in_force = true;
    for setting in HASH_SIZES {
        let name = setting.spec.name();
        let late = first(name).filter(|size| *size > map);
        if let Some(line) = late.and_then(|size| http.lines().get(size)) {
            let text = format!("\"{name}\" directive is duplicate");
            compiler.report(Fault::at(&line.name, text).while_reading());
            are_in_force = false;
        }
    }
    if are_in_force {
        tables::check(http, "map_hash", HASH_SIZES)
    } else {
        Ok(())
    }
}

fn define<C: Context>(
    compiler: &Compiler<'_>,
    line: &Line,
    sizes: Result<(), Fault>,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<(), Fault> {
    let [source, name, ..] = &*line.args else {
        return Ok(());
    }; // the arity has been checked
    let source = Template::parse(source)?;
    let variable = variable_name(name)?;
    if !wanted(&variable) {
        return Ok(());
    }
    let source: Text<C> = compiler.text(&source);
    let mut builder = Builder::default();
    if let Some(Block::Free(rows)) = &line.block {
        for row in rows {
            if let Err(fault) = builder.row(compiler, row) {
                compiler.report(fault.while_reading());
            }
        }
    }
    if !builder.keys.is_empty() {
        // nginx builds the hash table, and reports the error, at the end of the block.
        sizes.map_err(|fault| Fault {
            position: Some(line.end()),
            ..fault
        })?;
    }
    let map = builder.finish(source);
    compiler
        .define(&variable, Source::Computed(Arc::new(map)))
        .map_err(|text| Fault::at(name, text))?;
    Ok(())
}

/// A compiled `map` block.
struct MapVariable<C> {
    source: Text<C>,
    hostnames: bool,
    /// `volatile`: the value is computed anew on each use.
    volatile: bool,
    keys: Keys,
    regexes: Regexes<(Regex<C>, u32)>,
    values: Box<[Text<C>]>,
    default: Text<C>,
}

impl<C: Context> Value<C> for MapVariable<C> {
    fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The value for a context, which may contain captures of the regex that matched.
    fn value(&self, context: &mut C) -> Option<Bytes> {
        let mut key = context.scratch().take_buffer();
        self.source.append_to(context, &mut key);
        if self.hostnames && key.last() == Some(&b'.') {
            key.pop();
        }
        let found = self
            .keys
            .find(&key)
            .or_else(|| self.find_regex(context, &key));
        context.scratch().give_buffer(key);
        let value = found
            .and_then(|index| self.values.get(index as usize))
            .unwrap_or(&self.default);
        Some(value.evaluate(context))
    }
}

impl<C: Context> MapVariable<C> {
    fn find_regex(&self, context: &mut C, key: &[u8]) -> Option<u32> {
        if key.is_empty() {
            return None; // nginx tries no regex on the empty string
        }
        let found = self.regexes.first(key, |_, (regex, _), hit| {
            let found = regex.matches_as(context, key, hit);
            found.map_err(|undecided| (regex, undecided))
        });
        match found {
            Ok(found) => found.map(|(_, value)| *value),
            Err((regex, undecided)) => {
                // As in nginx, the default applies if a match hit a limit.
                regex.alert(context, key, undecided, "");
                None
            }
        }
    }
}

/// Parses the rows of a block in order.
struct Builder<C> {
    keys: Keys,
    /// The names that no further key may have: exact keys, and `example.com` for the key
    /// `.example.com`.
    taken: Set<Vec<u8>>,
    regexes: Vec<(Regex<C>, u32)>,
    values: Vec<Text<C>>,
    known: Map<Bytes, u32>,
    default: Option<u32>,
    hostnames: bool,
    volatile: bool,
}

impl<C> Default for Builder<C> {
    fn default() -> Builder<C> {
        Builder {
            keys: Keys::default(),
            taken: Set::default(),
            regexes: Vec::new(),
            values: Vec::new(),
            known: Map::default(),
            default: None,
            hostnames: false,
            volatile: false,
        }
    }
}

impl<C: Context> Builder<C> {
    fn row(&mut self, compiler: &Compiler<'_>, row: &Line) -> Result<(), Fault> {
        let value = match (&*row.name.bytes, &*row.args) {
            (b"hostnames", []) => {
                self.hostnames = true;
                return Ok(());
            }
            (b"volatile", []) => {
                self.volatile = true;
                return Ok(());
            }
            (_, [value]) => value,
            _ => return Err(Fault::at(&row.name, "invalid number of the map parameters")),
        };
        let value = self.value(compiler, value)?;
        match &*row.name.bytes {
            b"default" => match self.default.replace(value) {
                Some(_) => Err(Fault::at(&row.name, "duplicate default map parameter")),
                None => Ok(()),
            },
            [b'~', pattern @ ..] => self.regex(compiler, &row.name, pattern, value),
            key => {
                let key = key.strip_prefix(b"\\").unwrap_or(key);
                self.key(key, value)
                    .map_err(|text| Fault::at(&row.name, text))
            }
        }
    }

    fn regex(
        &mut self,
        compiler: &Compiler<'_>,
        word: &Word,
        pattern: &[u8],
        value: u32,
    ) -> Result<(), Fault> {
        let (pattern, caseless) = match pattern {
            [b'*', pattern @ ..] => (pattern, true),
            pattern => (pattern, false),
        };
        let regex = Regex::of_list(compiler, pattern, caseless)
            .map_err(|fault| fault.or_at(word.position))?;
        self.regexes.push((regex, value));
        Ok(())
    }

    fn key(&mut self, key: &[u8], value: u32) -> Result<(), String> {
        let conflict =
            |key: &[u8]| format!("conflicting parameter \"{}\"", String::from_utf8_lossy(key));
        let kind = if self.hostnames {
            Kind::of(key).ok_or_else(|| {
                format!(
                    "invalid hostname or wildcard \"{}\"",
                    String::from_utf8_lossy(key)
                )
            })?
        } else {
            Kind::Exact
        };
        let key = key.to_ascii_lowercase();
        match kind.named_by(&key) {
            Some(name) if !self.taken.insert(name.to_vec()) => Err(conflict(&key)),
            _ if !self.keys.insert(kind, &key, value) => Err(conflict(&key)),
            _ => Ok(()),
        }
    }

    /// The index of a value; equal values share an index.
    fn value(&mut self, compiler: &Compiler<'_>, word: &Word) -> Result<u32, Fault> {
        if let Some(known) = self.known.get(&*word.bytes) {
            return Ok(*known);
        }
        let index = self.values.len() as u32;
        self.values.push(compiler.text(&Template::parse(word)?));
        self.known
            .insert(Bytes::copy_from_slice(&word.bytes), index);
        Ok(index)
    }

    fn finish(self, source: Text<C>) -> MapVariable<C> {
        let default = self
            .default
            .and_then(|index| self.values.get(index as usize))
            .cloned();
        MapVariable {
            source,
            hostnames: self.hostnames,
            volatile: self.volatile,
            keys: self.keys,
            regexes: Regexes::new(self.regexes, |(regex, _)| regex),
            default: default.unwrap_or(Text::Literal(Bytes::new())),
            values: self.values.into(),
        }
    }
}

/// The kind of a key in a map with `hostnames`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An exact name.
    Exact,
    /// `*.example.com`: matches names below `example.com`.
    Below,
    /// `.example.com`: matches `example.com` and names below it.
    SelfAndBelow,
    /// `www.example.*`: matches names that begin with `www.example.`.
    Beginning,
}

impl Kind {
    /// The kind of a key; `None` if it is neither a name nor a wildcard.
    pub fn of(key: &[u8]) -> Option<Kind> {
        let stars = key.iter().filter(|&&byte| byte == b'*').count();
        let malformed = key.windows(2).any(|pair| pair == b"..") || key.contains(&0);
        if stars > 1 || malformed {
            return None;
        }
        match key {
            [b'.', _, ..] => Some(Kind::SelfAndBelow),
            [b'*', b'.', _, ..] => Some(Kind::Below),
            [_, .., b'.', b'*'] => Some(Kind::Beginning),
            _ => (stars == 0).then_some(Kind::Exact),
        }
    }

    /// The key without its wildcard.
    fn name(self, key: &[u8]) -> &[u8] {
        let name = match self {
            Kind::Exact => Some(key),
            Kind::Below => key.get(2..),
            Kind::SelfAndBelow => key.get(1..),
            Kind::Beginning => key.get(..key.len().saturating_sub(2)),
        };
        name.unwrap_or_default()
    }

    /// The name that no other key may have; `None` for keys with `*`.
    pub fn named_by(self, key: &[u8]) -> Option<&[u8]> {
        matches!(self, Kind::Exact | Kind::SelfAndBelow).then(|| self.name(key))
    }
}

/// Keys and wildcards with the indices of their values, found in nginx's order.
#[derive(Debug, Default)]
pub struct Keys {
    exact: Map<Box<[u8]>, u32>,
    /// Keys that begin with a wildcard, by the part after the first dot. The flag says whether the
    /// part itself is matched too.
    below: Map<Box<[u8]>, (u32, bool)>,
    /// Keys that end with a wildcard, by the part before `.*`.
    beginning: Map<Box<[u8]>, u32>,
    /// The largest number of labels in a wildcard, which limits the lookups for a name with many
    /// dots.
    labels_max: usize,
}

impl Keys {
    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty() && self.beginning.is_empty()
    }

    /// Adds a key, which must be in lower case. Returns false if the key exists already.
    pub fn insert(&mut self, kind: Kind, key: &[u8], value: u32) -> bool {
        let name = kind.name(key);
        if kind != Kind::Exact {
            self.labels_max = self.labels_max.max(labels(name));
        }
        match kind {
            Kind::Exact => self.exact.insert(name.into(), value).is_none(),
            Kind::Below => self.below.insert(name.into(), (value, false)).is_none(),
            Kind::SelfAndBelow => self.below.insert(name.into(), (value, true)).is_none(),
            Kind::Beginning => self.beginning.insert(name.into(), value).is_none(),
        }
    }

    /// The index of the value for a name, which is compared without case.
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        if self.exact.is_empty() && self.labels_max == 0 {
            return None;
        }
        let name = if name.iter().any(u8::is_ascii_uppercase) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        };
        let exact = self.exact.get(&*name).copied();
        exact
            .or_else(|| self.find_below(&name))
            .or_else(|| self.find_beginning(&name))
    }

    /// The index of the value of the wildcard with the longest matching suffix.
    fn find_below(&self, name: &[u8]) -> Option<u32> {
        if self.below.is_empty() || name.is_empty() {
            return None;
        }
        let mut best = None;
        let dots = memchr::memrchr_iter(b'.', name).take(self.labels_max);
        for dot in dots {
            if let Some((value, _)) = name.get(dot + 1..).and_then(|end| self.below.get(end)) {
                best = Some(*value);
            }
        }
        let itself = || {
            self.below
                .get(name)
                .filter(|(_, itself)| *itself)
                .map(|(value, _)| *value)
        };
        if labels(name) <= self.labels_max {
            itself().or(best)
        } else {
            best
        }
    }

    /// The index of the value of the wildcard with the longest matching prefix.
    fn find_beginning(&self, name: &[u8]) -> Option<u32> {
        if self.beginning.is_empty() {
            return None;
        }
        let mut best = None;
        for dot in memchr::memchr_iter(b'.', name).take(self.labels_max) {
            if let Some(value) = name.get(..dot).and_then(|start| self.beginning.get(start)) {
                best = Some(*value);
            }
        }
        best
    }
}

/// The number of labels of a domain name: of parts separated by dots.
fn labels(name: &[u8]) -> usize {
    memchr::memchr_iter(b'.', name).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Session;

    /// Keys of a map with `hostnames`, numbered as they stand; the error of the first bad one.
    fn hostnames(keys: &[&str]) -> Result<Builder<Session>, String> {
        let mut builder = Builder {
            hostnames: true,
            ..Builder::default()
        };
        for (value, key) in (0..).zip(keys) {
            builder.key(key.as_bytes(), value)?;
        }
        Ok(builder)
    }

    #[test]
    fn names_are_found_in_nginx_order() {
        let names = [
            "example.com",
            "example.*",
            "*.example.com",
            ".dot.example.com",
            "*.www.example.com",
            "*.com",
            "www.*",
        ];
        let keys = hostnames(&names).unwrap().keys;
        for (name, value) in [
            ("example.com", Some(0)),
            ("EXAMPLE.com", Some(0)),
            ("example.org", Some(1)),
            ("example.co.uk", Some(1)),
            ("foo.example.com", Some(2)),
            (".example.com", Some(2)),
            ("dot.example.com", Some(3)),
            ("www.dot.example.com", Some(3)),
            ("www.example.com", Some(2)),
            ("a.www.example.com", Some(4)),
            ("other.com", Some(5)),
            ("www.org", Some(6)),
            ("www.", Some(6)),
            ("www", None),
            ("com", None),
            ("example", None),
            ("", None),
        ] {
            assert_eq!(keys.find(name.as_bytes()), value, "{name}");
        }
    }

    #[test]
    fn longest_beginning_wins_unless_nothing_follows() {
        let keys = hostnames(&["www.*", "www.example.*"]).unwrap().keys;
        assert_eq!(keys.find(b"www.example.com"), Some(1));
        assert_eq!(keys.find(b"www.example"), Some(0));
        assert_eq!(keys.find(b"www.examples.com"), Some(0));
    }

    #[test]
    fn names_with_many_dots_cost_no_more_lookups() {
        let keys = hostnames(&["*.a.b.c", "a.b.*"]).unwrap().keys;
        let dots = ".".repeat(100_000);
        assert_eq!(keys.find(format!("{dots}a.b.c").as_bytes()), Some(0));
        assert_eq!(keys.find(format!("a.b{dots}").as_bytes()), Some(1));
    }

    /// Errors are those of `nginx -t` for the same keys.
    #[test]
    fn conflicts_and_bad_wildcards_are_refused() {
        let error = |keys: &[&str]| hostnames(keys).err().unwrap_or_default();
        assert_eq!(
            error(&["a.com", "A.com"]),
            "conflicting parameter \"a.com\""
        );
        assert_eq!(
            error(&["a.com", ".a.com"]),
            "conflicting parameter \".a.com\""
        );
        assert_eq!(
            error(&[".a.com", "a.com"]),
            "conflicting parameter \"a.com\""
        );
        assert_eq!(
            error(&[".a.com", "*.a.com"]),
            "conflicting parameter \"*.a.com\""
        );
        assert_eq!(error(&["a.*", "a.*"]), "conflicting parameter \"a.*\"");
        assert_eq!(error(&["*.a.*"]), "invalid hostname or wildcard \"*.a.*\"");
        assert_eq!(
            error(&["a*.com"]),
            "invalid hostname or wildcard \"a*.com\""
        );
        assert_eq!(
            error(&["a..com"]),
            "invalid hostname or wildcard \"a..com\""
        );
        assert_eq!(error(&["*"]), "invalid hostname or wildcard \"*\"");
        assert_eq!(error(&["", "."]), "");
    }

    #[test]
    fn without_hostnames_stars_are_letters() {
        let mut builder = Builder::<Session>::default();
        assert_eq!(builder.key(b"*.Example.com", 7), Ok(()));
        assert_eq!(builder.keys.find(b"*.example.COM"), Some(7));
        assert_eq!(builder.keys.find(b"www.example.com"), None);
        assert_eq!(builder.key(b"", 8), Ok(()));
        assert_eq!(builder.keys.find(b""), Some(8));
    }
}
