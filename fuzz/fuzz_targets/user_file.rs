//! Files of users: a name is found as a search line by line finds it, credentials arrive as they
//! were sent, and a password fits only where it must.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use proto::base64;
use http::request::credentials::Credentials;
use modules::auth_basic::password::{Check, Scheme};
use modules::auth_basic::users::Users;

fuzz_target!(|input: (&[u8], &[u8], &[u8])| {
    let (name, password, file) = input;
    let text = Bytes::copy_from_slice(file);
    let users = Users::parse(&text);
    let known = |name: &[u8]| users.password_of(name).map(|password| &password[..]);

    assert_eq!(known(name), naive(file, name));
    for line in file.split(|&byte| byte == b'\n') {
        // Every beginning of a line that may be a name, and the line itself.
        let ends = (0..line.len()).filter(|&end| line[end] == b':').take(3);
        for name in ends.map(|end| &line[..end]).chain([line]) {
            assert_eq!(known(name), naive(file, name));
            if let Some(stored) = known(name) {
                assert!(!stored.iter().any(|byte| b":\r\n".contains(byte)));
                verify(stored, password);
            }
        }
    }
    credentials(name, password);
    let _ = Credentials::parse(file);
});

/// The password in the first line that begins with the name and a colon.
fn naive<'a>(file: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let wanted = [name, b":"].concat();
    let mut rest = file;
    loop {
        let end = rest.iter().position(|&byte| byte == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        let comment = line.starts_with(b"#") || line.starts_with(b"\r");
        if !comment && !name.contains(&b':') && line.starts_with(&wanted) {
            let stored = &line[wanted.len()..];
            let length = stored
                .iter()
                .position(|&byte| byte == b':' || byte == b'\r');
            return Some(&stored[..length.unwrap_or(stored.len())]);
        }
        rest = &rest[end? + 1..];
    }
}

/// Only schemes that take no time; what they must say is known.
fn verify(stored: &[u8], password: &[u8]) {
    let scheme = Scheme::of(stored);
    let check = match scheme {
        Scheme::Bcrypt | Scheme::ShaCrypt | Scheme::Yescrypt => return,
        _ => scheme.verify(stored, password),
    };
    match scheme {
        Scheme::Plain => {
            let fits = stored.strip_prefix(b"{PLAIN}") == Some(password);
            assert_eq!(check == Check::Right, fits);
        }
        Scheme::Other => assert_eq!(check, Check::Unknown),
        // A digest that the fuzzer does not know.
        _ => assert!(matches!(check, Check::Right | Check::Wrong)),
    }
    if check == Check::Right {
        let other = [password, b"x"].concat();
        // The traditional scheme reads eight characters.
        if scheme != Scheme::Des {
            assert_eq!(scheme.verify(stored, &other), Check::Wrong);
        }
    }
}

/// What RFC 7617 makes of a name and a password is read as these.
fn credentials(name: &[u8], password: &[u8]) {
    let mut value = b"Basic ".to_vec();
    base64::encode(&[name, b":", password].concat(), &mut value);
    let colon = name.iter().position(|&byte| byte == b':');
    match Credentials::parse(&value) {
        None => assert!(name.is_empty() || colon == Some(0)),
        Some(found) => {
            assert_eq!(found.user(), &name[..colon.unwrap_or(name.len())]);
            if colon.is_none() {
                let end = password.iter().position(|&byte| byte == 0);
                let end = end.unwrap_or(password.len());
                assert_eq!(found.password(), &password[..end]);
            }
        }
    }
}
