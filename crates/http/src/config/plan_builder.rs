//! Collects the modules' part of a plan: each module registers its handlers for the scope.

use std::any::Any;
use std::sync::Arc;

use conf::ScopeRef;
use framework::compile::{Compiler, Feature};

use crate::config::plan::{Permits, Phases, Plan};
use crate::logging::zone_meter::CountedZones;
use crate::module::{
    AfterResponse, Check, Content, Entry, OnRequestEnd, Permit, PermitResponse, PhaseHandler,
    Script, Shortcut,
};
use crate::request::Request;
use crate::response::chain::{Chain, FilterRejection, HeadFilter, Link};
use crate::slots::PlanSlot;

/// Compiles the plan of a block: see [`PlanBuilder::plan_of`].
pub type PlanOf<'a> = dyn FnMut(ScopeRef<'_>) -> Option<Arc<Plan>> + 'a;

/// Collects the parts of a scope's plan while modules register, in the order of the list of
/// modules.
pub struct PlanBuilder<'a> {
    /// The compilation of the configuration.
    pub compiler: &'a Compiler<'a>,
    /// The scope whose plan is built.
    pub scope: ScopeRef<'a>,
    // The fields from here to `answers_constantly` collect the fields of `Phases` with the same
    // names, each list in the order of registration.
    zones: CountedZones,
    arrived: Vec<Arc<dyn PhaseHandler>>,
    scripts: Vec<Arc<dyn Script>>,
    located: Vec<Arc<dyn Script>>,
    warns_unset: bool,
    prepared: Vec<Arc<dyn Script>>,
    after: Vec<Arc<dyn AfterResponse>>,
    endings: Vec<Arc<dyn OnRequestEnd>>,
    preaccess: Vec<Arc<dyn PhaseHandler>>,
    access: Vec<Arc<dyn Check>>,
    precontent: Vec<Arc<dyn PhaseHandler>>,
    files: Vec<Arc<dyn PhaseHandler>>,
    changes_files: bool,
    filters: Vec<Link>,
    kept: Vec<Option<Arc<dyn Any + Send + Sync>>>,
    answers_constantly: bool,
    /// The statements of all modules that have registered.
    shortcuts: Shortcuts,
    /// The statements of those modules that have registered a handler which runs before the
    /// location is known.
    shortcuts_of_server: Shortcuts,
    /// What the module that is registering has done so far: its statement about shortcuts, whether
    /// it has registered anything, and whether it has registered a handler that runs before the
    /// location is known.
    declared_shortcut: Option<Shortcut>,
    has_registered: bool,
    runs_before_location: bool,
    /// Compiles the plans of blocks within the scope.
    plan_of: &'a mut PlanOf<'a>,
}

impl<'a> PlanBuilder<'a> {
    /// A builder with no handlers.
    pub fn new(
        compiler: &'a Compiler<'a>,
        scope: ScopeRef<'a>,
        plan_of: &'a mut PlanOf<'a>,
    ) -> PlanBuilder<'a> {
        PlanBuilder {
            compiler,
            scope,
            zones: CountedZones::default(),
            arrived: Vec::new(),
            scripts: Vec::new(),
            located: Vec::new(),
            warns_unset: true,
            prepared: Vec::new(),
            after: Vec::new(),
            endings: Vec::new(),
            preaccess: Vec::new(),
            access: Vec::new(),
            precontent: Vec::new(),
            files: Vec::new(),
            changes_files: false,
            filters: Vec::new(),
            kept: Vec::new(),
            answers_constantly: false,
            shortcuts: Shortcuts::default(),
            shortcuts_of_server: Shortcuts::default(),
            declared_shortcut: None,
            has_registered: false,
            runs_before_location: false,
            plan_of,
        }
    }

    /// Lets a module register, and applies its statement about shortcuts if it has registered
    /// anything. Returns `None` after a fault, which has been reported.
    pub fn register(&mut self, entry: &Entry) -> Option<()> {
        let Some(register) = entry.plan else {
            return Some(());
        };
        self.declared_shortcut = None;
        (self.has_registered, self.runs_before_location) = (false, false);
        register(self)?;
        if self.has_registered {
            let shortcut = self.declared_shortcut.take().unwrap_or(Shortcut::Never);
            debug_assert!(
                entry
                    .shortcuts
                    .iter()
                    .any(|told| told.describes_shortcut(&shortcut)),
                "docs/shortcuts.md does not tell what a module says: {:?}",
                entry.shortcuts
            );
            if self.runs_before_location {
                self.shortcuts_of_server.add(shortcut.clone());
            }
            self.shortcuts.add(shortcut);
        }
        Some(())
    }

    /// States how the registering module affects shortcuts.
    pub fn shortcut(&mut self, shortcut: Shortcut) {
        self.has_registered = true;
        self.declared_shortcut = Some(shortcut);
    }

    /// Compiles the plan of a block within the scope, which may replace this plan at run time.
    pub fn plan_of(&mut self, inner: ScopeRef<'_>) -> Option<Arc<Plan>> {
        (self.plan_of)(inner)
    }

    /// The settings of a feature in the scope; a fault is reported.
    pub fn feature<F: Feature>(&self) -> Option<Arc<F>> {
        self.compiler.feature_or_report(self.scope)
    }

    /// Has requests counted in these zones.
    pub fn count_in(&mut self, zones: CountedZones) {
        self.has_registered = true;
        self.zones = zones;
    }

    /// Registers a handler that runs as soon as the head of a main request has been read; used from
    /// the server's plan.
    pub fn arrived<H: PhaseHandler + 'static>(&mut self, handler: &Arc<H>) {
        (self.has_registered, self.runs_before_location) = (true, true);
        self.arrived.push(handler.clone());
    }

    /// Registers a script of the rewrite phase: the server's if the scope is a server, else the
    /// location's.
    pub fn script<S: Script + 'static>(&mut self, script: &Arc<S>) {
        (self.has_registered, self.runs_before_location) = (true, true);
        self.scripts.push(script.clone());
    }

    /// Registers a script that runs once a request's location is known, before the location's
    /// rewrite phase. Such a script must not end the request.
    pub fn located<S: Script + 'static>(&mut self, script: &Arc<S>) {
        self.has_registered = true;
        self.located.push(script.clone());
    }

    /// Declares that the script which the module registers gives every plain request the same
    /// response, whatever the request contains.
    pub fn answers_constantly(&mut self) {
        self.has_registered = true;
        self.answers_constantly = true;
    }

    /// Disables warnings about variables that are read before a script has set them.
    pub fn warn_of_no_unset_variable(&mut self) {
        self.warns_unset = false;
    }

    /// Registers a script that may change a request once the request's plan is known, before all
    /// other phases.
    pub fn prepared<S: Script + 'static>(&mut self, script: &Arc<S>) {
        self.has_registered = true;
        self.prepared.push(script.clone());
    }

    /// Registers a handler that runs after the responses of main requests.
    pub fn after<A: AfterResponse + 'static>(&mut self, after: &Arc<A>) {
        self.has_registered = true;
        self.after.push(after.clone());
    }

    /// Registers a callback for the end of requests.
    pub fn ending<E: OnRequestEnd + 'static>(&mut self, ending: &Arc<E>) {
        self.has_registered = true;
        self.endings.push(ending.clone());
    }

    /// Registers a handler of the preaccess phase, before the access checks.
    pub fn preaccess<H: PhaseHandler + 'static>(&mut self, handler: &Arc<H>) {
        self.has_registered = true;
        self.preaccess.push(handler.clone());
    }

    /// Registers a check of the access phase.
    pub fn access<C: Check + 'static>(&mut self, check: &Arc<C>) {
        self.has_registered = true;
        self.access.push(check.clone());
    }

    /// Registers a handler of the precontent phase, after the access checks and before the content
    /// handler.
    pub fn precontent<H: PhaseHandler + 'static>(&mut self, handler: &Arc<H>) {
        self.has_registered = true;
        self.precontent.push(handler.clone());
    }

    /// Registers a handler that may serve a file or a directory if there is no content handler.
    pub fn file<H: PhaseHandler + 'static>(&mut self, handler: &Arc<H>) {
        self.has_registered = true;
        self.files.push(handler.clone());
    }

    /// Declares that requests of all methods, such as PUT, act on files in this scope, so that
    /// their bodies are read.
    pub fn changes_files(&mut self) {
        self.has_registered = true;
        self.changes_files = true;
    }

    /// Registers a head filter of responses.
    pub fn filter<F: HeadFilter + 'static>(&mut self, filter: &Arc<F>) {
        self.has_registered = true;
        self.filters.push(Link::Module(filter.clone()));
    }

    /// Registers a head filter of HTTP's core. `name` is its name in the list of filters.
    pub fn own_filter(
        &mut self,
        name: &'static str,
        head: fn(&mut Request, &mut Chain) -> Result<(), FilterRejection>,
    ) {
        self.filters.push(Link::Own(name, head));
    }

    /// Keeps a value of the module's settings in the plan, for code outside its handlers.
    pub fn keep<F: Send + Sync + 'static>(&mut self, slot: &PlanSlot<F>, settings: &Arc<F>) {
        self.has_registered = true;
        let number = slot.number();
        if self.kept.len() <= number {
            self.kept.resize_with(number + 1, || None);
        }
        self.kept[number] = Some(settings.clone()); // invariant: there are more than `number`
    }

    /// Finishes the plan. Each list is in the order of execution: as in nginx, from the end of the
    /// list of modules. A content handler disables shortcuts, unless it keeps responses in memory
    /// (`recall`).
    pub fn finish(mut self, content: Option<&Content>) -> Phases {
        if let Some(content) = content {
            // A shortcut then sends a response that the content handler keeps in memory. The
            // modules' permits for responses apply to it as well.
            if content.recall.is_none() {
                self.shortcuts.add(Shortcut::Never);
            }
            if content.falls_back_to_files {
                self.files.push(Arc::clone(&content.handler));
            }
        }
        Phases {
            zones: self.zones,
            arrived: from_end(self.arrived),
            scripts: from_end(self.scripts),
            located: from_end(self.located),
            warns_unset: self.warns_unset,
            prepared: from_end(self.prepared),
            after: from_end(self.after),
            endings_read_response: self.endings.iter().any(|ending| ending.reads_response()),
            endings: from_end(self.endings),
            preaccess: from_end(self.preaccess),
            access: from_end(self.access),
            precontent: from_end(self.precontent),
            content: content
                .filter(|content| !content.falls_back_to_files)
                .map(|content| Arc::clone(&content.handler)),
            recall: content.and_then(|content| content.recall.clone()),
            files: from_end(self.files),
            changes_files: self.changes_files,
            filters: from_end(self.filters),
            kept: self.kept.into(),
            answers_constantly: self.answers_constantly,
            shortcuts: self.shortcuts.finish(),
            shortcuts_of_server: self.shortcuts_of_server.finish(),
        }
    }
}

fn from_end<T>(mut list: Vec<T>) -> Box<[T]> {
    list.reverse();
    list.into()
}

/// The statements of modules about shortcuts.
#[derive(Default)]
struct Shortcuts {
    /// Whether a module forbids prebuilt responses.
    are_closed: bool,
    of_head: Vec<Arc<dyn Permit>>,
    of_request: Vec<Arc<dyn Permit>>,
    of_response: Vec<Arc<dyn PermitResponse>>,
}

impl Shortcuts {
    fn add(&mut self, shortcut: Shortcut) {
        match shortcut {
            Shortcut::Never => self.are_closed = true,
            Shortcut::Same => {}
            Shortcut::OfHead(permit) => self.of_head.push(permit),
            Shortcut::OfRequest(permit) => self.of_request.push(permit),
            Shortcut::OfResponse(permit) => self.of_response.push(permit),
        }
    }

    fn finish(self) -> Permits {
        Permits {
            are_open: !self.are_closed,
            of_head: self.of_head.into(),
            of_request: self.of_request.into(),
            of_response: self.of_response.into(),
        }
    }
}
