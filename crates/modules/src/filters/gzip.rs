//! `gzip` and related directives: compression of responses.
//!
//! <https://nginx.org/en/docs/http/ngx_http_gzip_module.html>. [`compress`](super::compress) drives
//! the compression of a body. The library's memory (a quarter of a megabyte) is kept by the thread
//! and reused.

use std::cell::RefCell;
use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use flate2::{Compress, Compression, FlushCompress, Status};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::abort::Abort;
use http::module::{Module, ShortcutDoc};
use http::request::activity::WHILE_SENDING;
use http::request::{Regex, Request};
use http::response::Response;
use http::slots::PlanSlot;
use pattern::Undecided;
use proto::h1::Version;
use proto::header::{KnownField, has_token};
use proto::{accept, date};

use super::coding_family::{self, CodingFamily};
use super::compress::{Coder, Coding, Compressor, Conditions};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const HSLI: Contexts = HSL.or(Contexts::LOCATION_IF);

/// Maximum number of idle compressors that a thread keeps for reuse. More compressors run at once
/// only under load, and then creating one costs little compared with its work.
const IDLE_MAX: usize = 4;

/// `gzip on | off`
pub static GZIP: Setting<bool> = Setting::new("gzip", &["on | off"], parse::flag)
    .contexts(HSLI)
    .default("off")
    .manual("Compresses responses with status 200, 403 or 404 for clients that accept gzip.");

static FAMILY: CodingFamily = CodingFamily::of("gzip_");

/// Declares the directive `gzip_comp_level LEVEL`.
pub static GZIP_COMP_LEVEL: Setting<u64> =
    Setting::new("gzip_comp_level", &["level"], coding_family::level::<1, 9>)
        .contexts(HSL)
        .default("1")
        .manual("How much work goes into compression, from 1 to 9.");

/// Declares the directive `gzip_window SIZE`.
pub static GZIP_WINDOW: Setting<u8> = Setting::new("gzip_window", &["size"], window)
    .contexts(HSL)
    .default("32k")
    .manual("How far back the compressor looks for repetitions: a power of two from 512 to 32k.");

/// Declares the directive `gzip_hash SIZE`.
pub static GZIP_HASH: Setting<()> = Setting::new("gzip_hash", &["size"], hash)
    .contexts(HSL)
    .default("64k")
    .no_effect("the compressor chooses the size of its hash by the window")
    .manual("The size of the compressor's hash: a power of two from 512 to 128k.");

/// Declares the directive `postpone_gzipping SIZE`.
pub static POSTPONE_GZIPPING: Setting<u64> =
    Setting::new("postpone_gzipping", &["size"], parse::size)
        .contexts(HSL)
        .default("0")
        .no_effect("a compressor's memory is at hand already, there is nothing to put off")
        .manual("Put off taking memory for the compressor until this much was to be compressed.");

/// `gzip_no_buffer on | off`
pub static GZIP_NO_BUFFER: Setting<bool> =
    Setting::new("gzip_no_buffer", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual("Sends what the compressor gives at once instead of in blocks of `gzip_buffers`.");

/// `gzip_vary on | off`
pub static GZIP_VARY: Setting<bool> = Setting::new("gzip_vary", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual(
        "Sends `Vary: Accept-Encoding` with responses that `gzip` or `gzip_static` may compress.",
    );

/// `gzip_http_version 1.0 | 1.1`
pub static GZIP_HTTP_VERSION: Setting<Version> = Setting::new(
    "gzip_http_version",
    &["1.0 | 1.1"],
    |setter: &Setter<'_>| {
        parse::enumeration(
            setter,
            &[("1.0", Version::Http10), ("1.1", Version::Http11)],
        )
    },
)
.contexts(HSL)
.default("1.1")
.manual("The lowest version of HTTP for which responses are compressed.");

/// `gzip_proxied off | expired | …`
pub static GZIP_PROXIED: Setting<Proxied> = Setting::new(
    "gzip_proxied",
    &["off | expired | no-cache | no-store | private | no_last_modified | no_etag | auth | any …"],
    proxied,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("off")
.manual(
    "Which responses are compressed for requests that came through a proxy (they have a `Via` field): \
     `expired` ones, those whose `Cache-Control` says `no-cache`, `no-store` or `private`, those without \
     `Last-Modified` (`no_last_modified`) or ETag (`no_etag`), answers to requests with `Authorization` \
     (`auth`), or `any`.",
);

/// `gzip_disable REGEX… | msie6`
pub static GZIP_DISABLE: Setting<Vec<Box<str>>> = Setting::new(
    "gzip_disable",
    &["regex … | msie6"],
    patterns,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "Clients whose `User-Agent` matches one of the patterns, in any case, get nothing compressed. \
         `msie6` is Internet Explorer 4 to 6 before its repair.",
);

/// The conditions of `gzip_proxied`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proxied {
    off: bool,
    any: bool,
    auth: bool,
    expired: bool,
    no_cache: bool,
    no_store: bool,
    private: bool,
    no_last_modified: bool,
    no_etag: bool,
}

/// The gzip settings of a plan, which tell whether a client accepts gzip. Precompressed files need
/// them, too.
static RULES: PlanSlot<Gzip> = PlanSlot::new();

/// `gzip` and related directives in one scope.
#[derive(Debug)]
pub struct Gzip {
    /// Which responses are compressed.
    pub conditions: Conditions,
    shape: Shape,
    /// The value of `gzip_vary` in this scope.
    pub vary: bool,
    version_min: Version,
    proxied: Proxied,
    /// Whether `gzip_disable` contains `msie6`.
    disabled_msie6: bool,
    /// The patterns of `gzip_disable`.
    disabled: Vec<Regex>,
}

/// The parameters of a compressor.
#[derive(Clone, Copy, Debug)]
struct Shape {
    level: u32,
    window_bits: u8,
    /// Minimum length of the pieces that are output, in bytes.
    block: usize,
    /// `gzip_no_buffer`.
    unbuffered: bool,
}

impl Feature for Gzip {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &GZIP,
        &FAMILY.types,
        &GZIP_COMP_LEVEL,
        &FAMILY.min_length,
        &FAMILY.buffers,
        &GZIP_WINDOW,
        &GZIP_HASH,
        &POSTPONE_GZIPPING,
        &GZIP_NO_BUFFER,
        &GZIP_VARY,
        &GZIP_HTTP_VERSION,
        &GZIP_PROXIED,
        &GZIP_DISABLE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let patterns = scope.written(&GZIP_DISABLE)?.unwrap_or_default();
        let mut disabled = Vec::new();
        for pattern in patterns.iter().filter(|pattern| &***pattern != "msie6") {
            disabled.push(Regex::new(compiler, pattern.as_bytes(), true)?);
        }
        Ok(Gzip {
            conditions: Conditions::of(scope, &GZIP, &FAMILY)?,
            shape: Shape {
                level: u32::try_from(scope.get(&GZIP_COMP_LEVEL)?).unwrap_or(1),
                window_bits: scope.get(&GZIP_WINDOW)?,
                block: usize::try_from(scope.get(&FAMILY.buffers)?).unwrap_or(4096),
                unbuffered: scope.get(&GZIP_NO_BUFFER)?,
            },
            vary: scope.get(&GZIP_VARY)?,
            version_min: scope.get(&GZIP_HTTP_VERSION)?,
            proxied: scope.get(&GZIP_PROXIED)?,
            disabled_msie6: patterns.iter().any(|pattern| &**pattern == "msie6"),
            disabled,
        })
    }
}

fn window(setter: &Setter<'_>) -> Result<u8, Fault> {
    match power_of_two(parse::size(setter)?, 9..=15) {
        Some(bits) => Ok(bits),
        None => Err(setter.fault(setter.word()?, "must be 512, 1k, 2k, 4k, 8k, 16k, or 32k")),
    }
}

fn hash(setter: &Setter<'_>) -> Result<(), Fault> {
    match power_of_two(parse::size(setter)?, 9..=17) {
        Some(_) => Ok(()),
        None => Err(setter.fault(
            setter.word()?,
            "must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k",
        )),
    }
}

fn power_of_two(size: u64, mut bits: std::ops::RangeInclusive<u8>) -> Option<u8> {
    bits.find(|&bits| size == 1 << bits)
}

fn proxied(setter: &Setter<'_>) -> Result<Proxied, Fault> {
    let mut proxied = Proxied::default();
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let flag = match &*word.bytes.to_ascii_lowercase() {
            b"off" => &mut proxied.off,
            b"any" => &mut proxied.any,
            b"auth" => &mut proxied.auth,
            b"expired" => &mut proxied.expired,
            b"no-cache" => &mut proxied.no_cache,
            b"no-store" => &mut proxied.no_store,
            b"private" => &mut proxied.private,
            b"no_last_modified" => &mut proxied.no_last_modified,
            b"no_etag" => &mut proxied.no_etag,
            _ => return Err(Fault::invalid_value(word)),
        };
        if std::mem::replace(flag, true) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
    }
    Ok(proxied)
}

fn patterns(setter: &Setter<'_>) -> Result<Vec<Box<str>>, Fault> {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    Ok(words
        .map(|word| word.text().into_owned().into_boxed_str())
        .collect())
}

impl Module for Gzip {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Compression, &["gzip"])];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "what compresses with gzip, Brotli or Zstandard is asked as one: see `brotli`",
    )];

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&RULES, self);
    }
}

/// Whether `gzip_vary` is on for the request.
pub fn varies(request: &Request) -> bool {
    let rules = request.plan.of(&RULES);
    rules.is_some_and(|rules| rules.vary)
}

/// Whether the client of the request accepts gzip, by its `Accept-Encoding` and the rules of
/// `gzip_http_version`, `gzip_proxied` and `gzip_disable` (nginx's `ngx_http_gzip_ok`). As in
/// nginx, nothing is compressed if a regex of `gzip_disable` hits a limit.
pub fn is_acceptable(request: &Request) -> bool {
    decide(request).unwrap_or_else(|(regex, agent, cause)| {
        regex.alert(request, agent, cause, WHILE_SENDING);
        false
    })
}

/// Like [`is_acceptable`], for a caller that asks again later: if a regex hits a limit, gzip counts
/// as acceptable, and the later call logs the failure.
pub(super) fn may_be_acceptable(request: &Request) -> bool {
    decide(request).unwrap_or(true)
}

/// Whether the client accepts gzip; an error if a regex of `gzip_disable` hit a limit.
fn decide(request: &Request) -> Result<bool, (&Regex, &[u8], Undecided)> {
    if !request.is_main()
        || !request
            .header(KnownField::AcceptEncoding)
            .is_some_and(accept::gzip)
    {
        return Ok(false);
    }
    let Some(rules) = request.plan.of(&RULES) else {
        return Ok(false);
    };
    if request.version() < rules.version_min {
        return Ok(false);
    }
    if request.header(KnownField::Via).is_some() {
        let authorized = request.header(KnownField::Authorization).is_some();
        if !rules.proxied.allows(&request.response, authorized) {
            return Ok(false);
        }
    }
    if !rules.disabled_msie6 && rules.disabled.is_empty() {
        return Ok(true);
    }
    if rules.disabled_msie6 && request.browser().msie6 {
        return Ok(false);
    }
    let Some(agent) = request.header(KnownField::UserAgent) else {
        return Ok(true);
    };
    for regex in &rules.disabled {
        if regex
            .is_match(agent)
            .map_err(|cause| (regex, agent, cause))?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Proxied {
    /// Whether the response to a request that came through a proxy may be compressed.
    fn allows(self, response: &Response, authorized: bool) -> bool {
        if self.off {
            return false;
        }
        if self.any || (self.auth && authorized) {
            return true;
        }
        if let Some(expires) = response.field(b"Expires") {
            let date = match &response.date {
                Some(date) => date::parse_http(date),
                None => i64::try_from(engine::wall().as_secs()).ok(),
            };
            let Some((expires, date)) = date::parse_http(expires).zip(date) else {
                return false;
            };
            return self.expired && expires < date;
        }
        let mut controls = response
            .fields
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(b"Cache-Control"))
            .map(|field| &field.value)
            .peekable();
        if controls.peek().is_some() {
            return controls.any(|value| {
                (self.no_cache && has_token(value, b"no-cache", b','))
                    || (self.no_store && has_token(value, b"no-store", b','))
                    || (self.private && has_token(value, b"private", b','))
            });
        }
        // As in nginx, the time of a static file does not count as `Last-Modified` here, since the
        // field is added later.
        let validated = (self.no_last_modified && response.field(b"Last-Modified").is_some())
            || (self.no_etag && response.field(b"ETag").is_some());
        !validated
    }
}

impl Gzip {
    /// A compressor for a body of this length, or of unknown length.
    pub(super) fn compressor(&self, level: i32, length: Option<u64>) -> Compressor {
        let Shape {
            window_bits,
            block,
            unbuffered,
            ..
        } = self.shape;
        let level = u32::try_from(level).unwrap_or(self.shape.level);
        let engine = Engine::take(level, window_for(window_bits, length));
        let coder = Box::new(Deflate(Some(engine)));
        Compressor::new(Coding::Gzip, coder, block, unbuffered)
    }

    /// `gzip_comp_level`, and the bits of `gzip_window`.
    pub(super) fn strength(&self) -> (i32, i32) {
        let level = i32::try_from(self.shape.level).unwrap_or(1);
        (level, i32::from(self.shape.window_bits))
    }
}

thread_local! {
    /// Compressors not in use, with the level and window that each was made for.
    static IDLE: RefCell<Vec<Engine>> = const { RefCell::new(Vec::new()) };
}

/// A compressor of the library, with the parameters for which it was made.
struct Engine {
    level: u32,
    window_bits: u8,
    stream: Compress,
}

/// Level 1 of the library uses fixed codes, and its output is over a quarter longer than that of
/// zlib's level 1. Level 2 is a little shorter than zlib's level 1, in less time
/// (docs/decisions/dependencies.md).
const LEVEL_MIN: u32 = 2;

impl Engine {
    /// Takes an idle compressor that was made for these parameters, or makes one.
    fn take(level: u32, window_bits: u8) -> Engine {
        let idle = IDLE.with_borrow_mut(|idle| {
            let at = idle
                .iter()
                .position(|engine| engine.level == level && engine.window_bits == window_bits)?;
            Some(idle.swap_remove(at))
        });
        idle.unwrap_or_else(|| Engine {
            level,
            window_bits,
            stream: Compress::new_gzip(Compression::new(level.max(LEVEL_MIN)), window_bits),
        })
    }

    /// Makes the compressor ready for another body and keeps it for the thread, in place of the
    /// oldest if there are too many.
    fn give_back(mut self) {
        self.stream.reset();
        // A thread that is ending frees the memory.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() >= IDLE_MAX {
                idle.remove(0);
            }
            idle.push(self);
        });
    }
}

/// Compresses one body. The engine is returned to the thread when it ends.
struct Deflate(Option<Engine>);

impl Coder for Deflate {
    fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Abort> {
        self.run(input, FlushCompress::None, out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Abort> {
        self.run(&[], FlushCompress::Sync, out)
    }

    fn finish(mut self: Box<Self>, out: &mut Vec<u8>) -> Result<(), Abort> {
        self.run(&[], FlushCompress::Finish, out)
    }
}

impl Deflate {
    fn run(
        &mut self,
        mut input: &[u8],
        flush: FlushCompress,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        /// Bytes of output space that the library is given at once.
        const ROOM: usize = 4096;
        let Some(Engine { stream, .. }) = &mut self.0 else {
            return Err(Abort::Internal("gzip was given a piece after the last"));
        };
        loop {
            if out.len() == out.capacity() {
                out.reserve(ROOM);
            }
            let (read, written) = (stream.total_in(), stream.total_out());
            let status = stream
                .compress_vec(input, out, flush)
                .map_err(|_| Abort::Internal("deflate() failed"))?;
            let read = stream.total_in().saturating_sub(read);
            let written = stream.total_out().saturating_sub(written);
            input = input
                .get(usize::try_from(read).unwrap_or(usize::MAX)..)
                .unwrap_or_default();

            // If the output space was not filled, the output is complete.
            let room_left = out.len() < out.capacity();
            let complete = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => input.is_empty() && room_left,
            };
            if complete {
                return Ok(());
            }
            if read == 0 && written == 0 && room_left {
                return Err(Abort::Internal("deflate() makes no progress"));
            }
        }
    }
}

impl Drop for Deflate {
    fn drop(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.give_back();
        }
    }
}

/// The window for a body of known length: no larger than necessary, in powers of two.
fn window_for(bits_max: u8, length: Option<u64>) -> u8 {
    /// The compressor cannot look back over the last bytes of its window.
    const UNUSABLE: u64 = 262;
    let mut bits = bits_max;
    if let Some(length @ 1..) = length {
        while bits > 9 && length + UNUSABLE < 1 << (bits - 1) {
            bits -= 1;
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use http::testing;

    use super::super::compress::tests::check;
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        for text in [
            "",
            "gzip_buffers 4 512; gzip_no_buffer on;",
            "gzip_comp_level 9;",
        ] {
            let (settings, _) =
                testing::compiled::<Gzip>(&format!("http {{ {text} }}"), &["http"]).unwrap();
            check(
                || settings.compressor(settings.strength().0, None),
                |compressed| {
                    let mut plain = Vec::new();
                    // A stream that goes on ends with an error, behind what has come.
                    let _ = flate2::read::GzDecoder::new(compressed).read_to_end(&mut plain);
                    plain
                },
            );
        }
    }

    #[test]
    fn windows_fit_the_length() {
        for (length, expected) in [
            (None, 15),
            (Some(0), 15),
            (Some(20), 9),
            (Some(1000), 11),
            (Some(16_122), 15),
            (Some(16_121), 14),
        ] {
            assert_eq!(window_for(15, length), expected, "{length:?}");
        }
        assert_eq!(window_for(9, Some(1_000_000)), 9);
    }

    #[test]
    fn responses_for_proxies() {
        let with = |name: &'static str, value: &'static str| {
            let mut response = Response {
                date: Some("Sun, 06 Nov 1994 08:49:37 GMT".into()),
                ..Response::default()
            };
            response.add(name, value);
            response
        };
        let expired = Proxied {
            expired: true,
            ..Proxied::default()
        };
        assert!(expired.allows(&with("Expires", "Sun, 06 Nov 1994 08:49:36 GMT"), false));
        assert!(!expired.allows(&with("Expires", "Sun, 06 Nov 1994 08:49:37 GMT"), false));
        assert!(!expired.allows(&with("Expires", "0"), false));
        let private = Proxied {
            private: true,
            ..Proxied::default()
        };
        assert!(private.allows(&with("Cache-Control", "max-age=1, private"), false));
        assert!(!private.allows(&with("Cache-Control", "no-store"), false));
        let no_etag = Proxied {
            no_etag: true,
            ..Proxied::default()
        };
        assert!(!no_etag.allows(&with("ETag", "\"a\""), false));
        assert!(no_etag.allows(&with("X", "1"), false));
        let auth = Proxied {
            auth: true,
            no_etag: true,
            ..Proxied::default()
        };
        assert!(auth.allows(&with("ETag", "\"a\""), true));
        assert!(
            !Proxied {
                off: true,
                any: true,
                ..Proxied::default()
            }
            .allows(&with("X", "1"), true)
        );
    }

    #[test]
    fn settings_and_their_mistakes() {
        let gzip = |text: &str| testing::compiled::<Gzip>(&format!("http {{ {text} }}"), &["http"]);
        let error = |text: &str| gzip(text).unwrap_err();
        let (settings, warnings) = gzip("").unwrap();
        assert!(!settings.conditions.enabled && !settings.vary && warnings.is_empty());
        assert_eq!(settings.shape.level, 1);
        assert_eq!(
            (settings.shape.window_bits, settings.shape.block),
            (15, 4096)
        );

        let text = "gzip on; gzip_types text/css; gzip_types text/html Text/CSS; gzip_window 1k; gzip_buffers 2 8k;";
        let (settings, warnings) = gzip(text).unwrap();
        assert!(settings.conditions.enabled);
        assert_eq!(
            (settings.shape.window_bits, settings.shape.block),
            (10, 8192)
        );
        assert_eq!(
            warnings,
            [
                "duplicate MIME type \"text/html\"",
                "duplicate MIME type \"text/css\""
            ]
        );

        assert_eq!(
            error("gzip_comp_level 10;"),
            "value must be between 1 and 9"
        );
        assert_eq!(error("gzip_comp_level 0;"), "value must be between 1 and 9");
        assert_eq!(
            error("gzip_window 3k;"),
            "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k"
        );
        assert_eq!(
            error("gzip_proxied sometimes;"),
            "invalid value \"sometimes\""
        );
        assert!(error("gzip_http_version 2.0;").contains("invalid value \"2.0\""));
    }
}
