//! One request of our own to one peer, by the settings of a location: what health checks ask.
//!
//! There is no client, and no other peer is tried. The answer must have come, as far as it is
//! wanted, within `proxy_read_timeout` of the request, however it is dribbled out.

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
use proxying::http2::whole::{self, NotRead};
use proxying::probe::{self, Doing, Keeping, ProbeError, ProbedPeer, Unanswered};
use proxying::response::{self, UpstreamResponse};
use proxying::upstream::Group;
use proxying::{READING_BODY, ssl};

/// How much of a body is read for nothing but the connection that it comes over, in bytes.
const DROPPED_MAX: usize = 256 * 1024;

/// What is asked, and whom.
pub struct Probe<'a> {
    /// The settings of the probe.
    pub proxy: &'a Proxy,
    /// The group that the peer is of.
    pub group: &'a Arc<Group>,
    /// Where it is asked.
    pub address: Address,
    /// The peer as `$upstream_addr` shows it.
    pub name: Bytes,
    /// The URI of the probe.
    pub uri: &'a [u8],
    /// The connection is to serve further probes.
    pub keeps: Option<Keeping>,
}

/// A connection that has served a probe and may serve another.
pub struct ProbeConnection {
    peer: UpstreamConnection,
    /// When it was made.
    pub since: Instant,
}

/// The answer, whose head has come.
pub struct Reply {
    peer: UpstreamConnection,
    since: Instant,
    answer: UpstreamResponse,
    remaining: Remaining,
    received: Buffer,
    /// Until when it must have come.
    deadline: Instant,
}

/// What of the body is still to come.
enum Remaining {
    Nothing,
    Length(u64),
    Chunked(Decoder),
    UntilClose,
    /// As its stream of HTTP/2 says.
    Stream,
}

impl Probe<'_> {
    fn asking(&self) -> ProbedPeer<'_> {
        ProbedPeer {
            group: self.group,
            address: &self.address,
            passing: &self.proxy.settings.passing,
        }
    }

    /// Asks, over a connection that has been kept where there is one.
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
            // It may have ended meanwhile, which says nothing of the peer.
            match self.talk(request, peer, since, &outgoing).await {
                Err(ProbeError { cause, .. }) if cause == Causes::ERROR => {}
                outcome => return outcome.map_err(Unanswered::from),
            }
        }
        let (outgoing, reach) = self.outgoing(request).await?;
        let peer = self.asking().connect(request, &reach).await?;
        let talked = self.talk(request, peer, engine::now(), &outgoing).await;
        talked.map_err(Unanswered::from)
    }

    /// The same by HTTP/2.
    async fn ask_by_http2(&self, request: &mut Request) -> Result<Reply, Unanswered> {
        let settings = &self.proxy.settings;
        let (target, reach) = self.begin(request).await?;
        let head = head::write_own_http2(request, settings, &target, self.uri);
        let conversation = Http2Dialogue::new(&settings.passing, &head, false, &RequestBody::None);
        let asking = self.asking();
        let mut peer = asking.connect(request, &reach).await?;
        probe::keep(&mut peer, self.keeps, &reach);
        let talked = asking.talk(request, peer, &conversation).await;
        let (peer, answer, deadline) = talked?;
        response::remember(request, &answer.read.head);
        Ok(Reply {
            remaining: Remaining::Stream,
            peer,
            since: deadline, // it is kept by the thread, not here
            answer: answer.read,
            received: Buffer::empty(),
            deadline,
        })
    }

    /// The request, and what its connection is made by. The tries of the request begin anew.
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

    /// Whom it goes to, and what its connection is made by. The tries of the request begin anew.
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
            // It comes for no client.
            introduction: introduction(settings.proxy_protocol, None),
            is_shared,
            terms: Bytes::new(),
        };
        reach.terms = probe::terms(self.keeps, self.group, &reach);
        Ok((target, reach))
    }

    /// Sends the request and reads the head of the answer.
    async fn talk(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        since: Instant,
        outgoing: &Outgoing,
    ) -> Result<Reply, ProbeError> {
        let settings = &self.proxy.settings;
        let conversation = Http1Dialogue { settings, outgoing };
        let asking = self.asking();
        let (peer, mut answer, deadline) = asking.talk(request, peer, &conversation).await?;
        response::remember(request, &answer.head);
        // What a client gets as it is (HTTP/0.9) says nothing of how the peer is; that it is none
        // has been logged.
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

    /// The values of the fields of this name, in any case.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let bytes = &self.answer.head.bytes;
        let fields = self.answer.head.fields().iter();
        let named = fields.filter(move |field| field.name(bytes).eq_ignore_ascii_case(name));
        named.map(move |field| field.value(bytes))
    }

    /// The next part of the body; `None` at its end. Why there is none has been logged.
    pub async fn read(&mut self, request: &mut Request) -> Result<Option<Bytes>, Doing> {
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
                    Err(NotRead { timed_out: true }) => {
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

    /// What of the received bytes comes next, empty where they hold only framing; `None` where that
    /// is wrong.
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

    /// Its connection, where that may serve another probe: the answer has come whole, and nothing
    /// behind it. What is left of the body is read, if it is not too long for that.
    pub async fn finish(mut self, request: &mut Request) -> Option<ProbeConnection> {
        let mut dropped = 0;
        while let Some(part) = self.read(request).await.ok()? {
            dropped += part.len();
            if dropped > DROPPED_MAX {
                return None;
            }
        }
        if self.peer.shared().is_some() {
            return None; // the thread keeps it
        }
        let is_whole = matches!(self.remaining, Remaining::Nothing) && self.received.is_empty();
        let goes_on = self.peer.asked && self.peer.early_end.is_none() && self.answer.keeps_alive();
        (is_whole && goes_on).then_some(ProbeConnection {
            peer: self.peer,
            since: self.since,
        })
    }
}
