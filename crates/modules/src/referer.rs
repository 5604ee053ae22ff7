//! `valid_referers` and `$invalid_referer`: whether a request comes from a link on an allowed page.
//!
//! <https://nginx.org/en/docs/http/ngx_http_referer_module.html>. Clients can send any Referer, so
//! this only stops ordinary browsers that follow links from other sites. Names are looked up as in
//! `map` with host names.

use std::sync::Arc;

use base::hash::Set;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::module::{Module, ShortcutDoc};
use http::request::{Regex, Request};
use http::slots::PlanSlot;
use http::variables::BuiltinVariable;
use pattern::{Hit, Undecided};
use proto::header::KnownField;
use rules::server_name::SERVER_NAME;
use variables::map::{Keys, Kind};
use variables::regex::Regexes;

const SL: Contexts = Contexts::SERVER.or(Contexts::LOCATION);

/// The longest examined host of a Referer, in bytes (nginx's buffer).
const HOST_LENGTH_MAX: usize = 256;

/// The length of the shortest valid Referer, in bytes: `http://i.ru`.
const LENGTH_MIN: usize = 11;

/// Declares the directive `valid_referers`.
pub static VALID_REFERERS: Setting<Vec<Word>> = Setting::new(
    "valid_referers",
    &["none | blocked | server_names | name | ~regex ..."],
    words,
)
.contexts(SL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "Which Referer fields leave `$invalid_referer` empty: `none`, where there is no field; \
     `blocked`, where it does not begin with `http://` or `https://`; `server_names`, the names \
     of this server; names of hosts, with `*` at either end and a beginning of the path behind; \
     and regular expressions that the text after `http://` must fit.",
);

static REFERER_HASH_MAX_SIZE: Setting<u64> =
    Setting::new("referer_hash_max_size", &["size"], parse::number)
        .contexts(SL)
        .default("2048")
        .no_effect("tables of names grow by themselves")
        .manual("The largest size of nginx's hash tables for referers.");

static REFERER_HASH_BUCKET_SIZE: Setting<u64> =
    Setting::new("referer_hash_bucket_size", &["size"], parse::number)
        .contexts(SL)
        .default("64")
        .no_effect("tables of names have no buckets of a fixed size")
        .manual("The size of a bucket in nginx's hash tables for referers.");

fn words(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    let words: Vec<Word> = words.cloned().collect();
    for word in &words {
        match &*word.bytes {
            b"" => return Err(Fault::at(word, "invalid referer \"\"")),
            b"~" => return Err(Fault::at(word, "empty regex in \"~\"")),
            _ => {}
        }
    }
    Ok(words)
}

/// The referers that `valid_referers` allows.
#[derive(Debug, Default)]
pub struct Referers {
    names: RefererHosts,
    /// Patterns for the text after the scheme.
    patterns: Arc<Regexes<Regex>>,
    /// The names of `server_name` that are patterns, which the host must match.
    server_patterns: Regexes<Regex>,
    /// Whether a request without a Referer is allowed.
    none: bool,
    /// Whether a Referer that begins neither with `http://` nor with `https://` is allowed.
    blocked: bool,
}

impl Feature for Referers {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &VALID_REFERERS,
        &REFERER_HASH_MAX_SIZE,
        &REFERER_HASH_BUCKET_SIZE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Referers, Fault> {
        let Some(words) = scope.written(&VALID_REFERERS)? else {
            return Ok(Referers::default());
        };
        let mut referers = Referers::default();
        let mut server_names = false;
        let mut patterns = Vec::new();
        for word in &words {
            match &*word.bytes {
                b"none" => referers.none = true,
                b"blocked" => referers.blocked = true,
                b"server_names" => server_names = true,
                [b'~', pattern @ ..] => patterns.push(pattern_of(compiler, word, pattern)?),
                text => referers.names.add(word, text)?,
            }
        }
        if server_names {
            referers.add_server_names(compiler, scope)?;
        }
        if (referers.none || referers.blocked) && referers.names.is_empty() {
            return Err(Fault::new(
                "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" \
                 directive without any valid referer",
            ));
        }
        if scope.writes(&[&VALID_REFERERS]) && !referers.names.is_empty() {
            let sizes = [&REFERER_HASH_MAX_SIZE, &REFERER_HASH_BUCKET_SIZE];
            framework::tables::check(scope, "referer_hash", sizes)?;
        }
        // As in nginx: a scope without patterns of its own inherits those of the enclosing scope.
        if !patterns.is_empty() {
            referers.patterns = Arc::new(Regexes::new(patterns, |regex| regex));
        } else if let Some(around) = scope.parent() {
            let around = compiler.feature::<Referers>(around)?;
            referers.patterns = Arc::clone(&around.patterns);
        }
        Ok(referers)
    }
}

impl Referers {
    fn add_server_names(
        &mut self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<(), Fault> {
        for word in scope.get(&SERVER_NAME)? {
            let hostname = framework::host::hostname().to_ascii_lowercase();
            match &*word.bytes {
                b"$hostname" => self.names.add(&word, hostname.as_bytes())?,
                [b'~', pattern @ ..] => {
                    self.server_patterns
                        .push(Regex::of_list(compiler, pattern, true)?);
                }
                text => self.names.add(&word, &text.to_ascii_lowercase())?,
            }
        }
        self.server_patterns.finish(|regex| regex);
        Ok(())
    }

    /// Whether a Referer field, or its absence, is allowed. `undecided` is called for a pattern
    /// whose match on this part of the field fails with an error.
    fn allow(&self, referer: Option<&[u8]>, undecided: impl Fn(&Regex, &[u8], Undecided)) -> bool {
        if self.is_off() {
            return true;
        }
        let Some(referer) = referer else {
            return self.none;
        };
        let Some(rest) = without_scheme(referer) else {
            return self.blocked;
        };
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b':'));
        let (host, behind) = rest.split_at(end.unwrap_or(rest.len()));
        if host.len() > HOST_LENGTH_MAX {
            return false;
        }
        if let Some(start) = self.names.find(host) {
            let path = memchr::memchr(b'/', behind).and_then(|at| behind.get(at..));
            return path.unwrap_or_default().starts_with(start);
        }
        let host = host.to_ascii_lowercase();
        for (patterns, subject) in [(&self.server_patterns, &*host), (&*self.patterns, rest)] {
            let found = patterns.first(subject, |_, regex, hit| match hit {
                Hit::Candidate => regex.is_match(subject).map_err(|cause| (regex, cause)),
                Hit::Match => Ok(true),
            });
            match found {
                Ok(Some(_)) => return true,
                Ok(None) => {}
                Err((regex, cause)) => {
                    undecided(regex, subject, cause);
                    return false;
                }
            }
        }
        false
    }
}

fn pattern_of(compiler: &Compiler<'_>, word: &Word, pattern: &[u8]) -> Result<Regex, Fault> {
    let regex = Regex::of_list(compiler, pattern, true);
    regex.map_err(|fault| fault.or_at(word.position))
}

fn without_scheme(referer: &[u8]) -> Option<&[u8]> {
    let rest_after = |scheme: &[u8]| {
        let (start, rest) = referer.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let rest = rest_after(b"http://").or_else(|| rest_after(b"https://"));
    rest.filter(|_| referer.len() >= LENGTH_MIN)
}

/// Hosts by name or wildcard, each with a path prefix.
#[derive(Debug, Default)]
struct RefererHosts {
    keys: Keys,
    /// The names that were added, to find conflicts.
    taken: Set<Vec<u8>>,
    paths: Vec<Bytes>,
}

impl RefererHosts {
    fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    fn add(&mut self, word: &Word, text: &[u8]) -> Result<(), Fault> {
        let slash = memchr::memchr(b'/', text).unwrap_or(text.len());
        let (name, path) = text.split_at(slash);
        let shown = String::from_utf8_lossy(name);
        let fault = |text: &str| Fault::at(word, format!("{text} \"{shown}\"")).while_reading();
        let kind = Kind::of(name).ok_or_else(|| fault("invalid hostname or wildcard"))?;
        let key = name.to_ascii_lowercase();
        let is_taken = match kind.named_by(&key) {
            Some(name) => !self.taken.insert(name.to_vec()),
            None => false,
        };
        if is_taken || !self.keys.insert(kind, &key, self.paths.len() as u32) {
            return Err(fault("conflicting parameter"));
        }
        self.paths.push(Bytes::copy_from_slice(path));
        Ok(())
    }

    fn find(&self, host: &[u8]) -> Option<&Bytes> {
        self.paths.get(self.keys.find(host)? as usize)
    }
}

/// The `valid_referers` of a plan; unset if there are none.
static REFERERS: PlanSlot<Referers> = PlanSlot::new();

impl Module for Referers {
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same("it only makes a variable")];

    fn is_off(&self) -> bool {
        self.names.is_empty()
            && self.patterns.all().is_empty()
            && self.server_patterns.all().is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&REFERERS, self);
    }
}

/// `$invalid_referer`: `1`, or empty if the Referer is valid.
pub fn invalid_referer(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let undecided = |regex: &Regex, subject: &[u8], cause| {
        regex.alert(request, subject, cause, "");
    };
    let referer = request.header(KnownField::Referer);
    let referers = request.plan.of(&REFERERS);
    if referers.is_some_and(|referers| !referers.allow(referer, undecided)) {
        out.push(b'1');
    }
    true
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    (name == "invalid_referer").then(|| BuiltinVariable::once(invalid_referer).assignable())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(regex: &Regex, _: &[u8], _: Undecided) {
        panic!("{regex:?}");
    }

    fn referers(names: &[&str], none: bool, blocked: bool) -> Referers {
        let mut referers = Referers {
            none,
            blocked,
            ..Referers::default()
        };
        for name in names {
            let word = Word {
                bytes: name.as_bytes().into(),
                quoted: false,
                position: Default::default(),
            };
            referers.names.add(&word, name.as_bytes()).unwrap();
        }
        referers
    }

    /// By `ngx_http_referer_variable`.
    #[test]
    fn names_and_paths() {
        let names = ["example.com", "*.example.org", "www.example.*/galleries/"];
        let referers = referers(&names, false, false);
        for (referer, valid) in [
            ("http://example.com", true),
            ("https://EXAMPLE.com:80/any", true),
            ("HTTP://a.example.org/", true),
            ("http://example.org/", false),
            ("http://www.example.net/galleries/1", true),
            ("http://www.example.net:80/galleries/", true),
            ("http://www.example.net/gallery", false),
            ("http://www.example.net", false),
            ("ftp://example.com/", false),
            ("example.com", false),
            ("http://x.y", false),
            ("", false),
        ] {
            assert_eq!(
                referers.allow(Some(referer.as_bytes()), never),
                valid,
                "{referer}"
            );
        }
        assert!(!referers.allow(None, never));
        let long = format!("http://{}/", "a".repeat(257));
        assert!(!referers.allow(Some(long.as_bytes()), never));
    }

    #[test]
    fn no_field_and_blocked_ones() {
        let referers = referers(&["example.com"], true, true);
        assert!(referers.allow(None, never));
        assert!(referers.allow(Some(b"hidden"), never));
        assert!(referers.allow(Some(b"http://x"), never));
        assert!(!referers.allow(Some(b"http://other.example"), never));
        assert!(Referers::default().allow(Some(b"http://anybody.example"), never));
    }
}
