//! DNS queries and responses: addresses of a name (RFC 1035, 2308 and 3596), and servers of a
//! service (RFC 2782).
//!
//! [`query`] encodes a query. [`answer`] parses a response, and accepts it only if it matches the
//! query (RFC 5452: identifier, name, type and class). `message` contains the encoding of names and
//! records.
//!
//! Deliberately not here: sockets, timeouts, retries and the cache (the server's resolver), record
//! types other than A, AAAA, SRV and CNAME, EDNS and DNSSEC. As in nginx, the configured name
//! servers and the network path to them are trusted.

mod message;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

pub use message::HostName;
use message::{Reader, Record};

/// Maximum length of a response over UDP, in bytes (nginx's `NGX_RESOLVER_UDP_SIZE`). Without EDNS,
/// only 512 are guaranteed.
pub const UDP_SIZE_MAX: usize = 4096;

/// Maximum number of addresses used from one response.
pub const ADDRESSES_MAX: usize = 256;

/// Limit of responses with only an alias that are followed from a name to its addresses (nginx's
/// `NGX_RESOLVER_MAX_RECURSION`).
pub const ALIASES_MAX: usize = 50;

/// Record types: RFC 1035 section 3.2.2, RFC 3596 section 2.1, and RFC 2782.
mod kind {
    pub(super) const A: u16 = 1;
    pub(super) const CNAME: u16 = 5;
    pub(super) const SOA: u16 = 6;
    pub(super) const AAAA: u16 = 28;
    pub(super) const SRV: u16 = 33;
}

/// The class IN (Internet).
const INTERNET: u16 = 1;

/// The type of records to query.
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

/// A server of a service (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceServer {
    /// The name of the server.
    pub name: HostName,
    /// The port on which the server listens.
    pub port: u16,
    /// Servers with the lowest priority value are tried first.
    pub priority: u16,
    /// The weight among servers with the same priority.
    pub weight: u16,
}

/// A query for records of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name to query.
    pub name: HostName,
    /// The type of records to query.
    pub family: Family,
}

/// The result of a query. Times to live are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// Addresses, at least one.
    Addresses {
        /// In the order of the message, at most [`ADDRESSES_MAX`].
        addresses: Vec<IpAddr>,
        /// The minimum TTL of all records that lead to the addresses.
        ttl: u32,
    },
    /// Servers of a service, at least one.
    Services {
        /// In the order of the message, at most [`ADDRESSES_MAX`].
        servers: Vec<ServiceServer>,
        /// The minimum TTL of all records that lead to the servers.
        ttl: u32,
    },
    /// The name is an alias, and the response does not contain the target's addresses.
    Alias {
        /// The target of the last alias.
        name: HostName,
        /// The minimum TTL of all records that lead to the target.
        ttl: u32,
    },
    /// There are no records of the requested type.
    Nothing {
        /// How long this result may be cached; `None` if the server does not say (RFC 2308, section
        /// 5).
        ttl: Option<u32>,
    },
    /// The server returned an error.
    Failed {
        /// The response code of the failure.
        failure: DnsError,
        /// How long the error may be cached; only for [`DnsError::NotFound`].
        ttl: Option<u32>,
    },
    /// The response did not fit into a datagram: the query must be repeated over TCP.
    Truncated,
}

/// Response codes that end a query (RFC 1035, section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// SERVFAIL: the server failed.
    Server = 2,
    /// NXDOMAIN: the name does not exist.
    NotFound = 3,
    /// NOTIMP: the server does not support this kind of query.
    Unimplemented = 4,
    /// REFUSED: the server refuses to answer.
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

/// Why a message is not a response to the query. The message is ignored, and the query remains
/// open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The message is truncated, or violates the format.
    Malformed,
    /// The message is a query, or the response to another operation than a standard query.
    NotAnAnswer {
        /// The identifier of the message.
        id: u16,
    },
    /// The message has another identifier than the query.
    Identifier {
        /// The identifier of the message.
        found: u16,
        /// The identifier of the query.
        expected: u16,
        /// The name in the query.
        name: HostName,
    },
    /// The message contains no question, or several.
    Questions,
    /// The message answers another question.
    OtherQuestion {
        /// The name in the message's question.
        name: HostName,
    },
    /// The server could not parse the query (FORMERR), or the response code is unknown.
    Code {
        /// The response code.
        code: u16,
        /// The identifier of the message.
        id: u16,
    },
}

impl fmt::Display for Rejected {
    /// nginx's message for the error log.
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

/// Encodes the query for `question`.
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

/// The header of a message (RFC 1035, section 4.1.1).
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

    /// Whether this is the response to a standard query.
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

/// Parses a response to the query for `question` with the identifier `id`.
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
    // A server that cannot parse the query may omit the question from its response.
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

/// Follows aliases from the queried name to its records, and ignores records to which no alias
/// leads. The outer `None` is a malformed record; the inner one means neither records nor an alias.
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
        // Of several CNAME records of a name, which are not allowed, the last is used, as in nginx.
        aliases.insert(&record.name, (target, seconds(record)));
    }
    let mut names = HashSet::from([&question.name]);
    let (mut last, mut ttl) = (&question.name, u32::MAX);
    // Stops at a loop of aliases.
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
                // The root as target means that the service does not exist.
                let is_one = servers.len() < ADDRESSES_MAX && !server.name.is_root();
                if is_one && names.contains(&record.name) {
                    ttl = ttl.min(seconds(record));
                    servers.push(server);
                }
                continue;
            }
        };
        // A repeated address is used repeatedly, and receives a larger share of the requests, as in
        // nginx.
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
        // The root is not a host: an alias of the root has no address.
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

/// A record's TTL in seconds; 0 if the highest bit is set (RFC 2181, section 8).
fn seconds(record: &Record) -> u32 {
    if record.ttl > i32::MAX as u32 {
        0
    } else {
        record.ttl
    }
}

/// How long a negative result may be cached, by the zone's SOA record.
fn negative_ttl(reader: &Reader<'_>, authorities: &[Record]) -> Option<u32> {
    let mut zones = authorities.iter().filter(|record| record.kind == kind::SOA);
    zones.find_map(|record| {
        let mut data = reader.inside(record);
        // MNAME and RNAME; then serial, refresh, retry and expire.
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
