//! How a caller gets a stream, or the right to make a connection.

use engine::select::{Either, either};
use upstream::connecting::note_shortage;
use upstream::{
    AttemptError, AttemptFailure, CONNECTING, Caller, Causes, RetryPolicy, unless_gone,
};

use crate::links::{self, Found, LinkOptions, Permit};
use crate::stream::StreamHandle;

/// The connection by which a request reaches its upstream.
pub enum Acquired {
    /// A stream of a connection that there was.
    Joined {
        /// The stream, on which nothing has been sent.
        stream: StreamHandle,
        /// Nothing was under way on the connection, so that the peer may have closed it meanwhile.
        had_been_kept: bool,
    },
    /// The right to make a connection.
    Anew(Permit),
}

/// Finds a connection to a peer that has room for a request, or waits for one that is being made,
/// unless the client leaves meanwhile.
///
/// # Errors
/// There was none in the time that connecting may take, or the thread has no place for one more
/// that shares one, which has been logged; or the client has gone.
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
            had_been_kept: stream.is_alone(),
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
