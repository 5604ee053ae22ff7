//! User files, which are read again without a reload when they change.
//!
//! nginx reads the file on every request. Here the file's metadata tells whether the cached content
//! is still current. A file that changed within the last seconds is not cached, since it may change
//! again with the same timestamp.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::hash::Map;
use bytes::Bytes;
use engine::file::{self, Metadata};
use framework::generation::GenerationView;
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use framework::warm;

/// Maximum number of files that a thread caches, since variables in a path may name any number of
/// files.
const FILES_KEPT_MAX: usize = 64;

/// The largest file that is cached, in bytes. Larger files are read on every request.
const KEPT_SIZE_MAX: u64 = 8 * 1024 * 1024;

/// The largest file that is parsed on the event loop, in bytes: about a thousand users.
const PARSED_AT_ONCE_MAX: usize = 64 * 1024;

/// Number of bytes that are read from a file at once.
const READ_SIZE: usize = 64 * 1024;

/// How long a file must be unchanged before it is cached, in seconds.
const SETTLED_AFTER: i64 = 2;

/// The step of reading that failed.
#[derive(Debug)]
pub(super) enum ReadError {
    Open(io::Error),
    Read(io::Error),
}

/// The users of one file.
#[derive(Debug, Default)]
pub struct Users {
    /// The stored password of each user, by name.
    passwords: Map<Bytes, Bytes>,
}

impl Users {
    /// Parses lines of `name:password[:comment]`. Of several lines with the same name, the first is
    /// used.
    pub fn parse(text: &Bytes) -> Users {
        let mut users = Users::default();
        for line in text.split(|byte| *byte == b'\n') {
            if matches!(line.first(), None | Some(b'#' | b'\r')) {
                continue;
            }
            let Some(colon) = memchr::memchr(b':', line) else {
                continue;
            };
            let (name, rest) = line.split_at(colon);
            let rest = rest.get(1..).unwrap_or_default();
            let mut fields = rest.split(|byte| matches!(byte, b':' | b'\r'));
            let password = fields.next().unwrap_or_default();
            users
                .passwords
                .entry(text.slice_ref(name))
                .or_insert_with(|| text.slice_ref(password));
        }
        users
    }

    /// The stored password of a user.
    pub fn password_of(&self, user: &[u8]) -> Option<&Bytes> {
        self.passwords.get(user)
    }
}

/// The files that a thread has cached.
#[derive(Default)]
struct UserFiles {
    files: Map<PathBuf, (Metadata, Rc<Users>)>,
}

static USER_FILES: Slot<UserFiles, ThreadGeneration> = Slot::new();

impl ThreadState for UserFiles {
    fn begin(_: &GenerationView) -> UserFiles {
        UserFiles::default()
    }
}

impl UserFiles {
    fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// The cached users of a file, if the file still has this metadata.
    fn find(&self, path: &Path, metadata: &Metadata) -> Option<Rc<Users>> {
        let (known, users) = self.files.get(path)?;
        (known == metadata).then(|| Rc::clone(users))
    }

    fn keep(&mut self, path: &Path, metadata: Metadata, users: &Rc<Users>) {
        if self.files.len() >= FILES_KEPT_MAX {
            self.files.clear();
        }
        self.files
            .insert(path.to_owned(), (metadata, Rc::clone(users)));
    }
}

/// The users in the current file.
pub(super) async fn read(local: &GenerationView, path: &Path) -> Result<Rc<Users>, ReadError> {
    let files = local.at(&USER_FILES);
    let read_before = files.borrow().has(path);
    let metadata = if !read_before {
        // Opening returns the metadata too, and never waits for the disk here.
        None
    } else if warm::was_checked_recently(path) {
        file::stat_now(path).ok()
    } else {
        let metadata = file::stat(path).await;
        metadata.inspect(|_| warm::looked_at(path)).ok()
    };
    if let Some(metadata) = metadata
        && let Some(users) = files.borrow().find(path, &metadata)
    {
        return Ok(users);
    }
    let (file, metadata) = file::open(path).await.map_err(ReadError::Open)?;
    warm::looked_at(path);
    let mut text = Vec::new();
    loop {
        let part = file.read_at(text.len() as u64, READ_SIZE).await;
        let part = part.map_err(ReadError::Read)?;
        if part.is_empty() {
            break;
        }
        text.extend_from_slice(&part);
    }
    let text = Bytes::from(text);
    let users = Rc::new(if text.len() <= PARSED_AT_ONCE_MAX {
        Users::parse(&text)
    } else {
        engine::blocking_long(move || Users::parse(&text)).await
    });
    let changed = metadata.mtime.max(metadata.ctime);
    let settled = engine::wall().as_secs() as i64 - changed > SETTLED_AFTER;
    if settled && metadata.size <= KEPT_SIZE_MAX {
        files.borrow_mut().keep(path, metadata, &users);
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `ngx_http_auth_basic_handler`.
    #[test]
    fn lines_are_read_as_nginx_reads_them() {
        let text = Bytes::from_static(
            b"# comment:x\n\nann:secret\r\nbob:hash:a comment\nbob:other\n name:x\nnobody\n:y\nlast:z",
        );
        let users = Users::parse(&text);
        let password = |user: &str| {
            let found = users.password_of(user.as_bytes())?;
            Some(String::from_utf8_lossy(found).into_owned())
        };
        assert_eq!(password("ann").as_deref(), Some("secret"));
        assert_eq!(password("bob").as_deref(), Some("hash"));
        assert_eq!(password(" name").as_deref(), Some("x"));
        assert_eq!(password("last").as_deref(), Some("z"));
        for user in ["# comment", "name", "nobody", "x"] {
            assert_eq!(password(user), None, "{user}");
        }
    }
}
