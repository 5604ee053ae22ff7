//! The pieces of a response's body: handlers produce them, filters transform them, the exchange
//! sends them.

use bytes::Bytes;
use engine::file::File;

use crate::request::Request;
use crate::request::state::Stub;

/// Bytes of a file that are read at once for a filter.
pub const READ_SIZE: u64 = 32 * 1024;

/// A part of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes that lie in memory.
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
    /// The response of a subrequest is included here.
    Include(Box<Include>),
    /// Everything before is to be sent at once.
    Flush,
    /// The end of this request's body.
    Last,
}

impl Piece {
    /// How many bytes of the body it is.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
            Piece::Include(_) | Piece::Flush | Piece::Last => 0,
        }
    }

    /// Whether it is data for the client.
    pub(crate) fn is_output(&self) -> bool {
        !matches!(self, Piece::Flush | Piece::Last)
    }
}

/// A subrequest within a response.
#[derive(Clone, Debug)]
pub struct Include {
    /// The decoded path of the subrequest.
    pub uri: Vec<u8>,
    /// The arguments of the subrequest.
    pub args: Vec<u8>,
    /// What its response is used for.
    pub purpose: Purpose,
}

/// What an included response is used for.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// The response takes the place of the include.
    Output,
    /// The response takes the place of the include; if it is empty or an error, this stub does.
    OutputOr(Stub),
    /// Nothing is included: a successful response that is not empty is passed as a whole to this
    /// function, with this name.
    Value {
        /// The name that the function is called by.
        name: Bytes,
        /// Stores the response.
        put: fn(&mut Request, &Bytes, Bytes),
    },
}
