//! The parts of docs/shortcuts.md about prebuilt responses, except for the parts that modules
//! declare.

/// The properties of locations that [`suits`](super::answering::suits) rejects, in addition to
/// those that modules declare. Like the lists below, they are for docs/shortcuts.md.
pub const NOT_IN_LOCATIONS: &[&str] = &[
    "it has a `limit_except` block",
    "`root` or `alias` has variables, or its path is only known at run time",
    "`limit_rate` is set to anything but a constant 0",
    "`max_ranges` is set",
    "its `error_log` takes lines of the level `debug`",
    "it is `internal`",
];

/// The requests that [`respond`](super::answering::respond) declines, in addition to those that a
/// module does not permit.
pub const NOT_FOR_REQUESTS: &[&str] = &[
    "it is of another protocol than HTTP/1.0, HTTP/1.1 or HTTP/2",
    "its method is another one than GET, also HEAD",
    "it has a body",
    "it asks for parts of a file in another way than by one `Range` that lies within it, alone, or for parts of a `return`",
    "it has an `Expect` field, or a field that is left out for its name",
    "its target or its `Host` is refused",
    "its path only lacks the slash that its location ends with, or an expression gives up on it",
    "its server, or that of its handshake, asks for certificates of clients (`ssl_verify_client`), or it came in plain to a port of TLS",
    "`$limit_rate` has been set for it",
    "`debug_connection` names its client",
    "it has a condition that fails with 412 (`If-Match`, `If-Unmodified-Since`)",
    "its connection of HTTP/1 ends with it, and its client has sent more behind it, or `lingering_close` is `always`",
    "its file has not been looked at for ten seconds, and it may take the disk to do so",
];

/// The responses that [`wants`](super::offer::wants) and
/// [`offer_missing`](super::offer::offer_missing) do not keep, and the 404 that
/// [`respond`](super::answering::respond) does not send.
pub const NOT_KEPT: &[&str] = &[
    "the file is larger than 64 KiB, or `response_memory` has no room for it",
    "the file was changed less than two seconds ago",
    "the path has been asked for less than twice",
    "it is a 404, and `error_page` is set in its location; or `msie_padding` makes its page longer for this client",
    "it is that of a subrequest or follows an internal redirect",
];

/// The requests for cached responses in memory that take the normal path, in addition to those
/// above: see [`recall`](crate::response::recall).
pub const NOT_RECALLED: &[&str] = &[
    "the request has a `Range`, `If-Match` or `If-Unmodified-Since`, or shows credentials that `proxy_cache_credentials pass` tells apart",
    "its `Cache-Control` says anything, where answers are kept by RFC 9111",
    "the cache is bypassed or asked to purge, its zone or the upstream is named with variables, or its key holds `$slice_range`",
    "the answer is not fresh, has another status than 200, 404 or 410, varies by fields of requests, or is encoded",
    "it has `Set-Cookie`, `Location` or `Refresh`, or says by `X-Accel-Redirect` or `X-Accel-Limit-Rate` what becomes of it",
    "it has no `Content-Length`, and the client speaks HTTP/1.0 or `chunked_transfer_encoding` is off",
    "it has been asked for less than twice by this thread, or something else is being fetched in its place",
];
