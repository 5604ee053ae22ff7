//! Directories for temporary files of workers: created by the master, which has the privileges to
//! do so, and owned by the workers' user. The master does not touch their contents.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::identity::Identity;
use crate::{log, probe};

/// Creates every missing directory with access for its owner only, and changes the owner of others
/// to the workers' user. The errors are in nginx's words, one per directory.
pub(crate) fn make(paths: &[PathBuf], identity: Option<&Identity>) -> Result<(), Vec<String>> {
    let failed: Vec<String> = paths
        .iter()
        .filter_map(|path| make_one(path, identity).err())
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed)
    }
}

/// Checks whether every directory exists or could be created. The errors are those of [`make`].
pub(crate) fn probe(paths: &[PathBuf]) -> Result<(), Vec<String>> {
    let failure = |path: &PathBuf| {
        let error = probe::folder(path).err()?;
        let call = format!("mkdir() \"{}\" failed", path.display());
        Some(log::failure(&call, &error))
    };
    let failed: Vec<String> = paths.iter().filter_map(failure).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed)
    }
}

fn make_one(path: &Path, identity: Option<&Identity>) -> Result<(), String> {
    let failure = |call: &str, error: io::Error| {
        log::failure(&format!("{call} \"{}\" failed", path.display()), &error)
    };
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failure("mkdir()", error));
        }
        _ => {}
    }
    let Some(identity) = identity else {
        return Ok(());
    };
    let owner = std::fs::metadata(path)
        .map_err(|error| failure("stat()", error))?
        .uid();
    if owner != identity.user {
        std::os::unix::fs::chown(path, Some(identity.user), None)
            .map_err(|error| failure("chown()", error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_what_is_missing_and_keeps_what_is_there() {
        let base =
            std::env::temp_dir().join(format!("tidegate-directories-{}", std::process::id()));
        std::fs::create_dir_all(&base).expect("a temporary directory");
        let wanted = [base.join("one"), base.join("two")];
        make(&wanted, None).expect("made");
        std::fs::write(wanted[0].join("file"), "kept").expect("written");
        make(&wanted, None).expect("there already");
        assert!(wanted[0].join("file").exists() && wanted[1].is_dir());
        let below = [base.join("none/below")];
        let errors = make(&below, None).expect_err("no parent");
        assert_eq!(probe(&below), Err(errors.clone()));
        assert_eq!(probe(&[base.join("three")]), Ok(()));
        assert!(!base.join("three").exists());
        assert!(
            errors[0].starts_with("mkdir() \"") && errors[0].contains("(2: "),
            "{errors:?}"
        );
        std::fs::remove_dir_all(&base).expect("removed");
    }
}
