//! Receives the head of an upstream's response, and copies it to the client's response.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use engine::select::Either;
use engine::{Buffer, Deadline};
use http::exchange::Exchange;
use http::request::activity::WHILE_SENDING_ON;
use http::request::{Request, Step};
use http::response::Field;
use http::response::source::Body;
use http_client::ReadHead;
use proto::h1;
use proto::h1::response::{BodyFraming, ResponseHead};
use proto::header::KnownField;

use super::answer::{AnswerHead, earlier};
use super::attempts::Attempts;
use super::connection::UpstreamConnection;
use super::family::Causes;
use super::rewriting::{Rewrite, Undecided};
use super::settings::PassSettings;
use crate::activity::{READING, SENDING, WHILE_READING};
use crate::failures::{AttemptError, client_left, failed, note};
use ::upstream::AttemptFailure;

/// The head of a response while it is being read.
pub struct ResponseHeadReader {
    /// The parsed part of the head.
    pub head: ReadHead,
    /// The bytes of the head.
    pub bytes: Vec<u8>,
    /// The bytes that were received behind the head.
    pub rest: Buffer,
    /// The number of bytes received so far, including earlier heads and bytes behind this head.
    pub received: usize,
    /// How many of the received bytes are beyond `proxy_buffer_size`.
    pub beyond: u64,
    /// The number of the head's fields that have been examined.
    examined: usize,
}

impl Default for ResponseHeadReader {
    fn default() -> ResponseHeadReader {
        ResponseHeadReader::of(ReadHead::default(), engine::spare_bytes(0))
    }
}

impl ResponseHeadReader {
    /// A reader whose head is complete.
    pub fn of(head: ReadHead, bytes: Vec<u8>) -> ResponseHeadReader {
        ResponseHeadReader {
            head,
            bytes,
            rest: Buffer::empty(),
            received: 0,
            beyond: 0,
            examined: 0,
        }
    }

    /// Counts received bytes. As in nginx, bytes beyond `proxy_buffer_size` only count for
    /// `$upstream_bytes_received` when the body is read.
    pub fn note_received(&mut self, length: usize, request: &mut Request, passing: &PassSettings) {
        self.received += length;
        self.beyond = self.received.saturating_sub(passing.buffer_size) as u64;
        let counted = self.received.min(passing.buffer_size) as u64;
        note(request, |attempt, _| attempt.bytes_received = counted);
    }

    /// Counts `length` bytes of a head that has been parsed elsewhere; `behind` more bytes were
    /// received after the head.
    pub fn note_read(&mut self, length: usize, behind: usize, request: &mut Request) {
        self.received += length;
        self.beyond = behind as u64;
        let counted = self.received as u64;
        note(request, |attempt, _| attempt.bytes_received = counted);
    }

    /// Parses the head from the earlier bytes and the `received` ones, with `parse`, which returns
    /// the length of a complete head. Takes no more bytes than a head may have
    /// (`proxy_buffer_size`), and none behind the head. Once the head is complete, returns how many
    /// of the received bytes belong to it.
    pub fn parse<E>(
        &mut self,
        received: &[u8],
        passing: &PassSettings,
        parse: impl FnOnce(&[u8], &mut ResponseHead) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        let before = self.bytes.len();
        let room = passing.buffer_size.saturating_sub(before);
        let received = received.get(..room).unwrap_or(received);
        if before == 0 {
            // Most heads are received at once, and are parsed in place.
            let parsed = parse(received, &mut self.head);
            let head = match parsed {
                Ok(Some(length)) => received.get(..length).unwrap_or(received),
                _ => received,
            };
            self.bytes.extend_from_slice(head);
            return parsed;
        }
        self.bytes.extend_from_slice(received);
        let parsed = parse(&self.bytes, &mut self.head)?;
        Ok(parsed.map(|length| {
            self.bytes.truncate(length);
            length.saturating_sub(before)
        }))
    }

    /// Prepares for the next head, after an interim one.
    pub fn begin_again(&mut self) {
        self.bytes.clear();
        self.head.clear();
        self.examined = 0;
    }

    /// Returns the response, or the error of reading. Even the head of an invalid response is kept
    /// for `$upstream_http_*`.
    pub fn end_as(
        self,
        read: Result<(), AttemptError>,
        request: &mut Request,
    ) -> Result<UpstreamResponse, AttemptError> {
        let answer = self.end();
        if read.is_err() {
            remember(request, &answer.head);
        }
        read.map(|()| answer)
    }

    /// Returns the response, once the head has been read.
    pub fn end(self) -> UpstreamResponse {
        UpstreamResponse {
            head: AnswerHead::with_behind(self.head, self.bytes, &self.rest),
            rest: self.rest,
            beyond: self.beyond,
        }
    }
}

/// A response whose head has been read, with the bytes that were received behind the head.
pub struct UpstreamResponse {
    /// The head.
    pub head: AnswerHead,
    /// The bytes that were received behind the head.
    pub rest: Buffer,
    /// How many received bytes are beyond `proxy_buffer_size`.
    pub beyond: u64,
}

impl UpstreamResponse {
    /// Whether the upstream keeps the connection alive.
    pub fn keeps_alive(&self) -> bool {
        !self.head.closes() && self.head.status() != SWITCHING_PROTOCOLS
    }

    /// Whether the response ends with the head, and no bytes were received behind it.
    pub fn ends_with_head(&self, is_head: bool) -> bool {
        let framing = self.head.body(is_head);
        let is_empty = matches!(framing, BodyFraming::None | BodyFraming::Length(0));
        is_empty && self.rest.is_empty()
    }
}

/// The consequence of a response head for the client.
pub enum HeadEffect {
    /// The head has been copied to `request.response`, and the body follows.
    Pass,
    /// Another response is sent instead (`X-Accel-Redirect`).
    Step(Step),
}

/// 101, RFC 9110 section 15.2.2.
const SWITCHING_PROTOCOLS: u16 = 101;

/// Receives more bytes of a response whose head is not complete.
pub async fn receive(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &PassSettings,
    peer: &mut UpstreamConnection,
) -> Result<Buffer, AttemptError> {
    let deadline = Deadline::within(passing.read_timeout);
    let early_end = peer.early_end.take();
    let receiving = peer.stream().recv(deadline);
    let received = if let Some(end) = early_end {
        end.map(|()| Buffer::empty())
    } else if passing.tries.ignore_client_abort {
        receiving.await
    } else {
        // The client is only polled if no bytes have been received.
        let ended = {
            let (mut receiving, mut leaving) = (pin!(receiving), pin!(exchange.client_gone()));
            poll_fn(|context| match receiving.as_mut().poll(context) {
                Poll::Ready(received) => Poll::Ready(Either::First(received)),
                Poll::Pending => leaving.as_mut().poll(context).map(Either::Second),
            })
            .await
        };
        match ended {
            Either::First(received) => received,
            Either::Second(abort) => {
                // As in nginx, the request counts as being sent until the response begins.
                let mut has_begun = false;
                note(request, |attempt, _| has_begun = attempt.bytes_received > 0);
                let doing = if has_begun { READING } else { SENDING };
                return Err(client_left(request, exchange, &abort, doing).into());
            }
        }
    };
    match received {
        Ok(buffer) if buffer.is_empty() => {
            logs::error!(
                request,
                Error,
                "upstream prematurely closed connection {READING}"
            );
            Err(bad(Causes::ERROR))
        }
        Ok(buffer) => Ok(buffer),
        Err(error) => {
            let failure = failed(request, &error, "recv()", READING);
            Err(AttemptError::Failed(failure))
        }
    }
}

/// Records the status of a complete head and the time until its receipt.
pub fn note_head(request: &mut Request, status: u16) {
    note(request, |attempt, began| {
        attempt.header_time = began.elapsed();
        attempt.status = status;
    });
}

/// Whether the head is that of an interim response, which precedes another head.
pub fn is_informational(head: &ResponseHead) -> bool {
    matches!(head.status(), 100 | 102..=199)
}

/// Applies and checks the fields that the last call of [`ResponseHeadReader::parse`] has found. As
/// in nginx, these fields take effect, and repetitions are logged, even if the response is then
/// rejected.
pub fn examine(request: &mut Request, passing: &PassSettings, answer: &mut ResponseHeadReader) {
    if is_informational(&answer.head) {
        return;
    }
    let fields = answer.head.fields();
    for field in fields.iter().skip(answer.examined) {
        if let Some(earlier) = earlier(&answer.head, *field) {
            warn_of_duplicate(request, &answer.bytes, *field, earlier);
            continue;
        }
        apply_field(request, passing, field.known, field.value(&answer.bytes));
    }
    answer.examined = fields.len();
}

/// Applies a field of the response, unless a directive ignores the field.
pub(super) fn apply_field(
    request: &mut Request,
    passing: &PassSettings,
    known: KnownField,
    value: &[u8],
) {
    match known {
        KnownField::XAccelLimitRate if !passing.ignored.contains_known(known) => {
            if let Some(rate) = rate_of(value) {
                request.pacing.rate = Some(rate);
            }
        }
        KnownField::XAccelCharset if !passing.ignored.contains_known(known) => {
            request.response.override_charset = Bytes::copy_from_slice(value);
        }
        _ => {}
    }
}

/// Parses a rate in bytes per second: digits only, within 63 bits.
fn rate_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let rate = text.parse().ok()?;
    let is_plain = !text.starts_with('+') && rate <= i64::MAX as u64;
    is_plain.then_some(rate)
}

/// The error for a head longer than `proxy_buffer_size`.
pub fn too_big(request: &Request) -> AttemptError {
    logs::error!(request, Error, "upstream sent too big header {READING}");
    bad(Causes::INVALID_HEADER)
}

/// The error for an invalid response.
pub fn bad(cause: Causes) -> AttemptError {
    AttemptError::Failed(AttemptFailure {
        cause,
        status: 502,
        doing: READING,
        sent: true,
        kept: false,
        again: false,
        is_busy: false,
        is_of_others: false,
    })
}

/// Lets `error_page` respond in place of an upstream's error, if `proxy_intercept_errors` is on.
pub fn intercept(request: &mut Request, passing: &PassSettings, head: &AnswerHead) -> Option<Step> {
    let status = head.status();
    if !(passing.intercept_errors && status >= 300 && request.plan.error_pages.has(status)) {
        return None;
    }
    if status == 401 {
        for field in head.all(KnownField::WwwAuthenticate) {
            request.response.fields.push(head.owned(field));
        }
    }
    request.activity.doing = WHILE_SENDING_ON;
    Some(Step::Finish(status))
}

/// Copies the head to the client's response, or returns the step that responds instead.
pub fn apply(
    request: &mut Request,
    passing: &PassSettings,
    rewriting: &dyn Rewrite,
    head: &AnswerHead,
) -> HeadEffect {
    let status = head.status();
    if let Some(step) = accel_redirect(request, passing, rewriting, head) {
        return HeadEffect::Step(step);
    }
    let response = &mut request.response;
    response.status = status;
    let text = head.status_line(&head.bytes);
    response.status_text = (!text.is_empty()).then(|| head.bytes.slice_ref(text));
    response.content_length = head.content_length();
    response.conditions_evaluated = true;
    response.fields.reserve(head.fields().len());
    for field in head.counting() {
        let name = field.name(&head.bytes);
        if passing.hidden.contains(field.known, name) {
            continue;
        }
        if is_of_connection(field.known) {
            continue;
        }
        let copied = copy_field(request, passing, rewriting, field.known, head.owned(field));
        if let Err(Undecided) = copied {
            return HeadEffect::Step(fail(request));
        }
    }
    omit_server_and_date(request, passing, head);
    if passing.force_ranges {
        request.response.allow_ranges = true;
        request.response.single_range = true;
    }
    HeadEffect::Pass
}

/// If a directive passes on the upstream's Server or Date (such as `proxy_pass_header Server`), a
/// response without that field gets none from Tidegate either.
fn omit_server_and_date(request: &mut Request, passing: &PassSettings, head: &AnswerHead) {
    if !passing.omits_server_and_date {
        return;
    }
    let response = &mut request.response;
    for (known, member) in [
        (KnownField::Server, &mut response.server),
        (KnownField::Date, &mut response.date),
    ] {
        if head.find(known).is_none() && !passing.hidden.contains_known(known) {
            *member = Some(Bytes::new());
        }
    }
}

/// The Last-Modified of the response in seconds since 1970, if it is a valid date.
pub fn last_modified(head: &AnswerHead) -> Option<i64> {
    proto::date::parse_http(head.value(KnownField::LastModified, &head.bytes)?)
}

/// Whether the response is buffered: `proxy_buffering`, unless the upstream overrides it.
pub fn is_buffered(passing: &PassSettings, head: &AnswerHead) -> bool {
    let mut buffered = passing.buffering;
    if passing.ignored.contains_known(KnownField::XAccelBuffering) {
        return buffered;
    }
    for field in head.all(KnownField::XAccelBuffering) {
        let value = field.value(&head.bytes);
        if value.eq_ignore_ascii_case(b"yes") {
            buffered = true;
        } else if value.eq_ignore_ascii_case(b"no") {
            buffered = false;
        }
    }
    buffered
}

fn warn_of_duplicate(request: &Request, bytes: &[u8], field: h1::Field, first: h1::Field) {
    let text = |field: h1::Field| {
        let (name, value) = (field.name(bytes), field.value(bytes));
        [name, b": ", value].concat()
    };
    let (second, first) = (text(field), text(first));
    logs::error!(
        request,
        Warn,
        "upstream sent duplicate header line: \"{}\", previous value: \"{}\", ignored {READING}",
        logs::Printable(&second),
        logs::Printable(&first)
    );
}

/// Responds with 502 to a 101 that was not requested, and drops the bytes behind the head, which
/// belong to another protocol. Unless `error_page` names a page, the 502 has no body: a client that
/// has switched protocols would misread a body.
pub fn refuse_upgrade(request: &mut Request) -> Step {
    logs::error!(
        request,
        Error,
        "upstream sent unexpected 101 response {READING}"
    );
    request.activity.doing = WHILE_READING;
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed();
    });
    if request.plan.error_pages.has(502) {
        return Step::Finish(502);
    }
    request.response.status = 502;
    request.response.content_length = Some(0);
    Step::Respond(Body::Empty)
}

/// Copies the head of a 101 to the client's response.
pub(super) fn copy_for_upgrade(
    request: &mut Request,
    passing: &PassSettings,
    answer: &UpstreamResponse,
) {
    request.response.status = 101;
    let text = answer.head.status_line(&answer.head.bytes);
    request.response.status_text = Some(Bytes::copy_from_slice(text));
    for field in answer.head.counting() {
        let name = field.name(&answer.head.bytes);
        match field.known {
            KnownField::Connection | KnownField::KeepAlive => continue,
            known if passing.hidden.contains(known, name) => continue,
            KnownField::Server => request.response.server = Some(Bytes::new()),
            KnownField::Date => request.response.date = Some(Bytes::new()),
            _ => {}
        }
        request.response.fields.push(answer.head.owned(field));
    }
    omit_server_and_date(request, passing, &answer.head);
}

/// Keeps the head for `$upstream_http_*`.
pub fn remember(request: &mut Request, head: &AnswerHead) {
    let Some(attempts) = Attempts::of(request) else {
        return;
    };
    attempts.borrow_mut().answer = Some(head.clone());
}

/// `X-Accel-Redirect`: a path or a named location of this server responds instead.
fn accel_redirect(
    request: &mut Request,
    passing: &PassSettings,
    rewriting: &dyn Rewrite,
    head: &AnswerHead,
) -> Option<Step> {
    let value = head.value(KnownField::XAccelRedirect, &head.bytes)?;
    if passing.ignored.contains_known(KnownField::XAccelRedirect) {
        return None;
    }
    if let Err(Undecided) = copy_over_redirect(request, passing, rewriting, head) {
        return Some(fail(request));
    }
    request.activity.doing = WHILE_READING;
    if value.first() == Some(&b'@') {
        return Some(Step::Named(Bytes::copy_from_slice(value)));
    }
    let mut path = Vec::new();
    match proto::uri::parse_unsafe(value, &mut path) {
        Ok(args) => {
            request.become_get();
            Some(Step::Redirect {
                uri: path,
                args: args.map(<[u8]>::to_vec),
            })
        }
        Err(_) => {
            logs::error!(
                request,
                Error,
                "unsafe URI \"{}\" was detected {READING}",
                logs::Printable(if path.is_empty() { value } else { &path })
            );
            Some(Step::Finish(404))
        }
    }
}

/// Copies the fields of the upstream that the client gets together with the response of the
/// redirect target.
fn copy_over_redirect(
    request: &mut Request,
    passing: &PassSettings,
    rewriting: &dyn Rewrite,
    head: &AnswerHead,
) -> Result<(), Undecided> {
    const KEPT: [&[u8]; 5] = [
        b"Set-Cookie",
        b"Content-Disposition",
        b"Cache-Control",
        b"Expires",
        b"Accept-Ranges",
    ];
    for field in head.counting() {
        let (name, value) = (field.name(&head.bytes), field.value(&head.bytes));
        if field.known == KnownField::ContentType {
            set_content_type(request, head.bytes.slice_ref(value));
        } else if passing.force_ranges && name.eq_ignore_ascii_case(b"Accept-Ranges") {
            // As in `copy_field`: the range filter adds this field.
        } else if KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name)) {
            let Field { name, mut value } = head.owned(field);
            if name.eq_ignore_ascii_case(b"Accept-Ranges") {
                request.response.accept_ranges = Some(value.clone());
            } else if name.eq_ignore_ascii_case(b"Set-Cookie") {
                value = rewriting.cookie(request, value)?;
            }
            request.response.fields.push(Field { name, value });
        }
    }
    Ok(())
}

/// Ends the request with 500 because a field could not be rewritten. As in nginx, the fields copied
/// so far stay.
fn fail(request: &mut Request) -> Step {
    request.response.status_text = None;
    request.response.content_length = None;
    super::finish(request, 500)
}

/// Whether a field only concerns the connection to the upstream and the framing there, so that the
/// client does not get the field.
fn is_of_connection(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::TransferEncoding
            | KnownField::ContentLength
    )
}

/// Copies one field to its member of the client's response, or to the other fields.
fn copy_field(
    request: &mut Request,
    passing: &PassSettings,
    rewriting: &dyn Rewrite,
    known: KnownField,
    field: Field,
) -> Result<(), Undecided> {
    let Field { name, value } = field;
    let field = |value: Bytes| Field { name, value };
    match known {
        KnownField::ContentType => set_content_type(request, value),
        KnownField::LastModified => {
            request.response.last_modified = proto::date::parse_http(&value);
            request.response.fields.push(field(value));
        }
        KnownField::Date => {
            request.response.date = Some(Bytes::new());
            request.response.fields.push(field(value));
        }
        KnownField::Server => {
            request.response.server = Some(Bytes::new());
            request.response.fields.push(field(value));
        }
        KnownField::Location => {
            // As in nginx, only a Location that `proxy_redirect` has changed is made absolute.
            match rewriting.location(request, &value) {
                Some(rewritten) => {
                    let absolute = request.plan.core.absolute_redirect;
                    request.response.add_location(rewritten, absolute);
                }
                None => {
                    let own = !rewriting.rewrites_locations() && value.first() != Some(&b'/');
                    if own {
                        if request.is_answered() {
                            request.response.location = None;
                        }
                        request.response.location_field = Some(value.clone());
                    }
                    request.response.fields.push(field(value));
                }
            }
        }
        KnownField::ContentEncoding => {
            request.response.coding = Some(value.clone());
            request.response.fields.push(field(value));
        }
        // With `force_ranges` the range filter adds this field.
        KnownField::AcceptRanges if passing.force_ranges => {}
        KnownField::AcceptRanges => {
            request.response.accept_ranges = Some(value.clone());
            request.response.fields.push(field(value));
        }
        KnownField::ContentRange => {
            request.response.content_range = Some(value.clone());
            request.response.fields.push(field(value));
        }
        KnownField::SetCookie => {
            let value = rewriting.cookie(request, value)?;
            request.response.fields.push(field(value));
        }
        KnownField::Refresh => {
            let rewritten = rewriting.refresh(request, &value);
            request
                .response
                .fields
                .push(field(rewritten.unwrap_or(value)));
        }
        _ => request.response.fields.push(field(value)),
    }
    Ok(())
}

/// Content-Type: the media type is stored separately for filters; the parameters are sent as
/// received.
fn set_content_type(request: &mut Request, value: Bytes) {
    let Some(end) = memchr::memchr(b';', &value) else {
        request.response.content_type = value;
        request.response.content_type_parameters = Bytes::new();
        return;
    };
    let media_type = value.get(..end).unwrap_or_default().trim_ascii_end();
    request.response.content_type = value.slice_ref(media_type);
    request.response.content_type_parameters = value.slice(media_type.len()..);
    let parameters = value.get(end..).unwrap_or_default();
    let charset = proto::header::parameter(parameters, b"charset", b';');
    if let Some(charset) = charset.filter(|charset| !charset.is_empty())
        && is_only_charset(parameters)
    {
        let charset = charset.trim_ascii();
        let quoted = charset.strip_prefix(b"\"");
        let bare = quoted.and_then(|charset| charset.strip_suffix(b"\""));
        request.response.charset = Bytes::copy_from_slice(bare.unwrap_or(charset));
    }
}

fn is_only_charset(parameters: &[u8]) -> bool {
    memchr::memchr_iter(b';', parameters).count() == 1
}
