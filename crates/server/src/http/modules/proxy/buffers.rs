//! What nginx buffers the answers of upstreams with: accepted and checked, without effect here.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. Answers are streamed; only
//! `proxy_buffer_size`, which bounds an answer's head, is at work, and stands with the settings.

use std::path::PathBuf;

use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setting, parse};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

const STREAMED: &str = "answers are streamed at the client's pace through a fixed small buffer";
const NO_FILE: &str = "answers are streamed and need no temporary file";
const TABLES: &str = "tables size themselves";

macro_rules! accepted {
    ($($name:ident: $kind:ty = $directive:literal, $syntax:literal, $parse:expr, $arity:expr,
       $reason:expr, $manual:literal;)*) => {
        $(pub(crate) static $name: Setting<$kind> = Setting::new($directive, &[$syntax], $parse)
            .contexts(HSL)
            .arity($arity)
            .no_effect($reason)
            .manual($manual);)*
    };
}

accepted! {
    BUFFERS: (u64, u64) = "proxy_buffers", "number size", parse::buffers, Arity::exactly(2),
        STREAMED, "Number and size of nginx's buffers for an answer.";
    BUSY_BUFFERS_SIZE: u64 = "proxy_busy_buffers_size", "size", parse::size, Arity::exactly(1),
        STREAMED, "How much of an answer may be on its way to the client while nginx reads more of it.";
    TEMP_PATH: PathBuf = "proxy_temp_path", "path [level1 [level2 [level3]]]",
        parse::path_with_levels, Arity::between(1, 4),
        NO_FILE, "Where nginx puts what its buffers do not hold of an answer.";
    MAX_TEMP_FILE_SIZE: u64 = "proxy_max_temp_file_size", "size", parse::size, Arity::exactly(1),
        NO_FILE, "How much of an answer nginx puts into a temporary file.";
    TEMP_FILE_WRITE_SIZE: u64 = "proxy_temp_file_write_size", "size", parse::size, Arity::exactly(1),
        NO_FILE, "How much nginx writes to a temporary file at once.";
    HEADERS_HASH_MAX_SIZE: u64 = "proxy_headers_hash_max_size", "size", parse::number, Arity::exactly(1),
        TABLES, "Bounds nginx's hash of the fields that are hidden or set.";
    HEADERS_HASH_BUCKET_SIZE: u64 = "proxy_headers_hash_bucket_size", "size", parse::number, Arity::exactly(1),
        TABLES, "Sets the size of a bucket of nginx's hash of the fields that are hidden or set.";
}

/// The directives of this file.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &BUFFERS,
    &BUSY_BUFFERS_SIZE,
    &TEMP_PATH,
    &MAX_TEMP_FILE_SIZE,
    &TEMP_FILE_WRITE_SIZE,
    &HEADERS_HASH_MAX_SIZE,
    &HEADERS_HASH_BUCKET_SIZE,
];

/// The size of a buffer where no line says another: a page.
const SIZE: u64 = 4096;
/// The number of buffers where no line says another.
const NUMBER: u64 = 8;

/// Refuses sizes that do not suit each other, as nginx does; `head` is `proxy_buffer_size`.
pub(super) fn check(scope: ScopeRef<'_>, head: u64) -> Result<(), Fault> {
    let (number, size) = scope.written(&BUFFERS)?.unwrap_or((NUMBER, SIZE));
    if number < 2 {
        let text = "there must be at least 2 \"proxy_buffers\"".to_owned();
        return Err(fault_of(scope, &BUFFERS, text));
    }
    let largest = head.max(size);
    let busy = scope.written(&BUSY_BUFFERS_SIZE)?;
    at_least(scope, &BUSY_BUFFERS_SIZE, busy, largest)?;
    if busy.unwrap_or(largest.saturating_mul(2)) > (number - 1).saturating_mul(size) {
        let text = "\"proxy_busy_buffers_size\" must be less than the size of all \"proxy_buffers\" minus one buffer";
        return Err(fault_of(scope, &BUSY_BUFFERS_SIZE, text.to_owned()));
    }
    let write = scope.written(&TEMP_FILE_WRITE_SIZE)?;
    at_least(scope, &TEMP_FILE_WRITE_SIZE, write, largest)?;
    let file = scope.written(&MAX_TEMP_FILE_SIZE)?;
    at_least(
        scope,
        &MAX_TEMP_FILE_SIZE,
        file.filter(|size| *size > 0),
        largest,
    )
}

/// Refuses a value that is written and smaller than the largest buffer.
fn at_least(
    scope: ScopeRef<'_>,
    setting: &Setting<u64>,
    value: Option<u64>,
    largest: u64,
) -> Result<(), Fault> {
    if value.is_none_or(|value| value >= largest) {
        return Ok(());
    }
    let name = setting.spec.name;
    let or_zero = match name {
        "proxy_max_temp_file_size" => "equal to zero to disable temporary files usage or must be ",
        _ => "",
    };
    let text = format!(
        "\"{name}\" must be {or_zero}equal to or greater than the maximum of the value of \
         \"proxy_buffer_size\" and one of the \"proxy_buffers\""
    );
    Err(fault_of(scope, setting, text))
}

/// A fault where the directive stands that holds here; where none is written, of the scope.
fn fault_of<T>(scope: ScopeRef<'_>, setting: &Setting<T>, text: String) -> Fault {
    let lines = scope.lines_in_force(&setting.spec);
    let written = lines.first().map(|(_, line)| *line).or(scope.line());
    match written {
        Some(line) => Fault::at(&line.name, text),
        None => Fault::new(text),
    }
}
