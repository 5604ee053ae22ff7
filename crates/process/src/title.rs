//! The name of a process, by which `pidof` and `start-stop-daemon --name` find it, and its title in
//! ps(1).
//!
//! If this program was started as `nginx`, name and title are those of nginx, so that a system's
//! scripts for nginx (init scripts, log rotation) find this program.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use crate::log::PROGRAM;
use crate::pid_file::stat_fields;

/// The name of nginx, which this program may replace.
pub(crate) const NGINX: &str = "nginx";

/// Maximum length of the command line in a title, in bytes.
const COMMAND_LINE_MAX: usize = 4096;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The name of this program in titles: `nginx` if it was started as `nginx`, its own otherwise.
pub fn program_name() -> &'static str {
    static NAME: OnceLock<&str> = OnceLock::new();
    NAME.get_or_init(|| {
        let first = std::env::args_os().next().unwrap_or_default();
        let is_nginx = first.as_bytes() == title(NGINX, WORKER).as_bytes()
            || Path::new(&first).file_name() == Some(NGINX.as_ref());
        if is_nginx { NGINX } else { PROGRAM }
    })
}

/// The title of a worker process, after the program's name.
pub(crate) const WORKER: &str = "worker process";

/// The title of a process. A process that is started with its title as the only argument becomes a
/// worker or a runner.
pub(crate) fn title(program: &str, what: &str) -> OsString {
    format!("{program}: {what}").into()
}

/// Sets the name of this process to the program's. Without this call it would be the name of the
/// executed file (`exe` for a worker).
pub(crate) fn set_name() {
    let name: &CStr = if program_name() == NGINX {
        c"nginx"
    } else {
        c"tidegate"
    };
    let _ = rustix::thread::set_name(name);
}

/// Makes ps(1) show this process as the master, with its command line. Without effect if the
/// process has several threads, which a subcommand may have started, or if the system does not tell
/// where the arguments are in memory.
pub(crate) fn set_master_title(command_line: &[OsString]) {
    let words: Vec<&[u8]> = command_line.iter().map(|word| word.as_bytes()).collect();
    let mut line = words.join(&b' ');
    line.truncate(COMMAND_LINE_MAX);
    let what = [&b"master process "[..], &line].concat();
    let what = String::from_utf8_lossy(&what);
    let text = title(program_name(), &what).into_vec();
    let Some(area) = Area::find() else { return };
    if area.threads == 1 && move_environment() {
        area.write(&text);
    }
}

/// The memory into which the kernel has put the arguments and, behind them, the environment. The
/// kernel reads the title of the process from this memory.
struct Area {
    start: usize,
    length: usize,
    threads: usize,
}

impl Area {
    fn find() -> Option<Area> {
        // Field numbers of proc_pid_stat(5). `fields` begins with field 3.
        let fields = stat_fields(rustix::process::getpid())?;
        let field = |number: usize| fields.get(number - 3)?.parse::<usize>().ok();
        let (arguments, arguments_end) = (field(48)?, field(49)?);
        let (environment, environment_end) = (field(50)?, field(51)?);
        let end = if environment == arguments_end {
            environment_end.max(arguments_end)
        } else {
            arguments_end
        };
        let length = end.checked_sub(arguments)?;
        (arguments != 0 && length > 0).then_some(Area {
            start: arguments,
            length,
            threads: field(20)?,
        })
    }

    /// Writes a title, truncated to the length of the area, and fills the rest with zeros.
    fn write(&self, text: &[u8]) {
        let text = text.get(..self.length - 1).unwrap_or(text);
        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the kernel has mapped these bytes, writable, for the life of the process. The
        // process has one thread, the environment was moved (`move_environment`), and if the
        // arguments are read again, as texts that end with a zero, the zero at the end of the area
        // stops the read.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
            std::ptr::write_bytes(place.add(text.len()), 0, self.length - text.len());
        }
    }
}

/// Copies the texts of the environment to memory that is never freed, so that the title can
/// overwrite them. Returns whether all were copied. The process must have one thread.
fn move_environment() -> bool {
    // SAFETY: `environ` is an array of pointers to texts that end with a zero, and ends with a null
    // pointer. No other thread reads or changes them meanwhile, and the copies are never freed.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let copy = libc::strdup(*entry);
            if copy.is_null() {
                return false;
            }
            *entry = copy;
            entry = entry.add(1);
        }
    }
    true
}
