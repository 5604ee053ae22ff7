//! Runs nginx's own test suite against Tidegate.
//!
//! The suite is nginx's and stays outside the repository; SUITE names a checkout. Two lists are
//! part of the repository: tests/nginx-suite.list has the files to run, with their area, the number
//! of subtests that nginx itself passes, and their requirements; tests/nginx-suite.passing has the
//! files that Tidegate passes. It is a failure if a file of the second list no longer passes. Only
//! whole files count, not subtests: many subtests only check that something does not happen, and a
//! server that never answers would pass them.
//!
//! If started as root, the suite runs in its own network and process namespaces, as the user
//! `nobody`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const USAGE: &str = "usage: xtask judge SUITE [options]

Runs the files of tests/nginx-suite.passing; a file that no longer passes is a failure.

  --all              every file of tests/nginx-suite.list, and says which pass newly
  --can A,B,…        with --all: only files that need nothing but these
  --area A,B,…       with --all: only these areas
  --file NAME        with --all: only files whose name contains NAME
  --update           writes what passed into tests/nginx-suite.passing (files that were not run stay)
  --binary PATH      default: target/release/tidegate
  --jobs N           files at the same time, default 4
  --out DIR          where each file's output is kept, default target/judge";

/// Time limit for one file of the suite, in seconds; nginx needs 20 s for the slowest.
const FILE_SECONDS_MAX: u64 = 120;

/// Environment variable that marks the process inside the namespaces.
const INSIDE: &str = "TIDEGATE_JUDGE_INSIDE";

/// A row of tests/nginx-suite.list.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    file: String,
    area: String,
    /// Number of subtests that nginx passes on such a machine.
    subtests: usize,
    needs: Vec<String>,
}

#[derive(Debug)]
struct Options {
    suite: PathBuf,
    all: bool,
    can: Option<Vec<String>>,
    areas: Option<Vec<String>>,
    file: Option<String>,
    update: bool,
    binary: PathBuf,
    jobs: usize,
    out: PathBuf,
}

/// The result of one file.
struct SuiteVerdict {
    row: Row,
    passed: usize,
    /// Why the file did not pass; `None` if it passed.
    failure: Option<String>,
}

/// Runs the command line `judge SUITE …`.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let root = crate::repository();
    let options = parse(arguments, &root)?;
    if is_root() && std::env::var_os(INSIDE).is_none() {
        return enter_namespaces(arguments);
    }
    let list = read_list(&root.join("tests/nginx-suite.list"))?;
    let passing_file = root.join("tests/nginx-suite.passing");
    let passing = names(&std::fs::read_to_string(&passing_file).unwrap_or_default());
    let rows: Vec<Row> = list
        .into_iter()
        .filter(|row| options.wants(row, &passing))
        .collect();
    if rows.is_empty() {
        return Err(
            "no file to run: tests/nginx-suite.passing is empty, or the options leave none"
                .to_string(),
        );
    }

    let verdicts = run_all(&rows, &options)?;
    report(&verdicts, &passing);
    let passed: BTreeSet<String> = verdicts
        .iter()
        .filter(|v| v.failure.is_none())
        .map(|v| v.row.file.clone())
        .collect();
    let ran: BTreeSet<String> = rows.iter().map(|row| row.file.clone()).collect();
    if options.update {
        let now: BTreeSet<String> = passing.difference(&ran).chain(&passed).cloned().collect();
        return write_passing(&passing_file, &now);
    }
    let fallen: Vec<&String> = passing
        .intersection(&ran)
        .filter(|name| !passed.contains(*name))
        .collect();
    match fallen.len() {
        0 => Ok(()),
        count => Err(format!(
            "{count} files of tests/nginx-suite.passing no longer pass: {fallen:?}"
        )),
    }
}

impl Options {
    fn wants(&self, row: &Row, passing: &BTreeSet<String>) -> bool {
        if !self.all {
            return passing.contains(&row.file);
        }
        self.can
            .as_ref()
            .is_none_or(|can| row.needs.iter().all(|need| can.contains(need)))
            && self
                .areas
                .as_ref()
                .is_none_or(|areas| areas.contains(&row.area))
            && self
                .file
                .as_ref()
                .is_none_or(|part| row.file.contains(part.as_str()))
    }
}

fn parse(arguments: &[String], root: &Path) -> Result<Options, String> {
    let mut options = Options {
        suite: PathBuf::new(),
        all: false,
        can: None,
        areas: None,
        file: None,
        update: false,
        binary: root.join("target/release/tidegate"),
        jobs: 4,
        out: root.join("target/judge"),
    };
    let list = |text: String| {
        Some(
            text.split(',')
                .filter(|part| !part.is_empty())
                .map(str::to_string)
                .collect(),
        )
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || {
            rest.next()
                .cloned()
                .ok_or(format!("{argument} wants a value\n\n{USAGE}"))
        };
        match argument.as_str() {
            "--all" => options.all = true,
            "--update" => options.update = true,
            "--can" => options.can = list(value()?),
            "--area" => options.areas = list(value()?),
            "--file" => options.file = Some(value()?),
            "--binary" => options.binary = PathBuf::from(value()?),
            "--jobs" => {
                options.jobs = value()?
                    .parse()
                    .map_err(|_| "--jobs wants a number".to_string())?
            }
            "--out" => options.out = PathBuf::from(value()?),
            text if !text.starts_with('-') && options.suite.as_os_str().is_empty() => {
                options.suite = PathBuf::from(text)
            }
            _ => return Err(USAGE.to_string()),
        }
    }
    if !options.suite.join("lib/Test/Nginx.pm").is_file() {
        return Err(format!(
            "`{}` is no checkout of nginx's test suite (lib/Test/Nginx.pm is missing)\n\n{USAGE}",
            options.suite.display()
        ));
    }
    options.jobs = options.jobs.max(1);
    Ok(options)
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Starts this program again in its own namespaces: ports of other programs do not conflict there,
/// and processes left behind by tests are killed. The default route leads nowhere, so that
/// connecting to an unreachable address times out, as some tests expect, instead of failing at
/// once.
fn enter_namespaces(arguments: &[String]) -> Result<(), String> {
    const SETUP: &str = "ip link set lo up
        ip link add v0 type veth peer name v1 && ip addr add 198.51.100.2/24 dev v0 && ip link set v0 up && ip link set v1 up \
        && ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev v0 && ip route add default via 198.51.100.1
        exec \"$@\"";
    let program = std::env::current_exe().map_err(|error| format!("current program: {error}"))?;
    let status = Command::new("unshare")
        .args([
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            SETUP,
            "judge",
        ])
        .arg(program)
        .arg("judge")
        .args(arguments)
        .env(INSIDE, "1")
        .status()
        .map_err(|error| format!("unshare: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("judge: failed".to_string())
    }
}

fn read_list(path: &Path) -> Result<Vec<Row>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(read_row)
        .collect()
}

/// Parses a row `AREA FILE SUBTESTS NEEDS`; NEEDS is a comma-separated list or `-`.
fn read_row(line: &str) -> Result<Row, String> {
    let bad = || format!("tests/nginx-suite.list: bad line `{line}`");
    let [area, file, subtests, needs] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(bad());
    };
    let needs = if needs == "-" {
        Vec::new()
    } else {
        needs.split(',').map(str::to_string).collect()
    };
    Ok(Row {
        file: file.to_string(),
        area: area.to_string(),
        subtests: subtests.parse().map_err(|_| bad())?,
        needs,
    })
}

/// The names in a list file; `#` starts a comment.
fn names(text: &str) -> BTreeSet<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|name| !name.is_empty())
        .map(str::to_string)
        .collect()
}

fn write_passing(path: &Path, names: &BTreeSet<String>) -> Result<(), String> {
    let mut text = String::from(
        "# Files of nginx's test suite that Tidegate passes whole. `make judge SUITE=DIR JUDGE='--all --update'`\n# writes this list; a file that falls out of it fails `make judge`.\n",
    );
    for name in names {
        text.push_str(name);
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{} files in tests/nginx-suite.passing", names.len());
    Ok(())
}

/// Creates a folder for the binary. The name is based on the time, because process ids of
/// concurrent runs may be equal: each run has its own process namespace.
fn own_folder() -> Result<PathBuf, String> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.map_err(|error| error.to_string())?.as_nanos();
    let folder = PathBuf::from(format!("/tmp/tidegate-judge-{time}"));
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn run_all(rows: &[Row], options: &Options) -> Result<Vec<SuiteVerdict>, String> {
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("{}: {error}", options.out.display()))?;
    // The binary is copied so that the user `nobody` can run it, wherever the build folder is.
    let folder = own_folder()?;
    let binary = folder.join("tidegate");
    std::fs::copy(&options.binary, &binary)
        .map_err(|error| format!("{}: {error}", options.binary.display()))?;

    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = run_file(row, options, &binary);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts.push(verdict);
                    }
                }
            });
        }
    });
    let _ = std::fs::remove_dir_all(&folder);
    let mut verdicts = verdicts
        .into_inner()
        .map_err(|_| "a runner thread panicked".to_string())?;
    verdicts.sort_by(|a, b| (&a.row.area, &a.row.file).cmp(&(&b.row.area, &b.row.file)));
    Ok(verdicts)
}

fn run_file(row: &Row, options: &Options, binary: &Path) -> SuiteVerdict {
    let path = options.out.join(format!("{}.out", row.file));
    let ended = start(row, options, binary, &path)
        .and_then(|child| wait(child, Duration::from_secs(FILE_SECONDS_MAX)));
    let output = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
    let (passed, failed) = count(&output);
    let failure = match ended {
        Err(message) => Some(message),
        Ok(_) if !failed.is_empty() => Some(failed.join("; ")),
        Ok(_) if skipped(&output).is_some() => skipped(&output),
        Ok(success) if !success || passed < row.subtests => {
            Some(format!("{passed} of {} subtests", row.subtests))
        }
        Ok(_) => None,
    };
    SuiteVerdict {
        row: row.clone(),
        passed: passed.min(row.subtests),
        failure,
    }
}

fn start(row: &Row, options: &Options, binary: &Path, output: &Path) -> Result<Child, String> {
    let log = File::create(output).map_err(|error| format!("{}: {error}", output.display()))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut command = if is_root() {
        // The suite's folders belong to the user that runs it, and workers started as root would
        // switch to another user.
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "perl",
        ]);
        command
    } else {
        Command::new("perl")
    };
    command
        .args(["-Ilib", &row.file])
        .current_dir(&options.suite)
        .env("TEST_NGINX_BINARY", binary)
        .env("TEST_NGINX_UNSAFE", "1")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("perl: {error}"))
}

/// Waits for a file's test to end, then kills the processes it left behind. Returns whether it
/// exited with status 0.
fn wait(mut child: Child, limit: Duration) -> Result<bool, String> {
    let start = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status.success()),
            Ok(None) if start.elapsed() > limit => {
                break Err(format!("not done after {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break Err(error.to_string()),
        }
    };
    for signal in ["-TERM", "-KILL"] {
        let group = format!("-{}", child.id());
        let sent = Command::new("kill")
            .args([signal, "--", &group])
            .stderr(Stdio::null())
            .status();
        if !sent.is_ok_and(|status| status.success()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = child.wait();
    ended
}

/// The number of passed subtests, without skipped and to-do ones, and the names of the failed ones.
fn count(output: &str) -> (usize, Vec<String>) {
    let mut passed = 0;
    let mut failed = Vec::new();
    for line in output.lines() {
        let (good, rest) = match (line.strip_prefix("not ok"), line.strip_prefix("ok")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => continue,
        };
        let directive = rest
            .split('#')
            .nth(1)
            .unwrap_or_default()
            .trim_start()
            .to_ascii_lowercase();
        if directive.starts_with("skip")
            || directive.starts_with("todo")
            || !(rest.is_empty() || rest.starts_with(' '))
        {
            continue;
        }
        if good {
            passed += 1;
        } else {
            failed.push(
                rest.trim_start_matches(|c: char| c == ' ' || c == '-' || c.is_ascii_digit())
                    .to_string(),
            );
        }
    }
    (passed, failed)
}

fn skipped(output: &str) -> Option<String> {
    output
        .lines()
        .find(|line| line.starts_with("1..0"))
        .map(|line| line.to_string())
}

fn report(verdicts: &[SuiteVerdict], passing: &BTreeSet<String>) {
    for verdict in verdicts {
        let name = &verdict.row.file;
        match &verdict.failure {
            Some(why) => println!(
                "{:<10} {name:<40} {:>4}/{:<4} {why}",
                verdict.row.area, verdict.passed, verdict.row.subtests
            ),
            None if !passing.contains(name) => println!(
                "{:<10} {name:<40} passes and is not in the list yet",
                verdict.row.area
            ),
            None => {}
        }
    }
    let areas: BTreeSet<&String> = verdicts.iter().map(|verdict| &verdict.row.area).collect();
    println!("\n{:<12}{:>6}{:>8}", "area", "files", "passed");
    for area in areas {
        let of_area = || verdicts.iter().filter(|verdict| &verdict.row.area == area);
        println!(
            "{area:<12}{:>6}{:>8}",
            of_area().count(),
            of_area()
                .filter(|verdict| verdict.failure.is_none())
                .count()
        );
    }
    println!(
        "{:<12}{:>6}{:>8}",
        "all",
        verdicts.len(),
        verdicts
            .iter()
            .filter(|verdict| verdict.failure.is_none())
            .count()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtests_are_counted_as_the_harness_protocol_says() {
        let (passed, failed) = count(
            "1..5\nok 1 - a\nnot ok 2 - b\nok 3 # skip no module\nnot ok 4 - c # TODO not yet\nok 5\nokay\n",
        );
        assert_eq!((passed, failed), (2, vec!["b".to_string()]));
    }

    #[test]
    fn a_skipped_file_is_not_a_pass() {
        assert!(skipped("1..0 # SKIP no perl module\n").is_some());
        assert!(skipped("1..4\nok 1\n").is_none());
    }

    #[test]
    fn rows_hold_area_file_count_and_needs() {
        let row = read_row("rewrite   map.t  21  map,rewrite").unwrap();
        assert_eq!(
            (
                row.area.as_str(),
                row.file.as_str(),
                row.subtests,
                row.needs.len()
            ),
            ("rewrite", "map.t", 21, 2)
        );
        assert!(read_row("static  index.t  16  -").unwrap().needs.is_empty());
        assert!(read_row("static index.t").is_err());
    }

    #[test]
    fn the_committed_lists_agree() {
        let tests = crate::repository().join("tests");
        let list = read_list(&tests.join("nginx-suite.list")).unwrap();
        let known: BTreeSet<String> = list.into_iter().map(|row| row.file).collect();
        let passing = names(&std::fs::read_to_string(tests.join("nginx-suite.passing")).unwrap());
        assert_eq!(
            passing.difference(&known).collect::<Vec<_>>(),
            Vec::<&String>::new()
        );
    }
}
