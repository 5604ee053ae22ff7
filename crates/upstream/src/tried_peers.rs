//! The set of the primary or backup peers that a request has tried.

/// A set of indexes. Up to 64 peers need no allocation.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    first: u64,
    others: Vec<bool>,
}

impl Tried {
    pub(crate) fn contains(&self, index: usize) -> bool {
        match index.checked_sub(64) {
            None => self.first & (1 << index) != 0,
            Some(index) => self.others.get(index).is_some_and(|tried| *tried),
        }
    }

    pub(crate) fn insert(&mut self, index: usize) {
        match index.checked_sub(64) {
            None => self.first |= 1 << index,
            Some(index) => {
                if self.others.len() <= index {
                    self.others.resize(index + 1, false);
                }
                if let Some(tried) = self.others.get_mut(index) {
                    *tried = true;
                }
            }
        }
    }
}
