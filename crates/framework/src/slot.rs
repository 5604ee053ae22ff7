//! Places of a module in what it does not own: what it keeps of a thread and a generation lies with them, and neither
//! has a field for it.
//!
//! A module writes `static FILES: Slot<FileCache, ThreadGeneration> = Slot::new();` and asks `local.at(&FILES)`. The
//! lifetime says when what lies there begins and ends.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::generation::Local;

/// How long what lies in a slot stays there.
pub trait Lifetime: 'static {
    /// A number that no other slot of this lifetime has.
    fn next_number() -> u16;
}

/// As long as one thread serves by one generation.
pub enum ThreadGeneration {}

impl Lifetime for ThreadGeneration {
    fn next_number() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A place for a `T`, which lives as long as `L` says. Slots are statics: their number is bounded by the code.
pub struct Slot<T, L> {
    number: AtomicU16,
    holds: PhantomData<fn() -> (T, L)>,
}

/// A slot that has not been used yet.
const UNNUMBERED: u16 = u16::MAX;

impl<T, L: Lifetime> Slot<T, L> {
    /// A slot of its own; it is numbered when it is first used.
    #[expect(
        clippy::new_without_default,
        reason = "a slot is a static: a default would be no place"
    )]
    pub const fn new() -> Slot<T, L> {
        Slot {
            number: AtomicU16::new(UNNUMBERED),
            holds: PhantomData,
        }
    }

    #[inline]
    fn number(&self) -> usize {
        match self.number.load(Ordering::Relaxed) {
            UNNUMBERED => self.take_number(),
            number => number.into(),
        }
    }

    /// Where two threads draw a number at once, the one that is written first stays; the other number is left out.
    #[cold]
    fn take_number(&self) -> usize {
        let drawn = L::next_number();
        let first = Ordering::Relaxed;
        match self
            .number
            .compare_exchange(UNNUMBERED, drawn, first, first)
        {
            Ok(_) => drawn.into(),
            Err(taken) => taken.into(),
        }
    }
}

/// What one thread keeps for one generation.
pub trait OfThread: 'static {
    /// What it is before its first use.
    fn begin(local: &Local) -> Self;

    /// A newer generation serves from now on; requests that have begun may still ask.
    fn retire(&mut self) {}
}

/// What has been kept, by the numbers of its slots.
#[derive(Default)]
pub struct Rooms(RefCell<Vec<Option<Room>>>);

struct Room {
    /// An `Rc<RefCell<T>>` of the slot's `T`.
    value: Rc<dyn Any>,
    retire: fn(&dyn Any),
}

impl Rooms {
    /// What the slot holds, made when it is first asked for.
    pub fn at<T: OfThread>(
        &self,
        slot: &Slot<T, ThreadGeneration>,
        local: &Local,
    ) -> Rc<RefCell<T>> {
        let number = slot.number();
        if let Some(Some(room)) = self.0.borrow().get(number)
            && let Ok(known) = Rc::clone(&room.value).downcast()
        {
            return known;
        }
        let made = Rc::new(RefCell::new(T::begin(local))); // without a borrow: it may ask for others
        let mut rooms = self.0.borrow_mut();
        if rooms.len() <= number {
            rooms.resize_with(number + 1, || None);
        }
        if let Some(room) = rooms.get_mut(number) {
            *room = Some(Room {
                value: Rc::clone(&made) as Rc<dyn Any>,
                retire: retire::<T>,
            });
        }
        made
    }

    /// A newer generation serves from now on.
    pub fn retire(&self) {
        for room in self.0.borrow().iter().flatten() {
            (room.retire)(&*room.value);
        }
    }
}

fn retire<T: OfThread>(value: &dyn Any) {
    if let Some(room) = value.downcast_ref::<RefCell<T>>() {
        room.borrow_mut().retire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::counters::ThreadCounters;
    use crate::generation::Generation;
    use crate::zone::Zones;

    fn local() -> Local {
        let generation = Generation::new(Zones::default());
        Local::new(Arc::new(generation), Arc::<ThreadCounters>::default())
    }

    static FIRST: Slot<Kept, ThreadGeneration> = Slot::new();
    static SECOND: Slot<Kept, ThreadGeneration> = Slot::new();
    static ASKING: Slot<Asking, ThreadGeneration> = Slot::new();

    #[derive(Default)]
    struct Kept(Vec<u8>);

    impl OfThread for Kept {
        fn begin(_: &Local) -> Kept {
            Kept::default()
        }

        fn retire(&mut self) {
            self.0.clear();
        }
    }

    /// Looks at another slot when it is made.
    struct Asking(Vec<u8>);

    impl OfThread for Asking {
        fn begin(local: &Local) -> Asking {
            Asking(local.at(&FIRST).borrow().0.clone())
        }
    }

    #[test]
    fn each_slot_is_a_place_of_its_own() {
        let first = local();
        first.at(&FIRST).borrow_mut().0.push(1);
        first.at(&SECOND).borrow_mut().0.push(2);
        assert_eq!(first.at(&FIRST).borrow().0, [1]);
        assert_eq!(first.at(&SECOND).borrow().0, [2]);
        assert_eq!(first.at(&ASKING).borrow().0, [1], "it may ask for others");
        let other = local();
        assert!(
            other.at(&FIRST).borrow().0.is_empty(),
            "of another generation"
        );
    }

    #[test]
    fn what_is_kept_learns_that_a_newer_generation_serves() {
        let local = local();
        let held = local.at(&FIRST);
        held.borrow_mut().0.push(1);
        local.at(&ASKING);
        local.retire();
        assert!(local.is_retired());
        assert!(held.borrow().0.is_empty());
        assert_eq!(
            local.at(&ASKING).borrow().0,
            [1],
            "what does not mind stays"
        );
    }
}
