//! The directives of `otel_*`, and their compiled settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, Word, parse,
};
use framework::compile::{Compiler, Feature};
use framework::generation::Generation;
use framework::registry::Registry;
use http::request::{Request, Text};
use http::variables::Compiling as _;
use proxying::upstream::HttpUpstreams;
use rules::upstream::of_address;
use transport::tls::pem::{self, TrustedFor};
use transport::tls::upstream::settings::ResolvedTls;

use super::collector::Collector;
use super::exporter::{ExportService, Exporter, ExporterSettings, GenerationExporter};
use crate::acme::SYSTEM_AUTHORITIES;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const EXPORTER: Contexts = Contexts::OTEL_EXPORTER;

static OTEL_EXPORTER: Setting<()> = Setting::new("otel_exporter", &["{ ... }"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(Arity::none())
    .block()
    .opens(EXPORTER)
    .manual(
        "The collector of OpenTelemetry that spans are sent to, by OTLP over gRPC, and how they \
         are gathered for that.",
    );

static ENDPOINT: Setting<Word> =
    Setting::new("endpoint", &["[(http|https)://]host:port"], |setter| {
        setter.word().cloned()
    })
    .contexts(EXPORTER)
    .manual(
        "Where the collector is: HOST:PORT, unix:PATH, or the name of an upstream block, with \
         `https://` before it for TLS. It must be written.",
    );

static TRUSTED_CERTIFICATE: Setting<Word> =
    Setting::new("trusted_certificate", &["path"], |setter| {
        setter.word().cloned()
    })
    .contexts(EXPORTER)
    .manual(
        "A file with the certificates, in PEM, one of which the collector's own must come from; \
         without it those that the system trusts.",
    );

static HEADER: Setting<Vec<(Bytes, Bytes)>> = Setting::new("header", &["name value"], headers)
    .contexts(EXPORTER)
    .arity(Arity::exactly(2))
    .inherit(Inherit::List)
    .manual("A field that requests to the collector have, such as a token.");

static INTERVAL: Setting<Duration> = Setting::new("interval", &["time"], parse::milliseconds)
    .contexts(EXPORTER)
    .default("5s")
    .manual("The time after which what has been gathered is sent, however little it is.");

static BATCH_SIZE: Setting<u64> = Setting::new("batch_size", &["number"], at_least_one)
    .contexts(EXPORTER)
    .default("512")
    .manual("The most spans that a thread sends together; that many are sent at once.");

static BATCH_COUNT: Setting<u64> = Setting::new("batch_count", &["number"], at_least_one)
    .contexts(EXPORTER)
    .default("4")
    .manual(
        "The most batches of a thread that the collector has not answered, the one that is being \
         gathered among them. Spans for which there is no room are dropped, and the log says how \
         many.",
    );

static OTEL_SERVICE_NAME: Setting<String> =
    Setting::new("otel_service_name", &["name"], parse::text)
        .contexts(Contexts::HTTP)
        .default("unknown_service:nginx")
        .manual("What this server is called (`service.name` of the resource).");

static OTEL_RESOURCE_ATTR: Setting<Vec<(String, String)>> =
    Setting::new("otel_resource_attr", &["name value"], |setter| {
        let pair = |line: &conf::Line| {
            let [name, value] = [0, 1].map(|number| line.argument(number).text().into_owned());
            (name, value)
        };
        Ok(setter.lines().iter().copied().map(pair).collect())
    })
    .contexts(Contexts::HTTP)
    .arity(Arity::exactly(2))
    .inherit(Inherit::List)
    .manual("An attribute of this server as a whole, which stands beside all of its spans.");

static OTEL_TRACE: Setting<Template> =
    Setting::new("otel_trace", &["on | off | $variable"], parse::template)
        .contexts(HSL)
        .default("off")
        .manual(
            "Traces requests: always, never, or where the text comes to `on` or `1`, as by \
             `$otel_parent_sampled` or a variable of `split_clients`. It is asked once, when a \
             request has come to its location.",
        );

static OTEL_TRACE_CONTEXT: Setting<Propagation> = Setting::new(
    "otel_trace_context",
    &["extract | inject | propagate | ignore"],
    |setter| {
        parse::enumeration(
            setter,
            &[
                ("ignore", Propagation::Ignore),
                ("extract", Propagation::Extract),
                ("inject", Propagation::Inject),
                ("propagate", Propagation::Propagate),
            ],
        )
    },
)
.contexts(HSL)
.default("ignore")
.manual(
    "What is done about `traceparent` and `tracestate` of the client's request: `extract` makes \
     the span one of the client's trace, `inject` sets the fields that upstreams get to those of the \
     span, `propagate` does both, `ignore` passes on what has come.",
);

static OTEL_SPAN_NAME: Setting<Template> =
    Setting::new("otel_span_name", &["name"], parse::template)
        .contexts(HSL)
        .manual(
            "What spans are called; it may have variables. Without it the location's name, which \
             is empty for what no location takes.",
        );

static OTEL_SPAN_ATTR: Setting<Vec<(String, Template)>> =
    Setting::new("otel_span_attr", &["name value"], |setter| {
        let pair = |line: &conf::Line| {
            let name = line.argument(0).text().into_owned();
            Ok((name, Template::parse(line.argument(1))?))
        };
        setter.lines().iter().copied().map(pair).collect()
    })
    .contexts(HSL)
    .arity(Arity::exactly(2))
    .inherit(Inherit::List)
    .manual(
        "An attribute of spans; the value may have variables. Names that begin with \
         `http.request.header.` or `http.response.header.` are lists, as OpenTelemetry wants them.",
    );

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &OTEL_EXPORTER,
    &ENDPOINT,
    &TRUSTED_CERTIFICATE,
    &HEADER,
    &INTERVAL,
    &BATCH_SIZE,
    &BATCH_COUNT,
    &OTEL_SERVICE_NAME,
    &OTEL_RESOURCE_ATTR,
    &OTEL_TRACE,
    &OTEL_TRACE_CONTEXT,
    &OTEL_SPAN_NAME,
    &OTEL_SPAN_ATTR,
];

fn at_least_one(setter: &Setter<'_>) -> Result<u64, Fault> {
    match parse::number(setter)? {
        0 => Err(Fault::invalid_value(setter.word()?)),
        number => Ok(number),
    }
}

/// Header names in lower case, as gRPC requires, and values.
fn headers(setter: &Setter<'_>) -> Result<Vec<(Bytes, Bytes)>, Fault> {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let read = |line: &conf::Line| {
        let (name, value) = (line.argument(0), line.argument(1));
        if name.bytes.is_empty() || !name.bytes.iter().all(is_of_name) {
            let text = "\"header\" directive of \"otel_exporter\" has invalid header name";
            return Err(Fault::at(name, text));
        }
        if !value.bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            let text = "\"header\" directive of \"otel_exporter\" has invalid header value";
            return Err(Fault::at(value, text));
        }
        let value = Bytes::copy_from_slice(&value.bytes);
        Ok((name.bytes.to_ascii_lowercase().into(), value))
    };
    setter.lines().iter().copied().map(read).collect()
}

/// The handling of a request's trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    /// The context is neither read nor sent.
    Ignore,
    /// The span belongs to the client's trace.
    Extract,
    /// The span is sent to upstreams.
    Inject,
    /// The span belongs to the client's trace, and is sent to upstreams.
    Propagate,
}

impl Propagation {
    /// Whether spans belong to clients' traces.
    pub(super) fn extracts(self) -> bool {
        matches!(self, Propagation::Extract | Propagation::Propagate)
    }

    /// Whether spans are sent to upstreams.
    pub(super) fn injects(self) -> bool {
        matches!(self, Propagation::Inject | Propagation::Propagate)
    }
}

/// The requests to trace.
pub(super) enum Condition {
    /// No request.
    Never,
    /// All requests.
    Always,
    /// Requests for which the text evaluates to `on` or `1`.
    Where(Text),
}

impl Condition {
    /// Whether this request is traced.
    pub(super) fn holds(&self, request: &mut Request) -> bool {
        match self {
            Condition::Never => false,
            Condition::Always => true,
            Condition::Where(text) => is_on(&text.evaluate(request)),
        }
    }
}

fn is_on(text: &[u8]) -> bool {
    matches!(text, b"on" | b"1")
}

/// The tracing settings of a scope.
pub(super) struct Tracing {
    pub(super) trace: Condition,
    pub(super) context: Propagation,
    pub(super) span_name: Option<Text>,
    pub(super) attributes: Vec<(String, Text)>,
}

impl Tracing {
    /// Whether requests of this scope are neither traced nor changed.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.trace, Condition::Never) && self.context == Propagation::Ignore
    }
}

impl Feature for Tracing {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &OTEL_TRACE,
        &OTEL_TRACE_CONTEXT,
        &OTEL_SPAN_NAME,
        &OTEL_SPAN_ATTR,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Tracing, Fault> {
        let trace = match scope.written(&OTEL_TRACE)? {
            None => Condition::Never,
            Some(template) => {
                let written = compiler.registry::<WrittenTracing>();
                if !written.borrow().has_exporter {
                    return Err(Fault::new("\"otel_exporter\" block is missing"));
                }
                match template.as_literal() {
                    Some(text) if is_on(text) => Condition::Always,
                    Some(_) => Condition::Never,
                    None => Condition::Where(compiler.text(&template)),
                }
            }
        };
        let name = scope.written(&OTEL_SPAN_NAME)?;
        let attributes = scope.written(&OTEL_SPAN_ATTR)?.unwrap_or_default();
        let attributes = attributes.into_iter();
        Ok(Tracing {
            trace,
            context: scope.get(&OTEL_TRACE_CONTEXT)?,
            span_name: name.map(|name| compiler.text(&name)),
            attributes: attributes
                .map(|(name, value)| (name, compiler.text(&value)))
                .collect(),
        })
    }
}

/// The tracing settings of the whole configuration.
#[derive(Default)]
pub(super) struct WrittenTracing {
    /// Whether any scope may trace or change requests.
    pub(super) is_used: bool,
    /// Whether there is an `otel_exporter` block, valid or not.
    has_exporter: bool,
    exporter: Option<Arc<Exporter>>,
}

impl Registry for WrittenTracing {}

/// Compiles `otel_exporter` before the scopes that need it.
pub fn prepare(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let mut scopes = http.tree().scopes();
    let is_used = scopes.any(|scope| scope.writes(&[&OTEL_TRACE, &OTEL_TRACE_CONTEXT]));
    let mut blocks = http.children("otel_exporter");
    let first = blocks.next();
    for line in blocks.filter_map(|block| block.line()) {
        let text = "\"otel_exporter\" directive is duplicate";
        compiler.report(Fault::at(&line.name, text));
    }
    let exporter = first.and_then(|block| {
        let line = block.line().map(|line| line.position);
        match exporter(compiler, http, block) {
            Ok(exporter) => Some(Arc::new(Exporter::new(exporter))),
            Err(fault) => {
                compiler.report(fault.or_at(line.unwrap_or_default()));
                None
            }
        }
    });
    *compiler.registry::<WrittenTracing>().borrow_mut() = WrittenTracing {
        is_used,
        has_exporter: first.is_some(),
        exporter,
    };
}

/// Adds the exporter to the generation, which runs it.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let written: WrittenTracing = compiler.registries.take();
    if let Some(exporter) = written.exporter {
        let service = ExportService(Arc::clone(&exporter));
        generation.services.push(Arc::new(service));
        generation.add(GenerationExporter(exporter));
    }
}

fn exporter(
    compiler: &Compiler<'_>,
    http: ScopeRef<'_>,
    block: ScopeRef<'_>,
) -> Result<ExporterSettings, Fault> {
    let missing = || Fault::new("\"otel_exporter\" requires \"endpoint\"");
    let endpoint = block.own(&ENDPOINT)?.ok_or_else(missing)?;
    let without = |scheme: &str| {
        let (begin, rest) = endpoint.bytes.split_at_checked(scheme.len())?;
        begin
            .eq_ignore_ascii_case(scheme.as_bytes())
            .then_some(rest)
    };
    let (is_secure, address) = match without("https://") {
        Some(rest) => (true, rest),
        None => (false, without("http://").unwrap_or(&endpoint.bytes)),
    };
    if address.is_empty() {
        return Err(missing());
    }
    let group = of_address::<HttpUpstreams>(compiler, &endpoint, address)?;
    let authority: &[u8] = if address.starts_with(b"unix:") {
        b"localhost"
    } else {
        address
    };
    let secured = if is_secure {
        Some(secured(compiler, block, authority)?)
    } else {
        None
    };
    let number = |setting| -> Result<usize, Fault> {
        Ok(usize::try_from(block.get(setting)?).unwrap_or(usize::MAX))
    };
    // As in nginx, attributes are sorted by name, and of several with the same name the last is
    // used.
    let attributes = http.own(&OTEL_RESOURCE_ATTR)?.unwrap_or_default();
    let mut resource: BTreeMap<String, String> = attributes.into_iter().collect();
    match http.own(&OTEL_SERVICE_NAME)? {
        Some(name) => drop(resource.insert("service.name".to_owned(), name)),
        None => {
            let name = http.get(&OTEL_SERVICE_NAME)?;
            resource.entry("service.name".to_owned()).or_insert(name);
        }
    }
    Ok(ExporterSettings {
        collector: Collector {
            endpoint: endpoint.text().into_owned(),
            group: Arc::clone(&group.shared),
            secured,
            authority: Bytes::copy_from_slice(authority),
            headers: block.own(&HEADER)?.unwrap_or_default(),
        },
        interval: block.get(&INTERVAL)?,
        batch_size: number(&BATCH_SIZE)?,
        batch_count: number(&BATCH_COUNT)?,
        resource: resource.into_iter().collect(),
    })
}

/// The TLS settings for the collector.
fn secured(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    authority: &[u8],
) -> Result<ResolvedTls, Fault> {
    let about = |text: String| Fault::new(format!("otel_exporter: {text}"));
    let written = block.own(&TRUSTED_CERTIFICATE)?;
    let (path, content) = match &written {
        Some(word) => {
            let path = compiler.conf_prefix.join(word.path());
            let content = compiler.files.read(&path).map_err(|error| {
                let (path, error) = (path.display(), logs::Errno(&error));
                Fault::at(word, format!("failed to open \"{path}\" {error}"))
            })?;
            (path, content)
        }
        None => {
            let paths = SYSTEM_AUTHORITIES.iter().map(PathBuf::from);
            let mut found = paths.filter_map(|path| {
                let content = compiler.files.read(&path).ok()?;
                Some((path, content))
            });
            found.next().ok_or_else(|| {
                let text = "the system has no file of trusted authorities, \
                            \"trusted_certificate\" is needed";
                about(text.to_owned())
            })?
        }
    };
    let certificates = pem::authorities(&content, TrustedFor::Servers);
    let unusable = |why: String| {
        let text = format!("cannot use certificates of \"{}\": {why}", path.display());
        match &written {
            Some(word) => Fault::at(word, format!("otel_exporter: {text}")),
            None => about(text),
        }
    };
    let certificates =
        certificates.map_err(|error| unusable(error.reason("CERTIFICATE").to_string()))?;
    ResolvedTls::verified(authority, &certificates, vec![b"h2".to_vec()]).map_err(unusable)
}
