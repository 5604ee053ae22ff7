//! The directives of the language itself: `include` and `load_module`.
//!
//! They are declared like other directives, so that the directive table and the manual contain
//! them; the loader executes them.

use std::ffi::OsStr;
use std::path::Path;

use crate::contexts::Contexts;
use crate::diagnostic::Fault;
use crate::parse;
use crate::setting::{Declared, Setter, Setting};
use crate::spec::Inherit;

/// Directives of this module.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&INCLUDE, &LOAD_MODULE];

/// `include FILE | PATTERN`. The tree contains the included lines in its place.
static INCLUDE: Setting<()> = Setting::new("include", &["file | mask"], parse::nothing)
    .contexts(Contexts::ALL)
    .inherit(Inherit::List)
    .manual(
        "Reads the file, or every file that the mask fits, in place of the directive. Relative \
         paths start in the folder of the main configuration file. A mask may fit nothing.",
    );

pub(crate) static LOAD_MODULE: Setting<()> = Setting::new("load_module", &["file"], module)
    .contexts(Contexts::MAIN)
    .inherit(Inherit::List)
    .manual(
        "Accepted for what is built in; anything else is a warning, and its directives are \
         unknown. No code is loaded.",
    );

fn module(setter: &Setter<'_>) -> Result<(), Fault> {
    setter.word().map(drop)
}

/// The name of a module: the path in `load_module` without directory and `.so`.
pub(crate) fn module_name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or(OsStr::new(""))
        .to_string_lossy()
        .into_owned()
}
