//! The head of an HTTP/2 request (RFC 9113, section 8.3.1).

use engine::Spares;
use http::request::Request;
use proto::h2::hpack::{FIELD_OVERHEAD, Field};
use proto::header::{KnownField, KnownSet, NameSet, append_value, has_control};

use crate::fields::SetField;

/// Maximum number of heads whose memory a thread keeps for reuse: about as many requests as begin
/// in one or two turns of the event loop on a few connections.
const KEPT_MAX: usize = 1024;

/// The capacity in bytes beyond which the memory of a head is not kept.
const KEPT_BYTES_MAX: usize = 4096;

thread_local! {
    static KEPT: Spares<RequestFields, KEPT_MAX> = const { Spares::new(|| KEPT.with(Spares::clear)) };
}

/// The head of a request, written field by field; pseudo-header fields must come first.
pub struct RequestHead {
    fields: RequestFields,
}

/// The fields of a head in their order.
#[derive(Default)]
struct RequestFields {
    bytes: Vec<u8>,
    /// The ends of each name and value; the next name begins at the end of the value.
    ends: Vec<(u32, u32)>,
}

impl Default for RequestHead {
    fn default() -> RequestHead {
        RequestHead::new()
    }
}

impl Drop for RequestHead {
    fn drop(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        if fields.bytes.capacity() > KEPT_BYTES_MAX {
            return;
        }
        fields.bytes.clear();
        fields.ends.clear();
        // A thread that is ending keeps nothing.
        let _ = KEPT.try_with(|kept| kept.keep(fields));
    }
}

impl RequestHead {
    /// An empty head with room for the usual length.
    pub fn new() -> RequestHead {
        let kept = KEPT.with(Spares::take);
        let fields = kept.unwrap_or_else(|| RequestFields {
            bytes: Vec::with_capacity(1024),
            ends: Vec::with_capacity(16),
        });
        RequestHead { fields }
    }

    /// Appends a field. Names become lower case; line breaks in values become spaces.
    pub fn put(&mut self, name: &[u8], value: &[u8]) {
        self.put_with(name, |out| out.extend_from_slice(value));
    }

    /// Appends a field whose value `write` appends.
    pub fn put_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.put_if(name, write, |_| true);
    }

    /// Appends a field whose value `write` appends. If `counts` rejects the value, removes the
    /// field again and returns false.
    fn put_if(
        &mut self,
        name: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
        counts: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let RequestFields { bytes, ends } = &mut self.fields;
        let start = bytes.len();
        bytes.extend(name.iter().map(u8::to_ascii_lowercase));
        let name_end = bytes.len();
        write(bytes);
        let value = bytes.get(name_end..).unwrap_or_default();
        if !counts(value) {
            bytes.truncate(start);
            return false;
        }
        if has_control(value) {
            let value = bytes.split_off(name_end);
            append_value(&value, bytes);
        }
        ends.push((name_end as u32, bytes.len() as u32));
        true
    }

    /// Appends `:authority`: the value that directives set for `Host` or, if there is none or it is
    /// empty, `usual`.
    pub fn put_authority(&mut self, request: &mut Request, fields: &[SetField], usual: &[u8]) {
        let host = fields.iter().rfind(|field| &*field.lower == b"host");
        let is_set = host.is_some_and(|host| {
            let write = |out: &mut Vec<u8>| host.value.append_to(request, out);
            self.put_if(b":authority", write, |value| !value.is_empty())
        });
        if !is_set {
            self.put(b":authority", usual);
        }
    }

    /// Appends the `content-length` of the body.
    pub fn put_length(&mut self, length: u64) {
        self.put_with(b"content-length", |out| {
            variables::write::decimal(length, out);
        });
    }

    /// Appends the fields that directives set, except for connection fields and `Host`, whose value
    /// is in `:authority`. `TE` may only be `trailers`.
    pub fn put_set(&mut self, request: &mut Request, fields: &[SetField]) {
        for field in fields.iter().filter(|field| &*field.lower != b"host") {
            if KnownSet::OF_CONNECTION.contains(KnownField::from_name(&field.lower)) {
                continue;
            }
            let write = |out: &mut Vec<u8>| field.value.append_to(request, out);
            let is_te = &*field.lower == b"te";
            self.put_if(&field.lower, write, |value| {
                if is_te {
                    value.eq_ignore_ascii_case(b"trailers")
                } else {
                    !value.is_empty()
                }
            });
        }
    }

    /// Appends the client's fields, except for those that directives replace.
    pub fn put_client(&mut self, request: &Request, replaced: &NameSet) {
        self.put_client_except(request, replaced, |_| false);
    }

    /// Appends the client's fields, except for those that directives replace or for which
    /// `is_held_back` returns true.
    pub fn put_client_except(
        &mut self,
        request: &Request,
        replaced: &NameSet,
        is_held_back: impl Fn(KnownField) -> bool,
    ) {
        for (known, name, value) in request.client.known_headers() {
            let is_replaced = replaced.contains(known, name) || is_held_back(known);
            if !is_replaced && !KnownSet::OF_CONNECTION.contains(known) {
                self.put(name, value);
            }
        }
    }

    /// The fields in order.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let RequestFields { bytes, ends } = &self.fields;
        let mut start = 0;
        ends.iter().map(move |(name_end, value_end)| {
            let (name_end, value_end) = (*name_end as usize, *value_end as usize);
            let name = bytes.get(start..name_end).unwrap_or_default();
            let value = bytes.get(name_end..value_end).unwrap_or_default();
            start = value_end;
            Field::from((name, value))
        })
    }

    /// The size of the field section as in SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, section 6.5.2).
    pub fn list_size(&self) -> usize {
        self.fields.bytes.len() + self.fields.ends.len() * FIELD_OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(head: &RequestHead) -> Vec<(Vec<u8>, Vec<u8>)> {
        let fields = head.fields();
        fields
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect()
    }

    #[test]
    fn names_are_in_lower_case_and_values_have_no_line_breaks() {
        let mut head = RequestHead::new();
        head.put(b"X-One", b"a\r\nx-two: b");
        head.put_with(b":path", |out| out.extend_from_slice(b"/a\nb"));
        let expected = [
            (b"x-one".to_vec(), b"a  x-two: b".to_vec()),
            (b":path".to_vec(), b"/a b".to_vec()),
        ];
        assert_eq!(written(&head), expected);
    }

    #[test]
    fn nothing_of_a_head_is_in_the_next_one_that_has_its_memory() {
        let mut head = RequestHead::new();
        head.put(b"authorization", b"secret");
        drop(head);
        assert!(KEPT.with(Spares::count) > 0);
        let mut head = RequestHead::new();
        assert!(written(&head).is_empty());
        head.put(b"a", b"b");
        assert_eq!(written(&head), [(b"a".to_vec(), b"b".to_vec())]);
        drop(head);
        let mut long = RequestHead::new();
        long.put(b"a", &[b'b'; KEPT_BYTES_MAX + 1]);
        drop(long);
        while let Some(fields) = KEPT.with(Spares::take) {
            assert!(fields.bytes.capacity() <= KEPT_BYTES_MAX);
        }
    }
}
