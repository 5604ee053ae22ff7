//! The directives of caches, declared once for `proxy_`, `fastcgi_`, `uwsgi_` and `scgi_`.

use std::sync::Arc;
use std::time::Duration;

use conf::{
    Arity, Contexts, Declared, Diagnostic, Fault, Inherit, Level, Line, ScopeRef, Setter, Setting,
    Spec, Template, Word, parse,
};
use framework::compile::Compiler;
use http::request::Text;
use http::variables::Compiling as _;

use super::clock::milliseconds;
use super::purge_line;
use super::semantics_line;
use super::semantics_line::Semantics;
use super::settings::{Cache, FillLock, Methods, Valid, ZoneChoice};
use super::sharing::SharingSettings;
use super::zone::{self, CacheZone};
use crate::family::{self, Causes};
use crate::store_settings::StoreLine;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The directives of one module.
pub struct Family {
    pub(super) prefix: &'static str,
    pub(crate) cache: Setting<Option<Word>>,
    /// `*_cache_path`.
    pub cache_path: Setting<()>,
    pub(crate) cache_key: Setting<Template>,
    pub(crate) cache_valid: Setting<Vec<Valid>>,
    pub(crate) cache_methods: Setting<Methods>,
    pub(crate) cache_min_uses: Setting<u64>,
    pub(crate) cache_bypass: Setting<Vec<Template>>,
    pub(crate) no_cache: Setting<Vec<Template>>,
    pub(crate) cache_max_range_offset: Setting<u64>,
    pub(crate) cache_use_stale: Setting<Causes>,
    pub(crate) cache_revalidate: Setting<bool>,
    pub(crate) cache_background_update: Setting<bool>,
    pub(crate) cache_lock: Setting<bool>,
    pub(crate) cache_lock_timeout: Setting<Duration>,
    pub(crate) cache_lock_age: Setting<Duration>,
    pub(crate) cache_purge: Setting<Vec<Word>>,
    pub(crate) cache_semantics: Setting<Semantics>,
    /// `*_cache_convert_head`.
    pub cache_convert_head: Setting<bool>,
}

impl Family {
    /// The directives with this prefix, for a module whose upstreams speak HTTP.
    pub const fn of(prefix: &'static str) -> Family {
        Family::with(prefix, &[family::CAUSES_OF_HTTP], family::causes)
    }

    /// The directives with this prefix, for a module whose upstreams are application servers.
    pub const fn of_applications(prefix: &'static str) -> Family {
        Family::with(
            prefix,
            &[family::CAUSES_OF_APPLICATIONS],
            family::causes_of_applications,
        )
    }

    const fn with(
        prefix: &'static str,
        use_stale: &'static [&'static str],
        causes: fn(&Setter<'_>) -> Result<Causes, Fault>,
    ) -> Family {
        Family {
            prefix,
            cache: Setting::family(prefix, "cache", &["zone | off"], cache)
                .contexts(HSL)
                .default("off")
                .manual("The cache that answers are kept in, which a `*_cache_path` line declares; one zone may serve many places. The name may hold variables. Only what is buffered is kept."),
            cache_path: Setting::family(prefix, "cache_path", &["path [levels=levels] [use_temp_path=on|off] keys_zone=name:size [inactive=time] [max_size=size] [min_free=size] [memory=size] [memory_entry_max=size] [manager_files=number] [manager_sleep=time] [manager_threshold=time] [loader_files=number] [loader_sleep=time] [loader_threshold=time]", "memory:name keys_zone=name:size memory=size [memory_entry_max=size] [inactive=time] [manager_files=number] [manager_sleep=time] [manager_threshold=time]"], zone::check)
                .contexts(Contexts::HTTP)
                .arity(Arity::at_least(2))
                .inherit(Inherit::List)
                .manual("Declares a cache: a folder, its levels of subfolders, and a zone that knows what lies there. Entries that are not used for the time `inactive` (10 minutes) go, and those that were used longest ago where there are more than `max_size`, or less than `min_free` is free. Files are always written beside their place, whatever `use_temp_path` says. A folder of nginx is taken over as it is. With `memory` (ours) entries whose body is not longer than `memory_entry_max` (64k, 1m at most) are also kept in so much memory, from where they are given without their file being opened; it is looked at for each use, so that what others change or remove there is not given any more. With `memory:` and a name in place of the path there is no folder, and all entries lie in memory; what is longer is passed on and not kept."),
            cache_key: Setting::family(prefix, "cache_key", &["string"], parse::template)
                .contexts(HSL)
                .manual("What an answer is found by again. Without it that is the URL that is asked for, with proxy_pass; other modules need one."),
            cache_valid: Setting::family(prefix, "cache_valid", &["[code ...] time"], valid)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::List)
                .manual("How long answers with these statuses are fresh whose heads do not say it (X-Accel-Expires, Cache-Control, Expires); `any` are all others. Without statuses it is 200, 301 and 302."),
            cache_methods: Setting::family(prefix, "cache_methods", &["GET | HEAD | POST ..."], methods)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .default("GET HEAD")
                .manual("Requests of which methods are answered from the cache; GET and HEAD always are."),
            cache_min_uses: Setting::family(prefix, "cache_min_uses", &["number"], parse::number)
                .contexts(HSL)
                .default("1")
                .manual("How often something must be asked for before it is kept."),
            cache_bypass: Setting::family(prefix, "cache_bypass", &["string ..."], templates)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::Value)
                .manual("If one of the values is neither empty nor 0, the answer is not taken from the cache."),
            no_cache: Setting::family(prefix, "no_cache", &["string ..."], templates)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::Value)
                .manual("If one of the values is neither empty nor 0, the answer is not kept."),
            cache_max_range_offset: Setting::family(prefix, "cache_max_range_offset", &["number"], parse::offset)
                .contexts(HSL)
                .manual("A range that begins here or behind is passed on to the upstream, and its answer not kept. By default no range is: the whole answer is fetched."),
            cache_use_stale: Setting::family(prefix, "cache_use_stale", use_stale, causes)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::Value)
                .default("off")
                .manual("When an answer is given that is fresh no more: instead of a failure, of an answer with one of these statuses, or with `updating` while another request fetches it. `non_idempotent` is taken, as by nginx, and says nothing here."),
            cache_revalidate: Setting::family(prefix, "cache_revalidate", &["on | off"], parse::flag)
                .contexts(HSL)
                .default("off")
                .manual("Asks the upstream for what is fresh no more with If-Modified-Since and If-None-Match, by what the answer in the cache has as Last-Modified and ETag; with 304 that one is fresh again, and given. A client's own conditions do not reach the upstream."),
            cache_background_update: Setting::family(prefix, "cache_background_update", &["on | off"], parse::flag)
                .contexts(HSL)
                .default("off")
                .manual("Gives what is fresh no more at once where `*_cache_use_stale` has `updating`, or the answer itself allows it (stale-while-revalidate), and fetches it anew beside that. Neither the client nor its next requests wait for that, and it goes on where the client leaves."),
            cache_lock: Setting::family(prefix, "cache_lock", &["on | off"], parse::flag)
                .contexts(HSL)
                .default("off")
                .manual("Of all who ask at the same time for what is not in the cache one request goes to the upstream. The others get its answer as it comes, with HIT, if that is kept and is of their variant. After an answer that is not kept, no request waits for the next ones for ten seconds. What is in the cache and fresh no more is not waited for: see `*_cache_use_stale` with `updating`."),
            cache_lock_timeout: Setting::family(prefix, "cache_lock_timeout", &["time"], parse::milliseconds)
                .contexts(HSL)
                .default("5s")
                .manual("How long a request waits for the head of an answer that another has asked for. Then it is passed on, and its answer not kept."),
            cache_lock_age: Setting::family(prefix, "cache_lock_age", &["time"], parse::milliseconds)
                .contexts(HSL)
                .default("5s")
                .manual("If the head of an answer has not come for so long, one more request is passed on."),
            cache_purge: Setting::family(prefix, "cache_purge", &["string ...", "off", "method [from network ...]", "zone key"], words)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::Value)
                .manual("Removes what the key of the request stands for, with all its variants and slices; all keys that begin so where it ends with `*`. As NGINX Plus has it, a request purges if one of the strings is neither empty nor 0: the answer is 204, or 404 where nothing was there. As the module ngx_cache_purge has it, one purges with this method, such as PURGE, from these networks (`all` unless they are written; others get 403), or a location removes a key from a zone that is named first: the answer is a page with 200, or 404."),
            cache_semantics: Setting::family(prefix, "cache_semantics", &[semantics_line::SYNTAX], semantics_line::read)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::Value)
                .default("nginx")
                .manual("By which rules answers are kept and given again: nginx's, or those of RFC 9111 for a shared cache. By `rfc` the age of an answer counts and is told (`Age`), what may not be given without being confirmed is confirmed, unsafe methods make void what they change, and answers to requests with Authorization are kept where the answer allows it; `*_cache_revalidate` and `*_cache_background_update` are on. `CDN-Cache-Control` goes before `Cache-Control`, `X-Accel-Expires` before both. What an answer leaves open `*_cache_valid` decides; then `heuristic`, a share of the time since Last-Modified, up to a day (none by default). `stale_if_error` (60s) and `stale_while_revalidate` (0) are for how long an answer that says how long it is fresh is given beyond that, instead of a failure and while it is fetched anew, where it does not say that itself. `reload_interval` (0) is how long no client can have fetched anew what has just been fetched (`no-cache`, `max-age`, `min-fresh`). `Cache-Status` tells what was done. A purge with the field `Surrogate-Key` or `Cache-Tag` removes the answers that have one of its tags."),
            cache_convert_head: Setting::family(prefix, "cache_convert_head", &["on | off"], parse::flag)
                .contexts(HSL)
                .default("on")
                .manual("Asks the upstream with GET where the client asks with HEAD, so that the answer can be kept. Where it is off, the key should hold the method."),
        }
    }

    /// The directives that apply to a scope, except for `cache_convert_head`.
    pub const fn of_scopes(&'static self) -> [&'static dyn Declared; 16] {
        [
            &self.cache,
            &self.cache_key,
            &self.cache_valid,
            &self.cache_methods,
            &self.cache_min_uses,
            &self.cache_bypass,
            &self.no_cache,
            &self.cache_max_range_offset,
            &self.cache_use_stale,
            &self.cache_revalidate,
            &self.cache_background_update,
            &self.cache_purge,
            &self.cache_lock,
            &self.cache_lock_timeout,
            &self.cache_lock_age,
            &self.cache_semantics,
        ]
    }

    /// Compiles the settings of a scope; `None` if the cache is off.
    pub(crate) fn compile(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        store: &Setting<StoreLine>,
        converts_head: bool,
    ) -> Result<Option<Cache>, Fault> {
        // Values are checked even if the cache is off in the scope.
        let texts = |written: Option<Vec<Template>>| -> Box<[Text]> {
            let templates = written.unwrap_or_default();
            templates.iter().map(|it| compiler.text(it)).collect()
        };
        let key = scope.written(&self.cache_key)?;
        let slice_range = key
            .as_ref()
            .and_then(|key| purge_line::slice_range(compiler, key));
        let key = key.map(|template| compiler.text(&template));
        let purge = self.purge(compiler, scope)?;
        let bypass = texts(scope.written(&self.cache_bypass)?);
        let no_cache = texts(scope.written(&self.no_cache)?);
        let valid = scope.written(&self.cache_valid)?.unwrap_or_default();
        let methods = scope.get(&self.cache_methods)?;
        let min_uses = scope.get(&self.cache_min_uses)?;
        let max_range_offset = scope.written(&self.cache_max_range_offset)?;
        let mut use_stale = scope.get(&self.cache_use_stale)?;
        if use_stale.contains(Causes::ERROR) {
            use_stale = use_stale.with(Causes::NO_LIVE);
        }
        let semantics = scope.get(&self.cache_semantics)?;
        let is_rfc = semantics.policy().is_some();
        let updates_in_background = scope.get(&self.cache_background_update)? || is_rfc;
        let timeout = scope.get(&self.cache_lock_timeout)?;
        let age = milliseconds(scope.get(&self.cache_lock_age)?);
        let lock = scope.get(&self.cache_lock)?;
        let revalidates = scope.get(&self.cache_revalidate)? || is_rfc;
        let converts_head = converts_head && scope.get(&self.cache_convert_head)?;
        let sharing = match self.prefix {
            "proxy_" => SharingSettings::compile(scope)?,
            _ => SharingSettings::default(),
        };
        let lock = lock.then_some(FillLock {
            timeout,
            age,
            waiting_max: sharing.waiting_max,
        });
        let Some(word) = self.word(scope, store)? else {
            return Ok(None);
        };
        let template = Template::parse(&word)?;
        let choice = match template.as_literal() {
            Some(_) => ZoneChoice::Fixed(self.zone(compiler, &word)?),
            None => ZoneChoice::Named(compiler.text(&template), self.prefix),
        };
        if key.is_none() && self.prefix != "proxy_" {
            let (key, cache) = (self.cache_key.spec.name(), self.cache.spec.name());
            let text = format!("no \"{key}\" for \"{cache}\"");
            compiler.diagnose(Diagnostic::new(Level::Warn, text, Some(word.position)));
        }
        Ok(Some(Cache {
            choice,
            key,
            slice_range,
            purge,
            valid: valid.into(),
            methods,
            min_uses: u32::try_from(min_uses).unwrap_or(u32::MAX),
            bypass,
            no_cache,
            max_range_offset,
            use_stale,
            lock,
            updates_in_background,
            revalidates,
            converts_head,
            is_of_applications: self.prefix != "proxy_",
            semantics,
            sharing,
        }))
    }

    /// The argument of `*_cache` in a scope. If `*_store` is set too, the directive of the inner
    /// scope applies.
    pub(super) fn word(
        &self,
        scope: ScopeRef<'_>,
        store: &Setting<StoreLine>,
    ) -> Result<Option<Word>, Fault> {
        for scope in std::iter::successors(Some(scope), |scope| scope.parent()) {
            let stores = scope
                .own(store)?
                .is_some_and(|line| !matches!(line, StoreLine::Off));
            match scope.own(&self.cache)? {
                Some(Some(word)) if stores => {
                    return Err(incompatible(scope, &word, &self.cache.spec, &store.spec));
                }
                Some(word) => return Ok(word),
                None if stores => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// Whether a line of this family has declared a zone with this name.
    pub(super) fn has_zone(&self, compiler: &Compiler<'_>, word: &Word) -> bool {
        let zone = compiler.zones.borrow().find::<CacheZone>(&word.text());
        zone.is_ok_and(|zone| zone.settings().prefix == self.prefix)
    }

    /// The zone with this name, which a line of this family must have declared.
    pub(super) fn zone(
        &self,
        compiler: &Compiler<'_>,
        word: &Word,
    ) -> Result<Arc<framework::zone::Zone<CacheZone>>, Fault> {
        let name = word.text();
        let fault = |text: String| Fault::at(word, text).of_missing(&name, PATHS);
        let unknown = || {
            let cache = self.cache.spec.name();
            fault(format!("\"{cache}\" zone \"{name}\" is unknown"))
        };
        let zones = compiler.zones.borrow();
        let zone = zones.find::<CacheZone>(&name).map_err(|text| {
            if text.starts_with("zero size") {
                unknown()
            } else {
                fault(text)
            }
        })?;
        if zone.settings().prefix != self.prefix {
            return Err(fault(format!(
                "the shared memory zone \"{name}\" is already declared for a different use"
            )));
        }
        Ok(zone)
    }
}

/// The fault for `*_cache` and `*_store` in one scope, at the later of the two.
fn incompatible(scope: ScopeRef<'_>, word: &Word, cache: &Spec, store: &Spec) -> Fault {
    let sequence = |spec: &Spec| scope.own_lines(spec).first().map(|line| line.sequence());
    let (second, first) = if sequence(store) > sequence(cache) {
        (store, cache)
    } else {
        (cache, store)
    };
    let (second, first) = (second.name(), first.name());
    let text = format!("\"{second}\" directive is incompatible with \"{first}\"");
    Fault::at(word, text)
}

const PATHS: &[&str] = &[
    "proxy_cache_path",
    "fastcgi_cache_path",
    "uwsgi_cache_path",
    "scgi_cache_path",
];

fn cache(setter: &Setter<'_>) -> Result<Option<Word>, Fault> {
    let word = setter.word()?;
    Template::parse(word)?;
    Ok((&*word.bytes != b"off").then(|| word.clone()))
}

/// The statuses of a `*_cache_valid` line that lists none.
const STATUSES: [u16; 3] = [200, 301, 302];

fn valid(setter: &Setter<'_>) -> Result<Vec<Valid>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        valid_line(line, &mut all)?;
    }
    Ok(all)
}

fn valid_line(line: &Line, all: &mut Vec<Valid>) -> Result<(), Fault> {
    let Some((time, codes)) = line.args.split_last() else {
        return Ok(()); // the arity has been checked
    };
    let seconds = parse::time_seconds(&time.bytes)
        .ok_or_else(|| Fault::at(time, format!("invalid time value \"{}\"", time.text())))?;
    if codes.is_empty() {
        all.extend(STATUSES.map(|status| Valid {
            status: Some(status),
            seconds,
        }));
    }
    for code in codes {
        let status = if &*code.bytes == b"any" {
            None
        } else {
            let number = parse::number_of(&code.bytes).and_then(|code| u16::try_from(code).ok());
            let status = number.filter(|status| (100..=599).contains(status));
            Some(
                status.ok_or_else(|| {
                    Fault::at(code, format!("invalid status \"{}\"", code.text()))
                })?,
            )
        };
        all.push(Valid { status, seconds });
    }
    Ok(())
}

fn methods(setter: &Setter<'_>) -> Result<Methods, Fault> {
    let mut seen: Vec<&[u8]> = Vec::new();
    for word in setter.args() {
        let known = ["GET", "HEAD", "POST"];
        let name = known
            .iter()
            .find(|name| word.bytes.eq_ignore_ascii_case(name.as_bytes()));
        let name = name.ok_or_else(|| Fault::invalid_value(word))?;
        if seen.contains(&name.as_bytes()) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        seen.push(name.as_bytes());
    }
    Ok(Methods {
        post: seen.contains(&&b"POST"[..]),
    })
}

fn words(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    setter
        .args()
        .iter()
        .try_for_each(|word| Template::parse(word).map(drop))?;
    Ok(setter.args().to_vec())
}

fn templates(setter: &Setter<'_>) -> Result<Vec<Template>, Fault> {
    setter.args().iter().map(Template::parse).collect()
}
