//! The process's use of resources: processor time, memory, descriptors.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::process::Resource;

/// The directory of open descriptors. Opened early, since a process that has changed its user may
/// not open it.
static DESCRIPTORS: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// The resources of the process at one time; a value that cannot be determined is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time in seconds, in user and kernel mode.
    pub processor_seconds: f64,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Size of the address space in bytes.
    pub virtual_bytes: Option<u64>,
    /// The number of open descriptors.
    pub open_descriptors: Option<u64>,
    /// The limit of open descriptors.
    pub descriptors_max: Option<u64>,
    /// The start of the process, in seconds since 1970.
    pub started: Option<f64>,
}

/// Opens the files that cannot be opened after the process has changed its user.
pub fn prepare() {
    DESCRIPTORS.get_or_init(open);
}

fn open() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/fd", flags, Mode::empty()).ok()
}

/// Reads the process's current use of resources.
pub fn now() -> Usage {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let mut usage = of_stat(&stat);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    usage.descriptors_max = limit.current;
    usage.open_descriptors = DESCRIPTORS.get_or_init(open).as_ref().and_then(count);
    usage
}

/// The number of entries in the directory, without `.` and `..`.
fn count(folder: &OwnedFd) -> Option<u64> {
    rustix::fs::seek(folder, SeekFrom::Start(0)).ok()?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = rustix::fs::RawDir::new(folder, buffer.spare_capacity_mut());
    let mut count: u64 = 0;
    while let Some(entry) = entries.next() {
        entry.ok()?;
        count += 1;
    }
    count.checked_sub(2)
}

/// The resources that a line of `/proc/PID/stat` (proc_pid_stat(5)) shows.
fn of_stat(stat: &str) -> Usage {
    // The fields follow the process name in parentheses, which may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |ticks: Option<u64>| ticks.map(|ticks| ticks as f64 / per_second);
    let pages = field(24);
    let page = rustix::param::page_size() as u64;
    Usage {
        processor_seconds: seconds(field(14)).unwrap_or_default()
            + seconds(field(15)).unwrap_or_default(),
        resident_bytes: pages.map(|pages| pages.saturating_mul(page)),
        virtual_bytes: field(23),
        started: seconds(field(22)).and_then(|since| Some(boot_time()? + since)),
        ..Usage::default()
    }
}

/// The start of the machine, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = Duration::try_from(up).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.checked_sub(up)?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_takes_something() {
        prepare();
        let before = now();
        let files: Vec<_> = (0..3).map(|_| std::fs::File::open("/dev/null")).collect();
        let after = now();
        assert!(files.iter().all(Result::is_ok));
        // Other tests open and close files meanwhile.
        assert!(after.open_descriptors > Some(3), "{before:?} {after:?}");
        assert!(after.resident_bytes > Some(100_000) && after.virtual_bytes > after.resident_bytes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - after.started.unwrap();
        assert!((-1.0..600.0).contains(&age), "{age}");
    }

    #[test]
    fn a_name_may_hold_brackets_and_blanks() {
        let fields: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) b (c) S {}", fields.join(" "));
        let usage = of_stat(&stat);
        let page = rustix::param::page_size() as u64;
        assert_eq!(usage.resident_bytes, Some(24 * page));
        assert_eq!(usage.virtual_bytes, Some(23));
        assert_eq!(of_stat("").resident_bytes, None);
    }
}
