//! The frame header of memcached over UDP: the request ID, and the part of a message.
//!
//! The specification is <https://github.com/memcached/memcached/blob/master/doc/protocol.txt> (*UDP
//! protocol*): four numbers of two bytes, which are the request ID, the datagram's sequence number
//! in its message, the number of datagrams in the message, and 0.

/// Length of the frame header, in bytes.
pub const HEAD_LENGTH: usize = 8;

/// Maximum length of a response's datagram, with its frame header, as in memcached.
pub const LENGTH_MAX: usize = 1400;

/// The client's ID of a request; the response repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId([u8; 2]);

/// Splits a datagram into the request ID and the request.
///
/// `None` if the request is to be ignored, as in memcached: the datagram is not longer than a frame
/// header, or is one of several of its request.
#[must_use]
pub fn request(datagram: &[u8]) -> Option<(RequestId, &[u8])> {
    let ([first, second, _, _, total @ .., _, _], body) =
        datagram.split_first_chunk::<HEAD_LENGTH>()?;
    let is_alone = *total == [0, 1];
    (is_alone && !body.is_empty()).then_some((RequestId([*first, *second]), body))
}

/// Splits a response into datagrams, in order.
///
/// As in memcached, a response of more than 65,535 datagrams is truncated.
pub fn response(request: RequestId, message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = message.chunks(LENGTH_MAX - HEAD_LENGTH);
    let total = u16::try_from(parts.len()).unwrap_or(u16::MAX);
    (0..total).zip(parts).map(move |(place, part)| {
        let RequestId([first, second]) = request;
        let [place_high, place_low] = place.to_be_bytes();
        let [total_high, total_low] = total.to_be_bytes();
        let head = [
            first, second, place_high, place_low, total_high, total_low, 0, 0,
        ];
        [&head, part].concat()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_one_datagram_is_taken() {
        let head = [0x12, 0x34, 0, 0, 0, 1, 0, 0];
        let datagram = [&head[..], b"get a\r\n"].concat();
        let id = RequestId([0x12, 0x34]);
        assert_eq!(request(&datagram), Some((id, &b"get a\r\n"[..])));
        assert_eq!(request(&head), None);
        assert_eq!(request(&head[..7]), None);
        for total in [[0, 0], [0, 2], [1, 1]] {
            let mut several = datagram.clone();
            several[4..6].copy_from_slice(&total);
            assert_eq!(request(&several), None, "{total:?}");
        }
    }

    #[test]
    fn a_long_response_is_numbered() {
        let message: Vec<u8> = (0..3000_u32).map(|number| number as u8).collect();
        let datagrams: Vec<Vec<u8>> = response(RequestId([1, 2]), &message).collect();
        let lengths: Vec<usize> = datagrams.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1400, 1400, 3000 - 2 * 1392 + 8]);
        assert_eq!(datagrams[1][..8], [1, 2, 0, 1, 0, 3, 0, 0]);
        let joined: Vec<u8> = datagrams.iter().flat_map(|one| one[8..].to_vec()).collect();
        assert_eq!(joined, message);
    }
}
