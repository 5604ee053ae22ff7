//! The settings for sizes of nginx's hash tables. Tables of this program size themselves; a size of
//! 0, with which nginx cannot build a table, is refused as by nginx.

use conf::{Fault, ScopeRef, Setting};

/// Refuses a size of 0 for a hash table of nginx, in the scope for which nginx would build the
/// table. `name` is nginx's name of the table.
pub fn check(
    scope: ScopeRef<'_>,
    name: &str,
    sizes: [&'static Setting<u64>; 2],
) -> Result<(), Fault> {
    for setting in sizes {
        if scope.written(setting)? == Some(0) {
            let directive = setting.spec.name();
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
