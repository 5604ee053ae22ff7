//! The build for use: made twice, the second time by what the first has counted under the traffic
//! of [`training`].
//!
//! Between two requests the kernel's own way through the network leaves little of the program in
//! the processor's first cache, so that most of the time that a request takes in the program goes
//! into fetching instructions. A compiler that knows which way branches go lays those out one
//! behind the other and everything that is rare elsewhere: rustc's profile-guided optimization,
//! <https://doc.rust-lang.org/rustc/profile-guided-optimization.html>. What it gains is in
//! docs/decisions/release.md.

pub mod training;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Requests of each of the larger loads.
const REQUESTS: u32 = 8000;

const USAGE: &str = "usage: xtask release

Builds target/release/tidegate: a build that counts, under traffic of its own on 127.0.0.1, then the one that uses what was counted.";

/// Builds it.
///
/// # Errors
/// What has failed, in words for the terminal.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err(USAGE.to_string());
    }
    let root = crate::repository();
    let compiler = Compiler::find()?;
    let folder = root.join("target/training");
    // What an earlier build has counted says nothing of this one.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let counts = folder.join("counts");
    fs::create_dir_all(&counts).map_err(|error| format!("{}: {error}", counts.display()))?;

    say("a build that counts");
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counting = compiler.build(&root, &flag)?;
    say("its traffic");
    training::run(&root, &counting, &folder, REQUESTS)?;
    let profile = folder.join("profile.profdata");
    compiler.merge(&counts, &profile)?;
    say("the build that uses what was counted");
    let built = compiler.build(&root, &format!("-Cprofile-use={}", profile.display()))?;

    let place = root.join("target/release/tidegate");
    fs::create_dir_all(root.join("target/release")).map_err(|error| error.to_string())?;
    // Another file, so that one that runs goes on.
    let beside = place.with_extension("new");
    fs::copy(&built, &beside)
        .and_then(|_| fs::rename(&beside, &place))
        .map_err(|error| format!("{}: {error}", place.display()))?;
    println!("{}", place.display());
    Ok(())
}

/// Says on standard error what is done next.
fn say(step: &str) {
    eprintln!("release: {step}");
}

/// The compiler that builds everything here.
struct Compiler {
    /// What it builds for where nothing else is said.
    host: String,
    /// Its tool that reads what was counted.
    merger: PathBuf,
}

impl Compiler {
    fn find() -> Result<Compiler, String> {
        let version = output(Command::new("rustc").arg("-vV"))?;
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .ok_or("rustc -vV names no host")?
            .to_string();
        let root = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let merger = Path::new(root.trim())
            .join("lib/rustlib")
            .join(&host)
            .join("bin/llvm-profdata");
        if !merger.is_file() {
            // Nothing else needs it, so that it is not among the components of rust-toolchain.toml.
            succeed(Command::new("rustup").args(["component", "add", "llvm-tools"]))?;
        }
        if merger.is_file() {
            Ok(Compiler { host, merger })
        } else {
            Err(format!(
                "{} is missing: rustup component add llvm-tools",
                merger.display()
            ))
        }
    }

    /// Builds the program with a flag more. The target is named so that what cargo runs while it
    /// builds is spared the flag.
    fn build(&self, root: &Path, flag: &str) -> Result<PathBuf, String> {
        let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        flags = format!("{flags} {flag}");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--release", "--bin", "tidegate", "--target"])
            .arg(&self.host)
            .env("RUSTFLAGS", flags.trim())
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .current_dir(root);
        succeed(&mut command)?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| root.join("target"));
        Ok(target.join(&self.host).join("release/tidegate"))
    }

    fn merge(&self, counts: &Path, profile: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.merger);
        command.arg("merge").arg("-o").arg(profile).arg(counts);
        succeed(&mut command)
    }
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", named(command)))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{} has failed: {}", named(command), output.status))
    }
}

/// Runs a command to its end.
fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", named(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} has failed: {status}", named(command)))
    }
}

fn named(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
