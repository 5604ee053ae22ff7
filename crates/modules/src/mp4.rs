//! `mp4`: MP4 files, and time ranges of them, selected by `?start=` and `?end=`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_mp4_module.html>. This file finds the atoms `ftyp`,
//! `moov` and `mdat` of a file. `proto::mp4` makes a new `moov` from the old one, on the thread
//! pool, since it may be large. Samples are sent unchanged from the file.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use engine::file::File;
use framework::compile::{Compiler, Feature};
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::piece::Piece;
use http::response::source::Body;
use logs::{Errno, Printable};
use proto::mp4::{self, ClipRange, ClippedFile, HEADER_SIZE, Header};
use proto::uri;

use crate::flv;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Declares the directive `mp4`.
pub static MP4: Setting<()> = Setting::new("mp4", &[""], parse::nothing)
    .contexts(Contexts::LOCATION)
    .arity(Arity::none())
    .inherit(Inherit::Handler)
    .repeatable()
    .manual(
        "Serves MP4 files; with `?start=SECONDS` and `?end=SECONDS` the stretch between, as a file \
         of its own.",
    );

/// Declares the directive `mp4_buffer_size size`.
pub static MP4_BUFFER_SIZE: Setting<u64> = Setting::new("mp4_buffer_size", &["size"], parse::size)
    .contexts(HSL)
    .default("512k")
    .manual("How much of a file is read at once while its atoms are looked for.");

/// Declares the directive `mp4_max_buffer_size size`.
pub static MP4_MAX_BUFFER_SIZE: Setting<u64> =
    Setting::new("mp4_max_buffer_size", &["size"], parse::size)
        .contexts(HSL)
        .default("10m")
        .manual(
            "How large a `moov` atom may be that does not fit into `mp4_buffer_size`; the answer \
             to a stretch of a file with a larger one is 500.",
        );

/// `mp4_start_key_frame on | off`
pub static MP4_START_KEY_FRAME: Setting<bool> =
    Setting::new("mp4_start_key_frame", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual(
            "Lets a stretch begin with the key frame before its start; an edit list tells players \
             not to show what is too early.",
        );

/// `mp4_limit_rate on | off | factor`
pub static MP4_LIMIT_RATE: Setting<Option<u64>> =
    Setting::new("mp4_limit_rate", &["on | off | factor"], factor)
        .contexts(HSL)
        .default("off")
        .manual(
            "Sends a file no faster than it is played, times this factor; `on` stands for 1.1.",
        );

/// Declares the directive `mp4_limit_rate_after time`.
pub static MP4_LIMIT_RATE_AFTER: Setting<Duration> =
    Setting::new("mp4_limit_rate_after", &["time"], parse::milliseconds)
        .contexts(HSL)
        .default("60s")
        .manual("How much playing time is sent before `mp4_limit_rate` holds.");

/// The directive that chooses the handler.
pub const HANDLERS: &[&dyn Declared] = &[&MP4];

fn factor(setter: &Setter<'_>) -> Result<Option<u64>, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"on" => Ok(Some(1100)),
        b"off" => Ok(None),
        digits => match thousandths(digits) {
            Some(factor @ 1..) => Ok(Some(factor)),
            _ => Err(Fault::invalid_value(word)),
        },
    }
}

/// Parses a decimal number, times 1,000. Flash players may send more than three decimals; the rest
/// are ignored.
fn thousandths(digits: &[u8]) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', digits) {
        Some(at) => (digits.get(..at)?, digits.get(at + 1..)?),
        None => (digits, &b""[..]),
    };
    let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    if digits.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let fraction = fraction.iter().chain(b"000").take(3);
    let mut value: i64 = 0;
    for digit in whole.iter().chain(fraction) {
        let digit = i64::from(digit - b'0');
        value = value.checked_mul(10)?.checked_add(digit)?;
    }
    u64::try_from(value).ok()
}

/// `mp4_*`, except `mp4` itself.
#[derive(Debug)]
pub struct Mp4 {
    buffer_size: u64,
    buffer_size_max: u64,
    start_key_frame: bool,
    /// Thousandths of the file's own bit rate.
    limit_rate: Option<u64>,
    limit_rate_after: Duration,
}

impl Feature for Mp4 {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &MP4_BUFFER_SIZE,
        &MP4_MAX_BUFFER_SIZE,
        &MP4_START_KEY_FRAME,
        &MP4_LIMIT_RATE,
        &MP4_LIMIT_RATE_AFTER,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Mp4, Fault> {
        Ok(Mp4 {
            buffer_size: scope.get(&MP4_BUFFER_SIZE)?,
            buffer_size_max: scope.get(&MP4_MAX_BUFFER_SIZE)?,
            start_key_frame: scope.get(&MP4_START_KEY_FRAME)?,
            limit_rate: scope.get(&MP4_LIMIT_RATE)?,
            limit_rate_after: scope.get(&MP4_LIMIT_RATE_AFTER)?,
        })
    }
}

/// The content handler of `mp4`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let settings: Arc<Mp4> = compiler.feature(scope)?;
    Ok(Some(Content {
        handler: settings,
        falls_back_to_files: true,
        inherited_by_limit_except: false,
        adds_slash: false,
        answers_connect: false,
        recall: None,
    }))
}

impl PhaseHandler for Mp4 {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::wait(async move { Ok(serve(request, exchange, self).await) })
    }
}

/// Responds with the file of the URI, or a time range of it.
async fn serve(request: &mut Request, exchange: &mut Exchange, settings: &Mp4) -> Step {
    let (file, metadata) = match flv::open(request, exchange).await {
        Ok(opened) => opened,
        Err(step) => return step,
    };
    let size = metadata.size;
    let mut pieces = None;
    if let Some((start, length)) = asked(request) {
        request.response.single_range = true;
        match stretch(&file, size, start, length, settings).await {
            Ok(cut) => pieces = cut,
            Err(failure) => {
                let path = request.filename();
                failure.log(request, &Printable(&path));
                return Step::Finish(500);
            }
        }
    }
    let pieces = pieces.unwrap_or_else(|| whole(&file, size));
    let length = pieces.iter().map(piece_length).sum();
    if settings.limit_rate.is_some() {
        limit(request, &file, size, settings).await;
    }
    flv::begin(request, &metadata, length, " while sending mp4 to client");
    Step::Respond(Body::Pieces(pieces))
}

/// The whole file as a piece; no piece for an empty file.
fn whole(file: &File, size: u64) -> Vec<Piece> {
    let piece = Piece::File {
        file: file.clone(),
        offset: 0,
        length: size,
    };
    (size > 0).then_some(piece).into_iter().collect()
}

fn piece_length(piece: &Piece) -> u64 {
    match piece {
        Piece::Bytes(bytes) => bytes.len() as u64,
        Piece::File { length, .. } => *length,
        Piece::Include { .. } | Piece::Flush | Piece::Last => 0,
    }
}

/// Start and length in milliseconds, from the arguments; length 0 means up to the end.
fn asked(request: &Request) -> Option<(u64, u64)> {
    let argument = |name: &[u8]| uri::argument(&request.args, name).and_then(thousandths);
    let start = argument(b"start");
    match argument(b"end") {
        Some(end @ 1..) => {
            let start = start.unwrap_or(0);
            Some((start, end.saturating_sub(start)))
        }
        _ => start.map(|start| (start, 0)),
    }
}

/// Why a time range could not be extracted.
#[derive(Debug)]
enum Mp4Error {
    File(mp4::Error),
    FtypTooLarge(u64),
    MoovTooLarge(u64),
    Read(io::Error),
}

impl From<mp4::Error> for Mp4Error {
    fn from(error: mp4::Error) -> Mp4Error {
        Mp4Error::File(error)
    }
}

impl Mp4Error {
    fn log(&self, request: &Request, path: &Printable<'_>) {
        match self {
            Mp4Error::File(error) => logs::error!(request, Error, "{}", error.describe(path)),
            Mp4Error::FtypTooLarge(size) => {
                logs::error!(
                    request,
                    Error,
                    "\"{path}\" mp4 ftyp atom is too large:{size}"
                );
            }
            Mp4Error::MoovTooLarge(size) => logs::error!(
                request,
                Error,
                "\"{path}\" mp4 moov atom is too large:{size}, you may want to increase mp4_max_buffer_size"
            ),
            Mp4Error::Read(error) => {
                logs::error!(request, Crit, "pread() \"{path}\" failed {}", Errno(error));
            }
        }
    }
}

/// A time range as a file of its own; `None` if the whole file is sent unchanged.
async fn stretch(
    file: &File,
    size: u64,
    start: u64,
    length: u64,
    settings: &Mp4,
) -> Result<Option<Vec<Piece>>, Mp4Error> {
    let mut reader = Reader::new(file, size, settings.buffer_size);
    let whole_is_asked = start == 0 && length == 0;
    let Some(atoms) = find_atoms(&mut reader, settings, whole_is_asked).await? else {
        return Ok(None);
    };
    let Some(moov) = atoms.moov else {
        return Err(mp4::Error::Missing("trak").into());
    };
    let mdat_end = atoms.mdat_end.ok_or(mp4::Error::Missing("mdat"))?;
    let ftyp = atoms.ftyp.unwrap_or_default();
    let wanted = ClipRange {
        start,
        length,
        start_key_frame: settings.start_key_frame,
        ftyp_size: ftyp.len() as u64,
        mdat_end,
        file_size: size,
    };
    let cut = engine::blocking_long(move || mp4::cut(&moov, &wanted)).await?;
    let ClippedFile {
        moov,
        mdat_header,
        start,
        end,
    } = cut;
    let mut pieces = Vec::with_capacity(4);
    pieces.extend((!ftyp.is_empty()).then(|| Piece::Bytes(ftyp.into())));
    pieces.push(Piece::Bytes(moov.into()));
    pieces.push(Piece::Bytes(mdat_header.into()));
    pieces.push(Piece::File {
        file: file.clone(),
        offset: start,
        length: end - start,
    });
    Ok(Some(pieces))
}

/// The atoms of a file that are used.
#[derive(Default)]
struct Atoms {
    ftyp: Option<Vec<u8>>,
    moov: Option<Bytes>,
    /// Offset of the end of the `mdat` atom in the file.
    mdat_end: Option<u64>,
}

/// Maximum size of an `ftyp` atom, in bytes.
const FTYP_SIZE_MAX: u64 = 1024;

/// Reads the atoms of a file until all that are needed are known. `None` if the whole file is
/// requested and can be sent unchanged: its `moov` precedes its `mdat`.
async fn find_atoms(
    reader: &mut Reader,
    settings: &Mp4,
    whole_is_asked: bool,
) -> Result<Option<Atoms>, Mp4Error> {
    let mut atoms = Atoms::default();
    while let Some(header) = reader.header().await? {
        match &header.name {
            b"ftyp" => {
                let data = reader.at_hand(header.data_size);
                let Some(data) = data.filter(|_| header.data_size <= FTYP_SIZE_MAX) else {
                    return Err(Mp4Error::FtypTooLarge(header.data_size));
                };
                let size = (data.len() + HEADER_SIZE) as u32;
                let ftyp = [&size.to_be_bytes(), &b"ftyp"[..], &data].concat();
                if atoms.ftyp.replace(ftyp).is_some() {
                    return Err(mp4::Error::Duplicate("ftyp").into());
                }
            }
            b"moov" => {
                if atoms.mdat_end.is_none() && whole_is_asked {
                    return Ok(None);
                }
                if atoms.moov.is_some() {
                    return Err(mp4::Error::Duplicate("moov").into());
                }
                if header.data_size > reader.size.max(settings.buffer_size_max) {
                    return Err(Mp4Error::MoovTooLarge(header.data_size));
                }
                atoms.moov = Some(reader.data(header.data_size).await?);
            }
            b"mdat" => {
                let end = reader.offset.saturating_add(header.data_size);
                if atoms.mdat_end.replace(end).is_some() {
                    return Err(mp4::Error::Duplicate("mdat").into());
                }
            }
            _ => {}
        }
        if atoms.moov.is_some() && atoms.mdat_end.is_some() {
            break;
        }
        reader.skip(header.data_size);
    }
    Ok(Some(atoms))
}

/// Reads a file sequentially, one buffer at a time.
struct Reader {
    file: File,
    /// Offset of the next atom, or of the rest of the current one.
    offset: u64,
    /// Length of the file.
    end: u64,
    /// Number of bytes per read.
    size: u64,
    buffer: Bytes,
    /// Offset of the first byte of `buffer` in the file.
    buffer_start: u64,
}

impl Reader {
    fn new(file: &File, end: u64, size: u64) -> Reader {
        Reader {
            file: file.clone(),
            offset: 0,
            end,
            size,
            buffer: Bytes::new(),
            buffer_start: 0,
        }
    }

    /// The next `length` bytes, if they are in the buffer.
    fn at_hand(&self, length: u64) -> Option<Bytes> {
        let begin = usize::try_from(self.offset.checked_sub(self.buffer_start)?).ok()?;
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        (end <= self.buffer.len()).then(|| self.buffer.slice(begin..end))
    }

    /// Reads the next `length` bytes, which must fit into a buffer.
    async fn read(&mut self, length: u64) -> Result<Bytes, Mp4Error> {
        if let Some(bytes) = self.at_hand(length) {
            return Ok(bytes);
        }
        let size = self.size.min(self.end.saturating_sub(self.offset));
        if size < length {
            return Err(mp4::Error::Truncated.into());
        }
        self.fill(size).await?;
        self.at_hand(length).ok_or(mp4::Error::Truncated.into())
    }

    /// The data of an atom, which may exceed the buffer.
    async fn data(&mut self, length: u64) -> Result<Bytes, Mp4Error> {
        if length <= self.size {
            return self.read(length).await;
        }
        self.fill(length).await?;
        self.at_hand(length).ok_or(mp4::Error::Truncated.into())
    }

    /// Reads `size` bytes from the current offset into the buffer.
    async fn fill(&mut self, size: u64) -> Result<(), Mp4Error> {
        let size = usize::try_from(size).map_err(|_| mp4::Error::Truncated)?;
        let read = self.file.read_at(self.offset, size).await;
        self.buffer = read.map_err(Mp4Error::Read)?;
        self.buffer_start = self.offset;
        Ok(())
    }

    /// Reads the header of the next atom; `None` at the end of the file.
    async fn header(&mut self) -> Result<Option<Header>, Mp4Error> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let first = self.read(4).await?;
        let Some(first) = first.first_chunk() else {
            return Err(mp4::Error::Truncated.into());
        };
        let Some(needed) = Header::needed(*first)? else {
            return Ok(None);
        };
        let bytes = self.read(needed as u64).await?;
        let header = Header::parse(&bytes, self.end - self.offset)?;
        self.skip(header.size as u64);
        Ok(Some(header))
    }

    fn skip(&mut self, length: u64) {
        self.offset = self.offset.saturating_add(length);
    }
}

/// Limits the rate by the playing time of the file. A file without a duration is not limited.
async fn limit(request: &mut Request, file: &File, size: u64, settings: &Mp4) {
    let Some(factor) = settings.limit_rate else {
        return;
    };
    let mut reader = Reader::new(file, size, settings.buffer_size);
    let Ok(Some(atoms)) = find_atoms(&mut reader, settings, false).await else {
        return;
    };
    let duration = atoms.moov.and_then(|moov| mp4::duration(&moov));
    let Some(milliseconds @ 1..) = duration else {
        return;
    };
    let per_second = u128::from(size) * 1000 / u128::from(milliseconds);
    let number = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
    let after = per_second * settings.limit_rate_after.as_millis() / 1000;
    request.pacing.rate = Some(number(per_second * u128::from(factor) / 1000).max(1));
    request.pacing.rate_after = Some(number(after));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_up_to_three_digits_after_the_point() {
        let times: [(&[u8], Option<u64>); 10] = [
            (b"0", Some(0)),
            (b"12", Some(12_000)),
            (b"1.5", Some(1500)),
            (b"1.23456789", Some(1234)),
            (b".5", Some(500)),
            (b"1.", Some(1000)),
            (b"", None),
            (b"-1", None),
            (b"1.2.3", None),
            (b"9223372036854775807", None),
        ];
        for (text, expected) in times {
            assert_eq!(thousandths(text), expected, "{text:?}");
        }
    }
}
