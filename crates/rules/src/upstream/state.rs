//! `state`: a file with the servers of a group.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#state>. The file is read with the
//! configuration, and written when the API changes the servers: first under a temporary name, then
//! renamed, so that readers see either the old or the new list.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::{Group, Keep, MemberChange, Peer, PeerSide, Peers};
use conf::plain::{self, PlainFileError};
use conf::{Fault, Line, ScopeRef, Setting, Word};
use framework::address;
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::places::name_of;
use framework::service::{RunningService, Service};
use logs::{Errno, Printable};

use super::protocol::BLOCKS;
use super::servers::{NO_PORT, hash_of};
use crate::kept_file::{self, Current};

pub(super) static STATE: Setting<Word> =
    Setting::new("state", &["file"], |setter| setter.word().cloned())
        .contexts(BLOCKS)
        .manual("A file with the servers of the group, a line `server address [parameters];` for each, in the place of such lines in the block. A file that is not there is a group without servers. It is read when the configuration is, and written again with each change that `api` makes: the user of the workers must be able to make files in its folder.");

/// The `server` lines of a block's `state` file; `None` if the block has no such file. `own` are
/// the block's own `server` lines, which the file excludes.
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
    let path = compiler.path(file.path());
    match plain::lines(&path, &Current(compiler.files)) {
        Ok(lines) => match lines.iter().find(|line| !line.is("server")) {
            None => Ok(Some(lines)),
            Some(other) => {
                let text = format!("unknown directive \"{}\"", other.name.text());
                Err(Fault::at(&other.name, text))
            }
        },
        Err(PlainFileError::File(error)) if error.kind() == ErrorKind::NotFound => {
            Ok(Some(Vec::new()))
        }
        Err(PlainFileError::File(error)) => {
            // A directory can be opened, but not read.
            let call = match error.kind() {
                ErrorKind::IsADirectory => "pread()",
                _ => "open()",
            };
            let (path, cause) = (path.display(), Errno(&error));
            let text = format!("{call} \"{path}\" failed {cause}");
            Err(Fault::at(&file, text))
        }
        Err(PlainFileError::Malformed(fault)) => Err(*fault),
    }
}

/// The `state` file of a block, to which changes are saved; `None` if the block has no such file.
pub(super) fn kept(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    default_port: Option<u16>,
) -> Result<Option<Box<dyn Keep>>, Fault> {
    let file = block.own(&STATE)?;
    if let Some(file) = &file {
        let by = name_of(block.own_lines(&STATE.spec).first().copied(), "state");
        kept_file::will_be_written(compiler, &compiler.path(file.path()), &by);
    }
    Ok(file.map(|file| -> Box<dyn Keep> {
        Box::new(StateFile {
            path: compiler.path(file.path()),
            default_port: default_port.unwrap_or(NO_PORT),
        })
    }))
}

/// The `state` file of a group.
#[derive(Debug)]
struct StateFile {
    path: PathBuf,
    default_port: u16,
}

impl Keep for StateFile {
    fn write(&self, peers: &Peers) -> io::Result<()> {
        kept_file::write(&self.path, &text(peers, self.default_port))
    }

    fn has(&self, peers: &Peers) -> bool {
        fs::read(&self.path).is_ok_and(|known| known == text(peers, self.default_port))
    }
}

/// The service that logs, when a configuration comes into force, which changes by the API the
/// reload has undone because they were not saved.
pub(super) struct UndoneChanges {
    pub(super) groups: Vec<Arc<Group>>,
    pub(super) block: &'static str,
}

impl Service for UndoneChanges {
    fn key(&self) -> String {
        format!("changes of upstreams of {}", self.block)
    }

    fn start(&self, _: &Arc<Generation>, _: Option<RunningService>) -> Option<RunningService> {
        for group in &self.groups {
            let name = Printable(&group.name);
            for (server, done) in group.roster().undone() {
                let server = Printable(&server);
                let undone = match done {
                    MemberChange::Added => "is gone, which the api had added",
                    MemberChange::Changed => "is as configured, which the api had changed",
                    MemberChange::Removed => "is back, which the api had removed",
                };
                logs::event!(
                    Warn,
                    "server {server} of upstream \"{name}\" {undone}: there is no \"state\" file"
                );
            }
        }
        Some(Box::new(()))
    }
}

/// The text of a `state` file with these peers and hosts.
fn text(peers: &Peers, default_port: u16) -> Vec<u8> {
    let mut out = Vec::new();
    for side in [PeerSide::Peers, PeerSide::Backups] {
        for peer in peers.written(side) {
            // A peer of a name with several addresses is saved by its address, because the API may
            // have changed the peers of the name differently.
            let is_address = |server: &[u8]| {
                let written = address::parse(server).ok();
                written.is_some_and(|written| written.literal(default_port).is_some())
            };
            let server = if is_address(&peer.server) {
                &peer.server
            } else {
                &peer.name
            };
            let id = (peer.id != hash_of(&peer.name)).then_some(&peer.id[..]);
            line(server, peer, side, id, &mut out);
        }
    }
    for host in peers.hosts().iter().map(|listed| &listed.host) {
        let at = out.len();
        let id = Some(&host.template.id[..]).filter(|id| !id.is_empty());
        line(&host.server(), &host.template, host.side, id, &mut out);
        out.truncate(out.len().max(at + 2) - 2); // without ";\n"
        out.extend_from_slice(b" resolve");
        if let Some(service) = &host.service {
            parameter(b"service", service, &mut out);
        }
        out.extend_from_slice(b";\n");
    }
    out
}

/// Appends a line of `server` with the parameters that differ from their defaults.
fn line(server: &[u8], peer: &Peer, side: PeerSide, id: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"server ");
    quoted(server, out);
    let mut number = |name: &str, value: u64, usual: u64| {
        if value != usual {
            out.extend_from_slice(format!(" {name}={value}").as_bytes());
        }
    };
    number("weight", u64::try_from(peer.weight).unwrap_or(1), 1);
    number("max_conns", peer.max_conns as u64, 0);
    number("max_fails", peer.max_fails, 1);
    if let Some(id) = peer.number {
        out.extend_from_slice(format!(" id={id}").as_bytes());
    }
    if peer.fail_timeout != Duration::from_secs(10) {
        out.extend_from_slice(format!(" fail_timeout={}s", peer.fail_timeout.as_secs()).as_bytes());
    }
    if !peer.slow_start.is_zero() {
        let slow_start = peer.slow_start.as_millis();
        out.extend_from_slice(format!(" slow_start={slow_start}ms").as_bytes());
    }
    if let Some(id) = id {
        parameter(b"route", id, out);
    }
    let flags = [
        (side == PeerSide::Backups, "backup"),
        (peer.down, "down"),
        (peer.draining, "drain"),
    ];
    for (_, flag) in flags.iter().filter(|(is_set, _)| *is_set) {
        out.push(b' ');
        out.extend_from_slice(flag.as_bytes());
    }
    out.extend_from_slice(b";\n");
}

fn parameter(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    quoted(&[name, b"=", value].concat(), out);
}

/// Appends a word with quotes and escapes as necessary.
fn quoted(word: &[u8], out: &mut Vec<u8>) {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".:-_=/[]".contains(byte);
    if word.iter().all(is_plain) {
        out.extend_from_slice(word);
        return;
    }
    out.push(b'"');
    for byte in word {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ::upstream::{Method, PeerSet};
    use engine::net::Address;

    use super::*;

    fn peer(address: &str, change: impl FnOnce(&mut Peer)) -> Peer {
        let mut peer = Peer::new(match address.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Inet(address.parse().unwrap()),
        });
        peer.id = hash_of(&peer.name);
        change(&mut peer);
        peer
    }

    fn peers() -> Peers {
        let primary = [
            peer("10.0.0.1:80", |peer| peer.server = "10.0.0.1".into()),
            peer("10.0.0.2:81", |peer| {
                (peer.weight, peer.max_conns, peer.max_fails) = (5, 7, 0);
                peer.fail_timeout = Duration::from_secs(60);
                peer.slow_start = Duration::from_millis(1500);
                peer.id = "a;b\"c".into();
                peer.down = true;
            }),
            peer("10.0.0.3:80", |peer| peer.server = "by-name.example".into()),
        ];
        let backup = [peer("unix:/run/a b", |peer| peer.draining = true)];
        Peers::new(
            PeerSet::new(primary),
            PeerSet::new(backup),
            Method::RoundRobin,
        )
    }

    #[test]
    fn lines_of_a_file() {
        let written = String::from_utf8(text(&peers(), 80)).unwrap();
        assert_eq!(
            written,
            "server 10.0.0.1;\n\
             server 10.0.0.2:81 weight=5 max_conns=7 max_fails=0 fail_timeout=60s slow_start=1500ms \
             \"route=a;b\\\"c\" down;\n\
             server 10.0.0.3:80;\n\
             server \"unix:/run/a b\" backup drain;\n"
        );
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = StateFile {
            path: folder.join("servers"),
            default_port: 80,
        };
        assert!(!file.has(&peers()));
        file.write(&peers()).unwrap();
        assert!(file.has(&peers()));
        // If the temporary name is a directory, the file cannot be written.
        fs::create_dir(folder.join("servers.new")).unwrap();
        let empty = Peers::new(PeerSet::default(), PeerSet::default(), Method::RoundRobin);
        assert!(file.write(&empty).is_err());
        assert!(file.has(&peers()), "the file is as it was");
        fs::remove_dir_all(&folder).unwrap();
        assert!(!Path::new(&folder).exists());
    }
}
