//! `auth_request`: access by the response to a subrequest.
//!
//! <https://nginx.org/en/docs/http/ngx_http_auth_request_module.html>. A 2xx response to the
//! subrequest grants access, 401 or 403 refuses it; any other response is an error. Only the head
//! of the response counts, and its body is discarded.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{AccessVerdict, Check, MaybeFuture, Module};
use http::request::{Request, Text};
use http::response::Field;
use http::response::output;
use http::variables::Compiling as _;
use variables::name::variable_name;

use crate::rewrite::Target;
use proxying::attempts::Attempts;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `auth_request uri | off`
pub static AUTH_REQUEST: Setting<Option<Bytes>> =
    Setting::new("auth_request", &["uri | off"], |setter: &Setter<'_>| {
        let uri = &*setter.word()?.bytes;
        Ok((!uri.is_empty() && uri != b"off").then(|| Bytes::copy_from_slice(uri)))
    })
    .contexts(HSL)
    .default("off")
    .manual("Asks a subrequest to this URI whether access is granted.");

/// Declares the directive `auth_request_set $variable value`.
pub static AUTH_REQUEST_SET: Setting<Vec<(Word, Template)>> = Setting::new(
    "auth_request_set",
    &["$variable value"],
    |setter: &Setter<'_>| setter.lines().iter().map(|line| assignment(line)).collect(),
)
.contexts(HSL)
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual(
    "Sets a variable once the subrequest of `auth_request` has been answered. The value may \
         hold variables of the subrequest, such as `$upstream_http_…`.",
);

fn assignment(line: &Line) -> Result<(Word, Template), Fault> {
    let [name, value, ..] = &*line.args else {
        return Err(Fault::at(
            &line.name,
            "invalid number of arguments in \"auth_request_set\" directive",
        ));
    };
    variable_name(name)?;
    Ok((name.clone(), Template::parse(value)?))
}

/// `auth_request` and `auth_request_set` of a scope.
#[derive(Debug)]
pub struct AuthRequest {
    /// The URI of the subrequest; `None` if the check is off.
    uri: Option<Bytes>,
    /// The variables of `auth_request_set`, with the values that the subrequest gives them.
    variables: Box<[(Target, Text)]>,
}

impl Feature for AuthRequest {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&AUTH_REQUEST, &AUTH_REQUEST_SET];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<AuthRequest, Fault> {
        let mut variables = Vec::new();
        for (name, value) in scope.written(&AUTH_REQUEST_SET)?.unwrap_or_default() {
            let target = Target::new(compiler, &name)?;
            variables.push((target, compiler.text(&value)));
        }
        Ok(AuthRequest {
            uri: scope.get(&AUTH_REQUEST)?,
            variables: variables.into(),
        })
    }
}

impl Module for AuthRequest {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Access, &["auth_request"]).listed(2)];

    fn is_off(&self) -> bool {
        self.uri.is_none()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.access(self);
    }
}

impl Check for AuthRequest {
    fn check<'a>(
        &'a self,
        request: &'a mut Request,
        exchange: &'a mut Exchange,
    ) -> MaybeFuture<'a, Result<AccessVerdict, Abort>> {
        match &self.uri {
            Some(uri) => MaybeFuture::wait(ask(request, exchange, uri, &self.variables)),
            None => MaybeFuture::Now(Ok(AccessVerdict::Declined)),
        }
    }

    fn explain_verdict(&self, _: &Request) -> Option<(String, AccessVerdict)> {
        let text = "auth_request decides when the request is made";
        Some((text.to_owned(), AccessVerdict::Declined))
    }
}

/// Runs the subrequest, and returns the verdict of its response.
async fn ask(
    request: &mut Request,
    exchange: &mut Exchange,
    uri: &Bytes,
    variables: &[(Target, Text)],
) -> Result<AccessVerdict, Abort> {
    if request.background.is_some() {
        request.start_background();
        // As in nginx, the subrequests of `mirror` start first: if both set a variable, the value
        // of this subrequest stays.
        engine::yield_now().await;
    }
    let answered = output::subrequest(request, exchange, uri.to_vec(), Vec::new(), true).await?;
    let Some(mut subrequest) = answered else {
        return Ok(AccessVerdict::Refused(500));
    };
    set_variables(request, &mut subrequest, variables);
    Ok(match subrequest.response.status {
        403 => AccessVerdict::Refused(403),
        401 => {
            copy_challenges(request, &subrequest);
            AccessVerdict::Refused(401)
        }
        200..300 => AccessVerdict::Granted,
        status => {
            logs::error!(request, Error, "auth request unexpected status: {status}");
            AccessVerdict::Refused(500)
        }
    })
}

/// Sets variables to values evaluated for the subrequest. They stay set for the request, also after
/// internal redirects.
fn set_variables(request: &mut Request, subrequest: &mut Request, variables: &[(Target, Text)]) {
    for (target, value) in variables {
        let value = value.evaluate(subrequest);
        target.assign(request, &value);
    }
}

/// Copies the challenges of the subrequest's response.
fn copy_challenges(request: &mut Request, subrequest: &Request) {
    let is_challenge = |name: &[u8]| name.eq_ignore_ascii_case(b"WWW-Authenticate");
    let own = subrequest.response.fields.iter();
    let own = own.filter(|field| is_challenge(&field.name)).cloned();
    let mut challenges: Vec<Field> = own.collect();
    if challenges.is_empty()
        && let Some(seen) = Attempts::of(subrequest)
        && let Some(answer) = &seen.borrow().answer
    {
        challenges.extend(
            answer
                .owned_fields()
                .filter(|field| is_challenge(&field.name)),
        );
    }
    request.response.fields.append(&mut challenges);
}
