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

/// One header field in the order of sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name as it is sent.
    pub name: Bytes,
    /// Value as it is sent.
    pub value: Bytes,
}

/// The head of a response. Fields that nginx sends in a fixed place have a member here; all
/// others follow in `fields` in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// Status code; 0 until a response has been made.
    pub status: u16,
    /// The text of an upstream's status line (`404 Nowhere`), sent as received.
    pub status_text: Option<Bytes>,
    /// Replaces our Server field. If empty, an upstream's Server is among the fields.
    pub server: Option<Bytes>,
    /// Replaces our Date field. If empty, an upstream's Date is among the fields.
    pub date: Option<Bytes>,
    /// Content-Type without the charset that `charset` appends.
    pub content_type: Bytes,
    /// Charset appended to Content-Type.
    pub charset: Bytes,
    /// The parameters that an upstream sent after the media type, with the leading `; `; sent
    /// instead of `charset`.
    pub content_type_parameters: Bytes,
    /// Length of the body in bytes, if known.
    pub content_length: Option<u64>,
    /// Last-Modified in seconds since 1970.
    pub last_modified: Option<i64>,
    /// The status ignores `last_modified`: the client gets a Last-Modified among the fields, and
    /// `$sent_http_last_modified` is not set.
    pub ignores_last_modified: bool,
    /// Location; one that begins with `/` is made absolute if `absolute_redirect` is on, any
    /// other is sent before the rest of the fields.
    pub location: Option<Bytes>,
    /// The value of the Location among the fields that was set last, even if others were added:
    /// `$sent_http_location` is this value alone.
    pub location_field: Option<Bytes>,
    /// Whether `Vary: Accept-Encoding` is sent.
    pub vary_accept_encoding: bool,
    /// Whether clients may request ranges of the body.
    pub allow_ranges: bool,
    /// Only a single range is allowed (for a stream that cannot go back).
    pub single_range: bool,
    /// All fields that have no member of their own.
    pub fields: Vec<Field>,
    /// Whether trailers will follow: HTTP/1.1 then sends chunks even if the length is known.
    pub expect_trailers: bool,
    /// Whether trailers may follow a body of known length, if the protocol permits that (HTTP/2).
    pub may_have_trailers: bool,
    /// Trailer fields, sent after a chunked body.
    pub trailers: Vec<Field>,
    /// The response has no body whatever its head says (HEAD, 204, 304).
    pub header_only: bool,
    /// The client's conditions (`If-None-Match` and similar fields) are not evaluated here, since
    /// an upstream has evaluated them.
    pub conditions_evaluated: bool,
    /// The coding of the body, set by the handler or filter that encoded it. It is among the fields
    /// as well; a `Content-Encoding` of `add_header` does not count.
    pub coding: Option<Bytes>,
    /// The `Accept-Ranges` of the handler. It is among the fields as well; an `Accept-Ranges` of
    /// `add_header` does not count.
    pub accept_ranges: Option<Bytes>,
    /// The `Content-Range` of the handler, in the same way.
    pub content_range: Option<Bytes>,
    /// The charset that an upstream prescribes whatever the configuration says (`X-Accel-Charset`);
    /// empty if it prescribes none.
    pub override_charset: Bytes,
    /// The identity of a body that is the same each time, so that a stored transformation of the
    /// body may replace it.
    pub body_identity: Option<BodyIdentity>,
}

/// Identifies the content of a body: of a file as long as it has not changed, or of a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyIdentity([u8; BodyIdentity::LENGTH]);

impl BodyIdentity {
    /// Bytes of an identity: a kind, and the data that distinguishes bodies of that kind.
    pub const LENGTH: usize = 1 + 5 * 8 + 2 * 4;

    const FILE: u8 = 1;
    const ENTRY: u8 = 2;

    /// The identity of a file; `None` if it changed within the last two seconds, since another
    /// change could have the same time.
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

    /// The identity of a cache entry: the number of its store in this process, its id there, and
    /// its revision.
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
    /// Sets the coding of the body.
    pub fn set_coding(&mut self, coding: impl Into<Bytes>) {
        let coding = coding.into();
        self.add("Content-Encoding", coding.clone());
        self.coding = Some(coding);
    }

    /// Removes the coding, but not a field of `add_header`.
    pub fn remove_coding(&mut self) {
        let coding = self.coding.take();
        self.remove_one(b"Content-Encoding", coding);
    }

    /// Removes the field of this name whose value shares this value's memory, else the first with
    /// an equal value.
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

    /// Sets the Content-Range, and replaces that of the handler.
    pub fn set_content_range(&mut self, value: impl Into<Bytes>) {
        self.remove_content_range();
        let value = value.into();
        self.add("Content-Range", value.clone());
        self.content_range = Some(value);
    }

    /// Removes the Content-Range, but not a field of `add_header`.
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

    /// The value of the first field with this name, ASCII-case-insensitively.
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

    /// Sets Location: a value that begins with `/` is completed by the exchange if `absolute` is
    /// set (`absolute_redirect`); any other value is added to the fields.
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

    /// Removes the field Location, and returns it.
    pub fn remove_location(&mut self) {
        self.location = None;
        self.location_field = None;
        self.remove(b"Location");
    }

    /// Replaces a field or appends it.
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

    /// nginx's `ngx_http_clear_accept_ranges`: ranges of the changed body have no meaning. A field
    /// of `add_header` stays.
    pub fn clear_ranges(&mut self) {
        self.allow_ranges = false;
        let ranges = self.accept_ranges.take();
        self.remove_one(b"Accept-Ranges", ranges);
    }

    /// nginx's `ngx_http_clear_etag`: removes the ETag that was set last. An earlier ETag, of a
    /// response that an error page replaces, stays.
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

    /// nginx's `ngx_http_weak_etag`: the ETag becomes weak, since the bytes of the body change but
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

    /// Clears the response for another request, keeping the capacity.
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

    /// Whether nothing but the status has been set, as after a kept response.
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

/// When the response was last modified: by the handler, or by a field (of an upstream or of
/// `add_header`).
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
