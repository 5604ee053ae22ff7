//! The pool of a thread's idle connections to peers (`keepalive`).
//!
//! nginx: <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#keepalive>. Idle
//! connections are watched: a connection is closed at once if its peer closes it or sends
//! unexpected bytes, if it has been idle for too long, or if room is needed for
//! `worker_connections`. Idle connections outlive reloads, and are closed when the thread is told
//! to end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use base::hash::Map;
use base::slab::{self, Slab};
use bytes::Bytes;
use engine::net::Address;
use framework::generation::GenerationView;
use framework::slot::{Slot, Thread, ThreadState};
use framework::workers::{Spare, SpareEntry};
use transport::Transport;

use crate::group::{Group, Keepalive};

/// The pool of the thread.
static POOL: Slot<Pool, Thread> = Slot::new();

/// A connection in use. It stays in its box while it moves in and out of the pool.
pub struct Connection {
    /// The transport of the connection.
    pub transport: Transport,
    /// The properties of the connection.
    pub made: Made,
    /// The waker of the connection while it is idle; `None` until the connection becomes idle for
    /// the first time.
    watch: Option<Arc<IdleWatch>>,
}

impl Connection {
    /// A new connection.
    pub fn new(transport: Transport, made: Made) -> Box<Connection> {
        Box::new(Connection {
            transport,
            made,
            watch: None,
        })
    }
}

/// The properties of a connection over which requests are sent.
#[derive(Clone, Debug)]
pub struct Made {
    /// Number of requests sent over the connection, the current request included.
    pub requests: u64,
    /// When the connection was established.
    pub since: Instant,
    /// The address that the connection leads to.
    pub address: Address,
    /// Everything that the users of the connection must have in common: see [`take`].
    pub terms: Bytes,
}

impl Made {
    /// The properties of a new connection, for its first request.
    pub fn now(address: Address, terms: Bytes) -> Made {
        Made {
            requests: 1,
            since: engine::now(),
            address,
            terms,
        }
    }
}

/// The connections of a thread.
struct Pool {
    idle: Slab<Idle>,
    /// The connections to the peers of each group, by the group's name; most recently used first.
    by_group: Map<Bytes, VecDeque<slab::Key>>,
    ready: Arc<Ready>,
    /// Closes idle connections to make room for others. Registered with the first kept connection.
    spares: Option<Rc<Spares>>,
    /// Whether the task [`watch`] has been started.
    watched: bool,
    /// Whether the thread is ending, so that connections are no longer kept.
    ended: bool,
}

struct Idle {
    connection: Box<Connection>,
    group: Bytes,
    until: Instant,
    waker: Waker,
    /// The registration of the connection among those that may be closed to make room for others.
    spare: Option<SpareEntry>,
}

/// The pool as an owner of connections that may be closed to make room for others.
struct Spares(Weak<RefCell<Pool>>);

impl Spare for Spares {
    fn close(&self, key: slab::Key) {
        if let Some(pool) = self.0.upgrade() {
            pool.borrow_mut().end(key);
        }
    }
}

/// The keys of the idle connections with an event, and the waker of the watching task.
#[derive(Default)]
struct Ready(Mutex<(Vec<slab::Key>, Option<Waker>)>);

impl Ready {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<slab::Key>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the watching task for one idle connection.
struct IdleWatch {
    /// The key of the idle connection: generation in the upper half, index in the lower half.
    /// Changes each time the connection becomes idle.
    key: AtomicU64,
    ready: Arc<Ready>,
}

impl IdleWatch {
    /// Sets the key under which the connection is idle.
    fn name(&self, key: slab::Key) {
        let halves = u64::from(key.generation) << 32 | u64::from(key.index);
        self.key.store(halves, Ordering::Release);
    }
}

impl Wake for IdleWatch {
    fn wake(self: Arc<IdleWatch>) {
        let halves = self.key.load(Ordering::Acquire);
        let mut ready = self.ready.lock();
        ready.0.push(slab::Key {
            index: halves as u32,
            generation: (halves >> 32) as u32,
        });
        if let Some(task) = ready.1.take() {
            drop(ready);
            task.wake();
        }
    }
}

impl ThreadState for Pool {
    fn begin(_: &GenerationView) -> Pool {
        Pool {
            idle: Slab::new(),
            by_group: Map::default(),
            ready: Arc::default(),
            spares: None,
            watched: false,
            ended: false,
        }
    }

    fn retire(&mut self) {
        self.ended = true;
        self.by_group.clear();
        self.idle = Slab::new();
        // The task finds no connections and ends.
        self.ready.lock().1.take().into_iter().for_each(Waker::wake);
    }
}

/// Takes an idle connection to the peer at `address`, with equal `terms`: the text of everything
/// else that the users of a connection must have in common, such as the TLS server name.
pub fn take(
    local: &GenerationView,
    group: &Group,
    address: &Address,
    terms: &[u8],
) -> Option<Box<Connection>> {
    group.keepalive?;
    let pool = local.of_thread(&POOL);
    let pool = &mut *pool.borrow_mut();
    let keys = pool.by_group.get_mut(&group.name)?;
    let place = keys.iter().position(|key| {
        let idle = pool.idle.get(*key).map(|idle| &idle.connection.made);
        idle.is_some_and(|known| known.address == *address && known.terms == terms)
    })?;
    let key = keys.remove(place)?;
    let Idle {
        mut connection,
        spare,
        ..
    } = pool.idle.remove(key)?;
    drop(spare);
    connection.made.requests += 1;
    Some(connection)
}

/// Adds a connection to the pool after a complete response, unless the connection has reached its
/// limit of age or requests.
pub fn give_back(local: &GenerationView, group: &Group, connection: Box<Connection>) {
    let Some(keepalive) = group.keepalive else {
        return;
    };
    if !may_stay(&keepalive, &connection.made) {
        return;
    }
    let pool = local.of_thread(&POOL);
    let mut guard = pool.borrow_mut();
    if guard.ended {
        return;
    }
    let spares = guard
        .spares
        .get_or_insert_with(|| Rc::new(Spares(Rc::downgrade(&pool))));
    let spares: Rc<dyn Spare> = Rc::clone(spares) as Rc<dyn Spare>;
    let key = guard.keep(group, &keepalive, connection, &spares);
    // The peer may have closed the connection already.
    guard.look(key);
    if !std::mem::replace(&mut guard.watched, true) {
        drop(guard);
        engine::spawn(watch(pool));
    }
}

/// Whether the connection may be used for further requests.
fn may_stay(keepalive: &Keepalive, made: &Made) -> bool {
    let age = engine::now().saturating_duration_since(made.since);
    keepalive.connections > 0 && made.requests < keepalive.requests && age <= keepalive.time
}

impl Pool {
    fn keep(
        &mut self,
        group: &Group,
        keepalive: &Keepalive,
        mut connection: Box<Connection>,
        spares: &Rc<dyn Spare>,
    ) -> slab::Key {
        let until = engine::now() + keepalive.timeout;
        let watch = connection.watch.get_or_insert_with(|| {
            Arc::new(IdleWatch {
                key: AtomicU64::new(0),
                ready: Arc::clone(&self.ready),
            })
        });
        let watch = Arc::clone(watch);
        let key = self.idle.insert(Idle {
            connection,
            group: group.name.clone(),
            until,
            waker: Waker::from(Arc::clone(&watch)),
            spare: None,
        });
        watch.name(key);
        if let Some(idle) = self.idle.get_mut(key) {
            idle.spare = SpareEntry::new(spares, key);
        }
        let keys = match self.by_group.get_mut(&group.name) {
            Some(keys) => keys,
            None => self.by_group.entry(group.name.clone()).or_default(),
        };
        keys.push_front(key);
        while keys.len() > keepalive.connections {
            if let Some(oldest) = keys.pop_back() {
                self.idle.remove(oldest);
            }
        }
        key
    }

    /// Closes an idle connection if its peer has closed it or has sent unexpected bytes, or if its
    /// idle time is over.
    fn look(&mut self, key: slab::Key) {
        let Some(idle) = self.idle.get(key) else {
            return; // the connection is in use again
        };
        let mut context = Context::from_waker(&idle.waker);
        let transport = &idle.connection.transport;
        if transport
            .poll_recv(Some(idle.until), &mut context)
            .is_pending()
        {
            return;
        }
        self.end(key);
    }

    fn end(&mut self, key: slab::Key) {
        if let Some(idle) = self.idle.remove(key)
            && let Some(keys) = self.by_group.get_mut(&idle.group)
        {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_group.remove(&idle.group);
            }
        }
    }
}

/// Watches the idle connections of a thread until the thread is told to end.
async fn watch(pool: Rc<RefCell<Pool>>) {
    poll_fn(|context| {
        let mut pool = pool.borrow_mut();
        if pool.ended {
            return Poll::Ready(());
        }
        let keys = {
            let mut ready = pool.ready.lock();
            ready.1 = Some(context.waker().clone());
            std::mem::take(&mut ready.0)
        };
        for key in keys {
            pool.look(key);
        }
        Poll::Pending
    })
    .await;
}
