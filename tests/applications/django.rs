//! A project of Django under uWSGI.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::picture;
use super::process::Process;
use super::site::{Configuration, Folder, documented, give_to, is_root, run};
use super::walk::{Client, Request, assert_alike, assert_streamed, walk};

const HOST: &str = "shop.example.com";
const USER: &str = "keeper";
const PASSWORD: &str = "correct horse battery staple";
/// What begins a value that is new for each page.
const SECRETS: [&str; 1] = ["name=\"csrfmiddlewaretoken\" value=\""];

#[test]
fn django_answers_under_uwsgi() {
    let folder = Folder::new("django");
    let project = folder.0.join("mysite");
    make(&project);
    let mut uwsgi = start_uwsgi(&folder.0, &project);
    uwsgi.wait_for_socket(&project.join("mysite.sock"));
    let configuration = Configuration::new(&folder.0);
    configuration.write(
        &documented("application-servers.md", "uWSGI", 0),
        &[("/srv/mysite", &project.display().to_string())],
    );
    let client = Client {
        port: configuration.port,
        host: HOST,
    };
    let take = || {
        let answers = walk(&client, &steps(&client));
        assert_streamed(&client, "/stream/", &project.join("go"));
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
    drop(tidegate);
    assert_alike(&on_io_uring, &theirs, &SECRETS);
    configuration.assert_calm();
}

/// Makes a project as Django's tutorial does, with an administrator.
fn make(project: &Path) {
    fs::create_dir_all(project.join("media")).unwrap();
    let manage = |words: &[&str]| {
        // Debian's, whatever else there is.
        let mut command = Command::new("/usr/bin/python3");
        command.arg("manage.py").args(words).current_dir(project);
        run(command.env("DJANGO_SUPERUSER_PASSWORD", PASSWORD));
    };
    run(Command::new("/usr/bin/django-admin")
        .args(["startproject", "mysite", "."])
        .current_dir(project));
    let settings = project.join("mysite/settings.py");
    let made = fs::read_to_string(&settings).unwrap();
    let deployed = format!(
        "{made}\nDEBUG = False\nALLOWED_HOSTS = ['{HOST}']\nSTATIC_ROOT = BASE_DIR / 'static'\n\
         MEDIA_ROOT = BASE_DIR / 'media'\nMEDIA_URL = '/media/'\n"
    );
    fs::write(settings, deployed).unwrap();
    fs::write(
        project.join("mysite/urls.py"),
        include_str!("programs/django_urls.py"),
    )
    .unwrap();
    manage(&["migrate"]);
    manage(&["collectstatic", "--no-input"]);
    manage(&[
        "createsuperuser",
        "--no-input",
        "--username",
        USER,
        "--email",
        "keeper@example.com",
    ]);
    if is_root() {
        give_to("www-data", project);
    }
}

fn start_uwsgi(folder: &Path, project: &Path) -> Process {
    let mut command = Command::new("uwsgi-core");
    command.args([
        "--plugin",
        "python3",
        "--module",
        "mysite.wsgi",
        "--master",
        "--die-on-term",
    ]);
    command.args([
        "--processes",
        "2",
        "--socket",
        "mysite.sock",
        "--chmod-socket=666",
        "--chdir",
    ]);
    command.arg(project);
    if is_root() {
        command.args(["--uid", "www-data", "--gid", "www-data"]);
    }
    Process::start(&mut command, "uwsgi", folder)
}

fn steps(client: &Client) -> Vec<(Request, u16, &'static str)> {
    let form = client.get("/form/");
    let token = form.between("name=\"csrfmiddlewaretoken\" value=\"", "\"");
    let cookies = form.cookies();
    let with_token = |request: Request| request.with("Cookie", &cookies);
    let token = ("csrfmiddlewaretoken", &*token);
    let log_in = with_token(Request::post(
        "/admin/login/?next=/admin/",
        &[token, ("username", USER), ("password", PASSWORD)],
    ));
    let administrator = client.ask(&log_in).cookies();
    let visitor = client.get("/").cookies();
    let picture = picture::png();
    vec![
        (
            Request::get("/?a=b%20c"),
            200,
            "visit 1 of http://shop.example.com/?a=b%20c",
        ),
        (
            Request::get("/").with("Cookie", &visitor),
            200,
            "visit 2 of",
        ),
        (Request::head("/"), 200, ""),
        (Request::get("/form/"), 200, "csrfmiddlewaretoken"),
        (Request::get("/form"), 301, ""),
        (
            with_token(Request::post("/form/", &[token, ("name", "a & b")])),
            201,
            "thank you, a & b",
        ),
        (
            Request::post("/form/", &[token, ("name", "a")]),
            403,
            "Forbidden",
        ),
        (
            with_token(Request::upload(
                "/upload/",
                &[token],
                ("file", "tide.png", &picture),
            )),
            201,
            "tide.png",
        ),
        (Request::get("/media/tide.png"), 200, "PNG"),
        (
            Request::get("/media/tide.png").with("Range", "bytes=1-3"),
            206,
            "PNG",
        ),
        (Request::get("/static/admin/css/base.css"), 200, "body"),
        (Request::get("/static/none.css"), 404, ""),
        (log_in, 302, ""),
        (Request::get("/admin/"), 302, ""),
        (
            Request::get("/admin/").with("Cookie", &administrator),
            200,
            "Site administration",
        ),
        (
            Request::get("/admin/auth/user/").with("Cookie", &administrator),
            200,
            "keeper@example.com",
        ),
        (Request::get("/nothing/"), 404, "Not Found"),
        (Request::get("/broken/"), 500, "Server Error (500)"),
    ]
}
