//! The If field (RFC 4918, section 10.4): conditions on locks and ETags.

use framework::zone::Zone;
use http::files::etag_of;
use http::request::Request;

use super::guard::path_of;
use super::locks::Locks;
use crate::dav;

/// The maximum number of lists in a field.
const LISTS_MAX: usize = 64;

/// The lock tokens that a request's If field names.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// All tokens of the field.
    tokens: Vec<Vec<u8>>,
}

impl Conditions {
    /// Whether the field names a token.
    pub(super) fn names(&self, token: &str) -> bool {
        self.tokens().any(|known| known == token.as_bytes())
    }

    /// All tokens of the field.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens.iter().map(Vec::as_slice)
    }
}

/// One condition of a list.
#[derive(Debug, PartialEq, Eq)]
enum Condition<'a> {
    /// The resource has the lock with this token.
    Token(&'a [u8]),
    /// The resource has this ETag.
    Tag(&'a [u8]),
}

/// Conditions that must all hold, each with whether it is negated.
type List<'a> = Vec<(bool, Condition<'a>)>;

/// A list, and the URI of its resource, if the field names one.
type Tagged<'a> = (Option<&'a [u8]>, List<'a>);

/// Parses and evaluates the If field; 412 if no list holds, 400 if the field is invalid. `path` is
/// the path of the request, as locks are stored under it.
pub(super) async fn check(
    request: &mut Request,
    zone: &Zone<Locks>,
    path: &[u8],
) -> Result<Conditions, u16> {
    let Some(value) = request.header_named(b"if").map(<[u8]>::to_vec) else {
        return Ok(Conditions::default());
    };
    let lists = parse(&value).ok_or(400u16)?;
    let mut any = false;
    let mut resource = None;
    for (tag, list) in &lists {
        if resource.as_ref().is_none_or(|(of, _)| of != tag) {
            resource = Some((*tag, Resource::of(request, zone, path, *tag).await));
        }
        let holds = |(not, condition): &(bool, Condition<'_>)| {
            let resource = resource.as_ref().map(|(_, resource)| resource);
            resource.is_some_and(|resource| resource.has(condition)) != *not
        };
        any |= list.iter().all(holds);
    }
    if !any {
        return Err(412);
    }
    let tokens = lists.iter().flat_map(|(_, list)| list);
    let tokens = tokens.filter_map(|(not, condition)| match condition {
        Condition::Token(token) if !not => Some(token.to_vec()),
        _ => None,
    });
    Ok(Conditions {
        tokens: tokens.collect(),
    })
}

/// The state of a resource with which conditions are compared.
#[derive(Default)]
struct Resource {
    /// The token of the lock that covers the resource.
    token: Option<Box<str>>,
    /// The ETag of the resource.
    tag: Option<Vec<u8>>,
}

impl Resource {
    /// The resource of a list: the resource of the URI `tag`, or else the resource of the request,
    /// whose path is `own`. A URI on another server has neither a lock nor an ETag (RFC 4918,
    /// section 10.4.4).
    async fn of(
        request: &mut Request,
        zone: &Zone<Locks>,
        own: &[u8],
        tag: Option<&[u8]>,
    ) -> Resource {
        let path = match tag.map(|uri| dav::local_uri(request, uri)) {
            None => own.to_vec(),
            Some(Ok(uri)) => path_of(request, uri),
            Some(Err(_)) => return Resource::default(),
        };
        let found = engine::file::stat(&Request::path_of(&path)).await.ok();
        let lock = zone.state().find(&path, engine::now());
        Resource {
            token: lock.map(|lock| lock.token),
            tag: found
                .and_then(|metadata| etag_of(&request.plan.core, &metadata))
                .map(|tag| tag.to_vec()),
        }
    }

    fn has(&self, condition: &Condition<'_>) -> bool {
        match condition {
            Condition::Token(wanted) => self
                .token
                .as_ref()
                .is_some_and(|token| token.as_bytes() == *wanted),
            Condition::Tag(wanted) => self.tag.as_ref().is_some_and(|tag| tag == wanted),
        }
    }
}

/// The lists of an If field, each with the URI of its resource, if the field names one.
fn parse(value: &[u8]) -> Option<Vec<Tagged<'_>>> {
    let mut lists = Vec::new();
    let mut tag = None;
    let mut rest = value.trim_ascii_start();
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'<' => {
                let end = memchr::memchr(b'>', after)?;
                tag = Some(after.get(..end)?);
                rest = after.get(end + 1..)?;
            }
            b'(' => {
                let (list, behind) = parse_list(after)?;
                if lists.len() >= LISTS_MAX {
                    return None;
                }
                lists.push((tag, list));
                rest = behind;
            }
            _ => return None,
        }
        rest = rest.trim_ascii_start();
    }
    (!lists.is_empty()).then_some(lists)
}

fn parse_list(mut rest: &[u8]) -> Option<(List<'_>, &[u8])> {
    let mut list = List::new();
    let mut not = false;
    loop {
        rest = rest.trim_ascii_start();
        let (first, after) = rest.split_first()?;
        let end = match first {
            b')' if !list.is_empty() && !not => return Some((list, after)),
            b'<' => b'>',
            b'[' => b']',
            b'N' | b'n' if !not => {
                let (word, behind) = rest.split_at_checked(3)?;
                if !word.eq_ignore_ascii_case(b"not") {
                    return None;
                }
                not = true;
                rest = behind;
                continue;
            }
            _ => return None,
        };
        let at = memchr::memchr(end, after)?;
        let text = after.get(..at)?;
        let condition = match end {
            b'>' => Condition::Token(text),
            _ => Condition::Tag(text),
        };
        if list.len() >= LISTS_MAX {
            return None;
        }
        list.push((std::mem::take(&mut not), condition));
        rest = after.get(at + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_their_negations() {
        let lists = parse(b"(<t1> [\"tag\"]) (Not <DAV:no-lock>)").unwrap();
        assert_eq!(lists.len(), 2);
        assert_eq!(
            lists[0].1,
            [
                (false, Condition::Token(b"t1")),
                (false, Condition::Tag(b"\"tag\""))
            ]
        );
        assert_eq!(lists[1].1, [(true, Condition::Token(b"DAV:no-lock"))]);
        assert_eq!(lists[0].0, None);
        let tagged = parse(b"<http://a/b> (<t1>) (<t2>) </c> ([\"tag\"])").unwrap();
        let tags: Vec<_> = tagged.iter().map(|(tag, _)| tag.unwrap()).collect();
        assert_eq!(tags, [&b"http://a/b"[..], b"http://a/b", b"/c"]);
        for bad in [
            &b""[..],
            b"()",
            b"(<t1>",
            b"<t1>",
            b"(t1)",
            b"(Not)",
            b"(<t1",
        ] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }
}
