//! Header compression: blocks decode to the same fields each time and within their bounds, a limit
//! takes nothing but the last fields away, and what was decoded comes back from the encoder, and
//! from fields that need no table.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::h2::hpack::literal::{self, FieldName};
use proto::h2::hpack::{
    Decoded, Decoder, Encoder, Error, FIELD_OVERHEAD, Faults, Field, NameKind, DecodedBlock,
};

/// What a connection's table holds at most.
const TABLE_SIZE: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some(([sizes, limit], rest)) = data.split_first_chunk() else {
        return;
    };
    let limit = usize::from(*limit) * 16;
    let (mut first, mut second, mut limited) = (Decoder::new(), Decoder::new(), Decoder::new());
    let mut encoder = Encoder::new(u32::from(*sizes) * 32);
    let mut peer = Decoder::new();
    for block in blocks(rest) {
        let decoded = decode(&mut first, block, usize::MAX);
        assert_eq!(decoded, decode(&mut second, block, usize::MAX));
        let few = decode(&mut limited, block, limit);
        let Ok((fields, outcome)) = decoded else {
            assert_eq!(few, decoded);
            return;
        };
        assert_eq!(outcome, DecodedBlock::Whole);
        check_limit(few, &fields, limit);
        if sizes & 1 != 0 {
            let size = block.len() as u32 * 16;
            encoder.set_size_max(size);
            peer.set_size_max(size);
        }
        check_encoder(&mut encoder, &mut peer, &fields);
        check_literals(&fields);
    }
});

/// A field as it was decoded.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    name: Vec<u8>,
    value: Vec<u8>,
    field: Decoded,
}

/// Blocks, each behind a byte with its length.
fn blocks(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first()?;
        let (block, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        rest = behind;
        Some(block)
    })
}

fn decode(
    decoder: &mut Decoder,
    block: &[u8],
    limit: usize,
) -> Result<(Vec<Seen>, DecodedBlock), Error> {
    let (mut seen, mut out) = (Vec::new(), Vec::new());
    let sink = |field: Decoded, bytes: &[u8]| {
        let (name, value) = (field.name.of(bytes), field.value.of(bytes));
        assert_eq!(field.name.end, field.value.start);
        assert_eq!(field.value.end as usize, bytes.len());
        assert!(bytes.len() <= limit);
        assert!(name.len() + value.len() <= 2 * TABLE_SIZE + 2 * block.len());
        assert_eq!(field.which, NameKind::of(name));
        assert_eq!(
            field.faults,
            Faults::of_name(name).or(Faults::of_value(value))
        );
        assert!(
            field
                .static_index
                .is_none_or(|index| (1..=61).contains(&index))
        );
        seen.push(Seen {
            name: name.to_vec(),
            value: value.to_vec(),
            field,
        });
    };
    let outcome = decoder.decode(block, limit, &mut out, sink)?;
    let told: usize = seen
        .iter()
        .map(|seen| seen.name.len() + seen.value.len())
        .sum();
    assert_eq!(out.len(), told);
    Ok((seen, outcome))
}

/// With a limit there come the fields before the first one that is too much.
fn check_limit(few: Result<(Vec<Seen>, DecodedBlock), Error>, fields: &[Seen], limit: usize) {
    let (told, outcome) = few.expect("it is decoded without a limit");
    let mut size = 0;
    let fits = |seen: &&Seen| {
        size += seen.name.len() + seen.value.len() + FIELD_OVERHEAD;
        size <= limit
    };
    let fitting = fields.iter().take_while(fits).count();
    assert_eq!(told, fields[..fitting]);
    assert_eq!(outcome == DecodedBlock::Whole, fitting == fields.len());
}

fn check_encoder(encoder: &mut Encoder, peer: &mut Decoder, fields: &[Seen]) {
    let mut block = Vec::new();
    let to_send = fields.iter().map(|seen| Field {
        name: &seen.name,
        value: &seen.value,
        never_indexed: seen.field.never_indexed,
    });
    encoder.encode(to_send, &mut block);
    let (again, _) = decode(peer, &block, usize::MAX).expect("we have encoded it");
    assert_eq!(again.len(), fields.len());
    for (again, seen) in again.iter().zip(fields) {
        assert_eq!((&again.name, &again.value), (&seen.name, &seen.value));
        assert_eq!(again.field.faults, seen.field.faults);
        assert!(again.field.never_indexed || !seen.field.never_indexed);
    }
}

fn check_literals(fields: &[Seen]) {
    let mut block = Vec::new();
    for seen in fields {
        if seen.field.never_indexed {
literal::never_indexed(FieldName::of(&seen.name), &seen.value, &mut block)
} else {
literal::field(FieldName::of(&seen.name), &seen.value, &mut block)
}
    }
    let (again, _) = decode(&mut Decoder::new(), &block, usize::MAX).expect("we have written it");
    assert_eq!(again.len(), fields.len());
    for (again, seen) in again.iter().zip(fields) {
        assert_eq!(again.name, seen.name.to_ascii_lowercase());
        assert_eq!(again.value, seen.value);
        assert_eq!(again.field.never_indexed, seen.field.never_indexed);
    }
}
