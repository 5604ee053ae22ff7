//! What only a process of its own can be made to bear: it is killed while it stores, its disk is
//! full, its folder takes nothing.
//!
//! Each test runs this program again, as [`child`], under the conditions that it is about.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_store::disk::{
    DiskStore, EntryId, FillChunk, Filler, Miss, NewHead, Presence, Settings, Stage, StoreError,
};

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a child does, and in which folder.
const TASK: &str = "TIDEGATE_STORE_TASK";
const FOLDER: &str = "TIDEGATE_STORE_FOLDER";

/// A folder that goes with the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let name = format!("tidegate-store-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn settings(folder: &Path) -> Settings {
    Settings {
        path: folder.to_owned(),
        levels: "1:2".parse().unwrap(),
        index_size: 1 << 20,
        max_size: None,
        min_free: 0,
        inactive: 600_000,
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files
}

fn is_temporary(path: &Path) -> bool {
    path.extension().is_some()
}

/// The body of an entry, by its number.
fn body(number: usize) -> Vec<u8> {
    let length = number * 7919 % 200_000;
    (0..length)
        .map(|at| (at.wrapping_mul(31) ^ number) as u8)
        .collect()
}

fn begin(store: &Arc<DiskStore>, number: usize) -> Filler {
    let key = number.to_string();
    let id = EntryId::of(&[key.as_bytes()]);
    let mut filler = store.filler(&id);
    let head = NewHead {
        key: key.into(),
        ..NewHead::default()
    };
    filler.begin(id, head).unwrap();
    filler
}

fn write(filler: &mut Filler) -> Result<Stage, StoreError> {
    let mut stage = Stage::More;
    while let Some(write) = filler.next_write() {
        stage = filler.wrote(write.run())?;
    }
    Ok(stage)
}

fn put(store: &Arc<DiskStore>, number: usize) -> Result<Stage, StoreError> {
    let mut filler = begin(store, number);
    for piece in body(number).chunks(30_000) {
        filler.push(piece.to_vec().into());
        write(&mut filler)?;
    }
    filler.finish(0).unwrap();
    write(&mut filler)
}

/// Whether an entry is there; then its body is right.
fn is_stored(store: &DiskStore, number: usize) -> bool {
    let key = number.to_string();
    let id = EntryId::of(&[key.as_bytes()]);
    let mut opened = match store.open_entry(&id, key.as_bytes(), 0) {
        Ok(opened) => opened,
        Err(Miss::Gone) => return false,
        Err(miss) => panic!("{miss:?}"),
    };
    opened.check_body(store).unwrap();
    let range = opened.body.clone();
    let mut read = vec![0; (range.end - range.start) as usize];
    fs::File::from(opened.into_file().unwrap())
        .read_exact_at(&mut read, range.start)
        .unwrap();
    assert!(read == body(number), "{number}");
    true
}

/// A shell command line that runs [`child`], which stands in it as `"$0" "$@"`.
fn run(task: &str, folder: &Path, line: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new("sh")
        .arg("-c")
        .arg(line)
        .arg(program)
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(TASK, task)
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "run by the others, as a process of its own"]
fn child() {
    let Some(task) = std::env::var_os(TASK) else {
        return; // someone runs all that is ignored
    };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    match task.to_str() {
        Some("store") => {
            let store = DiskStore::open(&settings(&folder)).unwrap();
            for number in 0.. {
                put(&store, number % 500).unwrap();
            }
        }
        Some("full") => full_disk(&folder),
        Some("refused") => refused(&folder),
        _ => panic!("no such task: {task:?}"),
    }
}

#[test]
fn what_a_killed_process_leaves_is_right() {
    let folder = TestFolder::new("killed");
    let mut temporary = 0;
    for round in 0..20 {
        let mut child = run("store", &folder.0, "exec \"$0\" \"$@\"");
        // Killed at another moment each time, but not before it has begun.
        let begin = Instant::now();
        let wanted = 3 + round * 5 % 29;
        while files(&folder.0).len() < wanted || (round % 2 == 1 && !has_temporary(&folder)) {
            assert!(begin.elapsed() < PATIENCE && child.try_wait().unwrap().is_none());
            thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        temporary += usize::from(has_temporary(&folder));

        let store = DiskStore::open(&settings(&folder.0)).unwrap();
        assert!(
            store.try_acquire_ownership(),
            "the lock went with the process"
        );
        let mut scanner = store.scanner();
        while scanner.step(100, 0) {}
        assert!(!has_temporary(&folder));
        let stored = (0..500).filter(|number| is_stored(&store, *number)).count();
        assert_eq!(stored, files(&folder.0).len());
        assert_eq!(store.counts().entries, stored as u64);
        store.purge_matching(|key| key.len() > 1);
    }
    assert!(temporary > 0, "it was never killed while it wrote");
}

fn has_temporary(folder: &TestFolder) -> bool {
    files(&folder.0).iter().any(|path| is_temporary(path))
}

/// Stores until the disk takes no more; then the body still reaches its readers, nothing is left of
/// what could not be stored, and all goes on where there is room again.
fn full_disk(folder: &Path) {
    let store = DiskStore::open(&settings(folder)).unwrap();
    let mut stored = 0;
    let refused = loop {
        match put(&store, stored + 1) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10_000, "the disk is never full");
    };
    assert!(matches!(refused, StoreError::Failed(_)), "{refused}");
    assert_eq!(files(folder).len(), stored);
    assert!((1..=stored).all(|number| is_stored(&store, number)));

    let large: Vec<u8> = body(25).repeat(80);
    let mut filler = begin(&store, 0);
    let mut reader = filler.fill().reader().unwrap();
    let (mut read, mut failed) = (0, 0);
    for piece in large.chunks(30_000) {
        assert!(filler.has_room());
        filler.push(piece.to_vec().into());
        failed += usize::from(write(&mut filler).is_err());
        loop {
            let length = match reader.next(usize::MAX) {
                FillChunk::Bytes(bytes) => {
                    assert!(bytes == large[read..read + bytes.len()]);
                    bytes.len()
                }
                FillChunk::File {
                    file,
                    offset,
                    length,
                } => {
                    let mut part = vec![0; length as usize];
                    let file = fs::File::from(file.try_clone().unwrap());
                    file.read_exact_at(&mut part, offset).unwrap();
                    assert!(part == large[read..read + part.len()]);
                    part.len()
                }
                FillChunk::Nothing => break,
                FillChunk::End | FillChunk::Broken => panic!("at {read}"),
            };
            read += length;
        }
    }
    filler.finish(0).unwrap();
    assert_eq!((read, failed), (large.len(), 1));
    assert!(matches!(reader.next(1), FillChunk::End));
    drop(filler);
    drop(reader);
    assert_eq!(files(folder).len(), stored);

    let id = EntryId::of(&[b"1"]);
    for number in 1..=stored {
        let key = number.to_string();
        assert!(store.purge(&EntryId::of(&[key.as_bytes()])).unwrap());
    }
    assert_eq!(store.counts().bytes, 0);
    assert_eq!(put(&store, 1), Ok(Stage::Committed));
    assert_eq!(store.lookup(&id, 0).presence, Presence::Present);
}

/// A file system of two megabytes, which only root may mount, and that only for itself.
#[test]
fn full_disk_stops_storing_and_nothing_else() {
    let folder = TestFolder::new("full");
    let line = "unshare -m sh -c 'mount -t tmpfs -o size=2m none \"$FOLDER\" || exit 77
        exec \"$0\" \"$@\"' \"$0\" \"$@\""
        .replace("$FOLDER", &format!("${FOLDER}"));
    let status = run("full", &folder.0, &line).wait().unwrap();
    if matches!(status.code(), Some(77 | 1)) && !may_mount() {
        eprintln!("skipped: no file system may be mounted here");
        return;
    }
    assert!(status.success());
}

fn may_mount() -> bool {
    let mut mount = Command::new("unshare");
    let mount = mount.args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]);
    mount
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A limit on the length of files, as a quota or a small disk would be.
#[test]
fn limit_on_files_stops_storing_and_nothing_else() {
    let folder = TestFolder::new("limit");
    let line = "trap '' XFSZ; ulimit -f 300; exec \"$0\" \"$@\"";
    assert!(run("full", &folder.0, line).wait().unwrap().success());
}

/// A folder in which nothing may be made.
fn refused(folder: &Path) {
    let store = DiskStore::open(&settings(folder)).unwrap();
    assert!(is_stored(&store, 1), "what is there is served");
    let refused = put(&store, 2);
    assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
    assert!(matches!(
        store.save_index(false, 0),
        Err(StoreError::Failed(_))
    ));
    let purged = store.purge(&EntryId::of(&[b"1"]));
    assert!(purged.is_err());
    let found = store.lookup(&EntryId::of(&[b"1"]), 0);
    assert_ne!(found.presence, Presence::Present, "it is not served again");
    let mut scanner = store.scanner();
    while scanner.step(100, 0) {}
    assert!(store.purge_matching(|_| true).failed == 1);
    assert_eq!(store.counts().bytes, 0);
}

#[test]
fn folder_that_takes_nothing_stops_storing_and_nothing_else() {
    let folder = TestFolder::new("refused");
    let store = DiskStore::open(&settings(&folder.0)).unwrap();
    put(&store, 1).unwrap();
    drop(store);
    let change = |mode: &str| {
        let mut change = Command::new("chmod");
        change.args(["-R", mode]).arg(&folder.0).status().unwrap();
    };
    change("a=rX");
    // Permissions do not stop root.
    let line = "if [ $(id -u) != 0 ]; then exec \"$0\" \"$@\"; fi
        exec setpriv --reuid 65534 --clear-groups --inh-caps=-all \"$0\" \"$@\"";
    let status = run("refused", &folder.0, line).wait().unwrap();
    change("u+w");
    assert!(status.success());
}
