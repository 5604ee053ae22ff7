//! Variables: names become indices when a configuration is compiled, values are found lazily.
//!
//! A value is cached for the main request and its subrequests unless its source is volatile
//! (the core variables are, where nothing changes them but what nginx, too, asks for anew: computing them costs no more than
//! looking them up).

pub mod core;
pub mod unknown;

use std::rc::Rc;
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::Template;
use framework::compile::Compiler;
use framework::registry::Registry;

use crate::http::modules::geo::Geo;
use crate::http::modules::geoip2::GeoIp2Variable;
use crate::http::modules::map::MapVariable;
use crate::http::modules::rewrite;
use crate::http::modules::split_clients::SplitClients;
use crate::http::request::Request;
use crate::text::{Part, Text};

/// A variable by its index in the generation's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variable(pub(crate) u16);

/// Appends the value for a request; false when there is none (the variable is "not found").
pub type Evaluate = fn(&mut Request, &mut Vec<u8>) -> bool;

/// Appends the value of a family's member, by the rest of its name; false when there is none.
pub type EvaluateFamily = fn(&mut Request, &[u8], &mut Vec<u8>) -> bool;

/// Where a variable's value comes from.
#[derive(Clone)]
pub enum Source {
    /// A variable of the core, computed on every use.
    Builtin(Evaluate),
    /// What changes while a request is served, and stays what it was at its first use. A line of an access log uses it
    /// without that: see [`Request::append_logged`].
    Kept(Evaluate),
    /// Computed once per request and remembered.
    Once(Evaluate),
    /// Computed on every use, unless there was none the first time: then there is none in this request.
    UntilMissing(Evaluate),
    /// A family such as `http_*`: the rest of the name, and how to look it up.
    Family(EvaluateFamily, Box<[u8]>),
    /// A family as [`Source::Kept`].
    KeptFamily(EvaluateFamily, Box<[u8]>),
    /// `map`.
    Map(Arc<MapVariable>),
    /// `geo`.
    Geo(Arc<Geo>),
    /// `geoip2`.
    GeoIp2(Arc<GeoIp2Variable>),
    /// `split_clients`.
    SplitClients(Arc<SplitClients>),
    /// Named captures, `auth_request_set`: written by requests, not found until then.
    Assigned,
    /// `set`: as [`Source::Assigned`], but reading it before it is assigned gives the empty
    /// value and a warning. What both `set` and `auth_request_set` name is of the one written first.
    Set,
}

/// One variable of a generation.
#[derive(Clone)]
pub struct Definition {
    /// Name without `$`.
    pub name: Box<str>,
    /// Where its value comes from.
    pub source: Source,
}

/// All variables of a generation, by index.
#[derive(Clone, Default)]
pub struct Table {
    definitions: Box<[Definition]>,
    names_realpath_root: bool,
}

impl Table {
    /// How many there are: the size of a request's cache.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// Whether the configuration names no variable at all.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// Whether the configuration names `$realpath_root`, whose value takes a look at the disk.
    pub fn names_realpath_root(&self) -> bool {
        self.names_realpath_root
    }

    /// The variable of a name in lower case, if the configuration names it.
    pub fn find(&self, name: &str) -> Option<Variable> {
        let found = self
            .definitions
            .iter()
            .position(|definition| *definition.name == *name)?;
        u16::try_from(found).ok().map(Variable)
    }

    /// The definition at an index of this generation.
    pub fn definition(&self, variable: Variable) -> Option<&Definition> {
        self.definitions.get(usize::from(variable.0))
    }
}

/// Collects names while a configuration is compiled.
#[derive(Default)]
pub struct TableBuilder {
    names: Vec<Box<str>>,
    sources: Vec<Option<Source>>,
    by_name: Map<Box<str>, Variable>,
}

impl TableBuilder {
    /// An empty table; builtin names join it when they are referred to.
    pub fn new() -> TableBuilder {
        TableBuilder::default()
    }

    /// The index for a name, new or known. Names are case-insensitive, as nginx's.
    pub fn reference(&mut self, name: &str) -> Variable {
        let name = name.to_ascii_lowercase();
        if let Some(known) = self.by_name.get(name.as_str()) {
            return *known;
        }
        let variable = Variable(u16::try_from(self.names.len()).unwrap_or(u16::MAX));
        self.names.push(name.clone().into_boxed_str());
        self.sources.push(None);
        self.by_name.insert(name.into_boxed_str(), variable);
        variable
    }

    /// Gives a name its source. What only receives values (`set`, captures) never replaces a
    /// source that computes one; a builtin that cannot be assigned cannot be redefined. A family answers for a member that
    /// `set` alone names until it is set; to captures and `auth_request_set` members are names as any other.
    pub fn define(&mut self, name: &str, source: Source) -> Result<Variable, String> {
        let lower = name.to_ascii_lowercase();
        let builtin = core::find(&lower);
        if builtin.as_ref().is_some_and(|found| !found.assignable) {
            return Err(format!("the duplicate \"{lower}\" variable"));
        }
        let variable = self.reference(&lower);
        let receives_only = matches!(source, Source::Set | Source::Assigned);
        if let Some(slot) = self.sources.get_mut(usize::from(variable.0)) {
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
        let source = known.and_then(|variable| self.sources.get(usize::from(variable.0)));
        matches!(source, Some(Some(_)))
    }

    /// The table, or the names that no line defines.
    pub fn finish(self) -> Result<Table, Vec<Box<str>>> {
        let mut unknown = Vec::new();
        let mut definitions = Vec::with_capacity(self.names.len());
        for (name, source) in self.names.into_iter().zip(self.sources) {
            match source.or_else(|| core::find(&name).map(|found| found.source)) {
                Some(source) => definitions.push(Definition { name, source }),
                None => unknown.push(name),
            }
        }
        if unknown.is_empty() {
            let realpath_root = |definition: &Definition| &*definition.name == "realpath_root";
            Ok(Table {
                names_realpath_root: definitions.iter().any(realpath_root),
                definitions: definitions.into(),
            })
        } else {
            Err(unknown)
        }
    }
}

impl Registry for TableBuilder {}

/// Variables of the configuration that is being compiled.
pub trait Compiling {
    /// The index of a variable that a value refers to; its existence is checked at the end,
    /// because `set` and `map` may define it later.
    fn variable(&self, name: &str) -> Variable;

    /// Defines a variable; nginx's error when another module owns the name.
    fn define(&self, name: &str, source: Source) -> Result<Variable, String>;

    /// Defines a variable unless something has: the first of several that only assign to it.
    fn define_unless_defined(&self, name: &str, source: Source) -> Result<Variable, String>;

    /// A value with variables, compiled.
    fn text(&self, template: &Template) -> Text;
}

impl Compiling for Compiler<'_> {
    fn variable(&self, name: &str) -> Variable {
        self.registry::<TableBuilder>().borrow_mut().reference(name)
    }

    fn define(&self, name: &str, source: Source) -> Result<Variable, String> {
        let variables = self.registry::<TableBuilder>();
        variables.borrow_mut().define(name, source)
    }

    fn define_unless_defined(&self, name: &str, source: Source) -> Result<Variable, String> {
        let variables = self.registry::<TableBuilder>();
        let mut variables = variables.borrow_mut();
        match variables.is_defined(name) {
            true => Ok(variables.reference(name)),
            false => variables.define(name, source),
        }
    }

    fn text(&self, template: &Template) -> Text {
        Text::new(template.parts.iter().map(|part| match part {
            conf::Part::Literal(bytes) => Part::Literal(bytes.to_vec().into()),
            conf::Part::Variable(name) => Part::Variable(self.variable(name)),
            conf::Part::Capture(number) => Part::Capture(*number),
        }))
    }
}

/// A cached value of one request.
#[derive(Clone, Debug, Default)]
pub enum Cached {
    /// Not asked for yet.
    #[default]
    Unset,
    /// Asked for, and there is none.
    Missing,
    /// There was one; it is computed again on every use.
    Passing,
    /// The value.
    Value(Bytes),
}

impl Request {
    /// Appends a variable's value; false when there is none.
    pub fn append_variable(&mut self, variable: Variable, out: &mut Vec<u8>) -> bool {
        let index = usize::from(variable.0);
        match self.shared.values.borrow().get(index) {
            Some(Cached::Value(value)) => {
                out.extend_from_slice(value);
                return true;
            }
            Some(Cached::Missing) => return false,
            _ => {}
        }
        let http = Rc::clone(&self.http);
        let Some(definition) = http.variables.definition(variable) else {
            return false;
        };
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
                rewrite::uninitialized(self, &definition.name);
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
            Source::Map(map) => {
                let value = map.value(self);
                if map.volatile {
                    return value.is_some_and(|value| {
                        out.extend_from_slice(&value);
                        true
                    });
                }
                value
            }
            Source::Geo(geo) => {
                let value = geo.value(self);
                if geo.volatile {
                    return value.is_some_and(|value| {
                        out.extend_from_slice(&value);
                        true
                    });
                }
                value
            }
            Source::GeoIp2(variable) => variable.value(self),
            Source::SplitClients(split) => split.value(self),
        };
        let found = value.is_some();
        if let Some(value) = &value {
            out.extend_from_slice(value);
        }
        self.remember(variable, value.map_or(Cached::Missing, Cached::Value));
        found
    }

    /// Appends a variable's value to a line of an access log; false when there is none. What such a line asks for first is not
    /// kept: nothing of the request comes after it, and a subrequest's line does not tell of its request's response.
    pub fn append_logged(&mut self, variable: Variable, out: &mut Vec<u8>) -> bool {
        let index = usize::from(variable.0);
        let known = self.shared.values.borrow();
        let is_known = !matches!(known.get(index), None | Some(Cached::Unset));
        drop(known);
        let http = Rc::clone(&self.http);
        let definition = http.variables.definition(variable);
        match definition.map(|definition| &definition.source) {
            Some(Source::Kept(evaluate)) if !is_known => evaluate(self, out),
            Some(Source::KeptFamily(evaluate, rest)) if !is_known => evaluate(self, rest, out),
            _ => self.append_variable(variable, out),
        }
    }

    /// A variable's value, or `None` when there is none.
    pub fn variable(&mut self, variable: Variable) -> Option<Bytes> {
        let known = self.shared.values.borrow();
        if let Some(Cached::Value(value)) = known.get(usize::from(variable.0)) {
            return Some(value.clone());
        }
        drop(known);
        let mut out = Vec::new();
        self.append_variable(variable, &mut out).then(|| out.into())
    }

    /// Appends the value of a variable whose name, in lower case, was not known when the configuration
    /// was read; false when there is none.
    pub fn append_variable_named(&mut self, name: &str, out: &mut Vec<u8>) -> bool {
        let http = Rc::clone(&self.http);
        if let Some(variable) = http.variables.find(name) {
            return self.append_variable(variable, out);
        }
        match core::find(name).map(|found| found.source) {
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

    /// Assigns a variable (`set`, named captures).
    pub fn assign(&mut self, variable: Variable, value: Bytes) {
        self.remember(variable, Cached::Value(value));
    }

    /// Whether there was a value of what is computed on every use.
    fn has_passed(&self, variable: Variable) -> bool {
        let values = self.shared.values.borrow();
        matches!(values.get(usize::from(variable.0)), Some(Cached::Passing))
    }

    pub(in crate::variables) fn remember(&mut self, variable: Variable, value: Cached) {
        let index = usize::from(variable.0);
        let mut values = self.shared.values.borrow_mut();
        if values.len() <= index {
            values.resize(index + 1, Cached::Unset);
        }
        values[index] = value; // invariant: resized to hold the index
    }
}
