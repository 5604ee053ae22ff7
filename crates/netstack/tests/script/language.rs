//! The words of a script.

use std::time::Duration;

use netstack::tcp::{self, KeepAlive};

/// A case of a file.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// It begins with a connect and not with a listen.
    pub(crate) is_client: bool,
    /// It is about bounds that only our stack has.
    pub(crate) is_ours_alone: bool,
    pub(crate) steps: Vec<Step>,
}

/// What is set before a case begins.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tcp: tcp::Settings,
    pub(crate) backlog: usize,
    pub(crate) connections_max: usize,
    pub(crate) memory_max: usize,
}

pub(crate) struct Step {
    pub(crate) delay: Duration,
    pub(crate) action: Action,
    pub(crate) line: usize,
    pub(crate) text: String,
}

pub(crate) enum Action {
    Comes(Segment),
    Leaves(Segment),
    Icmp(Icmp),
    Call(Call),
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Segment {
    pub(crate) flags: String,
    pub(crate) sequence: i64,
    pub(crate) length: usize,
    pub(crate) acknowledgment: Option<i64>,
    pub(crate) window: Option<u16>,
    /// `None` where nothing is said of them.
    pub(crate) options: Option<Options>,
    pub(crate) port: u16,
    pub(crate) is_damaged: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) segment_max: Option<u16>,
    pub(crate) window_shift: Option<u8>,
    pub(crate) sack_permitted: bool,
    /// Value and echo; `*` for any.
    pub(crate) timestamps: Option<(Option<i64>, Option<i64>)>,
    pub(crate) sack: Vec<(i64, i64)>,
}

/// A router's or a host's message about a segment that left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Icmp {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) mtu: u16,
    pub(crate) sequence: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Listen,
    Connect,
    Accept,
    NothingToAccept,
    Write(usize),
    /// So much is taken of what is to be written.
    WriteSome(usize, usize),
    Read(usize),
    ReadNothing,
    ReadEnd,
    ReadError(String),
    Finish,
    Release,
    Abort,
    KeepAlive(KeepAlive),
    /// No connection is left, and no memory held.
    Gone,
}

/// The cases of a file.
pub(crate) fn parse(text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        if let Some(name) = content.strip_prefix("==") {
            cases.push(Case {
                name: name.trim().to_owned(),
                settings: Settings::plain(),
                is_client: false,
                is_ours_alone: false,
                steps: Vec::new(),
            });
            continue;
        }
        let case = cases
            .last_mut()
            .ok_or(format!("line {number}: no case yet"))?;
        let wrong = |what| format!("line {number}: {what}: {content}");
        if let Some(words) = content.strip_prefix("set ") {
            case.settings.set(words).map_err(wrong)?;
            case.is_ours_alone |= words.split_whitespace().any(|word| word.contains('='));
            continue;
        }
        let (delay, rest) = content.split_once(' ').ok_or(wrong("no action".into()))?;
        let delay = delay.strip_prefix('+').and_then(|delay| delay.parse().ok());
        let delay = delay.ok_or(wrong("no time".into()))?;
        let action = action(rest.trim()).map_err(wrong)?;
        case.is_client |= matches!(action, Action::Call(Call::Connect));
        case.is_ours_alone |= matches!(action, Action::Call(Call::KeepAlive(_)));
        case.steps.push(Step {
            delay: Duration::from_secs_f64(delay),
            action,
            line: number,
            text: content.to_owned(),
        });
    }
    Ok(cases)
}

impl Settings {
    fn plain() -> Settings {
        Settings {
            tcp: tcp::Settings {
                timestamps: false,
                sack: false,
                window_scale: false,
                receive_max: 65_535,
                ..tcp::Settings::default()
            },
            backlog: 16,
            connections_max: 1000,
            memory_max: 1 << 20,
        }
    }

    fn set(&mut self, words: &str) -> Result<(), String> {
        for word in words.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, "1"));
            let value: usize = value.parse().map_err(|_| format!("no number in {word}"))?;
            let seconds = Duration::from_secs(value as u64);
            match name {
                "sack" => self.tcp.sack = true,
                "timestamps" => self.tcp.timestamps = true,
                "scale" => self.tcp.window_scale = true,
                "nagle" => self.tcp.no_delay = false,
                "receive" => self.tcp.receive_max = value as u32,
                "send" => self.tcp.send_max = value as u32,
                "time_wait" => self.tcp.time_wait = seconds,
                "give_up" => self.tcp.give_up = seconds,
                "backlog" => self.backlog = value,
                "connections" => self.connections_max = value,
                "memory" => self.memory_max = value,
                _ => return Err(format!("what is {name}?")),
            }
        }
        Ok(())
    }
}

fn action(text: &str) -> Result<Action, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| -> Result<usize, String> {
        let word = words.get(at).ok_or("a number is missing")?;
        word.parse().map_err(|_| format!("{word} is no number"))
    };
    Ok(match words[..] {
        ["<", "icmp", ..] => Action::Icmp(icmp(&words)?),
        ["<", ..] => Action::Comes(segment(&text[1..])?),
        [">", ..] => Action::Leaves(segment(&text[1..])?),
        ["nothing"] => Action::Nothing,
        ["listen"] => Action::Call(Call::Listen),
        ["connect"] => Action::Call(Call::Connect),
        ["accept"] => Action::Call(Call::Accept),
        ["accept", "none"] => Action::Call(Call::NothingToAccept),
        ["write", _] => Action::Call(Call::Write(number(1)?)),
        ["write", _, "takes", _] => Action::Call(Call::WriteSome(number(1)?, number(3)?)),
        ["read", "none"] => Action::Call(Call::ReadNothing),
        ["read", "end"] => Action::Call(Call::ReadEnd),
        ["read", "error", reason] => Action::Call(Call::ReadError(reason.to_owned())),
        ["read", _] => Action::Call(Call::Read(number(1)?)),
        ["finish"] => Action::Call(Call::Finish),
        ["release"] => Action::Call(Call::Release),
        ["abort"] => Action::Call(Call::Abort),
        ["keepalive", _, _, _] => Action::Call(Call::KeepAlive(KeepAlive {
            idle: Duration::from_secs(number(1)? as u64),
            interval: Duration::from_secs(number(2)? as u64),
            probes_max: number(3)? as u32,
        })),
        ["gone"] => Action::Call(Call::Gone),
        _ => return Err("what is this?".to_owned()),
    })
}

/// `< icmp too-large MTU seq N`, `refused`, `no-route`.
fn icmp(words: &[&str]) -> Result<Icmp, String> {
    let last = words.last().and_then(|word| word.parse().ok());
    let sequence = last.ok_or("no sequence number")?;
    let (kind, code, mtu) = match words[2..] {
        ["too-large", mtu, ..] => (3, 4, mtu.parse().map_err(|_| "no MTU")?),
        ["refused", ..] => (3, 3, 0),
        ["no-route", ..] => (3, 1, 0),
        _ => return Err("which message?".to_owned()),
    };
    Ok(Icmp {
        kind,
        code,
        mtu,
        sequence,
    })
}

/// `FLAGS first:end(length) ack N win N <options> port N damaged`.
fn segment(text: &str) -> Result<Segment, String> {
    let (text, options) = match text.split_once('<') {
        Some((before, rest)) => {
            let (inside, after) = rest.split_once('>').ok_or("options without an end")?;
            (format!("{before} {after}"), Some(parse_options(inside)?))
        }
        None => (text.to_owned(), None),
    };
    let mut words = text.split_whitespace();
    let flags = words.next().ok_or("no flags")?.to_owned();
    let range = words.next().ok_or("no range")?;
    let (first, rest) = range.split_once(':').ok_or("no range")?;
    let (end, length) = rest.split_once('(').ok_or("no length")?;
    let length: usize = length
        .trim_end_matches(')')
        .parse()
        .map_err(|_| "no length")?;
    let sequence: i64 = first.parse().map_err(|_| "no first number")?;
    let end: i64 = end.parse().map_err(|_| "no last number")?;
    if sequence + length as i64 != end {
        return Err(format!("{range} does not add up"));
    }
    let mut segment = Segment {
        flags,
        sequence,
        length,
        options,
        port: 40_000,
        ..Segment::default()
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("no value of {word}"));
        match word {
            "ack" => segment.acknowledgment = value()?.parse().ok(),
            "win" => segment.window = value()?.parse().ok(),
            "port" => segment.port = value()?.parse().map_err(|_| "no port")?,
            "damaged" => segment.is_damaged = true,
            _ => return Err(format!("what is {word}?")),
        }
    }
    Ok(segment)
}

fn parse_options(text: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for option in text.split(',').map(str::trim) {
        let words: Vec<&str> = option.split_whitespace().collect();
        match words[..] {
            ["none"] => {}
            ["mss", size] => options.segment_max = size.parse().ok(),
            ["ws", shift] => options.window_shift = shift.parse().ok(),
            ["sackok"] => options.sack_permitted = true,
            ["ts", value, echo] => {
                options.timestamps = Some((value.parse().ok(), echo.parse().ok()))
            }
            ["sack", ref blocks @ ..] => {
                for block in blocks {
                    let (from, to) = block.split_once(':').ok_or("no block")?;
                    let from = from.parse().map_err(|_| "no block")?;
                    options
                        .sack
                        .push((from, to.parse().map_err(|_| "no block")?));
                }
            }
            _ => return Err(format!("which option is {option}?")),
        }
    }
    Ok(options)
}
