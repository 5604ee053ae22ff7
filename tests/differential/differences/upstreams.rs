//! Differences in what goes to upstreams, and in what becomes of their answers.

use super::{NO_LINE, Row};
use crate::case::{Case, Line, any_status, is_framed_otherwise, value};
use crate::compare::{Difference, Part, even_answer};
use crate::run::Seen;
use crate::upstream::Recorded;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "**An upstream that fails midway**: the client has what had come, as bodies stream. nginx may still hold \
                   that back.",
        is: |case, difference| {
            let partly = matches!(
                difference.part,
                Part::Body | Part::Framing | Part::Access | Part::Ending | Part::Status
            );
            let requests = case.asking(&["long", "badchunk"]);
            let counts = [
                "bytes_sent",
                "body_bytes_sent",
                "upstream_bytes_received",
                "upstream_response_length",
            ];
            let is_of_them = match difference.part {
                Part::Ending => requests.iter().any(|request| {
                    let reference = case.reference.heard.answers_to(*request);
                    let mut subject = case.subject.heard.answers_to(*request);
                    let last = reference.last();
                    // What is cut here nginx may not even have begun.
                    subject.any(|answer| answer.cut) || last.is_none_or(|answer| answer.cut)
                }),
                Part::Status if difference.reference != "(no answer)" => false,
                Part::Body => requests.iter().any(|request| {
                    let answers = case.reference.heard.answers_to(*request);
                    let mut pairs = answers.zip(case.subject.heard.answers_to(*request));
                    // What nginx holds back is the end.
                    pairs.any(|(one, other)| {
                        one.body != other.body && other.body.starts_with(&one.body)
                    })
                }),
                Part::Access if !counts.contains(&difference.key.as_str()) => false,
                _ => case.is_seen_of(difference, &requests),
            };
            partly && is_of_them
        },
    },
    Row {
        sentence: "**An answer without an HTTP head** (HTTP/0.9, or what is no HTTP) goes to the client as the \
                   body of a 200. nginx sends it without a head and logs the status `009`.",
        is: |case, difference| is_of_headless(case, difference, "badversion"),
    },
    Row {
        sentence: "**A response whose first bytes are `HTTP/`** and whose status line is malformed, or whose \
                   status is none of 100 to 599, is a 502. nginx passes the first kind on as HTTP/0.9, the \
                   upstream's head in the body.",
        is: |case, difference| is_of_headless(case, difference, "badline"),
    },
    Row {
        sentence: "**`100 Continue` from an upstream** is skipped, as any client should do. nginx takes it for the \
                   answer's head and the answer for its body. So are other informational responses; where no head \
                   follows, or after 100 of them, the answer is a 502.",
        is: |case, difference| {
            let requests = case.asking(&["continue"]);
            let shown = |line: &Vec<(String, String)>| {
                let of_upstream = value(line, "upstream_status");
                value(line, "status") == "100"
                    || of_upstream
                        .split([',', ' ', ':'])
                        .any(|status| status == "100")
            };
            let refused = |line: &String| line.contains("auth request unexpected status: 100");
            let unanswered = case.reference.heard.answers.iter().any(Vec::is_empty);
            let taken = unanswered
                || any_status(case.reference, 100)
                || case.reference.access.iter().any(shown)
                || case.reference.errors.iter().any(refused);
            // Where the answer leads to, another log may count, and other things may be asked.
            let led = matches!(
                difference.key.as_str(),
                "number of lines" | "number of requests"
            );
            taken && !requests.is_empty() && (led || follows_answer(case, difference, &requests))
        },
    },
    Row {
        // nginx asks again what it has asked on a connection that was kept and is closed without an
        // answer.
        sentence: "**An upstream that closes a kept connection without an answer** is asked once more over another. Whether it had been heard to close by then is a matter of moments.",
        is: |case, difference| {
            let requests = case.asking(&["none", "cut", "close"]);
            let closed = "upstream prematurely closed connection while reading response header from upstream";
            let none_left = "no live upstreams while connecting to upstream";
            let lines = |seen: &Seen, text: &str| {
                let lines = seen.errors.iter().filter(|line| line.contains(text));
                lines.count()
            };
            let more = |text: &str| lines(case.reference, text) > lines(case.subject, text);
            let mut once = case.reference.upstream.clone();
            once.dedup();
            let mut own = case.subject.upstream.clone();
            own.dedup();
            let asks_again = (more(closed) || more(none_left)) && once == own;
            let follows = match difference.part {
                Part::Upstream => difference.key == "number of requests",
                Part::Access => {
                    difference.key.starts_with("upstream_")
                        && case.is_seen_of(difference, &requests)
                }
                Part::Error => {
                    [closed, none_left]
                        .iter()
                        .any(|text| difference.reference.contains(text))
                        && difference.subject == NO_LINE
                }
                _ => false,
            };
            asks_again && !requests.is_empty() && follows
        },
    },
    Row {
        sentence: "**Early hints of an upstream** leave the fields of the answer before it as they are: what `X-Accel-Redirect` has \
                   brought, what `$sent_http_*` tells after `post_action`. nginx forgets those.",
        is: |case, difference| {
            let key = difference.key.as_str();
            let field = match difference.part {
                Part::Field => Some(String::from(key)),
                Part::Access => key
                    .strip_prefix("sent_http_")
                    .map(|name| name.replace('_', "-")),
                _ => None,
            };
            let brought = [
                "expires",
                "cache-control",
                "set-cookie",
                "content-disposition",
            ];
            let requests = case.asking(&["hints"]);
            let twice = format!("{0}, {0}", difference.reference);
            let longer = difference.subject.len() > difference.reference.len();
            let is_forgotten =
                difference.part == Part::Access && field.is_some() && difference.reference == "-";
            let brings = difference.subject == twice
                || is_forgotten
                || longer && field.is_some_and(|field| brought.contains(&field.as_str()));
            // A number, or one beside that of the body.
            let number = |text: &str| text.split(' ').next()?.parse::<u64>().ok();
            let counted =
                key == "bytes_sent" && number(&difference.subject) > number(&difference.reference);
            (brings || counted) && case.is_seen_of(difference, &requests)
        },
    },
    Row {
        sentence: "**`proxy_method HEAD`**: a client that asked with GET is told that there is no body. nginx announces the \
                   length that the upstream names and sends nothing, so that the client waits, or takes the next answer \
                   for the body.",
        is: |case, difference| {
            let mut asked = case.subject.upstream.iter();
            let with_head = asked.any(|record| record.bytes.starts_with(b"HEAD "));
            // What is sent at once stands where the body should; what is in chunks of nothing has a
            // length here.
            let is_bodiless = |request: &usize| {
                let mut own = case.subject.heard.answers_to(*request);
                let empty = own.any(|answer| answer.field("content-length") == Some("0"));
                let mut answers = case.reference.heard.answers_to(*request);
                answers.any(|answer| match answer.field("content-length") {
                    Some(length) => length != "0" && (answer.cut || empty),
                    None => answer.body.is_empty() && empty,
                })
            };
            let mut requests = 0..case.reference.heard.answers.len();
            let first = requests.find(is_bodiless);
            let is_from = first.is_some_and(|first| case.is_from(difference, first));
            let follows = match difference.part {
                Part::Field => matches!(
                    difference.key.as_str(),
                    "content-length" | "transfer-encoding" | "vary"
                ),
                Part::Access => matches!(
                    difference.key.as_str(),
                    "sent_http_content_length"
                        | "sent_http_vary"
                        | "sent_http_transfer_encoding"
                        | "body_bytes_sent"
                        | "bytes_sent"
                        | "number of lines"
                ),
                Part::Upstream => difference.key == "number of requests",
                // What nginx sends next is taken for the body.
                Part::Status => difference.key == "answers" || difference.reference == "(no head)",
                Part::Body => difference.reference.starts_with("HTTP/1."),
                Part::Framing => difference.key == "framing" || difference.reference == "true",
                Part::Ending => true,
                // nginx's client waits for the body and leaves, ours goes on to the next request.
                Part::Error => {
                    let left = difference
                        .reference
                        .ends_with("closed keepalive connection");
                    difference.reference == NO_LINE || left && difference.subject == NO_LINE
                }
                _ => false,
            };
            let told = difference.key == "sent_http_content_length"
                && difference.reference != "-"
                && difference.subject == "0";
            with_head && (is_from && follows || told)
        },
    },
    Row {
        sentence: "What `auth_request` asks a proxy, and `mirror` with `mirror_request_body off`, announces an empty body, as \
                   none is sent. nginx passes the client's `Content-Length` on without the body, unless `proxy_set_header` \
                   empties it, and the upstream waits for what never comes.",
        is: |case, difference| {
            let announced = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
            let rest = |asked: &Recorded| {
                let text = String::from_utf8_lossy(&asked.bytes).into_owned();
                let lines = text.split("\r\n").filter(|line| !announced(line));
                // Fields that `proxy_set_header` sets stand in another order.
                let mut lines: Vec<_> = lines.collect();
                lines.sort_unstable();
                lines.join("\r\n")
            };
            let mut asked = case.reference.upstream.iter().filter(|asked| asked.cut);
            let unannounced = asked.any(|asked| {
                let mut others = case.subject.upstream.iter();
                others.any(|other| !other.cut && rest(asked) == rest(other))
            });
            // The client waits for its own answer with it.
            let mut answers = case.reference.heard.answers.iter();
            let unanswered = answers.position(Vec::is_empty);
            let waits = unanswered.is_some_and(|request| case.is_from(difference, request));
            let without = |text: &str| {
                let lines = text.lines().filter(|line| !announced(line));
                lines.map(String::from).collect::<Vec<_>>()
            };
            let same = matches!(difference.key.as_str(), "cut" | "number of requests")
                || without(&difference.reference) == without(&difference.subject);
            // One among others.
            let among = difference.key == "request" && {
                let text = |asked: &Recorded| {
                    let text = asked.bytes.escape_ascii().to_string();
                    without(&text.replace("\\r\\n", "\n"))
                };
                let told = without(&difference.reference);
                let mut others = case.subject.upstream.iter();
                others.any(|other| text(other) == told)
            };
            // The next upstream is connected to and waits with its client.
            let next = difference.key == "request"
                && difference.reference == "(not asked)"
                && difference.subject.contains("\nContent-Length: 0")
                && unanswered.is_some();
            let shows = difference.part == Part::Upstream && (same || among || next) || waits;
            // One that waits in vain for its body is recorded late, and what else is asked then has
            // another number.
            let mut others = case.subject.upstream.clone();
            let is_without_partner = |asked: &&Recorded| {
                let bodiless = asked.bytes.ends_with(b"\r\n\r\n");
                let is_announced = bodiless && rest(asked).len() < asked.bytes.len();
                let partner = others.iter().position(|other| rest(other) == rest(asked));
                match partner.filter(|_| asked.cut && is_announced) {
                    Some(partner) => {
                        others.remove(partner);
                        false
                    }
                    None => true,
                }
            };
            let asked: Vec<Recorded> = case
                .reference
                .upstream
                .iter()
                .filter(is_without_partner)
                .cloned()
                .collect();
            let late = difference.part == Part::Upstream && asked == others;
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
        is: |case, difference| {
            let hinted = difference
                .reference
                .split([',', ' '])
                .any(|status| status == "103");
            difference.key == "upstream_status" && hinted && case.asks(&["hints"])
        },
    },
    Row {
        sentence: "**Line breaks in values.** Variables may hold decoded line breaks, as `$uri` does. In fields of responses and \
                   of requests to upstreams they become spaces, in the URI of a `proxy_pass` with variables they are escaped. \
                   nginx sends them as they are, which lets a client write fields of its own.",
        is: |_, difference| {
            let escaped = difference.subject.replace("%0D", "\\x0d");
            let escaped = escaped.replace("%0A", "\\x0a");
            let in_log = difference.part == Part::Error && escaped == difference.reference;
            let sent = difference.part == Part::Upstream
                && difference.reference.contains("\nX-Injected:")
                && !difference.subject.contains("\nX-Injected:")
                && unbroken(&difference.reference) == unbroken(&difference.subject);
            in_log || sent
        },
    },
    Row {
        sentence: "In fields of responses and of requests to upstreams they become spaces, in the URI of a `proxy_pass` with \
                   variables they are escaped. nginx sends them as they are, which lets a client write fields of its own.",
        is: |case, difference| {
            let signs = |bytes: &[u8], signs: [&[u8]; 2]| {
                let mut signs = signs.into_iter();
                signs.any(|sign| crate::upstream::find(bytes, sign).is_some())
            };
            // A client that writes fields so writes small letters.
            let escaped = |record: &Recorded| {
                let line = record.bytes.split(|byte| *byte == b'\r').next();
                line.is_some_and(|line| signs(line, [b"%0D", b"%0A"]))
            };
            let shown = |text: &str| text.replace("\\x0d", "%0D").replace("\\x0a", "%0A");
            let spaced = |text: &str| text.replace("\\r", " ").replace("\\n", " ");
            let numbered = case.requests().enumerate();
            let breaking: Vec<usize> = numbered
                .filter(|(_, bytes)| signs(bytes, [b"%0d", b"%0a"]))
                .map(|(number, _)| number)
                .collect();
            if let Some(first) = breaking.first() {
                // nginx's upstream may find no request, or several, in what it is sent.
                let is_asked = difference.part == Part::Upstream
                    && (matches!(
                        difference.key.as_str(),
                        "number of requests" | "request" | "cut"
                    ) || unbroken(&difference.reference) == unbroken(&difference.subject));
                let is_of_them = is_asked
                    || case.is_seen_of(difference, &breaking)
                    || case.is_lack_behind(difference, *first);
                let of_field = difference.part == Part::Field
                    && breaking.iter().any(|request| has_one_head(case, *request))
                    && case.is_seen_of(difference, &breaking);
                let told = of_field
                    || is_of_them && case.subject.upstream.iter().any(escaped)
                    || shown(&difference.reference) == difference.subject
                    || difference.part == Part::Upstream
                        && spaced(&difference.reference) == spaced(&difference.subject);
                if told {
                    return true;
                }
            }
            // The value with a line break that configurations have.
            let broken = difference.subject.contains("tab\\tand line");
            let mut requests = 0..case.conversation.exchanges.len();
            let alone = difference.reference.contains("(no colon)")
                && requests.any(|request| {
                    has_one_head(case, request) && case.is_seen_of(difference, &[request])
                });
            // A path that a redirect names.
            let in_path = case.says("%0a") || case.says("%0d");
            let cut_off =
                difference.reference.ends_with(": (no colon)") && difference.subject == "(none)";
            let rest = difference.subject.strip_prefix(&difference.reference);
            let spaced = rest.is_some_and(|rest| rest.starts_with(' '));
            let spaces = |text: &str| text.replace("\\x0A", " ").replace("\\x0D", " ");
            let of_field = difference.key.starts_with("sent_http_");
            match difference.part {
                Part::Field => broken || alone || in_path && (cut_off || spaced),
                Part::Access => {
                    in_path && of_field && spaces(&difference.reference) == difference.subject
                }
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
        sentence: "**What an upstream is asked for a head that is refused**, by `post_action` or for the page, has its method, or \
                   GET where none was understood, and of fields that may not come twice the first. nginx asks without a method, and \
                   passes both on.",
        is: |case, difference| {
            let method = difference
                .subject
                .strip_suffix(difference.reference.as_str());
            let without_method = difference.reference.starts_with(' ')
                && method.is_some_and(|method| {
                    !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
                });
            let refused = |line: &String| line.contains("client sent duplicate header line");
            let refused =
                any_status(case.reference, 400) || case.reference.errors.iter().any(refused);
            let twice = refused && case.repeats_a_field();
            // What is counted shows the method, in what comes back too.
            let mut asked = case.reference.upstream.iter();
            let is_without_method = asked.any(|asked| asked.bytes.starts_with(b" "));
            let sum = |text: &str| {
                let words = text.split(|byte: char| !byte.is_ascii_digit());
                words
                    .filter_map(|word| word.parse::<u64>().ok())
                    .sum::<u64>()
            };
            let (more, less) = (sum(&difference.subject), sum(&difference.reference));
            let counted = match difference.key.as_str() {
                "upstream_bytes_sent" => is_without_method && more > less || twice && more < less,
                "upstream_bytes_received" | "upstream_response_length" => {
                    is_without_method && more > less
                }
                _ => false,
            };
            // Of the lines some are left out, and none is another.
            let mut lines = difference.subject.lines();
            let fewer = lines.all(|line| difference.reference.lines().any(|other| other == line));
            difference.part == Part::Upstream && (without_method || twice && fewer) || counted
        },
    },
    Row {
        sentence: "**What is received of an answer whose body is not used** (`X-Accel-Redirect`) is as much with a cache as without \
                   one. nginx reads less at first, as the head of the cache's entry lies in the same buffer.",
        is: |case, difference| {
            let numbers = |text: &str| -> Option<Vec<u64>> {
                let all = text.split(" : ").map(|number| number.parse().ok());
                all.collect()
            };
            let (less, more) = (&difference.reference, &difference.subject);
            let is_less = numbers(less)
                .zip(numbers(more))
                .is_some_and(|(less, more)| {
                    less.len() == more.len()
                        && less.iter().zip(&more).all(|(less, more)| less <= more)
                });
            difference.part == Part::Access
                && difference.key == "upstream_bytes_received"
                && case.configuration.contains("_cache_path ")
                && is_less
        },
    },
    Row {
        sentence: "**`$proxy_host` and `$proxy_port` of an answer from a cache** in whose place the client gets a 412 or 416 are \
                   known. nginx has forgotten them with the answer.",
        is: |case, difference| {
            let is_refused = |line: &Line| matches!(value(line, "status"), "412" | "416");
            let is_of_target = matches!(difference.key.as_str(), "proxy_host" | "proxy_port");
            difference.part == Part::Access
                && is_of_target
                && difference.reference == "-"
                && case.configuration.contains("_cache_path ")
                && case.reference.access.iter().any(is_refused)
        },
    },
    Row {
        sentence: "**`post_action` after `proxy_request_buffering off`** sends no body. nginx sends the last bytes of the client's once more, \
                   which no head announces.",
        is: |case, difference| {
            let numbers = |text: &str| {
                let words = text.split(|byte: char| !byte.is_ascii_digit());
                let numbers = words.filter_map(|word| word.parse::<u64>().ok());
                numbers.collect::<Vec<_>>()
            };
            let (mut reference, mut subject) =
                (numbers(&difference.reference), numbers(&difference.subject));
            let more = reference.pop() > subject.pop();
            let mut lines = case.lines_of(difference);
            difference.key == "upstream_bytes_sent"
                && more
                && !reference.is_empty()
                && reference == subject
                && case.reference.upstream.len() == case.subject.upstream.len()
                && lines.any(|(line, _)| value(line, "uri") == "/mirror")
        },
    },
    Row {
        // An earlier conversation, or this one, asked oftener of one than of the other: that is
        // judged by itself.
        sentence: "**Which peer is asked** follows from how often peers were asked before: where an answer of an upstream is taken \
                   otherwise, as above, and leads to other requests, the next peer in turn is another one.",
        is: |case, difference| {
            let refused = difference.key.contains("connect() failed");
            case.turned
                && match difference.part {
                    Part::Access => {
                        // Times are made equal in the difference.
                        let mut lines = case.reference.access.iter().zip(&case.subject.access);
                        let key = &difference.key;
                        key.starts_with("upstream_")
                            && lines.any(|(left, right)| {
                                value(left, key) != value(right, key)
                                    && asked_otherwise(left, right, key)
                            })
                    }
                    Part::Error => {
                        let lines = [&difference.reference, &difference.subject];
                        // The same line names another peer.
                        let without_peer = |line: &String| {
                            let (before, rest) = line.split_once(", upstream: \"")?;
                            let (_, after) = rest.split_once('"')?;
                            Some(format!("{before}{after}"))
                        };
                        let same = lines.map(without_peer);
                        refused || same[0].is_some() && same[0] == same[1]
                    }
                    _ => false,
                }
        },
    },
    Row {
        sentence: "**A body in chunks that came by TLS with its head** goes on with its length where `proxy_request_buffering` is \
                   `off`. nginx, which reads no more of a record at first than the buffer of the head takes, passes it in chunks.",
        is: |case, difference| {
            // A body that is read on the way is no value of a variable.
            let mut lines = case.lines_of(difference);
            let is_passed = |(line, _): (&Line, &Line)| {
                value(line, "upstream_addr") != "-" && case.is_in_chunks_at(line)
            };
            let follows = match difference.key.as_str() {
                "request_body" => difference.reference == "-" && lines.any(is_passed),
                "upstream_bytes_sent" => lines.any(is_passed),
                _ => is_framed_otherwise(difference),
            };
            case.conversation.tls.is_some() && follows
        },
    },
];

/// Whether both answer a request with the same head, but for line breaks.
fn has_one_head(case: &Case, request: usize) -> bool {
    let head = |seen: &Seen| {
        let mut answer = seen.heard.answers_to(request).last()?.clone();
        even_answer(&mut answer);
        let fields = answer.fields.iter();
        let lines = fields.map(|(name, value)| match value.as_str() {
            "(no colon)" => name.clone(),
            _ => format!("{name}: {value}"),
        });
        Some(unbroken(&lines.collect::<Vec<_>>().join(" ")))
    };
    let (reference, subject) = (head(case.reference), head(case.subject));
    reference.is_some() && reference == subject
}

/// A text whose line breaks are spaces, whether they are sent, escaped or shown, and which has no
/// two spaces together.
fn unbroken(text: &str) -> String {
    const BREAKS: &[&str] = &["\\r", "\\n", "%0D", "%0A", "%0d", "%0a", "%20"];
    let spaced = BREAKS
        .iter()
        .fold(String::from(text), |text, sign| text.replace(sign, " "));
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether what a variable tells of upstreams differs by the peers that were asked in vain alone:
/// those that took no connection.
fn asked_otherwise(reference: &Line, subject: &Line, key: &str) -> bool {
    let peers = |line: &Line, key: &str| {
        let list = value(line, key).replace(" : ", ", ");
        let peers = list.split(", ").map(String::from);
        peers.collect::<Vec<_>>()
    };
    let reached = |line: &Line| {
        let received = peers(line, "upstream_bytes_received");
        let addresses = peers(line, "upstream_addr");
        let told = peers(line, key);
        if told.len() != addresses.len() || received.len() != addresses.len() {
            return None;
        }
        let all = told.into_iter().zip(received);
        let reached = all.filter(|(_, received)| received != "0" && received != "-");
        // How long each took is chance.
        let told = |told| {
            if key.ends_with("_time") {
                String::new()
            } else {
                told
            }
        };
        Some(reached.map(|(own, _)| told(own)).collect::<Vec<_>>())
    };
    let other_peer = peers(reference, "upstream_addr") != peers(subject, "upstream_addr");
    other_peer && (key == "upstream_addr" || reached(reference) == reached(subject))
}

/// Whether a difference follows from an upstream's answer without a head that nginx takes for
/// HTTP/0.9, which this word asks for.
fn is_of_headless(case: &Case, difference: &Difference, word: &str) -> bool {
    let told = |line: &String| line.contains("upstream sent no valid HTTP/1.0 header");
    let requests = case.asking(&[word]);
    // Where this is logged elsewhere, nothing is.
    let errors = &case.reference.errors;
    let is_taken = errors.is_empty() || errors.iter().any(told);
    // To HEAD nginx answers nothing then, and the client takes the next answer for its own.
    let exchanges = &case.conversation.exchanges;
    let mut silent = requests.iter().copied().filter(|request| {
        let exchange = exchanges.get(*request);
        exchange.is_some_and(|exchange| exchange.head_only)
    });
    let is_heard = matches!(
        difference.part,
        Part::Status | Part::Field | Part::Framing | Part::Body | Part::Trailer | Part::Ending
    );
    let is_displaced = is_heard && silent.any(|request| case.is_from(difference, request));
    // Where a page is led to, other things may be asked.
    let is_led = difference.key == "number of requests"
        && !requests.is_empty()
        && case.configuration.contains("error_page ");
    is_taken && (is_displaced || is_led || follows_answer(case, difference, &requests))
}

/// Whether a difference is of one of these requests, whose upstream's answer is taken otherwise, or
/// of what follows where the connection ends behind it.
fn follows_answer(case: &Case, difference: &Difference, requests: &[usize]) -> bool {
    // Of the request itself all is as it was, unless the answer leads to a page.
    const OF_PAGE: &[&str] = &[
        "args",
        "document_root",
        "document_uri",
        "is_args",
        "limit_conn_status",
        "limit_rate",
        "limit_req_status",
        "proxy_host",
        "proxy_port",
        "query_string",
        "realpath_root",
        "request_filename",
        "uri",
    ];
    const OF_ANSWER: &[&str] = &[
        "body_bytes_sent",
        "bytes_sent",
        "gzip_ratio",
        "number of lines",
        "request_completion",
        "request_time",
        "status",
    ];
    let key = difference.key.as_str();
    let is_of_answer = difference.part != Part::Access
        || OF_ANSWER.contains(&key)
        || OF_PAGE.contains(&key)
        || key.starts_with("arg_")
        || key.starts_with("sent_http_")
        || key.starts_with("upstream_")
        // That page is asked for with GET.
        || key == "request_method" && difference.subject == "GET";
    let mut behind = requests.iter();
    is_of_answer
        && (case.is_seen_of(difference, requests)
            || behind.any(|request| case.is_lack_behind(difference, *request)))
}
