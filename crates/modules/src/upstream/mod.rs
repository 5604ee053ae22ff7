//! `upstream`: groups of servers that requests are passed on to.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html>. A [`Group`] is what an
//! `upstream` block declares, or a host name with its addresses that `proxy_pass` names itself.
//! `round_robin` chooses the peer of each try and remembers which ones failed.
//!
//! Not here yet, and a clear error where written: `max_conns`, `resolve`, `slow_start` and other
//! parameters of `server`, shared state (`zone`), and other methods than weighted round robin.

mod round_robin;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Files, Inherit, ScopeRef, Setter, Setting, Word, parse,
};
use engine::net::Address;
use framework::address;
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;

pub use round_robin::{STATES, Selection, States};

static UPSTREAM: Setting<()> = Setting::new("upstream", &["name { ... }"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(Arity::exactly(1))
    .block()
    .opens(Contexts::UPSTREAM)
    .manual(
        "A group of servers under a name that `proxy_pass` takes in place of a host. Requests \
         are shared out by weighted round robin; each worker thread counts for itself.",
    );

static SERVER: Setting<Vec<Server>> = Setting::new(
    "server",
    &["address [weight=number] [max_fails=number] [fail_timeout=time] [backup] [down]"],
    |setter| {
        setter
            .lines()
            .iter()
            .map(|line| Server::parse(&line.args))
            .collect()
    },
)
.contexts(Contexts::UPSTREAM)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "A server of the group: HOST[:PORT] or unix:PATH; a name stands for all its addresses. It \
     gets `weight` (1) parts of the requests. After `max_fails` (1) failed tries within \
     `fail_timeout` (10s) it gets none for that time; `max_fails=0` never gives it up. A `backup` \
     is asked when all others are out; `down` takes it out for good.",
);

macro_rules! accepted {
    ($($name:ident = $directive:literal, $syntax:literal, $arity:expr, $check:expr, $manual:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], $check)
            .contexts(Contexts::UPSTREAM)
            .arity($arity)
            .no_effect("connections to upstreams are not kept yet")
            .manual($manual);)*
    };
}

accepted! {
    KEEPALIVE = "keepalive", "connections [local]", Arity::between(1, 2), keepalive,
        "How many idle connections to the group's servers a worker of nginx keeps.";
    KEEPALIVE_REQUESTS = "keepalive_requests", "number", Arity::exactly(1),
        |setter| parse::number(setter).map(drop),
        "How many requests nginx sends over one connection to a server of the group.";
    KEEPALIVE_TIME = "keepalive_time", "time", Arity::exactly(1),
        |setter| parse::milliseconds(setter).map(drop),
        "How old a connection to a server of the group may be when nginx sends another request over it.";
    KEEPALIVE_TIMEOUT = "keepalive_timeout", "timeout", Arity::exactly(1),
        |setter| parse::milliseconds(setter).map(drop),
        "How long nginx keeps an idle connection to a server of the group.";
}

fn keepalive(setter: &Setter<'_>) -> Result<(), Fault> {
    let connections = setter.word()?;
    if parse::number_of(&connections.bytes).is_none() {
        let text = format!(
            "invalid value \"{}\" in \"keepalive\" directive",
            connections.text()
        );
        return Err(Fault::at(connections, text));
    }
    match setter.args().get(1) {
        Some(word) if &*word.bytes != b"local" => Err(Fault::invalid_parameter(word)),
        _ => Ok(()),
    }
}

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &UPSTREAM,
    &SERVER,
    &KEEPALIVE,
    &KEEPALIVE_REQUESTS,
    &KEEPALIVE_TIME,
    &KEEPALIVE_TIMEOUT,
];

/// One line of `server` in an `upstream` block.
#[derive(Clone, Debug)]
struct Server {
    address: Word,
    weight: i64,
    max_fails: u64,
    fail_timeout: Duration,
    backup: bool,
    down: bool,
}

impl Server {
    fn parse(words: &[Word]) -> Result<Server, Fault> {
        let [address, parameters @ ..] = words else {
            return Err(Fault::new(
                "invalid number of arguments in \"server\" directive",
            ));
        };
        let mut server = Server {
            address: address.clone(),
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            backup: false,
            down: false,
        };
        for word in parameters {
            server
                .take(&word.bytes)
                .ok_or_else(|| parameter_fault(word))?;
        }
        Ok(server)
    }

    /// Takes a parameter; `None` where it is not one, or not a valid one.
    fn take(&mut self, parameter: &[u8]) -> Option<()> {
        if let Some(weight) = parameter.strip_prefix(b"weight=") {
            let weight = parse::number_of(weight).filter(|weight| *weight > 0)?;
            self.weight = i64::try_from(weight).ok()?;
        } else if let Some(fails) = parameter.strip_prefix(b"max_fails=") {
            self.max_fails = parse::number_of(fails)?;
        } else if let Some(time) = parameter.strip_prefix(b"fail_timeout=") {
            self.fail_timeout = Duration::from_secs(parse::time_seconds(time)?);
        } else if parameter == b"backup" {
            self.backup = true;
        } else if parameter == b"down" {
            self.down = true;
        } else {
            return None;
        }
        Some(())
    }

    /// A peer for each address.
    fn peers(&self, files: &dyn Files) -> Result<Vec<Peer>, Fault> {
        let fault = |text: &str| {
            let text = format!("{text} in upstream \"{}\"", self.address.text());
            Fault::at(&self.address, text)
        };
        let written = address::parse(&self.address.bytes).map_err(fault)?;
        let addresses = written
            .resolve(files, DEFAULT_PORT)
            .ok_or_else(|| fault("host not found"))?;
        let peer = |address: Address| Peer {
            weight: self.weight,
            max_fails: self.max_fails,
            fail_timeout: self.fail_timeout,
            down: self.down,
            ..Peer::new(address)
        };
        Ok(addresses.into_iter().map(peer).collect())
    }
}

/// The port of a server that is written without one.
const DEFAULT_PORT: u16 = 80;

/// What nginx has and we have not is said so; all else is nginx's error.
fn parameter_fault(word: &Word) -> Fault {
    const NOT_YET: [&[u8]; 6] = [
        b"max_conns=",
        b"slow_start=",
        b"service=",
        b"route=",
        b"resolve",
        b"drain",
    ];
    if NOT_YET.iter().any(|known| word.bytes.starts_with(known)) {
        let text = format!("parameter \"{}\" is not supported yet", word.text());
        return Fault::at(word, text);
    }
    Fault::invalid_parameter(word)
}

/// One address of a server, with how much it gets and when it is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it is.
    pub address: Address,
    /// The address as `$upstream_addr` and log lines show it.
    pub name: Bytes,
    weight: i64,
    /// Failed tries that put it out; 0 is never.
    max_fails: u64,
    /// How long failures count, and how long it is out.
    fail_timeout: Duration,
    down: bool,
}

impl Peer {
    /// A peer with nginx's defaults.
    fn new(address: Address) -> Peer {
        Peer {
            name: address.to_string().into(),
            address,
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            down: false,
        }
    }
}

/// Peers that share requests out among them, and others that stand by.
#[derive(Debug)]
pub struct Group {
    /// The block's name, or the host.
    pub name: Bytes,
    /// Where a thread keeps the states of its peers: the place in [`Groups`]. A group of one peer
    /// needs no states.
    number: usize,
    peers: Box<[Peer]>,
    backups: Box<[Peer]>,
}

impl Group {
    /// A group of one peer, which is asked whatever it did before.
    pub fn of_one(name: Bytes, address: Address) -> Arc<Group> {
        Arc::new(Group {
            name,
            number: 0,
            peers: [Peer::new(address)].into(),
            backups: Box::default(),
        })
    }

    /// A group of what a name was resolved to for one request, all alike. What its peers do is forgotten with it.
    pub fn of_addresses(name: Bytes, addresses: impl IntoIterator<Item = Address>) -> Arc<Group> {
        Arc::new(Group {
            name,
            number: Group::PASSING,
            peers: addresses.into_iter().map(Peer::new).collect(),
            backups: Box::default(),
        })
    }

    /// The number of a group that no table has: its selection keeps the states.
    const PASSING: usize = usize::MAX;

    /// Whether there is no choice.
    fn is_single(&self) -> bool {
        self.peers.len() == 1 && self.backups.is_empty()
    }

    /// The most tries that a request has: each peer once.
    fn tries(&self) -> usize {
        let all = self.peers.iter().chain(&self.backups);
        all.filter(|peer| !peer.down).count()
    }
}

/// The groups of one configuration: those of `upstream` blocks, and host names.
#[derive(Debug, Default)]
pub struct Groups {
    entries: Vec<Entry>,
}

impl Registry for Groups {}

/// Adds the groups of servers to the generation.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    generation.add(compiler.registries.take::<Groups>());
}

#[derive(Debug)]
struct Entry {
    /// `None` for an `upstream` block.
    port: Option<u16>,
    group: Arc<Group>,
}

impl Groups {
    /// The group of an `upstream` block, its name in any case.
    pub fn declared(&self, name: &[u8]) -> Option<&Arc<Group>> {
        self.find(name, None)
    }

    /// The group for a host with or without a port, as a URL names it: a block without one, else
    /// a host that another URL names with the same port.
    pub fn named(&self, name: &[u8], port: Option<u16>, default_port: u16) -> Option<&Arc<Group>> {
        let block = || self.declared(name).filter(|_| port.is_none());
        block().or_else(|| self.find(name, Some(port.unwrap_or(default_port))))
    }

    /// The group of a host's addresses, resolved when it is first named; `None` where it has no
    /// address.
    pub fn host(
        &mut self,
        written: &address::Written<'_>,
        files: &dyn Files,
        default_port: u16,
    ) -> Option<Arc<Group>> {
        let port = written.port.unwrap_or(default_port);
        if let Some(known) = self.find(written.name, Some(port)) {
            return Some(Arc::clone(known));
        }
        let peers = written
            .resolve(files, port)?
            .into_iter()
            .map(Peer::new)
            .collect();
        let name = Bytes::copy_from_slice(written.name);
        Some(self.add(name, Some(port), peers, Box::default()))
    }

    fn find(&self, name: &[u8], port: Option<u16>) -> Option<&Arc<Group>> {
        let found = self
            .entries
            .iter()
            .find(|entry| entry.port == port && entry.group.name.eq_ignore_ascii_case(name))?;
        Some(&found.group)
    }

    fn add(
        &mut self,
        name: Bytes,
        port: Option<u16>,
        peers: Box<[Peer]>,
        backups: Box<[Peer]>,
    ) -> Arc<Group> {
        let group = Arc::new(Group {
            name,
            number: self.entries.len(),
            peers,
            backups,
        });
        self.entries.push(Entry {
            port,
            group: Arc::clone(&group),
        });
        group
    }
}

/// Makes the groups of all `upstream` blocks, before anything refers to them: a block may stand
/// behind its use.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    for block in http.children("upstream") {
        if let Err(fault) = declare(compiler, block) {
            compiler.report(fault);
        }
    }
}

fn declare(compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<(), Fault> {
    let Some((line, [name])) = block.line().map(|line| (line, line.args.as_slice())) else {
        return Ok(()); // the arity has been checked
    };
    let groups = compiler.registry::<Groups>();
    let mut groups = groups.borrow_mut();
    if groups.declared(&name.bytes).is_some() {
        let text = format!("duplicate upstream \"{}\"", name.text());
        return Err(Fault::at(name, text).while_reading());
    }
    let servers = block.own(&SERVER).map_err(Fault::while_reading)?;
    let servers = servers.unwrap_or_default();
    if servers.is_empty() {
        // nginx finds it where the block ends, behind faults of its lines: a `server` with such a fault may be the reason.
        let fault = Fault::new("no servers are inside upstream").or_at(line.end());
        let fault = fault.with_related(line.position, "the block is opened here");
        return Err(fault.while_reading());
    }
    let (mut peers, mut backups) = (Vec::new(), Vec::new());
    for server in servers {
        let side = if server.backup {
            &mut backups
        } else {
            &mut peers
        };
        let peers = server.peers(compiler.files);
        side.extend(peers.map_err(Fault::while_reading)?);
    }
    if peers.is_empty() {
        // nginx finds it where the whole is read.
        let text = format!("no servers in upstream \"{}\"", name.text());
        return Err(Fault::at(&line.name, text));
    }
    let name = Bytes::copy_from_slice(&name.bytes);
    groups.add(name, None, peers.into(), backups.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Server, String> {
        let word = |text: &str| Word {
            bytes: text.as_bytes().into(),
            quoted: false,
            position: Default::default(),
        };
        let words: Vec<Word> = line.split(' ').map(word).collect();
        Server::parse(&words).map_err(|fault| fault.message)
    }

    #[test]
    fn lines_of_server() {
        let plain = parsed("10.0.0.1").unwrap();
        assert_eq!((plain.weight, plain.max_fails), (1, 1));
        assert_eq!(plain.fail_timeout, Duration::from_secs(10));
        assert!(!plain.backup && !plain.down);

        let full = parsed("a:1 weight=5 max_fails=0 fail_timeout=1m backup down").unwrap();
        assert_eq!((full.weight, full.max_fails), (5, 0));
        assert_eq!(full.fail_timeout, Duration::from_secs(60));
        assert!(full.backup && full.down);
    }

    /// Texts of nginx 1.31; what it has and we have not is a clear error.
    #[test]
    fn faults_of_server() {
        for parameter in [
            "weight=0",
            "weight=x",
            "max_fails=-1",
            "fail_timeout=1x",
            "up",
        ] {
            let text = format!("invalid parameter \"{parameter}\"");
            assert_eq!(parsed(&format!("a {parameter}")).map(drop), Err(text));
        }
        let text = "parameter \"max_conns=3\" is not supported yet".to_owned();
        assert_eq!(parsed("a max_conns=3").map(drop), Err(text));
    }

    #[test]
    fn a_name_stands_for_all_its_addresses() {
        let server = parsed("[::1]:81 weight=2 down").unwrap();
        let peers = server.peers(&conf::Disk).unwrap();
        assert_eq!(peers.len(), 1);
        assert_eq!(peers[0].name, "[::1]:81");
        assert!(peers[0].down && peers[0].weight == 2);
        assert_eq!(
            parsed("10.0.0.1").unwrap().peers(&conf::Disk).unwrap()[0].name,
            "10.0.0.1:80"
        );
        let fault = parsed("10.0.0.1:0")
            .unwrap()
            .peers(&conf::Disk)
            .unwrap_err();
        assert_eq!(fault.message, "invalid port in upstream \"10.0.0.1:0\"");
    }

    #[test]
    fn a_group_is_found_by_name_and_port() {
        let mut groups = Groups::default();
        let peers = || vec![Peer::new(Address::Unix("/a".into()))].into();
        let block = groups.add("Backend".into(), None, peers(), Box::default());
        let host = groups.add("localhost".into(), Some(8080), peers(), Box::default());
        let is = |found: Option<&Arc<Group>>, group| found.is_some_and(|it| Arc::ptr_eq(it, group));
        assert!(is(groups.declared(b"backend"), &block));
        assert!(is(groups.named(b"BACKEND", None, 80), &block));
        assert!(groups.named(b"backend", Some(80), 80).is_none());
        assert!(is(groups.named(b"localhost", Some(8080), 80), &host));
        assert!(groups.named(b"localhost", None, 80).is_none());
        assert!(groups.declared(b"localhost").is_none());
    }
}
