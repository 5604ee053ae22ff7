//! Memory of a cache: `memory=` of `*_cache_path`, in front of the folder or in the place of one.
//!
//! ```text
//! proxy_cache_path /var/cache/a keys_zone=a:10m memory=256m;      in front of a folder
//! proxy_cache_path memory:b     keys_zone=b:10m memory=256m;      in the place of one
//! ```
//!
//! What lies in it and when is `store::disk`'s business.

use conf::{Fault, Word, parse};
use store::disk::{MEMORY_ENTRY_MAX, MemorySettings};

/// How a path begins that is none: all entries lie in memory.
const SCHEME: &str = "memory:";

/// Longest body that is kept unless the line says otherwise, in bytes.
const ENTRY_MAX: usize = 64 * 1024;

/// The memory must hold so many of the longest entries.
const ENTRIES_MIN: usize = 8;

/// What a line says of memory so far.
pub(super) struct Written {
    /// Whether there is no folder.
    pub(super) is_alone: bool,
    limit: Option<(Word, usize)>,
    entry_max: Option<(Word, usize)>,
}

impl Written {
    /// What the path of a line says.
    pub(super) fn of_path(path: &Word) -> Result<Written, Fault> {
        let text = path.text();
        let name = text.strip_prefix(SCHEME);
        if name.is_some_and(str::is_empty) {
            let text = format!("no name in \"{text}\"");
            return Err(Fault::at(path, text));
        }
        Ok(Written {
            is_alone: name.is_some(),
            limit: None,
            entry_max: None,
        })
    }

    /// Reads a parameter. Whether it is one of these.
    pub(super) fn read(&mut self, word: &Word, name: &str, value: &str) -> Result<bool, Fault> {
        let place = match name {
            "memory" => &mut self.limit,
            "memory_entry_max" => &mut self.entry_max,
            _ => return Ok(false),
        };
        let size = parse::offset_of(value.as_bytes()).and_then(|size| usize::try_from(size).ok());
        let invalid = || Fault::at(word, format!("invalid {name} value \"{}\"", word.text()));
        *place = Some((
            word.clone(),
            size.filter(|size| *size > 0).ok_or_else(invalid)?,
        ));
        Ok(true)
    }

    /// Refuses a parameter about files where there are none.
    pub(super) fn refuse_about_files(&self, word: &Word, name: &str) -> Result<(), Fault> {
        let is_about_files = matches!(name, "levels" | "use_temp_path" | "max_size" | "min_free")
            || name.starts_with("loader_");
        if self.is_alone && is_about_files {
            let text = format!("\"{name}\" is about files, and a cache in memory has none");
            return Err(Fault::at(word, text));
        }
        Ok(())
    }

    /// What all of the line says; nothing where there is no memory for entries.
    pub(super) fn settings(self, directive: &str) -> Result<Option<MemorySettings>, Fault> {
        let Some((word, limit)) = self.limit else {
            return match self.entry_max {
                _ if self.is_alone => Err(Fault::new(format!(
                    "\"{directive}\" in memory must have \"memory\" parameter"
                ))),
                Some((word, _)) => {
                    let text = "\"memory_entry_max\" without \"memory\" parameter";
                    Err(Fault::at(&word, text))
                }
                None => Ok(None),
            };
        };
        let entry_max = match self.entry_max {
            Some((word, size)) if size > MEMORY_ENTRY_MAX => {
                let text = format!("\"{}\" is more than {MEMORY_ENTRY_MAX} bytes", word.text());
                return Err(Fault::at(&word, text));
            }
            Some((_, size)) => size,
            None => ENTRY_MAX,
        };
        if limit / ENTRIES_MIN < entry_max {
            let text = format!(
                "\"{}\" is too small for {ENTRIES_MIN} entries of {entry_max} bytes",
                word.text()
            );
            return Err(Fault::at(&word, text));
        }
        Ok(Some(MemorySettings { limit, entry_max }))
    }
}
