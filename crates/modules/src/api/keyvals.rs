//! Key-value pairs of `keyval_zone` in the API.

use std::sync::Arc;
use std::time::Duration;

use base::json;
use bytes::Bytes;
use framework::zone::Zone;
use http::request::Request;
use rules::keyval::pairs::{Edit, PairError, Pairs};
use serde_json::{Map, Value};

use super::failure::ApiError;
use super::show::{self, Fields};

/// The zones of the block `of`, `http` or `stream`, in the order of the configuration.
fn zones(request: &Request, of: &str) -> Vec<Arc<Zone<Pairs>>> {
    let zones = &request.local.generation.zones;
    let known = zones
        .iter()
        .filter_map(|zone| zones.find::<Pairs>(zone.name()));
    known.filter(|zone| zone.settings().block == of).collect()
}

/// The zone with this name in the block `of`.
fn zone(request: &Request, of: &str, name: &Bytes) -> Result<Arc<Zone<Pairs>>, ApiError> {
    let mut zones = zones(request, of).into_iter();
    let found = zones.find(|zone| zone.name().as_bytes() == name);
    found.ok_or(ApiError::KeyvalNotFound)
}

/// Writes the pairs of all zones.
pub(super) fn all(request: &Request, of: &str, json: &mut json::Writer, fields: &Fields) {
    json.object(|json| {
        for zone in zones(request, of) {
            json.key(zone.name());
            if fields.are_none() {
                json.object(|_| ())
            } else {
                pairs(&zone.state().all(zone.settings()), json)
            }
        }
    });
}

/// Writes the pairs of a zone, or the pair that the argument `key` names.
pub(super) fn one(
    request: &Request,
    of: &str,
    name: &Bytes,
    json: &mut json::Writer,
) -> Result<(), ApiError> {
    let zone = zone(request, of, name)?;
    let all = match show::argument(request, b"key") {
        None => zone.state().all(zone.settings()),
        Some(key) => {
            let value = zone.state().value(zone.settings(), &key);
            let value = value.ok_or(ApiError::KeyNotFound)?;
            vec![(Bytes::copy_from_slice(&key), value)]
        }
    };
    pairs(&all, json);
    Ok(())
}

/// Writes pairs as an object.
fn pairs(pairs: &[(Bytes, Bytes)], json: &mut json::Writer) {
    json.object(|json| {
        for (key, value) in pairs {
            json.key(&String::from_utf8_lossy(key))
                .string(&String::from_utf8_lossy(value));
        }
    });
}

/// Adds one or more pairs to the zone; an error if the zone has one of the keys already.
pub(super) async fn add(
    request: &Request,
    of: &str,
    name: &Bytes,
    body: &[u8],
    user: &Bytes,
) -> Result<(), ApiError> {
    let zone = zone(request, of, name)?;
    let written = parse(body)?;
    let mut added = Vec::new();
    for (key, written) in written {
        let value = written
            .value
            .ok_or(ApiError::KeyvalFormat("invalid value"))?;
        added.push((key, value, written.expire));
    }
    let what = match added.as_slice() {
        [] => return Err(ApiError::KeyvalFormat("key required")),
        [(key, ..)] => format!("key \"{}\" is added", logs::Printable(key)),
        many => format!("{} keys are added", many.len()),
    };
    edit(&zone, Edit::Add(added)).await?;
    tell(request, &zone, &what, user);
    Ok(())
}

/// Changes a pair, or removes it.
pub(super) async fn change(
    request: &Request,
    of: &str,
    name: &Bytes,
    body: &[u8],
    user: &Bytes,
) -> Result<(), ApiError> {
    let zone = zone(request, of, name)?;
    let mut written = parse(body)?.into_iter();
    let (key, written) = match (written.next(), written.next()) {
        (None, _) => return Err(ApiError::KeyvalFormat("key required")),
        (_, Some(_)) => return Err(ApiError::KeyvalFormat("only one key can be updated")),
        (Some(one), None) => one,
    };
    let (what, change) = match (written.value, written.expire) {
        (None, None) => ("removed", Edit::Remove(key.clone())),
        (value, expire) => ("changed", Edit::Change(key.clone(), value, expire)),
    };
    edit(&zone, change).await?;
    let what = format!("key \"{}\" is {what}", logs::Printable(&key));
    tell(request, &zone, &what, user);
    Ok(())
}

/// Removes all pairs of a zone.
pub(super) async fn clear(
    request: &Request,
    of: &str,
    name: &Bytes,
    user: &Bytes,
) -> Result<(), ApiError> {
    let zone = zone(request, of, name)?;
    edit(&zone, Edit::Clear).await?;
    tell(request, &zone, "every key is removed", user);
    Ok(())
}

/// The change that a body requests for a key; `null` stands for no value, which removes the key.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeyvalPatch {
    value: Option<Bytes>,
    expire: Option<Duration>,
}

fn parse(body: &[u8]) -> Result<Vec<(Bytes, KeyvalPatch)>, ApiError> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|_| ApiError::Json)?;
    let pairs = body.into_iter().map(|(key, value)| {
        let written = match value {
            Value::Null => KeyvalPatch::default(),
            Value::String(value) => KeyvalPatch {
                value: Some(value.into()),
                expire: None,
            },
            Value::Object(members) => of_members(members)?,
            _ => return Err(ApiError::KeyvalFormat("invalid value")),
        };
        Ok((Bytes::from(key), written))
    });
    pairs.collect()
}

fn of_members(members: Map<String, Value>) -> Result<KeyvalPatch, ApiError> {
    let mut written = KeyvalPatch::default();
    for (name, value) in members {
        match (name.as_str(), value) {
            ("value", Value::String(value)) => written.value = Some(value.into()),
            ("expire", value) => {
                let expire = value
                    .as_u64()
                    .ok_or(ApiError::KeyvalFormat("invalid expire"))?;
                written.expire = Some(Duration::from_millis(expire));
            }
            _ => return Err(ApiError::KeyvalFormat("invalid value")),
        }
    }
    if written == KeyvalPatch::default() {
        Err(ApiError::KeyvalFormat("invalid value"))
    } else {
        Ok(written)
    }
}

/// Edits a zone. Writing its file may take time, during which other edits wait.
async fn edit(zone: &Arc<Zone<Pairs>>, edit: Edit) -> Result<(), ApiError> {
    let done = if zone.settings().file.is_some() {
        let zone = Arc::clone(zone);
        engine::blocking_long(move || zone.state().edit(zone.settings(), &edit)).await
    } else {
        zone.state().edit(zone.settings(), &edit)
    };
    done.map_err(|refusal| match refusal {
        PairError::NotFound => ApiError::KeyNotFound,
        PairError::Exists => ApiError::KeyExists,
        PairError::OnlyOne => ApiError::KeyvalFormat("only one key can be added"),
        PairError::BadKey => ApiError::KeyvalFormat("invalid key format"),
        PairError::NoTimeout => ApiError::KeyvalFormat("keyval timeout is not enabled"),
        PairError::Full => ApiError::KeyvalFull,
        PairError::Unwritten(error) => {
            let error = logs::Errno(&error);
            logs::event!(
                Crit,
                "state of keyval zone \"{}\" could not be written {error}",
                zone.name()
            );
            ApiError::StateNotWritten
        }
    })
}

/// Logs a change and its author. Values are not logged, since they may be secret.
fn tell(request: &Request, zone: &Zone<Pairs>, what: &str, user: &Bytes) {
    let by = if user.is_empty() {
        String::new()
    } else {
        format!(", by user \"{}\"", logs::Printable(user))
    };
    logs::error!(
        request,
        Notice,
        "api: keyval zone \"{}\": {what}{by}",
        zone.name()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies() {
        let written = |value: Option<&'static str>, expire: Option<u64>| KeyvalPatch {
            value: value.map(Bytes::from),
            expire: expire.map(Duration::from_millis),
        };
        for (body, expected) in [
            (r#"{"a":"1"}"#, Ok(written(Some("1"), None))),
            (r#"{"a":null}"#, Ok(written(None, None))),
            (
                r#"{"a":{"value":"1","expire":5}}"#,
                Ok(written(Some("1"), Some(5))),
            ),
            (r#"{"a":{"expire":5}}"#, Ok(written(None, Some(5)))),
            (r#"{"a":1}"#, Err(ApiError::KeyvalFormat("invalid value"))),
            (r#"{"a":[]}"#, Err(ApiError::KeyvalFormat("invalid value"))),
            (r#"{"a":{}}"#, Err(ApiError::KeyvalFormat("invalid value"))),
            (
                r#"{"a":{"x":1}}"#,
                Err(ApiError::KeyvalFormat("invalid value")),
            ),
            (
                r#"{"a":{"expire":-1}}"#,
                Err(ApiError::KeyvalFormat("invalid expire")),
            ),
            ("", Err(ApiError::Json)),
            ("[]", Err(ApiError::Json)),
        ] {
            let found = parse(body.as_bytes());
            let found = found.map(|mut all| all.pop().unwrap().1);
            assert_eq!(found, expected, "{body}");
        }
    }
}
