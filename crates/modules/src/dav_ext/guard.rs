//! The locks that a change must not violate (RFC 4918, section 7), checked when the change is made.
//!
//! While a request waits for its body or for a thread, another client may lock its target. So the
//! event loop collects the data of the check, and the thread that makes the change runs the check
//! just before.

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

/// One change, and the lock tokens of its client.
pub struct Guard {
    zone: Arc<Zone<Locks>>,
    changes: Vec<PathChange>,
    /// The lock tokens that the client has sent.
    known: condition::Conditions,
    /// The time at which the expiry of locks is checked.
    now: Instant,
}

/// A change at one path.
struct PathChange {
    path: Vec<u8>,
    /// Everything below the path is changed too.
    below: bool,
    /// Whether the parent directory gains or loses a member.
    member: Member,
}

/// Whether the parent directory of a change changes too.
enum Member {
    /// No: no member is added or removed.
    Stays,
    /// Yes, if the path does not exist: it is then created.
    IfNew,
    /// Yes.
    Changes,
}

impl Guard {
    /// The change that the request makes; `None` if the request changes nothing that can be locked.
    /// Evaluates the If field: the error is status 412 if none of the field's lists holds, and 400
    /// if the field is invalid.
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
            // The handler of the method reports an invalid field.
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

    /// Whether the client has sent the tokens of all locks that concern the change. Blocks on the
    /// disk: not for the event loop.
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

/// The path under which locks of another URI are stored.
pub(super) fn path_of(request: &mut Request, uri: Vec<u8>) -> Vec<u8> {
    let own = std::mem::replace(&mut request.uri, uri);
    let path = locked_path(request);
    request.uri = own;
    path
}
