//! Walks over all objects, a few at a time: dumps, and deletion by prefix or tag.
//!
//! Each is one walk: it concerns the objects that exist when it begins. Objects that are stored
//! meanwhile may be concerned or not, so that a client that stores all the time does not keep a
//! deletion from its end.

use store::{Cursor, Item, ObjectChange, UpdateOutcome};

use crate::cache::{CommandTime, ThreadContext};
use crate::census::{CacheDump, size_of};
use crate::output::Output;
use crate::size_classes::class_of;
use crate::text;
use crate::watch::EscapedKey;

/// A step of a walk counts as this many commands, after which other connections have their turn.
pub(crate) const COMMANDS_A_STEP: u32 = 16;

/// What is done with each object of a walk.
#[derive(Debug)]
pub(crate) enum ItemWalk {
    Dump(Dump),
    /// `stats cachedump`
    CacheDump(CacheDump),
    /// `delete_prefix`, `delete_tag`
    Removal(Removal),
}

/// The objects that a deletion concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// Those whose keys begin with this prefix.
    Prefix(Vec<u8>),
    /// Those that were stored with this tag.
    Tag(Vec<u8>),
}

impl Removed {
    /// Whether the deletion concerns an object with this key and these tags.
    pub(crate) fn concerns(&self, key: &[u8], tags: &[u8]) -> bool {
        match self {
            Removed::Prefix(prefix) => key.starts_with(prefix),
            Removed::Tag(tag) => tags.split(|byte| *byte == b',').any(|each| each == tag),
        }
    }

    fn command(&self) -> &'static str {
        match self {
            Removed::Prefix(_) => "delete_prefix",
            Removed::Tag(_) => "delete_tag",
        }
    }
}

/// A deletion by prefix or tag.
#[derive(Debug)]
pub(crate) struct Removal {
    what: Removed,
    removed: u64,
    noreply: bool,
}

/// The form of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    /// `metadump`: keys with expiry, last use, CAS and size.
    Whole,
    /// `mgdump`: as commands of the meta protocol.
    Commands,
}

impl ItemWalk {
    /// Processes a few objects. Returns where to continue, or `None` at the end.
    pub(crate) fn step(
        &mut self,
        from: Cursor,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> Option<Cursor> {
        let store = &shared.cache.store;
        match self {
            ItemWalk::Dump(dump) => {
                store.visit(from, moment.now, |item| dump.tell(&item, moment, out))
            }
            ItemWalk::CacheDump(dump) => {
                let next = store.visit(from, moment.now, |item| dump.tell(&item, moment, out));
                next.filter(|_| dump.left > 0)
            }
            ItemWalk::Removal(removal) => {
                let mut keys = Vec::new();
                let next = store.visit(from, moment.now, |item| {
                    if removal.what.concerns(item.key, item.tags) {
                        keys.push(item.key.to_vec());
                    }
                });
                for key in keys {
                    removal.remove(&key, shared, moment);
                }
                next
            }
        }
    }

    pub(crate) fn end(&self, out: &mut Output) {
        match self {
            ItemWalk::Dump(dump) => out.line(dump.end()),
            ItemWalk::CacheDump(_) => out.line("END"),
            ItemWalk::Removal(removal) if removal.noreply => {}
            ItemWalk::Removal(removal) => out.line(&format!("DELETED {}", removal.removed)),
        }
    }
}

impl Removal {
    pub(crate) fn new(what: Removed, noreply: bool) -> Removal {
        Removal {
            what,
            removed: 0,
            noreply,
        }
    }

    fn remove(&mut self, key: &[u8], shared: &ThreadContext, moment: CommandTime) {
        shared.cache.overtake(key);
        let outcome = shared.cache.store.update(key, moment.now, |item| {
            // Another client may have stored the object anew meanwhile, without the tag.
            let concerned = |item: &Item<'_>| self.what.concerns(item.key, item.tags);
            let Some(item) = item.filter(concerned) else {
                return ObjectChange::Keep;
            };
            shared.tell_deleted(self.what.command(), &item);
            ObjectChange::Remove
        });
        if outcome == UpdateOutcome::Removed {
            self.removed += 1;
        }
    }
}

impl Dump {
    fn end(self) -> &'static str {
        match self {
            Dump::Whole => "END",
            Dump::Commands => "EN",
        }
    }

    fn tell(self, item: &Item<'_>, moment: CommandTime, out: &mut Output) {
        let is_binary = item.marks & text::BINARY_KEY != 0;
        match self {
            Dump::Commands => {
                out.text(b"mg ");
                if is_binary {
                    out.base64(item.key);
                    out.text(b" b\r\n");
                } else {
                    out.text(item.key);
                    out.text(b"\r\n");
                }
            }
            Dump::Whole => {
                out.text(b"key=");
                out.text(EscapedKey(item.key).to_string().as_bytes());
                let expires = item.expires.map_or(-1, |at| moment.wall_at(at) as i64);
                let used = moment.wall_at(item.used);
                let read = if item.is_read { "yes" } else { "no" };
                let size = size_of(item);
                let (cas, class, flags) = (item.cas, class_of(size), item.flags);
                out.text(
                    format!(
                        " exp={expires} la={used} cas={cas} fetch={read} cls={class} size={size} flags={flags}\n"
                    )
                    .as_bytes(),
                );
            }
        }
    }
}
