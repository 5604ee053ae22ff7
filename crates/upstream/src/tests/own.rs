//! Tests of the features that nginx does not have: `p2c`, hashing with bounded loads, retry
//! budgets, outlier detection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::balancer::{Bound, Method};
use crate::{Outliers, PutOut, RetryBudget};

/// Makes a request that is answered after this time, and returns the name of the peer.
fn ask(group: &Arc<Group>, millis: impl Fn(&str) -> u64) -> String {
    let mut selection = Selection::new(group, 0);
    let asked = name(selection.next(Instant::now()));
    if let Some(mut lease) = selection.answered() {
        lease.head_came(Duration::from_millis(millis(&asked)));
    }
    asked
}

fn p2c(peers: Vec<Peer>) -> Arc<Group> {
    group_by(Method::PowerOfTwoChoices, peers, vec![])
}

fn count(asked: &[String], name: &str) -> usize {
    asked.iter().filter(|asked| *asked == name).count()
}

#[test]
fn of_two_the_one_is_asked_that_answers_sooner() {
    let group = p2c(vec![peer("slow"), peer("quick")]);
    let millis = |name: &str| if name == "slow" { 300 } else { 3 };
    let asked: Vec<String> = (0..200).map(|_| ask(&group, millis)).collect();
    // Until the quick peer has responded, it counts with the average of the others, so chance
    // decides.
    assert!(count(&asked, "slow") <= 20, "{asked:?}");
    assert_eq!(count(&asked[100..], "slow"), 0);
    // With many requests in flight, the quick peer is no longer the better choice.
    let mut held = Vec::new();
    for _ in 0..202 {
        let mut selection = Selection::new(&group, 0);
        selection.next(Instant::now());
        held.push(selection);
    }
    let [slow, quick] = connections(&group)[..] else {
        panic!()
    };
    assert!((1..=4).contains(&slow) && quick >= 198, "{slow} {quick}");
}

#[test]
fn a_new_peer_is_one_like_the_others() {
    let group = p2c(vec![peer("a"), peer("b"), peer("c")]);
    // The response times of two peers are known, that of the third is not.
    let now = Instant::now();
    for (index, millis) in [(0, 100), (1, 50)] {
        let peers = group.peers();
        let latency = &peers.primary[index].state().latency;
        latency.note(crate::moment::millis(now), Duration::from_millis(millis));
    }
    let mut held = Vec::new();
    for _ in 0..90 {
        let mut selection = Selection::new(&group, 0);
        selection.next(now);
        held.push(selection);
    }
    // By their loads: (a + 1) × 100 = (b + 1) × 50 = (c + 1) × 75, or nearly.
    let [a, b, c] = connections(&group)[..] else {
        panic!()
    };
    assert!((17..=25).contains(&a), "{a} {b} {c}");
    assert!((36..=48).contains(&b), "{a} {b} {c}");
    assert!((23..=33).contains(&c), "{a} {b} {c}");
}

#[test]
fn weights_count_twice_with_p2c() {
    let group = p2c(vec![peer("a"), heavy("b", 3)]);
    let mut held = Vec::new();
    for _ in 0..80 {
        let mut selection = Selection::new(&group, 0);
        selection.next(Instant::now());
        held.push(selection);
    }
    let connections = connections(&group);
    assert!((19..=21).contains(&connections[0]), "{connections:?}");
}

#[test]
fn failures_make_a_peer_a_slow_one() {
    let patient = |name| with(peer(name), |peer| peer.max_fails = 0);
    let group = loop {
        let group = p2c(vec![patient("a"), patient("b")]);
        let mut selection = Selection::new(&group, 0);
        if name(selection.next(Instant::now())) == "a" {
            selection.failed(Instant::now());
            break group;
        }
    };
    // Until the other peer has responded, it counts as equally fast.
    while ask(&group, |_| 10) != "b" {}
    let asked: Vec<String> = (0..50).map(|_| ask(&group, |_| 10)).collect();
    assert_eq!(count(&asked, "b"), 50);
}

/// Whatever may be chosen is: who is out, full or tried is no choice, with peers of any weights.
/// As in `least_conn`, whose turns and loads know it, too.
#[test]
fn p2c_lets_a_peer_start_slowly() {
    let mut slow = peer("slow");
    slow.slow_start = Duration::from_secs(3600);
    let group = p2c(vec![slow, peer("other")]);
    let now = Instant::now();
    let peers = group.peers();
    let at_once = |selections: usize| {
        let mut held = Vec::new();
        for _ in 0..selections {
            let mut selection = Selection::new(&group, 0);
            selection.next(now);
            held.push(selection);
        }
        connections(&group)
    };
    let [slow, other] = at_once(100)[..] else {
        panic!()
    };
    assert!(slow >= 40 && other >= 40, "{slow} {other}");
    peers.primary[0].recover(now);
    let [slow, other] = at_once(100)[..] else {
        panic!()
    };
    assert!(slow <= 2 && other >= 98, "{slow} {other}");
}

#[test]
fn p2c_finds_who_is_left() {
    let full = with(peer("f"), |peer| peer.max_conns = 1);
    let group = p2c(vec![heavy("a", 1000), down("x"), peer("b"), full]);
    let now = Instant::now();
    for _ in 0..50 {
        let mut selection = Selection::new(&group, 0);
        let mut all: Vec<String> = Vec::new();
        while let Some(peer) = selection.next(now) {
            all.push(name(Some(peer)));
            selection.passed_by(now);
        }
        all.sort();
        assert_eq!(all, ["a", "b", "f"]);
    }
}

/// No peer has more than 1.25 times its share of the requests in flight, rounded up, for any
/// distribution of keys.
#[test]
fn a_popular_key_is_spread_over_the_ring() {
    let fresh = |bound: u32| group_by(Method::BoundedHash(Bound(bound)), servers(&[]), vec![]);
    let key = |n: u32| format!("key-{}", n % 3);
    for bound in [1000, 1250, 2000] {
        let group = fresh(bound);
        let mut held = Vec::new();
        for n in 0..700_u32 {
            let mut selection = Selection::new(&group, 0).by_text(key(n).into());
            assert!(selection.next(Instant::now()).is_some());
            held.push(selection);
            let total = held.len() as u64;
            for (peer, has) in group.peers().primary.iter().zip(connections(&group)) {
                let fair = u64::from(bound) * total * peer.weight as u64;
                assert!(has as u64 <= fair.div_ceil(7000), "{bound} {n} {has}");
            }
        }
        drop(held);
        assert_eq!(connections(&group), [0; 4]);
    }
    // While its server has room, a key stays with its server.
    let group = fresh(1250);
    let first = |n: u32| {
        let mut selection = Selection::new(&group, 0).by_text(format!("key-{n}").into());
        name(selection.next(Instant::now())).pop().unwrap()
    };
    let all: String = (0..10_000).map(first).collect();
    assert_eq!(all, recorded("hash consistent"));
    // The next server on the ring is the one that the key would have without its own server.
    let mut moved = Selection::new(&group, 0).by_text("key-0".into());
    let home = moved.next(Instant::now()).unwrap().name.clone();
    let mut held = vec![moved];
    let next = loop {
        let mut selection = Selection::new(&group, 0).by_text("key-0".into());
        let chosen = selection.next(Instant::now()).unwrap().name.clone();
        held.push(selection);
        if chosen != home {
            break chosen;
        }
    };
    let number = home.last().unwrap() - b'0';
    let without = group_by(Method::ConsistentHash, servers(&[number]), vec![]);
    let mut selection = Selection::new(&without, 0).by_text("key-0".into());
    assert_eq!(selection.next(Instant::now()).unwrap().name, next);
}

fn budgeted(percent: u64, floor: u64) -> Arc<Group> {
    let roster = Roster::new(
        vec![peer("a"), peer("b")],
        vec![],
        Method::RoundRobin,
        vec![],
    );
    let mut group = Group::new("u".into(), Arc::new(roster), None);
    group.retry_budget = Some(RetryBudget { percent, floor });
    Arc::new(group)
}

/// A reload keeps the counts of retries and requests, and applies the new settings.
#[test]
fn a_budget_of_retries_outlives_a_reload() {
    let group = budgeted(20, 0);
    let now = Instant::now();
    let retries = |group: &Arc<Group>, wanted: usize| {
        let selection = Selection::new(group, 0);
        (0..wanted).filter(|_| selection.may_retry(now)).count()
    };
    assert_eq!(retries(&group, 5), 0);
    for _ in 0..50 {
        let mut selection = Selection::new(&group, 0);
        // A request that waits and asks for a peer repeatedly counts once.
        for _ in 0..3 {
            selection.next(now);
            selection.begin_again();
        }
    }
    assert_eq!(retries(&group, 4), 4);
    let after = budgeted(40, 0);
    after.peers().adopt(&group.peers());
    assert_eq!(retries(&after, 100), 16);
    assert_eq!(retries(&group, 100), 0);
}

const OUTLIERS: Outliers = Outliers {
    errors: 2,
    ratio: 0,
    interval: Duration::from_secs(10),
    time: Duration::from_secs(30),
    max: 50,
};

/// Peers that `max_fails` never disables.
fn judged(names: &[&str], backup: &[&str]) -> Arc<Group> {
    let patient = |name: &&str| with(peer(name), |peer| peer.max_fails = 0);
    let [primary, backup] = [names, backup].map(|names| names.iter().map(patient).collect());
    let roster = Roster::new(primary, backup, Method::RoundRobin, vec![]);
    let mut group = Group::new("u".into(), Arc::new(roster), None);
    group.outliers = Some(OUTLIERS);
    Arc::new(group)
}

/// Makes requests until this peer has failed twice.
fn fails_twice(group: &Arc<Group>, of: &str, now: Instant) -> Option<PutOut> {
    let mut failures = 0;
    let mut put_out = None;
    while failures < 2 {
        let mut selection = Selection::new(group, 0);
        if name(selection.next(now)) == of {
            put_out = selection.failed(now).put_out;
            failures += 1;
        }
    }
    put_out
}

#[test]
fn an_outlier_is_out_and_comes_back() {
    let group = judged(&["a", "b"], &["c"]);
    let now = Instant::now();
    assert!(fails_twice(&group, "a", now).is_some());
    assert_eq!(chosen(&group, now, 4), "bbbb");
    // The only other peer is never ejected.
    assert!(fails_twice(&group, "b", now).is_none());
    assert_eq!(chosen(&group, now, 2), "bb");
    let later = now + Duration::from_secs(31);
    let mut back = String::new();
    for _ in 0..6 {
        let mut selection = Selection::new(&group, 0);
        let chosen = name(selection.next(later));
        if selection.is_back() {
            back += &chosen;
        }
        assert!(selection.judge(later, true).is_none());
        selection.answered();
    }
    assert_eq!(back, "a");
    // A response that shows a broken server counts as a failure; a good response resets the
    // failures in a row.
    let mut outcomes = Vec::new();
    for is_well in [false, true, false, false] {
        let mut selection = wanting_name(&group, "b", later);
        outcomes.push(selection.judge(later, is_well).is_some());
        selection.answered();
    }
    assert_eq!(outcomes, [false, false, false, true]);
}

/// A selection that has chosen this peer.
fn wanting_name(group: &Arc<Group>, wanted: &str, now: Instant) -> Selection {
    loop {
        let mut selection = Selection::new(group, 0);
        if name(selection.next(now)) == wanted {
            return selection;
        }
    }
}

/// If no other peer is left, an ejected outlier gets requests, but a request tries it at most once.
#[test]
fn outliers_are_asked_where_no_other_is_left() {
    let group = judged(&["a", "b"], &[]);
    let now = Instant::now();
    assert!(fails_twice(&group, "a", now).is_some());
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "b");
    selection.failed(now);
    assert!(selection.next(now).is_none());
    let peers = group.peers();
    // The same with a peer that is `down`.
    let disabled = Peers::new(
        PeerSet::new(vec![peers.primary[0].clone(), down("b")]),
        PeerSet::default(),
        Method::RoundRobin,
    );
    let roster = Roster::new(
        disabled.primary.to_vec(),
        vec![],
        Method::RoundRobin,
        vec![],
    );
    let mut lost = Group::new("u".into(), Arc::new(roster), None);
    lost.outliers = Some(OUTLIERS);
    let lost = Arc::new(lost);
    assert_eq!(chosen(&lost, now, 2), "aa");
    // A full peer is no reason to choose an outlier.
    let full = with(peer("b"), |peer| peer.max_conns = 1);
    full.state().begin(1, Duration::ZERO);
    let roster = Roster::new(
        vec![peers.primary[0].clone(), full],
        vec![],
        Method::RoundRobin,
        vec![],
    );
    let mut busy = Group::new("u".into(), Arc::new(roster), None);
    busy.outliers = Some(OUTLIERS);
    assert!(Selection::new(&Arc::new(busy), 0).next(now).is_none());
}

/// A reload keeps ejections; a reload that removes `eject_outliers` ends them.
#[test]
fn outliers_outlive_a_reload() {
    let before = judged(&["a", "b"], &[]);
    let now = Instant::now();
    assert!(fails_twice(&before, "a", now).is_some());
    let after = judged(&["a", "b"], &[]);
    after.peers().adopt(&before.peers());
    assert_eq!(chosen(&after, now, 4), "bbbb");
    let patient = |name| with(peer(name), |peer| peer.max_fails = 0);
    let without = group(vec![patient("a"), patient("b")], vec![]);
    without.peers().adopt(&before.peers());
    assert_eq!(count(&split(&chosen(&without, now, 4)), "a"), 2);
}

fn split(names: &str) -> Vec<String> {
    names.chars().map(String::from).collect()
}
