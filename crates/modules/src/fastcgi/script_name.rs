//! `$fastcgi_script_name` and `$fastcgi_path_info`: the parts of the URI.

use bytes::Bytes;
use http::request::{Regex, Request};
use http::slots::PlanSlot;
use http::variables::{BuiltinVariable, Evaluate};
use variables::regex::Spans;

/// The settings of the parts: `fastcgi_split_path_info` and `fastcgi_index`.
pub struct Script {
    /// `fastcgi_index`.
    pub(super) index: Bytes,
    /// `fastcgi_split_path_info`.
    pub(super) split: Option<Regex>,
}

/// The settings of a plan; absent if the script's name is always the whole URI.
pub(super) static OF_PLAN: PlanSlot<Script> = PlanSlot::new();

impl Script {
    /// Whether the script's name is always the whole URI, since neither directive is set.
    pub(super) fn is_plain(&self) -> bool {
        self.index.is_empty() && self.split.is_none()
    }
}

/// The built-in variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    let evaluate: Evaluate = match name {
        "fastcgi_script_name" => script_name,
        "fastcgi_path_info" => path_info,
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// The script's name and the path info that the URI contains; `None` if the regex hit a limit,
/// which is logged.
fn split(request: &Request) -> Option<(&[u8], &[u8])> {
    let uri = request.uri.as_slice();
    let script = request.plan.of(&OF_PLAN);
    let Some(pattern) = script.and_then(|script| script.split.as_ref()) else {
        return Some((uri, b""));
    };
    let mut spans = Spans::default();
    match pattern.locate(uri, &mut spans) {
        Ok(true) => {
            let group = |number| spans.get(number).and_then(|span| uri.get(span));
            Some((group(1).unwrap_or_default(), group(2).unwrap_or_default()))
        }
        Ok(false) => Some((uri, b"")),
        Err(undecided) => {
            pattern.alert(request, uri, undecided, "");
            None
        }
    }
}

fn script_name(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some((name, _)) = split(request) else {
        return false;
    };
    out.extend_from_slice(name);
    if name.ends_with(b"/")
        && let Some(script) = request.plan.of(&OF_PLAN)
    {
        out.extend_from_slice(&script.index);
    }
    true
}

fn path_info(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some((_, path_info)) = split(request) else {
        return false;
    };
    out.extend_from_slice(path_info);
    true
}
