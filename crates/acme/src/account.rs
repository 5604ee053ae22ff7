//! //! The account at the ACME server: read from the store, found by its configured key, or newly
//! registered.

use std::sync::Arc;

use base::level::Level;
use instant_acme::{
    Account, AccountCredentials, ExternalAccountKey, Key, NewAccount, RevocationRequest,
};
use rustls::ClientConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::http::Client;
use crate::issue::{self, Cause, IssueError};
use crate::issuer::Issuer;
use crate::wait::block_on;

/// The account's file in the store.
const FILE: &str = "account.json";

/// Maximum number of times that a revocation is sent while the server answers `badNonce`.
/// `instant-acme` itself tries up to three nonces each time. The refusal concerns the nonce and
/// not the revocation (RFC 8555 section 6.5), so sending it again is safe. An order refused with
/// `badNonce` is tried again later, like after any other failure.
const NONCES_MAX: u32 = 5;

/// Where the key of an account comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountKey {
    /// A new key is generated with the account: ECDSA on P-256, the only kind with which
    /// `instant-acme` signs.
    Made,
    /// A configured key, as PKCS#8.
    Given(Vec<u8>),
}

/// An external account binding (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key identifier, issued by the operator of the ACME server.
    pub id: String,
    /// The MAC key that belongs to the identifier.
    pub key: Vec<u8>,
}

/// The content of the account's file.
#[derive(Deserialize, Serialize)]
struct SavedAccount {
    directory: String,
    contacts: Vec<String>,
    credentials: serde_json::Value,
}

impl AccountKey {
    /// Parses an account's key from PEM: ECDSA on P-256, as PKCS#8 or SEC 1.
    ///
    /// # Errors
    /// The reason why the text is not such a key.
    pub fn from_pem(pem: &[u8]) -> Result<AccountKey, String> {
        use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
        use rustls_pki_types::pem::PemObject;

        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "no private key".to_owned())?;
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_private_key_der(algorithm, key.secret_der());
        let pair = pair.map_err(|_| "only keys of the kind ecdsa:256 are supported".to_owned())?;
        let der = pair.to_pkcs8v1().map_err(|_| "unusable key".to_owned())?;
        Ok(AccountKey::Given(der.as_ref().to_vec()))
    }
}

/// Opens the issuer's account. When this returns, the account exists at the server.
pub(crate) async fn open(issuer: &Issuer, client: &Client) -> Result<Account, IssueError> {
    match &issuer.account {
        AccountKey::Given(key) => given(issuer, client, key).await,
        AccountKey::Made => match stored(issuer) {
            Some(stored) => restore(issuer, client, stored).await,
            None => make(issuer, client).await,
        },
    }
}

/// The stored account, if it belongs to the issuer's directory URL.
fn stored(issuer: &Issuer) -> Option<SavedAccount> {
    let bytes = match issuer.store.read(FILE) {
        Ok(bytes) => bytes?,
        Err(error) => {
            issuer.log(
                Level::Warn,
                format_args!("\"{FILE}\" cannot be read ({error})"),
            );
            return None;
        }
    };
    match serde_json::from_slice::<SavedAccount>(&bytes) {
        Ok(stored) => Some(stored).filter(|stored| stored.directory == issuer.directory),
        Err(error) => {
            let text = format_args!("\"{FILE}\" is ignored, it holds no account ({error})");
            issuer.log(Level::Warn, text);
            None
        }
    }
}

async fn restore(
    issuer: &Issuer,
    client: &Client,
    stored: SavedAccount,
) -> Result<Account, IssueError> {
    let credentials = serde_json::from_value::<AccountCredentials>(stored.credentials.clone());
    let Ok(credentials) = credentials else {
        return make(issuer, client).await;
    };
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let account = builder.from_credentials(credentials).await;
    let account = account.map_err(IssueError::of(client))?;
    if stored.contacts != issuer.contacts {
        let contacts: Vec<&str> = issuer.contacts.iter().map(String::as_str).collect();
        let told = account.update_contacts(&contacts).await;
        match told.map_err(IssueError::of(client)) {
            Ok(()) => keep(issuer, stored.credentials),
            Err(failure) if failure.is("accountDoesNotExist") => {
                return make(issuer, client).await;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(account)
}

/// Registers a new account and replaces the stored one.
pub(crate) async fn make(issuer: &Issuer, client: &Client) -> Result<Account, IssueError> {
    let contacts: Vec<&str> = issuer.contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: issuer.terms_accepted,
        only_return_existing: false,
    };
    let binding = issuer.external.as_ref();
    let binding =
        binding.map(|external| ExternalAccountKey::new(external.id.clone(), &external.key));
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let made = builder.create(&new, issuer.directory.clone(), binding.as_ref());
    let (account, credentials) = made.await.map_err(refused(issuer, client))?;
    issuer.log(
        Level::Info,
        format_args!("account \"{}\" created", account.id()),
    );
    match serde_json::to_value(credentials) {
        Ok(credentials) => keep(issuer, credentials),
        Err(error) => issuer.log(
            Level::Warn,
            format_args!("the account is not kept ({error})"),
        ),
    }
    Ok(account)
}

fn keep(issuer: &Issuer, credentials: serde_json::Value) {
    let stored = SavedAccount {
        directory: issuer.directory.clone(),
        contacts: issuer.contacts.clone(),
        credentials,
    };
    let written = serde_json::to_vec(&stored).map_err(std::io::Error::from);
    let written = written.and_then(|bytes| issuer.store.write(FILE, &bytes));
    if let Err(error) = written {
        let text = format_args!("writing \"{FILE}\" to the state folder failed ({error})");
        issuer.log(Level::Warn, text);
    }
}

/// Looks up the account of a configured key. If the operator has agreed to the terms of service, a
/// missing account is created; otherwise the account must exist.
async fn given(issuer: &Issuer, client: &Client, key: &[u8]) -> Result<Account, IssueError> {
    let der = PrivatePkcs8KeyDer::from(key.to_vec());
    let pair = Key::from_pkcs8_der(der.clone_key()).map_err(IssueError::of(client))?;
    let key = (pair, PrivateKeyDer::Pkcs8(der));
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let directory = issuer.directory.clone();
    let found = if issuer.terms_accepted {
        builder.create_from_key(key, directory).await
    } else {
        builder.from_key(key, directory).await
    };
    let (account, _) = found.map_err(refused(issuer, client))?;
    if issuer.terms_accepted {
        let contacts: Vec<&str> = issuer.contacts.iter().map(String::as_str).collect();
        let told = account.update_contacts(&contacts).await;
        told.map_err(IssueError::of(client))?;
    }
    Ok(account)
}

/// Converts the failure to open an account. If the operator has not agreed to the terms of service,
/// the error names their URL.
fn refused<'a>(
    issuer: &'a Issuer,
    client: &'a Client,
) -> impl FnOnce(instant_acme::Error) -> IssueError + 'a {
    move |error| {
        let failure = IssueError::of(client)(error);
        if issuer.terms_accepted || !failure.names_a_problem() {
            return failure;
        }
        match terms(issuer, client) {
            Some(terms) => IssueError {
                cause: Cause::Terms(terms, Box::new(failure.cause)),
                ..failure
            },
            None => failure,
        }
    }
}

/// Revokes a certificate (RFC 8555 section 7.6), for instance after its key has leaked. The account
/// is the one that ordered the certificate; `account` is the content of the store's `account.json`.
///
/// # Errors
/// The defect of the file or the certificate, or the server's answer.
pub fn revoke(account: &[u8], tls: Arc<ClientConfig>, certificate: &[u8]) -> Result<(), String> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    let stored =
        serde_json::from_slice::<SavedAccount>(account).map_err(|error| error.to_string())?;
    let credentials = serde_json::from_value::<AccountCredentials>(stored.credentials);
    let credentials = credentials.map_err(|error| error.to_string())?;
    let certificate = CertificateDer::from_pem_slice(certificate);
    let certificate = certificate.map_err(|_| "no certificate".to_owned())?;
    let request = RevocationRequest {
        certificate: &certificate,
        reason: None,
    };
    block_on(async {
        let builder = Account::builder_with_http(Box::new(Client::new(tls)));
        let account = builder.from_credentials(credentials).await?;
        let mut tries = 1;
        loop {
            match account.revoke(&request).await {
                Err(error) if issue::is(&error, "badNonce") && tries < NONCES_MAX => tries += 1,
                revoked => return revoked,
            }
        }
    })
    .map_err(|error| error.to_string())
}

/// The URL of the terms of service in the server's directory.
fn terms(issuer: &Issuer, client: &Client) -> Option<String> {
    let directory = client.get(&issuer.directory).ok()?;
    let directory: serde_json::Value = serde_json::from_slice(&directory).ok()?;
    let terms = directory.get("meta")?.get("termsOfService")?.as_str()?;
    Some(terms.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MHcCAQEEIKHVfkMHSaqVXSI0NKtxzQxwXKXbTiKeP2p8HDCi2rqaoAoGCCqGSM49\n\
        AwEHoUQDQgAE\n-----END EC PRIVATE KEY-----\n";

    #[test]
    fn keys_of_accounts() {
        let key = |pem: &str| AccountKey::from_pem(pem.as_bytes());
        assert_eq!(key(""), Err("no private key".to_owned()));
        let wrong = Err("only keys of the kind ecdsa:256 are supported".to_owned());
        assert_eq!(key(SEC1), wrong, "it is cut off");
        let p256 = crate::certificate::new_key(crate::KeyKind::Ecdsa256).unwrap();
        assert!(matches!(
            key(&p256.serialize_pem()),
            Ok(AccountKey::Given(_))
        ));
        let p384 = crate::certificate::new_key(crate::KeyKind::Ecdsa384).unwrap();
        assert_eq!(key(&p384.serialize_pem()), wrong);
    }

    /// Revokes at a server that refuses the given number of nonces first. Returns the outcome and
    /// the number of requests sent.
    fn revoked(refused: u32) -> (Result<(), String>, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let mut sent = 0;
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (Vec::new(), 0);
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    match line.trim_end().to_ascii_lowercase().split_once(": ") {
                        Some(("content-length", value)) => length = value.parse().unwrap(),
                        None if line.trim_end().is_empty() => break,
                        _ => head.push(line),
                    }
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                sent += u32::from(head[0].starts_with("POST"));
                let (status, body) = match &*head[0] {
                    request if request.starts_with("GET /end") => break,
                    request if request.starts_with("HEAD") || sent > refused => ("200 OK", ""),
                    _ => {
                        let problem = r#"{"type":"urn:ietf:params:acme:error:badNonce"}"#;
                        ("400 Bad Request", problem)
                    }
                };
                let length = body.len();
                let stream = stream.get_mut();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nReplay-Nonce: {sent}\r\nContent-Length: {length}\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
            sent
        });
        let key = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgAfv9XmTtccvsBv0OU4Q5vsSPULjF_cFi\
                   U55x-AHxo-uhRANCAAQfTfNkVAM0Urvr4sUXcQQ9ZDsPemLDqRXq3sGcLkFErvACdatXBK9Sd2aaj0hw\
                   ETU3HJ1A-v0K7Aod3Y6-Skcl";
        let account = serde_json::json!({
            "directory": url, "contacts": [],
            "credentials": { "id": "1", "key_pkcs8": key, "urls": {
                "newNonce": format!("{url}/nonce"), "newAccount": url, "newOrder": url,
                "revokeCert": format!("{url}/revoke"),
            }},
        });
        let certificate = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = crate::trust::trust(&provider, None).unwrap();
        let outcome = revoke(
            account.to_string().as_bytes(),
            Arc::clone(&tls),
            certificate.cert.pem().as_bytes(),
        );
        let _ = Client::new(tls).get(&format!("{url}/end"));
        (outcome, server.join().unwrap())
    }

    #[test]
    fn a_revocation_is_sent_again_where_its_nonce_is_refused() {
        assert_eq!(revoked(0), (Ok(()), 1));
        assert_eq!(revoked(4), (Ok(()), 5));
        let (outcome, sent) = revoked(u32::MAX);
        assert!(outcome.unwrap_err().contains("badNonce"));
        assert_eq!(sent, 3 * NONCES_MAX);
    }
}
