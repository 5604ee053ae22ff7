//! `health_check`: what checks of servers have in common, whatever is asked of a server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html>, of NGINX Plus. A protocol
//! declares the directive with what is its own beside the [`Schedule`], and says with a [`Prober`]
//! how a server is asked; [`watch`] is when. What a finding means for requests is the business of
//! the crate `upstream`.
//!
//! ```text
//! watch ─▶ keep_probing, for each peer that there is ─▶ Prober::probe ─▶ PeerCheck::note
//! ```

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::{Check, Finding, Health, HealthChange, Peer};
use bytes::Bytes;
use conf::{ScopeRef, Word, parse};
use engine::net::Address;
use logs::{Printable, Subject};

use super::{Group, Upstreams};

/// How soon peers that a lookup has added are found.
const LOOK: Duration = Duration::from_secs(1);

/// When the peers of a group are asked, and how often one must fail or pass.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The time between two checks of a peer.
    pub interval: Duration,
    /// A time up to this one is added by chance.
    pub jitter: Duration,
    /// Failed checks in a row after which a peer is unhealthy.
    pub fails: u64,
    /// Passed checks in a row after which a peer is healthy again.
    pub passes: u64,
    /// A peer that is new gets nothing until it has passed.
    pub mandatory: bool,
    /// Where the check is mandatory, a peer that was healthy before a reload goes on.
    pub persistent: bool,
    /// The `match` block that says how an answer must be.
    pub match_name: Option<Word>,
    /// The port that is asked in place of the server's own.
    pub port: Option<u16>,
}

impl Default for Schedule {
    /// What holds without parameters.
    fn default() -> Schedule {
        Schedule {
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            fails: 1,
            passes: 1,
            mandatory: false,
            persistent: false,
            match_name: None,
            port: None,
        }
    }
}

/// What a parameter of `health_check` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A parameter of all protocols; it has been read.
    Taken,
    /// Not a common parameter; it may be one of the protocol.
    Unknown,
    /// A parameter of all protocols with an invalid value.
    Invalid,
}

impl Schedule {
    /// Takes a parameter that checks of all protocols have.
    pub fn take(&mut self, word: &Word) -> Parameter {
        match self.take_known(word) {
            Some(known) => known,
            None => Parameter::Invalid,
        }
    }

    fn take_known(&mut self, word: &Word) -> Option<Parameter> {
        let (name, value) = name_and_value(&word.bytes);
        let time = |text: &[u8]| parse::time_milliseconds(text).map(Duration::from_millis);
        let positive = |text: &[u8]| parse::number_of(text).filter(|number| *number > 0);
        match (name, value) {
            (b"interval", Some(value)) => {
                self.interval = time(value).filter(|time| !time.is_zero())?;
            }
            (b"jitter", Some(value)) => self.jitter = time(value)?,
            (b"fails", Some(value)) => self.fails = positive(value)?,
            (b"passes", Some(value)) => self.passes = positive(value)?,
            (b"port", Some(value)) => self.port = Some(u16::try_from(positive(value)?).ok()?),
            (b"match", Some(value)) => {
                let bytes = value.into();
                self.match_name = Some(Word {
                    bytes,
                    ..word.clone()
                });
            }
            (b"mandatory", None) => self.mandatory = true,
            (b"persistent", None) if self.mandatory => self.persistent = true,
            (b"persistent", None) => return None,
            _ => return Some(Parameter::Unknown),
        }
        Some(Parameter::Taken)
    }

    /// What a group has to know of the check before it is made, which stands in this scope.
    pub fn check(&self, scope: ScopeRef<'_>) -> Check {
        Check {
            place: scope.place(&["server_name"]).into(),
            mandatory: self.mandatory,
            persistent: self.persistent,
        }
    }
}

/// A parameter's name and what follows its `=`.
pub fn name_and_value(parameter: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'=', parameter) {
        Some(at) => (&parameter[..at], Some(&parameter[at + 1..])),
        None => (parameter, None),
    }
}

/// A check of the peers of a group.
pub struct PeerCheck<U: Upstreams> {
    /// The group.
    pub group: Arc<Group<U>>,
    /// Which of the checks that are made of the group.
    pub number: usize,
    /// When peers are asked.
    pub schedule: Schedule,
}

impl<U: Upstreams> PeerCheck<U> {
    /// Where a peer is asked.
    pub fn address(&self, peer: &Peer) -> Address {
        match (&peer.address, self.schedule.port) {
            (Address::Inet(address), Some(port)) => {
                Address::Inet(SocketAddr::new(address.ip(), port))
            }
            (address, _) => address.clone(),
        }
    }

    /// What log lines say of a check in the place of a client.
    pub fn about(&self, peer: &Peer) -> Arc<str> {
        let match_name = self.schedule.match_name.as_ref();
        let match_name: &[u8] = match_name.map_or(b"", |name| &name.bytes);
        let texts: [&[u8]; 3] = [match_name, &peer.name, self.group.name()];
        let [name, peer, group] = texts.map(|text| Printable(text).to_string());
        let about = format!("health check \"{name}\" of peer {peer} in upstream \"{group}\"");
        match self.schedule.port {
            Some(port) => format!("{about}, port {port}").into(),
            None => about.into(),
        }
    }

    /// Notes what has come of a check, and logs it where it is news: what was tested last, or what
    /// the check has failed at.
    pub fn note(
        &self,
        subject: &impl Subject,
        peer: &Peer,
        health: &Health,
        judged: Result<&'static str, &'static str>,
    ) {
        let change = match judged {
            Ok(_) => health.passed(self.number, self.schedule.passes),
            Err(_) => health.failed(self.number, self.schedule.fails),
        };
        let (Ok(doing) | Err(doing)) = judged;
        tell(subject, change, doing);
        if change.finding == Some(Finding::Unhealthy) {
            peer.note_unhealthy(engine::now());
        }
        if change.recovered {
            self.group.shared.recovered(peer, engine::now());
        }
    }

    /// Whether a peer is in its group still.
    fn has(&self, health: &Arc<Health>) -> bool {
        let peers = self.group.shared.peers();
        let asked = peers.iter().filter(|peer| !peer.down);
        let mut healths = asked.filter_map(Peer::health);
        healths.any(|known| Arc::ptr_eq(known, health))
    }
}

fn tell(subject: &impl Subject, change: HealthChange, doing: &str) {
    match change.finding {
        Some(Finding::Unhealthy) => logs::error!(subject, Warn, "peer is unhealthy {doing}"),
        Some(_) => logs::error!(subject, Notice, "peer is healthy {doing}"),
        None => {}
    }
}

/// Sends the probes of a protocol to the peers of a group.
pub trait Prober {
    /// What groups are to the protocol.
    type Upstreams: Upstreams;

    /// What is kept from one check of a peer to its next.
    type Kept: Default;

    /// The check that is made.
    fn check(&self) -> &PeerCheck<Self::Upstreams>;

    /// Asks a peer once, and notes what has come of it.
    fn probe(
        &self,
        peer: &Peer,
        health: &Health,
        kept: &mut Self::Kept,
    ) -> impl Future<Output = ()>;
}

/// The peers that are being probed, by their healths.
type Probed = Rc<RefCell<Vec<Arc<Health>>>>;

/// Starts to probe whatever peers there are. Those that leave the group end by themselves.
pub async fn watch<P: Prober + 'static>(prober: Rc<P>) {
    let probed = Probed::default();
    let group = Arc::clone(&prober.check().group.shared);
    loop {
        for peer in group.peers().iter().filter(|peer| !peer.down) {
            let Some(health) = peer.health() else {
                continue;
            };
            let mut known = probed.borrow_mut();
            if !known.iter().any(|known| Arc::ptr_eq(known, health)) {
                known.push(Arc::clone(health));
                let (prober, probed) = (Rc::clone(&prober), Rc::clone(&probed));
                engine::spawn(keep_probing(prober, peer.share(), probed));
            }
        }
        if !group.may_change() {
            return;
        }
        engine::sleep(LOOK).await;
    }
}

/// Probes a peer again and again, as long as it is in its group.
async fn keep_probing<P: Prober>(prober: Rc<P>, peer: Peer, probed: Probed) {
    let Some(health) = peer.health().cloned() else {
        return;
    };
    let schedule = &prober.check().schedule;
    let mut kept = P::Kept::default();
    let mut pause = Duration::ZERO;
    loop {
        engine::sleep(pause + by_chance(schedule.jitter)).await;
        pause = schedule.interval;
        if !prober.check().has(&health) {
            break;
        }
        prober.probe(&peer, &health, &mut kept).await;
    }
    let mut probed = probed.borrow_mut();
    probed.retain(|known| !Arc::ptr_eq(known, &health));
}

/// A time up to this one.
fn by_chance(most: Duration) -> Duration {
    let most = usize::try_from(most.as_millis()).unwrap_or(usize::MAX);
    let millis = framework::random::below(most.saturating_add(1));
    Duration::from_millis(millis as u64)
}

/// The host that the directive which passes something on names, of those that a check may stand
/// beside.
pub fn named_group<'a>(scope: ScopeRef<'a>, passes: &[&str]) -> Option<&'a [u8]> {
    let is_pass = |line: &&conf::Line| passes.iter().any(|pass| line.is(pass));
    let line = scope.lines().iter().find(is_pass)?;
    let url = &*line.argument(0).bytes;
    let host = match memchr::memmem::find(url, b"://") {
        Some(scheme) => url.get(scheme + b"://".len()..)?,
        None => url,
    };
    let end = memchr::memchr2(b'/', b'?', host).unwrap_or(host.len());
    host.get(..end)
}

/// The name of a group that a check wants, which has no zone: health is for all threads to see.
pub fn without_zone(name: &Bytes) -> String {
    let name = String::from_utf8_lossy(name);
    format!("health checks require upstream \"{name}\" to be in shared memory")
}
