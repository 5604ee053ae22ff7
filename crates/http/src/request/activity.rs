//! The phrases at the end of error log lines about what the server is doing with a request, in
//! nginx's words.

/// The request's head is being read.
pub const READING_HEADERS: &str = " while reading client request headers";

/// The response's head is being made, or the response is being sent.
pub const WHILE_SENDING: &str = " while sending response to client";

/// The response's body is being sent, or the head of an upstream's response.
pub const WHILE_SENDING_ON: &str = " while sending to client";
