//! The environment of programs that a master starts: as with nginx, the variables of `env` and the
//! time zone, and nothing else.

use std::process::Command;

/// Sets a command's environment to the lines of `env`, each `NAME` or `NAME=VALUE`.
pub(crate) fn give(command: &mut Command, lines: &[String]) {
    command.env_clear();
    let zone = "TZ".to_owned();
    let has_zone = lines.iter().any(|line| names(line, &zone));
    for line in lines.iter().chain((!has_zone).then_some(&zone)) {
        match line.split_once('=') {
            Some((name, value)) => command.env(name, value),
            None => command.envs(std::env::var_os(line).map(|value| (line, value))),
        };
    }
}

/// Whether a line of `env` is about this variable.
fn names(line: &str, variable: &str) -> bool {
    line.split_once('=').map_or(line, |(name, _)| name) == variable
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of env(1) when started with these lines.
    fn given(lines: &[&str]) -> Vec<String> {
        let mut command = Command::new("/usr/bin/env");
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        give(&mut command, &lines);
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut printed: Vec<String> = output.lines().map(str::to_owned).collect();
        printed.retain(|line| std::env::var_os("TZ").is_none() || !line.starts_with("TZ="));
        printed.sort();
        printed
    }

    #[test]
    fn what_is_let_through_is_all() {
        let path = format!("PATH={}", std::env::var("PATH").unwrap());
        assert_eq!(given(&[]), [""; 0]);
        assert_eq!(given(&["PATH", "NO_SUCH_VARIABLE"]), [path.as_str()]);
        assert_eq!(given(&["PATH=/x=y", "B="]), ["B=", "PATH=/x=y"]);
    }
}
