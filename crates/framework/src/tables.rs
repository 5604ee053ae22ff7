//! The sizes of nginx's hash tables. Tables here size themselves; where nginx cannot build one,
//! because its size is 0, the configuration is refused as by nginx.

use conf::{Fault, ScopeRef, Setting};

/// Refuses a table of nginx's whose size is 0, in the scope that it would be built for. `name` is
/// nginx's name of the table.
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
