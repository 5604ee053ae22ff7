//! `--password`: a name and a password, in a file that `auth_basic_user_file` reads.
//!
//! Every user of a machine can see the arguments of every process. So a password among them is
//! moved to the environment, which only its owner can see, by starting this program again in the
//! place of itself. In the file it is written as a digest, since a colon would end it there; that
//! needs no costly hash, because the file is as private as the process, and gone with it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use proto::base64;
use sha1::{Digest, Sha1};

/// The environment variable that holds a password.
const VARIABLE: &str = "TIDEGATE_PASSWORD";

/// Who may come in.
pub(super) struct UserPassword {
    user: String,
    password: String,
}

/// What `--password` says. Does not return where that was the password itself: then the program
/// starts again and finds it in the environment.
pub(super) fn credentials(argument: &str) -> Result<UserPassword, String> {
    if let Some((user, password)) = argument.split_once(':') {
        return Err(start_again(argument, user, password));
    }
    let user = argument.to_owned();
    let password = std::env::var(VARIABLE).map_err(|_| {
        format!("--password {user} takes the password from {VARIABLE}, which is not set")
    })?;
    if user.is_empty() || password.is_empty() {
        return Err("--password wants a name and a password".to_owned());
    }
    if user.starts_with('#') {
        // It would begin a comment in the file.
        return Err("--password takes no name that begins with #".to_owned());
    }
    if [&user, &password]
        .iter()
        .any(|text| text.contains(['\n', '\r', '\0']))
    {
        return Err("--password takes no line breaks".to_owned());
    }
    Ok(UserPassword { user, password })
}

/// A link in a folder of our own to a file of names and passwords: the directive would take `$` in
/// its own name for a variable. Its path.
pub(super) fn link(file: &Path, folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("users");
    std::os::unix::fs::symlink(file, &path).map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be made", path.display()), &error)
    })?;
    Ok(path)
}

/// Starts this program in the place of itself, with the password in the environment. Returns why
/// that failed.
fn start_again(argument: &str, user: &str, password: &str) -> String {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return process::log::failure("this program was not found", &error),
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments = arguments.map(|text| without_password(text, argument, user));
    let error = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, password)
        .exec();
    process::log::failure("this program could not be started again", &error)
}

/// An argument in which the password, if it is there, has been left out.
fn without_password(argument: OsString, secret: &str, user: &str) -> OsString {
    match argument.to_str() {
        Some(text) if text == secret => user.into(),
        Some(text) if text.strip_prefix("--password=") == Some(secret) => {
            format!("--password={user}").into()
        }
        _ => argument,
    }
}

impl UserPassword {
    /// The line of the file.
    fn line(&self) -> Vec<u8> {
        let mut line = format!("{}:{{SHA}}", self.user).into_bytes();
        base64::encode(&Sha1::digest(&self.password), &mut line);
        line.push(b'\n');
        line
    }

    /// Writes the file, into a folder of our own, for a reader of this number (else for
    /// ourselves). Its path.
    pub(super) fn write(&self, folder: &Path, reader: Option<u32>) -> Result<PathBuf, String> {
        let path = folder.join("users");
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&self.line()))
            .and_then(|()| match reader {
                Some(user) => std::os::unix::fs::chown(&path, Some(user), None),
                None => Ok(()),
            });
        written.map_err(|error| {
            process::log::failure(&format!("\"{}\" cannot be written", path.display()), &error)
        })?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_leaves_the_arguments_in_whatever_form_it_came() {
        for (argument, expected) in [
            ("ann:secret", "ann"),
            ("--password=ann:secret", "--password=ann"),
            ("--password", "--password"),
            ("serve", "serve"),
            ("ann:secret2", "ann:secret2"),
        ] {
            assert_eq!(
                without_password(argument.into(), "ann:secret", "ann"),
                OsString::from(expected)
            );
        }
    }
}
