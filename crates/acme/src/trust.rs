//! Verification of ACME servers: against given root certificates, or not at all.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The PEM text that [`trust`] was given contains no usable certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoots;

/// Makes a client's TLS configuration that verifies servers against the root certificates in
/// `authorities`, a PEM text. Without a text, any certificate is accepted.
///
/// # Errors
/// If the text contains no usable certificate.
pub fn trust(
    provider: &Arc<CryptoProvider>,
    authorities: Option<&[u8]>,
) -> Result<Arc<ClientConfig>, NoRoots> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    // Only fails for providers without TLS 1.2 and 1.3; ours has both.
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|_| NoRoots)?;
    let builder = match authorities {
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
            roots.add_parsable_certificates(certificates);
            if roots.is_empty() {
                return Err(NoRoots);
            }
            builder.with_root_certificates(roots)
        }
        None => {
            let anybody = AcceptAnyServer(Arc::clone(provider));
            let builder = builder.dangerous();
            builder.with_custom_certificate_verifier(Arc::new(anybody))
        }
    };
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Accepts every certificate (`ssl_verify off`). The handshake still proves that the server has the
/// certificate's key.
#[derive(Debug)]
struct AcceptAnyServer(Arc<CryptoProvider>);

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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::provider;
    use crate::{Certificate, Identifier};

    #[test]
    fn authorities_are_certificates() {
        let provider = Arc::new(provider());
        assert!(trust(&provider, None).is_ok());
        for text in [
            "",
            "nothing",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(trust(&provider, Some(text.as_bytes())).err(), Some(NoRoots));
        }
        let names = [Identifier::Dns("a.test".into())];
        let root = Certificate::stand_in(&names, &provider).unwrap();
        let text = format!("{}rubbish\n", root.chain_pem);
        assert!(trust(&provider, Some(text.as_bytes())).is_ok());
    }
}
