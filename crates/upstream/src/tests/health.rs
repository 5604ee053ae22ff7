//! Tests of health checks and of `slow_start`, with simulated time.

use super::*;
use crate::moment::millis;
use crate::slow_start::WHOLE;
use crate::{Check, Checks, Standing};

/// A group with a health check.
fn checked(peers: &[&str], backups: &[&str], mandatory: bool) -> Arc<Group> {
    let checks: Checks = [Check {
        place: "here".into(),
        mandatory,
        persistent: false,
    }]
    .into();
    let all = |names: &[&str]| -> Vec<Peer> {
        let slow = |peer: &mut Peer| {
            peer.checks = Some(Arc::clone(&checks));
            peer.slow_start = Duration::from_secs(10);
        };
        names.iter().map(|name| with(peer(name), slow)).collect()
    };
    group(all(peers), all(backups))
}

/// The peer with this name.
fn the_one(group: &Group, wanted: &str) -> Peer {
    let peers = group.peers();
    let found = peers.iter().find(|peer| name(Some(peer)) == wanted);
    found.unwrap().share()
}

fn fail_check(group: &Group, wanted: &str) {
    the_one(group, wanted).health().unwrap().failed(0, 1);
}

/// Records a passed check of the peer, as the health checks do.
fn pass_check(group: &Group, wanted: &str, now: Instant) {
    let peer = the_one(group, wanted);
    if peer.health().unwrap().passed(0, 1).recovered {
        peer.recover(now);
    }
}

/// How many of `requests` requests the peer gets.
fn count_of(group: &Arc<Group>, wanted: char, now: Instant, requests: usize) -> usize {
    let all = chosen(group, now, requests);
    all.chars().filter(|letter| *letter == wanted).count()
}

#[test]
fn unhealthy_peers_get_no_requests_and_backups_do() {
    let group = checked(&["a", "b"], &["c"], false);
    let now = Instant::now();
    assert_eq!(chosen(&group, now, 4), "abab");
    fail_check(&group, "a");
    assert_eq!(chosen(&group, now, 2), "bb");
    fail_check(&group, "b");
    assert_eq!(chosen(&group, now, 2), "cc");
    fail_check(&group, "c");
    assert_eq!(chosen(&group, now, 1), "");
    // A request that prefers the unhealthy peer does not get it either.
    let mut selection = Selection::new(&group, 0);
    selection.want(Some(the_one(&group, "a").id));
    assert!(selection.next(now).is_none());
    assert_eq!(the_one(&group, "a").standing(now), Standing::Unhealthy);
}

#[test]
fn a_peer_that_must_pass_first_gets_nothing_before() {
    for names in [&["a"][..], &["a", "b"]] {
        let group = checked(names, &[], true);
        let now = Instant::now();
        assert_eq!(chosen(&group, now, 1), "");
        assert_eq!(the_one(&group, "a").standing(now), Standing::Checking);
        pass_check(&group, "a", now);
        assert_eq!(chosen(&group, now, 3), "aaa");
        assert_eq!(the_one(&group, "a").standing(now), Standing::Up);
    }
}

#[test]
fn a_peer_that_is_healthy_again_starts_slowly() {
    let group = checked(&["a", "b"], &[], false);
    let now = Instant::now();
    fail_check(&group, "a");
    assert_eq!(chosen(&group, now, 3), "bbb");
    pass_check(&group, "a", now);
    let of_a = |seconds: f64| count_of(&group, 'a', now + Duration::from_secs_f64(seconds), 300);
    // By weights of 0, 1/4, 1/2 and 1 beside 1.
    assert!(of_a(0.0) <= 1);
    for (seconds, share) in [(2.5, 1.0 / 5.0), (5.0, 1.0 / 3.0), (10.0, 0.5), (60.0, 0.5)] {
        let expected = 300.0 * share;
        let got = of_a(seconds) as f64;
        assert!((got - expected).abs() <= 2.0, "{got} after {seconds}s");
    }
    // A further pass does not restart the slow start.
    let later = now + Duration::from_secs(30);
    pass_check(&group, "a", later);
    assert!(count_of(&group, 'a', later, 10) >= 4);
}

#[test]
fn one_that_starts_slowly_and_is_left_alone_gets_everything() {
    let group = checked(&["a", "b"], &["c"], false);
    let now = Instant::now();
    fail_check(&group, "a");
    pass_check(&group, "a", now);
    fail_check(&group, "b");
    assert_eq!(chosen(&group, now, 5), "aaaaa");
    // The same applies to backup peers, which get requests if no primary peer is available.
    fail_check(&group, "a");
    fail_check(&group, "c");
    pass_check(&group, "c", now);
    assert_eq!(chosen(&group, now, 3), "ccc");
}

#[test]
fn failed_tries_are_followed_by_a_slow_start_as_well() {
    let slow = |peer: &mut Peer| peer.slow_start = Duration::from_secs(100);
    let group = group(vec![with(peer("a"), slow), peer("b")], vec![]);
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "a");
    assert!(selection.failed(now).disabled);
    assert_eq!(the_one(&group, "a").standing(now), Standing::Unavailable);
    assert_eq!(the_one(&group, "a").state().outages(), 1);
    // After `fail_timeout`, the peer is tried again and responds. Its slow start begins then.
    let later = now + Duration::from_secs(11);
    assert!(chosen(&group, later, 4).contains('a'));
    assert!(count_of(&group, 'a', later, 100) <= 2);
    let half = count_of(&group, 'a', later + Duration::from_secs(50), 300);
    assert!((98..=102).contains(&half), "{half}");
}

/// A peer in its slow start is not preferred merely because it has no requests.
#[test]
fn least_connections_of_one_that_starts_slowly() {
    let slow = |peer: &mut Peer| peer.slow_start = Duration::from_secs(100);
    let peers = vec![with(peer("a"), slow), peer("b")];
    let group = group_by(Method::LeastConnections, peers, vec![]);
    let now = Instant::now();
    the_one(&group, "a").recover(now);
    let mut under_way = Vec::new();
    let mut all = String::new();
    for _ in 0..12 {
        let mut selection = Selection::new(&group, 0);
        all += &name(selection.next(now + Duration::from_secs(10)));
        under_way.push(selection);
    }
    // A tenth of the weight against the whole weight: one of eleven requests.
    assert_eq!(all.matches('a').count(), 1, "{all}");
}

/// After a reload, both generations share the states of peers, but have separate findings of
/// checks.
#[test]
fn a_check_of_the_generation_before_changes_nothing() {
    let [before, after, again] = [(); 3].map(|()| checked(&["a", "b"], &[], false));
    let now = Instant::now();
    fail_check(&before, "a");
    pass_check(&before, "a", now);
    fail_check(&before, "b");
    after.peers().adopt(&before.peers());
    assert_eq!(the_one(&after, "b").standing(now), Standing::Unhealthy);
    // The reload does not affect the slow start.
    let half = millis(now + Duration::from_secs(5));
    assert_eq!(the_one(&after, "a").share_of_weight(half), WHOLE / 2);
    pass_check(&after, "b", now);
    // A check of the previous generation affects neither the current nor the next generation.
    fail_check(&before, "a");
    again.peers().adopt(&after.peers());
    for group in [&after, &again] {
        assert_eq!(the_one(group, "a").standing(now), Standing::Up);
        assert_eq!(the_one(group, "b").standing(now), Standing::Up);
    }
}

#[test]
fn peers_that_a_lookup_adds_must_pass_first() {
    let template = with(peer("x"), |peer| {
        peer.checks = Some(
            [Check {
                place: "here".into(),
                mandatory: true,
                persistent: true,
            }]
            .into(),
        );
    });
    let host = Host {
        name: "host".into(),
        port: 80,
        service: None,
        template,
        id_of: Bytes::copy_from_slice,
        side: PeerSide::Peers,
    };
    let roster = Arc::new(Roster::new(vec![], vec![], Method::RoundRobin, vec![host]));
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    let now = Instant::now();
    let found = |name: &str| ResolvedAddress {
        address: Address::Unix(name.into()),
        server: None,
        weight: None,
        is_backup: false,
    };
    roster.resolved(0, &[found("a")]);
    assert_eq!(chosen(&group, now, 1), "");
    pass_check(&group, "a", now);
    // A known address keeps its finding; a new address must pass the check.
    roster.resolved(0, &[found("a"), found("b")]);
    assert_eq!(chosen(&group, now, 3), "aaa");
    assert_eq!(the_one(&group, "b").standing(now), Standing::Checking);
    // An address that was removed and added again counts as new.
    roster.resolved(0, &[found("b")]);
    roster.resolved(0, &[found("a"), found("b")]);
    assert_eq!(the_one(&group, "a").standing(now), Standing::Checking);
}

/// State that one process saves and the next restores follows the same rules as a reload.
#[test]
fn another_process_goes_on_with_what_was_known_of_peers() {
    let zone = |group: &Group| {
        let mut table = framework::zone::Table::default();
        let roster = Arc::clone(group.roster());
        let Ok(_) = table.declare::<crate::Remembered>("u", 32768, roster) else {
            panic!("declared once");
        };
        table.finish()
    };
    let before = checked(&["a", "b", "d"], &["c"], false);
    let now = Instant::now();
    assert_eq!(chosen(&before, now, 3), "abd");
    fail_check(&before, "b");
    fail_check(&before, "c");
    pass_check(&before, "c", now);
    let mut selection = Selection::new(&before, 0);
    assert_eq!(name(selection.next(now)), "a");
    selection.failed(now);
    drop(selection);
    let saved = zone(&before).save();
    // One server was removed, another was added.
    let after = checked(&["a", "b", "e"], &["c"], false);
    let restored = zone(&after).restore(&saved).unwrap();
    assert_eq!((restored.count, restored.empty.len()), (1, 0));
    let standing = |name| the_one(&after, name).standing(now);
    assert_eq!(standing("a"), Standing::Unavailable);
    assert_eq!(standing("b"), Standing::Unhealthy);
    assert_eq!((standing("c"), standing("e")), (Standing::Up, Standing::Up));
    let counts = the_one(&after, "c").health().unwrap().counts();
    assert_eq!((counts.checks, counts.fails, counts.unhealthy), (2, 1, 1));
    let half = millis(now + Duration::from_secs(5));
    let share = the_one(&after, "c").share_of_weight(half);
    assert!((share - WHOLE / 2).abs() <= WHOLE / 100, "{share}");
    assert_eq!(the_one(&after, "a").state().requests(), 2);
    assert_eq!(the_one(&after, "a").state().failures(), 1);
    // The peer is unavailable until the time that the previous process determined.
    let later = now + Duration::from_secs(12);
    assert_eq!(the_one(&after, "a").standing(later), Standing::Up);
    for length in 0..saved.len() {
        let group = checked(&["a"], &[], false);
        assert!(zone(&group).restore(&saved[..length]).is_err(), "{length}");
    }
    // The finding of a mandatory check is not restored.
    let after = checked(&["a", "b"], &["c"], true);
    zone(&after).restore(&saved).unwrap();
    assert_eq!(the_one(&after, "c").standing(now), Standing::Checking);
}
