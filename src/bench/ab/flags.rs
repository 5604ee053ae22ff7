//! ApacheBench's flags: single letters, with or without a space before their value; and the request
//! that they describe.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use load::Target;
use load::tls::{Settings, Version};

/// Number of requests that a time limit implies, as in ab.
const REQUESTS_BY_TIME: u64 = 50_000;

/// Maximum concurrency, as in ab.
const CONCURRENCY_MAX: u64 = 20_000;

pub(super) const USAGE: &str = "\
Usage: ab [options] http://hostname[:port]/path
Options are:
    -n requests     Number of requests to perform
    -c concurrency  Number of multiple requests to make at a time
    -t timelimit    Seconds to max. to spend on benchmarking
                    This implies -n 50000
    -s timeout      Seconds to max. wait for each response
                    Default is 30 seconds
    -B address      Address to bind to when making outgoing connections
    -p postfile     File containing data to POST. Remember also to set -T
    -u putfile      File containing data to PUT. Remember also to set -T
    -T content-type Content-type header to use for POST/PUT data, eg.
                    'application/x-www-form-urlencoded'
                    Default is 'text/plain'
    -i              Use HEAD instead of GET
    -C attribute    Add cookie, eg. 'Apache=1234'. (repeatable)
    -H attribute    Add Arbitrary header line, eg. 'Accept-Encoding: gzip'
                    Inserted after all normal header lines. (repeatable)
    -A attribute    Add Basic WWW Authentication, the attributes
                    are a colon separated username and password.
    -V              Print version number and exit
    -k              Use HTTP KeepAlive feature
    -d              Do not show percentiles served table.
    -S              Do not show confidence estimators and warnings.
    -q              Do not show progress when doing more than 150 requests
    -l              Accept variable document length (use this for dynamic pages)
    -g filename     Output collected data to gnuplot format file.
    -e filename     Output CSV file with percentages served
    -r              Don't exit on socket receive errors.
    -m method       Method name
    -h              Display usage information (this message)
    -I              Disable TLS Server Name Indication (SNI) extension
    -Z ciphersuite  Specify SSL/TLS cipher suite (See openssl ciphers)
    -f protocol     Specify SSL/TLS protocol
                    (TLS1.2, TLS1.3 or ALL)
    -E certfile     Specify optional client certificate chain and private key
";

/// The parsed command line.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) url: String,
    pub(super) requests: u64,
    pub(super) concurrency: u64,
    pub(super) time_limit: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) source: Option<IpAddr>,
    pub(super) method: String,
    pub(super) keep_alive: bool,
    pub(super) keep_going: bool,
    pub(super) quiet: bool,
    pub(super) variable_length: bool,
    /// False if `-d` is given.
    pub(super) percentiles: bool,
    /// False if `-S` is given.
    pub(super) confidence: bool,
    pub(super) gnuplot: Option<String>,
    pub(super) csv: Option<String>,
    pub(super) tls: Settings,
    /// The file that contains the request's body.
    pub(super) body: Option<String>,
    content_type: String,
    cookies: Vec<String>,
    fields: Vec<String>,
    credentials: Vec<String>,
}

/// Why there is no run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EarlyExit {
    Version,
    /// The message of an error, or `None` if help was requested.
    Usage(Option<String>),
}

fn fault(text: impl Into<String>) -> EarlyExit {
    EarlyExit::Usage(Some(text.into()))
}

impl Flags {
    pub(super) fn parse(arguments: &[OsString]) -> Result<Flags, EarlyExit> {
        let mut flags = Flags {
            url: String::new(),
            requests: 1,
            concurrency: 1,
            time_limit: None,
            timeout: Duration::from_secs(30),
            source: None,
            method: "GET".to_owned(),
            keep_alive: false,
            keep_going: false,
            quiet: false,
            variable_length: false,
            percentiles: true,
            confidence: true,
            gnuplot: None,
            csv: None,
            // ab accepts any certificate.
            tls: Settings {
                insecure: true,
                ..Settings::default()
            },
            body: None,
            content_type: "text/plain".to_owned(),
            cookies: Vec::new(),
            fields: Vec::new(),
            credentials: Vec::new(),
        };
        let mut words = Vec::new();
        let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy());
        while let Some(argument) = arguments.next() {
            match argument.strip_prefix('-') {
                Some(letters) if !letters.is_empty() => {
                    flags.read(letters, &mut || Some(arguments.next()?.into_owned()))?;
                }
                _ => words.push(argument.into_owned()),
            }
        }
        let [url] = &words[..] else {
            return Err(fault("wrong number of arguments"));
        };
        flags.url.clone_from(url);
        if flags.concurrency == 0 || flags.concurrency > CONCURRENCY_MAX {
            return Err(fault(format!(
                "Invalid Concurrency [Range 0..{CONCURRENCY_MAX}]\n"
            )));
        }
        if flags.concurrency > flags.requests {
            return Err(fault(
                "Cannot use concurrency level greater than total number of requests",
            ));
        }
        Ok(flags)
    }

    /// Parses one argument without its dash: switches, and possibly a flag with a value at the end.
    fn read(
        &mut self,
        letters: &str,
        next: &mut dyn FnMut() -> Option<String>,
    ) -> Result<(), EarlyExit> {
        for (place, letter) in letters.char_indices() {
            match letter {
                'k' => self.keep_alive = true,
                'I' => self.tls.without_name = true,
                'r' => self.keep_going = true,
                'q' => self.quiet = true,
                'l' => self.variable_length = true,
                'd' => self.percentiles = false,
                'S' => self.confidence = false,
                'i' => self.method = "HEAD".to_owned(),
                'h' => return Err(EarlyExit::Usage(None)),
                'V' => return Err(EarlyExit::Version),
                'b' | 'v' | 'w' | 'x' | 'y' | 'z' | 'P' | 'X' => {
                    return Err(fault(format!("-{letter} is not supported here")));
                }
                _ => {
                    let rest = &letters[place + letter.len_utf8()..];
                    let value = if rest.is_empty() {
                        next()
                    } else {
                        Some(rest.to_owned())
                    };
                    let value = value
                        .ok_or_else(|| fault(format!("option requires an argument -- {letter}")))?;
                    return self.set(letter, value);
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, letter: char, value: String) -> Result<(), EarlyExit> {
        let number = || {
            let number = value.parse::<u64>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| fault(format!("invalid argument -- {letter}")))
        };
        match letter {
            'n' => {
                let fault = |_| fault("Invalid number of requests\n");
                self.requests = number().map_err(fault)?;
            }
            'c' => self.concurrency = number()?,
            't' => {
                self.time_limit = Some(Duration::from_secs(number()?));
                self.requests = REQUESTS_BY_TIME;
            }
            's' => self.timeout = Duration::from_secs(number()?),
            'B' => {
                let address = value
                    .parse()
                    .map_err(|_| fault(format!("{value}: no address")))?;
                self.source = Some(address);
            }
            'p' | 'u' => {
                self.method = if letter == 'p' { "POST" } else { "PUT" }.to_owned();
                self.body = Some(value);
            }
            'm' => self.method = value,
            'T' => self.content_type = value,
            'C' => self.cookies.push(value),
            'H' => self.fields.push(value),
            'A' => self.credentials.push(value),
            'Z' => self.tls.ciphers = value.split([':', ',']).map(str::to_owned).collect(),
            'f' => {
                self.tls.version = match &*value.to_ascii_uppercase() {
                    "ALL" => None,
                    "TLS1.2" => Some(Version::Tls12),
                    "TLS1.3" => Some(Version::Tls13),
                    _ => return Err(fault(format!("-f {value} is not supported here"))),
                };
            }
            'E' => self.tls.certificate = Some(value.into()),
            'g' => self.gnuplot = Some(value),
            // In ab, a CSV file also implies a report of percentages.
            'e' => self.csv = Some(value),
            _ => return Err(fault(format!("invalid option -- {letter}"))),
        }
        Ok(())
    }

    /// The HTTP/1.0 request with the fields in ab's order.
    pub(super) fn request(&self, target: &Target) -> Result<Vec<u8>, String> {
        let Flags { method, .. } = self;
        let body =
            match &self.body {
                Some(path) => {
                    let read = std::fs::read(path);
                    Some(read.map_err(|error| {
                        format!("Could not open POST data file ({path}): {error}")
                    })?)
                }
                None => None,
            };
        let mut head = format!("{method} {} HTTP/1.0\r\n", target.path);
        if self.keep_alive {
            head.push_str("Connection: Keep-Alive\r\n");
        }
        if !self.cookies.is_empty() {
            head.push_str(&format!("Cookie: {}\r\n", self.cookies.join("; ")));
        }
        for credentials in &self.credentials {
            let mut encoded = Vec::new();
            proto::base64::encode(credentials.as_bytes(), &mut encoded);
            let encoded = String::from_utf8_lossy(&encoded);
            head.push_str(&format!("Authorization: Basic {encoded}\r\n"));
        }
        if let Some(body) = &body {
            head.push_str(&format!(
                "Content-length: {}\r\nContent-type: {}\r\n",
                body.len(),
                self.content_type
            ));
        }
        for field in &self.fields {
            head.push_str(&format!("{field}\r\n"));
        }
        for (name, value) in [
            ("Host", &*target.authority),
            ("User-Agent", "ApacheBench/2.3"),
            ("Accept", "*/*"),
        ] {
            let written = |field: &String| {
                let own = field.split(':').next().unwrap_or_default();
                own.eq_ignore_ascii_case(name)
            };
            if !self.fields.iter().any(written) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        Ok([head.into_bytes(), body.unwrap_or_default()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, EarlyExit> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Flags::parse(&words)
    }

    #[test]
    fn flags_may_be_joined() {
        let flags = parse("-kn100 -c 10 -H A:b -qs5 http://h/").unwrap();
        assert!(flags.keep_alive && flags.quiet);
        assert_eq!(
            (flags.requests, flags.concurrency, &*flags.url),
            (100, 10, "http://h/")
        );
        assert_eq!(flags.timeout, Duration::from_secs(5));
        assert_eq!(parse("-t 3 -n 7 http://h/").unwrap().requests, 7);
        assert_eq!(parse("-n 7 -t 3 http://h/").unwrap().requests, 50_000);
    }

    #[test]
    fn faults_are_those_of_ab() {
        for (line, text) in [
            ("", "wrong number of arguments"),
            (
                "-c 4 -n 2 http://h/",
                "Cannot use concurrency level greater than total number of requests",
            ),
            ("-n 0 http://h/", "Invalid number of requests\n"),
            ("-X a:1 http://h/", "-X is not supported here"),
            ("-f SSL3 https://h/", "-f SSL3 is not supported here"),
        ] {
            assert_eq!(parse(line).unwrap_err(), fault(text), "{line}");
        }
        assert_eq!(parse("-V").unwrap_err(), EarlyExit::Version);
        assert_eq!(parse("-h").unwrap_err(), EarlyExit::Usage(None));
    }

    #[test]
    fn requests_are_those_of_ab() {
        let target = Target::parse("http://127.0.0.1:81/x", &[]).unwrap();
        let flags =
            parse("-k -C a=1 -C b=2 -A u:p -H X:y -H user-agent:z http://127.0.0.1:81/x").unwrap();
        let request = String::from_utf8(flags.request(&target).unwrap()).unwrap();
        // The request as sent by ab 2.3.
        let expected = "GET /x HTTP/1.0\r\nConnection: Keep-Alive\r\nCookie: a=1; b=2\r\nAuthorization: Basic dTpw\r\n\
                        X:y\r\nuser-agent:z\r\nHost: 127.0.0.1:81\r\nAccept: */*\r\n\r\n";
        assert_eq!(request, expected);
    }
}
