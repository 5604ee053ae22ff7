//! Warnings at start and with `-t` about caches that may send one client's response to others.
//!
//! nginx's defaults permit such caches, and Tidegate keeps the defaults, since configurations
//! depend on them. A warning is only given if the configuration certainly has this effect: a
//! variable that the configuration defines, for example with `map`, may exclude the responses in
//! question, and suppresses the warning.

use conf::{Diagnostic, Fault, Level, ScopeRef, Setting, Template, TemplatePart, Word};
use framework::compile::Compiler;
use proto::header::{KnownField, NameSet};

use super::{Family, sharing};
use crate::store_settings::StoreLine;

/// The settings of a scope besides those of its cache.
pub(crate) struct CachedScope<'a> {
    pub(crate) store: &'a Setting<StoreLine>,
    pub(crate) ignore_headers: &'a Setting<Vec<Word>>,
    /// Response fields that clients do not get.
    pub(crate) hidden: &'a NameSet,
    /// Response fields that have no effect.
    pub(crate) ignored: &'a NameSet,
    /// Whether upstreams get the `Authorization` of clients.
    pub(crate) passes_authorization: bool,
}

/// Names of variables, or prefixes of names if they end with `_`, that always have nginx's meaning:
/// no directive can define them.
const OF_REQUESTS: &[&str] = &[
    "arg_",
    "args",
    "cookie_",
    "document_uri",
    "host",
    "http_",
    "https",
    "is_args",
    "proxy_host",
    "proxy_port",
    "query_string",
    "request",
    "request_method",
    "request_uri",
    "scheme",
    "sent_http_",
    "server_name",
    "server_port",
    "slice_range",
    "uri",
    "upstream_http_",
];

/// Variables by which a key distinguishes clients.
const OF_CLIENTS: &[&str] = &[
    "cookie_",
    "http_authorization",
    "http_cookie",
    "remote_user",
];

/// Variables by which `*_no_cache` excludes responses to requests with `Authorization`.
const AUTHORIZATION: &[&str] = &["http_authorization", "remote_user"];

/// Variables by which `*_no_cache` excludes responses with `Set-Cookie`.
const SET_COOKIE: &[&str] = &["sent_http_set_cookie", "upstream_http_set_cookie"];

impl Family {
    /// Warns if the cache of a scope may send one client's response to others.
    pub(crate) fn warn(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        known: &CachedScope<'_>,
    ) -> Result<(), Fault> {
        let Some(word) = self.word(scope, known.store)? else {
            return Ok(());
        };
        let key = scope.written(&self.cache_key)?;
        let no_cache = scope.written(&self.no_cache)?.unwrap_or_default();
        let (cache, without) = (self.cache.spec.name(), self.no_cache.spec.name());
        let warn = |text: String, word: &Word| {
            compiler.diagnose(Diagnostic::new(Level::Warn, text, Some(word.position)));
        };
        let is_apart = key.iter().any(|key| may_hold(key, OF_CLIENTS));
        let holds = |names| no_cache.iter().any(|text| may_hold(text, names));
        // RFC 9111 and `proxy_cache_credentials pass` only share responses that allow it.
        let is_heeded = scope.get(&self.cache_semantics)?.policy().is_some()
            || (self.prefix == "proxy_" && sharing::has_credentials_pass(scope)?);
        if known.passes_authorization && !is_apart && !is_heeded && !holds(AUTHORIZATION) {
            let text = format!(
                "\"{cache}\" keeps answers to requests with \"Authorization\" and gives them to \
                 all clients; \"{without} $http_authorization\" leaves them out"
            );
            warn(text, &word);
        }
        let ignores = known.ignored.contains_known(KnownField::SetCookie);
        let hides = known.hidden.contains(KnownField::SetCookie, b"Set-Cookie");
        if ignores && !hides && !is_apart && !holds(SET_COOKIE) {
            let ignore = known.ignore_headers.spec.name();
            let text = format!(
                "\"{ignore} Set-Cookie\" has \"{cache}\" keep answers that set cookies and give \
                 these to all clients; \"{without} $upstream_http_set_cookie\" leaves them out"
            );
            warn(text, &word);
        }
        Ok(())
    }
}

/// Whether a text contains one of these variables, or a variable that the configuration defines.
fn may_hold(text: &Template, names: &[&str]) -> bool {
    let is_one = |name: &str, names: &[&str]| {
        names.iter().any(|known| {
            if known.ends_with('_') {
                name.starts_with(known)
            } else {
                name == *known
            }
        })
    };
    text.parts.iter().any(|part| match part {
        TemplatePart::Literal(_) => false,
        TemplatePart::Variable(name) => is_one(name, names) || !is_one(name, OF_REQUESTS),
        TemplatePart::Capture(_) => true,
    })
}

/// Whether upstreams get the `Authorization` of clients, given the value that a directive sets for
/// the field.
pub fn passes_authorization(set: Option<&Word>) -> Result<bool, Fault> {
    let Some(value) = set else { return Ok(true) };
    let parts = Template::parse(value)?.parts;
    let is_it = |part: &TemplatePart| matches!(part, TemplatePart::Variable(name) if &**name == "http_authorization");
    Ok(parts.iter().any(is_it))
}
