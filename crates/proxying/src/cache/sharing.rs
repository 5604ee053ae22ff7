//! Directives beyond nginx's, for a cache in front of servers that are not prepared for one: which
//! clients may share a response, how responses without a freshness lifetime are treated, and
//! limits. All of them are off by default.
//!
//! A request with credentials belongs to one client. With `proxy_cache_credentials pass`, the cache
//! is only used for such a request if the response itself says that all clients may have it. RFC
//! 9111, section 3.5, demands this for `Authorization`; the directive extends it to `Cookie`.

use std::sync::{Mutex, PoisonError};

use base::hash::Map;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse};
use http::request::Request;
use proto::h1::response::BodyFraming;
use proto::header::KnownField;
use store::disk::EntryId;

use super::files::{self, Files, Seen};
use crate::answer::AnswerHead;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static CREDENTIALS: Setting<bool> =
    Setting::new("proxy_cache_credentials", &["share | pass"], |setter| {
        parse::enumeration(setter, &[("share", false), ("pass", true)])
    })
    .contexts(HSL)
    .default("share")
    .manual("What becomes of requests with `Authorization`, `Cookie` or a body. With `share` they are answered from the cache like all others, as by nginx. With `pass` a request with a body goes to the upstream; one with `Cookie` is answered from the cache, and its answer kept, only where that says `Cache-Control: public` or `s-maxage`, one with `Authorization` also where it says `must-revalidate` (RFC 9111, section 3.5).");

static IGNORE_COOKIES: Setting<Vec<CookieName>> =
    Setting::new("proxy_cache_ignore_cookies", &["name ..."], cookie_names)
        .contexts(HSL)
        .arity(Arity::at_least(1))
        .inherit(Inherit::Value)
        .manual("Cookies that say nothing of who asks, such as those of statistics: a request with no others counts as one without `Cookie` where `proxy_cache_credentials` is `pass`. `name*` is all that begin so. The upstream still gets them.");

static MICROCACHE: Setting<Option<Microcache>> =
    Setting::new("proxy_cache_microcache", &["off", "time [max_length]"], microcache)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::Value)
        .default("off")
        .manual("How long an answer is fresh that says nothing of that, and for which `proxy_cache_valid` has nothing either. Only an answer with status 200 and a validator (`ETag`, `Last-Modified`), of at most `max_length` (64k), to a request without query, cookies, `Authorization` and body. Behind that time one request asks whether it has changed, and the others wait for it as `proxy_cache_lock` says.");

static MAX_VARIANTS: Setting<u64> =
    Setting::new("proxy_cache_max_variants", &["number"], parse::number)
        .contexts(HSL)
        .default("0")
        .manual("How many answers that differ by `Vary` may be kept under one key. One more takes the place of that which was kept first, but for the very first. With 0 there is no bound, as with nginx.");

static LOCK_MAX_WAITING: Setting<u64> =
    Setting::new("proxy_cache_lock_max_waiting", &["number"], parse::number)
        .contexts(HSL)
        .default("0")
        .manual("How many requests may wait for one answer by `proxy_cache_lock`. Any more are passed on, and their answers not kept. With 0 there is no bound, as with nginx.");

/// The directives, which only `proxy_` has.
pub const DIRECTIVES: [&dyn Declared; 6] = [
    &CREDENTIALS,
    &IGNORE_COOKIES,
    &MICROCACHE,
    &MAX_VARIANTS,
    &LOCK_MAX_WAITING,
    &files::FILES,
];

/// The values of the directives in a scope.
#[derive(Debug, Default)]
pub(super) struct SharingSettings {
    /// `proxy_cache_credentials pass`: a request with credentials only shares a response that
    /// allows it.
    passes_credentials: bool,
    ignored_cookies: Box<[CookieName]>,
    pub(super) microcache: Option<Microcache>,
    pub(super) variants: Option<Variants>,
    /// The maximum number of requests that wait for one response.
    pub(super) waiting_max: Option<usize>,
    pub(super) files: Option<Files>,
}

/// Limits the number of stored variants of each key.
#[derive(Debug)]
pub(super) struct Variants {
    /// Maximum number of variants of a key.
    max: usize,
    /// The stored variants by the id of their key, oldest first.
    known: Mutex<Map<EntryId, Vec<EntryId>>>,
}

/// Maximum number of keys with known variants. When it is reached, all keys are forgotten.
const KEYS_MAX: usize = 64 * 1024;

impl Variants {
    /// Notes that a variant is stored. Returns the oldest variant, to be removed, if the key then
    /// has too many.
    pub(super) fn keep(&self, main: EntryId, id: EntryId) -> Option<EntryId> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEYS_MAX && !known.contains_key(&main) {
            known.clear();
        }
        let kept = known.entry(main).or_default();
        kept.retain(|other| *other != id);
        kept.push(id);
        // The entry under the key's own id stays, since all variants are found through it.
        let first = kept.iter().position(|other| *other != main)?;
        (kept.len() > self.max).then(|| kept.remove(first))
    }
}

/// The credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    None,
    Authorization,
    /// `Cookie`, with or without `Authorization`.
    Cookie,
}

/// The freshness lifetime in seconds of responses that state none, and the maximum length of their
/// bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Microcache {
    /// The lifetime in seconds.
    pub(super) fresh: i64,
    /// The maximum length of a body in bytes.
    length_max: u64,
}

const MICROCACHE_LENGTH_MAX: u64 = 64 * 1024;

/// The name of a cookie, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CookieName {
    name: Box<[u8]>,
    is_prefix: bool,
}

impl CookieName {
    fn is(&self, name: &[u8]) -> bool {
        if self.is_prefix {
            name.starts_with(&self.name)
        } else {
            *self.name == *name
        }
    }
}

/// Whether `proxy_cache_credentials` of a scope is `pass`.
pub(super) fn has_credentials_pass(scope: ScopeRef<'_>) -> Result<bool, Fault> {
    scope.get(&CREDENTIALS)
}

impl SharingSettings {
    pub(super) fn compile(scope: ScopeRef<'_>) -> Result<SharingSettings, Fault> {
        Ok(SharingSettings {
            passes_credentials: scope.get(&CREDENTIALS)?,
            ignored_cookies: scope.written(&IGNORE_COOKIES)?.unwrap_or_default().into(),
            microcache: scope.get(&MICROCACHE)?,
            variants: bound(scope.get(&MAX_VARIANTS)?).map(|max| Variants {
                max,
                known: Mutex::default(),
            }),
            waiting_max: bound(scope.get(&LOCK_MAX_WAITING)?),
            files: scope.get(&files::FILES)?.map(Files::new),
        })
    }

    /// Whether a request with a body bypasses the cache, since its response depends on more than
    /// the key.
    pub(super) fn passes(&self, request: &Request) -> bool {
        self.passes_credentials && has_body(request)
    }

    /// Whether the client's range and conditions are passed on to the upstream: the request has
    /// some, and its response cannot serve other clients (`is_its_own`).
    pub(super) fn asks_as_client(&self, request: &Request, is_its_own: bool) -> bool {
        let is_part = |known| {
            matches!(
                known,
                KnownField::Range
                    | KnownField::IfRange
                    | KnownField::IfMatch
                    | KnownField::IfNoneMatch
                    | KnownField::IfModifiedSince
                    | KnownField::IfUnmodifiedSince
            )
        };
        let mut fields = request.client.known_headers();
        self.passes_credentials && is_its_own && fields.any(|(known, ..)| is_part(known))
    }

    /// The credentials of a request; none without `proxy_cache_credentials pass`.
    pub(super) fn credentials(&self, request: &Request) -> Credentials {
        if self.passes_credentials {
            self.shown(request)
        } else {
            Credentials::None
        }
    }

    /// The credentials that a request shows, except for cookies that may be ignored.
    fn shown(&self, request: &Request) -> Credentials {
        let mut shown = Credentials::None;
        for (known, _, value) in request.client.known_headers() {
            match known {
                KnownField::Cookie if !self.ignores(value) => return Credentials::Cookie,
                KnownField::Authorization => shown = Credentials::Authorization,
                _ => {}
            }
        }
        shown
    }

    /// Whether all cookies in a `Cookie` field may be ignored.
    fn ignores(&self, field: &[u8]) -> bool {
        field.split(|byte| *byte == b';').all(|cookie| {
            let name = cookie.split(|byte| *byte == b'=').next();
            let name = name.unwrap_or_default().trim_ascii();
            cookie.trim_ascii().is_empty() || self.ignored_cookies.iter().any(|it| it.is(name))
        })
    }

    /// Whether a response without a freshness lifetime may be stored for this request.
    pub(super) fn is_plain(&self, request: &Request) -> bool {
        !request.request_uri().contains(&b'?')
            && !has_body(request)
            && self.shown(request) == Credentials::None
    }

    /// Whether other requests wait while one revalidates an entry.
    pub(super) fn awaits_updates(&self) -> bool {
        self.passes_credentials || self.microcache.is_some() || self.files.is_some()
    }

    /// The freshness lifetime in seconds of a response that states none, to a request for which it
    /// may be stored. The maximum length does not apply to a response that is a file.
    pub(super) fn micro_fresh(&self, head: &AnswerHead, seen: Option<&Seen>) -> Option<i64> {
        let microcache = self.microcache?;
        let has = |known| head.find(known).is_some();
        let is_small = length(head).is_some_and(|length| length <= microcache.length_max);
        let may = head.status() == 200
            && (has(KnownField::ETag) || has(KnownField::LastModified))
            && !has(KnownField::Pragma)
            && (is_small || seen.is_some_and(|seen| seen.is(head, length(head))));
        may.then_some(microcache.fresh)
    }

    /// The freshness lifetime in seconds after a successful revalidation, for a response that
    /// states none.
    pub(super) fn micro_fresh_again(&self, status: u16) -> Option<i64> {
        let microcache = self.microcache.filter(|_| status == 200);
        microcache.map(|microcache| microcache.fresh)
    }
}

/// The length of a response's body, if the head states it.
fn length(head: &AnswerHead) -> Option<u64> {
    match head.body(false) {
        BodyFraming::None => Some(0),
        BodyFraming::Length(length) => Some(length),
        BodyFraming::Chunked | BodyFraming::UntilClose => None,
    }
}

impl Credentials {
    /// Whether a request with these credentials may share the response with this head with other
    /// requests.
    pub(super) fn permit(self, head: &AnswerHead) -> bool {
        match self {
            Credentials::None => true,
            Credentials::Authorization => {
                let said = SharingDirectives::of(head);
                said.is_public || said.must_revalidate
            }
            Credentials::Cookie => SharingDirectives::of(head).is_public,
        }
    }
}

/// The `Cache-Control` directives of a response that let clients with credentials share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SharingDirectives {
    /// `public` or `s-maxage`.
    is_public: bool,
    must_revalidate: bool,
}

impl SharingDirectives {
    fn of(head: &AnswerHead) -> SharingDirectives {
        let mut said = SharingDirectives::default();
        for field in head.all(KnownField::CacheControl) {
            said.take(field.value(&head.bytes));
        }
        said
    }

    fn take(&mut self, value: &[u8]) {
        for element in elements(value) {
            let name = element.split(|byte| *byte == b'=').next();
            match &*name.unwrap_or_default().trim_ascii().to_ascii_lowercase() {
                b"public" | b"s-maxage" => self.is_public = true,
                b"must-revalidate" => self.must_revalidate = true,
                _ => {}
            }
        }
    }
}

/// The elements of a list. A comma in quotes does not separate elements.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value.split(move |byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match byte {
            b'"' if !was_escaped => is_quoted = !is_quoted,
            b'\\' if is_quoted && !was_escaped => is_escaped = true,
            b',' => return !is_quoted,
            _ => {}
        }
        false
    })
}

/// The limit that a directive states; `None` for 0, which is no limit.
fn bound(number: u64) -> Option<usize> {
    (number > 0).then(|| usize::try_from(number).unwrap_or(usize::MAX))
}

/// Whether a request has a body, even an empty one.
fn has_body(request: &Request) -> bool {
    request.body.is_announced()
}

fn cookie_names(setter: &Setter<'_>) -> Result<Vec<CookieName>, Fault> {
    setter.args().iter().map(cookie_name).collect()
}

fn cookie_name(word: &Word) -> Result<CookieName, Fault> {
    let prefix = word.bytes.strip_suffix(b"*");
    let name = prefix.unwrap_or(&word.bytes);
    let is_token = |byte: &u8| byte.is_ascii_graphic() && !b"=;,\"*".contains(byte);
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(Fault::at(
            word,
            format!("invalid name of a cookie \"{}\"", word.text()),
        ));
    }
    Ok(CookieName {
        name: name.into(),
        is_prefix: prefix.is_some(),
    })
}

fn microcache(setter: &Setter<'_>) -> Result<Option<Microcache>, Fault> {
    let [time, rest @ ..] = setter.args() else {
        return Ok(None); // the arity has been checked
    };
    if rest.is_empty() && &*time.bytes == b"off" {
        return Ok(None);
    }
    let fresh = seconds(time)?;
    if fresh == 0 {
        return Err(Fault::at(
            time,
            "the time must be a second at least".to_owned(),
        ));
    }
    let length_max = match rest.first() {
        Some(word) => parse::size_word(word, setter)?,
        None => MICROCACHE_LENGTH_MAX,
    };
    Ok(Some(Microcache {
        fresh: fresh.into(),
        length_max,
    }))
}

fn seconds(word: &Word) -> Result<u32, Fault> {
    let time = parse::time_seconds(&word.bytes).and_then(|time| u32::try_from(time).ok());
    time.ok_or_else(|| Fault::at(word, format!("invalid time value \"{}\"", word.text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(value: &str) -> SharingDirectives {
        let mut said = SharingDirectives::default();
        said.take(value.as_bytes());
        said
    }

    #[test]
    fn only_whole_words_say_that_all_may_have_it() {
        for value in [
            "public",
            "PUBLIC, max-age=1",
            "max-age=1 , s-maxage=3",
            "s-maxage",
        ] {
            assert!(said(value).is_public, "{value}");
        }
        for value in [
            "",
            "max-age=1",
            "x-public",
            "publics",
            "x=\"a, public\"",
            "x=\"\\\", public\"",
        ] {
            assert!(!said(value).is_public, "{value}");
        }
        assert!(said("max-age=1, must-revalidate").must_revalidate);
        assert!(said("x=\"a\", public").is_public);
    }

    #[test]
    fn what_was_kept_first_goes_for_one_too_many() {
        let id = |number: u8| EntryId([number; 16]);
        let variants = Variants {
            max: 2,
            known: Mutex::default(),
        };
        assert_eq!(variants.keep(id(0), id(0)), None);
        assert_eq!(variants.keep(id(0), id(1)), None);
        assert_eq!(variants.keep(id(0), id(0)), None);
        assert_eq!(variants.keep(id(0), id(2)), Some(id(1)));
        assert_eq!(variants.keep(id(9), id(3)), None);
        assert_eq!(variants.keep(id(0), id(1)), Some(id(2)));
    }

    #[test]
    fn cookies_that_say_nothing_are_told_from_others() {
        let name = |name: &str, is_prefix| CookieName {
            name: name.as_bytes().into(),
            is_prefix,
        };
        let sharing = SharingSettings {
            ignored_cookies: Box::new([name("theme", false), name("_ga", true)]),
            ..SharingSettings::default()
        };
        for field in ["theme=dark", "_ga=1; _ga_X=2; theme=", "", " ; theme=1;"] {
            assert!(sharing.ignores(field.as_bytes()), "{field}");
        }
        for field in [
            "session=1",
            "theme=dark; session=1",
            "Theme=1",
            "theme2=1",
            "=x",
            "x",
        ] {
            assert!(!sharing.ignores(field.as_bytes()), "{field}");
        }
    }
}
