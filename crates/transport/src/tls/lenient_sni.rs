//! Host names in a ClientHello that nginx accepts and rustls does not.
//!
//! Clients send the name that they were configured with: `example.org:443`, a name with a space, or
//! one that is too long. OpenSSL accepts any bytes, and nginx serves invalid names with its default
//! server; rustls fails the handshake. So the type of the extension with such a name is replaced by
//! an unassigned number before rustls parses the ClientHello. Both ends verify the messages of a
//! handshake by hashes and signatures. So the original extension is restored when rustls hashes the
//! ClientHello, or verifies a signature over it.
//!
//! For this, all cipher suites are wrapped ([`restoring`]). Unless a name is hidden, which is rare,
//! the suite's own hash is used directly.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use proto::tls::{ClientHello, HelloScan, HelloSearch, show_server_name};
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::crypto::hash;
use rustls::pki_types::ServerName;
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};

thread_local! {
    /// The hidden extension of the handshake that rustls is processing.
    static CURRENT: RefCell<Option<Arc<[u8]>>> = const { RefCell::new(None) };
}

/// The extension with a client's host name in the form that rustls sees: with an unassigned type.
#[derive(Clone, Debug)]
pub struct HiddenName(Arc<[u8]>);

impl HiddenName {
    /// Hides a host name that rustls does not accept, in the records of the ClientHello.
    pub fn hide(hello: &ClientHello, records: &mut [u8]) -> Option<HiddenName> {
        if ServerName::try_from(hello.server_name()?).is_ok() {
            return None;
        }
        let hidden = hello.hide_server_name(records)?;
        Some(HiddenName(hidden.into()))
    }

    /// Hides the name in a second ClientHello as well, which a client sends after a
    /// HelloRetryRequest (RFC 8446 section 4.1.4).
    pub fn hide_again(&self, records: &mut [u8]) {
        /// A change_cipher_spec record may precede the ClientHello, and is ignored (RFC 8446
        /// section 5).
        const CHANGE_CIPHER_SPEC: &[u8] = &[20, 3, 3, 0, 1, 1];
        let skipped = if records.starts_with(CHANGE_CIPHER_SPEC) {
            CHANGE_CIPHER_SPEC.len()
        } else {
            0
        };
        let records = records.get_mut(skipped..).unwrap_or_default();
        if let HelloScan::Hello { hello, .. } = HelloSearch::default().go_on(records) {
            HiddenName::hide(&hello, records);
        }
    }

    /// Makes rustls's hashes include the original name for as long as the guard lives.
    pub fn show(&self) -> ShownName {
        CURRENT.set(Some(Arc::clone(&self.0)));
        ShownName
    }
}

/// The guard of [`HiddenName::show`].
#[must_use]
pub struct ShownName;

impl Drop for ShownName {
    fn drop(&mut self) {
        CURRENT.take();
    }
}

/// A handshake message as the client sent it.
pub(super) fn as_sent(message: &[u8]) -> Cow<'_, [u8]> {
    CURRENT.with_borrow(|current| match current {
        Some(hidden) => show_server_name(message, hidden),
        None => Cow::Borrowed(message),
    })
}

/// The suite with a hash that restores a hidden name.
pub(super) fn restoring(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    static SUITES: OnceLock<Vec<SupportedCipherSuite>> = OnceLock::new();
    let suites = SUITES.get_or_init(|| ALL_CIPHER_SUITES.iter().map(wrap).collect());
    let mut wrapped = suites.iter().copied();
    wrapped
        .find(|wrapped| wrapped.suite() == suite.suite())
        .unwrap_or(suite)
}

/// Wraps a suite; done once per suite, for the life of the program.
fn wrap(suite: &SupportedCipherSuite) -> SupportedCipherSuite {
    let common = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: Box::leak(Box::new(Hash(common.hash_provider))),
        confidentiality_limit: common.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        }
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
    }
}

/// The hash of a wrapped suite: the suite's own hash unless a name is hidden when hashing starts.
struct Hash(&'static dyn hash::Hash);

impl hash::Hash for Hash {
    fn start(&self) -> Box<dyn hash::Context> {
        let context = self.0.start();
        match CURRENT.with_borrow(Clone::clone) {
            Some(hidden) => Box::new(Context { context, hidden }),
            None => context,
        }
    }

    fn hash(&self, data: &[u8]) -> hash::Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> hash::HashAlgorithm {
        self.0.algorithm()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

/// A hash in progress, of a handshake with a hidden name. rustls passes complete messages.
struct Context {
    context: Box<dyn hash::Context>,
    hidden: Arc<[u8]>,
}

impl hash::Context for Context {
    fn fork_finish(&self) -> hash::Output {
        self.context.fork_finish()
    }

    fn fork(&self) -> Box<dyn hash::Context> {
        Box::new(Context {
            context: self.context.fork(),
            hidden: Arc::clone(&self.hidden),
        })
    }

    fn finish(self: Box<Self>) -> hash::Output {
        self.context.finish()
    }

    fn update(&mut self, data: &[u8]) {
        self.context.update(&show_server_name(data, &self.hidden));
    }
}
