//! The directives of `limit_req`, and their compiled settings.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
    parse,
};
use framework::compile::{Compiler, Feature};
use framework::zone::{self, Zone, ZoneError};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::Module;
use http::request::Text;
use http::variables::Compiling as _;
use rules::limited::{self, RefusalFamily, RefusalSettings};

use super::Buckets;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The `delay=` that stands for `nodelay`, in requests: more than any bucket takes.
const NO_DELAY: u64 = i64::MAX as u64 / 1000;

/// `limit_req_zone key zone=name:size rate=rate`
pub(super) static LIMIT_REQ_ZONE: Setting<()> = Setting::new(
    "limit_req_zone",
    &["key zone=name:size rate=rate"],
    |setter| {
        setter
            .lines()
            .iter()
            .try_for_each(|line| declaration(line).map(drop))
    },
)
.contexts(Contexts::HTTP)
.arity(Arity::exactly(3))
.inherit(Inherit::List)
.manual(
    "Declares a zone that counts requests by the key, which may hold variables; requests with an \
     empty key are not counted. The rate is a number with `r/s` or `r/m`. Where the zone is full \
     the key that was seen longest ago is forgotten.",
);

/// `limit_req zone=name [burst=number] [nodelay | delay=number]`
pub(super) static LIMIT_REQ: Setting<Vec<LimitLine>> = Setting::new(
    "limit_req",
    &["zone=name [burst=number] [nodelay | delay=number]"],
    limits,
)
.contexts(HSL)
.arity(Arity::between(1, 3))
.inherit(Inherit::List)
.manual(
    "Limits requests by the zone's rate. Up to `burst` requests beyond it are let in: they wait \
     until the rate allows them, the first `delay` of them, or with `nodelay` all, do not. \
     Several lines limit together.",
);

static REFUSAL: RefusalFamily = RefusalFamily::of(
    "limit_req_",
    HSL,
    "The level of the line about a request that is refused; a delay is one level lower.",
    "Only counts and logs; no request waits or is refused.",
);

/// The key and rate of a zone.
pub struct ZoneSettings {
    /// The key by which requests are counted.
    pub(super) key: Text,
    /// The key as it is written in the configuration.
    pub(super) key_text: Box<str>,
    /// Thousandths of a request per second.
    pub(super) rate: u64,
}

/// A `limit_req` directive before its zone is looked up.
pub(super) struct LimitLine {
    zone: Box<str>,
    /// The size of the bucket, in requests.
    burst: u64,
    /// How many requests above the rate are not delayed.
    delay: u64,
}

/// A compiled `limit_req`.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) zone: Arc<Zone<Buckets>>,
    /// Thousandths of requests above the rate that are accepted.
    pub(super) burst: u64,
    /// Thousandths of requests above the rate that are not delayed.
    delay: u64,
}

impl Limit {
    /// The delay of a request with this excess, in milliseconds.
    pub(super) fn delay_ms(&self, excess: u64) -> u64 {
        let waiting = excess.saturating_sub(self.delay);
        waiting.saturating_mul(1000) / self.zone.settings().rate.max(1)
    }
}

/// The limits of a scope.
#[derive(Debug)]
pub struct LimitReq {
    pub(super) limits: Box<[Limit]>,
    pub(super) refusal: RefusalSettings,
}

impl Feature for LimitReq {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &LIMIT_REQ,
        &REFUSAL.status,
        &REFUSAL.log_level,
        &REFUSAL.dry_run,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<LimitReq, Fault> {
        let mut limits: Vec<Limit> = Vec::new();
        for line in scope.get(&LIMIT_REQ)? {
            let zone = compiler.zones.borrow().find::<Buckets>(&line.zone);
            let zone =
                zone.map_err(|text| Fault::new(text).of_missing(&line.zone, &["limit_req_zone"]))?;
            limits.push(Limit {
                zone,
                burst: line.burst.saturating_mul(1000),
                delay: line.delay.saturating_mul(1000),
            });
        }
        Ok(LimitReq {
            limits: limits.into(),
            refusal: REFUSAL.read(scope)?,
        })
    }
}

impl Module for LimitReq {
    const TABLES: &'static [&'static [&'static dyn Declared]] =
        &[&[&LIMIT_REQ_ZONE], LimitReq::DIRECTIVES];

    const TASKS: &'static [Task] = &[Task::of(TaskKind::Limits, &["limit_req"])];

    fn is_off(&self) -> bool {
        self.limits.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.preaccess(self);
    }
}

/// Declares the zones of the `http` scope, before any scope looks for them.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    for line in http.lines().iter().filter(|line| line.is("limit_req_zone")) {
        if let Err(fault) = declare(compiler, line) {
            compiler.report(fault.or_at(line.position));
        }
    }
}

fn declare(compiler: &Compiler<'_>, line: &Line) -> Result<(), Fault> {
    let (key, name, size, rate) = declaration(line)?;
    let settings = ZoneSettings {
        key: compiler.text(&Template::parse(key)?),
        key_text: key.text().into(),
        rate,
    };
    let declared = compiler.zones.borrow_mut().declare::<Buckets>(
        &String::from_utf8_lossy(&name),
        size,
        settings,
    );
    match declared {
        Ok(_) => Ok(()),
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
        Err(ZoneError::Declared(known)) => Err(Fault::new(format!(
            "limit_req_zone \"{}\" is already bound to key \"{}\"",
            known.name(),
            known.settings().key_text
        ))),
    }
}

/// Key, name, size in bytes and rate in thousandths per second of a `limit_req_zone`.
fn declaration(line: &Line) -> Result<(&Word, Bytes, u64, u64), Fault> {
    let mut zone = None;
    let mut rate = 1000;
    for word in line.args.iter().skip(1) {
        if word.bytes.starts_with(b"zone=") {
            zone = Some(zone::parse_declaration(word)?);
        } else if let Some(text) = word.bytes.strip_prefix(b"rate=") {
            let read = rate_of(text);
            rate =
                read.ok_or_else(|| Fault::at(word, format!("invalid rate \"{}\"", word.text())))?;
        } else {
            return Err(Fault::invalid_parameter(word));
        }
    }
    match zone.filter(|(name, _)| !name.is_empty()) {
        Some((name, size)) => Ok((line.argument(0), name, size, rate)),
        None => Err(Fault::new(
            "\"limit_req_zone\" must have \"zone\" parameter",
        )),
    }
}

/// Parses `10r/s` or `30r/m`, in thousandths per second.
fn rate_of(text: &[u8]) -> Option<u64> {
    let (number, seconds) = match text {
        [number @ .., b'r', b'/', b's'] => (number, 1),
        [number @ .., b'r', b'/', b'm'] => (number, 60),
        number => (number, 1),
    };
    let number = parse::number_of(number).filter(|number| *number > 0)?;
    Some(number.saturating_mul(1000) / seconds)
}

fn limits(setter: &Setter<'_>) -> Result<Vec<LimitLine>, Fault> {
    limited::lines(setter, limit, |limit| &limit.zone)
}

fn limit(line: &Line) -> Result<LimitLine, Fault> {
    let (mut zone, mut burst, mut delay) = (None, 0, 0);
    let number = |word: &Word, text: &[u8], what: &str| {
        let number = parse::number_of(text).filter(|number| *number > 0);
        number.ok_or_else(|| Fault::at(word, format!("invalid {what} value \"{}\"", word.text())))
    };
    for word in &line.args {
        if let Some(name) = word.bytes.strip_prefix(b"zone=") {
            zone = Some(String::from_utf8_lossy(name).into());
        } else if let Some(text) = word.bytes.strip_prefix(b"burst=") {
            burst = number(word, text, "burst")?;
        } else if let Some(text) = word.bytes.strip_prefix(b"delay=") {
            delay = number(word, text, "delay")?;
        } else if &*word.bytes == b"nodelay" {
            delay = NO_DELAY;
        } else {
            return Err(Fault::invalid_parameter(word));
        }
    }
    let Some(zone) = zone else {
        return Err(Fault::at(
            &line.name,
            "\"limit_req\" must have \"zone\" parameter",
        ));
    };
    Ok(LimitLine { zone, burst, delay })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_thousandths_a_second() {
        for (text, rate) in [
            ("1r/s", Some(1000)),
            ("1r/m", Some(16)),
            ("30r/m", Some(500)),
            ("5", Some(5000)),
            ("0r/s", None),
            ("r/s", None),
            ("1r/h", None),
            ("", None),
        ] {
            assert_eq!(rate_of(text.as_bytes()), rate, "{text}");
        }
    }
}
