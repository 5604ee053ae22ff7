//! Targets: a normalised path has no segment of dots, is no longer than what it was made of, stays
//! itself when it is escaped and normalised again, and is what the head parser finds by its shorter
//! way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h1::{Head, Limits, parse_head};
use proto::uri::{Escape, Unescape, escape, escaped_length, normalise, parse_unsafe, unescape};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let merge_slashes = choice & 1 == 0;
    let raw = [b"/", rest].concat();

    let mut path = Vec::new();
    let parts = normalise(&raw, merge_slashes, &mut path);
    if let Ok(parts) = parts {
        assert!(path.len() <= raw.len() && path.starts_with(b"/"));
        assert!(
            path.split(|&byte| byte == b'/')
                .all(|segment| segment != b".." && segment != b".")
        );
        assert!(!merge_slashes || !path.windows(2).any(|pair| pair == b"//"));
        assert!(
            parts
                .args
                .is_none_or(|args| args.end as usize <= raw.len() && args.start <= args.end)
        );
        assert!(
            parts
                .extension
                .is_none_or(|extension| extension.end as usize == path.len())
        );

        let mut escaped = Vec::new();
        escape(&path, Escape::Uri, &mut escaped);
        assert_eq!(escaped.len(), escaped_length(&path, Escape::Uri));
        let mut again = Vec::new();
        // A zero byte can be in the target as it is, but not escaped.
        if !path.contains(&0) {
            assert!(normalise(&escaped, merge_slashes, &mut again).is_ok());
            assert_eq!(again, path);
        }
    }
    in_a_head(&raw, merge_slashes, &path, parts.is_ok());

    let mut out = Vec::new();
    for kind in [Unescape::All, Unescape::Uri, Unescape::Redirect] {
        out.clear();
        assert!(unescape(rest, kind, &mut out) <= rest.len() && out.len() <= rest.len());
    }
    if parse_unsafe(rest, &mut out).is_ok() {
        assert!(
            out.split(|&byte| byte == b'/')
                .all(|segment| segment != b"..")
        );
    }
});

fn in_a_head(raw: &[u8], merge_slashes: bool, path: &[u8], valid: bool) {
    if raw.iter().any(|&byte| byte <= b' ' || byte == 0x7f) {
        return;
    }
    let bytes = [b"GET ", raw, b" HTTP/1.0\r\n\r\n"].concat();
    let limits = Limits {
        buffer_size: 1 << 20,
        merge_slashes,
        ..Limits::default()
    };
    let mut head = Head::default();
    let result = parse_head(&bytes, &limits, &mut head);
    assert_eq!(result.is_ok(), valid);
    if valid {
        let mut again = Vec::new();
        let parts = normalise(raw, merge_slashes, &mut again).expect("it was valid");
        assert_eq!(head.path(&bytes), path);
        assert_eq!(
            head.args().map(|args| args.of(&bytes)),
            parts.args.map(|args| args.of(raw))
        );
        assert_eq!(head.extension(), parts.extension);
        assert_eq!(head.target(&bytes), raw);
    }
}
