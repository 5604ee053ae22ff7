//! Tests of members that are added, removed and changed at run time, and over reloads.

use std::io;
use std::sync::Mutex;

use super::*;
use crate::{Availability, Edit, HostLookup, Keep, MemberChange, MemberError, Origin, Patch};

/// A store for members in memory, whose text a test can change.
#[derive(Clone, Debug, Default)]
struct Page(Arc<Mutex<String>>);

impl Page {
    fn text(peers: &Peers) -> String {
        let all = peers.iter();
        let all = all.map(|peer| format!("{}={} ", name(Some(peer)), peer.weight));
        all.collect()
    }
}

impl Keep for Page {
    fn write(&self, peers: &Peers) -> io::Result<()> {
        let mut page = self.0.lock().unwrap();
        if *page == "full" {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *page = Page::text(peers);
        Ok(())
    }

    fn has(&self, peers: &Peers) -> bool {
        *self.0.lock().unwrap() == Page::text(peers)
    }
}

fn roster(peers: Vec<Peer>) -> Arc<Roster> {
    Arc::new(Roster::new(
        peers,
        Vec::new(),
        Method::RoundRobin,
        Vec::new(),
    ))
}

fn kept(peers: Vec<Peer>, page: &Page) -> Arc<Roster> {
    let roster = Roster::new(peers, Vec::new(), Method::RoundRobin, Vec::new());
    Arc::new(roster.kept_by(Some(Box::new(page.clone()))))
}

fn weight(number: u64, weight: i64) -> Edit {
    let patch = Patch {
        weight: Some(weight),
        ..Patch::default()
    };
    Edit::Change(number, Box::new(patch))
}

fn add(name: &str) -> Edit {
    Edit::Add(Box::new(peer(name)), PeerSide::Peers)
}

/// The numbers, names and weights of the members.
fn members(roster: &Roster) -> String {
    let members = roster.members().into_iter();
    let members = members.map(|member| {
        let weight = member.peer.weight;
        format!("{}{}{weight}", member.number, name(Some(&member.peer)))
    });
    members.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_number_is_of_one_member_for_good() {
    let roster = roster(vec![peer("a"), peer("b")]);
    let now = Instant::now();
    roster.edit(add("c"), now).unwrap();
    roster.edit(Edit::Remove(1), now).unwrap();
    roster.edit(add("b"), now).unwrap();
    roster.edit(weight(0, 5), now).unwrap();
    assert_eq!(members(&roster), "0a5 2c1 3b1");
    assert!(matches!(
        roster.edit(Edit::Remove(1), now),
        Err(MemberError::NotFound)
    ));
    assert!(matches!(
        roster.edit(add("c"), now),
        Err(MemberError::Exists)
    ));
    assert_eq!(members(&roster), "0a5 2c1 3b1", "nothing has changed");
}

#[test]
fn a_request_goes_on_with_the_peer_that_has_left() {
    let roster = roster(vec![peer("a"), peer("b")]);
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    let now = Instant::now();
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "a");
    roster.edit(Edit::Remove(0), now).unwrap();
    assert_eq!(roster.zombies(), 1);
    assert_eq!(chosen(&group, now, 2), "bb");
    drop(selection.answered());
    assert_eq!(roster.zombies(), 0);
}

#[test]
fn a_member_is_asked_always_by_name_or_never() {
    let roster = roster(vec![
        with(peer("a"), |peer| peer.id = "x".into()),
        peer("b"),
    ]);
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    let now = Instant::now();
    for (asked, all, by_name) in [
        (Availability::Down, "bb", "b"),
        (Availability::Draining, "bb", "a"),
        (Availability::Up, "ab", "a"),
    ] {
        let patch = Patch {
            standing: Some(asked),
            ..Patch::default()
        };
        roster.edit(Edit::Change(0, Box::new(patch)), now).unwrap();
        let mut seen: Vec<char> = chosen(&group, now, 2).chars().collect();
        seen.sort_unstable();
        assert_eq!(seen.into_iter().collect::<String>(), all, "{asked:?}");
        let mut selection = Selection::new(&group, 0);
        selection.want(Some("x".into()));
        assert_eq!(name(selection.next(now)), by_name, "{asked:?}");
    }
}

#[test]
fn a_reload_undoes_what_the_configuration_does_not_say() {
    let now = Instant::now();
    let before = roster(vec![peer("a"), peer("b"), peer("c"), peer("d")]);
    before.edit(weight(0, 7), now).unwrap();
    before.edit(Edit::Remove(1), now).unwrap();
    before.edit(add("e"), now).unwrap();
    // An edit that was reverted, or that the next configuration contains too, is not reported as
    // undone.
    before.edit(add("f"), now).unwrap();
    before.edit(Edit::Remove(5), now).unwrap();
    before.edit(weight(2, 3), now).unwrap();
    let after = roster(vec![peer("a"), peer("b"), heavy("c", 3), peer("d")]);
    after.adopt(&before);
    let undone: Vec<(String, MemberChange)> = after
        .undone()
        .into_iter()
        .map(|(name, done)| (String::from_utf8(name.to_vec()).unwrap(), done))
        .collect();
    assert_eq!(
        undone,
        [
            ("unix:a".to_owned(), MemberChange::Changed),
            ("unix:b".to_owned(), MemberChange::Removed),
            ("unix:e".to_owned(), MemberChange::Added),
        ]
    );
    assert_eq!(members(&after), "0a1 6b1 2c3 3d1");
    assert!(after.undone().is_empty(), "told once");
}

/// A configuration may have read the saved members before the last edit was saved.
#[test]
fn a_change_that_meets_a_reload_holds_behind_it() {
    let now = Instant::now();
    let page = Page::default();
    let before = kept(vec![peer("a")], &page);
    before.edit(weight(0, 2), now).unwrap();
    assert_eq!(*page.0.lock().unwrap(), "a=2 ");
    // This configuration was read before the edit.
    let after = kept(vec![peer("a")], &page);
    after.adopt(&before);
    assert_eq!(members(&after), "0a2");
    // The previous roster still serves requests in flight, and accepts edits.
    before.edit(add("b"), now).unwrap();
    before.edit(weight(0, 4), now).unwrap();
    assert_eq!(
        (members(&before), members(&after)),
        ("0a4 1b1".into(), "0a4 1b1".into())
    );
    assert_eq!(*page.0.lock().unwrap(), "a=4 b=1 ");
    // If the store was changed by somebody else, the changed members apply.
    *page.0.lock().unwrap() = "a=9 ".to_owned();
    let edited = kept(vec![heavy("a", 9)], &page);
    edited.adopt(&after);
    assert_eq!(members(&edited), "0a9");
    assert!(edited.undone().is_empty());
}

#[test]
fn what_cannot_be_written_down_does_not_happen() {
    let now = Instant::now();
    let page = Page::default();
    let roster = kept(vec![peer("a")], &page);
    *page.0.lock().unwrap() = "full".to_owned();
    for edit in [add("b"), weight(0, 2), Edit::Remove(0)] {
        let refused = roster.edit(edit, now);
        assert!(matches!(refused, Err(MemberError::Unwritten(_))));
        assert_eq!(members(&roster), "0a1");
    }
}

/// Counts the calls of `host_added`.
#[derive(Debug, Default)]
struct Told(std::sync::atomic::AtomicUsize);

impl HostLookup for Told {
    fn host_added(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

fn add_host(name: &'static str, port: u16) -> Edit {
    let host = Host { port, ..host(name) };
    Edit::AddHost(Box::new(host))
}

/// The numbers and servers of the hosts.
fn hosts(roster: &Roster) -> String {
    let servers = roster.servers().into_iter();
    let hosts = servers.filter_map(|member| match member.origin {
        Origin::Host(listed) => {
            let server = String::from_utf8(listed.host.server().to_vec()).unwrap();
            Some(format!("{}={server}", member.number))
        }
        Origin::Address | Origin::Lookup(..) => None,
    });
    hosts.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_host_comes_and_goes_with_its_peers() {
    let now = Instant::now();
    let told = Arc::<Told>::default();
    let roster = Roster::new(vec![peer("s")], Vec::new(), Method::RoundRobin, vec![]);
    let refused = roster.edit(add_host("a", 1), now);
    assert!(matches!(refused, Err(MemberError::NoResolver)));
    let roster = Arc::new(roster.looked_up_by(Some(told.clone())));
    for (name, port) in [("a", 1), ("b", 1), ("a", 2)] {
        roster.edit(add_host(name, port), now).unwrap();
    }
    let refused = roster.edit(add_host("A", 2), now);
    assert!(matches!(refused, Err(MemberError::Exists)));
    assert_eq!(told.0.load(std::sync::atomic::Ordering::Relaxed), 3);
    assert_eq!(hosts(&roster), "1=a:1 2=b:1 3=a:2");
    let keys: Vec<usize> = roster.hosts().iter().map(|host| host.key).collect();
    assert!(roster.resolved(keys[0], &at(&["1"])));
    assert!(roster.resolved(keys[2], &at(&["2", "3"])));
    assert_eq!(members(&roster), "0s1 411 521 631");
    // A request in flight may still use an address whose host is removed meanwhile.
    let group = Arc::new(Group::new("u".into(), Arc::clone(&roster), None));
    let mut selection = Selection::new(&group, 0);
    assert_eq!(name(selection.next(now)), "s");
    assert_eq!(name(selection.next(now)), "1");
    roster.edit(weight(1, 7), now).unwrap();
    assert_eq!(members(&roster), "0s1 417 521 631");
    roster.edit(Edit::Remove(1), now).unwrap();
    assert_eq!(
        (roster.zombies(), hosts(&roster)),
        (1, "2=b:1 3=a:2".into())
    );
    assert_eq!(members(&roster), "0s1 521 631");
    drop(selection);
    assert_eq!(roster.zombies(), 0);
    // The result of a lookup for a removed host is ignored.
    assert!(!roster.resolved(keys[0], &at(&["9"])));
    // A host that is added again is a new host.
    roster.edit(add_host("a", 1), now).unwrap();
    assert_eq!(hosts(&roster), "2=b:1 3=a:2 7=a:1");
    assert!(!roster.resolved(keys[0], &at(&["9"])));
}

/// Hosts with the same name are distinguished by their ports.
#[test]
fn hosts_keep_their_numbers_and_addresses_over_a_reload() {
    let now = Instant::now();
    let of = |ports: &[u16]| {
        let hosts = ports.iter().map(|port| Host {
            port: *port,
            ..host("h")
        });
        let roster = Roster::new(vec![], vec![], Method::RoundRobin, hosts.collect());
        Arc::new(roster.looked_up_by(Some(Arc::<Told>::default())))
    };
    let before = of(&[1, 2]);
    before.edit(add_host("x", 3), now).unwrap();
    before.resolved(0, &at(&["a"]));
    before.resolved(1, &at(&["b"]));
    assert_eq!(members(&before), "3a1 4b1");
    let after = of(&[5, 2, 1]);
    after.adopt(&before);
    // The host with another port is new, because both previous hosts match others exactly.
    assert_eq!(hosts(&after), "5=h:5 1=h:2 0=h:1");
    assert_eq!(members(&after), "4b1 3a1");
    let undone = after.undone();
    assert_eq!(undone, [(Bytes::from("x:3"), MemberChange::Added)]);
    // An edit of the previous roster also applies to the next roster.
    let added = before.edit(add_host("y", 4), now).unwrap();
    assert_eq!(added.number, 6);
    assert_eq!(hosts(&after), "5=h:5 1=h:2 0=h:1 6=y:4");
    assert_eq!(hosts(&before), "0=h:1 1=h:2 2=x:3 6=y:4");
    // A member that was added to the next roster can also be edited through the previous roster.
    let new = after.edit(add_host("z", 5), now).unwrap().number;
    before.edit(weight(new, 2), now).unwrap();
    assert_eq!(hosts(&before.newest()), "5=h:5 1=h:2 0=h:1 6=y:4 7=z:5");
    before.edit(Edit::Remove(new), now).unwrap();
    before.edit(Edit::Remove(6), now).unwrap();
    before.edit(weight(1, 3), now).unwrap();
    assert_eq!(hosts(&after), "5=h:5 1=h:2 0=h:1");
    assert_eq!(members(&after), "4b3 3a1");
}

/// A configuration may end while one before it still serves.
#[test]
fn a_change_passes_by_a_configuration_that_has_ended() {
    let now = Instant::now();
    let page = Page::default();
    let first = kept(vec![peer("a")], &page);
    first.edit(weight(0, 2), now).unwrap();
    let second = kept(vec![heavy("a", 2)], &page);
    second.adopt(&first);
    let third = kept(vec![heavy("a", 2)], &page);
    third.adopt(&second);
    assert!(Arc::ptr_eq(&first.newest(), &third));
    drop(second);
    first.edit(add("b"), now).unwrap();
    assert_eq!(members(&third), "0a2 1b1");
    assert_eq!(*page.0.lock().unwrap(), "a=2 b=1 ");
    // One that has not come into force takes no part.
    let refused = kept(vec![peer("c")], &page);
    refused.adopt(&third);
    drop(refused);
    first.edit(weight(1, 5), now).unwrap();
    assert_eq!(members(&third), "0a2 1b5");
    assert!(Arc::ptr_eq(&third.newest(), &third));
}
