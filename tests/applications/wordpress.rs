//! WordPress with MariaDB.

use std::fs;
use std::path::Path;

use super::browser::Browser;
use super::mariadb::{DATABASE, MariaDb};
use super::picture;
use super::site::{Configuration, Folder, copy, documented, give_to, is_root, start_php};
use super::walk::{Client, Request, assert_alike, walk};

const HOST: &str = "blog.example.com";
const TITLE: &str = "Notes of a lighthouse";
const USER: &str = "keeper";
const HEADING: &str = "The tide comes in";
const EDITED: &str = "The tide has come in";
const TEXT: &str = "It rises by six metres, twice a day.";
/// What begins a value that is new for each page.
const SECRETS: [&str; 4] = ["\"time\":\"", "nonce\":\"", "_wpnonce=", "nonce\" value=\""];
/// Without a network WordPress would wait for answers that never come; with one it would load what
/// is new there.
const OFFLINE: &str =
    "php_admin_value[disable_functions] = fsockopen,stream_socket_client,curl_init,curl_exec";
const PASSWORD: &str = "correct horse battery staple";

#[test]
fn a_blog_is_set_up_and_written_in_a_browser() {
    let folder = Folder::new("wordpress");
    let www = folder.0.join("www");
    copy("/usr/share/wordpress", &www);
    // Debian's own; the installer writes one.
    let _ = fs::remove_file(www.join("wp-config.php"));
    let picture = folder.0.join("tide.png");
    fs::write(&picture, picture::png()).unwrap();
    if is_root() {
        give_to("www-data", &www);
    }
    let database = MariaDb::start(&folder.0);
    let _php = start_php(&folder.0, OFFLINE);
    let configuration = Configuration::new(&folder.0);
    let socket = folder.0.join("php.sock").display().to_string();
    configuration.write(
        &documented("php.md", "WordPress", 0),
        &[
            ("/var/www/wordpress", &www.display().to_string()),
            ("/run/php/php-fpm.sock", &socket),
        ],
    );
    let tidegate = configuration.start_tidegate();
    let mut browser = Browser::start(&folder.0, HOST, configuration.port);
    set_up(&mut browser, &database);
    log_in(&mut browser);
    choose_permalinks(&mut browser);
    let picture = upload(&mut browser, &picture);
    let page = write_post(&mut browser, &picture);
    assert_eq!(page, format!("http://{HOST}/the-tide-comes-in/"));
    see(&mut browser, &page, HEADING);
    edit_post(&mut browser, &page);
    see(&mut browser, &page, EDITED);
    assert_eq!(browser.take_faults(), [""; 0]);
    drop(browser);

    let client = Client {
        port: configuration.port,
        host: HOST,
    };
    let picture = path_of(&picture.1);
    let ours = walk(&client, &steps(&client, &picture));
    drop(tidegate);
    let nginx = configuration.start_nginx();
    let theirs = walk(&client, &steps(&client, &picture));
    drop(nginx);
    assert_alike(&ours, &theirs, &SECRETS);
    configuration.use_io_uring();
    let tidegate = configuration.start_tidegate();
    let on_io_uring = walk(&client, &steps(&client, &picture));
    drop(tidegate);
    assert_alike(&on_io_uring, &theirs, &SECRETS);
    configuration.assert_calm();
}

fn path_of(address: &str) -> String {
    let path = address
        .strip_prefix("http://")
        .and_then(|rest| Some(rest.split_once('/')?.1));
    format!("/{}", path.expect(address))
}

/// What is asked for over HTTP, by visitors and by the author.
fn steps(client: &Client, picture: &str) -> Vec<(Request, u16, &'static str)> {
    let form = [("log", USER), ("pwd", PASSWORD), ("testcookie", "1")];
    let log_in = Request::post("/wp-login.php", &form)
        .with("Cookie", "wordpress_test_cookie=WP+Cookie+check");
    let cookies = client.ask(&log_in).cookies();
    let author = |request: Request| request.with("Cookie", &cookies);
    let admin = client.ask(&author(Request::get("/wp-admin/post-new.php")));
    let nonce = admin.between("createNonceMiddleware( \"", "\"");
    let etag = client
        .get(picture)
        .header("ETag")
        .unwrap_or_default()
        .to_owned();
    let large = vec![b'x'; 11_000_000];
    vec![
        (Request::get("/"), 200, EDITED),
        (Request::get("/the-tide-comes-in/"), 200, TEXT),
        (Request::get("/the-tide-comes-in"), 301, ""),
        (Request::get("/?p=1"), 301, ""),
        (Request::get("/index.php/the-tide-comes-in/"), 301, ""),
        (Request::get("/?s=tide"), 200, EDITED),
        (Request::get("/feed/"), 200, "<rss"),
        (Request::head("/the-tide-comes-in/"), 200, ""),
        (Request::get("/nothing-here/"), 404, ""),
        (Request::get("/missing.php"), 404, ""),
        (Request::get("/missing.css"), 404, ""),
        (Request::get("/robots.txt"), 200, "Disallow: /wp-admin/"),
        (Request::get("/.htaccess"), 403, ""),
        (Request::get("/wp-content/uploads/evil.php"), 403, ""),
        (Request::get("/wp-admin"), 301, ""),
        (Request::get("/wp-admin/"), 302, ""),
        (
            Request::get("/wp-includes/css/dashicons.min.css"),
            200,
            ".dashicons",
        ),
        (Request::get("/wp-json/wp/v2/posts"), 200, EDITED),
        (Request::get(picture), 200, "PNG"),
        (Request::get(picture).with("Range", "bytes=1-3"), 206, "PNG"),
        (Request::get(picture).with("If-None-Match", &etag), 304, ""),
        (log_in, 302, ""),
        (
            Request::post("/wp-login.php", &[("log", USER), ("pwd", "wrong")]),
            200,
            "password you entered",
        ),
        (
            author(Request::get("/wp-admin/options-reading.php")),
            200,
            "Reading Settings",
        ),
        (
            author(Request::upload(
                "/wp-json/wp/v2/media",
                &[("title", "walked")],
                ("file", "walked.png", &picture::png()),
            ))
            .with("X-WP-Nonce", &nonce),
            201,
            "walked",
        ),
        (
            author(Request::upload(
                "/wp-admin/async-upload.php",
                &[],
                ("async-upload", "large.png", &large),
            )),
            413,
            "",
        ),
        (Request::post("/wp-cron.php?doing_wp_cron", &[]), 200, ""),
    ]
}

fn set_up(browser: &mut Browser, database: &MariaDb) {
    browser.open(&format!("http://{HOST}/"));
    browser.wait("location.pathname == '/wp-admin/setup-config.php'");
    browser.press_and_leave("a.button");
    let host = format!("localhost:{}", database.socket.display());
    browser.fill(&[
        ("#dbname", DATABASE),
        ("#uname", DATABASE),
        ("#pwd", DATABASE),
        ("#dbhost", &host),
    ]);
    browser.press_and_leave("input[type=submit]");
    browser.press_and_leave("a.button");
    browser.fill(&[
        ("#weblog_title", TITLE),
        ("#user_login", USER),
        ("#pass1", PASSWORD),
        ("#admin_email", "keeper@example.com"),
    ]);
    browser.press_and_leave("#submit");
    browser.wait_for_text("WordPress has been installed");
    assert_eq!(browser.take_faults(), [""; 0]);
}

fn log_in(browser: &mut Browser) {
    browser.press_and_leave("a.button");
    browser.fill(&[("#user_login", USER), ("#user_pass", PASSWORD)]);
    browser.press_and_leave("#wp-submit");
    browser.wait("location.pathname == '/wp-admin/'");
    browser.wait_for_text("Dashboard");
    browser.screenshot("wordpress-dashboard");
}

fn choose_permalinks(browser: &mut Browser) {
    browser.open(&format!("http://{HOST}/wp-admin/options-permalink.php"));
    browser.press("input[name=selection][value='/%postname%/']");
    browser.press_and_leave("#submit");
    browser.wait_for_text("Permalink structure updated.");
}

/// Uploads a picture: its number and its address.
fn upload(browser: &mut Browser, picture: &Path) -> (String, String) {
    browser.open(&format!(
        "http://{HOST}/wp-admin/media-new.php?browser-uploader"
    ));
    browser.choose_file("#async-upload", picture);
    browser.press_and_leave("#html-upload");
    browser.wait("document.querySelector('.attachment img')?.naturalWidth > 0");
    browser.screenshot("wordpress-media");
    let number = browser.evaluate("document.querySelector('.attachment').dataset.id");
    let shown = browser.evaluate("document.querySelector('.attachment img').src");
    let (shown, number) = (shown.as_str().unwrap(), number.as_str().unwrap());
    // The list shows one that WordPress has made smaller.
    let (address, _) = shown.rsplit_once("-300x").expect(shown);
    (number.to_owned(), format!("{address}.png"))
}

/// Writes a post with a picture in the block editor, and publishes it: where it stands.
fn write_post(browser: &mut Browser, (number, picture): &(String, String)) -> String {
    browser.open(&format!("http://{HOST}/wp-admin/post-new.php"));
    close_welcome(browser);
    browser.fill(&[(".editor-post-title__input", HEADING)]);
    browser.press_enter();
    browser.wait("document.activeElement.matches('[data-type=\"core/paragraph\"]')");
    browser.write(TEXT);
    browser.wait(&format!(
        "document.querySelector('[data-type=\"core/paragraph\"]').textContent == {TEXT:?}"
    ));
    browser.evaluate(&format!(
        "wp.data.dispatch('core/block-editor').insertBlocks(wp.blocks.createBlock('core/image', {{id: {number}, url: '{picture}', alt: 'tide'}})).then(() => 0)"
    ));
    browser.wait("document.querySelector('[data-type=\"core/image\"] img')?.naturalWidth > 0");
    browser.screenshot("wordpress-editor");
    browser.press(".editor-post-publish-panel__toggle");
    browser.press(".editor-post-publish-button");
    browser.wait("document.querySelector('.post-publish-panel__postpublish')");
    let page = browser.evaluate("wp.data.select('core/editor').getPermalink()");
    page.as_str().unwrap().to_owned()
}

/// The editor greets those who see it for the first time.
fn close_welcome(browser: &mut Browser) {
    browser.wait("document.querySelector('.editor-post-title__input')");
    browser.evaluate(
        "new Promise(done => { const dispatch = wp.data.dispatch('core/preferences'); dispatch.set('core/edit-post', 'welcomeGuide', false); done(0); })",
    );
    browser.wait("!document.querySelector('.edit-post-welcome-guide')");
}

/// Adds to the post, as its author does who has come back.
fn edit_post(browser: &mut Browser, page: &str) {
    browser.open(page);
    browser.press_and_leave("#wp-admin-bar-edit a");
    browser.wait("document.querySelector('[data-type=\"core/image\"] img')?.naturalWidth > 0");
    browser.fill(&[(".editor-post-title__input", EDITED)]);
    browser.press(".editor-post-publish-button");
    browser.wait_for_text("Post updated.");
}

fn see(browser: &mut Browser, page: &str, heading: &str) {
    browser.open(page);
    browser.wait_for_text(heading);
    browser.wait_for_text(TEXT);
    // The browser takes the size that fits.
    browser.wait("document.querySelector('.wp-block-image img')?.naturalWidth > 0");
    browser.screenshot("wordpress-page");
}
