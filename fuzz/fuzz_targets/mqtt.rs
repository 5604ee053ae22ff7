//! Whatever an MQTT client begins with: what is read lies within the packet, none is read from less
//! than all of it, and a packet that is written again with other values says those and is read
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::mqtt::{Connect, ConnectLength, ConnectValues, TooLong, connect_length};

fuzz_target!(
    |input: (u8, &[u8], Option<&[u8]>, Option<&[u8]>, Option<&[u8]>)| {
        let (version, rest, client_id, username, password) = input;
        // Random bytes seldom begin as a packet does.
        let begin: &[u8] = match version {
            0 => b"\0\x04MQTT\x04",
            1 => b"\0\x04MQTT\x05",
            2 => b"\0\x06MQIsdp\x03",
            _ => b"",
        };
        let packet = if version < 3 {
            let length = begin.len() + rest.len();
            let length = [(length & 0x7f) as u8 | 0x80, (length >> 7 & 0x7f) as u8];
            [b"\x10", &length[..], begin, rest].concat()
        } else {
            rest.to_vec()
        };
        // What is decided stays so, however much comes.
        let mut decided = ConnectLength::More;
        for end in 0..packet.len().min(6) {
            let now = connect_length(&packet[..end]);
            if decided != ConnectLength::More {
                assert_eq!(now, decided);
            }
            decided = now;
        }
        let Some(connect) = Connect::parse(&packet) else {
            return;
        };
        assert_eq!(connect_length(&packet), ConnectLength::Bytes(packet.len()));
        for end in 0..packet.len() {
            assert_eq!(Connect::parse(&packet[..end]), None);
        }
        let values = ConnectValues {
            client_id,
            username,
            password,
        };
        let mut written = Vec::new();
        match connect.append_with(&packet, &values, &mut written) {
            Err(TooLong) => {
                let all = [client_id, username, password];
                assert!(all.into_iter().flatten().any(|value| value.len() > 65_535));
            }
            Ok(()) => {
                let again = Connect::parse(&written).expect("a packet");
                let expected = client_id.unwrap_or(connect.client_id(&packet));
                assert_eq!(again.client_id(&written), expected);
                let expected = username.or(connect.username(&packet));
                assert_eq!(again.username(&written), expected);
                let mut twice = Vec::new();
                again
                    .append_with(&written, &ConnectValues::default(), &mut twice)
                    .expect("no longer");
                assert_eq!(twice, written);
            }
        }
    }
);
