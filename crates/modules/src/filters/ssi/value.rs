//! Parameter values that contain variables: `"/page?x=$arg_x"`.

use http::request::Request;
use variables::Context as _;

use super::commands::CommandFailed;
use super::recall;

/// Expands variables and removes backslashes before `\`, `'`, `"` and `$`.
pub(super) fn evaluate(request: &mut Request, text: &[u8]) -> Result<Vec<u8>, CommandFailed> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'$' => variable(request, text, after, &mut out)?,
            b'\\' => escaped(after, &mut out),
            _ => {
                out.push(byte);
                after
            }
        };
    }
    Ok(out)
}

/// Appends the character after a backslash. A backslash at the end is dropped.
fn escaped<'t>(rest: &'t [u8], out: &mut Vec<u8>) -> &'t [u8] {
    let Some((&byte, after)) = rest.split_first() else {
        return rest;
    };
    if !matches!(byte, b'\\' | b'\'' | b'"' | b'$') {
        out.push(b'\\');
    }
    out.push(byte);
    after
}

/// Appends the variable whose name follows a `$`; returns the rest of the text.
fn variable<'t>(
    request: &mut Request,
    text: &[u8],
    rest: &'t [u8],
    out: &mut Vec<u8>,
) -> Result<&'t [u8], CommandFailed> {
    let (bracket, rest) = match rest.strip_prefix(b"{") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = rest.iter().take_while(|byte| belongs(byte)).count();
    let (name, mut rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
    if bracket && !(name.is_empty() && rest.is_empty()) {
        rest = rest.strip_prefix(b"}").ok_or_else(|| {
            logs::error!(
                request,
                Error,
                "the closing bracket in \"{}\" variable is missing{}",
                logs::Printable(name),
                request.activity.sending
            );
            CommandFailed
        })?;
    }
    if name.is_empty() {
        logs::error!(
            request,
            Error,
            "invalid variable name in \"{}\"{}",
            logs::Printable(text),
            request.activity.sending
        );
        return Err(CommandFailed);
    }
    append(request, name, out)?;
    Ok(rest)
}

/// Appends the value of a variable: one that commands have set, else one of the server. False if
/// there is no such variable. A date whose format yields no text is an error.
pub(super) fn append(
    request: &mut Request,
    name: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, CommandFailed> {
    let name = name.to_ascii_lowercase();
    let set = recall(request, |memory| memory.value(&name));
    match (set, std::str::from_utf8(&name)) {
        (Some(value), _) => {
            out.extend_from_slice(&value);
            Ok(true)
        }
        (None, Ok(name)) if request.append_variable_named(name, out) => Ok(true),
        (None, Ok("date_gmt" | "date_local")) => Err(CommandFailed),
        (None, _) => Ok(false),
    }
}
