//! The sizes of nginx's hash tables. Tables here size themselves; where nginx cannot build one, because its size is 0, the
//! configuration is refused as by nginx.

use conf::{Contexts, Declared, Fault, ScopeRef, Setting};

use super::modules::{proxy, static_file};

/// Refuses a table of nginx's whose size is 0, in the scope that it would be built for. `name` is nginx's name of the table.
pub fn check(
    scope: ScopeRef<'_>,
    name: &str,
    sizes: [&'static Setting<u64>; 2],
) -> Result<(), Fault> {
    for setting in sizes {
        if scope.written(setting)? == Some(0) {
            let directive = setting.spec.name;
            let text = format!("could not build {name}, you should increase {directive}: 0");
            let lines = scope.lines_in_force(&setting.spec);
            let fault = Fault::new(text);
            return Err(match lines.last() {
                Some((_, line)) => fault.or_at(line.name.position),
                None => fault,
            });
        }
    }
    Ok(())
}

/// [`check`] for the tables that a server or location has for itself.
pub fn check_of_plan(scope: ScopeRef<'_>) -> Result<(), Fault> {
    let types: &[&dyn Declared] = &[&static_file::TYPES];
    // nginx has types of its own for servers that see none; each server then has its own table of them.
    let has_types = scope.parent().is_some_and(|around| around.writes(types));
    let is_server = scope.context() == Contexts::SERVER;
    if scope.writes(types) || is_server && (!has_types || is_first(scope, &[])) {
        check(scope, "types_hash", static_file::HASH_SIZES)?;
    }
    if [proxy::HIDDEN_FIELDS, proxy::SET_FIELDS]
        .iter()
        .any(|fields| scope.writes(fields) || is_server && is_first(scope, fields))
    {
        check(scope, "proxy_headers_hash", proxy::HASH_SIZES)?;
    }
    Ok(())
}

/// Whether a server is the first one that writes none of these directives: nginx builds the table of the `http` block with
/// its sizes, and the servers behind it share that table.
fn is_first(server: ScopeRef<'_>, directives: &[&dyn Declared]) -> bool {
    let http = server.parent();
    let first = http.and_then(|http| {
        let mut servers = http.children("server");
        servers.find(|server| !server.writes(directives))
    });
    first.is_some_and(|first| first.id() == server.id())
}
