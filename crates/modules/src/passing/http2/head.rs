//! The head of a request as HTTP/2 has it (RFC 9113, section 8.3.1).

use http::request::Request;
use proto::h2::hpack::Field;
use proto::header::{Known, NameSet};

use crate::passing::fields::SetField;

/// What fields there are of a connection, which HTTP/2 has not (RFC 9113, section 8.2.2).
const OF_CONNECTION: [&[u8]; 5] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
];

/// A head that is being written, field by field: the pseudo-fields first.
#[derive(Default)]
pub(crate) struct RequestHead {
    bytes: Vec<u8>,
    /// Where each name ends, and each value; the next name begins there.
    ends: Vec<(u32, u32)>,
}

impl RequestHead {
    /// An empty one with room for what is usual.
    pub(crate) fn new() -> RequestHead {
        RequestHead {
            bytes: Vec::with_capacity(1024),
            ends: Vec::with_capacity(16),
        }
    }

    /// Appends a field. Names become lower case; line breaks in values become spaces.
    pub(crate) fn put(&mut self, name: &[u8], value: &[u8]) {
        self.put_with(name, |out| proto::header::append_value(value, out));
    }

    /// The same with a value that `write` appends.
    pub(crate) fn put_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend(name.iter().map(u8::to_ascii_lowercase));
        let name_end = self.bytes.len() as u32;
        write(&mut self.bytes);
        self.ends.push((name_end, self.bytes.len() as u32));
    }

    /// Appends the length of the body.
    pub(crate) fn put_length(&mut self, length: u64) {
        self.put_with(b"content-length", |out| {
            variables::write::decimal(length, out);
        });
    }

    /// Appends the fields that directives set, but for `Host`, which is `:authority`. What is of a connection is left out, and `TE` says
    /// nothing but `trailers`.
    pub(crate) fn put_set(&mut self, request: &mut Request, fields: &[SetField]) {
        let mut value = Vec::new();
        for field in fields.iter().filter(|field| &*field.lower != b"host") {
            if OF_CONNECTION.contains(&&*field.lower) {
                continue;
            }
            value.clear();
            field.value.append_to(request, &mut value);
            let is_te = &*field.lower == b"te" && !value.eq_ignore_ascii_case(b"trailers");
            if !value.is_empty() && !is_te {
                self.put(&field.lower, &value);
            }
        }
    }

    /// Appends the client's fields but for those that are replaced.
    pub(crate) fn put_client(&mut self, request: &Request, replaced: &NameSet) {
        for (known, name, value) in request.client.known_headers() {
            if !replaced.contains(known, name) && !is_of_connection(known) {
                self.put(name, value);
            }
        }
    }

    /// The fields in their order.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |(name_end, value_end)| {
            let (name_end, value_end) = (*name_end as usize, *value_end as usize);
            let name = self.bytes.get(start..name_end).unwrap_or_default();
            let value = self.bytes.get(name_end..value_end).unwrap_or_default();
            start = value_end;
            Field::from((name, value))
        })
    }

    /// Bytes of all names and values.
    pub(crate) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }
}

fn is_of_connection(known: Known) -> bool {
    matches!(
        known,
        Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade
    )
}
