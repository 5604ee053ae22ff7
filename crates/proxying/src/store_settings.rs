//! What lines of `*_store` say, and what a scope says with them.

use std::sync::Arc;

use conf::{Fault, ScopeRef, Setter, Setting, Template};
use framework::compile::Compiler;
use framework::places::{FileAccess, constant_folder, name_of};
use http::config::core::Core;
use http::files::temporary_file::Directory;
use http::request::Text;
use http::variables::Compiling as _;

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

/// What a scope says about storing.
pub struct Store {
    /// Where answers go; nothing for the file that `root` or `alias` makes of the URI.
    pub(super) path: Option<Text>,
    pub(super) access: u32,
    /// Where they are while they come.
    pub(super) directory: Arc<Directory>,
}

impl Store {
    /// Nothing where answers are not stored.
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
                // A relative path is one of the process's folder, and not of the prefix.
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
