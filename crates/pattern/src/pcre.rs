//! PCRE2's interpreter, with limits of work and memory.
//!
//! The limits are prepended to the pattern, as described in pcre2pattern(3). A pattern that begins
//! with its own limits overrides these, up to PCRE2's defaults: `(*LIMIT_MATCH=n)` is the
//! operator's explicit choice.

use std::fmt;
use std::sync::Mutex;

use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};

use crate::ast::ByteSet;
use crate::{Refusal, Spans, Undecided};

/// Maximum number of steps of a match (`pcre2_set_match_limit`); PCRE2's default is ten million. A
/// step takes about 10 ns.
pub const STEPS_MAX: u32 = 400_000;
/// Maximum number of steps for patterns with back-references, where one step may compare the whole
/// subject.
pub const STEPS_MAX_OF_BACK_REFERENCES: u32 = 25_000;
/// Maximum number of steps if [`crate::bits`] can decide afterwards.
pub(crate) const STEPS_MAX_BEFORE_BITS: u32 = 10_000;
/// Maximum nesting of backtracking points in a match (`pcre2_set_depth_limit`).
pub const DEPTH_MAX: u32 = 250_000;
/// Maximum memory of a match in KiB (`pcre2_set_heap_limit`).
pub const MEMORY_MAX_KIB: u32 = 20_000;
/// The working memory of a match is kept for the next match if the subject was at most this long,
/// in bytes: a longer subject may have taken much memory.
const KEPT_SUBJECT_MAX: usize = 1024;
/// Maximum number of working memories that are kept for a pattern.
const KEPT_MAX: usize = 16;

/// A pattern compiled by PCRE2.
pub(crate) struct Pcre {
    regex: Regex,
    /// Working memory of finished matches, for new ones.
    kept: Mutex<Vec<CaptureLocations>>,
}

impl fmt::Debug for Pcre {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regex.fmt(formatter)
    }
}

impl Pcre {
    /// Compiles a pattern whose matches take at most `steps` steps.
    pub(crate) fn new(pattern: &str, caseless: bool, steps: u32) -> Result<Pcre, Refusal> {
        let bounded = format!(
            "(*LIMIT_MATCH={steps})(*LIMIT_DEPTH={DEPTH_MAX})(*LIMIT_HEAP={MEMORY_MAX_KIB}){pattern}"
        );
        let mut builder = RegexBuilder::new();
        builder.caseless(caseless);
        let regex = match builder.build(&bounded) {
            Ok(regex) => regex,
            // The pattern is compiled again without the limits, so that positions of errors are its
            // own.
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

    /// Names of the groups, of which the first is the whole match.
    pub(crate) fn names(&self) -> &[Option<String>] {
        self.regex.capture_names()
    }

    /// Whether the pattern matches; if so, fills the spans.
    pub(crate) fn matches(
        &self,
        subject: &[u8],
        spans: Option<&mut Spans>,
    ) -> Result<bool, Undecided> {
        self.matches_from(subject, 0, spans)
    }

    /// As [`matches`](Self::matches), with a match that begins at this position or later;
    /// look-behinds can see the bytes before it.
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

/// The set of bytes that a pattern for one byte matches; `None` if PCRE2 rejects the pattern.
pub(crate) fn set(pattern: &str, caseless: bool) -> Option<ByteSet> {
    let regex = RegexBuilder::new().caseless(caseless).build(pattern).ok()?;
    Some(ByteSet::of(|byte| regex.is_match(&[byte]).unwrap_or(false)))
}
