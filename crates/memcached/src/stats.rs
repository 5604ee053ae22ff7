//! What the server tells of itself: `stats` and its kin.
//!
//! Names and order are those of memcached 1.6, without what is about slabs, their LRU, its threads
//! for them and its buffers.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use proto::memcached::binary::{Head, Lengths, Status};
use proto::memcached::command::{self, Words};

use crate::cache::{CommandTime, ThreadContext};
use crate::census::{Census, CensusKind};
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
        StatsReply::Switched => out.line("OK"),
        StatsReply::BadDetail => out.line("CLIENT_ERROR usage: stats detail on|off|dump"),
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
        StatsReply::Listed | StatsReply::Reset | StatsReply::Switched => {
            out.text(&head.response(Status::Done, Lengths::default(), 0));
        }
        StatsReply::BadDetail | StatsReply::Unknown => {
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
    /// What counts has been switched on or off.
    Switched,
    /// `stats detail` with something else.
    BadDetail,
    /// There is no such kind of statistics.
    Unknown,
}

/// Answers with what has been counted of all items: by lines, or to a packet with this head.
pub(crate) fn answer_census(
    head: Option<&Head>,
    census: &Census,
    shared: &ThreadContext,
    moment: CommandTime,
    out: &mut Output,
) {
    let form = head.map_or(StatsFormat::Lines, StatsFormat::Packets);
    census.tell(shared, moment, &mut StatsWriter { out, form });
    match head {
        None => out.line("END"),
        Some(head) => out.text(&head.response(Status::Done, Lengths::default(), 0)),
    }
}

/// What kind of statistics takes a walk over all items, if this one does.
pub(crate) fn census(name: &[u8]) -> Option<CensusKind> {
    match name {
        b"items" => Some(CensusKind::Items),
        b"slabs" => Some(CensusKind::Slabs),
        b"sizes" => Some(CensusKind::Sizes),
        _ => None,
    }
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
        Some(b"conns") => {
            let own = shared.connection.get();
            let sockets = &shared.cache.sockets;
            sockets.tell(own, moment.now, |number, what, value| {
                report.stat(&format!("{number}:{what}"), value);
            });
        }
        Some(b"detail") => return detail(words.next(), shared, &mut report),
        // Sizes are counted when they are asked for.
        Some(b"sizes_enable" | b"sizes_disable") => report.stat("sizes_status", "enabled"),
        Some(_) => return StatsReply::Unknown,
    }
    StatsReply::Listed
}

/// `stats detail`: counts by prefixes of keys.
fn detail(what: Option<&[u8]>, shared: &ThreadContext, report: &mut StatsWriter<'_>) -> StatsReply {
    let prefixes = &shared.cache.prefixes;
    match what {
        Some(b"on") => prefixes.switch(true),
        Some(b"off") => prefixes.switch(false),
        Some(b"dump") => {
            match report.form {
                StatsFormat::Lines => prefixes.dump(report.out),
                StatsFormat::Packets(_) => {
                    let mut lines = Output::default();
                    prefixes.dump(&mut lines);
                    lines.line("END");
                    let lines: Vec<u8> = lines.take().flatten().collect();
                    report.stat("detail", String::from_utf8_lossy(&lines));
                }
            }
            return StatsReply::Listed;
        }
        _ => return StatsReply::BadDetail,
    }
    StatsReply::Switched
}

/// Where statistics are written.
pub(crate) struct StatsWriter<'a> {
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
    pub(crate) fn stat(&mut self, name: &str, value: impl Display) {
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
    let (counts, before) = (cache.store.counts(), cache.forgotten_items());
    let connections = cache.connections.load(Ordering::Relaxed);
    report.stat("pid", std::process::id());
    report.stat("uptime", cache.uptime(moment.now));
    report.stat("time", moment.wall);
    report.stat("version", VERSION);
    // memcached names its library for events here, by which tools know a server.
    report.stat("server", concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    report.stat("pointer_size", usize::BITS);
    let [user, system] = processor_time();
    report.stat("rusage_user", format_args!("{user:.6}"));
    report.stat("rusage_system", format_args!("{system:.6}"));
    let most = cache.settings.connections_max.unwrap_or(0);
    report.stat("max_connections", most);
    report.stat("curr_connections", connections);
    report.stat("total_connections", cache.accepted.load(Ordering::Relaxed));
    report.stat("connection_structures", connections);
    report.stat("cmd_get", sum(Counter::GetHits) + sum(Counter::GetMisses));
    for (name, value) in NAMES.iter().zip(sums) {
        let is_of_tls = name.starts_with("ssl_");
        let is_of_idle = *name == Counter::IdleKicks.name();
        let is_shown = match cache.settings.idle_timeout {
            None if is_of_idle => false,
            _ => !is_of_tls,
        };
        if is_shown {
            report.stat(name, value);
        }
    }
    report.stat("get_expired", counts.expired_got - before.expired_got);
    report.stat("get_flushed", counts.flushed_got - before.flushed_got);
    report.stat("limit_maxbytes", cache.limit.load(Ordering::Relaxed));
    report.stat("accepting_conns", 1);
    report.stat("listen_disabled_num", 0);
    report.stat("time_in_listen_disabled_us", 0);
    report.stat("threads", cache.threads());
    report.stat("hash_power_level", cache.hash_power());
    report.stat("hash_bytes", counts.tables);
    report.stat("hash_is_expanding", 0);
    for name in WITHOUT_SLABS {
        report.stat(name, 0);
    }
    let (written, skipped) = cache.gone.watchers.sums();
    report.stat("log_worker_dropped", 0);
    report.stat("log_worker_written", written + skipped);
    report.stat("log_watcher_skipped", skipped);
    report.stat("log_watcher_sent", written);
    report.stat("log_watchers", cache.gone.watchers.count());
    if let Some(tls) = &cache.settings.tls {
        if tls.keeps_sessions() {
            report.stat("ssl_new_sessions", sum(Counter::TlsSessions));
        }
        report.stat("ssl_handshake_errors", sum(Counter::HandshakeErrors));
        report.stat("ssl_proto_errors", sum(Counter::TlsErrors));
        let since = cache.certificates_age(moment.now);
        report.stat("time_since_server_cert_refresh", since);
    }
    report.stat("bytes", counts.live);
    report.stat("bytes_occupied", counts.occupied);
    report.stat("curr_items", counts.objects);
    report.stat("total_items", counts.stored - before.stored);
    let unread = counts.expired_unread - before.expired_unread;
    report.stat("expired_unfetched", unread);
    let unread = counts.evicted_unread - before.evicted_unread;
    report.stat("evicted_unfetched", unread);
    report.stat("evictions", counts.evicted - before.evicted);
    let reclaimed = counts.expired + counts.flushed - before.expired - before.flushed;
    report.stat("reclaimed", reclaimed);
}

/// What memcached counts of its slabs, of its buffers and of what crawls over items: here there is
/// nothing of that, so it is 0. Tools and memcached's tests look for these names.
const WITHOUT_SLABS: &[&str] = &[
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_oom",
    "reserved_fds",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "malloc_fails",
    "slab_global_page_pool",
    "lrutail_reflocked",
    "direct_reclaims",
    "crawler_items_checked",
    "round_robin_fallback",
];

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
    report.stat("growth_factor", "1.25");
    report.stat("chunk_size", 48);
    report.stat("num_threads", shared.cache.threads());
    report.stat("num_threads_per_udp", shared.cache.threads());
    report.stat("stat_key_prefix", char::from(settings.prefix_delimiter));
    report.stat("detail_enabled", yes(cache.prefixes.is_on()));
    report.stat("reqs_per_event", settings.commands_in_turn);
    report.stat("cas_enabled", yes(settings.with_cas));
    report.stat("tcp_backlog", settings.backlog);
    report.stat("binding_protocol", settings.protocol.name());
    report.stat("auth_enabled_sasl", yes(settings.with_sasl));
    match &settings.auth_file {
        Some(path) => report.stat("auth_enabled_ascii", path.display()),
        None => report.stat("auth_enabled_ascii", "no"),
    }
    report.stat("item_size_max", settings.item_max);
    report.stat("maxconns_fast", "yes");
    report.stat("lru_crawler", yes(cache.crawls.load(Ordering::Relaxed)));
    report.stat("flush_enabled", yes(settings.allows_flush));
    report.stat("dump_enabled", yes(settings.allows_dump));
    let idle = settings.idle_timeout.map_or(0, |timeout| timeout.as_secs());
    report.stat("idle_timeout", idle);
    let kilobytes = settings.watcher_buffer / 1024;
    report.stat("watcher_logbuf_size", kilobytes);
    report.stat("track_sizes", "yes");
    report.stat("ssl_enabled", yes(cache.with_tls()));
    if let Some(tls) = &settings.tls {
        tls.tell(|name, value| report.stat(name, value));
    }
    match &settings.memory_file {
        Some(path) => report.stat("memory_file", path.display()),
        None => report.stat("memory_file", "(null)"),
    }
    report.stat("client_flags_size", size_of::<u32>());
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
