//! nginx's command line on the real program: texts, exit codes, and one life from start to end.
//!
//! The expected texts were printed by nginx 1.31 for the same arguments and files; only the name
//! in front differs.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A prefix folder of its own.
struct Prefix(PathBuf);

impl Prefix {
    /// A folder with this `nginx.conf`, in which `PREFIX` stands for the folder.
    fn new(conf: &str) -> Prefix {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-command-{}-{number}", std::process::id());
        let prefix = Prefix(std::env::temp_dir().join(name));
        fs::create_dir(&prefix.0).unwrap();
        prefix.configure(conf);
        prefix
    }

    fn configure(&self, conf: &str) {
        let text = conf.replace("PREFIX", self.0.to_str().unwrap());
        fs::write(self.0.join("nginx.conf"), text).unwrap();
    }

    /// Runs the program to its end.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("-p").arg(&self.0);
        command.args(["-c", "nginx.conf", "-e", "error.log"]);
        command.args(arguments).output().unwrap()
    }

    /// Exit code and what was printed on standard error; the folder reads `PREFIX`.
    fn printed(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        (
            output.status.code(),
            text.replace(self.0.to_str().unwrap(), "PREFIX"),
        )
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        if let Ok(pid) = self.file("nginx.pid").trim().parse::<u32>() {
            let _ = Command::new("kill")
                .args(["-TERM", &pid.to_string()])
                .status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_test_says_what_nginx_says() {
    let ok = "tidegate: the configuration file PREFIX/nginx.conf syntax is ok\n";
    let fine = "tidegate: configuration file PREFIX/nginx.conf test is successful\n";
    let failed = "tidegate: configuration file PREFIX/nginx.conf test failed\n";
    let prefix = Prefix::new("events {}\npid PREFIX/nginx.pid;\n");
    assert_eq!(prefix.printed(&["-t"]), (Some(0), format!("{ok}{fine}")));
    assert_eq!(prefix.printed(&["-tq"]), (Some(0), String::new()));

    // A notice is not for who wants quiet.
    prefix.configure("events { accept_mutex on; }\npid PREFIX/nginx.pid;\n");
    assert_eq!(prefix.printed(&["-tq"]), (Some(0), String::new()));
    assert!(prefix.printed(&["-t"]).1.starts_with("tidegate: [notice] "));

    prefix.configure(
        "events { worker_connections 10; }\nworker_rlimit_nofile 9;\nworker_processes 1;",
    );
    let warning = "tidegate: [warn] 10 worker_connections exceed open file resource limit: 9\n";
    assert_eq!(prefix.printed(&["-tq"]), (Some(0), warning.to_owned()));

    for (conf, error) in [
        (
            "pid PREFIX/nginx.pid;",
            "no \"events\" section in configuration",
        ),
        (
            "events {} worker_processes x;",
            "\"worker_processes\" directive invalid value in PREFIX/nginx.conf:1",
        ),
        (
            "events {}\nworker_cpu_affinity 012;",
            "invalid character \"2\" in \"worker_cpu_affinity\" in PREFIX/nginx.conf:2",
        ),
        (
            "events {}\ndaemon of;",
            "invalid value \"of\" in \"daemon\" directive, it must be \"on\" or \"off\" \
             in PREFIX/nginx.conf:2",
        ),
        (
            "events {} foo;",
            "unknown directive \"foo\" in PREFIX/nginx.conf:1",
        ),
    ] {
        prefix.configure(conf);
        let (code, text) = prefix.printed(&["-t"]);
        assert_eq!(code, Some(1), "{conf}");
        assert_eq!(
            text.lines().next(),
            Some(&*format!("tidegate: [emerg] {error}"))
        );
        assert!(text.ends_with(failed), "{text}");
        assert_eq!(text.matches("[emerg]").count(), 1, "{text}");
        assert!(!prefix.0.join("error.log").exists());
    }

    prefix.configure("events {}\npid /nonexistent/nginx.pid;");
    let (code, text) = prefix.printed(&["-t"]);
    let error = "tidegate: [emerg] open() \"/nonexistent/nginx.pid\" failed \
                 (2: No such file or directory)\n";
    assert_eq!((code, text), (Some(1), format!("{ok}{error}{failed}")));

    fs::remove_file(prefix.0.join("nginx.conf")).unwrap();
    let (code, text) = prefix.printed(&["-t"]);
    let error = "tidegate: [emerg] open() \"PREFIX/nginx.conf\" failed \
                 (2: No such file or directory)\n";
    assert_eq!((code, text), (Some(1), format!("{error}{failed}")));
}

#[test]
fn a_dump_holds_every_file() {
    let prefix = Prefix::new("events {}\npid PREFIX/nginx.pid;\ninclude more.conf;\n");
    fs::write(prefix.0.join("more.conf"), "daemon off;").unwrap();
    let output = prefix.run(&["-T"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let folder = prefix.0.display();
    assert_eq!(
        text,
        format!(
            "# configuration file {folder}/nginx.conf:\nevents {{}}\npid {folder}/nginx.pid;\n\
             include more.conf;\n\n# configuration file {folder}/more.conf:\ndaemon off;\n"
        )
    );
}

#[test]
fn a_signal_to_nobody_fails_as_with_nginx() {
    let prefix = Prefix::new("events {}\npid PREFIX/nginx.pid;\n");
    let missing = "tidegate: [error] open() \"PREFIX/nginx.pid\" failed \
                   (2: No such file or directory)\n  \
                   hint: no server with this configuration runs; without -s it is started\n";
    assert_eq!(
        prefix.printed(&["-s", "stop"]),
        (Some(1), missing.to_owned())
    );
    for (content, error) in [
        (
            "",
            "[error] invalid PID number \"\" in \"PREFIX/nginx.pid\"",
        ),
        (
            "foo\n",
            "[error] invalid PID number \"foo\" in \"PREFIX/nginx.pid\"",
        ),
        (
            "99999999\n",
            "[alert] kill(99999999, 3) failed (3: No such process)\n  \
             hint: the server that wrote \"PREFIX/nginx.pid\" has ended; without -s it is started",
        ),
    ] {
        fs::write(prefix.0.join("nginx.pid"), content).unwrap();
        assert_eq!(
            prefix.printed(&["-s", "quit"]),
            (Some(1), format!("tidegate: {error}\n"))
        );
    }
    fs::remove_file(prefix.0.join("nginx.pid")).unwrap();
    assert!(prefix.file("error.log").contains("[notice] "));
    assert!(
        prefix
            .file("error.log")
            .contains(": signal process started\n")
    );
}

#[test]
fn who_has_an_address_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let conf =
        format!("events {{}} pid PREFIX/nginx.pid; http {{ server {{ listen {address}; }} }}");
    let (code, text) = Prefix::new(&conf).printed(&[]);
    assert_eq!(code, Some(1));
    let expected = format!(
        "tidegate: [emerg] bind() to {address} failed (98: Address already in use)\n  hint: process {} (",
        std::process::id()
    );
    assert!(text.starts_with(&expected), "{text}");
    // Of all attempts, one tells.
    assert_eq!(text.matches("hint:").count(), 1, "{text}");
}

#[test]
fn a_reader_that_has_gone_ends_a_subcommand_in_silence() {
    let url = "http://127.0.0.1:1/";
    for arguments in [
        &["docs"][..],
        &["docs", "proxy_"],
        &["bench", "ab", "-V"],
        &["bench", "-n", "1", url],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(arguments).stdout(writer).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), &*text),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_prefix_may_be_relative() {
    let prefix = Prefix::new(
        "events { }
         http { server { listen 127.0.0.1:1;
             location / { proxy_pass http://127.0.0.1:2; }
             location /f { fastcgi_pass 127.0.0.1:2; }
             location /u { uwsgi_pass 127.0.0.1:2; } } }",
    );
    fs::create_dir(prefix.0.join("logs")).unwrap();
    let folder = prefix.0.file_name().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .current_dir(prefix.0.parent().unwrap())
        .args(["-t", "-p"])
        .arg(folder)
        .args(["-c", "nginx.conf"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test is successful"), "{text}");
}

#[test]
fn the_version_names_the_nginx_it_follows() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("-V")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text.contains("nginx version: nginx/1.31.5\n"), "{text}");
    let arguments = text.lines().last().unwrap();
    assert!(arguments.starts_with("configure arguments: --prefix="));
    // What there is, and what there is not.
    assert!(arguments.contains(" --with-http_gzip_static_module"));
    assert!(!arguments.contains("http_rewrite_module"));
    assert!(arguments.contains(" --with-stream") && !arguments.contains("http_v3_module"));
}

/// A shell that has read what `tidegate completions` prints completes commands, their options, and
/// nginx's.
#[test]
fn shells_complete_the_command_line() {
    let script = r#"
        source <("$0" completions bash)
        COMP_WORDS=(tidegate "$@")
        COMP_CWORD=$#
        _tidegate tidegate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[@]}""#;
    for (words, expected) in [
        (&["ser"][..], "serve"),
        (&["-s", "re"], "reopen reload"),
        (&["docs", "--al"], "--all"),
        (&["nothing-of-the-kind"], ""),
    ] {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]);
        let output = bash.args(words).output().unwrap();
        let completed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(completed.trim(), expected, "{words:?}");
        assert!(output.stderr.is_empty(), "{words:?}");
    }
    for shell in ["zsh", "fish"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("serve") && text.contains("bench"), "{shell}");
    }
}

#[test]
fn the_help_lists_flags_and_subcommands() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, text) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for expected in ["  serve", "  try", "  docs", "  -s signal", "  -c filename"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for command in ["serve", "try", "docs"] {
        let (code, text) = run(&[command, "--help"]);
        assert!(code == Some(0) && text.contains("Options:"), "{text}");
    }
    assert_eq!(run(&["serve", "--nonsense"]), (Some(2), String::new()));
    // nginx takes no such argument, and so it stays.
    let prefix = Prefix::new("");
    let expected = "tidegate: invalid option: \"sevre\"\n";
    assert_eq!(prefix.printed(&["sevre"]), (Some(1), expected.to_owned()));
}

#[test]
fn the_manual_knows_near_names() {
    let run = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["docs", name]).output().unwrap()
    };
    let output = run("worker_processes");
    assert!(output.status.success());
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("worker_processes\n")
    );
    let output = run("gzip_static");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("gzip_static\n"), "{text}");
    // Its example is a whole configuration.
    assert!(text.contains("\n        gzip_static on;\n"), "{text}");
    let text = String::from_utf8(run("gzip_").stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_once("  "));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    assert!(names.len() > 5 && names.is_sorted(), "{text}");
    assert!(names.iter().all(|name| name.starts_with("gzip_")), "{text}");
    let output = run("worker_process");
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = "unknown directive \"worker_process\", did you mean \"worker_processes\"?";
    assert_eq!(
        (output.status.code(), text),
        (Some(1), format!("tidegate: {expected}\n"))
    );
}

#[test]
fn the_manual_knows_variables_and_what_is_not_here_yet() {
    let run = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["docs", name]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, page, _) = run("$uri");
    assert_eq!(code, Some(0));
    assert!(
        page.starts_with("$uri\n") && page.contains("http_core"),
        "{page}"
    );
    // A shell has eaten the dollar.
    assert!(run("request_uri").1.contains("http_core"));
    assert!(run("$arg_page").1.contains("family $arg_"));
    for (name, expected) in [
        (
            "image_filter",
            "nginx has \"image_filter\" (module http_image); Tidegate does not yet",
        ),
        (
            "auth_jwt",
            "NGINX Plus has \"auth_jwt\" (module http_auth_jwt); Tidegate does not yet",
        ),
        (
            "$ssl_preread_protocol",
            "nginx has \"$ssl_preread_protocol\" (module stream_ssl_preread); Tidegate does not yet",
        ),
        (
            "$urii",
            "unknown variable \"$urii\", did you mean \"$uri\"?",
        ),
    ] {
        let (code, _, text) = run(name);
        assert_eq!((code, text), (Some(1), format!("tidegate: {expected}\n")));
    }
}

#[test]
fn what_is_no_command_leads_to_one() {
    for (argument, meant) in [
        ("serv", "serve"),
        ("--serve", "serve"),
        ("benhc", "bench"),
        ("version", "-v"),
        ("reload", "-s reload"),
        ("relaod", "-s reload"),
        ("test", "-t"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.arg(argument).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let shown = argument.strip_prefix("--").map_or(argument, |_| "-");
        assert_eq!(
            (output.status.code(), text),
            (
                Some(1),
                format!(
                    "tidegate: invalid option: \"{shown}\"\n  hint: did you mean \"tidegate {meant}\"?\n"
                )
            )
        );
    }
}

#[test]
fn an_open_block_is_shown_from_both_ends() {
    let prefix = Prefix::new("events {}\nhttp {\n    server {\n        root /x;\n}\n");
    let (code, text) = prefix.printed(&["-t"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        text,
        "tidegate: [emerg] unexpected end of file, expecting \"}\" in PREFIX/nginx.conf:6\n   \
         at PREFIX/nginx.conf:5:2\n \
         5 | }\n   |  ^\n   \
         at PREFIX/nginx.conf:3:5\n \
         3 |     server {\n   |     ^^^^^^ opened here, and probably not closed\n\
         tidegate: configuration file PREFIX/nginx.conf test failed\n"
    );
}

#[test]
fn one_life() {
    let port = support::port::free_port();
    let conf = |answer: &str| {
        format!(
            "pid PREFIX/nginx.pid;\nerror_log PREFIX/error.log notice;\nevents {{}}\nhttp {{\n\
             access_log off;\nserver {{ listen 127.0.0.1:{port}; return 200 {answer}; }}\n}}\n"
        )
    };
    let prefix = Prefix::new(&conf("one"));
    assert_eq!(prefix.printed(&[]), (Some(0), String::new()));
    wait_for("the pid file", || prefix.0.join("nginx.pid").exists());
    assert_eq!(get(port).unwrap(), "one");

    prefix.configure(&conf("two"));
    assert_eq!(prefix.printed(&["-s", "reload"]), (Some(0), String::new()));
    assert_eq!(get(port).unwrap(), "two");
    wait_for("the end of the first generation", || {
        prefix
            .file("error.log")
            .matches("exited with code 0")
            .count()
            == 1
    });

    prefix.configure(&conf("three $nonexistent"));
    let (code, text) = prefix.printed(&["-s", "reload"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(get(port).unwrap(), "two");

    let log = prefix.file("error.log");
    let worker = log
        .lines()
        .find_map(|line| line.split_once("start worker process "))
        .unwrap()
        .1;
    std::thread::sleep(Duration::from_millis(1_100));
    assert!(
        Command::new("kill")
            .args(["-SEGV", worker])
            .status()
            .unwrap()
            .success()
    );
    wait_for("the crash", || {
        prefix.file("error.log").contains("exited on signal 11")
    });
    wait_for("another worker", || {
        get(port).is_some_and(|answer| answer == "two")
    });
    let log = prefix.file("error.log");
    assert!(!log.contains("next worker process starts in"), "{log}");

    prefix.configure(&conf("two"));
    assert_eq!(prefix.printed(&["-s", "quit"]), (Some(0), String::new()));
    wait_for("the end", || !prefix.0.join("nginx.pid").exists());
    assert_eq!(get(port), None);
}

#[test]
fn a_relative_prefix_stands_before_a_path_once() {
    let conf = "events {} pid nginx.pid; http { access_log off; server { listen unix:PREFIX/s; } }";
    let prefix = Prefix::new(conf);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .current_dir(prefix.0.parent().unwrap())
        .arg("-p")
        .arg(prefix.0.file_name().unwrap())
        .args(["-c", "nginx.conf", "-e", "error.log", "-t"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
}

#[test]
fn a_pid_file_of_a_live_process_stops_a_start() {
    let port = support::port::free_port();
    let prefix = Prefix::new(&format!(
        "pid PREFIX/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n\
         server {{ listen 127.0.0.1:{port}; return 200 one; }}\n}}\n"
    ));
    let refused = |pid: u32, name: &str| {
        let text =
            format!("pid file \"PREFIX/nginx.pid\" names process {pid} ({name}), which is running");
        (Some(1), format!("tidegate: [emerg] {text}\n"))
    };

    // Another program: nginx beside us, say, whose pid file the configuration names.
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let content = format!("{}\n", other.id());
    fs::write(prefix.0.join("nginx.pid"), &content).unwrap();
    assert_eq!(prefix.printed(&[]), refused(other.id(), "sleep"));
    assert_eq!(prefix.file("nginx.pid"), content);
    assert_eq!(get(port), None);

    // A file that was left over is no obstacle, and then it is Tidegate that lives behind it.
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(prefix.printed(&[]), (Some(0), String::new()));
    wait_for("another pid file", || prefix.file("nginx.pid") != content);
    let master = prefix.file("nginx.pid").trim().parse().unwrap();
    assert_eq!(prefix.printed(&[]), refused(master, "tidegate"));
    assert_eq!(get(port).unwrap(), "one");
}

/// The body of a response, if one comes.
fn get(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    Some(response.split_once("\r\n\r\n")?.1.to_owned())
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
