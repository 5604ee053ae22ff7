//! The files of `ssl_*` and `proxy_ssl_*`, read while a configuration is compiled: certificates,
//! keys, passwords, revocation lists, parameters.
//!
//! Errors have nginx's text, with OpenSSL 3's reason in parentheses: people search for these texts,
//! and scripts match them. If OpenSSL has no text for a reason, the error shows Tidegate's reason
//! alone.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Fault, Word};
use framework::compile::Compiler;
use framework::registry::Registry;
use logs::{Errno, error_text};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::sign::CertifiedKey;

use crate::tls::certificates::{self, LoadError};
use crate::tls::pem::{self, PemError};
use crate::tls::stapling::message::{NoResponse, length_of_response};

/// Why OpenSSL could not open a file, as nginx shows it.
pub struct Unopened<'a> {
    /// The path of the file.
    pub path: &'a Path,
    /// The mode of opening, in the notation of fopen(3).
    pub mode: &'static str,
    /// The system's error.
    pub error: &'a io::Error,
}

impl Display for Unopened<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Unopened { path, mode, error } = self;
        let path = path.display();
        if error.raw_os_error().is_none() {
            return write!(out, "calling fopen({path}, {mode}): {error}");
        }
        let system = system_reason(error, &format!("fopen({path}, {mode})"));
        write!(out, "{system} ")?;
        out.write_str(match error.kind() {
            io::ErrorKind::NotFound => "error:10000080:BIO routines::no such file",
            _ => "error:10080002:BIO routines::system lib",
        })
    }
}

/// OpenSSL's text for a failed system call.
pub fn system_reason(error: &io::Error, call: &str) -> String {
    let number = error.raw_os_error().unwrap_or_default();
    // ERR_LIB_SYS marks system errors; the errno follows.
    let code = 0x8000_0000 | number.unsigned_abs();
    let text = error_text(number);
    format!("error:{code:08X}:system library::{text}:calling {call}")
}

/// The content of a file; empty for a folder, which OpenSSL can open, but from which it reads
/// nothing.
pub fn opened(content: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match content {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => Ok(Vec::new()),
        content => content,
    }
}

/// The content of a file whose path may be relative to the configuration, or the text after
/// `data:`. `what` describes the file in the error.
pub fn read(compiler: &Compiler<'_>, word: &Word, what: &str) -> Result<Vec<u8>, Fault> {
    if let Some(data) = word.bytes.strip_prefix(b"data:") {
        return Ok(data.to_vec());
    }
    let path = compiler.conf_prefix.join(word.path());
    opened(compiler.files.read_unchanged(&path))
        .map_err(|error| Fault::at(word, not_loaded(what, &path, &error)))
}

/// The error text for a certificate or key file that cannot be opened.
pub fn not_loaded(what: &str, path: &Path, error: &io::Error) -> String {
    let reason = Unopened {
        path,
        mode: "r",
        error,
    };
    let path = path.display();
    format!("cannot load {what} \"{path}\": BIO_new_file() failed (SSL: {reason})")
}

/// The certificates of a file of trusted authorities.
pub fn authorities(
    compiler: &Compiler<'_>,
    word: &Word,
    certificates: impl Fn(&[u8]) -> Result<Vec<CertificateDer<'static>>, PemError>,
) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let content = read(compiler, word, "certificate")?;
    certificates(&content).map_err(|error| {
        let error = LoadError::Certificate(error);
        Fault::at(word, unusable(&shown(compiler, word), "", &error))
    })
}

/// The certificate revocation lists of a file.
pub fn revocation_lists(
    compiler: &Compiler<'_>,
    word: &Word,
) -> Result<Vec<CertificateRevocationListDer<'static>>, Fault> {
    let content = read(compiler, word, "CRL")?;
    pem::revocation_lists(&content).map_err(|error| {
        let (path, reason) = (shown(compiler, word), error.reason("X509 CRL"));
        Fault::at(
            word,
            format!("cannot load CRL \"{path}\": PEM_read_bio_X509_CRL() failed (SSL: {reason})"),
        )
    })
}

/// Checks that the file of `ssl_dhparam` can be read and contains parameters.
pub fn check_dh_parameters(compiler: &Compiler<'_>, word: &Word) -> Result<(), Fault> {
    let path = compiler.conf_prefix.join(word.path());
    let content = opened(compiler.files.read(&path));
    let content = content.map_err(|error| not_opened(word, &path, "r", &error))?;
    pem::dh_parameters(&content).map_err(|error| {
        let (path, reason) = (path.display(), error.reason("DH PARAMETERS"));
        let text = format!("PEM_read_bio_DHparams(\"{path}\") failed (SSL: {reason})");
        Fault::at(word, text)
    })
}

/// The response of `ssl_stapling_file`, which is sent with every certificate of the server. Any
/// other content would break the handshakes of clients that check it.
pub fn stapled(compiler: &Compiler<'_>, word: &Word) -> Result<Vec<u8>, Fault> {
    let path = compiler.conf_prefix.join(word.path());
    let read = compiler.files.read(&path);
    let is_folder = matches!(&read, Err(error) if error.kind() == io::ErrorKind::IsADirectory);
    let mut content = opened(read).map_err(|error| not_opened(word, &path, "rb", &error))?;
    let length = length_of_response(&content).map_err(|why| {
        let reason = match why {
            NoResponse::TooShort if is_folder => {
                " (SSL: error:80000015:system library::Is a directory:calling fread() \
                 error:10080002:BIO routines::system lib \
                 error:0680008E:asn1 encoding routines::not enough data)"
            }
            NoResponse::TooShort if content.is_empty() => "",
            NoResponse::TooShort => {
                " (SSL: error:0680008E:asn1 encoding routines::not enough data)"
            }
            NoResponse::Other => {
                " (SSL: error:068000A8:asn1 encoding routines::wrong tag \
                 error:0688010A:asn1 encoding routines::nested asn1 error:Type=OCSP_RESPONSE)"
            }
        };
        let path = path.display();
        let text = format!("d2i_OCSP_RESPONSE_bio(\"{path}\") failed{reason}");
        Fault::at(word, text)
    })?;
    content.truncate(length);
    Ok(content)
}

fn not_opened(word: &Word, path: &Path, mode: &'static str, error: &io::Error) -> Fault {
    let reason = Unopened { path, mode, error };
    let path = path.display();
    Fault::at(
        word,
        format!("BIO_new_file(\"{path}\") failed (SSL: {reason})"),
    )
}

/// Loaded certificates by their files, so that servers with the same files share them.
#[derive(Default)]
struct CertificateFiles(Map<Identity, Arc<CertifiedKey>>);

/// The files of a chain, its key and its passwords, as written.
type Identity = (Box<[u8]>, Box<[u8]>, Option<Box<[u8]>>);

impl Registry for CertificateFiles {}

/// A certificate with its key, loaded once for all servers that name the same files.
pub fn load(
    compiler: &Compiler<'_>,
    certificate: &Word,
    key: &Word,
    passwords: Option<&Word>,
) -> Result<Arc<CertifiedKey>, Fault> {
    let identity = (
        certificate.bytes.clone(),
        key.bytes.clone(),
        passwords.map(|file| file.bytes.clone()),
    );
    let loaded = compiler.registry::<CertificateFiles>();
    if let Some(known) = loaded.borrow().0.get(&identity) {
        return Ok(Arc::clone(known));
    }
    let passwords = match passwords {
        Some(file) => read_passwords(compiler, file)?,
        None => Vec::new(),
    };
    let chain_pem = read(compiler, certificate, "certificate")?;
    let chain = certificates::chain(&chain_pem);
    let refused = |error: &LoadError| {
        let (certificate_file, key_file) = (shown(compiler, certificate), shown(compiler, key));
        let word = match error {
            LoadError::Certificate(_) => certificate,
            _ => key,
        };
        Fault::at(word, unusable(&certificate_file, &key_file, error))
    };
    let chain = chain.map_err(|error| refused(&error))?;
    let key_pem = read(compiler, key, "certificate key")?;
    let certified = certificates::certified_key(chain, &key_pem, &passwords)
        .map_err(|error| refused(&error))?;
    loaded
        .borrow_mut()
        .0
        .insert(identity, Arc::clone(&certified));
    Ok(certified)
}

/// nginx's text about files that cannot be used.
pub fn unusable(certificate: &str, key: &str, error: &LoadError) -> String {
    match error {
        LoadError::Certificate(_) => format!(
            "cannot load certificate \"{certificate}\": PEM_read_bio_X509_AUX() failed (SSL: {error})"
        ),
        LoadError::Key(_) | LoadError::UnusableKey(_) => format!(
            "cannot load certificate key \"{key}\": PEM_read_bio_PrivateKey() failed (SSL: {error})"
        ),
        LoadError::Mismatch => {
            format!("SSL_CTX_use_PrivateKey(\"{key}\") failed (SSL: {error})")
        }
    }
}

/// The file of a certificate or key as log messages show it.
pub fn shown(compiler: &Compiler<'_>, word: &Word) -> String {
    if word.bytes.starts_with(b"data:") {
        "data:...".to_owned()
    } else {
        compiler.conf_prefix.join(word.path()).display().to_string()
    }
}

/// The passwords of a file, one per line.
pub fn read_passwords(compiler: &Compiler<'_>, file: &Word) -> Result<Vec<Bytes>, Fault> {
    let path: PathBuf = compiler.conf_prefix.join(file.path());
    let text = compiler.files.read(&path).map_err(|error| {
        // A folder can be opened, but not read.
        let call = match error.kind() {
            io::ErrorKind::IsADirectory => "read()",
            _ => "open()",
        };
        let (path, cause) = (path.display(), Errno(&error));
        Fault::at(file, format!("{call} \"{path}\" failed {cause}")).while_reading()
    })?;
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines
        .filter(|line| !line.is_empty())
        .map(Bytes::copy_from_slice)
        .collect())
}
