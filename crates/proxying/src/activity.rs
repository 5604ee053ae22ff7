//! The phrases at the end of log lines that say what the server is doing with a request at an
//! upstream.

/// Until the first byte of the response is received.
pub const SENDING: &str = "while sending request to upstream";

/// Until the head of the response is complete.
pub const READING: &str = "while reading response header from upstream";

/// [`READING`] with a space in front, to be appended to a log line.
pub const WHILE_READING: &str = " while reading response header from upstream";
