//! Which locks a change must know (RFC 4918, section 7), asked for when the change is made.
//!
//! A request may wait for its body, or for a thread, while others lock what it is about to change.
//! What it needs is therefore gathered by the event loop and looked at by the thread that does the
//! work, just before it does.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use framework::zone::Zone;
use http::request::Request;
use proto::method::Method;

use super::condition;
use super::locks::Locks;
use super::{locked_path, locks_of};
use crate::dav;

/// One change, and the lock tokens that its client knows.
pub struct Guard {
    zone: Arc<Zone<Locks>>,
    changes: Vec<PathChange>,
    known: condition::Conditions,
    now: Instant,
}

/// What changes at one path.
struct PathChange {
    path: Vec<u8>,
    /// All below it goes, too.
    below: bool,
    /// Its folder gets a member or loses one.
    member: Member,
}

/// Whether the folder around what changes does so as well.
enum Member {
    Stays,
    /// Where there is nothing yet.
    IfNew,
    Changes,
}

impl Guard {
    /// What this request changes; `None` where it changes nothing that may be locked. The If field
    /// is checked, with 412 where none of its lists holds and 400 where it is none.
    pub async fn of(request: &mut Request) -> Result<Option<Guard>, u16> {
        let Some(zone) = locks_of(request) else {
            return Ok(None);
        };
        if !request.is_main() {
            return Ok(None);
        }
        let (below, member) = match request.method {
            Method::Put | Method::Lock => (false, Member::IfNew),
            Method::Mkcol => (false, Member::Changes),
            Method::Proppatch => (false, Member::Stays),
            Method::Delete | Method::Move => (true, Member::Changes),
            Method::Copy => (false, Member::Stays),
            _ => return Ok(None),
        };
        let path = locked_path(request);
        let known = condition::check(request, &zone, &path).await?;
        let mut changes = Vec::new();
        if request.method != Method::Copy {
            changes.push(PathChange {
                path,
                below,
                member,
            });
        }
        if matches!(request.method, Method::Move | Method::Copy)
            && let Some(destination) = request.header_named(b"destination").map(<[u8]>::to_vec)
            // What is wrong with the field is said by the handler that does the work.
            && let Ok(uri) = dav::local_uri(request, &destination)
        {
            changes.push(PathChange {
                path: path_of(request, uri),
                below: true,
                member: Member::IfNew,
            });
        }
        Ok(Some(Guard {
            zone,
            changes,
            known,
            now: engine::now(),
        }))
    }

    /// Whether the client knows every lock that is in the way. Looks at the disk: no work for the
    /// event loop.
    pub fn allows(&self) -> bool {
        self.changes.iter().all(|change| {
            let member = match change.member {
                Member::Stays => false,
                Member::IfNew => !Path::exists(&Request::path_of(&change.path)),
                Member::Changes => true,
            };
            let locks = self.zone.state();
            let needed = locks.tokens(&change.path, change.below, member, self.now);
            needed.iter().all(|token| self.known.names(token))
        })
    }
}

/// The path that locks of another URI are known by.
pub(super) fn path_of(request: &mut Request, uri: Vec<u8>) -> Vec<u8> {
    let own = std::mem::replace(&mut request.uri, uri);
    let path = locked_path(request);
    request.uri = own;
    path
}
