//! The command line of the project's own tools: `cargo run -q -p xtask --
//! tidy|circles|judge|docs|release|sbom|floor|siege`.
//!
//! The tools themselves are in the library, so that `cargo test -p xtask` also runs the tidy test.

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: xtask COMMAND

  tidy                     what review would repeat: prints every finding, fails if there is one
  circles [CRATE]          which files of a crate import one another; with CRATE, every such import
  judge SUITE [options]    runs nginx's test suite, see `xtask judge --help`
  docs [--check]           writes the generated pages and plots, or says which is stale
  release                  builds target/release/tidegate by what a build before it has counted under traffic
  sbom                     prints the bill of materials, every crate of the program, as CycloneDX
  floor [options]          the cheapest server there can be, for the benches, see `xtask floor --help`
  siege [options]          users who ask more of a server than it can serve, for the benches, see `xtask siege --help`";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let result = match command.as_str() {
        "tidy" => tidy(),
        "circles" => circles(rest),
        "judge" => xtask::judge::run(rest),
        "docs" => xtask::docs::run(rest),
        "release" => xtask::release::run(rest),
        "sbom" => xtask::sbom::run(rest),
        "floor" => xtask::floor::run(rest),
        "siege" => xtask::siege::run(rest),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn tidy() -> Result<(), String> {
    let root: PathBuf = xtask::repository();
    let findings = xtask::tidy::findings(&root)?;
    for finding in &findings {
        println!("{finding}");
    }
    for one in xtask::circles::crates(&root)? {
        println!("{}", one.summary());
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} findings")),
    }
}

fn circles(arguments: &[String]) -> Result<(), String> {
    let crates = xtask::circles::crates(&xtask::repository())?;
    let Some(name) = arguments.first() else {
        crates.iter().for_each(|one| print!("{}", one.report()));
        return Ok(());
    };
    let found = crates.iter().find(|one| one.name == *name);
    let found = found.ok_or_else(|| format!("no crate is named {name}"))?;
    print!("{}{}", found.report(), found.knots());
    Ok(())
}
