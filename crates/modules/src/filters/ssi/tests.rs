//! Bodies with commands, split into pieces at every position.

use http::module::Entry;
use http::response::chain::BodyFilter as _;
use http::response::piece::{Piece, Purpose};
use http::testing;
use http::testing::serve_by;

use super::commands::Processor;
use super::*;

/// The output for a body that arrives in pieces of `step` bytes; an include is shown as
/// `[path?args]`, a stub as its own text.
fn processed(request: &mut Request, body: &str, step: usize) -> String {
    request.shared = Default::default();
    request.uri = b"/folder/page".to_vec();
    request.args = b"a=x&empty=".to_vec();
    request.own.end();
    let settings = testing::feature::<Ssi>("http { }", &["http"]).unwrap();
    let mut processor = Processor::new(settings);
    let mut shown = String::new();
    let pieces = body
        .as_bytes()
        .chunks(step)
        .map(|part| Piece::Bytes(Bytes::copy_from_slice(part)));
    for piece in pieces.chain([Piece::Last]) {
        let mut out = Vec::new();
        processor.apply(request, piece, &mut out).unwrap();
        loop {
            for piece in out.drain(..) {
                show(&piece, &mut shown);
            }
            if !processor.resume(request, &mut out).unwrap() {
                break;
            }
        }
    }
    shown
}

fn show(piece: &Piece, shown: &mut String) {
    let Piece::Include(include) = piece else {
        shown.push_str(&testing::text_of(std::slice::from_ref(piece)));
        return;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    shown.push_str(&format!("[{}", text(&include.uri)));
    if !include.args.is_empty() {
        shown.push_str(&format!("?{}", text(&include.args)));
    }
    match &include.purpose {
        Purpose::Output => {}
        Purpose::OutputOr(stub) => shown.push_str(&format!(" or {}", text(&stub.text))),
        Purpose::Value { name, .. } => shown.push_str(&format!(" into {}", text(name))),
    }
    shown.push(']');
}

/// Bodies and their outputs. The longer ones are checked against nginx in tests/parity.
const BODIES: &[(&str, &str)] = &[
    ("", ""),
    ("plain", "plain"),
    ("a<b<!c<!-d<!--e<<!--f", "a<b<!c<!-d<!--e<<!--f"),
    ("<!---#x--><!-- #echo -->", "<!---#x--><!-- #echo -->"),
    ("x<!--#echo var=\"arg_a\" -->y", "xxy"),
    ("x<!--#echo var='arg_a'-->y", "xxy"),
    ("x<!--# echo\n var = \"ARG_A\"\t-->y", "xxy"),
    ("<!--#echo var=\"arg_none\" -->", "(none)"),
    ("<!--#echo var=\"arg_none\" default=\"d\" -->", "d"),
    ("<!--#echo var=\"arg_empty\" default=\"d\" -->", ""),
    (
        "<!--#set var=\"v\" value=\"<$arg_a>\\$\\a\" --><!--#echo var=\"V\" -->",
        "&lt;x&gt;$\\a",
    ),
    (
        "<!--#set var=\"v\" value=\"<\" --><!--#echo var=\"v\" encoding=\"none\" -->",
        "<",
    ),
    ("<!--#include virtual=\"/a?b=$arg_a\" -->", "[/a?b=x]"),
    ("<!--#include virtual=\"a\" -->", "[/folder/a]"),
    ("<!--#include file=\"a\" -->b", "[/folder/a]b"),
    ("<!--#include virtual=\"/a\" set=\"V\" -->b", "[/a into v]b"),
    (
        "<!--#block name=\"n\" -->x<!--#echo var='a'--><!--#endblock --><!--#include virtual=\"/a\" stub=\"n\" -->",
        "[/a or x<!--#echo var=\"a\" -->]",
    ),
    (
        "<!--#if expr=\"$arg_a\" -->1<!--#else -->2<!--#endif -->3",
        "13",
    ),
    (
        "<!--#if expr=\"$arg_a = y\" -->1<!--#elif expr=\"$arg_a != y\" -->2<!--#else -->4<!--#endif -->3",
        "23",
    ),
    (
        "<!--#if expr=\"$arg_a = /^(?P<n>.)\\$/\" --><!--#echo var=\"n\" --><!--#echo var=\"1\" --><!--#endif -->",
        "xx",
    ),
    ("<!--#config errmsg=\"E\" --><!--#nothing -->", "E"),
    ("<!--#config errmsg=\"E\" --><!--#echo -->", "E"),
    ("<!--#config errmsg=\"\" --><!--#echo -->x", "x"),
    ("<!--#include virtual=\"\" -->", "[/folder/]"),
    (
        "<!--#config errmsg=\"E\" --><!--#include virtual=\"$arg_none\" -->",
        "E",
    ),
    (
        "<!--#config timefmt=\"\" errmsg=\"E\" --><!--#echo var=\"date_gmt\" default=\"d\" -->",
        "E",
    ),
    (
        "<!--#config timefmt=\"%Q\" --><!--#echo var=\"date_gmt\" -->",
        "%Q",
    ),
    ("<!--#config errmsg=\"E\" --><!--#echo var=x -->a", "Ea"),
    ("<!--#config errmsg=\"E\" --><!--#else -->", "E"),
    (
        "<!--#config errmsg=\"E\" --><!--#include virtual=\"/../a\" -->",
        "E",
    ),
];

#[test]
fn commands_at_every_border() {
    let modules = testing::with(&[Entry::module::<Ssi>().variables(&[find])]);
    let text = testing::site("");
    serve_by(modules, &text, "GET / HTTP/1.1", async |mut request| {
        for (body, expected) in BODIES {
            for step in 1..=body.len().max(1) {
                let found = processed(&mut request, body, step);
                assert_eq!(found, *expected, "{body:?} by {step}");
            }
        }
    });
}

#[test]
fn settings() {
    let feature =
        |text: &str| testing::feature::<Ssi>(&format!("http {{ {text} }}"), &["http"]).unwrap();
    let ssi = feature("");
    assert!(ssi.is_off() && !ssi.silent_errors && !ssi.keep_last_modified);
    assert_eq!(ssi.value_length_max, 255);
    assert!(ssi.types.contain(b"text/html") && !ssi.types.contain(b"text/plain"));
    let ssi = feature("ssi on; ssi_value_length 1k; ssi_types text/plain;");
    assert!(!ssi.is_off() && ssi.types.contain(b"text/plain"));
    assert_eq!(ssi.value_length_max, 1024);
}
