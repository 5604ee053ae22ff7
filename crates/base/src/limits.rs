//! Limits that more than one crate shares.
//!
//! A limit that only one file needs stands in that file. Only numbers that two crates must agree on
//! belong here.

/// Default size of one receive buffer, in bytes.
///
/// A browser's request head is below 4 KiB; larger buffers make uploads cheaper. An idle connection
/// holds no receive buffer.
pub const RECEIVE_BUFFER_SIZE_DEFAULT: usize = 16 * 1024;

/// Receive buffers that one connection may hold before the engine stops receiving for it.
pub const RECEIVE_BUFFERS_PER_CONNECTION_MAX: usize = 2;

/// Spare receive buffers that a thread keeps for its next connections; further ones go back to the
/// allocator.
pub const SPARE_BUFFERS_MAX: usize = 64;

/// Spare receive buffers, of [`SPARE_BUFFERS_MAX`], that an idle thread keeps indefinitely.
pub const SPARE_BUFFERS_KEPT: usize = 4;

/// Bytes of one file that are sent before other connections are served (nginx's
/// `sendfile_max_chunk`).
pub const SENDFILE_CHUNK_DEFAULT: usize = 2 * 1024 * 1024;

/// Internal redirects of one request before it ends with status 500 (nginx's
/// `NGX_HTTP_MAX_URI_CHANGES`).
pub const URI_CHANGES_MAX: u32 = 10;
