//! A large configuration: ten thousand servers with a location each load. How long that takes is
//! measured by benches/load_configuration, not here.

use std::fmt::Write;
use std::process::Command;

const SERVERS: usize = 10_000;

#[test]
fn ten_thousand_servers_load() {
    let name = format!("tidegate-servers-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut text = String::from("events {}\npid nginx.pid;\nhttp {\naccess_log off;\n");
    for number in 0..SERVERS {
        let _ = writeln!(
            text,
            "server {{ listen unix:socket; server_name s{number}.example.org; \
             location /files/ {{ root /srv/{number}; }} }}"
        );
    }
    // The last server shows that all of them were read.
    text.push_str("server { listen unix:socket; server_name s9999.example.org; }\n}\n");
    let text = text.replace("unix:socket", &format!("unix:{}/socket", folder.display()));
    std::fs::write(folder.join("nginx.conf"), text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("-p")
        .arg(&folder)
        .args(["-c", "nginx.conf", "-e", "error.log", "-t"])
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    let warnings: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("[warn]"))
        .collect();
    assert_eq!(warnings.len(), 1, "{printed}");
    assert!(warnings[0].contains("conflicting server name \"s9999.example.org\""));
}
