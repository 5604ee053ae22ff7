//! Functions for files that all handlers share: ETags, and log lines for missing files.

pub mod disable_symlinks;
pub mod open_file_cache;
pub mod rename;
pub mod temporary_file;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use engine::file::Metadata;
use framework::warm;
use proto::etag;

use crate::config::core::Core;
use crate::request::{Request, Step};

/// The ETag of a file; `None` with `etag off`.
pub fn etag_of(core: &Core, metadata: &Metadata) -> Option<Bytes> {
    core.etag
        .then(|| Bytes::copy_from_slice(etag::of_file(metadata.mtime, metadata.size).as_bytes()))
}

/// Logs a missing file like a failed `open()`, if `log_not_found` is on. Returns whether
/// `log_not_found` is on.
pub fn log_missing(request: &Request, path: &Path) -> bool {
    if request.plan.core.log_not_found {
        let reason = io::Error::from_raw_os_error(libc::ENOENT);
        let path = logs::Printable(path.as_os_str().as_bytes());
        logs::error!(
            request,
            Error,
            "open() \"{path}\" failed {}",
            logs::Errno(&reason)
        );
    }
    request.plan.core.log_not_found
}

/// The step to take if no handler has found a file for the URI.
pub fn nothing_found(request: &mut Request) -> Step {
    if request.uri.ends_with(b"/") {
        if request.has_filename() {
            let path = request.filename();
            logs::error!(
                request,
                Error,
                "directory index of \"{}\" is forbidden",
                logs::Printable(&path)
            );
        }
        return Step::Finish(403);
    }
    logs::error!(request, Error, "no handler found");
    Step::Finish(404)
}

/// Resolves the current root on the thread pool, unless that was done a moment ago. When
/// `$realpath_root` is then evaluated, all of the root's directories are in the kernel's cache.
pub async fn prepare_realpath_root(request: &mut Request) {
    let root = request.document_root();
    let root = Request::path_of(&root);
    if warm::was_checked_recently(&root) {
        return;
    }
    let path = root.to_path_buf();
    // The result is not used: the variable resolves the path again when it is evaluated.
    let _ = engine::blocking(move || std::fs::canonicalize(&path).map(drop)).await;
    warm::looked_at(&root);
}
