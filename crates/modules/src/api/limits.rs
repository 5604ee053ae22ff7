//! What the API shows of `limit_req` and `limit_conn`: how many requests each zone has let pass,
//! delayed and refused.

use base::json;
use framework::zone::{AnyZone, Fact};
use http::request::Request;
use rules::limit_conn::Connections;

use super::endpoint::Kind;
use super::show::{self, Fields};

/// What is told of a zone, in the order in which it is shown.
const OUTCOMES: [&str; 5] = [
    "passed",
    "delayed",
    "rejected",
    "delayed_dry_run",
    "rejected_dry_run",
];

/// How many requests a zone has had, by what has become of them; what there is not, as delays of
/// `limit_conn`, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes([Option<u64>; OUTCOMES.len()]);

impl Outcomes {
    fn of(zone: &dyn AnyZone) -> Outcomes {
        let mut outcomes = Outcomes::default();
        zone.describe(&mut |name, fact| {
            let known = OUTCOMES.iter().zip(&mut outcomes.0);
            for (_, count) in known.filter(|(outcome, _)| **outcome == name) {
                if let Fact::Number(number) = fact {
                    *count = Some(number);
                }
            }
        });
        outcomes
    }

    /// The same without what had been counted at an earlier moment.
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

/// Every zone of this kind, with its name.
pub(super) fn all(request: &Request, kind: Kind) -> Vec<(String, Outcomes)> {
    let zones = &request.local.generation.zones;
    let of_kind = zones.iter().filter(|zone| match kind {
        Kind::LimitReqs => zone.kind() == "limit_req",
        Kind::StreamLimitConns => {
            let of_http = zones.find::<Connections<Request>>(zone.name()).is_some();
            zone.kind() == "limit_conn" && !of_http
        }
        // Those of stream are of the same kind, for another context.
        _ => zones.find::<Connections<Request>>(zone.name()).is_some(),
    });
    of_kind
        .map(|zone| (zone.name().to_owned(), Outcomes::of(zone)))
        .collect()
}
