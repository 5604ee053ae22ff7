//! `tidegate cache`: lists or removes entries in the folder of a `proxy_cache_path` or a similar
//! directive. It works on the files in the folder, with or without a running server; the store's
//! `Listing` does the work. Described in docs/cache.md.

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use store::disk::{ListedEntry, Listing, ListingError};

mod report;

/// Show what a content cache has in its folder, and remove some of it
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List entries: how long each is fresh still, its size, when it was last used, its key
    List {
        #[command(flatten)]
        folder: Folder,
        /// Only entries with this key, or with keys that begin so where it ends with *
        key: Option<OsString>,
        /// Only entries with this tag
        #[arg(long)]
        tag: Option<OsString>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show all of a key's entries: times, variants, whether the body is whole, the stored head
    Show {
        #[command(flatten)]
        folder: Folder,
        /// The key, or what keys begin with and a *
        key: OsString,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove entries with all their variants and slices
    Purge {
        #[command(flatten)]
        folder: Folder,
        /// Keys, or what keys begin with and a *; a * alone is all of the cache
        #[arg(required_unless_present = "tag")]
        keys: Vec<OsString>,
        /// Entries with this tag, too
        #[arg(long)]
        tag: Option<OsString>,
    },
}

#[derive(Args)]
struct Folder {
    /// The cache's folder, as the configuration names it
    path: PathBuf,
}

/// Lists, shows or purges.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.action {
        Action::List {
            folder,
            key,
            tag,
            json,
        } => {
            let chosen = SelectedEntries::of(key.iter(), tag.as_ref());
            list(&folder.path, &chosen, *json)
        }
        Action::Show { folder, key, json } => {
            let chosen = SelectedEntries::of(std::iter::once(key), None);
            show(&folder.path, &chosen, *json)
        }
        Action::Purge { folder, keys, tag } => {
            let chosen = SelectedEntries::of(keys.iter(), tag.as_ref());
            purge(&folder.path, &chosen)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

/// The entries that a command line selects.
struct SelectedEntries {
    names: Vec<Vec<u8>>,
    prefixes: Vec<Vec<u8>>,
    tag: Option<Vec<u8>>,
}

impl SelectedEntries {
    /// Parses keys, of which those that end with `*` are prefixes, and a tag.
    fn of<'a>(keys: impl Iterator<Item = &'a OsString>, tag: Option<&OsString>) -> SelectedEntries {
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        let mut chosen = SelectedEntries {
            names: Vec::new(),
            prefixes: Vec::new(),
            tag: tag.map(bytes),
        };
        for key in keys.map(bytes) {
            match key.strip_suffix(b"*") {
                Some(prefix) => chosen.prefixes.push(prefix.to_vec()),
                None => chosen.names.push(key),
            }
        }
        chosen
    }

    /// Whether the key or the tag of an entry is selected.
    fn names(&self, listed: &ListedEntry) -> bool {
        self.has_key_of(listed) || self.tag.as_ref().is_some_and(|tag| listed.has_tag(tag))
    }

    /// Whether an entry meets all conditions; without conditions every entry does.
    fn admits(&self, listed: &ListedEntry) -> bool {
        let is_key = self.names.is_empty() && self.prefixes.is_empty() || self.has_key_of(listed);
        is_key && self.tag.as_ref().is_none_or(|tag| listed.has_tag(tag))
    }

    fn has_key_of(&self, listed: &ListedEntry) -> bool {
        let is_named = self.names.iter().any(|name| listed.is_named(name));
        // An entry without a key matches only the selection of the whole cache.
        let begins = |prefix: &Vec<u8>| prefix.is_empty() || listed.begins_with(prefix);
        is_named || self.prefixes.iter().any(begins)
    }
}

fn open(path: &Path) -> Result<Listing, String> {
    let shown = path.display();
    Listing::open(path).map_err(|refused| match refused {
        ListingError::Failed(error) => format!("open() \"{shown}\" failed: {error}"),
        ListingError::NoCache => format!("\"{shown}\" is no folder of a cache"),
    })
}

fn list(path: &Path, chosen: &SelectedEntries, json: bool) -> Result<(), String> {
    let listing = open(path)?;
    let now = report::ReportTime::read();
    if !json {
        println!("{}", report::TITLE);
    }
    let (mut entries, mut bytes) = (0_u64, 0_u64);
    listing.visit(|listed| {
        if !chosen.admits(&listed) {
            return ControlFlow::Continue(());
        }
        entries += 1;
        bytes += listed.length;
        if json {
            println!("{}", report::json(&listed, None, &now))
        } else {
            println!("{}", report::line(&listed, &now))
        }
        ControlFlow::Continue(())
    });
    if !json {
        println!("{}, {bytes} bytes", counted(entries));
    }
    Ok(())
}

fn show(path: &Path, chosen: &SelectedEntries, json: bool) -> Result<(), String> {
    let listing = open(path)?;
    let now = report::ReportTime::read();
    let mut entries = 0_u64;
    let mut failed = None;
    listing.visit(|listed| {
        if !chosen.admits(&listed) {
            return ControlFlow::Continue(());
        }
        entries += 1;
        let body = match listing.check_body(&listed) {
            Ok(body) => body,
            Err(error) => {
                failed = Some(format!("\"{}\" cannot be read: {error}", listed.path));
                return ControlFlow::Break(());
            }
        };
        if json {
            println!("{}", report::json(&listed, Some(body), &now));
        } else {
            let gap = if entries > 1 { "\n" } else { "" };
            print!("{gap}{}", report::whole(&listed, body, &now));
        }
        ControlFlow::Continue(())
    });
    match failed {
        Some(text) => Err(text),
        None if entries == 0 => Err("no entry has this key".to_owned()),
        None => Ok(()),
    }
}

fn purge(path: &Path, chosen: &SelectedEntries) -> Result<(), String> {
    let listing = open(path)?;
    let (mut removed, mut failed) = (0_u64, 0_u64);
    listing.visit(|listed| {
        if chosen.names(&listed) {
            match listing.unlink(&listed) {
                Ok(true) => removed += 1,
                Ok(false) => {}
                Err(error) => {
                    failed += 1;
                    let path = path.join(&listed.path);
                    let mut out = std::io::stderr();
                    let _ = writeln!(
                        out,
                        "{}: unlink() \"{}\" failed: {error}",
                        process::PROGRAM,
                        path.display()
                    );
                }
            }
        }
        ControlFlow::Continue(())
    });
    if removed > 0 {
        let noted = listing.note_unlinked();
        noted.map_err(|error| format!("the saved index cannot be changed: {error}"))?;
    }
    println!("{} removed", counted(removed));
    match failed {
        0 => Ok(()),
        failed => Err(format!("{} not removed", counted(failed))),
    }
}

/// A number of entries as text.
fn counted(entries: u64) -> String {
    match entries {
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    }
}
