//! `otel_*`: a span for each traced request, sent to an OpenTelemetry collector.
//!
//! <https://nginx.org/en/docs/ngx_otel_module.html>. The decision to trace a request is made once,
//! when its location is known and before any handler runs. The span is created when the request is
//! logged, with the settings of its final location. Subrequests have no spans of their own; they
//! belong to the span of their main request. `context` has the headers of clients and upstreams,
//! `messages` and `collector` the protocol of collectors, `exporter` the schedule of exports.

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
use http::slots::{MainRequestLifetime, PlanSlot};
use http::variables::BuiltinVariable;

use context::TraceContext;
use settings::{Tracing, WrittenTracing};

pub use settings::{DIRECTIVES, add, prepare};

/// The phases that this module takes part in.
pub const TASKS: &[Task] = &[Task::of(TaskKind::Log, &["otel_trace"]).listed(2)];

/// For the documentation: how the directives of this module affect prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[
    ShortcutDoc::Never("each request that is traced is looked at"),
    ShortcutDoc::Same("elsewhere requests are traced, here they are not"),
];

/// The tracing settings of a plan; absent if its requests are neither traced nor changed.
static OF_PLAN: PlanSlot<Tracing> = PlanSlot::new();

/// The trace context of a request.
#[derive(Default)]
struct RequestTrace {
    /// The context that the client has sent, if it is used.
    parent: TraceContext,
    /// The request's own span; its span ID is 0 until the span is first needed.
    current: TraceContext,
}

impl SlotValue for RequestTrace {}

static TRACE: Slot<RequestTrace, MainRequestLifetime> = Slot::new();

/// Registers tracing of a scope's requests, if they are traced.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let written = plan.compiler.registry::<WrittenTracing>();
    if !written.borrow().is_used {
        return Some(());
    }
    let tracing: Arc<Tracing> = plan.feature()?;
    // Registered even if tracing is off here: another location may have decided to trace the
    // request.
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
    /// Decides whether a request is traced, and sets the fields for upstreams. After an internal
    /// redirect, an earlier location has already decided.
    fn run(&self, request: &mut Request) -> Step {
        if request.routing.uri_changes_left <= URI_CHANGES_MAX || !request.is_main() {
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

/// Generates the span ID of a request, and a trace ID if there is no valid one from the client.
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

/// The context that the client sends. Several `tracestate` fields are joined to one list.
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

/// Replaces `traceparent` and `tracestate` of the request with the fields of the request's own
/// span, which upstreams then receive.
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

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    Some(BuiltinVariable::computed(match name {
        "otel_trace_id" => |request, out| {
            let id = trace_value(request, |trace| trace.current.trace_id);
            append(out, format_args!("{id:032x}"))
        },
        "otel_span_id" => |request, out| {
            let id = trace_value(request, |trace| trace.current.span_id);
            append(out, format_args!("{id:016x}"))
        },
        "otel_parent_id" => |request, out| match trace_value(request, |trace| trace.parent.span_id)
        {
            0 => false,
            id => append(out, format_args!("{id:016x}")),
        },
        "otel_parent_sampled" => |request, out| {
            let sampled = trace_value(request, |trace| trace.parent.sampled);
            append(out, format_args!("{}", u8::from(sampled)))
        },
        _ => return None,
    }))
}

/// A value of the request's trace context; creates the span first.
fn trace_value<T>(request: &Request, what: impl FnOnce(&RequestTrace) -> T) -> T {
    begin(request);
    what(request.shared.main.borrow_mut().enter(&TRACE))
}

fn append(out: &mut Vec<u8>, text: Arguments<'_>) -> bool {
    // A vector grows as needed, so writing cannot fail.
    let _ = out.write_fmt(text);
    true
}
