//! The parts of a response's body: what a handler gives, filters transform and the exchange sends.

use bytes::Bytes;
use engine::file::File;

use crate::request::Request;
use crate::request::state::Stub;

/// How much of a file is read at once where its bytes must pass a filter.
pub const READ_SIZE: u64 = 32 * 1024;

/// A part of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes that lie in memory.
    Bytes(Bytes),
    /// A stretch of a file.
    File {
        /// The open file that is sent.
        file: File,
        /// The offset of the first byte in the file.
        offset: u64,
        /// The number of bytes that are sent.
        length: u64,
    },
    /// The response of a subrequest stands here.
    Include(Box<Include>),
    /// What came so far is to leave at once.
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

    /// Whether it is a part of what the client gets.
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
    /// What becomes of its response.
    pub purpose: Purpose,
}

/// What becomes of an included response.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// It stands where the include stood.
    Output,
    /// The response stands where the include stood; if it is empty or an error, this stub does.
    OutputOr(Stub),
    /// Nothing stands there: the whole of it, if it is no error and not empty, is given to this
    /// function with this name.
    Value {
        /// The name that the function is called by.
        name: Bytes,
        /// Puts it where it belongs.
        put: fn(&mut Request, &Bytes, Bytes),
    },
}
