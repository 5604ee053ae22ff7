//! What scopes of the configuration compile to: servers, and a plan for every scope.
//!
//! A plan holds, for one `server`, `location`, `if` or `limit_except`, each feature's settings
//! as that scope sees them, and what modules do there; equal settings are shared between plans.

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
use crate::module::{
    After, Check, Handle, OnRequestBegin, OnRequestEnd, Permit, PermitResponse, Prebuilt, Recall,
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
    /// Its place among the generation's plans (see [`Http::plan`](Http::plan)), and the key of
    /// per-thread caches.
    pub id: u32,
    /// The scope that it was compiled of.
    pub scope: conf::ScopeId,
    /// The location's name as written (a prefix, a regex, `@name`); empty for a server.
    pub name: Bytes,
    /// Whether the location was written with `=`.
    pub exact: bool,
    /// Whether the location was written as a regex.
    pub regex: bool,
    /// Whether this is a named location.
    pub named: bool,
    /// What the directive `internal` says in this scope.
    pub internal: bool,
    /// Locations nested in this one.
    pub locations: Locations,
    /// `limit_except`: the methods it leaves alone, and the plan for all others.
    pub limit_except: Option<(Box<[Method]>, Arc<Plan>)>,
    /// Adds a slash by redirect where the URI lacks only that (`location /x/` with `proxy_pass`).
    pub auto_redirect: bool,
    /// Directives of nginx's core module.
    pub core: Arc<Core>,
    /// What the directive `client_body_temp_path` says in this scope.
    pub body: Arc<BodySettings>,
    /// Whether a directive says what answers here.
    pub has_content: bool,
    /// The types that `types` and `default_type` give.
    pub types: Arc<Types>,
    /// What the directive `error_page` says in this scope.
    pub error_pages: Arc<ErrorPages>,
    /// `open_file_cache` and its family.
    pub open_file_cache: Arc<OpenFileCache>,
    /// The resolver that `resolver` and `resolver_timeout` set up.
    pub resolving: Arc<Resolving>,
    /// What the directive `error_log` says in this scope.
    pub error_log: Arc<ErrorLog>,
    /// Whether a complete response prepared in memory may answer for this plan: no script, no
    /// handler but files, nothing per request in the response's head.
    pub prebuilt: bool,
    /// What modules have to do here.
    pub phases: Phases,
}

impl Plan {
    /// What a module has kept in the plan; `None` where it has nothing to do.
    pub fn of<F: Send + Sync + 'static>(&self, slot: &PlanSlot<F>) -> Option<&F> {
        let kept = self.phases.kept.get(slot.number())?;
        kept.as_ref()?.downcast_ref()
    }
}

/// What modules have registered with a plan; each list in the order in which it runs.
pub struct Phases {
    /// What notes main requests that have begun; of the server's plan.
    pub beginnings: Box<[Arc<dyn OnRequestBegin>]>,
    /// As soon as the head of a main request has been read; of the server's plan.
    pub arrived: Box<[Arc<dyn Handle>]>,
    /// The rewrite phase: the server's where the plan is one's, else the location's.
    pub scripts: Box<[Arc<dyn Script>]>,
    /// Whether it is worth a warning that a variable is read before a script has set it.
    pub warns_unset: bool,
    /// What changes a request once its plan is found.
    pub prepared: Box<[Arc<dyn Script>]>,
    /// What notes requests that have ended.
    pub endings: Box<[Arc<dyn OnRequestEnd>]>,
    /// Whether that may tell of responses' heads.
    pub endings_read_response: bool,
    /// What is done with main requests after their responses.
    pub after: Box<[Arc<dyn After>]>,
    /// Once the plan is found, before it is asked who the client is.
    pub preaccess: Box<[Arc<dyn Handle>]>,
    /// Who may have what the plan gives; of main requests alone.
    pub access: Box<[Arc<dyn Check>]>,
    /// Once the client has been let in, before what answers.
    pub precontent: Box<[Arc<dyn Handle>]>,
    /// What answers; where there is none, files do.
    pub content: Option<Arc<dyn Handle>>,
    /// What gives those of its answers at once that it has in memory.
    pub recall: Option<Arc<dyn Recall>>,
    /// What may answer with a file or a folder.
    pub files: Box<[Arc<dyn Handle>]>,
    /// Requests of any method are about files, and their bodies are waited for.
    pub changes_files: bool,
    /// The head filters that responses pass.
    pub filters: Box<[Link]>,
    /// What modules have kept, by the numbers of their slots.
    pub kept: Box<[Option<Arc<dyn Any + Send + Sync>>]>,
    /// Whether every plain request gets the same answer here, which is sent before anything else
    /// looks at it.
    pub answers_constantly: bool,
    /// Whether prebuilt responses may answer here.
    pub shortcuts: Permits,
    /// Whether what runs before the location is known permits prebuilt responses. Read from the
    /// server's plan, whatever the location's says.
    pub shortcuts_of_server: Permits,
}

/// What modules say of prebuilt responses.
#[derive(Default)]
pub struct Permits {
    /// No module says that there must be none.
    pub are_open: bool,
    /// Who is asked once a head.
    pub of_head: Box<[Arc<dyn Permit>]>,
    /// Who is asked every time.
    pub of_request: Box<[Arc<dyn Permit>]>,
    /// Who is asked of the response that there is.
    pub of_response: Box<[Arc<dyn PermitResponse>]>,
}

impl Permits {
    /// Whether one may answer this head, as far as that is all there is to look at.
    pub fn permit_head(&self, request: &Request) -> bool {
        self.are_open && self.of_head.iter().all(|permit| permit.permits(request))
    }

    /// How this one may answer the request, if it may. Of two that would encode it neither knows
    /// what comes of the other.
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

    /// Whether one may answer this very request.
    pub fn permit_request(&self, request: &Request) -> bool {
        self.of_request.iter().all(|permit| permit.permits(request))
    }
}

/// One virtual server of the block `http`.
pub struct Server {
    /// The primary name, for `$server_name` and redirects.
    pub name: Bytes,
    /// The server's own plan; its script is the server rewrite phase.
    pub plan: Arc<Plan>,
    /// The named locations of the server.
    pub named: Map<Bytes, Arc<Plan>>,
    /// Directives that hold for a connection or a request's head.
    pub core: Arc<ServerCore>,
    /// Whether anything in it answers CONNECT, which is refused elsewhere before any of it is
    /// asked.
    pub allows_connect: bool,
    /// TLS as it wants it; `None` where it has no certificate.
    pub tls: Option<Arc<ServerTls>>,
    /// Its certificates, where their names hold variables.
    pub certificates: Option<Arc<Dynamic<Handshake>>>,
    /// `ssl_verify_client`: what its requests must have shown, under whatever settings hands were
    /// shaken.
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
    /// `debug_connection`: whose connections are logged in every detail.
    pub debug_connections: Arc<DebugConnections>,
}

impl Http {
    /// The plan of a number, as [`Plan::id`] gives it.
    pub fn plan(&self, id: u32) -> &Plan {
        self.shared_plan(id)
    }

    /// The plan of a number as a shared pointer, for callers that keep it.
    pub fn shared_plan(&self, id: u32) -> &Arc<Plan> {
        &self.plans[id as usize] // invariant: plans are numbered by their places
    }

    /// What is behind a listening socket; `None` where this configuration does not have it.
    pub fn binding(&self, id: &ListenerId) -> Option<&Binding> {
        self.bindings.iter().find(|binding| binding.id == *id)
    }

    /// Every address that is listened on with the socket that takes its connections: some share a
    /// socket with another.
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
