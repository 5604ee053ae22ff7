//! The interface between requests and modules: the core calls modules through these traits, and
//! names no module.
//!
//! A [`Module`] is a feature that registers its handlers with the plan of each scope, such as a
//! [`PhaseHandler`] in a phase. The list of all modules is in one place (`features.rs` of the
//! server), in nginx's order; like nginx, phases run through the list from its end. The state that
//! a module keeps with a request is private to the module, in a [`slot`](crate::slots).

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{Declared, Fault, Line, Position, ScopeRef, Spec};
use engine::PooledFuture;
use framework::compile::{Compiler, Feature};
use framework::generation::Generation;
use transport::tls::handshake::Intercept;
use variables::Find;

use crate::config::plan_builder::PlanBuilder;
use crate::config::tasks::Task;
use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::handshake::Handshake;
use crate::request::{Request, Step};
use crate::response::prebuilt::PrebuiltEncoding;
use crate::response::recall::laid::ValidityCheck;

/// A feature that takes part in the handling of requests.
pub trait Module: Feature {
    /// All directives of the module, including those without a compiled value per scope.
    const TABLES: &'static [&'static [&'static dyn Declared]] = &[Self::DIRECTIVES];

    /// The directives that act on requests, and what they do.
    const TASKS: &'static [Task] = &[];

    /// The possible results of [`Module::shortcut`] with their reasons, for the documentation.
    const SHORTCUTS: &'static [ShortcutDoc] = ShortcutDoc::NOTHING;

    /// Whether the module is off in this scope. The module is then neither registered nor asked for
    /// its shortcut.
    fn is_off(&self) -> bool {
        false
    }

    /// Registers the module's handlers with the plan of a scope.
    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>);

    /// How prebuilt responses may bypass the module. If `SHORTCUTS` is a single
    /// [`ShortcutDoc::Same`], the default is `Same`. Otherwise it is `Never`, so that a module
    /// without an implementation is slow but never bypassed.
    fn shortcut(self: &Arc<Self>) -> Shortcut {
        match Self::SHORTCUTS {
            [ShortcutDoc::Same(_)] => Shortcut::Same,
            _ => Shortcut::Never,
        }
    }
}

/// How a prebuilt response may answer a request without running a registered module.
#[derive(Clone)]
pub enum Shortcut {
    /// No prebuilt response may be used.
    Never,
    /// The module does nothing to the requests that a shortcut answers, or the same to each of
    /// them.
    Same,
    /// If [`Permit`] permits the request's head. The result also holds for a later request whose
    /// head is equal, byte for byte.
    OfHead(Arc<dyn Permit>),
    /// If [`Permit`] permits the request; asked for each request.
    OfRequest(Arc<dyn Permit>),
    /// If [`PermitResponse`] permits the prebuilt response; asked once per head and response.
    OfResponse(Arc<dyn PermitResponse>),
}

/// A possible result of [`Module::shortcut`], with its reason or condition. docs/shortcuts.md is
/// generated from these values.
#[derive(Clone, Copy, Debug)]
pub enum ShortcutDoc {
    /// [`Shortcut::Never`], with the reason.
    Never(&'static str),
    /// [`Shortcut::Same`], with the reason.
    Same(&'static str),
    /// [`Shortcut::OfHead`], with the condition.
    OfHead(&'static str),
    /// [`Shortcut::OfRequest`], with the condition.
    OfRequest(&'static str),
    /// [`Shortcut::OfResponse`], with the condition.
    OfResponse(&'static str),
}

impl ShortcutDoc {
    /// The value for a module that declares no results.
    pub const NOTHING: &'static [ShortcutDoc] = &[ShortcutDoc::Never("it says nothing")];

    /// Whether this value describes the module's result.
    pub fn describes_shortcut(&self, said: &Shortcut) -> bool {
        matches!(
            (self, said),
            (ShortcutDoc::Never(_), Shortcut::Never)
                | (ShortcutDoc::Same(_), Shortcut::Same)
                | (ShortcutDoc::OfHead(_), Shortcut::OfHead(_))
                | (ShortcutDoc::OfRequest(_), Shortcut::OfRequest(_))
                | (ShortcutDoc::OfResponse(_), Shortcut::OfResponse(_))
        )
    }
}

/// Permits prebuilt responses: see [`Shortcut`].
pub trait Permit: Send + Sync {
    /// Whether a prebuilt response may answer this request.
    fn permits(&self, request: &Request) -> bool;
}

/// The properties of a prebuilt response before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Prebuilt<'a> {
    /// The status of the response.
    pub status: u16,
    /// The value of `Content-Type`, without `charset`.
    pub content_type: &'a Bytes,
    /// Length of the body in bytes, if it has one.
    pub length: Option<u64>,
}

/// Permits prebuilt responses by their properties: see [`Shortcut::OfResponse`].
pub trait PermitResponse: Send + Sync {
    /// The encoding in which this response may answer the request; `None` if it may not.
    fn encoding(&self, request: &Request, response: Prebuilt<'_>) -> Option<PrebuiltEncoding>;
}

/// A content handler that may keep responses in memory. Only called for GET requests without a
/// body, a condition or a range.
pub trait Recall: Any + Send + Sync {
    /// Appends the key of the response to `key`: requests with equal keys get equal responses.
    /// False if the request must not be answered from memory, or the response depends on more than
    /// the key.
    fn key(&self, request: &mut Request, key: &mut Vec<u8>) -> bool;

    /// Looks up the response of a key, which counts as a use. Writes the head to
    /// `request.response`, and the values of upstream variables to `request.upstream`. If there is
    /// no response in memory, returns `None`, and the caller discards both.
    fn recall(&self, request: &mut Request, key: &[u8]) -> Option<RecalledResponse>;
}

/// A response that a content handler keeps in memory.
pub struct RecalledResponse {
    /// Checks whether the response is still current.
    pub standing: Box<dyn ValidityCheck>,
    /// The time at which the response expires, by the wall clock ([`engine::wall`]).
    pub until: Duration,
    /// The whole body; `None` if requests for the key must go through the phases while the entry is
    /// current.
    pub body: Option<Bytes>,
}

/// The result of a handler: ready now, or a future. A result that is ready costs no allocation.
pub enum MaybeFuture<'a, T = Result<Step, Abort>> {
    /// The result is ready.
    Now(T),
    /// The future yields the result.
    Wait(PooledFuture<'a, T>),
}

impl<'a, T> MaybeFuture<'a, T> {
    /// The result that this future yields.
    pub fn wait(future: impl Future<Output = T> + 'a) -> MaybeFuture<'a, T> {
        MaybeFuture::Wait(PooledFuture::new(future))
    }

    /// Waits for the result, if it is not ready.
    pub async fn resolve(self) -> T {
        match self {
            MaybeFuture::Now(said) => said,
            MaybeFuture::Wait(future) => future.await,
        }
    }

    /// Calls `next` with the result.
    pub fn then<U: 'a>(self, next: impl FnOnce(T) -> MaybeFuture<'a, U> + 'a) -> MaybeFuture<'a, U>
    where
        T: 'a,
    {
        match self {
            MaybeFuture::Now(said) => next(said),
            MaybeFuture::Wait(future) => {
                MaybeFuture::wait(async move { next(future.await).resolve().await })
            }
        }
    }
}

/// A handler in a phase. It may wait, and may end the request.
pub trait PhaseHandler: Send + Sync {
    /// Handles the request. [`Step::Next`] passes it on to the next handler.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a>;

    /// What the handler would do to the made-up request of `tidegate explain`. Must have no side
    /// effects.
    fn explain_effect<'a>(&'a self, _request: &'a mut Request) -> MaybeFuture<'a, ExplainedEffect> {
        MaybeFuture::Now(ExplainedEffect::Unknown)
    }

    /// The name of the handler's type, for debug output.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// What a handler would do to the made-up request of `tidegate explain`.
pub enum ExplainedEffect {
    /// Only a real request would show the effect.
    Unknown,
    /// The handler would answer the request.
    Answers {
        /// The text of the answer, for `tidegate explain`.
        text: String,
        /// The status of the answer, if known.
        status: u16,
    },
    /// The handler would do something other than answer.
    Does {
        /// The name of the step in the output.
        part: &'static str,
        /// What the handler would do, in words.
        text: String,
        /// The step that the handler would return.
        step: Step,
    },
}

/// Runs handlers in order until one returns something other than [`Step::Next`].
pub async fn run(
    handlers: &[Arc<dyn PhaseHandler>],
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Step, Abort> {
    for handler in handlers {
        let said = match handler.run(request, exchange) {
            MaybeFuture::Now(said) => said,
            MaybeFuture::Wait(future) => future.await,
        };
        match said? {
            Step::Next => {}
            step => return Ok(step),
        }
    }
    Ok(Step::Next)
}

/// A handler in the rewrite phase of a server or location. It never waits.
pub trait Script: Send + Sync {
    /// Runs the script. [`Step::Relocate`] looks the location up again.
    fn run(&self, request: &mut Request) -> Step;

    /// The name of the script's type, for debug output.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// Runs scripts in order until one returns something other than [`Step::Next`].
pub fn run_scripts(scripts: &[Arc<dyn Script>], request: &mut Request) -> Step {
    for script in scripts {
        match script.run(request) {
            Step::Next => {}
            step => return step,
        }
    }
    Step::Next
}

/// One action of a script, for `tidegate explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The position of the directive.
    pub position: Position,
    /// What the directive did.
    pub text: String,
}

impl Request {
    /// Records an action if the request is the made-up one of `tidegate explain`.
    pub fn trace(&mut self, position: Position, text: impl FnOnce() -> String) {
        if let Some(trail) = &mut self.trail {
            trail.push(Trace {
                position,
                text: text(),
            });
        }
    }
}

/// A handler that runs after the response of a main request.
pub trait AfterResponse: Send + Sync {
    /// Handles the request after its response. `outcome` says, for example, that the client has
    /// left. Returns true if there was anything to do.
    fn after<'a>(
        &'a self,
        request: &'a mut Request,
        outcome: &'a Result<(), Abort>,
    ) -> MaybeFuture<'a, bool>;
}

/// The interface of the log phase: a module that is called when requests, and subrequests that are
/// logged, have ended.
pub trait OnRequestEnd: Send + Sync {
    /// Called when the request has ended.
    fn ended(&self, request: &mut Request);

    /// Whether the module reads the response's head, which must then be kept until the request has
    /// ended.
    fn reads_response(&self) -> bool {
        false
    }

    /// The name of the module's type, for debug output.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// A check of the access phase. [`access_phase`](crate::request::access_phase) says how checks are
/// combined.
pub trait Check: Send + Sync {
    /// Checks a request.
    fn check<'a>(
        &'a self,
        request: &'a mut Request,
        exchange: &'a mut Exchange,
    ) -> MaybeFuture<'a, Result<AccessVerdict, Abort>>;

    /// Describes the check and its verdict for the made-up request of `tidegate explain`, which has
    /// no client. `None` if only a real request would show the verdict.
    fn explain_verdict(&self, _request: &Request) -> Option<(String, AccessVerdict)> {
        None
    }

    /// The name of the check's type, for debug output.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// The verdict of an access check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The check neither grants nor refuses access.
    Declined,
    /// Access is granted. With `satisfy any`, no other check is needed.
    Granted,
    /// Access is refused with this status.
    Refused(u16),
}

/// The content handler of a scope. Inner scopes inherit it unless they have a handler of their own.
#[derive(Clone)]
pub struct Content {
    /// The handler that makes the response.
    pub handler: Arc<dyn PhaseHandler>,
    /// Whether static files answer if the handler returns [`Step::Next`].
    pub falls_back_to_files: bool,
    /// Whether a `limit_except` in the scope inherits the handler, as every `if` does. In nginx it
    /// inherits `proxy_pass` and similar directives, but not handlers that make the response
    /// themselves, for which static files answer.
    pub inherited_by_limit_except: bool,
    /// Whether a URI that lacks only the final slash of the location's prefix is redirected to the
    /// prefix.
    pub adds_slash: bool,
    /// Whether the handler accepts CONNECT, so that the server must not refuse such requests.
    pub answers_connect: bool,
    /// Answers requests from responses that the handler keeps in memory.
    pub recall: Option<Arc<dyn Recall>>,
}

impl Content {
    /// The content of a handler that makes the response itself.
    pub fn of(handler: impl PhaseHandler + 'static) -> Content {
        Content::shared(Arc::new(handler))
    }

    /// The content of a handler that is shared with other scopes.
    pub fn shared(handler: Arc<dyn PhaseHandler>) -> Content {
        Content {
            handler,
            falls_back_to_files: false,
            inherited_by_limit_except: false,
            adds_slash: false,
            answers_connect: false,
            recall: None,
        }
    }
}

/// Makes the content handler from the directive's line; `None` if the line sets none.
pub type MakeContent = fn(&Compiler<'_>, ScopeRef<'_>) -> Result<Option<Content>, Fault>;

/// An entry of the list of modules: everything that a module contributes.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The module names that `load_module` accepts without a warning, since all directives of those
    /// modules are built in.
    pub names: &'static [&'static str],
    /// The directives of the module.
    pub directives: &'static [&'static [&'static dyn Declared]],
    /// The built-in variables that the module defines for requests.
    pub variables: &'static [Find<Request>],
    /// The built-in variables that the module defines for TLS handshakes.
    pub of_handshakes: &'static [Find<Handshake>],
    /// Hooks that may answer TLS handshakes in place of the server, such as the one for
    /// `tls-alpn-01`.
    pub intercepts: &'static [Intercept],
    /// The directives that act on requests, and what they do.
    pub tasks: &'static [Task],
    /// Finds the lines of a directive that are in force in a scope, for directives with inheritance
    /// rules of their own.
    pub lines_in_force: Option<LinesInForce>,
    /// Examines the whole configuration before any block is compiled.
    pub survey: Option<Prepare>,
    /// Prepares an `http` block before any scope in it is compiled: declares zones and other names
    /// that directives refer to.
    pub prepare: Option<Prepare>,
    /// Registers with the plan of a scope; `None` after an error, which has been reported.
    pub plan: Option<Register>,
    /// The possible results of [`Module::shortcut`]; empty if the module never registers.
    pub shortcuts: &'static [ShortcutDoc],
    /// Adds to the generation what the module has collected while scopes were compiled.
    pub gathered: Option<Gathered>,
    /// The directive that sets the module's content handler, and the function that makes the
    /// handler.
    pub content: Option<(&'static str, MakeContent)>,
    /// Whether the content handler may answer from memory: see [`Content::recall`].
    pub recalls: bool,
}

/// The type of [`Entry::survey`], called with the whole configuration, and of [`Entry::prepare`],
/// called with an `http` block.
pub type Prepare = fn(&Compiler<'_>, ScopeRef<'_>);

/// The type of [`Entry::lines_in_force`]. Returns each line with the scope that contains the line;
/// `None` for any other directive.
pub type LinesInForce = for<'a> fn(ScopeRef<'a>, &Spec) -> Option<Vec<(ScopeRef<'a>, &'a Line)>>;

/// The type of [`Entry::gathered`].
pub type Gathered = fn(&Compiler<'_>, &mut Generation);

/// The type of [`Entry::plan`].
pub type Register = fn(&mut PlanBuilder<'_>) -> Option<()>;

impl Entry {
    /// An entry with directives only.
    pub const fn of(directives: &'static [&'static [&'static dyn Declared]]) -> Entry {
        Entry {
            names: &[],
            directives,
            variables: &[],
            of_handshakes: &[],
            intercepts: &[],
            tasks: &[],
            lines_in_force: None,
            survey: None,
            prepare: None,
            plan: None,
            shortcuts: &[],
            gathered: None,
            content: None,
            recalls: false,
        }
    }

    /// The entry of a [`Module`].
    pub const fn module<M: Module>() -> Entry {
        Entry {
            plan: Some(register::<M>),
            tasks: M::TASKS,
            shortcuts: M::SHORTCUTS,
            ..Entry::of(M::TABLES)
        }
    }

    /// Adds a function with which a part of the core registers with the plan of every scope.
    #[must_use]
    pub const fn registers(self, plan: Register) -> Entry {
        Entry {
            plan: Some(plan),
            ..self
        }
    }

    /// Adds the names by which `load_module` may refer to the module.
    #[must_use]
    pub const fn named(self, names: &'static [&'static str]) -> Entry {
        Entry { names, ..self }
    }

    /// Adds built-in variables of requests.
    #[must_use]
    pub const fn variables(self, variables: &'static [Find<Request>]) -> Entry {
        Entry { variables, ..self }
    }

    /// Adds built-in variables of TLS handshakes.
    #[must_use]
    pub const fn of_handshakes(self, of_handshakes: &'static [Find<Handshake>]) -> Entry {
        Entry {
            of_handshakes,
            ..self
        }
    }

    /// Adds hooks that may answer handshakes in place of every server.
    #[must_use]
    pub const fn intercepts(self, intercepts: &'static [Intercept]) -> Entry {
        Entry { intercepts, ..self }
    }

    /// Adds a function that adds to the generation.
    #[must_use]
    pub const fn gathers(self, gathered: Gathered) -> Entry {
        Entry {
            gathered: Some(gathered),
            ..self
        }
    }

    /// Adds tasks: directives that act on requests.
    #[must_use]
    pub const fn tasks(self, tasks: &'static [Task]) -> Entry {
        Entry { tasks, ..self }
    }

    /// Adds inheritance rules for directives of the module.
    #[must_use]
    pub const fn lines_in_force(self, lines_in_force: LinesInForce) -> Entry {
        Entry {
            lines_in_force: Some(lines_in_force),
            ..self
        }
    }

    /// Adds a function that registers with the plan of every scope, and the possible shortcuts.
    #[must_use]
    pub const fn plan(self, plan: Register, shortcuts: &'static [ShortcutDoc]) -> Entry {
        Entry {
            plan: Some(plan),
            shortcuts,
            ..self
        }
    }

    /// Adds the content handler of this directive.
    #[must_use]
    pub const fn content(self, directive: &'static str, make: MakeContent) -> Entry {
        Entry {
            content: Some((directive, make)),
            ..self
        }
    }

    /// Adds the content handler of this directive, which may also answer from memory.
    #[must_use]
    pub const fn recalling_content(self, directive: &'static str, make: MakeContent) -> Entry {
        Entry {
            content: Some((directive, make)),
            recalls: true,
            ..self
        }
    }

    /// Adds a function that examines the whole configuration.
    #[must_use]
    pub const fn survey(self, survey: Prepare) -> Entry {
        Entry {
            survey: Some(survey),
            ..self
        }
    }

    /// Adds a function that prepares an `http` block.
    #[must_use]
    pub const fn prepare(self, prepare: Prepare) -> Entry {
        Entry {
            prepare: Some(prepare),
            ..self
        }
    }
}

fn register<M: Module>(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let module: Arc<M> = plan.feature()?;
    if !module.is_off() {
        module.register(plan);
        plan.shortcut(module.shortcut());
    }
    Some(())
}
