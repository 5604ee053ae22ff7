//! Advice as text and as JSON.

use std::fmt::Write;

use base::json::Writer;

use super::advice::{Advice, AdvisedChange, Weight};
use super::lists::{LISTS, ListStatus};
use super::machine::Machine;
use super::setup::Setup;

/// Width of a line, in columns.
const WIDTH: usize = 96;

/// The advice as text for a terminal.
pub(super) fn text(machine: &Machine, setup: &Setup, advice: &[Advice]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Machine: {}", machine_line(machine));
    let _ = writeln!(text, "Configuration: {}", setup_line(setup));
    for weight in Weight::ALL {
        let mut of_weight = advice.iter().filter(|one| one.weight == weight).peekable();
        if of_weight.peek().is_some() {
            let _ = writeln!(text, "\n{}", weight.title());
        }
        for one in of_weight {
            add_advice(&mut text, one);
        }
    }
    if advice.is_empty() {
        text.push_str("\nNothing of what is known here holds it back.\n");
    } else if advice
        .iter()
        .any(|one| one.changes.iter().any(AdvisedChange::is_applied))
    {
        text.push_str(
            "\n`tidegate tune --apply` does what is marked with *, `--apply NAME,...` also that \
             with +, and keeps\nit over a restart of the machine. `tidegate tune --undo` takes \
             it back.\n",
        );
    }
    text
}

fn add_advice(text: &mut String, advice: &Advice) {
    let rule = advice.rule;
    add_paragraph(
        text,
        "  ",
        "    ",
        &format!("{}: {}", rule.id, advice.finding),
    );
    add_paragraph(text, "    ", "    ", &advice.reason);
    let label = if rule.measured.starts_with("not measured") {
        "    "
    } else {
        "    measured: "
    };
    add_paragraph(text, label, "      ", rule.measured);
    add_paragraph(text, "    source: ", "      ", rule.source);
    for change in &advice.changes {
        let mark = if !change.is_applied() {
            ' '
        } else if advice.weight.is_applied_unnamed() {
            '*'
        } else {
            '+'
        };
        let _ = writeln!(text, "  {mark} {}", change.command());
    }
}

/// The lists as text, with a verdict for each setting.
pub(super) fn lists() -> String {
    let mut text = String::new();
    let mut list = "";
    for listed in LISTS {
        if listed.list != list {
            list = listed.list;
            let _ = writeln!(text, "{}{list}", if text.is_empty() { "" } else { "\n" });
        }
        let _ = writeln!(text, "  {}: {}", listed.setting, listed.verdict.word());
        add_paragraph(&mut text, "    ", "    ", listed.reason);
        add_paragraph(&mut text, "    source: ", "      ", listed.source);
    }
    let count = |verdict| {
        LISTS
            .iter()
            .filter(|listed| listed.verdict == verdict)
            .count()
    };
    let _ = writeln!(
        text,
        "\n{} settings: {} hold, {} depend, {} are folklore, {} do harm",
        LISTS.len(),
        count(ListStatus::Holds),
        count(ListStatus::Depends),
        count(ListStatus::Folklore),
        count(ListStatus::Harmful)
    );
    text
}

/// Adds a paragraph, wrapped to the line width.
fn add_paragraph(text: &mut String, first: &str, others: &str, words: &str) {
    let mut line = first.to_owned();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        if !line.ends_with(' ') {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                text.push_str(&line);
                text.push('\n');
                line = others.to_owned();
            } else {
                line.push(' ');
            }
        }
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

/// The advice as one JSON object, with the lists if requested.
pub(super) fn json(machine: &Machine, setup: &Setup, advice: &[Advice], lists: bool) -> Vec<u8> {
    let mut json = Writer::default();
    json.object(|json| {
        json.key("machine").string(&machine_line(machine));
        json.key("configuration").object(|json| {
            json.key("file").string(&setup.named);
            json.key("worker_processes").number(setup.threads);
            json.key("worker_connections").number(setup.connections);
        });
        json.key("advice")
            .array(|json| advice.iter().for_each(|one| add_json(json, one)));
        if lists {
            json.key("lists").array(|json| {
                for listed in LISTS {
                    json.object(|json| {
                        json.key("setting").string(listed.setting);
                        json.key("list").string(listed.list);
                        json.key("verdict").string(listed.verdict.word());
                        json.key("reason").string(listed.reason);
                        json.key("source").string(listed.source);
                    });
                }
            });
        }
    });
    let mut bytes = json.into_bytes();
    bytes.push(b'\n');
    bytes
}

fn add_json(json: &mut Writer, advice: &Advice) {
    json.object(|json| {
        json.key("id").string(advice.rule.id);
        json.key("weight").string(advice.weight.word());
        json.key("finding").string(&advice.finding);
        json.key("reason").string(&advice.reason);
        json.key("measured").string(advice.rule.measured);
        json.key("source").string(advice.rule.source);
        json.key("changes").array(|json| {
            for change in &advice.changes {
                json.object(|json| {
                    json.key("kind").string(change.kind());
                    json.key("command").string(&change.command());
                    json.key("applied_by_tune").boolean(change.is_applied());
                });
            }
        });
    });
}

impl AdvisedChange {
    /// Whether `--apply` does it.
    fn is_applied(&self) -> bool {
        matches!(
            self,
            AdvisedChange::Setting { .. } | AdvisedChange::Unit { .. }
        )
    }

    fn kind(&self) -> &'static str {
        match self {
            AdvisedChange::Setting { .. } => "setting",
            AdvisedChange::Unit { .. } => "unit",
            AdvisedChange::Configuration(_) => "configuration",
            AdvisedChange::Command(_) => "command",
        }
    }

    /// The command that makes the change by hand.
    fn command(&self) -> String {
        match self {
            AdvisedChange::Setting { name, value } if value.contains(' ') => {
                format!("sysctl -w {name}=\"{value}\"")
            }
            AdvisedChange::Setting { name, value } => format!("sysctl -w {name}={value}"),
            AdvisedChange::Unit { name, value } => format!("[Service] {name}={value}"),
            AdvisedChange::Configuration(line) => format!("configuration: {line}"),
            AdvisedChange::Command(command) => command.clone(),
        }
    }
}

fn machine_line(machine: &Machine) -> String {
    let plural = if machine.processors == 1 { "" } else { "s" };
    let mut line = format!(
        "{}, {} processor{plural}",
        machine.kernel, machine.processors
    );
    if let Some(quota) = machine.group.quota {
        let _ = write!(line, ", a quota of {quota}");
    }
    if let Some(kibibytes) = machine.memory("MemTotal") {
        let _ = write!(line, ", {} MB", kibibytes / 1024);
    }
    if let Some(container) = machine.container {
        let _ = write!(line, ", in a container ({container})");
    }
    if let Some(pid) = machine.process.pid {
        let _ = write!(line, ", limits of process {pid}");
    }
    line
}

fn setup_line(setup: &Setup) -> String {
    let threads = if setup.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    format!(
        "{}: {} {threads} of {} connections",
        setup.named, setup.threads, setup.connections
    )
}
