//! What the server tells of itself: `stats` and its kin.
//!
//! Names and order are those of memcached 1.6, without what is about slabs, their LRU, its threads
//! for them and its buffers.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use proto::memcached::binary::{Head, Lengths, Status};
use proto::memcached::command::{self, Words};

use crate::cache::{CommandTime, ThreadContext};
use crate::counts::{Counter, NAMES};
use crate::output::Output;

/// What clients take for the version of memcached: some look whether it is new enough.
pub(crate) const VERSION: &str = "1.6.45";

/// The answer to `version`.
pub(crate) const VERSION_LINE: &str = "VERSION 1.6.45";

/// Answers `stats`, with what stands behind it.
pub(crate) fn answer(
    words: Words<'_>,
    shared: &ThreadContext,
    moment: CommandTime,
    out: &mut Output,
) {
    let report = StatsWriter {
        out,
        form: StatsFormat::Lines,
    };
    match tell(words, shared, moment, report) {
        StatsReply::Listed => out.line("END"),
        StatsReply::Reset => out.line("RESET"),
        StatsReply::Unknown => out.line(command::ERROR),
    }
}

/// Answers the binary protocol's Stat, whose key says of what.
pub(crate) fn answer_packet(
    head: &Head,
    key: &[u8],
    shared: &ThreadContext,
    moment: CommandTime,
    out: &mut Output,
) {
    let form = StatsFormat::Packets(head);
    match tell(Words::of(key), shared, moment, StatsWriter { out, form }) {
        // A packet without a name is the last.
        StatsReply::Listed | StatsReply::Reset => {
            out.text(&head.response(Status::Done, Lengths::default(), 0));
        }
        StatsReply::Unknown => {
            let text = Status::NotFound.text();
            let lengths = Lengths {
                value: text.len(),
                ..Lengths::default()
            };
            out.text(&head.response(Status::NotFound, lengths, 0));
            out.text(text.as_bytes());
        }
    }
}

/// How a request for statistics was answered.
enum StatsReply {
    /// By statistics, behind which an end is due.
    Listed,
    Reset,
    /// There is no such kind of statistics.
    Unknown,
}

fn tell(
    mut words: Words<'_>,
    shared: &ThreadContext,
    moment: CommandTime,
    mut report: StatsWriter<'_>,
) -> StatsReply {
    match words.next() {
        None => general(shared, moment, &mut report),
        Some(b"settings") => settings(shared, &mut report),
        Some(b"reset") => {
            shared.cache.forget_counts();
            return StatsReply::Reset;
        }
        // There are no slabs, and sizes are not counted.
        Some(b"items") => {}
        Some(b"slabs") => {
            report.stat("active_slabs", 0);
            report.stat("total_malloced", shared.cache.store.counts().occupied);
        }
        Some(b"sizes") => report.stat("sizes_status", "disabled"),
        Some(_) => return StatsReply::Unknown,
    }
    StatsReply::Listed
}

/// Where statistics are written.
struct StatsWriter<'a> {
    out: &'a mut Output,
    form: StatsFormat<'a>,
}

/// How statistics are written.
#[derive(Clone, Copy)]
enum StatsFormat<'a> {
    Lines,
    /// A response each to this request, name and value as its key and value.
    Packets(&'a Head),
}

impl StatsWriter<'_> {
    fn stat(&mut self, name: &str, value: impl Display) {
        match self.form {
            StatsFormat::Lines => self.out.line(&format!("STAT {name} {value}")),
            StatsFormat::Packets(head) => {
                let value = value.to_string();
                let lengths = Lengths {
                    extras: 0,
                    key: name.len() as u16,
                    value: value.len(),
                };
                self.out.text(&head.response(Status::Done, lengths, 0));
                self.out.text(name.as_bytes());
                self.out.text(value.as_bytes());
            }
        }
    }
}

fn general(shared: &ThreadContext, moment: CommandTime, report: &mut StatsWriter<'_>) {
    let cache = &shared.cache;
    let sums = cache.sums();
    let sum = |counter: Counter| sums.get(counter as usize).copied().unwrap_or(0);
    let counts = cache.store.counts();
    let connections = cache.connections.load(Ordering::Relaxed);
    report.stat("pid", std::process::id());
    report.stat("uptime", moment.now.saturating_sub(1));
    report.stat("time", moment.wall);
    report.stat("version", VERSION);
    report.stat("server", concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    report.stat("pointer_size", usize::BITS);
    let [user, system] = processor_time();
    report.stat("rusage_user", format_args!("{user:.6}"));
    report.stat("rusage_system", format_args!("{system:.6}"));
    report.stat(
        "max_connections",
        cache.settings.connections_max.unwrap_or(0),
    );
    report.stat("curr_connections", connections);
    report.stat("total_connections", cache.accepted.load(Ordering::Relaxed));
    report.stat("cmd_get", sum(Counter::GetHits) + sum(Counter::GetMisses));
    for (name, value) in NAMES.iter().zip(sums) {
        report.stat(name, value);
    }
    report.stat("limit_maxbytes", cache.limit.load(Ordering::Relaxed));
    report.stat("accepting_conns", 1);
    report.stat("threads", cache.settings.threads);
    report.stat("hash_bytes", counts.tables);
    report.stat("bytes", counts.live);
    report.stat("bytes_occupied", counts.occupied);
    report.stat("curr_items", counts.objects);
    report.stat("total_items", counts.stored);
    report.stat("expired_unfetched", counts.expired_unread);
    report.stat("evicted_unfetched", counts.evicted_unread);
    report.stat("evictions", counts.evicted);
    report.stat("reclaimed", counts.expired);
}

fn settings(shared: &ThreadContext, report: &mut StatsWriter<'_>) {
    let cache = &shared.cache;
    let settings = &cache.settings;
    let yes = |is_on| if is_on { "yes" } else { "no" };
    report.stat("maxbytes", cache.limit.load(Ordering::Relaxed));
    report.stat("maxconns", settings.connections_max.unwrap_or(0));
    report.stat("tcpport", settings.port);
    report.stat("udpport", settings.udp_port);
    report.stat("inter", settings.interfaces.as_deref().unwrap_or("NULL"));
    report.stat("verbosity", cache.verbosity.load(Ordering::Relaxed));
    let evictions = if settings.refuses_when_full {
        "off"
    } else {
        "on"
    };
    report.stat("evictions", evictions);
    report.stat(
        "domain_socket",
        settings.socket_path.as_deref().unwrap_or("NULL"),
    );
    report.stat("umask", format_args!("{:o}", settings.socket_mask));
    report.stat("shutdown_command", yes(settings.allows_shutdown));
    report.stat("num_threads", settings.threads);
    report.stat("cas_enabled", "yes");
    report.stat("tcp_backlog", settings.backlog);
    report.stat("binding_protocol", settings.protocol.name());
    report.stat("auth_enabled_sasl", "no");
    report.stat("auth_enabled_ascii", "no");
    report.stat("item_size_max", settings.item_max);
    report.stat("maxconns_fast", "yes");
    report.stat("flush_enabled", yes(settings.allows_flush));
    report.stat("dump_enabled", yes(settings.allows_dump));
    let idle = settings.idle_timeout.map_or(0, |timeout| timeout.as_secs());
    report.stat("idle_timeout", idle);
    report.stat("ssl_enabled", "no");
}

/// Seconds that the process has used in itself and in the kernel, from proc_pid_stat(5).
fn processor_time() -> [f64; 2] {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Before the fields stands the name in brackets, which may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    [fields.next(), fields.next()].map(|ticks| {
        let ticks = ticks.and_then(|ticks| ticks.parse().ok());
        ticks.unwrap_or(0.0) / per_second
    })
}
