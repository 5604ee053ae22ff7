//! The names that nginx, NGINX Plus and third-party modules have: every directive and variable,
//! with its module.
//!
//! The names are in files next to this one. The parser looks up directives that the table does not
//! have; `tidegate docs` and docs/compatibility.md list which names Tidegate has. The meaning of a
//! name and the syntax of its arguments are not recorded.

use std::sync::OnceLock;

use base::hash::Map;
use conf::{ForeignName, KnownElsewhere};

const NGINX: &str = include_str!("reference/nginx.txt");
const PLUS: &str = include_str!("reference/plus.txt");
const OTHERS: &str = include_str!("reference/others.txt");

const JAVASCRIPT: &str = "nginx's JavaScript module";

/// A directive or variable of nginx, NGINX Plus or a third-party module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceName {
    /// Whether the name is a variable's, without `$`; otherwise a directive's.
    pub is_variable: bool,
    /// The module, such as `http_fastcgi`.
    pub module: &'static str,
    /// The name. The name of a family of variables ends with `_`.
    pub name: &'static str,
    /// The product that has the module, or the name of a third-party module.
    pub owner: &'static str,
}

/// All names of nginx, by module.
pub fn nginx() -> &'static [ReferenceName] {
    static NAMES: OnceLock<Vec<ReferenceName>> = OnceLock::new();
    NAMES.get_or_init(|| read(NGINX, |_| "nginx"))
}

/// The names that only NGINX Plus and the JavaScript module have.
pub fn plus() -> &'static [ReferenceName] {
    static NAMES: OnceLock<Vec<ReferenceName>> = OnceLock::new();
    NAMES.get_or_init(|| {
        read(PLUS, |module| match module {
            "http_js" | "stream_js" => JAVASCRIPT,
            _ => "NGINX Plus",
        })
    })
}

/// The names of third-party modules.
fn others() -> &'static [ReferenceName] {
    static NAMES: OnceLock<Vec<ReferenceName>> = OnceLock::new();
    NAMES.get_or_init(|| read(OTHERS, |module| module))
}

/// The directives with this name; nginx's own come first.
pub fn directives(name: &str) -> impl Iterator<Item = &'static ReferenceName> {
    all(name).filter(|known| !known.is_variable)
}

/// The variables with this name (in lower case, without `$`), including the family that it belongs
/// to.
pub fn variables(name: &str) -> impl Iterator<Item = &'static ReferenceName> {
    let families = family(name).into_iter().flat_map(all);
    all(name).chain(families).filter(|known| known.is_variable)
}

/// The owner of a directive that the table does not have, for the parser's error.
pub fn directive(name: &str) -> Option<ForeignName> {
    directives(name).next().map(known)
}

/// The owner of a variable that Tidegate does not have.
pub fn variable(name: &str) -> Option<ForeignName> {
    variables(name).next().map(known)
}

/// The replacement for a directive that nginx has removed.
pub fn removed(name: &str) -> Option<&'static str> {
    Some(match name {
        "ssl" => "nginx has removed it in 1.25.1: write \"listen … ssl\"",
        "limit_zone" => "nginx has removed it in 1.7.6: write \"limit_conn_zone\"",
        "satisfy_any" => "nginx has removed it: write \"satisfy any\"",
        "open_file_cache_retest" => "nginx has removed it: write \"open_file_cache_valid\"",
        "proxy_redirect_errors" => "nginx has removed it: write \"proxy_intercept_errors\"",
        "fastcgi_redirect_errors" => "nginx has removed it: write \"fastcgi_intercept_errors\"",
        _ if name.starts_with("spdy_") => "nginx has removed it in 1.9.5: write \"http2 on\"",
        _ => return None,
    })
}

/// The lookup of directives that Tidegate does not have, as [`conf::Registry`] expects it.
pub const ELSEWHERE: KnownElsewhere = directive;

/// The owner of a name and the remark for the parser's error.
fn known(name: &ReferenceName) -> ForeignName {
    ForeignName {
        module: name.module,
        remark: match name.owner {
            "nginx" => "nginx has it; Tidegate does not yet",
            "NGINX Plus" => "NGINX Plus has it; Tidegate does not yet",
            JAVASCRIPT => "nginx's JavaScript module has it; Tidegate does not yet",
            _ => remark_of_others(name.module),
        },
    }
}

/// The remark about a third-party module, which contains the module's name.
fn remark_of_others(module: &'static str) -> &'static str {
    static REMARKS: OnceLock<Map<&'static str, &'static str>> = OnceLock::new();
    let remarks = REMARKS.get_or_init(|| {
        let mut remarks: Map<&'static str, &'static str> = Map::default();
        for known in others() {
            remarks.entry(known.module).or_insert_with(|| {
                format!(
                    "{} has it, a module of others; Tidegate does not",
                    known.module
                )
                .leak()
            });
        }
        remarks
    });
    remarks
        .get(module)
        .copied()
        .unwrap_or("Tidegate does not have it")
}

/// The directives and variables with exactly this name.
fn all(name: &str) -> impl Iterator<Item = &'static ReferenceName> {
    static BY_NAME: OnceLock<Map<&'static str, Vec<&'static ReferenceName>>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| {
        let mut by_name: Map<&'static str, Vec<&'static ReferenceName>> = Map::default();
        for known in nginx().iter().chain(plus()).chain(others()) {
            by_name.entry(known.name).or_default().push(known);
        }
        by_name
    });
    by_name.get(name).into_iter().flatten().copied()
}

/// The longest family of variables that the name belongs to.
fn family(name: &str) -> Option<&'static str> {
    let families = nginx().iter().chain(plus());
    families
        .filter(|known| known.is_variable && known.name.ends_with('_'))
        .map(|known| known.name)
        .filter(|family| name.len() > family.len() && name.starts_with(family))
        .max_by_key(|family| family.len())
}

/// Parses the lines of a list: `directive MODULE NAME` or `variable MODULE NAME`.
fn read(list: &'static str, owner: fn(&'static str) -> &'static str) -> Vec<ReferenceName> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split(' ');
            let is_variable = words.next()? == "variable";
            let module = words.next()?;
            Some(ReferenceName {
                is_variable,
                module,
                name: words.next()?,
                owner: owner(module),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_listed_once() {
        for list in [NGINX, PLUS, OTHERS] {
            let lines: Vec<&str> = list.lines().collect();
            let mut unique = lines.clone();
            unique.sort_unstable();
            unique.dedup();
            let blank = lines.iter().filter(|line| line.is_empty()).count();
            assert_eq!(lines.len() - blank, unique.len() - 1);
        }
        assert!(nginx().len() > 900 && plus().len() > 100);
    }

    #[test]
    fn directives_and_variables_are_found_by_name() {
        let module = |known: Option<ForeignName>| known.map(|known| known.module);
        assert_eq!(module(directive("fastcgi_pass")), Some("http_fastcgi"));
        assert_eq!(module(directive("health_check")), Some("http_upstream_hc"));
        assert_eq!(module(directive("$uri")), None);
        assert_eq!(module(directive("nothing_of_the_kind")), None);
        assert_eq!(module(variable("uri")), Some("http_core"));
        assert_eq!(
            module(variable("fastcgi_script_name")),
            Some("http_fastcgi")
        );
        assert_eq!(module(variable("fastcgi_pass")), None);
        assert_eq!(module(variable("arg_page")), Some("http_core"));
        assert_eq!(module(variable("http_")), Some("http_core"));
    }

    #[test]
    fn the_owner_is_named() {
        let remark = |name| directive(name).map(|known| known.remark);
        assert!(remark("image_filter").is_some_and(|text| text.starts_with("nginx has it")));
        assert!(remark("health_check").is_some_and(|text| text.starts_with("NGINX Plus has it")));
        assert!(remark("js_content").is_some_and(|text| text.contains("JavaScript")));
        assert_eq!(
            remark("set_escape_uri"),
            Some("set-misc-nginx-module has it, a module of others; Tidegate does not")
        );
    }
}
