//! Compiles the `http` block into servers and plans.
//!
//! The compiler walks the tree of scopes: every `server`, `location`, `if` and `limit_except`
//! becomes a [`Plan`]. Modules register their handlers for each scope; the caller passes the list
//! of modules.

use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word};
use framework::compile::Compiler;
use framework::places::FileAccess;
use proto::method::Method;
use rules::server_name::{self, ServerNamePattern};
use transport::listen::ProtocolAgreement;
use transport::tls::settings::{self, TlsSettings};

use crate::config::address::{self, AddressGroup};
use crate::config::core::{Core, ServerCore};
use crate::config::listen::{self, LISTEN, Listen};
use crate::config::location::{LocationName, Locations, Prefix};
use crate::config::plan::{Http, Phases, Plan, Server};
use crate::config::plan_builder::PlanBuilder;
use crate::config::{tables, temporary_paths};
use crate::handshake::{self, Handshake};
use crate::logging;
use crate::module::{Content, Entry};
use crate::request::body;
use crate::request::{Regex, Request};
use crate::response::memory::RESPONSE_MEMORY;
use crate::variables::Table;

static HTTP: Setting<()> = Setting::new("http", &["{ ... }"], nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::HTTP)
    .inherit(Inherit::Never)
    .manual("The block of everything HTTP.");

static SERVER: Setting<()> = Setting::new("server", &["{ ... }"], nothing)
    .contexts(Contexts::HTTP)
    .block()
    .opens(Contexts::SERVER)
    .manual("A virtual server.");

static LOCATION: Setting<()> =
    Setting::new("location", &["[= | ~ | ~* | ^~] uri { ... }", "@name { ... }"], location_line)
        .contexts(Contexts::SERVER.or(Contexts::LOCATION))
        .arity(Arity::between(1, 2))
        .block()
        .opens(Contexts::LOCATION)
        .manual("Settings for a part of the URIs: an exact path (=), the longest prefix, or the first regex (~, ~* without regard to case); ^~ is a prefix that no regex overrides; @name is only reached by redirects within the server.");

static LIMIT_EXCEPT: Setting<()> =
    Setting::new("limit_except", &["method ... { ... }"], |setter| {
        methods(setter.args()).map(|_| ())
    })
    .contexts(Contexts::LOCATION)
    .arity(Arity::at_least(1))
    .block()
    .opens(Contexts::LIMIT_EXCEPT)
    .inherit(Inherit::Never)
    .manual("Settings for all methods but the ones named; GET stands for HEAD too.");

static INTERNAL: Setting<()> = Setting::new("internal", &[""], nothing)
    .contexts(Contexts::LOCATION)
    .arity(Arity::none())
    .manual("The location, and every location nested in it, is only reached by redirects within the server and by subrequests.");

/// The directives of this file.
pub const DIRECTIVES: &[&dyn Declared] =
    &[&HTTP, &SERVER, &LOCATION, &LIMIT_EXCEPT, &INTERNAL, &LISTEN];

/// Accepts every line of a block directive, since the block is compiled elsewhere.
fn nothing(_: &Setter<'_>) -> Result<(), Fault> {
    Ok(())
}

fn location_line(setter: &Setter<'_>) -> Result<(), Fault> {
    setter
        .lines()
        .iter()
        .try_for_each(|line| LocationName::parse(line).map(|_| ()))
}

/// Compiles the `http` block; `None` if there were errors, which have been reported. A
/// configuration without the block is no error: HTTP then serves nothing.
pub fn http(
    compiler: &Compiler<'_>,
    root: ScopeRef<'_>,
    features: &'static [Entry],
) -> Option<Http> {
    let mut builder = Builder {
        compiler,
        features,
        plans: Vec::new(),
        answers_connect: false,
    };
    let mut gathered: Vec<AddressGroup> = Vec::new();
    let mut whole = true;
    temporary_paths::add(compiler, &body::TEMPORARY_PATH);
    let surveys = features.iter().filter_map(|entry| entry.survey);
    surveys.for_each(|survey| survey(compiler, root));
    settings::check_passwords(compiler, root, &settings::PASSWORD_FILE);
    temporary_paths::check(compiler, root);
    let mut response_memory = 0;
    for scope in root.children("http") {
        match scope.get(&RESPONSE_MEMORY) {
            Ok(size) => response_memory = usize::try_from(size).unwrap_or(usize::MAX),
            Err(fault) => {
                compiler.report(fault);
                whole = false;
            }
        }
        // Modules are called from the end of the list, as everywhere else.
        let prepare = features.iter().rev().filter_map(|entry| entry.prepare);
        prepare.for_each(|prepare| prepare(compiler, scope));
        whole &= logging::access::check(compiler, scope).is_ok();
        whole &= logging::access::open_written(compiler, scope).is_some();
        for server in scope.children("server") {
            whole &= builder.server(server, &mut gathered).is_some();
        }
        handshake::compile(compiler, scope);
    }
    for address in address::in_order(&gathered) {
        if address.is_name_significant() {
            for conflict in &address.conflicts {
                compiler.warn_each_time(conflict.clone(), None);
            }
        }
    }
    for address in &gathered {
        whole &= check_certificates(compiler, address).is_some();
    }
    for http in root.children("http") {
        let has_table = |address: &AddressGroup| {
            address.is_name_significant() && address.names.has_other_than_patterns()
        };
        if gathered.iter().any(has_table)
            && let Err(fault) = server_name::check_table(http)
        {
            compiler.report(fault);
            whole = false;
        }
    }
    let http = Http {
        plans: builder.plans,
        variables: Table::default(),
        of_handshakes: Default::default(),
        response_memory,
        debug_connections: Arc::default(),
        bindings: address::bindings(gathered),
    };
    whole.then_some(http)
}

/// The walk over the scopes of the `http` block.
struct Builder<'c, 'f> {
    compiler: &'c Compiler<'f>,
    features: &'static [Entry],
    /// The compiled plans, by number.
    plans: Vec<Arc<Plan>>,
    /// Whether any location of the current server accepts CONNECT.
    answers_connect: bool,
}

/// The parts of a plan that depend on the kind of its block.
#[derive(Default)]
struct Kind {
    /// The location's name as written; empty for a server.
    name: Bytes,
    /// Whether the location was written with `=`.
    exact: bool,
    /// Whether the location was written as a regex.
    regex: bool,
    /// Whether this is a named location.
    named: bool,
    /// The locations nested in the scope.
    locations: Locations,
    /// The methods that `limit_except` exempts, and the plan for all others.
    limit_except: Option<(Box<[Method]>, Arc<Plan>)>,
    /// The content handler of the scope around an `if` or `limit_except`.
    outer_content: Option<Content>,
}

impl Builder<'_, '_> {
    /// Compiles a server and adds it to its addresses.
    fn server(&mut self, scope: ScopeRef<'_>, gathered: &mut Vec<AddressGroup>) -> Option<()> {
        self.answers_connect = false;
        // Every part is compiled even if another has failed, so that one run reports all errors.
        let mut named = Map::default();
        let locations = self.locations(scope, None, &mut named);
        let core = self.compiler.feature_or_report::<ServerCore>(scope);
        let tls = self
            .compiler
            .feature_or_report::<TlsSettings<Handshake>>(scope);
        for text in tls.iter().flat_map(|tls| &tls.warnings) {
            self.compiler.warn_each_time(text.clone(), None);
        }
        let listens = listen::of_server(self.compiler, scope)
            .map_err(|fault| self.compiler.report(fault))
            .ok();
        let first = listens.as_ref().and_then(|listens| listens.first());
        let names =
            server_name::of_server(self.compiler, scope, first.map(|one| &one.options.address))
                .map_err(|fault| self.compiler.report(fault))
                .ok();
        if locations.is_none() {
            self.report_all(scope);
        }
        let kind = Kind {
            locations: locations?,
            ..Kind::default()
        };
        let content = self.content(scope)?;
        let plan = self.plan(scope, content, kind)?;
        let (names, tls) = (names?, tls?);
        let server = Arc::new(Server {
            name: names
                .first()
                .map(|(text, _)| text.clone())
                .unwrap_or_default(),
            plan,
            named,
            core: core?,
            allows_connect: self.answers_connect,
            tls: tls.server.clone(),
            certificates: tls.certificates.clone(),
            verify_client: tls.verify_client,
        });
        let listens = listens?;
        let position = scope.line().map(|line| line.position);
        for listen in listens {
            self.gather(&listen, &server, position, &names, gathered)?;
        }
        Some(())
    }

    /// Adds a server to one of its addresses.
    fn gather(
        &self,
        listen: &Listen,
        server: &Arc<Server>,
        position: Option<conf::Position>,
        names: &[(Bytes, ServerNamePattern<Request>)],
        gathered: &mut Vec<AddressGroup>,
    ) -> Option<()> {
        let address = &listen.options.address;
        let at = match gathered
            .iter()
            .position(|g| g.listen.options.address == *address)
        {
            Some(at) => {
                let known = gathered.get_mut(at)?;
                if listen.set && known.listen.set {
                    let text = format!("duplicate listen options for {address}");
                    self.compiler.report(listen.fault(text));
                    return None;
                }
                if listen.own.default_server && known.listen.own.default_server {
                    let text = format!("a duplicate default server for {address}");
                    self.compiler.report(listen.fault(text));
                    return None;
                }
                if !known
                    .agreement
                    .take(&known.listen, listen, |own| own.protocols)
                {
                    let text = format!("protocol options redefined for {address}");
                    let position = listen.word.as_ref().map(|word| word.position);
                    self.compiler
                        .diagnose(conf::Diagnostic::warn(text, position));
                }
                let protocols = known.listen.own.protocols.or(listen.own.protocols);
                if listen.set {
                    let default_server = known.listen.own.default_server;
                    known.listen = listen.clone();
                    known.listen.own.default_server = default_server;
                }
                known.listen.own.protocols = protocols;
                if listen.own.default_server {
                    known.default = Arc::clone(server);
                    known.listen.own.default_server = true;
                }
                at
            }
            None => {
                gathered.push(AddressGroup {
                    listen: listen.clone(),
                    default: Arc::clone(server),
                    names: Default::default(),
                    agreement: ProtocolAgreement::default(),
                    servers: Vec::new(),
                    conflicts: Vec::new(),
                });
                gathered.len() - 1
            }
        };
        let known = gathered.get_mut(at)?;
        known.servers.push((Arc::clone(server), position));
        for (text, name) in names {
            if !known.names.add(name.clone(), server) {
                known.conflicts.push(name.conflict(text, address));
            }
        }
        Some(())
    }

    /// Compiles the locations of a scope, nested ones included.
    fn locations(
        &mut self,
        scope: ScopeRef<'_>,
        outer: Option<&LocationName>,
        named: &mut Map<Bytes, Arc<Plan>>,
    ) -> Option<Locations> {
        let (mut exact, mut prefixes, mut regexes) = (Vec::new(), Vec::new(), Vec::new());
        let mut whole = true;
        for inner in scope.children("location") {
            let Some(line) = inner.line() else { continue };
            let made = LocationName::parse(line)
                .and_then(|name| check_nesting(outer, &name, line).map(|()| name))
                .and_then(|name| {
                    let duplicate = match &name {
                        LocationName::Exact(n) => exact.iter().any(|(known, _)| known == n),
                        LocationName::Prefix { name: n, .. } => {
                            prefixes.iter().any(|p: &Prefix| p.name == *n)
                        }
                        // As in nginx, a second location with the same name is no error here; the
                        // first is found.
                        LocationName::Named(_) | LocationName::Regex { .. } => false,
                    };
                    if duplicate {
                        Err(Fault::at(
                            &line.name,
                            format!("duplicate location \"{}\"", name.text()),
                        ))
                    } else {
                        Ok(name)
                    }
                });
            let name = match made {
                Ok(name) => name,
                Err(fault) => {
                    self.compiler.report(fault);
                    whole = false;
                    continue;
                }
            };
            let Some((plan, regex)) = self.location(inner, &name, named) else {
                whole = false;
                continue;
            };
            match name {
                LocationName::Exact(name) => exact.push((name, plan)),
                LocationName::Prefix { name, no_regex } => prefixes.push(Prefix {
                    name,
                    no_regex,
                    plan,
                }),
                LocationName::Regex { .. } => regexes.extend(regex.map(|regex| (regex, plan))),
                LocationName::Named(name) => {
                    named.entry(name).or_insert(plan);
                }
            }
        }
        whole.then(|| Locations::new(exact, prefixes, regexes))
    }

    /// Compiles a location: its plan, and its regex if it has one.
    fn location(
        &mut self,
        scope: ScopeRef<'_>,
        name: &LocationName,
        named: &mut Map<Bytes, Arc<Plan>>,
    ) -> Option<(Arc<Plan>, Option<Arc<Regex>>)> {
        let regex = match name {
            LocationName::Regex {
                pattern,
                caseless,
                word,
            } => match Regex::of_list(self.compiler, pattern, *caseless) {
                Ok(regex) => Some(Arc::new(regex)),
                Err(fault) => {
                    self.compiler.report(fault.or_at(word.position));
                    return None;
                }
            },
            _ => None,
        };
        let (locations, content) = (
            self.locations(scope, Some(name), named),
            self.content(scope),
        );
        if locations.is_none() || content.is_none() {
            self.report_all(scope);
        }
        let (locations, content) = (locations?, content?);
        let limit_except = match scope.children("limit_except").next() {
            Some(inner) => Some(self.limit_except(inner, content.clone())?),
            None => None,
        };
        let kind = Kind {
            name: name.text().into(),
            exact: matches!(name, LocationName::Exact(_)),
            regex: regex.is_some(),
            named: matches!(name, LocationName::Named(_)),
            locations,
            limit_except,
            ..Kind::default()
        };
        Some((self.plan(scope, content, kind)?, regex))
    }

    fn limit_except(
        &mut self,
        scope: ScopeRef<'_>,
        content: Option<Content>,
    ) -> Option<(Box<[Method]>, Arc<Plan>)> {
        let args = scope
            .line()
            .map(|line| line.args.as_slice())
            .unwrap_or_default();
        let allowed = methods(args)
            .map_err(|fault| self.compiler.report(fault))
            .ok()?;
        let kind = Kind {
            outer_content: content.filter(|content| content.inherited_by_limit_except),
            ..Kind::default()
        };
        let own = self.content(scope)?;
        Some((allowed, self.plan(scope, own, kind)?))
    }

    /// The content handler that the scope itself declares. As in nginx, the last of several lines
    /// wins; all are compiled, so that errors in each are reported.
    fn content(&mut self, scope: ScopeRef<'_>) -> Option<Option<Content>> {
        let (mut chosen, mut is_whole) = (None, true);
        let mut answers_connect = false;
        for line in scope.lines().iter().rev() {
            let makers = self.features.iter().filter_map(|entry| entry.content);
            for (_, make) in makers.filter(|(directive, _)| line.is(directive)) {
                match make(self.compiler, scope) {
                    Ok(made) => {
                        answers_connect |= made.as_ref().is_some_and(|made| made.answers_connect);
                        chosen = chosen.or(made);
                    }
                    Err(fault) => {
                        self.compiler.report(fault);
                        is_whole = false;
                    }
                }
            }
        }
        self.answers_connect |= answers_connect;
        is_whole.then_some(chosen)
    }

    /// Compiles the plan of a scope with its own content handler and with each feature's settings
    /// in the scope.
    fn plan(&mut self, scope: ScopeRef<'_>, own: Option<Content>, kind: Kind) -> Option<Arc<Plan>> {
        let plan = self.whole_plan(scope, own, kind);
        if plan.is_none() {
            self.report_all(scope);
        }
        plan
    }

    /// Reports all faults of a scope whose plan could not be compiled, since the compilation stops
    /// at the first.
    fn report_all(&self, scope: ScopeRef<'_>) {
        fn look<F: framework::compile::Feature>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
            let _ = compiler.feature_or_report::<F>(scope);
        }
        macro_rules! look_at {
            ($($feature:ty),* $(,)?) => {
                $(look::<$feature>(self.compiler, scope);)*
            };
        }
        look_at!(
            Core,
            crate::request::body::BodySettings,
            crate::config::types::Types,
            crate::response::error_page::ErrorPages,
            transport::resolver::Resolving,
            logs::ErrorLog,
        );
        let mut plan_of = |_: ScopeRef<'_>| None;
        let plan = PlanBuilder::new(self.compiler, scope, &mut plan_of);
        register_all(plan, self.features, None);
    }

    /// Compiles the plan of a scope; `None` at the first fault, which has been reported.
    fn whole_plan(
        &mut self,
        scope: ScopeRef<'_>,
        own: Option<Content>,
        kind: Kind,
    ) -> Option<Arc<Plan>> {
        let compiler = self.compiler;
        let adds_slash = own.as_ref().is_some_and(|content| content.adds_slash);
        let auto_redirect = adds_slash && kind.name.ends_with(b"/") && !kind.regex;
        let content = own.or(kind.outer_content);
        if let Err(fault) = tables::check_of_plan(scope) {
            compiler.report(fault);
            return None;
        }
        let phases = self.phases(scope, content.as_ref(), &kind.name)?;
        let mut plan = Plan {
            id: 0,
            scope: scope.id(),
            name: kind.name,
            exact: kind.exact,
            regex: kind.regex,
            named: kind.named,
            internal: matches!(scope.written(&INTERNAL), Ok(Some(()))),
            locations: kind.locations,
            limit_except: kind.limit_except,
            has_content: content.is_some(),
            auto_redirect,
            core: compiler.feature_or_report::<Core>(scope)?,
            body: compiler.feature_or_report(scope)?,
            types: compiler.feature_or_report(scope)?,
            error_pages: compiler.feature_or_report(scope)?,
            open_file_cache: compiler.feature_or_report(scope)?,
            resolving: compiler.feature_or_report(scope)?,
            error_log: compiler.feature_or_report(scope)?,
            prebuilt: false,
            phases,
        };
        let access = if plan.phases.changes_files {
            FileAccess::Write
        } else {
            FileAccess::Read
        };
        plan.core.root.will_be_opened(compiler, access);
        plan.prebuilt = crate::response::prebuilt::answering::suits(&plan);
        // Plans of inner scopes have been compiled by now.
        plan.id = self.plans.len() as u32;
        let plan = Arc::new(plan);
        self.plans.push(Arc::clone(&plan));
        Some(plan)
    }

    /// Lets the modules register their handlers for a scope. An `if` block inside becomes a plan of
    /// its own.
    fn phases(
        &mut self,
        scope: ScopeRef<'_>,
        content: Option<&Content>,
        name: &Bytes,
    ) -> Option<Phases> {
        let (compiler, features) = (self.compiler, self.features);
        let mut plan_of = |inner: ScopeRef<'_>| {
            let kind = Kind {
                name: name.clone(),
                outer_content: content.cloned(),
                ..Kind::default()
            };
            let own = self.content(inner)?;
            self.plan(inner, own, kind)
        };
        let plan = PlanBuilder::new(compiler, scope, &mut plan_of);
        register_all(plan, features, content)
    }
}

/// Lets every module register with a plan. A fault does not stop the loop, so that all faults are
/// reported.
fn register_all(
    mut plan: PlanBuilder<'_>,
    features: &[Entry],
    content: Option<&Content>,
) -> Option<Phases> {
    let mut is_whole = true;
    for entry in features {
        is_whole &= plan.register(entry).is_some();
    }
    is_whole.then(|| plan.finish(content))
}

/// Checks that every TLS client of an address can be served: the default server has a certificate,
/// or it refuses handshakes and every other server refuses them or has a certificate.
fn check_certificates(compiler: &Compiler<'_>, address: &AddressGroup) -> Option<()> {
    let tls = |server: &Arc<Server>| server.tls.as_ref().map(|tls| tls.has_certificate);
    if !address.listen.own.protocols.ssl || tls(&address.default) == Some(true) {
        return Some(());
    }
    let rejects = tls(&address.default).is_some();
    let without = address.servers.iter().find(|(server, _)| {
        if rejects {
            tls(server).is_none()
        } else {
            Arc::ptr_eq(server, &address.default)
        }
    });
    let Some((_, position)) = without else {
        return Some(());
    };
    let place = position.map(|position| position.to_string());
    let place = place.unwrap_or_default();
    // The message already contains the position, as in nginx.
    compiler.report(Fault::new(format!(
        "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in {place}"
    )));
    None
}

/// nginx's rules for locations inside locations.
fn check_nesting(
    outer: Option<&LocationName>,
    inner: &LocationName,
    line: &Line,
) -> Result<(), Fault> {
    let Some(outer) = outer else { return Ok(()) };
    let fault = |text: String| Err(Fault::at(&line.name, text).while_reading());
    match (outer, inner) {
        (LocationName::Exact(name), _) => fault(format!(
            "location \"{}\" cannot be inside the exact location \"{}\"",
            inner.text(),
            String::from_utf8_lossy(name)
        )),
        (LocationName::Named(name), _) => fault(format!(
            "location \"{}\" cannot be inside the named location \"{}\"",
            inner.text(),
            String::from_utf8_lossy(name)
        )),
        (_, LocationName::Named(name)) => fault(format!(
            "named location \"{}\" can be on the server level only",
            String::from_utf8_lossy(name)
        )),
        // As in nginx, the prefix is also compared with the text of an outer regular expression.
        (_, LocationName::Prefix { name, .. } | LocationName::Exact(name))
            if !name.starts_with(outer.bytes()) =>
        {
            fault(format!(
                "location \"{}\" is outside location \"{}\"",
                inner.text(),
                outer.text()
            ))
        }
        _ => Ok(()),
    }
}

/// The methods of `limit_except`; GET includes HEAD.
fn methods(args: &[Word]) -> Result<Box<[Method]>, Fault> {
    let mut methods = Vec::with_capacity(args.len() + 1);
    for word in args {
        let name = word.bytes.to_ascii_uppercase();
        match Method::from_name(&name) {
            Method::Other => {
                return Err(Fault::at(
                    word,
                    format!("invalid method \"{}\"", word.text()),
                ));
            }
            Method::Get => methods.extend([Method::Get, Method::Head]),
            method => methods.push(method),
        }
    }
    Ok(methods.into())
}
