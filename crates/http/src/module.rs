//! What a module is to the request: it is asked, and never named.
//!
//! A [`Module`] is a feature that registers with the plan of each scope what it has to do there: a
//! [`Handle`] in a phase. The list of all modules stands in one place (`features.rs` for the whole
//! server), in nginx's order; phases run through it from its end, as nginx's do. Of what a module
//! keeps of a request, only the module knows: it lies in a [`slot`](crate::slots).

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
use crate::response::recall::laid::Standing;

/// A feature that has something to do for requests.
pub trait Module: Feature {
    /// All its directives, also those that make no value of its own for the scope that writes them.
    const TABLES: &'static [&'static [&'static dyn Declared]] = &[Self::DIRECTIVES];

    /// Which of its directives have something to do for requests.
    const TASKS: &'static [Task] = &[];

    /// What it may say of shortcuts, in words.
    const SHORTCUTS: &'static [ShortcutDoc] = ShortcutDoc::NOTHING;

    /// Whether it has nothing to do in this scope: nothing of it is registered there then, nor is
    /// it asked for shortcuts.
    fn is_off(&self) -> bool {
        false
    }

    /// Registers what it has to do with the plan of a scope.
    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>);

    /// Whether a prebuilt response may answer for it. A module that always tells
    /// [`ShortcutDoc::Same`] need not say it again; one that says nothing is slow, never open.
    fn shortcut(self: &Arc<Self>) -> Shortcut {
        match Self::SHORTCUTS {
            [ShortcutDoc::Same(_)] => Shortcut::Same,
            _ => Shortcut::Never,
        }
    }
}

/// Whether a complete response from memory may answer where a module has something to do: it would
/// not be asked.
#[derive(Clone)]
pub enum Shortcut {
    /// No prebuilt response may be used.
    Never,
    /// It does the same to every request that the shortcut takes, or nothing.
    Same,
    /// Where it permits the request's head. A client that repeats its head byte for byte is
    /// permitted with it.
    OfHead(Arc<dyn Permit>),
    /// Where it permits the request, which is asked every time.
    OfRequest(Arc<dyn Permit>),
    /// Where it permits the response that there is, which is asked once for each head and response.
    OfResponse(Arc<dyn PermitResponse>),
}

/// What a module may say of shortcuts, for people, with why or where it does: docs/shortcuts.md is
/// made of these.
#[derive(Clone, Copy, Debug)]
pub enum ShortcutDoc {
    /// The words for [`Shortcut::Never`], with the reason.
    Never(&'static str),
    /// The words for [`Shortcut::Same`], with the reason.
    Same(&'static str),
    /// The words for [`Shortcut::OfHead`], with what it asks.
    OfHead(&'static str),
    /// The words for [`Shortcut::OfRequest`], with what it asks.
    OfRequest(&'static str),
    /// The words for [`Shortcut::OfResponse`], with what it asks.
    OfResponse(&'static str),
}

impl ShortcutDoc {
    /// That of a module that says nothing.
    pub const NOTHING: &'static [ShortcutDoc] = &[ShortcutDoc::Never("it says nothing")];

    /// Whether this is what the module has said.
    pub fn tells_of(&self, said: &Shortcut) -> bool {
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
    /// Whether one may answer this request.
    fn permits(&self, request: &Request) -> bool;
}

/// What is known of a prebuilt response before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Prebuilt<'a> {
    /// The status of the prebuilt.
    pub status: u16,
    /// The value of `Content-Type`, without `charset`.
    pub content_type: &'a Bytes,
    /// Bytes of its body, where it has one.
    pub length: Option<u64>,
}

/// Permits prebuilt responses by what they are: see [`Shortcut::OfResponse`].
pub trait PermitResponse: Send + Sync {
    /// How this one may answer the request; `None` where it may not.
    fn encoding(&self, request: &Request, response: Prebuilt<'_>) -> Option<PrebuiltEncoding>;
}

/// Content that may have answers in memory. It is asked for plain GETs alone: without a body, a
/// condition or a range.
pub trait Recall: Any + Send + Sync {
    /// Appends to `key` what the answer to this request is found by: requests that have the same
    /// are answered alike. False where another than a stored answer is to be given, or that depends
    /// on more.
    fn key(&self, request: &mut Request, key: &mut Vec<u8>) -> bool;

    /// The answer of a key, which counts as a use of it. Its head is made in `request.response`,
    /// and what variables tell of upstreams in `request.upstream`; `None` where there is none to be
    /// given at once: then what has been made is thrown away.
    fn recall(&self, request: &mut Request, key: &[u8]) -> Option<Recalled>;
}

/// An answer that a content has in memory.
pub struct Recalled {
    /// Whether it still is what the content would give.
    pub standing: Box<dyn Standing>,
    /// Until when it may be given, by the wall clock ([`engine::wall`]).
    pub until: Duration,
    /// All of its body; `None` for an answer that takes the long way as long as it stands.
    pub body: Option<Bytes>,
}

/// What something that has run says: at once, or once it has waited. Only what waits has a box.
pub enum Ran<'a, T = Result<Step, Abort>> {
    /// The result stands at once.
    Now(T),
    /// The result comes once the future is ready.
    Wait(PooledFuture<'a, T>),
}

impl<'a, T> Ran<'a, T> {
    /// What this future says.
    pub fn wait(future: impl Future<Output = T> + 'a) -> Ran<'a, T> {
        Ran::Wait(PooledFuture::new(future))
    }

    /// What it says, waited for where it must be.
    pub async fn resolve(self) -> T {
        match self {
            Ran::Now(said) => said,
            Ran::Wait(future) => future.await,
        }
    }

    /// Goes on with what it says.
    pub fn then<U: 'a>(self, next: impl FnOnce(T) -> Ran<'a, U> + 'a) -> Ran<'a, U>
    where
        T: 'a,
    {
        match self {
            Ran::Now(said) => next(said),
            Ran::Wait(future) => Ran::wait(async move { next(future.await).resolve().await }),
        }
    }
}

/// What a module does in a phase that may wait and may end the request.
pub trait Handle: Send + Sync {
    /// Does it. [`Step::Next`] leaves the request to what follows.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a>;

    /// What it does to an imagined request, which no client has sent; what cannot be told before
    /// there is one, is passed over.
    fn imagine<'a>(&'a self, _request: &'a mut Request) -> Ran<'a, Imagined> {
        Ran::Now(Imagined::Unknown)
    }

    /// What it is called in the code.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// What a handler does to an imagined request.
pub enum Imagined {
    /// That shows only once there is one.
    Unknown,
    /// The handler would answer the request.
    Answers {
        /// The text of the answer, for `tidegate explain`.
        text: String,
        /// The status of the answer, if known.
        status: u16,
    },
    /// What the handler would do, in words.
    Does {
        /// What part of the way it is, for people.
        part: &'static str,
        /// What it comes to.
        text: String,
        /// Where the request goes on.
        step: Step,
    },
}

/// Runs handlers one after the other until one of them has something to say.
pub async fn run(
    handlers: &[Arc<dyn Handle>],
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Step, Abort> {
    for handler in handlers {
        let said = match handler.run(request, exchange) {
            Ran::Now(said) => said,
            Ran::Wait(future) => future.await,
        };
        match said? {
            Step::Next => {}
            step => return Ok(step),
        }
    }
    Ok(Step::Next)
}

/// What a module does in a phase that finds the plan, the rewrite phases of the server and of its
/// location: it never waits.
pub trait Script: Send + Sync {
    /// Does it. [`Step::Relocate`] has the location looked for anew.
    fn run(&self, request: &mut Request) -> Step;

    /// What it is called in the code.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// Runs scripts one after the other until one of them has something to say.
pub fn run_scripts(scripts: &[Arc<dyn Script>], request: &mut Request) -> Step {
    for script in scripts {
        match script.run(request) {
            Step::Next => {}
            step => return step,
        }
    }
    Step::Next
}

/// One thing that a script has done, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The directive.
    pub position: Position,
    /// What came of it.
    pub text: String,
}

impl Request {
    /// Leaves a trace where `explain` wants to know.
    pub fn trace(&mut self, position: Position, text: impl FnOnce() -> String) {
        if let Some(trail) = &mut self.trail {
            trail.push(Trace {
                position,
                text: text(),
            });
        }
    }
}

/// What a module does with a main request after its response.
pub trait After: Send + Sync {
    /// Does it by how the request has ended, as where its client has left; whether there was
    /// anything to be done.
    fn after<'a>(
        &'a self,
        request: &'a mut Request,
        outcome: &'a Result<(), Abort>,
    ) -> Ran<'a, bool>;
}

/// What a module notes of a main request that has begun.
pub trait OnRequestBegin: Send + Sync {
    /// Notes the request, whose server is known. Responses that are given at once skip it.
    fn began(&self, request: &mut Request);
}

/// What a module notes of a request that has ended, or of a subrequest that is logged.
pub trait OnRequestEnd: Send + Sync {
    /// Notes the request that has ended.
    fn ended(&self, request: &mut Request);

    /// Whether it may tell of the response's head, which must be there then.
    fn reads_response(&self) -> bool {
        false
    }

    /// What it is called in the code.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// A check of the access phase: see [`access_phase`](crate::request::access_phase) for how they
/// combine.
pub trait Check: Send + Sync {
    /// Makes the check for this request.
    fn check<'a>(
        &'a self,
        request: &'a mut Request,
        exchange: &'a mut Exchange,
    ) -> Ran<'a, Result<AccessVerdict, Abort>>;

    /// What there is to say of an imagined request, which comes from no client, and how it would be
    /// judged. `None` where that shows only once there is one.
    fn foresee(&self, _request: &Request) -> Option<(String, AccessVerdict)> {
        None
    }

    /// What it is called in the code.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// What an access check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The check has nothing to say.
    Declined,
    /// Access is granted; with `satisfy any` that settles it.
    Granted,
    /// Access is refused with this status.
    Refused(u16),
}

/// What answers in a scope, and in those within it that have nothing of the kind.
#[derive(Clone)]
pub struct Content {
    /// The handler that gives the answer.
    pub handler: Arc<dyn Handle>,
    /// It only goes before files, which answer where it has nothing to say.
    pub leaves_to_files: bool,
    /// A `limit_except` within the scope keeps it, as every `if` does. In nginx `proxy_pass` and
    /// its kin are kept, and what makes its answer itself is not: files answer there.
    pub stays_in_limit_except: bool,
    /// Where the URI lacks only the slash that its location ends with, the client is redirected to
    /// it.
    pub adds_slash: bool,
    /// It answers CONNECT: the whole server lets such requests in.
    pub answers_connect: bool,
    /// What gives those of its answers at once that it has in memory.
    pub recall: Option<Arc<dyn Recall>>,
}

impl Content {
    /// A handler that makes its answer itself.
    pub fn of(handler: impl Handle + 'static) -> Content {
        Content::shared(Arc::new(handler))
    }

    /// The content of a handler that is shared with other scopes.
    pub fn shared(handler: Arc<dyn Handle>) -> Content {
        Content {
            handler,
            leaves_to_files: false,
            stays_in_limit_except: false,
            adds_slash: false,
            answers_connect: false,
            recall: None,
        }
    }
}

/// Makes what answers of a line of its directive; `None` where the line asks for nothing.
pub type MakeContent = fn(&Compiler<'_>, ScopeRef<'_>) -> Result<Option<Content>, Fault>;

/// A line of the list of modules: all that one of them brings.
#[derive(Clone, Copy)]
pub struct Entry {
    /// What `load_module` may call it without a warning, because all its directives are here.
    pub names: &'static [&'static str],
    /// The directives of the entry.
    pub directives: &'static [&'static [&'static dyn Declared]],
    /// Where its variables are found that requests have without being defined.
    pub variables: &'static [Find<Request>],
    /// Where its variables are found that handshakes have.
    pub of_handshakes: &'static [Find<Handshake>],
    /// What answers handshakes in the place of every server.
    pub intercepts: &'static [Intercept],
    /// Which of its directives have something to do for requests.
    pub tasks: &'static [Task],
    /// Which lines of a directive hold in a scope, where that is not by the directive's kind of
    /// inheritance alone.
    pub lines_in_force: Option<LinesInForce>,
    /// What it looks after in the whole configuration, used or not, before any block is compiled.
    pub survey: Option<Prepare>,
    /// What it does with an `http` block before any scope in it is compiled: it declares what
    /// directives name.
    pub prepare: Option<Prepare>,
    /// How it registers with the plan of a scope; `None` is for a fault, which has been reported.
    pub plan: Option<Register>,
    /// What it may say of shortcuts where it registers anything; empty where it never does.
    pub shortcuts: &'static [ShortcutDoc],
    /// How what it has gathered while scopes were compiled is added to the generation.
    pub gathered: Option<Gathered>,
    /// The directive by which it answers in a scope, and how.
    pub content: Option<(&'static str, MakeContent)>,
    /// Whether that may give answers at once that it has in memory: see [`Content::recall`].
    pub recalls: bool,
}

/// See [`Entry::survey`] and [`Entry::prepare`]: of the whole configuration, and of an `http`
/// block.
pub type Prepare = fn(&Compiler<'_>, ScopeRef<'_>);

/// See [`Entry::lines_in_force`]: each with the scope that wrote it; `None` for a directive that
/// this is not about.
pub type LinesInForce = for<'a> fn(ScopeRef<'a>, &Spec) -> Option<Vec<(ScopeRef<'a>, &'a Line)>>;

/// A function that gathers what scopes have; see [`Entry::gathered`].
pub type Gathered = fn(&Compiler<'_>, &mut Generation);

/// A function that registers with plans; see [`Entry::plan`].
pub type Register = fn(&mut PlanBuilder<'_>) -> Option<()>;

impl Entry {
    /// A module that has directives alone.
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

    /// A module that registers.
    pub const fn module<M: Module>() -> Entry {
        Entry {
            plan: Some(register::<M>),
            tasks: M::TASKS,
            shortcuts: M::SHORTCUTS,
            ..Entry::of(M::TABLES)
        }
    }

    /// With something of http's own to register.
    #[must_use]
    pub const fn registers(self, plan: Register) -> Entry {
        Entry {
            plan: Some(plan),
            ..self
        }
    }

    /// With the names that `load_module` may call it by.
    #[must_use]
    pub const fn named(self, names: &'static [&'static str]) -> Entry {
        Entry { names, ..self }
    }

    /// The same module, with variables of its own.
    #[must_use]
    pub const fn variables(self, variables: &'static [Find<Request>]) -> Entry {
        Entry { variables, ..self }
    }

    /// With variables of handshakes.
    #[must_use]
    pub const fn of_handshakes(self, of_handshakes: &'static [Find<Handshake>]) -> Entry {
        Entry {
            of_handshakes,
            ..self
        }
    }

    /// With what answers handshakes in the place of every server.
    #[must_use]
    pub const fn intercepts(self, intercepts: &'static [Intercept]) -> Entry {
        Entry { intercepts, ..self }
    }

    /// With something that it gathers for the generation.
    #[must_use]
    pub const fn gathers(self, gathered: Gathered) -> Entry {
        Entry {
            gathered: Some(gathered),
            ..self
        }
    }

    /// With directives that have something to do for requests.
    #[must_use]
    pub const fn tasks(self, tasks: &'static [Task]) -> Entry {
        Entry { tasks, ..self }
    }

    /// With directives whose lines reach scopes in a way of their own.
    #[must_use]
    pub const fn lines_in_force(self, lines_in_force: LinesInForce) -> Entry {
        Entry {
            lines_in_force: Some(lines_in_force),
            ..self
        }
    }

    /// With something that is looked at in every scope, and what it may say of shortcuts there.
    #[must_use]
    pub const fn plan(self, plan: Register, shortcuts: &'static [ShortcutDoc]) -> Entry {
        Entry {
            plan: Some(plan),
            shortcuts,
            ..self
        }
    }

    /// With the content handler of this directive.
    #[must_use]
    pub const fn content(self, directive: &'static str, make: MakeContent) -> Entry {
        Entry {
            content: Some((directive, make)),
            ..self
        }
    }

    /// With the handler of this directive, which may also answer at once from memory.
    #[must_use]
    pub const fn recalling_content(self, directive: &'static str, make: MakeContent) -> Entry {
        Entry {
            content: Some((directive, make)),
            recalls: true,
            ..self
        }
    }

    /// With something to look after in the whole configuration.
    #[must_use]
    pub const fn survey(self, survey: Prepare) -> Entry {
        Entry {
            survey: Some(survey),
            ..self
        }
    }

    /// With something to do before scopes are compiled.
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
