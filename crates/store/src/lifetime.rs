//! Which objects lie together because they expire at about the same time, so that their segment is
//! freed as a whole.

use crate::Seconds;

/// How many classes there are: each of them may have a segment that is being filled, in either
/// queue.
pub(crate) const CLASSES: usize = 15;

/// The class of what never expires.
pub(crate) const NEVER: usize = CLASSES - 1;

/// The class of an object by how long it is still to be kept: below a minute, then four times as
/// long each.
pub(crate) fn class(expires: Option<Seconds>, now: Seconds) -> usize {
    const BELOW_A_MINUTE: u32 = 2;
    match expires {
        None => NEVER,
        Some(at) => {
            let left = at.saturating_sub(now).max(1);
            (left.ilog2() / 2).saturating_sub(BELOW_A_MINUTE) as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lifetime_has_a_class_of_its_own_length() {
        assert_eq!(class(Some(100), 100), 0);
        assert_eq!(class(Some(163), 100), 0);
        assert_eq!(class(Some(164), 100), 1);
        assert_eq!(class(Some(355), 100), 1);
        assert_eq!(class(Some(356), 100), 2);
        assert_eq!(class(Some(u32::MAX), 0), NEVER - 1);
        assert_eq!(class(None, 0), NEVER);
    }
}
