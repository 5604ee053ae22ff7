//! `auth_basic`: access by name and password (RFC 7617), checked against a file of users.
//!
//! <https://nginx.org/en/docs/http/ngx_http_auth_basic_module.html>. The file is read again without
//! a reload when it changes ([`users`]). [`password`] checks passwords; slow checks run on the
//! thread pool, and a password that was right a moment ago is not hashed again (`recent`). The
//! access phase combines the verdict with other checks (`satisfy`).

mod des;
mod md5;
pub mod password;
mod recent;
pub mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, Template, TemplatePart, parse};
use framework::compile::{Compiler, Feature};
use framework::places::{FileAccess, constant_folder, name_of};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{AccessVerdict, Check, MaybeFuture, Module};
use http::request::credentials::{Challenge, Credentials};
use http::request::{Request, Text};
use http::variables::Compiling as _;

use self::password::{Check as PasswordCheck, Scheme};
use self::users::ReadError;

const HSLL: Contexts = Contexts::HTTP
    .or(Contexts::SERVER)
    .or(Contexts::LOCATION)
    .or(Contexts::LIMIT_EXCEPT);

/// `auth_basic string | off`
pub static AUTH_BASIC: Setting<Template> =
    Setting::new("auth_basic", &["string | off"], parse::template)
        .contexts(HSLL)
        .default("off")
        .manual(
            "Asks clients for a name and a password, with this text as the realm. The value may \
             hold variables; `off` asks for nothing. Both directives of the module must be there.",
        );

/// Declares the directive `auth_basic_user_file file`.
pub static AUTH_BASIC_USER_FILE: Setting<Template> =
    Setting::new("auth_basic_user_file", &["file"], parse::template)
        .contexts(HSLL)
        .manual(
            "The file of users, a line `name:password[:comment]` each, as `htpasswd` writes it; \
             `#` begins a comment. A relative path starts in the folder of the configuration. \
             Passwords are hashes: of crypt(3) (traditional, `$1$`, `$2a$` to `$2y$`, `$5$`, \
             `$6$`, `$y$`), of Apache (`$apr1$`), `{SHA}`, `{SSHA}`; or `{PLAIN}` and the \
             password itself. Changes of the file need no reload.",
        );

/// The user file of a scope, and the realm for the challenge.
#[derive(Debug)]
pub struct AuthBasic {
    realm: Text,
    /// `None` if no file is set: then nothing is checked.
    user_file: Option<Text>,
    /// The directory to which relative paths of the file are relative.
    prefix: PathBuf,
}

impl Feature for AuthBasic {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&AUTH_BASIC, &AUTH_BASIC_USER_FILE];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<AuthBasic, Fault> {
        let user_file = scope.written(&AUTH_BASIC_USER_FILE)?;
        if let Some(file) = &user_file {
            let lines = scope.lines_in_force(&AUTH_BASIC_USER_FILE.spec);
            let by = name_of(lines.first().map(|one| one.1), "auth_basic_user_file");
            let path = compiler.conf_prefix.join(constant_folder(&file.parts));
            // The whole folder is announced, since tools may replace the file by another.
            let is_file = file
                .parts
                .iter()
                .all(|part| matches!(part, TemplatePart::Literal(_)));
            let folder = path.parent().filter(|_| is_file).unwrap_or(&path);
            compiler.will_open(FileAccess::Read, folder, &by);
        }
        Ok(AuthBasic {
            realm: compiler.text(&scope.get(&AUTH_BASIC)?),
            user_file: user_file.map(|file| compiler.text(&file)),
            prefix: compiler.conf_prefix.clone(),
        })
    }
}

impl Module for AuthBasic {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Access, &["auth_basic"]).listed(1)];

    /// Passwords are never required.
    fn is_off(&self) -> bool {
        let never = self.realm.literal().is_some_and(|realm| realm == "off");
        never || self.user_file.is_none()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.access(self);
    }
}

impl Check for AuthBasic {
    /// Checks the name and password of the request.
    fn check<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
    ) -> MaybeFuture<'a, Result<AccessVerdict, Abort>> {
        let Some(user_file) = &self.user_file else {
            return MaybeFuture::Now(Ok(AccessVerdict::Declined));
        };
        let realm = self.realm.evaluate(request);
        if realm == "off" {
            return MaybeFuture::Now(Ok(AccessVerdict::Declined));
        }
        let Some(credentials) = Credentials::of(request) else {
            logs::error!(
                request,
                Info,
                "no user/password was provided for basic authentication"
            );
            return MaybeFuture::Now(Ok(challenge(request, &realm)));
        };
        let path = user_file.evaluate(request);
        // As in C, a zero byte ends the path.
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let path = self.prefix.join(Request::path_of(path));
        MaybeFuture::wait(async move { Ok(look_up(request, &path, &credentials, &realm).await) })
    }
}

/// Looks up the user in the file, and compares the passwords.
async fn look_up(
    request: &mut Request,
    path: &Path,
    credentials: &Credentials,
    realm: &[u8],
) -> AccessVerdict {
    let users = match users::read(&request.local, path).await {
        Ok(users) => users,
        Err(error) => return unreadable(request, path, &error),
    };
    let Some(stored) = users.password_of(credentials.user()) else {
        logs::error!(
            request,
            Error,
            "user \"{}\" was not found in \"{}\"",
            logs::Printable(credentials.user()),
            path.display()
        );
        return challenge(request, realm);
    };
    match verify(stored, credentials).await {
        PasswordCheck::Right => AccessVerdict::Granted,
        PasswordCheck::Wrong => {
            logs::error!(
                request,
                Error,
                "user \"{}\": password mismatch",
                logs::Printable(credentials.user())
            );
            challenge(request, realm)
        }
        PasswordCheck::Unknown => {
            logs::error!(
                request,
                Crit,
                "user \"{}\": the kind of the password's hash in \"{}\" is not known",
                logs::Printable(credentials.user()),
                path.display()
            );
            AccessVerdict::Refused(500)
        }
    }
}

/// Compares a password with a stored hash, on the thread pool if the scheme is slow.
async fn verify(stored: &Bytes, credentials: &Credentials) -> PasswordCheck {
    let scheme = Scheme::of(stored);
    if !scheme.is_expensive() {
        return scheme.verify(stored, credentials.password());
    }
    let proof = recent::proof(stored, credentials.password());
    if recent::is_known(&proof) {
        return PasswordCheck::Right;
    }
    let (stored, password) = (stored.clone(), credentials.password().to_vec());
    let check = engine::blocking_long(move || scheme.verify(&stored, &password)).await;
    if check == PasswordCheck::Right {
        recent::remember(proof);
    }
    check
}

/// The file cannot be read, so no client can be checked: 403 if there is no file, as in nginx, else
/// 500.
fn unreadable(request: &Request, path: &Path, error: &ReadError) -> AccessVerdict {
    let (call, cause) = match error {
        ReadError::Open(cause) => ("open", cause),
        ReadError::Read(cause) => ("pread", cause),
    };
    let (path, errno) = (path.display(), logs::Errno(cause));
    if matches!(error, ReadError::Open(_)) && cause.kind() == std::io::ErrorKind::NotFound {
        logs::error!(request, Error, "{call}() \"{path}\" failed {errno}");
        return AccessVerdict::Refused(403);
    }
    logs::error!(request, Crit, "{call}() \"{path}\" failed {errno}");
    AccessVerdict::Refused(500)
}

/// Refuses access with a challenge.
fn challenge(request: &mut Request, realm: &[u8]) -> AccessVerdict {
    let value = [b"Basic realm=\"", realm, b"\""].concat();
    let challenge = Challenge::of(request);
    request.response.add(challenge.field, value);
    AccessVerdict::Refused(challenge.status)
}
