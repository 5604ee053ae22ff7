//! The check of a parsed tree: parses every value once, and finds duplicates, lines without effect,
//! and modules that are not built in. Also checks the defaults that the directive table declares.

use std::cell::RefCell;

use crate::contexts::Contexts;
use crate::diagnostic::{Diagnostic, Fault, Level};
use crate::language::{LOAD_MODULE, module_name};
use crate::line::{Block, Line};
use crate::position::Position;
use crate::registry::Registry;
use crate::scope::{ScopeRef, default_lines};
use crate::setting::{Declared, Setter};
use crate::spec::{BlockKind, Effect, Opens};
use crate::tree::Tree;

/// Checks every line of a known directive. Each diagnostic comes with the sequence number of its
/// line.
pub(crate) fn values(tree: &Tree, registry: &Registry, found: &mut Vec<(u32, Diagnostic)>) {
    for scope in tree.scopes() {
        for group in scope
            .scope
            .index
            .chunk_by(|one, other| one.key == other.key)
        {
            let Some(first) = group.first() else { continue };
            let lines: Vec<&Line> = group
                .iter()
                .filter_map(|entry| scope.lines().get(entry.line))
                .collect();
            Check {
                scope,
                declared: first.declared,
                lines: &lines,
                found,
            }
            .run();
        }
    }
    modules(tree.root(), registry, found);
}

/// The check of one directive or group in one scope.
struct Check<'a, 'f> {
    scope: ScopeRef<'a>,
    declared: &'static dyn Declared,
    lines: &'a [&'a Line],
    found: &'f mut Vec<(u32, Diagnostic)>,
}

impl<'a> Check<'a, '_> {
    fn run(&mut self) {
        let spec = self.declared.spec();
        let are_blocks =
            spec.arity.block_kind() == BlockKind::Scope && spec.inherit.allows_several();
        if are_blocks || spec.repeatable {
            // Blocks of one name do not form a common value, and among repeated values only the
            // last counts.
            self.lines.chunks(1).for_each(|line| self.parse(line));
        } else if spec.inherit.allows_several() {
            self.list();
        } else {
            self.duplicates();
            self.parse(self.lines.get(..1).unwrap_or_default());
        }
        if let Effect::NoEffect(reason) = spec.effect {
            for line in self.lines {
                let text = format!("\"{}\" has no effect here: {reason}", line.name.text());
                let notice = Diagnostic::new(Level::Notice, text, Some(line.position));
                self.found.push((line.sequence, notice));
            }
        }
    }

    /// Checks lines that form one value together. Every wrong line is reported; the fault of the
    /// whole value only if no line is wrong by itself.
    fn list(&mut self) {
        let Some(fault) = self.parse_quietly(self.lines) else {
            return self.parse(self.lines);
        };
        let before = self.found.len();
        for line in self.lines.chunks(1) {
            self.parse(line);
        }
        let only_together = !self
            .found
            .iter()
            .skip(before)
            .any(|(_, d)| d.level == Level::Emerg);
        if only_together {
            self.report(fault.into());
        }
    }

    /// Reports every line but the first.
    fn duplicates(&mut self) {
        let Some((first, others)) = self.lines.split_first() else {
            return;
        };
        for line in others {
            let name = line.name.text();
            let text = if line.name.bytes == first.name.bytes {
                format!("\"{name}\" directive is duplicate")
            } else {
                format!(
                    "\"{name}\" directive is duplicate, \"{}\" directive was specified earlier",
                    first.name.text()
                )
            };
            let fault = Fault::at(&line.name, text);
            let fault = fault.with_hint(format!("the first is in {}", first.position));
            self.found.push((line.sequence, fault.into()));
        }
    }

    /// Parses lines, and reports warnings and the fault, if any.
    fn parse(&mut self, lines: &[&'a Line]) {
        let warnings = RefCell::new(Vec::new());
        let fault = self.attempt(lines, Some(&warnings));
        for diagnostic in warnings
            .into_inner()
            .into_iter()
            .chain(fault.map(Diagnostic::from))
        {
            self.report(diagnostic);
        }
    }

    /// Parses lines, and returns the fault; warnings are discarded.
    fn parse_quietly(&self, lines: &[&'a Line]) -> Option<Fault> {
        self.attempt(lines, None)
    }

    /// Parses lines, and returns the fault. Warnings go to `warnings`, if given.
    fn attempt(
        &self,
        lines: &[&Line],
        warnings: Option<&RefCell<Vec<Diagnostic>>>,
    ) -> Option<Fault> {
        let first = lines.first()?;
        let spec = self.declared.spec();
        let setter = Setter {
            spec,
            lines,
            scope: self.scope,
            default: false,
            warnings,
        };
        self.declared
            .check(&setter)
            .err()
            .map(|fault| fault.or_at(first.position))
    }

    /// Adds a diagnostic at the line that it is about.
    fn report(&mut self, diagnostic: Diagnostic) {
        let position = diagnostic.position;
        let about = |line: &&'a Line| {
            let same =
                |one: Position| (one.file, one.line) == (line.position.file, line.position.line);
            position.is_some_and(same)
        };
        // An error in a row of a block gets the sequence number of the row, not of the directive,
        // so that errors stay in file order.
        let with_rows = |line: &&'a Line| {
            let rows = match &line.block {
                Some(Block::Free(rows)) => rows.as_slice(),
                _ => &[],
            };
            std::iter::once(*line).chain(rows)
        };
        let is_before = |line: &&Line| {
            let before =
                |at: Position| at.file == line.position.file && at.offset >= line.position.offset;
            position.is_some_and(before)
        };
        let before = self.lines.iter().flat_map(with_rows).filter(is_before);
        // If a file is included several times, the error belongs to the lines of its first
        // inclusion. Reversed, because `max_by_key` returns the last of equal keys.
        let line = before.rev().max_by_key(|line| line.position.offset);
        let line = line.or(self.lines.iter().copied().find(about));
        let line = line.or(self.lines.first().copied());
        self.found
            .push((line.map_or(0, |line| line.sequence), diagnostic));
    }
}

/// Warns of modules that are not built in.
fn modules(root: ScopeRef<'_>, registry: &Registry, found: &mut Vec<(u32, Diagnostic)>) {
    for line in root.own_lines(&LOAD_MODULE.spec) {
        let word = line.argument(0);
        let module = module_name(word.path());
        if !registry.knows_module(&module) {
            let text = format!("module \"{module}\" is not built in and cannot be loaded");
            found.push((
                line.sequence,
                Diagnostic::new(Level::Warn, text, Some(word.position)),
            ));
        }
    }
}

impl Registry {
    /// Errors in the declarations themselves, for a test of the program: names declared twice for
    /// one context, defaults that their own directive refuses, missing contexts or prose.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self
            .declared
            .iter()
            .flat_map(|declared| declaration(*declared))
            .collect();
        for (name, known) in &self.by_name {
            let mut seen = Contexts::NONE;
            for one in known {
                if seen.intersects(one.contexts) {
                    let name = String::from_utf8_lossy(name);
                    faults.push(format!("\"{name}\" is declared twice for one context"));
                }
                seen = seen | one.contexts;
            }
        }
        faults.sort_unstable();
        faults
    }
}

/// The errors in one declaration.
fn declaration(declared: &'static dyn Declared) -> Vec<String> {
    let spec = declared.spec();
    let mut faults = Vec::new();
    let mut fault = |text: &str| faults.push(format!("\"{}\" {text}", spec.name()));
    if spec
        .names()
        .any(|name| spec.contexts_of(name) == Contexts::NONE)
    {
        fault("may stand nowhere");
    }
    if spec.prose.is_empty() {
        fault("has no manual");
    }
    let has_block = |name| spec.arity_of(name).block_kind() == BlockKind::Scope;
    if spec.manual().contains("`*_") {
        fault("means a family in its manual, and is of none");
    }
    if spec.opens != Opens::Surroundings && !spec.names().any(has_block) {
        fault("opens a context without a block");
    }
    let lines: Vec<&Line> = default_lines(spec).iter().collect();
    if lines.len() > 1 && !spec.inherit.allows_several() {
        fault("has a default of several lines");
    }
    if lines.iter().any(|line| !spec.arity.allows(line.args.len())) {
        fault("has a default with a wrong number of arguments");
    }
    if !lines.is_empty() {
        let tree = Tree::new();
        let scope = tree.root();
        let setter = Setter {
            spec,
            lines: &lines,
            scope,
            default: true,
            warnings: None,
        };
        if let Err(refusal) = declared.check(&setter) {
            fault(&format!("refuses its default: {}", refusal.message));
        }
    }
    faults
}
