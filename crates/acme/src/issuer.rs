//! The thread that obtains and renews the certificates of one issuer.
//!
//! ```text
//!            ┌──────────── due ◀──────────────┐
//!            ▼                                 │ renewal time, or the wait after a failure
//!   lock the store ─▶ renewed by another process? ─▶ order ─▶ store, install, ask when to renew
//! ```
//!
//! No failure ends the thread: it logs the error and tries again after an increasing back-off. A
//! reload starts new threads, which start their first try at once; each old thread ends after its
//! current work.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::level::Level;
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;

use crate::account::{AccountKey, ExternalAccount};
use crate::certificate::Certificate;
use crate::challenge::{Challenge, Host};
use crate::issue::{IssueError, Session};
use crate::order::Order;
use crate::schedule::{self, Window};
use crate::store::Store;
use crate::wait::{StopSignal, block_on};

/// Maximum sleep: the wall clock may be set in the meantime, and sleeping does not follow it.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// A certificate profile that a server may offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name of the profile.
    pub name: String,
    /// Whether issuing fails if the server does not offer the profile. Otherwise the order is
    /// placed without a profile.
    pub required: bool,
}

/// One ACME server and our account there.
#[derive(Clone)]
pub struct Issuer {
    /// The issuer's name in log lines.
    pub name: String,
    /// The URL of the directory.
    pub directory: String,
    /// The source of the account's key.
    pub account: AccountKey,
    /// Contact URLs of the account, for instance `mailto:`.
    pub contacts: Vec<String>,
    /// The external account that the ACME account is bound to.
    pub external: Option<ExternalAccount>,
    /// Whether the operator agrees to the server's terms of service.
    pub terms_accepted: bool,
    /// The type of challenge that proves our control of names.
    pub challenge: Challenge,
    /// The certificate profile to request.
    pub profile: Option<Profile>,
    /// The preferred chain: the common name in the issuer field of its last certificate.
    pub preferred_chain: Option<String>,
    /// Whether signing requests contain the first name as the subject's common name.
    pub common_name: bool,
    /// The store of the account and the certificates.
    pub store: Store,
    /// TLS configuration of connections to the ACME server.
    pub tls: Arc<ClientConfig>,
    /// The cryptography provider that loads private keys.
    pub provider: Arc<CryptoProvider>,
    /// The server that answers challenges and serves with the certificates.
    pub host: Arc<dyn Host>,
}

/// A running thread of an issuer. Dropping this stops the thread.
pub struct IssuerThread(StopSignal);

impl Drop for IssuerThread {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Issuer {
    /// The stored certificate of an order, which may have expired. A file that cannot be used is
    /// logged and counts as missing.
    pub fn stored(&self, order: &Order) -> Option<Certificate> {
        let name = file_name(&order.id(&self.directory));
        let ignored = |why: &dyn fmt::Display| {
            self.log(Level::Warn, format_args!("\"{name}\" is ignored: {why}"));
        };
        let bytes = self
            .store
            .read(&name)
            .map_err(|error| ignored(&error))
            .ok()??;
        let certificate = Certificate::from_file(&bytes, &self.provider);
        let certificate = certificate.map_err(|error| ignored(&error)).ok()?;
        Some(certificate).filter(|certificate| certificate.is_for(&order.identifiers))
    }

    /// Writes a certificate to the store. A failure is logged.
    fn write(&self, id: &str, certificate: &Certificate) {
        if let Err(error) = self.store.write(&file_name(id), &certificate.file()) {
            let text = format_args!(
                "writing certificate to state directory failed ({error}), order: \"{id}\""
            );
            self.log(Level::Warn, text);
        }
    }

    /// Starts the thread that obtains and renews the certificates of these orders.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(self, orders: Vec<Order>) -> std::io::Result<IssuerThread> {
        let stop = StopSignal::default();
        let told = stop.clone();
        let body = move || {
            let now = SystemTime::now();
            let mut work: Vec<OrderState> = orders
                .into_iter()
                .map(|order| OrderState::new(order, now))
                .collect();
            while !told.is_stopped() {
                let next = work.iter_mut().map(|work| work.advance(&self, &told)).min();
                let left = next.and_then(|next| next.duration_since(SystemTime::now()).ok());
                told.sleep(left.unwrap_or_default().min(SLEEP_MAX));
            }
        };
        let name = "acme".to_owned();
        std::thread::Builder::new().name(name).spawn(body)?;
        Ok(IssuerThread(stop))
    }

    /// Logs a line that names the issuer.
    pub(crate) fn log(&self, level: Level, text: fmt::Arguments<'_>) {
        let text = format!("{text}, acme issuer: \"{}\"", self.name);
        self.host.log(level, &text);
    }
}

/// The name of a certificate's file in the store.
fn file_name(id: &str) -> String {
    format!("{id}.pem")
}

/// One order with its certificate and renewal schedule.
struct OrderState {
    order: Order,
    certificate: Option<Arc<Certificate>>,
    /// When the certificate is to be obtained, renewed, or tried again after a failure.
    due: SystemTime,
    /// No renewal is scheduled for an earlier time.
    earliest: SystemTime,
    /// When the server is next asked for the renewal window.
    ask: Option<SystemTime>,
    /// The renewal window that the server suggested last.
    suggested: Option<Window>,
    failures: u32,
}

impl OrderState {
    fn new(order: Order, now: SystemTime) -> OrderState {
        OrderState {
            order,
            certificate: None,
            due: now,
            earliest: now,
            ask: None,
            suggested: None,
            failures: 0,
        }
    }

    /// Does the work that is due. Returns the time of the next call.
    fn advance(&mut self, issuer: &Issuer, stop: &StopSignal) -> SystemTime {
        if self.certificate.is_none() {
            self.adopt(issuer);
        }
        if stop.is_stopped() {
            return self.due;
        }
        let now = SystemTime::now();
        if self.due > now && self.ask.is_some_and(|ask| ask <= now) {
            block_on(self.ask(issuer, stop));
        }
        if self.due <= SystemTime::now() {
            self.renew(issuer, stop);
        }
        self.ask.map_or(self.due, |ask| ask.min(self.due))
    }

    /// Compares the served certificate with the stored one and uses the one that expires later in
    /// both places: another process may have stored a newer certificate, and a certificate that
    /// could not be written is only in memory.
    fn adopt(&mut self, issuer: &Issuer) {
        let id = self.order.id(&issuer.directory);
        // The thread of the previous configuration may be about to store a certificate. If locking
        // fails, writing would fail as well, so the error is ignored here.
        let lock = issuer.store.lock();
        let known = [
            issuer.stored(&self.order).map(Arc::new),
            issuer.host.installed(&id),
        ];
        let end = |one: &Option<Arc<Certificate>>| one.as_ref().map(|one| one.validity.end);
        let (stored, served) = (end(&known[0]), end(&known[1]));
        let known = known.into_iter().flatten();
        let Some(certificate) = known.max_by_key(|one| one.validity.end) else {
            return;
        };
        let longest = Some(certificate.validity.end);
        if served < longest {
            issuer.host.install(&id, &certificate);
        }
        if stored < longest {
            issuer.write(&id, &certificate);
        }
        drop(lock);
        let now = SystemTime::now();
        if certificate.validity.end > now {
            self.due = schedule::renewal(certificate.validity, None, chance());
            self.ask = Some(now);
            self.announce_validity(issuer, &certificate);
        }
        self.certificate = Some(certificate);
    }

    /// The identifiers of the order, separated by spaces.
    fn names(&self) -> String {
        let names: Vec<String> = self
            .order
            .identifiers
            .iter()
            .map(ToString::to_string)
            .collect();
        names.join(" ")
    }

    fn announce_validity(&self, issuer: &Issuer, certificate: &Certificate) {
        let (names, end) = (self.names(), HttpDate(certificate.validity.end));
        let due = HttpDate(self.due);
        let text =
            format!("The certificate for {names} holds until {end}; it is renewed on {due}.");
        issuer.host.announce(&text);
    }

    /// Asks the server for the renewal window. Without an answer, the schedule stays as it is.
    async fn ask(&mut self, issuer: &Issuer, stop: &StopSignal) {
        let Some(certificate) = self.certificate.clone() else {
            return;
        };
        let suggested = match Session::open(issuer, stop).await {
            Ok(session) => session.suggested(&certificate).await,
            Err(_) => None,
        };
        self.plan(&certificate, suggested);
    }

    fn plan(&mut self, certificate: &Certificate, suggested: Option<(Window, Duration)>) {
        let holds = suggested.map_or(Duration::MAX, |(_, holds)| holds);
        self.ask = Some(SystemTime::now() + schedule::recheck(holds));
        let window = suggested.map(|(window, _)| window);
        // The time is drawn once per window: the server repeats the window with each answer.
        if window.is_some() && window != self.suggested {
            let due = schedule::renewal(certificate.validity, window, chance());
            self.due = due.max(self.earliest);
        }
        self.suggested = window.or(self.suggested);
    }

    /// Obtains a new certificate, or logs the failure and schedules the next try.
    fn renew(&mut self, issuer: &Issuer, stop: &StopSignal) {
        let id = self.order.id(&issuer.directory);
        let lock = issuer.store.lock();
        let lock = lock.map_err(|error| {
            let text = format_args!("the state folder cannot be used ({error}), order: \"{id}\"");
            issuer.log(Level::Warn, text);
        });
        if stop.is_stopped() || self.is_renewed_elsewhere(issuer, &id) {
            return;
        }
        let (names, directory) = (self.names(), &issuer.directory);
        let text = format!("Getting a certificate for {names} from {directory}");
        issuer.host.announce(&text);
        let outcome = block_on(self.issue(issuer, stop, &id));
        drop(lock);
        match outcome {
            Ok(()) => self.failures = 0,
            Err(failure) if failure.is_stop() => {}
            Err(failure) => self.failed(issuer, &id, &failure),
        }
    }

    fn failed(&mut self, issuer: &Issuer, id: &str, failure: &IssueError) {
        self.failures = self.failures.saturating_add(1);
        let wait = schedule::retry(self.failures, failure.retry_after, chance());
        self.due = SystemTime::now() + wait;
        let text = format_args!(
            "{failure} while updating certificate, tried again in {} s, order: \"{id}\"",
            wait.as_secs()
        );
        issuer.log(Level::Warn, text);
        let (names, seconds, due) = (self.names(), wait.as_secs(), HttpDate(self.due));
        let text = format!(
            "No certificate for {names}: {failure}. The next try is in {seconds} s, on {due}."
        );
        issuer.host.announce(&text);
    }

    /// Whether another process has renewed the certificate while this one waited for the lock. The
    /// stored certificate is installed even if its own renewal is due.
    fn is_renewed_elsewhere(&mut self, issuer: &Issuer, id: &str) -> bool {
        let Some(found) = issuer.stored(&self.order) else {
            return false;
        };
        let known = self.certificate.as_ref();
        let newer = known.is_none_or(|known| known.validity.end < found.validity.end);
        if !newer {
            return false;
        }
        let due = schedule::renewal(found.validity, None, chance());
        let found = Arc::new(found);
        issuer.host.install(id, &found);
        self.certificate = Some(found);
        if due <= SystemTime::now() {
            return false;
        }
        self.due = due;
        true
    }

    async fn issue(
        &mut self,
        issuer: &Issuer,
        stop: &StopSignal,
        id: &str,
    ) -> Result<(), IssueError> {
        let mut session = Session::open(issuer, stop).await?;
        let current = self.certificate.as_deref();
        let made = Arc::new(session.issue(&self.order, current).await?);
        issuer.write(id, &made);
        issuer.host.install(id, &made);
        self.earliest = schedule::earliest(made.validity, SystemTime::now());
        self.due = schedule::renewal(made.validity, None, chance()).max(self.earliest);
        self.suggested = None;
        self.certificate = Some(Arc::clone(&made));
        let suggested = session.suggested(&made).await;
        self.plan(&made, suggested);
        let text = format_args!(
            "certificate issued, renewal scheduled at {}, order: \"{id}\"",
            HttpDate(self.due)
        );
        issuer.log(Level::Notice, text);
        self.announce_validity(issuer, &made);
        Ok(())
    }
}

/// A time in the format of HTTP dates.
struct HttpDate(SystemTime);

impl fmt::Display for HttpDate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(0);
        let mut text = [0; proto::date::HTTP_LENGTH];
        proto::date::format_http(seconds, &mut text);
        out.write_str(&String::from_utf8_lossy(&text))
    }
}

/// A random number from 0 to 1, not for cryptographic use.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    // If the system has no random bytes, the number is 0 and renewals are not spread.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::certificate::tests::provider;
    use crate::challenge::ChallengeReply;
    use crate::order::Identifier;
    use crate::store::StateFolder;

    const HOUR: Duration = Duration::from_secs(3600);

    fn order() -> Order {
        Order {
            identifiers: vec![Identifier::Dns("a.test".into())],
            ..Order::default()
        }
    }

    fn certificate() -> Certificate {
        Certificate::stand_in(&order().identifiers, &provider()).unwrap()
    }

    /// A host with one certificate, which records announcements.
    #[derive(Default)]
    struct Served(Mutex<Option<Arc<Certificate>>>, Mutex<Vec<String>>);

    impl Host for Served {
        fn log(&self, _: Level, _: &str) {}

        fn announce(&self, text: &str) {
            self.1.lock().unwrap().push(text.to_owned());
        }

        fn show(&self, _: &ChallengeReply) {}

        fn hide(&self, _: &ChallengeReply) {}

        fn installed(&self, _: &str) -> Option<Arc<Certificate>> {
            self.0.lock().unwrap().clone()
        }

        fn install(&self, _: &str, certificate: &Arc<Certificate>) {
            *self.0.lock().unwrap() = Some(Arc::clone(certificate));
        }
    }

    fn issuer(host: &Arc<Served>) -> Issuer {
        let provider = Arc::new(provider());
        let tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Issuer {
            name: "test".into(),
            directory: "https://127.0.0.1/directory".into(),
            account: AccountKey::Made,
            contacts: Vec::new(),
            external: None,
            terms_accepted: true,
            challenge: Challenge::Http01,
            profile: None,
            preferred_chain: None,
            common_name: false,
            store: Store::Memory(Arc::default()),
            tls: Arc::new(tls),
            provider,
            host: Arc::clone(host) as Arc<dyn Host>,
        }
    }

    #[test]
    fn whoever_watches_is_told_how_it_goes() {
        let host = Arc::new(Served::default());
        let mut issuer = issuer(&host);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        issuer.directory = format!("http://{}/directory", closed.local_addr().unwrap());
        drop(closed);
        let mut work = OrderState::new(order(), SystemTime::now());
        let next = work.advance(&issuer, &StopSignal::default());
        let told = std::mem::take(&mut *host.1.lock().unwrap());
        let [getting, failed] = told.as_slice() else {
            panic!("{told:?}");
        };
        let expected = format!("Getting a certificate for a.test from {}", issuer.directory);
        assert_eq!(*getting, expected);
        assert!(
            failed.starts_with("No certificate for a.test: "),
            "{failed}"
        );
        let expected = format!(" s, on {}.", HttpDate(next));
        assert!(
            failed.contains("The next try is in ") && failed.ends_with(&expected),
            "{failed}"
        );

        // A certificate that is already served.
        let certificate = Arc::new(certificate());
        host.install("", &certificate);
        let mut work = OrderState::new(order(), SystemTime::now());
        work.adopt(&issuer);
        let told = host.1.lock().unwrap().clone();
        let expected = format!(
            "The certificate for a.test holds until {}; it is renewed on {}.",
            HttpDate(certificate.validity.end),
            HttpDate(work.due)
        );
        assert_eq!(told, [expected]);
    }

    /// The adopted chain. Its renewal must be scheduled for later.
    fn adopted(issuer: &Issuer) -> String {
        let now = SystemTime::now();
        let mut work = OrderState::new(order(), now);
        work.adopt(issuer);
        assert!(work.due > now);
        work.certificate.unwrap().chain_pem.clone()
    }

    #[test]
    fn what_another_process_has_stored_is_served() {
        let host = Arc::new(Served::default());
        let issuer = issuer(&host);
        let file = file_name(&order().id(&issuer.directory));
        let mut stored = certificate();
        issuer.store.write(&file, &stored.file()).unwrap();
        let served = || host.installed("").unwrap().chain_pem.clone();
        assert_eq!(adopted(&issuer), stored.chain_pem);
        assert_eq!(served(), stored.chain_pem);
        // The served certificate expires earlier than the stored one.
        let first = stored.chain_pem.clone();
        stored.validity.end -= HOUR;
        stored.chain_pem = String::new();
        host.install("", &Arc::new(stored));
        assert_eq!(adopted(&issuer), first);
        assert_eq!(served(), first);
    }

    #[test]
    fn what_could_not_be_stored_is_not_ordered_again() {
        let host = Arc::new(Served::default());
        let issuer = issuer(&host);
        let file = file_name(&order().id(&issuer.directory));
        issuer.store.write(&file, &certificate().file()).unwrap();
        let mut made = certificate();
        made.validity.end += HOUR;
        let chain = made.chain_pem.clone();
        host.install("", &Arc::new(made));
        let unwritable = Issuer {
            store: Store::Folder(StateFolder::new("/nonexistent/tidegate/acme")),
            ..issuer.clone()
        };
        assert_eq!(adopted(&unwritable), chain);
        // When the store becomes writable, the certificate is stored.
        assert_eq!(adopted(&issuer), chain);
        assert_eq!(issuer.stored(&order()).unwrap().chain_pem, chain);
        assert_eq!(host.installed("").unwrap().chain_pem, chain);
    }

    #[test]
    fn a_new_certificate_is_not_renewed_at_once() {
        let (made, now) = (certificate(), SystemTime::now());
        let mut work = OrderState::new(order(), now);
        let over = |hours: u32| Window {
            start: now - HOUR * (hours + 1),
            end: now - HOUR * hours,
        };
        // An older certificate is renewed at once.
        work.plan(&made, Some((over(1), HOUR)));
        assert_eq!(work.due, now);
        work.earliest = schedule::earliest(made.validity, now);
        for hours in 2..4 {
            work.plan(&made, Some((over(hours), HOUR)));
            assert_eq!(work.due, now + HOUR);
        }
    }
}
