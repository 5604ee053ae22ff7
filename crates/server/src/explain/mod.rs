//! Explanation of a response: how a configuration processes one imagined request.
//!
//! [`explain`] takes a compiled configuration and a [`Question`], and runs the server's own code on
//! a simulated network: the head is parsed, the server chosen and the phases run by the functions
//! that serve real requests. Files are looked up in the configured places. Requests to other
//! servers are not sent but only named: upstreams and subrequests. The client's address is
//! 127.0.0.1 unless the question has another. Nothing is logged. The clock is simulated too, so
//! results that depend on the time of day are wrong.
//!
//! `question` parses URLs, `walk` runs the phases, `locations` gives the reasons for the choice of
//! a location, `directives` lists the directives in force, `text` and `json` format the result.

mod directives;
mod json;
mod locations;
mod question;
#[cfg(test)]
mod tests;
mod text;
mod walk;

use std::rc::Rc;
use std::sync::Arc;

use conf::{Position, Registry, Tree};
use engine::net::{Address, Listener};
use engine::sim::{self, Faults};
use framework::connection_handler::Accepted;
use framework::counters::Counters;
use framework::generation::Generation;
use framework::workers::Worker;
use http::config::plan::Server;
use http::connection::Connection;
use http::request::Request;
use http::thread_state::HttpThreadState;
use rules::server_name::Matched;
use transport::listen::ListenerId;

use crate::assemble::Compiled;
use crate::protocols;

pub use directives::{EffectiveDirective, RequestTask};
pub use question::Question;

/// The answer to a [`Question`].
#[derive(Debug)]
pub struct Explanation {
    /// The request as it was imagined: method and URL.
    pub request: String,
    /// The client's address.
    pub from: String,
    /// The listening address of the connection.
    pub listen: Listening,
    /// The virtual server of the request.
    pub server: ChosenServer,
    /// The steps of processing, in order.
    pub way: Vec<ExplainStep>,
    /// Description of the response's source, such as a handler or a status.
    pub outcome: String,
    /// The status, if it does not depend on another server or on a handler.
    pub status: Option<u16>,
    /// The scope in force when the response's source was determined.
    pub scope: ConfigLocation,
    /// The tasks of modules in that scope, in the order of the phases.
    pub work: Vec<RequestTask>,
    /// The directives in force in that scope.
    pub directives: Vec<EffectiveDirective>,
}

/// A location in the configuration, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigLocation {
    /// The text at that position, with normalized spaces.
    pub text: String,
    /// The position; `None` for defaults and the main level.
    pub position: Option<Position>,
}

/// The listening address that was chosen for the request.
#[derive(Debug)]
pub struct Listening {
    /// The listening address.
    pub address: String,
    /// Why this address was chosen.
    pub reason: String,
    /// Other addresses that match the URL.
    pub others: Vec<String>,
}

/// The virtual server that was chosen.
#[derive(Debug)]
pub struct ChosenServer {
    /// The server's primary name; may be empty.
    pub name: String,
    /// The position of the server's block.
    pub position: Option<Position>,
    /// Why this server was chosen.
    pub reason: String,
    /// The other servers of the address, with their names.
    pub others: Vec<ConfigLocation>,
}

/// One step of processing.
#[derive(Debug)]
pub enum ExplainStep {
    /// A phase had an effect.
    Did {
        /// The phase, such as `rewrite`.
        phase: &'static str,
        /// The effect of the phase, as text.
        text: String,
        /// The directive that caused the effect, if there is one.
        position: Option<Position>,
    },
    /// The location of a URI was searched.
    Located {
        /// The path of the request at that time.
        uri: String,
        /// The candidates, in the order of the file.
        candidates: Vec<Candidate>,
    },
}

/// A location that was considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Nesting depth: the number of outer locations.
    pub depth: usize,
    /// The location's line.
    pub place: ConfigLocation,
    /// Whether the location was chosen, or contains the chosen one.
    pub chosen: bool,
    /// Why the location was chosen or not.
    pub why: String,
}

/// Explains how a configuration processes a request. With `defaults`, the list of directives
/// includes those that have only their default.
///
/// # Errors
/// The reason, as a sentence, why there is no explanation: no listening address matches, or the
/// question is not a valid request.
pub fn explain(
    compiled: Compiled,
    tree: &Tree,
    registry: &Registry,
    question: &Question,
    defaults: bool,
) -> Result<Explanation, String> {
    let system = |error: std::io::Error| format!("the simulated network failed: {error}");
    let settings = engine::Settings::default();
    let mut runtime = sim::runtime(1, Faults::default(), settings).map_err(system)?;
    let generation = Arc::new(compiled.generation);
    runtime.block_on(async {
        let stage = Stage::new(generation).await.map_err(system)?;
        let (listen, mut request) = stage.choose(question).await?;
        let server = serving(&request, tree);
        let walked = walk::walk(&mut request, tree).await;
        let scope = tree.scope(walked.scope);
        Ok(Explanation {
            request: question.to_string(),
            from: question.from.to_string(),
            listen,
            server,
            way: walked.way,
            outcome: walked.outcome,
            status: walked.status,
            scope: directives::place(scope),
            work: directives::work(scope, registry),
            directives: directives::in_force(scope, registry, defaults),
        })
    })
}

/// A worker and a listening socket for simulated connections.
struct Stage {
    worker: Rc<Worker>,
    listener: Listener,
    address: Address,
}

impl Stage {
    async fn new(generation: Arc<Generation>) -> std::io::Result<Stage> {
        let address = Address::Inet(([127, 0, 0, 1], 80).into());
        let (socket, address) = sim::listen(address)?;
        Ok(Stage {
            worker: protocols::worker(generation, 1, Arc::new(Counters::default())),
            listener: Listener::new(socket)?,
            address,
        })
    }

    /// Creates a request on a connection to this address, and selects its server.
    async fn request(
        &self,
        id: &ListenerId,
        to: &Address,
        question: &Question,
    ) -> Result<Box<Request>, String> {
        let system = |error: std::io::Error| format!("the simulated network failed: {error}");
        let _client = engine::net::connect(&self.address, None, None)
            .await
            .map_err(system)?;
        let stream = self.listener.accept().await.map_err(system)?;
        let from = Address::Inet((question.from, 0).into());
        let connection = Connection::new(Accepted {
            worker: Rc::clone(&self.worker),
            stream,
            listener: id.clone(),
            serial: 1,
            handed: None,
        });
        let connection = Rc::new(connection.with_addresses(from, to.clone()));
        let local = self.worker.current();
        let server = connection.with_servers(&local, |servers| Arc::clone(&servers.default));
        let server = server.ok_or("the address is of another configuration")?;
        let mut request = Box::new(Request::new(&local, &connection, &server));
        let bytes = question.head();
        let limits = request.server.core.head_limits();
        let (kept, head) = request.client_mut().h1_mut();
        match connection.parse_head(&local, &limits, &bytes, head) {
            Ok(Some(_)) => {}
            Ok(None) => return Err("the request's head does not end".into()),
            Err(error) => {
                let text = error.log_text(&bytes);
                let (status, text) = (error.status(), String::from_utf8_lossy(&text));
                return Err(format!("that is no request: {text}: status {status}"));
            }
        }
        *kept = bytes;
        request.begin().map_err(|(text, status)| {
            let text = String::from_utf8_lossy(&text);
            format!("that is no request: {text}: status {status}")
        })?;
        Ok(request)
    }

    /// Chooses the listening address for the question, and creates the request there. Of several
    /// addresses, the first that has a server with the requested name is chosen, else the first.
    async fn choose(&self, question: &Question) -> Result<(Listening, Box<Request>), String> {
        let all = HttpThreadState::of(&self.worker.current()).addresses();
        let asked = question.address();
        let meant: Vec<&(ListenerId, Address)> = match &asked {
            Some(asked) => nearest(&all, asked).into_iter().collect(),
            None => {
                let on_port = all.iter();
                on_port
                    .filter(|(_, address)| address.port() == Some(question.port()))
                    .collect()
            }
        };
        let mut found: Option<(&Address, Box<Request>, bool)> = None;
        for (id, address) in &meant {
            let to = asked.clone().unwrap_or_else(|| reachable(address));
            let request = self.request(id, &to, question).await?;
            let named = matched(&request).is_some();
            if found.is_none() || (named && !found.as_ref().is_some_and(|(_, _, named)| *named)) {
                found = Some((address, request, named));
            }
        }
        let Some((address, request, named)) = found else {
            return Err(nothing_listens(&all, &asked, question.port()));
        };
        let reason = match (&asked, meant.len()) {
            (Some(asked), _) if asked == address => "the very address".to_owned(),
            (Some(asked), _) => format!("takes connections to {asked}"),
            (None, 1) => format!("the only address on port {}", question.port()),
            (None, _) if named => "the first on this port that knows the name".to_owned(),
            (None, _) => "the first on this port; none knows the name".to_owned(),
        };
        let others = meant.iter().filter(|(_, other)| other != address);
        let listen = Listening {
            address: address.to_string(),
            reason,
            others: others.map(|(_, other)| other.to_string()).collect(),
        };
        Ok((listen, request))
    }
}

/// The listening address that accepts connections to `asked`: the same address, or else the
/// wildcard address of its family and port.
fn nearest<'a>(
    all: &'a [(ListenerId, Address)],
    asked: &Address,
) -> Option<&'a (ListenerId, Address)> {
    let any = |address: &Address| match (address, asked) {
        (Address::Inet(any), Address::Inet(asked)) => {
            any.ip().is_unspecified()
                && any.port() == asked.port()
                && any.is_ipv4() == asked.is_ipv4()
        }
        _ => false,
    };
    let exact = all.iter().find(|(_, address)| address == asked);
    exact.or_else(|| all.iter().find(|(_, address)| any(address)))
}

/// An address to which a client could connect: the loopback address in place of a wildcard.
fn reachable(address: &Address) -> Address {
    let mut address = address.clone();
    if let Address::Inet(inet) = &mut address
        && inet.ip().is_unspecified()
    {
        if inet.is_ipv4() {
            inet.set_ip(std::net::Ipv4Addr::LOCALHOST.into())
        } else {
            inet.set_ip(std::net::Ipv6Addr::LOCALHOST.into())
        }
    }
    address
}

/// The error for a question that matches no listening address.
fn nothing_listens(all: &[(ListenerId, Address)], asked: &Option<Address>, port: u16) -> String {
    let wanted = match asked {
        Some(asked) => asked.to_string(),
        None => format!("port {port}"),
    };
    let known: Vec<String> = all.iter().map(|(_, address)| address.to_string()).collect();
    if known.is_empty() {
        "the configuration listens nowhere".to_owned()
    } else {
        format!("nothing listens on {wanted}, only on {}", known.join(", "))
    }
}

/// The reason why the request's host selects its server; `None` if the default server is used.
fn matched(request: &Request) -> Option<String> {
    let (local, connection) = (Rc::clone(&request.local), &request.connection);
    let host = &request.client.host;
    // Regexes leave captures in the request, so the names are matched with another request.
    let mut other = Box::new(Request::new(&local, connection.shared()?, &request.server));
    let found = connection.with_servers(&local, |servers| {
        let (name, _) = servers.names.find_with_name(host, &mut other).ok()??;
        let lossy = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Some(match name {
            Matched::Exact if host.is_empty() => {
                "the request names no host, and it has the empty name".to_owned()
            }
            Matched::Exact => format!("its server_name is \"{}\"", lossy(host)),
            Matched::Suffix(suffix) => format!("its server_name is \"*{}\"", lossy(suffix)),
            Matched::Prefix(prefix) => format!("its server_name is \"{}*\"", lossy(prefix)),
            Matched::Regex(regex) => format!(
                "\"{}\" matches its server_name \"~{}\", the first regex that does",
                lossy(host),
                regex.pattern()
            ),
        })
    });
    found.flatten()
}

/// The server of a request, with the reason why it was chosen.
fn serving(request: &Request, tree: &Tree) -> ChosenServer {
    let local = Rc::clone(&request.local);
    let scope = tree.scope(request.server.plan.scope);
    let reason = matched(request).unwrap_or_else(|| {
        let host = String::from_utf8_lossy(&request.client.host);
        let says = scope.own_lines(&http::config::listen::LISTEN.spec);
        let is_marked = says
            .iter()
            .flat_map(|line| &line.args)
            .any(|word| matches!(&*word.bytes, b"default_server" | b"default"));
        let default = if is_marked {
            "it is the default_server"
        } else {
            "it is the first server there"
        };
        if host.is_empty() {
            format!("the request names no host, and {default}")
        } else {
            format!("no server there is named \"{host}\", and {default}")
        }
    });
    let all = request
        .connection
        .with_servers(&local, |servers| servers.all())
        .unwrap_or_default();
    let others = all
        .iter()
        .filter(|other| other.plan.scope != request.server.plan.scope);
    ChosenServer {
        name: String::from_utf8_lossy(&request.server.name).into_owned(),
        position: scope.line().map(|line| line.position),
        reason,
        others: others.map(|server| server_place(server, tree)).collect(),
    }
}

/// The location of a server's block, with the server's names as its text.
fn server_place(server: &Server, tree: &Tree) -> ConfigLocation {
    let scope = tree.scope(server.plan.scope);
    let lines = scope.lines().iter();
    let names: Vec<String> = lines
        .filter(|line| line.is("server_name"))
        .flat_map(|line| line.args.iter().map(|word| word.text().into_owned()))
        .collect();
    ConfigLocation {
        text: if names.is_empty() {
            "without a name".to_owned()
        } else {
            names.join(" ")
        },
        position: scope.line().map(|line| line.position),
    }
}
