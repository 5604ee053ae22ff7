//! memcached's clients, by lines, by packets and by datagrams: whatever they say is answered the
//! same in whatever pieces it comes, the cache stays within its limit, and a second client goes on
//! to be served.
#![no_main]

use libfuzzer_sys::{arbitrary, fuzz_target};
use memcached::offline::{OfflineClient, OfflineServer};
use memcached::{Protocol, Settings};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    is_binary: bool,
    long_keys: bool,
    pieces: &'a [u8],
    seconds: u16,
    said: &'a [u8],
    datagram: &'a [u8],
}

fn server(input: &Input<'_>) -> OfflineServer {
    OfflineServer::new(Settings {
        limit: 2 << 20,
        item_max: 64 << 10,
        key_max: if input.long_keys { 65_535 } else { 250 },
        protocol: Protocol::Auto,
        threads: 1,
        ..Settings::default()
    })
}

/// Statistics say how long the process has run, and how much memory it has had; dumps and `watch`
/// are refused where they have come together with other commands, as by memcached.
fn depends_on_more(said: &[u8]) -> bool {
    let has = |word: &[u8]| {
        let mut texts = said.windows(word.len());
        texts.any(|text| text.eq_ignore_ascii_case(word))
    };
    has(b"stats") || has(b"dump") || has(b"watch") || said.contains(&0x10)
}

fuzz_target!(|input: Input<'_>| {
    let mut said = input.said.to_vec();
    if input.is_binary && let Some(first) = said.first_mut() {
        *first = 0x80;
    }
    let whole = server(&input);
    let mut client = OfflineClient::default();
    let mut answers = client.send(&whole, 0, &said);
    answers.extend(client.send(&whole, u32::from(input.seconds), b"\r\n"));
    let in_pieces = server(&input);
    let mut other = OfflineClient::default();
    let mut told = Vec::new();
    let (mut rest, mut lengths) = (&said[..], input.pieces.iter().cycle());
    while !rest.is_empty() {
        let length = usize::from(*lengths.next().unwrap_or(&0)) + 1;
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        told.extend(other.send(&in_pieces, 0, piece));
        rest = behind;
    }
    told.extend(other.send(&in_pieces, u32::from(input.seconds), b"\r\n"));
    if !depends_on_more(&said) {
        assert_eq!(answers, told);
        assert_eq!(client.is_closed(), other.is_closed());
    }
    let datagrams = whole.datagram(1, input.datagram);
    assert!(datagrams.iter().all(|datagram| (8..=1400).contains(&datagram.len())));
    whole.sweep(u32::from(input.seconds));
    let (occupied, limit) = whole.occupied();
    // Records that move have a segment of their own meanwhile.
    assert!(occupied <= limit + (512 << 10), "{occupied} of {limit}");
    let mut third = OfflineClient::default();
    assert_eq!(third.send(&whole, 2, b"mn\r\n"), b"MN\r\n");
});
