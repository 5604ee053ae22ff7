//! Brotli: `brotli` and related directives, as in the module ngx_brotli.
//!
//! <https://github.com/google/ngx_brotli>, RFC 7932. `brotli_static` is in
//! [`precompressed`](crate::precompressed). Each response that is being compressed needs a few
//! times its window; small responses get small windows.

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use conf::{Contexts, Declared, Fault, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::exchange::abort::Abort;

use super::coding_family::{self, CodingFamily};
use super::compress::{Coding, Compressor, Conditions, MemoryWriter};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The size of the encoder's buffer, in bytes.
const BUFFER_SIZE: usize = 4096;

/// The smallest window, as a power of two (RFC 7932, section 9.1).
const WINDOW_BITS_MIN: i32 = 10;

/// `brotli on | off`
pub static BROTLI: Setting<bool> = Setting::new("brotli", &["on | off"], parse::flag)
    .contexts(HSL.or(Contexts::LOCATION_IF))
    .default("off")
    .manual(
        "Compresses responses with status 200, 403 or 404 for clients that accept br. Where several codings \
         are on, the client's quality values decide; of equal ones br goes before zstd and gzip.",
    );

static FAMILY: CodingFamily = CodingFamily::of("brotli_");

/// Declares the directive `brotli_comp_level LEVEL`.
pub static BROTLI_COMP_LEVEL: Setting<u64> = Setting::new(
    "brotli_comp_level",
    &["level"],
    coding_family::level::<0, 11>,
)
.contexts(HSL)
.default("6")
.manual("How much work goes into compression, from 0 to 11.");

/// Declares the directive `brotli_window SIZE`.
pub static BROTLI_WINDOW: Setting<i32> = Setting::new("brotli_window", &["size"], window)
    .contexts(HSL)
    .default("512k")
    .manual("How far back the compressor looks for repetitions: a power of two from 1k to 16m.");

fn window(setter: &Setter<'_>) -> Result<i32, Fault> {
    let size = parse::size(setter)?;
    (WINDOW_BITS_MIN..=24)
        .find(|bits| size == 1 << bits)
        .ok_or_else(|| {
            Fault::new(
                "must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m",
            )
        })
}

/// `brotli` and related directives in one scope.
#[derive(Debug)]
pub struct Brotli {
    /// Which responses are compressed.
    pub conditions: Conditions,
    level: i32,
    window_bits: i32,
    block: usize,
}

impl Feature for Brotli {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &BROTLI,
        &FAMILY.types,
        &BROTLI_COMP_LEVEL,
        &FAMILY.min_length,
        &BROTLI_WINDOW,
        &FAMILY.buffers,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Brotli {
            conditions: Conditions::of(scope, &BROTLI, &FAMILY)?,
            level: i32::try_from(scope.get(&BROTLI_COMP_LEVEL)?).unwrap_or(6),
            window_bits: scope.get(&BROTLI_WINDOW)?,
            block: usize::try_from(scope.get(&FAMILY.buffers)?).unwrap_or(BUFFER_SIZE),
        })
    }
}

impl Brotli {
    /// `brotli_comp_level`, and the bits of `brotli_window`.
    pub(super) fn strength(&self) -> (i32, i32) {
        (self.level, self.window_bits)
    }

    /// A compressor for a body of this length, or of unknown length.
    pub(super) fn compressor(&self, level: i32, length: Option<u64>) -> Compressor {
        let mut window_bits = self.window_bits;
        while length.is_some_and(|length| length < 1 << (window_bits - 1))
            && window_bits > WINDOW_BITS_MIN
        {
            window_bits -= 1;
        }
        let parameters = BrotliEncoderParams {
            quality: level,
            lgwin: window_bits,
            ..BrotliEncoderParams::default()
        };
        let writer = CompressorWriter::with_params(Vec::new(), BUFFER_SIZE, &parameters);
        let coder = Box::new(writer);
        Compressor::new(Coding::Brotli, coder, self.block, false)
    }
}

impl MemoryWriter for CompressorWriter<Vec<u8>> {
    const FAILED: Abort = Abort::Internal("brotli compression failed");

    fn written(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> std::io::Result<Vec<u8>> {
        Ok(self.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http::testing;

    use super::super::compress::tests::check;
    use super::*;

    fn feature(text: &str) -> Result<std::sync::Arc<Brotli>, String> {
        testing::feature::<Brotli>(&format!("http {{ {text} }}"), &["http"])
    }

    #[test]
    fn what_goes_in_comes_out() {
        for text in [
            "",
            "brotli_comp_level 0; brotli_window 1k;",
            "brotli_comp_level 9;",
        ] {
            let settings = feature(text).unwrap();
            check(
                || settings.compressor(settings.strength().0, None),
                |compressed| {
                    let mut plain = Vec::new();
                    // An unfinished stream ends with an error after the decoded part.
                    let _ = brotli::Decompressor::new(compressed, 4096).read_to_end(&mut plain);
                    plain
                },
            );
        }
    }

    #[test]
    fn settings_and_their_mistakes() {
        let settings = feature("").unwrap();
        assert!(!settings.conditions.enabled);
        assert_eq!(
            (settings.level, settings.window_bits, settings.block),
            (6, 19, 4096)
        );
        let error = |text: &str| feature(text).unwrap_err();
        assert_eq!(
            error("brotli_comp_level 12;"),
            "value must be between 0 and 11"
        );
        assert!(error("brotli_window 3k;").starts_with("must be 1k, 2k"));
    }
}
