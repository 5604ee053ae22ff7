//! The line of `*_cache_semantics`.

use std::time::Duration;

use conf::{Fault, Setter, Word, parse};

use super::clock::milliseconds;
use super::rules::Policy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Semantics {
    Nginx,
    /// The rules of RFC 9111 for a shared cache.
    Rfc(Policy),
}

impl Semantics {
    /// The settings for RFC 9111, if its rules apply.
    pub(crate) fn policy(self) -> Option<Policy> {
        match self {
            Semantics::Nginx => None,
            Semantics::Rfc(policy) => Some(policy),
        }
    }
}

/// The default parameters.
const POLICY: Policy = Policy {
    heuristic_percent: 0,
    stale_if_error: 60,
    stale_while_revalidate: 0,
    reload_interval: 0,
};

/// The syntax of the directive.
pub(super) const SYNTAX: &str = "nginx | rfc [heuristic=percent%] [stale_if_error=time] \
     [stale_while_revalidate=time] [reload_interval=time]";

pub(super) fn read(setter: &Setter<'_>) -> Result<Semantics, Fault> {
    let Some((first, parameters)) = setter.args().split_first() else {
        return Ok(Semantics::Nginx); // the arity has been checked
    };
    match (&*first.bytes, parameters.first()) {
        (b"nginx", None) => return Ok(Semantics::Nginx),
        (b"nginx", Some(parameter)) => return Err(Fault::invalid_parameter(parameter)),
        (b"rfc", _) => {}
        _ => return Err(Fault::invalid_value(first)),
    }
    let mut policy = POLICY;
    for word in parameters {
        take_parameter(&mut policy, word)?;
    }
    Ok(Semantics::Rfc(policy))
}

fn take_parameter(policy: &mut Policy, word: &Word) -> Result<(), Fault> {
    let text = word.text();
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| Fault::invalid_parameter(word))?;
    let invalid = || Fault::at(word, format!("invalid {name} value \"{value}\""));
    let seconds = || {
        let seconds = parse::time_seconds(value.as_bytes());
        seconds
            .and_then(|seconds| u32::try_from(seconds).ok())
            .ok_or_else(invalid)
    };
    match name {
        "heuristic" => {
            let number = value.strip_suffix('%').ok_or_else(invalid)?;
            let number = parse::number_of(number.as_bytes());
            let percent = number.and_then(|number| u32::try_from(number).ok());
            let percent = percent.filter(|percent| *percent <= 100);
            policy.heuristic_percent = percent.ok_or_else(invalid)?;
        }
        "stale_if_error" => policy.stale_if_error = seconds()?,
        "stale_while_revalidate" => policy.stale_while_revalidate = seconds()?,
        "reload_interval" => {
            let time = parse::time_milliseconds(value.as_bytes()).map(Duration::from_millis);
            policy.reload_interval = milliseconds(time.ok_or_else(invalid)?);
        }
        _ => return Err(Fault::invalid_parameter(word)),
    }
    Ok(())
}
