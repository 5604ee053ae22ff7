use super::*;

#[test]
fn placeholder_is_replaced() {
    assert_eq!(split_args(b"/a?b"), (&b"/a"[..], Some(&b"b"[..])));
}
