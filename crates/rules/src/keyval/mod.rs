//! `keyval`, `keyval_zone`: variables whose values are looked up in pairs that the API can change.
//!
//! <https://nginx.org/en/docs/http/ngx_http_keyval_module.html>. [`pairs`] stores the pairs of a
//! zone, `saved` reads and writes the zone's file. The parameter `sync` is not supported. The API
//! that changes pairs is in another crate.

pub mod pairs;
mod saved;

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Files as _, Inherit, Line, ScopeRef, Setting, Template, parse,
};
use framework::compile::Compiler;
use framework::places::name_of;
use framework::zone::{Zone, ZoneError, parse_declaration};
use logs::Errno;
use variables::name::variable_name;
use variables::{Compiling as _, Context, Source, Text, Value};

use self::pairs::{Match, Pairs, ZoneSettings};
use crate::kept_file::{self, Current};

/// `keyval_zone zone=name:size [state=file] [timeout=time] [type=string|ip|prefix]`
pub static KEYVAL_ZONE: Setting<()> = Setting::new(
    "keyval_zone",
    &["zone=name:size [state=file] [timeout=time] [type=string | ip | prefix]"],
    parse::nothing,
)
.contexts(Contexts::HTTP.or(Contexts::STREAM))
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "A zone of pairs of keys and values, which `keyval` looks up and `api` shows and changes. With `timeout` a pair goes after that time. \
     A key is the whole text (`string`), an address or network that the text is an address of (`ip`, the smallest network wins), or \
     what the text begins with (`prefix`, the longest wins). Pairs outlive a reload, and with `state` a restart: the file is \
     written with each change, so the user of the workers must be able to make files in its folder. `sync` is refused.",
);

/// `keyval key $variable zone=name`
pub static KEYVAL: Setting<()> =
    Setting::new("keyval", &["key $variable zone=name"], parse::nothing)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .arity(Arity::exactly(3))
        .inherit(Inherit::List)
        .manual(
            "Makes a variable whose value is that of the key in a zone of `keyval_zone`; there is none where the zone has no such key.",
        );

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&KEYVAL_ZONE, &KEYVAL];

/// Declares the zones of a block, and then the variables that use them.
pub fn compile<C: Context>(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    let block = if scope.context() == Contexts::HTTP {
        "http"
    } else {
        "stream"
    };
    for line in scope.lines().iter().filter(|line| line.is("keyval_zone")) {
        if let Err(fault) = declare(compiler, line, block) {
            compiler.report(fault.or_at(line.position).while_reading());
        }
    }
    for line in scope.lines().iter().filter(|line| line.is("keyval")) {
        if let Err(fault) = define::<C>(compiler, line) {
            compiler.report(fault.or_at(line.position).while_reading());
        }
    }
}

fn declare(compiler: &Compiler<'_>, line: &Line, block: &'static str) -> Result<(), Fault> {
    let mut zone = None;
    let mut settings = ZoneSettings {
        matching: Match::default(),
        timeout: None,
        file: None,
        initial: Vec::new(),
        block,
    };
    let mut file = None;
    for word in &line.args {
        let invalid = || Fault::invalid_parameter(word);
        if word.bytes.starts_with(b"zone=") {
            zone = Some((word, parse_declaration(word)?));
        } else if let Some(name) = word.bytes.strip_prefix(b"state=") {
            let name = std::str::from_utf8(name)
                .ok()
                .filter(|name| !name.is_empty());
            let name = name.ok_or_else(invalid)?;
            file = Some((word, compiler.path(std::path::Path::new(name))));
        } else if let Some(time) = word.bytes.strip_prefix(b"timeout=") {
            let time = parse::time_milliseconds(time).filter(|time| *time > 0);
            settings.timeout = Some(Duration::from_millis(time.ok_or_else(invalid)?));
        } else if let Some(kind) = word.bytes.strip_prefix(b"type=") {
            settings.matching = match kind {
                b"string" => Match::Text,
                b"ip" => Match::Address,
                b"prefix" => Match::Prefix,
                _ => return Err(invalid()),
            };
        } else {
            return Err(invalid());
        }
    }
    let Some((word, (name, size))) = zone else {
        let text = "\"keyval_zone\" must have \"zone\" parameter";
        return Err(Fault::at(&line.name, text));
    };
    if let Some((word, path)) = file {
        settings.initial = match Current(compiler.files).read(&path) {
            Ok(text) => saved::parse(&text).map_err(|error| {
                let path = path.display();
                Fault::at(word, format!("invalid state file \"{path}\": {error}"))
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                let (path, error) = (path.display(), Errno(&error));
                return Err(Fault::at(word, format!("open() \"{path}\" failed {error}")));
            }
        };
        let by = name_of(Some(line), "keyval_zone");
        kept_file::will_be_written(compiler, &path, &by);
        settings.file = Some(path);
    }
    let name = String::from_utf8_lossy(&name).into_owned();
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<Pairs>(&name, size, settings) {
        Ok(_) => Ok(()),
        Err(ZoneError::Declared(_)) => {
            let text = format!("duplicate keyval zone \"{name}\"");
            Err(Fault::at(word, text))
        }
        Err(ZoneError::Conflict(text)) => Err(Fault::at(word, text)),
    }
}

fn define<C: Context>(compiler: &Compiler<'_>, line: &Line) -> Result<(), Fault> {
    let [key, name, zone] = &*line.args else {
        return Ok(()); // the arity has been checked
    };
    let key = compiler.text(&Template::parse(key)?);
    let variable = variable_name(name)?;
    let zone_name = zone.bytes.strip_prefix(b"zone=");
    let zone_name = zone_name.filter(|name| !name.is_empty());
    let zone_name = zone_name.ok_or_else(|| Fault::invalid_parameter(zone))?;
    let zone_name = String::from_utf8_lossy(zone_name);
    let found = compiler.zones.borrow().find::<Pairs>(&zone_name);
    let zone =
        found.map_err(|text| Fault::at(zone, text).of_missing(&zone_name, &["keyval_zone"]))?;
    let source = Source::Computed(Arc::new(KeyValue::<C> {
        key,
        zone,
        of: PhantomData,
    }));
    let defined = compiler.define(&variable, source);
    defined.map_err(|text| Fault::at(name, text))?;
    Ok(())
}

/// A variable that `keyval` defines.
struct KeyValue<C> {
    key: Text<C>,
    zone: Arc<Zone<Pairs>>,
    of: PhantomData<fn(C)>,
}

impl<C: Context> Value<C> for KeyValue<C> {
    fn value(&self, context: &mut C) -> Option<Bytes> {
        let mut key = context.scratch().take_buffer();
        self.key.append_to(context, &mut key);
        let value = self.zone.state().find(self.zone.settings(), &key);
        context.scratch().give_buffer(key);
        value
    }
}
