//! Text from other URIs before and after a response: `add_before_body`, `add_after_body`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_addition_module.html>

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};

use super::{MediaTypes, media_types};
use crate::http::output::{Include, Piece, Purpose};
use crate::http::request::Request;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `add_before_body URI`
pub static ADD_BEFORE_BODY: Setting<Bytes> = Setting::new(
    "add_before_body",
    &["uri"],
    parse::bytes,
)
.contexts(HSL)
.default("\"\"")
.manual("Sends the response of a subrequest to `uri` before the body. An empty string: nothing.");

/// `add_after_body URI`
pub static ADD_AFTER_BODY: Setting<Bytes> = Setting::new("add_after_body", &["uri"], parse::bytes)
    .contexts(HSL)
    .default("\"\"")
    .manual(
        "Sends the response of a subrequest to `uri` after the body. An empty string: nothing.",
    );

/// `addition_types TYPE…`
pub static ADDITION_TYPES: Setting<MediaTypes> = Setting::new(
    "addition_types",
    &["mime-type …"],
    media_types,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("text/html")
.manual(
    "The media types of responses that text is added to, besides `text/html`; `*` is every type.",
);

/// `add_before_body`, `add_after_body` and `addition_types` as one scope sees them.
#[derive(Debug)]
pub struct Addition {
    before: Bytes,
    after: Bytes,
    types: MediaTypes,
}

impl Feature for Addition {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&ADD_BEFORE_BODY, &ADD_AFTER_BODY, &ADDITION_TYPES];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Addition {
            before: scope.get(&ADD_BEFORE_BODY)?,
            after: scope.get(&ADD_AFTER_BODY)?,
            types: scope.get(&ADDITION_TYPES)?,
        })
    }
}

impl Addition {
    /// Whether nothing is ever added.
    pub fn is_off(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

/// Prepares the response for what will be added.
pub(super) fn begin(request: &mut Request) -> Option<Wrap> {
    let settings = &request.plan.addition;
    let response = &mut request.response;
    if settings.is_off()
        || response.status != 200
        || !settings.types.contain(&response.content_type)
    {
        return None;
    }
    response.clear_content_length();
    response.clear_ranges();
    response.weaken_etag();
    Some(Wrap {
        before: settings.before.clone(),
        after: settings.after.clone(),
    })
}

/// Puts the subrequests around a body.
pub(super) struct Wrap {
    before: Bytes,
    after: Bytes,
}

impl Wrap {
    /// Whether something is added behind the body. Such a body is never cut.
    pub(super) fn adds_behind(&self) -> bool {
        !self.after.is_empty()
    }

    /// The piece with what belongs before and after it.
    pub(super) fn apply(&mut self, piece: Piece) -> [Option<Piece>; 3] {
        let before = include(std::mem::take(&mut self.before));
        if matches!(piece, Piece::Last) {
            return [
                before,
                include(std::mem::take(&mut self.after)),
                Some(Piece::Last),
            ];
        }
        [before, Some(piece), None]
    }
}

fn include(uri: Bytes) -> Option<Piece> {
    (!uri.is_empty()).then(|| {
        Piece::Include(Box::new(Include {
            uri: uri.into(),
            args: Vec::new(),
            purpose: Purpose::Output,
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(wrap: &mut Wrap, pieces: Vec<Piece>) -> String {
        let mut shape = String::new();
        for piece in pieces
            .into_iter()
            .flat_map(|piece| wrap.apply(piece))
            .flatten()
        {
            match piece {
                Piece::Include(include) => {
                    shape.push_str(std::str::from_utf8(&include.uri).unwrap());
                }
                Piece::Bytes(bytes) => shape.push_str(std::str::from_utf8(&bytes).unwrap()),
                Piece::Last => shape.push('.'),
                _ => shape.push('?'),
            }
        }
        shape
    }

    #[test]
    fn wraps_the_body() {
        let text = || Piece::Bytes(Bytes::from_static(b"x"));
        let wrap = || Wrap {
            before: Bytes::from_static(b"/b"),
            after: Bytes::from_static(b"/a"),
        };
        assert_eq!(
            shape(&mut wrap(), vec![text(), text(), Piece::Last]),
            "/bxx/a."
        );
        assert_eq!(shape(&mut wrap(), vec![Piece::Last]), "/b/a.");
        let mut after = Wrap {
            before: Bytes::new(),
            after: Bytes::from_static(b"/a"),
        };
        assert_eq!(shape(&mut after, vec![text(), Piece::Last]), "x/a.");
    }
}
