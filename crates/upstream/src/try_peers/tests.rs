//! Tests of the loop over peers, with a scripted protocol and without I/O.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{pending, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use engine::net::Address;
use logs::{ErrorLog, Level, Subject};

use super::{TryResult, try_peers, unless_gone};
use crate::balancer::Method;
use crate::caller::{
    AttemptError, AttemptFailure, AttemptStart, Caller, ConnectionRoom, PeerProtocol, RetryPolicy,
    Unanswered,
};
use crate::causes::Causes;
use crate::{Group, Peer, Roster, Selection};

/// How a peer behaves in an attempt.
#[derive(Clone, Copy)]
enum Does {
    /// Connecting to the peer fails.
    Refuse,
    /// The connection breaks after a part of the request was sent.
    Break,
    /// The peer responds with this status.
    Answer(u16),
    /// The proxy cannot open a socket.
    Nothing,
}

/// A caller that records the calls of its methods.
#[derive(Default)]
struct Teller {
    told: Vec<String>,
    changes_something: bool,
}

/// A client that is connected or has disconnected.
struct Client {
    has_gone: bool,
}

impl Subject for Teller {
    fn admits(&self, _: Level) -> bool {
        false
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {}
}

impl Caller for Teller {
    type Client = Client;

    type Gone = &'static str;

    async fn gone(client: &mut Client) -> &'static str {
        if client.has_gone {
            "gone"
        } else {
            pending().await
        }
    }

    fn left(&mut self, _: &Client, gone: &'static str, doing: &'static str) -> &'static str {
        self.told.push(format!("{gone} {doing}"));
        gone
    }

    fn chosen(&mut self, peer: &Peer) {
        self.told.push(format!("chosen {}", shown(&peer.name)));
    }

    fn try_begins(&mut self, attempt: AttemptStart<'_>) {
        self.told.push(format!("at {}", shown(attempt.name)));
    }

    fn turned_away(&mut self, _: &Bytes, _: u16, _: Option<Duration>) {}

    fn try_failed(&mut self, failure: &AttemptFailure) {
        self.told.push(format!("failed {}", failure.status));
    }

    fn changes_something(&self) -> bool {
        self.changes_something
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace("unix:", "")
}

/// A protocol whose attempts have the outcomes of `does`, in order.
struct Script {
    tries: RetryPolicy,
    does: RefCell<VecDeque<Does>>,
}

impl PeerProtocol<Teller> for Script {
    type Connection = Does;

    type Answer = u16;

    const READING: &'static str = "while reading";

    fn tries(&self) -> &RetryPolicy {
        &self.tries
    }

    async fn connect(
        &self,
        _: &mut Teller,
        _: &mut Client,
        _: &Address,
        _: ConnectionRoom,
    ) -> Result<(Does, bool), AttemptError<&'static str>> {
        let does = self.does.borrow_mut().pop_front().unwrap();
        match does {
            Does::Refuse => Err(failed(false)),
            Does::Nothing => Err(AttemptError::Refused(500)),
            does => Ok((does, false)),
        }
    }

    async fn talk(
        &self,
        _: &mut Teller,
        _: &mut Client,
        does: &mut Does,
    ) -> Result<u16, AttemptError<&'static str>> {
        match does {
            Does::Answer(status) => Ok(*status),
            _ => Err(failed(true)),
        }
    }

    fn status(&self, answer: &u16) -> Option<u16> {
        Some(*answer)
    }

    fn can_be_repeated(&self) -> bool {
        true
    }
}

fn failed(sent: bool) -> AttemptError<&'static str> {
    AttemptError::Failed(AttemptFailure {
        sent,
        ..AttemptFailure::new(Causes::ERROR, 502, "while trying")
    })
}

fn group(names: &[&str]) -> Arc<Group> {
    let peers = names
        .iter()
        .map(|name| Peer::new(Address::Unix((*name).into())));
    let roster = Roster::new(peers.collect(), vec![], Method::RoundRobin, vec![]);
    Arc::new(Group::new("u".into(), Arc::new(roster), None))
}

fn script<const N: usize>(next_upstream: Causes, does: [Does; N]) -> Script {
    Script {
        tries: RetryPolicy {
            connect_timeout: Duration::from_secs(1),
            send_timeout: Duration::from_secs(1),
            ignore_client_abort: false,
            next_upstream,
            next_upstream_tries: 0,
            next_upstream_timeout: Duration::ZERO,
        },
        does: RefCell::new(does.into()),
    }
}

/// The output of a future that must be ready at the first poll.
fn ended<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ended) => ended,
        Poll::Pending => panic!("it waits"),
    }
}

fn asked(group: &Arc<Group>, script: &Script, caller: &mut Teller) -> TryResult<Teller, Script> {
    let mut selection = Selection::new(group, script.tries.next_upstream_tries);
    let mut client = Client { has_gone: false };
    ended(try_peers(caller, &mut client, &mut selection, script))
}

/// The status of the response or, without a response, the status to answer with.
fn status(asked: TryResult<Teller, Script>) -> Result<u16, u16> {
    let answered = asked.unwrap();
    answered.map_or_else(|none| Err(none.status), |answered| Ok(answered.answer))
}

#[test]
fn the_next_peer_is_asked_and_has_what_is_asked_until_the_lease_ends() {
    let group = group(&["a", "b"]);
    let mut caller = Teller::default();
    let script = script(Causes::ERROR, [Does::Refuse, Does::Answer(200)]);
    let answered = asked(&group, &script, &mut caller).unwrap().ok().unwrap();
    let expected = ["chosen a", "at a", "failed 502", "chosen b", "at b"];
    assert_eq!(
        (answered.answer, &caller.told[..]),
        (200, &expected.map(String::from)[..])
    );
    let peers = group.peers();
    let [a, b] = [&peers.primary[0], &peers.primary[1]].map(|peer| peer.state());
    assert_eq!((a.fails(), a.connections()), (1, 0));
    assert_eq!((b.fails(), b.connections()), (0, 1));
    drop(answered);
    assert_eq!(b.connections(), 0);
}

#[test]
fn whether_another_is_asked_is_said_by_causes_and_by_what_may_have_changed() {
    let two = || group(&["a", "b"]);
    let once = |causes, first, changes_something| {
        let mut caller = Teller {
            changes_something,
            ..Teller::default()
        };
        let script = script(causes, [first, Does::Answer(200)]);
        status(asked(&two(), &script, &mut caller))
    };
    let (error, off) = (Causes::ERROR, Causes::OFF);
    assert_eq!(once(off, Does::Refuse, false), Err(502));
    assert_eq!(once(error, Does::Break, false), Ok(200));
    // A non-idempotent request has been sent, so it is not repeated by default.
    assert_eq!(once(error, Does::Break, true), Err(502));
    assert_eq!(
        once(error.with(Causes::NON_IDEMPOTENT), Does::Break, true),
        Ok(200)
    );
    assert_eq!(once(error, Does::Refuse, true), Ok(200));
    // A response with an error status.
    assert_eq!(once(error, Does::Answer(503), false), Ok(503));
    assert_eq!(once(Causes::HTTP_503, Does::Answer(503), false), Ok(200));
    // If no socket can be opened, no other peer is tried.
    assert_eq!(once(error, Does::Nothing, false), Err(500));
}

#[test]
fn peers_are_tried_as_often_as_may_be_and_as_there_are() {
    let mut caller = Teller::default();
    let refuses = script(Causes::ERROR, [Does::Refuse; 3]);
    let none = asked(&group(&["a", "b", "c"]), &refuses, &mut caller);
    let expected = Unanswered {
        status: 502,
        cause: Some(Causes::ERROR),
    };
    assert_eq!(none.unwrap().err(), Some(expected));
    assert_eq!(
        caller
            .told
            .iter()
            .filter(|told| told.starts_with("at "))
            .count(),
        3
    );
    let mut twice = script(Causes::ERROR, [Does::Refuse; 3]);
    twice.tries.next_upstream_tries = 2;
    let none = asked(&group(&["a", "b", "c"]), &twice, &mut Teller::default());
    assert_eq!((status(none), twice.does.borrow().len()), (Err(502), 1));
    // Peers that have failed are unavailable for a while, so the next request finds no peer.
    let known = group(&["a", "b"]);
    let refuses = script(Causes::ERROR, [Does::Refuse; 2]);
    assert_eq!(
        status(asked(&known, &refuses, &mut Teller::default())),
        Err(502)
    );
    let mut caller = Teller::default();
    let none = asked(&known, &script(Causes::ERROR, []), &mut caller);
    assert_eq!(
        none.unwrap().err().and_then(|none| none.cause),
        Some(Causes::NO_LIVE)
    );
    assert_eq!(caller.told, ["at u", "failed 502"]);
}

#[test]
fn a_client_that_goes_ends_what_is_waited_for() {
    let mut caller = Teller::default();
    let mut client = Client { has_gone: true };
    let doing = "while waiting";
    let left = ended(unless_gone(
        &mut caller,
        &mut client,
        false,
        doing,
        pending::<()>(),
    ));
    assert_eq!(
        (left, &caller.told[..]),
        (Err("gone"), &["gone while waiting".to_owned()][..])
    );
    let work = unless_gone(&mut caller, &mut client, true, doing, ready(1));
    assert_eq!((ended(work), caller.told.len()), (Ok(1), 1));
}
