//! The directives that every coding has, with the coding's prefix: `gzip_types`, `brotli_types` and
//! `zstd_types` are one and the same directive. The directives that turn a coding on or set its
//! level are declared in the coding's own file.

use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, parse};

use super::{MediaTypes, media_types};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The directives of one coding; see the module.
pub struct CodingFamily {
    /// The types of the responses that are compressed.
    pub types: Setting<MediaTypes>,
    /// The shortest length in bytes of the responses that are compressed.
    pub min_length: Setting<u64>,
    /// How many compressed bytes are sent at once.
    pub buffers: Setting<u64>,
}

impl CodingFamily {
    /// The directives with this prefix, such as `gzip_`.
    pub const fn of(prefix: &'static str) -> CodingFamily {
        CodingFamily {
            types: Setting::family(prefix, "types", &["mime-type …"], media_types)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::List)
                .default("text/html")
                .manual(
                    "The media types of responses that are compressed, besides `text/html`; `*` \
                     is every type.",
                ),
            min_length: Setting::family(prefix, "min_length", &["length"], parse::size)
                .contexts(HSL)
                .default("20")
                .manual("Responses that are known to be shorter are not compressed."),
            buffers: Setting::family(prefix, "buffers", &["number size"], block_size)
                .contexts(HSL)
                .arity(Arity::exactly(2))
                .default("32 4k")
                .manual(
                    "Compressed data goes out in blocks of `size`. The number has no effect: how \
                     much may wait for a slow client is bounded for all responses alike.",
                ),
        }
    }
}

/// Parses `number size` and returns the size in bytes. The number is checked and ignored.
pub(super) fn block_size(setter: &Setter<'_>) -> Result<u64, Fault> {
    parse::buffers(setter).map(|(_, size)| size)
}

/// Parses a level of compression within the coding's limits.
pub fn level<const MIN: u64, const MAX: u64>(setter: &Setter<'_>) -> Result<u64, Fault> {
    let level = parse::number(setter)?;
    if (MIN..=MAX).contains(&level) {
        Ok(level)
    } else {
        Err(Fault::new(format!("value must be between {MIN} and {MAX}")))
    }
}
