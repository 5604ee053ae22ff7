//! The Huffman code of strings (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: among codes of one length, a larger byte has the larger code, and longer
//! codes follow shorter ones. Therefore the source contains only the lengths, from which the tables
//! are computed at compile time.
//!
//! The decoder looks up eleven bits at a time, which contain one or two of the common codes. It
//! takes four such steps before it checks how many bits are left.

use super::Error;
use crate::byte_table::ByteTable;

/// Limit of padding bits after the last code. The RFC allows seven; clients that always pad may
/// send a whole byte, which nginx accepts.
const PADDING_MAX: u32 = 8;

/// Length of the code of each byte, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Length of the longest codes, EOS among them, in bits.
const LENGTH_MAX: usize = 30;
/// Length of the shortest codes, in bits.
const LENGTH_MIN: u32 = 5;
/// Bits that one decoding step looks up.
const STEP: u32 = 11;
/// Decoding steps between two checks of how many bits are left.
const ROUND: u32 = 4;
/// Bytes that one round of steps writes, some of which may be unused.
const ROUND_BYTES: usize = 8;

/// The codes of one length.
#[derive(Clone, Copy)]
struct Level {
    first: u32,
    /// Number of codes; EOS, the last of the longest, is included.
    count: u32,
    /// Number of shorter codes.
    before: u32,
}

static LEVELS: [Level; LENGTH_MAX + 1] = levels();
/// The bytes in the order of their codes.
static BY_CODE: [u8; 256] = by_code();
static CODE_OF: ByteTable<u32> = ByteTable::new(codes());
static LENGTH_OF: ByteTable<u8> = ByteTable::new(LENGTHS);
/// The decoding step for each value of the next bits.
static STEPS: [HuffmanStep; 1 << STEP] = steps();

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn levels() -> [Level; LENGTH_MAX + 1] {
    const NONE: Level = Level {
        first: 0,
        count: 0,
        before: 0,
    };
    let mut levels = [NONE; LENGTH_MAX + 1];
    let mut byte = 0;
    while byte < 256 {
        levels[LENGTHS[byte] as usize].count += 1;
        byte += 1;
    }
    levels[LENGTH_MAX].count += 1; // EOS
    let mut length = 1;
    while length <= LENGTH_MAX {
        let shorter = levels[length - 1];
        levels[length].first = (shorter.first + shorter.count) << 1;
        levels[length].before = shorter.before + shorter.count;
        length += 1;
    }
    levels
}

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn codes() -> [u32; 256] {
    let levels = levels();
    let mut codes = [0; 256];
    let mut used = [0; LENGTH_MAX + 1];
    let mut byte = 0;
    while byte < 256 {
        let length = LENGTHS[byte] as usize;
        codes[byte] = levels[length].first + used[length];
        used[length] += 1;
        byte += 1;
    }
    codes
}

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn by_code() -> [u8; 256] {
    let (levels, codes) = (levels(), codes());
    let mut sorted = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let level = levels[LENGTHS[byte] as usize];
        sorted[(level.before + codes[byte] - level.first) as usize] = byte as u8;
        byte += 1;
    }
    sorted
}

/// One or two decoded bytes. The lowest byte is the number of bits consumed, so that it can be used
/// as a shift count directly; bits 8 to 15 are the number of bytes; the bytes are from bit 16 on.
/// Zero if the first code is longer than the lookup.
#[derive(Clone, Copy)]
struct HuffmanStep(u32);

impl HuffmanStep {
    #[inline]
    fn bytes(self) -> u64 {
        u64::from(self.0 >> 16)
    }

    #[inline]
    fn count(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    #[inline]
    fn bits(self) -> u32 {
        self.0 & 0x3f
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn steps() -> [HuffmanStep; 1 << STEP] {
    let (levels, by_code) = (levels(), by_code());
    let mut steps = [HuffmanStep(0); 1 << STEP];
    let mut index = 0;
    while index < steps.len() {
        if let Some((first, bits)) = short(index as u32, STEP, &levels, &by_code) {
            let rest = index as u32 & ((1 << (STEP - bits)) - 1);
            steps[index] = match short(rest, STEP - bits, &levels, &by_code) {
                Some((second, more)) => {
                    let bytes = first as u32 | (second as u32) << 8;
                    HuffmanStep(bytes << 16 | 2 << 8 | (bits + more))
                }
                None => HuffmanStep((first as u32) << 16 | 1 << 8 | bits),
            };
        }
        index += 1;
    }
    steps
}

/// Decodes the first code of the `held` bits in `window`: the byte, and the length of its code.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn short(
    window: u32,
    held: u32,
    levels: &[Level; LENGTH_MAX + 1],
    by_code: &[u8; 256],
) -> Option<(u8, u32)> {
    let mut length = LENGTH_MIN;
    while length <= held {
        let level = levels[length as usize];
        let place = (window >> (held - length)).wrapping_sub(level.first);
        if place < level.count {
            return Some((by_code[(level.before + place) as usize], length));
        }
        length += 1;
    }
    None
}

/// Maximum length of the decoded string, in bytes, for `length` encoded bytes.
pub(super) const fn decoded_length_max(length: usize) -> usize {
    length.saturating_mul(8) / LENGTH_MIN as usize
}

/// Decodes a string and appends it: at most [`decoded_length_max`] bytes.
///
/// # Errors
/// The string contains EOS, or its padding is not a prefix of EOS of at most eight bits.
pub(super) fn decode(source: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    out.resize(start + decoded_length_max(source.len()) + ROUND_BYTES, 0);
    let room = out.get_mut(start..).unwrap_or_default();
    let written = decode_into(source, room);
    out.truncate(start + written.unwrap_or(0));
    written.map(|_| ())
}

fn decode_into(source: &[u8], room: &mut [u8]) -> Result<usize, Error> {
    let mut bits = Bits {
        window: 0,
        held: 0,
        rest: source,
    };
    let mut written = 0;
    let mut put = |bytes: u64, count: u32| {
        let target = room.get_mut(written..).and_then(<[u8]>::first_chunk_mut);
        if let Some(target) = target {
            *target = bytes.to_le_bytes();
        }
        written += count as usize;
    };
    loop {
        bits.refill();
        if bits.held >= STEP * ROUND {
            let (mut bytes, mut count, mut step) = (0, 0, HuffmanStep(0));
            for _ in 0..ROUND {
                step = bits.step();
                bytes |= step.bytes() << (8 * count);
                count += step.count();
                bits.skip(step.bits());
            }
            put(bytes, count);
            if step.count() != 0 {
                continue;
            }
            bits.refill();
        }
        // The next code is longer than a step, or the input is nearly exhausted.
        let step = bits.step();
        if step.count() != 0 && step.bits() <= bits.held {
            put(step.bytes(), step.count());
            bits.skip(step.bits());
            continue;
        }
        match bits.single()? {
            Some((byte, length)) => {
                put(u64::from(byte), 1);
                bits.skip(length);
            }
            None => break,
        }
    }
    bits.check_padding()?;
    Ok(written)
}

/// The remaining bits of an encoded string.
struct Bits<'a> {
    /// The next bits, first bit highest. It may contain more than `held` bits.
    window: u64,
    /// Number of valid bits: at least 56 after a refill, or all that are left.
    held: u32,
    /// The bytes after those.
    rest: &'a [u8],
}

impl Bits<'_> {
    #[inline]
    fn refill(&mut self) {
        if self.rest.is_empty() {
            return;
        }
        let word = match self.rest.first_chunk() {
            Some(word) => u64::from_be_bytes(*word),
            None => {
                let places = (0..u64::BITS).step_by(8).rev();
                let bytes = self.rest.iter().zip(places);
                bytes.fold(0, |word, (byte, place)| word | u64::from(*byte) << place)
            }
        };
        self.window |= word >> self.held;
        let taken = ((u64::BITS - 1 - self.held) / 8).min(self.rest.len() as u32);
        self.held += 8 * taken;
        self.rest = self.rest.get(taken as usize..).unwrap_or_default();
    }

    /// The decoding step for the next bits, which may include bits that are not valid.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "there is a step for each window")]
    fn step(&self) -> HuffmanStep {
        STEPS[(self.window >> (u64::BITS - STEP)) as usize]
    }

    #[inline]
    fn skip(&mut self, bits: u32) {
        self.window <<= bits;
        self.held -= bits;
    }

    /// Decodes one code: the byte and the code's length. `None` if the remaining bits are no
    /// complete code.
    fn single(&self) -> Result<Option<(u8, u32)>, Error> {
        let window = (self.window >> 32) as u32;
        for (length, level) in (0..).zip(&LEVELS).skip(LENGTH_MIN as usize) {
            if length > self.held {
                return Ok(None);
            }
            let place = (window >> (32 - length)).wrapping_sub(level.first);
            if place < level.count {
                let byte = BY_CODE.get((level.before + place) as usize);
                return byte
                    .map(|byte| Some((*byte, length)))
                    .ok_or(Error::HuffmanEnd);
            }
        }
        Ok(None) // not reached: any 30 bits begin with a code
    }

    /// Checks that the remaining bits, which are no complete code, are valid padding.
    fn check_padding(&self) -> Result<(), Error> {
        if self.window | u64::MAX >> self.held != u64::MAX {
            Err(Error::HuffmanPadding)
        } else if self.held > PADDING_MAX {
            Err(Error::HuffmanPaddingTooLong)
        } else {
            Ok(())
        }
    }
}

/// Length of the encoded string, in bytes.
#[inline]
pub(super) fn encoded_length(text: impl Iterator<Item = u8>) -> usize {
    let lengths = text.map(|byte| LENGTH_OF.of(byte));
    lengths.map(usize::from).sum::<usize>().div_ceil(8)
}

/// Appends the encoded string.
#[inline]
pub(super) fn encode(text: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    // The pending bits, in the lowest places: fewer than 32 between two codes.
    let (mut window, mut held) = (0u64, 0);
    for byte in text {
        let length = u32::from(LENGTH_OF.of(byte));
        window = window << length | u64::from(CODE_OF.of(byte));
        held += length;
        if held >= 32 {
            held -= 32;
            out.extend_from_slice(&((window >> held) as u32).to_be_bytes());
        }
    }
    if held > 0 {
        let padded = (window << 32 | u64::from(u32::MAX)) >> held;
        let bytes = (padded as u32).to_be_bytes();
        let used = bytes.get(..held.div_ceil(8) as usize);
        out.extend_from_slice(used.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::Random;
    use super::*;

    /// The first and the last code of each length in appendix B, including EOS.
    #[rustfmt::skip]
    const OF_APPENDIX_B: &[(usize, u32, u8)] = &[
        (48, 0x0, 5), (116, 0x9, 5), (32, 0x14, 6), (117, 0x2d, 6), (58, 0x5c, 7), (122, 0x7b, 7),
        (38, 0xf8, 8), (90, 0xfd, 8), (33, 0x3f8, 10), (63, 0x3fc, 10), (39, 0x7fa, 11),
        (124, 0x7fc, 11), (35, 0xffa, 12), (62, 0xffb, 12), (0, 0x1ff8, 13), (126, 0x1ffd, 13),
        (94, 0x3ffc, 14), (125, 0x3ffd, 14), (60, 0x7ffc, 15), (123, 0x7ffe, 15),
        (92, 0x7fff0, 19), (208, 0x7fff2, 19), (128, 0xfffe6, 20), (226, 0xfffed, 20),
        (153, 0x1fffdc, 21), (230, 0x1fffe8, 21), (129, 0x3fffd2, 22), (233, 0x3fffeb, 22),
        (1, 0x7fffd8, 23), (239, 0x7ffff4, 23), (9, 0xffffea, 24), (237, 0xfffff5, 24),
        (199, 0x1ffffec, 25), (235, 0x1ffffef, 25), (192, 0x3ffffe0, 26), (255, 0x3ffffee, 26),
        (203, 0x7ffffde, 27), (254, 0x7fffff0, 27), (2, 0xfffffe2, 28), (249, 0xffffffe, 28),
        (10, 0x3ffffffc, 30), (22, 0x3ffffffe, 30),
    ];

    fn decoded(source: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = b"before".to_vec();
        let result = decode(source, &mut out);
        let text = out.split_off(6);
        assert_eq!(out, b"before");
        assert!(text.len() <= decoded_length_max(source.len()));
        result.map(|()| text)
    }

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text.iter().copied(), &mut out);
        assert_eq!(out.len(), encoded_length(text.iter().copied()));
        out
    }

    /// A reference decoder, bit by bit, from a map of codes.
    fn naive(codes: &HashMap<(u32, u8), u8>, source: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut code, mut length, mut text) = (0u32, 0, Vec::new());
        for bit in source
            .iter()
            .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1))
        {
            code = code << 1 | u32::from(bit);
            length += 1;
            if (code, length) == (0x3fff_ffff, 30) {
                return Err(Error::HuffmanEnd);
            }
            if let Some(byte) = codes.get(&(code, length)) {
                text.push(*byte);
                (code, length) = (0, 0);
            }
        }
        if code != (1 << length) - 1 {
            Err(Error::HuffmanPadding)
        } else if u32::from(length) > PADDING_MAX {
            Err(Error::HuffmanPaddingTooLong)
        } else {
            Ok(text)
        }
    }

    #[test]
    fn the_code_is_that_of_appendix_b() {
        for &(byte, code, length) in OF_APPENDIX_B {
            assert_eq!((codes()[byte], LENGTHS[byte]), (code, length), "{byte}");
        }
        // No code is missing: together with EOS they use up the code space.
        let shares = LENGTHS.iter().map(|length| 1u64 << (30 - length));
        assert_eq!(shares.sum::<u64>() + 1, 1 << 30);
    }

    #[test]
    fn every_byte_alone_and_beside_others() {
        for byte in 0..=u8::MAX {
            let lengths = (1..20).map(|length| vec![byte; length]);
            let beside = (0..=u8::MAX).map(|other| vec![other, byte, b'e', byte, other]);
            for text in lengths.chain(beside) {
                assert_eq!(decoded(&encoded(&text)), Ok(text));
            }
        }
        assert_eq!(decoded(b""), Ok(Vec::new()));
        assert_eq!(encoded(b""), b"");
    }

    #[test]
    fn random_texts_and_random_bytes() {
        let mut random = Random::new(7);
        let codes = (0..=255).map(|byte: u8| {
            let at = usize::from(byte);
            ((codes()[at], LENGTHS[at]), byte)
        });
        let codes: HashMap<_, _> = codes.collect();
        for round in 0..5_000 {
            let length = random.below(100);
            let text: Vec<u8> = match round % 3 {
                0 => random.bytes(length),
                1 => (0..length).map(|_| b'0' + random.below(75) as u8).collect(),
                _ => (0..length).map(|_| b"aeiost01"[random.below(8)]).collect(),
            };
            assert_eq!(decoded(&encoded(&text)), Ok(text.clone()));
            assert_eq!(naive(&codes, &encoded(&text)), Ok(text.clone()));
            if round % 8 == 0 {
                assert_eq!(decoded(&text), naive(&codes, &text), "{text:?}");
                let cut = encoded(&text);
                let cut = &cut[..cut.len() / 2];
                assert_eq!(decoded(cut), naive(&codes, cut), "{cut:?}");
            }
        }
    }

    #[test]
    fn what_is_no_code() {
        // EOS alone, and after a text that is decoded in rounds.
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(Error::HuffmanEnd));
        let mut long = encoded(&[b'0'; 64]);
        long.extend_from_slice(&[0xff; 4]);
        assert_eq!(decoded(&long), Err(Error::HuffmanEnd));
        // Padding of 0 to 7 bits after '0' (five bits) and '&' (eight), and longer padding.
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        assert_eq!(decoded(&[0xf8]), Ok(b"&".to_vec()));
        assert_eq!(decoded(&[0xf8, 0xff]), Ok(b"&".to_vec()));
        assert_eq!(
            decoded(&[0b0000_0111, 0xff]),
            Err(Error::HuffmanPaddingTooLong)
        );
        assert_eq!(
            decoded(&[0xf8, 0xff, 0xff]),
            Err(Error::HuffmanPaddingTooLong)
        );
        assert_eq!(
            decoded(&[0xff, 0xff, 0xff]),
            Err(Error::HuffmanPaddingTooLong)
        );
        // Three bits that are not all ones, and an incomplete code.
        assert_eq!(decoded(&[0b0000_0110]), Err(Error::HuffmanPadding));
        assert_eq!(decoded(&[0b0000_0011]), Err(Error::HuffmanPadding));
        assert_eq!(decoded(&[0xff, 0xff, 0xfe]), Err(Error::HuffmanPadding));
    }

    #[test]
    fn the_longest_text_that_so_many_bytes_can_say() {
        for length in 0..200 {
            let text = decoded(&vec![0; length]);
            let whole = length.is_multiple_of(5);
            assert_eq!(text.is_ok(), whole);
            if whole {
                assert_eq!(text.map(|text| text.len()), Ok(decoded_length_max(length)));
            }
        }
    }
}
