//! An exchange in memory, for tests: what a handler does, without a client.
//!
//! It interleaves nothing and times nothing. Handlers and filters are tested on it as the
//! protocols call them (see the tests of [`request`](crate::http::request)): pieces can be told
//! apart here, which no client sees on the wire.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::http::exchange::fields::{self, Line};
use crate::http::output::Piece;
use crate::http::request::Request;

/// Plays a client that has sent its body, and records what it is answered.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The request's body as it will be read.
    pub body_in: VecDeque<Bytes>,
    /// Status of the response; 0 before its head.
    pub status: u16,
    /// Header fields in order, those with a place of their own included.
    pub fields: Vec<(Bytes, Bytes)>,
    /// Bytes of the body; a file piece stands as the number of its bytes.
    pub body: Vec<u8>,
    /// Bytes that came as file pieces.
    pub file_bytes: u64,
    /// How often the handler asked for what it gave to be sent at once.
    pub flushes: usize,
    /// Whether the body has ended.
    pub ended: bool,
}

impl Recorder {
    /// The next part of the body.
    pub fn read_body(&mut self) -> Option<Bytes> {
        self.body_in.pop_front()
    }

    /// Records the head.
    pub fn send_head(&mut self, request: &mut Request) {
        self.status = request.response.status;
        fields::for_each(request, |line| {
            if let Line::Field(name, value) = line {
                let name = Bytes::copy_from_slice(name);
                self.fields.push((name, value.concat().into()));
            }
        });
    }

    /// Records a piece.
    pub fn send(&mut self, request: &mut Request, piece: Piece) {
        request.body_bytes_sent += piece.length();
        match piece {
            Piece::Bytes(bytes) => self.body.extend_from_slice(&bytes),
            Piece::File { length, .. } => self.file_bytes += length,
            Piece::Flush => self.flushes += 1,
            Piece::Last => self.ended = true,
            Piece::Include(_) => {}
        }
    }
}
