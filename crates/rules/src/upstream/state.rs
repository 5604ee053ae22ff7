//! `state`: a file with the servers of a group.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#state>. It is read with the configuration, and by nothing else;
//! nothing here writes it.

use std::io::ErrorKind;
use std::path::PathBuf;

use conf::plain::{self, Unread};
use conf::{Fault, Line, ScopeRef, Setting, Word};
use framework::compile::Compiler;
use logs::Errno;

use super::protocol::BLOCKS;

/// `state file`
pub(super) static STATE: Setting<Word> =
    Setting::new("state", &["file"], |setter| setter.word().cloned())
        .contexts(BLOCKS)
        .manual("A file with the servers of the group, a line `server address [parameters];` for each, in the place of such lines in the block. A file that is not there is a group without servers. It is read when the configuration is: nothing changes it yet but an editor.");

/// The lines of servers of a block: its own, or those of its file.
pub(super) fn servers(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    own: &[&Line],
) -> Result<Option<Vec<Line>>, Fault> {
    let Some(file) = block.own(&STATE)? else {
        return Ok(None);
    };
    if let Some(line) = own.first() {
        let text = "\"server\" directive is incompatible with \"state\" directive";
        return Err(Fault::at(&line.name, text));
    }
    let path: PathBuf = compiler.path(file.path());
    match plain::lines(&path, compiler.files) {
        Ok(lines) => match lines.iter().find(|line| !line.is("server")) {
            None => Ok(Some(lines)),
            Some(other) => {
                let text = format!("unknown directive \"{}\"", other.name.text());
                Err(Fault::at(&other.name, text))
            }
        },
        Err(Unread::File(error)) if error.kind() == ErrorKind::NotFound => Ok(Some(Vec::new())),
        Err(Unread::File(error)) => {
            // A folder can be opened, and then not be read.
            let call = match error.kind() {
                ErrorKind::IsADirectory => "pread()",
                _ => "open()",
            };
            let (path, cause) = (path.display(), Errno(&error));
            let text = format!("{call} \"{path}\" failed {cause}");
            Err(Fault::at(&file, text))
        }
        Err(Unread::Malformed(fault)) => Err(*fault),
    }
}
