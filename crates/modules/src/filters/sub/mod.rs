//! Replaces strings in responses: `sub_filter` and its family.
//!
//! <https://nginx.org/en/docs/http/ngx_http_sub_module.html>. [`search`] finds the strings; this
//! file has the directives and evaluates the strings and their replacements.

pub mod search;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::Module;
use http::request::{Request, Text};
use http::response::chain::{BodyFilter, Chain, FilterRejection, HeadFilter};
use http::response::piece::Piece;
use http::variables::Compiling as _;

use self::search::{Patterns, Replacer};
use super::{MediaTypes, media_types};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Maximum number of strings of a configuration level, as in nginx.
const PATTERNS_MAX: usize = 255;

/// Declares the directive `sub_filter STRING REPLACEMENT`.
pub static SUB_FILTER: Setting<Vec<(Template, Template)>> = Setting::new(
    "sub_filter",
    &["string replacement"],
    pairs,
)
.contexts(HSL)
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual(
    "Replaces a string in responses, whatever its case. Both may hold variables. Of several strings that \
     begin at the same place the first is taken. The directives of a level replace those of the level above.",
);

/// `sub_filter_once on | off`
pub static SUB_FILTER_ONCE: Setting<bool> =
    Setting::new("sub_filter_once", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("on")
        .manual("Whether each string is replaced only where it stands first.");

/// `sub_filter_last_modified on | off`
pub static SUB_FILTER_LAST_MODIFIED: Setting<bool> =
    Setting::new("sub_filter_last_modified", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual(
            "Keeps `Last-Modified` and, as a weak one, the ETag of responses in which strings are replaced.",
        );

/// Declares the directive `sub_filter_types TYPE…`.
pub static SUB_FILTER_TYPES: Setting<MediaTypes> = Setting::new(
    "sub_filter_types",
    &["mime-type …"],
    media_types,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("text/html")
.manual(
    "The media types of responses in which strings are replaced, besides `text/html`; `*` is every type.",
);

fn pairs(setter: &Setter<'_>) -> Result<Vec<(Template, Template)>, Fault> {
    if let Some(line) = setter.lines().get(PATTERNS_MAX) {
        return Err(Fault::at(
            &line.name,
            format!("number of search patterns exceeds {PATTERNS_MAX}"),
        ));
    }
    setter.lines().iter().map(|line| pair(line)).collect()
}

fn pair(line: &Line) -> Result<(Template, Template), Fault> {
    let pattern = line.argument(0);
    if pattern.bytes.is_empty() {
        return Err(Fault::at(pattern, "empty search pattern"));
    }
    Ok((
        Template::parse(pattern)?,
        Template::parse(line.argument(1))?,
    ))
}

/// `sub_filter` and related directives in one scope.
#[derive(Debug)]
pub struct Sub {
    pairs: Box<[Pair]>,
    /// The prepared search, if no string contains a variable.
    prepared: Option<Arc<Patterns>>,
    once: bool,
    keep_last_modified: bool,
    types: MediaTypes,
}

/// The string and the replacement of a `sub_filter`.
#[derive(Debug)]
struct Pair {
    pattern: Text,
    replacement: Text,
}

impl Feature for Sub {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &SUB_FILTER,
        &SUB_FILTER_ONCE,
        &SUB_FILTER_LAST_MODIFIED,
        &SUB_FILTER_TYPES,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let pairs: Box<[Pair]> = scope
            .written(&SUB_FILTER)?
            .unwrap_or_default()
            .iter()
            .map(|(pattern, replacement)| Pair {
                pattern: compiler.text(pattern),
                replacement: compiler.text(replacement),
            })
            .collect();
        let literals: Option<Vec<(usize, Bytes)>> = pairs
            .iter()
            .enumerate()
            .map(|(at, pair)| Some((at, pair.pattern.literal()?.clone())))
            .collect();
        Ok(Sub {
            prepared: literals.and_then(Patterns::new).map(Arc::new),
            pairs,
            once: scope.get(&SUB_FILTER_ONCE)?,
            keep_last_modified: scope.get(&SUB_FILTER_LAST_MODIFIED)?,
            types: scope.get(&SUB_FILTER_TYPES)?,
        })
    }
}

impl Module for Sub {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Body, &["sub_filter"]).listed(1)];

    fn is_off(&self) -> bool {
        self.pairs.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }
}

impl Sub {
    /// The strings with their variables evaluated for this request; empty ones are not searched
    /// for.
    fn patterns(&self, request: &mut Request) -> Option<Arc<Patterns>> {
        if let Some(prepared) = &self.prepared {
            return Some(Arc::clone(prepared));
        }
        let evaluated = self.pairs.iter().enumerate();
        let evaluated = evaluated.map(|(at, pair)| (at, pair.pattern.evaluate(request)));
        Patterns::new(evaluated.collect()).map(Arc::new)
    }
}

impl HeadFilter for Sub {
    fn applies_to(&self, request: &Request) -> bool {
        let response = &request.response;
        response.content_length != Some(0) && self.types.contain(&response.content_type)
    }

    /// Prepares the response head for a body that will be changed.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        let Some(patterns) = self.patterns(request) else {
            return Ok(());
        };
        let is_main = request.is_main();
        let response = &mut request.response;
        if is_main {
            response.clear_content_length();
            if self.keep_last_modified {
                response.weaken_etag();
            } else {
                response.clear_last_modified();
                response.remove(b"ETag");
            }
        }
        chain.push(Substitute::new(self, patterns));
        Ok(())
    }
}

/// Replaces strings in one body.
struct Substitute {
    settings: Arc<Sub>,
    search: Replacer,
    /// The replacement of each directive, evaluated when it is first needed.
    replacements: Vec<Option<Bytes>>,
}

impl Substitute {
    fn new(settings: Arc<Sub>, patterns: Arc<Patterns>) -> Substitute {
        Substitute {
            search: Replacer::new(patterns, settings.once),
            replacements: vec![None; settings.pairs.len()],
            settings,
        }
    }
}

impl BodyFilter for Substitute {
    /// Replaces strings in one piece and in the text that was held back before it.
    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        let (settings, replacements) = (&self.settings, &mut self.replacements);
        match piece {
            Piece::Bytes(text) => {
                let replacement = |at| replacement(settings, replacements, request, at);
                let mut joined = JoinedText::default();
                self.search
                    .apply(text, replacement, |bytes| joined.write(bytes, out));
                joined.end(out);
            }
            Piece::Flush => out.push(piece),
            Piece::File { .. } | Piece::Include(_) | Piece::Last => {
                let rest = self.search.finish();
                if !rest.is_empty() {
                    out.push(Piece::Bytes(rest));
                }
                out.push(piece);
            }
        }
        Ok(())
    }
}

/// Maximum size to which short stretches are joined, in bytes.
const JOINED_MAX: usize = 16 * 1024;

/// The text between matches. Short stretches are joined to one piece, since each piece may become a
/// chunk.
#[derive(Default)]
struct JoinedText {
    /// A single stretch, not yet copied.
    first: Bytes,
    /// Two or more stretches, joined.
    bytes: BytesMut,
}

impl JoinedText {
    /// Adds a stretch of text. If the joined text would exceed [`JOINED_MAX`], the text so far is
    /// output first.
    fn write(&mut self, stretch: Bytes, out: &mut Vec<Piece>) {
        if stretch.is_empty() {
            return;
        }
        let length = self.first.len() + self.bytes.len();
        if length + stretch.len() > JOINED_MAX {
            self.end(out);
        }
        if self.first.is_empty() && self.bytes.is_empty() {
            self.first = stretch;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.bytes.extend_from_slice(&first);
        self.bytes.extend_from_slice(&stretch);
    }

    /// Outputs the text so far.
    fn end(&mut self, out: &mut Vec<Piece>) {
        let first = std::mem::take(&mut self.first);
        let bytes = self.bytes.split().freeze();
        let pieces = [first, bytes].into_iter();
        out.extend(pieces.filter(|bytes| !bytes.is_empty()).map(Piece::Bytes));
    }
}

/// The replacement of a directive's string.
fn replacement(
    settings: &Sub,
    known: &mut [Option<Bytes>],
    request: &mut Request,
    directive: usize,
) -> Bytes {
    if let Some(Some(known)) = known.get(directive) {
        return known.clone();
    }
    let pair = settings.pairs.get(directive);
    let value = pair.map_or_else(Bytes::new, |pair| pair.replacement.evaluate(request));
    if let Some(slot) = known.get_mut(directive) {
        *slot = Some(value.clone());
    }
    value
}

#[cfg(test)]
mod tests {
    use http::request::Part;
    use http::testing;
    use http::testing::with_request;

    use super::*;

    /// Replaces in a text that arrives in pieces of `step` bytes; each pair is a string and its
    /// replacement.
    fn replaced(pairs: &[(&str, &str)], once: bool, text: &str, step: usize) -> String {
        let literal = |text: &str| Text::new([Part::Literal(text.to_owned().into())]);
        let settings = Sub {
            pairs: pairs
                .iter()
                .map(|(from, to)| Pair {
                    pattern: literal(from),
                    replacement: literal(to),
                })
                .collect(),
            prepared: None,
            once,
            keep_last_modified: false,
            types: MediaTypes::All,
        };
        with_request(|request| {
            let patterns = settings.patterns(request).unwrap();
            let mut substitute = Substitute::new(Arc::new(settings), patterns);
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(step) {
                let piece = Piece::Bytes(Bytes::copy_from_slice(piece));
                substitute.apply(request, piece, &mut out).unwrap();
            }
            substitute.apply(request, Piece::Last, &mut out).unwrap();
            testing::text_of(&out)
        })
    }

    /// A reference implementation, which tries every position of the whole text.
    fn naive(pairs: &[(&str, &str)], once: bool, text: &str) -> String {
        let (mut out, mut used, mut rest) = (String::new(), vec![false; pairs.len()], text);
        while !rest.is_empty() {
            let found = pairs.iter().enumerate().find(|(at, (from, _))| {
                !(once && used[*at])
                    && rest.len() >= from.len()
                    && rest.as_bytes()[..from.len()].eq_ignore_ascii_case(from.as_bytes())
            });
            let (length, put) = match found {
                Some((at, (from, to))) => {
                    used[at] = true;
                    (from.len(), *to)
                }
                None => (1, &rest[..1]),
            };
            out.push_str(put);
            rest = &rest[length..];
        }
        out
    }

    #[test]
    fn agrees_with_a_naive_replacement_at_every_border() {
        let sets: [&[(&str, &str)]; 6] = [
            &[("ab", "X")],
            &[("aab", "1"), ("ab", "2"), ("b", "3")],
            &[("abab", "1"), ("ba", "2")],
            &[("a", "aa"), ("aaaa", "never")],
            &[("AbC", ""), ("c", "C!")],
            &[("bbbbbb", "6"), ("ab", "")],
        ];
        let texts = [
            "",
            "ab",
            "aaab",
            "abababab",
            "cabcABCab",
            "bbbbbabbbbbbbab",
            "aAbBaBcCabab",
        ];
        for pairs in sets {
            for text in texts {
                for once in [false, true] {
                    let expected = naive(pairs, once, text);
                    for step in 1..=text.len().max(1) {
                        let found = replaced(pairs, once, text, step);
                        assert_eq!(found, expected, "{pairs:?} once={once} {text:?} by {step}");
                    }
                }
            }
        }
    }

    #[test]
    fn mistakes() {
        let error =
            |text: &str| testing::feature::<Sub>(&format!("http {{ {text} }}"), &["http"]).err();
        assert_eq!(error("sub_filter \"\" x;").unwrap(), "empty search pattern");
        let many = "sub_filter a b; ".repeat(256);
        assert_eq!(
            error(&many).unwrap(),
            "number of search patterns exceeds 255"
        );
        assert!(error("sub_filter $uri $host;").is_none());
    }
}
