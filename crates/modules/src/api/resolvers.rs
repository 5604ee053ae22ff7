//! Resolvers with a `status_zone` in the API.

use base::json;
use bytes::Bytes;
use framework::zone::{AnyZone, ZoneFact};
use http::request::Request;
use transport::resolver::counted::{ResolverCounts, full_name, zone_name};

use super::failure::ApiError;
use super::show::{self, Fields};

/// The counters of requests; all other counters of a zone are responses.
const REQUESTS: [&str; 2] = ["name", "srv"];

/// Writes the statistics of all zones, or of the zone with this name.
pub(super) fn show(
    request: &Request,
    only: Option<&Bytes>,
    json: &mut json::Writer,
    fields: &Fields,
) -> Result<(), ApiError> {
    let zones = request.local.generation.zones.iter();
    let mut named = zones.filter_map(|zone| Some((zone_name(zone.name())?, zone)));
    match only {
        None => json.object(|json| {
            for (name, known) in named {
                zone(known, json.key(name), fields);
            }
        }),
        Some(only) => {
            let found = named.find(|(name, _)| name.as_bytes() == only);
            let (_, known) = found.ok_or(ApiError::ResolverNotFound)?;
            zone(known, json, fields);
        }
    }
    Ok(())
}

fn zone(zone: &dyn AnyZone, json: &mut json::Writer, fields: &Fields) {
    let mut told = Vec::new();
    zone.describe(&mut |name, fact| {
        if let ZoneFact::Number(count) = fact {
            told.push((name, count));
        }
    });
    let (requests, responses): (Vec<_>, Vec<_>) = told
        .into_iter()
        .partition(|(name, _)| REQUESTS.contains(name));
    show::object(json, fields, |object| {
        for (name, counts) in [("requests", requests), ("responses", responses)] {
            object.field(name, |json| {
                show::complete_object(json, |object| {
                    counts
                        .iter()
                        .for_each(|(name, count)| object.number(name, *count));
                });
            });
        }
    });
}

/// Resets the statistics of a zone.
pub(super) fn reset(request: &Request, name: &Bytes) -> Result<(), ApiError> {
    let name = full_name(&String::from_utf8_lossy(name));
    let zone = request.local.generation.zones.find::<ResolverCounts>(&name);
    zone.ok_or(ApiError::ResolverNotFound)?.state().reset();
    Ok(())
}
