//! siege's command line, parsed like getopt_long(3): letters may be joined, long names may have
//! `=`, and the URL is last.

use std::time::Duration;

/// The default number of users, as in the configuration that siege creates for a new user.
const USERS_DEFAULT: u32 = 25;

/// Maximum number of users. siege's own limit is 255 unless its configuration says otherwise.
const USERS_MAX: u32 = 100_000;

/// The default file of `-l` and `-m`.
const LOG_FILE: &str = "/var/log/siege.log";

pub(super) const USAGE: &str = "\
Usage: siege [options]
       siege [options] URL
       siege -g URL
Options:
  -V, --version             VERSION, prints the version number.
  -h, --help                HELP, prints this section.
  -q, --quiet               QUIET, prints no report.
  -g, --get                 GET, pull down HTTP headers and display the
                            transaction.
  -p, --print               PRINT, like GET only it prints the entire page.
  -c, --concurrent=NUM      CONCURRENT users, default is 25
  -r, --reps=NUM|once       REPS, number of times to run the test.
  -t, --time=NUMm           TIMED testing where \"m\" is modifier S, M, or H
                            ex: --time=1H, one hour test.
  -d, --delay=NUM           Time DELAY, random delay after each request
  -b, --benchmark           BENCHMARK: no delays between requests.
  -i, --internet            INTERNET user simulation, hits URLs randomly.
  -f, --file=FILE           FILE, select a specific URLS FILE.
  -l, --log[=FILE]          LOG to FILE. If FILE is not specified, the
                            default is used: /var/log/siege.log
  -m, --mark=\"text\"         MARK, mark the log file with a string.
  -H, --header=\"text\"       Add a header to request (can be many)
  -A, --user-agent=\"text\"   Sets User-Agent in request
  -T, --content-type=\"text\" Sets Content-Type in request
  -j, --json-output         JSON OUTPUT, print final stats to stdout as JSON
      --allow-remote=HOST   Tidegate's: a host that is neither this machine
                            nor in a private network
Taken with a note that they do nothing here:
  -R, --rc=FILE  -v, --verbose  --no-parser  --no-follow
";

/// The options with a value, by letter and name.
const WITH_VALUE: [(char, &str); 10] = [
    ('c', "concurrent"),
    ('r', "reps"),
    ('t', "time"),
    ('d', "delay"),
    ('f', "file"),
    ('R', "rc"),
    ('m', "mark"),
    ('H', "header"),
    ('A', "user-agent"),
    ('T', "content-type"),
];

/// The options without a value or with an optional one (`-l`).
const SWITCHES: [(char, &str); 14] = [
    ('V', "version"),
    ('h', "help"),
    ('v', "verbose"),
    ('q', "quiet"),
    ('g', "get"),
    ('p', "print"),
    ('b', "benchmark"),
    ('i', "internet"),
    ('j', "json-output"),
    ('N', "no-parser"),
    ('F', "no-follow"),
    ('l', "log"),
    ('C', "config"),
    ('D', "debug"),
];

/// How many times each user repeats its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetitions {
    /// Until the time limit or an interrupt.
    Endless,
    Number(u64),
    /// Once through the list of URLs.
    Once,
}

/// What is printed of a single request's exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Heads,
    Page,
}

/// The parsed command line.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) users: u32,
    pub(super) repetitions: Repetitions,
    pub(super) time: Option<Duration>,
    /// The upper limit of the random pause between requests.
    pub(super) delay: Duration,
    /// Whether URLs are requested in random order.
    pub(super) internet: bool,
    pub(super) quiet: bool,
    pub(super) json: bool,
    pub(super) show: Option<Show>,
    pub(super) file: Option<String>,
    pub(super) url: Option<String>,
    pub(super) log: Option<String>,
    pub(super) mark: Option<String>,
    pub(super) fields: Vec<(String, String)>,
    pub(super) agent: Option<String>,
    pub(super) content_type: Option<String>,
    /// Hosts that may have any address.
    pub(super) allow_remote: Vec<String>,
    /// Options that are accepted but have no effect, for a note to the user.
    pub(super) without_effect: Vec<String>,
}

/// Why there is no run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EarlyExit {
    Version,
    Help,
    Fault(String),
}

fn fault(text: impl Into<String>) -> EarlyExit {
    EarlyExit::Fault(text.into())
}

impl Flags {
    pub(super) fn parse(arguments: impl Iterator<Item = String>) -> Result<Flags, EarlyExit> {
        let mut flags = Flags {
            users: USERS_DEFAULT,
            repetitions: Repetitions::Endless,
            time: None,
            delay: Duration::ZERO,
            internet: false,
            quiet: false,
            json: false,
            show: None,
            file: None,
            url: None,
            log: None,
            mark: None,
            fields: Vec::new(),
            agent: None,
            content_type: None,
            allow_remote: Vec::new(),
            without_effect: Vec::new(),
        };
        let mut benchmark = false;
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            if let Some(name) = argument.strip_prefix("--").filter(|name| !name.is_empty()) {
                let (name, value) = match name.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (name, None),
                };
                if let Some(letter) = letter(&WITH_VALUE, name) {
                    let value = value.or_else(|| arguments.next());
                    flags.set(letter, value.ok_or_else(|| missing(name))?)?;
                } else {
                    let letter = letter(&SWITCHES, name)
                        .ok_or_else(|| fault(format!("unrecognized option '--{name}'")))?;
                    benchmark |= letter == 'b';
                    flags.switch(letter, value)?;
                }
            } else if let Some(letters) = argument.strip_prefix('-').filter(|text| !text.is_empty())
            {
                benchmark |= flags.letters(letters, &mut arguments)?;
            } else {
                flags.url = Some(argument);
            }
        }
        if benchmark {
            flags.delay = Duration::ZERO;
        }
        if flags.mark.is_some() && flags.log.is_none() {
            flags.log = Some(LOG_FILE.to_owned());
        }
        if flags.url.is_none() && flags.show.is_some() {
            return Err(fault("-g/--get requires a commandline URL"));
        }
        if flags.url.is_none() && flags.file.is_none() {
            return Err(EarlyExit::Help);
        }
        Ok(flags)
    }

    /// Parses one argument of joined letters. Returns whether `-b` is among them.
    fn letters(
        &mut self,
        letters: &str,
        arguments: &mut impl Iterator<Item = String>,
    ) -> Result<bool, EarlyExit> {
        let mut benchmark = false;
        for (place, letter) in letters.char_indices() {
            let rest = letters.get(place + letter.len_utf8()..).unwrap_or_default();
            let value = (!rest.is_empty()).then(|| rest.to_owned());
            if WITH_VALUE.iter().any(|(known, _)| *known == letter) {
                let value = value.or_else(|| arguments.next());
                let value = value.ok_or_else(|| missing(&letter.to_string()))?;
                self.set(letter, value)?;
                return Ok(benchmark);
            }
            if letter == 'l' {
                self.switch(letter, value)?;
                return Ok(benchmark);
            }
            benchmark |= letter == 'b';
            self.switch(letter, None)?;
        }
        Ok(benchmark)
    }

    fn switch(&mut self, letter: char, value: Option<String>) -> Result<(), EarlyExit> {
        match letter {
            'V' => return Err(EarlyExit::Version),
            'h' => return Err(EarlyExit::Help),
            'q' => self.quiet = true,
            'g' => self.show = Some(Show::Heads),
            'p' => self.show = Some(Show::Page),
            'b' => {}
            'i' => self.internet = true,
            'j' => self.json = true,
            'l' => self.log = Some(value.unwrap_or_else(|| LOG_FILE.to_owned())),
            'v' => self.without_effect.push("-v (no lines)".to_owned()),
            'N' => self.without_effect.push("--no-parser (always)".to_owned()),
            'F' => self.without_effect.push("--no-follow (always)".to_owned()),
            'C' | 'D' => return Err(fault(format!("-{letter} is not supported here"))),
            _ => return Err(fault(format!("invalid option -- '{letter}'"))),
        }
        Ok(())
    }

    fn set(&mut self, letter: char, value: String) -> Result<(), EarlyExit> {
        let bad = || fault(format!("-{letter}: {value:?} is no number"));
        match letter {
            'c' => {
                let users = value.parse::<u32>().map_err(|_| bad())?;
                self.users = users.clamp(1, USERS_MAX);
            }
            'r' if value.eq_ignore_ascii_case("once") => self.repetitions = Repetitions::Once,
            'r' => self.repetitions = Repetitions::Number(value.parse().map_err(|_| bad())?),
            't' => self.time = Some(time(&value).ok_or_else(bad)?),
            'd' => {
                let seconds = value.parse::<f64>().map_err(|_| bad())?;
                self.delay = Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|_| bad())?;
            }
            'f' => self.file = Some(value),
            'R' => self.without_effect.push(format!("-R {value} (not read)")),
            'm' => self.mark = Some(value),
            'H' => {
                let (name, value) = value
                    .split_once(':')
                    .ok_or_else(|| fault("no ':' in http-header"))?;
                self.fields.push((name.to_owned(), value.trim().to_owned()));
            }
            'A' => self.agent = Some(value),
            _ => self.content_type = Some(value),
        }
        Ok(())
    }
}

fn letter(known: &[(char, &str)], name: &str) -> Option<char> {
    let found = known.iter().find(|(_, known)| *known == name);
    found.map(|(letter, _)| *letter)
}

fn missing(name: &str) -> EarlyExit {
    fault(format!("option requires an argument -- '{name}'"))
}

/// Parses a number and its unit, the first `S`, `M` or `H` after it; minutes without a unit.
fn time(text: &str) -> Option<Duration> {
    let end = text.find(|character: char| !character.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number = number.parse::<u64>().ok().filter(|number| *number > 0)?;
    let unit = unit
        .bytes()
        .find_map(|byte| match byte.to_ascii_lowercase() {
            b's' => Some(1),
            b'm' => Some(60),
            b'h' => Some(3600),
            _ => None,
        });
    Some(Duration::from_secs(
        number.saturating_mul(unit.unwrap_or(60)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, EarlyExit> {
        Flags::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_may_be_written_in_every_way() {
        for line in [
            "-c5 -r3 -d2 -ij -t30S http://h/",
            "-c 5 -r 3 -d 2 -i -j -t 30s http://h/",
            "--concurrent=5 --reps=3 --delay=2 --internet --json-output --time=30S http://h/",
            "http://h/ --concurrent 5 --reps 3 --delay 2 -ji --time 30s",
        ] {
            let flags = parse(line).unwrap();
            assert_eq!(flags.users, 5, "{line}");
            assert_eq!(flags.repetitions, Repetitions::Number(3), "{line}");
            assert_eq!(flags.delay, Duration::from_secs(2), "{line}");
            assert_eq!(flags.time, Some(Duration::from_secs(30)), "{line}");
            assert!(flags.internet && flags.json && !flags.quiet, "{line}");
            assert_eq!(flags.url.as_deref(), Some("http://h/"), "{line}");
        }
        let flags = parse("-b -d9 -rOnce -H A:b -R x -f y -mz").unwrap();
        assert_eq!(
            (flags.delay, flags.repetitions),
            (Duration::ZERO, Repetitions::Once)
        );
        assert_eq!(flags.fields, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(flags.log.as_deref(), Some(LOG_FILE));
        assert_eq!(flags.without_effect, ["-R x (not read)"]);
    }

    #[test]
    fn times_are_minutes_where_no_unit_is_given() {
        for (text, seconds) in [("1", 60), ("30S", 30), ("2m", 120), ("1H", 3600)] {
            assert_eq!(time(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!([time(""), time("s"), time("0s")], [None; 3]);
    }

    #[test]
    fn faults() {
        for (line, text) in [
            ("-H x http://h/", "no ':' in http-header"),
            ("-g", "-g/--get requires a commandline URL"),
            ("-c x http://h/", "-c: \"x\" is no number"),
            ("-Z", "invalid option -- 'Z'"),
            ("-c", "option requires an argument -- 'c'"),
            ("--nothing", "unrecognized option '--nothing'"),
            ("-C", "-C is not supported here"),
        ] {
            assert_eq!(parse(line).unwrap_err(), fault(text), "{line}");
        }
        assert_eq!(parse("").unwrap_err(), EarlyExit::Help);
        assert_eq!(parse("-V").unwrap_err(), EarlyExit::Version);
    }
}
