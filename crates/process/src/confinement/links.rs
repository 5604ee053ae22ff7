//! Finds symbolic links that lead out of the paths that a strictly confined worker may read: `-t`
//! lists them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Confinement, Level};

/// Maximum number of files and folders that are examined, over all paths; a larger site takes too
/// long for a test.
const LOOKED_AT_MAX: usize = 200_000;

/// Maximum number of links that are listed.
const NAMED_MAX: usize = 20;

/// A line for each link below the paths of a strict confinement whose target is outside of all of
/// them.
pub(crate) fn links_leading_outside(confinement: &Confinement) -> Vec<String> {
    if confinement.level != Level::Strict {
        return Vec::new();
    }
    let real = |path: &PathBuf| fs::canonicalize(path).ok();
    let places: Vec<PathBuf> = confinement
        .places
        .iter()
        .map(|place| &place.path)
        .filter_map(real)
        .collect();
    let mut walk = LinkWalk {
        places: &places,
        looked_at: 0,
        lines: Vec::new(),
        found: 0,
    };
    for place in &places {
        // Paths below another one are examined with that one.
        let is_within = |other: &PathBuf| other != place && place.starts_with(other);
        if place.is_dir() && place.parent().is_some() && !places.iter().any(is_within) {
            walk.folder(place);
        }
    }
    walk.finish()
}

struct LinkWalk<'a> {
    places: &'a [PathBuf],
    looked_at: usize,
    lines: Vec<String>,
    /// Number of links that lead outside. `lines` names the first [`NAMED_MAX`] of them.
    found: usize,
}

impl LinkWalk<'_> {
    /// Examines everything below a folder, without following links.
    fn folder(&mut self, folder: &Path) {
        let mut waiting = vec![folder.to_owned()];
        while let Some(folder) = waiting.pop() {
            // A folder that this user may not list is closed to the worker, too.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                self.looked_at += 1;
                if self.looked_at > LOOKED_AT_MAX {
                    return;
                }
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                    Ok(kind) if kind.is_symlink() => self.link(&entry.path()),
                    _ => {}
                }
            }
        }
    }

    fn link(&mut self, link: &Path) {
        // A dangling link has no target outside.
        let Ok(target) = fs::canonicalize(link) else {
            return;
        };
        if self.places.iter().any(|place| target.starts_with(place)) {
            return;
        }
        self.found += 1;
        if self.found <= NAMED_MAX {
            let (link, target) = (link.display(), target.display());
            self.lines.push(format!("symbolic link \"{link}\" leads to \"{target}\", which \"confine strict\" keeps from the worker"));
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.found > NAMED_MAX {
            let more = self.found - NAMED_MAX;
            self.lines
                .push(format!("{more} more symbolic links lead out"));
        }
        if self.looked_at > LOOKED_AT_MAX {
            self.lines.push(format!("only the first {LOOKED_AT_MAX} files were looked at for symbolic links that lead out"));
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::{PathAccess, PathRule};
    use super::*;

    #[test]
    fn links_that_lead_out_are_named_and_no_others() {
        let folder = std::env::temp_dir().join(format!("tidegate-links-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("www/inner")).unwrap();
        fs::create_dir_all(folder.join("files")).unwrap();
        fs::write(folder.join("secret"), "").unwrap();
        symlink("../files", folder.join("www/to-another-place")).unwrap();
        symlink("nowhere", folder.join("www/broken")).unwrap();
        symlink("..", folder.join("www/inner/circle")).unwrap();
        symlink("../../secret", folder.join("www/inner/out")).unwrap();
        let place = |name: &str, access| PathRule {
            path: folder.join(name),
            access,
            line: String::new(),
        };
        let mut confinement = Confinement {
            level: Level::Strict,
            places: vec![
                place("www", PathAccess::Read),
                place("www/inner", PathAccess::Write),
                place("files", PathAccess::Read),
            ],
            ..Confinement::default()
        };
        let lines = links_leading_outside(&confinement);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("www/inner/out\" leads to \""),
            "{lines:?}"
        );
        for number in 0..NAMED_MAX + 4 {
            symlink("/etc", folder.join(format!("www/link{number}"))).unwrap();
        }
        let lines = links_leading_outside(&confinement);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(lines[NAMED_MAX], "5 more symbolic links lead out");
        confinement.level = Level::On;
        assert!(links_leading_outside(&confinement).is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
