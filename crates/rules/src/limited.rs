//! What `limit_req` and `limit_conn` have in common: directives of the same kind.

use conf::{Fault, Line, Setter, parse};

use logs::Level;

/// Reads `limit_req_status` and `limit_conn_status`.
pub fn status(setter: &Setter<'_>) -> Result<u16, Fault> {
    let status = parse::number(setter)?;
    u16::try_from(status)
        .ok()
        .filter(|status| (400..=599).contains(status))
        .ok_or_else(|| Fault::new("value must be between 400 and 599"))
}

/// Reads `limit_req_log_level` and `limit_conn_log_level`.
pub fn level(setter: &Setter<'_>) -> Result<Level, Fault> {
    const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];
    parse::enumeration(setter, &LEVELS.map(|level| (level.name(), level)))
}

/// Reads the lines of `limit_req` or `limit_conn`: one for each zone.
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
