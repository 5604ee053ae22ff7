//! Questions to name servers and what their answers mean: addresses of a name, RFC 1035, 2308 and
//! 3596, and servers of a service, RFC 2782.
//!
//! [`query`] writes a question; [`answer`] reads what came back and takes it only if it answers
//! that very question (RFC 5452: identifier, name, type and class). The bytes of names and records
//! are the business of `message`.
//!
//! Deliberately not here: sockets, time limits, retries and the cache (the server's resolver),
//! other records than A, AAAA, SRV and CNAME, extensions (EDNS) and signatures (DNSSEC). As nginx
//! does, the servers that are configured are trusted, and the way to them is.

mod message;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

pub use message::HostName;
use message::{Reader, Record};

/// Longest answer over UDP that is read, in bytes (nginx's `NGX_RESOLVER_UDP_SIZE`). Nothing but
/// 512 is promised without EDNS.
pub const UDP_SIZE_MAX: usize = 4096;

/// Most addresses that are taken from one answer.
pub const ADDRESSES_MAX: usize = 256;

/// Most messages with nothing but aliases that are followed from a name to its addresses (nginx's
/// `NGX_RESOLVER_MAX_RECURSION`).
pub const ALIASES_MAX: usize = 50;

/// Types of records, RFC 1035, section 3.2.2, RFC 3596, section 2.1, and RFC 2782.
mod kind {
    pub(super) const A: u16 = 1;
    pub(super) const CNAME: u16 = 5;
    pub(super) const SOA: u16 = 6;
    pub(super) const AAAA: u16 = 28;
    pub(super) const SRV: u16 = 33;
}

/// The class of the Internet.
const INTERNET: u16 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Records of type A.
    V4,
    /// Records of type AAAA.
    V6,
    /// Records of type SRV: servers of a service.
    Services,
}

impl Family {
    fn record_type(self) -> u16 {
        match self {
            Family::V4 => kind::A,
            Family::V6 => kind::AAAA,
            Family::Services => kind::SRV,
        }
    }
}

/// A server of a service, RFC 2782.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceServer {
    /// The name of the service server.
    pub name: HostName,
    /// The port on which the server listens.
    pub port: u16,
    /// Servers with the lowest priority value are tried first.
    pub priority: u16,
    /// Its share among those of the same priority.
    pub weight: u16,
}

/// What is asked: the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name that is asked for.
    pub name: HostName,
    /// The family of addresses that is asked for.
    pub family: Family,
}

/// What a server says. Times to live are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// Addresses, at least one.
    Addresses {
        /// In the order of the message, at most [`ADDRESSES_MAX`].
        addresses: Vec<IpAddr>,
        /// The shortest of all records that lead to them.
        ttl: u32,
    },
    /// Servers of a service, at least one.
    Services {
        /// In the order of the message, at most [`ADDRESSES_MAX`].
        servers: Vec<ServiceServer>,
        /// The shortest of all records that lead to them.
        ttl: u32,
    },
    /// The name is another one's alias, whose addresses the message does not have.
    Alias {
        /// The name that the alias leads to.
        name: HostName,
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
        /// The response code of the failure.
        failure: DnsError,
        /// How long that holds; only for [`DnsError::NotFound`].
        ttl: Option<u32>,
    },
    /// The answer did not fit into a datagram: ask again over TCP.
    Truncated,
}

/// Response codes that end a question, RFC 1035, section 4.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// The server failed: response code SERVFAIL.
    Server = 2,
    /// There is no such name: response code NXDOMAIN.
    NotFound = 3,
    /// The server knows no such question: NOTIMP.
    Unimplemented = 4,
    /// The server refuses to answer: REFUSED.
    Refused = 5,
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DnsError::Server => "Server failure",
            DnsError::NotFound => "Host not found",
            DnsError::Unimplemented => "Unimplemented",
            DnsError::Refused => "Operation refused",
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
        /// The identifier of the rejected message.
        id: u16,
    },
    /// It answers a question with another identifier.
    Identifier {
        /// The one it has.
        found: u16,
        /// The one it should have.
        expected: u16,
        /// The name that was asked.
        name: HostName,
    },
    /// It answers none, or several.
    Questions,
    /// It answers another question.
    OtherQuestion {
        /// The name in it.
        name: HostName,
    },
    /// The server did not understand the question, or answers with a code that questions do not
    /// have.
    Code {
        /// The response code of the message.
        code: u16,
        /// The identifier of the rejected message.
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

/// The message that asks `question`.
pub fn query(id: u16, question: &Question) -> Vec<u8> {
    const RECURSION_DESIRED: u16 = 0x0100;
    let header = [id, RECURSION_DESIRED, 1, 0, 0, 0];
    let mut out: Vec<u8> = header
        .iter()
        .flat_map(|field| field.to_be_bytes())
        .collect();
    question.name.write(&mut out);
    out.extend(question.family.record_type().to_be_bytes());
    out.extend(INTERNET.to_be_bytes());
    out
}

/// What stands at the beginning of a message, RFC 1035, section 4.1.1.
struct Header {
    id: u16,
    flags: u16,
    questions: u16,
    answers: u16,
    authorities: u16,
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Option<Header> {
        let header = Header {
            id: reader.number16()?,
            flags: reader.number16()?,
            questions: reader.number16()?,
            answers: reader.number16()?,
            authorities: reader.number16()?,
        };
        reader.number16().map(|_| header)
    }

    /// Whether it answers a plain question.
    fn is_answer(&self) -> bool {
        const RESPONSE: u16 = 0x8000;
        const OPERATION: u16 = 0x7800;
        self.flags & (RESPONSE | OPERATION) == RESPONSE
    }

    fn is_truncated(&self) -> bool {
        self.flags & 0x0200 != 0
    }

    fn code(&self) -> u16 {
        self.flags & 0x000f
    }
}

/// Reads the answer to the question that was asked with the identifier `id`.
pub fn answer(bytes: &[u8], id: u16, question: &Question) -> Result<DnsAnswer, Rejected> {
    let mut reader = Reader::new(bytes);
    let header = Header::read(&mut reader).ok_or(Rejected::Malformed)?;
    if !header.is_answer() {
        return Err(Rejected::NotAnAnswer { id: header.id });
    }
    if header.id != id {
        return Err(Rejected::Identifier {
            found: header.id,
            expected: id,
            name: question.name.clone(),
        });
    }
    // A server that cannot read the question may leave it out of its answer.
    let failure = match header.code() {
        0 => None,
        2 => Some(DnsError::Server),
        3 => Some(DnsError::NotFound),
        4 => Some(DnsError::Unimplemented),
        5 => Some(DnsError::Refused),
        code => return Err(Rejected::Code { code, id }),
    };
    if header.questions != 1 {
        return Err(Rejected::Questions);
    }
    let mut asked = || Some((reader.name()?, reader.number16()?, reader.number16()?));
    let (name, kind, class) = asked().ok_or(Rejected::Malformed)?;
    let is_same = name == question.name && kind == question.family.record_type();
    if !is_same || class != INTERNET {
        return Err(Rejected::OtherQuestion { name });
    }
    if header.is_truncated() {
        return Ok(DnsAnswer::Truncated);
    }
    let mut records = |count| reader.records(count).ok_or(Rejected::Malformed);
    let answers = records(header.answers)?;
    let authorities = records(header.authorities)?;
    let negative_ttl = || negative_ttl(&reader, &authorities);
    match failure {
        Some(failure) => Ok(DnsAnswer::Failed {
            failure,
            ttl: negative_ttl().filter(|_| failure == DnsError::NotFound),
        }),
        None => {
            let found = follow(&reader, &answers, question).ok_or(Rejected::Malformed)?;
            Ok(found.unwrap_or_else(|| DnsAnswer::Nothing {
                ttl: negative_ttl(),
            }))
        }
    }
}

/// Follows aliases from the name that was asked to its addresses. Records that no alias leads to
/// are not looked at. `None` where a record is malformed, and inside of that where there is neither
/// an address nor an alias.
fn follow(
    reader: &Reader<'_>,
    answers: &[Record],
    question: &Question,
) -> Option<Option<DnsAnswer>> {
    let of_kind = |kind| {
        let of_kind = move |record: &&Record| record.class == INTERNET && record.kind == kind;
        answers.iter().filter(of_kind)
    };
    let mut aliases = HashMap::new();
    for record in of_kind(kind::CNAME) {
        let target = reader.inside(record).name()?;
        // Of several that a name must not have the last holds, as in nginx.
        aliases.insert(&record.name, (target, seconds(record)));
    }
    let mut names = HashSet::from([&question.name]);
    let (mut last, mut ttl) = (&question.name, u32::MAX);
    // An alias that leads back leads nowhere.
    while let Some((target, seconds)) = aliases.get(last)
        && names.insert(target)
    {
        ttl = ttl.min(*seconds);
        last = target;
    }
    let (mut addresses, mut servers) = (Vec::new(), Vec::new());
    for record in of_kind(question.family.record_type()) {
        let address = match question.family {
            Family::V4 => IpAddr::from(reader.data::<4>(record)?),
            Family::V6 => IpAddr::from(reader.data::<16>(record)?),
            Family::Services => {
                let server = service_server(reader, record)?;
                // The root says that there is no such service.
                let is_one = servers.len() < ADDRESSES_MAX && !server.name.is_root();
                if is_one && names.contains(&record.name) {
                    ttl = ttl.min(seconds(record));
                    servers.push(server);
                }
                continue;
            }
        };
        // One that is there several times has that many shares of the requests, as in nginx.
        if addresses.len() < ADDRESSES_MAX && names.contains(&record.name) {
            ttl = ttl.min(seconds(record));
            addresses.push(address);
        }
    }
    Some(if !addresses.is_empty() {
        Some(DnsAnswer::Addresses { addresses, ttl })
    } else if !servers.is_empty() {
        Some(DnsAnswer::Services { servers, ttl })
    } else if *last == question.name || last.is_root() {
        // The root is no host: what is an alias of it has no address.
        None
    } else {
        let name = last.clone();
        Some(DnsAnswer::Alias { name, ttl })
    })
}

fn service_server(reader: &Reader<'_>, record: &Record) -> Option<ServiceServer> {
    let mut data = reader.inside(record);
    Some(ServiceServer {
        priority: data.number16()?,
        weight: data.number16()?,
        port: data.number16()?,
        name: data.name()?,
    })
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
fn negative_ttl(reader: &Reader<'_>, authorities: &[Record]) -> Option<u32> {
    let mut zones = authorities.iter().filter(|record| record.kind == kind::SOA);
    zones.find_map(|record| {
        let mut data = reader.inside(record);
        // Server and mailbox; serial number, refresh, retry and expire.
        data.name()?;
        data.name()?;
        for _ in 0..4 {
            data.number32()?;
        }
        Some(seconds(record).min(data.number32()?))
    })
}

#[cfg(test)]
mod tests;
