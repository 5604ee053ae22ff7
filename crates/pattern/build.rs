//! Sees to it that PCRE2 is the one that is pinned: `pcre2-sys` would otherwise link the system's.

fn main() {
    println!("cargo:rerun-if-env-changed=PCRE2_SYS_STATIC");
    let pinned = std::env::var("PCRE2_SYS_STATIC").is_ok_and(|value| value == "1");
    assert!(
        pinned,
        "PCRE2_SYS_STATIC=1 is missing: build within the workspace (its .cargo/config.toml sets it), or set it"
    );
}
