//! `types` and `default_type`: the media types of responses by file name extension.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#types>.

use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Block, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};
use proto::uri;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// Extensions longer than this are not looked up, since no useful table has them.
const EXTENSION_LENGTH_MAX: usize = 64;

/// `types { TYPE EXTENSION…; … }`
pub static TYPES: Setting<ByExtension> = Setting::new("types", &["{ ... }"], types)
    .contexts(HSL)
    .arity(Arity::none())
    .free_block()
    .inherit(Inherit::Block)
    .default("{ text/html html; image/gif gif; image/jpeg jpg; }")
    .default_with(|_| Ok(default_types()))
    .manual(
        "The media types of responses by the extension of the file name, in any case. A block replaces the \
         one of the level above.",
    );

/// Declares the directive `default_type TYPE`.
pub static DEFAULT_TYPE: Setting<Bytes> = Setting::new("default_type", &["type"], parse::bytes)
    .contexts(HSL)
    .default("text/plain")
    .manual("The media type of responses whose extension is not in `types`.");

/// Declares the directive `types_hash_max_size NUMBER`.
pub static TYPES_HASH_MAX_SIZE: Setting<u64> =
    Setting::new("types_hash_max_size", &["size"], parse::number)
        .contexts(HSL)
        .default("1024")
        .no_effect("the table of types takes the memory that it needs")
        .manual("Bounded the hash of types.");

/// Declares the directive `types_hash_bucket_size NUMBER`.
pub static TYPES_HASH_BUCKET_SIZE: Setting<u64> =
    Setting::new("types_hash_bucket_size", &["size"], parse::number)
        .contexts(HSL)
        .default("64")
        .no_effect("the table of types takes the memory that it needs")
        .manual("Set the size of a bucket of the hash of types.");

/// The directives that size nginx's hash table of types.
pub const HASH_SIZES: [&Setting<u64>; 2] = [&TYPES_HASH_MAX_SIZE, &TYPES_HASH_BUCKET_SIZE];

/// Media types by file name extension, in lower case.
pub type ByExtension = Map<Box<[u8]>, Bytes>;

/// The values of `types` and `default_type` in one scope.
#[derive(Debug)]
pub struct Types {
    table: Arc<Table>,
    default: Bytes,
}

impl Types {
    /// The media type for a path: by its extension, else the default.
    pub fn content_type(&self, path: &[u8]) -> &Bytes {
        uri::extension(path)
            .and_then(|extension| self.table.find(extension.of(path)))
            .unwrap_or(&self.default)
    }

    /// The type of files that `types` does not name.
    pub fn default_type(&self) -> &Bytes {
        &self.default
    }
}

impl Feature for Types {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &TYPES,
        &DEFAULT_TYPE,
        &TYPES_HASH_MAX_SIZE,
        &TYPES_HASH_BUCKET_SIZE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Types {
            table: compiler.feature(scope)?,
            default: scope.get(&DEFAULT_TYPE)?,
        })
    }
}

/// The value of `types` alone. It is a feature of its own, so that scopes that only change
/// `default_type` share the table.
#[derive(Debug)]
struct Table {
    by_extension: ByExtension,
}

impl Table {
    fn find(&self, extension: &[u8]) -> Option<&Bytes> {
        if !extension.iter().any(u8::is_ascii_uppercase) {
            return self.by_extension.get(extension);
        }
        let mut lower = [0; EXTENSION_LENGTH_MAX];
        let lower = lower.get_mut(..extension.len())?;
        lower.copy_from_slice(extension);
        lower.make_ascii_lowercase();
        self.by_extension.get(&*lower)
    }
}

impl Feature for Table {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&TYPES];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(Table {
            by_extension: scope.get(&TYPES)?,
        })
    }
}

fn types(setter: &Setter<'_>) -> Result<ByExtension, Fault> {
    let mut types = ByExtension::default();
    for block in setter.lines() {
        let Some(Block::Free(rows)) = &block.block else {
            continue;
        };
        for row in rows {
            if row.is("include") {
                let text = "invalid number of arguments in \"include\" directive";
                return Err(Fault::at(&row.name, text));
            }
            let media_type = Bytes::copy_from_slice(&row.name.bytes);
            for extension in &row.args {
                let lower = extension.bytes.to_ascii_lowercase();
                let text = String::from_utf8_lossy(&lower).into_owned();
                if let Some(old) = types.insert(lower.into(), media_type.clone()) {
                    setter.warn(extension, duplicate(&text, &row.name.text(), &old));
                }
            }
        }
    }
    Ok(types)
}

fn duplicate(extension: &str, new: &str, old: &[u8]) -> String {
    let old = String::from_utf8_lossy(old);
    format!(
        "duplicate extension \"{extension}\", content type: \"{new}\", previous content type: \"{old}\""
    )
}

fn default_types() -> ByExtension {
    [
        ("html", "text/html"),
        ("gif", "image/gif"),
        ("jpg", "image/jpeg"),
    ]
    .into_iter()
    .map(|(extension, media_type)| {
        (
            extension.as_bytes().into(),
            Bytes::from_static(media_type.as_bytes()),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn types_go_by_extension_in_any_case() {
        let table = Arc::new(Table {
            by_extension: default_types(),
        });
        let types = Types {
            table,
            default: Bytes::from_static(b"text/plain"),
        };
        for (path, expected) in [
            ("/a.html", "text/html"),
            ("/a.HTML", "text/html"),
            ("/dir.html/a", "text/plain"),
            ("/a.b.gif", "image/gif"),
            ("/a.jpg", "image/jpeg"),
            ("/.html", "text/plain"),
            ("/a.", "text/plain"),
            ("/a", "text/plain"),
            ("/a.gz", "text/plain"),
        ] {
            assert_eq!(
                &types.content_type(path.as_bytes())[..],
                expected.as_bytes(),
                "{path}"
            );
        }
        let long = format!("/a.{}", "X".repeat(1000));
        assert_eq!(types.content_type(long.as_bytes()), types.default_type());
    }

    #[test]
    fn types_replace_those_of_the_level_above() {
        let text =
            "http { types { text/x-a a A; text/x-b b a; } server { types { } default_type x/y; } }";
        let (http, warnings) = testing::compiled::<Types>(text, &["http"]).unwrap();
        assert_eq!(&http.content_type(b"/f.A")[..], b"text/x-b");
        assert_eq!(&http.content_type(b"/f.html")[..], b"text/plain");
        assert_eq!(
            warnings,
            [
                "duplicate extension \"a\", content type: \"text/x-a\", previous content type: \"text/x-a\"",
                "duplicate extension \"a\", content type: \"text/x-b\", previous content type: \"text/x-a\"",
            ]
        );
        let server: Arc<Types> = testing::feature(text, &["http", "server"]).unwrap();
        assert_eq!(&server.content_type(b"/f.a")[..], b"x/y");
        let default: Arc<Types> = testing::feature("http { }", &["http"]).unwrap();
        assert_eq!(&default.content_type(b"/f.html")[..], b"text/html");
    }
}
