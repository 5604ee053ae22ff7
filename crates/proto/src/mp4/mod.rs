//! Extracts a section of an MP4 file: creates a new `moov` atom, and determines the byte range of
//! `mdat` to which it refers.
//!
//! ISO/IEC 14496-12, as far as nginx's mp4 module supports it
//! (<https://nginx.org/en/docs/http/ngx_http_mp4_module.html>): the tables of samples and chunks
//! are cut, the other descriptions of a track are kept, and unknown atoms (`udta`, `meta`, edit
//! lists) are omitted. Samples themselves are never read. All offsets and counts in the file are
//! validated.

mod track;

use std::fmt;

use track::Track;

/// Length of an atom's header, in bytes: its size and its name.
pub const HEADER_SIZE: usize = 8;

/// Length of an atom's header with a 64-bit size, in bytes.
pub const LONG_HEADER_SIZE: usize = 16;

/// An error in a file; [`Error::describe`] is nginx's log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An atom is smaller than its header.
    AtomTooSmall(u64),
    /// An atom is larger than the atom or file that contains it.
    AtomTooLarge(u64),
    /// The header of an atom is incomplete.
    Truncated,
    /// An atom with this name is too small for its required content.
    TooSmall(&'static str),
    /// An atom with this name occurs twice.
    Duplicate(&'static str),
    /// An atom with this name is missing.
    Missing(&'static str),
    /// The section begins after the end of the file.
    StartExceedsDuration,
    /// The `moov` atom is compressed.
    Compressed,
    /// Tables contradict each other, or the section is not within them.
    In(&'static str),
}

impl Error {
    /// The log message for the file at `path`.
    pub fn describe<'a>(&'a self, path: &'a dyn fmt::Display) -> impl fmt::Display + 'a {
        Described { error: self, path }
    }
}

struct Described<'a> {
    error: &'a Error,
    path: &'a dyn fmt::Display,
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path;
        match self.error {
            Error::AtomTooSmall(size) => write!(f, "\"{path}\" mp4 atom is too small:{size}"),
            Error::AtomTooLarge(size) => write!(f, "\"{path}\" mp4 atom too large:{size}"),
            Error::Truncated => write!(f, "\"{path}\" mp4 file truncated"),
            Error::TooSmall(name) => write!(f, "\"{path}\" mp4 {name} atom too small"),
            Error::Duplicate(name) => write!(f, "duplicate mp4 {name} atom in \"{path}\""),
            Error::Missing("mdat") => write!(f, "no mp4 mdat atom was found in \"{path}\""),
            Error::Missing(name) => write!(f, "no mp4 {name} atoms were found in \"{path}\""),
            Error::StartExceedsDuration => {
                write!(f, "\"{path}\" mp4 start time exceeds file duration")
            }
            Error::Compressed => write!(
                f,
                "\"{path}\" mp4 compressed moov atom (cmov) is not supported"
            ),
            Error::In(text) => write!(f, "{text} in \"{path}\""),
        }
    }
}

/// The header of an atom: size and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The atom's name.
    pub name: [u8; 4],
    /// Length of the header itself, in bytes.
    pub size: usize,
    /// Length of the atom without its header, in bytes.
    pub data_size: u64,
}

impl Header {
    /// Length of the header, by its first four bytes; `None` if the size is 0, which ends the list
    /// of atoms.
    pub fn needed(first: [u8; 4]) -> Result<Option<usize>, Error> {
        match u32::from_be_bytes(first) {
            0 => Ok(None),
            1 => Ok(Some(LONG_HEADER_SIZE)),
            size @ 2..8 => Err(Error::AtomTooSmall(size.into())),
            _ => Ok(Some(HEADER_SIZE)),
        }
    }

    /// Parses a header, which must have the length that [`Header::needed`] returned; `room` is the
    /// size of the container.
    pub fn parse(bytes: &[u8], room: u64) -> Result<Header, Error> {
        let (size, name) = (u32_at(bytes, 0), array_at(bytes, 4));
        let (Some(size), Some(name)) = (size, name) else {
            return Err(Error::Truncated);
        };
        let (header_size, size) = match size {
            1 => {
                let size = u64_at(bytes, 8).ok_or(Error::Truncated)?;
                (LONG_HEADER_SIZE, size)
            }
            size => (HEADER_SIZE, size.into()),
        };
        let data_size = size
            .checked_sub(header_size as u64)
            .ok_or(Error::AtomTooSmall(size))?;
        if size > room {
            return Err(Error::AtomTooLarge(size));
        }
        Ok(Header {
            name,
            size: header_size,
            data_size,
        })
    }
}

/// Calls `visit` with the name and data of every atom in `bytes`. Stops at the first error.
fn each_atom<'a, E: From<Error>>(
    mut bytes: &'a [u8],
    mut visit: impl FnMut([u8; 4], &'a [u8]) -> Result<(), E>,
) -> Result<(), E> {
    while !bytes.is_empty() {
        let first = array_at(bytes, 0).ok_or(Error::Truncated)?;
        let Some(needed) = Header::needed(first)? else {
            return Ok(());
        };
        if bytes.len() < needed {
            return Err(Error::AtomTooLarge(u32::from_be_bytes(first).into()).into());
        }
        let header = Header::parse(bytes, bytes.len() as u64)?;
        // The size has been checked against the number of bytes.
        let end = header.size + usize::try_from(header.data_size).unwrap_or(0);
        visit(header.name, bytes.get(header.size..end).unwrap_or_default())?;
        bytes = bytes.get(end..).unwrap_or_default();
    }
    Ok(())
}

/// The requested section, and properties of the file.
#[derive(Clone, Copy, Debug)]
pub struct ClipRange {
    /// Start of the section, in milliseconds.
    pub start: u64,
    /// Length of the section, in milliseconds; 0 for all of the rest.
    pub length: u64,
    /// Whether to begin at the preceding key frame; frames before `start` are not shown.
    pub start_key_frame: bool,
    /// Length of the `ftyp` atom with its header, in bytes, which will be sent first.
    pub ftyp_size: u64,
    /// Offset in the file at which the data of `mdat` end.
    pub mdat_end: u64,
    /// Size of the file, in bytes.
    pub file_size: u64,
}

/// The parts to send instead of the file, after its `ftyp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClippedFile {
    /// The new `moov` atom.
    pub moov: Vec<u8>,
    /// The new header of `mdat`.
    pub mdat_header: Vec<u8>,
    /// Offset in the file of the data to send.
    pub start: u64,
    /// Offset in the file at which the data to send end.
    pub end: u64,
}

/// Extracts the section from the movie whose `moov` atom has this data.
pub fn cut(moov: &[u8], stretch: &ClipRange) -> Result<ClippedFile, Error> {
    let mut movie = Movie::default();
    each_atom(moov, |name, data| movie.add(name, data, stretch))?;
    if movie.tracks.is_empty() {
        return Err(Error::Missing("trak"));
    }
    movie.cut(stretch)
}

/// Duration of the movie by its `mvhd` atom, in milliseconds; `None` without one.
pub fn duration(moov: &[u8]) -> Option<u64> {
    let mut found = None;
    let _ = each_atom(moov, |name, data| {
        if &name == b"mvhd" {
            found = MovieHeader::parse(data).ok();
        }
        Ok::<(), Error>(())
    });
    let header = found?;
    header
        .duration
        .saturating_mul(1000)
        .checked_div(header.timescale.into())
}

/// Timescale and duration from `mvhd`.
struct MovieHeader {
    timescale: u32,
    duration: u64,
}

impl MovieHeader {
    fn parse(data: &[u8]) -> Result<MovieHeader, Error> {
        let too_small = Error::TooSmall("mvhd");
        let long = is_long(data);
        if data.len() < if long { 112 } else { 100 } {
            return Err(too_small);
        }
        let (timescale, duration) = if long {
            (u32_at(data, 20), u64_at(data, 24))
        } else {
            (u32_at(data, 12), u32_at(data, 16).map(u64::from))
        };
        Ok(MovieHeader {
            timescale: timescale.ok_or(too_small)?,
            duration: duration.ok_or(too_small)?,
        })
    }
}

/// Whether an atom's version says that its times have 64 bits.
fn is_long(data: &[u8]) -> bool {
    data.first().is_some_and(|version| *version != 0)
}

/// The parsed content of a `moov` atom.
#[derive(Default)]
struct Movie<'a> {
    timescale: u32,
    mvhd: Option<Vec<u8>>,
    tracks: Vec<Track<'a>>,
}

impl<'a> Movie<'a> {
    fn add(&mut self, name: [u8; 4], data: &'a [u8], stretch: &ClipRange) -> Result<(), Error> {
        match &name {
            b"mvhd" => self.add_header(data, stretch),
            b"trak" => {
                self.tracks
                    .extend(Track::parse(data, self.timescale, stretch)?);
                Ok(())
            }
            b"cmov" => Err(Error::Compressed),
            _ => Ok(()),
        }
    }

    fn add_header(&mut self, data: &[u8], stretch: &ClipRange) -> Result<(), Error> {
        if self.mvhd.is_some() {
            return Err(Error::Duplicate("mvhd"));
        }
        let header = MovieHeader::parse(data)?;
        self.timescale = header.timescale;
        let duration = header
            .duration
            .checked_sub(units(stretch.start, header.timescale))
            .ok_or(Error::StartExceedsDuration)?;
        let duration = shortened(duration, stretch, header.timescale);
        let mut mvhd = data.to_vec();
        if is_long(data) {
            put(&mut mvhd, 24, &duration.to_be_bytes())
        } else {
            put(&mut mvhd, 16, &(duration as u32).to_be_bytes())
        }
        self.mvhd = Some(mvhd);
        Ok(())
    }

    fn cut(mut self, stretch: &ClipRange) -> Result<ClippedFile, Error> {
        let (mut start, mut end) = (stretch.file_size, 0);
        for track in &mut self.tracks {
            track.cut(stretch)?;
            start = start.min(track.start_offset);
            end = end.max(track.end_offset);
        }
        if end <= start {
            return Err(Error::In("no data between start time and end time"));
        }
        let mut moov = Vec::new();
        let mut offsets = Vec::with_capacity(self.tracks.len());
        write_atom(&mut moov, b"moov", |out| {
            if let Some(mvhd) = &self.mvhd {
                write_atom(out, b"mvhd", |out| out.extend_from_slice(mvhd));
            }
            for track in &self.tracks {
                track.write(out, &mut offsets);
            }
        });
        if start >= stretch.mdat_end {
            return Err(Error::In("start time is out mp4 mdat atom"));
        }
        let mdat_header = mdat_header(end - start);
        let before = stretch.ftyp_size + moov.len() as u64 + mdat_header.len() as u64;
        let adjustment = before.wrapping_sub(start);
        for table in &offsets {
            table.adjust(&mut moov, adjustment);
        }
        Ok(ClippedFile {
            moov,
            mdat_header,
            start,
            end,
        })
    }
}

/// The header of an `mdat` atom with this length of data.
fn mdat_header(data_size: u64) -> Vec<u8> {
    match u32::try_from(data_size + HEADER_SIZE as u64) {
        Ok(size) => [size.to_be_bytes(), *b"mdat"].concat(),
        Err(_) => {
            let size = data_size + LONG_HEADER_SIZE as u64;
            [&1u32.to_be_bytes(), &b"mdat"[..], &size.to_be_bytes()].concat()
        }
    }
}

/// Converts milliseconds to units of a timescale.
fn units(milliseconds: u64, timescale: u32) -> u64 {
    milliseconds.saturating_mul(timescale.into()) / 1000
}

/// Limits a duration to the length of the section.
fn shortened(duration: u64, stretch: &ClipRange, timescale: u32) -> u64 {
    match stretch.length {
        0 => duration,
        length => duration.min(units(length, timescale)),
    }
}

/// Appends an atom whose data `write` appends.
fn write_atom(out: &mut Vec<u8>, name: &[u8; 4], write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    write(out);
    let size = (out.len() - begin) as u32;
    put(out, begin, &size.to_be_bytes());
}

/// Overwrites the bytes at an offset. Does nothing if they are out of range.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests;
