//! Expected bytes from the specification (sections 3.3, 3.4, 5.1 to 5.5 and 8) and from nginx;
//! expected log messages from `ngx_http_fastcgi_module.c`.

use super::*;
use crate::cgi::{self, Form, Variables};
use crate::h1::response::ResponseHead;

/// The first record of a request, without and with `FCGI_KEEP_CONN`.
const BEGIN: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\0\0\0\0\0\0";
const BEGIN_KEEP: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0";
const PARAMS_END: &[u8] = b"\x01\x04\0\x01\0\0\0\0";

/// A head with these variables and nginx's limit of parameters.
fn head(variables: &[(&str, &str)]) -> Result<Vec<u8>, ParamsTooLong> {
    let mut out = Vec::new();
    let mut writer = RequestWriter::new(&mut out, false);
    for (name, value) in variables {
        writer.push(name.as_bytes(), value.as_bytes());
    }
    writer.finish(PARAMS_LENGTH_MAX).map(|()| out)
}

#[test]
fn heads_of_requests() {
    let long = "x".repeat(130);
    for (case, variables, params) in [
        ("no parameter", &[][..], &b""[..]),
        (
            "one, padded to eight bytes",
            &[("REQUEST_METHOD", "GET")],
            b"\x01\x04\0\x01\0\x13\x05\0\x0e\x03REQUEST_METHODGET\0\0\0\0\0",
        ),
        (
            "one that needs no padding",
            &[("ABC", "def")],
            b"\x01\x04\0\x01\0\x08\0\0\x03\x03ABCdef",
        ),
        (
            "an empty value",
            &[("E", ""), ("F", "g")],
            b"\x01\x04\0\x01\0\x07\x01\0\x01\0E\x01\x01Fg\0",
        ),
        (
            "a length in four bytes",
            &[("L", &long)],
            &[
                &b"\x01\x04\0\x01\0\x88\0\0\x01\x80\0\0\x82L"[..],
                long.as_bytes(),
            ]
            .concat(),
        ),
    ] {
        let expected = [BEGIN, params, PARAMS_END].concat();
        let head = head(variables).expect(case);
        assert_eq!(
            head.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "{case}"
        );
    }
}

#[test]
fn lengths_of_names_and_values() {
    for (length, bytes) in [
        (0, &b"\0"[..]),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\0\0\x80"),
        (255, b"\x80\0\0\xff"),
        (256, b"\x80\0\x01\0"),
        (0x1234, b"\x80\0\x12\x34"),
    ] {
        let text = "n".repeat(length);
        let as_name = head(&[(&text, "")]).expect("short enough");
        assert_eq!(as_name[24..24 + bytes.len()], *bytes, "name of {length}");
        let as_value = head(&[("", &text)]).expect("short enough");
        assert_eq!(as_value[24], 0);
        assert_eq!(as_value[25..25 + bytes.len()], *bytes, "value of {length}");
    }
}

#[test]
fn fields_become_parameters() {
    let mut out = b"before".to_vec();
    let mut writer = RequestWriter::new(&mut out, true);
    writer.push_field(b"Cookie", [&b"a=1"[..], b"b=2"].into_iter());
    writer.push_field(b"x-a", [&b"1"[..], b"2"].into_iter());
    assert_eq!(writer.params_length(), 2 + 11 + 8 + 2 + 8 + 4);
    writer.finish(PARAMS_LENGTH_MAX).expect("short enough");
    let params =
        b"\x01\x04\0\x01\0\x23\x05\0\x0b\x08HTTP_COOKIEa=1; b=2\x08\x04HTTP_X_A1, 2\0\0\0\0\0";
    let expected = [b"before", BEGIN_KEEP, params, PARAMS_END].concat();
    assert_eq!(out, expected);
}

#[test]
fn parameters_that_are_too_long() {
    // Length of the name, length of the value, name, value: 1 + 4 + 1 + n bytes.
    let value = "v".repeat(PARAMS_LENGTH_MAX - 6);
    let head_of_all = head(&[("N", &value)]).expect("just short enough");
    assert_eq!(head_of_all.len(), 16 + 8 + 0xffff + 1 + 8);
    assert_eq!(head_of_all[16..24], *b"\x01\x04\0\x01\xff\xff\x01\0");
    let longer = value + "v";
    let fault = head(&[("N", &longer)]).expect_err("too long");
    assert_eq!(
        fault.to_string(),
        "fastcgi request record is too big: 65536"
    );
    let mut out = b"before".to_vec();
    let mut writer = RequestWriter::new(&mut out, false);
    writer.push(b"N", longer.as_bytes());
    assert_eq!(
        writer.finish(PARAMS_LENGTH_MAX),
        Err(ParamsTooLong(0x1_0000))
    );
    assert_eq!(out, b"before");
}

#[test]
fn more_parameters_than_a_record_holds() {
    let value = "v".repeat(0x2_0000);
    let mut out = Vec::new();
    let mut writer = RequestWriter::new(&mut out, false);
    writer.push(b"N", value.as_bytes());
    writer.finish(usize::MAX).expect("below 2 GiB");
    let params = [&b"\x01\x80\x02\0\0N"[..], value.as_bytes()].concat();
    // 0x20006 bytes: two records of 0xfff8, and one of 0x16 with two bytes of padding.
    let expected = [
        BEGIN,
        b"\x01\x04\0\x01\xff\xf8\0\0",
        &params[..0xfff8],
        b"\x01\x04\0\x01\xff\xf8\0\0",
        &params[0xfff8..0x1_fff0],
        b"\x01\x04\0\x01\0\x16\x02\0",
        &params[0x1_fff0..],
        b"\0\0",
        PARAMS_END,
    ]
    .concat();
    assert!(out == expected);
}

#[test]
fn frames_of_a_body() {
    for (available, length, header, padding) in [
        (1, 1, b"\x01\x05\0\x01\0\x01\x07\0", 7),
        (7, 7, b"\x01\x05\0\x01\0\x07\x01\0", 1),
        (8, 8, b"\x01\x05\0\x01\0\x08\0\0", 0),
        (911, 911, b"\x01\x05\0\x01\x03\x8f\x01\0", 1),
        (0x8000, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
        (0x8001, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
        (usize::MAX, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
    ] {
        let frame = StdinFrame::new(available).expect("some bytes");
        assert_eq!(frame.length(), length);
        assert_eq!(frame.header(), header, "{available}");
        assert_eq!(frame.padding(), vec![0; padding]);
    }
    assert_eq!(StdinFrame::new(0), None);
    assert_eq!(STDIN_END, *b"\x01\x05\0\x01\0\0\0\0");
}

/// A record from an application.
fn record(kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let mut record = vec![1, kind, 0, 1, high, low, padding as u8, 0];
    record.extend_from_slice(content);
    record.resize(record.len() + padding, b'p');
    record
}

const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const END: u8 = 3;
const ENDED: &[u8] = b"\0\0\0\0\0\0\0\0";

/// The events that a decoder reports for input in the given pieces, as text, with adjacent parts of
/// stdout or stderr joined. The head ends where [`cgi::parse`] finds its end.
fn read<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    head_request: bool,
    keep_connection: bool,
) -> String {
    let mut decoder = Decoder::new();
    let (mut head, mut bytes, mut in_head) = (ResponseHead::default(), Vec::new(), true);
    let mut told: Vec<(&str, String)> = Vec::new();
    let mut tell = |what, text: String| match told.last_mut() {
        Some((before, all)) if *before == what && !text.is_empty() => all.push_str(&text),
        _ => told.push((what, text)),
    };
    'pieces: for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() {
            let decoded = match decoder.decode(rest) {
                Ok(decoded) => decoded,
                Err(fault) => {
                    // The fault is returned for any further input.
                    assert_eq!(decoder.decode(&record(STDERR, b"x", 0)), Err(fault));
                    tell("fault ", fault.to_string());
                    break 'pieces;
                }
            };
            assert!(decoded.consumed <= rest.len());
            assert!(decoded.consumed > 0 || decoded.event.is_some());
            let mut consumed = decoded.consumed;
            match decoded.event {
                None => assert_eq!(consumed, rest.len()),
                Some(Event::Stdout(range)) if in_head => {
                    assert_eq!(range.end, consumed);
                    bytes.extend_from_slice(&rest[range]);
                    if let Some(length) =
                        cgi::parse(&bytes, &mut head, Form::Fields).expect("a head")
                    {
                        let unread = bytes.len() - length;
                        tell("head", String::new());
                        decoder.begin_body(BodyLength::of(&head, head_request), unread);
                        consumed -= unread;
                        in_head = false;
                    }
                }
                Some(Event::Stdout(range)) => {
                    tell("out:", rest[range].escape_ascii().to_string());
                }
                Some(Event::Stderr(range)) => {
                    tell("err:", rest[range].escape_ascii().to_string());
                }
                Some(Event::StdoutEnd) => tell("out-end", String::new()),
                Some(Event::End(end)) => {
                    let status = end.application_status;
                    tell("end", format!(" {status} {:?}", end.protocol_status));
                    assert!(decoder.is_ended());
                }
                Some(event @ (Event::BeyondLength | Event::BeyondEnd)) => {
                    let rest = &rest[consumed..];
                    let again = decoder.decode(rest).expect("no fault");
                    assert_eq!((again.consumed, again.event.as_ref()), (0, Some(&event)));
                    tell("beyond", String::new());
                    break 'pieces;
                }
            }
            rest = &rest[consumed..];
        }
    }
    if let Err(fault) = decoder.closed(keep_connection)
        && told.last().is_none_or(|(what, _)| *what != "fault ")
    {
        told.push(("closed: ", fault.to_string()));
    }
    told.iter()
        .map(|(what, text)| format!("{what}{text}"))
        .collect::<Vec<_>>()
        .join("|")
}

/// Decodes a stream as a whole, split in two at every offset, and in pieces of each length.
fn check(case: &str, stream: &[u8], head_request: bool, keep_connection: bool, expected: &str) {
    for split in 0..=stream.len() {
        let (one, other) = stream.split_at(split);
        let told = read([one, other].into_iter(), head_request, keep_connection);
        assert_eq!(told, expected, "{case}, split at {split}");
    }
    for length in 1..stream.len() {
        let told = read(stream.chunks(length), head_request, keep_connection);
        assert_eq!(told, expected, "{case}, in pieces of {length}");
    }
}

#[test]
fn responses() {
    let ended = record(END, ENDED, 0);
    for (case, records, expected) in [
        (
            "one record",
            vec![
                record(STDOUT, b"A: b\r\n\r\nhello", 0),
                record(STDOUT, b"", 0),
                ended.clone(),
            ],
            "head|out:hello|out-end|end 0 RequestComplete",
        ),
        (
            "padding behind each",
            vec![
                record(STDOUT, b"A: b\r\n\r\nhello", 3),
                record(STDOUT, b"", 255),
                record(END, ENDED, 8),
            ],
            "head|out:hello|out-end|end 0 RequestComplete",
        ),
        (
            "a head in two records, without a body",
            vec![
                record(STDOUT, b"A: b", 4),
                record(STDOUT, b"c\n\n", 1),
                record(STDOUT, b"", 0),
                ended.clone(),
            ],
            "head|out-end|end 0 RequestComplete",
        ),
        (
            "messages before, within and behind the head",
            vec![
                record(STDERR, b"one", 5),
                record(STDOUT, b"A: ", 1),
                record(STDERR, b"two", 0),
                record(STDOUT, b"b\n\nhel", 2),
                record(STDERR, b"", 2),
                record(STDOUT, b"lo", 6),
                record(STDOUT, b"", 0),
                record(STDERR, b"three", 3),
                record(STDERR, b"", 0),
                ended.clone(),
            ],
            "err:onetwo|head|out:hello|out-end|err:three|end 0 RequestComplete",
        ),
        (
            "no end of the stream",
            vec![record(STDOUT, b"\n1", 0), ended.clone()],
            "head|out:1|end 0 RequestComplete",
        ),
        (
            "a length that holds",
            vec![
                record(STDOUT, b"Content-Length: 5\n\nhello", 0),
                record(STDOUT, b"", 0),
                ended.clone(),
            ],
            "head|out:hello|out-end|end 0 RequestComplete",
        ),
        (
            "statuses",
            vec![
                record(STDOUT, b"\n", 0),
                record(END, b"\x01\x02\x03\x04\x02abc", 0),
            ],
            "head|end 16909060 Overloaded",
        ),
        (
            "an end without statuses",
            vec![record(STDOUT, b"\n", 0), record(END, b"", 0)],
            "head|end 0 RequestComplete",
        ),
        (
            "an end that says more",
            vec![
                record(STDOUT, b"\n", 0),
                record(END, b"\0\0\0\x07\x03abcdefghij", 0),
            ],
            "head|end 7 UnknownRole",
        ),
        (
            "what follows the end",
            vec![
                record(STDOUT, b"\n", 0),
                record(END, ENDED, 1),
                b"\x01".to_vec(),
            ],
            "head|end 0 RequestComplete|beyond",
        ),
    ] {
        check(case, &records.concat(), false, true, expected);
    }
}

#[test]
fn lengths_of_bodies() {
    let ended = record(END, ENDED, 0);
    let head = |text: &str| record(STDOUT, text.as_bytes(), 0);
    let empty = record(STDOUT, b"", 0);
    for (case, head_request, records, expected) in [
        (
            "more than announced, within a record",
            false,
            vec![head("Content-Length: 2\n\nhello")],
            "head|out:he|beyond",
        ),
        (
            "more than announced, in another record",
            false,
            vec![head("Content-Length: 2\n\nhe"), record(STDOUT, b"l", 0)],
            "head|out:he|beyond",
        ),
        (
            "none announced",
            false,
            vec![head("Content-Length: 0\n\n"), record(STDOUT, b"l", 0)],
            "head|beyond",
        ),
        (
            "none allowed",
            false,
            vec![head("Status: 204\nContent-Length: 5\n\nhello")],
            "head|beyond",
        ),
        (
            "not modified",
            false,
            vec![
                head("Status: 304\nContent-Length: 5\n\n"),
                empty.clone(),
                ended.clone(),
            ],
            "head|out-end|end 0 RequestComplete",
        ),
        (
            "less than announced",
            false,
            vec![
                head("Content-Length: 9\n\nhello"),
                empty.clone(),
                ended.clone(),
            ],
            "head|out:hello|fault upstream prematurely closed FastCGI stdout",
        ),
        (
            "less than announced, and the stream does not end",
            false,
            vec![head("Content-Length: 9\n\nhello"), ended.clone()],
            "head|out:hello|fault upstream prematurely closed FastCGI request",
        ),
        (
            "nothing in answer to HEAD",
            true,
            vec![head("Content-Length: 9\n\n"), empty.clone(), ended.clone()],
            "head|out-end|end 0 RequestComplete",
        ),
        (
            "all in answer to HEAD",
            true,
            vec![
                head("Content-Length: 2\n\nhe"),
                empty.clone(),
                ended.clone(),
            ],
            "head|out:he|out-end|end 0 RequestComplete",
        ),
        (
            "some in answer to HEAD",
            true,
            vec![head("Content-Length: 2\n\nh"), empty.clone(), ended.clone()],
            "head|out:h|fault upstream prematurely closed FastCGI stdout",
        ),
        (
            "too much in answer to HEAD",
            true,
            vec![head("Content-Length: 2\n\nhello")],
            "head|out:he|beyond",
        ),
        (
            "any in answer to HEAD",
            true,
            vec![head("\nhello"), empty.clone(), ended.clone()],
            "head|out:hello|out-end|end 0 RequestComplete",
        ),
    ] {
        check(case, &records.concat(), head_request, true, expected);
    }
}

#[test]
fn faults() {
    for (case, stream, expected) in [
        (
            "version 7",
            b"\x07".to_vec(),
            "fault upstream sent unsupported FastCGI protocol version: 7",
        ),
        (
            "an answer of HTTP",
            b"HTTP/1.1 200 OK".to_vec(),
            "fault upstream sent unsupported FastCGI protocol version: 72",
        ),
        (
            "a record that asks for something",
            b"\x01\x09".to_vec(),
            "fault upstream sent invalid FastCGI record type: 9",
        ),
        (
            "what only web servers send",
            b"\x01\x05\0\x01\0\x01\0\0x".to_vec(),
            "fault upstream sent invalid FastCGI record type: 5",
        ),
        (
            "a request's number, high byte",
            b"\x01\x06\x02\x01".to_vec(),
            "fault upstream sent unexpected FastCGI request id high byte: 2",
        ),
        (
            "a request's number, low byte",
            b"\x01\x06\0\0".to_vec(),
            "fault upstream sent unexpected FastCGI request id low byte: 0",
        ),
        (
            "the request's end before the head",
            record(END, ENDED, 0),
            "fault upstream sent unexpected FastCGI record: 3",
        ),
        (
            "the response's end before the head",
            record(STDOUT, b"", 0),
            "fault upstream prematurely closed FastCGI stdout",
        ),
        (
            "the response's end within the head",
            [
                record(STDERR, b"why", 0),
                record(STDOUT, b"A: b\n", 0),
                record(STDOUT, b"", 0),
            ]
            .concat(),
            "err:why|fault upstream prematurely closed FastCGI stdout",
        ),
        (
            "in the second record, whose first had padding",
            [record(STDOUT, b"\nx", 2), b"\0".to_vec()].concat(),
            "head|out:x|fault upstream sent unsupported FastCGI protocol version: 0",
        ),
    ] {
        check(case, &stream, false, true, expected);
    }
}

#[test]
fn connections_that_end() {
    const CLOSED: &str = "closed: upstream prematurely closed connection";
    let body = record(STDOUT, b"\nhello", 3);
    let stop = record(STDOUT, b"", 0);
    let ended = record(END, ENDED, 2);
    let until = |records: &[&[u8]], less: usize| {
        let stream = records.concat();
        stream[..stream.len() - less].to_vec()
    };
    for (case, stream, closing, keeping) in [
        ("at once", vec![], Some(""), Some("")),
        (
            "within the head",
            record(STDOUT, b"A: b\n", 0),
            Some(""),
            Some(""),
        ),
        (
            "within a record",
            until(&[&body], 4),
            Some("head|out:hell"),
            Some("head|out:hell"),
        ),
        (
            "within padding",
            until(&[&body], 1),
            None,
            Some("head|out:hello"),
        ),
        (
            "behind a record",
            body.clone(),
            None,
            Some("head|out:hello"),
        ),
        (
            "within the next record's header",
            until(&[&body, &stop], 1),
            Some("head|out:hello"),
            Some("head|out:hello"),
        ),
        (
            "behind the response",
            until(&[&body, &stop], 0),
            None,
            Some("head|out:hello|out-end"),
        ),
        (
            "within the request's end",
            until(&[&body, &stop, &ended], 3),
            None,
            Some("head|out:hello|out-end"),
        ),
        (
            "within the padding of the request's end",
            until(&[&body, &stop, &ended], 1),
            None,
            Some("head|out:hello|out-end"),
        ),
        ("behind all", until(&[&body, &stop, &ended], 0), None, None),
        (
            "before all of the body has come",
            record(STDOUT, b"Content-Length: 9\n\nhello", 0),
            Some("head|out:hello"),
            Some("head|out:hello"),
        ),
    ] {
        for (keep_connection, premature) in [(false, closing), (true, keeping)] {
            let told = read(stream.chunks(3), false, keep_connection);
            let case = format!("{case}, kept: {keep_connection}");
            match premature {
                Some("") => assert_eq!(told, CLOSED, "{case}"),
                Some(before) => assert_eq!(told, format!("{before}|{CLOSED}"), "{case}"),
                None => assert!(!told.contains("closed: "), "{case}: {told}"),
            }
        }
    }
}

#[test]
fn no_more_is_given_back_than_was_given() {
    let stream = [record(STDOUT, b"\nab", 0), record(STDOUT, b"", 0)].concat();
    let mut decoder = Decoder::new();
    let first = decoder.decode(&stream).expect("valid");
    assert_eq!(first.event, Some(Event::Stdout(8..11)));
    decoder.begin_body(BodyLength::Open, usize::MAX);
    let again = decoder.decode(&stream[8..]).expect("valid");
    assert_eq!(again.event, Some(Event::Stdout(0..3)));
    let stop = decoder.decode(&stream[11..]).expect("valid");
    assert_eq!(stop.event, Some(Event::StdoutEnd));
    // No part of stdout was reported since.
    decoder.begin_body(BodyLength::Open, 2);
    assert_eq!(
        decoder.decode(b"\x01").map(|decoded| decoded.event),
        Ok(None)
    );
}

#[test]
fn what_is_logged_of_messages() {
    for (stretch, expected) in [
        ("PHP message: no\n", "PHP message: no"),
        ("PHP message: no.\r\n . ", "PHP message: no"),
        ("a. b", "a. b"),
        ("\n\n", "\n"),
        (".", "."),
        ("", ""),
    ] {
        assert_eq!(stderr_text(stretch.as_bytes()), expected.as_bytes());
    }
}
