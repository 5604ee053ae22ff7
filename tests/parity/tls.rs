//! The client's side of TLS: what a case lets it offer.
//!
//! `tls` alone is TLS 1.3 or 1.2 to localhost. Words after it say more:
//!
//! ```text
//! name=NAME          the server that is asked for; `name=` asks for none
//! version=1.2        only this version
//! identity=NAME      the certificate tests/tls/NAME.crt and its key
//! suites=A,B         ciphers as IANA names them, best first
//! alpn=A,B           protocols
//! ```
//!
//! Any server is trusted. Keys are exchanged by X25519 or P-256, which any OpenSSL has.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};

/// What a client offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    name: Option<String>,
    version: Option<&'static SupportedProtocolVersion>,
    identity: Option<String>,
    suites: Option<Vec<String>>,
    protocols: Vec<String>,
}

impl Offer {
    /// Reads what stands behind `tls`.
    pub(crate) fn parse(text: &str) -> Result<Offer, String> {
        let mut offer = Offer {
            name: Some("localhost".to_string()),
            ..Offer::default()
        };
        let list = |value: &str| value.split(',').map(str::to_string).collect::<Vec<_>>();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("name", "")) => offer.name = None,
                Some(("name", name)) => offer.name = Some(name.to_string()),
                Some(("version", "1.2")) => offer.version = Some(&rustls::version::TLS12),
                Some(("version", "1.3")) => offer.version = Some(&rustls::version::TLS13),
                Some(("identity", name)) => offer.identity = Some(name.to_string()),
                Some(("suites", suites)) => offer.suites = Some(list(suites)),
                Some(("alpn", protocols)) => offer.protocols = list(protocols),
                _ => return Err(format!("`{word}` is nothing that a client of TLS offers")),
            }
        }
        Ok(offer)
    }

    /// The server that is asked for.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether HTTP/2 may be agreed on: it is offered, or no protocol is.
    pub(crate) fn may_agree_on_http2(&self) -> bool {
        self.protocols.is_empty() || self.protocols.iter().any(|protocol| protocol == "h2")
    }

    /// The same offer of one who wants HTTP/2.
    pub(crate) fn over_http2(&self) -> Offer {
        let mut offer = self.clone();
        if offer.protocols.is_empty() {
            offer.protocols.push("h2".to_string());
        }
        offer
    }

    /// A client that offers this. Its connections share sessions.
    pub(crate) fn client(&self) -> Result<Client, String> {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1];
        if let Some(names) = &self.suites {
            let known = std::mem::take(&mut provider.cipher_suites);
            let suite = |name: &String| {
                let of_name = known
                    .iter()
                    .find(|known| known.suite().as_str() == Some(name));
                of_name.copied().ok_or(format!("there is no {name}"))
            };
            provider.cipher_suites = names.iter().map(suite).collect::<Result<_, _>>()?;
        }
        let provider = Arc::new(provider);
        let versions = match self.version {
            Some(version) => vec![version],
            None => rustls::ALL_VERSIONS.to_vec(),
        };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| text(&error))?
            .dangerous()
            .with_custom_certificate_verifier(support::tls::trust_everybody(&provider));
        let mut config = match &self.identity {
            Some(name) => {
                let path = format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
                let key = PrivateKeyDer::from_pem_file(format!("{path}.key"));
                let chain = CertificateDer::pem_file_iter(format!("{path}.crt"))
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let chain = chain.map_err(|error| text(&error))?;
                builder
                    .with_client_auth_cert(chain, key.map_err(|error| text(&error))?)
                    .map_err(|error| text(&error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self
            .protocols
            .iter()
            .map(|one| one.clone().into())
            .collect();
        config.enable_sni = self.name.is_some();
        Ok(Client {
            config: Arc::new(config),
            name: self.name.clone().unwrap_or("localhost".to_string()),
        })
    }
}

/// A client that speaks TLS.
pub(crate) struct Client {
    config: Arc<ClientConfig>,
    name: String,
}

/// A connection over TLS.
pub(crate) type Secured = Box<StreamOwned<ClientConnection, TcpStream>>;

impl Client {
    /// Shakes hands over a connection; else why that failed.
    pub(crate) fn secure(&self, stream: TcpStream) -> Result<Secured, String> {
        let name = ServerName::try_from(self.name.clone()).map_err(|error| error.to_string())?;
        let client = ClientConnection::new(Arc::clone(&self.config), name);
        let mut secured = StreamOwned::new(client.map_err(|error| error.to_string())?, stream);
        while secured.conn.is_handshaking() {
            let done = secured.conn.complete_io(&mut secured.sock);
            done.map_err(|error| error.to_string())?;
        }
        Ok(Box::new(secured))
    }
}
