//! The block `acme_issuer`: an ACME server and the settings of its orders.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use acme::{
    AccountKey, Challenge, DnsProgram, ExternalAccount, Issuer, KeyKind, Memory, Profile,
    StateFolder, Store, UnknownKey, trust,
};
use base::hash::Map;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse};
use framework::compile::Compiler;
use proto::base64::{self, Alphabet};
use transport::tls::provider;

use super::host::Listeners;

const ISSUER: Contexts = Contexts::ACME_ISSUER;

/// The files in which systems keep the certificates of the authorities that they trust. The first
/// file that exists is used.
pub(crate) const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
    "/etc/ssl/ca-bundle.pem",             // SUSE
    "/etc/ssl/cert.pem",                  // elsewhere
];

pub(super) static ACME_ISSUER: Setting<()> =
    Setting::new("acme_issuer", &["name { ... }"], parse::nothing)
        .contexts(Contexts::HTTP)
        .arity(Arity::exactly(1))
        .inherit(Inherit::Block)
        .block()
        .opens(ISSUER)
        .manual("A server of ACME that `acme_certificate` gets certificates from, under a name.");

static URI: Setting<String> = Setting::new("uri", &["uri"], |setter| {
    let word = setter.word()?;
    if acme::is_url(&word.text()) {
        Ok(word.text().into_owned())
    } else {
        Err(Fault::at(word, format!("invalid URI \"{}\"", word.text())))
    }
})
.contexts(ISSUER)
.manual("The URL of the server's directory. There is no default.");

static ACCOUNT_KEY: Setting<Key> =
    Setting::new("account_key", &["alg[:size]", "file"], account_key)
        .contexts(ISSUER)
        .default("ecdsa:256")
        .manual(
            "The key of the account: made with it, or out of a file in PEM. Accounts have keys of \
             the kind `ecdsa:256`; where another kind is written, `ecdsa:256` is made with a \
             warning, and a file with another is an error.",
        );

static CHALLENGE: Setting<Challenge> = Setting::new(
    "challenge",
    &["http-01 | tls-alpn-01", "dns-01 program [argument ...]"],
    challenge,
)
.contexts(ISSUER)
.arity(Arity::at_least(1))
.default("http-01")
.manual(
    "How the server is shown that names are ours. `http-01` (or `http`) is answered by every \
     listener, and needs one on port 80; `tls-alpn-01` (or `tls-alpn`) by every listener with \
     `ssl`, and needs one on port 443. `dns-01` (ours) calls a program as `program argument … \
     present|cleanup name value`, which puts a TXT record of this name and value into the zone or \
     takes it out of it, and ends when the zone's servers have it. It runs as the workers' user; \
     programs for lego's provider `exec` will do. Wildcards need `dns-01`.",
);

static COMMON_NAME_IN_CSR: Setting<bool> =
    Setting::new("common_name_in_csr", &["on | off"], parse::flag)
        .contexts(ISSUER)
        .arity(Arity::flag())
        .default("off")
        .manual("Requests name the first identifier as the subject's common name, too.");

static CONTACT: Setting<Vec<String>> = Setting::new("contact", &["URL"], contacts)
    .contexts(ISSUER)
    .inherit(Inherit::List)
    .manual(
        "Where the server reaches the account's owner; `mailto:` is put before what has no scheme. \
         May be written several times.",
    );

static EXTERNAL_ACCOUNT_KEY: Setting<(String, Word)> = Setting::new(
    "external_account_key",
    &["kid file", "kid data:key"],
    |setter| match setter.args() {
        [id, key] => Ok((id.text().into_owned(), key.clone())),
        _ => Err(Fault::new(
            "invalid number of arguments in \"external_account_key\" directive",
        )),
    },
)
.contexts(ISSUER)
.arity(Arity::exactly(2))
.manual(
    "Binds the account to one that exists with the server's operator: its identifier, and the \
         key in Base64 for URLs, in a file or written out.",
);

static PREFERRED_CHAIN: Setting<String> = Setting::new("preferred_chain", &["name"], parse::text)
    .contexts(ISSUER)
    .manual(
        "Of several chains that the server offers, the one whose topmost certificate was signed \
             by an issuer with this common name; the server's first where there is none.",
    );

static PROFILE: Setting<Profile> = Setting::new("profile", &["name [require]"], profile)
    .contexts(ISSUER)
    .arity(Arity::between(1, 2))
    .manual(
        "The kind of certificate to ask for. A server that does not offer it is asked without; with \
         `require` it is not asked at all.",
    );

static SSL_TRUSTED_CERTIFICATE: Setting<PathBuf> =
    Setting::new("ssl_trusted_certificate", &["file"], parse::path)
        .contexts(ISSUER)
        .manual(
            "Authorities, in PEM, that the server's own certificate must come from; without it \
             those that the system trusts.",
        );

static SSL_VERIFY: Setting<bool> = Setting::new("ssl_verify", &["on | off"], parse::flag)
    .contexts(ISSUER)
    .arity(Arity::flag())
    .default("on")
    .manual("Whether the server's own certificate is verified.");

static STATE_PATH: Setting<Option<PathBuf>> =
    Setting::new("state_path", &["path | off"], |setter| {
        let word = setter.word()?;
        Ok((&*word.bytes != b"off").then(|| word.path().to_owned()))
    })
    .contexts(ISSUER)
    .manual(
        "The folder that keeps account and certificates with their keys, for the workers' user \
         alone; by default `acme_NAME` below the prefix. With `off` they are kept in memory, which \
         outlives a reload but no restart.",
    );

static ACCEPT_TERMS_OF_SERVICE: Setting<()> =
    Setting::new("accept_terms_of_service", &[""], parse::nothing)
        .contexts(ISSUER)
        .arity(Arity::none())
        .manual(
            "Agrees to the server's terms of service, which many servers want before they make an \
             account; where it is missing, the error log names them.",
        );

static ANNOUNCE: Setting<bool> = Setting::new("announce", &["on | off"], parse::flag)
    .contexts(ISSUER)
    .default("off")
    .manual(
        "Says on standard error in a sentence each when a certificate is asked for, until when one \
         that has come holds, and why one has not come and when the next try is: for a server in \
         the foreground, as `tidegate serve` is one. The error log has its own lines.",
    );

/// The directives of the block.
pub(super) const DIRECTIVES: &[&dyn Declared] = &[
    &ACME_ISSUER,
    &ANNOUNCE,
    &URI,
    &ACCOUNT_KEY,
    &CHALLENGE,
    &COMMON_NAME_IN_CSR,
    &CONTACT,
    &EXTERNAL_ACCOUNT_KEY,
    &PREFERRED_CHAIN,
    &PROFILE,
    &SSL_TRUSTED_CERTIFICATE,
    &SSL_VERIFY,
    &STATE_PATH,
    &ACCEPT_TERMS_OF_SERVICE,
];

/// The key of an account.
enum Key {
    Made,
    File(Word),
}

fn account_key(setter: &Setter<'_>) -> Result<Key, Fault> {
    let word = setter.word()?;
    match key_kind("account_key", word)? {
        Some(KeyKind::Ecdsa256) => Ok(Key::Made),
        Some(_) => {
            let text = format!(
                "accounts with a key of the kind \"{}\" are not supported, \"ecdsa:256\" is used",
                word.text()
            );
            setter.warn(word, text);
            Ok(Key::Made)
        }
        None => Ok(Key::File(word.clone())),
    }
}

/// Parses a kind of key; `None` if the word is not one, but the name of a file.
pub(super) fn key_kind(directive: &str, word: &Word) -> Result<Option<KeyKind>, Fault> {
    let fault = |text: &str| Fault::at(word, format!("{directive}: {text}"));
    match KeyKind::parse(&word.bytes) {
        Ok(kind) => Ok(Some(kind)),
        Err(UnknownKey::Curve) => Err(fault("unsupported curve")),
        Err(UnknownKey::Size) => Err(fault("unsupported key size")),
        Err(UnknownKey::Other) => Ok(None),
    }
}

fn challenge(setter: &Setter<'_>) -> Result<Challenge, Fault> {
    let word = setter.word()?;
    let [_, rest @ ..] = setter.args() else {
        return Err(Fault::invalid_value(word));
    };
    match (&*word.bytes, rest) {
        (b"http" | b"http-01", []) => Ok(Challenge::Http01),
        (b"tls-alpn" | b"tls-alpn-01", []) => Ok(Challenge::TlsAlpn01),
        (b"dns" | b"dns-01", [program, arguments @ ..]) => Ok(Challenge::Dns01(DnsProgram {
            path: program.path().to_owned(),
            arguments: arguments
                .iter()
                .map(|argument| argument.path().as_os_str().to_owned())
                .collect(),
        })),
        (b"dns" | b"dns-01", []) => Err(Fault::at(word, "\"dns-01\" needs a program")),
        (b"http" | b"http-01" | b"tls-alpn" | b"tls-alpn-01", [extra, ..]) => {
            Err(Fault::invalid_parameter(extra))
        }
        _ => Err(Fault::at(
            word,
            format!("unsupported challenge: {}", word.text()),
        )),
    }
}

fn contacts(setter: &Setter<'_>) -> Result<Vec<String>, Fault> {
    let contact = |line: &&conf::Line| {
        let word = line.argument(0);
        let text = word.text();
        if text.is_empty() {
            return Err(Fault::invalid_value(word));
        }
        Ok(if has_scheme(&text) {
            text.into_owned()
        } else {
            format!("mailto:{text}")
        })
    };
    setter.lines().iter().map(contact).collect()
}

/// Whether a URL begins with a scheme (RFC 3986 section 3.1).
fn has_scheme(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once(':') else {
        return false;
    };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn profile(setter: &Setter<'_>) -> Result<Profile, Fault> {
    let word = setter.word()?;
    let required = match setter.args() {
        [_, flag] if &*flag.bytes == b"require" => true,
        [_, other, ..] => return Err(Fault::invalid_value(other)),
        _ => false,
    };
    Ok(Profile {
        name: word.text().into_owned(),
        required,
    })
}

/// Compiles one `acme_issuer` block, which may have no orders.
pub(super) fn compile(compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<Issuer, Fault> {
    let line = block.line();
    let name = line.map(|line| line.argument(0).text().into_owned());
    let name = name.unwrap_or_default();
    let about = |text: String| Fault::new(format!("acme_issuer: {text}"));
    let directory = block
        .own(&URI)?
        .ok_or_else(|| about("\"uri\" is missing".to_owned()))?;
    let account = match block.get(&ACCOUNT_KEY)? {
        Key::Made => AccountKey::Made,
        Key::File(word) => {
            let path = compiler.conf_prefix.join(word.path());
            let failed = |why: String| {
                let path = path.display();
                Fault::at(
                    &word,
                    format!("acme_issuer: cannot load account key \"{path}\": {why}"),
                )
            };
            let pem = compiler.files.read(&path);
            let pem = pem.map_err(|error| failed(error.to_string()))?;
            AccountKey::from_pem(&pem).map_err(failed)?
        }
    };
    let external = external(compiler, block)?;
    if external.is_some() && account != AccountKey::Made {
        let text = "\"external_account_key\" cannot be used with a file as \"account_key\"";
        return Err(about(text.to_owned()));
    }
    let store = match block.own(&STATE_PATH)? {
        Some(Some(path)) => Store::Folder(StateFolder::new(compiler.directory(&path))),
        Some(None) => Store::Memory(memory(&name, &directory)),
        None => {
            let path = PathBuf::from(format!("acme_{name}"));
            Store::Folder(StateFolder::new(compiler.directory(&path)))
        }
    };
    let challenge = block.get(&CHALLENGE)?;
    if let Challenge::Dns01(program) = &challenge {
        compiler.will_run(&program.path, &program.arguments);
    }
    Ok(Issuer {
        account,
        external,
        store,
        directory,
        contacts: block.own(&CONTACT)?.unwrap_or_default(),
        terms_accepted: block.own(&ACCEPT_TERMS_OF_SERVICE)?.is_some(),
        challenge,
        profile: block.own(&PROFILE)?,
        preferred_chain: block.own(&PREFERRED_CHAIN)?,
        common_name: block.get(&COMMON_NAME_IN_CSR)?,
        tls: authorities(compiler, block)?,
        provider: Arc::clone(provider()),
        host: Arc::new(Listeners::new(&name, block.get(&ANNOUNCE)?)),
        name,
    })
}

/// `external_account_key`, with the key in its file.
fn external(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
) -> Result<Option<ExternalAccount>, Fault> {
    let Some((id, word)) = block.own(&EXTERNAL_ACCOUNT_KEY)? else {
        return Ok(None);
    };
    let read;
    let encoded = match word.bytes.strip_prefix(b"data:") {
        Some(data) => data,
        None => {
            let path = compiler.conf_prefix.join(word.path());
            read = compiler.files.read(&path).map_err(|error| {
                let path = path.display();
                Fault::at(&word, format!("cannot load \"{path}\": {error}"))
            })?;
            &read
        }
    };
    let mut key = Vec::new();
    if !base64::decode(encoded.trim_ascii(), Alphabet::Url, &mut key) {
        return Err(Fault::at(&word, "invalid base64url encoded value"));
    }
    Ok(Some(ExternalAccount { id, key }))
}

/// The TLS settings for connections to the ACME server.
fn authorities(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
) -> Result<Arc<rustls::ClientConfig>, Fault> {
    let about = |text: String| Fault::new(format!("acme_issuer: {text}"));
    let written = block.own(&SSL_TRUSTED_CERTIFICATE)?;
    let (path, pem) = match written {
        _ if !block.get(&SSL_VERIFY)? => {
            return trust(provider(), None).map_err(|_| about("TLS is not available".to_owned()));
        }
        Some(path) => {
            let path = compiler.conf_prefix.join(path);
            let pem = compiler.files.read(&path);
            let pem = pem.map_err(|error| {
                about(format!(
                    "cannot load certificate \"{}\": {error}",
                    path.display()
                ))
            })?;
            (path, pem)
        }
        None => {
            let paths = SYSTEM_AUTHORITIES.iter().map(PathBuf::from);
            let mut found = paths.filter_map(|path| {
                let pem = compiler.files.read(&path).ok()?;
                Some((path, pem))
            });
            found.next().ok_or_else(|| {
                about(
                    "the system has no file of trusted authorities, \
                     write \"ssl_trusted_certificate\""
                        .to_owned(),
                )
            })?
        }
    };
    trust(provider(), Some(&pem)).map_err(|_| {
        let path = path.display();
        about(format!(
            "cannot load certificate \"{path}\": no certificates"
        ))
    })
}

/// The state of an issuer with `state_path off`: kept in memory, over reloads.
fn memory(name: &str, directory: &str) -> Arc<Memory> {
    type Memories = Map<(String, String), Arc<Memory>>;
    static ALL: Mutex<Option<Memories>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_with(Map::default);
    let key = (name.to_owned(), directory.to_owned());
    Arc::clone(all.entry(key).or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_scheme_is_left_alone() {
        for text in ["mailto:a@b.test", "tel:+1", "x-y.z+1:a"] {
            assert!(has_scheme(text), "{text}");
        }
        for text in ["a@b.test", "", ":a", "1a:b", "a b:c"] {
            assert!(!has_scheme(text), "{text}");
        }
    }
}
