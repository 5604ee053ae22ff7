//! Metrics of receive queues that bypass the kernel (`use xdp`).

use base::json;
use engine::xdp::QueueReport;

use super::page::{Page, escaped};

/// A metric of queues: name, type, help and source.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&QueueReport) -> u64,
);

const FAMILIES: [Family; 10] = [
    (
        "tidegate_xdp_connections",
        "gauge",
        "Connections of the queue's own TCP in any state, TIME-WAIT among them.",
        |queue| queue.connections,
    ),
    (
        "tidegate_xdp_accepted_total",
        "counter",
        "Connections that clients have begun at the queue.",
        |queue| queue.accepted,
    ),
    (
        "tidegate_xdp_frames_received_total",
        "counter",
        "Frames that came.",
        |queue| queue.received,
    ),
    (
        "tidegate_xdp_frames_sent_total",
        "counter",
        "Frames that were sent.",
        |queue| queue.sent,
    ),
    (
        "tidegate_xdp_frames_dropped_total",
        "counter",
        "Frames that the kernel dropped, for want of an empty one or of room in the queue, and \
         SYNs that were dropped because too many waited.",
        |queue| queue.dropped,
    ),
    (
        "tidegate_xdp_retransmitted_total",
        "counter",
        "Segments with data that were sent again.",
        |queue| queue.sent_again,
    ),
    (
        "tidegate_xdp_damaged_total",
        "counter",
        "Segments whose checksums were wrong.",
        |queue| queue.damaged,
    ),
    (
        "tidegate_xdp_syncookies_total",
        "counter",
        "SYNs that were answered by a cookie, because all places were taken.",
        |queue| queue.cookies,
    ),
    (
        "tidegate_xdp_frames_spare",
        "gauge",
        "Frames that are free to send with, of 2,048.",
        |queue| queue.spare,
    ),
    (
        "tidegate_xdp_fill_ring_empty_total",
        "counter",
        "How often the kernel found no empty frame to receive into.",
        |queue| queue.fill_empty,
    ),
];

pub(super) fn prometheus(queues: &[QueueReport], page: &mut Page) {
    for (name, kind, help, number) in FAMILIES {
        page.family(name, kind, help);
        for queue in queues {
            let interface = escaped(&queue.interface);
            let labels = format!("interface=\"{interface}\",queue=\"{}\"", queue.number);
            page.sample(name, &labels, number(queue));
        }
    }
}

/// Writes an object for each queue.
pub(crate) fn json(queues: &[QueueReport], json: &mut json::Writer) {
    for queue in queues {
        json.object(|json| {
            json.key("interface").string(&queue.interface);
            json.key("queue").number(queue.number);
            for (name, _, _, number) in FAMILIES {
                let name = name.strip_prefix("tidegate_xdp_").unwrap_or(name);
                json.key(name.strip_suffix("_total").unwrap_or(name))
                    .number(number(queue));
            }
        });
    }
}
