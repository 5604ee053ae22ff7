//! Selects and orders the diagnostics that are shown.
//!
//! An error that is only a consequence of another error is omitted, because it would point at a
//! correct line. Errors come first, then warnings; notices are summarized at the end.

use std::collections::HashSet;

use crate::diagnostic::{Diagnostic, Level};
use crate::load::Loaded;
use crate::position::Position;

/// Maximum number of positions that the hint of [`also`] lists.
const PLACES_MAX: usize = 5;

/// Orders the diagnostics of reading a configuration (those of `loaded`, which are taken out of it)
/// and of compiling it.
#[must_use]
pub fn arrange(loaded: &mut Loaded, compiled: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let read = loaded.take_diagnostics();
    let (early, mut compiled): (Vec<_>, Vec<_>) =
        compiled.into_iter().partition(|found| found.while_reading);
    // Compilation finds errors feature by feature; they are shown in file order.
    compiled.sort_by_key(|found| {
        let place = found.position.filter(|position| position.file != 0);
        (
            place.is_none(),
            place.map(|place| (place.file, place.offset)),
        )
    });
    // In nginx's order: the diagnostics of reading, and those of compiling that nginx would find
    // while reading. The `bool` says whether the diagnostic is from compiling; the `u32` is the
    // sequence number of its line.
    let mut while_reading: Vec<(Diagnostic, bool, u32)> = read
        .into_iter()
        .map(|(found, order)| (found, false, order))
        .collect();
    for found in early {
        let order = found.position.and_then(|at| loaded.tree.order_of(at));
        let follows = |(other, _, other_order): &(Diagnostic, bool, u32)| {
            let is_behind = is_behind(other, &found);
            order.map_or(is_behind, |order| {
                *other_order > order || (*other_order == order && is_behind)
            })
        };
        let at = while_reading.iter().position(follows);
        let at = at.unwrap_or(while_reading.len());
        while_reading.insert(at, (found, true, order.unwrap_or(u32::MAX)));
    }
    let with_origin = while_reading
        .into_iter()
        .map(|(found, is_compiled, _)| (found, is_compiled));
    let mut all: Vec<(Diagnostic, bool)> = with_origin.collect();
    all.extend(compiled.into_iter().map(|found| (found, true)));
    let is_cause = |found: &&Diagnostic| found.level == Level::Emerg && found.missing.is_none();
    let causes: Vec<Position> = all
        .iter()
        .map(|(found, _)| found)
        .filter(is_cause)
        .filter_map(|found| found.position)
        .collect();
    let suspect_arguments = loaded.tree.words_around(&causes);
    // A directive that lacks an argument may lack the name that it should define.
    let incomplete = |found: &&Diagnostic| found.message.starts_with("invalid number of arguments");
    let incomplete: Vec<String> = all
        .iter()
        .map(|(found, _)| found)
        .filter(incomplete)
        .map(|found| found.message.clone())
        .collect();
    let mut texts: HashSet<String> = HashSet::new();
    let mut places: HashSet<(u32, u32)> = HashSet::new();
    let mut warned: HashSet<(u32, u32, String)> = HashSet::new();
    let mut kept: Vec<Diagnostic> = Vec::new();
    let mut is_before_read_error = true;
    for (found, is_compiled) in all {
        let is_error = found.level == Level::Emerg;
        // If braces do not match, an error of compiling is certain only if nginx would find it
        // while reading, before the first error of reading.
        let is_guess = is_compiled && !(found.while_reading && is_before_read_error);
        if is_error && is_guess && loaded.has_wrong_braces() {
            continue;
        }
        is_before_read_error &= !is_error || is_compiled;
        let follows = found.missing.as_ref().is_some_and(|missing| {
            let user = found
                .position
                .and_then(|place| loaded.tree.directive_at(place));
            // A broken line with the directive that refers to the name does not define the name: it
            // is one more reference.
            let is_broken = suspect_arguments.iter().any(|(directive, word)| {
                let is_user = user.is_some_and(|user| user.bytes == directive.bytes);
                !is_user && mentions(&word.bytes, &missing.name)
            });
            let mut definers = missing.definers.iter();
            let lacks_name = definers.any(|name| {
                let mut messages = incomplete.iter();
                messages.any(|message| mentions(message.as_bytes(), name))
            });
            is_broken || lacks_name || loaded.may_have_defined(&missing.name)
        });
        if follows {
            continue;
        }
        // An invalid value is reported when the tree is checked, and again when it is compiled.
        let is_again = is_compiled && is_error && texts.contains(&found.to_string());
        texts.insert(found.to_string());
        let place = found.position.filter(|position| position.file != 0);
        let place = place.map(|position| (position.file, position.offset));
        let is_known_place =
            found.level == Level::Emerg && place.is_some_and(|place| !places.insert(place));
        // A file that several others include produces the same warning each time.
        let is_included_again = found.level == Level::Warn
            && place.is_some_and(|(file, at)| !warned.insert((file, at, found.message.clone())));
        if !is_again && !is_known_place && !is_included_again {
            kept.push(found);
        }
    }
    // nginx itself stops at its first error; warnings and notices follow all errors.
    kept.sort_by_key(|found| found.level);
    let notices = kept.partition_point(|found| found.level < Level::Notice);
    let notices = kept.split_off(notices);
    let mut kept = deduplicate(kept);
    let has_errors = kept.iter().any(|found| found.level == Level::Emerg);
    if has_errors {
        kept.extend(one_line(&notices))
    } else {
        kept.extend(by_text(notices))
    }
    kept
}

/// Whether `found` is about a later place than `other` in the same file.
fn is_behind(found: &Diagnostic, other: &Diagnostic) -> bool {
    let place = |found: &Diagnostic| found.position.map(|at| (at.file, at.offset));
    match (place(found), place(other)) {
        (Some((file, at)), Some((other_file, other_at))) => file == other_file && at > other_at,
        _ => false,
    }
}

/// Of the diagnostics with [`Diagnostic::once`] and the same message, keeps the first; its hint
/// names the places of the others.
fn deduplicate(found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let (mut kept, mut once) = (Vec::new(), Vec::new());
    for diagnostic in found {
        let same = |first: &Diagnostic| first.once && first.message == diagnostic.message;
        if !diagnostic.once || !kept.iter().any(same) {
            kept.push(diagnostic);
        } else {
            once.push(diagnostic);
        }
    }
    for first in kept.iter_mut().filter(|found| found.once) {
        let same = once.iter().filter(|other| other.message == first.message);
        let mut places: Vec<Position> = same.filter_map(|other| other.position).collect();
        let line = |place: &Position| (place.file, place.line);
        let own = first.position.as_ref().map(line);
        places.retain(|place| Some(line(place)) != own);
        places.dedup_by_key(|place| line(place));
        first.hint = first.hint.take().or(also(&places));
    }
    kept
}

/// Merges equal notices into one, with the other places in its hint.
fn by_text(notices: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut summed: Vec<(Diagnostic, Vec<Position>)> = Vec::new();
    for notice in notices {
        match summed
            .iter_mut()
            .find(|(first, _)| first.message == notice.message)
        {
            Some((_, more)) => more.extend(notice.position),
            None => summed.push((notice, Vec::new())),
        }
    }
    let sum = |(notice, more): (Diagnostic, Vec<Position>)| match also(&more) {
        Some(hint) if notice.hint.is_none() => notice.with_hint(hint),
        _ => notice,
    };
    summed.into_iter().map(sum).collect()
}

/// `also in FILE:LINE and in FILE:LINE`; `None` without places.
#[must_use]
pub fn also(places: &[Position]) -> Option<String> {
    let shown = places.iter().take(PLACES_MAX).map(Position::to_string);
    let mut shown: Vec<String> = shown.collect();
    match places.len().saturating_sub(PLACES_MAX) {
        0 => {}
        1 => shown.push("one more place".to_owned()),
        more => shown.push(format!("{more} more places")),
    }
    let last = shown.pop()?;
    Some(match shown.as_slice() {
        [] => format!("also in {last}"),
        before => format!("also in {} and in {last}", before.join(", in ")),
    })
}

/// Replaces all notices by one: if there are errors, the number of notices is enough.
fn one_line(notices: &[Diagnostic]) -> Option<Diagnostic> {
    let text = match notices {
        [] => return None,
        [one] => return Some(one.clone()),
        more => format!("{} notices, shown once the errors are mended", more.len()),
    };
    Some(Diagnostic::new(Level::Notice, text, None))
}

/// Whether a text contains a name as a separate word.
pub(crate) fn mentions(text: &[u8], name: &str) -> bool {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let name = name.as_bytes();
    memchr::memmem::find_iter(text, name).any(|at| {
        let before = at.checked_sub(1).and_then(|at| text.get(at));
        let after = text.get(at + name.len());
        !name.is_empty()
            && !before.is_some_and(|b| belongs(*b))
            && !after.is_some_and(|b| belongs(*b))
    })
}
