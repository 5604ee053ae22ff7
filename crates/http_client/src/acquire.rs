//! Acquires a stream of a shared connection, or the permit to open a connection.

use engine::select::{Either, either};
use upstream::connecting::note_shortage;
use upstream::{
    AttemptError, AttemptFailure, CONNECTING, Caller, Causes, RetryPolicy, unless_gone,
};

use crate::links::{self, Found, LinkOptions, Permit};
use crate::stream::StreamHandle;

/// The result of [`acquire`].
pub enum Acquired {
    /// A stream of an existing connection.
    Joined {
        /// The stream, on which nothing has been sent yet.
        stream: StreamHandle,
        /// The connection was idle, so the peer may have closed it meanwhile.
        was_idle: bool,
    },
    /// The permit to open a connection.
    Anew(Permit),
}

/// Finds a connection to a peer that has room for a request, or waits for one that is being opened,
/// unless the client leaves meanwhile.
///
/// # Errors
/// The client has left; or, already logged, no connection was available within the connect timeout,
/// or the thread has no place for another request on a shared connection.
pub async fn acquire<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    tries: &RetryPolicy,
    options: &LinkOptions<'_>,
) -> Result<Acquired, AttemptError<C::Gone>> {
    let finding = either(links::find(options), engine::sleep(tries.connect_timeout));
    let found = unless_gone(
        caller,
        client,
        tries.ignore_client_abort,
        CONNECTING,
        finding,
    );
    match found.await? {
        Either::First(Ok(Found::Joined(stream))) => Ok(Acquired::Joined {
            was_idle: stream.is_alone(),
            stream,
        }),
        Either::First(Ok(Found::Anew(permit))) => Ok(Acquired::Anew(permit)),
        Either::First(Err(shortage)) => {
            note_shortage(caller, shortage);
            Err(AttemptError::Refused(500))
        }
        Either::Second(()) => {
            let failure = AttemptFailure::new(Causes::TIMEOUT, 504, CONNECTING);
            Err(AttemptError::Failed(failure))
        }
    }
}
