//! Parses patterns like PCRE2 10.46 without UTF and UCP: pcre2pattern(3).
//!
//! The parser follows PCRE2's `parse_regex` and its order of checks: what is ignored between an
//! item and its quantifier, whether an item may be repeated, whether a brace begins a quantifier.
//! It stops at the first construct that is not regular, since such a pattern runs on PCRE2. Text is
//! bytes: `é+` repeats the last of two bytes.

use crate::ast::{Assertion, Ast, ByteSet};
use crate::beyond::IrregularFeature;
use crate::class;
use crate::escape::{self, Escape};

/// Maximum nesting of brackets, as PCRE2 counts it (`PARENS_NEST_LIMIT`).
const NESTING_MAX: usize = 250;
/// Maximum number in a quantifier (`MAX_REPEAT_COUNT`).
const REPEAT_MAX: u32 = 65_535;
/// Maximum length of the text that a look-behind may match (`max_varlookbehind`).
const BEHIND_LENGTH_MAX: usize = 255;
/// Maximum length of a group's name, in bytes (`MAX_NAME_SIZE`).
const NAME_LENGTH_MAX: usize = 128;

/// A parsed pattern.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedPattern {
    /// The syntax tree.
    pub ast: Ast,
    /// Number of capturing groups.
    pub groups: u32,
}

/// Maximum number of states of a group whose content replaces a back-reference to it; a reference
/// to a larger group is replaced by a pattern that matches everything.
const REFERENCE_STATES_MAX: usize = 256;

/// Parses a pattern; `caseless` as with PCRE2_CASELESS.
pub fn parse(pattern: &[u8], caseless: bool) -> Result<ParsedPattern, IrregularFeature> {
    read(pattern, caseless, Reading::Exact)
}

/// Parses a pattern; constructs that are not regular are replaced by regular ones that match at
/// least as much. If the result does not match a subject, neither does the pattern.
pub(crate) fn parse_wider(
    pattern: &[u8],
    caseless: bool,
) -> Result<ParsedPattern, IrregularFeature> {
    read(pattern, caseless, Reading::Wider)
}

/// The treatment of constructs that are not regular.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Such constructs are errors.
    Exact,
    /// Such constructs are replaced by a regular construct that matches at least as much, if there
    /// is one.
    Wider,
}

fn read(
    pattern: &[u8],
    caseless: bool,
    reading: Reading,
) -> Result<ParsedPattern, IrregularFeature> {
    let mut parser = Parser {
        text: Text {
            bytes: pattern,
            at: 0,
        },
        options: if caseless {
            Options::CASELESS
        } else {
            Options::default()
        },
        reading,
        widened: 0,
        shares_numbers: false,
        closed: Vec::new(),
        quoted: false,
        groups: 0,
        names: Vec::new(),
        open: Vec::new(),
        level: Level::default(),
        last: Quantifiable::Fixed,
    };
    while let Some(token) = parser.next_token()? {
        parser.item(token)?;
    }
    if !parser.open.is_empty() {
        return Err(IrregularFeature::Refused);
    }
    Ok(ParsedPattern {
        ast: parser.level.finish(),
        groups: parser.groups,
    })
}

/// A position in the text of a pattern.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    at: usize,
}

impl<'a> Text<'a> {
    /// The text from the current position.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    pub(crate) fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.at = (self.at + count).min(self.bytes.len());
    }

    /// Skips this text if it is next; returns whether it was.
    pub(crate) fn eat(&mut self, expected: &[u8]) -> bool {
        let found = self.rest().starts_with(expected);
        if found {
            self.at += expected.len();
        }
        found
    }

    pub(crate) fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    /// Parses a decimal number; `None` without digits. Numbers that are too large become
    /// `u32::MAX`.
    pub(crate) fn number(&mut self) -> Option<u32> {
        let mut number = None;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let before: u32 = number.unwrap_or(0);
            number = Some(
                before
                    .saturating_mul(10)
                    .saturating_add(u32::from(digit - b'0')),
            );
            self.at += 1;
        }
        number
    }

    /// Parses a quantifier after its opening brace: minimum and maximum. If it is no quantifier,
    /// the position is unchanged and the brace is a literal.
    pub(crate) fn repeat(&mut self) -> Result<Option<(u32, Option<u32>)>, IrregularFeature> {
        let mut text = *self;
        text.skip_blanks();
        let min = text.number();
        text.skip_blanks();
        let max = match (text.next(), min) {
            (Some(b'}'), Some(_)) => min,
            (Some(b','), _) => {
                text.skip_blanks();
                let max = text.number();
                text.skip_blanks();
                if (min.is_none() && max.is_none()) || text.next() != Some(b'}') {
                    return Ok(None);
                }
                max
            }
            _ => return Ok(None),
        };
        let min = min.unwrap_or(0);
        if min > REPEAT_MAX || max.is_some_and(|max| max > REPEAT_MAX || max < min) {
            return Err(IrregularFeature::Refused);
        }
        *self = text;
        Ok(Some((min, max)))
    }
}

/// Options that a pattern can change; the end of a group restores them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options(u8);

impl Options {
    pub(crate) const CASELESS: Options = Options(1);
    const MULTILINE: Options = Options(2);
    const DOT_ALL: Options = Options(4);
    const EXTENDED: Options = Options(8);
    /// `(?xx)`: spaces and tabs in classes are ignored too.
    pub(crate) const EXTENDED_MORE: Options = Options(16);
    const NO_AUTO_CAPTURE: Options = Options(32);
    const UNGREEDY: Options = Options(64);

    /// Whether all of these options are set.
    pub(crate) fn has(self, others: Options) -> bool {
        self.0 & others.0 == others.0
    }

    fn with(self, others: Options) -> Options {
        Options(self.0 | others.0)
    }

    fn without(self, others: Options) -> Options {
        Options(self.0 & !others.0)
    }
}

/// Whether the preceding item may be repeated by a quantifier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantifiable {
    /// Not repeatable: an assertion, an option, a quantifier, or no item.
    Fixed,
    Repeatable,
    /// A look-around or `\K`, for whose repetition PCRE2 has special rules.
    Special,
    /// A quantifier that has not been followed by `?` or `+` so far.
    Quantifier,
}

/// The next significant byte.
enum Token {
    /// A byte between `\Q` and `\E`.
    Quoted(u8),
    Plain(u8),
}

/// A group that is being parsed, or the whole pattern.
#[derive(Default)]
struct Level {
    branches: Vec<Ast>,
    items: Vec<Ast>,
}

impl Level {
    fn end_branch(&mut self) {
        let mut items = std::mem::take(&mut self.items);
        let branch = if items.len() == 1 { items.pop() } else { None };
        self.branches.push(branch.unwrap_or(Ast::Concat(items)));
    }

    fn finish(mut self) -> Ast {
        self.end_branch();
        if self.branches.len() > 1 {
            return Ast::Branches(self.branches);
        }
        self.branches.pop().unwrap_or(Ast::Concat(Vec::new()))
    }
}

/// The state to restore at a closing bracket.
struct Open {
    level: Level,
    options: Options,
    kind: Kind,
    /// The value of [`Parser::widened`] at the opening bracket.
    widened: usize,
}

/// The kind of a group that is being parsed.
#[derive(Clone, Copy)]
enum Kind {
    /// A non-capturing group.
    Plain,
    /// A capturing group, by number.
    Capture(u32),
    Around {
        ahead: bool,
        negated: bool,
    },
}

/// The state of the parser.
struct Parser<'a> {
    text: Text<'a>,
    options: Options,
    reading: Reading,
    /// Number of constructs that have been replaced by wider ones.
    widened: usize,
    /// Whether the numbers of groups may differ from the parser's, after `(?|`.
    shares_numbers: bool,
    /// The texts that closed groups can match, by group number; only for a wider reading.
    closed: Vec<(u32, Ast)>,
    quoted: bool,
    groups: u32,
    names: Vec<&'a [u8]>,
    open: Vec<Open>,
    level: Level,
    last: Quantifiable,
}

impl<'a> Parser<'a> {
    /// The next significant byte, after text that may stand between an item and its quantifier:
    /// comments, `\Q` and `\E`, and white space under `(?x)`.
    fn next_token(&mut self) -> Result<Option<Token>, IrregularFeature> {
        loop {
            if self.text.rest().is_empty() {
                return Ok(None);
            }
            if self.open.len() > NESTING_MAX {
                return Err(IrregularFeature::Refused);
            }
            if self.quoted {
                if self.text.eat(b"\\E") {
                    self.quoted = false;
                    continue;
                }
                return Ok(self.text.next().map(Token::Quoted));
            }
            if self.text.eat(b"\\Q") {
                self.quoted = true;
            } else if self.text.eat(b"(?#") {
                while self.text.next().ok_or(IrregularFeature::Refused)? != b')' {}
            } else if !self.text.eat(b"\\E") && !self.skip_extended() {
                return Ok(self.text.next().map(Token::Plain));
            }
        }
    }

    /// Skips white space and comments under `(?x)`. 0x85 is white space for PCRE2, even as a byte
    /// of another character.
    fn skip_extended(&mut self) -> bool {
        match self.text.peek() {
            _ if !self.options.has(Options::EXTENDED) => false,
            Some(b'\t'..=b'\r' | b' ' | 0x85) => {
                self.text.skip(1);
                true
            }
            Some(b'#') => {
                while !matches!(self.text.next(), None | Some(b'\n')) {}
                true
            }
            _ => false,
        }
    }

    /// Parses an item, which begins with this token.
    fn item(&mut self, token: Token) -> Result<(), IrregularFeature> {
        let byte = match token {
            Token::Quoted(byte) => {
                self.literal(byte);
                return Ok(());
            }
            Token::Plain(byte) => byte,
        };
        let last = std::mem::replace(&mut self.last, Quantifiable::Fixed);
        match (last, byte) {
            (Quantifiable::Quantifier, b'?') => {
                self.make_lazy();
                return Ok(());
            }
            (Quantifiable::Quantifier, b'+') => return self.widen(IrregularFeature::Possessive),
            _ => {}
        }
        match byte {
            b'\\' => self.escape()?,
            b'^' if self.options.has(Options::MULTILINE) => {
                self.level.items.push(Ast::Look(Assertion::LineStart))
            }
            b'^' => self.level.items.push(Ast::Look(Assertion::Start)),
            b'$' if self.options.has(Options::MULTILINE) => {
                self.level.items.push(Ast::Look(Assertion::LineEnd))
            }
            b'$' => self.level.items.push(Ast::Look(Assertion::LastEnd)),
            b'.' if self.options.has(Options::DOT_ALL) => self.set(ByteSet::ALL),
            b'.' => self.set(ByteSet::one(b'\n').complement()),
            b'*' => self.repeat(last, 0, None)?,
            b'+' => self.repeat(last, 1, None)?,
            b'?' => self.repeat(last, 0, Some(1))?,
            b'{' => match self.text.repeat()? {
                Some((min, max)) => self.repeat(last, min, max)?,
                None => self.literal(byte),
            },
            b'[' => {
                let set = class::parse(&mut self.text, self.options)?;
                self.set(set);
            }
            b'(' => self.open_group()?,
            b'|' => self.level.end_branch(),
            b')' => self.close_group()?,
            _ => self.literal(byte),
        }
        Ok(())
    }

    fn literal(&mut self, byte: u8) {
        let set = ByteSet::one(byte);
        self.set(if self.options.has(Options::CASELESS) {
            set.caseless()
        } else {
            set
        });
    }

    fn set(&mut self, set: ByteSet) {
        self.level.items.push(Ast::Byte(set));
        self.last = Quantifiable::Repeatable;
    }

    fn escape(&mut self) -> Result<(), IrregularFeature> {
        let caseless = self.options.has(Options::CASELESS);
        match escape::read(&mut self.text, Some(self.groups), caseless)? {
            Escape::Byte(byte) => self.literal(byte),
            Escape::Set(set) => self.set(set),
            Escape::Look(look) => self.level.items.push(Ast::Look(look)),
            Escape::ResetStart => {
                let is_around = |open: &Open| matches!(open.kind, Kind::Around { .. });
                if self.open.iter().any(is_around) {
                    self.widen(IrregularFeature::ResetStart)?;
                }
                self.level.items.push(Ast::ResetStart);
                self.last = Quantifiable::Special;
            }
            Escape::BackReference(group) => {
                self.widen(IrregularFeature::BackReference)?;
                self.reference(group);
            }
            Escape::Newline => {
                self.widen(IrregularFeature::Newline)?;
                let [first, second] = [b'\r', b'\n'].map(|byte| Ast::Byte(ByteSet::one(byte)));
                let one = ByteSet::of(|byte| matches!(byte, b'\n'..=b'\r' | 0x85));
                let both = Ast::Concat(vec![first, second]);
                let newline = Ast::Branches(vec![both, Ast::Byte(one)]);
                self.level.items.push(newline);
                self.last = Quantifiable::Repeatable;
            }
        }
        Ok(())
    }

    /// Counts a construct that is replaced by a wider one; an error if the reading is exact.
    fn widen(&mut self, beyond: IrregularFeature) -> Result<(), IrregularFeature> {
        if self.reading == Reading::Exact {
            return Err(beyond);
        }
        self.widened += 1;
        Ok(())
    }

    /// Replaces a back-reference: by all texts that the group can match, or by a pattern that
    /// matches everything.
    fn reference(&mut self, group: Option<u32>) {
        let group = group.filter(|_| !self.shares_numbers);
        let closed = self.closed.iter().find(|(index, _)| Some(*index) == group);
        let anything = || Ast::Repeat {
            min: 0,
            max: None,
            greedy: true,
            inner: Box::new(Ast::Byte(ByteSet::ALL)),
        };
        let ast = closed.map_or_else(anything, |(_, ast)| ast.clone());
        self.level.items.push(ast);
        self.last = Quantifiable::Repeatable;
    }

    /// Repeats the last item.
    fn repeat(
        &mut self,
        last: Quantifiable,
        min: u32,
        max: Option<u32>,
    ) -> Result<(), IrregularFeature> {
        match last {
            Quantifiable::Repeatable => {}
            Quantifiable::Special => {
                self.widen(IrregularFeature::LookAround)?;
                self.level.items.pop();
                self.level.items.push(Ast::Concat(Vec::new()));
            }
            Quantifiable::Fixed | Quantifiable::Quantifier => {
                return Err(IrregularFeature::Refused);
            }
        }
        let inner = self.level.items.pop().ok_or(IrregularFeature::Refused)?;
        let greedy = !self.options.has(Options::UNGREEDY);
        self.level.items.push(Ast::Repeat {
            min,
            max,
            greedy,
            inner: Box::new(inner),
        });
        self.last = Quantifiable::Quantifier;
        Ok(())
    }

    /// Applies a `?` after a quantifier.
    fn make_lazy(&mut self) {
        let ungreedy = self.options.has(Options::UNGREEDY);
        if let Some(Ast::Repeat { greedy, .. }) = self.level.items.last_mut() {
            *greedy = ungreedy;
        }
    }

    /// Parses a group after its opening bracket.
    fn open_group(&mut self) -> Result<(), IrregularFeature> {
        if self.text.peek() == Some(b'*') {
            return Err(IrregularFeature::Verb);
        }
        if !self.text.eat(b"?") {
            let capture = !self.options.has(Options::NO_AUTO_CAPTURE);
            return self.begin(capture, self.options);
        }
        let before = self.options;
        match self.text.rest() {
            [] => Err(IrregularFeature::Refused),
            [b'P', b'<', ..] => {
                self.text.skip(2);
                self.named(b'>')
            }
            [b'P', b'=', rest @ ..] => {
                self.widen(IrregularFeature::BackReference)?;
                let end = rest.iter().position(|byte| *byte == b')');
                self.text
                    .skip(2 + end.ok_or(IrregularFeature::Refused)? + 1);
                self.reference(None);
                Ok(())
            }
            [b'P', b'>', ..] => Err(IrregularFeature::Recursion),
            [b'P', ..] => Err(IrregularFeature::Refused),
            [b'<', b'*', ..] | [b'*', ..] => Err(IrregularFeature::LookAround),
            [kind @ (b'=' | b'!'), ..] => self.look(1, true, *kind == b'!'),
            [b'<', kind @ (b'=' | b'!'), ..] => self.look(2, false, *kind == b'!'),
            [b'<', ..] => {
                self.text.skip(1);
                self.named(b'>')
            }
            [b'\'', ..] => {
                self.text.skip(1);
                self.named(b'\'')
            }
            [b'>', ..] => {
                self.widen(IrregularFeature::Atomic)?;
                self.text.skip(1);
                self.begin(false, self.options)
            }
            [b'|', ..] => {
                self.widen(IrregularFeature::BranchReset)?;
                self.shares_numbers = true;
                self.text.skip(1);
                self.begin(false, self.options)
            }
            [b'(', ..] => Err(IrregularFeature::Condition),
            [b'C', ..] => Err(IrregularFeature::Callout),
            [b'[', ..] => Err(IrregularFeature::ExtendedClass),
            [b'R' | b'&' | b'+' | b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => {
                Err(IrregularFeature::Recursion)
            }
            _ => match self.change_options()? {
                b':' => self.begin(false, before),
                _ => Ok(()),
            },
        }
    }

    /// Parses option letters up to `:` or `)`; returns the latter.
    fn change_options(&mut self) -> Result<u8, IrregularFeature> {
        let mut options = self.options;
        let mut may_unset = true;
        if self.text.eat(b"^") {
            options = Options(options.0 & Options::UNGREEDY.0);
            may_unset = false;
        }
        let (mut set, mut unset, mut unsetting) = (Options::default(), Options::default(), false);
        let end = loop {
            let option = match self.text.next().ok_or(IrregularFeature::Refused)? {
                b'-' if may_unset => {
                    (may_unset, unsetting) = (false, true);
                    continue;
                }
                b'i' => Options::CASELESS,
                b'm' => Options::MULTILINE,
                b's' => Options::DOT_ALL,
                b'x' if self.text.eat(b"x") => Options::EXTENDED.with(Options::EXTENDED_MORE),
                b'x' => Options::EXTENDED,
                b'n' => Options::NO_AUTO_CAPTURE,
                b'U' => Options::UNGREEDY,
                b'J' => return Err(IrregularFeature::DuplicateNames),
                b'a' | b'r' => return Err(IrregularFeature::Unicode),
                end @ (b':' | b')') => break end,
                _ => return Err(IrregularFeature::Refused),
            };
            let changed = if unsetting { &mut unset } else { &mut set };
            *changed = changed.with(option);
        };
        // A single x turns an earlier xx into x; -x unsets both.
        let one_x = set.has(Options::EXTENDED) && !set.has(Options::EXTENDED_MORE);
        if one_x || unset.has(Options::EXTENDED) {
            unset = unset.with(Options::EXTENDED_MORE);
        }
        self.options = options.with(set).without(unset);
        Ok(end)
    }

    /// Parses a group's name after its opening delimiter.
    fn named(&mut self, end: u8) -> Result<(), IrregularFeature> {
        let rest = self.text.rest();
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = rest.iter().take_while(|byte| is_name(byte)).count();
        let (name, behind) = rest.split_at(length);
        let begins = name.first().is_some_and(|first| !first.is_ascii_digit());
        if !begins || length > NAME_LENGTH_MAX || behind.first() != Some(&end) {
            return Err(IrregularFeature::Refused);
        }
        if self.names.contains(&name) {
            return Err(IrregularFeature::Refused);
        }
        self.names.push(name);
        self.text.skip(length + 1);
        self.begin(true, self.options)
    }

    /// Begins a group at whose end `options` are restored.
    fn begin(&mut self, captures: bool, options: Options) -> Result<(), IrregularFeature> {
        let capture = captures.then_some(self.groups + 1);
        self.groups = capture.unwrap_or(self.groups);
        self.enter(options, capture.map_or(Kind::Plain, Kind::Capture));
        Ok(())
    }

    /// Begins a look-around after its opening text of `opening` bytes.
    fn look(&mut self, opening: usize, ahead: bool, negated: bool) -> Result<(), IrregularFeature> {
        self.text.skip(opening);
        self.enter(self.options, Kind::Around { ahead, negated });
        Ok(())
    }

    fn enter(&mut self, options: Options, kind: Kind) {
        let level = std::mem::take(&mut self.level);
        self.open.push(Open {
            level,
            options,
            kind,
            widened: self.widened,
        });
    }

    /// Ends a group at its closing bracket.
    fn close_group(&mut self) -> Result<(), IrregularFeature> {
        let open = self.open.pop().ok_or(IrregularFeature::Refused)?;
        let inner = std::mem::replace(&mut self.level, open.level).finish();
        self.options = open.options;
        self.last = Quantifiable::Repeatable;
        let ast = match open.kind {
            Kind::Plain => inner,
            Kind::Capture(index) => {
                if self.reading == Reading::Wider && inner.states() <= REFERENCE_STATES_MAX {
                    self.closed.push((index, inner.texts_of()));
                }
                Ast::Capture {
                    index,
                    inner: Box::new(inner),
                }
            }
            Kind::Around { ahead, negated } => {
                // PCRE2 decides whether longer look-behinds are allowed, and what groups in one
                // capture.
                let bounded = inner
                    .length_max()
                    .is_some_and(|length| length <= BEHIND_LENGTH_MAX);
                self.last = Quantifiable::Special;
                let is_foreign = !ahead && (!bounded || inner.captures());
                if is_foreign {
                    self.widen(IrregularFeature::LookAround)?;
                }
                // The pattern of a negative look-around must not become wider.
                if is_foreign || (negated && self.widened > open.widened) {
                    self.level.items.push(Ast::Concat(Vec::new()));
                    return Ok(());
                }
                Ast::Around {
                    ahead,
                    negated,
                    inner: Box::new(inner),
                }
            }
        };
        self.level.items.push(ast);
        Ok(())
    }
}
