//! The blocks that compute variables: `map`, `num_map`, `geo` and `split_clients`.

use conf::ScopeRef;
use framework::compile::Compiler;

use crate::{Context, TableBuilder, geo, map, num_map, split_clients};

/// Compiles the blocks of a scope that define variables to which something compiled for this kind
/// of context refers, and the blocks whose variables these blocks refer to in turn. All other
/// blocks are skipped.
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
