//! Normalizes the values of request fields, so that equivalent values select the same variant: RFC
//! 9111, section 4.1.
//!
//! Lines with the same name are one list (RFC 9110, section 5.3), and spaces around commas are
//! insignificant. In Accept-Encoding and Accept-Language the order of elements with equal weights,
//! the case and the notation of weights are insignificant too (RFC 9110, sections 12.4.2 and 12.5).

use super::directives::elements;

/// The weight of an element that states none, in thousandths.
const WEIGHT_MAX: u16 = 1000;

/// Appends the normal form of a field's values. The name must be in lower case.
pub(crate) fn append<'a>(name: &[u8], values: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let elements = values.flat_map(elements);
    if !matches!(name, b"accept-encoding" | b"accept-language") {
        return append_joined(elements, out);
    }
    let is_encoding = name == b"accept-encoding";
    let mut weighed: Vec<(u16, Vec<u8>)> = elements
        .map(weigh)
        // Codings with weight 0 are left out, except for those that are acceptable if not
        // mentioned.
        .filter(|(weight, name)| {
            *weight > 0 || matches!(&name[..], b"*" | b"identity") || !is_encoding
        })
        .collect();
    if is_encoding {
        for (_, name) in &mut weighed {
            // The names with and without `x-` are equivalent (RFC 9110, section 8.4.1.3).
            if matches!(&name[..], b"x-gzip" | b"x-compress") {
                name.drain(..2);
            }
        }
    }
    weighed.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    weighed.dedup();
    let texts: Vec<Vec<u8>> = weighed
        .into_iter()
        .map(|(weight, mut name)| {
            if weight < WEIGHT_MAX {
                name.extend_from_slice(format!(";q={weight}").as_bytes());
            }
            name
        })
        .collect();
    append_joined(texts.iter().map(Vec::as_slice), out);
}

fn append_joined<'a>(elements: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for (number, element) in elements.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        out.extend_from_slice(element);
    }
}

/// Splits an element into its weight in thousandths and the rest in lower case. An invalid weight
/// stays a part of the rest.
fn weigh(element: &[u8]) -> (u16, Vec<u8>) {
    let lower = element.to_ascii_lowercase();
    let parts = memchr::memchr(b';', &lower).and_then(|at| lower.split_at_checked(at));
    let Some((name, parameters)) = parts else {
        return (WEIGHT_MAX, lower);
    };
    let parameter = parameters.get(1..).unwrap_or_default().trim_ascii();
    match parameter.strip_prefix(b"q=").and_then(weight) {
        Some(weight) => (weight, name.trim_ascii().to_vec()),
        None => (WEIGHT_MAX, lower),
    }
}

/// Parses a weight such as `0.5` into thousandths: RFC 9110, section 12.4.2.
fn weight(text: &[u8]) -> Option<u16> {
    let (whole, behind) = match text.split_first()? {
        (whole, []) => (whole, &[][..]),
        (whole, [b'.', behind @ ..]) => (whole, behind),
        _ => return None,
    };
    if behind.len() > 3 {
        return None;
    }
    let mut weight = u16::from(whole.checked_sub(b'0').filter(|whole| *whole <= 1)?);
    for at in 0..3 {
        let digit = behind.get(at).copied().unwrap_or(b'0');
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        weight = weight * 10 + u16::from(digit);
    }
    (weight <= WEIGHT_MAX).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(name: &str, values: &[&'static str]) -> String {
        let mut out = Vec::new();
        let values = values.iter().map(|value| value.as_bytes());
        append(name.as_bytes(), values, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Section 4.1.
    #[test]
    fn what_means_the_same_is_the_same() {
        for (name, one, other) in [
            ("foo", &["1, 2"][..], &["1", "2"][..]),
            ("foo", &["1,2"], &[" 1, 2 "]),
            ("accept-language", &["en, de"], &["de, en"]),
            ("accept-language", &["en, de"], &["eN, De"]),
            ("accept-language", &["en, de"], &[" en ,   de"]),
            (
                "accept-language",
                &["en, de;q=0.5"],
                &["de ; q=0.50,en;q=1.0"],
            ),
            ("accept-encoding", &["gzip, br"], &["br", "gzip"]),
            ("accept-encoding", &["gzip"], &["x-gzip, br;q=0"]),
            ("accept-encoding", &["GZIP;q=1"], &["gzip"]),
        ] {
            assert_eq!(
                form(name, one),
                form(name, other),
                "{name} {one:?} {other:?}"
            );
        }
        for (name, one, other) in [
            ("foo", &["1, 2"][..], &["2, 1"][..]),
            ("foo", &["a"], &["A"]),
            ("foo", &["\"1, 2\""], &["\"1,2\""]),
            ("accept-language", &["en, de;q=0.5"], &["en;q=0.5, de"]),
            ("accept-language", &["en"], &["en, de"]),
            ("accept-language", &["en, de;q=0"], &["en"]),
            ("accept-encoding", &["gzip"], &["gzip, br"]),
            ("accept-encoding", &["gzip"], &["gzip, identity;q=0"]),
            ("accept-encoding", &["gzip"], &["gzip, *;q=0"]),
            ("accept-encoding", &["gzip;q=x"], &["gzip"]),
            ("accept-encoding", &[], &["gzip"]),
        ] {
            assert_ne!(
                form(name, one),
                form(name, other),
                "{name} {one:?} {other:?}"
            );
        }
    }
}
