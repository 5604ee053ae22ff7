//! What the server tells of itself: `stats` and its kin.
//!
//! Names and order are those of memcached 1.6, without what is about slabs, their LRU, its threads
//! for them and its buffers.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use proto::memcached::command::{self, Words};

use crate::cache::{Moment, Shared};
use crate::counts::{Counter, NAMES};
use crate::output::Output;

/// What clients take for the version of memcached: some look whether it is new enough.
const VERSION: &str = "1.6.45";

/// The answer to `version`.
pub(crate) const VERSION_LINE: &str = "VERSION 1.6.45";

/// Answers `stats`, with what stands behind it.
pub(crate) fn answer(mut words: Words<'_>, shared: &Shared, moment: Moment, out: &mut Output) {
    match words.next() {
        None => general(shared, moment, out),
        Some(b"settings") => settings(shared, out),
        Some(b"reset") => {
            shared.cache.forget_counts();
            return out.line("RESET");
        }
        // There are no slabs, and sizes are not counted.
        Some(b"items") => {}
        Some(b"slabs") => {
            stat(out, "active_slabs", 0);
            stat(out, "total_malloced", shared.cache.store.counts().occupied);
        }
        Some(b"sizes") => stat(out, "sizes_status", "disabled"),
        Some(_) => return out.line(command::ERROR),
    }
    out.line("END");
}

fn stat(out: &mut Output, name: &str, value: impl Display) {
    out.line(&format!("STAT {name} {value}"));
}

fn general(shared: &Shared, moment: Moment, out: &mut Output) {
    let cache = &shared.cache;
    let sums = cache.sums();
    let sum = |counter: Counter| sums.get(counter as usize).copied().unwrap_or(0);
    let counts = cache.store.counts();
    let connections = cache.connections.load(Ordering::Relaxed);
    stat(out, "pid", std::process::id());
    stat(out, "uptime", moment.now.saturating_sub(1));
    stat(out, "time", moment.wall);
    stat(out, "version", VERSION);
    stat(
        out,
        "server",
        concat!("tidegate/", env!("CARGO_PKG_VERSION")),
    );
    stat(out, "pointer_size", usize::BITS);
    let [user, system] = processor_time();
    stat(out, "rusage_user", format_args!("{user:.6}"));
    stat(out, "rusage_system", format_args!("{system:.6}"));
    stat(
        out,
        "max_connections",
        cache.settings.connections_max.unwrap_or(0),
    );
    stat(out, "curr_connections", connections);
    stat(
        out,
        "total_connections",
        cache.accepted.load(Ordering::Relaxed),
    );
    stat(
        out,
        "cmd_get",
        sum(Counter::GetHits) + sum(Counter::GetMisses),
    );
    for (name, value) in NAMES.iter().zip(sums) {
        stat(out, name, value);
    }
    stat(out, "limit_maxbytes", cache.limit.load(Ordering::Relaxed));
    stat(out, "accepting_conns", 1);
    stat(out, "threads", cache.settings.threads);
    stat(out, "hash_bytes", counts.tables);
    stat(out, "bytes", counts.live);
    stat(out, "bytes_occupied", counts.occupied);
    stat(out, "curr_items", counts.objects);
    stat(out, "total_items", counts.stored);
    stat(out, "expired_unfetched", counts.expired_unread);
    stat(out, "evicted_unfetched", counts.evicted_unread);
    stat(out, "evictions", counts.evicted);
    stat(out, "reclaimed", counts.expired);
}

fn settings(shared: &Shared, out: &mut Output) {
    let cache = &shared.cache;
    let settings = &cache.settings;
    let yes = |is_on| if is_on { "yes" } else { "no" };
    stat(out, "maxbytes", cache.limit.load(Ordering::Relaxed));
    stat(out, "maxconns", settings.connections_max.unwrap_or(0));
    stat(out, "tcpport", settings.port);
    stat(out, "udpport", 0);
    stat(
        out,
        "inter",
        settings.interfaces.as_deref().unwrap_or("NULL"),
    );
    stat(out, "verbosity", cache.verbosity.load(Ordering::Relaxed));
    let evictions = if settings.refuses_when_full {
        "off"
    } else {
        "on"
    };
    stat(out, "evictions", evictions);
    stat(
        out,
        "domain_socket",
        settings.socket_path.as_deref().unwrap_or("NULL"),
    );
    stat(out, "umask", format_args!("{:o}", settings.socket_mask));
    stat(out, "shutdown_command", yes(settings.allows_shutdown));
    stat(out, "num_threads", settings.threads);
    stat(out, "cas_enabled", "yes");
    stat(out, "tcp_backlog", settings.backlog);
    stat(out, "binding_protocol", "ascii");
    stat(out, "auth_enabled_sasl", "no");
    stat(out, "auth_enabled_ascii", "no");
    stat(out, "item_size_max", settings.item_max);
    stat(out, "maxconns_fast", "yes");
    stat(out, "flush_enabled", yes(settings.allows_flush));
    stat(out, "dump_enabled", yes(settings.allows_dump));
    let idle = settings.idle_timeout.map_or(0, |timeout| timeout.as_secs());
    stat(out, "idle_timeout", idle);
    stat(out, "ssl_enabled", "no");
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
