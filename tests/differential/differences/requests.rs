//! Differences in what is told of requests: of their lines, fields and bodies.

use super::{NO_LINE, Row};
use crate::case::{Line, any_status, is_framed_otherwise, value};
use crate::compare::{CONTINUE_LENGTH, Part};
use crate::requests::Exchange;
use crate::run::Seen;

/// Bytes that a record of TLS has room for (RFC 8446, section 5.1).
const RECORD_LENGTH_MAX: usize = 1 << 14;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "**`set_real_ip_from` of a place that only a subrequest comes to**: the request keeps its own `$realip_remote_addr`. \
                   With nginx the subrequest changes the address of the connection itself.",
        is: |case, difference| {
            let own = [
                "realip_remote_addr",
                "remote_addr",
                "proxy_add_x_forwarded_for",
            ];
            difference.part == Part::Access
                && own.contains(&difference.key.as_str())
                && case.says("192.0.2.")
                && case.lines_of(difference).all(|(left, right)| {
                    let changed = value(left, "remote_addr");
                    let kept = value(right, "realip_remote_addr");
                    difference.reference.ends_with(changed) && difference.subject.ends_with(kept)
                })
        },
    },
    Row {
        sentence: "**100 Continue** is sent when something reads the body. nginx also sends it before it drops a \
                   body that no handler reads, so that the client sends it for nothing.",
        is: |case, difference| {
            let expected = any_status(case.reference, 100) && !any_status(case.subject, 100);
            let told = difference
                .reference
                .replace("HTTP/1.1 100 Continue, ", "")
                .replace("HTTP/1.1 100 Continue", "(no answer)");
            let alone = difference.part == Part::Status && told == difference.subject;
            // What the client still holds back comes along with its next request.
            let values = (difference.reference.as_str(), difference.subject.as_str());
            let along = difference.key == "pipe" && values == (".", "p");
            let number = |text: &str| text.parse::<usize>().ok();
            let more = number(&difference.reference)
                .zip(number(&difference.subject))
                .and_then(|(reference, subject)| reference.checked_sub(subject));
            let counts = matches!(difference.key.as_str(), "bytes_sent" | "body_bytes_sent")
                && more == Some(CONTINUE_LENGTH);
            expected && (alone || counts || along)
        },
    },
    Row {
        sentence: "**After a 412.** A failed precondition (412) lets the connection go on, as its head says. nginx \
                   announces `keep-alive` and closes: what follows on the connection goes unanswered, and so do the \
                   copies that `mirror` makes of the request; `$request_completion` is empty, `$sent_http_keep_alive` and the \
                   `$content_length` of a body in chunks stay what they were, and where `post_action` leads round in a circle, \
                   `$status` and the other variables of the response stay, too.",
        is: |case, difference| {
            let mut requests = 0..case.reference.heard.answers.len();
            let failed = requests.position(|request| {
                let of = |seen: &Seen| {
                    let mut answers = seen.heard.answers_to(request);
                    answers.any(|answer| answer.status() == 412)
                };
                of(case.reference) && of(case.subject)
            });
            let of_connection = |failed: usize| {
                let of_copy = difference.part == Part::Error
                    && difference.reference == NO_LINE
                    && difference.subject.contains(", subrequest: \"")
                    && case.is_named(difference, failed);
                of_copy || case.is_lack_behind(difference, failed)
            };
            // What is sent is the same, and in the log phase stays what it was.
            let stays = matches!(
                difference.key.as_str(),
                "request_completion" | "sent_http_connection" | "sent_http_keep_alive"
            );
            let mut errors = case.reference.errors.iter();
            let stays_in_circle = difference.part == Part::Access
                && (difference.key.starts_with("sent_http_") || difference.key == "status")
                && errors.any(|line| line.contains("redirection cycle"));
            // Of a body that has not come yet nginx tells how much it wants to see next.
            let mut lines = case.lines_of(difference);
            let is_unread = difference.key == "content_length"
                && difference.subject == "0"
                && lines.any(|(line, _)| case.is_in_chunks_at(line));
            // A copy that is made passes limits of its own place.
            let is_limited = matches!(
                difference.key.as_str(),
                "limit_conn_status" | "limit_req_status"
            );
            let is_uncopied = is_limited && difference.reference == "-";
            let stays = stays || stays_in_circle || is_unread || is_uncopied;
            failed.is_some_and(|failed| {
                of_connection(failed) || stays && case.is_from(difference, failed)
            })
        },
    },
    Row {
        sentence: "**`$args` without a question mark.** Where `try_files`, or an `error_page` with variables, leads to a \
                   URI without `?`, `$args` is empty after the former and not there after the latter. With nginx \
                   what its stack held before decides between empty and not there.",
        is: |_, difference| {
            let pair = (difference.reference.as_str(), difference.subject.as_str());
            difference.part == Part::Access
                && matches!(difference.key.as_str(), "args" | "query_string")
                && matches!(pair, ("-", "") | ("", "-"))
        },
    },
    Row {
        sentence: "**`$request_length` of a body in chunks that is dropped with another request behind it** is what the \
                   request took. nginx subtracts the bytes behind it, which it has not counted, and may log less than \
                   the head, or a negative number.",
        is: |case, difference| {
            let reference = difference.reference.parse::<i64>();
            let subject = difference.subject.parse::<i64>();
            let less =
                matches!((reference, subject), (Ok(reference), Ok(subject)) if reference < subject);
            // An answer that does not wait for the body brings the next request close behind it.
            let mut exchanges = case.conversation.exchanges.iter();
            let has_chunks = exchanges.any(Exchange::is_in_chunks);
            let followed =
                case.conversation.pipelined && has_chunks || case.is_followed(difference);
            difference.key == "request_length" && less && followed
        },
    },
    Row {
        sentence: "**`$bytes_sent` and `$body_bytes_sent` of a subrequest** (`log_subrequest`) count what the response had come \
                   to when it began, and what it added. nginx counts what of the response has left by its end, which \
                   buffers decide.",
        is: |case, difference| {
            let counts = matches!(difference.key.as_str(), "bytes_sent" | "body_bytes_sent");
            counts && case.is_of_subrequest(difference)
        },
    },
    Row {
        sentence: "**Variables in the lines of subrequests** (`log_subrequest`) and in the line of their request are those of \
                   each. nginx keeps many a value that the first of these lines asked for: `$request_completion` stays \
                   empty, `$sent_http_*` those of the subrequest.",
        is: |case, difference| case.keeps_value_of_subrequest(difference),
    },
    Row {
        sentence: "**`$request` of a line that is refused before its end** shows what had come by then, with nginx as well.",
        is: |case, difference| {
            let (reference, subject) = (&difference.reference, &difference.subject);
            let begins = reference.starts_with(subject) || subject.starts_with(reference);
            let shown = begins && !reference.is_empty() && !subject.is_empty();
            difference.key == "request" && shown && case.is_of_refused_line(difference)
        },
    },
    Row {
        sentence: "**`$request_body` of a body that `proxy_request_buffering off` passes on** is there where the body has come \
                   whole by the time its request is. With `listen … deferred` nginx reads of the first request what its \
                   head's buffer takes, and the rest later, so that the variable is empty, and what came in chunks goes on \
                   in chunks, where it has a length here.",
        is: |case, difference| {
            let in_part = |(left, right): (&Line, &Line)| {
                value(left, "connection_requests") == "1"
                    && value(left, "upstream_addr") != "-"
                    && value(left, "request_body") == "-"
                    && value(left, "request_body_file") == "-"
                    && value(right, "request_body_file") == "-"
            };
            let mut lines = case.reference.access.iter().zip(&case.subject.access);
            match difference.part {
                Part::Access if difference.key == "upstream_bytes_sent" => case
                    .lines_of(difference)
                    .any(|pair| in_part(pair) && case.is_in_chunks_at(pair.0)),
                Part::Access => {
                    difference.key == "request_body" && case.lines_of(difference).any(in_part)
                }
                Part::Upstream => {
                    is_framed_otherwise(difference)
                        && lines.any(|pair| in_part(pair) && case.is_in_chunks_at(pair.0))
                }
                _ => false,
            }
        },
    },
    Row {
        sentence: "**A body in parts whose upstream cannot be reached** (`proxy_request_buffering off`): how much of it has come \
                   by the time of the 502 is a matter of moments.",
        is: |case, difference| {
            let in_parts = |request: usize| {
                let exchange = case.conversation.exchanges.get(request);
                // A record of TLS is a part, too.
                let by_record = |exchange: &Exchange| {
                    case.conversation.tls.is_some()
                        && exchange.segments.concat().len() > RECORD_LENGTH_MAX
                };
                exchange.is_some_and(|exchange| exchange.segments.len() > 1 || by_record(exchange))
            };
            let mut lines = case.lines_of(difference);
            let is_of_body = matches!(
                difference.key.as_str(),
                "content_length" | "request_body" | "request_length"
            );
            let unreached = lines.any(|(left, right)| {
                let is_502 = |line| value(line, "status").ends_with("502");
                let is_unsent = |line| value(line, "upstream_bytes_sent") == "0";
                [left, right]
                    .into_iter()
                    .all(|line| is_502(line) && is_unsent(line))
            });
            is_of_body && unreached && case.requests_of(difference).any(in_parts)
        },
    },
    Row {
        sentence: "**A body in chunks behind requests that came with it** stays in memory up to what `client_body_buffer_size` and \
                   the head's buffer take. With nginx the requests before it take some of that buffer, or have a larger one \
                   taken, so that the body goes to a temporary file sooner or later.",
        is: |case, difference| {
            let mut lines = case.reference.access.iter().zip(&case.subject.access);
            let mut exchanges = case.conversation.exchanges.iter();
            let buffered = "[warn] a client request body is buffered to a temporary file ";
            let both = [&difference.reference, &difference.subject];
            let is_of_file = match difference.part {
                Part::Access => matches!(
                    difference.key.as_str(),
                    "request_body" | "request_body_file"
                ),
                Part::Error => {
                    both.iter().any(|line| line.starts_with(buffered))
                        && both.iter().any(|line| *line == NO_LINE)
                }
                _ => false,
            };
            is_of_file
                && case.conversation.pipelined
                && exchanges.any(Exchange::is_in_chunks)
                && lines.any(|(left, right)| {
                    let in_memory = |line| value(line, "request_body_file") == "-";
                    value(left, "connection_requests") != "1" && in_memory(left) != in_memory(right)
                })
        },
    },
    Row {
        sentence: "**A subrequest that goes without the request's body** is not judged by `client_max_body_size` of its location: an \
                   upload that `auth_request` is asked about is not refused because the location that answers allows less. \
                   nginx answers 500 there.",
        is: |case, difference| {
            let refused = |line: &&String| {
                line.contains("client intended to send too large body: ")
                    && line.contains(", subrequest: \"")
                    && !case.subject.errors.contains(line)
            };
            let mut refused = case.reference.errors.iter().filter(refused);
            let count = case.conversation.exchanges.len();
            let first =
                refused.find_map(|line| (0..count).find(|request| case.names(line, *request)));
            first.is_some_and(|request| case.is_from(difference, request))
        },
    },
    Row {
        sentence: "**A body behind a head that is refused** is not read. nginx reads it where the page that answers is made \
                   by a handler that does: of two framings at once it believes the length.",
        is: |case, difference| {
            let framing = [
                "client sent TRACE method",
                "client sent CONNECT",
                "headers at the same time",
                "client sent unknown \"Transfer-Encoding\"",
            ];
            let is_refused = |line: &&String| framing.iter().any(|text| line.contains(text));
            let mut lines = case.lines_of(difference);
            let refused = lines.any(|(line, _)| {
                let named = format!(", request: \"{}\"", value(line, "request"));
                let mut refused = case.reference.errors.iter().filter(is_refused);
                refused.any(|error| error.contains(&named))
            });
            let of_body = matches!(
                difference.key.as_str(),
                "request_body" | "content_length" | "request_length"
            );
            of_body && refused
        },
    },
    Row {
        sentence: "**`$pipe` behind a request with a body** tells whether something had come behind that body when it ended, \
                   which is a matter of moments, and of where nginx puts what it reads.",
        is: |case, difference| {
            let mut requests = case.requests_of(difference);
            difference.key == "pipe"
                && requests.any(|request| {
                    // A request behind a body counts as well.
                    let at = request.saturating_sub(case.count_behind_bodies(request));
                    (at.saturating_sub(1)..request).any(|before| case.has_body(before))
                })
        },
    },
    Row {
        sentence: "**`$pipe` behind several requests that came at once** is `p`. Where they fill the buffer of \
                   `client_header_buffer_size` to its last byte, nginx reads what follows apart, and `$pipe` is `.`.",
        is: |case, difference| {
            let sizes = buffer_sizes(case.configuration);
            let lengths: Vec<usize> = case.requests().map(|bytes| bytes.len()).collect();
            let is_behind_full = |request: usize| {
                let before = lengths.get(..request).unwrap_or_default();
                // One request alone is known to fill it.
                (0..before.len().saturating_sub(1))
                    .any(|first| sizes.contains(&before[first..].iter().sum()))
            };
            let is_apart = |(left, right): (&Line, &Line)| {
                value(left, "pipe") == "." && value(right, "pipe") == "p"
            };
            difference.key == "pipe"
                && case.conversation.pipelined
                && case.lines_of(difference).all(is_apart)
                && case.requests_of(difference).all(is_behind_full)
        },
    },
];

/// The sizes of the first buffer for a request's head, in bytes: nginx's own and those of the
/// configuration.
fn buffer_sizes(configuration: &str) -> Vec<usize> {
    let written = configuration.split("client_header_buffer_size ").skip(1);
    let sizes = written.filter_map(|rest| {
        let size = rest.split(';').next()?.trim();
        match size.strip_suffix(['k', 'K']) {
            Some(size) => Some(size.parse::<usize>().ok()? * 1024),
            None => size.parse().ok(),
        }
    });
    sizes.chain([1024]).collect()
}
