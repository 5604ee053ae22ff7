//! Reading a configuration: files, includes, the shape of every line, then every value.
//!
//! All errors of all files come back from one run, in the order in which nginx would meet them:
//! after a broken line reading goes on behind it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::hash::Map;

use crate::check;
use crate::contexts::Contexts;
use crate::diagnostic::{Diagnostic, Fault};
use crate::files::Files;
use crate::glob;
use crate::lexer::{Lexer, Token};
use crate::position::{self, Position};
use crate::registry::{Known, Registry};
use crate::scope::ScopeId;
use crate::spec::BlockKind;
use crate::tree::{Block, Entry, Line, Tree, Word};

/// How deep blocks and includes may nest, both counted together.
const DEPTH_MAX: usize = 200;

/// How many unknown names get a suggestion: a file that is no configuration has very many.
const SUGGESTIONS_MAX: usize = 50;

/// A configuration as it was read.
#[derive(Debug)]
pub struct Loaded {
    /// What could be parsed. With errors among the diagnostics it is incomplete.
    pub tree: Tree,
    /// Errors, warnings and notices.
    pub diagnostics: Vec<Diagnostic>,
    /// Every file that was read, each once, in the order of reading.
    pub sources: Vec<SourceFile>,
}

impl Loaded {
    /// Whether the configuration cannot be used.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics
            .iter()
            .any(|found| found.level == crate::diagnostic::Level::Emerg)
    }
}

/// One file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path by which it was opened.
    pub name: PathBuf,
    /// What it holds.
    pub text: Arc<[u8]>,
}

/// Reads the configuration at `path`.
///
/// Includes are relative to `prefix`. `globals` are the texts of `-g`; they come first, as if they
/// stood at the top of the file. Unless there are errors, every value in the tree has been parsed
/// once, so that asking for one fails only for reasons that its parse function finds elsewhere.
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
        sequence: 0,
        depth: 0,
        suggestions: 0,
    };
    let root = loader.tree.root().id();
    for text in globals {
        let mut lexer = Lexer::text(text, position::COMMAND_LINE);
        loader.directives(&mut lexer, root, Surroundings::CommandLine);
    }
    loader.file(path, None, &mut |loader, lexer| {
        loader.directives(lexer, root, Surroundings::File);
    });
    let Loader {
        mut tree,
        mut found,
        sources,
        ..
    } = loader;
    tree.finish();
    check::values(&tree, registry, &mut found);
    found.sort_by_key(|(sequence, _)| *sequence);
    let diagnostics = found
        .into_iter()
        .map(|(_, diagnostic)| diagnostic)
        .collect();
    Loaded {
        tree,
        diagnostics,
        sources,
    }
}

/// The texts of all files as `-T` prints them.
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

/// What the lines that are being read stand in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Surroundings {
    /// Nothing but their file.
    File,
    /// A block of the same file.
    Block,
    /// A `-g` option.
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

    fn fault_about(&self, before: &str, after: &str) -> Fault {
        self.fault(format!("{before}\"{}\"{after}", self.name.text()))
    }
}

struct Loader<'a> {
    prefix: &'a Path,
    registry: &'a Registry,
    files: &'a dyn Files,
    tree: Tree,
    /// Diagnostics with the number of the line at which they came up.
    found: Vec<(u32, Diagnostic)>,
    sources: Vec<SourceFile>,
    by_name: Map<PathBuf, usize>,
    /// Files that are being read now, each included by the one before it.
    open: Vec<PathBuf>,
    /// How many lines were read.
    sequence: u32,
    /// How many blocks and files are open.
    depth: usize,
    suggestions: usize,
}

impl Loader<'_> {
    fn report(&mut self, fault: Fault) {
        self.found.push((self.sequence, fault.into()));
    }

    /// Reads directives into a scope, up to the end of the block or file.
    fn directives(&mut self, lexer: &mut Lexer<'_>, scope: ScopeId, around: Surroundings) {
        while let Some(directive) = self.next(lexer, around) {
            self.directive(lexer, scope, around, directive);
        }
    }

    /// The next directive or row; `None` at the end. Errors on the way are reported.
    fn next(&mut self, lexer: &mut Lexer<'_>, around: Surroundings) -> Option<Directive> {
        loop {
            let fault = match lexer.next() {
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
                Ok(Token::BlockEnd) if around == Surroundings::Block => return None,
                Ok(Token::BlockEnd) => lexer.unexpected(b'}'),
                Ok(Token::End) => {
                    if around == Surroundings::Block && !lexer.was_cut_short() {
                        let fault = lexer.end_inside_block();
                        self.report(fault);
                    }
                    return None;
                }
                Err(fault) => {
                    lexer.recover();
                    fault
                }
            };
            self.report(fault);
        }
    }

    fn directive(
        &mut self,
        lexer: &mut Lexer<'_>,
        scope: ScopeId,
        around: Surroundings,
        directive: Directive,
    ) {
        let context = self.tree.scope(scope).context();
        if directive.opens_block && around == Surroundings::CommandLine {
            let text = "block directives are not supported in -g option";
            self.report(directive.fault(text.to_owned()));
            return lexer.skip_block();
        }
        let known = match self.known(context, &directive) {
            Ok(known) => known,
            Err(fault) => {
                self.report(fault);
                if directive.opens_block {
                    lexer.skip_block();
                }
                return;
            }
        };
        let fits = known.arity.allows(directive.args.len());
        if !fits {
            self.report(directive.wrong_arguments());
        }
        if directive.name.bytes.as_ref() == b"include" {
            if fits {
                self.include(&directive, &mut |loader, lexer| {
                    loader.directives(lexer, scope, Surroundings::File);
                });
            }
            return;
        }
        let block = match known.arity.block_kind() {
            BlockKind::None => None,
            BlockKind::Free => {
                let sequence = self.sequence;
                let rows = self.rows(lexer);
                let line = self.line(directive, Some(Block::Free(rows)), sequence);
                return self.add(scope, line, fits.then_some(known));
            }
            BlockKind::Scope => {
                let inner = Contexts::inside(&directive.name.bytes, context);
                Some(self.tree.open(scope, inner))
            }
        };
        let position = directive.position();
        let line = self.line(directive, block.map(Block::Scope), self.sequence);
        self.add(scope, line, fits.then_some(known));
        if let Some(inner) = block {
            match self.enter(position) {
                true => self.directives(lexer, inner, Surroundings::Block),
                false => return lexer.skip_block(),
            }
            self.depth -= 1;
        }
    }

    /// The declaration of a directive, if it may stand here in this shape.
    fn known(&mut self, context: Contexts, directive: &Directive) -> Result<Known, Fault> {
        let candidates = self.registry.lookup(&directive.name.bytes);
        if candidates.is_empty() {
            let fault = directive.fault_about("unknown directive ", "");
            self.suggestions += 1;
            let suggestion = (self.suggestions <= SUGGESTIONS_MAX)
                .then(|| self.registry.nearest_name(&directive.name.text()))
                .flatten();
            return Err(match suggestion {
                Some(name) => fault.with_hint(format!("did you mean \"{name}\"?")),
                None => fault,
            });
        }
        let Some(known) = candidates
            .iter()
            .find(|known| known.contexts.contains(context))
        else {
            let anywhere = candidates
                .iter()
                .fold(Contexts::NONE, |all, one| all | one.contexts);
            let fault = directive.fault_about("", " directive is not allowed here");
            return Err(fault.with_hint(format!("it may stand in: {anywhere}")));
        };
        match (known.arity.block_kind(), directive.opens_block) {
            (BlockKind::None, true) => {
                Err(directive.fault_about("directive ", " is not terminated by \";\""))
            }
            (BlockKind::Scope | BlockKind::Free, false) => {
                Err(directive.fault_about("directive ", " has no opening \"{\""))
            }
            _ => Ok(*known),
        }
    }

    fn line(&self, directive: Directive, block: Option<Block>, sequence: u32) -> Line {
        let position = directive.position();
        Line {
            name: directive.name,
            args: directive.args,
            block,
            position,
            sequence,
        }
    }

    /// Adds a line to a scope. Without a declaration it is there, but nobody finds it by one.
    fn add(&mut self, scope: ScopeId, line: Line, known: Option<Known>) {
        let scope = self.tree.scope_mut(scope);
        if let Some(known) = known {
            let key = known.declared.spec().key();
            scope.index.push(Entry {
                key,
                line: scope.lines.len(),
                declared: known.declared,
            });
        }
        scope.lines.push(line);
    }

    /// Reads the rows of a free block.
    fn rows(&mut self, lexer: &mut Lexer<'_>) -> Vec<Line> {
        let mut rows = Vec::new();
        self.rows_into(lexer, Surroundings::Block, &mut rows);
        rows
    }

    fn rows_into(&mut self, lexer: &mut Lexer<'_>, around: Surroundings, rows: &mut Vec<Line>) {
        while let Some(row) = self.next(lexer, around) {
            if row.opens_block {
                self.report(Fault {
                    message: "unexpected \"{\"".to_owned(),
                    position: Some(lexer.position()),
                    hint: None,
                });
                lexer.skip_block();
            } else if row.name.bytes.as_ref() == b"include" {
                if row.args.len() == 1 {
                    self.include(&row, &mut |loader, lexer| {
                        loader.rows_into(lexer, Surroundings::File, rows);
                    });
                } else {
                    self.report(row.wrong_arguments());
                }
            } else {
                rows.push(self.line(row, None, self.sequence));
            }
        }
    }

    /// Reads what an `include` names.
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
                self.report(Fault::at(argument, text));
            }
        }
    }

    /// Reads one file; `by` is what includes it.
    fn file(&mut self, path: &Path, by: Option<&Word>, read: Reader<'_, Self>) {
        let fault = |message: String| match by {
            Some(word) => Fault::at(word, message),
            None => Fault::new(message),
        };
        if self.open.iter().any(|open| open == path) {
            let text = format!("\"{}\" includes itself", path.display());
            return self.report(fault(text));
        }
        let text = match self.text(path) {
            Ok(text) => text,
            Err(error) => {
                // nginx opens a folder like a file and fails at its first read.
                let call = match error.kind() {
                    io::ErrorKind::IsADirectory => "pread()",
                    _ => "open()",
                };
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

    /// Goes one block or file deeper, if that is not too deep.
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

/// Reads the lines of an included file into the place that includes it.
type Reader<'a, L> = &'a mut dyn FnMut(&mut L, &mut Lexer<'_>);

/// A failed call as nginx words it: `open() "/x" failed (2: No such file or directory)`.
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

/// The name of a module's file, as `load_module` gives it, without folder and `.so`.
pub(crate) fn module_name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or(OsStr::new(""))
        .to_string_lossy()
        .into_owned()
}
