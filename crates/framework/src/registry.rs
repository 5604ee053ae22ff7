//! What modules gather while a configuration is compiled: each kind once, made when it is first
//! asked for.
//!
//! The compiler knows none of them by name. Not here: what is made once a scope
//! ([`crate::compile::Feature`]), and zones, which outlive a configuration ([`crate::zone`]).

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::rc::Rc;

use base::hash::Map;

/// Something that a configuration gathers while it is compiled: its log files, the names of its
/// variables, its groups of servers.
pub trait Registry: Default + 'static {}

/// Every registry that has been asked for.
#[derive(Default)]
pub struct Registries(RefCell<Map<TypeId, Rc<dyn Any>>>);

impl Registries {
    /// The registry of this kind. It must not be borrowed while something is called that may ask
    /// for the same kind.
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

    /// What has been gathered; whatever is asked for afterwards begins anew.
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
