//! `gunzip`: decompresses responses for clients that do not accept gzip.
//!
//! <https://nginx.org/en/docs/http/ngx_http_gunzip_module.html>. The rules of the [gzip
//! filter](super::gzip) decide whether a client accepts gzip. Consecutive members (RFC 1952,
//! section 2.2) are concatenated.

use std::sync::Arc;

use base::pieces::fitted;
use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setting, parse};
use flate2::{Decompress, FlushDecompress, Status};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::{Module, ShortcutDoc};
use http::request::Request;
use http::response::chain::{BodyFilter, Chain, FilterRejection, HeadFilter};
use http::response::piece::Piece;

use super::{coding_family, gzip};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Maximum number of compressed bytes that are decompressed before the output is sent: the output
/// may be a thousand times longer.
const EXPANDED_AT_ONCE_MAX: usize = 1024;

/// The largest window of the format: 32 kB.
const WINDOW_BITS: u8 = 15;

/// `gunzip on | off`
pub static GUNZIP: Setting<bool> = Setting::new("gunzip", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual(
        "Decompresses responses with `Content-Encoding: gzip` for clients that do not take it.",
    );

/// Declares the directive `gunzip_buffers NUMBER SIZE`.
pub static GUNZIP_BUFFERS: Setting<u64> = Setting::new(
    "gunzip_buffers",
    &["number size"],
    coding_family::block_size,
)
.contexts(HSL)
.arity(Arity::exactly(2))
.default("32 4k")
.manual(
    "Decompressed data goes on in blocks of `size`. The number has no effect: how much may wait for a \
     slow client is bounded for all responses alike.",
);

/// `gunzip` in one scope.
#[derive(Debug)]
pub struct Gunzip {
    enabled: bool,
    block: usize,
}

impl Feature for Gunzip {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&GUNZIP, &GUNZIP_BUFFERS];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Gunzip {
            enabled: scope.get(&GUNZIP)?,
            block: usize::try_from(scope.get(&GUNZIP_BUFFERS)?).unwrap_or(4096),
        })
    }
}

impl Module for Gunzip {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Body, &["gunzip"]).listed(4)];
    const SHORTCUTS: &'static [ShortcutDoc] =
        &[ShortcutDoc::Same("a file's response has no coding")];

    fn is_off(&self) -> bool {
        !self.enabled
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }
}

impl HeadFilter for Gunzip {
    fn applies_to(&self, request: &Request) -> bool {
        let coding = request.response.coding.as_ref();
        coding.is_some_and(|coding| coding.eq_ignore_ascii_case(b"gzip"))
    }

    /// Adds a decompressor to the response, if the client does not accept gzip, and changes its
    /// head accordingly.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        request.response.vary_accept_encoding = gzip::varies(request);
        if gzip::is_acceptable(request) {
            return Ok(());
        }
        let response = &mut request.response;
        response.remove_coding();
        response.clear_content_length();
        response.clear_ranges();
        response.weaken_etag();
        chain.push(Expand {
            stream: Decompress::new_gzip(WINDOW_BITS),
            block: self.block,
            ended: false,
        });
        Ok(())
    }
}

/// Decompresses one body.
struct Expand {
    stream: Decompress,
    block: usize,
    /// Whether the last member is complete.
    ended: bool,
}

impl BodyFilter for Expand {
    fn at_once(&self) -> usize {
        EXPANDED_AT_ONCE_MAX
    }

    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        match piece {
            Piece::Bytes(bytes) => self.run(request, &bytes, out),
            Piece::Last if !self.ended => {
                const BUFFER_ERROR: i32 = -5; // zlib's Z_BUF_ERROR: there is no more input
                logs::error!(
                    request,
                    Error,
                    "inflate() returned {BUFFER_ERROR} on response end{}",
                    request.activity.sending
                );
                Err(Abort::Filter)
            }
            piece => {
                out.push(piece);
                Ok(())
            }
        }
    }
}

impl Expand {
    /// Decompresses a part of the body, in blocks.
    fn run(
        &mut self,
        request: &Request,
        mut input: &[u8],
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        while !input.is_empty() {
            if std::mem::take(&mut self.ended) {
                self.stream = Decompress::new_gzip(WINDOW_BITS);
            }
            let (read, mut block) = (self.stream.total_in(), Vec::with_capacity(self.block));
            let status = self
                .stream
                .decompress_vec(input, &mut block, FlushDecompress::None);
            let Ok(status) = status else {
                const DATA_ERROR: i32 = -3; // zlib's Z_DATA_ERROR
                logs::error!(
                    request,
                    Error,
                    "inflate() failed: 4, {DATA_ERROR}{}",
                    request.activity.sending
                );
                return Err(Abort::Filter);
            };
            let read = self.stream.total_in().saturating_sub(read);
            let stuck = read == 0 && block.is_empty();
            input = input
                .get(usize::try_from(read).unwrap_or(usize::MAX)..)
                .unwrap_or_default();
            self.ended = status == Status::StreamEnd;
            // If the output has filled its block, the library may hold more without further input.
            let mut full = block.len() == block.capacity();
            push(block, out);
            while full && input.is_empty() && !self.ended {
                let mut block = Vec::with_capacity(self.block);
                match self
                    .stream
                    .decompress_vec(&[], &mut block, FlushDecompress::None)
                {
                    Ok(status) => self.ended = status == Status::StreamEnd,
                    Err(_) => break, // the library held nothing more
                }
                full = block.len() == block.capacity();
                push(block, out);
            }
            if stuck && !self.ended {
                return Err(Abort::Internal("inflate() makes no progress"));
            }
        }
        Ok(())
    }
}

fn push(block: Vec<u8>, out: &mut Vec<Piece>) {
    if !block.is_empty() {
        out.push(Piece::Bytes(fitted(block)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bytes::Bytes;
    use http::testing;
    use http::testing::with_request;

    use super::*;

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn expanded(input: &[u8], step: usize, block: usize) -> Result<String, Abort> {
        let mut expand = Expand {
            stream: Decompress::new_gzip(WINDOW_BITS),
            block,
            ended: false,
        };
        with_request(|request| {
            let mut out = Vec::new();
            for piece in input.chunks(step) {
                let piece = Piece::Bytes(Bytes::copy_from_slice(piece));
                expand.apply(request, piece, &mut out)?;
            }
            expand.apply(request, Piece::Last, &mut out)?;
            Ok(testing::text_of(&out))
        })
    }

    #[test]
    fn gives_what_was_compressed() {
        let text = "abcdefgh".repeat(5000);
        let input = compressed(text.as_bytes());
        for (step, block) in [
            (1, 1),
            (7, 100),
            (1000, 4096),
            (100_000, 64),
            (100_000, 100_000),
        ] {
            assert!(
                expanded(&input, step, block).unwrap() == text,
                "{step} {block}"
            );
        }
    }

    #[test]
    fn members_are_one_text() {
        let input = [compressed(b"one "), compressed(b""), compressed(b"two")].concat();
        for step in 1..=input.len() {
            assert_eq!(expanded(&input, step, 4096).unwrap(), "one two");
        }
    }

    #[test]
    fn what_is_broken_or_cut_is_refused() {
        let input = compressed(b"text");
        for end in 0..input.len() {
            assert!(expanded(&input[..end], 100, 4096).is_err(), "{end}");
        }
        assert!(expanded(b"no gzip at all", 100, 4096).is_err());
        let garbage = [&input[..], b"garbage behind"].concat();
        assert!(expanded(&garbage, 100, 4096).is_err());
    }

    #[test]
    fn settings() {
        let feature = |text: &str| {
            testing::feature::<Gunzip>(&format!("http {{ {text} }}"), &["http"]).unwrap()
        };
        assert!(!feature("").enabled && feature("gunzip on;").enabled);
        assert_eq!(feature("").block, 4096);
        assert_eq!(feature("gunzip_buffers 2 16k;").block, 16_384);
    }
}
