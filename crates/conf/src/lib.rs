//! nginx's configuration language: lexer, tree, directive table, inheritance.
//!
//! This crate knows no directive. A program declares its directives as [`Setting`]s, puts them into
//! a [`Registry`], reads a configuration with [`load`], and asks each scope of the [`Tree`] for
//! values. One run reports all errors of a configuration: see [`Diagnostic`].
//!
//! ```
//! # use tidegate_conf as conf;
//! use std::path::Path;
//! use conf::{
//!     Contexts, Declared, Inherit, RecordedFiles, Recording, Registry, Setter, Setting, parse,
//! };
//!
//! // A module declares its directives beside the code that they steer. ...
//! static HTTP: Setting<()> =
//!     Setting::new("http", &[""], parse::nothing).contexts(Contexts::MAIN).block().opens(Contexts::HTTP);
//!
//! static LIMIT: Setting<u64> = Setting::new("client_max_body_size", &["size"], parse::offset)
//!     .contexts(Contexts::HTTP)
//!     .default("1m")
//!     .manual("The largest request body that is accepted.");
//!
//! static RULES: Setting<Vec<bool>> = Setting::new("allow", &["address | all"], rules)
//!     .also(&["deny"])
//!     .contexts(Contexts::HTTP)
//!     .inherit(Inherit::List)
//!     .manual("Allows or denies access; the first rule that fits decides.");
//!
//! fn rules(setter: &Setter<'_>) -> Result<Vec<bool>, conf::Fault> {
//!     Ok(setter.lines().iter().map(|line| line.is("allow")).collect())
//! }
//!
//! const TABLE: &[&dyn Declared] = &[&HTTP, &LIMIT, &RULES];
//!
//! // ... The program reads a configuration by the table of all modules, ...
//! let files = RecordedFiles::new(Recording {
//!     files: vec![("/nginx.conf".into(), b"http { client_max_body_size 2m; deny all; }".to_vec())],
//!     ..Recording::default()
//! });
//! let registry = Registry::new(&[TABLE]);
//! let loaded = conf::load(Path::new("/nginx.conf"), Path::new("/"), &[], &registry, &files);
//! assert!(loaded.diagnostics.is_empty());
//!
//! // ... and asks its scopes.
//! let http = loaded.tree.root().children("http").next().unwrap();
//! assert_eq!(http.get(&LIMIT).unwrap(), 2 << 20);
//! assert_eq!(http.get(&RULES).unwrap(), [false]);
//! ```

mod braces;
mod check;
mod contexts;
mod diagnostic;
mod elsewhere;
pub mod examples;
mod files;
mod glob;
mod hints;
mod language;
mod lexer;
mod line;
mod load;
pub mod manual;
pub mod parse;
pub mod plain;
mod position;
mod references;
mod registry;
mod report;
mod scope;
mod setting;
mod source;
mod spec;
mod template;
mod tree;

#[cfg(test)]
mod tests;

pub use contexts::Contexts;
pub use diagnostic::{Diagnostic, Fault, Level, Missing, Related, Style};
pub use files::{
    Disk, Files, LastReading, MissingHosts, PlaceholderHosts, RecordedFiles, Recorder, Recording,
    Uncached,
};
pub use line::{Block, Line, ScopeId, Word};
pub use load::{Loaded, dump, load};
pub use position::Position;
pub use registry::{ForeignName, KnownElsewhere, KnownRemoved, Registry, nearest};
pub use report::{also, arrange};
pub use scope::ScopeRef;
pub use setting::{Declared, Parse, Setter, Setting, count_of, joined};
pub use source::SourceFile;
pub use spec::{Arity, BlockKind, Effect, Inherit, Opens, Reload, Spec};
pub use template::{Template, TemplatePart};
pub use tree::Tree;
