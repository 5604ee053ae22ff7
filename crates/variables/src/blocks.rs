//! The blocks that compute variables: `map`, `num_map`, `geo` and `split_clients`.

use conf::ScopeRef;
use framework::compile::Compiler;

use crate::{Context, TableBuilder, geo, map, num_map, split_clients};

/// Compiles those blocks of a scope for a kind of context whose variables are named so far, and
/// those whose variables these name in turn. All the others cost it nothing.
pub fn compile_named<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    let variables = compiler.registry::<TableBuilder<C>>();
    let mut before = Vec::new();
    loop {
        let awaited = variables.borrow().awaited();
        if awaited == before {
            return;
        }
        let wanted = |name: &str| awaited.iter().any(|one| one.eq_ignore_ascii_case(name));
        map::compile_wanted::<C>(compiler, scope, &wanted);
        num_map::compile_wanted::<C>(compiler, scope, &wanted);
        geo::compile_wanted::<C>(compiler, scope, &wanted);
        split_clients::compile_wanted::<C>(compiler, scope, &wanted);
        before = awaited;
    }
}
