//! The issuance of one certificate: from the order to the chain. RFC 8555 section 7.4.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, Error, NewOrder, OrderStatus, Problem,
};

use crate::account;
use crate::certificate::{self, Certificate, CertificateError, topmost_issuer};
use crate::challenge::{AnswerError, ChallengeResponses};
use crate::http::{Client, LastResponse, RequestError};
use crate::issuer::{Issuer, Profile};
use crate::order::{Identifier, Order};
use crate::schedule::Window;
use crate::wait::StopSignal;

/// Time limit for the server to validate, and again to sign.
const SERVER_TIME_MAX: Duration = Duration::from_secs(300);

/// The interval between two polls of an order: its first value, its growth factor and its maximum.
const POLL_INTERVAL_FIRST: Duration = Duration::from_millis(250);
const POLL_INTERVAL_GROWTH: f64 = 1.5;
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Why no certificate was issued.
#[derive(Debug)]
pub(crate) struct IssueError {
    pub(crate) cause: Cause,
    /// The `Retry-After` of the server's refusal.
    pub(crate) retry_after: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum Cause {
    /// The server could not be reached, refused the request, or sent an invalid response.
    Acme(Error),
    /// The server requires agreement to the terms of service at this URL.
    Terms(String, Box<Cause>),
    /// The server does not offer the required profile.
    Profile(String),
    /// The server does not offer the configured type of challenge for an identifier.
    NoChallenge(&'static str, String),
    /// We could not set up the answer to a challenge.
    Answer(AnswerError),
    /// The order became invalid, for instance because validation failed.
    Invalid(Option<Problem>),
    /// The order did not reach the awaited status within [`SERVER_TIME_MAX`].
    TooSlow,
    /// The issued certificate, or the key for it, cannot be used.
    Certificate(CertificateError),
    /// The issued certificate does not cover all the identifiers of the order.
    OtherNames,
    /// The issued certificate has already expired.
    Expired,
    /// The issuer's thread was stopped.
    Stopped,
}

impl fmt::Display for IssueError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.cause)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Acme(Error::Json(error)) => {
                write!(out, "the server sent what is no message of ACME ({error})")
            }
            Cause::Acme(error) => write!(out, "{error}"),
            Cause::Terms(url, cause) => write!(
                out,
                "{cause}; if you agree to the terms of service at {url}, write \
                 \"accept_terms_of_service\""
            ),
            Cause::Profile(name) => write!(out, "the server has no profile \"{name}\""),
            Cause::NoChallenge(kind, identifier) => {
                write!(
                    out,
                    "the server offers no {kind} challenge for \"{identifier}\""
                )
            }
            Cause::Answer(error) => write!(out, "{error}"),
            Cause::Invalid(Some(problem)) => write!(out, "validation failed: {problem}"),
            Cause::Invalid(None) => out.write_str("validation failed"),
            Cause::TooSlow => out.write_str("the server did not finish the order in time"),
            Cause::Certificate(error) => {
                write!(out, "the server sent an unusable certificate: {error}")
            }
            Cause::OtherNames => out.write_str("the server sent a certificate for other names"),
            Cause::Expired => out.write_str("the server sent a certificate that has expired"),
            Cause::Stopped => out.write_str("told to end"),
        }
    }
}

impl From<Cause> for IssueError {
    fn from(cause: Cause) -> IssueError {
        IssueError {
            cause,
            retry_after: None,
        }
    }
}

impl IssueError {
    /// Converts an error of `instant-acme`, with the `Retry-After` of this client's last response.
    pub(crate) fn of(client: &Client) -> impl FnOnce(Error) -> IssueError + '_ {
        |error| {
            let LastResponse { retry_after, .. } = client.last();
            IssueError {
                cause: Cause::Acme(error),
                retry_after,
            }
        }
    }

    /// Whether the server answered with a problem document.
    pub(crate) fn names_a_problem(&self) -> bool {
        matches!(self.cause, Cause::Acme(Error::Api(_)))
    }

    /// Whether the error is a problem of this ACME error type (RFC 8555 section 6.7).
    pub(crate) fn is(&self, kind: &str) -> bool {
        match &self.cause {
            Cause::Acme(error) => is(error, kind),
            _ => false,
        }
    }

    pub(crate) fn is_stop(&self) -> bool {
        matches!(self.cause, Cause::Stopped)
    }
}

/// An open account, used to order certificates.
pub(crate) struct Session<'a> {
    issuer: &'a Issuer,
    client: Client,
    account: Account,
    stop: &'a StopSignal,
}

impl<'a> Session<'a> {
    /// Opens the issuer's account.
    pub(crate) async fn open(
        issuer: &'a Issuer,
        stop: &'a StopSignal,
    ) -> Result<Session<'a>, IssueError> {
        let client = Client::new(Arc::clone(&issuer.tls));
        let account = account::open(issuer, &client).await?;
        Ok(Session {
            issuer,
            client,
            account,
            stop,
        })
    }

    /// The renewal window that the server suggests, and after how long to ask again; `None` if the
    /// server gives no renewal information.
    pub(crate) async fn suggested(&self, current: &Certificate) -> Option<(Window, Duration)> {
        let name = identify(current)?;
        // A server without renewal information and one whose response is an error are treated
        // alike: the renewal time is then computed from the lifetime.
        let (info, holds) = self.account.renewal_info(&name).await.ok()?;
        let time = |time: i64| {
            let since = Duration::from_secs(u64::try_from(time).unwrap_or(0));
            SystemTime::UNIX_EPOCH + since
        };
        let window = Window {
            start: time(info.suggested_window.start.unix_timestamp()),
            end: time(info.suggested_window.end.unix_timestamp()),
        };
        Some((window, holds))
    }

    /// Orders a certificate, which is to replace `current`.
    pub(crate) async fn issue(
        &mut self,
        order: &Order,
        current: Option<&Certificate>,
    ) -> Result<Certificate, IssueError> {
        let identifiers: Vec<_> = order.identifiers.iter().map(asked).collect();
        let mut request = NewOrder::new(&identifiers);
        if let Some(profile) = self.profile()? {
            request = request.profile(profile);
        }
        let mut ordered = self.place(request, current).await?;

        let issuer = self.issuer;
        let mut answers = ChallengeResponses::new(&*issuer.host);
        self.authorize(&mut ordered, &mut answers).await?;
        self.await_status(&mut ordered, &[OrderStatus::Ready, OrderStatus::Valid])
            .await?;
        drop(answers);

        let key = certificate::new_key(order.key).map_err(Cause::Certificate)?;
        let name = order.first_name().filter(|_| issuer.common_name);
        let signing = certificate::signing_request(&order.identifiers, name, &key);
        let signing = signing.map_err(Cause::Certificate)?;
        ordered
            .finalize_csr(&signing)
            .await
            .map_err(IssueError::of(&self.client))?;
        self.await_status(&mut ordered, &[OrderStatus::Valid])
            .await?;
        let chain = ordered.certificate().await;
        let chain = chain.map_err(IssueError::of(&self.client))?;
        let chain = self.preferred(chain.unwrap_or_default()).await;
        self.check(order, chain, key.serialize_pem())
    }

    /// The profile to request. `None` if none is configured, or if the server lacks an optional
    /// one.
    fn profile(&self) -> Result<Option<&'a str>, IssueError> {
        let Some(Profile { name, required }) = &self.issuer.profile else {
            return Ok(None);
        };
        if self.account.profiles().any(|offered| offered.name == name) {
            Ok(Some(name))
        } else if *required {
            Err(Cause::Profile(name.clone()).into())
        } else {
            Ok(None)
        }
    }

    /// Places the order. If the server does not know the account any more, registers a new one and
    /// tries once more.
    async fn place(
        &mut self,
        request: NewOrder<'_>,
        current: Option<&Certificate>,
    ) -> Result<instant_acme::Order, IssueError> {
        let again = |identifiers, profile| match profile {
            Some(profile) => NewOrder::new(identifiers).profile(profile),
            None => NewOrder::new(identifiers),
        };
        let (identifiers, profile) = (request.identifiers(), self.profile()?);
        if let Some(name) = current.and_then(identify) {
            let replacing = again(identifiers, profile).replaces(name);
            match self.account.new_order(&replacing).await {
                Ok(ordered) => return Ok(ordered),
                Err(error) if is_about_replacing(&error) => {}
                Err(error) => return Err(IssueError::of(&self.client)(error)),
            }
        }
        let plain = again(identifiers, profile);
        let ordered = self.account.new_order(&plain).await;
        match ordered.map_err(IssueError::of(&self.client)) {
            Err(failure) if failure.is("accountDoesNotExist") => {
                self.account = account::make(self.issuer, &self.client).await?;
                let ordered = self.account.new_order(&plain).await;
                ordered.map_err(IssueError::of(&self.client))
            }
            ordered => ordered,
        }
    }

    /// Answers the challenges of all identifiers for which there is no valid authorization yet.
    async fn authorize(
        &self,
        ordered: &mut instant_acme::Order,
        answers: &mut ChallengeResponses<'a>,
    ) -> Result<(), IssueError> {
        let issuer = self.issuer;
        let mut authorizations = ordered.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(IssueError::of(&self.client))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = authorization.identifier().identifier.clone();
            let missing = || {
                let identifier = name.authorized(false).to_string();
                IssueError::from(Cause::NoChallenge(issuer.challenge.name(), identifier))
            };
            let identifier = known(&name).ok_or_else(missing)?;
            let challenge = authorization.challenge(issuer.challenge.kind());
            let mut challenge = challenge.ok_or_else(missing)?;
            let answer = challenge.key_authorization();
            let answered = answers.add(
                &issuer.challenge,
                &identifier,
                &challenge.token,
                &answer,
                &issuer.provider,
            );
            answered.map_err(Cause::Answer)?;
            challenge
                .set_ready()
                .await
                .map_err(IssueError::of(&self.client))?;
        }
        Ok(())
    }

    /// Polls the order until it has one of these statuses.
    async fn await_status(
        &self,
        ordered: &mut instant_acme::Order,
        wanted: &[OrderStatus],
    ) -> Result<(), IssueError> {
        let (end, mut wait) = (Instant::now() + SERVER_TIME_MAX, POLL_INTERVAL_FIRST);
        loop {
            let state = ordered.refresh().await;
            let state = state.map_err(IssueError::of(&self.client))?;
            if wanted.contains(&state.status) {
                return Ok(());
            }
            if state.status == OrderStatus::Invalid {
                let problem = state.error.clone();
                let problem = match self.refusal(ordered).await {
                    Some(problem) => Some(problem),
                    None => problem,
                };
                return Err(Cause::Invalid(problem).into());
            }
            if Instant::now() > end {
                return Err(Cause::TooSlow.into());
            }
            if self.stop.sleep(wait) {
                return Err(Cause::Stopped.into());
            }
            wait = wait.mul_f64(POLL_INTERVAL_GROWTH).min(POLL_INTERVAL_MAX);
        }
    }

    /// The problem of the first failed challenge: what the validator found in place of our answer.
    async fn refusal(&self, ordered: &mut instant_acme::Order) -> Option<Problem> {
        let mut authorizations = ordered.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            let Ok(state) = authorization.refresh().await else {
                continue;
            };
            let mut challenges = state.challenges.iter();
            if let Some(problem) = challenges.find_map(|challenge| challenge.error.clone()) {
                return Some(problem);
            }
        }
        None
    }

    /// The default chain, or an alternate chain of the certificate whose topmost issuer is the
    /// preferred one.
    ///
    /// `instant-acme` fetches only the default chain. But its request for an order works for any
    /// URL: we call it with an alternate's URL, ignore the parse error, and take the body from
    /// [`Client::last`].
    async fn preferred(&self, chain: String) -> String {
        let Some(wanted) = self.issuer.preferred_chain.as_deref() else {
            return chain;
        };
        let suits = |chain: &str| topmost_issuer(chain).as_deref() == Some(wanted);
        if suits(&chain) {
            return chain;
        }
        for url in self.client.last().alternates {
            let _ = self.account.order(url).await;
            let other = String::from_utf8_lossy(&self.client.last().body).into_owned();
            if suits(&other) {
                return other;
            }
        }
        chain
    }

    /// Checks that the issued certificate is the ordered one.
    fn check(&self, order: &Order, chain: String, key: String) -> Result<Certificate, IssueError> {
        let made = Certificate::from_pem(chain, key, &self.issuer.provider);
        let made = made.map_err(Cause::Certificate)?;
        if !made.is_for(&order.identifiers) {
            return Err(Cause::OtherNames.into());
        }
        if made.validity.end < SystemTime::now() {
            return Err(Cause::Expired.into());
        }
        Ok(made)
    }
}

/// Whether an error is a problem of this ACME error type (RFC 8555 section 6.7).
pub(crate) fn is(error: &Error, kind: &str) -> bool {
    matches!(error, Error::Api(problem) if kind_of(problem) == Some(kind))
}

/// The ACME error type of a problem, without its URN prefix (RFC 8555 section 6.7).
fn kind_of(problem: &Problem) -> Option<&str> {
    let name = problem.r#type.as_deref()?;
    name.strip_prefix("urn:ietf:params:acme:error:")
}

/// Whether the order may succeed without the `replaces` field. That is so if the server has no
/// renewal information, does not know the replaced certificate, considers it already replaced (RFC
/// 9773 section 5) or another account's, or does not know the account any more. Other errors, such
/// as a rate limit, would recur without the field.
fn is_about_replacing(error: &Error) -> bool {
    match error {
        Error::Api(problem) => {
            let kind = kind_of(problem).unwrap_or_default();
            // Not Found and Conflict: servers disagree about the error type.
            matches!(problem.status, Some(404 | 409))
                || matches!(
                    kind,
                    "alreadyReplaced" | "malformed" | "unauthorized" | "accountDoesNotExist"
                )
        }
        Error::Unsupported(_) => true,
        // The response's `replaces` field differs from the request's, or is missing.
        Error::Other(error) => !error.is::<RequestError>(),
        _ => false,
    }
}

/// The certificate's identity in requests for renewal information.
fn identify(certificate: &Certificate) -> Option<CertificateIdentifier<'static>> {
    let (authority, serial) = certificate.renewal()?;
    Some(CertificateIdentifier::new(authority.into(), serial.into()).into_owned())
}

fn asked(identifier: &Identifier) -> instant_acme::Identifier {
    match identifier {
        Identifier::Dns(name) => instant_acme::Identifier::Dns(name.clone()),
        Identifier::Ip(address) => instant_acme::Identifier::Ip(*address),
    }
}

fn known(identifier: &instant_acme::Identifier) -> Option<Identifier> {
    match identifier {
        instant_acme::Identifier::Dns(name) => Some(Identifier::Dns(name.clone())),
        instant_acme::Identifier::Ip(address) => Some(Identifier::Ip(*address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, status: u16) -> Error {
        Error::Api(Problem {
            r#type: Some(format!("urn:ietf:params:acme:error:{kind}")),
            detail: None,
            status: Some(status),
            subproblems: Vec::new(),
        })
    }

    #[test]
    fn an_order_is_placed_without_what_it_replaces_only_where_that_may_help() {
        for error in [
            problem("alreadyReplaced", 409),
            problem("conflict", 409),
            problem("malformed", 400),
            problem("unauthorized", 403),
            problem("accountDoesNotExist", 400),
            Error::Unsupported("ACME renewal information (ARI)"),
            Error::Other("replaces field mismatch".into()),
        ] {
            assert!(is_about_replacing(&error), "{error}");
        }
        for error in [
            problem("rateLimited", 429),
            problem("serverInternal", 500),
            problem("rejectedIdentifier", 400),
            problem("badNonce", 400),
            Error::Other(Box::new(RequestError::TimedOut)),
            Error::Str("no order URL found"),
        ] {
            assert!(!is_about_replacing(&error), "{error}");
        }
    }
}
