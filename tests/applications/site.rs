//! What sites have in common: a folder, the application's files, php-fpm, and a server by a page's
//! configuration.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::port::free_port;

use super::process::Process;

/// Files that Debian's nginx brings, as configurations include them.
const INCLUDED: [&str; 3] = ["fastcgi_params", "uwsgi_params", "mime.types"];

/// A folder that ends with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("tidegate-applications-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether the test runs as root; then applications run as `www-data`, and otherwise as the caller.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a user the owner of a folder and all that is in it.
pub(crate) fn give_to(user: &str, path: &Path) {
    run(Command::new("chown").args(["-R", user]).arg(path));
}

/// Copies a folder of a Debian package, with what its links lead to; without what only root may
/// read, where the caller is not root.
pub(crate) fn copy(from: &str, to: &Path) {
    assert!(
        Path::new(from).exists(),
        "{from} is missing: tests/install-packages installs the package that has it"
    );
    let mut copy = Command::new("cp");
    copy.args(["-RL", "--no-preserve=ownership", from]).arg(to);
    if is_root() {
        return run(&mut copy);
    }
    let said = copy.output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    let is_meant = |line: &str| line.ends_with(": Permission denied");
    assert!(said.lines().all(is_meant), "{from}: {said}");
}

/// Runs a program to its end, which is a good one.
pub(crate) fn run(command: &mut Command) {
    let output = command.output();
    let output = output
        .unwrap_or_else(|error| panic!("{command:?}: {error}; tests/install-packages installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A pool of php-fpm for the site in a folder, with further lines; its socket is `php.sock` there.
pub(crate) fn start_php(folder: &Path, lines: &str) -> Process {
    let socket = folder.join("php.sock");
    let (user, root) = if is_root() {
        ("user = www-data\ngroup = www-data\n", "-R")
    } else {
        ("", "")
    };
    let path = folder.display();
    let pool = format!(
        "[global]\nerror_log = {path}/php.log\ndaemonize = no\n[www]\n{user}listen = {socket}\nlisten.mode = 0666\n\
         pm = static\npm.max_children = 4\ncatch_workers_output = yes\n\
         php_admin_value[upload_max_filesize] = 8M\nphp_admin_value[post_max_size] = 10M\n\
         php_admin_value[upload_tmp_dir] = {path}/www\nphp_admin_value[session.save_path] = {path}/sessions\n\
         php_admin_value[sendmail_path] = /bin/true\nphp_admin_flag[log_errors] = on\n{lines}\n",
        socket = socket.display()
    );
    let sessions = folder.join("sessions");
    fs::create_dir_all(&sessions).unwrap();
    if is_root() {
        give_to("www-data", &sessions);
    }
    fs::write(folder.join("php.conf"), pool).unwrap();
    let mut command = Command::new(support::php::program());
    command.args(["-F", "-y"]).arg(folder.join("php.conf"));
    if !root.is_empty() {
        command.arg(root);
    }
    let mut process = Process::start(&mut command, "php-fpm", folder);
    process.wait_for_socket(&socket);
    process
}

/// A block of a page of docs: the `number`th configuration (from 0) below a heading.
pub(crate) fn documented(page: &str, heading: &str, number: usize) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let text = fs::read_to_string(&path).unwrap();
    let section = text
        .split("\n## ")
        .find(|section| section.starts_with(heading))
        .unwrap_or_else(|| panic!("{page} has no heading {heading}"));
    let blocks = section.split("```nginx").skip(1);
    let block = blocks.filter_map(|rest| Some(rest.split_once('\n')?.1.split_once("```")?.0));
    let mut blocks = block.skip(number);
    let block = blocks.next();
    block
        .unwrap_or_else(|| panic!("{page} has no configuration {number} below {heading}"))
        .to_owned()
}

/// A configuration file in a folder, and the port that it names. Whatever program reads it, it is
/// the same file.
pub(crate) struct Configuration {
    folder: PathBuf,
    /// Where a server by it listens on 127.0.0.1.
    pub(crate) port: u16,
}

impl Configuration {
    /// For the site in `folder`.
    pub(crate) fn new(folder: &Path) -> Configuration {
        for name in INCLUDED {
            let from = Path::new("/etc/nginx").join(name);
            fs::copy(&from, folder.join(name)).unwrap_or_else(|error| {
                panic!("{from:?}: {error}; the Debian package nginx-common has it")
            });
        }
        fs::create_dir_all(folder.join("logs")).unwrap();
        Configuration {
            folder: folder.to_owned(),
            port: free_port(),
        }
    }

    /// Writes what a page documents into the block `http`, with other names for what `renamed`
    /// names.
    pub(crate) fn write(&self, documented: &str, renamed: &[(&str, &str)]) {
        let listen = format!("listen 127.0.0.1:{};", self.port);
        let mut blocks = documented.to_owned();
        for (name, other) in [&[("listen 80;", &*listen)], renamed].concat() {
            assert!(blocks.contains(name), "{name} is not in\n{blocks}");
            blocks = blocks.replace(name, other);
        }
        self.write_file(&blocks);
    }

    /// Lets Tidegate serve with the engine that it does not choose by itself.
    pub(crate) fn use_io_uring(&self) {
        let path = self.folder.join("nginx.conf");
        let text = fs::read_to_string(&path).unwrap();
        let events = "events { use io_uring; ";
        fs::write(path, text.replacen("events { ", events, 1)).unwrap();
    }

    fn write_file(&self, blocks: &str) {
        let user = if is_root() { "user www-data;\n" } else { "" };
        let text = format!(
            "{user}daemon off;\nworker_processes 1;\npid logs/nginx.pid;\nerror_log logs/error.log info;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n\
             include mime.types;\ndefault_type application/octet-stream;\nsendfile on;\naccess_log logs/access.log;\n\
             client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\n\
             uwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n{blocks}\n}}\n"
        );
        fs::write(self.folder.join("nginx.conf"), text).unwrap();
    }

    /// Lets Tidegate serve.
    pub(crate) fn start_tidegate(&self) -> Process {
        self.start(Path::new(env!("CARGO_BIN_EXE_tidegate")), "tidegate")
    }

    /// Lets the reference serve by the same file.
    pub(crate) fn start_nginx(&self) -> Process {
        let named = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
        let program = named.unwrap_or_else(|| "/usr/sbin/nginx".into());
        self.start(&program, "nginx")
    }

    fn start(&self, program: &Path, name: &str) -> Process {
        let mut command = Command::new(program);
        command.arg("-p").arg(&self.folder);
        command.args(["-c", "nginx.conf", "-e", "logs/error.log"]);
        let mut process = Process::start(&mut command, name, &self.folder);
        process.wait_until("a connection", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        process
    }

    /// Nothing that a server has logged is worse than an error.
    pub(crate) fn assert_calm(&self) {
        let log = fs::read_to_string(self.folder.join("logs/error.log")).unwrap();
        let grave = ["[crit]", "[alert]", "[emerg]", "panicked"];
        let is_grave = |line: &&str| grave.iter().any(|mark| line.contains(mark));
        let lines: Vec<&str> = log.lines().filter(is_grave).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }
}
