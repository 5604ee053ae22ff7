//! Destinations that are addresses instead of URLs, as in `tunnel_pass` and `fastcgi_pass`.

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

/// The port of an address that states none.
const NO_PORT: u16 = 0;

/// A scheme, which determines whether peers are reached with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The scheme as it begins URLs in log lines, for example `uwsgi://`, and destinations in the
    /// configuration if it is one of [`Schemes::written`].
    pub text: &'static str,
    /// Whether the connection to the peer has TLS.
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

/// The schemes of a module's destinations.
#[derive(Debug, PartialEq, Eq)]
pub struct Schemes {
    /// The scheme of a destination that states none.
    pub meant: Scheme,
    /// The schemes that a destination may state.
    pub written: &'static [Scheme],
}

impl Schemes {
    /// Splits an address into its scheme and the rest.
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
    /// The address as configured.
    written: DestinationWritten,
}

enum DestinationWritten {
    Fixed(PeerTarget),
    /// A text with variables, evaluated for each request.
    Text(Text),
}

/// The destination of a request.
#[derive(Clone)]
pub struct PeerTarget {
    /// The scheme, which determines whether the connection has TLS.
    pub scheme: Scheme,
    pub(crate) upstream: Upstream,
    /// The address as written, without the scheme.
    pub address: Bytes,
}

impl PeerTarget {
    /// The address as the authority of a URI; `localhost` for a Unix domain socket.
    pub fn authority(&self) -> &[u8] {
        if self.address.starts_with(b"unix:") {
            b"localhost"
        } else {
            &self.address
        }
    }
}

impl Destination {
    /// Compiles a word of the configuration, which may contain variables.
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

    /// Compiles a word in which variables have no meaning.
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

    /// Makes a destination of a text, which is evaluated for each request.
    pub fn of_text(text: Text, schemes: &'static Schemes) -> Destination {
        Destination {
            schemes,
            written: DestinationWritten::Text(text),
        }
    }

    /// Whether the destination is the same for all requests.
    pub fn is_fixed(&self) -> bool {
        matches!(self.written, DestinationWritten::Fixed(_))
    }

    /// The group of servers, if it is the same for all requests.
    pub fn group(&self) -> Option<&Arc<Group>> {
        match &self.written {
            DestinationWritten::Fixed(PeerTarget {
                upstream: Upstream::Group(group),
                ..
            }) => Some(group),
            _ => None,
        }
    }

    /// Whether peers may be reached with TLS.
    pub fn may_be_secure(&self) -> bool {
        match &self.written {
            DestinationWritten::Fixed(found) => found.scheme.is_secure,
            DestinationWritten::Text(_) => self.schemes.written.iter().any(|it| it.is_secure),
        }
    }

    /// Finds the destination of a request; the error is the status of the response. An invalid
    /// address is logged at `level`.
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

/// Finds the servers of an evaluated address; the error is the status of the response.
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
