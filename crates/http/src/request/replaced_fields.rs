//! Replaces the fields of a request while it is served, for all modules and for upstreams.

use std::rc::Rc;

use proto::h1;

use crate::request::Request;
use crate::request::client_head::ClientHead;

/// The name and the value of a field.
pub type OwnedField = (Vec<u8>, Vec<u8>);

impl Request {
    /// A copy of the client's fields, in their order.
    pub fn copied_fields(&self) -> Vec<OwnedField> {
        let copied = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
        self.headers().map(copied).collect()
    }

    /// Gives the request a head with these fields in place of the client's. If they do not make a
    /// valid head, an error is logged, and the head stays unchanged.
    pub fn replace_fields(&mut self, fields: &[OwnedField]) {
        let replaced = if self.client.is_of_fields() {
            self.client.with_fields(fields)
        } else {
            self.parsed_anew(fields)
        };
        match replaced {
            Some(client) => self.client = Rc::new(client),
            None => logs::error!(
                self,
                Error,
                "the request's head is none with the fields that were set, and stays as it was"
            ),
        }
    }

    /// Parses the request line together with these fields as an HTTP/1 head.
    fn parsed_anew(&self, fields: &[OwnedField]) -> Option<ClientHead> {
        let mut bytes = self.request_line().to_vec();
        bytes.extend_from_slice(b"\r\n");
        for (name, value) in fields {
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        let limits = self.server.core.head_limits();
        let mut head = h1::Head::default();
        if !matches!(h1::parse_head(&bytes, &limits, &mut head), Ok(Some(_))) {
            return None;
        }
        let mut host = self.client.host.clone();
        if let Some(named) = head.server_name() {
            host = named.name.of(&bytes).to_ascii_lowercase();
        }
        Some(ClientHead::parsed(bytes, head, host))
    }
}
