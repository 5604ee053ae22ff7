//! Packets without a network: expected responses are those of memcached 1.6.45's `proto_bin.c` and
//! of its `t/binary.t`.

use crate::cache::{Protocol, Settings};
use crate::testing::{Client, MOMENT, settings, shared_by};

use super::*;

/// A request.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(b"opaq");
    bytes.extend_from_slice(&cas.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

fn set(opcode: u8, key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let flags_and_expiry = [0, 0, 0x12, 0x34, 0, 0, 0, 0];
    packet(opcode, &flags_and_expiry, key, value, cas)
}

fn count(opcode: u8, key: &[u8], delta: u64, initial: u64, expires: u32) -> Vec<u8> {
    let extras = [
        &delta.to_be_bytes()[..],
        &initial.to_be_bytes(),
        &expires.to_be_bytes(),
    ];
    packet(opcode, &extras.concat(), key, b"", 0)
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
struct Response {
    opcode: u8,
    status: u16,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    cas: u64,
}

fn responses(mut bytes: &[u8]) -> Vec<Response> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x81);
        assert_eq!(&bytes[12..16], b"opaq");
        let key = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let extras = usize::from(bytes[4]);
        let body = u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let parts = &bytes[24..24 + body];
        all.push(Response {
            opcode: bytes[1],
            status: u16::from_be_bytes([bytes[6], bytes[7]]),
            extras: parts[..extras].to_vec(),
            key: parts[extras..extras + key].to_vec(),
            value: parts[extras + key..].to_vec(),
            cas: u64::from_be_bytes(bytes[16..24].try_into().unwrap()),
        });
        bytes = &bytes[24 + body..];
    }
    all
}

/// What a client is answered that sends all at once, and byte by byte, to a server each.
fn talk(packets: &[Vec<u8>]) -> Vec<Response> {
    let input = packets.concat();
    let [whole, bytewise, pieces] = [input.len().max(1), 1, 7].map(|piece| {
        let shared = shared_by(settings());
        let mut client = Client::new();
        for piece in input.chunks(piece) {
            client.send(&shared, MOMENT, piece);
            if client.is_closed {
                break;
            }
        }
        client.answers
    });
    assert_eq!(whole, bytewise, "byte by byte");
    assert_eq!(whole, pieces, "in pieces of seven");
    responses(&whole)
}

/// What of a response most tests are about.
fn told(packets: &[Vec<u8>]) -> Vec<(u8, u16, String)> {
    let short = |response: Response| {
        let value = String::from_utf8_lossy(&response.value).into_owned();
        (response.opcode, response.status, value)
    };
    talk(packets).into_iter().map(short).collect()
}

fn line(opcode: u8, status: u16, value: &str) -> (u8, u16, String) {
    (opcode, status, value.to_owned())
}

#[test]
fn what_is_set_is_got_with_its_flags_and_cas() {
    let told = talk(&[
        set(0x01, b"a", b"abc", 0),
        packet(0x00, b"", b"a", b"", 0),
        packet(0x0c, b"", b"a", b"", 0),
        packet(0x0c, b"", b"none", b"", 0),
    ]);
    let cas = told[0].cas;
    assert!(cas > 0);
    let response = |opcode, status, extras: &[u8], key: &[u8], value: &[u8], cas| Response {
        opcode,
        status,
        extras: extras.to_vec(),
        key: key.to_vec(),
        value: value.to_vec(),
        cas,
    };
    let flags = [0, 0, 0x12, 0x34];
    assert_eq!(told[0], response(0x01, 0, b"", b"", b"", cas));
    assert_eq!(told[1], response(0x00, 0, &flags, b"", b"abc", cas));
    assert_eq!(told[2], response(0x0c, 0, &flags, b"a", b"abc", cas));
    assert_eq!(told[3], response(0x0c, 1, b"", b"none", b"", 0));
}

#[test]
fn conditions_are_those_of_the_commands() {
    let expected = [
        line(0x03, 1, "Not found"),
        line(0x02, 0, ""),
        line(0x02, 2, "Data exists for key."),
        line(0x03, 0, ""),
        line(0x0e, 0, ""),
        line(0x0f, 0, ""),
        line(0x0e, 5, "Not stored."),
        line(0x00, 0, "<2>"),
        line(0x01, 2, "Data exists for key."),
        line(0x01, 1, "Not found"),
    ];
    let packets = [
        set(0x03, b"a", b"0", 0),
        set(0x02, b"a", b"1", 0),
        set(0x02, b"a", b"1", 0),
        set(0x03, b"a", b"2", 0),
        packet(0x0e, b"", b"a", b">", 0),
        packet(0x0f, b"", b"a", b"<", 0),
        packet(0x0e, b"", b"none", b">", 0),
        packet(0x00, b"", b"a", b"", 0),
        set(0x01, b"a", b"x", 999_999),
        set(0x01, b"none", b"x", 7),
    ];
    assert_eq!(told(&packets), expected);
}

#[test]
fn quiet_commands_answer_failures_and_hits_alone() {
    let packets = [
        set(0x11, b"a", b"1", 0),
        packet(0x09, b"", b"none", b"", 0),
        packet(0x0d, b"", b"none", b"", 0),
        packet(0x09, b"", b"a", b"", 0),
        set(0x12, b"a", b"1", 0),
        count(0x15, b"a", 1, 0, 0),
        packet(0x14, b"", b"a", b"", 0),
        packet(0x14, b"", b"a", b"", 0),
        packet(0x18, b"", b"", b"", 0),
        packet(0x0a, b"", b"", b"", 0),
    ];
    let expected = [
        line(0x09, 0, "1"),
        line(0x12, 2, "Data exists for key."),
        line(0x14, 1, "Not found"),
        line(0x0a, 0, ""),
    ];
    assert_eq!(told(&packets), expected);
}

#[test]
fn counters_begin_where_they_may() {
    let number = |value: u64| String::from_utf8_lossy(&value.to_be_bytes()).into_owned();
    let packets = [
        count(0x05, b"c", 5, 10, u32::MAX),
        count(0x05, b"c", 5, 10, 0),
        count(0x05, b"c", 5, 10, 0),
        count(0x06, b"c", 100, 10, 0),
        set(0x01, b"x", b"word", 0),
        count(0x06, b"x", 1, 0, 0),
    ];
    let expected = [
        line(0x05, 1, "Not found"),
        line(0x05, 0, &number(10)),
        line(0x05, 0, &number(15)),
        line(0x06, 0, &number(0)),
        line(0x01, 0, ""),
        line(0x06, 6, "Non-numeric server-side value for incr or decr"),
    ];
    assert_eq!(told(&packets), expected);
}

#[test]
fn what_is_touched_lives_longer() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let short_life = [0, 0, 0, 7, 0, 0, 0, 10];
    let packets = [
        packet(0x01, &short_life, b"a", b"v", 0),
        packet(0x1c, &60_u32.to_be_bytes(), b"a", b"", 0),
        packet(0x1d, &90_u32.to_be_bytes(), b"a", b"", 0),
        packet(0x1e, &90_u32.to_be_bytes(), b"none", b"", 0),
        packet(0x23, &90_u32.to_be_bytes(), b"a", b"", 0),
        packet(0x1c, &90_u32.to_be_bytes(), b"none", b"", 0),
    ];
    client.send(&shared, MOMENT, &packets.concat());
    let later = CommandTime {
        now: MOMENT.now + 89,
        wall: MOMENT.wall + 89,
    };
    client.send(&shared, later, &packet(0x00, b"", b"a", b"", 0));
    let told = responses(&client.answers);
    let short = |response: &Response| {
        let (extras, value) = (response.extras.clone(), response.value.clone());
        (response.opcode, response.status, extras, value)
    };
    let flags = vec![0, 0, 0, 7];
    let expected = [
        (0x01, 0, vec![], vec![]),
        (0x1c, 0, flags.clone(), vec![]),
        (0x1d, 0, flags.clone(), b"v".to_vec()),
        (0x23, 0, flags.clone(), b"v".to_vec()),
        (0x1c, 1, vec![], b"Not found".to_vec()),
        (0x00, 0, flags, b"v".to_vec()),
    ];
    assert_eq!(told.iter().map(short).collect::<Vec<_>>(), expected);
}

#[test]
fn a_delete_has_a_cas_too() {
    let packets = [
        set(0x01, b"a", b"1", 0),
        packet(0x04, b"", b"a", b"", 999_999),
        packet(0x04, b"", b"a", b"", 0),
        packet(0x04, b"", b"a", b"", 0),
    ];
    let expected = [
        line(0x01, 0, ""),
        line(0x04, 2, "Data exists for key."),
        line(0x04, 0, ""),
        line(0x04, 1, "Not found"),
    ];
    assert_eq!(told(&packets), expected);
}

#[test]
fn what_is_too_large_is_read_away_and_takes_what_was_there_with_it() {
    let large = vec![b'x'; 1 << 20];
    let packets = [
        set(0x01, b"a", b"1", 0),
        set(0x01, b"a", &large, 0),
        packet(0x00, b"", b"a", b"", 0),
        set(0x01, b"b", b"1", 0),
        set(0x03, b"b", &large, 0),
        packet(0x00, b"", b"b", b"", 0),
    ];
    let shared = shared_by(settings());
    let mut client = Client::new();
    for piece in packets.concat().chunks(10_000) {
        client.send(&shared, MOMENT, piece);
    }
    let told = responses(&client.answers);
    let statuses: Vec<u16> = told.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [0, 3, 1, 0, 3, 0]);
}

#[test]
fn what_cannot_be_read_on_ends_the_connection() {
    let mut lengths = packet(0x00, b"", b"a", b"", 0);
    lengths[11] = 0;
    let mut huge = packet(0x01, &[0; 8], b"a", b"", 0);
    huge[8] = 0x7f;
    for (input, expected) in [
        (lengths, vec![line(0x00, 0x81, "Unknown command")]),
        (huge, vec![line(0x01, 4, "Invalid arguments")]),
        (
            packet(0x00, b"", &[b'k'; 251], b"", 0),
            vec![line(0x00, 4, "Invalid arguments")],
        ),
        (
            packet(0x0a, b"", b"", b"x", 0),
            vec![line(0x0a, 4, "Invalid arguments")],
        ),
        (packet(0x07, b"", b"", b"", 0), vec![line(0x07, 0, "")]),
        (packet(0x17, b"", b"", b"", 0), vec![]),
    ] {
        let noop = packet(0x0a, b"", b"", b"", 0);
        assert_eq!(told(&[input, noop]), expected);
    }
    // What is not known is read away, and the next packet is understood.
    let unknown = packet(0x70, b"ext", b"key", b"value", 0);
    let expected = [line(0x70, 0x81, "Unknown command"), line(0x0a, 0, "")];
    assert_eq!(told(&[unknown, packet(0x0a, b"", b"", b"", 0)]), expected);
}

#[test]
fn statistics_end_with_a_packet_without_a_name() {
    let packets = [
        set(0x01, b"a", b"1", 0),
        packet(0x10, b"", b"", b"", 0),
        packet(0x10, b"", b"settings", b"", 0),
        packet(0x10, b"", b"none", b"", 0),
    ];
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(&shared, MOMENT, &packets.concat());
    let told = responses(&client.answers);
    let find = |name: &[u8]| {
        let found = told.iter().find(|response| response.key == name).unwrap();
        String::from_utf8_lossy(&found.value).into_owned()
    };
    assert_eq!(find(b"curr_items"), "1");
    assert_eq!(find(b"cmd_set"), "1");
    assert_eq!(find(b"binding_protocol"), "auto-negotiate");
    let ends = told.iter().filter(|response| {
        response.opcode == 0x10 && response.key.is_empty() && response.status == 0
    });
    assert_eq!(ends.count(), 2);
    assert_eq!(told.last().unwrap().status, 1);
}

#[test]
fn a_protocol_that_is_not_allowed_is_not_spoken() {
    let version = packet(0x0b, b"", b"", b"", 0);
    let answers = |protocol, input: &[u8]| {
        let shared = shared_by(Settings {
            protocol,
            ..settings()
        });
        let mut client = Client::new();
        client.send(&shared, MOMENT, input);
        (client.answers.len(), client.is_closed)
    };
    assert_eq!(answers(Protocol::Binary, &version), (30, false));
    assert_eq!(answers(Protocol::Auto, &version), (30, false));
    assert_eq!(answers(Protocol::Auto, b"version\r\n"), (16, false));
    assert_eq!(answers(Protocol::Binary, b"version\r\n"), (0, true));
    // By lines the packet is a line that does not end.
    assert_eq!(answers(Protocol::Text, &version), (0, false));
}
