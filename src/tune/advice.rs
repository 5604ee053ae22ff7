//! What holds a configuration back on a machine, and what would help: a table of rules.
//!
//! Each rule looks at one thing and says what it has found, how much that may matter, and what
//! changes it. What a rule rests on stands beside it: its source, and whether the difference has
//! been measured with Tidegate, or measures as nothing. What published lists say beside that is
//! judged in `lists`.

use super::machine::Machine;
use super::setup::Setup;

mod descriptors;
mod network;
mod processors;
mod queues;
mod sockets;

/// How much it matters, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A counter says that it costs connections, packets or time since the machine has started.
    Loses,
    /// The configuration asks for more than the machine gives.
    Limits,
    /// It helps some loads.
    MayHelp,
    /// It is advised often, and measures as nothing.
    Nothing,
}

impl Weight {
    pub(super) const ALL: [Weight; 4] = [
        Weight::Loses,
        Weight::Limits,
        Weight::MayHelp,
        Weight::Nothing,
    ];

    /// Whether `--apply` does it without its name.
    pub(super) fn is_applied_unnamed(self) -> bool {
        matches!(self, Weight::Loses | Weight::Limits)
    }

    /// The word in JSON.
    pub(super) fn word(self) -> &'static str {
        match self {
            Weight::Loses => "loses",
            Weight::Limits => "limits",
            Weight::MayHelp => "may_help",
            Weight::Nothing => "nothing",
        }
    }

    /// The line above its advice.
    pub(super) fn title(self) -> &'static str {
        match self {
            Weight::Loses => "Loses connections, packets or time",
            Weight::Limits => "Gives less than the configuration asks for",
            Weight::MayHelp => "May help some loads",
            Weight::Nothing => "Advised often, and measures as nothing",
        }
    }
}

/// One thing to look at.
pub(super) struct Rule {
    /// Its name, which stays.
    pub(super) id: &'static str,
    /// What it rests on.
    pub(super) source: &'static str,
    /// What has been measured with Tidegate.
    pub(super) measured: &'static str,
    look: fn(&Machine, &Setup) -> Option<RuleFinding>,
}

/// What a rule has found.
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
    /// A line of the unit that systemd starts the server by.
    Unit { name: &'static str, value: String },
    /// A line of the configuration; by hand.
    Configuration(String),
    /// A command that does not outlive a restart of the machine; by hand.
    Command(String),
}

/// A piece of advice.
pub(super) struct Advice {
    pub(super) rule: &'static Rule,
    pub(super) weight: Weight,
    pub(super) finding: String,
    /// Why that matters, and by how much it may.
    pub(super) reason: String,
    pub(super) changes: Vec<AdvisedChange>,
}

/// Not measured with Tidegate, and said so.
const NOT_MEASURED: &str = "not measured: it takes a network, a load or a machine that is not here";

/// All rules; of equal weight, the first written come first.
static RULES: &[&[Rule]] = &[
    queues::RULES,
    descriptors::RULES,
    processors::RULES,
    network::RULES,
    sockets::RULES,
];

/// What all rules have found, what matters most first.
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

/// What is to be applied: the advice that is named, or without a name all that is known to matter.
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

/// A setting of the kernel that is to be changed.
fn setting(name: &'static str, value: impl ToString) -> AdvisedChange {
    let value = value.to_string();
    AdvisedChange::Setting { name, value }
}

/// How often, in words.
fn times(count: u64) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}
