//! The manual page of a directive, generated from its declaration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::contexts::Contexts;
use crate::examples::{BLOCKS, Example};
use crate::registry::Registry;
use crate::spec::{BlockKind, Effect, Reload, Spec};

/// The file name of the page that lists all pages.
const INDEX: &str = "README.md";

/// Page contents that the declarations do not provide.
#[derive(Clone, Copy)]
pub struct Guide<'a> {
    /// Returns the name of the module that has the directive, such as `http_gzip`.
    pub module_of: fn(&Spec) -> &'static str,
    /// Example configurations; a page shows the first that uses its directive.
    pub examples: &'a [Example],
}

impl Guide<'_> {
    /// A guide without any content.
    pub const NONE: Guide<'static> = Guide {
        module_of: |_| "",
        examples: &[],
    };
}

/// Every page, by file name (`gzip.md`): one for each [`Spec`], named after the first of its
/// directives, and an index by module. Specs with the same first directive share a page.
#[must_use]
pub fn pages(registry: &Registry, guide: Guide<'_>) -> BTreeMap<String, String> {
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    for declared in registry.iter() {
        let spec = declared.spec();
        let page = pages.entry(format!("{}.md", spec.name())).or_default();
        if !page.is_empty() {
            page.push('\n');
        }
        page.push_str(&directive_page(spec, guide));
    }
    pages.insert(INDEX.to_owned(), index(registry, guide));
    pages
}

/// The index of all directives by module and name, with their contexts.
fn index(registry: &Registry, guide: Guide<'_>) -> String {
    let mut modules: BTreeMap<&str, BTreeMap<_, String>> = BTreeMap::new();
    for spec in registry.iter().map(|declared| declared.spec()) {
        for name in spec.names() {
            let effect = match spec.effect {
                Effect::Works => "",
                Effect::NoEffect(_) => "no effect here",
                Effect::NotYet(_) => "no effect yet",
            };
            let place = contexts_of(spec.contexts_of(name));
            let row = format!("| [{name}]({}.md) | {place} | {effect} |\n", spec.name());
            let rows = modules.entry((guide.module_of)(spec)).or_default();
            rows.insert((name, place), row);
        }
    }
    let mut page = "# Directives\n\nMade by `make docs` from the table of directives and the \
                    configurations in\n[examples/directives](../../examples/directives); not \
                    edited by hand.\n"
        .to_owned();
    for (module, rows) in modules {
        let rows: String = rows.into_values().collect();
        let _ = write!(
            page,
            "\n## {module}\n\n| directive | context | |\n|---|---|---|\n{rows}"
        );
    }
    page
}

/// The first suitable example that uses the directive. If the directive is allowed only in one of
/// [`BLOCKS`], the example must use that block; otherwise one that uses none of them is preferred.
fn example<'a>(spec: &Spec, guide: Guide<'a>) -> Option<&'a Example> {
    let shown = |example: &&Example| spec.names().any(|name| example.shows(name));
    let all: Vec<&Example> = guide.examples.iter().filter(shown).collect();
    let block = block_of(spec);
    let own = all.iter().find(|example| example.block() == block);
    own.or(all.first().filter(|_| block.is_none())).copied()
}

/// The only member of [`BLOCKS`] in which the directive is allowed.
fn block_of(spec: &Spec) -> Option<&'static str> {
    let places = contexts_of(spec.contexts);
    let is_within = |block: &&str| places.split(", ").all(|place| place.contains(*block));
    BLOCKS.into_iter().find(is_within)
}

/// The page of a directive in Markdown.
#[must_use]
pub fn directive_page(spec: &Spec, guide: Guide<'_>) -> String {
    let names: Vec<&str> = spec.names().collect();
    let mut page = format!(
        "# {}\n\n```nginx\n{}\n```\n\n",
        names.join(", "),
        syntax(spec)
    );
    let _ = writeln!(page, "| | |\n|---|---|");
    let module = (guide.module_of)(spec);
    if !module.is_empty() {
        let _ = writeln!(page, "| Module | {module} |");
    }
    for (label, value) in facts(spec) {
        let _ = writeln!(page, "| {label} | {} |", value.replace('|', "\\|"));
    }
    let _ = write!(page, "\n{}", fill(&spec.manual()));
    if let Some(Example { title, text }) = example(spec, guide) {
        let _ = write!(
            page,
            "\n## Example\n\n{}\n```nginx\n{text}\n```\n",
            fill(title)
        );
    }
    page
}

/// The page of a directive for a terminal.
#[must_use]
pub fn terminal(spec: &Spec, guide: Guide<'_>) -> String {
    let names: Vec<&str> = spec.names().collect();
    let mut page = format!("{}\n\n", names.join(", "));
    for line in syntax(spec).lines() {
        let _ = writeln!(page, "    {line}");
    }
    page.push('\n');
    for (label, value) in facts(spec) {
        let _ = writeln!(page, "  {:<10} {}", label, value.replace('`', ""));
    }
    let _ = write!(page, "\n{}", wrap(&spec.manual().replace('`', "")));
    if let Some(Example { title, text }) = example(spec, guide) {
        let _ = write!(page, "\n{}\n", wrap(title));
        for line in text.lines() {
            let _ = writeln!(page, "    {line}");
        }
    }
    page
}

/// Every form of the directive, one per line.
fn syntax(spec: &Spec) -> String {
    let mut lines = Vec::new();
    for name in spec.names() {
        let end = match spec.arity_of(name).block_kind() {
            BlockKind::None => ";",
            BlockKind::Scope | BlockKind::Free => " { ... }",
        };
        for form in forms(spec, name) {
            let form = form.trim_end_matches("{ ... }").trim_end();
            let space = if form.is_empty() { "" } else { " " };
            lines.push(format!("{name}{space}{form}{end}"));
        }
    }
    lines.join("\n")
}

/// The forms of one name: those that begin with the name or, if none does, those that begin with
/// none of the spec's names, which all names share.
fn forms<'a>(spec: &'a Spec, name: &str) -> Vec<&'a str> {
    let named = |form: &str, name: &str| match form.strip_prefix(name) {
        Some(rest) => rest.is_empty() || rest.starts_with(' '),
        None => false,
    };
    let own: Vec<&str> = spec
        .syntax
        .iter()
        .copied()
        .filter(|form| named(form, name))
        .collect();
    if !own.is_empty() {
        return own
            .iter()
            .filter_map(|form| form.strip_prefix(name))
            .map(str::trim)
            .collect();
    }
    let is_unnamed = |form: &&str| !spec.names().any(|name| named(form, name));
    let common: Vec<&str> = spec.syntax.iter().copied().filter(is_unnamed).collect();
    if common.is_empty() { vec![""] } else { common }
}

/// The rows of the page's table.
fn facts(spec: &Spec) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let default = match spec.default {
        Some("") => format!("`{};`", spec.name()),
        Some(text) => format!("`{} {text};`", spec.name()),
        None => "none".to_owned(),
    };
    facts.push(("Default", default));
    facts.push(("Context", contexts(spec)));
    // No row for a block: scopes inherit the lines within a block, but not the block itself.
    if spec.arity.block_kind() != BlockKind::Scope {
        facts.push(("Inherited", spec.inherit.explanation().to_owned()));
    }
    if spec.reload == Reload::NewProcess {
        facts.push(("Reload", "a change needs a new worker process".to_owned()));
    }
    match spec.effect {
        Effect::Works => {}
        Effect::NoEffect(reason) => {
            facts.push(("Effect", format!("accepted, no effect here: {reason}")));
        }
        Effect::NotYet(reason) => {
            facts.push(("Effect", format!("accepted, no effect yet: {reason}")));
        }
    }
    if !spec.since.is_empty() {
        facts.push(("Since", spec.since.to_owned()));
    }
    facts
}

fn contexts_of(contexts: Contexts) -> String {
    match contexts {
        Contexts::ALL => "any".to_owned(),
        contexts => contexts.to_string(),
    }
}

fn contexts(spec: &Spec) -> String {
    let mut text = contexts_of(spec.contexts);
    for name in spec.names() {
        let own = spec.contexts_of(name);
        if own != spec.contexts {
            let _ = write!(text, "; `{name}`: {}", contexts_of(own));
        }
    }
    text
}

/// Maximum line length of a page.
const PAGE_WIDTH: usize = 100;

/// The manual's prose in lines of at most [`PAGE_WIDTH`] columns. Each source line is wrapped
/// separately, so that lists stay lists.
fn fill(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut column = 0;
        for word in line.split(' ') {
            let length = word.chars().count();
            // At the beginning of a line, a Markdown marker would start a list or a heading.
            let is_mark = word.starts_with(['-', '+', '*', '#', '>', '|']);
            if column > 0 && column + 1 + length > PAGE_WIDTH && !is_mark {
                out.push('\n');
                column = 0;
            } else if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
        out.push('\n');
    }
    out
}

/// The width of a terminal page's prose.
const WIDTH: usize = 78;

fn wrap(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.split("\n\n") {
        if !out.is_empty() {
            out.push('\n');
        }
        let mut column = 0;
        for word in paragraph.split_whitespace() {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > WIDTH {
                out.push('\n');
                column = 0;
            }
            if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
        out.push('\n');
    }
    out
}
