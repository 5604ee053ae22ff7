//! What nginx buffers the answers of upstreams with: accepted and checked, without effect here but for where files go.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>, and the same for other modules. Answers are streamed; only
//! `*_buffer_size`, which bounds an answer's head, is at work, and stands in `family.rs`.

use std::path::PathBuf;

use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setting, parse};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

const STREAMED: &str = "answers are streamed at the client's pace through a fixed small buffer";
const NO_FILE: &str = "answers are streamed and need no temporary file";

/// The size of a buffer where no line says another: a page.
const SIZE: u64 = 4096;
/// The number of buffers where no line says another.
const NUMBER: u64 = 8;

/// The directives of one module.
pub(super) struct Family {
    pub(super) buffers: Setting<(u64, u64)>,
    pub(super) busy_buffers_size: Setting<u64>,
    pub(super) temp_path: Setting<PathBuf>,
    pub(super) max_temp_file_size: Setting<u64>,
    pub(super) temp_file_write_size: Setting<u64>,
}

impl Family {
    /// The directives that begin with this prefix, and the directory where no line names one.
    pub(super) const fn of(prefix: &'static str, default_path: &'static str) -> Family {
        Family {
            buffers: Setting::family(prefix, "buffers", &["number size"], parse::buffers)
                .contexts(HSL)
                .arity(Arity::exactly(2))
                .no_effect(STREAMED)
                .manual("Number and size of nginx's buffers for an answer."),
            busy_buffers_size: size(prefix, "busy_buffers_size", STREAMED).manual(
                "How much of an answer may be on its way to the client while nginx reads more of it.",
            ),
            temp_path: Setting::family(
                prefix,
                "temp_path",
                &["path [level1 [level2 [level3]]]"],
                parse::path_with_levels,
            )
            .contexts(HSL)
            .arity(Arity::between(1, 4))
            .default(default_path)
            .manual("Where answers that are stored lie until they are whole. The levels of subdirectories are accepted; files lie in the directory itself."),
            max_temp_file_size: size(prefix, "max_temp_file_size", NO_FILE)
                .manual("How much of an answer nginx puts into a temporary file."),
            temp_file_write_size: size(prefix, "temp_file_write_size", NO_FILE)
                .manual("How much nginx writes to a temporary file at once."),
        }
    }

    /// All of them.
    pub(super) const fn all(&'static self) -> [&'static dyn Declared; 5] {
        [
            &self.buffers,
            &self.busy_buffers_size,
            &self.temp_path,
            &self.max_temp_file_size,
            &self.temp_file_write_size,
        ]
    }

    /// Refuses sizes that do not suit each other, as nginx does; `head` is the `*_buffer_size` of the same module.
    pub(super) fn check(&self, scope: ScopeRef<'_>, head: &Setting<u64>) -> Result<(), Fault> {
        let buffers = self.buffers.spec.name();
        let (number, size) = scope.written(&self.buffers)?.unwrap_or((NUMBER, SIZE));
        if number < 2 {
            let text = format!("there must be at least 2 \"{buffers}\"");
            return Err(fault_of(scope, &self.buffers, text));
        }
        let largest = scope.get(head)?.max(size);
        let busy = scope.written(&self.busy_buffers_size)?;
        let at_least = |setting: &Setting<u64>, value: Option<u64>, or_zero: &str| {
            if value.is_none_or(|value| value >= largest) {
                return Ok(());
            }
            let (name, head) = (setting.spec.name(), head.spec.name());
            let text = format!(
                "\"{name}\" must be {or_zero}equal to or greater than the maximum of the value of \
                 \"{head}\" and one of the \"{buffers}\""
            );
            Err(fault_of(scope, setting, text))
        };
        at_least(&self.busy_buffers_size, busy, "")?;
        if busy.unwrap_or(largest.saturating_mul(2)) > (number - 1).saturating_mul(size) {
            let name = self.busy_buffers_size.spec.name();
            let text = format!(
                "\"{name}\" must be less than the size of all \"{buffers}\" minus one buffer"
            );
            return Err(fault_of(scope, &self.busy_buffers_size, text));
        }
        let write = scope.written(&self.temp_file_write_size)?;
        at_least(&self.temp_file_write_size, write, "")?;
        let file = scope.written(&self.max_temp_file_size)?;
        let or_zero = "equal to zero to disable temporary files usage or must be ";
        at_least(
            &self.max_temp_file_size,
            file.filter(|size| *size > 0),
            or_zero,
        )
    }
}

const fn size(prefix: &'static str, stem: &'static str, reason: &'static str) -> Setting<u64> {
    Setting::family(prefix, stem, &["size"], parse::size)
        .contexts(HSL)
        .no_effect(reason)
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
