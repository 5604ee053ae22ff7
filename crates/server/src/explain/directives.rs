//! The directives that are in force in a scope, and the tasks of modules for requests of the scope.

use conf::{Block, BlockKind, Contexts, Inherit, Line, Position, Registry, ScopeRef, Spec, Tree};
use http::config::tasks::{Task, TaskKind};

use super::ConfigLocation;
use crate::features::FEATURES;

/// The contexts of directives about requests: a server and all scopes within one.
const REQUESTS: Contexts = Contexts::SERVER
    .or(Contexts::LOCATION)
    .or(Contexts::LOCATION_IF)
    .or(Contexts::LIMIT_EXCEPT);

/// A directive that is in force in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveDirective {
    /// The directive's line, or the default as a line.
    pub place: ConfigLocation,
    /// The scope that contains the line; `default` if no line has the directive.
    pub scope: String,
    /// Whether the line is in an outer scope, not in the explained one.
    pub inherited: bool,
    /// The reason if the directive has no effect.
    pub no_effect: Option<&'static str>,
}

/// A task that a module has for requests of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTask {
    /// The phase in which the task runs.
    pub phase: &'static str,
    /// The directive that enables the task.
    pub place: ConfigLocation,
}

/// The location of a scope, with the line that opens the scope as its text.
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

/// The directive that selects the content handler of a scope, if there is one.
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

/// The text of the directive at a position.
pub(super) fn at(position: Position, tree: &Tree) -> Option<String> {
    let mut lines = tree.scopes().flat_map(ScopeRef::lines);
    lines.find(|line| line.position == position).map(words)
}

fn is_handler(line: &Line) -> bool {
    let mut contents = FEATURES.0.iter().filter_map(|entry| entry.content);
    let mut tasks = tasks(TaskKind::Content).flat_map(|task| task.directives);
    contents.any(|(name, _)| line.is(name)) || tasks.any(|name| line.is(name))
}

/// All directives about requests that are in force in a scope, sorted by name; with `defaults`,
/// also the defaults of directives without a line.
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

/// The tasks for requests of a scope, in the order of the phases.
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

/// The tasks of this kind that modules have declared.
fn tasks(kind: TaskKind) -> impl Iterator<Item = &'static Task> {
    let tasks = FEATURES.0.iter().flat_map(|entry| entry.tasks);
    tasks.filter(move |task| task.kind == kind)
}

/// The lines of a directive that are in force in a scope, by the module's own inheritance rules if
/// it has any; each with the scope that contains it.
fn lines<'a>(scope: ScopeRef<'a>, spec: &Spec) -> Vec<(ScopeRef<'a>, &'a Line)> {
    let mut own = FEATURES.0.iter().filter_map(|entry| entry.lines_in_force);
    own.find_map(|lines| lines(scope, spec))
        .unwrap_or_else(|| scope.lines_in_force(spec))
}

/// Whether the directive's only argument is `off` or `0`, which disables the task.
fn is_off(line: &Line) -> bool {
    line.args.len() == 1 && matches!(&*line.argument(0).bytes, b"off" | b"0")
}

fn is_about_requests(spec: &Spec) -> bool {
    let opens_scope = spec.arity.block_kind() == BlockKind::Scope;
    spec.contexts.intersects(REQUESTS) && (!opens_scope || spec.inherit == Inherit::Program)
}

/// The default of a directive, if there is one.
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

/// The reason if a directive has no effect.
fn no_effect(spec: &Spec) -> Option<&'static str> {
    spec.effect.reason_for_none()
}

/// The location of a line, whose text ends with `;` or the mark of a block.
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

/// The words of a line; words that were quoted are quoted.
fn words(line: &Line) -> String {
    let mut text = line.name.text().into_owned();
    for word in &line.args {
        let mark = if word.quoted { "\"" } else { "" };
        text.push_str(&format!(" {mark}{}{mark}", word.text()));
    }
    text
}
