//! Tests of selections: which peers requests get, with nginx's results.

mod health;
mod members;

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::balancer::{Bound, Method, Timed, Until};
use crate::{Group, Host, Peer, PeerSet, PeerSide, Peers, ResolvedAddress, Roster, Selection};

mod own;

fn peer(name: &str) -> Peer {
    Peer::new(Address::Unix(name.into()))
}

fn with(mut peer: Peer, change: impl FnOnce(&mut Peer)) -> Peer {
    change(&mut peer);
    peer
}

fn heavy(name: &str, weight: i64) -> Peer {
    with(peer(name), |peer| peer.weight = weight)
}

fn down(name: &str) -> Peer {
    with(peer(name), |peer| peer.down = true)
}

fn group_by(method: Method, primary: Vec<Peer>, backup: Vec<Peer>) -> Arc<Group> {
    let roster = Roster::new(primary, backup, method, Vec::new());
    Arc::new(Group::new("u".into(), Arc::new(roster), None))
}

fn group(primary: Vec<Peer>, backup: Vec<Peer>) -> Arc<Group> {
    group_by(Method::RoundRobin, primary, backup)
}

fn name(peer: Option<&Peer>) -> String {
    let path = peer.map(|peer| peer.name.to_vec()).unwrap_or_default();
    String::from_utf8(path).unwrap().replace("unix:", "")
}

/// `count` requests, each of which succeeds at once.
fn chosen(group: &Arc<Group>, now: Instant, count: usize) -> String {
    let mut all = String::new();
    for _ in 0..count {
        let mut selection = Selection::new(group, 0);
        all += &name(selection.next(now));
        selection.answered();
    }
    all
}

fn connections(group: &Group) -> Vec<usize> {
    let peers = group.peers();
    let peers = peers.iter();
    peers.map(|peer| peer.state().connections()).collect()
}

/// The sequence that nginx's own description of the algorithm shows.
#[test]
fn heavy_peers_are_spread() {
    let group = group(vec![heavy("a", 5), peer("b"), peer("c")], vec![]);
    assert_eq!(chosen(&group, Instant::now(), 14), "aabacaaaabacaa");
}

#[test]
fn a_request_tries_each_peer_once_then_the_backups() {
    let group = group(vec![peer("a"), down("x"), peer("b")], vec![peer("c")]);
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    assert_eq!(selection.tries_left(), 3);
    for expected in ["a", "b", "c"] {
        assert_eq!(name(selection.next(now)), expected);
        assert!(selection.failed(now).disabled);
    }
    assert_eq!(selection.tries_left(), 0);
    assert!(selection.next(now).is_none());
    // All peers are unavailable now, so the next request finds none.
    assert!(Selection::new(&group, 0).next(now).is_none());
    assert_eq!(Selection::new(&group, 2).tries_left(), 2);
}

#[test]
fn a_failed_peer_is_tried_again_after_its_time() {
    let group = group(vec![peer("a"), peer("b")], vec![]);
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "a");
    assert!(selection.failed(now).disabled);
    assert_eq!(name(selection.next(now)), "b");
    selection.answered();
    assert_eq!(chosen(&group, now + Duration::from_secs(10), 3), "bbb");
    // Its weight was taken whole and comes back in the first round: it is chosen soon after.
    let later = now + Duration::from_secs(11);
    assert_eq!(chosen(&group, later, 6), "bbabab");
}

#[test]
fn failures_are_counted_up_to_the_limit() {
    let patient = with(peer("a"), |peer| peer.max_fails = 3);
    let forgiving = with(peer("b"), |peer| peer.max_fails = 0);
    let group = group(vec![patient, forgiving], vec![]);
    let now = Instant::now();
    let mut out = String::new();
    for _ in 0..4 {
        let mut selection = Selection::new(&group, 0);
        while selection.next(now).is_some() {
            out += if selection.failed(now).disabled {
                "out "
            } else {
                "failed "
            };
        }
    }
    assert_eq!(out, "failed failed failed failed out failed failed ");
}

#[test]
fn a_single_peer_is_never_given_up() {
    let single = Group::of_one("a".into(), Address::Unix("a".into()));
    let now = Instant::now();
    for _ in 0..3 {
        let mut selection = Selection::new(&single, 0);
        assert_eq!(name(selection.next(now)), "a");
        assert!(!selection.failed(now).disabled);
        assert_eq!(selection.tries_left(), 0);
    }
    assert!(
        Selection::new(&group(vec![down("a")], vec![]), 0)
            .next(now)
            .is_none()
    );
}

#[test]
fn a_kept_connection_that_has_ended_costs_no_try() {
    let single = Group::of_one("a".into(), Address::Unix("a".into()));
    let now = Instant::now();
    let mut selection = Selection::new(&single, 0);
    selection.next(now);
    selection.failed(now);
    selection.try_once_more();
    assert_eq!(selection.tries_left(), 1);
    assert_eq!(name(selection.next(now)), "a");
}

/// RFC 9113, section 8.7: what a peer has not looked at may be sent again, be it to the same one.
#[test]
fn a_peer_that_has_not_looked_at_a_request_is_asked_again_where_no_other_is_left() {
    let forgiving = with(peer("a"), |peer| peer.max_fails = 0);
    let group = group(vec![forgiving, peer("b")], vec![peer("c")]);
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "a");
    selection.let_off();
    selection.try_once_more();
    for expected in ["b", "c"] {
        assert_eq!(name(selection.next(now)), expected);
        assert!(selection.failed(now).disabled);
    }
    assert_eq!(selection.tries_left(), 1);
    assert_eq!(name(selection.next(now)), "a");
    selection.failed(now);
    assert!(selection.next(now).is_none());
    // The peer is tried again as often as it refuses in this way.
    let mut patient = Selection::new(&group, 0);
    for _ in 0..3 {
        assert_eq!(name(patient.next(now)), "a");
        patient.let_off();
        patient.try_once_more();
    }
    // A peer that was busy is not tried again, nor one whose connection has ended.
    let mut busy = Selection::new(&group, 0);
    assert_eq!(name(busy.next(now)), "a");
    busy.let_off();
    assert!(busy.next(now).is_none());
    let mut ended = Selection::new(&group, 0);
    assert_eq!(name(ended.next(now)), "a");
    ended.failed(now);
    ended.try_once_more();
    assert!(ended.next(now).is_none());
    drop(patient);
    assert_eq!(connections(&group), [0, 0, 0]);
}

#[test]
fn many_peers() {
    let group = group((0..130).map(|n| peer(&format!("{n} "))).collect(), vec![]);
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    let mut seen = std::collections::HashSet::new();
    while let Some(peer) = selection.next(now) {
        assert!(seen.insert(peer.name.clone()));
    }
    assert_eq!(seen.len(), 130);
}

/// A peer that has reached `max_conns` is skipped. However a request ends, it is no longer counted.
#[test]
fn a_full_peer_waits_for_a_place() {
    let small = with(peer("a"), |peer| peer.max_conns = 1);
    let group = group(vec![small, peer("b")], vec![]);
    let now = Instant::now();
    let mut first = Selection::new(&group, 0);
    assert_eq!(name(first.next(now)), "a");
    let lease = first.answered();
    assert_eq!(chosen(&group, now, 3), "bbb");
    assert_eq!(connections(&group), [1, 0]);
    drop(lease);
    assert_eq!(connections(&group), [0, 0]);
    assert!(chosen(&group, now, 2).contains('a'));
    // A request that is dropped before it has a result.
    let mut given_up = Selection::new(&group, 0);
    given_up.next(now);
    drop(given_up);
    assert_eq!(connections(&group), [0, 0]);
}

#[test]
fn a_single_peer_may_be_full() {
    let small = with(peer("a"), |peer| peer.max_conns = 2);
    let group = group(vec![small], vec![]);
    let now = Instant::now();
    let mut held = [0; 2].map(|_| Selection::new(&group, 0));
    for selection in &mut held {
        assert_eq!(name(selection.next(now)), "a");
    }
    assert!(Selection::new(&group, 0).next(now).is_none());
    drop(held);
    assert_eq!(connections(&group), [0]);
}

/// Two threads never exceed `max_conns` together.
#[test]
fn threads_share_places() {
    let small = |name| with(peer(name), |peer| peer.max_conns = 3);
    let group = group(vec![small("a"), small("b")], vec![]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let mut selection = Selection::new(&group, 0);
                    if selection.next(Instant::now()).is_some() {
                        let lease = selection.answered();
                        assert!(connections(&group).iter().all(|count| *count <= 3));
                        drop(lease);
                    }
                }
            });
        }
    });
    assert_eq!(connections(&group), [0, 0]);
}

#[test]
fn the_least_loaded_is_asked() {
    let group = group_by(
        Method::LeastConnections,
        vec![peer("a"), heavy("b", 2)],
        vec![peer("c")],
    );
    let now = Instant::now();
    let mut held = Vec::new();
    let mut order = String::new();
    for _ in 0..6 {
        let mut selection = Selection::new(&group, 0);
        order += &name(selection.next(now));
        held.push(selection);
    }
    // By ngx_http_upstream_get_least_conn_peer: the turns decide at 0:0 (for b) and at 1:2 (for a),
    // else the smaller share.
    assert_eq!(order, "bababb");
    assert_eq!(connections(&group), [2, 4, 0]);
    drop(held);
    assert_eq!(connections(&group), [0, 0, 0]);
}

#[test]
fn the_quickest_is_asked() {
    let timed = Timed {
        until: Until::LastByte,
        in_flight: false,
    };
    let group = group_by(Method::LeastTime(timed), vec![peer("a"), peer("b")], vec![]);
    let now = Instant::now();
    let mut ask = |millis: u64| {
        let mut selection = Selection::new(&group, 0);
        let asked = name(selection.next(now));
        if let Some(mut lease) = selection.answered() {
            lease.head_came(Duration::ZERO);
            lease.answer_came(Duration::from_millis(millis));
        }
        asked
    };
    assert_eq!(ask(900), "a");
    assert_eq!([5, 5, 5].map(&mut ask), ["b", "b", "b"]);
    // A few milliseconds make no difference: the turns decide.
    assert_eq!(
        group.peers().iter().next().unwrap().state().times(),
        (0, 900)
    );
}

/// By ngx_stream_upstream_least_time_notify and ngx_stream_upstream_free_least_time_peer.
#[test]
fn a_session_is_measured_by_its_connection_or_its_first_byte() {
    for (until, expected) in [
        (Until::Connected, 300),
        (Until::Head, 900),
        (Until::LastByte, 300),
    ] {
        for in_flight in [true, false] {
            let timed = Timed { until, in_flight };
            let group = group_by(Method::LeastTime(timed), vec![peer("a"), down("x")], vec![]);
            let mut selection = Selection::new(&group, 0);
            selection.next(Instant::now());
            let mut lease = selection.answered().unwrap();
            lease.session_began(Duration::from_millis(300));
            lease.first_byte_came(Duration::from_millis(900));
            drop(lease);
            let peers = group.peers();
            let state = peers.primary[0].state();
            let times = (state.times().0, state.unanswered());
            assert_eq!(times, (expected, 0), "{timed:?}");
        }
    }
}

/// By ngx_http_upstream_free_least_time_peer: something else may answer in the place of the rest,
/// or the client may leave.
#[test]
fn an_answer_counts_once_its_head_has_come() {
    let (head, last) = (Until::Head, Until::LastByte);
    for (until, in_flight) in [(head, true), (head, false), (last, true), (last, false)] {
        let timed = Timed { until, in_flight };
        let group = group_by(Method::LeastTime(timed), vec![peer("a"), down("x")], vec![]);
        let mut selection = Selection::new(&group, 0);
        selection.next(Instant::now());
        let mut lease = selection.answered().unwrap();
        lease.head_came(Duration::from_millis(900));
        drop(lease);
        let peers = group.peers();
        let state = peers.primary[0].state();
        assert_eq!((state.times().0, state.unanswered()), (900, 0), "{timed:?}");
        // One of which nothing has come says nothing.
        let mut given_up = Selection::new(&group, 0);
        given_up.next(Instant::now());
        drop(given_up);
        assert_eq!((state.times().0, state.unanswered()), (900, 0), "{timed:?}");
    }
}

const IN_FLIGHT: Method = Method::LeastTime(Timed {
    until: Until::Head,
    in_flight: true,
});

/// What a request has waited goes with it, however it ends.
#[test]
fn a_request_that_is_given_up_is_waited_for_no_more() {
    let group = group_by(IN_FLIGHT, vec![peer("a"), down("x")], vec![]);
    let began = Instant::now();
    let mut selections = [(); 2].map(|()| Selection::new(&group, 0));
    for selection in &mut selections {
        assert_eq!(name(selection.next(began)), "a");
    }
    std::thread::sleep(Duration::from_millis(50));
    let [given_up, waiting] = selections;
    drop(given_up);
    let peers = group.peers();
    let in_flight = &peers.primary[0].state().in_flight;
    let waited = in_flight.waited.load(Ordering::Relaxed);
    let most = began.elapsed().as_millis() as u64 + 1;
    assert!((1..=most).contains(&waited), "{waited} of {most}");
    drop(waiting);
    assert_eq!(in_flight.waited.load(Ordering::Relaxed), 0);
}

#[test]
fn threads_count_what_is_in_flight() {
    let group = group_by(IN_FLIGHT, vec![peer("a"), peer("b")], vec![]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    let mut selection = Selection::new(&group, 0);
                    selection.next(Instant::now());
                    if let Some(mut lease) = selection.answered() {
                        lease.head_came(Duration::ZERO);
                    }
                }
            });
        }
    });
    let peers = group.peers();
    let unanswered = peers.iter().map(|peer| peer.state().unanswered());
    assert_eq!(unanswered.collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn any_is_asked_by_chance() {
    for method in [Method::Random, Method::RandomTwo] {
        let group = group_by(method, vec![peer("a"), heavy("b", 3), down("x")], vec![]);
        let asked = chosen(&group, Instant::now(), 400);
        let of_a = asked.matches('a').count();
        assert_eq!(asked.matches('x').count(), 0);
        assert!((40..360).contains(&of_a), "{method:?}: {of_a}");
    }
}

/// A peer whose id is its name in upper case.
fn named(name: &str) -> Peer {
    with(peer(name), |peer| peer.id = name.to_uppercase().into())
}

fn draining(name: &str) -> Peer {
    with(named(name), |peer| peer.draining = true)
}

/// The peers that a request with this preferred id gets, in order.
fn asked_for(group: &Arc<Group>, id: &'static str, now: Instant) -> String {
    let mut selection = wanting(group, id);
    let mut all = String::new();
    while let Some(peer) = selection.next(now) {
        all += &name(Some(peer));
        selection.passed_by(now);
    }
    all
}

fn wanting(group: &Arc<Group>, id: &'static str) -> Selection {
    let mut selection = Selection::new(group, 0).by_text("key".into());
    selection.want(Some(id.into()));
    selection
}

const METHODS: [Method; 10] = [
    Method::RoundRobin,
    Method::Hash,
    Method::ConsistentHash,
    Method::BoundedHash(Bound(1250)),
    Method::IpHash,
    Method::LeastConnections,
    Method::LeastTime(Timed {
        until: Until::Head,
        in_flight: true,
    }),
    Method::Random,
    Method::RandomTwo,
    Method::PowerOfTwoChoices,
];

#[test]
fn every_method_gives_the_peer_that_is_wanted() {
    let now = Instant::now();
    for method in METHODS {
        let gone = with(named("x"), |peer| peer.down = true);
        let full = with(named("f"), |peer| peer.max_conns = 1);
        let peers = vec![
            named("a"),
            named("b"),
            named("c"),
            draining("d"),
            gone,
            full,
        ];
        let group = group_by(method, peers, vec![]);
        let mut held = wanting(&group, "F");
        assert_eq!(name(held.next(now)), "f", "{method:?}");
        assert_eq!(
            held.tries_left(),
            4,
            "who is draining is tried by name alone"
        );
        for (id, first) in [("A", "a"), ("B", "b"), ("C", "c"), ("D", "d"), ("B", "b")] {
            let asked = asked_for(&group, id, now);
            assert_eq!(&asked[..1], first, "{method:?}: {asked}");
            // Others come after it, each once and none of those that are out.
            let mut others: Vec<char> = asked[1..].chars().collect();
            others.sort_unstable();
            let expected: String = "abc".chars().filter(|c| !first.contains(*c)).collect();
            assert_eq!(others.iter().collect::<String>(), expected, "{method:?}");
        }
        for id in ["X", "F", "nobody", ""] {
            assert!(
                "abc".contains(&asked_for(&group, id, now)[..1]),
                "{method:?}"
            );
        }
        // A request without a preferred peer never gets a draining peer.
        assert!(!chosen(&group, now, 20).contains('d'), "{method:?}");
    }
}

/// By `ngx_http_upstream_get_peer`: a peer pays for one request out of turn, and not for those
/// behind it.
#[test]
fn a_wanted_peer_pays_for_one_request_of_a_row() {
    let now = Instant::now();
    for wanted in [1, 5] {
        let group = group(vec![named("a"), named("b"), named("c")], vec![]);
        for _ in 0..wanted {
            let mut selection = wanting(&group, "B");
            assert_eq!(name(selection.next(now)), "b");
            selection.answered();
        }
        assert_eq!(chosen(&group, now, 6), "acabca", "{wanted}");
    }
}

#[test]
fn a_wanted_peer_that_has_failed_waits_for_its_time() {
    let group = group(vec![named("a"), named("b")], vec![]);
    let now = Instant::now();
    let mut selection = wanting(&group, "B");
    assert_eq!(name(selection.next(now)), "b");
    assert!(selection.failed(now).disabled);
    assert_eq!(name(selection.next(now)), "a");
    selection.answered();
    assert_eq!(asked_for(&group, "B", now), "a");
    let later = now + Duration::from_secs(11);
    assert_eq!(asked_for(&group, "B", later), "ba");
}

/// nginx counts a trial as successful if its client disconnects; Tidegate makes the next request
/// the trial.
#[test]
fn a_trial_that_comes_to_nothing_is_the_next_requests() {
    let group = group(vec![named("a"), named("b")], vec![]);
    let now = Instant::now();
    let mut selection = wanting(&group, "A");
    assert_eq!(name(selection.next(now)), "a");
    assert!(selection.failed(now).disabled);
    drop(selection);
    let later = now + Duration::from_secs(11);
    let client_leaves: fn(&mut Selection) = |_| {};
    for ends in [client_leaves, Selection::let_off] {
        let mut trial = wanting(&group, "A");
        assert_eq!(name(trial.next(later)), "a");
        assert_eq!(asked_for(&group, "A", later), "b", "one trial at a time");
        ends(&mut trial);
    }
    let mut trial = wanting(&group, "A");
    assert_eq!(name(trial.next(later)), "a");
    assert!(trial.failed(later).disabled);
    drop(trial);
    assert_eq!(asked_for(&group, "A", later), "b");
    let much_later = later + Duration::from_secs(11);
    assert_eq!(asked_for(&group, "A", much_later), "ab");
    assert_eq!(asked_for(&group, "A", much_later), "ab");
}

#[test]
fn a_single_peer_that_drains_is_given_to_those_that_want_it() {
    let group = group(vec![draining("a")], vec![]);
    let now = Instant::now();
    assert!(Selection::new(&group, 0).next(now).is_none());
    assert!(wanting(&group, "B").next(now).is_none());
    assert_eq!(name(wanting(&group, "A").next(now)), "a");
}

/// Backups are named as others are, once it is their turn; of two peers of one name the first
/// counts.
#[test]
fn names_are_of_one_side() {
    let now = Instant::now();
    let twin = with(named("t"), |peer| peer.id = "B".into());
    let group = group(
        vec![named("a"), named("b"), twin],
        vec![named("c"), named("d")],
    );
    assert!(!asked_for(&group, "D", now).starts_with('d'));
    assert_eq!(&asked_for(&group, "B", now)[..1], "b");
    let mut selection = wanting(&group, "D");
    for _ in 0..3 {
        selection.next(now);
        selection.failed(now);
    }
    assert_eq!(name(selection.next(now)), "d");
    // The first of its name is out: its twin does not stand in for it.
    let mut selection = wanting(&group, "B");
    let first = selection.next(now);
    assert!(matches!(&*name(first), "c" | "d"));
}

/// What nginx 1.31.5 answers for 10,000 keys each, by the last digit of the port: `$arg_k` is
/// `key-N`; the addresses are those of [`address`] and [`address6`], given to it by
/// `set_real_ip_from`.
const PLACEMENTS: &str = include_str!("placements.txt");

fn address(n: u32) -> IpAddr {
    IpAddr::V4(n.wrapping_mul(2_654_435_761).into())
}

fn address6(n: u32) -> IpAddr {
    format!("2001:db8::{:x}:{n:x}", n * 40503 % 65536)
        .parse()
        .unwrap()
}

/// The servers that nginx was asked with; without some of them.
fn servers(without: &[u8]) -> Vec<Peer> {
    let all = [(1, 1), (2, 3), (3, 1), (4, 2)].into_iter();
    let wanted = all.filter(|(number, _)| !without.contains(number));
    let peer = |(number, weight): (u8, i64)| {
        let address = format!("127.0.0.1:940{number}").parse().unwrap();
        with(Peer::new(Address::Inet(address)), |peer| {
            peer.weight = weight
        })
    };
    wanted.map(peer).collect()
}

fn placements(method: Method, without: &[u8], by: impl Fn(Selection, u32) -> Selection) -> String {
    let group = group_by(method, servers(without), vec![]);
    let digit = |n: u32| {
        let mut selection = by(Selection::new(&group, 0), n);
        name(selection.next(Instant::now())).pop().unwrap()
    };
    (0..10_000).map(digit).collect()
}

fn recorded(kind: &str) -> &'static str {
    let mut lines = PLACEMENTS.lines();
    lines
        .find_map(|line| line.strip_prefix(kind)?.strip_prefix(": "))
        .unwrap()
}

#[test]
fn keys_are_placed_as_nginx_places_them() {
    let by_key = |selection: Selection, n: u32| selection.by_text(Bytes::from(format!("key-{n}")));
    assert_eq!(placements(Method::Hash, &[], by_key), recorded("hash"));
    let whole = placements(Method::ConsistentHash, &[], by_key);
    assert_eq!(whole, recorded("hash consistent"));
    let without = placements(Method::ConsistentHash, &[3], by_key);
    assert_eq!(without, recorded("hash consistent without the third"));
    let moved = whole.bytes().zip(without.bytes());
    let moved_from: Vec<u8> = moved.filter(|(a, b)| a != b).map(|(a, _)| a).collect();
    assert!(!moved_from.is_empty() && moved_from.iter().all(|from| *from == b'3'));
}

#[test]
fn clients_are_placed_as_nginx_places_them() {
    let by = |address: fn(u32) -> IpAddr| {
        placements(Method::IpHash, &[], |selection, n| {
            selection.by_client(Some(address(n)))
        })
    };
    assert_eq!(by(address), recorded("ip_hash of IPv4"));
    assert_eq!(by(address6), recorded("ip_hash of IPv6"));
}

/// A key whose peer is unavailable goes to other peers, and finally to each of them.
#[test]
fn a_key_is_tried_on_every_peer() {
    for method in [Method::Hash, Method::ConsistentHash] {
        let group = group_by(method, servers(&[]), vec![]);
        let mut selection = Selection::new(&group, 0).by_text("key".into());
        let now = Instant::now();
        let mut asked = Vec::new();
        while let Some(peer) = selection.next(now) {
            asked.push(peer.name.clone());
            selection.failed(now);
        }
        asked.sort();
        asked.dedup();
        assert_eq!(asked.len(), 4, "{method:?}");
    }
}

#[test]
fn there_are_others_as_long_as_one_may_be_asked() {
    let now = Instant::now();
    let group = group(vec![peer("a"), peer("b")], vec![peer("c")]);
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "a");
    assert!(selection.has_others(now));
    let fail = |place: usize| {
        let peers = group.peers();
        let peer = peers.iter().nth(place).unwrap();
        peer.state().fail(crate::moment::millis(now), 1, 1);
    };
    fail(1);
    assert!(selection.has_others(now), "the one that stands by");
    fail(2);
    assert!(!selection.has_others(now));
}

/// A socket has those to answer of which nothing has come.
#[test]
fn one_that_has_been_answered_is_heard() {
    let now = Instant::now();
    let group = group(vec![peer("a")], Vec::new());
    let unheard = || group.peers().primary[0].state().unheard();
    let mut selections = [(); 3].map(|()| Selection::new(&group, 0));
    for selection in &mut selections {
        selection.next(now);
    }
    assert_eq!(unheard(), 3);
    let mut answered = selections[0].answered().unwrap();
    answered.head_came(Duration::ZERO);
    selections[1].let_off();
    assert_eq!((unheard(), connections(&group)), (1, vec![2]));
    drop(answered);
    drop(selections);
    assert_eq!((unheard(), connections(&group)), (0, vec![0]));
}

/// A reload keeps the states of peers that are the same.
#[test]
fn the_same_peers_keep_their_states() {
    let before = Peers::new(
        PeerSet::new(servers(&[])),
        PeerSet::default(),
        Method::RoundRobin,
    );
    let held = before.primary[1].state();
    held.begin(1, Duration::ZERO);
    let mut listed = servers(&[1]);
    listed.reverse();
    listed.push(peer("new"));
    let after = Peers::new(PeerSet::new(listed), PeerSet::default(), Method::RoundRobin);
    let after = Arc::new(after);
    after.adopt(&before);
    let counts: Vec<usize> = after
        .iter()
        .map(|peer| peer.state().connections())
        .collect();
    assert_eq!(counts, [0, 0, 1, 0]);
    assert!(Arc::ptr_eq(
        before.primary[1].state(),
        after.primary[2].state()
    ));
    // Two `server` lines with the same address are two peers.
    let twice = || {
        Peers::new(
            PeerSet::new(vec![peer("a"), peer("a")]),
            PeerSet::default(),
            Method::RoundRobin,
        )
    };
    let (before, after) = (twice(), twice());
    before.primary[1].state().begin(1, Duration::ZERO);
    let after = Arc::new(after);
    after.adopt(&before);
    assert_eq!(after.primary[0].state().connections(), 0);
    assert_eq!(after.primary[1].state().connections(), 1);
}

fn host(name: &'static str) -> Host {
    Host {
        name: name.into(),
        port: 80,
        service: None,
        template: with(peer("x"), |peer| {
            peer.server = name.into();
            peer.max_fails = 7;
        }),
        id_of: Bytes::copy_from_slice,
        side: PeerSide::Peers,
    }
}

fn at(paths: &[&str]) -> Vec<ResolvedAddress> {
    let found = |path: &&str| ResolvedAddress {
        address: Address::Unix(path.into()),
        server: None,
        weight: None,
        is_backup: false,
    };
    paths.iter().map(found).collect()
}

fn names(roster: &Roster) -> String {
    let peers = roster.peers();
    peers.iter().map(|peer| name(Some(peer))).collect()
}

/// A peer whose address stays keeps its state and its index. A request in flight keeps its list of
/// peers.
#[test]
fn a_host_has_other_addresses_now() {
    let hosts = vec![host("h"), host("other")];
    let roster = Roster::new(vec![peer("s")], vec![peer("b")], Method::RoundRobin, hosts);
    let roster = Arc::new(roster);
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    assert!(roster.resolved(0, &at(&["1", "2"])));
    assert!(
        !roster.resolved(0, &at(&["2", "1"])),
        "the same in another order"
    );
    assert!(roster.resolved(1, &at(&["2"])));
    assert_eq!(names(&roster), "s122b");
    let begun = Selection::new(&group, 0);
    roster.peers().primary[1].state().begin(1, Duration::ZERO);
    assert!(roster.resolved(0, &at(&["3", "1"])));
    assert_eq!(names(&roster), "s123b");
    let peers = roster.peers();
    assert_eq!(peers.primary[1].state().connections(), 1);
    assert_eq!(peers.primary[1].max_fails, 7);
    assert_eq!(begun.tries_left(), 5);
    // All addresses of a host are removed; the peers of others stay.
    assert!(roster.resolved(0, &[]));
    assert!(roster.resolved(1, &[]));
    assert_eq!(names(&roster), "sb");
    assert_eq!(chosen(&group, Instant::now(), 2), "ss");
}

/// Requests use the current peers while the next list is made.
#[test]
fn requests_do_not_wait_for_new_peers_to_be_made() {
    static ROSTER: OnceLock<Roster> = OnceLock::new();
    let hosts = vec![Host {
        id_of: |name| {
            let peers = ROSTER.get().map(Roster::peers);
            assert!(peers.is_some_and(|peers| peers.primary.is_empty()));
            Bytes::copy_from_slice(name)
        },
        ..host("h")
    }];
    let roster = Roster::new(Vec::new(), Vec::new(), Method::ConsistentHash, hosts);
    assert!(ROSTER.set(roster).is_ok());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let changed = ROSTER.get().map(|roster| roster.resolved(0, &at(&["1"])));
        let _ = done.send(changed);
    });
    let changed = is_done.recv_timeout(Duration::from_secs(60));
    assert_eq!(changed, Ok(Some(true)));
}

/// A request that has waited may try each peer of the list that is current then.
#[test]
fn a_request_that_begins_again_has_the_tries_of_the_peers_of_now() {
    let roster = Roster::new(Vec::new(), Vec::new(), Method::RoundRobin, vec![host("h")]);
    let roster = Arc::new(roster);
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    let now = Instant::now();
    let [mut all, mut two] = [0, 2].map(|most| Selection::new(&group, most));
    assert_eq!((all.tries_left(), two.tries_left()), (0, 0));
    assert!(all.next(now).is_none());
    assert!(roster.resolved(0, &at(&["1", "2", "3"])));
    all.begin_again();
    two.begin_again();
    assert_eq!((all.tries_left(), two.tries_left()), (3, 2));
    assert_eq!(name(all.next(now)), "1");
}

/// After a reload, the addresses of names are known at once.
#[test]
fn a_reload_knows_the_addresses_of_before() {
    let before = Roster::new(
        vec![peer("s")],
        Vec::new(),
        Method::ConsistentHash,
        vec![host("h")],
    );
    before.resolved(0, &at(&["1", "2"]));
    for place in [0, 2] {
        let peers = before.peers();
        peers.primary[place].state().begin(1, Duration::ZERO);
    }
    let hosts = vec![host("new"), host("h")];
    let after = Roster::new(vec![peer("s")], Vec::new(), Method::ConsistentHash, hosts);
    let after = Arc::new(after);
    after.adopt(&before);
    assert_eq!(names(&after), "s12");
    let counts = after.peers();
    let counts = counts.iter().map(|peer| peer.state().connections());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 0, 1]);
    // The queue and the concurrency limit are kept too.
    assert!(Arc::ptr_eq(after.peers().gate(), before.peers().gate()));
    assert!(Arc::ptr_eq(after.peers().queue(), before.peers().queue()));
    assert!(!after.resolved(1, &at(&["1", "2"])));
}

#[test]
fn a_service_weighs_its_servers() {
    let mut of = host("h");
    of.service = Some("http".into());
    let roster = Roster::new(Vec::new(), Vec::new(), Method::RoundRobin, vec![of]);
    let found = |path: &str, weight, is_backup| ResolvedAddress {
        address: Address::Unix(path.into()),
        server: Some(format!("{path}.h").into()),
        weight: Some(weight),
        is_backup,
    };
    assert!(roster.resolved(
        0,
        &[
            found("a", 5, false),
            found("b", 0, false),
            found("c", 1, true)
        ]
    ));
    let peers = roster.peers();
    let shown = |peer: &Peer| (name(Some(peer)), peer.server.clone(), peer.weight);
    let primary: Vec<_> = peers.primary.iter().map(shown).collect();
    assert_eq!(
        primary,
        [("a".into(), "a.h".into(), 5), ("b".into(), "b.h".into(), 1)]
    );
    assert_eq!(peers.backup.len(), 1);
    // A peer with another weight is a new peer.
    assert!(roster.resolved(0, &[found("a", 6, false)]));
    assert_eq!(names(&roster), "a");
}
