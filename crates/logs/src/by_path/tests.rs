//! Tests of the cache of open logs, and of lines queued for a file that the thread pool opens.

use std::path::PathBuf;

use super::*;
use crate::error::{ErrorLog, Sink, Threshold};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn cache(max: usize, uses_min: u64) -> Cache {
    Cache::new(&Arc::new(Limits {
        max,
        inactive: Duration::from_secs(20),
        uses_min,
        valid: Duration::from_secs(60),
    }))
}

/// Opens a file as [`append`] does if everything is in memory.
fn open(cache: &mut Cache, path: &Path, now: Instant) -> io::Result<Arc<LogFile>> {
    let kept = match cache.look_up(path, now) {
        CachedFile::Open(file) => return Ok(file),
        CachedFile::Unchecked(file) => Some(file),
        CachedFile::Closed => None,
    };
    let opened = LogFile::opened(path)?;
    let descriptor = opened.descriptor().unwrap();
    let file = kept
        .filter(|kept| kept.is_open_on(&*descriptor))
        .unwrap_or_else(|| Arc::new(opened));
    cache.opened(path, &file, now);
    Ok(file)
}

#[test]
fn files_used_often_stay_open_and_the_oldest_goes_first() {
    let folder = folder("log-cache");
    let now = Instant::now();
    let mut cache = cache(3, 2);
    let mut opened = |name: &str| open(&mut cache, &folder.join(name), now).unwrap();
    let lru = [opened("lru"), opened("lru"), opened("lru")];
    assert!(!Arc::ptr_eq(&lru[0], &lru[1]), "one use is too few");
    assert!(Arc::ptr_eq(&lru[1], &lru[2]));
    let once = opened("once");
    for name in ["first", "first", "second", "second"] {
        opened(name);
    }
    assert!(
        !Arc::ptr_eq(&opened("lru"), &lru[2]),
        "second took its place"
    );
    assert!(!Arc::ptr_eq(&opened("once"), &once));
    let second = opened("second");
    assert!(open(&mut cache, &folder.join("no/such/folder"), now).is_err());
    assert!(Arc::ptr_eq(
        &open(&mut cache, &folder.join("second"), now).unwrap(),
        &second
    ));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_pipe_that_nobody_reads_is_an_error() {
    let folder = folder("log-pipe");
    let path = folder.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let error = LogFile::opened(&path).err().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    let error = engine::file::append_now(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    let mut options = std::fs::File::options();
    let reader = options.read(true).write(true).open(&path).unwrap();
    assert!(LogFile::opened(&path).is_ok());
    drop(reader);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_was_moved_is_opened_again_when_it_is_checked() {
    let folder = folder("log-cache-moved");
    let path = folder.join("a");
    let mut cache = cache(10, 1);
    let now = Instant::now();
    let first = open(&mut cache, &path, now).unwrap();
    std::fs::rename(&path, folder.join("b")).unwrap();
    let later = now + Duration::from_secs(15);
    assert!(Arc::ptr_eq(
        &open(&mut cache, &path, later).unwrap(),
        &first
    ));
    for step in 2..5 {
        let then = now + Duration::from_secs(15 * step);
        assert!(Arc::ptr_eq(&open(&mut cache, &path, then).unwrap(), &first));
    }
    let moved = open(&mut cache, &path, now + Duration::from_secs(61)).unwrap();
    assert!(!Arc::ptr_eq(&moved, &first));
    cache.expire(now + Duration::from_secs(90));
    assert!(cache.files.is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_stays_is_kept_when_it_is_checked() {
    let folder = folder("log-cache-checked");
    let path = folder.join("a");
    let mut cache = cache(10, 1);
    let mut now = Instant::now();
    let first = open(&mut cache, &path, now).unwrap();
    for _ in 0..5 {
        now += Duration::from_secs(19);
        assert!(Arc::ptr_eq(&open(&mut cache, &path, now).unwrap(), &first));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs a test on a thread with an event loop and an error log, and returns the log.
fn run(folder: &Path, test: impl AsyncFnOnce(&dyn Fn() -> SubjectSnapshot)) -> String {
    let errors = Arc::new(LogFile::opened(&folder.join("error.log")).unwrap());
    let threshold = Threshold::new(Level::Error);
    let log = Arc::new(ErrorLog::new([(Sink::File(errors), threshold)]));
    let settings = engine::Settings::default();
    let mut runtime = engine::Runtime::new(engine::EngineKind::Epoll, settings).unwrap();
    unwritten::start_thread();
    runtime.block_on(test(&|| SubjectSnapshot::imagined(&log, ", client: a")));
    drop(runtime);
    unwritten::end_thread();
    std::fs::read_to_string(folder.join("error.log")).unwrap()
}

async fn opened(path: &Path) {
    while openings::is_opening(path) {
        engine::sleep(Duration::from_millis(1)).await;
    }
}

/// The pool creates a missing file: the line is queued, and so are later ones, whatever root they
/// have.
#[test]
fn lines_wait_in_order_for_a_file_that_is_opened_elsewhere() {
    let folder = folder("log-openings");
    let (path, other) = (folder.join("a.log"), folder.join("other"));
    std::fs::create_dir(&other).unwrap();
    let errors = run(&folder, async |note| {
        append(Some(&folder), &path, None, b"1\n", note).unwrap();
        assert!(!path.exists(), "the loop has opened it");
        append(Some(&other), &path, None, b"2\n", note).unwrap();
        append(Some(&folder), &path, None, b"3\n", note).unwrap();
        opened(&path).await;
        // Now everything is in memory.
        append(Some(&other), &path, None, b"4\n", note).unwrap();
        assert!(!openings::is_opening(&path));
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n3\n4\n");
    assert_eq!(errors, "");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A line of a request that was answered with a file below its root needs no test of the root.
#[test]
fn a_root_that_is_known_to_exist_is_not_asked_for() {
    let folder = folder("log-openings-known");
    let (missing, path) = (folder.join("missing"), folder.join("a.log"));
    let errors = run(&folder, async |note| {
        append(Some(&missing), &path, None, b"lost\n", note).unwrap();
        // The result of the previous line's job does not cover these lines: that job opened no
        // file.
        engine::yield_now().await;
        append(None, &path, None, b"1\n", note).unwrap();
        append(Some(&missing), &path, None, b"lost\n", note).unwrap();
        append(None, &path, None, b"2\n", note).unwrap();
        opened(&path).await;
        append(None, &path, None, b"3\n", note).unwrap();
        assert!(!openings::is_opening(&path));
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n3\n");
    assert_eq!(errors.matches("existence failed").count(), 2, "{errors}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn lines_that_wait_when_the_thread_ends_are_written() {
    let folder = folder("log-openings-end");
    let path = folder.join("a.log");
    run(&folder, async |note| {
        for number in 0..100 {
            let line = format!("{number}\n");
            append(Some(&folder), &path, None, line.as_bytes(), note).unwrap();
        }
        assert!(openings::is_opening(&path));
    });
    let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// nginx's texts; the reports describe the requests, which have ended.
#[test]
fn what_cannot_be_opened_elsewhere_is_told() {
    let folder = folder("log-openings-errors");
    let (missing, path) = (folder.join("missing"), folder.join("a.log"));
    let nowhere = folder.join("no/such.log");
    let errors = run(&folder, async |note| {
        append(Some(&missing), &path, None, b"lost\n", note).unwrap();
        append(Some(&folder), &nowhere, None, b"lost\n", note).unwrap();
        opened(&path).await;
        opened(&nowhere).await;
        assert!(
            !path.exists(),
            "nothing is created for a root that is missing"
        );
    });
    let (missing, nowhere) = (missing.display(), nowhere.display());
    for text in [
        format!(
            "*7 testing \"{missing}\" existence failed (2: No such file or directory) while \
             logging request, client: a\n"
        ),
        format!(
            "*7 open() \"{nowhere}\" failed (2: No such file or directory) while logging \
             request, client: a\n"
        ),
    ] {
        assert!(errors.contains(&text), "{errors}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A file in the cache needs no job. If its root was not tested for long, a job tests the root, and
/// the file is not opened again.
#[test]
fn a_file_in_the_cache_is_appended_to_at_once() {
    let folder = folder("log-openings-cache");
    let path = folder.join("a.log");
    let limits = Arc::new(Limits {
        max: 10,
        inactive: Duration::from_secs(20),
        uses_min: 2,
        valid: Duration::from_secs(60),
    });
    run(&folder, async |note| {
        let append =
            |line: &str| append(Some(&folder), &path, Some(&limits), line.as_bytes(), note);
        append("1\n").unwrap();
        append("2\n").unwrap();
        opened(&path).await;
        // Two uses: the file stays open.
        let CachedFile::Open(kept) = look_up(&path, Some(&limits)) else {
            panic!("it is closed");
        };
        append("3\n").unwrap();
        assert!(!openings::is_opening(&path));
        framework::warm::forget();
        append("4\n").unwrap();
        assert!(openings::is_opening(&path));
        opened(&path).await;
        let CachedFile::Open(same) = look_up(&path, Some(&limits)) else {
            panic!("it is closed");
        };
        assert!(Arc::ptr_eq(&kept, &same));
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n3\n4\n");
    std::fs::remove_dir_all(&folder).unwrap();
}
