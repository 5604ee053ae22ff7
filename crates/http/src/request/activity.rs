//! What is being done with a request, as lines of the error log end, in nginx's words.

/// Its head is being read.
pub const READING_HEADERS: &str = " while reading client request headers";

/// Its response's head is made, and the response is being sent.
pub const WHILE_SENDING: &str = " while sending response to client";

/// The response's body is being sent; from the start for a response of an upstream.
pub const WHILE_SENDING_ON: &str = " while sending to client";
