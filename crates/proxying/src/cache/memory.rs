//! The memory of a cache: `memory=` of `*_cache_path`, in front of a directory or in place of one.
//!
//! ```text
//! proxy_cache_path /var/cache/a keys_zone=a:10m memory=256m;      in front of a directory
//! proxy_cache_path memory:b     keys_zone=b:10m memory=256m;      in place of a directory
//! ```
//!
//! `store::disk` decides which entries are in memory.

use conf::{Fault, Word, parse};
use store::disk::{MEMORY_ENTRY_MAX, MemorySettings};

/// The prefix of a `*_cache_path` that names no directory: all entries are then in memory.
const SCHEME: &str = "memory:";

/// The default maximum length of a body that is kept in memory, in bytes.
const ENTRY_MAX: usize = 64 * 1024;

/// The memory must have room for at least this many bodies of the maximum length.
const ENTRIES_MIN: usize = 8;

/// The memory parameters of a `*_cache_path` line, as far as they have been parsed.
pub(super) struct Written {
    /// Whether the cache has no directory.
    pub(super) is_alone: bool,
    /// `memory=`: the word, and the size in bytes.
    limit: Option<(Word, usize)>,
    /// `memory_entry_max=`: the word, and the length in bytes.
    entry_max: Option<(Word, usize)>,
}

impl Written {
    /// Parses the path of a `*_cache_path` line.
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

    /// Parses a parameter. False if the parameter is not about memory.
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

    /// Refuses a parameter about files for a cache without files.
    pub(super) fn refuse_about_files(&self, word: &Word, name: &str) -> Result<(), Fault> {
        let is_about_files = matches!(name, "levels" | "use_temp_path" | "max_size" | "min_free")
            || name.starts_with("loader_");
        if self.is_alone && is_about_files {
            let text = format!("\"{name}\" is about files, and a cache in memory has none");
            return Err(Fault::at(word, text));
        }
        Ok(())
    }

    /// The settings of the whole line; `None` if the cache keeps no entries in memory.
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
