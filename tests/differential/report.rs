//! A finding in words, and what findings of one fault have in common.

use std::collections::BTreeSet;

use crate::compare;
use crate::requests::Conversation;
use crate::run::Seen;
use crate::shrink::{Finding, Pair};

/// Lines that every configuration has and that say nothing about a fault.
const USUAL: &[&str] = &[
    "access_log",
    "client_body_temp_path",
    "daemon",
    "error_log",
    "events",
    "http",
    "listen",
    "log_format",
    "pid",
    "proxy_temp_path",
    "root",
    "server",
    "server_name",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "use",
    "user",
    "worker_connections",
    "worker_processes",
    "}",
];

/// Names of the directives that a text is left with.
pub(crate) fn directives(text: &str) -> Vec<&str> {
    let names = text
        .lines()
        .filter_map(|line| line.trim().split([' ', ';']).next());
    let names: BTreeSet<&str> = names
        .filter(|name| !name.is_empty() && !USUAL.contains(name))
        .collect();
    names.into_iter().collect()
}

/// What findings of one fault have in common: the part, and the directives that are left.
pub(crate) fn name(finding: &Finding) -> String {
    let text = finding.configuration.text(None);
    let directives = directives(&text).join(" ");
    format!(
        "{:?} {} [{directives}]",
        finding.difference.part, finding.difference.key
    )
}

/// The finding with all that shows it.
pub(crate) fn told(seed: u64, pair: &Pair, finding: &Finding) -> String {
    let mut text = format!(
        "seed {seed}, {}: {}\n\n",
        pair.subject.name(),
        finding.difference
    );
    for line in finding.configuration.text(None).lines() {
        if line.trim_start().starts_with("log_format differential ") {
            text.push_str("    log_format differential ...;\n")
        } else {
            text.push_str(&format!("{line}\n"))
        }
    }
    for (index, conversation) in finding.conversations.iter().enumerate() {
        text.push_str(&sent(conversation));
        if finding.difference.conversation == Some(index) {
            let (reference, subject) = &finding.seen;
            text.push_str(&heard(pair.reference.name().as_str(), reference));
            text.push_str(&heard(pair.subject.name().as_str(), subject));
        }
    }
    text
}

/// A conversation as a run has it that makes nothing smaller: what is sent, and what both programs
/// make of it.
pub(crate) fn exchange(conversation: &Conversation, names: [&str; 2], seen: [&Seen; 2]) -> String {
    let [reference, subject] = seen;
    sent(conversation) + &heard(names[0], reference) + &heard(names[1], subject)
}

/// What the client sends.
fn sent(conversation: &Conversation) -> String {
    let pipelined = if conversation.pipelined {
        ", all at once"
    } else {
        ""
    };
    let secured = match &conversation.tls {
        Some(name) => match conversation.identity {
            Some(identity) => format!(" by TLS to {name:?} as {identity:?}"),
            None => format!(" by TLS to {name:?}"),
        },
        None => String::new(),
    };
    let shuts = if conversation.shuts {
        ", then nothing more"
    } else {
        ""
    };
    let mut text = format!(
        "\nconnection to {}{secured}{pipelined}{shuts}\n",
        conversation.port
    );
    let segments = conversation
        .exchanges
        .iter()
        .flat_map(|exchange| &exchange.segments);
    for segment in std::iter::once(&conversation.preface).chain(segments) {
        if !segment.is_empty() {
            let shown = compare::shown(segment).replace('\n', "\n    > ");
            text.push_str(&format!("    > {shown}\n"));
        }
    }
    text
}

/// What a program has answered, whole.
fn heard(name: &str, seen: &Seen) -> String {
    let mut text = format!("\n{name} ({:?})\n", seen.heard.ending);
    let mut line = |line: &str| {
        text.push_str("    < ");
        text.push_str(&line.replace('\n', "\n    < "));
        text.push('\n');
    };
    for (number, answers) in seen.heard.answers.iter().enumerate() {
        if number > 0 {
            line("");
        }
        for answer in answers {
            line(&answer.status_line);
            for (name, value) in &answer.fields {
                line(&format!("{name}: {value}"));
            }
            line("");
            if !answer.body.is_empty() {
                line(&compare::shown(&answer.body));
            }
            for trailer in &answer.trailers {
                line(trailer);
            }
            if answer.cut {
                line("(cut)");
            }
        }
        if answers.is_empty() {
            line("(no answer)");
        }
    }
    if !seen.heard.rest.is_empty() {
        line(&format!("and then: {}", compare::shown(&seen.heard.rest)));
    }
    for message in &seen.errors {
        text.push_str(&format!("    log: {message}\n"));
    }
    text
}

/// A name as that of a file.
pub(crate) fn file_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = name.chars().map(safe).take(100).collect();
    format!("{}.txt", name.trim_matches('-'))
}
