//! The explanation as text for people.

use std::fmt;

use conf::Position;
use framework::display::for_people;

use super::{Candidate, ConfigLocation, ExplainStep, Explanation};

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The outcome comes first, before the steps that lead to it.
        let status = match self.status {
            Some(status) => format!("Status {status}"),
            None => "Status of what is asked".to_owned(),
        };
        let ConfigLocation { text, position } = &self.scope;
        writeln!(out, "{status}, answered in {text}{}", at(*position))?;
        writeln!(out, "  {}\n", self.outcome)?;
        writeln!(out, "{}\n  from {}", self.request, self.from)?;
        let others = match self.listen.others.as_slice() {
            [] => String::new(),
            others => format!("; also on {}", others.join(", ")),
        };
        let (listen, server) = (&self.listen, &self.server);
        writeln!(
            out,
            "\nListen {}\n  {}{others}",
            listen.address, listen.reason
        )?;
        let name = match &*server.name {
            "" => "without a name",
            name => name,
        };
        writeln!(out, "\nServer {name}{}", at(server.position))?;
        writeln!(out, "  {}", server.reason)?;
        for other in &server.others {
            writeln!(out, "  not {}{}", other.text, at(other.position))?;
        }
        writeln!(out, "\nWay")?;
        for station in &self.way {
            match station {
                ExplainStep::Did {
                    phase,
                    text,
                    position,
                } => writeln!(out, "  {phase}: {text}{}", at(*position))?,
                ExplainStep::Located { uri, candidates } => located(uri, candidates, out)?,
            }
        }
        writeln!(out, "\nAnswer\n  {}", self.outcome)?;
        writeln!(out, "\nWork")?;
        for work in &self.work {
            let ConfigLocation { text, position } = &work.place;
            writeln!(out, "  {}: {text}{}", work.phase, at_or_default(*position))?;
        }
        let ConfigLocation { text, position } = &self.scope;
        writeln!(out, "\nDirectives in force in {text}{}", at(*position))?;
        for row in &self.directives {
            let from = if row.inherited {
                format!("  from {}", row.scope)
            } else {
                String::new()
            };
            let effect = match row.no_effect {
                Some(reason) => format!("  no effect: {reason}"),
                None => String::new(),
            };
            let place = at_or_default(row.place.position);
            writeln!(out, "  {}{place}{from}{effect}", row.place.text)?;
        }
        Ok(())
    }
}

fn located(uri: &str, candidates: &[Candidate], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(out, "  location of {}", for_people(uri.as_bytes()))?;
    if !candidates.iter().any(|candidate| candidate.chosen) {
        writeln!(out, "    none: the server itself")?;
    }
    for candidate in candidates {
        let sign = if candidate.chosen { '+' } else { '-' };
        let ConfigLocation { text, position } = &candidate.place;
        let (indent, place) = ("  ".repeat(candidate.depth), at(*position));
        writeln!(out, "    {indent}{sign} {text}{place}: {}", candidate.why)?;
    }
    Ok(())
}

/// A position in brackets; empty without one.
fn at(position: Option<Position>) -> String {
    position.map_or_else(String::new, |position| format!("  [{position}]"))
}

fn at_or_default(position: Option<Position>) -> String {
    match position {
        None => "  (default)".to_owned(),
        position => at(position),
    }
}
