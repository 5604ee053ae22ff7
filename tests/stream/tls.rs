//! Clients of TLS: what is taken off, which server they get, and which of them are turned away.

use std::io::{Read, Write};

use rustls::version::TLS12;
use support::is_nginx;
use support::port::free_port;
use support::tls::{Client, Connection, certificate};

use super::{configure, connect, echo, line_with, rest, sessions, start};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");

/// A server's certificate and its key.
fn certified(name: &str) -> String {
    format!("ssl_certificate {FOLDER}/{name}.crt; ssl_certificate_key {FOLDER}/{name}.key;")
}

fn shown(name: &str) -> rustls::pki_types::CertificateDer<'static> {
    certificate(&format!("{FOLDER}/{name}.crt"))
}

/// All that a server says until it ends the session as TLS wants it.
pub(super) fn all_of(connection: &mut Connection) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match connection.read(&mut buffer) {
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.to_string(), "the server closed the connection");
                return String::from_utf8(text).unwrap();
            }
        }
    }
}

fn tls_is_taken_off_for_what_is_behind(engine: &'static str) {
    let upstream = echo();
    let (port, text) = (free_port(), free_port());
    let (rsa, ecdsa) = (certified("rsa"), certified("ecdsa"));
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} ssl; {rsa}
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{text} ssl; {ecdsa} ssl_protocols TLSv1.2;
                 return $ssl_protocol:$ssl_server_name:$ssl_session_reused; }}"
        ),
    );
    let mut client = Client::new().connect(port).unwrap();
    assert_eq!(client.certificate(), shown("rsa"));
    assert_eq!(client.protocol(), None, "what is offered is ignored");
    let big: Vec<u8> = (0..200_000_u32).map(|at| (at * 31) as u8).collect();
    for part in big.chunks(50_000) {
        client.write_all(part).unwrap();
        let mut heard = vec![0; part.len()];
        client.read_exact(&mut heard).unwrap();
        assert!(heard == part, "other bytes came back");
    }
    drop(client);
    let of = format!("127.0.0.1 TCP 200 200000 200000 127.0.0.1:{upstream} 200000 200000");
    assert_eq!(sessions(&master, 1), [of]);
    let keeping = Client::new().name("some.name").keeping_sessions();
    for reused in [".", "r"] {
        let mut client = keeping.connect(text).unwrap();
        assert_eq!(client.certificate(), shown("ecdsa"));
        assert_eq!(all_of(&mut client), format!("TLSv1.2:some.name:{reused}"));
    }
    // What is no TLS is refused, and what is none any more ends the handshake.
    let mut plain = connect(port);
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    rest(&mut plain);
    assert_eq!(sessions(&master, 4)[3], "127.0.0.1 TCP 500 0 0 - - -");
    let said = line_with(&master, "SSL_do_handshake() failed");
    let fields = format!("client: 127.0.0.1, server: 127.0.0.1:{port}");
    assert!(
        said.ends_with(&format!(" while SSL handshaking, {fields}")),
        "{said}"
    );
    drop(connect(port));
    assert_eq!(
        line_with(&master, "closed connection"),
        format!("peer closed connection in SSL handshake while SSL handshaking, {fields}")
    );
}

support::test_on_each_engine!(tls_is_taken_off_for_what_is_behind);

fn the_name_of_the_handshake_chooses_the_server(engine: &'static str) {
    let (port, strict) = (free_port(), free_port());
    let (rsa, ecdsa) = (certified("rsa"), certified("ecdsa"));
    let listen = format!("listen 127.0.0.1:{port} ssl;");
    let lines = format!(
        "server {{ listen 127.0.0.1:{port} ssl; {rsa} server_name one.example;
             return \"first $server_name\"; }}
         server {{ listen 127.0.0.1:{port} ssl default_server; {rsa}
             return \"default $server_name\"; }}
         server {{ {listen} {ecdsa} server_name *.example;
             return \"any $server_name\"; }}
         server {{ {listen} {rsa} server_name ~^(?<part>\\w+)\\.test$;
             return \"part $part\"; }}
         server {{ listen 127.0.0.1:{strict} ssl default_server;
             ssl_reject_handshake on; }}
         server {{ listen 127.0.0.1:{strict} ssl; {rsa} server_name known.example;
             ssl_alpn mqtt x; return $ssl_alpn_protocol; }}"
    );
    let master = start(engine, &lines);
    let get = |name: &str| {
        let mut client = Client::new().name(name).connect(port).unwrap();
        (all_of(&mut client), client.certificate())
    };
    let of = |text: &str, name| (text.to_owned(), shown(name));
    assert_eq!(get("one.example"), of("first one.example", "rsa"));
    assert_eq!(get("two.example"), of("any *.example", "ecdsa"));
    assert_eq!(get("www.test"), of("part www", "rsa"));
    assert_eq!(get("elsewhere"), of("default ", "rsa"));
    let strictly = |name: &str, protocol: &str| {
        let client = Client::new().name(name).protocol(protocol);
        client.connect(strict).map(|mut client| all_of(&mut client))
    };
    assert_eq!(strictly("known.example", "x").unwrap(), "x");
    let refused = strictly("other.example", "x").unwrap_err();
    assert!(refused.contains("UnrecognisedName"), "{refused}");
    let refused = strictly("known.example", "http/1.1").unwrap_err();
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    assert!(line_with(&master, "rejected").starts_with("handshake rejected"));
    configure(&master, engine, &lines.replace("default_server", ""));
    master.signal("HUP");
    support::master::wait_for("another default server", || {
        get("elsewhere").0 == "first one.example"
    });
}

support::test_on_each_engine!(the_name_of_the_handshake_chooses_the_server);

fn a_handshake_may_take_so_long(engine: &'static str) {
    let [quick, slow] = [(); 2].map(|()| free_port());
    let rsa = certified("rsa");
    let master = start(
        engine,
        &format!(
            "{rsa} ssl_handshake_timeout 100ms;
             server {{ listen 127.0.0.1:{quick} ssl; return text; }}
             server {{ listen 127.0.0.1:{slow} ssl; ssl_handshake_timeout 1m;
                 return text; }}"
        ),
    );
    let hello = Client::new().hello();
    let mut patient = connect(slow);
    patient.write_all(&hello[..50]).unwrap();
    let mut client = connect(quick);
    client.write_all(&hello[..50]).unwrap();
    assert_eq!(rest(&mut client), b"");
    assert_eq!(sessions(&master, 1), ["127.0.0.1 TCP 500 0 0 - - -"]);
    if !is_nginx() {
        // nginx says nothing of it.
        assert_eq!(
            line_with(&master, "timed out"),
            format!(
                "client timed out (110: Connection timed out) while SSL handshaking, \
                 client: 127.0.0.1, server: 127.0.0.1:{quick}"
            )
        );
    }
    patient.write_all(&hello[50..]).unwrap();
    let mut first = [0; 1];
    patient.read_exact(&mut first).unwrap();
    assert_eq!(first[0], 22, "the server's hello");
}

support::test_on_each_engine!(a_handshake_may_take_so_long);

fn clients_show_certificates(engine: &'static str) {
    let (must, may) = (free_port(), free_port());
    let rsa = certified("rsa");
    let master = start(
        engine,
        &format!(
            "{rsa} ssl_client_certificate {FOLDER}/ca.crt;
             server {{ listen 127.0.0.1:{must} ssl; ssl_verify_client on;
                 return \"$ssl_client_verify $ssl_client_s_dn\"; }}
             server {{ listen 127.0.0.1:{may} ssl; ssl_verify_client optional;
                 return \"$ssl_client_verify $ssl_client_s_dn\"; }}"
        ),
    );
    let get = |port, identity: Option<&str>| {
        let mut client = Client::new().version(&TLS12);
        if let Some(name) = identity {
            client = client.identity(&format!("{FOLDER}/{name}"));
        }
        all_of(&mut client.connect(port).unwrap())
    };
    assert_eq!(
        get(must, Some("client")),
        "SUCCESS CN=anna,O=Tidegate tests,C=NL"
    );
    assert_eq!(
        get(may, Some("client")),
        "SUCCESS CN=anna,O=Tidegate tests,C=NL"
    );
    assert_eq!(get(may, None), "NONE ");
    assert_eq!(get(must, None), "");
    assert_eq!(get(may, Some("stranger")), "");
    let lines = sessions(&master, 5);
    assert_eq!(lines[3..], ["127.0.0.1 TCP 500 0 0 - - -"; 2]);
    let fields =
        |port| format!(" while SSL handshaking, client: 127.0.0.1, server: 127.0.0.1:{port}");
    let said = line_with(&master, "no required");
    assert_eq!(
        said,
        format!("client sent no required SSL certificate{}", fields(must))
    );
    let said = line_with(&master, "verify error");
    assert!(
        said.starts_with("client SSL certificate verify error: ("),
        "{said}"
    );
    assert!(said.ends_with(&fields(may)), "{said}");
}

support::test_on_each_engine!(clients_show_certificates);

/// nginx tells the algorithms of its own certificate as well.
fn the_server_behind_is_told_of_a_client_s_tls(engine: &'static str) {
    let [outer, inner] = [(); 2].map(|()| free_port());
    let rsa = certified("rsa");
    let _master = start(
        engine,
        &format!(
            "{rsa} ssl_client_certificate {FOLDER}/ca.crt; ssl_protocols TLSv1.2;
             server {{ listen 127.0.0.1:{outer} ssl; ssl_alpn mqtt;
                 ssl_verify_client optional_no_ca;
                 proxy_pass 127.0.0.1:{inner}; proxy_protocol v2; }}
             server {{ listen 127.0.0.1:{inner} proxy_protocol;
                 return \"$proxy_protocol_tlv_authority $proxy_protocol_tlv_alpn \
                     $proxy_protocol_tlv_ssl_version $proxy_protocol_tlv_ssl_cn \
                     $proxy_protocol_tlv_ssl_cipher $proxy_protocol_tlv_ssl_verify\"; }}"
        ),
    );
    let cipher = "ECDHE-RSA-AES256-GCM-SHA384";
    let suite = [rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384];
    let get = |client: Client| {
        let client = client.version(&TLS12).offering(&suite);
        all_of(&mut client.connect(outer).unwrap())
    };
    assert_eq!(
        get(Client::new().name("some.name").protocol("mqtt")),
        format!("some.name mqtt TLSv1.2  {cipher} 1")
    );
    let known = Client::new().identity(&format!("{FOLDER}/client"));
    let told = get(known.name("some.name").protocol("mqtt"));
    assert_eq!(told, format!("some.name mqtt TLSv1.2 anna {cipher} 0"));
    // OpenSSL's X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT or a fellow of it.
    let stranger = Client::new().identity(&format!("{FOLDER}/stranger"));
    let told = get(stranger.name("some.name").protocol("mqtt"));
    let (_, verify) = told.rsplit_once(' ').unwrap();
    let verify: u32 = verify.parse().unwrap();
    assert!((18..=21).contains(&verify), "{told}");
}

support::test_on_each_engine!(the_server_behind_is_told_of_a_client_s_tls);
