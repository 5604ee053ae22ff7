//! `slice`: a response fetched in slices, each by a request of its own to the upstream.
//!
//! <https://nginx.org/en/docs/http/ngx_http_slice_module.html>. A configuration that uses
//! `$slice_range` asks the upstream for the first slice. The response to it becomes the beginning
//! of a response of the whole length, and the following slices are fetched in turn as the client
//! receives them (see `output`). A cache whose key contains `$slice_range` stores the slices.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::{Module, ShortcutDoc};
use http::request::Request;
use http::response::chain::{Chain, FilterRejection, HeadFilter, Parts};
use http::slots::{PassLifetime, PlanSlot};
use http::variables::BuiltinVariable;
use proto::header::KnownField;
use proto::range::ByteRange;

use proxying::cache::refuse_answer;

/// Declares the directive `slice size`.
pub static SLICE: Setting<u64> = Setting::new("slice", &["size"], parse::size)
    .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
    .default("0")
    .manual(
        "Fetches a response in parts of this size, by subrequests whose Range field is \
         `$slice_range`; 0 turns it off. Each request fetches those that it needs, and no more than \
         those; a cache whose key holds `$slice_range` keeps them.",
    );

/// The `slice` setting of each location that has one.
static SIZE: PlanSlot<SliceSize> = PlanSlot::new();

/// The size of slices in bytes; 0 turns slicing off.
#[derive(Debug)]
pub struct SliceSize(u64);

impl Feature for SliceSize {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&SLICE];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<SliceSize, Fault> {
        Ok(SliceSize(scope.get(&SLICE)?))
    }
}

/// The progress of a response that is fetched in slices.
static SLICES: Slot<Slices, PassLifetime> = Slot::new();

impl SlotValue for Slices {}

/// The progress of a response that is fetched in slices.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    size: u64,
    /// Offset of the slice that was requested last.
    asked: u64,
    /// Offset of the slice whose response head is awaited, or of the next slice.
    start: u64,
    /// Offset behind the last slice that is needed.
    end: u64,
    /// The ETag of the previous slice, which the next slice must have, too; empty if it had none.
    etag: Bytes,
}

impl Slices {
    /// The offset of the next slice, which is then recorded as requested; `None` after the last.
    fn advance(&mut self) -> Option<u64> {
        self.asked = self.start;
        (self.start < self.end).then_some(self.start)
    }
}

/// The end of log lines about responses that cannot be used.
const READING: &str = "while reading response header from upstream";

/// `$slice_range`. Its first use decides that the response is fetched in slices.
pub fn range(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.pass.get(&SLICES).is_none() {
        let size = match request.plan.of(&SIZE) {
            Some(SliceSize(size)) if request.is_main() && request.response.status == 0 => *size,
            _ => return false,
        };
        let start = asked_start(request);
        *request.pass.enter(&SLICES) = Slices {
            size,
            asked: start - start % size,
            start: start - start % size,
            ..Slices::default()
        };
    }
    let Some(slices) = request.pass.get(&SLICES) else {
        return false;
    };
    let last = slices.asked.saturating_add(slices.size) - 1;
    out.extend_from_slice(format!("bytes={}-{last}", slices.asked).as_bytes());
    true
}

/// The first byte that the client wants, if it asks for a single range with a start.
fn asked_start(request: &Request) -> u64 {
    if request.header(KnownField::IfRange).is_some() {
        return 0;
    }
    let start = request.header(KnownField::Range).and_then(|value| {
        let (unit, ranges) = value.split_at_checked(6)?;
        if !unit.eq_ignore_ascii_case(b"bytes=") || ranges.contains(&b',') {
            return None;
        }
        let (start, rest) = number(ranges)?;
        (skip_spaces(rest).first() == Some(&b'-')).then_some(start)
    });
    start.unwrap_or(0)
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    text.get(spaces..).unwrap_or_default()
}

/// Parses a number after optional spaces; returns it and the rest of the text.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = skip_spaces(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at_checked(digits)?;
    let value: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    i64::try_from(value).ok()?;
    Some((value, rest))
}

/// The text after optional spaces and this byte; `None` if another byte follows the spaces.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    skip_spaces(text).strip_prefix(&[byte])
}

/// Start, end and total length (`None` for `*`) of a Content-Range field. A field whose end
/// precedes its start is invalid (RFC 9110, section 14.4): an upstream that sends it would be asked
/// for the same slice forever.
fn content_range(value: &[u8]) -> Option<(u64, u64, Option<u64>)> {
    let (start, rest) = number(value.strip_prefix(b"bytes ")?)?;
    let (last, rest) = number(after(rest, b'-')?)?;
    let rest = after(rest, b'/')?;
    let (length, rest) = match after(rest, b'*') {
        Some(rest) => (None, rest),
        None => number(rest).map(|(length, rest)| (Some(length), rest))?,
    };
    (start <= last && skip_spaces(rest).is_empty()).then(|| (start, last.saturating_add(1), length))
}

impl Module for SliceSize {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Slice, &["slice"])];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "only what is fetched from elsewhere comes in parts",
    )];

    fn is_off(&self) -> bool {
        self.0 == 0
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
        plan.keep(&SIZE, self);
    }
}

impl HeadFilter for SliceSize {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main() && request.pass.get(&SLICES).is_some()
    }

    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        if let Some(start) = begin(request)? {
            chain.go_on_with(ByRange::default(), start);
        }
        Ok(())
    }
}

/// Makes the first slice the beginning of the whole response, before any other filter sees it.
/// Returns the offset of the body; `None` for a response that is not sliced.
fn begin(request: &mut Request) -> Result<Option<u64>, Abort> {
    let Some(mut slices) = request.pass.take(&SLICES) else {
        return Ok(None);
    };
    if request.response.status != 206 {
        return Ok(None);
    }
    let checked = check(request, &mut slices);
    *request.pass.enter(&SLICES) = slices;
    if checked.is_err() {
        refuse_answer(request);
    }
    let (start, length) = checked?;
    narrow(request, start, length);
    let response = &mut request.response;
    response.status = 200;
    response.status_text = None;
    response.content_length = Some(length);
    response.remove(b"Content-Range");
    response.remove(b"Accept-Ranges");
    response.allow_ranges = true;
    response.single_range = true;
    Ok(Some(start))
}

/// Records that the client wants only the bytes from `start` to `end`.
fn narrow(request: &mut Request, start: u64, end: u64) {
    if let Some(slices) = request.pass.get_mut(&SLICES) {
        if slices.start.saturating_add(slices.size) <= start {
            slices.start = start - start % slices.size;
        }
        slices.end = end;
    }
}

/// Fetches the slices after the first by range. The request that fetches a slice holds the progress
/// ([`Slices`]).
#[derive(Default)]
struct ByRange {
    /// The client has asked for a range: as in nginx, each slice then has the status of the
    /// response.
    is_narrowed: bool,
}

impl Parts for ByRange {
    fn narrow(&mut self, request: &mut Request, range: ByteRange) {
        self.is_narrowed = true;
        narrow(request, range.start, range.end);
    }

    fn next(&mut self, request: &mut Request) -> Result<Option<(Box<Request>, u64)>, Abort> {
        let slices = request.pass.get_mut(&SLICES);
        let Some(start) = slices.and_then(Slices::advance) else {
            request.pass.take(&SLICES);
            return Ok(None);
        };
        let Some(mut part) = request.again() else {
            return Err(Abort::Internal("no subrequest for a slice"));
        };
        hand_over(request, &mut part);
        Ok(Some((part, start)))
    }

    fn judge(&mut self, part: &mut Request) -> Result<(), Abort> {
        let Some(mut slices) = part.pass.take(&SLICES) else {
            return Ok(());
        };
        let checked = check_next(part, &mut slices);
        *part.pass.enter(&SLICES) = slices;
        if checked.is_err() {
            refuse_answer(part);
        }
        checked?;
        part.response.status = if self.is_narrowed { 206 } else { 200 };
        Ok(())
    }

    fn end(&mut self, request: &mut Request, part: &mut Request) {
        hand_over(part, request);
    }
}

/// Moves the progress to the request that now fetches.
fn hand_over(from: &mut Request, to: &mut Request) {
    if let Some(slices) = from.pass.take(&SLICES) {
        *to.pass.enter(&SLICES) = slices;
    }
}

/// Checks the response to the subrequest for a slice, and advances to the next slice.
fn check_next(child: &mut Request, slices: &mut Slices) -> Result<(), Abort> {
    if child.response.status != 206 {
        logs::error!(
            child,
            Error,
            "unexpected status code {} in slice response {READING}",
            child.response.status
        );
        return Err(Abort::Filter);
    }
    check(child, slices).map(|_| ())
}

/// Checks that a response is the requested slice. Returns the slice's offset and the total length.
fn check(request: &Request, slices: &mut Slices) -> Result<(u64, u64), Abort> {
    let refuse = |text: std::fmt::Arguments<'_>| {
        logs::error!(request, Error, "{text} {READING}");
        Err(Abort::Filter)
    };
    let etag = request.response.field(b"ETag").cloned();
    if !slices.etag.is_empty() && etag.as_ref() != Some(&slices.etag) {
        return refuse(format_args!("etag mismatch in slice response"));
    }
    slices.etag = etag.unwrap_or_default();
    let range = request.response.field(b"Content-Range");
    let Some((start, end, length)) = range.and_then(|value| content_range(value)) else {
        return refuse(format_args!("invalid range in slice response"));
    };
    let Some(length) = length else {
        return refuse(format_args!("no complete length in slice response"));
    };
    let expected = start.saturating_add(slices.size).min(length);
    if start != slices.start || end != expected {
        return refuse(format_args!(
            "unexpected range in slice response: {start}-{end}, expected: {}-{expected}",
            slices.start
        ));
    }
    slices.start = end;
    Ok((start, length))
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    (name == "slice_range").then(|| BuiltinVariable::computed(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read_as_nginx_reads_them() {
        let cases: [(&[u8], _); 9] = [
            (b"bytes 0-1/10", Some((0, 2, Some(10)))),
            (b"bytes  0 - 1 / 10 ", Some((0, 2, Some(10)))),
            (b"bytes 2-3/*", Some((2, 4, None))),
            (b"bytes", None),
            (b"bytes */10", None),
            (b"bytes 0-/10", None),
            (b"bytes 0-1/10x", None),
            (b"bytes 99999999999999999999-1/2", None),
            (b"bytes 4-3/4", None),
        ];
        for (value, expected) in cases {
            assert_eq!(content_range(value), expected, "{value:?}");
        }
    }
}
