//! The master's table of open listeners and logs, by key.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{FileType, Mode, Uid};
use rustix::io::FdFlags;

use base::syslog;
use conf::Style;

use crate::application::{
    Application, ErrorLogDestination, LogTarget, NeedKind, OpenError, RequiredDescriptor,
    listener_key,
};
use crate::bundle;
use crate::inherited::Inherited;
use crate::log::{Level, Log, Output, Target};
use crate::occupant;

/// Number of attempts to bind at a start or a reload, and the delay between them, as in nginx:
/// another program may be about to end.
const BIND_ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// The kind of logs that USR1 and every reload reopen.
const REOPENED: NeedKind = NeedKind::Log {
    can_be_reopened: true,
};

/// A listener or a log that the master has open.
#[derive(Clone)]
pub(crate) struct OpenDescriptor {
    pub(crate) key: String,
    pub(crate) kind: NeedKind,
    pub(crate) descriptor: Rc<OwnedFd>,
}

/// The open descriptors of a generation.
#[derive(Clone, Default)]
pub(crate) struct Descriptors(Vec<OpenDescriptor>);

impl Descriptors {
    /// The descriptors for `needs`: those of `held`, the current descriptors, that a reload
    /// [keeps](Descriptors::kept_for), and new ones for all other needs. Also keeps the
    /// [surplus](Descriptors::surplus) sockets of `held`. On failure no new descriptor stays open,
    /// and the error lists the lines that were logged.
    pub(crate) fn open(
        needs: &[RequiredDescriptor],
        held: &Descriptors,
        log: &Log,
    ) -> Result<Descriptors, Vec<String>> {
        let mut opened = Descriptors::default();
        let mut left: Vec<&RequiredDescriptor> = Vec::new();
        for need in needs {
            match held.kept_for(need) {
                Some(held) => {
                    if let Some(kept) = &need.kept {
                        alert(log, (kept.before)(&held.descriptor));
                    }
                    opened.0.push(held.clone());
                }
                None => left.push(need),
            }
        }
        let surplus: Vec<OpenDescriptor> = held.surplus(needs).cloned().collect();
        opened.0.extend(surplus);
        for attempt in 1..=BIND_ATTEMPTS {
            let mut errors = Vec::new();
            let mut in_use = Vec::new();
            for need in left {
                match (need.open)() {
                    Ok(descriptor) => opened.0.push(hold(need, descriptor)),
                    Err(error) => {
                        // Further attempts fail for the same reason.
                        let explanation = match attempt {
                            1 => explanation(&error),
                            _ => String::new(),
                        };
                        log.write_explained(Level::Emerg, error.text(), &explanation);
                        errors.push(error.text().to_owned());
                        if matches!(error, OpenError::AddressInUse(..)) {
                            in_use.push(need);
                        }
                    }
                }
            }
            if errors.is_empty() {
                return Ok(opened);
            }
            if in_use.len() < errors.len() || attempt == BIND_ATTEMPTS {
                if in_use.len() == errors.len() {
                    log.write(Level::Emerg, "still could not bind()");
                }
                opened.close_missing_in(held, log);
                return Err(errors);
            }
            log.notice(format_args!(
                "try again to bind() after {}ms",
                ATTEMPT_PAUSE.as_millis()
            ));
            std::thread::sleep(ATTEMPT_PAUSE);
            left = in_use;
        }
        Ok(opened)
    }

    /// Sockets that were open before this program started, with the keys under which a
    /// configuration of `application` would need them. Sockets that no configuration could need are
    /// closed.
    pub(crate) fn inherited(
        sockets: impl IntoIterator<Item = Inherited>,
        application: &dyn Application,
    ) -> Descriptors {
        let mut held: Vec<OpenDescriptor> = Vec::new();
        for inherited in sockets {
            let Inherited {
                socket,
                is_activated,
            } = inherited;
            let Some((group, socket_file)) = application.inherited(&socket) else {
                continue;
            };
            let socket_file = socket_file.filter(|_| !is_activated);
            let is_same = |held: &&OpenDescriptor| matches!(&held.kind, NeedKind::Listener { group: other, .. } if *other == group);
            let key = listener_key(&group, held.iter().filter(is_same).count());
            let kind = NeedKind::Listener { socket_file, group };
            held.push(OpenDescriptor::new(key, kind, socket));
        }
        Descriptors(held)
    }

    /// The listening sockets.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &OwnedFd> {
        let listens = |held: &&OpenDescriptor| matches!(held.kind, NeedKind::Listener { .. });
        self.0.iter().filter(listens).map(|held| &*held.descriptor)
    }

    /// The listening Unix sockets that a service manager has created: the manager, and not this
    /// program, removes their files.
    pub(crate) fn activated(
        &self,
        application: &dyn Application,
    ) -> impl Iterator<Item = &OwnedFd> {
        let is_activated = |held: &&OpenDescriptor| {
            let listens = matches!(held.kind, NeedKind::Listener { .. });
            let has_file = || {
                let found = application.inherited(&held.descriptor);
                found.is_some_and(|(_, file)| file.is_some())
            };
            listens && held.socket_file().is_none() && has_file()
        };
        let activated = self.0.iter().filter(is_activated);
        activated.map(|held| &*held.descriptor)
    }

    /// The keys of all descriptors, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.0.iter().map(|held| held.key.clone()).collect()
    }

    /// All descriptors, in the order of the keys.
    pub(crate) fn shared(&self) -> Vec<Rc<OwnedFd>> {
        self.0
            .iter()
            .map(|held| Rc::clone(&held.descriptor))
            .collect()
    }

    /// The logs that USR1 reopens.
    pub(crate) fn logs(&self) -> Descriptors {
        let logs = self.0.iter().filter(|held| held.kind == REOPENED);
        Descriptors(logs.cloned().collect())
    }

    /// The keys in a sealed memory file, to send with the descriptors.
    pub(crate) fn sealed_keys(&self) -> std::io::Result<Rc<OwnedFd>> {
        bundle::seal(&bundle::encode_keys(&self.keys())).map(Rc::new)
    }

    /// Reopens every log, owned by `owner` if given; a log that cannot be reopened keeps its
    /// descriptor.
    pub(crate) fn reopen(&mut self, needs: &[RequiredDescriptor], owner: Option<u32>, log: &Log) {
        for held in self.0.iter_mut().filter(|held| held.kind == REOPENED) {
            let Some(need) = needs.iter().find(|need| need.key == held.key) else {
                continue;
            };
            match open_again(need, owner) {
                Ok(descriptor) => *held = hold(need, descriptor),
                Err(text) => log.write(Level::Emerg, text),
            }
        }
    }

    /// Opens the logs in `needs`, those of replaced generations, that `self` does not have. A log
    /// that cannot be opened is left out.
    pub(crate) fn open_missing<'a>(
        &mut self,
        needs: impl Iterator<Item = &'a RequiredDescriptor>,
        owner: Option<u32>,
        log: &Log,
    ) {
        for need in needs {
            if need.kind != REOPENED || self.find(&need.key).is_some() {
                continue;
            }
            match open_again(need, owner) {
                Ok(descriptor) => self.0.push(hold(need, descriptor)),
                Err(text) => log.write(Level::Emerg, text),
            }
        }
    }

    /// Closes the listeners, and returns the files of their Unix sockets.
    #[must_use]
    pub(crate) fn close_listeners(&mut self) -> Vec<PathBuf> {
        self.retain(|held| !matches!(held.kind, NeedKind::Listener { .. }))
    }

    /// Closes everything that is not in `others`, and returns the files of the closed Unix sockets.
    #[must_use]
    pub(crate) fn close_missing_from(&mut self, others: &Descriptors) -> Vec<PathBuf> {
        self.retain(|held| others.find(&held.key).is_some())
    }

    /// Closes everything that is not in `others`, and removes the files of the closed Unix sockets.
    pub(crate) fn close_missing_in(&mut self, others: &Descriptors, log: &Log) {
        for path in self.close_missing_from(others) {
            remove_socket(&path, log);
        }
    }

    /// The files of Unix sockets.
    pub(crate) fn socket_files(&self) -> Vec<PathBuf> {
        let files = self.0.iter().filter_map(OpenDescriptor::socket_file);
        files.map(Path::to_owned).collect()
    }

    /// Applies the settings of the configuration in force to the descriptors that were kept from
    /// `older` (`DescriptorUpdate::after`).
    pub(crate) fn adjust_kept(&self, needs: &[RequiredDescriptor], older: &Descriptors, log: &Log) {
        for need in needs {
            if let (Some(kept), Some(held)) = (&need.kept, older.find(&need.key)) {
                alert(log, (kept.after)(&held.descriptor));
            }
        }
    }

    /// Sockets that `needs` does not name although it names another socket of their group: see
    /// [`NeedKind::Listener`].
    fn surplus<'a>(
        &'a self,
        needs: &'a [RequiredDescriptor],
    ) -> impl Iterator<Item = &'a OpenDescriptor> {
        fn group(kind: &NeedKind) -> Option<&String> {
            match kind {
                NeedKind::Listener { group, .. } => Some(group),
                NeedKind::Log { .. } => None,
            }
        }
        self.0.iter().filter(move |held| {
            let is_needed = needs.iter().any(|need| need.key == held.key);
            let belongs = |need: &RequiredDescriptor| {
                group(&held.kind).is_some() && group(&need.kind) == group(&held.kind)
            };
            !is_needed && needs.iter().any(belongs)
        })
    }

    /// The destinations of the main-level log lines.
    pub(crate) fn log_targets(&self, targets: &[LogTarget]) -> Vec<Target> {
        log_targets(targets, |key| {
            self.find(key).map(|held| Rc::clone(&held.descriptor))
        })
    }

    /// The descriptor that a reload keeps for a need. Log files are reopened, as with nginx: they
    /// may have been moved.
    fn kept_for(&self, need: &RequiredDescriptor) -> Option<&OpenDescriptor> {
        self.find(&need.key).filter(|_| need.kind != REOPENED)
    }

    fn find(&self, key: &str) -> Option<&OpenDescriptor> {
        self.0.iter().find(|held| held.key == key)
    }

    /// Closes everything that is not kept, and returns the files of the closed Unix sockets.
    fn retain(&mut self, keep: impl Fn(&OpenDescriptor) -> bool) -> Vec<PathBuf> {
        let (kept, closed) = std::mem::take(&mut self.0).into_iter().partition(keep);
        self.0 = kept;
        Descriptors(closed).socket_files()
    }
}

/// The destinations of the main-level log lines, with descriptors by key. A target without a
/// descriptor gets no lines.
pub(crate) fn log_targets(
    targets: &[LogTarget],
    descriptor: impl Fn(&str) -> Option<Rc<OwnedFd>>,
) -> Vec<Target> {
    let output = |place: &ErrorLogDestination| match place {
        ErrorLogDestination::Stderr => Some(Output::Stderr),
        ErrorLogDestination::Descriptor(key) => descriptor(key).map(Output::File),
        ErrorLogDestination::Syslog(destination) => {
            let channel = syslog::Channel::new(destination.clone());
            Some(Output::Syslog(Rc::new(channel)))
        }
    };
    let target = |target: &LogTarget| {
        output(&target.place).map(|output| Target {
            level: target.level,
            output,
        })
    };
    targets.iter().filter_map(target).collect()
}

/// Reopens a log. Workers open no files, but log rotation scripts may run as the workers' user: as
/// with nginx, that user owns the new file. The error is the line for the log.
fn open_again(need: &RequiredDescriptor, owner: Option<u32>) -> Result<OwnedFd, String> {
    let descriptor = (need.open)().map_err(|error| error.text().to_owned())?;
    if let Some(owner) = owner {
        give(&descriptor, owner).map_err(|(call, error)| {
            let name = need.key.strip_prefix("log ").unwrap_or(&need.key);
            crate::log::failure(&format!("{call}(\"{name}\") failed"), &error.into())
        })?;
    }
    Ok(descriptor)
}

/// Makes `owner` the owner of a file, with permission to read and write it. Anything but a regular
/// file (`/dev/null`, a pipe) is left alone.
fn give(file: &OwnedFd, owner: u32) -> Result<(), (&'static str, rustix::io::Errno)> {
    let found = rustix::fs::fstat(file).map_err(|error| ("fstat", error))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    if found.st_uid != owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(owner)), None)
            .map_err(|error| ("chown", error))?;
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    let needed = Mode::RUSR | Mode::WUSR;
    if !mode.contains(needed) {
        rustix::fs::fchmod(file, mode | needed).map_err(|error| ("chmod", error))?;
    }
    Ok(())
}

/// Checks whether everything could be opened, as `-t` does; an address in use is assumed to belong
/// to the running server. Returns whether all checks passed.
pub(crate) fn probe(needs: &[RequiredDescriptor], log: &Log) -> bool {
    let mut fine = true;
    for need in needs {
        match (need.probe)() {
            Ok(()) | Err(OpenError::AddressInUse(..)) => {}
            Err(error) => {
                log.write_explained(Level::Emerg, error.text(), &explanation(&error));
                fine = false;
            }
        }
    }
    fine
}

/// Further explanation of an error, for a terminal.
fn explanation(error: &OpenError) -> String {
    let hint = match error {
        OpenError::AddressInUse(_, Some(address)) => occupant::hint(*address),
        OpenError::PortNotPermitted(_) => {
            "ports below 1024 are for root, and for programs with CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => return String::new(),
    };
    format!(
        "  {} {hint}\n",
        crate::log::style().paint(Style::HINT, "hint:")
    )
}

fn hold(need: &RequiredDescriptor, descriptor: OwnedFd) -> OpenDescriptor {
    OpenDescriptor::new(need.key.clone(), need.kind.clone(), descriptor)
}

impl OpenDescriptor {
    fn new(key: String, kind: NeedKind, descriptor: OwnedFd) -> OpenDescriptor {
        // Workers must inherit only the control channel.
        let _ = rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC);
        let descriptor = Rc::new(descriptor);
        OpenDescriptor {
            key,
            kind,
            descriptor,
        }
    }

    fn socket_file(&self) -> Option<&Path> {
        match &self.kind {
            NeedKind::Listener { socket_file, .. } => socket_file.as_deref(),
            NeedKind::Log { .. } => None,
        }
    }
}

fn alert(log: &Log, texts: Vec<String>) {
    for text in texts {
        log.write(Level::Alert, text);
    }
}

/// Removes the file of a Unix socket that is closed.
pub(crate) fn remove_socket(path: &Path, log: &Log) {
    if let Err(error) = std::fs::remove_file(path) {
        let text = crate::log::failure(&format!("unlink() {} failed", path.display()), &error);
        log.write(Level::Emerg, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::application::DescriptorUpdate;
    use std::cell::Cell;

    fn silent() -> Log {
        Log::new(Vec::new(), None)
    }

    fn need(
        key: &str,
        open: impl Fn() -> Result<OwnedFd, OpenError> + 'static,
    ) -> RequiredDescriptor {
        let kind = NeedKind::Listener {
            socket_file: None,
            group: key.split('#').next().unwrap_or_default().to_owned(),
        };
        RequiredDescriptor {
            key: key.to_owned(),
            kind,
            open: Box::new(open),
            probe: Box::new(|| Ok(())),
            kept: None,
        }
    }

    fn anything() -> Result<OwnedFd, OpenError> {
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn a_key_that_is_held_is_not_opened_again() {
        let needs = [need("a", anything), need("b", anything)];
        let first = Descriptors::open(&needs, &Descriptors::default(), &silent()).unwrap();
        let never = || Err(OpenError::Failed("opened again".into()));
        let needs = [need("b", never), need("c", anything)];
        let mut second = Descriptors::open(&needs, &first, &silent()).unwrap();
        assert_eq!(second.keys(), ["b", "c"]);
        assert!(Rc::ptr_eq(
            &first.find("b").unwrap().descriptor,
            &second.find("b").unwrap().descriptor
        ));
        second.close_missing_in(&first, &silent());
        assert_eq!(second.keys(), ["b"]);
    }

    #[test]
    fn files_of_logs_are_opened_anew() {
        let log = |can_be_reopened| {
            [RequiredDescriptor {
                kind: NeedKind::Log { can_be_reopened },
                ..need("log", anything)
            }]
        };
        for can_be_reopened in [true, false] {
            let needs = log(can_be_reopened);
            let first = Descriptors::open(&needs, &Descriptors::default(), &silent()).unwrap();
            let second = Descriptors::open(&needs, &first, &silent()).unwrap();
            assert_eq!(second.keys(), ["log"]);
            let same = Rc::ptr_eq(
                &first.find("log").unwrap().descriptor,
                &second.find("log").unwrap().descriptor,
            );
            assert_eq!(same, !can_be_reopened);
        }
    }

    #[test]
    fn a_surplus_socket_stays_as_long_as_its_group() {
        let needs = [need("a#0", anything), need("a#1", anything)];
        let first = Descriptors::open(&needs, &Descriptors::default(), &silent()).unwrap();
        let fewer = [need("a#0", anything), need("b#0", anything)];
        let second = Descriptors::open(&fewer, &first, &silent()).unwrap();
        assert_eq!(second.keys(), ["a#0", "a#1", "b#0"]);
        let others = [need("b#0", anything)];
        let third = Descriptors::open(&others, &second, &silent()).unwrap();
        assert_eq!(third.keys(), ["b#0"]);
    }

    #[test]
    fn what_is_kept_is_adjusted_what_is_new_is_not() {
        let adjusted = Rc::new(Cell::new(0));
        let counted = |key: &str, step: u32| {
            let mut need = need(key, anything);
            let (before, after) = (Rc::clone(&adjusted), Rc::clone(&adjusted));
            let count = move |counter: &Rc<Cell<u32>>, step| {
                counter.set(counter.get() + step);
                Vec::new()
            };
            need.kept = Some(DescriptorUpdate {
                before: Box::new(move |_| count(&before, step)),
                after: Box::new(move |_| count(&after, 10 * step)),
            });
            need
        };
        let first = [counted("a#0", 1)];
        let held = Descriptors::open(&first, &Descriptors::default(), &silent()).unwrap();
        assert_eq!(adjusted.get(), 0);
        let second = [counted("a#0", 1), counted("b#0", 5)];
        let opened = Descriptors::open(&second, &held, &silent()).unwrap();
        assert_eq!(adjusted.get(), 1);
        opened.adjust_kept(&second, &held, &silent());
        assert_eq!(adjusted.get(), 11);
    }

    #[test]
    fn an_address_in_use_is_tried_again() {
        let tries = Rc::new(Cell::new(0));
        let counted = Rc::clone(&tries);
        let needs = [need("a", move || {
            counted.set(counted.get() + 1);
            if counted.get() < 2 {
                Err(OpenError::AddressInUse("in use".into(), None))
            } else {
                anything()
            }
        })];
        assert!(Descriptors::open(&needs, &Descriptors::default(), &silent()).is_ok());
        assert_eq!(tries.get(), 2);
    }

    #[test]
    fn another_failure_is_final_and_all_are_reported() {
        let needs = [
            need("a", || Err(OpenError::Failed("no a".into()))),
            need("b", || Err(OpenError::AddressInUse("no b".into(), None))),
        ];
        let errors = Descriptors::open(&needs, &Descriptors::default(), &silent());
        assert_eq!(
            errors.err(),
            Some(vec!["no a".to_owned(), "no b".to_owned()])
        );
    }
}
