//! The ServerHello, the reply of a TLS server: RFC 5246 section 7.4.1.3.

/// The session ID in the `ServerHello` at the beginning of `message`, which includes the record
/// header.
pub fn session_number(message: &[u8]) -> Option<&[u8]> {
    // Record header: type, version and length. Message: type, length, version and random.
    const RECORD: usize = 5;
    const BEFORE: usize = 1 + 3 + 2 + 32;
    const HANDSHAKE: u8 = 22;
    const SERVER_HELLO: u8 = 2;
    if message.first() != Some(&HANDSHAKE) || message.get(RECORD) != Some(&SERVER_HELLO) {
        return None;
    }
    let (length, rest) = message.get(RECORD + BEFORE..)?.split_first()?;
    rest.get(..usize::from(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_three_bytes() {
        let mut message = vec![22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3];
        message.extend([9; 32]);
        message.extend([3, 1, 2, 3]);
        assert_eq!(session_number(&message), Some(&[1, 2, 3][..]));
        for length in 0..message.len() {
            assert_eq!(session_number(&message[..length]), None);
        }
        message[5] = 1;
        assert_eq!(session_number(&message), None);
    }
}
