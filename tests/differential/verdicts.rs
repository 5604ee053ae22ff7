//! What `-t` says of a configuration: whether it is taken, and the first error; of one that both
//! take, what it warns of.

use std::path::Path;

use crate::program::Program;

/// Warnings of one that the other has no reason for: what the platform lacks for nginx, and what
/// Tidegate takes without effect (each stands on its directive's page).
const OWN_WARNINGS: &[&str] = &[
    "is not supported, ignored",
    "is not supported on this platform, ignored",
    "has no effect here",
    "not supported here, skipped",
    // Newer versions of nginx say it of pushed responses, which the oldest still makes.
    "directive is obsolete, ignored",
    // Of nginx's tables; those here size themselves.
    "could not build optimal ",
    // Of caches that give to all what may be for one (docs/cache.md).
    "\" keeps answers to requests with \"Authorization\" and gives them to all clients",
    "keep answers that set cookies and give these to all clients",
];

/// One documented difference between verdicts.
pub(crate) struct Row {
    /// The sentence of docs/differences.md, with its reason.
    pub(crate) sentence: &'static str,
    /// Whether nginx's verdict and ours of this text differ in this way.
    is: fn(&Verdicts, &str) -> bool,
}

/// Every documented difference between verdicts.
pub(crate) const TABLE: &[Row] = &[
    Row {
        sentence: "**Ciphers and groups that are not here**: a list of which OpenSSL knows something and we nothing is refused, in words \
                   of its own; so is one of which neither knows anything.",
        // Of a list that OpenSSL takes the generator writes none.
        is: |Verdicts { reference, subject }, _| {
            let lists = ["SSL_CTX_set_cipher_list(\"", "SSL_CTX_set1_curves_list(\""];
            let list = lists.iter().find_map(|call| {
                let (list, _) = reference.strip_prefix(call)?.split_once('"')?;
                Some(list)
            });
            let missing = subject.strip_prefix("nothing of what \"").and_then(|rest| {
                let (_, missing) = rest.split_once("\" names is supported: ")?;
                missing.split(" in /").next()
            });
            list.zip(missing)
                .is_some_and(|(list, missing)| missing.split(", ").all(|name| list.contains(name)))
        },
    },
    Row {
        sentence: "**The line of an error** is that of the directive also where nginx finds the error at the end of the block, and \
                   names that line or none.",
        is: |Verdicts { reference, subject }, text| {
            let (error, place) = parts(reference);
            let (own_error, own_place) = parts(subject);
            let is_ahead = match (place, own_place) {
                (None, Some(_)) => true,
                (Some((file, line)), Some((own_file, own_line))) => {
                    let end = text.lines().nth(line.saturating_sub(1));
                    let is_end = end.is_some_and(|end| end.trim().ends_with('}'));
                    file == own_file && own_line < line && is_end
                }
                _ => false,
            };
            error == own_error && is_ahead
        },
    },
    Row {
        sentence: "**`modern_browser` with one word** other than `unlisted` is refused with a message. nginx says nothing of why.",
        is: |Verdicts { reference, subject }, _| {
            reference == "refused without an error" && subject.starts_with("invalid value \"")
        },
    },
    Row {
        sentence: "**The folder of `proxy_temp_path`** is not made, as no answer is ever written to a file. nginx refuses where it \
                   cannot make it.",
        is: |Verdicts { reference, subject }, text| {
            let folder = reference
                .strip_prefix("mkdir() \"")
                .and_then(|rest| rest.split('"').next());
            let is_of = |directive| {
                let mut paths = values(text, directive);
                folder.is_some_and(|folder| paths.any(|path| folder.ends_with(path)))
            };
            is_of("proxy_temp_path") && !is_of("client_body_temp_path") && subject == "taken"
        },
    },
    Row {
        sentence: "**`worker_processes 0`** is refused, as are more than 1,024.",
        is: |Verdicts { reference, subject }, text| {
            let is_out_of_range = |value: &str| {
                let number = value.parse::<u64>();
                number.is_ok_and(|number| !(1..=1_024).contains(&number))
            };
            reference == "taken"
                && subject.starts_with("\"worker_processes\" directive invalid value in /")
                && values(text, "worker_processes").any(is_out_of_range)
        },
    },
    Row {
        sentence: "**A directive that only nginx has** (`proxy` of its mail proxy) is refused as unsupported also where nginx \
                   allows it nowhere near.",
        is: |Verdicts { reference, subject }, _| {
            let name = |text: &str, before: &str| {
                let (name, _) = text.strip_prefix(before)?.split_once('"')?;
                Some(String::from(name))
            };
            let own = name(subject, "unsupported directive \"");
            reference.contains("\" directive is not allowed here in /")
                && own.is_some_and(|own| name(reference, "\"") == Some(own))
        },
    },
    Row {
        sentence: "**Names of an address's only server** count wherever one of them captures. nginx goes by the last regular expression \
                   alone: where that captures nothing, it warns of no conflict and leaves the variables of the others empty.",
        is: |Verdicts { reference, subject }, text| {
            let forgets = |line: &str| {
                let names = line.trim_start().strip_prefix("server_name ");
                let words = names.into_iter().flat_map(|names| names.split([' ', ';']));
                let patterns = words.filter(|word| word.trim_start_matches('"').starts_with('~'));
                let captures: Vec<bool> = patterns.map(|pattern| pattern.contains('(')).collect();
                captures.contains(&true) && captures.last() == Some(&false)
            };
            reference == "no such warning"
                && subject.starts_with("warns: conflicting server name \"")
                && text.lines().any(forgets)
        },
    },
    Row {
        sentence: "**A row of `split_clients` with one word** is refused. nginx reads the second from what its memory held before.",
        is: |Verdicts { subject, .. }, _| {
            subject.starts_with("invalid number of parameters in \"split_clients\" block")
        },
    },
];

/// The first argument of every line of a directive.
fn values<'a>(text: &'a str, directive: &str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let arguments = line.trim_start().strip_prefix(directive)?;
        let arguments = arguments.strip_prefix(' ')?;
        arguments.split([' ', ';']).next()
    })
}

/// Text, and file and line, of an error.
fn parts(verdict: &str) -> (&str, Option<(&str, usize)>) {
    let place = verdict.rsplit_once(" in /").and_then(|(text, place)| {
        let (file, line) = place.rsplit_once(':')?;
        Some((text, (file, line.parse().ok()?)))
    });
    match place {
        Some((text, place)) => (text, Some(place)),
        None => (verdict, None),
    }
}

/// A difference between two verdicts.
pub(crate) struct Verdicts {
    pub(crate) reference: String,
    pub(crate) subject: String,
}

impl Verdicts {
    /// What differences of one fault have in common.
    pub(crate) fn kind(&self) -> String {
        format!("{} | {}", kind(&self.reference), kind(&self.subject))
    }
}

/// Asks both about a text; nothing where they agree.
pub(crate) fn differ(
    prefix: &Path,
    reference: &Program,
    subject: &Program,
    text: &str,
) -> Result<Option<Verdicts>, String> {
    let (taken, words) = reference.verdict(prefix, text)?;
    let (taken_too, own_words) = subject.verdict(prefix, text)?;
    let (reference, subject) = (verdict(taken, &words), verdict(taken_too, &own_words));
    let differ = if reference != subject {
        Some(Verdicts { reference, subject })
    } else {
        // After an error nginx stops, and warns of nothing that comes later.
        taken.then(|| warnings_differ(&words, &own_words)).flatten()
    };
    let is_known = |differ: &Verdicts| TABLE.iter().any(|row| (row.is)(differ, text));
    Ok(differ.filter(|differ| !is_known(differ)))
}

/// The first warning that one gives and the other does not, or not there or not as often.
fn warnings_differ(words: &str, own_words: &str) -> Option<Verdicts> {
    let warnings = |words: &str| -> Vec<String> {
        let texts = words
            .lines()
            .filter_map(|line| Some(line.split_once("[warn] ")?.1))
            .filter(|text| !OWN_WARNINGS.iter().any(|own| text.contains(own)));
        texts.map(String::from).collect()
    };
    let (mut left, mut right) = (warnings(words), warnings(own_words));
    let same = left
        .iter()
        .zip(&right)
        .take_while(|(one, other)| one == other)
        .count();
    left.drain(..same);
    right.drain(..same);
    let first = |texts: &[String]| match texts.first() {
        Some(text) => format!("warns: {text}"),
        None => String::from("no such warning"),
    };
    let same = left.is_empty() && right.is_empty();
    (!same).then(|| Verdicts {
        reference: first(&left),
        subject: first(&right),
    })
}

/// Leaves out lines as long as the verdicts differ in the same way.
pub(crate) fn shrink(
    prefix: &Path,
    reference: &Program,
    subject: &Program,
    text: &str,
) -> Option<(String, Verdicts)> {
    let ask = |text: &str| differ(prefix, reference, subject, text).ok().flatten();
    let mut least = ask(text)?;
    let kind = least.kind();
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let mut length = lines.len() / 2;
    while length > 0 {
        let mut at = 0;
        while at < lines.len() {
            let end = (at + length).min(lines.len());
            let fewer = [&lines[..at], &lines[end..]].concat();
            match ask(&(fewer.join("\n") + "\n")).filter(|verdicts| verdicts.kind() == kind) {
                Some(verdicts) => (lines, least) = (fewer, verdicts),
                None => at += length.min(7).max(length / 2),
            }
        }
        length /= 2;
    }
    // A block and its end go together.
    let mut at = 0;
    while at < lines.len() {
        let depth = lines[at].len() - lines[at].trim_start().len();
        let closes =
            |line: &String| line.trim() == "}" && line.len() - line.trim_start().len() == depth;
        let end = lines[at + 1..]
            .iter()
            .position(closes)
            .map(|length| at + 1 + length);
        let fewer = end.filter(|_| lines[at].ends_with('{')).map(|end| {
            let whole = [&lines[..at], &lines[end + 1..]].concat();
            let shell = [&lines[..at], &lines[at + 1..end], &lines[end + 1..]].concat();
            [whole, shell]
        });
        let taken = fewer.into_iter().flatten().find_map(|fewer| {
            let verdicts =
                ask(&(fewer.join("\n") + "\n")).filter(|verdicts| verdicts.kind() == kind)?;
            Some((fewer, verdicts))
        });
        match taken {
            Some((fewer, verdicts)) => (lines, least) = (fewer, verdicts),
            None => at += 1,
        }
    }
    Some((lines.join("\n") + "\n", least))
}

/// The verdict in one line: nginx stops at the first error, Tidegate names all.
fn verdict(taken: bool, words: &str) -> String {
    // nginx gives a file that it cannot read another level.
    let levels = ["[emerg] ", "[crit] "];
    let error = words.lines().find_map(|line| {
        let mut levels = levels.iter();
        let (_, text) = levels.find_map(|level| line.split_once(level))?;
        // In front of errors of the system stand process and thread.
        let numbered = text.split_once(": ").filter(|(number, _)| {
            let mut letters = number.chars();
            letters.all(|letter| letter.is_ascii_digit() || letter == '#')
        });
        Some(numbered.map_or(text, |(_, text)| text))
    });
    match (taken, error) {
        (true, _) => String::from("taken"),
        (false, error) => String::from(error.unwrap_or("refused without an error")),
    }
}

fn kind(verdict: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for c in verdict.split(" in /").next().unwrap_or(verdict).chars() {
        if c == '"' {
            quoted = !quoted;
        }
        if (!quoted || c == '"') && !c.is_ascii_digit() {
            kind.push(c);
        }
    }
    kind
}
