//! A Rack application under Puma.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::picture;
use super::process::Process;
use super::site::{Configuration, Folder, documented, give_to, is_root};
use super::walk::{Client, Request, assert_alike, assert_streamed, walk};

/// What begins a value that is new for each page.
const SECRETS: [&str; 1] = ["name=\"authenticity_token\" value=\""];

#[test]
fn sinatra_answers_under_puma() {
    let documented = documented("application-servers.md", "Rack", 0);
    let away = "<h1>The application is away</h1>";
    served_by(
        "sinatra",
        "app.example.com",
        &documented,
        "/srv/myapp",
        away,
    );
}

#[test]
fn sinatra_answers_by_pumas_own_example() {
    let example = include_str!("../sites/rails-puma.conf");
    served_by("puma", "myapp.com", example, "/srv/site", "502 Bad Gateway");
}

/// Tries a configuration whose application is in the folder `place`; without it, the page says
/// `away`.
fn served_by(name: &str, host: &'static str, blocks: &str, place: &str, away: &str) {
    let folder = Folder::new(name);
    let application = folder.0.join("myapp");
    lay_out(&application);
    let socket = application.join("tmp/puma.sock");
    let mut puma = start_puma(&folder.0, &application, &socket);
    puma.wait_for_socket(&socket);
    let configuration = Configuration::new(&folder.0);
    configuration.write(blocks, &[(place, &application.display().to_string())]);
    let client = Client {
        port: configuration.port,
        host,
    };
    let take = || {
        let answers = walk(&client, &steps(&client));
        assert_streamed(&client, "/stream", &application.join("go"));
        answers
    };
    let tidegate = configuration.start_tidegate();
    let ours = take();
    drop(tidegate);
    let nginx = configuration.start_nginx();
    let theirs = take();
    drop(nginx);
    assert_alike(&ours, &theirs, &SECRETS);
    configuration.use_io_uring();
    let tidegate = configuration.start_tidegate();
    let on_io_uring = take();
    assert_alike(&on_io_uring, &theirs, &SECRETS);
    configuration.assert_calm();
    drop(puma);
    let answer = client.get("/");
    assert!(
        answer.status == 502 && answer.text().contains(away),
        "{answer:?}"
    );
    drop(tidegate);
}

fn lay_out(application: &Path) {
    for name in ["public/about", "tmp"] {
        fs::create_dir_all(application.join(name)).unwrap();
    }
    let write = |name: &str, text: &str| fs::write(application.join(name), text).unwrap();
    write("app.rb", include_str!("programs/sinatra.rb"));
    write(
        "config.ru",
        "require_relative \"app\"\nrun Sinatra::Application\n",
    );
    write("public/style.css", "p { color: navy }\n");
    write("public/about/index.html", "<h1>About</h1>\n");
    write("public/500.html", "<h1>The application is away</h1>\n");
    if is_root() {
        give_to("www-data", application);
    }
}

fn start_puma(folder: &Path, application: &Path, socket: &Path) -> Process {
    let mut command = Command::new("puma");
    command
        .arg("--bind")
        .arg(format!("unix://{}?umask=0111", socket.display()));
    command.args([
        "--threads",
        "2:4",
        "--environment",
        "production",
        "config.ru",
    ]);
    Process::start(command.current_dir(application), "puma", folder)
}

fn steps(client: &Client) -> Vec<(Request, u16, &'static str)> {
    let form = client.get("/form");
    let token = form.between("name=\"authenticity_token\" value=\"", "\"");
    let token = ("authenticity_token", &*token);
    let session = form.cookies();
    let with_token = |request: Request| request.with("Cookie", &session);
    let visitor = client.get("/").cookies();
    let picture = picture::png();
    let sinatra = match client.host {
        "app.example.com" => "visit 1 of http://app.example.com/?a=b%20c for 127.0.0.1",
        _ => "visit 1 of http://myapp.com/?a=b%20c for 127.0.0.1",
    };
    let too_large = if client.host == "app.example.com" {
        201
    } else {
        413
    };
    vec![
        (Request::get("/?a=b%20c"), 200, sinatra),
        (
            Request::get("/").with("Cookie", &visitor),
            200,
            "visit 2 of",
        ),
        (Request::head("/"), 200, ""),
        (
            with_token(Request::post("/form", &[token, ("name", "a & b")])),
            201,
            "thank you, a & b",
        ),
        (
            Request::post("/form", &[token, ("name", "a")]),
            403,
            "Forbidden",
        ),
        // Puma's example leaves the limit as it is, at 1 MB.
        (
            with_token(Request::upload(
                "/upload",
                &[token],
                ("file", "tide.png", &picture),
            )),
            too_large,
            "",
        ),
        (
            with_token(Request::upload(
                "/upload",
                &[token],
                ("file", "small.png", b"PNG"),
            )),
            201,
            "small.png 3",
        ),
        (Request::get("/style.css"), 200, "navy"),
        (
            Request::get("/style.css").with("Range", "bytes=0-0"),
            206,
            "p",
        ),
        (Request::get("/about"), 200, "<h1>About</h1>"),
        (Request::get("/nothing"), 404, "nothing of that name"),
        (Request::get("/broken"), 500, "something is broken"),
        (Request::post("/style.css", &[]), 405, ""),
    ]
}
