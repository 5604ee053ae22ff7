//! Differences in responses, and in what follows one on its connection.

use super::{NO_LINE, Row};
use crate::case::{Line, any_status, is_as_sent, value};
use crate::client::Ending;
use crate::compare::Part;
use crate::run::Seen;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "**A connection that was announced to end** ends. nginx leaves it open where a `post_action`, or a copy of \
                   `mirror`, follows a request whose body was refused, not read or broken off, or that has no answer (408, 499).",
        is: |case, difference| {
            let announces_end = |seen: &Seen| {
                let last = seen.heard.answers.iter().flatten().last();
                last.is_some_and(|answer| answer.field("connection") == Some("close"))
            };
            let silent = |seen: &Seen| seen.heard.answers.last().is_some_and(Vec::is_empty);
            let refused = |line: &String| {
                line.contains("client sent invalid chunked body")
                    || line.contains("client intended to send too large")
            };
            let last = case.reference.heard.answers.len().saturating_sub(1);
            let refuses = case.reference.errors.iter().any(refused) || case.has_body(last);
            let ends = |seen: &Seen| announces_end(seen) && refuses || silent(seen);
            difference.part == Part::Ending
                && difference.reference == "Kept"
                && ends(case.reference)
                && ends(case.subject)
        },
    },
    Row {
        sentence: "**`keepalive_timeout 0` where a copy of `mirror` goes** says nothing of the client's connection, which goes on as was \
                   announced. nginx closes it where the copy ends behind the response.",
        is: |case, difference| {
            let is_set = ["keepalive_timeout 0", "mirror /"]
                .iter()
                .all(|line| case.configuration.contains(line));
            let answers = &case.reference.heard.answers;
            let last = answers.iter().rposition(|answers| !answers.is_empty());
            let keeps = |request: &usize| {
                let mut answers = case.reference.heard.answers_to(*request);
                answers.any(|answer| answer.field("connection") == Some("keep-alive"))
            };
            let closed = case.reference.heard.ending == Ending::Closed;
            let is_of_line = |last: usize| {
                let key = difference.key.as_str();
                matches!(key, "sent_http_connection" | "sent_http_keep_alive")
                    && case.requests_of(difference).any(|request| request == last)
                    && is_as_sent(case.reference, Some(last), key, &difference.reference)
            };
            is_set
                && closed
                && last
                    .filter(keeps)
                    .is_some_and(|last| is_of_line(last) || case.is_lack_behind(difference, last))
        },
    },
    Row {
        sentence: "**Behind the last byte of a response with `limit_rate`** the request is over. nginx first waits as long as what it \
                   sent last takes at that rate, and tells of a client that has all and leaves meanwhile as if it had not.",
        is: |case, difference| {
            let gone = "[info] client prematurely closed connection while sending to client, ";
            let tells = |line: &&String| line.starts_with(gone);
            let mut told = case.reference.errors.iter().filter(tells);
            let is_limited = |(left, right): (&Line, &Line)| {
                let sent = |line| value(line, "bytes_sent") != "0";
                value(left, "limit_rate") != "0"
                    && value(left, "bytes_sent") == value(right, "bytes_sent")
                    && sent(left)
            };
            let mut lines = case.reference.access.iter().zip(&case.subject.access);
            let limited = lines.any(is_limited) && told.next().is_some();
            let is_it = match difference.part {
                Part::Ending => difference.reference == "Kept",
                Part::Error => {
                    let goes_on = difference.subject.contains(" closed keepalive connection");
                    tells(&&difference.reference) && difference.subject == NO_LINE
                        || difference.reference == NO_LINE && goes_on
                }
                Part::Access => {
                    let key = difference.key.as_str();
                    let completes = key == "request_completion"
                        && difference.reference.is_empty()
                        && difference.subject == "OK";
                    // No other request follows there.
                    let stays = key == "sent_http_connection"
                        && difference.reference == "keep-alive"
                        && difference.subject == "close";
                    (completes || stays) && case.lines_of(difference).any(is_limited)
                }
                _ => false,
            };
            limited && is_it
        },
    },
    Row {
        sentence: "**`$sent_http_location` after `post_action`** is the last answer's. nginx lists that of the answer before it as well.",
        is: |case, difference| {
            let twice = format!("{0}, {0}", difference.subject);
            let asked = case.subject.upstream.len() > 1;
            difference.key == "sent_http_location" && difference.reference == twice && asked
        },
    },
    Row {
        sentence: "**A circle of internal redirects** ends in a 500 after as many rounds. What each round leaves behind may come in \
                   another order: fields that upstreams have sent, and lines of requests that are under way at once.",
        is: |case, difference| {
            let circle = |seen: &Seen| {
                let mut lines = seen.errors.iter();
                lines.any(|line| line.contains("rewrite or internal redirection cycle"))
            };
            let ends = any_status(case.reference, 500) && any_status(case.subject, 500);
            let sorted = |text: &str| {
                let mut names: Vec<&str> = text.split(", ").collect();
                names.sort_unstable();
                names.join(", ")
            };
            let reordered = sorted(&difference.reference) == sorted(&difference.subject);
            let follows = match difference.part {
                Part::Field => difference.key == "order" && reordered,
                Part::Error => case.reference.errors.len() == case.subject.errors.len(),
                _ => false,
            };
            ends && circle(case.reference) && circle(case.subject) && follows
        },
    },
    Row {
        sentence: "**What `post_action` asks for a request whose body has not come** has none, and `$request_body` tells so. nginx \
                   takes the body for one that has come, so that its upstream waits for the rest, and waits for it itself where the \
                   action leads round in a circle.",
        is: |case, difference| {
            let asked = !case.subject.upstream.is_empty() && !case.reference.upstream.is_empty();
            let circle = "redirection cycle while redirect to named location";
            let mut lines = case.subject.errors.iter();
            let ends = lines
                .any(|line| line.contains(circle) && line.contains(" while sending to client"));
            match difference.part {
                Part::Access => {
                    let is_it = difference.key == "request_body" && difference.subject == "-";
                    is_it && asked && difference.reference.is_empty()
                }
                Part::Ending => ends && difference.reference == "Kept",
                Part::Upstream => {
                    let told = (difference.reference.as_str(), difference.subject.as_str());
                    let mut requests = 0..case.conversation.exchanges.len();
                    let is_less = requests.any(|request| case.breaks_off(request));
                    // nginx announces what has not come.
                    let length = |text: &str| {
                        let lengths = text.lines().filter_map(|line| line.split_once(": "));
                        let mut lengths =
                            lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                        lengths.next().map_or("0", |(_, length)| length).to_owned()
                    };
                    let without = |text: &str| {
                        let is_length =
                            |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
                        let lines = text.lines().filter(|line| !is_length(line));
                        lines.map(String::from).collect::<Vec<_>>()
                    };
                    let differs = match difference.key.as_str() {
                        "cut" => told == ("true", "false"),
                        _ => {
                            length(told.1) == "0"
                                && length(told.0) != "0"
                                && without(told.0) == without(told.1)
                        }
                    };
                    is_less && differs
                }
                _ => false,
            }
        },
    },
    Row {
        sentence: "**A body in a file and `post_action`**: what it asks an upstream has the body. nginx has closed the file, \
                   logs `pread() … failed`, and closes the connection.",
        is: |case, difference| {
            let is_closed = |line: &&String| {
                line.contains("[crit] pread() ")
                    && line.contains("/temp/body/")
                    && line.contains("(9: Bad file")
            };
            let mut closed = case.reference.errors.iter().filter(is_closed);
            let asked = case.subject.upstream.len();
            let requests = 0..case.conversation.exchanges.len();
            let of_closed: Vec<usize> = requests
                .filter(|request| {
                    // Lines of that level may be left out, or be elsewhere.
                    let silent = case.reference.errors.is_empty() && case.has_body(*request);
                    silent || closed.clone().any(|line| case.names(line, *request))
                })
                .collect();
            let mut behind = of_closed.iter();
            let is_behind = behind.any(|request| case.is_lack_behind(difference, *request));
            // nginx asks its upstream without the body or not at all, and what comes behind the
            // request has no answer.
            let follows = match difference.part {
                Part::Upstream => case.reference.upstream.len() <= asked,
                Part::Error if is_closed(&&difference.reference) => true,
                Part::Error => {
                    let mut requests = of_closed.iter();
                    let of_them = requests.any(|request| case.is_named(difference, *request));
                    difference.reference == NO_LINE && of_them
                }
                Part::Access => {
                    let tells = ["upstream_", "sent_http_"];
                    let of_answer = tells.iter().any(|begin| difference.key.starts_with(begin));
                    let status = ["status", "number of lines", "request_completion"];
                    let tells = of_answer || status.contains(&difference.key.as_str());
                    tells && case.is_seen_of(difference, &of_closed)
                }
                _ => false,
            };
            let is_less = case.reference.upstream.len() < asked;
            (closed.next().is_some() || is_less) && (follows || is_behind)
        },
    },
    Row {
        sentence: "**`add_after_body` behind a page with SSI** comes after the whole page. nginx puts it where the page first waits \
                   for an included one.",
        is: |_, difference| {
            let (early, late) = (
                difference.reference.as_bytes(),
                difference.subject.as_bytes(),
            );
            let mut before = 0..early
                .iter()
                .zip(late)
                .take_while(|(one, other)| one == other)
                .count()
                + 1;
            let moved = |at: usize| {
                let (early, late) = (early.get(at..)?, late.get(at..)?);
                (1..early.len()).find(|length| {
                    let (added, rest) = early.split_at(*length);
                    late.strip_prefix(rest) == Some(added)
                })
            };
            difference.part == Part::Body
                && early.len() == late.len()
                && before.any(|at| moved(at).is_some())
        },
    },
    Row {
        sentence: "**`$content_length` of a body in chunks that is dropped and never ends** is 0, and not there if they are \
                   broken. nginx logs how much it wants to see next.",
        is: |case, difference| {
            let wanted = difference.reference.parse::<u64>();
            let is_wanted = wanted.is_ok_and(|wanted| wanted > 0);
            let mut requests = case.requests_of(difference);
            difference.key == "content_length"
                && is_wanted
                && matches!(difference.subject.as_str(), "0" | "-")
                && requests.any(|request| case.breaks_off(request))
        },
    },
    Row {
        sentence: "**`gunzip` and a 204**: an upstream's 204 with `Content-Encoding: gzip` goes to the client. nginx unpacks the body that \
                   there is not, fails and closes the connection without an answer.",
        is: |case, difference| {
            let failed = |line: &String| line.contains("inflate() returned -5 on response end");
            let told = case.reference.errors.iter().any(failed);
            let unanswered = case.reference.heard.answers.iter().position(Vec::is_empty);
            let of_subject = |request: usize| case.subject.heard.answers.get(request);
            told && unanswered.is_some_and(|request| {
                let mut answers = of_subject(request).into_iter().flatten();
                answers.any(|answer| answer.status() == 204) && case.is_from(difference, request)
            })
        },
    },
    Row {
        sentence: "**Trailers with `add_after_body`** are sent once. nginx sends each twice.",
        is: |_, difference| {
            let names = |text: &str| {
                let lines = text
                    .lines()
                    .map(|line| line.split(':').next().unwrap_or(line));
                lines.map(String::from).collect::<Vec<_>>()
            };
            // Numbers of bytes sent are another difference.
            let once = names(&difference.subject);
            let twice = [once.clone(), once].concat();
            let half = difference.reference.len() / 2;
            let (one, other) = difference
                .reference
                .split_at_checked(half)
                .unwrap_or_default();
            let same = one == other.trim_start_matches('\n');
            difference.part == Part::Trailer && same && names(&difference.reference) == twice
        },
    },
    Row {
        sentence: "**Trailers of a response without a body** (`add_trailer` where `PUT` has made a file) are sent, and the last chunk \
                   with them. nginx announces chunks and sends none: the client waits, or takes the next answer for one.",
        is: |case, difference| {
            let made = |seen: &Seen, request: usize, cut: bool| {
                let mut answers = seen.heard.answers_to(request);
                answers.any(|answer| {
                    let created = matches!(answer.status(), 201 | 204);
                    let is_empty = answer.framing == "chunked" && answer.body.is_empty();
                    created && is_empty && answer.cut == cut
                })
            };
            let mut requests = 0..case.reference.heard.answers.len();
            requests.any(|request| {
                let is_of_answer = match difference.part {
                    Part::Framing => difference.key == "cut",
                    Part::Trailer => true,
                    Part::Access => {
                        matches!(difference.key.as_str(), "bytes_sent" | "body_bytes_sent")
                    }
                    _ => false,
                };
                // What nginx sends for the next request is no chunk.
                let rest = difference.key == "rest" && difference.subject.is_empty();
                let taken = difference.part == Part::Status && difference.key == "answers";
                let follows = rest
                    || taken
                    || is_of_answer && case.is_seen_of(difference, &[request])
                    || case.is_lack_behind(difference, request);
                let cut = made(case.reference, request, true) && made(case.subject, request, false);
                cut && follows
            })
        },
    },
    Row {
        sentence: "**`proxy_request_buffering off` and an upstream that cannot be reached**: the connection goes on, as the response \
                   announces. nginx closes it where it has not read all of the body.",
        is: |case, difference| {
            let announces_more = |seen: &Seen| {
                let last = seen.heard.answers.iter().flatten().last();
                last.is_some_and(|answer| {
                    answer.status() == 502 && answer.field("connection") == Some("keep-alive")
                })
            };
            let refused =
                |line: &String| line.contains("connect() failed (111: Connection refused)");
            let last = case.reference.heard.answers.len().saturating_sub(1);
            let number = |text: &str| text.parse::<u64>().ok();
            let fewer = number(&difference.reference) < number(&difference.subject);
            // Of a body in chunks that is not read no length is known.
            let mut lines = case.lines_of(difference);
            let is_unread = lines.any(|(left, right)| {
                let is_502 = |line| value(line, "status") == "502";
                let known = value(left, "content_length") != "-";
                is_502(left) && is_502(right) && !known && case.is_in_chunks_at(left)
            });
            let shows_unread = match difference.key.as_str() {
                "content_length" | "request_body" => difference.reference == "-",
                "request_length" => fewer,
                _ => false,
            };
            let kept = difference.subject.contains(" closed keepalive connection");
            let told = difference.part == Part::Error && difference.reference == NO_LINE && kept;
            let ended = difference.part == Part::Ending && difference.reference == "Closed";
            let mut requests = 0..case.conversation.exchanges.len();
            let lacks = requests
                .any(|request| case.has_body(request) && case.is_lack_behind(difference, request));
            (ended || told || lacks || is_unread && shows_unread)
                && case.has_body(last)
                && announces_more(case.reference)
                && announces_more(case.subject)
                && case.reference.errors.iter().any(refused)
        },
    },
    Row {
        sentence: "**`add_header` with a variable of the response, after a 416**: nginx adds the field to the part that it refuses and to the \
                   page, and the variable keeps its first value. Here the page has none of the file's.",
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
                // A field of which there may be one only stands once.
                let times = answer.fields.iter().filter(has).count();
                answer.status() == 416
                    && (times == 2 || times == 1 && answer.field("location").is_some())
            });
            let counts = difference.key == "bytes_sent" && counted;
            refused && (field || counts || listed || keeps && added)
        },
    },
    Row {
        sentence: "**A `try_files` that leads to nothing below an `alias`**, since its last parameter is the location itself, \
                   is a folder asked for without its slash. nginx judges by the byte in front of the empty URI.",
        is: |case, difference| {
            let mut requests = 0..case.subject.heard.answers.len();
            requests.any(|request| {
                let mut answers = case.subject.heard.answers_to(request);
                let to_root = answers.any(|answer| {
                    let location = answer.field("location").unwrap_or_default();
                    let path = location.splitn(4, '/').nth(3);
                    answer.status() == 301
                        && path.is_some_and(|path| path.is_empty() || path.starts_with('?'))
                });
                let mut answers = case.reference.heard.answers_to(request);
                let is_listing = |line: &String| {
                    line.contains("] directory index of \"") && case.names(line, request)
                };
                // The page of a 403 may have a status of its own.
                let forbidden = answers.any(|answer| answer.status() == 403)
                    || case.reference.errors.iter().any(is_listing);
                to_root && forbidden && case.is_seen_of(difference, &[request])
            })
        },
    },
    Row {
        sentence: "**A client that ends its sending with bytes behind its request** gets its answer. nginx, which learns of \
                   both at once from epoll, takes it for gone wherever the request has to wait.",
        is: |case, difference| {
            let gone = |line: &String| line.contains("client prematurely closed connection");
            let given_up = case.reference.errors.iter().any(gone);
            let mut answers = case.reference.heard.answers.iter();
            let unanswered = answers.position(Vec::is_empty);
            let follows = unanswered.is_some_and(|request| case.is_from(difference, request));
            case.conversation.shuts && given_up && follows
        },
    },
    Row {
        sentence: "**`server_name_in_redirect`** in a server without a name: redirects name the address that the client \
                   came to. nginx leads to `http:///`, or to a port of no host.",
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
        sentence: "A tree is deleted without following symbolic links, which are removed themselves",
        is: |case, difference| {
            // nginx leaves a link in place that leads nowhere, or to a folder that it could not
            // remove.
            let gone = difference.subject.strip_suffix("(gone)");
            let stays = difference.reference.strip_suffix("(not there)");
            let is_link = |path: &str| crate::world::is_link(path.trim_end_matches(": "));
            let followed = difference.reference.starts_with("[crit] stat() \"");
            match difference.part {
                Part::Files => gone == stays && gone.is_some_and(is_link),
                Part::Error => followed && case.says("DELETE "),
                _ => false,
            }
        },
    },
    Row {
        sentence: "**Bytes sent.** `$bytes_sent` and `$body_bytes_sent` count what has been handed over for sending. nginx \
                   counts what the kernel took, which matters where they are asked for before the response's end: in \
                   trailers and in subrequests' lines. With either what frames chunks counts, of which there are as many as \
                   an upstream's answer has come in.",
        is: |case, difference| {
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
            // No more than the whole response, and either is a count of bytes.
            let lines = case.subject.access.iter();
            let sent = lines.filter_map(|line| value(line, "bytes_sent").parse::<u64>().ok());
            let most = sent.max().unwrap_or(u64::MAX);
            let answers = case.reference.heard.answers.iter().flatten();
            let framing =
                answers.map(|answer| answer.wire_length.saturating_sub(answer.body.len()));
            let framing = framing.max().unwrap_or_default() as u64;
            difference.part == Part::Trailer
                && reference.0 == subject.0
                && pairs.all(|(one, other)| {
                    *one <= *other && *other <= most || one.saturating_sub(*other) <= framing
                })
        },
    },
];
