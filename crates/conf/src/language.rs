//! The directives of the language itself: `include` and `load_module`.
//!
//! They are declared like any other, so that tables and manual have them; the loader carries them
//! out.

use std::ffi::OsStr;
use std::path::Path;

use crate::contexts::Contexts;
use crate::diagnostic::Fault;
use crate::parse;
use crate::setting::{Declared, Setter, Setting};
use crate::spec::Inherit;

/// Directives of this module.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&INCLUDE, &LOAD_MODULE];

/// `include FILE | PATTERN`; its lines never reach the tree.
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

/// The name of a module's file, as `load_module` gives it, without folder and `.so`.
pub(crate) fn module_name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or(OsStr::new(""))
        .to_string_lossy()
        .into_owned()
}
