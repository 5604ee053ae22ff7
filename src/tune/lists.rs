//! Settings that published lists advise for fast servers, judged for today's Linux and Tidegate.
//!
//! The lists are those of the measurements repeated in docs/published-runs.md, and advice that
//! guides have repeated since.

/// A setting that a list advises.
pub(super) struct ListedSetting {
    /// The setting as the list writes it.
    pub(super) setting: &'static str,
    pub(super) list: &'static str,
    pub(super) verdict: ListStatus,
    pub(super) reason: &'static str,
    pub(super) source: &'static str,
}

/// The verdict on a listed setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListStatus {
    /// Still valid; `tune` advises the setting if it is missing.
    Holds,
    /// Helps under a condition that the reason names.
    Depends,
    /// Has no effect (any more), or not the advertised one.
    Folklore,
    /// Does harm.
    Harmful,
}

impl ListStatus {
    pub(super) fn word(self) -> &'static str {
        match self {
            ListStatus::Holds => "holds",
            ListStatus::Depends => "depends",
            ListStatus::Folklore => "folklore",
            ListStatus::Harmful => "harmful",
        }
    }
}

const MEMCACHED: &str = "memcached 1.3.2 over 10 Gbit/s, 2009";
const ONLOAD: &str = "NGINX Plus over Onload";
const GUIDES: &str = "guides for nginx";

/// All listed settings, list by list.
pub(super) static LISTS: &[ListedSetting] = &[
    ListedSetting {
        setting: "net.ipv4.tcp_timestamps = 0",
        list: MEMCACHED,
        verdict: ListStatus::Harmful,
        reason: "12 bytes a packet are saved; round trips, old duplicates and the reuse of ports \
                 in TIME-WAIT rest on them",
        source: "RFC 7323, sections 3 to 5; RFC 6191",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_sack = 0, tcp_dsack = 0",
        list: MEMCACHED,
        verdict: ListStatus::Harmful,
        reason: "one lost packet makes many be sent again; RACK, which finds losses since Linux \
                 4.18, needs SACK",
        source: "RFC 2018; RFC 8985",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_window_scaling = 0",
        list: MEMCACHED,
        verdict: ListStatus::Harmful,
        reason: "64 KB under way at most: enough within a room, 5 Mbit/s over 100 ms",
        source: "RFC 7323, section 2",
    },
    ListedSetting {
        setting: "net.core.wmem_max, wmem_default = 67108864",
        list: MEMCACHED,
        verdict: ListStatus::Folklore,
        reason: "TCP takes its buffers from tcp_wmem and lets them grow; these bound SO_SNDBUF and \
                 sockets of other protocols, and a large default is memory for each of those",
        source: "tcp(7); Linux, ip-sysctl.rst (tcp_wmem)",
    },
    ListedSetting {
        setting: "net.core.optmem_max = 67108864",
        list: MEMCACHED,
        verdict: ListStatus::Folklore,
        reason: "it bounds ancillary data and socket filters, of which a web server has next to \
                 none (zero-copy sends would need more)",
        source: "Linux, Documentation/admin-guide/sysctl/net.rst (optmem_max)",
    },
    ListedSetting {
        setting: "net.core.netdev_max_backlog = 300000",
        list: MEMCACHED,
        verdict: ListStatus::Depends,
        reason: "only where /proc/net/softnet_stat counts drops: a card's own interrupts do not \
                 use this queue, and so long a one is only delay",
        source: "Linux, net/core/dev.c (enqueue_to_backlog)",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_max_syn_backlog = 200000",
        list: MEMCACHED,
        verdict: ListStatus::Folklore,
        reason: "with SYN cookies, the default, it does not count; the queue is as long as \
                 the socket's backlog",
        source: "Linux, net/ipv4/tcp_input.c (tcp_conn_request)",
    },
    ListedSetting {
        setting: "a ring of the card for each processor, its interrupt bound to it",
        list: MEMCACHED,
        verdict: ListStatus::Holds,
        reason: "drivers make one queue a processor by themselves today; what is left is to look \
                 whether the interrupts are spread",
        source: "Linux, Documentation/networking/scaling.rst (RSS)",
    },
    ListedSetting {
        setting: "net.ipv4.ip_local_port_range = 9000 65000",
        list: ONLOAD,
        verdict: ListStatus::Depends,
        reason: "for the load generator and for proxies that keep no connections to upstreams; the \
                 server's own clients need no ports here. Ports that services listen on belong \
                 into ip_local_reserved_ports",
        source: "Linux, ip-sysctl.rst (ip_local_port_range)",
    },
    ListedSetting {
        setting: "vm.nr_hugepages = 10000",
        list: ONLOAD,
        verdict: ListStatus::Folklore,
        reason: "Onload keeps its packets in them; without it 20 GB lie idle",
        source: "Linux, Documentation/admin-guide/mm/hugetlbpage.rst",
    },
    ListedSetting {
        setting: "8388608 open files (fs.file-max, fs.nr_open)",
        list: ONLOAD,
        verdict: ListStatus::Depends,
        reason: "as many as connections are configured; systemd raises both to the most since its \
                 version 240",
        source: "Linux, Documentation/admin-guide/sysctl/fs.rst; systemd 240, NEWS",
    },
    ListedSetting {
        setting: "net.core.somaxconn = 65535",
        list: GUIDES,
        verdict: ListStatus::Depends,
        reason: "the default is 4096 since Linux 5.4 and seldom short; without a longer backlog= \
                 of `listen` (511) more does nothing",
        source: "listen(2); Linux 5.4, include/linux/socket.h",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_tw_reuse = 1",
        list: GUIDES,
        verdict: ListStatus::Depends,
        reason: "for connections to upstreams only, and kept ones (`keepalive`) need it less; 2, \
                 the default since Linux 4.19, does it for loopback",
        source: "Linux, ip-sysctl.rst (tcp_tw_reuse); RFC 6191",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_tw_recycle = 1",
        list: GUIDES,
        verdict: ListStatus::Harmful,
        reason: "it dropped clients behind one address, and is gone since Linux 4.12",
        source: "Linux 4.12, commit 4396e46187ca",
    },
    ListedSetting {
        setting: "net.ipv4.tcp_fin_timeout = 15",
        list: GUIDES,
        verdict: ListStatus::Folklore,
        reason: "it is the time of FIN-WAIT-2 without an owner; TIME-WAIT lasts 60 s whatever \
                 it is",
        source: "Linux, ip-sysctl.rst (tcp_fin_timeout); include/net/tcp.h (TCP_TIMEWAIT_LEN)",
    },
    ListedSetting {
        setting: "net.core.rmem_max, tcp_rmem = ... 16777216",
        list: GUIDES,
        verdict: ListStatus::Depends,
        reason: "the third number of tcp_rmem for fast uploads from far away; rmem_max for UDP",
        source: "Linux, ip-sysctl.rst (tcp_rmem); udp(7)",
    },
    ListedSetting {
        setting: "net.core.busy_poll, busy_read = 50",
        list: GUIDES,
        verdict: ListStatus::Folklore,
        reason: "measured within noise of none here; it takes a processor for microseconds of \
                 single packets",
        source: "Linux, Documentation/networking/napi.rst",
    },
    ListedSetting {
        setting: "transparent_hugepage = never",
        list: GUIDES,
        verdict: ListStatus::Depends,
        reason: "\"always\" may hold more memory for many idle connections; \"madvise\", which \
                 most systems have, leaves it to programs",
        source: "Linux, Documentation/admin-guide/mm/transhuge.rst",
    },
    ListedSetting {
        setting: "vm.swappiness = 0",
        list: GUIDES,
        verdict: ListStatus::Folklore,
        reason: "a server that fits into memory is not swapped out for it, and one that does not \
                 is ended sooner",
        source: "Linux, Documentation/admin-guide/sysctl/vm.rst (swappiness)",
    },
    ListedSetting {
        setting: "event ports, /dev/poll, epoll chosen by hand (`use`)",
        list: "nginx 0.7.64 as a static server",
        verdict: ListStatus::Folklore,
        reason: "the best that the kernel allows is chosen at the start, and the log says why",
        source: "docs/decisions/engine.md",
    },
];
