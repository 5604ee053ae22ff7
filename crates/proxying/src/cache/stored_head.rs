//! Parses and writes the heads of entries.

use bytes::Bytes;
use http_client::ReadHead;
use proto::cgi::{self, Form};
use proto::h1;
use store::disk::{Head, Origin};

use crate::answer::AnswerHead;

/// Parses the head of an entry. An entry that nginx has written has the head as the upstream sent
/// it: in HTTP/1 or CGI form.
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

/// The status line with which a head is stored: always that of HTTP/1.
pub(super) fn first_line(head: &AnswerHead) -> Vec<u8> {
    let mut text = b"HTTP/1.1 ".to_vec();
    let line = head.status_line(&head.bytes);
    if line.is_empty() {
        // An application's response without a reason phrase is stored with the standard one.
        let status = head.status();
        let line = format!("{status} {}", proto::status::reason(status));
        text.extend_from_slice(line.trim_end().as_bytes());
    } else {
        text.extend_from_slice(line);
    }
    text.extend_from_slice(b"\r\n");
    text
}
