//! Configurations: whatever the files hold, reading them ends without a panic; what was read can be
//! asked for and reported; and the recording of a reading reads the same.
#![no_main]

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use conf::{
    Contexts, Declared, Fault, Files, Inherit, Recorder, Registry, RecordedFiles, Setter, Setting,
    Template, parse,
};
use libfuzzer_sys::fuzz_target;

static HTTP: Setting<()> = Setting::new("http", &[""], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::HTTP);
static SERVER: Setting<()> = Setting::new("server", &[""], parse::nothing)
    .contexts(Contexts::HTTP)
    .block()
    .opens(Contexts::SERVER);
static LOCATION: Setting<()> = Setting::new("location", &["uri"], parse::nothing)
    .contexts(Contexts::SERVER.or(Contexts::LOCATION))
    .arity(conf::Arity::between(1, 2))
    .block()
    .opens(Contexts::LOCATION);
static MAP: Setting<()> = Setting::new("map", &["a b"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(conf::Arity::exactly(2))
    .free_block();
static SIZE: Setting<u64> = Setting::new("size", &["size"], parse::size)
    .contexts(Contexts::ALL)
    .default("1m");
static OFFSET: Setting<u64> = Setting::new("offset", &["size"], parse::offset)
    .contexts(Contexts::ALL)
    .default("1g");
static NUMBER: Setting<u64> =
    Setting::new("number", &["number"], parse::number).contexts(Contexts::ALL);
static FLAG: Setting<bool> = Setting::new("flag", &["on | off"], parse::flag)
    .arity(conf::Arity::flag())
    .contexts(Contexts::ALL)
    .default("off");
static TIME: Setting<std::time::Duration> = Setting::new("time", &["time"], parse::milliseconds)
    .contexts(Contexts::ALL)
    .default("60s");
static TEXT: Setting<Template> =
    Setting::new("text", &["text"], parse::template).contexts(Contexts::ALL);
static RULES: Setting<usize> = Setting::new("allow", &["address"], count)
    .also(&["deny"])
    .arity(conf::Arity::at_least(1))
    .contexts(Contexts::ALL)
    .inherit(Inherit::List);

fn count(setter: &Setter<'_>) -> Result<usize, Fault> {
    Ok(setter.lines().len())
}

const TABLE: &[&dyn Declared] = &[
    &HTTP, &SERVER, &LOCATION, &MAP, &SIZE, &OFFSET, &NUMBER, &FLAG, &TIME, &TEXT, &RULES,
];
static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::new(&[TABLE]));

/// Two files; the second begins behind the first zero byte.
struct Memory<'a> {
    main: &'a [u8],
    included: &'a [u8],
}

impl Files for Memory<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("/nginx.conf") => Ok(self.main.to_vec()),
            Some("/a.conf") => Ok(self.included.to_vec()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn glob(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(vec!["/a.conf".into()])
    }

    fn addresses(&self, _: &str) -> Option<Vec<IpAddr>> {
        None
    }
}

fuzz_target!(|data: &[u8]| {
    let split = data
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(data.len());
    let (main, included) = (&data[..split], data.get(split + 1..).unwrap_or_default());
    let files = Recorder::new(Memory { main, included });
    let (path, prefix) = (Path::new("/nginx.conf"), Path::new("/"));
    let globals = [included.to_vec()];

    let loaded = conf::load(path, prefix, &globals, &REGISTRY, &files);
    assert!(conf::dump(&loaded.sources).len() >= main.len());
    let reports: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    for scope in loaded.tree.scopes() {
        let results = [
            scope.get(&SIZE).is_ok(),
            scope.get(&OFFSET).is_ok(),
            scope.get(&FLAG).is_ok(),
            scope.get(&TIME).is_ok(),
            scope.written(&NUMBER).is_ok(),
            scope.written(&TEXT).is_ok(),
            scope.own(&RULES).is_ok(),
        ];
        assert!(
            loaded.has_errors() || results.iter().all(|ok| *ok),
            "a value was not checked"
        );
    }

    let sealed = RecordedFiles::new(files.recording());
    let again = conf::load(path, prefix, &globals, &REGISTRY, &sealed);
    let again: Vec<String> = again.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(reports, again);
});
