//! What is sent to an application.

use std::fmt;

use super::{HEADER_LENGTH, REQUEST_ID, VERSION, record};
use crate::cgi::{VariableName, Variables};

/// The most bytes of parameters that nginx sends: what one record holds. See
/// [`RequestWriter::finish`].
pub const PARAMS_LENGTH_MAX: usize = 0xffff;

/// The most bytes of a body that one record gets, as in nginx: 32 KiB.
pub const STDIN_LENGTH_MAX: usize = 32 * 1024;

/// The record that ends the body: an empty `FCGI_STDIN` (section 3.3, *streams*).
pub const STDIN_END: [u8; HEADER_LENGTH] = header(record::STDIN, 0);

/// The most bytes of a parameters' record where there are several: with them no record is padded
/// but the last.
const PARAMS_RECORD_MAX: usize = 0xfff8;

/// The most bytes that a length of one byte can tell (section 3.4).
const SHORT_MAX: u8 = 0x7f;

/// The most bytes that a length of four bytes can tell (section 3.4).
const LENGTH_MAX: usize = 0x7fff_ffff;

const RESPONDER: u8 = 1;
/// `FCGI_KEEP_CONN` (section 5.1): the application leaves the connection open behind the request.
const KEEP_CONN: u8 = 1;

/// Records begin at multiples of so many bytes, which section 3.3 recommends.
const ALIGNMENT: u16 = 8;

/// What is put behind a record's content to align the next one.
const PADDING: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];

/// The header of a record with `length` bytes of content.
const fn header(kind: u8, length: u16) -> [u8; HEADER_LENGTH] {
    let [high, low] = length.to_be_bytes();
    let [id_high, id_low] = REQUEST_ID;
    [
        VERSION,
        kind,
        id_high,
        id_low,
        high,
        low,
        padding_length(length),
        0,
    ]
}

/// How many bytes lie between a content of `length` bytes and the next multiple of eight: 0 to 7.
const fn padding_length(length: u16) -> u8 {
    (length.wrapping_neg() % ALIGNMENT) as u8
}

fn padding(length: u16) -> &'static [u8] {
    PADDING
        .get(..usize::from(padding_length(length)))
        .unwrap_or_default()
}

/// Writes the head of a request: `FCGI_BEGIN_REQUEST`, the parameters in `FCGI_PARAMS`, and the
/// empty `FCGI_PARAMS` that ends them. The parameters are added through [`Variables`];
/// [`finish`](Self::finish) must be called last. Until then what has been written is no head.
#[must_use = "a head has its lengths when it is finished"]
#[derive(Debug)]
pub struct RequestWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Where in `out` the head begins.
    start: usize,
    /// Where its parameters begin, behind the header of their record.
    params: usize,
}

/// The parameters of a request have more bytes than are sent. Holds how many. The request is ours,
/// so nginx answers it with 500; no other server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsTooLong(pub usize);

impl fmt::Display for ParamsTooLong {
    /// nginx's words for the log, at level `alert`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "fastcgi request record is too big: {}", self.0)
    }
}

impl<'a> RequestWriter<'a> {
    /// Begins a head behind what `out` holds. `keep_connection` is `fastcgi_keep_conn`.
    pub fn new(out: &'a mut Vec<u8>, keep_connection: bool) -> RequestWriter<'a> {
        let start = out.len();
        out.extend_from_slice(&header(record::BEGIN_REQUEST, 8));
        let flags = if keep_connection { KEEP_CONN } else { 0 };
        out.extend_from_slice(&[0, RESPONDER, flags, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&header(record::PARAMS, 0));
        let params = out.len();
        RequestWriter { out, start, params }
    }

    /// How many bytes the parameters have so far, lengths of names and values included.
    #[must_use]
    pub fn params_length(&self) -> usize {
        self.out.len().saturating_sub(self.params)
    }

    /// Ends the head. nginx sends at most [`PARAMS_LENGTH_MAX`] bytes of parameters, in one record.
    /// With a higher `params_length_max` more are sent, in as many records as they need (section
    /// 3.3, *streams*); below 2 GiB always.
    ///
    /// Where there are no parameters the empty record stands alone. nginx sends two of them then,
    /// of which the second is one too many.
    ///
    /// # Errors
    /// There are more parameters. What had been written of the head is taken back.
    pub fn finish(self, params_length_max: usize) -> Result<(), ParamsTooLong> {
        let length = self.params_length();
        if length > params_length_max.min(LENGTH_MAX) {
            self.out.truncate(self.start);
            return Err(ParamsTooLong(length));
        }
        let record = self.params.saturating_sub(HEADER_LENGTH);
        match u16::try_from(length) {
            Ok(0) => self.out.truncate(record),
            Ok(length) => {
                if let Some(place) = self.out.get_mut(record..self.params) {
                    place.copy_from_slice(&header(record::PARAMS, length));
                }
                self.out.extend_from_slice(padding(length));
            }
            Err(_) => {
                let params = self.out.split_off(self.params);
                self.out.truncate(record);
                for part in params.chunks(PARAMS_RECORD_MAX) {
                    let length = part.len() as u16; // at most PARAMS_RECORD_MAX
                    self.out.extend_from_slice(&header(record::PARAMS, length));
                    self.out.extend_from_slice(part);
                    self.out.extend_from_slice(padding(length));
                }
            }
        }
        self.out.extend_from_slice(&header(record::PARAMS, 0));
        Ok(())
    }
}

/// Appends a length in one byte or four (section 3.4).
fn append_length(length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(length @ ..=SHORT_MAX) => out.push(length),
        _ => out.extend_from_slice(&long(length)),
    }
}

/// A length in four bytes. Of one that does not fit the rest is lost; such a head is not finished.
fn long(length: usize) -> [u8; 4] {
    (length.min(LENGTH_MAX) as u32 | 0x8000_0000).to_be_bytes()
}

impl Variables for RequestWriter<'_> {
    /// The lengths of name and value, and the name. Most values are short: there is room for the
    /// length of such a one.
    fn begin(name: VariableName<'_>, out: &mut Vec<u8>) {
        append_length(name.len(), out);
        append_length(0, out);
        name.append(out);
    }

    fn constant(name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        append_length(name.len(), &mut out);
        append_length(value.len(), &mut out);
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        Some(out)
    }

    fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn end(&mut self, start: usize, value: usize) {
        let length = self.out.len().saturating_sub(value);
        let is_short = self.out.get(start).is_some_and(|first| *first <= SHORT_MAX);
        let place = start + if is_short { 1 } else { 4 };
        match u8::try_from(length) {
            Ok(length @ ..=SHORT_MAX) => {
                if let Some(place) = self.out.get_mut(place) {
                    *place = length;
                }
            }
            // A value lies behind the place of its length, so that this is within what has been
            // written.
            _ => drop(self.out.splice(place..=place, long(length))),
        }
    }
}

/// What stands around a stretch of a body, so that the body's own bytes are sent from where they
/// lie: a record's header before them, padding behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StdinFrame {
    length: u16,
    header: [u8; HEADER_LENGTH],
}

impl StdinFrame {
    /// The frame of the first bytes of a stretch that has `available` of them: of all, or of the
    /// first [`STDIN_LENGTH_MAX`]. `None` where there are none, as an empty record would end the
    /// body.
    #[must_use]
    pub fn new(available: usize) -> Option<StdinFrame> {
        let length = available.min(STDIN_LENGTH_MAX) as u16; // it holds STDIN_LENGTH_MAX
        (length > 0).then(|| StdinFrame {
            length,
            header: header(record::STDIN, length),
        })
    }

    /// How many bytes of the body stand between header and padding.
    #[must_use]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// What is sent before them.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER_LENGTH] {
        &self.header
    }

    /// What is sent behind them: 0 to 7 zero bytes.
    #[must_use]
    pub fn padding(&self) -> &'static [u8] {
        padding(self.length)
    }
}
