//! Server certificates in the API, which the API of NGINX Plus does not have.

use base::json;
use http::request::Request;
use jiff::Timestamp;
use transport::tls::certificates::{CertificateFacts, ShownCertificates};

pub(super) use transport::tls::certificates::add_shown;

use super::show;

const SECONDS_OF_A_DAY: i64 = 24 * 60 * 60;

/// Writes all certificates, in the order of their expiry.
pub(super) fn all(request: &Request, json: &mut json::Writer) {
    let shown = request.local.generation.part::<ShownCertificates>();
    let mut facts = shown.map(|shown| shown.facts()).unwrap_or_default();
    facts.sort_by(|one, other| {
        let by_end = one.not_after.cmp(&other.not_after);
        by_end.then_with(|| one.name.cmp(&other.name))
    });
    json.array(|json| facts.iter().for_each(|facts| certificate(facts, json)));
}

fn certificate(facts: &CertificateFacts, json: &mut json::Writer) {
    let ends = i64::try_from(facts.not_after).unwrap_or(i64::MAX);
    show::complete_object(json, |object| {
        object.string("certificate", facts.name.as_bytes());
        object.field("names", |json| {
            json.array(|json| facts.names.iter().for_each(|name| json.string(name)));
        });
        if let Ok(end) = Timestamp::from_second(ends) {
            object.string("not_after", end.to_string().as_bytes());
        }
        let left = ends.saturating_sub(Timestamp::now().as_second());
        object.field("days_left", |json| {
            json.number(left.div_euclid(SECONDS_OF_A_DAY));
        });
    });
}
