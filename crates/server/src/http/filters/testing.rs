//! Features compiled from configuration text, and what stands in pieces, for the tests of filters and
//! modules.

use std::path::Path;
use std::sync::Arc;

use conf::{Level, Recording, Sealed};
use framework::compile::{Compiler, Environment, Feature};

use crate::features;
use crate::http::output::Piece;

/// The feature as the innermost of these blocks sees it, each the first of its name within the one before;
/// the first error as it is printed.
pub(crate) fn feature<F: Feature>(text: &str, blocks: &[&str]) -> Result<Arc<F>, String> {
    compiled(text, blocks).map(|(feature, _)| feature)
}

/// The same with the warnings that reading it gave.
pub(crate) fn compiled<F: Feature>(
    text: &str,
    blocks: &[&str],
) -> Result<(Arc<F>, Vec<String>), String> {
    let recording = Recording {
        files: vec![("/nginx.conf".into(), text.as_bytes().to_vec())],
        ..Recording::default()
    };
    let files = Sealed::new(recording);
    let registry = features::registry(&[]);
    let root = Path::new("/");
    let loaded = conf::load(Path::new("/nginx.conf"), root, &[], registry, &files);
    let (errors, rest): (Vec<_>, Vec<_>) = loaded
        .diagnostics
        .iter()
        .partition(|found| found.level == Level::Emerg);
    if let Some(error) = errors.first() {
        return Err(error.message.clone());
    }
    let warnings = rest
        .iter()
        .filter(|found| found.level == Level::Warn)
        .map(|found| found.message.clone())
        .collect();
    let compiler = Compiler::new(&Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        privileged: false,
    });
    let mut scope = loaded.tree.root();
    for name in blocks {
        scope = scope
            .children(name)
            .next()
            .ok_or_else(|| format!("no block {name}"))?;
    }
    let feature = compiler.feature(scope).map_err(|fault| fault.message)?;
    Ok((feature, warnings))
}

/// What stands in the pieces that are bytes.
pub(crate) fn text_of(pieces: &[Piece]) -> String {
    let bytes = pieces.iter().flat_map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        _ => Vec::new(),
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
