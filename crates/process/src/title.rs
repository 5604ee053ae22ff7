//! What others see of a process: its name, which `pidof` and `start-stop-daemon --name` go by, and
//! its title in ps(1).
//!
//! Both are those of nginx where this program was called by the name `nginx`, so that what a system
//! has for nginx (init scripts, the rotation of logs) reaches it in nginx's place.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use crate::log::PROGRAM;
use crate::pid_file::stat_fields;

/// The name of the program in whose place this one may stand.
pub(crate) const NGINX: &str = "nginx";

/// Of a command line, how much a title shows in bytes.
const COMMAND_LINE_MAX: usize = 4096;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The name that this program goes by: `nginx` where it was called so, else its own.
pub fn program_name() -> &'static str {
    static NAME: OnceLock<&str> = OnceLock::new();
    NAME.get_or_init(|| {
        let first = std::env::args_os().next().unwrap_or_default();
        let is_nginx = first.as_bytes() == title(NGINX, WORKER).as_bytes()
            || Path::new(&first).file_name() == Some(NGINX.as_ref());
        if is_nginx { NGINX } else { PROGRAM }
    })
}

/// What a worker process is, behind the program's name.
pub(crate) const WORKER: &str = "worker process";

/// The title of a process, which is also the only argument that makes one a worker.
pub(crate) fn title(program: &str, what: &str) -> OsString {
    format!("{program}: {what}").into()
}

/// Names this process as the program is named: the file that it runs may be called otherwise
/// (`exe`).
pub(crate) fn set_name() {
    let name: &CStr = if program_name() == NGINX {
        c"nginx"
    } else {
        c"tidegate"
    };
    let _ = rustix::thread::set_name(name);
}

/// Has ps(1) show this process as the master, with its command line behind that. Without effect
/// where the process has several threads, as that of a subcommand may have, or where the system
/// does not say where arguments lie.
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

/// Where the kernel has put arguments and environment, one behind the other, and reads a title
/// from.
struct Area {
    start: usize,
    length: usize,
    threads: usize,
}

impl Area {
    fn find() -> Option<Area> {
        // Numbers of proc_pid_stat(5) less 3, with which the fields begin.
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

    /// Writes a title, cut to the room that there is, and zeros behind it.
    fn write(&self, text: &[u8]) {
        let text = text.get(..self.length - 1).unwrap_or(text);
        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the kernel has mapped these bytes, writable, for the life of the process. The
        // process has one thread, the environment has left (`move_environment`), and arguments are
        // read no more, or else as texts that end by the zero at the end.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
            std::ptr::write_bytes(place.add(text.len()), 0, self.length - text.len());
        }
    }
}

/// Copies the environment's texts elsewhere for good, so that their room is free; whether that went
/// well. The process must have one thread.
fn move_environment() -> bool {
    // SAFETY: `environ` leads to pointers up to one that is null, each to a text that ends by a
    // zero. No other thread reads or changes them meanwhile, and the copies are never given back.
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
