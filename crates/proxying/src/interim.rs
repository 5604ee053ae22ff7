//! Interim responses of upstreams (1xx), which precede the final response. Only early hints are
//! passed on to the client.

use std::sync::Arc;

use bytes::Bytes;
use http::exchange::Exchange;
use http::request::Request;
use http::response::Field;
use http_client::{INFORMATIONAL_MAX, TOO_MANY_INFORMATIONAL};
use proto::h1::Version;
use proto::header::KnownSet;

use super::family::Causes;
use super::response::{ResponseHeadReader, bad};
use super::settings::PassSettings;
use crate::activity::READING;
use crate::early_hints;
use crate::failures::AttemptError;

const EARLY_HINTS: u16 = 103;

/// Counts the interim responses that precede the final response.
#[derive(Default)]
pub struct Informational {
    count: u32,
    /// Total size of the early hints in bytes.
    hints: usize,
}

impl Informational {
    /// Whether an interim response has been received.
    pub fn has_come(&self) -> bool {
        self.count > 0
    }

    /// Handles an interim response of `length` bytes. Early hints are passed on if `early_hints`
    /// permits; other interim responses are ignored.
    pub fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        passing: &PassSettings,
        answer: &ResponseHeadReader,
        length: usize,
    ) -> Result<(), AttemptError> {
        self.count += 1;
        if self.count > INFORMATIONAL_MAX {
            logs::error!(request, Error, "{TOO_MANY_INFORMATIONAL} {READING}");
            return Err(bad(Causes::INVALID_HEADER));
        }
        if answer.head.status() != EARLY_HINTS {
            return Ok(());
        }
        if answer.head.version() < Version::Http11 {
            logs::error!(
                request,
                Error,
                "upstream sent HTTP/1.0 response with early hints {READING}"
            );
            return Err(bad(Causes::INVALID_HEADER));
        }
        self.hints = self.hints.saturating_add(length);
        if self.hints > passing.buffer_size {
            logs::error!(request, Info, "upstream sent too big early hints {READING}");
            return Ok(());
        }
        let plan = Arc::clone(&request.plan);
        if request.is_main()
            && plan
                .of(&early_hints::OF_PLAN)
                .is_some_and(|hints| hints.are_wanted(request))
        {
            exchange.send_early_hints(request, &hints(passing, answer));
        }
        Ok(())
    }
}

/// The fields of early hints that the client gets: neither fields about framing nor hidden ones.
fn hints(passing: &PassSettings, answer: &ResponseHeadReader) -> Vec<Field> {
    let mut fields = Vec::new();
    for field in answer.head.fields() {
        let name = field.name(&answer.bytes);
        let of_framing = KnownSet::OF_FRAMING.contains(field.known);
        if !of_framing && !passing.hidden.contains(field.known, name) {
            fields.push(Field {
                name: Bytes::copy_from_slice(name),
                value: Bytes::copy_from_slice(field.value(&answer.bytes)),
            });
        }
    }
    fields
}
