//! Places of a module in what it does not own: what it keeps of a thread and a generation lies with
//! them, and neither has a field for it.
//!
//! A module writes `static FILES: Slot<FileCache, ThreadGeneration> = Slot::new();` and asks
//! `local.at(&FILES)`. The lifetime says when what lies there begins and ends. A protocol has
//! lifetimes of its own, as long as a request or a part of its way; what lies there is in
//! [`Slots`].

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::generation::GenerationView;

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

/// As long as one thread serves, by whatever generation.
pub enum Thread {}

impl Lifetime for Thread {
    fn next_number() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A place for a `T`, which lives as long as `L` says. Slots are statics: their number is bounded
/// by the code.
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

    /// The number that it has among the slots of its lifetime.
    #[inline]
    pub fn number(&self) -> usize {
        match self.number.load(Ordering::Relaxed) {
            UNNUMBERED => self.take_number(),
            number => number.into(),
        }
    }

    /// Where two threads draw a number at once, the one that is written first stays; the other
    /// number is left out.
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

/// What one thread keeps, for one generation or over all.
pub trait OfThread: 'static {
    /// What it is before its first use.
    fn begin(local: &GenerationView) -> Self;

    /// A newer generation serves from now on, or, of what lives as long as the thread, none: the
    /// thread begins to end. Requests that have begun may still ask.
    fn retire(&mut self) {}
}

/// What has been kept, by the numbers of its slots.
#[derive(Default)]
pub struct Rooms(RefCell<Vec<Option<SlotStorage>>>);

struct SlotStorage {
    /// An `Rc<RefCell<T>>` of the slot's `T`.
    value: Rc<dyn Any>,
    retire: fn(&dyn Any),
}

impl Rooms {
    /// What the slot holds, made when it is first asked for.
    pub fn at<T: OfThread, L: Lifetime>(
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
        // without a borrow: it may ask for others
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

    /// Tells all that their time is over.
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

/// What lies in a place again and again, one life after the other.
pub trait SlotValue: Default + 'static {
    /// Makes it what `Default` gives. Memory may be kept, values may not.
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The places of one life, such as that of a request, by the numbers of their slots. They outlast
/// it: the next life finds them empty, and their memory there.
pub struct Slots<L> {
    places: Vec<Option<SlotEntry>>,
    /// How many have been entered in this life.
    live: usize,
    of: PhantomData<fn() -> L>,
}

struct SlotEntry {
    /// A `T` of the slot's.
    value: Box<dyn Any>,
    /// Whether it has been entered in this life.
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

    /// What lies there, at first its default. Only the first life that asks allocates.
    pub fn enter<T: SlotValue>(&mut self, slot: &Slot<T, L>) -> &mut T {
        let number = slot.number();
        if self.places.len() <= number {
            self.places.resize_with(number + 1, || None);
        }
        let place = self.places[number].get_or_insert_with(|| SlotEntry {
            value: Box::new(T::default()),
            live: false,
            reset: reset::<T>,
        }); // invariant: there are more than `number`
        if !place.live {
            place.live = true;
            self.live += 1;
        }
        // invariant: the place was made for this slot
        place.value.downcast_mut().expect("a slot has one type")
    }

    /// Takes what lies there out of this life.
    pub fn take<T: SlotValue>(&mut self, slot: &Slot<T, L>) -> Option<T> {
        let place = self.places.get_mut(slot.number())?.as_mut()?;
        if !std::mem::take(&mut place.live) {
            return None;
        }
        self.live -= 1;
        place.value.downcast_mut().map(std::mem::take)
    }

    /// Whether nothing lies anywhere.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// This life ends: what it has put anywhere goes.
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

    impl OfThread for Gathered {
        fn begin(_: &GenerationView) -> Gathered {
            Gathered::default()
        }

        fn retire(&mut self) {
            self.0.clear();
        }
    }

    /// Looks at another slot when it is made.
    struct Asking(Vec<u8>);

    impl OfThread for Asking {
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

    /// As long as a test says.
    enum OfTest {}

    impl Lifetime for OfTest {
        fn next_number() -> u16 {
            static NEXT: AtomicU16 = AtomicU16::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed)
        }
    }

    static HELD: Slot<Held, OfTest> = Slot::new();
    static TEXT: Slot<Text, OfTest> = Slot::new();

    /// Holds on to something, as a place among those that are counted.
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
