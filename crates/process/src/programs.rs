//! Runs the programs of a configuration, such as the one that sets DNS records for ACME. A confined
//! worker may not start programs: a helper process, the runner, starts them for the worker.
//!
//! ```text
//!   worker process ──── path, arguments ────▶ runner ── spawns ──▶ program
//!   (confined)     ◀─── status, its words ───  (the same user, not confined)
//! ```
//!
//! The worker starts the runner before it drops any privilege, and sends it the programs of its
//! configuration. The runner never starts another program, whatever the worker requests later. The
//! runner ends with the worker. It returns the standard error of a program, so that the text
//! appears in the worker's log.
//!
//! Which programs a configuration runs, and what for, is up to other crates.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::title;

/// A program with its first arguments, as a configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The path of the program.
    pub path: PathBuf,
    /// The fixed arguments, which precede the arguments of a single run.
    pub arguments: Vec<OsString>,
}

/// How a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program exited, or a signal of another process ended it.
    With(ExitStatus),
    /// The program exceeded the time limit, and was killed.
    TimedOut,
}

/// The title of a runner, after the program's name.
const RUNNER: &str = "program runner";

/// Maximum length of a message, in bytes. The kernel's limit for arguments is larger.
const MESSAGE_MAX: usize = 256 << 10;

/// Maximum number of bytes that are returned from a program's standard error.
const SAID_MAX: u64 = 16 << 10;

/// Interval between two checks whether a running program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The runner of this process.
static STARTED: OnceLock<Mutex<UnixStream>> = OnceLock::new();

/// Starts the runner of this process, which may start only these programs.
pub(crate) fn start_runner(programs: &[Program]) -> Result<(), String> {
    let failed = |error: io::Error| {
        crate::log::failure(
            "the process that runs programs could not be started",
            &error,
        )
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(title::title(title::program_name(), RUNNER))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null());
    command.spawn().map_err(failed)?;
    let mut words = Vec::new();
    for program in programs {
        words.push(number(program.arguments.len() + 1));
        words.push(program.path.clone().into_os_string().into_vec());
        words.extend(
            program
                .arguments
                .iter()
                .map(|word| word.as_bytes().to_vec()),
        );
    }
    let mut stream = ours;
    send(&mut stream, &words).map_err(failed)?;
    // The runner is started once, because a process becomes a worker once.
    let _ = STARTED.set(Mutex::new(stream));
    Ok(())
}

/// Lets the runner of this process run a program, and waits for its end. The runner kills a program
/// that takes longer than `at_most`, and runs one program at a time. `None` if this process has no
/// runner, because it may start programs itself.
///
/// # Errors
/// The errors of starting the program; `PermissionDenied` if the program is not among those that
/// the runner was started with, and `BrokenPipe` if the runner has ended.
pub fn run(
    program: &Program,
    arguments: &[&OsStr],
    at_most: Duration,
) -> Option<io::Result<Ended>> {
    let stream = STARTED.get()?;
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    Some(ask(&mut stream, program, arguments, at_most))
}

fn ask(
    stream: &mut UnixStream,
    program: &Program,
    arguments: &[&OsStr],
    at_most: Duration,
) -> io::Result<Ended> {
    let fixed = program.arguments.iter().map(OsString::as_os_str);
    let mut words = vec![
        at_most.as_millis().to_string().into_bytes(),
        number(program.arguments.len() + 1),
        program.path.as_os_str().as_bytes().to_vec(),
    ];
    words.extend(
        fixed
            .chain(arguments.iter().copied())
            .map(|word| word.as_bytes().to_vec()),
    );
    send(stream, &words)?;
    let answer = receive(stream)?.ok_or(io::ErrorKind::BrokenPipe)?;
    let [outcome, value, said] = &answer[..] else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // The program's messages belong to the log, to which the standard error of this process is
    // redirected.
    let _ = io::stderr().write_all(said);
    let value = of_number::<i32>(value)?;
    match &outcome[..] {
        b"ended" => Ok(Ended::With(ExitStatus::from_raw(value))),
        b"late" => Ok(Ended::TimedOut),
        _ => Err(io::Error::from_raw_os_error(value)),
    }
}

/// Whether this process was started as a runner.
pub fn is_runner() -> bool {
    std::env::args_os().eq([title::title(title::program_name(), RUNNER)])
}

/// Runs programs until the worker has ended.
pub fn runner_main() -> ExitCode {
    title::set_name();
    let stdin = io::stdin();
    let stream = std::os::fd::AsFd::as_fd(&stdin).try_clone_to_owned();
    match stream
        .map(UnixStream::from)
        .and_then(|mut stream| serve(&mut stream))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::log::print(&format!(
                "[alert] {}",
                crate::log::failure("program runner", &error)
            ));
            ExitCode::FAILURE
        }
    }
}

fn serve(stream: &mut UnixStream) -> io::Result<()> {
    let Some(words) = receive(stream)? else {
        return Ok(());
    };
    let mut allowed: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut words = words.into_iter();
    while let Some(count) = words.next() {
        allowed.push(words.by_ref().take(of_number(&count)?).collect());
    }
    while let Some(request) = receive(stream)? {
        let [at_most, count, words @ ..] = &request[..] else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let at_most = Duration::from_millis(of_number(at_most)?);
        let named = words.get(..of_number(count)?).unwrap_or_default();
        let outcome = if allowed.iter().any(|program| program == named) {
            run_here(words, at_most)
        } else {
            Err(io::Error::from_raw_os_error(libc::EACCES))
        };
        let (what, value, said) = match outcome {
            Ok((Ended::With(status), said)) => ("ended", status.into_raw(), said),
            Ok((Ended::TimedOut, said)) => ("late", 0, said),
            Err(error) => (
                "failed",
                error.raw_os_error().unwrap_or(libc::EIO),
                Vec::new(),
            ),
        };
        send(stream, &[what.into(), value.to_string().into_bytes(), said])?;
    }
    Ok(())
}

/// Runs a program. Returns how it ended, and its standard error.
fn run_here(words: &[Vec<u8>], at_most: Duration) -> io::Result<(Ended, Vec<u8>)> {
    let (path, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(OsStr::from_bytes(path));
    command.args(arguments.iter().map(|word| OsStr::from_bytes(word)));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pipe = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut pipe) = pipe {
            // A read error only shortens the text. Bytes beyond the limit are read and dropped, so
            // that the program does not wait for room in the pipe.
            let _ = pipe.by_ref().take(SAID_MAX).read_to_end(&mut said);
            let _ = io::copy(&mut pipe, &mut io::sink());
        }
        said
    });
    let ended = wait(&mut child, at_most)?;
    // A child of the program that continues in the background may hold the pipe open.
    let end = Instant::now() + Duration::from_secs(1);
    while !reader.is_finished() && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
    let said = if reader.is_finished() {
        reader.join().unwrap_or_default()
    } else {
        Vec::new()
    };
    Ok((ended, said))
}

fn wait(child: &mut Child, at_most: Duration) -> io::Result<Ended> {
    let end = Instant::now() + at_most;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Ended::With(status)),
            None if Instant::now() < end => std::thread::sleep(LOOK),
            None => {
                // These calls fail only if the program has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(Ended::TimedOut);
            }
        }
    }
}

fn number(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn of_number<T: std::str::FromStr>(word: &[u8]) -> io::Result<T> {
    let text = std::str::from_utf8(word)
        .ok()
        .and_then(|text| text.parse().ok());
    text.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends a message: the length of the rest, and then the length and the bytes of every word.
fn send(stream: &mut UnixStream, words: &[Vec<u8>]) -> io::Result<()> {
    let mut body = Vec::new();
    for word in words {
        body.extend_from_slice(&length(word.len())?);
        body.extend_from_slice(word);
    }
    let mut message = length(body.len())?.to_vec();
    message.extend_from_slice(&body);
    stream.write_all(&message)
}

fn length(bytes: usize) -> io::Result<[u8; 4]> {
    let fits = u32::try_from(bytes).ok().filter(|_| bytes <= MESSAGE_MAX);
    let length = fits.ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
    Ok(length.to_le_bytes())
}

/// The words of the next message; `None` if the other end is closed.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let (mut words, mut rest) = (Vec::new(), &body[..]);
    while !rest.is_empty() {
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or(io::ErrorKind::InvalidData)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (word, after) = after
            .split_at_checked(length)
            .ok_or(io::ErrorKind::InvalidData)?;
        words.push(word.to_vec());
        rest = after;
    }
    Ok(Some(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &str, arguments: &[&str]) -> Program {
        Program {
            path: path.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
        }
    }

    /// A runner on a thread, which may start these programs.
    fn runner(programs: &[Program]) -> UnixStream {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || serve(&mut theirs));
        let mut words = Vec::new();
        for program in programs {
            words.push(number(program.arguments.len() + 1));
            words.push(program.path.clone().into_os_string().into_vec());
            words.extend(
                program
                    .arguments
                    .iter()
                    .map(|word| word.as_bytes().to_vec()),
            );
        }
        send(&mut ours, &words).unwrap();
        ours
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn only_programs_that_were_named_are_started() {
        let shell = program("/bin/sh", &["-c", "exit $1", "name"]);
        let mut runner = runner(&[
            program("/bin/true", &[]),
            shell.clone(),
            program("/no/such", &[]),
        ]);
        let mut ask = |program: &Program, arguments: &[&str]| {
            let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
            ask(&mut runner, program, &arguments, MINUTE)
        };
        let code = |ended: io::Result<Ended>| match ended {
            Ok(Ended::With(status)) => status.code(),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(ask(&shell, &["7"])), Some(7));
        assert_eq!(
            code(ask(&program("/bin/true", &[]), &["any", "more"])),
            Some(0)
        );
        // Another script, no script, another program.
        for other in [
            program("/bin/sh", &["-c", "exit 0", "name"]),
            program("/bin/sh", &[]),
            program("/bin/false", &[]),
        ] {
            let error = ask(&other, &["-c", "exit 0"]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{other:?}");
        }
        let missing = ask(&program("/no/such", &[]), &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn one_that_takes_too_long_is_ended_and_one_that_says_much_does_not_wait() {
        let slow = program("/bin/sleep", &["60"]);
        let loud = program("/bin/sh", &["-c", "head -c 1000000 /dev/zero >&2"]);
        let mut runner = runner(&[slow.clone(), loud.clone()]);
        let late = ask(&mut runner, &slow, &[], Duration::from_millis(50)).unwrap();
        assert_eq!(late, Ended::TimedOut);
        let Ended::With(status) = ask(&mut runner, &loud, &[], MINUTE).unwrap() else {
            panic!("it ends");
        };
        assert!(status.success());
    }

    #[test]
    fn a_message_that_is_cut_off_or_too_long_ends_the_runner() {
        for bytes in [
            &b"\xff\xff\xff\xff"[..],
            b"\x08\0\0\0\x20\0\0\0abcd",
            b"\x02\0\0\0ab",
        ] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(serve(&mut theirs).is_err(), "{bytes:?}");
        }
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(serve(&mut theirs).is_ok());
    }
}
