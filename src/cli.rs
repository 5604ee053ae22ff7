//! nginx's command line: its flags, the paths that follow from them, and the texts printed for
//! them.
//!
//! Flags may be joined (`-tq`), a value may follow its flag without a blank (`-c/etc/x.conf`), and
//! of a repeated flag the last one counts, as in nginx. Texts are nginx's, prefixed with this
//! program's name.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use process::{Action, ErrorLog, Options, SignalName};

/// Default paths: those of Debian's nginx, so that an existing `/etc/nginx` works unchanged, and a
/// separate pid file.
pub(crate) mod paths {
    /// Base of relative data paths (`-p`).
    pub(crate) const PREFIX: &str = "/usr/share/nginx";
    /// The default configuration (`-c`) if this file exists.
    pub(crate) const OWN_CONF: &str = "/etc/tidegate/tidegate.conf";
    /// The default configuration (`-c`) if Tidegate's own does not exist, or if the program is
    /// called `nginx`.
    pub(crate) const NGINX_CONF: &str = "/etc/nginx/nginx.conf";

    /// The configuration that is read without `-c`.
    pub(crate) fn conf() -> &'static str {
        let exists = |path: &str| std::path::Path::new(path).exists();
        conf_of(crate::cli::is_called_nginx(), exists)
    }

    /// The default configuration by the program's name and by which files exist.
    pub(super) fn conf_of(is_called_nginx: bool, exists: impl Fn(&str) -> bool) -> &'static str {
        if !is_called_nginx && exists(OWN_CONF) {
            OWN_CONF
        } else {
            NGINX_CONF
        }
    }

    /// The log until the log of the configuration is open, and the default of `-e`.
    pub(crate) const ERROR_LOG: &str = "/var/log/nginx/error.log";
    /// The default of `pid`.
    pub(crate) const PID: &str = "/run/tidegate.pid";
    /// The default of `pid` if the program is called `nginx`: scripts look for the file there.
    pub(crate) const NGINX_PID: &str = "/run/nginx.pid";
}

/// Whether the program was called by the name `nginx`.
pub(crate) fn is_called_nginx() -> bool {
    process::program_name() == "nginx"
}

/// The version of nginx that Tidegate's behaviour is compared with.
pub(crate) const NGINX_VERSION: &str = "1.31.5";

/// A parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The text to print first.
    pub(crate) show: Option<Show>,
    /// The options to start with afterwards; `None` if only a text was requested.
    pub(crate) options: Option<Options>,
}

/// A text to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Show {
    pub(crate) help: bool,
    pub(crate) configure: bool,
}

/// The flags as they were written.
#[derive(Default)]
struct Flags {
    show: Option<Show>,
    test: bool,
    dump: bool,
    quiet: bool,
    prefix: Option<OsString>,
    conf: Option<OsString>,
    error_log: Option<OsString>,
    globals: Option<OsString>,
    signal: Option<SignalName>,
}

/// Reads the arguments after the program's name. The error is the line to print.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, String> {
    let mut flags = Flags::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.as_bytes().strip_prefix(b"-") else {
            return Err(format!(
                "invalid option: \"{}\"",
                argument.to_string_lossy()
            ));
        };
        flags.read(letters, &mut arguments)?;
    }
    Ok(flags.finish())
}

impl Flags {
    /// Parses one argument without its dash: switches, and possibly a flag with a value at its end.
    fn read(
        &mut self,
        mut letters: &[u8],
        following: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), String> {
        while let Some((letter, rest)) = letters.split_first() {
            letters = rest;
            match letter {
                b'?' | b'h' => self.show.get_or_insert_default().help = true,
                b'v' => drop(self.show.get_or_insert_default()),
                b'V' => self.show.get_or_insert_default().configure = true,
                b't' => self.test = true,
                b'T' => (self.test, self.dump) = (true, true),
                b'q' => self.quiet = true,
                flag => return self.read_value(*flag, rest, following),
            }
        }
        Ok(())
    }

    /// A flag whose value is the rest of its argument, or the next one.
    fn read_value(
        &mut self,
        flag: u8,
        rest: &[u8],
        following: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), String> {
        let flag = char::from(flag);
        let mut value = |what: &str| match rest {
            [] => following
                .next()
                .ok_or_else(|| format!("option \"-{flag}\" requires {what}")),
            rest => Ok(OsString::from_vec(rest.to_vec())),
        };
        match flag {
            'p' => self.prefix = Some(value("directory name")?),
            'e' => self.error_log = Some(value("file name")?),
            'c' => self.conf = Some(value("file name")?),
            'g' => self.globals = Some(value("parameter")?),
            's' => {
                let name = value("parameter")?;
                let name = name.to_string_lossy();
                let invalid = || format!("invalid option: \"-s {name}\"");
                self.signal = Some(SignalName::parse(&name).ok_or_else(invalid)?);
            }
            _ => return Err(format!("invalid option: \"{flag}\"")),
        }
        Ok(())
    }

    fn finish(self) -> CommandLine {
        if self.show.is_some() && !self.test {
            return CommandLine {
                show: self.show,
                options: None,
            };
        }
        let prefix = PathBuf::from(self.prefix.unwrap_or_else(|| paths::PREFIX.into()));
        // Joined even if absolute: an absolute path replaces the prefix.
        let below = |path: &OsStr| prefix.join(Path::new(path));
        let conf = self.conf.unwrap_or_else(|| paths::conf().into());
        let error_log = self.error_log.unwrap_or_else(|| paths::ERROR_LOG.into());
        let error_log = match error_log.as_bytes() {
            b"" | b"stderr" => ErrorLog::Stderr,
            _ => ErrorLog::File(below(&error_log)),
        };
        let action = match (self.test, self.signal) {
            (true, _) => Action::Test { dump: self.dump },
            (false, Some(signal)) => Action::Signal(signal),
            (false, None) => Action::Start,
        };
        let options = Options {
            conf_path: below(&conf),
            prefix,
            error_log,
            globals: self.globals.into_iter().map(OsString::into_vec).collect(),
            action,
            quiet: self.quiet,
            privileged: process::identity::is_superuser(),
        };
        CommandLine {
            show: self.show,
            options: Some(options),
        }
    }
}

/// The text of `-v`, `-V` and `-h`; `modules` are the configure arguments that apply to this
/// program.
pub(crate) fn shown(show: Show, modules: &[String]) -> String {
    let mut text = format!("tidegate version: tidegate/{}\n", env!("CARGO_PKG_VERSION"));
    if show.help {
        text.push_str(&usage());
    }
    if show.configure {
        let _ = writeln!(text, "compatible with nginx version: nginx/{NGINX_VERSION}");
        // Read by scripts, nginx's own tests among them.
        text.push_str("TLS SNI support enabled\n");
        let (own, other) = (paths::OWN_CONF, paths::NGINX_CONF);
        let _ = writeln!(text, "configuration: {own} if it exists, else {other}");
        let _ = write!(
            text,
            "configure arguments: --prefix={} --conf-path={} --error-log-path={} --pid-path={}",
            paths::PREFIX,
            paths::conf(),
            paths::ERROR_LOG,
            if is_called_nginx() {
                paths::NGINX_PID
            } else {
                paths::PID
            }
        );
        for module in modules {
            let _ = write!(text, " {module}");
        }
        text.push('\n');
    }
    text
}

fn usage() -> String {
    let options = option_help();
    format!(
        "\
Usage: tidegate [-?hvVtTq] [-s signal] [-p prefix]
                [-e filename] [-c filename] [-g directives]
       tidegate command ...   (tidegate --help lists the commands)

{options}
"
    )
}

/// nginx's options, one a line.
pub(crate) fn option_help() -> String {
    let (prefix, error_log, conf) = (paths::PREFIX, paths::ERROR_LOG, paths::conf());
    format!(
        "\
Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: {prefix}/)
  -e filename   : set error log file (default: {error_log})
  -c filename   : set configuration file (default: {conf})
  -g directives : set global directives out of configuration file
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<CommandLine, String> {
        parse(arguments.iter().map(OsString::from))
    }

    fn options(arguments: &[&str]) -> Options {
        read(arguments).unwrap().options.unwrap()
    }

    #[test]
    fn errors_are_those_of_nginx() {
        for (arguments, expected) in [
            (&["-x"][..], "invalid option: \"x\""),
            (&["foo"], "invalid option: \"foo\""),
            (&[""], "invalid option: \"\""),
            (&["-s"], "option \"-s\" requires parameter"),
            (&["-s", "foo"], "invalid option: \"-s foo\""),
            (&["-sfoo"], "invalid option: \"-s foo\""),
            (&["-p"], "option \"-p\" requires directory name"),
            (&["-c"], "option \"-c\" requires file name"),
            (&["-e"], "option \"-e\" requires file name"),
            (&["-g"], "option \"-g\" requires parameter"),
            (&["-tqx"], "invalid option: \"x\""),
        ] {
            assert_eq!(read(arguments), Err(expected.to_owned()), "{arguments:?}");
        }
    }

    #[test]
    fn relative_paths_start_at_the_prefix() {
        let options = options(&["-p", "/srv/", "-c", "nginx.conf", "-e", "error.log"]);
        assert_eq!(options.prefix, Path::new("/srv/"));
        assert_eq!(options.conf_path, Path::new("/srv/nginx.conf"));
        assert_eq!(options.conf_path.to_str(), Some("/srv/nginx.conf"));
        assert_eq!(options.error_log, ErrorLog::File("/srv/error.log".into()));
        assert_eq!(options.action, Action::Start);
    }

    #[test]
    fn defaults_are_absolute() {
        let options = options(&["-p", "/srv"]);
        assert_eq!(options.conf_path, Path::new(paths::conf()));
        assert_eq!(options.error_log, ErrorLog::File(paths::ERROR_LOG.into()));
    }

    #[test]
    fn our_own_configuration_goes_before_that_of_nginx() {
        let conf = |is_nginx, exists: bool| paths::conf_of(is_nginx, |_| exists);
        assert_eq!(conf(false, true), "/etc/tidegate/tidegate.conf");
        assert_eq!(conf(false, false), "/etc/nginx/nginx.conf");
        // Under nginx's name, nginx's configuration is used even if Tidegate's own exists.
        assert_eq!(conf(true, true), "/etc/nginx/nginx.conf");
    }

    #[test]
    fn values_may_be_joined_and_the_last_counts() {
        let options = options(&["-qc/a", "-c/b", "-estderr", "-gdaemon off;", "-tT"]);
        assert_eq!(options.conf_path, Path::new("/b"));
        assert_eq!(options.error_log, ErrorLog::Stderr);
        assert_eq!(options.globals, [b"daemon off;"]);
        assert_eq!(options.action, Action::Test { dump: true });
        assert!(options.quiet);
    }

    #[test]
    fn a_test_goes_before_a_signal() {
        assert_eq!(
            options(&["-s", "reload"]).action,
            Action::Signal(SignalName::Reload)
        );
        assert_eq!(
            options(&["-s", "reload", "-t"]).action,
            Action::Test { dump: false }
        );
    }

    #[test]
    fn what_is_shown_is_all_unless_a_test_is_asked_for() {
        assert_eq!(read(&["-v", "-c", "x"]).unwrap().options, None);
        assert!(read(&["-Vt"]).unwrap().options.is_some());
        let show = read(&["-hV"]).unwrap().show.unwrap();
        assert_eq!(
            show,
            Show {
                help: true,
                configure: true
            }
        );
    }

    #[test]
    fn the_version_says_what_we_are_and_what_we_follow() {
        let text = shown(
            Show {
                help: false,
                configure: true,
            },
            &["--with-x".to_owned()],
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            format!("tidegate version: tidegate/{}", env!("CARGO_PKG_VERSION"))
        );
        assert!(lines[1].contains("nginx version: nginx/1.31.5"));
        let configuration = "/etc/tidegate/tidegate.conf if it exists, else /etc/nginx/nginx.conf";
        assert_eq!(lines[2], "TLS SNI support enabled");
        assert_eq!(lines[3], format!("configuration: {configuration}"));
        assert!(lines[4].starts_with("configure arguments: --prefix=/usr/share/nginx "));
        assert!(lines[4].ends_with(" --with-x"));
        assert_eq!(lines.len(), 5);
    }
}
