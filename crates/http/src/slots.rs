//! The lifetimes of values that modules keep in slots: those of a plan, of a request, or of one
//! pass through the phases.
//!
//! A module declares `static SEEN: Slot<Seen, PassLifetime> = Slot::new();` and uses the slot with
//! `request.pass`. Neither the request nor the plan needs a field for the module.

use std::sync::atomic::{AtomicU16, Ordering};

use framework::slot::{Lifetime, Slot};

/// The lifetime of a plan, for settings that a module needs outside its handlers.
pub enum PlanLifetime {}

/// The lifetime of a main request, whose subrequests share the value.
pub enum MainRequestLifetime {}

/// The lifetime of a pass through the phases. An internal redirect begins another pass.
pub enum PassLifetime {}

/// The lifetime of a main request or of a subrequest.
pub enum RequestLifetime {}

/// A slot in a plan: see [`Plan::of`](crate::config::plan::Plan::of).
pub type PlanSlot<F> = Slot<F, PlanLifetime>;

/// Numbers the slots of each lifetime separately.
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

lifetimes!(
    PlanLifetime,
    MainRequestLifetime,
    PassLifetime,
    RequestLifetime
);
