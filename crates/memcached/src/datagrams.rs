//! Requests that come in datagrams, each answered in datagrams, without any I/O.

use bytes::Bytes;
use proto::memcached::datagram;

use crate::cache::{CommandTime, ThreadContext};
use crate::counts::Counter;
use crate::dialogue::{Dialogue, NextAction};
use crate::output::Output;

/// What is answered where a response would be longer than [`message_max`], or take too many turns.
const TOO_LONG: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// Room beside the value of the largest item in one message.
const BESIDE_VALUE: usize = 64 * 1024;

/// Turns that a request may take: a walk over all items would keep others waiting.
const TURNS_MAX: usize = 16;

/// Longest response, in bytes: it is held as a whole, since each datagram says how many there are.
fn message_max(shared: &ThreadContext) -> usize {
    shared.cache.settings.item_max + BESIDE_VALUE
}

/// Carries out what a datagram asks for. What is answered goes to `send`, a datagram each.
///
/// A datagram is a connection of its own: what it begins and does not end is forgotten.
pub(crate) fn answer(
    datagram: &[u8],
    shared: &ThreadContext,
    moment: CommandTime,
    mut send: impl FnMut(Bytes),
) {
    shared.counts.add(Counter::BytesRead, datagram.len() as u64);
    let Some((request, mut input)) = datagram::request(datagram) else {
        return;
    };
    let mut conversation = Dialogue::new();
    let mut out = Output::default();
    let mut message = Vec::new();
    let mut turns = 0;
    loop {
        let next = conversation.take(input, shared, moment, &mut out);
        input = &[];
        turns += 1;
        let is_endless = turns == TURNS_MAX && next == NextAction::Send;
        if message.len() + out.len() > message_max(shared) || is_endless {
            message.clear();
            message.extend_from_slice(TOO_LONG);
            break;
        }
        out.take()
            .for_each(|piece| message.extend_from_slice(&piece));
        if next != NextAction::Send {
            break;
        }
    }
    for datagram in datagram::response(request, &message) {
        shared
            .counts
            .add(Counter::BytesWritten, datagram.len() as u64);
        send(Bytes::from(datagram));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MOMENT, settings, shared_by};

    fn ask(shared: &ThreadContext, request: &[u8]) -> Vec<u8> {
        let datagram = [&[0, 9, 0, 0, 0, 1, 0, 0], request].concat();
        let mut message = Vec::new();
        answer(&datagram, shared, MOMENT, |datagram| {
            assert!(datagram.len() <= 1400 && datagram[..2] == [0, 9]);
            message.extend_from_slice(&datagram[8..]);
        });
        message
    }

    #[test]
    fn each_datagram_is_answered_for_itself() {
        let shared = shared_by(settings());
        assert_eq!(ask(&shared, b"set a 0 0 1\r\n1\r\n"), b"STORED\r\n");
        assert_eq!(ask(&shared, b"get a\r\n"), b"VALUE a 0 1\r\n1\r\nEND\r\n");
        // The packet of a Noop of the binary protocol.
        let mut noop = [0; 24];
        (noop[0], noop[1]) = (0x80, 0x0a);
        assert_eq!(ask(&shared, &noop)[..2], [0x81, 0x0a]);
        // What is not whole is forgotten.
        assert_eq!(ask(&shared, b"set b 0 0 10\r\n1"), b"");
        assert_eq!(ask(&shared, b"get b\r\n"), b"END\r\n");
        assert_eq!(ask(&shared, b"set b 0 0 1 noreply\r\n1\r\n"), b"");
        assert_eq!(ask(&shared, b"get b\r\n"), b"VALUE b 0 1\r\n1\r\nEND\r\n");
    }

    #[test]
    fn a_message_is_no_longer_than_an_item() {
        let shared = shared_by(settings());
        let value = vec![b'v'; 600_000];
        let store = [b"set a 0 0 600000\r\n", &value[..], b"\r\n"].concat();
        assert_eq!(ask(&shared, &store), b"STORED\r\n");
        assert_eq!(ask(&shared, b"get a\r\n").len(), 600_000 + 25);
        assert_eq!(ask(&shared, b"get a a\r\n"), TOO_LONG);
    }
}
