//! `proxy_pass`: requests passed on to another HTTP server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. Caching is not here. `serve` is the way of a proxied request;
//! `settings` declares the directives (`family`: those that other modules have too), `target` reads the URL, `head` writes the upstream's
//! request, `tries` is the loop over peers, `response` reads the answer (`answer` is its head), `cookies` rewrites what that sets, `body` streams it
//! (at its `pace`, with its `trailers`) unless it is `whole` already, `store` keeps it, `tunnel` carries upgraded
//! connections; `connection` is one to a server, `probe` asks one on our own account. Which server of a group is asked is the business of `upstream`.

pub mod answer;
pub mod attempts;
pub(crate) mod body;
pub(crate) mod buffers;
pub(crate) mod connection;
mod cookies;
pub(crate) mod deliver;
pub(crate) mod destination;
pub(crate) mod family;
mod head;
mod pace;
pub(crate) mod passing;
pub mod probe;
pub(crate) mod response;
mod settings;
pub(crate) mod socket;
pub(crate) mod ssl;
pub(crate) mod store;
pub(crate) mod target;
mod trailers;
pub(crate) mod tries;
pub(crate) mod tunnel;
pub mod variables;
mod whole;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::net::Segment;
use engine::select::{Either, either};
use http::body as request_body;
use http::doing::WHILE_SENDING_ON;
use http::exchange::{Abort, Exchange};
use http::log;
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use proto::h1::response::ResponseBody;
use proto::header::Known;
use transport::Transport;

pub use cookies::DIRECTIVES as COOKIE_DIRECTIVES;
pub use settings::{BUFFER_DIRECTIVES, DIRECTIVES, Proxy, Settings, check, content, survey};
pub use ssl::DIRECTIVES as SSL_DIRECTIVES;

use attempts::{Attempts, ShownTarget, TARGET};
use body::Delimited;
use connection::{Home, UpstreamConnection, ends_of, introduction, terms};
use deliver::Delivery;
use family::Causes;
use passing::Passing;
use response::{Rewriting, UpstreamResponse};
use settings::HttpVersion;
use target::Scheme;
use tries::{Asking, AttemptError, Conversation, Reach, ask, client_left, failed, note};

/// Bytes queued for an upstream beyond which the client is not read on.
const BACKLOG_MAX: usize = 32 * 1024;

/// What ends a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What is done last.
pub(crate) const READING_BODY: &str = "while reading upstream";

/// What is done then, until the answer begins.
const SENDING: &str = "while sending request to upstream";

/// A request as peers get it.
struct Outgoing {
    head: Bytes,
    /// Whether it asks for another protocol, as the client's does.
    upgrade: bool,
    /// What of its body has been read; `None` where that is the whole, so that it can be sent
    /// again.
    begun: Option<Pieces>,
}

/// A request of HTTP/1 and its answer.
struct HttpConversation<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
}

impl Conversation for HttpConversation<'_> {
    type Answer = UpstreamResponse;

    /// Sends the request, reads the head of the answer.
    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        send(request, exchange, self.settings, peer, self.outgoing).await?;
        response::read(request, exchange, &self.settings.passing, peer).await
    }

    fn status(&self, answer: &UpstreamResponse) -> Option<u16> {
        Some(answer.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        self.outgoing.begun.is_none()
    }
}

/// Passes a request on and gives the answer back.
impl Handle for Proxy {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let target = match proxy.target(request) {
        Ok(target) => target,
        Err(status) => {
            // Both variables are there, and empty.
            Attempts::enter(request);
            request.pass.enter(&TARGET);
            return Ok(Step::Finish(status));
        }
    };
    // HTTP/1.0 knows no chunks: the length of a body must be known before it is sent.
    let framed = !request.body.chunked() || settings.version == HttpVersion::Http11;
    let stream = !settings.passing.request_buffering
        && settings.passes_body()
        && request.is_main()
        && framed;
    let read = match stream {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => {
            show(request, &target);
            return failed.map_or_else(Err, |status| Ok(Step::Finish(status)));
        }
    };
    begin(request, &target);
    pass_on(request, exchange, proxy, &target, begun).await
}

/// Ends what was asked of upstreams with a status; its page is what is being sent then.
pub(crate) fn finish(request: &mut Request, status: u16) -> Step {
    request.activity.doing = WHILE_SENDING_ON;
    Step::Finish(status)
}

/// Asks upstreams, and makes their answer the response.
async fn pass_on(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
    target: &target::Target,
    begun: Option<Pieces>,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let buffered = begun.is_none();
    let secured = match (&proxy.tls, target.scheme) {
        (Some(tls), Scheme::Https) => match tls.prepare(request, target).await {
            Ok(secured) => Some(secured),
            Err(status) => return Ok(finish(request, status)),
        },
        _ => None,
    };
    let written = match head::write(request, proxy, target, buffered) {
        Ok(written) => written,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let outgoing = Outgoing {
        head: written.head.clone(),
        upgrade: written.upgrade && request.header(Known::Upgrade).is_some(),
        begun,
    };
    let mut reach = Reach {
        scheme: target.scheme.text(),
        uri: written.head.slice(written.uri),
        socket: settings.passing.socket.of_request(request),
        secured,
        introduction: introduction(settings.proxy_protocol, ends_of(request)),
        terms: Bytes::new(),
    };
    let ignore_abort = settings.passing.tries.ignore_client_abort;
    let group = match target::locate(request, exchange, &target.upstream, ignore_abort).await {
        Ok(Ok(group)) => group,
        Ok(Err(status)) => return Ok(finish(request, status)),
        Err(_) => {
            log::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    reach.terms = terms(&proxy.place, b"", &group, &reach);
    let mut selection = group.select(request, settings.passing.tries.next_upstream_tries);
    let home = Home {
        local: Rc::clone(&request.local),
        group,
    };
    let asking = Asking {
        tries: settings.passing.tries,
        reach: &reach,
        conversation: HttpConversation {
            settings: &settings,
            outgoing: &outgoing,
        },
        home: &home,
    };
    let asked = ask(request, exchange, &mut selection, &asking).await?;
    let (mut peer, mut answer) = match asked {
        Ok(answered) => answered,
        Err(status) => return Ok(finish(request, status)),
    };
    let delivery = Delivery {
        passing: &settings.passing,
        rewriting: Rewriting {
            redirects: &proxy.redirects,
            cookies: Some(&settings.cookies),
        },
        is_head: head::is_head(request, &settings),
    };
    let is_head = delivery.is_head;
    if let Some(step) = delivery.intercept(request, &mut selection, &mut peer, &answer.head) {
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    if answer.head.is_upgrade() {
        peer.at_end = selection.at_end(request);
        return match outgoing.upgrade {
            true => tunnel::upgrade(request, exchange, &settings.passing, peer, answer).await,
            false => Ok(response::refuse_upgrade(request)),
        };
    }
    if let Some(step) = delivery.apply(request, &mut selection, &mut peer, &answer.head) {
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    let framing = answer.head.body(is_head);
    let mut rest = std::mem::take(&mut answer.rest);
    let said_too_much = matches!(framing, ResponseBody::None) && !rest.is_empty();
    if said_too_much {
        // No client waits for what follows such a head, and nothing will look at it.
        let length = std::mem::take(&mut rest).len() as u64;
        if !is_head {
            note(request, |attempt, _| attempt.response_length = length);
            body::told_excess(READING_BODY).write(request);
        }
    }
    let arrived = body::Arrived {
        rest,
        beyond: answer.beyond,
        may_go_on: answer.keeps_alive() && !said_too_much,
    };
    let delimited = Delimited::Http(framing);
    Ok(delivery.respond(request, peer, &answer.head, delimited, arrived))
}

/// Goes on with something else than the answer, whose head alone was of use.
fn leave(
    request: &Request,
    peer: UpstreamConnection,
    answer: &UpstreamResponse,
    is_head: bool,
    step: Step,
) -> Step {
    if let Some(asked) = &request.upstream {
        asked.end();
    }
    if answer.ends_with_head(is_head) {
        peer.done(answer.keeps_alive());
    }
    step
}

/// Tells `$proxy_host` and `$proxy_port` of a request that is not passed on after all.
fn show(request: &mut Request, target: &target::Target) {
    Attempts::enter(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}

/// Begins what `$upstream_*` tell: behind the tries of an earlier pass, if there was one.
fn begin(request: &mut Request, target: &target::Target) {
    Attempts::begin_anew(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}

/// Sends head and body. A peer that answers or closes meanwhile gets no more of the body; what it
/// has said shows when the answer is read.
async fn send(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    outgoing: &Outgoing,
) -> Result<(), AttemptError> {
    let mut sent = outgoing.head.len() as u64;
    peer.stream().push(Segment::Bytes(outgoing.head.clone()));
    peer.asked = true;
    let pushed = match &outgoing.begun {
        _ if !settings.passes_body() => Ok(()),
        None => push_stored_body(request, exchange, settings, peer, &mut sent).await,
        Some(begun) => {
            let passing = &settings.passing;
            stream_body(
                request, exchange, passing, peer, begun, &AsItCame, &mut sent,
            )
            .await
        }
    };
    note(request, |attempt, _| attempt.bytes_sent += sent);
    pushed?;
    peer.stream().start_send();
    wait_for_peer(request, exchange, &settings.passing, peer).await
}

/// How a protocol frames the client's body on its way to a peer.
pub(crate) trait BodyFraming {
    /// Queues parts of it; how many bytes that is.
    fn push(&self, request: &Request, stream: &Transport, parts: &[Bytes]) -> u64;

    /// Queues what ends it; how many bytes that is.
    fn end(&self, request: &Request, stream: &Transport) -> u64;
}

/// As the client framed it: what came at once is a chunk where that sends chunks.
struct AsItCame;

impl BodyFraming for AsItCame {
    fn push(&self, request: &Request, stream: &Transport, parts: &[Bytes]) -> u64 {
        push_parts(request, stream, parts)
    }

    fn end(&self, request: &Request, stream: &Transport) -> u64 {
        if !request.body.chunked() {
            return 0;
        }
        stream.push(Segment::Bytes(Bytes::from_static(LAST_CHUNK)));
        LAST_CHUNK.len() as u64
    }
}

/// Passes the client's body on as it comes, and adds the number of bytes to `sent`. What comes with the body's end leaves
/// together with it.
pub(crate) async fn stream_body(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
    begun: &[Bytes],
    framing: &impl BodyFraming,
    sent: &mut u64,
) -> Result<(), AttemptError> {
    // Small parts must not wait until the peer has confirmed those before them.
    peer.stream().set_nodelay(request.plan.core.tcp_nodelay);
    *sent += framing.push(request, peer.stream(), begun);
    let mut parts = Pieces::new();
    loop {
        peer.stream().start_send();
        parts.clear();
        let reading = request_body::read_some(request, exchange, &mut parts);
        let ended = match either(reading, peer.stream().recv(None)).await {
            Either::First(read) => read.map_err(|refused| match refused {
                Ok(status) => AttemptError::Refused(status),
                Err(abort) => AttemptError::Aborted(body_broken_off(request, abort)),
            })?,
            Either::Second(early) => {
                peer.early = Some(early);
                peer.asked = false;
                return Ok(());
            }
        };
        *sent += framing.push(request, peer.stream(), &parts);
        if ended {
            break;
        }
        wait_for_peer(request, exchange, passing, peer).await?;
        if peer.early.is_some() {
            peer.asked = false;
            return Ok(());
        }
    }
    *sent += framing.end(request, peer.stream());
    Ok(())
}

/// The client left while its body was being passed on: what it sent was no whole request.
fn body_broken_off(request: &mut Request, abort: Abort) -> Abort {
    let Abort::Closed(_) = &abort else {
        return abort;
    };
    log::error!(
        request,
        Info,
        "client prematurely closed connection {SENDING}"
    );
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed()
    });
    request.response.status = 400;
    Abort::Silently
}

/// Waits while the peer has too much to take already, and has not answered.
pub(crate) async fn wait_for_peer(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
) -> Result<(), AttemptError> {
    if peer.stream().backlog() <= BACKLOG_MAX || peer.early.is_some() {
        return Ok(());
    }
    let taken = either(peer.stream().drained(BACKLOG_MAX), peer.stream().recv(None));
    let taken = if passing.tries.ignore_client_abort {
        taken.await
    } else {
        match either(taken, exchange.client_gone()).await {
            Either::First(taken) => taken,
            Either::Second(abort) => {
                return Err(client_left(request, exchange, &abort, SENDING).into());
            }
        }
    };
    match taken {
        Either::First(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(
            AttemptError::Failed(failed(request, &error, "send()", SENDING)),
        ),
        Either::First(_) => Ok(()),
        Either::Second(early) => {
            peer.early = Some(early);
            Ok(())
        }
    }
}

/// What came of a streamed body at once, framed as the client framed it: one chunk.
fn push_parts(request: &Request, stream: &Transport, parts: &[Bytes]) -> u64 {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    let chunked = request.body.chunked() && length > 0;
    let line = proto::h1::chunked::ChunkLine::new(length);
    if chunked {
        stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
    }
    for part in parts {
        stream.push(Segment::Bytes(part.clone()));
    }
    if !chunked {
        return length;
    }
    stream.push(Segment::Bytes(Bytes::from_static(b"\r\n")));
    length + line.as_bytes().len() as u64 + 2
}

/// Sends a body that has been read as a whole, and adds the number of its bytes to `sent`. Of one that an upstream before this
/// one was given as it came nothing is left.
async fn push_stored_body(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    sent: &mut u64,
) -> Result<(), AttemptError> {
    if let Some(parts) = request.body.in_memory() {
        for part in parts {
            *sent += part.len() as u64;
            peer.stream().push(Segment::Bytes(part.clone()));
        }
    } else if let Some(file) = request.body.file().cloned() {
        let length = request.body.received();
        if peer.stream().is_secure() {
            push_file(request, exchange, settings, peer, &file, length).await?;
        } else {
            peer.stream().push(Segment::File {
                file,
                offset: 0,
                length,
            });
        }
        *sent += length;
    }
    Ok(())
}

/// Sends a file through TLS, as fast as the peer takes it.
async fn push_file(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &mut UpstreamConnection,
    file: &engine::file::File,
    length: u64,
) -> Result<(), AttemptError> {
    let mut offset = 0;
    while offset < length && peer.early.is_none() {
        let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
        let read = match file.read_at(offset, wanted).await {
            Ok(read) if !read.is_empty() => read,
            Ok(_) => return Err(AttemptError::Refused(500)), // the file is the request's alone
            Err(error) => {
                let error = log::Errno(&error);
                log::error!(request, Crit, "pread() failed {error} {SENDING}");
                return Err(AttemptError::Refused(500));
            }
        };
        offset += read.len() as u64;
        peer.stream().push(Segment::Bytes(read));
        peer.stream().start_send();
        wait_for_peer(request, exchange, &settings.passing, peer).await?;
    }
    peer.asked = offset == length;
    Ok(())
}
