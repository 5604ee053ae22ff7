//! Data received in order that the application has not read.

/// Limits of the pool of buffers: their number, and the capacity of each in bytes. A request takes
/// a buffer from the pool and returns it, so that idle connections hold none and requests allocate
/// none.
const SPARES_MAX: usize = 64;
const SPARE_CAPACITY_MAX: usize = 16 * 1024;

/// Memory for received data: the limit for the current segment, and the pool of buffers.
#[derive(Debug, Default)]
pub(crate) struct InboxMemory {
    /// How many bytes of the current segment may be stored.
    pub(crate) room: usize,
    spares: Vec<Vec<u8>>,
}

impl InboxMemory {
    fn take(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Returns the buffer of an empty inbox to the pool.
    fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spares.len() < SPARES_MAX && buffer.capacity() <= SPARE_CAPACITY_MAX {
            buffer.clear();
            self.spares.push(buffer);
        }
    }
}

/// The unread data of a connection. An empty inbox holds no memory.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// How many of the bytes the application has read.
    taken: usize,
    /// Whether the peer's FIN and all data before it have been received.
    pub(crate) ended: bool,
}

impl Inbox {
    /// Number of unread bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Memory of the inbox, in bytes.
    pub(crate) fn occupied(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends received data.
    pub(crate) fn push(&mut self, data: &[u8], memory: &mut InboxMemory) {
        if self.bytes.capacity() == 0 {
            self.bytes = memory.take();
        }
        // Unread bytes are moved to the front only if they are not more than the read ones, so that
        // the cost per byte is constant.
        let is_full = self.bytes.len() + data.len() > self.bytes.capacity();
        if is_full && self.taken >= self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Moves bytes to `into`. Returns their number.
    pub(crate) fn take(&mut self, into: &mut [u8], memory: &mut InboxMemory) -> usize {
        let waiting = self.bytes.get(self.taken..).unwrap_or_default();
        let count = into.len().min(waiting.len());
        if let (Some(to), Some(from)) = (into.get_mut(..count), waiting.get(..count)) {
            to.copy_from_slice(from);
        }
        self.taken += count;
        if self.taken == self.bytes.len() && self.bytes.capacity() > 0 {
            memory.give_back(std::mem::take(&mut self.bytes));
            self.taken = 0;
        }
        count
    }

    /// Drops the unread bytes.
    pub(crate) fn clear(&mut self) {
        self.bytes = Vec::new();
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_came_in_whatever_is_taken_at_a_time() {
        let mut memory = InboxMemory::default();
        let mut inbox = Inbox::default();
        let all: Vec<u8> = (0..9000_u32).map(|n| (n * 131 % 251) as u8).collect();
        let (mut pushed, mut taken, mut into) = (0, Vec::new(), [0; 700]);
        for step in [1, 1460, 3, 900, 1460, 1460, 30, 1460, 1460] {
            let part = &all[pushed..pushed + step];
            inbox.push(part, &mut memory);
            pushed += step;
            let count = inbox.take(&mut into[..(step * 7 % 700)], &mut memory);
            taken.extend_from_slice(&into[..count]);
            assert_eq!(inbox.len(), pushed - taken.len());
        }
        while inbox.len() > 0 {
            let count = inbox.take(&mut into, &mut memory);
            taken.extend_from_slice(&into[..count]);
        }
        assert_eq!(taken, all[..pushed]);
        assert_eq!(inbox.occupied(), 0);
    }

    #[test]
    fn a_buffer_goes_from_one_connection_to_the_next_and_large_ones_go() {
        let mut memory = InboxMemory::default();
        let (mut first, mut second) = (Inbox::default(), Inbox::default());
        first.push(b"GET", &mut memory);
        let place = first.bytes.as_ptr();
        assert_eq!(first.take(&mut [0; 3], &mut memory), 3);
        second.push(b"PUT", &mut memory);
        assert_eq!(second.bytes.as_ptr(), place);
        second.push(&[0; SPARE_CAPACITY_MAX], &mut memory);
        second.take(&mut [0; SPARE_CAPACITY_MAX + 3], &mut memory);
        assert_eq!(memory.spares.len(), 0);
    }
}
