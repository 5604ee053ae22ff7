//! Smaller configurations out of one. Every candidate costs a start of two servers, so the first ones leave
//! out what a single request does not meet: all servers but one, all locations but one, directives by
//! halves of their names wherever they stand; then runs of lines, then insides of blocks and arguments.
//! What is not referred to any more goes along with each.

use std::collections::BTreeSet;

use super::tree::Line;

/// Lines without which the file is no configuration of a server that the run can watch.
const KEPT: &[&str] = &["daemon", "pid", "events", "http", "error_log", "listen"];

/// Candidates, those with the most left out first in each kind of cut.
pub(super) fn smaller(lines: &[Line]) -> Vec<Vec<Line>> {
    let mut found = Vec::new();
    let mut take = |candidate: Vec<Line>| {
        let candidate = swept(candidate);
        if candidate != lines {
            found.push(candidate);
        }
    };
    blocks(lines, &mut take);
    names(lines, &mut take);
    each(lines, &mut take);
    found
}

/// Servers and locations: one kept alone, then each left out.
fn blocks(lines: &[Line], act: &mut dyn FnMut(Vec<Line>)) {
    for name in ["server", "location"] {
        let count = count(lines, name);
        for kept in 0..if count > 1 { count } else { 0 } {
            act(without(lines, name, &mut 0, &|index| index != kept));
        }
        // Those that stand in no other are helpers too, of which several may be needed.
        for dropped in 0..if count > 1 { count } else { 0 } {
            act(without(lines, name, &mut 0, &|index| index == dropped));
        }
    }
}

/// How many blocks of this name there are, those in one another not counted apart.
fn count(lines: &[Line], name: &str) -> usize {
    lines
        .iter()
        .map(|line| match line.name == name && line.block.is_some() {
            true => 1,
            false => count(line.inner(), name),
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
fn names(lines: &[Line], act: &mut dyn FnMut(Vec<Line>)) {
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
        act(without_names(lines, &all[start..end]));
    });
}

fn without_names(lines: &[Line], names: &[String]) -> Vec<Line> {
    lines
        .iter()
        .filter(|line| line.block.is_some() || !names.contains(&line.name))
        .map(|line| Line {
            block: line
                .block
                .as_ref()
                .map(|inner| match holds_rows(&line.name) {
                    true => inner.clone(),
                    false => without_names(inner, names),
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

/// Calls with each way to leave something out of one block.
fn each(lines: &[Line], act: &mut dyn FnMut(Vec<Line>)) {
    let loose: Vec<usize> = (0..lines.len())
        .filter(|index| !KEPT.contains(&lines[*index].name.as_str()))
        .collect();
    runs(loose.len(), &mut |start, end| {
        let dropped = &loose[start..end];
        let left = lines
            .iter()
            .enumerate()
            .filter(|(index, _)| !dropped.contains(index));
        act(left.map(|(_, line)| line.clone()).collect());
    });
    for (index, line) in lines.iter().enumerate() {
        let mut with = |instead: Vec<Line>| {
            act([&lines[..index], &instead, &lines[index + 1..]].concat());
        };
        if let Some(inner) = &line.block {
            // What stands in an `if` or a nested location, one level further out.
            if matches!(line.name.as_str(), "if" | "limit_except" | "location") {
                with(inner.clone());
            }
            each(inner, &mut |inner| {
                with(vec![Line {
                    block: Some(inner),
                    ..line.clone()
                }]);
            });
        }
        let fixed = KEPT.contains(&line.name.as_str());
        for argument in 0..if fixed { 0 } else { line.arguments.len() } {
            let mut less = line.clone();
            less.arguments.remove(argument);
            with(vec![less]);
        }
        if line.name == "location" && line.arguments != ["/"] && !line.arguments[0].starts_with('@')
        {
            let mut wider = line.clone();
            wider.arguments = vec![String::from("/")];
            with(vec![wider]);
        }
    }
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

/// Names that a line may refer to: of variables, zones, groups, named locations, formats; and its own.
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
            match letter.is_alphanumeric() || letter == '_' {
                true => word.push(letter),
                false => {
                    words.insert(std::mem::take(&mut word));
                }
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
            block: line.block.map(|inner| match holds_rows(&line.name) {
                true => inner,
                false => referred(inner, words),
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
        _ => true,
    }
}
