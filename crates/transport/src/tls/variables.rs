//! `$ssl_*`: the negotiated parameters, the ClientHello and the client's certificate.
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssl_module.html#variables>. The variables are not found
//! on unencrypted connections. `$ssl_sigalg` and `$ssl_client_sigalg` are always empty: rustls does
//! not expose the algorithms.

use std::fmt::Write;

use proto::base64;
use proto::tls::ClientHello;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion};
use sha1::{Digest, Sha1};
use variables::{BuiltinVariable, Evaluate};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::client::HasClient;
use crate::tls::names;
use crate::tls::session::Session;
use crate::tls::verify::CertificateStatus;
use crate::tls::{ja4, suites};

/// The variables that need the ClientHello, which is kept only if one of them is used.
pub const OF_HELLO: [&str; 4] = ["ssl_ciphers", "ssl_curves", "ssl_sigalgs", "ssl_ja4"];

/// The variable with this name.
pub fn find<C: HasClient>(name: &str) -> Option<BuiltinVariable<C>> {
    evaluate(name).map(|evaluate| BuiltinVariable::computed(evaluate).assignable())
}

fn evaluate<C: HasClient>(name: &str) -> Option<Evaluate<C>> {
    Some(match name {
        "ssl_protocol" => |context, out| with(context, out, protocol),
        "ssl_cipher" => |context, out| with(context, out, cipher),
        "ssl_ciphers" => |context, out| with_hello(context, out, ciphers),
        "ssl_curve" => |context, out| with(context, out, curve),
        "ssl_curves" => |context, out| with_hello(context, out, curves),
        "ssl_sigalgs" => |context, out| with_hello(context, out, signature_algorithms),
        "ssl_ja4" => |context, out| with_hello(context, out, ja4::append),
        "ssl_session_reused" => |context, out| with(context, out, reused),
        "ssl_session_id" => |context, out| with(context, out, session_number),
        "ssl_sigalg" | "ssl_client_sigalg" => |_, _| false,
        "ssl_early_data" => |context, out| with(context, out, early_data),
        "ssl_server_name" => server_name::<C>,
        "ssl_alpn_protocol" => |context, out| with(context, out, alpn_protocol),
        "ssl_client_verify" => |context, out| with(context, out, client_verify),
        "ssl_client_cert" => |context, out| of_client(context, out, pem_with_tabs),
        "ssl_client_raw_cert" => |context, out| of_client(context, out, pem),
        "ssl_client_escaped_cert" => |context, out| of_client(context, out, escaped_pem),
        "ssl_client_fingerprint" => |context, out| of_client(context, out, fingerprint),
        "ssl_client_s_dn" => |context, out| {
            of_parsed(context, out, |parsed, out| {
                names::append_rfc2253(parsed.tbs_certificate().subject(), out);
            })
        },
        "ssl_client_i_dn" => |context, out| {
            of_parsed(context, out, |parsed, out| {
                names::append_rfc2253(parsed.tbs_certificate().issuer(), out);
            })
        },
        "ssl_client_s_dn_legacy" => |context, out| {
            of_parsed(context, out, |parsed, out| {
                names::append_legacy(parsed.tbs_certificate().subject(), out);
            })
        },
        "ssl_client_i_dn_legacy" => |context, out| {
            of_parsed(context, out, |parsed, out| {
                names::append_legacy(parsed.tbs_certificate().issuer(), out);
            })
        },
        "ssl_client_serial" => |context, out| of_parsed(context, out, serial),
        "ssl_client_v_start" => |context, out| {
            of_parsed(context, out, |parsed, out| {
                let start = parsed.tbs_certificate().validity().not_before;
                append_time(start.to_unix_duration().as_secs(), out);
            })
        },
        "ssl_client_v_end" => {
            |context, out| of_parsed(context, out, |parsed, out| append_time(end_of(parsed), out))
        }
        "ssl_client_v_remain" => |context, out| of_parsed(context, out, days_left),
        _ => return None,
    })
}

/// Appends a value of the session. Not found if the value is empty or there is no session.
fn with<C: HasClient>(context: &C, out: &mut Vec<u8>, append: fn(&Session, &mut Vec<u8>)) -> bool {
    let before = out.len();
    if let Some(session) = context.session() {
        append(session, out);
    }
    out.len() > before
}

fn with_hello<C: HasClient>(
    context: &C,
    out: &mut Vec<u8>,
    append: fn(&ClientHello, &mut Vec<u8>),
) -> bool {
    let before = out.len();
    if let Some(hello) = context.hello() {
        append(hello, out);
    }
    out.len() > before
}

/// Appends a value of the client's certificate.
fn of_client<C: HasClient>(
    context: &C,
    out: &mut Vec<u8>,
    append: fn(&[u8], &mut Vec<u8>),
) -> bool {
    let before = out.len();
    if let Some(session) = context.session() {
        session.with(|agreed| {
            let chain = agreed.certificates.as_deref();
            if let Some(first) = chain.and_then(<[CertificateDer<'_>]>::first) {
                append(first, out);
            }
        });
    }
    out.len() > before
}

/// Appends a value of the parsed client certificate.
fn of_parsed<C: HasClient>(
    context: &C,
    out: &mut Vec<u8>,
    append: fn(&Certificate, &mut Vec<u8>),
) -> bool {
    let mut bytes = Vec::new();
    if !of_client(context, &mut bytes, |bytes, out| {
        out.extend_from_slice(bytes)
    }) {
        return false;
    }
    let before = out.len();
    if let Ok(parsed) = Certificate::from_der(&bytes) {
        append(&parsed, out);
    }
    out.len() > before
}

pub(crate) fn protocol(session: &Session, out: &mut Vec<u8>) {
    let version = session.with(|agreed| agreed.version);
    out.extend_from_slice(match version {
        Some(ProtocolVersion::TLSv1_2) => b"TLSv1.2",
        Some(ProtocolVersion::TLSv1_3) => b"TLSv1.3",
        _ => b"",
    });
}

pub(crate) fn cipher(session: &Session, out: &mut Vec<u8>) {
    let suite = session.with(|agreed| agreed.suite);
    let name = suite.and_then(|suite| suites::cipher_name(suite.suite()));
    out.extend_from_slice(name.unwrap_or_default().as_bytes());
}

fn curve(session: &Session, out: &mut Vec<u8>) {
    let group = session.with(|agreed| agreed.group);
    if let Some(group) = group {
        append_group(group.name().into(), out);
    }
}

fn reused(session: &Session, out: &mut Vec<u8>) {
    let kind = session.with(|agreed| agreed.kind);
    out.push(match kind {
        Some(HandshakeKind::Resumed) => b'r',
        _ => b'.',
    });
}

fn session_number(session: &Session, out: &mut Vec<u8>) {
    append_hex(session.number(), out);
}

fn append_hex(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
}

fn early_data(session: &Session, out: &mut Vec<u8>) {
    if session.early.get() && session.is_handshaking() {
        out.push(b'1');
    }
}

fn server_name<C: HasClient>(context: &mut C, out: &mut Vec<u8>) -> bool {
    let name = context.client().sni_name();
    out.extend_from_slice(name.unwrap_or_default());
    name.is_some()
}

fn alpn_protocol(session: &Session, out: &mut Vec<u8>) {
    session.with(|agreed| {
        let protocol = agreed.protocol.as_deref();
        out.extend_from_slice(protocol.unwrap_or_default());
    });
}

fn client_verify(session: &Session, out: &mut Vec<u8>) {
    match session.verdict.get() {
        CertificateStatus::Missing => out.extend_from_slice(b"NONE"),
        CertificateStatus::Good => out.extend_from_slice(b"SUCCESS"),
        CertificateStatus::Bad(reason) => {
            out.extend_from_slice(b"FAILED:");
            out.extend_from_slice(reason.1.as_bytes());
        }
        CertificateStatus::Revoked(text) => {
            out.extend_from_slice(b"FAILED:");
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn ciphers(hello: &ClientHello, out: &mut Vec<u8>) {
    append_list(
        hello.ciphers(),
        out,
        |number, out| match suites::cipher_name(CipherSuite::from(number)) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => append_number(number, out),
        },
    );
}

fn curves(hello: &ClientHello, out: &mut Vec<u8>) {
    append_list(hello.groups(), out, append_group);
}

fn signature_algorithms(hello: &ClientHello, out: &mut Vec<u8>) {
    append_list(
        hello.signature_algorithms(),
        out,
        |number, out| match signature_name(number) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => append_number(number, out),
        },
    );
}

fn append_list(
    numbers: impl Iterator<Item = u16>,
    out: &mut Vec<u8>,
    append: fn(u16, &mut Vec<u8>),
) {
    for (at, number) in numbers.enumerate() {
        if at > 0 {
            out.push(b':');
        }
        append(number, out);
    }
}

/// The name of a signature scheme in RFC 8446 section 4.2.3 and in OpenSSL.
fn signature_name(number: u16) -> Option<&'static str> {
    Some(match number {
        0x0201 => "rsa_pkcs1_sha1",
        0x0203 => "ecdsa_sha1",
        0x0401 => "rsa_pkcs1_sha256",
        0x0403 => "ecdsa_secp256r1_sha256",
        0x0501 => "rsa_pkcs1_sha384",
        0x0503 => "ecdsa_secp384r1_sha384",
        0x0601 => "rsa_pkcs1_sha512",
        0x0603 => "ecdsa_secp521r1_sha512",
        0x0804 => "rsa_pss_rsae_sha256",
        0x0805 => "rsa_pss_rsae_sha384",
        0x0806 => "rsa_pss_rsae_sha512",
        0x0807 => "ed25519",
        0x0808 => "ed448",
        0x0809 => "rsa_pss_pss_sha256",
        0x080a => "rsa_pss_pss_sha384",
        0x080b => "rsa_pss_pss_sha512",
        0x0904 => "mldsa44",
        0x0905 => "mldsa65",
        0x0906 => "mldsa87",
        _ => return None,
    })
}

/// OpenSSL's name of a group.
fn append_group(number: u16, out: &mut Vec<u8>) {
    let name = match NamedGroup::from(number) {
        NamedGroup::X25519 => "X25519",
        NamedGroup::X448 => "X448",
        NamedGroup::secp256r1 => "prime256v1",
        NamedGroup::secp384r1 => "secp384r1",
        NamedGroup::secp521r1 => "secp521r1",
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768",
        NamedGroup::secp256r1MLKEM768 => "SecP256r1MLKEM768",
        NamedGroup::MLKEM768 => "MLKEM768",
        _ => return append_number(number, out),
    };
    out.extend_from_slice(name.as_bytes());
}

fn append_number(number: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("0x{number:04x}").as_bytes());
}

/// Appends the certificate in PEM, in lines of 64 characters.
fn pem(certificate: &[u8], out: &mut Vec<u8>) {
    append_pem(certificate, b"\n", out);
    out.push(b'\n');
}

/// Appends the certificate in PEM as the value of a header field: every line but the first begins
/// with a tab, and the last has no line break.
fn pem_with_tabs(certificate: &[u8], out: &mut Vec<u8>) {
    append_pem(certificate, b"\n\t", out);
}

fn append_pem(certificate: &[u8], line_break: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::new();
    base64::encode(certificate, &mut text);
    out.extend_from_slice(b"-----BEGIN CERTIFICATE-----");
    for line in text.chunks(64) {
        out.extend_from_slice(line_break);
        out.extend_from_slice(line);
    }
    out.extend_from_slice(line_break);
    out.extend_from_slice(b"-----END CERTIFICATE-----");
}

fn escaped_pem(certificate: &[u8], out: &mut Vec<u8>) {
    let mut plain = Vec::new();
    pem(certificate, &mut plain);
    for byte in plain {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

fn fingerprint(certificate: &[u8], out: &mut Vec<u8>) {
    append_hex(&Sha1::digest(certificate), out);
}

fn serial(certificate: &Certificate, out: &mut Vec<u8>) {
    let number = certificate.tbs_certificate().serial_number().as_bytes();
    // DER puts a zero byte before a positive integer whose first bit is set.
    let number = match number {
        [0, rest @ ..] if !rest.is_empty() => rest,
        number => number,
    };
    for byte in number {
        out.extend_from_slice(format!("{byte:02X}").as_bytes());
    }
}

fn end_of(certificate: &Certificate) -> u64 {
    let end = certificate.tbs_certificate().validity().not_after;
    end.to_unix_duration().as_secs()
}

/// Whole days until the certificate expires; 0 if it has expired.
fn days_left(certificate: &Certificate, out: &mut Vec<u8>) {
    let left = end_of(certificate).saturating_sub(engine::wall().as_secs());
    out.extend_from_slice((left / (24 * 60 * 60)).to_string().as_bytes());
}

/// A time in the format of `ASN1_TIME_print`: `Nov  2 04:05:06 2026 GMT`.
fn append_time(seconds: u64, out: &mut Vec<u8>) {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let Ok(time) = jiff::Timestamp::from_second(seconds) else {
        return;
    };
    let time = time.to_zoned(jiff::tz::TimeZone::UTC);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(text, "{}", time.strftime("%b %e %H:%M:%S %Y GMT"));
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_openssl_prints_them() {
        let mut text = Vec::new();
        append_time(1_793_592_306, &mut text);
        assert_eq!(text, b"Nov  2 04:05:06 2026 GMT");
    }

    #[test]
    fn certificates_as_text() {
        let mut text = Vec::new();
        pem_with_tabs(&[7; 60], &mut text);
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].starts_with(b"\tBwcH") && lines[1].len() == 65);
        text.clear();
        escaped_pem(&[7; 3], &mut text);
        let expected =
            &b"-----BEGIN%20CERTIFICATE-----%0ABwcH%0A-----END%20CERTIFICATE-----%0A"[..];
        assert_eq!(text, expected);
    }
}
