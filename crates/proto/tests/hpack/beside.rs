//! Compares our HPACK with another implementation, `loona-hpack`. Each decodes what the other
//! encodes, with tables of changing sizes. Both must decode arbitrary blocks to the same fields, or
//! both must reject them.
//!
//! The fuzz target `hpack_beside` includes this file. `loona-hpack`'s encoder does not use Huffman
//! codes; its decoder decodes ours, and arbitrary bits as codes.

use loona_hpack::decoder::{DecoderError, IntegerDecodingError, StringDecodingError};
use loona_hpack::huffman::HuffmanDecoderError;
use tidegate_proto::h2::hpack::literal::{self, FieldName};
use tidegate_proto::h2::hpack::{Decoder, Encoder, Error, Field};

/// The maximum table sizes that either end may announce, in bytes.
const TABLE_SIZES: [u32; 6] = [4096, 0, 40, 100, 300, 20_000];

/// A field: name and value.
type Line = (Vec<u8>, Vec<u8>);

/// Draws choices from bytes; when they are exhausted, always draws the first choice.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }
}

/// Compares both implementations according to the choices.
///
/// # Panics
/// The two differ.
pub(crate) fn compare(choices: &[u8]) {
    let mut choices = Choices(choices);
    match choices.below(3) {
        0 => ours_is_read(&mut choices),
        1 => theirs_is_read(&mut choices),
        _ => any_block_is_read_alike(&mut choices),
    }
}

/// Fields, of which many occur repeatedly, and unusual ones.
fn lines(choices: &mut Choices<'_>) -> Vec<Line> {
    let names = [
        &b":method"[..],
        b":path",
        b":status",
        b"cookie",
        b"accept-encoding",
        b"x-own",
        b"authorization",
        b"content-length",
        b"date",
        b"zz",
    ];
    let values = [
        &b"GET"[..],
        b"/",
        b"200",
        b"gzip, deflate",
        b"",
        b"a value that is long enough for a code to be shorter, and for a table to be full soon",
        b"\x00\xff\x80",
    ];
    let count = choices.below(8);
    let line = |_| {
        let name = match choices.below(4) {
            0 => {
                let length = 1 + choices.below(20);
                choices.bytes(length).to_ascii_lowercase()
            }
            _ => choices.of(&names).to_vec(),
        };
        let value = match choices.below(3) {
            0 => {
                let length = choices.of(&[0, 1, 5, 130, 250]);
                choices.bytes(length)
            }
            _ => choices.of(&values).to_vec(),
        };
        (name, value)
    };
    (0..count).map(line).collect()
}

/// Decodes a block with our decoder.
fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Line>, Error> {
    let (mut lines, mut out) = (Vec::new(), Vec::new());
    decoder.decode(block, usize::MAX, &mut out, |field, bytes| {
        lines.push((
            field.name.of(bytes).to_vec(),
            field.value.of(bytes).to_vec(),
        ));
    })?;
    Ok(lines)
}

/// Both decode what our encoder writes, with a table of changing size, and what `literal` writes
/// without a table.
fn ours_is_read(choices: &mut Choices<'_>) {
    let mut encoder = Encoder::new(choices.of(&TABLE_SIZES));
    let mut theirs = loona_hpack::Decoder::new();
    theirs.set_max_allowed_table_size(4096);
    let (mut without_table, mut ours) = (loona_hpack::Decoder::new(), Decoder::new());
    while !choices.0.is_empty() {
        while choices.below(4) == 1 {
            let size = choices.of(&TABLE_SIZES);
            encoder.set_size_max(size);
            ours.set_size_max(size);
            theirs.set_max_allowed_table_size(size as usize);
        }
        let lines = lines(choices);
        let (mut block, mut literals) = (Vec::new(), Vec::new());
        let fields = lines.iter().map(|(name, value)| Field {
            name,
            value,
            never_indexed: choices.below(8) == 1,
        });
        encoder.encode(fields, &mut block);
        // Both accept an empty block; theirs requires a field after a size update.
        if lines.is_empty() {
            literal::status(200, &mut block);
            assert_eq!(decode(&mut ours, &block).map(|lines| lines.len()), Ok(1));
            assert_eq!(theirs.decode(&block).map(|lines| lines.len()), Ok(1));
            continue;
        }
        assert_eq!(theirs.decode(&block).as_ref(), Ok(&lines));
        assert_eq!(decode(&mut ours, &block).as_ref(), Ok(&lines));
        for (name, value) in &lines {
            match choices.below(2) {
                0 => literal::field(FieldName::of(name), value, &mut literals),
                _ => literal::never_indexed(FieldName::of(name), value, &mut literals),
            }
        }
        assert_eq!(without_table.decode(&literals), Ok(lines));
    }
}

/// Both decode what their encoder writes.
fn theirs_is_read(choices: &mut Choices<'_>) {
    let mut theirs = loona_hpack::Encoder::new();
    let (mut decoder, mut again) = (Decoder::new(), loona_hpack::Decoder::new());
    while !choices.0.is_empty() {
        let mut block = Vec::new();
        if choices.below(4) == 1 {
            let size = choices.of(&TABLE_SIZES);
            theirs.set_max_table_size(size as usize);
            decoder.set_size_max(size);
            put_number(size as usize, 5, 0x20, &mut block);
        }
        let mut lines = lines(choices);
        lines.push((b"last".to_vec(), b"one".to_vec()));
        let fields = lines.iter().map(|(name, value)| (&name[..], &value[..]));
        block.extend(theirs.encode(fields));
        assert_eq!(decode(&mut decoder, &block).as_ref(), Ok(&lines));
        assert_eq!(again.decode(&block), Ok(lines));
    }
}

/// Both decode blocks of valid and invalid parts.
fn any_block_is_read_alike(choices: &mut Choices<'_>) {
    let (mut ours, mut theirs) = (Decoder::new(), loona_hpack::Decoder::new());
    theirs.set_max_allowed_table_size(4096);
    while !choices.0.is_empty() {
        let mut block = Vec::new();
        for _ in 0..=choices.below(5) {
            put_part(choices, &mut block);
        }
        match (decode(&mut ours, &block), theirs.decode(&block)) {
            (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs, "{block:?}"),
            (Err(_), Err(_)) => return,
            // Theirs accepts size updates anywhere and in any number, but requires a field after
            // each.
            (Err(Error::SizeUpdateLate | Error::SizeUpdateRepeated), Ok(_))
            | (Ok(_), Err(DecoderError::SizeUpdateAtEnd)) => return,
            // Theirs accepts integers of up to 28 bits.
            (
                Ok(_),
                Err(DecoderError::IntegerDecodingError(IntegerDecodingError::TooManyOctets)),
            ) => return,
            // Ours accepts a whole byte of padding, as nginx does.
            (
                Ok(_),
                Err(DecoderError::StringDecodingError(StringDecodingError::HuffmanDecoderError(
                    HuffmanDecoderError::PaddingTooLarge,
                ))),
            ) => return,
            (ours, theirs) => panic!("{ours:?} beside {theirs:?} of {block:?}"),
        }
    }
}

/// Appends a part of a block: usually a valid encoding of a field.
fn put_part(choices: &mut Choices<'_>, out: &mut Vec<u8>) {
    let index = match choices.below(3) {
        0 => 0,
        1 => choices.below(62),
        _ => 62 + choices.below(12),
    };
    match choices.below(16) {
        0..=3 => put_number(index.max(1), 7, 0x80, out),
        kind @ 4..=12 => {
            let (prefix, flags) = [(6, 0x40), (4, 0), (4, 0x10)][kind % 3];
            put_number(index, prefix, flags, out);
            if index == 0 {
                put_text(choices, out);
            }
            put_text(choices, out);
        }
        13 => put_number(choices.of(&[0, 31, 100, 4096, 4097]), 5, 0x20, out),
        14 => {
            let length = choices.below(6);
            out.extend(choices.bytes(length));
        }
        _ => out.extend([choices.of(&[0xff, 0x7f, 0x3f, 0x1f, 0x0f]), 0x80, 0x80, 0]),
    }
}

/// Appends a string, as literal bytes or as Huffman codes of arbitrary bits.
fn put_text(choices: &mut Choices<'_>, out: &mut Vec<u8>) {
    let length = choices.of(&[1, 0, 2, 3, 10, 130]);
    let flags = choices.of(&[0, 0x80]);
    let mut bytes = choices.bytes(length);
    // Bits that may serve as padding: about half of them are a prefix of EOS.
    if let Some(last) = bytes.last_mut()
        && flags != 0
    {
        *last |= choices.of(&[0, 1, 3, 7, 15, 31, 63, 127]);
    }
    put_number(bytes.len(), 7, flags, out);
    out.extend(bytes);
}

/// Appends an integer (RFC 7541, section 5.1).
fn put_number(number: usize, prefix: u8, flags: u8, out: &mut Vec<u8>) {
    let mut bytes = loona_hpack::encoder::encode_integer(number, prefix);
    bytes[0] |= flags;
    out.extend(bytes);
}
