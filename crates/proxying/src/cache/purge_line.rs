//! The rule of `*_cache_purge` by which requests purge.

use bytes::Bytes;
use conf::{Fault, Template, TemplatePart, Word};
use engine::net::Address;
use framework::compile::Compiler;
use framework::network::Cidr;
use http::request::Text;
use http::variables::Compiling as _;

/// Which requests of a scope purge the cache.
pub(super) enum Purge {
    /// Requests for which one of the values is neither empty nor 0.
    If(Box<[Text]>),
    /// Requests with this method from a client in one of the networks.
    Method(Bytes, Box<[Network]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    All,
    Cidr(Cidr),
}

impl Network {
    pub(super) fn parse(word: &Word) -> Result<Network, Fault> {
        if &*word.bytes == b"all" {
            return Ok(Network::All);
        }
        let cidr = Cidr::parse(&word.bytes).ok_or_else(|| Fault::invalid_parameter(word))?;
        Ok(Network::Cidr(cidr.0))
    }

    pub(super) fn contains(self, address: &Address) -> bool {
        match (self, address) {
            (Network::All, _) => true,
            (Network::Cidr(cidr), Address::Inet(socket)) => {
                cidr.contains(socket.ip().to_canonical()) || cidr.contains(socket.ip())
            }
            (Network::Cidr(_), Address::Unix(_)) => false,
        }
    }
}

/// The text of `$slice_range`, if the key contains that variable.
pub(super) fn slice_range(compiler: &Compiler<'_>, key: &Template) -> Option<Text> {
    let is_it = |part: &&TemplatePart| matches!(part, TemplatePart::Variable(name) if &**name == "slice_range");
    let part = key.parts.iter().find(is_it)?.clone();
    Some(compiler.text(&Template { parts: vec![part] }))
}
