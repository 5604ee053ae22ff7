//! `limit_conn`: limits the number of concurrent requests or sessions with the same key.
//!
//! <https://nginx.org/en/docs/http/ngx_http_limit_conn_module.html>. A context (a request or
//! session) counts from the call of [`LimitConn::enter`] until its leases are dropped.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::hash::Map;
use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
    parse,
};
use framework::compile::{Compiler, Feature};
use framework::slot::SlotValue;
use framework::zone::{self, State, Zone, ZoneBudget, ZoneError, ZoneFact, ZoneFactSink};
use logs::{Printable, error, event, write};
use variables::write::text;
use variables::{BuiltinVariable, Compiling as _, Context, Text};

use crate::limited::{self, RefusalFamily, RefusalSettings};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The blocks in which the directives are allowed that also apply to sessions.
const CONTEXTS: Contexts = HSL
    .or(Contexts::STREAM)
    .or(Contexts::STREAM_SERVER)
    .or(Contexts::MEMCACHED)
    .or(Contexts::MEMCACHED_SERVER);

/// The longest key, in bytes; contexts with longer keys are not limited.
const KEY_LENGTH_MAX: usize = 255;

/// The memory that nginx uses for an entry in addition to its key, in bytes.
const ENTRY_SIZE: usize = 36;

/// The memory that nginx uses for a zone as a whole, in bytes.
const HEAD_SIZE: u64 = 64;

/// Declares the directive `limit_conn_zone key zone=name:size`.
pub static LIMIT_CONN_ZONE: Setting<()> = Setting::new(
    "limit_conn_zone",
    &["key zone=name:size"],
    |setter| {
        setter
            .lines()
            .iter()
            .try_for_each(|line| declaration(line).map(drop))
    },
)
.contexts(Contexts::HTTP.or(Contexts::STREAM).or(Contexts::MEMCACHED))
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual(
    "Declares a zone that counts connections by the key, which may hold variables; requests with \
     an empty key are not counted. Where the zone is full, requests for new keys are refused.",
);

/// Declares the directive `limit_conn zone number`.
pub static LIMIT_CONN: Setting<Vec<LimitLine>> =
    Setting::new("limit_conn", &["zone number"], limits)
        .contexts(CONTEXTS)
        .arity(Arity::exactly(2))
        .inherit(Inherit::List)
        .manual(
            "Limits how many requests for one key of the zone are served at the same time. Several \
         lines limit together.",
        );

static REFUSAL: RefusalFamily = RefusalFamily::of(
    "limit_conn_",
    CONTEXTS,
    "The level of the line about a request that is refused.",
    "Only counts and logs; no request is refused.",
);

/// The result of `limit_conn` for a request or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The request is within its limits.
    Passed,
    /// The request was refused.
    Rejected,
    /// The request would have been refused without `limit_conn_dry_run`.
    RejectedDryRun,
}

impl LimitOutcome {
    /// The value of `$limit_conn_status`.
    pub fn name(self) -> &'static str {
        match self {
            LimitOutcome::Passed => "PASSED",
            LimitOutcome::Rejected => "REJECTED",
            LimitOutcome::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// The settings of a zone.
pub struct ZoneSettings<C> {
    key: Text<C>,
    /// The key as written in the configuration.
    key_text: Box<str>,
}

/// One line of `limit_conn`, before its zone is looked up.
pub struct LimitLine {
    zone: Box<str>,
    connections: u32,
}

struct Limit<C: Context> {
    zone: Arc<Zone<Connections<C>>>,
    connections: u32,
}

/// The limits of a scope.
pub struct LimitConn<C: Context> {
    limits: Box<[Limit<C>]>,
    refusal: RefusalSettings,
}

impl<C: Context> Feature for LimitConn<C> {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &LIMIT_CONN,
        &REFUSAL.status,
        &REFUSAL.log_level,
        &REFUSAL.dry_run,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<LimitConn<C>, Fault> {
        let mut limits: Vec<Limit<C>> = Vec::new();
        for line in scope.get(&LIMIT_CONN)? {
            let zone = compiler.zones.borrow().find::<Connections<C>>(&line.zone);
            let zone =
                zone.map_err(|text| Fault::new(text).of_missing(&line.zone, &["limit_conn_zone"]))?;
            limits.push(Limit {
                zone,
                connections: line.connections,
            });
        }
        Ok(LimitConn {
            limits: limits.into(),
            refusal: REFUSAL.read(scope)?,
        })
    }
}

/// The result of `limit_conn` for a context, and the leases by which the context is counted.
pub struct ConnectionLimitState<C: Context> {
    /// `$limit_conn_status`, once a limit has been evaluated.
    pub outcome: Option<LimitOutcome>,
    leases: Vec<Lease<C>>,
}

impl<C: Context> Default for ConnectionLimitState<C> {
    fn default() -> ConnectionLimitState<C> {
        ConnectionLimitState {
            outcome: None,
            leases: Vec::new(),
        }
    }
}

impl<C: Context> SlotValue for ConnectionLimitState<C> {
    fn reset(&mut self) {
        self.outcome = None;
        self.leases.clear();
    }
}

/// Access to the [`ConnectionLimitState`] of a context.
pub trait ConnectionCounting<C: Context>: 'static {
    /// The result for a context; `None` if no limit has been evaluated for it.
    fn outcome(context: &C) -> Option<LimitOutcome>;

    /// Changes the state of a context.
    fn note(context: &C, change: impl FnOnce(&mut ConnectionLimitState<C>));
}

impl<C: Context> LimitConn<C> {
    /// Whether there are no limits.
    pub fn is_off(&self) -> bool {
        self.limits.is_empty()
    }

    /// Counts the context under each limit, unless it has been counted already.
    ///
    /// # Errors
    /// The status with which the request is refused.
    pub fn enter<K: ConnectionCounting<C>>(&self, context: &mut C) -> Result<(), u16> {
        if K::outcome(context).is_some() {
            return Ok(());
        }
        for limit in &self.limits {
            let Some(key) = key(context, limit) else {
                continue;
            };
            K::note(context, |places| {
                places.outcome = Some(LimitOutcome::Passed)
            });
            match Connections::enter(limit, &key) {
                Ok(lease) => {
                    limit.zone.state().note(LimitOutcome::Passed);
                    K::note(context, |places| places.leases.push(lease));
                }
                Err(refusal) => return self.refuse::<K>(context, limit, refusal),
            }
        }
        Ok(())
    }

    fn refuse<K: ConnectionCounting<C>>(
        &self,
        context: &C,
        limit: &Limit<C>,
        refusal: ConnectionRefusal,
    ) -> Result<(), u16> {
        let zone = limit.zone.name();
        match refusal {
            ConnectionRefusal::TooMany => {
                let dry_run = if self.refusal.dry_run {
                    ", dry run,"
                } else {
                    ""
                };
                let text = format_args!("limiting connections{dry_run} by zone \"{zone}\"");
                write(context, self.refusal.level, text);
            }
            ConnectionRefusal::Full => event!(
                Crit,
                "ngx_slab_alloc() failed: no memory in limit_conn_zone \"{zone}\""
            ),
        }
        let (outcome, refused) = if self.refusal.dry_run {
            (LimitOutcome::RejectedDryRun, Ok(()))
        } else {
            (LimitOutcome::Rejected, Err(self.refusal.status))
        };
        limit.zone.state().note(outcome);
        K::note(context, |places| {
            places.leases.clear();
            places.outcome = Some(outcome);
        });
        refused
    }
}

/// The key of a limit for this context; `None` if the limit does not apply.
fn key<C: Context>(context: &mut C, limit: &Limit<C>) -> Option<Bytes> {
    let zone = limit.zone.settings();
    let key = zone.key.evaluate(context);
    if key.len() > KEY_LENGTH_MAX {
        error!(
            context,
            Error,
            "the value of the \"{}\" key is more than 255 bytes: \"{}\"",
            zone.key_text,
            Printable(&key)
        );
    }
    (1..=KEY_LENGTH_MAX).contains(&key.len()).then_some(key)
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionRefusal {
    /// The limit is reached.
    TooMany,
    /// The zone has no room for another key.
    Full,
}

/// The state of a zone: the number of contexts for each key.
pub struct Connections<C> {
    table: Mutex<Table>,
    /// Numbers of requests that were admitted, refused, and refused in a dry run.
    passed: AtomicU64,
    rejected: AtomicU64,
    rejected_dry_run: AtomicU64,
    of: PhantomData<fn(C)>,
}

struct Table {
    counts: Map<Box<[u8]>, u32>,
    room: ZoneBudget,
}

impl<C: Context> State for Connections<C> {
    const KIND: &'static str = "limit_conn";

    type Settings = ZoneSettings<C>;

    fn new(size: u64) -> Connections<C> {
        Connections {
            table: Mutex::new(Table {
                counts: Map::default(),
                room: ZoneBudget::new(size, HEAD_SIZE),
            }),
            passed: AtomicU64::default(),
            rejected: AtomicU64::default(),
            rejected_dry_run: AtomicU64::default(),
            of: PhantomData,
        }
    }

    /// A reload takes over the counts if the key is the same. A zone with another key and the same
    /// size is an error, as in nginx.
    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        let (key, old) = (&zone.settings().key_text, &previous.settings().key_text);
        if key == old || zone.size() != previous.size() {
            return Ok(zone.all_of(previous));
        }
        let name = zone.name();
        Err(format!(
            "limit_conn_zone \"{name}\" uses the \"{key}\" key while previously it used the \"{old}\" key"
        ))
    }

    fn describe(&self, settings: &ZoneSettings<C>, tell: &mut ZoneFactSink<'_>) {
        tell("key", ZoneFact::Text(&settings.key_text));
        tell("keys", ZoneFact::Number(self.table().counts.len() as u64));
        for (name, outcome) in [
            ("passed", LimitOutcome::Passed),
            ("rejected", LimitOutcome::Rejected),
            ("rejected_dry_run", LimitOutcome::RejectedDryRun),
        ] {
            let count = self.count_of(outcome).load(Ordering::Relaxed);
            tell(name, ZoneFact::Number(count));
        }
    }
}

impl<C: Context> Connections<C> {
    /// The counter of requests with this result.
    fn count_of(&self, outcome: LimitOutcome) -> &AtomicU64 {
        match outcome {
            LimitOutcome::Passed => &self.passed,
            LimitOutcome::Rejected => &self.rejected,
            LimitOutcome::RejectedDryRun => &self.rejected_dry_run,
        }
    }

    fn note(&self, outcome: LimitOutcome) {
        self.count_of(outcome).fetch_add(1, Ordering::Relaxed);
    }

    fn enter(limit: &Limit<C>, key: &[u8]) -> Result<Lease<C>, ConnectionRefusal> {
        let connections = limit.zone.state();
        connections.table().enter(key, limit.connections)?;
        Ok(Lease {
            connections: Arc::clone(connections),
            key: key.into(),
        })
    }
}

impl<C> Connections<C> {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No code that holds the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn enter(&mut self, key: &[u8], most: u32) -> Result<(), ConnectionRefusal> {
        if let Some(count) = self.counts.get_mut(key) {
            if *count >= most {
                return Err(ConnectionRefusal::TooMany);
            }
            *count += 1;
            return Ok(());
        }
        if !self.room.take(ENTRY_SIZE + key.len()) {
            return Err(ConnectionRefusal::Full);
        }
        self.counts.insert(key.into(), 1);
        Ok(())
    }

    fn release(&mut self, key: &[u8]) {
        let Some(count) = self.counts.get_mut(key) else {
            return; // a key without a count was never entered
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(key);
            self.room.give(ENTRY_SIZE + key.len());
        }
    }
}

/// Counts a request under its key until dropped.
struct Lease<C> {
    connections: Arc<Connections<C>>,
    key: Box<[u8]>,
}

impl<C> Drop for Lease<C> {
    fn drop(&mut self) {
        self.connections.table().release(&self.key);
    }
}

/// Declares the zones of a scope, before other directives refer to them.
pub fn compile<C: Context>(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    for line in http
        .lines()
        .iter()
        .filter(|line| line.is("limit_conn_zone"))
    {
        if let Err(fault) = declare::<C>(compiler, line) {
            compiler.report(fault.or_at(line.position));
        }
    }
}

fn declare<C: Context>(compiler: &Compiler<'_>, line: &Line) -> Result<(), Fault> {
    let (key, name, size) = declaration(line)?;
    let settings = ZoneSettings {
        key: compiler.text(&Template::parse(key)?),
        key_text: key.text().into(),
    };
    let declared = compiler.zones.borrow_mut().declare::<Connections<C>>(
        &String::from_utf8_lossy(&name),
        size,
        settings,
    );
    match declared {
        Ok(_) => Ok(()),
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
        Err(ZoneError::Declared(known)) => Err(Fault::new(format!(
            "limit_conn_zone \"{}\" is already bound to key \"{}\"",
            known.name(),
            known.settings().key_text
        ))),
    }
}

/// The key, name and size in bytes of a `limit_conn_zone`.
fn declaration(line: &Line) -> Result<(&Word, Bytes, u64), Fault> {
    let mut zone = None;
    for word in line.args.iter().skip(1) {
        if !word.bytes.starts_with(b"zone=") {
            return Err(Fault::invalid_parameter(word));
        }
        zone = Some(zone::parse_declaration(word)?);
    }
    match zone.filter(|(name, _)| !name.is_empty()) {
        Some((name, size)) => Ok((line.argument(0), name, size)),
        None => Err(Fault::new(
            "\"limit_conn_zone\" must have \"zone\" parameter",
        )),
    }
}

fn limits(setter: &Setter<'_>) -> Result<Vec<LimitLine>, Fault> {
    limited::lines(setter, limit, |limit| &limit.zone)
}

fn limit(line: &Line) -> Result<LimitLine, Fault> {
    let number = line.argument(1);
    let connections = parse::number_of(&number.bytes).filter(|connections| *connections > 0);
    let connections = connections.ok_or_else(|| {
        let text = format!("invalid number of connections \"{}\"", number.text());
        Fault::at(number, text)
    })?;
    if connections > 65_535 {
        return Err(Fault::at(number, "connection limit must be less 65536"));
    }
    Ok(LimitLine {
        zone: line.argument(0).text().into(),
        connections: connections as u32,
    })
}

/// The built-in variable of a name in lower case, without `$`.
pub fn find<C: Context, K: ConnectionCounting<C>>(name: &str) -> Option<BuiltinVariable<C>> {
    (name == "limit_conn_status").then(|| {
        BuiltinVariable::computed(|context: &mut C, out| match K::outcome(context) {
            Some(outcome) => text(outcome.name(), out),
            None => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Session;

    #[test]
    fn a_key_is_counted_up_and_down() {
        let connections = Connections::<Session>::new(32768);
        let mut table = connections.table();
        assert_eq!(table.enter(b"a", 2), Ok(()));
        assert_eq!(table.enter(b"a", 2), Ok(()));
        assert_eq!(table.enter(b"a", 2), Err(ConnectionRefusal::TooMany));
        assert_eq!(table.enter(b"b", 2), Ok(()));
        table.release(b"a");
        assert_eq!(table.enter(b"a", 2), Ok(()));
        table.release(b"a");
        table.release(b"a");
        assert_eq!(table.counts.len(), 1);
    }

    #[test]
    fn a_full_zone_takes_no_new_key() {
        let connections = Connections::<Session>::new(32768);
        let mut table = connections.table();
        let taken = (0..1000_u32).take_while(|key| table.enter(&key.to_le_bytes(), 1).is_ok());
        assert_eq!(taken.count(), 383);
        assert_eq!(table.enter(b"more", 1), Err(ConnectionRefusal::Full));
        table.release(&7_u32.to_le_bytes());
        assert_eq!(table.enter(b"more", 1), Ok(()));
    }
}
