//! Encodes the head of a response as a header block of static names and literals, so that the bytes
//! do not depend on the connection's dynamic table and can be reused on other connections.

use proto::h2::hpack::literal::{self, FieldName};
use proto::header::{KnownField, KnownSet, append_value, has_control};

use crate::exchange::fields::{self, HeadLine};
use crate::request::Request;
use crate::response::Field;

/// The fields about content, which a 204 does not have.
const OF_CONTENT: [&[u8]; 2] = [b"Content-Type", b"Content-Length"];

/// Writes the head of the request's response.
pub fn write(request: &mut Request, out: &mut Vec<u8>) {
    let status = request.response.status;
    literal::status(status, out);
    let mut joined = Vec::new();
    fields::for_each(request, |line| {
        if let HeadLine::Field(name, parts) = line {
            // As in nginx; a 204 must not have a length (RFC 9110, section 8.6).
            if status == 204 && OF_CONTENT.contains(&name) {
                return;
            }
            write_field(name, in_one_line(parts, &mut joined), out);
        }
    });
}

/// Concatenates the parts of a value, and replaces control characters. A single part without
/// control characters is returned as it is.
fn in_one_line<'a>(parts: &[&'a [u8]], joined: &'a mut Vec<u8>) -> &'a [u8] {
    if let [value] = parts
        && !has_control(value)
    {
        return value;
    }
    joined.clear();
    parts.iter().for_each(|part| append_value(part, joined));
    joined
}

/// Writes the head of an interim response with these fields.
pub fn write_informational(status: u16, fields: &[Field], out: &mut Vec<u8>) {
    literal::status(status, out);
    write_fields(fields, out);
}

/// Writes trailers as a header block.
pub fn write_fields(fields: &[Field], out: &mut Vec<u8>) {
    let mut joined = Vec::new();
    for field in fields {
        let value = in_one_line(&[&*field.value], &mut joined);
        write_field(&field.name, value, out);
    }
}

fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    // TE is a request field: clients treat TE in a response like a connection field.
    const LEFT_OUT: KnownSet = KnownSet::OF_CONNECTION.with(KnownField::Te);
    let of_connection = LEFT_OUT.contains(KnownField::from_name(name));
    // Connection fields are forbidden, and a name with a colon would be a pseudo-header.
    if !of_connection && !name.is_empty() && name.first() != Some(&b':') {
        literal::field(FieldName::of(name), value, out);
    }
}
