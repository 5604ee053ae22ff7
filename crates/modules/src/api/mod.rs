//! `api`: the state of the server and its groups of servers, read and changed by requests, as NGINX
//! Plus documents it.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html>, versions 4 to 9. `endpoint` parses
//! paths, `show` writes objects with the requested fields. The other files each have one kind of
//! state: `server`, `workers`, `certificates`, `caches`, `resolvers`, `upstreams`, and `zones` and
//! `limits`, which count requests. `members` changes servers of groups, `keyvals` key-value pairs.
//! `protection` decides who may do so. `failure` has the error responses. Described in docs/api.md.

mod caches;
mod certificates;
mod endpoint;
mod failure;
mod keyvals;
mod limits;
mod members;
mod protection;
mod resolvers;
mod server;
mod show;
mod upstreams;
mod workers;
mod zones;

use std::sync::Arc;

use base::json;
use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, ScopeRef, Setter, Setting, Template,
    Word,
};
use engine::xdp;
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use framework::zone::SIZE_MIN;
use http::config::location::LocationName;
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{Content, MaybeFuture, PhaseHandler, Shortcut, ShortcutDoc};
use http::request::body::reading;
use http::request::interrupt::Interrupt;
use http::request::{Request, Step, Text};
use http::response::output;
use http::response::source::Body;
use http::slots::PlanSlot;
use http::variables::Compiling as _;
use proto::method::Method;
use proxying::cache::numbers;

use crate::metrics::queues;

use self::endpoint::{Endpoint, RequestedEndpoint, UpstreamSelector, VERSIONS};
use self::failure::ApiError;
use self::members::MemberPatch;
use self::protection::Protection;
use self::server::{CountersSnapshot, LoadTime, RESETS, Resets};
use self::show::Fields;

/// Declares the directive `api [write=on|off]`.
pub static API: Setting<bool> = Setting::new("api", &["[write=on | write=off]"], writes)
    .contexts(Contexts::LOCATION)
    .arity(Arity::between(0, 1))
    .inherit(Inherit::Handler)
    .manual(
        "Answers requests below this location by the API of NGINX Plus, versions 4 to 9: what the server does, and how the servers of \
         its groups do, as JSON. With `write=on` servers of groups with a `zone` are added, changed and removed by POST, PATCH and \
         DELETE, and counters are reset; changes outlive a reload where the group has a `state` file. A change is refused (403) \
         unless something protects the location: `deny all`, `auth_basic`, `auth_request`, `ssl_verify_client on`, an address of \
         loopback or a Unix socket; and where a page of another site asks for it. `Host` must be an address, `localhost` or a name of \
         `server_name`. Each change is a line of the error log at notice. See docs/api.md.",
    );

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[&API, &zones::STATUS_ZONE];

/// The directive that enables the API.
const ANSWERS: &[&dyn Declared] = &[&API];

fn writes(setter: &Setter<'_>) -> Result<bool, Fault> {
    match setter.args() {
        [] => Ok(false),
        [word, ..] => match &*word.bytes {
            b"write=on" => Ok(true),
            b"write=off" => Ok(false),
            _ => Err(Fault::invalid_parameter(word)),
        },
    }
}

/// Whether the configuration contains a directive that shows the counters.
#[derive(Default)]
struct CountersShown {
    is_there: bool,
}

impl Registry for CountersShown {}

/// Declares the state that is kept over reloads, if the configuration has an `api` directive
/// anywhere.
pub fn prepare(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let root = http.tree().root();
    if root.tree().scopes().any(|scope| scope.writes(ANSWERS)) {
        let mut zones = compiler.zones.borrow_mut();
        // No other zone can have this name.
        let _ = zones.declare::<Resets>(RESETS, SIZE_MIN, ());
        compiler.registry::<CountersShown>().borrow_mut().is_there = true;
    }
}

/// Adds the load time, zones and certificates to the generation.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    generation.add(LoadTime::now());
    zones::add(compiler, generation);
    certificates::add_shown(compiler, generation);
}

/// The protection of the scope to which a plan belongs.
static PROTECTION: PlanSlot<Protection> = PlanSlot::new();

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[
    ShortcutDoc::Never("`api` answers instead of files"),
    zones::SHORTCUT,
];

/// Registers the request counters of a scope's zones. Stores the protection of a scope with the
/// API, and of a `limit_except` in a location with the API.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let registered = zones::register(plan);
    registered
        .map_err(|fault| plan.compiler.report(fault))
        .ok()?;
    if plan.compiler.registry::<CountersShown>().borrow().is_there {
        numbers::count_bytes(plan);
    }
    if let Ok(Some(_)) = plan.scope.written(&API) {
        let protection = Protection::of(plan.compiler, plan.scope);
        let protection = protection
            .map_err(|fault| plan.compiler.report(fault))
            .ok()?;
        plan.keep(&PROTECTION, &Arc::new(protection));
        plan.shortcut(Shortcut::Never);
    }
    Some(())
}

/// The content handler of `api`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(writes) = scope.own(&API)? else {
        return Ok(None);
    };
    let lines = scope.own_lines(&API.spec);
    let position = lines.first().map(|line| line.position);
    let prefix = match scope.line().map(LocationName::parse).transpose()? {
        Some(LocationName::Exact(name) | LocationName::Prefix { name, .. }) => name,
        _ => {
            let text = "\"api\" must stand in a location that is given by a prefix";
            let fault = Fault::new(text);
            return Err(match position {
                Some(position) => fault.or_at(position),
                None => fault,
            });
        }
    };
    if !Protection::of(compiler, scope)?.is_there() {
        let consequence = if writes {
            "anyone may read it, and changes of what is not protected are refused"
        } else {
            "anyone may read it"
        };
        let text = format!("\"api\" is not protected: {consequence}");
        compiler.diagnose(Diagnostic::warn(text, position));
    }
    let text = |variable: &str| {
        let word = Word {
            bytes: variable.as_bytes().into(),
            quoted: false,
            position: position.unwrap_or_default(),
        };
        Template::parse(&word).map(|template| compiler.text(&template))
    };
    Ok(Some(Content {
        inherited_by_limit_except: true,
        ..Content::of(Api {
            writes,
            prefix,
            request_id: text("$request_id")?,
            user: text("$remote_user")?,
        })
    }))
}

/// The first location of a scope that has the API: its name, and whether changes are enabled.
///
/// # Errors
/// Errors of the `api` directive and of the location's name.
pub(crate) fn first_within(scope: ScopeRef<'_>) -> Result<Option<(Bytes, bool)>, Fault> {
    for location in scope.children("location") {
        let name = location.line().map(LocationName::parse).transpose()?;
        if let Some(writes) = location.own(&API)?
            && let Some(LocationName::Prefix { name, .. } | LocationName::Exact(name)) = name
        {
            return Ok(Some((name, writes)));
        }
        if let Some(found) = first_within(location)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The API in one location.
struct Api {
    /// Whether changes are enabled: `write=on`.
    writes: bool,
    /// The location's name; the rest of a URI is the path within the API.
    prefix: Bytes,
    request_id: Text,
    user: Text,
}

impl PhaseHandler for Api {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::wait(async move {
            match self.answer(request, exchange).await? {
                Ok(ApiResponse::Json(status, json)) => {
                    let content_type = Bytes::from_static(b"application/json");
                    let json = Bytes::from(json.into_bytes());
                    // The state changes, so responses must not be cached.
                    request.response.add("Cache-Control", "no-store");
                    Ok(output::page(request, status, content_type, json))
                }
                Ok(ApiResponse::Created) => {
                    request.response.status = 201;
                    request.response.content_type = Bytes::from_static(b"application/json");
                    request.response.content_length = Some(0);
                    Ok(Step::Respond(Body::Empty))
                }
                Ok(ApiResponse::Nothing) => {
                    request.response.status = 204;
                    // Part of the documented API, though the body is empty.
                    request.response.add("Content-Type", "application/json");
                    Ok(Step::Respond(Body::Empty))
                }
                Err(failure) => Ok(failure::respond(request, &failure, &self.request_id)),
            }
        })
    }
}

/// The response to a successful request.
enum ApiResponse {
    /// A document with this status.
    Json(u16, json::Writer),
    /// Something was created; the response has no body.
    Created,
    /// The request was carried out; the response has no body.
    Nothing,
}

impl Api {
    async fn answer(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
    ) -> Result<Result<ApiResponse, ApiError>, Abort> {
        let asked = match self.judge(request) {
            Ok(asked) => asked,
            Err(failure) => return Ok(Err(failure)),
        };
        ::upstream::count_answers();
        if matches!(request.method, Method::Get | Method::Head) {
            return Ok(show(request, &asked));
        }
        let body = if Endpoint::takes_body(request.method) {
            read_body(request, exchange).await?
        } else {
            Ok(Bytes::new())
        };
        let body = match body {
            Ok(body) => body,
            Err(failure) => return Ok(Err(failure)),
        };
        let user = self.user.evaluate(request);
        Ok(change(request, &asked, &body, &user).await)
    }

    /// The endpoint of a request, if the client is allowed to use it.
    fn judge(&self, request: &Request) -> Result<RequestedEndpoint, ApiError> {
        protection::check_host(request)?;
        let path = request.uri.strip_prefix(&self.prefix[..]);
        let asked = Endpoint::parse(path.ok_or(ApiError::PathNotFound)?)?;
        if matches!(request.method, Method::Get | Method::Head) {
            return Ok(asked);
        }
        let methods = if self.writes {
            asked.endpoint.methods()
        } else {
            "GET, HEAD"
        };
        let mut allowed = methods.split(", ");
        if !allowed.any(|method| method == request.method.name()) {
            return Err(ApiError::MethodDisabled(methods));
        }
        protection::check_origin(request)?;
        let protection = request.plan.of(&PROTECTION);
        if protection.is_some_and(|protection| protection.permits(request)) {
            Ok(asked)
        } else {
            Err(ApiError::Unprotected)
        }
    }
}

/// Reads the body of a request, up to `client_body_buffer_size`.
async fn read_body(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Result<Bytes, ApiError>, Abort> {
    let length_max = request.plan.core.client_body_buffer_size;
    if request.body.judged_length() > length_max as u64 {
        request.body.give_up();
        return Ok(Err(ApiError::BodyTooLarge));
    }
    match reading::read(request, exchange).await {
        Ok(()) => {}
        Err(Interrupt::Status(413)) => return Ok(Err(ApiError::BodyTooLarge)),
        Err(Interrupt::Status(_)) => return Ok(Err(ApiError::BodyUnread)),
        Err(Interrupt::Abort(abort)) => return Err(abort),
    }
    let Some(pieces) = request.body.in_memory() else {
        return Ok(Err(match request.body.file() {
            Some(_) => ApiError::BodyTooLarge,
            None => ApiError::BodyUnread,
        }));
    };
    let body = Bytes::from(pieces.concat());
    Ok(if body.len() > length_max {
        Err(ApiError::BodyTooLarge)
    } else {
        Ok(body)
    })
}

/// Responds to GET: writes the state of an endpoint.
fn show(request: &Request, asked: &RequestedEndpoint) -> Result<ApiResponse, ApiError> {
    let mut json = json::Writer::default();
    let fields = Fields::of(request);
    match &asked.endpoint {
        Endpoint::Versions => json.array(|json| VERSIONS.for_each(|version| json.number(version))),
        Endpoint::Root => show::names(&mut json, &Endpoint::of_root(asked.version)),
        Endpoint::Http => show::names(&mut json, &Endpoint::of_http(asked.version)),
        Endpoint::Zones(kind, None) => json.object(|json| {
            for (name, shown) in server::zones(request, *kind, None) {
                json.key(&String::from_utf8_lossy(&name));
                shown.show(*kind, asked.version, json, &fields);
            }
        }),
        Endpoint::Zones(kind, Some(name)) => {
            let found = server::zones(request, *kind, Some(name)).pop();
            let (_, shown) = found.ok_or(ApiError::ZoneNotFound(*kind))?;
            shown.show(*kind, asked.version, &mut json, &fields);
        }
        Endpoint::Nginx => server::nginx(request, &mut json, &fields),
        Endpoint::Connections => CountersSnapshot::of(request).connections(&mut json, &fields),
        Endpoint::HttpRequests => CountersSnapshot::of(request).requests(&mut json, &fields),
        Endpoint::Processes => server::process(&mut json, &fields),
        // No zone has a slab allocator.
        Endpoint::Slabs(None) => json.object(|_| ()),
        Endpoint::Slabs(Some(_)) => return Err(ApiError::SlabNotFound),
        Endpoint::Resolvers(name) => {
            resolvers::show(request, name.as_ref(), &mut json, &fields)?;
        }
        Endpoint::Ssl => CountersSnapshot::of(request).handshakes(&mut json, &fields),
        Endpoint::Certificates => certificates::all(request, &mut json),
        // Tidegate needs no license.
        Endpoint::License => json.object(|_| ()),
        Endpoint::XdpQueues => json.array(|json| queues::json(&xdp::reports(), json)),
        Endpoint::Workers(id) => workers::show(request, *id, &mut json, &fields)?,
        Endpoint::CacheEntries(_) => {
            return Err(ApiError::MethodDisabled(asked.endpoint.methods()));
        }
        Endpoint::Caches(name) => caches::show(request, name.as_ref(), &mut json, &fields)?,
        Endpoint::Keyvals(of, None) => keyvals::all(request, of, &mut json, &fields),
        Endpoint::Keyvals(of, Some(name)) => keyvals::one(request, of, name, &mut json)?,
        Endpoint::Stream => show::names(&mut json, &Endpoint::of_stream(asked.version)),
        Endpoint::Upstreams(of, path) => match path {
            UpstreamSelector::All => {
                upstreams::all(request, of, asked.version, &mut json, &fields);
            }
            UpstreamSelector::Group(name) => {
                let block = upstreams::group(request, of, name)?;
                upstreams::one(&block, asked.version, &mut json, &fields);
            }
            UpstreamSelector::Servers(name) => {
                upstreams::servers(&upstreams::group(request, of, name)?.group, &mut json);
            }
            UpstreamSelector::Server(name, id) => {
                let block = upstreams::group(request, of, name)?;
                let member = members::find(&block, *id)?;
                upstreams::server(&member, &mut json);
            }
        },
    }
    Ok(ApiResponse::Json(200, json))
}

/// Responds to POST, PATCH and DELETE: changes servers and key-value pairs, removes cache entries,
/// or resets counters.
async fn change(
    request: &Request,
    asked: &RequestedEndpoint,
    body: &[u8],
    user: &Bytes,
) -> Result<ApiResponse, ApiError> {
    let mut json = json::Writer::default();
    match &asked.endpoint {
        Endpoint::Connections => server::reset_connections(request),
        Endpoint::HttpRequests => server::reset_requests(request),
        Endpoint::Ssl => server::reset_handshakes(request),
        Endpoint::Resolvers(Some(name)) => resolvers::reset(request, name)?,
        Endpoint::Workers(id) => workers::reset(request, *id)?,
        Endpoint::Caches(Some(name)) => caches::reset(request, name)?,
        Endpoint::CacheEntries(name) => {
            caches::purge(request, name, user).await?;
            return Ok(ApiResponse::Nothing);
        }
        Endpoint::Zones(kind, Some(name)) => server::reset_zone(request, *kind, name)?,
        Endpoint::Keyvals(of, Some(name)) => {
            match request.method {
                Method::Post => {
                    keyvals::add(request, of, name, body, user).await?;
                    return Ok(ApiResponse::Created);
                }
                Method::Patch => keyvals::change(request, of, name, body, user).await?,
                _ => keyvals::clear(request, of, name, user).await?,
            }
            return Ok(ApiResponse::Nothing);
        }
        Endpoint::Upstreams(of, UpstreamSelector::Group(name)) => {
            upstreams::reset(&upstreams::group(request, of, name)?.group);
        }
        Endpoint::Upstreams(of, UpstreamSelector::Servers(name)) => {
            let block = upstreams::group(request, of, name)?;
            let written = MemberPatch::parse(body)?;
            let member = members::add(request, &block, written, user).await?;
            upstreams::server(&member, &mut json);
            return Ok(ApiResponse::Json(201, json));
        }
        Endpoint::Upstreams(of, UpstreamSelector::Server(name, id)) => {
            let block = upstreams::group(request, of, name)?;
            match request.method {
                Method::Patch => {
                    let written = MemberPatch::parse(body)?;
                    let member = members::change(request, &block, *id, written, user).await?;
                    upstreams::server(&member, &mut json);
                }
                _ => {
                    members::remove(request, &block, *id, user).await?;
                    upstreams::servers(&block.group, &mut json);
                }
            }
            return Ok(ApiResponse::Json(200, json));
        }
        other => return Err(ApiError::MethodDisabled(other.methods())),
    }
    logs::error!(request, Notice, "api: counters are reset");
    Ok(ApiResponse::Nothing)
}
