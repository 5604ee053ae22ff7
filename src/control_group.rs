//! The limits that control groups of version 1 and 2 set for a process: cgroups(7), and of Linux
//! `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::machine_files::MachineFiles;

/// The tightest limits of the control groups that contain a process.
#[derive(Debug, Default)]
pub(crate) struct ControlGroup {
    /// The CPU quota, in processors: for example 1.5.
    pub(crate) quota: Option<f64>,
    /// Number of periods in which the quota was used up.
    pub(crate) throttled: u64,
    /// Number of processes killed for lack of memory.
    pub(crate) out_of_memory: u64,
    /// The version (1 or 2) of the hierarchy that sets the quota.
    pub(crate) version: u8,
}

impl ControlGroup {
    /// The limits of a process whose folder in `/proc` is `me`.
    pub(crate) fn read(files: &MachineFiles<'_>, me: &str) -> ControlGroup {
        let mut all = ControlGroup::default();
        for line in files.text(format!("{me}/cgroup")).lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let has = |name: &str| controllers.split(',').any(|controller| controller == name);
            // In a cgroup namespace, the path may not exist below the mount; then only the root is
            // visible.
            let within = path.trim_start_matches('/');
            let groups = Path::new(within).ancestors().map(Path::to_owned);
            for group in groups {
                if controllers.is_empty() {
                    all.add_second(files, &group);
                } else if has("cpu") {
                    all.add_first_processor(files, &group);
                } else if has("memory") {
                    let path = Path::new("sys/fs/cgroup/memory").join(&group);
                    let events = files.table(path.join("memory.oom_control"), ' ');
                    all.add_out_of_memory(&events);
                }
            }
        }
        all
    }

    /// Number of processors, of `all`, that the quota lets work at the same time, rounded up: a
    /// quota of 1.5 gives two. At least one.
    pub(crate) fn processors_of(&self, all: usize) -> usize {
        let quota = self.quota.map(|quota| quota.ceil() as usize); // `as` stays within the type
        quota.map_or(all, |quota| quota.min(all)).max(1)
    }

    /// Version 2: `cpu.max`, `cpu.stat`, `memory.events`.
    fn add_second(&mut self, files: &MachineFiles<'_>, group: &Path) {
        for mount in ["sys/fs/cgroup", "sys/fs/cgroup/unified"] {
            let folder = Path::new(mount).join(group);
            let max = files.text(folder.join("cpu.max"));
            let mut words = max.split_whitespace();
            let (quota, period) = (words.next(), words.next());
            self.add_quota(quota.and_then(number), period.and_then(number), 2);
            self.add_throttled(&files.table(folder.join("cpu.stat"), ' '));
            self.add_out_of_memory(&files.table(folder.join("memory.events"), ' '));
        }
    }

    /// Version 1: `cpu.cfs_quota_us`, `cpu.cfs_period_us`, `cpu.stat`.
    fn add_first_processor(&mut self, files: &MachineFiles<'_>, group: &Path) {
        for mount in ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"] {
            let folder = Path::new(mount).join(group);
            // Without a quota it is -1.
            let quota = files.number(folder.join("cpu.cfs_quota_us"));
            let period = files.number(folder.join("cpu.cfs_period_us"));
            self.add_quota(quota, period, 1);
            self.add_throttled(&files.table(folder.join("cpu.stat"), ' '));
            if quota.is_some() {
                break;
            }
        }
    }

    fn add_quota(&mut self, quota: Option<u64>, period: Option<u64>, version: u8) {
        let (Some(quota), Some(period)) = (quota, period.filter(|period| *period > 0)) else {
            return;
        };
        let processors = quota as f64 / period as f64;
        if self.quota.is_none_or(|known| processors < known) {
            (self.quota, self.version) = (Some(processors), version);
        }
    }

    fn add_throttled(&mut self, statistics: &BTreeMap<String, u64>) {
        let times = statistics.get("nr_throttled").copied();
        self.throttled = self.throttled.max(times.unwrap_or_default());
    }

    fn add_out_of_memory(&mut self, events: &BTreeMap<String, u64>) {
        let times = events.get("oom_kill").copied();
        self.out_of_memory = self.out_of_memory.max(times.unwrap_or_default());
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A folder with the files of a machine.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Folder {
            let name = format!("tidegate-groups-{name}-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            for (path, text) in files {
                let path = folder.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            folder
        }

        fn group(&self) -> ControlGroup {
            ControlGroup::read(&MachineFiles { root: &self.0 }, "proc/self")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const SECOND: &str = "0::/app.slice/web.service\n";
    const SECOND_MAX: &str = "sys/fs/cgroup/app.slice/web.service/cpu.max";

    #[test]
    fn the_second_version_says_how_many_processors() {
        for (max, quota, of_eight) in [
            ("max 100000\n", None, 8),
            ("150000 100000\n", Some(1.5), 2),
            ("50000 100000\n", Some(0.5), 1),
            ("400000 200000\n", Some(2.0), 2),
            ("6400000 100000\n", Some(64.0), 8),
            ("1000 0\n", None, 8),
            ("", None, 8),
            ("-1 100000\n", None, 8),
        ] {
            let files = [("proc/self/cgroup", SECOND), (SECOND_MAX, max)];
            let group = Folder::new("second", &files).group();
            assert_eq!(group.quota, quota, "{max}");
            assert_eq!(group.processors_of(8), of_eight, "{max}");
        }
    }

    /// A limit holds for all groups below it.
    #[test]
    fn the_tightest_group_above_counts() {
        let files = [
            ("proc/self/cgroup", SECOND),
            (SECOND_MAX, "400000 100000\n"),
            ("sys/fs/cgroup/app.slice/cpu.max", "200000 100000\n"),
        ];
        let group = Folder::new("tightest", &files).group();
        assert_eq!((group.quota, group.version), (Some(2.0), 2));
    }

    /// In a container the path is that of the machine, or its root.
    #[test]
    fn a_namespace_of_its_own_shows_its_root() {
        for path in ["0::/\n", "0::/../../system.slice/docker-1.scope\n"] {
            let files = [
                ("proc/self/cgroup", path),
                ("sys/fs/cgroup/cpu.max", "100000 100000\n"),
            ];
            let group = Folder::new("root", &files).group();
            assert_eq!(group.processors_of(4), 1, "{path}");
        }
    }

    /// Both hierarchies at the same time: either may have the controller.
    #[test]
    fn the_first_version_and_both_beside_each_other() {
        let first = ("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/a\n0::/b\n");
        let period = ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
        let quota = "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us";
        let group = Folder::new("none", &[first, period, (quota, "-1\n")]).group();
        assert_eq!(group.quota, None);
        let group = Folder::new("first", &[first, period, (quota, "250000\n")]).group();
        assert_eq!((group.quota, group.version), (Some(2.5), 1));
        assert_eq!(group.processors_of(8), 3);
        let unified = ("sys/fs/cgroup/unified/b/cpu.max", "100000 100000\n");
        let both = [first, period, (quota, "250000\n"), unified];
        let group = Folder::new("both", &both).group();
        assert_eq!((group.quota, group.version), (Some(1.0), 2));
    }
}
