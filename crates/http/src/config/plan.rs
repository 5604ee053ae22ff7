//! The compiled form of the configuration's scopes: servers, and a plan for every scope.
//!
//! A plan holds, for one `server`, `location`, `if` or `limit_except`, the settings of each feature
//! in that scope and the handlers that modules have registered. Equal settings are shared between
//! plans.

use std::any::Any;
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use engine::net::Address;
use framework::network::DebugConnections;
use logs::ErrorLog;
use proto::method::Method;
use transport::listen::ListenerId;
use transport::resolver::Resolving;
use transport::tls::dynamic::Dynamic;
use transport::tls::server::ServerTls;
use variables::Table;

use crate::config::address::Binding;
use crate::config::core::{Core, ServerCore};
use crate::config::location::Locations;
use crate::config::types::Types;
use crate::files::open_file_cache::settings::OpenFileCache;
use crate::handshake::Handshake;
use crate::logging::zone_meter::CountedZones;
use crate::module::{
    AfterResponse, Check, OnRequestEnd, Permit, PermitResponse, PhaseHandler, Prebuilt, Recall,
    Script,
};
use crate::request::Request;
use crate::request::body::BodySettings;
use crate::response::chain::Link;
use crate::response::error_page::ErrorPages;
use crate::response::prebuilt::PrebuiltEncoding;
use crate::slots::PlanSlot;

/// The compiled form of one scope.
pub struct Plan {
    /// The plan's index among the plans of the generation (see [`Http::plan`](Http::plan)), and the
    /// key of per-thread caches.
    pub id: u32,
    /// The scope from which the plan was compiled.
    pub scope: conf::ScopeId,
    /// The location's name as written (a prefix, a regex, `@name`); empty for a server.
    pub name: Bytes,
    /// Whether the location was written with `=`.
    pub exact: bool,
    /// Whether the location was written as a regex.
    pub regex: bool,
    /// Whether this is a named location.
    pub named: bool,
    /// The value of `internal` in this scope.
    pub internal: bool,
    /// Locations nested in this one.
    pub locations: Locations,
    /// `limit_except`: the exempt methods, and the plan for all others.
    pub limit_except: Option<(Box<[Method]>, Arc<Plan>)>,
    /// Whether a URI that lacks only the final slash is redirected (`location /x/` with
    /// `proxy_pass`).
    pub auto_redirect: bool,
    /// The settings of nginx's core module.
    pub core: Arc<Core>,
    /// The settings for request bodies, such as `client_body_temp_path`.
    pub body: Arc<BodySettings>,
    /// Whether a directive of the scope sets a content handler.
    pub has_content: bool,
    /// The media types that `types` and `default_type` set.
    pub types: Arc<Types>,
    /// The value of `error_page` in this scope.
    pub error_pages: Arc<ErrorPages>,
    /// `open_file_cache` and its family.
    pub open_file_cache: Arc<OpenFileCache>,
    /// The resolver that `resolver` and `resolver_timeout` set up.
    pub resolving: Arc<Resolving>,
    /// The value of `error_log` in this scope.
    pub error_log: Arc<ErrorLog>,
    /// Whether prebuilt responses may answer for this plan: it has no scripts, no handler but
    /// static files, and no response header that differs per request.
    pub prebuilt: bool,
    /// The handlers that modules have registered.
    pub phases: Phases,
}

impl Plan {
    /// The value that a module keeps in the plan; `None` if the module has stored none.
    pub fn of<F: Send + Sync + 'static>(&self, slot: &PlanSlot<F>) -> Option<&F> {
        let kept = self.phases.kept.get(slot.number())?;
        kept.as_ref()?.downcast_ref()
    }
}

/// The handlers of a plan, by phase; each list in the order of execution.
pub struct Phases {
    /// The zones in which the plan's requests are counted.
    pub zones: CountedZones,
    /// Handlers that run as soon as the head of a main request has been read. Read from the
    /// server's plan.
    pub arrived: Box<[Arc<dyn PhaseHandler>]>,
    /// Scripts of the rewrite phase: of the server rewrite phase in a server's plan, else of the
    /// location's.
    pub scripts: Box<[Arc<dyn Script>]>,
    /// Scripts that run once the location is known, before the location's rewrite phase, for main
    /// requests and for subrequests.
    pub located: Box<[Arc<dyn Script>]>,
    /// `uninitialized_variable_warn`: whether reading a variable that no script has set is logged.
    pub warns_unset: bool,
    /// Scripts that run once the request's plan is known, before all other phases.
    pub prepared: Box<[Arc<dyn Script>]>,
    /// Callbacks that run in the log phase.
    pub endings: Box<[Arc<dyn OnRequestEnd>]>,
    /// Whether one of `endings` may read the response's head.
    pub endings_read_response: bool,
    /// Callbacks that run after the response of a main request.
    pub after: Box<[Arc<dyn AfterResponse>]>,
    /// The preaccess phase.
    pub preaccess: Box<[Arc<dyn PhaseHandler>]>,
    /// The checks of the access phase; for main requests only.
    pub access: Box<[Arc<dyn Check>]>,
    /// The precontent phase.
    pub precontent: Box<[Arc<dyn PhaseHandler>]>,
    /// The content handler; without one, static files are served.
    pub content: Option<Arc<dyn PhaseHandler>>,
    /// Answers requests from responses that the content handler keeps in memory.
    pub recall: Option<Arc<dyn Recall>>,
    /// Handlers that map URIs to files and directories.
    pub files: Box<[Arc<dyn PhaseHandler>]>,
    /// Whether methods other than GET, HEAD and POST act on files, such as PUT, so that bodies are
    /// read.
    pub changes_files: bool,
    /// The head filters that responses pass.
    pub filters: Box<[Link]>,
    /// The values that modules keep in the plan, by the numbers of their slots.
    pub kept: Box<[Option<Arc<dyn Any + Send + Sync>>]>,
    /// Whether every plain request gets the same response, which is sent before any other handler
    /// runs.
    pub answers_constantly: bool,
    /// The permits for prebuilt responses in this scope.
    pub shortcuts: Permits,
    /// The permits for prebuilt responses of handlers that run before the location is known. Read
    /// from the server's plan, not the location's.
    pub shortcuts_of_server: Permits,
}

/// The modules' permits for prebuilt responses.
#[derive(Default)]
pub struct Permits {
    /// Whether no module forbids prebuilt responses.
    pub are_open: bool,
    /// Permits that depend only on the head, so that they are asked once per head.
    pub of_head: Box<[Arc<dyn Permit>]>,
    /// Permits that are asked for each request.
    pub of_request: Box<[Arc<dyn Permit>]>,
    /// Permits that depend on the prebuilt response, and choose its encoding.
    pub of_response: Box<[Arc<dyn PermitResponse>]>,
}

impl Permits {
    /// Whether a prebuilt response may answer this head, by all permits that only depend on the
    /// head.
    pub fn permit_head(&self, request: &Request) -> bool {
        self.are_open && self.of_head.iter().all(|permit| permit.permits(request))
    }

    /// How this prebuilt response may be encoded for the request. `None` if a module forbids its
    /// use, or if two modules would encode it.
    pub fn permit_response(
        &self,
        request: &Request,
        response: Prebuilt<'_>,
    ) -> Option<PrebuiltEncoding> {
        let mut encoding = PrebuiltEncoding::Identity;
        for permit in &self.of_response {
            match (permit.encoding(request, response)?, encoding) {
                (PrebuiltEncoding::Identity, _) => {}
                (encoded, PrebuiltEncoding::Identity) => encoding = encoded,
                (PrebuiltEncoding::Encoded(_), PrebuiltEncoding::Encoded(_)) => return None,
            }
        }
        Some(encoding)
    }

    /// Whether a prebuilt response may answer this request.
    pub fn permit_request(&self, request: &Request) -> bool {
        self.of_request.iter().all(|permit| permit.permits(request))
    }
}

/// One virtual server of the block `http`.
pub struct Server {
    /// The primary name, for `$server_name` and redirects.
    pub name: Bytes,
    /// The server's own plan, whose scripts are those of the server rewrite phase.
    pub plan: Arc<Plan>,
    /// The named locations of the server.
    pub named: Map<Bytes, Arc<Plan>>,
    /// Settings that apply to a connection or a request's head.
    pub core: Arc<ServerCore>,
    /// Whether any location accepts CONNECT. If none does, CONNECT is refused before the phases.
    pub allows_connect: bool,
    /// The server's TLS settings; `None` if it has no certificate.
    pub tls: Option<Arc<ServerTls>>,
    /// The server's certificates, if their names have variables.
    pub certificates: Option<Arc<Dynamic<Handshake>>>,
    /// `ssl_verify_client`: what the server demands of the client's certificate. The handshake may
    /// have used the settings of another server.
    pub verify_client: Option<transport::tls::verify::Mode>,
}

/// The compiled `http` block.
#[derive(Default)]
pub struct Http {
    pub(crate) bindings: Vec<Binding>,
    pub(crate) plans: Vec<Arc<Plan>>,
    /// All variables, by their index.
    pub variables: Table<Request>,
    /// The variables that handshakes may use.
    pub of_handshakes: Table<Handshake>,
    /// `response_memory`, in bytes.
    pub response_memory: usize,
    /// `debug_connection`: the clients whose connections are logged at debug level.
    pub debug_connections: Arc<DebugConnections>,
}

impl Http {
    /// The plan with this number (see [`Plan::id`]).
    pub fn plan(&self, id: u32) -> &Plan {
        self.shared_plan(id)
    }

    /// The plan with this number as a shared pointer, for callers that keep it.
    pub fn shared_plan(&self, id: u32) -> &Arc<Plan> {
        &self.plans[id as usize] // invariant: a plan's number is its index
    }

    /// The binding of a listening socket; `None` if this configuration does not have it.
    pub fn binding(&self, id: &ListenerId) -> Option<&Binding> {
        self.bindings.iter().find(|binding| binding.id == *id)
    }

    /// All listening addresses, each with the identity of the socket that accepts its connections.
    /// Several addresses may share a socket.
    pub fn addresses(&self) -> Vec<(ListenerId, Address)> {
        let of = |binding: &Binding| {
            let own = std::iter::once(&binding.options.address);
            let shared = binding.specific.iter().map(|(address, _)| address);
            let all = own.chain(shared).cloned();
            all.map(|address| (binding.id.clone(), address))
                .collect::<Vec<_>>()
        };
        self.bindings.iter().flat_map(of).collect()
    }
}
