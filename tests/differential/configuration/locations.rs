//! Locations: their names, what answers in them, what is nested in them.

use std::collections::BTreeSet;

use super::draft::Draft;
use super::families::Family;
use super::lists;
use super::sprinkle::SEVERAL;
use super::tree::Line;
use super::values::plain;

/// How a location is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// By the beginning of the path.
    Prefix(String),
    /// By the whole path.
    Exact(String),
    /// By a pattern; with its index in the list.
    Pattern(usize),
}

/// What answers in a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    Files,
    Proxy,
    /// A directive that answers by itself.
    Own(&'static str),
}

/// Directives that answer by themselves.
const HANDLERS: &[&str] = &[
    "empty_gif",
    "flv",
    "mp4",
    "stub_status",
    "random_index on",
    "return",
    "internal",
    "dav",
];

/// Lines that a location may hold several of, beside those of [`SEVERAL`].
const REWRITES: &[&str] = &[
    "rewrite",
    "set",
    "if",
    "break",
    "return",
    "auth_request_set",
];

impl Draft<'_> {
    /// A location with what is nested in it; nothing where the name that was drawn is there
    /// already.
    pub(super) fn location(
        &mut self,
        names: &mut BTreeSet<String>,
        outer: Option<&Place>,
    ) -> Vec<Line> {
        let (words, place) = self.place(outer);
        let joined = words.join(" ");
        let key = joined.trim_start_matches("^~ ");
        if !names.insert(String::from(key)) {
            return Vec::new();
        }
        let mut families = match self.wanted.pop() {
            Some((one, other)) => vec![one, other],
            None => Vec::new(),
        };
        while families.is_empty() || (families.len() < 4 && self.random.chance(25)) {
            let more = Family::ALL[self.random.below(Family::ALL.len())];
            if !families.contains(&more) {
                families.push(more);
            }
        }
        families.sort_unstable();
        let handler = self.handler(&families);
        let mut lines = self.answer(handler, &place);
        for family in &families {
            for line in self.family(*family, &place, handler) {
                let several =
                    SEVERAL.contains(&line.name.as_str()) || REWRITES.contains(&line.name.as_str());
                if several || !lines.iter().any(|known| known.name == line.name) {
                    lines.push(line);
                }
            }
        }
        for (index, one) in families.iter().enumerate() {
            self.pairs
                .extend(families[index + 1..].iter().map(|other| (*one, *other)));
        }
        let nests = !matches!(place, Place::Exact(_)) && outer.is_none();
        if nests && self.random.chance(25) {
            let mut inner = BTreeSet::new();
            for _ in 0..=self.random.below(2) {
                let nested = self.location(&mut inner, Some(&place));
                lines.extend(nested);
            }
        }
        self.aim(&place);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        vec![Line::block("location", &words, lines)]
    }

    /// A name for a location; one that is nested begins with the outer one's.
    fn place(&mut self, outer: Option<&Place>) -> (Vec<String>, Place) {
        let pattern = |draft: &mut Self| {
            let index = draft.random.below(lists::PATTERNS.len());
            let sign = match lists::PATTERNS[index].0 {
                "^/DIR/" => "~*",
                _ => draft.random.pick(&["~", "~", "~*"]),
            };
            (
                vec![
                    String::from(sign),
                    format!("\"{}\"", lists::PATTERNS[index].0),
                ],
                Place::Pattern(index),
            )
        };
        let base = match outer {
            Some(Place::Pattern(_)) => return pattern(self),
            Some(Place::Prefix(name) | Place::Exact(name)) => Some(name.clone()),
            None => None,
        };
        if self.random.chance(27) {
            return pattern(self);
        }
        let name = match (&base, self.random.below(10)) {
            (Some(base), _) => format!(
                "{base}{}",
                self.random.pick(&["dir/", "page.html", "x/", "b", "/"])
            ),
            (None, 0..3) => String::from("/"),
            (None, 3..5) if !self.world.files.is_empty() => {
                plain(&self.world.files[self.random.below(self.world.files.len())])
            }
            _ => String::from(self.random.pick(lists::PREFIXES)),
        };
        let name = if name
            .chars()
            .any(|letter| "~=@^".contains(letter) || letter.is_whitespace())
        {
            String::from("/odd/")
        } else {
            name
        };
        match self.random.below(10) {
            0 | 1 => (vec![String::from("="), name.clone()], Place::Exact(name)),
            2 => (vec![String::from("^~"), name.clone()], Place::Prefix(name)),
            _ => (vec![name.clone()], Place::Prefix(name)),
        }
    }

    fn handler(&mut self, families: &[Family]) -> Handler {
        if families.contains(&Family::Proxy) {
            return Handler::Proxy;
        }
        if families.contains(&Family::Files) {
            return Handler::Files;
        }
        if self.random.chance(38) {
            return Handler::Own(self.random.pick(HANDLERS));
        }
        if self.random.chance(45) {
            Handler::Proxy
        } else {
            Handler::Files
        }
    }

    /// The lines that make a location answer.
    fn answer(&mut self, handler: Handler, place: &Place) -> Vec<Line> {
        match handler {
            Handler::Files => self.files(place),
            Handler::Proxy => self.proxy(place),
            Handler::Own(name) => {
                let mut lines = match name {
                    "return" => {
                        let text = self.random.pick(&[
                            "return 200",
                            "return 200 ok",
                            "return 301 /page.html",
                            "return 302 http://two.example$request_uri",
                            "return 404",
                            "return 204",
                            "return http://$host/moved",
                            "return 503 $uri",
                            "return 200 $arg_a$http_x_test",
                            "return 307 $uri?x",
                            "return 444",
                            "return 410",
                            "return 308 //two.example/",
                            "return 206 part",
                            "return 304",
                            "return 599",
                            "return 500 \"\"",
                        ]);
                        return vec![Line::words(text)];
                    }
                    "dav" => vec![
                        Line::words("dav_methods PUT DELETE MKCOL COPY MOVE"),
                        Line::words(
                            self.random
                                .pick(&["create_full_put_path on", "create_full_put_path off"]),
                        ),
                        Line::words(
                            self.random
                                .pick(&["dav_access user:rw", "dav_access group:rw all:r"]),
                        ),
                        Line::words("root dav"),
                    ],
                    "internal" => self.files(place),
                    _ => Vec::new(),
                };
                if name != "dav" {
                    lines.push(Line::words(name));
                }
                if matches!(name, "flv" | "mp4" | "random_index on") {
                    lines.extend(self.files(place));
                }
                lines
            }
        }
    }

    /// Where files of this location are looked for.
    fn files(&mut self, place: &Place) -> Vec<Line> {
        match place {
            Place::Prefix(name) => {
                let slash = if name.ends_with('/') { "/" } else { "" };
                match self.random.below(5) {
                    0 | 1 => vec![Line::new("alias", &[&format!("html{slash}")])],
                    2 => vec![Line::words(self.random.pick(&[
                        "root html",
                        "root html/",
                        "root html/dir",
                    ]))],
                    3 => vec![
                        Line::words("root html"),
                        Line::new("rewrite", &[&format!("\"^{name}(.*)$\""), "/$1", "break"]),
                    ],
                    _ => Vec::new(),
                }
            }
            Place::Exact(name) => match self.random.below(3) {
                0 if !name.ends_with('/') => vec![Line::words("alias html/page.html")],
                1 => vec![Line::words("root html")],
                _ => Vec::new(),
            },
            Place::Pattern(index) => match self.random.below(4) {
                0 if lists::PATTERNS[*index].0.contains("rest") => {
                    vec![Line::words("alias html/$rest")]
                }
                1 => vec![Line::words("alias html$uri")],
                2 => vec![Line::words("root html")],
                _ => Vec::new(),
            },
        }
    }

    /// Where requests of this location are sent to.
    pub(super) fn proxy(&mut self, place: &Place) -> Vec<Line> {
        let upstreams = &self.world.upstreams;
        let address = upstreams[self.random.below(upstreams.len())].clone();
        let host = match self.random.below(12) {
            0..8 => address,
            8 | 9 => String::from("backend"),
            10 => String::from("group"),
            _ => self.world.dead.clone(),
        };
        let answer = if self.world.answers.is_empty() {
            String::from("/ok")
        } else {
            plain(&self.world.answers[self.random.below(self.world.answers.len())])
        };
        let rest = match (place, self.random.below(10)) {
            (_, 0) => String::from("$request_uri"),
            (_, 1) => format!("{answer}$is_args$args"),
            (_, 2) => String::from("$uri"),
            (Place::Pattern(_), _) => String::new(),
            (_, 3..6) => String::from("/"),
            (_, 6) => answer,
            (_, 7) => String::from("/base?x=1"),
            _ => String::new(),
        };
        let mut lines = vec![Line::new("proxy_pass", &[&format!("http://{host}{rest}")])];
        if !rest.contains('$') && self.random.chance(15) {
            lines.push(Line::words("proxy_redirect default"));
        }
        lines
    }

    /// Paths that lead to the place.
    fn aim(&mut self, place: &Place) {
        let ends = [
            "",
            "index.html",
            "page.html",
            "none",
            "dir/",
            "dir",
            "x/../page.html",
            "%2e%2e/x",
            "?a=one",
            "/",
            "a%2Fb",
            "page.html?page=3&a=t2",
        ];
        match place {
            Place::Prefix(name) | Place::Exact(name) => {
                let mut all: Vec<String> = ends.iter().map(|end| format!("{name}{end}")).collect();
                for list in [&self.world.files, &self.world.answers] {
                    for _ in 0..list.len().min(4) {
                        let other = &list[self.random.below(list.len())];
                        all.push(format!("{}{other}", name.trim_end_matches('/')));
                    }
                }
                let spelled = all
                    .iter()
                    .map(|path| path.bytes().map(spelled).collect::<String>());
                self.targets.extend(spelled);
            }
            Place::Pattern(index) => {
                self.targets.extend(
                    lists::PATTERNS[*index]
                        .1
                        .iter()
                        .map(|path| String::from(*path)),
                );
            }
        }
    }
}

/// A byte of a path as it may stand in a request line.
fn spelled(byte: u8) -> String {
    match byte {
        0x21..=0x7e => String::from(char::from(byte)),
        _ => format!("%{byte:02X}"),
    }
}
