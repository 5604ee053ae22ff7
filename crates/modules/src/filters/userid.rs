//! `userid`: a cookie that identifies a browser.
//!
//! <https://nginx.org/en/docs/http/ngx_http_userid_module.html>. An identifier is sixteen bytes:
//! the server, the time, the process and a counter. Logs show it as four words in the machine's
//! byte order in hexadecimal, the cookie as Base64, so that both match nginx's.

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use engine::net::Address;
use framework::compile::{Compiler, Feature};
use framework::slot::{Slot, SlotValue};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::{Module, Shortcut, ShortcutDoc};
use http::request::Request;
use http::response::chain::{Chain, FilterRejection, HeadFilter};
use http::slots::{PassLifetime, PlanSlot};
use http::variables::BuiltinVariable;
use http::variables::Compiling as _;
use http::variables::Variable;
use http::variables::core::find_cookie;
use proto::base64::{self, Alphabet};
use proto::date;
use proto::header::KnownField;
use variables::Context as _;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Length of the identifier within a cookie, in characters; a mark may follow.
const ENCODED_LENGTH: usize = 22;

/// The date of `userid_expires max`: 31 December 2037, 23:55:55.
const EXPIRES_MAX: &[u8] = b"Thu, 31-Dec-37 23:55:55 GMT";

/// `userid on | v1 | log | off`
pub static USERID: Setting<Mode> = Setting::new("userid", &["on | v1 | log | off"], |setter| {
    let modes = [
        ("off", Mode::Off),
        ("log", Mode::Log),
        ("v1", Mode::Version1),
        ("on", Mode::On),
    ];
    parse::enumeration(setter, &modes)
})
.contexts(HSL)
.default("off")
.manual(
    "`on` gives clients without the cookie one, `v1` one of the older kind; `log` gives none but \
     reads those that come, for `$uid_got`.",
);

static USERID_SERVICE: Setting<u64> = Setting::new("userid_service", &["number"], parse::number)
    .contexts(HSL)
    .manual(
        "The first four bytes of identifiers: for servers that give them together. Otherwise \
             it is the end of the server's address, or zero with `v1`.",
    );

static USERID_NAME: Setting<Bytes> = Setting::new("userid_name", &["name"], parse::bytes)
    .contexts(HSL)
    .default("uid")
    .manual("The name of the cookie.");

static USERID_DOMAIN: Setting<Bytes> = Setting::new("userid_domain", &["name | none"], or_none)
    .contexts(HSL)
    .default("none")
    .manual("The domain of the cookie.");

static USERID_PATH: Setting<Bytes> = Setting::new("userid_path", &["path"], parse::bytes)
    .contexts(HSL)
    .default("/")
    .manual("The path of the cookie.");

static USERID_EXPIRES: Setting<Expires> = Setting::new(
    "userid_expires",
    &["time | max | off"],
    |setter| match &*setter.word()?.bytes {
        b"max" => Ok(Expires::Max),
        b"off" => Ok(Expires::Never),
        text => match parse::time_seconds(text) {
            Some(0) => Ok(Expires::Never),
            Some(seconds) => Ok(Expires::After(seconds)),
            None => Err(Fault::new("\"userid_expires\" directive invalid value")),
        },
    },
)
.contexts(HSL)
.default("off")
.manual(
    "How long a browser keeps the cookie; `max` is the end of 2037, `off` the browser's session.",
);

static USERID_FLAGS: Setting<Flags> = Setting::new(
    "userid_flags",
    &["off | secure | httponly | samesite=strict | samesite=lax | samesite=none ..."],
    flags,
)
.contexts(HSL)
.arity(Arity::between(1, 3))
.inherit(Inherit::List)
.default("off")
.manual("Attributes of the cookie.");

static USERID_P3P: Setting<Bytes> = Setting::new("userid_p3p", &["string | none"], or_none)
    .contexts(HSL)
    .default("none")
    .manual("The value of a P3P field that is sent with the cookie.");

static USERID_MARK: Setting<Option<u8>> = Setting::new(
    "userid_mark",
    &["letter | digit | = | off"],
    |setter| match &*setter.word()?.bytes {
        b"off" => Ok(None),
        [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Ok(Some(*mark)),
        _ => Err(Fault::new(
            "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
        )),
    },
)
.contexts(HSL)
.default("off")
.manual(
    "A character in the padding of the cookie: clients whose cookie has another one get it \
         again, with the same identifier and the attributes of now.",
);

/// Whether identifiers are issued, and in which format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Cookies are neither set nor read.
    Off,
    /// Cookies are read for the log.
    Log,
    /// Clients get identifiers of the older format.
    Version1,
    /// Clients get identifiers, which are logged.
    On,
}

/// The expiry of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expires {
    /// At the end of the browser's session.
    Never,
    /// After this number of seconds.
    After(u64),
    /// At the latest date that every client understands.
    Max,
}

/// Attributes without a value, each with its bit.
const FLAGS: [(&str, u8); 5] = [
    ("secure", 1),
    ("httponly", 1 << 1),
    ("samesite=strict", 1 << 2),
    ("samesite=lax", 1 << 3),
    ("samesite=none", 1 << 4),
];

/// The attributes of a cookie, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags(u8);

fn flags(setter: &Setter<'_>) -> Result<Flags, Fault> {
    let mut flags = Flags::default();
    let mut off = false;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let text = word.text();
        let repeated = if word.bytes.eq_ignore_ascii_case(b"off") {
            std::mem::replace(&mut off, true)
        } else {
            let known = FLAGS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(&text));
            let (_, bit) = known.ok_or_else(|| Fault::invalid_value(word))?;
            let repeated = flags.0 & bit != 0;
            flags.0 |= bit;
            repeated
        };
        if repeated {
            setter.warn(word, format!("duplicate value \"{text}\""));
        }
    }
    Ok(flags)
}

fn or_none(setter: &Setter<'_>) -> Result<Bytes, Fault> {
    let value = parse::bytes(setter)?;
    Ok(if value == "none" { Bytes::new() } else { value })
}

/// The settings of `userid`, for the variables.
static SETTINGS: PlanSlot<UserId> = PlanSlot::new();

/// The settings of `userid` and its family.
#[derive(Debug)]
pub struct UserId {
    mode: Mode,
    service: Option<u64>,
    name: Bytes,
    domain: Bytes,
    path: Bytes,
    expires: Expires,
    flags: Flags,
    p3p: Bytes,
    mark: Option<u8>,
    /// `$uid_reset`, which a configuration may set; `None` if no client gets a cookie.
    reset: Option<Variable>,
}

impl Feature for UserId {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &USERID,
        &USERID_SERVICE,
        &USERID_NAME,
        &USERID_DOMAIN,
        &USERID_PATH,
        &USERID_EXPIRES,
        &USERID_FLAGS,
        &USERID_P3P,
        &USERID_MARK,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<UserId, Fault> {
        let mode = scope.get(&USERID)?;
        let gives = matches!(mode, Mode::Version1 | Mode::On);
        Ok(UserId {
            mode,
            service: scope.written(&USERID_SERVICE)?,
            name: scope.get(&USERID_NAME)?,
            domain: scope.get(&USERID_DOMAIN)?,
            path: scope.get(&USERID_PATH)?,
            expires: scope.get(&USERID_EXPIRES)?,
            flags: scope.get(&USERID_FLAGS)?,
            p3p: scope.get(&USERID_P3P)?,
            mark: scope.get(&USERID_MARK)?,
            reset: gives.then(|| compiler.variable("uid_reset")),
        })
    }
}

impl UserId {
    /// Whether no response of the scope sets a cookie.
    fn sets_no_cookie(&self) -> bool {
        self.reset.is_none()
    }
}

impl Module for UserId {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::HeaderFields, &["userid"]).listed(1)];
    const SHORTCUTS: &'static [ShortcutDoc] = &[
        ShortcutDoc::Same("where no cookie is given (`userid log`)"),
        ShortcutDoc::Never("where one may be"),
    ];

    fn is_off(&self) -> bool {
        self.mode == Mode::Off
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&SETTINGS, self);
        if !self.sets_no_cookie() {
            plan.filter(self);
        }
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        if self.sets_no_cookie() {
            Shortcut::Same
        } else {
            Shortcut::Never
        }
    }
}

/// An identifier: four words in the machine's byte order. If there is no identifier, the last word
/// is zero.
type Identifier = [u32; 4];

/// The identifiers of the request's pass.
static IDENTIFIERS: Slot<Identifiers, PassLifetime> = Slot::new();

impl SlotValue for Identifiers {}

/// The identifier that the client has sent, and the identifier that is issued to the client.
#[derive(Debug, Default)]
pub struct Identifiers {
    /// The received value of the cookie.
    cookie: Vec<u8>,
    /// The identifier that the client has sent.
    got: Identifier,
    /// The identifier that is sent to the client.
    set: Identifier,
    /// `$uid_reset` requests a new identifier.
    reset: bool,
}

impl HeadFilter for UserId {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main()
    }

    /// Sets the cookie if the client has sent none, or if the cookie that the client has sent is to
    /// be marked or reset.
    fn head(self: Arc<Self>, request: &mut Request, _: &mut Chain) -> Result<(), FilterRejection> {
        let identifiers = identify(request, &self);
        if identifiers.set[3] != 0 {
            let cookie = set_cookie(&self, &identifiers);
            request.response.add("Set-Cookie", cookie);
            if !self.p3p.is_empty() {
                request.response.add("P3P", self.p3p.clone());
            }
        }
        *request.pass.enter(&IDENTIFIERS) = identifiers;
        Ok(())
    }
}

/// The received and the issued identifier; determined once per request.
fn identify(request: &mut Request, settings: &UserId) -> Identifiers {
    let mut identifiers = known(request, settings);
    if identifiers.set[3] != 0 || settings.sets_no_cookie() {
        return identifiers;
    }
    if identifiers.got[3] != 0 {
        let reset = settings.reset.and_then(|reset| request.variable(reset));
        match reset.as_deref().unwrap_or_default() {
            b"" | b"0" => {
                let is_marked = match settings.mark {
                    None => true,
                    Some(mark) => {
                        identifiers.cookie.get(ENCODED_LENGTH..ENCODED_LENGTH + 2)
                            == Some(&[mark, b'='])
                    }
                };
                if !is_marked {
                    identifiers.set = identifiers.got;
                }
                return identifiers;
            }
            b"log" => logs::error!(
                request,
                Notice,
                "userid cookie \"{}\" was reset",
                logs::Printable(&shown(&settings.name, identifiers.got))
            ),
            _ => {}
        }
        identifiers.reset = true;
    }
    identifiers.set = match settings.mode {
        Mode::Version1 => older(settings.service),
        _ => newer(settings.service, request.connection.local()),
    };
    identifiers
}

/// Takes the identifiers that are already known out of their slot, else reads the cookie.
fn known(request: &mut Request, settings: &UserId) -> Identifiers {
    let known = request.pass.take(&IDENTIFIERS);
    known.unwrap_or_else(|| read(request, &settings.name))
}

/// The identifier that the client sent.
fn read(request: &Request, name: &[u8]) -> Identifiers {
    let mut identifiers = Identifiers::default();
    let client = &request.client;
    let mut fields = client.all(KnownField::Cookie);
    let found = fields.find_map(|value| Some((value, find_cookie(value, name)?)));
    let Some((field, cookie)) = found else {
        return identifiers;
    };
    identifiers.cookie = cookie.to_vec();
    let Some(encoded) = cookie.get(..ENCODED_LENGTH) else {
        let field = logs::Printable(field);
        logs::error!(
            request,
            Error,
            "client sent too short userid cookie \"{field}\""
        );
        return identifiers;
    };
    let mut bytes = Vec::with_capacity(16);
    if !base64::decode(encoded, Alphabet::Standard, &mut bytes) {
        let field = logs::Printable(field);
        logs::error!(
            request,
            Error,
            "client sent invalid userid cookie \"{field}\""
        );
        return identifiers;
    }
    for (word, bytes) in identifiers.got.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_ne_bytes);
    }
    identifiers
}

/// Creates an identifier of the older format.
fn older(service: Option<u64>) -> Identifier {
    static SEQUENCE: AtomicU32 = AtomicU32::new(1);
    let number = SEQUENCE.fetch_add(0x100, Ordering::Relaxed);
    [service.unwrap_or(0) as u32, now(), process_start(), number]
}

/// Creates an identifier in network byte order.
fn newer(service: Option<u64>, local: &Address) -> Identifier {
    /// The first number, at which counting also restarts after an overflow.
    const FIRST: u32 = 0x0303_0302;
    static SEQUENCE: AtomicU32 = AtomicU32::new(FIRST);
    let next = |number: u32| Some(number.wrapping_add(0x100).max(FIRST));
    let number = SEQUENCE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    let server = match (service, local) {
        (Some(service), _) => (service as u32).to_be(),
        (None, Address::Inet(address)) => match address.ip() {
            std::net::IpAddr::V4(ip) => u32::from_ne_bytes(ip.octets()),
            std::net::IpAddr::V6(ip) => {
                let [.., a, b, c, d] = ip.octets();
                u32::from_ne_bytes([a, b, c, d])
            }
        },
        (None, Address::Unix(_)) => 0,
    };
    let number = number.unwrap_or(FIRST); // the closure never returns `None`
    [
        server,
        now().to_be(),
        process_start().to_be(),
        number.to_be(),
    ]
}

fn now() -> u32 {
    engine::wall().as_secs() as u32
}

/// Distinguishes the process from others, and from earlier ones with the same process ID.
fn process_start() -> u32 {
    static START: OnceLock<u32> = OnceLock::new();
    *START.get_or_init(|| {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Twentieths of the microseconds, which fit into 16 bits.
        (time.subsec_micros() / 20) << 16 | std::process::id()
    })
}

fn set_cookie(settings: &UserId, identifiers: &Identifiers) -> Vec<u8> {
    let mut out = settings.name.to_vec();
    out.push(b'=');
    if identifiers.got[3] == 0 || identifiers.reset {
        let bytes: Vec<u8> = identifiers
            .set
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        base64::encode(&bytes, &mut out);
        let mark_at = out.len() - 2; // the first of two padding characters
        if let (Some(mark), Some(place)) = (settings.mark, out.get_mut(mark_at)) {
            *place = mark;
        }
    } else {
        out.extend_from_slice(identifiers.cookie.get(..ENCODED_LENGTH).unwrap_or_default());
        out.extend(settings.mark);
        out.push(b'=');
    }
    match settings.expires {
        Expires::Never => {}
        Expires::Max => {
            out.extend_from_slice(b"; expires=");
            out.extend_from_slice(EXPIRES_MAX);
        }
        Expires::After(seconds) => {
            out.extend_from_slice(b"; expires=");
            let end = engine::wall().as_secs().saturating_add(seconds);
            date::write_cookie(i64::try_from(end).unwrap_or(i64::MAX), &mut out);
        }
    }
    if !settings.domain.is_empty() {
        out.extend_from_slice(b"; domain=");
        out.extend_from_slice(&settings.domain);
    }
    out.extend_from_slice(b"; path=");
    out.extend_from_slice(&settings.path);
    for (name, bit) in FLAGS {
        if settings.flags.0 & bit != 0 {
            out.extend_from_slice(b"; ");
            out.extend_from_slice(name.as_bytes());
        }
    }
    out
}

/// An identifier in the format of logs.
fn shown(name: &[u8], identifier: Identifier) -> Vec<u8> {
    let mut out = name.to_vec();
    out.push(b'=');
    for word in identifier {
        out.extend_from_slice(format!("{word:08X}").as_bytes());
    }
    out
}

/// `$uid_got`: the cookie that the client sent.
pub fn uid_got(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let http = Rc::clone(&request.http);
    let Some(settings) = http.plan(request.plan.id).of(&SETTINGS) else {
        return false;
    };
    let identifiers = known(request, settings);
    let got = identifiers.got;
    *request.pass.enter(&IDENTIFIERS) = identifiers;
    if got[3] != 0 {
        out.append(&mut shown(&settings.name, got));
    }
    got[3] != 0
}

/// `$uid_set`: the cookie that is issued to the client.
pub fn uid_set(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let http = Rc::clone(&request.http);
    let settings = http.plan(request.plan.id).of(&SETTINGS);
    let Some(settings) = settings.filter(|settings| !settings.sets_no_cookie()) else {
        return false;
    };
    let identifiers = identify(request, settings);
    let set = identifiers.set;
    *request.pass.enter(&IDENTIFIERS) = identifiers;
    if set[3] != 0 {
        out.append(&mut shown(&settings.name, set));
    }
    set[3] != 0
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    match name {
        "uid_got" => Some(BuiltinVariable::once(uid_got)),
        "uid_reset" => Some(BuiltinVariable::once(|_, _| true).assignable()),
        "uid_set" => Some(BuiltinVariable::once(uid_set)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> UserId {
        UserId {
            mode: Mode::On,
            service: None,
            name: Bytes::from_static(b"uid"),
            domain: Bytes::new(),
            path: Bytes::from_static(b"/"),
            expires: Expires::Never,
            flags: Flags::default(),
            p3p: Bytes::new(),
            mark: None,
            reset: None,
        }
    }

    /// The cookie of nginx's documentation and its text in the log.
    #[test]
    fn cookies_and_log_agree() {
        let mut bytes = Vec::new();
        assert!(base64::decode(
            b"fwAAAUhqPkw5Kg0vAwMCBQ",
            Alphabet::Standard,
            &mut bytes
        ));
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        let identifiers = Identifiers {
            set: words.try_into().unwrap(),
            ..Identifiers::default()
        };
        let cookie = set_cookie(&settings(), &identifiers);
        assert_eq!(cookie, b"uid=fwAAAUhqPkw5Kg0vAwMCBQ==; path=/");
        if cfg!(target_endian = "little") {
            assert_eq!(
                shown(b"uid", identifiers.set),
                b"uid=0100007F4C3E6A482F0D2A3905020303"
            );
        }
    }

    #[test]
    fn attributes_follow_in_nginx_order() {
        let settings = UserId {
            domain: Bytes::from_static(b"example.org"),
            expires: Expires::Max,
            flags: Flags(0b01011),
            mark: Some(b'x'),
            ..settings()
        };
        let identifiers = Identifiers {
            cookie: b"fwAAAUhqPkw5Kg0vAwMCBQ==".to_vec(),
            got: [1, 1, 1, 1],
            set: [1, 1, 1, 1],
            reset: false,
        };
        assert_eq!(
            String::from_utf8(set_cookie(&settings, &identifiers)).unwrap(),
            "uid=fwAAAUhqPkw5Kg0vAwMCBQx=; expires=Thu, 31-Dec-37 23:55:55 GMT; \
             domain=example.org; path=/; secure; httponly; samesite=lax"
        );
    }

    #[test]
    fn no_two_identifiers_are_alike() {
        let local = Address::Inet("127.0.0.1:80".parse().unwrap());
        let (first, second) = (newer(None, &local), newer(None, &local));
        assert_eq!(first[0].to_ne_bytes(), [127, 0, 0, 1]);
        assert_ne!(first[3], second[3]);
        assert_eq!(newer(Some(5), &local)[0], 5_u32.to_be());
        assert_eq!(older(None)[0], 0);
        assert_ne!(older(Some(7))[3], older(Some(7))[3]);
    }
}
