//! Limits that more than one room shares.
//!
//! A limit that only one file needs stands in that file. What belongs here is a number that two
//! rooms must agree on.

/// Bytes of one receive buffer unless the configuration says otherwise.
///
/// A request head of a browser is below 4 KiB; larger buffers make uploads cheaper. An idle
/// connection holds none.
pub const RECEIVE_BUFFER_SIZE_DEFAULT: usize = 16 * 1024;

/// Receive buffers that one connection may hold before its receiving pauses.
pub const RECEIVE_BUFFERS_PER_CONNECTION_MAX: usize = 2;

/// Spare receive buffers that a thread keeps for its next connections; more are given back to the
/// allocator.
pub const SPARE_BUFFERS_MAX: usize = 64;

/// Of these, the ones that a quiet thread keeps for good.
pub const SPARE_BUFFERS_KEPT: usize = 4;

/// Bytes of one file that are sent before other connections get their turn (nginx's
/// `sendfile_max_chunk`).
pub const SENDFILE_CHUNK_DEFAULT: usize = 2 * 1024 * 1024;

/// Internal redirects of one request before it ends with status 500 (nginx's
/// `NGX_HTTP_MAX_URI_CHANGES`).
pub const URI_CHANGES_MAX: u32 = 10;
