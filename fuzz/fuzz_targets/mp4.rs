//! Whatever a `moov` atom holds: the cut one says its own size and that of all atoms in it, and
//! samples come from within the file. Random bytes hardly make a movie, so one is made of random
//! tables, and then damaged.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use proto::mp4::{HEADER_SIZE, ClipRange, cut, duration};

#[derive(Arbitrary, Debug)]
struct Input {
    start: u16,
    length: u16,
    start_key_frame: bool,
    file_size: u32,
    tracks: Vec<Tables>,
    damage: Vec<(u16, u8)>,
    bytes: Vec<u8>,
}

/// The tables of a track; small numbers, so that they fit each other now and then.
#[derive(Arbitrary, Debug)]
struct Tables {
    timescale: u16,
    duration: u32,
    /// Runs of samples and how long each takes.
    times: Vec<(u8, u16)>,
    key_frames: Option<Vec<u8>>,
    composition: Option<Vec<(u8, u16)>>,
    chunks: Vec<(u8, u8, u8)>,
    uniform_size: Option<u16>,
    sizes: Vec<u16>,
    offsets: Vec<u32>,
    long_offsets: bool,
}

fuzz_target!(|input: Input| {
    let stretch = ClipRange {
        start: input.start.into(),
        length: input.length.into(),
        start_key_frame: input.start_key_frame,
        ftyp_size: 24,
        mdat_end: input.file_size.into(),
        file_size: input.file_size.into(),
    };
    check(&input.bytes, &stretch);
    let mut moov = movie(&input.tracks);
    check(&moov, &stretch);
    for (at, byte) in &input.damage {
        if let Some(damaged) = moov.get_mut(usize::from(*at)) {
            *damaged = *byte;
        }
    }
    check(&moov, &stretch);
});

fn check(moov: &[u8], stretch: &ClipRange) {
    duration(moov);
    let Ok(cut) = cut(moov, stretch) else {
        return;
    };
    assert!(cut.start < cut.end && cut.end <= stretch.file_size);
    let inside = assert_atom(&cut.moov, b"moov");
    let mut rest = inside;
    while !rest.is_empty() {
        let (size, name) = header(rest);
        if name == b"trak" {
            assert_track(&rest[..size]);
        }
        rest = &rest[size..];
    }
}

/// The tables of a track are where they belong and have the rows that they say.
fn assert_track(atom: &[u8]) {
    let media = assert_atom(child(assert_atom(atom, b"trak"), b"mdia"), b"mdia");
    let information = assert_atom(child(media, b"minf"), b"minf");
    let tables = assert_atom(child(information, b"stbl"), b"stbl");
    let mut rest = tables;
    while !rest.is_empty() {
        let (size, name) = header(rest);
        let row = match name {
            b"stts" | b"ctts" | b"co64" => 8,
            b"stss" | b"stco" => 4,
            b"stsc" => 12,
            _ => 0,
        };
        if row > 0 {
            let count = u32::from_be_bytes(rest[12..16].try_into().expect("four bytes"));
            assert_eq!(size, 16 + count as usize * row);
        }
        rest = &rest[size..];
    }
}

fn header(atom: &[u8]) -> (usize, &[u8]) {
    let size = u32::from_be_bytes(*atom.first_chunk().expect("a size"));
    (size as usize, &atom[4..HEADER_SIZE])
}

/// What an atom holds that is nothing but this.
fn assert_atom<'a>(atom: &'a [u8], name: &[u8]) -> &'a [u8] {
    assert_eq!(header(atom), (atom.len(), name));
    &atom[HEADER_SIZE..]
}

fn child<'a>(mut atoms: &'a [u8], wanted: &[u8]) -> &'a [u8] {
    loop {
        let (size, name) = header(atoms);
        assert!(size >= HEADER_SIZE);
        if name == wanted {
            return &atoms[..size];
        }
        atoms = &atoms[size..];
    }
}

/// The data of a `moov` atom with these tracks.
fn movie(tracks: &[Tables]) -> Vec<u8> {
    let mut movie_header = [0; 100];
    movie_header[12..16].copy_from_slice(&1000u32.to_be_bytes());
    movie_header[16..20].copy_from_slice(&100_000u32.to_be_bytes());
    let mut movie = atom(b"mvhd", &[&movie_header]);
    for tables in tracks.iter().take(3) {
        movie.extend_from_slice(&track(tables));
    }
    movie
}

fn track(tables: &Tables) -> Vec<u8> {
    let mut track_header = [0; 84];
    track_header[20..24].copy_from_slice(&tables.duration.to_be_bytes());
    let mut media_header = [0; 24];
    media_header[12..16].copy_from_slice(&u32::from(tables.timescale).to_be_bytes());
    media_header[16..20].copy_from_slice(&tables.duration.to_be_bytes());

    let pair = |&(count, value): &(u8, u16)| [count.into(), value.into()];
    let mut inner = vec![
        atom(b"stsd", &[&[0; 8]]),
        table(b"stts", tables.times.iter().map(pair)),
        table(
            b"stsc",
            tables
                .chunks
                .iter()
                .map(|row| [row.0, row.1, row.2].map(u32::from)),
        ),
    ];
    if let Some(frames) = &tables.key_frames {
        inner.push(table(b"stss", frames.iter().map(|&frame| [frame.into()])));
    }
    if let Some(composition) = &tables.composition {
        inner.push(table(b"ctts", composition.iter().map(pair)));
    }
    let uniform = u32::from(tables.uniform_size.unwrap_or(0)).to_be_bytes();
    let count = (tables.sizes.len() as u32).to_be_bytes();
    let sizes: Vec<u8> = tables
        .sizes
        .iter()
        .flat_map(|&size| u32::from(size).to_be_bytes())
        .collect();
    inner.push(atom(b"stsz", &[&[0; 4], &uniform, &count, &sizes]));
    let offsets = tables.offsets.iter();
    inner.push(if tables.long_offsets {
table(b"co64", offsets.map(|&offset| [offset & 1, offset]))
} else {
table(b"stco", offsets.map(|&offset| [offset]))
});
    let tables = atom(b"stbl", &[&inner.concat()]);
    let information = atom(b"minf", &[&atom(b"vmhd", &[&[0; 12]]), &tables]);
    let media = [
        atom(b"mdhd", &[&media_header]),
        atom(b"hdlr", &[&[0; 24]]),
        information,
    ];
    atom(
        b"trak",
        &[
            &atom(b"tkhd", &[&track_header]),
            &atom(b"mdia", &[&media.concat()]),
        ],
    )
}

fn table<const N: usize>(name: &[u8; 4], rows: impl Iterator<Item = [u32; N]>) -> Vec<u8> {
    let numbers: Vec<u8> = rows.flatten().flat_map(u32::to_be_bytes).collect();
    let count = (numbers.len() / 4 / N) as u32;
    atom(name, &[&[0; 4], &count.to_be_bytes(), &numbers])
}

fn atom(name: &[u8; 4], data: &[&[u8]]) -> Vec<u8> {
    let data = data.concat();
    let size = (HEADER_SIZE + data.len()) as u32;
    [&size.to_be_bytes(), &name[..], &data].concat()
}
