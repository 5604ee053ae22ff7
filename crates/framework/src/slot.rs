//! Slots for a module's state inside objects that it does not own, such as a thread and a
//! generation, which have no field for the module.
//!
//! A module writes `static FILES: Slot<FileCache, ThreadGeneration> = Slot::new();` and calls
//! `local.at(&FILES)`. The lifetime type says when the state is created and dropped. A protocol has
//! further lifetimes, such as that of a request or of one of its phases; their state is in
//! [`Slots`].

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::generation::GenerationView;

/// The lifetime of the state in a slot.
pub trait Lifetime: 'static {
    /// A number that no other slot of this lifetime has.
    fn next_number() -> u16;
}

/// As long as one thread uses one generation.
pub enum ThreadGeneration {}

impl Lifetime for ThreadGeneration {
    fn next_number() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// As long as one thread serves, over all generations.
pub enum Thread {}

impl Lifetime for Thread {
    fn next_number() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A slot for a `T` with the lifetime `L`. As slots are statics, their number is fixed at compile
/// time.
pub struct Slot<T, L> {
    number: AtomicU16,
    holds: PhantomData<fn() -> (T, L)>,
}

/// The number of a slot that has not been used yet.
const UNNUMBERED: u16 = u16::MAX;

impl<T, L: Lifetime> Slot<T, L> {
    /// A new slot; it is numbered when it is first used.
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

    /// The slot's number among those of its lifetime.
    #[inline]
    pub fn number(&self) -> usize {
        match self.number.load(Ordering::Relaxed) {
            UNNUMBERED => self.take_number(),
            number => number.into(),
        }
    }

    /// If two threads assign a number at once, the number that is stored first counts, and the
    /// other stays unused.
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

/// A module's state in a thread, for one generation or over all of them.
pub trait ThreadState: 'static {
    /// Creates the state at its first use.
    fn begin(local: &GenerationView) -> Self;

    /// Drops caches: a newer generation has replaced this one, or, for the lifetime [`Thread`], the
    /// thread is ending. Requests in progress may still use the state.
    fn retire(&mut self) {}
}

/// The state of all slots of one lifetime and one owner, by slot number.
#[derive(Default)]
pub struct SlotStates(RefCell<Vec<Option<SlotStorage>>>);

struct SlotStorage {
    /// An `Rc<RefCell<T>>` of the slot's `T`.
    value: Rc<dyn Any>,
    retire: fn(&dyn Any),
}

impl SlotStates {
    /// The state of a slot, created at the first call.
    pub fn at<T: ThreadState, L: Lifetime>(
        &self,
        slot: &Slot<T, L>,
        local: &GenerationView,
    ) -> Rc<RefCell<T>> {
        let number = slot.number();
        if let Some(Some(room)) = self.0.borrow().get(number)
            && let Ok(known) = Rc::clone(&room.value).downcast()
        {
            return known;
        }
        // `self.0` is not borrowed here, since `begin` may use other slots.
        let made = Rc::new(RefCell::new(T::begin(local)));
        let mut rooms = self.0.borrow_mut();
        if rooms.len() <= number {
            rooms.resize_with(number + 1, || None);
        }
        if let Some(room) = rooms.get_mut(number) {
            *room = Some(SlotStorage {
                value: Rc::clone(&made) as Rc<dyn Any>,
                retire: retire::<T>,
            });
        }
        made
    }

    /// Retires all states.
    pub fn retire(&self) {
        for room in self.0.borrow().iter().flatten() {
            (room.retire)(&*room.value);
        }
    }
}

fn retire<T: ThreadState>(value: &dyn Any) {
    if let Some(room) = value.downcast_ref::<RefCell<T>>() {
        room.borrow_mut().retire();
    }
}

/// The value of a slot in [`Slots`]. It is reused by one owner after another, such as one request
/// after another.
pub trait SlotValue: Default + 'static {
    /// Resets the value to its default. Memory may be kept, content may not.
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The slots of an owner, such as a request, by number. The object is reused: the next owner finds
/// the slots empty, but their memory allocated. A life is the time that one owner uses the object,
/// until the [end](Slots::end).
pub struct Slots<L> {
    places: Vec<Option<SlotEntry>>,
    /// The number of slots in use in this life.
    live: usize,
    of: PhantomData<fn() -> L>,
}

struct SlotEntry {
    /// A value of the slot's type `T`.
    value: Box<dyn Any>,
    /// Whether the slot is in use in this life.
    live: bool,
    reset: fn(&mut dyn Any),
}

impl<L> Default for Slots<L> {
    fn default() -> Slots<L> {
        Slots {
            places: Vec::new(),
            live: 0,
            of: PhantomData,
        }
    }
}

impl<L: Lifetime> Slots<L> {
    /// The value of a slot; `None` if none has been set since the last reset.
    pub fn get<T: SlotValue>(&self, slot: &Slot<T, L>) -> Option<&T> {
        let place = self.places.get(slot.number())?.as_ref()?;
        place.live.then(|| place.value.downcast_ref()).flatten()
    }

    /// The value of a slot, mutable.
    pub fn get_mut<T: SlotValue>(&mut self, slot: &Slot<T, L>) -> Option<&mut T> {
        let place = self.places.get_mut(slot.number())?.as_mut()?;
        place.live.then(|| place.value.downcast_mut()).flatten()
    }

    /// The value of a slot, which starts with its `Default`. Memory is allocated only when the slot
    /// is used for the first time.
    pub fn enter<T: SlotValue>(&mut self, slot: &Slot<T, L>) -> &mut T {
        let number = slot.number();
        if self.places.len() <= number {
            self.places.resize_with(number + 1, || None);
        }
        let place = self.places[number].get_or_insert_with(|| SlotEntry {
            value: Box::new(T::default()),
            live: false,
            reset: reset::<T>,
        }); // invariant: `places` is longer than `number`
        if !place.live {
            place.live = true;
            self.live += 1;
        }
        // invariant: the place was made for this slot
        place.value.downcast_mut().expect("a slot has one type")
    }

    /// Takes the value out of its slot; `None` if the slot is not in use.
    pub fn take<T: SlotValue>(&mut self, slot: &Slot<T, L>) -> Option<T> {
        let place = self.places.get_mut(slot.number())?.as_mut()?;
        if !std::mem::take(&mut place.live) {
            return None;
        }
        self.live -= 1;
        place.value.downcast_mut().map(std::mem::take)
    }

    /// Whether no slot is in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Ends this life: resets all slots in use.
    #[inline]
    pub fn end(&mut self) {
        if self.live != 0 {
            self.reset_live();
        }
    }

    fn reset_live(&mut self) {
        for place in self.places.iter_mut().flatten() {
            if std::mem::take(&mut place.live) {
                (place.reset)(&mut *place.value);
            }
        }
        self.live = 0;
    }
}

fn reset<T: SlotValue>(value: &mut dyn Any) {
    if let Some(value) = value.downcast_mut::<T>() {
        value.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::counters::ThreadCounters;
    use crate::generation::Generation;
    use crate::zone::Zones;

    fn local() -> GenerationView {
        let generation = Generation::new(Zones::default());
        GenerationView::new(Arc::new(generation), Arc::<ThreadCounters>::default())
    }

    static FIRST: Slot<Gathered, ThreadGeneration> = Slot::new();
    static SECOND: Slot<Gathered, ThreadGeneration> = Slot::new();
    static ASKING: Slot<Asking, ThreadGeneration> = Slot::new();

    #[derive(Default)]
    struct Gathered(Vec<u8>);

    impl ThreadState for Gathered {
        fn begin(_: &GenerationView) -> Gathered {
            Gathered::default()
        }

        fn retire(&mut self) {
            self.0.clear();
        }
    }

    /// Uses another slot while it is created.
    struct Asking(Vec<u8>);

    impl ThreadState for Asking {
        fn begin(local: &GenerationView) -> Asking {
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

    /// A lifetime that the test controls.
    enum OfTest {}

    impl Lifetime for OfTest {
        fn next_number() -> u16 {
            static NEXT: AtomicU16 = AtomicU16::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed)
        }
    }

    static HELD: Slot<Held, OfTest> = Slot::new();
    static TEXT: Slot<Text, OfTest> = Slot::new();

    /// A value whose drop has an effect, like that of a guard of a counted place.
    #[derive(Default)]
    struct Held(Option<Rc<()>>);

    impl SlotValue for Held {}

    /// Keeps its memory.
    #[derive(Default)]
    struct Text(Vec<u8>);

    impl SlotValue for Text {
        fn reset(&mut self) {
            self.0.clear();
        }
    }

    #[test]
    fn what_one_life_leaves_no_other_finds() {
        let (mut slots, held) = (Slots::<OfTest>::default(), Rc::new(()));
        assert!(slots.get(&HELD).is_none() && slots.is_empty());
        slots.enter(&HELD).0 = Some(Rc::clone(&held));
        slots.enter(&TEXT).0.extend_from_slice(b"text");
        assert_eq!(slots.get(&TEXT).map(|text| &*text.0), Some(&b"text"[..]));
        assert!(slots.get_mut(&HELD).is_some_and(|held| held.0.is_some()));
        slots.end();
        assert_eq!(Rc::strong_count(&held), 1, "values go at once");
        assert!(slots.is_empty() && slots.get(&TEXT).is_none() && slots.get_mut(&HELD).is_none());
        let text = slots.enter(&TEXT);
        assert!(text.0.is_empty() && text.0.capacity() >= 4, "memory stays");
        assert!(slots.get(&HELD).is_none(), "one place is not the other");
    }

    #[test]
    fn what_is_taken_is_there_no_more() {
        let mut slots = Slots::<OfTest>::default();
        assert!(slots.take(&TEXT).is_none());
        slots.enter(&TEXT).0.push(1);
        assert_eq!(slots.take(&TEXT).map(|text| text.0), Some(vec![1]));
        assert!(slots.is_empty() && slots.get(&TEXT).is_none() && slots.take(&TEXT).is_none());
    }
}
