//! What an application is told of a request: the lines of `fastcgi_param`, then the fields of the request.

use bytes::Bytes;
use http::log;
use http::request::Request;
use http::text::Text;
use proto::cgi::Variables;
use proto::fastcgi::{PARAMS_LENGTH_MAX, RequestWriter};

use super::settings::Settings;

/// What the name of a parameter begins with that stands for a field of the request.
const OF_FIELD: &[u8] = b"HTTP_";

/// A line of `fastcgi_param`.
pub(super) struct Param {
    pub(super) name: Bytes,
    pub(super) value: Text,
    /// It is left out where its value is empty.
    pub(super) if_not_empty: bool,
}

/// All of them.
pub(super) struct Params {
    sent: Vec<Param>,
    /// Names of fields for which there is a parameter: in lower case, with `_` for each dash.
    replaced: Vec<Box<[u8]>>,
}

impl Params {
    /// Those that are written, and those that are sent where nothing else is.
    pub(super) fn new(written: Vec<Param>) -> Params {
        let field_of = |param: &Param| -> Option<Box<[u8]>> {
            let name = param.name.strip_prefix(OF_FIELD)?;
            (!name.is_empty()).then(|| folded(name).collect())
        };
        let replaced = written.iter().filter_map(field_of).collect();
        // One that stands for a field and is empty only keeps that from the application.
        let is_sent = |param: &Param| {
            let is_empty = matches!(&param.value, Text::Literal(text) if text.is_empty());
            !(is_empty && field_of(param).is_some())
        };
        Params {
            sent: written.into_iter().filter(is_sent).collect(),
            replaced,
        }
    }

    /// Whether a field of the request is told by a parameter, or kept from the application by one.
    fn replace(&self, name: &[u8]) -> bool {
        let mut replaced = self.replaced.iter();
        replaced.any(|known| known.len() == name.len() && known.iter().copied().eq(folded(name)))
    }
}

/// A name as two that are the same have it.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_lowercase(),
    })
}

/// Writes a request up to its body; where it is too long the status to answer with.
pub(super) fn write(request: &mut Request, settings: &Settings) -> Result<Bytes, u16> {
    let mut head = Vec::with_capacity(2048);
    let mut value = Vec::new();
    let mut writer = RequestWriter::new(&mut head, settings.keep_connection);
    for param in &settings.params.sent {
        value.clear();
        param.value.append_to(request, &mut value);
        if !(param.if_not_empty && value.is_empty()) {
            writer.push(&param.name, &value);
        }
    }
    if settings.passing.pass_request_headers {
        let fields = || request.client.known_headers();
        for (at, (known, name, _)) in fields().enumerate() {
            let same = |other: &[u8]| other.eq_ignore_ascii_case(name);
            let is_told = fields().take(at).any(|(_, other, _)| same(other));
            if is_told || settings.params.replace(name) {
                continue;
            }
            let values = fields().filter(move |(other_known, other, _)| {
                *other_known == known && other.eq_ignore_ascii_case(name)
            });
            writer.push_field(name, values.map(|(_, _, value)| value));
        }
    }
    match writer.finish(PARAMS_LENGTH_MAX) {
        Ok(()) => Ok(head.into()),
        Err(too_long) => {
            log::error!(request, Alert, "{too_long}");
            Err(500)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &'static str, value: &'static str) -> Param {
        Param {
            name: name.into(),
            value: Text::Literal(value.into()),
            if_not_empty: false,
        }
    }

    #[test]
    fn a_parameter_replaces_the_field_of_its_name() {
        let params = Params::new(vec![
            param("HTTP_X_OWN", "a"),
            param("HTTP_PROXY", ""),
            param("SCRIPT_NAME", ""),
            param("HTTP_", ""),
        ]);
        for name in ["X-Own", "x_own", "PROXY", "proxy"] {
            assert!(params.replace(name.as_bytes()), "{name}");
        }
        for name in ["X-Owns", "Own", "Script-Name", ""] {
            assert!(!params.replace(name.as_bytes()), "{name}");
        }
        let sent: Vec<_> = params.sent.iter().map(|param| &*param.name).collect();
        assert_eq!(sent, [&b"HTTP_X_OWN"[..], b"SCRIPT_NAME", b"HTTP_"]);
    }
}
