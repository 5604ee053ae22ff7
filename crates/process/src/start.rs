//! One run of the command: test the configuration, signal a running master, or become one.
//!
//! Everything that a terminal sees of Tidegate's start is decided here, with nginx's texts, order
//! and exit codes.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use conf::{Diagnostic, Files, PlaceholderHosts, Recorder, Recording, SourceFile, Style};

use crate::application::{Application, RequiredResources};
use crate::confinement;
use crate::daemon;
use crate::descriptors::{self, Descriptors};
use crate::directories;
use crate::identity;
use crate::inherited;
use crate::log::{Level, Log, print};
use crate::master::{Master, Origin, Startup, Upgrade, UpgradeParent, devices};
use crate::options::{Action, Options, SignalName};
use crate::pid_file::{self, PidFile};
use crate::predecessor::Predecessor;
use crate::reply::{self, ReloadResult};
use crate::running::{RunningError, RunningMaster};
use crate::service_manager::ServiceManager;
use crate::signals::{self, Signals};
use crate::{state, title};

/// Does what the command line asks for. Returns when the master has ended.
pub fn run(options: Options, application: &'static dyn Application) -> ExitCode {
    let done = match options.action {
        Action::Test { dump } => test(&options, application, dump),
        Action::Signal(signal) => send_signal(&options, application, signal),
        Action::Start => start(options, application),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(StartFailed) => ExitCode::FAILURE,
    }
}

/// The run has failed, and the reason has been printed or logged.
struct StartFailed;

/// A configuration that was read and examined.
pub(crate) struct Examined {
    pub(crate) needs: RequiredResources,
    /// The files, globs and host addresses that were read.
    pub(crate) recording: Recording,
    pub(crate) findings: Findings,
}

/// The diagnostics of a configuration.
pub(crate) struct Findings {
    pub(crate) diagnostics: Vec<Diagnostic>,
    sources: Vec<SourceFile>,
}

/// Reads the configuration from `files` and lets the application find out what resources it needs.
/// The error has all diagnostics: errors, warnings and notices.
pub(crate) fn examine<F: Files>(
    options: &Options,
    application: &dyn Application,
    files: Recorder<F>,
) -> Result<Examined, Findings> {
    let Options {
        conf_path, globals, ..
    } = options;
    let registry = application.registry();
    let mut loaded = conf::load(conf_path, options.conf_prefix(), globals, registry, &files);
    let examined = application.examine(&loaded, &files, options);
    let (needs, found) = match examined {
        Ok(mut needs) => {
            let found = std::mem::take(&mut needs.diagnostics);
            (Some(needs), found)
        }
        Err(found) => (None, found),
    };
    let diagnostics = conf::arrange(&mut loaded, found);
    let has_errors = diagnostics
        .iter()
        .any(|found| found.level == conf::Level::Emerg);
    let needs = needs.filter(|_| !has_errors);
    let findings = Findings {
        diagnostics,
        sources: loaded.sources,
    };
    match needs {
        Some(needs) => Ok(Examined {
            needs,
            recording: files.recording(),
            findings,
        }),
        None => Err(findings),
    }
}

impl Findings {
    /// Writes every diagnostic to the log with its level. A terminal also shows the lines of the
    /// configuration.
    pub(crate) fn report(&self, log: &Log) {
        let style = crate::log::style();
        for diagnostic in &self.diagnostics {
            let explanation = diagnostic.explanation(&self.sources, style);
            log.write_explained(diagnostic.level.into(), diagnostic, &explanation);
        }
    }
}

fn test(options: &Options, application: &dyn Application, dump: bool) -> Result<(), StartFailed> {
    // Notices, such as those of directives without effect, are for the person who runs the test.
    // `-q` says that nobody reads them.
    let console = if options.quiet {
        Level::Warn
    } else {
        Level::Notice
    };
    let log = Log::test(options, console);
    let path = options.conf_path.display();
    let say = |text: String| {
        if !options.quiet {
            print(&text);
        }
    };
    let failed = || {
        print(&format!("configuration file {path} test failed"));
        StartFailed
    };
    let files = Recorder::new(application.files());
    let examined = examine(options, application, files).map_err(|findings| {
        findings.report(&log);
        failed()
    })?;
    examined.findings.report(&log);
    say(format!("the configuration file {path} syntax is ok"));
    let needs = &examined.needs;
    for text in confinement::links_leading_outside(&needs.master.confinement) {
        log.write(Level::Notice, text);
    }
    let pid = pid_file::probe(&needs.master.pid).map_err(|text| vec![text]);
    let found = [pid, directories::probe(&needs.directories)];
    let errors: Vec<String> = found
        .into_iter()
        .filter_map(Result::err)
        .flatten()
        .collect();
    errors.iter().for_each(|text| log.write(Level::Emerg, text));
    if !descriptors::probe(&needs.descriptors, &log) || !errors.is_empty() {
        return Err(failed());
    }
    say(format!("configuration file {path} test is successful"));
    if dump {
        use std::io::Write;
        let mut stdout = std::io::stdout();
        let dump = conf::dump(&examined.findings.sources);
        let _ = stdout.write_all(&dump).and_then(|()| stdout.flush());
    }
    Ok(())
}

/// `-s`. A configuration with errors is refused here, before a process is signalled. Its hosts are
/// not resolved: `-s stop` must work even if no name server answers, and in a reload the master
/// itself resolves the hosts.
fn send_signal(
    options: &Options,
    application: &dyn Application,
    signal: SignalName,
) -> Result<(), StartFailed> {
    let log = Log::startup(options, Level::Notice, Level::Warn);
    let files = Recorder::new(PlaceholderHosts::new(application.files()));
    let examined = examine(options, application, files).map_err(|findings| {
        findings.report(&log);
        StartFailed
    })?;
    log.notice("signal process started");
    let path = &examined.needs.master.pid;
    let pid = pid_file::read(path).map_err(|error| {
        let explanation = if error.is_missing() {
            not_running("no server with this configuration runs")
        } else {
            String::new()
        };
        log.write_explained(Level::Error, error, &explanation);
        StartFailed
    })?;
    let number = signal.number();
    let sent = match RunningMaster::find(pid) {
        Ok(running) => match signal {
            SignalName::Reload => reply::send_and_wait(|value| running.signal(number, value)),
            _ => running.signal(number, 0).map(|()| ReloadResult::Committed),
        },
        Err(RunningError::NoProcess(error)) => Err(error),
        Err(refusal) => {
            let path = path.display();
            let text = format!("process {pid}, which \"{path}\" names, {refusal}: not signalled");
            log.write(Level::Error, text);
            return Err(StartFailed);
        }
    };
    match sent {
        Ok(ReloadResult::Committed) => Ok(()),
        Ok(ReloadResult::Unknown) => {
            log.write(
                Level::Warn,
                format_args!("process {pid} did not say whether it reloaded"),
            );
            Ok(())
        }
        Ok(ReloadResult::Failed(errors)) => {
            // The master has logged the errors already.
            errors.iter().for_each(|error| print(error));
            Err(StartFailed)
        }
        Err(error) => {
            let text = crate::log::failure(&format!("kill({pid}, {number}) failed"), &error);
            let explanation = match rustix::io::Errno::from_io_error(&error) {
                Some(rustix::io::Errno::SRCH) => not_running(&format!(
                    "the server that wrote \"{}\" has ended",
                    path.display()
                )),
                _ => String::new(),
            };
            log.write_explained(Level::Alert, text, &explanation);
            Err(StartFailed)
        }
    }
}

/// The hint for a user who signals a server that does not run.
fn not_running(why: &str) -> String {
    let hint = crate::log::style().paint(Style::HINT, "hint:");
    format!("  {hint} {why}; without -s it is started\n")
}

/// Becomes a master and serves until it is told to end.
fn start(options: Options, application: &'static dyn Application) -> Result<(), StartFailed> {
    let startup_log = Log::startup(&options, Level::Notice, Level::Warn);
    let refuse = |log: &Log, text: String| {
        log.write(Level::Emerg, text);
        StartFailed
    };
    let handed_on = inherited::take(&startup_log);
    let state_of_older = state::take().filter(|_| handed_on.is_some());
    let is_handed_on = handed_on.is_some();
    let mut sockets = handed_on.unwrap_or_default();
    sockets.extend(inherited::take_activated(&startup_log));
    let mut inherited = Descriptors::inherited(sockets, application);
    let files = Recorder::new(application.files());
    let examined = examine(&options, application, files).map_err(|findings| {
        findings.report(&startup_log);
        StartFailed
    })?;
    let settings = examined.needs.master.clone();
    let is_confined = settings.confinement.level != confinement::Level::Off;
    let predecessor = refuse_second_master(&settings.pid, &startup_log)?;
    // The master holds every listener and log; a soft limit that is too low would be pointless.
    if let Err(text) = identity::raise_open_files(None) {
        startup_log.write(Level::Alert, text);
    }
    directories::make(&examined.needs.directories, settings.identity.as_ref()).map_err(
        |texts| {
            for text in texts {
                startup_log.write(Level::Emerg, text);
            }
            StartFailed
        },
    )?;
    let needs = &examined.needs.descriptors;
    if !devices::check(&examined.needs.devices, is_handed_on, &startup_log) {
        return Err(StartFailed);
    }
    let descriptors =
        Descriptors::open(needs, &inherited, &startup_log).map_err(|_| StartFailed)?;
    descriptors.adjust_kept(needs, &inherited, &startup_log);
    let inherited_files = inherited.socket_files();
    let unneeded_files = inherited.close_missing_from(&descriptors);
    drop(inherited);
    // Signals are blocked only now, because until now an address in use or a log that is a FIFO may
    // delay the start, which a signal must be able to end. They are blocked before the pid file
    // exists, since a signal may follow at once. A server that goes to the background blocks them
    // after the fork: the child does not inherit pending signals.
    let block = |log: &Log| {
        let signals = Signals::block(signals::MASTER);
        signals.map_err(|error| refuse(log, crate::log::failure("signalfd() failed", &error)))
    };
    // The program that has handed its sockets over runs in the background already, and waits for
    // this process, not for a child.
    let goes_to_background = settings.daemon && !is_handed_on;
    let blocked = if goes_to_background {
        None
    } else {
        Some(block(&startup_log)?)
    };
    let console = Some(Level::Warn);
    let log = Log::new(descriptors.log_targets(&settings.error_logs), console);
    // From here on lines go to the logs of the configuration, and the file of `-e` must not stay
    // open.
    drop(startup_log);
    examined.findings.report(&log);
    log_system(application, &log);

    if goes_to_background {
        daemon::daemonize().map_err(|text| refuse(&log, text))?;
    }
    title::set_name();
    let command_line: Vec<OsString> = std::env::args_os().collect();
    if settings.master_process {
        title::set_master_title(&command_line);
    } else if is_confined {
        log.notice(
            "the worker is not confined: \"master_process off\" gives it no process of its own",
        );
    }
    let signals = blocked.map_or_else(|| block(&log), Ok)?;
    let manager = ServiceManager::of_this_process().unwrap_or_else(|text| {
        log.write(Level::Alert, text);
        None
    });
    let origin = if is_handed_on {
        Origin::HandedOn(UpgradeParent::parent(inherited_files, state_of_older))
    } else if goes_to_background {
        Origin::Background
    } else if manager.is_some() {
        Origin::Service
    } else {
        Origin::Foreground
    };
    let pid_file = PidFile::create(&settings.pid).map_err(|text| refuse(&log, text))?;
    log.redirect_stderr();
    let startup = Startup {
        options,
        examined,
        descriptors,
        log,
        signals,
        pid_file,
        predecessor,
        upgrade: Upgrade::new(command_line, origin, unneeded_files),
        manager,
    };
    let master = Master::new(application, startup).map_err(|error| {
        print(&format!(
            "[emerg] {}",
            crate::log::failure("memfd_create() failed", &error)
        ));
        StartFailed
    })?;
    master.run().map_err(|()| StartFailed)
}

/// Refuses to start if the pid file names a running process, unless that is a server that completes
/// its last requests, which is returned.
fn refuse_second_master(pid: &Path, log: &Log) -> Result<Option<Predecessor>, StartFailed> {
    let predecessor = pid_file::check(pid).map_err(|text| {
        log.write(Level::Emerg, text);
        StartFailed
    })?;
    if let Some(predecessor) = &predecessor {
        let number = predecessor.pid;
        log.notice(format_args!(
            "process {number}, which pid file \"{}\" names, serves its last requests: taking its place",
            pid.display()
        ));
    }
    Ok(predecessor)
}

/// Writes the first lines of a log: the program's version, the operating system and the limit of
/// open files.
fn log_system(application: &dyn Application, log: &Log) {
    log.notice(application.banner());
    let system = rustix::system::uname();
    let (name, release) = (
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
    );
    log.notice(format_args!("OS: {name} {release}"));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    let (soft, hard) = (number(limit.current), number(limit.maximum));
    log.notice(format_args!("getrlimit(RLIMIT_NOFILE): {soft}:{hard}"));
}
