//! Messages assembled byte by byte according to RFC 1035.

use super::*;

const ID: u16 = 0x1234;

fn question(name: &str, family: Family) -> Question {
    Question {
        name: HostName::parse(name.as_bytes()).unwrap(),
        family,
    }
}

fn wire(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

/// A record of class IN.
fn record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut out = wire(name);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&1_u16.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// A response for `name` with these flags, answer records, and authority records.
fn message(flags: u16, name: &str, kind: u16, records: &[Vec<u8>], zone: &[Vec<u8>]) -> Vec<u8> {
    let counts = [1, records.len() as u16, zone.len() as u16, 0];
    let mut out = [ID.to_be_bytes(), flags.to_be_bytes()].concat();
    out.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    out.extend(wire(name));
    out.extend([kind.to_be_bytes(), 1_u16.to_be_bytes()].concat());
    out.extend(records.concat());
    out.extend(zone.concat());
    out
}

const A: u16 = 1;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const AAAA: u16 = 28;
const OK: u16 = 0x8180;

fn read(bytes: &[u8]) -> Result<DnsAnswer, Rejected> {
    answer(bytes, ID, &question("a.example", Family::V4))
}

fn addresses(list: &[&str], ttl: u32) -> DnsAnswer {
    DnsAnswer::Addresses {
        addresses: list.iter().map(|text| text.parse().unwrap()).collect(),
        ttl,
    }
}

#[test]
fn a_query_byte_by_byte() {
    let bytes = query(ID, &question("www.Example.com.", Family::V6));
    let expected = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x03www\x07example\x03com\0\0\x1c\0\x01";
    assert_eq!(bytes, expected);
}

#[test]
fn names_that_are_none() {
    let long_label = "a".repeat(64);
    let long_name = "a23456789.".repeat(50);
    for text in ["", ".", "a..b", ".a", "a..", &long_label, &long_name] {
        assert_eq!(HostName::parse(text.as_bytes()), None, "{text}");
    }
    let name = HostName::parse(b"WWW.example.com.").unwrap();
    assert_eq!(name.to_string(), "www.example.com");
    let name = HostName::parse(b"under_score.a b.\xff").unwrap();
    assert_eq!(name.to_string(), "under_score.a b.\\xff");
}

/// nginx queries such names and accepts the response, although RFC 1035 limits names to 253
/// characters.
#[test]
fn names_of_255_bytes_and_more() {
    for length in [253, 254, 255, 256, 400] {
        let name = format!("{}{}", "a23456789.".repeat(39), "b".repeat(60));
        let name = &name[name.len() - length..];
        let asked = question(name, Family::V4);
        assert!(query(ID, &asked).len() <= 512);
        let records = [record(name, A, 60, &[10, 0, 0, 1])];
        let bytes = message(OK, name, A, &records, &[]);
        let found = answer(&bytes, ID, &asked);
        assert_eq!(found, Ok(addresses(&["10.0.0.1"], 60)), "{length}");
    }
}

/// As in nginx, the limit of aliases counts responses: one response may contain any number.
#[test]
fn a_long_chain_within_a_message() {
    let name = |number: u32| match number {
        0 => "a.example".to_owned(),
        _ => format!("a{number}.example"),
    };
    let mut records: Vec<Vec<u8>> = (0..60)
        .map(|number| record(&name(number), CNAME, 60, &wire(&name(number + 1))))
        .collect();
    let last = HostName::parse(name(60).as_bytes()).unwrap();
    let bytes = message(OK, "a.example", A, &records, &[]);
    assert_eq!(
        read(&bytes),
        Ok(DnsAnswer::Alias {
            name: last,
            ttl: 60
        })
    );
    records.push(record(&name(60), A, 5, &[10, 0, 0, 1]));
    records.reverse();
    let bytes = message(OK, "a.example", A, &records, &[]);
    assert_eq!(read(&bytes), Ok(addresses(&["10.0.0.1"], 5)));
}

#[test]
fn addresses_of_a_name() {
    let records = [
        record("a.example", A, 60, &[10, 0, 0, 1]),
        record("A.Example", A, 30, &[10, 0, 0, 2]),
        record("a.example", A, 30, &[10, 0, 0, 2]),
        record("other.example", A, 1, &[6, 6, 6, 6]),
    ];
    let bytes = message(OK, "A.EXAMPLE", A, &records, &[]);
    // A repeated address is kept, as in nginx.
    let found = ["10.0.0.1", "10.0.0.2", "10.0.0.2"];
    assert_eq!(read(&bytes), Ok(addresses(&found, 30)));

    let records = [record("a.example", AAAA, 5, &[0; 16])];
    let bytes = message(OK, "a.example", AAAA, &records, &[]);
    let found = answer(&bytes, ID, &question("a.example", Family::V6));
    assert_eq!(found, Ok(addresses(&["::"], 5)));
}

#[test]
fn aliases_are_followed_within_the_message() {
    let records = [
        record("c.example", A, 100, &[10, 0, 0, 3]),
        record("b.example", CNAME, 7, &wire("c.example")),
        record("a.example", CNAME, 50, &wire("b.example")),
    ];
    let bytes = message(OK, "a.example", A, &records, &[]);
    assert_eq!(read(&bytes), Ok(addresses(&["10.0.0.3"], 7)));

    let bytes = message(OK, "a.example", A, &records[1..], &[]);
    let name = HostName::parse(b"c.example").unwrap();
    assert_eq!(read(&bytes), Ok(DnsAnswer::Alias { name, ttl: 7 }));
}

#[test]
fn aliases_that_lead_nowhere() {
    let back = [
        record("a.example", CNAME, 9, &wire("b.example")),
        record("b.example", CNAME, 9, &wire("a.example")),
    ];
    let name = HostName::parse(b"b.example").unwrap();
    let bytes = message(OK, "a.example", A, &back, &[]);
    assert_eq!(read(&bytes), Ok(DnsAnswer::Alias { name, ttl: 9 }));

    let root = [record("a.example", CNAME, 9, &wire(""))];
    let bytes = message(OK, "a.example", A, &root, &[]);
    assert_eq!(read(&bytes), Ok(DnsAnswer::Nothing { ttl: None }));
}

#[test]
fn nothing_holds_as_long_as_the_zone_says() {
    let mut soa = [wire("ns.example"), wire("root.example")].concat();
    soa.extend([1_u32, 2, 3, 4, 40].iter().flat_map(|n| n.to_be_bytes()));
    let zone = [record("example", SOA, 300, &soa)];
    let bytes = message(OK, "a.example", A, &[], &zone);
    assert_eq!(read(&bytes), Ok(DnsAnswer::Nothing { ttl: Some(40) }));
    let failed = |failure, ttl| Ok(DnsAnswer::Failed { failure, ttl });
    let bytes = message(OK | 3, "a.example", A, &[], &zone);
    assert_eq!(read(&bytes), failed(DnsError::NotFound, Some(40)));
    let bytes = message(OK | 2, "a.example", A, &[], &zone);
    assert_eq!(read(&bytes), failed(DnsError::Server, None));
    assert_eq!(
        read(&message(OK, "a.example", A, &[], &[])),
        Ok(DnsAnswer::Nothing { ttl: None })
    );
}

#[test]
fn a_cut_answer_is_asked_for_again() {
    let mut bytes = message(OK | 0x200, "a.example", A, &[], &[]);
    bytes[7] = 9; // more answers than there are
    assert_eq!(read(&bytes), Ok(DnsAnswer::Truncated));
}

#[test]
fn what_answers_another_question_is_none() {
    let good = [record("a.example", A, 60, &[10, 0, 0, 1])];
    let other = HostName::parse(b"b.example").unwrap();
    let bytes = message(OK, "b.example", A, &good, &[]);
    assert_eq!(read(&bytes), Err(Rejected::OtherQuestion { name: other }));
    let bytes = message(OK, "a.example", AAAA, &good, &[]);
    assert!(matches!(read(&bytes), Err(Rejected::OtherQuestion { .. })));
    let bytes = message(0x0100, "a.example", A, &good, &[]);
    assert_eq!(read(&bytes), Err(Rejected::NotAnAnswer { id: ID }));
    let mut bytes = message(OK, "a.example", A, &good, &[]);
    bytes[1] = 0x35;
    assert_eq!(
        read(&bytes).unwrap_err().to_string(),
        "wrong ident 4661 in DNS response for a.example, expect 4660"
    );
    bytes = message(OK, "a.example", A, &good, &[]);
    bytes[5] = 2;
    assert_eq!(read(&bytes), Err(Rejected::Questions));
    let bytes = message(OK | 1, "a.example", A, &[], &[]);
    assert_eq!(read(&bytes), Err(Rejected::Code { code: 1, id: ID }));
}

#[test]
fn an_answer_cut_anywhere_is_refused() {
    let records = [record("a.example", A, 60, &[10, 0, 0, 1])];
    let bytes = message(OK, "a.example", A, &records, &[]);
    for length in 0..bytes.len() {
        assert_eq!(read(&bytes[..length]), Err(Rejected::Malformed), "{length}");
    }
    // A name with a compression pointer to itself, and a record without data.
    let mut looping = message(OK, "a.example", A, &[], &[]);
    looping[7] = 1;
    let at = looping.len() as u8;
    looping.extend([0xc0, at, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 1, 2, 3, 4]);
    assert_eq!(read(&looping), Err(Rejected::Malformed));
    let empty = [record("a.example", A, 60, &[])];
    assert_eq!(
        read(&message(OK, "a.example", A, &empty, &[])),
        Err(Rejected::Malformed)
    );
}
