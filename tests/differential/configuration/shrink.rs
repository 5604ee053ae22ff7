//! Smaller configurations out of one. Every candidate costs a start of two servers, so the first
//! ones leave out what a single request does not meet: all servers but one, all locations but one,
//! directives by halves of their names wherever they stand; then runs of lines, then insides of
//! blocks and arguments. What is not referred to any more goes along with each.

use std::collections::BTreeSet;

use super::tree::Line;

/// Lines without which the file is no configuration of a server that the run can watch.
const KEPT: &[&str] = &["daemon", "pid", "events", "http", "error_log", "listen"];

/// One way to leave something out.
#[derive(Clone, Debug)]
pub(crate) enum Cut {
    /// All blocks of this name but the one of this number.
    AllBut(&'static str, usize),
    /// The block of this name and number.
    Block(&'static str, usize),
    /// Directives of these names, wherever they stand.
    Names(Vec<String>),
    /// Within the block at this path.
    Within(Vec<usize>, Inside),
}

/// What is left out of one block.
#[derive(Clone, Debug)]
pub(crate) enum Inside {
    /// The lines of these indexes.
    Lines(Vec<usize>),
    /// The braces around what stands in the line of this index.
    Braces(usize),
    /// The argument of this number of the line of this index.
    Argument(usize, usize),
    /// The name of the location of this index: it becomes `/`.
    Name(usize),
}

/// Every cut, those that leave out the most first in each kind. They are only made where they are
/// tried: each makes a whole configuration.
pub(super) fn cuts(lines: &[Line]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for name in ["server", "location"] {
        let count = count(lines, name);
        if count > 1 {
            cuts.extend((0..count).map(|kept| Cut::AllBut(name, kept)));
            // Those that stand in no other are helpers too, of which several may be needed.
            cuts.extend((0..count).map(|dropped| Cut::Block(name, dropped)));
        }
    }
    names(lines, &mut cuts);
    each(lines, &mut Vec::new(), &mut cuts);
    cuts
}

/// The lines after a cut, without what is not referred to any more; nothing where they are the
/// same.
pub(super) fn cut(lines: &[Line], cut: &Cut) -> Option<Vec<Line>> {
    let left = match cut {
        Cut::AllBut(name, kept) => without(lines, name, &mut 0, &|index| index != *kept),
        Cut::Block(name, dropped) => without(lines, name, &mut 0, &|index| index == *dropped),
        Cut::Names(names) => without_names(lines, names),
        Cut::Within(path, inside) => within(lines, path, inside),
    };
    Some(swept(left)).filter(|left| left != lines)
}

/// How many blocks of this name there are, those in one another not counted apart.
fn count(lines: &[Line], name: &str) -> usize {
    lines
        .iter()
        .map(|line| {
            if line.name == name && line.block.is_some() {
                1
            } else {
                count(line.inner(), name)
            }
        })
        .sum()
}

/// The lines without the blocks of this name whose numbers are to be left out.
fn without(
    lines: &[Line],
    name: &str,
    counter: &mut usize,
    leaves_out: &dyn Fn(usize) -> bool,
) -> Vec<Line> {
    let mut left = Vec::new();
    for line in lines {
        if line.name == name && line.block.is_some() {
            let index = *counter;
            *counter += 1;
            if !leaves_out(index) {
                left.push(line.clone());
            }
            continue;
        }
        left.push(Line {
            block: line
                .block
                .as_ref()
                .map(|inner| without(inner, name, counter, leaves_out)),
            ..line.clone()
        });
    }
    left
}

/// Directives that end with `;`, wherever they stand: halves of their names, quarters, and so on.
fn names(lines: &[Line], cuts: &mut Vec<Cut>) {
    let mut all: Vec<String> = Vec::new();
    for line in lines {
        line.visit(&mut |line| {
            let plain = line.block.is_none() && !KEPT.contains(&line.name.as_str());
            if plain && line.name.contains('_') && !all.contains(&line.name) {
                all.push(line.name.clone());
            }
        });
    }
    runs(all.len(), &mut |start, end| {
        cuts.push(Cut::Names(all[start..end].to_vec()));
    });
}

fn without_names(lines: &[Line], names: &[String]) -> Vec<Line> {
    lines
        .iter()
        .filter(|line| line.block.is_some() || !names.contains(&line.name))
        .map(|line| Line {
            block: line.block.as_ref().map(|inner| {
                if holds_rows(&line.name) {
                    inner.clone()
                } else {
                    without_names(inner, names)
                }
            }),
            ..line.clone()
        })
        .collect()
}

/// Calls with the ends of runs: all, halves, quarters, down to single ones.
fn runs(count: usize, act: &mut dyn FnMut(usize, usize)) {
    let mut length = count;
    while length > 0 {
        for start in (0..count).step_by(length) {
            act(start, (start + length).min(count));
        }
        length = if length == 1 { 0 } else { length.div_ceil(2) };
    }
}

/// Each way to leave something out of the block at this path, then out of those in it.
fn each(lines: &[Line], path: &mut Vec<usize>, cuts: &mut Vec<Cut>) {
    let loose: Vec<usize> = (0..lines.len())
        .filter(|index| !KEPT.contains(&lines[*index].name.as_str()))
        .collect();
    runs(loose.len(), &mut |start, end| {
        let dropped = Inside::Lines(loose[start..end].to_vec());
        cuts.push(Cut::Within(path.clone(), dropped));
    });
    for (index, line) in lines.iter().enumerate() {
        if let Some(inner) = &line.block {
            // What stands in an `if` or a nested location, one level further out.
            if matches!(line.name.as_str(), "if" | "limit_except" | "location") {
                cuts.push(Cut::Within(path.clone(), Inside::Braces(index)));
            }
            path.push(index);
            each(inner, path, cuts);
            path.pop();
        }
        let fixed = KEPT.contains(&line.name.as_str());
        let arguments = 0..if fixed { 0 } else { line.arguments.len() };
        cuts.extend(
            arguments.map(|argument| Cut::Within(path.clone(), Inside::Argument(index, argument))),
        );
        if line.name == "location" && line.arguments != ["/"] && !line.arguments[0].starts_with('@')
        {
            cuts.push(Cut::Within(path.clone(), Inside::Name(index)));
        }
    }
}

/// The lines with something left out of the block at this path.
fn within(lines: &[Line], path: &[usize], inside: &Inside) -> Vec<Line> {
    if let Some((index, rest)) = path.split_first() {
        let mut changed = lines.to_vec();
        if let Some(inner) = changed.get_mut(*index).and_then(|line| line.block.as_mut()) {
            *inner = within(inner, rest, inside);
        }
        return changed;
    }
    let mut left = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let mut line = line.clone();
        match inside {
            Inside::Lines(dropped) if dropped.contains(&index) => continue,
            Inside::Braces(at) if *at == index => {
                left.extend(line.block.unwrap_or_default());
                continue;
            }
            Inside::Argument(at, argument) if *at == index => {
                drop(line.arguments.remove(*argument))
            }
            Inside::Name(at) if *at == index => line.arguments = vec![String::from("/")],
            _ => {}
        }
        left.push(line);
    }
    left
}

/// Blocks of rows, whose first words are no directives.
fn holds_rows(name: &str) -> bool {
    matches!(
        name,
        "map" | "geo" | "split_clients" | "charset_map" | "types"
    )
}

/// Without definitions that are not referred to, as often as that leaves others so.
fn swept(mut lines: Vec<Line>) -> Vec<Line> {
    loop {
        let mut words = BTreeSet::new();
        for line in &lines {
            line.visit(&mut |line| gather(line, &mut words));
        }
        let before = size(&lines);
        lines = referred(lines, &words);
        if size(&lines) == before {
            return lines;
        }
    }
}

fn size(lines: &[Line]) -> usize {
    let inside: usize = lines.iter().map(|line| size(line.inner())).sum();
    lines.len() + inside
}

/// Names that a line may refer to: of variables, zones, groups, named locations, formats; and its
/// own.
fn gather(line: &Line, words: &mut BTreeSet<String>) {
    words.insert(format!(" {}", line.name));
    let first = usize::from(matches!(
        line.name.as_str(),
        "upstream" | "log_format" | "location"
    ));
    let last = match line.name.as_str() {
        "map" | "geo" | "split_clients" => line.arguments.len().saturating_sub(1),
        _ => line.arguments.len(),
    };
    for argument in line.arguments.get(first..last).unwrap_or_default() {
        let mut word = String::new();
        for letter in argument.chars() {
            if letter.is_alphanumeric() || letter == '_' {
                word.push(letter)
            } else {
                words.insert(std::mem::take(&mut word));
            }
        }
        words.insert(word);
    }
}

fn referred(lines: Vec<Line>, words: &BTreeSet<String>) -> Vec<Line> {
    lines
        .into_iter()
        .filter(|line| is_referred(line, words))
        .map(|line| Line {
            block: line.block.map(|inner| {
                if holds_rows(&line.name) {
                    inner
                } else {
                    referred(inner, words)
                }
            }),
            ..line
        })
        .collect()
}

fn is_referred(line: &Line, words: &BTreeSet<String>) -> bool {
    let named = |word: Option<&String>, trimmed: &[char]| {
        word.is_some_and(|word| words.contains(word.trim_start_matches(trimmed)))
    };
    let written = |name: &str| words.contains(&format!(" {name}"));
    match line.name.as_str() {
        "map" | "geo" | "split_clients" => named(line.arguments.last(), &['$']),
        "upstream" | "log_format" => named(line.arguments.first(), &[]),
        "location" => match line.arguments.first() {
            Some(name) if name.starts_with('@') => named(Some(name), &['@']),
            _ => true,
        },
        "charset_map" => written("charset") || written("source_charset"),
        "limit_req_zone" => written("limit_req"),
        "limit_conn_zone" => written("limit_conn"),
        "proxy_cache_path" => written("proxy_cache"),
        "fastcgi_cache_path" => written("fastcgi_cache"),
        "uwsgi_cache_path" => written("uwsgi_cache"),
        "scgi_cache_path" => written("scgi_cache"),
        _ => true,
    }
}
