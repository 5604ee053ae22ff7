//! DokuWiki, which keeps its pages in files.

use std::fs;
use std::path::Path;

use super::browser::Browser;
use super::picture;
use super::site::{Configuration, Folder, copy, documented, give_to, is_root, start_php};
use super::walk::{Client, Request, assert_alike, walk};

const HOST: &str = "wiki.example.com";
const TITLE: &str = "The harbour";
const USER: &str = "pilot";
const PASSWORD: &str = "correct horse battery staple";
const TEXT: &str = "Ships wait for the tide outside of the bar.";
const EDITED: &str = "Ships wait for the tide within the harbour.";
/// What an empty wiki has in its folder of data; Debian's is not for everyone to read.
const DATA: [&str; 11] = [
    "attic",
    "cache",
    "index",
    "locks",
    "log",
    "media/wiki",
    "media_attic",
    "media_meta",
    "meta",
    "pages/tides",
    "tmp",
];
const STYLE: &str = "/lib/exe/css.php?t=dokuwiki";
/// What begins a value that is new for each page.
const SECRETS: [&str; 2] = ["taskrunner.php?id=", "name=\"sectok\" value=\""];
/// The line that is written once the wiki is set up.
const CLOSED: &str = "location ~ /(conf/|bin/|inc/|vendor/|install\\.php) { deny all; }";

#[test]
fn a_wiki_is_set_up_and_written_in_a_browser() {
    let folder = Folder::new("dokuwiki");
    let www = folder.0.join("www");
    lay_out(&www);
    let picture = folder.0.join("ship.png");
    fs::write(&picture, picture::png()).unwrap();
    let _php = start_php(&folder.0, "");
    let configuration = Configuration::new(&folder.0);
    let (root, socket) = (
        www.display().to_string(),
        folder.0.join("php.sock").display().to_string(),
    );
    let renamed = [
        ("/var/www/dokuwiki", &*root),
        ("/run/php/php-fpm.sock", &*socket),
    ];
    let documented = documented("php.md", "DokuWiki", 0);
    assert!(documented.contains(CLOSED));
    let open = documented.replace(CLOSED, &CLOSED.replace("|install\\.php", ""));
    configuration.write(&open, &renamed);
    let mut tidegate = configuration.start_tidegate();
    let mut browser = Browser::start(&folder.0, HOST, configuration.port);
    set_up(&mut browser);
    configuration.write(&documented, &renamed);
    tidegate.reload();
    let client = Client {
        port: configuration.port,
        host: HOST,
    };
    tidegate.wait_until("the reload", || client.get("/install.php").status == 403);
    log_in(&mut browser);
    choose_addresses(&mut browser);
    upload(&mut browser, &picture);
    write_page(&mut browser, TEXT);
    see(&mut browser, TEXT);
    write_page(&mut browser, EDITED);
    see(&mut browser, EDITED);
    assert_eq!(faults(&mut browser), [""; 0]);
    drop(browser);

    let ours = walk(&client, &steps(&client));
    drop(tidegate);
    let nginx = configuration.start_nginx();
    let theirs = walk(&client, &steps(&client));
    drop(nginx);
    assert_alike(&ours, &theirs, &SECRETS);
    configuration.use_io_uring();
    let tidegate = configuration.start_tidegate();
    let on_io_uring = walk(&client, &steps(&client));
    drop(tidegate);
    assert_alike(&on_io_uring, &theirs, &SECRETS);
    configuration.assert_calm();
}

/// What is asked for over HTTP, by readers and by the author.
fn steps(client: &Client) -> Vec<(Request, u16, &'static str)> {
    let form = [
        ("id", "start"),
        ("do", "login"),
        ("u", USER),
        ("p", PASSWORD),
    ];
    let log_in = Request::post("/doku.php", &form);
    let session = client.get("/start").cookies();
    let cookies = client
        .ask(&log_in.clone().with("Cookie", &session))
        .cookies();
    let cookies = format!("{session}; {cookies}");
    let author = |request: Request| request.with("Cookie", &cookies);
    let page = client.ask(&author(Request::get("/start?do=edit")));
    let token = page.between("name=\"sectok\" value=\"", "\"");
    let text = [
        ("id", "walked"),
        ("sectok", &token),
        ("wikitext", "It has been walked upon."),
        ("do[save]", "Save"),
    ];
    let upload = [
        ("sectok", &*token),
        ("ns", ""),
        ("mediaid", "walked.png"),
        ("ow", "1"),
    ];
    let picture = picture::png();
    let etag = client
        .get("/_media/ship.png")
        .header("ETag")
        .unwrap_or_default()
        .to_owned();
    // The first answer is compiled, the next ones are sent from a file.
    client.get(STYLE);
    let large = vec![b'x'; 5_000_000];
    vec![
        (Request::get("/"), 200, EDITED),
        (Request::get("/start"), 200, EDITED),
        (Request::get("/doku.php?id=start"), 200, EDITED),
        (Request::head("/start"), 200, ""),
        (Request::get("/tides:table"), 200, "High water"),
        (Request::get("/nothing_here"), 200, "does not exist"),
        (Request::get("/_export/xhtml/start"), 200, EDITED),
        (Request::get("/_detail/ship.png"), 200, "ship.png"),
        (Request::get("/_media/ship.png"), 200, "PNG"),
        (
            Request::get("/_media/ship.png").with("Range", "bytes=1-3"),
            206,
            "PNG",
        ),
        (
            Request::get("/_media/ship.png").with("If-None-Match", &etag),
            304,
            "",
        ),
        (
            Request::get("/lib/exe/fetch.php?media=nothing.png"),
            404,
            "",
        ),
        (
            Request::get("/lib/tpl/dokuwiki/images/logo.png"),
            200,
            "PNG",
        ),
        (Request::get(STYLE), 200, "body"),
        (Request::get("/feed.php"), 200, "<rdf:RDF"),
        (Request::get("/missing.php"), 200, EDITED),
        (Request::get("/conf/users.auth.php"), 403, ""),
        (Request::get("/conf/local.php"), 403, ""),
        (Request::get("/inc/init.php"), 403, ""),
        (Request::get("/bin/dwpage.php"), 403, ""),
        (Request::get("/vendor/autoload.php"), 403, ""),
        (Request::get("/install.php"), 403, ""),
        (Request::get("/data/pages/start.txt"), 404, ""),
        (Request::get("/data/"), 404, ""),
        (Request::get("/lib"), 301, ""),
        (log_in.with("Cookie", &session), 302, ""),
        (author(Request::post("/doku.php", &text)), 302, ""),
        (Request::get("/start?do=index"), 200, "Sitemap"),
        (Request::get("/walked"), 200, "It has been walked upon."),
        (
            author(Request::upload(
                "/lib/exe/ajax.php?call=mediaupload",
                &upload,
                ("qqfile", "walked.png", &picture),
            )),
            200,
            "\"success\":true",
        ),
        (
            author(Request::upload(
                "/lib/exe/ajax.php?call=mediaupload",
                &upload,
                ("qqfile", "large.png", &large),
            )),
            413,
            "",
        ),
    ]
}

/// Puts the files where DokuWiki's own archive has them.
fn lay_out(www: &Path) {
    copy("/usr/share/dokuwiki", www);
    copy("/etc/dokuwiki", &www.join("conf"));
    for name in DATA {
        fs::create_dir_all(www.join("data").join(name)).unwrap();
    }
    fs::write(
        www.join("data/pages/tides/table.txt"),
        "====== High water ======\n",
    )
    .unwrap();
    // Debian's places, and what Debian has set up.
    for name in [
        "inc/preload.php",
        "conf/local.php",
        "conf/users.auth.php",
        "conf/acl.auth.php",
    ] {
        let _ = fs::remove_file(www.join(name));
    }
    // The installer shows it.
    fs::write(www.join("data/media/wiki/dokuwiki-128.png"), picture::png()).unwrap();
    let settings = www.join("conf/dokuwiki.php");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(settings, text.replace("/var/lib/dokuwiki/data", "./data")).unwrap();
    if is_root() {
        give_to("www-data", www);
    }
}

fn set_up(browser: &mut Browser) {
    browser.open(&format!("http://{HOST}/install.php"));
    browser.fill(&[
        ("#title", TITLE),
        ("#superuser", USER),
        ("#fullname", "The pilot"),
        ("#email", "pilot@example.com"),
        ("#password", PASSWORD),
        ("#confirm", PASSWORD),
    ]);
    browser.press("#pop");
    browser.press_and_leave("form:has(#title) button[type=submit]");
    browser.wait_for_text("The configuration was finished successfully.");
}

/// Nice addresses, and files by the server.
fn choose_addresses(browser: &mut Browser) {
    browser.open(&format!(
        "http://{HOST}/doku.php?id=start&do=admin&page=config"
    ));
    for (name, value) in [("userewrite", "1"), ("xsendfile", "3")] {
        let field = format!("select[name='config[{name}]']");
        browser.wait(&format!("document.querySelector(\"{field}\")"));
        browser.evaluate(&format!(
            "document.querySelector(\"{field}\").value = '{value}'"
        ));
    }
    browser.press_and_leave("#dw__configform button[type=submit]");
    browser.wait_for_text("Settings updated successfully.");
    browser.screenshot("dokuwiki-settings");
}

fn log_in(browser: &mut Browser) {
    browser.open(&format!("http://{HOST}/doku.php?id=start&do=login"));
    browser.fill(&[("#focus__this", USER), ("input[name=p]", PASSWORD)]);
    browser.press_and_leave("#dw__login button[type=submit]");
    browser.wait_for_text("Logged in as: The pilot");
}

fn upload(browser: &mut Browser, picture: &Path) {
    browser.open(&format!(
        "http://{HOST}/start?do=media&ns=&tab_files=upload"
    ));
    browser.choose_file(".qq-upload-button input", picture);
    browser.press("#mediamanager__upload_button");
    browser.wait("document.querySelector('.qq-upload-success')");
    browser.screenshot("dokuwiki-media");
}

fn write_page(browser: &mut Browser, text: &str) {
    browser.open(&format!("http://{HOST}/start?do=edit"));
    let page = format!("{text}\n\n{{{{ship.png}}}}");
    browser.fill(&[("#wiki__text", &page)]);
    browser.press_and_leave("#edbtn__save");
}

fn see(browser: &mut Browser, text: &str) {
    browser.open(&format!("http://{HOST}/start"));
    browser.wait_for_text(text);
    let width = picture::WIDTH;
    browser.wait(&format!(
        "document.querySelector('img.media')?.naturalWidth == {width}"
    ));
    browser.screenshot("dokuwiki-page");
}

/// What went wrong, but for pictures that Debian's package lacks, and one that DokuWiki asks for to
/// see that it is refused.
fn faults(browser: &mut Browser) -> Vec<String> {
    let is_meant = |fault: &String| {
        fault.contains("/data/dont-panic") || fault.contains("/plugins/config/images/")
    };
    let faults = browser.take_faults();
    faults
        .into_iter()
        .filter(|fault| !is_meant(fault))
        .collect()
}
