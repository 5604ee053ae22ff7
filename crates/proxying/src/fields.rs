//! Request fields that directives set for upstreams: `proxy_set_header`, `grpc_set_header`.

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, Template, Word};
use framework::compile::Compiler;
use http::request::{Request, Text};
use http::variables::Compiling as _;
use proto::header::{NameSet, append_value, has_control};

/// A field that a directive sets.
pub struct SetField {
    /// The name as written.
    pub name: Bytes,
    /// The name in lower case.
    pub lower: Box<[u8]>,
    /// The value; an empty value removes the field.
    pub value: Text,
}

/// Fields that only concern the client's own connection, and are not passed on.
const OWN_CONNECTION: [&[u8]; 9] = [
    b"host",
    b"connection",
    b"proxy-connection",
    b"content-length",
    b"transfer-encoding",
    b"te",
    b"keep-alive",
    b"expect",
    b"upgrade",
];

/// Declares the `*_set_header` directive with this prefix.
pub const fn setting(prefix: &'static str, manual: &'static str) -> Setting<Vec<(Word, Word)>> {
    Setting::family(prefix, "set_header", &["field value"], pairs)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .arity(Arity::exactly(2))
        .inherit(Inherit::Keyed)
        .manual(manual)
}

fn pairs(setter: &Setter<'_>) -> Result<Vec<(Word, Word)>, Fault> {
    let pairs = setter
        .lines()
        .iter()
        .filter_map(|line| match line.args.as_slice() {
            [name, value] => Some((name.clone(), value.clone())),
            _ => None,
        });
    pairs
        .map(|(name, value)| Template::parse(&value).map(|_| (name, value)))
        .collect()
}

/// Compiles the lines of the directive. Also returns the names of the client's fields that are not
/// passed on: the replaced ones, and those about the client's own connection.
pub fn compile(
    compiler: &Compiler<'_>,
    lines: Vec<(Word, Word)>,
) -> Result<(Vec<SetField>, NameSet), Fault> {
    let mut set = Vec::new();
    for (name, value) in lines {
        set.push(SetField {
            lower: name.bytes.to_ascii_lowercase().into(),
            name: Bytes::copy_from_slice(&name.bytes),
            value: compiler.text(&Template::parse(&value)?),
        });
    }
    let own = OWN_CONNECTION.iter().copied();
    let replaced = own.chain(set.iter().map(|field| &*field.lower)).collect();
    Ok((set, replaced))
}

/// The fields that directives set, as HTTP/1 lines. Constant lines are formatted when the
/// configuration is compiled.
pub struct FieldLines {
    /// The value of the last line that sets the host, if there is one.
    host: Option<Text>,
    lines: Vec<FieldLine>,
}

enum FieldLine {
    /// One or several constant lines.
    Constant(Vec<u8>),
    /// A line with a value that is evaluated for each request.
    Made {
        /// The name, and the separator before the value.
        begun: Vec<u8>,
        value: Text,
        is_upgrade: bool,
    },
}

impl FieldLines {
    /// The lines of these fields.
    pub fn of(fields: &[SetField]) -> FieldLines {
        let is_host = |field: &&SetField| &*field.lower == b"host";
        let host = fields.iter().rfind(is_host);
        let mut lines: Vec<FieldLine> = Vec::new();
        for field in fields.iter().filter(|field| !is_host(field)) {
            let begun = [&*field.name, b": "].concat();
            let is_upgrade = &*field.lower == b"upgrade";
            match (&field.value, lines.last_mut()) {
                (value, _) if value.is_empty() => {}
                (Text::Literal(value), last) if !is_upgrade => {
                    let mut line = begun;
                    append_value(value, &mut line);
                    line.extend_from_slice(b"\r\n");
                    match last {
                        Some(FieldLine::Constant(before)) => before.append(&mut line),
                        _ => lines.push(FieldLine::Constant(line)),
                    }
                }
                (value, _) => lines.push(FieldLine::Made {
                    begun,
                    value: value.clone(),
                    is_upgrade,
                }),
            }
        }
        FieldLines {
            host: host.map(|field| field.value.clone()),
            lines,
        }
    }

    /// Appends the host line; false if no line sets the host, or its value is empty.
    pub fn append_host(&self, request: &mut Request, out: &mut Vec<u8>) -> bool {
        let host = self.host.as_ref();
        host.is_some_and(|host| append_line(b"Host: ", host, request, out))
    }

    /// Appends the other lines, except for those with an empty value. Returns whether one of them
    /// is `Upgrade`.
    pub fn append(&self, request: &mut Request, out: &mut Vec<u8>) -> bool {
        let mut has_upgrade = false;
        for line in &self.lines {
            match line {
                FieldLine::Constant(lines) => out.extend_from_slice(lines),
                FieldLine::Made {
                    begun,
                    value,
                    is_upgrade,
                } => has_upgrade |= append_line(begun, value, request, out) && *is_upgrade,
            }
        }
        has_upgrade
    }
}

/// Appends a line with an evaluated value. If the value is empty, appends nothing and returns
/// false.
fn append_line(begun: &[u8], value: &Text, request: &mut Request, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend_from_slice(begun);
    let place = out.len();
    value.append_to(request, out);
    let made = out.get(place..).unwrap_or_default();
    if made.is_empty() {
        out.truncate(start);
        return false;
    }
    if has_control(made) {
        let made = out.split_off(place);
        append_value(&made, out);
    }
    out.extend_from_slice(b"\r\n");
    true
}

/// Whether the field with this name in lower case is set.
pub fn sets(fields: &[SetField], name: &[u8]) -> bool {
    fields.iter().any(|field| &*field.lower == name)
}
