//! `tidegate tune` on machines that are made up: what it advises in which order, and that what it
//! applies is taken back exactly. The machines are in tests/command_line/tune, each a file with the
//! files of `/proc`, `/sys`, `/run` and `/etc` in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

const SMALL: &str = "events { use io_uring; } http { server { listen 80; } }";
const PROXY: &str = "pid /run/tidegate.pid; worker_processes 4;
    events { worker_connections 30000; }
    http {
        http2 on;
        upstream backend { server 127.0.0.1:9000; }
        server { listen 80; listen 18080; location / { proxy_pass http://backend; } }
    }";
const CONTAINER: &str = "worker_processes 16; events { } http { server { listen 80; } }";

const SETTINGS_FILE: &str = "etc/sysctl.d/90-tidegate-tune.conf";
const UNIT_FILE: &str = "etc/systemd/system/nginx.service.d/90-tidegate-tune.conf";

/// A made-up machine below a folder, with a configuration for it.
struct Machine {
    folder: PathBuf,
}

impl Machine {
    fn new(files: &str, conf: &str) -> Machine {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-tune-{}-{number}", std::process::id());
        let machine = Machine {
            folder: std::env::temp_dir().join(name),
        };
        for file in files.split("=== ").skip(1) {
            let (path, text) = file.split_once('\n').unwrap();
            machine.write(path, text);
        }
        fs::write(machine.folder.join("nginx.conf"), conf).unwrap();
        machine
    }

    fn small() -> Machine {
        Machine::new(include_str!("tune/small.machine"), SMALL)
    }

    fn proxy() -> Machine {
        Machine::new(include_str!("tune/proxy.machine"), PROXY)
    }

    fn container() -> Machine {
        Machine::new(include_str!("tune/container.machine"), CONTAINER)
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    fn setting(&self, name: &str) -> String {
        let text = self.read(&format!("proc/sys/{}", name.replace('.', "/")));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("tune").arg("--root").arg(self.root());
        command.arg("-c").arg(self.folder.join("nginx.conf"));
        command.args(arguments);
        command
    }

    fn tune(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What it prints where it succeeds.
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.tune(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn advice(&self) -> Vec<Value> {
        let told: Value = serde_json::from_str(&self.told(&["--json"])).unwrap();
        told["advice"].as_array().unwrap().clone()
    }

    /// Names of the advice behind their weights, in their order.
    fn advised(&self) -> Vec<String> {
        let advice = self.advice().into_iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let named = advice.map(|one| format!("{} {}", text(&one["weight"]), text(&one["id"])));
        named.collect()
    }

    /// Every file with what it holds, and every folder.
    fn everything(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut all = BTreeMap::new();
        let mut left = vec![self.root()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path.clone());
                    all.insert(path, None);
                } else {
                    let bytes = fs::read(&path).unwrap();
                    all.insert(path, Some(bytes));
                }
            }
        }
        all
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_small_old_machine_that_was_tuned_after_old_lists() {
    let machine = Machine::small();
    let expected = [
        "limits accept-queue",
        "limits syn-cookies",
        "limits locked-memory",
        "limits tcp-extensions",
        "may_help clock",
        "may_help frequency",
        "may_help transparent-huge-pages",
        "may_help huge-pages",
        "may_help send-buffers",
        "may_help idle-connections",
        "nothing busy-polling",
    ];
    assert_eq!(machine.advised(), expected);
    // A processor that chooses its frequency by itself.
    let driver = "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver";
    machine.write(driver, "intel_pstate\n");
    assert!(!machine.advised().contains(&"may_help frequency".to_owned()));
    let text = machine.told(&[]);
    let held = "10000 huge pages are kept, and nobody uses one";
    for words in [
        "Linux 4.19.0-27-amd64, 1 processor, 31250 MB",
        held,
        "20000 MB",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_busy_proxy_loses_first_what_its_counters_say() {
    let machine = Machine::proxy();
    let expected = [
        "loses accept-queue",
        "loses packet-queue",
        "loses ports-in-time-wait",
        "loses tracked-connections",
        "loses ring",
        "limits open-files",
        "limits ports",
        "limits threads",
        "limits interrupts",
        "may_help packet-budget",
        "may_help congestion",
        "may_help idle-connections",
        "may_help unsent-bytes",
    ];
    assert_eq!(machine.advised(), expected);
    let text = machine.told(&[]);
    for words in [
        "limits of process 812",
        "18 packets were dropped at a queue",
        "process 812 may open 65535 files, 4 x 30000 connections are configured",
        "processor 0 gets the interrupts of all 4 queues of eth0",
        "* sysctl -w net.ipv4.ip_local_port_range=\"10000 65535\"\n",
        // The server's own port must not be lent to a connection.
        "* sysctl -w net.ipv4.ip_local_reserved_ports=18080\n",
        "+ sysctl -w net.ipv4.tcp_congestion_control=bbr\n",
        "  ethtool -G eth0 rx 4096\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Unix sockets need no ports, as those of PHP.
    let conf = PROXY.replace("server 127.0.0.1:9000;", "server unix:/run/php.sock;");
    let conf = conf.replace(
        "proxy_pass http://backend;",
        "fastcgi_pass unix:/run/php.sock;",
    );
    for pass in [
        "proxy_pass http://backend/x;",
        "fastcgi_pass backend;",
        "return 200;",
    ] {
        let conf = conf.replace(
            "listen 80;",
            &format!("listen 80; location /b/ {{ {pass} }}"),
        );
        fs::write(machine.folder.join("nginx.conf"), &conf).unwrap();
        assert!(
            !machine.advised().iter().any(|one| one.contains("ports")),
            "{conf}"
        );
    }
    // Every line can be read on a terminal.
    let longest = text.lines().map(str::len).max();
    assert!(longest.is_some_and(|length| length <= 110), "{longest:?}");
}

#[test]
fn a_container_with_a_quota_is_told_of_its_threads() {
    let machine = Machine::container();
    assert_eq!(machine.advised(), ["loses quota", "loses out-of-memory"]);
    let text = machine.told(&[]);
    let found = "the control group (version 2) allows 1.5 processors, 16 threads are configured; \
                 it was";
    assert!(text.replace("\n    ", " ").contains(found), "{text}");
    assert!(
        text.contains("configuration: worker_processes 2;"),
        "{text}"
    );
    assert_eq!(machine.told(&["--apply"]), "Nothing to apply.\n");

    // The first version, the tightest of the groups around the process.
    machine.write(
        "proc/self/cgroup",
        "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n",
    );
    fs::remove_file(machine.root().join("sys/fs/cgroup/cpu.max")).unwrap();
    for (group, quota) in [("docker", "50000"), ("docker/abc", "-1")] {
        let folder = format!("sys/fs/cgroup/cpu,cpuacct/{group}");
        machine.write(&format!("{folder}/cpu.cfs_quota_us"), quota);
        machine.write(&format!("{folder}/cpu.cfs_period_us"), "100000");
    }
    let text = machine.told(&[]);
    assert!(text.contains("(version 1) allows 0.5 processors"), "{text}");
    assert!(
        text.contains("configuration: worker_processes 1;"),
        "{text}"
    );
    assert_eq!(machine.advised(), ["limits quota"]);
}

#[test]
fn what_is_applied_is_taken_back_exactly() {
    let machine = Machine::proxy();
    let before = machine.everything();
    let told = machine.told(&["--apply"]);
    for words in [
        "net.core.netdev_max_backlog = 16000\n",
        "sysctl.d/90-tidegate-tune.conf.\n",
        "systemctl daemon-reload && systemctl restart nginx.service\n",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(machine.setting("net.core.netdev_max_backlog"), "16000");
    assert_eq!(
        machine.setting("net.ipv4.ip_local_port_range"),
        "10000 65535"
    );
    // What only may help is not done without its name.
    assert_eq!(machine.setting("net.ipv4.tcp_congestion_control"), "cubic");
    let unit = machine.read(UNIT_FILE);
    assert!(unit.ends_with("[Service]\nLimitNOFILE=131072\n"), "{unit}");
    let settings = machine.read(SETTINGS_FILE);
    let kept = "# net.core.netdev_max_backlog was 1000\nnet.core.netdev_max_backlog = 16000\n";
    assert!(settings.contains(kept), "{settings}");

    // Again, and something more: what was at first is still known.
    machine.told(&["--apply"]);
    machine.told(&["--apply", "congestion,idle-connections"]);
    assert_eq!(machine.setting("net.ipv4.tcp_congestion_control"), "bbr");
    let settings = machine.read(SETTINGS_FILE);
    assert!(settings.contains(kept), "{settings}");
    let told = machine.told(&["--undo"]);
    assert!(
        told.contains("net.core.netdev_max_backlog = 1000, as before\n"),
        "{told}"
    );
    let after = machine.everything();
    let normal = |mut all: BTreeMap<PathBuf, Option<Vec<u8>>>| {
        for bytes in all.values_mut().flatten() {
            let text = String::from_utf8(bytes.clone()).unwrap();
            *bytes = text.trim_end().replace('\t', " ").into_bytes();
        }
        // Folders of the system that this one did not have stay.
        all.retain(|path, bytes| bytes.is_some() || !path.starts_with(machine.root().join("etc")));
        all
    };
    assert_eq!(normal(after), normal(before));
    let told = machine.told(&["--undo"]);
    assert_eq!(
        told,
        "Nothing has been applied, so there is nothing to undo.\n"
    );
}

#[test]
fn what_others_have_changed_since_stays() {
    let machine = Machine::proxy();
    machine.told(&["--apply"]);
    // By hand; by a start that has not read the file; and a line of somebody's.
    machine.write("proc/sys/net/core/netdev_max_backlog", "2500\n");
    machine.write("proc/sys/net/ipv4/tcp_tw_reuse", "2\n");
    let settings = machine.read(SETTINGS_FILE);
    machine.write(SETTINGS_FILE, &format!("{settings}vm.swappiness = 10\n"));
    let told = machine.told(&["--undo"]);
    for words in [
        "net.core.netdev_max_backlog stays 2500: it was set to 16000 here, and changed since.\n",
        "net.ipv4.tcp_tw_reuse is 2 already.\n",
        "net.ipv4.ip_local_port_range = 32768 60999, as before\n",
        "90-tidegate-tune.conf stays: it has lines of others.\n",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(machine.setting("net.core.netdev_max_backlog"), "2500");
    let left = machine.read(SETTINGS_FILE);
    assert!(
        left.ends_with("takes it back.\nvm.swappiness = 10\n"),
        "{left}"
    );
}

/// A restart of the machine sets what the file says: then it is as after the applying. In a
/// container the files stay, and nobody reads them.
#[test]
fn it_is_undone_after_a_restart_of_the_machine() {
    for reads_files in [true, false] {
        let machine = Machine::small();
        machine.told(&["--apply"]);
        let settings = machine.read(SETTINGS_FILE);
        machine.write("proc/sys/net/core/somaxconn", "128\n");
        machine.write("proc/sys/net/ipv4/tcp_sack", "1\n");
        if reads_files {
            for line in settings.lines().filter(|line| !line.starts_with('#')) {
                let (name, value) = line.split_once(" = ").unwrap();
                let path = format!("proc/sys/{}", name.replace('.', "/"));
                machine.write(&path, &format!("{value}\n"));
            }
            assert_eq!(machine.setting("net.core.somaxconn"), "4096");
        }
        machine.told(&["--undo"]);
        assert_eq!(machine.setting("net.core.somaxconn"), "128");
        assert_eq!(machine.setting("net.ipv4.tcp_sack"), "0");
        assert!(!machine.root().join(SETTINGS_FILE).exists());
    }
}

#[test]
fn a_file_of_others_that_counts_later_is_named() {
    let machine = Machine::small();
    machine.write(
        "etc/sysctl.d/99-local.conf",
        "# ours\n-net/core/somaxconn=1024\n",
    );
    machine.write("etc/sysctl.d/10-early.conf", "net.ipv4.tcp_sack=0\n");
    let told = machine.told(&["--apply"]);
    let named = "99-local.conf, which counts at the next start.\n";
    assert_eq!(told.matches("which counts").count(), 1, "{told}");
    assert!(
        told.contains("net.core.somaxconn is also in ") && told.contains(named),
        "{told}"
    );
}

#[test]
fn names_of_advice_are_known() {
    let machine = Machine::small();
    for (name, words) in [
        (
            "acept-queue",
            "no advice is called \"acept-queue\", did you mean \"accept-queue\"?",
        ),
        ("ring", "\"ring\" is not advised here"),
    ] {
        let output = machine.tune(&["--apply", name]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            format!("tidegate: {words}\n")
        );
    }
}

/// Nobody's right, for a test that runs as root and for one that does not.
fn without_right(command: &mut Command) -> Output {
    if is_root() {
        command.uid(65534).gid(65534);
    }
    command.output().unwrap()
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}

#[test]
fn without_the_right_nothing_is_changed_and_it_says_so() {
    let machine = Machine::proxy();
    let setting = machine.root().join("proc/sys/net/core/netdev_max_backlog");
    for path in [&setting, &machine.root().join("etc/sysctl.d")] {
        let mode = if path.is_dir() { 0o555 } else { 0o444 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let before = machine.everything();
    let output = without_right(&mut machine.command(&["--apply"]));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let words = "netdev_max_backlog: this needs root (sudo tidegate tune ...). Nothing has been \
                 changed\n";
    assert!(errors.ends_with(words), "{errors}");
    assert_eq!(machine.everything(), before);

    // The same where the settings may be changed and the folder may not: nothing is half done.
    let writable = fs::Permissions::from_mode(0o666);
    for file in before
        .keys()
        .filter(|path| path.starts_with(machine.root().join("proc/sys")))
    {
        if file.is_file() {
            fs::set_permissions(file, writable.clone()).unwrap();
        }
    }
    let output = without_right(&mut machine.command(&["--apply", "packet-queue"]));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("90-tidegate-tune.conf: this needs root"),
        "{errors}"
    );
    assert_eq!(machine.everything(), before);
    let folder = fs::Permissions::from_mode(0o755);
    fs::set_permissions(machine.root().join("etc/sysctl.d"), folder).unwrap();
}

#[test]
fn a_read_only_kernel_is_named_and_loses_nothing() {
    let machine = Machine::proxy();
    machine.write(".dockerenv", "");
    machine.told(&["--apply", "packet-queue"]);
    let before = machine.everything();
    let folder = machine.root().join("proc/sys");
    for arguments in [&["--apply"][..], &["--undo"]] {
        let mut words = vec!["unshare".to_owned(), "--mount".to_owned()];
        if !is_root() {
            words.push("--map-root-user".to_owned());
        }
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$@\"";
        words.extend(["sh", "-c", script, folder.to_str().unwrap()].map(str::to_owned));
        let command = machine.command(arguments);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .arg(command.get_program())
            .args(command.get_args())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        if errors.contains("unshare:") || errors.contains("mount:") {
            eprintln!("skipped, no mounts here: {errors}");
            return;
        }
        let words = "it is read-only in this container (docker): change it outside";
        assert!(errors.contains(words), "{arguments:?}: {errors}");
        assert!(errors.ends_with("Nothing has been changed\n"), "{errors}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(machine.everything(), before, "{arguments:?}");
    }
}

#[test]
fn a_wrong_configuration_is_told_as_by_a_test_of_it() {
    let machine = Machine::new(include_str!("tune/small.machine"), "events { wrong 1; }");
    let output = machine.tune(&[]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("[emerg] unknown directive \"wrong\" in "),
        "{errors}"
    );
}

#[test]
fn every_setting_of_the_lists_is_judged_with_a_source() {
    let machine = Machine::container();
    let told: Value = serde_json::from_str(&machine.told(&["--lists", "--json"])).unwrap();
    let lists = told["lists"].as_array().unwrap();
    assert!(lists.len() >= 20);
    for listed in lists {
        let verdict = listed["verdict"].as_str().unwrap();
        assert!(["holds", "depends", "folklore", "harmful"].contains(&verdict));
        for key in ["setting", "list", "reason", "source"] {
            assert!(!listed[key].as_str().unwrap().is_empty(), "{listed}");
        }
    }
    let text = machine.told(&["--lists"]);
    // What the published runs of kernel bypass and of memcached name.
    for setting in [
        "net.ipv4.ip_local_port_range = 9000 65000",
        "vm.nr_hugepages = 10000",
        "8388608 open files",
        "net.core.netdev_max_backlog = 300000",
        "a ring of the card for each processor",
    ] {
        assert!(text.contains(setting), "{setting}");
    }
}

/// This machine, whatever it is: each piece of advice says what it rests on.
#[test]
fn this_machine_is_read() {
    let folder = Machine::container();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["tune", "--json", "-c"])
        .arg(folder.folder.join("nginx.conf"));
    let output = command.output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let machine = told["machine"].as_str().unwrap();
    assert!(
        machine.starts_with(&format!("Linux {}", release.trim())),
        "{machine}"
    );
    for one in told["advice"].as_array().unwrap() {
        for key in ["id", "finding", "reason", "measured", "source"] {
            assert!(
                one[key].as_str().is_some_and(|text| text.len() > 3),
                "{one}"
            );
        }
    }
}

/// In a network of its own, a short queue is planted and filled: it is named first.
#[test]
fn a_wrong_setting_under_load_is_named_first() {
    let folder = Machine::container();
    let conf = folder.folder.join("nginx.conf");
    let pid = folder.folder.join("pid");
    let text = format!(
        "daemon off; pid {}; error_log stderr; events {{ worker_connections 2000; }}
         http {{
             access_log off;
             server {{ listen 127.0.0.1:8080 backlog=4096; return 200 ok; }}
         }}",
        pid.display()
    );
    fs::write(&conf, text).unwrap();
    let script = r#"
        set -e
        ip link set lo up
        echo 4 > /proc/sys/net/core/somaxconn
        "$0" -c "$1" -p "$2" &
        until [ -s "$2/pid" ]; do sleep 0.05; done
        "$0" bench http://127.0.0.1:8080/ -c 200 -n 400 --new-connections > "$2/report" 2>&1 || true
        "$0" tune --json -c "$1" -p "$2"
        kill -QUIT $! && wait $!
    "#;
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !is_root() {
        command.arg("--map-root-user");
    }
    let output = command
        .args(["sh", "-c", script, env!("CARGO_BIN_EXE_tidegate")])
        .args([conf.as_path(), Path::new(&folder.folder)])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare:") || errors.contains("ip:") {
        eprintln!("skipped, no network of its own here: {errors}");
        return;
    }
    let told: Value = serde_json::from_slice(&output.stdout).expect(&errors);
    let first = &told["advice"][0];
    assert_eq!(first["id"], "accept-queue", "{told}");
    assert_eq!(first["weight"], "loses", "{told}");
    let finding = first["finding"].as_str().unwrap();
    let begins = "net.core.somaxconn is 4, 127.0.0.1:8080 asks for a queue of 4096; a queue";
    assert!(finding.starts_with(begins), "{finding}");
}

/// The kernel itself, in a network of its own and with an empty folder for what is kept.
#[test]
fn this_kernel_takes_it_and_gets_it_back() {
    let folder = Machine::proxy();
    let conf = folder.folder.join("nginx.conf");
    let script = r#"
        set -e
        mount -t tmpfs none /etc/sysctl.d
        echo 16 > /proc/sys/net/core/somaxconn
        all() {
            find /proc/sys/net/core /proc/sys/net/ipv4 -maxdepth 1 -type f | sort | xargs grep -s .
        }
        all > "$2/before" || true
        "$0" tune -c "$1" --apply accept-queue,ports
        cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/ip_local_reserved_ports
        "$0" tune --undo
        all > "$2/after" || true
        cmp "$2/before" "$2/after"
        ls /etc/sysctl.d
    "#;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !is_root() {
        command.arg("--map-root-user");
    }
    let output = command
        .args(["sh", "-c", script, env!("CARGO_BIN_EXE_tidegate")])
        .args([conf.as_path(), Path::new(&folder.folder)])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare:") || errors.contains("mount:") {
        eprintln!("skipped, no network of its own here: {errors}");
        return;
    }
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}{errors}");
    let applied = "Kept for the next start in /etc/sysctl.d/90-tidegate-tune.conf.\n";
    let undone = "net.ipv4.ip_local_reserved_ports = nothing, as before\n";
    for words in [
        applied,
        "\n4096\n18080\nnet.core.somaxconn = 16, as before\n",
        undone,
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // Nothing is left in the folder.
    assert!(
        told.ends_with("90-tidegate-tune.conf is removed.\n"),
        "{told}"
    );
}

/// `cpu.max` is what this kernel would show in a group of the second version.
#[test]
fn a_quota_of_the_second_version_counts_for_auto() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    if processors < 2 || !groups.lines().any(|line| line.starts_with("0::")) {
        eprintln!("skipped: one processor, or no groups of the second version");
        return;
    }
    for (max, threads) in [
        ("100000 100000", 1),
        ("120000 100000", 2),
        ("max 100000", 0),
    ] {
        let folder = Machine::container();
        let port = support::port::free_port();
        let text = format!(
            "daemon off; worker_processes auto; pid {0}/pid; error_log {0}/log notice; events {{ }}
             http {{ access_log off; client_body_temp_path {0}/temp;
                     server {{ listen 127.0.0.1:{port}; return 200; }} }}",
            folder.folder.display()
        );
        fs::write(folder.folder.join("nginx.conf"), text).unwrap();
        let script = "mount -t tmpfs none /sys/fs/cgroup && echo \"$2\" > /sys/fs/cgroup/cpu.max \
                      && exec \"$0\" -c \"$1\" -e stderr";
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !is_root() {
            command.arg("--map-root-user");
        }
        let mut server = command
            .args(["sh", "-c", script, env!("CARGO_BIN_EXE_tidegate")])
            .arg(folder.folder.join("nginx.conf"))
            .arg(max)
            .spawn()
            .unwrap();
        // Not only the master's socket is there, but threads that answer.
        let answers = || {
            let connection = support::Connection::open(port);
            connection.is_ok_and(|mut connection| connection.get("/").is_ok())
        };
        support::master::wait_for("server", || {
            server.try_wait().unwrap().is_some() || answers()
        });
        if server.try_wait().unwrap().is_some() {
            eprintln!("skipped: no mounts here");
            return;
        }
        let [worker] = support::children(server.id())[..] else {
            panic!("one worker process");
        };
        let tasks = fs::read_dir(format!("/proc/{worker}/task")).unwrap();
        let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
        let is_worker = |name: &String| {
            let number = name.strip_prefix("worker ");
            number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
        };
        let count = names.map(Result::unwrap).filter(is_worker).count();
        let expected = if threads == 0 { processors } else { threads };
        support::signal(server.id(), "QUIT");
        server.wait().unwrap();
        assert_eq!(count, expected, "{max}");
    }
}
