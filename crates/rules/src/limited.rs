//! The common directives of `limit_req` and `limit_conn`.

use conf::{Arity, Contexts, Fault, Line, ScopeRef, Setter, Setting, parse};

use logs::Level;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The directives for refused requests, such as `limit_req_status` and `limit_conn_status`.
pub struct RefusalFamily {
    /// The status of the response to a refused request.
    pub status: Setting<u16>,
    /// The level of the log line.
    pub log_level: Setting<Level>,
    /// Whether a refused request is served nevertheless.
    pub dry_run: Setting<bool>,
}

impl RefusalFamily {
    /// Declares the directives with this prefix. `*_status` is only allowed for requests;
    /// `*_log_level` and `*_dry_run` are allowed in `contexts`, and have the texts `log_level` and
    /// `dry_run` in the manual.
    pub const fn of(
        prefix: &'static str,
        contexts: Contexts,
        log_level: &'static str,
        dry_run: &'static str,
    ) -> RefusalFamily {
        RefusalFamily {
            status: Setting::family(prefix, "status", &["code"], status)
                .contexts(HSL)
                .default("503")
                .manual("The status of requests that are refused."),
            log_level: Setting::family(
                prefix,
                "log_level",
                &["info | notice | warn | error"],
                level,
            )
            .contexts(contexts)
            .default("error")
            .manual(log_level),
            dry_run: Setting::family(prefix, "dry_run", &["on | off"], parse::flag)
                .contexts(contexts)
                .arity(Arity::flag())
                .default("off")
                .manual(dry_run),
        }
    }

    /// Reads the values of the directives in a scope.
    ///
    /// # Errors
    /// An invalid value.
    pub fn read(&self, scope: ScopeRef<'_>) -> Result<RefusalSettings, Fault> {
        Ok(RefusalSettings {
            status: scope.get(&self.status)?,
            level: scope.get(&self.log_level)?,
            dry_run: scope.get(&self.dry_run)?,
        })
    }
}

/// What happens to a refused request.
#[derive(Clone, Copy, Debug)]
pub struct RefusalSettings {
    /// The status of the response.
    pub status: u16,
    /// The level of the log line.
    pub level: Level,
    /// Whether the request is served nevertheless.
    pub dry_run: bool,
}

fn status(setter: &Setter<'_>) -> Result<u16, Fault> {
    let status = parse::number(setter)?;
    u16::try_from(status)
        .ok()
        .filter(|status| (400..=599).contains(status))
        .ok_or_else(|| Fault::new("value must be between 400 and 599"))
}

fn level(setter: &Setter<'_>) -> Result<Level, Fault> {
    const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];
    parse::enumeration(setter, &LEVELS.map(|level| (level.name(), level)))
}

/// Parses the lines of `limit_req` or `limit_conn` by `read`. Two lines with the same zone are an
/// error.
pub fn lines<T>(
    setter: &Setter<'_>,
    read: impl Fn(&Line) -> Result<T, Fault>,
    zone: impl Fn(&T) -> &str,
) -> Result<Vec<T>, Fault> {
    let mut limits: Vec<T> = Vec::new();
    for line in setter.lines() {
        let limit = read(line)?;
        if limits.iter().any(|known| zone(known) == zone(&limit)) {
            let name = line.name.text();
            let text = format!("\"{name}\" directive is duplicate");
            return Err(Fault::at(&line.name, text));
        }
        limits.push(limit);
    }
    Ok(limits)
}
