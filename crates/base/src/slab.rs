//! A vector with holes: values keep their index, free places are reused, and a stale key finds
//! nothing.
//!
//! Each place counts how often it was emptied. A [`Key`] carries that count, so that a late
//! completion or timer of a closed connection cannot reach the connection that reused its place.

/// Identifies one value of a [`Slab`] until that value is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The place in the slab; small and dense.
    pub index: u32,
    /// How often the place had been emptied before this value was inserted.
    pub generation: u32,
}

/// A growing collection of values, each identified by a [`Key`].
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<SlabEntry<T>>,
    /// The first of the linked list of empty places; `NONE` if there is none.
    free: u32,
    length: usize,
    first_generation: u32,
}

#[derive(Debug)]
struct SlabEntry<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Value(T),
    Empty { next: u32 },
}

const NONE: u32 = u32::MAX;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// An empty slab, which allocates nothing.
    #[must_use]
    pub const fn new() -> Slab<T> {
        Slab::starting_at(0)
    }

    /// An empty slab whose places begin with this generation, so that keys of an earlier slab find
    /// nothing in its successor.
    #[must_use]
    pub const fn starting_at(first_generation: u32) -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: NONE,
            length: 0,
            first_generation,
        }
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the slab holds no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Stores `value` in the place that was emptied last, or in a new one.
    ///
    /// # Panics
    /// If the slab already holds 2^32 - 1 values. No peer can cause that, since every value stands
    /// for a descriptor or a task.
    pub fn insert(&mut self, value: T) -> Key {
        self.length += 1;
        if let Some(place) = self.places.get_mut(self.free as usize) {
            let index = self.free;
            if let Content::Empty { next } = place.content {
                self.free = next;
            }
            place.content = Content::Value(value);
            return Key {
                index,
                generation: place.generation,
            };
        }
        let index = u32::try_from(self.places.len()).unwrap_or(NONE);
        assert!(index != NONE, "slab is full");
        let generation = self.first_generation;
        self.places.push(SlabEntry {
            generation,
            content: Content::Value(value),
        });
        Key { index, generation }
    }

    /// The value of `key`, unless it has been removed.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        match self.places.get(key.index as usize) {
            Some(SlabEntry {
                generation,
                content: Content::Value(value),
            }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The value of `key` for modification, unless it has been removed.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key.index as usize) {
            Some(SlabEntry {
                generation,
                content: Content::Value(value),
            }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Removes and returns the value of `key`. The key finds nothing from then on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let place = self.places.get_mut(key.index as usize)?;
        place.generation = place.generation.wrapping_add(1);
        let content = std::mem::replace(&mut place.content, Content::Empty { next: self.free });
        self.free = key.index;
        self.length -= 1;
        match content {
            Content::Value(value) => Some(value),
            Content::Empty { .. } => None,
        }
    }

    /// The key of the value that is now at `index`.
    #[must_use]
    pub fn key_at(&self, index: u32) -> Option<Key> {
        match self.places.get(index as usize) {
            Some(SlabEntry {
                generation,
                content: Content::Value(_),
            }) => Some(Key {
                index,
                generation: *generation,
            }),
            _ => None,
        }
    }

    /// All values with their keys, by index.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(index, place)| match &place.content {
                Content::Value(value) => Some((
                    Key {
                        index: u32::try_from(index).ok()?,
                        generation: place.generation,
                    },
                    value,
                )),
                Content::Empty { .. } => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn places_are_used_again_last_emptied_first() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..4).map(|n| slab.insert(n)).collect();
        slab.remove(keys[1]);
        slab.remove(keys[3]);
        assert_eq!(slab.insert(9).index, 3);
        assert_eq!(slab.insert(8).index, 1);
        assert_eq!(slab.insert(7).index, 4);
        let values: Vec<i32> = slab.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [0, 8, 2, 9, 7]);
        assert_eq!(
            slab.key_at(1).and_then(|key| slab.get(key).copied()),
            Some(8)
        );
        assert_eq!(slab.key_at(5), None);
    }

    #[test]
    fn keys_of_another_slab_find_nothing() {
        let old = Slab::new().insert(1);
        let mut slab = Slab::starting_at(1 << 16);
        slab.insert(2);
        assert_eq!(slab.get(old), None);
    }

    #[test]
    fn values_are_dropped_with_the_slab() {
        let counted = std::rc::Rc::new(());
        let mut slab = Slab::new();
        let key = slab.insert(counted.clone());
        slab.insert(counted.clone());
        drop(slab.remove(key));
        drop(slab);
        assert_eq!(std::rc::Rc::strong_count(&counted), 1);
    }
}
