//! The buffers for responses of upstreams: a limited amount in memory, and the rest for a slow
//! client in a temporary file.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>; the other modules have the same
//! directives under their own prefixes. [`http::response::spill`] does the buffering;
//! `*_buffering`, which enables it, and `*_buffer_size`, which limits the head of a response, are
//! in `family.rs`.

use std::sync::Arc;

use std::path::PathBuf;

use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setter, Setting, parse};
use framework::compile::Compiler;
use http::config::temporary_paths::TemporaryPath;
use http::files::temporary_file::Directory;
use http::response::spill::Limits;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The default size of a buffer in bytes: a page.
const SIZE: u64 = 4096;
/// The default number of buffers.
const NUMBER: u64 = 8;
/// The default limit of a temporary file, in bytes.
const FILE_SIZE_MAX: u64 = 1 << 30;

/// The settings of `*_buffers` and related directives in a scope.
pub struct Buffers {
    /// The limits of data that is kept for a slow client.
    pub limits: Arc<Limits>,
    /// How many bytes may be on their way to the client while more is read.
    pub busy_size: usize,
}

impl Buffers {
    /// No buffering: responses are sent as they are received.
    pub fn none() -> Buffers {
        let limits = Limits {
            memory_max: 0,
            file_max: 0,
            write_size: 0,
            directory: Arc::new(Directory {
                path: PathBuf::new(),
                levels: Vec::new(),
            }),
        };
        Buffers {
            limits: Arc::new(limits),
            busy_size: 0,
        }
    }
}

/// The directives of one module about buffers.
pub struct Family {
    pub(crate) buffers: Setting<(u64, u64)>,
    pub(crate) busy_buffers_size: Setting<u64>,
    /// `*_temp_path`.
    pub temp_path: Setting<(PathBuf, Vec<u64>)>,
    pub(crate) max_temp_file_size: Setting<u64>,
    pub(crate) temp_file_write_size: Setting<u64>,
}

impl Family {
    /// The directives with this prefix.
    pub const fn of(prefix: &'static str) -> Family {
        Family {
            buffers: Setting::family(prefix, "buffers", &["number size"], parse::buffers)
                .contexts(HSL)
                .arity(Arity::exactly(2))
                .manual("How much of an answer is kept in memory while its client is slow to take it: number times size, 8 pages by default. Where that is full, more goes to a temporary file. A client that keeps up needs none of it."),
            busy_buffers_size: size(prefix, "busy_buffers_size").manual(
                "How much of an answer may be on its way to a slow client while more of it is read: a part of the buffers, two of them by default. Up to 32k leave in any case.",
            ),
            temp_path: Setting::family(
                prefix,
                "temp_path",
                &["path [level1 [level2 [level3]]]"],
                path_and_levels,
            )
            .contexts(HSL)
            .arity(Arity::between(1, 4))
            .manual("The directory of the temporary files that hold what the buffers do not hold of an answer, and the numbers of digits of its levels of subdirectories. A file has no name while it is used."),
            max_temp_file_size: size(prefix, "max_temp_file_size").manual(
                "How much of an answer is written to a temporary file in all, 1 GB by default; 0 for no file. Beyond that the upstream has to wait for the client.",
            ),
            temp_file_write_size: size(prefix, "temp_file_write_size").manual(
                "How much is written to a temporary file at once, two buffers by default.",
            ),
        }
    }

    /// The directives, for a module's list.
    pub const fn all(&'static self) -> [&'static dyn Declared; 5] {
        [
            &self.buffers,
            &self.busy_buffers_size,
            &self.temp_path,
            &self.max_temp_file_size,
            &self.temp_file_write_size,
        ]
    }

    /// Compiles the settings of a scope; `head` is the `*_buffer_size` of the same module, `path`
    /// the default directory of temporary files, which is not created for a scope without
    /// buffering.
    pub fn compile(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        head: &Setting<u64>,
        path: &TemporaryPath,
    ) -> Result<Buffers, Fault> {
        self.check(scope, head)?;
        let (number, size) = scope.written(&self.buffers)?.unwrap_or((NUMBER, SIZE));
        let two = scope.get(head)?.max(size).saturating_mul(2);
        let busy = scope.written(&self.busy_buffers_size)?.unwrap_or(two);
        let write = scope.written(&self.temp_file_write_size)?.unwrap_or(two);
        let file_max = scope.written(&self.max_temp_file_size)?;
        let directory = match scope.written(&self.temp_path)? {
            Some((path, levels)) => Directory {
                path: compiler.directory(&path),
                levels,
            },
            None => Directory {
                path: compiler.path(path.default.as_ref()),
                levels: path.levels.to_vec(),
            },
        };
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let limits = Limits {
            memory_max: in_memory(number.saturating_mul(size).saturating_sub(busy)),
            file_max: file_max.unwrap_or(FILE_SIZE_MAX),
            write_size: in_memory(write),
            directory: Arc::new(directory),
        };
        Ok(Buffers {
            limits: Arc::new(limits),
            busy_size: in_memory(busy),
        })
    }

    /// Refuses sizes that do not fit together, as nginx does; `head` is the `*_buffer_size` of the
    /// same module.
    pub fn check(&self, scope: ScopeRef<'_>, head: &Setting<u64>) -> Result<(), Fault> {
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

const fn size(prefix: &'static str, stem: &'static str) -> Setting<u64> {
    Setting::family(prefix, stem, &["size"], parse::size).contexts(HSL)
}

/// Parses a directory and the number of digits of each of its levels.
fn path_and_levels(setter: &Setter<'_>) -> Result<(PathBuf, Vec<u64>), Fault> {
    let path = parse::path_with_levels(setter)?;
    let words = setter.args().get(1..).unwrap_or_default();
    Ok((path, parse::levels(words).unwrap_or_default()))
}

/// A fault at the line of the directive that applies in the scope; without a line, at the scope.
fn fault_of<T>(scope: ScopeRef<'_>, setting: &Setting<T>, text: String) -> Fault {
    let lines = scope.lines_in_force(&setting.spec);
    let written = lines.first().map(|(_, line)| *line).or(scope.line());
    match written {
        Some(line) => Fault::at(&line.name, text),
        None => Fault::new(text),
    }
}
