//! `ssl_stapling` without a file, and `ssl_ocsp`: answers about certificates, fetched from
//! OpenSSL's responder. Expected:
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html#ssl_stapling>, RFC 6960.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SerialNumber,
};
use support::Server;
use support::engines::EPOLL;
use support::port::free_port;
use support::tls::Client;

/// The server's certificate has this number, in hexadecimal.
const SERIAL: &str = "4D2A11";

/// An authority, the server's certificate, and a responder whom the authority has let answer.
struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// `responder` is the port that the certificate says it is answered about at.
    fn new(responder: Option<u16>) -> Authority {
        let url = responder.map(|port| format!("http://127.0.0.1:{port}/"));
        Authority::with_responder(url)
    }

    /// With a certificate that says that it is answered about at this URL.
    fn with_responder(url: Option<String>) -> Authority {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-stapling-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();

        let named = |name: &str| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, name);
            params
        };
        let key = KeyPair::generate().unwrap();
        let mut params = named("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        put("ca.crt", &params.self_signed(&key).unwrap().pem());
        put("ca.key", &key.serialize_pem());
        let issuer = Issuer::new(params, key);

        let key = KeyPair::generate().unwrap();
        let mut params = named("localhost");
        params.serial_number = Some(SerialNumber::from_slice(&[0x4d, 0x2a, 0x11]));
        if let Some(url) = url {
            params.custom_extensions.push(access(url.as_bytes()));
        }
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let authority = fs::read_to_string(folder.join("ca.crt")).unwrap();
        put("server.crt", &certificate);
        put("chain.crt", &(certificate + &authority));
        put("server.key", &key.serialize_pem());

        let key = KeyPair::generate().unwrap();
        let mut params = named("responder");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::OcspSigning];
        put(
            "responder.crt",
            &params.signed_by(&key, &issuer).unwrap().pem(),
        );
        put("responder.key", &key.serialize_pem());
        Authority { folder }
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The lines of a server with this chain.
    fn server(&self, chain: &str, lines: &str) -> String {
        let (chain, key) = (self.file(chain), self.file("server.key"));
        format!("ssl_certificate {chain}; ssl_certificate_key {key}; ssl_stapling on; {lines}")
    }

    /// Starts a responder who says this of the certificate (`V`alid or `R`evoked), signed by
    /// `signer`.
    fn respond(&self, port: u16, status: &str, signer: &str) -> Responder {
        let revoked = if status == "R" { "260101000000Z" } else { "" };
        let index =
            format!("{status}\t491231235959Z\t{revoked}\t{SERIAL}\tunknown\t/CN=localhost\n");
        fs::write(self.folder.join("index.txt"), index).unwrap();
        let file = |name: &str| self.file(name);
        let log = fs::File::create(self.folder.join("responder.log")).unwrap();
        let child = Command::new("openssl")
            .args([
                "ocsp",
                "-index",
                &file("index.txt"),
                "-CA",
                &file("ca.crt"),
                "-ndays",
                "1",
            ])
            .args(["-rsigner", &file(&format!("{signer}.crt"))])
            .args([
                "-rkey",
                &file(&format!("{signer}.key")),
                "-port",
                &port.to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("openssl; the Debian package openssl has it");
        // A connection without a request would end it.
        support::tls::until("the responder", || {
            let said = fs::read_to_string(self.folder.join("responder.log")).unwrap();
            said.contains("waiting for OCSP client connections")
        });
        Responder(child)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// authorityInfoAccess (RFC 5280 section 4.2.2.1) with one URL for OCSP.
fn access(url: &[u8]) -> CustomExtension {
    let sequence = |tag: u8, content: &[u8]| [&[tag, content.len() as u8], content].concat();
    let method = [6, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, 1];
    let description = sequence(0x30, &[&method[..], &sequence(0x86, url)].concat());
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], sequence(0x30, &description))
}

/// OpenSSL's responder at work.
struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(engine: &str, lines: &str) -> (Server, u16) {
    let port = free_port();
    let block = format!("[http]\nserver {{ listen 127.0.0.1:{port} ssl; {lines} }}\n");
    (Server::start_workers(2, engine, &block), port)
}

/// How long the answer is that a handshake shows, in bytes.
fn stapled(port: u16) -> usize {
    let client = Client::new();
    client.connect(port).unwrap();
    client.stapled()
}

/// Waits until handshakes show an answer.
fn is_stapled(port: u16) {
    support::tls::until("an answer", || stapled(port) > 100);
}

/// Waits for a line of the log, with handshakes that show nothing.
fn is_refused(server: &Server, port: u16, words: &str) {
    support::tls::until(words, || {
        assert_eq!(stapled(port), 0);
        server.error_log().contains(words)
    });
}

fn answers_are_fetched(engine: &'static str) {
    let port = free_port();
    let authority = Authority::new(Some(port));
    let _responder = authority.respond(port, "V", "ca");
    let (_server, tls) = start(engine, &authority.server("chain.crt", ""));
    is_stapled(tls);
    // The issuer may stand among the trusted certificates instead.
    let trusted = format!("ssl_trusted_certificate {};", authority.file("ca.crt"));
    let (_server, tls) = start(engine, &authority.server("server.crt", &trusted));
    is_stapled(tls);
    // And who answers in the configuration.
    let authority = Authority::new(None);
    let port = free_port();
    let named = format!("ssl_stapling_responder http://127.0.0.1:{port}/;");
    let _responder = authority.respond(port, "V", "ca");
    let (_server, tls) = start(engine, &authority.server("chain.crt", &named));
    is_stapled(tls);
}

support::test_on_each_engine!(answers_are_fetched);

#[test]
fn who_answers_must_be_let_to() {
    let port = free_port();
    let authority = Authority::new(Some(port));
    let stranger = Authority::new(None);
    let trusting = |whom: &Authority, verify: &str| {
        let trusted = whom.file("ca.crt");
        authority.server(
            "chain.crt",
            &format!("ssl_stapling_verify {verify}; ssl_trusted_certificate {trusted};"),
        )
    };
    let _responder = authority.respond(port, "V", "responder");
    let (_server, tls) = start(EPOLL, &trusting(&authority, "on"));
    is_stapled(tls);
    let (server, tls) = start(EPOLL, &trusting(&stranger, "on"));
    is_refused(&server, tls, "OCSP_basic_verify() failed");
    let (_server, tls) = start(EPOLL, &trusting(&stranger, "off"));
    is_stapled(tls);
}

#[test]
fn a_revoked_certificate_is_not_vouched_for() {
    let port = free_port();
    let authority = Authority::new(Some(port));
    let _responder = authority.respond(port, "R", "ca");
    let (server, tls) = start(EPOLL, &authority.server("chain.crt", ""));
    is_refused(
        &server,
        tls,
        "certificate status \"revoked\" in the OCSP response",
    );
}

#[test]
fn a_responder_that_is_silent_or_away_holds_nobody_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = Authority::new(Some(silent.local_addr().unwrap().port()));
    let (_server, tls) = start(EPOLL, &authority.server("chain.crt", ""));
    for _ in 0..10 {
        assert_eq!(stapled(tls), 0);
    }
    let away = format!("ssl_stapling_responder http://127.0.0.1:{}/;", free_port());
    let (server, tls) = start(EPOLL, &authority.server("chain.crt", &away));
    is_refused(
        &server,
        tls,
        "connect() failed (111: Connection refused) while requesting certificate status",
    );
}

/// Answers every question for an IPv4 address with 127.0.0.1, and others with nothing; or all with
/// that there is no such name.
fn name_server(knows: bool) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[12..length];
            // Labels up to the empty one, then type and class.
            let end = question.iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_v4 = question[end - 4..end - 2] == [0, 1];
            let counts = [0, 1, 0, u8::from(is_v4 && knows), 0, 0, 0, 0];
            let flags = [0x81, if knows { 0x80 } else { 0x83 }];
            let mut answer = [&buffer[..2], &flags, &counts, &question[..end]].concat();
            if is_v4 && knows {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    port
}

#[test]
fn the_resolver_finds_who_answers() {
    let port = free_port();
    let authority = Authority::new(None);
    let _responder = authority.respond(port, "V", "ca");
    let lines = format!(
        "resolver 127.0.0.1:{}; ssl_stapling_responder http://ocsp.test:{port}/;",
        name_server(true)
    );
    let (_server, tls) = start(EPOLL, &authority.server("chain.crt", &lines));
    is_stapled(tls);
}

/// Two servers with the TLS settings of `http`, each with a `resolver` of its own, of which the
/// second knows nothing.
fn with_two_resolvers(http: &str) -> (Server, [u16; 2]) {
    let ports = [free_port(), free_port()];
    let servers = ports.iter().zip([true, false]).map(|(port, knows)| {
        let resolver = name_server(knows);
        format!(
            "server {{ listen 127.0.0.1:{port} ssl; resolver 127.0.0.1:{resolver}; \
             add_header Verify $ssl_client_verify always; location / {{ return 200 welcome; }} }}\n"
        )
    });
    let blocks = servers.collect::<String>();
    let server = Server::start_workers(2, EPOLL, &format!("[http]\n{http}\n{blocks}"));
    (server, ports)
}

const NOT_RESOLVED: &str = "host could not be resolved (";

/// As in nginx: `resolver` is the server's, wherever the certificate stands.
#[test]
fn each_server_has_its_own_resolver() {
    let port = free_port();
    let authority = Authority::with_responder(Some(format!("http://ocsp.test:{port}/")));
    let _responder = authority.respond(port, "V", "ca");
    let (server, [knowing, other]) = with_two_resolvers(&authority.server("chain.crt", ""));
    is_refused(&server, other, NOT_RESOLVED);
    is_stapled(knowing);
    assert_eq!(stapled(other), 0);
}

#[test]
fn each_server_asks_about_clients_by_its_own_resolver() {
    let port = free_port();
    let authority = Authority::with_responder(Some(format!("http://ocsp.test:{port}/")));
    let _responder = authority.respond(port, "V", "ca");
    let (own, ca) = (authority.file("server"), authority.file("ca.crt"));
    let (server, [knowing, other]) = with_two_resolvers(&format!(
        "ssl_certificate {own}.crt; ssl_certificate_key {own}.key; \
         ssl_verify_client on; ssl_client_certificate {ca}; ssl_ocsp on;"
    ));
    let status = |port| {
        let client = Client::new().identity(&own);
        client.connect(port).unwrap().get("/").unwrap().status
    };
    assert_eq!((status(knowing), status(other)), (200, 400));
    support::tls::until("the cause in the log", || {
        server.error_log().contains(NOT_RESOLVED)
    });
}

#[test]
fn what_cannot_be_asked_about_is_said() {
    let authority = Authority::new(None);
    for (chain, lines, words) in [
        (
            "server.crt",
            "",
            "\"ssl_stapling\" ignored, issuer certificate not found for certificate",
        ),
        (
            "chain.crt",
            "",
            "\"ssl_stapling\" ignored, no OCSP responder URL in the certificate",
        ),
        (
            "chain.crt",
            "ssl_stapling_responder https://127.0.0.1/;",
            "\"ssl_stapling\" ignored, invalid URL prefix in OCSP responder \"https://127.0.0.1/\" in the certificate",
        ),
        (
            "chain.crt",
            "ssl_stapling_responder http://127.0.0.1:0/;",
            "\"ssl_stapling\" ignored, invalid port in OCSP responder \"http://127.0.0.1:0/\" in the certificate",
        ),
    ] {
        let (server, tls) = start(EPOLL, &authority.server(chain, lines));
        let said = fs::read_to_string(Path::new(&server.prefix).join("output")).unwrap();
        assert!(
            said.contains(words) || server.error_log().contains(words),
            "{words}: {said}"
        );
        assert_eq!(stapled(tls), 0);
    }
}

/// Starts a server that wants certificates of the authority, and asks about them as these lines
/// say. What a client with the authority's certificate gets there is returned: the status, and what
/// is said of the certificate.
fn asking(
    engine: &str,
    authority: &Authority,
    lines: &str,
) -> (Server, impl Fn() -> (u16, String) + use<>) {
    let (own, ca) = (authority.file("server"), authority.file("ca.crt"));
    let lines = format!(
        "ssl_certificate {own}.crt; ssl_certificate_key {own}.key; \
         ssl_verify_client on; ssl_client_certificate {ca}; add_header Verify $ssl_client_verify always; \
         location / {{ return 200 welcome; }} {lines}"
    );
    let (server, port) = start(engine, &lines);
    let ask = move || {
        let client = Client::new().identity(&own);
        let response = client.connect(port).unwrap().get("/").unwrap();
        let lines = response.head.lines();
        let said = lines
            .filter_map(|line| line.strip_prefix("Verify: "))
            .next();
        (response.status, said.unwrap_or_default().to_owned())
    };
    (server, ask)
}

fn certificates_of_clients_are_asked_about(engine: &'static str) {
    let (port, other) = (free_port(), free_port());
    let authority = Authority::new(Some(port));
    let good = (200, "SUCCESS".to_owned());
    let failed = (400, "FAILED:certificate status request failed".to_owned());
    let revoked = (400, "FAILED:certificate revoked".to_owned());
    let named = format!("ssl_ocsp on; ssl_ocsp_responder http://127.0.0.1:{other};");
    let kept = "ssl_ocsp on; ssl_ocsp_cache shared:answers:1m;";
    let (_off, off) = asking(engine, &authority, "ssl_ocsp off;");
    let (leaf_server, leaf) = asking(engine, &authority, "ssl_ocsp leaf;");
    let (_named, named) = asking(engine, &authority, &named);
    let (_kept, kept) = asking(engine, &authority, kept);

    assert_eq!(off(), good);
    assert_eq!(leaf(), failed);
    support::tls::until("the cause in the log", || {
        let log = leaf_server.error_log();
        log.contains(
            "connect() failed (111: Connection refused) while requesting certificate status",
        )
    });
    let responder = authority.respond(port, "V", "responder");
    assert_eq!(
        (leaf(), named(), kept()),
        (good.clone(), failed.clone(), good.clone())
    );
    drop(responder);
    // What was good stays so for a day.
    assert_eq!((leaf(), kept()), (failed.clone(), good.clone()));
    let responder = authority.respond(port, "R", "ca");
    assert_eq!(
        (leaf(), kept(), off()),
        (revoked, good.clone(), good.clone())
    );
    drop(responder);
    // The certificate's owner may not answer for itself.
    let _responder = authority.respond(port, "V", "server");
    assert_eq!(leaf(), failed);
    let _other = authority.respond(other, "V", "ca");
    assert_eq!(named(), good);
}

support::test_on_each_engine!(certificates_of_clients_are_asked_about);
