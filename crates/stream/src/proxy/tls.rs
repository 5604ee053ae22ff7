//! `proxy_ssl` and its family: TLS to upstream servers.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_proxy_module.html#proxy_ssl>. The directives that
//! http has as well are in `transport::tls::upstream::settings`; here are those that only sessions
//! have.

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Template, parse};
use framework::compile::Compiler;
use transport::tls::upstream::settings::{Family, UpstreamTls};
use variables::{Compiling as _, Text};

use crate::session::Session;

const CONTEXTS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);

/// The directives that http has as well.
static FAMILY: Family = Family::of("proxy_", CONTEXTS);

static PROXY_SSL: Setting<bool> = Setting::new("proxy_ssl", &["on | off"], parse::flag)
    .contexts(CONTEXTS)
    .default("off")
    .manual("Whether servers that connections are passed on to are spoken to by TLS.");

static PROXY_SSL_ALPN: Setting<Vec<Template>> =
    Setting::new("proxy_ssl_alpn", &["protocol ..."], |setter| {
        let words = setter.lines().iter().flat_map(|line| &line.args);
        words.map(Template::parse).collect()
    })
    .contexts(CONTEXTS)
    .arity(Arity::at_least(1))
    .inherit(Inherit::Value)
    .manual(
        "Names of protocols that servers are offered (ALPN), the preferred first. Variables may be \
         used, such as `$ssl_alpn_protocol`; an empty name is left out.",
    );

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&PROXY_SSL, &PROXY_SSL_ALPN];

/// The directives that http has as well.
pub(crate) static FAMILY_DIRECTIVES: [&dyn Declared; 15] = FAMILY.all();

/// Checks settings that are not used, as nginx does when it reads them.
pub(crate) fn check_unused(compiler: &Compiler<'_>, root: ScopeRef<'_>) {
    FAMILY.check_unused::<Session>(compiler, root);
}

/// The settings of TLS to upstream servers.
pub(crate) struct ProxyTls {
    pub(super) tls: UpstreamTls<Session>,
    /// The ALPN protocols to offer, if they contain variables.
    pub(super) protocols: Vec<Text<Session>>,
}

/// The TLS settings of a server; `None` if its upstream connections are unencrypted.
pub(super) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Option<ProxyTls>, Fault> {
    if !server.get(&PROXY_SSL)? {
        return Ok(None);
    }
    let written = server.written(&PROXY_SSL_ALPN)?.unwrap_or_default();
    let texts = written.iter().map(|template| compiler.text(template));
    let texts: Vec<Text<Session>> = texts.collect();
    let fixed: Option<Vec<&Bytes>> = texts.iter().map(Text::literal).collect();
    let (offered, protocols) = match fixed {
        Some(fixed) => (names(fixed), Vec::new()),
        None => (Vec::new(), texts),
    };
    let tls = FAMILY.compile::<Session>(compiler, server, offered)?;
    Ok(Some(ProxyTls { tls, protocols }))
}

/// The names that are valid in ALPN.
pub(super) fn names<T: AsRef<[u8]>>(names: Vec<T>) -> Vec<Vec<u8>> {
    let names = names.iter().map(|name| name.as_ref().to_vec());
    let is_name = |name: &Vec<u8>| (1..=usize::from(u8::MAX)).contains(&name.len());
    names.filter(is_name).collect()
}
