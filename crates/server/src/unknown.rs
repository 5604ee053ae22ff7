//! Errors of variables that a configuration uses and nothing defines.

use conf::{Fault, Files, Position, Tree};

use crate::protocols;
use crate::reference;

/// The names, each with where it is used.
pub struct Unknown<'a> {
    names: Vec<(&'a str, Vec<Position>)>,
}

impl<'a> Unknown<'a> {
    /// Finds where these names are used.
    pub fn new(names: &'a [Box<str>], tree: &Tree, files: &dyn Files) -> Unknown<'a> {
        let places = |name: &str| {
            let mut places = tree.uses_of_variable(name);
            // The first place is that of the error, which names the line that nginx does.
            for place in places.iter_mut().skip(1) {
                *place = place.on_own_line(files);
            }
            places
        };
        let names = names.iter().map(|name| (&**name, places(name)));
        Unknown {
            names: names.collect(),
        }
    }

    /// An error for each name; of those that nginx has, one for each module and file.
    pub fn faults(&self) -> impl Iterator<Item = Fault> {
        let mut faults: Vec<Fault> = Vec::new();
        let mut modules: Vec<(&str, u32, usize)> = Vec::new();
        for (name, places) in &self.names {
            let first = places.first().copied();
            let file = first.map_or(0, |position| position.file);
            let Some(known) = reference::variable(name) else {
                faults.push(misspelled(name, places));
                continue;
            };
            let also = format!("${name}");
            let of_module =
                |(module, of, _): &&(&str, u32, usize)| (*module, *of) == (known.module, file);
            if let Some((.., at)) = modules.iter().find(of_module) {
                if let Some(hint) = faults.get_mut(*at).and_then(|fault| fault.hint.as_mut()) {
                    let more = if hint.contains(", as is ") {
                        ", "
                    } else {
                        ", as is "
                    };
                    hint.push_str(more);
                    hint.push_str(&also);
                }
                continue;
            }
            modules.push((known.module, file, faults.len()));
            let remark = known.remark;
            let fault = Fault {
                position: first,
                ..Fault::new(format!("unsupported variable \"${name}\" ({remark})"))
            };
            faults.push(fault.with_hint(format!("it is of module {}", known.module)));
        }
        faults.into_iter()
    }
}

/// The error of a name that nginx has not either, in its words.
fn misspelled(name: &str, places: &[Position]) -> Fault {
    let fault = Fault {
        position: places.first().copied(),
        ..Fault::new(format!("unknown \"{name}\" variable")).of_missing(name, DEFINERS)
    };
    let meant = nearest(name).map(|near| format!("did you mean \"${near}\"?"));
    let also = conf::also(places.get(1..).unwrap_or_default());
    match (meant, also) {
        (Some(meant), Some(also)) => fault.with_hint(format!("{meant} It is {also}")),
        (Some(meant), None) => fault.with_hint(meant),
        (None, Some(also)) => fault.with_hint(format!("it is {also}")),
        (None, None) => fault,
    }
}

/// The variable whose name is most like this one, if any is.
pub fn nearest(name: &str) -> Option<&'static str> {
    let here = reference::nginx()
        .iter()
        .filter(|known| known.is_variable && !known.name.ends_with('_'))
        .map(|known| known.name)
        .filter(|known| protocols::has_variable(known));
    conf::nearest(name, here.chain(OWN))
}

const DEFINERS: &[&str] = &[
    "auth_request_set",
    "geo",
    "geoip2",
    "map",
    "num_map",
    "set",
    "split_clients",
];

/// Variables that nginx does not have.
const OWN: [&str; 3] = ["brotli_ratio", "tidegate_version", "zstd_ratio"];
