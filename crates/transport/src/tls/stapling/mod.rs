//! OCSP responses that a server fetches for its own certificates: `ssl_stapling` without
//! `ssl_stapling_file`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html#ssl_stapling>; RFC 6961. As in nginx, a
//! handshake starts the first request, and continues without a response; later handshakes get the
//! response. An accepted response ([`message`]) is stored with the certificate. A response is
//! fetched again within an hour, and removed when it expires. Threads share the responses, which do
//! not outlive a reload.

pub mod fetch;
pub mod message;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use framework::generation::GenerationView;
use logs::event;
use rustls::sign::CertifiedKey;

use self::fetch::Responder;
use self::message::Subject;
use crate::resolver::Resolving;
use crate::tls::certificates::Slot;

/// Minimum time until the next request, also after a failure, in seconds. A response is fetched
/// again this time before it expires.
const INTERVAL_MIN: u64 = 300;

/// Maximum time until the next request, in seconds.
const INTERVAL_MAX: u64 = 3600;

/// A certificate of a server whose OCSP response is fetched.
pub struct Stapling {
    /// The certificate that the responses are about, in the form for requests.
    pub subject: Subject,
    /// The OCSP request, in DER.
    pub request: Vec<u8>,
    /// The responder that answers for the certificate.
    pub responder: Responder,
    /// The resolver for the responder's host.
    pub resolving: Arc<Resolving>,
    /// The certificate's file, for the log.
    pub name: String,
    /// The slot from which handshakes take the certificate, with the response.
    pub slot: Arc<Slot>,
    /// The certificate without an OCSP response.
    pub certified: Arc<CertifiedKey>,
    /// When to request again, and when the response expires.
    pub times: Times,
}

/// Times in seconds since 1970.
#[derive(Default)]
pub struct Times {
    /// Time of the next request; 0 for at once.
    due: AtomicU64,
    /// Expiry of the stapled response; 0 if there is none.
    ends: AtomicU64,
    /// Whether a thread is fetching.
    busy: AtomicBool,
}

impl Stapling {
    /// Starts a request if a request is due, and removes an expired response. Every handshake calls
    /// this, and does not wait for the response.
    pub fn refresh(self: &Arc<Stapling>, local: &Rc<GenerationView>) {
        let now = engine::wall().as_secs();
        let Times { due, ends, busy } = &self.times;
        let end = ends.load(Ordering::Relaxed);
        if end != 0 && end < now && ends.swap(0, Ordering::Relaxed) != 0 {
            self.slot.set(Some(Arc::clone(&self.certified)));
        }
        if due.load(Ordering::Relaxed) > now || busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, local) = (Arc::clone(self), Rc::clone(local));
        engine::spawn(async move {
            let asking = PendingInquiry(this);
            asking.0.inquire(&local).await;
        });
    }

    async fn inquire(&self, local: &GenerationView) {
        let asked = self.responder.ask(&self.request, &self.resolving, local);
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(failed) => return self.failed(&failed),
        };
        let now = engine::wall().as_secs();
        let end = match self.subject.check(&answer, now) {
            Ok(end) => end,
            Err(rejected) => return self.failed(&rejected),
        };
        let mut with_answer = CertifiedKey::clone(&self.certified);
        with_answer.ocsp = Some(answer);
        self.slot.set(Some(Arc::new(with_answer)));
        self.times.due.store(next(now, end), Ordering::Relaxed);
        // A response without an expiry is stapled until the next response arrives.
        self.times.ends.store(end.unwrap_or(0), Ordering::Relaxed);
    }

    fn failed(&self, cause: &dyn std::fmt::Display) {
        let again = engine::wall().as_secs() + INTERVAL_MIN;
        self.times.due.store(again, Ordering::Relaxed);
        let (host, name) = (self.responder.host(), &self.name);
        event!(
            Error,
            "{cause} while requesting certificate status, responder: {host}, certificate: \"{name}\""
        );
    }
}

/// The time of the next request for a response that expires at `end`.
fn next(now: u64, end: Option<u64>) -> u64 {
    let latest = now + INTERVAL_MAX;
    let before_end = end.map_or(latest, |end| end.saturating_sub(INTERVAL_MIN));
    before_end.min(latest).max(now + INTERVAL_MIN)
}

/// A request in progress. Another request may start when the value is dropped.
struct PendingInquiry(Arc<Stapling>);

impl Drop for PendingInquiry {
    fn drop(&mut self) {
        self.0.times.busy.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_asked_for_again() {
        assert_eq!(next(10_000, None), 13_600);
        assert_eq!(next(10_000, Some(1_000_000)), 13_600);
        assert_eq!(next(10_000, Some(12_000)), 11_700);
        assert_eq!(next(10_000, Some(10_100)), 10_300);
        assert_eq!(next(10_000, Some(0)), 10_300);
    }
}
