//! Applying and undoing changes of the machine: kernel settings and a systemd unit.
//!
//! Both are written to separate files, so that existing files stay unchanged. The file of settings
//! records the previous value of each setting, which suffices to restore it, even after a reboot.
//! Nothing is written until every file is known to be writable; a later failure is rolled back.
//! Lines of the configuration and commands must be applied by hand.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::advice::{Advice, AdvisedChange};
use super::machine::{Machine, normal, setting_path};

/// The file of settings.
const SETTINGS_FILE: &str = "etc/sysctl.d/90-tidegate-tune.conf";
/// Name of the drop-in file in a unit's folder.
const UNIT_FILE: &str = "90-tidegate-tune.conf";
const UNITS: &str = "etc/systemd/system";
/// Folders with other settings files. Of files with the same name, the one in the first folder
/// counts.
const OTHERS: &[&str] = &[
    "etc/sysctl.d",
    "run/sysctl.d",
    "usr/local/lib/sysctl.d",
    "usr/lib/sysctl.d",
];
/// The unit to change if no server is running.
const UNIT_DEFAULT: &str = "tidegate.service";
const HEAD: &str =
    "# Written by \"tidegate tune --apply\"; \"tidegate tune --undo\" takes it back.\n";

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChangedSetting {
    name: String,
    was: String,
    value: String,
}

/// Lines that report the changes.
pub(super) type ChangeLines = Vec<String>;

/// The changes of some advice that can be applied. If several of them change the same setting, the
/// most important one is used.
pub(super) struct Plan {
    settings: Vec<(String, String)>,
    unit: Vec<(String, String)>,
    unit_name: String,
}

impl Plan {
    pub(super) fn new(advice: &[Advice], machine: &Machine) -> Plan {
        let (mut settings, mut unit) = (Vec::new(), Vec::new());
        for change in advice.iter().flat_map(|advice| &advice.changes) {
            match change {
                AdvisedChange::Setting { name, value } => add(&mut settings, name, value),
                AdvisedChange::Unit { name, value } => add(&mut unit, name, value),
                AdvisedChange::Configuration(_) | AdvisedChange::Command(_) => {}
            }
        }
        let unit_name = machine.process.unit.clone();
        Plan {
            settings,
            unit,
            unit_name: unit_name.unwrap_or_else(|| UNIT_DEFAULT.to_owned()),
        }
    }

    fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.unit.is_empty()
    }
}

fn add(all: &mut Vec<(String, String)>, name: &str, value: &str) {
    // The advice listed first is the most important.
    if all.iter().all(|(known, _)| known != name) {
        all.push((name.to_owned(), value.to_owned()));
    }
}

/// Applies a plan. The error says why the plan cannot be applied; nothing has changed then.
pub(super) fn apply(plan: &Plan, machine: &Machine) -> Result<ChangeLines, String> {
    if plan.is_empty() {
        return Ok(vec!["Nothing to apply.".to_owned()]);
    }
    let root = &machine.root;
    for (name, _) in &plan.settings {
        may_write(root, name).map_err(|error| refused(&setting_path(name), &error, machine))?;
    }
    let file = root.join(SETTINGS_FILE);
    let before = read(&file).map_err(|error| refused(Path::new(SETTINGS_FILE), &error, machine))?;
    let mut file_after = before.clone().unwrap_or_else(|| Text::of(HEAD));
    for (name, value) in &plan.settings {
        let is = current(root, name).unwrap_or_default();
        file_after.keep(name, &is, value);
    }
    let unit_file = unit_file(&plan.unit_name);
    // Folders created here are removed again if something fails.
    let mut made = CreatedPaths::default();
    let written = write_all(plan, root, &file, &file_after, &unit_file, &mut made);
    if let Err((path, error)) = written {
        made.take_back();
        let restored = match &before {
            Some(text) => replace(&file, &text.to_string()),
            None => remove(&file),
        };
        let mut text = refused(&path, &error, machine);
        if let Err(error) = restored {
            let _ = write!(text, "; {} could not be restored: {error}", file.display());
        }
        return Err(text);
    }
    Ok(report(plan, machine, &unit_file))
}

/// Writes all files; the error names the file that could not be written.
fn write_all(
    plan: &Plan,
    root: &Path,
    file: &Path,
    text: &Text,
    unit_file: &Path,
    made: &mut CreatedPaths,
) -> Result<(), (PathBuf, io::Error)> {
    if !plan.unit.is_empty() {
        let mut unit = format!("{HEAD}[Service]\n");
        for (name, value) in &plan.unit {
            let _ = writeln!(unit, "{name}={value}");
        }
        let path = root.join(unit_file);
        made.write(&path, &unit)
            .map_err(|error| (unit_file.to_owned(), error))?;
    }
    if plan.settings.is_empty() {
        return Ok(());
    }
    made.folder(file)
        .map_err(|error| (SETTINGS_FILE.into(), error))?;
    replace(file, &text.to_string()).map_err(|error| (SETTINGS_FILE.into(), error))?;
    for (name, value) in &plan.settings {
        let was = current(root, name).map_err(|error| (setting_path(name), error))?;
        set(root, name, value).map_err(|error| (setting_path(name), error))?;
        made.settings.push((root.to_owned(), name.clone(), was));
    }
    Ok(())
}

fn report(plan: &Plan, machine: &Machine, unit_file: &Path) -> ChangeLines {
    let root = &machine.root;
    let mut done = ChangeLines::new();
    for (name, value) in &plan.settings {
        done.push(format!("{name} = {value}"));
    }
    if !plan.settings.is_empty() {
        done.push(format!(
            "Kept for the next start in {}.",
            below(root, SETTINGS_FILE)
        ));
    }
    for (name, _) in &plan.settings {
        if let Some(other) = set_later(root, name) {
            done.push(format!(
                "{name} is also in {other}, which counts at the next start."
            ));
        }
    }
    if let Some(container) = machine.container.filter(|_| !plan.settings.is_empty()) {
        done.push(format!(
            "This is a container ({container}): what it has changed ends with it. Settings of the \
             network can be given to it when it is made (docker run --sysctl)."
        ));
    }
    if !plan.unit.is_empty() {
        let unit = &plan.unit_name;
        done.push(format!("Limits of {unit} in {}.", below(root, unit_file)));
        done.push(if machine.has_systemd {
            format!("They count after: systemctl daemon-reload && systemctl restart {unit}")
        } else {
            "No systemd runs here: whatever starts the server has to set them (ulimit -Hn)."
                .to_owned()
        });
    }
    done
}

/// Undoes the applied changes. Settings that an administrator has changed since then are left as
/// they are.
pub(super) fn undo(machine: &Machine) -> Result<ChangeLines, String> {
    let root = &machine.root;
    let mut done = ChangeLines::new();
    let file = root.join(SETTINGS_FILE);
    let found = read(&file).map_err(|error| refused(Path::new(SETTINGS_FILE), &error, machine))?;
    if let Some(mut text) = found {
        let kept = text.kept();
        let is_ours =
            |one: &&ChangedSetting| current(root, &one.name).ok().as_deref() == Some(&one.value);
        for one in kept.iter().filter(is_ours) {
            let written = may_write(root, &one.name);
            written.map_err(|error| refused(&setting_path(&one.name), &error, machine))?;
        }
        may_remove(&file).map_err(|error| refused(Path::new(SETTINGS_FILE), &error, machine))?;
        let mut failed = Vec::new();
        for one in &kept {
            match take_back(root, one) {
                Ok(line) => done.push(line),
                Err(error) => {
                    failed.push(one.name.clone());
                    done.push(why(&setting_path(&one.name), &error, machine));
                }
            }
        }
        text.drop_pairs(|kept| !failed.contains(&kept.name));
        let ended = if !failed.is_empty() {
            done.push(format!(
                "{} keeps what is left.",
                below(root, SETTINGS_FILE)
            ));
            replace(&file, &text.to_string())
        } else if text.is_bare() {
            done.push(format!("{} is removed.", below(root, SETTINGS_FILE)));
            remove(&file)
        } else {
            done.push(format!(
                "{} stays: it has lines of others.",
                below(root, SETTINGS_FILE)
            ));
            replace(&file, &text.to_string())
        };
        ended.map_err(|error| refused(Path::new(SETTINGS_FILE), &error, machine))?;
    }
    for unit in units(root) {
        let path = unit_file(&unit);
        let removed = remove(&root.join(&path));
        removed.map_err(|error| refused(&path, &error, machine))?;
        // Another program uses the folder if it is not empty.
        let _ = root.join(&path).parent().map(fs::remove_dir);
        done.push(format!("{} is removed.", below(root, &path)));
        if machine.has_systemd {
            done.push(format!(
                "It counts after: systemctl daemon-reload && systemctl restart {unit}"
            ));
        }
    }
    if done.is_empty() {
        done.push("Nothing has been applied, so there is nothing to undo.".to_owned());
    }
    Ok(done)
}

/// Restores the previous value of a setting, unless the setting was changed since; returns the line
/// to report.
fn take_back(root: &Path, one: &ChangedSetting) -> io::Result<String> {
    let ChangedSetting { name, was, value } = one;
    let Ok(is) = current(root, name) else {
        return Ok(format!("{name} is no longer there."));
    };
    if is == *was {
        return Ok(format!("{name} is {was} already."));
    }
    if is != *value {
        return Ok(format!(
            "{name} stays {is}: it was set to {value} here, and changed since."
        ));
    }
    set(root, name, was)?;
    let shown = if was.is_empty() { "nothing" } else { was };
    Ok(format!("{name} = {shown}, as before"))
}

/// The files and folders created so far, to be removed if a later step fails.
#[derive(Default)]
struct CreatedPaths {
    files: Vec<(PathBuf, Option<String>)>,
    folders: Vec<PathBuf>,
    settings: Vec<(PathBuf, String, String)>,
}

impl CreatedPaths {
    fn folder(&mut self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(file);
        let missing = folder.ancestors().take_while(|folder| !folder.exists());
        self.folders.extend(missing.map(Path::to_owned));
        fs::create_dir_all(folder)
    }

    fn write(&mut self, file: &Path, text: &str) -> io::Result<()> {
        self.folder(file)?;
        let before = fs::read_to_string(file).ok();
        replace(file, text)?;
        self.files.push((file.to_owned(), before));
        Ok(())
    }

    /// Removes as much as possible and returns the first error.
    fn take_back(self) {
        for (root, name, was) in self.settings {
            let _ = set(&root, &name, &was);
        }
        for (file, before) in self.files {
            let _ = match before {
                Some(text) => replace(&file, &text),
                None => remove(&file),
            };
        }
        for folder in self.folders {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The file of settings, line by line.
#[derive(Clone, Debug)]
struct Text {
    lines: Vec<String>,
}

impl Text {
    /// Splits the text of a settings file into lines.
    fn of(text: &str) -> Text {
        let lines = text.lines().map(str::to_owned);
        Text {
            lines: lines.collect(),
        }
    }

    /// The previous and the new value of each setting for which both lines are present in sequence.
    fn kept(&self) -> Vec<ChangedSetting> {
        let pairs = self.lines.windows(2);
        pairs
            .filter_map(|pair| {
                let [before, line] = pair else { return None };
                kept(before, line)
            })
            .collect()
    }

    /// Adds the lines of a changed setting, or updates them.
    fn keep(&mut self, name: &str, is: &str, value: &str) {
        let known = self.kept().into_iter().find(|kept| kept.name == name);
        // If the setting was changed by hand since then, that value is the one to restore.
        let was = match known {
            Some(kept) if kept.value == is => kept.was,
            _ => is.to_owned(),
        };
        self.drop_pairs(|kept| kept.name == name);
        self.lines.push(format!("# {name} was {was}"));
        self.lines.push(format!("{name} = {value}"));
    }

    fn drop_pairs(&mut self, is_one: impl Fn(&ChangedSetting) -> bool) {
        let mut left = Vec::new();
        let mut lines = std::mem::take(&mut self.lines).into_iter().peekable();
        while let Some(line) = lines.next() {
            let pair = lines.peek().and_then(|next| kept(&line, next));
            if pair.as_ref().is_some_and(&is_one) {
                lines.next();
            } else {
                left.push(line);
            }
        }
        self.lines = left;
    }

    /// Whether only the head is left.
    fn is_bare(&self) -> bool {
        let mut lines = self.lines.iter();
        lines.all(|line| line.trim().is_empty() || HEAD.trim_end() == line)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lines
            .iter()
            .try_for_each(|line| writeln!(formatter, "{line}"))
    }
}

/// Parses a changed setting from its two lines.
fn kept(before: &str, line: &str) -> Option<ChangedSetting> {
    let (name, was) = before.strip_prefix("# ")?.split_once(" was ")?;
    let (same, value) = line.split_once(" = ")?;
    (same == name).then(|| ChangedSetting {
        name: name.to_owned(),
        was: was.to_owned(),
        value: value.to_owned(),
    })
}

fn current(root: &Path, name: &str) -> io::Result<String> {
    fs::read_to_string(root.join(setting_path(name))).map(|text| normal(&text))
}

fn set(root: &Path, name: &str, value: &str) -> io::Result<()> {
    let path = root.join(setting_path(name));
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, format!("{value}\n").as_bytes())
}

fn may_write(root: &Path, name: &str) -> io::Result<()> {
    let path = root.join(setting_path(name));
    OpenOptions::new().write(true).open(path).map(drop)
}

/// Whether files can be created and removed in the folder of a file.
fn may_remove(file: &Path) -> io::Result<()> {
    let trial = file.with_extension("trial");
    fs::write(&trial, "")?;
    fs::remove_file(trial)
}

/// Reads a file; `None` if it does not exist.
fn read(file: &Path) -> io::Result<Option<Text>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(Text::of(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file atomically.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, file)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn unit_file(unit: &str) -> PathBuf {
    Path::new(UNITS).join(format!("{unit}.d")).join(UNIT_FILE)
}

/// The units that have a drop-in file of Tidegate.
fn units(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(UNITS)).into_iter().flatten();
    let mut units: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let unit = name.strip_suffix(".d")?;
            root.join(unit_file(unit)).exists().then(|| unit.to_owned())
        })
        .collect();
    units.sort_unstable();
    units
}

/// Another file that sets the same setting later, and thus overrides it.
fn set_later(root: &Path, name: &str) -> Option<String> {
    let ours = Path::new(SETTINGS_FILE).file_name()?;
    let mut files: Vec<PathBuf> = vec!["etc/sysctl.conf".into()];
    for folder in OTHERS {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        let later = names.filter(|other| other.as_os_str() > ours);
        files.extend(later.map(|other| Path::new(folder).join(other)));
    }
    let sets = |file: &PathBuf| {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        text.lines().any(|line| {
            let line = line.trim_start().trim_start_matches('-');
            let (written, _) = line.split_once('=').unwrap_or_default();
            written.trim().replace('/', ".") == name
        })
    };
    let file = files.into_iter().find(sets)?;
    Some(below(root, file))
}

/// A path as it is printed.
fn below(root: &Path, path: impl AsRef<Path>) -> String {
    root.join(path).display().to_string()
}

/// The error for a file that could not be changed, after which nothing has changed.
fn refused(path: &Path, error: &io::Error, machine: &Machine) -> String {
    format!("{}. Nothing has been changed", why(path, error, machine))
}

/// The reason why a file could not be changed.
fn why(path: &Path, error: &io::Error, machine: &Machine) -> String {
    let path = below(&machine.root, path);
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => "this needs root (sudo tidegate tune ...)".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => match machine.container {
            Some(container) => format!(
                "it is read-only in this container ({container}): change it outside, or give the \
                 setting to the container when it is made (docker run --sysctl)"
            ),
            None => "its file system is read-only".to_owned(),
        },
        io::ErrorKind::NotFound => "it is not there: another kernel, or a container".to_owned(),
        io::ErrorKind::InvalidInput => "the kernel does not take the value".to_owned(),
        _ => error.to_string(),
    };
    format!("{path}: {why}")
}
