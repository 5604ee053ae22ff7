//! Zones: named state of limited size that all threads share and that outlives a reload.
//!
//! A directive declares a zone in the [`Table`] while a configuration is compiled; other directives
//! find it there by name, and requests find it in the generation's [`Zones`] by name and kind.
//! Declaring a zone creates no state: the state is created at its first use, or taken over from the
//! previous generation ([`Zones::adopt`]). The zone's kind decides which parts are taken over
//! ([`State::reconcile`]); by default, as in nginx, the whole state if the size is unchanged, and
//! nothing otherwise.
//!
//! A zone holds as much as nginx's zone of the same size: see [`ZoneBudget`]. The state lies in the
//! worker process. A thread holds a zone's lock only for a few memory operations. The kind also
//! encodes and decodes the part of the state that a successor process continues with
//! ([`State::save`], [`handover`]).

use std::any::Any;
use std::sync::{Arc, OnceLock};

use base::hash::Map;
use bytes::Bytes;
use conf::{Fault, Word, parse};

use crate::handover::{self, SavedZone, StateReader, StateWriter, Unfit, ZoneWriter};

/// Size of the pages of nginx's zones, in bytes.
const PAGE_SIZE: u64 = 4096;

/// Bytes of nginx's record for each page.
const PAGE_RECORD: u64 = 24;

/// Bytes at the start of nginx's zone: the header, slots and counters of its slab pool.
const POOL_HEAD: u64 = 712;

/// The smallest zone that may be declared, in bytes.
pub const SIZE_MIN: u64 = 8 * PAGE_SIZE;

/// The state of one kind of zone.
pub trait State: Sized + Send + Sync + 'static {
    /// The unique name of the kind.
    const KIND: &'static str;

    /// The settings of a zone beyond its name and size.
    type Settings: Send + Sync;

    /// An empty state for a zone of this size in bytes.
    fn new(size: u64) -> Self;

    /// The initial state of `zone` if the previous configuration declared `previous` under the same
    /// name.
    ///
    /// The result may be the same state, a state that shares those pieces that are still valid
    /// under the new settings, or an empty one. The previous generation continues to serve its
    /// requests, so pieces are shared instead of copied, and `previous` must not change, since the
    /// reload may still fail. `zone` has no state yet.
    ///
    /// # Errors
    /// The error text if the state has a different meaning under the new settings; the reload then
    /// fails.
    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        Ok(zone.all_of(previous))
    }

    /// Reports the zone's content and settings, for people and monitoring.
    fn describe(&self, settings: &Self::Settings, tell: &mut ZoneFactSink<'_>);

    /// The version of the encoding that [`save`](State::save) writes; `None` if the state is not
    /// handed over to a successor process.
    const SAVED_VERSION: Option<u64> = None;

    /// Encodes the state for a successor process, beginning with the settings that it depends on.
    /// Requests are served meanwhile, so locks are held only for a part of the state at a time.
    fn save(&self, _settings: &Self::Settings, _out: &mut StateWriter) {}

    /// Decodes the state of a predecessor process into an unused zone of the same size.
    ///
    /// # Errors
    /// If the state cannot be decoded or is not valid here; the zone is then unchanged.
    fn restore(
        &self,
        _settings: &Self::Settings,
        _saved: &mut StateReader<'_>,
    ) -> Result<(), Unfit> {
        Ok(())
    }
}

/// Receives one fact about a zone, with its name.
pub type ZoneFactSink<'a> = dyn FnMut(&'static str, ZoneFact<'_>) + 'a;

/// A fact about a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneFact<'a> {
    /// A number or an amount.
    Number(u64),
    /// The text of a setting.
    Text(&'a str),
}

/// One zone of a configuration.
pub struct Zone<S: State> {
    name: Box<str>,
    size: u64,
    settings: S::Settings,
    state: OnceLock<Arc<S>>,
}

impl<S: State> Zone<S> {
    /// The name of the zone.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size of the zone, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The settings beyond name and size.
    pub fn settings(&self) -> &S::Settings {
        &self.settings
    }

    /// The state, which all threads share.
    pub fn state(&self) -> &Arc<S> {
        self.state.get_or_init(|| Arc::new(self.begin()))
    }

    /// The whole state of the previous zone if its size is the same; else an empty state.
    pub fn all_of(&self, previous: &Zone<S>) -> Arc<S> {
        if previous.size == self.size {
            Arc::clone(previous.state())
        } else {
            Arc::new(self.begin())
        }
    }

    fn begin(&self) -> S {
        S::new(self.size)
    }
}

impl<S: State> std::fmt::Debug for Zone<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Zone({}, {} bytes)", self.name, self.size)
    }
}

/// A zone of any kind.
pub trait AnyZone: Send + Sync {
    /// The name of the zone.
    fn name(&self) -> &str;

    /// The name of the kind: see [`State::KIND`].
    fn kind(&self) -> &'static str;

    /// The size of the zone, in bytes.
    fn size(&self) -> u64;

    /// Reports the zone's content and settings.
    fn describe(&self, tell: &mut ZoneFactSink<'_>);

    #[doc(hidden)]
    fn adopt(&self, previous: &dyn AnyZone) -> Result<(), String>;

    #[doc(hidden)]
    fn save(&self, out: &mut ZoneWriter);

    #[doc(hidden)]
    fn restore(&self, saved: &mut SavedZone<'_>) -> Result<(), Unfit>;

    #[doc(hidden)]
    fn as_any(&self) -> &dyn Any;

    #[doc(hidden)]
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<S: State> AnyZone for Zone<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        S::KIND
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn describe(&self, tell: &mut ZoneFactSink<'_>) {
        self.state().describe(&self.settings, tell);
    }

    fn adopt(&self, previous: &dyn AnyZone) -> Result<(), String> {
        let Some(previous) = previous.as_any().downcast_ref::<Zone<S>>() else {
            return Ok(()); // the previous zone with this name has another kind
        };
        // The state is not set yet, unless the zone is adopted twice; then it stays as it is.
        let _ = self.state.set(S::reconcile(self, previous)?);
        Ok(())
    }

    fn save(&self, out: &mut ZoneWriter) {
        if let Some(version) = S::SAVED_VERSION {
            out.zone(S::KIND, &self.name, self.size, version, |out| {
                self.state().save(&self.settings, out);
            });
        }
    }

    fn restore(&self, saved: &mut SavedZone<'_>) -> Result<(), Unfit> {
        if Some(saved.version) != S::SAVED_VERSION || saved.kind != S::KIND {
            let (kind, version) = (saved.kind, saved.version);
            return Err(Unfit::new(format!(
                "what it held is that of \"{kind}\", version {version}"
            )));
        }
        if saved.size != self.size {
            let (size, before) = (self.size, saved.size);
            return Err(Unfit::new(format!("its size is {size} and was {before}")));
        }
        self.state().restore(&self.settings, &mut saved.state)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// The zones of a generation.
#[derive(Clone, Default)]
pub struct Zones {
    /// The zones, in the order of their declaration.
    all: Vec<Arc<dyn AnyZone>>,
    by_name: Map<Box<str>, usize>,
}

impl Zones {
    /// All zones, in the order of their declaration.
    pub fn iter(&self) -> impl Iterator<Item = &dyn AnyZone> {
        self.all.iter().map(|zone| &**zone)
    }

    /// The zone of this name, if it is of this kind.
    pub fn find<S: State>(&self, name: &str) -> Option<Arc<Zone<S>>> {
        Arc::clone(self.named(name)?).into_any().downcast().ok()
    }

    /// Takes over the states of the previous generation.
    ///
    /// # Errors
    /// nginx's text for the first zone whose state has a different meaning now, although name and
    /// size are the same.
    pub fn adopt(&self, previous: &Zones) -> Result<(), String> {
        for zone in &self.all {
            if let Some(previous) = previous.named(zone.name()) {
                zone.adopt(&**previous)?;
            }
        }
        Ok(())
    }

    /// Encodes the zones for a successor process: see [`handover`].
    pub fn save(&self) -> Vec<u8> {
        let mut out = ZoneWriter::begin();
        self.all.iter().for_each(|zone| zone.save(&mut out));
        out.finish()
    }

    /// Decodes the zones of a predecessor process. Zones that this configuration does not have are
    /// skipped; those with another size or kind begin empty.
    ///
    /// # Errors
    /// If the bytes cannot be decoded.
    pub fn restore(&self, bytes: &[u8]) -> Result<RestoredZones, Unfit> {
        let mut restored = RestoredZones::default();
        for mut saved in handover::zones(bytes)? {
            let Some(zone) = self.named(saved.name) else {
                continue;
            };
            match zone.restore(&mut saved) {
                Ok(()) => restored.count += 1,
                Err(why) => restored.empty.push((zone.name().to_owned(), why)),
            }
        }
        Ok(restored)
    }

    fn named(&self, name: &str) -> Option<&Arc<dyn AnyZone>> {
        self.all.get(*self.by_name.get(name)?)
    }

    fn add(&mut self, zone: Arc<dyn AnyZone>) {
        self.by_name.insert(zone.name().into(), self.all.len());
        self.all.push(zone);
    }
}

/// The result of decoding a predecessor's zones.
#[derive(Debug, Default)]
pub struct RestoredZones {
    /// The number of zones whose state was restored.
    pub count: usize,
    /// The zones that begin empty, with the reason.
    pub empty: Vec<(String, Unfit)>,
}

/// Why a zone could not be declared.
pub enum ZoneError<S: State> {
    /// The zone was declared before, with the same size.
    Declared(Arc<Zone<S>>),
    /// The zone was declared for another use or with another size; with nginx's text.
    Conflict(String),
}

/// The zones of a configuration that is being compiled.
#[derive(Default)]
pub struct Table(Zones);

impl Table {
    /// Declares a zone, or finds the one declared before.
    pub fn declare<S: State>(
        &mut self,
        name: &str,
        size: u64,
        settings: S::Settings,
    ) -> Result<Arc<Zone<S>>, ZoneError<S>> {
        match self.known::<S>(name).map_err(ZoneError::Conflict)? {
            Some(known) if known.size != size => {
                let known = known.size;
                Err(ZoneError::Conflict(format!(
                    "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {known}"
                )))
            }
            Some(known) => Err(ZoneError::Declared(known)),
            None => {
                let zone = Arc::new(Zone {
                    name: name.into(),
                    size,
                    settings,
                    state: OnceLock::new(),
                });
                self.0.add(zone.clone());
                Ok(zone)
            }
        }
    }

    /// Finds a declared zone by its name.
    ///
    /// # Errors
    /// nginx's text if there is no such zone, or it is for another use.
    pub fn find<S: State>(&self, name: &str) -> Result<Arc<Zone<S>>, String> {
        let known = self.known(name)?;
        known.ok_or_else(|| format!("zero size shared memory zone \"{name}\""))
    }

    fn known<S: State>(&self, name: &str) -> Result<Option<Arc<Zone<S>>>, String> {
        match self.0.find(name) {
            None if self.0.named(name).is_some() => Err(format!(
                "the shared memory zone \"{name}\" is already declared for a different use"
            )),
            found => Ok(found),
        }
    }

    /// All declared zones.
    pub fn finish(self) -> Zones {
        self.0
    }
}

/// Parses `zone=NAME:SIZE`; the argument must begin with `zone=`.
///
/// # Errors
/// nginx's texts for a missing, malformed or too small size.
pub fn parse_declaration(word: &Word) -> Result<(Bytes, u64), Fault> {
    let invalid = || Fault::at(word, format!("invalid zone size \"{}\"", word.text()));
    let value = word.bytes.strip_prefix(b"zone=").unwrap_or(&word.bytes);
    let colon = memchr::memchr(b':', value).ok_or_else(invalid)?;
    let (name, size) = value.split_at(colon);
    let size = parse::size_of(size.get(1..).unwrap_or_default()).ok_or_else(invalid)?;
    if size < SIZE_MIN {
        let text = format!("zone \"{}\" is too small", word.text());
        return Err(Fault::at(word, text));
    }
    Ok((Bytes::copy_from_slice(name), size))
}

/// The capacity of a zone: as much as nginx's slab allocator would fit, which rounds sizes up to
/// powers of two, and beyond half a page to whole pages.
#[derive(Debug)]
pub struct ZoneBudget {
    left: u64,
}

impl ZoneBudget {
    /// The capacity of a zone of `size` bytes, less nginx's overhead: a page for the zone's name,
    /// and `head` bytes.
    pub fn new(size: u64, head: u64) -> ZoneBudget {
        let pages = size.saturating_sub(POOL_HEAD) / (PAGE_SIZE + PAGE_RECORD);
        let left = pages.saturating_sub(1) * PAGE_SIZE;
        ZoneBudget {
            left: left.saturating_sub(rounded(head)),
        }
    }

    /// Allocates `bytes` bytes. False if there is no room.
    pub fn take(&mut self, bytes: usize) -> bool {
        let bytes = rounded(bytes as u64);
        let fits = bytes <= self.left;
        if fits {
            self.left -= bytes;
        }
        fits
    }

    /// Frees an allocation of `bytes` bytes.
    pub fn give(&mut self, bytes: usize) {
        self.left += rounded(bytes as u64);
    }
}

fn rounded(bytes: u64) -> u64 {
    if bytes > PAGE_SIZE / 2 {
        bytes.next_multiple_of(PAGE_SIZE)
    } else {
        bytes.next_power_of_two().max(8)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Counter(u64);

    impl State for Counter {
        const KIND: &'static str = "counter";

        type Settings = &'static str;

        fn new(size: u64) -> Counter {
            Counter(size)
        }

        fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
            let (name, now, before) = (zone.name(), zone.settings(), previous.settings());
            if now == before || zone.size() != previous.size() {
                Ok(zone.all_of(previous))
            } else {
                Err(format!("{name}: {now} was {before}"))
            }
        }

        fn describe(&self, settings: &&'static str, tell: &mut ZoneFactSink<'_>) {
            tell("setting", ZoneFact::Text(settings));
            tell("count", ZoneFact::Number(self.0));
        }
    }

    /// Counters by name. The settings are the configured names.
    struct Tally(Mutex<Map<&'static str, Arc<AtomicU64>>>);

    impl Tally {
        fn count(&self, name: &'static str) -> Arc<AtomicU64> {
            Arc::clone(self.0.lock().unwrap().entry(name).or_default())
        }
    }

    impl State for Tally {
        const KIND: &'static str = "tally";

        type Settings = Vec<&'static str>;

        fn new(_: u64) -> Tally {
            Tally(Mutex::default())
        }

        fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
            let mut counts = previous.state().0.lock().unwrap().clone();
            counts.retain(|name, _| zone.settings().contains(name));
            Ok(Arc::new(Tally(Mutex::new(counts))))
        }

        fn describe(&self, settings: &Vec<&'static str>, tell: &mut ZoneFactSink<'_>) {
            for name in settings {
                tell(
                    name,
                    ZoneFact::Number(self.count(name).load(Ordering::Relaxed)),
                );
            }
        }
    }

    struct Other;

    impl State for Other {
        const KIND: &'static str = "other";

        type Settings = ();

        fn new(_: u64) -> Other {
            Other
        }

        fn describe(&self, (): &(), _: &mut ZoneFactSink<'_>) {}
    }

    /// The facts that a zone tells.
    fn facts(zone: &dyn AnyZone) -> Vec<String> {
        let mut facts = Vec::new();
        zone.describe(&mut |name, fact| facts.push(format!("{name} {fact:?}")));
        facts
    }

    fn declared(size: u64, settings: &'static str) -> (Arc<Zone<Counter>>, Zones) {
        let mut table = Table::default();
        let Ok(zone) = table.declare::<Counter>("one", size, settings) else {
            panic!("declared once");
        };
        (zone, table.finish())
    }

    #[test]
    fn state_outlives_a_reload_that_leaves_name_and_size_alone() {
        let (first, first_zones) = declared(32768, "a");
        let state = Arc::clone(first.state());
        assert_eq!(state.0, 32768);
        let (second, zones) = declared(32768, "a");
        assert_eq!(zones.adopt(&first_zones), Ok(()));
        assert!(Arc::ptr_eq(second.state(), &state));
        let (larger, zones) = declared(65536, "b");
        assert_eq!(zones.adopt(&first_zones), Ok(()));
        assert_eq!(larger.state().0, 65536);
        let (_, zones) = declared(32768, "b");
        assert_eq!(zones.adopt(&first_zones), Err("one: b was a".to_owned()));
    }

    /// The kind decides what remains after a change of the configuration, and both generations
    /// share the remaining pieces.
    #[test]
    fn pieces_outlive_a_change_of_the_others() {
        let declared = |size, names: &[&'static str]| {
            let mut table = Table::default();
            let zone = table.declare::<Tally>("tally", size, names.to_vec());
            let Ok(zone) = zone else {
                panic!("declared once");
            };
            (zone, table.finish())
        };
        let count =
            |zone: &Zone<Tally>, name| zone.state().count(name).fetch_add(1, Ordering::Relaxed);
        let (first, first_zones) = declared(32768, &["a", "b"]);
        count(&first, "a");
        count(&first, "b");
        let (second, zones) = declared(65536, &["b", "c"]);
        assert_eq!(zones.adopt(&first_zones), Ok(()));
        count(&first, "b"); // a request that began before the reload
        assert_eq!(facts(&*second), ["b Number(2)", "c Number(0)"]);
        assert_eq!(facts(&*first), ["a Number(1)", "b Number(2)"]);
    }

    #[test]
    fn zones_are_listed_in_order_and_found_by_name_and_kind() {
        let mut table = Table::default();
        let names = ["one", "two", "three", "four", "five"];
        for name in names {
            assert!(table.declare::<Counter>(name, 32768, "x").is_ok());
        }
        assert!(table.declare::<Other>("six", 65536, ()).is_ok());
        let zones = table.finish();
        let listed: Vec<&str> = zones.iter().map(|zone| zone.name()).collect();
        assert_eq!(listed, ["one", "two", "three", "four", "five", "six"]);
        let last = zones.iter().last().unwrap();
        assert_eq!((last.kind(), last.size()), ("other", 65536));
        let first = zones.iter().next().unwrap();
        assert_eq!(first.kind(), "counter");
        assert_eq!(facts(first), ["setting Text(\"x\")", "count Number(32768)"]);
        let found = zones.find::<Counter>("three");
        assert_eq!(found.unwrap().name(), "three");
        assert!(zones.find::<Other>("three").is_none() && zones.find::<Counter>("seven").is_none());
    }

    /// nginx's texts, from `ngx_shared_memory_add` and `ngx_init_cycle`.
    #[test]
    fn names_are_for_one_use_and_one_size() {
        let mut table = Table::default();
        assert!(table.declare::<Counter>("one", 32768, "").is_ok());
        assert!(matches!(
            table.declare::<Counter>("one", 32768, ""),
            Err(ZoneError::Declared(_))
        ));
        let Err(ZoneError::Conflict(text)) = table.declare::<Counter>("one", 65536, "") else {
            panic!("a conflict");
        };
        assert_eq!(
            text,
            "the size 65536 of shared memory zone \"one\" conflicts with already declared size 32768"
        );
        assert_eq!(
            table.find::<Other>("one").unwrap_err(),
            "the shared memory zone \"one\" is already declared for a different use"
        );
        assert_eq!(
            table.find::<Other>("two").unwrap_err(),
            "zero size shared memory zone \"two\""
        );
    }

    /// nginx's documentation of `limit_req_zone`: "one megabyte zone can keep about 16 thousand
    /// 64-byte states or about 8 thousand 128-byte states".
    #[test]
    fn room_is_that_of_a_zone_of_nginx() {
        for (state, count) in [(64, 16_190), (128, 8095), (100, 8095), (3000, 252)] {
            let mut room = ZoneBudget::new(1 << 20, 80);
            let taken = (0..).take_while(|_| room.take(state)).count();
            assert_eq!(taken, count, "{state}");
            room.give(state);
            assert!(room.take(state) && !room.take(state));
        }
    }
}
