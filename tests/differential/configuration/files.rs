//! Files that configurations name, beside those of the tree that is served.

/// Parameters of RFC 7919's group ffdhe2048.
const DHPARAM: &str = "\
-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
";

/// Rows that are read again and again by `include`.
const MIME_TYPES: &str = "\
types {
    text/html html htm shtml;
    text/css css;
    text/xml xml;
    text/plain txt;
    image/gif gif;
    image/jpeg jpeg jpg;
    image/png png;
    image/svg+xml svg svgz;
    application/javascript js;
    application/json json;
    video/mp4 mp4;
    video/x-flv flv;
    application/octet-stream bin;
}
";

/// Users with the password `secret`: in the clear, as SHA-1 with salt, as Apache's MD5; and lines
/// that are none.
const USERS: &str = "\
# a comment
alice:{PLAIN}secret
bob:$apr1$salt1234$G61s9lpZAELkzUFCbj/53/:Bob
carol:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=
line without a colon
:nameless
";

/// The files by their paths below the prefix; they have to be there before a configuration is read.
pub(crate) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let mut files: Vec<(&'static str, Vec<u8>)> = vec![
        ("conf/mime.types", MIME_TYPES.into()),
        ("conf/users", USERS.into()),
        ("conf/one.users", USERS.into()),
        // Where `dav_methods` write to: a folder that is empty but for these.
        ("dav/page.html", b"put here before\n".to_vec()),
        ("dav/dir/page.html", b"below\n".to_vec()),
        ("conf/empty.conf", b"# nothing\n".to_vec()),
        (
            "conf/networks",
            b"127.0.0.1 listed;\n192.0.2.0/24 tested;\n".to_vec(),
        ),
        ("conf/tls/dhparam.pem", DHPARAM.into()),
    ];
    files.extend(TLS.iter().map(|(path, bytes)| (*path, bytes.to_vec())));
    files
}

/// What the tests of TLS have.
const TLS: &[(&str, &[u8])] = &[
    ("conf/tls/ca.crt", include_bytes!("../../tls/ca.crt")),
    ("conf/tls/rsa.crt", include_bytes!("../../tls/rsa.crt")),
    ("conf/tls/rsa.key", include_bytes!("../../tls/rsa.key")),
    ("conf/tls/ecdsa.crt", include_bytes!("../../tls/ecdsa.crt")),
    ("conf/tls/ecdsa.key", include_bytes!("../../tls/ecdsa.key")),
    (
        "conf/tls/client.crt",
        include_bytes!("../../tls/client.crt"),
    ),
    (
        "conf/tls/client.key",
        include_bytes!("../../tls/client.key"),
    ),
    ("conf/tls/empty.crl", include_bytes!("../../tls/empty.crl")),
    // An answer that says "try later" (RFC 6960, 4.2.1), the shortest that there is.
    ("conf/tls/later.der", b"\x30\x03\x0a\x01\x03"),
    ("conf/tls/passwords", include_bytes!("../../tls/passwords")),
    (
        "conf/tls/ticket.key",
        include_bytes!("../../tls/ticket.key"),
    ),
];
