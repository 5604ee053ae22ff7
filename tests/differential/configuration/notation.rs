//! The manual's notation of arguments, drawn from: `number size`, `on | off`,
//! `[zone=name:size] ...`.

use crate::random::Random;

/// A part of a form.
#[derive(Clone, Debug)]
enum Part {
    /// A word that stands for a value or for itself.
    Word(String),
    /// One of several words.
    Either(Vec<Part>),
    /// What stands in brackets.
    Optional(Vec<Part>),
    /// Once or more often.
    Repeated(Box<Part>),
}

/// Draws arguments of a form; `value` gives the value of a word.
pub(super) fn draw(
    form: &str,
    random: &mut Random,
    value: &mut impl FnMut(&str, &mut Random) -> String,
) -> Vec<String> {
    let tokens = tokens(form);
    let mut rest = tokens.as_slice();
    let parts = sequence(&mut rest);
    let mut drawn = Vec::new();
    for part in &parts {
        draw_part(part, random, value, &mut drawn);
    }
    drawn
}

fn draw_part(
    part: &Part,
    random: &mut Random,
    value: &mut impl FnMut(&str, &mut Random) -> String,
    drawn: &mut Vec<String>,
) {
    match part {
        Part::Word(word) => drawn.push(value(word, random)),
        Part::Either(parts) => {
            let chosen = random.below(parts.len());
            draw_part(&parts[chosen], random, value, drawn);
        }
        Part::Optional(parts) => {
            if random.chance(50) {
                for part in parts {
                    draw_part(part, random, value, drawn);
                }
            }
        }
        Part::Repeated(part) => {
            for _ in 0..=random.below(3) {
                let mut more = Vec::new();
                draw_part(part, random, value, &mut more);
                if !more.iter().any(|one| drawn.contains(one)) {
                    drawn.append(&mut more);
                }
            }
        }
    }
}

/// The words, brackets, bars and dots of a form. A bracket inside of a word (`gzip[=level]`) stays
/// in it.
fn tokens(form: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    for chunk in form.split_whitespace() {
        let mut chunk = chunk;
        while let Some(rest) = chunk.strip_prefix('[') {
            tokens.push(String::from("["));
            chunk = rest;
        }
        let mut closing = 0;
        while chunk.ends_with(']') && chunk.matches(']').count() > chunk.matches('[').count() {
            closing += 1;
            chunk = &chunk[..chunk.len() - 1];
        }
        match chunk {
            "" => {}
            "..." | "…" => tokens.push(String::from("...")),
            _ => tokens.push(String::from(chunk)),
        }
        tokens.extend(std::iter::repeat_n(String::from("]"), closing));
    }
    tokens
}

fn sequence(rest: &mut &[String]) -> Vec<Part> {
    let mut parts = Vec::new();
    while let Some(part) = part(rest) {
        let mut choice = vec![part];
        while rest.first().is_some_and(|token| token == "|") {
            *rest = &rest[1..];
            choice.extend(self::part(rest));
        }
        let mut whole = match choice.len() {
            1 => choice.remove(0),
            _ => Part::Either(choice),
        };
        if rest.first().is_some_and(|token| token == "...") {
            *rest = &rest[1..];
            whole = Part::Repeated(Box::new(whole));
        }
        parts.push(whole);
    }
    parts
}

fn part(rest: &mut &[String]) -> Option<Part> {
    let (first, after) = rest.split_first()?;
    match first.as_str() {
        "]" => None,
        "[" => {
            *rest = after;
            let inner = sequence(rest);
            *rest = rest.get(1..).unwrap_or_default();
            Some(Part::Optional(inner))
        }
        _ => {
            *rest = after;
            Some(Part::Word(first.clone()))
        }
    }
}
