//! Distinguished names as OpenSSL writes them: RFC 2253, and OpenSSL's older format.

use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{
    BmpString, Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef,
};
use x509_cert::der::{Encode, Tag, Tagged};
use x509_cert::name::Name;

const COMMON_NAME: &str = "2.5.4.3";

/// Short names of attribute types by OID.
const SHORT: [(&str, &str); 16] = [
    (COMMON_NAME, "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The first common name of a subject, as text.
pub fn common_name(name: &Name) -> Option<Vec<u8>> {
    let named = |attribute: &&AttributeTypeAndValue| attribute.oid.to_string() == COMMON_NAME;
    name.iter().find(named).and_then(value)
}

/// Appends a name as `CN=anna,O=Example,C=NL`: the last part first, special characters escaped (RFC
/// 2253).
pub fn append_rfc2253(name: &Name, out: &mut Vec<u8>) {
    let parts: Vec<_> = name.iter_rdn().collect();
    for (at, part) in parts.iter().rev().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        for (at, attribute) in part.iter().enumerate() {
            if at > 0 {
                out.push(b'+');
            }
            append_type(attribute, out);
            out.push(b'=');
            match value(attribute) {
                Some(text) => append_escaped(&text, out),
                None => append_dump(attribute, out),
            }
        }
    }
}

/// Appends a name in the older format, `/C=NL/O=Example/CN=anna`.
pub fn append_legacy(name: &Name, out: &mut Vec<u8>) {
    for attribute in name.iter() {
        out.push(b'/');
        append_type(attribute, out);
        out.push(b'=');
        for byte in value(attribute).unwrap_or_else(|| attribute.value.value().to_vec()) {
            match byte {
                b' '..=b'~' => out.push(byte),
                _ => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
            }
        }
    }
}

fn append_type(attribute: &AttributeTypeAndValue, out: &mut Vec<u8>) {
    let number = attribute.oid.to_string();
    let known = SHORT.iter().find(|(known, _)| *known == number);
    out.extend_from_slice(known.map_or(number.as_bytes(), |(_, name)| name.as_bytes()));
}

/// The value of an attribute of a string type, in UTF-8.
fn value(attribute: &AttributeTypeAndValue) -> Option<Vec<u8>> {
    let any = &attribute.value;
    let text = |text: &str| text.as_bytes().to_vec();
    Some(match any.tag() {
        Tag::Utf8String => text(any.decode_as::<Utf8StringRef<'_>>().ok()?.as_str()),
        Tag::PrintableString => text(any.decode_as::<PrintableStringRef<'_>>().ok()?.as_str()),
        Tag::Ia5String => text(any.decode_as::<Ia5StringRef<'_>>().ok()?.as_str()),
        Tag::TeletexString => text(any.decode_as::<TeletexStringRef<'_>>().ok()?.as_str()),
        Tag::BmpString => any.decode_as::<BmpString>().ok()?.to_string().into_bytes(),
        _ => return None,
    })
}

fn append_escaped(text: &[u8], out: &mut Vec<u8>) {
    for (at, byte) in text.iter().enumerate() {
        let at_end = at == 0 || at + 1 == text.len();
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.extend_from_slice(&[b'\\', *byte])
            }
            b'#' if at == 0 => out.extend_from_slice(b"\\#"),
            b' ' if at_end => out.extend_from_slice(b"\\ "),
            b' '..=b'~' => out.push(*byte),
            _ => out.extend_from_slice(format!("\\{byte:02X}").as_bytes()),
        }
    }
}

/// Appends a value that is not text: `#` and its DER encoding in hexadecimal digits.
fn append_dump(attribute: &AttributeTypeAndValue, out: &mut Vec<u8>) {
    out.push(b'#');
    for byte in attribute.value.to_der().unwrap_or_default() {
        out.extend_from_slice(format!("{byte:02X}").as_bytes());
    }
}
