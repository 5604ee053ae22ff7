//! Reading the tree with inheritance: [`ScopeRef`].
//!
//! The directives of one [`Setting`] are inherited together: the nearest scope that has a line of
//! any of them supplies all lines, and the parse function gets that scope as its input. The kinds
//! of inheritance that deviate are those of [`Inherit`]. Values are not cached here; callers that
//! share values use [`ScopeRef::owner`].

use crate::contexts::Contexts;
use crate::diagnostic::Fault;
use crate::lexer;
use crate::line::{Block, Line, ScopeId, Word};
use crate::position::Position;
use crate::setting::{Declared, Setter, Setting};
use crate::spec::{Inherit, Spec};
use crate::tree::{Scope, Tree};

/// One block of the configuration, or its top level.
#[derive(Clone, Copy)]
pub struct ScopeRef<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) scope: &'a Scope,
}

impl std::fmt::Debug for ScopeRef<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ScopeRef({}, {})", self.scope.id.0, self.scope.context)
    }
}

impl<'a> ScopeRef<'a> {
    /// The identity of the scope within its tree.
    #[must_use]
    pub fn id(self) -> ScopeId {
        self.scope.id
    }

    /// The tree of the scope.
    #[must_use]
    pub fn tree(self) -> &'a Tree {
        self.tree
    }

    /// The parent scope.
    #[must_use]
    pub fn parent(self) -> Option<ScopeRef<'a>> {
        self.scope.opener.map(|(parent, _)| self.tree.scope(parent))
    }

    /// Identifies the scope across reloads, independently of changes to other lines: the text of
    /// the lines that open the scope and its ancestors and, for `server` blocks, the text of their
    /// lines of the directives `of_servers`, such as `server_name`.
    #[must_use]
    pub fn place(self, of_servers: &[&str]) -> Vec<u8> {
        let mut place = Vec::new();
        let mut around = Some(self);
        while let Some(scope) = around {
            around = scope.parent();
            let (Some(line), Some(parent)) = (scope.line(), around) else {
                continue;
            };
            if line.is("if") {
                // Two `if` blocks with the same condition are distinguished by their index.
                let before = parent.lines().iter();
                let before =
                    before.filter(|other| other.is("if") && other.sequence() < line.sequence());
                place.extend_from_slice(format!("{} ", before.count()).as_bytes());
            }
            let is_named =
                |other: &&Line| line.is("server") && of_servers.iter().any(|name| other.is(name));
            let within = scope.lines().iter().filter(is_named);
            for line in std::iter::once(line).chain(within) {
                for word in std::iter::once(&line.name).chain(&line.args) {
                    place.extend_from_slice(&word.bytes);
                    place.push(b'\0');
                }
            }
        }
        place
    }

    /// The line that opens the scope; `None` for the root.
    #[must_use]
    pub fn line(self) -> Option<&'a Line> {
        let (parent, line) = self.scope.opener?;
        self.tree.scope(parent).scope.lines.get(line)
    }

    /// The context of the scope.
    #[must_use]
    pub fn context(self) -> Contexts {
        self.scope.context
    }

    /// All lines of the scope, in file order, with the lines of included files in place of the
    /// `include`.
    #[must_use]
    pub fn lines(self) -> &'a [Line] {
        &self.scope.lines
    }

    /// The scope that a line of this scope opens.
    #[must_use]
    pub fn opened_by(self, line: &Line) -> Option<ScopeRef<'a>> {
        match line.block {
            Some(Block::Scope(id)) => Some(self.tree.scope(id)),
            _ => None,
        }
    }

    /// The child scopes that lines named `name` open, in file order.
    pub fn children(self, name: &str) -> impl Iterator<Item = ScopeRef<'a>> {
        let named = self.lines().iter().filter(move |line| line.is(name));
        named.filter_map(move |line| self.opened_by(line))
    }

    /// The lines of a setting that this scope itself contains, without inherited lines.
    #[must_use]
    pub fn own_lines(self, spec: &Spec) -> Vec<&'a Line> {
        self.scope.lines_of(spec).collect()
    }

    /// The lines of a setting in force in this scope, inherited lines included, each with the scope
    /// that contains it. Empty if only the default is in force.
    #[must_use]
    pub fn lines_in_force(self, spec: &Spec) -> Vec<(ScopeRef<'a>, &'a Line)> {
        let Some(writer) = self.writer(spec) else {
            return Vec::new();
        };
        let mut scopes = vec![writer];
        if spec.inherit == Inherit::Append {
            scopes.extend(std::iter::successors(writer.parent(), |scope| {
                scope.parent()
            }));
            scopes.reverse();
        }
        let lines = scopes.into_iter().flat_map(|scope| {
            let own = scope.own_lines(spec);
            own.into_iter().map(move |line| (scope, line))
        });
        lines.collect()
    }

    /// The value in force: from the scope's own or inherited lines, or else the default.
    ///
    /// # Errors
    /// Errors of the setting's parse function. A list without lines and without a default is parsed
    /// from no lines.
    pub fn get<T>(self, setting: &Setting<T>) -> Result<T, Fault> {
        self.get_with_scope(setting).map(|(_, value)| value)
    }

    /// The value in force, and the scope that contains its lines; `None` as the scope if the value
    /// is the default.
    ///
    /// # Errors
    /// As [`ScopeRef::get`].
    pub fn get_with_scope<T>(
        self,
        setting: &Setting<T>,
    ) -> Result<(Option<ScopeRef<'a>>, T), Fault> {
        if let Some(writer) = self.writer(&setting.spec) {
            return Ok((Some(writer), writer.resolve(setting)?));
        }
        let value = match setting.computed_default {
            Some(compute) => compute(self)?,
            None => {
                let lines: Vec<&Line> = default_lines(&setting.spec).iter().collect();
                self.parse(setting, &lines, true)?
            }
        };
        Ok((None, value))
    }

    /// The value of the scope's own or inherited lines; `None` if there are no lines, so that the
    /// default is in force.
    ///
    /// # Errors
    /// As [`ScopeRef::get`].
    pub fn written<T>(self, setting: &Setting<T>) -> Result<Option<T>, Fault> {
        self.writer(&setting.spec)
            .map(|writer| writer.resolve(setting))
            .transpose()
    }

    /// The value of this scope's own lines.
    ///
    /// # Errors
    /// As [`ScopeRef::get`].
    pub fn own<T>(self, setting: &Setting<T>) -> Result<Option<T>, Fault> {
        self.scope
            .has(&setting.spec)
            .then(|| self.resolve(setting))
            .transpose()
    }

    /// Whether this scope itself has a line of any of the directives.
    #[must_use]
    pub fn writes(self, declared: &[&dyn Declared]) -> bool {
        declared
            .iter()
            .any(|declared| self.scope.has(declared.spec()))
    }

    /// The outermost scope in which each of the directives has the same lines in force as in this
    /// scope. Scopes with the same owner can share one value. The owner is the nearest scope with a
    /// line of the directives that is in force here, or the root if there is none. If that scope
    /// also has a line of the directives that is not in force here, the owner is this scope itself.
    #[must_use]
    pub fn owner(self, declared: &[&'static dyn Declared]) -> ScopeRef<'a> {
        if self.scope.opener.is_none() || declared.iter().any(|d| self.scope.has(d.spec())) {
            return self;
        }
        let mut at = self;
        while let Some(parent) = at.parent() {
            let mut seen = false;
            let mut unseen = false;
            for spec in declared
                .iter()
                .map(|d| d.spec())
                .filter(|spec| parent.scope.has(spec))
            {
                if self.sees(parent, spec.inherit) {
                    seen = true;
                } else {
                    unseen = true;
                }
            }
            match (seen, unseen) {
                // The parent has lines that are not in force here.
                (true, true) => return self,
                (true, false) => return parent,
                (false, true) if parent.scope.opener.is_none() => return self,
                (false, _) => at = parent,
            }
        }
        at
    }

    /// The nearest scope whose lines of a directive are in force here.
    fn writer(self, spec: &Spec) -> Option<ScopeRef<'a>> {
        let mut at = self;
        loop {
            if at.scope.has(spec) {
                return Some(at);
            }
            if !at.passes_on(spec.inherit) {
                return None;
            }
            at = at.parent()?;
        }
    }

    /// Whether lines of an outer scope are in force here.
    fn sees(self, outer: ScopeRef<'_>, inherit: Inherit) -> bool {
        let mut at = self;
        while at.id() != outer.id() {
            match at.parent() {
                Some(parent) if at.passes_on(inherit) => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// Whether this scope inherits lines with this kind of inheritance from its parent.
    fn passes_on(self, inherit: Inherit) -> bool {
        const KEPT: Contexts = Contexts::LOCATION_IF.or(Contexts::LIMIT_EXCEPT);
        match inherit {
            Inherit::Program | Inherit::Never => false,
            Inherit::Handler => KEPT.contains(self.scope.context),
            _ => true,
        }
    }

    /// The value of this scope's own lines.
    fn resolve<T>(self, setting: &Setting<T>) -> Result<T, Fault> {
        self.parse(setting, &self.effective_lines(&setting.spec), false)
    }

    /// The lines of this scope, plus those that the kind of inheritance adds.
    fn effective_lines(self, spec: &'a Spec) -> Vec<&'a Line> {
        let own = self.own_lines(spec);
        match spec.inherit {
            Inherit::Keyed => {
                let key = |line: &Line| line.argument(0).bytes.to_ascii_lowercase();
                let keys: Vec<Vec<u8>> = own.iter().map(|line| key(line)).collect();
                let missing = default_lines(spec)
                    .iter()
                    .filter(|line| !keys.contains(&key(line)));
                own.iter().copied().chain(missing).collect()
            }
            Inherit::Append => {
                let mut lines = Vec::new();
                let above = std::iter::successors(Some(self), |scope| scope.parent());
                for scope in above.collect::<Vec<_>>().into_iter().rev() {
                    lines.extend(scope.own_lines(spec));
                }
                lines
            }
            _ if spec.repeatable => own.last().copied().into_iter().collect(),
            _ => own,
        }
    }

    fn parse<T>(self, setting: &Setting<T>, lines: &[&Line], default: bool) -> Result<T, Fault> {
        let setter = Setter {
            spec: &setting.spec,
            lines,
            scope: self,
            default,
            warnings: None,
        };
        (setting.parse)(&setter).map_err(|fault| match lines.first() {
            Some(line) if !default => fault.or_at(line.position),
            _ => fault,
        })
    }
}

/// The default of a directive as lines; empty if it has no default.
pub(crate) fn default_lines(spec: &Spec) -> &[Line] {
    spec.default_lines.get_or_init(|| {
        let Some(text) = spec.default else {
            return Vec::new();
        };
        let name = Word {
            bytes: spec.name().as_bytes().into(),
            quoted: false,
            position: Position::default(),
        };
        let rows = lexer::rows(text.as_bytes());
        let line = |args| Line {
            name: name.clone(),
            args,
            ..Line::default()
        };
        if rows.is_empty() {
            vec![line(Vec::new())]
        } else {
            rows.into_iter().map(line).collect()
        }
    })
}
