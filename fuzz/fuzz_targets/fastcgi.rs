//! What a FastCGI application sends: whatever comes is the same in whatever pieces, nothing is told
//! that has not come, a response is never longer than its head says, and nothing is told behind the
//! end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::cgi::{self, Form};
use proto::fastcgi::{BodyLength, Decoder, Event, Fault};
use proto::h1::response::ResponseHead;

/// The default of `fastcgi_buffer_size`.
const HEAD_SIZE_MAX: usize = 4096;

// Random bytes are seldom records, so most input is made of some: kind, content, padding.
fuzz_target!(|input: (u8, Vec<(u8, &[u8], u8)>, &[u8])| {
    let (choice, records, tail) = input;
    let mut stream = Vec::new();
    for (kind, content, padding) in &records {
        put_record(*kind, content, *padding, &mut stream);
    }
    stream.extend_from_slice(tail);
    let head_request = choice & 128 != 0;
    let whole = read(&stream, stream.len().max(1), head_request);
    for piece in [1, usize::from(choice % 128) + 2] {
        assert_eq!(read(&stream, piece, head_request), whole);
    }
    beside_reference(&stream, &whole);
});

fn put_record(kind: u8, content: &[u8], padding: u8, stream: &mut Vec<u8>) {
    let kind = match kind % 8 {
        0..=3 => 6,
        4 | 5 => 7,
        6 => 3,
        _ => kind / 8,
    };
    let content = content.get(..0xffff).unwrap_or(content);
    let [high, low] = (content.len() as u16).to_be_bytes();
    stream.extend_from_slice(&[1, kind, 0, 1, high, low, padding, 0]);
    stream.extend_from_slice(content);
    stream.resize(stream.len() + usize::from(padding), padding);
}

/// All that was told of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Events without bytes, and where in the stream each was told.
    marks: Vec<(usize, Event)>,
    fault: Option<Fault>,
    closed: [Option<Fault>; 2],
    head_length: Option<usize>,
}

fn read(stream: &[u8], piece: usize, head_request: bool) -> Told {
    let (mut decoder, mut told) = (Decoder::new(), Told::default());
    let (mut head, mut is_head, mut allowed) = (ResponseHead::default(), true, u64::MAX);
    let (mut at, mut end) = (0, 0);
    'pieces: while end < stream.len() {
        end = (end + piece).min(stream.len());
        while at < end {
            let input = &stream[at..end];
            let decoded = match decoder.decode(input) {
                Ok(decoded) => decoded,
                Err(fault) => {
                    assert_eq!(decoder.decode(input), Err(fault));
                    assert!(!fault.to_string().is_empty());
                    told.fault = Some(fault);
                    break 'pieces;
                }
            };
            assert!(decoded.consumed <= input.len());
            at += decoded.consumed;
            match decoded.event {
                None => assert_eq!(at, end),
                Some(Event::Stdout(range)) => {
                    assert!(!range.is_empty() && range.end == decoded.consumed);
                    told.stdout.extend_from_slice(&input[range]);
                    if !is_head {
                        assert!((told.stdout.len() - told.head_length.unwrap()) as u64 <= allowed);
                        continue;
                    }
                    let so_far = told.stdout.len().min(HEAD_SIZE_MAX);
                    let parsed = cgi::parse(&told.stdout[..so_far], &mut head, Form::Fields);
                    match parsed {
                        Ok(Some(length)) => {
                            let unread = told.stdout.len() - length;
                            told.stdout.truncate(length);
                            at -= unread;
                            let body = BodyLength::of(&head, head_request);
                            decoder.begin_body(body, unread);
                            if let BodyLength::Exact(length) | BodyLength::NoneOr(length) = body {
                                allowed = length;
                            }
                            told.head_length = Some(length);
                            is_head = false;
                        }
                        Ok(None) if told.stdout.len() < HEAD_SIZE_MAX => {}
                        // How much of what follows was seen is a matter of pieces.
                        _ => {
                            told.stdout.clear();
                            told.stderr.clear();
                            return told;
                        }
                    }
                }
                Some(Event::Stderr(range)) => {
                    assert!(!range.is_empty() && range.end == decoded.consumed);
                    told.stderr.extend_from_slice(&input[range]);
                }
                Some(event @ (Event::BeyondEnd | Event::BeyondLength)) => {
                    let again = decoder.decode(&stream[at..end]).expect("no fault");
                    assert_eq!((again.consumed, again.event.as_ref()), (0, Some(&event)));
                    told.marks.push((at, event));
                    break 'pieces;
                }
                Some(event) => told.marks.push((at, event)),
            }
        }
    }
    told.closed = [false, true].map(|keep| decoder.closed(keep).err());
    told
}

/// The streams of records, read by the letter of the specification: what was told is how they
/// begin.
fn beside_reference(mut stream: &[u8], told: &Told) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some((header, rest)) = stream.split_first_chunk::<8>() {
        let [1, kind, 0, 1, high, low, padding, _] = *header else {
            break;
        };
        let length = usize::from(high) << 8 | usize::from(low);
        let content = rest.get(..length).unwrap_or(rest);
        match kind {
            3 => {}
            6 => stdout.extend_from_slice(content),
            7 => stderr.extend_from_slice(content),
            _ => break,
        }
        stream = rest
            .get(length + usize::from(padding)..)
            .unwrap_or_default();
    }
    assert!(stdout.starts_with(&told.stdout));
    assert!(stderr.starts_with(&told.stderr));
    if told.fault.is_none() && told.marks.is_empty() && told.head_length.is_some() {
        assert_eq!(told.stdout.len(), stdout.len());
        assert_eq!(told.stderr.len(), stderr.len());
    }
}
