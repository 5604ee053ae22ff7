//! The lines of `*_store`, and the settings of a scope.

use std::sync::Arc;

use conf::{Fault, ScopeRef, Setter, Setting, Template};
use framework::compile::Compiler;
use framework::places::{FileAccess, constant_folder, name_of};
use http::config::core::Core;
use http::files::temporary_file::Directory;
use http::request::Text;
use http::variables::Compiling as _;

/// The value of `*_store`.
pub(crate) enum StoreLine {
    Off,
    On,
    Path(Template),
}

pub(super) fn parse(setter: &Setter<'_>) -> Result<StoreLine, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"off" => Ok(StoreLine::Off),
        b"" => Err(Fault::at(word, "empty path")),
        b"on" => Ok(StoreLine::On),
        _ => Template::parse(word).map(StoreLine::Path),
    }
}

/// The settings for saving responses in a scope.
pub struct Store {
    /// The path of files; `None` for the file that `root` or `alias` derives from the URI.
    pub(super) path: Option<Text>,
    /// The permissions of files.
    pub(super) access: u32,
    /// The directory of temporary files.
    pub(super) directory: Arc<Directory>,
}

impl Store {
    /// Compiles the settings; `None` if responses of the scope are not saved.
    pub(super) fn compile(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        store: &Setting<StoreLine>,
        access: &Setting<u32>,
        directory: &Arc<Directory>,
    ) -> Result<Option<Store>, Fault> {
        let path = match scope.get(store)? {
            StoreLine::Off => return Ok(None),
            StoreLine::On => {
                let core = compiler.feature::<Core>(scope)?;
                core.root.will_be_opened(compiler, FileAccess::Write);
                None
            }
            StoreLine::Path(template) => {
                let by = name_of(
                    scope.lines_in_force(&store.spec).first().map(|one| one.1),
                    "",
                );
                // A relative path is relative to the working directory of the process, not to the
                // prefix of the configuration.
                let here = std::env::current_dir().unwrap_or_default();
                let folder = here.join(constant_folder(&template.parts));
                compiler.will_open(FileAccess::Write, &folder, &by);
                Some(compiler.text(&template))
            }
        };
        Ok(Some(Store {
            path,
            access: scope.get(access)?,
            directory: Arc::clone(directory),
        }))
    }
}
