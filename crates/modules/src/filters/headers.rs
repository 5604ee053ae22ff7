//! Fields that a configuration adds to responses: `add_header`, `add_trailer`, `expires`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_headers_module.html>. A field without `always` is added
//! only to responses with a status that is about the resource itself: 200, 201, 204, 206, 301, 302,
//! 303, 304, 307 and 308.

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Spec, Template,
    TemplatePart, Word, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::http3;
use http::config::http3::HTTP3_NOT_YET;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::{Module, Shortcut, ShortcutDoc};
use http::request::{Request, Text};
use http::response::chain::{Chain, FilterRejection, HeadFilter, Trailers};
use http::response::{Field, Response, last_modified};
use http::variables::Compiling as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::date_value;

const HSLI: Contexts = Contexts::HTTP
    .or(Contexts::SERVER)
    .or(Contexts::LOCATION)
    .or(Contexts::LOCATION_IF);

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// `add_header NAME VALUE [always]`
pub static ADD_HEADER: Setting<Vec<AddedLine>> = Setting::new("add_header", &["name value [always]"], added)
    .contexts(HSLI)
    .arity(Arity::between(2, 3))
    .inherit(Inherit::List)
    .manual(
        "Adds a field to responses with status 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308; with \
         `always`, to every response. The value may hold variables; an empty one adds nothing. \
         `Last-Modified` and `ETag` replace the response's own. The directives of a level replace those of \
         the level above, unless `add_header_inherit` says otherwise.",
    );

/// `add_trailer NAME VALUE [always]`
pub static ADD_TRAILER: Setting<Vec<AddedLine>> = Setting::new("add_trailer", &["name value [always]"], added)
    .contexts(HSLI)
    .arity(Arity::between(2, 3))
    .inherit(Inherit::List)
    .manual(
        "Adds a field after the body, under the conditions of `add_header`. Trailers need a chunked body, \
         so HTTP/1.0 clients get none.",
    );

/// `add_header_inherit on | off | merge`
pub static ADD_HEADER_INHERIT: Setting<Merge> = Setting::new(
    "add_header_inherit",
    &["on | off | merge"],
    merge,
)
.contexts(HSLI)
.default("on")
.since("1.29.3")
.manual(
    "How `add_header` of the level above reaches this one and those below: `on`, where this level \
             has none; `off`, never; `merge`, after this level's own.",
);

/// `add_trailer_inherit on | off | merge`
pub static ADD_TRAILER_INHERIT: Setting<Merge> =
    Setting::new("add_trailer_inherit", &["on | off | merge"], merge)
        .contexts(HSLI)
        .default("on")
        .since("1.29.3")
        .manual("The same for `add_trailer`.");

/// `expires [modified] TIME | epoch | max | off`
pub static EXPIRES: Setting<Expiry> = Setting::new("expires", &["[modified] time", "epoch | max | off"], expiry)
    .contexts(HSLI)
    .arity(Arity::between(1, 2))
    .default("off")
    .manual(
        "Sets `Expires` and `Cache-Control`. A time counts from now, or with `modified` from the last \
         modification; `@15h30m` is a time of day; a negative time gives `Cache-Control: no-cache`. \
         `epoch` is 1970, `max` ten years. May be a variable.",
    );

/// How the lists of outer scopes are inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Fields of the scope above are not inherited.
    Off,
    /// Fields of the scope above are inherited if the scope has no list of its own.
    On,
    /// Fields of the scope above are inherited and follow the scope's own.
    Merge,
}

/// A line of `add_header` or `add_trailer`.
#[derive(Clone, Debug)]
pub struct AddedLine {
    name: Bytes,
    value: Template,
    /// Whether the field is added whatever the status of the response.
    always: bool,
}

/// A value of `expires`.
#[derive(Clone, Debug)]
pub enum Expiry {
    /// The value is known without a request.
    Fixed(Expires),
    /// Evaluated for each request.
    Variable {
        /// The value with its variables.
        value: Template,
        /// Whether a time counts from the last modification.
        modified: bool,
    },
}

/// When a response expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// No fields are added.
    Off,
    /// In 1970: the response must not be cached.
    Epoch,
    /// In ten years.
    Max,
    /// This many seconds from now.
    Access(i64),
    /// This many seconds after the last modification.
    Modified(i64),
    /// At this second of the day, local time.
    Daily(i64),
}

/// `add_header`, `add_trailer` and `expires` in one scope.
#[derive(Debug)]
pub struct Headers {
    expires: When,
    fields: Box<[Added]>,
    trailers: Box<[Added]>,
}

/// The compiled form of `expires`.
#[derive(Debug)]
enum When {
    Fixed(Expires),
    Variable { value: Text, modified: bool },
}

/// The compiled form of an `add_header` or `add_trailer`.
#[derive(Clone, Debug)]
struct Added {
    name: Bytes,
    value: Text,
    /// Whether the field is added whatever the status of the response.
    always: bool,
    /// Replaces the field with this name instead of adding another.
    replaces: bool,
    /// The field is `Alt-Svc` with variables: its value may offer HTTP/3, which is then removed.
    may_offer_http3: bool,
    /// The value is the same for all requests that a prebuilt response may serve.
    is_constant: bool,
}

impl Added {
    /// The value for a request, without an offer of HTTP/3.
    fn value(&self, request: &mut Request) -> Bytes {
        let value = self.value.evaluate(request);
        if self.may_offer_http3 {
            return http3::without_http3(value);
        }
        value
    }
}

impl Headers {
    /// Whether the added fields are the same for all requests within one second, so that a prebuilt
    /// head can be reused for that second.
    fn is_constant(&self) -> bool {
        matches!(self.expires, When::Fixed(_))
            && self
                .fields
                .iter()
                .all(|field| field.is_constant && !field.replaces)
            && self.trailers.is_empty()
    }
}

impl Module for Headers {
    const TASKS: &'static [Task] = &[Task::of(
        TaskKind::HeaderFields,
        &["expires", "add_header", "add_trailer"],
    )];
    const SHORTCUTS: &'static [ShortcutDoc] = &[
        ShortcutDoc::Same(
            "where `expires` and all of `add_header` have the same value for every request, or name `$upstream_cache_status` alone",
        ),
        ShortcutDoc::Never(
            "where one has other variables, `add_header` names `ETag`, or `add_trailer` is set",
        ),
    ];

    fn is_off(&self) -> bool {
        matches!(self.expires, When::Fixed(Expires::Off))
            && self.fields.is_empty()
            && self.trailers.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.filter(self);
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        if self.is_constant() {
            Shortcut::Same
        } else {
            Shortcut::Never
        }
    }
}

/// Whether a value has no variables but `$upstream_cache_status`, which is the same for all
/// prebuilt responses: files have none, and of cached responses only hits are kept.
fn is_constant(value: &Template) -> bool {
    let mut parts = value.parts().iter();
    parts.all(|part| match part {
        TemplatePart::Literal(_) => true,
        TemplatePart::Variable(name) => name.eq_ignore_ascii_case("upstream_cache_status"),
        TemplatePart::Capture(_) => false,
    })
}

fn seconds_now() -> i64 {
    i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX)
}

impl Feature for Headers {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &ADD_HEADER,
        &ADD_TRAILER,
        &ADD_HEADER_INHERIT,
        &ADD_TRAILER_INHERIT,
        &EXPIRES,
    ];

    /// A scope does not inherit the fields of a scope with `off`, so it cannot share the settings
    /// that were compiled for that scope.
    fn owner(scope: ScopeRef<'_>) -> ScopeRef<'_> {
        let owner = scope.owner(Self::DIRECTIVES);
        let keeps = |setting: &'static Setting<Vec<AddedLine>>, inherit: &Setting<Merge>| {
            owner.writes(&[setting]) && matches!(owner.get(inherit), Ok(Merge::Off))
        };
        if keeps(&ADD_HEADER, &ADD_HEADER_INHERIT) || keeps(&ADD_TRAILER, &ADD_TRAILER_INHERIT) {
            scope
        } else {
            owner
        }
    }

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let expires = match scope.get(&EXPIRES)? {
            Expiry::Fixed(expires) => When::Fixed(expires),
            Expiry::Variable { value, modified } => When::Variable {
                value: compiler.text(&value),
                modified,
            },
        };
        let list = |setting, inherit| -> Result<Box<[Added]>, Fault> {
            Ok(inherited(scope, setting, inherit)?
                .into_iter()
                .map(|line| Added {
                    replaces: line.name.eq_ignore_ascii_case(b"ETag")
                        || line.name.eq_ignore_ascii_case(b"Last-Modified"),
                    may_offer_http3: is_alt_svc(&line.name) && line.value.as_literal().is_none(),
                    is_constant: is_constant(&line.value),
                    name: line.name,
                    value: compiler.text(&line.value),
                    always: line.always,
                })
                .collect())
        };
        Ok(Headers {
            expires,
            fields: list(&ADD_HEADER, &ADD_HEADER_INHERIT)?,
            trailers: list(&ADD_TRAILER, &ADD_TRAILER_INHERIT)?,
        })
    }
}

/// The lines that apply in a scope: the scope's own, and the lines of outer scopes, as far as the
/// directive `inherit` lets each level inherit them.
fn inherited(
    scope: ScopeRef<'_>,
    setting: &'static Setting<Vec<AddedLine>>,
    inherit: &Setting<Merge>,
) -> Result<Vec<AddedLine>, Fault> {
    let mut lines = Vec::new();
    for level in levels(scope, setting, inherit)? {
        lines.extend(level.own(setting)?.unwrap_or_default());
    }
    Ok(lines)
}

/// The scopes whose lines of a setting apply in `scope`, the innermost first.
fn levels<'a>(
    scope: ScopeRef<'a>,
    setting: &'static Setting<Vec<AddedLine>>,
    inherit: &Setting<Merge>,
) -> Result<Vec<ScopeRef<'a>>, Fault> {
    let mut levels = Vec::new();
    let mut at = Some(scope);
    while let Some(scope) = at {
        let own = scope.writes(&[setting]);
        if own {
            levels.push(scope);
        }
        let goes_on = match scope.get(inherit)? {
            Merge::Merge => true,
            Merge::On => !own,
            Merge::Off => false,
        };
        at = scope.parent().filter(|_| goes_on);
    }
    Ok(levels)
}

/// The lines of `add_header` or `add_trailer` that apply in a scope, each with its scope; `None`
/// for any other directive.
pub fn lines_in_force<'a>(
    scope: ScopeRef<'a>,
    spec: &Spec,
) -> Option<Vec<(ScopeRef<'a>, &'a Line)>> {
    let settings = [
        (&ADD_HEADER, &ADD_HEADER_INHERIT),
        (&ADD_TRAILER, &ADD_TRAILER_INHERIT),
    ];
    let (setting, inherit) = settings
        .into_iter()
        .find(|(setting, _)| setting.spec.name() == spec.name())?;
    let levels = levels(scope, setting, inherit).unwrap_or_default();
    let lines = levels.into_iter().flat_map(|level| {
        let own = level.own_lines(&setting.spec);
        own.into_iter().map(move |line| (level, line))
    });
    Some(lines.collect())
}

fn added(setter: &Setter<'_>) -> Result<Vec<AddedLine>, Fault> {
    let lines = setter.lines().iter();
    lines.map(|line| added_line(setter, line)).collect()
}

fn added_line(setter: &Setter<'_>, line: &Line) -> Result<AddedLine, Fault> {
    let always = match line.args.get(2) {
        None => false,
        Some(word) if &*word.bytes == b"always" => true,
        Some(word) => return Err(Fault::invalid_parameter(word)),
    };
    let name = &line.argument(0).bytes;
    let value = if is_alt_svc(name) {
        alt_svc(setter, line.argument(1))?
    } else {
        Template::parse(line.argument(1))?
    };
    Ok(AddedLine {
        name: Bytes::copy_from_slice(name),
        value,
        always,
    })
}

fn is_alt_svc(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"Alt-Svc")
}

/// A configured value of `Alt-Svc` without HTTP/3, as far as that is known before a request.
fn alt_svc(setter: &Setter<'_>, word: &Word) -> Result<Template, Fault> {
    let value = Template::parse(word)?;
    if !http3::is_offered(&word.bytes) {
        return Ok(value);
    }
    setter.warn_once(word, HTTP3_NOT_YET);
    let Some(literal) = value.as_literal() else {
        return Ok(value);
    };
    let kept = http3::without_http3(Bytes::copy_from_slice(literal));
    Template::parse(&Word {
        bytes: (*kept).into(),
        ..word.clone()
    })
}

fn merge(setter: &Setter<'_>) -> Result<Merge, Fault> {
    parse::enumeration(
        setter,
        &[
            ("off", Merge::Off),
            ("on", Merge::On),
            ("merge", Merge::Merge),
        ],
    )
}

fn expiry(setter: &Setter<'_>) -> Result<Expiry, Fault> {
    let (value, modified) = match setter.args() {
        [word, value] if &*word.bytes == b"modified" => (value, true),
        [word, _] => return Err(setter.fault(word, "invalid value")),
        _ => (setter.word()?, false),
    };
    let template = Template::parse(value)?;
    if template.as_literal().is_none() {
        return Ok(Expiry::Variable {
            value: template,
            modified,
        });
    }
    Expires::parse(&value.bytes, modified)
        .map(Expiry::Fixed)
        .map_err(|reason| setter.fault(value, reason))
}

impl Expires {
    fn parse(value: &[u8], modified: bool) -> Result<Expires, &'static str> {
        match value {
            b"epoch" if !modified => return Ok(Expires::Epoch),
            b"max" if !modified => return Ok(Expires::Max),
            b"off" if !modified => return Ok(Expires::Off),
            _ => {}
        }
        let seconds = |text| {
            parse::time_seconds(text)
                .and_then(|seconds| i64::try_from(seconds).ok())
                .ok_or("invalid value")
        };
        match value.split_first() {
            Some((b'@', _)) if modified => {
                Err("daily time cannot be used with \"modified\" parameter")
            }
            Some((b'@', time)) => match seconds(time)? {
                time if time > SECONDS_PER_DAY => {
                    Err("daily time value must be less than 24 hours")
                }
                time => Ok(Expires::Daily(time)),
            },
            _ => {
                let time = match value.split_first() {
                    Some((b'+', time)) => seconds(time)?,
                    Some((b'-', time)) => -seconds(time)?,
                    _ => seconds(value)?,
                };
                Ok(if modified {
                    Expires::Modified(time)
                } else {
                    Expires::Access(time)
                })
            }
        }
    }
}

impl HeadFilter for Headers {
    fn applies_to(&self, request: &Request) -> bool {
        request.is_main()
    }

    fn head(
        self: Arc<Self>,
        request: &mut Request,
        chain: &mut Chain,
    ) -> Result<(), FilterRejection> {
        let describes = describes_the_resource(request.response.status);
        if describes {
            let expires = match &self.expires {
                When::Fixed(expires) => *expires,
                When::Variable { value, modified } => {
                    let value = value.evaluate(request);
                    Expires::parse(&value, *modified).unwrap_or(Expires::Off)
                }
            };
            set_expires(&mut request.response, expires, seconds_now());
        }
        for field in fields_for(&self.fields, describes) {
            let value = field.value(request);
            add_field(&mut request.response, field, value);
        }
        if fields_for(&self.trailers, describes).next().is_some() {
            // As in nginx an error page that replaces a response with trailers is still sent in
            // chunks.
            request.response.expect_trailers = true;
            chain.trail(self);
        }
        Ok(())
    }
}

impl Trailers for Headers {
    fn add(&self, request: &mut Request) {
        let describes = describes_the_resource(request.response.status);
        for field in fields_for(&self.trailers, describes) {
            let value = field.value(request);
            if !value.is_empty() {
                request.response.trailers.push(Field {
                    name: field.name.clone(),
                    value,
                });
            }
        }
    }
}

/// The fields to add to a response. `describes` is the result of [`describes_the_resource`]; if it
/// is false, only fields with `always` are added.
fn fields_for(fields: &[Added], describes: bool) -> impl Iterator<Item = &Added> {
    fields.iter().filter(move |field| describes || field.always)
}

/// Whether fields without `always` are added to responses with this status, since the status is
/// about the resource.
fn describes_the_resource(status: u16) -> bool {
    matches!(
        status,
        200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308
    )
}

fn add_field(response: &mut Response, field: &Added, value: Bytes) {
    if field.replaces {
        // From here on, `If-Range` is compared with the value of the field.
        if field.name.eq_ignore_ascii_case(b"Last-Modified") {
            response.last_modified = None;
        }
        replace(response, field.name.clone(), value);
    } else if !value.is_empty() {
        response.add(field.name.clone(), value);
    }
}

/// Replaces the first field with this name, or adds a field; an empty value removes it.
fn replace(response: &mut Response, name: Bytes, value: Bytes) {
    match response
        .fields
        .iter_mut()
        .find(|field| field.name.eq_ignore_ascii_case(&name))
    {
        _ if value.is_empty() => response.remove(&name),
        Some(field) => *field = Field { name, value },
        None => response.add(name, value),
    }
}

fn set_expires(response: &mut Response, expires: Expires, now: i64) {
    let modified = last_modified(response);
    let (time, age) = match expires {
        Expires::Off => return,
        Expires::Epoch => (1, None),
        Expires::Max => (2_145_916_555, Some(315_360_000)),
        Expires::Access(0) | Expires::Modified(0) => (now, Some(0)),
        Expires::Access(seconds) => (now.saturating_add(seconds), Some(seconds)),
        Expires::Modified(seconds) => match modified {
            // A negative time forbids caching, even if the file's time is in the future.
            Some(modified) => {
                let time = modified.saturating_add(seconds);
                (time, (seconds >= 0).then(|| time.saturating_sub(now)))
            }
            None => (now.saturating_add(seconds), Some(seconds)),
        },
        Expires::Daily(second) => {
            let time = next_time_of_day(now, second, &TimeZone::system());
            (time, Some(time.saturating_sub(now)))
        }
    };
    replace(response, Bytes::from_static(b"Expires"), date_value(time));
    let control = match age {
        Some(age @ 0..) => Bytes::from(format!("max-age={age}")),
        _ => Bytes::from_static(b"no-cache"),
    };
    set_cache_control(response, control);
}

/// Sets `Cache-Control`: replaces the first field and removes the others, or adds one.
fn set_cache_control(response: &mut Response, value: Bytes) {
    let mut value = Some(value);
    response.fields.retain_mut(|field| {
        if !field.name.eq_ignore_ascii_case(b"Cache-Control") {
            return true;
        }
        value.take().map(|value| field.value = value).is_some()
    });
    if let Some(value) = value {
        response.add(Bytes::from_static(b"Cache-Control"), value);
    }
}

/// The next occurrence of a second of the local day. Days are not always 24 hours long, so tomorrow
/// is computed by the calendar.
fn next_time_of_day(now: i64, second: i64, zone: &TimeZone) -> i64 {
    let at_day = |days: i64| -> Option<i64> {
        let today = Timestamp::from_second(now)
            .ok()?
            .to_zoned(zone.clone())
            .date();
        let day = today
            .checked_add(jiff::Span::new().try_days(days).ok()?)
            .ok()?;
        let midnight = day.at(0, 0, 0, 0);
        let time = midnight
            .checked_add(jiff::Span::new().try_seconds(second).ok()?)
            .ok()?;
        Some(zone.to_zoned(time).ok()?.timestamp().as_second())
    };
    match at_day(0) {
        Some(time) if time > now => time,
        _ => at_day(1).unwrap_or(now),
    }
}

#[cfg(test)]
mod tests {
    use http::testing;

    use super::*;

    #[test]
    fn expires_is_read_as_nginx_reads_it() {
        for (value, modified, expected) in [
            ("epoch", false, Ok(Expires::Epoch)),
            ("max", false, Ok(Expires::Max)),
            ("off", false, Ok(Expires::Off)),
            ("max", true, Err("invalid value")),
            ("1h", false, Ok(Expires::Access(3600))),
            ("+1h", false, Ok(Expires::Access(3600))),
            ("-1", false, Ok(Expires::Access(-1))),
            ("0", false, Ok(Expires::Access(0))),
            ("2d", true, Ok(Expires::Modified(172_800))),
            ("@15h30m", false, Ok(Expires::Daily(55_800))),
            (
                "@25h",
                false,
                Err("daily time value must be less than 24 hours"),
            ),
            (
                "@1h",
                true,
                Err("daily time cannot be used with \"modified\" parameter"),
            ),
            ("x", false, Err("invalid value")),
            ("", false, Err("invalid value")),
        ] {
            assert_eq!(
                Expires::parse(value.as_bytes(), modified),
                expected,
                "{value} {modified}"
            );
        }
    }

    fn expiring(expires: Expires) -> (String, String) {
        let mut response = Response {
            last_modified: Some(784_111_777),
            ..Response::default()
        };
        response.add("Cache-Control", "public");
        response.add("Cache-Control", "x");
        set_expires(&mut response, expires, 784_111_877);
        assert_eq!(response.fields.len(), 2);
        let text = |name: &[u8]| String::from_utf8(response.field(name).unwrap().to_vec()).unwrap();
        (text(b"Expires"), text(b"Cache-Control"))
    }

    #[test]
    fn expires_fields() {
        for (expires, date, control) in [
            (Expires::Epoch, "Thu, 01 Jan 1970 00:00:01 GMT", "no-cache"),
            (
                Expires::Max,
                "Thu, 31 Dec 2037 23:55:55 GMT",
                "max-age=315360000",
            ),
            (
                Expires::Access(0),
                "Sun, 06 Nov 1994 08:51:17 GMT",
                "max-age=0",
            ),
            (
                Expires::Access(60),
                "Sun, 06 Nov 1994 08:52:17 GMT",
                "max-age=60",
            ),
            (
                Expires::Access(-60),
                "Sun, 06 Nov 1994 08:50:17 GMT",
                "no-cache",
            ),
            (
                Expires::Modified(160),
                "Sun, 06 Nov 1994 08:52:17 GMT",
                "max-age=60",
            ),
            (
                Expires::Modified(10),
                "Sun, 06 Nov 1994 08:49:47 GMT",
                "no-cache",
            ),
        ] {
            assert_eq!(
                expiring(expires),
                (date.to_owned(), control.to_owned()),
                "{expires:?}"
            );
        }
    }

    #[test]
    fn the_next_time_of_day() {
        let midnight = 784_080_000; // 1994-11-06
        let now = midnight + 8 * 3600;
        assert_eq!(
            next_time_of_day(now, 9 * 3600, &TimeZone::UTC),
            midnight + 9 * 3600
        );
        assert_eq!(
            next_time_of_day(now, 8 * 3600, &TimeZone::UTC),
            midnight + 32 * 3600
        );
        assert_eq!(
            next_time_of_day(now, SECONDS_PER_DAY, &TimeZone::UTC),
            midnight + SECONDS_PER_DAY
        );
    }

    #[test]
    fn etag_and_last_modified_are_replaced() {
        let added = |name: &'static str, replaces| Added {
            is_constant: true,
            may_offer_http3: false,
            name: name.into(),
            value: Text::Literal(Bytes::new()),
            always: false,
            replaces,
        };
        let mut response = Response {
            last_modified: Some(1),
            ..Response::default()
        };
        response.add("ETag", "\"a\"");
        response.add("X", "1");
        add_field(&mut response, &added("etag", true), "\"b\"".into());
        assert_eq!(
            response.fields[0],
            Field {
                name: "etag".into(),
                value: "\"b\"".into()
            }
        );
        add_field(&mut response, &added("ETag", true), Bytes::new());
        assert!(response.field(b"ETag").is_none());
        add_field(
            &mut response,
            &added("Last-Modified", true),
            "Thu, 01 Jan 1970 00:00:09 GMT".into(),
        );
        assert_eq!(response.last_modified, None);
        assert_eq!(last_modified(&response), Some(9));
        add_field(&mut response, &added("X", false), "2".into());
        add_field(&mut response, &added("X", false), Bytes::new());
        assert_eq!(
            response
                .fields
                .iter()
                .filter(|field| field.name == "X")
                .count(),
            2
        );
    }

    fn fields(text: &str, blocks: &[&str]) -> Vec<String> {
        let tables = [Headers::DIRECTIVES, crate::rewrite::DIRECTIVES];
        let compiled = testing::compiled_among::<Headers>(&tables, text, blocks);
        let (headers, _) = compiled.unwrap();
        let value = |field: &Added| field.value.literal().map(|value| value.to_vec());
        let text = |field: &Added| String::from_utf8(value(field).unwrap_or_default()).unwrap();
        headers.fields.iter().map(text).collect()
    }

    #[test]
    fn lists_are_inherited_as_nginx_does() {
        let inner = ["http", "server", "location"];
        let text = |server: &str, location: &str| {
            format!("http {{ add_header A a; server {{ {server} location / {{ {location} }} }} }}")
        };
        assert_eq!(fields(&text("", ""), &inner), ["a"]);
        assert_eq!(fields(&text("add_header B b;", ""), &inner), ["b"]);
        let merged = "add_header B b; add_header_inherit merge;";
        assert_eq!(fields(&text(merged, ""), &inner), ["b", "a"]);
        assert_eq!(
            fields(&text(merged, "add_header C c;"), &inner),
            ["c", "b", "a"]
        );
        assert_eq!(
            fields(&text("add_header_inherit off;", ""), &inner),
            Vec::<String>::new()
        );
        assert_eq!(
            fields(
                &text(merged, "add_header C c; add_header_inherit on;"),
                &inner
            ),
            ["c"]
        );
        assert_eq!(
            fields(
                "http { server { location / { if ($uri) { add_header X x; } } } }",
                &inner
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn mistakes_in_words_of_nginx() {
        let error = |line: &str| {
            testing::feature::<Headers>(&format!("http {{ {line} }}"), &["http"]).unwrap_err()
        };
        assert_eq!(
            error("add_header A a sometimes;"),
            "invalid parameter \"sometimes\""
        );
        assert_eq!(
            error("expires @25h;"),
            "\"expires\" directive daily time value must be less than 24 hours"
        );
        assert_eq!(
            error("expires later 1h;"),
            "\"expires\" directive invalid value"
        );
    }
}
