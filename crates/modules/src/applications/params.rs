//! What an application is told of a request: the lines of `fastcgi_param` (or `uwsgi_param`, `scgi_param`), then the fields of the
//! request.

use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Inherit, Part, ScopeRef, Setter, Setting, Template, Word};
use framework::compile::Compiler;
use http::request::Request;
use http::text::Text;
use http::variables::Compiling as _;
use proto::cgi::Variables;
use proto::header::Known;

/// What the name of a parameter begins with that stands for a field of the request.
const OF_FIELD: &[u8] = b"HTTP_";

/// A line as written: name, value, and whether it is left out where the value is empty.
pub(crate) type ParamLine = (Word, Word, bool);

/// The directive `*param`.
pub(crate) const fn setting(prefix: &'static str) -> Setting<Vec<ParamLine>> {
    Setting::family(prefix, "param", &["parameter value [if_not_empty]"], lines)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .arity(Arity::between(2, 3))
        .inherit(Inherit::List)
        .manual("A parameter that the application gets. With `if_not_empty` it is left out where its value is empty. One named HTTP_… replaces the field of the request that it would stand for; with the value \"\" neither is sent. Lines of one level replace those of the levels above.")
}

fn lines(setter: &Setter<'_>) -> Result<Vec<ParamLine>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        let (name, value, if_not_empty) = match line.args.as_slice() {
            [name, value] => (name, value, false),
            [name, value, flag] if &*flag.bytes == b"if_not_empty" => (name, value, true),
            [_, _, flag] => return Err(Fault::invalid_parameter(flag)),
            _ => continue, // the arity has been checked
        };
        Template::parse(value)?;
        all.push((name.clone(), value.clone(), if_not_empty));
    }
    Ok(all)
}

/// The parameter that each application gets, whether a line names it or not.
const HOST: &str = "HTTP_HOST";

/// Its value where none does.
fn host_asked_for() -> Template {
    let variables = ["host", "is_request_port", "request_port"];
    Template {
        parts: variables.map(|name| Part::Variable(name.into())).into(),
    }
}

/// A parameter.
struct Param {
    name: Bytes,
    value: Text,
    /// It is left out where its value is empty.
    if_not_empty: bool,
}

/// All that a scope's lines say, and what is sent in any case.
pub(crate) struct Params {
    sent: Vec<Param>,
    /// Names of fields for which there is a parameter: in lower case, with `_` for each dash.
    replaced: Vec<Box<[u8]>>,
}

impl Params {
    /// What the lines of a scope come to.
    pub(crate) fn compile(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        setting: &Setting<Vec<ParamLine>>,
    ) -> Result<Params, Fault> {
        let mut params = Vec::new();
        for (name, value, if_not_empty) in scope.written(setting)?.unwrap_or_default() {
            params.push(Param {
                name: Bytes::copy_from_slice(&name.bytes),
                value: compiler.text(&Template::parse(&value)?),
                if_not_empty,
            });
        }
        let is_host = |param: &Param| param.name.eq_ignore_ascii_case(HOST.as_bytes());
        if !params.iter().any(is_host) {
            params.push(Param {
                name: Bytes::from_static(HOST.as_bytes()),
                value: compiler.text(&host_asked_for()),
                if_not_empty: true,
            });
        }
        Ok(Params::new(params))
    }

    /// Those that are written.
    fn new(written: Vec<Param>) -> Params {
        let field_of = |param: &Param| -> Option<Box<[u8]>> {
            let name = param.name.strip_prefix(OF_FIELD)?;
            (!name.is_empty()).then(|| folded(name).collect())
        };
        let replaced = written.iter().filter_map(field_of).collect();
        // One that stands for a field and is empty only keeps that from the application.
        let is_sent = |param: &Param| {
            let is_empty = matches!(&param.value, Text::Literal(text) if text.is_empty());
            !(is_empty && field_of(param).is_some())
        };
        Params {
            sent: written.into_iter().filter(is_sent).collect(),
            replaced,
        }
    }

    /// Whether a field of the request is told by a parameter, or kept from the application by one.
    fn replace(&self, name: &[u8]) -> bool {
        let mut replaced = self.replaced.iter();
        replaced.any(|known| known.len() == name.len() && known.iter().copied().eq(folded(name)))
    }

    /// Writes all that an application is told, in the order in which nginx does.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        pass_request_headers: bool,
        writer: &mut impl Variables,
    ) {
        let mut value = Vec::new();
        for param in &self.sent {
            value.clear();
            param.value.append_to(request, &mut value);
            if !(param.if_not_empty && value.is_empty()) {
                writer.push(&param.name, &value);
            }
        }
        if !pass_request_headers {
            return;
        }
        let fields = || request.client.known_headers();
        for (at, (known, name, _)) in fields().enumerate() {
            let is_it = move |(other_known, other, _): &(Known, &[u8], &[u8])| {
                *other_known == known && other.eq_ignore_ascii_case(name)
            };
            let is_told = fields().take(at).any(|field| is_it(&field));
            if is_told || self.replace(name) {
                continue;
            }
            let values = fields().filter(is_it);
            writer.push_field(name, values.map(|(_, _, value)| value));
        }
    }
}

/// A name as two that are the same have it.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &'static str, value: &'static str) -> Param {
        Param {
            name: name.into(),
            value: Text::Literal(value.into()),
            if_not_empty: false,
        }
    }

    #[test]
    fn a_parameter_replaces_the_field_of_its_name() {
        let params = Params::new(vec![
            param("HTTP_X_OWN", "a"),
            param("HTTP_PROXY", ""),
            param("SCRIPT_NAME", ""),
            param("HTTP_", ""),
        ]);
        for name in ["X-Own", "x_own", "PROXY", "proxy"] {
            assert!(params.replace(name.as_bytes()), "{name}");
        }
        for name in ["X-Owns", "Own", "Script-Name", ""] {
            assert!(!params.replace(name.as_bytes()), "{name}");
        }
        let sent: Vec<_> = params.sent.iter().map(|param| &*param.name).collect();
        assert_eq!(sent, [&b"HTTP_X_OWN"[..], b"SCRIPT_NAME", b"HTTP_"]);
    }
}
