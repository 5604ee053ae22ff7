//! `dav_ext_methods`: the WebDAV methods beyond `dav_methods`.
//!
//! The directives are those of the well-known nginx-dav-ext-module
//! (<https://github.com/arut/nginx-dav-ext-module>), the protocol is RFC 4918. The only properties
//! are those of the file system, which cannot be set. Locks are exclusive write locks (`locks`). A
//! PROPFIND of infinite depth, also one without a Depth field, lists one level.

mod condition;
mod guard;
mod locks;
mod properties;
mod xml;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};
use framework::zone::{self, Zone, ZoneError as ZoneRefused};
use http::config::plan_builder::PlanBuilder;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::body::reading;
use http::request::interrupt::Interrupt;
use http::request::{Request, Step};
use http::response::output::page;
use http::response::source::Body;
use http::slots::PlanSlot;
use proto::method::Method;
use proto::uri::{self, Escape};

use crate::dav;

pub use guard::Guard;
use locks::{Lock, LockError, LockSettings, Locks};
use xml::LockInfo;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The default of `timeout=`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// The longest `timeout=` in seconds: the limit of a `Timeout` field (RFC 4918, section 10.7).
const TIMEOUT_MAX: u64 = u32::MAX as u64;

/// The longest body of a PROPFIND or LOCK, in bytes.
const BODY_SIZE_MAX: u64 = 64 * 1024;

/// The longest description of a lock's owner that is kept, in bytes.
const OWNER_SIZE_MAX: usize = 1024;

const CONTENT_TYPE: Bytes = Bytes::from_static(b"text/xml; charset=utf-8");

/// `dav_ext_methods [PROPFIND] [OPTIONS] [LOCK] [UNLOCK]`
pub static DAV_EXT_METHODS: Setting<Methods> = Setting::new(
    "dav_ext_methods",
    &["[PROPFIND] [OPTIONS] [LOCK] [UNLOCK] | off"],
    methods,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.default("off")
.manual("Allows these methods of WebDAV. LOCK and UNLOCK need `dav_ext_lock` as well.");

/// Declares the directive `dav_ext_lock_zone zone=name:size [timeout=time]`.
pub static DAV_EXT_LOCK_ZONE: Setting<()> = Setting::new(
    "dav_ext_lock_zone",
    &["zone=name:size [timeout=time]"],
    |setter| {
        setter
            .lines()
            .iter()
            .try_for_each(|line| declaration(line).map(drop))
    },
)
.contexts(Contexts::HTTP)
.arity(Arity::between(1, 2))
.inherit(Inherit::List)
.manual(
    "Declares a zone for locks, and how long one holds that is not refreshed: a minute, unless \
     `timeout` says otherwise. Where the zone is full, LOCK is answered with 507.",
);

/// Declares the directive `dav_ext_lock zone=name`.
pub static DAV_EXT_LOCK: Setting<Option<Box<str>>> =
    Setting::new("dav_ext_lock", &["zone=name | off"], lock_zone)
        .contexts(HSL)
        .default("off")
        .manual(
            "Keeps locks in this zone, and lets only those change a locked file who know its lock.",
        );

/// The allowed methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods {
    propfind: bool,
    options: bool,
    lock: bool,
    unlock: bool,
}

fn methods(setter: &Setter<'_>) -> Result<Methods, Fault> {
    let mut methods = Methods::default();
    let mut off = false;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let allowed = match &*word.bytes.to_ascii_lowercase() {
            b"propfind" => &mut methods.propfind,
            b"options" => &mut methods.options,
            b"lock" => &mut methods.lock,
            b"unlock" => &mut methods.unlock,
            b"off" => &mut off,
            _ => return Err(Fault::invalid_value(word)),
        };
        if std::mem::replace(allowed, true) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
    }
    Ok(methods)
}

fn lock_zone(setter: &Setter<'_>) -> Result<Option<Box<str>>, Fault> {
    let word = setter.word()?;
    match word.bytes.strip_prefix(b"zone=") {
        Some(name) if !name.is_empty() => Ok(Some(String::from_utf8_lossy(name).into())),
        None if &*word.bytes == b"off" => Ok(None),
        _ => Err(Fault::at(
            word,
            format!("invalid parameter \"{}\"", word.text()),
        )),
    }
}

/// The name, size and timeout of a zone.
fn declaration(line: &Line) -> Result<(Bytes, u64, Duration), Fault> {
    let mut zone = None;
    let mut timeout = TIMEOUT_DEFAULT;
    for word in &line.args {
        let invalid = || Fault::at(word, format!("invalid parameter \"{}\"", word.text()));
        if word.bytes.starts_with(b"zone=") {
            zone = Some(zone::parse_declaration(word)?);
        } else if let Some(time) = word.bytes.strip_prefix(b"timeout=") {
            let seconds = parse::time_seconds(time);
            let seconds = seconds.filter(|seconds| (1..=TIMEOUT_MAX).contains(seconds));
            timeout = Duration::from_secs(seconds.ok_or_else(invalid)?);
        } else {
            return Err(invalid());
        }
    }
    let text = "\"dav_ext_lock_zone\" must have \"zone\" parameter";
    let (name, size) = zone.ok_or_else(|| Fault::at(&line.name, text))?;
    Ok((name, size, timeout))
}

/// Declares the zones of the `http` block.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let lines = http.lines();
    for line in lines.iter().filter(|line| line.is("dav_ext_lock_zone")) {
        if let Err(fault) = declare(compiler, line) {
            compiler.report(fault.or_at(line.position));
        }
    }
}

fn declare(compiler: &Compiler<'_>, line: &Line) -> Result<(), Fault> {
    let (name, size, timeout) = declaration(line)?;
    let name = String::from_utf8_lossy(&name);
    let settings = LockSettings { timeout };
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<Locks>(&name, size, settings) {
        Ok(_) => Ok(()),
        Err(ZoneRefused::Conflict(text)) => Err(Fault::new(text)),
        Err(ZoneRefused::Declared(_)) => Err(Fault::new(format!("duplicate zone \"{name}\""))),
    }
}

/// `dav_ext_methods` and `dav_ext_lock` of a scope.
#[derive(Debug)]
pub struct DavExt {
    methods: Methods,
    /// The zone of `dav_ext_lock`.
    locks: Option<Arc<Zone<Locks>>>,
}

impl Feature for DavExt {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&DAV_EXT_METHODS, &DAV_EXT_LOCK];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<DavExt, Fault> {
        let locks =
            match scope.get(&DAV_EXT_LOCK)? {
                Some(name) => {
                    let zone = compiler.zones.borrow().find::<Locks>(&name);
                    Some(zone.map_err(|text| {
                        Fault::new(text).of_missing(&name, &["dav_ext_lock_zone"])
                    })?)
                }
                None => None,
            };
        Ok(DavExt {
            methods: scope.get(&DAV_EXT_METHODS)?,
            locks,
        })
    }
}

impl Module for DavExt {
    const TABLES: &'static [&'static [&'static dyn Declared]] =
        &[&[&DAV_EXT_LOCK_ZONE], DavExt::DIRECTIVES];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same("none of its methods is GET")];

    fn is_off(&self) -> bool {
        self.methods == Methods::default() && self.locks.is_none()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&DAV_EXT, self);
        plan.precontent(&Arc::new(Locked));
        plan.changes_files();
        plan.file(self);
    }
}

/// The path of the current URI in the form under which locks are stored: without a trailing slash,
/// and without repeated slashes.
fn locked_path(request: &mut Request) -> Vec<u8> {
    let mut path = super::dav::merge_slashes(&request.filename());
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    path
}

/// Refuses changes of locked files by clients without the token, before the body is read. The check
/// is repeated when the change is made.
struct Locked;

impl PhaseHandler for Locked {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        // LOCK is checked later: only its body tells whether it creates a lock or refreshes one.
        match request.method {
            Method::Get | Method::Head | Method::Post | Method::Lock => {
                MaybeFuture::Now(Ok(Step::Next))
            }
            _ => MaybeFuture::wait(async move { Ok(refuse_locked(request).await) }),
        }
    }
}

async fn refuse_locked(request: &mut Request) -> Step {
    match Guard::of(request).await {
        Ok(None) => Step::Next,
        Ok(Some(guard)) => {
            if engine::blocking(move || guard.allows()).await {
                Step::Next
            } else {
                Step::Finish(423)
            }
        }
        Err(status) => Step::Finish(status),
    }
}

/// The `dav_ext_*` settings of a plan; absent if they are off.
static DAV_EXT: PlanSlot<DavExt> = PlanSlot::new();

/// The zone of locks for the request's scope.
fn locks_of(request: &Request) -> Option<Arc<Zone<Locks>>> {
    request.plan.of(&DAV_EXT)?.locks.clone()
}

/// Removes the locks of a deleted file.
pub fn forget(request: &mut Request) {
    if let Some(zone) = locks_of(request) {
        let path = locked_path(request);
        zone.state().forget(&path, engine::now());
    }
}

impl PhaseHandler for DavExt {
    /// Handles requests with an allowed method.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        let Methods {
            propfind,
            options,
            lock,
            unlock,
        } = self.methods;
        match (request.method, &self.locks) {
            (Method::Propfind, _) if propfind => {
                MaybeFuture::wait(answer_propfind(request, exchange, self))
            }
            (Method::Options, _) if options => MaybeFuture::Now(Ok(answer_options(request, self))),
            (Method::Lock, Some(zone)) if lock => {
                MaybeFuture::wait(answer_lock(request, exchange, zone))
            }
            (Method::Unlock, Some(zone)) if unlock => {
                MaybeFuture::Now(Ok(answer_unlock(request, zone)))
            }
            _ => MaybeFuture::Now(Ok(Step::Next)),
        }
    }
}

fn answer_options(request: &mut Request, ext: &DavExt) -> Step {
    let locks = ext.locks.is_some() && ext.methods.lock && ext.methods.unlock;
    let mut allow = String::from("GET,HEAD,OPTIONS");
    if let Some(dav) = request.plan.of(&dav::DAV) {
        dav.names().for_each(|name| {
            allow.push(',');
            allow.push_str(name);
        });
    }
    for (allowed, name) in [(ext.methods.propfind, ",PROPFIND"), (locks, ",LOCK,UNLOCK")] {
        if allowed {
            allow.push_str(name);
        }
    }
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(0);
    response.add("DAV", if locks { "1, 2" } else { "1" });
    response.add("Allow", allow);
    Step::Respond(Body::Empty)
}

/// Reads the XML body of a request, which is limited to [`BODY_SIZE_MAX`].
async fn read_body(request: &mut Request, exchange: &mut Exchange) -> Result<Vec<u8>, Interrupt> {
    reading::read(request, exchange).await?;
    if request.body.received() > BODY_SIZE_MAX {
        logs::error!(request, Error, "client sent too large XML body");
        return Err(413.into());
    }
    if let Some(file) = request.body.file().cloned() {
        let length = usize::try_from(request.body.received()).unwrap_or(0);
        let read = file.read_at(0, length).await;
        return read.map(|bytes| bytes.to_vec()).map_err(|_| 500.into());
    }
    let parts = request.body.in_memory().unwrap_or_default();
    Ok(parts.concat())
}

fn bad_xml(request: &Request) -> Step {
    logs::error!(request, Error, "client sent invalid XML body");
    Step::Finish(400)
}

async fn answer_propfind(
    request: &mut Request,
    exchange: &mut Exchange,
    ext: &DavExt,
) -> Result<Step, Abort> {
    let body = match read_body(request, exchange).await {
        Ok(body) => body,
        Err(interrupt) => return interrupt.into_step(),
    };
    let Ok(wanted) = xml::propfind(&body) else {
        return Ok(bad_xml(request));
    };
    let list = match request.header_named(b"depth") {
        Some(b"0") => false,
        None | Some(b"1" | b"infinity") => true,
        Some(_) => {
            logs::error!(request, Error, "client sent invalid \"Depth\" header");
            return Ok(Step::Finish(400));
        }
    };
    let asked = properties::PropfindQuery {
        wanted,
        list,
        path: Request::path_of(&request.filename()),
        uri: request.uri.clone(),
        types: Arc::clone(&request.plan.types),
        locks: ext.locks.clone(),
        now: engine::now(),
    };
    let answer = engine::blocking_long(move || properties::answer(&asked)).await;
    Ok(match answer {
        Ok(answer) => page(request, 207, CONTENT_TYPE, answer.into()),
        Err(failure) => {
            let path = request.filename();
            let (path, error) = (logs::Printable(&path), logs::Errno(&failure.error));
            logs::error!(request, Error, "{} \"{path}\" failed {error}", failure.call);
            Step::Finish(failure.status)
        }
    })
}

async fn answer_lock(
    request: &mut Request,
    exchange: &mut Exchange,
    zone: &Arc<Zone<Locks>>,
) -> Result<Step, Abort> {
    let body = match read_body(request, exchange).await {
        Ok(body) => body,
        Err(interrupt) => return interrupt.into_step(),
    };
    let Ok(info) = xml::lock_info(&body) else {
        return Ok(bad_xml(request));
    };
    let path = locked_path(request);
    let infinite = match request.header_named(b"depth") {
        None | Some(b"infinity") => true,
        Some(b"0") => false,
        Some(_) => return Ok(Step::Finish(400)),
    };
    let Some(info) = info else {
        return Ok(refresh(request, zone, &path).await);
    };
    if !info.exclusive || !info.write {
        // RFC 4918, section 6.2: support of shared locks is optional.
        return Ok(Step::Finish(409));
    }
    Ok(lock(request, zone, &path, info, infinite).await)
}

/// Extends a lock.
async fn refresh(request: &mut Request, zone: &Zone<Locks>, path: &[u8]) -> Step {
    let conditions = match condition::check(request, zone, path).await {
        Ok(conditions) => conditions,
        Err(status) => return Step::Finish(status),
    };
    let tokens: Vec<&[u8]> = conditions.tokens().collect();
    if tokens.is_empty() {
        return Step::Finish(400);
    }
    let now = engine::now();
    let expires = now + zone.settings().timeout;
    match zone.state().refresh(path, &tokens, now, expires) {
        Some(lock) => respond_with_lock(request, zone, &lock, 200),
        None => Step::Finish(412),
    }
}

/// Locks a path; if it does not exist, an empty file is created (RFC 4918, section 7.3).
async fn lock(
    request: &mut Request,
    zone: &Arc<Zone<Locks>>,
    path: &[u8],
    info: LockInfo,
    infinite: bool,
) -> Step {
    let now = engine::now();
    let mut root = Vec::new();
    uri::escape(&request.uri, Escape::Uri, &mut root);
    let mut owner = info.owner;
    let cut = (0..=OWNER_SIZE_MAX.min(owner.len())).rev();
    let cut = cut.into_iter().find(|at| owner.is_char_boundary(*at));
    owner.truncate(cut.unwrap_or(0));
    let Ok(token) = new_token() else {
        return Step::Finish(500);
    };
    let lock = Lock {
        token: token.into(),
        owner: owner.into(),
        infinite,
        expires: now + zone.settings().timeout,
        root: String::from_utf8_lossy(&root).into(),
    };
    let guard = match Guard::of(request).await {
        Ok(guard) => guard,
        Err(status) => return Step::Finish(status),
    };
    let job = NewLock {
        guard,
        zone: Arc::clone(zone),
        path: path.to_vec(),
        lock: lock.clone(),
        now,
    };
    match engine::blocking(move || job.run()).await {
        Ok(made) => respond_with_lock(request, zone, &lock, if made { 201 } else { 200 }),
        Err(NotLocked::Refused(LockError::Locked)) => Step::Finish(423),
        Err(NotLocked::Refused(LockError::NoRoom)) => {
            let name = zone.name();
            logs::error!(request, Error, "could not allocate lock in zone \"{name}\"");
            Step::Finish(507)
        }
        Err(NotLocked::NoFile(error)) => {
            let (path, error) = (logs::Printable(path), logs::Errno(&error));
            logs::error!(request, Error, "open() \"{path}\" failed {error}");
            Step::Finish(409)
        }
    }
}

/// A lock to be created, with an empty file if there is none: a job of the thread pool.
struct NewLock {
    guard: Option<Guard>,
    zone: Arc<Zone<Locks>>,
    path: Vec<u8>,
    lock: Lock,
    now: Instant,
}

/// Why a lock was not created.
enum NotLocked {
    Refused(LockError),
    NoFile(std::io::Error),
}

impl NewLock {
    /// Creates the lock; true if a file was created.
    fn run(self) -> Result<bool, NotLocked> {
        if self.guard.is_some_and(|guard| !guard.allows()) {
            return Err(NotLocked::Refused(LockError::Locked));
        }
        let locks = self.zone.state();
        let token = self.lock.token.clone();
        locks
            .lock(&self.path, self.lock, self.now)
            .map_err(NotLocked::Refused)?;
        make_file(&Request::path_of(&self.path)).map_err(|error| {
            locks.unlock(&self.path, token.as_bytes(), self.now);
            NotLocked::NoFile(error)
        })
    }
}

/// Creates an empty file, unless the path exists.
fn make_file(path: &std::path::Path) -> std::io::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .open(path)
        .map(|_| true)
}

fn respond_with_lock(request: &mut Request, zone: &Zone<Locks>, lock: &Lock, status: u16) -> Step {
    let mut text = String::from(properties::PROLOGUE);
    text.push_str("<D:prop xmlns:D=\"DAV:\">\n<D:lockdiscovery>");
    properties::write_lock(lock, zone.settings().timeout.as_secs(), &mut text);
    text.push_str("</D:lockdiscovery>\n</D:prop>\n");
    let token = format!("<{}>", lock.token);
    request.response.add("Lock-Token", token);
    page(request, status, CONTENT_TYPE, text.into())
}

fn answer_unlock(request: &mut Request, zone: &Zone<Locks>) -> Step {
    let value = request.header_named(b"lock-token").map(<[u8]>::trim_ascii);
    let token = value.and_then(|value| value.strip_prefix(b"<")?.strip_suffix(b">"));
    let Some(token) = token.map(<[u8]>::to_vec) else {
        logs::error!(request, Error, "client sent invalid \"Lock-Token\" header");
        return Step::Finish(400);
    };
    let path = locked_path(request);
    if zone.state().unlock(&path, &token, engine::now()) {
        Step::Finish(204)
    } else {
        Step::Finish(409)
    }
}

/// A unique token: 122 random bits in the form of a UUID (RFC 9562).
fn new_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let number = u128::from_be_bytes(bytes);
    let number = number & !(0xf000 << 64) & !(0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
    let hex = format!("{number:032x}");
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    Ok(format!(
        "urn:uuid:{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    ))
}
