//! `early_hints`: whether the client gets the 103 responses of upstreams.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#early_hints>, RFC 8297. The directive
//! has a condition because old clients take a 103 for the final response. `interim` passes the
//! hints on.

use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::module::{Module, ShortcutDoc};
use http::request::{Request, Text};
use http::slots::PlanSlot;
use http::variables::Compiling as _;

static EARLY_HINTS: Setting<Vec<Template>> = Setting::new(
    "early_hints",
    &["string ..."],
    |setter: &Setter<'_>| {
        let words = setter.lines().iter().flat_map(|line| &line.args);
        words.map(Template::parse).collect()
    },
)
.contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.since("1.29.0")
.manual(
    "When 103 (Early Hints) responses of an upstream are passed on: where any of the strings is \
         neither empty nor \"0\". Without the directive they are not.",
);

/// The conditions of `early_hints` in a scope.
#[derive(Debug)]
pub struct EarlyHints {
    conditions: Box<[Text]>,
}

impl Feature for EarlyHints {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&EARLY_HINTS];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<EarlyHints, Fault> {
        let conditions = scope.written(&EARLY_HINTS)?.unwrap_or_default();
        let texts = conditions.iter().map(|template| compiler.text(template));
        Ok(EarlyHints {
            conditions: texts.collect(),
        })
    }
}

/// The conditions in a scope's plan; absent if early hints are off.
pub static OF_PLAN: PlanSlot<EarlyHints> = PlanSlot::new();

impl Module for EarlyHints {
    const SHORTCUTS: &'static [ShortcutDoc] =
        &[ShortcutDoc::Same("it is about responses of upstreams")];

    fn is_off(&self) -> bool {
        self.conditions.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&OF_PLAN, self);
    }
}

impl EarlyHints {
    /// Whether the client of this request gets early hints.
    pub fn are_wanted(&self, request: &mut Request) -> bool {
        self.conditions.iter().any(|condition| {
            let value = condition.evaluate(request);
            !value.is_empty() && &*value != b"0"
        })
    }
}
