//! What a response passes on its way out.
//!
//! [`Filters::for_response`] runs the header filters in nginx's order: conditional requests, added
//! fields, userid, gunzip, addition, sub, charset, ssi, compression, ranges. Each looks at `request.response`, changes
//! it, and stays for the body if there is work to do there. Compression is the exception: it is given to the exchange,
//! because it compresses what included subrequests send as well.

pub mod addition;
pub mod brotli;
pub mod charset;
pub mod compress;
pub mod gunzip;
pub mod gzip;
pub mod headers;
pub mod slice;
pub mod ssi;
pub mod sub;
#[cfg(test)]
pub(crate) mod testing;
pub mod userid;
pub mod zstd;

use bytes::Bytes;
use conf::{Fault, Setter};
use proto::date;
use proto::range::ByteRange;

use crate::http::exchange::{Abort, Exchange};
use crate::http::modules::headers_more;
use crate::http::output::Piece;
use crate::http::request::Request;
use crate::http::{not_modified, range};

/// Bytes of gzip that are decompressed before what came of them is sent.
const EXPANDED_AT_ONCE_MAX: usize = 1024;

/// The filters that have something to do with a response's body.
#[derive(Default)]
pub struct Filters {
    range: Option<range::Cut>,
    gunzip: Option<Box<gunzip::Expand>>,
    addition: Option<addition::Wrap>,
    sub: Option<Box<sub::Substitute>>,
    recode: Option<charset::Recode>,
    ssi: Option<Box<ssi::Processor>>,
}

impl Filters {
    /// Runs the header filters. `Err` is the status that is to be sent instead of the response.
    pub fn for_response(request: &mut Request, exchange: &mut Exchange) -> Result<Filters, u16> {
        let main = request.depth == 0;
        let mut filters = Filters::default();
        if main {
            not_modified::check(request)?;
            headers_more::change_response(request);
            headers::add(request);
            userid::add(request);
        }
        filters.gunzip = gunzip::begin(request);
        if main {
            filters.addition = addition::begin(request);
        }
        filters.sub = sub::begin(request);
        filters.recode = charset::begin(request);
        filters.ssi = ssi::begin(request);
        if main {
            if let Some(compressor) = compress::begin(request) {
                exchange.set_compressor(compressor);
            }
            filters.range = range::begin(request)?;
        }
        Ok(filters)
    }

    /// Says where in the whole the body begins, or goes on, that [`Filters::cut`] will see.
    pub fn seek(&mut self, offset: u64) {
        if let Some(range) = &mut self.range {
            range.seek(offset);
        }
    }

    /// The one part that is cut out of the body, if it is one.
    pub fn asked(&self) -> Option<ByteRange> {
        self.range.as_ref()?.asked()
    }

    /// Whether bodies leave as they come.
    pub fn is_empty(&self) -> bool {
        self.range.is_none() && self.addition.is_none() && !self.need_bytes()
    }

    /// Whether files must be read into memory before [`Filters::apply`].
    pub fn need_bytes(&self) -> bool {
        self.gunzip.is_some() || self.sub.is_some() || self.recode.is_some() || self.ssi.is_some()
    }

    /// Whether something is added behind the body.
    pub fn add_behind(&self) -> bool {
        let addition = self.addition.as_ref();
        addition.is_some_and(addition::Wrap::adds_behind)
    }

    /// Cuts what was asked for out of the body as it is stored; what is left is appended.
    pub fn cut(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        match &mut self.range {
            Some(range) => range.apply(piece, out),
            None => {
                out.push(piece);
                Ok(())
            }
        }
    }

    /// Splits a piece that would grow beyond measure at once: a few bytes of gzip can be a thousand times
    /// as many of text. What is returned passes when the first part has been sent.
    pub fn split(&self, piece: &mut Piece) -> Option<Piece> {
        match piece {
            Piece::Bytes(bytes) if self.gunzip.is_some() && bytes.len() > EXPANDED_AT_ONCE_MAX => {
                Some(Piece::Bytes(bytes.split_off(EXPANDED_AT_ONCE_MAX)))
            }
            _ => None,
        }
    }

    /// Passes one piece that came out of [`Filters::cut`] through the filters that change the body; what
    /// leaves is appended.
    pub fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        let first = out.len();
        out.push(piece);
        if let Some(gunzip) = &mut self.gunzip {
            through(out, first, |piece, out| gunzip.apply(request, piece, out))?;
        }
        if let Some(addition) = &mut self.addition {
            through(out, first, |piece, out| {
                out.extend(addition.apply(piece).into_iter().flatten());
                Ok(())
            })?;
        }
        if let Some(sub) = &mut self.sub {
            through(out, first, |piece, out| {
                sub.apply(request, piece, out);
                Ok(())
            })?;
        }
        if let Some(recode) = &mut self.recode {
            through(out, first, |piece, out| {
                out.extend(recode.apply(piece));
                Ok(())
            })?;
        }
        if let Some(ssi) = &mut self.ssi {
            through(out, first, |piece, out| {
                ssi.apply(request, piece, out);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Goes on after everything that [`Filters::apply`] gave has been sent and its includes have ended;
    /// false where nothing had been put off.
    pub fn resume(&mut self, request: &mut Request, out: &mut Vec<Piece>) -> bool {
        self.ssi
            .as_mut()
            .is_some_and(|ssi| ssi.resume(request, out))
    }
}

/// Passes the pieces from `first` on through one filter.
fn through(
    pieces: &mut Vec<Piece>,
    first: usize,
    mut filter: impl FnMut(Piece, &mut Vec<Piece>) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let taken: Vec<Piece> = pieces.drain(first..).collect();
    taken
        .into_iter()
        .try_for_each(|piece| filter(piece, pieces))
}

/// A set of media types, as `gzip_types`, `charset_types` and `addition_types` give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaTypes {
    /// `*`: every response.
    All,
    /// These, in lower case.
    These(Box<[Box<[u8]>]>),
}

impl MediaTypes {
    /// Whether a response of this type is meant.
    pub fn contain(&self, content_type: &[u8]) -> bool {
        match self {
            MediaTypes::All => true,
            MediaTypes::These(names) => names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(content_type)),
        }
    }
}

/// Reads the arguments of `gzip_types` and its like: what is written adds to `text/html`.
fn media_types(setter: &Setter<'_>) -> Result<MediaTypes, Fault> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    if !setter.is_default() {
        names.push(Box::from(&b"text/html"[..]));
    }
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        if &*word.bytes == b"*" {
            return Ok(MediaTypes::All);
        }
        let name: Box<[u8]> = word.bytes.to_ascii_lowercase().into();
        if names.contains(&name) {
            setter.warn(
                word,
                format!("duplicate MIME type \"{}\"", String::from_utf8_lossy(&name)),
            );
        } else {
            names.push(name);
        }
    }
    Ok(MediaTypes::These(names.into()))
}

/// A date as a field's value.
fn date_value(time: i64) -> Bytes {
    let mut text = [0; date::HTTP_LENGTH];
    date::format_http(time, &mut text);
    Bytes::copy_from_slice(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_compared_in_any_case() {
        let types = MediaTypes::These(Box::new([Box::from(&b"text/html"[..])]));
        assert!(types.contain(b"text/html"));
        assert!(types.contain(b"Text/HTML"));
        assert!(!types.contain(b"text/html; charset=utf-8"));
        assert!(!types.contain(b""));
        assert!(MediaTypes::All.contain(b""));
    }
}
