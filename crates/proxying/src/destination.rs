//! Where requests go that an address says, and no URL: `tunnel_pass`, `fastcgi_pass` and their kin.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Fault, Template, Word};
use framework::address;
use framework::compile::Compiler;
use http::request::{Request, Text};
use http::variables::Compiling as _;
use logs::Level;
use rules::upstream::{literal, of_address};

use super::locate::Upstream;
use crate::upstream::{Group, Groups};

/// What an address without a port has.
const NO_PORT: u16 = 0;

/// How peers are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// How their URLs begin in log lines, and where it may be written.
    pub text: &'static str,
    /// The scheme with its colon and slashes, `uwsgi://`.
    pub is_secure: bool,
}

impl Scheme {
    /// A scheme without TLS.
    pub const fn plain(text: &'static str) -> Scheme {
        Scheme {
            text,
            is_secure: false,
        }
    }
}

/// The schemes of a module.
#[derive(Debug, PartialEq, Eq)]
pub struct Schemes {
    /// The default scheme.
    pub meant: Scheme,
    /// The schemes that may be written.
    pub written: &'static [Scheme],
}

impl Schemes {
    /// The scheme of an address, and what follows it.
    fn split<'a>(&self, text: &'a [u8]) -> (Scheme, &'a [u8]) {
        for scheme in self.written {
            if let Some((begin, rest)) = text.split_at_checked(scheme.text.len())
                && begin.eq_ignore_ascii_case(scheme.text.as_bytes())
            {
                return (*scheme, rest);
            }
        }
        (self.meant, text)
    }
}

/// HOST:PORT, unix:PATH, or the name of an `upstream` block.
pub struct Destination {
    schemes: &'static Schemes,
    written: DestinationWritten,
}

enum DestinationWritten {
    Fixed(PeerTarget),
    /// With variables: found anew for each request.
    Text(Text),
}

/// Where a request goes.
#[derive(Clone)]
pub struct PeerTarget {
    /// How the peer is spoken to.
    pub scheme: Scheme,
    pub(crate) upstream: Upstream,
    /// The address as it is written, without the scheme.
    pub address: Bytes,
}

impl PeerTarget {
    /// The address as HTTP has it in a URI: a socket in the file system has none.
    pub fn authority(&self) -> &[u8] {
        if self.address.starts_with(b"unix:") {
            b"localhost"
        } else {
            &self.address
        }
    }
}

impl Destination {
    /// What this word says.
    pub fn compile(
        compiler: &Compiler<'_>,
        word: &Word,
        schemes: &'static Schemes,
    ) -> Result<Destination, Fault> {
        let template = Template::parse(word)?;
        match template.as_literal() {
            Some(_) => Destination::fixed(compiler, word, schemes),
            None => Ok(Destination::of_text(compiler.text(&template), schemes)),
        }
    }

    /// What it says where variables have no meaning.
    pub fn fixed(
        compiler: &Compiler<'_>,
        word: &Word,
        schemes: &'static Schemes,
    ) -> Result<Destination, Fault> {
        let (scheme, address) = schemes.split(&word.bytes);
        let group = of_address(compiler, word, address)?;
        let found = PeerTarget {
            scheme,
            upstream: Upstream::Group(group),
            address: Bytes::copy_from_slice(address),
        };
        Ok(Destination {
            schemes,
            written: DestinationWritten::Fixed(found),
        })
    }

    /// What a text says once it has been made for a request.
    pub fn of_text(text: Text, schemes: &'static Schemes) -> Destination {
        Destination {
            schemes,
            written: DestinationWritten::Text(text),
        }
    }

    /// Whether it is the same for all requests.
    pub fn is_fixed(&self) -> bool {
        matches!(self.written, DestinationWritten::Fixed(_))
    }

    /// The servers, where they are the same for all requests.
    pub fn group(&self) -> Option<&Arc<Group>> {
        match &self.written {
            DestinationWritten::Fixed(PeerTarget {
                upstream: Upstream::Group(group),
                ..
            }) => Some(group),
            _ => None,
        }
    }

    /// Whether peers may speak TLS.
    pub fn may_be_secure(&self) -> bool {
        match &self.written {
            DestinationWritten::Fixed(found) => found.scheme.is_secure,
            DestinationWritten::Text(_) => self.schemes.written.iter().any(|it| it.is_secure),
        }
    }

    /// Where a request goes, or the status to answer with. `level` is that of the log's line about
    /// an address that is none.
    pub fn find(&self, request: &mut Request, level: Level) -> Result<PeerTarget, u16> {
        let whole = match &self.written {
            DestinationWritten::Fixed(found) => return Ok(found.clone()),
            DestinationWritten::Text(text) => text.evaluate(request),
        };
        let (scheme, text) = self.schemes.split(&whole);
        Ok(PeerTarget {
            scheme,
            upstream: upstream(request, text, level)?,
            address: Bytes::copy_from_slice(text),
        })
    }
}

/// The servers of an address that variables have made, or the status to answer with.
fn upstream(request: &Request, text: &[u8], level: Level) -> Result<Upstream, u16> {
    let written = match address::parse(text) {
        Ok(written) => written,
        Err(error) => {
            let shown = logs::Printable(text);
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
    let known = if written.unix {
        None
    } else {
        groups.named(written.name, written.port, NO_PORT)
    };
    match (known, written.port) {
        (Some(group), _) => Ok(Upstream::Group(Arc::clone(group))),
        (None, None) if !written.unix => {
            let name = logs::Printable(written.name);
            logs::error!(request, Error, "no port in upstream \"{name}\"");
            Err(500)
        }
        (None, port) => Ok(match literal(text, &written) {
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
