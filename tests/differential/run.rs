//! One program goes through a list of conversations: its transcript.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::answers;
use crate::client::{self, Heard, Surroundings};
use crate::configuration::World;
use crate::program::Program;
use crate::requests::Conversation;
use crate::upstream::{Recorded, Upstream};
use crate::world;

/// Where a lane's programs run, one after the other.
pub(crate) struct Lane {
    /// The folder.
    pub(crate) prefix: PathBuf,
    /// What servers may listen on.
    pub(crate) ports: Vec<u16>,
    /// Where nothing listens.
    pub(crate) dead: u16,
    /// For questions whether the loop has gone round.
    pub(crate) sentinel: u16,
    /// What requests are passed on to.
    pub(crate) upstream: Upstream,
    laid_out: world::LaidOut,
    /// On another address, so that a test beside this one does not take a port while no server is
    /// on it.
    _guards: Vec<TcpListener>,
}

/// Where the guards of ports listen.
const GUARD: &str = "127.0.0.3";

/// A free port that no other test takes while the guard is there.
pub(crate) fn guarded_port(guards: &mut Vec<TcpListener>) -> u16 {
    let port = support::port::free_port();
    guards.extend(TcpListener::bind((GUARD, port)));
    port
}

impl Lane {
    /// A lane of its own folder and ports.
    pub(crate) fn new(number: usize) -> Result<Lane, String> {
        let mut guards = Vec::new();
        let mut free = || guarded_port(&mut guards);
        let (ports, dead, sentinel) = ((0..4).map(|_| free()).collect(), free(), free());
        Ok(Lane {
            // The number of digits is fixed, so that lengths of texts with paths are too.
            prefix: PathBuf::from(format!(
                "/tmp/tidegate-differential-{:07}-{number:02}",
                std::process::id()
            )),
            ports,
            dead,
            sentinel,
            _guards: guards,
            upstream: Upstream::start(3)?,
            laid_out: world::LaidOut::default(),
        })
    }
}

impl Lane {
    /// What configurations may name here.
    pub(crate) fn world(&self) -> World {
        World {
            prefix: self.prefix.clone(),
            ports: self.ports.clone(),
            upstreams: self.upstream.addresses(),
            dead: format!("127.0.0.1:{}", self.dead),
            files: world::uris(),
            answers: answers::paths(),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = world::remove(&self.prefix);
    }
}

/// What has been seen of one conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) heard: Heard,
    pub(crate) upstream: Vec<Recorded>,
    /// Lines of the access log: values by the names of variables.
    pub(crate) access: Vec<Vec<(String, String)>>,
    /// Lines of the error log without time, process and connection.
    pub(crate) errors: Vec<String>,
}

/// What has been seen of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) conversations: Vec<Seen>,
    /// What it has changed in the tree: a line by path.
    pub(crate) files: BTreeMap<String, String>,
    /// What is wrong with the run itself: no start, an early end, alerts, panics.
    pub(crate) alarms: Vec<String>,
}

/// How long the end of the last connection may take to its server.
const LEAVING_TIME: Duration = Duration::from_millis(5);

/// Runs a program through the conversations. `quiet` is how long a silent server is waited for.
pub(crate) fn run(
    lane: &Lane,
    program: &Program,
    text: &str,
    extra: &[(&str, Vec<u8>)],
    conversations: &[Conversation],
    quiet: Duration,
) -> Transcript {
    let mut transcript = Transcript::default();
    let run = try_run(
        lane,
        program,
        text,
        extra,
        conversations,
        quiet,
        &mut transcript,
    );
    if let Err(alarm) = run {
        transcript.alarms.push(alarm);
    }
    transcript
}

fn try_run(
    lane: &Lane,
    program: &Program,
    text: &str,
    extra: &[(&str, Vec<u8>)],
    conversations: &[Conversation],
    quiet: Duration,
    transcript: &mut Transcript,
) -> Result<(), String> {
    let prefix = &lane.prefix;
    lane.laid_out
        .lay_out(prefix, extra)
        .map_err(|error| format!("laying out {}: {error}", prefix.display()))?;
    lane.upstream.take();
    lane.upstream.take_late();
    let text = program.dressed(text, lane.sentinel);
    let mut server = program.start(prefix, &text, lane.sentinel)?;
    let first_turn = lane.upstream.turn();
    let mut firsts = Vec::new();
    for conversation in conversations {
        firsts.push(server.begin()?);
        let mut surroundings = Surroundings {
            server: &mut server,
            upstream: &lane.upstream,
            quiet,
        };
        let heard = client::converse(conversation, &mut surroundings)?;
        surroundings.settle()?;
        let upstream = lane.upstream.take();
        transcript.conversations.push(Seen {
            heard,
            upstream,
            ..Seen::default()
        });
    }
    // What was cut short, and what the server does then, takes the upstream's patience.
    for (turn, record) in lane.upstream.take_late() {
        let index = turn.checked_sub(first_turn);
        let seen = index.and_then(|index| transcript.conversations.get_mut(index));
        if let Some(seen) = seen {
            seen.upstream.push(record);
            seen.upstream.sort();
        }
    }
    // That the last client has left may come on another core, behind what is sent after it.
    std::thread::sleep(LEAVING_TIME);
    server.pass()?;
    let numbers = Numbers {
        firsts,
        own: server.own_numbers().clone(),
    };
    server.stop()?;
    read_logs(prefix, &numbers, transcript);
    transcript.files = lane.laid_out.changes(prefix);
    Ok(())
}

/// Whose connection a number is: programs count their connections, to clients and to upstreams, in
/// their order.
struct Numbers {
    /// The numbers that the sentinel's connections had when the conversations began. Those of a
    /// conversation's connections lie between its own and the next.
    firsts: Vec<u64>,
    /// Of connections that are no conversation's.
    own: BTreeSet<u64>,
}

impl Numbers {
    /// The conversation that a connection is of. `None` for what asks whether the server is idle.
    fn conversation(&self, number: u64) -> Option<usize> {
        let begun = self.firsts.partition_point(|first| *first < number);
        begun.checked_sub(1).filter(|_| !self.own.contains(&number))
    }
}

/// Gives each line of the logs to its conversation, by the connection's number.
fn read_logs(prefix: &Path, numbers: &Numbers, transcript: &mut Transcript) {
    for line in lines(&prefix.join("logs/differential.log")) {
        let mut values: Vec<(String, String)> = line
            .split('\t')
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| (String::from(name), String::from(value)))
            .collect();
        let own = values.iter().find(|(name, _)| name == "connection");
        let number = own.and_then(|(_, number)| number.parse().ok());
        let index = number.and_then(|number| numbers.conversation(number));
        let seen = index.and_then(|index| transcript.conversations.get_mut(index));
        let Some(seen) = seen else {
            transcript
                .alarms
                .push(format!("a line in the access log of no connection: {line}"));
            continue;
        };
        values.retain(|(name, _)| name != "connection");
        seen.access.push(values);
    }
    let mut last = None;
    for line in lines(&prefix.join("logs/error.log")) {
        let Some((level, number, text)) = error_line(&line) else {
            // The rest of a line that a client's line feed has broken.
            if let Some(errors) =
                last.and_then(|index: usize| transcript.conversations.get_mut(index))
            {
                errors.errors.last_mut().into_iter().for_each(|before| {
                    before.push_str("\\x0a");
                    before.push_str(&line);
                });
            }
            continue;
        };
        let Some(number) = number else {
            if matches!(level, "alert" | "crit" | "emerg") || text.contains("panicked") {
                transcript.alarms.push(format!("[{level}] {text}"));
            }
            continue;
        };
        let Some(index) = numbers.conversation(number) else {
            continue;
        };
        // Where a line ends that is cut for its length depends on the digits of its process.
        let text = text.get(..LINE_MAX - 200).unwrap_or(text);
        last = Some(index);
        if let Some(seen) = transcript.conversations.get_mut(index) {
            seen.errors.push(format!("[{level}] {text}"));
        }
    }
}

/// Longest line of an error log, in bytes (nginx's `NGX_MAX_ERROR_STR`).
const LINE_MAX: usize = 2048;

fn lines(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).unwrap_or_default();
    let text = bytes.split(|byte| *byte == b'\n').map(printable);
    text.filter(|line: &String| !line.is_empty()).collect()
}

/// A line with what is no printable ASCII as `\xNN`.
pub(crate) fn printable(line: &[u8]) -> String {
    let escaped = line.iter().map(|byte| match byte {
        b'\t' | b' '..=b'~' => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    });
    escaped.collect()
}

/// `2026/01/02 03:04:05 [error] 12#13: *14 text` in its parts: level, connection, text.
fn error_line(line: &str) -> Option<(&str, Option<u64>, &str)> {
    let (_, rest) = line.get(20..)?.split_once('[')?;
    let (level, rest) = rest.split_once("] ")?;
    let (_, text) = rest.split_once(": ")?;
    let numbered = text.strip_prefix('*').and_then(|text| text.split_once(' '));
    match numbered.and_then(|(number, text)| Some((number.parse().ok()?, text))) {
        Some((number, text)) => Some((level, Some(number), text)),
        None => Some((level, None, text)),
    }
}

/// FNV-1a, to tell long bytes apart.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
