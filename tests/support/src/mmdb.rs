//! Databases of MaxMind's format, by <https://maxmind.github.io/MaxMind-DB/>.

use std::net::IpAddr;

/// A value of a database.
pub enum Value {
    /// A text of up to 28 bytes.
    Text(&'static str),
    /// A number of 16 bits.
    Unsigned16(u16),
    /// A number of 32 bits.
    Unsigned(u32),
    /// A number of 64 bits.
    Unsigned64(u64),
    /// A fraction.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// Values by their names.
    Map(Vec<(&'static str, Value)>),
    /// Values in order.
    List(Vec<Value>),
}

use Value::{Boolean, Double, List, Map, Text, Unsigned, Unsigned16, Unsigned64};

/// Writes type and size, "Data Field Format".
fn control(kind: u8, size: usize, out: &mut Vec<u8>) {
    assert!(size < 29, "longer ones are not made here");
    if kind > 7 {
        out.extend([size as u8, kind - 7]);
    } else {
        out.push(kind << 5 | size as u8);
    }
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Text(text) => {
            control(2, text.len(), out);
            out.extend(text.as_bytes());
        }
        Double(number) => {
            control(3, 8, out);
            out.extend(number.to_be_bytes());
        }
        Unsigned16(number) => {
            control(5, 2, out);
            out.extend(number.to_be_bytes());
        }
        Unsigned64(number) => {
            control(9, 8, out);
            out.extend(number.to_be_bytes());
        }
        Unsigned(number) => {
            control(6, 4, out);
            out.extend(number.to_be_bytes());
        }
        Map(pairs) => {
            control(7, pairs.len(), out);
            for (name, value) in pairs {
                write(&Text(name), out);
                write(value, out);
            }
        }
        List(values) => {
            control(11, values.len(), out);
            values.iter().for_each(|value| write(value, out));
        }
        Boolean(value) => control(14, usize::from(*value), out),
    }
}

#[derive(Clone, Copy)]
enum Record {
    Nothing,
    Node(usize),
    Data(usize),
}

/// A database of IPv6, with IPv4 below `::/96`: networks with the bits of their prefix, and what
/// stands there.
pub fn database(build_epoch: u64, networks: &[(&str, u8, Value)]) -> Vec<u8> {
    let mut nodes = vec![[Record::Nothing; 2]];
    let mut data = Vec::new();
    for (address, bits, value) in networks {
        let (address, bits) = match address.parse().unwrap() {
            IpAddr::V4(address) => (u128::from(u32::from(address)), bits + 96),
            IpAddr::V6(address) => (u128::from(address), *bits),
        };
        let mut at = 0;
        for bit in 0..bits - 1 {
            let side = (address >> (127 - bit) & 1) as usize;
            at = match nodes[at][side] {
                Record::Node(next) => next,
                _ => {
                    nodes.push([Record::Nothing; 2]);
                    let next = nodes.len() - 1;
                    nodes[at][side] = Record::Node(next);
                    next
                }
            };
        }
        nodes[at][(address >> (128 - bits) & 1) as usize] = Record::Data(data.len());
        write(value, &mut data);
    }
    let count = nodes.len();
    let mut out = Vec::new();
    for record in nodes.iter().flatten() {
        let number = match record {
            Record::Nothing => count,
            Record::Node(node) => *node,
            Record::Data(offset) => count + 16 + offset,
        };
        out.extend(&(number as u32).to_be_bytes()[1..]);
    }
    out.extend([0; 16]);
    out.extend(data);
    out.extend(b"\xab\xcd\xefMaxMind.com");
    let metadata = Map(vec![
        ("binary_format_major_version", Unsigned16(2)),
        ("binary_format_minor_version", Unsigned16(0)),
        ("build_epoch", Unsigned64(build_epoch)),
        ("database_type", Text("Test")),
        ("description", Map(vec![])),
        ("ip_version", Unsigned16(6)),
        ("languages", List(vec![])),
        ("node_count", Unsigned(count as u32)),
        ("record_size", Unsigned16(24)),
    ]);
    write(&metadata, &mut out);
    out
}
