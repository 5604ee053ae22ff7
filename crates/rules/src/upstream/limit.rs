//! `concurrency_limit`: limits the number of concurrent requests to a group, by a fixed number or
//! adaptively. nginx does not have the directive. The crate `upstream` implements the limit.

use std::sync::Arc;

use ::upstream::Concurrency;
use conf::{Fault, Setter, Setting, parse};
use framework::generation::Generation;
use framework::service::{RunningService, Service};

use super::groups::Group;
use super::protocol::{BLOCKS, Upstreams};

pub(super) static CONCURRENCY_LIMIT: Setting<Concurrency> = Setting::new(
    "concurrency_limit",
    &["number | adaptive"],
    concurrency_limit,
)
.contexts(BLOCKS)
.manual("How many requests may be under way towards the servers of the group, all threads and servers together. Whatever is over it waits, first come first served, for up to 8s or as `queue` says. A request that would have to wait for longer than three quarters of that time, by how many wait and how fast they are served, is refused at once: 503 with `Retry-After`, which `error_page` may replace. One that has waited for the whole time gets the same; one whose client has gone leaves and is never sent. With `adaptive` the limit follows how long answers take, so that the servers do as much as they can and none of it waits at a server. A request counts from when it is let through until its answer has come whole, however many servers are tried; one that has become a tunnel (WebSocket) counts no more, and where the limit is measured neither does an answer that still comes three seconds after its head. A reload keeps what has been measured and what is under way, and a new limit takes effect at once. nginx does not have it: without this line nothing is limited.");

fn concurrency_limit(setter: &Setter<'_>) -> Result<Concurrency, Fault> {
    let word = setter.word()?;
    if &*word.bytes == b"adaptive" {
        return Ok(Concurrency::Adaptive);
    }
    let number = parse::number_of(&word.bytes).filter(|number| *number > 0);
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.map(Concurrency::Fixed).ok_or_else(|| {
        let text = format!(
            "invalid value \"{}\" in \"concurrency_limit\": it must be a number above 0 or \"adaptive\"",
            word.text()
        );
        Fault::at(word, text)
    })
}

/// The service that applies the concurrency limits of a configuration when it comes into force,
/// also to requests that wait already.
pub(super) struct Limits<U: Upstreams>(pub(super) Vec<Arc<Group<U>>>);

impl<U: Upstreams> Service for Limits<U> {
    fn key(&self) -> String {
        format!("limits of {} upstreams", U::BLOCK)
    }

    fn start(&self, _: &Arc<Generation>, _: Option<RunningService>) -> Option<RunningService> {
        for group in &self.0 {
            group.shared.comes_into_force(engine::now());
        }
        Some(Box::new(()))
    }
}
