//! `error_page`: the pages that a scope sends in place of responses with a status. [`answer`] ends
//! requests with these pages.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#error_page>

pub mod answer;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template};
use framework::compile::{Compiler, Feature};
use variables::Compiling as _;

use crate::request::Text;

static ERROR_PAGE: Setting<Vec<ErrorPageLine>> =
    Setting::new("error_page", &["code ... [=[response]] uri"], rows)
        .contexts(
            Contexts::HTTP
                .or(Contexts::SERVER)
                .or(Contexts::LOCATION)
                .or(Contexts::LOCATION_IF),
        )
        .arity(Arity::at_least(2))
        .inherit(Inherit::List)
        .manual(
            "The URI that is shown for the given status codes. A path makes a redirect within the \
         server, `@name` goes on in a named location, anything else is sent to the client as a \
         redirect. `=CODE` replaces the status; `=` alone takes the one of the page.",
        );

static RECURSIVE: Setting<bool> =
    Setting::new("recursive_error_pages", &["on | off"], conf::parse::flag)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .default("off")
        .manual("Lets the answer of an error page lead to another error page, up to the limit of ten redirects.");

/// The status that the client sees in place of the original status.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ShownStatus {
    Keep,
    /// `=`: the status of the page's own response.
    Own,
    Code(u16),
}

/// One `error_page` line as written.
struct ErrorPageLine {
    statuses: Vec<u16>,
    overwrite: ShownStatus,
    target: Template,
}

/// One status, with the page that `error_page` sets for it.
struct Page {
    status: u16,
    overwrite: ShownStatus,
    target: Text,
}

/// The settings `error_page` and `recursive_error_pages` of a scope.
pub struct ErrorPages {
    pages: Vec<Page>,
    /// The value of `recursive_error_pages`.
    recursive: bool,
}

impl Feature for ErrorPages {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&ERROR_PAGE, &RECURSIVE];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut pages = Vec::new();
        for row in scope.written(&ERROR_PAGE)?.unwrap_or_default() {
            let target = compiler.text(&row.target);
            for status in row.statuses {
                let overwrite = match (&row.overwrite, status) {
                    (ShownStatus::Keep, 494..=497) => ShownStatus::Code(400),
                    (overwrite, _) => overwrite.clone(),
                };
                pages.push(Page {
                    status,
                    overwrite,
                    target: target.clone(),
                });
            }
        }
        Ok(ErrorPages {
            pages,
            recursive: scope.get(&RECURSIVE)?,
        })
    }
}

impl ErrorPages {
    /// Whether no status has a page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether a status has a page in this scope.
    pub fn has(&self, status: u16) -> bool {
        self.pages.iter().any(|page| page.status == status)
    }
}

/// Parses the lines of `error_page`.
fn rows(setter: &Setter<'_>) -> Result<Vec<ErrorPageLine>, Fault> {
    setter.lines().iter().map(|line| row(&line.args)).collect()
}

/// Parses one line of `error_page`.
fn row(args: &[conf::Word]) -> Result<ErrorPageLine, Fault> {
    let Some((target, mut codes)) = args.split_last() else {
        return Err(Fault::new(
            "invalid number of arguments in \"error_page\" directive",
        ));
    };
    let mut overwrite = ShownStatus::Keep;
    if let Some((last, rest)) = codes.split_last()
        && let Some(code) = last.bytes.strip_prefix(b"=")
    {
        if rest.is_empty() {
            return Err(Fault::at(
                last,
                format!("invalid value \"{}\"", last.text()),
            ));
        }
        overwrite = match code {
            b"" => ShownStatus::Own,
            code => ShownStatus::Code(
                number(code)
                    .ok_or_else(|| Fault::at(last, format!("invalid value \"{}\"", last.text())))?,
            ),
        };
        codes = rest;
    }
    let target = Template::parse(target)?;
    let mut statuses = Vec::with_capacity(codes.len());
    for word in codes {
        match conf::parse::number_of(&word.bytes) {
            None | Some(499) => {
                return Err(Fault::at(
                    word,
                    format!("invalid value \"{}\"", word.text()),
                ));
            }
            Some(status @ 300..=599) => statuses.extend(u16::try_from(status)),
            Some(_) => {
                let text = format!("value \"{}\" must be between 300 and 599", word.text());
                return Err(Fault::at(word, text));
            }
        }
    }
    Ok(ErrorPageLine {
        statuses,
        overwrite,
        target,
    })
}

fn number(digits: &[u8]) -> Option<u16> {
    u16::try_from(conf::parse::number_of(digits)?).ok()
}
