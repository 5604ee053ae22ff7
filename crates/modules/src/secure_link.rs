//! `secure_link`: links with a signature and a time of expiry.
//!
//! <https://nginx.org/en/docs/http/ngx_http_secure_link_module.html>. The module only sets
//! variables; the configuration rejects requests with invalid links, with `if`. Signatures are MD5
//! digests of a text with a secret, for compatibility with existing links.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, Template, parse};
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::module::{Module, ShortcutDoc};
use http::request::{Request, Text};
use http::slots::PassLifetime;
use http::slots::PlanSlot;
use http::variables::BuiltinVariable;
use http::variables::Compiling as _;
use md5::{Digest, Md5};
use proto::base64::{self, Alphabet};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Maximum length of a signature that is decoded, in characters.
const SIGNATURE_LENGTH_MAX: usize = 24;

/// Declares the directive `secure_link expression`.
pub static SECURE_LINK: Setting<Template> =
    Setting::new("secure_link", &["expression"], parse::template)
        .contexts(HSL)
        .manual(
            "A text with variables that gives the link's signature in Base64 for URLs and, after a \
             comma, the time in seconds since 1970 until which it holds. `$secure_link` is then `1` \
             for a right link, `0` for one whose time is over, and missing for a wrong one.",
        );

/// Declares the directive `secure_link_md5 expression`.
pub static SECURE_LINK_MD5: Setting<Template> =
    Setting::new("secure_link_md5", &["expression"], parse::template)
        .contexts(HSL)
        .manual("The text whose MD5 digest a right signature is; a secret belongs into it.");

/// Declares the directive `secure_link_secret word`.
pub static SECURE_LINK_SECRET: Setting<Bytes> =
    Setting::new("secure_link_secret", &["word"], parse::bytes)
        .contexts(HSL)
        .manual(
            "The older way: in a link `/prefix/hash/rest`, `hash` is the MD5 digest of `rest` and \
             this word in hexadecimal, and `$secure_link` is `rest` where it is right.",
        );

/// How the links of a scope are signed.
#[derive(Clone, Debug, Default)]
pub struct SecureLink {
    /// `secure_link`: the signature of the link and its time of expiry.
    signature: Option<Template>,
    /// `secure_link_md5`: the text whose digest is the signature.
    signed: Option<Template>,
    secret: Option<Bytes>,
    /// `secure_link` and `secure_link_md5`, if both are set.
    compiled: Option<(Text, Text)>,
}

impl Feature for SecureLink {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&SECURE_LINK, &SECURE_LINK_MD5, &SECURE_LINK_SECRET];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<SecureLink, Fault> {
        let mut link = SecureLink {
            signature: scope.own(&SECURE_LINK)?,
            signed: scope.own(&SECURE_LINK_MD5)?,
            secret: scope.own(&SECURE_LINK_SECRET)?,
            compiled: None,
        };
        // Compiles either directive even without the other, so that unknown variables are reported.
        for written in [&link.signature, &link.signed].into_iter().flatten() {
            let _: Text = compiler.text(written);
        }
        if link.secret.is_some() {
            if link.signature.is_some() || link.signed.is_some() {
                return Err(Fault::new(
                    "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"",
                ));
            }
            return Ok(link);
        }
        if let Some(around) = scope.parent() {
            let around = compiler.feature::<SecureLink>(around)?;
            link.signature = link.signature.or_else(|| around.signature.clone());
            link.signed = link.signed.or_else(|| around.signed.clone());
            if link.signature.is_none() && link.signed.is_none() {
                link.secret.clone_from(&around.secret);
            }
        }
        if let (Some(signature), Some(signed)) = (&link.signature, &link.signed) {
            link.compiled = Some((compiler.text(signature), compiler.text(signed)));
        }
        Ok(link)
    }
}

/// The `secure_link*` settings of a plan; unset if links are not checked.
static OF_PLAN: PlanSlot<SecureLink> = PlanSlot::new();

impl Module for SecureLink {
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same("it only makes variables")];

    fn is_off(&self) -> bool {
        self.secret.is_none() && self.compiled.is_none()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&OF_PLAN, self);
    }
}

/// Appends the value of `$secure_link`; false if it has none.
pub fn secure_link(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let http = Rc::clone(&request.http);
    let Some(link) = http.plan(request.plan.id).of(&OF_PLAN) else {
        return false;
    };
    if let Some(secret) = &link.secret {
        return match rest_of_link(request.request_uri(), secret) {
            Some(rest) => {
                out.extend_from_slice(rest);
                true
            }
            None => false,
        };
    }
    let Some((signature, signed)) = &link.compiled else {
        return false;
    };
    let mut signature = signature.evaluate(request);
    let mut expires = None;
    if let Some(comma) = memchr::memchr(b',', &signature) {
        let text = signature.split_off(comma).slice(1..);
        let Some(time) = parse::number_of(&text).filter(|time| *time > 0) else {
            return false;
        };
        expires = Some(time);
        request.pass.enter(&EXPIRES).0 = text;
    }
    let mut digest = Vec::new();
    if signature.len() > SIGNATURE_LENGTH_MAX
        || !base64::decode(&signature, Alphabet::Url, &mut digest)
    {
        return false;
    }
    if !equal(&digest, &Md5::digest(signed.evaluate(request))) {
        return false;
    }
    let over = expires.is_some_and(|time| time < engine::wall().as_secs());
    out.push(if over { b'0' } else { b'1' });
    true
}

/// The time of expiry that `$secure_link` has found in a link.
static EXPIRES: Slot<Expires, PassLifetime> = Slot::new();

#[derive(Default)]
struct Expires(Bytes);

impl SlotValue for Expires {}

/// `$secure_link_expires`, which has a value once `$secure_link` has been evaluated.
pub fn secure_link_expires(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.pass.get(&EXPIRES) {
        Some(Expires(expires)) => {
            out.extend_from_slice(expires);
            true
        }
        None => false,
    }
}

/// The `rest` of `/prefix/hash/rest`, if the hash is valid.
fn rest_of_link<'a>(target: &'a [u8], secret: &[u8]) -> Option<&'a [u8]> {
    let behind = |text: &'a [u8]| {
        let slash = memchr::memchr(b'/', text)?;
        Some((text.get(..slash)?, text.get(slash + 1..)?))
    };
    let (_prefix, link) = behind(target.get(1..)?)?;
    let (hash, rest) = behind(link)?;
    if hash.len() != 32 || rest.is_empty() {
        return None;
    }
    let digits = hash.iter().map(|digit| char::from(*digit).to_digit(16));
    let digits: Vec<u32> = digits.collect::<Option<_>>()?;
    let hash: Vec<u8> = digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
        .collect();
    let digest = Md5::new()
        .chain_update(rest)
        .chain_update(secret)
        .finalize();
    equal(&hash, &digest).then_some(rest)
}

/// Compares in constant time, so that the time does not reveal the position of a difference.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(difference) == 0
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    match name {
        "secure_link" => Some(BuiltinVariable::once(secure_link)),
        "secure_link_expires" => Some(BuiltinVariable::once(secure_link_expires)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is `printf 'file.htmlsecret' | md5sum`.
    #[test]
    fn links_of_the_older_kind() {
        let rest = |target: &'static str| rest_of_link(target.as_bytes(), b"secret");
        let link = "/p/ce87e6a2a8148d6fe3e39ab5e117d357/file.html";
        assert_eq!(rest(link), Some(&b"file.html"[..]));
        assert_eq!(rest_of_link(link.as_bytes(), b"other"), None);
        for wrong in ["/", "/p", "/p/", "/p/x/file.html", "/p/00/", ""] {
            assert_eq!(rest(wrong), None, "{wrong}");
        }
    }
}
