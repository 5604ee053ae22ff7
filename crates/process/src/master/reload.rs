//! Reload, in two phases: prepare, which may fail and changes nothing, and commit, which cannot
//! fail.
//!
//! *Prepare*: the master reads the configuration, opens logs and new descriptors, and sends the
//! bundle to the serving worker, or to a new worker process if a changed directive requires one.
//! *Commit*: follows when that worker reports that it is ready.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use conf::{Files, RecordedFiles, Recorder, Recording};
use rustix::process::Signal;

use super::Master;
use super::child::Role;
use super::hosts::{self, HostLookup, Hosts};
use crate::application::RequiredResources;
use crate::bundle::{self, Contents, ProcessSettings};
use crate::confinement::{Granted, MissingGrant};
use crate::control::Command;
use crate::descriptors::Descriptors;
use crate::directories;
use crate::log::Level;
use crate::options::Options;
use crate::pid_file::{self, PidFile};
use crate::reply::Reply;
use crate::start::{self, Examined};

/// Time limit for a worker to compile a new configuration.
const PREPARE_LIMIT: Duration = Duration::from_secs(60);

/// A configuration with all of its resources.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) needs: RequiredResources,
    pub(super) descriptors: Descriptors,
    /// The hosts in the configuration, with the addresses that it uses.
    pub(super) hosts: Hosts,
    bundle: Rc<OwnedFd>,
    /// The permissions of worker processes that start with this generation.
    granted: Granted,
}

/// A reload whose worker is preparing.
pub(super) struct Reload {
    pub(super) next: Generation,
    /// The worker that prepares the generation.
    pub(super) target: u64,
    pub(super) deadline: Instant,
    /// Hosts whose addresses were taken over from the generation in force, and are resolved again
    /// after the reload.
    taken_over: Vec<String>,
    replies: Vec<Reply>,
}

impl Generation {
    /// Makes a generation, with the bundle for its workers.
    fn seal(
        number: u64,
        options: &Options,
        examined: Examined,
        descriptors: Descriptors,
    ) -> io::Result<Generation> {
        let Examined {
            needs, recording, ..
        } = examined;
        let process = ProcessSettings {
            identity: needs.master.identity.clone(),
            open_files_max: needs.master.open_files_max,
            priority: needs.master.priority,
            core_size_max: needs.master.core_size_max,
            working_directory: needs.master.working_directory.clone(),
            error_logs: needs.master.error_logs.clone(),
            confinement: needs.master.confinement.clone(),
        };
        let granted = needs.master.confinement.granted();
        let hosts = recording.hosts.clone();
        let (options, keys) = (options.clone(), descriptors.keys());
        let contents = Contents {
            generation: number,
            options,
            process,
            recording,
            keys,
        };
        let bundle = Rc::new(bundle::seal(&contents.encode())?);
        Ok(Generation {
            number,
            needs,
            descriptors,
            hosts,
            bundle,
            granted,
        })
    }

    /// The files, globs and host addresses that were read for the generation.
    fn recording(&self) -> Result<Recording, String> {
        let bundle = self.bundle.try_clone().map_err(|error| error.to_string())?;
        let contents = bundle::unseal(bundle).and_then(|bytes| Contents::decode(&bytes));
        Ok(contents.map_err(|error| error.to_string())?.recording)
    }

    /// The generation of the start.
    pub(super) fn first(
        options: &Options,
        examined: Examined,
        descriptors: Descriptors,
    ) -> io::Result<Generation> {
        Generation::seal(1, options, examined, descriptors)
    }

    /// The command that makes a worker compile the generation.
    pub(super) fn prepare(&self) -> Command<Rc<OwnedFd>> {
        let (bundle, descriptors) = (Rc::clone(&self.bundle), self.descriptors.shared());
        Command::Prepare {
            generation: self.number,
            bundle,
            descriptors,
        }
    }
}

impl Master {
    /// HUP: starts a reload from the files. Hosts of the generation in force keep its addresses for
    /// now.
    pub(super) fn begin_reload(&mut self, replies: Vec<Reply>) {
        self.log.notice("reconfiguring");
        self.lookup = None;
        let known = self.generation.hosts.clone();
        let files = Recorder::knowing(self.application.files(), known);
        match self.next_generation(files) {
            Ok(next) => {
                let known = &self.generation.hosts;
                let is_known = |name: &String| known.iter().any(|(known, _)| known == name);
                let names = next.hosts.iter().map(|(name, _)| name.clone());
                let taken_over = names.filter(is_known).collect();
                self.prepare(next, taken_over, replies);
            }
            Err(errors) => {
                self.report_failure();
                answer(replies, &errors);
            }
        }
    }

    /// Tells the serving workers that a reload has failed.
    fn report_failure(&mut self) {
        let serving = self.children.iter_mut();
        let serving = serving.filter(|child| matches!(child.role, Role::Serving));
        serving.for_each(|child| child.send(Command::ReloadFailed));
    }

    /// After a reload, its known hosts are resolved again: makes a generation with the new
    /// addresses if any have changed.
    pub(super) fn follow_hosts(&mut self) {
        let Some(lookup) = &self.lookup else { return };
        let Some(answers) = lookup.answers() else {
            return;
        };
        let is_current = lookup.generation == self.generation.number;
        self.lookup = None;
        if !is_current {
            return;
        }
        let (changed, silent) = hosts::changes(&self.generation.hosts, answers);
        for name in silent {
            let text = format_args!("host not found: \"{name}\" keeps its known addresses");
            self.log.write(Level::Warn, text);
        }
        if changed.is_empty() {
            return;
        }
        for (name, _) in &changed {
            self.log
                .notice(format_args!("the addresses of \"{name}\" have changed"));
        }
        let Ok(mut recording) = self
            .generation
            .recording()
            .map_err(|text| self.refuse(&text))
        else {
            return;
        };
        for (name, addresses) in &mut recording.hosts {
            if let Some((_, now)) = changed.iter().find(|(changed, _)| changed == name) {
                addresses.clone_from(now);
            }
        }
        self.log.notice("reconfiguring");
        let files = Recorder::new(RecordedFiles::new(recording));
        // Errors have been logged.
        if let Ok(next) = self.next_generation(files) {
            self.prepare(next, Vec::new(), Vec::new());
        }
    }

    /// Tells a worker to prepare a generation.
    fn prepare(&mut self, next: Generation, taken_over: Vec<String>, replies: Vec<Reply>) {
        let serving = self
            .children
            .iter()
            .find(|child| child.role == Role::Serving);
        let mut target = serving.map(|child| child.id);
        if let Some(line) = next.needs.forcing_line(&self.generation.needs) {
            let (name, place) = (&line.name, &line.place);
            if self.own_process {
                target = None;
                self.log.notice(format_args!(
                    "\"{name}\" in {place} has changed: starting a new worker process"
                ));
            } else {
                let text = format!(
                    "\"{name}\" in {place} needs a new worker process, which there is none of \
                     with \"master_process off\": it stays as it was"
                );
                self.log.write(Level::Warn, text);
            }
        } else if self.own_process {
            let confinement = &next.needs.master.confinement;
            match confinement.missing_grant(&self.generation.granted) {
                None => {}
                Some(wanted) => {
                    target = None;
                    let what = match wanted {
                        MissingGrant::Place(text) => text,
                        MissingGrant::Program(path) => {
                            format!("the configuration runs \"{}\"", path.display())
                        }
                    };
                    self.log.notice(format_args!(
                        "{what}, which the running worker process is confined from: starting a \
                         new worker process"
                    ));
                }
            }
        }
        let prepare = next.prepare();
        let target = match target {
            Some(id) => {
                self.child_mut(id)
                    .into_iter()
                    .for_each(|child| child.send(prepare.clone()));
                Some(id)
            }
            None => {
                let environment = next.needs.master.environment.clone();
                let state = self.save_state();
                self.spawn(Role::Candidate, prepare, &environment, state)
            }
        };
        let deadline = Instant::now() + PREPARE_LIMIT;
        match target {
            Some(target) => {
                self.reload = Some(Reload {
                    next,
                    target,
                    deadline,
                    taken_over,
                    replies,
                })
            }
            None => {
                self.undo(next);
                self.report_failure();
                answer(
                    replies,
                    &["[emerg] no worker process could be started".to_owned()],
                );
            }
        }
    }

    /// Reads the configuration from `files`, opens logs and new descriptors, and seals the bundle;
    /// returns the errors after logging them.
    fn next_generation<F: Files>(&self, files: Recorder<F>) -> Result<Generation, Vec<String>> {
        // A bug in the configuration's compiler must not end the master.
        let examine = || start::examine(&self.options, self.application, files);
        let examined = catch_unwind(AssertUnwindSafe(examine))
            .map_err(|_| self.refuse("the configuration could not be examined: internal error"))?
            .map_err(|findings| {
                findings.report(&self.log);
                let line = |d: &conf::Diagnostic| format!("[{}] {d}", d.level.name());
                findings.diagnostics.iter().map(line).collect::<Vec<_>>()
            })?;
        examined.findings.report(&self.log);
        let pid = &examined.needs.master.pid;
        if pid != self.pid_file.path() {
            pid_file::check(pid).map_err(|text| self.refuse(&text))?;
        }
        let identity = examined.needs.master.identity.as_ref();
        directories::make(&examined.needs.directories, identity).map_err(|texts| {
            texts
                .iter()
                .flat_map(|text| self.refuse(text))
                .collect::<Vec<_>>()
        })?;
        let (needs, held) = (&examined.needs.descriptors, &self.generation.descriptors);
        let descriptors = Descriptors::open(needs, held, &self.log).map_err(|errors| {
            errors
                .iter()
                .map(|error| format!("[emerg] {error}"))
                .collect::<Vec<_>>()
        })?;
        let number = self.generation.number.max(self.abandoned) + 1;
        let mut opened = descriptors.clone();
        Generation::seal(number, &self.options, examined, descriptors).map_err(|error| {
            opened.close_missing_in(held, &self.log);
            self.refuse(&crate::log::failure("memfd_create() failed", &error))
        })
    }

    /// Logs why a reload is refused; returns the text for its sender.
    pub(super) fn refuse(&self, text: &str) -> Vec<String> {
        self.log.write(Level::Emerg, text);
        vec![format!("[emerg] {text}")]
    }

    /// Commits the prepared generation: it is in force from now on.
    pub(super) fn commit_reload(&mut self) {
        let Some(reload) = self.reload.take() else {
            return;
        };
        let pid = &reload.next.needs.master.pid;
        if pid != self.pid_file.path() {
            let predecessor = pid_file::check(pid).ok().flatten();
            match PidFile::create(pid) {
                Ok(new) => {
                    self.predecessor = predecessor;
                    let old = std::mem::replace(&mut self.pid_file, new);
                    if let Err(text) = old.remove() {
                        self.log.write(Level::Alert, text);
                    }
                }
                Err(text) => {
                    let errors = self.refuse(&text);
                    self.reload = Some(reload);
                    return self.fail_reload(&errors);
                }
            }
        }
        let Reload {
            next,
            target,
            taken_over,
            replies,
            ..
        } = reload;
        let generation = next.number;
        if !self.devices.is_owner(target) {
            self.release_devices();
        }
        let mut old = std::mem::replace(&mut self.generation, next);
        self.remember(old.number, old.needs.descriptors);
        for child in &mut self.children {
            if child.id == target {
                child.serve_by(generation);
            } else if child.role != Role::Leaving {
                child.end(Command::Quit);
            }
        }
        self.has_served = true;
        self.is_committing = true;
        self.restart.started();
        self.follow_logs();
        let Generation {
            needs, descriptors, ..
        } = &self.generation;
        descriptors.adjust_kept(&needs.descriptors, &old.descriptors, &self.log);
        let files = old.descriptors.close_missing_from(descriptors);
        self.remove_files(files);
        self.upgrade.accepts_again();
        self.unanswered = replies;
        if !taken_over.is_empty() {
            self.lookup = HostLookup::begin(generation, taken_over)
                .map_err(|error| {
                    let text = crate::log::failure("hosts could not be looked up", &error);
                    self.log.write(Level::Alert, text);
                })
                .ok();
        }
    }

    /// Undoes the preparation of a reload. `errors`, which have been logged, go to the senders of
    /// the reload.
    pub(super) fn fail_reload(&mut self, errors: &[String]) {
        let Some(Reload {
            next,
            target,
            replies,
            ..
        }) = self.reload.take()
        else {
            return;
        };
        let generation = next.number;
        if let Some(child) = self.child_mut(target) {
            match child.role {
                Role::Candidate => child.end(Command::Terminate),
                _ => child.send(Command::Abandon { generation }),
            }
        }
        self.undo(next);
        self.report_failure();
        answer(replies, errors);
    }

    /// Handles the end of the preparing worker. If the worker was serving, it may have ended for a
    /// reason that has nothing to do with the new configuration, such as a signal. Then a new
    /// process prepares the configuration once more, apart from the process that replaces the
    /// worker and serves. A configuration that makes workers crash affects only the preparing
    /// process.
    pub(super) fn prepare_elsewhere(&mut self, ended: &str, role: Role) {
        let text = format!("{ended} ended while it prepared the configuration");
        let again = role == Role::Serving && self.own_process && self.stop.is_none();
        let next = self.reload.as_ref().filter(|_| again).map(|reload| {
            let environment = reload.next.needs.master.environment.clone();
            (reload.next.prepare(), environment)
        });
        let target = next.and_then(|(prepare, environment)| {
            self.log
                .notice(format_args!("{text}: starting a new worker process for it"));
            self.spawn(Role::Candidate, prepare, &environment, None)
        });
        match (&mut self.reload, target) {
            (Some(reload), Some(target)) => {
                reload.target = target;
                reload.deadline = Instant::now() + PREPARE_LIMIT;
            }
            _ => {
                let errors = self.refuse(&text);
                self.fail_reload(&errors);
            }
        }
    }

    /// Handles a preparation that timed out. A serving worker continues; a candidate process is
    /// killed.
    pub(super) fn reload_timed_out(&mut self) {
        let seconds = PREPARE_LIMIT.as_secs();
        let errors = self.refuse(&format!("no worker was ready for the reload in {seconds}s"));
        let target = self.reload.as_ref().map(|reload| reload.target);
        let is_target = |child: &&super::Child| Some(child.id) == target;
        let candidate = self.children.iter().find(is_target);
        if let Some(child) = candidate.filter(|child| child.role == Role::Candidate) {
            child.kill(Signal::KILL);
        }
        self.fail_reload(&errors);
    }

    /// Closes the descriptors of a generation that was not committed.
    fn undo(&mut self, mut next: Generation) {
        self.abandoned = next.number;
        next.descriptors
            .close_missing_in(&self.generation.descriptors, &self.log);
    }
}

/// Replies to the senders of a reload that has failed.
pub(super) fn answer(replies: Vec<Reply>, errors: &[String]) {
    for reply in replies {
        reply.failed(errors);
    }
}
