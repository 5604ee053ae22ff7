//! The declaration of a directive: names, contexts, arguments, default, inheritance, manual.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::contexts::Contexts;
use crate::line::Line;

/// How many arguments a directive takes, and whether a block follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    min: usize,
    max: usize,
    block: BlockKind,
}

/// Whether a directive has a block, and the content of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// No braces: the directive ends with `;`.
    None,
    /// Directives of the table.
    Scope,
    /// Rows in the directive's own syntax.
    Free,
}

impl Arity {
    /// Exactly `count` arguments.
    #[must_use]
    pub const fn exactly(count: usize) -> Arity {
        Arity {
            min: count,
            max: count,
            block: BlockKind::None,
        }
    }

    /// From `min` to `max` arguments, both included.
    #[must_use]
    pub const fn between(min: usize, max: usize) -> Arity {
        Arity {
            min,
            max,
            block: BlockKind::None,
        }
    }

    /// At least `min` arguments.
    #[must_use]
    pub const fn at_least(min: usize) -> Arity {
        Arity {
            min,
            max: usize::MAX,
            block: BlockKind::None,
        }
    }

    /// One argument, `on` or `off`.
    #[must_use]
    pub const fn flag() -> Arity {
        Arity::exactly(1)
    }

    /// A directive that takes no argument.
    #[must_use]
    pub const fn none() -> Arity {
        Arity::exactly(0)
    }

    /// Adds a block of directives.
    #[must_use]
    pub const fn block(self) -> Arity {
        Arity {
            min: self.min,
            max: self.max,
            block: BlockKind::Scope,
        }
    }

    /// Adds a block of rows in the directive's own syntax.
    #[must_use]
    pub const fn free_block(self) -> Arity {
        Arity {
            min: self.min,
            max: self.max,
            block: BlockKind::Free,
        }
    }

    /// The kind of the block.
    #[must_use]
    pub const fn block_kind(self) -> BlockKind {
        self.block
    }

    /// Whether `count` arguments are allowed.
    #[must_use]
    pub const fn allows(self, count: usize) -> bool {
        self.min <= count && count <= self.max
    }
}

/// How a scope without its own line of a directive inherits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// One line: that of the nearest scope with a line.
    Value,
    /// Any number of lines: all lines of the nearest scope with a line.
    List,
    /// As `List`, plus the default lines whose key (the first argument, compared without case) no
    /// written line has.
    Keyed,
    /// The lines of all enclosing scopes, outermost first.
    Append,
    /// Any number of blocks: all blocks of the nearest scope with a block.
    Block,
    /// The lines of all names of the setting are one script, executed in file order. Not inherited.
    Program,
    /// One line, inherited by the `if` and `limit_except` blocks of a location, but not by nested
    /// locations.
    Handler,
    /// One line, which applies to its own scope only.
    Never,
}

impl Inherit {
    /// Whether a scope may contain several lines of the setting.
    #[must_use]
    pub const fn allows_several(self) -> bool {
        !matches!(self, Inherit::Value | Inherit::Handler | Inherit::Never)
    }

    /// The text of the kind of inheritance in the manual.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Inherit::Value => "inherited where it is not written",
            Inherit::List => "a scope that writes any of them inherits none from above",
            Inherit::Keyed => {
                "a scope that writes any of them inherits none from above; \
                 the defaults hold for the keys it does not name"
            }
            Inherit::Append => "added to what the scopes above write",
            Inherit::Block => "inherited as a whole where none is written",
            Inherit::Program => "carried out in order in the scope that writes it; not inherited",
            Inherit::Handler => "kept by `if` and `limit_except`, not inherited by locations",
            Inherit::Never => "not inherited",
        }
    }
}

/// The context within a directive's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// The context of the directive.
    Surroundings,
    /// Always this context.
    One(Contexts),
    /// Depends on the context of the directive: pairs of the context of the directive and the
    /// context within the block.
    ByPlace(&'static [(Contexts, Contexts)]),
}

impl Opens {
    /// The context within a block that is in the context `outer`.
    #[must_use]
    pub fn inside(self, outer: Contexts) -> Contexts {
        match self {
            Opens::Surroundings => outer,
            Opens::One(inner) => inner,
            Opens::ByPlace(places) => places
                .iter()
                .find(|(place, _)| place.intersects(outer))
                .map_or(outer, |(_, inner)| *inner),
        }
    }
}

/// When a change of a directive takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// With the next reload, in the running worker process.
    Live,
    /// With a new worker process, which the reload starts if necessary.
    NewProcess,
}

/// Whether a directive has an effect in Tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The directive has an effect.
    Works,
    /// The directive is accepted and checked, but has no effect, for this reason.
    NoEffect(&'static str),
    /// The directive is accepted and checked, and will have its effect in a later version. Its
    /// parse function warns.
    NotYet(&'static str),
}

impl Effect {
    /// Why the directive has no effect, if it has none.
    #[must_use]
    pub const fn reason_for_none(self) -> Option<&'static str> {
        match self {
            Effect::Works => None,
            Effect::NoEffect(reason) | Effect::NotYet(reason) => Some(reason),
        }
    }
}

/// Maximum number of names of a setting that have their own contexts or arity.
const EXCEPTIONS_MAX: usize = 8;

/// The contexts and the arity of one name of a setting, if they differ from those of the other
/// names.
#[derive(Clone, Copy, Debug)]
struct Exception {
    name: &'static str,
    contexts: Option<Contexts>,
    arity: Option<Arity>,
}

/// Maximum length of a name joined from a prefix and a stem, in bytes.
const JOINED_MAX: usize = 48;

/// The text that stands for the prefix in the manual of a family: see [`crate::Setting::family`].
const ANY_PREFIX: &str = "*_";

#[derive(Clone, Copy, Debug)]
enum DirectiveName {
    /// A complete name.
    Whole(&'static str),
    /// The name of a member of a family: a prefix such as `proxy_`, joined with a stem.
    Joined {
        prefix: &'static str,
        bytes: [u8; JOINED_MAX],
        length: usize,
    },
}

impl DirectiveName {
    const fn joined(prefix: &'static str, stem: &'static str) -> DirectiveName {
        let length = prefix.len() + stem.len();
        assert!(length <= JOINED_MAX, "the name is too long"); // at compile time
        let mut bytes = [0; JOINED_MAX];
        let (before, after) = bytes.split_at_mut(prefix.len());
        before.copy_from_slice(prefix.as_bytes());
        after
            .split_at_mut(stem.len())
            .0
            .copy_from_slice(stem.as_bytes());
        DirectiveName::Joined {
            prefix,
            bytes,
            length,
        }
    }

    fn text(&self) -> &str {
        match self {
            DirectiveName::Whole(text) => text,
            DirectiveName::Joined { bytes, length, .. } => {
                // Both halves are valid UTF-8.
                std::str::from_utf8(&bytes[..*length]).unwrap_or_default()
            }
        }
    }

    fn prefix(&self) -> &'static str {
        match self {
            DirectiveName::Whole(_) => "",
            DirectiveName::Joined { prefix, .. } => prefix,
        }
    }
}

/// The declaration of a directive, or of a group of directives that form one setting.
#[derive(Debug)]
pub struct Spec {
    name: DirectiveName,
    /// The names of further directives that form one setting with the first.
    pub also: &'static [&'static str],
    /// The contexts in which the directive is allowed.
    pub contexts: Contexts,
    /// How many arguments the directive takes.
    pub arity: Arity,
    /// The context within the directive's block, if it has a block of directives.
    pub opens: Opens,
    /// Whether `arity` is still the default of a new declaration.
    pub(crate) arity_assumed: bool,
    /// The arguments in the manual's notation, one entry per form. An entry that begins with one of
    /// the names applies to that name only.
    pub syntax: &'static [&'static str],
    /// The arguments of the default value as a user would write them; `;` separates those of
    /// several lines.
    pub default: Option<&'static str>,
    /// How scopes inherit the directive's lines.
    pub inherit: Inherit,
    /// Whether a scope may have several lines although the setting has one value: the last line
    /// counts.
    pub repeatable: bool,
    /// When a change takes effect.
    pub reload: Reload,
    /// The first version with the directive; empty for the program's first version.
    pub since: &'static str,
    /// Whether the directive has an effect.
    pub effect: Effect,
    /// The manual's prose, in Markdown: see [`Spec::manual`].
    pub(crate) prose: &'static str,
    exceptions: [Option<Exception>; EXCEPTIONS_MAX],
    /// `default` as lines, parsed at the first use.
    pub(crate) default_lines: OnceLock<Vec<Line>>,
}

impl Spec {
    pub(crate) const fn new(name: &'static str, syntax: &'static [&'static str]) -> Spec {
        Spec::named(DirectiveName::Whole(name), syntax)
    }

    /// A declaration in a family with this prefix.
    pub(crate) const fn of_family(
        prefix: &'static str,
        stem: &'static str,
        syntax: &'static [&'static str],
    ) -> Spec {
        Spec::named(DirectiveName::joined(prefix, stem), syntax)
    }

    const fn named(name: DirectiveName, syntax: &'static [&'static str]) -> Spec {
        Spec {
            name,
            also: &[],
            contexts: Contexts::NONE,
            arity: Arity::exactly(1),
            opens: Opens::Surroundings,
            arity_assumed: true,
            syntax,
            default: None,
            inherit: Inherit::Value,
            repeatable: false,
            reload: Reload::Live,
            since: "",
            effect: Effect::Works,
            prose: "",
            exceptions: [None; EXCEPTIONS_MAX],
            default_lines: OnceLock::new(),
        }
    }

    /// The identity of the declaration: its address, because declarations are statics.
    pub(crate) fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The name; if the setting has several, the first.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.text()
    }

    /// Every name of the setting.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name()).chain(self.also.iter().copied())
    }

    /// The manual's prose, in Markdown. In a family, `*_` is replaced by the prefix.
    #[must_use]
    pub fn manual(&self) -> Cow<'static, str> {
        match self.name.prefix() {
            "" => Cow::Borrowed(self.prose),
            prefix => Cow::Owned(self.prose.replace(ANY_PREFIX, prefix)),
        }
    }

    /// The contexts in which the setting's directive `name` is allowed.
    #[must_use]
    pub fn contexts_of(&self, name: &str) -> Contexts {
        self.exception(name)
            .and_then(|exception| exception.contexts)
            .unwrap_or(self.contexts)
    }

    /// The arity of the setting's directive `name`.
    #[must_use]
    pub fn arity_of(&self, name: &str) -> Arity {
        self.exception(name)
            .and_then(|exception| exception.arity)
            .unwrap_or(self.arity)
    }

    fn exception(&self, name: &str) -> Option<&Exception> {
        self.exceptions
            .iter()
            .flatten()
            .find(|exception| exception.name == name)
    }

    /// Sets the contexts or the arity of one name. `None` leaves that of the setting.
    pub(crate) const fn except(
        &mut self,
        name: &'static str,
        contexts: Option<Contexts>,
        arity: Option<Arity>,
    ) {
        let mut index = 0;
        while index < EXCEPTIONS_MAX {
            match &mut self.exceptions[index] {
                Some(exception) if same(exception.name, name) => {
                    if contexts.is_some() {
                        exception.contexts = contexts;
                    }
                    if arity.is_some() {
                        exception.arity = arity;
                    }
                    return;
                }
                Some(_) => index += 1,
                free @ None => {
                    *free = Some(Exception {
                        name,
                        contexts,
                        arity,
                    });
                    return;
                }
            }
        }
        panic!("too many exceptions in one group of directives"); // at compile time
    }
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}
