//! The parsed configuration: the tree of scopes.
//!
//! The tree holds the lines as written, with includes resolved and nothing merged; [`ScopeRef`]
//! reads it with inheritance.

use std::fmt;

use crate::contexts::Contexts;
use crate::line::{Line, ScopeId};
use crate::position::Position;
use crate::scope::ScopeRef;
use crate::setting::Declared;
use crate::spec::Spec;

/// A parsed configuration: scopes with their lines.
#[derive(Debug)]
pub struct Tree {
    root: Scope,
    /// Every scope but the root; the one with id `n` is at `n - 1`.
    nested: Vec<Scope>,
}

/// The lines of one block.
pub(crate) struct Scope {
    pub(crate) id: ScopeId,
    /// The parent scope, and the index in the parent of the line that opens this scope.
    pub(crate) opener: Option<(ScopeId, usize)>,
    pub(crate) context: Contexts,
    pub(crate) lines: Vec<Line>,
    /// The declared directive of each line, sorted by directive once the tree is complete. Lines
    /// without a declaration are absent.
    pub(crate) index: Vec<Entry>,
    /// A set bit for each directive in `index`, as a filter before the search in `index`, because
    /// most lookups are for a directive that is absent. Several directives share a bit.
    kinds: u64,
}

/// The bit of the directive with this key in [`Scope::kinds`].
fn kind(key: usize) -> u64 {
    // Addresses differ in their middle bits; the multiplication moves the difference to the
    // highest.
    1 << ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

impl fmt::Debug for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Scope")
            .field("id", &self.id)
            .field("opener", &self.opener)
            .field("lines", &self.lines)
            .finish_non_exhaustive()
    }
}

/// A line in [`Scope::lines`] whose directive is declared.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// Identity of the directive: see [`Spec::key`].
    pub(crate) key: usize,
    pub(crate) line: usize,
    pub(crate) declared: &'static dyn Declared,
}

impl Scope {
    fn new(id: ScopeId, opener: Option<(ScopeId, usize)>, context: Contexts) -> Scope {
        Scope {
            id,
            opener,
            context,
            lines: Vec::new(),
            index: Vec::new(),
            kinds: 0,
        }
    }

    /// Adds a line to the index of directives.
    pub(crate) fn note(&mut self, entry: Entry) {
        self.kinds |= kind(entry.key);
        self.index.push(entry);
    }

    /// The lines of a setting, in file order.
    pub(crate) fn lines_of(&self, spec: &Spec) -> impl Iterator<Item = &Line> {
        let key = spec.key();
        let start = match self.kinds & kind(key) {
            0 => self.index.len(),
            _ => self.index.partition_point(|entry| entry.key < key),
        };
        self.index
            .get(start..)
            .unwrap_or_default()
            .iter()
            .take_while(move |entry| entry.key == key)
            .filter_map(|entry| self.lines.get(entry.line))
    }

    pub(crate) fn has(&self, spec: &Spec) -> bool {
        let key = spec.key();
        let find = || self.index.binary_search_by_key(&key, |entry| entry.key);
        self.kinds & kind(key) != 0 && find().is_ok()
    }
}

impl Tree {
    /// A tree without lines.
    pub(crate) fn new() -> Tree {
        Tree {
            root: Scope::new(ScopeId(0), None, Contexts::MAIN),
            nested: Vec::new(),
        }
    }

    /// The top level of the tree.
    #[must_use]
    pub fn root(&self) -> ScopeRef<'_> {
        ScopeRef {
            tree: self,
            scope: &self.root,
        }
    }

    /// Every scope, parents before children.
    pub fn scopes(&self) -> impl Iterator<Item = ScopeRef<'_>> {
        let all = std::iter::once(&self.root).chain(&self.nested);
        all.map(|scope| ScopeRef { tree: self, scope })
    }

    /// A scope of this tree. An id of another tree returns an arbitrary scope of this one.
    #[must_use]
    pub fn scope(&self, id: ScopeId) -> ScopeRef<'_> {
        let nested = (id.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.nested.get(index));
        ScopeRef {
            tree: self,
            scope: nested.unwrap_or(&self.root),
        }
    }

    pub(crate) fn scope_mut(&mut self, id: ScopeId) -> &mut Scope {
        let nested = (id.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.nested.get_mut(index));
        nested.unwrap_or(&mut self.root)
    }

    /// Adds a scope. The line that is added to `parent` next opens it.
    pub(crate) fn open(&mut self, parent: ScopeId, context: Contexts) -> ScopeId {
        let id = ScopeId(u32::try_from(self.nested.len() + 1).unwrap_or(u32::MAX));
        let line = self.scope_mut(parent).lines.len();
        self.nested
            .push(Scope::new(id, Some((parent, line)), context));
        id
    }

    /// Stores the position of a block's `}` in the line that opens it, and the sequence number of
    /// the last line before the `}`.
    pub(crate) fn close(&mut self, scope: ScopeId, end: (Position, u32)) {
        let opener = self.scope(scope).scope.opener;
        let line = opener.and_then(|(parent, line)| self.scope_mut(parent).lines.get_mut(line));
        if let Some(line) = line {
            line.end = Some(end);
        }
    }

    /// Sorts the index of every scope. Must precede lookups.
    pub(crate) fn finish(&mut self) {
        for scope in std::iter::once(&mut self.root).chain(&mut self.nested) {
            scope
                .index
                .sort_unstable_by_key(|entry| (entry.key, entry.line));
        }
    }
}
