//! Complete header blocks: the examples of the RFC, every error, and random lists of fields,
//! encoded and decoded.

use super::*;
use crate::header::KnownField;

/// A random number generator with a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 32) as usize % limit.max(1)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 56) as u8).collect()
    }
}

/// The bytes of hexadecimal digits, in the RFC's notation.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

type Pairs = Vec<(String, String)>;

/// The fields of a block.
pub(super) fn decode_all(decoder: &mut Decoder, block: &[u8]) -> Result<Pairs, Error> {
    let (mut fields, mut bytes) = (Vec::new(), b"before".to_vec());
    let sink = |field: Decoded, bytes: &[u8]| {
        assert_eq!(field.value.end as usize, bytes.len());
        fields.push(field);
    };
    assert_eq!(
        decoder.decode(block, usize::MAX, &mut bytes, sink)?,
        DecodedBlock::Whole
    );
    assert!(bytes.starts_with(b"before"));
    let text = |span: crate::Span| String::from_utf8_lossy(span.of(&bytes)).into_owned();
    let mut at = 6;
    for field in &fields {
        assert_eq!((field.name.start, field.name.end), (at, field.value.start));
        at = field.value.end;
        let (name, value) = (field.name.of(&bytes), field.value.of(&bytes));
        assert_eq!(field.which, NameKind::of(name));
        assert_eq!(
            field.faults,
            Faults::of_name(name).or(Faults::of_value(value))
        );
    }
    Ok(fields
        .iter()
        .map(|field| (text(field.name), text(field.value)))
        .collect())
}

fn pairs(fields: &[(&str, &str)]) -> Pairs {
    let owned = fields.iter();
    owned
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn first_error(block: &[u8]) -> Error {
    decode_all(&mut Decoder::new(), block).unwrap_err()
}

/// A block, the table size after it, and its fields.
type Example<'a> = (&'a str, usize, &'a [(&'a str, &'a str)]);

/// Decodes the blocks of one connection, and checks the table size after each.
fn assert_blocks(mut decoder: Decoder, blocks: &[Example<'_>]) {
    for (block, size, fields) in blocks {
        let block = hex(block);
        assert_eq!(decode_all(&mut decoder, &block), Ok(pairs(fields)));
        assert_eq!(decoder.table_size(), *size);
        // An incomplete block must not panic.
        for end in 0..block.len() {
            let _ = decode_all(&mut Decoder::new(), &block[..end]);
        }
    }
}

#[test]
fn appendix_c_2_single_fields() {
    let custom = [("custom-key", "custom-header")];
    let literal = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    assert_blocks(Decoder::new(), &[(literal, 55, &custom)]);
    let path = [(":path", "/sample/path")];
    assert_blocks(
        Decoder::new(),
        &[("040c 2f73 616d 706c 652f 7061 7468", 0, &path)],
    );
    let never = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    assert_blocks(Decoder::new(), &[(never, 0, &[("password", "secret")])]);
    assert_blocks(Decoder::new(), &[("82", 0, &[(":method", "GET")])]);
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

const REQUESTS_ENCODED: [&str; 3] = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
];

#[test]
fn appendix_c_3_and_4_requests() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    for blocks in [plain, REQUESTS_ENCODED] {
        let sizes = [57, 110, 164];
        let blocks = [0, 1, 2].map(|at| (blocks[at], sizes[at], REQUESTS[at]));
        assert_blocks(Decoder::new(), &blocks);
    }
}

#[test]
fn the_encoder_writes_the_requests_as_the_rfc_does() {
    let mut encoder = Encoder::new(4096);
    for (fields, expected) in REQUESTS.into_iter().zip(REQUESTS_ENCODED) {
        let mut block = Vec::new();
        let fields = fields.iter();
        encoder.encode(
            fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()).into()),
            &mut block,
        );
        assert_eq!(block, hex(expected));
    }
}

#[test]
fn appendix_c_5_and_6_responses() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let later = "Mon, 21 Oct 2013 20:13:22 GMT";
    let location = ("location", "https://www.example.com");
    let fields: [&[(&str, &str)]; 3] = [
        &[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", date),
            location,
        ],
        &[
            (":status", "307"),
            ("cache-control", "private"),
            ("date", date),
            location,
        ],
        &[
            (":status", "200"),
            ("cache-control", "private"),
            ("date", later),
            location,
            ("content-encoding", "gzip"),
            (
                "set-cookie",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ],
    ];
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a \
         3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 \
         677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 \
         553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let encoded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 \
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed \
         4ee5 b106 3d50 07",
    ];
    for blocks in [plain, encoded] {
        let sizes = [222, 222, 215];
        let blocks = [0, 1, 2].map(|at| (blocks[at], sizes[at], fields[at]));
        // The examples assume a table of 256 bytes, which the transport has set.
        let mut decoder = Decoder::new();
        assert_eq!(decode_all(&mut decoder, &hex("3fe1 01")), Ok(Vec::new()));
        assert_blocks(decoder, &blocks);
    }
}

#[test]
fn what_a_field_says_beside_its_bytes() {
    let mut block = hex("82 be"); // `:method: GET`, the last field of the table
    let mut decoder = Decoder::new();
    // `Cookie: a\n` is kept, with its faults.
    assert!(decode_all(&mut decoder, b"\x40\x06Cookie\x02a\n").is_ok());
    block.extend_from_slice(b"\x7e\x01b"); // its name with another value
    block.extend_from_slice(b"\x1f\x00\x02 c"); // a name of the static table, never indexed
    let mut told = Vec::new();
    let sink = |field: Decoded, _: &[u8]| {
        told.push((
            field.which,
            field.faults,
            field.static_index,
            field.never_indexed,
        ))
    };
    assert_eq!(
        decoder.decode(&block, 1000, &mut Vec::new(), sink),
        Ok(DecodedBlock::Whole)
    );
    let cookie = NameKind::Field(KnownField::Cookie);
    let both = Faults::NAME_CAPITAL.or(Faults::VALUE_INVALID);
    assert_eq!(
        told,
        [
            (NameKind::Method, Faults::NONE, Some(2), false),
            (cookie, both, None, false),
            (cookie, Faults::NAME_CAPITAL, None, false),
            (
                NameKind::Field(KnownField::Other),
                Faults::VALUE_SPACE,
                None,
                true
            ),
        ]
    );
}

#[test]
fn indexes_of_no_field() {
    assert_eq!(first_error(&[0x80]), Error::IndexZero);
    assert_eq!(first_error(&[0x80 | 62]), Error::IndexOutOfBound);
    for first in [0x7f, 0x0f, 0x1f] {
        assert_eq!(
            first_error(&[first, 0x80, 1, 1, b'x']),
            Error::IndexOutOfBound
        );
    }
    assert_eq!(
        first_error(&[0xff, 0x80, 0xff, 0xff, 0xff, 0x0f]),
        Error::IndexOutOfBound
    );
    assert_eq!(
        first_error(&[0xff, 0x80, 0xff, 0xff, 0xff, 0x1f]),
        Error::IntegerTooLong
    );
    let mut decoder = Decoder::new();
    assert!(decode_all(&mut decoder, b"\x40\x01a\x01b").is_ok());
    assert!(decode_all(&mut decoder, &[0x80 | 62]).is_ok());
    assert_eq!(
        decode_all(&mut decoder, &[0x80 | 63]),
        Err(Error::IndexOutOfBound)
    );
}

#[test]
fn texts_that_are_cut_or_badly_encoded() {
    assert_eq!(first_error(&[0x40]), Error::Truncated);
    assert_eq!(first_error(b"\x40\x02a"), Error::Truncated);
    assert_eq!(first_error(b"\x40\x01a"), Error::Truncated);
    assert_eq!(first_error(b"\x40\x01a\x02b"), Error::Truncated);
    assert_eq!(
        first_error(b"\x40\x01a\x7f\xff\xff\xff\xff\x0f"),
        Error::IntegerTooLong
    );
    assert_eq!(
        first_error(b"\x40\x84\xff\xff\xff\xff\x00"),
        Error::HuffmanEnd
    );
    assert_eq!(
        first_error(b"\x40\x01a\x82\xff\xff"),
        Error::HuffmanPaddingTooLong
    );
    assert_eq!(first_error(b"\x40\x01a\x81\x06"), Error::HuffmanPadding);
}

#[test]
fn the_size_of_the_table_changes_at_the_beginning_of_a_block_only() {
    assert_eq!(first_error(&[0x82, 0x20]), Error::SizeUpdateLate);
    assert_eq!(first_error(&[0x20, 0x20, 0x20]), Error::SizeUpdateRepeated);
    // 4096 and 4097.
    assert_eq!(
        decode_all(&mut Decoder::new(), &hex("20 3fe1 1f 82")),
        Ok(pairs(&[(":method", "GET")]))
    );
    assert_eq!(first_error(&hex("3fe2 1f")), Error::SizeUpdateTooLarge);
    let mut decoder = Decoder::new();
    decoder.set_size_max(8192);
    assert!(decode_all(&mut decoder, &hex("3fe1 3f")).is_ok());
    assert_eq!(
        decode_all(&mut decoder, &hex("3fe2 3f")),
        Err(Error::SizeUpdateTooLarge)
    );
}

#[test]
fn a_smaller_table_must_be_confirmed() {
    let smaller = |sizes: &[u32], block: &str| {
        let mut decoder = Decoder::new();
        for size in sizes {
            decoder.set_size_max(*size);
        }
        decode_all(&mut decoder, &hex(block)).map(|_| ())
    };
    assert_eq!(smaller(&[100], "82"), Err(Error::SizeUpdateMissing));
    assert_eq!(smaller(&[100], "3f45 82"), Ok(())); // 100
    assert_eq!(smaller(&[100], "20 82"), Ok(()));
    assert_eq!(smaller(&[100], "3f46 82"), Err(Error::SizeUpdateTooLarge)); // 101
    // A smaller size, then a larger one: the smallest size must be confirmed.
    assert_eq!(smaller(&[100, 4096], "82"), Err(Error::SizeUpdateMissing));
    assert_eq!(
        smaller(&[100, 4096], "3fe1 1f 82"),
        Err(Error::SizeUpdateMissing)
    );
    assert_eq!(smaller(&[100, 4096], "3f45 3fe1 1f 82"), Ok(()));
    assert_eq!(smaller(&[100, 4096], "3f45 82"), Ok(()));
    assert_eq!(
        smaller(&[100, 50, 200], "3f45 82"),
        Err(Error::SizeUpdateMissing)
    );
    assert_eq!(smaller(&[0], ""), Err(Error::SizeUpdateMissing));
    // The table already has that size.
    let mut decoder = Decoder::new();
    assert!(decode_all(&mut decoder, &hex("3f45")).is_ok());
    decoder.set_size_max(100);
    assert!(decode_all(&mut decoder, &hex("82")).is_ok());
}

#[test]
fn a_name_of_a_field_that_its_own_field_evicts() {
    let mut decoder = Decoder::new();
    assert!(decode_all(&mut decoder, &hex("3f21")).is_ok()); // 64
    assert!(decode_all(&mut decoder, b"\x40\x0aa-long-one\x05value").is_ok());
    let fields = decode_all(&mut decoder, b"\x7e\x05other\xbe");
    let expected = [("a-long-one", "other"), ("a-long-one", "other")];
    assert_eq!(fields, Ok(pairs(&expected)));
    assert_eq!(decoder.table_size(), 47);
    // Larger than the table: empties the table, and is decoded nevertheless.
    let fields = decode_all(&mut decoder, b"\x7e\x1aabcdefghijklmnopqrstuvwxyz");
    assert_eq!(
        fields,
        Ok(pairs(&[("a-long-one", "abcdefghijklmnopqrstuvwxyz")]))
    );
    assert_eq!((decoder.table_size(), decoder.memory()), (0, 0));
    assert_eq!(
        decode_all(&mut decoder, &[0xbe]),
        Err(Error::IndexOutOfBound)
    );
}

#[test]
fn more_fields_than_wanted_still_get_into_the_table() {
    let mut block = Vec::new();
    for index in 0..10 {
        block.extend_from_slice(format!("\x40\x01{index}\x03abc").as_bytes());
    }
    block.extend_from_slice(&[0x82, 0xbe]);
    let run = |limit: usize| {
        let (mut decoder, mut out, mut count) = (Decoder::new(), Vec::new(), 0);
        let outcome = decoder.decode(&block, limit, &mut out, |_, _| count += 1);
        assert_eq!(
            decode_all(&mut decoder, &[0xbe]),
            Ok(pairs(&[("9", "abc")]))
        );
        (outcome, count, out.len())
    };
    assert_eq!(
        run(11 * 36 + 42),
        (Ok(DecodedBlock::Whole), 12, 11 * 4 + 10)
    );
    assert_eq!(
        run(11 * 36 + 41),
        (Ok(DecodedBlock::TooLarge), 11, 10 * 4 + 10)
    );
    assert_eq!(run(3 * 36), (Ok(DecodedBlock::TooLarge), 3, 3 * 4));
    assert_eq!(run(3 * 36 - 1), (Ok(DecodedBlock::TooLarge), 2, 2 * 4));
    assert_eq!(run(0), (Ok(DecodedBlock::TooLarge), 0, 0));
}

#[test]
fn a_small_block_cannot_take_much_memory() {
    let mut decoder = Decoder::new();
    let mut block = b"\x40\x01a\x7f\xc0\x1e".to_vec(); // a value of 4031 bytes
    block.extend_from_slice(&[b'x'; 4031]);
    block.extend_from_slice(&[0xbe; 60_000]);
    let mut out = Vec::new();
    let outcome = decoder.decode(&block, 32_768, &mut out, |_, _| ());
    assert_eq!(outcome, Ok(DecodedBlock::TooLarge));
    assert_eq!(out.len(), 8 * 4032);
    assert!(out.capacity() < 2 * 32_768 && decoder.memory() <= 2 * 4096);
}

/// Fields like those of clients, and unusual ones.
fn random_fields(random: &mut Random) -> Vec<(Vec<u8>, Vec<u8>)> {
    const NAMES: [&str; 12] = [
        ":path",
        ":authority",
        "cookie",
        "accept",
        "accept-encoding",
        "user-agent",
        "x-own",
        "authorization",
        "te",
        "x-a-much-longer-name-of-a-field",
        "set-cookie",
        ":status",
    ];
    (0..random.below(20))
        .map(|_| {
            let name = match random.below(10) {
                0 => {
                    let length = random.below(30);
                    random.bytes(length).to_ascii_lowercase()
                }
                _ => NAMES[random.below(NAMES.len())].as_bytes().to_vec(),
            };
            let value = match random.below(10) {
                0 => {
                    let length = random.below(500);
                    random.bytes(length)
                }
                1..4 => format!("/a/path?of={}", random.below(1 << 20)).into_bytes(),
                _ => format!("value-{}", random.below(30)).into_bytes(),
            };
            (name, value)
        })
        .collect()
}

#[test]
fn what_the_encoder_writes_is_decoded() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let wanted = [4096, 0, 100, 1 << 16][random.below(4)];
        let (mut encoder, mut decoder) = (Encoder::new(wanted), Decoder::new());
        let mut lengths = (0, 0);
        for _ in 0..200 {
            while random.below(10) == 0 {
                let limit = [200, 5000, 1 << 17][random.below(3)];
                let size = random.below(limit) as u32;
                encoder.set_size_max(size);
                decoder.set_size_max(size);
            }
            let fields = random_fields(&mut random);
            let never: Vec<bool> = fields.iter().map(|_| random.below(9) == 0).collect();
            let mut block = Vec::new();
            let to_send = fields
                .iter()
                .zip(&never)
                .map(|((name, value), never)| Field {
                    name,
                    value,
                    never_indexed: *never,
                });
            encoder.encode(to_send, &mut block);
            let (mut out, mut told) = (Vec::new(), Vec::new());
            let outcome = decoder.decode(&block, usize::MAX, &mut out, |field, _| told.push(field));
            assert_eq!(outcome, Ok(DecodedBlock::Whole));
            assert_eq!(told.len(), fields.len());
            for ((decoded, (name, value)), never) in told.iter().zip(&fields).zip(never) {
                assert_eq!(
                    (decoded.name.of(&out), decoded.value.of(&out)),
                    (&name[..], &value[..])
                );
                assert_eq!(decoded.which, NameKind::of(name));
                assert_eq!(
                    decoded.faults,
                    Faults::of_name(name).or(Faults::of_value(value))
                );
                let secret = name == b"authorization" || (name == b"cookie" && value.len() < 20);
                assert_eq!(decoded.never_indexed, never || secret);
            }
            assert_eq!(encoder.table_size(), decoder.table_size());
            lengths = (lengths.0 + out.len(), lengths.1 + block.len());
        }
        assert!(lengths.1 < lengths.0, "{lengths:?}");
    }
}

#[test]
fn the_encoder_says_what_becomes_of_the_size() {
    let mut encoder = Encoder::new(4096);
    let mut written = |sizes: &[u32]| {
        for size in sizes {
            encoder.set_size_max(*size);
        }
        let mut block = Vec::new();
        encoder.encode([], &mut block);
        block
    };
    assert_eq!(written(&[]), b"");
    assert_eq!(written(&[4096, 1 << 20]), b"");
    assert_eq!(written(&[100]), hex("3f45"));
    assert_eq!(written(&[100]), b"");
    assert_eq!(written(&[1 << 20]), hex("3fe1 1f"));
    assert_eq!(written(&[0, 100, 4096]), hex("20 3fe1 1f"));
    let mut block = Vec::new();
    Encoder::new(0).encode([], &mut block);
    assert_eq!(block, hex("20"));
}

#[test]
fn a_block_that_is_cut_anywhere_or_changed_anywhere_is_no_panic() {
    let mut random = Random::new(99);
    for _ in 0..50 {
        let (mut encoder, mut block) = (Encoder::new(4096), Vec::new());
        for _ in 0..2 {
            let fields = random_fields(&mut random);
            let fields = fields
                .iter()
                .map(|(name, value)| (&name[..], &value[..]).into());
            encoder.encode(fields, &mut block);
        }
        let whole = decode_all(&mut Decoder::new(), &block).unwrap();
        for end in 0..block.len() {
            match decode_all(&mut Decoder::new(), &block[..end]) {
                Ok(fields) => assert!(whole.starts_with(&fields) && fields.len() < whole.len()),
                Err(error) => {
                    assert!(matches!(error, Error::Truncated | Error::IntegerTruncated));
                }
            }
            let mut changed = block.clone();
            changed[end] = random.below(256) as u8;
            let _ = decode_all(&mut Decoder::new(), &changed);
        }
    }
}

#[test]
fn each_error_has_words_of_its_own() {
    let all = [
        Error::Truncated,
        Error::IntegerTooLong,
        Error::IndexZero,
        Error::IndexOutOfBound,
        Error::SizeUpdateLate,
        Error::SizeUpdateRepeated,
        Error::SizeUpdateTooLarge,
        Error::SizeUpdateMissing,
        Error::HuffmanEnd,
        Error::HuffmanPaddingTooLong,
        Error::HuffmanPadding,
    ];
    let words: std::collections::BTreeSet<String> = all.iter().map(Error::to_string).collect();
    assert_eq!(words.len(), all.len());
}
