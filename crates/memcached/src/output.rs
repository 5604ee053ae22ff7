//! Answers that wait to be sent, in order: bytes of our own, and values that are lent.

use bytes::Bytes;
use engine::Spares;
use store::Value;

/// From this length on answers are sent before more commands are looked at.
pub(crate) const OUTPUT_MAX: usize = 256 * 1024;

/// Answers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Whole pieces, before what is in `bytes`.
    pieces: Vec<Bytes>,
    bytes: Vec<u8>,
    before: usize,
    /// Length of the piece before: the next one is likely to be about as long.
    usual: usize,
}

/// Length of a piece from which on it has memory of its own kind: what the engine keeps is for
/// shorter ones.
const LONG: usize = 4096;

/// Memory that is taken at once for a piece that is likely to be that long, and kept for the next.
const LONG_MAX: usize = 64 * 1024;

/// Pieces of such memory that a thread keeps.
const LONG_PIECES_MAX: usize = 64;

thread_local! {
    static LONG_PIECES: Spares<Vec<u8>, LONG_PIECES_MAX> =
        const { Spares::new(|| LONG_PIECES.with(Spares::clear)) };
}

/// A long piece, whose memory is kept by the thread that drops it.
struct LongPiece(Vec<u8>);

impl AsRef<[u8]> for LongPiece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for LongPiece {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        // A thread that ends keeps nothing.
        let _ = LONG_PIECES.try_with(|spares| spares.keep(bytes));
    }
}

fn share(bytes: Vec<u8>) -> Bytes {
    if (LONG..=LONG_MAX).contains(&bytes.capacity()) {
        Bytes::from_owner(LongPiece(bytes))
    } else {
        engine::share_bytes(bytes)
    }
}

impl Output {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.before + self.bytes.len()
    }

    /// Whether they are to be sent before more is added.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= OUTPUT_MAX
    }

    #[inline]
    pub(crate) fn text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
    }

    /// Makes room for so many bytes at once, so that what is added piece by piece needs to ask only
    /// once whether there is some.
    #[inline]
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if self.bytes.capacity() - self.bytes.len() < bytes {
            self.grow(bytes);
        }
    }

    #[cold]
    fn grow(&mut self, bytes: usize) {
        let usual = self.usual.saturating_sub(self.bytes.len());
        if self.usual >= LONG && self.bytes.is_empty() {
            let spare = LONG_PIECES.with(Spares::take).unwrap_or_default();
            engine::recycle_bytes(std::mem::replace(&mut self.bytes, spare));
        }
        self.bytes.reserve(bytes + usual);
    }

    /// A line, with its end.
    pub(crate) fn line(&mut self, text: &str) {
        self.text(text.as_bytes());
        self.text(b"\r\n");
    }

    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    #[inline]
    pub(crate) fn number(&mut self, number: u64) {
        let digit = |place: u64| b'0' + (number / place % 10) as u8;
        match number {
            ..10 => self.byte(digit(1)),
            10..100 => self.text(&[digit(10), digit(1)]),
            100..1000 => self.text(&[digit(100), digit(10), digit(1)]),
            1000..10_000 => self.text(&[digit(1000), digit(100), digit(10), digit(1)]),
            _ => self.text(Digits::default().write(number)),
        }
    }

    pub(crate) fn base64(&mut self, bytes: &[u8]) {
        proto::base64::encode(bytes, &mut self.bytes);
    }

    /// A value: copied, or a share of where it lies.
    #[inline]
    pub(crate) fn value(&mut self, value: Value<'_>) {
        match value.lent() {
            None => self.text(value.bytes()),
            Some(lent) => {
                self.close_piece();
                self.before += lent.len();
                self.pieces.push(lent);
            }
        }
    }

    pub(crate) fn take(&mut self) -> std::vec::Drain<'_, Bytes> {
        self.close_piece();
        self.before = 0;
        self.pieces.drain(..)
    }

    fn close_piece(&mut self) {
        if !self.bytes.is_empty() {
            let fresh = engine::spare_bytes(0);
            let bytes = std::mem::replace(&mut self.bytes, fresh);
            self.usual = bytes.len().min(LONG_MAX / 2);
            self.before += bytes.len();
            self.pieces.push(share(bytes));
        }
    }
}

/// Room for the digits of a number.
#[derive(Debug, Default)]
pub(crate) struct Digits([u8; 20]);

impl Digits {
    /// The digits of a number.
    pub(crate) fn write(&mut self, mut number: u64) -> &[u8] {
        let mut begin = self.0.len();
        for digit in self.0.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            begin -= 1;
            if number == 0 {
                break;
            }
        }
        self.0.get(begin..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_long_pieces_is_kept_for_the_next() {
        let piece = |out: &mut Output| {
            for _ in 0..100 {
                out.reserve(100);
                out.text(&[b'v'; 100]);
            }
            out.take().collect::<Vec<_>>()
        };
        let mut out = Output::default();
        let first = piece(&mut out);
        assert_eq!(first.concat().len(), 10_000);
        let second = piece(&mut out);
        let place = second[0].as_ptr();
        drop(second);
        let third = piece(&mut out);
        assert_eq!(third[0].as_ptr(), place);
        assert_eq!(third.concat(), first.concat());
        assert_eq!(LONG_PIECES.with(Spares::count), 0);
        drop(third);
        assert_eq!(LONG_PIECES.with(Spares::count), 1);
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut digits = Digits::default();
            assert_eq!(digits.write(number), number.to_string().as_bytes());
        }
        for number in [0, 9, 10, 99, 100, 999, 1000, 9_999, 10_000, u64::MAX] {
            let mut out = Output::default();
            out.number(number);
            assert_eq!(out.bytes, number.to_string().as_bytes());
        }
    }
}
