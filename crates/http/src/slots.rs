//! How long what modules put into slots lasts that lie with a plan, a request or a part of its way.
//!
//! A module writes `static SEEN: Slot<Seen, OfPass> = Slot::new();` and asks `request.pass`;
//! neither the request nor the plan has a field for it.

use std::sync::atomic::{AtomicU16, Ordering};

use framework::slot::{Lifetime, Slot};

/// As long as a plan, which keeps what modules need of their settings outside of what they have
/// registered.
pub enum OfPlan {}

/// As long as a main request: its subrequests have it in common.
pub enum OfMain {}

/// As long as a request has one location to answer in: a redirect within the server begins another
/// pass.
pub enum OfPass {}

/// As long as a request, be it the main one or a subrequest.
pub enum OfRequest {}

/// A place in a plan: see [`Plan::of`](crate::config::plan::Plan::of).
pub type PlanSlot<F> = Slot<F, OfPlan>;

/// Lifetimes whose slots are numbered each by themselves.
macro_rules! lifetimes {
    ($($lifetime:ty),*) => {
        $(impl Lifetime for $lifetime {
            fn next_number() -> u16 {
                static NEXT: AtomicU16 = AtomicU16::new(0);
                NEXT.fetch_add(1, Ordering::Relaxed)
            }
        })*
    };
}

lifetimes!(OfPlan, OfMain, OfPass, OfRequest);
