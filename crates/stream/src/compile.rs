//! From the `stream` block to servers and the addresses that they are reached at.

use std::sync::Arc;

use conf::{Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word, parse};
use engine::net::{Address, Carries, ListenOptions};
use framework::compile::Compiler;
use framework::door::ListenerId;
use logs::ErrorLog;
use rules::access::Access;
use rules::access_log::AccessLogs;
use transport::listen;
use variables::{Table, geo, map, split_clients};

use crate::plan::{Binding, Content, Server, Stream};
use crate::proxy;
use crate::returned;
use crate::session::Session;

/// One address that a `listen` line of a server of streams names.
type Listen = listen::Listen<()>;

static STREAM: Setting<()> = Setting::new("stream", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::STREAM)
    .inherit(Inherit::Never)
    .manual("The block of everything that passes TCP connections on.");

static SERVER: Setting<()> = Setting::new("server", &["{ ... }"], parse::nothing)
    .contexts(Contexts::STREAM)
    .block()
    .opens(Contexts::STREAM_SERVER)
    .manual("A server, reached at the addresses of its `listen` lines.");

static LISTEN: Setting<Vec<listen::Written<()>>> = Setting::new(
    "listen",
    &["address:port [options]", "unix:path [options]"],
    lines,
)
.contexts(Contexts::STREAM_SERVER)
.arity(conf::Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "An address that the server is reached at. Options: udp, bind, backlog=, rcvbuf=, sndbuf=, \
         deferred, fastopen=, reuseport, ipv6only=on|off, \
         so_keepalive=on|off|idle:interval:count.",
);

static TCP_NODELAY: Setting<bool> = Setting::new("tcp_nodelay", &["on | off"], parse::flag)
    .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
    .default("on")
    .manual("Whether small packets leave at once, to the client and to the server behind.");

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&STREAM, &SERVER, &LISTEN, &TCP_NODELAY];

/// The port of a line that names none.
const NO_PORT: u16 = 0;

fn lines(setter: &Setter<'_>) -> Result<Vec<listen::Written<()>>, Fault> {
    let lines = setter.lines().iter();
    let read = |line: &Line| {
        let written = listen::line(line, NO_PORT, option)?;
        if written.listen.options.carries == Carries::Datagrams {
            check_udp(&written.listen, line)?;
        }
        Ok(written)
    };
    lines.map(|line| read(line)).collect()
}

/// Takes an option of `listen` that not all protocols have.
fn option(listen: &mut Listen, name: &str) -> listen::Taken {
    match name {
        "udp" => {
            listen.options.carries = Carries::Datagrams;
            listen::Taken::Yes
        }
        "ssl" | "proxy_protocol" => listen::Taken::NotYet,
        _ => listen::Taken::Unknown,
    }
}

/// Refuses what means nothing for UDP, as nginx does, and Unix sockets of datagrams.
fn check_udp(listen: &Listen, line: &Line) -> Result<(), Fault> {
    let is_unix = |word: &&Word| word.bytes.starts_with(b"unix:");
    if listen.word.as_ref().filter(is_unix).is_some() {
        return Err(listen.fault("\"udp\" is not supported for Unix sockets".to_owned()));
    }
    for word in line.args.iter().skip(1) {
        let text = word.text();
        let name = text.split('=').next().unwrap_or_default();
        if matches!(name, "fastopen" | "backlog" | "deferred" | "so_keepalive") {
            let text = format!("\"{name}\" parameter is incompatible with \"udp\"");
            return Err(Fault::at(word, text));
        }
    }
    Ok(())
}

/// Compiles the `stream` block; `None` when there were errors, which have been reported. Without
/// the block there is nothing to serve, which is no error.
pub(crate) fn stream(compiler: &Compiler<'_>, root: ScopeRef<'_>) -> Option<Stream> {
    let mut gathered: Vec<(Listen, Arc<Server>)> = Vec::new();
    let mut whole = true;
    for scope in root.children("stream") {
        map::compile::<Session>(compiler, scope);
        geo::compile::<Session>(compiler, scope);
        split_clients::compile::<Session>(compiler, scope);
        if let Err(fault) = rules::format::check::<Session>(compiler, scope) {
            compiler.report(fault);
            whole = false;
        }
        for block in scope.children("server") {
            match server(compiler, block) {
                Ok((lines, server)) => {
                    for line in lines {
                        gather(compiler, &mut gathered, line, &server);
                    }
                }
                Err(fault) => {
                    compiler.report(fault);
                    whole = false;
                }
            }
        }
    }
    let stream = Stream {
        bindings: bindings(gathered),
        variables: Table::default(),
        debug_connections: Arc::default(),
    };
    whole.then_some(stream)
}

fn server(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
) -> Result<(Vec<Listen>, Arc<Server>), Fault> {
    let at_block = |text: &str| {
        let fault = Fault::new(text);
        let line = block.line().map(|line| line.name.position);
        line.map_or_else(|| Fault::new(text), |position| fault.or_at(position))
    };
    let Some(lines) = block.own(&LISTEN)? else {
        return Err(at_block("no \"listen\" is defined for server"));
    };
    let lines = listen::addresses(compiler, lines)?;
    if let Some(line) = lines
        .iter()
        .find(|line| line.options.address.port() == Some(NO_PORT))
    {
        let word = line.word.as_ref().map(Word::text).unwrap_or_default();
        let text = format!("no port in \"{word}\" of the \"listen\" directive");
        return Err(line.fault(text));
    }
    let returned = returned::of_server(compiler, block)?;
    let proxied = proxy::settings::of_server(compiler, block)?;
    // As in nginx the one that is written last is the server's handler.
    let content = match (returned, proxied) {
        (Some((text, at)), Some((_, other))) if at > other => Content::Return(text),
        (_, Some((proxy, _))) => Content::Proxy(Box::new(proxy)),
        (Some((text, _)), None) => Content::Return(text),
        (None, None) => Content::Nothing,
    };
    let server = Server {
        error_log: compiler.feature::<ErrorLog>(block)?,
        access_logs: compiler.feature::<AccessLogs<Session>>(block)?,
        access: compiler.feature::<Access>(block)?,
        tcp_nodelay: block.get(&TCP_NODELAY)?,
        content,
    };
    Ok((lines, Arc::new(server)))
}

/// Adds one address of a server. As in nginx the first server of an address has it; a later one
/// could only be told apart by its name.
fn gather(
    compiler: &Compiler<'_>,
    gathered: &mut Vec<(Listen, Arc<Server>)>,
    line: Listen,
    server: &Arc<Server>,
) {
    let address = &line.options.address;
    let is_taken = gathered
        .iter()
        .any(|(known, _)| is_same_socket(&known.options, &line.options));
    if is_taken {
        let text = format!("conflicting server name \"\" on {address}, ignored");
        compiler.warn_each_time(text, None);
    } else {
        gathered.push((line, Arc::clone(server)));
    }
}

/// Which addresses share a socket: where a port is listened on by every address and by single
/// ones, one socket takes all of them, unless `bind` asks for a socket of its own.
fn bindings(gathered: Vec<(Listen, Arc<Server>)>) -> Vec<Binding> {
    let (mut sharing, mut bindings) = (Vec::new(), Vec::<Binding>::new());
    for (line, server) in gathered {
        let is_any = matches!(&line.options.address,
            Address::Inet(at) if at.ip().is_unspecified());
        if !is_any && !line.bind && matches!(line.options.address, Address::Inet(_)) {
            sharing.push((line, server));
        } else {
            bindings.push(binding(line, server));
        }
    }
    for (line, server) in sharing {
        let address = line.options.address.clone();
        let takes = |binding: &&mut Binding| takes(binding, &line.options);
        match bindings.iter_mut().find(takes) {
            Some(wildcard) => wildcard.specific.push((address, server)),
            None => bindings.push(binding(line, server)),
        }
    }
    bindings
}

fn binding(line: Listen, server: Arc<Server>) -> Binding {
    Binding {
        id: ListenerId::of_address(&line.options.address, line.options.carries),
        options: line.options,
        server,
        specific: Vec::new(),
    }
}

/// Whether two lines name one socket.
fn is_same_socket(one: &ListenOptions, other: &ListenOptions) -> bool {
    (&one.address, one.carries) == (&other.address, other.carries)
}

/// Whether a socket for every address takes connections to this one.
fn takes(binding: &Binding, options: &ListenOptions) -> bool {
    if binding.options.carries != options.carries {
        return false;
    }
    match (&binding.options.address, &options.address) {
        (Address::Inet(any), Address::Inet(at)) => {
            any.ip().is_unspecified() && any.port() == at.port() && any.is_ipv4() == at.is_ipv4()
        }
        _ => false,
    }
}
