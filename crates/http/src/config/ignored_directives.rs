//! Directives of nginx that are accepted without effect, each with the reason. They tune parts of
//! nginx that Tidegate does not have or tunes by itself. Their values are checked, and `-t` prints
//! a notice.

use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template, Word,
    parse,
};

const MAIN: Contexts = Contexts::MAIN;
const HTTP: Contexts = Contexts::HTTP;
const HTTP_AND_STREAM: Contexts = HTTP.or(Contexts::STREAM);
const HS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

macro_rules! accepted {
    ($($name:ident = $directive:literal, $syntax:literal, $contexts:expr, $check:expr,
       $reason:literal, $manual:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], $check)
            .contexts($contexts)
            .no_effect($reason)
            .manual($manual);)*
    };
}

/// The directives of this file.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &PCRE_JIT,
    &DEBUG_POINTS,
    &VARIABLES_HASH_MAX_SIZE,
    &VARIABLES_HASH_BUCKET_SIZE,
    &CONNECTION_POOL_SIZE,
    &REQUEST_POOL_SIZE,
    &POSTPONE_OUTPUT,
    &OUTPUT_BUFFERS,
    &READ_AHEAD,
    &DIRECTIO,
    &DIRECTIO_ALIGNMENT,
    &AIO,
    &THREAD_POOL,
    &AIO_WRITE,
    &EPOLL_EVENTS,
    &WORKER_AIO_REQUESTS,
    &SEND_LOWAT,
];

accepted! {
    PCRE_JIT = "pcre_jit", "on | off", MAIN, flag,
        "regular expressions are always compiled to automata",
        "Compiles regular expressions to machine code.";
    DEBUG_POINTS = "debug_points", "abort | stop", MAIN, debug_points,
        "there are no debug points",
        "Makes nginx stop or abort where it finds an error of its own.";
    VARIABLES_HASH_MAX_SIZE = "variables_hash_max_size", "size", HTTP_AND_STREAM, variables_hash_size,
        "tables size themselves",
        "Bounds nginx's hash of variables.";
    VARIABLES_HASH_BUCKET_SIZE = "variables_hash_bucket_size", "size", HTTP_AND_STREAM, variables_hash_size,
        "tables size themselves",
        "Sets the size of a bucket of nginx's hash of variables.";
    CONNECTION_POOL_SIZE = "connection_pool_size", "size", HS, pool_size,
        "there are no memory pools",
        "Sets how much memory nginx takes at once for a connection.";
    REQUEST_POOL_SIZE = "request_pool_size", "size", HS, pool_size,
        "there are no memory pools",
        "Sets how much memory nginx takes at once for a request.";
    POSTPONE_OUTPUT = "postpone_output", "size", HSL, size,
        "output leaves once a turn of the event loop, whatever its size",
        "Makes nginx hold output back until so many bytes are there.";
    DIRECTIO_ALIGNMENT = "directio_alignment", "size", HSL, size,
        "files are always read through the page cache",
        "Sets the alignment of reads that bypass the page cache.";
    AIO_WRITE = "aio_write", "on | off", HSL, flag,
        "files are always written by threads",
        "Makes nginx write temporary files of proxied responses by its threads.";
    EPOLL_EVENTS = "epoll_events", "number", Contexts::EVENTS, number,
        "the engine sizes its list of events itself",
        "Sets how many events nginx takes from the kernel at once.";
    WORKER_AIO_REQUESTS = "worker_aio_requests", "number", Contexts::EVENTS, number,
        "cold files are read by threads, not by requests to the kernel",
        "Bounds the reads that a worker of nginx has asked the kernel for.";
    READ_AHEAD = "read_ahead", "size", HSL, size,
        "the kernel reads ahead by itself",
        "Tells the kernel how far to read ahead of what is sent.";
    SEND_LOWAT = "send_lowat", "size", HSL, size,
        "Linux has no low-water mark for sending",
        "Makes nginx send only when the kernel takes so many bytes.";
}

static DIRECTIO: Setting<()> = Setting::new("directio", &["size | off"], directio)
    .contexts(HSL)
    .no_effect("files are always read through the page cache")
    .manual("Makes nginx bypass the page cache for files of at least this size.");

static AIO: Setting<()> = Setting::new("aio", &["on | off | threads[=pool]"], aio)
    .contexts(HSL)
    .no_effect("what the page cache holds is sent at once, the rest is always read by threads")
    .manual("Makes nginx read files without blocking its event loop.");

static THREAD_POOL: Setting<()> = Setting::new(
    "thread_pool",
    &["name threads=number [max_queue=number]"],
    thread_pools,
)
.contexts(MAIN)
.arity(Arity::between(2, 3))
.inherit(Inherit::List)
.no_effect("files that are not in memory are always read by threads, made on demand")
.manual("Names a pool of threads for nginx's `aio threads`.");

static OUTPUT_BUFFERS: Setting<()> = Setting::new("output_buffers", &["number size"], buffers)
    .contexts(HSL)
    .arity(Arity::exactly(2))
    .no_effect("files that must pass through memory are read in parts of 32 KiB")
    .manual("Sets number and size of nginx's buffers for reading a file.");

fn flag(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::flag(setter).map(drop)
}

fn number(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::number(setter).map(drop)
}

/// The size of nginx's hash of variables; 0 is an error, as in nginx.
fn variables_hash_size(setter: &Setter<'_>) -> Result<(), Fault> {
    match parse::number(setter)? {
        0 => Err(Fault::at(
            setter.word()?,
            format!(
                "could not build variables_hash, you should increase {}: 0",
                setter.name()
            ),
        )),
        _ => Ok(()),
    }
}

fn size(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::size(setter).map(drop)
}

fn buffers(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::buffers(setter).map(drop)
}

/// The minimum of nginx's pool sizes in bytes, and the alignment of pool sizes in bytes.
const POOL_SIZE_MIN: u64 = 112;
const POOL_ALIGNMENT: u64 = 16;

pub(crate) fn pool_size(setter: &Setter<'_>) -> Result<(), Fault> {
    let size = parse::size(setter)?;
    if size < POOL_SIZE_MIN {
        let text = format!("the pool size must be no less than {POOL_SIZE_MIN}");
        return Err(Fault::new(text));
    }
    if size % POOL_ALIGNMENT != 0 {
        let text = format!("the pool size must be a multiple of {POOL_ALIGNMENT}");
        return Err(Fault::new(text));
    }
    Ok(())
}

fn debug_points(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::enumeration(setter, &[("abort", ()), ("stop", ())])
}

fn directio(setter: &Setter<'_>) -> Result<(), Fault> {
    match &*setter.word()?.bytes {
        b"off" => Ok(()),
        _ => parse::offset(setter).map(drop),
    }
}

fn aio(setter: &Setter<'_>) -> Result<(), Fault> {
    let word = setter.word()?;
    let pool = match &*word.bytes {
        b"on" | b"off" | b"threads" => return Ok(()),
        text => text.strip_prefix(b"threads="),
    };
    let pool = pool.ok_or_else(|| setter.fault(word, "invalid value"))?;
    let template = Template::parse(&Word {
        bytes: pool.into(),
        ..word.clone()
    })?;
    // nginx looks a pool up for each request if its name has variables, so such a name is not
    // checked.
    if template.as_literal().is_none() || pool == DEFAULT_POOL || names_pool(setter.scope(), pool) {
        return Ok(());
    }
    let name = String::from_utf8_lossy(pool);
    Err(Fault::at(word, format!("unknown thread pool \"{name}\"")))
}

/// The name of the pool that exists without a `thread_pool` line.
const DEFAULT_POOL: &[u8] = b"default";

/// Whether a `thread_pool` at the main level has this name.
fn names_pool(scope: ScopeRef<'_>, name: &[u8]) -> bool {
    let main = std::iter::successors(Some(scope), |scope| scope.parent()).last();
    let lines = main.map_or_else(Vec::new, |main| main.own_lines(&THREAD_POOL.spec));
    lines.iter().any(|line| *line.argument(0).bytes == *name)
}

fn thread_pools(setter: &Setter<'_>) -> Result<(), Fault> {
    for (at, line) in setter.lines().iter().enumerate() {
        let name = line.argument(0);
        let before = setter.lines().iter().take(at);
        if before
            .into_iter()
            .any(|line| line.argument(0).bytes == name.bytes)
        {
            let text = format!("duplicate thread pool \"{}\"", name.text());
            return Err(Fault::at(name, text));
        }
        thread_pool(line)?;
    }
    Ok(())
}

/// Checks the parameters of one pool; unknown parameters are ignored, as in nginx.
fn thread_pool(line: &Line) -> Result<(), Fault> {
    let mut has_threads = false;
    for word in line.args.iter().skip(1) {
        if let Some(threads) = word.bytes.strip_prefix(b"threads=") {
            if parse::number_of(threads).is_none_or(|threads| threads == 0) {
                let text = format!("invalid threads value \"{}\"", word.text());
                return Err(Fault::at(word, text));
            }
            has_threads = true;
        } else if let Some(queue) = word.bytes.strip_prefix(b"max_queue=")
            && parse::number_of(queue).is_none()
        {
            let text = format!("invalid max_queue value \"{}\"", word.text());
            return Err(Fault::at(word, text));
        }
    }
    if has_threads {
        return Ok(());
    }
    let text = "\"thread_pool\" must have \"threads\" parameter";
    Err(Fault::at(&line.name, text))
}
