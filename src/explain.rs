//! `tidegate explain URL`: how a configuration handles a request, and why.
//!
//! Only the command line is here; `server::explain` computes the answer. Described in
//! docs/explain.md.

use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use conf::{Diagnostic, Disk, Loaded, MissingHosts, Recorder};
use engine::net::Address;
use process::Options;
use server::explain::{Question, explain};

use crate::application::{default_error_log, environment, registry};
use crate::cli;

/// Say what a configuration does with a request, and why
#[derive(Args)]
#[command(disable_version_flag = true, args_override_self = true)]
pub(crate) struct Arguments {
    /// The URL that is asked for; without a scheme, http is meant
    url: String,
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<OsString>,
    #[arg(short = 'p', value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// Global directives out of the configuration file
    #[arg(short = 'g', value_name = "DIRECTIVES")]
    globals: Vec<OsString>,
    #[arg(short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header field, any number of times
    #[arg(short = 'H', value_name = "NAME: VALUE")]
    fields: Vec<String>,
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    from: IpAddr,
    /// The address that the client connects to, with its port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = socket)]
    to: Option<Address>,
    /// List the directives that only have their default, too
    #[arg(long)]
    defaults: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match answer(arguments) {
        Ok(text) if std::io::stdout().write_all(&text).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE, // nobody reads it any more
        Err(ExplainError::Question(text)) => crate::failure::fail(&text),
        Err(ExplainError::Configuration(lines)) => {
            eprint!("{lines}");
            ExitCode::FAILURE
        }
    }
}

/// The reason why there is no explanation.
enum ExplainError {
    /// A sentence about an error in the question.
    Question(String),
    /// The errors of the configuration, as lines that `-t` prints.
    Configuration(String),
}

impl From<String> for ExplainError {
    fn from(text: String) -> ExplainError {
        ExplainError::Question(text)
    }
}

/// The text to print.
fn answer(arguments: &Arguments) -> Result<Vec<u8>, ExplainError> {
    let mut question = Question::new(&arguments.url)?;
    for field in &arguments.fields {
        question.add_field(field)?;
    }
    question.method.clone_from(&arguments.method);
    question.from = arguments.from;
    question.to.clone_from(&arguments.to);
    let options = options(arguments)?;
    // A name that appears several times in the configuration is resolved once. A name that cannot
    // be resolved is no error, since the request may not depend on it.
    let hosts = MissingHosts::new(Disk);
    let files = Recorder::new(&hosts);
    let mut loaded = conf::load(
        &options.conf_path,
        options.conf_prefix(),
        &options.globals,
        registry(),
        &files,
    );
    if loaded.has_errors() {
        return Err(errors(&mut loaded, Vec::new()));
    }
    // Without the main level: users and process limits do not affect how a request is handled.
    let environment = environment(&files, &options);
    let compiled = server::compile(&loaded.tree, &environment, default_error_log(&options))
        .map_err(|diagnostics| errors(&mut loaded, diagnostics))?;
    for host in hosts.names() {
        eprintln!(
            "{}: host not found: \"{host}\", the rest holds",
            process::PROGRAM
        );
    }
    let defaults = arguments.defaults;
    let explained = explain(compiled, &loaded.tree, registry(), &question, defaults)?;
    Ok(if arguments.json {
        [explained.to_json(), b"\n".to_vec()].concat()
    } else {
        explained.to_string().into_bytes()
    })
}

/// The options that locate the configuration, by the rules of the server's own command line.
fn options(arguments: &Arguments) -> Result<Options, String> {
    let mut flags = vec![OsString::from("-t")];
    let mut add = |flag: &str, value: &OsString| flags.extend([flag.into(), value.clone()]);
    arguments.conf.iter().for_each(|value| add("-c", value));
    arguments.prefix.iter().for_each(|value| add("-p", value));
    arguments.globals.iter().for_each(|value| add("-g", value));
    let options = cli::parse(flags)?.options;
    options.ok_or_else(|| "the command line asks for nothing".to_owned())
}

fn errors(loaded: &mut Loaded, compiled: Vec<Diagnostic>) -> ExplainError {
    let found = conf::arrange(loaded, compiled);
    let lines = found.iter();
    let lines = lines.map(|found| process::log::explained(found, &loaded.sources));
    ExplainError::Configuration(lines.collect())
}

/// An address with its port, or the path of a Unix socket.
fn socket(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Address::Unix(path.into()));
    }
    let address: Result<SocketAddr, _> = text.parse();
    address
        .map(Address::Inet)
        .map_err(|_| format!("\"{text}\" is no address with a port"))
}
