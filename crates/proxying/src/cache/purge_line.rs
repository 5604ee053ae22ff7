//! Which requests lines of `*_cache_purge` have purge.

use bytes::Bytes;
use conf::{Fault, Template, TemplatePart, Word};
use engine::net::Address;
use framework::compile::Compiler;
use framework::network::Cidr;
use http::request::Text;
use http::variables::Compiling as _;

/// Which requests of a scope purge.
pub(super) enum Purge {
    /// Those for which one of the values is neither empty nor 0.
    If(Box<[Text]>),
    /// Those with this method, from there.
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

/// `$slice_range`, if that is part of a key.
pub(super) fn slice_range(compiler: &Compiler<'_>, key: &Template) -> Option<Text> {
    let is_it = |part: &&TemplatePart| matches!(part, TemplatePart::Variable(name) if &**name == "slice_range");
    let part = key.parts.iter().find(is_it)?.clone();
    Some(compiler.text(&Template { parts: vec![part] }))
}
