//! Questions to name servers and what their answers mean: addresses of a name, RFC 1035, 2308 and 3596.
//!
//! [`query`] writes a question; [`answer`] reads what came back and takes it only if it answers that very question
//! (RFC 5452: identifier, name, type and class). Bytes of messages are read and written by `hickory-proto`.
//!
//! Deliberately not here: sockets, time limits, retries and the cache (the server's resolver), other records than A,
//! AAAA and CNAME, extensions (EDNS) and signatures (DNSSEC). As nginx does, the servers that are configured are
//! trusted, and the way to them is.

use std::fmt;
use std::net::IpAddr;

use hickory_proto::op::{Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// Longest answer over UDP that is read, in bytes (nginx's `NGX_RESOLVER_UDP_SIZE`). Nothing but 512 is promised
/// without EDNS.
pub const UDP_SIZE_MAX: usize = 4096;

/// Most addresses that are taken from one answer.
pub const ADDRESSES_MAX: usize = 256;

/// Most aliases that are followed from a name to its addresses (nginx's `NGX_RESOLVER_MAX_RECURSION`).
pub const ALIASES_MAX: usize = 50;

/// The name of a host: labels of 1 to 63 bytes, 255 bytes in all. Equal to itself in any case of letters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(hickory_proto::rr::Name);

impl Name {
    /// Reads `www.example.com`, with or without a dot at its end. `None` where it can be no name.
    pub fn parse(text: &[u8]) -> Option<Name> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let labels: Vec<&[u8]> = text.split(|byte| *byte == b'.').collect();
        if labels.iter().any(|label| label.is_empty()) {
            return None;
        }
        let name = hickory_proto::rr::Name::from_labels(labels).ok()?;
        Some(Name::of(&name))
    }

    fn of(name: &hickory_proto::rr::Name) -> Name {
        Name(name.to_lowercase())
    }
}

impl fmt::Display for Name {
    /// Without the dot at its end; bytes that are no letters, digits or hyphens are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_ascii();
        f.write_str(text.strip_suffix('.').unwrap_or(&text))
    }
}

/// The two kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Records of type A.
    V4,
    /// Records of type AAAA.
    V6,
}

impl Family {
    fn record_type(self) -> RecordType {
        match self {
            Family::V4 => RecordType::A,
            Family::V6 => RecordType::AAAA,
        }
    }
}

/// What is asked: the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whose.
    pub name: Name,
    /// Which.
    pub family: Family,
}

/// What a server says. Times to live are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Addresses, at least one.
    Addresses {
        /// In the order of the message, at most [`ADDRESSES_MAX`].
        addresses: Vec<IpAddr>,
        /// The shortest of all records that lead to them.
        ttl: u32,
    },
    /// The name is another one's alias, whose addresses the message does not have.
    Alias {
        /// The other name.
        name: Name,
        /// The shortest of all records that lead to it.
        ttl: u32,
    },
    /// There is no address of this family.
    Nothing {
        /// How long that holds; `None` where the server does not say (RFC 2308, section 5).
        ttl: Option<u32>,
    },
    /// The server cannot or will not tell.
    Failed {
        /// Why.
        failure: Failure,
        /// How long that holds; only for [`Failure::NotFound`].
        ttl: Option<u32>,
    },
    /// The answer did not fit into a datagram: ask again over TCP.
    Truncated,
}

/// Response codes that end a question, RFC 1035, section 4.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// SERVFAIL
    Server = 2,
    /// NXDOMAIN
    NotFound = 3,
    /// NOTIMP
    Unimplemented = 4,
    /// REFUSED
    Refused = 5,
}

impl fmt::Display for Failure {
    /// nginx's words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Server => "Server failure",
            Failure::NotFound => "Host not found",
            Failure::Unimplemented => "Unimplemented",
            Failure::Refused => "Operation refused",
        })
    }
}

/// Why a message is no answer to the question. It is dropped, and the right one is still awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It ends too early, or breaks the format.
    Malformed,
    /// It is a question, or answers something else than a plain question.
    NotAnAnswer {
        /// Its identifier.
        id: u16,
    },
    /// It answers a question with another identifier.
    Identifier {
        /// The one it has.
        found: u16,
        /// The one it should have.
        expected: u16,
        /// The name that was asked.
        name: Name,
    },
    /// It answers none, or several.
    Questions,
    /// It answers another question.
    OtherQuestion {
        /// The name in it.
        name: Name,
    },
    /// The server did not understand the question, or answers with a code that questions do not have.
    Code {
        /// The code.
        code: u16,
        /// Its identifier.
        id: u16,
    },
}

impl fmt::Display for Rejected {
    /// nginx's words, for its error log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Malformed => f.write_str("short DNS response"),
            Rejected::NotAnAnswer { id } => write!(f, "invalid DNS response {id}"),
            Rejected::Identifier {
                found,
                expected,
                name,
            } => write!(
                f,
                "wrong ident {found} in DNS response for {name}, expect {expected}"
            ),
            Rejected::Questions => f.write_str("invalid number of questions in DNS response"),
            Rejected::OtherQuestion { name } => write!(f, "unexpected DNS response for {name}"),
            Rejected::Code { code, id } => {
                let text = match code {
                    1 => "Format error",
                    _ => "Unknown error",
                };
                write!(f, "DNS error ({code}: {text}), query id:{id}")
            }
        }
    }
}

/// The message that asks `question`. `None` where the name does not fit into one, which [`Name`] rules out.
pub fn query(id: u16, question: &Question) -> Option<Vec<u8>> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let mut query = Query::query(question.name.0.clone(), question.family.record_type());
    query.set_query_class(DNSClass::IN);
    message.add_query(query);
    message.to_vec().ok()
}

/// Reads the answer to the question that was asked with the identifier `id`.
pub fn answer(bytes: &[u8], id: u16, question: &Question) -> Result<Answer, Rejected> {
    let mut decoder = BinDecoder::new(bytes);
    let header = Header::read(&mut decoder).map_err(|_| Rejected::Malformed)?;
    let (meta, counts) = (header.metadata, header.counts);
    if meta.message_type != MessageType::Response || meta.op_code != OpCode::Query {
        return Err(Rejected::NotAnAnswer { id: meta.id });
    }
    if meta.id != id {
        return Err(Rejected::Identifier {
            found: meta.id,
            expected: id,
            name: question.name.clone(),
        });
    }
    // A server that cannot read the question may leave it out of its answer.
    let failure = match meta.response_code {
        ResponseCode::NoError => None,
        ResponseCode::ServFail => Some(Failure::Server),
        ResponseCode::NXDomain => Some(Failure::NotFound),
        ResponseCode::NotImp => Some(Failure::Unimplemented),
        ResponseCode::Refused => Some(Failure::Refused),
        other => {
            let code = other.into();
            return Err(Rejected::Code { code, id });
        }
    };
    if counts.queries != 1 {
        return Err(Rejected::Questions);
    }
    let asked = Query::read(&mut decoder).map_err(|_| Rejected::Malformed)?;
    if asked.name != question.name.0
        || asked.query_type != question.family.record_type()
        || asked.query_class != DNSClass::IN
    {
        let name = Name::of(&asked.name);
        return Err(Rejected::OtherQuestion { name });
    }
    if meta.truncation {
        return Ok(Answer::Truncated);
    }
    let mut records = |count: u16| {
        Message::read_records(&mut decoder, usize::from(count), false, OpCode::Query)
            .map(|(records, ..)| records)
            .map_err(|_| Rejected::Malformed)
    };
    let answers = records(counts.answers)?;
    let authorities = records(counts.authorities)?;
    Ok(match failure {
        Some(failure) => Answer::Failed {
            failure,
            ttl: negative_ttl(&authorities).filter(|_| failure == Failure::NotFound),
        },
        None => follow(&answers, &authorities, question),
    })
}

/// Follows aliases from the name that was asked to its addresses. Records that no alias leads to are not looked at.
fn follow(answers: &[Record], authorities: &[Record], question: &Question) -> Answer {
    let of_class = |record: &&Record| record.dns_class == DNSClass::IN;
    let mut names = vec![question.name.clone()];
    let mut ttl = u32::MAX;
    while let Some(current) = names.last()
        && names.len() <= ALIASES_MAX
    {
        let alias = answers.iter().filter(of_class).find_map(|record| {
            let RData::CNAME(target) = &record.data else {
                return None;
            };
            (record.name == current.0).then(|| (Name::of(&target.0), seconds(record)))
        });
        // An alias that leads back leads nowhere.
        match alias.filter(|(name, _)| !names.contains(name)) {
            Some((name, seconds)) => {
                ttl = ttl.min(seconds);
                names.push(name);
            }
            None => break,
        }
    }
    let mut addresses = Vec::new();
    for record in answers.iter().filter(of_class) {
        let address = match (&record.data, question.family) {
            (RData::A(address), Family::V4) => IpAddr::V4(address.0),
            (RData::AAAA(address), Family::V6) => IpAddr::V6(address.0),
            _ => continue,
        };
        let room = addresses.len() < ADDRESSES_MAX && !addresses.contains(&address);
        if room && names.iter().any(|name| record.name == name.0) {
            ttl = ttl.min(seconds(record));
            addresses.push(address);
        }
    }
    if !addresses.is_empty() {
        return Answer::Addresses { addresses, ttl };
    }
    match names.pop().filter(|_| !names.is_empty()) {
        // The root is no host: what is an alias of it has no address.
        Some(name) if !name.0.is_root() => Answer::Alias { name, ttl },
        _ => Answer::Nothing {
            ttl: negative_ttl(authorities),
        },
    }
}

/// A record's time to live; with the uppermost bit set it is zero (RFC 2181, section 8).
fn seconds(record: &Record) -> u32 {
    if record.ttl > i32::MAX as u32 {
        0
    } else {
        record.ttl
    }
}

/// How long "no such name" or "no such record" holds: what the SOA record of the zone says.
fn negative_ttl(authorities: &[Record]) -> Option<u32> {
    authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(seconds(record).min(soa.minimum)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
