//! `--password`: a name and a password, stored in a file for `auth_basic_user_file`.
//!
//! Every user of a machine can see the arguments of every process. So this program executes itself
//! again with the password in the environment, which only the process's owner can see. In the file
//! the password is stored as a digest, since a colon would end it there. No slow hash is needed,
//! because the file is as private as the process and removed with it.

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

/// A user's name and password.
pub(super) struct UserPassword {
    user: String,
    password: String,
}

/// Parses the argument of `--password`. If the argument contains the password itself, this function
/// does not return: the program is executed again and finds the password in the environment.
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
        // A `#` would start a comment in the file.
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

/// Creates a link in the private folder to a file of names and passwords, since the directive would
/// take a `$` in the file's name for a variable. Returns the path of the link.
pub(super) fn link(file: &Path, folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("users");
    std::os::unix::fs::symlink(file, &path).map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be made", path.display()), &error)
    })?;
    Ok(path)
}

/// Executes this program again with the password in the environment. Returns the error if that
/// fails.
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

/// An argument with the password removed, if it contains the password.
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

    /// Writes the file into the private folder, readable for the user with this id, or else for the
    /// user of this process. Returns its path.
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
