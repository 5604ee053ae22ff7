//! Header fields set and cleared in requests and responses: `more_set_headers` and its family, with
//! the directives of headers-more.
//!
//! <https://github.com/openresty/headers-more-nginx-module>. Unlike `add_header`, these directives
//! replace existing fields, whatever the status, and the directives of outer levels are applied
//! first. Responses are changed before `add_header` adds to them, requests after the rewrite phase.
//! Fields that frame a message cannot be changed: they are skipped with a warning.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
};
use framework::compile::{Compiler, Feature};
use http::config::http3;
use http::config::http3::HTTP3_NOT_YET;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::{Module, Script};
use http::request::{Request, Step, Text};
use http::response::chain::{Chain, FilterRejection, HeadFilter};
use http::response::{Field, Response};
use http::variables::Compiling as _;
use proto::date;
use proto::header::KnownField;

const HSLI: Contexts = Contexts::HTTP
    .or(Contexts::SERVER)
    .or(Contexts::LOCATION)
    .or(Contexts::LOCATION_IF);

/// Fields that control the framing of a message and its connection.
const FRAMING: [&[u8]; 3] = [b"connection", b"keep-alive", b"transfer-encoding"];

/// `more_set_headers [-a] [-s STATUSES] [-t TYPES] 'NAME: VALUE' …`
pub static MORE_SET_HEADERS: Setting<()> = Setting::new(
    "more_set_headers",
    &["[-a] [-s 'status …'] [-t 'mime-type …'] 'name: value' …"],
    check,
)
.contexts(HSLI)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "Sets fields of responses, in place of those of the same name, or with `-a` beside them. `-s` and `-t` \
     name the status codes and media types of the responses that are meant; without them all are. Values \
     may hold variables; an empty value takes the field away.",
);

/// `more_clear_headers [-s STATUSES] [-t TYPES] NAME …`
pub static MORE_CLEAR_HEADERS: Setting<()> = Setting::new(
    "more_clear_headers",
    &["[-s 'status …'] [-t 'mime-type …'] name …"],
    check,
)
.contexts(HSLI)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual("Takes fields of responses away. A `*` at the end of a name stands for any rest of it.");

/// `more_set_input_headers [-r] [-t TYPES] 'NAME: VALUE' …`
pub static MORE_SET_INPUT_HEADERS: Setting<()> = Setting::new(
    "more_set_input_headers",
    &["[-r] [-t 'mime-type …'] 'name: value' …"],
    check,
)
.contexts(HSLI)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "Sets fields of requests, in place of those of the same name; with `-r` only of those that are there. \
     `-t` names the media types of the requests that are meant.",
);

/// `more_clear_input_headers [-t TYPES] NAME …`
pub static MORE_CLEAR_INPUT_HEADERS: Setting<()> = Setting::new(
    "more_clear_input_headers",
    &["[-t 'mime-type …'] name …"],
    check,
)
.contexts(HSLI)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual("Takes fields of requests away. A `*` at the end of a name stands for any rest of it.");

/// The rules of the four directives in force in one scope.
#[derive(Debug, Default)]
pub struct HeadersMore {
    /// The rules for responses.
    output: Vec<Rule>,
    /// The rules for requests.
    input: Vec<Rule>,
}

/// The compiled form of one directive.
#[derive(Debug)]
struct Rule {
    /// The statuses of the responses to change; empty for every status.
    statuses: Vec<u16>,
    /// The media types of the messages to change; empty for every type.
    types: Vec<Bytes>,
    /// `-a`: the fields are added, and existing fields of the same names stay.
    append: bool,
    /// `-r`: only fields that the request has are replaced.
    only_present: bool,
    changes: Vec<FieldChange>,
}

/// The change of one field.
#[derive(Debug)]
struct FieldChange {
    name: Bytes,
    /// Whether the name ends with `*`, which `name` does not contain.
    wildcard: bool,
    /// An empty value removes the field.
    value: Text,
    /// Whether the field is `Alt-Svc`, whose value may offer HTTP/3; the offer is then removed.
    is_alt_svc: bool,
}

impl Feature for HeadersMore {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &MORE_SET_HEADERS,
        &MORE_CLEAR_HEADERS,
        &MORE_SET_INPUT_HEADERS,
        &MORE_CLEAR_INPUT_HEADERS,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut more = match scope.parent() {
            Some(parent) => HeadersMore::compile(compiler, parent)?,
            None => HeadersMore::default(),
        };
        for line in scope.lines() {
            let rules = match &*line.name.bytes {
                b"more_set_headers" | b"more_clear_headers" => &mut more.output,
                b"more_set_input_headers" | b"more_clear_input_headers" => &mut more.input,
                _ => continue,
            };
            rules.push(HeaderDirective::parse(line)?.compile(compiler));
        }
        Ok(more)
    }
}

impl Module for HeadersMore {
    const TASKS: &'static [Task] =
        &[Task::of(TaskKind::HeaderFields, &["more_set_headers"]).listed(2)];

    fn is_off(&self) -> bool {
        self.output.is_empty() && self.input.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        if !self.output.is_empty() {
            plan.filter(self);
        }
        if !self.input.is_empty() {
            plan.prepared(self);
        }
    }
}

fn check(setter: &Setter<'_>) -> Result<(), Fault> {
    for line in setter.lines() {
        let written = HeaderDirective::parse(line)?;
        for word in &written.framing {
            let text = format!(
                "\"{}\" is left out: how a message is framed cannot be changed",
                word.text()
            );
            setter.warn(word, text);
        }
        if let Some(word) = written.offers_http3 {
            setter.warn_once(&word, HTTP3_NOT_YET);
        }
    }
    Ok(())
}

/// A directive as written.
struct HeaderDirective {
    statuses: Vec<u16>,
    types: Vec<Bytes>,
    /// `-a`: the fields are added, and existing fields of the same names stay.
    append: bool,
    /// `-r`: only fields that the request has are replaced.
    only_present: bool,
    changes: Vec<(Bytes, Template)>,
    /// Fields that are skipped, because they frame the message.
    framing: Vec<Word>,
    /// An `Alt-Svc` that offers HTTP/3.
    offers_http3: Option<Word>,
}

impl HeaderDirective {
    fn parse(line: &Line) -> Result<HeaderDirective, Fault> {
        let clears = line.name.bytes.starts_with(b"more_clear");
        let input = line.name.bytes.ends_with(b"_input_headers");
        let mut written = HeaderDirective {
            statuses: Vec::new(),
            types: Vec::new(),
            append: false,
            only_present: false,
            changes: Vec::new(),
            framing: Vec::new(),
            offers_http3: None,
        };
        let mut words = line.args.iter();
        while let Some(word) = words.next() {
            match &*word.bytes {
                b"-s" if !input => {
                    for status in option(word, words.next())? {
                        let number = std::str::from_utf8(status).ok();
                        let number = number.and_then(|text| text.parse().ok());
                        written.statuses.push(number.ok_or_else(|| {
                            let status = String::from_utf8_lossy(status);
                            Fault::at(word, format!("invalid status code \"{status}\""))
                        })?);
                    }
                }
                b"-t" => {
                    let types = option(word, words.next())?;
                    written.types.extend(types.map(Bytes::copy_from_slice));
                }
                b"-a" if !input && !clears => written.append = true,
                b"-r" if input && !clears => written.only_present = true,
                [b'-', ..] => {
                    let text = format!("invalid option name: \"{}\"", word.text());
                    return Err(Fault::at(word, text));
                }
                _ => written.change(word, clears)?,
            }
        }
        Ok(written)
    }

    /// Parses `NAME: VALUE`, or a name alone.
    fn change(&mut self, word: &Word, clears: bool) -> Result<(), Fault> {
        let colon = memchr::memchr(b':', &word.bytes);
        let end = colon.unwrap_or(word.bytes.len());
        let (name, value) = word
            .bytes
            .split_at_checked(end)
            .unwrap_or((&word.bytes, b""));
        let name = name.trim_ascii();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii_start();
        let fault = |what: &str| Err(Fault::at(word, format!("{what} in \"{}\"", word.text())));
        if name.is_empty() {
            return fault("no field name");
        }
        if name.ends_with(b"*") && !clears {
            return fault("a wildcard can only be cleared");
        }
        let lower = name.to_ascii_lowercase();
        if FRAMING.contains(&&*lower) || (lower == b"content-length" && !clears) {
            self.framing.push(Word {
                bytes: name.into(),
                ..word.clone()
            });
            return Ok(());
        }
        let value = if clears { b"" } else { value };
        if lower == b"alt-svc" && http3::is_offered(value) {
            self.offers_http3 = Some(word.clone());
        }
        let value = Word {
            bytes: value.into(),
            ..word.clone()
        };
        let name = Bytes::copy_from_slice(name);
        self.changes.push((name, Template::parse(&value)?));
        Ok(())
    }

    fn compile(self, compiler: &Compiler<'_>) -> Rule {
        let changes = self.changes.into_iter().map(|(name, value)| FieldChange {
            wildcard: name.ends_with(b"*"),
            is_alt_svc: name.eq_ignore_ascii_case(b"Alt-Svc"),
            name: name.slice(..name.len() - usize::from(name.ends_with(b"*"))),
            value: compiler.text(&value),
        });
        Rule {
            statuses: self.statuses,
            types: self.types,
            append: self.append,
            only_present: self.only_present,
            changes: changes.collect(),
        }
    }
}

/// The words of an option's argument.
fn option<'w>(
    word: &Word,
    value: Option<&'w Word>,
) -> Result<impl Iterator<Item = &'w [u8]> + use<'w>, Fault> {
    let Some(value) = value else {
        let text = format!("option \"{}\" takes an argument", word.text());
        return Err(Fault::at(word, text));
    };
    let words = value.bytes.split(u8::is_ascii_whitespace);
    Ok(words.filter(|word| !word.is_empty()))
}

impl Rule {
    /// Whether the rule applies to a message with this status and type.
    fn is_meant(&self, status: u16, content_type: &[u8]) -> bool {
        (self.statuses.is_empty() || self.statuses.contains(&status))
            && (self.types.is_empty()
                || self
                    .types
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(content_type)))
    }
}

impl FieldChange {
    /// Whether the change is about the field with this name.
    fn names(&self, name: &[u8]) -> bool {
        match (self.wildcard, name.get(..self.name.len())) {
            (true, Some(front)) => front.eq_ignore_ascii_case(&self.name),
            (true, None) => false,
            (false, _) => name.eq_ignore_ascii_case(&self.name),
        }
    }
}

impl HeadFilter for HeadersMore {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main()
    }

    /// Changes the head of a response.
    fn head(self: Arc<Self>, request: &mut Request, _: &mut Chain) -> Result<(), FilterRejection> {
        for rule in &self.output {
            if !rule.is_meant(request.response.status, &request.response.content_type) {
                continue;
            }
            for change in &rule.changes {
                let mut value = change.value.evaluate(request);
                if change.is_alt_svc {
                    value = http3::without_http3(value);
                }
                if value.is_empty() {
                    clear(&mut request.response, change);
                } else {
                    set(&mut request.response, &change.name, value, rule.append);
                }
            }
        }
        Ok(())
    }
}

/// Removes a field, even if the response keeps the field outside its list of fields, such as Server
/// and Date.
fn clear(response: &mut Response, change: &FieldChange) {
    if change.names(b"Server") {
        response.server = Some(Bytes::new());
    }
    if change.names(b"Date") {
        response.date = Some(Bytes::new());
    }
    if change.names(b"Content-Type") {
        set_content_type(response, Bytes::new());
    }
    if change.names(b"Content-Length") {
        response.clear_content_length();
    }
    if change.names(b"Last-Modified") {
        response.last_modified = None;
    }
    if change.names(b"Location") {
        response.location = None;
    }
    response.fields.retain(|field| !change.names(&field.name));
}

fn set(response: &mut Response, name: &Bytes, value: Bytes, append: bool) {
    match name.to_ascii_lowercase().as_slice() {
        b"server" => {
            response.remove(b"Server");
            response.server = Some(value);
        }
        b"date" => {
            response.remove(b"Date");
            response.date = Some(value);
        }
        b"content-type" => set_content_type(response, value),
        b"location" => {
            response.remove(b"Location");
            response.add_location(value, true);
        }
        lower => {
            if lower == b"last-modified" {
                response.last_modified = date::parse_http(&value);
            }
            let name = name.clone();
            if append {
                response.add(name, value);
            } else {
                replace(response, Field { name, value });
            }
        }
    }
}

fn set_content_type(response: &mut Response, value: Bytes) {
    response.content_type = value;
    response.content_type_parameters = Bytes::new();
    response.charset = Bytes::new();
}

/// Replaces the first field of this name, or appends the field.
fn replace(response: &mut Response, new: Field) {
    let same = |field: &Field| field.name.eq_ignore_ascii_case(&new.name);
    let Some(at) = response.fields.iter().position(same) else {
        response.fields.push(new);
        return;
    };
    let mut index = 0;
    response.fields.retain(|field| {
        index += 1;
        index <= at + 1 || !same(field)
    });
    if let Some(slot) = response.fields.get_mut(at) {
        *slot = new;
    }
}

impl Script for HeadersMore {
    fn run(&self, request: &mut Request) -> Step {
        change_request(self, request);
        Step::Next
    }
}

/// Changes the request head for all later phases.
fn change_request(more: &HeadersMore, request: &mut Request) {
    let mut fields = request.copied_fields();
    let content_type = request.header(KnownField::ContentType).unwrap_or_default();
    let end = memchr::memchr(b';', content_type).unwrap_or(content_type.len());
    let content_type = content_type.get(..end).unwrap_or_default().trim_ascii();
    let meant: Vec<bool> = more
        .input
        .iter()
        .map(|rule| rule.is_meant(0, content_type))
        .collect();
    for (rule, meant) in more.input.iter().zip(meant) {
        for change in rule.changes.iter().filter(|_| meant) {
            let value = change.value.evaluate(request);
            let present = fields.iter().position(|(name, _)| change.names(name));
            let mut kept = present.filter(|_| !value.is_empty());
            if value.is_empty() {
                fields.retain(|(name, _)| !change.names(name));
            } else if let Some(at) = kept.take() {
                if let Some(slot) = fields.get_mut(at) {
                    slot.1 = value.to_vec();
                }
                let mut index = 0;
                fields.retain(|(name, _)| {
                    index += 1;
                    index <= at + 1 || !change.names(name)
                });
            } else if !rule.only_present {
                fields.push((change.name.to_vec(), value.to_vec()));
            }
        }
    }
    request.replace_fields(&fields);
}

#[cfg(test)]
mod tests {
    use http::testing;

    use super::*;

    fn mistake(text: &str) -> String {
        testing::feature::<HeadersMore>(&format!("http {{ {text} }}"), &["http"]).unwrap_err()
    }

    #[test]
    fn mistakes() {
        assert_eq!(
            mistake("more_set_headers -x 'A: b';"),
            "invalid option name: \"-x\""
        );
        assert_eq!(
            mistake("more_set_headers -s;"),
            "option \"-s\" takes an argument"
        );
        assert_eq!(
            mistake("more_set_headers -s 'two' 'A: b';"),
            "invalid status code \"two\""
        );
        assert!(mistake("more_set_headers 'A*: b';").starts_with("a wildcard"));
        assert!(mistake("more_set_input_headers -s 404 'A: b';").starts_with("invalid option"));
    }

    #[test]
    fn levels_above_come_first() {
        let text = "http { more_set_headers 'A: 1'; server { more_clear_headers B 'C*'; more_set_input_headers -r 'D: 1'; } }";
        let more = testing::feature::<HeadersMore>(text, &["http", "server"]).unwrap();
        let names: Vec<&[u8]> = more
            .output
            .iter()
            .flat_map(|rule| rule.changes.iter().map(|change| &*change.name))
            .collect();
        assert_eq!(names, [&b"A"[..], b"B", b"C"]);
        assert!(more.input[0].only_present && !more.is_off());
    }
}
