//! `tidegate xdp dump`: writes the frames of connections that bypass the kernel as a pcap file.
//!
//! `tcpdump` cannot see these frames. A user who may inspect the worker process can: the ring of
//! each queue is reached through the process's own descriptor, so the server's configuration is not
//! needed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use engine::xdp::Dump;

/// Interval of polling the queues for frames.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Interval of searching for processes that have started to serve.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// Magic number of a pcap file with timestamps in nanoseconds (draft-ietf-opsawg-pcap-06, section
/// 4).
const PCAP_MAGIC: u32 = 0xa1b2_3c4d;
const PCAP_VERSION: [u16; 2] = [2, 4];
const PCAP_ETHERNET: u32 = 1;

/// The snapshot length in the file's header: the maximum length of a frame.
const FRAME_MAX: u32 = 65_535;

/// Write the frames of connections that pass the kernel by as a pcap file
#[derive(Args)]
pub(crate) struct Arguments {
    /// The file; without one standard output, which may not be a terminal
    file: Option<PathBuf>,
    /// Only frames of this interface
    #[arg(short, long, value_name = "NAME")]
    interface: Option<String>,
    /// Only frames of this process, or of its worker processes
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// End after this many frames
    #[arg(short, long, value_name = "NUMBER")]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "NUMBER")]
    seconds: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match dump(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

fn dump(arguments: &Arguments) -> Result<(), String> {
    let mut queues = Queues::default();
    queues.search(arguments)?;
    if queues.open.is_empty() {
        return Err(queues.why_none(arguments));
    }
    let name = match &arguments.file {
        Some(file) => file.display().to_string(),
        None => "standard output".to_owned(),
    };
    let failed = |error: io::Error| format!("{name}: {error}");
    let out: Box<dyn Write> = match &arguments.file {
        Some(file) => Box::new(File::create(file).map_err(failed)?),
        None if io::stdout().is_terminal() => {
            return Err("standard output is a terminal: name a file".to_owned());
        }
        None => Box::new(io::stdout()),
    };
    let mut pcap = Pcap::begin(out).map_err(failed)?;
    for (_, queue) in &queues.open {
        let (interface, number) = (&queue.interface, queue.queue);
        eprintln!("frames of queue {number} of \"{interface}\" are written to {name}");
    }
    let begun = Instant::now();
    let mut searched = begun;
    let until = arguments.seconds.map(Duration::from_secs);
    let left = |written: u64| arguments.count.map_or(u64::MAX, |count| count - written);
    while left(pcap.count) > 0 && until.is_none_or(|until| begun.elapsed() < until) {
        if searched.elapsed() >= SEARCH_EVERY {
            searched = Instant::now();
            queues.search(arguments)?;
        }
        for (time, frame) in queues.look(left(pcap.count))? {
            pcap.write(time, &frame).map_err(failed)?;
        }
        pcap.out.flush().map_err(failed)?;
        sleep(LOOK_EVERY);
    }
    let (written, lost) = (pcap.count, queues.lost());
    eprintln!("{written} frames were written, {lost} came too fast");
    Ok(())
}

/// The queues that are watched.
#[derive(Default)]
struct Queues {
    /// Each queue, with the id of its process.
    open: Vec<(u32, Dump)>,
    searched: BTreeSet<u32>,
    /// Frames lost in queues that no longer exist.
    lost_before: u64,
    /// Why queues cannot be watched.
    failures: Vec<String>,
}

impl Queues {
    /// Starts to watch the queues of new processes, and stops watching those of processes that have
    /// ended.
    fn search(&mut self, arguments: &Arguments) -> Result<(), String> {
        let running = match arguments.pid {
            Some(pid) => with_children(pid),
            None => processes(),
        };
        let (stay, gone) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(pid, _)| running.contains(pid));
        self.open = stay;
        let gone: Vec<(u32, Dump)> = gone;
        self.lost_before += gone.iter().map(|(_, queue)| queue.lost()).sum::<u64>();
        let new: Vec<u32> = running.difference(&self.searched).copied().collect();
        for pid in new {
            self.search_process(pid, arguments);
        }
        // Processes that serve no queue yet are searched again next time.
        self.searched = self.open.iter().map(|(pid, _)| *pid).collect();
        if arguments.pid.is_some() && running.is_empty() {
            return Err("the process has ended".to_owned());
        }
        Ok(())
    }

    fn search_process(&mut self, pid: u32, arguments: &Arguments) {
        let found = match Dump::of_process(pid) {
            Ok(found) => found,
            Err(error) => {
                if arguments.pid.is_some() {
                    self.failures.push(format!("process {pid}: {error}"));
                }
                return;
            }
        };
        let asked = |interface: &String| {
            let mut asked = arguments.interface.iter();
            asked.all(|asked| asked == interface)
        };
        for dump in found {
            match dump {
                Ok(dump) if asked(&dump.interface) => {
                    dump.renew();
                    self.open.push((pid, dump));
                }
                Err((interface, error)) if asked(&interface) => {
                    let why = match error.kind() {
                        io::ErrorKind::WouldBlock => "somebody looks on already".to_owned(),
                        _ => error.to_string(),
                    };
                    self.failures
                        .push(format!("\"{interface}\" of process {pid}: {why}"));
                }
                _ => {}
            }
        }
    }

    /// The reason why no queue is watched.
    fn why_none(&self, arguments: &Arguments) -> String {
        if let Some(failure) = self.failures.first() {
            return failure.clone();
        }
        let of_whom = match arguments.pid {
            Some(pid) => format!("neither process {pid} nor a child of it"),
            None => "no process that may be looked into".to_owned(),
        };
        match &arguments.interface {
            Some(name) => format!("{of_whom} takes frames of \"{name}\" past the kernel"),
            None => format!("{of_whom} takes frames past the kernel"),
        }
    }

    /// The captured frames in order of time, `count` at most.
    fn look(&mut self, count: u64) -> Result<Vec<(u64, Vec<u8>)>, String> {
        let mut came = Vec::new();
        for (pid, queue) in &mut self.open {
            queue.renew();
            let mut frame = Vec::new();
            let failed = |error: io::Error| format!("process {pid}: {error}");
            while (came.len() as u64) < count
                && let Some(time) = queue.next_frame(&mut frame).map_err(failed)?
            {
                came.push((time, std::mem::take(&mut frame)));
            }
        }
        came.sort_by_key(|(time, _)| *time);
        Ok(came)
    }

    /// Number of frames that were lost.
    fn lost(&self) -> u64 {
        let now = self.open.iter().map(|(_, queue)| queue.lost());
        self.lost_before + now.sum::<u64>()
    }
}

/// The processes of this machine.
fn processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// A process and its running descendants.
fn with_children(pid: u32) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    if fs::metadata(format!("/proc/{pid}")).is_err() {
        return all;
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    all.extend(
        children
            .split_whitespace()
            .filter_map(|word| word.parse::<u32>().ok()),
    );
    all.insert(pid);
    all
}

/// A pcap file being written.
struct Pcap {
    out: io::BufWriter<Box<dyn Write>>,
    count: u64,
}

impl Pcap {
    /// Writes the header of a pcap file.
    fn begin(out: Box<dyn Write>) -> io::Result<Pcap> {
        let mut out = io::BufWriter::new(out);
        out.write_all(&PCAP_MAGIC.to_ne_bytes())?;
        for number in PCAP_VERSION {
            out.write_all(&number.to_ne_bytes())?;
        }
        for number in [0, 0, FRAME_MAX, PCAP_ETHERNET] {
            out.write_all(&number.to_ne_bytes())?;
        }
        Ok(Pcap { out, count: 0 })
    }

    fn write(&mut self, time: u64, frame: &[u8]) -> io::Result<()> {
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        let length = frame.len() as u32;
        for number in [seconds as u32, rest as u32, length, length] {
            self.out.write_all(&number.to_ne_bytes())?;
        }
        self.out.write_all(frame)?;
        self.count += 1;
        Ok(())
    }
}
