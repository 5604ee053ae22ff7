//! What is being done with a request, as lines of the error log end, in nginx's words.

/// Its head is being read.
pub const READING_HEADERS: &str = " while reading client request headers";

/// Its response's head is made, and the response is being sent.
pub const WHILE_SENDING: &str = " while sending response to client";

/// The same of a response that an upstream has made, and from then on.
pub const WHILE_SENDING_ON: &str = " while sending to client";
