//! Nothing blocks the loop on disk: what may have to wait for one is asked of the kernel by threads
//! of the pool, seen by strace(1), which tells what each thread calls.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use support::PATIENCE;
use support::master::{Master, wait_for};
use support::port::free_port;

/// strace beside a process, which ends with it.
struct Trace {
    strace: Child,
    file: std::path::PathBuf,
}

impl Trace {
    /// Attaches to every thread of a process, those to come included.
    fn of(pid: u32, file: std::path::PathBuf) -> Trace {
        let calls = "trace=%file,epoll_wait,epoll_pwait,epoll_pwait2";
        let said = file.with_extension("said");
        let strace = Command::new("strace")
            .args(["-f", "-s", "4096", "-e", calls, "-o"])
            .arg(&file)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .expect("strace(1), which tests/install-packages installs");
        wait_for("strace that is attached", || {
            let said = fs::read_to_string(&said).unwrap();
            assert!(!said.contains("not permitted"), "{said}");
            said.contains("attached")
        });
        Trace { strace, file }
    }

    /// Waits until some thread has made a call with `words` in its line. The first must be of a
    /// thread that turns no loop, or be such that the kernel answers from memory or not at all.
    fn first_does_not_block_the_loop(&self, words: &[&str]) {
        // The last line may still be on its way.
        let lines = || {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            text[..whole].to_owned()
        };
        let first = |lines: &str| {
            let mut calls = lines.lines();
            calls
                .find(|line| words.iter().all(|word| line.contains(word)))
                .map(str::to_owned)
        };
        let mut found = None;
        wait_for(&format!("call with {words:?}"), || {
            found = first(&lines());
            found.is_some()
        });
        let found = found.unwrap();
        let thread_of = |line: &str| line.split(' ').next().map(str::to_owned);
        let text = lines();
        let loops: BTreeSet<_> = text
            .lines()
            .filter(|line| line.contains(" epoll_"))
            .map(thread_of)
            .collect();
        assert!(!loops.is_empty(), "{text}");
        let is_on_loop = loops.contains(&thread_of(&found));
        assert!(!is_on_loop || found.contains("RESOLVE_CACHED"), "{found}");
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        support::signal(self.strace.id(), "INT");
        let _ = self.strace.wait();
    }
}

fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn files_of_passwords_bodies_roots_and_logs_are_looked_at_beside_the_loop() {
    let mut master = Master::new();
    let (port, dead) = (free_port(), free_port());
    let world = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&master.folder, world).unwrap();
    fs::create_dir_all(master.folder.join("www")).unwrap();
    fs::create_dir_all(master.folder.join("bodies")).unwrap();
    fs::create_dir_all(master.folder.join("by")).unwrap();
    let world = fs::Permissions::from_mode(0o777);
    fs::set_permissions(master.folder.join("by"), world.clone()).unwrap();
    fs::set_permissions(master.folder.join("bodies"), world).unwrap();
    fs::write(master.folder.join("users"), "user:{PLAIN}secret\n").unwrap();
    fs::write(master.folder.join("www/file"), "file\n").unwrap();
    // Only epoll's loop makes calls that strace sees.
    master.configure(&format!(
        "events {{ use epoll; }}
         http {{
             access_log off;
             proxy_temp_path @/temp;
             client_body_temp_path @/bodies;
             server {{
                 listen 127.0.0.1:{port};
                 root @/www;
                 location /closed {{ auth_basic closed; auth_basic_user_file @/users; try_files /file =404; }}
                 location /body {{ client_body_in_file_only clean; proxy_pass http://127.0.0.1:{dead}; }}
                 location /root {{ add_header X-Root $realpath_root; try_files /file =404; }}
                 location /log {{ access_log @/by/$arg_name.log; try_files /file =404; }}
             }}
         }}"
    ));
    master.start();
    let worker = master.wait_for_other_workers(&[])[0];
    let trace = Trace::of(worker, master.folder.join("trace"));

    let answer = ask(
        port,
        "GET /closed HTTP/1.0\r\nAuthorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    trace.first_does_not_block_the_loop(&["/users\""]);

    let answer = ask(port, "POST /body HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    trace.first_does_not_block_the_loop(&["unlink", "/bodies/"]);

    let answer = ask(port, "GET /root HTTP/1.0\r\n\r\n");
    assert!(answer.contains("X-Root: /"), "{answer}");
    trace.first_does_not_block_the_loop(&["readlink", "/www\""]);

    let answer = ask(port, "GET /log?name=new HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    trace.first_does_not_block_the_loop(&["O_CREAT", "/by/new.log\""]);
    drop(trace);
    master.signal("TERM");
    assert!(master.wait().success());
}
