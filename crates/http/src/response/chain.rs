//! What a response passes between the handler that has made it and the exchange that sends it.
//!
//! A plan holds its head filters in nginx's order, each as a [`Link`]. Each looks at
//! `request.response`, changes it, and puts what has work to do on the body into the response's
//! [`Chain`]. The chain transforms [`Piece`]s and waits for nothing: files are read, and includes
//! are resolved, by its driver (see [`output`](crate::response::output)).
//!
//! A body is first cut as it is stored, then passes the body filters. What encodes it as a whole,
//! with all that its subrequests send, goes to the exchange.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use proto::header::{KnownField, KnownSet};
use proto::range::ByteRange;

use crate::exchange::abort::Abort;
use crate::request::Request;
use crate::response::piece::Piece;
use crate::response::range::Cut;

/// Why a head filter does not let a response pass.
#[derive(Debug)]
pub enum FilterRejection {
    /// This status answers instead, with the page that `error_page` has for it.
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
    /// Whether it has something to do with the response; it is left out where not.
    fn concerns(&self, request: &Request) -> bool;

    /// Changes `request.response`; what is to be done with the body goes into the chain.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection>;
}

/// One link of a plan's chain.
#[derive(Clone)]
pub enum Link {
    /// What HTTP itself wants of every response: its name, and what it does.
    Own(
        &'static str,
        fn(&mut Request, &mut Chain) -> Result<(), FilterRejection>,
    ),
    /// What a module does in the scope.
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

/// What changes one response's body.
pub trait BodyFilter {
    /// Whether it looks at the bytes of the body: files are read into memory before it.
    fn needs_bytes(&self) -> bool {
        true
    }

    /// The most bytes of a body in memory that may come before what becomes of them has been sent:
    /// a few can become more than there is room for.
    fn at_once(&self) -> usize {
        usize::MAX
    }

    /// Whether it adds something behind the body.
    fn adds_behind(&self) -> bool {
        false
    }

    /// Passes one piece; what leaves is appended.
    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort>;

    /// Goes on where it has put off what came, once all that it gave has been sent and its includes
    /// have ended; false where it had put off nothing.
    fn resume(&mut self, _: &mut Request, _: &mut Vec<Piece>) -> Result<bool, Abort> {
        Ok(false)
    }
}

/// What encodes the body of a main response, with all that subrequests send within it.
pub trait Encoder {
    /// All that it would give for the body, where it knows that: nothing of the body comes then.
    /// Asked before the first piece, and only where the body comes as its maker has made it.
    fn known(&mut self) -> Option<Bytes> {
        None
    }

    /// Encodes one piece, which is in memory; what is ready to leave is appended.
    fn apply(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort>;

    /// How many bytes have been given to it.
    fn bytes_in(&self) -> u64;

    /// The response is ending: what logs ask for of it is noted.
    fn end(&mut self, request: &mut Request);
}

/// What adds fields behind a body.
pub trait Trailers: Send + Sync {
    /// Appends them to `request.response.trailers`; the body has been sent.
    fn add(&self, request: &mut Request);
}

/// How a body goes on behind the bytes that its handler has given: in the bodies of subrequests to
/// the same handler, one after the other.
pub trait Parts {
    /// The client is sent these bytes of the whole, no others.
    fn narrow(&mut self, request: &mut Request, range: ByteRange);

    /// The subrequest for the next part, and where in the whole that begins; `None` behind the
    /// last.
    fn next(&mut self, request: &mut Request) -> Result<Option<(Box<Request>, u64)>, Abort>;

    /// The subrequest has been answered: an error where that is not the part.
    fn judge(&mut self, part: &mut Request) -> Result<(), Abort>;

    /// Nothing more of the subrequest is sent, whether it was a success or not.
    fn end(&mut self, request: &mut Request, part: &mut Request);
}

/// What one response's body passes, and what comes behind it.
#[derive(Default)]
pub struct Chain {
    cut: Option<Cut>,
    filters: Vec<Box<dyn BodyFilter>>,
    encoder: Option<Box<dyn Encoder>>,
    trailers: Vec<Arc<dyn Trailers>>,
    parts: Option<Box<dyn Parts>>,
    /// Where in the whole the body begins that the handler has given.
    offset: u64,
}

impl Chain {
    /// Passes the response's head through the filters of the plan in force.
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
                Link::Module(filter) if filter.concerns(request) => {
                    Arc::clone(filter).head(request, &mut chain)?;
                }
                Link::Module(_) => {}
            }
        }
        if let Some(parts) = &mut chain.parts
            && let Some(range) = chain.cut.as_ref().and_then(Cut::asked)
        {
            parts.narrow(request, range);
        }
        Ok(chain)
    }

    /// Only what the cut gives of the body as it is stored goes on.
    pub fn cut_out(&mut self, mut cut: Cut) {
        cut.seek(self.offset);
        self.cut = Some(cut);
    }

    /// What has passed the filters so far passes this one.
    pub fn push(&mut self, filter: impl BodyFilter + 'static) {
        self.filters.push(Box::new(filter));
    }

    /// The whole of the body is encoded before it is sent.
    pub fn encode(&mut self, encoder: impl Encoder + 'static) {
        self.encoder = Some(Box::new(encoder));
    }

    /// Fields follow the body.
    pub fn trail(&mut self, trailers: Arc<dyn Trailers>) {
        self.trailers.push(trailers);
    }

    /// What the handler has given is a part that begins at this byte of the whole; these follow.
    pub fn go_on_with(&mut self, parts: impl Parts + 'static, offset: u64) {
        self.parts = Some(Box::new(parts));
        self.offset = offset;
    }

    /// What encodes the body, for the exchange.
    pub fn take_encoder(&mut self) -> Option<Box<dyn Encoder>> {
        self.encoder.take()
    }

    /// What comes behind the part that the handler has given.
    pub fn take_parts(&mut self) -> Option<Box<dyn Parts>> {
        self.parts.take()
    }

    /// Appends the fields that follow the body, and leaves out those that may stand in heads alone,
    /// whoever has added them.
    pub fn add_trailers(&self, request: &mut Request) {
        for trailers in &self.trailers {
            trailers.add(request);
        }
        let may_follow = |name: &[u8]| !KnownSet::OF_FRAMING.contains(KnownField::from_name(name));
        let trailers = &mut request.response.trailers;
        trailers.retain(|field| may_follow(&field.name));
    }

    /// The piece that [`Chain::cut`] sees next begins at this byte of the whole.
    pub fn seek(&mut self, offset: u64) {
        if let Some(cut) = &mut self.cut {
            cut.seek(offset);
        }
    }

    /// Whether bodies leave as they come.
    pub fn is_empty(&self) -> bool {
        self.cut.is_none() && self.filters.is_empty()
    }

    /// Whether fields may follow the body.
    pub fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    /// Whether the body is what its maker has made, the whole of it and nothing else.
    pub fn is_plain(&self) -> bool {
        self.is_empty() && self.parts.is_none()
    }

    /// Whether files must be read into memory before [`Chain::apply`].
    pub fn needs_bytes(&self) -> bool {
        self.filters.iter().any(|filter| filter.needs_bytes())
    }

    /// Whether something is added behind the body as soon as all of that is there. Parts that
    /// follow are not there yet.
    pub fn adds_behind(&self) -> bool {
        self.parts.is_none() && self.filters.iter().any(|filter| filter.adds_behind())
    }

    /// Cuts what was asked for out of the body as it is stored; what is left is appended.
    pub fn cut(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        match &mut self.cut {
            Some(cut) => cut.apply(piece, out),
            None => {
                out.push(piece);
                Ok(())
            }
        }
    }

    /// Splits a piece that would grow beyond measure at once. What is returned passes when the
    /// first part has been sent.
    pub fn split(&self, piece: &mut Piece) -> Option<Piece> {
        let at_once = self.filters.iter().map(|filter| filter.at_once()).min()?;
        match piece {
            Piece::Bytes(bytes) if bytes.len() > at_once => {
                Some(Piece::Bytes(bytes.split_off(at_once)))
            }
            _ => None,
        }
    }

    /// Passes one piece that came out of [`Chain::cut`] through the body filters; what leaves is
    /// appended.
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

    /// Goes on after everything that [`Chain::apply`] gave has been sent and its includes have
    /// ended; false where nothing had been put off.
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

    /// Passes the pieces from `first` on through the filters behind the first `skipped` ones.
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
        assert!(!chain.is_empty() && chain.needs_bytes() && !chain.adds_behind());
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
