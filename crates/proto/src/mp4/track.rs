//! One track of a movie, and the cutting of its tables.

use super::{
    ClipRange, Error, each_atom, is_long, put, shortened, u32_at, u64_at, units, write_atom,
};

/// Location of a chunk offset table in the new `moov` atom.
pub(super) struct OffsetTable {
    at: usize,
    count: usize,
    long: bool,
}

impl OffsetTable {
    /// Adds the displacement of the samples to all offsets.
    pub(super) fn adjust(&self, moov: &mut [u8], adjustment: u64) {
        for row in 0..self.count {
            if self.long {
                let at = self.at + row * 8;
                let offset = u64_at(moov, at).unwrap_or(0).wrapping_add(adjustment);
                put(moov, at, &offset.to_be_bytes());
            } else {
                let at = self.at + row * 4;
                let offset = u32_at(moov, at).unwrap_or(0);
                let offset = offset.wrapping_add(adjustment as u32);
                put(moov, at, &offset.to_be_bytes());
            }
        }
    }
}

/// The table of an atom: version and flags, then rows of 32-bit numbers.
#[derive(Debug)]
struct Table<const N: usize> {
    version_and_flags: [u8; 4],
    rows: Vec<[u32; N]>,
}

impl<const N: usize> Table<N> {
    fn parse(data: &[u8], name: &'static str) -> Result<Table<N>, Error> {
        Table::parse_at(data, 4, name)
    }

    /// Parses a table whose number of rows is at offset `at` and is followed by the rows.
    fn parse_at(data: &[u8], at: usize, name: &'static str) -> Result<Table<N>, Error> {
        let too_small = Error::TooSmall(name);
        let count = u32_at(data, at).ok_or(too_small)? as usize;
        let bytes = data.get(at + 4..).ok_or(too_small)?;
        let (rows, _) = bytes.as_chunks::<4>();
        let (rows, _) = rows.as_chunks::<N>();
        let rows = rows.get(..count).ok_or(too_small)?;
        Ok(Table {
            version_and_flags: super::array_at(data, 0).ok_or(too_small)?,
            rows: rows.iter().map(|row| row.map(u32::from_be_bytes)).collect(),
        })
    }

    fn keep(&mut self, from: usize, to: usize) {
        self.rows.truncate(to);
        self.rows.drain(..from.min(self.rows.len()));
    }

    fn write(&self, out: &mut Vec<u8>, name: &[u8; 4]) {
        write_atom(out, name, |out| {
            out.extend_from_slice(&self.version_and_flags);
            out.extend_from_slice(&(self.rows.len() as u32).to_be_bytes());
            for number in self.rows.as_flattened() {
                out.extend_from_slice(&number.to_be_bytes());
            }
        });
    }
}

/// The sizes of samples: one for each, or one for all. In the latter case the atom is unchanged.
#[derive(Debug)]
enum Sizes<'a> {
    Each(Table<1>),
    Uniform(&'a [u8]),
}

/// The offsets of chunks in the file, with 32 bits (`stco`) or 64 bits (`co64`).
#[derive(Debug)]
struct Offsets {
    version_and_flags: [u8; 4],
    rows: Vec<u64>,
    long: bool,
}

#[derive(Debug, Default)]
pub(super) struct Track<'a> {
    tkhd: Option<Vec<u8>>,
    mdhd: Option<Vec<u8>>,
    hdlr: Option<&'a [u8]>,
    vmhd: Option<&'a [u8]>,
    smhd: Option<&'a [u8]>,
    dinf: Option<&'a [u8]>,
    stsd: Option<&'a [u8]>,
    mdia: bool,
    minf: bool,
    stbl: bool,
    time_to_sample: Option<Table<2>>,
    sync_samples: Option<Table<1>>,
    composition_offsets: Option<Table<2>>,
    sample_to_chunk: Option<Table<3>>,
    sizes: Option<Sizes<'a>>,
    offsets: Option<Offsets>,

    timescale: u32,
    duration: u64,
    movie_duration: u64,
    /// Time from the key frame with which the track begins to the start of the section.
    prefix: u64,
    start_sample: u64,
    end_sample: u64,
    start_chunk: u64,
    start_chunk_samples: u64,
    start_chunk_samples_size: u64,
    end_chunk: u64,
    end_chunk_samples: u64,
    end_chunk_samples_size: u64,
    /// Offset in the file of the section's first sample.
    pub(super) start_offset: u64,
    /// Offset in the file at which the section's last sample ends.
    pub(super) end_offset: u64,
}

/// Why the parsing of a track stopped.
enum TrackEnd {
    /// The track ends before the section begins, and is omitted.
    Over,
    Failed(Error),
}

impl From<Error> for TrackEnd {
    fn from(error: Error) -> TrackEnd {
        TrackEnd::Failed(error)
    }
}

/// Sets a field that may occur only once.
fn once<T>(place: &mut Option<T>, value: T, name: &'static str) -> Result<(), Error> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Duplicate(name)),
    }
}

fn once_entered(entered: &mut bool, name: &'static str) -> Result<(), Error> {
    if std::mem::replace(entered, true) {
        Err(Error::Duplicate(name))
    } else {
        Ok(())
    }
}

impl<'a> Track<'a> {
    /// Parses a track; `None` if the track ends before the section begins.
    pub(super) fn parse(
        data: &'a [u8],
        movie_timescale: u32,
        stretch: &ClipRange,
    ) -> Result<Option<Track<'a>>, Error> {
        let mut track = Track::default();
        let read = each_atom(data, |name, data| match &name {
            b"tkhd" => track.add_header(data, movie_timescale, stretch),
            b"mdia" => {
                once_entered(&mut track.mdia, "mdia")?;
                each_atom(data, |name, data| track.add_media(name, data, stretch))
            }
            _ => Ok(()),
        });
        match read {
            Ok(()) => Ok(Some(track)),
            Err(TrackEnd::Over) => Ok(None),
            Err(TrackEnd::Failed(error)) => Err(error),
        }
    }

    fn add_header(
        &mut self,
        data: &'a [u8],
        movie_timescale: u32,
        stretch: &ClipRange,
    ) -> Result<(), TrackEnd> {
        let too_small = Error::TooSmall("tkhd");
        let long = is_long(data);
        if data.len() < if long { 96 } else { 84 } {
            return Err(too_small.into());
        }
        let duration = if long {
            u64_at(data, 28)
        } else {
            u32_at(data, 20).map(u64::from)
        };
        let duration = duration.ok_or(too_small)?;
        let start = units(stretch.start, movie_timescale);
        if duration <= start {
            return Err(TrackEnd::Over);
        }
        let duration = shortened(duration - start, stretch, movie_timescale);
        let mut tkhd = data.to_vec();
        if long {
            put(&mut tkhd, 28, &duration.to_be_bytes())
        } else {
            put(&mut tkhd, 20, &(duration as u32).to_be_bytes())
        }
        once(&mut self.tkhd, tkhd, "tkhd")?;
        self.movie_duration = duration;
        Ok(())
    }

    fn add_media(
        &mut self,
        name: [u8; 4],
        data: &'a [u8],
        stretch: &ClipRange,
    ) -> Result<(), TrackEnd> {
        match &name {
            b"mdhd" => self.add_media_header(data, stretch)?,
            b"hdlr" => once(&mut self.hdlr, data, "hdlr")?,
            b"minf" => {
                once_entered(&mut self.minf, "minf")?;
                each_atom(data, |name, data| self.add_information(name, data))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn add_media_header(&mut self, data: &'a [u8], stretch: &ClipRange) -> Result<(), TrackEnd> {
        let too_small = Error::TooSmall("mdhd");
        let long = is_long(data);
        if data.len() < if long { 36 } else { 24 } {
            return Err(too_small.into());
        }
        let (timescale, duration) = if long {
            (u32_at(data, 20), u64_at(data, 24))
        } else {
            (u32_at(data, 12), u32_at(data, 16).map(u64::from))
        };
        let timescale = timescale.ok_or(too_small)?;
        let duration = duration.ok_or(too_small)?;
        let start = units(stretch.start, timescale);
        if duration <= start {
            return Err(TrackEnd::Over);
        }
        once(&mut self.mdhd, data.to_vec(), "mdhd")?;
        self.timescale = timescale;
        self.duration = shortened(duration - start, stretch, timescale);
        Ok(())
    }

    fn add_information(&mut self, name: [u8; 4], data: &'a [u8]) -> Result<(), Error> {
        match &name {
            b"vmhd" if self.smhd.is_none() => once(&mut self.vmhd, data, "vmhd/smhd"),
            b"smhd" if self.vmhd.is_none() => once(&mut self.smhd, data, "vmhd/smhd"),
            b"vmhd" | b"smhd" => Err(Error::Duplicate("vmhd/smhd")),
            b"dinf" => once(&mut self.dinf, data, "dinf"),
            b"stbl" => {
                once_entered(&mut self.stbl, "stbl")?;
                each_atom(data, |name, data| self.add_table(name, data))
            }
            _ => Ok(()),
        }
    }

    fn add_table(&mut self, name: [u8; 4], data: &'a [u8]) -> Result<(), Error> {
        match &name {
            b"stsd" if data.len() < 16 => Err(Error::TooSmall("stsd")),
            b"stsd" => once(&mut self.stsd, data, "stsd"),
            b"stts" => once(
                &mut self.time_to_sample,
                Table::parse(data, "stts")?,
                "stts",
            ),
            b"stss" => once(&mut self.sync_samples, Table::parse(data, "stss")?, "stss"),
            b"ctts" => {
                let table = Table::parse(data, "ctts")?;
                once(&mut self.composition_offsets, table, "ctts")
            }
            b"stsc" => once(
                &mut self.sample_to_chunk,
                Table::parse(data, "stsc")?,
                "stsc",
            ),
            b"stsz" => {
                let sizes = match u32_at(data, 4) {
                    Some(0) => Sizes::Each(Table::parse_at(data, 8, "stsz")?),
                    Some(_) if data.len() >= 12 => Sizes::Uniform(data),
                    _ => return Err(Error::TooSmall("stsz")),
                };
                once(&mut self.sizes, sizes, "stsz")
            }
            b"stco" => {
                let table: Table<1> = Table::parse(data, "stco")?;
                let offsets = Offsets {
                    version_and_flags: table.version_and_flags,
                    rows: table.rows.iter().map(|[row]| u64::from(*row)).collect(),
                    long: false,
                };
                once(&mut self.offsets, offsets, "stco/co64")
            }
            b"co64" => {
                let table: Table<2> = Table::parse(data, "co64")?;
                let long = |row: &[u32; 2]| u64::from(row[0]) << 32 | u64::from(row[1]);
                let offsets = Offsets {
                    version_and_flags: table.version_and_flags,
                    rows: table.rows.iter().map(long).collect(),
                    long: true,
                };
                once(&mut self.offsets, offsets, "stco/co64")
            }
            _ => Ok(()),
        }
    }

    /// Cuts all tables to the section. Each step needs the results of the earlier ones.
    pub(super) fn cut(&mut self, stretch: &ClipRange) -> Result<(), Error> {
        self.cut_time_to_sample(stretch)?;
        self.cut_sync_samples(stretch);
        self.cut_composition_offsets(stretch);
        self.cut_sample_to_chunk(stretch)?;
        self.cut_sizes(stretch)?;
        self.cut_offsets(stretch)
    }

    fn cut_time_to_sample(&mut self, stretch: &ClipRange) -> Result<(), Error> {
        let Some(mut table) = self.time_to_sample.take() else {
            return Err(Error::Missing("stts"));
        };
        let (row, sample, rest) = find_sample(&table.rows, units(stretch.start, self.timescale));
        let Some(rest) = rest else {
            return Err(Error::In("start time is out mp4 stts samples"));
        };
        let frames = if stretch.start_key_frame {
            self.frames_since_key_frame(sample)?
        } else {
            0
        };
        self.cut_start(&mut table, row, sample, rest, frames)?;
        if stretch.length > 0 {
            let end = units(stretch.length, self.timescale).saturating_add(self.prefix);
            let (row, sample, rest) = find_sample(&table.rows, end);
            if let (Some(rest), Some(kept)) = (rest, table.rows.get_mut(row)) {
                kept[0] = rest;
                table.rows.truncate(row + 1);
            }
            self.end_sample = self.start_sample.saturating_add(sample);
        }
        self.time_to_sample = Some(table);
        Ok(())
    }

    /// Begins the table `frames` before a sample. The time of those frames is added to `prefix`,
    /// because they are not shown.
    fn cut_start(
        &mut self,
        table: &mut Table<2>,
        mut row: usize,
        sample: u64,
        mut rest: u32,
        mut frames: u32,
    ) -> Result<(), Error> {
        let out = Error::In("start time is out mp4 stts samples");
        self.start_sample = sample.saturating_sub(frames.into());
        let mut current = *table.rows.get(row).ok_or(out)?;
        while rest < frames {
            let time = u64::from(rest) * u64::from(current[1]);
            self.prefix = self.prefix.saturating_add(time);
            frames -= rest;
            row = row.checked_sub(1).ok_or(out)?;
            current = *table.rows.get(row).ok_or(out)?;
            rest = current[0];
        }
        let time = u64::from(frames) * u64::from(current[1]);
        self.prefix = self.prefix.saturating_add(time);
        self.duration = self.duration.saturating_add(self.prefix);
        rest -= frames;
        let [count, _] = table.rows.get_mut(row).ok_or(out)?;
        *count = count.saturating_sub(rest);
        table.keep(row, table.rows.len());
        Ok(())
    }

    /// Number of frames from the preceding key frame to a sample; 0 if the sample is a key frame.
    fn frames_since_key_frame(&self, sample: u64) -> Result<u32, Error> {
        let Some(table) = &self.sync_samples else {
            return Ok(0);
        };
        let sample = (sample as u32).saturating_add(1); // sync samples are numbered from 1
        let mut frames = 0;
        for [key] in &table.rows {
            if *key == 0 {
                return Err(Error::In("zero sync sample"));
            }
            if *key > sample {
                break;
            }
            frames = sample - key;
        }
        Ok(frames)
    }

    fn cut_sync_samples(&mut self, stretch: &ClipRange) {
        let Some(table) = &mut self.sync_samples else {
            return;
        };
        let first_after = |rows: &[[u32; 1]], sample: u64| {
            let found = rows.iter().position(|[key]| u64::from(*key) > sample);
            found.unwrap_or(rows.len())
        };
        let start = first_after(&table.rows, self.start_sample);
        table.keep(start, table.rows.len());
        if stretch.length > 0 {
            let end = first_after(&table.rows, self.end_sample);
            table.keep(0, end);
        }
        for [key] in &mut table.rows {
            *key = key.wrapping_sub(self.start_sample as u32);
        }
    }

    fn cut_composition_offsets(&mut self, stretch: &ClipRange) {
        let Some(table) = &mut self.composition_offsets else {
            return;
        };
        let start = find_counted(&table.rows, self.start_sample);
        let Some((row, rest)) = start else {
            self.composition_offsets = None;
            return;
        };
        if let Some([count, _]) = table.rows.get_mut(row) {
            *count -= rest;
        }
        table.keep(row, table.rows.len());
        if stretch.length > 0 {
            let samples = self.end_sample.saturating_sub(self.start_sample);
            if let Some((row, rest)) = find_counted(&table.rows, samples) {
                if let Some([count, _]) = table.rows.get_mut(row) {
                    *count = rest;
                }
                table.rows.truncate(row + 1);
            }
        }
    }

    fn cut_sample_to_chunk(&mut self, stretch: &ClipRange) -> Result<(), Error> {
        let Some(mut table) = self.sample_to_chunk.take() else {
            return Err(Error::Missing("stsc"));
        };
        if table.rows.is_empty() {
            return Err(Error::In("zero number of entries in stsc atom"));
        }
        let chunks = self.offsets.as_ref().map_or(0, |table| table.rows.len()) as u64;
        let first = self.cut_chunks_before(&mut table, chunks)?;
        let last = match stretch.length {
            0 => (first, None),
            _ => self.cut_chunks_after(&mut table, first, chunks)?,
        };
        let (first, last) = last;
        for [chunk, ..] in &mut table.rows {
            *chunk = chunk.wrapping_sub(self.start_chunk as u32);
        }
        table.rows.splice(0..0, first);
        table.rows.extend(last);
        self.sample_to_chunk = Some(table);
        Ok(())
    }

    /// Begins the table at the first sample. Returns a row to insert before it, if only a part of
    /// the first chunk is used and needs a row of its own.
    fn cut_chunks_before(
        &mut self,
        table: &mut Table<3>,
        chunks: u64,
    ) -> Result<Option<[u32; 3]>, Error> {
        let out = "start time is out mp4 stsc chunks";
        let found = find_chunk(&table.rows, self.start_sample, chunks, out)?;
        let [_, samples, id] = found.row;
        self.start_chunk = found.chunk;
        self.start_chunk_samples = found.samples_before;
        table.keep(found.index, table.rows.len());
        let Some(row) = table.rows.first_mut() else {
            return Err(Error::In(out));
        };
        row[0] = (found.chunk as u32).wrapping_add(1);
        if found.samples_before == 0 {
            return Ok(None);
        }
        let samples = samples.saturating_sub(found.samples_before as u32);
        if found.next_chunk.checked_sub(found.chunk) == Some(2) {
            row[1] = samples;
            return Ok(None);
        }
        row[0] = (found.chunk as u32).wrapping_add(2);
        Ok(Some([1, samples, id]))
    }

    /// Ends the table at the last sample. Returns rows to insert before the first and after the
    /// last.
    #[allow(clippy::type_complexity)]
    fn cut_chunks_after(
        &mut self,
        table: &mut Table<3>,
        mut first: Option<[u32; 3]>,
        chunks: u64,
    ) -> Result<(Option<[u32; 3]>, Option<[u32; 3]>), Error> {
        let mut sample = self.end_sample.saturating_sub(self.start_sample);
        if let Some([_, samples, _]) = &mut first {
            *samples = (*samples).min(u32::try_from(sample).unwrap_or(u32::MAX));
            sample -= u64::from(*samples);
        }
        let out = "end time is out mp4 stsc chunks";
        let found = find_chunk(&table.rows, sample, chunks, out)?;
        let [chunk, samples, id] = found.row;
        if found.sample > 0 {
            table.rows.truncate(found.index + 1);
            self.end_chunk_samples = samples.into();
        } else {
            table.rows.truncate(found.index);
            self.end_chunk_samples = found.samples_of_last.into();
        }
        self.end_chunk = found.chunk;
        if found.samples_before == 0 {
            return Ok((first, None));
        }
        self.end_chunk = found.chunk + 1;
        self.end_chunk_samples = found.samples_before;
        let samples = found.samples_before as u32;
        if u64::from(chunk) == found.chunk + 1 {
            if let Some(row) = table.rows.last_mut() {
                row[1] = samples;
            }
            return Ok((first, None));
        }
        let chunk = self.end_chunk.wrapping_sub(self.start_chunk) as u32;
        Ok((first, Some([chunk, samples, id])))
    }

    fn cut_sizes(&mut self, stretch: &ClipRange) -> Result<(), Error> {
        let Some(Sizes::Each(table)) = &mut self.sizes else {
            return Ok(());
        };
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let start = index(self.start_sample);
        if start >= table.rows.len() {
            return Err(Error::In("start time is out mp4 stsz samples"));
        }
        let sum = |end: usize, count: u64| {
            let begin = end.checked_sub(index(count))?;
            let rows = table.rows.get(begin..end)?;
            let sum: u64 = rows.iter().map(|[size]| u64::from(*size)).sum();
            (sum <= stretch.file_size).then_some(sum)
        };
        self.start_chunk_samples_size = sum(start, self.start_chunk_samples)
            .ok_or(Error::In("too large mp4 start samples size"))?;
        let mut end = table.rows.len();
        if stretch.length > 0 {
            let samples = index(self.end_sample.saturating_sub(self.start_sample));
            if samples > end - start {
                return Err(Error::In("end time is out mp4 stsz samples"));
            }
            end = start + samples;
            self.end_chunk_samples_size = sum(end, self.end_chunk_samples)
                .ok_or(Error::In("too large mp4 end samples size"))?;
        }
        table.keep(start, end);
        Ok(())
    }

    fn cut_offsets(&mut self, stretch: &ClipRange) -> Result<(), Error> {
        let Some(table) = &mut self.offsets else {
            return Err(Error::Missing("stco"));
        };
        let long = table.long;
        let chunks = table.rows.len() as u64;
        if self.start_chunk >= chunks {
            return Err(Error::In(if long {
                "start time is out mp4 co64 chunks"
            } else {
                "start time is out mp4 stco chunks"
            }));
        }
        let behind = |offset: u64, size: u64| {
            let end = offset.checked_add(size);
            let within =
                |end: &u64| *end <= stretch.file_size && (long || u32::try_from(*end).is_ok());
            end.filter(within)
                .ok_or(Error::In("too large chunk offset"))
        };
        table.rows.drain(..self.start_chunk as usize); // less than the number of rows
        if let Some(first) = table.rows.first_mut() {
            self.start_offset = behind(*first, self.start_chunk_samples_size)?;
            *first = self.start_offset;
        }
        self.end_offset = stretch.mdat_end;
        if stretch.length > 0 {
            if self.end_chunk > chunks {
                return Err(Error::In(if long {
                    "end time is out mp4 co64 chunks"
                } else {
                    "end time is out mp4 stco chunks"
                }));
            }
            let count = self.end_chunk.saturating_sub(self.start_chunk);
            table.rows.truncate(count as usize);
            if let Some(last) = table.rows.last() {
                self.end_offset = behind(*last, self.end_chunk_samples_size)?;
            }
        }
        if table.rows.is_empty() {
            self.start_offset = stretch.file_size;
            self.end_offset = 0;
        }
        Ok(())
    }

    /// Appends the track's atom to `out`, and the location of its chunk offset table to `offsets`.
    pub(super) fn write(&self, out: &mut Vec<u8>, offsets: &mut Vec<OffsetTable>) {
        write_atom(out, b"trak", |out| {
            write_data(out, b"tkhd", self.tkhd.as_deref());
            if self.prefix > 0 {
                self.write_edit_list(out);
            }
            write_atom(out, b"mdia", |out| {
                self.write_media_header(out);
                write_data(out, b"hdlr", self.hdlr);
                write_atom(out, b"minf", |out| {
                    write_data(out, b"vmhd", self.vmhd);
                    write_data(out, b"smhd", self.smhd);
                    write_data(out, b"dinf", self.dinf);
                    write_atom(out, b"stbl", |out| self.write_tables(out, offsets));
                });
            });
        });
    }

    fn write_media_header(&self, out: &mut Vec<u8>) {
        let Some(mdhd) = &self.mdhd else { return };
        let mut mdhd = mdhd.clone();
        if is_long(&mdhd) {
            put(&mut mdhd, 24, &self.duration.to_be_bytes())
        } else {
            put(&mut mdhd, 16, &(self.duration as u32).to_be_bytes())
        }
        write_data(out, b"mdhd", Some(&mdhd));
    }

    /// Writes an edit list, so that players decode the frames before the start of the section, but
    /// do not show them.
    fn write_edit_list(&self, out: &mut Vec<u8>) {
        write_atom(out, b"edts", |out| {
            write_atom(out, b"elst", |out| {
                out.extend_from_slice(&[1, 0, 0, 0]); // version 1, no flags
                out.extend_from_slice(&1u32.to_be_bytes());
                out.extend_from_slice(&self.movie_duration.to_be_bytes());
                out.extend_from_slice(&self.prefix.to_be_bytes());
                out.extend_from_slice(&[0, 1, 0, 0]); // normal rate
            });
        });
    }

    fn write_tables(&self, out: &mut Vec<u8>, offsets: &mut Vec<OffsetTable>) {
        write_data(out, b"stsd", self.stsd);
        write_table(out, b"stts", self.time_to_sample.as_ref());
        write_table(out, b"stss", self.sync_samples.as_ref());
        write_table(out, b"ctts", self.composition_offsets.as_ref());
        write_table(out, b"stsc", self.sample_to_chunk.as_ref());
        match &self.sizes {
            Some(Sizes::Uniform(data)) => write_data(out, b"stsz", Some(data)),
            Some(Sizes::Each(table)) => write_atom(out, b"stsz", |out| {
                out.extend_from_slice(&table.version_and_flags);
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&(table.rows.len() as u32).to_be_bytes());
                for number in table.rows.as_flattened() {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }),
            None => {}
        }
        let Some(table) = &self.offsets else { return };
        let name = if table.long { b"co64" } else { b"stco" };
        write_atom(out, name, |out| {
            out.extend_from_slice(&table.version_and_flags);
            out.extend_from_slice(&(table.rows.len() as u32).to_be_bytes());
            offsets.push(OffsetTable {
                at: out.len(),
                count: table.rows.len(),
                long: table.long,
            });
            for offset in &table.rows {
                if table.long {
                    out.extend_from_slice(&offset.to_be_bytes())
                } else {
                    out.extend_from_slice(&(*offset as u32).to_be_bytes())
                }
            }
        });
    }
}

fn write_data(out: &mut Vec<u8>, name: &[u8; 4], data: Option<&[u8]>) {
    if let Some(data) = data {
        write_atom(out, name, |out| out.extend_from_slice(data));
    }
}

fn write_table<const N: usize>(out: &mut Vec<u8>, name: &[u8; 4], table: Option<&Table<N>>) {
    if let Some(table) = table {
        table.write(out, name);
    }
}

/// Finds a time in `stts`: returns the row, the sample, and how many samples of the row precede it.
/// If the time is after all samples, returns the sample after the last, and `None`.
fn find_sample(rows: &[[u32; 2]], mut time: u64) -> (usize, u64, Option<u32>) {
    let mut sample = 0u64;
    for (row, [count, duration]) in rows.iter().enumerate() {
        let span = u64::from(*count) * u64::from(*duration);
        if time < span {
            let rest = time / u64::from(*duration); // not 0, since the span is not
            return (row, sample + rest, Some(rest as u32));
        }
        sample = sample.saturating_add(u64::from(*count));
        time -= span;
    }
    (rows.len(), sample, None)
}

/// Finds a sample, numbered from 0, in `ctts`: returns the row, and how many samples of the row
/// precede it.
fn find_counted(rows: &[[u32; 2]], mut sample: u64) -> Option<(usize, u32)> {
    for (row, [count, _]) in rows.iter().enumerate() {
        if sample < u64::from(*count) {
            return Some((row, sample as u32));
        }
        sample -= u64::from(*count);
    }
    None
}

/// The location of a sample, by `stsc`.
struct FoundChunk {
    /// The row that describes the sample's chunk, and the row's index.
    row: [u32; 3],
    index: usize,
    /// Number of samples in the row's chunks that precede the sample.
    sample: u64,
    /// The sample's chunk, numbered from 0.
    chunk: u64,
    /// Number of samples in the chunk that precede the sample.
    samples_before: u64,
    /// The first chunk, numbered from 1, of the next row.
    next_chunk: u64,
    /// Number of samples per chunk in the preceding row.
    samples_of_last: u32,
}

fn find_chunk(
    rows: &[[u32; 3]],
    mut sample: u64,
    chunks: u64,
    out: &'static str,
) -> Result<FoundChunk, Error> {
    let mut samples_of_last = 0;
    for (index, row) in rows.iter().enumerate() {
        let [chunk, samples, _] = *row;
        let next = rows.get(index + 1).map(|next| u64::from(next[0]));
        let next_chunk = next.unwrap_or(chunks + 1);
        let Some(count) = next_chunk.checked_sub(chunk.into()) else {
            return Err(Error::In("unordered mp4 stsc chunks"));
        };
        let told = count * u64::from(samples);
        let here = sample < told;
        if !here && next.is_some() {
            sample -= told;
            if count > 0 {
                samples_of_last = samples;
            }
            continue;
        }
        if sample > told {
            return Err(Error::In(out));
        }
        if samples == 0 {
            return Err(Error::In("zero number of samples"));
        }
        let Some(before) = u64::from(chunk).checked_sub(1) else {
            return Err(Error::In("zero chunk"));
        };
        return Ok(FoundChunk {
            row: *row,
            index,
            sample,
            chunk: before + sample / u64::from(samples),
            samples_before: sample % u64::from(samples),
            next_chunk,
            samples_of_last,
        });
    }
    Err(Error::In(out))
}
