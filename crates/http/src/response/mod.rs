//! The head of a response while it is being made. The exchange encodes and sends it.

pub mod chain;
pub mod error_page;
pub mod memory;
pub mod not_modified;
pub mod output;
pub mod piece;
pub mod prebuilt;
pub mod range;
pub mod recall;
pub mod source;
pub mod spill;
pub mod status_page;

use bytes::Bytes;
use engine::file::Metadata;
use proto::date;

/// A header field. Fields are sent in the order of their list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name as it is sent.
    pub name: Bytes,
    /// Value as it is sent.
    pub value: Bytes,
}

/// The head of a response. Fields that nginx sends at a fixed position have a member of their own.
/// All others are in `fields`, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// Status code; 0 until a response has been made.
    pub status: u16,
    /// The text of an upstream's status line (`404 Nowhere`), sent as received.
    pub status_text: Option<Bytes>,
    /// The value of Server in place of Tidegate's own. If empty, an upstream's Server is among
    /// `fields`.
    pub server: Option<Bytes>,
    /// The value of Date in place of Tidegate's own. If empty, an upstream's Date is among
    /// `fields`.
    pub date: Option<Bytes>,
    /// Content-Type without the charset that `charset` appends.
    pub content_type: Bytes,
    /// The charset that is appended to Content-Type.
    pub charset: Bytes,
    /// The parameters that an upstream sent after the media type, with the leading `; `. They are
    /// sent in place of `charset`.
    pub content_type_parameters: Bytes,
    /// Length of the body in bytes, if known.
    pub content_length: Option<u64>,
    /// Last-Modified in seconds since 1970.
    pub last_modified: Option<i64>,
    /// Whether the response has a Last-Modified that its status ignores: the client gets the one
    /// among the fields, and `$sent_http_last_modified` is not set.
    pub ignores_last_modified: bool,
    /// The Location. A value that begins with `/` is made absolute if `absolute_redirect` is on.
    /// Any other value is sent before the other fields.
    pub location: Option<Bytes>,
    /// The value of the Location among the fields that was set last. `$sent_http_location` is only
    /// this value, even if other Location fields were added.
    pub location_field: Option<Bytes>,
    /// Whether `Vary: Accept-Encoding` is sent.
    pub vary_accept_encoding: bool,
    /// Whether clients may request ranges of the body.
    pub allow_ranges: bool,
    /// Whether only a single range is allowed, because the body cannot be read again.
    pub single_range: bool,
    /// All fields that have no member of their own.
    pub fields: Vec<Field>,
    /// Whether trailers will follow. HTTP/1.1 then sends chunks even if the length is known.
    pub expect_trailers: bool,
    /// Whether trailers may follow a body of known length, if the protocol permits that (HTTP/2).
    pub may_have_trailers: bool,
    /// Trailer fields, sent after a chunked body.
    pub trailers: Vec<Field>,
    /// Whether the response has no body, whatever its head says (HEAD, 204, 304).
    pub header_only: bool,
    /// Whether the client's conditions (`If-None-Match` and similar fields) are not evaluated,
    /// since an upstream has evaluated them.
    pub conditions_evaluated: bool,
    /// The content coding of the body, set by the handler or filter that encoded the body. It is
    /// among the fields as well. A `Content-Encoding` of `add_header` does not count.
    pub coding: Option<Bytes>,
    /// The handler's `Accept-Ranges`. It is among the fields as well. An `Accept-Ranges` of
    /// `add_header` does not count.
    pub accept_ranges: Option<Bytes>,
    /// The handler's `Content-Range`, with the same rules as `accept_ranges`.
    pub content_range: Option<Bytes>,
    /// The charset that an upstream prescribes in place of the configured one (`X-Accel-Charset`);
    /// empty if the upstream prescribes none.
    pub override_charset: Bytes,
    /// The identity of the body's content, so that a stored transformation of equal content may
    /// replace the body; `None` for content that cannot be identified.
    pub body_identity: Option<BodyIdentity>,
}

/// Identifies the content of a body: of a file as long as the file has not changed, or of a cache
/// entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyIdentity([u8; BodyIdentity::LENGTH]);

impl BodyIdentity {
    /// Bytes of an identity: a kind, and the data that distinguishes bodies of that kind.
    pub const LENGTH: usize = 1 + 5 * 8 + 2 * 4;

    const FILE: u8 = 1;
    const ENTRY: u8 = 2;

    /// The identity of a file; `None` if the file changed within the last two seconds, since
    /// another change could have the same timestamp.
    pub fn of_file(metadata: &Metadata) -> Option<BodyIdentity> {
        let now = i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX);
        let changed = metadata.mtime.max(metadata.ctime);
        (now.saturating_sub(changed) >= 2).then(|| {
            BodyIdentity::of(
                BodyIdentity::FILE,
                &[
                    &metadata.device.to_le_bytes(),
                    &metadata.inode.to_le_bytes(),
                    &metadata.size.to_le_bytes(),
                    &metadata.mtime.to_le_bytes(),
                    &metadata.ctime.to_le_bytes(),
                    &metadata.mtime_nanos.to_le_bytes(),
                    &metadata.ctime_nanos.to_le_bytes(),
                ],
            )
        })
    }

    /// The identity of a cache entry: the number of its store in this process, the entry's id in
    /// the store, and the entry's revision.
    pub fn of_entry(store: u64, id: [u8; 16], revision: u32) -> BodyIdentity {
        BodyIdentity::of(
            BodyIdentity::ENTRY,
            &[&store.to_le_bytes(), &id, &revision.to_le_bytes()],
        )
    }

    fn of(kind: u8, parts: &[&[u8]]) -> BodyIdentity {
        let mut bytes = [0; BodyIdentity::LENGTH];
        let kind = [kind];
        let parts = std::iter::once(&kind[..]).chain(parts.iter().copied());
        bytes
            .iter_mut()
            .zip(parts.flatten())
            .for_each(|(byte, part)| *byte = *part);
        BodyIdentity(bytes)
    }

    /// The identity as bytes.
    pub fn bytes(&self) -> &[u8; BodyIdentity::LENGTH] {
        &self.0
    }
}

impl Response {
    /// Sets the content coding of the body.
    pub fn set_coding(&mut self, coding: impl Into<Bytes>) {
        let coding = coding.into();
        self.add("Content-Encoding", coding.clone());
        self.coding = Some(coding);
    }

    /// Removes the handler's content coding. A field of `add_header` stays.
    pub fn remove_coding(&mut self) {
        let coding = self.coding.take();
        self.remove_one(b"Content-Encoding", coding);
    }

    /// Removes the field with this name whose value shares the memory of `value`; if there is none,
    /// the first with an equal value.
    fn remove_one(&mut self, name: &[u8], value: Option<Bytes>) {
        let Some(value) = value else {
            return;
        };
        let is_equal = |f: &Field| f.name.eq_ignore_ascii_case(name) && f.value == value;
        let is_it = |f: &Field| is_equal(f) && f.value.as_ptr() == value.as_ptr();
        let mut fields = self.fields.iter();
        let found = fields.position(is_it);
        if let Some(at) = found.or_else(|| self.fields.iter().position(is_equal)) {
            self.fields.remove(at);
        }
    }

    /// Sets the Content-Range, and replaces the handler's.
    pub fn set_content_range(&mut self, value: impl Into<Bytes>) {
        self.remove_content_range();
        let value = value.into();
        self.add("Content-Range", value.clone());
        self.content_range = Some(value);
    }

    /// Removes the handler's Content-Range. A field of `add_header` stays.
    pub fn remove_content_range(&mut self) {
        let range = self.content_range.take();
        self.remove_one(b"Content-Range", range);
    }

    /// Whether the body is encoded.
    pub fn is_coded(&self) -> bool {
        self.coding
            .as_ref()
            .is_some_and(|coding| !coding.is_empty())
    }

    /// Appends a field to the head.
    pub fn add(&mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.fields.push(Field {
            name: name.into(),
            value: value.into(),
        });
    }

    /// The value of the first field with this name, compared without ASCII case.
    pub fn field(&self, name: &[u8]) -> Option<&Bytes> {
        self.fields
            .iter()
            .find(|f| f.name.eq_ignore_ascii_case(name))
            .map(|f| &f.value)
    }

    /// Removes all fields with this name.
    pub fn remove(&mut self, name: &[u8]) {
        self.fields.retain(|f| !f.name.eq_ignore_ascii_case(name));
    }

    /// Sets the Location. A value that begins with `/` is completed by the exchange if `absolute`
    /// is set (`absolute_redirect`). Any other value is added to the fields.
    pub fn add_location(&mut self, value: Bytes, absolute: bool) {
        if absolute && value.first() == Some(&b'/') {
            self.location = Some(value);
            self.location_field = None;
        } else {
            self.location = None;
            self.location_field = Some(value.clone());
            self.add("Location", value);
        }
    }

    /// The target of the redirect, in `location` or among the fields.
    pub fn location(&self) -> Option<&Bytes> {
        self.location.as_ref().or_else(|| self.field(b"Location"))
    }

    /// Removes every Location.
    pub fn remove_location(&mut self) {
        self.location = None;
        self.location_field = None;
        self.remove(b"Location");
    }

    /// Replaces all fields with this name by one field.
    pub fn set(&mut self, name: &'static str, value: impl Into<Bytes>) {
        self.remove(name.as_bytes());
        self.add(name, value);
    }

    /// nginx's `ngx_http_clear_content_length`: the length of the body is no longer known.
    pub fn clear_content_length(&mut self) {
        self.content_length = None;
    }

    /// Sets the handler's Accept-Ranges.
    pub fn set_accept_ranges(&mut self, value: impl Into<Bytes>) {
        let value = value.into();
        self.add("Accept-Ranges", value.clone());
        self.accept_ranges = Some(value);
    }

    /// nginx's `ngx_http_clear_accept_ranges`: forbids ranges, since they would have no meaning for
    /// the changed body. A field of `add_header` stays.
    pub fn clear_ranges(&mut self) {
        self.allow_ranges = false;
        let ranges = self.accept_ranges.take();
        self.remove_one(b"Accept-Ranges", ranges);
    }

    /// nginx's `ngx_http_clear_etag`: removes the ETag that was set last. An earlier ETag stays; it
    /// belongs to a response that an error page replaces.
    pub fn clear_etag(&mut self) {
        let is_it = |field: &Field| field.name.eq_ignore_ascii_case(b"ETag");
        if let Some(at) = self.fields.iter().rposition(is_it) {
            self.fields.remove(at);
        }
    }

    /// Removes Last-Modified, as nginx's `ngx_http_clear_last_modified` does.
    pub fn clear_last_modified(&mut self) {
        self.last_modified = None;
        self.ignores_last_modified = false;
        self.remove(b"Last-Modified");
    }

    /// Removes the fields that a handler has set for a file that will not be sent.
    pub fn clear_file_fields(&mut self) {
        self.clear_etag();
        self.clear_last_modified();
        self.remove_coding();
        self.content_type = Bytes::new();
        self.allow_ranges = false;
        self.body_identity = None;
    }

    /// nginx's `ngx_http_weak_etag`: makes the ETag weak, since the bytes of the body change but
    /// not its meaning.
    pub fn weaken_etag(&mut self) {
        if let Some(field) = self
            .fields
            .iter_mut()
            .find(|f| f.name.eq_ignore_ascii_case(b"ETag"))
        {
            if field.value.starts_with(b"W/") {
                return;
            }
            if field.value.first() == Some(&b'"') {
                let mut weak = Vec::with_capacity(field.value.len() + 2);
                weak.extend_from_slice(b"W/");
                weak.extend_from_slice(&field.value);
                field.value = weak.into();
            } else {
                self.remove(b"ETag");
            }
        }
    }

    /// Clears the response for another request, and keeps the capacity.
    pub fn clear(&mut self) {
        if self.is_untouched() {
            self.status = 0;
            return;
        }
        let mut fields = std::mem::take(&mut self.fields);
        let mut trailers = std::mem::take(&mut self.trailers);
        fields.clear();
        trailers.clear();
        *self = Response {
            fields,
            trailers,
            ..Response::default()
        };
    }

    /// Whether only the status has been set, as it is after a prebuilt response.
    fn is_untouched(&self) -> bool {
        // The pattern names every field, so that a new field does not compile before it is compared
        // here.
        let Response {
            status: _,
            status_text,
            server,
            date,
            content_type,
            charset,
            content_type_parameters,
            content_length,
            last_modified,
            ignores_last_modified,
            location,
            location_field,
            vary_accept_encoding,
            allow_ranges,
            single_range,
            fields,
            expect_trailers,
            may_have_trailers,
            trailers,
            header_only,
            conditions_evaluated,
            coding,
            accept_ranges,
            content_range,
            override_charset,
            body_identity,
        } = self;
        content_type.is_empty()
            && content_length.is_none()
            && last_modified.is_none()
            && !ignores_last_modified
            && fields.is_empty()
            && trailers.is_empty()
            && status_text.is_none()
            && location.is_none()
            && location_field.is_none()
            && server.is_none()
            && date.is_none()
            && charset.is_empty()
            && content_type_parameters.is_empty()
            && !header_only
            && !conditions_evaluated
            && override_charset.is_empty()
            && coding.is_none()
            && accept_ranges.is_none()
            && content_range.is_none()
            && !allow_ranges
            && !single_range
            && !expect_trailers
            && !may_have_trailers
            && !vary_accept_encoding
            && body_identity.is_none()
    }
}

/// The time at which the response was last modified, in seconds since 1970: set by the handler, or
/// by a field of an upstream or of `add_header`.
pub fn last_modified(response: &Response) -> Option<i64> {
    response.last_modified.or_else(|| {
        response
            .field(b"Last-Modified")
            .and_then(|value| date::parse_http(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_alone_is_forgotten() {
        fn text() -> Option<Bytes> {
            Some(Bytes::from_static(b"x"))
        }
        let fills: [fn(&mut Response); 26] = [
            |response| response.body_identity = Some(BodyIdentity::of_entry(0, [0; 16], 0)),
            |response| response.status = 204,
            |response| response.status_text = text(),
            |response| response.server = text(),
            |response| response.date = text(),
            |response| response.content_type = "text/x".into(),
            |response| response.charset = "utf-8".into(),
            |response| response.content_type_parameters = "; x".into(),
            |response| response.content_length = Some(0),
            |response| response.last_modified = Some(0),
            |response| response.ignores_last_modified = true,
            |response| response.location = text(),
            |response| response.location_field = text(),
            |response| response.vary_accept_encoding = true,
            |response| response.allow_ranges = true,
            |response| response.single_range = true,
            |response| response.add("X-A", "b"),
            |response| response.expect_trailers = true,
            |response| response.may_have_trailers = true,
            |response| {
                response.add("X-A", "b");
                std::mem::swap(&mut response.fields, &mut response.trailers);
            },
            |response| response.header_only = true,
            |response| response.conditions_evaluated = true,
            |response| response.coding = text(),
            |response| response.accept_ranges = text(),
            |response| response.content_range = text(),
            |response| response.override_charset = "utf-8".into(),
        ];
        let new = format!("{:?}", Response::default());
        for fill in fills {
            let mut response = Response::default();
            fill(&mut response);
            assert_ne!(format!("{response:?}"), new);
            response.clear();
            assert_eq!(format!("{response:?}"), new);
        }
    }
}
