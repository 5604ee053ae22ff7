//! `geo`: a variable whose value depends on the client's address.
//!
//! <https://nginx.org/en/docs/http/ngx_http_geo_module.html>. Networks and ranges alike become one
//! sorted list of disjoint intervals, so that a lookup is one binary search however large the table
//! is. nginx's binary files (`FILE.bin`, to which nginx saves an included file in order to load it
//! faster) are neither written nor read.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Word, parse,
};
use engine::net::Address;
use framework::compile::Compiler;

use crate::forwarded;
use crate::name::variable_name;
use crate::{Compiling as _, Context, Source, Value, Variable};
use framework::network::{Cidr, parse_address, parse_ipv4, stray_bits};

/// Declares the directive `geo`.
pub static GEO: Setting<()> =
    Setting::new("geo", &["[$address] $variable { ... }"], parse::nothing)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .arity(Arity::between(1, 2))
        .inherit(Inherit::Block)
        .free_block()
        .manual(
            "Makes a variable that depends on the client's address, or on the address in another \
         variable. Rows name a network or, after `ranges`, a range of addresses, and a value; \
         the most specific network counts. `default`, `delete`, `include`, `proxy`, \
         `proxy_recursive`, `ranges` and `volatile` have a meaning of their own.",
        );

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&GEO];

/// The address that nginx looks up for a client without an IPv4 address.
const NO_ADDRESS: u32 = u32::MAX;

/// Compiles every `geo` block of a scope for a kind of context, and defines its variable.
pub fn compile<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    compile_wanted::<C>(compiler, scope, &|_| true);
}

/// Like [`compile`], but only for blocks whose variable is `wanted`.
pub(crate) fn compile_wanted<C: Context>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    wanted: &dyn Fn(&str) -> bool,
) {
    for line in scope.lines().iter().filter(|line| line.is("geo")) {
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
    let (address, name) = match &*line.args {
        [name] => (None, variable_name(name)?),
        [address, name, ..] => (Some(variable_name(address)?), variable_name(name)?),
        [] => return Ok(()), // the arity has been checked
    };
    if !wanted(&name) {
        return Ok(());
    }
    let address: Option<Variable<C>> = address.map(|name| compiler.variable(&name));
    let mut builder = Builder::new(compiler);
    if let Some(Block::Free(rows)) = &line.block {
        builder.rows(rows);
    }
    let geo = builder.finish(address);
    compiler
        .define(&name, Source::Computed(Arc::new(geo)))
        .map_err(|text| Fault::at(&line.name, text))?;
    Ok(())
}

/// A compiled `geo` block.
struct Geo<C> {
    /// The variable that holds the address; `None` for the client's address.
    address: Option<Variable<C>>,
    ipv4: Intervals<u32>,
    /// `None` with `ranges`, which only supports IPv4.
    ipv6: Option<Intervals<u128>>,
    values: Box<[Bytes]>,
    proxies: Box<[Cidr]>,
    recursive: bool,
    /// `volatile`: the value is computed anew on each use.
    volatile: bool,
}

impl<C: Context> Value<C> for Geo<C> {
    fn is_volatile(&self) -> bool {
        self.volatile
    }

    fn value(&self, context: &mut C) -> Option<Bytes> {
        let found = match self.looked_up(context) {
            Some(IpAddr::V4(address)) => self.ipv4.find(address.into()),
            Some(IpAddr::V6(address)) => match (&self.ipv6, address.to_ipv4_mapped()) {
                (_, Some(mapped)) => self.ipv4.find(mapped.into()),
                (Some(ipv6), None) => ipv6.find(address.into()),
                (None, None) => self.ipv4.find(NO_ADDRESS),
            },
            None => self.ipv4.find(NO_ADDRESS),
        };
        Some(self.values.get(found as usize).cloned().unwrap_or_default())
    }
}

impl<C: Context> Geo<C> {
    /// The address to look up: that of the client or in the variable or, if that is a trusted
    /// proxy's, the address from `X-Forwarded-For`.
    fn looked_up(&self, context: &mut C) -> Option<IpAddr> {
        let address = match self.address {
            Some(variable) => parse_address(&context.variable(variable)?)?,
            None => match context.peer() {
                Address::Inet(socket) => socket.ip(),
                Address::Unix(_) => return None,
            },
        };
        if self.proxies.is_empty() {
            return Some(address);
        }
        let address = Address::Inet(SocketAddr::new(address, 0));
        let chain = context.forwarded();
        let trusted = |address: &Address| {
            let ip = address.ip().map(|ip| ip.to_canonical());
            ip.is_some_and(|ip| self.proxies.iter().any(|proxy| proxy.contains(ip)))
        };
        forwarded::client(address, &chain, trusted, self.recursive).ip()
    }
}

/// Disjoint intervals that cover all addresses. An interval begins at its element of `starts`, and
/// ends before the next element.
#[derive(Debug, PartialEq, Eq)]
struct Intervals<A> {
    starts: Box<[A]>,
    values: Box<[u32]>,
}

impl<A: Ord + Copy> Intervals<A> {
    /// The index of the value for an address.
    fn find(&self, address: A) -> u32 {
        let after = self.starts.partition_point(|start| *start <= address);
        after
            .checked_sub(1)
            .and_then(|at| self.values.get(at))
            .copied()
            .unwrap_or(0)
    }
}

/// A span of addresses, both ends included, with the index of its value. Two spans are nested or
/// disjoint; they never overlap partially.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u128,
    last: u128,
    value: u32,
}

/// Cuts nested spans into intervals with the value of the innermost span. One span must contain all
/// addresses.
fn flatten<A>(mut spans: Vec<Span>, narrow: impl Fn(u128) -> A) -> Intervals<A> {
    spans.sort_by_key(|span| (span.first, u128::MAX - span.last));
    let mut cuts: Vec<(u128, u32)> = Vec::with_capacity(spans.len() * 2);
    let mut cut = |start: u128, value: u32| match cuts.last_mut() {
        Some(last) if last.0 == start => last.1 = value,
        Some(last) if last.1 == value => {}
        _ => cuts.push((start, value)),
    };
    let mut open: Vec<Span> = Vec::new();
    let end = Span {
        first: u128::MAX,
        last: u128::MAX,
        value: 0,
    };
    for (span, real) in spans.iter().map(|span| (*span, true)).chain([(end, false)]) {
        while let Some(inner) = open.last().copied()
            && (inner.last < span.first || !real)
        {
            open.pop();
            if let Some(outer) = open.last()
                && inner.last < outer.last
            {
                cut(inner.last + 1, outer.value);
            }
        }
        if real {
            cut(span.first, span.value);
            open.push(span);
        }
    }
    Intervals {
        starts: cuts.iter().map(|(start, _)| narrow(*start)).collect(),
        values: cuts.iter().map(|(_, value)| *value).collect(),
    }
}

/// A range within the 65,536 IPv4 addresses with the same upper half: the lower halves of its first
/// and last address, and the index of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    value: u32,
}

/// Collects the rows of a block while they are parsed.
struct Builder<'a, 'c> {
    compiler: &'a Compiler<'c>,
    values: Vec<Bytes>,
    known: Map<Bytes, u32>,
    ranges: bool,
    range_default: Option<u32>,
    /// Ranges by the upper half of their addresses: nginx detects duplicates and overlaps
    /// separately for each upper half.
    blocks: BTreeMap<u16, Vec<Range>>,
    networks: Map<Cidr, u32>,
    /// Whether a row with a network or `default` has been read, so that `ranges` is an error.
    begun: bool,
    proxies: Vec<Cidr>,
    recursive: bool,
    volatile: bool,
}

impl<'a, 'c> Builder<'a, 'c> {
    fn new(compiler: &'a Compiler<'c>) -> Builder<'a, 'c> {
        Builder {
            compiler,
            values: vec![Bytes::new()], // addresses that are not listed have the empty value
            known: Map::default(),
            ranges: false,
            range_default: None,
            blocks: BTreeMap::new(),
            networks: Map::default(),
            begun: false,
            proxies: Vec::new(),
            recursive: false,
            volatile: false,
        }
    }

    fn rows(&mut self, rows: &[Line]) {
        for row in rows {
            if let Err(fault) = self.row(row) {
                self.compiler.report(fault.while_reading());
            }
        }
    }

    fn row(&mut self, row: &Line) -> Result<(), Fault> {
        let value = match (&*row.name.bytes, &*row.args) {
            (b"ranges", []) if self.begun => {
                return Err(Fault::at(
                    &row.name,
                    "the \"ranges\" directive must be the first directive inside \"geo\" block",
                ));
            }
            (b"ranges", []) => {
                self.ranges = true;
                return Ok(());
            }
            (b"proxy_recursive", []) => {
                self.recursive = true;
                return Ok(());
            }
            (b"volatile", []) => {
                self.volatile = true;
                return Ok(());
            }
            (b"proxy", [network]) => {
                let network = self.network(network)?;
                self.proxies.push(network);
                return Ok(());
            }
            (_, [value]) => value,
            _ => return Err(Fault::at(&row.name, "invalid number of the geo parameters")),
        };
        match (&*row.name.bytes, self.ranges) {
            (b"default", true) => self.set_range_default(&row.name, value),
            (b"delete", true) => self.delete_range(value)?,
            (_, true) => self.add_range(&row.name, value)?,
            (b"default", false) => {
                self.add_network(
                    &row.name,
                    Cidr::V4 {
                        address: 0,
                        bits: 0,
                    },
                    value,
                );
                self.add_network(
                    &row.name,
                    Cidr::V6 {
                        address: 0,
                        bits: 0,
                    },
                    value,
                );
            }
            (b"delete", false) => {
                let network = self.network(value)?;
                if self.networks.remove(&network).is_none() {
                    self.warn(value, format!("no network \"{}\" to delete", value.text()));
                }
                self.begun = true;
            }
            (_, false) => {
                let network = self.network(&row.name)?;
                self.add_network(&row.name, network, value);
            }
        }
        Ok(())
    }

    fn network(&self, word: &Word) -> Result<Cidr, Fault> {
        if &*word.bytes == b"255.255.255.255" {
            return Ok(Cidr::V4 {
                address: NO_ADDRESS,
                bits: 32,
            });
        }
        let (network, has_stray_bits) = Cidr::parse(&word.bytes)
            .ok_or_else(|| Fault::at(word, format!("invalid network \"{}\"", word.text())))?;
        if has_stray_bits {
            self.warn(word, stray_bits(word));
        }
        Ok(network)
    }

    fn add_network(&mut self, net: &Word, network: Cidr, value: &Word) {
        self.begun = true;
        let index = self.value(value);
        if let Some(old) = self.networks.insert(network, index) {
            self.warn(
                net,
                format!(
                    "duplicate network \"{}\", value: \"{}\", old value: \"{}\"",
                    net.text(),
                    value.text(),
                    self.text(old)
                ),
            );
        }
    }

    fn set_range_default(&mut self, name: &Word, value: &Word) {
        let index = self.value(value);
        if let Some(old) = self.range_default.replace(index) {
            self.warn(
                name,
                format!(
                    "duplicate default geo range value: \"{}\", old value: \"{}\"",
                    value.text(),
                    self.text(old)
                ),
            );
        }
    }

    fn add_range(&mut self, net: &Word, value: &Word) -> Result<(), Fault> {
        let (first, last) = parse_range(net)?;
        let index = self.value(value);
        for (half, first, last) in halves(first, last) {
            let block = self.blocks.entry(half).or_default();
            match insert(
                block,
                Range {
                    first,
                    last,
                    value: index,
                },
            ) {
                Ok(None) => {}
                Ok(Some(old)) => self.warn(
                    net,
                    format!(
                        "duplicate range \"{}\", value: \"{}\", old value: \"{}\"",
                        net.text(),
                        value.text(),
                        self.text(old)
                    ),
                ),
                Err(other) => {
                    let [a, b] = half.to_be_bytes();
                    let [c, d] = other.first.to_be_bytes();
                    let [e, f] = other.last.to_be_bytes();
                    return Err(Fault::at(
                        net,
                        format!(
                            "range \"{}\" overlaps \"{a}.{b}.{c}.{d}-{a}.{b}.{e}.{f}\"",
                            net.text()
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    fn delete_range(&mut self, net: &Word) -> Result<(), Fault> {
        let (first, last) = parse_range(net)?;
        let mut missing = false;
        for (half, first, last) in halves(first, last) {
            let found = self.blocks.get_mut(&half).and_then(|block| {
                let at = block
                    .iter()
                    .position(|range| (range.first, range.last) == (first, last))?;
                Some(block.remove(at))
            });
            missing |= found.is_none();
        }
        if missing {
            self.warn(
                net,
                format!("no address range \"{}\" to delete", net.text()),
            );
        }
        Ok(())
    }

    /// The index of a value; equal values share an index.
    fn value(&mut self, value: &Word) -> u32 {
        if let Some(known) = self.known.get(&*value.bytes) {
            return *known;
        }
        let bytes = Bytes::copy_from_slice(&value.bytes);
        let index = self.values.len() as u32;
        self.values.push(bytes.clone());
        self.known.insert(bytes, index);
        index
    }

    fn text(&self, value: u32) -> String {
        String::from_utf8_lossy(self.values.get(value as usize).map_or(b"", |value| value))
            .into_owned()
    }

    fn warn(&self, word: &Word, text: String) {
        // As in nginx, a warning about `default` is shown twice: for IPv4 and for IPv6.
        self.compiler.warn_each_time(text, Some(word.position));
    }

    fn finish<C>(self, address: Option<Variable<C>>) -> Geo<C> {
        let (ipv4, ipv6) = if self.ranges {
            let all = Span {
                first: 0,
                last: u128::from(u32::MAX),
                value: self.range_default.unwrap_or(0),
            };
            let mut spans = vec![all];
            for (half, block) in &self.blocks {
                let address = |low: u16| u128::from(*half) << 16 | u128::from(low);
                spans.extend(block.iter().map(|range| Span {
                    first: address(range.first),
                    last: address(range.last),
                    value: range.value,
                }));
            }
            (flatten(spans, |address| address as u32), None)
        } else {
            let (ipv4, ipv6) = network_spans(&self.networks);
            (
                flatten(ipv4, |address| address as u32),
                Some(flatten(ipv6, |address| address)),
            )
        };
        Geo {
            address,
            ipv4,
            ipv6,
            values: self.values.into(),
            proxies: self.proxies.into(),
            recursive: self.recursive,
            volatile: self.volatile,
        }
    }
}

/// The spans of the networks, for IPv4 and for IPv6. Both lists contain a span of all addresses.
fn network_spans(networks: &Map<Cidr, u32>) -> (Vec<Span>, Vec<Span>) {
    let mut ipv4 = Vec::new();
    let mut ipv6 = Vec::new();
    let everything = [
        Cidr::V4 {
            address: 0,
            bits: 0,
        },
        Cidr::V6 {
            address: 0,
            bits: 0,
        },
    ];
    let unlisted = everything
        .iter()
        .filter(|all| !networks.contains_key(all))
        .map(|all| (all, &0));
    for (network, &value) in networks.iter().chain(unlisted) {
        match *network {
            Cidr::V4 { address, bits } => {
                let beyond = u32::MAX.checked_shr(bits.into()).unwrap_or(0);
                let last = u128::from(address | beyond);
                ipv4.push(Span {
                    first: address.into(),
                    last,
                    value,
                });
            }
            Cidr::V6 { address, bits } => {
                let beyond = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
                ipv6.push(Span {
                    first: address,
                    last: address | beyond,
                    value,
                });
            }
        }
    }
    (ipv4, ipv6)
}

fn parse_range(net: &Word) -> Result<(u32, u32), Fault> {
    let parse = || {
        let dash = memchr::memchr(b'-', &net.bytes)?;
        let first = parse_ipv4(net.bytes.get(..dash)?)?;
        let last = parse_ipv4(net.bytes.get(dash + 1..)?)?;
        (first <= last).then_some((first, last))
    };
    parse().ok_or_else(|| Fault::at(net, format!("invalid range \"{}\"", net.text())))
}

/// Splits a range into parts whose addresses have the same upper half: the upper half, and the
/// first and last lower half.
fn halves(first: u32, last: u32) -> impl Iterator<Item = (u16, u16, u16)> {
    let (low, high) = ((first >> 16) as u16, (last >> 16) as u16);
    (low..=high).map(move |half| {
        let start = if half == low { first as u16 } else { 0 };
        let end = if half == high { last as u16 } else { u16::MAX };
        (half, start, end)
    })
}

/// Adds a range to the ranges with the same upper half. If the new range lies within an older one,
/// the older one is cut around it. If both are equal, the new range replaces the older one, whose
/// value is returned. Any other overlap is an error with the older range.
fn insert(block: &mut Vec<Range>, new: Range) -> Result<Option<u32>, Range> {
    let after = block.partition_point(|range| range.first <= new.last);
    let before = after
        .checked_sub(1)
        .and_then(|at| block.get(at).copied().map(|range| (at, range)));
    let Some((at, old)) = before.filter(|(_, range)| range.last >= new.first) else {
        block.insert(after, new);
        return Ok(None);
    };
    if new.first < old.first || new.last > old.last {
        return Err(old);
    }
    let head = (old.first < new.first).then(|| Range {
        last: new.first - 1,
        ..old
    });
    let tail = (new.last < old.last).then(|| Range {
        first: new.last + 1,
        ..old
    });
    let replaced = head.is_none() && tail.is_none();
    block.splice(at..=at, [head, Some(new), tail].into_iter().flatten());
    Ok(replaced.then_some(old.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> u32 {
        parse_ipv4(text.as_bytes()).unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text.as_bytes()).unwrap().0
    }

    #[test]
    fn the_most_specific_network_counts() {
        let rows = [
            ("0.0.0.0/0", 1),
            ("10.0.0.0/8", 2),
            ("10.1.0.0/16", 3),
            ("10.1.2.0/24", 4),
            ("10.2.0.0/15", 5),
        ];
        let networks = rows
            .iter()
            .map(|(text, value)| (cidr(text), *value))
            .collect();
        let (ipv4, ipv6) = network_spans(&networks);
        let table = flatten(ipv4, |address| address as u32);
        for (address, value) in [
            ("9.255.255.255", 1),
            ("10.0.0.0", 2),
            ("10.1.0.1", 3),
            ("10.1.1.255", 3),
            ("10.1.2.0", 4),
            ("10.1.2.255", 4),
            ("10.1.3.0", 3),
            ("10.2.0.0", 5),
            ("10.3.255.255", 5),
            ("10.4.0.0", 2),
            ("11.0.0.0", 1),
        ] {
            assert_eq!(table.find(v4(address)), value, "{address}");
        }
        assert_eq!(table.find(u32::MAX), 1);
        let table = flatten(ipv6, |address| address);
        assert_eq!(
            table,
            Intervals {
                starts: [0].into(),
                values: [0].into()
            }
        );
    }

    #[test]
    fn networks_may_end_where_their_parents_end() {
        let rows = [("128.0.0.0/1", 1), ("192.0.0.0/2", 2), ("255.0.0.0/8", 3)];
        let networks = rows
            .iter()
            .map(|(text, value)| (cidr(text), *value))
            .collect();
        let table = flatten(network_spans(&networks).0, |address| address as u32);
        assert_eq!(table.find(0), 0);
        assert_eq!(table.find(v4("128.0.0.0")), 1);
        assert_eq!(table.find(v4("192.0.0.0")), 2);
        assert_eq!(table.find(u32::MAX), 3);
    }

    #[test]
    fn ranges_are_cut_out_of_older_ones() {
        let range = |first, last, value| Range { first, last, value };
        let mut block = Vec::new();
        assert_eq!(insert(&mut block, range(10, 20, 1)), Ok(None));
        assert_eq!(insert(&mut block, range(30, 40, 2)), Ok(None));
        assert_eq!(insert(&mut block, range(0, 5, 3)), Ok(None));
        assert_eq!(insert(&mut block, range(12, 14, 4)), Ok(None));
        assert_eq!(insert(&mut block, range(30, 31, 5)), Ok(None));
        assert_eq!(insert(&mut block, range(39, 40, 6)), Ok(None));
        assert_eq!(insert(&mut block, range(0, 5, 7)), Ok(Some(3)));
        assert_eq!(insert(&mut block, range(5, 9, 8)), Err(range(0, 5, 7)));
        assert_eq!(insert(&mut block, range(9, 11, 8)), Err(range(10, 11, 1)));
        assert_eq!(
            block,
            [
                range(0, 5, 7),
                range(10, 11, 1),
                range(12, 14, 4),
                range(15, 20, 1),
                range(30, 31, 5),
                range(32, 38, 2),
                range(39, 40, 6),
            ]
        );
    }

    #[test]
    fn ranges_are_cut_at_upper_halves() {
        let cut: Vec<_> = halves(v4("10.0.255.0"), v4("10.2.0.1")).collect();
        assert_eq!(
            cut,
            [
                (0x0a00, 0xff00, 0xffff),
                (0x0a01, 0, 0xffff),
                (0x0a02, 0, 1)
            ]
        );
        let last: Vec<_> = halves(0xffff_0000, 0xffff_fffe).collect();
        assert_eq!(last, [(0xffff, 0, 0xfffe)]);
    }
}
