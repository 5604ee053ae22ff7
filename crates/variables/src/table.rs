//! Which variables a configuration names, and where their values come from.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::Template;
use framework::compile::Compiler;
use framework::registry::Registry;

use crate::text::{Text, TextPart};

/// A variable of a kind of context, by its index in the table of a configuration.
pub struct Variable<C>(u16, PhantomData<fn(C)>);

impl<C> Variable<C> {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    fn at(index: usize) -> Variable<C> {
        Variable(u16::try_from(index).unwrap_or(u16::MAX), PhantomData)
    }
}

// By hand: whatever the context can or cannot do, its variables are indices.
impl<C> Clone for Variable<C> {
    fn clone(&self) -> Variable<C> {
        *self
    }
}

impl<C> Copy for Variable<C> {}

impl<C> PartialEq for Variable<C> {
    fn eq(&self, other: &Variable<C>) -> bool {
        self.0 == other.0
    }
}

impl<C> Eq for Variable<C> {}

impl<C> fmt::Debug for Variable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({})", self.0)
    }
}

/// Appends the value for a context; false when there is none (the variable is "not found").
pub type Evaluate<C> = fn(&mut C, &mut Vec<u8>) -> bool;

/// Appends the value of a family's member, by the rest of its name; false when there is none.
pub type EvaluateFamily<C> = fn(&mut C, &[u8], &mut Vec<u8>) -> bool;

/// What a block of a configuration computes: `map`, `geo`.
pub trait Value<C>: Send + Sync {
    /// The value, if there is one.
    fn value(&self, context: &mut C) -> Option<Bytes>;

    /// Whether it is computed anew on each use.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// A variable that is there without being defined.
pub struct BuiltinVariable<C> {
    /// Where its value comes from.
    pub source: Source<C>,
    /// Whether `set` and the like may name it.
    pub assignable: bool,
}

impl<C> BuiltinVariable<C> {
    /// What is computed on every use; it cannot be assigned.
    pub fn computed(evaluate: Evaluate<C>) -> BuiltinVariable<C> {
        BuiltinVariable::of(Source::Builtin(evaluate))
    }

    /// What is computed once per context; it cannot be assigned.
    pub fn once(evaluate: Evaluate<C>) -> BuiltinVariable<C> {
        BuiltinVariable::of(Source::Once(evaluate))
    }

    /// A variable with this source; it cannot be assigned.
    pub fn of(source: Source<C>) -> BuiltinVariable<C> {
        BuiltinVariable {
            source,
            assignable: false,
        }
    }

    /// A member of a family, if the name begins with its prefix; members can be assigned.
    pub fn of_family(
        name: &str,
        prefix: &str,
        evaluate: EvaluateFamily<C>,
    ) -> Option<BuiltinVariable<C>> {
        let rest = name.strip_prefix(prefix)?;
        Some(BuiltinVariable::of(Source::Family(evaluate, rest.as_bytes().into())).assignable())
    }

    /// Lets `set` and similar directives assign the variable.
    #[must_use]
    pub fn assignable(self) -> BuiltinVariable<C> {
        BuiltinVariable {
            assignable: true,
            ..self
        }
    }
}

/// Finds what is there without being defined, by its name in lower case, without `$`.
pub type Find<C> = fn(&str) -> Option<BuiltinVariable<C>>;

/// Where a variable's value comes from.
pub enum Source<C> {
    /// A variable of the core, computed on every use.
    Builtin(Evaluate<C>),
    /// What changes while a request is served, and stays what it was at its first use. A line of an
    /// access log uses it without that: see
    /// [`Context::append_logged`](crate::Context::append_logged).
    Kept(Evaluate<C>),
    /// Computed once per request and remembered.
    Once(Evaluate<C>),
    /// Computed on every use, unless there was none the first time: then there is none in this
    /// request.
    UntilMissing(Evaluate<C>),
    /// A family such as `http_*`: the rest of the name, and how to look it up.
    Family(EvaluateFamily<C>, Box<[u8]>),
    /// A family as [`Source::Kept`].
    KeptFamily(EvaluateFamily<C>, Box<[u8]>),
    /// What a block computes; once per context unless it is volatile.
    Computed(Arc<dyn Value<C>>),
    /// Named captures, `auth_request_set`: written by requests, not found until then.
    Assigned,
    /// `set`: as [`Source::Assigned`], but reading it before it is assigned gives the empty value
    /// and a warning. What both `set` and `auth_request_set` name is of the one written first.
    Set,
}

impl<C> Clone for Source<C> {
    fn clone(&self) -> Source<C> {
        match self {
            Source::Builtin(evaluate) => Source::Builtin(*evaluate),
            Source::Kept(evaluate) => Source::Kept(*evaluate),
            Source::Once(evaluate) => Source::Once(*evaluate),
            Source::UntilMissing(evaluate) => Source::UntilMissing(*evaluate),
            Source::Family(evaluate, rest) => Source::Family(*evaluate, rest.clone()),
            Source::KeptFamily(evaluate, rest) => Source::KeptFamily(*evaluate, rest.clone()),
            Source::Computed(value) => Source::Computed(Arc::clone(value)),
            Source::Assigned => Source::Assigned,
            Source::Set => Source::Set,
        }
    }
}

/// One variable of a generation.
pub struct Definition<C> {
    /// The name of the variable, without `$`.
    pub name: Box<str>,
    /// Where its value comes from.
    pub source: Source<C>,
}

/// All variables of a generation, by index.
pub struct Table<C: 'static> {
    definitions: Box<[Definition<C>]>,
    /// Names that come up while it serves may be of these.
    builtins: Arc<[Find<C>]>,
}

impl<C: 'static> Default for Table<C> {
    fn default() -> Table<C> {
        Table {
            definitions: Box::default(),
            builtins: Arc::default(),
        }
    }
}

impl<C: 'static> Table<C> {
    /// How many there are: the size of a request's cache.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// Whether the configuration names no variable at all.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// The variable of a name in lower case, if the configuration names it.
    pub fn find(&self, name: &str) -> Option<Variable<C>> {
        let found = self
            .definitions
            .iter()
            .position(|definition| *definition.name == *name)?;
        Some(Variable::at(found))
    }

    /// The definition at an index of this generation.
    pub fn definition(&self, variable: Variable<C>) -> Option<&Definition<C>> {
        self.definitions.get(variable.index())
    }

    /// What is there without being defined, by its name in lower case.
    pub fn find_builtin(&self, name: &str) -> Option<BuiltinVariable<C>> {
        self.builtins.iter().find_map(|find| find(name))
    }
}

/// Collects names while a configuration is compiled. Builtin names join it when they are referred
/// to.
pub struct TableBuilder<C: 'static> {
    names: Vec<Box<str>>,
    sources: Vec<Option<Source<C>>>,
    by_name: Map<Box<str>, Variable<C>>,
    /// What is there without being defined; to be set before anything is compiled.
    pub builtins: Arc<[Find<C>]>,
}

impl<C: 'static> Default for TableBuilder<C> {
    fn default() -> TableBuilder<C> {
        TableBuilder {
            names: Vec::new(),
            sources: Vec::new(),
            by_name: Map::default(),
            builtins: Arc::default(),
        }
    }
}

impl<C: 'static> TableBuilder<C> {
    /// What is there without being defined, by its name in lower case.
    pub fn find_builtin(&self, name: &str) -> Option<BuiltinVariable<C>> {
        self.builtins.iter().find_map(|find| find(name))
    }

    /// The index for a name, new or known. Names are case-insensitive, as nginx's.
    pub fn reference(&mut self, name: &str) -> Variable<C> {
        let name = name.to_ascii_lowercase();
        if let Some(known) = self.by_name.get(name.as_str()) {
            return *known;
        }
        let variable = Variable::at(self.names.len());
        self.names.push(name.clone().into_boxed_str());
        self.sources.push(None);
        self.by_name.insert(name.into_boxed_str(), variable);
        variable
    }

    /// Gives a name its source. What only receives values (`set`, captures) never replaces a source
    /// that computes one; a builtin that cannot be assigned cannot be redefined. A family answers
    /// for a member that `set` alone names until it is set; to captures and `auth_request_set`
    /// members are names as any other.
    pub fn define(&mut self, name: &str, source: Source<C>) -> Result<Variable<C>, String> {
        let lower = name.to_ascii_lowercase();
        let builtin = self.find_builtin(&lower);
        if builtin.as_ref().is_some_and(|found| !found.assignable) {
            return Err(format!("the duplicate \"{lower}\" variable"));
        }
        let variable = self.reference(&lower);
        let receives_only = matches!(source, Source::Set | Source::Assigned);
        if let Some(slot) = self.sources.get_mut(variable.index()) {
            let weaker = matches!(slot, None | Some(Source::Set));
            match builtin.filter(|_| receives_only).map(|found| found.source) {
                Some(Source::Family(..) | Source::KeptFamily(..))
                    if matches!(source, Source::Set) => {} // see `finish`
                Some(Source::Family(..) | Source::KeptFamily(..)) | None
                    if weaker || !receives_only =>
                {
                    *slot = Some(source)
                }
                Some(Source::Family(..) | Source::KeptFamily(..)) | None => {}
                builtin => *slot = builtin,
            }
        }
        Ok(variable)
    }

    /// Whether something of the configuration defines a name.
    pub fn is_defined(&self, name: &str) -> bool {
        let known = self.by_name.get(name.to_ascii_lowercase().as_str());
        let source = known.and_then(|variable| self.sources.get(variable.index()));
        matches!(source, Some(Some(_)))
    }

    /// The names that are referred to and that nothing has defined so far, in lower case. What is
    /// there without being defined is among them.
    pub fn awaited(&self) -> Vec<Box<str>> {
        let all = self.names.iter().zip(&self.sources);
        let awaited = all.filter(|(_, source)| source.is_none());
        awaited.map(|(name, _)| name.clone()).collect()
    }

    /// Names that nothing defines so far.
    pub fn unknown(&self) -> Vec<Box<str>> {
        let mut names = self.awaited();
        names.retain(|name| self.find_builtin(name).is_none());
        names
    }

    /// The table, or the names that no line defines.
    pub fn finish(self) -> Result<Table<C>, Vec<Box<str>>> {
        let mut unknown = Vec::new();
        let mut definitions = Vec::with_capacity(self.names.len());
        for (name, source) in self.names.into_iter().zip(self.sources) {
            let builtin = || self.builtins.iter().find_map(|find| find(&name));
            match source.or_else(|| builtin().map(|found| found.source)) {
                Some(source) => definitions.push(Definition { name, source }),
                None => unknown.push(name),
            }
        }
        if unknown.is_empty() {
            Ok(Table {
                definitions: definitions.into(),
                builtins: self.builtins,
            })
        } else {
            Err(unknown)
        }
    }
}

impl<C: 'static> Registry for TableBuilder<C> {}

/// Variables of the configuration that is being compiled. Which kind of context they are of follows
/// from where they go.
pub trait Compiling {
    /// The index of a variable that a value refers to; its existence is checked at the end,
    /// because `set` and `map` may define it later.
    fn variable<C: 'static>(&self, name: &str) -> Variable<C>;

    /// Defines a variable; nginx's error when another module owns the name.
    fn define<C: 'static>(&self, name: &str, source: Source<C>) -> Result<Variable<C>, String>;

    /// Defines a variable unless something has: the first of several that only assign to it.
    fn define_unless_defined<C: 'static>(
        &self,
        name: &str,
        source: Source<C>,
    ) -> Result<Variable<C>, String>;

    /// Whether something of the configuration defines a variable.
    fn is_defined<C: 'static>(&self, name: &str) -> bool;

    /// A value with variables, compiled.
    fn text<C: 'static>(&self, template: &Template) -> Text<C>;
}

impl Compiling for Compiler<'_> {
    fn variable<C: 'static>(&self, name: &str) -> Variable<C> {
        let variables = self.registry::<TableBuilder<C>>();
        variables.borrow_mut().reference(name)
    }

    fn define<C: 'static>(&self, name: &str, source: Source<C>) -> Result<Variable<C>, String> {
        let variables = self.registry::<TableBuilder<C>>();
        variables.borrow_mut().define(name, source)
    }

    fn define_unless_defined<C: 'static>(
        &self,
        name: &str,
        source: Source<C>,
    ) -> Result<Variable<C>, String> {
        let variables = self.registry::<TableBuilder<C>>();
        let mut variables = variables.borrow_mut();
        if variables.is_defined(name) {
            Ok(variables.reference(name))
        } else {
            variables.define(name, source)
        }
    }

    fn is_defined<C: 'static>(&self, name: &str) -> bool {
        let variables = self.registry::<TableBuilder<C>>();
        variables.borrow().is_defined(name)
    }

    fn text<C: 'static>(&self, template: &Template) -> Text<C> {
        Text::new(template.parts.iter().map(|part| match part {
            conf::TemplatePart::Literal(bytes) => TextPart::Literal(bytes.to_vec().into()),
            conf::TemplatePart::Variable(name) => TextPart::Variable(self.variable(name)),
            conf::TemplatePart::Capture(number) => TextPart::Capture(*number),
        }))
    }
}
