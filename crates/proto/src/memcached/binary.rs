//! Parses the packets of memcached's binary protocol: the header of a request, its extras, and the
//! header of a response.
//!
//! A packet is a header of 24 bytes, then extras, a key and a value, whose lengths are in the
//! header. All numbers are big-endian. The specification is
//! <https://github.com/memcached/memcached/blob/master/doc/protocol-binary.txt>; the reference for
//! accepted packets and error messages is memcached 1.6.45.

/// Length of the header of requests and responses, in bytes.
pub const HEAD_LENGTH: usize = 24;

/// First byte of a request. A connection that begins with it uses this protocol.
pub const REQUEST_MAGIC: u8 = 0x80;

/// First byte of a response.
const RESPONSE_MAGIC: u8 = 0x81;

/// Maximum length of a body, in bytes: memcached's upper limit of an item's size.
pub const BODY_LENGTH_MAX: u32 = 1024 * 1024 * 1024;

/// An expiry of `incr` and `decr` that prevents the creation of a missing item.
const CREATES_NOTHING: u32 = u32::MAX;

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The opcode as received: a response repeats it.
    pub opcode: u8,
    /// Length of the key, in bytes.
    pub key: usize,
    /// Length of the extras, in bytes.
    pub extras: usize,
    /// Length of extras, key and value together, in bytes.
    pub body: usize,
    /// The client's opaque value, which a response repeats.
    pub opaque: [u8; 4],
    /// The CAS that the item must have, or 0.
    pub cas: u64,
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// The first byte is not the magic: the connection is closed without a response.
    Magic,
    /// Extras and key together are longer than the body.
    Lengths(Head),
    /// The body is longer than [`BODY_LENGTH_MAX`].
    TooLong(Head),
}

impl Head {
    /// Parses a header.
    ///
    /// # Errors
    ///
    /// [`BadHead`]: the rest of the connection cannot be parsed after such a header.
    pub fn parse(bytes: &[u8; HEAD_LENGTH]) -> Result<Head, BadHead> {
        let [magic, opcode, key_high, key_low, extras, _, _, _, rest @ ..] = *bytes;
        let [body_0, body_1, body_2, body_3, rest @ ..] = rest;
        let [opaque_0, opaque_1, opaque_2, opaque_3, cas @ ..] = rest;
        if magic != REQUEST_MAGIC {
            return Err(BadHead::Magic);
        }
        let body = u32::from_be_bytes([body_0, body_1, body_2, body_3]);
        let head = Head {
            opcode,
            key: usize::from(u16::from_be_bytes([key_high, key_low])),
            extras: usize::from(extras),
            body: body as usize,
            opaque: [opaque_0, opaque_1, opaque_2, opaque_3],
            cas: u64::from_be_bytes(cas),
        };
        if head.key + head.extras > head.body {
            return Err(BadHead::Lengths(head));
        }
        if body > BODY_LENGTH_MAX {
            return Err(BadHead::TooLong(head));
        }
        Ok(head)
    }

    /// Length of the value, after extras and key, in bytes.
    #[must_use]
    pub fn value(&self) -> usize {
        self.body - self.key - self.extras
    }

    /// Whether the command is allowed before authentication.
    #[must_use]
    pub fn may_come_first(&self) -> bool {
        matches!(self.opcode, 0x0b | 0x20..=0x22)
    }

    /// The command of the request. `None` if the opcode is unknown.
    ///
    /// # Errors
    ///
    /// [`WrongParts`] if the extras have the wrong length, if a required key is missing, or if
    /// there is a key or a value that the command does not take.
    pub fn command(&self, extras: &[u8]) -> Result<Option<Request>, WrongParts> {
        use Shape::{Empty, Keyed, KeyedWithValue, MayHaveKey};
        let (command, is_quiet, shape) = match self.opcode {
            0x00 | 0x09 | 0x0c | 0x0d => {
                let with_key = matches!(self.opcode, 0x0c | 0x0d);
                let is_quiet = matches!(self.opcode, 0x09 | 0x0d);
                (Command::Get { with_key }, is_quiet, Keyed)
            }
            0x01 | 0x02 | 0x03 | 0x11 | 0x12 | 0x13 => {
                let (flags, expires) = pair(extras)?;
                let condition = match self.opcode {
                    0x01 | 0x11 => Condition::None,
                    0x02 | 0x12 => Condition::Absent,
                    _ => Condition::Present,
                };
                let set = Command::Set {
                    condition,
                    flags,
                    expires,
                };
                (set, self.opcode >= 0x11, KeyedWithValue(8))
            }
            0x04 | 0x14 => (Command::Delete, self.opcode == 0x14, Keyed),
            0x05 | 0x06 | 0x15 | 0x16 => {
                let count = Count::read(extras, matches!(self.opcode, 0x06 | 0x16))?;
                (
                    Command::Count(count),
                    self.opcode >= 0x15,
                    Shape::KeyedExtras(20),
                )
            }
            0x07 | 0x17 => (Command::Quit, self.opcode == 0x17, Empty),
            0x08 | 0x18 => {
                let delay = match extras {
                    [] => 0,
                    _ => one(extras)?,
                };
                (
                    Command::Flush { delay },
                    self.opcode == 0x18,
                    Shape::MayHaveExtras,
                )
            }
            0x0a => (Command::Noop, false, Empty),
            0x0b => (Command::Version, false, Empty),
            0x0e | 0x0f | 0x19 | 0x1a => {
                let is_prepend = matches!(self.opcode, 0x0f | 0x1a);
                let is_quiet = self.opcode >= 0x19;
                (Command::Join { is_prepend }, is_quiet, KeyedWithValue(0))
            }
            0x10 => (Command::Stats, false, MayHaveKey),
            0x1c => {
                let expires = one(extras)?;
                (Command::Touch { expires }, false, Shape::KeyedExtras(4))
            }
            0x1d | 0x1e | 0x23 | 0x24 => {
                let expires = one(extras)?;
                let with_key = self.opcode >= 0x23;
                let is_quiet = matches!(self.opcode, 0x1e | 0x24);
                let touch = Command::GetAndTouch { expires, with_key };
                (touch, is_quiet, Shape::KeyedExtras(4))
            }
            0x20 => (Command::ListMechanisms, false, Empty),
            0x21 | 0x22 => {
                let is_step = self.opcode == 0x22;
                (Command::Authenticate { is_step }, false, KeyedWithValue(0))
            }
            _ => return Ok(None),
        };
        let value = self.value();
        let is_right = match shape {
            Empty => self.body == 0,
            MayHaveKey => self.extras == 0 && value == 0,
            Keyed => self.extras == 0 && self.key > 0 && value == 0,
            Shape::KeyedExtras(extras) => self.extras == extras && self.key > 0 && value == 0,
            KeyedWithValue(extras) => self.extras == extras && self.key > 0,
            Shape::MayHaveExtras => self.key == 0 && value == 0,
        };
        if is_right {
            Ok(Some(Request { command, is_quiet }))
        } else {
            Err(WrongParts)
        }
    }

    /// The header of a response to this request.
    ///
    /// `lengths` are those of the response's extras, key and value, which follow the header in this
    /// order.
    #[must_use]
    pub fn response(&self, status: Status, lengths: Lengths, cas: u64) -> [u8; HEAD_LENGTH] {
        let Lengths { extras, key, value } = lengths;
        let body = usize::from(extras) + usize::from(key) + value;
        let body = u32::try_from(body).unwrap_or(u32::MAX);
        let mut bytes = [0; HEAD_LENGTH];
        let parts: [&[u8]; 7] = [
            &[RESPONSE_MAGIC, self.opcode],
            &key.to_be_bytes(),
            &[extras, RAW_BYTES],
            &(status as u16).to_be_bytes(),
            &body.to_be_bytes(),
            &self.opaque,
            &cas.to_be_bytes(),
        ];
        let places = bytes.iter_mut().zip(parts.into_iter().flatten());
        places.for_each(|(place, byte)| *place = *byte);
        bytes
    }
}

/// The data type of every response: raw bytes.
const RAW_BYTES: u8 = 0;

/// Lengths of a response's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Length of the extras, in bytes.
    pub extras: u8,
    /// Length of the key, in bytes.
    pub key: u16,
    /// Length of the value, in bytes.
    pub value: usize,
}

/// A command with its parsed extras, and whether it is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Whether the command is quiet: a success (for a retrieval, a miss) has no response.
    pub is_quiet: bool,
}

/// A command with its parsed extras. The key and value follow in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Get, GetK and their quiet forms.
    Get {
        /// Whether the response repeats the key.
        with_key: bool,
    },
    /// Stores a value: Set, Add or Replace.
    Set {
        /// The condition on which the value is stored.
        condition: Condition,
        /// The client flags.
        flags: u32,
        /// The expiry; see [`super::command::Store::expires`], but unsigned.
        expires: u32,
    },
    /// Append or Prepend: adds bytes to an existing value.
    Join {
        /// Whether to prepend.
        is_prepend: bool,
    },
    /// Delete.
    Delete,
    /// Increment or Decrement.
    Count(Count),
    /// Touch: sets the expiry.
    Touch {
        /// The new expiry.
        expires: u32,
    },
    /// GAT, GATK and their quiet forms.
    GetAndTouch {
        /// The new expiry.
        expires: u32,
        /// Whether the response repeats the key.
        with_key: bool,
    },
    /// Flush: removes all values.
    Flush {
        /// When to remove them; see [`super::command::Store::expires`]. 0 is now.
        delay: u32,
    },
    /// No-op: its response tells the client that all earlier quiet commands have been executed.
    Noop,
    /// Version.
    Version,
    /// Stat: the key selects the statistics.
    Stats,
    /// Quit: closes the connection.
    Quit,
    /// SASL: lists the mechanisms.
    ListMechanisms,
    /// SASL: the key is the mechanism, the value the client's authentication data.
    Authenticate {
        /// Whether this is a further step of a mechanism with several steps.
        is_step: bool,
    },
}

/// The condition for storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Store in any case.
    None,
    /// Store only if the key does not exist.
    Absent,
    /// Store only if the key exists.
    Present,
}

/// The parameters of Increment or Decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Whether to decrement.
    pub is_decrement: bool,
    /// The number that is added or subtracted.
    pub delta: u64,
    /// The value and expiry of a missing item that is created, if it is to be created.
    pub initial: Option<(u64, u32)>,
}

impl Count {
    fn read(extras: &[u8], is_decrement: bool) -> Result<Count, WrongParts> {
        let (delta, rest) = extras.split_first_chunk().ok_or(WrongParts)?;
        let (initial, rest) = rest.split_first_chunk().ok_or(WrongParts)?;
        let expires = one(rest)?;
        let initial = u64::from_be_bytes(*initial);
        Ok(Count {
            is_decrement,
            delta: u64::from_be_bytes(*delta),
            initial: (expires != CREATES_NOTHING).then_some((initial, expires)),
        })
    }
}

/// A request's extras, key or value do not fit its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongParts;

/// The parts that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Empty,
    MayHaveExtras,
    MayHaveKey,
    Keyed,
    /// With this length of the extras, in bytes.
    KeyedExtras(usize),
    /// With this length of the extras, in bytes.
    KeyedWithValue(usize),
}

/// Parses extras that are one number.
fn one(extras: &[u8]) -> Result<u32, WrongParts> {
    let number = <[u8; 4]>::try_from(extras).map_err(|_| WrongParts)?;
    Ok(u32::from_be_bytes(number))
}

/// Parses extras that are two numbers.
fn pair(extras: &[u8]) -> Result<(u32, u32), WrongParts> {
    let (first, rest) = extras.split_first_chunk().ok_or(WrongParts)?;
    Ok((u32::from_be_bytes(*first), one(rest)?))
}

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Success.
    Done = 0x00,
    /// The item does not exist.
    NotFound = 0x01,
    /// The item exists, or has another CAS.
    Exists = 0x02,
    /// The value is too large.
    TooLarge = 0x03,
    /// Extras, key or value are missing, unexpected or too long.
    InvalidArguments = 0x04,
    /// The condition for storing is not met.
    NotStored = 0x05,
    /// The value to increment or decrement is not a number.
    NotNumeric = 0x06,
    /// Authentication failed or is missing.
    NotAuthenticated = 0x20,
    /// The opcode is unknown, or the lengths are inconsistent.
    UnknownCommand = 0x81,
    /// There is no memory for the value.
    OutOfMemory = 0x82,
}

impl Status {
    /// memcached's error message, which is the value of a response with an error.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Status::Done => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotNumeric => "Non-numeric server-side value for incr or decr",
            Status::NotAuthenticated => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(opcode: u8, key: u16, extras: u8, body: u32) -> Head {
        let mut bytes = [0; HEAD_LENGTH];
        bytes[0] = REQUEST_MAGIC;
        bytes[1] = opcode;
        bytes[2..4].copy_from_slice(&key.to_be_bytes());
        bytes[4] = extras;
        bytes[8..12].copy_from_slice(&body.to_be_bytes());
        Head::parse(&bytes).unwrap()
    }

    /// The example of Get in the specification, section 5.2, and its response.
    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let mut bytes = [0; HEAD_LENGTH];
        bytes[0] = 0x80;
        bytes[3] = 5;
        bytes[11] = 5;
        let head = Head::parse(&bytes).unwrap();
        assert_eq!((head.key, head.extras, head.value()), (5, 0, 0));
        let get = Request {
            command: Command::Get { with_key: false },
            is_quiet: false,
        };
        assert_eq!(head.command(&[]), Ok(Some(get)));
        let lengths = Lengths {
            extras: 4,
            key: 0,
            value: 5,
        };
        let expected = [
            0x81, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        assert_eq!(head.response(Status::Done, lengths, 1), expected);
    }

    #[test]
    fn lengths_that_lie_are_told_apart() {
        let mut bytes = [0; HEAD_LENGTH];
        assert_eq!(Head::parse(&bytes), Err(BadHead::Magic));
        bytes[0] = REQUEST_MAGIC;
        bytes[3] = 2;
        bytes[11] = 1;
        assert!(matches!(Head::parse(&bytes), Err(BadHead::Lengths(_))));
        bytes[8] = 0x40;
        assert!(matches!(Head::parse(&bytes), Err(BadHead::TooLong(_))));
    }

    #[test]
    fn each_command_takes_its_parts_alone() {
        let extras = [0; 20];
        for (opcode, key, length, body, is_right) in [
            (0x00, 1, 0, 1, true),
            (0x00, 0, 0, 0, false),
            (0x00, 1, 0, 2, false),
            (0x01, 1, 8, 9, true),
            (0x01, 1, 8, 90, true),
            (0x01, 0, 8, 8, false),
            (0x01, 1, 4, 5, false),
            (0x05, 1, 20, 21, true),
            (0x05, 1, 20, 22, false),
            (0x05, 1, 8, 9, false),
            (0x08, 0, 0, 0, true),
            (0x08, 0, 4, 4, true),
            (0x08, 1, 0, 1, false),
            (0x0a, 0, 0, 0, true),
            (0x0a, 0, 0, 1, false),
            (0x10, 0, 0, 0, true),
            (0x10, 8, 0, 8, true),
            (0x10, 8, 4, 12, false),
            (0x0e, 1, 0, 5, true),
            (0x0e, 1, 4, 5, false),
            (0x1c, 1, 4, 5, true),
            (0x1c, 1, 0, 1, false),
        ] {
            let head = head(opcode, key, length, body);
            let told = head.command(&extras[..usize::from(length)]);
            let is_known = matches!(told, Ok(Some(_)));
            assert_eq!(is_known, is_right, "{opcode:#x} {key} {length} {body}");
        }
        assert_eq!(head(0x70, 0, 0, 0).command(&[]), Ok(None));
    }
}
