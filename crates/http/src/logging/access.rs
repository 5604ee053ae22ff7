//! `access_log` for requests: when lines are written, and which variables the lines may contain.
//! Formats, files and the directive itself are in [`rules::access_log`].

use std::path::PathBuf;
use std::sync::Arc;

use conf::{Fault, ScopeRef};
use framework::compile::Compiler;
use logs::{ERROR_LOG, ErrorLog};
use rules::access_log::{ACCESS_LOG, Loggable};

use crate::config::plan_builder::PlanBuilder;
use crate::config::tasks::{Task, TaskKind};
use crate::module::{Module, OnRequestEnd, ShortcutDoc};
use crate::request::Request;

/// The access logs of a scope.
pub type AccessLogs = rules::access_log::AccessLogs<Request>;

/// Compiles the formats of the `http` block, so that errors in unused formats are reported too.
pub fn check(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Result<(), Fault> {
    rules::format::check::<Request>(compiler, http)
}

/// Opens the logs that the `http` block itself sets, even if every server sets its own logs: nginx
/// opens each configured log, used or not.
pub fn open_written(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Option<()> {
    if http.writes(&[&ACCESS_LOG]) {
        compiler.feature_or_report::<AccessLogs>(http)?;
    }
    if http.writes(&[&ERROR_LOG]) {
        compiler.feature_or_report::<ErrorLog>(http)?;
    }
    Some(())
}

/// Variables whose values Tidegate generates. They are always set, and are safe to write unescaped
/// in every escape mode.
const UNESCAPED: [&str; 9] = [
    "pipe",
    "time_local",
    "time_iso8601",
    "msec",
    "request_time",
    "status",
    "bytes_sent",
    "body_bytes_sent",
    "request_length",
];

/// Variables that can be evaluated before the response's head is known, in addition to `$http_*`,
/// `$arg_*` and `$cookie_*`. Any other variable, such as a variable that the configuration defines,
/// may depend on the response.
const EARLY: [&str; 31] = [
    "args",
    "body_bytes_sent",
    "bytes_sent",
    "connection",
    "connection_requests",
    "content_length",
    "content_type",
    "host",
    "hostname",
    "is_args",
    "msec",
    "pid",
    "pipe",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_id",
    "request_length",
    "request_method",
    "request_time",
    "request_uri",
    "scheme",
    "server_name",
    "server_port",
    "server_protocol",
    "status",
    "time_iso8601",
    "time_local",
    "uri",
];

impl Loggable for Request {
    const COMBINED: Option<&'static str> = Some(
        "$remote_addr - $remote_user [$time_local] \"$request\" \
         $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"",
    );

    fn is_plain(name: &str) -> bool {
        UNESCAPED.contains(&name)
    }

    fn is_early(name: &str) -> bool {
        let family = ["http_", "arg_", "cookie_"];
        EARLY.contains(&name) || family.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The document root whose existence is to be tested; `None` if it is known to exist. For an
    /// `alias` that contains the URI, the root is the file itself.
    fn root(&mut self) -> Option<PathBuf> {
        let is_wanted = !self.routing.root_tested;
        is_wanted.then(|| Request::path_of(&self.document_root()))
    }
}

impl Module for AccessLogs {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Log, &["access_log"]).by_default()];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "what is answered from memory is logged, too",
    )];

    fn is_off(&self) -> bool {
        self.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.ending(self);
    }
}

impl OnRequestEnd for AccessLogs {
    /// Appends the request's line to every access log.
    fn ended(&self, request: &mut Request) {
        request.keepalive.on &= !request.keepalive.refused;
        let before = request.activity.doing;
        if request.is_main() {
            request.activity.doing = " while logging request";
        }
        self.write(request);
        // A subrequest has ended, but its parent continues with its activity.
        request.activity.doing = if request.is_main() { "" } else { before };
    }

    fn reads_response(&self) -> bool {
        AccessLogs::reads_response(self)
    }
}

#[cfg(test)]
mod tests {
    use variables::Source;

    use super::*;
    use crate::testing::NO_MODULES;

    #[test]
    fn every_plain_name_is_a_variable() {
        for name in UNESCAPED {
            let source = NO_MODULES.variable(name).unwrap().source;
            assert!(
                matches!(source, Source::Builtin(_) | Source::Kept(_)),
                "{name}"
            );
        }
        assert!(!Request::is_plain("request"));
    }
}
