//! PCRE2 itself: the interpreter, with bounds of work and memory.
//!
//! The bounds stand in front of the pattern, as pcre2pattern(3) allows. A pattern that begins with
//! settings of its own overrides them, up to PCRE2's own defaults: an operator who writes
//! `(*LIMIT_MATCH=n)` means it.

use std::fmt;
use std::sync::Mutex;

use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};

use crate::ast::ByteSet;
use crate::{Refusal, Spans, Undecided};

/// Steps of a match (`pcre2_set_match_limit`); PCRE2's default is ten million. A step takes about
/// 10 ns.
pub const STEPS_MAX: u32 = 400_000;
/// Steps of a match of a pattern with back-references, where one step may compare the whole
/// subject.
pub const STEPS_MAX_OF_BACK_REFERENCES: u32 = 25_000;
/// Steps of a match that another engine takes over when the steps are spent.
pub(crate) const STEPS_MAX_BEFORE_BITS: u32 = 10_000;
/// Nested backtracking points of a match (`pcre2_set_depth_limit`).
pub const DEPTH_MAX: u32 = 250_000;
/// Memory of a match in KiB (`pcre2_set_heap_limit`).
pub const MEMORY_MAX_KIB: u32 = 20_000;
/// What a match has used is kept for the next one if its subject was at most this long, in bytes: a
/// longer one may have taken much memory.
const KEPT_SUBJECT_MAX: usize = 1024;
/// At most so many matches of a pattern at once leave something to keep.
const KEPT_MAX: usize = 16;

/// A pattern that PCRE2 has compiled.
pub(crate) struct Pcre {
    regex: Regex,
    /// Working memory of matches that have ended.
    kept: Mutex<Vec<CaptureLocations>>,
}

impl fmt::Debug for Pcre {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regex.fmt(formatter)
    }
}

impl Pcre {
    /// Compiles a pattern; a match takes at most so many steps.
    pub(crate) fn new(pattern: &str, caseless: bool, steps: u32) -> Result<Pcre, Refusal> {
        let bounded = format!(
            "(*LIMIT_MATCH={steps})(*LIMIT_DEPTH={DEPTH_MAX})(*LIMIT_HEAP={MEMORY_MAX_KIB}){pattern}"
        );
        let mut builder = RegexBuilder::new();
        builder.caseless(caseless);
        let regex = match builder.build(&bounded) {
            Ok(regex) => regex,
            // Without the bounds, places of errors are the pattern's own.
            Err(error) => {
                let error = builder.build(pattern).err().unwrap_or(error);
                return Err(Refusal::new(pattern, &error));
            }
        };
        Ok(Pcre {
            regex,
            kept: Mutex::new(Vec::new()),
        })
    }

    /// Names of its groups; the first is the whole match.
    pub(crate) fn names(&self) -> &[Option<String>] {
        self.regex.capture_names()
    }

    /// Matches, and fills the spans if it does.
    pub(crate) fn matches(
        &self,
        subject: &[u8],
        spans: Option<&mut Spans>,
    ) -> Result<bool, Undecided> {
        self.matches_from(subject, 0, spans)
    }

    /// Matches at this place or behind it; what stands before it is seen by what looks behind.
    pub(crate) fn matches_from(
        &self,
        subject: &[u8],
        from: usize,
        spans: Option<&mut Spans>,
    ) -> Result<bool, Undecided> {
        let kept = self.kept.lock().ok().and_then(|mut kept| kept.pop());
        let mut locations = kept.unwrap_or_else(|| self.regex.capture_locations());
        let found = self.regex.captures_read_at(&mut locations, subject, from);
        let found = found
            .map_err(|error| Undecided { code: error.code() })?
            .is_some();
        if let (true, Some(spans)) = (found, spans) {
            spans.fill((0..locations.len()).map(|group| locations.get(group)));
        }
        if subject.len() <= KEPT_SUBJECT_MAX
            && let Ok(mut kept) = self.kept.lock()
            && kept.len() < KEPT_MAX
        {
            kept.push(locations);
        }
        Ok(found)
    }
}

/// Which bytes a pattern of one byte matches; `None` if PCRE2 refuses it.
pub(crate) fn set(pattern: &str, caseless: bool) -> Option<ByteSet> {
    let regex = RegexBuilder::new().caseless(caseless).build(pattern).ok()?;
    Some(ByteSet::of(|byte| regex.is_match(&[byte]).unwrap_or(false)))
}
