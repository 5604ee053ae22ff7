//! OCSP requests and responses: RFC 6960.
//!
//! A request names a certificate by its serial number and by digests of its issuer's name and key.
//! A response is accepted if a signer authorized for the issuer has signed it, if it is about that
//! certificate, and if the current time lies within its validity. `fetch.rs` transfers them.
//! Requests have no nonces, which would keep responders from signing responses in advance.

use std::fmt;

use der::asn1::{Any, ContextSpecific, GeneralizedTime, ObjectIdentifier, OctetString};
use der::{Choice, Decode, Encode, Enumerated, Reader, Sequence, SliceReader, TagNumber, Tagged};
use rustls::pki_types::CertificateDer;
use sha1::{Digest, Sha1};
use x509_cert::ext::pkix::AuthorityInfoAccessSyntax;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::AlgorithmIdentifierOwned;

use crate::tls::chain::{Certificate, Signed};

/// id-sha1, the algorithm of the digests, which only identify an issuer.
const SHA1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
/// id-ad-ocsp (RFC 5280 section 4.2.2.1).
const OCSP: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1");
/// id-pkix-ocsp-basic (RFC 6960 section 4.2.1).
const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");
/// id-kp-OCSPSigning (RFC 6960 section 4.2.2.2).
const OCSP_SIGNING: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.9");

/// Tolerated difference between clocks, in seconds, as in nginx.
const SKEW: u64 = 300;

/// Maximum number of steps from an issuer to a trusted certificate.
const PATH_MAX: usize = 8;

#[derive(Clone, PartialEq, Eq, Sequence)]
struct CertId {
    hash_algorithm: AlgorithmIdentifierOwned,
    issuer_name_hash: OctetString,
    issuer_key_hash: OctetString,
    serial_number: SerialNumber,
}

#[derive(Sequence)]
struct SingleRequest {
    certificate: CertId,
}

#[derive(Sequence)]
struct TbsRequest {
    requests: Vec<SingleRequest>,
}

#[derive(Sequence)]
struct OcspRequest {
    tbs: TbsRequest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumerated)]
#[repr(u32)]
enum ResponseStatus {
    Successful = 0,
    MalformedRequest = 1,
    InternalError = 2,
    TryLater = 3,
    SignatureRequired = 5,
    Unauthorized = 6,
}

#[derive(Sequence)]
struct ResponseBytes {
    kind: ObjectIdentifier,
    response: OctetString,
}

#[derive(Sequence)]
struct OcspResponse {
    status: ResponseStatus,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    bytes: Option<ResponseBytes>,
}

/// Why bytes do not begin with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResponse {
    /// The bytes end before the response does.
    TooShort,
    /// The bytes are not an OCSP response.
    Other,
}

/// The length of the response at the beginning of the bytes, in bytes.
///
/// # Errors
/// If the bytes do not begin with a response. The response's content is not checked.
pub fn length_of_response(bytes: &[u8]) -> Result<usize, NoResponse> {
    let mut reader = SliceReader::new(bytes).map_err(|_| NoResponse::Other)?;
    let whole = |error: &der::Error| !matches!(error.kind(), der::ErrorKind::Incomplete { .. });
    match OcspResponse::decode(&mut reader) {
        Ok(_) => Ok(usize::try_from(u32::from(reader.position())).unwrap_or(bytes.len())),
        Err(error) if whole(&error) && is_length_complete(bytes) => Err(NoResponse::Other),
        Err(_) => Err(NoResponse::TooShort),
    }
}

/// Whether the first DER value of the bytes, of any type, ends within them according to its length
/// field.
fn is_length_complete(bytes: &[u8]) -> bool {
    match bytes {
        [_, length @ 0..0x80, rest @ ..] => rest.len() >= usize::from(*length),
        [_, size, rest @ ..] => {
            let (length, rest) = rest.split_at(usize::from(size & 0x7f).min(rest.len()));
            let length = length.iter().fold(0_usize, |length, byte| {
                length
                    .saturating_mul(0x100)
                    .saturating_add(usize::from(*byte))
            });
            rest.len() >= length
        }
        _ => false,
    }
}

/// `BasicOCSPResponse`, whose signed content is a [`ResponseData`].
struct BasicResponse {
    signed: Signed,
    /// The certificates of the response that can be parsed.
    certificates: Vec<Certificate>,
}

#[derive(Choice)]
enum ResponderId {
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", constructed = "true")]
    Name(Name),
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", constructed = "true")]
    Key(OctetString),
}

#[derive(Sequence)]
struct ResponseData {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    version: Option<u8>,
    responder: ResponderId,
    produced: GeneralizedTime,
    responses: Vec<SingleResponse>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Any>,
}

#[derive(Sequence)]
struct SingleResponse {
    certificate: CertId,
    /// A choice by tag: good, revoked with a time, unknown.
    status: Any,
    this_update: GeneralizedTime,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    next_update: Option<GeneralizedTime>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Any>,
}

/// Why an OCSP response is rejected, in nginx's words if it has any.
#[derive(Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The bytes are no OCSP response.
    Malformed,
    /// The responder reports an error; with its status number and text.
    NotSuccessful(u32, &'static str),
    /// The response is about another certificate.
    OtherCertificate,
    /// No permitted signer has signed the response, or the signature is wrong.
    BadSignature,
    /// No certificate of `ssl_trusted_certificate` leads to the signer.
    Untrusted,
    /// The response has expired, or is not valid yet.
    OutOfTime,
    /// The response says that the certificate is revoked or unknown.
    Status(&'static str),
}

impl fmt::Display for Rejected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::Malformed => out.write_str("d2i_OCSP_RESPONSE() failed"),
            Rejected::NotSuccessful(number, text) => {
                write!(out, "OCSP response not successful ({number}: {text})")
            }
            Rejected::OtherCertificate => {
                out.write_str("certificate status not found in the OCSP response")
            }
            Rejected::BadSignature => {
                out.write_str("OCSP_basic_verify() failed (SSL: signature failure)")
            }
            Rejected::Untrusted => {
                out.write_str("OCSP_basic_verify() failed (SSL: certificate verify error)")
            }
            Rejected::OutOfTime => {
                out.write_str("OCSP_check_validity() failed (SSL: status expired)")
            }
            Rejected::Status(status) => {
                write!(out, "certificate status \"{status}\" in the OCSP response")
            }
        }
    }
}

/// The certificate that an OCSP request is about, and what is needed to check the response.
pub struct Subject {
    id: CertId,
    issuer: Certificate,
    /// The server's own chain, which may contain the issuer.
    chain: Vec<Certificate>,
    trusted: Vec<Certificate>,
    verifies: bool,
}

/// The first certificate of the chain, as the subject of a request. `None` if its issuer is neither
/// in the chain nor trusted, or if the certificate cannot be parsed. `verifies`: whether the signer
/// of a response must be authorized and trusted.
pub fn subject(
    chain: &[CertificateDer<'_>],
    trusted: &[CertificateDer<'_>],
    verifies: bool,
) -> Option<Subject> {
    let (first, rest) = chain.split_first()?;
    let first = Certificate::read(first).ok()?;
    let read = |all: &[CertificateDer<'_>]| -> Vec<Certificate> {
        let all = all.iter().map(|one| Certificate::read(one));
        all.filter_map(Result::ok).collect()
    };
    let (chain, trusted) = (read(rest), read(trusted));
    let mut issuers = chain.iter().chain(&trusted);
    let issuer = issuers.find(|one| is_issuer(one, &first))?.clone();
    let algorithm = AlgorithmIdentifierOwned {
        oid: SHA1,
        parameters: Some(Any::null()),
    };
    let name = issuer.subject.to_der().ok()?;
    let id = CertId {
        hash_algorithm: algorithm,
        issuer_name_hash: digest(&name)?,
        issuer_key_hash: digest(issuer.key_bits()?)?,
        serial_number: first.serial,
    };
    Some(Subject {
        id,
        issuer,
        chain,
        trusted,
        verifies,
    })
}

/// The URL of the OCSP responder that the certificate itself names.
pub fn responder(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let access = certificate
        .tbs_certificate()
        .get_extension::<AuthorityInfoAccessSyntax>();
    let (_, AuthorityInfoAccessSyntax(all)) = access.ok()??;
    all.into_iter().find_map(|one| match one.access_location {
        GeneralName::UniformResourceIdentifier(url) if one.access_method == OCSP => {
            Some(url.to_string())
        }
        _ => None,
    })
}

impl BasicResponse {
    /// Parses a basic response (RFC 6960 section 4.2.1).
    fn read(bytes: &[u8]) -> der::Result<BasicResponse> {
        let mut reader = SliceReader::new(bytes)?;
        let response = reader.sequence(|reader| {
            let signed = Signed::decode(reader)?;
            let sent = ContextSpecific::<Vec<Any>>::decode_explicit(reader, TagNumber(0))?;
            let sent = sent.map(|explicit| explicit.value).unwrap_or_default();
            let read = |one: &Any| Certificate::read(&one.to_der().ok()?).ok();
            let certificates = sent.iter().filter_map(read).collect();
            Ok::<_, der::Error>(BasicResponse {
                signed,
                certificates,
            })
        })?;
        reader.finish()?;
        Ok(response)
    }
}

impl Subject {
    /// The request, in DER.
    pub fn request(&self) -> Option<Vec<u8>> {
        let certificate = self.id.clone();
        let requests = vec![SingleRequest { certificate }];
        let tbs = TbsRequest { requests };
        OcspRequest { tbs }.to_der().ok()
    }

    /// Checks a response; returns the end of its validity in seconds since 1970, or `None` if it
    /// has no end.
    ///
    /// # Errors
    /// Why the response is rejected.
    pub fn check(&self, answer: &[u8], now: u64) -> Result<Option<u64>, Rejected> {
        let response = OcspResponse::from_der(answer).map_err(|_| Rejected::Malformed)?;
        if response.status != ResponseStatus::Successful {
            let (number, text) = (response.status as u32, response.status.text());
            return Err(Rejected::NotSuccessful(number, text));
        }
        let bytes = response.bytes.filter(|bytes| bytes.kind == BASIC);
        let bytes = bytes.ok_or(Rejected::Malformed)?;
        let basic = BasicResponse::read(bytes.response.as_bytes());
        let basic = basic.map_err(|_| Rejected::Malformed)?;
        let data = ResponseData::from_der(&basic.signed.content);
        let data = data.map_err(|_| Rejected::Malformed)?;
        self.check_signer(&basic, &data.responder, now)?;
        let mut about = data.responses.iter();
        let about = about.find(|one| one.certificate.is(&self.id));
        let about = about.ok_or(Rejected::OtherCertificate)?;
        match about.status.tag().number().value() {
            0 => {}
            1 => return Err(Rejected::Status("revoked")),
            _ => return Err(Rejected::Status("unknown")),
        }
        let seconds = |time: &GeneralizedTime| time.to_unix_duration().as_secs();
        let ends = about.next_update.as_ref().map(seconds);
        let begins = seconds(&about.this_update);
        let over = ends.is_some_and(|ends| ends.saturating_add(SKEW) < now);
        if begins > now.saturating_add(SKEW) || over {
            Err(Rejected::OutOfTime)
        } else {
            Ok(ends)
        }
    }

    /// Checks the signature of a response. If the signer is to be verified, it must be the issuer,
    /// or a responder that the issuer has authorized, and the issuer must be trusted.
    fn check_signer(
        &self,
        basic: &BasicResponse,
        responder: &ResponderId,
        now: u64,
    ) -> Result<(), Rejected> {
        let mut signers = std::iter::once(&self.issuer).chain(&basic.certificates);
        let signer = signers.find(|one| responder.is(one));
        let signer = signer.ok_or(Rejected::BadSignature)?;
        if !basic.signed.is_signed_by(signer.key()) {
            return Err(Rejected::BadSignature);
        }
        if !self.verifies {
            return Ok(());
        }
        let is_itself = *signer == self.issuer;
        // Like OpenSSL in nginx: a signer from the server's own chain is trusted without a further
        // check.
        if is_itself && self.chain.contains(signer) {
            return Ok(());
        }
        let may = is_itself || (is_issuer(&self.issuer, signer) && is_responder(signer, now));
        if may && self.is_trusted(&self.issuer) {
            Ok(())
        } else {
            Err(Rejected::Untrusted)
        }
    }

    /// Whether a certificate is trusted, or a chain of issuers leads from it to a trusted
    /// certificate.
    fn is_trusted(&self, certificate: &Certificate) -> bool {
        let mut at = certificate;
        for _ in 0..PATH_MAX {
            if self.trusted.contains(at) {
                return true;
            }
            let mut above = self.trusted.iter().chain(&self.chain);
            match above.find(|one| *one != at && is_issuer(one, at)) {
                Some(one) => at = one,
                None => return false,
            }
        }
        false
    }
}

impl CertId {
    /// Whether both identify the same certificate. The parameters of the digest algorithm are
    /// ignored, since they may be absent.
    fn is(&self, other: &CertId) -> bool {
        self.hash_algorithm.oid == other.hash_algorithm.oid
            && self.issuer_name_hash == other.issuer_name_hash
            && self.issuer_key_hash == other.issuer_key_hash
            && self.serial_number == other.serial_number
    }
}

impl ResponderId {
    fn is(&self, certificate: &Certificate) -> bool {
        match self {
            ResponderId::Name(name) => *name == certificate.subject,
            ResponderId::Key(key) => {
                let own = certificate.key_bits().and_then(digest);
                own.is_some_and(|own| own == *key)
            }
        }
    }
}

impl ResponseStatus {
    fn text(self) -> &'static str {
        match self {
            ResponseStatus::Successful => "successful",
            ResponseStatus::MalformedRequest => "malformedrequest",
            ResponseStatus::InternalError => "internalerror",
            ResponseStatus::TryLater => "trylater",
            ResponseStatus::SignatureRequired => "sigrequired",
            ResponseStatus::Unauthorized => "unauthorized",
        }
    }
}

fn digest(bytes: &[u8]) -> Option<OctetString> {
    OctetString::new(Sha1::digest(bytes).to_vec()).ok()
}

/// Whether `issuer` has issued the certificate: by name and by signature.
fn is_issuer(issuer: &Certificate, certificate: &Certificate) -> bool {
    issuer.is_named_as_issuer_of(certificate) && issuer.has_signed(certificate)
}

/// Whether the certificate is that of an OCSP responder, and is valid now (RFC 6960 section
/// 4.2.2.2). The caller checks its issuer.
fn is_responder(certificate: &Certificate, now: u64) -> bool {
    certificate.may_be_used_for(&OCSP_SIGNING) && certificate.check_time(now).is_none()
}
