//! From an address to an answer: the servers of the address are found, and asked until one answers.
//!
//! For modules whose peers are named by an address alone; `proxy_pass`, whose URL says more, has a way of its own.

use std::rc::Rc;

use bytes::Bytes;
use http::exchange::{Abort, Exchange};
use http::log;
use http::request::{Request, Step};

use super::connection::{Home, UpstreamConnection, terms};
use super::destination::Found;
use super::finish;
use super::locate::locate;
use super::settings::Passing;
use super::ssl::Secured;
use super::tries::{Asking, Conversation, Reach, ask};
use crate::upstream::Selection;

/// What is asked, and of whom.
pub(crate) struct Question<'a, C> {
    pub(crate) passing: &'a Passing,
    pub(crate) found: Found,
    /// TLS, where peers speak it.
    pub(crate) secured: Option<Secured>,
    /// Requests share connections, as streams of HTTP/2.
    pub(crate) is_shared: bool,
    /// Which scope asks: another has connections of its own, unless the group says otherwise.
    pub(crate) place: &'a Bytes,
    pub(crate) conversation: C,
}

/// An answer, and who gave it.
pub(crate) struct Answered<A> {
    pub(crate) selection: Selection,
    pub(crate) peer: UpstreamConnection,
    pub(crate) answer: A,
}

/// Asks. The inner error is how the request goes on where no peer answers.
pub(crate) async fn ask_upstream<C: Conversation>(
    request: &mut Request,
    exchange: &mut Exchange,
    question: Question<'_, C>,
) -> Result<Result<Answered<C::Answer>, Step>, Abort> {
    let Question { passing, found, .. } = question;
    let ignore_abort = passing.tries.ignore_client_abort;
    let group = match locate(request, exchange, &found.upstream, ignore_abort).await {
        Ok(Ok(group)) => group,
        Ok(Err(status)) => return Ok(Err(finish(request, status))),
        Err(_) => {
            log::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    let scheme = found.scheme.text.as_bytes();
    let mut reach = Reach {
        scheme,
        uri: Bytes::new(),
        socket: passing.socket.of_request(request),
        secured: question.secured,
        introduction: Bytes::new(),
        is_shared: question.is_shared,
        terms: Bytes::new(),
    };
    reach.terms = terms(question.place, scheme, &group, &reach);
    let mut selection = group.select(request, passing.tries.next_upstream_tries);
    let home = Home {
        local: Rc::clone(&request.local),
        group,
    };
    let asking = Asking {
        tries: passing.tries,
        reach: &reach,
        conversation: question.conversation,
        home: &home,
    };
    let asked = ask(request, exchange, &mut selection, &asking).await?;
    Ok(match asked {
        Ok((peer, answer)) => Ok(Answered {
            selection,
            peer,
            answer,
        }),
        Err(status) => Err(finish(request, status)),
    })
}
