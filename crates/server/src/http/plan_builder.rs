//! How the modules' part of a plan comes to be: each registers what it has to do in the scope.

use std::any::Any;
use std::sync::Arc;

use conf::ScopeRef;
use framework::compile::{Compiler, Feature};

use crate::http::chain::{Chain, HeadFilter, Link, Refused};
use crate::http::module::{Check, Content, Handle, Module, Permit, Shortcut};
use crate::http::plan::{Permits, Phases};
use crate::http::request::Request;
use crate::http::slots::PlanSlot;

/// The plan of a scope while modules register with it, in the order of their list.
pub struct PlanBuilder<'a> {
    /// The compilation.
    pub compiler: &'a Compiler<'a>,
    /// The scope.
    pub scope: ScopeRef<'a>,
    arrived: Vec<Arc<dyn Handle>>,
    preaccess: Vec<Arc<dyn Handle>>,
    access: Vec<Arc<dyn Check>>,
    precontent: Vec<Arc<dyn Handle>>,
    files: Vec<Arc<dyn Handle>>,
    changes_files: bool,
    filters: Vec<Link>,
    kept: Vec<Option<Arc<dyn Any + Send + Sync>>>,
    shortcuts: Shortcuts,
    shortcuts_of_server: Shortcuts,
    /// Whether the module that registers now has something to do before the location is known.
    comes_before_location: bool,
}

impl<'a> PlanBuilder<'a> {
    /// One with which nothing has registered.
    pub fn new(compiler: &'a Compiler<'a>, scope: ScopeRef<'a>) -> PlanBuilder<'a> {
        PlanBuilder {
            compiler,
            scope,
            arrived: Vec::new(),
            preaccess: Vec::new(),
            access: Vec::new(),
            precontent: Vec::new(),
            files: Vec::new(),
            changes_files: false,
            filters: Vec::new(),
            kept: Vec::new(),
            shortcuts: Shortcuts::default(),
            shortcuts_of_server: Shortcuts::default(),
            comes_before_location: false,
        }
    }

    /// Has a module register, if it has something to do in the scope. `None` is for a fault, which has been reported.
    pub fn register<M: Module>(&mut self) -> Option<()> {
        let module: Arc<M> = self.feature()?;
        if module.is_off() {
            return Some(());
        }
        self.comes_before_location = false;
        module.register(self);
        let shortcut = module.shortcut();
        if self.comes_before_location {
            self.shortcuts_of_server.add(shortcut.clone());
        }
        self.shortcuts.add(shortcut);
        Some(())
    }

    /// A feature as the scope sees it; a fault is reported.
    pub fn feature<F: Feature>(&self) -> Option<Arc<F>> {
        self.compiler.feature_or_report(self.scope)
    }

    /// What runs as soon as the head of a main request has been read, under the plan of its server.
    pub fn arrived<H: Handle + 'static>(&mut self, handler: &Arc<H>) {
        self.comes_before_location = true;
        self.arrived.push(handler.clone());
    }

    /// What runs once the plan is found, before it is asked who the client is.
    pub fn preaccess<H: Handle + 'static>(&mut self, handler: &Arc<H>) {
        self.preaccess.push(handler.clone());
    }

    /// What decides, with others, who may have what the plan gives.
    pub fn access<C: Check + 'static>(&mut self, check: &Arc<C>) {
        self.access.push(check.clone());
    }

    /// What runs once the client has been let in, before what answers.
    pub fn precontent<H: Handle + 'static>(&mut self, handler: &Arc<H>) {
        self.precontent.push(handler.clone());
    }

    /// What may answer with a file or a folder, where nothing else answers.
    pub fn file<H: Handle + 'static>(&mut self, handler: &Arc<H>) {
        self.files.push(handler.clone());
    }

    /// Requests of any method are about files here, and their bodies are waited for.
    pub fn changes_files(&mut self) {
        self.changes_files = true;
    }

    /// What looks at the heads of responses.
    pub fn filter<F: HeadFilter + 'static>(&mut self, filter: &Arc<F>) {
        self.filters.push(Link::Module(filter.clone()));
    }

    /// What HTTP itself wants of every response, by this name.
    pub fn own_filter(
        &mut self,
        name: &'static str,
        head: fn(&mut Request, &mut Chain) -> Result<(), Refused>,
    ) {
        self.filters.push(Link::Own(name, head));
    }

    /// Keeps what the module needs of its settings outside of what it has registered.
    pub fn keep<F: Send + Sync + 'static>(&mut self, slot: &PlanSlot<F>, settings: &Arc<F>) {
        let number = slot.number();
        if self.kept.len() <= number {
            self.kept.resize_with(number + 1, || None);
        }
        self.kept[number] = Some(settings.clone()); // invariant: there are more than `number`
    }

    /// What has registered, each list in the order in which it runs: as in nginx, from the end of the list of modules. What
    /// answers instead of files says nothing of shortcuts.
    pub fn finish(mut self, content: Option<&Content>) -> Phases {
        if let Some(content) = content {
            self.shortcuts.add(Shortcut::Never);
            if content.leaves_to_files {
                self.files.push(Arc::clone(&content.handler));
            }
        }
        Phases {
            arrived: from_end(self.arrived),
            preaccess: from_end(self.preaccess),
            access: from_end(self.access),
            precontent: from_end(self.precontent),
            content: content
                .filter(|content| !content.leaves_to_files)
                .map(|content| Arc::clone(&content.handler)),
            files: from_end(self.files),
            changes_files: self.changes_files,
            filters: from_end(self.filters),
            kept: self.kept.into(),
            shortcuts: self.shortcuts.finish(),
            shortcuts_of_server: self.shortcuts_of_server.finish(),
        }
    }
}

fn from_end<T>(mut list: Vec<T>) -> Box<[T]> {
    list.reverse();
    list.into()
}

/// What modules have said of shortcuts.
#[derive(Default)]
struct Shortcuts {
    are_closed: bool,
    of_head: Vec<Arc<dyn Permit>>,
    of_request: Vec<Arc<dyn Permit>>,
}

impl Shortcuts {
    fn add(&mut self, shortcut: Shortcut) {
        match shortcut {
            Shortcut::Never => self.are_closed = true,
            Shortcut::Same => {}
            Shortcut::OfHead(permit) => self.of_head.push(permit),
            Shortcut::OfRequest(permit) => self.of_request.push(permit),
        }
    }

    fn finish(self) -> Permits {
        Permits {
            are_open: !self.are_closed,
            of_head: self.of_head.into(),
            of_request: self.of_request.into(),
        }
    }
}
