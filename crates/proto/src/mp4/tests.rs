//! A hand-made movie of ten frames: one frame of 100 bytes per second, two frames per chunk.

use super::*;

fn atom(name: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    write_atom(&mut out, name, |out| out.extend(parts.concat()));
    out
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn header(size: usize, at: usize, values: &[u32]) -> Vec<u8> {
    let mut data = vec![0; size];
    put(&mut data, at, &numbers(values));
    data
}

/// The data of `moov`. The chunks are at offsets 1000, 1200, …
fn movie() -> Vec<u8> {
    let tables = [
        atom(b"stsd", &[&[0; 16]]),
        atom(b"stts", &[&numbers(&[0, 1, 10, 1000])]),
        atom(b"stss", &[&numbers(&[0, 3, 1, 5, 9])]),
        atom(b"ctts", &[&numbers(&[0, 2, 4, 7, 6, 8])]),
        atom(b"stsc", &[&numbers(&[0, 1, 1, 2, 1])]),
        atom(b"stsz", &[&numbers(&[0, 0, 10]), &numbers(&[100; 10])]),
        atom(b"stco", &[&numbers(&[0, 5, 1000, 1200, 1400, 1600, 1800])]),
    ]
    .concat();
    let media = [
        atom(b"mdhd", &[&header(24, 12, &[1000, 10_000])]),
        atom(b"hdlr", &[&[0; 24]]),
        atom(
            b"minf",
            &[&atom(b"vmhd", &[&[0; 12]]), &atom(b"stbl", &[&tables])],
        ),
    ]
    .concat();
    let track = [
        atom(b"tkhd", &[&header(84, 20, &[10_000])]),
        atom(b"mdia", &[&media]),
    ]
    .concat();
    let mut moov = atom(b"mvhd", &[&header(100, 12, &[1000, 10_000])]);
    moov.extend(atom(b"trak", &[&track]));
    moov.extend(atom(b"udta", &[b"left out"]));
    moov
}

fn stretch(start: u64, length: u64) -> ClipRange {
    ClipRange {
        start,
        length,
        start_key_frame: false,
        ftyp_size: 20,
        mdat_end: 2000,
        file_size: 3000,
    }
}

/// The data of the first atom at this path.
fn find<'a>(mut bytes: &'a [u8], path: &[&[u8; 4]]) -> Option<&'a [u8]> {
    for wanted in path {
        let mut found = None;
        each_atom(bytes, |name, data| {
            if name == **wanted {
                found = found.or(Some(data));
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        bytes = found?;
    }
    Some(bytes)
}

fn table(moov: &[u8], name: &[u8; 4]) -> Option<Vec<u32>> {
    let path = [b"moov", b"trak", b"mdia", b"minf", b"stbl", name];
    let (rows, _) = find(moov, &path)?.as_chunks::<4>();
    Some(rows.iter().map(|row| u32::from_be_bytes(*row)).collect())
}

#[test]
fn a_start_cuts_every_table() {
    let cut = cut(&movie(), &stretch(5000, 0)).unwrap();
    assert_eq!((cut.start, cut.end), (1500, 2000));
    assert_eq!(table(&cut.moov, b"stts").unwrap(), [0, 1, 5, 1000]);
    assert_eq!(table(&cut.moov, b"stss").unwrap(), [0, 1, 4]);
    assert_eq!(table(&cut.moov, b"ctts").unwrap(), [0, 1, 5, 8]);
    assert_eq!(table(&cut.moov, b"stsc").unwrap(), [0, 2, 1, 1, 1, 2, 2, 1]);
    assert_eq!(
        table(&cut.moov, b"stsz").unwrap(),
        [&[0, 0, 5][..], &[100; 5]].concat()
    );
    let first = 20 + cut.moov.len() as u32 + 8;
    assert_eq!(
        table(&cut.moov, b"stco").unwrap(),
        [0, 3, first, first + 100, first + 300]
    );
    assert_eq!(
        cut.mdat_header,
        [&508u32.to_be_bytes()[..], b"mdat"].concat()
    );
    let mvhd = find(&cut.moov, &[b"moov", b"mvhd"]).unwrap();
    assert_eq!(u32_at(mvhd, 16), Some(5000));
    assert_eq!(find(&cut.moov, &[b"moov", b"udta"]), None);
}

#[test]
fn an_end_cuts_every_table() {
    let cut = cut(&movie(), &stretch(0, 3000)).unwrap();
    assert_eq!((cut.start, cut.end), (1000, 1300));
    assert_eq!(table(&cut.moov, b"stts").unwrap(), [0, 1, 3, 1000]);
    assert_eq!(table(&cut.moov, b"stss").unwrap(), [0, 1, 1]);
    assert_eq!(table(&cut.moov, b"ctts").unwrap(), [0, 1, 3, 7]);
    assert_eq!(table(&cut.moov, b"stsc").unwrap(), [0, 2, 1, 2, 1, 2, 1, 1]);
    assert_eq!(table(&cut.moov, b"stco").unwrap().len(), 4);
    let mdhd = find(&cut.moov, &[b"moov", b"trak", b"mdia", b"mdhd"]).unwrap();
    assert_eq!(u32_at(mdhd, 16), Some(3000));
}

#[test]
fn a_key_frame_comes_with_an_edit_list() {
    let wanted = ClipRange {
        start_key_frame: true,
        ..stretch(6000, 2000)
    };
    let cut = cut(&movie(), &wanted).unwrap();
    assert_eq!((cut.start, cut.end), (1400, 1800));
    assert_eq!(table(&cut.moov, b"stss").unwrap(), [0, 1, 1]);
    let list = find(&cut.moov, &[b"moov", b"trak", b"edts", b"elst"]).unwrap();
    assert_eq!(
        (u64_at(list, 8), u64_at(list, 16)),
        (Some(2000), Some(2000))
    );
}

#[test]
fn what_cannot_be_is_said() {
    let cut_at = |start, length| cut(&movie(), &stretch(start, length)).unwrap_err();
    assert_eq!(cut_at(10_001, 0), Error::StartExceedsDuration);
    assert_eq!(cut_at(10_000, 0), Error::Missing("trak"));
    let text = Error::Missing("trak").describe(&"/a.mp4").to_string();
    assert_eq!(text, "no mp4 trak atoms were found in \"/a.mp4\"");
    assert_eq!(
        cut(&atom(b"cmov", &[]), &stretch(1, 0)),
        Err(Error::Compressed)
    );
    assert_eq!(Header::needed([0, 0, 0, 7]), Err(Error::AtomTooSmall(7)));
    assert_eq!(duration(&movie()), Some(10_000));
}

#[test]
fn nothing_in_a_file_is_trusted() {
    let whole = movie();
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for _ in 0..50_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() % bytes.len();
            bytes[at] = [0, 1, 0x7f, 0xff, random() as u8][random() % 5];
        }
        bytes.truncate(bytes.len() - random() % 3 * (random() % bytes.len()) / 2);
        let wanted = ClipRange {
            start_key_frame: random() % 2 == 0,
            ..stretch(
                (random() % 12_000) as u64,
                (random() % 2 * (random() % 9000)) as u64,
            )
        };
        if let Ok(cut) = cut(&bytes, &wanted) {
            assert!(cut.start < cut.end && cut.end <= wanted.file_size);
            assert_eq!(u32_at(&cut.moov, 0), Some(cut.moov.len() as u32));
        }
    }
}
