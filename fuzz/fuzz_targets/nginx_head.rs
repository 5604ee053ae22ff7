//! Heads of nginx's cache files: whatever stands in them, what is read of one lies in the file and
//! is of the key that is asked for; and a head inside of FastCGI's records is that of the records'
//! contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::{arbitrary, fuzz_target};
use store::disk::{Origin, testing};

/// Where the key stands.
const KEY_AT: usize = 342;

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    numbers: [i64; 5],
    key: &'a [u8],
    text: &'a [u8],
    records: Option<Vec<(bool, u8)>>,
    body: &'a [u8],
    vary: (u8, u8),
    changes: Vec<(u16, u8)>,
    cut: Option<u16>,
}

/// The text in records, each with its part of the text and so much padding.
fn records(mut text: &[u8], parts: &[(bool, u8)]) -> Vec<u8> {
    let mut stored = Vec::new();
    for (is_error, length) in parts {
        let (kind, padding) = if *is_error { (7, 3) } else { (6, *length % 4) };
        let content = if *is_error {
            b"error"
        } else {
            let taken = text.split_off(..text.len().min(usize::from(*length)));
            taken.unwrap_or_default()
        };
        stored.extend_from_slice(&[1, kind, 0, 1, 0, content.len() as u8, padding, 0]);
        stored.extend_from_slice(content);
        stored.resize(stored.len() + usize::from(padding), 0);
    }
    // The last one goes on in the body.
    stored.extend_from_slice(&[1, 6, 0, 1, 0xff, 0xff, 0, 0]);
    stored.extend_from_slice(text);
    stored
}

fuzz_target!(|input: Input| {
    let stored = match &input.records {
        Some(parts) => records(input.text, parts),
        None => input.text.to_vec(),
    };
    let header_start = KEY_AT + input.key.len() + 1;
    let body_start = header_start + stored.len();
    let (Ok(header_short), Ok(body_short)) =
        (u16::try_from(header_start), u16::try_from(body_start))
    else {
        return;
    };
    let mut file = 5_u64.to_le_bytes().to_vec();
    input
        .numbers
        .iter()
        .for_each(|number| file.extend_from_slice(&number.to_le_bytes()));
    file.extend_from_slice(&crc32fast::hash(input.key).to_le_bytes());
    for number in [7, header_short, body_short] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.resize(336, input.vary.1);
    file[58] = 0;
    file[187] = input.vary.0;
    let file = [
        &file,
        &b"\nKEY: "[..],
        input.key,
        b"\n",
        &stored,
        input.body,
    ]
    .concat();

    let read = testing::parse(&file.clone().into(), input.key);
    if input.vary.0 > 128 {
        assert!(read.is_err());
    } else if input.records.is_some() {
        match read {
            Ok((head, body)) => assert_eq!((&head.text[..], &body[..]), (input.text, input.body)),
            Err(_) => assert!(input.text.is_empty()),
        }
    } else if input.text.first().is_some_and(u8::is_ascii_graphic) {
        let (head, body) = read.unwrap();
        assert_eq!((&head.text[..], &body[..]), (input.text, input.body));
        assert_eq!(head.vary.len(), usize::from(input.vary.0));
    }

    let mut changed = file;
    for (at, byte) in &input.changes {
        let at = usize::from(*at) % changed.len();
        changed[at] = *byte;
    }
    let end = input
        .cut
        .map_or(changed.len(), |cut| usize::from(cut).min(changed.len()));
    let changed = Bytes::from(changed).slice(..end);
    let _ = testing::key_of(&changed);
    if let Ok((head, body)) = testing::parse(&changed, input.key) {
        assert_eq!((&head.key[..], head.origin), (input.key, Origin::Nginx));
        assert!(changed.ends_with(&body));
        assert!(KEY_AT + head.key.len() + head.text.len() + body.len() < changed.len());
    }
});
