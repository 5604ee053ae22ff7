//! The charset of responses: `charset`, `source_charset`, `charset_map` and related directives.
//!
//! <https://nginx.org/en/docs/http/ngx_http_charset_module.html>. `charset` sets the charset that
//! Content-Type names. If `source_charset` is another charset, the text is converted with a table
//! of `charset_map`: between two single-byte charsets, or between a single-byte charset and UTF-8.
//! Other charsets are not supported.

use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::{Module, Shortcut, ShortcutDoc};
use http::request::{Part, Request, Text};
use http::response::chain::{BodyFilter, Chain, FilterRejection, HeadFilter};
use http::response::piece::Piece;
use http::slots::PlanSlot;
use http::variables::Compiling as _;

use super::{MediaTypes, media_types};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const HSLI: Contexts = HSL.or(Contexts::LOCATION_IF);

/// The replacement of a character that the target charset lacks, if no character reference is
/// possible.
const UNKNOWN: u8 = b'?';

/// `charset NAME | off`
pub static CHARSET: Setting<Option<CharsetName>> = Setting::new(
    "charset",
    &["charset | off"],
    target,
)
.contexts(HSLI)
.default("off")
.manual(
    "The charset that Content-Type names. With another `source_charset` the response is recoded. \
     May be a variable.",
);

/// Declares the directive `source_charset NAME`.
pub static SOURCE_CHARSET: Setting<CharsetName> =
    Setting::new("source_charset", &["charset"], |setter: &Setter<'_>| {
        CharsetName::parse(setter.word()?)
    })
    .contexts(HSLI)
    .manual(
        "The charset of responses as they are stored. Where it differs from `charset`, they are \
             recoded.",
    );

/// `override_charset on | off`
pub static OVERRIDE_CHARSET: Setting<bool> =
    Setting::new("override_charset", &["on | off"], parse::flag)
        .contexts(HSLI)
        .default("off")
        .manual(
            "Recodes responses that name their charset themselves (a proxied server's) as well.",
        );

/// Declares the directive `charset_types TYPE…`.
pub static CHARSET_TYPES: Setting<MediaTypes> = Setting::new(
    "charset_types",
    &["mime-type …"],
    media_types,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default(
    "text/html text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml",
)
.manual(
    "The media types of responses that have a charset, besides `text/html`; `*` is every type.",
);

/// `charset_map FROM TO { … }`
pub static CHARSET_MAP: Setting<Vec<Table>> = Setting::new(
    "charset_map",
    &["charset1 charset2 { code1 code2; … }"],
    tables,
)
.contexts(Contexts::HTTP)
.arity(Arity::exactly(2))
.free_block()
.inherit(Inherit::List)
.manual(
    "A table for recoding, both ways. Codes are hexadecimal; those below 80 need not be written. \
             Where the second charset is utf-8, its codes are sequences of one to three bytes.",
);

/// The name of a charset, or the variable that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CharsetName {
    /// A literal charset.
    Literal(Bytes),
    /// A variable's name without `$`.
    Variable(Box<str>),
}

impl CharsetName {
    fn parse(word: &Word) -> Result<CharsetName, Fault> {
        Ok(match word.bytes.split_first() {
            Some((b'$', [])) => return Err(Fault::at(word, "invalid variable name \"$\"")),
            Some((b'$', name)) => CharsetName::Variable(String::from_utf8_lossy(name).into()),
            _ => CharsetName::Literal(Bytes::copy_from_slice(&word.bytes)),
        })
    }

    fn compile(self, compiler: &Compiler<'_>) -> Text {
        match self {
            CharsetName::Literal(bytes) => Text::Literal(bytes),
            CharsetName::Variable(name) => Text::new([Part::Variable(compiler.variable(&name))]),
        }
    }
}

fn target(setter: &Setter<'_>) -> Result<Option<CharsetName>, Fault> {
    let word = setter.word()?;
    if &*word.bytes == b"off" {
        Ok(None)
    } else {
        CharsetName::parse(word).map(Some)
    }
}

/// The charset settings of a plan, for modules that write a listing in the charset of the response.
static CHARSETS: PlanSlot<Charset> = PlanSlot::new();

/// `charset` and related directives in one scope.
#[derive(Debug)]
pub struct Charset {
    /// `charset`; `None` if it is off.
    target: Option<Text>,
    /// `source_charset`, if it is set.
    source: Option<Text>,
    /// `override_charset`: also convert responses that name their charset.
    overrides: bool,
    types: MediaTypes,
    maps: Arc<Maps>,
}

impl Charset {
    /// Whether no charset is set for responses.
    fn keeps_charsets(&self) -> bool {
        self.target.is_none()
    }

    /// Whether all responses of a type get the same charset, without conversion.
    fn is_constant(&self) -> bool {
        let Some(target) = &self.target else {
            return true;
        };
        match (target.literal(), &self.source) {
            (Some(_), None) => true,
            (Some(target), Some(source)) => source
                .literal()
                .is_some_and(|source| source.eq_ignore_ascii_case(target)),
            (None, _) => false,
        }
    }

    /// Whether the configuration names the charset.
    fn knows(&self, charset: &[u8]) -> bool {
        self.maps.spelling(charset).is_some()
    }
}

impl Module for Charset {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Body, &["charset"]).listed(3)];
    const SHORTCUTS: &'static [ShortcutDoc] = &[
        ShortcutDoc::Same("where the charset has no variables and nothing is recoded"),
        ShortcutDoc::Never("elsewhere"),
    ];

    /// Never off: an upstream may demand a charset, and an included response is converted to the
    /// charset of the page that includes it.
    fn is_off(&self) -> bool {
        false
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
        plan.keep(&CHARSETS, self);
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        if self.is_constant() {
            Shortcut::Same
        } else {
            Shortcut::Never
        }
    }
}

impl Feature for Charset {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &CHARSET,
        &SOURCE_CHARSET,
        &OVERRIDE_CHARSET,
        &CHARSET_TYPES,
        &CHARSET_MAP,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let maps: Arc<Maps> = compiler.feature(scope)?;
        let target = scope.get(&CHARSET)?;
        let source = scope.written(&SOURCE_CHARSET)?;
        if let (Some(CharsetName::Literal(target)), Some(CharsetName::Literal(source))) =
            (&target, &source)
            && !target.eq_ignore_ascii_case(source)
            && maps.find(source, target).is_none()
        {
            return Err(Fault::new(format!(
                "no \"charset_map\" between the charsets \"{}\" and \"{}\"",
                String::from_utf8_lossy(source),
                String::from_utf8_lossy(target),
            )));
        }
        let compiled = |name: CharsetName| match name {
            CharsetName::Literal(name) => Text::Literal(maps.spelling(&name).unwrap_or(name)),
            variable => variable.compile(compiler),
        };
        Ok(Charset {
            target: target.map(compiled),
            source: source.map(compiled),
            overrides: scope.get(&OVERRIDE_CHARSET)?,
            types: scope.get(&CHARSET_TYPES)?,
            maps,
        })
    }
}

/// Every `charset_map` and every charset name of the configuration.
#[derive(Debug)]
struct Maps {
    tables: Vec<Table>,
    /// The first spelling of each charset, which is used everywhere, as in nginx.
    names: Vec<Bytes>,
}

impl Feature for Maps {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&CHARSET_MAP];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut names = Vec::new();
        gather_names(scope.tree().root(), &mut names);
        Ok(Maps {
            tables: scope.written(&CHARSET_MAP)?.unwrap_or_default(),
            names,
        })
    }
}

/// Adds the charsets that a scope and its inner scopes name, in the order of the file.
fn gather_names(scope: ScopeRef<'_>, names: &mut Vec<Bytes>) {
    for line in scope.lines() {
        let count = match () {
            () if line.is("charset") || line.is("source_charset") => 1,
            () if line.is("charset_map") => 2,
            () => 0,
        };
        for word in line.args.iter().take(count) {
            let is_known = names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(&word.bytes));
            let is_none = line.is("charset") && &*word.bytes == b"off";
            if !is_known && !is_none && word.bytes.first() != Some(&b'$') {
                names.push(Bytes::copy_from_slice(&word.bytes));
            }
        }
        if let Some(inner) = scope.opened_by(line) {
            gather_names(inner, names);
        }
    }
}

impl Maps {
    /// The first spelling of a charset.
    fn spelling(&self, charset: &[u8]) -> Option<Bytes> {
        let mut names = self.names.iter();
        names
            .find(|name| name.eq_ignore_ascii_case(charset))
            .cloned()
    }

    /// The conversion between two charsets, if there is a table.
    fn find(&self, from: &[u8], to: &[u8]) -> Option<Recode> {
        self.tables.iter().find_map(|table| {
            let direction = table.direction(from, to)?;
            Some(Recode {
                codes: Arc::clone(&table.codes),
                direction,
                incomplete: Incomplete::default(),
            })
        })
    }
}

/// The table of one `charset_map`.
#[derive(Clone, Debug)]
pub struct Table {
    /// The first charset of the directive.
    from: Box<[u8]>,
    /// The second charset of the directive.
    to: Box<[u8]>,
    codes: Arc<Codes>,
}

impl Table {
    /// The direction in which the table converts between two charsets, if it does.
    fn direction(&self, from: &[u8], to: &[u8]) -> Option<Direction> {
        if self.from.eq_ignore_ascii_case(from) && self.to.eq_ignore_ascii_case(to) {
            Some(Direction::Forward)
        } else if self.to.eq_ignore_ascii_case(from) && self.from.eq_ignore_ascii_case(to) {
            Some(Direction::Backward)
        } else {
            None
        }
    }
}

/// The codes of a `charset_map`, in both directions.
#[derive(Clone, Debug)]
enum Codes {
    /// Between single-byte charsets.
    Bytes {
        forward: Box<[u8; 256]>,
        backward: Box<[u8; 256]>,
    },
    /// From a single-byte charset to UTF-8, and back: indexed by the high byte of the character's
    /// number, then by the low byte.
    Utf8 {
        forward: Box<[Sequence; 256]>,
        backward: Box<[Option<Box<[u8; 256]>>; 256]>,
    },
}

/// A character in UTF-8, up to U+FFFF.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    bytes: [u8; 3],
    length: u8,
}

impl Sequence {
    fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

fn tables(setter: &Setter<'_>) -> Result<Vec<Table>, Fault> {
    let mut tables: Vec<Table> = Vec::new();
    for line in setter.lines() {
        let (from, to) = (line.argument(0), line.argument(1));
        let names = format!("\"{}\" and \"{}\"", from.text(), to.text());
        if from.bytes.eq_ignore_ascii_case(&to.bytes) {
            return Err(Fault::at(
                from,
                format!("\"charset_map\" between the same charsets {names}"),
            ));
        }
        if from.bytes.eq_ignore_ascii_case(b"utf-8") {
            return Err(Fault::at(
                from,
                "\"charset_map\" with \"utf-8\" charset should be given in the second column",
            ));
        }
        // As in nginx, only a duplicate of the first table is an error. Of other tables for the
        // same charsets, the first is used.
        if tables
            .first()
            .is_some_and(|table| table.direction(&from.bytes, &to.bytes).is_some())
        {
            return Err(Fault::at(
                from,
                format!("duplicate \"charset_map\" between {names}"),
            ));
        }
        let rows = match &line.block {
            Some(Block::Free(rows)) => rows.as_slice(),
            _ => &[],
        };
        let codes = if to.bytes.eq_ignore_ascii_case(b"utf-8") {
            codes_utf8(rows)?
        } else {
            codes_bytes(rows)?
        };
        tables.push(Table {
            from: from.bytes.clone(),
            to: to.bytes.clone(),
            codes: Arc::new(codes),
        });
    }
    Ok(tables)
}

fn codes_bytes(rows: &[Line]) -> Result<Codes, Fault> {
    let mut forward = Box::new([UNKNOWN; 256]);
    for (byte, code) in (0..128).zip(forward.iter_mut()) {
        *code = byte;
    }
    let mut backward = forward.clone();
    for row in rows {
        let (from, to) = row_of(row)?;
        let to_code = hex_byte(&to.bytes).ok_or_else(|| Fault::invalid_value(to))?;
        forward[usize::from(from)] = to_code; // any byte is an index of 256
        backward[usize::from(to_code)] = from;
    }
    Ok(Codes::Bytes { forward, backward })
}

fn codes_utf8(rows: &[Line]) -> Result<Codes, Fault> {
    let mut forward = Box::new(
        [Sequence {
            bytes: [UNKNOWN, 0, 0],
            length: 1,
        }; 256],
    );
    let mut backward: Box<[Option<Box<[u8; 256]>>; 256]> = Box::new([const { None }; 256]);
    let mut ascii = Box::new([0; 256]);
    for byte in 0..128u8 {
        forward[usize::from(byte)].bytes = [byte, 0, 0]; // any byte is an index of 256
        ascii[usize::from(byte)] = byte;
    }
    backward[0] = Some(ascii);
    for row in rows {
        let (from, to) = row_of(row)?;
        let (sequence, number) =
            utf8_sequence(&to.bytes).ok_or_else(|| Fault::invalid_value(to))?;
        forward[usize::from(from)] = sequence;
        let [high, low] = number.to_be_bytes();
        backward[usize::from(high)].get_or_insert_with(|| Box::new([0; 256]))[usize::from(low)] =
            from;
    }
    Ok(Codes::Utf8 { forward, backward })
}

/// The first code and the second word of a row.
fn row_of(row: &Line) -> Result<(u8, &Word), Fault> {
    let [to] = row.args.as_slice() else {
        return Err(Fault::at(&row.name, "invalid parameters number"));
    };
    let from = hex_byte(&row.name.bytes).ok_or_else(|| Fault::invalid_value(&row.name))?;
    Ok((from, to))
}

fn hex_byte(text: &[u8]) -> Option<u8> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u8, |number, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        u8::try_from(u32::from(number) * 16 + digit).ok()
    })
}

/// The bytes of `D0B0`, and the number of the character that they encode, 0 to 0xFFFF.
fn utf8_sequence(text: &[u8]) -> Option<(Sequence, u16)> {
    if text.len() > 6 || !text.len().is_multiple_of(2) {
        return None;
    }
    let mut sequence = Sequence {
        bytes: [0; 3],
        length: 0,
    };
    for (byte, digits) in sequence.bytes.iter_mut().zip(text.chunks(2)) {
        *byte = hex_byte(digits)?;
        sequence.length += 1;
    }
    let mut characters = std::str::from_utf8(sequence.as_bytes()).ok()?.chars();
    let number = u16::try_from(u32::from(characters.next()?)).ok()?;
    characters.next().is_none().then_some((sequence, number))
}

impl HeadFilter for Charset {
    /// Applies even if no `charset` is set: an upstream may demand a charset, and an included
    /// response is converted to the charset of the page that includes it.
    fn applies_to(&self, request: &Request) -> bool {
        if request.is_main() {
            !self.keeps_charsets() || !request.response.override_charset.is_empty()
        } else {
            !request.nesting.main_charset.is_empty()
        }
    }

    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        if let Some(recode) = self.begin(request) {
            chain.push(recode);
        }
        Ok(())
    }
}

impl Charset {
    /// Sets the charset of the response's head. Returns a converter if the text is in another
    /// charset.
    fn begin(&self, request: &mut Request) -> Option<Recode> {
        let target = if request.is_main() {
            self.warn_of_unknown(request);
            let content_type = request.response.content_type.clone();
            self.announced(request, &content_type)?
        } else if request.nesting.main_charset.is_empty() {
            return None;
        } else {
            request.nesting.main_charset.clone()
        };
        let source = if request.response.charset.is_empty() {
            match &self.source {
                Some(name) => name.evaluate(request),
                None => {
                    name_charset(request, target);
                    return None;
                }
            }
        } else {
            request.response.charset.clone()
        };
        if source.eq_ignore_ascii_case(&target) {
            request.response.content_type_parameters = Bytes::new();
            name_charset(request, target);
            return None;
        }
        if request.response.is_coded() {
            return None;
        }
        let Some(recode) = self.maps.find(&source, &target) else {
            logs::error!(
                request,
                Error,
                "no \"charset_map\" between the charsets \"{}\" and \"{}\"{}",
                logs::Printable(&source),
                logs::Printable(&target),
                request.activity.sending
            );
            return None;
        };
        request.response.content_type_parameters = Bytes::new();
        name_charset(request, target);
        if recode.changes_length() && request.is_main() {
            request.response.clear_content_length();
        }
        Some(recode)
    }

    /// The charset of the main response, if this filter determines it for a response of this type.
    fn announced(&self, request: &mut Request, content_type: &[u8]) -> Option<Bytes> {
        if content_type.is_empty() {
            return None;
        }
        let asked = &request.response.override_charset;
        if !asked.is_empty() {
            return self.knows(asked).then(|| asked.clone());
        }
        if self.keeps_charsets() {
            return None;
        }
        let wanted = if request.response.charset.is_empty() {
            self.types.contain(content_type)
        } else {
            self.overrides
        };
        if !wanted {
            return None;
        }
        self.target.as_ref().map(|name| name.evaluate(request))
    }

    /// Logs that an upstream demands a charset that the configuration does not name.
    fn warn_of_unknown(&self, request: &Request) {
        let asked = &request.response.override_charset;
        if asked.is_empty() || request.response.content_type.is_empty() {
            return;
        }
        if !self.knows(asked) {
            logs::error!(
                request,
                Error,
                "unknown charset \"{}\" to override{}",
                logs::Printable(asked),
                request.activity.sending
            );
        }
    }
}

/// The charset of the main response, if this filter determines it for a response of this type.
pub fn announced(request: &mut Request, content_type: &[u8]) -> Option<Bytes> {
    let http = Rc::clone(&request.http);
    let charsets = http.plan(request.plan.id).of(&CHARSETS)?;
    charsets.announced(request, content_type)
}

/// Sets the charset, except for redirects: old browsers used it for the next page.
fn name_charset(request: &mut Request, charset: Bytes) {
    if request.is_main() {
        let redirect = matches!(request.response.status, 301 | 302);
        request.response.charset = if redirect { Bytes::new() } else { charset };
    }
}

/// The direction in which a [`Table`] converts: from its first charset to its second, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// The beginning of a UTF-8 sequence that continues in the next piece.
#[derive(Clone, Copy, Debug, Default)]
struct Incomplete {
    bytes: [u8; 4],
    length: usize,
}

/// Converts one body with a table.
#[derive(Debug)]
struct Recode {
    codes: Arc<Codes>,
    direction: Direction,
    incomplete: Incomplete,
}

impl Recode {
    fn changes_length(&self) -> bool {
        matches!(*self.codes, Codes::Utf8 { .. })
    }

    /// Converts a part of the body. As in nginx, an incomplete sequence at the end of the body is
    /// dropped.
    fn recoded(&mut self, input: Bytes) -> Bytes {
        let codes = Arc::clone(&self.codes);
        match (&*codes, self.direction) {
            (Codes::Bytes { forward, .. }, Direction::Forward) => by_table(&input, forward),
            (Codes::Bytes { backward, .. }, Direction::Backward) => by_table(&input, backward),
            (Codes::Utf8 { forward, .. }, Direction::Forward) => to_utf8(&input, forward),
            (Codes::Utf8 { backward, .. }, Direction::Backward) => {
                self.recode_utf8(&input, backward)
            }
        }
    }

    fn recode_utf8(&mut self, input: &Bytes, codes: &[Option<Box<[u8; 256]>>; 256]) -> Bytes {
        if self.incomplete.length == 0 && input.is_ascii() {
            return input.clone();
        }
        let mut out = Vec::with_capacity(input.len());
        let mut rest = &input[..];
        while self.incomplete.length > 0 && !rest.is_empty() {
            rest = self.complete(rest, codes, &mut out);
        }
        while let Some(&byte) = rest.first() {
            if byte < 0x80 {
                out.push(byte);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let (decoded, length) = decode(rest);
            if decoded == Decoded::Incomplete {
                for (saved, byte) in self.incomplete.bytes.iter_mut().zip(rest) {
                    *saved = *byte;
                }
                self.incomplete.length = rest.len();
                break;
            }
            write_character(decoded, codes, &mut out);
            rest = rest.get(length..).unwrap_or_default();
        }
        out.into()
    }

    /// Completes a sequence that the previous piece has begun. Returns the rest of this piece.
    fn complete<'a>(
        &mut self,
        rest: &'a [u8],
        codes: &[Option<Box<[u8; 256]>>; 256],
        out: &mut Vec<u8>,
    ) -> &'a [u8] {
        let held = self.incomplete.length;
        let mut length = held;
        for (saved, byte) in self.incomplete.bytes.iter_mut().skip(held).zip(rest) {
            *saved = *byte;
            length += 1;
        }
        let (decoded, used) = decode(self.incomplete.bytes.get(..length).unwrap_or_default());
        if decoded == Decoded::Incomplete {
            // A sequence has four bytes at most, so the whole piece belongs to it.
            self.incomplete.length = length;
            return &[];
        }
        self.incomplete.length = 0;
        write_character(decoded, codes, out);
        rest.get(used.saturating_sub(held)..).unwrap_or_default()
    }
}

impl BodyFilter for Recode {
    fn apply(&mut self, _: &mut Request, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        let piece = match piece {
            Piece::Bytes(input) => Piece::Bytes(self.recoded(input)),
            piece => piece,
        };
        if !matches!(&piece, Piece::Bytes(bytes) if bytes.is_empty()) {
            out.push(piece);
        }
        Ok(())
    }
}

/// A decoded character, or the fault of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoded {
    Character(u32),
    Invalid,
    Incomplete,
}

/// Decodes the first sequence, which is not ASCII, and returns its length. Faults and their length
/// are nginx's: a sequence ends before the first ASCII byte.
fn decode(bytes: &[u8]) -> (Decoded, usize) {
    let (first, smallest, more) = match bytes.first() {
        Some(&byte @ 0xc2..0xe0) => (byte & 0x1f, 0x80, 1),
        Some(&byte @ 0xe0..0xf0) => (byte & 0x0f, 0x800, 2),
        Some(&byte @ 0xf0..0xf8) => (byte & 0x07, 0x1_0000, 3),
        _ => return (Decoded::Invalid, 1),
    };
    let Some(following) = bytes.get(1..=more) else {
        return (Decoded::Incomplete, 0);
    };
    let mut number = u32::from(first);
    for (at, &byte) in following.iter().enumerate() {
        if byte < 0x80 {
            return (Decoded::Invalid, at + 2);
        }
        number = number << 6 | u32::from(byte & 0x3f);
    }
    let valid = (smallest..=0x10_ffff).contains(&number);
    (
        if valid {
            Decoded::Character(number)
        } else {
            Decoded::Invalid
        },
        more + 1,
    )
}

/// Appends a character's code, or its character reference if the charset lacks it.
fn write_character(decoded: Decoded, codes: &[Option<Box<[u8; 256]>>; 256], out: &mut Vec<u8>) {
    let Decoded::Character(number) = decoded else {
        out.push(UNKNOWN);
        return;
    };
    let code = u16::try_from(number).ok().and_then(|number| {
        let [high, low] = number.to_be_bytes();
        codes[usize::from(high)]
            .as_ref()
            .map(|codes| codes[usize::from(low)]) // bytes index 256
    });
    match code {
        Some(code @ 1..) => out.push(code),
        // Writing to a vector does not fail.
        _ => drop(write!(out, "&#{number};")),
    }
}

/// Converts each byte; unchanged text is not copied.
fn by_table(input: &Bytes, table: &[u8; 256]) -> Bytes {
    let code = |byte: u8| table[usize::from(byte)]; // a byte indexes 256
    if input.iter().all(|&byte| code(byte) == byte) {
        return input.clone();
    }
    input
        .iter()
        .map(|&byte| code(byte))
        .collect::<Vec<u8>>()
        .into()
}

fn to_utf8(input: &Bytes, table: &[Sequence; 256]) -> Bytes {
    let is_plain = |byte: u8| table[usize::from(byte)].as_bytes() == [byte]; // a byte indexes 256
    if input.iter().all(|&byte| is_plain(byte)) {
        return input.clone();
    }
    let mut out = Vec::with_capacity(input.len() * 2);
    for &byte in input {
        out.extend_from_slice(table[usize::from(byte)].as_bytes());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use http::testing;

    use super::*;

    fn koi8_utf8(direction: Direction) -> Recode {
        let mut forward = Box::new(
            [Sequence {
                bytes: [UNKNOWN, 0, 0],
                length: 1,
            }; 256],
        );
        let mut backward: Box<[Option<Box<[u8; 256]>>; 256]> = Box::new([const { None }; 256]);
        for byte in 0..128u8 {
            forward[usize::from(byte)].bytes[0] = byte;
        }
        for (code, hex) in [(0xc1, "D0B0"), (0xc2, "D0B1")] {
            let (sequence, number) = utf8_sequence(hex.as_bytes()).unwrap();
            forward[code as usize] = sequence;
            let [high, low] = number.to_be_bytes();
            backward[usize::from(high)].get_or_insert_with(|| Box::new([0; 256]))
                [usize::from(low)] = code;
        }
        Recode {
            codes: Arc::new(Codes::Utf8 { forward, backward }),
            direction,
            incomplete: Incomplete::default(),
        }
    }

    fn recoded(mut recode: Recode, pieces: &[&[u8]]) -> Vec<u8> {
        let pieces = pieces.iter().copied().map(Bytes::copy_from_slice);
        pieces.flat_map(|piece| recode.recoded(piece)).collect()
    }

    #[test]
    fn to_utf_8() {
        assert_eq!(
            recoded(koi8_utf8(Direction::Forward), &[b"x\xc1\xc2\xff"]),
            "xаб?".as_bytes()
        );
    }

    #[test]
    fn from_utf_8_split_anywhere() {
        let text = "aа-б€😀".as_bytes();
        let expected = b"a\xc1-\xc2&#8364;&#128512;";
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(
                    recoded(koi8_utf8(Direction::Backward), &pieces),
                    expected,
                    "{first} {second}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_utf_8_becomes_a_question_mark() {
        for (text, expected) in [
            (&b"\x80a"[..], &b"?a"[..]),
            (b"\xff\xffa", b"??a"),
            (b"\xc0\x80a", b"??a"),
            (b"\xd0aa", b"?a"),
            (b"\xe0\x80\x80a", b"?a"),
            (b"\xf4\x90\x80\x80a", b"?a"),
            (b"\xd0", b""),
        ] {
            assert_eq!(
                recoded(koi8_utf8(Direction::Backward), &[text]),
                expected,
                "{text:x?}"
            );
        }
    }

    #[test]
    fn codes_in_hexadecimal() {
        assert_eq!(hex_byte(b"C1"), Some(0xc1));
        assert_eq!(hex_byte(b"0"), Some(0));
        assert_eq!(hex_byte(b"00c1"), Some(0xc1));
        assert_eq!(hex_byte(b"100"), None);
        assert_eq!(hex_byte(b"+1"), None);
        assert_eq!(hex_byte(b""), None);
        assert_eq!(
            utf8_sequence(b"D0B0").map(|(_, number)| number),
            Some(0x430)
        );
        assert_eq!(
            utf8_sequence(b"E282AC").map(|(_, number)| number),
            Some(0x20ac)
        );
        assert_eq!(utf8_sequence(b"41").map(|(_, number)| number), Some(0x41));
        assert_eq!(utf8_sequence(b"F09F9880").map(|(_, number)| number), None);
        assert_eq!(utf8_sequence(b"D0").map(|(_, number)| number), None);
        assert_eq!(utf8_sequence(b"D0B").map(|(_, number)| number), None);
    }

    #[test]
    fn bytes_by_table() {
        let mut table = [0; 256];
        for (byte, code) in (0..=255).zip(table.iter_mut()) {
            *code = byte;
        }
        table[0xc1] = 0xe0;
        assert_eq!(
            by_table(&Bytes::from_static(b"a\xc1"), &table),
            &b"a\xe0"[..]
        );
        assert_eq!(by_table(&Bytes::from_static(b"abc"), &table), &b"abc"[..]);
    }

    fn charset(text: &str) -> Result<Arc<Charset>, String> {
        testing::feature(text, &["http"])
    }

    #[test]
    fn tables_work_both_ways() {
        let map = "charset_map koi8-r windows-1251 { C0 FE ; # small yu\n C1 E0; } ";
        for (pair, input, expected) in [
            (
                "charset windows-1251; source_charset koi8-r;",
                b"a\xc0\xc1\xff",
                b"a\xfe\xe0?",
            ),
            (
                "charset koi8-r; source_charset Windows-1251;",
                b"a\xfe\xe0\xff",
                b"a\xc0\xc1?",
            ),
        ] {
            let charset = charset(&format!("http {{ {map} {pair} }}")).unwrap();
            let name = |text: &Option<Text>| text.as_ref().unwrap().literal().unwrap().clone();
            let recode = charset
                .maps
                .find(&name(&charset.source), &name(&charset.target))
                .unwrap();
            assert_eq!(recoded(recode, &[input]), expected);
            assert!(!charset.is_constant());
        }
    }

    #[test]
    fn mistakes_in_words_of_nginx() {
        let error = |text: &str| charset(&format!("http {{ {text} }}")).unwrap_err();
        assert_eq!(
            error("charset utf-8; source_charset koi8-r;"),
            "no \"charset_map\" between the charsets \"koi8-r\" and \"utf-8\""
        );
        assert_eq!(
            error("charset_map a A { }"),
            "\"charset_map\" between the same charsets \"a\" and \"A\""
        );
        assert_eq!(
            error("charset_map utf-8 a { }"),
            "\"charset_map\" with \"utf-8\" charset should be given in the second column"
        );
        assert_eq!(
            error("charset_map a b { } charset_map b a { }"),
            "duplicate \"charset_map\" between \"b\" and \"a\""
        );
        assert_eq!(
            error("charset_map a b { 80; }"),
            "invalid parameters number"
        );
        assert_eq!(
            error("charset_map a b { 100 80; }"),
            "invalid value \"100\""
        );
        assert_eq!(
            error("charset_map a utf-8 { 80 F09F9880; }"),
            "invalid value \"F09F9880\""
        );
    }

    #[test]
    fn constant_charsets() {
        for (text, constant) in [
            ("charset off;", true),
            ("charset utf-8;", true),
            ("charset utf-8; source_charset UTF-8;", true),
            ("charset $arg_c;", false),
        ] {
            assert_eq!(
                charset(&format!("http {{ {text} }}"))
                    .unwrap()
                    .is_constant(),
                constant,
                "{text}"
            );
        }
    }
}
