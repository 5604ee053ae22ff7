//! Why the API does not do what it was asked, with the statuses, texts and codes of NGINX Plus.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#def_nginx_error>

use base::json;
use bytes::Bytes;
use http::output;
use http::request::{Request, Step};
use http::text::Text;

use super::endpoint::Kind;

/// What is wrong with a request, one variant a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The path names no version, or one that there is not.
    UnknownVersion,
    /// The path leads nowhere.
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
    /// No zone of `keyval_zone` has the name.
    KeyvalNotFound,
    /// The zone has no such key.
    KeyNotFound,
    /// The zone has the key already.
    KeyExists,
    /// The body says nothing that could be done with a zone, and why.
    KeyvalFormat(&'static str),
    /// The zone has no room.
    KeyvalFull,
    /// The group has no `zone`, so that it stays as the configuration has it.
    UpstreamStatic,
    /// A server's number is none.
    BadServerId,
    /// No server of the group has the number.
    ServerNotFound(u64),
    /// A lookup says what the server is.
    ServerImmutable(u64),
    /// A lookup says what weight it has.
    WeightImmutable(u64),
    /// Another server has the address.
    EntryExists,
    /// The group's way to share requests out has no room for servers that stand by.
    NoBackup(String),
    /// The group has as many servers as it may have.
    OutOfMemory(String),
    /// The group's file could not be written.
    StateNotWritten,
    /// A member of the body has a value that it may not have.
    BadValue(&'static str, &'static str),
    /// The body has a member that nothing is known of.
    UnknownParameter(String),
    /// The body names no server.
    MissingServer,
    /// A member of the body is an object or a list.
    Nested,
    /// The address of a server is none, and why.
    BadAddress(String),
    /// The address of a server is a name, which nothing looks up.
    NoResolver,
    /// The body is no JSON object.
    Json,
    /// The body has not come whole.
    BodyUnread,
    /// The body is longer than `client_body_buffer_size`.
    BodyTooLarge,
    /// The method is not allowed there; those that are.
    MethodDisabled(&'static str),
    /// Anyone could send this request, so that it is refused.
    Unprotected,
    /// A page of another site has made a browser send it.
    Foreign,
    /// The host that was asked for is neither an address nor a name of the server.
    UnknownHost,
}

impl Failure {
    fn status(&self) -> u16 {
        match self {
            Failure::UnknownVersion
            | Failure::PathNotFound
            | Failure::UpstreamNotFound
            | Failure::ZoneNotFound(_)
            | Failure::SlabNotFound
            | Failure::ResolverNotFound
            | Failure::CacheNotFound
            | Failure::KeyvalNotFound
            | Failure::KeyNotFound
            | Failure::ServerNotFound(_) => 404,
            Failure::MethodDisabled(_) => 405,
            Failure::EntryExists | Failure::KeyExists => 409,
            Failure::BodyTooLarge | Failure::KeyvalFull => 413,
            Failure::Json => 415,
            Failure::Unprotected | Failure::Foreign | Failure::UnknownHost => 403,
            Failure::StateNotWritten => 500,
            _ => 400,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Failure::UnknownVersion => "UnknownVersion",
            Failure::PathNotFound => "PathNotFound",
            Failure::UpstreamNotFound => "UpstreamNotFound",
            Failure::ZoneNotFound(kind) => match kind {
                Kind::ServerZones => "ServerZoneNotFound",
                Kind::LocationZones => "LocationZoneNotFound",
                Kind::LimitConns => "LimitConnNotFound",
                Kind::LimitReqs => "LimitReqNotFound",
            },
            Failure::SlabNotFound => "SlabNotFound",
            Failure::ResolverNotFound => "ResolverZoneNotFound",
            Failure::CacheNotFound => "CacheNotFound",
            Failure::KeyvalNotFound => "KeyvalNotFound",
            Failure::KeyNotFound => "KeyvalKeyNotFound",
            Failure::KeyExists => "KeyvalKeyExists",
            Failure::KeyvalFormat(_) => "KeyvalFormatError",
            Failure::KeyvalFull => "KeyvalOutOfMemory",
            Failure::UpstreamStatic => "UpstreamStatic",
            Failure::BadServerId => "UpstreamBadServerId",
            Failure::ServerNotFound(_) => "UpstreamServerNotFound",
            Failure::ServerImmutable(_) => "UpstreamServerImmutable",
            Failure::WeightImmutable(_) => "UpstreamServerWeightImmutable",
            Failure::EntryExists => "EntryExists",
            Failure::NoBackup(_) => "UpstreamNoBackup",
            Failure::OutOfMemory(_) => "UpstreamOutOfMemory",
            Failure::StateNotWritten => "StateNotWritten",
            Failure::BadValue(_, code) => code,
            Failure::UnknownParameter(_) | Failure::MissingServer | Failure::Nested => {
                "UpstreamConfFormatError"
            }
            Failure::BadAddress(_) => "UpstreamBadAddress",
            Failure::NoResolver => "UpstreamConfNoResolver",
            Failure::Json => "JsonError",
            Failure::BodyUnread => "BodyReadError",
            Failure::BodyTooLarge => "RequestEntityTooLarge",
            Failure::MethodDisabled(_) => "MethodDisabled",
            Failure::Unprotected => "WriteUnprotected",
            Failure::Foreign => "ForeignOrigin",
            Failure::UnknownHost => "UnknownHost",
        }
    }

    fn text(&self) -> String {
        let text = match self {
            Failure::UnknownVersion => "unknown version",
            Failure::PathNotFound => "path not found",
            Failure::UpstreamNotFound => "upstream not found",
            Failure::ZoneNotFound(kind) => match kind {
                Kind::ServerZones => "server zone not found",
                Kind::LocationZones => "location zone not found",
                Kind::LimitConns => "limit_conn not found",
                Kind::LimitReqs => "limit_req not found",
            },
            Failure::SlabNotFound => "slab not found",
            Failure::ResolverNotFound => "resolver zone not found",
            Failure::CacheNotFound => "cache not found",
            Failure::KeyvalNotFound => "keyval not found",
            Failure::KeyNotFound => "keyval key not found",
            Failure::KeyExists => "key already exists",
            Failure::KeyvalFormat(text) => text,
            Failure::KeyvalFull => "keyval zone memory exhausted",
            Failure::UpstreamStatic => "upstream is static",
            Failure::BadServerId => "invalid server id",
            Failure::ServerNotFound(id) => {
                return format!("server with id \"{id}\" does not exist");
            }
            Failure::ServerImmutable(id) => return format!("server \"{id}\" is immutable"),
            Failure::WeightImmutable(id) => {
                return format!("server \"{id}\" weight is immutable");
            }
            Failure::EntryExists => "entry exists",
            Failure::NoBackup(name) => return format!("upstream \"{name}\" has no backup"),
            Failure::OutOfMemory(name) => return format!("upstream \"{name}\" memory exhausted"),
            Failure::StateNotWritten => "state file could not be written, nothing has changed",
            Failure::BadValue(name, _) => return format!("invalid \"{name}\" value"),
            Failure::UnknownParameter(name) => return format!("unknown parameter \"{name}\""),
            Failure::MissingServer => "missing \"server\" argument",
            Failure::Nested => "nested object or list",
            Failure::BadAddress(error) => return format!("{error} while parsing \"server\""),
            Failure::NoResolver => "no resolver defined to resolve",
            Failure::Json => "json error",
            Failure::BodyUnread => "reading request body failed",
            Failure::BodyTooLarge => "request entity too large",
            Failure::MethodDisabled(_) => "method disabled",
            Failure::Unprotected => {
                "changes are refused where nothing protects the api: neither deny, auth_basic, auth_request, \
                 required client certificates, loopback nor a unix socket"
            }
            Failure::Foreign => "changes from pages of other sites are refused",
            Failure::UnknownHost => {
                "the requested host is neither an address, localhost nor a server_name of this server"
            }
        };
        text.to_owned()
    }
}

/// The response that tells of a failure to the request of this `$request_id`.
pub(super) fn respond(request: &mut Request, failure: &Failure, request_id: &Text) -> Step {
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
    if let Failure::MethodDisabled(allowed) = failure {
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
