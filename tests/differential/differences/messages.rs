//! Differences in lines of the error log alone.

use super::{NO_LINE, Row};
use crate::compare::Part;
use crate::run::Seen;
use crate::upstream::Recorded;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "**`ssl_ecdh_curve` without the curve of a client's ECDSA certificate** (TLS 1.2): the certificate is looked at all the \
                   same, as curves are about the exchange of keys. OpenSSL refuses the handshake.",
        is: |case, difference| {
            let refused =
                |line: &String| line.contains("SSL routines::wrong curve) while SSL handshaking");
            // No request comes to nginx, which closes the connection.
            let reference = case.reference;
            let answered = reference.heard.answers.iter().any(|all| !all.is_empty());
            let is_nothing = !answered && reference.access.is_empty();
            let is_lack = match difference.part {
                Part::Status => true,
                Part::Ending => difference.reference == "Closed",
                Part::Access => difference.key == "number of lines",
                Part::Upstream => difference.key == "number of requests",
                Part::Error => difference.reference == NO_LINE || refused(&difference.reference),
                _ => false,
            };
            reference.errors.iter().any(refused)
                && case.conversation.identity.is_some()
                && is_nothing
                && is_lack
        },
    },
    Row {
        sentence: "**`access_log` with variables and `disable_symlinks`**: the line of a file that is not there is written. nginx takes the \
                   file's error for one of the root, and loses the line.",
        is: |_, difference| {
            let tested = difference.reference.starts_with("[error] testing \"")
                && difference.reference.contains("\" existence failed (");
            tested && difference.subject == NO_LINE
        },
    },
    Row {
        sentence: "**A header line that is too long**, behind other requests that were sent at once, is logged as far as \
                   it is without them. nginx logs less, as they stand in its buffer too.",
        is: |case, difference| {
            let shown = |line: &str| line.find("...\" while reading");
            let text = "[info] client sent too long header line: \"";
            let begins = difference.reference.starts_with(text);
            let less = shown(&difference.reference).is_some_and(|end| {
                let start = &difference.reference[..end];
                difference.subject.starts_with(start) && shown(&difference.subject) > Some(end)
            });
            case.conversation.pipelined && begins && less
        },
    },
    Row {
        sentence: "**A client that leaves** while its upstream works is logged without `epoll_wait() reported \
                   that`.",
        is: |_, difference| {
            let without = difference
                .reference
                .replace("epoll_wait() reported that ", "");
            difference.part == Part::Error && without == difference.subject
        },
    },
    Row {
        sentence: "**A handshake that fails** is logged with rustls's reason where nginx has OpenSSL's.",
        is: |case, difference| {
            let fails = [
                "handshake rejected while SSL handshaking",
                "SSL_do_handshake() failed",
                "SSL_read_early_data() failed",
            ];
            let line = match difference.reference.as_str() {
                NO_LINE => &difference.subject,
                line => line,
            };
            difference.part == Part::Error
                && fails.iter().any(|text| line.contains(text))
                && case.conversation.tls.is_some()
                && [case.reference, case.subject].into_iter().all(|seen| {
                    let failed = |line: &String| fails.iter().any(|text| line.contains(text));
                    seen.heard.answers.is_empty() && seen.errors.iter().any(failed)
                })
        },
    },
    Row {
        sentence: "**Beside `post_action`** a line about a copy that `mirror` makes goes to the log of the place that made it. \
                   nginx has one log a connection: that of the place to which the request itself has come by then.",
        is: |case, difference| {
            let said = match difference.reference.as_str() {
                NO_LINE => difference.subject.as_str(),
                line => line,
            };
            let is_mirrored =
                |asked: &&Recorded| String::from_utf8_lossy(&asked.bytes).contains(" /mirrored");
            let asked = |seen: &Seen| seen.upstream.iter().filter(is_mirrored).count();
            // `post_action` asks what the copy asks, too.
            let both_ask = asked(case.reference) > 1 && asked(case.subject) > 1;
            let of_one = (difference.reference == NO_LINE) != (difference.subject == NO_LINE);
            let of_copy = said.contains(", subrequest: \"/mirror\"");
            difference.part == Part::Error && of_one && of_copy && both_ask
        },
    },
    Row {
        sentence: "**Bodies stream.** An answer goes to the client as it comes. `proxy_buffering on` joins parts that come together; `off` sends each at once. Where an \
                   upstream fails midway, the client has what had come; nginx may still hold that back.",
        is: |_, difference| {
            const BUFFERED: &str = "[warn] an upstream response is buffered to a temporary file ";
            let said = difference.reference.starts_with(BUFFERED);
            difference.part == Part::Error && said && difference.subject == NO_LINE
        },
    },
    Row {
        sentence: "**`realpath() … failed`** of `$realpath_root`, and the alert of an `alias` whose URI was rewritten, are \
                   logged once for each use. nginx repeats them whenever another variable has emptied its cache.",
        is: |case, difference| {
            let more = difference.subject == NO_LINE;
            // Which of a request and its subrequests a line names is another difference.
            let without_name = |line: &str| {
                let (before, rest) = line.split_once(", subrequest: \"")?;
                let host = rest.find(", host: ").unwrap_or(rest.len());
                Some(format!("{before}{}", rest.get(host..).unwrap_or_default()))
            };
            let of_request = |line: &str| without_name(line).unwrap_or_else(|| String::from(line));
            let repeated = of_request(&difference.reference);
            let mut lines = case.subject.errors.iter();
            let same = lines.any(|line| of_request(line) == repeated);
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
        is: |_, difference| {
            let of_client = |rest: &str| {
                let fields = [", host: \"", ", referrer: \""].iter();
                let first = fields.filter_map(|field| rest.find(field)).min();
                String::from(first.and_then(|at| rest.get(at..)).unwrap_or_default())
            };
            let behind_copy = |text: &str| {
                let (before, rest) = text.split_once(", subrequest: \"")?;
                let logging = before.contains(" while logging request, ");
                logging.then(|| format!("{before}{}", of_client(rest)))
            };
            let without = behind_copy(&difference.reference);
            // The request may have asked an upstream itself.
            let without_upstream = |text: &str| {
                let (before, rest) = text.split_once(", upstream: \"")?;
                Some(format!("{before}{}", of_client(rest)))
            };
            let own = without_upstream(&difference.subject);
            let own = own.as_ref().unwrap_or(&difference.subject);
            difference.part == Part::Error && without.is_some_and(|text| text == *own)
        },
    },
    Row {
        sentence: "**A body that is buffered to a file while `mirror` is at work beside its request**: the line says nothing of \
                   what is being done. nginx says what the copy did last.",
        is: |case, difference| {
            const COPY_DID: [&str; 3] = [
                " while connecting to upstream",
                " while sending request to upstream",
                " while reading response header from upstream",
            ];
            let buffered = "a client request body is buffered to a temporary file";
            let line = &difference.reference;
            let of_copy = COPY_DID
                .iter()
                .any(|done| line.replacen(done, "", 1) == difference.subject);
            let mirrors = case.configuration.contains("mirror /");
            difference.part == Part::Error && line.contains(buffered) && mirrors && of_copy
        },
    },
    Row {
        sentence: "**An upstream that breaks off with `proxy_buffering off`** or its kin, or in the middle of a value of memcached: the line says \
                   `while reading upstream`. nginx says `while sending to client` where something of the answer has left.",
        is: |_, difference| {
            let line = &difference.reference;
            let breaks =
                line.contains("upstream prematurely closed connection while sending to client");
            let read = line.replacen("while sending to client", "while reading upstream", 1);
            difference.part == Part::Error && breaks && read == difference.subject
        },
    },
];
