//! Certificates whose path depends on the request: `ssl_certificate` and `proxy_ssl_certificate`
//! with variables.
//!
//! The certificates are loaded when a handshake needs them, with the worker's privileges, outside
//! the event loop. They are cached if `ssl_certificate_cache` or `proxy_ssl_certificate_cache` is
//! set. A value `data:…` is the certificate itself.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::hash::Map;
use bytes::Bytes;
use conf::{Fault, Setter, Template, TemplatePart, Word, parse};
use framework::compile::Compiler;
use framework::places::{FileAccess, constant_folder};
use rustls::sign::CertifiedKey;
use variables::{Context, Text};

use crate::tls::certificates::{self, LoadError};
use crate::tls::files;

/// The settings of `ssl_certificate_cache` or `proxy_ssl_certificate_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Maximum number of cached certificates; the least recently used is evicted first.
    pub max: usize,
    /// How long an unused certificate stays in the cache.
    pub inactive: Duration,
    /// The time after which a certificate is loaded again.
    pub valid: Duration,
}

/// Parses the arguments of `ssl_certificate_cache` or `proxy_ssl_certificate_cache`.
///
/// # Errors
/// nginx's text for an invalid argument.
pub fn cache_settings(setter: &Setter<'_>) -> Result<Option<CacheSettings>, Fault> {
    let (mut max, mut off) = (0, false);
    let (mut inactive, mut valid) = (10, 60);
    for word in setter.args() {
        let invalid = || Fault::invalid_parameter(word);
        let text = &*word.bytes;
        if let Some(number) = text.strip_prefix(b"max=") {
            let number = parse::number_of(number).filter(|max| *max > 0);
            max = number.ok_or_else(invalid)?;
        } else if let Some(time) = text.strip_prefix(b"inactive=") {
            inactive = parse::time_seconds(time).ok_or_else(invalid)?;
        } else if let Some(time) = text.strip_prefix(b"valid=") {
            valid = parse::time_seconds(time).ok_or_else(invalid)?;
        } else if text == b"off" {
            off = true;
        } else {
            return Err(invalid());
        }
    }
    match max {
        _ if off => Ok(None),
        0 => Err(Fault::new(format!(
            "\"{}\" must have the \"max\" parameter",
            setter.name()
        ))),
        max => Ok(Some(CacheSettings {
            max: usize::try_from(max).unwrap_or(usize::MAX),
            inactive: Duration::from_secs(inactive),
            valid: Duration::from_secs(valid),
        })),
    }
}

/// Paths, or `data:` values, of a certificate and its key.
pub type CertificateSource = (Bytes, Bytes);

/// Loaded certificates, in the form that their users need.
pub struct Cache<T> {
    settings: CacheSettings,
    kept: Mutex<Map<CertificateSource, CachedCertificate<T>>>,
}

struct CachedCertificate<T> {
    value: Arc<T>,
    loaded: Instant,
    used: Instant,
}

impl<T> Cache<T> {
    /// An empty cache.
    pub fn new(settings: CacheSettings) -> Cache<T> {
        Cache {
            settings,
            kept: Mutex::default(),
        }
    }

    /// The cached value for this certificate and key, if it is still valid.
    pub fn find(&self, names: &CertificateSource) -> Option<Arc<T>> {
        let now = engine::now();
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.get_mut(names)?;
        if self.is_stale(kept, now) {
            all.remove(names);
            return None;
        }
        kept.used = now;
        Some(Arc::clone(&kept.value))
    }

    /// Stores the value for this certificate and key.
    pub fn insert(&self, names: CertificateSource, value: &Arc<T>) {
        let now = engine::now();
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, kept| !self.is_stale(kept, now));
        if all.len() >= self.settings.max && !all.contains_key(&names) {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.used);
            let oldest = oldest.map(|(names, _)| names.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let value = Arc::clone(value);
        let kept = CachedCertificate {
            value,
            loaded: now,
            used: now,
        };
        all.insert(names, kept);
    }

    fn is_stale(&self, kept: &CachedCertificate<T>, now: Instant) -> bool {
        let since = |then| now.saturating_duration_since(then);
        since(kept.used) > self.settings.inactive || since(kept.loaded) > self.settings.valid
    }
}

/// The certificates of a server whose paths contain variables.
pub struct Dynamic<C> {
    /// Pairs of a certificate and its key: paths or `data:` values, with variables.
    pub pairs: Vec<(Text<C>, Text<C>)>,
    /// Passwords for encrypted keys.
    pub passwords: Arc<[Bytes]>,
    /// Base of relative paths.
    pub prefix: PathBuf,
    /// The cache of `ssl_certificate_cache`; without a cache (`None`), every handshake loads the
    /// certificates.
    pub cache: Option<Cache<CertifiedKey>>,
}

/// Why a certificate could not be loaded, in nginx's words.
pub struct CertificateError(String);

impl From<rustls::Error> for CertificateError {
    fn from(error: rustls::Error) -> CertificateError {
        CertificateError(format!("SSL_CTX_new() failed (SSL: {error})"))
    }
}

impl fmt::Display for CertificateError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl<C: Context> Dynamic<C> {
    /// The certificates for the client of this context.
    ///
    /// # Errors
    /// If a certificate cannot be loaded.
    pub async fn load(&self, context: &mut C) -> Result<Vec<Arc<CertifiedKey>>, CertificateError> {
        let mut loaded = Vec::with_capacity(self.pairs.len());
        for (certificate, key) in &self.pairs {
            let mut names = (Vec::new(), Vec::new());
            certificate.append_to(context, &mut names.0);
            key.append_to(context, &mut names.1);
            let names = (Bytes::from(names.0), Bytes::from(names.1));
            let known = self.cache.as_ref().and_then(|cache| cache.find(&names));
            let certified = match known {
                Some(known) => known,
                None => {
                    let certified = read(&self.prefix, &names, &self.passwords).await?;
                    if let Some(cache) = &self.cache {
                        cache.insert(names, &certified);
                    }
                    certified
                }
            };
            loaded.push(certified);
        }
        Ok(loaded)
    }
}

/// Reads a certificate and its key, outside the event loop.
///
/// # Errors
/// If either cannot be read.
pub async fn read(
    prefix: &Path,
    names: &CertificateSource,
    passwords: &Arc<[Bytes]>,
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let (prefix, names) = (prefix.to_owned(), names.clone());
    let passwords = Arc::clone(passwords);
    engine::blocking(move || read_pair(&prefix, &names, &passwords)).await
}

fn read_pair(
    prefix: &Path,
    (certificate, key): &CertificateSource,
    passwords: &[Bytes],
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let chain = read_part(prefix, certificate, "certificate")?;
    let private = read_part(prefix, key, "certificate key")?;
    let shown = |name: &Bytes| {
        if name.starts_with(b"data:") {
            "data:...".to_owned()
        } else {
            prefix.join(OsStr::from_bytes(name)).display().to_string()
        }
    };
    let chain = certificates::chain(&chain);
    let certified = chain.and_then(|chain| certificates::certified_key(chain, &private, passwords));
    certified.map_err(|error| {
        CertificateError(match error {
            LoadError::Mismatch => format!("SSL_use_PrivateKey() failed (SSL: {error})"),
            error => files::unusable(&shown(certificate), &shown(key), &error),
        })
    })
}

fn read_part(prefix: &Path, name: &Bytes, what: &str) -> Result<Vec<u8>, CertificateError> {
    if let Some(data) = name.strip_prefix(b"data:") {
        return Ok(data.to_vec());
    }
    let path = prefix.join(OsStr::from_bytes(name));
    std::fs::read(&path).map_err(|error| CertificateError(files::not_loaded(what, &path, &error)))
}

/// Registers paths with variables that workers read: everything below the constant folder with
/// which the path begins.
///
/// # Errors
/// As of [`Template::parse`].
pub(super) fn will_be_read(
    compiler: &Compiler<'_>,
    word: &Word,
    directive: &str,
) -> Result<(), Fault> {
    let template = Template::parse(word)?;
    let is_constant = |part: &TemplatePart| matches!(part, TemplatePart::Literal(_));
    if !word.bytes.starts_with(b"data:") && !template.parts.iter().all(is_constant) {
        let folder = compiler.conf_prefix.join(constant_folder(&template.parts));
        let by = format!("\"{directive}\" in {}", word.position);
        compiler.will_open(FileAccess::Read, &folder, &by);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_been_used_for_longest_leaves_first() {
        let cache = Cache::new(CacheSettings {
            max: 2,
            inactive: Duration::from_secs(3600),
            valid: Duration::from_secs(3600),
        });
        let names = |name: &'static str| (Bytes::from(name), Bytes::from("key"));
        for name in ["a", "b", "c"] {
            cache.insert(names(name), &Arc::new(name));
        }
        assert_eq!(cache.find(&names("a")), None);
        assert_eq!(cache.find(&names("c")).as_deref(), Some(&"c"));
    }

    #[test]
    fn what_is_no_longer_valid_is_forgotten() {
        let cache = Cache::new(CacheSettings {
            max: 2,
            inactive: Duration::from_secs(3600),
            valid: Duration::ZERO,
        });
        let names = (Bytes::from("a"), Bytes::from("key"));
        cache.insert(names.clone(), &Arc::new(()));
        // The clock advances by itself.
        while cache.find(&names).is_some() {
            std::thread::yield_now();
        }
        assert!(cache.kept.lock().unwrap().is_empty());
    }
}
