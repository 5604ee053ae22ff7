//! Threads in the API, where NGINX Plus has worker processes.

use base::json;
use framework::counters::Totals;
use http::request::Request;

use super::failure::ApiError;
use super::server::{lock, resets};
use super::show::{self, Fields, Object};

/// Writes the state of all threads, or of the thread with this number.
pub(super) fn show(
    request: &Request,
    only: Option<u64>,
    json: &mut json::Writer,
    fields: &Fields,
) -> Result<(), ApiError> {
    let all = request.connection.worker.counters().by_thread();
    let zone = resets(&request.local.generation);
    let earlier = |id: u64| {
        let known = zone.as_ref().map(|zone| lock(&zone.state().workers));
        let known = known.and_then(|known| known.get(&id).copied());
        known.unwrap_or_default()
    };
    let mut numbered = (0..).zip(&all);
    match only {
        None => json.array(|json| {
            for (id, totals) in numbered {
                let earlier = earlier(id);
                show::object(json, fields, |object| worker(id, totals, &earlier, object));
            }
        }),
        Some(only) => {
            let found = numbered.find(|(id, _)| *id == only);
            let (id, totals) = found.ok_or(ApiError::WorkerNotFound)?;
            let earlier = earlier(id);
            show::object(json, fields, |object| worker(id, totals, &earlier, object));
        }
    }
    Ok(())
}

fn worker(id: u64, totals: &Totals, earlier: &Totals, object: &mut Object<'_>) {
    object.number("id", id);
    object.number("pid", u64::from(std::process::id()));
    object.field("connections", |json| {
        show::complete_object(json, |object| {
            object.number("accepted", totals.accepted.saturating_sub(earlier.accepted));
            object.number("dropped", totals.dropped.saturating_sub(earlier.dropped));
            object.number("active", totals.active.saturating_sub(totals.waiting));
            object.number("idle", totals.waiting);
        });
    });
    object.field("http", |json| {
        show::complete_object(json, |object| {
            object.field("requests", |json| {
                show::complete_object(json, |object| {
                    object.number("total", totals.requests.saturating_sub(earlier.requests));
                    object.number("current", totals.writing());
                });
            });
        });
    });
}

/// Resets the connections and requests of all threads, or of the thread with this number.
pub(super) fn reset(request: &Request, only: Option<u64>) -> Result<(), ApiError> {
    let all = request.connection.worker.counters().by_thread();
    let numbered = (0..).zip(all);
    let chosen: Vec<(u64, Totals)> = numbered
        .filter(|(id, _)| only.is_none_or(|only| only == *id))
        .collect();
    if chosen.is_empty() {
        return Err(ApiError::WorkerNotFound);
    }
    if let Some(zone) = resets(&request.local.generation) {
        lock(&zone.state().workers).extend(chosen);
    }
    Ok(())
}
