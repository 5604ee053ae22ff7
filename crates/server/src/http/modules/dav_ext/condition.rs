//! The If field (RFC 4918, section 10.4): conditions on locks and entity tags.

use crate::http::modules::static_file::etag_of;
use crate::http::request::Request;
use crate::zone::Zone;

use super::locks::Locks;

/// Most lists that one field may hold.
const LISTS_MAX: usize = 64;

/// What a request says about what it knows.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Every token that it names.
    tokens: Vec<Vec<u8>>,
}

impl Conditions {
    /// Whether it names a token.
    pub(super) fn names(&self, token: &str) -> bool {
        self.tokens().any(|known| known == token.as_bytes())
    }

    /// Every token that it names.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens.iter().map(Vec::as_slice)
    }
}

/// One condition of a list.
#[derive(Debug, PartialEq, Eq)]
enum Condition<'a> {
    Token(&'a [u8]),
    Tag(&'a [u8]),
}

/// Conditions that must all hold; each with whether it is negated.
type List<'a> = Vec<(bool, Condition<'a>)>;

/// Reads the If field and checks it; 412 where no list holds, 400 where it is none.
pub(super) async fn check(
    request: &mut Request,
    zone: &Zone<Locks>,
    path: &[u8],
) -> Result<Conditions, u16> {
    let Some(value) = request.header_named(b"if").map(<[u8]>::to_vec) else {
        return Ok(Conditions::default());
    };
    let lists = parse(&value).ok_or(400u16)?;
    let lock = zone.state().find(path, engine::now());
    let found = engine::file::stat(&Request::path_of(path)).await.ok();
    let tag = found.and_then(|metadata| etag_of(&request.plan.core, &metadata));
    let holds = |condition: &Condition<'_>| match condition {
        Condition::Token(token) => lock.as_ref().is_some_and(|l| l.token.as_bytes() == *token),
        Condition::Tag(wanted) => tag.as_ref().is_some_and(|tag| tag == wanted),
    };
    let any = lists.iter().any(|(other, list)| {
        // What is said of another resource is not looked at: it is known there.
        *other || list.iter().all(|(not, condition)| holds(condition) != *not)
    });
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

/// The lists of an If field, each with whether it speaks of a resource that it names.
fn parse(value: &[u8]) -> Option<Vec<(bool, List<'_>)>> {
    let mut lists = Vec::new();
    let mut tagged = false;
    let mut rest = value.trim_ascii_start();
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'<' => {
                rest = after.get(memchr::memchr(b'>', after)? + 1..)?;
                tagged = true;
            }
            b'(' => {
                let (list, behind) = parse_list(after)?;
                if lists.len() >= LISTS_MAX {
                    return None;
                }
                lists.push((tagged, list));
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
        let tagged = parse(b"<http://a/b> (<t1>)").unwrap();
        assert!(tagged[0].0);
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
