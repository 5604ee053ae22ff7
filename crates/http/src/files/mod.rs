//! What HTTP itself says of files, whatever handler opens them: their tags, and what the log tells
//! of those that are not there.

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

/// The ETag of a file, unless `etag off` is written.
pub fn etag_of(core: &Core, metadata: &Metadata) -> Option<Bytes> {
    core.etag
        .then(|| Bytes::copy_from_slice(etag::of_file(metadata.mtime, metadata.size).as_bytes()))
}

/// The line for a file that is still not there, as `refused` writes it.
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

/// The end of the line: no handler had anything for the URI.
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

/// Has the thread pool look at every folder of the root in force, unless that was done a moment
/// ago: `$realpath_root` then finds all of them in memory.
pub async fn prepare_realpath_root(request: &mut Request) {
    let root = request.document_root();
    let root = Request::path_of(&root);
    if warm::may_look(&root) {
        return;
    }
    let path = root.to_path_buf();
    // What came of it is asked again, at once, where the value is needed.
    let _ = engine::blocking(move || std::fs::canonicalize(&path).map(drop)).await;
    warm::looked_at(&root);
}
