//! Chromium as a client.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::Server;

/// Whether it is installed; a line says so where it is not.
pub fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join("chromium").is_file());
    if !found {
        eprintln!("skipped: no chromium here (tests/install-packages)");
    }
    found
}

/// What it makes of a page, as HTML; `None`, and a line that says so, where it is missing.
///
/// # Panics
/// Where it shows no page.
pub fn show(server: &Server, url: &str) -> Option<String> {
    // One at a time: tests look at when a browser asks for what.
    static ONE: Mutex<()> = Mutex::new(());
    if !is_there() {
        return None;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let profile = format!(
        "--user-data-dir={}",
        server.prefix.join("profile").display()
    );
    let output = Command::new("timeout")
        .args([
            "300",
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args([
            "--no-proxy-server",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        // The certificate vouches for itself. What the browser checks of the handshake stays
        // checked.
        .args([
            "--disable-background-networking",
            "--ignore-certificate-errors",
        ])
        .args([&*profile, "--dump-dom", url])
        .env("HOME", &server.prefix)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(page.contains("<html"), "{page}\n{said}");
    Some(page)
}
