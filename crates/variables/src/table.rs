//! The variables that a configuration uses, and the sources of their values.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::Template;
use framework::compile::Compiler;
use framework::registry::Registry;

use crate::text::{Text, TextPart};

/// A variable of a kind of context: its index in the [`Table`] of a configuration.
pub struct Variable<C>(u16, PhantomData<fn(C)>);

impl<C> Variable<C> {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    fn at(index: usize) -> Variable<C> {
        Variable(u16::try_from(index).unwrap_or(u16::MAX), PhantomData)
    }
}

// Implemented by hand, so that the context need not implement the traits.
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

/// Appends the value of a variable for a context. Returns false if the variable is not found.
pub type Evaluate<C> = fn(&mut C, &mut Vec<u8>) -> bool;

/// Appends the value of a member of a family such as `$http_*`. The second argument is the name
/// without the prefix. Returns false if the variable is not found.
pub type EvaluateFamily<C> = fn(&mut C, &[u8], &mut Vec<u8>) -> bool;

/// A value that a block such as `map` or `geo` computes.
pub trait Value<C>: Send + Sync {
    /// The value for a context; `None` if the variable is not found.
    fn value(&self, context: &mut C) -> Option<Bytes>;

    /// Whether the value is evaluated on every use.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// A built-in variable.
pub struct BuiltinVariable<C> {
    /// The source of the variable's value.
    pub source: Source<C>,
    /// Whether `set` and similar directives may assign it.
    pub assignable: bool,
}

impl<C> BuiltinVariable<C> {
    /// A variable that is evaluated on every use and cannot be assigned.
    pub fn computed(evaluate: Evaluate<C>) -> BuiltinVariable<C> {
        BuiltinVariable::of(Source::Builtin(evaluate))
    }

    /// A variable that is evaluated once per context and cannot be assigned.
    pub fn once(evaluate: Evaluate<C>) -> BuiltinVariable<C> {
        BuiltinVariable::of(Source::Once(evaluate))
    }

    /// A variable with this source, which cannot be assigned.
    pub fn of(source: Source<C>) -> BuiltinVariable<C> {
        BuiltinVariable {
            source,
            assignable: false,
        }
    }

    /// The member of a family with this name, if the name begins with the family's prefix. Members
    /// can be assigned.
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

/// Finds a built-in variable by its name in lower case, without `$`.
pub type Find<C> = fn(&str) -> Option<BuiltinVariable<C>>;

/// The source of a variable's value.
pub enum Source<C> {
    /// A built-in variable that is evaluated on every use.
    Builtin(Evaluate<C>),
    /// A built-in variable whose value would change while a request is served: the value of the
    /// first use is cached. Its use in an access log line is not cached: see
    /// [`Context::append_logged`](crate::Context::append_logged).
    Kept(Evaluate<C>),
    /// A built-in variable that is evaluated at the first use and cached for the context.
    Once(Evaluate<C>),
    /// A built-in variable that is evaluated on every use. If it is not found at the first use, it
    /// counts as not found for the rest of the context.
    UntilMissing(Evaluate<C>),
    /// A member of a family such as `http_*`: the family's function, and the name without the
    /// prefix. Evaluated on every use.
    Family(EvaluateFamily<C>, Box<[u8]>),
    /// A member of a family, cached like [`Source::Kept`].
    KeptFamily(EvaluateFamily<C>, Box<[u8]>),
    /// Computed by a block such as `map`: once per context or, if it is volatile, on every use.
    Computed(Arc<dyn Value<C>>),
    /// Assigned while a request is served, by named captures or `auth_request_set`; not found until
    /// then.
    Assigned,
    /// `set`: like [`Source::Assigned`], but reading the variable before it is assigned gives an
    /// empty value and a warning. If both `set` and `auth_request_set` assign a variable, the first
    /// line decides which of the two sources it has.
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

/// The name and the source of a variable.
pub struct Definition<C> {
    /// The name of the variable, without `$`.
    pub name: Box<str>,
    /// The source of the variable's value.
    pub source: Source<C>,
}

/// All variables of a configuration, by index.
pub struct Table<C: 'static> {
    definitions: Box<[Definition<C>]>,
    /// Finds built-in variables for names that are only known at run time.
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
    /// The number of variables: the size of a context's cache.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// Whether the configuration uses no variable.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// The variable with this name in lower case, if the configuration uses it.
    pub fn find(&self, name: &str) -> Option<Variable<C>> {
        let found = self
            .definitions
            .iter()
            .position(|definition| *definition.name == *name)?;
        Some(Variable::at(found))
    }

    /// The definition of a variable of this table.
    pub fn definition(&self, variable: Variable<C>) -> Option<&Definition<C>> {
        self.definitions.get(variable.index())
    }

    /// The built-in variable with this name in lower case.
    pub fn find_builtin(&self, name: &str) -> Option<BuiltinVariable<C>> {
        self.builtins.iter().find_map(|find| find(name))
    }
}

/// Collects the variables while a configuration is compiled. A built-in variable is only added if
/// something refers to it.
pub struct TableBuilder<C: 'static> {
    names: Vec<Box<str>>,
    sources: Vec<Option<Source<C>>>,
    by_name: Map<Box<str>, Variable<C>>,
    /// The functions that find built-in variables. Must be set before anything is compiled.
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
    /// The built-in variable with this name in lower case.
    pub fn find_builtin(&self, name: &str) -> Option<BuiltinVariable<C>> {
        self.builtins.iter().find_map(|find| find(name))
    }

    /// The variable with this name, which is added if it is new. Names are case-insensitive, as in
    /// nginx.
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

    /// Sets the source of a variable. A source that only receives values ([`Source::Set`],
    /// [`Source::Assigned`]) never replaces a source that computes them. A built-in variable that
    /// cannot be assigned cannot be redefined, which is an error. A member of a family that only
    /// `set` assigns has the family's value until it is assigned; if captures or `auth_request_set`
    /// assign it, it is not found until then.
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

    /// Whether the configuration defines a variable with this name.
    pub fn is_defined(&self, name: &str) -> bool {
        let known = self.by_name.get(name.to_ascii_lowercase().as_str());
        let source = known.and_then(|variable| self.sources.get(variable.index()));
        matches!(source, Some(Some(_)))
    }

    /// The names, in lower case, of the variables that something refers to and that have no source
    /// so far, built-in variables included.
    pub fn awaited(&self) -> Vec<Box<str>> {
        let all = self.names.iter().zip(&self.sources);
        let awaited = all.filter(|(_, source)| source.is_none());
        awaited.map(|(name, _)| name.clone()).collect()
    }

    /// The names of the variables that have no source so far and are not built in.
    pub fn unknown(&self) -> Vec<Box<str>> {
        let mut names = self.awaited();
        names.retain(|name| self.find_builtin(name).is_none());
        names
    }

    /// Completes the table. The error is the names of the variables that are neither defined nor
    /// built in.
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

/// Access to the variables of the configuration that is being compiled, for any kind of context.
pub trait Compiling {
    /// The variable with this name. Whether it is defined is checked at the end of compiling,
    /// because `set` or `map` may define it later.
    fn variable<C: 'static>(&self, name: &str) -> Variable<C>;

    /// Defines a variable. The error is nginx's text for a name that another module has defined.
    fn define<C: 'static>(&self, name: &str, source: Source<C>) -> Result<Variable<C>, String>;

    /// Defines a variable unless it is defined already, for directives that only assign it.
    fn define_unless_defined<C: 'static>(
        &self,
        name: &str,
        source: Source<C>,
    ) -> Result<Variable<C>, String>;

    /// Whether the configuration defines a variable.
    fn is_defined<C: 'static>(&self, name: &str) -> bool;

    /// Compiles a value with variables.
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
