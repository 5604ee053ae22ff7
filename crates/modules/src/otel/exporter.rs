//! The export of spans: each thread collects its own in a batch, and one thread of the process
//! sends the batches of all.
//!
//! ```text
//! request ends ─▶ ThreadSpans::add ─┬▶ full: the batch joins the queue ─▶ run ─▶ Collector::export
//!                                   └▶ every `interval`, run takes the spans so far
//! ```
//!
//! A thread has at most `batch_count` unanswered batches, including the one that it fills. A span
//! that does not fit is dropped and counted, which limits memory. After a reload, the export thread
//! of the previous generation continues until the last request of its generation has ended, and
//! then sends its remaining spans. When the process ends, it waits at most [`END_MAX`] for
//! unanswered batches.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::ExitBlocker;
use engine::select::either;
use framework::generation::{Generation, GenerationView};
use framework::service::{RunningService, Service};
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use framework::zone::Zones;
use http::request::Request;
use logs::{Printable, event};
use prost::Message as _;
use rules::service_thread;

use super::collector::Collector;
use super::messages::{
    ExportRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span,
};

/// How long a process waits at its end for the collector to accept the remaining spans.
const END_MAX: Duration = Duration::from_secs(2);

/// The interval at which the export thread of a previous generation looks for batches.
const LOOK_AT_END: Duration = Duration::from_millis(100);

/// The exporter of a generation: its settings, and the spans that have not been sent yet.
pub(super) struct Exporter {
    settings: ExporterSettings,
    queue: Mutex<Queue>,
    /// The buffers of the threads.
    buffers: Mutex<Vec<Weak<SpanBuffer>>>,
    /// The number of spans that were dropped.
    dropped: AtomicU64,
    /// The second (of the process's uptime, counted from 1) of the last log line about dropped
    /// spans.
    logged_second: AtomicU64,
}

/// The settings of `otel_exporter`.
pub(super) struct ExporterSettings {
    /// The collector of the spans.
    pub(super) collector: Collector,
    /// Maximum time before a span is sent.
    pub(super) interval: Duration,
    /// Maximum number of spans of a batch.
    pub(super) batch_size: usize,
    /// Maximum number of unanswered batches of a thread.
    pub(super) batch_count: usize,
    /// The resource attributes of this server.
    pub(super) resource: Vec<(String, String)>,
}

/// The batches that wait for the export thread, and the state of that thread.
#[derive(Default)]
struct Queue {
    batches: Vec<Batch>,
    /// Whether a newer generation serves, or the process ends.
    is_ending: bool,
    /// Wakes the export thread while it waits for batches.
    waker: Option<Waker>,
    /// The running export thread; removed when the thread ends.
    thread: Option<RunningService>,
}

/// Spans that are sent together, already encoded.
struct Batch {
    /// The encoded spans.
    spans: Vec<u8>,
    /// The number of spans.
    count: usize,
    /// Counts the batch for its thread until it has been answered or lost.
    outstanding: Outstanding,
    /// Delays the end of the process until the batch is done; set once the thread or the process
    /// is ending.
    unfinished: Option<ExitBlocker>,
}

/// Counts an unanswered batch of a thread.
struct Outstanding(Arc<AtomicUsize>);

impl Outstanding {
    fn new(count: &Arc<AtomicUsize>) -> Outstanding {
        count.fetch_add(1, Ordering::Relaxed);
        Outstanding(Arc::clone(count))
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The batch that a thread fills. Other threads use the lock only for the moment in which they take
/// the batch.
#[derive(Default)]
struct SpanBuffer {
    /// The encoded spans of the batch, and their number.
    current: Mutex<(Vec<u8>, usize)>,
    /// Number of unanswered batches of the thread.
    outstanding: Arc<AtomicUsize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exporter {
    /// An exporter without spans.
    pub(super) fn new(settings: ExporterSettings) -> Exporter {
        Exporter {
            settings,
            queue: Mutex::default(),
            buffers: Mutex::default(),
            dropped: AtomicU64::new(0),
            logged_second: AtomicU64::new(0),
        }
    }

    /// Adds a span to a thread's batch; returns the batch if it is full.
    fn add(&self, buffer: &SpanBuffer, span: Span) -> Result<Option<Batch>, QueueFull> {
        let mut current = lock(&buffer.current);
        let is_new = current.1 == 0;
        if is_new && buffer.outstanding.load(Ordering::Relaxed) >= self.settings.batch_count {
            return Err(QueueFull);
        }
        let spans = ScopeSpans {
            scope: None,
            spans: vec![span],
        };
        // A vector grows as needed, so encoding cannot fail.
        let _ = spans.encode(&mut current.0);
        current.1 += 1;
        let is_full = current.1 >= self.settings.batch_size;
        Ok(is_full.then(|| take(buffer, &mut current)))
    }

    /// Queues batches, and wakes the export thread.
    fn push(&self, batches: impl IntoIterator<Item = Batch>) {
        let mut queue = lock(&self.queue);
        let is_ending = queue.is_ending;
        queue.batches.extend(batches.into_iter().map(|mut batch| {
            if is_ending {
                batch.unfinished = Some(ExitBlocker::for_at_most(END_MAX, "traces"));
            }
            batch
        }));
        let waker = queue.waker.take();
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Queues the spans that the threads have collected so far.
    fn gather(&self) {
        let mut buffers = lock(&self.buffers);
        let mut batches = Vec::new();
        buffers.retain(|buffer| {
            let Some(buffer) = buffer.upgrade() else {
                return false;
            };
            let mut current = lock(&buffer.current);
            if current.1 > 0 {
                batches.push(take(&buffer, &mut current));
            }
            true
        });
        drop(buffers);
        if !batches.is_empty() {
            self.push(batches);
        }
    }

    /// Counts a dropped span, and logs that at most once per second.
    fn drop_span(&self, request: &Request) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        let second = engine::uptime().as_secs() + 1;
        if self.logged_second.swap(second, Ordering::Relaxed) != second {
            logs::error!(request, Notice, "OTel dropped records: {dropped}");
        }
    }

    /// Waits until there are batches.
    async fn wait(&self) {
        std::future::poll_fn(|context| {
            let mut queue = lock(&self.queue);
            if !queue.batches.is_empty() {
                return Poll::Ready(());
            }
            queue.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The message for a batch.
    fn message(&self, batch: &Batch) -> Vec<u8> {
        let scope = ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "tidegate".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            spans: Vec::new(),
        };
        let mut spans = scope.encode_to_vec();
        spans.extend_from_slice(&batch.spans);
        let attributes = self.settings.resource.iter();
        let attributes = attributes.map(|(name, value)| KeyValue::text(name, value.as_bytes()));
        let request = ExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource {
                    attributes: attributes.collect(),
                }),
                scope_spans: vec![Bytes::from(spans)],
            }],
        };
        request.encode_to_vec()
    }
}

/// The thread has as many unanswered batches as `batch_count` allows.
struct QueueFull;

/// Takes the spans that a thread has collected, as a batch.
fn take(buffer: &SpanBuffer, current: &mut (Vec<u8>, usize)) -> Batch {
    let (spans, count) = std::mem::take(current);
    Batch {
        spans,
        count,
        outstanding: Outstanding::new(&buffer.outstanding),
        unfinished: None,
    }
}

/// The batch of a thread for a generation.
struct ThreadSpans(Option<(Arc<Exporter>, Arc<SpanBuffer>)>);

static SPANS: Slot<ThreadSpans, ThreadGeneration> = Slot::new();

/// The exporter of a generation.
pub(super) struct GenerationExporter(pub(super) Arc<Exporter>);

impl ThreadState for ThreadSpans {
    fn begin(local: &GenerationView) -> ThreadSpans {
        let exporter = local.generation.part::<GenerationExporter>();
        ThreadSpans(exporter.map(|exporter| {
            let buffer = Arc::<SpanBuffer>::default();
            lock(&exporter.0.buffers).push(Arc::downgrade(&buffer));
            (Arc::clone(&exporter.0), buffer)
        }))
    }
}

impl Drop for ThreadSpans {
    /// Queues the batch when the last request of a generation has ended on this thread, or when the
    /// thread ends.
    fn drop(&mut self) {
        if let Some((exporter, buffer)) = &self.0 {
            let mut current = lock(&buffer.current);
            if current.1 > 0 {
                exporter.push([take(buffer, &mut current)]);
            }
        }
    }
}

/// Queues the span of a finished request for export.
pub(super) fn add(request: &Request, span: Span) {
    let spans = request.local.at(&SPANS);
    let spans = spans.borrow();
    let Some((exporter, buffer)) = &spans.0 else {
        return;
    };
    match exporter.add(buffer, span) {
        Ok(full) => {
            if let Some(batch) = full {
                exporter.push([batch]);
            }
        }
        Err(QueueFull) => exporter.drop_span(request),
    }
}

/// Runs the export of batches.
pub(super) struct ExportService(pub(super) Arc<Exporter>);

impl Service for ExportService {
    fn key(&self) -> String {
        "otel_exporter".to_owned()
    }

    /// Starts an export thread. The thread of the previous generation ends with the last request of
    /// that generation.
    fn start(
        &self,
        generation: &Arc<Generation>,
        before: Option<RunningService>,
    ) -> Option<RunningService> {
        drop(before);
        let exporter = Arc::clone(&self.0);
        let of_requests = Arc::downgrade(generation);
        let work = move || run(exporter, of_requests);
        let thread = service_thread::start("otel", "traces", work)?;
        lock(&self.0.queue).thread = Some(thread);
        Some(Box::new(ExporterAtWork(Arc::clone(&self.0))))
    }
}

/// Tells the export thread, when dropped, that a newer generation serves or that the process ends.
struct ExporterAtWork(Arc<Exporter>);

impl Drop for ExporterAtWork {
    fn drop(&mut self) {
        lock(&self.0.queue).is_ending = true;
        self.0.gather();
        let waker = lock(&self.0.queue).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The state of the export thread.
struct Sending {
    exporter: Arc<Exporter>,
    local: Rc<GenerationView>,
    /// Number of batches that have left the queue and are unanswered.
    in_flight: Cell<usize>,
    /// The second of the last log line about a failure, and the number of spans that have been lost
    /// since.
    logged_second: Cell<(u64, usize)>,
}

/// Runs the export thread, until its generation has been replaced and has neither requests nor
/// unanswered batches.
async fn run(exporter: Arc<Exporter>, of_requests: Weak<Generation>) {
    let own = Arc::new(Generation::without_requests(Zones::default()));
    let worker = service_thread::worker(own);
    let sending = Rc::new(Sending {
        local: worker.current(),
        exporter: Arc::clone(&exporter),
        in_flight: Cell::new(0),
        logged_second: Cell::default(),
    });
    let interval = exporter.settings.interval.max(Duration::from_millis(1));
    let mut due = engine::now() + interval;
    let mut had_requests = true;
    loop {
        let is_ending = lock(&exporter.queue).is_ending;
        if is_ending {
            due = due.min(engine::now() + LOOK_AT_END);
        }
        either(exporter.wait(), engine::sleep_until(due)).await;
        if Instant::now() >= due {
            exporter.gather();
            due = engine::now() + interval;
        }
        let (batches, is_ending) = {
            let mut queue = lock(&exporter.queue);
            (std::mem::take(&mut queue.batches), queue.is_ending)
        };
        for batch in batches {
            let in_flight = InFlightBatch::begin(&sending);
            engine::spawn(async move { in_flight.0.send(batch).await });
        }
        // A thread queues its spans a moment after its last request has ended.
        let has_requests = of_requests.strong_count() > 0;
        if is_ending && !has_requests && !had_requests && sending.in_flight.get() == 0 {
            break;
        }
        had_requests = has_requests;
    }
    // Breaks the reference cycle between the exporter and its thread.
    lock(&exporter.queue).thread = None;
}

/// A batch that is being sent, counted from when it leaves the queue.
struct InFlightBatch(Rc<Sending>);

impl InFlightBatch {
    /// Counts a batch as in flight until the result is dropped.
    fn begin(sending: &Rc<Sending>) -> InFlightBatch {
        sending.in_flight.set(sending.in_flight.get() + 1);
        InFlightBatch(Rc::clone(sending))
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

impl Sending {
    async fn send(&self, batch: Batch) {
        let second = engine::uptime().as_secs() + 1;
        let is_quiet = self.logged_second.get().0 == second;
        let message = self.exporter.message(&batch);
        let collector = &self.exporter.settings.collector;
        let exported = collector.export(&self.local, &message, is_quiet).await;
        match exported {
            Ok(None) => {}
            Ok(Some(partial))
                if partial.rejected_spans == 0 && partial.error_message.is_empty() => {}
            Ok(Some(partial)) => {
                let why = Printable(partial.error_message.as_bytes());
                let lost = usize::try_from(partial.rejected_spans).unwrap_or(0);
                self.tell(lost, format_args!("partial success: {why}"));
            }
            Err(why) => self.tell(batch.count, format_args!("{why}")),
        }
        drop(batch.outstanding);
        drop(batch.unfinished);
    }

    /// Logs lost spans at most once per second.
    fn tell(&self, lost: usize, why: std::fmt::Arguments<'_>) {
        let second = engine::uptime().as_secs() + 1;
        let (logged_second, before) = self.logged_second.get();
        let lost = lost + before;
        if logged_second == second {
            return self.logged_second.set((logged_second, lost));
        }
        self.logged_second.set((second, 0));
        let endpoint = &self.exporter.settings.collector.endpoint;
        event!(
            Error,
            "OTel export failure: {why}, {lost} spans lost, otel_exporter: \"{endpoint}\""
        );
    }
}
