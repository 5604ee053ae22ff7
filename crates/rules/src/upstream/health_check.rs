//! `health_check`: the part that the health checks of all protocols have in common.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html>, of NGINX Plus. A protocol
//! declares the directive with its own parameters in addition to the [`Schedule`], and sends probes
//! with a [`Prober`]; [`watch`] runs the schedule. The crate `upstream` applies the results.
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

/// The interval at which the group is searched for new peers.
const LOOK: Duration = Duration::from_secs(1);

/// When the peers of a group are probed, and how many results change their state.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The time between two checks of a peer.
    pub interval: Duration,
    /// Maximum of the random time that is added to the interval.
    pub jitter: Duration,
    /// Number of consecutive failed checks after which a peer is unhealthy.
    pub fails: u64,
    /// Number of consecutive passed checks after which a peer is healthy again.
    pub passes: u64,
    /// Whether a new peer gets no requests until it has passed the check.
    pub mandatory: bool,
    /// If the check is mandatory: whether a peer keeps its state over a reload.
    pub persistent: bool,
    /// The name of the `match` block with the expected response.
    pub match_name: Option<Word>,
    /// The port to which probes are sent, in place of the server's port.
    pub port: Option<u16>,
}

impl Default for Schedule {
    /// The defaults of the parameters.
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

/// The result of parsing a parameter of `health_check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A common parameter, which has been applied.
    Taken,
    /// Not a common parameter; it may be a parameter of the protocol.
    Unknown,
    /// A common parameter with an invalid value.
    Invalid,
}

impl Schedule {
    /// Parses a parameter, and applies it if it is a common parameter.
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

    /// The data of the check that the group needs when it is compiled. `scope` is the scope of the
    /// `health_check` line.
    pub fn check(&self, scope: ScopeRef<'_>) -> Check {
        Check {
            place: scope.place(&["server_name"]).into(),
            mandatory: self.mandatory,
            persistent: self.persistent,
        }
    }
}

/// The name of a parameter, and its value after the `=`.
pub fn name_and_value(parameter: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'=', parameter) {
        Some(at) => (&parameter[..at], Some(&parameter[at + 1..])),
        None => (parameter, None),
    }
}

/// A health check of the peers of a group.
pub struct PeerCheck<U: Upstreams> {
    /// The group.
    pub group: Arc<Group<U>>,
    /// The number of the check among the checks of the group.
    pub number: usize,
    /// The schedule of probes.
    pub schedule: Schedule,
}

impl<U: Upstreams> PeerCheck<U> {
    /// The address to which probes of a peer are sent.
    pub fn address(&self, peer: &Peer) -> Address {
        match (&peer.address, self.schedule.port) {
            (Address::Inet(address), Some(port)) => {
                Address::Inet(SocketAddr::new(address.ip(), port))
            }
            (address, _) => address.clone(),
        }
    }

    /// The text that log lines of a probe contain in place of the client.
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

    /// Records the result of a probe, and logs it if it changes the peer's health. `judged`
    /// contains the phrase for the log: what was tested last, or what has failed.
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

    /// Whether the peer with this health record still belongs to the group and is not `down`.
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
    /// The groups of the protocol.
    type Upstreams: Upstreams;

    /// State that one probe of a peer passes to the next, such as a connection.
    type Kept: Default;

    /// The check whose probes are sent.
    fn check(&self) -> &PeerCheck<Self::Upstreams>;

    /// Probes a peer once, and records the result.
    fn probe(
        &self,
        peer: &Peer,
        health: &Health,
        kept: &mut Self::Kept,
    ) -> impl Future<Output = ()>;
}

/// The health records of the peers that are being probed.
type Probed = Rc<RefCell<Vec<Arc<Health>>>>;

/// Starts a task that probes each peer of the group, and then one for each new peer. The task of a
/// peer that leaves the group ends by itself.
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

/// Probes a peer repeatedly, as long as it belongs to its group.
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

/// A random time up to `most`.
fn by_chance(most: Duration) -> Duration {
    let most = usize::try_from(most.as_millis()).unwrap_or(usize::MAX);
    let millis = framework::random::below(most.saturating_add(1));
    Duration::from_millis(millis as u64)
}

/// The host in the URL of the scope's `*_pass` directive; `passes` are the names of such
/// directives.
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

/// The error for a group with health checks and without `zone`, which NGINX Plus requires.
pub fn without_zone(name: &Bytes) -> String {
    let name = String::from_utf8_lossy(name);
    format!("health checks require upstream \"{name}\" to be in shared memory")
}
