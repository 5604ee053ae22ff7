//! The permanent error of a stream, in compact form.

use std::io;

/// A permanent error in four bytes: an `errno`, or a negative code for an error without one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredError(i32);

impl StoredError {
    /// No error.
    pub(super) const NONE: StoredError = StoredError(0);
    /// A file was shorter than its segment (`UnexpectedEof`).
    pub(super) const SHORT_FILE: StoredError = StoredError(-1);
    /// Another error without an `errno`.
    pub(super) const OTHER: StoredError = StoredError(-2);

    /// Stores an error; the text of an error without an `errno` is lost.
    pub(super) fn of(error: &io::Error) -> StoredError {
        match error.raw_os_error() {
            Some(number) => StoredError(number),
            None if error.kind() == io::ErrorKind::UnexpectedEof => StoredError::SHORT_FILE,
            None => StoredError::OTHER,
        }
    }

    /// The stored error; `None` for [`StoredError::NONE`].
    pub(super) fn error(self) -> Option<io::Error> {
        match self {
            StoredError::NONE => None,
            StoredError::SHORT_FILE => Some(io::ErrorKind::UnexpectedEof.into()),
            StoredError::OTHER => Some(io::ErrorKind::Other.into()),
            StoredError(number) => Some(io::Error::from_raw_os_error(number)),
        }
    }
}
