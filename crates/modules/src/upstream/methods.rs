//! How an `upstream` block shares requests out among its servers.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#hash> and the directives behind it.

use ::upstream::{Method, Timed};
use conf::{Arity, Contexts, Fault, Line, ScopeRef, Setter, Setting, Template, parse};
use framework::compile::Compiler;
use http::text::Text;
use http::variables::Compiling as _;

use super::sticky::STICKY;

pub(super) static HASH: Setting<(Template, bool)> =
    Setting::new("hash", &["key [consistent]"], hash)
        .contexts(Contexts::UPSTREAM)
        .arity(Arity::between(1, 2))
        .manual("Places requests by a key, which may hold variables. With `consistent` few keys move where a server comes or goes (ketama).");

pub(super) static IP_HASH: Setting<()> = Setting::new("ip_hash", &[""], parse::nothing)
    .contexts(Contexts::UPSTREAM)
    .arity(Arity::exactly(0))
    .manual("Places requests by the client's address; of IPv4 its first three bytes.");

pub(super) static LEAST_CONN: Setting<()> = Setting::new("least_conn", &[""], parse::nothing)
    .contexts(Contexts::UPSTREAM)
    .arity(Arity::exactly(0))
    .manual("Passes a request to the server that has the fewest under way for its weight.");

pub(super) static LEAST_TIME: Setting<Timed> =
    Setting::new("least_time", &["header | last_byte [inflight]"], least_time)
        .contexts(Contexts::UPSTREAM)
        .arity(Arity::between(1, 2))
        .manual("Passes a request to the server that would be done first, by its requests under way and by how long it has needed until the head, or the last byte, of its answers. With `inflight` requests that it has not answered count as well.");

pub(super) static RANDOM: Setting<bool> = Setting::new("random", &["[two [least_conn]]"], random)
    .contexts(Contexts::UPSTREAM)
    .arity(Arity::between(0, 2))
    .manual("Passes a request to any server by its weight. With `two` it draws two and takes the one with the fewest requests under way for its weight.");

fn hash(setter: &Setter<'_>) -> Result<(Template, bool), Fault> {
    let key = Template::parse(setter.word()?)?;
    match setter.args().get(1) {
        Some(word) if &*word.bytes != b"consistent" => Err(Fault::invalid_parameter(word)),
        consistent => Ok((key, consistent.is_some())),
    }
}

fn least_time(setter: &Setter<'_>) -> Result<Timed, Fault> {
    let in_flight = match setter.args().get(1) {
        Some(word) if &*word.bytes != b"inflight" => return Err(Fault::invalid_parameter(word)),
        word => word.is_some(),
    };
    let until_header = parse::enumeration(setter, &[("header", true), ("last_byte", false)])?;
    Ok(Timed {
        until_header,
        in_flight,
    })
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

/// What a method takes of the parameters of `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supported {
    pub(super) backup: bool,
    pub(super) slow_start: bool,
}

impl Default for Supported {
    /// All: what weighted round robin takes.
    fn default() -> Supported {
        Supported {
            backup: true,
            slow_start: true,
        }
    }
}

/// How a block shares requests out.
pub(super) struct Chosen<'a> {
    pub(super) method: Method,
    /// What `hash` says.
    pub(super) key: Option<Text>,
    /// Whether a session may stay with its server: nginx forgets that where a line that names a method stands behind `sticky`.
    pub(super) keeps_sessions: bool,
    /// Every line that names a method, in the order of the configuration.
    lines: Vec<&'a Line>,
}

impl Chosen<'_> {
    /// What a line of `server` may say: the method counts that stands before it.
    pub(super) fn supported_at(&self, line: &Line) -> Supported {
        let before = |method: &&&Line| method.sequence() < line.sequence();
        Chosen::supported_by(self.lines.iter().rfind(before))
    }

    /// What a line may say that stands elsewhere: the last method counts.
    pub(super) fn supported(&self) -> Supported {
        Chosen::supported_by(self.lines.last())
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

/// Reads the lines of a block that name a method: the last one holds.
pub(super) fn read<'a>(compiler: &Compiler<'_>, block: ScopeRef<'a>) -> Result<Chosen<'a>, Fault> {
    let specs = [
        &HASH.spec,
        &IP_HASH.spec,
        &LEAST_CONN.spec,
        &LEAST_TIME.spec,
        &RANDOM.spec,
    ];
    let mut lines: Vec<&Line> = specs
        .iter()
        .flat_map(|spec| block.own_lines(spec))
        .collect();
    lines.sort_by_key(|line| line.sequence());
    let sticky = block.own_lines(&STICKY.spec);
    let sticky = sticky.first().map(|line| line.sequence());
    let is_behind = |line: &&Line| sticky.is_some_and(|sticky| sticky < line.sequence());
    for (place, line) in lines.iter().enumerate() {
        if place > 0 || is_behind(line) {
            let text = "load balancing method redefined".to_owned();
            compiler.warn_each_time(text, Some(line.position));
        }
    }
    let keeps_sessions = !lines.last().is_some_and(is_behind);
    let hash = block.own(&HASH)?;
    let timed = block.own(&LEAST_TIME)?;
    let two = block.own(&RANDOM)?;
    let method = match lines.last().map(|line| &*line.name.bytes) {
        Some(b"hash") if hash.as_ref().is_some_and(|(_, consistent)| *consistent) => {
            Method::ConsistentHash
        }
        Some(b"hash") => Method::Hash,
        Some(b"ip_hash") => Method::IpHash,
        Some(b"least_conn") => Method::LeastConnections,
        Some(b"least_time") => match timed {
            Some(timed) => Method::LeastTime(timed),
            None => Method::RoundRobin,
        },
        Some(b"random") if two == Some(true) => Method::RandomTwo,
        Some(b"random") => Method::Random,
        _ => Method::RoundRobin,
    };
    let key = hash.map(|(key, _)| compiler.text(&key));
    let is_by_key = matches!(method, Method::Hash | Method::ConsistentHash);
    Ok(Chosen {
        method,
        key: key.filter(|_| is_by_key),
        keeps_sessions,
        lines,
    })
}
