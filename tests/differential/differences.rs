//! The table of documented differences: what may differ, and why. It also makes a section of docs/differences.md.
//!
//! A row judges one difference at a time and should know no more than what its sentence tells. Rows about an older nginx are
//! of no interest to users and stand in the table alone.

use std::path::{Path, PathBuf};

use crate::case::{Case, any_status, is_as_sent, is_difference, value};
use crate::compare::{Difference, Part};
use crate::requests::{Conversation, Exchange, ODD_HOSTS};
use crate::run::{Seen, Transcript};
use crate::upstream::Recorded;
use crate::verdicts;

/// What stands for a line that one of the two has not logged.
pub(crate) const NO_LINE: &str = "(no such line)";

/// How many bytes Tidegate receives at once.
const RECEIVED_AT_ONCE: usize = 16 * 1024;

/// One documented difference.
pub(crate) struct Row {
    /// The sentence of docs/differences.md, with its reason.
    pub(crate) sentence: &'static str,
    /// The first version of nginx that answers as Tidegate: the row is for older ones only.
    until: Option<[u32; 3]>,
    /// Whether a difference is this one.
    is: fn(&Case, &Difference) -> bool,
}

/// Every documented difference.
pub(crate) const TABLE: &[Row] = &[
    Row {
        sentence: "**100 Continue** is sent when something reads the body. nginx also sends it before it drops a \
                   body that no handler reads, so that the client sends it for nothing.",
        until: None,
        is: |case, difference| {
            let expected = any_status(case.reference, 100) && !any_status(case.subject, 100);
            // What the client still holds back comes along with its next request.
            let along = difference.key == "pipe";
            let counts = difference.key.ends_with("bytes_sent");
            expected && (difference.part == Part::Status || counts || along)
        },
    },
    Row {
        sentence: "**After a 412.** A failed precondition (412) lets the connection go on, as its head says. nginx \
                   announces `keep-alive` and closes: what follows on the connection goes unanswered, and so do the \
                   copies that `mirror` makes of the request; `$request_completion` is empty, \
                   and `$sent_http_keep_alive` stays.",
        until: None,
        is: |case, difference| {
            let goes_on = difference.part == Part::Ending
                || difference.part == Part::Upstream
                || (difference.part == Part::Status && difference.reference == "(no answer)")
                || (difference.part == Part::Error && difference.reference == NO_LINE)
                || matches!(
                    difference.key.as_str(),
                    "answers" | "number of lines" | "request_completion" | "sent_http_keep_alive"
                );
            goes_on && any_status(case.reference, 412) && any_status(case.subject, 412)
        },
    },
    Row {
        sentence: "**Refused targets.** A target that is refused, or whose request line breaks off, stands in \
                   `$request_uri` all the same. nginx leaves the variable empty.",
        until: None,
        is: |case, difference| {
            let empty = difference.reference == "-" || difference.reference.is_empty();
            let refused = |line: &String| {
                let mut reading = ["", "pipelined "].iter();
                reading
                    .any(|kind| line.contains(&format!("while reading client {kind}request line")))
            };
            let refused = case.reference.errors.iter().any(refused)
                && case.subject.errors.iter().any(refused)
                || case.is_of_refused_line(difference);
            // Other values may have the variable in them.
            let number = |text: &str| text.parse::<usize>().ok();
            let longer = number(&difference.subject)
                .zip(number(&difference.reference))
                .and_then(|(subject, reference)| subject.checked_sub(reference));
            let within = case.targets().any(|target| match difference.part {
                Part::Field => difference.subject.replace(&target, "") == difference.reference,
                _ => difference.key == "bytes_sent" && longer == Some(target.len()),
            });
            refused && (difference.key == "request_uri" && empty || within)
        },
    },
    Row {
        sentence: "**`$args` without a question mark.** Where `try_files`, or an `error_page` with variables, leads to a \
                   URI without `?`, `$args` is empty after the former and not there after the latter. With nginx \
                   what its stack held before decides between empty and not there.",
        until: None,
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
        until: None,
        is: |case, difference| {
            let reference = difference.reference.parse::<i64>();
            let subject = difference.subject.parse::<i64>();
            let less =
                matches!((reference, subject), (Ok(reference), Ok(subject)) if reference < subject);
            // An answer that does not wait for the body brings the next request close behind it.
            let followed = case.conversation.pipelined || case.is_followed(difference);
            difference.key == "request_length" && less && followed
        },
    },
    Row {
        sentence: "**`$bytes_sent` and `$body_bytes_sent` of a subrequest** (`log_subrequest`) count what the response had come \
                   to when it began, and what it added. nginx counts what of the response has left by its end, which \
                   buffers decide.",
        until: None,
        is: |case, difference| {
            let counts = matches!(difference.key.as_str(), "bytes_sent" | "body_bytes_sent");
            counts && case.is_of_subrequest(difference)
        },
    },
    Row {
        sentence: "**Variables in the lines of subrequests** (`log_subrequest`) and in the line of their request are those of \
                   each. nginx keeps many a value that the first of these lines asked for: `$request_completion` stays \
                   empty, `$sent_http_*` those of the subrequest.",
        until: None,
        is: |case, difference| case.keeps_value_of_subrequest(difference),
    },
    Row {
        sentence: "**`$sent_http_*`** tell what was sent. Where `add_header`, `expires` or what they name has asked for one, \
                   nginx keeps what that was before charset, ranges and chunks were decided.",
        until: None,
        is: |case, difference| {
            let key = &difference.key;
            let told = |request: Option<usize>| {
                is_as_sent(case.subject, request, key, &difference.subject)
                    && !is_as_sent(case.reference, request, key, &difference.reference)
            };
            let mut requests = case.requests_of(difference);
            key.starts_with("sent_http_content_")
                && (told(None) || requests.any(|request| told(Some(request))))
        },
    },
    Row {
        sentence: "**`$request` of a line that is refused before its end** shows what had come by then, with nginx as well.",
        until: None,
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
                   head's buffer takes, and the rest later, so that the variable is empty.",
        until: None,
        is: |case, difference| {
            let mut lines = case.lines_of(difference);
            difference.key == "request_body"
                && difference.reference == "-"
                && lines.any(|(left, right)| {
                    value(left, "connection_requests") == "1"
                        && value(left, "upstream_addr") != "-"
                        && value(left, "request_body_file") == "-"
                        && value(right, "request_body_file") == "-"
                })
        },
    },
    Row {
        sentence: "**`$request_body` of a long body that `proxy_request_buffering off` passes on** is empty where the body did not \
                   come with what was received with its head, 16 KiB at once. nginx goes on reading as long as \
                   `client_body_buffer_size` has room, and the variable has what has come whole.",
        until: None,
        is: |case, difference| {
            let length =
                |exchange: &Exchange| exchange.segments.iter().map(Vec::len).sum::<usize>();
            let exchanges = &case.conversation.exchanges;
            let received: usize = match case.conversation.pipelined {
                true => exchanges.iter().map(length).sum(),
                false => exchanges.iter().map(length).max().unwrap_or(0),
            };
            let mut lines = case.lines_of(difference);
            difference.key == "request_body"
                && difference.subject == "-"
                && received > RECEIVED_AT_ONCE
                && lines.any(|(left, right)| {
                    let in_file = |line| value(line, "request_body_file") != "-";
                    value(left, "upstream_addr") != "-" && !in_file(left) && !in_file(right)
                })
        },
    },
    Row {
        sentence: "**A body in parts whose upstream cannot be reached** (`proxy_request_buffering off`): how much of it has come \
                   by the time of the 502 is a matter of moments.",
        until: None,
        is: |case, difference| {
            let in_parts = |request: usize| {
                let exchange = case.conversation.exchanges.get(request);
                exchange.is_some_and(|exchange| exchange.segments.len() > 1)
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
                   the head's buffer take. The requests before it take some of that buffer with nginx, which writes the \
                   body to a temporary file sooner.",
        until: None,
        is: |case, difference| {
            let mut lines = case.reference.access.iter().zip(&case.subject.access);
            matches!(
                difference.key.as_str(),
                "request_body" | "request_body_file"
            ) && case.conversation.pipelined
                && lines.any(|(left, right)| {
                    value(left, "connection_requests") != "1"
                        && value(left, "request_body_file") != "-"
                        && value(right, "request_body_file") == "-"
                })
        },
    },
    Row {
        sentence: "**A body behind a head that is refused** is not read. nginx reads it where the page that answers is made \
                   by a handler that does: of two framings at once it believes the length.",
        until: None,
        is: |case, difference| {
            let framing = [
                "client sent TRACE method",
                "client sent CONNECT",
                "headers at the same time",
                "client sent unknown \"Transfer-Encoding\"",
            ];
            let refused = |line: &String| framing.iter().any(|text| line.contains(text));
            let of_body = matches!(
                difference.key.as_str(),
                "request_body" | "content_length" | "request_length"
            );
            of_body && case.reference.errors.iter().any(refused)
        },
    },
    Row {
        sentence: "**`post_action` that leads round in a circle**, or to a named location that is not there, leaves the \
                   connection to the next request or ends it, as the response that was sent announces. nginx closes the one, and the other stays open.",
        until: None,
        is: |case, difference| {
            let circled = |seen: &Seen| {
                let mut lines = seen.errors.iter();
                let leads_nowhere = ["redirection cycle", "could not find named location"];
                lines.any(|line| leads_nowhere.iter().any(|text| line.contains(text)))
            };
            let circles = circled(case.subject) || case.asks_in_circles();
            let unanswered = case.reference.heard.answers.iter().any(Vec::is_empty);
            let ended = difference.part == Part::Ending
                || difference.part == Part::Error && difference.reference == NO_LINE
                || matches!(
                    difference.key.as_str(),
                    "answers" | "number of lines" | "number of requests"
                )
                || difference.part == Part::Status && difference.reference == "(no answer)";
            let closed = circled(case.reference) && unanswered;
            let announces_end = any_status(case.subject, 500) && !closed;
            let stays_open = difference.part == Part::Ending && difference.reference == "Kept";
            // Of what is sent at once nginx answers the first requests, and no other one.
            let (answered, all) = (
                difference.reference.strip_suffix("(no answer)"),
                &difference.subject,
            );
            let fewer =
                difference.key == "answers" && answered.is_some_and(|some| all.starts_with(some));
            let asks_less = difference.key == "number of requests"
                && unanswered
                && case.reference.upstream.len() < case.subject.upstream.len();
            circles && (stays_open || fewer || asks_less || ended && !announces_end)
        },
    },
    Row {
        sentence: "**A connection that was announced to end** ends. nginx leaves it open where a `post_action` follows a \
                   request whose body was refused.",
        until: None,
        is: |case, difference| {
            let announces_end = |seen: &Seen| {
                let last = seen.heard.answers.iter().flatten().last();
                last.is_some_and(|answer| answer.field("connection") == Some("close"))
            };
            difference.part == Part::Ending
                && difference.reference == "Kept"
                && announces_end(case.reference)
                && announces_end(case.subject)
        },
    },
    Row {
        sentence: "**A body in a file and `post_action`**: what it asks an upstream has the body. nginx has closed the file, \
                   logs `pread() … failed`, and closes the connection.",
        until: None,
        is: |case, difference| {
            let is_closed = |line: &&String| {
                line.contains("[crit] pread() ")
                    && line.contains("/temp/body/")
                    && line.contains("(9: Bad file")
            };
            let closed = case.reference.errors.iter().any(|line| is_closed(&line));
            let asked = case.subject.upstream.len();
            // nginx asks its upstream without the body or not at all, and what comes behind the request has no answer.
            let follows = match difference.part {
                Part::Upstream => case.reference.upstream.len() <= asked,
                Part::Error => is_closed(&&difference.reference) || difference.reference == NO_LINE,
                Part::Ending => difference.reference == "Closed",
                Part::Status => difference.reference.ends_with("(no answer)"),
                Part::Access => {
                    let of_upstream = difference.key.starts_with("upstream_");
                    let status = ["status", "number of lines", "request_completion"];
                    of_upstream || status.contains(&difference.key.as_str())
                }
                _ => false,
            };
            closed && follows
        },
    },
    Row {
        sentence: "**`$sent_http_connection`** says what was sent. In nginx's log phase it is `close` for most \
                   requests on a connection that goes on.",
        until: None,
        is: |_, difference| {
            difference.part == Part::Access && difference.key == "sent_http_connection"
        },
    },
    Row {
        sentence: "**`try_files … =200`** is answered, with an empty body. nginx sends nothing: the client waits, or takes the \
                   next answer for it, and what it sent as a body may be read as its next request.",
        until: None,
        is: |case, difference| {
            let answers_empty = |seen: &Seen| {
                seen.heard.answers.iter().flatten().any(|answer| {
                    let has_type = answer.field("content-type").is_some();
                    answer.status() == 200 && answer.body.is_empty() && !has_type
                })
            };
            let empty = answers_empty(case.subject) && !answers_empty(case.reference);
            // The answer may be one that the client's conditions do not allow.
            let tells = |status: u16| {
                any_status(case.subject, status) && !any_status(case.reference, status)
            };
            let fails = tells(412) || tells(304);
            let silent = case.reference.heard.answers.iter().any(Vec::is_empty);
            // Without a head there is no more to see of it.
            let lines = || case.reference.access.iter().zip(&case.subject.access);
            let headless = matches!(
                (difference.key.as_str(), difference.reference.as_str()),
                ("sent_http_content_length", "-") | ("status", "009")
            ) && lines().any(|(left, right)| {
                let sent = value(right, "body_bytes_sent");
                let is_it = is_difference(difference, left, right);
                is_it && value(right, "server_protocol") == "-" && sent == "0"
            });
            headless || (empty || fails && silent) && difference.part != Part::Alarm
        },
    },
    Row {
        sentence: "**`$content_length` of a body in chunks that is dropped and never ends** is 0. nginx logs how much it \
                   wants to see next.",
        until: None,
        is: |_, difference| {
            let wanted = difference.reference.parse::<u64>();
            let is_wanted = wanted.is_ok_and(|wanted| wanted > 0);
            difference.key == "content_length" && is_wanted && difference.subject == "0"
        },
    },
    Row {
        sentence: "**Trailers with `add_after_body`** are sent once. nginx sends each twice.",
        until: None,
        is: |_, difference| {
            let twice = format!("{0}\n{0}", difference.subject);
            difference.part == Part::Trailer && difference.reference == twice
        },
    },
    Row {
        sentence: "**Trailers of a response without a body** (`add_trailer` where `PUT` has made a file) are sent, and the last chunk \
                   with them. nginx announces chunks and sends none: the client waits, or takes the next answer for one.",
        until: None,
        is: |case, difference| {
            let made = |seen: &Seen, cut: bool| {
                seen.heard.answers.iter().flatten().any(|answer| {
                    let created = matches!(answer.status(), 201 | 204);
                    created
                        && answer.framing == "chunked"
                        && answer.body.is_empty()
                        && answer.cut == cut
                })
            };
            let follows = matches!(
                difference.part,
                Part::Status | Part::Trailer | Part::Framing | Part::Ending
            ) || difference.part == Part::Error && difference.reference == NO_LINE
                || matches!(
                    difference.key.as_str(),
                    "bytes_sent" | "body_bytes_sent" | "number of lines"
                );
            made(case.reference, true) && made(case.subject, false) && follows
        },
    },
    Row {
        sentence: "**`proxy_request_buffering off` and an upstream that cannot be reached**: the connection goes on, as the response \
                   announces. nginx closes it where it has not read all of the body.",
        until: None,
        is: |case, difference| {
            let announces_more = |seen: &Seen| {
                let last = seen.heard.answers.iter().flatten().last();
                last.is_some_and(|answer| {
                    answer.status() == 502 && answer.field("connection") == Some("keep-alive")
                })
            };
            let refused =
                |line: &String| line.contains("connect() failed (111: Connection refused)");
            let has_body = case.says("Transfer-Encoding:") || case.says("Content-Length:");
            let unread = matches!(difference.key.as_str(), "content_length" | "request_body")
                && difference.reference == "-"
                || difference.key == "request_length";
            let kept = difference.subject.contains(" closed keepalive connection");
            let told = difference.part == Part::Error && difference.reference == NO_LINE && kept;
            let ended = difference.part == Part::Ending && difference.reference == "Closed";
            (ended || told || unread)
                && has_body
                && announces_more(case.reference)
                && announces_more(case.subject)
                && case.reference.errors.iter().any(refused)
        },
    },
    Row {
        sentence: "**`add_header` with a variable of the response, after a 416**: nginx adds the field to the part that it refuses and to the \
                   page, and the variable keeps its first value. Here the page has none of the file's.",
        until: None,
        is: |case, difference| {
            let twice = format!("{0}\n{0}", difference.subject);
            let refused = any_status(case.reference, 416) && any_status(case.subject, 416);
            let field = difference.part == Part::Field && difference.reference == twice;
            let number = |text: &str| text.parse::<usize>().ok();
            let more = number(&difference.reference)
                .zip(number(&difference.subject))
                .and_then(|(reference, subject)| reference.checked_sub(subject));
            let mut answers = case.reference.heard.answers.iter().flatten();
            let counted = answers.any(|answer| {
                let same = |one: &(String, String)| {
                    answer.fields.iter().filter(|other| *other == one).count()
                };
                let mut fields = answer.fields.iter().filter(|field| same(field) == 2);
                let line =
                    |(name, value): &(String, String)| name.len() + value.len() + ": \r\n".len();
                answer.status() == 416 && fields.any(|field| more == Some(line(field)))
            });
            let of_field = difference.key.starts_with("sent_http_");
            let listed = of_field && difference.reference == twice.replace('\n', ", ");
            let keeps = of_field && difference.subject == "-";
            let mut answers = case.reference.heard.answers.iter().flatten();
            let added = answers.any(|answer| {
                let shown = difference.reference.replace("\\x22", "\"");
                let has = |(_, value): &&(String, String)| *value == shown;
                answer.status() == 416 && answer.fields.iter().filter(has).count() == 2
            });
            let counts = difference.key == "bytes_sent" && counted;
            refused && (field || counts || listed || keeps && added)
        },
    },
    Row {
        sentence: "**A `try_files` that leads to nothing below an `alias`**, since its last parameter is the location itself, \
                   is a folder asked for without its slash. nginx judges by the byte in front of the empty URI.",
        until: None,
        is: |case, difference| {
            let mut answers = case.subject.heard.answers.iter().flatten();
            let to_root = answers.any(|answer| {
                let location = answer.field("location").unwrap_or_default();
                let path = location.splitn(4, '/').nth(3);
                answer.status() == 301
                    && path.is_some_and(|path| path.is_empty() || path.starts_with('?'))
            });
            to_root && any_status(case.reference, 403) && difference.part != Part::Alarm
        },
    },
    Row {
        sentence: "**A client that ends its sending with bytes behind its request** gets its answer. nginx, which learns of \
                   both at once from epoll, takes it for gone wherever the request has to wait.",
        until: None,
        is: |case, difference| {
            let gone = |line: &String| line.contains("client prematurely closed connection");
            let unanswered = case.reference.heard.answers.iter().any(Vec::is_empty);
            let given_up = unanswered && case.reference.errors.iter().any(gone);
            case.conversation.shuts && given_up && difference.part != Part::Alarm
        },
    },
    Row {
        sentence: "**A client that leaves** while its upstream works is logged without `epoll_wait() reported \
                   that`.",
        until: None,
        is: |_, difference| {
            let without = difference
                .reference
                .replace("epoll_wait() reported that ", "");
            difference.part == Part::Error && without == difference.subject
        },
    },
    Row {
        sentence: "**An answer without an HTTP head** (HTTP/0.9, or what is no HTTP) goes to the client as the \
                   body of a 200. nginx sends it without a head and logs the status `009`.",
        until: None,
        is: |case, _| case.asks(&["badversion"]),
    },
    Row {
        sentence: "**A response whose first bytes are `HTTP/`** and whose status line is malformed, or whose \
                   status is none of 100 to 599, is a 502. nginx passes the first kind on as HTTP/0.9, the \
                   upstream's head in the body.",
        until: None,
        is: |case, _| case.asks(&["badline"]),
    },
    Row {
        sentence: "**`100 Continue` from an upstream** is skipped, as any client should do. nginx takes it for the \
                   answer's head and the answer for its body. So are other informational responses; where no head \
                   follows, or after 100 of them, the answer is a 502.",
        until: None,
        is: |case, _| case.asks(&["continue"]),
    },
    Row {
        sentence: "**A handshake that fails** is logged with rustls's reason where nginx has OpenSSL's.",
        until: None,
        is: |case, difference| {
            difference.part == Part::Error
                && case.conversation.tls.is_some()
                && case.subject.heard.answers.is_empty()
        },
    },
    Row {
        sentence: "**`server_name_in_redirect`** in a server without a name: redirects name the address that the client \
                   came to. nginx leads to `http:///`, or to a port of no host.",
        until: None,
        is: |case, difference| {
            let without_host = |url: &str| url.contains("://:") || url.contains(":///");
            let is_location = matches!(difference.key.as_str(), "location" | "sent_http_location");
            // The host that is not there counts with the head.
            let of_request = |seen: &Seen, request: usize| {
                let answer = seen.heard.answers.get(request)?.last()?;
                Some(String::from(answer.field("location")?))
            };
            let requests = 0..case.reference.heard.answers.len();
            let mut lengths = requests.filter_map(|request| {
                let reference = of_request(case.reference, request)?;
                let subject = of_request(case.subject, request)?;
                let shorter = without_host(&reference) && !without_host(&subject);
                shorter.then(|| subject.len().saturating_sub(reference.len()))
            });
            let number = |text: &str| text.split(' ').next()?.parse::<usize>().ok();
            let longer = number(&difference.subject)
                .zip(number(&difference.reference))
                .and_then(|(subject, reference)| subject.checked_sub(reference));
            let shorter = without_host(&difference.reference) && !without_host(&difference.subject);
            is_location && shorter
                || difference.key == "bytes_sent" && lengths.any(|length| longer == Some(length))
        },
    },
    Row {
        sentence: "A `PUT` whose body `mirror` or `client_body_early_read` has read is carried out. nginx answers 500.",
        until: None,
        is: |case, difference| {
            let is_refused = |line: &&String| line.contains("PUT request body must be in a file");
            let mut refused = case.reference.errors.iter().filter(is_refused);
            match difference.part {
                // The file that it has put.
                Part::Files => {
                    let put = difference.reference.strip_suffix(": (not there)");
                    let name = put.and_then(|path| path.rsplit('/').next());
                    name.is_some_and(|name| refused.any(|line| line.contains(name)))
                }
                part => part != Part::Alarm && refused.next().is_some(),
            }
        },
    },
    Row {
        sentence: "A tree is deleted without following symbolic links, which are removed themselves",
        until: None,
        is: |_, difference| {
            // nginx leaves a link in place that leads nowhere.
            let gone = difference.subject.strip_suffix("(gone)");
            let stays = difference.reference.strip_suffix("(not there)");
            let is_dangling = |path: &str| crate::world::is_dangling(path.trim_end_matches(": "));
            difference.part == Part::Files && gone == stays && gone.is_some_and(is_dangling)
        },
    },
    Row {
        sentence: "**Bodies stream.** An answer goes to the client as it comes, as fast as the client takes it, and never to a \
                   temporary file. `proxy_buffering on` joins parts that come together; `off` sends each at once. Where an \
                   upstream fails midway, the client has what had come; nginx may still hold that back.",
        until: None,
        is: |_, difference| {
            const BUFFERED: &str = "[warn] an upstream response is buffered to a temporary file ";
            let said = difference.reference.starts_with(BUFFERED);
            difference.part == Part::Error && said && difference.subject == NO_LINE
        },
    },
    Row {
        sentence: "**Line breaks in values.** Variables may hold decoded line breaks, as `$uri` does. In fields of responses and \
                   of requests to upstreams they become spaces, in the URI of a `proxy_pass` with variables they are escaped. \
                   nginx sends them as they are, which lets a client write fields of its own.",
        until: None,
        is: |_, difference| {
            let escaped = difference.subject.replace("%0D", "\\x0d");
            let escaped = escaped.replace("%0A", "\\x0a");
            let in_log = difference.part == Part::Error && escaped == difference.reference;
            let sent = difference.part == Part::Upstream
                && difference.reference.contains("\nX-Injected:")
                && !difference.subject.contains("\nX-Injected:");
            in_log || sent
        },
    },
    Row {
        sentence: "**`realpath() … failed`** of `$realpath_root`, and the alert of an `alias` whose URI was rewritten, are \
                   logged once for each use. nginx repeats them whenever another variable has emptied its cache.",
        until: None,
        is: |case, difference| {
            let more = difference.subject == NO_LINE;
            let same = case.subject.errors.contains(&difference.reference);
            let fails = difference.reference.starts_with("[crit] realpath() ")
                || difference
                    .reference
                    .starts_with("[alert] \"alias\" cannot be used in ");
            difference.part == Part::Error && fails && more && same
        },
    },
    Row {
        sentence: "**`shutdown() failed`** is not logged where the client has reset its connection by then, which is no more than \
                   a matter of moments.",
        until: None,
        is: |_, difference| {
            const FAILED: &str =
                "[info] shutdown() failed (107: Transport endpoint is not connected)";
            let said = difference.reference.starts_with(FAILED);
            difference.part == Part::Error && said && difference.subject == NO_LINE
        },
    },
    Row {
        sentence: "**A request line that is refused** is shown as far as it has come by then, which is a matter of moments where \
                   it comes in parts.",
        until: None,
        is: |_, difference| {
            let shown = |text: &str| {
                let (_, line) = text.split_once(", request: \"")?;
                let refused = text.starts_with("[info] client sent invalid ");
                refused.then(|| String::from(line.split('"').next().unwrap_or(line)))
            };
            match (shown(&difference.reference), shown(&difference.subject)) {
                (Some(one), Some(other)) if difference.part == Part::Error => {
                    one.starts_with(&other) || other.starts_with(&one)
                }
                _ => false,
            }
        },
    },
    Row {
        sentence: "**A line of the log phase** (`while logging request`) is the request's. Behind a copy that `mirror` has made \
                   nginx's tells of the copy: `subrequest:`, `upstream:`.",
        until: None,
        is: |_, difference| {
            let behind_copy = |text: &str| {
                let (before, rest) = text.split_once(", subrequest: \"")?;
                let host = rest.find(", host: ").unwrap_or(rest.len());
                let logging = before.contains(" while logging request, ");
                logging.then(|| format!("{before}{}", rest.get(host..).unwrap_or_default()))
            };
            let without = behind_copy(&difference.reference);
            difference.part == Part::Error && without.is_some_and(|text| text == difference.subject)
        },
    },
    Row {
        sentence: "**A body that is buffered to a file while `mirror` is at work beside its request**: the line says nothing of \
                   what is being done. nginx says what the copy did last.",
        until: None,
        is: |_, difference| {
            let buffered = "a client request body is buffered to a temporary file";
            let without = difference
                .reference
                .replacen(" while connecting to upstream", "", 1);
            let said = difference.reference.contains(buffered);
            difference.part == Part::Error && said && without == difference.subject
        },
    },
    Row {
        sentence: "**An upstream that fails midway**: the client has what had come, as bodies stream. nginx may still hold \
                   that back.",
        until: None,
        is: |case, difference| {
            let partly = matches!(
                difference.part,
                Part::Body | Part::Framing | Part::Access | Part::Ending
            );
            partly && case.asks(&["long", "badchunk"])
        },
    },
    Row {
        sentence: "**Bodies stream.** An answer goes to the client as it comes, as fast as the client takes it, and never to \
                   a temporary file.",
        until: None,
        is: |_, difference| {
            let told = "an upstream response is buffered to a temporary file";
            difference.part == Part::Error
                && difference.reference.contains(told)
                && difference.subject == "(no such line)"
        },
    },
    Row {
        sentence: "**`proxy_method HEAD`**: a client that asked with GET is told that there is no body. nginx announces the \
                   length that the upstream names and sends nothing, so that the client waits, or takes the next answer \
                   for the body.",
        until: None,
        is: |case, difference| {
            let mut asked = case.subject.upstream.iter();
            let with_head = asked.any(|record| record.bytes.starts_with(b"HEAD "));
            let mut answers = case.reference.heard.answers.iter().flatten();
            let announced = answers.any(|answer| {
                let length = answer.field("content-length");
                answer.cut && length.is_some_and(|length| length != "0")
            });
            // Where what nginx sends is in chunks of nothing, ours has a length.
            let mut answers = case.subject.heard.answers.iter().flatten();
            let empty = answers.any(|answer| answer.field("content-length") == Some("0"));
            let follows = match difference.part {
                Part::Field => matches!(
                    difference.key.as_str(),
                    "content-length" | "transfer-encoding"
                ),
                Part::Access => matches!(
                    difference.key.as_str(),
                    "sent_http_content_length"
                        | "sent_http_transfer_encoding"
                        | "body_bytes_sent"
                        | "bytes_sent"
                        | "number of lines"
                ),
                Part::Upstream => difference.key == "number of requests",
                Part::Error => difference.reference == "(no such line)",
                Part::Status | Part::Ending | Part::Body | Part::Framing => true,
                _ => false,
            };
            let in_chunks = !matches!(
                difference.part,
                Part::Status | Part::Ending | Part::Upstream | Part::Error
            );
            let told = difference.key == "sent_http_content_length" && difference.subject == "0";
            with_head && (announced && follows || empty && in_chunks && follows || told)
        },
    },
    Row {
        sentence: "What `auth_request` asks a proxy, and `mirror` with `mirror_request_body off`, announces an empty body, as \
                   none is sent. nginx passes the client's `Content-Length` on without the body, unless `proxy_set_header` \
                   empties it, and the upstream waits for what never comes.",
        until: None,
        is: |case, difference| {
            let announced = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
            let rest = |asked: &Recorded| {
                let text = String::from_utf8_lossy(&asked.bytes).into_owned();
                let lines = text.split("\r\n").filter(|line| !announced(line));
                lines.collect::<Vec<_>>().join("\r\n")
            };
            let mut asked = case.reference.upstream.iter().filter(|asked| asked.cut);
            let unannounced = asked.any(|asked| {
                let mut others = case.subject.upstream.iter();
                others.any(|other| !other.cut && rest(asked) == rest(other))
            });
            // The client waits for its own answer with it.
            let waits = case.reference.heard.answers.iter().any(Vec::is_empty);
            let shows =
                difference.part == Part::Upstream || waits && difference.part != Part::Alarm;
            // One that waits in vain for its body is recorded late, with what the client asks next.
            let others = |seen: &Seen| -> Vec<Recorded> {
                let is_other = |asked: &&Recorded| {
                    let bodiless = asked.bytes.ends_with(b"\r\n\r\n");
                    !bodiless || rest(asked).len() == asked.bytes.len()
                };
                seen.upstream.iter().filter(is_other).cloned().collect()
            };
            let late =
                difference.part == Part::Upstream && others(case.reference) == others(case.subject);
            let length = |record: &Recorded| record.bytes.len();
            let longer = |announced: &Recorded, other: &Recorded| {
                let number = |text: &str| text.parse::<usize>().ok();
                let more = length(announced).checked_sub(length(other));
                number(&difference.reference)
                    .zip(number(&difference.subject))
                    .is_some_and(|(reference, subject)| reference.checked_sub(subject) == more)
            };
            let counts = difference.key == "upstream_bytes_sent"
                && case.reference.upstream.iter().any(|asked| {
                    let mut others = case.subject.upstream.iter();
                    others.any(|other| rest(asked) == rest(other) && longer(asked, other))
                });
            shows && unannounced || late || counts
        },
    },
    Row {
        sentence: "**`$upstream_status`** after early hints is the answer's status; nginx shows 103.",
        until: None,
        is: |case, difference| {
            let hinted = difference
                .reference
                .split([',', ' '])
                .any(|status| status == "103");
            difference.key == "upstream_status" && hinted && case.asks(&["hints"])
        },
    },
    Row {
        sentence: "In fields of responses and of requests to upstreams they become spaces, in the URI of a `proxy_pass` with \
                   variables they are escaped. nginx sends them as they are, which lets a client write fields of its own.",
        until: None,
        is: |case, difference| {
            // A client that writes fields so writes small letters.
            let escaped = |record: &Recorded| {
                let line = record.bytes.split(|byte| *byte == b'\r').next();
                line.is_some_and(|line| crate::upstream::find(line, b"%0D%0A").is_some())
            };
            let shown = |text: &str| text.replace("\\x0d", "%0D").replace("\\x0a", "%0A");
            if case.says("%0d%0a") {
                return case.subject.upstream.iter().any(escaped)
                    || shown(&difference.reference) == difference.subject;
            }
            // The value with a line break that configurations have.
            let broken = difference.subject.contains("tab\\tand line");
            let rest = difference.key == "line" && difference.reference == "line: (no colon)";
            match difference.part {
                Part::Field => broken || rest,
                Part::Upstream => {
                    broken
                        && difference.reference.replace("and\\nline", "and line")
                            == difference.subject
                }
                _ => false,
            }
        },
    },
    Row {
        sentence: "**Bytes sent.** `$bytes_sent` and `$body_bytes_sent` count what has been handed over for sending. nginx \
                   counts what the kernel took, which matters where they are asked for before the response's end: in \
                   trailers and in subrequests' lines.",
        until: None,
        is: |_, difference| {
            let parts = |text: &str| {
                let is_digit = |byte: char| byte.is_ascii_digit();
                let words = text
                    .split(|byte| !is_digit(byte))
                    .filter(|word| !word.is_empty());
                let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
                (text.replace(is_digit, ""), numbers)
            };
            let (reference, subject) = (parts(&difference.reference), parts(&difference.subject));
            let mut pairs = reference.1.iter().zip(&subject.1);
            difference.part == Part::Trailer
                && reference.0 == subject.0
                && pairs.all(|(one, other)| one <= other)
        },
    },
];

/// What newer versions of nginx do otherwise than the oldest that is compared with, Debian's 1.22. Where a request shows
/// one of these, nothing more is learnt of it there.
pub(crate) const OLDER: &[Row] = &[
    Row {
        sentence: "CONNECT is refused with 400.",
        until: Some(NEWEST),
        is: |case, _| case.says("CONNECT "),
    },
    Row {
        sentence: "More names are refused in Host, and no other makes up for them.",
        until: Some(NEWEST),
        is: |case, _| {
            let odd = |host: &&str| case.says(&format!("\r\nHost: {host}\r\n"));
            ODD_HOSTS.iter().any(odd) || case.says("://")
        },
    },
    Row {
        sentence: "Variables of a field that comes twice have both values, and some fields may come once only.",
        until: Some(NEWEST),
        is: |case, _| case.repeats_a_field(),
    },
    Row {
        sentence: "Variables of an answer's field that comes twice have both values.",
        until: Some(NEWEST),
        is: |_, difference| {
            let both = format!("{}, ", difference.reference);
            difference.key.starts_with("sent_http_") && difference.subject.starts_with(&both)
        },
    },
    Row {
        sentence: "Of an upstream's fields that come twice the first counts alone.",
        until: Some(NEWEST),
        is: |case, _| case.answer_repeats_a_field(),
    },
    Row {
        sentence: "Proxy-Connection does not go on to upstreams.",
        until: Some(NEWEST),
        is: |case, _| case.says("Proxy-Connection:"),
    },
    Row {
        sentence: "The header of the PROXY protocol stands in the log without what comes after it.",
        until: Some(NEWEST),
        is: |_, difference| difference.key.contains("broken header"),
    },
    Row {
        sentence: "Fields that `proxy_set_header` sets go to the upstream in another order.",
        until: Some(NEWEST),
        is: |_, difference| {
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(String::from).collect();
                lines.sort();
                lines
            };
            difference.part == Part::Upstream
                && sorted(&difference.reference) == sorted(&difference.subject)
        },
    },
    Row {
        sentence: "`gzip_static` and `slice` answer ranges.",
        until: Some(NEWEST),
        is: |_, difference| {
            difference.key.replace('_', "-").ends_with("accept-ranges")
                || difference.key == "content-range"
        },
    },
];

/// The version that is the reference.
const NEWEST: [u32; 3] = [1, 29, 7];

/// The heading of the section that the table makes.
const HEADING: &str = "## Found by random configurations";

/// Parts the differences that no row knows from the numbers of rows that know the others.
pub(crate) fn judge(
    version: [u32; 3],
    conversations: &[Conversation],
    (reference, subject): (&Transcript, &Transcript),
    found: Vec<Difference>,
) -> (Vec<Difference>, Vec<usize>) {
    // What the whole run has left behind is of no single conversation: of the errors of all.
    let silence = Conversation::default();
    let all = |transcript: &Transcript| Seen {
        errors: transcript
            .conversations
            .iter()
            .flat_map(|seen| seen.errors.iter().cloned())
            .collect(),
        ..Seen::default()
    };
    let (all_of_reference, all_of_subject) = (all(reference), all(subject));
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for difference in found {
        let of_conversation = difference.conversation.and_then(|index| {
            Some(Case {
                conversation: conversations.get(index)?,
                reference: reference.conversations.get(index)?,
                subject: subject.conversations.get(index)?,
            })
        });
        let case = of_conversation.unwrap_or(Case {
            conversation: &silence,
            reference: &all_of_reference,
            subject: &all_of_subject,
        });
        let holds = |row: &Row| {
            row.until.is_none_or(|until| version < until) && (row.is)(&case, &difference)
        };
        let row = TABLE.iter().chain(OLDER).position(holds);
        match row {
            Some(row) => known.push(row),
            None => unknown.push(difference),
        }
    }
    (unknown, known)
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differences.md")
}

/// The page with the section as the table makes it: the sentences that stand nowhere else on it.
fn fresh(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(HEADING)?;
    let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
    let mut section = format!(
        "{HEADING}\n\nWhat random configurations and requests showed beside the differences above. The list is made from the \
         table of\n`tests/differential`, which fails at any other difference.\n\n"
    );
    let elsewhere = words(&format!("{before}{after}"));
    let of_traffic = TABLE.iter().filter(|row| row.until.is_none());
    let of_traffic = of_traffic.map(|row| row.sentence);
    let of_verdicts = verdicts::TABLE.iter().map(|row| row.sentence);
    for sentence in of_traffic.chain(of_verdicts) {
        if !elsewhere.contains(&words(sentence)) {
            section.push_str(&wrapped(sentence));
        }
    }
    Some(format!("{before}{section}{after}"))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An entry of a list in lines of up to 120 bytes.
fn wrapped(sentence: &str) -> String {
    let mut text = String::from("-");
    let mut length = 1;
    for word in sentence.split_whitespace() {
        if length + 1 + word.len() > 120 {
            text.push_str("\n ");
            length = 1;
        }
        text.push(' ');
        text.push_str(word);
        length += 1 + word.len();
    }
    text.push('\n');
    text
}

/// Fails where docs/differences.md says something else than the table; `write` mends it.
pub(crate) fn check_page(write: bool) -> Result<(), String> {
    let say = |error: std::io::Error| format!("{}: {error}", page().display());
    let text = std::fs::read_to_string(page()).map_err(say)?;
    let fresh = fresh(&text).ok_or(format!("{} has no section {HEADING:?}", page().display()))?;
    match (fresh == text, write) {
        (true, _) => Ok(()),
        (false, true) => std::fs::write(page(), fresh).map_err(say),
        (false, false) => Err(format!(
            "{HEADING:?} in {} is stale, `make docs` writes it again",
            page().display()
        )),
    }
}
