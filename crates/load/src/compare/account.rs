//! The processor time of a server, measured from outside: of a process with its threads and
//! descendants, or of a control group.
//!
//! Linux only: the clock of a process (clock_getcpuclockid(3)), /proc/PID/stat (proc(5)),
//! `cpu.stat` of control groups of version 2 (Documentation/admin-guide/cgroup-v2.rst),
//! `cpuacct.usage` of version 1. A control group is more exact: for a process, the time of
//! terminated children is known only in hundredths of a second.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mount points of control groups; version 1 has one per controller.
const CGROUP_ROOTS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/cpuacct",
    "/sys/fs/cgroup/cpu,cpuacct",
];

/// The source of the processor time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// A process, its threads, its descendants, and terminated children of each.
    Process(u32),
    /// The accounting file of a control group.
    Cgroup(PathBuf),
}

impl Account {
    /// The control group at `path`: its folder, or the path relative to `/sys/fs/cgroup/` (for
    /// version 1, with or without the controller).
    ///
    /// # Errors
    /// `NotFound` if there is no such group, or if it does not account for processor time.
    pub fn cgroup(path: &Path) -> io::Result<Account> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let mut folders = vec![path.to_owned()];
        folders.extend(CGROUP_ROOTS.map(|root| Path::new(root).join(relative)));
        for folder in folders {
            for name in ["cpu.stat", "cpuacct.usage"] {
                let account = Account::Cgroup(folder.join(name));
                if account.used().is_ok() {
                    return Ok(account);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no control group that counts processor time",
        ))
    }

    /// The processor time used so far, user and system.
    ///
    /// # Errors
    /// Any error of reading the files; `InvalidData` if they cannot be parsed.
    pub fn used(&self) -> io::Result<Duration> {
        match self {
            Account::Process(pid) => process(*pid),
            Account::Cgroup(file) => {
                let text = fs::read_to_string(file)?;
                cgroup_usage(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
        }
    }
}

/// Parses `cpu.stat`, in microseconds, or `cpuacct.usage`, in nanoseconds.
fn cgroup_usage(text: &str) -> Option<Duration> {
    match text.trim().parse() {
        Ok(nanoseconds) => Some(Duration::from_nanos(nanoseconds)),
        Err(_) => {
            let mut lines = text.lines();
            let usage = lines.find_map(|line| line.strip_prefix("usage_usec "))?;
            Some(Duration::from_micros(usage.trim().parse().ok()?))
        }
    }
}

fn process(root: u32) -> io::Result<Duration> {
    let mut sum = engine::process_time(root)?;
    let all = processes()?;
    let mut family = vec![root];
    let mut place = 0;
    while let Some(parent) = family.get(place).copied() {
        place += 1;
        let children = all.iter().filter(|stat| stat.parent == parent);
        family.extend(children.map(|stat| stat.pid));
    }
    let tick = Duration::from_secs(1) / clock_ticks_per_second();
    for member in all.iter().filter(|stat| family.contains(&stat.pid)) {
        if member.pid != root {
            // The time of a child that terminates during the walk is included in its parent's next
            // reading.
            sum += engine::process_time(member.pid).unwrap_or_default();
        }
        sum += tick.saturating_mul(member.ended_children);
    }
    Ok(sum)
}

/// Number of clock ticks per second in /proc.
fn clock_ticks_per_second() -> u32 {
    let ticks = u32::try_from(rustix::param::clock_ticks_per_second());
    ticks.unwrap_or_default().max(1)
}

/// The fields of /proc/PID/stat that are used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    ended_children: u32,
}

fn processes() -> io::Result<Vec<Stat>> {
    let entries = fs::read_dir("/proc")?.flatten();
    // Processes that terminate during the walk are skipped.
    let texts = entries.filter_map(|entry| {
        let name = entry.file_name();
        let is_process = name.as_encoded_bytes().first()?.is_ascii_digit();
        is_process.then(|| fs::read_to_string(entry.path().join("stat")).ok())?
    });
    Ok(texts.filter_map(|text| parse(&text)).collect())
}

/// Parses /proc/PID/stat. The second field, a name in parentheses, may contain any characters.
fn parse(text: &str) -> Option<Stat> {
    let (pid, _) = text.split_once(' ')?;
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // proc(5) numbers fields from 1; `rest` starts with field 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        parent: number(4)?,
        ended_children: number(16)?.saturating_add(number(17)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_process_is_counted_with_its_ended_threads_and_children() {
        let account = Account::Process(std::process::id());
        let before = account.used().unwrap();
        let spent = std::thread::spawn(|| {
            let own = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while own().tv_sec == 0 && own().tv_nsec < 5_000_000 {}
        });
        spent.join().unwrap();
        let after = account.used().unwrap();
        assert!(
            after >= before + Duration::from_millis(5),
            "{before:?} {after:?}"
        );
        // At least five ticks, of which the kernel may lose two by rounding.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])
            .spawn()
            .unwrap();
        let alone = Account::Process(child.id());
        let begin = Instant::now();
        while alone.used().unwrap() < Duration::from_millis(50)
            && child.try_wait().unwrap().is_none()
        {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        child.wait().unwrap();
        let with_child = account.used().unwrap();
        assert!(
            with_child > after + Duration::from_millis(20),
            "{with_child:?} {after:?}"
        );
        let nobody = Account::Process(u32::MAX).used().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn stat_is_read_behind_any_name() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 30 4 20 0 1 0 5 6 7";
        let expected = Stat {
            pid: 42,
            parent: 7,
            ended_children: 34,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("42 (a) S 7"), None);
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let v2 = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n";
        assert_eq!(cgroup_usage(v2), Some(Duration::from_micros(1500)));
        assert_eq!(cgroup_usage("1500\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(cgroup_usage("nr_periods 1\n"), None);
        let folder = std::env::temp_dir().join(format!("tidegate-cgroup-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(Account::cgroup(&folder).is_err());
        fs::write(folder.join("cpu.stat"), v2).unwrap();
        let account = Account::cgroup(&folder).unwrap();
        assert_eq!(account.used().unwrap(), Duration::from_micros(1500));
        fs::remove_dir_all(&folder).unwrap();
    }
}
