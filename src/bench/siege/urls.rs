//! siege's lists of URLs, and the requests that they describe.
//!
//! A line consists of a URL, a method and data: `http://host/path POST a=1` or `… POST <FILE`.
//! `NAME=value` sets a variable for `$(NAME)` and `${NAME}` in the following lines. Lines that
//! start with `#` are comments.

use load::Target;
use load::plan::{Request, Server};
use load::tls::{Settings, TlsFactory};

use super::flags::{Flags, Show};

/// The default `User-Agent` of siege 4.0.7.
const AGENT: &str = "Mozilla/5.0 (pc-x86_64-linux-gnu) Siege/4.0.7";

/// The methods that may follow a URL.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// A line of a list of URLs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UrlLine {
    pub(super) url: String,
    pub(super) method: String,
    data: Data,
}

#[derive(Debug, PartialEq, Eq)]
enum Data {
    None,
    Text(String),
    File(String),
}

impl UrlLine {
    fn parse(text: &str) -> UrlLine {
        let mut words = text.trim().splitn(3, char::is_whitespace);
        let url = words.next().unwrap_or_default().to_owned();
        let method = words.next().map(str::to_ascii_uppercase);
        let known = method.filter(|method| METHODS.contains(&&**method));
        let Some(method) = known else {
            return UrlLine {
                url,
                method: "GET".to_owned(),
                data: Data::None,
            };
        };
        let data = words.next().unwrap_or_default().trim();
        let data = match data.strip_prefix('<') {
            Some(path) => Data::File(path.trim().to_owned()),
            None => Data::Text(data.to_owned()),
        };
        UrlLine { url, method, data }
    }

    fn body(&self) -> Result<Option<Vec<u8>>, String> {
        match &self.data {
            _ if self.method == "GET" => Ok(None),
            Data::None => Ok(None),
            Data::Text(text) => Ok(Some(text.as_bytes().to_vec())),
            Data::File(path) => match std::fs::read(path) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) => Err(format!("could not open file: {path}: {error}")),
            },
        }
    }
}

/// The lines to request: the URL of the command line, or those of the file.
pub(super) fn lines(flags: &Flags) -> Result<Vec<UrlLine>, String> {
    if let Some(url) = &flags.url {
        return Ok(vec![UrlLine::parse(url)]);
    }
    let path = flags.file.as_deref().unwrap_or_default();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("unable to open file: {path}: {error}"))?;
    let lines = parse(&text);
    if lines.is_empty() {
        Err(format!("{path}: there is no URL"))
    } else {
        Ok(lines)
    }
}

fn parse(text: &str) -> Vec<UrlLine> {
    let mut variables: Vec<(&str, &str)> = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('=') {
            Some((name, value)) if is_name(name) => {
                variables.push((name, value.trim()));
            }
            _ => lines.push(UrlLine::parse(&expanded(line, &variables))),
        }
    }
    lines
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && text.bytes().all(letter)
}

/// Replaces variables in a line. If a variable was set several times, the last value is used.
fn expanded(line: &str, variables: &[(&str, &str)]) -> String {
    let mut line = line.to_owned();
    for (name, value) in variables.iter().rev() {
        for written in [format!("$({name})"), format!("${{{name}}}")] {
            line = line.replace(&written, value);
        }
    }
    line
}

/// Encodes a request, with the fields in siege's order.
pub(super) fn request(line: &UrlLine, target: &Target, flags: &Flags) -> Result<Vec<u8>, String> {
    let body = line.body()?;
    // `-g` and `-p` use HTTP/1.0, and `-g` uses HEAD.
    let (method, version) = match flags.show {
        Some(Show::Heads) if line.method == "GET" => ("HEAD", "1.0"),
        Some(_) => (&*line.method, "1.0"),
        None => (&*line.method, "1.1"),
    };
    let mut head = format!("{method} {} HTTP/{version}\r\n", target.path);
    let own = |name: &str| {
        let mut names = flags.fields.iter().map(|(name, _)| name);
        names.any(|known| known.eq_ignore_ascii_case(name))
    };
    let mut field = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
    for (name, value) in [
        ("Host", &*target.authority),
        ("Accept", "*/*"),
        ("Accept-Encoding", "gzip, deflate"),
        ("User-Agent", flags.agent.as_deref().unwrap_or(AGENT)),
    ] {
        if !own(name) {
            field(name, value);
        }
    }
    for (name, value) in &flags.fields {
        field(name, value);
    }
    if !own("Connection") {
        field("Connection", "close");
    }
    if let Some(body) = &body {
        let form = "application/x-www-form-urlencoded";
        field(
            "Content-type",
            flags.content_type.as_deref().unwrap_or(form),
        );
        field("Content-length", &body.len().to_string());
    }
    head.push_str("\r\n");
    Ok([head.into_bytes(), body.unwrap_or_default()].concat())
}

/// A TLS configuration that accepts any certificate, as in siege.
pub(super) fn maker() -> TlsFactory {
    TlsFactory::new(Settings {
        insecure: true,
        ..Settings::default()
    })
}

/// Converts each line to a server of its own, because every request has its own connection.
pub(super) fn servers(lines: &[UrlLine], flags: &Flags) -> Result<Vec<Server>, String> {
    let maker = maker();
    let mut servers = Vec::new();
    for line in lines {
        let target =
            Target::parse(&line.url, &flags.allow_remote).map_err(|error| error.to_string())?;
        servers.push(Server {
            requests: vec![Request::http1(request(line, &target, flags)?, false)],
            tls: maker.tls(&target).map_err(|error| error.to_string())?,
            address: target.address,
        });
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_comments_variables_methods_and_data() {
        let text = "# all\nHOST= 127.0.0.1:81\nhttp://$(HOST)/a?b=1\n\n http://${HOST}/b POST x=1 y\n\
                    127.0.0.1/c put < file\n127.0.0.1/d HEAD\n";
        let line = |url: &str, method: &str, data| UrlLine {
            url: url.to_owned(),
            method: method.to_owned(),
            data,
        };
        let expected = [
            line("http://127.0.0.1:81/a?b=1", "GET", Data::None),
            line(
                "http://127.0.0.1:81/b",
                "POST",
                Data::Text("x=1 y".to_owned()),
            ),
            line("127.0.0.1/c", "PUT", Data::File("file".to_owned())),
            line("127.0.0.1/d", "GET", Data::None),
        ];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn requests_are_those_of_siege() {
        let words = ["-H", "X: y", "-A", "me", "http://127.0.0.1:81/a POST x=1"];
        let flags = Flags::parse(words.into_iter().map(str::to_owned)).unwrap();
        let line = UrlLine::parse(flags.url.as_deref().unwrap());
        let target = Target::parse(&line.url, &[]).unwrap();
        let bytes = request(&line, &target, &flags).unwrap();
        // The request as sent by siege 4.0.7.
        let expected = "POST /a HTTP/1.1\r\nHost: 127.0.0.1:81\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n\
                        User-Agent: me\r\nX: y\r\nConnection: close\r\n\
                        Content-type: application/x-www-form-urlencoded\r\nContent-length: 3\r\n\r\nx=1";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
