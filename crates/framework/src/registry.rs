//! Collections that modules fill while a configuration is compiled: one of each kind, created when
//! it is first requested.
//!
//! The compiler names none of them. Not here: values made once per scope
//! ([`crate::compile::Feature`]), and zones, which outlive a configuration ([`crate::zone`]).

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::rc::Rc;

use base::hash::Map;

/// A collection that a configuration fills while it is compiled: its log files, variable names or
/// groups of servers.
pub trait Registry: Default + 'static {}

/// All collections that have been requested.
#[derive(Default)]
pub struct Registries(RefCell<Map<TypeId, Rc<dyn Any>>>);

impl Registries {
    /// The collection of kind `R`. Do not keep it borrowed across a call that may request the same
    /// kind.
    pub fn of<R: Registry>(&self) -> Rc<RefCell<R>> {
        let mut all = self.0.borrow_mut();
        let made = all
            .entry(TypeId::of::<R>())
            .or_insert_with(|| Rc::new(RefCell::new(R::default())));
        match Rc::clone(made).downcast() {
            Ok(registry) => registry,
            // invariant: each is kept under its own type, so the cast cannot fail
            Err(_) => unreachable!("a registry is kept by its type"),
        }
    }

    /// Removes and returns the collection; a later request starts with an empty one.
    pub fn take<R: Registry>(&self) -> R {
        std::mem::take(&mut self.of::<R>().borrow_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Names(Vec<&'static str>);
    impl Registry for Names {}

    #[derive(Default)]
    struct Count(u32);
    impl Registry for Count {}

    #[test]
    fn each_kind_is_one_registry() {
        let registries = Registries::default();
        registries.of::<Names>().borrow_mut().0.push("first");
        let count = registries.of::<Count>();
        count.borrow_mut().0 += 1;
        registries.of::<Names>().borrow_mut().0.push("second"); // while another kind is held
        assert_eq!(registries.of::<Names>().borrow().0, ["first", "second"]);
        assert_eq!(registries.of::<Count>().borrow().0, 1);
    }

    #[test]
    fn what_was_taken_is_no_longer_there() {
        let registries = Registries::default();
        registries.of::<Names>().borrow_mut().0.push("one");
        assert_eq!(registries.take::<Names>().0, ["one"]);
        assert!(registries.of::<Names>().borrow().0.is_empty());
    }
}
