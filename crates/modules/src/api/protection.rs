//! Access control of the API.
//!
//! The server does not know its clients, and a browser sends whatever any page tells it to. So
//! changes require a protection from strangers ([`Protection`]), and must not come from pages of
//! other sites. All requests must name this server by an address or by a name in its configuration,
//! so that a page whose own name resolves to this server (DNS rebinding) learns nothing.

use std::net::IpAddr;

use conf::{Contexts, Fault, ScopeRef};
use engine::net::Address;
use framework::compile::Compiler;
use http::config::core::Core;
use http::config::listen;
use http::handshake::Handshake;
use http::module::Module as _;
use http::request::Request;
use proto::header::KnownField;
use rules::access::Access;
use transport::tls::settings::TlsSettings;
use transport::tls::verify::Mode;

use super::failure::ApiError;
use crate::auth_basic::AuthBasic;
use crate::auth_request::AuthRequest;

/// The protection of a scope from strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protection {
    /// The scope authenticates clients, or denies all that its rules do not allow.
    by_scope: bool,
    /// The server listens only on addresses of this machine alone, such as the loopback address.
    by_address: bool,
    /// The server accepts only clients with a valid certificate.
    by_certificate: bool,
}

impl Protection {
    /// The protection of a scope, from its own directives.
    pub(super) fn of(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Protection, Fault> {
        let denies = compiler.feature::<Access>(scope)?.denies_by_default();
        let asks = !compiler.feature::<AuthBasic>(scope)?.is_off()
            || !compiler.feature::<AuthRequest>(scope)?.is_off();
        let by_scope = match (compiler.feature::<Core>(scope)?.satisfy_any, denies) {
            // With `satisfy any`, clients that the access rules allow are not authenticated.
            (true, Some(false)) => false,
            (_, denies) => asks || denies == Some(true),
        };
        let mut around = std::iter::successors(Some(scope), |scope| scope.parent());
        let server = around.find(|scope| scope.context() == Contexts::SERVER);
        let listens = server.map(|server| listen::of_server(compiler, server));
        let listens = listens.transpose()?.unwrap_or_default();
        let mut addresses = listens.iter().map(|listen| &listen.options.address);
        Ok(Protection {
            by_scope,
            by_address: !listens.is_empty() && addresses.all(is_local_address),
            by_certificate: compiler
                .feature::<TlsSettings<Handshake>>(scope)?
                .verify_client
                == Some(Mode::Required),
        })
    }

    /// Whether the configuration protects the scope from strangers, on every address of the server.
    pub(super) fn is_there(self) -> bool {
        self.by_scope || self.by_address || self.by_certificate
    }

    /// Whether the client of a request that has passed the access phase may make changes.
    /// Subrequests do not run that phase, so they may not.
    pub(super) fn permits(self, request: &Request) -> bool {
        let is_protected =
            self.by_scope || self.by_certificate || is_local_address(request.connection.local());
        is_protected && request.is_main()
    }
}

fn is_local_address(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Inet(address) => address.ip().to_canonical().is_loopback(),
    }
}

/// Rejects requests for hosts that are neither addresses nor names of the server.
pub(super) fn check_host(request: &Request) -> Result<(), ApiError> {
    let host = request.client.host.as_slice();
    if host.is_empty() || is_address(host) || host == b"localhost" {
        return Ok(());
    }
    let connection = &request.connection;
    let binding = request.http.binding(&connection.client.listener);
    let servers = binding.map(|binding| binding.servers_for(connection.local()));
    let named = servers.and_then(|servers| servers.names.find_name(host).ok().flatten());
    if named.is_some() {
        Ok(())
    } else {
        Err(ApiError::UnknownHost)
    }
}

fn is_address(host: &[u8]) -> bool {
    let text = std::str::from_utf8(host).unwrap_or_default();
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(text).parse::<IpAddr>().is_ok()
}

/// Rejects changes that a page of another site makes a browser request. Other clients than browsers
/// send neither field.
pub(super) fn check_origin(request: &Request) -> Result<(), ApiError> {
    let site = request.header_named(b"sec-fetch-site");
    let is_foreign_site = site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"));
    let host = request.header(KnownField::Host).unwrap_or_default();
    let is_foreign_origin = |origin: &[u8]| {
        let rest = [&b"http://"[..], b"https://"];
        let rest = rest.iter().find_map(|scheme| origin.strip_prefix(*scheme));
        rest.is_none_or(|named| !named.eq_ignore_ascii_case(host))
    };
    let origin = request.header_named(b"origin");
    if is_foreign_site || origin.is_some_and(is_foreign_origin) {
        Err(ApiError::Foreign)
    } else {
        Ok(())
    }
}
