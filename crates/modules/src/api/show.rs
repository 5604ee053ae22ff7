//! Objects that contain only the requested fields.

use std::borrow::Cow;

use base::json;
use http::request::Request;

/// The fields of an object to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    All,
    /// The fields with these names: `fields=a,b`.
    Named(Vec<String>),
}

impl Fields {
    /// The fields that the arguments of a request select.
    pub(super) fn of(request: &Request) -> Fields {
        match argument(request, b"fields") {
            None => Fields::All,
            Some(names) => {
                let names = names
                    .split(|byte| *byte == b',')
                    .filter(|name| !name.is_empty());
                let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
                Fields::Named(names.collect())
            }
        }
    }

    /// Whether no field is selected, so that only names are shown.
    pub(super) fn are_none(&self) -> bool {
        matches!(self, Fields::Named(names) if names.is_empty())
    }

    /// Whether the field with this name is selected.
    fn show(&self, name: &str) -> bool {
        match self {
            Fields::All => true,
            Fields::Named(names) => names.iter().any(|known| known == name),
        }
    }
}

/// The value of an argument of the request, decoded.
pub(super) fn argument<'a>(request: &'a Request, name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let mut arguments = request.args.split(|byte| *byte == b'&');
    let value = arguments.find_map(|argument| argument.strip_prefix(name)?.strip_prefix(b"="))?;
    Some(decoded(value))
}

/// Decodes the escapes of a URI; an invalid escape is left unchanged.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return text.into();
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let byte = match tail {
            [high, low, ..] if *first == b'%' => hexadecimal(*high).zip(hexadecimal(*low)),
            _ => None,
        };
        match byte {
            Some((high, low)) => {
                out.push(high << 4 | low);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out.into()
}

fn hexadecimal(digit: u8) -> Option<u8> {
    let digit = char::from(digit).to_digit(16)?;
    u8::try_from(digit).ok()
}

/// An object under construction.
pub(super) struct Object<'a> {
    json: &'a mut json::Writer,
    fields: &'a Fields,
}

impl Object<'_> {
    /// Writes the field with this name if it is selected.
    pub(super) fn field(&mut self, name: &str, value: impl FnOnce(&mut json::Writer)) {
        if self.fields.show(name) {
            value(self.json.key(name));
        }
    }

    pub(super) fn number(&mut self, name: &str, number: u64) {
        self.field(name, |json| json.number(number));
    }

    pub(super) fn string(&mut self, name: &str, text: &[u8]) {
        self.field(name, |json| json.string(&String::from_utf8_lossy(text)));
    }

    pub(super) fn boolean(&mut self, name: &str, value: bool) {
        self.field(name, |json| json.boolean(value));
    }
}

/// Writes an object with the selected fields.
pub(super) fn object(
    json: &mut json::Writer,
    fields: &Fields,
    members: impl FnOnce(&mut Object<'_>),
) {
    json.object(|json| members(&mut Object { json, fields }));
}

/// Writes an object with all its fields.
pub(super) fn complete_object(json: &mut json::Writer, members: impl FnOnce(&mut Object<'_>)) {
    object(json, &Fields::All, members);
}

/// Writes an array of names.
pub(super) fn names(json: &mut json::Writer, names: &[&str]) {
    json.array(|json| names.iter().for_each(|name| json.string(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_asked_for() {
        let shown = |fields: &Fields| {
            let mut json = json::Writer::default();
            object(&mut json, fields, |object| {
                object.number("a", 1);
                object.string("b", b"x");
                object.boolean("c", true);
            });
            String::from_utf8(json.into_bytes()).unwrap()
        };
        assert_eq!(shown(&Fields::All), r#"{"a":1,"b":"x","c":true}"#);
        let named = Fields::Named(vec!["c".into(), "a".into(), "none".into()]);
        assert_eq!(shown(&named), r#"{"a":1,"c":true}"#);
        assert_eq!(shown(&Fields::Named(Vec::new())), "{}");
    }

    #[test]
    fn arguments_are_decoded() {
        for (text, expected) in [
            ("a,b", "a,b"),
            ("a%2Cb", "a,b"),
            ("a%2cb%", "a,b%"),
            ("%zz%4", "%zz%4"),
            ("%%41", "%A"),
        ] {
            assert_eq!(&*decoded(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
