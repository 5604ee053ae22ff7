//! `split_clients`: a variable for A/B tests, chosen by the hash of a text.
//!
//! <https://nginx.org/en/docs/http/ngx_http_split_clients_module.html>. The hash (MurmurHash2 with
//! seed 0) and the rounding of percentages are nginx's, so that a client stays in its group when a
//! site moves from nginx to Tidegate or back.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Template, Word,
    parse,
};
use framework::compile::Compiler;

use crate::name::variable_name;
use crate::{Compiling as _, Context, Source, Text, Value};

/// Declares the directive `split_clients`.
pub static SPLIT_CLIENTS: Setting<()> = Setting::new(
    "split_clients",
    &["string $variable { ... }"],
    parse::nothing,
)
.contexts(Contexts::HTTP.or(Contexts::STREAM))
.arity(Arity::exactly(2))
.inherit(Inherit::Block)
.free_block()
.manual(
    "Makes a variable whose value is chosen by the hash of the string: each row names a \
             percentage, with at most two decimals, and a value; `*` takes the rest.",
);

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&SPLIT_CLIENTS];

/// 100%, in hundredths of a percent.
const WHOLE: u64 = 10_000;

/// Compiles every `split_clients` block of a scope for a kind of context, and defines its variable.
pub fn compile<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    compile_wanted::<C>(compiler, scope, &|_| true);
}

/// Like [`compile`], but only for blocks whose variable is `wanted`.
pub(crate) fn compile_wanted<C: Context>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    wanted: &dyn Fn(&str) -> bool,
) {
    for line in scope.lines().iter().filter(|line| line.is("split_clients")) {
        if let Err(fault) = define::<C>(compiler, line, wanted) {
            compiler.report(fault.while_reading());
        }
    }
}

fn define<C: Context>(
    compiler: &Compiler<'_>,
    line: &Line,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<(), Fault> {
    let [text, name, ..] = &*line.args else {
        return Ok(());
    }; // the arity has been checked
    let text = Template::parse(text)?;
    let variable = variable_name(name)?;
    if !wanted(&variable) {
        return Ok(());
    }
    let text: Text<C> = compiler.text(&text);
    let mut shares = Vec::new();
    if let Some(Block::Free(rows)) = &line.block {
        for row in rows {
            let [value, ..] = &*row.args else {
                return Err(Fault::at(
                    &row.name,
                    "invalid number of parameters in \"split_clients\" block",
                ));
            };
            shares.push((percentage(&row.name)?, Bytes::copy_from_slice(&value.bytes)));
        }
    }
    let parts = parts(shares).map_err(|text| Fault::at(&line.name, text))?;
    let source = Source::Computed(Arc::new(SplitClients {
        text,
        parts: parts.into(),
    }));
    compiler
        .define(&variable, source)
        .map_err(|text| Fault::at(name, text))?;
    Ok(())
}

/// A compiled `split_clients` block.
struct SplitClients<C> {
    text: Text<C>,
    parts: Box<[SplitRow]>,
}

/// One row of a block.
#[derive(Debug, PartialEq, Eq)]
struct SplitRow {
    /// The row applies to hashes below this bound that no row before it applies to; `None` for no
    /// bound.
    below: Option<u32>,
    value: Bytes,
}

impl<C: Context> Value<C> for SplitClients<C> {
    /// The value of the row that applies to the hash of the text; empty if no row applies.
    fn value(&self, context: &mut C) -> Option<Bytes> {
        let mut text = context.scratch().take_buffer();
        self.text.append_to(context, &mut text);
        let hash = murmur_hash2(&text);
        context.scratch().give_buffer(text);
        Some(choose(&self.parts, hash))
    }
}

fn choose(parts: &[SplitRow], hash: u32) -> Bytes {
    parts
        .iter()
        .find(|part| part.below.is_none_or(|below| hash < below))
        .map(|part| part.value.clone())
        .unwrap_or_default()
}

/// Parses a percentage, in hundredths of a percent; `None` for `*`.
fn percentage(word: &Word) -> Result<Option<u64>, Fault> {
    let parse = || match &*word.bytes {
        b"*" => Some(None),
        text => match hundredths(text.strip_suffix(b"%")?)? {
            0 => None,
            number => Some(Some(number)),
        },
    };
    parse().ok_or_else(|| Fault::at(word, format!("invalid percent value \"{}\"", word.text())))
}

/// Parses a number with at most two decimals, multiplied by 100.
fn hundredths(text: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    let mut places = None;
    if text.is_empty() {
        return None;
    }
    for &byte in text {
        match (byte, places) {
            (_, Some(2)) => return None,
            (b'.', None) => places = Some(0),
            (b'0'..=b'9', _) => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                places = places.map(|count| count + 1);
            }
            _ => return None,
        }
    }
    value.checked_mul([100, 10, 1][places.unwrap_or(0).min(2)])
}

/// The rows with the bounds of their hashes, from their shares in hundredths of a percent.
fn parts(shares: Vec<(Option<u64>, Bytes)>) -> Result<Vec<SplitRow>, &'static str> {
    let mut sum = 0_u64;
    let mut bound = 0_u64;
    let mut parts = Vec::with_capacity(shares.len());
    for (share, value) in shares {
        sum = share.map_or(WHOLE, |share| sum.saturating_add(share));
        let below = match share {
            _ if sum > WHOLE => return Err("percent total is greater than 100%"),
            Some(share) if sum < WHOLE => {
                // As in nginx, each share is rounded down separately.
                bound += share * u64::from(u32::MAX) / WHOLE;
                Some(bound as u32)
            }
            _ => None,
        };
        parts.push(SplitRow { below, value });
    }
    Ok(parts)
}

/// MurmurHash2 by Austin Appleby, 32 bits, seed 0.
fn murmur_hash2(data: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let mut hash = data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ mixed.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(share: Option<u64>, value: &'static str) -> (Option<u64>, Bytes) {
        (share, Bytes::from(value))
    }

    /// The values are nginx's answers to 20 connections in a row in its own test of the module.
    #[test]
    fn connection_numbers_are_split_as_by_nginx() {
        let parts = parts(vec![
            share(Some(5_120), ".one"),
            share(Some(1_000), ".two"),
            share(None, ".three"),
        ])
        .unwrap();
        let mut counts = [0, 0, 0];
        for connection in 1..=20 {
            let value = choose(&parts, murmur_hash2(connection.to_string().as_bytes()));
            let at = [".one", ".two", ".three"]
                .iter()
                .position(|name| name.as_bytes() == value);
            counts[at.unwrap()] += 1;
        }
        assert_eq!(counts, [12, 2, 6]);
    }

    #[test]
    fn percentages_have_two_places_at_most() {
        for (text, value) in [
            ("1", 100),
            ("0.01", 1),
            ("51.2", 5_120),
            ("100.00", 10_000),
            (".5", 50),
            ("5.", 500),
        ] {
            assert_eq!(hundredths(text.as_bytes()), Some(value), "{text}");
        }
        for text in ["", "0.001", "1.2.3", "-1", "a", "1 "] {
            assert_eq!(hundredths(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn shares_may_not_exceed_the_whole() {
        let error = Err("percent total is greater than 100%");
        assert_eq!(
            parts(vec![share(Some(6_000), "a"), share(Some(4_001), "b")]),
            error
        );
        assert_eq!(parts(vec![share(None, "a"), share(Some(1), "b")]), error);
        let exact = parts(vec![share(Some(6_000), "a"), share(Some(4_000), "b")]).unwrap();
        assert_eq!(exact[0].below, Some(2_576_980_377));
        assert_eq!(exact[1].below, None);
    }

    #[test]
    fn what_no_row_takes_is_empty() {
        let parts = parts(vec![share(Some(1), "a")]).unwrap();
        assert_eq!(choose(&parts, 0), "a");
        assert_eq!(choose(&parts, u32::MAX), "");
    }
}
