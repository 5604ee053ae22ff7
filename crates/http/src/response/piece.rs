//! The pieces of a response's body: handlers produce them, filters transform them, and the exchange
//! sends them.

use bytes::Bytes;
use engine::file::File;

use crate::request::Request;
use crate::request::state::Stub;

/// Maximum number of bytes of a file that are read at once.
pub const READ_SIZE: u64 = 32 * 1024;

/// A part of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file.
    File {
        /// The open file that is sent.
        file: File,
        /// The offset of the first byte in the file.
        offset: u64,
        /// The number of bytes that are sent.
        length: u64,
    },
    /// The response of a subrequest, which is included at this position.
    Include(Box<Include>),
    /// Sends all earlier pieces at once.
    Flush,
    /// The end of this request's body.
    Last,
}

impl Piece {
    /// The number of bytes of the body that the piece holds.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
            Piece::Include(_) | Piece::Flush | Piece::Last => 0,
        }
    }

    /// Whether the piece is data for the client.
    pub(crate) fn is_output(&self) -> bool {
        !matches!(self, Piece::Flush | Piece::Last)
    }
}

/// A subrequest whose response is used within a response.
#[derive(Clone, Debug)]
pub struct Include {
    /// The decoded path of the subrequest.
    pub uri: Vec<u8>,
    /// The arguments of the subrequest.
    pub args: Vec<u8>,
    /// The use of the subrequest's response.
    pub purpose: Purpose,
}

/// The use of an included response.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// The response takes the place of the include.
    Output,
    /// The response takes the place of the include. The stub does so if the response is empty or an
    /// error.
    OutputOr(Stub),
    /// Nothing is included. A successful response that is not empty is passed as a whole to `put`,
    /// with `name`.
    Value {
        /// The name that is passed to `put`.
        name: Bytes,
        /// Stores the response under `name`.
        put: fn(&mut Request, &Bytes, Bytes),
    },
}
