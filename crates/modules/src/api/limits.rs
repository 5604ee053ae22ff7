//! `limit_req` and `limit_conn` in the API: the outcomes of requests per zone.

use base::json;
use framework::zone::{AnyZone, ZoneFact};
use http::request::Request;
use rules::limit_conn::Connections;

use super::endpoint::Kind;
use super::show::{self, Fields};

/// The outcomes of a zone, in output order.
const OUTCOMES: [&str; 5] = [
    "passed",
    "delayed",
    "rejected",
    "delayed_dry_run",
    "rejected_dry_run",
];

/// The number of requests of a zone, by outcome; `None` for outcomes that the zone does not have,
/// such as delays of `limit_conn`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes([Option<u64>; OUTCOMES.len()]);

impl Outcomes {
    /// The outcomes that a zone has counted.
    fn of(zone: &dyn AnyZone) -> Outcomes {
        let mut outcomes = Outcomes::default();
        zone.describe(&mut |name, fact| {
            let known = OUTCOMES.iter().zip(&mut outcomes.0);
            for (_, count) in known.filter(|(outcome, _)| **outcome == name) {
                if let ZoneFact::Number(number) = fact {
                    *count = Some(number);
                }
            }
        });
        outcomes
    }

    /// The requests that were counted after `earlier`, a previous reading of the same counters.
    pub(super) fn since(&self, earlier: &Outcomes) -> Outcomes {
        let mut since = self.clone();
        for (now, then) in since.0.iter_mut().zip(earlier.0) {
            *now = now.map(|now| now.saturating_sub(then.unwrap_or_default()));
        }
        since
    }

    pub(super) fn show(&self, json: &mut json::Writer, fields: &Fields) {
        show::object(json, fields, |object| {
            for (name, count) in OUTCOMES.iter().zip(self.0) {
                if let Some(count) = count {
                    object.number(name, count);
                }
            }
        });
    }
}

/// All zones of this kind, with their names.
pub(super) fn all(request: &Request, kind: Kind) -> Vec<(String, Outcomes)> {
    let zones = &request.local.generation.zones;
    let of_kind = zones.iter().filter(|zone| match kind {
        Kind::LimitReqs => zone.kind() == "limit_req",
        Kind::StreamLimitConns => {
            let of_http = zones.find::<Connections<Request>>(zone.name()).is_some();
            zone.kind() == "limit_conn" && !of_http
        }
        // `zone.kind()` is the same for `limit_conn` zones of `stream`, so the type tells them
        // apart.
        _ => zones.find::<Connections<Request>>(zone.name()).is_some(),
    });
    of_kind
        .map(|zone| (zone.name().to_owned(), Outcomes::of(zone)))
        .collect()
}
