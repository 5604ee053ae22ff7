//! `geoip2`: variables by the client's address, from a MaxMind database (MMDB).
//!
//! The directives are those of the well-known third-party module
//! <https://github.com/leev/ngx_http_geoip2_module>; the file format is
//! <https://maxmind.github.io/MaxMind-DB/>. Databases are read into memory when the configuration
//! is loaded. With `auto_reload`, a changed file is read again in the background: see `database`.

mod database;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Block, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template,
    Word, parse,
};
use engine::net::Address;
use framework::compile::Compiler;
use framework::network::{Cidr, parse_address};
use framework::places::{FileAccess, name_of};
use variables::name::variable_name;
use variables::{Compiling as _, Context, Source, Text, Value, forwarded};

use self::database::{Database, PathStep};

/// `geoip2 file { … }`
pub static GEOIP2: Setting<()> = Setting::new("geoip2", &["file { ... }"], parse::nothing)
    .contexts(Contexts::HTTP.or(Contexts::STREAM))
    .arity(Arity::exactly(1))
    .inherit(Inherit::Block)
    .free_block()
    .manual(
        "Opens a MaxMind database. Each row makes a variable: `$name [default=value] \
         [source=$variable] path …` is what stands under the path in the record of the client's \
         address, or of the source's; `$name metadata build_epoch | database_type | last_check | \
         last_change` is about the database. `auto_reload time` looks for a changed file that often.",
    );

/// `geoip2_proxy address | CIDR`
pub static GEOIP2_PROXY: Setting<Vec<Cidr>> =
    Setting::new("geoip2_proxy", &["address | CIDR"], proxies)
        .contexts(Contexts::HTTP)
        .inherit(Inherit::List)
        .manual(
            "Trusted proxies: where a request comes from one, the last address of X-Forwarded-For \
             is looked up in its place.",
        );

/// `geoip2_proxy_recursive on | off`
pub static GEOIP2_PROXY_RECURSIVE: Setting<bool> =
    Setting::new("geoip2_proxy_recursive", &["on | off"], parse::flag)
        .contexts(Contexts::HTTP)
        .arity(Arity::flag())
        .default("off")
        .manual(
            "Goes on through X-Forwarded-For to the last address that is not a trusted proxy's.",
        );

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&GEOIP2, &GEOIP2_PROXY, &GEOIP2_PROXY_RECURSIVE];

fn proxies(setter: &Setter<'_>) -> Result<Vec<Cidr>, Fault> {
    let proxy = |line: &&Line| {
        let word = line.argument(0);
        let (network, _) = Cidr::parse(&word.bytes)
            .ok_or_else(|| Fault::at(word, format!("invalid network \"{}\"", word.text())))?;
        Ok(network)
    };
    setter.lines().iter().map(proxy).collect()
}

/// Opens every database of a scope and defines its variables, for a kind of context.
pub fn compile<C: Context>(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let settings = http
        .get(&GEOIP2_PROXY)
        .and_then(|proxies| Ok((proxies, http.get(&GEOIP2_PROXY_RECURSIVE)?)));
    let proxies = match settings {
        Ok((networks, recursive)) => Arc::new(Proxies {
            networks,
            recursive,
        }),
        Err(fault) => return compiler.report(fault),
    };
    let mut opened: Vec<&Word> = Vec::new();
    for line in http.lines().iter().filter(|line| line.is("geoip2")) {
        let file = line.argument(0);
        let outcome = if opened.iter().any(|known| known.bytes == file.bytes) {
            let text = format!("Duplicate GeoIP2 mmdb - {}", file.text());
            Err(Fault::at(file, text))
        } else {
            block::<C>(compiler, line, &proxies)
        };
        opened.push(file);
        if let Err(fault) = outcome {
            compiler.report(fault.or_at(line.position));
        }
    }
}

fn block<C: Context>(
    compiler: &Compiler<'_>,
    line: &Line,
    proxies: &Arc<Proxies>,
) -> Result<(), Fault> {
    let file = line.argument(0);
    let path = compiler.conf_prefix.join(file.path());
    let failed = |why: String| {
        let text = format!("MMDB_open(\"{}\") failed - {why}", path.display());
        Fault::at(file, text)
    };
    let bytes = compiler.files.read(&path);
    let bytes = bytes.map_err(|error| failed(error.to_string()))?;
    let Some(Block::Free(rows)) = &line.block else {
        return Ok(());
    };
    let (reloads, rows): (Vec<&Line>, Vec<&Line>) =
        rows.iter().partition(|row| row.is("auto_reload"));
    let mut interval = None;
    for row in reloads {
        interval = Some(reload_interval(row)?);
    }
    if interval.is_some() {
        // Read access to the directory is needed, because the file may be replaced.
        let folder = path.parent().unwrap_or(&path);
        compiler.will_open(FileAccess::Read, folder, &name_of(Some(line), "geoip2"));
    }
    let database = Database::new(path.clone(), bytes, interval).map_err(failed)?;
    let database = Arc::new(database);
    for row in rows {
        let variable = variable::<C>(compiler, row, &database, proxies)?;
        let name = variable_name(&row.name)?;
        compiler
            .define(&name, Source::Computed(Arc::new(variable)))
            .map_err(|text| Fault::at(&row.name, text))?;
    }
    Ok(())
}

fn reload_interval(row: &Line) -> Result<std::time::Duration, Fault> {
    let word = row.argument(0);
    let seconds = parse::time_seconds(&word.bytes).filter(|_| row.args.len() == 1);
    let seconds = seconds.ok_or_else(|| {
        let text = format!("invalid interval for auto_reload \"{}\"", word.text());
        Fault::at(&row.name, text)
    })?;
    Ok(std::time::Duration::from_secs(seconds))
}

fn variable<C: Context>(
    compiler: &Compiler<'_>,
    row: &Line,
    database: &Arc<Database>,
    proxies: &Arc<Proxies>,
) -> Result<GeoIp2Variable<C>, Fault> {
    let about_database = row
        .args
        .first()
        .is_some_and(|word| &*word.bytes == b"metadata");
    let what = if about_database {
        VariableSource::Metadata(metadata(row)?)
    } else {
        VariableSource::Data(data(compiler, row, proxies)?)
    };
    Ok(GeoIp2Variable {
        database: Arc::clone(database),
        what,
    })
}

fn metadata(row: &Line) -> Result<Metadata, Fault> {
    let [_, field] = &*row.args else {
        return Err(Fault::at(
            &row.name,
            "invalid number of arguments in a metadata row of \"geoip2\"",
        ));
    };
    Ok(match &*field.bytes {
        b"build_epoch" => Metadata::BuildEpoch,
        b"database_type" => Metadata::DatabaseType,
        b"last_check" => Metadata::LastCheck,
        b"last_change" => Metadata::LastChange,
        _ => {
            let text = format!("unknown metadata field \"{}\"", field.text());
            return Err(Fault::at(field, text));
        }
    })
}

fn data<C: Context>(
    compiler: &Compiler<'_>,
    row: &Line,
    proxies: &Arc<Proxies>,
) -> Result<Data<C>, Fault> {
    let mut data = Data {
        source: None,
        default: None,
        path: Vec::new(),
        proxies: Arc::clone(proxies),
    };
    for word in &row.args {
        if let Some(default) = word.bytes.strip_prefix(b"default=") {
            data.default = Some(Bytes::copy_from_slice(default));
        } else if word.bytes.starts_with(b"source=") {
            let template = Template::parse(word)?;
            data.source = Some(compiler.text(&template));
        } else {
            data.path.push(PathStep::new(&word.text()));
        }
    }
    if data.path.is_empty() {
        let text = format!("no path for \"{}\" in \"geoip2\"", row.name.text());
        return Err(Fault::at(&row.name, text));
    }
    Ok(data)
}

/// The proxies whose `X-Forwarded-For` is trusted (`geoip2_proxy`).
#[derive(Debug)]
struct Proxies {
    networks: Vec<Cidr>,
    recursive: bool,
}

/// A variable whose value comes from a database.
pub struct GeoIp2Variable<C> {
    database: Arc<Database>,
    what: VariableSource<C>,
}

enum VariableSource<C> {
    Data(Data<C>),
    Metadata(Metadata),
}

/// The source of a variable's value: an address, and a path in the record of the address.
struct Data<C> {
    /// The whole word `source=$variable`, compiled: its value is `source=` and the address. `None`
    /// for the client's address.
    source: Option<Text<C>>,
    default: Option<Bytes>,
    path: Vec<PathStep>,
    proxies: Arc<Proxies>,
}

#[derive(Clone, Copy)]
enum Metadata {
    BuildEpoch,
    DatabaseType,
    LastCheck,
    LastChange,
}

impl<C: Context> Value<C> for GeoIp2Variable<C> {
    /// The value for a context; `None` if the database has none and there is no default.
    fn value(&self, context: &mut C) -> Option<Bytes> {
        self.database.check();
        match &self.what {
            VariableSource::Metadata(field) => Some(self.metadata(*field).into()),
            VariableSource::Data(data) => {
                let address = data.address(context);
                let found = address.and_then(|address| self.database.find(address, &data.path));
                found.map(Bytes::from).or_else(|| data.default.clone())
            }
        }
    }
}

impl<C> GeoIp2Variable<C> {
    fn metadata(&self, field: Metadata) -> String {
        match field {
            Metadata::BuildEpoch => self.database.build_epoch().to_string(),
            Metadata::DatabaseType => self.database.kind(),
            Metadata::LastCheck => self.database.last_check().to_string(),
            Metadata::LastChange => self.database.last_change().to_string(),
        }
    }
}

impl<C: Context> Data<C> {
    /// The address to look up: that of `source=`, or of the client, perhaps behind trusted proxies.
    fn address(&self, context: &mut C) -> Option<IpAddr> {
        if let Some(source) = &self.source {
            let text = source.evaluate(context);
            return parse_address(text.strip_prefix(b"source=").unwrap_or(&text));
        }
        let peer = context.peer();
        let Proxies {
            networks,
            recursive,
        } = &*self.proxies;
        if networks.is_empty() {
            return peer.ip();
        }
        let trusted = |address: &Address| {
            let ip = address.ip().map(|ip| ip.to_canonical());
            ip.is_some_and(|ip| networks.iter().any(|network| network.contains(ip)))
        };
        let chain = context.forwarded();
        forwarded::client(peer.clone(), &chain, trusted, *recursive).ip()
    }
}
