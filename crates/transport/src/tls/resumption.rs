//! Session resumption: caches that all threads share, and tickets.
//!
//! `ssl_session_cache shared:NAME:SIZE` is a zone and outlives a reload; `builtin` lives as long as
//! the configuration. Tickets (RFC 5077) are encrypted with AES-GCM, by a key of
//! `ssl_session_ticket_key` or by keys of the process, which change every day and outlive reloads
//! too. A session is resumed only by a server with the same certificates and the same requirements
//! for clients.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base::hash::Map;
use framework::handover::{LARGE_ZONES_MAX, StateReader, StateWriter, Unfit};
use framework::zone::{SIZE_MIN, State, Table, Zone, ZoneFact, ZoneFactSink};
use rustls::server::{ProducesTickets, StoresServerSessions};

/// Approximate overhead of a stored session, in bytes.
const SESSION_OVERHEAD: usize = 160;

/// Capacity of `builtin`, in sessions, as in OpenSSL's own cache.
pub const BUILTIN_SESSIONS: u64 = 20_480;

/// Estimated size of a session in bytes, for a cache whose capacity is given in sessions.
const SESSION_SIZE: u64 = 512;

/// Number of sessions that are handed over to the next process before the lock is released for a
/// moment.
const HANDED_ON_AT_ONCE: usize = 256;

/// How long a generated key encrypts tickets. It decrypts tickets for the same time after that.
const KEY_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Length of the material of a generated key, in bytes: see [`TicketKey::from_file`].
const OWN_KEY_LENGTH: usize = 80;

/// Maximum ticket lifetime, in seconds: RFC 8446 section 4.6.1. In TLS 1.2 the lifetime is a hint.
const TICKET_LIFETIME_MAX: u32 = 7 * 24 * 60 * 60;

/// Length of the key name at the front of a ticket, in bytes.
const NAME_LENGTH: usize = 16;

/// Length of a ticket's nonce, in bytes.
const NONCE_LENGTH: usize = 12;

/// Identifies the protocol, the certificates and the requirements for clients of a server. A
/// session is only resumed by a server with the same context.
pub type Context = [u8; 16];

/// Sessions by ID; the oldest is evicted when there is no more room.
pub struct SessionCache {
    size: usize,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_number: Map<Vec<u8>, Session>,
    /// IDs in the order of insertion, including IDs of sessions that were removed.
    order: VecDeque<Vec<u8>>,
    used: usize,
}

struct Session {
    value: Vec<u8>,
    /// The time from which on the session cannot be resumed, in seconds since 1970.
    ends: u64,
}

impl State for SessionCache {
    const KIND: &'static str = "ssl_session_cache";

    type Settings = ();

    fn new(size: u64) -> SessionCache {
        SessionCache {
            size: usize::try_from(size).unwrap_or(usize::MAX),
            sessions: Mutex::default(),
        }
    }

    fn describe(&self, (): &(), tell: &mut ZoneFactSink<'_>) {
        self.tell("sessions", tell);
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    /// Removes the sessions that it has encoded: a session whose client may send early data must
    /// not be resumed in two processes.
    fn save(&self, (): &(), out: &mut StateWriter) {
        while out.length() < LARGE_ZONES_MAX {
            let taken = self.lock().take_newest(HANDED_ON_AT_ONCE);
            if taken.is_empty() {
                return;
            }
            for (number, session) in taken {
                out.text(&number);
                out.text(&session.value);
                out.number(session.ends);
            }
        }
    }

    fn restore(&self, (): &(), saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let now = seconds_now();
        let mut sessions = Vec::new();
        while !saved.is_empty() {
            let (number, value) = (saved.text()?.to_vec(), saved.text()?.to_vec());
            sessions.push((number, value, saved.number()?));
        }
        for (number, value, ends) in sessions.into_iter().rev() {
            // No `ssl_session_timeout` is longer than this.
            let left = ends.saturating_sub(now).min(u64::from(u32::MAX));
            if left > 0 {
                self.put(number, value, Duration::from_secs(left));
            }
        }
        Ok(())
    }
}

impl SessionCache {
    /// Reports the cache's usage, including expired sessions that have not been replaced yet.
    pub(super) fn tell(&self, what: &'static str, tell: &mut ZoneFactSink<'_>) {
        let sessions = self.lock();
        tell(what, ZoneFact::Number(sessions.by_number.len() as u64));
        tell("bytes", ZoneFact::Number(sessions.used as u64));
    }

    /// A cache for about `count` sessions.
    pub fn for_sessions(count: u64) -> SessionCache {
        SessionCache::new(count.saturating_mul(SESSION_SIZE))
    }

    /// Stores a value for this time. False if the value is larger than the cache.
    pub(super) fn put(&self, number: Vec<u8>, value: Vec<u8>, timeout: Duration) -> bool {
        let cost = cost(&number, &value);
        if cost > self.size {
            return false;
        }
        let mut sessions = self.lock();
        sessions.remove(&number);
        while sessions.used + cost > self.size {
            let Some(oldest) = sessions.order.pop_front() else {
                break;
            };
            sessions.remove(&oldest);
        }
        sessions.used += cost;
        sessions.order.push_back(number.clone());
        let ends = seconds_now() + timeout.as_secs();
        sessions.by_number.insert(number, Session { value, ends });
        // Otherwise, IDs of sessions that were taken would accumulate.
        if sessions.order.len() > 64 && sessions.order.len() > 2 * sessions.by_number.len() {
            let Sessions {
                by_number, order, ..
            } = &mut *sessions;
            order.retain(|number| by_number.contains_key(number));
        }
        true
    }

    /// The value with this ID, unless it has expired.
    pub(super) fn get(&self, number: &[u8]) -> Option<Vec<u8>> {
        let sessions = self.lock();
        let session = sessions.by_number.get(number)?;
        (session.ends > seconds_now()).then(|| session.value.clone())
    }

    fn take(&self, number: &[u8]) -> Option<Vec<u8>> {
        let session = self.lock().remove(number)?;
        (session.ends > seconds_now()).then_some(session.value)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Takes up to `count` sessions, newest first; empty if there are none.
    fn take_newest(&mut self, count: usize) -> Vec<(Vec<u8>, Session)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(number) = self.order.pop_back()
        {
            if let Some(session) = self.remove(&number) {
                taken.push((number, session));
            }
        }
        taken
    }

    fn remove(&mut self, number: &[u8]) -> Option<Session> {
        let session = self.by_number.remove(number)?;
        self.used = self.used.saturating_sub(cost(number, &session.value));
        Some(session)
    }
}

/// The size of a session in the cache, in bytes. The ID counts twice, since both the map and the
/// order have it.
fn cost(number: &[u8], value: &[u8]) -> usize {
    2 * number.len() + value.len() + SESSION_OVERHEAD
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Where a server's sessions are stored.
pub enum Cache {
    /// Sessions are not stored (`none`).
    None,
    /// Sessions are stored in this process (`builtin`).
    Own(Arc<SessionCache>),
    /// Sessions are stored in a zone (`shared`).
    Zone(Arc<Zone<SessionCache>>),
}

impl Cache {
    fn sessions(&self) -> Option<&SessionCache> {
        match self {
            Cache::None => None,
            Cache::Own(cache) => Some(cache),
            Cache::Zone(zone) => Some(zone.state()),
        }
    }
}

/// The session cache of one server.
pub struct ServerSessions {
    /// Where sessions are stored.
    pub cache: Cache,
    /// The context of the server: see [`Context`].
    pub context: Context,
    /// The value of `ssl_session_timeout` in this scope.
    pub timeout: Duration,
}

impl ServerSessions {
    fn number(&self, key: &[u8]) -> Vec<u8> {
        [&self.context[..], key].concat()
    }
}

impl fmt::Debug for ServerSessions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ServerSessions")
    }
}

impl StoresServerSessions for ServerSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let cache = self.cache.sessions();
        cache.is_some_and(|cache| cache.put(self.number(&key), value, self.timeout))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache.sessions()?.get(&self.number(key))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache.sessions()?.take(&self.number(key))
    }

    fn can_cache(&self) -> bool {
        self.cache.sessions().is_some()
    }
}

/// A key that encrypts tickets.
pub struct TicketKey {
    name: [u8; NAME_LENGTH],
    key: LessSafeKey,
}

impl TicketKey {
    /// Parses a file of `ssl_session_ticket_key`: 80 bytes, or 48 with a shorter key. The part that
    /// nginx uses for authentication is not needed here.
    pub fn from_file(content: &[u8]) -> Option<TicketKey> {
        let (algorithm, key) = match content.len() {
            80 => (&AES_256_GCM, content.get(48..)?),
            48 => (&AES_128_GCM, content.get(16..32)?),
            _ => return None,
        };
        Some(TicketKey {
            name: *content.first_chunk()?,
            key: LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?),
        })
    }

    /// Encrypts a ticket: `name | nonce | sealed(time | plain)`.
    fn seal(&self, context: &Context, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LENGTH];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = seconds_now().to_be_bytes().to_vec();
        sealed.extend_from_slice(plain);
        let number = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(number, Aad::from(context), &mut sealed)
            .ok()?;
        Some([&self.name[..], &nonce, &sealed].concat())
    }

    fn open(&self, context: &Context, ticket: &[u8], timeout: Duration) -> Option<Vec<u8>> {
        let rest = ticket.strip_prefix(&self.name[..])?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LENGTH>()?;
        let mut sealed = sealed.to_vec();
        let number = Nonce::assume_unique_for_key(*nonce);
        let opened = self
            .key
            .open_in_place(number, Aad::from(context), &mut sealed)
            .ok()?;
        let (made, plain) = opened.split_first_chunk()?;
        let age = seconds_now().checked_sub(u64::from_be_bytes(*made))?;
        (age <= timeout.as_secs()).then(|| plain.to_vec())
    }
}

/// Keys of the process, for servers without configured keys.
#[derive(Default)]
struct OwnKeys {
    current: Option<OwnKey>,
    previous: Option<OwnKey>,
}

/// A generated key.
struct OwnKey {
    key: TicketKey,
    /// The bytes from which the key was made, for the next process.
    content: [u8; OWN_KEY_LENGTH],
    made: SystemTime,
}

/// The keys of the process as a zone, which is handed over to the next process, because clients
/// have tickets that are encrypted with these keys.
pub struct HandedOnKeys;

/// The name contains a space, so that no zone of a configuration has this name.
const HANDED_ON_KEYS: &str = "ticket keys";

impl State for HandedOnKeys {
    const KIND: &'static str = "ssl_ticket_keys";

    type Settings = ();

    fn new(_: u64) -> HandedOnKeys {
        HandedOnKeys
    }

    fn describe(&self, (): &(), _: &mut ZoneFactSink<'_>) {}

    const SAVED_VERSION: Option<u64> = Some(1);

    fn save(&self, (): &(), out: &mut StateWriter) {
        let own = OwnKeys::lock();
        for key in own.current.iter().chain(&own.previous) {
            out.text(&key.content);
            let made = key.made.duration_since(UNIX_EPOCH);
            out.number(made.unwrap_or_default().as_secs());
        }
    }

    fn restore(&self, (): &(), saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let mut keys = Vec::new();
        while !saved.is_empty() {
            let content = saved.text()?.first_chunk().copied();
            let made = Duration::from_secs(saved.number()?);
            let made = UNIX_EPOCH.checked_add(made);
            let key = content.zip(made);
            let key = key.and_then(|(content, made)| OwnKey::new(content, made));
            keys.push(key.ok_or_else(|| Unfit::new("a key is none"))?);
        }
        let mut keys = keys.into_iter();
        *OwnKeys::lock() = OwnKeys {
            current: keys.next(),
            previous: keys.next(),
        };
        Ok(())
    }
}

/// Hands the keys of the process over to the next process.
pub(super) fn hand_on_keys(zones: &mut Table) {
    // Every server with tickets declares it, and no other zone has the name.
    let _ = zones.declare::<HandedOnKeys>(HANDED_ON_KEYS, SIZE_MIN, ());
}

impl OwnKey {
    fn new(content: [u8; OWN_KEY_LENGTH], made: SystemTime) -> Option<OwnKey> {
        Some(OwnKey {
            key: TicketKey::from_file(&content)?,
            content,
            made,
        })
    }

    fn random(now: SystemTime) -> Option<OwnKey> {
        let mut content = [0; OWN_KEY_LENGTH];
        aws_lc_rs::rand::fill(&mut content).ok()?;
        OwnKey::new(content, now)
    }
}

impl OwnKeys {
    fn shared() -> &'static Mutex<OwnKeys> {
        static KEYS: OnceLock<Mutex<OwnKeys>> = OnceLock::new();
        KEYS.get_or_init(Mutex::default)
    }

    fn lock() -> MutexGuard<'static, OwnKeys> {
        OwnKeys::shared()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The current encryption key; a new one once the last has reached its lifetime.
    fn current(&mut self) -> Option<&TicketKey> {
        let now = SystemTime::now();
        let in_time = |made: &SystemTime| {
            now.duration_since(*made)
                .is_ok_and(|age| age < KEY_LIFETIME)
        };
        if !self.current.as_ref().is_some_and(|own| in_time(&own.made)) {
            let fresh = OwnKey::random(now)?;
            self.previous = self.current.replace(fresh);
        }
        self.current.as_ref().map(|own| &own.key)
    }
}

/// Tickets of one server.
pub struct Tickets {
    /// The keys of `ssl_session_ticket_key`: the first encrypts, all decrypt. If empty, the keys of
    /// the process are used.
    pub keys: Vec<TicketKey>,
    /// The context of the server: see [`Context`].
    pub context: Context,
    /// The value of `ssl_session_timeout` in this scope.
    pub timeout: Duration,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tickets")
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        let lifetime = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX);
        lifetime.min(TICKET_LIFETIME_MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if let Some(first) = self.keys.first() {
            return first.seal(&self.context, plain);
        }
        let mut own = OwnKeys::lock();
        own.current()?.seal(&self.context, plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let open = |key: &TicketKey| key.open(&self.context, ticket, self.timeout);
        if !self.keys.is_empty() {
            return self.keys.iter().find_map(open);
        }
        let own = OwnKeys::lock();
        let mut keys = own.current.iter().chain(&own.previous);
        keys.find_map(|own| open(&own.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_cache_forgets_the_oldest() {
        let cache = SessionCache::new(4 * (SESSION_OVERHEAD as u64 + 102));
        for number in 0..6 {
            assert!(cache.put(vec![number], vec![number; 100], HOUR));
        }
        assert_eq!(cache.get(&[0]), None);
        assert_eq!(cache.get(&[5]), Some(vec![5; 100]));
        assert_eq!(cache.take(&[5]), Some(vec![5; 100]));
        assert_eq!(cache.take(&[5]), None);
        assert!(!cache.put(vec![9], vec![0; 10_000], HOUR));
        assert!(cache.put(vec![7], vec![1], Duration::ZERO));
        assert_eq!(cache.get(&[7]), None);
    }

    #[test]
    fn a_cache_tells_how_much_it_keeps() {
        let cache = SessionCache::new(1 << 20);
        for number in 0..3 {
            assert!(cache.put(vec![number], vec![number; 100], HOUR));
        }
        let mut told = Vec::new();
        State::describe(&cache, &(), &mut |name, fact| {
            told.push(format!("{name} {fact:?}"));
        });
        let used = 3 * (SESSION_OVERHEAD + 102);
        assert_eq!(
            told,
            [
                "sessions Number(3)".to_owned(),
                format!("bytes Number({used})")
            ]
        );
    }

    #[test]
    fn tickets_belong_to_their_key_and_server() {
        for length in [48, 80] {
            let content: Vec<u8> = (0..length).collect();
            let tickets = |context: u8, keys| Tickets {
                keys,
                context: [context; 16],
                timeout: HOUR,
            };
            let key = || TicketKey::from_file(&content).unwrap();
            let mut other = content.clone();
            other[20] ^= 1;
            other[50 % usize::from(length)] ^= 1;
            let other = || TicketKey::from_file(&other).unwrap();
            let ticket = tickets(1, vec![key()]).encrypt(b"session").unwrap();
            let open = |tickets: Tickets| tickets.decrypt(&ticket);
            assert_eq!(
                open(tickets(1, vec![other(), key()])),
                Some(b"session".to_vec())
            );
            assert_eq!(open(tickets(2, vec![key()])), None);
            assert_eq!(open(tickets(1, vec![other()])), None);
            assert_eq!(tickets(1, vec![key()]).decrypt(&ticket[..20]), None);
        }
        assert!(TicketKey::from_file(&[0; 79]).is_none());
    }

    #[test]
    fn keys_of_the_process() {
        let tickets = |timeout| Tickets {
            keys: Vec::new(),
            context: [1; 16],
            timeout,
        };
        let ticket = tickets(HOUR).encrypt(b"session").unwrap();
        assert_eq!(tickets(HOUR).decrypt(&ticket), Some(b"session".to_vec()));
    }

    #[test]
    fn clients_are_told_of_a_week_at_most() {
        let told = |timeout| {
            let tickets = Tickets {
                keys: Vec::new(),
                context: [1; 16],
                timeout,
            };
            tickets.lifetime()
        };
        assert_eq!(told(HOUR), 3600);
        assert_eq!(told(HOUR * 24 * 7), 604_800);
        assert_eq!(told(HOUR * 24 * 8), 604_800);
        assert_eq!(told(Duration::MAX), 604_800);
    }
}
