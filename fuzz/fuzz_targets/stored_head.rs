//! Heads of the disk store's files, and its saved index: what is written is read as it was; times
//! that are replaced change nothing else; and of a file that is changed in any way each part that
//! is read lies in it, and is of the key that is asked for.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::{arbitrary, fuzz_target};
use store::disk::{EntryId, Head, NewHead, EntryTimes, testing};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    parts: [&'a [u8]; 5],
    tags: Vec<&'a [u8]>,
    variant: Option<[u8; 16]>,
    times: [(i64, i64, u32, u32); 2],
    body: &'a [u8],
    /// Places in the file and what is written there.
    changes: Vec<(u16, u8)>,
    cut: Option<u16>,
    is_sealed: bool,
    chunks: &'a [u8],
}

fn times((valid_until, received, age, updating): (i64, i64, u32, u32)) -> EntryTimes {
    EntryTimes {
        valid_until,
        received,
        age,
        updating,
        error: age ^ updating,
        flags: age.wrapping_add(updating),
    }
}

/// All that a head tells, but for its times.
fn told(head: &Head) -> (Vec<&[u8]>, Vec<&[u8]>, Option<EntryId>, Option<u64>) {
    let parts = vec![&head.key[..], &head.group, &head.vary, &head.text];
    (parts, head.tags().collect(), head.variant, head.body_length)
}

fuzz_target!(|input: Input| {
    let [key, group, vary, text, anything] = input.parts.map(Bytes::copy_from_slice);
    let new = NewHead {
        key: key.clone(),
        group: group.clone(),
        tags: input
            .tags
            .iter()
            .map(|tag| Bytes::copy_from_slice(tag))
            .collect(),
        vary: vary.clone(),
        variant: input.variant.map(EntryId),
        times: times(input.times[0]),
        text: text.clone(),
        body_length: None,
    };
    let mut file = testing::file(new, input.body).expect("no input is that long");
    let (head, body) = testing::parse(&file.clone().into(), &key).unwrap();
    assert_eq!((&head.key, &head.group, &head.vary), (&key, &group, &vary));
    assert_eq!((&head.text, &body[..]), (&text, input.body));
    assert_eq!(head.tags().collect::<Vec<_>>(), input.tags);
    assert_eq!(head.variant, input.variant.map(EntryId));
    assert_eq!(head.times, times(input.times[0]));
    assert_eq!(testing::key_of(&file), Some(&key[..]));

    let second = times(input.times[1]);
    testing::replace_times(&mut file, &second).unwrap();
    let (replaced, _) = testing::parse(&file.clone().into(), &key).unwrap();
    assert_eq!(replaced.times, second);
    assert_eq!(told(&replaced), told(&head));

    for (at, byte) in &input.changes {
        let at = usize::from(*at) % file.len();
        file[at] = *byte;
    }
    if input.is_sealed {
        testing::seal(&mut file);
    }
    let end = input
        .cut
        .map_or(file.len(), |cut| usize::from(cut).min(file.len()));
    let file = Bytes::from(file).slice(..end);
    check(&file, &key);
    check(&anything, &key);
    let _ = testing::saved_entries(input.chunks, 0);
});

fn check(file: &Bytes, key: &[u8]) {
    let _ = testing::key_of(file);
    let Ok((head, body)) = testing::parse(file, key) else {
        return;
    };
    assert_eq!(head.key, key);
    assert_eq!(head.body_length, Some(body.len() as u64));
    assert!(file.ends_with(&body));
    let tags: usize = head.tags().map(<[u8]>::len).sum();
    let parts = told(&head).0.iter().map(|part| part.len()).sum::<usize>();
    assert!(parts + tags + body.len() < file.len());
}
