//! `otel_*`: a span for each request that is traced, sent to a collector of OpenTelemetry.
//!
//! <https://nginx.org/en/docs/ngx_otel_module.html>. Whether a request is traced is decided once,
//! when its location is known and before anything there answers; the span is made when the request
//! is logged, by the settings of the location that it has come to by then. Subrequests are no spans
//! of their own: they are of their request's. `context` is what clients and upstreams are told,
//! `messages` and `collector` how collectors are, `exporter` when.

mod collector;
mod context;
mod exporter;
mod messages;
mod settings;
mod span;

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::Arc;

use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::{OnRequestEnd, Script, Shortcut, ShortcutDoc};
use http::request::state::URI_CHANGES_MAX;
use http::request::{Request, Step};
use http::slots::{OfMain, PlanSlot};
use http::variables::BuiltinVariable;

use context::TraceContext;
use settings::{Tracing, WrittenTracing};

pub use settings::{DIRECTIVES, add, prepare};

/// What has something to do for requests.
pub const TASKS: &[Task] = &[Task::of(TaskKind::Log, &["otel_trace"]).listed(2)];

/// What [`register`] says of shortcuts.
pub const SHORTCUTS: &[ShortcutDoc] = &[
    ShortcutDoc::Never("each request that is traced is looked at"),
    ShortcutDoc::Same("elsewhere requests are traced, here they are not"),
];

/// What holds in a plan that looks at the context of requests.
static OF_PLAN: PlanSlot<Tracing> = PlanSlot::new();

/// Where in a trace a request stands.
#[derive(Default)]
struct RequestTrace {
    parent: TraceContext,
    /// Without a span as long as nobody has asked.
    current: TraceContext,
}

impl SlotValue for RequestTrace {}

static TRACE: Slot<RequestTrace, OfMain> = Slot::new();

/// Has requests of a scope traced, if they are.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let written = plan.compiler.registry::<WrittenTracing>();
    if !written.borrow().is_used {
        return Some(());
    }
    let tracing: Arc<Tracing> = plan.feature()?;
    // Another location may have decided.
    plan.ending(&tracing);
    if tracing.is_off() {
        plan.shortcut(Shortcut::Same);
    } else {
        plan.located(&tracing);
        plan.keep(&OF_PLAN, &tracing);
        plan.shortcut(Shortcut::Never);
    }
    Some(())
}

impl Script for Tracing {
    /// Decides whether a request is traced, and tells upstreams. One that has been redirected
    /// within the server has come through a location that has decided.
    fn run(&self, request: &mut Request) -> Step {
        if request.course.changes_left <= URI_CHANGES_MAX || !request.is_main() {
            return Step::Next;
        }
        let sampled = self.trace.holds(request);
        if !sampled && !self.context.extracts() && !self.context.injects() {
            return Step::Next;
        }
        begin(request);
        let mut known = request.shared.main.borrow_mut();
        let trace = known.enter(&TRACE);
        trace.current.sampled = sampled;
        if !self.context.injects() {
            return Step::Next;
        }
        let current = trace.current.clone();
        drop(known);
        inject(request, &current);
        Step::Next
    }
}

/// Makes the number of a request's span, and that of its trace where the client has told none that
/// counts here.
fn begin(request: &Request) {
    let mut known = request.shared.main.borrow_mut();
    let trace = known.enter(&TRACE);
    if trace.current.span_id != 0 {
        return;
    }
    let of_plan = request.plan.of(&OF_PLAN);
    if of_plan.is_some_and(|tracing| tracing.context.extracts()) {
        trace.parent = extract(request);
    }
    trace.current = TraceContext::child_of(&trace.parent);
}

/// What the client says. Of several lines `tracestate` they are one list.
fn extract(request: &Request) -> TraceContext {
    let Some(parent) = request.header_named(b"traceparent") else {
        return TraceContext::default();
    };
    let mut state = Vec::new();
    for (name, value) in request.headers() {
        if name.eq_ignore_ascii_case(b"tracestate") && !value.is_empty() {
            if !state.is_empty() {
                state.push(b',');
            }
            state.extend_from_slice(value);
        }
    }
    TraceContext::parse(parent, state.into())
}

/// Gives the request the fields that upstreams get: those of its own span in the place of the
/// client's.
fn inject(request: &mut Request, current: &TraceContext) {
    let mut fields = request.copied_fields();
    fields.retain(|(name, _)| {
        !name.eq_ignore_ascii_case(b"traceparent") && !name.eq_ignore_ascii_case(b"tracestate")
    });
    fields.push((b"traceparent".to_vec(), current.header().into_bytes()));
    if !current.state.is_empty() {
        fields.push((b"tracestate".to_vec(), current.state.to_vec()));
    }
    request.replace_fields(&fields);
}

impl OnRequestEnd for Tracing {
    fn ended(&self, request: &mut Request) {
        let known = request.shared.main.borrow();
        let is_traced = known.get(&TRACE).is_some_and(|trace| trace.current.sampled);
        drop(known);
        if is_traced && request.is_main() {
            let span = span::of(request, self);
            exporter::add(request, span);
        }
    }

    fn reads_response(&self) -> bool {
        !self.is_off()
    }
}

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    Some(BuiltinVariable::computed(match name {
        "otel_trace_id" => |request, out| {
            let id = told(request, |trace| trace.current.trace_id);
            append(out, format_args!("{id:032x}"))
        },
        "otel_span_id" => |request, out| {
            let id = told(request, |trace| trace.current.span_id);
            append(out, format_args!("{id:016x}"))
        },
        "otel_parent_id" => |request, out| match told(request, |trace| trace.parent.span_id) {
            0 => false,
            id => append(out, format_args!("{id:016x}")),
        },
        "otel_parent_sampled" => |request, out| {
            let sampled = told(request, |trace| trace.parent.sampled);
            append(out, format_args!("{}", u8::from(sampled)))
        },
        _ => return None,
    }))
}

/// What there is to tell of a request, which begins with that to have a span of its own.
fn told<T>(request: &Request, what: impl FnOnce(&RequestTrace) -> T) -> T {
    begin(request);
    what(request.shared.main.borrow_mut().enter(&TRACE))
}

fn append(out: &mut Vec<u8>, text: Arguments<'_>) -> bool {
    // A vector has room for whatever is written to it.
    let _ = out.write_fmt(text);
    true
}
