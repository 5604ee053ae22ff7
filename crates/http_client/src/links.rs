//! The HTTP/2 connections of a thread to peers. A request finds a connection with room among them.
//!
//! The connections outlive reloads. While a connection is being opened, other requests that could
//! share it wait until the peer has announced the number of concurrent streams; only the first
//! request is sent earlier.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::hash::Map;
use bytes::Bytes;
use engine::net::Address;
use framework::generation::GenerationView;
use framework::slot::{Slot, Thread, ThreadState};
use framework::workers::TooManyConnections;
use transport::Transport;
use upstream::Group;

use crate::link::{HEAD_SIZE_SHARED, Link};
use crate::stream::StreamHandle;

/// The connections of the thread.
static LINKS: Slot<SharedConnections, Thread> = Slot::new();

/// Maximum number of requests that wait for a connection that is being opened: the smallest limit
/// of concurrent streams that RFC 9113 recommends to a peer (section 6.5.2).
const WAITING_MAX: usize = 100;

/// The connections of a thread.
pub(crate) struct SharedConnections {
    /// The open connections by the name of their group.
    by_group: Map<Bytes, Vec<Rc<Link>>>,
    /// The connections that are being opened.
    connecting: Vec<Rc<Connecting>>,
    /// The thread is ending.
    ended: bool,
}

impl ThreadState for SharedConnections {
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
            .for_each(|link| link.close_when_idle());
    }
}

/// A connection that is being opened.
struct Connecting {
    group: Bytes,
    address: Address,
    terms: Bytes,
    /// The number of requests that wait for the connection.
    waiting: Cell<usize>,
    /// Whether the connection is ready for other requests, or has failed.
    is_over: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

/// The permit to open a connection. Other requests wait until the permit is dropped: they then
/// share the open connection, or, if opening failed, the next of them gets a permit.
pub struct Permit {
    links: Rc<RefCell<SharedConnections>>,
    connecting: Rc<Connecting>,
}

/// The result of [`find`].
pub(crate) enum Found {
    /// A stream of an existing connection.
    Joined(StreamHandle),
    /// The permit to open a connection.
    Anew(Permit),
}

/// What a request needs of a connection.
pub struct LinkOptions<'a> {
    /// The view with the thread's connections.
    pub local: &'a GenerationView,
    /// The group of the peer.
    pub group: &'a Group,
    /// The peer's address.
    pub address: &'a Address,
    /// The terms of the connection: requests only share connections with equal terms.
    pub terms: &'a Bytes,
    /// The size of the request's head (RFC 9113, section 6.5.2).
    pub head_size: usize,
}

/// Finds a connection that has room for a request, or waits for one that is being opened.
///
/// # Errors
/// The request has no place among the connections of the thread.
pub(crate) async fn find(options: &LinkOptions<'_>) -> Result<Found, TooManyConnections> {
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
            // During the wait, other requests may have filled the connection, or it may have ended.
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
                    // A large head goes alone on the new connection, so no other request waits for
                    // that connection.
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
    /// Waits until the connection is open, or has failed.
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
    /// Starts the link's task with the open connection, and returns the first stream, for the
    /// request that has opened the connection. Requests that wait for the connection wait on until
    /// the peer's settings are received.
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
    /// Returns a connection of the group with this address and these terms that has room for the
    /// head.
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

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, link: &Link) {
        if let Some(of_group) = self.by_group.get_mut(&link.group) {
            of_group.retain(|other| !std::ptr::eq(&**other, link));
            if of_group.is_empty() {
                self.by_group.remove(&link.group);
            }
        }
    }

    /// Closes an idle connection if the group has more of them than it keeps: one without room if
    /// there is any, else the one that has been idle for longest. `link` has just become idle.
    pub(crate) fn make_room(&mut self, link: &Link) {
        let Some(of_group) = self.by_group.get(&link.group) else {
            return;
        };
        let idle = of_group.iter().filter(|other| other.is_idle());
        if idle.clone().count() > link.kept_max()
            && let Some(oldest) = idle.min_by_key(|other| (other.has_room(0), other.idle_since()))
        {
            oldest.close_when_idle();
        }
    }
}
