//! Applications whose requests are a head followed by the raw body, and whose responses are a head
//! of CGI or HTTP followed by a body up to its length or the end of the connection: uwsgi and SCGI.
//! A connection serves one request.

use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use conf::{Fault, ScopeRef, Word};
use engine::Buffer;
use framework::compile::Compiler;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{Content, MaybeFuture, PhaseHandler, Recall, RecalledResponse};
use http::request::{Request, Step};
use logs::Level;
use proto::cgi::{self, Form};
use proto::h1::response::BodyFraming;
use proto::header::KnownField;
use proto::method::Method;

use super::Outgoing;
use proxying::activity::READING;
use proxying::answer::AnswerHead;
use proxying::body::{BodyDelimiter, BodyPrefix};
use proxying::cache::{AnswerRules, CacheLookup, recall};
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, terms};
use proxying::deliver::Delivery;
use proxying::destination::{Destination, PeerTarget, Schemes};
use proxying::driver::{self, BodyReading, PeerOptions, SentRequest};
use proxying::failures::AttemptError;
use proxying::family::Causes;
use proxying::peer_attempts::Dialogue;
use proxying::request_framing::client_framing;
use proxying::response::{
    ResponseHeadReader, UpstreamResponse, bad, examine, note_head, refuse_upgrade, too_big,
};
use proxying::sending::{HeadReader, RequestInFlight};
use proxying::settings::PassSettings;
use proxying::ssl::UpstreamTls;
use proxying::tunnel;
use proxying::upstream::Group;

/// A protocol whose requests and responses have no frames, with the settings of a scope.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// The settings of the scope that are common to all protocols.
    fn passing(&self) -> &Arc<PassSettings>;

    /// Writes the head of a request. If that fails, returns the status of the response; the error
    /// has been logged.
    fn write(&self, request: &mut Request, lookup: Option<&CacheLookup>) -> Result<Bytes, u16>;
}

/// `uwsgi_pass` or `scgi_pass` of a location or an `if`.
pub(crate) struct Pass<P> {
    protocol: Arc<P>,
    destination: Destination,
    /// TLS settings, if the address may need TLS.
    tls: Option<Arc<UpstreamTls>>,
    /// Identifies the scope. Different scopes do not share connections, unless the group allows it.
    place: Bytes,
}

/// Makes the content handler for this address; `tls` compiles the TLS settings, if peers may need
/// TLS.
pub(crate) fn content<P: Protocol>(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    address: &Word,
    schemes: &'static Schemes,
    protocol: Arc<P>,
    tls: Option<&dyn Fn() -> Result<Arc<UpstreamTls>, Fault>>,
) -> Result<Content, Fault> {
    compiler.require_directory(&protocol.passing().buffers.limits.directory.path);
    let destination = Destination::compile(compiler, address, schemes)?;
    let adds_slash = destination.is_fixed();
    let recalls = destination.is_fixed() && protocol.passing().may_recall();
    let handler = Arc::new(Pass {
        protocol,
        tls: match tls {
            Some(compile) if destination.may_be_secure() => Some(compile()?),
            _ => None,
        },
        destination,
        place: scope.place(&["listen", "server_name"]).into(),
    });
    let recall = recalls.then(|| Arc::clone(&handler) as Arc<dyn Recall>);
    Ok(Content {
        inherited_by_limit_except: true,
        adds_slash,
        recall,
        ..Content::shared(handler)
    })
}

impl<P: Protocol> PhaseHandler for Pass<P> {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        request.start_background();
        MaybeFuture::wait(driver::pass_on(request, exchange, self))
    }
}

impl<P: Protocol> Recall for Pass<P> {
    fn key(&self, request: &mut Request, key: &mut Vec<u8>) -> bool {
        recall::key(request, self.protocol.passing(), |_, _| {}, key)
    }

    fn recall(&self, request: &mut Request, key: &[u8]) -> Option<RecalledResponse> {
        recall::answer(request, &AnswerRules::plain(self.protocol.passing()), key)
    }
}

impl<P: Protocol> driver::Protocol for Pass<P> {
    type Target = PeerTarget;
    type Outgoing = Outgoing;
    type Dialogue<'a> = UnframedDialogue<'a>;
    type Answer = UpstreamResponse;

    fn peer_options(&self) -> PeerOptions<'_> {
        PeerOptions {
            tls: self.tls.as_deref(),
            ..PeerOptions::in_the_clear(self.protocol.passing())
        }
    }

    fn find(&self, request: &mut Request) -> Result<PeerTarget, u16> {
        self.destination.find(request, Level::Error)
    }

    fn reading(&self, request: &Request, _: &PeerTarget) -> BodyReading {
        let passing = self.protocol.passing();
        // The head contains the length of the body, which is not known for chunks.
        let stream = !passing.request_buffering
            && passing.pass_request_body
            && request.is_main()
            && !request.body.chunked();
        BodyReading::of_stream(stream)
    }

    fn cached(&self) -> Option<&Arc<PassSettings>> {
        Some(self.protocol.passing())
    }

    async fn write(
        &self,
        request: &mut Request,
        _: &PeerTarget,
        begun: Option<Pieces>,
        lookup: Option<&CacheLookup>,
    ) -> Result<Outgoing, u16> {
        let head = self.protocol.write(request, lookup)?;
        Ok(Outgoing {
            head,
            is_head: request.method == Method::Head,
            reads_body_of_head: lookup.is_some_and(CacheLookup::reads_body_of_head),
            begun,
        })
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.place, reach.scheme, group, reach)
    }

    fn dialogue<'a>(&'a self, _: &'a PeerTarget, outgoing: &'a Outgoing) -> UnframedDialogue<'a> {
        UnframedDialogue {
            passing: self.protocol.passing(),
            outgoing,
        }
    }

    fn head(answer: &UpstreamResponse) -> Option<&AnswerHead> {
        Some(&answer.head)
    }

    fn delivery(&self, outgoing: &Outgoing) -> Option<Delivery<'_>> {
        let passing = self.protocol.passing();
        Some(Delivery::unchanged(passing, outgoing.is_head))
    }

    async fn upgrade(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        _: &Outgoing,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
    ) -> Result<Step, Abort> {
        if request.header(KnownField::Upgrade).is_none() {
            return Ok(refuse_upgrade(request));
        }
        tunnel::upgrade(request, exchange, self.protocol.passing(), peer, answer).await
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        sent: &SentRequest<PeerTarget, Outgoing>,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
    ) -> MaybeFuture<'a> {
        let Outgoing {
            is_head,
            reads_body_of_head,
            ..
        } = sent.outgoing;
        let delivery = Delivery::unchanged(self.protocol.passing(), is_head);
        let has_none = matches!(answer.head.status(), 204 | 304);
        if is_head && reads_body_of_head && !has_none {
            let arrived = BodyPrefix {
                rest: answer.rest,
                beyond: answer.beyond,
                may_reuse: false,
            };
            let delimited = BodyDelimiter::Http(BodyFraming::UntilClose);
            let step = delivery.respond(request, peer, &answer.head, delimited, arrived);
            return MaybeFuture::Now(Ok(step));
        }
        MaybeFuture::Now(Ok(delivery.deliver(request, peer, answer, false)))
    }
}

/// Sends a request and reads the head of the response.
pub(crate) struct UnframedDialogue<'a> {
    /// The settings that all proxying modules have.
    passing: &'a PassSettings,
    outgoing: &'a Outgoing,
}

impl Dialogue for UnframedDialogue<'_> {
    type Answer = UpstreamResponse;

    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut reader = UnframedReader::default();
        let mut asked = RequestInFlight::new(self.passing, peer, &mut reader);
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

impl UnframedDialogue<'_> {
    /// Queues the head and the body.
    async fn queue(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &mut RequestInFlight<'_, UnframedReader>,
    ) -> Result<(), AttemptError> {
        asked.push_head(&self.outgoing.head);
        match &self.outgoing.begun {
            _ if !self.passing.pass_request_body => Ok(()),
            None => asked.push_stored_body(request, exchange).await,
            Some(begun) => {
                let framing = client_framing(request);
                // Boxed, so that requests whose body is read first need no memory for this future.
                Box::pin(asked.stream_body(request, exchange, begun, framing)).await
            }
        }
    }
}

/// Reads the head of the response.
#[derive(Default)]
struct UnframedReader {
    /// The head, and the bytes received behind it.
    reading: ResponseHeadReader,
}

impl HeadReader for UnframedReader {
    fn take(
        &mut self,
        request: &mut Request,
        _: &mut Exchange,
        passing: &PassSettings,
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
                logs::error!(request, Error, "{} {READING}", logs::Printable(&text));
                Err(bad(Causes::INVALID_HEADER))
            }
        }
    }
}
