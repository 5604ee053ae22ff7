//! The files that a configuration was read from.

use std::path::PathBuf;
use std::sync::Arc;

/// One file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path under which the file was opened.
    pub name: PathBuf,
    /// The bytes of the file.
    pub text: Arc<[u8]>,
}
