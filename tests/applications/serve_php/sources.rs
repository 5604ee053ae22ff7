//! What is never sent: PHP's sources under any name, and what is hidden.

use std::os::unix::fs::symlink;

use super::site::{SECRET, Site, undisturbed};

/// Names of sources and of copies that editors and people leave.
const SOURCES: &[&str] = &[
    "a.PHP",
    "a.Php",
    "a.php~",
    "a.php.bak",
    "a.php.txt",
    "a.php.orig",
    "a.php.swp",
    "a.php_old",
    "a.php-dist",
    "a.php.1",
    "a.php ",
    "a.php copy",
    "a.php\n",
    "a.php.gz",
    "a.phpbak",
    "#a.php#",
    "a.php5",
    "a.php7",
    "a.phps",
    "a.phpt",
    "a.phtml",
    "a.PHTML",
    "a.pht",
    "a.phar",
    "a.inc",
    "a.inc.bak",
    "a.inc~",
    "sub/a.php.bak",
    ".well-known/a.phtml",
];

/// Names of what is hidden.
const HIDDEN: &[&str] = &[
    ".env",
    ".htaccess",
    ".user.ini",
    ".git/config",
    ".a.php.swp",
    ".hidden.php",
    "sub/.env",
    ".well-known/.env",
    ".well-known/x\ny/.env",
];

fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'~' | b'-' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02x}"),
    };
    let path: String = name.bytes().map(byte).collect();
    format!("/{path}")
}

fn site() -> Site {
    let site = Site::empty();
    let source = format!("<?php echo 'ran'; // {SECRET}");
    for name in SOURCES.iter().chain(HIDDEN) {
        site.write(name, &source);
    }
    site
}

#[test]
fn a_source_is_refused_where_php_is_run() {
    let _quiet = undisturbed();
    for has_front_controller in [false, true] {
        let site = site();
        if has_front_controller {
            site.write("index.php", "<?php echo 'front';");
        }
        site.write("a.php.html", "<p>a copy of a page</p>");
        site.write("linked.php", "<?php echo 'linked';");
        symlink(site.folder.join("linked.php"), site.folder.join("link.php")).unwrap();
        site.write("sub.php/b.phtml", SECRET);
        let running = site.serve(&["--php"]);
        let (_, body) = running.get("/sub.php/b.phtml");
        assert!(!body.contains(SECRET), "{body}");
        for (names, expected) in [(SOURCES, 403), (HIDDEN, 404)] {
            for name in names {
                let path = encoded(name);
                for path in [
                    path.clone(),
                    format!("{path}?a=b"),
                    format!("/x/..{path}"),
                    path.replace(".ph", "%2Eph"),
                ] {
                    let (code, body) = running.get(&path);
                    assert!(!body.contains(SECRET) && body != "ran", "{path}: {body}");
                    assert_eq!(code, expected, "{path}");
                }
                // With anything behind it, it is no file any more.
                for behind in ["/", "/x", "/x.php", "%00", "%20", "%2f"] {
                    let (code, body) = running.get(&format!("{path}{behind}"));
                    assert!(
                        !body.contains(SECRET) && body != "ran",
                        "{path}{behind}: {code} {body}"
                    );
                }
            }
        }
        running.wait_for_line(
            "tidegate: /a.php.bak is PHP by its name, but by none that is run: not sent\n",
        );
        assert_eq!(
            running.get("/a.php.html"),
            (200, "<p>a copy of a page</p>".to_owned())
        );
        assert_eq!(
            running.get("/link.php"),
            (200, "linked".to_owned()),
            "links are followed, as those to files"
        );
    }
}

#[test]
fn a_source_is_refused_where_php_is_not_run() {
    let _quiet = undisturbed();
    let site = site();
    site.write("index.php", &format!("<?php // {SECRET}"));
    site.write("main.c", "int main;");
    let running = site.serve(&[]);
    assert!(
        running
            .printed
            .starts_with("PHP is not run and its source not sent (index.php); --php runs it.\n"),
        "{}",
        running.printed
    );
    let scripts = ["index.php", ".well-known/a.phtml"];
    for name in SOURCES.iter().chain(&scripts) {
        let (code, body) = running.get(&encoded(name));
        assert!(!body.contains(SECRET), "{name}");
        assert_eq!(code, 403, "{name}");
    }
    for name in HIDDEN {
        assert_eq!(running.get(&encoded(name)).0, 404, "{name}");
    }
    for path in ["/no.php", "/index.php/a", "/no.inc"] {
        assert_eq!(running.get(path).0, 404, "{path}");
    }
    assert_eq!(running.get("/").0, 403);
    assert_eq!(running.get("/main.c").0, 200);
    running.wait_for_line(
        "tidegate: /index.php is PHP by its name, and not sent; --php runs it, --php-source sends it\n",
    );
    assert!(!running.said().contains("/no.php"), "{}", running.said());
    drop(running);

    let running = site.serve(&["--php-source"]);
    assert!(!running.printed.contains("PHP"), "{}", running.printed);
    for name in ["index.php", "a.phtml", "a.php.bak", "a.inc"] {
        let (code, body) = running.get(&encoded(name));
        assert!(code == 200 && body.contains(SECRET), "{name}");
    }
    assert_eq!(running.get("/.env").0, 404);
}
