//! Compilation of a whole configuration: every protocol's part, assembled into a generation.

use std::path::PathBuf;
use std::sync::Arc;

use conf::Diagnostic;
use framework::compile::{Compiler, Environment};
use framework::generation::Generation;
use framework::places::{FilePlace, FilePlaces, Program};
use framework::protocol_part::{ListenSocket, ProtocolPart};
use logs::{Destination, ErrorLog, LogFile, LogTable, MainLog, OpenLogs};

use crate::events::Events;
use crate::protocols::PARTS;
use crate::unknown::Unknown;

/// A configuration ready to serve, with the resources that must be opened before.
pub struct Compiled {
    /// The configuration for the workers.
    pub generation: Generation,
    /// The main level's `error_log`.
    pub error_log: Arc<ErrorLog>,
    /// The `events` block of the compiled configuration.
    pub events: Arc<Events>,
    /// Listening sockets of all protocols, one per address.
    pub listening: Vec<ListenSocket>,
    /// Log files to open before serving.
    pub logs: Vec<Arc<LogFile>>,
    /// Directories that must exist and belong to the workers' user.
    pub directories: Vec<PathBuf>,
    /// Paths at which workers open files themselves.
    pub places: Vec<FilePlace>,
    /// Programs that workers run.
    pub programs: Vec<Program>,
    /// Warnings and notices of the compilation.
    pub diagnostics: Vec<Diagnostic>,
}

/// Compiles a parsed configuration. Returns all errors of the file, not only the first. Without an
/// `error_log` line, errors are logged to `default_error_log`, the destination of `-e`.
pub fn compile(
    tree: &conf::Tree,
    environment: &Environment<'_>,
    default_error_log: Destination,
) -> Result<Compiled, Vec<Diagnostic>> {
    compile_with(PARTS, tree, environment, default_error_log)
}

/// Like [`compile`], for the given protocols.
pub(crate) fn compile_with(
    parts: &[&dyn ProtocolPart],
    tree: &conf::Tree,
    environment: &Environment<'_>,
    default_error_log: Destination,
) -> Result<Compiled, Vec<Diagnostic>> {
    let compiler = Compiler::new(environment);
    let logs = compiler.registry::<LogTable>();
    logs.borrow_mut().default_error_log = default_error_log;
    let root = tree.root();
    parts.iter().for_each(|part| part.declare(&compiler));
    let compiled = parts.iter().map(|part| part.compile(&compiler, root));
    let compiled: Vec<_> = compiled.collect();
    let error_log = compiler.feature_or_report::<ErrorLog>(root);
    let events = compiler.feature_or_report::<Events>(crate::events::scope(root));
    for part in parts {
        let unknown = part.unknown_variables(&compiler);
        let names = Unknown::new(&unknown, tree, environment.files);
        names.faults().for_each(|fault| compiler.report(fault));
    }
    let compiled: Option<Vec<_>> = compiled.into_iter().collect();
    let (Some(compiled), Some(error_log), Some(events), false) =
        (compiled, error_log, events, compiler.has_failed())
    else {
        return Err(compiler.into_diagnostics());
    };
    let mut generation = Generation::new(compiler.zones.take().finish());
    let logs = compiler.registries.take::<LogTable>().into_files();
    generation.add(events.debug_connections.clone());
    let mut listening: Vec<ListenSocket> = Vec::new();
    for part in compiled {
        for socket in part.add_to(&compiler, &mut generation) {
            if listening.iter().any(|other| other.id == socket.id) {
                let address = &socket.options.address;
                let text = format!("bind() to {address} failed (98: Address already in use)");
                let hint = "servers of two protocols listen on this address";
                compiler.report(conf::Fault::new(text).with_hint(hint));
            }
            listening.push(socket);
        }
    }
    if compiler.has_failed() {
        return Err(compiler.into_diagnostics());
    }
    generation.add(OpenLogs(logs.clone()));
    generation.add(MainLog(Arc::clone(&error_log)));
    let (places, programs) = compiler.registries.take::<FilePlaces>().into_parts();
    Ok(Compiled {
        generation,
        error_log,
        events,
        listening,
        logs,
        directories: compiler.take_directories(),
        places,
        programs,
        diagnostics: compiler.into_diagnostics(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use conf::{RecordedFiles, Recording};
    use framework::zone::{AnyZone, ZoneFact};

    use super::*;

    fn compiled(text: &str) -> Compiled {
        let files = RecordedFiles::new(Recording {
            files: vec![("/nginx.conf".into(), text.into())],
            ..Recording::default()
        });
        let (path, root) = (Path::new("/nginx.conf"), Path::new("/"));
        let registry = crate::protocols::registry(&[]);
        let loaded = conf::load(path, root, &[], registry, &files);
        let environment = Environment {
            prefix: root,
            conf_prefix: root,
            files: &files,
            privileged: true,
        };
        let compiled = compile(&loaded.tree, &environment, Destination::Stderr);
        compiled.unwrap_or_else(|found| panic!("{found:?}"))
    }

    /// A zone as a person would see it.
    fn shown(zone: &dyn AnyZone) -> String {
        let mut text = format!("{} {} {}:", zone.kind(), zone.name(), zone.size());
        zone.describe(&mut |name, fact| {
            let value = match fact {
                ZoneFact::Number(number) => number.to_string(),
                ZoneFact::Text(setting) => setting.to_owned(),
            };
            text.push_str(&format!(" {name}={value}"));
        });
        text
    }

    #[test]
    fn the_zones_of_a_configuration_tell_what_they_are() {
        // Declared from the end of the list of modules.
        let zones = "limit_req_zone $arg_k zone=rates:32k rate=2r/s;
                     limit_conn_zone $arg_c zone=connections:40k;
                     dav_ext_lock_zone zone=locks:48k timeout=90s;";
        let before = compiled(&format!("events {{ }} http {{ {zones} server {{ }} }}"));
        let shown: Vec<String> = before.generation.zones.iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                "dav_ext_lock locks 49152: timeout=90 locks=0",
                "limit_req rates 32768: key=$arg_k rate=2000 keys=0 passed=0 delayed=0 rejected=0 \
                 delayed_dry_run=0 rejected_dry_run=0",
                "limit_conn connections 40960: key=$arg_c keys=0 passed=0 rejected=0 \
                 rejected_dry_run=0",
            ]
        );
    }
}
