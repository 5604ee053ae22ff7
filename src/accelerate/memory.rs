//! The size of the cache: `--memory`, or a share of the memory that the machine and the control
//! groups of this process allow (cgroups(7)).

use std::path::Path;

/// The default size: one part in this many of the available memory.
const SHARE: u64 = 4;

/// Minimum and maximum of the default size, in bytes.
const DEFAULT_MIN: u64 = 16 << 20;
const DEFAULT_MAX: u64 = 4 << 30;

/// Minimum of `--memory`, in bytes.
const ASKED_MIN: u64 = 1 << 20;

/// Parses the argument of `--memory`, a number with `k`, `m` or `g`, to bytes.
///
/// # Errors
/// The line to print.
pub(super) fn asked(text: &str) -> Result<u64, String> {
    match conf::parse::offset_of(text.as_bytes()) {
        Some(size) if size >= ASKED_MIN => Ok(size),
        Some(_) => Err(format!("--memory {text}: a cache takes 1m at least")),
        None => Err(format!(
            "--memory {text}: a size is a number with k, m or g behind it, as in 512m"
        )),
    }
}

/// The default size, in bytes.
pub(super) fn default() -> u64 {
    let there_is = available(Path::new("/"));
    there_is.map_or(DEFAULT_MIN, |size| {
        (size / SHARE).clamp(DEFAULT_MIN, DEFAULT_MAX)
    })
}

/// The memory of the machine, or the limit of this process's control groups if that is less, in
/// bytes. Files are read below `root`.
fn available(root: &Path) -> Option<u64> {
    let text = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
    let total = text(Path::new("proc/meminfo")).and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes * 1024)
    });
    let groups = text(Path::new("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let (mounts, name): (&[&str], _) = match controllers {
            "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (&["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
            }
            _ => (&[], ""),
        };
        // Each outer group has a limit too. In a cgroup namespace, only groups below its root are
        // visible.
        let within = Path::new(path.trim_start_matches('/'));
        let found = within.ancestors().flat_map(|group| {
            let files = mounts
                .iter()
                .map(|mount| Path::new(mount).join(group).join(name));
            let limits = files.filter_map(|file| text(&file)?.trim().parse::<u64>().ok());
            limits.collect::<Vec<_>>()
        });
        found.collect::<Vec<_>>()
    });
    limits.chain(total).min()
}

/// A size for messages.
pub(super) fn shown(bytes: u64) -> String {
    match bytes {
        size if size >= 10 << 30 => format!("{} GB", size >> 30),
        size => format!("{} MB", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn sizes_are_asked_for_as_in_a_configuration() {
        assert_eq!(asked("512m"), Ok(512 << 20));
        assert_eq!(asked("2G"), Ok(2 << 30));
        assert_eq!(asked("1048576"), Ok(1 << 20));
        for text in ["", "12", "1k", "1t", "-1m", "m"] {
            assert!(asked(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_least_limit_counts() {
        let root = std::env::temp_dir().join(format!("tidegate-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/meminfo",
            "MemTotal:       8388608 kB\nMemFree: 1 kB\n",
        );
        assert_eq!(available(&root), Some(8 << 30));
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(available(&root), Some(8 << 30));
        write("sys/fs/cgroup/a/memory.max", "1073741824\n");
        assert_eq!(available(&root), Some(1 << 30));
        write("proc/self/cgroup", "4:memory:/c\n1:cpu:/\n");
        write(
            "sys/fs/cgroup/memory/c/memory.limit_in_bytes",
            "268435456\n",
        );
        assert_eq!(available(&root), Some(256 << 20));
        fs::remove_dir_all(&root).unwrap();
    }
}
