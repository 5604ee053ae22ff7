//! A random configuration: a tree of lines that can be written out, counted, and made smaller.
//!
//! What may be written comes from the table of directives itself ([`table`]), the values from the
//! manual's notation ([`notation`]) and from lists of our own where the notation says too little
//! ([`values`]). [`draft`] puts the frame of servers and locations up, [`families`] lets features
//! meet in one location, [`sprinkle`] strews every directive over the scopes it may stand in,
//! [`caches`] has some of them keep answers, [`shrink`] and [`broken`] make smaller and faulty ones
//! of it.

mod broken;
mod caches;
mod definitions;
mod draft;
mod families;
mod files;
mod lists;
mod locations;
mod notation;
mod older;
mod shrink;
mod sprinkle;
mod table;
mod tree;
mod values;

pub(crate) use families::Family;
pub(crate) use files::files;
pub(crate) use shrink::Cut;
pub(crate) use sprinkle::Density;
pub(crate) use table::{DirectiveNames, Table};
pub(crate) use tree::Line;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::random::Random;

/// What the surroundings give to a configuration: addresses and folders that it may name.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// The folder of the run: `conf/`, `html/` (the tree of odd files), `logs/`, `temp/`.
    pub(crate) prefix: std::path::PathBuf,
    /// Ports that the servers of the configuration listen on (127.0.0.1); the first is in the
    /// clear, without the PROXY protocol, and always listened on. Four of them: see [`Kind`].
    pub(crate) ports: Vec<u16>,
    /// `ADDRESS:PORT` of the recording upstream, as often as it listens.
    pub(crate) upstreams: Vec<String>,
    /// An address that refuses connections.
    pub(crate) dead: String,
    /// URIs of the tree below `html/`; those of folders end with a slash.
    pub(crate) files: Vec<String>,
    /// Paths that the recording upstream has an answer for.
    pub(crate) answers: Vec<String>,
}

/// What a client says first on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request.
    Clear,
    /// The header of the PROXY protocol, then the request.
    Proxied,
    /// A TLS handshake.
    Tls,
}

/// A whole configuration.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// The lines of the outermost level.
    pub(crate) lines: Vec<Line>,
    /// Paths worth asking for: names of locations, what patterns match, files below them.
    targets: Vec<String>,
    /// The families that meet in a location, the earlier one first.
    pairs: Vec<(Family, Family)>,
}

impl Configuration {
    /// A valid configuration. `seed` says which directives it must have and which families meet in
    /// it, so that seeds that follow one another cover all of them; the rest is drawn from
    /// `random`. `density` says how much is strewn beyond the frame, `log_format` is what stands
    /// behind the name of the access log's format.
    pub(crate) fn random(
        random: &mut Random,
        seed: u64,
        world: &World,
        table: &Table,
        density: Density,
        log_format: &str,
    ) -> Configuration {
        let draft = draft::Draft::new(random.fork(), seed, world, table, density);
        let mut configuration = draft.finish(log_format);
        caches::add(&mut configuration.lines, &mut Random::new(!seed));
        if table.version() < older::NEW_DEFAULTS {
            older::older(&mut configuration.lines);
        }
        configuration
    }

    /// The file's text. An engine goes into `events`, where nginx knows `epoll` alone.
    pub(crate) fn text(&self, engine: Option<&str>) -> String {
        let mut text = String::new();
        for line in &self.lines {
            match (engine, &line.block) {
                (Some(engine), Some(inner)) if line.name == "events" => {
                    let mut events = vec![Line::new("use", &[engine])];
                    events.extend(inner.iter().filter(|line| line.name != "use").cloned());
                    Line::block("events", &[], events).write(0, &mut text);
                }
                _ => line.write(0, &mut text),
            }
        }
        text
    }

    /// Paths worth asking for.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.targets.clone()
    }

    /// Values of `Host` that lead to the servers, and some that lead nowhere.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let mut hosts: BTreeSet<String> = ["", "127.0.0.1", "unknown.example", "ONE.example:8080"]
            .into_iter()
            .map(String::from)
            .collect();
        for server in self.servers() {
            for line in server
                .inner()
                .iter()
                .filter(|line| line.name == "server_name")
            {
                hosts.extend(line.arguments.iter().map(|name| host(name)));
            }
        }
        hosts.into_iter().collect()
    }

    /// Whether a body may have been read before `PUT` asks for it, which nginx then refuses.
    pub(crate) fn reads_ahead_of_put(&self) -> bool {
        let text = self.text(None);
        let has = |words: &str| {
            text.lines()
                .any(|line| line.trim_start().starts_with(words))
        };
        has("dav_methods ") && (has("mirror /") || has("client_body_early_read "))
    }

    /// The ports that servers listen on, with what a client says first there.
    pub(crate) fn ports(&self) -> Vec<(u16, Kind)> {
        let mut ports: BTreeMap<u16, Kind> = BTreeMap::new();
        for server in self.servers() {
            for line in server.inner().iter().filter(|line| line.name == "listen") {
                let port = line.arguments.first().and_then(|address| {
                    let (_, port) = address.rsplit_once(':').unwrap_or(("", address));
                    port.parse::<u16>().ok()
                });
                let Some(port) = port else { continue };
                let has = |option: &str| line.arguments.iter().any(|one| one == option);
                let kind = if has("ssl") {
                    Kind::Tls
                } else if has("proxy_protocol") {
                    Kind::Proxied
                } else {
                    Kind::Clear
                };
                let known = ports.entry(port).or_insert(kind);
                if kind != Kind::Clear {
                    *known = kind;
                }
            }
        }
        ports.into_iter().collect()
    }

    /// How often each directive is written.
    pub(crate) fn directives(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in &self.lines {
            line.visit(&mut |line| *counts.entry(line.name.clone()).or_insert(0) += 1);
        }
        counts
    }

    /// The families that meet in one of the locations, the earlier one first.
    pub(crate) fn pairs(&self) -> Vec<(Family, Family)> {
        self.pairs.clone()
    }

    /// Ways to a smaller configuration that may show the same, those that leave out the most first.
    pub(crate) fn cuts(&self) -> Vec<Cut> {
        shrink::cuts(&self.lines)
    }

    /// The configuration after a cut; it need not be valid. Nothing where the cut changes nothing.
    pub(crate) fn cut(&self, cut: &Cut) -> Option<Configuration> {
        Some(Configuration {
            lines: shrink::cut(&self.lines, cut)?,
            targets: Vec::new(),
            pairs: Vec::new(),
        })
    }

    /// The text with one fault in it: a word missing or too many, a bad value, a lost semicolon or
    /// brace, a line in the wrong place.
    pub(crate) fn broken(&self, random: &mut Random) -> String {
        broken::broken(self, random)
    }

    fn servers(&self) -> impl Iterator<Item = &Line> {
        self.lines
            .iter()
            .filter(|line| line.name == "http")
            .flat_map(|http| http.inner())
            .filter(|line| line.name == "server")
    }
}

/// A host that a name of a server fits.
fn host(name: &str) -> String {
    let name = name.trim_matches('"');
    if name.starts_with('~') {
        return String::from("part.regex.example");
    }
    let mut host = String::new();
    if name.starts_with('.') {
        host.push_str("sub");
    }
    let _ = write!(
        host,
        "{}",
        name.replace("$hostname", "localhost").replace('*', "star")
    );
    host
}
