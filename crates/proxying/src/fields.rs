//! Fields that directives set in the requests of upstreams: `proxy_set_header`, `grpc_set_header`.

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, Template, Word};
use framework::compile::Compiler;
use http::config::text::Text;
use http::request::Request;
use http::variables::Compiling as _;
use proto::header::NameSet;

/// A field that a directive sets.
pub struct SetField {
    /// The name as written.
    pub name: Bytes,
    /// The name in lower case.
    pub lower: Box<[u8]>,
    /// The value; the field is left out where that is empty.
    pub value: Text,
}

/// Fields of the client's request that speak of its own connection and are not passed on.
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

/// The directive of this name.
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

/// What the lines say, and which fields of the client's they replace: those of its own connection
/// with them.
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

/// The host that they set, if they do: of several the last holds, and an empty one does not.
pub fn host(request: &mut Request, fields: &[SetField]) -> Option<Vec<u8>> {
    let field = fields.iter().rfind(|field| &*field.lower == b"host")?;
    let mut host = Vec::new();
    field.value.append_to(request, &mut host);
    (!host.is_empty()).then_some(host)
}

/// Whether a field of this name in lower case is among them.
pub fn sets(fields: &[SetField], name: &[u8]) -> bool {
    fields.iter().any(|field| &*field.lower == name)
}
