//! Zones: named state that all threads share, of a bounded size, which outlives a reload.
//!
//! A directive declares a zone in the [`Table`] while a configuration is compiled; others find it
//! there by its name. Nothing is made then: a zone's state is made when it is first used, or taken
//! over from the generation before ([`Zones::adopt`]) where name, kind and size are the same. A zone
//! whose size has changed begins empty, as in nginx.
//!
//! A zone holds what nginx's zone of the same size would hold: see [`Room`]. State lives in the worker
//! process and ends with it. A thread that locks it does so for a few operations on memory and nothing else.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use base::hash::Map;
use bytes::Bytes;
use conf::{Fault, Word, parse};

/// A page of memory as nginx's zones are cut into, in bytes.
const PAGE_SIZE: u64 = 4096;

/// What nginx writes down about each page, in bytes.
const PAGE_RECORD: u64 = 24;

/// What a zone of nginx begins with: the pool's head, slots and counters, in bytes.
const POOL_HEAD: u64 = 712;

/// The smallest zone that may be declared, in bytes.
pub const SIZE_MIN: u64 = 8 * PAGE_SIZE;

/// What a kind of zone holds.
pub trait Shared: Send + Sync + 'static {
    /// What the configuration says of a zone beyond its name and size.
    type Settings: Send + Sync;

    /// An empty state for a zone of this size in bytes.
    fn new(size: u64) -> Self;

    /// Whether the state that was kept under `previous` settings means something under `settings`; the
    /// text of the error if not.
    fn check(
        name: &str,
        settings: &Self::Settings,
        previous: &Self::Settings,
    ) -> Result<(), String>;
}

/// One zone of a configuration.
pub struct Zone<S: Shared> {
    name: Box<str>,
    size: u64,
    settings: S::Settings,
    state: OnceLock<Arc<S>>,
}

impl<S: Shared> Zone<S> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its directive says beyond name and size.
    pub fn settings(&self) -> &S::Settings {
        &self.settings
    }

    /// What all threads share.
    pub fn state(&self) -> &Arc<S> {
        self.state.get_or_init(|| Arc::new(S::new(self.size)))
    }
}

impl<S: Shared> std::fmt::Debug for Zone<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Zone({}, {} bytes)", self.name, self.size)
    }
}

/// A zone whatever it holds.
trait AnyZone: Send + Sync {
    fn adopt(&self, previous: &dyn AnyZone) -> Result<(), String>;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<S: Shared> AnyZone for Zone<S> {
    fn adopt(&self, previous: &dyn AnyZone) -> Result<(), String> {
        let Some(previous) = previous.as_any().downcast_ref::<Zone<S>>() else {
            return Ok(()); // another kind that had the name
        };
        if previous.size != self.size {
            return Ok(());
        }
        S::check(&self.name, &self.settings, &previous.settings)?;
        // It was not used yet, unless it is adopted twice; then it is what it was.
        let _ = self.state.set(Arc::clone(previous.state()));
        Ok(())
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
pub struct Zones(Map<Box<str>, Arc<dyn AnyZone>>);

impl Zones {
    /// Goes on with the state of the generation before.
    ///
    /// # Errors
    /// nginx's text where a zone of the same name and size means something else now.
    pub fn adopt(&self, previous: &Zones) -> Result<(), String> {
        for (name, zone) in &self.0 {
            if let Some(previous) = previous.0.get(name) {
                zone.adopt(&**previous)?;
            }
        }
        Ok(())
    }
}

/// Why a zone could not be declared.
pub enum Refused<S: Shared> {
    /// It was declared before, with the same size.
    Declared(Arc<Zone<S>>),
    /// It was declared for another use or with another size: nginx's text.
    Conflict(String),
}

/// The zones of a configuration that is being compiled.
#[derive(Default)]
pub struct Table(Zones);

impl Table {
    /// Declares a zone.
    pub fn declare<S: Shared>(
        &mut self,
        name: &str,
        size: u64,
        settings: S::Settings,
    ) -> Result<Arc<Zone<S>>, Refused<S>> {
        match self.known::<S>(name).map_err(Refused::Conflict)? {
            Some(known) if known.size != size => {
                let known = known.size;
                Err(Refused::Conflict(format!(
                    "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {known}"
                )))
            }
            Some(known) => Err(Refused::Declared(known)),
            None => {
                let zone = Arc::new(Zone {
                    name: name.into(),
                    size,
                    settings,
                    state: OnceLock::new(),
                });
                self.0.0.insert(name.into(), zone.clone());
                Ok(zone)
            }
        }
    }

    /// Finds a zone by its name; every one must have been declared.
    ///
    /// # Errors
    /// nginx's texts where there is none, or one for another use.
    pub fn find<S: Shared>(&self, name: &str) -> Result<Arc<Zone<S>>, String> {
        let known = self.known(name)?;
        known.ok_or_else(|| format!("zero size shared memory zone \"{name}\""))
    }

    fn known<S: Shared>(&self, name: &str) -> Result<Option<Arc<Zone<S>>>, String> {
        let Some(zone) = self.0.0.get(name) else {
            return Ok(None);
        };
        let zone = Arc::clone(zone).into_any().downcast::<Zone<S>>();
        zone.map(Some).map_err(|_| {
            format!("the shared memory zone \"{name}\" is already declared for a different use")
        })
    }

    /// Every zone that was declared.
    pub fn finish(self) -> Zones {
        self.0
    }
}

/// Reads `zone=NAME:SIZE`; the argument must begin with `zone=`.
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

/// How much a zone holds: as much as nginx's slab allocator would put into it, which rounds what it
/// keeps up to powers of two, and beyond half a page to whole pages.
#[derive(Debug)]
pub struct Room {
    left: u64,
}

impl Room {
    /// The room in a zone of so many bytes, from which nginx takes what it keeps about the zone itself: a
    /// page for its name, and `head` bytes.
    pub fn new(size: u64, head: u64) -> Room {
        let pages = size.saturating_sub(POOL_HEAD) / (PAGE_SIZE + PAGE_RECORD);
        let left = pages.saturating_sub(1) * PAGE_SIZE;
        Room {
            left: left.saturating_sub(rounded(head)),
        }
    }

    /// Takes room for so many bytes; false where there is none.
    pub fn take(&mut self, bytes: usize) -> bool {
        let bytes = rounded(bytes as u64);
        let fits = bytes <= self.left;
        if fits {
            self.left -= bytes;
        }
        fits
    }

    /// Gives back what was taken for so many bytes.
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
    use super::*;

    struct Counter(u64);

    impl Shared for Counter {
        type Settings = &'static str;

        fn new(size: u64) -> Counter {
            Counter(size)
        }

        fn check(name: &str, settings: &&str, previous: &&str) -> Result<(), String> {
            match settings == previous {
                true => Ok(()),
                false => Err(format!("{name}: {settings} was {previous}")),
            }
        }
    }

    struct Other;

    impl Shared for Other {
        type Settings = ();

        fn new(_: u64) -> Other {
            Other
        }

        fn check(_: &str, (): &(), (): &()) -> Result<(), String> {
            Ok(())
        }
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

    /// nginx's texts, from `ngx_shared_memory_add` and `ngx_init_cycle`.
    #[test]
    fn names_are_for_one_use_and_one_size() {
        let mut table = Table::default();
        assert!(table.declare::<Counter>("one", 32768, "").is_ok());
        assert!(matches!(
            table.declare::<Counter>("one", 32768, ""),
            Err(Refused::Declared(_))
        ));
        let Err(Refused::Conflict(text)) = table.declare::<Counter>("one", 65536, "") else {
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

    /// nginx's documentation of `limit_req_zone`: "one megabyte zone can keep about 16 thousand 64-byte
    /// states or about 8 thousand 128-byte states".
    #[test]
    fn room_is_that_of_a_zone_of_nginx() {
        for (state, count) in [(64, 16_190), (128, 8095), (100, 8095), (3000, 252)] {
            let mut room = Room::new(1 << 20, 80);
            let taken = (0..).take_while(|_| room.take(state)).count();
            assert_eq!(taken, count, "{state}");
            room.give(state);
            assert!(room.take(state) && !room.take(state));
        }
    }
}
