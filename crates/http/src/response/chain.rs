//! The filter chain that a response passes between the handler that makes it and the exchange that
//! sends it.
//!
//! A plan holds its head filters in nginx's order, each as a [`Link`]. A head filter examines and
//! changes `request.response`, and adds its body filter, if it has one, to the response's
//! [`Chain`]. The chain transforms [`Piece`]s and never waits: its caller reads files and runs
//! includes (see [`output`](crate::response::output)).
//!
//! Ranges are cut out of the body in its stored form, before the body filters. An encoder (gzip)
//! applies to the whole body, including the responses of included subrequests, so it belongs to the
//! exchange.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use proto::header::{KnownField, KnownSet};
use proto::range::ByteRange;

use crate::exchange::abort::Abort;
use crate::request::Request;
use crate::response::piece::Piece;
use crate::response::range::RangeCutter;

/// The reason why a head filter rejects a response.
#[derive(Debug)]
pub enum FilterRejection {
    /// Answer with this status instead, for which `error_page` may set a page.
    Status(u16),
    /// The exchange cannot go on.
    Abort(Abort),
}

impl From<Abort> for FilterRejection {
    fn from(abort: Abort) -> FilterRejection {
        FilterRejection::Abort(abort)
    }
}

/// A filter of responses' heads, with its settings in one scope.
pub trait HeadFilter: fmt::Debug + Send + Sync {
    /// Whether the filter applies to the response. If not, the filter is skipped.
    fn applies_to(&self, request: &Request) -> bool;

    /// Changes `request.response`, and may add a body filter to the chain.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection>;
}

/// One head filter of a plan.
#[derive(Clone)]
pub enum Link {
    /// A filter of the core that applies to every response: its name and function.
    Own(
        &'static str,
        fn(&mut Request, &mut Chain) -> Result<(), FilterRejection>,
    ),
    /// The filter of a module, with its settings in the scope.
    Module(Arc<dyn HeadFilter>),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Own(name, _) => f.write_str(name),
            Link::Module(filter) => filter.fmt(f),
        }
    }
}

/// A filter of one response's body.
pub trait BodyFilter {
    /// Whether the filter needs the bytes of the body, so that files are read into memory before
    /// it.
    fn needs_bytes(&self) -> bool {
        true
    }

    /// Maximum number of bytes of input per call. The output is sent before the filter gets more
    /// input. For filters whose output may be much longer than their input.
    fn at_once(&self) -> usize {
        usize::MAX
    }

    /// Whether the filter adds bytes behind the body.
    fn appends_to_body(&self) -> bool {
        false
    }

    /// Filters one piece, and appends the output to `out`.
    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort>;

    /// Continues with input that the filter has held back. Called when all of the filter's output
    /// has been sent and its includes have ended. False if nothing was held back.
    fn resume(&mut self, _: &mut Request, _: &mut Vec<Piece>) -> Result<bool, Abort> {
        Ok(false)
    }
}

/// Encodes the body of a main response, including everything that subrequests send within it.
pub trait Encoder {
    /// The complete encoded body, if it is already known, so that the body is not read. Called
    /// before the first piece, and only for a body that no filter changes.
    fn known(&mut self) -> Option<Bytes> {
        None
    }

    /// Encodes one piece, which is in memory, and appends the output that is ready.
    fn apply(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort>;

    /// The number of bytes of input that the encoder has been given.
    fn bytes_in(&self) -> u64;

    /// Called when the response ends, to store the values of log variables such as `$gzip_ratio`.
    fn end(&mut self, request: &mut Request);
}

/// Adds trailers behind a body.
pub trait Trailers: Send + Sync {
    /// Appends trailers to `request.response.trailers`. Called when the body has been sent.
    fn add(&self, request: &mut Request);
}

/// The parts of a body that follow the part which the handler has returned: the bodies of
/// subrequests to the same handler, one after another.
pub trait Parts {
    /// Limits the parts to this range of the whole body, which is all that the client has asked
    /// for.
    fn narrow(&mut self, request: &mut Request, range: ByteRange);

    /// The subrequest for the next part, and the part's offset in the whole body; `None` after the
    /// last part.
    fn next(&mut self, request: &mut Request) -> Result<Option<(Box<Request>, u64)>, Abort>;

    /// Checks that the response of the subrequest is the expected part.
    fn judge(&mut self, part: &mut Request) -> Result<(), Abort>;

    /// Called when the subrequest has ended, whether it was successful or not.
    fn end(&mut self, request: &mut Request, part: &mut Request);
}

/// The filters of one response's body, and everything that follows the body.
#[derive(Default)]
pub struct Chain {
    /// The ranges to cut out of the stored body.
    cut: Option<RangeCutter>,
    filters: Vec<Box<dyn BodyFilter>>,
    encoder: Option<Box<dyn Encoder>>,
    trailers: Vec<Arc<dyn Trailers>>,
    /// The parts that follow the handler's body.
    parts: Option<Box<dyn Parts>>,
    /// The offset of the handler's body in the whole body.
    offset: u64,
}

impl Chain {
    /// Passes the response's head through the head filters of the current plan.
    pub fn of_response(request: &mut Request) -> Result<Chain, FilterRejection> {
        let mut chain = Chain::default();
        let mut at = 0;
        while let Some(link) = request.plan.phases.filters.get(at) {
            at += 1;
            match link {
                Link::Own(_, head) => {
                    let head = *head;
                    head(request, &mut chain)?;
                }
                Link::Module(filter) if filter.applies_to(request) => {
                    Arc::clone(filter).head(request, &mut chain)?;
                }
                Link::Module(_) => {}
            }
        }
        if let Some(parts) = &mut chain.parts
            && let Some(range) = chain.cut.as_ref().and_then(RangeCutter::asked)
        {
            parts.narrow(request, range);
        }
        Ok(chain)
    }

    /// Sets the ranges that are cut out of the body in its stored form.
    pub fn cut_out(&mut self, mut cut: RangeCutter) {
        cut.seek(self.offset);
        self.cut = Some(cut);
    }

    /// Adds a body filter, which runs after those that have been added.
    pub fn push(&mut self, filter: impl BodyFilter + 'static) {
        self.filters.push(Box::new(filter));
    }

    /// Sets the encoder of the body.
    pub fn encode(&mut self, encoder: impl Encoder + 'static) {
        self.encoder = Some(Box::new(encoder));
    }

    /// Adds trailers behind the body.
    pub fn trail(&mut self, trailers: Arc<dyn Trailers>) {
        self.trailers.push(trailers);
    }

    /// Declares the handler's body to be the part at this offset of the whole body, and sets the
    /// parts that follow.
    pub fn go_on_with(&mut self, parts: impl Parts + 'static, offset: u64) {
        self.parts = Some(Box::new(parts));
        self.offset = offset;
    }

    /// Takes the encoder, for the exchange.
    pub fn take_encoder(&mut self) -> Option<Box<dyn Encoder>> {
        self.encoder.take()
    }

    /// Takes the parts that follow the handler's body.
    pub fn take_parts(&mut self) -> Option<Box<dyn Parts>> {
        self.parts.take()
    }

    /// Appends the trailers, and removes all fields that are not allowed as trailers, such as
    /// `Content-Length`.
    pub fn add_trailers(&self, request: &mut Request) {
        for trailers in &self.trailers {
            trailers.add(request);
        }
        let may_follow = |name: &[u8]| !KnownSet::OF_FRAMING.contains(KnownField::from_name(name));
        let trailers = &mut request.response.trailers;
        trailers.retain(|field| may_follow(&field.name));
    }

    /// Sets the offset in the whole body of the piece that [`Chain::cut`] gets next.
    pub fn seek(&mut self, offset: u64) {
        if let Some(cut) = &mut self.cut {
            cut.seek(offset);
        }
    }

    /// Whether the body passes the chain unchanged.
    pub fn is_empty(&self) -> bool {
        self.cut.is_none() && self.filters.is_empty()
    }

    /// Whether trailers may follow the body.
    pub fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    /// Whether the handler's body is the whole body, unchanged.
    pub fn is_plain(&self) -> bool {
        self.is_empty() && self.parts.is_none()
    }

    /// Whether files must be read into memory before [`Chain::apply`].
    pub fn needs_bytes(&self) -> bool {
        self.filters.iter().any(|filter| filter.needs_bytes())
    }

    /// Whether a filter adds bytes behind the body as soon as the whole body is available. False if
    /// further parts still have to be fetched.
    pub fn appends_to_body(&self) -> bool {
        self.parts.is_none() && self.filters.iter().any(|filter| filter.appends_to_body())
    }

    /// Cuts the requested ranges out of a piece of the stored body, and appends the bytes that are
    /// left.
    pub fn cut(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        match &mut self.cut {
            Some(cut) => cut.apply(piece, out),
            None => {
                out.push(piece);
                Ok(())
            }
        }
    }

    /// Splits a piece whose output could become too large. The returned rest must be passed after
    /// the output of the first part has been sent.
    pub fn split(&self, piece: &mut Piece) -> Option<Piece> {
        let at_once = self.filters.iter().map(|filter| filter.at_once()).min()?;
        match piece {
            Piece::Bytes(bytes) if bytes.len() > at_once => {
                Some(Piece::Bytes(bytes.split_off(at_once)))
            }
            _ => None,
        }
    }

    /// Passes a piece from [`Chain::cut`] through the body filters, and appends the output.
    pub fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        let first = out.len();
        out.push(piece);
        self.pass(request, 0, out, first)
    }

    /// Continues with input that filters have held back, once the output of [`Chain::apply`] has
    /// been sent and its includes have ended. False if nothing was held back.
    pub fn resume(&mut self, request: &mut Request, out: &mut Vec<Piece>) -> Result<bool, Abort> {
        for at in 0..self.filters.len() {
            let first = out.len();
            if let Some(filter) = self.filters.get_mut(at)
                && filter.resume(request, out)?
            {
                self.pass(request, at + 1, out, first)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Passes the pieces from index `first` on through the filters, without the first `skipped`
    /// filters.
    fn pass(
        &mut self,
        request: &mut Request,
        skipped: usize,
        pieces: &mut Vec<Piece>,
        first: usize,
    ) -> Result<(), Abort> {
        for filter in self.filters.iter_mut().skip(skipped) {
            let taken: Vec<Piece> = pieces.drain(first..).collect();
            for piece in taken {
                filter.apply(request, piece, pieces)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::text_of;
    use crate::testing::with_request;

    /// Puts its letter behind every piece of bytes.
    struct Marks(&'static str, usize);

    impl BodyFilter for Marks {
        fn at_once(&self) -> usize {
            self.1
        }

        fn apply(
            &mut self,
            _: &mut Request,
            piece: Piece,
            out: &mut Vec<Piece>,
        ) -> Result<(), Abort> {
            let is_text = matches!(piece, Piece::Bytes(_));
            out.push(piece);
            out.extend(is_text.then(|| Piece::Bytes(self.0.into())));
            Ok(())
        }
    }

    /// Holds every piece until it may go on.
    #[derive(Default)]
    struct Holds(Vec<Piece>);

    impl BodyFilter for Holds {
        fn apply(
            &mut self,
            _: &mut Request,
            piece: Piece,
            _: &mut Vec<Piece>,
        ) -> Result<(), Abort> {
            self.0.push(piece);
            Ok(())
        }

        fn resume(&mut self, _: &mut Request, out: &mut Vec<Piece>) -> Result<bool, Abort> {
            out.append(&mut self.0);
            Ok(!out.is_empty())
        }
    }

    fn text() -> Piece {
        Piece::Bytes("text".into())
    }

    #[test]
    fn a_piece_passes_one_filter_after_the_other() {
        let mut chain = Chain::default();
        assert!(chain.is_empty() && !chain.needs_bytes());
        chain.push(Marks("a", usize::MAX));
        chain.push(Marks("b", usize::MAX));
        assert!(!chain.is_empty() && chain.needs_bytes() && !chain.appends_to_body());
        let mut out = vec![Piece::Bytes("before ".into())];
        with_request(|request| chain.apply(request, text(), &mut out).unwrap());
        assert_eq!(text_of(&out), "before textbab");
    }

    #[test]
    fn what_was_put_off_passes_the_filters_behind() {
        let mut chain = Chain::default();
        chain.push(Marks("a", usize::MAX));
        chain.push(Holds::default());
        chain.push(Marks("b", usize::MAX));
        let mut out = Vec::new();
        with_request(|request| {
            chain.apply(request, text(), &mut out).unwrap();
            assert!(out.is_empty());
            assert!(chain.resume(request, &mut out).unwrap());
            assert_eq!(text_of(&out), "textbab");
            out.clear();
            assert!(!chain.resume(request, &mut out).unwrap(), "nothing is left");
        });
    }

    #[test]
    fn a_piece_is_split_where_one_filter_takes_less_at_once() {
        let mut chain = Chain::default();
        let mut piece = text();
        assert!(chain.split(&mut piece).is_none());
        chain.push(Marks("a", usize::MAX));
        chain.push(Marks("b", 3));
        let rest = chain.split(&mut piece).unwrap();
        assert_eq!(
            (text_of(&[piece]), text_of(&[rest])),
            ("tex".into(), "t".into())
        );
        assert!(chain.split(&mut Piece::Last).is_none());
    }
}
