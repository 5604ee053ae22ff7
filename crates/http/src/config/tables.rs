//! The checks of nginx's hash tables that belong to a single server or location: see
//! [`framework::tables`].

use conf::{Contexts, Declared, Fault, ScopeRef};
use framework::tables::check;

use crate::config::types;

/// Runs [`check`] if nginx would build a table of types for this server or location.
pub fn check_of_plan(scope: ScopeRef<'_>) -> Result<(), Fault> {
    let types: &[&dyn Declared] = &[&types::TYPES];
    // In nginx, each server has a table of its own if the `http` block has no `types`, with the
    // default types if the server has none either. Else only the first server builds the block's
    // table, which is shared.
    let has_types = scope.parent().is_some_and(|around| around.writes(types));
    let is_server = scope.context() == Contexts::SERVER;
    if scope.writes(types) || is_server && (!has_types || is_first(scope, &[])) {
        check(scope, "types_hash", types::HASH_SIZES)?;
    }
    Ok(())
}

/// Whether a server is the first that sets none of these directives: nginx builds the table of the
/// `http` block with that server's sizes, and later servers share the table.
pub fn is_first(server: ScopeRef<'_>, directives: &[&dyn Declared]) -> bool {
    let http = server.parent();
    let first = http.and_then(|http| {
        let mut servers = http.children("server");
        servers.find(|server| !server.writes(directives))
    });
    first.is_some_and(|first| first.id() == server.id())
}
