//! Bodies with commands: however a body is cut into pieces, the same text, commands and complaints
//! come out; every byte is text or part of a command; and commands that are written by the rules
//! are found as written.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use modules::filters::ssi::reader::{Command, Event, Reader};

const BEGIN: &[u8] = b"<!--#";
const END: &[u8] = b"-->";

// One byte chooses the longest value, up to eight the sizes of the pieces; behind a zero byte
// follows the body.
fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let sizes_end = rest.iter().take(8).position(|&byte| byte == 0);
    let Some((sizes, body)) = sizes_end.map(|end| (&rest[..end], &rest[end + 1..])) else {
        return;
    };
    let value_length_max = usize::from(choice);

    let at_once = read(body, &[], value_length_max);
    assert_eq!(read(body, sizes, value_length_max), at_once);
    assert_eq!(read(body, &[1], value_length_max), at_once);
    every_byte_counts(body, value_length_max);

    let (text, commands) = written(body);
    let found = read(&text, sizes, 255);
    assert_eq!(found.complaints, Vec::<String>::new());
    let found: Vec<&Command> = found.events.iter().filter_map(command).collect();
    assert_eq!(found, commands.iter().collect::<Vec<_>>());
});

/// What a body is read as; texts that follow each other are joined.
#[derive(Debug, PartialEq)]
struct Found {
    events: Vec<Event>,
    complaints: Vec<String>,
}

fn command(event: &Event) -> Option<&Command> {
    match event {
        Event::Command(command) => Some(command),
        Event::Text(_) | Event::Mistake => None,
    }
}

/// Reads a body in pieces of these sizes, over and over; in one piece if there are none.
fn read(body: &[u8], sizes: &[u8], value_length_max: usize) -> Found {
    let mut reader = Reader::new(value_length_max);
    let (mut events, mut complaints) = (Vec::new(), Vec::new());
    let mut sizes = sizes.iter().cycle();
    let mut rest = body;
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |&size| usize::from(size));
        let (piece, after) = rest.split_at(size.clamp(1, rest.len()));
        rest = after;
        let mut input = Bytes::copy_from_slice(piece);
        let mut report = |text: std::fmt::Arguments<'_>| complaints.push(text.to_string());
        while let Some(event) = reader.next(&mut report, &mut input) {
            match (events.last_mut(), event) {
                (_, Event::Text(text)) if text.is_empty() => panic!("a text of nothing"),
                (Some(Event::Text(before)), Event::Text(text)) => {
                    *before = [&before[..], &text].concat().into();
                }
                (_, event) => events.push(event),
            }
        }
        assert!(input.is_empty(), "read to the end");
    }
    Found { events, complaints }
}

/// In a body of one piece: texts are what stands between commands, and commands stand where one
/// begins.
fn every_byte_counts(body: &[u8], value_length_max: usize) {
    let mut reader = Reader::new(value_length_max);
    let mut input = Bytes::copy_from_slice(body);
    let mut rest = body;
    let mut complaints = 0;
    while let Some(event) = reader.next(&mut |_| complaints += 1, &mut input) {
        let begin = rest.windows(BEGIN.len()).position(|five| five == BEGIN);
        match event {
            Event::Text(text) => {
                // Up to a command, or to the end but for the beginning of one.
                let end = begin.unwrap_or_else(|| rest.len() - begun(rest));
                assert_eq!(text, rest[..end]);
                rest = &rest[end..];
            }
            Event::Command(_) | Event::Mistake => {
                assert_eq!(begin, Some(0));
                let end = rest.len() - input.len();
                assert!(rest[..end].ends_with(END));
                rest = &rest[end..];
            }
        }
    }
    assert!(rest.starts_with(BEGIN) || rest.len() == begun(rest));
    assert!(complaints <= body.len() / BEGIN.len());
}

/// How many bytes at the end may be the beginning of a command.
fn begun(text: &[u8]) -> usize {
    let lengths = (0..BEGIN.len()).rev();
    let mut fitting = lengths.filter(|&length| text.ends_with(&BEGIN[..length]));
    fitting.next().unwrap_or(0)
}

/// Commands made of what the fuzzer gives, each behind some text, and how they are written.
fn written(seed: &[u8]) -> (Vec<u8>, Vec<Command>) {
    let word = |byte: u8| {
        let letter = |shift: u8| b'a' + (byte.rotate_right(shift.into()) % 26);
        (0..=byte % 32).map(letter).collect::<Vec<u8>>()
    };
    let mut text = Vec::new();
    let mut commands = Vec::new();
    for seed in seed.chunks(16) {
        let (&[name, spaces, key], seed) = seed.split_first_chunk().unwrap_or((&[0; 3], &[]));
        let space = [&b" "[..], b"\n", b" \t", b"\r\n"][usize::from(spaces % 4)];
        text.extend(seed.iter().filter(|&&byte| byte != b'<'));
        text.extend_from_slice(BEGIN);
        let mut command = Command {
            name: word(name),
            parameters: Vec::new(),
        };
        text.extend_from_slice(&command.name);
        for (at, value) in seed.chunks(4).enumerate() {
            let quote = if spaces & 64 == 0 { b'"' } else { b'\'' };
            let key = word(key.wrapping_add(at as u8));
            let escaped: Vec<u8> = value
                .iter()
                .flat_map(|&byte| match byte {
                    b'\\' => vec![b'\\', b'\\'],
                    byte if byte == quote => vec![b'\\', byte],
                    byte => vec![byte],
                })
                .collect();
            let equals = if spaces & 32 == 0 { &b"="[..] } else { b" = " };
            for part in [space, &key, equals, &[quote], &escaped, &[quote]] {
                text.extend_from_slice(part);
            }
            command.parameters.push((key, escaped));
        }
        if spaces & 128 == 0 {
            text.extend_from_slice(space);
        }
        text.extend_from_slice(END);
        commands.push(command);
    }
    (text, commands)
}
