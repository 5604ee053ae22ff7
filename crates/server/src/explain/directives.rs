//! What holds in a scope: directives with their places, and what has something to do there.

use conf::{Block, BlockKind, Contexts, Inherit, Line, Position, Registry, ScopeRef, Spec, Tree};
use http::config::tasks::{Task, TaskKind};

use super::ConfigLocation;
use crate::features::FEATURES;

/// What may stand in a server or deeper, and so is about requests.
const REQUESTS: Contexts = Contexts::SERVER
    .or(Contexts::LOCATION)
    .or(Contexts::LOCATION_IF)
    .or(Contexts::LIMIT_EXCEPT);

/// A directive in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveDirective {
    /// The line, or the default as one would write it.
    pub place: ConfigLocation,
    /// The scope that wrote it, `default` where nobody did.
    pub scope: String,
    /// Whether that is another scope than the one that was asked about.
    pub inherited: bool,
    /// Why it has no effect, where it has none.
    pub no_effect: Option<&'static str>,
}

/// Something that is done for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTask {
    /// What part of the work it is.
    pub phase: &'static str,
    /// The directive that asks for it.
    pub place: ConfigLocation,
}

/// A scope by the line that opens it.
pub(super) fn place(scope: ScopeRef<'_>) -> ConfigLocation {
    match scope.line() {
        None => ConfigLocation {
            text: "main".to_owned(),
            position: None,
        },
        Some(line) => {
            let mut text = words(line);
            if line.is("server")
                && let Some(name) = scope.lines().iter().find(|line| line.is("server_name"))
            {
                text = format!("server {}", name.argument(0).text());
            }
            ConfigLocation {
                text,
                position: Some(line.position),
            }
        }
    }
}

/// The directive that says what answers in a scope, if one does.
pub(super) fn handler(scope: ScopeRef<'_>) -> Option<ConfigLocation> {
    let own = |scope: ScopeRef<'_>| scope.lines().iter().any(is_handler);
    // `if` and `limit_except` keep the handler of the location around them.
    let scope = if own(scope) || scope.context() == Contexts::LOCATION {
        scope
    } else {
        scope.parent()?
    };
    let line = scope.lines().iter().find(|line| is_handler(line))?;
    Some(written(line))
}

/// The words of the directive that stands at a position.
pub(super) fn at(position: Position, tree: &Tree) -> Option<String> {
    let mut lines = tree.scopes().flat_map(ScopeRef::lines);
    lines.find(|line| line.position == position).map(words)
}

fn is_handler(line: &Line) -> bool {
    let mut contents = FEATURES.0.iter().filter_map(|entry| entry.content);
    let mut tasks = tasks(TaskKind::Content).flat_map(|task| task.directives);
    contents.any(|(name, _)| line.is(name)) || tasks.any(|name| line.is(name))
}

/// Every directive about requests that holds in a scope, by name; with `defaults` also those
/// that nobody has written.
pub(super) fn in_force(
    scope: ScopeRef<'_>,
    registry: &Registry,
    defaults: bool,
) -> Vec<EffectiveDirective> {
    let mut all = Vec::new();
    for spec in registry.iter().map(|declared| declared.spec()) {
        if !is_about_requests(spec) {
            continue;
        }
        let lines = lines(scope, spec);
        if lines.is_empty() && defaults {
            all.extend(default(spec));
        }
        all.extend(lines.into_iter().map(|(writer, line)| EffectiveDirective {
            place: written(line),
            scope: place(writer).text,
            inherited: writer.id() != scope.id(),
            no_effect: no_effect(spec),
        }));
    }
    all.sort_by(|one, other| {
        let key = |row: &EffectiveDirective| {
            let name = row.place.text.split([' ', ';']).next();
            (name.unwrap_or_default().to_owned(), row.place.position)
        };
        key(one).cmp(&key(other))
    });
    all
}

/// What has something to do for requests of a scope.
pub(super) fn work(scope: ScopeRef<'_>, registry: &Registry) -> Vec<RequestTask> {
    let mut all = Vec::new();
    let handler = handler(scope);
    for kind in TaskKind::ALL {
        if *kind == TaskKind::Files
            && let Some(handler) = &handler
        {
            all.push(RequestTask {
                phase: TaskKind::Content.name(),
                place: handler.clone(),
            });
            continue;
        }
        let phase = kind.name();
        let mut tasks: Vec<&Task> = tasks(*kind).collect();
        tasks.sort_by_key(|task| task.order);
        let names = tasks.into_iter().flat_map(|task| {
            let names = task.directives.iter();
            names.map(|name| (name, task.by_default))
        });
        for (name, by_default) in names {
            let specs = registry.find(name);
            let Some(spec) = specs.into_iter().find(|spec| is_about_requests(spec)) else {
                continue;
            };
            let lines = lines(scope, spec);
            if lines.is_empty() && by_default {
                all.extend(default(spec).map(|row| RequestTask {
                    phase,
                    place: row.place,
                }));
            }
            let lines = lines.into_iter().map(|(_, line)| line);
            let working = lines.filter(|line| line.is(name) && !is_off(line));
            all.extend(working.map(|line| RequestTask {
                phase,
                place: written(line),
            }));
        }
    }
    all
}

/// What modules have to do of a kind.
fn tasks(kind: TaskKind) -> impl Iterator<Item = &'static Task> {
    let tasks = FEATURES.0.iter().flat_map(|entry| entry.tasks);
    tasks.filter(move |task| task.kind == kind)
}

fn lines<'a>(scope: ScopeRef<'a>, spec: &Spec) -> Vec<(ScopeRef<'a>, &'a Line)> {
    let mut own = FEATURES.0.iter().filter_map(|entry| entry.lines_in_force);
    own.find_map(|lines| lines(scope, spec))
        .unwrap_or_else(|| scope.lines_in_force(spec))
}

/// `off`, or `0` where that turns off.
fn is_off(line: &Line) -> bool {
    line.args.len() == 1 && matches!(&*line.argument(0).bytes, b"off" | b"0")
}

fn is_about_requests(spec: &Spec) -> bool {
    let opens_scope = spec.arity.block_kind() == BlockKind::Scope;
    spec.contexts.intersects(REQUESTS) && (!opens_scope || spec.inherit == Inherit::Program)
}

fn default(spec: &Spec) -> Option<EffectiveDirective> {
    let text = spec.default?;
    Some(EffectiveDirective {
        place: ConfigLocation {
            text: format!("{} {text};", spec.name()),
            position: None,
        },
        scope: "default".to_owned(),
        inherited: false,
        no_effect: no_effect(spec),
    })
}

fn no_effect(spec: &Spec) -> Option<&'static str> {
    spec.effect.reason_for_none()
}

/// A line with its end.
fn written(line: &Line) -> ConfigLocation {
    let end = match line.block {
        None => ";",
        Some(Block::Scope(_) | Block::Free(_)) => " { … }",
    };
    ConfigLocation {
        text: words(line) + end,
        position: Some(line.position),
    }
}

/// The words of a line, those in quotes that were.
fn words(line: &Line) -> String {
    let mut text = line.name.text().into_owned();
    for word in &line.args {
        let mark = if word.quoted { "\"" } else { "" };
        text.push_str(&format!(" {mark}{}{mark}", word.text()));
    }
    text
}
