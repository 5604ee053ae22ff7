//! DNS queries to name servers: over UDP, in turn, repeatedly until one answers or no request waits
//! any more; over TCP if an answer is too long for a datagram (RFC 1035, section 4.2).
//!
//! Each query uses a socket of its own, so that an attacker who forges an answer must guess the
//! port as well as the identifier (RFC 5452). Messages that do not match the query are logged and
//! dropped, and the wait continues.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::net::{Address, Datagram, SocketOptions};
use engine::select::{Either, both, either};
use framework::random;
use framework::workers::{ConnectError, TooManyConnections, connect, connect_datagrams};
use logs::{Errno, event};
use proto::dns::{
    self, ALIASES_MAX, DnsAnswer, DnsError, Family, HostName, Question, ServiceServer,
};

use super::Resolver;
use super::cache::Resolution;
use super::counted::QuestionKind;

/// How long a server may be silent before the next one is asked (nginx's `resend_timeout`).
const RESEND_INTERVAL: Duration = Duration::from_secs(5);

/// Time limit for connecting, querying and receiving the answer over TCP (nginx's `tcp_timeout`).
const TCP_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of mismatched messages after which this round does without the server.
const REJECTED_MAX: usize = 32;

/// Queries the addresses of a name and their TTL in seconds, both families at the same time. `None`
/// if `wanted` returns false, which is checked before each round of queries but the first.
pub(super) async fn ask(
    resolver: &Resolver,
    name: &HostName,
    first: usize,
    wanted: impl Fn() -> bool,
) -> Option<(Resolution, Option<u32>)> {
    let of_family = async |family, on: bool| {
        if !on {
            return Some(None);
        }
        let name = name.clone();
        let question = Question { name, family };
        let answer = persist(resolver, &question, first, &wanted).await?;
        Some(Some(answer))
    };
    resolver.counted.asked(QuestionKind::Name);
    let v4 = of_family(Family::V4, resolver.ipv4);
    let v6 = of_family(Family::V6, resolver.ipv6);
    let (v4, v6) = both(v4, v6).await;
    let found = combine([v4?, v6?].into_iter().flatten());
    resolver.counted.found(&found.0);
    Some(found)
}

/// Queries the SRV records of a service.
pub(super) async fn ask_for_service(
    resolver: &Resolver,
    name: &HostName,
) -> Result<(Vec<ServiceServer>, u32), DnsError> {
    resolver.counted.asked(QuestionKind::Service);
    let found = follow_service(resolver, name).await;
    match &found {
        Ok(_) => resolver.counted.answered(),
        Err(failure) => resolver.counted.failed(*failure),
    }
    found
}

async fn follow_service(
    resolver: &Resolver,
    name: &HostName,
) -> Result<(Vec<ServiceServer>, u32), DnsError> {
    let mut name = name.clone();
    for _ in 0..=ALIASES_MAX {
        let family = Family::Services;
        let question = Question { name, family };
        match persist(resolver, &question, 0, &|| true).await {
            Some(DnsAnswer::Services { servers, ttl }) => return Ok((servers, ttl)),
            Some(DnsAnswer::Alias { name: target, .. }) => name = target,
            Some(DnsAnswer::Failed { failure, .. }) => return Err(failure),
            _ => break,
        }
    }
    Err(DnsError::NotFound)
}

/// Combines the answers of both families: a failure if any failed; else all addresses; else the
/// aliases, which may differ between the families; else nothing.
fn combine(answers: impl IntoIterator<Item = DnsAnswer>) -> (Resolution, Option<u32>) {
    let (mut all, mut shortest) = (Vec::<IpAddr>::new(), u32::MAX);
    let (mut aliases, mut negative) = (Vec::new(), Some(u32::MAX));
    for answer in answers {
        match answer {
            DnsAnswer::Failed { failure, ttl } => return (Resolution::Failed(failure), ttl),
            DnsAnswer::Addresses { addresses, ttl } => {
                all.extend(addresses);
                shortest = shortest.min(ttl);
            }
            DnsAnswer::Alias { name, ttl } => {
                if !aliases.contains(&name) {
                    aliases.push(name);
                }
                shortest = shortest.min(ttl);
            }
            DnsAnswer::Nothing { ttl } => {
                negative = negative.and_then(|known| ttl.map(|ttl| ttl.min(known)));
            }
            // `ask_one` never returns `Truncated`, and the query was not for services.
            DnsAnswer::Truncated | DnsAnswer::Services { .. } => {
                return (Resolution::Failed(DnsError::Server), None);
            }
        }
    }
    if !all.is_empty() {
        (Resolution::Addresses(all.into()), Some(shortest))
    } else if !aliases.is_empty() {
        (Resolution::Alias(aliases.into()), Some(shortest))
    } else {
        (Resolution::Failed(DnsError::NotFound), negative)
    }
}

/// Queries the servers in turn, repeatedly, until one answers.
async fn persist(
    resolver: &Resolver,
    question: &Question,
    first: usize,
    wanted: &impl Fn() -> bool,
) -> Option<DnsAnswer> {
    let mut servers = resolver.servers.iter().cycle();
    let skipped = first.checked_rem(resolver.servers.len())?;
    let mut servers = servers.by_ref().skip(skipped);
    loop {
        let until = engine::now() + RESEND_INTERVAL;
        // After an immediate failure the next server is queried at once, but each server only once
        // per round.
        for server in servers.by_ref().take(resolver.servers.len()) {
            match ask_one(server, question, until).await {
                Ok(answer) => return Some(answer),
                Err(failure) => failure.log(server),
            }
            if engine::now() >= until {
                break;
            }
        }
        engine::sleep_until(until).await;
        if !wanted() {
            return None;
        }
    }
}

/// Why a server did not answer.
#[derive(Debug)]
enum QueryError {
    /// The thread has no room for the connection.
    TooManyConnections(TooManyConnections),
    Call {
        call: &'static str,
        error: io::Error,
    },
}

impl From<ConnectError> for QueryError {
    fn from(failed: ConnectError) -> QueryError {
        match failed {
            ConnectError::TooManyConnections(shortage) => QueryError::TooManyConnections(shortage),
            ConnectError::Failed(failed) => QueryError::at("connect()")(failed.error),
        }
    }
}

impl QueryError {
    fn at(call: &'static str) -> impl Fn(io::Error) -> QueryError {
        move |error| QueryError::Call { call, error }
    }

    /// Logs nginx's line; a timeout is not logged.
    fn log(&self, server: &Address) {
        match self {
            QueryError::TooManyConnections(shortage) if shortage.should_log => {
                event!(Alert, "{shortage} while resolving, resolver: {server}");
            }
            QueryError::Call { call, error } if error.kind() != io::ErrorKind::TimedOut => {
                let error = Errno(error);
                event!(
                    Error,
                    "{call} failed {error} while resolving, resolver: {server}"
                );
            }
            QueryError::TooManyConnections(_) | QueryError::Call { .. } => {}
        }
    }
}

async fn ask_one(
    server: &Address,
    question: &Question,
    until: Instant,
) -> Result<DnsAnswer, QueryError> {
    match over_udp(server, question, until).await? {
        DnsAnswer::Truncated => over_tcp(server, question).await,
        answer => Ok(answer),
    }
}

async fn over_udp(
    server: &Address,
    question: &Question,
    until: Instant,
) -> Result<DnsAnswer, QueryError> {
    let socket = connect_datagrams(server, &SocketOptions::default()).await?;
    let (id, query) = query(question);
    socket.push(Datagram::new(query.into()));
    socket.drained().await.map_err(QueryError::at("send()"))?;
    for _ in 0..REJECTED_MAX {
        let received = match either(socket.recv(), engine::sleep_until(until)).await {
            Either::First(received) => received,
            Either::Second(()) => Err(io::ErrorKind::TimedOut.into()),
        };
        let mut message = received.map_err(QueryError::at("recv()"))?.bytes;
        message.truncate(dns::UDP_SIZE_MAX);
        match dns::answer(&message, id, question) {
            Ok(answer) => return Ok(answer),
            Err(rejected) => event!(Error, "{rejected} while resolving, resolver: {server}"),
        }
    }
    Err(no_answer())
}

async fn over_tcp(server: &Address, question: &Question) -> Result<DnsAnswer, QueryError> {
    let deadline = engine::now() + TCP_TIMEOUT;
    let stream = connect(server, deadline).await?;
    let (id, query) = query(question);
    let length = u16::try_from(query.len()).unwrap_or_default();
    stream.push(bytes::Bytes::from(
        [&length.to_be_bytes(), &*query].concat(),
    ));
    stream.start_send();
    let mut received = Vec::new();
    let mut rejected_count = 0;
    while rejected_count < REJECTED_MAX {
        // A message may arrive in pieces, and after messages that do not match.
        let Some(message) = take_message(&mut received) else {
            let buffer = stream.recv(Some(deadline)).await;
            let buffer = buffer.map_err(QueryError::at("recv()"))?;
            if buffer.is_empty() {
                return Err(no_answer());
            }
            received.extend_from_slice(&buffer);
            continue;
        };
        match dns::answer(&message, id, question) {
            Ok(DnsAnswer::Truncated) => return Err(no_answer()),
            Ok(answer) => return Ok(answer),
            Err(rejected) => event!(Error, "{rejected} while resolving, resolver: {server}"),
        }
        rejected_count += 1;
    }
    Err(no_answer())
}

/// The message of a query, with an unpredictable identifier.
fn query(question: &Question) -> (u16, Vec<u8>) {
    let id = (random::number() & 0xffff) as u16;
    (id, dns::query(id, question))
}

/// Removes a complete message from the front of the bytes received over TCP, where a two-byte
/// length precedes each message.
fn take_message(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (length, rest) = received.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let message = rest.get(..length)?.to_vec();
    received.drain(..length + 2);
    Some(message)
}

fn no_answer() -> QueryError {
    QueryError::Call {
        call: "DNS query",
        error: io::Error::new(io::ErrorKind::InvalidData, "no valid answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use engine::net::DatagramSocket;
    use engine::sim::{self, Faults};
    use std::cell::Cell;
    use std::rc::Rc;

    fn found(addresses: &[&str], ttl: u32) -> DnsAnswer {
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let addresses = addresses.collect();
        DnsAnswer::Addresses { addresses, ttl }
    }

    fn nothing(ttl: Option<u32>) -> DnsAnswer {
        DnsAnswer::Nothing { ttl }
    }

    /// The result of nginx 1.31 for the pairs.
    #[test]
    fn two_answers_make_one() {
        let (resolution, ttl) = combine([found(&["10.0.0.1"], 60), found(&["::1"], 30)]);
        let all = ["10.0.0.1", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(
            (resolution, ttl),
            (Resolution::Addresses(all.into()), Some(30))
        );

        let missing = Resolution::Failed(DnsError::NotFound);
        let (resolution, ttl) = combine([nothing(Some(9)), nothing(Some(5))]);
        assert_eq!((resolution, ttl), (missing.clone(), Some(5)));
        assert_eq!(combine([nothing(None), nothing(Some(5))]), (missing, None));

        let failed = DnsAnswer::Failed {
            failure: DnsError::Server,
            ttl: None,
        };
        let (resolution, _) = combine([found(&["10.0.0.1"], 60), failed]);
        assert_eq!(resolution, Resolution::Failed(DnsError::Server));

        let name = HostName::parse(b"b").unwrap();
        let alias = DnsAnswer::Alias {
            name: name.clone(),
            ttl: 7,
        };
        let resolution = Resolution::Alias([name].into());
        assert_eq!(
            combine([alias.clone(), nothing(None)]),
            (resolution, Some(7))
        );
        let (resolution, _) = combine([alias, found(&["::1"], 30)]);
        assert!(matches!(resolution, Resolution::Addresses(_)));
    }

    #[test]
    fn messages_over_tcp_come_in_pieces() {
        let mut received = vec![0];
        assert_eq!(take_message(&mut received), None);
        received.extend([2, b'a']);
        assert_eq!(take_message(&mut received), None);
        received.extend([b'b', 0, 0, 0, 1]);
        assert_eq!(take_message(&mut received), Some(b"ab".to_vec()));
        assert_eq!(take_message(&mut received), Some(Vec::new()));
        assert_eq!(take_message(&mut received), None);
        assert_eq!(received, [0, 1]);
    }

    /// Queries a name on a simulated network with one server. Returns the result, the time that it
    /// took, and the number of queries that the server has received.
    fn over_network(seed: u64, faults: Faults, address: &str) -> (Resolution, Duration, usize) {
        const SERVER: &str = "10.0.0.1:53";
        let mut runtime = sim::runtime(seed, faults, engine::Settings::default()).unwrap();
        let asked = Rc::new(Cell::new(0));
        let begin = engine::now();
        let resolution = runtime.block_on(async {
            let server = DatagramSocket::bind(&Address::Inet(SERVER.parse().unwrap())).unwrap();
            let heard = Rc::clone(&asked);
            engine::spawn(async move {
                loop {
                    let question = server.recv().await.unwrap();
                    heard.set(heard.get() + 1);
                    // RFC 1035: a response; one answer, for the name that was asked, of the
                    // Internet, for a minute.
                    let mut answer = question.bytes.to_vec();
                    (answer[2], answer[7]) = (0x80, 1);
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 9, 8, 7]);
                    // A record that does not answer the question precedes the answer.
                    server.push(question.with(Bytes::from_static(b"what?")));
                    server.push(question.with(Bytes::from(answer)));
                    server.start_send();
                }
            });
            let resolver = Resolver {
                servers: [Address::Inet(address.parse().unwrap())].into(),
                valid: None,
                ipv4: true,
                ipv6: false,
                counted: crate::resolver::counted::ResolverCounter::default(),
            };
            let name = HostName::parse(b"site.example").unwrap();
            let rounds = Cell::new(0);
            let wanted = || rounds.replace(rounds.get() + 1) < 20;
            let found = ask(&resolver, &name, 0, wanted).await;
            found.map_or(Resolution::Failed(DnsError::Server), |(resolution, _)| {
                resolution
            })
        });
        (resolution, engine::now() - begin, asked.get())
    }

    #[test]
    fn a_question_is_asked_until_its_answer_comes_through() {
        let address = [10, 9, 8, 7].into();
        let expected = Resolution::Addresses([address].into());
        let faults = Faults {
            loss: 400,
            duplicate: 100,
            reorder: 500,
            ..Faults::default()
        };
        let mut rounds = Vec::new();
        for seed in 0..20 {
            let (resolution, time, _) = over_network(seed, faults.clone(), "10.0.0.1:53");
            assert_eq!(resolution, expected, "{seed}");
            rounds.push(time.as_secs() / RESEND_INTERVAL.as_secs());
        }
        assert!(
            rounds.contains(&0) && rounds.iter().any(|count| *count >= 2),
            "{rounds:?}"
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_asked_again_and_again() {
        let faults = Faults::default();
        let (resolution, time, asked) = over_network(1, faults, "10.0.0.2:53");
        assert_eq!(
            (resolution, asked),
            (Resolution::Failed(DnsError::Server), 0)
        );
        assert!(time >= 20 * RESEND_INTERVAL, "{time:?}");
    }
}
