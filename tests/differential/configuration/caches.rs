//! Content caches: some of the scopes that pass requests on keep the answers. They are drawn from a
//! stream of their own, after all else, so that they move nothing of what the rest of a
//! configuration draws.
//!
//! Not drawn is what hangs on the clock or on two requests at once (`*_cache_lock`,
//! `*_cache_background_update`), and `*_cache_purge`, which the reference does not have.

use super::tree::Line;
use crate::random::Random;

/// What lines of caches begin with.
const FAMILIES: [&str; 4] = ["proxy_", "fastcgi_", "uwsgi_", "scgi_"];

/// How many of the scopes that pass requests on have a cache, in a hundred.
const CHANCE: usize = 30;

/// Keys, of which some have several requests share an answer.
const KEYS: &[&str] = &[
    "$uri",
    "$request_method$uri",
    "$scheme$host$request_uri",
    "$host$uri$is_args$args",
    "fixed$arg_a",
];

/// Further lines, behind the family's prefix.
const LINES: &[&str] = &[
    "cache_bypass $arg_a",
    "cache_bypass $http_x_test $cookie_a",
    "cache_max_range_offset 0",
    "cache_max_range_offset 10",
    "cache_max_range_offset 100000",
    "cache_methods GET",
    "cache_methods POST",
    "cache_min_uses 1",
    "cache_min_uses 2",
    "cache_revalidate on",
    "cache_use_stale error timeout http_500",
    "cache_use_stale http_404 updating",
    "cache_use_stale off",
    "cache_valid 200 301 302 1h",
    "cache_valid 404 10m",
    "cache_valid 500 503 1h",
    "cache_valid any 1h",
    "no_cache $arg_b",
    "no_cache $http_authorization",
];

/// Gives some scopes a cache, and `http` the folders that these need.
pub(super) fn add(lines: &mut [Line], random: &mut Random) {
    let mut used = [false; FAMILIES.len()];
    add_to_scopes(lines, random, &mut used);
    let http = lines.iter_mut().find(|line| line.name == "http");
    let inner = http.and_then(|http| http.block.as_mut());
    let Some(inner) = inner else { return };
    for (family, _) in FAMILIES.iter().zip(used).filter(|(_, used)| *used) {
        // Behind the definitions, before what refers to it or after that: nginx takes both.
        let at = inner.iter().position(|line| line.name == "server");
        let line = Line::words(&format!(
            "{family}cache_path temp/{family}cache keys_zone={family}pages:1m levels={}",
            random.pick(&["1", "2", "1:2", "2:2:1"])
        ));
        inner.insert(at.unwrap_or(inner.len()), line);
    }
}

fn add_to_scopes(lines: &mut [Line], random: &mut Random, used: &mut [bool]) {
    for line in lines {
        let Some(inner) = &mut line.block else {
            continue;
        };
        add_to_scopes(inner, random, used);
        // An `if` takes what stands around it.
        if line.name != "location" {
            continue;
        }
        for (family, used) in FAMILIES.iter().zip(used.iter_mut()) {
            let pass = format!("{family}pass");
            if inner.iter().any(|line| line.name == pass) && random.chance(CHANCE) {
                *used = true;
                inner.extend(cache(family, random));
            }
        }
    }
}

/// The lines of one cache.
fn cache(family: &str, random: &mut Random) -> Vec<Line> {
    let mut lines = vec![
        Line::words(&format!("{family}cache {family}pages")),
        Line::words(&format!("{family}cache_key {}", random.pick(KEYS))),
    ];
    for _ in 0..random.below(4) {
        let line = Line::words(&format!("{family}{}", random.pick(LINES)));
        // Twice is an error, but for lines that make a list.
        let is_list = line.name.ends_with("_valid");
        if is_list || !lines.iter().any(|known| known.name == line.name) {
            lines.push(line);
        }
    }
    if family == "proxy_" && random.chance(20) {
        lines.push(Line::words("proxy_cache_convert_head off"));
    }
    lines
}
