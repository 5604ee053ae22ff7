//! The file of a `keyval_zone`: one JSON object of `"key":"value"`, or
//! `"key":{"value":…,"expire":…}` with the remaining milliseconds.

use std::time::Duration;

use base::json;
use bytes::Bytes;
use serde_json::{Map, Value};

/// A pair in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPair {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The remaining time until the pair expires; `None` if it does not expire.
    pub rest: Option<Duration>,
}

/// Parses a file.
///
/// # Errors
/// A text for the error message, if the file is not valid.
pub(super) fn parse(text: &[u8]) -> Result<Vec<SavedPair>, String> {
    let pairs: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let saved = pairs.into_iter().map(|(key, value)| {
        let rest = value.get("expire").and_then(Value::as_u64);
        let text = value.as_str().or_else(|| value.get("value")?.as_str());
        let text = text.ok_or_else(|| format!("no value of \"{key}\""))?;
        Ok(SavedPair {
            value: Bytes::copy_from_slice(text.as_bytes()),
            key: key.into(),
            rest: rest.map(Duration::from_millis),
        })
    });
    saved.collect()
}

/// The text of a file with these pairs.
pub(super) fn text(pairs: &[SavedPair]) -> Vec<u8> {
    let mut json = json::Writer::default();
    json.object(|json| {
        for SavedPair { key, value, rest } in pairs {
            let value = String::from_utf8_lossy(value);
            json.key(&String::from_utf8_lossy(key));
            match rest {
                None => json.string(&value),
                Some(rest) => json.object(|json| {
                    json.key("value").string(&value);
                    json.key("expire").number(rest.as_millis());
                }),
            }
        }
    });
    let mut text = json.into_bytes();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let saved = |key: &'static str, value: &'static str, rest: Option<u64>| SavedPair {
            key: key.into(),
            value: value.into(),
            rest: rest.map(Duration::from_millis),
        };
        let all = vec![saved("a", "1\"\n", None), saved("b", "", Some(1500))];
        let text = text(&all);
        assert_eq!(
            text,
            b"{\"a\":\"1\\\"\\n\",\"b\":{\"value\":\"\",\"expire\":1500}}\n"
        );
        assert_eq!(parse(&text), Ok(all));
        for broken in ["", "[]", "{\"a\":1}", "{\"a\":{\"expire\":1}}", "{"] {
            assert!(parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
