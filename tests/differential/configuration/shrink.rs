//! Smaller configurations out of one: whole blocks left out first, then lines, then arguments.

use super::tree::Line;

/// Candidates, those with the most left out first.
pub(super) fn smaller(lines: &[Line]) -> Vec<Vec<Line>> {
    let mut found: Vec<(usize, Vec<Line>)> = Vec::new();
    let whole = weight(lines);
    each(lines, &mut |candidate| {
        let weight = weight(&candidate);
        if weight < whole {
            found.push((weight, candidate));
        }
    });
    found.sort_by_key(|(weight, _)| *weight);
    found.into_iter().map(|(_, lines)| lines).collect()
}

/// How much stands in the lines: each line, block and argument counts.
fn weight(lines: &[Line]) -> usize {
    lines
        .iter()
        .map(|line| {
            let letters: usize = line
                .arguments
                .iter()
                .map(|one| usize::from(one.contains('$')) + 2)
                .sum();
            4 + letters + line.block.as_ref().map_or(0, |inner| 2 + weight(inner))
        })
        .sum()
}

/// Calls with each way to leave something out.
fn each(lines: &[Line], act: &mut dyn FnMut(Vec<Line>)) {
    // Runs of lines: halves, quarters, and so on down to single ones.
    let mut length = lines.len().div_ceil(2);
    while length > 0 {
        for start in (0..lines.len()).step_by(length) {
            let end = (start + length).min(lines.len());
            act([&lines[..start], &lines[end..]].concat());
        }
        length = if length == 1 { 0 } else { length.div_ceil(2) };
    }
    for (index, line) in lines.iter().enumerate() {
        let mut with = |lines_instead: Vec<Line>| {
            act([&lines[..index], &lines_instead, &lines[index + 1..]].concat());
        };
        if let Some(inner) = &line.block {
            if !inner.is_empty() {
                with(vec![Line {
                    block: Some(Vec::new()),
                    ..line.clone()
                }]);
            }
            // What stands in an `if` or a nested location, one level further out.
            if matches!(line.name.as_str(), "if" | "limit_except" | "location") {
                with(inner.clone());
            }
            each(inner, &mut |inner| {
                with(vec![Line {
                    block: Some(inner),
                    ..line.clone()
                }])
            });
        }
        for argument in 0..line.arguments.len() {
            let mut less = line.clone();
            less.arguments.remove(argument);
            with(vec![less]);
        }
        if line.name == "location"
            && line.arguments != ["/"]
            && !line.arguments.iter().any(|one| one.starts_with('@'))
        {
            with(vec![Line {
                arguments: vec![String::from("/")],
                ..line.clone()
            }]);
        }
    }
}
