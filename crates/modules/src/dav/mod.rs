//! `dav_methods`: PUT, DELETE, MKCOL, COPY and MOVE of WebDAV.
//!
//! <https://nginx.org/en/docs/http/ngx_http_dav_module.html>, RFC 4918. This file parses requests
//! and checks them as nginx does; `files` does the file operations, on the thread pool. As in
//! nginx, failures within a tree are logged, and not reported to the client with status 207.

mod files;

use std::ops::BitOr;
use std::path::PathBuf;
use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use files::{Delete, Depth, Put, Transfer};
use framework::compile::{Compiler, Feature};
use http::config::core::Alias;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::body::reading;
use http::request::{Request, Step};
use http::response::source::Body;
use http::slots::PlanSlot;
use logs::Printable;
use proto::date;
use proto::header::KnownField;
use proto::method::Method;
use proto::uri::{self, Escape};

use crate::dav_ext::{self, Guard};
use http::files::rename::RenameResult;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `dav_methods off | method ...`
pub static DAV_METHODS: Setting<Methods> =
    Setting::new("dav_methods", &["off | method ..."], methods)
        .contexts(HSL)
        .arity(Arity::at_least(1))
        .inherit(Inherit::List)
        .default("off")
        .manual(
            "Allows these methods of WebDAV: PUT, DELETE, MKCOL, COPY, MOVE. A file that is put is \
             first written below `client_body_temp_path` and then renamed, which is done at once \
             only where both are on one file system.",
        );

/// `create_full_put_path on | off`
pub static CREATE_FULL_PUT_PATH: Setting<bool> =
    Setting::new("create_full_put_path", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual("Lets PUT make the directories that its path goes through.");

/// Declares the directive `min_delete_depth number`.
pub static MIN_DELETE_DEPTH: Setting<u64> =
    Setting::new("min_delete_depth", &["number"], parse::number)
        .contexts(HSL)
        .default("0")
        .manual("Lets DELETE remove only what has at least this number of elements in its path.");

/// Declares the directive `dav_access users:permissions ...`.
pub static DAV_ACCESS: Setting<u32> =
    Setting::new("dav_access", &["users:permissions ..."], parse::access)
        .contexts(HSL)
        .arity(Arity::between(1, 3))
        .default("user:rw")
        .manual(
            "The permissions of new files and directories: `user:`, `group:` or `all:` with `r` or \
             `rw`. Without `user:` the user may read and write.",
        );

/// Methods as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods(u8);

impl Methods {
    const NONE: Methods = Methods(0);
    const PUT: Methods = Methods(1);
    const DELETE: Methods = Methods(1 << 1);
    const MKCOL: Methods = Methods(1 << 2);
    const COPY: Methods = Methods(1 << 3);
    const MOVE: Methods = Methods(1 << 4);
    const OFF: Methods = Methods(1 << 7);

    fn contains(self, other: Methods) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set that contains only this method; `OFF` for a method that `dav_methods` does not know.
    fn of(method: Method) -> Methods {
        match method {
            Method::Put => Methods::PUT,
            Method::Delete => Methods::DELETE,
            Method::Mkcol => Methods::MKCOL,
            Method::Copy => Methods::COPY,
            Method::Move => Methods::MOVE,
            _ => Methods::OFF,
        }
    }
}

impl BitOr for Methods {
    type Output = Methods;

    fn bitor(self, other: Methods) -> Methods {
        Methods(self.0 | other.0)
    }
}

fn methods(setter: &Setter<'_>) -> Result<Methods, Fault> {
    let mut methods = Methods::NONE;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let method = match &*word.bytes.to_ascii_lowercase() {
            b"off" => Methods::OFF,
            b"put" => Methods::PUT,
            b"delete" => Methods::DELETE,
            b"mkcol" => Methods::MKCOL,
            b"copy" => Methods::COPY,
            b"move" => Methods::MOVE,
            _ => return Err(Fault::invalid_value(word)),
        };
        if methods.contains(method) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        methods = methods | method;
    }
    Ok(Methods(methods.0 & !Methods::OFF.0))
}

/// `dav_methods` and related directives.
#[derive(Debug)]
pub struct Dav {
    methods: Methods,
    create_full_put_path: bool,
    min_delete_depth: u64,
    /// `dav_access`: the permissions of new files.
    access: u32,
}

impl Feature for Dav {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &DAV_METHODS,
        &CREATE_FULL_PUT_PATH,
        &MIN_DELETE_DEPTH,
        &DAV_ACCESS,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Dav, Fault> {
        Ok(Dav {
            methods: scope.get(&DAV_METHODS)?,
            create_full_put_path: scope.get(&CREATE_FULL_PUT_PATH)?,
            min_delete_depth: scope.get(&MIN_DELETE_DEPTH)?,
            access: scope.get(&DAV_ACCESS)?,
        })
    }
}

impl Dav {
    /// The names of the allowed methods.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            Method::Put,
            Method::Delete,
            Method::Mkcol,
            Method::Copy,
            Method::Move,
        ];
        let methods = self.methods;
        let allowed = move |method: &Method| methods.contains(Methods::of(*method));
        all.into_iter().filter(allowed).map(Method::name)
    }
}

/// The `dav_methods` settings of a plan; absent if no method is allowed.
pub static DAV: PlanSlot<Dav> = PlanSlot::new();

impl Module for Dav {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Content, &["dav_methods"])];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same("none of its methods is GET")];

    /// No method is allowed.
    fn is_off(&self) -> bool {
        self.methods == Methods::NONE
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&DAV, self);
        plan.changes_files();
        plan.file(self);
    }
}

impl PhaseHandler for Dav {
    /// Handles requests with an allowed method.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if !self.methods.contains(Methods::of(request.method)) {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        MaybeFuture::wait(async move {
            match request.method {
                Method::Put => put(request, exchange, self).await,
                Method::Delete => Ok(delete(request, self).await),
                Method::Mkcol => Ok(make_collection(request, self).await),
                _ => Ok(transfer(request, self).await),
            }
        })
    }
}

/// Runs a file operation on the thread pool and logs the lines of its result. Status 423 instead if
/// a lock forbids the change.
async fn run(request: &mut Request, job: impl FnOnce() -> RenameResult + Send + 'static) -> u16 {
    let guard = match Guard::of(request).await {
        Ok(guard) => guard,
        Err(status) => return status,
    };
    let done = engine::blocking_long(move || {
        if guard.is_none_or(|guard| guard.allows()) {
            job()
        } else {
            RenameResult::default().with(423)
        }
    })
    .await;
    for (level, line) in &done.lines {
        logs::write(request, *level, format_args!("{line}"));
    }
    done.status
}

fn path_of(request: &mut Request) -> PathBuf {
    let path = request.filename();
    Request::path_of(&path)
}

/// Handles PUT: reads the body into a temporary file and moves the file to its target.
async fn put(request: &mut Request, exchange: &mut Exchange, dav: &Dav) -> Result<Step, Abort> {
    if request.uri.ends_with(b"/") {
        logs::error!(request, Error, "cannot PUT to a collection");
        return Ok(Step::Finish(409));
    }
    if request.header(KnownField::ContentRange).is_some() {
        logs::error!(request, Error, "PUT with range is unsupported");
        return Ok(Step::Finish(501));
    }
    if let Err(interrupt) = reading::read_into_file(request, exchange).await {
        return interrupt.into_step();
    }
    let Some(temporary) = request.body.take_file() else {
        logs::error!(request, Error, "PUT request body must be in a file");
        return Ok(Step::Finish(500));
    };
    let job = Put {
        temporary,
        target: path_of(request),
        access: dav.access,
        modified: request.header_named(b"date").and_then(date::parse_http),
        create_path: dav.create_full_put_path,
    };
    let status = run(request, move || files::put(&job)).await;
    if !matches!(status, 201 | 204) {
        request.body.return_file();
        return Ok(Step::Finish(status));
    }
    if status == 201 {
        set_location(request);
        request.response.content_length = Some(0);
    }
    request.response.status = status;
    Ok(Step::Respond(Body::Empty))
}

/// Sets Location to the URI of the created resource.
fn set_location(request: &mut Request) {
    let mut location = Vec::with_capacity(request.uri.len());
    uri::escape(&request.uri, Escape::Uri, &mut location);
    request.response.location = Some(location.into());
}

fn has_body(request: &Request) -> bool {
    request.body.expected()
}

async fn delete(request: &mut Request, dav: &Dav) -> Step {
    if has_body(request) {
        logs::error!(request, Error, "DELETE with body is unsupported");
        return Step::Finish(415);
    }
    if dav.min_delete_depth > 0
        && let Err(depth) = check_depth(&request.uri, dav.min_delete_depth)
    {
        logs::error!(request, Error, "insufficient URI depth:{depth} to DELETE");
        return Step::Finish(409);
    }
    let job = Delete {
        path: path_of(request),
        is_collection: request.uri.ends_with(b"/"),
        depth: request.header_named(b"depth").map(<[u8]>::to_vec),
    };
    let status = run(request, move || files::delete(&job)).await;
    if status == 204 {
        dav_ext::forget(request);
    }
    Step::Finish(status)
}

/// Checks that a path has at least `depth_min` elements. The error is the number of slashes in the
/// path.
fn check_depth(path: &[u8], depth_min: u64) -> Result<(), u64> {
    let mut depth = 0;
    for (at, byte) in path.iter().enumerate() {
        if *byte == b'/' {
            depth += 1;
            if depth >= depth_min && at + 1 < path.len() {
                return Ok(());
            }
        }
    }
    Err(depth)
}

async fn make_collection(request: &mut Request, dav: &Dav) -> Step {
    if has_body(request) {
        logs::error!(request, Error, "MKCOL with body is unsupported");
        return Step::Finish(415);
    }
    if !request.uri.ends_with(b"/") {
        logs::error!(request, Error, "MKCOL can create a collection only");
        return Step::Finish(409);
    }
    let mut path = request.filename();
    path.pop();
    let (path, access) = (Request::path_of(&path), dav.access);
    let status = run(request, move || files::make_collection(&path, access)).await;
    if status == 201 {
        set_location(request);
    }
    Step::Finish(status)
}

async fn transfer(request: &mut Request, dav: &Dav) -> Step {
    if has_body(request) {
        logs::error!(request, Error, "COPY and MOVE with body are unsupported");
        return Step::Finish(415);
    }
    let job = match transfer_of(request, dav) {
        Ok(job) => job,
        Err(status) => return Step::Finish(status),
    };
    let status = run(request, move || files::transfer(&job)).await;
    if matches!(status, 201 | 204) && request.method == Method::Move {
        dav_ext::forget(request);
    }
    Step::Finish(status)
}

/// Parses and checks a COPY or MOVE as far as possible without the disk.
fn transfer_of(request: &mut Request, dav: &Dav) -> Result<Transfer, u16> {
    let Some(value) = request.header_named(b"destination").map(<[u8]>::to_vec) else {
        logs::error!(request, Error, "client sent no \"Destination\" header");
        return Err(400);
    };
    let destination = Printable(&value).to_string();
    let moves = request.method == Method::Move;
    let target_uri = destination_uri(request, &value)?;
    let is_collection = request.uri.ends_with(b"/");
    let uri = Printable(&request.uri).to_string();
    if is_collection != value.ends_with(b"/") {
        logs::error!(
            request,
            Error,
            "both URI \"{uri}\" and \"Destination\" URI \"{destination}\" should be either collections or non-collections"
        );
        return Err(409);
    }
    // `alias` cuts off the location's name: a URI that does not begin with the name is in another
    // location.
    if let Some(Alias::Prefix(length)) = request.plan.core.root.alias
        && target_uri.get(..length) != request.uri.get(..length)
    {
        return Err(invalid_destination(request, &value));
    }
    check_transfer_depth(request, moves)?;
    let overwrite = overwrite(request)?;
    let source = merge_slashes(&request.filename());
    let folder = request.document_root();
    let own = std::mem::replace(&mut request.uri, target_uri);
    let target = merge_slashes(&request.filename());
    request.uri = own;
    // The location's name may end within a segment, of which ".." could be left.
    if parent_segments(&target) > parent_segments(&folder) {
        return Err(invalid_destination(request, &value));
    }
    let (target, target_is_collection) = match target.strip_suffix(b"/") {
        Some(path) => (path.to_vec(), true),
        None => (target, false),
    };
    check_paths(
        request,
        &source,
        &target,
        target_is_collection,
        &destination,
    )?;
    Ok(Transfer {
        source: Request::path_of(&source),
        target: Request::path_of(&target),
        is_collection,
        overwrite,
        moves,
        access: dav.access,
        uri,
        destination,
    })
}

fn invalid_destination(request: &Request, value: &[u8]) -> u16 {
    let value = Printable(value);
    logs::error!(
        request,
        Error,
        "client sent invalid \"Destination\" header: \"{value}\""
    );
    400
}

fn parent_segments(path: &[u8]) -> usize {
    let segments = path.split(|byte| *byte == b'/');
    segments.filter(|segment| *segment == b"..").count()
}

/// The decoded path of a Destination field, which must be on this server.
fn destination_uri(request: &Request, value: &[u8]) -> Result<Vec<u8>, u16> {
    local_uri(request, value).map_err(|error| match error {
        ForeignUri::NoHost => {
            logs::error!(request, Error, "client sent no \"Host\" header");
            400
        }
        ForeignUri::Invalid => invalid_destination(request, value),
        ForeignUri::OtherHost => {
            let value = Printable(value);
            logs::error!(
                request,
                Error,
                "\"Destination\" URI \"{value}\" is handled by different repository than the source URI"
            );
            400
        }
        ForeignUri::Unsafe(uri) => {
            let uri = Printable(&uri);
            logs::error!(request, Error, "unsafe URI \"{uri}\" was detected");
            invalid_destination(request, value)
        }
    })
}

/// Why a URI in a client's field is not on this server.
pub(super) enum ForeignUri {
    /// The request has no host to compare with.
    NoHost,
    /// The URI is not an HTTP URI.
    Invalid,
    /// The URI has another host.
    OtherHost,
    /// The path would leave the root; contains the part of the path that was decoded.
    Unsafe(Vec<u8>),
}

/// The decoded path of a URI on this server, in a normal form for comparisons: no empty segments
/// and no ".".
pub(super) fn local_uri(request: &Request, value: &[u8]) -> Result<Vec<u8>, ForeignUri> {
    let raw = if value.first() == Some(&b'/') {
        value
    } else {
        let host = request.client.host.as_slice();
        if host.is_empty() {
            return Err(ForeignUri::NoHost);
        }
        let scheme = value.strip_prefix(request.scheme().as_bytes());
        let after_scheme = scheme.and_then(|rest| rest.strip_prefix(b"://"));
        let after_scheme = after_scheme.ok_or(ForeignUri::Invalid)?;
        let after_host = after_scheme
            .strip_prefix(host)
            .ok_or(ForeignUri::OtherHost)?;
        let path = memchr::memchr(b'/', after_host).ok_or(ForeignUri::Invalid)?;
        after_host.get(path..).unwrap_or_default()
    };
    let mut path = Vec::with_capacity(raw.len());
    if uri::parse_unsafe(raw, &mut path).is_err() {
        // If the path is only unsafe after decoding, the log shows it decoded.
        let shown = if path.is_empty() { raw.to_vec() } else { path };
        return Err(ForeignUri::Unsafe(shown));
    }
    Ok(without_dots(&merge_slashes(&path)))
}

/// Removes segments that are ".".
fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    for part in path.split_inclusive(|byte| *byte == b'/') {
        if !matches!(part, b"./" | b".") {
            plain.extend_from_slice(part);
        }
    }
    plain
}

fn check_transfer_depth(request: &Request, moves: bool) -> Result<(), u16> {
    let depth = match request.header_named(b"depth").map(Depth::parse) {
        None | Some(Ok(Depth::Infinity)) => return Ok(()),
        Some(Ok(depth)) => Some(depth),
        Some(Err(line)) => {
            logs::error!(request, Error, "{line}");
            None
        }
    };
    if moves {
        logs::error!(request, Error, "\"Depth\" header must be infinity");
        return Err(400);
    }
    if depth != Some(Depth::Zero) {
        logs::error!(request, Error, "\"Depth\" header must be 0 or infinity");
        return Err(400);
    }
    Ok(())
}

fn overwrite(request: &Request) -> Result<bool, u16> {
    match request.header_named(b"overwrite") {
        None | Some(b"T" | b"t") => Ok(true),
        Some(b"F" | b"f") => Ok(false),
        Some(value) => {
            let value = Printable(value);
            logs::error!(
                request,
                Error,
                "client sent invalid \"Overwrite\" header: \"{value}\""
            );
            Err(400)
        }
    }
}

/// Refuses to copy a path onto or into itself.
fn check_paths(
    request: &Request,
    source: &[u8],
    target: &[u8],
    target_is_collection: bool,
    destination: &str,
) -> Result<(), u16> {
    let source = source.strip_suffix(b"/").unwrap_or(source);
    let uri = Printable(&request.uri);
    if source == target {
        logs::error!(
            request,
            Error,
            "both URI \"{uri}\" and \"Destination\" URI \"{destination}\" point to the same location"
        );
        return Err(403);
    }
    let is_below = |path: &[u8], of: &[u8]| {
        path.strip_prefix(of)
            .is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    if target_is_collection && (is_below(target, source) || is_below(source, target)) {
        let method = request.method.name();
        logs::error!(
            request,
            Error,
            "\"{uri}\" could not be {method}ed to collection \"{destination}\""
        );
        return Err(403);
    }
    Ok(())
}

/// Replaces several slashes in a row by one.
pub(super) fn merge_slashes(path: &[u8]) -> Vec<u8> {
    let mut merged = Vec::with_capacity(path.len());
    for &byte in path {
        if byte != b'/' || merged.last() != Some(&b'/') {
            merged.push(byte);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use http::testing;

    use super::*;

    #[test]
    fn depth_counts_slashes_before_something() {
        assert_eq!(check_depth(b"/a", 1), Ok(()));
        assert_eq!(check_depth(b"/", 1), Err(1));
        assert_eq!(check_depth(b"/a", 2), Err(1));
        assert_eq!(check_depth(b"/a/", 2), Err(2));
        assert_eq!(check_depth(b"/a/b", 2), Ok(()));
    }

    #[test]
    fn slashes_are_merged() {
        assert_eq!(merge_slashes(b"//a///b/c//"), b"/a/b/c/");
        assert_eq!(merge_slashes(b""), b"");
    }

    #[test]
    fn segments_that_are_a_dot_are_left_out() {
        assert_eq!(without_dots(b"/./a/././.b/c./."), b"/a/.b/c./");
        assert_eq!(without_dots(b"/."), b"/");
        assert_eq!(parent_segments(b"/a/../b/.../..c/.."), 2);
    }

    #[test]
    fn access_and_methods_are_read_as_nginx_reads_them() {
        let dav = |text: &str| testing::compiled::<Dav>(text, &["http"]);
        let (made, warnings) =
            dav("http { dav_methods put Delete PUT; dav_access group:rw all:r; }").unwrap();
        assert_eq!(made.access, 0o664);
        assert_eq!(made.methods, Methods::PUT | Methods::DELETE);
        assert_eq!(warnings, ["duplicate value \"PUT\""]);
        let (made, _) = dav("http { dav_access user:r; }").unwrap();
        assert_eq!((made.access, made.is_off()), (0o400, true));
        assert!(dav("http { dav_access user:w; }").is_err());
        assert!(dav("http { dav_methods GET; }").is_err());
    }
}
