//! Zstandard: `zstd` and its family, with the directives of zstd-nginx-module.
//!
//! <https://github.com/tokers/zstd-nginx-module>, RFC 8878. `zstd_static` is with the other
//! [precompressed files](crate::precompressed). `zstd_dict_file` is not supported: a client without
//! the dictionary could not decompress the response.

use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::exchange::abort::Abort;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

use super::coding_family::{self, CodingFamily};
use super::compress::{Coding, Compressor, Conditions, MemoryWriter};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The largest window that every client must support: 8 MB (RFC 9659, section 3).
const WINDOW_BITS_MAX: u32 = 23;

/// From this level on, the library's windows may exceed [`WINDOW_BITS_MAX`], and its tables for
/// such windows take more than 600 MB.
const LEVEL_OF_LARGE_WINDOWS: i32 = 20;

/// The table sizes that the library uses at level 19 for a window of [`WINDOW_BITS_MAX`], as powers
/// of two; entries have four bytes.
const HASH_BITS_MAX: u32 = 22;
const CHAIN_BITS_MAX: u32 = 24;

/// `zstd on | off`
pub static ZSTD: Setting<bool> = Setting::new("zstd", &["on | off"], parse::flag)
    .contexts(HSL.or(Contexts::LOCATION_IF))
    .default("off")
    .manual(
        "Compresses responses with status 200, 403 or 404 for clients that accept zstd. Where several \
         codings are on, the client's quality values decide; of equal ones zstd goes behind br and before \
         gzip.",
    );

static FAMILY: CodingFamily = CodingFamily::of("zstd_");

/// Declares the directive `zstd_comp_level LEVEL`.
pub static ZSTD_COMP_LEVEL: Setting<u64> =
    Setting::new("zstd_comp_level", &["level"], coding_family::level::<1, 22>)
    .contexts(HSL)
    .default("1")
    .manual(
        "How much work goes into compression, from 1 to 22. The highest levels take up to a hundred megabytes \
         for each response at work whose length is not known.",
    );

/// `zstd` and related directives in one scope.
#[derive(Debug)]
pub struct Zstd {
    /// Which responses are compressed.
    pub conditions: Conditions,
    level: i32,
    block: usize,
}

impl Feature for Zstd {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &ZSTD,
        &FAMILY.types,
        &ZSTD_COMP_LEVEL,
        &FAMILY.min_length,
        &FAMILY.buffers,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Zstd {
            conditions: Conditions::of(scope, &ZSTD, &FAMILY)?,
            level: i32::try_from(scope.get(&ZSTD_COMP_LEVEL)?).unwrap_or(1),
            block: usize::try_from(scope.get(&FAMILY.buffers)?).unwrap_or(4096),
        })
    }
}

impl Zstd {
    pub(super) fn level(&self) -> i32 {
        self.level
    }

    /// A compressor for a body of this length, if known; `None` if there is not enough memory.
    pub(super) fn compressor(&self, level: i32, length: Option<u64>) -> Option<Compressor> {
        let mut encoder = Encoder::new(Vec::new(), level).ok()?;
        if level >= LEVEL_OF_LARGE_WINDOWS {
            for limit in [
                CParameter::WindowLog(WINDOW_BITS_MAX),
                CParameter::HashLog(HASH_BITS_MAX),
                CParameter::ChainLog(CHAIN_BITS_MAX),
            ] {
                encoder.set_parameter(limit).ok()?;
            }
        }
        // With the length, the library can choose smaller tables.
        encoder.set_pledged_src_size(length).ok()?;
        let coder = Box::new(encoder);
        Some(Compressor::new(Coding::Zstd, coder, self.block, false))
    }
}

impl MemoryWriter for Encoder<'static, Vec<u8>> {
    const FAILED: Abort = Abort::Internal("zstd compression failed");

    fn written(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> std::io::Result<Vec<u8>> {
        self.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http::testing;

    use super::super::compress::tests::check;
    use super::*;

    fn feature(text: &str) -> Result<std::sync::Arc<Zstd>, String> {
        testing::feature::<Zstd>(&format!("http {{ {text} }}"), &["http"])
    }

    #[test]
    fn what_goes_in_comes_out() {
        for text in ["", "zstd_comp_level 22;"] {
            let settings = feature(text).unwrap();
            check(
                || settings.compressor(settings.level(), None).unwrap(),
                |compressed| {
                    let mut plain = Vec::new();
                    let mut decoder = zstd::stream::read::Decoder::new(compressed).unwrap();
                    // Every client must support windows of this size.
                    decoder.window_log_max(WINDOW_BITS_MAX).unwrap();
                    // The stream has not ended, so reading ends with an error after the available
                    // data.
                    let _ = decoder.read_to_end(&mut plain);
                    plain
                },
            );
        }
    }

    #[test]
    fn settings_and_their_mistakes() {
        let settings = feature("").unwrap();
        assert!(!settings.conditions.enabled);
        assert_eq!((settings.level, settings.block), (1, 4096));
        assert_eq!(
            feature("zstd_comp_level 0;").unwrap_err(),
            "value must be between 1 and 22"
        );
    }
}
