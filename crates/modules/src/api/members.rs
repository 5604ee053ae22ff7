//! Servers of groups, as API requests add, change and remove them.

use std::time::Duration;

use ::upstream::{Availability, Edit, Host, Member, MemberError, Origin, Patch, Peer, PeerSide};
use bytes::Bytes;
use conf::parse;
use framework::address::{self, WrittenAddress};
use http::request::Request;
use rules::upstream::{Block, hash_of, host_of, route_of};
use serde_json::{Map, Value};

use super::failure::ApiError;

/// Maximum weight of a server. Limited because the work of some balancing methods grows with the
/// sum of the weights.
const WEIGHT_MAX: u64 = 65_535;

/// A server in the body of a request.
#[derive(Debug, Default)]
pub(super) struct MemberPatch {
    /// The changed parameters, except the address.
    patch: Patch,
    /// The address or host name, as received.
    server: Option<String>,
    service: Option<Bytes>,
    side: Option<PeerSide>,
    id: Option<u64>,
    /// The members of the body as received, for the log.
    text: String,
}

impl MemberPatch {
    /// Parses the body of a request.
    pub(super) fn parse(body: &[u8]) -> Result<MemberPatch, ApiError> {
        let body: Map<String, Value> = serde_json::from_slice(body).map_err(|_| ApiError::Json)?;
        let mut written = MemberPatch::default();
        for (name, value) in &body {
            if value.is_object() || value.is_array() {
                return Err(ApiError::Nested);
            }
            written.take(name, value)?;
        }
        let (drain, down) = (flag(&body, "drain")?, flag(&body, "down")?);
        written.patch.standing = match (drain, down) {
            (_, Some(true)) => Some(Availability::Down),
            (Some(true), _) => Some(Availability::Draining),
            (None, None) => None,
            _ => Some(Availability::Up),
        };
        written.text = Value::Object(body).to_string();
        Ok(written)
    }

    /// Parses one member of the body.
    fn take(&mut self, name: &str, value: &Value) -> Result<(), ApiError> {
        let patch = &mut self.patch;
        match name {
            "server" => {
                let text = value
                    .as_str()
                    .ok_or(ApiError::BadValue("server", "UpstreamConfFormatError"))?;
                self.server = Some(text.to_owned());
            }
            "weight" => {
                let weight = value
                    .as_u64()
                    .filter(|weight| (1..=WEIGHT_MAX).contains(weight));
                let weight = weight.and_then(|weight| i64::try_from(weight).ok());
                patch.weight =
                    Some(weight.ok_or(ApiError::BadValue("weight", "UpstreamBadWeight"))?);
            }
            "max_conns" => {
                let most = value.as_u64().and_then(|most| usize::try_from(most).ok());
                patch.max_conns =
                    Some(most.ok_or(ApiError::BadValue("max_conns", "UpstreamBadMaxConns"))?);
            }
            "max_fails" => {
                let most = value.as_u64();
                patch.max_fails =
                    Some(most.ok_or(ApiError::BadValue("max_fails", "UpstreamBadMaxFails"))?);
            }
            "fail_timeout" => {
                let time = text_of(value).and_then(parse::time_seconds);
                let time = time.map(Duration::from_secs);
                patch.fail_timeout =
                    Some(time.ok_or(ApiError::BadValue("fail_timeout", "UpstreamBadFailTimeout"))?);
            }
            "slow_start" => {
                let time = text_of(value).and_then(parse::time_milliseconds);
                let time = time.map(Duration::from_millis);
                patch.slow_start =
                    Some(time.ok_or(ApiError::BadValue("slow_start", "UpstreamBadSlowStart"))?);
            }
            "route" => {
                let route = text_of(value).filter(|route| !route.contains(&0));
                let route = route.ok_or(ApiError::BadValue("route", "UpstreamBadRoute"))?;
                // An empty route removes the server's route: responses, too, show a missing route
                // as an empty one.
                patch.id = Some(match route {
                    b"" => Bytes::new(),
                    route => {
                        let bad = |_| ApiError::BadValue("route", "UpstreamBadRoute");
                        route_of(route).map_err(bad)?
                    }
                });
            }
            "backup" => {
                let is_backup = value
                    .as_bool()
                    .ok_or(ApiError::BadValue("backup", "UpstreamConfFormatError"))?;
                self.side = Some(if is_backup {
                    PeerSide::Backups
                } else {
                    PeerSide::Peers
                });
            }
            "id" => {
                let id = value.as_u64();
                self.id = Some(id.ok_or(ApiError::BadValue("id", "UpstreamConfFormatError"))?);
            }
            "service" => {
                let service = value
                    .as_str()
                    .ok_or(ApiError::BadValue("service", "UpstreamConfFormatError"))?;
                if service.is_empty() || service.contains('\0') {
                    return Err(ApiError::BadValue("service", "UpstreamBadService"));
                }
                self.service = Some(Bytes::copy_from_slice(service.as_bytes()));
            }
            "down" | "drain" => {}
            other => return Err(ApiError::UnknownParameter(other.to_owned())),
        }
        Ok(())
    }
}

fn flag(body: &Map<String, Value>, name: &'static str) -> Result<Option<bool>, ApiError> {
    match body.get(name) {
        None => Ok(None),
        Some(value) => match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Err(ApiError::BadValue(name, "UpstreamConfFormatError")),
        },
    }
}

fn text_of(value: &Value) -> Option<&[u8]> {
    value.as_str().map(str::as_bytes)
}

/// Parses the address or host name of a server.
fn address_of<'a>(
    text: &'a str,
    service: Option<&Bytes>,
    default_port: Option<u16>,
) -> Result<WrittenAddress<'a>, ApiError> {
    let bad = |error: &str| ApiError::BadAddress(format!("{error} while parsing \"{text}\""));
    if text.contains('\0') {
        return Err(bad("invalid host"));
    }
    let written = address::parse(text.as_bytes()).map_err(bad)?;
    if service.is_some() {
        let bad = |text: &str| Err(ApiError::BadAddress(text.to_owned()));
        if written.port.is_some() {
            return bad(&format!("service upstream \"{text}\" may not have port"));
        }
        if written.literal(NO_PORT).is_some() {
            return bad(&format!("service upstream \"{text}\" requires domain name"));
        }
        return Ok(written);
    }
    if default_port.is_none() && written.port.is_none() && !written.unix {
        let text = format!("no port in server \"{text}\"");
        return Err(ApiError::BadAddress(text));
    }
    Ok(written)
}

/// The port of a server whose real port is the result of an SRV lookup.
const NO_PORT: u16 = 0;

/// Checks that a group may be changed.
fn changeable(block: &Block) -> Result<(), ApiError> {
    match &block.zone {
        Some(_) => Ok(()),
        None => Err(ApiError::UpstreamStatic),
    }
}

/// Adds a server to a group.
pub(super) async fn add(
    request: &Request,
    block: &Block,
    written: MemberPatch,
    user: &Bytes,
) -> Result<Member, ApiError> {
    changeable(block)?;
    if written.id.is_some() {
        return Err(ApiError::UnknownParameter("id".to_owned()));
    }
    let roster = block.group.roster().newest();
    let side = written.side.unwrap_or(PeerSide::Peers);
    if side == PeerSide::Backups && !roster.method().takes_backups() {
        return Err(ApiError::NoBackup(name_of(block)));
    }
    let mut patch = written.patch;
    let server = written.server.ok_or(ApiError::MissingServer)?;
    let service = written.service;
    let address = address_of(&server, service.as_ref(), block.default_port)?;
    let port = block.default_port.unwrap_or(NO_PORT);
    let adding = match address.literal(port) {
        Some(address) => {
            let mut peer = Peer::new(address);
            named(&peer.name, &mut patch);
            peer.id = hash_of(&peer.name);
            peer.patch(&patch);
            roster.prepare(&mut peer);
            Edit::Add(Box::new(peer), side)
        }
        None if !roster.takes_hosts() => return Err(ApiError::NoResolver),
        None => {
            let bad = |error| ApiError::BadAddress(format!("{error} while parsing \"{server}\""));
            let mut host = host_of(&address, service, port, side).map_err(bad)?;
            host.template.patch(&patch);
            roster.prepare(&mut host.template);
            Edit::AddHost(Box::new(host))
        }
    };
    let member = edit(block, adding).await?;
    let what = format_args!("added with {}", written.text);
    tell(request, block, member.number, &member.peer, what, user);
    Ok(member)
}

/// Changes the server with this number.
pub(super) async fn change(
    request: &Request,
    block: &Block,
    id: u64,
    written: MemberPatch,
    user: &Bytes,
) -> Result<Member, ApiError> {
    changeable(block)?;
    let member = find(block, id)?;
    // Values that cannot be changed are accepted if they equal the current ones.
    if written.side.is_some_and(|side| side != member.side) {
        return Err(ApiError::BadValue("backup", "UpstreamConfFormatError"));
    }
    if written.id.is_some_and(|written| written != id) {
        return Err(ApiError::BadValue("id", "UpstreamConfFormatError"));
    }
    let host = match &member.origin {
        Origin::Host(listed) => Some(&listed.host),
        Origin::Address | Origin::Lookup(..) => None,
    };
    let service = host.and_then(|host| host.service.as_ref());
    if written.service.is_some() && written.service.as_ref() != service {
        return Err(ApiError::BadValue("service", "UpstreamConfFormatError"));
    }
    let mut patch = written.patch;
    let is_routed = member.peer.id != hash_of(&member.peer.name);
    if let Some(server) = &written.server {
        let address = address_of(server, service, block.default_port)?;
        let port = block.default_port.unwrap_or(NO_PORT);
        match (address.literal(port), host) {
            (None, Some(host)) if is_same(host, &address, port) => {}
            (_, Some(_)) => return Err(ApiError::ServerImmutable(id)),
            (Some(address), None) => {
                let name = Bytes::from(address.to_string());
                if !is_routed && patch.id.is_none() {
                    patch.id = Some(hash_of(&name));
                }
                named(&name, &mut patch);
                patch.address = Some((address, name));
            }
            (None, None) if matches!(member.origin, Origin::Lookup(..)) => {
                return Err(ApiError::ServerImmutable(id));
            }
            (None, None) => {
                let text = format!("invalid server argument: \"{server}\" is not an address");
                return Err(ApiError::BadAddress(text));
            }
        }
    } else if host.is_none() {
        named(&member.peer.name, &mut patch);
    }
    let changed = edit(block, Edit::Change(id, Box::new(patch))).await;
    let member = changed.map_err(|failure| match failure {
        // For changes, NGINX Plus documents no error about a conflict.
        ApiError::EntryExists => {
            ApiError::BadAddress("address of another server of the group".to_owned())
        }
        failure => failure,
    })?;
    let what = format_args!("changed by {}", written.text);
    tell(request, block, id, &member.peer, what, user);
    Ok(member)
}

/// Whether the written address has the name and the port of this host. The port is ignored for a
/// host with a service, whose SRV lookups return the port.
fn is_same(host: &Host, written: &WrittenAddress<'_>, default_port: u16) -> bool {
    let name = written.name.strip_suffix(b".").unwrap_or(written.name);
    let port = written.port.unwrap_or(default_port);
    name.eq_ignore_ascii_case(&host.name) && (port == host.port || host.service.is_some())
}

/// Replaces an empty route with the identifier that is derived from `name`, the server's address.
fn named(name: &[u8], patch: &mut Patch) {
    if patch.id.as_ref().is_some_and(Bytes::is_empty) {
        patch.id = Some(hash_of(name));
    }
}

/// Removes the server with this number from its group.
pub(super) async fn remove(
    request: &Request,
    block: &Block,
    id: u64,
    user: &Bytes,
) -> Result<(), ApiError> {
    changeable(block)?;
    find(block, id)?;
    let member = edit(block, Edit::Remove(id)).await?;
    let what = format_args!("removed");
    tell(request, block, id, &member.peer, what, user);
    Ok(())
}

/// The server with this number.
pub(super) fn find(block: &Block, id: u64) -> Result<Member, ApiError> {
    let mut members = block.group.roster().newest().servers().into_iter();
    let found = members.find(|member| member.number == id);
    found.ok_or(ApiError::ServerNotFound(id))
}

/// Edits a group. Writing its file may take time, during which other edits wait.
async fn edit(block: &Block, edit: Edit) -> Result<Member, ApiError> {
    let roster = block.group.roster();
    let id = match &edit {
        Edit::Add(..) | Edit::AddHost(_) => 0,
        Edit::Change(id, _) | Edit::Remove(id) => *id,
    };
    let now = engine::now();
    let done = if roster.is_kept() {
        let roster = roster.clone();
        engine::blocking_long(move || roster.edit(edit, now)).await
    } else {
        roster.edit(edit, now)
    };
    done.map_err(|refusal| match refusal {
        MemberError::NotFound => ApiError::ServerNotFound(id),
        MemberError::Immutable => ApiError::ServerImmutable(id),
        MemberError::WeightImmutable => ApiError::WeightImmutable(id),
        MemberError::Exists => ApiError::EntryExists,
        MemberError::NoResolver => ApiError::NoResolver,
        MemberError::Full => ApiError::OutOfMemory(name_of(block)),
        MemberError::Unwritten(error) => {
            let (name, error) = (logs::Printable(&block.group.name), logs::Errno(&error));
            logs::event!(
                Crit,
                "state of upstream \"{name}\" could not be written {error}"
            );
            ApiError::StateNotWritten
        }
    })
}

fn name_of(block: &Block) -> String {
    String::from_utf8_lossy(&block.group.name).into_owned()
}

/// Logs a change and its author; the log line also contains the client.
fn tell(
    request: &Request,
    block: &Block,
    id: u64,
    peer: &Peer,
    what: std::fmt::Arguments<'_>,
    user: &Bytes,
) {
    let by = if user.is_empty() {
        String::new()
    } else {
        format!(", by user \"{}\"", logs::Printable(user))
    };
    logs::error!(
        request,
        Notice,
        "api: server {} ({id}) of upstream \"{}\" {what}{by}",
        logs::Printable(&peer.name),
        logs::Printable(&block.group.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes from nginx.org's description of the API.
    #[test]
    fn bodies_that_are_refused() {
        let format = "UpstreamConfFormatError";
        for (body, expected) in [
            ("", ApiError::Json),
            ("[]", ApiError::Json),
            ("{", ApiError::Json),
            ("{\"weight\":1}x", ApiError::Json),
            ("{\"weight\":{}}", ApiError::Nested),
            ("{\"server\":[\"a\"]}", ApiError::Nested),
            ("{\"x\":1}", ApiError::UnknownParameter("x".into())),
            ("{\"server\":1}", ApiError::BadValue("server", format)),
            ("{\"down\":\"yes\"}", ApiError::BadValue("down", format)),
            ("{\"drain\":1}", ApiError::BadValue("drain", format)),
            ("{\"backup\":null}", ApiError::BadValue("backup", format)),
            (
                "{\"weight\":0}",
                ApiError::BadValue("weight", "UpstreamBadWeight"),
            ),
            (
                "{\"weight\":1.5}",
                ApiError::BadValue("weight", "UpstreamBadWeight"),
            ),
            (
                "{\"weight\":65536}",
                ApiError::BadValue("weight", "UpstreamBadWeight"),
            ),
            (
                "{\"max_conns\":-1}",
                ApiError::BadValue("max_conns", "UpstreamBadMaxConns"),
            ),
            (
                "{\"max_fails\":18446744073709551616}",
                ApiError::BadValue("max_fails", "UpstreamBadMaxFails"),
            ),
            (
                "{\"fail_timeout\":\"1x\"}",
                ApiError::BadValue("fail_timeout", "UpstreamBadFailTimeout"),
            ),
            (
                "{\"slow_start\":5}",
                ApiError::BadValue("slow_start", "UpstreamBadSlowStart"),
            ),
            (
                "{\"route\":\"123456789012345678901234567890123\"}",
                ApiError::BadValue("route", "UpstreamBadRoute"),
            ),
            (
                "{\"service\":\"\"}",
                ApiError::BadValue("service", "UpstreamBadService"),
            ),
        ] {
            assert_eq!(
                MemberPatch::parse(body.as_bytes()).unwrap_err(),
                expected,
                "{body}"
            );
        }
        let deep = "[".repeat(100_000);
        assert_eq!(
            MemberPatch::parse(deep.as_bytes()).unwrap_err(),
            ApiError::Json
        );
    }

    /// Texts from nginx.org's description of the API.
    #[test]
    fn addresses_that_are_refused() {
        let service = Bytes::from("http");
        for (text, service, default_port, expected) in [
            (
                "127.0.0.1:0",
                None,
                Some(80),
                "invalid port while parsing \"127.0.0.1:0\"",
            ),
            (
                "a\0b",
                None,
                Some(80),
                "invalid host while parsing \"a\0b\"",
            ),
            (
                "peers.example",
                None,
                None,
                "no port in server \"peers.example\"",
            ),
            (
                "peers.example:80",
                Some(&service),
                Some(80),
                "service upstream \"peers.example:80\" may not have port",
            ),
            (
                "127.0.0.1",
                Some(&service),
                None,
                "service upstream \"127.0.0.1\" requires domain name",
            ),
        ] {
            assert_eq!(
                address_of(text, service, default_port).map(drop),
                Err(ApiError::BadAddress(expected.to_owned())),
                "{text}"
            );
        }
        assert!(address_of("peers.example", Some(&service), None).is_ok());
    }

    #[test]
    fn a_server_is_asked_always_by_name_or_never() {
        for (body, expected) in [
            ("{}", None),
            ("{\"down\":true}", Some(Availability::Down)),
            ("{\"down\":true,\"drain\":true}", Some(Availability::Down)),
            (
                "{\"drain\":true,\"down\":false}",
                Some(Availability::Draining),
            ),
            ("{\"down\":false}", Some(Availability::Up)),
            ("{\"drain\":false}", Some(Availability::Up)),
        ] {
            let written = MemberPatch::parse(body.as_bytes()).unwrap();
            assert_eq!(written.patch.standing, expected, "{body}");
        }
    }
}
