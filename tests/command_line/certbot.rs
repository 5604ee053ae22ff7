//! certbot with its plugin for nginx, which knows nothing of Tidegate: it asks the program for its
//! version, reads the configuration, writes a certificate into it and has the server reload.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use support::master::{Master, wait_for};
use support::port::free_port;
use support::tls;

#[test]
fn certbot_finds_edits_and_reloads() {
    let program = std::env::var_os("CERTBOT").unwrap_or_else(|| "certbot".into());
    if Command::new(&program).arg("--version").output().is_err() {
        eprintln!("skipped: no certbot here");
        return;
    }
    let (port, secure_port) = (free_port(), free_port());
    let mut master = Master::new();
    for name in ["etc", "www"] {
        fs::create_dir(master.folder.join(name)).unwrap();
    }
    let nginx = master.folder.join("nginx");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &nginx).unwrap();
    master.use_program(nginx.clone());
    let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    master.configure(&format!(
        "events {{}}\nhttp {{\naccess_log off;\nserver {{\nlisten 127.0.0.1:{port};\n\
         listen 127.0.0.1:{secure_port} ssl;\nserver_name example.test;\nroot @/www;\n\
         ssl_certificate {certificates}/rsa.crt;\nssl_certificate_key {certificates}/rsa.key;\n}}\n}}"
    ));
    // certbot looks for `nginx.conf` in a folder of its own.
    let conf = master.folder.join("etc/nginx.conf");
    fs::rename(master.folder.join("nginx.conf"), &conf).unwrap();
    symlink(&conf, master.folder.join("nginx.conf")).unwrap();
    master.start();
    let shown = || {
        let connection = tls::Client::new().connect(secure_port).unwrap();
        connection.certificate()
    };
    let certificate = |name: &str| tls::certificate(&format!("{certificates}/{name}.crt"));
    wait_for("listener", || {
        tls::Client::new().connect(secure_port).is_ok()
    });
    assert_eq!(shown(), certificate("rsa"));
    let at = |name: &str| master.folder.join(name);
    let output = Command::new(&program)
        .args([
            "install",
            "--nginx",
            "--non-interactive",
            "--no-redirect",
            "-d",
            "example.test",
        ])
        .arg("--nginx-ctl")
        .arg(&nginx)
        .arg("--nginx-server-root")
        .arg(at("etc"))
        .args(["--cert-path", &format!("{certificates}/ecdsa.crt")])
        .args(["--fullchain-path", &format!("{certificates}/ecdsa.crt")])
        .args(["--key-path", &format!("{certificates}/ecdsa.key")])
        .arg("--config-dir")
        .arg(at("certbot"))
        .arg("--work-dir")
        .arg(at("work"))
        .arg("--logs-dir")
        .arg(at("logs"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&conf).unwrap();
    assert!(text.contains("ecdsa.crt; # managed by Certbot"), "{text}");
    wait_for("new certificate", || shown() == certificate("ecdsa"));
    master.signal("QUIT");
    assert!(master.wait().success());
}
