//! Classes of objects by remaining lifetime. Objects of a class share segments, so that a segment
//! is freed as a whole when they have expired.

use crate::Seconds;

/// Number of classes. Each class may have one segment that is being filled in either queue.
pub(crate) const CLASSES: usize = 15;

/// The class of objects that never expire.
pub(crate) const NEVER: usize = CLASSES - 1;

/// The class of an object by its remaining lifetime: the first is below a minute, and each further
/// one four times as long.
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
