//! The bundle: everything from which a worker process compiles a configuration, in one sealed
//! memory file plus descriptors.
//!
//! The format is a header and a sequence of fields; a number is eight bytes little-endian, a text
//! is its length and its bytes, a list is its count and its items. The parser trusts no length: any
//! bytes give an error or a value, and the parser never allocates more than it was given. The
//! bundle carries no compiled state, so it survives a crash and a change of the binary.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::syslog;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::application::{ErrorLogDestination, LogTarget};
use crate::confinement::{self, Confinement};
use crate::identity::Identity;
use crate::log::Level;
use crate::options::{Action, ErrorLog, Options};
use crate::programs::Program;

/// The input of a worker process's compilation.
pub struct Bundle {
    /// The number of the generation compiled from the bundle.
    pub generation: u64,
    /// The paths and directives of the command line; the action is always to start.
    pub options: Options,
    /// Every file that the master read for this configuration, and the addresses of every host it
    /// names.
    pub files: conf::RecordedFiles,
    /// Every descriptor that the configuration needs, by [`crate::RequiredDescriptor::key`].
    pub descriptors: HashMap<String, OwnedFd>,
}

/// The contents of a bundle's memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) generation: u64,
    pub(crate) options: Options,
    pub(crate) process: ProcessSettings,
    pub(crate) recording: conf::Recording,
    /// Keys of the descriptors, in the order in which they are sent.
    pub(crate) keys: Vec<String>,
}

/// The settings that a worker process applies to itself before it compiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessSettings {
    pub(crate) identity: Option<Identity>,
    pub(crate) open_files_max: Option<u64>,
    pub(crate) priority: i32,
    pub(crate) core_size_max: Option<u64>,
    pub(crate) working_directory: Option<PathBuf>,
    pub(crate) error_logs: Vec<LogTarget>,
    pub(crate) confinement: Confinement,
}

/// Why a bundle was refused.
#[derive(Debug)]
pub enum BundleError {
    /// The memory file could not be read.
    Read(io::Error),
    /// The memory file is not sealed: another process could still change it.
    NotSealed,
    /// The data does not begin with a bundle's magic bytes.
    NotABundle,
    /// The bundle ends in the middle of a field.
    Truncated,
    /// Bytes follow the last field.
    Trailing,
    /// A field has an invalid value; with the name of the field.
    Invalid(&'static str),
    /// The number of descriptors differs from the number of keys.
    Descriptors {
        /// How many the bundle names.
        named: usize,
        /// How many came with it.
        received: usize,
    },
}

impl Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BundleError::Read(error) => write!(f, "bundle cannot be read: {error}"),
            BundleError::NotSealed => f.write_str("bundle is not sealed"),
            BundleError::NotABundle => f.write_str("bundle has another format"),
            BundleError::Truncated => f.write_str("bundle is cut off"),
            BundleError::Trailing => f.write_str("bundle is longer than its fields"),
            BundleError::Invalid(field) => write!(f, "bundle holds an invalid {field}"),
            BundleError::Descriptors { named, received } => {
                write!(
                    f,
                    "bundle names {named} descriptors, {received} came with it"
                )
            }
        }
    }
}

impl std::error::Error for BundleError {}

/// Name and version of the format. A program reads only the version that it writes.
const MAGIC: &[u8] = b"tidegate bundle 3\n";

/// The seals that make the memory file immutable.
pub(crate) const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE);

/// Writes bytes to a memory file that no process can change any more.
pub(crate) fn seal(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("tidegate-bundle", flags)?);
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The bytes of a sealed memory file.
pub(crate) fn unseal(file: OwnedFd) -> Result<Vec<u8>, BundleError> {
    let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| BundleError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(BundleError::NotSealed);
    }
    let file = File::from(file);
    let length = file.metadata().map_err(BundleError::Read)?.len();
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| BundleError::Truncated)?];
    // Holders of the file share its offset, so the read must not depend on it.
    file.read_exact_at(&mut bytes, 0)
        .map_err(BundleError::Read)?;
    Ok(bytes)
}

/// Assigns each descriptor its key.
pub(crate) fn keyed(
    keys: Vec<String>,
    descriptors: Vec<OwnedFd>,
) -> Result<HashMap<String, OwnedFd>, BundleError> {
    let (named, received) = (keys.len(), descriptors.len());
    if named != received {
        return Err(BundleError::Descriptors { named, received });
    }
    Ok(keys.into_iter().zip(descriptors).collect())
}

/// Encodes the keys of reopened logs or of devices, whose descriptors are sent along.
pub(crate) fn encode_keys(keys: &[String]) -> Vec<u8> {
    let mut writer = Writer(MAGIC.to_vec());
    writer.list(keys, |writer, key| writer.text(key.as_bytes()));
    writer.0
}

/// The opposite of [`encode_keys`].
pub(crate) fn decode_keys(bytes: &[u8]) -> Result<Vec<String>, BundleError> {
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(BundleError::NotABundle)?);
    let keys = reader.list(|reader| reader.string("key"))?;
    reader.end()?;
    Ok(keys)
}

impl Contents {
    /// The bytes to seal.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(MAGIC.to_vec());
        writer.number(self.generation);
        writer.path(&self.options.prefix);
        writer.path(&self.options.conf_path);
        writer.option(match &self.options.error_log {
            ErrorLog::Stderr => None,
            ErrorLog::File(path) => Some(|writer: &mut Writer| writer.path(path)),
        });
        writer.list(&self.options.globals, |writer, text| writer.text(text));
        writer.number(u64::from(self.options.privileged));
        writer.option(self.process.identity.as_ref().map(|identity| {
            move |writer: &mut Writer| {
                writer.text(identity.name.as_bytes());
                writer.number(u64::from(identity.user));
                writer.number(u64::from(identity.group));
                writer.list(&identity.groups, |writer, group| {
                    writer.number(u64::from(*group))
                });
                writer.number(u64::from(identity.keeps_raw_network));
            }
        }));
        let open_files_max = self.process.open_files_max;
        writer.option(open_files_max.map(|max| move |writer: &mut Writer| writer.number(max)));
        writer.number(u64::from(self.process.priority.cast_unsigned()));
        let core_size_max = self.process.core_size_max;
        writer.option(core_size_max.map(|max| move |writer: &mut Writer| writer.number(max)));
        let directory = self.process.working_directory.as_ref();
        writer.option(directory.map(|path| move |writer: &mut Writer| writer.path(path)));
        writer.list(&self.process.error_logs, |writer, target| {
            writer.number(target.level as u64);
            writer.log_place(&target.place);
        });
        writer.confinement(&self.process.confinement);
        writer.list(&self.recording.files, |writer, (path, text)| {
            writer.path(path);
            writer.text(text);
        });
        writer.list(&self.recording.globs, |writer, (pattern, paths)| {
            writer.path(pattern);
            writer.list(paths, |writer, path| writer.path(path));
        });
        writer.list(&self.recording.hosts, |writer, (name, addresses)| {
            writer.text(name.as_bytes());
            writer.list(addresses, |writer, address| {
                writer.text(address.to_string().as_bytes());
            });
        });
        writer.list(&self.keys, |writer, key| writer.text(key.as_bytes()));
        writer.0
    }

    /// The opposite of [`Contents::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Contents, BundleError> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(BundleError::NotABundle)?);
        let generation = reader.number()?;
        let prefix = reader.path()?;
        let conf_path = reader.path()?;
        let error_log = match reader.option(Reader::path)? {
            Some(path) => ErrorLog::File(path),
            None => ErrorLog::Stderr,
        };
        let globals = reader.list(|reader| Ok(reader.text()?.to_vec()))?;
        let privileged = match reader.number()? {
            0 => false,
            1 => true,
            _ => return Err(BundleError::Invalid("privileges")),
        };
        let identity = reader.option(|reader| {
            Ok(Identity {
                name: reader.string("user name")?,
                user: reader.number32("user")?,
                group: reader.number32("group")?,
                groups: reader.list(|reader| reader.number32("group"))?,
                keeps_raw_network: reader.number()? != 0,
            })
        })?;
        let open_files_max = reader.option(Reader::number)?;
        let priority = reader.number32("priority")?.cast_signed();
        let core_size_max = reader.option(Reader::number)?;
        let working_directory = reader.option(Reader::path)?;
        let error_logs = reader.list(|reader| {
            let level = reader.number()?;
            let level = Level::ALL.into_iter().find(|known| *known as u64 == level);
            Ok(LogTarget {
                place: reader.log_place()?,
                level: level.ok_or(BundleError::Invalid("level"))?,
            })
        })?;
        let confinement = reader.confinement()?;
        let files = reader.list(|reader| Ok((reader.path()?, reader.text()?.to_vec())))?;
        let globs = reader.list(|reader| Ok((reader.path()?, reader.list(Reader::path)?)))?;
        let hosts = reader.list(|reader| {
            let name = reader.string("host name")?;
            let addresses = reader.list(|reader| {
                let address = reader.string("address")?.parse();
                address.map_err(|_| BundleError::Invalid("address"))
            })?;
            Ok((name, addresses))
        })?;
        let keys = reader.list(|reader| reader.string("key"))?;
        reader.end()?;
        Ok(Contents {
            generation,
            options: Options {
                prefix,
                conf_path,
                error_log,
                globals,
                action: Action::Start,
                quiet: false,
                privileged,
            },
            process: ProcessSettings {
                identity,
                open_files_max,
                priority,
                core_size_max,
                working_directory,
                error_logs,
                confinement,
            },
            recording: conf::Recording {
                files,
                globs,
                hosts,
            },
            keys,
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    fn path(&mut self, path: &Path) {
        self.text(path.as_os_str().as_bytes());
    }

    fn confinement(&mut self, confinement: &Confinement) {
        self.number(confinement.level as u64);
        self.list(&confinement.places, |writer, place| {
            writer.path(&place.path);
            writer.number(place.access as u64);
            writer.text(place.line.as_bytes());
        });
        self.number(u64::from(confinement.keeps_raw_network));
        self.number(u64::from(confinement.may_use_rings));
        self.list(&confinement.programs, |writer, program| {
            writer.path(&program.path);
            writer.list(&program.arguments, |writer, word| {
                writer.text(word.as_bytes())
            });
        });
    }

    fn log_place(&mut self, place: &ErrorLogDestination) {
        match place {
            ErrorLogDestination::Stderr => self.number(0),
            ErrorLogDestination::Descriptor(key) => {
                self.number(1);
                self.text(key.as_bytes());
            }
            ErrorLogDestination::Syslog(destination) => {
                match &destination.server {
                    syslog::Server::Inet(address) => {
                        self.number(2);
                        self.text(address.to_string().as_bytes());
                    }
                    syslog::Server::Unix(path) => {
                        self.number(3);
                        self.path(path);
                    }
                }
                self.number(destination.facility.into());
                self.text(destination.tag.as_bytes());
                let hostname = destination.hostname.as_ref();
                self.option(
                    hostname.map(|name| move |writer: &mut Writer| writer.text(name.as_bytes())),
                );
            }
        }
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
        self.number(items.len() as u64);
        for each in items {
            item(self, each);
        }
    }

    /// Writes an optional value as a list of no item or of one.
    fn option(&mut self, value: Option<impl FnOnce(&mut Writer)>) {
        self.number(u64::from(value.is_some()));
        if let Some(write) = value {
            write(self);
        }
    }
}

/// Parses fields from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BundleError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(BundleError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, BundleError> {
        let (bytes, rest) = self
            .0
            .split_first_chunk::<8>()
            .ok_or(BundleError::Truncated)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn number32(&mut self, field: &'static str) -> Result<u32, BundleError> {
        u32::try_from(self.number()?).map_err(|_| BundleError::Invalid(field))
    }

    fn text(&mut self) -> Result<&'a [u8], BundleError> {
        let length = self.number()?;
        self.take(usize::try_from(length).map_err(|_| BundleError::Truncated)?)
    }

    fn string(&mut self, field: &'static str) -> Result<String, BundleError> {
        String::from_utf8(self.text()?.to_vec()).map_err(|_| BundleError::Invalid(field))
    }

    fn path(&mut self) -> Result<PathBuf, BundleError> {
        Ok(PathBuf::from(std::ffi::OsString::from_vec(
            self.text()?.to_vec(),
        )))
    }

    fn confinement(&mut self) -> Result<Confinement, BundleError> {
        use confinement::{Level, PathAccess, PathRule};
        let level = self.number()?;
        let level = Level::ALL.into_iter().find(|one| *one as u64 == level);
        let places = self.list(|reader| {
            let path = reader.path()?;
            let access = reader.number()?;
            let access = PathAccess::ALL
                .into_iter()
                .find(|one| *one as u64 == access);
            Ok(PathRule {
                path,
                access: access.ok_or(BundleError::Invalid("access"))?,
                line: reader.string("line")?,
            })
        })?;
        Ok(Confinement {
            level: level.ok_or(BundleError::Invalid("level of confinement"))?,
            places,
            keeps_raw_network: self.number()? != 0,
            may_use_rings: self.number()? != 0,
            programs: self.list(|reader| {
                let path = reader.path()?;
                let arguments = reader.list(|reader| Ok(reader.path()?.into_os_string()))?;
                Ok(Program { path, arguments })
            })?,
        })
    }

    fn log_place(&mut self) -> Result<ErrorLogDestination, BundleError> {
        let server = match self.number()? {
            0 => return Ok(ErrorLogDestination::Stderr),
            1 => return Ok(ErrorLogDestination::Descriptor(self.string("key")?)),
            2 => {
                let address = self.string("syslog server")?.parse();
                syslog::Server::Inet(address.map_err(|_| BundleError::Invalid("syslog server"))?)
            }
            3 => syslog::Server::Unix(self.path()?),
            _ => return Err(BundleError::Invalid("log")),
        };
        let facility = u8::try_from(self.number()?);
        Ok(ErrorLogDestination::Syslog(syslog::Destination {
            server,
            facility: facility.map_err(|_| BundleError::Invalid("facility"))?,
            tag: self.string("tag")?,
            hostname: self.option(|reader| reader.string("hostname"))?,
        }))
    }

    /// The count is never used to allocate: an item has at least eight bytes, so a wrong count ends
    /// in `Truncated`.
    fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Reader<'a>) -> Result<T, BundleError>,
    ) -> Result<Vec<T>, BundleError> {
        let mut items = Vec::new();
        for _ in 0..self.number()? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn option<T>(
        &mut self,
        item: impl FnOnce(&mut Reader<'a>) -> Result<T, BundleError>,
    ) -> Result<Option<T>, BundleError> {
        match self.number()? {
            0 => Ok(None),
            1 => item(self).map(Some),
            _ => Err(BundleError::Invalid("option")),
        }
    }

    fn end(self) -> Result<(), BundleError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BundleError::Trailing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Contents {
        Contents {
            generation: 7,
            options: Options {
                prefix: "/usr/share/nginx".into(),
                conf_path: "/etc/nginx/nginx.conf".into(),
                error_log: ErrorLog::File("/var/log/nginx/error.log".into()),
                globals: vec![b"daemon off;".to_vec()],
                action: Action::Start,
                quiet: false,
                privileged: true,
            },
            process: ProcessSettings {
                identity: Some(Identity {
                    name: "www-data".into(),
                    user: 33,
                    group: 33,
                    groups: vec![33, 4],
                    keeps_raw_network: true,
                }),
                open_files_max: Some(20_000),
                priority: -5,
                core_size_max: Some(500_000_000),
                working_directory: Some("/tmp".into()),
                error_logs: vec![
                    LogTarget {
                        place: ErrorLogDestination::Descriptor("log /x".into()),
                        level: Level::Debug,
                    },
                    LogTarget {
                        place: ErrorLogDestination::Stderr,
                        level: Level::Error,
                    },
                    LogTarget {
                        place: ErrorLogDestination::Syslog(syslog::Destination {
                            server: syslog::Server::Inet("[::1]:514".parse().unwrap()),
                            facility: 23,
                            tag: "nginx".into(),
                            hostname: Some("host".into()),
                        }),
                        level: Level::Error,
                    },
                    LogTarget {
                        place: ErrorLogDestination::Syslog(syslog::Destination {
                            server: syslog::Server::Unix("/dev/log".into()),
                            facility: 0,
                            tag: "tag".into(),
                            hostname: None,
                        }),
                        level: Level::Error,
                    },
                ],
                confinement: Confinement {
                    level: confinement::Level::Strict,
                    places: vec![confinement::PathRule {
                        path: "/var/cache/nginx".into(),
                        access: confinement::PathAccess::Append,
                        line: "\"access_log\" in /etc/nginx/nginx.conf:7".into(),
                    }],
                    keeps_raw_network: true,
                    may_use_rings: false,
                    programs: vec![Program {
                        path: "/usr/bin/hook".into(),
                        arguments: vec!["--zone".into()],
                    }],
                },
            },
            recording: conf::Recording {
                files: vec![(
                    "/etc/nginx/nginx.conf".into(),
                    b"events {}\n\xff\0".to_vec(),
                )],
                globs: vec![("/etc/nginx/*.conf".into(), vec!["/etc/nginx/a.conf".into()])],
                hosts: vec![(
                    "backend".into(),
                    vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                )],
            },
            keys: vec!["listen 127.0.0.1:80".into(), "log /x".into()],
        }
    }

    #[test]
    fn contents_survive_the_way() {
        let contents = example();
        assert_eq!(Contents::decode(&contents.encode()).unwrap(), contents);
        let bare = Contents {
            process: ProcessSettings::default(),
            ..contents
        };
        assert_eq!(Contents::decode(&bare.encode()).unwrap(), bare);
    }

    #[test]
    fn a_bundle_cut_off_anywhere_is_refused() {
        let bytes = example().encode();
        for length in 0..bytes.len() {
            assert!(
                Contents::decode(&bytes[..length]).is_err(),
                "{length} bytes"
            );
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(
            Contents::decode(&longer),
            Err(BundleError::Trailing)
        ));
    }

    #[test]
    fn lengths_are_not_trusted() {
        let bytes = example().encode();
        // Replaces every eight bytes in turn by the largest number: the result is an error or
        // another value, never a panic or a huge allocation.
        for at in MAGIC.len()..bytes.len() - 8 {
            let mut broken = bytes.clone();
            broken[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            let _ = Contents::decode(&broken);
        }
    }

    #[test]
    fn a_sealed_text_cannot_change() {
        let file = seal(b"text").unwrap();
        let again = File::from(file.try_clone().unwrap());
        assert!(again.write_at(b"x", 0).is_err());
        assert!(again.set_len(0).is_err());
        assert_eq!(unseal(file).unwrap(), b"text");
    }

    #[test]
    fn a_text_that_can_change_is_refused() {
        let file = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(unseal(file), Err(BundleError::NotSealed)));
    }

    #[test]
    fn keys_alone_survive_the_way() {
        let keys = vec!["log /a".to_owned(), "log /b".to_owned()];
        assert_eq!(decode_keys(&encode_keys(&keys)).unwrap(), keys);
        assert!(matches!(
            keyed(keys, Vec::new()),
            Err(BundleError::Descriptors {
                named: 2,
                received: 0
            })
        ));
    }
}
