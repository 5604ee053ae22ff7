//! A MariaDB of the test's own: its data in a folder, one database, a Unix socket and no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::Process;
use super::site::{give_to, is_root};

/// The database, its user and that user's password.
pub(crate) const DATABASE: &str = "application";

pub(crate) struct MariaDb {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    _process: Process,
}

impl MariaDb {
    /// Makes the data and starts the server in `folder`, which exists.
    pub(crate) fn start(folder: &Path) -> MariaDb {
        let folder = folder.join("mariadb");
        fs::create_dir_all(&folder).unwrap();
        let data = folder.join("data");
        let socket = folder.join("socket");
        // The server refuses to be root.
        let user: &[&str] = if is_root() { &["--user=mysql"] } else { &[] };
        if is_root() {
            give_to("mysql", &folder);
        }
        let data = format!("--datadir={}", data.display());
        let made = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", &data])
            .args(user)
            .output()
            .unwrap_or_else(|error| {
                panic!("mariadb-install-db: {error}; the Debian package mariadb-server has it (tests/install-packages)")
            });
        assert!(
            made.status.success(),
            "mariadb-install-db: {}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );
        let first = folder.join("first.sql");
        let lines = format!(
            "CREATE DATABASE {DATABASE};\nCREATE USER {DATABASE}@localhost IDENTIFIED BY '{DATABASE}';\n\
             GRANT ALL ON {DATABASE}.* TO {DATABASE}@localhost;\n"
        );
        fs::write(&first, lines).unwrap();
        let mut command = Command::new("/usr/sbin/mariadbd");
        command.args(["--no-defaults", "--skip-networking", &data]);
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--init-file={}", first.display()));
        // Nothing of it outlives the test.
        command.args([
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
        ]);
        let mut process = Process::start(command.args(user), "mariadb", &folder);
        process.wait_for_socket(&socket);
        MariaDb {
            socket,
            _process: process,
        }
    }
}
