//! Parses the XML bodies of PROPFIND and LOCK (RFC 4918, sections 14.20 and 14.11).
//!
//! The parser is quick-xml, with namespaces, and with no entities but the five of XML.

use quick_xml::events::Event;
use quick_xml::name::{Namespace, ResolveResult};
use quick_xml::reader::NsReader;

/// The maximum number of elements in a body.
const ELEMENTS_MAX: usize = 1024;

/// The longest namespace, in bytes.
const NAMESPACE_SIZE_MAX: usize = 1024;

/// The maximum number of properties in a request.
const PROPERTIES_MAX: usize = 256;

/// Namespaces that no element may have: those of `xml:` and `xmlns:` (Namespaces in XML 1.0,
/// section 3).
const RESERVED: [&str; 2] = [
    "http://www.w3.org/XML/1998/namespace",
    "http://www.w3.org/2000/xmlns/",
];

/// The body is not valid XML, or not valid for its method.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidBody;

/// The name of a property: a namespace and a local name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PropertyName {
    pub(super) namespace: String,
    pub(super) local: String,
}

/// The properties that a PROPFIND requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PropfindProperties {
    All,
    Names,
    These(Vec<PropertyName>),
}

/// The namespace of WebDAV itself.
pub(super) const DAV: &str = "DAV:";

/// An element of a document; `depth` counts the open elements, this one included.
struct Element<'a> {
    namespace: &'a str,
    local: &'a str,
    depth: usize,
    /// The offset of the element's content.
    content: usize,
}

/// Calls `visit` for each start tag, and `leave` with the offset before each end tag.
fn walk(
    text: &str,
    mut visit: impl FnMut(&Element<'_>) -> Result<(), InvalidBody>,
    mut leave: impl FnMut(usize, usize),
) -> Result<(), InvalidBody> {
    let mut reader = NsReader::from_str(text);
    let mut depth = 0;
    let mut elements = 0;
    loop {
        let before = usize::try_from(reader.buffer_position()).map_err(|_| InvalidBody)?;
        let event = reader.read_event().map_err(|_| InvalidBody)?;
        let content = usize::try_from(reader.buffer_position()).map_err(|_| InvalidBody)?;
        let (namespace, event) = reader.resolver().resolve_event(event);
        let namespace = match namespace {
            ResolveResult::Bound(Namespace(name)) if name.len() <= NAMESPACE_SIZE_MAX => name,
            ResolveResult::Unbound => "",
            ResolveResult::Bound(_) | ResolveResult::Unknown(_) => return Err(InvalidBody),
        };
        let (start, empty) = match event {
            Event::Start(start) => (start, false),
            Event::Empty(start) => (start, true),
            Event::End(_) => {
                leave(depth, before);
                depth -= 1;
                continue;
            }
            Event::Eof if depth == 0 && elements > 0 => return Ok(()),
            Event::Eof => return Err(InvalidBody),
            Event::DocType(_) => return Err(InvalidBody),
            _ => continue,
        };
        // An empty value would undeclare a prefix, which is not allowed.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|_| InvalidBody)?;
            if attribute.key.as_ref().starts_with("xmlns:") && attribute.value.is_empty() {
                return Err(InvalidBody);
            }
        }
        elements += 1;
        let local = start.local_name().into_inner();
        if elements > ELEMENTS_MAX || RESERVED.contains(&namespace) || !is_name(local) {
            return Err(InvalidBody);
        }
        visit(&Element {
            namespace,
            local,
            depth: depth + 1,
            content,
        })?;
        if empty {
            leave(depth + 1, content);
        } else {
            depth += 1;
        }
    }
}

/// Whether the text is a name without a colon (Namespaces in XML 1.0, section 3), as far as ASCII
/// is concerned. The name is copied into the response.
fn is_name(local: &str) -> bool {
    let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii();
    let may_follow = |c: char| may_begin(c) || c.is_ascii_digit() || matches!(c, '-' | '.');
    local.starts_with(may_begin) && local.chars().all(may_follow)
}

/// Parses the body of a PROPFIND; an empty body requests all properties.
pub(super) fn propfind(body: &[u8]) -> Result<PropfindProperties, InvalidBody> {
    if body.trim_ascii().is_empty() {
        return Ok(PropfindProperties::All);
    }
    let text = std::str::from_utf8(body).map_err(|_| InvalidBody)?;
    let mut wanted = None;
    walk(
        text,
        |element| {
            let Element {
                namespace, local, ..
            } = *element;
            let is_dav = namespace == DAV;
            match element.depth {
                1 if is_dav && local == "propfind" => {}
                1 => return Err(InvalidBody),
                2 if is_dav && local == "allprop" => wanted = Some(PropfindProperties::All),
                2 if is_dav && local == "propname" => wanted = Some(PropfindProperties::Names),
                2 if is_dav && local == "prop" => {
                    wanted = Some(PropfindProperties::These(Vec::new()))
                }
                3 => {
                    let is_same =
                        |name: &PropertyName| name.local == local && name.namespace == namespace;
                    if let Some(PropfindProperties::These(names)) = &mut wanted
                        && !names.iter().any(is_same)
                    {
                        if names.len() >= PROPERTIES_MAX {
                            return Err(InvalidBody);
                        }
                        names.push(PropertyName {
                            namespace: namespace.to_owned(),
                            local: local.to_owned(),
                        });
                    }
                }
                _ => {}
            }
            Ok(())
        },
        |_, _| {},
    )?;
    wanted.ok_or(InvalidBody)
}

/// The lock that a LOCK requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LockInfo {
    pub(super) exclusive: bool,
    pub(super) write: bool,
    /// The text of the `owner` element, without tags.
    pub(super) owner: String,
}

/// Parses the body of a LOCK; `None` if the body is empty, which refreshes a lock.
pub(super) fn lock_info(body: &[u8]) -> Result<Option<LockInfo>, InvalidBody> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(body).map_err(|_| InvalidBody)?;
    let mut info = LockInfo::default();
    let mut owner = None;
    let mut owner_end = None;
    let begun = std::cell::Cell::new(false);
    walk(
        text,
        |element| {
            if element.namespace != DAV && element.depth < 3 {
                return Err(InvalidBody);
            }
            match (element.depth, element.local) {
                (1, "lockinfo") => {}
                (1, _) => return Err(InvalidBody),
                (2, "owner") => {
                    owner = Some(element.content);
                    begun.set(true);
                }
                (3, "exclusive") => info.exclusive = true,
                (3, "write") => info.write = true,
                _ => {}
            }
            Ok(())
        },
        |depth, at| {
            if depth == 2 && begun.replace(false) {
                owner_end = Some(at);
            }
        },
    )?;
    if let (Some(start), Some(end)) = (owner, owner_end) {
        info.owner = plain_text(text.get(start..end).unwrap_or_default());
    }
    Ok(Some(info))
}

/// The text of an XML fragment without its tags.
fn plain_text(xml: &str) -> String {
    let mut text = String::new();
    let mut in_tag = false;
    for letter in xml.chars() {
        match letter {
            '<' => in_tag = true,
            '>' if in_tag => in_tag = false,
            letter if !in_tag => text.push(letter),
            _ => {}
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propfind_is_read_with_its_namespaces() {
        assert_eq!(propfind(b""), Ok(PropfindProperties::All));
        assert_eq!(
            propfind(br#"<?xml version="1.0"?><propfind xmlns="DAV:"><allprop/></propfind>"#),
            Ok(PropfindProperties::All)
        );
        assert_eq!(
            propfind(br#"<D:propfind xmlns:D="DAV:"><D:propname/></D:propfind>"#),
            Ok(PropfindProperties::Names)
        );
        let named = br#"<D:propfind xmlns:D="DAV:" xmlns:z="urn:z"><D:prop><D:getetag/><z:x/><z:x/></D:prop></D:propfind>"#;
        let name = |namespace: &str, local: &str| PropertyName {
            namespace: namespace.into(),
            local: local.into(),
        };
        assert_eq!(
            propfind(named),
            Ok(PropfindProperties::These(vec![
                name("DAV:", "getetag"),
                name("urn:z", "x")
            ]))
        );
    }

    #[test]
    fn what_is_no_propfind_is_refused() {
        let names = (0..=PROPERTIES_MAX).map(|number| format!("<z:a{number}/>"));
        let many_names = format!(
            "<D:propfind xmlns:D=\"DAV:\" xmlns:z=\"z\"><D:prop>{}</D:prop></D:propfind>",
            names.collect::<String>()
        );
        let long_namespace = format!(
            "<D:propfind xmlns:D=\"DAV:\" xmlns:z=\"{}\"><D:allprop/><z:a/></D:propfind>",
            "u".repeat(NAMESPACE_SIZE_MAX + 1)
        );
        let many_elements = format!(
            "<D:propfind xmlns:D=\"DAV:\"><D:allprop/>{}</D:propfind>",
            "<a/>".repeat(ELEMENTS_MAX)
        );
        for body in [
            &b"<propfind"[..],
            b"<D:propfind xmlns:D=\"DAV:\"><D:prop><D:1bad/></D:prop></D:propfind>",
            b"<D:propfind xmlns:D=\"DAV:\"><D:prop><xml:lang/></D:prop></D:propfind>",
            b"<D:propfind xmlns:D=\"DAV:\"><D:prop><xmlns:a/></D:prop></D:propfind>",
            b"<propfind xmlns=\"DAV:\"><allprop/>",
            b"<propfind><allprop/></propfind>",
            b"<D:propfind xmlns:D=\"DAV:\"><x:allprop/></D:propfind>",
            b"<D:propfind xmlns:D=\"DAV:\"><D:prop><bar:foo xmlns:bar=\"\"/></D:prop></D:propfind>",
            b"<!DOCTYPE x [<!ENTITY a \"b\">]><propfind xmlns=\"DAV:\"><allprop/></propfind>",
            b"\xff",
            many_names.as_bytes(),
            long_namespace.as_bytes(),
            many_elements.as_bytes(),
        ] {
            assert_eq!(
                propfind(body),
                Err(InvalidBody),
                "{}",
                String::from_utf8_lossy(body)
            );
        }
    }

    #[test]
    fn lock_info_says_what_and_whose() {
        assert_eq!(lock_info(b" "), Ok(None));
        let body = br#"<D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope>
            <D:locktype><D:write/></D:locktype><D:owner><D:href>mailto:a@b</D:href></D:owner></D:lockinfo>"#;
        let info = lock_info(body).unwrap().unwrap();
        assert!(info.exclusive && info.write);
        assert_eq!(info.owner, "mailto:a@b");
        assert_eq!(lock_info(b"<x/>"), Err(InvalidBody));
        let many_elements = format!(
            "<lockinfo xmlns=\"DAV:\"><owner>{}</owner></lockinfo>",
            "<a/>".repeat(ELEMENTS_MAX)
        );
        assert_eq!(lock_info(many_elements.as_bytes()), Err(InvalidBody));
    }
}
