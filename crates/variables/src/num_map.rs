//! `num_map`: a variable whose value depends on a number.
//!
//! <https://nginx.org/en/docs/http/ngx_http_num_map_module.html>, of NGINX Plus, which does not
//! define the precedence of overlapping rows: here the first row applies. All rows become one
//! sorted list of disjoint intervals, so that a lookup is one binary search however many rows there
//! are. Numbers are decimal fractions, kept as whole billionths: nothing is rounded.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Template, Word,
    parse,
};
use framework::compile::Compiler;

use crate::name::variable_name;
use crate::{Compiling as _, Context, Source, Text, Value};

/// Declares the directive `num_map`.
pub static NUM_MAP: Setting<()> = Setting::new(
    "num_map",
    &["number $variable { ... }"],
    parse::nothing,
)
.contexts(Contexts::HTTP.or(Contexts::STREAM))
.arity(Arity::exactly(2))
.inherit(Inherit::Block)
.free_block()
.manual(
    "Makes a variable whose value depends on a number, which the first argument gives, such as \
     `$remote_port` or `$request_time`. Each row holds a number, a range (`8080-8090`) or a bound \
     (`<1024`, `<=1023`, `>1023`, `>=1024`) and a value; of rows that overlap the first counts. \
     Numbers may be negative and have up to nine decimals. `default` stands for all that no row \
     has, and for what is no number; `include` and `volatile` mean what they mean in `map`.",
);

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&NUM_MAP];

/// Maximum number of decimals of a number.
const DECIMALS_MAX: usize = 9;
/// Maximum number of digits of a number before the decimal point.
const DIGITS_MAX: usize = 24;

/// Compiles every `num_map` block of a scope for a kind of context, and defines its variable.
pub fn compile<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    compile_wanted::<C>(compiler, scope, &|_| true);
}

/// Like [`compile`], but only for blocks whose variable is `wanted`.
pub(crate) fn compile_wanted<C: Context>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    wanted: &dyn Fn(&str) -> bool,
) {
    for line in scope.lines().iter().filter(|line| line.is("num_map")) {
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
    let [source, name, ..] = &*line.args else {
        return Ok(());
    }; // the arity has been checked
    let source = Template::parse(source)?;
    let variable = variable_name(name)?;
    if !wanted(&variable) {
        return Ok(());
    }
    let mut map = NumMap::<C> {
        source: compiler.text(&source),
        volatile: false,
        intervals: Intervals::default(),
        values: Vec::new(),
        default: Text::Literal(Bytes::new()),
    };
    let mut rows = Rows::default();
    if let Some(Block::Free(lines)) = &line.block {
        for row in lines {
            if let Err(fault) = rows.read(compiler, row, &mut map) {
                compiler.report(fault.while_reading());
            }
        }
    }
    map.intervals = Intervals::of(&rows.ranges);
    compiler
        .define(&variable, Source::Computed(Arc::new(map)))
        .map_err(|text| Fault::at(name, text))?;
    Ok(())
}

/// A compiled `num_map` block.
struct NumMap<C> {
    source: Text<C>,
    /// `volatile`: the value is computed anew on each use.
    volatile: bool,
    intervals: Intervals,
    values: Vec<Text<C>>,
    default: Text<C>,
}

impl<C: Context> Value<C> for NumMap<C> {
    fn is_volatile(&self) -> bool {
        self.volatile
    }

    fn value(&self, context: &mut C) -> Option<Bytes> {
        let mut text = context.scratch().take_buffer();
        self.source.append_to(context, &mut text);
        let number = Number::of_value(&text);
        context.scratch().give_buffer(text);
        let found = number.and_then(|number| self.intervals.find(number));
        let value = found.and_then(|row| self.values.get(row));
        Some(value.unwrap_or(&self.default).evaluate(context))
    }
}

/// The rows of a block while they are parsed.
#[derive(Default)]
struct Rows {
    /// The ranges of the rows, by the index of the row's value in [`NumMap::values`].
    ranges: Vec<Range>,
    has_default: bool,
}

impl Rows {
    fn read<C: Context>(
        &mut self,
        compiler: &Compiler<'_>,
        row: &Line,
        map: &mut NumMap<C>,
    ) -> Result<(), Fault> {
        let value = match (&*row.name.bytes, &*row.args) {
            (b"volatile", []) => {
                map.volatile = true;
                return Ok(());
            }
            (_, [value]) => compiler.text(&Template::parse(value)?),
            _ => {
                let text = "invalid number of the num_map parameters";
                return Err(Fault::at(&row.name, text));
            }
        };
        if &*row.name.bytes == b"default" {
            if std::mem::replace(&mut self.has_default, true) {
                return Err(Fault::at(&row.name, "duplicate default num_map parameter"));
            }
            map.default = value;
        } else {
            self.ranges.push(Range::parse(&row.name)?);
            map.values.push(value);
        }
        Ok(())
    }
}

/// A decimal fraction, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number(i128);

impl Number {
    const MIN: Number = Number(i128::MIN);
    const MAX: Number = Number(i128::MAX);

    /// The number in the text of a variable. Decimals beyond [`DECIMALS_MAX`] are ignored.
    fn of_value(text: &[u8]) -> Option<Number> {
        let (number, rest) = Number::prefix(text)?;
        rest.iter().all(u8::is_ascii_digit).then_some(number)
    }

    /// The number at the start of a text, and the rest of the text.
    fn prefix(text: &[u8]) -> Option<(Number, &[u8])> {
        let (is_negative, rest) = match text.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, mut rest) = rest.split_at(digits(rest));
        let mut decimals: &[u8] = &[];
        if let Some(behind) = rest.strip_prefix(b".") {
            let length = digits(behind).min(DECIMALS_MAX);
            (decimals, rest) = behind.split_at(length);
            if decimals.is_empty() {
                return None;
            }
        }
        if whole.is_empty() || whole.len() > DIGITS_MAX {
            return None;
        }
        let padding = std::iter::repeat_n(&b'0', DECIMALS_MAX - decimals.len());
        let all = whole.iter().chain(decimals).chain(padding);
        let billionths = all.fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0'));
        let signed = if is_negative { -billionths } else { billionths };
        Some((Number(signed), rest))
    }
}

fn digits(text: &[u8]) -> usize {
    let is_other = |byte: &u8| !byte.is_ascii_digit();
    text.iter().position(is_other).unwrap_or(text.len())
}

/// The range of numbers of a row, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: Number,
    last: Number,
}

impl Range {
    fn parse(word: &Word) -> Result<Range, Fault> {
        let parsed = Range::of(&word.bytes).filter(|range| range.first <= range.last);
        parsed.ok_or_else(|| {
            let text = format!(
                "\"{}\" is neither a number nor a range such as \"8080-8090\", \"<1024\" or \
                 \">=1024\"",
                word.text()
            );
            Fault::at(word, text)
        })
    }

    fn of(text: &[u8]) -> Option<Range> {
        let alone = |text| match Number::prefix(text)? {
            (number, []) => Some(number),
            _ => None,
        };
        let (first, last) = match text {
            [b'<', b'=', rest @ ..] => (Number::MIN, alone(rest)?),
            [b'>', b'=', rest @ ..] => (alone(rest)?, Number::MAX),
            [b'<', rest @ ..] => (Number::MIN, Number(alone(rest)?.0 - 1)),
            [b'>', rest @ ..] => (Number(alone(rest)?.0 + 1), Number::MAX),
            _ => match Number::prefix(text)? {
                (number, []) => (number, number),
                (first, [b'-', rest @ ..]) => (first, alone(rest)?),
                _ => return None,
            },
        };
        Some(Range { first, last })
    }
}

/// Disjoint intervals that cover all numbers. An interval begins at its element of `starts`, and
/// ends before the next element.
#[derive(Debug, Default)]
struct Intervals {
    starts: Box<[Number]>,
    /// The index of the row that applies to the interval; `None` for the default.
    rows: Box<[Option<usize>]>,
}

impl Intervals {
    /// The intervals for the ranges of the rows. If several ranges contain a number, the first row
    /// applies.
    fn of(ranges: &[Range]) -> Intervals {
        let mut starts = vec![Number::MIN];
        for range in ranges {
            starts.push(range.first);
            if range.last < Number::MAX {
                starts.push(Number(range.last.0 + 1));
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let mut rows = vec![None; starts.len()];
        // An interval is assigned to the first row that contains it. `next` skips intervals that
        // have been assigned, so that many overlapping rows do not take quadratic time.
        let mut next: Vec<usize> = (1..=starts.len()).collect();
        for (row, range) in ranges.iter().enumerate() {
            let mut at = starts.partition_point(|start| *start < range.first);
            let end = starts.partition_point(|start| *start <= range.last);
            while at < end {
                if let Some(free @ None) = rows.get_mut(at) {
                    *free = Some(row);
                }
                let Some(behind) = next.get_mut(at) else {
                    break;
                };
                at = std::mem::replace(behind, end.max(*behind));
            }
        }
        Intervals {
            starts: starts.into(),
            rows: rows.into(),
        }
    }

    fn find(&self, number: Number) -> Option<usize> {
        let after = self.starts.partition_point(|start| *start <= number);
        *self.rows.get(after.checked_sub(1)?)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(texts: &[&str]) -> Intervals {
        let ranges = texts.iter().map(|text| Range::of(text.as_bytes()).unwrap());
        Intervals::of(&ranges.collect::<Vec<_>>())
    }

    fn found(intervals: &Intervals, text: &str) -> Option<usize> {
        Number::of_value(text.as_bytes()).and_then(|number| intervals.find(number))
    }

    /// The example of nginx's page.
    #[test]
    fn the_first_row_that_has_a_number_counts() {
        let ports = rows(&["80", "443", "<=1023", "8080-8090"]);
        for (text, row) in [
            ("80", Some(0)),
            ("443", Some(1)),
            ("442", Some(2)),
            ("0", Some(2)),
            ("-5", Some(2)),
            ("1023", Some(2)),
            ("1023.000000001", None),
            ("1024", None),
            ("8079.9", None),
            ("8080", Some(3)),
            ("8090", Some(3)),
            ("8091", None),
            ("", None),
            ("http", None),
            ("80x", None),
            ("80.", None),
            ("99999999999999999999999999999", None),
        ] {
            assert_eq!(found(&ports, text), row, "{text}");
        }
    }

    #[test]
    fn bounds_exclude_what_they_say_and_decimals_count() {
        let times = rows(&["<0.5", "0.5", ">=10", ">2.25", "-3--1"]);
        for (text, row) in [
            ("0.499999999", Some(0)),
            ("0.4999999999999", Some(0)),
            ("0.500", Some(1)),
            ("0.501", None),
            ("2.25", None),
            ("2.251", Some(3)),
            ("10", Some(2)),
            ("-2", Some(0)),
        ] {
            assert_eq!(found(&times, text), row, "{text}");
        }
    }

    #[test]
    fn every_overlap_is_that_of_a_walk_over_the_rows() {
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            i128::from((seed >> 33) % below)
        };
        for _ in 0..200 {
            let range = |_| {
                let first = draw(40);
                let last = first + draw(12);
                let (first, last) = (Number(first), Number(last));
                Range { first, last }
            };
            let ranges: Vec<Range> = (0..8).map(range).collect();
            let intervals = Intervals::of(&ranges);
            for number in -2..60 {
                let number = Number(number);
                let has = |range: &Range| range.first <= number && number <= range.last;
                assert_eq!(intervals.find(number), ranges.iter().position(has));
            }
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "-",
            "<",
            "a",
            "5-",
            "5-4",
            "<=",
            "1.-2",
            "1e3",
            "0x10",
            "<<5",
            "5 ",
            "1.0000000001",
        ] {
            let range = Range::of(text.as_bytes());
            assert_eq!(
                range.filter(|range| range.first <= range.last),
                None,
                "{text}"
            );
        }
    }
}
