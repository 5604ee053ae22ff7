//! The encoder of a FastCGI request.

use std::fmt;

use super::{HEADER_LENGTH, REQUEST_ID, VERSION, record};
use crate::cgi::{VariableName, Variables};

/// Limit of nginx for the parameters, in bytes: the content of one record. See
/// [`RequestWriter::finish`].
pub const PARAMS_LENGTH_MAX: usize = 0xffff;

/// Maximum bytes of a body per record, as in nginx: 32 KiB.
pub const STDIN_LENGTH_MAX: usize = 32 * 1024;

/// The record that ends the body: an empty `FCGI_STDIN` (section 3.3, *streams*).
pub const STDIN_END: [u8; HEADER_LENGTH] = header(record::STDIN, 0);

/// Maximum content of a parameters record, in bytes, if there are several records: a multiple of 8,
/// so that only the last record needs padding.
const PARAMS_RECORD_MAX: usize = 0xfff8;

/// The largest length that is encoded in one byte (section 3.4).
const SHORT_MAX: u8 = 0x7f;

/// The largest length that can be encoded in four bytes (section 3.4).
const LENGTH_MAX: usize = 0x7fff_ffff;

const RESPONDER: u8 = 1;
/// `FCGI_KEEP_CONN` (section 5.1): the application must not close the connection after the request.
const KEEP_CONN: u8 = 1;

/// Alignment of records, in bytes, as section 3.3 recommends.
const ALIGNMENT: u16 = 8;

/// Padding after a record's content.
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

/// Bytes of padding after `length` bytes of content: 0 to 7.
const fn padding_length(length: u16) -> u8 {
    (length.wrapping_neg() % ALIGNMENT) as u8
}

fn padding(length: u16) -> &'static [u8] {
    PADDING
        .get(..usize::from(padding_length(length)))
        .unwrap_or_default()
}

/// Writes the head of a request: `FCGI_BEGIN_REQUEST`, the parameters in `FCGI_PARAMS`, and the
/// empty `FCGI_PARAMS` that ends them. Add the parameters through [`Variables`], then call
/// [`finish`](Self::finish); before that, the output is incomplete.
#[must_use = "a head has its lengths when it is finished"]
#[derive(Debug)]
pub struct RequestWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of the head in `out`.
    start: usize,
    /// Offset of the parameters in `out`, after their record's header.
    params: usize,
}

/// The parameters exceed the limit. Holds their length in bytes. The upstream is not at fault: as
/// in nginx, the response is 500, and no other server is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsTooLong(pub usize);

impl fmt::Display for ParamsTooLong {
    /// nginx's log message, at level `alert`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "fastcgi request record is too big: {}", self.0)
    }
}

impl<'a> RequestWriter<'a> {
    /// Begins a head at the end of `out`. `keep_connection` is `fastcgi_keep_conn`.
    pub fn new(out: &'a mut Vec<u8>, keep_connection: bool) -> RequestWriter<'a> {
        let start = out.len();
        out.extend_from_slice(&header(record::BEGIN_REQUEST, 8));
        let flags = if keep_connection { KEEP_CONN } else { 0 };
        out.extend_from_slice(&[0, RESPONDER, flags, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&header(record::PARAMS, 0));
        let params = out.len();
        RequestWriter { out, start, params }
    }

    /// Length of the parameters so far, in bytes, including the encoded lengths.
    #[must_use]
    pub fn params_length(&self) -> usize {
        self.out.len().saturating_sub(self.params)
    }

    /// Completes the head. nginx sends at most [`PARAMS_LENGTH_MAX`] bytes of parameters, in one
    /// record. With a larger `params_length_max`, more are sent, in several records (section 3.3,
    /// *streams*), but always less than 2 GiB.
    ///
    /// Without parameters, only the empty record is written. nginx writes two empty records then,
    /// which is one too many.
    ///
    /// # Errors
    /// The parameters exceed the limit. The incomplete head is removed from the output.
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

/// Appends a length, in one byte or four (section 3.4).
fn append_length(length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(length @ ..=SHORT_MAX) => out.push(length),
        _ => out.extend_from_slice(&long(length)),
    }
}

/// A length in four bytes. A larger length is truncated; such a head is rejected by `finish`.
fn long(length: usize) -> [u8; 4] {
    (length.min(LENGTH_MAX) as u32 | 0x8000_0000).to_be_bytes()
}

impl Variables for RequestWriter<'_> {
    /// The lengths of name and value, and the name. Reserves one byte for the length of the value,
    /// because most values are short.
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
            // The value follows its length, so that the range is within the output.
            _ => drop(self.out.splice(place..=place, long(length))),
        }
    }
}

/// The frame of a part of a body: the record's header and padding, so that the body itself can be
/// sent without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StdinFrame {
    length: u16,
    header: [u8; HEADER_LENGTH],
}

impl StdinFrame {
    /// The frame for the beginning of `available` bytes: for all of them, or the first
    /// [`STDIN_LENGTH_MAX`]. `None` if there are none, because an empty record would end the body.
    #[must_use]
    pub fn new(available: usize) -> Option<StdinFrame> {
        let length = available.min(STDIN_LENGTH_MAX) as u16; // it holds STDIN_LENGTH_MAX
        (length > 0).then(|| StdinFrame {
            length,
            header: header(record::STDIN, length),
        })
    }

    /// Bytes of the body between header and padding.
    #[must_use]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// The record's header, to be sent before the body's bytes.
    #[must_use]
    pub fn header(&self) -> &[u8; HEADER_LENGTH] {
        &self.header
    }

    /// The padding, to be sent after the body's bytes: 0 to 7 zero bytes.
    #[must_use]
    pub fn padding(&self) -> &'static [u8] {
        padding(self.length)
    }
}
