//! What HTTP itself says of files, whatever handler opens them: their tags, and what the log tells of those that are not there.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use engine::file::Metadata;
use proto::etag;

use crate::core::Core;
use crate::log;
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
        let path = log::Printable(path.as_os_str().as_bytes());
        log::error!(
            request,
            Error,
            "open() \"{path}\" failed {}",
            log::Errno(&reason)
        );
    }
    request.plan.core.log_not_found
}

/// The end of the line: no handler had anything for the URI.
pub fn nothing_found(request: &mut Request) -> Step {
    if request.uri.ends_with(b"/") {
        if request.has_filename() {
            let path = request.filename();
            log::error!(
                request,
                Error,
                "directory index of \"{}\" is forbidden",
                log::Printable(&path)
            );
        }
        return Step::Finish(403);
    }
    log::error!(request, Error, "no handler found");
    Step::Finish(404)
}
