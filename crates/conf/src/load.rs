//! Loads a configuration: reads files and includes, checks name, context and number of arguments of
//! every line, and then parses every value.
//!
//! One run reports all errors of all files, in the order in which nginx would find them: after a
//! broken line, reading continues.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::hash::Map;

use crate::braces::SuspiciousPlaces;
use crate::check;
use crate::contexts::Contexts;
use crate::diagnostic::{Diagnostic, Fault, Level, Related};
use crate::elsewhere::ForeignDirectives;
use crate::files::Files;
use crate::glob;
use crate::hints::{self, begins_with_curly_quote, glued_name, source};
use crate::lexer::{Lexer, Token};
use crate::position::{self, Position};
use crate::registry::{Candidate, Registry};
use crate::report::mentions;
use crate::source::SourceFile;

use crate::line::{Block, Line, ScopeId, Word};
use crate::spec::BlockKind;
use crate::tree::{Entry, Tree};

/// Maximum depth of nested blocks and includes together.
const DEPTH_MAX: usize = 200;

/// Maximum number of unknown names for which a similar name is searched: a file that is not a
/// configuration has very many unknown names.
const SUGGESTIONS_MAX: usize = 50;

/// Maximum number of directives that are not allowed in their block and that the error about the
/// first of them lists.
const MISPLACED_SHOWN_MAX: usize = 4;

/// A loaded configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The parsed configuration, which is incomplete if the diagnostics contain errors.
    pub tree: Tree,
    /// Errors, warnings and notices.
    pub diagnostics: Vec<Diagnostic>,
    /// Every file that was read, without duplicates, in the order of reading.
    pub sources: Vec<SourceFile>,
    /// The sequence number of each diagnostic's line.
    order: Vec<u32>,
    /// The parts of the text that are not in the tree.
    lost: SkippedText,
}

impl Loaded {
    /// Takes the diagnostics, each with the sequence number of its line.
    pub(crate) fn take_diagnostics(&mut self) -> Vec<(Diagnostic, u32)> {
        let order = std::mem::take(&mut self.order).into_iter();
        let diagnostics = std::mem::take(&mut self.diagnostics).into_iter();
        diagnostics.zip(order).collect()
    }

    /// Whether the configuration cannot be used.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics
            .iter()
            .any(|found| found.level == Level::Emerg)
    }

    /// Whether the braces do not match, so that it is unknown which lines are in which block.
    pub(crate) fn has_wrong_braces(&self) -> bool {
        self.lost.braces
    }

    /// Whether a file that could not be read, or text that was skipped, might define this name.
    pub(crate) fn may_have_defined(&self, name: &str) -> bool {
        let SkippedText {
            texts, anything, ..
        } = &self.lost;
        *anything || texts.iter().any(|text| mentions(text, name))
    }
}

/// Text that is not in the tree because of an error in it.
#[derive(Debug, Default)]
struct SkippedText {
    /// The texts of lines and blocks that were skipped.
    texts: Vec<Box<[u8]>>,
    /// Whether the configuration lacks text whose content is unknown, such as a file that could not
    /// be read.
    anything: bool,
    /// Whether blocks begin or end elsewhere than intended.
    braces: bool,
}

/// Reads the configuration at `path`.
///
/// Includes are relative to `prefix`. `globals` are the texts of `-g`, processed first, as if they
/// were at the top of the file. Without errors, every value in the tree has been parsed once, so
/// that getting a value fails only for reasons outside the tree.
pub fn load(
    path: &Path,
    prefix: &Path,
    globals: &[Vec<u8>],
    registry: &Registry,
    files: &dyn Files,
) -> Loaded {
    let mut loader = Loader {
        prefix,
        registry,
        files,
        tree: Tree::new(),
        found: Vec::new(),
        sources: Vec::new(),
        by_name: Map::default(),
        open: Vec::new(),
        is_circular: false,
        sequence: 0,
        depth: 0,
        suggestions: 0,
        structural: Vec::new(),
        misplaced: Vec::new(),
        elsewhere: ForeignDirectives::default(),
        lost: SkippedText::default(),
    };
    let root = loader.tree.root().id();
    for text in globals {
        let mut lexer = Lexer::text(text, position::COMMAND_LINE);
        loader.directives(&mut lexer, root, EnclosingBlock::CommandLine);
    }
    loader.file(path, None, &mut |loader, lexer| {
        loader.directives(lexer, root, EnclosingBlock::File);
    });
    let mut dropped = loader.explain_braces();
    dropped.extend(loader.explain_misplaced());
    let Loader {
        mut tree,
        mut found,
        sources,
        elsewhere,
        lost,
        ..
    } = loader;
    dropped.extend(elsewhere.sum_up(&mut found));
    let mut index = 0;
    found.retain(|_| {
        index += 1;
        !dropped.contains(&(index - 1))
    });
    tree.finish();
    check::values(&tree, registry, &mut found);
    for (_, diagnostic) in &mut found {
        hints::at_semicolon(diagnostic, &sources, registry);
        hints::at_curly_quotes(diagnostic, &sources);
    }
    found.sort_by_key(|(sequence, _)| *sequence);
    let (order, diagnostics) = found.into_iter().unzip();
    Loaded {
        tree,
        diagnostics,
        order,
        sources,
        lost,
    }
}

/// The texts of all files in the format of `-T`.
#[must_use]
pub fn dump(sources: &[SourceFile]) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.extend_from_slice(b"# configuration file ");
        out.extend_from_slice(source.name.as_os_str().as_bytes());
        out.extend_from_slice(b":\n");
        out.extend_from_slice(&source.text);
        out.push(b'\n');
    }
    out
}

/// The source or block whose lines are being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EnclosingBlock {
    /// The top level of a file, which may be included within a block.
    File,
    /// A block of the same file.
    Block,
    CommandLine,
}

/// A directive whose words have been read.
struct Directive {
    name: Word,
    args: Vec<Word>,
    opens_block: bool,
}

impl Directive {
    fn position(&self) -> Position {
        self.name.position
    }

    fn fault(&self, message: String) -> Fault {
        Fault::at(&self.name, message)
    }

    fn wrong_arguments(&self) -> Fault {
        self.fault_about("invalid number of arguments in ", " directive")
    }

    fn not_terminated(&self) -> Fault {
        self.fault_about("directive ", " is not terminated by \";\"")
    }

    fn no_opening(&self) -> Fault {
        self.fault_about("directive ", " has no opening \"{\"")
    }

    fn fault_about(&self, before: &str, after: &str) -> Fault {
        self.fault(format!("{before}\"{}\"{after}", self.name.text()))
    }
}

/// Why a directive is not accepted: its name is unknown, it is not allowed in this context, or it
/// ends with `;` in place of a block or vice versa.
struct UnknownDirective {
    fault: Fault,
    kind: Option<BraceRelation>,
}

struct Loader<'a> {
    prefix: &'a Path,
    registry: &'a Registry,
    files: &'a dyn Files,
    tree: Tree,
    /// Diagnostics, each with the value of `sequence` at its report.
    found: Vec<(u32, Diagnostic)>,
    sources: Vec<SourceFile>,
    by_name: Map<PathBuf, usize>,
    /// The files being read, each included by the one before it.
    open: Vec<PathBuf>,
    /// Whether a file includes itself. If so, no further file is read, because files that match a
    /// pattern may include each other in very many orders.
    is_circular: bool,
    /// Number of lines read.
    sequence: u32,
    /// Number of open blocks and files.
    depth: usize,
    suggestions: usize,
    /// Errors that a brace elsewhere in the file may have caused.
    structural: Vec<Structural>,
    misplaced: Vec<Misplaced>,
    elsewhere: ForeignDirectives,
    lost: SkippedText,
}

/// The directives that are not allowed in their block, for one block: the indices of their errors.
struct Misplaced {
    scope: ScopeId,
    file: u32,
    first: usize,
    more: Vec<(usize, Word)>,
}

/// An error related to braces.
struct Structural {
    /// The index of the error in the list of diagnostics.
    index: usize,
    file: u32,
    kind: BraceRelation,
}

/// The relation of an error to braces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BraceRelation {
    /// A brace or semicolon is missing or wrong at this place.
    Brace,
    /// The directive is not allowed in this block, perhaps because the braces are not where the
    /// author thinks.
    Placement,
    /// The file has too many or too few braces.
    Balance,
}

impl Loader<'_> {
    fn report(&mut self, fault: Fault) {
        self.found.push((self.sequence, fault.into()));
    }

    /// Reports an error that a brace elsewhere may have caused.
    fn report_structural(&mut self, fault: Fault, kind: BraceRelation) {
        let file = fault.position.map_or(0, |position| position.file);
        let index = self.found.len();
        self.structural.push(Structural { index, file, kind });
        self.report(fault);
    }

    /// Reports a directive that is not allowed in this scope, and records it for
    /// [`Self::explain_misplaced`].
    fn misplaced(&mut self, scope: ScopeId, name: &Word, fault: Fault) {
        let file = name.position.file;
        let known = self
            .misplaced
            .iter_mut()
            .find(|block| block.scope == scope && block.file == file);
        match known {
            Some(block) => block.more.push((self.found.len(), name.clone())),
            None => self.misplaced.push(Misplaced {
                scope,
                file,
                first: self.found.len(),
                more: Vec::new(),
            }),
        }
        self.report_structural(fault, BraceRelation::Placement);
    }

    /// If three or more directives are not allowed in a block, the block itself is probably wrong:
    /// the first of their errors lists the other directives. Returns the indices of the other
    /// errors, which are not shown.
    fn explain_misplaced(&mut self) -> Vec<usize> {
        let mut dropped = Vec::new();
        for block in &self.misplaced {
            if block.more.len() < 2 {
                continue;
            }
            let shown = block.more.iter().take(MISPLACED_SHOWN_MAX);
            let shown =
                shown.map(|(_, word)| format!("{} (line {})", word.text(), word.position.line));
            let mut text = shown.collect::<Vec<_>>().join(", ");
            if block.more.len() > MISPLACED_SHOWN_MAX {
                text.push_str(" …");
            }
            let count = block.more.len();
            let opener = self.tree.scope(block.scope).line();
            if let Some((_, found)) = self.found.get_mut(block.first) {
                let hint = found.hint.take().unwrap_or_default();
                found.hint = Some(format!(
                    "{hint}; nor may {count} more of this block stand here: {text}"
                ));
                let opened = opener.map(|line| line.name.position);
                found.related = found.related.take().or(opened.map(|position| {
                    let label = "the block is opened here";
                    Box::new(Related { position, label })
                }));
            }
            dropped.extend(block.more.iter().map(|(index, _)| *index));
        }
        dropped
    }

    /// If the braces of a file do not match, only the first error related to braces is shown, with
    /// the probable position of the missing or surplus brace: the others are probably consequences.
    /// Returns the indices of the others.
    fn explain_braces(&mut self) -> Vec<usize> {
        let mut dropped: Vec<usize> = Vec::new();
        let mut files: Vec<u32> = self.structural.iter().map(|one| one.file).collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            let of_file: Vec<&Structural> = self
                .structural
                .iter()
                .filter(|one| one.file == file)
                .collect();
            let Some((first, others)) = of_file.split_first() else {
                continue;
            };
            let balance = of_file
                .iter()
                .find(|one| one.kind == BraceRelation::Balance);
            let placed = of_file
                .iter()
                .find(|one| one.kind == BraceRelation::Placement);
            let Some(source) = source(&self.sources, file) else {
                continue;
            };
            let suspects = SuspiciousPlaces::of(&source.text, file);
            let message = |index: usize| self.found.get(index).map(|(_, found)| found);
            let ends_open = balance
                .and_then(|balance| message(balance.index))
                .is_some_and(|found| found.message.starts_with("unexpected end"));
            let offset = placed
                .and_then(|placed| message(placed.index)?.position)
                .map(|position| position.offset);
            let related = match (balance, ends_open) {
                (Some(_), true) => suspects
                    .unclosed
                    .map(|position| (position, "opened here, and probably not closed"))
                    .or(suspects
                        .open_at_end
                        .map(|position| (position, "opened here"))),
                (Some(_), false) => suspects
                    .surplus
                    .map(|position| (position, "this \"}\" is probably one too many")),
                // The numbers of `{` and `}` are equal, but the braces are not where the author
                // sees them.
                (None, _) => suspects
                    .unclosed
                    .into_iter()
                    .chain(suspects.surplus)
                    .min()
                    .filter(|position| offset.is_some_and(|offset| position.offset < offset))
                    .map(|position| {
                        (
                            position,
                            "the \"}\" and \"{\" of this block are indented differently",
                        )
                    }),
            };
            if balance.is_none() && related.is_none() {
                continue;
            }
            self.lost.braces = true;
            dropped.extend(others.iter().map(|one| one.index));
            // An error about the brace itself needs no second position.
            if let Some((position, label)) = related.filter(|_| first.kind != BraceRelation::Brace)
                && let Some((_, found)) = self.found.get_mut(first.index)
                && found
                    .position
                    .is_none_or(|own| own.offset != position.offset)
            {
                found.related = Some(Box::new(Related { position, label }));
            }
        }
        dropped
    }

    /// Skips a block that is not read into the tree, and stores its text.
    fn skip_block(&mut self, lexer: &mut Lexer<'_>) {
        let start = lexer.offset();
        lexer.skip_block();
        self.lose(lexer.read_since(start));
    }

    /// Stores a text that is not in the tree because of an error.
    fn lose(&mut self, text: &[u8]) {
        self.lost.texts.push(text.into());
    }

    /// Reads directives into a scope, up to the end of the block or file.
    fn directives(&mut self, lexer: &mut Lexer<'_>, scope: ScopeId, around: EnclosingBlock) {
        while let Some(directive) = self.next(lexer, around) {
            self.directive(lexer, scope, around, directive);
        }
    }

    /// The next directive or row; `None` at the end. Errors before it are reported.
    fn next(&mut self, lexer: &mut Lexer<'_>, around: EnclosingBlock) -> Option<Directive> {
        loop {
            let start = lexer.offset();
            let (fault, kind) = match lexer.next() {
                Ok(Token::Directive { words, opens_block }) => {
                    self.sequence = self.sequence.saturating_add(1);
                    let mut words = words.into_iter();
                    let name = words.next()?;
                    return Some(Directive {
                        name,
                        args: words.collect(),
                        opens_block,
                    });
                }
                Ok(Token::BlockEnd) if around == EnclosingBlock::Block => return None,
                Ok(Token::BlockEnd) => (lexer.unexpected(b'}'), BraceRelation::Balance),
                Ok(Token::End) => {
                    if around == EnclosingBlock::Block && !lexer.was_cut_short() {
                        self.sequence = self.sequence.saturating_add(1);
                        let fault = lexer.end_inside_block();
                        self.report_structural(fault, BraceRelation::Balance);
                    }
                    return None;
                }
                Err(fault) => {
                    lexer.recover();
                    self.lose(lexer.read_since(start));
                    (fault, BraceRelation::Brace)
                }
            };
            // A sequence number after that of the previous line, whose own errors come first.
            self.sequence = self.sequence.saturating_add(1);
            self.report_structural(fault, kind);
        }
    }

    fn directive(
        &mut self,
        lexer: &mut Lexer<'_>,
        scope: ScopeId,
        around: EnclosingBlock,
        mut directive: Directive,
    ) {
        let context = self.tree.scope(scope).context();
        if directive.opens_block && around == EnclosingBlock::CommandLine {
            let text = "block directives are not supported in -g option";
            self.report(directive.fault(text.to_owned()));
            return lexer.skip_block();
        }
        self.cut_off_swallowed(lexer, context, &mut directive);
        let known = match self.known(context, &mut directive) {
            Ok(known) => known,
            Err(UnknownDirective { fault, kind }) => {
                match kind {
                    Some(BraceRelation::Placement) => self.misplaced(scope, &directive.name, fault),
                    Some(kind) => self.report_structural(fault, kind),
                    None => self.report(fault),
                }
                let start = directive.position().offset as usize;
                if directive.opens_block {
                    lexer.skip_block();
                }
                return self.lose(lexer.read_since(start));
            }
        };
        self.warn_of_curly_quotes(&directive.args);
        let fits = known.arity.allows(directive.args.len());
        if !fits {
            self.report(directive.wrong_arguments());
        }
        if directive.name.bytes.as_ref() == b"include" {
            if fits {
                self.include(&directive, &mut |loader, lexer| {
                    loader.directives(lexer, scope, EnclosingBlock::File);
                });
            } else {
                self.lost.anything = true;
            }
            return;
        }
        let block = match known.arity.block_kind() {
            BlockKind::None => None,
            BlockKind::Free => {
                let sequence = self.sequence;
                let mut rows = Vec::new();
                let opened = directive.position();
                self.rows_into(lexer, EnclosingBlock::Block, opened, &mut rows);
                let mut line = self.line(directive, Some(Block::Free(rows)), sequence);
                line.end = Some((lexer.position(), self.sequence));
                return self.add(scope, line, fits.then_some(known));
            }
            BlockKind::Scope => {
                let inner = known.declared.spec().opens.inside(context);
                Some(self.tree.open(scope, inner))
            }
        };
        let position = directive.position();
        let line = self.line(directive, block.map(Block::Scope), self.sequence);
        self.add(scope, line, fits.then_some(known));
        if let Some(inner) = block {
            if self.enter(position) {
                self.directives(lexer, inner, EnclosingBlock::Block)
            } else {
                return self.skip_block(lexer);
            }
            self.depth -= 1;
            self.tree.close(inner, (lexer.position(), self.sequence));
        }
    }

    /// If a `;` or `{` is missing at the end of a directive, the directive also contains the words
    /// of the following lines. If the directive is valid without these words, the missing `;` or
    /// `{` is reported, and the following lines are read separately.
    fn cut_off_swallowed(
        &mut self,
        lexer: &mut Lexer<'_>,
        context: Contexts,
        directive: &mut Directive,
    ) {
        let candidates = self.registry.lookup(&directive.name.bytes);
        let candidate = candidates
            .iter()
            .find(|known| known.contexts.contains(context));
        let Some(candidate) = candidate else { return };
        let wants_block = candidate.arity.block_kind() != BlockKind::None;
        if wants_block == directive.opens_block && candidate.arity.allows(directive.args.len()) {
            return;
        }
        let text = lexer.whole();
        let mut end = directive.name.end();
        let cut = directive.args.iter().position(|word| {
            let start = word.position.offset as usize;
            let gap = text.get(end.min(start)..start).unwrap_or_default();
            end = word.end();
            let begins_line = gap.contains(&b'\n');
            let is_name = !self.registry.lookup(&word.bytes).is_empty()
                || glued_name(&word.bytes).is_some()
                || self.registry.elsewhere(&word.bytes).is_some();
            let is_row = candidate.arity.block_kind() == BlockKind::Free;
            begins_line && !word.quoted && (is_name || is_row)
        });
        let Some(cut) = cut.filter(|cut| candidate.arity.allows(*cut)) else {
            return;
        };
        let fault = match (wants_block, directive.opens_block) {
            (false, true) => directive.not_terminated(),
            (true, false) => directive.no_opening(),
            _ => directive.wrong_arguments(),
        };
        let swallowed = directive.args.split_off(cut);
        let Some(first) = swallowed.first() else {
            return;
        };
        let missing = if wants_block { '{' } else { ';' };
        let hint = format!("a \"{missing}\" is missing before \"{}\"", first.text());
        self.report(fault.with_hint(hint));
        directive.opens_block = wants_block;
        lexer.rewind(first.position.offset as usize);
    }

    /// The declaration of a directive that is allowed in this context, with or without a block as
    /// written.
    fn known(
        &mut self,
        context: Contexts,
        directive: &mut Directive,
    ) -> Result<Candidate, UnknownDirective> {
        let candidates = self.registry.lookup(&directive.name.bytes);
        if candidates.is_empty() {
            return self.misspelled(context, directive);
        }
        let Some(known) = candidates
            .iter()
            .find(|known| known.contexts.contains(context))
        else {
            let anywhere = candidates
                .iter()
                .fold(Contexts::NONE, |all, one| all | one.contexts);
            let fault = directive.fault_about("", " directive is not allowed here");
            return Err(UnknownDirective {
                fault: fault.with_hint(format!("it may stand in: {anywhere}")),
                kind: Some(BraceRelation::Placement),
            });
        };
        let fault = match (known.arity.block_kind(), directive.opens_block) {
            (BlockKind::None, true) => directive.not_terminated(),
            (BlockKind::Scope | BlockKind::Free, false) => {
                let elsewhere = candidates
                    .iter()
                    .filter(|one| one.arity.block_kind() == BlockKind::None)
                    .fold(Contexts::NONE, |all, one| all | one.contexts);
                match elsewhere {
                    Contexts::NONE => directive.no_opening(),
                    _ => directive
                        .no_opening()
                        .with_hint(format!("without a block it may stand in: {elsewhere}")),
                }
            }
            _ => return Ok(*known),
        };
        Err(UnknownDirective {
            fault,
            kind: Some(BraceRelation::Brace),
        })
    }

    /// Handles a name that is not in the table. A block whose name is similar to that of a known
    /// block is read as the known block, so that errors in the block are reported too, and the
    /// names that it defines are known.
    fn misspelled(
        &mut self,
        context: Contexts,
        directive: &mut Directive,
    ) -> Result<Candidate, UnknownDirective> {
        if let Some(known) = self.registry.elsewhere(&directive.name.bytes) {
            let name = directive.name.text();
            let remark = known.remark;
            let fault = directive.fault(format!("unsupported directive \"{name}\" ({remark})"));
            self.elsewhere.add(known, &directive.name, self.found.len());
            return Err(UnknownDirective { fault, kind: None });
        }
        let fault = directive.fault_about("unknown directive ", "");
        if let Some(hint) = self.registry.removed(&directive.name.bytes) {
            return Err(UnknownDirective {
                fault: fault.with_hint(hint),
                kind: None,
            });
        }
        if let Some(name) = glued_name(&directive.name.bytes) {
            return self.unglued(context, directive, name);
        }
        self.suggestions += 1;
        let suggestion = (self.suggestions <= SUGGESTIONS_MAX)
            .then(|| self.registry.nearest_name(&directive.name.text()))
            .flatten();
        let Some(name) = suggestion else {
            return Err(UnknownDirective { fault, kind: None });
        };
        let fault = fault.with_hint(format!("did you mean \"{name}\"?"));
        let meant = self.registry.lookup(name.as_bytes()).iter().find(|known| {
            let is_block = known.arity.block_kind() != BlockKind::None;
            is_block && directive.opens_block && known.contexts.contains(context)
        });
        match meant {
            Some(meant) => {
                self.report(fault);
                directive.name.bytes = name.as_bytes().into();
                Ok(*meant)
            }
            None => Err(UnknownDirective { fault, kind: None }),
        }
    }

    /// Reads `if($x) {` as `if ($x) {`, so that errors in its block are reported too.
    fn unglued(
        &mut self,
        context: Contexts,
        directive: &mut Directive,
        name: &'static str,
    ) -> Result<Candidate, UnknownDirective> {
        let fault = directive.fault_about("unknown directive ", "");
        let fault = fault.with_hint(format!("a space is missing after \"{name}\""));
        let candidates = self.registry.lookup(name.as_bytes()).iter();
        let mut meant = candidates.filter(|known| known.contexts.contains(context));
        let (true, Some(meant)) = (directive.opens_block, meant.next()) else {
            return Err(UnknownDirective { fault, kind: None });
        };
        self.report(fault);
        let (before, argument) = directive.name.bytes.split_at(name.len());
        let offset = u32::try_from(name.len()).unwrap_or(0);
        let argument = Word {
            bytes: argument.into(),
            quoted: false,
            position: Position {
                offset: directive.name.position.offset.saturating_add(offset),
                ..directive.name.position
            },
        };
        directive.name.bytes = before.into();
        directive.args.insert(0, argument);
        Ok(*meant)
    }

    /// Warns of words that begin with a typographic quotation mark, which is an ordinary character
    /// in the language.
    fn warn_of_curly_quotes(&mut self, words: &[Word]) {
        for word in words {
            if !word.quoted && begins_with_curly_quote(&word.bytes) {
                let text = format!(
                    "\"{}\" begins with a curly quote, which quotes nothing here",
                    word.text()
                );
                let warning = Diagnostic::warn(text, Some(word.position));
                let warning = warning.with_hint(hints::STRAIGHT_QUOTES);
                self.found.push((self.sequence, warning));
            }
        }
    }

    fn line(&self, directive: Directive, block: Option<Block>, sequence: u32) -> Line {
        let position = directive.position();
        Line {
            name: directive.name,
            args: directive.args,
            block,
            position,
            end: None,
            sequence,
        }
    }

    /// Adds a line to a scope. Without a declaration, the line is stored, but lookups by directive
    /// do not find it.
    fn add(&mut self, scope: ScopeId, line: Line, known: Option<Candidate>) {
        let scope = self.tree.scope_mut(scope);
        if let Some(known) = known {
            let key = known.declared.spec().key();
            scope.note(Entry {
                key,
                line: scope.lines.len(),
                declared: known.declared,
            });
        }
        scope.lines.push(line);
    }

    /// Reads the rows of a free block that was opened at `opened`. If a row is a directive that
    /// opens a block, the free block was not closed: reading of rows ends there, and the caller
    /// reads the directive next.
    fn rows_into(
        &mut self,
        lexer: &mut Lexer<'_>,
        around: EnclosingBlock,
        opened: Position,
        rows: &mut Vec<Line>,
    ) {
        while let Some(row) = self.next(lexer, around) {
            if row.opens_block {
                let fault = lexer.unexpected(b'{');
                let fault = fault.with_related(opened, "opened here, and probably not closed");
                let candidates = self.registry.lookup(&row.name.bytes);
                let opens = |known: &Candidate| known.arity.block_kind() != BlockKind::None;
                if around == EnclosingBlock::Block && candidates.iter().any(opens) {
                    self.report_structural(fault, BraceRelation::Brace);
                    return lexer.rewind(row.position().offset as usize);
                }
                self.report_structural(lexer.unexpected(b'{'), BraceRelation::Brace);
                self.skip_block(lexer);
            } else if row.name.bytes.as_ref() == b"include" && row.args.len() == 1 {
                self.include(&row, &mut |loader, lexer| {
                    loader.rows_into(lexer, EnclosingBlock::File, opened, rows);
                });
            } else {
                self.warn_of_curly_quotes(std::slice::from_ref(&row.name));
                self.warn_of_curly_quotes(&row.args);
                // As in nginx, each kind of block has its own error text for an `include` with a
                // wrong number of arguments.
                rows.push(self.line(row, None, self.sequence));
            }
        }
    }

    /// Reads the files that an `include` names.
    fn include(&mut self, directive: &Directive, read: Reader<'_, Self>) {
        let Some(argument) = directive.args.first() else {
            return;
        };
        let path = self.prefix.join(argument.path());
        if !glob::is_pattern(path.as_os_str().as_bytes()) {
            return self.file(&path, Some(argument), read);
        }
        match self.files.glob(&path) {
            Ok(paths) => {
                for path in paths {
                    self.file(&path, Some(argument), read);
                }
            }
            Err(error) => {
                let text = failure("glob()", &path, &error);
                self.lost.anything = true;
                self.report(Fault::at(argument, text));
            }
        }
    }

    /// Reads one file; `by` is the argument of the `include`, or `None` for the main file.
    fn file(&mut self, path: &Path, by: Option<&Word>, read: Reader<'_, Self>) {
        let fault = |message: String| match by {
            Some(word) => Fault::at(word, message),
            None => Fault::new(message),
        };
        if self.is_circular {
            return;
        }
        if let Some(first) = self.open.iter().position(|open| open == path) {
            self.is_circular = true;
            self.lost.anything = true;
            let fault = fault(format!("\"{}\" includes itself", path.display()));
            let between = self.open.iter().skip(first + 1);
            let between: Vec<String> = between
                .map(|open| format!("\"{}\"", open.display()))
                .collect();
            return self.report(if between.is_empty() {
                fault
            } else {
                fault.with_hint(format!("by way of {}", between.join(", ")))
            });
        }
        let text = match self.text(path) {
            Ok(text) => text,
            Err(error) => {
                // nginx opens a folder like a file and fails at its first read.
                let call = match error.kind() {
                    io::ErrorKind::IsADirectory => "pread()",
                    _ => "open()",
                };
                self.lost.anything = true;
                return self.report(fault(failure(call, path, &error)));
            }
        };
        if !self.enter(by.map(|word| word.position).unwrap_or_default()) {
            return;
        }
        self.open.push(path.to_owned());
        read(self, &mut Lexer::file(&text, position::file_number(path)));
        self.open.pop();
        self.depth -= 1;
    }

    /// The text of a file; each file is read once, however often it is included.
    fn text(&mut self, path: &Path) -> io::Result<Arc<[u8]>> {
        let known = self
            .by_name
            .get(path)
            .and_then(|index| self.sources.get(*index));
        if let Some(source) = known {
            return Ok(Arc::clone(&source.text));
        }
        let text: Arc<[u8]> = self.files.read(path)?.into();
        self.by_name.insert(path.to_owned(), self.sources.len());
        self.sources.push(SourceFile {
            name: path.to_owned(),
            text: Arc::clone(&text),
        });
        Ok(text)
    }

    /// Enters a block or file, unless the nesting is too deep.
    fn enter(&mut self, position: Position) -> bool {
        if self.depth == DEPTH_MAX {
            let text = format!("blocks and includes are nested more than {DEPTH_MAX} deep");
            self.report(Fault::new(text).or_at(position));
            return false;
        }
        self.depth += 1;
        true
    }
}

/// Reads the content of an included file, as directives or as rows like the block around the
/// `include`.
type Reader<'a, L> = &'a mut dyn FnMut(&mut L, &mut Lexer<'_>);

/// The message about a failed system call in nginx's words: `open() "/x" failed (2: No such file or
/// directory)`.
fn failure(call: &str, path: &Path, error: &io::Error) -> String {
    let path = path.display();
    let Some(number) = error.raw_os_error() else {
        return match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{call} \"{path}\" failed (2: No such file or directory)")
            }
            _ => format!("{call} \"{path}\" failed ({error})"),
        };
    };
    let text = error.to_string();
    let text = text
        .strip_suffix(&format!(" (os error {number})"))
        .unwrap_or(&text);
    format!("{call} \"{path}\" failed ({number}: {text})")
}
