//! The release build with profile-guided optimization: an instrumented build counts executions
//! under the traffic of [`training`], and the second build uses the profile.
//!
//! Between two requests, the kernel's network code evicts most of the program from the first-level
//! instruction cache, so that instruction fetches dominate the program's time per request. A
//! compiler that knows the usual direction of branches places hot code in sequence and rare code
//! elsewhere: <https://doc.rust-lang.org/rustc/profile-guided-optimization.html>.
//! docs/decisions/release.md has the measured gain.

pub mod training;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of requests in each of the larger loads.
const REQUESTS: u32 = 8000;

const USAGE: &str = "usage: xtask release

Builds target/release/tidegate: a build that counts, under traffic of its own on 127.0.0.1, then the one that uses what was counted.";

/// Makes the release build.
///
/// # Errors
/// A message for the terminal.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err(USAGE.to_string());
    }
    let root = crate::repository();
    let compiler = Compiler::find()?;
    let folder = root.join("target/training");
    // Profiles of an earlier build must not be mixed with those of this one.
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
    // A new file is renamed over the old one, which may be running.
    let beside = place.with_extension("new");
    fs::copy(&built, &beside)
        .and_then(|_| fs::rename(&beside, &place))
        .map_err(|error| format!("{}: {error}", place.display()))?;
    println!("{}", place.display());
    Ok(())
}

/// Announces the next step on standard error.
fn say(step: &str) {
    eprintln!("release: {step}");
}

/// The installed Rust toolchain.
struct Compiler {
    /// The default target.
    host: String,
    /// The path of `llvm-profdata`, which merges profiles.
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
            // Not in rust-toolchain.toml, because only this build needs the component.
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

    /// Builds the program with an additional flag. The target is given explicitly, so that build
    /// scripts and procedural macros are built without the flag.
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

/// The standard output of a command.
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

/// Runs a command and checks that it succeeded.
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
