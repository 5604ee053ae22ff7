//! Serializes the state of a worker process's zones for its successor.
//!
//! Another process may be another version of the program with another configuration, so every zone
//! is encoded separately, with its kind, name, size and the version of the kind's encoding. The
//! successor decodes the zones that it knows and skips the others. It trusts no byte, because an
//! attacker who has taken over the predecessor may have written it.
//!
//! ```text
//! head: MAGIC | FORMAT | time of the monotonic clock in nanoseconds
//! zone: kind | name | size | version | what the kind writes      (a text has its length before it)
//! end:  an empty kind
//! ```
//!
//! Numbers are little-endian, eight bytes each. Times are differences from the time in the head,
//! since an `Instant` has no meaning in another process. Not here: the transport to the other
//! process (`process`), and the encoding of each kind's state (the kinds).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The first bytes of the encoding.
const MAGIC: &[u8] = b"tidegate state\n";

/// The version of head and frames.
const FORMAT: u64 = 1;

/// Counts above this are treated as this number.
pub const COUNT_MAX: u64 = 1 << 48;

/// Total size, in bytes, from which on potentially large zones (caches, TLS sessions) write nothing
/// more: during the handover several copies are in memory, and the successor waits for them.
pub const LARGE_ZONES_MAX: usize = 64 << 20;

/// Why bytes could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit(String);

impl Unfit {
    /// An error with its text for the log.
    pub fn new(text: impl Into<String>) -> Unfit {
        Unfit(text.into())
    }

    fn cut_short() -> Unfit {
        Unfit::new("it ends too early")
    }
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// Encodes the state of a zone.
#[derive(Debug)]
pub struct StateWriter {
    bytes: Vec<u8>,
    now: Instant,
}

impl StateWriter {
    fn new() -> StateWriter {
        let mut writer = StateWriter {
            bytes: MAGIC.to_vec(),
            now: Instant::now(),
        };
        writer.number(FORMAT);
        writer.number(monotonic());
        writer
    }

    /// Bytes written so far, by this zone and those before it.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a number.
    pub fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes bytes, preceded by their length.
    pub fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    /// Writes a time, with nanosecond precision.
    pub fn moment(&mut self, at: Instant) {
        let after = at.saturating_duration_since(self.now);
        let before = self.now.saturating_duration_since(at);
        self.number(u64::from(after.is_zero()));
        self.number(nanoseconds(after.max(before)));
    }

    /// Writes whether there is a value; if so, `write` writes the value.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut StateWriter, T)) {
        self.number(u64::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Decodes the state of a zone of another process.
#[derive(Debug)]
pub struct StateReader<'a> {
    rest: &'a [u8],
    /// The time in the head, converted to the clock of this process.
    saved_at: Instant,
    /// The time that has passed since `saved_at`.
    elapsed: Duration,
}

impl<'a> StateReader<'a> {
    fn new(bytes: &'a [u8]) -> Result<StateReader<'a>, Unfit> {
        let now = Instant::now();
        let rest = bytes.strip_prefix(MAGIC);
        let mut reader = StateReader {
            rest: rest.ok_or_else(|| Unfit::new("it is of no version that is known here"))?,
            saved_at: now,
            elapsed: Duration::ZERO,
        };
        let format = reader.number()?;
        if format != FORMAT {
            let text = format!("it is of version {format}, {FORMAT} is known here");
            return Err(Unfit(text));
        }
        let elapsed = monotonic().saturating_sub(reader.number()?);
        reader.elapsed = Duration::from_nanos(elapsed);
        reader.saved_at = now.checked_sub(reader.elapsed).unwrap_or(now);
        Ok(reader)
    }

    /// Reads a number.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn number(&mut self) -> Result<u64, Unfit> {
        let (number, rest) = self.rest.split_first_chunk().ok_or_else(Unfit::cut_short)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*number))
    }

    /// Reads a count. Values above [`COUNT_MAX`] are reduced to it, so that sums do not overflow.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn count(&mut self) -> Result<u64, Unfit> {
        Ok(self.number()?.min(COUNT_MAX))
    }

    /// Reads bytes of any length.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn text(&mut self) -> Result<&'a [u8], Unfit> {
        let length = usize::try_from(self.number()?).map_err(|_| Unfit::cut_short())?;
        let text = self.rest.split_at_checked(length);
        let (text, rest) = text.ok_or_else(Unfit::cut_short)?;
        self.rest = rest;
        Ok(text)
    }

    /// Reads UTF-8 text.
    ///
    /// # Errors
    /// If the bytes are not UTF-8, or are missing.
    pub fn string(&mut self) -> Result<&'a str, Unfit> {
        std::str::from_utf8(self.text()?).map_err(|_| Unfit::new("a text is not UTF-8"))
    }

    /// Reads a time, converted to the clock of this process.
    ///
    /// # Errors
    /// If the time is out of range of the clock, or bytes are missing.
    pub fn moment(&mut self) -> Result<Instant, Unfit> {
        let is_before = self.number()? == 1;
        let distance = Duration::from_nanos(self.number()?);
        let at = if is_before {
            self.saved_at.checked_sub(distance)
        } else {
            self.saved_at.checked_add(distance)
        };
        at.ok_or_else(|| Unfit::new("a moment is too far away"))
    }

    /// Reads an optional value with `read`.
    ///
    /// # Errors
    /// Those of `read`; or if bytes are missing.
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut StateReader<'a>) -> Result<T, Unfit>,
    ) -> Result<Option<T>, Unfit> {
        match self.number()? {
            0 => Ok(None),
            _ => read(self).map(Some),
        }
    }

    /// The time since the bytes were written.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// A reader for a part of the bytes, with the same time in the head.
    fn of(&self, part: &'a [u8]) -> StateReader<'a> {
        StateReader {
            rest: part,
            saved_at: self.saved_at,
            elapsed: self.elapsed,
        }
    }
}

/// One zone of another process.
#[derive(Debug)]
pub struct SavedZone<'a> {
    /// The name of its kind.
    pub kind: &'a str,
    /// The name of the zone.
    pub name: &'a str,
    /// The size of the zone, in bytes.
    pub size: u64,
    /// The version of the kind's encoding.
    pub version: u64,
    /// The zone's state.
    pub state: StateReader<'a>,
}

/// Encodes zones one after another, and the end mark.
#[derive(Debug)]
pub struct ZoneWriter(StateWriter);

impl ZoneWriter {
    /// Creates a writer, and writes the head.
    pub fn begin() -> ZoneWriter {
        ZoneWriter(StateWriter::new())
    }

    /// Writes one zone: kind, name, size and version, by which the reader decides whether it can
    /// decode the zone, and then the state, which `write` encodes.
    pub fn zone(
        &mut self,
        kind: &str,
        name: &str,
        size: u64,
        version: u64,
        write: impl FnOnce(&mut StateWriter),
    ) {
        let ZoneWriter(writer) = self;
        writer.text(kind.as_bytes());
        writer.text(name.as_bytes());
        writer.number(size);
        writer.number(version);
        let place = writer.bytes.len();
        writer.number(0);
        write(writer);
        let length = writer.bytes.len() - place - 8;
        // The placeholder was written above, so it exists.
        if let Some(written) = writer.bytes.get_mut(place..place + 8) {
            written.copy_from_slice(&(length as u64).to_le_bytes());
        }
    }

    /// Writes the end mark, and returns all bytes.
    pub fn finish(self) -> Vec<u8> {
        let ZoneWriter(mut writer) = self;
        writer.text(b"");
        writer.bytes
    }
}

/// Decodes the list of zones.
///
/// # Errors
/// If the version is unknown, or the bytes are truncated.
pub fn zones(bytes: &[u8]) -> Result<Vec<SavedZone<'_>>, Unfit> {
    let mut reader = StateReader::new(bytes)?;
    let mut zones = Vec::new();
    loop {
        let kind = reader.string()?;
        if kind.is_empty() {
            return Ok(zones);
        }
        let name = reader.string()?;
        let (size, version) = (reader.number()?, reader.number()?);
        let part = reader.text()?;
        zones.push(SavedZone {
            kind,
            name,
            size,
            version,
            state: reader.of(part),
        });
    }
}

/// The monotonic clock in nanoseconds, which all processes of the machine share.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::try_from(time).map_or(0, nanoseconds)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let mut writer = ZoneWriter::begin();
        let now = Instant::now();
        writer.zone("one", "a", 7, 3, |state| {
            state.number(42);
            state.text(b"text");
            state.moment(now - Duration::from_secs(5));
            state.moment(now + Duration::from_secs(5));
            state.optional(Some(8), |state, value| state.number(value));
            state.optional(None, |state, value| state.number(value));
        });
        writer.zone("two", "b", 1, 1, |_| {});
        writer.finish()
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = written();
        let mut zones = zones(&bytes).unwrap();
        assert_eq!(zones.len(), 2);
        let SavedZone {
            kind,
            name,
            size,
            version,
            state,
        } = &mut zones[0];
        assert_eq!((*kind, *name, *size, *version), ("one", "a", 7, 3));
        assert_eq!(state.number(), Ok(42));
        assert_eq!(state.text(), Ok(&b"text"[..]));
        let now = Instant::now();
        let near = |distance: Duration| distance.as_millis().abs_diff(5000) < 500;
        assert!(near(now - state.moment().unwrap()));
        assert!(near(state.moment().unwrap() - now));
        assert_eq!(state.optional(StateReader::number), Ok(Some(8)));
        assert_eq!(state.optional(StateReader::number), Ok(None));
        assert!(state.is_empty());
        assert_eq!(state.number(), Err(Unfit::cut_short()));
        assert!(zones[1].state.is_empty());
    }

    /// Truncated bytes are refused, and nothing panics.
    #[test]
    fn bytes_that_end_too_early_are_refused() {
        let bytes = written();
        for length in 0..bytes.len() {
            assert!(zones(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        let mut bytes = written();
        let place = MAGIC.len() + 16;
        bytes[place..place + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(zones(&bytes).unwrap_err(), Unfit::cut_short());
        assert!(zones(b"").is_err());
        let mut bytes = written();
        bytes[MAGIC.len()] = 9;
        let text = zones(&bytes).unwrap_err().to_string();
        assert_eq!(text, "it is of version 9, 1 is known here");
    }
}
