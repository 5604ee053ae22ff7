//! Tests of the manual's pages, and of errors in declarations.

use super::{ALLOW, PCRE_JIT, PROGRAM_LINES, ROOT, registry};
use crate::{Contexts, Declared, Registry, Setting, manual, parse};

#[test]
fn a_page_says_what_the_declaration_says() {
    assert_eq!(
        manual::directive_page(&ROOT.spec, manual::Guide::NONE),
        "# root, alias\n\n\
         ```nginx\nroot path;\nalias path;\n```\n\n\
         | | |\n|---|---|\n\
         | Default | `root html;` |\n\
         | Context | http, server, location, if in location; `alias`: location |\n\
         | Inherited | inherited where it is not written |\n\n"
    );
    assert!(
        manual::directive_page(&ALLOW.spec, manual::Guide::NONE)
            .contains("allow address | all;\ndeny address | all;")
    );
    let page = manual::directive_page(&PCRE_JIT.spec, manual::Guide::NONE);
    assert!(
        page.contains("| Effect | accepted, no effect here: there is none |"),
        "{page}"
    );
}

#[test]
fn names_of_a_group_may_have_forms_of_their_own() {
    let page = manual::directive_page(&PROGRAM_LINES.spec, manual::Guide::NONE);
    assert!(
        page.contains("```nginx\nset $name value;\nif (condition) { ... }\nbreak;\n```"),
        "{page}"
    );
}

#[test]
fn terminals_get_plain_text() {
    let page = manual::terminal(&ROOT.spec, manual::Guide::NONE);
    assert!(page.starts_with(
        "root, alias\n\n    root path;\n    alias path;\n\n  Default    root html;\n"
    ));
}

#[test]
fn every_declaration_has_a_page() {
    let registry = registry();
    let pages = manual::pages(&registry, manual::Guide::NONE);
    assert!(
        registry
            .iter()
            .all(|d| pages.contains_key(&format!("{}.md", d.spec().name())))
    );
    // The two directives named `server` share one.
    assert_eq!(pages["server.md"].matches("# server\n").count(), 2);
    assert_eq!(registry.find("server").count(), 2);
    assert_eq!(
        registry
            .find("alias")
            .map(|spec| spec.name())
            .collect::<Vec<_>>(),
        ["root"]
    );
}

static TWICE: Setting<u64> = Setting::new("root", &["size"], parse::size)
    .contexts(Contexts::HTTP)
    .default("1 x")
    .manual("m");
static NOWHERE: Setting<u64> = Setting::new("nowhere", &["size"], parse::size).default("x");
static FLAT: Setting<()> = Setting::new("flat", &[""], parse::nothing)
    .contexts(Contexts::HTTP)
    .opens(Contexts::SERVER)
    .manual("As `*_flat`.");

#[test]
fn faults_of_declarations_are_found() {
    const GOOD: &[&dyn Declared] = &[&ROOT];
    const BAD: &[&dyn Declared] = &[&TWICE, &NOWHERE, &FLAT];
    let faults = Registry::new(&[GOOD, BAD]).faults();
    assert_eq!(
        faults,
        [
            "\"flat\" means a family in its manual, and is of none",
            "\"flat\" opens a context without a block",
            "\"nowhere\" has no manual",
            "\"nowhere\" may stand nowhere",
            "\"nowhere\" refuses its default: \"nowhere\" directive invalid value",
            "\"root\" has a default with a wrong number of arguments",
            "\"root\" has no manual",
            "\"root\" is declared twice for one context",
        ]
    );
}
