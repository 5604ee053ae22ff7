//! `tidegate templates`: writes configuration files from templates with environment variables, as
//! nginx's image does at its start with `envsubst`.
//!
//! nginx's variables look the same (`$host`), so only names that exist in the environment are
//! replaced. All templates are read and expanded before the first file is written. The meaning of a
//! configuration is not considered here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pattern::Pattern;

use crate::failure::fail;

/// Write files of the configuration out of templates with variables of the environment
#[derive(clap::Args)]
#[command(
    after_help = "The variables NGINX_ENVSUBST_TEMPLATE_DIR, NGINX_ENVSUBST_OUTPUT_DIR, \
NGINX_ENVSUBST_TEMPLATE_SUFFIX and NGINX_ENVSUBST_FILTER of nginx's image say the same as the options."
)]
pub(crate) struct Arguments {
    /// Where the templates are, folders within it included
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// Where the files go
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// How the names of templates end; a file has the name without it
    #[arg(long, value_name = "TEXT")]
    suffix: Option<OsString>,
    /// Replace only variables whose names have a match of this pattern
    #[arg(long, value_name = "PATTERN")]
    filter: Option<OsString>,
}

/// The default paths, as in nginx's image.
const FROM: &str = "/etc/nginx/templates";
const TO: &str = "/etc/nginx/conf.d";
const SUFFIX: &str = ".template";

/// Writes the files and prints their names.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let said = |option: &Option<OsString>, name: &str, default: &str| {
        let option = option.clone().or_else(|| std::env::var_os(name));
        option
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| default.into())
    };
    let path = |option: &Option<PathBuf>| option.clone().map(PathBuf::into_os_string);
    let from = said(&path(&arguments.from), "NGINX_ENVSUBST_TEMPLATE_DIR", FROM);
    let to = said(&path(&arguments.to), "NGINX_ENVSUBST_OUTPUT_DIR", TO);
    let suffix = said(&arguments.suffix, "NGINX_ENVSUBST_TEMPLATE_SUFFIX", SUFFIX);
    let filter = said(&arguments.filter, "NGINX_ENVSUBST_FILTER", "");
    let variables = match variables(filter.as_bytes(), std::env::vars_os()) {
        Ok(variables) => variables,
        Err(text) => return fail(&text),
    };
    match write_all(
        Path::new(&from),
        Path::new(&to),
        suffix.as_bytes(),
        &variables,
    ) {
        Ok(written) => {
            for (template, file) in written {
                println!("{} -> {}", template.display(), file.display());
            }
            ExitCode::SUCCESS
        }
        Err(text) => fail(&text),
    }
}

type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

/// The environment variables whose names match the pattern.
fn variables(
    filter: &[u8],
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Variables, String> {
    let shown = String::from_utf8_lossy(filter);
    let pattern = Pattern::new(filter, false)
        .map_err(|refusal| format!("the filter \"{shown}\" is no pattern: {refusal}"))?;
    let mut variables = Variables::new();
    for (name, value) in all {
        let fits = pattern.is_match(name.as_bytes()).map_err(|_| {
            format!(
                "whether \"{}\" fits the filter \"{shown}\" takes too long",
                name.display()
            )
        })?;
        if fits {
            variables.insert(name.into_vec(), value.into_vec());
        }
    }
    Ok(variables)
}

/// Reads all templates, then writes all files. Returns each template with its file, in order.
fn write_all(
    from: &Path,
    to: &Path,
    suffix: &[u8],
    variables: &Variables,
) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let failed = |what: &str, path: &Path, error: &io::Error| {
        process::log::failure(&format!("\"{}\" cannot be {what}", path.display()), error)
    };
    let mut names = Vec::new();
    match find(from, Path::new(""), suffix, &mut names) {
        Ok(()) => {}
        // Most images have no templates, so a missing folder is no error.
        Err((path, error)) if error.kind() == io::ErrorKind::NotFound && path == from => {
            return Ok(Vec::new());
        }
        Err((path, error)) => return Err(failed("read", &path, &error)),
    }
    names.sort();
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let template = from.join(&name);
        let text = std::fs::read(&template).map_err(|error| failed("read", &template, &error))?;
        let bytes = name.into_os_string().into_vec();
        let file = bytes.strip_suffix(suffix).unwrap_or(&bytes).to_vec();
        let file = to.join(PathBuf::from(OsString::from_vec(file)));
        files.push((template, file, replaced(&text, variables)));
    }
    let mut written = Vec::with_capacity(files.len());
    for (template, file, text) in files {
        let folder = file.parent().unwrap_or(to);
        std::fs::create_dir_all(folder).map_err(|error| failed("made", folder, &error))?;
        std::fs::write(&file, text).map_err(|error| failed("written", &file, &error))?;
        written.push((template, file));
    }
    Ok(written)
}

/// The names of templates below a folder, following links. The error has the path that it concerns.
fn find(
    top: &Path,
    below: &Path,
    suffix: &[u8],
    names: &mut Vec<PathBuf>,
) -> Result<(), (PathBuf, io::Error)> {
    /// Limits the depth, since links may form a cycle.
    const DEPTH_MAX: usize = 32;

    let folder = top.join(below);
    let about = |error| (folder.clone(), error);
    if below.components().count() > DEPTH_MAX {
        return Err(about(io::Error::other(
            "too many folders within each other",
        )));
    }
    for entry in std::fs::read_dir(&folder).map_err(about)? {
        let name = below.join(entry.map_err(about)?.file_name());
        let path = top.join(&name);
        let found = std::fs::metadata(&path).map_err(|error| (path, error))?;
        if found.is_dir() {
            find(top, &name, suffix, names)?;
        } else if name.as_os_str().as_bytes().ends_with(suffix) {
            names.push(name);
        }
    }
    Ok(())
}

/// A text with `$NAME` and `${NAME}` replaced by the variables that exist.
fn replaced(text: &[u8], variables: &Variables) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        let (before, from) = rest.split_at(at);
        out.extend_from_slice(before);
        let (value, length) = match reference(from) {
            Some((name, length)) => (variables.get(name), length),
            None => (None, 1),
        };
        let (reference, after) = from.split_at(length);
        out.extend_from_slice(value.map_or(reference, Vec::as_slice));
        rest = after;
    }
    out.extend_from_slice(rest);
    out
}

/// The name of the variable that a text starts with, and the length of the whole reference with its
/// dollar sign and braces.
fn reference(text: &[u8]) -> Option<(&[u8], usize)> {
    let after = text.strip_prefix(b"$")?;
    let (name, braces) = match after.strip_prefix(b"{") {
        Some(name) => (name, 1),
        None => (after, 0),
    };
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = name.iter().take_while(|byte| is_part(byte)).count();
    let (name, after) = name.split_at(length);
    let begins_well = !name.first()?.is_ascii_digit();
    let ends_well = braces == 0 || after.starts_with(b"}");
    (begins_well && ends_well).then_some((name, 1 + length + 2 * braces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)], filter: &str) -> Variables {
        let all = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        variables(filter.as_bytes(), all).unwrap()
    }

    fn text(template: &str, variables: &Variables) -> String {
        String::from_utf8(replaced(template.as_bytes(), variables)).unwrap()
    }

    #[test]
    fn only_what_the_environment_has_is_replaced() {
        let variables = environment(
            &[("PORT", "8080"), ("NAME", "a.example"), ("EMPTY", "")],
            "",
        );
        for (template, expected) in [
            ("listen ${PORT};", "listen 8080;"),
            ("listen $PORT;", "listen 8080;"),
            ("$NAME$PORT", "a.example8080"),
            // A longer name is another variable.
            ("$PORTS ${PORTS}", "$PORTS ${PORTS}"),
            ("$host $uri?$args", "$host $uri?$args"),
            ("[$EMPTY]", "[]"),
            ("${PORT", "${PORT"),
            ("${PORT-80}", "${PORT-80}"),
            ("$ $$PORT ${} $1", "$ $8080 ${} $1"),
            ("end $", "end $"),
        ] {
            assert_eq!(text(template, &variables), expected, "{template}");
        }
    }

    #[test]
    fn a_filter_chooses_names() {
        let variables = environment(&[("APP_PORT", "1"), ("PORT", "2")], "^APP_");
        assert_eq!(text("$APP_PORT $PORT", &variables), "1 $PORT");
        let error = super::variables(b"(", std::iter::empty()).unwrap_err();
        assert!(
            error.starts_with("the filter \"(\" is no pattern: "),
            "{error}"
        );
    }

    #[test]
    fn a_value_is_not_replaced_again() {
        let variables = environment(&[("A", "$B"), ("B", "b")], "");
        assert_eq!(text("$A", &variables), "$B");
    }

    #[test]
    fn folders_are_followed_and_nothing_is_written_by_half() {
        let folder =
            std::env::temp_dir().join(format!("tidegate-templates-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let (from, to) = (folder.join("from"), folder.join("to"));
        let none = write_all(&from, &to, b".template", &Variables::new()).unwrap();
        assert!(none.is_empty() && !to.exists());
        std::fs::create_dir_all(from.join("sites")).unwrap();
        std::fs::write(from.join("a.conf.template"), "listen $PORT;").unwrap();
        std::fs::write(from.join("sites/b.conf.template"), "b $PORT").unwrap();
        std::fs::write(from.join("other"), "not this").unwrap();
        let variables = environment(&[("PORT", "80")], "");
        let written = write_all(&from, &to, b".template", &variables).unwrap();
        assert_eq!(written.len(), 2);
        assert_eq!(std::fs::read(to.join("a.conf")).unwrap(), b"listen 80;");
        assert_eq!(std::fs::read(to.join("sites/b.conf")).unwrap(), b"b 80");
        assert!(!to.join("other").exists());
        std::fs::remove_dir_all(&to).unwrap();
        // An unreadable template prevents all files from being written.
        std::os::unix::fs::symlink("nowhere", from.join("z.template")).unwrap();
        let error = write_all(&from, &to, b".template", &variables).unwrap_err();
        assert!(
            error.contains("z.template\" cannot be read") && !to.exists(),
            "{error}"
        );
        std::fs::remove_file(from.join("z.template")).unwrap();
        std::os::unix::fs::symlink(".", from.join("circle")).unwrap();
        let error = write_all(&from, &to, b".template", &variables).unwrap_err();
        assert!(error.contains("too many folders"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
