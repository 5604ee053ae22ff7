//! One request that the server itself sends to one peer, with the `proxy_*` settings of a location:
//! the probe of a health check.
//!
//! There is no client, and a failed probe is not retried on another peer. `proxy_read_timeout`
//! limits the time from the request to the last byte that the check wants, so that a peer that
//! sends byte by byte cannot prolong a probe.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use engine::Buffer;
use engine::net::Address;
use http::request::Request;
use proto::h1::Version;
use proto::h1::chunked::Decoder;
use proto::h1::response::BodyFraming;

use super::settings::HttpVersion;
use super::target::{ProxyTarget, Scheme};
use super::{Http1Dialogue, Outgoing, Proxy, begin, head};
use proxying::activity::READING;
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, introduction};
use proxying::failures::{AttemptError, failed, note};
use proxying::family::Causes;
use proxying::http2::dialogue::Http2Dialogue;
use proxying::http2::upload::RequestBody;
use proxying::http2::whole::{self, WholeReadError};
use proxying::probe::{self, ProbeActivity, ProbeError, ProbeReuse, ProbedPeer, Unanswered};
use proxying::response::{self, UpstreamResponse};
use proxying::upstream::Group;
use proxying::{READING_BODY, ssl};

/// Bytes of a body that are read and discarded at most, in order to reuse the connection.
const DISCARDED_MAX: usize = 256 * 1024;

/// A probe: the request and the peer.
pub struct Probe<'a> {
    /// The `proxy_pass` whose settings the probe uses.
    pub proxy: &'a Proxy,
    /// The group of the peer.
    pub group: &'a Arc<Group>,
    /// The address of the peer.
    pub address: Address,
    /// The peer as `$upstream_addr` shows it.
    pub name: Bytes,
    /// The URI of the probe.
    pub uri: &'a [u8],
    /// Which later probes may reuse the connection; `None` if none may.
    pub keeps: Option<ProbeReuse>,
}

/// A connection that has served a probe and may serve another.
pub struct ProbeConnection {
    peer: UpstreamConnection,
    /// When the connection was established.
    pub since: Instant,
}

/// A response whose head has been received.
pub struct Reply {
    peer: UpstreamConnection,
    /// When the connection was established. Unused for HTTP/2.
    since: Instant,
    answer: UpstreamResponse,
    remaining: Remaining,
    /// Received bytes of the response that follow the head and have not been decoded.
    received: Buffer,
    /// When the response must be complete.
    deadline: Instant,
}

/// The part of the body that has not been received yet.
enum Remaining {
    Nothing,
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    /// Until END_STREAM (HTTP/2).
    Stream,
}

impl Probe<'_> {
    /// The peer and the settings, in the form that `proxying::probe` takes.
    fn probed(&self) -> ProbedPeer<'_> {
        ProbedPeer {
            group: self.group,
            address: &self.address,
            passing: &self.proxy.settings.passing,
        }
    }

    /// Sends the probe, over the kept connection if there is one, and reads the response head.
    pub async fn ask(
        &self,
        request: &mut Request,
        kept: Option<ProbeConnection>,
    ) -> Result<Reply, Unanswered> {
        if self.proxy.settings.version == HttpVersion::Http2 {
            return self.ask_by_http2(request).await;
        }
        if let Some(ProbeConnection { mut peer, since }) = kept {
            (peer.early_end, peer.asked) = (None, false);
            let (outgoing, _) = self.outgoing(request).await?;
            // A kept connection may have been closed meanwhile, which says nothing about the peer's
            // health: on an error, connect anew.
            match self.talk(request, peer, since, &outgoing).await {
                Err(ProbeError { cause, .. }) if cause == Causes::ERROR => {}
                outcome => return outcome.map_err(Unanswered::from),
            }
        }
        let (outgoing, reach) = self.outgoing(request).await?;
        let peer = self.probed().connect(request, &reach).await?;
        let talked = self.talk(request, peer, engine::now(), &outgoing).await;
        talked.map_err(Unanswered::from)
    }

    /// Sends the probe over HTTP/2 and reads the response head.
    async fn ask_by_http2(&self, request: &mut Request) -> Result<Reply, Unanswered> {
        let settings = &self.proxy.settings;
        let (target, reach) = self.begin(request).await?;
        let head = head::write_own_http2(request, settings, &target, self.uri);
        let dialogue = Http2Dialogue::new(&settings.passing, &head, false, &RequestBody::None);
        let probed = self.probed();
        let mut peer = probed.connect(request, &reach).await?;
        probe::keep(&mut peer, self.keeps, &reach);
        let talked = probed.talk(request, peer, &dialogue).await;
        let (peer, answer, deadline) = talked?;
        response::remember(request, &answer.read.head);
        Ok(Reply {
            remaining: Remaining::Stream,
            peer,
            since: deadline, // unused: the pool of the thread keeps the connection
            answer: answer.read,
            received: Buffer::empty(),
            deadline,
        })
    }

    /// The request as bytes of HTTP/1, and the parameters of its connection. Resets the attempts of
    /// `request`.
    async fn outgoing(
        &self,
        request: &mut Request,
    ) -> Result<(Outgoing, ConnectTarget), Unanswered> {
        let (target, reach) = self.begin(request).await?;
        let settings = &self.proxy.settings;
        let keeps = self.keeps.is_some();
        let outgoing = Outgoing {
            head: head::write_own(request, settings, &target, self.uri, keeps).into(),
            upgrade: false,
            begun: None,
        };
        Ok((outgoing, reach))
    }

    /// The target of the probe, and the parameters of its connection. Resets the attempts of
    /// `request`.
    async fn begin(
        &self,
        request: &mut Request,
    ) -> Result<(Arc<ProxyTarget>, ConnectTarget), Unanswered> {
        let settings = &self.proxy.settings;
        let target = self.proxy.target(request);
        let target = target.map_err(|_| Unanswered::NotAsked)?;
        begin(request, &target);
        probe::begin(request, &self.name);
        let secured = match (&self.proxy.tls, target.scheme) {
            (Some(tls), Scheme::Https) => {
                let secured = ssl::prepare(tls, request, &target.host).await;
                Some(Box::new(secured.map_err(|_| Unanswered::NotAsked)?))
            }
            _ => None,
        };
        let is_shared = settings.version == HttpVersion::Http2;
        let mut reach = ConnectTarget {
            scheme: target.scheme.text(),
            uri: Bytes::copy_from_slice(self.uri),
            socket: settings.passing.socket.evaluate(request),
            secured,
            // No client address: the probe is sent on behalf of no client.
            introduction: introduction(settings.proxy_protocol, None),
            is_shared,
            terms: Bytes::new(),
        };
        reach.terms = probe::terms(self.keeps, self.group, &reach);
        Ok((target, reach))
    }

    /// Sends the request over HTTP/1 and reads the response head.
    async fn talk(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        since: Instant,
        outgoing: &Outgoing,
    ) -> Result<Reply, ProbeError> {
        let settings = &self.proxy.settings;
        let dialogue = Http1Dialogue { settings, outgoing };
        let probed = self.probed();
        let (peer, mut answer, deadline) = probed.talk(request, peer, &dialogue).await?;
        response::remember(request, &answer.head);
        // A client would get a response without a status line as it is (HTTP/0.9). For a probe it
        // is an invalid response; the parser has logged that.
        if answer.head.version() == Version::Http09 {
            return Err(ProbeError {
                cause: Causes::INVALID_HEADER,
                doing: READING,
            });
        }
        let received = std::mem::take(&mut answer.rest);
        Ok(Reply {
            remaining: match answer.head.body(false) {
                BodyFraming::None | BodyFraming::Length(0) => Remaining::Nothing,
                BodyFraming::Length(length) => Remaining::Length(length),
                BodyFraming::Chunked => Remaining::Chunked(Decoder::new()),
                BodyFraming::UntilClose => Remaining::UntilClose,
            },
            peer,
            since,
            answer,
            received,
            deadline,
        })
    }
}

impl Reply {
    /// The status of the reply.
    pub fn status(&self) -> u16 {
        self.answer.head.status()
    }

    /// The values of the header fields of this name, which is compared without regard to case.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let bytes = &self.answer.head.bytes;
        let fields = self.answer.head.fields().iter();
        let named = fields.filter(move |field| field.name(bytes).eq_ignore_ascii_case(name));
        named.map(move |field| field.value(bytes))
    }

    /// The next part of the body; `None` at its end. An error has been logged.
    pub async fn read(&mut self, request: &mut Request) -> Result<Option<Bytes>, ProbeActivity> {
        loop {
            if matches!(self.remaining, Remaining::Nothing) {
                note(request, |attempt, began| {
                    attempt.response_time = began.elapsed()
                });
                return Ok(None);
            }
            if matches!(self.remaining, Remaining::Stream) {
                let part = whole::read_part(request, &mut self.peer, self.deadline).await;
                match part {
                    Ok(None) => self.remaining = Remaining::Nothing,
                    Ok(part) => return Ok(part),
                    Err(WholeReadError { timed_out: true }) => {
                        return Err(ProbeError::timed_out(request, READING_BODY).doing);
                    }
                    Err(_) => return Err(READING_BODY),
                }
                continue;
            }
            if self.received.is_empty() {
                match self.peer.stream().recv(Some(self.deadline)).await {
                    Ok(buffer) if buffer.is_empty() => {
                        if matches!(self.remaining, Remaining::UntilClose) {
                            self.remaining = Remaining::Nothing;
                            continue;
                        }
                        logs::error!(
                            request,
                            Error,
                            "upstream prematurely closed connection {READING_BODY}"
                        );
                        return Err(READING_BODY);
                    }
                    Ok(buffer) => self.received = buffer,
                    Err(error) => {
                        let failure = failed(request, &error, "recv()", READING_BODY);
                        return Err(ProbeError::of(request, AttemptError::Failed(failure)).doing);
                    }
                }
                continue;
            }
            let part = self.take().ok_or_else(|| {
                logs::error!(
                    request,
                    Error,
                    "upstream sent invalid chunked response {READING_BODY}"
                );
                READING_BODY
            })?;
            if !part.is_empty() {
                return Ok(Some(part));
            }
        }
    }

    /// Takes the next part of the body out of the received bytes. The part is empty if they hold
    /// only framing; `None` if the chunked framing is invalid.
    fn take(&mut self) -> Option<Bytes> {
        let (part, consumed) = match &mut self.remaining {
            Remaining::Nothing | Remaining::Stream => return Some(Bytes::new()),
            Remaining::UntilClose => (0..self.received.len(), self.received.len()),
            Remaining::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX);
                let taken = length.min(self.received.len());
                *left -= taken as u64;
                if *left == 0 {
                    self.remaining = Remaining::Nothing;
                }
                (0..taken, taken)
            }
            Remaining::Chunked(decoder) => {
                let decoded = decoder.decode(&self.received).ok()?;
                if decoded.done {
                    self.remaining = Remaining::Nothing;
                }
                (decoded.data, decoded.consumed)
            }
        };
        let bytes = self.received.get(part).map(Bytes::copy_from_slice);
        self.received.advance(consumed);
        Some(bytes.unwrap_or_default())
    }

    /// Reads the rest of the body, and returns the connection if another probe may reuse it: the
    /// response must be complete, with no bytes behind it. If more than `DISCARDED_MAX` bytes are
    /// left, the connection is not reused.
    pub async fn finish(mut self, request: &mut Request) -> Option<ProbeConnection> {
        let mut discarded = 0;
        while let Some(part) = self.read(request).await.ok()? {
            discarded += part.len();
            if discarded > DISCARDED_MAX {
                return None;
            }
        }
        if self.peer.shared().is_some() {
            return None; // the pool of the thread keeps the connection
        }
        let is_complete = matches!(self.remaining, Remaining::Nothing) && self.received.is_empty();
        let is_reusable =
            self.peer.asked && self.peer.early_end.is_none() && self.answer.keeps_alive();
        (is_complete && is_reusable).then_some(ProbeConnection {
            peer: self.peer,
            since: self.since,
        })
    }
}
