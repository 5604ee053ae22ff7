//! A table of rules about settings of the machine that limit a configuration, and their remedies.
//!
//! Each rule examines one property and returns its finding, the importance of the finding, and the
//! changes that help. Each rule states its source, and the result of measurements with Tidegate, if
//! there are any. Other settings of published lists are judged in `lists`.

use super::machine::Machine;
use super::setup::Setup;

mod descriptors;
mod network;
mod processors;
mod queues;
mod sockets;

/// Importance, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A counter shows that connections, packets or time have been lost since the machine started.
    Loses,
    /// The configuration requires more than the machine allows.
    Limits,
    /// Helps some workloads.
    MayHelp,
    /// Often advised, but measured as having no effect.
    Nothing,
}

impl Weight {
    pub(super) const ALL: [Weight; 4] = [
        Weight::Loses,
        Weight::Limits,
        Weight::MayHelp,
        Weight::Nothing,
    ];

    /// Whether `--apply` includes advice of this importance by default.
    pub(super) fn is_applied_unnamed(self) -> bool {
        matches!(self, Weight::Loses | Weight::Limits)
    }

    /// The name in JSON.
    pub(super) fn word(self) -> &'static str {
        match self {
            Weight::Loses => "loses",
            Weight::Limits => "limits",
            Weight::MayHelp => "may_help",
            Weight::Nothing => "nothing",
        }
    }

    /// The heading above this advice.
    pub(super) fn title(self) -> &'static str {
        match self {
            Weight::Loses => "Loses connections, packets or time",
            Weight::Limits => "Gives less than the configuration asks for",
            Weight::MayHelp => "May help some loads",
            Weight::Nothing => "Advised often, and measures as nothing",
        }
    }
}

/// A rule about one property of the machine.
pub(super) struct Rule {
    /// The rule's name, which must not change.
    pub(super) id: &'static str,
    /// The source of the rule.
    pub(super) source: &'static str,
    /// The result of measurements with Tidegate, or that there are none.
    pub(super) measured: &'static str,
    /// Evaluates the rule; `None` if there is nothing to report.
    look: fn(&Machine, &Setup) -> Option<RuleFinding>,
}

/// The finding of a rule.
struct RuleFinding {
    weight: Weight,
    finding: String,
    reason: String,
    changes: Vec<AdvisedChange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdvisedChange {
    /// A setting of the kernel.
    Setting { name: &'static str, value: String },
    /// A line of the server's systemd unit.
    Unit { name: &'static str, value: String },
    /// A line of the configuration; applied by hand.
    Configuration(String),
    /// A command whose effect is lost at a reboot; applied by hand.
    Command(String),
}

/// A finding with its rule.
pub(super) struct Advice {
    pub(super) rule: &'static Rule,
    pub(super) weight: Weight,
    pub(super) finding: String,
    /// Why the finding matters, and how much.
    pub(super) reason: String,
    pub(super) changes: Vec<AdvisedChange>,
}

/// The text for rules that have not been measured with Tidegate.
const NOT_MEASURED: &str = "not measured: it takes a network, a load or a machine that is not here";

/// All rules; those of equal importance are listed in this order.
static RULES: &[&[Rule]] = &[
    queues::RULES,
    descriptors::RULES,
    processors::RULES,
    network::RULES,
    sockets::RULES,
];

/// The findings of all rules, the most important first.
pub(super) fn advise(machine: &Machine, setup: &Setup) -> Vec<Advice> {
    let rules = RULES.iter().copied().flatten();
    let mut all: Vec<Advice> = rules
        .filter_map(|rule| {
            let found = (rule.look)(machine, setup)?;
            Some(Advice {
                rule,
                weight: found.weight,
                finding: found.finding,
                reason: found.reason,
                changes: found.changes,
            })
        })
        .collect();
    all.sort_by_key(|advice| advice.weight);
    all
}

/// The advice to apply: the named advice, or without names all advice of sufficient importance.
pub(super) fn chosen(advice: Vec<Advice>, named: &[String]) -> Result<Vec<Advice>, String> {
    if named.is_empty() {
        let matters = |one: &Advice| one.weight.is_applied_unnamed();
        return Ok(advice.into_iter().filter(matters).collect());
    }
    for name in named {
        if advice.iter().any(|one| one.rule.id == name) {
            continue;
        }
        let mut rules = RULES.iter().copied().flatten().map(|rule| rule.id);
        return Err(match rules.clone().find(|id| id == name) {
            Some(id) => format!("\"{id}\" is not advised here"),
            None => match conf::nearest(name, rules.by_ref()) {
                Some(near) => format!("no advice is called \"{name}\", did you mean \"{near}\"?"),
                None => format!("no advice is called \"{name}\""),
            },
        });
    }
    let is_named = |one: &Advice| named.iter().any(|name| one.rule.id == name);
    Ok(advice.into_iter().filter(is_named).collect())
}

/// A change of a kernel setting.
fn setting(name: &'static str, value: impl ToString) -> AdvisedChange {
    let value = value.to_string();
    AdvisedChange::Setting { name, value }
}

/// A number of times, in words.
fn times(count: u64) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}
