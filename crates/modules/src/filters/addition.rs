//! Text from other URIs before and after a response: `add_before_body`, `add_after_body`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_addition_module.html>

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::Module;
use http::request::Request;
use http::response::chain::{BodyFilter, Chain, FilterRejection, HeadFilter};
use http::response::piece::{Include, Piece, Purpose};

use super::{MediaTypes, media_types};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Declares the directive `add_before_body URI`.
pub static ADD_BEFORE_BODY: Setting<Bytes> = Setting::new(
    "add_before_body",
    &["uri"],
    parse::bytes,
)
.contexts(HSL)
.default("\"\"")
.manual("Sends the response of a subrequest to `uri` before the body. An empty string: nothing.");

/// Declares the directive `add_after_body URI`.
pub static ADD_AFTER_BODY: Setting<Bytes> = Setting::new("add_after_body", &["uri"], parse::bytes)
    .contexts(HSL)
    .default("\"\"")
    .manual(
        "Sends the response of a subrequest to `uri` after the body. An empty string: nothing.",
    );

/// Declares the directive `addition_types TYPE…`.
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

/// `add_before_body`, `add_after_body` and `addition_types` in one scope.
#[derive(Debug)]
pub struct Addition {
    /// The URI of `add_before_body`; empty if there is none.
    before: Bytes,
    /// The URI of `add_after_body`; empty if there is none.
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

impl Module for Addition {
    const TASKS: &'static [Task] =
        &[Task::of(TaskKind::Body, &["add_before_body", "add_after_body"]).listed(2)];

    fn is_off(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }
}

impl HeadFilter for Addition {
    fn applies_to(&self, request: &Request) -> bool {
        let response = &request.response;
        request.is_main() && response.status == 200 && self.types.contain(&response.content_type)
    }

    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        let response = &mut request.response;
        response.clear_content_length();
        response.clear_ranges();
        response.weaken_etag();
        chain.push(Wrap {
            before: self.before.clone(),
            after: self.after.clone(),
        });
        Ok(())
    }
}

/// Adds the includes before and after a body.
struct Wrap {
    before: Bytes,
    after: Bytes,
}

impl BodyFilter for Wrap {
    fn needs_bytes(&self) -> bool {
        false
    }

    /// A part at the end may be added at once, since ranges of such a body are never served.
    fn appends_to_body(&self) -> bool {
        !self.after.is_empty()
    }

    fn apply(&mut self, _: &mut Request, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        out.extend(include(std::mem::take(&mut self.before)));
        if matches!(piece, Piece::Last) {
            out.extend(include(std::mem::take(&mut self.after)));
        }
        out.push(piece);
        Ok(())
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
    use http::testing::with_request;

    use super::*;

    fn shape(wrap: &mut Wrap, pieces: Vec<Piece>) -> String {
        let mut shape = String::new();
        let out = with_request(|request| {
            let mut out = Vec::new();
            for piece in pieces {
                wrap.apply(request, piece, &mut out).unwrap();
            }
            out
        });
        for piece in out {
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
