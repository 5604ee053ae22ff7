//! Server side includes: `ssi` and its family.
//!
//! <https://nginx.org/en/docs/http/ngx_http_ssi_module.html>. [`reader`] finds commands in a body
//! that arrives in pieces, `commands` executes them, `value` expands variables. An `include` leaves
//! the filter as a piece that stands for a subrequest. If the end of the subrequest must be
//! awaited, the filter holds the rest of the body until then.

mod commands;
pub mod reader;
mod strftime;
mod value;

use std::sync::Arc;

use bytes::Bytes;
use commands::Processor;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::Module;
use http::request::Request;
use http::response::chain::{Chain, FilterRejection, HeadFilter};
use http::slots::{MainRequestLifetime, RequestLifetime};
use http::variables::BuiltinVariable;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use strftime::LocalTime;

use super::{MediaTypes, media_types};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The format of dates until `config timefmt` sets one.
const USUAL_TIME_FORMAT: &[u8] = b"%A, %d-%b-%Y %H:%M:%S %Z";

/// `ssi on | off`
pub static SSI: Setting<bool> = Setting::new("ssi", &["on | off"], parse::flag)
    .contexts(HSL.or(Contexts::LOCATION_IF))
    .default("off")
    .manual("Carries out the commands of server side includes in responses: `<!--# command -->`.");

/// `ssi_silent_errors on | off`
pub static SSI_SILENT_ERRORS: Setting<bool> =
    Setting::new("ssi_silent_errors", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual("Puts nothing where a command fails, instead of a message.");

/// `ssi_ignore_recycled_buffers on | off`
pub static SSI_IGNORE_RECYCLED_BUFFERS: Setting<bool> =
    Setting::new("ssi_ignore_recycled_buffers", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .no_effect("buffers are not used again while their bytes are needed")
        .manual("Does not send parts of a response because nginx wants its buffers back.");

/// `ssi_last_modified on | off`
pub static SSI_LAST_MODIFIED: Setting<bool> =
    Setting::new("ssi_last_modified", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual(
            "Keeps `Last-Modified` and, as a weak one, the ETag of responses that commands are looked for in.",
        );

/// Declares the directive `ssi_min_file_chunk SIZE`.
pub static SSI_MIN_FILE_CHUNK: Setting<u64> =
    Setting::new("ssi_min_file_chunk", &["size"], parse::size)
        .contexts(HSL)
        .default("1k")
        .no_effect("what commands were looked for in is sent from the memory that it was read into")
        .manual("The least part of a file that is sent with sendfile(2).");

/// Declares the directive `ssi_value_length LENGTH`.
pub static SSI_VALUE_LENGTH: Setting<u64> =
    Setting::new("ssi_value_length", &["length"], parse::size)
        .contexts(HSL)
        .default("255")
        .manual("The longest value of a command's parameter, in bytes.");

/// Declares the directive `ssi_types TYPE…`.
pub static SSI_TYPES: Setting<MediaTypes> = Setting::new(
    "ssi_types",
    &["mime-type …"],
    media_types,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("text/html")
.manual(
    "The media types of responses that commands are looked for in, besides `text/html`; `*` is every type.",
);

/// `ssi` and related directives in one scope.
#[derive(Debug)]
pub struct Ssi {
    enabled: bool,
    silent_errors: bool,
    keep_last_modified: bool,
    value_length_max: usize,
    types: MediaTypes,
}

impl Feature for Ssi {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &SSI,
        &SSI_SILENT_ERRORS,
        &SSI_IGNORE_RECYCLED_BUFFERS,
        &SSI_LAST_MODIFIED,
        &SSI_MIN_FILE_CHUNK,
        &SSI_VALUE_LENGTH,
        &SSI_TYPES,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Ssi {
            enabled: scope.get(&SSI)?,
            silent_errors: scope.get(&SSI_SILENT_ERRORS)?,
            keep_last_modified: scope.get(&SSI_LAST_MODIFIED)?,
            value_length_max: usize::try_from(scope.get(&SSI_VALUE_LENGTH)?).unwrap_or(usize::MAX),
            types: scope.get(&SSI_TYPES)?,
        })
    }
}

impl Module for Ssi {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Body, &["ssi"])];

    fn is_off(&self) -> bool {
        !self.enabled
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }
}

impl HeadFilter for Ssi {
    fn applies_to(&self, request: &Request) -> bool {
        let response = &request.response;
        response.content_length != Some(0) && self.types.contain(&response.content_type)
    }

    /// Prepares the response head for a body that commands will change.
    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        let is_main = request.is_main();
        let response = &mut request.response;
        if is_main {
            response.clear_content_length();
            response.clear_ranges();
            if self.keep_last_modified {
                response.weaken_etag();
            } else {
                response.clear_last_modified();
                response.remove(b"ETag");
            }
        }
        chain.push(Processor::new(self));
        Ok(())
    }
}

/// The state that commands have set, shared by a main request and its subrequests.
#[derive(Debug, Default)]
struct Memory {
    /// Names in lower case, with their values.
    variables: Vec<(Bytes, Bytes)>,
    /// Blocks with their texts; of several with the same name, the first is used.
    blocks: Vec<(Bytes, Vec<u8>)>,
    /// `$0` to `$9` of the last `if` with a regular expression that matched.
    groups: Vec<Bytes>,
}

impl SlotValue for Memory {
    fn reset(&mut self) {
        self.variables.clear();
        self.blocks.clear();
        self.groups.clear();
    }
}

/// The state that commands of the main request and its subrequests have set.
static MEMORY: Slot<Memory, MainRequestLifetime> = Slot::new();

/// Changes the state that commands have set.
fn remember<T>(request: &Request, with: impl FnOnce(&mut Memory) -> T) -> T {
    with(request.shared.main.borrow_mut().enter(&MEMORY))
}

/// Looks something up in the state that commands have set.
fn recall<T>(request: &Request, look: impl FnOnce(&Memory) -> Option<T>) -> Option<T> {
    request.shared.main.borrow().get(&MEMORY).and_then(look)
}

/// The format of `$date_local` and `$date_gmt` in the response of a request whose commands have set
/// one.
static TIME_FORMAT: Slot<TimeFormat, RequestLifetime> = Slot::new();

#[derive(Default)]
struct TimeFormat(Bytes);

impl SlotValue for TimeFormat {}

impl Memory {
    /// The value of a variable or group.
    fn value(&self, name: &[u8]) -> Option<Bytes> {
        if let [digit @ b'0'..=b'9'] = name
            && let Some(group) = self.groups.get(usize::from(digit - b'0'))
        {
            return Some(group.clone());
        }
        let found = self.variables.iter().find(|(known, _)| **known == *name)?;
        Some(found.1.clone())
    }

    fn set(&mut self, name: &[u8], value: Bytes) {
        match self
            .variables
            .iter_mut()
            .find(|(known, _)| **known == *name)
        {
            Some((_, slot)) => *slot = value,
            None => self.variables.push((Bytes::copy_from_slice(name), value)),
        }
    }

    fn block(&self, name: &[u8]) -> Option<Bytes> {
        let found = self.blocks.iter().find(|(known, _)| **known == *name)?;
        Some(Bytes::copy_from_slice(&found.1))
    }

    /// Appends to the block that was started last.
    fn extend_block(&mut self, text: &[u8]) {
        if let Some((_, block)) = self.blocks.last_mut() {
            block.extend_from_slice(text);
        }
    }
}

/// Appends the value of `$date_gmt`; false if it has none.
pub fn date_gmt(request: &mut Request, out: &mut Vec<u8>) -> bool {
    date(request, true, out)
}

/// Appends the value of `$date_local`; false if it has none.
pub fn date_local(request: &mut Request, out: &mut Vec<u8>) -> bool {
    date(request, false, out)
}

/// Appends the current time in the format that the request's commands have set; false if the result
/// has no text.
fn date(request: &Request, gmt: bool, out: &mut Vec<u8>) -> bool {
    let seconds = i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX);
    let Ok(now) = Timestamp::from_second(seconds) else {
        return false;
    };
    let format: &[u8] = match request.own.get(&TIME_FORMAT) {
        Some(TimeFormat(format)) => format,
        None => USUAL_TIME_FORMAT,
    };
    if format == b"%s" {
        out.extend_from_slice(seconds.to_string().as_bytes());
        return true;
    }
    let local = TimeZone::system();
    let moment = if gmt {
        LocalTime::universal(now, &local)
    } else {
        LocalTime::local(now, &local)
    };
    match moment.format(format) {
        Some(text) if !text.is_empty() => {
            out.extend_from_slice(&text);
            true
        }
        _ => false,
    }
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    match name {
        "date_gmt" => Some(BuiltinVariable::computed(date_gmt)),
        "date_local" => Some(BuiltinVariable::computed(date_local)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
