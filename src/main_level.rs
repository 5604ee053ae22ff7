//! The directives of the main level that concern processes rather than requests.
//!
//! <https://nginx.org/en/docs/ngx_core_module.html>. The `events` block and `error_log` are in the
//! crates of the server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use conf::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, Level, Line, Reload, ScopeRef, Setter,
    Setting, Word, parse,
};
use process::confinement;
use process::identity::{self, Identity};

use crate::cli::{is_called_nginx, paths};
use crate::control_group::ControlGroup;
use crate::machine_files::MachineFiles;

/// All directives of this file, for the directive table.
pub(crate) static TABLE: &[&dyn Declared] = &[
    &DAEMON,
    &MASTER_PROCESS,
    &PID,
    &USER,
    &WORKER_PROCESSES,
    &WORKER_CPU_AFFINITY,
    &WORKER_RLIMIT_NOFILE,
    &WORKER_SHUTDOWN_TIMEOUT,
    &WORKER_PRIORITY,
    &WORKER_RLIMIT_CORE,
    &WORKING_DIRECTORY,
    &ENV,
    &LOCK_FILE,
    &TIMER_RESOLUTION,
    &SSL_OBJECT_CACHE_INHERITABLE,
    &CONFINE,
];

static DAEMON: Setting<bool> = Setting::new("daemon", &["on | off"], parse::flag)
    .contexts(Contexts::MAIN)
    .default("on")
    .manual(
        "Goes to the background after the start. Read at the start only: a reload does not \
         change it.",
    );

static MASTER_PROCESS: Setting<bool> = Setting::new("master_process", &["on | off"], parse::flag)
    .contexts(Contexts::MAIN)
    .default("on")
    .manual(
        "Serves in a process of its own, without the privileges of the master. With `off` one \
         process does both and keeps its privileges: meant for debugging. Read at the start only.",
    );

static PID: Setting<PathBuf> = Setting::new("pid", &["file"], parse::path)
    .contexts(Contexts::MAIN)
    .default(paths::PID)
    .manual(
        "The file that holds the number of the master process. It appears when every socket \
         listens. A start is refused where the file names a process that is running, unless that \
         only serves its last requests. The default is nginx's, `/run/nginx.pid`, where the \
         program is called by the name `nginx`.",
    );

static USER: Setting<UserLine> = Setting::new("user", &["user [group]"], user)
    .contexts(Contexts::MAIN)
    .arity(Arity::between(1, 2))
    .default("nobody nogroup")
    .repeatable()
    .reload(Reload::NewProcess)
    .manual(
        "Whom the worker process runs as; without a group, the group has the user's name. Has an \
         effect only where the master runs as root.",
    );

static WORKER_PROCESSES: Setting<usize> =
    Setting::new("worker_processes", &["number | auto"], worker_processes)
        .contexts(Contexts::MAIN)
        .default("1")
        .reload(Reload::NewProcess)
        .manual(
            "How many threads serve, all in one worker process. `auto` is one for each CPU that \
             this process may use, by its affinity and by the quota of its control group (1.5 are \
             two).",
        );

static WORKER_CPU_AFFINITY: Setting<Affinity> = Setting::new(
    "worker_cpu_affinity",
    &["cpumask ...", "auto [cpumask]"],
    affinity,
)
.contexts(Contexts::MAIN)
.arity(Arity::at_least(1))
.reload(Reload::NewProcess)
.manual(
    "Binds worker threads to CPUs. Each mask is for one thread, the last for all further \
             ones; a mask is a row of `0` and `1`, the CPU with number 0 at its end. `auto` gives \
             each thread one CPU in turn, of those that the mask allows.",
);

static WORKER_RLIMIT_NOFILE: Setting<u64> =
    Setting::new("worker_rlimit_nofile", &["number"], parse::number)
        .contexts(Contexts::MAIN)
        .reload(Reload::NewProcess)
        .manual(
            "How many files the worker process may have open, connections among them. Without it \
             the soft limit is raised to the hard one.",
        );

static WORKER_SHUTDOWN_TIMEOUT: Setting<Duration> =
    Setting::new("worker_shutdown_timeout", &["time"], parse::milliseconds)
        .contexts(Contexts::MAIN)
        .manual(
            "How long connections may stay open after the order to quit, and those accepted \
             before a reload after that. A reload then ends them as the order to quit does: idle \
             ones at once, busy ones after their response. Without it, or with 0, there is no \
             limit, and a reload ends no connection.",
        );

static WORKER_PRIORITY: Setting<i32> = Setting::new("worker_priority", &["number"], priority)
    .contexts(Contexts::MAIN)
    .default("0")
    .repeatable()
    .reload(Reload::NewProcess)
    .manual(
        "The nice value of the worker process, from -20 for more of the processor to 19 for less. \
         Below 0 needs a master with privileges.",
    );

static WORKER_RLIMIT_CORE: Setting<u64> =
    Setting::new("worker_rlimit_core", &["size"], parse::offset)
        .contexts(Contexts::MAIN)
        .reload(Reload::NewProcess)
        .manual("The largest core file that the worker process may leave where it crashes.");

static WORKING_DIRECTORY: Setting<PathBuf> =
    Setting::new("working_directory", &["directory"], parse::path)
        .contexts(Contexts::MAIN)
        .reload(Reload::NewProcess)
        .manual("The working directory of the worker process, which core files are written to.");

static ENV: Setting<Vec<String>> = Setting::new("env", &["variable[=value]"], |setter| {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    Ok(words.map(|word| word.text().into_owned()).collect())
})
.contexts(Contexts::MAIN)
.inherit(Inherit::List)
.reload(Reload::NewProcess)
.manual(
    "A variable of the environment that the worker process gets, with the master's value or \
     another. Otherwise it gets none but TZ.",
);

static LOCK_FILE: Setting<PathBuf> = Setting::new("lock_file", &["file"], parse::path)
    .contexts(Contexts::MAIN)
    .no_effect("worker threads share memory and need no lock in a file")
    .manual("Where nginx takes locks on systems without atomic operations.");

static TIMER_RESOLUTION: Setting<Duration> =
    Setting::new("timer_resolution", &["interval"], parse::milliseconds)
        .contexts(Contexts::MAIN)
        .no_effect("the clock is read once a turn of the loop, which costs no system call")
        .manual("Makes nginx read the clock less often.");

static SSL_OBJECT_CACHE_INHERITABLE: Setting<bool> =
    Setting::new("ssl_object_cache_inheritable", &["on | off"], parse::flag)
        .contexts(Contexts::MAIN)
        .arity(Arity::flag())
        .default("off")
        .manual(
            "Takes certificates, keys and revocation lists over a reload without reading them again, as long as their \
             files have the same inode and second of change. A file that is written twice within a second may be \
             missed. nginx has `on` by default.",
        );

static CONFINE: Setting<confinement::Level> =
    Setting::new("confine", &["on | strict | off"], |setter| {
        let word = setter.word()?;
        match &*word.bytes {
            b"on" => Ok(confinement::Level::On),
            b"strict" => Ok(confinement::Level::Strict),
            b"off" => Ok(confinement::Level::Off),
            _ => Err(Fault::invalid_value(word).with_hint("it is \"on\", \"strict\" or \"off\"")),
        }
    })
    .contexts(Contexts::MAIN)
    .default("on")
    .reload(Reload::NewProcess)
    .manual(
        "What the worker process may do, even where an attacker runs code in it. With `on` it gains no privileges, \
         has no capabilities but those that the configuration needs, makes only the system calls \
         that serving takes, and writes only where the configuration has it write: folders of \
         caches and temporary files, and what WebDAV, `proxy_store`, `state` and logs with \
         variables in their paths name. `strict` keeps it from reading anything but that, what \
         `root` and `alias` name, and what the C library needs; a path with variables stands for \
         the folder before the first of them. Without effect with `master_process off`.",
    );

/// The compiled directives of the main level.
#[derive(Debug)]
pub(crate) struct MainLevel {
    pub(crate) daemon: bool,
    pub(crate) master_process: bool,
    /// `pid`, relative to the prefix.
    pub(crate) pid: PathBuf,
    /// `user`; `None` if this process cannot become another user.
    pub(crate) identity: Option<Identity>,
    pub(crate) threads: usize,
    pub(crate) inherits_objects: bool,
    /// `worker_cpu_affinity`: the CPUs of each thread; empty without the directive.
    pub(crate) affinity: Vec<Vec<usize>>,
    pub(crate) open_files_max: Option<u64>,
    pub(crate) priority: i32,
    pub(crate) core_size_max: Option<u64>,
    pub(crate) confine: confinement::Level,
    pub(crate) working_directory: Option<PathBuf>,
    pub(crate) environment: Vec<String>,
    /// `worker_shutdown_timeout`; as in nginx, 0 means no time limit.
    pub(crate) shutdown_timeout: Option<Duration>,
}

impl MainLevel {
    /// Reads the main level. Warnings go to `diagnostics`.
    pub(crate) fn compile(
        root: ScopeRef<'_>,
        prefix: &Path,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<MainLevel, Fault> {
        let threads = root.get(&WORKER_PROCESSES)?;
        let affinity = root.written(&WORKER_CPU_AFFINITY)?;
        if let Some(Affinity::Masks(masks)) = &affinity
            && masks.len() != 1
            && masks.len() != threads
        {
            let text = "the number of \"worker_processes\" is not equal to the number of \
                        \"worker_cpu_affinity\" masks, using last mask for remaining worker \
                        processes";
            diagnostics.push(Diagnostic::new(Level::Warn, text, None));
        }
        Ok(MainLevel {
            daemon: root.get(&DAEMON)?,
            master_process: root.get(&MASTER_PROCESS)?,
            pid: match root.written(&PID)? {
                None if is_called_nginx() => PathBuf::from(paths::NGINX_PID),
                _ => prefix.join(root.get(&PID)?),
            },
            identity: identity(root, diagnostics)?,
            threads,
            inherits_objects: root.get(&SSL_OBJECT_CACHE_INHERITABLE)?,
            affinity: affinity.map_or(Vec::new(), |affinity| affinity.cpus(threads)),
            open_files_max: root.written(&WORKER_RLIMIT_NOFILE)?,
            priority: root.get(&WORKER_PRIORITY)?,
            core_size_max: root.written(&WORKER_RLIMIT_CORE)?,
            confine: root.get(&CONFINE)?,
            working_directory: root.written(&WORKING_DIRECTORY)?,
            environment: root.written(&ENV)?.unwrap_or_default(),
            shutdown_timeout: root
                .written(&WORKER_SHUTDOWN_TIMEOUT)?
                .filter(|timeout| !timeout.is_zero()),
        })
    }
}

/// `worker_priority`. nginx detects a duplicate by the value, so a line with 0 does not count as
/// one.
fn priority(setter: &Setter<'_>) -> Result<i32, Fault> {
    let this = setter.first();
    let lines = setter.scope().own_lines(&WORKER_PRIORITY.spec);
    let mut before = lines
        .iter()
        .take_while(|line| line.sequence() < this.sequence());
    let counts = |line: &Line| signed_number(line.argument(0)).is_ok_and(|number| number != 0);
    if !setter.is_default() && before.any(|line| counts(line)) {
        let text = "\"worker_priority\" directive is duplicate";
        return Err(Fault::at(&this.name, text));
    }
    signed_number(setter.word()?)
}

/// A number with an optional sign.
fn signed_number(word: &Word) -> Result<i32, Fault> {
    let invalid = || Fault::at(word, "\"worker_priority\" directive invalid number");
    let digits = word
        .bytes
        .strip_prefix(b"-")
        .or(word.bytes.strip_prefix(b"+"));
    let number = parse::number_of(digits.unwrap_or(&word.bytes)).ok_or_else(invalid)?;
    let number = i32::try_from(number).map_err(|_| invalid())?;
    Ok(if word.bytes.starts_with(b"-") {
        -number
    } else {
        number
    })
}

/// A `user` line: unresolved names, and the position of the first.
struct UserLine {
    user: Word,
    group: Option<Word>,
}

fn user(setter: &Setter<'_>) -> Result<UserLine, Fault> {
    // nginx checks for a duplicate only after checking whether the line has any effect.
    let first = setter.scope().own_lines(&USER.spec).first().copied();
    let is_again = first.is_some_and(|first| first.position != setter.first().position);
    if is_again && !setter.is_default() && identity::is_superuser() {
        let text = "\"user\" directive is duplicate";
        return Err(Fault::at(&setter.first().name, text));
    }
    Ok(UserLine {
        user: setter.word()?.clone(),
        group: setter.args().get(1).cloned(),
    })
}

/// Resolves the names in `user`. A process that is not root keeps its user.
fn identity(
    root: ScopeRef<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<Option<Identity>, Fault> {
    let UserLine { user, group } = root.get(&USER)?;
    let is_written = root.writes(&[&USER]);
    if !identity::is_superuser() {
        for line in root.own_lines(&USER.spec) {
            let text = "the \"user\" directive makes sense only if the master process runs with \
                        super-user privileges, ignored";
            let warning = Diagnostic::warn(text, Some(line.position));
            diagnostics.push(Diagnostic {
                while_reading: true,
                ..warning
            });
        }
        return Ok(None);
    }
    let name = user.text();
    let found = Identity::resolve(&name, group.as_ref().map(Word::text).as_deref());
    match found {
        // If there is no such group, the default user's own group is used.
        Err(_) if !is_written => Identity::resolve(&name, None),
        found => found,
    }
    .map(|identity| {
        let keeps_raw_network = root.tree().scopes().any(|scope| {
            let mut lines = scope.lines().iter();
            lines.any(binds_to_foreign_addresses)
        });
        Some(Identity {
            keeps_raw_network,
            ..identity
        })
    })
    .map_err(|error| Fault::at(&user, error.to_string()))
}

/// Whether a line makes worker processes connect from addresses that the machine does not have:
/// `proxy_bind … transparent`, and its counterparts in other modules.
pub(crate) fn binds_to_foreign_addresses(line: &Line) -> bool {
    let transparent = line
        .args
        .get(1)
        .is_some_and(|word| &*word.bytes == b"transparent");
    transparent && line.name.bytes.ends_with(b"_bind")
}

/// Maximum number of threads. nginx has no limit, but more than this is not practical on any
/// machine.
const THREADS_MAX: usize = 1024;

fn worker_processes(setter: &Setter<'_>) -> Result<usize, Fault> {
    let word = setter.word()?;
    if &*word.bytes == b"auto" {
        return Ok(processors());
    }
    let number = conf::parse::number_of(&word.bytes)
        .and_then(|number| usize::try_from(number).ok())
        .filter(|number| *number <= THREADS_MAX);
    // nginx starts without workers if 0 is configured, which no operator wants.
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| Fault::at(word, "\"worker_processes\" directive invalid value"))
}

/// The number of processors available to this process, by its affinity and the quota of its control
/// groups.
fn processors() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None);
    let allowed = allowed.map_or(1, |set| set.count() as usize);
    let files = MachineFiles {
        root: Path::new("/"),
    };
    ControlGroup::read(&files, "proc/self").processors_of(allowed)
}

enum Affinity {
    /// One of these CPUs per thread.
    Auto(Vec<usize>),
    /// A set of CPUs per thread; the last one applies to all further threads.
    Masks(Vec<Vec<usize>>),
}

impl Affinity {
    /// The CPUs of each thread.
    fn cpus(&self, threads: usize) -> Vec<Vec<usize>> {
        match self {
            // nginx binds no worker if `auto` has no CPU to use.
            Affinity::Auto(cpus) => cpus
                .iter()
                .cycle()
                .take(threads)
                .map(|cpu| vec![*cpu])
                .collect(),
            Affinity::Masks(masks) => {
                let last = masks.last().into_iter().cycle();
                masks.iter().chain(last).take(threads).cloned().collect()
            }
        }
    }
}

fn affinity(setter: &Setter<'_>) -> Result<Affinity, Fault> {
    match setter.args() {
        [auto] if &*auto.bytes == b"auto" => Ok(Affinity::Auto(usable_cpus())),
        [auto, mask] if &*auto.bytes == b"auto" => Ok(Affinity::Auto(cpu_mask(mask)?)),
        [auto, ..] if &*auto.bytes == b"auto" => Err(Fault::new(
            "invalid number of arguments in \"worker_cpu_affinity\" directive",
        )),
        masks => Ok(Affinity::Masks(
            masks.iter().map(cpu_mask).collect::<Result<_, _>>()?,
        )),
    }
}

/// The CPUs that this process may use.
fn usable_cpus() -> Vec<usize> {
    let all = rustix::thread::CpuSet::MAX_CPU;
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..all).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// The CPUs of a mask: binary digits, the last of which is CPU 0. An empty mask is accepted, as by
/// nginx: the system refuses it when the thread starts, which is logged as an alert.
fn cpu_mask(word: &Word) -> Result<Vec<usize>, Fault> {
    let max = rustix::thread::CpuSet::MAX_CPU;
    if word.bytes.len() > max {
        let text = format!("\"worker_cpu_affinity\" supports up to {max} CPUs only");
        return Err(Fault::at(word, text));
    }
    let mut cpus = Vec::new();
    let digits = word.bytes.iter().rev().filter(|byte| **byte != b' ');
    for (cpu, digit) in digits.enumerate() {
        match digit {
            b'1' => cpus.push(cpu),
            b'0' => {}
            other => {
                let character = char::from(*other);
                let text = format!("invalid character \"{character}\" in \"worker_cpu_affinity\"");
                return Err(Fault::at(word, text));
            }
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::application::{OverlayFiles, registry};

    fn main_level(text: &str) -> MainLevel {
        let path = Path::new("/nginx.conf");
        let files = OverlayFiles(BTreeMap::from([(
            path.to_owned(),
            text.as_bytes().to_vec(),
        )]));
        let prefix = Path::new("/");
        let loaded = conf::load(path, prefix, &[], registry(), &files);
        MainLevel::compile(loaded.tree.root(), prefix, &mut Vec::new()).unwrap()
    }

    #[test]
    fn a_shutdown_timeout_of_0_is_none() {
        let timeout = |text: &str| main_level(text).shutdown_timeout;
        assert_eq!(timeout("worker_shutdown_timeout 0;"), None);
        assert_eq!(timeout(""), None);
        let second = Duration::from_secs(1);
        assert_eq!(timeout("worker_shutdown_timeout 1s;"), Some(second));
    }

    fn word(text: &str) -> Word {
        Word {
            bytes: text.as_bytes().into(),
            ..Word::default()
        }
    }

    #[test]
    fn the_last_digit_of_a_mask_is_the_first_cpu() {
        assert_eq!(cpu_mask(&word("0101")), Ok(vec![0, 2]));
        assert_eq!(cpu_mask(&word("1000 0000")), Ok(vec![7]));
        assert_eq!(cpu_mask(&word("00")), Ok(vec![]));
        let error = cpu_mask(&word("012")).unwrap_err();
        assert_eq!(
            error.message,
            "invalid character \"2\" in \"worker_cpu_affinity\""
        );
    }

    #[test]
    fn masks_are_repeated_and_cpus_taken_in_turn() {
        let masks = Affinity::Masks(vec![vec![0], vec![1, 2]]);
        assert_eq!(masks.cpus(3), [vec![0], vec![1, 2], vec![1, 2]]);
        assert_eq!(masks.cpus(1), [vec![0]]);
        let auto = Affinity::Auto(vec![3, 5]);
        assert_eq!(auto.cpus(3), [vec![3], vec![5], vec![3]]);
    }
}
