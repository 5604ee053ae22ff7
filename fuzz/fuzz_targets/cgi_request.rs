//! Requests as FastCGI, uwsgi and SCGI carry them: what is written is read back by readers of the
//! target's own, whatever names, values and bodies are; and what cannot be carried is refused
//! without a trace.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::cgi::Variables;
use proto::{fastcgi, scgi, uwsgi};

/// What stands in the buffer before.
const BEFORE: &[u8] = b"before";

/// Names that are a field's, with values; each is repeated so many times to become long.
type Given<'a> = (bool, &'a [u8], Vec<&'a [u8]>, u16);

fuzz_target!(|input: (u8, u64, Vec<Given>, &[u8])| {
    let (choice, content_length, given, body) = input;
    let variables: Vec<(Vec<u8>, Vec<u8>)> = given.iter().map(expected).collect();
    of_fastcgi(choice, &given, &variables);
    of_uwsgi(choice, &given, &variables);
    of_scgi(content_length, &given, &variables);
    body_of_fastcgi(body, usize::from(choice) + 1);
});

/// What a variable must be, by RFC 3875.
fn expected((is_field, name, values, repeat): &Given) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<Vec<u8>> = values.iter().map(|value| long(value, *repeat)).collect();
    if !is_field {
        return (name.to_vec(), values.concat());
    }
    let mut variable = b"HTTP_".to_vec();
    for byte in *name {
        variable.push(match byte {
            b'-' => b'_',
            b'a'..=b'z' => byte - 32,
            _ => *byte,
        });
    }
    let separator: &[u8] = if variable == b"HTTP_COOKIE" && name.len() == 6 {
b"; "
} else {
b", "
};
    (variable, values.join(separator))
}

fn long(value: &[u8], repeat: u16) -> Vec<u8> {
    value.repeat(usize::from(repeat % 512) + 1)
}

fn add<V: Variables>(writer: &mut V, given: &[Given]) {
    for (is_field, name, values, repeat) in given {
        let values: Vec<Vec<u8>> = values.iter().map(|value| long(value, *repeat)).collect();
        let values = values.iter().map(Vec::as_slice);
        if is_field {
writer.push_field(name, values)
} else if repeat % 2 == 0 {
writer.push(name, &values.collect::<Vec<_>>().concat())
} else {
let mut begun = Vec::new();
                V::begin(proto::cgi::VariableName::Plain(name), &mut begun);
                writer.add_begun(&begun, |out| values.for_each(|value| out.extend(value)));
}
    }
}

fn of_fastcgi(choice: u8, given: &[Given], variables: &[(Vec<u8>, Vec<u8>)]) {
    let write = |params_length_max| {
        let mut out = BEFORE.to_vec();
        let mut writer = fastcgi::RequestWriter::new(&mut out, choice & 1 != 0);
        add(&mut writer, given);
        let length = writer.params_length();
        (writer.finish(params_length_max), length, out)
    };
    let (finished, length, out) = write(usize::MAX);
    finished.expect("below 2 GiB");
    let written = out.strip_prefix(BEFORE).expect("left alone");
    assert_eq!(written.len() % 8, 0);
    let mut records = records(written);
    let (kind, begin) = records.remove(0);
    assert_eq!((kind, begin), (1, vec![0, 1, choice & 1, 0, 0, 0, 0, 0]));
    assert_eq!(records.pop(), Some((4, vec![])));
    let params: Vec<u8> = records
        .into_iter()
        .flat_map(|(kind, content)| {
            assert!(kind == 4 && !content.is_empty());
            content
        })
        .collect();
    assert_eq!(params.len(), length);
    assert_eq!(pairs(&params), variables);
    let (finished, _, short) = write(fastcgi::PARAMS_LENGTH_MAX);
    match finished {
        Ok(()) => assert!(length <= 65535 && short == out),
        Err(fault) => {
            assert!(length > 65535 && short == BEFORE);
            assert!(fault.to_string().ends_with(&format!(": {length}")));
        }
    }
}

/// Kinds and contents of records that fill `bytes`.
fn records(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<8>() {
        let [version, kind, id_high, id_low, high, low, padding, reserved] = *header;
        assert_eq!((version, id_high, id_low, reserved), (1, 0, 1, 0));
        let (content, rest) = rest.split_at(usize::from(high) << 8 | usize::from(low));
        let (padding, rest) = rest.split_at(usize::from(padding));
        assert!(padding.len() < 8 && padding.iter().all(|byte| *byte == 0));
        records.push((kind, content.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    records
}

/// Name-value pairs, by section 3.4 of the specification.
fn pairs(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    while !bytes.is_empty() {
        let mut lengths = [0; 2];
        for length in &mut lengths {
            let (first, rest) = bytes.split_first().expect("a length");
            (*length, bytes) = match first >> 7 {
                0 => (usize::from(*first), rest),
                _ => {
                    let (four, rest) = bytes.split_first_chunk::<4>().expect("a length");
                    (u32::from_be_bytes(*four) as usize & 0x7fff_ffff, rest)
                }
            };
        }
        let (name, rest) = bytes.split_at(lengths[0]);
        let (value, rest) = rest.split_at(lengths[1]);
        pairs.push((name.to_vec(), value.to_vec()));
        bytes = rest;
    }
    pairs
}

fn of_uwsgi(choice: u8, given: &[Given], variables: &[(Vec<u8>, Vec<u8>)]) {
    let mut out = BEFORE.to_vec();
    let mut writer = uwsgi::RequestWriter::new(&mut out, choice, !choice);
    add(&mut writer, given);
    let size: usize = variables
        .iter()
        .map(|(name, value)| 4 + name.len() + value.len())
        .sum();
    match writer.finish() {
        Err(fault) => {
            assert!(size > 65535 && out == BEFORE);
            assert_eq!(fault, uwsgi::RequestTooLong(size));
        }
        Ok(()) => {
            let written = out.strip_prefix(BEFORE).expect("left alone");
            let (header, mut rest) = written.split_first_chunk::<4>().expect("a header");
            let [modifier1, low, high, modifier2] = *header;
            assert_eq!((modifier1, modifier2), (choice, !choice));
            assert_eq!(usize::from(high) << 8 | usize::from(low), rest.len());
            assert_eq!(rest.len(), size);
            let mut text = || {
                let (length, behind) = rest.split_first_chunk::<2>()?;
                let (text, behind) = behind.split_at(usize::from(u16::from_le_bytes(*length)));
                rest = behind;
                Some(text.to_vec())
            };
            for (name, value) in variables {
                assert_eq!(text().as_ref(), Some(name));
                assert_eq!(text().as_ref(), Some(value));
            }
            assert_eq!(text(), None);
        }
    }
}

fn of_scgi(content_length: u64, given: &[Given], variables: &[(Vec<u8>, Vec<u8>)]) {
    let mut out = BEFORE.to_vec();
    let mut writer = scgi::RequestWriter::new(&mut out, content_length);
    add(&mut writer, given);
    let has_zero = variables
        .iter()
        .any(|(name, value)| name.contains(&0) || value.contains(&0));
    match writer.finish() {
        Err(scgi::ZeroByte) => assert!(has_zero && out == BEFORE),
        Ok(()) => {
            assert!(!has_zero);
            let written = out.strip_prefix(BEFORE).expect("left alone");
            let colon = written.iter().position(|byte| *byte == b':');
            let (length, rest) = written.split_at(colon.expect("a netstring"));
            let length: usize = std::str::from_utf8(length).unwrap().parse().unwrap();
            let text = rest[1..].strip_suffix(b",").expect("its end");
            assert_eq!(text.len(), length);
            let mut texts: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
            assert_eq!(texts.pop(), Some(&b""[..]));
            let content_length = content_length.to_string();
            let first = [b"CONTENT_LENGTH", content_length.as_bytes()];
            let pairs = variables
                .iter()
                .flat_map(|(name, value)| [&name[..], value]);
            assert!(first.into_iter().chain(pairs).eq(texts));
        }
    }
}

fn body_of_fastcgi(body: &[u8], repeat: usize) {
    let body = body.repeat(repeat);
    let (mut sent, mut rest) = (Vec::new(), &body[..]);
    while let Some(frame) = fastcgi::StdinFrame::new(rest.len()) {
        let (part, behind) = rest.split_at(frame.length());
        sent.extend_from_slice(frame.header());
        sent.extend_from_slice(part);
        sent.extend_from_slice(frame.padding());
        rest = behind;
    }
    assert!(rest.is_empty());
    sent.extend_from_slice(&fastcgi::STDIN_END);
    let mut records = records(&sent);
    assert_eq!(records.pop(), Some((5, vec![])));
    let mut received = Vec::new();
    for (kind, content) in records {
        assert!(kind == 5 && !content.is_empty());
        received.extend(content);
    }
    assert_eq!(received, body);
}
