//! The trace context of a request: `traceparent` and `tracestate`.
//!
//! <https://www.w3.org/TR/trace-context/>, sections 3.2 and 3.3. From a `traceparent` of a newer
//! version, the fields that version 00 has are read, as section 3.2.2.3 requires. A malformed
//! `traceparent` is ignored, and so is its `tracestate`.

use bytes::Bytes;
use framework::random;

/// Length of `traceparent` in version 00, in characters.
const LENGTH: usize = 55;

/// The flag that the caller has recorded its span.
const SAMPLED: u8 = 1;

/// A span, and its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TraceContext {
    /// The trace ID; 0 if there is none.
    pub(super) trace_id: u128,
    /// The span ID; 0 if there is none.
    pub(super) span_id: u64,
    /// Whether the span is recorded.
    pub(super) sampled: bool,
    /// The received value of `tracestate`.
    pub(super) state: Bytes,
}

impl TraceContext {
    /// Parses the context that a client sends. An empty or invalid `parent` gives a context without
    /// a trace and without a state.
    pub(super) fn parse(parent: &[u8], state: Bytes) -> TraceContext {
        TraceContext::read(parent).map_or_else(TraceContext::default, |context| TraceContext {
            state,
            ..context
        })
    }

    fn read(parent: &[u8]) -> Option<TraceContext> {
        let (known, more) = parent.split_at_checked(LENGTH)?;
        let [v1, v2, b'-', rest @ ..] = known else {
            return None;
        };
        let version = hex(&[*v1, *v2])?;
        let is_of_version = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let (trace_id, rest) = rest.split_at_checked(32)?;
        let (span_id, flags) = rest.strip_prefix(b"-")?.split_at_checked(16)?;
        let flags = hex(flags.strip_prefix(b"-")?)?;
        let context = TraceContext {
            trace_id: hex(trace_id)?,
            span_id: u64::try_from(hex(span_id)?).ok()?,
            sampled: flags as u8 & SAMPLED != 0,
            state: Bytes::new(),
        };
        let is_valid = is_of_version && context.trace_id != 0 && context.span_id != 0;
        is_valid.then_some(context)
    }

    /// A new span of the parent's trace, or of a new trace if there is no parent.
    pub(super) fn child_of(parent: &TraceContext) -> TraceContext {
        let trace_id = match parent.trace_id {
            0 => u128::from(number()) << 64 | u128::from(number()),
            trace_id => trace_id,
        };
        TraceContext {
            trace_id,
            span_id: number(),
            sampled: false,
            state: parent.state.clone(),
        }
    }

    /// `traceparent` of version 00.
    pub(super) fn header(&self) -> String {
        let (trace_id, span_id, flags) = (self.trace_id, self.span_id, u8::from(self.sampled));
        format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

/// A random number other than 0.
fn number() -> u64 {
    random::number().max(1)
}

/// Parses a number in lower-case hexadecimal.
fn hex(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01";

    fn parse(text: &str) -> TraceContext {
        TraceContext::parse(text.as_bytes(), "a=b".into())
    }

    #[test]
    fn what_is_written_is_read() {
        let context = parse(PARENT);
        assert_eq!(context.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(context.span_id, 0xb9c7_c989_f979_18e1);
        assert!(context.sampled && context.state == "a=b");
        assert_eq!(context.header(), PARENT);
        let unsampled = parse(&PARENT.replace("-01", "-02"));
        assert!(!unsampled.sampled && unsampled.trace_id == context.trace_id);
        let newer = PARENT.replacen("00-", "cc-", 1);
        assert_eq!(parse(&newer), context);
        assert_eq!(parse(&format!("{newer}-what-comes")), context);
    }

    #[test]
    fn what_is_malformed_is_none() {
        let swapped = |from: &str, to: &str| PARENT.replacen(from, to, 1);
        for text in [
            String::new(),
            "00".to_owned(),
            PARENT[..54].to_owned(),
            format!("{PARENT}-more"),
            swapped("00-", "ff-"),
            format!("{}x", swapped("00-", "cc-")),
            swapped("00-", "0x-"),
            swapped("0af7", "0AF7"),
            swapped("0af7", "0ag7"),
            swapped("-b9c7", "_b9c7"),
            swapped("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            swapped("b9c7c989f97918e1", &"0".repeat(16)),
        ] {
            assert_eq!(parse(&text), TraceContext::default(), "{text}");
        }
    }

    #[test]
    fn children_are_of_their_parents_trace() {
        let parent = parse(PARENT);
        let child = TraceContext::child_of(&parent);
        assert_eq!(child.trace_id, parent.trace_id);
        assert_eq!(child.state, parent.state);
        assert!(child.span_id != parent.span_id && !child.sampled);
        let roots = [(); 2].map(|()| TraceContext::child_of(&TraceContext::default()));
        assert!(roots[0].trace_id != roots[1].trace_id && roots[0].state.is_empty());
    }
}
