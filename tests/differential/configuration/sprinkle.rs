//! Strewing: every directive of the table over the scopes that it may stand in, with the
//! inheritance that comes of it.

use conf::{BlockKind, Contexts};

use super::definitions;
use super::draft::Draft;
use super::table::Table;
use super::tree::Line;
use super::values;

/// How many directives are strewn over a configuration, beside its frame and what its families
/// write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    /// Those that the seed gives; the table is gone through by turns.
    must: usize,
    /// Those that are drawn beyond.
    may: usize,
}

impl Density {
    /// About what the configuration of a large site holds. In an hour each directive comes more
    /// than 200 times.
    pub(crate) const WRITTEN: Density = Density { must: 45, may: 20 };
    /// Three times as many, so that things meet in one place that sites seldom write together.
    pub(crate) const DENSE: Density = Density { must: 80, may: 110 };
}

/// Directives of which one may stand in a server, or outside of all servers, without the others.
const APART: &[&[&str]] = &[
    &["secure_link_secret", "secure_link", "secure_link_md5"],
    &[
        "ssl_stapling",
        "ssl_stapling_file",
        "ssl_certificate_compression",
    ],
];

/// Directives that have to stand before those whose tables they size.
const FIRST: &[&str] = &["map_hash_bucket_size", "map_hash_max_size"];

/// Directives of which a scope may hold several lines.
pub(super) const SEVERAL: &[&str] = &[
    "add_header",
    "add_trailer",
    "allow",
    "deny",
    "proxy_set_header",
    "sub_filter",
    "error_page",
    "set_real_ip_from",
    "env",
    "proxy_hide_header",
    "proxy_pass_header",
    "fastcgi_param",
    "fastcgi_hide_header",
    "fastcgi_pass_header",
    "uwsgi_param",
    "uwsgi_hide_header",
    "uwsgi_pass_header",
    "scgi_param",
    "scgi_hide_header",
    "scgi_pass_header",
    "grpc_set_header",
    "grpc_hide_header",
    "grpc_pass_header",
    "modern_browser",
    "ancient_browser",
    "error_log",
];

/// What has to be written along.
const COMPANIONS: &[(&str, &str)] = &[
    ("grpc_ssl_crl", "grpc_ssl_trusted_certificate tls/ca.crt"),
    ("grpc_ssl_verify", "grpc_ssl_trusted_certificate tls/ca.crt"),
    (
        "grpc_ssl_certificate_key",
        "grpc_ssl_certificate tls/client.crt",
    ),
    (
        "grpc_ssl_certificate",
        "grpc_ssl_certificate_key tls/client.key",
    ),
    ("uwsgi_ssl_crl", "uwsgi_ssl_trusted_certificate tls/ca.crt"),
    (
        "uwsgi_ssl_verify",
        "uwsgi_ssl_trusted_certificate tls/ca.crt",
    ),
    (
        "uwsgi_ssl_certificate_key",
        "uwsgi_ssl_certificate tls/client.crt",
    ),
    (
        "uwsgi_ssl_certificate",
        "uwsgi_ssl_certificate_key tls/client.key",
    ),
    (
        "proxy_ssl_certificate",
        "proxy_ssl_certificate_key tls/client.key",
    ),
    (
        "proxy_ssl_certificate_key",
        "proxy_ssl_certificate tls/client.crt",
    ),
    (
        "proxy_ssl_verify",
        "proxy_ssl_trusted_certificate tls/ca.crt",
    ),
    ("proxy_ssl_crl", "proxy_ssl_trusted_certificate tls/ca.crt"),
    ("auth_basic", "auth_basic_user_file users"),
];

/// Where a scope stands in the tree: the index of each block on the way.
type Path = Vec<usize>;

impl Draft<'_> {
    /// Puts the directives of this seed, and as many others, into scopes.
    pub(super) fn sprinkle(&mut self, lines: &mut Vec<Line>) {
        let scopes = scopes(self.table, lines);
        let names: Vec<&'static str> = self
            .table
            .names()
            .filter(|name| values::is_strewn(name))
            .collect();
        let Density { must, may } = self.density;
        let first = (self.seed as usize).wrapping_mul(must);
        for step in 0..must + may {
            let name = if step < must {
                names[first.wrapping_add(step) % names.len()]
            } else {
                names[self.random.below(names.len())]
            };
            let tries = if step < must { 20 } else { 1 };
            for _ in 0..tries {
                if self.strew(name, lines, &scopes) {
                    break;
                }
            }
        }
        for http in lines.iter_mut().filter_map(|line| line.block.as_mut()) {
            http.sort_by_key(|line| !FIRST.contains(&line.name.as_str()));
        }
    }

    /// A line of this directive for a context; none where the reference or the table has none
    /// there.
    pub(super) fn strewn(&mut self, name: &str, context: Contexts) -> Option<Line> {
        let directive = self.table.find(name, context)?;
        if directive.block != BlockKind::None {
            return (name == "types")
                .then(|| Line::block(name, &[], definitions::types(&mut self.random)));
        }
        let arguments = values::arguments(directive, context, &mut self.random, self.world);
        Some(Line::with(name, arguments))
    }

    /// Puts one into a scope where it may stand; false where the scope that was drawn does not take
    /// it.
    fn strew(
        &mut self,
        name: &'static str,
        lines: &mut Vec<Line>,
        scopes: &[(Path, Contexts)],
    ) -> bool {
        // Above locations it mostly leads round in a circle, which hides what comes after it.
        let in_locations = name == "post_action" && self.random.chance(90);
        let fitting: Vec<&(Path, Contexts)> = scopes
            .iter()
            .filter(|(_, context)| !in_locations || *context == Contexts::LOCATION)
            .filter(|(_, context)| self.table.find(name, *context).is_some())
            .collect();
        if fitting.is_empty() {
            return false;
        }
        let (path, context) = fitting[self.random.below(fitting.len())];
        // What a whole server inherits leads round in a circle, and nginx ends each connection
        // there.
        let inherited = *context == Contexts::HTTP || *context == Contexts::SERVER;
        if name == "post_action" && inherited && self.random.chance(80) {
            return false;
        }
        let Some(line) = self.strewn(name, *context) else {
            return false;
        };
        let several = SEVERAL.contains(&name);
        if !several && at(lines, path).iter().any(|line| line.name == name) {
            return false;
        }
        for group in APART.iter().filter(|group| group.contains(&name)) {
            // What stands outside of the servers is inherited by all of them, what stands in one by
            // none of the others.
            let others = |line: &Line, index: usize| {
                path.get(1)
                    .is_some_and(|own| line.name == "server" && index != *own)
            };
            let clash = |line: &Line| line.name != name && group.contains(&line.name.as_str());
            let of_http = path.first().map_or(&lines[..], |http| lines[*http].inner());
            let clashes = of_http.iter().enumerate().any(|(index, line)| {
                let mut found = false;
                line.visit(&mut |line| found |= clash(line));
                found && !others(line, index)
            });
            if clashes {
                return false;
            }
        }
        let scope = at(lines, path);
        scope.push(line);
        for (_, text) in COMPANIONS.iter().filter(|(first, _)| *first == name) {
            let companion = Line::words(text);
            if !scope.iter().any(|line| line.name == companion.name) {
                scope.push(companion);
            }
        }
        true
    }
}

/// The lines of a scope.
fn at<'a>(lines: &'a mut Vec<Line>, path: &[usize]) -> &'a mut Vec<Line> {
    let mut scope = lines;
    for index in path {
        scope = scope[*index].block.get_or_insert_default();
    }
    scope
}

/// Every scope that directives of the table may stand in.
fn scopes(table: &Table, lines: &[Line]) -> Vec<(Path, Contexts)> {
    let mut found = vec![(Vec::new(), Contexts::MAIN)];
    gather(table, lines, &Vec::new(), Contexts::MAIN, &mut found);
    found
}

fn gather(
    table: &Table,
    lines: &[Line],
    path: &Path,
    context: Contexts,
    found: &mut Vec<(Path, Contexts)>,
) {
    for (index, line) in lines.iter().enumerate() {
        let inner = table
            .find(&line.name, context)
            .map_or(context, |directive| directive.opens.inside(context));
        if line.block.is_none() || inner == context && line.name != "location" {
            continue;
        }
        let mut path = path.clone();
        path.push(index);
        found.push((path.clone(), inner));
        gather(table, line.inner(), &path, inner, found);
    }
}
