//! `modern_browser` and `ancient_browser`: variables by the name and version in User-Agent.
//!
//! <https://nginx.org/en/docs/http/ngx_http_browser_module.html>. The browsers are those of the
//! module's time; today's browsers are recognized as one of them.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::module::{Module, ShortcutDoc};
use http::request::Request;
use http::slots::PlanSlot;
use http::variables::{BuiltinVariable, Evaluate};
use memchr::memmem;
use proto::header::KnownField;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// A browser that `modern_browser` knows.
#[derive(Debug)]
struct Kind {
    /// The browser's name in the directive.
    name: &'static str,
    /// Bytes of User-Agent that are skipped before the mark is searched.
    skip: usize,
    mark: &'static [u8],
    /// The offset of the version from the start of the mark, in bytes.
    version_at: usize,
}

/// The browsers in the order of the search: Opera comes first, since it may claim to be Internet
/// Explorer.
static KINDS: [Kind; 5] = [
    kind("opera", "", b"Opera", 6),
    kind("msie", "Mozilla/4.0 (compatible; ", b"MSIE ", 5),
    kind("gecko", "Mozilla/5.0 (", b"rv:", 3),
    kind("safari", "Mozilla/5.0 (", b"Safari/", 7),
    kind("konqueror", "Mozilla/5.0 (compatible; ", b"Konqueror/", 10),
];

const fn kind(
    name: &'static str,
    before: &'static str,
    mark: &'static [u8],
    version_at: usize,
) -> Kind {
    Kind {
        name,
        skip: before.len(),
        mark,
        version_at,
    }
}

/// A version that no browser reaches.
const NEVER: u64 = u64::MAX;

/// `modern_browser browser version | unlisted`
pub static MODERN_BROWSER: Setting<Modern> =
    Setting::new("modern_browser", &["browser version", "unlisted"], modern)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::List)
        .manual(
            "From which version on a browser is modern: `msie`, `gecko`, `opera`, `safari` or \
             `konqueror`. With `unlisted` browsers are modern that neither this directive nor \
             `ancient_browser` names.",
        );

/// Declares the directive `ancient_browser string ...`.
pub static ANCIENT_BROWSER: Setting<Ancient> =
    Setting::new("ancient_browser", &["string ..."], ancient)
        .contexts(HSL)
        .arity(Arity::at_least(1))
        .inherit(Inherit::List)
        .manual(
            "A browser is ancient if its User-Agent holds one of these; `netscape4` stands for \
             Netscape up to version 4.",
        );

static MODERN_BROWSER_VALUE: Setting<Bytes> =
    Setting::new("modern_browser_value", &["string"], parse::bytes)
        .contexts(HSL)
        .repeatable()
        .default("1")
        .manual("The value of `$modern_browser` for a modern browser.");

static ANCIENT_BROWSER_VALUE: Setting<Bytes> =
    Setting::new("ancient_browser_value", &["string"], parse::bytes)
        .contexts(HSL)
        .repeatable()
        .default("1")
        .manual("The value of `$ancient_browser` for an ancient browser.");

/// The browsers that `modern_browser` names.
#[derive(Debug, Default)]
pub struct Modern {
    /// Browsers and their first modern versions, in the order of `KINDS`.
    browsers: Vec<(usize, u64)>,
    /// Whether browsers that neither directive names are modern.
    unlisted: bool,
}

/// The browsers that `ancient_browser` names.
#[derive(Debug, Default)]
pub struct Ancient {
    /// Parts of the User-Agent of ancient browsers.
    texts: Vec<Bytes>,
    netscape4: bool,
}

/// The settings of a scope.
#[derive(Debug)]
pub struct Browsers {
    modern: Modern,
    ancient: Ancient,
    modern_value: Bytes,
    ancient_value: Bytes,
}

impl Feature for Browsers {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &MODERN_BROWSER,
        &ANCIENT_BROWSER,
        &MODERN_BROWSER_VALUE,
        &ANCIENT_BROWSER_VALUE,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Browsers, Fault> {
        Ok(Browsers {
            modern: scope.get(&MODERN_BROWSER)?,
            ancient: scope.get(&ANCIENT_BROWSER)?,
            modern_value: scope.get(&MODERN_BROWSER_VALUE)?,
            ancient_value: scope.get(&ANCIENT_BROWSER_VALUE)?,
        })
    }
}

impl Browsers {
    fn is_modern(&self, agent: Option<&[u8]>) -> bool {
        let Some(agent) = agent else {
            return self.modern.unlisted;
        };
        for (kind, version) in &self.modern.browsers {
            if let Some(found) = KINDS.get(*kind).and_then(|kind| kind.version(agent)) {
                return is_at_least(found, *version);
            }
        }
        if !self.modern.browsers.is_empty() && !self.modern.unlisted {
            return false;
        }
        let is_ancient = self.ancient.netscape4 && is_netscape4(agent)
            || self
                .ancient
                .texts
                .iter()
                .any(|text| memmem::find(agent, text).is_some());
        !is_ancient && self.modern.unlisted
    }
}

impl Kind {
    /// The version, if the agent is this browser.
    fn version<'a>(&self, agent: &'a [u8]) -> Option<&'a [u8]> {
        let rest = agent.get(self.skip..)?;
        let mark = memmem::find(rest, self.mark)?;
        let version = rest.get(mark + self.version_at..)?;
        (!version.is_empty()).then_some(version)
    }
}

/// A version as one number: each part except the first counts up to 99.
struct Version {
    total: u64,
    part: u64,
    scale: u64,
}

impl Version {
    fn new() -> Version {
        Version {
            total: 0,
            part: 0,
            scale: 1_000_000,
        }
    }

    fn digit(&mut self, digit: u8) {
        let digit = u64::from(digit - b'0');
        self.part = self.part.saturating_mul(10).saturating_add(digit);
    }

    fn end_part(&mut self) -> u64 {
        self.total = self
            .total
            .saturating_add(self.part.saturating_mul(self.scale));
        self.part = 0;
        self.scale /= 100;
        self.total
    }
}

fn is_at_least(found: &[u8], wanted: u64) -> bool {
    let mut version = Version::new();
    for byte in found {
        match byte {
            b'0'..=b'9' => version.digit(*byte),
            b'.' if version.end_part() > wanted => return true,
            b'.' => {}
            _ => break,
        }
    }
    version.end_part() >= wanted
}

/// `Mozilla/1` to `Mozilla/4`, followed by more than the version.
fn is_netscape4(agent: &[u8]) -> bool {
    let version = agent.strip_prefix(b"Mozilla/").and_then(<[u8]>::first);
    agent.len() > "Mozilla/4.72 ".len() && matches!(version, Some(b'1'..=b'4'))
}

fn modern(setter: &Setter<'_>) -> Result<Modern, Fault> {
    let mut modern = Modern::default();
    for line in setter.lines() {
        match modern_line(line)? {
            Some(browser) => modern.browsers.push(browser),
            None => modern.unlisted = true,
        }
    }
    let opera = modern.browsers.iter().any(|(kind, _)| *kind == 0);
    if !modern.browsers.is_empty() && !opera {
        // Opera may claim to be another browser, so it is searched in any case.
        modern.browsers.push((0, NEVER));
    }
    modern.browsers.sort_by_key(|(kind, _)| *kind);
    Ok(modern)
}

/// A browser and its version; `None` for `unlisted`.
fn modern_line(line: &Line) -> Result<Option<(usize, u64)>, Fault> {
    let name = line.argument(0);
    let [_, version] = &*line.args else {
        return match &*name.bytes {
            b"unlisted" => Ok(None),
            _ => Err(Fault::invalid_value(name)),
        };
    };
    let is_named = |kind: &Kind| name.bytes.eq_ignore_ascii_case(kind.name.as_bytes());
    let kind = KINDS
        .iter()
        .position(is_named)
        .ok_or_else(|| Fault::at(name, format!("unknown browser name \"{}\"", name.text())))?;
    let mut number = Version::new();
    for byte in &*version.bytes {
        match byte {
            b'0'..=b'9' => number.digit(*byte),
            b'.' => drop(number.end_part()),
            _ => {
                let text = format!("invalid browser version \"{}\"", version.text());
                return Err(Fault::at(version, text));
            }
        }
    }
    Ok(Some((kind, number.end_part())))
}

fn ancient(setter: &Setter<'_>) -> Result<Ancient, Fault> {
    let mut ancient = Ancient::default();
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        match &*word.bytes {
            b"netscape4" => ancient.netscape4 = true,
            text => ancient.texts.push(Bytes::copy_from_slice(text)),
        }
    }
    Ok(ancient)
}

/// The settings of a plan.
static BROWSERS: PlanSlot<Browsers> = PlanSlot::new();

impl Module for Browsers {
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same("it only makes variables")];

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&BROWSERS, self);
    }
}

/// Appends the value of `$modern_browser`, which is empty for an ancient browser; true, since the
/// variable always has a value.
pub fn modern_browser(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if let Some(browsers) = request.plan.of(&BROWSERS)
        && browsers.is_modern(request.header(KnownField::UserAgent))
    {
        out.extend_from_slice(&browsers.modern_value);
    }
    true
}

/// Appends the value of `$ancient_browser`, which is empty for a modern browser; true, since the
/// variable always has a value.
pub fn ancient_browser(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if let Some(browsers) = request.plan.of(&BROWSERS)
        && !browsers.is_modern(request.header(KnownField::UserAgent))
    {
        out.extend_from_slice(&browsers.ancient_value);
    }
    true
}

/// `$msie`: `1` for Internet Explorer.
pub fn msie(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.browser().msie {
        out.push(b'1');
    }
    true
}

/// The built-in variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    let evaluate: Evaluate = match name {
        "ancient_browser" => ancient_browser,
        "modern_browser" => modern_browser,
        "msie" => msie,
        _ => return None,
    };
    Some(BuiltinVariable::once(evaluate).assignable())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSIE6: &str = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
    const OPERA8: &str = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.0; en) Opera 8.0";
    const FIREFOX: &str =
        "Mozilla/5.0 (X11; U; Linux i686; en-US; rv:1.7.8) Gecko/20050511 Firefox/1.0.4";
    const NETSCAPE: &str = "Mozilla/4.72 [en] (X11; U; Linux)";

    fn browsers(modern: &[(usize, u64)], unlisted: bool, netscape4: bool) -> Browsers {
        Browsers {
            modern: Modern {
                browsers: modern.to_vec(),
                unlisted,
            },
            ancient: Ancient {
                texts: vec![Bytes::from_static(b"Lynx")],
                netscape4,
            },
            modern_value: Bytes::new(),
            ancient_value: Bytes::new(),
        }
    }

    /// Agents from the comments in nginx's module.
    #[test]
    fn versions_decide() {
        let listed = browsers(&[(0, NEVER), (1, 5_500_000), (2, 1_070_900)], false, false);
        let modern = |agent: &str| listed.is_modern(Some(agent.as_bytes()));
        assert!(modern(MSIE6));
        assert!(!modern(OPERA8));
        assert!(!modern(FIREFOX)); // 1.7.8 is before 1.7.9
        assert!(modern(&FIREFOX.replace("1.7.8", "1.7.9")));
        assert!(modern(&FIREFOX.replace("1.7.8", "1.8")));
        assert!(!modern("Lynx"));
        assert!(!listed.is_modern(None));
    }

    #[test]
    fn the_rest_is_unlisted() {
        let unlisted = browsers(&[], true, true);
        let modern = |agent: &str| unlisted.is_modern(Some(agent.as_bytes()));
        assert!(modern("curl/8"));
        assert!(!modern("Lynx/2.8"));
        assert!(!modern(NETSCAPE));
        assert!(!modern(MSIE6)); // also matches netscape4
        assert!(modern(FIREFOX));
        assert!(unlisted.is_modern(None));
    }

    #[test]
    fn internet_explorer() {}
}
