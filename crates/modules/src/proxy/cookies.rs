//! `proxy_cookie_domain`, `proxy_cookie_path` and `proxy_cookie_flags`: rewriting of the cookies in
//! upstream responses.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_cookie_domain>. Cookies are
//! parsed as loosely as in nginx: any text between semicolons is an attribute. A changed cookie is
//! written with `; ` before each attribute.

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
};
use framework::compile::Compiler;
use http::request::{Regex, Request, Text};
use http::variables::Compiling as _;

use proxying::activity::WHILE_READING;

use proxying::rewriting::Undecided;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static COOKIE_DOMAIN: Setting<Vec<CookieLine>> =
    Setting::new("proxy_cookie_domain", &["domain replacement", "off"], lines)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::List)
        .default("off")
        .manual("Replaces the Domain of the answer's cookies where it is `domain`, with or without a dot before it and whatever its case, or where it matches the regular expression behind a ~. Both may hold variables, the replacement captures as well. Of several lines the first that matches holds.");

static COOKIE_PATH: Setting<Vec<CookieLine>> =
    Setting::new("proxy_cookie_path", &["path replacement", "off"], lines)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::List)
        .default("off")
        .manual("Replaces `path` at the beginning of the Path of the answer's cookies, or the whole Path where it matches the regular expression behind a ~ (behind ~* whatever the case). Both may hold variables, the replacement captures as well. Of several lines the first that matches holds.");

static COOKIE_FLAGS: Setting<Vec<CookieLine>> =
    Setting::new("proxy_cookie_flags", &["cookie [flag ...]", "off"], lines)
        .contexts(HSL)
        .arity(Arity::between(1, 4))
        .inherit(Inherit::List)
        .default("off")
        .manual("Sets flags of the answer's cookies that have this name, whatever its case, or match the regular expression behind a ~: secure, httponly, samesite=strict, samesite=lax and samesite=none add them; nosecure, nohttponly and nosamesite remove them. Name and flags may hold variables. Of several lines the first that names the cookie holds.");

/// The directives about cookies.
pub(super) const DIRECTIVES: [&dyn Declared; 3] = [&COOKIE_DOMAIN, &COOKIE_PATH, &COOKIE_FLAGS];

/// A directive as written.
enum CookieLine {
    Off,
    /// The first argument, which selects the cookies, and the other arguments.
    Line(Word, Vec<Word>),
}

/// The cookie directives of a scope.
#[derive(Default)]
pub(crate) struct Cookies {
    domains: Vec<Rewrite>,
    paths: Vec<Rewrite>,
    flags: Vec<FlagsOf>,
}

/// The rewriting of an attribute's value.
enum Rewrite {
    /// Replaces a domain, with or without a leading dot.
    Domain { from: Text, to: Text },
    /// Replaces a prefix.
    Prefix { from: Text, to: Text },
    /// Replaces the whole value if a regex matches.
    Regex { pattern: Regex, to: Text },
}

/// The flags of the cookies with a certain name.
struct FlagsOf {
    cookie: Cookie,
    flags: Vec<Text>,
}

/// Selects cookies by their name, or by a regex that matches it.
enum Cookie {
    Named(Text),
    Matching(Regex),
}

/// Reads the lines of one directive in one scope. `off` must be the only line.
fn lines(setter: &Setter<'_>) -> Result<Vec<CookieLine>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        let is_off = matches!(line.args.as_slice(), [word] if &*word.bytes == b"off");
        let after_off = matches!(all.last(), Some(CookieLine::Off));
        if after_off || is_off && !all.is_empty() {
            let text = format!("\"{}\" directive is duplicate", setter.name());
            return Err(Fault::at(&line.name, text));
        }
        all.push(if is_off {
            CookieLine::Off
        } else {
            written(line)?
        });
    }
    Ok(all)
}

fn written(line: &Line) -> Result<CookieLine, Fault> {
    let [name, rest @ ..] = line.args.as_slice() else {
        return Err(Fault::new("invalid number of arguments"));
    };
    if rest.is_empty() {
        return Err(Fault::invalid_parameter(name));
    }
    if !name.bytes.starts_with(b"~") {
        Template::parse(name)?;
    }
    for word in rest {
        Template::parse(word)?;
    }
    Ok(CookieLine::Line(name.clone(), rest.to_vec()))
}

impl Cookies {
    /// Compiles the directives of a scope.
    pub(super) fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut cookies = Cookies::default();
        for (name, to) in in_force(scope, &COOKIE_DOMAIN)? {
            let Some(to) = to.first() else { continue };
            cookies.domains.push(match pattern(compiler, &name)? {
                Some(pattern) => Rewrite::Regex {
                    pattern,
                    to: text(compiler, to)?,
                },
                None => Rewrite::Domain {
                    from: text(compiler, &without_dot(&name))?,
                    to: text(compiler, &without_dot(to))?,
                },
            });
        }
        for (name, to) in in_force(scope, &COOKIE_PATH)? {
            let Some(to) = to.first() else { continue };
            let to = text(compiler, to)?;
            let caseful = name.bytes.starts_with(b"~") && !name.bytes.starts_with(b"~*");
            let pattern = match name.bytes.strip_prefix(b"~") {
                Some(written) if caseful => Some(regex(compiler, &name, written, false)?),
                Some(written) => Some(regex(
                    compiler,
                    &name,
                    written.get(1..).unwrap_or_default(),
                    true,
                )?),
                None => None,
            };
            cookies.paths.push(match pattern {
                Some(pattern) => Rewrite::Regex { pattern, to },
                None => Rewrite::Prefix {
                    from: text(compiler, &name)?,
                    to,
                },
            });
        }
        for (name, flags) in in_force(scope, &COOKIE_FLAGS)? {
            let flags = flags.iter().map(|flag| text(compiler, flag));
            let flags = flags.collect::<Result<_, Fault>>()?;
            let cookie = match pattern(compiler, &name)? {
                Some(pattern) => Cookie::Matching(pattern),
                None => Cookie::Named(text(compiler, &name)?),
            };
            cookies.flags.push(FlagsOf { cookie, flags });
        }
        Ok(cookies)
    }

    /// Rewrites the value of a Set-Cookie field; `None` if it is unchanged.
    pub(super) fn rewrite(
        &self,
        request: &mut Request,
        value: &[u8],
    ) -> Result<Option<Bytes>, Undecided> {
        if self.domains.is_empty() && self.paths.is_empty() && self.flags.is_empty() {
            return Ok(None);
        }
        let mut attributes = parse(value);
        let Some((cookie, rest)) = attributes.split_first_mut() else {
            return Ok(None);
        };
        if cookie.value.is_none() {
            return Ok(None);
        }
        let mut changed = false;
        for attribute in rest {
            let rewrites = match &attribute.name {
                name if name.eq_ignore_ascii_case(b"domain") => &self.domains,
                name if name.eq_ignore_ascii_case(b"path") => &self.paths,
                _ => continue,
            };
            let Some(value) = &mut attribute.value else {
                continue;
            };
            let mut found = rewrites.iter();
            if let Some(replaced) = found.find_map(|rewrite| rewrite.apply(request, value)) {
                *value = replaced;
                changed = true;
            }
        }
        if let Some(flags) = self.flags_of(request, &attributes)? {
            set_flags(&mut attributes, flags);
            changed = true;
        }
        Ok(changed.then(|| join(&attributes)))
    }

    /// The flags of the first directive that names the cookie; `None` if no directive does, or if
    /// none of its arguments is a known flag.
    fn flags_of(
        &self,
        request: &mut Request,
        attributes: &[Attribute],
    ) -> Result<Option<Flags>, Undecided> {
        let name = attributes.first().map_or(&b""[..], |cookie| &cookie.name);
        for FlagsOf { cookie, flags } in &self.flags {
            let is_meant = match cookie {
                Cookie::Named(text) => text.evaluate(request).eq_ignore_ascii_case(name),
                Cookie::Matching(pattern) => {
                    pattern.matches(request, name).map_err(|undecided| {
                        pattern.alert(request, name, undecided, WHILE_READING);
                        Undecided
                    })?
                }
            };
            if is_meant {
                let flags = flags
                    .iter()
                    .map(|flag| Flags::named(&flag.evaluate(request)));
                let flags = flags.fold(Flags(0), |all, flag| Flags(all.0 | flag.0));
                return Ok((flags != Flags(0)).then_some(flags));
            }
        }
        Ok(None)
    }
}

/// The directives in force in a scope.
fn in_force(
    scope: ScopeRef<'_>,
    setting: &Setting<Vec<CookieLine>>,
) -> Result<Vec<(Word, Vec<Word>)>, Fault> {
    let lines = scope.written(setting)?.unwrap_or_default();
    let lines = lines.into_iter().filter_map(|line| match line {
        CookieLine::Off => None,
        CookieLine::Line(name, rest) => Some((name, rest)),
    });
    Ok(lines.collect())
}

fn text(compiler: &Compiler<'_>, word: &Word) -> Result<Text, Fault> {
    Ok(compiler.text(&Template::parse(word)?))
}

/// The regex of an argument that begins with `~`, which ignores case; `None` for other arguments.
fn pattern(compiler: &Compiler<'_>, word: &Word) -> Result<Option<Regex>, Fault> {
    let written = word.bytes.strip_prefix(b"~");
    written
        .map(|written| regex(compiler, word, written, true))
        .transpose()
}

fn regex(
    compiler: &Compiler<'_>,
    word: &Word,
    pattern: &[u8],
    caseless: bool,
) -> Result<Regex, Fault> {
    let regex = Regex::new(compiler, pattern, caseless);
    regex.map_err(|fault| fault.or_at(word.position))
}

fn without_dot(word: &Word) -> Word {
    Word {
        bytes: word.bytes.strip_prefix(b".").unwrap_or(&word.bytes).into(),
        ..word.clone()
    }
}

impl Rewrite {
    /// The new value; `None` if this rule does not apply. As in nginx, a regex whose match fails
    /// with an error does not match.
    fn apply(&self, request: &mut Request, value: &[u8]) -> Option<Vec<u8>> {
        match self {
            Rewrite::Domain { from, to } => {
                let (dot, domain) = match value.strip_prefix(b".") {
                    Some(domain) => (&b"."[..], domain),
                    None => (&b""[..], value),
                };
                let is_meant = from.evaluate(request).eq_ignore_ascii_case(domain);
                is_meant.then(|| [dot, &to.evaluate(request)].concat())
            }
            Rewrite::Prefix { from, to } => {
                let rest = value.strip_prefix(&*from.evaluate(request))?;
                Some([&to.evaluate(request), rest].concat())
            }
            Rewrite::Regex { pattern, to } => match pattern.matches(request, value) {
                Ok(matched) => matched.then(|| to.evaluate(request).to_vec()),
                Err(undecided) => {
                    pattern.alert(request, value, undecided, WHILE_READING);
                    None
                }
            },
        }
    }
}

/// A part of a Set-Cookie field between two semicolons. The first part is the cookie itself: its
/// name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attribute {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Attribute {
    fn new(name: &[u8], value: Option<&[u8]>) -> Attribute {
        Attribute {
            name: name.to_vec(),
            value: value.map(<[u8]>::to_vec),
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// Splits the value of Set-Cookie at its semicolons.
fn parse(value: &[u8]) -> Vec<Attribute> {
    let parts = value.split(|byte| *byte == b';');
    let parts = parts.map(|part| match memchr::memchr(b'=', part) {
        None => Attribute::new(without_spaces(part), None),
        Some(at) => {
            let (name, value) = part.split_at(at);
            let value = value.get(1..).unwrap_or_default();
            Attribute::new(without_spaces(name), Some(without_spaces(value)))
        }
    });
    parts.collect()
}

/// Trims spaces, but not tabs.
fn without_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

/// The value of Set-Cookie with these attributes.
fn join(attributes: &[Attribute]) -> Bytes {
    let mut out = Vec::new();
    for (at, Attribute { name, value }) in attributes.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(name);
        if let Some(value) = value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
    out.into()
}

/// The flags to set or clear on a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags(u16);

impl Flags {
    const SECURE: Flags = Flags(1);
    const NO_SECURE: Flags = Flags(1 << 1);
    const HTTP_ONLY: Flags = Flags(1 << 2);
    const NO_HTTP_ONLY: Flags = Flags(1 << 3);
    const STRICT: Flags = Flags(1 << 4);
    const LAX: Flags = Flags(1 << 5);
    const NONE: Flags = Flags(1 << 6);
    const NO_SAME_SITE: Flags = Flags(1 << 7);

    /// The flag with this name. No flag for an unknown name, which an argument with variables may
    /// evaluate to.
    fn named(name: &[u8]) -> Flags {
        match &*name.to_ascii_lowercase() {
            b"secure" => Flags::SECURE,
            b"nosecure" => Flags::NO_SECURE,
            b"httponly" => Flags::HTTP_ONLY,
            b"nohttponly" => Flags::NO_HTTP_ONLY,
            b"samesite=strict" => Flags::STRICT,
            b"samesite=lax" => Flags::LAX,
            b"samesite=none" => Flags::NONE,
            b"nosamesite" => Flags::NO_SAME_SITE,
            _ => Flags(0),
        }
    }

    fn contains(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    /// Removes a flag; returns whether it was set.
    fn take(&mut self, flag: Flags) -> bool {
        let had = self.contains(flag);
        self.0 &= !flag.0;
        had
    }
}

/// The spelling of each value of `SameSite`, in order of precedence.
const SAME_SITE: [(Flags, &[u8]); 3] = [
    (Flags::STRICT, b"Strict"),
    (Flags::LAX, b"Lax"),
    (Flags::NONE, b"None"),
];

/// Sets and removes flags. If the attribute of a flag is already present, it keeps its spelling and
/// no other is added.
fn set_flags(attributes: &mut Vec<Attribute>, mut flags: Flags) {
    let mut is_cookie = true;
    attributes.retain_mut(|attribute| {
        if std::mem::take(&mut is_cookie) {
            true
        } else if attribute.is(b"secure") {
            flags.take(Flags::SECURE) || !flags.contains(Flags::NO_SECURE)
        } else if attribute.is(b"httponly") {
            flags.take(Flags::HTTP_ONLY) || !flags.contains(Flags::NO_HTTP_ONLY)
        } else if attribute.is(b"samesite") {
            let wanted = SAME_SITE.iter().find(|(flag, _)| flags.take(*flag));
            if let Some((_, wanted)) = wanted {
                let value = attribute.value.as_deref().unwrap_or_default();
                if !value.eq_ignore_ascii_case(wanted) {
                    *attribute = Attribute::new(b"SameSite", Some(wanted));
                }
                return true;
            }
            !flags.contains(Flags::NO_SAME_SITE)
        } else {
            true
        }
    });
    if flags.contains(Flags::SECURE) {
        attributes.push(Attribute::new(b"Secure", None));
    }
    if flags.contains(Flags::HTTP_ONLY) {
        attributes.push(Attribute::new(b"HttpOnly", None));
    }
    let same_site = SAME_SITE.iter().find(|(flag, _)| flags.contains(*flag));
    if let Some((_, value)) = same_site {
        attributes.push(Attribute::new(b"SameSite", Some(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flagged(cookie: &str, flags: &str) -> String {
        let mut attributes = parse(cookie.as_bytes());
        let flags = flags.split(' ').map(|flag| Flags::named(flag.as_bytes()));
        set_flags(
            &mut attributes,
            flags.fold(Flags(0), |all, flag| Flags(all.0 | flag.0)),
        );
        String::from_utf8(join(&attributes).to_vec()).unwrap()
    }

    /// By `ngx_http_proxy_parse_cookie`.
    #[test]
    fn whatever_stands_between_semicolons_is_an_attribute() {
        let join = |text: &str| String::from_utf8(join(&parse(text.as_bytes())).to_vec()).unwrap();
        assert_eq!(join("a=b;Path = / ;  Secure"), "a=b; Path=/; Secure");
        assert_eq!(join("a=b=c"), "a=b=c");
        assert_eq!(join("a=;;"), "a=; ; ");
        assert_eq!(join("a"), "a");
        assert_eq!(join("  "), "");
    }

    #[test]
    fn flags_are_added_behind_what_is_there() {
        assert_eq!(
            flagged("a=b", "samesite=lax secure httponly"),
            "a=b; Secure; HttpOnly; SameSite=Lax"
        );
        assert_eq!(flagged("secure=1", "nosecure"), "secure=1");
        assert_eq!(flagged("a=b; SECURE", "secure"), "a=b; SECURE");
        assert_eq!(flagged("a=b; Secure; x", "nosecure"), "a=b; x");
        assert_eq!(flagged("a=b; httponly", "NoHttpOnly secure"), "a=b; Secure");
        // The first of two equal attributes uses up its flag, the second the opposite one.
        assert_eq!(
            flagged("a=b; Secure; secure", "secure nosecure"),
            "a=b; Secure"
        );
    }

    #[test]
    fn a_same_site_is_changed_where_it_stands() {
        assert_eq!(
            flagged("a=b; samesite=STRICT; x", "samesite=strict"),
            "a=b; samesite=STRICT; x"
        );
        assert_eq!(
            flagged("a=b; samesite=lax; x", "samesite=none"),
            "a=b; SameSite=None; x"
        );
        assert_eq!(
            flagged("a=b; samesite", "samesite=lax"),
            "a=b; SameSite=Lax"
        );
        assert_eq!(flagged("a=b; SameSite=Lax", "nosamesite"), "a=b");
        assert_eq!(
            flagged("a=b", "samesite=none samesite=strict"),
            "a=b; SameSite=Strict"
        );
        assert_eq!(flagged("a=b", "nosamesite unknown"), "a=b");
    }
}
