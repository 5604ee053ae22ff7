//! Errors for variables that a configuration uses but does not define.

use conf::{Fault, Files, Position, Tree};

use crate::protocols;
use crate::reference;

/// The names of undefined variables, with the positions of their uses.
pub struct Unknown<'a> {
    names: Vec<(&'a str, Vec<Position>)>,
}

impl<'a> Unknown<'a> {
    /// Finds the uses of these names.
    pub fn new(names: &'a [Box<str>], tree: &Tree, files: &dyn Files) -> Unknown<'a> {
        let places = |name: &str| {
            let mut places = tree.uses_of_variable(name);
            // The first position becomes the error's and names the same line as nginx's error.
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

    /// An error for each name. Names of the same nginx module in the same file share one error.
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

/// The error for a name that nginx does not have either, in nginx's words.
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

/// The variable with the most similar name, if any is similar.
pub fn nearest(name: &str) -> Option<&'static str> {
    let here = reference::nginx()
        .iter()
        .filter(|known| known.is_variable && !known.name.ends_with('_'))
        .map(|known| known.name)
        .filter(|known| protocols::has_variable(known));
    conf::nearest(name, here.chain(OWN))
}

/// Directives that define variables.
const DEFINERS: &[&str] = &[
    "auth_request_set",
    "geo",
    "geoip2",
    "map",
    "num_map",
    "set",
    "split_clients",
];

/// Built-in variables that nginx does not have.
const OWN: [&str; 3] = ["brotli_ratio", "tidegate_version", "zstd_ratio"];
