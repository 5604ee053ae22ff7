//! Directives of nginx, NGINX Plus and third-party modules that Tidegate does not have. Each module
//! is reported once per file, with the number of its directives.

use base::hash::Map;

use crate::diagnostic::Diagnostic;
use crate::line::Word;
use crate::position::Position;
use crate::registry::ForeignName;

/// How many names a hint shows.
const NAMES_MAX: usize = 12;

/// The foreign directives found so far, in reading order.
#[derive(Debug, Default)]
pub(crate) struct ForeignDirectives {
    met: Vec<ForeignOccurrence>,
}

#[derive(Debug)]
struct ForeignOccurrence {
    known: ForeignName,
    name: Box<str>,
    position: Position,
    /// The index of the directive's error in the list of diagnostics.
    index: usize,
}

impl ForeignDirectives {
    /// Records a directive whose error is about to be reported at `index`.
    pub(crate) fn add(&mut self, known: ForeignName, name: &Word, index: usize) {
        self.met.push(ForeignOccurrence {
            known,
            name: name.text().into(),
            position: name.position,
            index,
        });
    }

    /// For each module and file, adds a hint to the first error that lists the other directives.
    /// Returns the indices of the errors of these others, which are not shown.
    pub(crate) fn sum_up(self, found: &mut [(u32, Diagnostic)]) -> Vec<usize> {
        let mut groups: Vec<Vec<ForeignOccurrence>> = Vec::new();
        let mut by_module: Map<(&'static str, u32), usize> = Map::default();
        for met in self.met {
            let key = (met.known.module, met.position.file);
            let group = *by_module.entry(key).or_insert(groups.len());
            match groups.get_mut(group) {
                Some(group) => group.push(met),
                None => groups.push(vec![met]),
            }
        }
        let mut dropped = Vec::new();
        for group in &groups {
            let [first, more @ ..] = group.as_slice() else {
                continue;
            };
            if let Some((_, diagnostic)) = found.get_mut(first.index) {
                diagnostic.hint = Some(hint(first, more));
            }
            dropped.extend(more.iter().map(|met| met.index));
        }
        dropped
    }
}

/// For example, `it is of module http_fastcgi, as are 3 more directives of this file: fastcgi_param
/// (2 times, from line 5), fastcgi_index (line 4)`.
fn hint(first: &ForeignOccurrence, more: &[ForeignOccurrence]) -> String {
    let module = first.known.module;
    let mut text = format!("it is of module {module}");
    if more.is_empty() {
        return text;
    }
    let mut names: Vec<(&str, u32, usize)> = Vec::new();
    for met in more {
        match names.iter_mut().find(|(name, ..)| **name == *met.name) {
            Some((_, _, count)) => *count += 1,
            None => names.push((&met.name, met.position.line, 1)),
        }
    }
    let shown = names.iter().take(NAMES_MAX);
    let shown = shown.map(|(name, line, count)| match count {
        1 => format!("{name} (line {line})"),
        _ => format!("{name} ({count} times, from line {line})"),
    });
    let shown: Vec<String> = shown.collect();
    text.push_str(&match more.len() {
        1 => ", as is one more directive of this file: ".to_owned(),
        count => format!(", as are {count} more directives of this file: "),
    });
    text.push_str(&shown.join(", "));
    if names.len() > NAMES_MAX {
        text.push_str(" …");
    }
    text
}
