//! Compares the cache rules with simple implementations, for fuzz targets. Every function panics if
//! the two differ.
//!
//! The simple implementations are slow and allocate: they go through texts letter by letter, as
//! nginx's manual and RFC 9111 describe them, and share no code with the rules.

use proto::header::{KnownField, NameSet};

use super::freshness::Freshness;
use super::rules::directives::{RequestDirectives, ResponseDirectives};
use super::rules::{plain, selecting};
use super::vary;

const NOW: i64 = 1_000_000_000; // Sun, 09 Sep 2001 01:46:40 GMT
/// The largest number of seconds by RFC 9111, section 1.2.2.
const SECONDS_MAX: u64 = 1 << 31;

/// Compares freshness by RFC 9111 for heads that are drawn from these bytes.
///
/// # Panics
/// If the rules and the simple implementation differ.
pub fn freshness(bytes: &[u8]) {
    plain::compare(bytes);
}

/// Compares `Cache-Control` of these lines: by RFC 9111 in responses and in requests, and by
/// nginx's rules.
///
/// # Panics
/// If the rules and the simple implementation differ.
pub fn cache_control(lines: &[&[u8]]) {
    let (mut response, mut request) = (ResponseDirectives::default(), RequestDirectives::default());
    for line in lines {
        response.take(line);
        request.take(line);
    }
    let all: Vec<_> = lines.iter().flat_map(|line| directives(line)).collect();
    let has = |name: &str| all.iter().any(|(found, _)| found == name.as_bytes());
    let first = |name: &str| all.iter().find(|(found, _)| found == name.as_bytes());
    let late =
        |name: &str| first(name).map(|(_, value)| value.as_deref().and_then(seconds).unwrap_or(0));
    assert_eq!(response.no_store, has("no-store"));
    assert_eq!(response.public, has("public"));
    assert_eq!(response.must_revalidate, has("must-revalidate"));
    assert_eq!(response.proxy_revalidate, has("proxy-revalidate"));
    assert_eq!(response.must_understand, has("must-understand"));
    assert_eq!(response.max_age, late("max-age"));
    assert_eq!(response.s_maxage, late("s-maxage"));
    assert_eq!(
        response.stale_while_revalidate,
        late("stale-while-revalidate")
    );
    assert_eq!(response.stale_if_error, late("stale-if-error"));
    let names_none = |value: &Option<Vec<u8>>| {
        let value = value.as_deref().unwrap_or_default();
        value.iter().all(|byte| b", \t".contains(byte))
    };
    let whole = |name: &str| {
        all.iter()
            .any(|(found, value)| found == name.as_bytes() && names_none(value))
    };
    assert_eq!(response.no_cache, whole("no-cache"));
    assert_eq!(response.private, whole("private"));

    let wanted = |name: &str| {
        let values = all.iter().filter(|(found, _)| found == name.as_bytes());
        values
            .filter_map(|(_, value)| seconds(value.as_deref()?))
            .next()
    };
    assert_eq!(request.no_cache, has("no-cache"));
    assert_eq!(request.no_store, has("no-store"));
    assert_eq!(request.only_if_cached, has("only-if-cached"));
    assert_eq!(request.max_age, wanted("max-age"));
    assert_eq!(request.min_fresh, wanted("min-fresh"));

    of_nginx(lines);
}

/// The directives of a line: names in lower case, values without quotes.
fn directives(line: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut elements = vec![Vec::new()];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in line {
        let is_end = *byte == b',' && !is_quoted && !is_escaped;
        if is_end {
            elements.push(Vec::new());
            continue;
        }
        if is_escaped {
            is_escaped = false;
        } else if is_quoted && *byte == b'\\' {
            is_escaped = true;
        } else if *byte == b'"' {
            is_quoted = !is_quoted;
        }
        if let Some(element) = elements.last_mut() {
            element.push(*byte);
        }
    }
    let directive = |element: Vec<u8>| {
        let element = element.trim_ascii();
        let mut parts = element.splitn(2, |byte| *byte == b'=');
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let value = parts.next().map(|value| match value {
            [b'"', inner @ .., b'"'] => inner.to_vec(),
            other => other.to_vec(),
        });
        (!element.is_empty()).then_some((name, value))
    };
    elements.into_iter().filter_map(directive).collect()
}

/// A number of digits only.
fn seconds(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let is_number = !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX).min(SECONDS_MAX))
}

/// Compares with nginx's rules: nginx searches each line for directives as texts; of several
/// lifetimes the last counts, and a prohibition ends the evaluation of its line.
fn of_nginx(lines: &[&[u8]]) {
    let fields = lines.iter().map(|line| (KnownField::CacheControl, *line));
    let read = Freshness::of(fields, &NameSet::default(), NOW);
    let (mut may_store, mut until, mut updating, mut error) = (true, None, 0, 0);
    for line in lines {
        // Names are ASCII, and lower case never turns another letter into an ASCII one.
        let text: String = line
            .iter()
            .map(|byte| char::from(byte.to_ascii_lowercase()))
            .collect();
        if ["no-cache", "no-store", "private"]
            .iter()
            .any(|name| text.contains(name))
        {
            may_store = false;
            continue;
        }
        let behind = |name: &str| text.split_once(name).map(|(_, behind)| behind.to_owned());
        let number = |text: &str| {
            let text: String = text
                .chars()
                .take_while(|letter| !", ;".contains(*letter))
                .collect();
            let is_number = text.chars().all(|letter| letter.is_ascii_digit());
            let value = if text.is_empty() { Ok(0) } else { text.parse() };
            is_number.then(|| value.unwrap_or(i64::MAX))
        };
        if let Some(text) = behind("s-maxage=").or_else(|| behind("max-age=")) {
            match number(&text) {
                None | Some(0) => {
                    may_store = false;
                    continue;
                }
                Some(seconds) => until = Some(NOW.saturating_add(seconds)),
            }
        }
        if let Some(text) = behind("stale-while-revalidate=") {
            let Some(seconds) = number(&text) else {
                may_store = false;
                continue;
            };
            updating = u32::try_from(seconds).unwrap_or(u32::MAX);
            error = updating;
        }
        if let Some(text) = behind("stale-if-error=") {
            match number(&text) {
                None => may_store = false,
                Some(seconds) => error = u32::try_from(seconds).unwrap_or(u32::MAX),
            }
        }
    }
    assert_eq!(read.may_store(), may_store);
    assert_eq!(read.valid_until, until);
    assert_eq!((read.updating, read.error), (updating, error));
}

/// Checks the values of a field that a `Vary` names: their division into lines and the space
/// between elements must not matter, nor by RFC 9111 the order and the case of encodings and
/// languages.
///
/// # Panics
/// If one of these matters.
pub fn values_of_vary(name: &[u8], lines: &[&[u8]]) {
    let form = |lines: &[&[u8]]| {
        let mut out = Vec::new();
        selecting::append(name, lines.iter().copied(), &mut out);
        out
    };
    let expected = form(lines);
    // An unclosed quote would continue its string over the line's end.
    let is_closed = |line: &&[u8]| !line.contains(&b'"') && !line.contains(&b'\\');
    if lines.iter().all(is_closed) {
        assert_eq!(form(&[&lines.join(&b","[..])]), expected);
        assert_eq!(form(&[&lines.join(&b" ,\t, "[..])]), expected);
        let single: Vec<&[u8]> = lines
            .iter()
            .flat_map(|line| line.split(|byte| *byte == b','))
            .collect();
        assert_eq!(form(&single), expected);
        if matches!(name, b"accept-encoding" | b"accept-language") {
            let reversed: Vec<&[u8]> = single.iter().rev().copied().collect();
            assert_eq!(form(&reversed), expected);
            let upper: Vec<Vec<u8>> = single.iter().map(|one| one.to_ascii_uppercase()).collect();
            let upper: Vec<&[u8]> = upper.iter().map(Vec::as_slice).collect();
            assert_eq!(form(&upper), expected);
        }
    }
    vary::check_values(lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [&str; 34] = [
        "max-age=",
        "s-maxage=",
        "no-cache",
        "no-store",
        "private",
        "public",
        "must-revalidate",
        "proxy-revalidate",
        "must-understand",
        "stale-while-revalidate=",
        "stale-if-error=",
        "min-fresh=",
        "only-if-cached",
        "MAX-AGE=",
        "=",
        "\"",
        "\\",
        ",",
        ", ",
        ";",
        " ",
        "\t",
        "0",
        "5",
        "99999999999999999999",
        "x",
        "gzip",
        "br",
        "en-GB",
        "de",
        ";q=0.5",
        ";q=1.0",
        "*",
        "\n",
    ];

    /// Texts of these pieces in random order, similar to those of the fuzz targets.
    #[test]
    fn nothing_is_read_otherwise() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |end: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % end
        };
        for _ in 0..100_000 {
            let count = next(12);
            let text: String = (0..count).map(|_| PIECES[next(PIECES.len())]).collect();
            let lines: Vec<&[u8]> = text.split('\n').map(str::as_bytes).collect();
            cache_control(&lines);
            for name in ["accept-encoding", "accept-language", "accept-charset", "x"] {
                values_of_vary(name.as_bytes(), &lines);
            }
            let drawn: Vec<u8> = (0..40).map(|_| next(256).to_le_bytes()[0]).collect();
            freshness(&drawn);
        }
    }
}
