//! A directive with the type of its value: [`Setting`], and the input of its parse function:
//! [`Setter`].

use std::borrow::Cow;
use std::cell::RefCell;

use crate::contexts::Contexts;
use crate::diagnostic::{Diagnostic, Fault, Level};
use crate::line::{EMPTY_LINE, Line, Word};
use crate::scope::ScopeRef;
use crate::spec::{Arity, BlockKind, Effect, Inherit, Opens, Reload, Spec};

/// Parses the lines of a setting into its value. Parsing only records: it opens no file and binds
/// no port.
pub type Parse<T> = fn(&Setter<'_>) -> Result<T, Fault>;

/// A directive, or a group of directives that are one setting, with the type of its value.
///
/// Declared as a `static`, because its address is its identity:
///
/// ```
/// # use tidegate_conf as conf;
/// use conf::{Contexts, Setting, parse};
///
/// static GZIP_MIN_LENGTH: Setting<u64> = Setting::new("gzip_min_length", &["length"], parse::size)
///     .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
///     .default("20")
///     .manual("Responses shorter than this are not compressed.");
/// ```
pub struct Setting<T: 'static> {
    /// The declaration of the setting.
    pub spec: Spec,
    /// Parses the lines of a scope.
    pub parse: Parse<T>,
    pub(crate) computed_default: Option<fn(ScopeRef<'_>) -> Result<T, Fault>>,
}

/// A setting of any type, for the table of all directives.
pub trait Declared: Sync {
    /// The declaration of the setting.
    fn spec(&self) -> &Spec;

    /// Parses lines and discards the value.
    ///
    /// # Errors
    /// Errors of the setting's parse function.
    fn check(&self, setter: &Setter<'_>) -> Result<(), Fault>;
}

/// The total number of directives in several lists.
#[must_use]
pub const fn count_of(lists: &[&[&'static dyn Declared]]) -> usize {
    let (mut count, mut rest) = (0, lists);
    while let Some((list, more)) = rest.split_first() {
        count += list.len();
        rest = more;
    }
    count
}

/// Joins several lists of directives, so that the common directives of modules are listed once. `N`
/// must be their [`count_of`]; any other number does not compile.
#[must_use]
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
pub const fn joined<const N: usize>(
    lists: &[&[&'static dyn Declared]],
) -> [&'static dyn Declared; N] {
    assert!(count_of(lists) == N, "the lists have another length");
    let mut all = [lists[0][0]; N];
    let (mut list, mut at, mut filled) = (0, 0, 0);
    while filled < N {
        if at == lists[list].len() {
            (list, at) = (list + 1, 0);
        } else {
            all[filled] = lists[list][at];
            (at, filled) = (at + 1, filled + 1);
        }
    }
    all
}

impl<T> Declared for Setting<T> {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn check(&self, setter: &Setter<'_>) -> Result<(), Fault> {
        (self.parse)(setter).map(drop)
    }
}

impl<T> Setting<T> {
    /// A setting named `name` with one argument, no contexts, no default, and [`Inherit::Value`];
    /// the methods below change these. `syntax` describes the arguments for the manual, one entry
    /// per form.
    #[must_use]
    pub const fn new(
        name: &'static str,
        syntax: &'static [&'static str],
        parse: Parse<T>,
    ) -> Setting<T> {
        Setting {
            spec: Spec::new(name, syntax),
            parse,
            computed_default: None,
        }
    }

    /// A directive that several modules have, each with its own prefix: `proxy_` and `buffers` make
    /// `proxy_buffers`. A family is a type with its settings as fields, made from the prefix by a
    /// `const fn`, and each module that has the family makes a `static` of its own:
    ///
    /// ```
    /// # use tidegate_conf as conf;
    /// use conf::{Contexts, Setting, parse};
    ///
    /// struct Passing {
    ///     intercept_errors: Setting<bool>,
    /// }
    ///
    /// impl Passing {
    ///     const fn of(prefix: &'static str) -> Passing {
    ///         Passing {
    ///             intercept_errors: Setting::family(prefix, "intercept_errors", &["on | off"], parse::flag)
    ///                 .contexts(Contexts::LOCATION)
    ///                 .default("off")
    ///                 .manual("Answers to `*_pass` with a status of 300 or more are for `error_page`."),
    ///         }
    ///     }
    /// }
    ///
    /// static PROXY: Passing = Passing::of("proxy_");
    /// static GRPC: Passing = Passing::of("grpc_");
    ///
    /// assert_eq!(PROXY.intercept_errors.spec.name(), "proxy_intercept_errors");
    /// assert!(GRPC.intercept_errors.spec.manual().starts_with("Answers to `grpc_pass`"));
    /// ```
    ///
    /// In the manual, `*_` stands for the prefix.
    #[must_use]
    pub const fn family(
        prefix: &'static str,
        stem: &'static str,
        syntax: &'static [&'static str],
        parse: Parse<T>,
    ) -> Setting<T> {
        Setting {
            spec: Spec::of_family(prefix, stem, syntax),
            parse,
            computed_default: None,
        }
    }

    /// Adds names of directives that form one setting with the first: the parse function gets the
    /// lines of all of them, in file order.
    #[must_use]
    pub const fn also(mut self, names: &'static [&'static str]) -> Setting<T> {
        self.spec.also = names;
        self
    }

    /// The contexts of the directive.
    #[must_use]
    pub const fn contexts(mut self, contexts: Contexts) -> Setting<T> {
        self.spec.contexts = contexts;
        self
    }

    /// The contexts of one of the setting's names, if they differ from those of the others.
    #[must_use]
    pub const fn name_contexts(mut self, name: &'static str, contexts: Contexts) -> Setting<T> {
        self.spec.except(name, Some(contexts), None);
        self
    }

    /// The number of arguments; the default is one, or none for a block.
    #[must_use]
    pub const fn arity(mut self, arity: Arity) -> Setting<T> {
        self.spec.arity = match (arity.block_kind(), self.spec.arity.block_kind()) {
            (BlockKind::None, BlockKind::Scope) => arity.block(),
            (BlockKind::None, BlockKind::Free) => arity.free_block(),
            _ => arity,
        };
        self.spec.arity_assumed = false;
        self.several_blocks()
    }

    /// The number of arguments of one of the setting's names, if it differs from that of the
    /// others.
    #[must_use]
    pub const fn name_arity(mut self, name: &'static str, arity: Arity) -> Setting<T> {
        self.spec.except(name, None, Some(arity));
        self
    }

    /// A block of directives follows the arguments. Unless other methods change it, a scope may
    /// have several such blocks, and the context within the block is the context of the directive.
    #[must_use]
    pub const fn block(mut self) -> Setting<T> {
        self.spec.arity = self.arity_before_block().block();
        self.several_blocks()
    }

    /// The context within the block.
    #[must_use]
    pub const fn opens(mut self, context: Contexts) -> Setting<T> {
        self.spec.opens = Opens::One(context);
        self
    }

    /// The context within the block, if it depends on the context of the directive: pairs of the
    /// context of the directive and the context within the block.
    #[must_use]
    pub const fn opens_by_place(mut self, places: &'static [(Contexts, Contexts)]) -> Setting<T> {
        self.spec.opens = Opens::ByPlace(places);
        self
    }

    /// A block of rows that only the directive understands ([`crate::Block::Free`]) follows the
    /// arguments. Unless other methods change it, a scope may have several such blocks.
    #[must_use]
    pub const fn free_block(mut self) -> Setting<T> {
        self.spec.arity = self.arity_before_block().free_block();
        self.several_blocks()
    }

    /// The arity to which a block is added: none if no arity has been set, since the default of one
    /// argument is for directives without a block.
    const fn arity_before_block(&self) -> Arity {
        if self.spec.arity_assumed {
            Arity::none()
        } else {
            self.spec.arity
        }
    }

    /// Allows several blocks in a scope, unless another kind of inheritance has been set.
    const fn several_blocks(mut self) -> Setting<T> {
        let is_block = !matches!(self.spec.arity.block_kind(), BlockKind::None);
        if is_block && matches!(self.spec.inherit, Inherit::Value) {
            self.spec.inherit = Inherit::Block;
        }
        self
    }

    /// The arguments of the default value as a user would write them; the setting's parse function
    /// parses them too. If the setting allows several lines, `;` separates the arguments of each
    /// line.
    #[must_use]
    pub const fn default(mut self, text: &'static str) -> Setting<T> {
        self.spec.default = Some(text);
        self
    }

    /// Computes the default value, which depends on other settings of the scope. The manual shows
    /// the text of [`Setting::default`] nevertheless.
    #[must_use]
    pub const fn default_with(
        mut self,
        compute: fn(ScopeRef<'_>) -> Result<T, Fault>,
    ) -> Setting<T> {
        self.computed_default = Some(compute);
        self
    }

    /// The kind of inheritance.
    #[must_use]
    pub const fn inherit(mut self, inherit: Inherit) -> Setting<T> {
        self.spec.inherit = inherit;
        self
    }

    /// Allows several lines of the directive in a scope, because nginx does not check this
    /// directive for duplicates; the last line counts.
    #[must_use]
    pub const fn repeatable(mut self) -> Setting<T> {
        self.spec.repeatable = true;
        self
    }

    /// When a change takes effect.
    #[must_use]
    pub const fn reload(mut self, reload: Reload) -> Setting<T> {
        self.spec.reload = reload;
        self
    }

    /// The first version with the directive.
    #[must_use]
    pub const fn since(mut self, version: &'static str) -> Setting<T> {
        self.spec.since = version;
        self
    }

    /// Sets whether the directive has an effect.
    #[must_use]
    pub const fn effect(mut self, effect: Effect) -> Setting<T> {
        self.spec.effect = effect;
        self
    }

    /// Accepts and checks the directive, which has no effect for this reason.
    #[must_use]
    pub const fn no_effect(self, reason: &'static str) -> Setting<T> {
        self.effect(Effect::NoEffect(reason))
    }

    /// Accepts and checks the directive, which will have its effect in a later version. Its parse
    /// function warns.
    #[must_use]
    pub const fn not_yet(self, reason: &'static str) -> Setting<T> {
        self.effect(Effect::NotYet(reason))
    }

    /// The manual's prose of the setting.
    #[must_use]
    pub const fn manual(mut self, text: &'static str) -> Setting<T> {
        self.spec.prose = text;
        self
    }
}

/// The lines of one setting in one scope, as the input of its parse function.
pub struct Setter<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) lines: &'a [&'a Line],
    pub(crate) scope: ScopeRef<'a>,
    pub(crate) default: bool,
    /// Collects the warnings of the check after loading. `None` for later parses of the same lines,
    /// whose warnings would be duplicates.
    pub(crate) warnings: Option<&'a RefCell<Vec<Diagnostic>>>,
}

impl<'a> Setter<'a> {
    /// All lines, in file order. Exactly one if the setting allows only one line and has no
    /// default; for lists, there may be none.
    #[must_use]
    pub fn lines(&self) -> &'a [&'a Line] {
        self.lines
    }

    /// The first line, or an empty line.
    #[must_use]
    pub fn first(&self) -> &'a Line {
        self.lines.first().copied().unwrap_or_else(|| &EMPTY_LINE)
    }

    /// The arguments of the first line.
    #[must_use]
    pub fn args(&self) -> &'a [Word] {
        &self.first().args
    }

    /// The first argument of the first line.
    ///
    /// # Errors
    /// `invalid number of arguments in "x" directive` without an argument.
    pub fn word(&self) -> Result<&'a Word, Fault> {
        self.args().first().ok_or_else(|| {
            Fault::new(format!(
                "invalid number of arguments in \"{}\" directive",
                self.name()
            ))
        })
    }

    /// The directive's name; for a group, that of the first line.
    #[must_use]
    pub fn name(&self) -> Cow<'a, str> {
        match self.lines.first() {
            Some(line) => line.name.text(),
            None => Cow::Borrowed(self.spec.name()),
        }
    }

    /// The fault `"x" directive REASON` at a word, with the directive's name as `x`.
    #[must_use]
    pub fn fault(&self, word: &Word, reason: &str) -> Fault {
        Fault::at(word, format!("\"{}\" directive {reason}", self.name()))
    }

    /// The scope of the lines; for a default, the scope whose value is read.
    #[must_use]
    pub fn scope(&self) -> ScopeRef<'a> {
        self.scope
    }

    /// Whether the lines are those of the default value.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.default
    }

    /// Warns about a word. The configuration remains valid, and the warning is shown once, however
    /// often the value is parsed.
    pub fn warn(&self, word: &Word, message: impl Into<String>) {
        if let Some(warnings) = self.warnings {
            let warning = Diagnostic::new(Level::Warn, message, Some(word.position));
            warnings.borrow_mut().push(warning);
        }
    }

    /// Warns about a word, if the warning concerns the whole configuration: of several such
    /// warnings with this message, only the first is shown, and its hint lists the positions of the
    /// others.
    pub fn warn_once(&self, word: &Word, message: impl Into<String>) {
        if let Some(warnings) = self.warnings {
            let warning = Diagnostic::new(Level::Warn, message, Some(word.position));
            warnings.borrow_mut().push(Diagnostic {
                once: true,
                ..warning
            });
        }
    }
}
