//! The common part of compression: chooses the coding of a response, and compresses its body.
//!
//! The client's quality values decide between the codings that are on for a response (RFC 9110,
//! section 12.5.3); if they are equal, br is preferred to zstd and zstd to gzip. The libraries are
//! called by [`gzip`], [`brotli`](super::brotli) and [`zstd`](super::zstd).

use std::io::Write;
use std::sync::Arc;

use base::pieces::fitted;
use bytes::Bytes;
use conf::{Declared, Fault, ScopeRef, Setting};
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::{Module, PermitResponse, Prebuilt, Shortcut, ShortcutDoc};
use http::request::Request;
use http::response::Response;
use http::response::chain::{Chain, Encoder, FilterRejection, HeadFilter};
use http::response::piece::Piece;
use http::response::prebuilt::PrebuiltEncoding;
use http::slots::PassLifetime;
use http::variables::BuiltinVariable;
use proto::accept;
use proto::header::KnownField;

use super::MediaTypes;
use super::brotli::Brotli;
use super::coding_family::CodingFamily;
use super::compressed::{self, COMPRESS_STATIC_LEVEL, Constant, KeptBody, Key, Recording, Strong};
use super::gzip::{self, Gzip};
use super::zstd::Zstd;

/// Maximum number of bytes that are compressed before the output is sent, since the output stays in
/// memory until then.
const INPUT_MAX: usize = 64 * 1024;

/// A content coding that clients may accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The coding `br`, defined by RFC 7932.
    Brotli,
    /// The coding `zstd`, defined by RFC 8878.
    Zstd,
    /// The coding `gzip`, defined by RFC 1952.
    Gzip,
}

/// The order in which codings with the same quality value are preferred.
pub const BY_PREFERENCE: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

impl Coding {
    /// The name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// The client's quality value for this coding, in thousandths; 0 if the client does not accept
    /// it.
    pub fn quality(self, request: &Request) -> u16 {
        let accepted = match self {
            Coding::Gzip => gzip::is_acceptable(request),
            _ => request.is_main(),
        };
        self.quality_if(accepted, request)
    }

    /// The quality value before there is a response. A coding whose acceptance depends on the
    /// response counts as accepted.
    fn quality_before(self, request: &Request) -> u16 {
        let accepted = match self {
            Coding::Gzip => gzip::may_be_acceptable(request),
            _ => request.is_main(),
        };
        self.quality_if(accepted, request)
    }

    fn quality_if(self, accepted: bool, request: &Request) -> u16 {
        match request.header(KnownField::AcceptEncoding) {
            Some(value) if accepted => accept::quality(value, self.name().as_bytes()),
            _ => 0,
        }
    }
}

/// The conditions under which a coding compresses a response.
#[derive(Debug)]
pub struct Conditions {
    /// Whether the coding is on.
    pub enabled: bool,
    /// The media types of the responses to compress.
    types: MediaTypes,
    /// The minimum length of the responses to compress, in bytes.
    length_min: u64,
}

impl Conditions {
    /// The conditions of a coding in a scope.
    pub(super) fn of(
        scope: ScopeRef<'_>,
        enabled: &Setting<bool>,
        family: &CodingFamily,
    ) -> Result<Conditions, Fault> {
        Ok(Conditions {
            enabled: scope.get(enabled)?,
            types: scope.get(&family.types)?,
            length_min: scope.get(&family.min_length)?,
        })
    }

    /// Whether the response meets the conditions and is not compressed yet.
    fn hold(&self, response: &Response) -> bool {
        let uncoded = Prebuilt {
            status: response.status,
            content_type: &response.content_type,
            length: response.content_length,
        };
        self.hold_uncoded(uncoded) && !response.is_coded()
    }

    /// Whether a response that is not compressed yet meets the conditions.
    fn hold_uncoded(&self, response: Prebuilt<'_>) -> bool {
        self.enabled
            && matches!(response.status, 200 | 403 | 404)
            && response
                .length
                .is_none_or(|length| length >= self.length_min)
            && self.types.contain(response.content_type)
    }
}

/// The coding that the client prefers; the first of `codings` with the highest quality value.
/// `None` if the client accepts none of them.
pub fn wanted_most(request: &Request, codings: impl Iterator<Item = Coding>) -> Option<Coding> {
    let mut best = None;
    let mut best_quality = 0;
    for coding in codings {
        let quality = coding.quality(request);
        if quality > best_quality {
            (best, best_quality) = (Some(coding), quality);
        }
    }
    best
}

/// The codings of a scope. A response is compressed with at most one of them.
#[derive(Debug)]
pub struct Compression {
    brotli: Arc<Brotli>,
    zstd: Arc<Zstd>,
    gzip: Arc<Gzip>,
    /// `compress_static_level`.
    strong: Strong,
}

/// Directives that are common to all codings.
const COMMON: &[&dyn Declared] = &[&COMPRESS_STATIC_LEVEL];

/// The directives of all codings.
const OF_ALL: [&[&dyn Declared]; 4] = [
    Gzip::DIRECTIVES,
    Brotli::DIRECTIVES,
    Zstd::DIRECTIVES,
    COMMON,
];

impl Feature for Compression {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &conf::joined::<{ conf::count_of(&OF_ALL) }>(&OF_ALL);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Compression, Fault> {
        Ok(Compression {
            brotli: compiler.feature(scope)?,
            zstd: compiler.feature(scope)?,
            gzip: compiler.feature(scope)?,
            strong: scope.get(&COMPRESS_STATIC_LEVEL)?,
        })
    }
}

impl Module for Compression {
    /// The directives of gzip belong to [`Gzip`].
    const TABLES: &'static [&'static [&'static dyn Declared]] =
        &[Brotli::DIRECTIVES, Zstd::DIRECTIVES, COMMON];

    const TASKS: &'static [Task] =
        &[Task::of(TaskKind::Compression, &["brotli", "zstd"]).listed(1)];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::OfResponse(
        "where it is not compressed, be it for its type, its length or its status, or because the client accepts no coding \
         that is on, or where it stands compressed already; behind a proxy (`Via`) only where it would not be compressed for \
         any client",
    )];

    fn is_off(&self) -> bool {
        let mut codings = BY_PREFERENCE.iter();
        !codings.any(|coding| self.conditions(*coding).enabled)
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        Shortcut::OfResponse(self.clone())
    }
}

impl PermitResponse for Compression {
    /// Identity, or the coding that the client prefers, as in the head filter. Responses from
    /// memory are not encoded.
    fn encoding(&self, request: &Request, response: Prebuilt<'_>) -> Option<PrebuiltEncoding> {
        let codings = BY_PREFERENCE.into_iter();
        let mut possible = codings.filter(|coding| self.conditions(*coding).hold_uncoded(response));
        if request.header(KnownField::Via).is_some() {
            // The effect of `gzip_proxied` depends on the response's head.
            return possible
                .next()
                .is_none()
                .then_some(PrebuiltEncoding::Identity);
        }
        let mut best = (PrebuiltEncoding::Identity, 0);
        for coding in possible {
            let quality = coding.quality_before(request);
            if quality > best.1 {
                best = (PrebuiltEncoding::Encoded(coding as u8), quality);
            }
        }
        Some(best.0)
    }
}

impl Compression {
    fn conditions(&self, coding: Coding) -> &Conditions {
        match coding {
            Coding::Brotli => &self.brotli.conditions,
            Coding::Zstd => &self.zstd.conditions,
            Coding::Gzip => &self.gzip.conditions,
        }
    }

    /// The codings whose conditions the response meets, in order of preference.
    fn possible(&self, response: &Response) -> impl Iterator<Item = Coding> {
        let codings = BY_PREFERENCE.into_iter();
        codings.filter(|coding| self.conditions(*coding).hold(response))
    }

    pub(super) fn compressor(&self, coding: Coding, length: Option<u64>) -> Option<Compressor> {
        self.compressor_at(coding, self.strength(coding).0, length)
    }

    /// A compressor with this level.
    pub(super) fn compressor_at(
        &self,
        coding: Coding,
        level: i32,
        length: Option<u64>,
    ) -> Option<Compressor> {
        match coding {
            Coding::Brotli => Some(self.brotli.compressor(level, length)),
            Coding::Zstd => self.zstd.compressor(level, length),
            Coding::Gzip => Some(self.gzip.compressor(level, length)),
        }
    }

    /// The level and window of a coding.
    fn strength(&self, coding: Coding) -> (i32, i32) {
        match coding {
            Coding::Brotli => self.brotli.strength(),
            Coding::Zstd => (self.zstd.level(), 0),
            Coding::Gzip => self.gzip.strength(),
        }
    }

    /// The key of the compressed body, if it can be stored: the body must be the same for all
    /// clients, and unchanged by filters.
    fn key(&self, response: &Response, coding: Coding, chain: &Chain) -> Option<Key> {
        let identity = response.body_identity.filter(|_| chain.is_plain())?;
        let (strength, strong) = (self.strength(coding), self.strong.level(coding));
        Some(Key::of(&identity, coding, strength, strong))
    }
}

impl HeadFilter for Compression {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main() && self.possible(&request.response).next().is_some()
    }

    /// Adds a compressor to the response, if the client prefers a coding, and changes its head
    /// accordingly.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        request.response.vary_accept_encoding = self.gzip.vary;
        let length = request.response.content_length;
        let wanted = wanted_most(request, self.possible(&request.response));
        let Some(coding) = wanted else {
            return Ok(());
        };
        let key = self.key(&request.response, coding, chain);
        let kept = key.as_ref().and_then(compressed::kept);
        if let Some(kept) = kept {
            name_coding(&mut request.response, coding);
            chain.encode(KeptBody::of(kept, coding, &self));
            return Ok(());
        }
        let Some(mut compressor) = self.compressor(coding, length) else {
            return Ok(());
        };
        let strong = self.strong.level(coding);
        compressor.constant = key.map(|key| Constant {
            key,
            length,
            compression: Arc::clone(&self),
            strong,
        });
        name_coding(&mut request.response, coding);
        chain.encode(compressor);
        Ok(())
    }
}

/// Changes the head to a body in this coding.
fn name_coding(response: &mut Response, coding: Coding) {
    response.set_coding(coding.name());
    response.clear_content_length();
    response.clear_ranges();
    response.weaken_etag();
}

/// A library that compresses one body. The output is appended to a buffer.
pub(super) trait Coder {
    /// Compresses a part of the body.
    fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Abort>;
    /// Outputs everything that the library holds back, so that a client can decode all input so
    /// far.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Abort>;
    fn finish(self: Box<Self>, out: &mut Vec<u8>) -> Result<(), Abort>;
}

/// A library that writes its output to its own buffer.
pub(super) trait MemoryWriter: Write {
    /// The error if the library fails, or the body does not have the announced length.
    const FAILED: Abort;

    /// The output that has not been taken.
    fn written(&mut self) -> &mut Vec<u8>;

    /// Ends the stream, and returns the output that has not been taken.
    fn end(self) -> std::io::Result<Vec<u8>>;
}

impl<W: MemoryWriter> Coder for W {
    fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Abort> {
        self.write_all(input).map_err(|_| W::FAILED)?;
        out.append(self.written());
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Abort> {
        Write::flush(self).map_err(|_| W::FAILED)?;
        out.append(self.written());
        Ok(())
    }

    fn finish(self: Box<Self>, out: &mut Vec<u8>) -> Result<(), Abort> {
        out.append(&mut (*self).end().map_err(|_| W::FAILED)?);
        Ok(())
    }
}

/// Compresses the body of one response.
pub struct Compressor {
    coding: Coding,
    /// `None` after the end of the body.
    coder: Option<Box<dyn Coder>>,
    /// Minimum length of the pieces that are output, in bytes.
    block: usize,
    /// Whether output is passed on at once, whatever its length.
    unbuffered: bool,
    /// Compressed bytes that do not fill a block yet.
    pending: Vec<u8>,
    bytes_in: u64,
    bytes_out: u64,
    /// The properties of a body that may be stored, until recording starts.
    constant: Option<Constant>,
    /// Records the compressed body, to store it.
    recording: Option<Recording>,
}

/// The totals of the response.
static DONE: Slot<CompressionResult, PassLifetime> = Slot::new();

/// `None` if the response is not compressed.
#[derive(Default)]
struct CompressionResult(Option<Totals>);

impl SlotValue for CompressionResult {}

/// The totals of a compressor, for `$gzip_ratio` and similar variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The coding.
    pub coding: Coding,
    /// Bytes of input.
    pub bytes_in: u64,
    /// Bytes of output.
    pub bytes_out: u64,
}

impl Compressor {
    /// Sends the output in blocks of at least `block` bytes, or at once if `unbuffered` is set.
    pub(super) fn new(
        coding: Coding,
        coder: Box<dyn Coder>,
        block: usize,
        unbuffered: bool,
    ) -> Compressor {
        Compressor {
            coding,
            coder: Some(coder),
            block,
            unbuffered,
            pending: Vec::with_capacity(block),
            bytes_in: 0,
            bytes_out: 0,
            constant: None,
            recording: None,
        }
    }

    /// Compresses a complete body.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Vec<u8>, Abort> {
        let mut out = Vec::new();
        if let Some(mut coder) = self.coder.take() {
            for input in body.chunks(INPUT_MAX) {
                coder.write(input, &mut out)?;
            }
            coder.finish(&mut out)?;
        }
        Ok(out)
    }

    /// The totals so far.
    fn totals(&self) -> Totals {
        Totals {
            coding: self.coding,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out + self.pending.len() as u64,
        }
    }

    fn release(&mut self, out: &mut Vec<Piece>) {
        if !self.pending.is_empty() {
            if let Some(recording) = &mut self.recording {
                recording.output(&self.pending);
            }
            self.bytes_out += self.pending.len() as u64;
            let released = std::mem::replace(&mut self.pending, Vec::with_capacity(self.block));
            out.push(Piece::Bytes(fitted(released)));
        }
    }
}

impl Encoder for Compressor {
    fn known(&mut self) -> Option<Bytes> {
        let constant = self.constant.take();
        self.recording = constant.and_then(|constant| Recording::begin(constant, self.coding));
        None
    }

    fn apply(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        const ENDED: Abort = Abort::Internal("a compressor was given a piece after the last");
        match piece {
            Piece::Bytes(bytes) => {
                for input in bytes.chunks(INPUT_MAX) {
                    let coder = self.coder.as_mut().ok_or(ENDED)?;
                    coder.write(input, &mut self.pending)?;
                    if let Some(recording) = &mut self.recording {
                        recording.input(input);
                    }
                    self.bytes_in += input.len() as u64;
                    if self.unbuffered || self.pending.len() >= self.block {
                        self.release(out);
                    }
                }
            }
            Piece::Flush => {
                // A stored body must not depend on the timing of its parts.
                self.recording = None;
                let coder = self.coder.as_mut().ok_or(ENDED)?;
                coder.flush(&mut self.pending)?;
                self.release(out);
                out.push(Piece::Flush);
            }
            Piece::Last => {
                let coder = self.coder.take().ok_or(ENDED)?;
                coder.finish(&mut self.pending)?;
                self.release(out);
                if let Some(recording) = self.recording.take() {
                    recording.end();
                }
                out.push(Piece::Last);
            }
            Piece::File { .. } | Piece::Include(_) => {
                return Err(Abort::Internal(
                    "a compressor was given a piece that is not in memory",
                ));
            }
        }
        Ok(())
    }

    fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    fn end(&mut self, request: &mut Request) {
        note_totals(request, self.totals());
    }
}

/// Sets the totals for `$gzip_ratio` and similar variables.
pub(super) fn note_totals(request: &mut Request, totals: Totals) {
    request.pass.enter(&DONE).0 = Some(totals);
}

/// Appends `$gzip_ratio` or a similar variable: bytes of input divided by bytes of output, with two
/// decimals. False if the response was not compressed in this coding.
pub fn ratio(request: &Request, coding: Coding, out: &mut Vec<u8>) -> bool {
    match request.pass.get(&DONE) {
        Some(CompressionResult(Some(totals)))
            if totals.coding == coding && totals.bytes_out > 0 =>
        {
            let thousandths = u128::from(totals.bytes_in) * 1000 / u128::from(totals.bytes_out);
            let hundredths = (thousandths + 5) / 10;
            // Writing to a vector does not fail.
            let _ = write!(out, "{}.{:02}", hundredths / 100, hundredths % 100);
            true
        }
        _ => false,
    }
}

/// The built-in variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    Some(BuiltinVariable::computed(match name {
        "brotli_ratio" => |request, out| ratio(request, Coding::Brotli, out),
        "gzip_ratio" => |request, out| ratio(request, Coding::Gzip, out),
        "zstd_ratio" => |request, out| ratio(request, Coding::Zstd, out),
        _ => return None,
    }))
}

#[cfg(test)]
pub(super) mod tests {
    use http::testing::with_request;

    use super::*;

    pub(crate) fn bytes(pieces: &[Piece]) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in pieces {
            if let Piece::Bytes(bytes) = piece {
                all.extend_from_slice(bytes);
            }
        }
        all
    }

    pub(crate) fn text(length: usize) -> Bytes {
        (0..length)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as u8)
            .collect::<Vec<u8>>()
            .into()
    }

    /// The output decodes to the input, in pieces of any size, and a flush outputs everything.
    pub(crate) fn check(compressor: impl Fn() -> Compressor, plain: impl Fn(&[u8]) -> Vec<u8>) {
        for (length, step) in [(0, 1), (10, 3), (20_000, 700), (70_000, 70_000)] {
            let mut compressor = compressor();
            let (input, mut out) = (text(length), Vec::new());
            for chunk in input.chunks(step) {
                let piece = Piece::Bytes(Bytes::copy_from_slice(chunk));
                compressor.apply(piece, &mut out).unwrap();
            }
            compressor.apply(Piece::Last, &mut out).unwrap();
            assert!(matches!(out.last(), Some(Piece::Last)));
            let compressed = bytes(&out);
            assert!(plain(&compressed) == input, "{length} {step}");
            let totals = compressor.totals();
            assert_eq!(totals.bytes_in, length as u64);
            assert_eq!(totals.bytes_out, compressed.len() as u64);
        }
        let (mut compressor, mut out) = (compressor(), Vec::new());
        let text = Piece::Bytes(Bytes::from_static(b"SEE-THIS"));
        compressor.apply(text, &mut out).unwrap();
        compressor.apply(Piece::Flush, &mut out).unwrap();
        assert!(matches!(out.last(), Some(Piece::Flush)));
        assert!(plain(&bytes(&out)).starts_with(b"SEE-THIS"));
    }

    #[test]
    fn ratios_are_rounded_as_nginx_does() {
        with_request(|request| {
            for (bytes_in, bytes_out, expected) in [
                (1000, 500, "2.00"),
                (17, 8, "2.13"),
                (2124, 1000, "2.12"),
                (1999, 1000, "2.00"),
                (10, 30, "0.33"),
            ] {
                request.pass.enter(&DONE).0 = Some(Totals {
                    coding: Coding::Gzip,
                    bytes_in,
                    bytes_out,
                });
                let mut out = Vec::new();
                assert!(ratio(request, Coding::Gzip, &mut out));
                assert_eq!(out, expected.as_bytes());
                assert!(!ratio(request, Coding::Zstd, &mut out));
            }
            request.pass.end();
            assert!(!ratio(request, Coding::Gzip, &mut Vec::new()));
        });
    }
}
