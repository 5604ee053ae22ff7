//! A server by a whole configuration of the test's own, in a folder that ends with it; and the same
//! program run beside it with other flags.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{PATIENCE, binary, signal};

/// A folder with a configuration, and the master process that serves by it once it is started.
pub struct Master {
    /// Everything is in it: `nginx.conf`, the folder `logs`, and what the test adds.
    pub folder: PathBuf,
    program: PathBuf,
    /// What stands before the program on each command line.
    wrapper: Vec<String>,
    child: Option<Child>,
}

impl Default for Master {
    fn default() -> Master {
        Master::new()
    }
}

impl Master {
    /// An empty folder.
    pub fn new() -> Master {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-master-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("logs")).unwrap();
        Master {
            folder,
            program: binary(),
            wrapper: Vec::new(),
            child: None,
        }
    }

    /// The program is run through these words.
    pub fn wrap(&mut self, words: &[&str]) {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Another file of the program is run from now on.
    pub fn use_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Writes the configuration, `@` in it being the folder. It stays in the foreground, and its
    /// pid file and error log are in `logs`.
    pub fn configure(&self, text: &str) {
        let folder = self.folder.display().to_string();
        let text = format!(
            "daemon off;\npid @/logs/nginx.pid;\nerror_log @/logs/error.log notice;\n{text}\n"
        );
        let text = text.replace('@', &folder);
        // In one step: a reload may be reading it.
        fs::write(self.folder.join("new.conf"), text).unwrap();
        fs::rename(self.folder.join("new.conf"), self.folder.join("nginx.conf")).unwrap();
    }

    /// The program with this folder's paths.
    pub fn command(&self) -> Command {
        let mut words = self.wrapper.iter();
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.arg("-p").arg(&self.folder);
        command.args(["-c", "nginx.conf", "-e", "logs/start.log"]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs the program with further arguments to its end: its exit code and what it printed on
    /// standard error.
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = once_written(|| self.command().args(arguments).output());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), printed)
    }

    /// Starts the master and waits until it says in its pid file who it is.
    pub fn start(&mut self) {
        let child = once_written(|| {
            let output = fs::File::create(self.folder.join("output"))?;
            self.command().stderr(output).spawn()
        });
        let child = self.child.insert(child);
        let pid = child.id().to_string();
        let pid_file = self.folder.join("logs/nginx.pid");
        let start = Instant::now();
        while !fs::read_to_string(&pid_file).is_ok_and(|text| text.trim() == pid) {
            let ended = child.try_wait().unwrap();
            let output = fs::read_to_string(self.folder.join("output")).unwrap_or_default();
            assert!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "the server does not start: {output}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The number of the master process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a server that runs").id()
    }

    /// Sends a signal to the master.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// The processes that the master has started.
    pub fn workers(&self) -> Vec<u32> {
        crate::children(self.pid())
    }

    /// Waits until the master has started other processes than `before`, and one at least; those.
    pub fn wait_for_other_workers(&self, before: &[u32]) -> Vec<u32> {
        let mut workers = Vec::new();
        wait_for("another worker", || {
            workers = self.workers();
            let is_new = |pid: &u32| !before.contains(pid);
            !workers.is_empty() && workers.iter().all(is_new)
        });
        workers
    }

    /// A file of the folder, empty where it is missing.
    pub fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until a file of the folder holds a text.
    pub fn wait_for_text(&self, name: &str, text: &str) {
        let start = Instant::now();
        while !self.read(name).contains(text) {
            assert!(
                start.elapsed() < PATIENCE,
                "no \"{text}\" in {name}:\n{}\nerror.log:\n{}",
                self.read(name),
                self.read("logs/error.log")
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the master has ended, without waiting.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().unwrap()
    }

    /// Waits for the master's end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end", || {
            status = self.ended();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child
            && let Ok(None) = child.try_wait()
        {
            let workers = crate::children(child.id());
            let _ = child.kill();
            let _ = child.wait();
            for worker in workers {
                let _ = Command::new("kill")
                    .args(["-KILL", &worker.to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What running a program gives that may have been written a moment ago: a process that another
/// thread starts meanwhile holds the file open for writing until it runs its own program.
fn once_written<T>(mut run: impl FnMut() -> io::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match run() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && start.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            ran => return ran.unwrap(),
        }
    }
}
