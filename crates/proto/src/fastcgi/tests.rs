//! Bytes by the specification (sections 3.3, 3.4, 5.1 to 5.5 and 8) and as nginx sends them; words by `ngx_http_fastcgi_module.c`.

use super::*;
use crate::cgi::Variables;

/// What a connection's first record is, with and without `FCGI_KEEP_CONN`.
const BEGIN: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\0\0\0\0\0\0";
const BEGIN_KEEP: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0";
const PARAMS_END: &[u8] = b"\x01\x04\0\x01\0\0\0\0";

/// A head of these variables, finished with nginx's limit.
fn head(variables: &[(&str, &str)]) -> Result<Vec<u8>, ParamsTooLong> {
    let mut out = Vec::new();
    let mut writer = RequestWriter::new(&mut out, false);
    for (name, value) in variables {
        writer.push(name.as_bytes(), value.as_bytes());
    }
    writer.finish(PARAMS_LENGTH_MAX).map(|()| out)
}

#[test]
fn heads_of_requests() {
    let long = "x".repeat(130);
    for (case, variables, params) in [
        ("no parameter", &[][..], &b""[..]),
        (
            "one, padded to eight bytes",
            &[("REQUEST_METHOD", "GET")],
            b"\x01\x04\0\x01\0\x13\x05\0\x0e\x03REQUEST_METHODGET\0\0\0\0\0",
        ),
        (
            "one that needs no padding",
            &[("ABC", "def")],
            b"\x01\x04\0\x01\0\x08\0\0\x03\x03ABCdef",
        ),
        (
            "an empty value",
            &[("E", ""), ("F", "g")],
            b"\x01\x04\0\x01\0\x07\x01\0\x01\0E\x01\x01Fg\0",
        ),
        (
            "a length in four bytes",
            &[("L", &long)],
            &[
                &b"\x01\x04\0\x01\0\x88\0\0\x01\x80\0\0\x82L"[..],
                long.as_bytes(),
            ]
            .concat(),
        ),
    ] {
        let expected = [BEGIN, params, PARAMS_END].concat();
        let head = head(variables).expect(case);
        assert_eq!(
            head.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "{case}"
        );
    }
}

#[test]
fn lengths_of_names_and_values() {
    for (length, bytes) in [
        (0, &b"\0"[..]),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\0\0\x80"),
        (255, b"\x80\0\0\xff"),
        (256, b"\x80\0\x01\0"),
        (0x1234, b"\x80\0\x12\x34"),
    ] {
        let text = "n".repeat(length);
        let as_name = head(&[(&text, "")]).expect("short enough");
        assert_eq!(as_name[24..24 + bytes.len()], *bytes, "name of {length}");
        let as_value = head(&[("", &text)]).expect("short enough");
        assert_eq!(as_value[24], 0);
        assert_eq!(as_value[25..25 + bytes.len()], *bytes, "value of {length}");
    }
}

#[test]
fn fields_become_parameters() {
    let mut out = b"before".to_vec();
    let mut writer = RequestWriter::new(&mut out, true);
    writer.push_field(b"Cookie", [&b"a=1"[..], b"b=2"].into_iter());
    writer.push_field(b"x-a", [&b"1"[..], b"2"].into_iter());
    assert_eq!(writer.params_length(), 2 + 11 + 8 + 2 + 8 + 4);
    writer.finish(PARAMS_LENGTH_MAX).expect("short enough");
    let params =
        b"\x01\x04\0\x01\0\x23\x05\0\x0b\x08HTTP_COOKIEa=1; b=2\x08\x04HTTP_X_A1, 2\0\0\0\0\0";
    let expected = [b"before", BEGIN_KEEP, params, PARAMS_END].concat();
    assert_eq!(out, expected);
}

#[test]
fn parameters_that_are_too_long() {
    // Name, lengths and value: 1 + 4 + 1 + n.
    let value = "v".repeat(PARAMS_LENGTH_MAX - 6);
    let head_of_all = head(&[("N", &value)]).expect("just short enough");
    assert_eq!(head_of_all.len(), 16 + 8 + 0xffff + 1 + 8);
    assert_eq!(head_of_all[16..24], *b"\x01\x04\0\x01\xff\xff\x01\0");
    let longer = value + "v";
    let fault = head(&[("N", &longer)]).expect_err("too long");
    assert_eq!(
        fault.to_string(),
        "fastcgi request record is too big: 65536"
    );
    let mut out = b"before".to_vec();
    let mut writer = RequestWriter::new(&mut out, false);
    writer.push(b"N", longer.as_bytes());
    assert_eq!(
        writer.finish(PARAMS_LENGTH_MAX),
        Err(ParamsTooLong(0x1_0000))
    );
    assert_eq!(out, b"before");
}

#[test]
fn more_parameters_than_a_record_holds() {
    let value = "v".repeat(0x2_0000);
    let mut out = Vec::new();
    let mut writer = RequestWriter::new(&mut out, false);
    writer.push(b"N", value.as_bytes());
    writer.finish(usize::MAX).expect("below 2 GiB");
    let params = [&b"\x01\x80\x02\0\0N"[..], value.as_bytes()].concat();
    // 0x20006 bytes: twice 0xfff8, and 0x16 with two bytes of padding.
    let expected = [
        BEGIN,
        b"\x01\x04\0\x01\xff\xf8\0\0",
        &params[..0xfff8],
        b"\x01\x04\0\x01\xff\xf8\0\0",
        &params[0xfff8..0x1_fff0],
        b"\x01\x04\0\x01\0\x16\x02\0",
        &params[0x1_fff0..],
        b"\0\0",
        PARAMS_END,
    ]
    .concat();
    assert!(out == expected);
}

#[test]
fn frames_of_a_body() {
    for (available, length, header, padding) in [
        (1, 1, b"\x01\x05\0\x01\0\x01\x07\0", 7),
        (7, 7, b"\x01\x05\0\x01\0\x07\x01\0", 1),
        (8, 8, b"\x01\x05\0\x01\0\x08\0\0", 0),
        (911, 911, b"\x01\x05\0\x01\x03\x8f\x01\0", 1),
        (0x8000, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
        (0x8001, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
        (usize::MAX, 0x8000, b"\x01\x05\0\x01\x80\0\0\0", 0),
    ] {
        let frame = StdinFrame::new(available).expect("some bytes");
        assert_eq!(frame.length(), length);
        assert_eq!(frame.header(), header, "{available}");
        assert_eq!(frame.padding(), vec![0; padding]);
    }
    assert_eq!(StdinFrame::new(0), None);
    assert_eq!(STDIN_END, *b"\x01\x05\0\x01\0\0\0\0");
}
