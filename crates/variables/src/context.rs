//! The contexts for which variables are evaluated.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use engine::net::Address;
use logs::Subject;

use crate::scratch::Entry;
use crate::{Captures, Definition, Scratch, Source, Table, Variable};

/// The cached values of a context's variables, by [`Variable`] index.
pub type Values = Vec<Cached>;

/// What a context has cached of a variable.
#[derive(Clone, Debug, Default)]
pub enum Cached {
    /// Not evaluated yet.
    #[default]
    Unset,
    /// Evaluated, and not found.
    Missing,
    /// Found when last evaluated. The value is not cached: it is evaluated again on every use.
    Passing,
    /// The value, evaluated or assigned.
    Value(Bytes),
}

/// Keeps a table of variables alive while one of them is evaluated.
pub trait Scope<C: 'static> {
    /// The variables of the context's configuration.
    fn variables(&self) -> &Table<C>;
}

/// A context with variables, such as a request or a session.
pub trait Context: Subject + Sized + 'static {
    /// A handle that keeps the configuration of the context alive.
    type Scope: Scope<Self>;

    /// A handle to the configuration of the context, with its variables.
    fn scope(&self) -> Rc<Self::Scope>;

    /// The cached values of variables.
    fn values(&self) -> &RefCell<Values>;

    /// The captures of the last regex that matched.
    fn captures(&self) -> &Captures;

    /// The captures, which the next match replaces.
    fn captures_mut(&mut self) -> &mut Captures;

    /// Buffers for temporary values.
    fn scratch(&mut self) -> &mut Scratch;

    /// The client's address, which `realip` may have replaced.
    fn peer(&self) -> &Address;

    /// The values of the `X-Forwarded-For` fields, in order; empty for protocols without header
    /// fields.
    fn forwarded(&self) -> Vec<&[u8]> {
        Vec::new()
    }

    /// Called when a variable of `set` is read before it has been set.
    fn uninitialized(&self, name: &str) {
        let _ = name;
    }

    /// Appends a variable's value. Returns false if the variable is not found, or if its value
    /// depends on itself.
    fn append_variable(&mut self, variable: Variable<Self>, out: &mut Vec<u8>) -> bool {
        match self.values().borrow().get(variable.index()) {
            Some(Cached::Value(value)) => {
                out.extend_from_slice(value);
                return true;
            }
            Some(Cached::Missing) => return false,
            _ => {}
        }
        let scope = self.scope();
        let Some(definition) = scope.variables().definition(variable) else {
            return false;
        };
        match self.scratch().enter() {
            Entry::Open => {}
            Entry::Closed => return false,
            Entry::TooDeep => {
                let name = &definition.name;
                logs::error!(self, Error, "cycle while evaluating variable \"{name}\"");
                return false;
            }
        }
        let found = self.append_evaluated(variable, definition, out);
        self.scratch().pop();
        found
    }

    /// Evaluates a variable and appends the value. Caches it as its [`Source`] requires. Returns
    /// whether the variable is found.
    fn append_evaluated(
        &mut self,
        variable: Variable<Self>,
        definition: &Definition<Self>,
        out: &mut Vec<u8>,
    ) -> bool {
        let value = match &definition.source {
            Source::Builtin(evaluate) => return evaluate(self, out),
            Source::Family(evaluate, rest) => return evaluate(self, rest, out),
            Source::UntilMissing(evaluate) => {
                let found = evaluate(self, out);
                if found {
                    self.remember(variable, Cached::Passing);
                } else if !self.has_passed(variable) {
                    self.remember(variable, Cached::Missing);
                }
                return found;
            }
            Source::Assigned => return false,
            Source::Set => {
                self.uninitialized(&definition.name);
                self.remember(variable, Cached::Value(Bytes::new()));
                return true;
            }
            Source::Once(evaluate) | Source::Kept(evaluate) => {
                let mut value = Vec::new();
                evaluate(self, &mut value).then(|| value.into())
            }
            Source::KeptFamily(evaluate, rest) => {
                let mut value = Vec::new();
                evaluate(self, rest, &mut value).then(|| value.into())
            }
            Source::Computed(computed) => {
                let value = computed.value(self);
                if computed.is_volatile() {
                    return value.is_some_and(|value| {
                        out.extend_from_slice(&value);
                        true
                    });
                }
                value
            }
        };
        let found = value.is_some();
        if let Some(value) = &value {
            out.extend_from_slice(value);
        }
        self.remember(variable, value.map_or(Cached::Missing, Cached::Value));
        found
    }

    /// Appends a variable's value to an access log line. Returns false if the variable is not
    /// found. A [`Source::Kept`] value that is first evaluated here is not cached: nothing of the
    /// request is evaluated after its log line, and the line of a subrequest must not affect the
    /// main request.
    fn append_logged(&mut self, variable: Variable<Self>, out: &mut Vec<u8>) -> bool {
        let known = self.values().borrow();
        let is_known = !matches!(known.get(variable.index()), None | Some(Cached::Unset));
        drop(known);
        let scope = self.scope();
        let definition = scope.variables().definition(variable);
        match definition.map(|definition| &definition.source) {
            Some(Source::Kept(evaluate)) if !is_known => evaluate(self, out),
            Some(Source::KeptFamily(evaluate, rest)) if !is_known => evaluate(self, rest, out),
            _ => self.append_variable(variable, out),
        }
    }

    /// A variable's value; `None` if it is not found.
    fn variable(&mut self, variable: Variable<Self>) -> Option<Bytes> {
        let known = self.values().borrow();
        if let Some(Cached::Value(value)) = known.get(variable.index()) {
            return Some(value.clone());
        }
        drop(known);
        let mut out = Vec::new();
        self.append_variable(variable, &mut out).then(|| out.into())
    }

    /// Appends the value of a variable whose name, in lower case, is only known at run time.
    /// Returns false if the variable is not found.
    fn append_variable_named(&mut self, name: &str, out: &mut Vec<u8>) -> bool {
        let scope = self.scope();
        let table = scope.variables();
        if let Some(variable) = table.find(name) {
            return self.append_variable(variable, out);
        }
        match table.find_builtin(name).map(|found| found.source) {
            Some(
                Source::Builtin(evaluate)
                | Source::Kept(evaluate)
                | Source::Once(evaluate)
                | Source::UntilMissing(evaluate),
            ) => evaluate(self, out),
            Some(Source::Family(evaluate, rest) | Source::KeptFamily(evaluate, rest)) => {
                evaluate(self, &rest, out)
            }
            _ => false,
        }
    }

    /// Assigns a variable, for `set` and named captures.
    fn assign(&mut self, variable: Variable<Self>, value: Bytes) {
        self.remember(variable, Cached::Value(value));
    }

    /// Whether the cache contains [`Cached::Passing`] for a variable.
    fn has_passed(&self, variable: Variable<Self>) -> bool {
        let values = self.values().borrow();
        matches!(values.get(variable.index()), Some(Cached::Passing))
    }

    /// Replaces the cached value of a variable.
    fn remember(&mut self, variable: Variable<Self>, value: Cached) {
        let index = variable.index();
        let mut values = self.values().borrow_mut();
        if values.len() <= index {
            values.resize(index + 1, Cached::Unset);
        }
        if let Some(kept) = values.get_mut(index) {
            *kept = value;
        }
    }
}
