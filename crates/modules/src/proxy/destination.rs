//! Where requests go that an address says, and no URL: `tunnel_pass`, `fastcgi_pass` and their kin.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Fault, Template, Word};
use framework::address::{self, Written};
use framework::compile::Compiler;
use http::log::{self, Level};
use http::request::Request;
use http::text::Text;
use http::variables::Compiling as _;

use super::target::Upstream;
use crate::upstream::{Group, Groups};

/// What an address without a port has.
const NO_PORT: u16 = 0;

/// HOST:PORT, unix:PATH, or the name of an `upstream` block.
pub(crate) enum Destination {
    Fixed(Arc<Group>),
    /// With variables: found anew for each request.
    Text(Text),
}

impl Destination {
    /// What this word says.
    pub(crate) fn compile(compiler: &Compiler<'_>, word: &Word) -> Result<Destination, Fault> {
        let template = Template::parse(word)?;
        match template.as_literal() {
            Some(_) => group_of(compiler, word).map(Destination::Fixed),
            None => Ok(Destination::Text(compiler.text(&template))),
        }
    }

    /// Where a request goes, or the status to answer with. `level` is that of the log's line about an address that is none.
    pub(crate) fn upstream(&self, request: &mut Request, level: Level) -> Result<Upstream, u16> {
        let text = match self {
            Destination::Fixed(group) => return Ok(Upstream::Group(Arc::clone(group))),
            Destination::Text(text) => text.evaluate(request),
        };
        let written = match address::parse(&text) {
            Ok(written) => written,
            Err(error) => {
                let shown = log::Printable(&text);
                logs::write(
                    request,
                    level,
                    format_args!("{error} in upstream \"{shown}\""),
                );
                return Err(500);
            }
        };
        let generation = &request.local.generation;
        let groups = generation.part::<Groups>().unwrap_or_default();
        let known = match written.unix {
            true => None,
            false => groups.named(written.name, written.port, NO_PORT),
        };
        match (known, written.port) {
            (Some(group), _) => Ok(Upstream::Group(Arc::clone(group))),
            (None, None) if !written.unix => {
                let name = log::Printable(written.name);
                log::error!(request, Error, "no port in upstream \"{name}\"");
                Err(500)
            }
            (None, port) => Ok(match literal(&text, &written) {
                Some(group) => Upstream::Group(group),
                None => Upstream::Name {
                    name: Bytes::copy_from_slice(
                        written.name.strip_suffix(b".").unwrap_or(written.name),
                    ),
                    port: port.unwrap_or(NO_PORT),
                },
            }),
        }
    }
}

/// The servers of an address without variables.
fn group_of(compiler: &Compiler<'_>, word: &Word) -> Result<Arc<Group>, Fault> {
    let fault = |text: String| Fault::at(word, text).while_reading();
    let shown = word.text();
    let written = address::parse(&word.bytes)
        .map_err(|error| fault(format!("{error} in upstream \"{shown}\"")))?;
    let groups = compiler.registry::<Groups>();
    let mut groups = groups.borrow_mut();
    let name = String::from_utf8_lossy(written.name);
    if let Some(group) = groups.declared(written.name).filter(|_| !written.unix) {
        return match written.port {
            Some(port) => Err(fault(format!(
                "upstream \"{name}\" may not have port {port}"
            ))),
            None => Ok(Arc::clone(group)),
        };
    }
    if written.port.is_none() && !written.unix {
        let text = format!("no port in upstream \"{name}\"");
        return Err(fault(text).of_missing(&name, &["upstream"]));
    }
    if let Some(group) = literal(&word.bytes, &written) {
        return Ok(group);
    }
    groups
        .host(&written, compiler.files, NO_PORT)
        .ok_or_else(|| {
            let text = format!("host not found in upstream \"{name}\"");
            fault(text).of_missing(&name, &["upstream"])
        })
}

/// A group of the address alone, where no name is to be looked up.
fn literal(text: &[u8], written: &Written<'_>) -> Option<Arc<Group>> {
    let address = written.literal(NO_PORT)?;
    Some(Group::of_one(Bytes::copy_from_slice(text), address))
}
