//! What is being done with a request at an upstream, as log lines end with it.

/// Until the answer begins.
pub const SENDING: &str = "while sending request to upstream";

/// Until the head of the answer has come.
pub const READING: &str = "while reading response header from upstream";

/// [`READING`] with a space in front, to be appended to a log line.
pub const WHILE_READING: &str = " while reading response header from upstream";
