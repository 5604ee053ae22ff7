//! The settings of a scope for upstreams and their responses, for any protocol.

use std::time::Duration;

use conf::{Fault, ScopeRef, Word};
use framework::compile::Compiler;
use http::config::temporary_paths::TemporaryPath;
use http::request::{Request, Size};
use http::response::Field;
use proto::header::NameSet;
use rules::upstream::socket::SocketSettings;

use super::attempts::Attempts;
use super::buffers::{self, Buffers};
use super::cache;
use super::family::Family;
use crate::cache::Cache;
use crate::store_settings::Store;
use ::upstream::RetryPolicy;

/// The compiled directives that the modules have in common, for one scope.
pub struct PassSettings {
    /// The errors and statuses after which the next server is tried, and the limits of that.
    pub tries: RetryPolicy,
    /// `*_read_timeout`.
    pub read_timeout: Duration,
    /// `*_buffering`.
    pub buffering: bool,
    /// `*_buffers` and related directives.
    pub buffers: Buffers,
    /// `*_request_buffering`.
    pub request_buffering: bool,
    /// `*_pass_request_headers`.
    pub pass_request_headers: bool,
    /// `*_pass_request_body`.
    pub pass_request_body: bool,
    /// `*_intercept_errors`.
    pub intercept_errors: bool,
    /// The maximum length of a response's head, in bytes.
    pub buffer_size: usize,
    /// Options of the sockets to the servers.
    pub socket: SocketSettings<Request>,
    /// Response fields that the client never gets.
    pub hidden: NameSet,
    /// If a response of HTTP lacks a Server or Date that a directive passes on, Tidegate adds none
    /// of its own. False for applications (FastCGI and similar protocols), which leave these two
    /// fields to the server.
    pub omits_server_and_date: bool,
    /// Response fields that have no effect.
    pub ignored: NameSet,
    /// `*_force_ranges`.
    pub force_ranges: bool,
    /// `*_pass_trailers`.
    pub pass_trailers: bool,
    /// `*_limit_rate`, in bytes a second; 0 is no limit.
    pub limit_rate: Size,
    /// `*_store`.
    pub store: Option<Store>,
    /// `*_cache` and related directives.
    pub cache: Option<Cache>,
}

/// The directives of a module, and defaults that differ between modules.
pub struct Declared {
    /// The directives of all modules.
    pub family: &'static Family,
    /// The directives about buffers.
    pub buffers: &'static buffers::Family,
    /// The directives about the cache.
    pub cache: &'static cache::Family,
    /// Whether HEAD may be sent to the upstream as GET.
    pub converts_head: bool,
    /// The default directory of temporary files.
    pub temporary_path: &'static TemporaryPath,
    /// Fields that never reach the client unless a directive passes them on.
    pub hidden: &'static [&'static str],
    /// Whether upstreams get the `Authorization` of a scope's clients, provided that they get the
    /// clients' fields at all.
    pub passes_authorization: fn(ScopeRef<'_>) -> Result<bool, Fault>,
}

impl PassSettings {
    /// Returns the upstream's trailers that the client gets.
    pub fn passed_trailers(&self, seen: &Attempts) -> Vec<Field> {
        if !self.pass_trailers {
            return Vec::new();
        }
        let seen = seen.borrow();
        let passed = |field: &&Field| !self.hidden.contains_name(&field.name);
        seen.trailers.iter().filter(passed).cloned().collect()
    }

    /// Compiles the directives of a scope. Fails at an invalid value, with its position.
    pub fn compile(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        declared: &Declared,
    ) -> Result<PassSettings, Fault> {
        let Declared {
            family,
            buffers,
            cache,
            converts_head,
            ..
        } = declared;
        let names = |words: &[Word]| -> NameSet { words.iter().map(|word| &*word.bytes).collect() };
        let passed = names(&scope.written(&family.pass_header)?.unwrap_or_default());
        let more = scope.written(&family.hide_header)?.unwrap_or_default();
        let hidden = declared.hidden.iter().map(|name| name.as_bytes());
        let ignored = names(&scope.written(&family.ignore_headers)?.unwrap_or_default());
        let pass_request_headers = scope.get(&family.pass_request_headers)?;
        let buffers = buffers.compile(
            compiler,
            scope,
            &family.buffer_size,
            declared.temporary_path,
        )?;
        let lines = cache;
        let cache = lines.compile(compiler, scope, &family.store, *converts_head)?;
        // By RFC 9111 a stored response keeps its Date, and Age states the time since.
        let passes_date = cache.as_ref().is_some_and(Cache::passes_date);
        let is_shown = |name: &&[u8]| {
            let is_date = name.eq_ignore_ascii_case(b"date");
            passed.contains_name(name) || (is_date && passes_date)
        };
        let hidden = hidden.filter(|name| !is_shown(name));
        let hidden = hidden.chain(more.iter().map(|word| &*word.bytes));
        let hidden: NameSet = hidden.filter(|name| !passed.contains_name(name)).collect();
        if let Some(cache) = &cache {
            let passes = pass_request_headers && (declared.passes_authorization)(scope)?;
            let known = cache::CachedScope {
                store: &family.store,
                ignore_headers: &family.ignore_headers,
                hidden: &hidden,
                ignored: &ignored,
                passes_authorization: passes && !cache.restricts_authorized(),
            };
            lines.warn(compiler, scope, &known)?;
        }
        let store = match cache {
            Some(_) => None,
            None => Store::compile(
                compiler,
                scope,
                &family.store,
                &family.store_access,
                &buffers.limits.directory,
            )?,
        };
        Ok(PassSettings {
            tries: RetryPolicy {
                connect_timeout: scope.get(&family.connect_timeout)?,
                send_timeout: scope.get(&family.send_timeout)?,
                // A response that is to be saved is received completely even if the client leaves.
                ignore_client_abort: scope.get(&family.ignore_client_abort)? || store.is_some(),
                next_upstream: scope.get(&family.next_upstream)?,
                next_upstream_tries: usize::try_from(scope.get(&family.next_upstream_tries)?)
                    .unwrap_or(usize::MAX),
                next_upstream_timeout: scope.get(&family.next_upstream_timeout)?,
            },
            read_timeout: scope.get(&family.read_timeout)?,
            buffering: scope.get(&family.buffering)?,
            buffers,
            request_buffering: scope.get(&family.request_buffering)?,
            pass_request_headers,
            pass_request_body: scope.get(&family.pass_request_body)?,
            intercept_errors: scope.get(&family.intercept_errors)?,
            buffer_size: scope.get(&family.buffer_size)? as usize,
            socket: SocketSettings::compile(compiler, scope, &family.sockets())?,
            hidden,
            omits_server_and_date: false,
            ignored,
            force_ranges: scope.get(&family.force_ranges)?,
            pass_trailers: false,
            limit_rate: Size::compile(compiler, scope.get(&family.limit_rate)?),
            store,
            cache,
        })
    }
}
