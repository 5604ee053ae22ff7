//! The balancing methods of an `upstream` block.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#hash> and the following
//! directives.

use ::upstream::{Bound, Method, Timed, Until};
use conf::{Arity, Contexts, Fault, Line, ScopeRef, Setter, Setting, Template, Word, parse};
use framework::compile::Compiler;
use variables::{Compiling as _, Text};

use super::protocol::{BLOCKS, Upstreams};

pub(super) static HASH: Setting<(Template, Method)> =
    Setting::new("hash", &["key [consistent [bounded=number]]"], hash)
        .contexts(BLOCKS)
        .arity(Arity::between(1, 3))
        .manual("Places requests by a key, which may hold variables. With `consistent` few keys move where a server comes or goes (ketama). With `bounded`, which nginx does not have, a server that has so many times its fair share of the group's requests under way (at least 1; 1.25 is usual) leaves others to the next on the ring, so that a popular key does not overload it; sessions of `sticky` stay with their server all the same.");

pub(super) static IP_HASH: Setting<()> = Setting::new("ip_hash", &[""], parse::nothing)
    .contexts(Contexts::UPSTREAM)
    .arity(Arity::exactly(0))
    .manual("Places requests by the client's address; of IPv4 its first three bytes.");

pub(super) static P2C: Setting<()> = Setting::new("p2c", &[""], parse::nothing)
    .contexts(BLOCKS)
    .arity(Arity::exactly(0))
    .manual("Draws two servers by their weights and passes the request to the one from which an answer is to be expected first (the power of two choices): by how long it has needed until the head of its answers of late, times the requests that it would have under way, for its weight. A slow answer counts at once and is forgotten by and by; a failed try counts as an answer after a second; a server that has not answered yet is taken for one like the others. nginx does not have it.");

pub(super) static LEAST_CONN: Setting<()> = Setting::new("least_conn", &[""], parse::nothing)
    .contexts(BLOCKS)
    .arity(Arity::exactly(0))
    .manual("Passes a request to the server that has the fewest under way for its weight.");

/// `least_time` of groups that respond to requests.
pub static LEAST_TIME: Setting<Timed> =
    Setting::new("least_time", &["header | last_byte [inflight]"], least_time)
        .contexts(Contexts::UPSTREAM)
        .arity(Arity::between(1, 2))
        .manual("Passes a request to the server that would be done first, by its requests under way and by how long it has needed until the head, or the last byte, of its answers. With `inflight` requests that it has not answered count as well.");

pub(super) static RANDOM: Setting<bool> = Setting::new("random", &["[two [least_conn]]"], random)
    .contexts(BLOCKS)
    .arity(Arity::between(0, 2))
    .manual("Passes a request to any server by its weight. With `two` it draws two and takes the one with the fewest requests under way for its weight.");

fn hash(setter: &Setter<'_>) -> Result<(Template, Method), Fault> {
    let key = Template::parse(setter.word()?)?;
    let method = match setter.args().get(1..).unwrap_or_default() {
        [] => Method::Hash,
        [consistent, bound @ ..] if &*consistent.bytes == b"consistent" => match bound.first() {
            None => Method::ConsistentHash,
            Some(word) => Method::BoundedHash(bound_of(word)?),
        },
        [word, ..] if word.bytes.starts_with(b"bounded=") => {
            let text = format!(
                "parameter \"{}\" of \"hash\" requires \"consistent\" before it",
                word.text()
            );
            return Err(Fault::at(word, text));
        }
        [word, ..] => return Err(Fault::invalid_parameter(word)),
    };
    Ok((key, method))
}

fn bound_of(word: &Word) -> Result<Bound, Fault> {
    let value = word.bytes.strip_prefix(b"bounded=");
    let value = value.ok_or_else(|| Fault::invalid_parameter(word))?;
    let bound = thousandths(value).filter(|bound| *bound >= 1000);
    bound.map(Bound).ok_or_else(|| {
        let text = format!(
            "invalid value \"{}\" in \"hash\": it must be a number of at least 1, such as 1.25",
            word.text()
        );
        Fault::at(word, text)
    })
}

/// Parses a decimal number with up to three decimals, multiplied by 1000.
fn thousandths(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let fraction: u32 = format!("{fraction:0<3}").parse().ok()?;
    whole.checked_mul(1000)?.checked_add(fraction)
}

fn least_time(setter: &Setter<'_>) -> Result<Timed, Fault> {
    timed(
        setter,
        &[("header", Until::Head), ("last_byte", Until::LastByte)],
    )
}

/// Parses a line of `least_time`. Its first word must be one of `words`, which are the times that
/// the protocol can measure.
///
/// # Errors
/// An invalid word.
pub fn timed(setter: &Setter<'_>, words: &[(&str, Until)]) -> Result<Timed, Fault> {
    let in_flight = match setter.args().get(1) {
        Some(word) if &*word.bytes != b"inflight" => return Err(Fault::invalid_parameter(word)),
        word => word.is_some(),
    };
    let until = parse::enumeration(setter, words)?;
    Ok(Timed { until, in_flight })
}

fn random(setter: &Setter<'_>) -> Result<bool, Fault> {
    let expected: [&[u8]; 2] = [b"two", b"least_conn"];
    let odd = setter
        .args()
        .iter()
        .zip(expected)
        .find(|(word, expected)| *word.bytes != **expected);
    match odd {
        Some((word, _)) => Err(Fault::invalid_parameter(word)),
        None => Ok(!setter.args().is_empty()),
    }
}

/// Whether a balancing method supports these parameters of `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supported {
    pub(super) backup: bool,
    pub(super) slow_start: bool,
}

impl Default for Supported {
    /// All parameters, as supported by weighted round robin.
    fn default() -> Supported {
        Supported {
            backup: true,
            slow_start: true,
        }
    }
}

/// The balancing method of an `upstream` block.
pub(super) struct ChosenMethod<'a, U: Upstreams> {
    pub(super) method: Method,
    pub(super) key: Option<Text<U::Context>>,
    /// Whether `sticky` applies. As in nginx, a method in a line after `sticky` disables it.
    pub(super) keeps_sessions: bool,
    /// Every line with a method, in the order of the configuration.
    lines: Vec<&'a Line>,
}

impl<U: Upstreams> ChosenMethod<'_, U> {
    /// The parameters that a `server` line of the block may have. As in nginx, the last method
    /// before the line decides.
    pub(super) fn supported_at(&self, line: &Line) -> Supported {
        let before = |method: &&&Line| method.sequence() < line.sequence();
        Self::supported_by(self.lines.iter().rfind(before))
    }

    /// The parameters that the `server` lines of a `state` file may have: the last method of the
    /// block decides.
    pub(super) fn supported(&self) -> Supported {
        Self::supported_by(self.lines.last())
    }

    fn supported_by(method: Option<&&Line>) -> Supported {
        let by_place = |name: &[u8]| matches!(name, b"hash" | b"ip_hash" | b"random");
        let takes_turns = !method.is_some_and(|method| by_place(&method.name.bytes));
        Supported {
            backup: takes_turns,
            slow_start: takes_turns,
        }
    }
}

/// Parses the methods of a block. The last method applies.
pub(super) fn read<'a, U: Upstreams>(
    compiler: &Compiler<'_>,
    block: ScopeRef<'a>,
) -> Result<ChosenMethod<'a, U>, Fault> {
    let specs = [
        &HASH.spec,
        &IP_HASH.spec,
        &LEAST_CONN.spec,
        &U::least_time().spec,
        &RANDOM.spec,
        &P2C.spec,
    ];
    let mut lines: Vec<&Line> = specs
        .iter()
        .flat_map(|spec| block.own_lines(spec))
        .collect();
    lines.sort_by_key(|line| line.sequence());
    let sticky = U::sticky_line(block).map(Line::sequence);
    let is_behind = |line: &&Line| sticky.is_some_and(|sticky| sticky < line.sequence());
    for (place, line) in lines.iter().enumerate() {
        if place > 0 || is_behind(line) {
            let text = "load balancing method redefined".to_owned();
            compiler.warn_each_time(text, Some(line.position));
        }
    }
    let keeps_sessions = !lines.last().is_some_and(is_behind);
    let hash = block.own(&HASH)?;
    let timed = block.own(U::least_time())?;
    let two = block.own(&RANDOM)?;
    let method = match lines.last().map(|line| &*line.name.bytes) {
        Some(b"hash") => hash.as_ref().map_or(Method::Hash, |(_, method)| *method),
        Some(b"ip_hash") => Method::IpHash,
        Some(b"least_conn") => Method::LeastConnections,
        Some(b"least_time") => match timed {
            Some(timed) => Method::LeastTime(timed),
            None => Method::RoundRobin,
        },
        Some(b"random") if two == Some(true) => Method::RandomTwo,
        Some(b"random") => Method::Random,
        Some(b"p2c") => Method::PowerOfTwoChoices,
        _ => Method::RoundRobin,
    };
    let key = hash.map(|(key, _)| compiler.text(&key));
    let is_by_key = lines
        .last()
        .is_some_and(|line| &*line.name.bytes == b"hash");
    Ok(ChosenMethod {
        method,
        key: key.filter(|_| is_by_key),
        keeps_sessions,
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_has_up_to_three_digits_behind_the_point() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("1.25", Some(1250)),
            ("1.005", Some(1005)),
            ("02.5", Some(2500)),
            ("4294967.295", Some(u32::MAX)),
            ("4294967.296", None),
            ("1.0005", None),
            ("1.", None),
            (".5", None),
            ("+1", None),
            ("1e3", None),
            ("", None),
        ] {
            assert_eq!(thousandths(text.as_bytes()), expected, "{text}");
        }
    }
}
