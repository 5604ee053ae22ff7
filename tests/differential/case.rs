//! What the rows of the table of documented differences judge by.

use std::collections::BTreeSet;

use crate::compare::{AS_RECEIVED, Difference, Part, SOMETHING, even_answer, statuses};
use crate::differences::NO_LINE;
use crate::requests::{Conversation, Exchange};
use crate::run::{Seen, printable};

/// A line of the access log: names of variables with their values.
pub(crate) type Line = Vec<(String, String)>;

/// What a row judges by: a conversation, and what has been seen of it.
pub(crate) struct Case<'a> {
    /// The text of the configuration.
    pub(crate) configuration: &'a str,
    pub(crate) conversation: &'a Conversation,
    pub(crate) reference: &'a Seen,
    pub(crate) subject: &'a Seen,
    /// Whether upstreams have been asked oftener by one of the two, in this conversation or before
    /// it.
    pub(crate) turned: bool,
}

/// Longer lines of an error log may not have room for the name of their request, in bytes.
const LONG_LINE: usize = 1_500;

impl Case<'_> {
    /// Whether the client says this in a request.
    pub(crate) fn says(&self, words: &str) -> bool {
        let mut texts = self.requests();
        texts.any(|bytes| String::from_utf8_lossy(&bytes).contains(words))
    }

    /// Whether a variable differs so in the line of a subrequest: of these no byte has been
    /// received.
    pub(crate) fn is_of_subrequest(&self, difference: &Difference) -> bool {
        let mut lines = self.reference.access.iter().zip(&self.subject.access);
        lines.any(|(left, right)| {
            value(right, "request_length") == "0" && is_difference(difference, left, right)
        })
    }

    /// The lines that differ so.
    pub(crate) fn lines_of(&self, difference: &Difference) -> impl Iterator<Item = (&Line, &Line)> {
        let lines = self.reference.access.iter().zip(&self.subject.access);
        lines.filter(|(left, right)| is_difference(difference, left, right))
    }

    /// The numbers of the requests, from 0, whose lines differ so.
    pub(crate) fn requests_of(&self, difference: &Difference) -> impl Iterator<Item = usize> {
        self.lines_of(difference)
            .filter_map(|(line, _)| request_of(line))
    }

    /// Whether a variable differs so in the line of a request that both refuse by its request line:
    /// with nginx it has no URI.
    pub(crate) fn is_of_refused_line(&self, difference: &Difference) -> bool {
        self.lines_of(difference).any(|(left, right)| {
            let refused = |line| matches!(value(line, "status"), "400" | "405" | "414" | "505");
            refused(left) && refused(right) && value(left, "request_uri") == "-"
        })
    }

    /// Whether a variable differs so in the line of a request in chunks with another request behind
    /// it.
    pub(crate) fn is_followed(&self, difference: &Difference) -> bool {
        let exchanges = &self.conversation.exchanges;
        let mut requests = self.requests_of(difference);
        requests.any(|request| {
            let followed = request + 1 < exchanges.len();
            exchanges.get(request).is_some_and(|exchange| {
                exchange.is_in_chunks() && (followed || exchange.asks_twice())
            })
        })
    }

    /// Whether the request that a line of the access log tells of has a body in chunks.
    pub(crate) fn is_in_chunks_at(&self, line: &Line) -> bool {
        let exchange =
            request_of(line).and_then(|request| self.conversation.exchanges.get(request));
        exchange.is_some_and(Exchange::is_in_chunks)
    }

    /// How many requests stand behind bodies of those before this one.
    pub(crate) fn count_behind_bodies(&self, request: usize) -> usize {
        let before = self.conversation.exchanges.iter().take(request);
        before.filter(|exchange| exchange.asks_twice()).count()
    }

    /// Whether a request announces a body.
    pub(crate) fn has_body(&self, request: usize) -> bool {
        let exchange = self.conversation.exchanges.get(request);
        exchange.is_some_and(|exchange| {
            let text = String::from_utf8_lossy(&exchange.segments.concat()).to_ascii_lowercase();
            text.contains("\ntransfer-encoding:") || text.contains("\ncontent-length:")
        })
    }

    /// Whether the client sends less of a body than a request announces, or chunks that are none.
    pub(crate) fn breaks_off(&self, request: usize) -> bool {
        let mut errors = self.reference.errors.iter();
        let invalid = "client sent invalid chunked body";
        if errors.any(|line| line.contains(invalid) && self.names(line, request)) {
            return true;
        }
        let exchange = self.conversation.exchanges.get(request);
        exchange.is_some_and(Exchange::breaks_off)
    }

    /// Whether nginx tells of a variable what it has told in the line of a subrequest before it.
    pub(crate) fn keeps_value_of_subrequest(&self, difference: &Difference) -> bool {
        // These are made for each line anew.
        let fresh = [
            "status",
            "bytes_sent",
            "body_bytes_sent",
            "request_length",
            "connection_requests",
            "pipe",
        ];
        if fresh.contains(&difference.key.as_str()) {
            return false;
        }
        let lines = || self.reference.access.iter().zip(&self.subject.access);
        lines().enumerate().any(|(at, (left, right))| {
            let mut before = self.reference.access.iter().take(at);
            is_difference(difference, left, right)
                && before.any(|line| {
                    let of_same = |key| value(line, key) == value(left, key);
                    value(line, "request_length") == "0"
                        && of_same("connection_requests")
                        && of_same(&difference.key)
                })
        })
    }

    /// Each request whole.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Vec<u8>> {
        let exchanges = self.conversation.exchanges.iter();
        exchanges.map(|exchange| exchange.segments.concat())
    }

    /// Whether a request has two fields of one name.
    pub(crate) fn repeats_a_field(&self) -> bool {
        self.requests().any(|bytes| {
            let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
            let mut seen = BTreeSet::new();
            let head = text.lines().skip(1).take_while(|line| !line.is_empty());
            let mut names = head.filter_map(|line| Some(line.split_once(':')?.0.trim()));
            names.any(|name| !seen.insert(String::from(name)))
        })
    }

    /// The numbers of the requests, from 0, with one of these words among those that tell the
    /// upstream what to answer; none where it has not been asked.
    pub(crate) fn asking(&self, words: &[&str]) -> Vec<usize> {
        let mut numbers = Vec::new();
        if self.reference.upstream.is_empty() {
            return numbers;
        }
        // What stands behind a body may be a request that counts as well.
        let mut behind = 0;
        for (number, exchange) in self.conversation.exchanges.iter().enumerate() {
            behind += usize::from(exchange.asks_twice());
            if has_word(&exchange.segments.concat(), words) {
                numbers.extend(number..=number + behind);
            }
        }
        numbers
    }

    /// Whether a difference is in what is seen of one of these requests: its answers, or a line
    /// about it in a log.
    pub(crate) fn is_seen_of(&self, difference: &Difference, requests: &[usize]) -> bool {
        match difference.part {
            Part::Status if difference.key == "answers" => {
                let (reference, subject) = statuses_apart(difference);
                requests.contains(&same_at_first(&reference, &subject))
            }
            Part::Status | Part::Field | Part::Framing | Part::Body | Part::Trailer => requests
                .iter()
                .any(|request| self.is_of_answers(difference, *request)),
            Part::Access => {
                let mut lines = self.reference.access.iter().zip(&self.subject.access);
                lines.any(|(left, right)| {
                    // Times and lengths that are chance are made equal in the difference.
                    let differ = value(left, &difference.key) != value(right, &difference.key)
                        || [&difference.reference, &difference.subject]
                            .iter()
                            .any(|text| text.starts_with(AS_RECEIVED));
                    differ && request_of(left).is_some_and(|request| requests.contains(&request))
                })
            }
            Part::Error => requests
                .iter()
                .any(|request| self.is_named(difference, *request)),
            _ => false,
        }
    }

    /// Whether a difference is that with nginx the connection has ended behind a request, or that
    /// the client has gone on no more: what follows is not there.
    pub(crate) fn is_lack_behind(&self, difference: &Difference, request: usize) -> bool {
        let (reference, subject) = (self.reference, self.subject);
        let mut later = request + 1..self.conversation.exchanges.len();
        match difference.part {
            Part::Status if difference.key == "answers" => {
                let (left, right) = statuses_apart(difference);
                let at = same_at_first(&left, &right);
                at > request && left.get(at).is_none_or(|left| *left == "(no answer)")
            }
            Part::Status => difference.reference == "(no answer)",
            // What stands behind a body is asked for, too, and no request of its own to the client.
            Part::Ending if difference.key == "rest" => difference.reference.is_empty(),
            Part::Ending => difference.reference == "Closed",
            Part::Access => {
                let fewer = reference.access.len() < subject.access.len();
                difference.key == "number of lines" && fewer
            }
            Part::Upstream => {
                let fewer = reference.upstream.len() < subject.upstream.len();
                difference.key == "number of requests" && fewer
            }
            Part::Error => {
                // Which of the two ends a connection follows from the answer, too.
                let left = " closed keepalive connection";
                let ended = difference.subject.contains(left);
                let later = later.any(|request| self.is_named(difference, request));
                difference.reference == NO_LINE
                    && (ended || later || self.is_behind_body(difference))
                    || difference.subject == NO_LINE && difference.reference.contains(left)
            }
            _ => false,
        }
    }

    /// Whether a difference is in what is seen of a request or of those behind it, which may have
    /// its answer.
    pub(crate) fn is_from(&self, difference: &Difference, first: usize) -> bool {
        let exchanges = &self.conversation.exchanges;
        let behind = exchanges.iter().filter(|exchange| exchange.asks_twice());
        let requests: Vec<usize> = (first..exchanges.len() + behind.count()).collect();
        let of_connection = matches!(difference.part, Part::Ending)
            || matches!(
                difference.key.as_str(),
                "number of lines" | "number of requests"
            )
            || difference.part == Part::Error
                && [&difference.reference, &difference.subject]
                    .iter()
                    .any(|line| {
                        line.contains(" closed keepalive connection")
                            || line.contains(" closed connection")
                    });
        of_connection || self.is_seen_of(difference, &requests) || self.is_behind_body(difference)
    }

    /// Whether the answers to a request differ so.
    fn is_of_answers(&self, difference: &Difference, request: usize) -> bool {
        let of = |seen: &'_ Seen| {
            let mut answers = seen.heard.answers.get(request).cloned().unwrap_or_default();
            answers.iter_mut().for_each(even_answer);
            answers
        };
        let (left, right) = (of(self.reference), of(self.subject));
        if difference.part == Part::Status {
            return statuses(&left) == difference.reference
                && statuses(&right) == difference.subject;
        }
        // Where only one has interim ones, the last ones belong together.
        left.iter()
            .rev()
            .zip(right.iter().rev())
            .any(|(left, right)| match difference.part {
                Part::Field if difference.key == "order" => left.fields != right.fields,
                Part::Field => {
                    let is_it =
                        |(name, _): &&(String, String)| name.eq_ignore_ascii_case(&difference.key);
                    !left
                        .fields
                        .iter()
                        .filter(is_it)
                        .eq(right.fields.iter().filter(is_it))
                }
                Part::Framing => (left.framing, left.cut) != (right.framing, right.cut),
                Part::Body => left.body != right.body,
                Part::Trailer => left.trailers != right.trailers,
                _ => false,
            })
    }

    /// Whether the line of the error log is about what stands behind a body: that is none of the
    /// conversation's own requests.
    fn is_behind_body(&self, difference: &Difference) -> bool {
        let lines = [&difference.reference, &difference.subject];
        let names_one = lines.iter().any(|line| line.contains(", request: \""));
        let mut own = 0..self.conversation.exchanges.len();
        difference.part == Part::Error
            && names_one
            && !own.any(|request| self.is_named(difference, request))
    }

    /// Whether the line of the error log names a request.
    pub(crate) fn is_named(&self, difference: &Difference, request: usize) -> bool {
        let line = match difference.reference.as_str() {
            NO_LINE => &difference.subject,
            line => line,
        };
        // One that shows a long field has been cut before the name.
        let cut = !line.contains(", request: \"") && line.len() > LONG_LINE;
        cut || self.names(line, request)
    }

    /// Whether a line of the error log names a request.
    pub(crate) fn names(&self, line: &str, request: usize) -> bool {
        let exchange = self.conversation.exchanges.get(request);
        let named = line.split_once(", request: \"").map(|(_, rest)| rest);
        named.zip(exchange).is_some_and(|(named, exchange)| {
            let bytes = exchange.segments.concat();
            let text = bytes.trim_ascii_start();
            let line = text.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            named.starts_with(&printable(line.unwrap_or_default()))
        })
    }

    /// Whether one of these words is among those that tell the upstream what to answer, and it has
    /// been asked.
    pub(crate) fn asks(&self, words: &[&str]) -> bool {
        let asked = !self.reference.upstream.is_empty();
        asked && self.requests().any(|bytes| has_word(&bytes, words))
    }
}

/// Whether one of these words stands in a request.
fn has_word(request: &[u8], words: &[&str]) -> bool {
    let text = String::from_utf8_lossy(request);
    let mut found = text.split([',', ' ', '=', '\r', '&', '\n']);
    found.any(|word| words.contains(&word))
}

/// The statuses of each request's answers, where the numbers of requests with an answer differ.
fn statuses_apart(difference: &Difference) -> (Vec<&str>, Vec<&str>) {
    let apart = |text| str::split(text, " | ").collect();
    (apart(&difference.reference), apart(&difference.subject))
}

/// How many elements two lists have in common before the first that differs.
fn same_at_first(one: &[&str], other: &[&str]) -> usize {
    one.iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count()
}

/// Whether nginx asks an upstream for the same with a body in chunks that goes on with its length
/// here.
pub(crate) fn is_framed_otherwise(difference: &Difference) -> bool {
    let chunked = "Transfer-Encoding: chunked";
    let without = |text: &str| {
        let framing = |line: &&str| *line != chunked && !line.starts_with("Content-Length: ");
        text.lines()
            .filter(framing)
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let in_chunks = |text: &str| text.lines().any(|line| line == chunked);
    difference.part == Part::Upstream
        && in_chunks(&difference.reference)
        && !in_chunks(&difference.subject)
        && without(&difference.reference) == without(&difference.subject)
}

/// The number of the request that a line of the access log tells of, from 0.
pub(crate) fn request_of(line: &Line) -> Option<usize> {
    let number = value(line, "connection_requests").parse::<usize>().ok()?;
    Some(number.saturating_sub(1))
}

/// A variable in a line of the access log.
pub(crate) fn value<'a>(line: &'a [(String, String)], key: &str) -> &'a str {
    let found = line.iter().find(|(name, _)| name == key);
    found.map_or("", |(_, value)| value)
}

/// Whether a difference is one of these two lines.
pub(crate) fn is_difference(
    difference: &Difference,
    reference: &[(String, String)],
    subject: &[(String, String)],
) -> bool {
    let shows = |line, text: &str| match value(line, &difference.key) {
        "-" => text == "-",
        value => text == value || text == SOMETHING || text == AS_RECEIVED,
    };
    difference.part == Part::Access
        && shows(reference, &difference.reference)
        && shows(subject, &difference.subject)
}

/// Whether the field that a variable tells of was sent with this value; where there is none,
/// without it. `request` counts from 0; `None` is any of them.
pub(crate) fn is_as_sent(seen: &Seen, request: Option<usize>, key: &str, logged: &str) -> bool {
    let name = key.trim_start_matches("sent_http_").replace('_', "-");
    let numbered = seen.heard.answers.iter().enumerate();
    let of_request = numbered.filter(|(at, _)| request.is_none_or(|request| request == *at));
    let mut answers = of_request.flat_map(|(_, answers)| answers);
    answers.any(|answer| match answer.field(&name) {
        None => logged == "-",
        Some(sent) => match logged.strip_suffix("BOUNDARY") {
            Some(kind) => sent.starts_with(kind),
            None => sent == logged,
        },
    })
}

pub(crate) fn any_status(seen: &Seen, status: u16) -> bool {
    let mut answers = seen.heard.answers.iter().flatten();
    answers.any(|answer| answer.status() == status)
}
