//! Faults as people make them, for comparing what `-t` says.

use super::Configuration;
use super::tree::Line;
use crate::random::Random;

/// Words that are seldom what a directive wants.
const BAD: &[&str] = &[
    "maybe",
    "-1",
    "1x",
    "99999999999999999999",
    "$",
    "$nowhere",
    "${open",
    "\"\"",
    "0",
    "1:2:3",
    "a=b",
    "~(",
    "http://",
    "@missing",
    "zone=none",
    "999",
    "unix:",
    "off",
    "1.5k",
    "256.1.1.1",
    "10.0.0.0/33",
    "ON",
    "/none/none",
];

/// The text of a configuration with one fault in it.
pub(super) fn broken(configuration: &Configuration, random: &mut Random) -> String {
    let mut lines = configuration.lines.clone();
    let count = {
        let mut count = 0;
        lines
            .iter()
            .for_each(|line| line.visit(&mut |_| count += 1));
        count
    };
    if random.chance(15) {
        return torn(&configuration.text(None), random);
    }
    // A line that has to stay for the file to be about the fault alone is `daemon`.
    let chosen = 1 + random.below(count - 1);
    let mut other = None;
    if let Some(line) = nth(&mut lines, &mut random.below(count).max(1).clone()) {
        other = Some(line.clone());
    }
    let fault = random.below(9);
    let mut counter = chosen;
    if let Some(line) = nth(&mut lines, &mut counter) {
        match fault {
            0 if !line.arguments.is_empty() => {
                let index = random.below(line.arguments.len());
                line.arguments.remove(index);
            }
            1 => line.arguments.push(String::from(random.pick(BAD))),
            2..=4 if !line.arguments.is_empty() => {
                let index = random.below(line.arguments.len());
                line.arguments[index] = String::from(random.pick(BAD));
            }
            5 => line.name = format!("{}{}", line.name, random.pick(&["s", "x", "_off"])),
            6 => {
                line.block = match line.block.take() {
                    Some(_) => None,
                    None => Some(Vec::new()),
                }
            }
            _ => {}
        }
    }
    match fault {
        7 => {
            let mut counter = chosen;
            double(&mut lines, &mut counter);
        }
        8 => {
            let mut counter = chosen;
            if let (Some(place), Some(other)) = (nth(&mut lines, &mut counter), other)
                && let Some(block) = &mut place.block
            {
                let index = random.below(block.len() + 1);
                block.insert(index, other);
            }
        }
        _ => {}
    }
    Configuration {
        lines,
        ..configuration.clone()
    }
    .text(None)
}

/// The text with a character of its form lost, doubled or put somewhere.
fn torn(text: &str, random: &mut Random) -> String {
    let places: Vec<usize> = text
        .char_indices()
        .filter(|(_, letter)| ";{}\"'".contains(*letter))
        .map(|(index, _)| index)
        .collect();
    let place = places[random.below(places.len())];
    let (before, after) = text.split_at(place);
    let letter = &after[..1];
    match random.below(5) {
        0 | 1 => format!("{before}{}", &after[1..]),
        2 => format!("{before}{letter}{after}"),
        3 => format!(
            "{before}{}{}",
            random.pick(&["\"", "'", "{", "}", ";", "\\", "#", "$"]),
            after
        ),
        _ => String::from(before),
    }
}

/// The line of this number, counted as `visit` does.
fn nth<'a>(lines: &'a mut [Line], counter: &mut usize) -> Option<&'a mut Line> {
    for line in lines {
        if *counter == 0 {
            return Some(line);
        }
        *counter -= 1;
        if let Some(inner) = &mut line.block
            && let Some(found) = nth(inner, counter)
        {
            return Some(found);
        }
    }
    None
}

/// Writes the line of this number twice.
fn double(lines: &mut Vec<Line>, counter: &mut usize) -> bool {
    for index in 0..lines.len() {
        if *counter == 0 {
            let line = lines[index].clone();
            lines.insert(index, line);
            return true;
        }
        *counter -= 1;
        if let Some(inner) = &mut lines[index].block
            && double(inner, counter)
        {
            return true;
        }
    }
    false
}
