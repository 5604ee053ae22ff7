//! Applications whose requests have a head and then the body as it is, and whose answers are a head of CGI or of HTTP and then a body up
//! to its length or to the end of the connection: uwsgi and SCGI. A connection serves one request.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Fault, ScopeRef, Word};
use engine::Buffer;
use framework::compile::Compiler;
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Content, Handle, Ran};
use http::request::{Request, Step};
use proto::cgi::{self, Form};
use proto::header::Known;
use proto::method::Method;

use super::Outgoing;
use crate::passing::asking::{Answered, Question, ask_upstream};
use crate::passing::attempts::Attempts;
use crate::passing::connection::UpstreamConnection;
use crate::passing::deliver::Delivery;
use crate::passing::destination::{Destination, Schemes};
use crate::passing::family::Causes;
use crate::passing::response::{
    READING, Reading, UpstreamResponse, bad, examine, note_head, refuse_upgrade, too_big,
};
use crate::passing::rewriting::Unchanged;
use crate::passing::sending::{Asked, HeadReader, as_it_came};
use crate::passing::settings::Passing;
use crate::passing::ssl::UpstreamTls;
use crate::passing::tries::{AttemptError, Conversation};
use crate::passing::tunnel;

/// A protocol of that kind, with what a scope says of it.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// What a scope says of asking, whatever is spoken.
    fn passing(&self) -> &Arc<Passing>;

    /// Writes the head of a request; where it cannot be written the status to answer with, and the log has been told.
    fn write(&self, request: &mut Request) -> Result<Bytes, u16>;
}

/// `uwsgi_pass` or `scgi_pass` of a location or an `if`.
pub(crate) struct Pass<P> {
    protocol: Arc<P>,
    destination: Destination,
    /// TLS, where the address may ask for it.
    tls: Option<Arc<UpstreamTls>>,
    place: Bytes,
}

/// What answers where this address is written; `tls` compiles what holds for peers that speak TLS, where some may.
pub(crate) fn content<P: Protocol>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    address: &Word,
    schemes: &'static Schemes,
    protocol: Arc<P>,
    tls: Option<&dyn Fn() -> Result<Arc<UpstreamTls>, Fault>>,
) -> Result<Content, Fault> {
    compiler.directory(&protocol.passing().buffers.limits.directory.path);
    let destination = Destination::compile(compiler, address, schemes)?;
    let adds_slash = destination.is_fixed();
    let handler = Pass {
        protocol,
        tls: match tls {
            Some(compile) if destination.may_be_secure() => Some(compile()?),
            _ => None,
        },
        destination,
        place: scope.place(&["listen", "server_name"]).into(),
    };
    Ok(Content {
        stays_in_limit_except: true,
        adds_slash,
        ..Content::of(handler)
    })
}

impl<P: Protocol> Handle for Pass<P> {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve<P: Protocol>(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &Pass<P>,
) -> Result<Step, Abort> {
    let passing = pass.protocol.passing();
    let found = match pass.destination.find(request, Level::Error) {
        Ok(found) => found,
        Err(status) => {
            Attempts::enter(request);
            return Ok(Step::Finish(status));
        }
    };
    // The application is told a length before the body comes, and of chunks that is not known.
    let stream = !passing.request_buffering
        && passing.pass_request_body
        && request.is_main()
        && !request.body.chunked();
    let read = match stream {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => return failed.map_or_else(Err, |status| Ok(Step::Finish(status))),
    };
    Attempts::begin_anew(request);
    let secured = match &pass.tls {
        Some(tls) if found.scheme.is_secure => match tls.prepare(request, &found.address).await {
            Ok(secured) => Some(secured),
            Err(status) => return Ok(Step::Finish(status)),
        },
        _ => None,
    };
    let head = match pass.protocol.write(request) {
        Ok(head) => head,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let outgoing = Outgoing { head, begun };
    let question = Question {
        passing,
        found,
        secured,
        is_shared: false,
        place: &pass.place,
        conversation: UnframedConversation {
            passing,
            outgoing: &outgoing,
        },
    };
    let Answered {
        mut selection,
        mut peer,
        answer,
    } = match ask_upstream(request, exchange, question).await? {
        Ok(answered) => answered,
        Err(step) => return Ok(step),
    };
    let delivery = Delivery {
        passing,
        rewriting: &Unchanged,
        is_head: request.method == Method::Head,
    };
    let step = delivery.intercept(request, &mut selection, &mut peer, &answer.head);
    if step.is_none() && answer.head.is_upgrade() {
        peer.at_end = selection.at_end(request);
        return match request.header(Known::Upgrade).is_some() {
            true => tunnel::upgrade(request, exchange, passing, peer, answer).await,
            false => Ok(refuse_upgrade(request)),
        };
    }
    let step = step.or_else(|| delivery.apply(request, &mut selection, &mut peer, &answer.head));
    if let Some(step) = step {
        if let Some(asked) = &request.upstream {
            asked.end();
        }
        return Ok(step);
    }
    Ok(delivery.deliver(request, peer, answer, false))
}

/// A request and its answer, up to the end of the answer's head.
struct UnframedConversation<'a> {
    passing: &'a Passing,
    outgoing: &'a Outgoing,
}

impl Conversation for UnframedConversation<'_> {
    type Answer = UpstreamResponse;

    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut reader = UnframedReader::default();
        let mut asked = Asked::new(self.passing, peer, &mut reader);
        let queued = self.queue(request, exchange, &mut asked).await;
        let read = asked.read_head(request, exchange, queued).await;
        reader.reading.end_as(read, request)
    }

    fn status(&self, answer: &UpstreamResponse) -> Option<u16> {
        Some(answer.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        self.outgoing.begun.is_none()
    }
}

impl UnframedConversation<'_> {
    /// Queues head and body.
    async fn queue(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &mut Asked<'_, UnframedReader>,
    ) -> Result<(), AttemptError> {
        asked.push_head(&self.outgoing.head);
        match &self.outgoing.begun {
            _ if !self.passing.pass_request_body => Ok(()),
            None => asked.push_stored_body(request, exchange).await,
            Some(begun) => {
                let framing = as_it_came(request);
                asked.stream_body(request, exchange, begun, framing).await
            }
        }
    }
}

/// Reads the head of the answer.
#[derive(Default)]
struct UnframedReader {
    /// The head, and what has come behind it.
    reading: Reading,
}

impl HeadReader for UnframedReader {
    fn take(
        &mut self,
        request: &mut Request,
        _: &mut Exchange,
        passing: &Passing,
        mut received: Buffer,
    ) -> Result<bool, AttemptError> {
        let reading = &mut self.reading;
        reading.note_received(received.len(), request, passing);
        let parsed = reading.parse(&received, passing, |bytes, head| {
            cgi::parse(bytes, head, Form::StatusLineOrFields)
        });
        examine(request, passing, reading);
        match parsed {
            Ok(Some(read)) => {
                received.advance(read);
                reading.rest = received;
                note_head(request, reading.head.status());
                Ok(true)
            }
            Ok(None) if reading.received >= passing.buffer_size => Err(too_big(request)),
            Ok(None) => Ok(false),
            Err(error) => {
                let text = error.log_text(&reading.bytes);
                log::error!(request, Error, "{} {READING}", log::Printable(&text));
                Err(bad(Causes::INVALID_HEADER))
            }
        }
    }
}
