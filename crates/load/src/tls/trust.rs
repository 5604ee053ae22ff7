//! The verification of servers: against certificate authorities from a file, or not at all.

use std::path::Path;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{TlsError, certificates};

/// The files in which systems keep their certificate authorities; the first that exists is used.
const SYSTEM_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
    "/etc/ssl/ca-bundle.pem",             // openSUSE
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
    "/etc/ssl/cert.pem",                  // Alpine without a package for it
];

/// The certificate authorities in `file`, or else the system's.
pub(super) fn authorities(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let system = || {
        SYSTEM_FILES
            .iter()
            .map(Path::new)
            .find(|path| path.exists())
    };
    let path = file.or_else(system).ok_or(TlsError::NoAuthorities)?;
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(certificates(path)?);
    match added {
        0 => Err(TlsError::File(
            path.to_owned(),
            "none of its certificates can be an authority".to_owned(),
        )),
        _ => Ok(store),
    }
}

/// Accepts every server, and skips the verification of handshake signatures: if the identity of the
/// server does not matter, the load tester can save that work.
#[derive(Debug)]
pub(super) struct AcceptAnyServer {
    schemes: Vec<SignatureScheme>,
}

impl AcceptAnyServer {
    pub(super) fn new(provider: &CryptoProvider) -> AcceptAnyServer {
        AcceptAnyServer {
            schemes: provider
                .signature_verification_algorithms
                .supported_schemes(),
        }
    }
}

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
