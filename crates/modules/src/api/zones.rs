//! `status_zone`: counters of requests per zone of servers or locations.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#status_zone>.
//! [`zone_meter`](http::logging::zone_meter) counts the requests. These counters do not include TLS
//! handshakes.

use base::json;
use bytes::Bytes;
use conf::{Contexts, Fault, Inherit, ScopeRef, Setter, Setting};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use http::config::plan_builder::PlanBuilder;
use http::logging::zone_meter::{CountedZones, ZoneKind, ZoneName, ZoneSums};
use http::module::{Shortcut, ShortcutDoc};
use http::request::Request;

use super::endpoint::Kind;
use super::show::{self, Fields};

/// `status_zone zone | off`
pub(super) static STATUS_ZONE: Setting<Option<Bytes>> =
    Setting::new("status_zone", &["zone | off"], zone)
        .contexts(
            Contexts::SERVER
                .or(Contexts::LOCATION)
                .or(Contexts::LOCATION_IF),
        )
        .inherit(Inherit::Never)
        .manual(
            "Counts requests under this name, for `api`: those of a server in a zone of servers, those that end in a location, or in one \
             within it that says nothing else, in a zone of locations. Several scopes may have one zone. `off` in a location counts \
             none in it and within it.",
        );

fn zone(setter: &Setter<'_>) -> Result<Option<Bytes>, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"off" => Ok(None),
        b"" => {
            let text = format!("invalid zone name \"{}\"", word.text());
            Err(Fault::at(word, text))
        }
        name => Ok(Some(Bytes::copy_from_slice(name))),
    }
}

/// The zones of a configuration, in the order in which it names them.
#[derive(Debug, Default)]
pub(super) struct ZoneNames(Vec<ZoneName>);

impl Registry for ZoneNames {}

impl ZoneNames {
    /// Adds a zone, unless it is present.
    fn add(&mut self, name: ZoneName) {
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// The zones of a kind, in the order of the configuration.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &Bytes> {
        let kind = kind_of(kind);
        let names = self.0.iter().filter(move |(of, _)| *of == kind);
        names.map(|(_, name)| name)
    }
}

/// Adds the zones to the generation.
pub(super) fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    generation.add(compiler.registries.take::<ZoneNames>());
}

/// For the documentation: how `status_zone` affects prebuilt responses.
pub(super) const SHORTCUT: ShortcutDoc =
    ShortcutDoc::Same("what is answered from memory is counted, too");

/// Registers the zones of a scope, so that its requests are counted.
pub(super) fn register(plan: &mut PlanBuilder<'_>) -> Result<(), Fault> {
    let (of_server, of_location) = zones_of(plan.scope)?;
    if of_server.is_none() && of_location.is_none() {
        return Ok(());
    }
    let names = plan.compiler.registry::<ZoneNames>();
    let named = [
        (ZoneKind::Server, &of_server),
        (ZoneKind::Location, &of_location),
    ];
    for (kind, name) in named {
        let name = name.iter().map(|name| (kind, name.clone()));
        name.for_each(|name| names.borrow_mut().add(name));
    }
    plan.count_in(CountedZones::named(of_server, of_location));
    plan.shortcut(Shortcut::Same);
    Ok(())
}

/// The zones of the server and the location that contain a scope.
fn zones_of(scope: ScopeRef<'_>) -> Result<(Option<Bytes>, Option<Bytes>), Fault> {
    let mut of_location = None;
    for around in std::iter::successors(Some(scope), |scope| scope.parent()) {
        let own = around.own(&STATUS_ZONE)?;
        if around.context() == Contexts::SERVER {
            return Ok((own.flatten(), of_location.flatten()));
        }
        of_location = of_location.or(own);
    }
    Ok((None, None))
}

/// The kind of a zone, by the kind of the endpoint.
fn kind_of(kind: Kind) -> ZoneKind {
    match kind {
        Kind::ServerZones => ZoneKind::Server,
        _ => ZoneKind::Location,
    }
}

/// The counters of a zone, summed over all threads.
pub(super) fn sums(request: &Request, kind: Kind, name: &Bytes) -> ZoneSums {
    let name = (kind_of(kind), name.clone());
    ZoneSums::of(request.connection.worker.counters(), &name)
}

/// Writes the counters of a zone, with single status codes from version 7 on.
pub(super) fn show(
    sums: &ZoneSums,
    kind: Kind,
    with_codes: bool,
    json: &mut json::Writer,
    fields: &Fields,
) {
    let total = sums.codes.values().sum::<u64>() + sums.others;
    let class = |class: u16| {
        let codes = sums.codes.range(class * 100..(class + 1) * 100);
        codes.map(|(_, count)| count).sum::<u64>()
    };
    show::object(json, fields, |object| {
        let mut requests = total + sums.discarded;
        if kind == Kind::ServerZones {
            object.number("processing", sums.processing);
            requests += sums.processing;
        }
        object.number("requests", requests);
        object.field("responses", |json| {
            show::complete_object(json, |object| {
                for (number, name) in (1..).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
                    object.number(name, class(number));
                }
                if with_codes {
                    object.field("codes", |json| {
                        show::complete_object(json, |object| {
                            for (code, count) in &sums.codes {
                                object.number(&code.to_string(), *count);
                            }
                        });
                    });
                }
                object.number("total", total);
            });
        });
        object.number("discarded", sums.discarded);
        object.number("received", sums.received);
        object.number("sent", sums.sent);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_shown_by_version_and_kind() {
        let shown = |sums: &ZoneSums, kind, with_codes| {
            let mut json = json::Writer::default();
            show(sums, kind, with_codes, &mut json, &Fields::All);
            String::from_utf8(json.into_bytes()).unwrap()
        };
        let sums = ZoneSums {
            processing: 2,
            codes: [(200, 4), (404, 2)].into(),
            discarded: 1,
            ..ZoneSums::default()
        };
        assert_eq!(
            shown(&sums, Kind::ServerZones, true),
            r#"{"processing":2,"requests":9,"responses":{"1xx":0,"2xx":4,"3xx":0,"4xx":2,"5xx":0,"codes":{"200":4,"404":2},"total":6},"discarded":1,"received":0,"sent":0}"#
        );
        let sums = ZoneSums {
            codes: [(200, 5)].into(),
            sent: 10,
            ..ZoneSums::default()
        };
        assert_eq!(
            shown(&sums, Kind::LocationZones, false),
            r#"{"requests":5,"responses":{"1xx":0,"2xx":5,"3xx":0,"4xx":0,"5xx":0,"total":5},"discarded":0,"received":0,"sent":10}"#
        );
    }
}
