//! The connections of HTTP/2 that a thread has to peers, for requests to find one with room.
//!
//! They outlive reloads, as all that are kept do. While one is being made, others that could share
//! it wait for it, until its peer has said how many requests it takes at once: only the first goes
//! out before that.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::hash::Map;
use bytes::Bytes;
use engine::net::Address;
use framework::generation::GenerationView;
use framework::slot::{OfThread, Slot, Thread};
use framework::workers::NotEnough;
use transport::Transport;
use upstream::Group;

use crate::link::{HEAD_SIZE_SHARED, Link};
use crate::stream::StreamHandle;

/// What the thread has.
static LINKS: Slot<SharedConnections, Thread> = Slot::new();

/// Requests that wait for a connection which is being made: as many as any peer should take at once
/// (RFC 9113, section 6.5.2).
const WAITING_MAX: usize = 100;

/// The connections of a thread.
pub(crate) struct SharedConnections {
    by_group: Map<Bytes, Vec<Rc<Link>>>,
    connecting: Vec<Rc<Connecting>>,
    /// The thread is about to end.
    ended: bool,
}

impl OfThread for SharedConnections {
    fn begin(_: &GenerationView) -> SharedConnections {
        SharedConnections {
            by_group: Map::default(),
            connecting: Vec::new(),
            ended: false,
        }
    }

    fn retire(&mut self) {
        self.ended = true;
        self.by_group
            .values()
            .flatten()
            .for_each(|link| link.end_soon());
    }
}

/// A connection that is being made.
struct Connecting {
    group: Bytes,
    address: Address,
    terms: Bytes,
    waiting: Cell<usize>,
    is_over: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

/// The right to make a connection that others wait for until it is dropped: they share what there
/// is then, or else the next of them has the right.
pub struct Permit {
    links: Rc<RefCell<SharedConnections>>,
    connecting: Rc<Connecting>,
}

/// What a request gets.
pub(crate) enum Found {
    /// A stream of a connection that there was.
    Joined(StreamHandle),
    /// The right to make one.
    Anew(Permit),
}

/// What a connection must be to have room for a request.
pub struct LinkOptions<'a> {
    /// Where the thread's connections are found.
    pub local: &'a GenerationView,
    /// The group that the peer is of.
    pub group: &'a Group,
    /// The peer's address.
    pub address: &'a Address,
    /// What those must agree on who share a connection.
    pub terms: &'a Bytes,
    /// The size of the request's head (RFC 9113, section 6.5.2).
    pub head_size: usize,
}

/// Finds a connection that has room for a request; waits for one that is being made.
///
/// # Errors
/// The request has no place among the connections of the thread.
pub(crate) async fn find(options: &LinkOptions<'_>) -> Result<Found, NotEnough> {
    let LinkOptions {
        local,
        group,
        address,
        terms,
        head_size,
    } = *options;
    let links = local.of_thread(&LINKS);
    loop {
        let found = links.borrow().find(group, address, terms, head_size);
        if let Some(link) = found {
            link.sharing.has_room().await?;
            // Where that was waited for, others may have filled it, or it has ended.
            if link.has_room(head_size) {
                return Ok(Found::Joined(StreamHandle::new(link)));
            }
            continue;
        }
        let connecting = {
            let mut known = links.borrow_mut();
            let agrees = |other: &&Rc<Connecting>| {
                other.group == group.name && other.address == *address && other.terms == *terms
            };
            let under_way = known.connecting.iter().filter(agrees);
            let is_large = head_size > HEAD_SIZE_SHARED;
            let has_room = |other: &&Rc<Connecting>| other.waiting.get() < WAITING_MAX;
            let mut to_wait_for = under_way.filter(|other| !is_large && has_room(other));
            match to_wait_for.next().cloned() {
                Some(connecting) => connecting,
                None => {
                    let connecting = Rc::new(Connecting {
                        group: group.name.clone(),
                        address: address.clone(),
                        terms: terms.clone(),
                        waiting: Cell::new(0),
                        is_over: Cell::new(false),
                        wakers: RefCell::default(),
                    });
                    // None waits for one that has no room beside its first request.
                    if !is_large {
                        known.connecting.push(Rc::clone(&connecting));
                    }
                    return Ok(Found::Anew(Permit {
                        links: Rc::clone(&links),
                        connecting,
                    }));
                }
            }
        };
        connecting.ended().await;
    }
}

impl Connecting {
    /// PermitWait until there is a connection, or none after all.
    async fn ended(self: Rc<Connecting>) {
        struct PermitWait(Rc<Connecting>);
        impl Drop for PermitWait {
            fn drop(&mut self) {
                self.0.waiting.set(self.0.waiting.get() - 1);
            }
        }
        self.waiting.set(self.waiting.get() + 1);
        let waits = PermitWait(self);
        poll_fn(|context| {
            if waits.0.is_over.get() {
                return Poll::Ready(());
            }
            let mut wakers = waits.0.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Permit {
    /// The connection is there: it serves from now on, this request first. The others wait for its
    /// peer.
    pub fn begin(self, transport: Transport, group: &Group) -> StreamHandle {
        let Connecting { address, terms, .. } = &*self.connecting;
        let link = Rc::new(Link::new(transport, group, address, terms));
        let mut known = self.links.borrow_mut();
        if !known.ended {
            let of_group = known.by_group.entry(group.name.clone()).or_default();
            of_group.push(Rc::clone(&link));
        }
        drop(known);
        let links = Rc::clone(&self.links);
        engine::spawn(Rc::clone(&link).run(links, self));
        StreamHandle::new(link)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut known = self.links.borrow_mut();
        known
            .connecting
            .retain(|other| !Rc::ptr_eq(other, &self.connecting));
        drop(known);
        self.connecting.is_over.set(true);
        let wakers = self.connecting.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl SharedConnections {
    fn find(
        &self,
        group: &Group,
        address: &Address,
        terms: &Bytes,
        head_size: usize,
    ) -> Option<Rc<Link>> {
        let of_group = self.by_group.get(&group.name)?;
        let mut agreeing = of_group
            .iter()
            .filter(|link| link.address == *address && link.terms == *terms);
        agreeing.find(|link| link.has_room(head_size)).cloned()
    }

    pub(crate) fn remove(&mut self, link: &Link) {
        if let Some(of_group) = self.by_group.get_mut(&link.group) {
            of_group.retain(|other| !std::ptr::eq(&**other, link));
            if of_group.is_empty() {
                self.by_group.remove(&link.group);
            }
        }
    }

    /// A connection has become idle: where more are than are to be kept, one ends. That is one
    /// without room if there is any, else the one that has been idle for longest.
    pub(crate) fn make_room(&mut self, link: &Link) {
        let Some(of_group) = self.by_group.get(&link.group) else {
            return;
        };
        let idle = of_group.iter().filter(|other| other.is_idle());
        if idle.clone().count() > link.kept_max()
            && let Some(oldest) = idle.min_by_key(|other| (other.has_room(0), other.idle_since()))
        {
            oldest.end_soon();
        }
    }
}
