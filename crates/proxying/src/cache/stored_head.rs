//! Parses and writes the heads of entries.

use bytes::Bytes;
use http_client::ReadHead;
use proto::cgi::{self, Form};
use proto::h1;
use store::disk::{Head, Origin};

use crate::answer::AnswerHead;

/// The head of an entry. nginx stores heads as upstreams have sent them: as HTTP/1 or CGI.
pub(super) fn parse(stored: &Head) -> Option<AnswerHead> {
    let is_cgi = stored.origin == Origin::Nginx && !stored.text.starts_with(b"HTTP/");
    parse_as(&stored.text, is_cgi)
}

/// Parses the head of a stored HTTP/1 text.
pub(super) fn parse_text(text: &Bytes) -> Option<AnswerHead> {
    parse_as(text, false)
}

fn parse_as(text: &Bytes, is_cgi: bool) -> Option<AnswerHead> {
    let mut head = ReadHead::default();
    let length = if is_cgi {
        cgi::parse(text, &mut head, Form::Fields).ok().flatten()
    } else {
        h1::response::parse(text, &mut head).ok().flatten()
    };
    let length = length?;
    Some(AnswerHead::shared(
        head,
        text.slice(..length.min(text.len())),
    ))
}

/// The status line of a stored head: that of HTTP/1, whatever protocol the upstream used.
pub(super) fn first_line(head: &AnswerHead) -> Vec<u8> {
    let mut text = b"HTTP/1.1 ".to_vec();
    let line = head.status_line(&head.bytes);
    if line.is_empty() {
        // An application that sends no reason phrase gets the usual one, also in its first
        // response.
        let status = head.status();
        let line = format!("{status} {}", proto::status::reason(status));
        text.extend_from_slice(line.trim_end().as_bytes());
    } else {
        text.extend_from_slice(line);
    }
    text.extend_from_slice(b"\r\n");
    text
}
