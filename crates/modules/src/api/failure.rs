//! Errors of the API, with the statuses, texts and codes of NGINX Plus.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#def_nginx_error>

use base::json;
use bytes::Bytes;
use http::request::{Request, Step, Text};
use http::response::output;

use super::endpoint::Kind;

/// Why a request failed, with one variant per cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    /// The path contains no version, or an unsupported one.
    UnknownVersion,
    /// The path is not an endpoint.
    PathNotFound,
    /// No group of servers has the name.
    UpstreamNotFound,
    /// No zone of the kind has the name.
    ZoneNotFound(Kind),
    /// No zone with a slab allocator has the name.
    SlabNotFound,
    /// No resolver's zone has the name.
    ResolverNotFound,
    /// No cache has the name.
    CacheNotFound,
    /// No thread has this number.
    WorkerNotFound,
    /// Some entries of a cache could not be removed.
    NotPurged,
    /// No zone of `keyval_zone` has the name.
    KeyvalNotFound,
    /// The zone has no such key.
    KeyNotFound,
    /// The zone has the key already.
    KeyExists,
    /// The body is not a valid change of a zone, for this reason.
    KeyvalFormat(&'static str),
    /// The zone is full.
    KeyvalFull,
    /// The group has no `zone`, so its servers cannot be changed.
    UpstreamStatic,
    /// The number of a server is malformed.
    BadServerId,
    /// No server of the group has this number.
    ServerNotFound(u64),
    /// The server's address comes from a DNS lookup.
    ServerImmutable(u64),
    /// The server's weight comes from a DNS lookup.
    WeightImmutable(u64),
    /// Another server has this address.
    EntryExists,
    /// The balancing method of the group with this name does not support backup servers.
    NoBackup(String),
    /// The group with this name has reached its maximum number of servers.
    OutOfMemory(String),
    /// The group's file could not be written.
    StateNotWritten,
    /// A member of the body has an invalid value: the member's name, and the code of the error.
    BadValue(&'static str, &'static str),
    /// The body has a member with this unknown name.
    UnknownParameter(String),
    /// The body does not name a server.
    MissingServer,
    /// A member of the body is an object or an array.
    Nested,
    /// The address of a server is invalid, for this reason.
    BadAddress(String),
    /// The address of a server is a host name, and the group has no resolver.
    NoResolver,
    /// The body is not a JSON object.
    Json,
    /// The body was not received completely.
    BodyUnread,
    /// The body is longer than `client_body_buffer_size`.
    BodyTooLarge,
    /// The method is not allowed; the value lists the allowed ones.
    MethodDisabled(&'static str),
    /// The location is unprotected, so anyone could send this request.
    Unprotected,
    /// The request comes from a browser, on behalf of another site's page.
    Foreign,
    /// The requested host is neither an address nor a name of the server.
    UnknownHost,
}

impl ApiError {
    /// The HTTP status of the response.
    fn status(&self) -> u16 {
        match self {
            ApiError::UnknownVersion
            | ApiError::PathNotFound
            | ApiError::UpstreamNotFound
            | ApiError::ZoneNotFound(_)
            | ApiError::SlabNotFound
            | ApiError::ResolverNotFound
            | ApiError::CacheNotFound
            | ApiError::WorkerNotFound
            | ApiError::KeyvalNotFound
            | ApiError::KeyNotFound
            | ApiError::ServerNotFound(_) => 404,
            ApiError::MethodDisabled(_) => 405,
            ApiError::EntryExists | ApiError::KeyExists => 409,
            ApiError::BodyTooLarge | ApiError::KeyvalFull => 413,
            ApiError::Json => 415,
            ApiError::Unprotected | ApiError::Foreign | ApiError::UnknownHost => 403,
            ApiError::StateNotWritten | ApiError::NotPurged => 500,
            _ => 400,
        }
    }

    /// The code of the error: the code of NGINX Plus, if NGINX Plus has the error.
    fn code(&self) -> &'static str {
        match self {
            ApiError::UnknownVersion => "UnknownVersion",
            ApiError::PathNotFound => "PathNotFound",
            ApiError::UpstreamNotFound => "UpstreamNotFound",
            ApiError::ZoneNotFound(kind) => match kind {
                Kind::ServerZones | Kind::StreamServerZones | Kind::MemcachedServerZones => {
                    "ServerZoneNotFound"
                }
                Kind::LocationZones => "LocationZoneNotFound",
                Kind::LimitConns | Kind::StreamLimitConns => "LimitConnNotFound",
                Kind::LimitReqs => "LimitReqNotFound",
            },
            ApiError::SlabNotFound => "SlabNotFound",
            ApiError::ResolverNotFound => "ResolverZoneNotFound",
            ApiError::CacheNotFound => "CacheNotFound",
            ApiError::WorkerNotFound => "WorkerNotFound",
            ApiError::NotPurged => "CacheNotPurged",
            ApiError::KeyvalNotFound => "KeyvalNotFound",
            ApiError::KeyNotFound => "KeyvalKeyNotFound",
            ApiError::KeyExists => "KeyvalKeyExists",
            ApiError::KeyvalFormat(_) => "KeyvalFormatError",
            ApiError::KeyvalFull => "KeyvalOutOfMemory",
            ApiError::UpstreamStatic => "UpstreamStatic",
            ApiError::BadServerId => "UpstreamBadServerId",
            ApiError::ServerNotFound(_) => "UpstreamServerNotFound",
            ApiError::ServerImmutable(_) => "UpstreamServerImmutable",
            ApiError::WeightImmutable(_) => "UpstreamServerWeightImmutable",
            ApiError::EntryExists => "EntryExists",
            ApiError::NoBackup(_) => "UpstreamNoBackup",
            ApiError::OutOfMemory(_) => "UpstreamOutOfMemory",
            ApiError::StateNotWritten => "StateNotWritten",
            ApiError::BadValue(_, code) => code,
            ApiError::UnknownParameter(_) | ApiError::MissingServer | ApiError::Nested => {
                "UpstreamConfFormatError"
            }
            ApiError::BadAddress(_) => "UpstreamBadAddress",
            ApiError::NoResolver => "UpstreamConfNoResolver",
            ApiError::Json => "JsonError",
            ApiError::BodyUnread => "BodyReadError",
            ApiError::BodyTooLarge => "RequestEntityTooLarge",
            ApiError::MethodDisabled(_) => "MethodDisabled",
            ApiError::Unprotected => "WriteUnprotected",
            ApiError::Foreign => "ForeignOrigin",
            ApiError::UnknownHost => "UnknownHost",
        }
    }

    fn text(&self) -> String {
        let text = match self {
            ApiError::UnknownVersion => "unknown version",
            ApiError::PathNotFound => "path not found",
            ApiError::UpstreamNotFound => "upstream not found",
            ApiError::ZoneNotFound(kind) => match kind {
                Kind::ServerZones | Kind::StreamServerZones | Kind::MemcachedServerZones => {
                    "server zone not found"
                }
                Kind::LocationZones => "location zone not found",
                Kind::LimitConns | Kind::StreamLimitConns => "limit_conn not found",
                Kind::LimitReqs => "limit_req not found",
            },
            ApiError::SlabNotFound => "slab not found",
            ApiError::ResolverNotFound => "resolver zone not found",
            ApiError::CacheNotFound => "cache not found",
            ApiError::WorkerNotFound => "worker not found",
            ApiError::NotPurged => "some entries could not be removed, the error log says which",
            ApiError::KeyvalNotFound => "keyval not found",
            ApiError::KeyNotFound => "keyval key not found",
            ApiError::KeyExists => "key already exists",
            ApiError::KeyvalFormat(text) => text,
            ApiError::KeyvalFull => "keyval zone memory exhausted",
            ApiError::UpstreamStatic => "upstream is static",
            ApiError::BadServerId => "invalid server id",
            ApiError::ServerNotFound(id) => {
                return format!("server with id \"{id}\" does not exist");
            }
            ApiError::ServerImmutable(id) => return format!("server \"{id}\" is immutable"),
            ApiError::WeightImmutable(id) => {
                return format!("server \"{id}\" weight is immutable");
            }
            ApiError::EntryExists => "entry exists",
            ApiError::NoBackup(name) => return format!("upstream \"{name}\" has no backup"),
            ApiError::OutOfMemory(name) => return format!("upstream \"{name}\" memory exhausted"),
            ApiError::StateNotWritten => "state file could not be written, nothing has changed",
            ApiError::BadValue(name, _) => return format!("invalid \"{name}\" value"),
            ApiError::UnknownParameter(name) => return format!("unknown parameter \"{name}\""),
            ApiError::MissingServer => "missing \"server\" argument",
            ApiError::Nested => "nested object or list",
            ApiError::BadAddress(text) => return text.clone(),
            ApiError::NoResolver => "no resolver defined to resolve",
            ApiError::Json => "json error",
            ApiError::BodyUnread => "reading request body failed",
            ApiError::BodyTooLarge => "request entity too large",
            ApiError::MethodDisabled(_) => "method disabled",
            ApiError::Unprotected => {
                "changes are refused where nothing protects the api: neither deny, auth_basic, auth_request, \
                 required client certificates, loopback nor a unix socket"
            }
            ApiError::Foreign => "changes from pages of other sites are refused",
            ApiError::UnknownHost => {
                "the requested host is neither an address, localhost nor a server_name of this server"
            }
        };
        text.to_owned()
    }
}

/// The response for an error; `request_id` is the request's `$request_id`.
pub(super) fn respond(request: &mut Request, failure: &ApiError, request_id: &Text) -> Step {
    let request_id = request_id.evaluate(request);
    let mut json = json::Writer::default();
    json.object(|json| {
        json.key("error").object(|json| {
            json.key("status").number(failure.status());
            json.key("text").string(&failure.text());
            json.key("code").string(failure.code());
        });
        json.key("request_id")
            .string(&String::from_utf8_lossy(&request_id));
        json.key("href")
            .string("https://nginx.org/en/docs/http/ngx_http_api_module.html");
    });
    if let ApiError::MethodDisabled(allowed) = failure {
        request.response.add("Allow", *allowed);
    }
    let json = Bytes::from(json.into_bytes());
    output::page(
        request,
        failure.status(),
        Bytes::from_static(b"application/json"),
        json,
    )
}
