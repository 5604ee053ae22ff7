//! Every directive that a program knows, by name and context.

use base::hash::Map;

use crate::contexts::Contexts;
use crate::language;
use crate::setting::Declared;
use crate::spec::{Arity, Spec};

/// The table of all directives.
pub struct Registry {
    pub(crate) declared: Vec<&'static dyn Declared>,
    /// The declarations by name. A name may have several declarations if no context is in two of
    /// them.
    pub(crate) by_name: Map<&'static [u8], Vec<Candidate>>,
    modules: &'static [&'static str],
    elsewhere: KnownElsewhere,
    removed: KnownRemoved,
}

/// Looks up the name of an unknown directive among the directives of nginx and of its modules;
/// `None` if they do not have it either.
pub type KnownElsewhere = fn(&str) -> Option<ForeignName>;

/// Says what to write in the place of a directive that nginx has removed; `None` for any other
/// name.
pub type KnownRemoved = fn(&str) -> Option<&'static str>;

/// A directive or variable that this program does not have, but nginx, NGINX Plus or one of their
/// modules has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignName {
    /// The module that has the name. The unsupported directives of one module in one file are
    /// reported as one error.
    pub module: &'static str,
    /// A text for the error message that says which module or product has the name.
    pub remark: &'static str,
}

/// A declaration found by one of its names, with the contexts and the arity that it has under that
/// name.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) declared: &'static dyn Declared,
    pub(crate) contexts: Contexts,
    pub(crate) arity: Arity,
}

impl Registry {
    /// A table of these directives and those of the language itself (`include`, `load_module`).
    #[must_use]
    pub fn new(tables: &[&'static [&'static dyn Declared]]) -> Registry {
        let mut registry = Registry {
            declared: Vec::new(),
            by_name: Map::default(),
            modules: &[],
            elsewhere: |_| None,
            removed: |_| None,
        };
        for declared in language::DIRECTIVES
            .iter()
            .chain(tables.iter().copied().flatten())
        {
            registry.add(*declared);
        }
        registry
    }

    /// Sets the modules that `load_module` may name without a warning, as in
    /// `ngx_http_geoip_module`.
    #[must_use]
    pub fn with_modules(self, modules: &'static [&'static str]) -> Registry {
        Registry { modules, ..self }
    }

    /// Sets the lookup of directives that nginx or one of its modules has and this program lacks.
    #[must_use]
    pub fn with_elsewhere(self, elsewhere: KnownElsewhere) -> Registry {
        Registry { elsewhere, ..self }
    }

    /// Sets the lookup of names that nginx has removed.
    #[must_use]
    pub fn with_removed(self, removed: KnownRemoved) -> Registry {
        Registry { removed, ..self }
    }

    pub(crate) fn removed(&self, name: &[u8]) -> Option<&'static str> {
        (self.removed)(std::str::from_utf8(name).ok()?)
    }

    pub(crate) fn elsewhere(&self, name: &[u8]) -> Option<ForeignName> {
        (self.elsewhere)(std::str::from_utf8(name).ok()?)
    }

    /// Adds a declaration. A declaration used by several features is in the table of each, and is
    /// stored once.
    fn add(&mut self, declared: &'static dyn Declared) {
        let spec = declared.spec();
        let is_spec = |known: &Candidate| std::ptr::eq(known.declared.spec(), spec);
        if spec
            .names()
            .any(|name| self.lookup(name.as_bytes()).iter().any(is_spec))
        {
            return;
        }
        for name in spec.names() {
            let known = Candidate {
                declared,
                contexts: spec.contexts_of(name),
                arity: spec.arity_of(name),
            };
            self.by_name.entry(name.as_bytes()).or_default().push(known);
        }
        self.declared.push(declared);
    }

    pub(crate) fn lookup(&self, name: &[u8]) -> &[Candidate] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn knows_module(&self, module: &str) -> bool {
        self.modules.contains(&module)
    }

    /// The declarations of a name: several if contexts have different directives of that name.
    pub fn find(&self, name: &str) -> impl Iterator<Item = &'static Spec> {
        self.lookup(name.as_bytes())
            .iter()
            .map(|known| known.declared.spec())
    }

    /// Every declaration, in the order of the tables.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Declared> {
        self.declared.iter().copied()
    }

    /// The known directive whose name is most similar to `name`, if any is similar enough.
    #[must_use]
    pub fn nearest_name(&self, name: &str) -> Option<&'static str> {
        let names = self
            .declared
            .iter()
            .flat_map(|declared| declared.spec().names());
        nearest(name, names)
    }
}

/// The one of `names` with the smallest edit distance from `name`, if the distance is small enough
/// for a typing error.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = 1 + name.len() / 4;
    names
        .filter(|known| known.len().abs_diff(name.len()) <= limit)
        .map(|known| (distance(name.as_bytes(), known.as_bytes()), known))
        .filter(|(distance, known)| *distance <= limit && *distance < known.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list()
            .entries(self.declared.iter().map(|d| d.spec().name()))
            .finish()
    }
}

/// The edit distance of two texts: the number of bytes to insert, delete, change or swap with their
/// neighbour.
fn distance(one: &[u8], other: &[u8]) -> usize {
    // Rows of the matrix of edit distances between prefixes. `row` belongs to the prefix of `one`
    // that ends with `byte`, `last` to the prefix one byte shorter, `before_last` to the prefix two
    // bytes shorter.
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut previous = None; // the byte of `one` before `byte`
    for (index, &byte) in one.iter().enumerate() {
        let mut row = Vec::with_capacity(other.len() + 1);
        let mut left = index + 1;
        row.push(left);
        for (column, &wanted) in other.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX);
            let changed = at(&last, column) + usize::from(byte != wanted);
            let mut cost = changed.min(at(&last, column + 1) + 1).min(left + 1);
            if let Some(before) = column.checked_sub(1)
                && previous == Some(wanted)
                && other.get(before) == Some(&byte)
            {
                cost = cost.min(at(&before_last, before).saturating_add(1));
            }
            row.push(cost);
            left = cost;
        }
        before_last = std::mem::replace(&mut last, row);
        previous = Some(byte);
    }
    last.last().copied().unwrap_or(0)
}
