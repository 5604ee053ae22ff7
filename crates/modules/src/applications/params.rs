//! The parameters of a request for an application: the lines of `fastcgi_param` (or `uwsgi_param`,
//! `scgi_param`), followed by the fields of the request.

use std::cmp::Ordering;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Fault, Inherit, ScopeRef, Setter, Setting, Template, TemplatePart, Word,
};
use framework::compile::Compiler;
use http::request::{Request, Text};
use http::variables::Compiling as _;
use proto::cgi::{VariableName, Variables};
use proto::header::{KnownField, KnownSet};

use proxying::cache::{self, CacheLookup, Validators};

/// The prefix of parameters that stand for a field of the request.
const OF_FIELD: &[u8] = b"HTTP_";

/// Maximum number of fields for which each field is compared with all others. The time for this
/// grows with the square of their number, so more fields are sorted instead, which takes memory.
const FEW: usize = 32;

/// A field of a request: its known name, the name, and the value.
type Field<'r> = (KnownField, &'r [u8], &'r [u8]);

/// A line: name, value, and whether the parameter is left out if the value is empty.
pub(crate) type ParamLine = (Word, Word, bool);

/// Declares the directive `fastcgi_param`, `uwsgi_param` or `scgi_param`, by the prefix.
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

/// Whether an application gets the `Authorization` of clients.
pub(crate) fn passes_authorization(
    scope: ScopeRef<'_>,
    setting: &Setting<Vec<ParamLine>>,
) -> Result<bool, Fault> {
    let lines = scope.written(setting)?.unwrap_or_default();
    let set = lines
        .iter()
        .rfind(|(name, ..)| &*name.bytes == b"HTTP_AUTHORIZATION");
    cache::passes_authorization(set.map(|(_, value, _)| value))
}

/// The parameter that every application gets, even without a line for it.
const HOST: &str = "HTTP_HOST";

/// The value of `HTTP_HOST` if no line sets it.
fn host_asked_for() -> Template {
    let variables = ["host", "is_request_port", "request_port"];
    Template {
        parts: variables
            .map(|name| TemplatePart::Variable(name.into()))
            .into(),
    }
}

/// An item of the parameters that are sent: constant parameters, or one that is evaluated for each
/// request.
enum Sent {
    /// One or several parameters with constant values, encoded as they are sent.
    Constant(Vec<u8>),
    Made(Param),
}

struct Param {
    name: Bytes,
    /// Name and framing, as they are sent before the value.
    begun: Box<[u8]>,
    value: Text,
    /// The parameter is left out if its value is empty.
    if_not_empty: bool,
}

/// The parameters of a scope, configured and built in.
pub(crate) struct Params {
    /// The parameters in the order in which they are sent.
    sent: Vec<Sent>,
    /// Names of fields that a parameter replaces: in lower case, with `_` for each dash.
    replaced: Vec<Box<[u8]>>,
}

impl Params {
    /// Compiles the parameters of a scope, for a protocol whose requests are encoded by `V`.
    pub(crate) fn compile<V: Variables>(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        setting: &Setting<Vec<ParamLine>>,
    ) -> Result<Params, Fault> {
        let mut params = Vec::new();
        for (name, value, if_not_empty) in scope.written(setting)?.unwrap_or_default() {
            params.push(Param {
                begun: begun::<V>(&name.bytes),
                name: Bytes::copy_from_slice(&name.bytes),
                value: compiler.text(&Template::parse(&value)?),
                if_not_empty,
            });
        }
        let is_host = |param: &Param| param.name.eq_ignore_ascii_case(HOST.as_bytes());
        if !params.iter().any(is_host) {
            params.push(Param {
                begun: begun::<V>(HOST.as_bytes()),
                name: Bytes::from_static(HOST.as_bytes()),
                value: compiler.text(&host_asked_for()),
                if_not_empty: true,
            });
        }
        Ok(Params::new::<V>(params))
    }

    /// The configured parameters, for a protocol whose requests are encoded by `V`.
    fn new<V: Variables>(written: Vec<Param>) -> Params {
        let field_of = |param: &Param| -> Option<Box<[u8]>> {
            let name = param.name.strip_prefix(OF_FIELD)?;
            (!name.is_empty()).then(|| folded(name).collect())
        };
        let replaced = written.iter().filter_map(field_of).collect();
        // An empty parameter for a field only removes the field.
        let is_sent = |param: &Param| {
            let is_empty = matches!(&param.value, Text::Literal(text) if text.is_empty());
            !(is_empty && field_of(param).is_some())
        };
        let mut sent = Vec::new();
        for param in written.into_iter().filter(is_sent) {
            let constant = param.value.literal().and_then(|value| {
                let is_left_out = param.if_not_empty && value.is_empty();
                let constant = (!is_left_out).then(|| V::constant(&param.name, value));
                constant.unwrap_or_else(|| Some(Vec::new()))
            });
            match (constant, sent.last_mut()) {
                (Some(mut more), Some(Sent::Constant(before))) => before.append(&mut more),
                (Some(constant), _) => sent.push(Sent::Constant(constant)),
                (None, _) => sent.push(Sent::Made(param)),
            }
        }
        Params { sent, replaced }
    }

    /// Whether a parameter replaces or removes a field of the request.
    fn replace(&self, name: &[u8]) -> bool {
        let mut replaced = self.replaced.iter();
        replaced.any(|known| known.len() == name.len() && known.iter().copied().eq(folded(name)))
    }

    /// Writes all parameters of a request, in nginx's order. `writer` encodes them for the protocol
    /// that the parameters were compiled for.
    pub(crate) fn write(
        &self,
        request: &mut Request,
        pass_request_headers: bool,
        lookup: Option<&CacheLookup>,
        writer: &mut impl Variables,
    ) {
        let mut tried = engine::spare_bytes(0);
        for sent in &self.sent {
            let param = match sent {
                Sent::Constant(constant) => {
                    writer.out().extend_from_slice(constant);
                    continue;
                }
                Sent::Made(param) => param,
            };
            if !param.if_not_empty {
                writer.add_begun(&param.begun, |out| param.value.append_to(request, out));
                continue;
            }
            tried.clear();
            param.value.append_to(request, &mut tried);
            if !tried.is_empty() {
                writer.add_begun(&param.begun, |out| out.extend_from_slice(&tried));
            }
        }
        engine::recycle_bytes(tried);
        let validators = lookup.map(|lookup| &lookup.validators);
        for (name, value) in validators.into_iter().flat_map(Validators::conditions) {
            if !self.replace(name) {
                writer.push_field(name, std::iter::once(value));
            }
        }
        if !pass_request_headers {
            return;
        }
        let fields = request.client.known_headers();
        match lookup {
            None => self.write_fields(fields, writer),
            Some(lookup) => {
                let passed = |(known, _, _): &Field<'_>| !lookup.withholds(*known);
                self.write_fields(fields.filter(passed), writer);
            }
        }
    }

    /// Writes the fields of a request. Fields with the same name are joined, at the position of the
    /// first of them.
    fn write_fields<'r>(
        &self,
        fields: impl Iterator<Item = Field<'r>> + Clone,
        writer: &mut impl Variables,
    ) {
        match fields.clone().nth(FEW) {
            None => self.write_few(fields, writer),
            Some(_) => self.write_many(fields, writer),
        }
    }

    /// Writes few fields. Each field whose name is not known to be unique is compared with all
    /// others, which is quadratic, but allocates nothing.
    fn write_few<'r>(
        &self,
        fields: impl Iterator<Item = Field<'r>> + Clone,
        writer: &mut impl Variables,
    ) {
        let (mut all, mut repeated) = (KnownSet::default(), KnownSet::default());
        for (known, _, _) in fields.clone() {
            if all.contains(known) {
                repeated.insert(known);
            }
            all.insert(known);
        }
        for (at, field) in fields.clone().enumerate() {
            let (known, name, value) = field;
            if known != KnownField::Other && !repeated.contains(known) {
                if !self.replace(name) {
                    writer.push_field(name, std::iter::once(value));
                }
                continue;
            }
            let is_it = move |other: &Field<'r>| is_same(&field, other);
            let is_told = fields.clone().take(at).any(|other| is_it(&other));
            if is_told || self.replace(name) {
                continue;
            }
            let values = fields.clone().filter(is_it);
            writer.push_field(name, values.map(|(_, _, value)| value));
        }
    }

    /// Writes any number of fields: sorts them first, so that fields of one name are adjacent.
    fn write_many<'r>(&self, fields: impl Iterator<Item = Field<'r>>, writer: &mut impl Variables) {
        let mut sorted: Vec<(usize, Field<'r>)> = fields.enumerate().collect();
        // Fields with the same name keep their order.
        sorted.sort_by(|(_, one), (_, other)| by_name(one, other));
        let mut groups: Vec<&[(usize, Field<'r>)]> = sorted
            .chunk_by(|(_, one), (_, other)| is_same(one, other))
            .collect();
        groups.sort_unstable_by_key(|group| group.first().map(|(at, _)| *at));
        for group in groups {
            if let Some((_, (_, name, _))) = group.first()
                && !self.replace(name)
            {
                writer.push_field(name, group.iter().map(|(_, (_, _, value))| *value));
            }
        }
    }
}

/// Name and framing of a parameter, as they are sent before its value.
fn begun<V: Variables>(name: &[u8]) -> Box<[u8]> {
    let mut begun = Vec::new();
    V::begin(VariableName::Plain(name), &mut begun);
    begun.into()
}

/// Whether two fields have the same name.
fn is_same((known, name, _): &Field<'_>, (other_known, other, _): &Field<'_>) -> bool {
    other_known == known && other.eq_ignore_ascii_case(name)
}

/// An order in which fields of [one name](is_same) lie together.
fn by_name((known, name, _): &Field<'_>, (other_known, other, _): &Field<'_>) -> Ordering {
    let lower = |byte: &u8| byte.to_ascii_lowercase();
    let by_bytes = || name.iter().map(lower).cmp(other.iter().map(lower));
    (*known as u8)
        .cmp(&(*other_known as u8))
        .then_with(|| name.len().cmp(&other.len()))
        .then_with(by_bytes)
}

/// A name in lower case with `_` for each dash. Names that are equal in this form are one parameter
/// to an application.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| match byte {
        b'-' => b'_',
        byte => byte.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proto::fastcgi::RequestWriter;

    use super::*;

    fn param(name: &'static str, value: &'static str) -> Param {
        Param {
            name: name.into(),
            begun: begun::<Listener>(name.as_bytes()),
            value: Text::Literal(value.into()),
            if_not_empty: false,
        }
    }

    #[test]
    fn a_parameter_replaces_the_field_of_its_name() {
        let params = Params::new::<Listener>(vec![
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
        let name = |sent: &Sent| match sent {
            Sent::Made(param) => param.name.clone(),
            Sent::Constant(_) => panic!("the listener has no constants"),
        };
        let sent: Vec<_> = params.sent.iter().map(name).collect();
        assert_eq!(sent, ["HTTP_X_OWN", "SCRIPT_NAME", "HTTP_"]);
    }

    #[test]
    fn parameters_that_are_the_same_for_all_lie_together() {
        let if_not_empty = |name, value| Param {
            if_not_empty: true,
            ..param(name, value)
        };
        let params = Params::new::<RequestWriter<'_>>(vec![
            param("A", "1"),
            if_not_empty("B", ""),
            if_not_empty("C", "3"),
            param("D", ""),
        ]);
        let [Sent::Constant(constant)] = &*params.sent else {
            panic!("one piece");
        };
        let mut written = Vec::new();
        let mut writer = RequestWriter::new(&mut written, true);
        for (name, value) in [("A", "1"), ("C", "3"), ("D", "")] {
            writer.push(name.as_bytes(), value.as_bytes());
        }
        assert!(written.ends_with(constant), "{constant:?} {written:?}");
        assert_eq!(constant.len(), 3 * 3 + 2);
    }

    /// The names and values that an application gets.
    type ParamList = Vec<(Vec<u8>, Vec<u8>)>;

    #[derive(Default)]
    struct Listener {
        out: Vec<u8>,
        told: ParamList,
    }

    impl Variables for Listener {
        fn begin(name: VariableName<'_>, out: &mut Vec<u8>) {
            name.append(out);
        }

        fn out(&mut self) -> &mut Vec<u8> {
            &mut self.out
        }

        fn end(&mut self, start: usize, value: usize) {
            let value = self.out.split_off(value);
            self.told.push((self.out.split_off(start), value));
        }
    }

    /// The expected parameters for the fields, made in the simplest way, without the `replaced`
    /// ones.
    fn plainly(fields: &[Field<'_>], replaced: &[&str]) -> ParamList {
        let mut names: Vec<String> = Vec::new();
        let mut told = ParamList::new();
        for (_, name, value) in fields {
            let name = String::from_utf8(name.to_ascii_lowercase()).unwrap();
            let variable = format!("HTTP_{}", name.replace('-', "_").to_uppercase());
            if replaced.contains(&&*variable) {
                continue;
            }
            if let Some(at) = names.iter().position(|known| *known == name) {
                let separator = if name == "cookie" { "; " } else { ", " };
                told[at].1.extend_from_slice(separator.as_bytes());
                told[at].1.extend_from_slice(value);
            } else {
                names.push(name);
                told.push((variable.into_bytes(), value.to_vec()));
            }
        }
        told
    }

    #[test]
    fn many_fields_are_told_as_few_are_without_going_through_all_for_each() {
        let mut lines = Vec::new();
        for number in 0..1000 {
            lines.push((format!("X-{number}"), format!("value {number}")));
            // Names that are equal, similar or known.
            match number % 7 {
                0 => lines.push((format!("x-{}", number / 2), format!("again {number}"))),
                1 => lines.push((format!("x_{number}"), "another name".to_owned())),
                2 => lines.push((format!("x-{number}"), String::new())),
                3 if number < 100 => lines.push(("cOOKIE".to_owned(), format!("c={number}"))),
                4 if number < 100 => lines.push(("Accept".to_owned(), format!("a/{number}"))),
                _ => {}
            }
        }
        let fields: Vec<Field<'_>> = lines
            .iter()
            .map(|(name, value)| {
                let name = name.as_bytes();
                (KnownField::from_name(name), name, value.as_bytes())
            })
            .collect();
        let written = vec![param("HTTP_X_8", "own"), param("HTTP_X_500", "")];
        let params = Params::new::<Listener>(written);
        for length in [0, 1, 2, FEW - 1, FEW, FEW + 1, 100, fields.len()] {
            let fields = &fields[..length];
            let steps = Cell::new(0);
            let counted = fields.iter().copied();
            let counted = counted.inspect(|_| steps.set(steps.get() + 1));
            let mut listener = Listener::default();
            params.write_fields(counted, &mut listener);
            let told = plainly(fields, &["HTTP_X_8", "HTTP_X_500"]);
            assert!(listener.told == told, "of {length} fields");
            // At most the square of a small number, and a multiple of the number of fields.
            let steps_max = length.min(FEW + 2) * 2 * length + FEW;
            assert!(steps.get() <= steps_max, "{} for {length}", steps.get());
        }
    }
}
