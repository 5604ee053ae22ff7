//! Request methods: those that nginx recognises by name. Names are case-sensitive (RFC 9110,
//! section 9.1).

/// A request method. Methods that nginx does not recognise are `Other`; their name is in the
/// request line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Method {
    /// The method GET, defined by RFC 9110.
    Get,
    /// The method HEAD, defined by RFC 9110.
    Head,
    /// The method POST, defined by RFC 9110.
    Post,
    /// The method PUT, defined by RFC 9110.
    Put,
    /// The method DELETE, defined by RFC 9110.
    Delete,
    /// The method MKCOL, defined by RFC 4918.
    Mkcol,
    /// The method COPY, defined by RFC 4918.
    Copy,
    /// The method MOVE, defined by RFC 4918.
    Move,
    /// The method OPTIONS, defined by RFC 9110.
    Options,
    /// The method PROPFIND, defined by RFC 4918.
    Propfind,
    /// The method PROPPATCH, defined by RFC 4918.
    Proppatch,
    /// The method LOCK, defined by RFC 4918.
    Lock,
    /// The method UNLOCK, defined by RFC 4918.
    Unlock,
    /// The method PATCH, defined by RFC 5789.
    Patch,
    /// The method TRACE, defined by RFC 9110; rejected with 405.
    Trace,
    /// The method CONNECT, defined by RFC 9110; rejected with 405 unless the server allows it.
    Connect,
    /// Any other name of capital letters, `_` and `-`.
    #[default]
    Other,
}

impl Method {
    /// Every method with a name, in nginx's order.
    pub const NAMED: [Method; 16] = [
        Method::Get,
        Method::Head,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Mkcol,
        Method::Copy,
        Method::Move,
        Method::Options,
        Method::Propfind,
        Method::Proppatch,
        Method::Lock,
        Method::Unlock,
        Method::Patch,
        Method::Trace,
        Method::Connect,
    ];

    /// The method with this name.
    pub fn from_name(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"MKCOL" => Method::Mkcol,
            b"COPY" => Method::Copy,
            b"MOVE" => Method::Move,
            b"OPTIONS" => Method::Options,
            b"PROPFIND" => Method::Propfind,
            b"PROPPATCH" => Method::Proppatch,
            b"LOCK" => Method::Lock,
            b"UNLOCK" => Method::Unlock,
            b"PATCH" => Method::Patch,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }

    /// The name; empty for `Other`, whose name is in the request line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Mkcol => "MKCOL",
            Method::Copy => "COPY",
            Method::Move => "MOVE",
            Method::Options => "OPTIONS",
            Method::Propfind => "PROPFIND",
            Method::Proppatch => "PROPPATCH",
            Method::Lock => "LOCK",
            Method::Unlock => "UNLOCK",
            Method::Patch => "PATCH",
            Method::Trace => "TRACE",
            Method::Connect => "CONNECT",
            Method::Other => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_method() {
        for method in Method::NAMED {
            assert_eq!(Method::from_name(method.name().as_bytes()), method);
        }
        for other in ["", "get", "GETT", "GE", "M-SEARCH", "MKACTIVITY"] {
            assert_eq!(
                Method::from_name(other.as_bytes()),
                Method::Other,
                "{other}"
            );
        }
    }
}
