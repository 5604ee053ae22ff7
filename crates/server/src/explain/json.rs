//! The explanation as JSON: one object.

use base::json::Writer;
use conf::Position;

use super::{Candidate, ConfigLocation, ExplainStep, Explanation};

impl Explanation {
    /// The explanation as JSON, on one line. Positions are objects with `file` and `line`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Writer::default();
        json.object(|json| {
            json.key("request").string(&self.request);
            json.key("from").string(&self.from);
            json.key("listen").object(|json| {
                json.key("address").string(&self.listen.address);
                json.key("reason").string(&self.listen.reason);
                json.key("others").array(|json| {
                    self.listen
                        .others
                        .iter()
                        .for_each(|other| json.string(other));
                });
            });
            json.key("server").object(|json| {
                json.key("name").string(&self.server.name);
                position(self.server.position, json);
                json.key("reason").string(&self.server.reason);
                json.key("others").array(|json| {
                    for other in &self.server.others {
                        json.object(|json| place("names", other, json));
                    }
                });
            });
            json.key("way")
                .array(|json| self.way.iter().for_each(|one| station(one, json)));
            json.key("answer").string(&self.outcome);
            match self.status {
                Some(status) => json.key("status").number(status),
                None => json.key("status").null(),
            }
            json.key("scope")
                .object(|json| place("text", &self.scope, json));
            json.key("work").array(|json| {
                for work in &self.work {
                    json.object(|json| {
                        json.key("phase").string(work.phase);
                        place("directive", &work.place, json);
                    });
                }
            });
            json.key("directives").array(|json| self.directives(json));
        });
        json.into_bytes()
    }

    fn directives(&self, json: &mut Writer) {
        for row in &self.directives {
            json.object(|json| {
                place("directive", &row.place, json);
                json.key("scope").string(&row.scope);
                json.key("inherited").boolean(row.inherited);
                if let Some(reason) = row.no_effect {
                    json.key("no_effect").string(reason);
                }
            });
        }
    }
}

fn station(station: &ExplainStep, json: &mut Writer) {
    json.object(|json| match station {
        ExplainStep::Did {
            phase,
            text,
            position: at,
        } => {
            json.key("phase").string(phase);
            json.key("text").string(text);
            position(*at, json);
        }
        ExplainStep::Located { uri, candidates } => {
            json.key("phase").string("location");
            json.key("uri").string(uri);
            json.key("locations")
                .array(|json| candidates.iter().for_each(|one| candidate(one, json)));
        }
    });
}

fn candidate(candidate: &Candidate, json: &mut Writer) {
    json.object(|json| {
        place("location", &candidate.place, json);
        json.key("depth").number(candidate.depth);
        json.key("chosen").boolean(candidate.chosen);
        json.key("why").string(&candidate.why);
    });
}

fn place(key: &str, place: &ConfigLocation, json: &mut Writer) {
    json.key(key).string(&place.text);
    position(place.position, json);
}

fn position(position: Option<Position>, json: &mut Writer) {
    let Some(position) = position else { return };
    json.key("at").object(|json| {
        if let Some(file) = position.file_name() {
            json.key("file").string(&file.to_string_lossy());
        }
        json.key("line").number(position.line);
    });
}
