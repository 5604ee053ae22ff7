//! Certificates whose place depends on the client: `ssl_certificate` with variables.
//!
//! They are loaded when a handshake needs them, by the worker's own rights, off the loop, and kept
//! where `ssl_certificate_cache` says so. A value `data:…` is the certificate itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::hash::Map;
use bytes::Bytes;
use rustls::sign::CertifiedKey;

use crate::http::request::Request;
use crate::log::Errno;
use crate::text::Text;
use crate::tls::certificates::{self, LoadError};

/// `ssl_certificate_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Certificates that are kept; those that have not been used for longest leave first.
    pub max: usize,
    /// How long one stays that nobody uses.
    pub inactive: Duration,
    /// After this time a certificate is loaded again.
    pub valid: Duration,
}

/// The certificates of a server that are named with variables.
pub struct Dynamic {
    /// Certificates with their keys, as written.
    pub pairs: Vec<(Text, Text)>,
    /// What may open the keys.
    pub passwords: Vec<Bytes>,
    /// Relative paths start here.
    pub prefix: PathBuf,
    /// `ssl_certificate_cache`; `None`: every handshake loads.
    pub cache: Option<Cache>,
}

/// Certificates that have been loaded.
pub struct Cache {
    settings: CacheSettings,
    kept: Mutex<Map<(Bytes, Bytes), Kept>>,
}

struct Kept {
    certified: Arc<CertifiedKey>,
    loaded: Instant,
    used: Instant,
}

impl Cache {
    /// An empty one.
    pub fn new(settings: CacheSettings) -> Cache {
        Cache {
            settings,
            kept: Mutex::default(),
        }
    }

    fn find(&self, key: &(Bytes, Bytes), now: Instant) -> Option<Arc<CertifiedKey>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get_mut(key)?;
        if now.duration_since(found.loaded) >= self.settings.valid {
            return None;
        }
        found.used = now;
        Some(Arc::clone(&found.certified))
    }

    fn keep(&self, key: (Bytes, Bytes), certified: &Arc<CertifiedKey>, now: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, one| now.duration_since(one.used) < self.settings.inactive);
        if kept.len() >= self.settings.max && !kept.contains_key(&key) {
            let oldest = kept.iter().min_by_key(|(_, one)| one.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        let certified = Arc::clone(certified);
        kept.insert(
            key,
            Kept {
                certified,
                loaded: now,
                used: now,
            },
        );
    }
}

/// Why a certificate could not be loaded, as nginx says it.
pub struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Dynamic {
    /// The certificates for a client, whom this request, of which nothing has come yet, stands for.
    ///
    /// # Errors
    /// Where one cannot be loaded.
    pub async fn load(&self, request: &mut Request) -> Result<Vec<Arc<CertifiedKey>>, Failed> {
        let mut loaded = Vec::with_capacity(self.pairs.len());
        for (certificate, key) in &self.pairs {
            let mut names = (Vec::new(), Vec::new());
            certificate.append_to(request, &mut names.0);
            key.append_to(request, &mut names.1);
            let names = (Bytes::from(names.0), Bytes::from(names.1));
            let now = engine::now();
            let known = self
                .cache
                .as_ref()
                .and_then(|cache| cache.find(&names, now));
            let certified = match known {
                Some(known) => known,
                None => {
                    let certified = self.read(names.clone()).await?;
                    if let Some(cache) = &self.cache {
                        cache.keep(names, &certified, now);
                    }
                    certified
                }
            };
            loaded.push(certified);
        }
        Ok(loaded)
    }

    async fn read(&self, (certificate, key): (Bytes, Bytes)) -> Result<Arc<CertifiedKey>, Failed> {
        let (prefix, passwords) = (self.prefix.clone(), self.passwords.clone());
        engine::blocking(move || {
            let read = |name: &Bytes, what: &str| {
                if let Some(data) = name.strip_prefix(b"data:") {
                    return Ok(data.to_vec());
                }
                let path = prefix.join(Request::path_of(name));
                std::fs::read(&path).map_err(|error| {
                    let (path, cause) = (path.display(), Errno(&error));
                    Failed(format!(
                        "cannot load {what} \"{path}\": BIO_new_file() failed (SSL: calling fopen({path}, r): {cause})"
                    ))
                })
            };
            let chain = read(&certificate, "certificate")?;
            let private = read(&key, "certificate key")?;
            certificates::certified_key(&chain, &private, &passwords).map_err(|error| {
                let shown = |name: &Bytes| match name.starts_with(b"data:") {
                    true => "data:...".to_owned(),
                    false => prefix.join(Request::path_of(name)).display().to_string(),
                };
                Failed(match error {
                    LoadError::Certificate(_) => format!(
                        "cannot load certificate \"{}\": PEM_read_bio_X509_AUX() failed (SSL: {error})",
                        shown(&certificate)
                    ),
                    _ => format!(
                        "cannot load certificate key \"{}\": PEM_read_bio_PrivateKey() failed (SSL: {error})",
                        shown(&key)
                    ),
                })
            })
        })
        .await
    }
}
